"""Products on tensor cores: results of the emulated device against float64, code for every architecture, and what is chosen."""

import numpy as np
import pytest

import darner
from darner.backends.base.lowering import written_specs
from darner.backends.cuda import kernels
from darner.backends.cuda.code import to_ptx
from darner.backends.cuda.contract import plan
from darner.backends.cuda.contract.fma import FmaCut
from darner.backends.cuda.contract.mma import MmaCut, MmaTile
from darner.backends.cuda.contract.operands import layout_of
from darner.backends.cuda.contract.store import result_map
from darner.backends.cuda.contract.template import (
    PLAIN_CONTRACT,
    TENSOR_CONTRACT,
    givens_of,
    plain_product,
    tensor_product,
    write_by_fma,
    write_by_mma,
    write_by_wgmma,
)
from darner.backends.cuda.contract.wgmma import WgmmaCut
from darner.backends.cuda.emulator.launch import compile
from darner.backends.cuda.machine import Machine
from darner.graph import dtypes
from darner.lower.lower import lower
from tests.cuda import running
from tests.cuda.ptxas import assembled, needs_ptxas

EMULATED = Machine.without_card("sm_90a", emulated=True)
HOPPER = Machine.without_card("sm_90a")
LAYOUTS = ("NN", "NT", "TN", "TT")
SMALL = MmaTile(64, 64, 32, 32, 2)


def product(m, n, k, layout="NT", dtype="bf16", batch=(), finish=None):
    """A graph of one product of 16-bit floats or of tf32, added up in f32; T is a transposed view."""
    graph = darner.Graph()
    swapped = (*range(len(batch)), len(batch) + 1, len(batch))
    kind = "f32" if dtype == "tf32" else dtype
    a = graph.input("a", (*batch, m, k) if layout[0] == "N" else (*batch, k, m), kind)
    b = graph.input("b", (*batch, k, n) if layout[1] == "N" else (*batch, n, k), kind)
    if dtype == "tf32":
        a, b = a.reduce_precision(8, 10), b.reduce_precision(8, 10)
    x = a if layout[0] == "N" else a.transpose(swapped)
    y = b if layout[1] == "N" else b.transpose(swapped)
    found = x @ y if kind == "f32" else x.cast("f32") @ y.cast("f32")
    graph.set_outputs([found] if finish is None else finish(graph, found))
    return graph


def spec_of(graph, kind="contract"):
    given = kernels.multipliers_of(HOPPER)
    planned = lower(
        graph, target="cuda", whole=set(), ended=set(), alignment=256, multipliers=given
    )
    return next(spec for _, spec in written_specs(planned) if spec.kind == kind)


def arrays_of(graph, seed=0):
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal([int(n) for n in node.shape]).astype(node.dtype.numpy)
        for name, node in graph.inputs.items()
    }


def run(graph, arrays, monkeypatch, write=None):
    """The outputs on the emulated device, of whose kernels the products are written by ``write(spec, machine)``."""

    def written(spec, machine):
        if write is not None and tensor_product(spec, machine) is not None:
            return write(spec, machine)
        return kernels.written(spec, machine)

    monkeypatch.setattr(running, "written", written)
    running.launches.cache_clear()
    try:
        return running.run_graph(graph, arrays, EMULATED)
    finally:
        running.launches.cache_clear()


def by_mma(cut):
    return lambda spec, machine: write_by_mma(spec, machine, tensor_product(spec, machine), cut)


def wanted_product(arrays, layout):
    x, y = (arrays[name].astype(np.float64) for name in "ab")
    x = x if layout[0] == "N" else np.swapaxes(x, -1, -2)
    return x @ (y if layout[1] == "N" else np.swapaxes(y, -1, -2))


def assert_near(found, wanted, tolerance=2e-6):
    found = found.astype(np.float64)
    assert found.shape == wanted.shape
    assert np.linalg.norm(found - wanted) <= tolerance * np.linalg.norm(wanted)


# --------------------------------------------------------------------------- results


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_tiles_that_reach_beyond_the_result_in_every_layout(layout, dtype, monkeypatch):
    graph = product(72, 88, 136, layout, dtype)
    arrays = arrays_of(graph)
    (found,) = run(graph, arrays, monkeypatch, by_mma(MmaCut(SMALL)))
    assert_near(found, wanted_product(arrays, layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(37, 41, 67), (70, 130, 66)], ids=str)
def test_odd_sizes_are_read_word_by_word_too(shape, layout, monkeypatch):
    graph = product(*shape, layout)
    arrays = arrays_of(graph)
    loose = MmaCut(SMALL, loose=True)
    (found,) = run(graph, arrays, monkeypatch, by_mma(loose))
    assert_near(found, wanted_product(arrays, layout))
    spec = spec_of(graph)
    assert len(write_by_mma(spec, HOPPER, tensor_product(spec, HOPPER), loose).stages) == 1


@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_tf32_is_transposed_as_it_is_read(layout):
    graph = product(37, 72, 67, layout, "tf32")
    arrays = arrays_of(graph)
    rounded = {name: nearest_tf32(array) for name, array in arrays.items()}
    found = written_and_run(spec_of(graph), arrays, by_mma(MmaCut(SMALL, loose=True)))
    assert_near(found, wanted_product(rounded, layout))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_odd_sizes_are_packed_first(layout, monkeypatch):
    graph = product(37, 41, 67, layout)
    arrays = arrays_of(graph)
    made = []

    def write(spec, machine):
        made.append(by_mma(MmaCut(SMALL))(spec, machine))
        return made[-1]

    (found,) = run(graph, arrays, monkeypatch, write)
    assert_near(found, wanted_product(arrays, layout))
    assert len(made[0].stages) == 3


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(64, 64, 64), (37, 41, 67), (1, 70, 33), (70, 1, 33), (5, 3, 1), (72, 40, 136)],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tf32_of_every_size_is_rounded_as_it_is_read(m, n, k, layout, monkeypatch):
    graph = product(m, n, k, layout, "tf32")
    arrays = arrays_of(graph)
    spec = spec_of(graph)
    assert kernels.template_of(spec, EMULATED) is TENSOR_CONTRACT
    found = written_and_run(spec, arrays)
    rounded = {name: nearest_tf32(array) for name, array in arrays.items()}
    assert_near(found, wanted_product(rounded, layout), 2e-6)


@pytest.mark.parametrize(
    ("m", "n", "k"), [(64, 64, 64), (96, 72, 136), (77, 61, 67), (40, 100, 44)]
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_f32_is_multiplied_as_it_is(m, n, k, layout):
    graph = product(m, n, k, layout, "f32")
    arrays = arrays_of(graph)
    spec = spec_of(graph)
    assert kernels.template_of(spec, EMULATED) is PLAIN_CONTRACT
    assert_near(written_and_run(spec, arrays), wanted_product(arrays, layout), 5e-7)


def nearest_tf32(array):
    """Numbers with 10 bits of mantissa, halves away from zero."""
    bits = array.view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def written_and_run(spec, arrays, write=kernels.written):
    """The result of a spec's kernel on the emulated device; its operands are in the order of their names."""
    found = write(spec, EMULATED)
    scratch = running.room(found.scratch + 256)
    operands = []
    for name in sorted(arrays):
        memory = running.held(arrays[name].nbytes)
        memory[: arrays[name].nbytes] = arrays[name].reshape(-1).view(np.uint8)
        operands.append(memory)
    (node,) = spec.body.outputs
    shape = [int(n) for n in node.shape]
    result = running.held(int(np.prod(shape)) * 4)

    def bound(binding):
        if binding.what == "scratch":
            return scratch[binding.number : binding.number + binding.nbytes]
        return operands[binding.number] if binding.what == "operand" else result

    for stage in found.stages:
        given = [bound(binding) for binding in stage.bindings]
        compile(stage)(stage.groups, [(x.ctypes.data, x.nbytes) for x in given])
    return result[: int(np.prod(shape)) * 4].view(np.float32).reshape(shape)


def test_batches_of_views_are_read_where_they_lie(monkeypatch):
    graph = darner.Graph()
    q = graph.input("q", (2, 40, 3, 32), "bf16")
    k = graph.input("k", (2, 72, 3, 32), "bf16")
    x, y = q.transpose((0, 2, 1, 3)), k.transpose((0, 2, 3, 1))
    graph.set_outputs([x.cast("f32") @ y.cast("f32")])
    arrays = arrays_of(graph)
    (found,) = run(graph, arrays, monkeypatch, by_mma(MmaCut(SMALL)))
    a, b = (arrays[name].astype(np.float64) for name in "qk")
    assert_near(found, np.einsum("bihd,bjhd->bhij", a, b))


def test_parts_of_sums_are_added_in_their_order(monkeypatch):
    graph = product(64, 64, 520)
    arrays = arrays_of(graph)
    found = [run(graph, arrays, monkeypatch, by_mma(MmaCut(SMALL, 3)))[0] for _ in range(2)]
    assert_near(found[0], wanted_product(arrays, "NT"))
    assert np.array_equal(*found)


def swish_and_residual(graph, found):
    bias = graph.input("bias", found.shape[-1:], "f32")
    residual = graph.input("residual", found.shape, "bf16")
    x = found + bias
    return [(x.silu() + residual.cast("f32")).cast("bf16"), x.relu()]


@pytest.mark.parametrize("n", [72, 75])
def test_bias_activation_and_residual_are_computed_with_the_product(n, monkeypatch):
    graph = product(70, n, 64, finish=swish_and_residual)
    arrays = arrays_of(graph)
    found = run(graph, arrays, monkeypatch, by_mma(MmaCut(SMALL)))
    x = wanted_product(arrays, "NT") + arrays["bias"]
    assert_near(found[0], x / (1 + np.exp(-x)) + arrays["residual"].astype(np.float64), 3e-3)
    assert_near(found[1], np.maximum(x, 0))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_results_of_16_bits_of_any_width(dtype, monkeypatch):
    for n in (64, 67):
        graph = product(33, n, 48, dtype=dtype, finish=lambda graph, x: [x.cast(dtype)])
        arrays = arrays_of(graph)
        (found,) = run(graph, arrays, monkeypatch, by_mma(MmaCut(SMALL)))
        assert found.dtype == dtypes.dtype(dtype).numpy
        assert_near(found, wanted_product(arrays, "NT"), 4e-3 if dtype == "bf16" else 5e-4)


def test_warps_of_other_shapes_and_longer_rings(monkeypatch):
    graph = product(80, 136, 200)
    arrays = arrays_of(graph)
    for tile in (MmaTile(64, 128, 32, 64, 3), MmaTile(128, 64, 64, 32, 4)):
        (found,) = run(graph, arrays, monkeypatch, by_mma(MmaCut(tile)))
        assert_near(found, wanted_product(arrays, "NT"))


def test_a_product_is_the_devices_own_choice(monkeypatch):
    graph = product(48, 40, 64, "NN")
    arrays = arrays_of(graph)
    (found,) = run(graph, arrays, monkeypatch)
    assert_near(found, wanted_product(arrays, "NN"))
    assert kernels.template_of(spec_of(graph), EMULATED) is TENSOR_CONTRACT


# --------------------------------------------------------------------------- which specs


@pytest.mark.parametrize(
    ("graph", "arch", "own"),
    [
        (product(64, 64, 64), "sm_80", True),
        (product(64, 64, 64), "sm_120", True),
        (product(64, 64, 64), "sm_75", False),
        (product(8, 64, 64), "sm_90a", False),
        (product(64, 64, 8), "sm_90a", False),
        (product(64, 64, 64, dtype="f32"), "sm_90a", False),
        (product(64, 64, 64, dtype="tf32"), "sm_86", True),
        (product(1, 64, 64, dtype="tf32"), "sm_90a", True),
    ],
)
def test_what_tensor_cores_take(graph, arch, own):
    machine = Machine.without_card(arch)
    found = kernels.template_of(spec_of(graph), machine)
    assert (found is TENSOR_CONTRACT) == own
    assert found is not None


def test_operands_of_two_types_are_the_common_templates():
    graph = darner.Graph()
    x, y = graph.input("x", (64, 64), "bf16"), graph.input("y", (64, 64), "f16")
    graph.set_outputs([x.cast("f32") @ y.cast("f32")])
    assert tensor_product(spec_of(graph), HOPPER) is None


# --------------------------------------------------------------------------- choices


def choice(m, n, k, machine=HOPPER, layout="NT", finish=None):
    spec = spec_of(product(m, n, k, layout, finish=finish))
    found = tensor_product(spec, machine)
    givens, _ = givens_of(found, 0)
    layouts = givens[0].layout, givens[1].layout
    return plan.ranked(found, layouts, machine)[0]


def test_large_products_have_large_tiles_in_clusters():
    cut = choice(8192, 8192, 8192)
    assert isinstance(cut, WgmmaCut)
    assert (cut.tile.bm * cut.tile.bn, cut.tile.cluster, cut.parts) == (128 * 256, 2, 1)
    assert cut.blocks == 132


def test_small_products_have_tiles_for_many_multiprocessors():
    cut = choice(512, 576, 576)
    assert cut.raster(spec_product(512, 576, 576)).tiles >= 66


def spec_product(m, n, k):
    return tensor_product(spec_of(product(m, n, k)), HOPPER)


def test_few_tiles_with_long_sums_are_cut_into_parts():
    assert choice(64, 64, 16384).parts > 1


def test_tiles_fit_in_what_a_block_can_share():
    for arch in ("sm_80", "sm_86", "sm_89", "sm_100a", "sm_120"):
        machine = Machine.without_card(arch)
        cut = choice(4096, 4096, 4096, machine)
        assert isinstance(cut, MmaCut)
        assert cut.tile.shared_bytes <= machine.most_shared
    assert all(tile.shared_bytes * tile.blocks <= HOPPER.most_shared for tile in plan.WGMMA_TILES)


def test_the_model_is_near_what_was_measured():
    """Microseconds of the best of the prototypes on an H200."""
    measured = {
        (8192, 8192, 8192): 1550,
        (2048, 49152, 576): 174,
        (512, 49152, 576): 46.6,
        (2048, 3072, 576): 12.7,
        (512, 3072, 576): 5.16,
        (2048, 576, 1536): 8.5,
        (2048, 576, 576): 4.8,
        (128, 3072, 576): 3.59,
    }
    for (m, n, k), time in measured.items():
        spec = spec_of(product(m, n, k))
        found = tensor_product(spec, HOPPER)
        givens, _ = givens_of(found, 0)
        layouts = givens[0].layout, givens[1].layout
        best = plan.ranked(found, layouts, HOPPER)[0]
        assert plan.expected(found, layouts, best, HOPPER) == pytest.approx(time, rel=0.2)


def test_only_bare_sums_are_stored_by_tensor_maps():
    def map_of(finish):
        spec = spec_of(product(128, 136, 64, finish=finish))
        return result_map(tensor_product(spec, HOPPER), spec.body)

    assert map_of(None).described.dtype == "f32"
    assert map_of(lambda graph, x: [x.cast("bf16")]).described.box == (64, 64)
    assert map_of(lambda graph, x: [x.relu()]) is None
    spec = spec_of(product(128, 135, 64))
    assert result_map(tensor_product(spec, HOPPER), spec.body) is None


def test_operands_lie_in_pieces_only_where_all_strides_are_whole():
    found = spec_product(64, 64, 64)
    assert [layout_of(found, side).along for side in (0, 1)] == ["summed", "summed"]
    odd = spec_product(64, 64, 65)
    assert layout_of(odd, 0) is None
    spec = spec_of(product(64, 64, 65, "TN"))
    assert layout_of(tensor_product(spec, HOPPER), 0).along == "free"


# --------------------------------------------------------------------------- code


def silu(graph, x):
    return [(x + graph.input("bias", x.shape[-1:], "f32")).silu().cast("bf16")]


FINISHES = {
    "bare": None,
    "bf16": lambda graph, x: [x.cast("bf16")],
    "silu": silu,
    "two": swish_and_residual,
}


@needs_ptxas
@pytest.mark.parametrize("tile", plan.WGMMA_TILES, ids=lambda tile: tile.name)
def test_kernels_by_wgmma_have_no_spills_and_do_not_run_one_after_another(tile):
    for layout, finish, dtype in (
        ("NT", "bf16", "bf16"),
        ("NT", "silu", "bf16"),
        ("TN", "bare", "f16"),
        ("NT", "two", "bf16"),
        ("NT", "bare", "tf32"),
    ):
        spec = spec_of(product(512, 768, 256, layout, dtype, finish=FINISHES[finish]))
        cut = WgmmaCut(tile, 1, 132 * tile.blocks)
        found = write_by_wgmma(spec, HOPPER, tensor_product(spec, HOPPER), cut)
        said = assembled(to_ptx(found.stages[-1].ir, "sm_90a"), "sm_90a")
        assert said["spills"] == said["losses"] == 0


@needs_ptxas
@pytest.mark.parametrize(
    "arch",
    [
        "sm_80",
        "sm_120",
        *(
            pytest.param(arch, marks=pytest.mark.slow)
            for arch in ("sm_86", "sm_89", "sm_90a", "sm_100a")
        ),
    ],
)
def test_kernels_by_mma_assemble_without_spills(arch):
    machine = Machine.without_card(arch)
    for tile in plan.MMA_TILES:
        if tile.shared_bytes > machine.most_shared:
            continue
        for layout, finish in (("NT", "bf16"), ("TN", "silu")):
            spec = spec_of(product(512, 768, 256, layout, finish=FINISHES[finish]))
            found = write_by_mma(spec, machine, tensor_product(spec, machine), MmaCut(tile))
            assert assembled(to_ptx(found.stages[-1].ir, arch), arch)["spills"] == 0


@needs_ptxas
@pytest.mark.parametrize("tile", plan.FMA_TILES, ids=lambda tile: tile.name)
def test_kernels_of_f32_keep_their_sums_in_registers(tile):
    for layout, finish in (("NN", None), ("NT", "silu"), ("TN", None)):
        spec = spec_of(product(512, 768, 256, layout, "f32", finish=FINISHES.get(finish)))
        found = write_by_fma(spec, HOPPER, plain_product(spec, HOPPER), FmaCut(tile))
        # Two blocks leave a thread 128 registers, 64 of them for sums: a few addresses may lie elsewhere.
        most = 96 if tile.blocks == 2 else 0
        assert assembled(to_ptx(found.stages[-1].ir, "sm_90a"), "sm_90a")["spills"] <= most


def test_launches_say_what_they_share_and_who_is_in_a_cluster():
    spec = spec_of(product(4096, 4096, 4096, finish=FINISHES["bf16"]))
    (stage,) = kernels.written(spec, HOPPER).stages
    assert stage.cluster == (2, 1, 1)
    assert stage.groups == (132, 1, 1)
    assert 200_000 < stage.shared <= HOPPER.most_shared
    assert [(m.sizes, m.strides, m.box, m.swizzle) for m in stage.maps] == [
        ((4096, 4096), (8192,), (64, 128), 128),
        ((4096, 4096), (8192,), (64, 128), 128),
        ((4096, 4096), (8192,), (64, 64), 128),
    ]
    assert not stage.bindings


def test_every_way_to_cut_a_product_can_be_written():
    spec = spec_of(product(300, 200, 1000, "NN"))
    for machine in (HOPPER, Machine.without_card("sm_86"), EMULATED):
        found = TENSOR_CONTRACT.variants(spec, machine)
        assert len(found) == len(set(found))
        for write in list(found.values())[:2]:
            written = write()
            assert written.stages
            if machine.emulated:
                assert [compile(stage) for stage in written.stages]
