"""A launch that copies an operand to scratch memory in rows of whole pieces of 16 bytes, which tensor cores' copies can read."""

from __future__ import annotations

from ....codegen.simt.contract.load import Reader
from ....codegen.simt.contract.product import Product, View, steps
from ....codegen.simt.dispatch import Dispatch, Stage
from ....codegen.simt.machine import Machine
from ....graph import dtypes
from ....graph.integers import ceil_div
from ....lower.plan import Spec
from .operands import Layout, packed_elements

THREADS = 256
SIDE = 32
"""Rows of a tile that is transposed through shared memory, and words of each of its lines there but one."""
DEEP = 64
"""Terms of such a tile."""


def pack_stage(
    spec: Spec, machine: Machine, product: Product, side: int, layout: Layout, start: int
) -> Stage:
    """The launch for an operand of a product; see ``pack_view``."""
    operand = product.operands[side]
    view = View(
        operand.leaf,
        layout.along,
        1,
        operand.offset,
        steps(product.batch, side) if layout.batch else (),
        steps(product.free(side), side),
        steps(product.summed, side),
    )
    return pack_view(spec, machine, view, layout, start)


def pack_view(spec: Spec, machine: Machine, view: View, layout: Layout, start: int) -> Stage:
    """The launch; the view's elements lie from byte ``start`` of the scratch memory on, zeros where a row is filled up."""
    dispatch = Dispatch(spec, machine, threads=THREADS)
    b = dispatch.builder
    reader = Reader(dispatch, view, dtypes.f32)
    along_k = layout.along == "summed"
    # Neighbouring threads read neighbouring elements, also where the operand is transposed.
    transposes = along_k and view.free[-1:] and abs(view.free[-1][1]) == 1
    if transposes and layout.dtype is dtypes.f32:
        return _transpose_stage(dispatch, reader, layout, start)
    piece, count = layout.piece, packed_elements(layout)
    memory = dispatch.scratch(start, count, layout.dtype, vector=piece)
    elements = dispatch.elements()
    places, registers = elements.places, elements.registers
    (free, _), (terms, _) = layout.free[0], layout.summed[0]
    lines, extent = (free, terms) if along_k else (terms, free)
    pieces = ceil_div(extent, piece)
    matrices = layout.batch[0][0] if layout.batch else 1
    with b.if_(b.thread < count // piece):
        if transposes:
            batch, number, line = places.split(b.thread, (matrices, pieces, lines))
        else:
            batch, line, number = places.split(b.thread, (matrices, lines, pieces))
        values = []
        for x in range(piece):
            at = b.let(places.value(places.add(places.mul(number, piece), x)))
            inside = b.let(b.min(at, extent - 1)) if extent % piece else at
            row, term = (line, inside) if along_k else (inside, line)
            base = reader.base(elements, batch, row)
            value = reader.load(elements, places.add(base, reader.step(elements, term)))
            if extent % piece:
                value = b.let(b.choose(at < extent, value, 0))
            values.append(registers.cast(value, dtypes.f32, layout.dtype))
        if layout.dtype.itemsize == 2:
            values = [registers.word(values[i : i + 2], layout.dtype) for i in range(0, piece, 2)]
        whole = places.add(places.mul(batch, lines), line)
        memory[places.value(places.add(places.mul(whole, pieces), number))] = b.vector(values)
    return dispatch.finish(ceil_div(count // piece, dispatch.threads))


def _transpose_stage(dispatch: Dispatch, reader: Reader, layout: Layout, start: int) -> Stage:
    """The launch for f32 that is contiguous along rows (or columns): tiles through shared memory, whole lines read and written."""
    b, elements = dispatch.builder, dispatch.elements()
    places = elements.places
    memory = dispatch.scratch(start, packed_elements(layout), layout.dtype, vector=layout.piece)
    (free, pitch), (terms, _) = layout.free[0], layout.summed[0]
    matrices = layout.batch[0][0] if layout.batch else 1
    counts = (matrices, ceil_div(free, SIDE), ceil_div(pitch, DEEP))
    shared = b.shared(dtypes.f32, (DEEP, SIDE + 1), "tile")
    batch, across, deep = places.split(b.group, counts)
    row0, term0 = (
        b.let(places.value(places.mul(number, size)))
        for number, size in ((across, SIDE), (deep, DEEP))
    )
    lane, warp = b.let(b.local % SIDE, "lane"), b.let(b.local // SIDE, "warp")
    base = reader.base(elements, batch, b.let(b.min(row0 + lane, free - 1)))
    values = []
    for i in range(0, DEEP, THREADS // SIDE):
        line = b.let(warp + i)
        term = b.let(term0 + line)
        at = places.add(base, reader.step(elements, b.let(b.min(term, terms - 1))))
        value = b.let(reader.load(elements, at))
        values.append((line, b.let(b.choose(term < terms, value, 0.0))))
    for line, value in values:
        shared[line, lane] = value
    b.barrier()
    pieces = DEEP // layout.piece
    across_pieces = THREADS // SIDE
    inside, first = b.let(b.local // across_pieces, "inside"), b.let(b.local % across_pieces)
    row = b.let(row0 + inside)
    line_of_row = places.mul(places.add(places.mul(batch, free), row), pitch // layout.piece)
    for i in range(0, pieces, across_pieces):
        number = b.let(first + i)
        four = [b.let(shared[number * layout.piece + x, inside]) for x in range(layout.piece)]
        piece = b.let(term0 // layout.piece + number)
        with b.if_(row < free, piece < pitch // layout.piece):
            memory[places.value(places.add(line_of_row, piece))] = b.vector(four)
    return dispatch.finish(matrices * counts[1] * counts[2])
