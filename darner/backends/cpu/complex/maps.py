"""Element-wise kernels of complex numbers: real and imaginary parts in vectors of their own, taken apart as they are read and interleaved as they are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

from ....codegen.elements.collapse import collapsed
from ....codegen.elements.complex_pairs import in_parts, is_complex, part_type
from ....codegen.elements.elements import Elements, can_emit
from ....codegen.ir.index import Index, Lanes
from ....codegen.ir.interleave import interleaved
from ....codegen.ir.types import Pointer, Value
from ....graph.dtypes import DType
from ....graph.graph import Graph
from ....graph.integers import ceil_div
from ....lower.plan import Spec
from ....lower.specs import sizes
from ..emit.template import Code, Template
from ..maps.template import PIECE, lanes_for


@lru_cache(maxsize=1024)
def _parts(spec: Spec) -> Graph:
    """What a kernel computes, as a graph on parts."""
    return in_parts(collapsed(spec).body)


def _fits(spec: Spec) -> bool:
    shapes = {tuple(sizes(output)) for output in spec.body.outputs}
    if spec.kind != "map" or not is_complex(spec.body) or len(shapes) != 1:
        return False
    return can_emit(_parts(spec))


def _emit(code: Code) -> None:
    body, outputs = _parts(code.spec), collapsed(code.spec).body.outputs
    shape = sizes(outputs[0])
    if not prod(shape):
        return
    length = shape[-1] if shape else 1
    elements = Elements.of(replace(code, spec=Spec("map", body)))
    indices = elements.indices
    lanes = lanes_for(body, elements.width, length)
    pieces = ceil_div(length, PIECE)

    def unit(number: Index, _: Sequence[Value]) -> Sequence[Value]:
        row, piece = indices.div(number, pieces), indices.mod(number, pieces)
        index = indices.split(row, shape[:-1]) if shape[:-1] else []
        first = indices.mul(row, length)

        def block(column: Index, _: Sequence[Value]) -> Sequence[Value]:
            full = [*index, column] if shape else []
            # All are computed before any is written: a result may lie where an operand does.
            parts = iter([elements.at(node, full) for node in body.outputs])
            for output, result in zip(outputs, code.results, strict=True):
                place = indices.add(first, column)
                if output.dtype.kind == "complex":
                    both = next(parts), next(parts)
                    _store(elements, both, result, place, part_type(output.dtype))
                else:
                    elements.registers.store(
                        next(parts), result, place, output.dtype, elements.mask
                    )
            return []

        if length == 1:
            block(0, [])
            return []
        start: Index = 0
        stop: Index = length
        if pieces > 1:
            start = indices.mul(piece, PIECE)
            stop = indices.clamp(indices.add(start, PIECE), 0, length)
        elements.blocks(start, stop, lanes, block)
        return []

    elements.loop(*code.share(prod(shape[:-1]) * pieces), unit)


def _store(
    elements: Elements,
    parts: tuple[Value, Value],
    pointer: Pointer,
    place: Index,
    dtype: DType,
) -> None:
    """Write complex numbers at the place of the first of them, or at all their places."""
    registers, indices = elements.registers, elements.indices
    twice = indices.mul(place, 2)
    if not isinstance(place, Lanes):
        for side, part in enumerate(parts):
            registers.store(part, pointer, indices.add(twice, side), dtype)
        return
    values = [indices.spread(part, place.count) for part in parts]
    if elements.mask is not None:
        for side, value in enumerate(values):
            registers.store(value, pointer, indices.add(twice, side), dtype, elements.mask)
        return
    start = indices.mul(place.start, 2)
    for number, value in enumerate(interleaved(elements.builder, values)):
        offset = Lanes(indices.add(start, number * place.count), place.count)
        registers.store(value, pointer, offset, dtype)


COMPLEX_MAPS = Template("complex maps", _fits, _emit)
