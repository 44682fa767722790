"""Batching: one graph over many inputs at once.

The rule of an op (``@op.vmap``) gets the batch's size, which operands are batched (their batch axis stands in front), the
operands and the attributes, and returns the result with the batch axis in front. Element-wise ops need none, and a
composite without one is written out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..graph.dims import Dim, as_dim
from ..graph.errors import ArgumentError, Calling, ShapeError, UnknownNameError, did_you_mean
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.types import TupleType
from .expand import expansion

Batched = dict[int, bool]


def spread(node: Node, size: Dim) -> Node:
    """A node repeated along a new first axis, without a copy."""
    return node.broadcast_to((size, *node.shape))


def to_front(node: Node, axis: int) -> Node:
    """A node with one axis moved to the front."""
    if axis == 0:
        return node
    others = [i for i in range(node.rank) if i != axis]
    return node.transpose((axis, *others))


def from_front(node: Node, axis: int) -> Node:
    """A node with its first axis moved to ``axis``."""
    if axis == 0:
        return node
    order = list(range(1, node.rank))
    order.insert(axis, 0)
    return node.transpose(tuple(order))


def vmap(
    graph: Graph,
    in_axes: Mapping[str, int | None] | list[str] | str | None = None,
    size: Any = None,
    *,
    out_axis: int = 0,
) -> Graph:
    """The graph over a batch: chosen inputs and parameters gain an axis, and every output too.

    ``in_axes`` maps names of inputs, parameters or states to the place of their batch axis (a list of names means
    axis 0; all inputs by default); the others are shared. ``size`` is the batch's size, a number or a symbol.
    Outputs that do not depend on anything batched are repeated. Random ops draw the same numbers for every element of
    the batch.

    >>> import darner
    >>> g = darner.Graph()
    >>> x, w = g.input("x", (3,)), g.parameter("w", (3, 2))
    >>> g.set_outputs([x @ w])
    >>> [node.shape for node in darner.vmap(g, ["x"], 5).outputs]
    [(5, 2)]
    """
    with Calling("vmap"):
        if size is None:
            raise ArgumentError("the size of the batch is missing", hint="vmap(graph, names, size)")
        count = as_dim(size)
        return _Batcher(graph, _axes(graph, in_axes), count).run(out_axis)


def _axes(graph: Graph, given: Any) -> dict[str, int]:
    if given is None:
        given = list(graph.inputs)
    if isinstance(given, str):
        given = [given]
    chosen = dict(given) if isinstance(given, Mapping) else dict.fromkeys(given, 0)
    for name in chosen:
        if name not in graph._names:
            raise UnknownNameError(
                f"graph '{graph.name}' has no leaf '{name}'", hint=did_you_mean(name, graph._names)
            )
    return {name: axis for name, axis in chosen.items() if axis is not None}


class _Batcher:
    """Walks a graph and builds the batched one."""

    def __init__(self, graph: Graph, axes: dict[str, int], size: Dim) -> None:
        self.source, self.axes, self.size = graph, axes, size
        self.graph = Graph(graph.name)
        self.values: dict[int, Any] = {}
        self.batched: Batched = {}

    def run(self, out_axis: int) -> Graph:
        self._walk(self.source)
        outputs = []
        for node in self.source.outputs:
            value = self._whole(node)
            if not -value.rank <= out_axis < value.rank:
                raise ArgumentError(
                    f"out_axis {out_axis} does not fit an output of rank {value.rank}"
                )
            outputs.append(from_front(value, out_axis % value.rank))
        self.graph.set_outputs(outputs)
        for leaf, value in self.source.updates.items():
            if self.batched[value.id] and not self.batched[leaf.id]:
                raise ArgumentError(
                    f"'{leaf.name}' is shared by the batch, but its update differs along it",
                    hint=f"give '{leaf.name}' a batch axis too",
                )
            target = self.values[leaf.id]
            if self.batched[leaf.id]:
                # The walk moved the batch axis to the front; the leaf itself comes before that.
                target = self.graph.nodes[self.graph._names[str(leaf.name)]]
                update = from_front(self._whole(value), self.axes[str(leaf.name)])
            else:
                update = self.values[value.id]
            self.graph.set_update(target, update)
        self.graph._streams = self.source._streams
        return self.graph.toposort()

    def _whole(self, node: Node) -> Node:
        value: Node = self.values[node.id]
        return value if self.batched[node.id] else spread(value, self.size)

    def _walk(self, source: Graph) -> None:
        for node in source.nodes:
            with self.graph.derived_from(node):
                self._place(node)

    def _place(self, node: Node) -> None:
        name = node.name
        if name is not None and name in self.axes and not node.inputs:
            self.values[node.id], self.batched[node.id] = self._leaf(node, self.axes[name]), True
            return
        operands = [self.values[i] for i in node.inputs]
        flags = [self.batched[i] for i in node.inputs]
        self.batched[node.id] = any(flags)
        if node.op.name == "project":
            source = operands[0]
            if isinstance(source, tuple):
                self.values[node.id] = source[node.attrs["index"]]
                return
        if not any(flags):
            self.values[node.id] = self.graph.insert(
                node.op,
                operands,
                node.slots,
                node.attrs,
                label=node.label,
                scope=node.scope,
                source=node.source,
            )
            return
        self.values[node.id] = batch_node(self.graph, node, operands, flags, self.size)

    def _leaf(self, node: Node, axis: int) -> Node:
        rank = node.rank + 1
        if not -rank <= axis < rank:
            raise ShapeError(f"'{node.name}' has rank {node.rank}: its batch axis cannot be {axis}")
        axis %= rank
        shape = (*node.shape[:axis], self.size, *node.shape[axis:])
        attrs = {**node.attrs, "shape": shape}
        leaf = self.graph.insert(
            node.op, [], (), attrs, label=node.label, scope=node.scope, source=node.source
        )
        self.axes[str(node.name)] = axis
        return to_front(leaf, axis)


def batch_node(graph: Graph, node: Node, operands: list[Node], flags: list[bool], size: Dim) -> Any:
    """One node over a batch; its result (or results) with the batch axis in front."""
    op = node.op
    if op.rules.vmap is not None:
        named = op.arguments(operands, node.slots)
        answer = op.rules.vmap(size, op.arguments(flags, node.slots), **named, **node.attrs)
        return tuple(answer) if isinstance(node.type, TupleType) else answer
    if "elementwise" in op.traits:
        rank = node.rank
        aligned = [
            align(operand, flag, rank) for operand, flag in zip(operands, flags, strict=True)
        ]
        return graph.insert(
            op, aligned, node.slots, node.attrs, label=node.label, source=node.source
        )
    if op.is_composite:
        body = expansion(node)
        inner = _Inner(graph, body, operands, flags, size)
        results = inner.run()
        return tuple(results) if isinstance(node.type, TupleType) else results[0]
    raise ArgumentError("has no rule for batches").located(op.name, node.label, "", node.source)


def align(operand: Node, batched: bool, rank: int) -> Node:
    """A batched operand of lower rank gets axes of size 1 between its batch and the rest."""
    if not batched or operand.rank == rank + 1:
        return operand
    batch, *rest = operand.shape
    return operand.reshape((batch, *(1,) * (rank + 1 - operand.rank), *rest))


class _Inner:
    """A composite's body over a batch, in place."""

    def __init__(
        self, graph: Graph, body: Graph, operands: list[Node], flags: list[bool], size: Dim
    ) -> None:
        self.graph, self.body, self.size = graph, body, size
        self.values: dict[int, Any] = {}
        self.flags: Batched = {}
        for name, leaf in body.inputs.items():
            self.values[leaf.id] = operands[int(name)]
            self.flags[leaf.id] = flags[int(name)]

    def run(self) -> list[Node]:
        for node in self.body.nodes:
            if node.id in self.values:
                continue
            operands = [self.values[i] for i in node.inputs]
            flags = [self.flags[i] for i in node.inputs]
            self.flags[node.id] = any(flags)
            if node.op.name == "project" and isinstance(operands[0], tuple):
                self.values[node.id] = operands[0][node.attrs["index"]]
            elif any(flags):
                self.values[node.id] = batch_node(self.graph, node, operands, flags, self.size)
            else:
                self.values[node.id] = self.graph.insert(
                    node.op, operands, node.slots, node.attrs, source=self.graph.source_of_call()
                )
        return [
            self.values[node.id] if self.flags[node.id] else spread(self.values[node.id], self.size)
            for node in self.body.outputs
        ]
