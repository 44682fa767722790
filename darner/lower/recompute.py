"""Values after a product that later kernels make again, instead of reading what an epilogue wrote for them: ``recomputed``.

The gradient of a gate needs the gate, its sigmoid and their product: three values of one size, made of one sum each. Where the sums are in memory in any case, whoever comes later reads these
alone and computes the others once more. Memory is what such kernels wait for, not arithmetic.

A *chain* is what is element-wise after a product and reads nothing else. A node's *stage* is how many kernels, at least, come one after another before it can be computed: a node of a later stage than
a chain's cannot be in the same kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.types import TupleType
from ..ops.faults import can_fail
from .roles import role


@dataclass
class Chains:
    """The chains of a graph.

    Attributes:
        stages: of each node.
        roots: of each node of a chain, the product that all of it is made of; of a slice of a product's columns too.
        kept: outputs, and new values of leaves.
    """

    graph: Graph
    stages: list[int] = field(default_factory=list)
    roots: dict[int, int] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        graph = self.graph
        self.kept = {node.id for node in (*graph.outputs, *graph.updates.values())}
        for node in graph.nodes:
            own = role(node)
            before = max((self.stages[i] for i in node.inputs), default=0)
            self.stages.append(before + (own not in ("leaf", "view", "part", "point")))
            root = self._root(node)
            if root is not None:
                self.roots[node.id] = root

    def _root(self, node: Node) -> int | None:
        if isinstance(node.type, TupleType) or not node.dtype.is_float:
            return None
        if node.op.name == "dot_general":
            return node.id
        if node.op.name == "slice":
            (x,) = node.operands
            return x.id if x.op.name == "dot_general" else None
        if not _is_point(node) or can_fail(node):
            return None
        read = [x for x in node.operands if not _is_number(x)]
        found = {self.roots.get(x.id) for x in read}
        alike = all(x.shape == node.shape and x.dtype is node.dtype for x in read)
        return found.pop() if len(found) == 1 and alike else None

    def is_link(self, node: Node) -> bool:
        """Whether a node is computed in a chain: neither its product nor a view of that."""
        return node.id in self.roots and _is_point(node)

    def in_memory(self, node: Node) -> bool:
        """Whether a value is written for more than element-wise nodes."""
        alike = (_is_point(user) and user.shape == node.shape for user in self.graph.users(node))
        return node.id in self.kept or not all(alike)

    def late(self) -> set[int]:
        """The nodes of chains that nothing of their own stage needs: they are computed where they are read."""
        found: set[int] = set()
        for node in reversed(self.graph.nodes):
            if not self.is_link(node) or self.in_memory(node):
                continue
            stage = self.stages[node.id]
            users = self.graph.users(node)
            if all(self.stages[user.id] > stage or user.id in found for user in users):
                found.add(node.id)
        return found


def recomputed(graph: Graph) -> Graph:
    """The graph in which later kernels have nodes of chains of their own, where they need the product's sums anyway or these are no more to read.

    >>> import darner
    >>> g = darner.Graph()
    >>> y = g.input("x", (4, 8)) @ g.parameter("w", (8, 4))
    >>> gate = y.sigmoid()
    >>> g.set_outputs([(y * gate) @ g.parameter("v", (4, 4)) * gate * y])
    >>> names = [node.op.name for node in recomputed(g).nodes]
    >>> names.count("sigmoid")
    2
    """
    chains = Chains(graph)
    crossing = _crossing(chains)
    if not crossing:
        return graph
    return _Again(chains, crossing).graph()


def _crossing(chains: Chains) -> set[int]:
    """The nodes of chains that later stages read and can as well make again."""
    graph = chains.graph
    found: dict[int, list[Node]] = {}
    read: set[int] = set()
    for node in graph.nodes:
        root = chains.roots.get(node.id)
        if root is None:
            continue
        later = any(
            _is_point(user) and chains.stages[user.id] > chains.stages[node.id]
            for user in graph.users(node)
        )
        if not chains.is_link(node):
            if node.id in chains.kept or later:
                read.add(root)
        elif later and not chains.in_memory(node):
            found.setdefault(root, []).append(node)
    result: set[int] = set()
    for root, nodes in found.items():
        size = math.prod(map(int, graph.nodes[root].shape))
        if root in read or sum(math.prod(map(int, node.shape)) for node in nodes) >= size:
            result.update(node.id for node in nodes)
    return result


class _Again:
    """The making of a graph in which some nodes are made again for later stages."""

    def __init__(self, chains: Chains, crossing: set[int]) -> None:
        self.chains, self.crossing = chains, crossing
        self.result = Graph(chains.graph.name)
        self.made: dict[int, Node] = {}
        self.again: dict[tuple[int, int], Node] = {}

    def graph(self) -> Graph:
        """It."""
        source, result, made = self.chains.graph, self.result, self.made
        for node in source.nodes:
            stage = self.chains.stages[node.id]
            operands = [made[i] for i in node.inputs]
            if _is_point(node):
                for place, x in enumerate(node.operands):
                    if x.id in self.crossing and self.chains.stages[x.id] < stage:
                        operands[place] = self._made_again(x, stage)
            made[node.id] = result.insert_like(node, operands)
        result.set_outputs([made[node.id] for node in source.outputs])
        for leaf, value in source.updates.items():
            result.set_update(made[leaf.id], made[value.id])
        result.inherit(source)
        return result.toposort()

    def _made_again(self, node: Node, stage: int) -> Node:
        """A node of a chain for who reads it at a stage: all of the chain that is not in memory."""
        if not self.chains.is_link(node) or self.chains.in_memory(node):
            return self.made[node.id]
        key = node.id, stage
        if key not in self.again:
            operands = [self._made_again(x, stage) for x in node.operands]
            self.again[key] = self.result.insert_like(node, operands)
        return self.again[key]


def _is_point(node: Node) -> bool:
    return role(node) == "point" and "elementwise" in node.op.traits


def _is_number(node: Node) -> bool:
    return node.op.name == "constant" and node.size == 1
