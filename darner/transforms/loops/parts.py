"""A loop as a value with named parts, and bodies made of pieces of others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ...graph.build import call
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.types import TensorType
from ...ops.loops.loop import loop

LOOP = loop.name


@dataclass(frozen=True)
class Loop:
    """The operands and attributes of a ``loop`` node."""

    init: tuple[Node, ...]
    constants: tuple[Node, ...]
    xs: tuple[Node, ...]
    body: Graph
    length: int
    reverse: bool
    recompute: bool

    @classmethod
    def of(cls, node: Node) -> Loop:
        """What a node says."""
        named = node.op.arguments(node.operands, node.slots)
        return cls(
            tuple(named["init"]), tuple(named["constants"]), tuple(named["xs"]), **node.attrs
        )

    def with_body(self, body: Graph) -> Loop:
        """The same loop over another body."""
        return replace(self, body=body)

    @property
    def operands(self) -> tuple[Node, ...]:
        """All operands, in the order of the body's inputs."""
        return (*self.init, *self.constants, *self.xs)

    @property
    def first_constant(self) -> int:
        """The number of the body's first input that is a constant."""
        return len(self.init)

    @property
    def first_step(self) -> int:
        """The number of the body's first input that is one step of ``xs``."""
        return len(self.init) + len(self.constants)


def is_loop(node: Node) -> bool:
    """Whether a node is a loop."""
    return node.op is loop


def insert(graph: Graph, made: Loop) -> list[Node]:
    """Add a loop to a graph; its results."""
    lists = [list(made.init), list(made.constants), list(made.xs)]
    options = {"reverse": made.reverse, "recompute": made.recompute}
    return list(call(loop, graph, [*lists, made.body.freeze(), made.length], options))


class Piece:
    """A body that is put together from nodes of another graph.

    ``graph`` is the new body, ``mapped`` what nodes of the source became in it.
    """

    def __init__(self, name: str, like: Graph | None = None) -> None:
        self.graph = Graph(name)
        if like is not None:  # which scopes are to be computed again
            self.graph.inherit(like)
        self.mapped: dict[int, Node] = {}

    def input(self, stem: str, type_: TensorType, stands_for: Node | None = None) -> Node:
        """The next input, with a name of its own, in place of a node of the source."""
        leaf = self.graph.input(f"{stem}{len(self.graph.inputs)}", type_.shape, type_.dtype)
        if stands_for is not None:
            self.mapped[stands_for.id] = leaf
        return leaf

    def take(self, nodes: Iterable[Node]) -> None:
        """Copy nodes of the source, in order; those that something stands for are left out."""
        for node in nodes:
            if node.id not in self.mapped:
                operands = [self.mapped[i] for i in node.inputs]
                self.mapped[node.id] = self.graph.insert_like(node, operands)

    def finish(self, outputs: Sequence[Node]) -> Graph:
        """The body."""
        self.graph.set_outputs(outputs)
        return self.graph.toposort().freeze()


def closure(nodes: Sequence[Node], ends: Iterable[Node], stop: set[int]) -> list[Node]:
    """The nodes that ``ends`` are made of, in order, down to those in ``stop`` (left out themselves)."""
    needed = {node.id for node in ends} - stop
    for node in reversed(nodes):
        if node.id in needed:
            needed.update(i for i in node.inputs if i not in stop)
    return [node for node in nodes if node.id in needed]


def dependent(graph: Graph, leaves: Iterable[Node]) -> list[bool]:
    """For each node, whether it depends on one of ``leaves``."""
    found = [False] * len(graph)
    for leaf in leaves:
        found[leaf.id] = True
    for node in graph.nodes:
        found[node.id] = found[node.id] or any(found[i] for i in node.inputs)
    return found
