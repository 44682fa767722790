"""Convolutions with their trained kernels, over one, two or three spatial axes.

>>> import darner
>>> from darner.nn.convs import Conv2d, ConvTranspose2d
>>> g = darner.Graph("images")
>>> x = g.input("x", (2, 3, 32, 32))
>>> y = Conv2d("down", 3, 8, 3, stride=2, padding=1)(x).relu()
>>> ConvTranspose2d("up", 8, 3, 2, stride=2)(y).shape
(2, 3, 32, 32)
>>> {name: node.shape for name, node in g.parameters.items() if name.endswith("weight")}
{'down.weight': (8, 3, 3, 3), 'up.weight': (8, 3, 2, 2)}
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, TypeAlias

from ..graph.errors import ArgumentError
from ..graph.node import Node
from ..ops.spatial.windows import numbers
from .base import Layer, check_width, parameter, positive, scope

Sizes: TypeAlias = int | Sequence[int]
"""One number for all spatial axes, or one for each."""


@dataclass(frozen=True)
class Convolution(Layer, ABC):
    """What convolutions and transposed ones have in common, whatever the number of spatial axes.

    Arguments mean what they mean in PyTorch, and so do names and shapes of the parameters. Unless told otherwise
    ``weight`` and ``bias`` start evenly within 1 / sqrt(n) of 0, n being how many numbers of the weight have one first index.

    Attributes:
        name: of its scope.
        inputs: channels that it takes.
        outputs: channels that it gives.
        kernel_size: one number, or one for each spatial axis; as are stride, padding and dilation.
        stride: how far apart the kernel's places are.
        padding: zeros on both sides, or a (low, high) pair for each axis; of a convolution also "same" or "valid".
        dilation: how far apart the kernel's own elements are.
        groups: into how many groups the channels are split, each seeing its own alone.
        bias: whether a number is added to each channel.
        init: how the weight starts; the bias is then 0 at first, or what ``init_bias`` says.
        init_bias: how the bias starts.
    """

    name: str
    inputs: int
    outputs: int
    kernel_size: Sizes
    stride: Sizes = 1
    padding: Any = 0
    _: KW_ONLY
    dilation: Sizes = 1
    groups: int = 1
    bias: bool = True
    init: str | None = None
    init_bias: str | None = None

    axes: ClassVar[int]

    def __post_init__(self) -> None:
        positive(self, "inputs", "outputs", "groups")
        numbers(self.kernel_size, self.axes, "kernel_size", 1)
        for field in ("inputs", "outputs"):
            if getattr(self, field) % self.groups:
                raise ArgumentError(
                    f"{getattr(self, field)} {field} do not divide into {self.groups} groups"
                )

    @property
    @abstractmethod
    def channels(self) -> tuple[int, int]:
        """The first two sizes of the weight."""

    @abstractmethod
    def convolved(self, x: Node, weight: Node, bias: Node | None) -> Node:
        """``x`` by these parameters."""

    def __call__(self, x: Node) -> Node:
        """``x`` (batch, inputs, *spatial) as (batch, outputs, *spatial)."""
        graph = x.graph
        with scope(graph, self.name):
            check_width(f"{type(self).__name__} '{graph.current_scope}'", x, 1, self.inputs)
            sizes = (*self.channels, *numbers(self.kernel_size, self.axes, "kernel_size", 1))
            even = f"uniform({1.0 / math.sqrt(math.prod(sizes[1:]))!r})"
            weight = parameter(graph, "weight", sizes, x.dtype, self.init or even)
            bias = None
            if self.bias:
                start = self.init_bias or (even if self.init is None else "zeros")
                bias = parameter(graph, "bias", (self.outputs,), x.dtype, start)
            return self.convolved(x, weight, bias)


@dataclass(frozen=True)
class Conv(Convolution):
    """A kernel moved over ``x``; the weight is (outputs, inputs / groups, *kernel)."""

    @property
    def channels(self) -> tuple[int, int]:
        """The first two sizes of the weight."""
        return self.outputs, self.inputs // self.groups

    def convolved(self, x: Node, weight: Node, bias: Node | None) -> Node:
        """``x`` by these parameters."""
        convolve = getattr(x, f"conv{self.axes}d")
        result: Node = convolve(
            weight,
            bias=bias,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
        )
        return result


@dataclass(frozen=True)
class ConvTranspose(Convolution):
    """The transpose of a convolution; the weight is (inputs, outputs / groups, *kernel).

    A size becomes ``(size - 1) * stride + dilation * (kernel - 1) + 1 + output_padding - 2 * padding``; ``output_padding``,
    below the stride, says which of the sizes that a convolution would make this one is meant.
    """

    _: KW_ONLY
    output_padding: Sizes = 0

    @property
    def channels(self) -> tuple[int, int]:
        """The first two sizes of the weight."""
        return self.inputs, self.outputs // self.groups

    def convolved(self, x: Node, weight: Node, bias: Node | None) -> Node:
        """``x`` by these parameters."""
        convolve = getattr(x, f"conv_transpose{self.axes}d")
        result: Node = convolve(
            weight,
            bias=bias,
            stride=self.stride,
            padding=self.padding,
            output_padding=self.output_padding,
            dilation=self.dilation,
            groups=self.groups,
        )
        return result


class Conv1d(Conv):
    """A convolution of (batch, inputs, length)."""

    axes = 1


class Conv2d(Conv):
    """A convolution of (batch, inputs, height, width)."""

    axes = 2


class Conv3d(Conv):
    """A convolution of (batch, inputs, depth, height, width)."""

    axes = 3


class ConvTranspose1d(ConvTranspose):
    """A transposed convolution of (batch, inputs, length)."""

    axes = 1


class ConvTranspose2d(ConvTranspose):
    """A transposed convolution of (batch, inputs, height, width)."""

    axes = 2


class ConvTranspose3d(ConvTranspose):
    """A transposed convolution of (batch, inputs, depth, height, width)."""

    axes = 3
