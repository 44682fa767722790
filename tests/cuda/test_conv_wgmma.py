"""Convolutions by ``wgmma``: their PTX run in Python, against the float64 reference."""

import numpy as np
import pytest

from darner.backends.cuda.code import to_ptx
from darner.backends.cuda.contract import plan
from darner.backends.cuda.contract.tiles import WgmmaCut, WgmmaTile
from darner.backends.cuda.conv.hopper import is_mapped, write_mapped
from darner.backends.cuda.conv.problem import conv_of
from tests.cuda.ptx.device import Device
from tests.cuda.ptxas import assembled, needs_ptxas
from tests.cuda.test_tensor_contract import assert_near
from tests.cuda.test_tensor_conv import HOPPER, LARGE, convolutions, oracle, three

SMALL = WgmmaTile(64, 64, 2, 1)
WAYS = ("forward", "input", "weight")


def run(spec, operands, cut):
    """The result of a convolution's kernel, in f32."""
    conv, device = conv_of(spec), Device()
    assert is_mapped(conv)
    written = write_mapped(conv, HOPPER, cut)
    places = [device.room(operand) for operand in operands]
    (output,) = spec.body.outputs
    shape = tuple(int(size) for size in output.shape)
    result = device.room(np.full(shape, np.nan, np.float32))
    scratch = device.room(np.full(written.scratch + 256, 0xFF, np.uint8))

    def address(binding):
        if binding.what == "scratch":
            return scratch + binding.number
        return places[binding.number] if binding.what == "operand" else result

    for stage in written.stages:
        device.launch(to_ptx(stage.ir, "sm_90a"), stage, address)
    return device.bytes(result, int(np.prod(shape)) * 4).view(np.float32).reshape(shape)


def last(x):
    """Channels from the second axis to the last."""
    return np.moveaxis(x, 1, -1)


def check(way, x, w, attrs, cut):
    graph = three(x, w, "bf16", attrs)
    spec = convolutions(graph)[WAYS.index(way)]
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.standard_normal([int(n) for n in node.shape]).astype(node.dtype.numpy)
        for name, node in graph.inputs.items()
    }
    given = {"forward": "xw", "input": ("dy", "w"), "weight": ("x", "dy")}[way]
    found = run(spec, [last(arrays[name]) for name in given], cut)
    wanted = oracle(x, w, attrs, arrays)[WAYS.index(way)]
    assert_near(found, wanted if way == "weight" else last(wanted))


@pytest.mark.parametrize(("way", "parts"), [("forward", 1), ("input", 1), ("weight", 2)])
def test_patches_are_brought_by_tensor_maps(way, parts):
    attrs = {"padding": ((1, 1), (0, 1)), "stride": 2}
    size = (5, 6) if parts == 1 else (11, 13)
    check(way, (2, 64, *size), (64, 64, 3, 2), attrs, WgmmaCut(SMALL, parts, 2))


def test_what_no_tensor_map_can_say_is_gathered():
    for x, w, attrs in (
        ((2, 48, 5, 6), (64, 48, 3, 3), {"padding": 1}),
        ((2, 64, 5, 6), (60, 64, 3, 3), {"padding": 1}),
        ((2, 64, 5, 500), (64, 64, 1, 3), {"padding": (0, 200)}),
    ):
        found = [is_mapped(conv_of(spec)) for spec in convolutions(three(x, w, "bf16", attrs))]
        assert not found[0] or not all(found)


@needs_ptxas
@pytest.mark.parametrize("way", WAYS)
def test_products_of_patches_keep_their_registers(way):
    x, w, attrs = LARGE
    spec = convolutions(three(x, w, "bf16", attrs))[WAYS.index(way)]
    written = write_mapped(conv_of(spec), HOPPER, WgmmaCut(plan.WGMMA_TILES[1], 1, 132))
    told = assembled(to_ptx(written.stages[0].ir, "sm_90a"), "sm_90a")
    assert told["spills"] == told["losses"] == 0
