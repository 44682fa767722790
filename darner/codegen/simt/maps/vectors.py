"""Operands of maps that a thread reads as vectors: elements side by side in a result are side by side there too, also through views."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ....graph.graph import Graph
from ....graph.node import Node
from ....lower.specs import sizes
from ....lower.strided import is_view, strided
from ...ir.index import Index, IndexMath


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

    def item(self, places: IndexMath, index: Sequence[Index]) -> Index:
        """The number of the vector at an index of a map's result, whose last number is a multiple of ``vector``."""
        own = index[len(index) - self.node.rank :]
        total: Index = self.offset
        for number, size, stride in zip(own, sizes(self.node), self.strides, strict=False):
            if size > 1:
                total = places.add(total, places.mul(number, stride))
        return places.add(total, places.div(own[-1], self.vector))


def seen_as_vectors(body: Graph, outputs: Iterable[Node], vector: int) -> list[Seen]:
    """The values that are read nowhere but at the place of the element that is made of them, and whole vectors at a time."""
    reached: dict[int, Node] = {}
    ends: dict[int, Node] = {}
    stack = list(outputs)
    while stack:
        node = stack.pop()
        if "elementwise" not in node.op.traits:
            ends[node.id] = node
        elif node.id not in reached:
            reached[node.id] = node
            stack += node.operands
    found = []
    for node in ends.values():
        alone = all(user.id in reached for user in body.users(node))
        seen = _seen(node, vector) if alone and (node.name is not None or is_view(node)) else None
        if seen is not None:
            found.append(seen)
    return found


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
