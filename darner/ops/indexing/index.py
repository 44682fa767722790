"""Reading and adding by index, element by element or in blocks."""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

import numpy as np

from ...graph import dtypes
from ...graph.attributes import Axis, Index, Number, Size, Sizes, Tensor, normalize_axes
from ...graph.data import Array
from ...graph.dims import Dim, format_shape, product
from ...graph.errors import ShapeError
from ...graph.facts import RESULT, Facts
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import Resolved, primitive, resolved
from ...graph.types import TensorType
from ..axes import spread, to_front
from ..elementwise.arithmetic import where
from ..faults import check_indices
from ..samples import ints, sample, spec
from ..shapes.primitives import broadcast_to, concat, reshape

FAMILY = "index"


@primitive(
    family=FAMILY,
    facts=Facts(
        role="point", reads_part_of="table", fails_on="index", indexes="table", effort="some"
    ),
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


@gather.vjp
def _(g: Node, out: Node, table: Node, indices: Node, axis: int) -> Any:
    return {"table": lambda: scatter_add(indices, g, table.shape[axis], axis=axis)}


@gather.vmap
def gather_batch(size: Dim, batched: dict[str, Any], table: Node, indices: Node, axis: int) -> Node:
    """``gather`` over a batch of tables, of indices, or of both."""
    if not batched["indices"]:
        return gather(table, indices, axis + 1)
    if not batched["table"]:
        return to_front(gather(table, indices, axis), axis)
    places = _along_slices(indices, table.shape[1 : axis + 1], table.shape[axis + 2 :])
    found = take_along_axis(table, places, axis + 1)
    shape = (*table.shape[: axis + 1], *indices.shape[1:], *table.shape[axis + 2 :])
    return reshape(found, shape)


def _along_slices(indices: Node, before: tuple[Dim, ...], after: tuple[Dim, ...]) -> Node:
    """Indices of each element of a batch, in one row that is repeated along the other axes of slices."""
    size, *rest = indices.shape
    count = product(rest)
    row = reshape(indices, (size, *(1,) * len(before), count, *(1,) * len(after)))
    result: Node = broadcast_to(row, (size, *before, count, *after))
    return result


@primitive(
    family=FAMILY,
    facts=Facts(role="index", ends=True, fails_on="index", indexes=RESULT),
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


@scatter_add.vjp
def _(g: Node, out: Node, indices: Node, src: Node, size: Dim, axis: int) -> Any:
    return {"src": lambda: gather(g, indices, axis)}


@scatter_add.vmap
def _(count: Dim, batched: dict[str, Any], indices: Node, src: Node, size: Dim, axis: int) -> Node:
    if not batched["indices"]:
        return scatter_add(indices, src, size, axis=axis + 1)
    src = src if batched["src"] else spread(src, count)
    before, after = src.shape[1 : axis + 1], src.shape[axis + indices.rank :]
    places = _along_slices(indices, before, after)
    return scatter_add_along_axis(places, reshape(src, places.shape), size, axis + 1)


def _along(x: TensorType, indices: TensorType, axis: int) -> None:
    if indices.rank != x.rank:
        raise ShapeError(f"ranks {x.rank} and {indices.rank} differ")
    for i, (a, b) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if i != axis and a != b:
            raise ShapeError(f"sizes {a} and {b} on axis {i} differ")


@primitive(
    family=FAMILY,
    facts=Facts(role="point", reads_part_of="x", fails_on="index", indexes="x", effort="some"),
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


@take_along_axis.vjp
def _(g: Node, out: Node, x: Node, indices: Node, axis: int) -> Any:
    return {"x": lambda: scatter_add_along_axis(indices, g, x.shape[axis], axis)}


@take_along_axis.vmap
def _(size: Dim, batched: dict[str, Any], x: Node, indices: Node, axis: int) -> Node:
    x = x if batched["x"] else spread(x, size)
    indices = indices if batched["indices"] else spread(indices, size)
    return take_along_axis(x, indices, axis + 1)


@primitive(
    family=FAMILY,
    facts=Facts(role="index", fails_on="index", indexes=RESULT),
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


@scatter_add_along_axis.vjp
def _(g: Node, out: Node, indices: Node, src: Node, size: Dim, axis: int) -> Any:
    return {"src": lambda: take_along_axis(g, indices, axis)}


@scatter_add_along_axis.vmap
def _(count: Dim, batched: dict[str, Any], indices: Node, src: Node, size: Dim, axis: int) -> Node:
    indices = indices if batched["indices"] else spread(indices, count)
    src = src if batched["src"] else spread(src, count)
    return scatter_add_along_axis(indices, src, size, axis + 1)


# --------------------------------------------------------------------------- blocks


@primitive(
    family=FAMILY,
    facts=Facts(role="point", reads_part_of="x"),
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


@dynamic_slice.vjp
def _(g: Node, out: Node, x: Node, starts: Node, sizes: tuple[Dim, ...]) -> Any:
    return {"x": lambda: dynamic_update_slice(x.graph.zeros(x.shape, x.dtype), g, starts)}


@dynamic_slice.vmap
def _(size: Dim, batched: dict[str, Any], x: Node, starts: Node, sizes: tuple[Dim, ...]) -> Node:
    if not batched["starts"]:
        return dynamic_slice(x, _from_zero(starts), (size, *sizes))
    x = x if batched["x"] else spread(x, size)
    for axis, start in _moving_axes(x.shape, sizes, starts):
        places = start + _count_along(x, axis, sizes[axis - 1])
        x = take_along_axis(x, broadcast_to(places, _resized(x, axis, sizes[axis - 1])), axis)
    return x


def _from_zero(starts: Node) -> Node:
    """Starts of a block that has all of a new first axis."""
    result: Node = concat([starts.graph.zeros((1,), starts.dtype), starts])
    return result


def _moving_axes(
    whole: tuple[Dim, ...], sizes: tuple[Dim, ...], starts: Node
) -> list[tuple[int, Node]]:
    """The axes along which the blocks of a batch can lie anywhere, and where they begin (i32)."""
    found = []
    rank = len(whole)
    for axis, (size, inside) in enumerate(zip(whole[1:], sizes, strict=True), start=1):
        if size == inside:
            continue
        own = reshape(starts[:, axis - 1], (whole[0], *(1,) * (rank - 1)))
        if own.dtype.bits < 32:
            own = as_i32(own)  # the size need not fit in less
        kept = own.maximum(0).minimum(as_number(starts.graph, size - inside))
        found.append((axis, as_i32(kept)))
    return found


def as_i32(x: Node) -> Node:
    """Integers as i32, which is what indices are computed in."""
    return x if x.dtype is dtypes.i32 else x.cast(dtypes.i32)


def as_number(graph: Graph, size: Dim) -> Any:
    """A size as an operand of arithmetic; a symbolic one is counted when the graph runs."""
    return size if isinstance(size, int) else graph.iota((size + 1,)).max()


def _count_along(x: Node, axis: int, count: Dim) -> Node:
    """0, 1, 2, ... up to ``count`` along one axis, with size 1 on the others."""
    shape = tuple(count if i == axis else 1 for i in range(x.rank))
    result: Node = x.graph.iota(shape, axis)
    return result


def _resized(x: Node, axis: int, size: Dim) -> tuple[Dim, ...]:
    return tuple(size if i == axis else other for i, other in enumerate(x.shape))


@primitive(
    family=FAMILY,
    facts=Facts(role="index", overwrites="x", fills="update"),
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


@dynamic_update_slice.vjp
def _(g: Node, out: Node, x: Node, update: Node, starts: Node) -> Any:
    return {
        "x": lambda: dynamic_update_slice(g, g.graph.zeros(update.shape, g.dtype), starts),
        "update": lambda: dynamic_slice(g, starts, update.shape),
    }


@dynamic_update_slice.vmap
def _(size: Dim, batched: dict[str, Any], x: Node, update: Node, starts: Node) -> Node:
    x = x if batched["x"] else spread(x, size)
    update = update if batched["update"] else spread(update, size)
    if not batched["starts"]:
        return dynamic_update_slice(x, update, _from_zero(starts))
    sizes = update.shape[1:]
    if 0 in sizes:
        return x
    # Each place of x looks up its own element of the block, and takes it if it lies inside.
    covered: list[Node] = []
    for axis, start in _moving_axes(x.shape, sizes, starts):
        last = as_number(x.graph, sizes[axis - 1] - 1)
        places = _count_along(x, axis, x.shape[axis]) - start
        covered.append((places >= 0) & (places <= last))
        nearest = places.maximum(0).minimum(last)
        whole = _resized(update, axis, x.shape[axis])
        update = take_along_axis(update, broadcast_to(nearest, whole), axis)
    return where(reduce(operator.and_, covered), update, x) if covered else update
