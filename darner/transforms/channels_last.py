"""Images with their channels last in memory, from convolution to convolution: ``with_channels_last``.

A graph says [batch, channels, *spatial]. Kernels on tensor cores multiply channels, and read them best where they lie beside each other. Convolutions that a device wants so
become those of ``ops.spatial.conv_last``, and what is computed element by element of their results, summed over axes or pooled is computed in that order too: images are
transposed only where they come from or go to something else. Apply it after differentiation, to primitives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.types import TensorType

Wanted = Callable[[Node], bool]
"""Whether a device computes a convolution better with channels last."""


def with_channels_last(graph: Graph, wanted: Wanted) -> Graph:
    """The graph with convolutions that are ``wanted`` so on images whose channels are their last axis; the graph itself where there are none.

    >>> import darner
    >>> g = darner.Graph()
    >>> x, w, v = g.input("x", (2, 3, 8, 8)), g.input("w", (4, 3, 3, 3)), g.input("v", (5, 4, 3, 3))
    >>> g.set_outputs([x.conv(w).tanh().conv(v).sum()])
    >>> [node.op.name for node in with_channels_last(g, lambda node: True).nodes][3:]
    ['transpose', 'transpose', 'conv_last', 'tanh', 'transpose', 'conv_last', 'sum']
    """
    if not any(_has_last(node) and wanted(node) for node in graph.nodes):
        return graph
    return _Work(graph, wanted).run()


def _has_last(node: Node) -> bool:
    facts = node.op.facts
    return bool(facts.channels_last or facts.of_channels_last)


class _Work:
    """The copying of a graph.

    Attributes:
        first: nodes of the result in the order of the graph's axes, by the ids of its nodes.
        last: those with channels last.
        held: the graph's nodes that are computed so; others are transposed for who wants them so.
    """

    def __init__(self, graph: Graph, wanted: Wanted) -> None:
        self.graph, self.wanted = graph, wanted
        self.result = Graph(graph.name)
        self.first: dict[int, Node] = {}
        self.last: dict[int, Node] = {}
        self.held: set[int] = set()

    def run(self) -> Graph:
        """All of it."""
        for node in self.graph.nodes:
            if not self._moved(node):
                operands = [self.in_order(operand) for operand in node.operands]
                self.first[node.id] = self.result.insert_like(node, operands)
        result = self.result
        result.set_outputs([self.in_order(node) for node in self.graph.outputs])
        for leaf, value in self.graph.updates.items():
            result.set_update(self.first[leaf.id], self.in_order(value))
        result.inherit(self.graph)
        return result.toposort()

    # ------------------------------------------------------------- nodes

    def _moved(self, node: Node) -> bool:
        """Compute a node from operands with channels last, where that is better."""
        if not isinstance(node.type, TensorType):
            return False
        if _has_last(node):
            return self._convolution(node)
        if not any(operand.id in self.held for operand in node.operands):
            return False
        if "elementwise" in node.op.traits and "leaf" not in node.op.traits:
            return self._elements(node)
        if node.op.facts.role == "reduce" and "axes" in node.attrs and not node.op.facts.finds:
            return self._reduction(node)
        return node.op.facts.pools and self._pooling(node)

    def _insert(
        self, node: Node, operands: Sequence[Node], attrs: dict[str, object] | None, op: str = ""
    ) -> Node:
        return self.result.insert(
            op or node.op,
            operands,
            node.slots,
            node.attrs if attrs is None else attrs,
            label=node.label,
            scope=node.scope,
            source=node.source,
        )

    def _convolution(self, node: Node) -> bool:
        if not self.wanted(node):
            return False
        facts = node.op.facts
        operands = [self.moved(operand) for operand in node.operands]
        if facts.channels_last:
            self._hold(node, self._insert(node, operands, None, facts.channels_last))
        else:
            self.first[node.id] = self._insert(node, operands, None, facts.of_channels_last)
        return True

    def _elements(self, node: Node) -> bool:
        if node.rank < 3 or not any(
            operand.id in self.held and operand.shape == node.shape for operand in node.operands
        ):
            return False
        operands = [self.beside(operand, node.rank) for operand in node.operands]
        self._hold(node, self._insert(node, operands, None))
        return True

    def _reduction(self, node: Node) -> bool:
        (x,) = node.operands
        axes = tuple(int(axis) for axis in node.attrs["axes"])
        moved = tuple(sorted(_axis_of(axis, x.rank) for axis in axes))
        if node.attrs["keepdims"]:
            self._hold(node, self._insert(node, [self.moved(x)], {**node.attrs, "axes": moved}))
            return True
        # Without its channels, or with all else summed, what is left is in its order.
        kept = [axis for axis in range(x.rank) if axis not in axes]
        if [_axis_of(axis, x.rank) for axis in kept] != sorted(
            _axis_of(axis, x.rank) for axis in kept
        ):
            return False
        self.first[node.id] = self._insert(node, [self.moved(x)], {**node.attrs, "axes": moved})
        return True

    def _pooling(self, node: Node) -> bool:
        """Pooling of [batch, 1, *spatial, channels], with windows of one channel."""
        operands = []
        for operand in node.operands:
            x = self.moved(operand)
            operands.append(x.reshape((x.shape[0], 1, *x.shape[1:])))
        ones = {"window": 1, "stride": 1, "dilation": 1, "padding": (0, 0)}
        attrs = dict(node.attrs)
        for name, one in ones.items():
            if name in attrs:
                attrs[name] = (*attrs[name], one)
        if "sizes" in attrs:
            attrs["sizes"] = (*attrs["sizes"], node.shape[1])
        found = self._insert(node, operands, attrs)
        self._hold(node, found.reshape((found.shape[0], *found.shape[2:])))
        return True

    def _hold(self, node: Node, found: Node) -> None:
        self.last[node.id] = found
        self.held.add(node.id)

    # ------------------------------------------------------------- values

    def in_order(self, node: Node) -> Node:
        """A value with its axes in the graph's order."""
        if node.id not in self.first:
            x = self.last[node.id]
            self.first[node.id] = _transposed(x, (0, x.rank - 1, *range(1, x.rank - 1)))
        return self.first[node.id]

    def moved(self, node: Node) -> Node:
        """A value with its second axis last.

        What is rounded for a product, or widened, is so in either order: the transposed value is then read where it has fewest bits.
        """
        if node.id not in self.last:
            order = (0, *range(2, node.rank), 1)
            if node.op.name == "broadcast_to":
                (x,) = node.operands
                shape = tuple(node.shape[axis] for axis in order)
                self.last[node.id] = self.beside(x, node.rank).broadcast_to(shape)
            elif _is_rounding(node):
                self.last[node.id] = self._insert(node, [self.moved(node.operands[0])], None)
            else:
                self.last[node.id] = _transposed(self.first[node.id], order)
        return self.last[node.id]

    def beside(self, node: Node, rank: int) -> Node:
        """An operand of an element-wise node of so many axes, with the second of them last."""
        if node.rank == rank:
            return self.moved(node)
        if prod(map(int, node.shape)) == 1:
            return self.in_order(node)
        x = self.in_order(node)
        whole = x.reshape((*(1,) * (rank - node.rank), *node.shape))
        return _transposed(whole, (0, *range(2, rank), 1))


def _is_rounding(node: Node) -> bool:
    """Whether a node is another one in another precision."""
    return node.op.name in ("cast", "reduce_precision") and node.operands[0].shape == node.shape


def _axis_of(axis: int, rank: int) -> int:
    """Where an axis stands when the second is last."""
    return {0: 0, 1: rank - 1}.get(axis, axis - 1)


def _transposed(x: Node, order: tuple[int, ...]) -> Node:
    """A transposed value; what stays in its order is no more than reshaped."""
    moved = [axis for axis in order if x.shape[axis] != 1]
    if moved == sorted(moved):
        found: Node = x.reshape(tuple(x.shape[axis] for axis in order))
    else:
        found = x.transpose(order)
    return found
