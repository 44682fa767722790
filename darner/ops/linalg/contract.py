"""Contractions and sliding windows: the primitives with real arithmetic in them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graph import dtypes
from ...graph.attributes import Ints, Number, Sizes, Tensor, normalize_axes
from ...graph.data import Array
from ...graph.dims import Dim, product
from ...graph.errors import ArgumentError, ShapeError
from ...graph.facts import Facts
from ...graph.node import Node
from ...graph.op import Resolved, primitive, resolved
from ...graph.types import TensorType
from ..axes import to_front
from ..samples import ints, sample, spec
from ..shapes.primitives import certainly_less, transpose

FAMILY = "contraction"


@primitive(
    family=FAMILY,
    facts=Facts(role="contract", whole=True, reads_all=True, full_rate=True, multiplies=("a", "b")),
    samples=[
        sample(spec(3, 5), spec(5, 4), (1,), (0,)),
        sample(spec(2, 3, 5), spec(2, 4, 5), (2,), (2,), (0,), (0,)),
        sample(spec(3, 5), spec(3, 5), (0, 1), (0, 1)),
        sample(spec(3), spec(4), (), ()),
        sample(spec(2, 3, 4, 5), spec(5, 3, 2, 6), (3,), (0,), (1, 0), (1, 2)),
        sample(spec(3, 0), spec(0, 2), (1,), (0,)),
        sample(spec(0, 3), spec(3, 2), (-1,), (-2,)),
        sample(
            ints(3, 4, low=-9, high=9, dtype="i8"),
            ints(4, 2, low=-9, high=9, dtype="i8"),
            (1,),
            (0,),
        ),
    ],
)
def dot_general(
    a: Number,
    b: Number,
    a_contract: Ints,
    b_contract: Ints,
    a_batch: Ints = (),
    b_batch: Ints = (),
) -> Resolved:
    """Products summed over the contracted axes, separately for each index of the batch axes.

    The result's axes: batch (in the order given), what is left of ``a``, what is left of ``b``. Integers below 32 bits sum to i32.
    """
    settled = {
        "a_contract": normalize_axes(a_contract, a.rank),
        "b_contract": normalize_axes(b_contract, b.rank),
        "a_batch": normalize_axes(a_batch, a.rank),
        "b_batch": normalize_axes(b_batch, b.rank),
    }
    for name, left, right in (
        ("contract", settled["a_contract"], settled["b_contract"]),
        ("batch", settled["a_batch"], settled["b_batch"]),
    ):
        if len(left) != len(right):
            raise ArgumentError(f"a has {len(left)} axes to {name} and b has {len(right)}")
        for i, j in zip(left, right, strict=True):
            if a.shape[i] != b.shape[j]:
                raise ShapeError(f"sizes {a.shape[i]} and {b.shape[j]} of the {name} axes differ")
    free: list[Dim] = [a.shape[i] for i in settled["a_batch"]]
    for operand, side in ((a, "a"), (b, "b")):
        used = (*settled[f"{side}_contract"], *settled[f"{side}_batch"])
        if len(set(used)) != len(used):
            raise ArgumentError(f"an axis of {side} is both contracted and a batch axis")
        free += [size for i, size in enumerate(operand.shape) if i not in used]
    return resolved(TensorType(tuple(free), dtypes.accumulator(a.dtype)), **settled)


@dot_general.reference
def _(a: Array, b: Array, a_contract: Any, b_contract: Any, a_batch: Any, b_batch: Any) -> Array:
    wide = dtypes.accumulator(dtypes.dtype(a.dtype)).numpy
    a_free = [i for i in range(a.ndim) if i not in (*a_contract, *a_batch)]
    b_free = [i for i in range(b.ndim) if i not in (*b_contract, *b_batch)]
    left = np.transpose(a.astype(wide), (*a_batch, *a_free, *a_contract))
    right = np.transpose(b.astype(wide), (*b_batch, *b_contract, *b_free))
    batch = [a.shape[i] for i in a_batch]
    inner = int(np.prod([a.shape[i] for i in a_contract]))
    rows, columns = [a.shape[i] for i in a_free], [b.shape[i] for i in b_free]
    # The order of summation inside NumPy follows the layout, so that is fixed.
    flat = np.matmul(
        np.ascontiguousarray(left.reshape((*batch, int(np.prod(rows)), inner))),
        np.ascontiguousarray(right.reshape((*batch, inner, int(np.prod(columns))))),
    )
    return flat.reshape((*batch, *rows, *columns))


@dot_general.cost
def _(a: TensorType, b: TensorType, a_contract: Any, **attrs: Any) -> Dim:
    batch = product([a.shape[i] for i in attrs["a_batch"]])
    inner = product([a.shape[i] for i in a_contract])
    b_used = (*attrs["b_contract"], *attrs["b_batch"])
    columns = product([size for i, size in enumerate(b.shape) if i not in b_used])
    rows = product(
        [size for i, size in enumerate(a.shape) if i not in (*a_contract, *attrs["a_batch"])]
    )
    return 2 * batch * rows * columns * inner


@dot_general.vjp
def _(
    g: Node,
    out: Node,
    a: Node,
    b: Node,
    a_contract: Any,
    b_contract: Any,
    a_batch: Any,
    b_batch: Any,
) -> Any:
    # Axes of the result: batch, what is left of a, what is left of b.
    split = a.rank - len(a_contract)
    batch = tuple(range(len(a_batch)))
    rows, columns = tuple(range(len(batch), split)), tuple(range(split, g.rank))
    return {
        "a": lambda: _pulled_back(
            g, batch, rows, columns, b, b_batch, b_contract, a, a_batch, a_contract
        ),
        "b": lambda: _pulled_back(
            g, batch, columns, rows, a, a_batch, a_contract, b, b_batch, b_contract
        ),
    }


def _pulled_back(  # many parameters: three tensors, each with its axes by their part
    g: Node,
    g_batch: tuple[int, ...],
    g_own: tuple[int, ...],
    g_other: tuple[int, ...],
    other: Node,
    other_batch: tuple[int, ...],
    other_contract: tuple[int, ...],
    x: Node,
    x_batch: tuple[int, ...],
    x_contract: tuple[int, ...],
) -> Node:
    """What ``x`` receives: the cotangent times the other operand, summed over that one's own axes."""
    other_free = _free(other.rank, other_batch, other_contract)
    summed = sorted(other_contract)
    # Axes of x in the order in which a product has them: batch, then those of each factor.
    own = _free(x.rank, x_batch, x_contract)
    contracted = tuple(x_contract[other_contract.index(i)] for i in summed)
    first = (*x_batch, *own, *contracted)
    second = (*x_batch, *contracted, *own)
    if second == tuple(range(x.rank)) != first:
        # The order of operands that needs no transpose.
        return dot_general(other, g, other_free, g_other, other_batch, g_batch)
    result: Node = dot_general(g, other, g_other, other_free, g_batch, other_batch)
    if first == tuple(range(x.rank)):
        return result
    return transpose(result, tuple(map(first.index, range(x.rank))))


def _free(rank: int, batch: tuple[int, ...], contract: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(i for i in range(rank) if i not in (*batch, *contract))


@dot_general.vmap
def _(
    size: Dim,
    batched: dict[str, Any],
    a: Node,
    b: Node,
    a_contract: Any,
    b_contract: Any,
    a_batch: Any,
    b_batch: Any,
) -> Node:
    if batched["a"]:
        a_contract, a_batch = _later(a_contract), _later(a_batch)
    if batched["b"]:
        b_contract, b_batch = _later(b_contract), _later(b_batch)
    if batched["a"] and batched["b"]:
        return dot_general(a, b, a_contract, b_contract, (0, *a_batch), (0, *b_batch))
    # The one batch axis is an axis of its operand like any other: the first of those left.
    result: Node = dot_general(a, b, a_contract, b_contract, a_batch, b_batch)
    return to_front(result, len(a_batch) if batched["a"] else a.rank - len(a_contract))


def _later(axes: tuple[int, ...]) -> tuple[int, ...]:
    """Axes of a tensor that has gained one in front."""
    return tuple(axis + 1 for axis in axes)


def per_axis(values: tuple[int, ...], count: int, name: str, least: int) -> tuple[int, ...]:
    """One value for each spatial axis; a single one stands for all."""
    values = values * count if len(values) == 1 else values
    if len(values) != count:
        raise ArgumentError(f"{name} has {len(values)} entries for {count} spatial axes")
    if any(value < least for value in values):
        raise ArgumentError(f"{name} {values} must be at least {least}")
    return values


def window_count(size: Dim, window: int, stride: int, dilation: int) -> Dim:
    """How many windows fit along an axis."""
    reach = dilation * (window - 1) + 1
    if isinstance(size, int):
        if size < reach:
            return 0
        return (size - reach) // stride + 1
    return (size - reach) + 1 if stride == 1 else (size - reach) // stride + 1


@primitive(
    family=FAMILY,
    facts=Facts(role="view", selects=True),
    samples=[
        sample(spec(2, 3, 7), (3,)),
        sample(spec(2, 6, 5), (2, 3)),
        sample(spec(2, 3, 7, 6), (3, 2), (2, 1)),
        sample(spec(9), (3,), 2, 2),
        sample(spec(1, 2), (3,)),
        sample(spec(0, 5), (2,)),
    ],
)
def windows(x: Tensor, window: Ints, stride: Ints = (1,), dilation: Ints = (1,)) -> Resolved:
    """Sliding windows over the last axes: their counts stay in place, and window axes are added at the end.

    A (batch, channel, height, width) tensor with a (kh, kw) window becomes (batch, channel, rows, columns, kh, kw).
    """
    count = len(window)
    if count == 0 or count > x.rank:
        raise ArgumentError(f"a window of {count} axes over a tensor of rank {x.rank}")
    window = per_axis(window, count, "window", 1)
    stride = per_axis(stride, count, "stride", 1)
    dilation = per_axis(dilation, count, "dilation", 1)
    lead, spatial = x.shape[:-count], x.shape[-count:]
    counts = map(window_count, spatial, window, stride, dilation)
    shape = (*lead, *counts, *window)
    return resolved(x.with_shape(shape), window=window, stride=stride, dilation=dilation)


@windows.reference
def _(x: Array, window: Any, stride: Any, dilation: Any) -> Array:
    count = len(window)
    lead = x.ndim - count
    spatial = x.shape[lead:]
    counts = tuple(
        int(window_count(n, *w)) for n, *w in zip(spatial, window, stride, dilation, strict=True)
    )
    if 0 in counts:
        return np.zeros((*x.shape[:lead], *counts, *window), x.dtype)
    steps = x.strides[lead:]
    outer = tuple(s * n for s, n in zip(steps, stride, strict=True))
    inner = tuple(s * n for s, n in zip(steps, dilation, strict=True))
    return np.lib.stride_tricks.as_strided(
        x,
        (*x.shape[:lead], *counts, *window),
        (*x.strides[:lead], *outer, *inner),
        writeable=False,
    )


@windows.vjp
def _(g: Node, out: Node, x: Node, window: Any, stride: Any, dilation: Any) -> Node:
    return fold(g, x.shape[-len(window) :], stride, dilation)


@windows.vmap
def _(size: Dim, batched: dict[str, Any], x: Node, window: Any, stride: Any, dilation: Any) -> Node:
    return windows(x, window, stride, dilation)


@primitive(
    family=FAMILY,
    facts=Facts(role="index"),
    samples=[
        sample(spec(2, 3, 5, 3), (7,)),
        sample(spec(2, 5, 3, 2, 3), (6, 5)),
        sample(spec(2, 3, 3, 5, 3, 2), (7, 6), (2, 1)),
        sample(spec(3, 3), (9,), 2, 2),
        sample(spec(1, 0, 3), (2,)),
    ],
)
def fold(x: Number, sizes: Sizes, stride: Ints = (1,), dilation: Ints = (1,)) -> Resolved:
    """Windows added back to where they came from: the transpose of ``windows`` over axes of ``sizes``."""
    count = len(sizes)
    if count == 0 or 2 * count > x.rank:
        raise ArgumentError(f"{count} sizes for a tensor of rank {x.rank}")
    stride = per_axis(stride, count, "stride", 1)
    dilation = per_axis(dilation, count, "dilation", 1)
    lead = x.shape[: -2 * count]
    counts, window = x.shape[-2 * count : -count], x.shape[-count:]
    for i in range(count):
        if certainly_less(sizes[i], 0):
            raise ShapeError(f"size {sizes[i]} is negative")
        fits = window_count(sizes[i], int(window[i]), stride[i], dilation[i])
        if fits != counts[i]:
            raise ShapeError(
                f"an axis of size {sizes[i]} has {fits} windows of {window[i]}, not {counts[i]}"
            )
    return resolved(x.with_shape((*lead, *sizes)), stride=stride, dilation=dilation)


@fold.reference
def _(x: Array, sizes: Any, stride: Any, dilation: Any) -> Array:
    count = len(sizes)
    lead = x.ndim - 2 * count
    counts, window = x.shape[lead : lead + count], x.shape[lead + count :]
    result = np.zeros((*x.shape[:lead], *sizes), x.dtype)
    if 0 in counts:
        return result
    for offset in np.ndindex(*window):
        first = [o * d for o, d in zip(offset, dilation, strict=True)]
        place: Any = (
            ...,
            *(
                slice(f, f + (n - 1) * s + 1, s)
                for f, n, s in zip(first, counts, stride, strict=True)
            ),
        )
        result[place] += x[(..., *offset)]
    return result


@fold.vjp
def _(g: Node, out: Node, x: Node, sizes: Any, stride: Any, dilation: Any) -> Node:
    return windows(g, x.shape[-len(sizes) :], stride, dilation)


@fold.vmap
def _(size: Dim, batched: dict[str, Any], x: Node, sizes: Any, stride: Any, dilation: Any) -> Node:
    return fold(x, sizes, stride, dilation)
