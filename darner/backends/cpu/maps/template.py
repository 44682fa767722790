"""Element-wise kernels: each result has a loop nest over its shape, a vector at a time, shared among the threads.

``Elements`` emits the code of an element.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import prod

from ....codegen.elements.argmax import looks_along
from ....codegen.elements.collapse import collapsed
from ....codegen.elements.elements import Elements, can_emit
from ....codegen.ir.index import Index
from ....codegen.ir.types import Value
from ....graph.graph import Graph
from ....graph.integers import ceil_div
from ....lower.plan import Spec
from ....lower.specs import sizes
from ..emit.non_temporal import partly
from ..emit.template import Code, Template
from ..model import LINE
from .concat import Result, Section, Tables, results_of, sections

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
    for shape, outputs in results_of(code.body, code.results).items():
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


def _is_ragged(shape: tuple[int, ...], lanes: int, outputs: Sequence[Result]) -> bool:
    """Whether rows begin anywhere in a line, and are long enough that most vectors are best written to whole ones."""
    widths = {result.node.dtype.itemsize for result in outputs}
    if any(result.count > 1 for result in outputs):
        return False
    return bool(shape) and shape[-1] % lanes > 0 and shape[-1] >= 4 * lanes and len(widths) == 1


def _emit_either(code: Code, shape: tuple[int, ...], outputs: Sequence[Result]) -> None:
    """Results of one shape, past the cache where they are large and vectors of theirs lie at whole lines."""
    length = shape[-1] if shape else 1
    lanes = lanes_for(code.body, code.width, length)
    plain = len(_seams(code.body, shape, code.width)) <= 2
    ragged = _is_ragged(shape, lanes, outputs)
    single = length == prod(shape) and all(result.count == 1 for result in outputs)
    whole = plain and (length % lanes == 0 or single or ragged)
    nbytes = prod(shape) * sum(result.node.dtype.itemsize for result in outputs) if whole else 0
    places = [result.pointer for result in outputs]
    partly(
        code,
        nbytes,
        places,
        lambda own, non_temporal: _emit_results(own, shape, outputs, non_temporal),
    )


def _emit_results(
    code: Code, shape: tuple[int, ...], outputs: Sequence[Result], non_temporal: bool
) -> None:
    """Loops over the rows of results of one shape, then over the elements of a row."""
    _ResultLoops(code, shape, outputs, non_temporal).emit()


class _ResultLoops:
    """The loops over the elements of results of one shape; ``non_temporal`` has them written past the cache."""

    def __init__(
        self,
        code: Code,
        shape: tuple[int, ...],
        outputs: Sequence[Result],
        non_temporal: bool,
    ) -> None:
        self.code, self.shape, self.outputs, self.non_temporal = code, shape, outputs, non_temporal
        self.shared = Elements.of(code)
        self.length = shape[-1] if shape else 1
        self.seams = _seams(code.body, shape, self.shared.width)
        along = [int(node.operands[0].size) for node in code.body.nodes if looks_along(node)]
        self.whole = max(1, PIECE * prod(shape) // max(along)) if along else PIECE
        self.pieces = 1 if len(self.seams) > 2 else ceil_div(self.length, self.whole)
        self.by_elements = bool(along) or self.length < LEAST_VECTOR
        self.small = _is_small(code.body, shape)
        self.axis, self.parts = sections(code.body, shape, self.small)
        self.tables = Tables(code, self.parts)

    def emit(self) -> None:
        """All sections, one after the other."""
        for part in self.parts:
            lead = [part.size if k == self.axis else size for k, size in enumerate(self.shape[:-1])]

            def emit_unit(
                number: Index, _: Sequence[Value], lead: Sequence[int] = lead, part: Section = part
            ) -> Sequence[Value]:
                self._unit(number, lead, part)
                return []

            units = len(part.starts) * prod(lead) * self.pieces
            if self.small:
                with self.code.alone():
                    self.shared.loop(0, units, emit_unit)
            else:
                self.shared.loop(*self.code.share(units), emit_unit)

    def _unit(self, number: Index, lead: Sequence[int], part: Section) -> None:
        """A row of a section, or a piece of one."""
        indices, pieces, axis = self.shared.indices, self.pieces, self.axis
        elements, which = self.shared, None
        if len(part.starts) > 1:
            each = prod(lead) * pieces
            which, number = indices.div(number, each), indices.mod(number, each)
            # The operands of its leaves are this section's own.
            elements = Elements.of(self.code)
        row, piece = indices.div(number, pieces), indices.mod(number, pieces)
        index = indices.split(row, lead)
        if which is not None:
            self.tables.give(elements, part, which)
            within = index[axis]
            index[axis] = indices.add(within, self.tables.start(part, which))
            elements.piece(index[axis], part.position, within)
            row = indices.offset(index, self.shape[:-1])
        elif len(self.parts) > 1:
            low = part.starts[0]
            index[axis] = indices.add(index[axis], low)
            elements.bound(index[axis], low, low + lead[axis])
            row = indices.offset(index, self.shape[:-1])
        starts = [result.row_start(indices, row, self.length) for result in self.outputs]
        start: Index = 0
        stop: Index = self.length
        if pieces > 1:
            start = indices.mul(piece, self.whole)
            stop = indices.clamp(indices.add(start, self.whole), 0, self.length)
        self._along(elements, index, starts, start, stop)

    def _along(
        self,
        elements: Elements,
        index: list[Index],
        starts: Sequence[Index],
        start: Index,
        stop: Index,
    ) -> None:
        """The elements of a row from ``start`` to before ``stop``; in each result the row begins at its own of ``starts``."""
        indices, length, shape, outputs = self.shared.indices, self.length, self.shape, self.outputs
        count = lanes_for(self.code.body, self.shared.width, length)

        def block(column: Index, _: Sequence[Value]) -> Sequence[Value]:
            full = [*index, column] if shape else []
            # All are computed before any is written: a result may lie where an operand does.
            values = [elements.at(result.node, full) for result in outputs]
            for result, first, value in zip(outputs, starts, values, strict=True):
                elements.registers.store(
                    value,
                    result.pointer,
                    indices.add(first, column),
                    result.node.dtype,
                    elements.mask,
                    non_temporal=self.non_temporal,
                )
            return []

        if length == 1:
            block(0, [])
        elif self.by_elements:
            elements.loop(start, stop, block)
        elif len(self.seams) > 2:
            for before, after in pairwise(self.seams):
                lanes = lanes_for(self.code.body, elements.width, after - before)
                elements.blocks(before, after, lanes, block, aligned=before % lanes == 0)
        elif length != prod(shape) and _is_ragged(shape, count, outputs):
            line = LINE // outputs[0].node.dtype.itemsize
            elements.blocks_at_lines(start, stop, count, block, starts[0], line)
        else:
            elements.blocks(start, stop, count, block)


ELEMENTS = Template("elements", _fits, _emit)
