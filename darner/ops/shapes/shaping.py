"""Shapes built from the shape primitives: squeeze, flatten, expand, tile, repeat, diagonals."""

from __future__ import annotations

import operator
from typing import Any

from ...graph.attributes import normalize_axes
from ...graph.dims import Dim, SymbolicDim, product
from ...graph.errors import ArgumentError, ShapeError
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import builder
from .primitives import slice_

FAMILY = "shape"


def integer(value: Any, name: str) -> int:
    """A whole number that a builder was given."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentError(f"{name} must be an integer, got {value!r}")
    return operator.index(value)


def how_many(value: Any) -> Dim:
    """A number of repeats or elements: a symbol, or 0 or more."""
    if isinstance(value, SymbolicDim):
        return value
    if integer(value, "a count") < 0:
        raise ArgumentError(f"a count is 0 or more, got {value}")
    return integer(value, "a count")


def one_axis(axis: Any, rank: int) -> int:
    """An axis counted from the front."""
    result: int = normalize_axes(integer(axis, "axis"), rank)
    return result


def many_axes(axes: Any, rank: int) -> tuple[int, ...]:
    """One axis or several, counted from the front."""
    listed = axes if isinstance(axes, list | tuple) else (axes,)
    result: tuple[int, ...] = normalize_axes(tuple(integer(a, "axis") for a in listed), rank)
    return result


def node_list(inputs: Any) -> list[Node]:
    """Several nodes; one on its own is refused."""
    if isinstance(inputs, Node) or not isinstance(inputs, list | tuple):
        raise ArgumentError("tensors must come in a list")
    if not inputs:
        raise ArgumentError("at least one tensor is needed")
    for item in inputs:
        if not isinstance(item, Node):
            raise ArgumentError(f"expected nodes, got {type(item).__name__}")
    return list(inputs)


def cut(x: Node, axis: int, start: Dim, stop: Dim, step: int = 1) -> Node:
    """A slice along one axis; ``x`` itself when nothing is cut."""
    if start == 0 and stop == x.shape[axis] and step == 1:
        return x
    starts: list[Dim] = [0] * x.rank
    stops: list[Dim] = list(x.shape)
    steps = [1] * x.rank
    starts[axis], stops[axis], steps[axis] = start, stop, step
    result: Node = slice_(x, tuple(starts), tuple(stops), tuple(steps))
    return result


def reshaped(x: Node, shape: list[Dim] | tuple[Dim, ...]) -> Node:
    """A reshape, left out where the shape is the same."""
    return x if x.shape == tuple(shape) else x.reshape(tuple(shape))


# --------------------------------------------------------------------------- axes


@builder(family=FAMILY)
def unsqueeze(graph: Graph, x: Node, axis: Any) -> Node:
    """``x`` with a new axis of size 1 (or several), counted in the result: ``unsqueeze(x, -1)``."""
    count = len(axis) if isinstance(axis, list | tuple) else 1
    new = many_axes(axis, x.rank + count)
    rest = iter(x.shape)
    return x.reshape(tuple(1 if i in new else next(rest) for i in range(x.rank + count)))


@builder(family=FAMILY)
def expand_dims(graph: Graph, x: Node, axis: Any) -> Node:
    """NumPy's spelling of ``unsqueeze``."""
    return x.unsqueeze(axis)


@builder(family=FAMILY)
def squeeze(graph: Graph, x: Node, axis: Any = None) -> Node:
    """``x`` without some axes, which must have size 1; by default without all that do."""
    if axis is None:
        gone = tuple(i for i, size in enumerate(x.shape) if size == 1)
    else:
        gone = many_axes(axis, x.rank)
        for i in gone:
            if x.shape[i] != 1:
                raise ShapeError(f"axis {i} has size {x.shape[i]}, not 1")
    return reshaped(x, [size for i, size in enumerate(x.shape) if i not in gone])


@builder(family=FAMILY)
def flatten(graph: Graph, x: Node, start: int = 0, end: int = -1) -> Node:
    """The axes from ``start`` to ``end`` (both included) as one; all of them by default."""
    if x.rank == 0:
        return x.reshape((1,))
    first, last = one_axis(start, x.rank), one_axis(end, x.rank)
    if last < first:
        raise ArgumentError(f"axis {end} comes before axis {start}")
    joined = product(x.shape[first : last + 1])
    return reshaped(x, (*x.shape[:first], joined, *x.shape[last + 1 :]))


@builder(family=FAMILY)
def swapaxes(graph: Graph, x: Node, axis1: int, axis2: int) -> Node:
    """``x`` with two axes exchanged."""
    order = list(range(x.rank))
    a, b = one_axis(axis1, x.rank), one_axis(axis2, x.rank)
    order[a], order[b] = b, a
    return x.transpose(tuple(order))


@builder(family=FAMILY)
def moveaxis(graph: Graph, x: Node, source: Any, destination: Any) -> Node:
    """``x`` with an axis (or several) moved to another place, the others in order around it."""
    moved, places = many_axes(source, x.rank), many_axes(destination, x.rank)
    if len(moved) != len(places):
        raise ArgumentError(f"{len(moved)} axes cannot move to {len(places)} places")
    rest = iter([i for i in range(x.rank) if i not in moved])
    by_place = dict(zip(places, moved, strict=True))
    return x.transpose(tuple(by_place[i] if i in by_place else next(rest) for i in range(x.rank)))


# --------------------------------------------------------------------------- repetition


@builder(family=FAMILY)
def expand(graph: Graph, x: Node, shape: Any) -> Node:
    """``x`` repeated along axes of size 1 and new axes in front, to fill ``shape``; -1 keeps a size."""
    sizes = list(shape) if isinstance(shape, list | tuple) else [shape]
    new = len(sizes) - x.rank
    if new < 0:
        raise ShapeError(f"{len(sizes)} sizes for a tensor of rank {x.rank}")
    for i, size in enumerate(sizes):
        if isinstance(size, int) and size == -1:
            if i < new:
                raise ShapeError(f"axis {i} is new: it has no size to keep")
            sizes[i] = x.shape[i - new]
    return x.broadcast_to(tuple(sizes))


@builder(family=FAMILY)
def tile(graph: Graph, x: Node, reps: Any) -> Node:
    """``x`` side by side ``reps`` times along each axis; missing entries and axes count as 1."""
    given = [how_many(n) for n in (reps if isinstance(reps, list | tuple) else (reps,))]
    rank = max(len(given), x.rank)
    counts = [*(1,) * (rank - len(given)), *given]
    shape = [*(1,) * (rank - x.rank), *x.shape]
    if all(count == 1 for count in counts):
        return reshaped(x, shape)
    apart = [size for pair in zip([1] * rank, shape, strict=True) for size in pair]
    filled = [size for pair in zip(counts, shape, strict=True) for size in pair]
    joined = [count * size for count, size in zip(counts, shape, strict=True)]
    return x.reshape(tuple(apart)).broadcast_to(tuple(filled)).reshape(tuple(joined))


@builder(family=FAMILY)
def meshgrid(graph: Graph, inputs: list[Node], indexing: str = "ij") -> list[Node]:
    """Vectors as coordinates of a grid: each repeated along the axes of the others.

    ``indexing="xy"`` puts the second vector on the first axis, as a picture has its rows.
    """
    vectors = node_list(inputs)
    if indexing not in ("ij", "xy"):
        raise ArgumentError(f"indexing must be 'ij' or 'xy', got {indexing!r}")
    for i, vector in enumerate(vectors):
        if vector.rank != 1:
            raise ShapeError(f"inputs[{i}] has rank {vector.rank}: a grid is made of vectors")
    places = list(range(len(vectors)))
    if indexing == "xy" and len(vectors) > 1:
        places[:2] = [1, 0]
    shape: list[Dim] = [1] * len(vectors)
    for place, vector in zip(places, vectors, strict=True):
        shape[place] = vector.shape[0]
    return [
        vector.reshape(
            tuple(vector.shape[0] if i == place else 1 for i in range(len(vectors)))
        ).broadcast_to(tuple(shape))
        for place, vector in zip(places, vectors, strict=True)
    ]


@builder(family=FAMILY)
def repeat(graph: Graph, x: Node, count: int, axis: int | None = None) -> Node:
    """Each element along ``axis`` ``count`` times in a row; of the flattened tensor by default.

    This is NumPy's ``repeat`` and PyTorch's ``repeat_interleave``; PyTorch's ``repeat`` is ``tile``.
    """
    times = how_many(count)
    if axis is None:
        x, axis = x.flatten(), 0
    axis = one_axis(axis, x.rank)
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    apart = x.reshape((*before, size, 1, *after)).broadcast_to((*before, size, times, *after))
    return apart.reshape((*before, size * times, *after))


# --------------------------------------------------------------------------- diagonals


@builder(family=FAMILY)
def diagonal(graph: Graph, x: Node, k: int = 0) -> Node:
    """The diagonal of the last two axes, as the last axis; ``k`` diagonals above the main one."""
    if x.rank < 2:
        raise ShapeError(f"a matrix is needed, not rank {x.rank}")
    rows, columns = int(x.shape[-2]), int(x.shape[-1])
    count = max(0, min(rows, rows + integer(k, "k"), columns, columns - k))
    start = k if k > 0 else -k * columns
    flat = x.reshape((*x.shape[:-2], rows * columns))
    if count == 0:
        return cut(flat, flat.rank - 1, 0, 0)
    step = columns + 1
    return cut(flat, flat.rank - 1, start, start + (count - 1) * step + 1, step)


@builder(family=FAMILY)
def trace(graph: Graph, x: Node) -> Node:
    """The sum of the diagonal of the last two axes."""
    return x.diagonal().sum(-1)
