"""Resampling of images: nearest and linear, doubling, and channels against space.

``x`` is [batch, channels, *spatial]; batch and channels stay as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graph.attributes import INT, Float, Ints, Sizes, Tensor
from ...graph.data import Array
from ...graph.dims import Dim, Shape, SymbolicDim, divide
from ...graph.errors import ArgumentError, ShapeError
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import Resolved, builder, composite, resolved
from ...graph.types import TensorType
from ..indexing.index import gather, scatter_add
from ..linalg.contract import per_axis
from ..samples import ints, sample, spec
from .windows import (
    merge_batch,
    require_axes,
    require_node,
    spatial_axes,
    split_batch,
    widened,
)

FAMILY = "resampling"


def _target(x: TensorType, sizes: Shape | None, factor: tuple[int, ...] | None) -> Shape:
    """The spatial sizes asked for, stated or as multiples of those of ``x``."""
    count = spatial_axes(x)
    if (sizes is None) == (factor is None):
        raise ArgumentError("give either sizes or factor")
    if factor is not None:
        factors = per_axis(factor, count, "factor", 1)
        return tuple(size * n for size, n in zip(x.shape[2:], factors, strict=True))
    wanted = sizes or ()
    wanted = wanted * count if len(wanted) == 1 else wanted
    if len(wanted) != count:
        raise ArgumentError(f"sizes has {len(wanted)} entries for {count} spatial axes")
    for axis, (old, new) in enumerate(zip(x.shape[2:], wanted, strict=True)):
        if isinstance(new, int) and new < 1:
            raise ArgumentError(f"size {new} on spatial axis {axis} must be at least 1")
        if old == 0:
            raise ShapeError(f"spatial axis {axis} has no elements to read")
    return wanted


def _ratio(old: Dim, new: Dim) -> int | None:
    """How often each element is repeated, where that is the same for all."""
    times = divide(new, old) if old != 0 else 1
    return times if isinstance(times, int) else None


def _known(old: Dim, new: Dim, axis: int) -> None:
    for size in (old, new):
        if isinstance(size, SymbolicDim):
            raise ShapeError(
                f"from size {old} to {new} on spatial axis {axis}: {size} is not a number yet",
                hint="bind it first",
            )


@composite(
    family=FAMILY,
    samples=[
        sample(spec(2, 3, 4), factor=2),
        sample(spec(1, 2, 3, 2), factor=(2, 3)),
        sample(spec(1, 2, 3, 5), (6, 15)),
        sample(spec(1, 2, 5, 6), (3, 4)),
        sample(spec(1, 2, 4, 3), (7, 3)),
        sample(spec(1, 1, 2, 3, 2), (4, 2, 3)),
        sample(spec(0, 2, 3), 5),
        sample(ints(1, 2, 3, 3, high=9), factor=2),
    ],
)
def resize_nearest(
    x: Tensor, sizes: Sizes | None = None, *, factor: Ints | None = None
) -> Resolved:
    """``x`` at other spatial ``sizes``, or ``factor`` times its own, each element the nearest one.

    Element ``i`` of ``n`` along an axis of ``size`` is ``i * size // n``. Either argument is one
    number for all spatial axes or one for each.
    """
    wanted = _target(x, sizes, factor)
    for axis, (old, new) in enumerate(zip(x.shape[2:], wanted, strict=True)):
        if _ratio(old, new) is None:
            _known(old, new, axis)
    return resolved(x.with_shape((*x.shape[:2], *wanted)), sizes=wanted, factor=None)


@resize_nearest.expand
def _(x: Node, sizes: Shape, factor: None) -> Node:
    ratios = [_ratio(old, new) for old, new in zip(x.shape[2:], sizes, strict=True)]
    repeated: list[int] = [n for n in ratios if n is not None]
    if len(repeated) == len(sizes):
        apart = [part for size in x.shape[2:] for part in (size, 1)]
        filled = [part for size, n in zip(x.shape[2:], repeated, strict=True) for part in (size, n)]
        wide = x.reshape((*x.shape[:2], *apart)).broadcast_to((*x.shape[:2], *filled))
        return wide.reshape((*x.shape[:2], *sizes))
    for axis, new in enumerate(sizes, start=2):
        if new != x.shape[axis]:
            places = np.arange(int(new)) * int(x.shape[axis]) // int(new)
            x = gather(x, places.astype(np.int32), axis)
    return x


@resize_nearest.vjp
def _(g: Node, out: Node, x: Node, sizes: Shape, factor: None) -> Node:
    blocks: list[Dim] = [*x.shape[:2]]
    repeated = []
    for axis, (old, new) in enumerate(zip(x.shape[2:], sizes, strict=True), start=2):
        times = _ratio(old, new)
        if times is None:
            places = np.arange(int(new)) * int(old) // int(new)
            g = scatter_add(places.astype(np.int32), g, old, axis=axis)
        blocks.append(old)
        if times is not None and times != 1:
            repeated.append(len(blocks))
            blocks.append(times)
    return g.reshape(tuple(blocks)).sum(tuple(repeated)) if repeated else g


@resize_nearest.vmap
def _(size: Dim, batched: Any, x: Node, **attrs: Any) -> Node:
    return split_batch(resize_nearest(merge_batch(x), **attrs), size, x.shape[1])


@composite(
    family=FAMILY,
    samples=[
        sample(spec(2, 3, 4), 7),
        sample(spec(1, 2, 3, 5), (6, 4)),
        sample(spec(1, 2, 3, 5), (6, 4), align_corners=True),
        sample(spec(1, 2, 5, 1), (1, 3), align_corners=True),
        sample(spec(1, 2, 4, 6), (2, 3)),
        sample(spec(1, 1, 2, 3, 2), (4, 2, 3)),
        sample(spec(1, 2, 3, 3), (3, 5)),
        sample(spec(0, 2, 3), 5),
    ],
)
def resize_linear(x: Float, sizes: Sizes, *, align_corners: bool = False) -> Resolved:
    """``x`` at other spatial ``sizes``, linear between neighbours along every spatial axis.

    Elements are squares that fill the image; with ``align_corners`` they are points, and the
    outermost ones of both images coincide.
    """
    wanted = _target(x, sizes, None)
    for axis, (old, new) in enumerate(zip(x.shape[2:], wanted, strict=True)):
        if old != new:
            _known(old, new, axis)
    return resolved(x.with_shape((*x.shape[:2], *wanted)), sizes=wanted)


def _neighbours(old: int, new: int, align_corners: bool) -> tuple[Array, Array, Array]:
    """For each new element: the old ones below and above it, and how far between them it lies."""
    i = np.arange(new)
    if align_corners:
        place = i * ((old - 1) / max(new - 1, 1))
    else:
        place = np.maximum((i + 0.5) * (old / new) - 0.5, 0.0)
    below = np.minimum(np.floor(place), old - 1).astype(np.int32)
    return below, np.minimum(below + 1, old - 1), place - below


@resize_linear.expand
def _(x: Node, sizes: Shape, align_corners: bool) -> Node:
    for axis, new in enumerate(sizes, start=2):
        if new == x.shape[axis]:
            continue
        (below, lower), (above, upper) = _shares(x, axis, x.shape[axis], new, align_corners)
        x = gather(x, below, axis) * lower + gather(x, above, axis) * upper
    return x


def _shares(
    x: Node, axis: int, old: Dim, new: Dim, align_corners: bool
) -> tuple[tuple[Array, Node], tuple[Array, Node]]:
    """What each new element along ``axis`` is made of: the places of two old ones, and how much of each."""
    below, above, share = _neighbours(int(old), int(new), align_corners)
    along = share.reshape((int(new), *(1,) * (x.rank - axis - 1)))
    lower, upper = (x.graph.constant(part, dtype=x.dtype) for part in (1.0 - along, along))
    return (below, lower), (above, upper)


@resize_linear.vjp
def _(g: Node, out: Node, x: Node, sizes: Shape, align_corners: bool) -> Node:
    total = widened(g)
    for axis, (old, new) in enumerate(zip(x.shape[2:], sizes, strict=True), start=2):
        if new != old:
            lower, upper = (
                scatter_add(places, total * share, old, axis=axis)
                for places, share in _shares(total, axis, old, new, align_corners)
            )
            total = lower + upper
    return total.cast(x.dtype) if total.dtype is not x.dtype else total


@resize_linear.vmap
def _(size: Dim, batched: Any, x: Node, **attrs: Any) -> Node:
    return split_batch(resize_linear(merge_batch(x), **attrs), size, x.shape[1])


@builder(family=FAMILY)
def resize_bilinear(graph: Graph, x: Node, sizes: Any, align_corners: bool = False) -> Node:
    """[batch, channels, height, width] at another height and width; see ``resize_linear``."""
    require_axes(x, 2)
    result: Node = resize_linear(x, sizes, align_corners=align_corners)
    return result


# --------------------------------------------------------------------------- doubling


# --------------------------------------------------------------------------- channels and space


def _factor(value: Any) -> int:
    factor: int = INT.coerce(value)
    if factor < 1:
        raise ArgumentError(f"factor {factor} must be at least 1")
    return factor


@builder(family=FAMILY)
def pixel_shuffle(graph: Graph, x: Node, factor: int) -> Node:
    """Channels laid out as blocks: [n, c * f * f, h, w] becomes [n, c, h * f, w * f]."""
    require_node(x)
    count = spatial_axes(x)
    f = _factor(factor)
    channels = divide(x.shape[1], f**count)
    if channels is None:
        raise ShapeError(f"{x.shape[1]} channels do not divide into blocks of {f**count}")
    parts = x.reshape((x.shape[0], channels, *(f,) * count, *x.shape[2:]))
    sizes = [size * f for size in x.shape[2:]]
    # Each spatial axis, followed by the part of the channels that goes inside it.
    axes = (0, 1, *(i for axis in range(2, 2 + count) for i in (count + axis, axis)))
    result: Node = parts.transpose(axes).reshape((x.shape[0], channels, *sizes))
    return result


@builder(family=FAMILY)
def pixel_unshuffle(graph: Graph, x: Node, factor: int) -> Node:
    """Blocks laid out as channels: [n, c, h * f, w * f] becomes [n, c * f * f, h, w]."""
    require_node(x)
    count = spatial_axes(x)
    f = _factor(factor)
    sizes = []
    for axis, size in enumerate(x.shape[2:]):
        each = divide(size, f)
        if each is None:
            raise ShapeError(f"size {size} on spatial axis {axis} does not divide by {f}")
        sizes.append(each)
    blocks = x.reshape((*x.shape[:2], *(part for size in sizes for part in (size, f))))
    inner, outer = range(3, 3 + 2 * count, 2), range(2, 2 + 2 * count, 2)
    channels = x.shape[1] * f**count
    result: Node = blocks.transpose((0, 1, *inner, *outer)).reshape((x.shape[0], channels, *sizes))
    return result
