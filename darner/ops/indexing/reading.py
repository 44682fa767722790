"""Indexing as Python writes it, and reading by indices: getitem, take, embedding, masked_fill."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ...graph import dtypes
from ...graph.attributes import Free, Mask, Tensor
from ...graph.data import Array
from ...graph.dims import Dim, SymbolicDim, format_shape
from ...graph.errors import ArgumentError, DTypeError, ShapeError
from ...graph.facts import Facts
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import builder, composite
from ...graph.types import TensorType, broadcast
from ..axes import align, spread
from ..elementwise.arithmetic import where
from ..samples import bools, ints, sample, spec
from ..shapes.primitives import check_fits, flip, slice_
from ..shapes.shaping import reshaped
from .index import gather, gather_batch, scatter_add

FAMILY = "index"

BOOL_HINT = "its size would depend on values: use where(condition, a, b) to choose by value"

# --------------------------------------------------------------------------- python's brackets


@builder(family=FAMILY)
def getitem(graph: Graph, x: Node, key: Any) -> Node:
    """``x[key]``, as NumPy reads it.

    A key has integers, slices with any step, ``...``, ``None`` (a new axis), and at most one list, array or node
    of integers, by which ``gather`` picks. Nodes of one integer may stand beside it. Slices stop at the
    ends, as Python's do; bounds over a symbolic size are taken to lie inside it, which ``bind`` checks.
    """
    entries = _entries(x, key)
    axes = [entry for entry in entries if entry is not None]
    cuts = [_cut(entry, x.shape[axis], axis) for axis, entry in enumerate(axes)]
    result = _sliced(x, cuts)
    sizes = iter(result.shape)
    shape = [(entry, 1 if entry is None else next(sizes)) for entry in entries]
    kept = [(entry, size) for entry, size in shape if not _is_one(entry)]
    result = reshaped(result, [size for _, size in kept])
    picks = [(i, entry) for i, (entry, _) in enumerate(kept) if isinstance(entry, Node)]
    for axis, indices in reversed(picks):
        result = gather(result, indices, axis)
    many = [(axis, node) for axis, node in picks if node.rank > 0]
    if not many or _side_by_side(key):
        return result
    axis, indices = many[0]
    axis -= sum(other < axis for other, node in picks if node.rank == 0)
    return result.moveaxis(tuple(range(axis, axis + indices.rank)), tuple(range(indices.rank)))


def _side_by_side(key: Any) -> bool:
    """Whether nothing stands between indices; where something does, NumPy puts their axes first."""
    entries = list(key) if isinstance(key, tuple) else [key]
    places = [
        i
        for i, entry in enumerate(entries)
        if not (entry is None or entry is Ellipsis or isinstance(entry, slice))
    ]
    return places[-1] - places[0] == len(places) - 1


def _sliced(x: Node, cuts: list[tuple[Dim, Dim, int]]) -> Node:
    """``x`` cut along every axis, then flipped where a step is negative."""
    starts, stops = tuple(cut[0] for cut in cuts), tuple(cut[1] for cut in cuts)
    steps = tuple(abs(cut[2]) for cut in cuts)
    if (starts, stops, steps) != ((0,) * x.rank, x.shape, (1,) * x.rank):
        x = slice_(x, starts, stops, steps)
    backwards = tuple(axis for axis, cut in enumerate(cuts) if cut[2] < 0)
    return flip(x, backwards) if backwards else x


def _cut(entry: Any, size: Dim, axis: int) -> tuple[Dim, Dim, int]:
    """Start, stop and step along one axis; indices in a node take the whole of it for now."""
    if isinstance(entry, Node):
        return 0, size, 1
    if isinstance(entry, slice):
        return _bounds(entry, size)
    place = _checked_index(entry, size, axis)
    return place, place + 1, 1


def _is_one(entry: Any) -> bool:
    """Whether an entry is a fixed index, which takes its axis away."""
    return isinstance(entry, int | SymbolicDim)


def _entries(x: Node, key: Any) -> list[Any]:
    """One entry an axis of ``x`` (an int, slice or node), and None for each new axis."""
    listed = list(key) if isinstance(key, tuple) else [key]
    dots = sum(entry is Ellipsis for entry in listed)
    if dots > 1:
        raise ArgumentError("'...' may stand only once in an index")
    used = sum(entry is not None and entry is not Ellipsis for entry in listed)
    if used > x.rank:
        raise ArgumentError(f"{used} indices for a tensor of rank {x.rank}")
    if not dots:
        listed.append(Ellipsis)
    entries: list[Any] = []
    for entry in listed:
        if entry is Ellipsis:
            entries.extend([slice(None)] * (x.rank - used))
        elif entry is None or isinstance(entry, slice):
            entries.append(entry)
        else:
            axis = sum(known is not None for known in entries)
            entries.append(_fixed_or_node(x, entry, axis))
    if sum(isinstance(entry, Node) and entry.rank > 0 for entry in entries) > 1:
        raise ArgumentError(
            "only one list, array or node of indices may stand in an index",
            hint="index one axis after another, or use take_along_axis",
        )
    return entries


def _fixed_or_node(x: Node, entry: Any, axis: int) -> Any:
    """An entry that is neither a slice nor a new axis: a fixed index, or indices as a node."""
    if isinstance(entry, bool | np.bool_):
        raise DTypeError("a boolean cannot be an index", hint=BOOL_HINT)
    if isinstance(entry, SymbolicDim):
        return entry
    if isinstance(entry, Node):
        if entry.dtype.kind == "bool":
            raise DTypeError("a boolean node cannot be an index", hint=BOOL_HINT)
        if not entry.dtype.is_int:
            raise DTypeError(f"indices must be integers, not {entry.dtype}", hint="cast them first")
        return entry
    if isinstance(entry, list | tuple | np.ndarray):
        array = _index_array(entry)
        if array.ndim == 0:
            return int(array)
        return x.graph.literal(_settled(array, x.shape[axis], axis), dtypes.i32)
    if hasattr(entry, "__index__"):
        return operator.index(entry)
    raise ArgumentError(f"{entry!r} cannot be an index")


def _index_array(entry: Any) -> Array:
    try:
        array = np.asarray(entry)
    except (ValueError, TypeError, ArgumentError):
        raise ArgumentError(
            "a list of indices must hold integers only", hint="stack nodes first"
        ) from None
    if array.size == 0 and isinstance(entry, list | tuple):
        return array.astype(np.int64)
    if array.dtype.kind == "b":
        raise DTypeError("a list of booleans cannot be an index", hint=BOOL_HINT)
    if array.dtype.kind not in "iu":
        raise DTypeError(f"indices must be integers, not {array.dtype}")
    return array


def _settled(array: Array, size: Dim, axis: int) -> Array:
    """Known indices counted from the front, and checked."""
    if isinstance(size, int):
        wrong = (array < -size) | (array >= size)
        if wrong.any():
            raise ShapeError(_outside(int(array[wrong].flat[0]), size, axis))
        return np.where(array < 0, array + size, array)
    if (array < 0).any():
        raise ShapeError(f"negative indices into size {size} are not known until it is bound")
    return array


def _outside(index: int, size: int, axis: int) -> str:
    if size == 0:
        return f"index {index}: axis {axis} has no elements"
    return f"index {index} on axis {axis} is outside -{size}..{size - 1}"


def _checked_index(index: Dim, size: Dim, axis: int) -> Dim:
    if isinstance(index, int):
        if isinstance(size, int) and not -size <= index < size:
            raise ShapeError(_outside(index, size, axis))
        return size + index if index < 0 else index
    return index


def _bounds(entry: slice, size: Dim) -> tuple[Dim, Dim, int]:
    """Where a slice starts and stops, lowest first, and its step; a negative step still needs a flip."""
    parts = [_bound(part) for part in (entry.start, entry.stop, entry.step)]
    step = 1 if parts[2] is None else parts[2]
    if not isinstance(step, int) or step == 0:
        raise ArgumentError(f"a slice cannot have step {step}")
    if isinstance(size, int) and not any(isinstance(part, SymbolicDim) for part in parts):
        span = range(*slice(*parts).indices(size))
        if not span:
            return 0, 0, 1
        return min(span[0], span[-1]), max(span[0], span[-1]) + 1, step
    start, stop = (
        size + part if isinstance(part, int) and part < 0 else part for part in parts[:2]
    )
    if step > 0:
        return 0 if start is None else start, size if stop is None else stop, step
    if step == -1:
        return 0 if stop is None else stop + 1, size if start is None else start + 1, step
    raise ShapeError(f"a step of {step} over size {size} is not known until it is bound")


def _bound(value: Any) -> Any:
    if value is None or isinstance(value, SymbolicDim):
        return value
    if isinstance(value, Node):
        raise ArgumentError(
            "a slice's bounds are fixed, not nodes", hint="use dynamic_slice(x, starts, sizes)"
        )
    if not hasattr(value, "__index__"):
        raise ArgumentError(f"a slice's bounds are integers, got {value!r}")
    return operator.index(value)


# --------------------------------------------------------------------------- by indices


@composite(
    family=FAMILY,
    traits=["moves"],
    samples=[
        sample(ints(5, high=7, dtype="u32"), spec(7, 3)),
        sample(ints(2, 4, high=7), spec(7, 3)),
        sample(ints(high=7, dtype="i64"), spec(7, 1)),
        sample(ints(0, high=7), spec(7, 3)),
        sample(ints(3, high=1, dtype="u8"), spec(1, 0)),
    ],
)
def embedding(indices: Free, table: Tensor) -> TensorType:
    """One row of ``table`` (a matrix) for each index; the row's axis comes last."""
    if not indices.dtype.is_int:
        raise DTypeError(
            f"indices must be integers, not {indices.dtype}",
            hint='input(name, shape, "i32"), or input_u32',
        )
    if table.rank != 2:
        raise ShapeError(f"table must be a matrix, not of rank {table.rank}")
    return table.with_shape((*indices.shape, table.shape[1]))


@embedding.expand
def _(indices: Node, table: Node) -> Node:
    return gather(table, indices, 0)


@embedding.vjp
def _(g: Node, out: Node, indices: Node, table: Node) -> Any:
    return {"table": lambda: scatter_add(indices, g, table.shape[0])}


@embedding.vmap
def _(size: Dim, batched: dict[str, Any], indices: Node, table: Node) -> Node:
    if not batched["table"]:
        return embedding(indices, table)
    return gather_batch(size, batched, table, indices, 0)


@builder(family=FAMILY)
def take(graph: Graph, x: Node, indices: Node, axis: int | None = None) -> Node:
    """Slices of ``x`` along ``axis``, one for each index; elements of the flattened ``x`` by default."""
    return gather(x.flatten(), indices, 0) if axis is None else gather(x, indices, axis)


@composite(
    family=FAMILY,
    facts=Facts(fused=True),
    traits=["moves"],
    samples=[
        sample(spec(3, 5), bools(3, 5), -1.5),
        sample(spec(2, 3, 4), bools(3, 1), -float("inf")),
        sample(spec(2, 3), bools(), 0),
        sample(spec(0, 3), bools(3), 1.0),
        sample(ints(4, high=9), bools(4), 7),
        sample(bools(4), bools(4), 1),
    ],
)
def masked_fill(x: Tensor, mask: Mask, value: float) -> TensorType:
    """``x`` with one number wherever ``mask`` (which broadcasts to ``x``) is True."""
    if broadcast(x.shape, mask.shape) != x.shape:
        raise ShapeError(
            f"mask {format_shape(mask.shape)} does not broadcast to {format_shape(x.shape)}"
        )
    check_fits(value, x)
    return x


@masked_fill.expand
def _(x: Node, mask: Node, value: float) -> Node:
    return where(mask, x.graph.literal(value, x.dtype), x)


@masked_fill.vjp
def _(g: Node, out: Node, x: Node, mask: Node, value: float) -> Any:
    return {"x": lambda: masked_fill(g, mask, 0.0)}


@masked_fill.vmap
def _(size: Dim, batched: dict[str, Any], x: Node, mask: Node, value: float) -> Node:
    x = x if batched["x"] else spread(x, size)
    return masked_fill(x, align(mask, batched["mask"], x.rank - 1), value)
