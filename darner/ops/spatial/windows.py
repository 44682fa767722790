"""What convolution, pooling and resampling share: padding, windows that must fit, flat tensors.

A spatial tensor is ``[batch, channels, *spatial]`` with any number of spatial axes. Settled
attributes have one entry for each of them: sizes, strides and dilations as integers, padding as
(low, high) pairs.

Batches of such tensors (``vmap``) go where there is room for them: beside the images, or beside the
channels of each group. ``merge_batch`` puts a batch there and ``split_batch`` takes it out again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from ...graph import dtypes
from ...graph.attributes import INTS, explain
from ...graph.dims import Dim, Shape, SymbolicDim, as_dim, product
from ...graph.errors import ArgumentError, DarnerError, ShapeError
from ...graph.node import Node
from ...graph.types import TensorType
from ..linalg.contract import per_axis, window_count
from ..shapes.primitives import certainly_less

PairsOf: TypeAlias = tuple[tuple[int, int], ...]


def spatial_axes(x: TensorType | Node, name: str = "x") -> int:
    """How many spatial axes a [batch, channels, *spatial] tensor has; at least one."""
    if x.rank < 3:
        raise ShapeError(
            f"{name} has rank {x.rank}, but is [batch, channels, spatial...]: at least 3 axes"
        )
    return x.rank - 2


def require_node(x: Any, name: str = "x") -> None:
    """Refuse what is not a node where a builder needs one."""
    if not isinstance(x, Node):
        raise ArgumentError(f"{name} must be a node, got {type(x).__name__}")


def require_axes(x: Any, count: int, name: str = "x", lead: str = "batch, channels") -> None:
    """Refuse a tensor that has not exactly ``count`` spatial axes behind its first two."""
    require_node(x, name)
    if x.rank != count + 2:
        spatial = ("length",) if count == 1 else ("depth", "height", "width")[-count:]
        raise ShapeError(f"{name} has rank {x.rank}, but must be [{lead}, {', '.join(spatial)}]")


def numbers(value: Any, count: int, name: str, least: int) -> tuple[int, ...]:
    """An attribute given to a builder as integers, one for each spatial axis."""
    try:
        values: tuple[int, ...] = INTS.coerce(value)
    except DarnerError as error:
        raise explain(name, error) from None
    return per_axis(values, count, name, least)


def pairs_per_axis(padding: PairsOf, count: int) -> PairsOf:
    """(low, high) padding for each spatial axis; a single pair stands for all."""
    padding = padding * count if len(padding) == 1 else padding
    if len(padding) != count:
        raise ArgumentError(f"padding has {len(padding)} entries for {count} spatial axes")
    if any(low < 0 or high < 0 for low, high in padding):
        raise ArgumentError(f"padding {padding} is negative", hint="crop with a slice")
    return padding


def fixed_sizes(sizes: Sequence[Dim], what: str) -> tuple[int, ...]:
    """Sizes that must be known while building, such as those of a kernel."""
    for size in sizes:
        if isinstance(size, SymbolicDim):
            raise ShapeError(f"{what} has the symbolic size {size}", hint="bind it first")
        if size < 1:
            raise ShapeError(f"{what} has size {size}, but needs at least 1")
    return tuple(int(size) for size in sizes)


def padded_sizes(sizes: Sequence[Dim], padding: PairsOf) -> Shape:
    """The spatial sizes with padding on both sides."""
    return tuple(size + low + high for size, (low, high) in zip(sizes, padding, strict=True))


def reach(window: int, dilation: int) -> int:
    """How many positions a dilated window spans."""
    return dilation * (window - 1) + 1


def window_counts(
    sizes: Sequence[Dim],
    window: Sequence[int],
    stride: Sequence[int],
    padding: PairsOf,
    dilation: Sequence[int],
    what: str,
) -> Shape:
    """How many windows each axis has; an axis with none is an error."""
    counts = []
    for axis, total in enumerate(padded_sizes(sizes, padding)):
        span = reach(window[axis], dilation[axis])
        if certainly_less(total, span):
            dilated = "" if dilation[axis] == 1 else f" (dilated to {span})"
            padded = "" if total == sizes[axis] else f" (padded to {total})"
            raise ShapeError(
                f"{what} {window[axis]}{dilated} does not fit size {sizes[axis]}{padded} "
                f"on spatial axis {axis}"
            )
        counts.append(window_count(total, window[axis], stride[axis], dilation[axis]))
    return tuple(counts)


def settle(
    count: int, stride: tuple[int, ...], padding: PairsOf, dilation: tuple[int, ...]
) -> dict[str, Any]:
    """Stride, padding and dilation with one entry for each spatial axis."""
    return {
        "stride": per_axis(stride, count, "stride", 1),
        "padding": pairs_per_axis(padding, count),
        "dilation": per_axis(dilation, count, "dilation", 1),
    }


# --------------------------------------------------------------------------- nodes


def padded(x: Node, padding: PairsOf, value: float = 0.0) -> Node:
    """``x`` with padding around its last axes (negative padding crops)."""
    if not any(low or high for low, high in padding):
        return x
    result: Node = x.pad(((0, 0),) * (x.rank - len(padding)) + padding, value)
    return result


def cropped(x: Node, padding: PairsOf) -> Node:
    """``x`` without the padding of its last axes."""
    return padded(x, tuple((-low, -high) for low, high in padding))


def widened(x: Node) -> Node:
    """``x`` in f32 if it has 16 bits: for sums of several steps, which then round once."""
    result: Node = x.cast(dtypes.f32) if x.dtype.is_half else x
    return result


def last_axes(x: Node, count: int) -> tuple[int, ...]:
    """The numbers of the last ``count`` axes."""
    return tuple(range(x.rank - count, x.rank))


# --------------------------------------------------------------------------- batches


def merge_batch(x: Node, axis: int = 0, groups: int = 1) -> Node:
    """A batch of tensors, along axis 0, as one: the batch goes into ``axis`` of each tensor.

    There it comes behind the groups that the axis consists of, so that each group has its batch.
    """
    size, *sizes = x.shape
    before, each, after = sizes[:axis], sizes[axis], sizes[axis + 1 :]
    if groups > 1:
        x = x.reshape((size, *before, groups, each // groups, *after))
        axis += 1
    if axis:
        x = x.transpose((*range(1, axis + 1), 0, *range(axis + 1, x.rank)))
    result: Node = x.reshape((*before, size * each, *after))
    return result


def split_batch(x: Node, size: Dim, each: Dim, axis: int = 0, groups: int = 1) -> Node:
    """The inverse of ``merge_batch``, where a tensor of the batch has size ``each`` on ``axis``."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    inner = (groups, size, each // groups) if groups > 1 else (size, each)
    x = x.reshape((*before, *inner, *after))
    axis += groups > 1
    if axis:
        x = x.transpose((axis, *range(axis), *range(axis + 1, x.rank)))
    if groups > 1:
        x = x.reshape((size, *before, each, *after))
    return x


# --------------------------------------------------------------------------- flat tensors


def is_size(value: Any) -> bool:
    """Whether an argument is one size: what tells a flat call from an N-d one."""
    return hasattr(value, "__index__") and not isinstance(value, bool)


def unflattened(x: Node, shape: Sequence[Any], name: str = "x") -> Node:
    """A flat NCHW tensor under its real shape."""
    require_node(x, name)
    sizes = tuple(as_dim(size) for size in shape)
    if x.size != product(sizes):
        shown = " * ".join(map(str, sizes))
        raise ShapeError(f"{name} has {x.size} elements, but {shown} are {product(sizes)}")
    result: Node = x.reshape(sizes)
    return result


def flattened(x: Node) -> Node:
    """All elements along one axis."""
    result: Node = x.reshape((x.size,))
    return result
