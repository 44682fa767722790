"""Convolution of flat tensors, as Meganeura writes it: NCHW along one axis, sizes as integers.

The row of integers is always ``batch, in_channels, in_h, in_w, out_channels, kernel_h, kernel_w,
stride, padding``, that of the convolution itself, in its gradients too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...graph.attributes import PAIRS
from ...graph.dims import Dim, as_dim
from ...graph.node import Node
from .conv import conv
from .windows import fixed_sizes, flattened, numbers, settle, unflattened, window_counts


@dataclass(frozen=True)
class Geometry:
    """The shapes and attributes that a row of integers stands for."""

    batch: Dim
    in_channels: Dim
    out_channels: Dim
    sizes: tuple[Dim, ...]
    kernel: tuple[int, ...]
    attrs: dict[str, Any]

    @classmethod
    def read(cls, row: Sequence[Any]) -> Geometry:
        """Nine integers, or ten with padding for rows and for columns; the tenth may be None."""
        batch, in_channels, in_h, in_w, out_channels, kernel_h, kernel_w, stride, *padding = row
        rows, columns = padding[0], padding[-1]
        pads = (rows, rows if columns is None else columns)
        return cls(
            as_dim(batch),
            as_dim(in_channels),
            as_dim(out_channels),
            (as_dim(in_h), as_dim(in_w)),
            fixed_sizes((as_dim(kernel_h), as_dim(kernel_w)), "the kernel"),
            settle(2, numbers(stride, 2, "stride", 1), PAIRS.coerce(pads), (1,)),
        )

    def image(self, x: Node) -> Node:
        """The input under its real shape."""
        return unflattened(x, (self.batch, self.in_channels, *self.sizes))

    def weight(self, kernel: Node) -> Node:
        """The kernel under its real shape."""
        return unflattened(kernel, (self.out_channels, self.in_channels, *self.kernel), "kernel")

    def cotangent(self, dy: Node) -> Node:
        """A gradient under the shape of the convolution's result."""
        counts = window_counts(self.sizes, self.kernel, **self.attrs, what="kernel")
        return unflattened(dy, (self.batch, self.out_channels, *counts), "dy")


def flat_conv2d(x: Node, kernel: Node, row: Sequence[Any]) -> Node:
    """``conv2d`` of flat tensors; see ``Geometry.read`` for the row of integers."""
    geometry = Geometry.read(row)
    return flattened(conv(geometry.image(x), geometry.weight(kernel), **geometry.attrs))
