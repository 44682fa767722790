"""Softmax, its logarithm, a masked form, and their gradients as ops of their own."""

from __future__ import annotations

import math
from typing import Any

from ...graph.attributes import Axis, Float, Mask
from ...graph.dims import Dim, format_shape
from ...graph.errors import ShapeError
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import Op, builder, composite
from ...graph.types import TensorType
from ..axes import align, spread
from ..elementwise.arithmetic import where
from ..samples import Sample, bools, sample, spec

FAMILY = "softmax"

_SAMPLES = [
    sample(spec(3, 5)),
    sample(spec(4, 7, low=-40, high=40), -1),
    sample(spec(2, 3, 4), 1),
    sample(spec(2, 3, 4), -3),
    sample(spec(7)),
    sample(spec(3, 1)),
    sample(spec(0, 4)),
    sample(spec(3, 0), 1),
]


def _next_axis_over_batch(op: Op) -> None:
    """Let an op of equal shapes stay whole over a batch: its axis moves up by one."""

    @op.vmap
    def _(size: Dim, batched: dict[str, Any], axis: int, **operands: Node) -> Node:
        whole = {
            name: node if batched[name] else spread(node, size) for name, node in operands.items()
        }
        result: Node = op(**whole, axis=axis + 1)
        return result


def shifted(x: Node, axis: int) -> Node:
    """``x`` less its largest value along ``axis``, so that its ``exp`` never overflows.

    The shift cancels in whatever it is used for, so no gradient needs to pass through it.
    """
    if x.shape[axis] == 0:
        return x
    return x - x.max(axis, keepdims=True).stop_gradient()


@composite(family=FAMILY, samples=_SAMPLES)
def softmax(x: Float, axis: Axis = -1) -> TensorType:
    """exp(x) over its sum along ``axis``: positive numbers that add up to 1.

    The largest element is subtracted first, so large inputs are safe. A slice that is -inf
    throughout gives NaN, as in PyTorch; ``masked_softmax`` gives zeros.
    """
    return x


@softmax.expand
def _(x: Node, axis: int) -> Node:
    powers = shifted(x, axis).exp()
    return powers / powers.sum(axis, keepdims=True)


@softmax.vjp
def _(g: Node, out: Node, x: Node, axis: int) -> Node:
    return softmax_backward(out, g, axis)


_next_axis_over_batch(softmax)


@composite(family=FAMILY, samples=_SAMPLES)
def log_softmax(x: Float, axis: Axis = -1) -> TensorType:
    """The logarithm of softmax: ``x`` less the log of the sum of exp(x) along ``axis``.

    It stays exact where softmax itself would round to 0. A slice that is -inf throughout gives NaN.
    """
    return x


@log_softmax.expand
def _(x: Node, axis: int) -> Node:
    x = shifted(x, axis)
    return x - x.exp().sum(axis, keepdims=True).log()


@log_softmax.vjp
def _(g: Node, out: Node, x: Node, axis: int) -> Node:
    return log_softmax_backward(out, g, axis)


_next_axis_over_batch(log_softmax)


@composite(
    family=FAMILY,
    samples=[
        sample(spec(3, 5), bools(3, 5)),
        sample(spec(6, 2), bools(6, 2)),
        sample(spec(2, 3, 4), bools(3, 1), 1),
        sample(spec(2, 3, 4, low=-40, high=40), bools(4), axis=-1),
        sample(spec(5), bools()),
        sample(spec(2, 0), bools(2, 1)),
    ],
)
def masked_softmax(x: Float, mask: Mask, axis: Axis = -1) -> TensorType:
    """Softmax over the elements where ``mask`` is True; the others get exactly 0.

    The mask is broadcast to ``x``. Where it leaves nothing (or only -inf) the whole slice is 0, not
    NaN, and so is its gradient.
    """
    rank = x.rank
    fits = mask.rank <= rank and all(
        size in (1, whole)
        for size, whole in zip(mask.shape, x.shape[rank - mask.rank :], strict=True)
    )
    if not fits:
        raise ShapeError(
            f"mask {format_shape(mask.shape)} does not broadcast to {format_shape(x.shape)}"
        )
    return x


@masked_softmax.expand
def _(x: Node, mask: Node, axis: int) -> Node:
    if x.shape[axis] == 0:
        return x
    x = where(mask, x, -math.inf)
    largest = x.max(axis, keepdims=True).stop_gradient()
    # -inf less -inf would be NaN; nothing is left of such a slice, so any shift will do.
    powers = (x - where(largest.eq(-math.inf), 0.0, largest)).exp()
    total = powers.sum(axis, keepdims=True)
    return powers / where(total.eq(0.0), 1.0, total)


@masked_softmax.vjp
def _(g: Node, out: Node, x: Node, mask: Node, axis: int) -> Any:
    # What is masked has y = 0, and therefore a gradient of 0.
    return {"x": lambda: softmax_backward(out, g, axis)}


@masked_softmax.vmap
def _(size: Dim, batched: dict[str, Any], x: Node, mask: Node, axis: int) -> Node:
    x = x if batched["x"] else spread(x, size)
    return masked_softmax(x, align(mask, batched["mask"], x.rank - 1), axis + 1)


_GRADIENTS: list[Sample] = [
    sample(spec(3, 5, low=0.1, high=1), spec(3, 5)),
    sample(spec(2, 3, 4, low=0.1, high=1), spec(2, 3, 4), 1),
    sample(spec(7, low=0.1, high=1), spec(7), -1),
    sample(spec(3, 0), spec(3, 0)),
]


def _same_shape(y: TensorType, dy: TensorType) -> TensorType:
    if y.shape != dy.shape:
        raise ShapeError("shapes differ")
    return y


@composite(family=FAMILY, samples=_GRADIENTS)
def softmax_backward(y: Float, dy: Float, axis: Axis = -1) -> TensorType:
    """The gradient of softmax for its input, from its result ``y`` and the gradient ``dy``.

    y * (dy - sum(y * dy)) along ``axis``.
    """
    return _same_shape(y, dy)


@softmax_backward.expand
def _(y: Node, dy: Node, axis: int) -> Node:
    return y * (dy - (y * dy).sum(axis, keepdims=True))


_next_axis_over_batch(softmax_backward)


@composite(family=FAMILY, samples=_GRADIENTS)
def log_softmax_backward(y: Float, dy: Float, axis: Axis = -1) -> TensorType:
    """The gradient of log_softmax for its input, from its result ``y`` and the gradient ``dy``.

    dy - exp(y) * sum(dy) along ``axis``.
    """
    return _same_shape(y, dy)


@log_softmax_backward.expand
def _(y: Node, dy: Node, axis: int) -> Node:
    return dy - y.exp() * dy.sum(axis, keepdims=True)


_next_axis_over_batch(log_softmax_backward)


@builder(family=FAMILY)
def softmin(graph: Graph, x: Node, axis: int = -1) -> Node:
    """Softmax of -x: the smallest element weighs most."""
    result: Node = softmax(x.neg(), axis)
    return result
