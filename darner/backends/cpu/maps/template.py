"""Kernels written element by element: every result in loops over its own shape, a vector at a time, shared out among the threads.

What an element is made of is emitted by ``Elements``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import prod
from typing import Any

from ....codegen.elements.argmax import looks_along
from ....codegen.elements.collapse import collapsed
from ....codegen.elements.elements import Elements, can_emit
from ....codegen.ir.index import Number
from ....graph.graph import Graph
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ..emit.non_temporal import LINE, partly
from ..emit.template import Code, Template
from .concat import Section, Tables, sections

KINDS = ("map", "rows", "contract", "index")
PIECE = 8192
"""Elements of a long row that are one piece of work."""
MOST_SEAMS = 1025
"""Places in a row where parts meet, at the most: each part is a loop."""
LEAST_VECTOR = 4
"""Elements of a row that are worth a vector, most of whose lanes may stay empty."""
SMALL = 4096
"""Elements times operations up to which one thread does it all: waking others would cost more."""


def _fits(spec: Spec) -> bool:
    return spec.kind in KINDS and can_emit(spec.body)


def lanes_for(body: Graph, width: int, length: int, counted: Collection[int] | None = None) -> int:
    """Elements computed together: more than one vector where there is little to compute, to hide its latency.

    ``counted`` are the nodes that are computed for each element, where these are not all.
    """
    operations = sum(
        node.op.name not in ("input", "constant") and (counted is None or node.id in counted)
        for node in body.nodes
    )
    vectors = 4 if operations <= 6 else 2 if operations <= 24 else 1
    while vectors > 1 and length < 2 * vectors * width:
        vectors //= 2
    return vectors * width


def _emit(code: Code) -> None:
    code = replace(code, spec=collapsed(code.spec))
    groups: dict[tuple[int, ...], list[tuple[Node, Any]]] = {}
    for output, place in zip(code.body.outputs, code.results, strict=True):
        groups.setdefault(tuple(sizes(output)), []).append((output, place))
    for shape, outputs in groups.items():
        if prod(shape):
            _emit_either(code, shape, outputs)


def _seams(body: Graph, shape: tuple[int, ...], width: int) -> list[int]:
    """Where parts of a row meet that are computed in different ways: each gets a loop of its own."""
    last = len(shape) - 1
    found = {0, shape[-1]} if shape else {0}
    for node in body.nodes:
        if tuple(sizes(node)) != shape or not shape:
            continue
        if node.op.name == "concat" and node.attrs["axis"] == last:
            found.update(accumulate(sizes(part)[last] for part in node.operands))
        elif node.op.name == "pad" and not (node.attrs["interior"] or (0,) * len(shape))[last]:
            low = int(node.attrs["padding"][last][0])
            found.update({low, low + sizes(node.operands[0])[last]})
    seams = sorted(seam for seam in found if shape and 0 <= seam <= shape[-1])
    many = len(seams) > MOST_SEAMS or _is_small(body, shape)
    return [] if many or any(b - a < width // 4 for a, b in pairwise(seams)) else seams


def _is_small(body: Graph, shape: tuple[int, ...]) -> bool:
    """Whether there is too little to do for threads to share; whoever looks for an extreme looks at all of its operand."""
    looked_at = [node.operands[0] for node in body.nodes if node.op.name in ("argmax", "argmin")]
    return prod(shape) * len(body.nodes) + sum(int(item.size) for item in looked_at) <= SMALL


def _is_ragged(shape: tuple[int, ...], lanes: int, outputs: Sequence[tuple[Node, Any]]) -> bool:
    """Whether rows begin anywhere in a line, and are long enough that most vectors are best written to whole ones."""
    widths = {node.dtype.itemsize for node, _ in outputs}
    return bool(shape) and shape[-1] % lanes > 0 and shape[-1] >= 4 * lanes and len(widths) == 1


def _emit_either(code: Code, shape: tuple[int, ...], outputs: Sequence[tuple[Node, Any]]) -> None:
    """Results of one shape, past the cache where they are large and vectors of theirs lie at whole lines."""
    length = shape[-1] if shape else 1
    lanes = lanes_for(code.body, code.width, length)
    plain = len(_seams(code.body, shape, code.width)) <= 2
    ragged = _is_ragged(shape, lanes, outputs)
    whole = plain and (length % lanes == 0 or length == prod(shape) or ragged)
    nbytes = prod(shape) * sum(node.dtype.itemsize for node, _ in outputs) if whole else 0
    places = [place for _, place in outputs]
    partly(code, nbytes, places, lambda own, past: _emit_results(own, shape, outputs, past))


def _emit_results(
    code: Code, shape: tuple[int, ...], outputs: Sequence[tuple[Node, Any]], past: bool
) -> None:
    """Loops over the rows of results of one shape, then over the elements of a row."""
    shared = Elements.of(code)
    places = shared.places
    length = shape[-1] if shape else 1
    seams = _seams(code.body, shape, shared.width)
    along = [int(node.operands[0].size) for node in code.body.nodes if looks_along(node)]
    whole = max(1, PIECE * prod(shape) // max(along)) if along else PIECE
    pieces = 1 if len(seams) > 2 else -(-length // whole)
    count = lanes_for(code.body, shared.width, length)
    small = _is_small(code.body, shape)
    axis, parts = sections(code.body, shape, small)
    tables = Tables(code, parts)

    def unit(number: Number, lead: Sequence[int], part: Section) -> None:
        elements, which = shared, None
        if len(part.starts) > 1:
            each = prod(lead) * pieces
            which, number = places.div(number, each), places.mod(number, each)
            # The operands of its leaves are this section's own.
            elements = Elements.of(code)
        row, piece = places.div(number, pieces), places.mod(number, pieces)
        index = places.split(row, lead)
        if which is not None:
            tables.give(elements, part, which)
            place = index[axis]
            index[axis] = places.add(place, tables.start(part, which))
            elements.piece(index[axis], part.position, place)
            row = places.offset(index, shape[:-1])
        elif len(parts) > 1:
            low = part.starts[0]
            index[axis] = places.add(index[axis], low)
            elements.bound(index[axis], low, low + lead[axis])
            row = places.offset(index, shape[:-1])
        first = places.mul(row, length)
        start: Number = 0
        stop: Number = length
        if pieces > 1:
            start = places.mul(piece, whole)
            stop = places.clamp(places.add(start, whole), 0, length)

        def block(column: Number, _: Any) -> Sequence[Any]:
            full = [*index, column] if shape else []
            # All are computed before any is written: a result may lie where an operand does.
            values = [elements.at(node, full) for node, _ in outputs]
            offset = places.add(first, column)
            for (node, pointer), value in zip(outputs, values, strict=True):
                elements.registers.store(
                    value, pointer, offset, node.dtype, elements.mask, past=past
                )
            return []

        if length == 1:
            block(0, [])
        elif along or length < LEAST_VECTOR:
            elements.loop(start, stop, block)
        elif len(seams) > 2:
            for before, after in pairwise(seams):
                lanes = lanes_for(code.body, elements.width, after - before)
                elements.blocks(before, after, lanes, block, aligned=before % lanes == 0)
        elif length != prod(shape) and _is_ragged(shape, count, outputs):
            line = LINE // outputs[0][0].dtype.itemsize
            elements.blocks_at_lines(start, stop, count, block, first, line)
        else:
            elements.blocks(start, stop, count, block)

    for part in parts:
        lead = [part.size if k == axis else size for k, size in enumerate(shape[:-1])]

        def one(
            number: Number, _: Any, lead: Sequence[int] = lead, part: Section = part
        ) -> Sequence[Any]:
            unit(number, lead, part)
            return []

        units = len(part.starts) * prod(lead) * pieces
        if small:
            with code.alone():
                shared.loop(0, units, one)
        else:
            shared.loop(*code.share(units), one)


ELEMENTS = Template("elements", _fits, _emit)
