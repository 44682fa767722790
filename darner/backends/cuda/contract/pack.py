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
    piece, count = layout.piece, packed_elements(layout)
    memory = dispatch.scratch(start, count, layout.dtype, vector=piece)
    elements = dispatch.elements()
    places, registers = elements.places, elements.registers
    along_k = layout.along == "summed"
    (free, _), (terms, _) = layout.free[0], layout.summed[0]
    lines, extent = (free, terms) if along_k else (terms, free)
    pieces = ceil_div(extent, piece)
    matrices = layout.batch[0][0] if layout.batch else 1
    # Neighbouring threads read neighbouring elements, also where the operand is transposed.
    transposes = along_k and view.free[-1:] and abs(view.free[-1][1]) == 1
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
