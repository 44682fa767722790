"""Every family of kernels on the emulated device against the reference, kernel by kernel, without sessions."""

import numpy as np
import pytest

import darner
from darner.backends.base.lowering import written_specs
from darner.codegen.elements.collapse import collapsed
from darner.codegen.problems.rows import passes
from darner.codegen.simt.families import template_of, written
from darner.testing import make_case
from tests.conformance.devices import check_parts
from tests.cpu.test_loops import recurrent
from tests.cuda.families import ALL, OPS
from tests.cuda.running import MACHINE, lowered, run_graph
from tests.random_loops import nested_loop, random_loop

RNG = np.random.default_rng(0)


def compare(graph, arrays, close=2e-6):
    """Results agree with the reference."""
    for found, wanted in zip(
        run_graph(graph, arrays), darner.run(graph, arrays, float64=True), strict=True
    ):
        scale = float(np.abs(wanted).max(initial=1.0))
        np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=close, atol=close * scale)


def check_first(name, dtype):
    case = make_case(OPS[name], 0, dtype)
    parts = [(case.graph, case.arrays, case.length, {})]
    check_parts(parts, run_graph(case.graph, case.arrays), dtype)


@pytest.mark.parametrize("name", ALL)
def test_a_family_computes_what_the_reference_computes(name):
    check_first(name, "f32")


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
@pytest.mark.parametrize("name", ["softmax", "matmul", "top_k", "tanh", "scatter_add", "cumsum"])
def test_a_family_computes_in_every_element_type(name, dtype):
    check_first(name, dtype)


@pytest.mark.parametrize("shape", [(64, 96), (33, 130), (1, 7)])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8", "f64"])
def test_what_is_transposed_is_right(shape, dtype):
    graph = darner.Graph()
    graph.set_outputs([graph.input("x", shape, dtype).transpose((1, 0))])
    x = RNG.integers(-9, 9, shape).astype(darner.graph.dtypes.dtype(dtype).numpy)
    (found,) = run_graph(graph, {"x": x})
    np.testing.assert_array_equal(found, x.T)


def long_rows(name, length):
    """A computation of rows that take several passes, and its arrays; labels are ignored in some rows."""
    graph = darner.Graph()
    x = graph.input("x", (128, length))
    arrays = {"x": RNG.standard_normal((128, length)).astype(np.float32) * 4}
    arrays["x"][5] = -np.inf
    arrays["x"][6, :7] = -np.inf
    if name == "cross entropy":
        labels = graph.input("labels", (128,), "i32")
        arrays["labels"] = RNG.integers(0, length, 128).astype(np.int32)
        arrays["labels"][[3, 5]] = -100
        graph.set_outputs([x.cross_entropy_loss(labels)])
        return darner.value_and_grad(graph, ["x"]), arrays
    graph.set_outputs([getattr(x, name)(-1)])
    return graph, arrays


@pytest.mark.parametrize("length", [2500, 2499])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "standardised", "cross entropy"])
def test_long_rows_stay_in_shared_memory_from_pass_to_pass(name, length):
    machine = MACHINE.with_threads(64)
    if name == "standardised":
        graph, arrays = long_rows("softmax", length)
        graph = darner.Graph()
        x = graph.input("x", (128, length))
        arrays["x"] = np.nan_to_num(arrays["x"], neginf=3.0)
        graph.set_outputs([(x - x.mean(-1, keepdims=True)) / x.var(-1, keepdims=True).sqrt()])
    else:
        graph, arrays = long_rows(name, length)
    specs = [spec for _, spec in written_specs(lowered(graph, machine)) if spec.kind == "rows"]
    (whole,) = [spec for spec in specs if len(passes(collapsed(spec)).levels) > 1]
    assert "row" in written(whole, machine).stages[0].ir
    with np.errstate(all="ignore"):
        wanted = darner.run(graph, arrays, float64=True)
    for found, right in zip(run_graph(graph, arrays, machine), wanted, strict=True):
        np.testing.assert_array_equal(np.isnan(found), np.isnan(right))
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)


def halves(x, at):
    """What a gate makes of the columns before and from ``at`` on."""
    return x[..., :at].sigmoid() * x[..., x.shape[-1] - at :]


VIEWS = {
    "halves": lambda g, x: halves(x, 64),
    "halves that begin between vectors": lambda g, x: halves(x, 63).abs()[..., 1:61],
    "a row": lambda g, x: x * g.input("row", (128,)) + 1.0,
    "a column": lambda g, x: x * g.input("column", (3, 40, 1)),
    "a row of each": lambda g, x: x - g.input("rows", (3, 1, 128)),
    "across": lambda g, x: x + g.input("across", (3, 128, 40)).transpose((0, 2, 1)),
    "repeated": lambda g, x: x + g.input("one", (40, 128)).broadcast_to((3, 40, 128)),
    "backwards": lambda g, x: x + g.input("back", (3, 40, 128)).flip((1,)),
    "every other": lambda g, x: x[:, ::2] + g.input("other", (3, 20, 256))[..., ::2],
    "itself elsewhere": lambda g, x: x + x[:, :1],
    "gathered": lambda g, x: (
        x + g.input("table", (7, 128)).gather(g.input("indices", (3, 40), "i32"))
    ),
    "gathered within": lambda g, x: (
        x * g.input("table", (3, 9, 128)).gather(g.input("indices", (40,), "i32"), 1)
    ),
    "gathered across": lambda g, x: (
        x - g.input("table", (3, 40, 9)).gather(g.input("indices", (128,), "i32"), 2)
    ),
    "reshaped": lambda g, x: x.reshape((3, 40, 2, 64))[:, :, 1] * x.reshape((3, 80, 64))[:, 40:],
}


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", VIEWS)
def test_maps_read_views_wherever_they_begin(name, dtype):
    graph = darner.Graph()
    x = graph.input("x", (3, 40, 128), dtype)
    graph.set_outputs([VIEWS[name](graph, x), x.cast("f32") * 2.0])
    arrays = {
        leaf.name: RNG.standard_normal(leaf.shape).astype(leaf.dtype.numpy)
        for leaf in graph.inputs.values()
    }
    if "indices" in arrays:
        arrays["indices"] = RNG.integers(0, 7, arrays["indices"].shape).astype(np.int32)
    compare(graph, arrays, 2e-6 if dtype == "f32" else 1e-2)


@pytest.mark.parametrize(
    ("shape", "head", "rotated"),
    [((2, 24, 192), 64, None), ((5, 24, 40), 20, 12), ((3, 6), 6, None)],
)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_parts_of_concatenations_are_written_where_they_belong(shape, head, rotated, dtype):
    graph = darner.Graph()
    x = graph.input("x", shape)
    options = {} if rotated is None else {"n_rot": rotated}
    turned = graph.rope(x, 1e4, head, **options).cast(dtype)
    pairs = graph.concat([x * 2.0, x.abs(), x + 1.0], -1)
    graph.set_outputs([turned, pairs, pairs.cast("i32")])
    array = RNG.standard_normal(shape).astype(np.float32) * 3
    compare(graph, {"x": array}, 1e-5 if dtype == "f32" else 1e-2)


def test_a_map_has_workgroups_for_each_shape_of_its_results():
    graph = darner.Graph()
    queries, keys = graph.input("queries", (2, 24, 192)), graph.input("keys", (2, 24, 128))
    turned = [graph.rope(x, 1e4, 64) for x in (queries, keys)]
    few = graph.input("few", (2, 192, 1)).exp()
    graph.set_outputs([turned[0].transpose((0, 2, 1)) @ turned[1] + few])
    specs = [spec for _, spec in written_specs(lowered(graph)) if spec.kind == "map"]
    (whole,) = [spec for spec in specs if spec.ops.count("concat") == 2]
    assert len({node.shape for node in whole.body.outputs}) > 1
    assert len(written(whole, MACHINE).stages) == 1
    arrays = {
        leaf.name: RNG.standard_normal(leaf.shape).astype(np.float32)
        for leaf in graph.inputs.values()
    }
    compare(graph, arrays, 1e-5)


@pytest.mark.parametrize("size", [4096, 4098, 4097, 7])
def test_results_of_one_two_and_four_bytes_stand_beside_each_other(size):
    graph = darner.Graph()
    x = graph.input("x", (size,))
    graph.set_outputs([x > 0.0, (x * 4.0).cast("i8"), (x * 4.0).cast("i32"), x.cast("bf16")])
    array = RNG.standard_normal(size).astype(np.float32)
    for found, wanted in zip(
        run_graph(graph, {"x": array}), darner.run(graph, {"x": array}), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("size", [(130, 257, 65), (64, 64, 64), (1, 300, 1000), (300, 1, 77)])
def test_products_of_any_size_are_right(size):
    m, n, k = size
    graph = darner.Graph()
    graph.set_outputs([graph.input("a", (m, k)) @ graph.input("b", (k, n))])
    arrays = {
        name: RNG.standard_normal(s).astype("f4") for name, s in (("a", (m, k)), ("b", (k, n)))
    }
    compare(graph, arrays, 1e-5)


def test_a_loop_of_any_body_is_the_launches_of_its_steps():
    graph, arrays = recurrent(5, batch=3, width=20, reverse=True)
    forms = [template_of(spec, MACHINE).name for spec in lowered(graph).specs.values()]
    assert "loops" in forms
    compare(graph, arrays, 5e-6)


@pytest.mark.parametrize("make", [lambda: random_loop(300), lambda: random_loop(301), nested_loop])
def test_random_loops_compute_what_the_interpreter_computes(make):
    graph, arrays = make()
    for found, wanted in zip(run_graph(graph, arrays), darner.run(graph, arrays), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


def test_an_index_outside_of_its_axis_is_told_of():
    graph = darner.Graph()
    table, rows = graph.input("table", (5, 3)), graph.input("rows", (4,), "i32")
    graph.set_outputs([table.gather(rows, axis=0)])
    arrays = {"table": np.ones((5, 3), np.float32), "rows": np.array([0, 4, 5, 1], np.int32)}
    with pytest.raises(darner.RunError, match="5"):
        run_graph(graph, arrays)
