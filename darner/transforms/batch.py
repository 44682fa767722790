"""Batching: one graph over many inputs at once.

The rule of an op (``@op.vmap``) gets the batch's size, which operands are batched (their batch axis stands in front), the
operands and the attributes, and returns the result with the batch axis in front, or ``NotImplemented`` for a case it
has no room for. Element-wise ops need none, and a composite without one (or with that answer) is written out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..graph.dims import Dim, as_dim
from ..graph.errors import ArgumentError, Calling, ShapeError, UnknownNameError, nearest
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.types import TupleType
from ..ops.axes import align, from_front, spread, to_front
from .expand import expansion


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
        axes = _axes(graph, in_axes)
        walk = Walk(Graph(graph.name), as_dim(size))
        for node in graph.nodes:
            if node.name in axes and not node.inputs:
                walk.give(node, _batched_leaf(walk, node, axes[node.name]), batched=True)
            else:
                walk.visit(node)
        result = walk.graph
        result.set_outputs([_placed(walk.whole(node), out_axis) for node in graph.outputs])
        for leaf, value in graph.updates.items():
            _set_update(walk, axes, leaf, value)
        result.inherit(graph)
        return result.toposort()


def _axes(graph: Graph, given: Any) -> dict[str, int]:
    if given is None:
        given = list(graph.inputs)
    if isinstance(given, str):
        given = [given]
    chosen = dict(given) if isinstance(given, Mapping) else dict.fromkeys(given, 0)
    axes: dict[str, int] = {}
    for name, axis in chosen.items():
        if name not in graph._names:
            raise UnknownNameError(
                f"graph '{graph.name}' has no leaf '{name}'", hint=nearest(name, graph._names)
            )
        rank = graph.nodes[graph._names[name]].rank + 1
        if axis is not None:
            if not -rank <= axis < rank:
                raise ShapeError(f"'{name}' has rank {rank - 1}: its batch axis cannot be {axis}")
            axes[name] = axis % rank
    return axes


def _batched_leaf(walk: Walk, node: Node, axis: int) -> Node:
    """A leaf with a batch axis, moved to the front."""
    shape = (*node.shape[:axis], walk.size, *node.shape[axis:])
    leaf = walk.graph.insert_like(node, [], {**node.attrs, "shape": shape})
    return to_front(leaf, axis)


def _placed(value: Node, axis: int) -> Node:
    """An output with its batch axis where it was asked for."""
    if not -value.rank <= axis < value.rank:
        raise ArgumentError(f"out_axis {axis} does not fit an output of rank {value.rank}")
    return from_front(value, axis % value.rank)


def _set_update(walk: Walk, axes: Mapping[str, int], leaf: Node, value: Node) -> None:
    name = str(leaf.name)
    if walk.batched[value.id] and name not in axes:
        raise ArgumentError(
            f"'{name}' is shared by the batch, but its update differs along it",
            hint=f"give '{name}' a batch axis too",
        )
    update = walk.values[value.id]
    if name in axes:
        update = from_front(walk.whole(value), axes[name])
    walk.graph.set_update(walk.graph._leaves(leaf.op.name)[name], update)


class Walk:
    """The nodes of a source graph, over a batch, in another graph."""

    def __init__(self, graph: Graph, size: Dim) -> None:
        self.graph, self.size = graph, size
        self.values: dict[int, Any] = {}
        self.batched: dict[int, bool] = {}

    def give(self, node: Node, value: Any, *, batched: bool) -> None:
        """State what a node became."""
        self.values[node.id], self.batched[node.id] = value, batched

    def whole(self, node: Node) -> Node:
        """A node's value with a batch axis in front, repeated if it had none."""
        value: Node = self.values[node.id]
        return value if self.batched[node.id] else spread(value, self.size)

    def visit(self, node: Node) -> None:
        """Place a node whose operands are placed."""
        operands = [self.values[i] for i in node.inputs]
        flags = [self.batched[i] for i in node.inputs]
        if node.op.name == "project" and isinstance(operands[0], tuple):
            value = operands[0][node.attrs["index"]]
        elif any(flags):
            with self.graph.derived_from(node):
                value = batch_node(self.graph, node, operands, flags, self.size)
        else:
            value = self.graph.insert_like(node, operands)
        self.give(node, value, batched=any(flags))


def batch_node(graph: Graph, node: Node, operands: list[Node], flags: list[bool], size: Dim) -> Any:
    """One node over a batch; its result (or results) with the batch axis in front."""
    op = node.op
    if op.rules.vmap is not None:
        named = op.arguments(operands, node.slots)
        answer = op.rules.vmap(size, op.arguments(flags, node.slots), **named, **node.attrs)
        if answer is not NotImplemented:
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
        walk = Walk(graph, size)
        for name, leaf in body.inputs.items():
            walk.give(leaf, operands[int(name)], batched=flags[int(name)])
        for part in body.nodes:
            if part.id not in walk.values:
                walk.visit(part)
        results = [walk.whole(output) for output in body.outputs]
        return tuple(results) if isinstance(node.type, TupleType) else results[0]
    raise ArgumentError("has no rule for batches").located(op.name, node.label, "", node.source)
