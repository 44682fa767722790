"""Means, variances and norms, and the named reductions of the seeds."""

from __future__ import annotations

import math
from typing import Any

from ...graph.attributes import Analytic, Axes, Float
from ...graph.dims import Dim
from ...graph.errors import ArgumentError
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import Op, Rule, builder, composite
from ...graph.types import TensorType
from ..samples import Sample, ints, sample, spec
from .reduce import (
    argmax,
    first_extreme,
    in_f32,
    reduced,
    reduction_call,
    require_elements,
    with_axes,
)

FAMILY = "reduction"


def _samples(*extra: Sample, **options: Any) -> list[Sample]:
    """Calls of a reduction to floats."""
    return [
        sample(spec(3, 5), **options),
        sample(spec(3, 5), -1, **options),
        sample(spec(2, 3, 4), (0, 2), True, **options),
        sample(spec(1, 7), 1, **options),
        sample(spec(3, 0, 2), 0, **options),
        sample(spec(), **options),
        *extra,
    ]


def element_count(x: Node, axes: tuple[int, ...]) -> Any:
    """How many elements are reduced to one: a number, or a node where a size is still a symbol."""
    count: Any = None
    for axis in axes:
        size: Any = x.shape[axis]
        if not isinstance(size, int):
            # A sum of ones is the size as a value; binding the symbol makes it a constant.
            size = x.graph.literal(1, x.dtype).broadcast_to((size,)).sum()
        count = size if count is None else size * count
    return 1 if count is None else count


@composite(
    family=FAMILY,
    samples=_samples(sample(ints(3, 4, low=-5, high=6), 1), sample(spec(2, 0), 1)),
)
def mean(x: Analytic, axes: Axes | None = None, keepdims: bool = False) -> TensorType:
    """The mean over ``axes`` (all by default). Integers and bool give f32; no elements give NaN."""
    return reduced(x, axes or (), keepdims)


mean.spelling(reduction_call)


@mean.expand
def _(x: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
    return x.sum(axes, keepdims) / element_count(x, axes)


@mean.vjp
@in_f32
def _(g: Node, out: Node, x: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
    count = element_count(x, axes)
    each = with_axes(g, x, axes, keepdims)
    # Nothing moves the mean of no elements; 0 / 0 would say otherwise.
    share = each if isinstance(count, int) and count == 0 else each / count
    return share.broadcast_to(x.shape)


@composite(
    family=FAMILY,
    samples=_samples(
        sample(spec(3, 5), 1, correction=1),
        sample(spec(2, 3, 4), (1, 2), correction=0.5),
        sample(spec(4, 1), 1, correction=1),
        sample(spec(3, 4, low=99, high=101), 0),
        sample(ints(3, 4, low=-5, high=6), 1),
    ),
)
def var(
    x: Float, axes: Axes | None = None, keepdims: bool = False, *, correction: float = 0.0
) -> TensorType:
    """The variance over ``axes`` (all by default): squared distances from the mean over ``n - correction``.

    ``correction=1`` estimates the variance of what the elements were drawn from. No elements, or fewer than
    the correction, divide by 0.
    """
    return reduced(x, axes or (), keepdims)


var.spelling(reduction_call)


@var.expand
def _(x: Node, axes: tuple[int, ...], keepdims: bool, correction: float) -> Node:
    total = (x - x.mean(axes, True)).square().sum(axes, keepdims)
    return total / _degrees(x, axes, correction)


def _degrees(x: Node, axes: tuple[int, ...], correction: float) -> Any:
    """What a sum of squared distances is divided by: ``n - correction``, or 0 where that is negative."""
    count = element_count(x, axes)
    if isinstance(count, Node):
        return (count - correction).maximum(0.0)
    return max(count - correction, 0.0)


@var.vjp
@in_f32
def _(
    g: Node, out: Node, x: Node, axes: tuple[int, ...], keepdims: bool, correction: float
) -> Node:
    each = with_axes(g, x, axes, keepdims) * 2.0 / _degrees(x, axes, correction)
    return each * (x - x.mean(axes, True))


SQUARES = {32: (2.0**-64, 2.0**100, 2.0**80), 64: (2.0**-900, 2.0**900, 2.0**600)}
"""By the bits of a float: the least and the largest sum of squares that neither lost a term to underflow nor came near overflow, and a
power of two that brings the elements of any other sum to where theirs does neither."""


def rough_squares(total: Node) -> tuple[Node, Node, Node]:
    """Of a sum of squares: whether it may be wrong, what to multiply elements by before they are squared, and the inverse of that.

    Both are powers of two, and 1 for all but the largest and smallest sums.
    """
    least, most, power = SQUARES[max(total.dtype.bits, 32)]
    small, large = total < least, total > most

    def chosen(of_large: float, of_small: float) -> Node:
        return large.where(of_large, small.where(of_small, total.graph.literal(1.0, total.dtype)))

    return small | large, chosen(1 / power, power), chosen(power, 1 / power)


def root_of_squares(x: Node, axes: tuple[int, ...], keepdims: bool, count: Any = 1) -> Node:
    """The root of a sum of squares over a count, where squares neither overflow nor underflow.

    They are summed again, of multiples, only where that is needed: a kernel leaves out a sum that ``where`` does not take.
    """
    total = x.square().sum(axes, keepdims)
    is_rough, scale, factor = rough_squares(total)
    again = (x * with_axes(scale, x, axes, keepdims)).square().sum(axes, keepdims)
    plain, scaled = (
        squares if isinstance(count, int) and count == 1 else squares / count
        for squares in (total, again)
    )
    return is_rough.where(scaled.sqrt() * factor, plain.sqrt())


@composite(
    family=FAMILY,
    samples=_samples(sample(spec(3, 5), 1, correction=1), sample(ints(3, 4, low=-5, high=6), 1)),
)
def std(
    x: Float, axes: Axes | None = None, keepdims: bool = False, *, correction: float = 0.0
) -> TensorType:
    """The standard deviation over ``axes``: the square root of ``var``. Where it is 0, so is its gradient.

    It is a number wherever the mean is, also where ``var`` itself would overflow or underflow.
    """
    return reduced(x, axes or (), keepdims)


std.spelling(reduction_call)


@std.expand
def _(x: Node, axes: tuple[int, ...], keepdims: bool, correction: float) -> Node:
    return root_of_squares(x - x.mean(axes, True), axes, keepdims, _degrees(x, axes, correction))


def _over(g: Node, size: Node) -> Node:
    """``g / size``, and 0 where the size is 0: at the tip of a cone, the flat tangent is as good as any."""
    at_tip = size == 0.0
    return at_tip.where(0.0, g / at_tip.where(1.0, size))


@std.vjp
@in_f32
def _(
    g: Node, out: Node, x: Node, axes: tuple[int, ...], keepdims: bool, correction: float
) -> Node:
    each = with_axes(_over(g, out), x, axes, keepdims) / _degrees(x, axes, correction)
    return each * (x - x.mean(axes, True))


@composite(
    family=FAMILY,
    samples=_samples(
        *_samples(order=1)[1:4],
        *_samples(order=math.inf)[:3],
        sample(spec(2, 0), 1),
        sample(ints(3, 4, low=-5, high=6), 1, order=1),
    ),
)
def norm(
    x: Float, axes: Axes | None = None, keepdims: bool = False, *, order: float = 2.0
) -> TensorType:
    """The length of vectors over ``axes`` (all by default).

    ``order`` is 2 (root of the sum of squares), 1 (sum of absolute values) or infinity (the largest one). Squares that would
    overflow or underflow are scaled first. The gradient at a vector of zeros is 0; that of the largest absolute value goes to
    the first one.
    """
    if order not in (1.0, 2.0, math.inf):
        raise ArgumentError(f"order {order} is not 1, 2 or infinity")
    if order == math.inf:
        require_elements(x, axes or ())
    return reduced(x, axes or (), keepdims)


norm.spelling(reduction_call)


@norm.expand
def _(x: Node, axes: tuple[int, ...], keepdims: bool, order: float) -> Node:
    if order == 2.0:
        return root_of_squares(x, axes, keepdims)
    sizes = x.abs()
    return sizes.sum(axes, keepdims) if order == 1.0 else sizes.max(axes, keepdims)


@norm.vjp
@in_f32
def _(g: Node, out: Node, x: Node, axes: tuple[int, ...], keepdims: bool, order: float) -> Node:
    if order == 2.0:
        return with_axes(_over(g, out), x, axes, keepdims) * x
    each = with_axes(g, x, axes, keepdims)
    if order == math.inf:
        each = first_extreme(x.abs(), axes, argmax).where(each, 0.0)
    return each * x.sign()


@composite(
    family=FAMILY,
    samples=_samples(sample(spec(3, 5, low=-900, high=900), 1), sample(spec(2, 0), 1)),
)
def logsumexp(x: Float, axes: Axes | None = None, keepdims: bool = False) -> TensorType:
    """The logarithm of the sum of exponentials over ``axes`` (all by default), without overflow.

    It is -inf where all elements are (or there are none), with gradient 0, and inf where one is.
    """
    return reduced(x, axes or (), keepdims)


logsumexp.spelling(reduction_call)


@logsumexp.expand
def _(x: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
    if any(x.shape[axis] == 0 for axis in axes):
        return x.exp().sum(axes, keepdims).log()
    # Any finite shift gives the same value, so no gradient passes through the one chosen.
    peak = x.max(axes, True).stop_gradient()
    shift = peak.is_finite().where(peak, 0.0)
    total = (x - shift).exp().sum(axes, True).log() + shift
    return total if keepdims else total.squeeze(axes)


@logsumexp.vjp
def _(g: Node, out: Node, x: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
    kind = x.dtype
    if kind.is_half:
        # A rounded logarithm is too coarse to take the exponential of.
        g, x = g.cast("f32"), x.cast("f32")
        out = x.logsumexp(axes, keepdims)
    total = with_axes(out, x, axes, keepdims)
    share = (x - (total == -math.inf).where(0.0, total)).exp()
    result = with_axes(g, x, axes, keepdims) * share
    return result.cast(kind) if kind.is_half else result


def _batched(op: Op) -> Rule:
    """A reduction over a batch: the same axes, one place further."""

    def rule(size: Dim, batched: Any, x: Node, axes: tuple[int, ...], **attrs: Any) -> Any:
        return op(x, tuple(axis + 1 for axis in axes), **attrs)

    return rule


for _reduction in (mean, var, std, norm, logsumexp):
    _reduction.vmap(_batched(_reduction))


# --------------------------------------------------------------------------- by name


@builder(family=FAMILY)
def count_nonzero(graph: Graph, x: Node, axes: Any = None, keepdims: bool = False) -> Node:
    """How many elements over ``axes`` (all by default) are not 0, as i32."""
    return (x != graph.literal(0, x.dtype)).sum(axes, keepdims)
