"""Reading and adding by index; sorting."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.attributes import Axis, Index, Number, Real, Size, Sizes, Tensor, normalize_axes
from ..graph.data import Array
from ..graph.dims import Dim, format_shape
from ..graph.errors import ArgumentError, RunError, ShapeError
from ..graph.op import Resolved, primitive, resolved
from ..graph.types import TensorType
from .samples import ints, sample, spec

FAMILY = "index"


def check_indices(indices: Array, size: int) -> None:
    """Refuse indices outside 0..size-1, naming the first."""
    wrong = (indices < 0) | (indices >= size)
    if wrong.any():
        first = indices[wrong].flat[0]
        if size == 0:
            raise RunError(f"index {first}: the axis has no elements")
        raise RunError(f"index {first} is outside 0..{size - 1}")


@primitive(
    family=FAMILY,
    samples=[
        sample(spec(7, 3), ints(5, high=7)),
        sample(spec(7, 3), ints(2, 4, high=7, dtype="u32")),
        sample(spec(2, 5, 3), ints(4, high=5), 1),
        sample(spec(2, 5), ints(high=5), -1),
        sample(spec(4, 0), ints(3, high=4)),
        sample(spec(4), ints(0, high=1)),
    ],
)
def gather(table: Tensor, indices: Index, axis: Axis = 0) -> TensorType:
    """Slices of ``table`` along ``axis``, one for each index; the indices' axes take that axis' place.

    Indices must lie in 0..size-1.
    """
    if table.rank == 0:
        raise ShapeError("a scalar has nothing to index")
    shape = (*table.shape[:axis], *indices.shape, *table.shape[axis + 1 :])
    return table.with_shape(shape)


@gather.reference
def _(table: Array, indices: Array, axis: int) -> Array:
    check_indices(indices, table.shape[axis])
    return np.take(table, indices, axis)


@primitive(
    family=FAMILY,
    samples=[
        sample(ints(5, high=7), spec(5, 3), 7),
        sample(ints(2, 3, high=4, dtype="u32"), spec(2, 3, 5), 4),
        sample(ints(4, high=3), spec(2, 4, 3), 3, axis=1),
        sample(ints(4, high=3), spec(2, 4), 3, axis=-1),
        sample(ints(high=3), spec(2), 3),
        sample(ints(0, high=1), spec(0, 2), 3),
        sample(ints(6, high=2), ints(6, high=9), 2),
    ],
)
def scatter_add(indices: Index, src: Number, size: Size, *, axis: int = 0) -> Resolved:
    """Slices of ``src`` added up by index into a tensor of zeros with ``size`` entries along ``axis``.

    The transpose of ``gather``: ``result[indices[i]] += src[i]``. Repeated indices accumulate, in order.
    """
    rank = src.rank - indices.rank + 1
    if rank < 1:
        raise ShapeError(f"src needs at least the {indices.rank} axes of indices")
    axis = normalize_axes(axis, rank)
    place = src.shape[axis : axis + indices.rank]
    if place != indices.shape:
        raise ShapeError(
            f"src has sizes {format_shape(place)} at axis {axis}, indices {format_shape(indices.shape)}"
        )
    if isinstance(size, int) and size < 0:
        raise ShapeError(f"size {size} is negative")
    shape = (*src.shape[:axis], size, *src.shape[axis + indices.rank :])
    return resolved(src.with_shape(shape), axis=axis)


@scatter_add.reference
def _(indices: Array, src: Array, size: int, axis: int) -> Array:
    check_indices(indices, size)
    shape = (*src.shape[:axis], size, *src.shape[axis + indices.ndim :])
    result = np.zeros(shape, src.dtype)
    place: Any = (*(slice(None),) * axis, indices)
    np.add.at(result, place, src)
    return result


def _along(x: TensorType, indices: TensorType, axis: int) -> None:
    if indices.rank != x.rank:
        raise ShapeError(f"ranks {x.rank} and {indices.rank} differ")
    for i, (a, b) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if i != axis and a != b:
            raise ShapeError(f"sizes {a} and {b} on axis {i} differ")


@primitive(
    family=FAMILY,
    samples=[
        sample(spec(3, 5), ints(3, 2, high=5), 1),
        sample(spec(3, 5), ints(4, 5, high=3), 0),
        sample(spec(2, 3, 4), ints(2, 3, 1, high=4)),
        sample(spec(0, 3), ints(0, 2, high=3)),
    ],
)
def take_along_axis(x: Tensor, indices: Index, axis: Axis = -1) -> TensorType:
    """For each position, the element of ``x`` whose place along ``axis`` the index gives."""
    _along(x, indices, axis)
    return x.with_shape(indices.shape)


@take_along_axis.reference
def _(x: Array, indices: Array, axis: int) -> Array:
    check_indices(indices, x.shape[axis])
    return np.take_along_axis(x, indices.astype(np.int64), axis)


@primitive(
    family=FAMILY,
    samples=[
        sample(ints(3, 2, high=5), spec(3, 2), 5, 1),
        sample(ints(4, 5, high=3), spec(4, 5), 3, 0),
        sample(ints(0, 2, high=3), spec(0, 2), 3),
    ],
)
def scatter_add_along_axis(indices: Index, src: Number, size: Size, axis: Axis = -1) -> TensorType:
    """Each element of ``src`` added to zeros at the place along ``axis`` that its index gives."""
    if indices.shape != src.shape:
        raise ShapeError("indices and src must have equal shapes")
    shape: list[Dim] = list(src.shape)
    shape[axis] = size
    return src.with_shape(shape)


@scatter_add_along_axis.reference
def _(indices: Array, src: Array, size: int, axis: int) -> Array:
    check_indices(indices, size)
    shape = list(src.shape)
    shape[axis] = size
    result = np.zeros(shape, src.dtype)
    place: list[Any] = list(np.indices(src.shape, sparse=True))
    place[axis] = indices
    np.add.at(result, tuple(place), src)
    return result


@primitive(
    family=FAMILY,
    samples=[
        sample(spec(5, 7), ints(2, high=4), (2, 3)),
        sample(spec(5, 7), ints(2, low=-3, high=12, dtype="i64"), (4, 1)),
        sample(spec(6), ints(1, high=3, dtype="u32"), (0,)),
    ],
)
def dynamic_slice(x: Tensor, starts: Index, sizes: Sizes) -> TensorType:
    """A block of fixed ``sizes`` at a position computed in the graph (one entry of ``starts`` an axis).

    Starts are moved so that the block lies inside ``x``.
    """
    _check_block(x, starts, sizes)
    return x.with_shape(sizes)


def _check_block(x: TensorType, starts: TensorType, sizes: tuple[Dim, ...]) -> None:
    if starts.shape != (x.rank,):
        raise ShapeError(f"starts must have shape ({x.rank},), one entry for each axis of x")
    if len(sizes) != x.rank:
        raise ShapeError(f"{len(sizes)} sizes for a tensor of rank {x.rank}")
    for axis, (size, whole) in enumerate(zip(sizes, x.shape, strict=True)):
        if isinstance(size, int) and size < 0:
            raise ShapeError(f"size {size} is negative")
        if isinstance(size, int) and isinstance(whole, int) and size > whole:
            raise ShapeError(f"a block of {size} does not fit axis {axis} of size {whole}")


def _place(starts: Array, sizes: Any, whole: tuple[int, ...]) -> tuple[slice, ...]:
    first = [int(np.clip(int(s), 0, w - n)) for s, n, w in zip(starts, sizes, whole, strict=True)]
    return tuple(slice(a, a + n) for a, n in zip(first, sizes, strict=True))


@dynamic_slice.reference
def _(x: Array, starts: Array, sizes: tuple[int, ...]) -> Array:
    return x[_place(starts, sizes, x.shape)]


@primitive(
    family=FAMILY,
    samples=[
        sample(spec(5, 7), spec(2, 3), ints(2, high=4)),
        sample(spec(5, 7), spec(4, 1), ints(2, low=-3, high=12, dtype="i64")),
        sample(spec(6), spec(0), ints(1, high=3, dtype="u32")),
    ],
)
def dynamic_update_slice(x: Tensor, update: Tensor, starts: Index) -> TensorType:
    """``x`` with a block replaced at a position computed in the graph; see ``dynamic_slice``."""
    _check_block(x, starts, update.shape)
    return x


@dynamic_update_slice.reference
def _(x: Array, update: Array, starts: Array) -> Array:
    result = x.copy()
    result[_place(starts, update.shape, x.shape)] = update
    return result


_SORTED = [
    sample(spec(3, 7, distinct=True)),
    sample(spec(5, 4, distinct=True), 0),
    sample(spec(2, 3, 4, distinct=True), -2, True),
    sample(ints(20, high=5), 0, True),
    sample(ints(20, high=5)),
    sample(spec(0, 3), 0),
    sample(spec(3, 1)),
]


@primitive(family=FAMILY, samples=_SORTED)
def sort(x: Real, axis: Axis = -1, descending: bool = False) -> TensorType:
    """The elements along ``axis`` in order; NaN sorts above everything."""
    return x


@primitive(family=FAMILY, samples=_SORTED)
def argsort(x: Real, axis: Axis = -1, descending: bool = False) -> TensorType:
    """The indices (i32) that put the elements along ``axis`` in order. Equal elements keep theirs."""
    return x.with_dtype(dtypes.i32)


def _order(x: Array, axis: int, descending: bool) -> Array:
    if not descending:
        return np.argsort(x, axis, kind="stable")
    # Sorting the reversed array and reversing the answer keeps equal elements in their order.
    backwards = np.argsort(np.flip(x, axis), axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - backwards, axis)


@sort.reference
def _(x: Array, axis: int, descending: bool) -> Array:
    return np.take_along_axis(x, _order(x, axis, descending), axis)


@argsort.reference
def _(x: Array, axis: int, descending: bool) -> Array:
    return _order(x, axis, descending)


@primitive(
    family=FAMILY,
    samples=[
        sample(spec(3, 7, distinct=True), 3),
        sample(spec(5, 4, distinct=True), 2, 0),
        sample(spec(6, distinct=True), 6),
        sample(spec(2, 5), 0),
        sample(ints(4, 9, high=1000), 4),
    ],
)
def top_k(x: Real, k: int, axis: Axis = -1) -> tuple[TensorType, TensorType]:
    """The ``k`` largest elements along ``axis``, largest first, and their indices (i32).

    Among equal elements the one with the lower index comes first.
    """
    size = x.shape[axis]
    if k < 0 or (isinstance(size, int) and k > size):
        raise ArgumentError(f"k={k} is outside 0..{size}, the size of axis {axis}")
    shape = [k if i == axis else d for i, d in enumerate(x.shape)]
    return x.with_shape(shape), TensorType(tuple(shape), dtypes.i32)


@top_k.reference
def _(x: Array, k: int, axis: int) -> tuple[Array, Array]:
    order = np.take(_order(x, axis, True), np.arange(k), axis)
    return np.take_along_axis(x, order, axis), order
