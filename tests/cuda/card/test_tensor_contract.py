"""Products on a card's tensor cores against float64: every tile and layout, odd sizes, epilogues, batches; the same bits twice."""

import numpy as np
import pytest

import darner
from darner.backends.cuda import kernels
from darner.backends.cuda.contract import plan
from darner.backends.cuda.contract.fma import FmaCut
from darner.backends.cuda.contract.mma import MmaCut
from darner.backends.cuda.contract.template import (
    plain_product,
    tensor_product,
    write_by_fma,
    write_by_mma,
    write_by_wgmma,
)
from darner.backends.cuda.contract.wgmma import WgmmaCut
from darner.backends.cuda.opening import machines
from tests.cuda.card import needs_card
from tests.cuda.test_tensor_contract import (
    LAYOUTS,
    arrays_of,
    assert_near,
    nearest_tf32,
    product,
    swish_and_residual,
    wanted_product,
)

DEVICE = "cuda"
pytestmark = needs_card


def results(graph, arrays):
    """The outputs of two runs, which have the same bits."""
    session = darner.build(graph, device=DEVICE, mode="infer", cache=None)
    found = [session.run(arrays) for _ in range(2)]
    for first, second in zip(*(run.values() for run in found), strict=True):
        np.testing.assert_array_equal(first, second)
    return list(found[0].values())


def written_by(monkeypatch, product_of, write):
    """Let a product be written in one way."""
    common = kernels.written

    def written(spec, machine):
        found = product_of(spec, machine)
        return common(spec, machine) if found is None else write(spec, machine, found)

    monkeypatch.setattr(kernels, "written", written)


def is_hopper():
    return machines()[0].arch == "sm_90a"


def check(m, n, k, layout, dtype="bf16"):
    graph = product(m, n, k, layout, dtype)
    arrays = arrays_of(graph)
    (found,) = results(graph, arrays)
    # Tensor cores drop bits of sums that the processor keeps.
    rounded = {x: nearest_tf32(y) for x, y in arrays.items()} if dtype == "tf32" else arrays
    assert_near(
        found, wanted_product(rounded, layout), {"f32": 1e-6, "tf32": 4e-4}.get(dtype, 1e-5)
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bf16", "f16", "tf32", "f32"])
@pytest.mark.parametrize(
    "shape", [(512, 512, 512), (1000, 1000, 1000), (777, 332, 520), (509, 251, 127), (64, 64, 8192)]
)
def test_products_of_all_types_and_layouts(shape, layout, dtype):
    check(*shape, layout, dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tile", plan.WGMMA_TILES, ids=lambda tile: tile.name)
def test_every_tile_of_wgmma(tile, layout, monkeypatch):
    if not is_hopper():
        pytest.skip("wgmma is sm_90a's")

    def write(spec, machine, found):
        blocks = machine.processors * tile.blocks // tile.cluster * tile.cluster
        return write_by_wgmma(spec, machine, found, WgmmaCut(tile, 1, blocks))

    written_by(monkeypatch, tensor_product, write)
    check(1000, 1016, 520, layout)
    check(2048, 768, 64, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sharing", plan.SHARING)
def test_blocks_that_share_the_terms_of_a_tile(sharing, layout, monkeypatch):
    if not is_hopper():
        pytest.skip("wgmma is sm_90a's")
    tiles = [one for one in plan.WGMMA_TILES if one.cluster == one.blocks == 1 and not one.turns]
    for tile in tiles:
        if tile.bn > plan.WIDEST_SHARED:
            continue

        def write(spec, machine, found, tile=tile):
            tiles = WgmmaCut(tile, 1, 0).raster(found).tiles
            return write_by_wgmma(spec, machine, found, WgmmaCut(tile, 1, tiles * sharing, sharing))

        written_by(monkeypatch, tensor_product, write)
        check(200, 136, 1000, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bf16", "tf32"])
def test_operands_that_are_read_word_by_word(dtype, layout, monkeypatch):
    def write(spec, machine, found):
        return write_by_mma(spec, machine, found, MmaCut(plan.MMA_TILES[-1], loose=True))

    written_by(monkeypatch, tensor_product, write)
    for shape in ((509, 251, 31), (130, 70, 66), (997, 1021, 115)):
        check(*shape, layout, dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tile", plan.MMA_TILES, ids=lambda tile: tile.name)
def test_every_tile_of_mma(tile, layout, monkeypatch):
    if tile.shared_bytes > machines()[0].most_shared:
        pytest.skip("a block cannot share so much")

    def write(spec, machine, found):
        return write_by_mma(spec, machine, found, MmaCut(tile))

    written_by(monkeypatch, tensor_product, write)
    check(1000, 1016, 520, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tile", plan.FMA_TILES, ids=lambda tile: tile.name)
def test_every_tile_of_f32(tile, layout, monkeypatch):
    def write(spec, machine, found):
        return write_by_fma(spec, machine, found, FmaCut(tile))

    written_by(monkeypatch, plain_product, write)
    check(500, 516, 260, layout, "f32")


@pytest.mark.parametrize("shape", [(2048, 3072, 576), (777, 501, 333)])
def test_epilogues_are_computed_with_the_product(shape):
    graph = product(*shape, finish=swish_and_residual)
    arrays = arrays_of(graph)
    found = results(graph, arrays)
    x = wanted_product(arrays, "NT") + arrays["bias"]
    assert_near(found[0], x / (1 + np.exp(-x)) + arrays["residual"].astype(np.float64), 3e-3)
    assert_near(found[1], np.maximum(x, 0), 1e-5)


@pytest.mark.parametrize("shape", [(128, 64, 96), (130, 70, 90)])
def test_batches(shape):
    for layout in LAYOUTS:
        graph = product(*shape, layout, batch=(3, 5))
        arrays = arrays_of(graph)
        (found,) = results(graph, arrays)
        assert_near(found, wanted_product(arrays, layout), 1e-5)
