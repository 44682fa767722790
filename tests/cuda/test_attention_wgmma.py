"""Attention by ``wgmma``: its PTX run in Python, against the float64 reference."""

import numpy as np
import pytest

from darner.backends.cuda import kernels
from darner.backends.cuda.attention import hopper_forward
from darner.backends.cuda.attention.hopper_forward import HopperCut
from darner.backends.cuda.code import to_ptx
from darner.backends.cuda.machine import Machine
from tests.cuda.attentions import Case, assert_near, planned
from tests.cuda.ptx.device import Device

MACHINE = Machine.without_card("sm_90a")
is_by = "wgmma"
"""The instruction that kernels multiply by."""


def run(case, seed=0):
    """The outputs, and the operands."""
    plan, arrays, device = planned(case.graph(), MACHINE), case.arrays(), Device(seed)
    places = {}
    for number, buffer in enumerate(plan.buffers):
        if buffer.place == "input":
            places[number] = device.room(arrays[buffer.name])
        else:
            places[number] = device.room(np.full(buffer.nbytes, 0xFF, np.uint8))
    for kernel in plan.kernels:
        written = kernels.written(plan.spec(kernel), MACHINE)
        launch(device, kernel, written, places)
    found = []
    for number in plan.outputs:
        kind = plan.buffers[number].type
        shape = tuple(int(size) for size in kind.shape)
        nbytes = int(np.prod(shape)) * kind.dtype.itemsize
        found.append(device.bytes(places[number], nbytes).view(kind.dtype.numpy).reshape(shape))
    return found, arrays


def launch(device, kernel, written, places):
    """Run a kernel of a plan."""
    scratch = device.room(np.full(written.scratch + 256, 0xFF, np.uint8))
    operands, results = ([places[i] for i in own] for own in (kernel.operands, kernel.results))

    def address(binding):
        if binding.what == "scratch":
            return scratch + binding.number
        return (operands if binding.what == "operand" else results)[binding.number]

    assert is_by in written.stages[-1].ir
    for stage in written.stages:
        device.launch(to_ptx(stage.ir, "sm_90a"), stage, address)


@pytest.mark.parametrize(
    "case",
    [
        Case(1, 1, 64, 300, 64),
        Case(2, 1, 100, 200, 80, options={"causal": True, "layout": "bshd"}),
        Case(1, 1, 64, 64, 64, finish=True),
    ],
    ids=str,
)
def test_result_is_the_reference(case):
    assert_near(case, *run(case))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        Case(1, 1, 100, 300, 128, options={"window": 70}),
        Case(1, 1, 200, 100, 96, value_width=64, options={"causal": True}),
        Case(1, 1, 140, 140, 256, dtype="f16", options={"causal": True}),
        Case(1, 1, 70, 70, 72),
        Case(2, 2, 70, 70, 64, batch=2, options={"causal": True, "offset": True}),
    ],
    ids=str,
)
def test_results_of_all_kinds_are_the_reference(case):
    assert_near(case, *run(case))


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 3])
def test_any_number_of_warpgroups_gives_the_reference(groups, monkeypatch):
    for width in (64, 128):
        monkeypatch.setitem(hopper_forward._CUTS, width, (HopperCut(groups, 64, (32, 160)),))
    case = Case(1, 1, 230, 230, 64, options={"causal": True})
    assert_near(case, *run(case))


@pytest.mark.parametrize(
    "case", [Case(2, 1, 64, 100, 64, backward=True, options={"causal": True})], ids=str
)
def test_gradients_are_the_reference(case):
    assert_near(case, *run(case))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        Case(3, 1, 100, 130, 64, dtype="f16", backward=True, options={"causal": True}),
        Case(1, 1, 64, 100, 80, backward=True, options={"causal": True, "layout": "bshd"}),
        Case(1, 1, 130, 130, 128, backward=True, options={"causal": True, "window": 60}),
        Case(1, 1, 100, 64, 64, value_width=128, backward=True, options={"window": 50}),
        Case(2, 1, 64, 64, 72, backward=True),
        Case(1, 1, 40, 40, 256, backward=True, options={"causal": True}),
        Case(1, 1, 40, 70, 144, backward=True, options={"window": 60}),
        Case(1, 1, 64, 64, 64, batch=2, backward=True, options={"causal": True, "offset": True}),
    ],
    ids=str,
)
def test_gradients_of_all_kinds_are_the_reference(case):
    assert_near(case, *run(case, seed=3))


@pytest.mark.parametrize(
    "case",
    [
        Case(2, 1, 40, 70, 64, kept=True, finish=True, options={"causal": True}),
    ],
    ids=str,
)
def test_gradients_by_what_the_forward_pass_kept_are_the_reference(case):
    assert_near(case, *run(case, seed=5))


@pytest.mark.parametrize(
    "case", [Case(1, 1, 64, 330, 64, backward=True), Case(1, 1, 64, 700, 64)], ids=str
)
def test_no_tile_is_overwritten_that_a_warp_still_reads(case):
    assert_near(case, *run(case, seed=1))


def test_what_a_tensor_map_cannot_say_is_read_by_mma_sync():
    case = Case(2, 1, 64, 64, 64)
    import darner

    graph = darner.Graph()
    q = graph.input("q", case.shapes()["q"], "bf16")
    row = graph.input("k", (1, 1, 1, 64), "bf16")
    k = row.broadcast_to((1, 1, 64, 64))
    graph.set_outputs([graph.scaled_dot_attention(q, k, k)])
    plan = planned(graph, MACHINE)
    written = kernels.written(plan.spec(plan.kernels[0]), MACHINE)
    assert all("mma.sync" in stage.ir and "wgmma" not in stage.ir for stage in written.stages)
