"""Writing by indices: ``scatter``, whose modes replace or combine, with their derivatives."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from ...graph import dtypes
from ...graph.attributes import Axis, Index, Tensor
from ...graph.data import Array
from ...graph.dims import Dim, SymbolicDim, format_shape, product
from ...graph.errors import DTypeError, ShapeError
from ...graph.facts import RESULT, Facts
from ...graph.node import Node
from ...graph.op import primitive
from ...graph.types import TensorType
from ..axes import spread
from ..elementwise.arithmetic import where
from ..faults import check_indices
from ..samples import ints, sample, spec
from ..shapes.primitives import flip, pad
from ..shapes.shaping import reshaped
from .index import FAMILY, as_i32, as_number, gather
from .ordering import argsort

_UPDATES = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@primitive(
    family=FAMILY,
    facts=Facts(role="index", overwrites="x", fails_on="index", indexes=RESULT),
    samples=[
        sample(spec(7, 3), ints(5, high=7), spec(5, 3)),
        sample(spec(4), ints(9, high=4), spec(9)),
        sample(spec(2, 5, 3), ints(2, 4, high=5, dtype="u32"), spec(2, 2, 4, 3), 1),
        sample(spec(2, 5), ints(high=5), spec(2), -1),
        sample(spec(4, 3), ints(0, high=4), spec(0, 3)),
        *(sample(spec(3, 2), ints(6, high=3), spec(6, 2), mode=m) for m in _UPDATES),
        sample(ints(5, high=9), ints(8, high=5), ints(8, high=9), 0, "max"),
    ],
)
def scatter(
    x: Tensor,
    indices: Index,
    src: Tensor,
    axis: Axis = 0,
    mode: Literal["set", "add", "mul", "max", "min"] = "set",
) -> TensorType:
    """``x`` with slices along ``axis`` replaced by those of ``src``, one for each index.

    ``src`` has the shape that ``gather(x, indices, axis)`` gives. Where an index comes twice, the last
    slice is the one kept, and only it has a gradient; the other modes combine all of them with what was
    there, in order. The gradient of max and min goes to the first of equals, ``x`` before ``src``.
    """
    shape = gather.infer(x, indices, axis).shape
    if src.shape != shape:
        raise ShapeError(
            f"src is {format_shape(src.shape)}, but the indices select {format_shape(shape)}"
        )
    if x.dtype.kind == "bool" and mode in ("add", "mul"):
        raise DTypeError(f"bool has no arithmetic for mode '{mode}'", hint="use max or min")
    if x.dtype.kind == "complex" and mode in ("max", "min"):
        raise DTypeError(f"{x.dtype} has no order for mode '{mode}'")
    return x


@scatter.reference
def _(x: Array, indices: Array, src: Array, axis: int, mode: str) -> Array:
    check_indices(indices, x.shape[axis])
    result = x.copy()
    flat = indices.reshape(-1)
    slices = src.reshape((*x.shape[:axis], flat.size, *x.shape[axis + 1 :]))
    before: Any = (slice(None),) * axis
    if mode != "set":
        _UPDATES[mode].at(result, (*before, flat), slices)
        return result
    # NumPy does not promise which of several assignments to one place wins.
    places, from_end = np.unique(flat[::-1], return_index=True)
    result[(*before, places)] = np.take(slices, flat.size - 1 - from_end, axis)
    return result


@scatter.vjp
def _(g: Node, out: Node, x: Node, indices: Node, src: Node, axis: int, mode: str) -> Any:
    if mode == "add":
        return {"x": g, "src": lambda: gather(g, indices, axis)}
    if mode == "mul":
        return _by_product(g, x, indices, src, axis)
    if mode == "set":
        nothing = g.graph.literal(0, g.dtype)
        return {
            "x": lambda: scatter(g, indices, nothing.broadcast_to(src.shape), axis),
            "src": lambda: where(_is_last(x, indices, axis), gather(g, indices, axis), nothing),
        }
    return {
        "x": lambda: where(x == out, g, 0.0),
        "src": lambda: where(_is_chosen(out, x, indices, src, axis), gather(g, indices, axis), 0.0),
    }


def _numbered(x: Node, indices: Node, axis: int) -> Node:
    """The number of each slice in the order of writing, with size 1 on the axes of a slice."""
    number = x.graph.iota((product(indices.shape),))
    return reshaped(number, (*(1,) * axis, *indices.shape, *(1,) * (x.rank - axis - 1)))


def _is_last(x: Node, indices: Node, axis: int) -> Node:
    """Whether each slice is the last one written to its place."""
    number = _numbered(x, indices, axis)
    own = reshaped(number, indices.shape)
    last = scatter(x.graph.zeros((x.shape[axis],), dtypes.i32), indices, own, 0, "max")
    return reshaped(gather(last, indices, 0), number.shape) == number


def _is_chosen(out: Node, x: Node, indices: Node, src: Node, axis: int) -> Node:
    """Whether each element of ``src`` is the first that is the extreme, where ``x`` itself is not."""
    number = _numbered(x, indices, axis)
    extreme = gather(out, indices, axis)
    able = (src == extreme) & (gather(x, indices, axis) != extreme)
    beyond = as_number(x.graph, product(indices.shape))
    first = scatter(
        x.graph.full(x.shape, beyond, dtypes.i32),
        indices,
        where(able, number, beyond),
        axis,
        "min",
    )
    return able & (gather(first, indices, axis) == number)


def _by_product(g: Node, x: Node, indices: Node, src: Node, axis: int) -> Any:
    def factors() -> Node:
        return scatter(x.graph.ones(x.shape, x.dtype), indices, src, axis, "mul")

    def others() -> Node:
        if not src.dtype.is_half:
            return _product_of_others(indices, src, axis)
        return _product_of_others(indices, src.cast(dtypes.f32), axis).cast(src.dtype)

    return {"x": lambda: g * factors(), "src": lambda: gather(g * x, indices, axis) * others()}


def _product_of_others(indices: Node, src: Node, axis: int) -> Node:
    """For each slice, the product of all others with its index.

    Without a division, so that zeros are no exception, whatever the order of the derivative.
    """
    count = product(indices.shape)
    if isinstance(count, SymbolicDim):
        raise ShapeError(f"{count} indices are not known until they are bound", hint="bind first")
    if count < 2:
        return src.graph.ones(src.shape, src.dtype)
    flat = as_i32(reshaped(indices, (count,)))
    slices = reshaped(src, (*src.shape[:axis], count, *src.shape[axis + indices.rank :]))
    order = argsort(flat)
    index, value = gather(flat, order), gather(slices, order, axis)
    before = _product_before(value, index, axis)
    after = flip(_product_before(flip(value, axis), flip(index), axis), axis)
    return reshaped(gather(before * after, argsort(order), axis), src.shape)


def _product_before(value: Node, index: Node, axis: int) -> Node:
    """The product of what stands before each slice under the same of the sorted indices.

    Each round multiplies in as many more slices as the product already has.
    """
    count = int(index.shape[0])
    result, reach = _from_before(value, index, axis, 1), 1
    while reach < count - 1:
        result = result * _from_before(result, index, axis, reach)
        reach *= 2
    return result


def _from_before(value: Node, index: Node, axis: int, step: int) -> Node:
    """The slice ``step`` places before each where its index is the same, else ones."""
    same = pad(index, [(step, -step)], -1) == index
    moved = pad(value, [(step, -step) if i == axis else (0, 0) for i in range(value.rank)], 1.0)
    return where(reshaped(same, (*same.shape, *(1,) * (value.rank - axis - 1))), moved, 1.0)


@scatter.vmap
def _(
    size: Dim, batched: dict[str, Any], x: Node, indices: Node, src: Node, axis: int, mode: str
) -> Node:
    x = x if batched["x"] else spread(x, size)
    src = src if batched["src"] else spread(src, size)
    if not batched["indices"]:
        return scatter(x, indices, src, axis + 1, mode)
    # All axes up to the indexed one become one, in which every element of the batch has its own range.
    lead, rest, entries = x.shape[: axis + 1], x.shape[axis + 2 :], x.shape[axis + 1]
    whole = product(lead) * entries
    count = as_number(x.graph, entries)
    starts = x.graph.iota((product(lead),)) * count
    starts = reshaped(starts, (*lead, *(1,) * (indices.rank - 1)))
    own = as_i32(reshaped(indices, (size, *(1,) * axis, *indices.shape[1:])))
    # An index outside its own range must stay an error, not reach into the next.
    places = where((own >= 0) & (own < count), own + starts, -1)
    return reshaped(scatter(reshaped(x, (whole, *rest)), places, src, 0, mode), x.shape)
