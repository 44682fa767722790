"""Products by ``wgmma`` on the emulated device, with Hopper's instructions in software (``hopper``)."""

from dataclasses import replace

import numpy as np
import pytest

from darner.backends.cuda.contract import template
from darner.backends.cuda.contract.template import tensor_product, write_by_wgmma
from darner.backends.cuda.contract.tiles import WgmmaCut, WgmmaTile
from tests.cuda import hopper
from tests.cuda.test_tensor_contract import (
    LAYOUTS,
    arrays_of,
    assert_near,
    nearest_tf32,
    product,
    run,
    spec_of,
    swish_and_residual,
    wanted_product,
    written_and_run,
)

SMALL = WgmmaTile(64, 64, 3, 1)


@pytest.fixture(autouse=True)
def software(monkeypatch):
    hopper.install(monkeypatch)
    monkeypatch.setattr(template, "WgmmaKernel", hopper.LockstepKernel)


def by_wgmma(tile, parts=1, blocks=3):
    """Writes a product with so many blocks, which take tile after tile."""
    # Threads that bring are none of their own here.
    own = type("Tile", (WgmmaTile,), {"threads": property(lambda tile: 128 * tile.groups)})
    values = {name: getattr(tile, name) for name in tile.__dataclass_fields__}
    cut = WgmmaCut(own(**values), parts, blocks)
    return lambda spec, machine: write_by_wgmma(spec, machine, tensor_product(spec, machine), cut)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_tiles_in_every_layout(layout, dtype, monkeypatch):
    graph = product(136, 72, 136, layout, dtype)
    arrays = arrays_of(graph)
    (found,) = run(graph, arrays, monkeypatch, by_wgmma(SMALL))
    assert_near(found, wanted_product(arrays, layout))


@pytest.mark.parametrize(
    "tile",
    [
        WgmmaTile(128, 128, 2, 2),
        WgmmaTile(128, 64, 3, 1, slabs=2),
        WgmmaTile(64, 192, 2, 1, slabs=2),
        WgmmaTile(128, 256, 2, 2, slabs=2),
    ],
    ids=lambda tile: tile.name,
)
@pytest.mark.parametrize("layout", ["NT", "TN"])
def test_other_tiles(tile, layout, monkeypatch):
    def halves(graph, x):
        return [x.cast("bf16")]

    graph = product(200, 264, 72, layout, finish=halves)
    arrays = arrays_of(graph)
    (found,) = run(graph, arrays, monkeypatch, by_wgmma(tile))
    assert_near(found, wanted_product(arrays, layout), 4e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_odd_sizes_are_packed_and_written_element_by_element(layout, monkeypatch):
    graph = product(77, 67, 75, layout, finish=lambda graph, x: [x.cast("f16")])
    arrays = arrays_of(graph)
    (found,) = run(graph, arrays, monkeypatch, by_wgmma(SMALL))
    assert_near(found, wanted_product(arrays, layout), 5e-4)


@pytest.mark.parametrize("layout", ["NN", "NT"])
def test_tf32(layout):
    graph = product(72, 80, 100, layout, "tf32")
    arrays = arrays_of(graph)
    spec = spec_of(graph)
    rounded = {name: nearest_tf32(array) for name, array in arrays.items()}
    found = written_and_run(spec, arrays, by_wgmma(SMALL))
    assert_near(found, wanted_product(rounded, layout))


@pytest.mark.parametrize("n", [72, 75])
def test_epilogues_are_computed_from_shared_memory(n, monkeypatch):
    graph = product(70, n, 64, finish=swish_and_residual)
    arrays = arrays_of(graph)
    for tile in (SMALL, replace(SMALL, slabs=2), WgmmaTile(128, 64, 2, 2)):
        found = run(graph, arrays, monkeypatch, by_wgmma(tile))
        x = wanted_product(arrays, "NT") + arrays["bias"]
        assert_near(found[0], x / (1 + np.exp(-x)) + arrays["residual"].astype(np.float64), 3e-3)
        assert_near(found[1], np.maximum(x, 0))


def test_batches_and_parts_of_sums(monkeypatch):
    graph = product(40, 72, 200, "NN", batch=(2, 3))
    arrays = arrays_of(graph)
    for parts in (1, 2):
        (found,) = run(graph, arrays, monkeypatch, by_wgmma(SMALL, parts, 5))
        assert_near(found, wanted_product(arrays, "NN"))
