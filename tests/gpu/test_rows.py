"""Reductions and what is computed with them on a GPU: every way that rows can lie and be shared out, against the float64 reference."""

import copy
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import Graph
from darner.backends.base.lowering import lower_for
from darner.backends.wgpu.device import opened
from darner.backends.wgpu.machine import Machine
from darner.codegen.simt.families import template_of, written
from darner.testing import tolerance
from tests.conformance import examples
from tests.gpu import needs_gpu
from tests.gpu.running import run_graph

# What a GPU has code for is asked of the GPU, even where the shaders of another one are looked at.
pytestmark = needs_gpu

NO_SUBGROUPS = ("subgroup", "subgroup-barrier")
WAYS = [(), NO_SUBGROUPS]
LARGE = Machine(
    "a large GPU",
    "DiscreteGPU",
    "Vulkan",
    "",
    frozenset({"shader-f64", "shader-int64", "subgroup"}),
    {
        "max-compute-invocations-per-workgroup": 1024,
        "max-compute-workgroup-size-x": 1024,
        "max-compute-workgroup-storage-size": 49152,
    },
    (32, 32),
)
SMALL = Machine("a small GPU", "IntegratedGPU", "Vulkan", "")


def graph_of(make, **inputs):
    """A graph of inputs with a shape and an element type each."""
    g = Graph()
    made = make(*(g.input(name, *about) for name, about in inputs.items()))
    g.set_outputs(list(made) if isinstance(made, (list, tuple)) else [made])
    return g


def stages(graph, machine=LARGE):
    """The dispatches of each kernel of rows, of which all have the rows' own template."""
    plan = lower_for("gpu", graph)
    specs = [plan.spec(kernel) for kernel in plan.kernels]
    found = [spec for spec in specs if spec.kind == "rows" and _reduces(spec)]
    assert {template_of(spec, machine).name for spec in found} <= {"rows"}
    return [written(spec, machine).stages for spec in found]


def _reduces(spec):
    """Whether a kernel makes one element of many anywhere."""
    named = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")
    nodes = [node for node in spec.body.nodes if node.op.name in named]
    return any(node.size < node.operands[0].size for node in nodes)


def check(graph, arrays, lacking=(), close=None, float64=True):
    stages(graph)
    found = run_graph(graph, arrays, lacking)
    for a, b in zip(found, darner.run(graph, arrays, float64=float64), strict=True):
        assert a.shape == b.shape
        if a.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b)
            continue
        b = b.astype(np.float64)
        limit = close or max(1e-5, 2 * tolerance(a.dtype))
        scale = max(1.0, float(np.abs(b[np.isfinite(b)]).max(initial=0)))
        np.testing.assert_allclose(a.astype(np.float64), b, rtol=limit, atol=limit * scale)


def normal(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def softmax_of(x, axes):
    e = (x - x.max(axes, keepdims=True)).exp()
    return e / e.sum(axes, keepdims=True)


KERNELS = {
    "sum": lambda x, axes: x.sum(axes),
    "max, kept": lambda x, axes: x.max(axes, keepdims=True),
    "all": lambda x, axes: (x > -1.0).all(axes),
    "normalised": lambda x, axes: (
        (x - x.mean(axes, keepdims=True)) / (x.var(axes, keepdims=True) + 1e-3).sqrt()
    ),
    "softmax": softmax_of,
    "several": lambda x, axes: [x.min(axes), x.exp(), x.exp().sum(axes).log(), x.sum(axes) * 2.0],
}


@settings(max_examples=examples(12), deadline=None)
@given(st.data())
def test_any_axes_of_any_shape(data):
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 7, 8, 33]), min_size=1, max_size=4))
    shape = tuple(shape)
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    name = data.draw(st.sampled_from(sorted(KERNELS)))
    lacking = data.draw(st.sampled_from(WAYS))
    graph = graph_of(lambda x: KERNELS[name](x, tuple(sorted(axes))), x=(shape, "f32"))
    check(graph, {"x": normal(shape)}, lacking)


@pytest.mark.parametrize(
    ("shape", "axis", "lacking"),
    [
        ((1, 1), 1, ()),
        ((3, 1021), 1, ()),
        ((3, 1021), 1, NO_SUBGROUPS),
        ((600, 16), 1, ()),
        ((2, 6000), 1, NO_SUBGROUPS),
        ((3, 10, 77), 1, ()),
        ((2, 300, 6), 1, ()),
        ((700, 5), 0, NO_SUBGROUPS),
        ((3, 40001), 1, ()),
        ((3, 40001), 1, NO_SUBGROUPS),
        ((131, 33001), 1, ()),
        ((9000, 4), 0, ()),
    ],
)
def test_softmax_of_short_and_long_rows(shape, axis, lacking):
    graph = graph_of(lambda x: x.softmax(axis), x=(shape, "f32"))
    check(graph, {"x": normal(shape)}, lacking)


def test_a_row_that_fits_in_registers_is_read_once_and_written_once():
    graph = graph_of(lambda x: x.softmax(-1), x=((8192, 4096), "f32"))
    ((stage,),) = stages(graph)
    assert stage.groups[0] * stage.groups[1] == 8192
    assert len(re.findall(r"= operand0\[", stage.text)) == 4
    assert len(re.findall(r"result0\[[^;]*\] = vec4<f32>", stage.text)) == 4
    assert "for (" not in stage.text


@pytest.mark.parametrize("shape", [(8192, 4096), (4, 250000), (100000, 16), (64, 1000)])
@pytest.mark.parametrize("machine", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_shaders_are_not_too_long_and_share_no_more_memory_than_there_is(shape, machine, dtype):
    def make(x, t, w, b):
        y = x.layer_norm(w, b).gelu() * t
        return y.sum(), y

    last = ((shape[1],), dtype)
    graph = graph_of(make, x=(shape, dtype), t=(shape, dtype), w=last, b=last)
    for kernel in stages(darner.value_and_grad(graph, ["x", "w", "b"]), machine):
        for stage in kernel:
            assert stage.text.count("\n") < 2500
            shared = re.findall(r"var<workgroup> \w+: array<u32, (\d+)>", stage.text)
            assert 4 * sum(map(int, shared)) <= machine.shared
            (threads,) = re.findall(r"workgroup_size\((\d+)\)", stage.text)
            assert int(threads) <= machine.threads


@pytest.mark.parametrize("shape", [(4, 250000), (1, 1000000)])
def test_few_long_rows_are_shared_out_over_many_workgroups(shape):
    ((first, second),) = stages(graph_of(lambda x: x.sum(1), x=(shape, "f32")))
    assert first.groups[0] * first.groups[1] >= 200
    assert second.groups[0] * second.groups[1] == shape[0]


@pytest.mark.parametrize("lacking", WAYS)
def test_the_sum_of_a_million_numbers_is_as_good_as_by_pairs(lacking):
    x = np.random.default_rng(1).uniform(0.5, 1.5, 1000003).astype(np.float32)
    graph = graph_of(lambda x: x.sum(), x=(x.shape, "f32"))
    (found,) = run_graph(graph, {"x": x}, lacking)
    exact = x.astype(np.float64).sum()
    assert abs(float(found) - exact) <= 2e-7 * exact


def test_sums_over_the_first_axis_do_not_lose_digits():
    x = np.random.default_rng(1).uniform(0.5, 1.5, (250000, 4)).astype(np.float32)
    graph = graph_of(lambda x: x.sum(0), x=(x.shape, "f32"))
    check(graph, {"x": x}, close=3e-7)


@pytest.mark.parametrize("lacking", WAYS)
@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16", "i64", "i32", "u8", "i8", "bool"])
def test_reductions_of_every_element_type(dtype, lacking):
    from darner.graph.dtypes import dtype as named

    values = np.random.default_rng(2).integers(0, 2 if dtype == "bool" else 7, (37, 24))
    x = values.astype(named(dtype).numpy)

    def make(x):
        found = [x.max(1), x.min(0), x.argmax(1), x.argmin(0)]
        return found if dtype == "bool" else [*found, x.sum(1), x.sum(0), x.prod(1)]

    check(graph_of(make, x=(x.shape, dtype)), {"x": x}, lacking, float64=False)


@pytest.mark.parametrize("lacking", WAYS)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((9, 24), 1), ((9, 6), 1), ((9, 13), 1), ((3, 11, 6), 1), ((3, 11, 5), 1)]
)
def test_sixteen_bit_results_lie_where_they_should(shape, axis, dtype, lacking):
    def make(x):
        return [x.softmax(axis), x.max(axis)]

    graph = graph_of(make, x=(shape, dtype))
    x = np.random.default_rng(3).standard_normal(shape)
    x = x.astype(graph.outputs[0].dtype.numpy)
    check(graph, {"x": x}, lacking, float64=False)


@pytest.mark.parametrize("lacking", WAYS)
@pytest.mark.parametrize("shape", [(6, 8), (6, 6), (6, 7), (2, 9, 8)])
def test_bools_of_each_element_of_a_row(shape, lacking):
    graph = graph_of(lambda x: x >= x.mean(1, keepdims=True), x=(shape, "f32"))
    check(graph, {"x": normal(shape)}, lacking)


@pytest.mark.parametrize("lacking", WAYS)
@pytest.mark.parametrize("length", [5, 300, 20000])
def test_the_first_of_equal_extremes_wins_and_nan_over_all(length, lacking):
    x = np.random.default_rng(4).integers(-3, 3, (6, length)).astype(np.float32)
    x[1, length // 2], x[1, length - 1] = np.nan, np.nan
    x[2] = -np.inf
    x[3] = np.inf
    graph = graph_of(
        lambda x: [x.argmax(1), x.argmin(1), x.argmax(), x.max(1), x.min(1)], x=(x.shape, "f32")
    )
    found = run_graph(graph, {"x": x}, lacking)
    wanted = [np.argmax(x, 1), np.argmin(x, 1), np.argmax(x), x.max(1), x.min(1)]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("rows", [5, 130])
def test_softmax_of_long_rows_with_infinities(rows):
    x = normal((rows, 40000))
    x[0, :39000] = -np.inf
    x[1] = -np.inf
    x[2, 700] = np.inf
    x[3, 39999] = np.nan
    x[4, 100:] = -np.inf
    graph = graph_of(lambda x: [x.softmax(1), x.log_softmax(1)], x=(x.shape, "f32"))
    with np.errstate(invalid="ignore"):
        check(graph, {"x": x})


def gradients(shape):
    def make(x, w, b, t):
        y = x.layer_norm(w, b)
        return (y * t).sum(), y

    graph = graph_of(
        make, x=(shape, "f32"), w=(shape[-1:], "f32"), b=(shape[-1:], "f32"), t=(shape, "f32")
    )
    arrays = {"x": normal(shape), "w": normal(shape[-1:], seed=1), "b": normal(shape[-1:], seed=2)}
    return darner.value_and_grad(graph, ["x", "w", "b"]), {**arrays, "t": normal(shape, seed=3)}


@pytest.mark.parametrize(
    ("shape", "lacking"),
    [
        ((17, 8), ()),
        ((50, 96), NO_SUBGROUPS),
        ((1031, 5), ()),
        ((3, 40, 33), ()),
        ((20, 20000), ()),
        ((150, 9001), NO_SUBGROUPS),
    ],
)
def test_sums_over_rows_beside_those_along_them(shape, lacking):
    check(*gradients(shape), lacking)


@pytest.mark.parametrize("shape", [(33, 10), (20, 9000)])
def test_loss_of_labels_and_its_gradients(shape):
    def make(x, b, t):
        return (x + b).cross_entropy_loss(t)

    graph = graph_of(make, x=(shape, "f32"), b=(shape[1:], "f32"), t=(shape[:1], "i32"))
    labels = np.random.default_rng(5).integers(0, shape[1], shape[0]).astype(np.int32)
    arrays = {"x": normal(shape), "b": normal(shape[1:], seed=1), "t": labels}
    check(darner.value_and_grad(graph, ["x", "b"]), arrays)


def test_batch_norm_over_images():
    shape = (6, 5, 14, 14)

    def make(x):
        return (x - x.mean((0, 2, 3), keepdims=True)) * (
            x.var((0, 2, 3), keepdims=True) + 1e-5
        ).rsqrt()

    check(graph_of(make, x=(shape, "f32")), {"x": normal(shape)})


def test_a_result_may_take_the_place_of_an_operand():
    g = Graph()
    x, w = g.input("x", (30, 64)), g.input("w", (64, 64))
    h = x @ w
    g.set_outputs([(h + x.softmax(-1)).tanh().sum(1), (x @ w).exp() * 1e-9 + h.softmax(-1)])
    arrays = {"x": normal((30, 64)), "w": normal((64, 64), seed=1) / 8}
    check(g, arrays, close=3e-5)


@pytest.mark.parametrize("threads", [1, 8, 64])
def test_workgroups_of_few_threads(threads, monkeypatch):
    limited = copy.copy(opened())
    limited.machine = opened().machine.without(
        max_compute_invocations_per_workgroup=threads, max_compute_workgroup_storage_size=1024
    )
    monkeypatch.setattr("tests.gpu.running.device", lambda *_: limited)

    def make(x):
        return [x.softmax(1), x.sum(0), x.argmax(1), x.max(0), (x * x).sum()]

    x = normal((19, 333))
    check(graph_of(make, x=(x.shape, "f32")), {"x": x})
    check(*gradients((23, 12)))
