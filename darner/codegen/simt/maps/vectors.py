"""Operands of maps that a thread reads as vectors: elements side by side in a result are side by side there too, also through views."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ....graph.graph import Graph
from ....graph.node import Node
from ....lower.specs import sizes
from ....lower.strided import is_view, strided
from ...ir.index import Index
from ..elements import ThreadElements


@dataclass(frozen=True)
class Seen:
    """A value of a body whose elements lie side by side in memory, along the last axis.

    Attributes:
        node: the value: an operand, or a view of one.
        leaf: the operand.
        offset: where its first element lies, in vectors.
        strides: the distance of neighbours along each axis but the last, in vectors.
        vector: elements of a vector.
    """

    node: Node
    leaf: Node
    offset: int
    strides: tuple[int, ...]
    vector: int

    def item(self, elements: ThreadElements, index: Sequence[Index]) -> Index:
        """The number of the vector at an index of a map's result, whose last number is a multiple of ``vector``."""
        places = elements.places
        own = index[len(index) - self.node.rank :]
        total: Index = self.offset
        for number, size, stride in zip(own, sizes(self.node), self.strides, strict=False):
            if size > 1:
                total = places.add(total, places.mul(number, stride))
        return places.add(total, places.div(own[-1], self.vector))


@dataclass(frozen=True)
class Gathered:
    """Rows of a table by index, or parts of rows: the index is read and checked once for all elements of a vector.

    Attributes:
        node: the ``gather``.
        leaf: the table, an operand.
        vector: elements of a vector.
    """

    node: Node
    leaf: Node
    vector: int

    def item(self, elements: ThreadElements, index: Sequence[Index]) -> Index:
        """See ``Seen``."""
        table, indices = self.node.operands
        axis, shape = self.node.attrs["axis"], sizes(table)
        own = elements.spread(self.node, index)
        where = own[axis : axis + indices.rank]
        place = elements.place(self.node, indices, where, shape[axis])
        at = [*own[:axis], place, *own[axis + indices.rank :]]
        at[-1] = elements.places.div(at[-1], self.vector)
        return elements.places.offset(at, [*shape[:-1], shape[-1] // self.vector])


def seen_as_vectors(body: Graph, outputs: Iterable[Node], vector: int) -> list[Seen | Gathered]:
    """The values that are read nowhere but at the place of the element that is made of them, and whole vectors at a time."""
    results = list(outputs)
    reached: dict[int, Node] = {}
    ends: dict[int, Node] = {}
    stack = list(results)
    while stack:
        node = stack.pop()
        if "elementwise" not in node.op.traits:
            ends[node.id] = node
        elif node.id not in reached:
            reached[node.id] = node
            stack += node.operands
    needed = _needed(results)
    found: list[Seen | Gathered] = []
    for node in ends.values():
        if any(user.id in needed and user.id not in reached for user in body.users(node)):
            continue
        if node.name is not None or is_view(node):
            seen = _seen(node, vector)
            found += [] if seen is None else [seen]
        elif node.op.name == "gather" and _has_rows(node, vector):
            found.append(Gathered(node, node.operands[0], vector))
    return found


def _needed(outputs: Iterable[Node]) -> set[int]:
    """All nodes that some outputs are made of."""
    found: set[int] = set()
    stack = list(outputs)
    while stack:
        node = stack.pop()
        if node.id not in found:
            found.add(node.id)
            stack += node.operands
    return found


def _has_rows(node: Node, vector: int) -> bool:
    """Whether a ``gather`` is of an operand whose last axis is no index's, in whole vectors."""
    table = node.operands[0]
    inner = node.attrs["axis"] < table.rank - 1 and sizes(table)[-1] % vector == 0
    return inner and table.name is not None and table.dtype.itemsize <= 4


def _seen(node: Node, vector: int) -> Seen | None:
    view = strided(node)
    if not node.rank or view is None or view.base.name is None or view.base.dtype.itemsize > 4:
        return None
    counts = sizes(node)
    if counts[-1] % vector or view.strides[-1] != 1:
        return None
    pairs = zip(counts[:-1], view.strides[:-1], strict=True)
    outer = [stride if size > 1 else 0 for size, stride in pairs]
    if any(number % vector or number < 0 for number in (*outer, view.offset)):
        return None
    strides = tuple(stride // vector for stride in outer)
    return Seen(node, view.base, view.offset // vector, strides, vector)
