"""Kernels in the making: groups of nodes of a graph, and what can be said of some without a look at the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..graph.dims import Shape
from ..graph.errors import InternalError
from ..graph.facts import Role
from ..graph.node import Node

KINDS: dict[Role, str] = {
    "point": "map",
    "reduce": "rows",
    "contract": "contract",
    "attention": "attention",
    "index": "index",
    "scan": "scan",
    "loop": "loop",
    "library": "library",
    "host": "host",
}

LARGEST = 96
"""Nodes in one kernel: beyond that, registers run out and compiling takes longer than it saves."""


@dataclass(frozen=True)
class Fusing:
    """What kernels of a target can do besides what all can; as it stands, nothing.

    Attributes:
        places_parts: a map that makes the parts of a concatenation writes each where it belongs, and takes in what is element-wise beside them.
        joins: a product whose epilogue makes all parts of a concatenation writes that.
        halves: a product's epilogue may read both halves of its columns in pairs, as a gate does.
        beside: small maps that have nothing to do with each other are one kernel.
    """

    places_parts: bool = False
    joins: bool = False
    halves: bool = False
    beside: bool = False


PLAIN = Fusing()

EPILOGUES = ("contract", "attention", "index")
"""Kinds of kernels that may end with what is element-wise after them."""


@dataclass
class Group:
    """A kernel in the making.

    Attributes:
        nodes: ids, ascending.
        space: the shape that its element-wise nodes have, or that its reductions read.
        axes: what its reductions sum over; None without one.
    """

    kind: str
    nodes: list[int]
    space: Shape | None
    axes: tuple[int, ...] | None = None
    needs: set[int] = field(default_factory=set)


def make_parts(nodes: Sequence[Node], *groups: Group) -> bool:
    """Whether all that some maps compute is of one shape, but for concatenations of such values, which can be placed part by part."""
    shapes = set[Shape]()
    for node in (nodes[id] for group in groups for id in group.nodes):
        if node.op.name == "concat":
            shapes.update(part.shape for part in node.operands)
        else:
            shapes.add(node.shape)
    return len(shapes) == 1


def number_between(start: float, end: float, taken: set[float]) -> float:
    """A number between two others that is not taken."""
    while True:
        found = end = (start + end) / 2
        if found == start:
            raise InternalError("there is no room left in the order of kernels")
        if found not in taken:
            return found
