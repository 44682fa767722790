"""Products whose epilogues read both halves of their columns in pairs, and those that write what they make side by side."""

import numpy as np
import pytest

import darner
from darner.backends.base.lowering import written_specs
from darner.backends.cuda import kernels
from darner.backends.cuda.code import to_ptx
from darner.backends.cuda.contract import plan as plans
from darner.backends.cuda.contract import template
from darner.backends.cuda.contract.mma import MmaCut, MmaTile
from darner.backends.cuda.contract.template import (
    TENSOR_CONTRACT,
    tensor_product,
    write_by_mma,
    write_by_wgmma,
)
from darner.backends.cuda.contract.wgmma import WgmmaCut, WgmmaTile
from darner.lower.groups import Fusing
from darner.lower.lower import lower
from tests.cuda import hopper, running
from tests.cuda.ptxas import assembled, needs_ptxas
from tests.cuda.test_tensor_contract import EMULATED, HOPPER, arrays_of, assert_near, nearest_tf32
from tests.cuda.test_wgmma import by_wgmma

ALL = Fusing(joins=True, halves=True)


def gated(m, n, k, layout="N", dtype="bf16", kept=True):
    """A gate of both halves of a product's columns, rounded as the next product reads it, and where it is kept the product itself."""
    graph = darner.Graph()
    kind = "f32" if dtype == "tf32" else dtype
    a = graph.input("a", (m, k), kind)
    b = graph.input("b", (k, n) if layout == "N" else (n, k), kind)
    if dtype == "tf32":
        a, b = a.reduce_precision(8, 10), b.reduce_precision(8, 10)
    if kind != "f32":
        a, b = a.cast("f32"), b.cast("f32")
    both = a @ (b if layout == "N" else b.transpose((1, 0)))
    gate, up = both[:, : n // 2], both[:, n // 2 :]
    hidden = (gate * gate.sigmoid() * up).cast("bf16")
    graph.set_outputs([hidden, both] if kept else [hidden])
    return graph


def backward(m, n, k):
    """The gradient of a gate: of a product, and both halves of what the forward product gave."""
    graph = darner.Graph()
    a, b = graph.input("a", (m, k), "bf16"), graph.input("b", (k, n), "bf16")
    both = graph.input("both", (m, 2 * n))
    slope = a.cast("f32") @ b.cast("f32")
    gate, up = both[:, :n], both[:, n:]
    share = gate.sigmoid()
    parts = [slope * up * (share + gate * share * (1.0 - share)), slope * gate * share]
    graph.set_outputs([graph.concat(parts, 1).cast("bf16")])
    return graph


def lowered(graph):
    return lower(
        graph,
        target="cuda",
        whole=set(),
        ended=set(),
        alignment=256,
        multipliers=kernels.multipliers_of(HOPPER),
        fusing=ALL,
    )


def only_spec(graph):
    """Of the one kernel that a graph is."""
    ((_, spec),) = written_specs(lowered(graph))
    return spec


def run(graph, arrays, monkeypatch, write):
    """Outputs on the emulated device, all of one kernel."""
    only_spec(graph)
    monkeypatch.setattr(running, "written", write)
    running.launches.cache_clear()
    try:
        return running.Kernels(lowered(graph), arrays, EMULATED).run()
    finally:
        running.launches.cache_clear()


def by_mma(tile):
    return lambda spec, machine: write_by_mma(
        spec, machine, tensor_product(spec, machine), MmaCut(tile)
    )


def wanted(arrays, layout="N", dtype="bf16"):
    a, b = arrays["a"], arrays["b"]
    if dtype == "tf32":
        a, b = nearest_tf32(a), nearest_tf32(b)
    both = a.astype(np.float64) @ (b if layout == "N" else b.T).astype(np.float64)
    gate, up = np.split(both, 2, axis=1)
    return gate / (1 + np.exp(-gate)) * up, both


MMA = MmaTile(64, 64, 32, 32, 2)
SIZES = [(72, 192, 136, "N", "bf16"), (40, 96, 72, "T", "f16"), (33, 64, 44, "N", "tf32")]


@pytest.mark.parametrize(("m", "n", "k", "layout", "dtype"), SIZES)
def test_gates_are_computed_of_both_halves_by_mma(m, n, k, layout, dtype, monkeypatch):
    graph = gated(m, n, k, layout, dtype)
    arrays = arrays_of(graph)
    hidden, both = run(graph, arrays, monkeypatch, by_mma(MMA))
    assert_near(hidden, wanted(arrays, layout, dtype)[0], 3e-3)
    assert_near(both, wanted(arrays, layout, dtype)[1])


@pytest.mark.parametrize(
    ("tile", "layout", "n"),
    [
        (WgmmaTile(64, 128, 2, 1), "N", 320),
        (WgmmaTile(64, 128, 2, 1), "T", 144),
        (WgmmaTile(128, 256, 2, 2, slabs=2), "N", 144),
    ],
)
def test_gates_are_computed_of_both_halves_by_wgmma(tile, layout, n, monkeypatch):
    hopper.install(monkeypatch)
    monkeypatch.setattr(template, "WgmmaKernel", hopper.LockstepKernel)
    graph = gated(136, n, 72, layout)
    arrays = arrays_of(graph)
    hidden, both = run(graph, arrays, monkeypatch, by_wgmma(tile))
    assert_near(hidden, wanted(arrays, layout)[0], 3e-3)
    assert_near(both, wanted(arrays, layout)[1])


@pytest.mark.parametrize("n", [72, 37])
def test_both_slopes_of_a_gate_are_written_side_by_side(n, monkeypatch):
    graph = backward(70, n, 64)
    arrays = arrays_of(graph)
    (found,) = run(graph, arrays, monkeypatch, by_mma(MMA))
    slope = arrays["a"].astype(np.float64) @ arrays["b"].astype(np.float64)
    gate, up = np.split(arrays["both"].astype(np.float64), 2, axis=1)
    share = 1 / (1 + np.exp(-gate))
    parts = [slope * up * (share + gate * share * (1 - share)), slope * gate * share]
    assert_near(found, np.concatenate(parts, axis=1), 3e-3)


def test_what_tensor_cores_do_not_multiply_has_its_gate_by_itself():
    spec = only_spec(gated(4, 64, 32))
    assert not kernels.runs(spec, HOPPER)
    assert kernels.template_of(only_spec(gated(64, 64, 32)), HOPPER) is TENSOR_CONTRACT
    assert kernels.runs(only_spec(gated(64, 64, 32)), HOPPER)


@needs_ptxas
@pytest.mark.parametrize("make", [gated, backward], ids=["forward", "backward"])
def test_the_largest_tile_does_not_spill(make):
    tile = plans.WGMMA_TILES[0]
    spec = only_spec(make(512, 768, 256))
    product = tensor_product(spec, HOPPER)
    found = write_by_wgmma(spec, HOPPER, product, WgmmaCut(tile, 1, 132 * tile.blocks))
    said = assembled(to_ptx(found.stages[-1].ir, "sm_90a"), "sm_90a")
    assert said["spills"] == 0
    assert said["losses"] == 0
