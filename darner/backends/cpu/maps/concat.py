"""Concatenations as sections, each with code of its own; where there are very many, sections that are computed alike share one loop.

Code for a section knows where it begins and what it reads. Where there are hundreds, as with the steps of a recurrence, a loop for each would take
seconds to compile: one loop then covers all that differ only in their operands, and reads those from a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod

from ....codegen.elements.elements import Elements
from ....codegen.ir.emit import constant_words
from ....codegen.ir.index import Index, IndexMath, i64
from ....codegen.ir.types import Pointer, Value
from ....graph.data import Data
from ....graph.graph import Graph
from ....graph.node import Node
from ....lower.specs import sizes
from ..emit.template import Code

MOST = 64
"""Pieces that have code of their own, at the most."""
MOST_PLACED = 8
"""Parts of a concatenation that are computed together, at the most: each is a stream that is written."""


@dataclass(frozen=True)
class Section:
    """Pieces with the same code.

    Attributes:
        starts: where each begins along the axis.
        size: of each along the axis.
        position: of the first, among the operands of its concatenation.
        operands: what differs from piece to piece: an input of the body that the first reads, and the number of what each reads in its place.
    """

    starts: tuple[int, ...]
    size: int
    position: int = 0
    operands: tuple[tuple[Node, tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class Result:
    """What is written for each element of a shape: all of a result, or one of the equal parts of a concatenation.

    Attributes:
        node: what is computed.
        pointer: where the whole result begins.
        part: which part of it this is, of ``count``.
        block: elements of a part that lie together.
    """

    node: Node
    pointer: Pointer
    part: int = 0
    count: int = 1
    block: int = 0

    def row_start(self, indices: IndexMath, row: Index, length: int) -> Index:
        """Where in the result a row begins, of rows of a length."""
        first = indices.mul(row, length)
        if self.count == 1:
            return first
        before = indices.div(row, self.block // length)
        skipped = indices.mul(before, (self.count - 1) * self.block)
        return indices.add(indices.add(first, skipped), self.part * self.block)


def results_of(body: Graph, pointers: Sequence[Pointer]) -> dict[tuple[int, ...], list[Result]]:
    """The results by shape; a concatenation whose parts have something in common with each other, or with results beside them, by its parts."""
    whole: dict[tuple[int, ...], list[Result]] = {}
    found = [Result(*pair) for pair in zip(body.outputs, pointers, strict=True)]
    placed = {id(result) for result in found if _is_of_equal_parts(result.node)}
    for result in found:
        if id(result) not in placed:
            whole.setdefault(tuple(sizes(result.node)), []).append(result)
    for result in found:
        if id(result) in placed:
            shape = tuple(sizes(result.node.operands[0]))
            beside = [other.node for other in whole.get(shape, ())]
            if _have_in_common([*result.node.operands, *beside]):
                whole.setdefault(shape, []).extend(_parts(result))
            else:
                whole.setdefault(tuple(sizes(result.node)), []).append(result)
    return whole


def _is_of_equal_parts(node: Node) -> bool:
    if node.op.name != "concat" or not 1 < len(node.operands) <= MOST_PLACED or not node.size:
        return False
    return len({tuple(sizes(part)) for part in node.operands}) == 1


def _have_in_common(nodes: Sequence[Node]) -> bool:
    """Whether something is computed for more than one of some nodes."""
    counts: dict[int, int] = {}
    for end in nodes:
        stack, seen = [end], set[int]()
        while stack:
            node = stack.pop()
            if node.id not in seen:
                seen.add(node.id)
                stack += node.operands
                if "elementwise" in node.op.traits:
                    counts[node.id] = counts.get(node.id, 0) + 1
    return any(count > 1 for count in counts.values())


def _parts(result: Result) -> list[Result]:
    node = result.node
    block = prod(sizes(node.operands[0])[node.attrs["axis"] :])
    return [
        Result(part, result.pointer, number, len(node.operands), block)
        for number, part in enumerate(node.operands)
    ]


def sections(body: Graph, shape: tuple[int, ...], small: bool) -> tuple[int, list[Section]]:
    """An axis along which parts of results meet, and the parts; not the last axis, where each part is a piece of every row."""
    found = [
        node
        for node in body.nodes
        if node.op.name == "concat"
        and tuple(sizes(node)) == shape
        and node.attrs["axis"] < len(shape) - 1
    ]
    if not found or small:
        return 0, [Section((0,), shape[0] if len(shape) > 1 else 1)]
    axis = max(found, key=lambda node: len(node.operands)).attrs["axis"]
    found = [node for node in found if node.attrs["axis"] == axis]
    ends = sorted({0, *(end for node in found for end in _ends(node))})
    single = [Section((low,), high - low) for low, high in pairwise(ends)]
    if len(single) <= MOST or any(_ends(node) != _ends(found[0]) for node in found):
        return axis, single
    return axis, _alike(body, found, single)


def _ends(node: Node) -> list[int]:
    """Where the parts of a concatenation end."""
    return [*accumulate(sizes(part)[node.attrs["axis"]] for part in node.operands)]


def _alike(body: Graph, nodes: Sequence[Node], single: Sequence[Section]) -> list[Section]:
    """Pieces of several concatenations at the same places, those together that are computed alike."""
    number = {leaf.id: int(name) for name, leaf in body.inputs.items()}
    outside = _outside(body, nodes)
    groups: dict[object, list[tuple[int, list[Node]]]] = {}
    # A part may be empty; the sections leave those out.
    positions = [
        i for i, part in enumerate(nodes[0].operands) if sizes(part)[nodes[0].attrs["axis"]]
    ]
    for position in positions:
        seen: dict[int, int] = {}
        leaves: list[Node] = []
        key = tuple(_structure(node.operands[position], seen, leaves) for node in nodes)
        groups.setdefault(key, []).append((position, leaves))
    place = dict(zip(positions, single, strict=True))
    result = []
    for members in groups.values():
        first, own = members[0]
        differing = []
        for slot, leaf in enumerate(own):
            read = tuple(number[leaves[slot].id] for _, leaves in members)
            if len(set(read)) > 1:
                differing.append((leaf, read))
        if len(members) == 1 or any(leaf.id in outside for leaf, _ in differing):
            result += [place[position] for position, _ in members]
            continue
        starts = tuple(place[position].starts[0] for position, _ in members)
        result.append(Section(starts, place[first].size, first, tuple(differing)))
    return result


def _outside(body: Graph, nodes: Sequence[Node]) -> set[int]:
    """What results read in other ways than as parts of these concatenations."""
    found: set[int] = set()
    ends = {node.id for node in nodes}
    stack = list(body.outputs)
    while stack:
        node = stack.pop()
        if node.id not in found:
            found.add(node.id)
            if node.id not in ends:
                stack += node.operands
    return found


def _structure(node: Node, seen: dict[int, int], leaves: list[Node]) -> object:
    """What a node computes, whatever it reads: equal for nodes that have the same code; ``leaves`` takes what it does read."""
    if node.id in seen:
        return seen[node.id]
    seen[node.id] = len(seen)
    if node.op.name == "input":
        leaves.append(node)
        return (str(node.type),)
    attributes = tuple(
        (name, value.digest if isinstance(value, Data) else repr(value))
        for name, value in node.attrs.items()
    )
    below = tuple(_structure(operand, seen, leaves) for operand in node.operands)
    return node.op.name, str(node.type), attributes, below


class Tables:
    """What a loop over the pieces of sections looks up, for the code that is being written."""

    def __init__(self, code: Code, parts: Sequence[Section]) -> None:
        self._code = code
        self._pointers: Pointer | None = None
        if any(len(part.starts) > 1 for part in parts):
            self._pointers = self._addresses()

    def _addresses(self) -> Value:
        """The addresses of all operands, in memory."""
        from llvmlite import ir

        b, operands = self._code.builder, self._code.operands
        with b.goto_entry_block():
            table = b.alloca(ir.PointerType(), size=i64(len(operands)))
        for number, operand in enumerate(operands):
            address = b.gep(table, [i64(number)], source_etype=ir.PointerType())
            b.store(operand, address)
        return table

    def start(self, part: Section, piece: Index) -> Value:
        """Where a piece of a section begins."""
        return self._looked_up("darner.starts", part.starts, piece)

    def give(self, elements: Elements, part: Section, piece: Index) -> None:
        """Let the elements of the first piece of a section be read from what another one reads."""
        from llvmlite import ir

        b = self._code.builder
        if self._pointers is None:
            return
        for leaf, numbers in part.operands:
            number = self._looked_up("darner.operands", numbers, piece)
            address = b.gep(self._pointers, [number], source_etype=ir.PointerType())
            elements.leaves[leaf.id] = b.load(address, typ=ir.PointerType()), leaf

    def _looked_up(self, name: str, numbers: Sequence[int], piece: Index) -> Value:
        from llvmlite import ir

        b, word = self._code.builder, ir.IntType(64)
        table = constant_words(b, name, numbers)
        return b.load(b.gep(table, [i64(piece)], source_etype=word), typ=word)
