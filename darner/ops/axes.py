"""What rules of batches and of gradients do to the axes of a node: repeat it along one, move one, sum one away."""

from __future__ import annotations

from ..graph.dims import Dim, Shape
from ..graph.node import Node


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


def align(operand: Node, batched: bool, rank: int) -> Node:
    """A batched operand of lower rank gets axes of size 1 between its batch and the rest."""
    if not batched or operand.rank == rank + 1:
        return operand
    batch, *rest = operand.shape
    return operand.reshape((batch, *(1,) * (rank + 1 - operand.rank), *rest))


def sum_to(value: Node, shape: Shape) -> Node:
    """Undo a broadcast: sum over the axes along which a tensor of ``shape`` was repeated.

    A value that was never broadcast that far (a constant cotangent) is broadcast to ``shape`` instead.
    """
    extra = value.rank - len(shape)
    if extra < 0 or any(a != b and b != 1 for a, b in zip(value.shape[extra:], shape, strict=True)):
        return value.broadcast_to(shape)
    axes = [
        i
        for i, size in enumerate(value.shape)
        if i < extra or (shape[i - extra] == 1 and size != 1)
    ]
    if axes:
        value = value.sum(tuple(axes))
    return value if value.shape == shape else value.reshape(shape)
