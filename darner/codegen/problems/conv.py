"""What a convolution kernel computes, in the one form that the forward pass and both gradients share.

Every one of them reads *patches* of a tensor [batch, channels, *sizes]: for a pixel of a grid and a tap of the kernel, the element at
``pixel * step + offset`` on each axis, or 0 where that lies outside. The gradient towards the input of a strided convolution is several such
problems, one for each phase of the stride: the pixels of a phase are met by the same taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd, prod

from ...graph.integers import ceil_div
from ...graph.node import Node

CONVOLUTIONS = ("conv", "conv_input_grad", "conv_weight_grad")
CONVOLUTIONS_LAST = ("conv_last", "conv_last_input_grad", "conv_last_weight_grad")
"""The same of images whose channels are their last axis."""


@dataclass(frozen=True)
class Taps:
    """What the taps of one axis read in one phase.

    Attributes:
        pixels: how many pixels the phase has.
        start: the first of them, in the result.
        count: how many taps meet them.
        offset: where the first tap reads; each next one ``Patches.deltas`` further.
        kernel: the number of the first tap in the kernel; each next one ``Patches.spacing`` further.
    """

    pixels: int
    start: int
    count: int
    offset: int
    kernel: int


@dataclass(frozen=True)
class Phase:
    """The taps of all axes in one phase."""

    axes: tuple[Taps, ...]

    @property
    def pixels(self) -> int:
        """Pixels of one image."""
        return prod(axis.pixels for axis in self.axes)

    @property
    def taps(self) -> int:
        """Taps that meet each of them."""
        return prod(axis.count for axis in self.axes)


@dataclass(frozen=True)
class Patches:
    """The patches of a tensor [batch, groups * channels, *sizes].

    Attributes:
        channels: of one group.
        steps: between the patches of neighbouring pixels, for each axis.
        deltas: between neighbouring taps of a phase.
        spacing: between their numbers in the kernel.
        kernel: its sizes.
        phases: what pixels there are.
        result: the spatial sizes of what is computed for the pixels.
        strides: between neighbouring pixels of a phase, in the result.
    """

    batch: int
    groups: int
    channels: int
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    deltas: tuple[int, ...]
    spacing: tuple[int, ...]
    kernel: tuple[int, ...]
    phases: tuple[Phase, ...]
    result: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def area(self) -> int:
        """Elements of one channel."""
        return prod(self.sizes)

    @property
    def image(self) -> int:
        """Elements of one image."""
        return self.groups * self.channels * self.area

    @property
    def pixels(self) -> int:
        """Elements of one channel of the result."""
        return prod(self.result)

    @property
    def most_taps(self) -> int:
        """Taps of the phase that has most."""
        return max(phase.taps for phase in self.phases)

    @property
    def most_columns(self) -> int:
        """Pixels of all images in the phase that has most."""
        return self.batch * max(phase.pixels for phase in self.phases)

    @property
    def is_plain(self) -> bool:
        """Whether every pixel reads its own element alone: a product of matrices."""
        return all(size == 1 for size in self.kernel) and not any(
            step > 1 or stride > 1 for step, stride in zip(self.steps, self.strides, strict=True)
        )

    def segments(self, columns: int, lanes: int) -> int:
        """The most pieces of rows, of ``lanes`` pixels at most, that so many neighbouring pixels consist of."""
        most = 0
        for phase in self.phases:
            row = phase.axes[-1].pixels
            most = max(most, ceil_div(columns, row) + 2 + columns // lanes)
        return most


def patches_of(node: Node, *, merged: bool = True) -> Patches:
    """The patches that a convolution or one of its gradients reads.

    The gradient towards the weight reads those of the forward pass. Axes that a kernel of size 1 goes along one by one are ``merged``, where that is wanted.
    """
    attrs = node.attrs
    stride, padding, dilation = attrs["stride"], attrs["padding"], attrs["dilation"]
    groups = int(attrs["groups"])
    last = node.op.name in CONVOLUTIONS_LAST

    def spatial(x: Node) -> list[int]:
        return [int(size) for size in (x.shape[1:-1] if last else x.shape[2:])]

    source = node.operands[0]
    sizes = spatial(source)
    backward = "sizes" in attrs
    kernel = [int(k) for k in attrs["kernel"]] if "kernel" in attrs else spatial(node.operands[1])
    result = spatial(node.operands[1] if "kernel" in attrs else node)
    axes = []
    for axis, low_high in enumerate(padding):
        settings = int(stride[axis]), int(low_high[0]), int(low_high[1]), int(dilation[axis])
        axes.append((sizes[axis], result[axis], kernel[axis], *settings))
    found = [_axis(backward, *axis) for axis in (_merged(axes) if merged else axes)]
    return Patches(
        batch=int(source.shape[0]),
        groups=groups,
        channels=int(source.shape[-1 if last else 1]) // groups,
        sizes=tuple(axis.size for axis in found),
        steps=tuple(axis.step for axis in found),
        deltas=tuple(axis.delta for axis in found),
        spacing=tuple(axis.spacing for axis in found),
        kernel=tuple(axis.kernel for axis in found),
        phases=tuple(Phase(taps) for taps in product(*(axis.phases for axis in found))),
        result=tuple(axis.result for axis in found),
        strides=tuple(axis.stride for axis in found),
    )


def _merged(axes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Neighbouring axes that a kernel of size 1 goes along one by one, as one axis."""
    found: list[tuple[int, ...]] = []
    for size, result, kernel, stride, low, high, dilation in axes:
        trivial = (kernel, stride, low, high) == (1, 1, 0, 0)
        if trivial and found and found[-1][2:6] == (1, 1, 0, 0):
            merged = found[-1][0] * size
            found[-1] = (merged, merged, 1, 1, 0, 0, 1)
        else:
            found.append((size, result, kernel, stride, low, high, dilation))
    return found


@dataclass(frozen=True)
class _Axis:
    size: int
    result: int
    kernel: int
    step: int
    delta: int
    spacing: int
    stride: int
    phases: tuple[Taps, ...]


def _axis(  # many parameters: an axis of a convolution, as its record says it
    backward: bool,
    size: int,
    result: int,
    kernel: int,
    stride: int,
    low: int,
    high: int,
    dilation: int,
) -> _Axis:
    if not backward:
        taps = Taps(result, 0, kernel, -low, 0)
        return _Axis(size, result, kernel, stride, dilation, 1, 1, (taps,))
    # The tap k meets pixel y at (y + low - k * dilation) / stride, where that is whole.
    spacing = stride // gcd(stride, dilation)
    phases = []
    for start in range(min(stride, result)):
        met = [k for k in range(kernel) if (start + low - k * dilation) % stride == 0]
        first = met[0] if met else 0
        offset = (start + low - first * dilation) // stride if met else 0
        phases.append(Taps(ceil_div(result - start, stride), start, len(met), offset, first))
    delta = -(spacing * dilation // stride)
    return _Axis(size, result, kernel, 1, delta, spacing, stride, tuple(phases))
