"""A launch that copies images with few channels so that the taps of the last axis lie beside each other, and are channels from then on."""

from __future__ import annotations

from ....codegen.ir.index import Number
from ....codegen.simt.dispatch import Dispatch, Stage
from ....graph import dtypes
from ....graph.integers import ceil_div
from ....lower.strided import row_major
from ..machine import Machine
from .problem import Conv

THREADS = 256


def fold_stage(conv: Conv, machine: Machine, start: int) -> tuple[Stage, int]:
    """The launch, which writes from byte ``start`` of the scratch memory on, and the elements that it writes; what lies outside of the images is 0."""
    patches, seen = conv.patches, conv.seen[0]
    dtype, piece, channels = seen.base.dtype, conv.piece, patches.channels
    taps = patches.phases[0].axes[-1]
    dispatch = Dispatch(conv.spec, machine, threads=THREADS)
    b, operand = dispatch.builder, dispatch.operand(seen.base)
    elements = dispatch.elements()
    places, registers = elements.places, elements.registers
    shape = [patches.batch, *conv.sizes, conv.channels // piece]
    pieces = 1
    for size in shape:
        pieces *= size
    memory = dispatch.scratch(start, pieces * piece, dtype, vector=piece)
    strides = [stride * channels for stride in row_major((patches.batch, *patches.sizes))]
    with b.if_(b.thread < pieces):
        *outer, column, number = places.split(b.thread, shape)
        line: Number = seen.offset
        for i, stride in zip(outer, strides, strict=False):
            line = places.add(line, places.mul(i, stride))
        corner = places.add(places.mul(column, patches.steps[-1]), taps.offset)
        values = []
        for x in range(piece):
            own = places.add(places.mul(number, piece), x)
            tap, channel = places.div(own, channels), places.mod(own, channels)
            at = places.value(places.add(corner, places.mul(tap, patches.deltas[-1])))
            inside = b.let((at < patches.sizes[-1]) & (places.value(tap) < taps.count))
            whole = places.add(places.add(line, places.mul(at, channels)), channel)
            found = registers.load(operand, b.let(b.choose(inside, places.value(whole), 0)), dtype)
            value = b.choose(inside, registers.cast(found, dtype, dtypes.f32), 0)
            values.append(registers.cast(b.let(value), dtypes.f32, dtype))
        if dtype.itemsize == 2:
            values = [registers.word(values[i : i + 2], dtype) for i in range(0, piece, 2)]
        memory[b.thread] = b.vector(values)
    return dispatch.finish(ceil_div(pieces, dispatch.threads)), pieces * piece
