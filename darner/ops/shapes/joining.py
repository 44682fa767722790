"""Tensors joined, cut apart, rolled, and extended by their own values."""

from __future__ import annotations

from typing import Any, Literal

from ...graph.attributes import Pairs, Tensor
from ...graph.dims import Dim, SymbolicDim, divide, format_shape
from ...graph.errors import ArgumentError, ShapeError
from ...graph.graph import Graph
from ...graph.integers import ceil_div
from ...graph.node import Node
from ...graph.op import Resolved, builder, composite, resolved
from ..samples import ints, sample, spec
from .primitives import certainly_less, concat, flip
from .shaping import cut, how_many, integer, many_axes, node_list, one_axis, reshaped

FAMILY = "shape"


@builder(family=FAMILY)
def stack(graph: Graph, inputs: list[Node], axis: int = 0) -> Node:
    """Tensors of one shape along a new axis."""
    nodes = node_list(inputs)
    for i, node in enumerate(nodes):
        if node.shape != nodes[0].shape:
            raise ShapeError(
                f"inputs[{i}] is {format_shape(node.shape)}, "
                f"inputs[0] is {format_shape(nodes[0].shape)}: shapes must be equal"
            )
    place = one_axis(axis, nodes[0].rank + 1)
    return concat([node.unsqueeze(place) for node in nodes], place)


@builder(family=FAMILY)
def split(graph: Graph, x: Node, sections: Any, axis: int = 0) -> list[Node]:
    """``x`` in pieces along ``axis``: that many equal ones for a number, or of the sizes in a list."""
    place = one_axis(axis, x.rank)
    size = x.shape[place]
    if isinstance(sections, list | tuple):
        sizes: list[Dim] = [how_many(n) for n in sections]
        total: Dim = 0
        for piece in sizes:
            total = total + piece
        if total != size:
            raise ShapeError(f"pieces of {format_shape(sizes)} add up to {total}, not {size}")
    else:
        count = integer(sections, "sections")
        each = divide(size, count) if count > 0 else None
        if each is None:
            raise ShapeError(
                f"axis {place} of size {size} does not divide into {count} equal pieces",
                hint="give the sizes in a list, or use chunk",
            )
        sizes = [each] * count
    return _pieces(x, sizes, place)


def _pieces(x: Node, sizes: list[Dim], axis: int) -> list[Node]:
    pieces = []
    start: Dim = 0
    for size in sizes:
        pieces.append(cut(x, axis, start, start + size))
        start = start + size
    return pieces


@builder(family=FAMILY)
def chunk(graph: Graph, x: Node, count: int, axis: int = 0) -> list[Node]:
    """At most ``count`` pieces along ``axis``, equal but for the last, which may be smaller."""
    place = one_axis(axis, x.rank)
    size = x.shape[place]
    if integer(count, "count") < 1:
        raise ArgumentError(f"{count} pieces: at least 1 is needed")
    exact = divide(size, count)
    if exact is not None:
        return _pieces(x, [exact] * count, place)
    whole = int(size)
    each = ceil_div(whole, count)
    sizes: list[Dim] = [min(each, whole - start) for start in range(0, whole, each)]
    return _pieces(x, sizes, place)


@builder(family=FAMILY)
def narrow(graph: Graph, x: Node, axis: int, start: Any, length: Any) -> Node:
    """``length`` elements along ``axis``, from ``start`` on. Both must lie inside ``x``."""
    place = one_axis(axis, x.rank)
    size = x.shape[place]
    first = start if isinstance(start, SymbolicDim) else integer(start, "start")
    count = length if isinstance(length, SymbolicDim) else integer(length, "length")
    if certainly_less(first, 0) or certainly_less(count, 0) or certainly_less(size, first + count):
        raise ShapeError(f"{count} elements from {first} do not lie in axis {place} of size {size}")
    return cut(x, place, first, first + count)


@builder(family=FAMILY)
def roll(graph: Graph, x: Node, shift: Any, axis: Any = None) -> Node:
    """Elements moved ``shift`` places up along ``axis``, those that fall off coming back at the start.

    Without an axis the flattened tensor is rolled. Over a symbolic size, the shift may not exceed it.
    """
    if axis is None:
        return reshaped(x.flatten().roll(shift, 0), x.shape)
    axes = many_axes(axis, x.rank)
    shifts = [integer(s, "shift") for s in (shift if isinstance(shift, list | tuple) else [shift])]
    shifts = shifts * len(axes) if len(shifts) == 1 else shifts
    if len(shifts) != len(axes):
        raise ArgumentError(f"{len(shifts)} shifts for {len(axes)} axes")
    for i, places in zip(axes, shifts, strict=True):
        size = x.shape[i]
        if isinstance(size, int):
            places = places % size if size else 0
        if places == 0:
            continue
        border = size - places if places > 0 else -places
        x = concat([cut(x, i, border, size), cut(x, i, 0, border)], i)
    return x


# --------------------------------------------------------------------------- borders


@composite(
    family=FAMILY,
    traits=["moves"],
    samples=[
        *(sample(spec(4, 5), ((1, 2), (3, 0)), mode) for mode in ("reflect", "edge", "wrap")),
        *(sample(spec(2, 3), ((0, 0), (7, 8)), mode) for mode in ("reflect", "edge", "wrap")),
        sample(spec(2, 1, 4), 2, "reflect"),
        sample(spec(3), ((1, 20),), "reflect"),
        sample(spec(3), ((11, 2),), "wrap"),
        sample(spec(0, 3), ((0, 0), (1, 1)), "wrap"),
        sample(ints(5, high=9), 3, "reflect"),
    ],
)
def pad_with(
    x: Tensor, padding: Pairs, mode: Literal["reflect", "edge", "wrap"] = "reflect"
) -> Resolved:
    """``x`` with values of its own around it: (low, high) for every axis, or one number for all.

    ``reflect`` mirrors at the first and last element, ``edge`` repeats them, ``wrap`` goes on at the other
    end. Over a symbolic size, the padding may not be larger than one reflection or wrap gives.
    """
    if len(padding) == 1 and x.rank != 1:
        padding = padding * x.rank
    if len(padding) != x.rank:
        raise ArgumentError(f"{len(padding)} pairs for a tensor of rank {x.rank}")
    shape: list[Dim] = []
    for axis, (size, (low, high)) in enumerate(zip(x.shape, padding, strict=True)):
        if low < 0 or high < 0:
            raise ArgumentError(f"padding ({low}, {high}) is negative", hint="slice to crop")
        if size == 0 and low + high > 0:
            raise ShapeError(f"axis {axis} has no elements to repeat")
        shape.append(size + low + high)
    return resolved(x.with_shape(shape), padding=padding)


@pad_with.expand
def _(x: Node, padding: tuple[tuple[int, int], ...], mode: str) -> Node:
    extend = {"reflect": _reflected, "edge": _with_edges, "wrap": _wrapped}[mode]
    for axis, (low, high) in enumerate(padding):
        if low or high:
            x = extend(x, axis, low, high)
    return x


@pad_with.vmap
def _(size: Dim, batched: Any, x: Node, padding: Any, mode: str) -> Node:
    return pad_with(x, ((0, 0), *padding), mode)


def _joined(parts: list[Node], axis: int) -> Node:
    """The parts that have elements, one after another."""
    return concat([part for part in parts if part.shape[axis] != 0], axis)


def _with_edges(x: Node, axis: int, low: int, high: int) -> Node:
    def copies(edge: Node, count: int) -> Node:
        return edge.broadcast_to([count if i == axis else d for i, d in enumerate(x.shape)])

    size = x.shape[axis]
    first, last = cut(x, axis, 0, 1), cut(x, axis, size - 1, size)
    return _joined([copies(first, low), x, copies(last, high)], axis)


def _wrapped(x: Node, axis: int, low: int, high: int) -> Node:
    size = x.shape[axis]
    before, after = (divmod(n, size) if isinstance(size, int) else (0, n) for n in (low, high))
    head, tail = cut(x, axis, 0, after[1]), cut(x, axis, size - before[1], size)
    return _joined([tail, *[x] * (before[0] + 1 + after[0]), head], axis)


def _reflected(x: Node, axis: int, low: int, high: int) -> Node:
    size = x.shape[axis]
    if size == 1:
        return _with_edges(x, axis, low, high)
    if isinstance(size, int) and max(low, high) >= size:
        # To and fro, again and again: a reflection of the reflections would double the work with each.
        there_and_back = _joined([x, flip(cut(x, axis, 1, size - 1), axis)], axis)
        missing = max(0, high - (size - 2))
        return cut(_wrapped(there_and_back, axis, low, missing), axis, 0, low + size + high)
    before = flip(cut(x, axis, 1, 1 + low), axis)
    after = flip(cut(x, axis, size - 1 - high, size - 1), axis)
    return _joined([before, x, after], axis)
