"""Primitives that only move elements: reshape, transpose, broadcast, slice, pad, concat, flip, iota."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ...graph import dtypes
from ...graph.attributes import Axes, Axis, Ints, Pairs, ShapeOf, Sizes, Tensor, normalize_axes
from ...graph.data import Array
from ...graph.dims import Dim, divide, format_shape, product
from ...graph.dtypes import DType
from ...graph.errors import ArgumentError, ShapeError
from ...graph.facts import Facts
from ...graph.node import Node
from ...graph.op import Resolved, primitive, resolved
from ...graph.types import TensorType
from ..axes import align, spread, sum_to
from ..samples import ints, sample, spec

FAMILY = "shape"


def certainly_less(a: Dim, b: Dim) -> bool:
    """A < b for every value of the symbols; what only binding can tell is left to binding."""
    try:
        return bool(a < b)
    except ShapeError:
        return False


def check_fits(value: float, x: TensorType) -> None:
    """Refuse a number that the element type of ``x`` cannot hold."""
    if x.dtype.kind in ("int", "bool"):
        low, high = x.dtype.limits
        if not (float(value).is_integer() and low <= value <= high):
            raise ArgumentError(f"{value} does not fit in {x.dtype}")


@primitive(
    family=FAMILY,
    facts=Facts(role="view", selects=True, reads_all=True),
    traits=["view"],
    samples=[
        sample(spec(2, 6), (3, 4)),
        sample(spec(2, 3, 4), (-1, 2)),
        sample(spec(1), ()),
        sample(spec(), (1, 1)),
        sample(spec(0, 3), (3, 0, 2)),
        sample(ints(6, high=9), (2, -1)),
    ],
)
def reshape(x: Tensor, shape: Sizes) -> Resolved:
    """The same elements, in the same order, under another shape. One size may be -1: what is left.

    A size of 0 stands for one of ``x``: of [0, 3, 8], (0, -1) is [0, 24].
    """
    unknown = [i for i, size in enumerate(shape) if size == -1]
    if len(unknown) > 1:
        raise ArgumentError(f"only one size of {format_shape(shape)} may be -1")
    for size in shape:
        if isinstance(size, int) and size < -1:
            raise ShapeError(f"size {size} is negative")
    known = product([size for size in shape if size != -1])
    if unknown:
        rest = _left(x.shape, [size for size in shape if size != -1])
        if rest is None:
            raise ShapeError(f"{x.size} elements do not divide into {format_shape(shape)}")
        shape = tuple(rest if size == -1 else size for size in shape)
    elif known != x.size:
        raise ShapeError(f"{x.size} elements do not fill {format_shape(shape)}")
    return resolved(x.with_shape(shape), shape=shape)


def _left(sizes: tuple[Dim, ...], given: list[Dim]) -> Dim | None:
    """What is left of sizes that are divided into others; zeros of both cancel, as any name of a size does."""
    left = list(sizes)
    for size in given:
        if size == 0:
            if 0 not in left:
                return None
            left.remove(0)
    return divide(product(left), product([size for size in given if size != 0]))


@reshape.reference
def _(x: Array, shape: tuple[int, ...]) -> Array:
    return x.reshape(shape)


@reshape.vjp
def _(g: Node, out: Node, x: Node, shape: Any) -> Node:
    return reshape(g, x.shape)


@reshape.vmap
def _(size: Dim, batched: Any, x: Node, shape: tuple[Dim, ...]) -> Node:
    return reshape(x, (size, *shape))


@primitive(
    family=FAMILY,
    facts=Facts(role="view", selects=True, reads_all=True, fused=True),
    traits=["view"],
    samples=[
        sample(spec(3, 5)),
        sample(spec(2, 3, 4)),
        sample(spec(2, 3, 4), (1, 2, 0)),
        sample(spec(2, 0, 4), (-1, 0, 1)),
        sample(spec(7)),
        sample(spec()),
    ],
)
def transpose(x: Tensor, perm: Ints | None = None) -> Resolved:
    """Axes in another order: axis ``i`` of the result is axis ``perm[i]`` of ``x``; reversed by default."""
    order = tuple(range(x.rank))[::-1] if perm is None else normalize_axes(perm, x.rank)
    if len(order) != x.rank:
        raise ArgumentError(f"perm has {len(order)} axes for a tensor of rank {x.rank}")
    return resolved(x.with_shape([x.shape[i] for i in order]), perm=order)


@transpose.reference
def _(x: Array, perm: tuple[int, ...]) -> Array:
    return np.transpose(x, perm)


@transpose.vjp
def _(g: Node, out: Node, x: Node, perm: tuple[int, ...]) -> Node:
    return transpose(g, tuple(perm.index(axis) for axis in range(x.rank)))


@transpose.vmap
def _(size: Dim, batched: Any, x: Node, perm: tuple[int, ...]) -> Node:
    return transpose(x, (0, *(axis + 1 for axis in perm)))


@primitive(
    family=FAMILY,
    facts=Facts(role="view", selects=True, reads_all=True),
    traits=["view"],
    samples=[
        sample(spec(5), (3, 5)),
        sample(spec(3, 1), (2, 3, 4)),
        sample(spec(), (2, 2)),
        sample(spec(1, 3), (0, 3)),
        sample(spec(3), (3,)),
    ],
)
def broadcast_to(x: Tensor, shape: ShapeOf) -> TensorType:
    """``x`` repeated along axes of size 1, and along new axes in front, to fill ``shape``."""
    padded = (1,) * (len(shape) - x.rank) + x.shape
    if any(a not in (1, b) for a, b in zip(padded, shape, strict=False)) or len(shape) < x.rank:
        raise ShapeError(f"{format_shape(x.shape)} does not broadcast to {format_shape(shape)}")
    return x.with_shape(shape)


@broadcast_to.reference
def _(x: Array, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(x, shape)


@broadcast_to.vjp
def _(g: Node, out: Node, x: Node, shape: Any) -> Node:
    return sum_to(g, x.shape)


@broadcast_to.vmap
def _(size: Dim, batched: Any, x: Node, shape: tuple[Dim, ...]) -> Node:
    return broadcast_to(align(x, True, len(shape)), (size, *shape))


@primitive(
    family=FAMILY,
    facts=Facts(role="view", selects=True),
    name="slice",
    traits=["view"],
    samples=[
        sample(spec(5, 7), (1, 2), (4, 7)),
        sample(spec(9), (1,), (8,), (3,)),
        sample(spec(4, 5), (0, 4), (4, 0), (2, 1)),
        sample(spec(4, 5), (2, 1), (2, 4)),
        sample(spec(2, 3, 4), (-1, 0, -3), (2, -1, 4)),
    ],
)
def slice_(x: Tensor, starts: Sizes, stops: Sizes, steps: Ints | None = None) -> Resolved:
    """Elements ``start, start + step, ...`` before ``stop`` along every axis; bounds are checked.

    Negative bounds count from the end; a stop below its start gives no elements. ``x[1:4, ::2]`` is the same thing.
    """
    steps = (1,) * x.rank if steps is None else steps
    for name, values in (("starts", starts), ("stops", stops), ("steps", steps)):
        if len(values) != x.rank:
            raise ArgumentError(f"{name} has {len(values)} entries for a tensor of rank {x.rank}")
    shape: list[Dim] = []
    low: list[Dim] = []
    high: list[Dim] = []
    for axis, (size, start, stop, step) in enumerate(
        zip(x.shape, starts, stops, steps, strict=True)
    ):
        if step < 1:
            raise ArgumentError(f"step {step} on axis {axis} is not positive", hint="flip the axis")
        start = size + start if isinstance(start, int) and start < 0 else start
        stop = size + stop if isinstance(stop, int) and stop < 0 else stop
        for what, bound in (("start", start), ("stop", stop)):
            if certainly_less(bound, 0) or certainly_less(size, bound):
                raise ShapeError(f"{what} {bound} on axis {axis} is outside 0..{size}")
        stop = start if certainly_less(stop, start) else stop
        count = stop - start
        exact = divide(count, step)
        shape.append((count + step - 1) // step if exact is None else exact)
        low.append(start)
        high.append(stop)
    return resolved(x.with_shape(shape), starts=tuple(low), stops=tuple(high), steps=steps)


@slice_.reference
def _(x: Array, starts: Any, stops: Any, steps: Any) -> Array:
    return x[tuple(slice(a, b, c) for a, b, c in zip(starts, stops, steps, strict=True))]


@slice_.vjp
def _(g: Node, out: Node, x: Node, starts: Any, stops: Any, steps: Any) -> Node:
    padding = [(0, 0)] * x.rank
    unknown: list[tuple[int, Dim, Dim]] = []
    for axis, (size, start, step) in enumerate(zip(x.shape, starts, steps, strict=True)):
        count = g.shape[axis]
        covered = 0 if count == 0 else (count - 1) * step + 1
        rest = size - start - covered
        if isinstance(start, int) and isinstance(rest, int):
            padding[axis] = (start, rest)
        else:
            unknown.append((axis, start, rest))
    gaps = tuple(step - 1 for step in steps)
    if any(gaps) or any(pair != (0, 0) for pair in padding):
        g = pad(g, tuple(padding), 0.0, interior=gaps)
    # Padding is counted in integers; where a symbol says how much, zeros are put beside.
    for axis, low, high in unknown:
        g = concat([_zeros(g, axis, low), g, _zeros(g, axis, high)], axis)
    return g


@slice_.vmap
def _(size: Dim, batched: Any, x: Node, starts: Any, stops: Any, steps: Any) -> Node:
    return slice_(x, (0, *starts), (size, *stops), (1, *steps))


def _zeros(x: Node, axis: int, size: Dim) -> Node:
    """Zeros in the shape of ``x`` but for the size of one axis."""
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    return broadcast_to(x.graph.literal(0, x.dtype), shape)


@primitive(
    family=FAMILY,
    facts=Facts(role="point", fused=True),
    samples=[
        sample(spec(3, 4), ((1, 2), (0, 3))),
        sample(spec(5), 2, 1.5),
        sample(spec(3, 4), ((-1, 0), (2, -2))),
        sample(spec(3), ((1, 0),), interior=2),
        sample(spec(2, 3), ((0, -1), (-2, 4)), 0.5, interior=(1, 2)),
        sample(spec(0, 2), ((2, 0), (0, 1)), -1.0),
        sample(ints(3, high=9), ((1, 1),), 7.0),
        sample(spec(4), ((0, 0),), -float("inf")),
    ],
)
def pad(x: Tensor, padding: Pairs, value: float = 0.0, *, interior: Ints | None = None) -> Resolved:
    """``x`` with ``value`` around it: (low, high) for every axis, or one number for all.

    Negative padding crops. ``interior`` puts that many values between neighbours.
    """
    if len(padding) == 1 and x.rank != 1:
        padding = padding * x.rank
    between = (0,) * x.rank if interior is None else interior
    if len(between) == 1:
        between = between * x.rank
    if len(padding) != x.rank:
        raise ArgumentError(f"{len(padding)} pairs for a tensor of rank {x.rank}")
    if len(between) != x.rank:
        raise ArgumentError(f"interior has {len(between)} entries for a tensor of rank {x.rank}")
    if any(gap < 0 for gap in between):
        raise ArgumentError(f"interior {between} is negative")
    check_fits(value, x)
    shape: list[Dim] = []
    for axis, (size, (low, high), gap) in enumerate(zip(x.shape, padding, between, strict=True)):
        spread = size if gap == 0 or size == 0 else size + (size - 1) * gap
        if certainly_less(spread + low + high, 0):
            raise ShapeError(
                f"padding ({low}, {high}) crops more than axis {axis} of size {size} has"
            )
        shape.append(spread + low + high)
    return resolved(x.with_shape(shape), padding=padding, interior=between)


@pad.reference
def _(x: Array, padding: Any, value: float, interior: Any) -> Array:
    spread = [n + max(n - 1, 0) * gap for n, gap in zip(x.shape, interior, strict=True)]
    wide = [n + max(low, 0) + max(high, 0) for n, (low, high) in zip(spread, padding, strict=True)]
    result = np.full(wide, value, x.dtype)
    place = tuple(
        slice(max(low, 0), max(low, 0) + n, gap + 1)
        for n, gap, (low, _) in zip(spread, interior, padding, strict=True)
    )
    result[place] = x
    crop = tuple(
        slice(max(-low, 0), n - max(-high, 0)) for n, (low, high) in zip(wide, padding, strict=True)
    )
    return result[crop]


@pad.vjp
def _(g: Node, out: Node, x: Node, padding: Any, value: float, interior: Any) -> Node:
    # What was cropped off is put back as zeros, then every element is taken from its place.
    cropped = tuple((max(-low, 0), max(-high, 0)) for low, high in padding)
    if any(pair != (0, 0) for pair in cropped):
        if not any(interior):
            return pad(g, tuple((-low, -high) for low, high in padding))
        g = pad(g, cropped)
    starts = tuple(max(low, 0) for low, _ in padding)
    stops = tuple(
        start if size == 0 else start + (size - 1) * (gap + 1) + 1
        for start, size, gap in zip(starts, x.shape, interior, strict=True)
    )
    return slice_(g, starts, stops, tuple(gap + 1 for gap in interior))


@pad.vmap
def _(size: Dim, batched: Any, x: Node, padding: Any, value: float, interior: Any) -> Node:
    return pad(x, ((0, 0), *padding), value, interior=(0, *interior))


@primitive(
    family=FAMILY,
    facts=Facts(role="point", reads_all=True, fused=True),
    samples=[
        sample([spec(3, 4), spec(2, 4)], 0),
        sample([spec(2, 3), spec(2, 1), spec(2, 0)], -1),
        sample([spec(3)]),
        sample([spec(0, 2), spec(0, 2)], 1),
        sample([ints(2, high=5), spec(3)]),
    ],
)
def concat(inputs: list[Tensor], axis: Axis = 0) -> TensorType:
    """Tensors one after another along ``axis``; other sizes must be equal.

    ``concat(a, b, batch, channels_a, channels_b, spatial)`` joins two flat NCHW tensors along their channels.
    """
    if not inputs:
        raise ArgumentError("at least one tensor is needed")
    first = inputs[0]
    total: Dim = 0
    for i, item in enumerate(inputs):
        if item.rank != first.rank:
            raise ShapeError(f"inputs[{i}] has rank {item.rank}, inputs[0] has rank {first.rank}")
        for other, (a, b) in enumerate(zip(first.shape, item.shape, strict=True)):
            if other != axis and a != b:
                raise ShapeError(
                    f"sizes {a} and {b} on axis {other} differ (inputs[0] and inputs[{i}])"
                )
        total = total + item.shape[axis]
    return first.with_shape([total if i == axis else d for i, d in enumerate(first.shape)])


@concat.reference
def _(inputs: list[Array], axis: int) -> Array:
    return np.concatenate(inputs, axis)


@concat.vjp
def _(g: Node, out: Node, inputs: list[Node], axis: int) -> Any:
    def part(start: Dim, stop: Dim) -> Node:
        if start == 0 and stop == g.shape[axis]:
            return g
        starts = [start if i == axis else 0 for i in range(g.rank)]
        stops = [stop if i == axis else size for i, size in enumerate(g.shape)]
        return slice_(g, tuple(starts), tuple(stops))

    parts = []
    start: Dim = 0
    for item in inputs:
        parts.append(partial(part, start, start + item.shape[axis]))
        start = start + item.shape[axis]
    return {"inputs": parts}


@concat.vmap
def _(size: Dim, batched: dict[str, list[bool]], inputs: list[Node], axis: int) -> Node:
    flags = batched["inputs"]
    whole = [x if flag else spread(x, size) for x, flag in zip(inputs, flags, strict=True)]
    return concat(whole, axis + 1)


@primitive(
    family=FAMILY,
    facts=Facts(role="view", selects=True, reads_all=True, fused=True),
    samples=[
        sample(spec(3, 4)),
        sample(spec(3, 4), -1),
        sample(spec(2, 3, 4), (0, 2)),
        sample(spec(0, 2), 1),
        sample(spec(1), 0),
    ],
)
def flip(x: Tensor, axes: Axes | None = None) -> TensorType:
    """``x`` with the order of elements along some axes (all by default) reversed."""
    return x


@flip.reference
def _(x: Array, axes: tuple[int, ...]) -> Array:
    return np.flip(x, axes)


@flip.vjp
def _(g: Node, out: Node, x: Node, axes: tuple[int, ...]) -> Node:
    return flip(g, axes)


@flip.vmap
def _(size: Dim, batched: Any, x: Node, axes: tuple[int, ...]) -> Node:
    return flip(x, tuple(axis + 1 for axis in axes))


@primitive(
    family=FAMILY,
    facts=Facts(role="point", fused=True),
    samples=[
        sample((5,)),
        sample((2, 3), 1),
        sample((2, 3), -2, "f32"),
        sample((0, 4), 0),
        sample((3, 1), 1, "i64"),
    ],
)
def iota(shape: ShapeOf, axis: int = 0, dtype: DType = dtypes.i32) -> Resolved:
    """0, 1, 2, ... along ``axis``, repeated along the others."""
    if not shape:
        raise ShapeError("a scalar has no axis to count along")
    if dtype.kind not in ("int", "float"):
        raise ArgumentError(f"{dtype} cannot count")
    return resolved(TensorType(shape, dtype), axis=normalize_axes(axis, len(shape)))


@iota.reference
def _(shape: tuple[int, ...], axis: int, dtype: DType) -> Array:
    view = [1] * len(shape)
    view[axis] = shape[axis]
    return np.broadcast_to(np.arange(shape[axis]).astype(dtype.numpy).reshape(view), shape)
