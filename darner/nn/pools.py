"""Pooling over one, two or three spatial axes; these layers have no parameters, and so no names.

>>> import darner
>>> from darner.nn.pools import GlobalAvgPool, MaxPool2d
>>> g = darner.Graph("images")
>>> x = MaxPool2d(3, stride=2, padding=1)(g.input("x", (2, 8, 15, 15)))
>>> x.shape, GlobalAvgPool()(x).shape
((2, 8, 8, 8), (2, 8))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from ..graph.errors import ArgumentError
from ..graph.node import Node
from ..ops.spatial.windows import fixed_sizes, require_axes
from .base import Layer
from .convs import Sizes


@dataclass(frozen=True)
class MaxPool(Layer):
    """The largest element of each window; what is beyond the border never is.

    Attributes:
        kernel_size: of the windows: one number, or one for each spatial axis; as are the others.
        stride: how far apart windows are; as far as they are wide when left out.
        padding: how far windows may begin before the border and end behind it.
        dilation: how far apart the elements of a window are.
        ceil_mode: whether a window that only begins inside counts.
    """

    kernel_size: Sizes
    stride: Sizes | None = None
    padding: Any = 0
    _: KW_ONLY
    dilation: Sizes = 1
    ceil_mode: bool = False

    axes: ClassVar[int]

    def __call__(self, x: Node) -> Node:
        """``x`` (batch, channels, *spatial), smaller."""
        pooled = getattr(x, f"max_pool{self.axes}d")
        result: Node = pooled(
            self.kernel_size,
            self.stride,
            self.padding,
            dilation=self.dilation,
            ceil_mode=self.ceil_mode,
        )
        return result


@dataclass(frozen=True)
class AvgPool(Layer):
    """The mean of each window; ``count_include_pad`` says whether zeros beyond the border are of its elements."""

    kernel_size: Sizes
    stride: Sizes | None = None
    padding: Any = 0
    _: KW_ONLY
    ceil_mode: bool = False
    count_include_pad: bool = True

    axes: ClassVar[int]

    def __call__(self, x: Node) -> Node:
        """``x`` (batch, channels, *spatial), smaller."""
        pooled = getattr(x, f"avg_pool{self.axes}d")
        result: Node = pooled(
            self.kernel_size,
            self.stride,
            self.padding,
            ceil_mode=self.ceil_mode,
            count_include_pad=self.count_include_pad,
        )
        return result


@dataclass(frozen=True)
class AdaptiveAvgPool(Layer):
    """The means over windows as even as they can be, ``output_size`` of them on each axis; None keeps an axis as it is."""

    output_size: int | Sequence[int | None]

    axes: ClassVar[int]

    def __call__(self, x: Node) -> Node:
        """``x`` (batch, channels, *spatial) with these spatial sizes."""
        require_axes(x, self.axes)
        wanted = self.output_size
        given = [wanted] * self.axes if isinstance(wanted, int) else list(wanted)
        if len(given) != self.axes:
            raise ArgumentError(
                f"{type(self).__name__} has {self.axes} spatial axes, but output_size is {wanted!r}"
            )
        kept = fixed_sizes(x.shape[2:], "x")
        sizes = [size if size is not None else kept[axis] for axis, size in enumerate(given)]
        result: Node = x.adaptive_avg_pool(sizes)
        return result


@dataclass(frozen=True)
class GlobalAvgPool(Layer):
    """The mean of each channel, over however many spatial axes; ``keepdims`` leaves them at size 1."""

    keepdims: bool = False

    def __call__(self, x: Node) -> Node:
        """``x`` (batch, channels, *spatial) as (batch, channels)."""
        result: Node = x.global_avg_pool(keepdims=self.keepdims)
        return result


class MaxPool1d(MaxPool):
    """``MaxPool`` of (batch, channels, length)."""

    axes = 1


class MaxPool2d(MaxPool):
    """``MaxPool`` of (batch, channels, height, width)."""

    axes = 2


class MaxPool3d(MaxPool):
    """``MaxPool`` of (batch, channels, depth, height, width)."""

    axes = 3


class AvgPool1d(AvgPool):
    """``AvgPool`` of (batch, channels, length)."""

    axes = 1


class AvgPool2d(AvgPool):
    """``AvgPool`` of (batch, channels, height, width)."""

    axes = 2


class AvgPool3d(AvgPool):
    """``AvgPool`` of (batch, channels, depth, height, width)."""

    axes = 3


class AdaptiveAvgPool1d(AdaptiveAvgPool):
    """``AdaptiveAvgPool`` of (batch, channels, length)."""

    axes = 1


class AdaptiveAvgPool2d(AdaptiveAvgPool):
    """``AdaptiveAvgPool`` of (batch, channels, height, width)."""

    axes = 2


class AdaptiveAvgPool3d(AdaptiveAvgPool):
    """``AdaptiveAvgPool`` of (batch, channels, depth, height, width)."""

    axes = 3
