"""How users write pooling: by rank, by kind, flat, and over the whole of an image."""

from __future__ import annotations

from typing import Any

from ...graph.attributes import PAIRS
from ...graph.errors import ArgumentError
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import Builder, builder
from ..elementwise.arithmetic import choose
from ..linalg.contract import windows
from .pool import FAMILY, adaptive_avg_pool, avg_pool, max_pool
from .windows import (
    is_size,
    last_axes,
    numbers,
    padded,
    require_axes,
    require_node,
    settle,
    spatial_axes,
    unflattened,
    window_counts,
)

_AXES = {1: "[batch, channels, length]", 2: "[batch, channels, height, width]"}
_AXES[3] = "[batch, channels, depth, height, width]"


def _max_pool_of_rank(count: int) -> Builder:
    def build(  # many parameters: they are the user's options, by name
        graph: Graph,
        x: Node,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Node:
        require_axes(x, count)
        result: Node = max_pool(
            x, kernel_size, stride=stride, padding=padding, dilation=dilation, ceil_mode=ceil_mode
        )
        return result

    build.__name__ = build.__qualname__ = f"max_pool{count}d"
    build.__doc__ = f"The largest element of each window of {_AXES[count]}; see ``max_pool``."
    return builder(family=FAMILY)(build)


def _avg_pool_of_rank(count: int) -> Builder:
    def build(  # many parameters: they are the user's options, by name
        graph: Graph,
        x: Node,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Node:
        require_axes(x, count)
        result: Node = avg_pool(
            x,
            kernel_size,
            stride=stride,
            padding=padding,
            count_include_pad=count_include_pad,
            ceil_mode=ceil_mode,
        )
        return result

    build.__name__ = build.__qualname__ = f"avg_pool{count}d"
    build.__doc__ = f"The mean of each window of {_AXES[count]}; see ``avg_pool``."
    return builder(family=FAMILY)(build)


def _adaptive_of_rank(count: int) -> Builder:
    def build(graph: Graph, x: Node, output_size: Any) -> Node:
        require_axes(x, count)
        result: Node = adaptive_avg_pool(x, output_size)
        return result

    build.__name__ = build.__qualname__ = f"adaptive_avg_pool{count}d"
    build.__doc__ = f"{_AXES[count]} averaged to a given size; see ``adaptive_avg_pool``."
    return builder(family=FAMILY)(build)


max_pool1d, max_pool2d, max_pool3d = map(_max_pool_of_rank, (1, 2, 3))
avg_pool1d, avg_pool2d, avg_pool3d = map(_avg_pool_of_rank, (1, 2, 3))
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = map(_adaptive_of_rank, (1, 2, 3))


# --------------------------------------------------------------------------- other reductions


def _reduced(x: Node, reduction: str, fill: float, window: Any, stride: Any, padding: Any) -> Node:
    """Windows reduced by a primitive that no pooling op of its own stands for."""
    count = spatial_axes(x)
    sizes = numbers(window, count, "window", 1)
    steps = sizes if stride is None else numbers(stride, count, "stride", 1)
    settled = settle(count, steps, PAIRS.coerce(padding), (1,))
    window_counts(x.shape[2:], sizes, **settled, what="window")
    seen = windows(padded(x, settled["padding"], fill), sizes, settled["stride"])
    result: Node = getattr(seen, reduction)(last_axes(seen, count))
    return result


@builder(family=FAMILY)
def sum_pool(graph: Graph, x: Node, window: Any, *, stride: Any = None, padding: Any = 0) -> Node:
    """The sum of each window of [batch, channels, *spatial]; padding is zeros."""
    return _reduced(x, "sum", 0.0, window, stride, padding)


@builder(family=FAMILY)
def prod_pool(graph: Graph, x: Node, window: Any, *, stride: Any = None, padding: Any = 0) -> Node:
    """The product of each window of [batch, channels, *spatial]; padding is ones."""
    return _reduced(x, "prod", 1.0, window, stride, padding)


def _mirrored(x: Node) -> Node:
    """Elements in the opposite order: the least becomes the largest. Its own inverse."""
    if x.dtype.kind == "bool":
        return x.logical_not()
    if x.dtype.is_int:
        # Minus would overflow at the least signed integer, and wrap for unsigned ones.
        return sum(x.dtype.limits) - x
    return -x


@builder(family=FAMILY)
def min_pool(
    graph: Graph,
    x: Node,
    window: Any,
    *,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Node:
    """The least element of each window; padding never wins. See ``max_pool``."""
    require_node(x)
    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode}
    return _mirrored(max_pool(_mirrored(x), window, **attrs))


KINDS = {
    "max": max_pool,
    "mean": avg_pool,
    "avg": avg_pool,
    "sum": sum_pool,
    "min": min_pool,
    "prod": prod_pool,
}


@builder(family=FAMILY)
def pool(
    graph: Graph, x: Node, kind: Any, kernel_size: Any, stride: Any = None, padding: Any = 0
) -> Node:
    """Pooling by kind: max, mean (padding counts), sum, min or prod; any number of spatial axes."""
    result: Node = choose(KINDS, kind, "pooling")(x, kernel_size, stride=stride, padding=padding)
    return result


# --------------------------------------------------------------------------- the whole image


def _whole(x: Node, geometry: tuple[Any, ...]) -> Node:
    """[batch, channels, *spatial], from that or from a flat tensor and its sizes."""
    if not geometry:
        require_node(x)
        spatial_axes(x)
        return x
    if len(geometry) != 3 or not all(map(is_size, geometry)):
        raise ArgumentError(
            f"got {len(geometry)} arguments after x, expected none, or the sizes of a flat tensor",
            hint="flat: (x, batch, channels, spatial)",
        )
    return unflattened(x, geometry)


@builder(family=FAMILY)
def global_avg_pool(graph: Graph, x: Node, *geometry: int, keepdims: bool = False) -> Node:
    """The mean of each channel: [batch, channels, *spatial] becomes [batch, channels].

    Flat: ``global_avg_pool(x, batch, channels, spatial)``. ``keepdims`` leaves the spatial axes at
    size 1.
    """
    image = _whole(x, geometry)
    result: Node = image.mean(last_axes(image, image.rank - 2), keepdims=keepdims)
    return result


@builder(family=FAMILY)
def global_max_pool(graph: Graph, x: Node, *geometry: int, keepdims: bool = False) -> Node:
    """The largest element of each channel: [batch, channels, *spatial] becomes [batch, channels].

    Flat: ``global_max_pool(x, batch, channels, spatial)``. ``keepdims`` leaves the spatial axes at
    size 1.
    """
    image = _whole(x, geometry)
    result: Node = image.max(last_axes(image, image.rank - 2), keepdims=keepdims)
    return result
