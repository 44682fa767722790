"""Sorting: values in order, the indices that order them, and the largest few."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graph import dtypes
from ...graph.attributes import Axis, Real
from ...graph.data import Array
from ...graph.dims import Dim
from ...graph.errors import ArgumentError
from ...graph.facts import Facts
from ...graph.node import Node
from ...graph.op import primitive
from ...graph.types import TensorType
from ..samples import ints, sample, spec
from .index import FAMILY, scatter_add_along_axis

_SORTED = [
    sample(spec(3, 7, distinct=True)),
    sample(spec(5, 4, distinct=True), 0),
    sample(spec(2, 3, 4, distinct=True), -2, True),
    sample(ints(20, high=5), 0, True),
    sample(ints(20, high=5)),
    sample(spec(0, 3), 0),
    sample(spec(3, 1)),
]


@primitive(family=FAMILY, samples=_SORTED, facts=Facts(role="index", selects=True))
def sort(x: Real, axis: Axis = -1, descending: bool = False) -> TensorType:
    """The elements along ``axis`` in order; NaN sorts above everything.

    Each gradient goes back to where its element came from; equal elements keep their order.
    """
    return x


@primitive(family=FAMILY, samples=_SORTED, facts=Facts(role="index"))
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


@sort.vjp
def _(g: Node, out: Node, x: Node, axis: int, descending: bool) -> Node:
    return scatter_add_along_axis(argsort(x, axis, descending), g, x.shape[axis], axis)


@sort.vmap
def _(size: Dim, batched: dict[str, Any], x: Node, axis: int, descending: bool) -> Node:
    return sort(x, axis + 1, descending)


@argsort.reference
def _(x: Array, axis: int, descending: bool) -> Array:
    return _order(x, axis, descending)


@argsort.vmap
def _(size: Dim, batched: dict[str, Any], x: Node, axis: int, descending: bool) -> Node:
    return argsort(x, axis + 1, descending)


@primitive(
    family=FAMILY,
    facts=Facts(role="index"),
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


@top_k.vjp
def _(g: Any, out: Any, x: Node, k: int, axis: int) -> Any:
    values, places = g[0], out[1]
    return None if values is None else scatter_add_along_axis(places, values, x.shape[axis], axis)


@top_k.vmap
def _(size: Dim, batched: dict[str, Any], x: Node, k: int, axis: int) -> Any:
    return top_k(x, k, axis + 1)
