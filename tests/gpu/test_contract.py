"""Products of matrices on a GPU: every form of kernel, layout and element type against the float64 reference."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import darner
from darner.backends.base.lowering import lower_for
from darner.backends.wgpu.machine import Machine
from darner.codegen.simt import families
from darner.codegen.simt.contract import plan as gemm_tile
from darner.codegen.simt.contract import template as contract
from darner.codegen.simt.contract import vector as gemm_vector
from darner.codegen.simt.contract.plan import Cut, Tile
from darner.codegen.simt.contract.product import product_of, view_of
from darner.codegen.simt.families import template_of, written
from darner.graph import dtypes
from darner.testing import assert_close
from tests.gpu import needs_gpu

pytestmark = needs_gpu

LARGE = Machine(
    "large",
    "DiscreteGPU",
    "Vulkan",
    "",
    frozenset({"shader-f16", "shader-f64", "shader-int64", "subgroup"}),
    {
        "max-compute-invocations-per-workgroup": 1024,
        "max-compute-workgroup-size-x": 1024,
        "max-compute-workgroup-storage-size": 49152,
    },
    (32, 32),
)
"""A GPU that is not here: for what is said of text."""


def product(m, n, k, layout="NN", batch=(), dtype="f32", finish=None):
    """A graph of one product, transposed views for T, and what ``finish`` makes of it with ``n`` as the last axis."""
    graph, kind = darner.Graph(), dtypes.dtype(dtype)
    swapped = (*range(len(batch)), len(batch) + 1, len(batch))
    a = graph.input("a", (*batch, m, k) if layout[0] == "N" else (*batch, k, m), kind)
    b = graph.input("b", (*batch, k, n) if layout[1] == "N" else (*batch, n, k), kind)
    x = a if layout[0] == "N" else a.transpose(swapped)
    y = b if layout[1] == "N" else b.transpose(swapped)
    found = x @ y
    graph.set_outputs([found] if finish is None else finish(graph, found))
    return graph


def values(graph, seed=0):
    rng = np.random.default_rng(seed)
    found = {}
    for name, node in graph.inputs.items():
        array = rng.standard_normal(tuple(int(size) for size in node.shape))
        array = array * (1 if node.dtype.is_float else 40)
        found[name] = array.astype(node.dtype.numpy)
    return found


def run(graph, arrays, machine=None):
    """The outputs, and the templates of the kernels; of a device that says it is ``machine`` where that is given."""
    from darner.backends.wgpu.device import opened
    from darner.backends.wgpu.program import WgpuProgram

    device = copy.copy(opened())
    if machine is not None:
        device.machine = machine
    plan = lower_for("gpu", graph)
    program = WgpuProgram(plan, device)
    try:
        for name, i in plan.leaves("input").items():
            program.bind(i, arrays[name])
        program.run()
        program.sync()
        found = [program.read(i) for i in plan.outputs]
        return found, [template_of(plan.spec(k), device.machine).name for k in plan.kernels]
    finally:
        program.close()


def here():
    from darner.backends.wgpu.device import opened

    return opened().machine


def check(graph, length, machine=None, seed=0):
    arrays = values(graph, seed)
    found, templates = run(graph, arrays, machine)
    assert "contract" in templates
    wanted = darner.run(graph, arrays, float64=True)
    wanted = wanted if isinstance(wanted, (list, tuple)) else [wanted]
    for got, right, node in zip(found, wanted, graph.outputs, strict=True):
        assert_close(got, right, node.dtype, length)


def spec_of(graph):
    plan = lower_for("gpu", graph)
    (kernel,) = plan.kernels
    return plan.spec(kernel)


# --------------------------------------------------------------------------- forms and layouts


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(("m", "n", "k"), [(40, 36, 52), (37, 41, 35)])
def test_tiles_in_every_layout(layout, m, n, k):
    check(product(m, n, k, layout), k)


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 68, 300), (3, 67, 301), (70, 2, 260)])
def test_a_few_rows_or_columns_in_every_layout(layout, m, n, k):
    check(product(m, n, k, layout), k)


@pytest.mark.parametrize("layout", ["NN", "TT"])
@pytest.mark.parametrize(("m", "n", "k"), [(5, 7, 3), (8, 12, 16), (1, 1, 1), (300, 220, 4)])
def test_small_matrices_and_short_sums(layout, m, n, k):
    check(product(m, n, k, layout), k)


@pytest.mark.parametrize(("m", "n", "k"), [(9, 16, 3000), (17, 11, 3001), (1, 16, 60000)])
def test_long_sums_are_cut_into_parts_that_a_second_dispatch_adds(m, n, k):
    graph = product(m, n, k, finish=lambda g, p: [(p + g.input("bias", (n,))).tanh()])
    assert len(written(spec_of(graph), here()).stages) == 2
    check(graph, k)


@pytest.mark.parametrize(
    ("m", "n", "k", "batch"), [(33, 20, 24, (2, 3)), (1, 24, 130, (5,)), (6, 6, 6, (70,))]
)
def test_batches(m, n, k, batch):
    check(product(m, n, k, batch=batch), k)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    m=st.integers(1, 70),
    n=st.integers(1, 70),
    k=st.integers(1, 200),
    layout=st.sampled_from(["NN", "NT", "TN", "TT"]),
    batch=st.sampled_from([(), (3,)]),
)
def test_any_sizes(m, n, k, layout, batch):
    check(product(m, n, k, layout, batch), k)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 4, 5), (4, 0, 5), (3, 4, 0)])
def test_empty_products_are_left_to_the_map(m, n, k):
    graph = product(m, n, k, finish=lambda g, p: [p + 2.0])
    found, _ = run(graph, values(graph))
    np.testing.assert_array_equal(found[0], np.full((m, n), 2.0, np.float32))


TILES = [
    Cut(Tile(64, 64, 16, 8, 4, 0.5)),
    Cut(Tile(64, 64, 16, 8, 8, 0.5, unroll=4), 2),
    Cut(Tile(32, 64, 8, 4, 4, 0.5, across=0, pad=0)),
    Cut(Tile(16, 16, 16, 4, 4, 0.5), 3),
]


@pytest.mark.parametrize("cut", TILES, ids=lambda cut: f"{cut.tile.bm}x{cut.tile.bn}/{cut.parts}")
@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_tiles_of_other_sizes(cut, layout, monkeypatch):
    monkeypatch.setattr(contract, "ranked", lambda product, machine: [cut])
    check(product(70, 68, 60, layout), 60)


def test_a_large_gpu_gets_other_tiles_for_the_same_result():
    discrete = replace(here(), kind="DiscreteGPU")
    graph = product(70, 66, 90, finish=lambda g, p: [(p + g.input("bias", (66,))).gelu()])
    check(graph, 90, discrete)


def test_sums_do_not_change_from_run_to_run():
    graph = product(20, 24, 3000)
    arrays = values(graph)
    np.testing.assert_array_equal(run(graph, arrays)[0][0], run(graph, arrays)[0][0])


@pytest.mark.parametrize(("m", "n", "k"), [(1, 68, 300), (12, 16, 8), (70, 66, 300)])
def test_all_ways_to_write_a_product_give_it(m, n, k, monkeypatch):
    graph = product(m, n, k, finish=lambda g, p: [p + g.input("bias", (n,))])
    spec = spec_of(graph)
    ways = contract.CONTRACT.variants(spec, here())
    assert len(ways) > 3
    assert next(iter(ways.values()))() == contract.CONTRACT.write(spec, here())
    # Every third is enough to know that names and code go together.
    for name in list(ways)[1::3]:
        way = replace(contract.CONTRACT, write=lambda spec, machine, way=ways[name]: way())
        monkeypatch.setattr(families, "TEMPLATES", (way,))
        check(graph, k)


# --------------------------------------------------------------------------- element types


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i32"])
@pytest.mark.parametrize(("m", "n", "k"), [(36, 40, 44), (33, 35, 37), (2, 34, 130), (5, 3, 7)])
def test_element_types(dtype, m, n, k):
    check(product(m, n, k, dtype=dtype), k)


@pytest.mark.parametrize("dtype", ["i64", "i8", "u8"])
def test_integers_of_other_sizes_are_summed_in_the_type_of_the_result(dtype):
    check(product(33, 35, 37, dtype=dtype), 37)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_halves_are_read_as_they_are_stored(dtype):
    graph, kind = darner.Graph(), dtypes.dtype(dtype)
    x, w = graph.input("x", (34, 64), kind), graph.input("w", (48, 64), kind)
    product = x.cast("f32") @ w.cast("f32").transpose((1, 0))
    graph.set_outputs([product])
    assert "vec2<u32>" in written(spec_of(graph), here()).stages[0].text
    check(graph, 64)


def test_a_gpu_without_wide_numbers_leaves_them_to_the_map():
    less = here().without("shader-f64", "shader-int64")
    assert template_of(spec_of(product(36, 36, 36, dtype="f64")), less).name != "contract"
    assert template_of(spec_of(product(36, 36, 36, dtype="i64")), less).name != "contract"
    check(product(36, 36, 36), 36, here().without("subgroup", "shader-f64", "shader-f16"))


def test_a_gpu_with_small_workgroups():
    less = here().without(
        max_compute_invocations_per_workgroup=64, max_compute_workgroup_storage_size=8192
    )
    check(product(70, 66, 50), 50, less)
    check(product(2, 66, 500), 500, less)


# --------------------------------------------------------------------------- what follows a product


def gated(graph, product):
    shape, n = product.shape, product.shape[-1]
    bias, residual = graph.input("bias", (n,)), graph.input("residual", shape)
    scale = graph.input("scale", (*shape[:-1], 1))
    sums = product * scale + bias
    return [sums.silu() * residual, (sums > 0.0), sums + residual, sums.cast("f16")]


@pytest.mark.parametrize(
    ("m", "n", "k", "batch"),
    [(36, 40, 44, ()), (33, 35, 37, ()), (2, 36, 130, (2,)), (6, 5, 4, ())],
)
def test_several_results_of_element_wise_nodes_after_a_product(m, n, k, batch):
    check(product(m, n, k, batch=batch, finish=gated), k)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "i8", "bool", "f64"])
def test_operands_of_other_types_are_read_after_a_product(dtype):
    def finish(graph, product):
        kind = dtypes.dtype(dtype)
        other, one = graph.input("other", product.shape, kind), graph.input("one", (1,), kind)
        return [product * other.cast("f32") + one.cast("f32")]

    check(product(36, 40, 20, finish=finish), 20)


def test_an_operand_of_the_product_may_be_read_after_it():
    graph = darner.Graph()
    x, w = graph.input("x", (36, 36), dtypes.f16), graph.input("w", (36, 36), dtypes.f16)
    graph.set_outputs([x + x @ w])
    check(graph, 36)


def test_axes_that_do_not_follow_each_other():
    graph = darner.Graph()
    x = graph.input("x", (4, 6, 5, 16))
    w = graph.input("w", (3, 16, 7, 8))
    # Heads beside each other, a flipped axis, and two sums that lie apart.
    graph.set_outputs(
        [
            graph.dot_general(x, w, (3,), (1,)),
            graph.dot_general(x.flip((2,)), x, (1, 3), (1, 3), (0,), (0,)),
            graph.dot_general(x[:, 1:5:2], x[:, :2], (0, 3), (0, 3)),
        ]
    )
    check(graph, 96)


def test_what_a_batch_repeats_becomes_rows_or_columns():
    graph = darner.Graph()
    x, w = graph.input("x", (6, 20, 24)), graph.input("w", (24, 16))
    graph.set_outputs([x @ w.broadcast_to((6, 24, 16))])
    found = product_of(spec_of(graph))
    assert (found.count, found.m, found.n, found.k) == (1, 120, 16, 24)
    check(graph, 24)


# --------------------------------------------------------------------------- what is chosen


def test_large_products_have_no_guards_and_whole_vectors():
    (stage,) = written(spec_of(product(2048, 2048, 2048)), LARGE).stages
    assert "if (" not in stage.text.split("fn main")[1]
    assert stage.text.count("array<vec4<f32>>") == 3
    assert "atomic" not in stage.text
    assert len(stage.text.splitlines()) < 1500


def test_few_tiles_and_long_sums_are_shared_by_more_workgroups():
    found = product_of(spec_of(product(128, 576, 1536)))
    cut = gemm_tile.ranked(found, LARGE)[0]
    tiles = -(-128 // cut.tile.bm) * -(-576 // cut.tile.bn)
    assert cut.parts > 1
    assert tiles * cut.parts >= 100
    large = product_of(spec_of(product(4096, 4096, 4096)))
    assert gemm_tile.ranked(large, LARGE)[0].parts == 1


MEASURED = [
    # Rows, columns, terms, tile, parts, microseconds on an NVIDIA H200.
    (128, 576, 576, "64x64x16 by 8x4", 8, 8.9),
    (128, 576, 576, "32x64x16 by 4x4", 1, 14.5),
    (128, 576, 1536, "64x64x16 by 8x8", 1, 87.5),
    (128, 576, 1536, "32x64x16 by 4x4", 8, 16.4),
    (128, 1536, 576, "64x64x16 by 4x4", 2, 16.4),
    (1024, 1024, 1024, "64x64x16 by 8x8", 2, 59.1),
    (1024, 1024, 1024, "128x128x16 by 8x8", 1, 102.7),
    (4096, 4096, 4096, "64x128x16 by 8x8", 1, 3120.1),
    (4096, 4096, 4096, "128x128x16 by 8x8", 1, 3010.5),
]


@pytest.mark.parametrize(("m", "n", "k", "name", "parts", "time"), MEASURED)
def test_what_is_expected_of_a_tile_is_near_what_was_measured(m, n, k, name, parts, time):
    (tile,) = (tile for tile in gemm_tile.TILES if tile.name == name)
    found = gemm_tile.cycles(product_of(spec_of(product(m, n, k))), Cut(tile, parts))
    assert found / 1755 == pytest.approx(time, rel=0.2)


def test_a_matrix_that_is_read_once_is_read_in_whole_lines():
    for layout, along in (("NN", "free"), ("NT", "summed")):
        found = product_of(spec_of(product(1, 8192, 2048, layout)))
        views = view_of(found, 0, free=False), view_of(found, 1)
        share = gemm_vector.shares_of(found, views, LARGE)[0]
        assert (views[1].along, views[1].vector) == (along, 4)
        assert gemm_vector.group_count(found, share) >= 132
        beside = share.units if along == "free" else share.slices
        assert beside * 16 >= 128
