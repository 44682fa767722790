"""Pooling over any number of spatial axes, and the gradients of pooling.

``x`` is [batch, channels, *spatial]. A window's ``stride`` is its own size unless given. How users
write pooling (``max_pool2d``, ``pool`` ...) is in ``pool_forms``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graph.attributes import Float, Ints, Pairs, Real, Sizes
from ...graph.data import Array
from ...graph.dims import Dim, Shape, SymbolicDim, format_shape
from ...graph.dtypes import DType
from ...graph.errors import ArgumentError, ShapeError
from ...graph.facts import Facts
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import Resolved, composite, resolved
from ...graph.types import TensorType
from ..axes import spread
from ..indexing.index import take_along_axis
from ..linalg.contract import dot_general, fold, per_axis, windows
from ..samples import ints, sample, spec
from .windows import (
    PairsOf,
    cropped,
    fixed_sizes,
    last_axes,
    merge_batch,
    padded,
    padded_sizes,
    reach,
    settle,
    spatial_axes,
    split_batch,
    widened,
    window_counts,
)

FAMILY = "pooling"


def _settle_window(
    count: int,
    window: tuple[int, ...],
    stride: tuple[int, ...] | None,
    padding: PairsOf,
    dilation: tuple[int, ...],
) -> dict[str, Any]:
    """Attributes with one entry for each spatial axis; no window may lie in the padding alone."""
    window = per_axis(window, count, "window", 1)
    settled = settle(count, window if stride is None else stride, padding, dilation)
    for axis, pair in enumerate(settled["padding"]):
        span = reach(window[axis], settled["dilation"][axis])
        if max(pair) >= span:
            raise ArgumentError(
                f"padding {max(pair)} on spatial axis {axis} must be below the window's "
                f"reach, {span}"
            )
    return {"window": window, **settled}


def _partial(
    sizes: Shape, window: Any, stride: Any, padding: PairsOf, dilation: Any
) -> tuple[int, ...]:
    """For ``ceil_mode``: what to add behind each axis so that a last, partial window counts.

    A window that would begin behind the input does not count, as in PyTorch.
    """
    extras = []
    for axis, total in enumerate(padded_sizes(sizes, padding)):
        span = reach(window[axis], dilation[axis])
        rest = (total - span) % stride[axis]
        extra = stride[axis] - rest if rest else 0
        extras.append(extra if padding[axis][1] + extra < span else 0)
    return tuple(extras)


def _extended(padding: PairsOf, extras: tuple[int, ...]) -> PairsOf:
    return tuple((low, high + extra) for (low, high), extra in zip(padding, extras, strict=True))


def _check_gradient(dy: TensorType, shape: Shape) -> None:
    if dy.shape != shape:
        raise ShapeError(f"dy must have the shape of the pooled tensor, {format_shape(shape)}")


# --------------------------------------------------------------------------- maximum


def _max_pool(
    x: TensorType,
    window: tuple[int, ...],
    stride: tuple[int, ...] | None,
    padding: PairsOf,
    dilation: tuple[int, ...],
    ceil_mode: bool,
) -> tuple[Shape, dict[str, Any]]:
    """The pooled shape and settled attributes; a partial window is a matter of padding."""
    settled = _settle_window(spatial_axes(x), window, stride, padding, dilation)
    sizes = x.shape[2:]
    if ceil_mode:
        settled["padding"] = _extended(settled["padding"], _partial(sizes, **settled))
    counts = window_counts(sizes, **settled, what="window")
    return (*x.shape[:2], *counts), {**settled, "ceil_mode": False}


def _lowest(dtype: DType) -> float:
    """What no element is below: the padding of a maximum."""
    return -float("inf") if dtype.is_float else float(dtype.limits[0])


@composite(
    family=FAMILY,
    facts=Facts(role="contract", whole=True, pools=True),
    samples=[
        sample(spec(2, 3, 7), 2),
        sample(spec(2, 2, 6, 5), (3, 2), stride=(2, 1), padding=(1, 0)),
        sample(spec(1, 2, 7, 6), 3, stride=2, padding=((1, 0), (0, 2))),
        sample(spec(1, 2, 8, 7), 2, stride=2, dilation=(1, 2), ceil_mode=True),
        sample(spec(1, 1, 6, 7), 3, stride=(4, 2), padding=1, ceil_mode=True),
        sample(spec(2, 2, 3, 4), (3, 4)),
        sample(spec(1, 2, 4, 5, 3), (2, 3, 1), stride=1),
        sample(spec(0, 2, 4, 4), 2),
        sample(ints(1, 2, 5, 5, low=-9, high=9, dtype="i8"), 2, stride=1, padding=1),
        sample(ints(2, 1, 6, high=9, dtype="u8"), 3, padding=1),
    ],
)
def max_pool(
    x: Real,
    window: Ints,
    *,
    stride: Ints | None = None,
    padding: Pairs = ((0, 0),),
    dilation: Ints = (1,),
    ceil_mode: bool = False,
) -> Resolved:
    """The largest element of each window; padding never wins (it is -inf, or the least integer).

    ``ceil_mode`` also counts a last window that sticks out, if it begins inside. Where elements of
    a window are equal, the gradient goes to the first.
    """
    shape, settled = _max_pool(x, window, stride, padding, dilation, ceil_mode)
    return resolved(x.with_shape(shape), **settled)


@max_pool.expand
def _(x: Node, window: Any, stride: Any, padding: PairsOf, dilation: Any, ceil_mode: bool) -> Node:
    seen = windows(padded(x, padding, _lowest(x.dtype)), window, stride, dilation)
    return seen.max(last_axes(seen, len(window)))


@max_pool.vjp
def _(g: Node, out: Node, x: Node, **attrs: Any) -> Node:
    return max_pool_backward(x, g, **attrs)


@max_pool.vmap
def _(size: Dim, batched: Any, x: Node, **attrs: Any) -> Node:
    return split_batch(max_pool(merge_batch(x), **attrs), size, x.shape[1])


@composite(
    family=FAMILY,
    facts=Facts(role="contract", whole=True, pools=True),
    samples=[
        sample(spec(2, 3, 7, distinct=True), spec(2, 3, 3), 2),
        sample(
            spec(2, 2, 6, 5, distinct=True),
            spec(2, 2, 3, 4),
            (3, 2),
            stride=(2, 1),
            padding=(1, 0),
        ),
        sample(
            spec(1, 2, 7, 6, distinct=True),
            spec(1, 2, 3, 3),
            3,
            stride=2,
            padding=((1, 0), (0, 2)),
        ),
        sample(
            spec(1, 2, 8, 7, distinct=True),
            spec(1, 2, 4, 3),
            2,
            stride=2,
            dilation=(1, 2),
            ceil_mode=True,
        ),
        sample(spec(2, 2, 3, 4, distinct=True), spec(2, 2, 1, 1), (3, 4)),
        sample(spec(1, 2, 4, 5, 3, distinct=True), spec(1, 2, 3, 3, 3), (2, 3, 1), stride=1),
        # Ties in nearly every window.
        sample(ints(1, 2, 6, 6, high=2), ints(1, 2, 4, 4, low=1, high=9), 3, stride=1),
        sample(spec(1, 1, 5, 5, low=1, high=1), spec(1, 1, 3, 3), 3, stride=2, padding=1),
        sample(spec(0, 2, 4, 4), spec(0, 2, 2, 2), 2),
    ],
)
def max_pool_backward(
    x: Real,
    dy: Real,
    window: Ints,
    *,
    stride: Ints | None = None,
    padding: Pairs = ((0, 0),),
    dilation: Ints = (1,),
    ceil_mode: bool = False,
) -> Resolved:
    """The gradient of ``max_pool``: ``dy`` is added where each window has its first maximum.

    Its own derivative by ``x`` is 0: where the maxima are does not change but at ties.
    """
    shape, settled = _max_pool(x, window, stride, padding, dilation, ceil_mode)
    _check_gradient(dy, shape)
    return resolved(x, **settled)


@max_pool_backward.expand
def _(
    x: Node,
    dy: Node,
    window: Any,
    stride: Any,
    padding: PairsOf,
    dilation: Any,
    ceil_mode: bool,
) -> Node:
    first = _first_maxima(x, window, stride, padding, dilation)
    area = int(np.prod(window))
    chosen = first == x.graph.iota((area,))
    shares = chosen.where(dy.reshape((*dy.shape, 1)), 0).reshape((*dy.shape, *window))
    sizes = padded_sizes(x.shape[2:], padding)
    return cropped(fold(shares, sizes, stride, dilation), padding)


def _flat_windows(
    x: Node, fill: float, window: Any, stride: Any, padding: PairsOf, dilation: Any
) -> Node:
    """The elements of each window along one axis, the last."""
    seen = windows(padded(x, padding, fill), window, stride, dilation)
    result: Node = seen.reshape((*seen.shape[: -len(window)], int(np.prod(window))))
    return result


def _first_maxima(x: Node, *geometry: Any) -> Node:
    """Where in each window the first maximum is; the last axis has size 1."""
    result: Node = _flat_windows(x, _lowest(x.dtype), *geometry).argmax(-1, keepdims=True)
    return result


@max_pool_backward.vjp
def _(
    g: Node,
    out: Node,
    x: Node,
    dy: Node,
    window: Any,
    stride: Any,
    padding: PairsOf,
    dilation: Any,
    ceil_mode: bool,
) -> Any:
    def picked() -> Node:
        geometry = (window, stride, padding, dilation)
        found = take_along_axis(_flat_windows(g, 0.0, *geometry), _first_maxima(x, *geometry), -1)
        return found.reshape(dy.shape)

    return {"dy": picked}


@max_pool_backward.vmap
def _(size: Dim, batched: Any, x: Node, dy: Node, **attrs: Any) -> Node:
    images, shares = (
        merge_batch(item if batched[name] else spread(item, size))
        for name, item in (("x", x), ("dy", dy))
    )
    whole = max_pool_backward(images, shares, **attrs)
    return split_batch(whole, size, x.shape[1] if batched["x"] else x.shape[0])


# --------------------------------------------------------------------------- mean


def _avg_pool(
    sizes: Shape,
    window: tuple[int, ...],
    stride: tuple[int, ...] | None,
    padding: PairsOf,
    count_include_pad: bool,
    ceil_mode: bool,
) -> tuple[Shape, dict[str, Any]]:
    """The counts of windows, and settled attributes: equal poolings have equal ones.

    What a partial window lacks is padding that does not count. Only where other padding does count
    must the two be told apart, and ``ceil_mode`` stays.
    """
    settled = _settle_window(len(sizes), window, stride, padding, (1,))
    extras = _partial(sizes, **settled) if ceil_mode else (0,) * len(sizes)
    whole = _extended(settled["padding"], extras)
    counts = window_counts(sizes, **{**settled, "padding": whole}, what="window")
    del settled["dilation"]
    if not any(map(any, settled["padding"])):
        count_include_pad = not any(extras)
    if not count_include_pad:
        settled["padding"], extras = whole, (0,)
    return counts, {**settled, "count_include_pad": count_include_pad, "ceil_mode": any(extras)}


def _held(  # many parameters: the op's operands and attributes
    graph: Graph,
    dtype: DType,
    sizes: Shape,
    window: Any,
    stride: Any,
    padding: PairsOf,
    extras: tuple[int, ...],
    count_include_pad: bool,
) -> Node | float:
    """How many elements each window's mean is over."""
    if count_include_pad and not any(extras):
        return float(np.prod(window))
    ones = graph.constant(1.0, dtype=dtype).broadcast_to(sizes)
    counted = padded(ones, padding, 1.0 if count_include_pad else 0.0)
    seen = windows(padded(counted, tuple((0, extra) for extra in extras)), window, stride)
    total: Node = seen.sum(last_axes(seen, len(window)))
    return total


def _extras(
    sizes: Shape, window: Any, stride: Any, padding: PairsOf, ceil_mode: bool
) -> tuple[int, ...]:
    ones = (1,) * len(sizes)
    return _partial(sizes, window, stride, padding, ones) if ceil_mode else (0,) * len(sizes)


@composite(
    family=FAMILY,
    facts=Facts(role="contract", whole=True, pools=True),
    samples=[
        sample(spec(2, 3, 7), 2),
        sample(spec(2, 2, 6, 5), (3, 2), stride=(2, 1), padding=(1, 0)),
        sample(spec(2, 2, 6, 5), (3, 2), stride=(2, 1), padding=(1, 1), count_include_pad=False),
        sample(spec(1, 2, 7, 6), 3, stride=2, padding=((1, 0), (0, 2))),
        sample(spec(1, 1, 6, 7), 3, stride=(4, 2), padding=1, ceil_mode=True),
        sample(spec(1, 1, 6, 8), 3, stride=2, padding=1, count_include_pad=False, ceil_mode=True),
        sample(spec(1, 2, 5, 6), 2, ceil_mode=True),
        sample(spec(2, 2, 3, 4), (3, 4)),
        sample(spec(1, 2, 4, 5, 3), (2, 3, 1), stride=1),
        sample(spec(0, 2, 4, 4), 2),
    ],
)
def avg_pool(
    x: Float,
    window: Ints,
    *,
    stride: Ints | None = None,
    padding: Pairs = ((0, 0),),
    count_include_pad: bool = True,
    ceil_mode: bool = False,
) -> Resolved:
    """The mean of each window.

    Padding counts as zeros, or not at all with ``count_include_pad=False``.
    ``ceil_mode`` also counts a last window that sticks out, if it begins inside; what sticks out
    beyond the padding is no part of the mean.
    """
    spatial_axes(x)
    counts, settled = _avg_pool(x.shape[2:], window, stride, padding, count_include_pad, ceil_mode)
    return resolved(x.with_shape((*x.shape[:2], *counts)), **settled)


@avg_pool.expand
def _(
    x: Node,
    window: Any,
    stride: Any,
    padding: PairsOf,
    count_include_pad: bool,
    ceil_mode: bool,
) -> Node:
    sizes = x.shape[2:]
    extras = _extras(sizes, window, stride, padding, ceil_mode)
    seen = windows(padded(x, _extended(padding, extras)), window, stride)
    held = _held(x.graph, x.dtype, sizes, window, stride, padding, extras, count_include_pad)
    return seen.sum(last_axes(seen, len(window))) / held


@avg_pool.vjp
def _(g: Node, out: Node, x: Node, **attrs: Any) -> Node:
    return avg_pool_backward(g, sizes=x.shape[2:], **attrs)


@avg_pool.vmap
def _(size: Dim, batched: Any, x: Node, **attrs: Any) -> Node:
    return split_batch(avg_pool(merge_batch(x), **attrs), size, x.shape[1])


@composite(
    family=FAMILY,
    facts=Facts(role="contract", whole=True, pools=True),
    samples=[
        sample(spec(2, 3, 3), 2, sizes=7),
        sample(spec(2, 2, 3, 4), (3, 2), sizes=(6, 5), stride=(2, 1), padding=(1, 0)),
        sample(
            spec(2, 2, 3, 6),
            (3, 2),
            sizes=(6, 5),
            stride=(2, 1),
            padding=(1, 1),
            count_include_pad=False,
        ),
        sample(spec(1, 1, 2, 4), 3, sizes=(6, 7), stride=(4, 2), padding=1, ceil_mode=True),
        sample(spec(1, 2, 3, 3), 2, sizes=(5, 6), ceil_mode=True),
        sample(spec(1, 2, 3, 3, 3), (2, 3, 1), sizes=(4, 5, 3), stride=1),
        sample(spec(0, 2, 2, 2), 2, sizes=(4, 4)),
    ],
)
def avg_pool_backward(
    dy: Float,
    window: Ints,
    *,
    sizes: Sizes,
    stride: Ints | None = None,
    padding: Pairs = ((0, 0),),
    count_include_pad: bool = True,
    ceil_mode: bool = False,
) -> Resolved:
    """The gradient of ``avg_pool`` for an input with these spatial ``sizes``: its transpose."""
    count = spatial_axes(dy, "dy")
    if len(sizes) != count:
        raise ArgumentError(f"{len(sizes)} sizes for {count} spatial axes")
    counts, settled = _avg_pool(sizes, window, stride, padding, count_include_pad, ceil_mode)
    _check_gradient(dy, (*dy.shape[:2], *counts))
    return resolved(dy.with_shape((*dy.shape[:2], *sizes)), **settled)


@avg_pool_backward.expand
def _(
    dy: Node,
    window: Any,
    sizes: Shape,
    stride: Any,
    padding: PairsOf,
    count_include_pad: bool,
    ceil_mode: bool,
) -> Node:
    extras = _extras(sizes, window, stride, padding, ceil_mode)
    held = _held(dy.graph, dy.dtype, sizes, window, stride, padding, extras, count_include_pad)
    each = (dy / held).reshape((*dy.shape, *(1,) * len(window)))
    shares = each.broadcast_to((*dy.shape, *window))
    whole = _extended(padding, extras)
    return cropped(fold(shares, padded_sizes(sizes, whole), stride), whole)


@avg_pool_backward.vjp
def _(g: Node, out: Node, dy: Node, sizes: Shape, **attrs: Any) -> Node:
    return avg_pool(g, **attrs)


@avg_pool_backward.vmap
def _(size: Dim, batched: Any, dy: Node, **attrs: Any) -> Node:
    return split_batch(avg_pool_backward(merge_batch(dy), **attrs), size, dy.shape[1])


# --------------------------------------------------------------------------- to a given size


def _divides(size: Dim, parts: int) -> bool:
    """Whether an axis splits into equal parts; a symbolic size must."""
    return size % parts == 0


@composite(
    family=FAMILY,
    samples=[
        sample(spec(2, 3, 7), 3),
        sample(spec(1, 2, 6, 4), (3, 2)),
        sample(spec(2, 2, 5, 7), (3, 7)),
        sample(spec(1, 2, 3, 2), (5, 3)),
        sample(spec(1, 2, 4, 5, 3), (2, 3, 1)),
        sample(spec(2, 2, 3, 4), 1),
        sample(spec(0, 2, 5), 2),
    ],
)
def adaptive_avg_pool(x: Float, sizes: Ints) -> Resolved:
    """The mean over ``sizes`` windows on each spatial axis, as even as they can be.

    Window ``i`` of ``n`` along an axis of size ``s`` is ``floor(i * s / n)`` to ``ceil((i + 1) * s
    / n)``.
    """
    count = spatial_axes(x)
    sizes = per_axis(sizes, count, "sizes", 1)
    for axis, size in enumerate(x.shape[2:]):
        if isinstance(size, SymbolicDim):
            _divides(size, sizes[axis])
        elif size == 0:
            raise ShapeError(f"spatial axis {axis} has no elements to average")
    return resolved(x.with_shape((*x.shape[:2], *sizes)), sizes=sizes)


def _means(size: int, parts: int) -> Array:
    """The matrix that averages an axis into windows, one row a window."""
    i = np.arange(parts)[:, None]
    starts, stops = i * size // parts, -(-(i + 1) * size // parts)
    place = np.arange(size)
    inside = (starts <= place) & (place < stops)
    return inside / (stops - starts)


def _equal_windows(whole: Shape, sizes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The one window of all means, where the axes split into equal parts."""
    if not all(map(_divides, whole, sizes)):
        return None
    window = [size // parts for size, parts in zip(whole, sizes, strict=True)]
    return fixed_sizes(window, "the window")


@adaptive_avg_pool.expand
def _(x: Node, sizes: tuple[int, ...]) -> Node:
    window = _equal_windows(x.shape[2:], sizes)
    if window is not None:
        return avg_pool(x, window)
    for parts in sizes:
        # The contracted axis moves to the end, so the next one is always axis 2.
        matrix = x.graph.constant(_means(int(x.shape[2]), parts), dtype=x.dtype)
        x = dot_general(x, matrix, (2,), (1,))
    return x


@adaptive_avg_pool.vjp
def _(g: Node, out: Node, x: Node, sizes: tuple[int, ...]) -> Node:
    window = _equal_windows(x.shape[2:], sizes)
    if window is not None:
        return avg_pool_backward(g, window, sizes=x.shape[2:])
    share = widened(g)
    for size, parts in zip(x.shape[2:], sizes, strict=True):
        matrix = g.graph.constant(_means(int(size), parts), dtype=share.dtype)
        share = dot_general(share, matrix, (2,), (0,))
    return share.cast(x.dtype) if share.dtype is not x.dtype else share


@adaptive_avg_pool.vmap
def _(size: Dim, batched: Any, x: Node, sizes: tuple[int, ...]) -> Node:
    return split_batch(adaptive_avg_pool(merge_batch(x), sizes), size, x.shape[1])
