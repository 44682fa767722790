"""Where values come from: inputs, parameters, state, constants."""

from __future__ import annotations

from typing import Any, Literal

from ...graph import dtypes
from ...graph.attributes import Name, ShapeOf, Tuple, Values
from ...graph.data import Array, Data, as_data
from ...graph.dims import as_shape, format_shape, product
from ...graph.dtypes import DType
from ...graph.errors import ArgumentError, DTypeError, ShapeError
from ...graph.facts import Facts
from ...graph.graph import Graph
from ...graph.initial import parse_rule
from ...graph.node import Node
from ...graph.op import primitive
from ...graph.types import TensorType, TupleType
from ..samples import sample

Q_BLOCK = 32


def _leaf_call(graph: Graph, name: Any, shape: Any, dtype: Any = None, **kwargs: Any) -> Any:
    """Put the scope in front of the name, and read a type given as one."""
    if isinstance(shape, TensorType):
        stated = shape.dtype
        if dtype is not None and dtypes.dtype(dtype) is not stated:
            raise DTypeError(f"the type says {stated} but dtype={dtypes.dtype(dtype)} was given")
        shape, dtype = shape.shape, stated
    if isinstance(name, str) and name:
        name = graph.labelled(name)
    return (name, shape, "f32" if dtype is None else dtype), kwargs


@primitive(family="leaves", traits=["leaf"])
def input(name: Name, shape: ShapeOf, dtype: DType = dtypes.f32) -> TensorType:
    """A tensor given at every run, by its name."""
    return TensorType(shape, dtype)


input.spelling(_leaf_call)


@primitive(family="leaves", traits=["leaf"])
def parameter(
    name: Name,
    shape: ShapeOf,
    dtype: DType = dtypes.f32,
    *,
    storage: Literal["dense", "q4", "q8"] = "dense",
    init: str | None = None,
) -> TensorType:
    """A trained tensor, kept between runs and saved by its name.

    ``storage`` says how it is kept in memory and in checkpoints: as it is, or quantised in blocks of 32 values down each column (``q4``:
    4 bits with a scale and a minimum, ``q8``: 8 bits with a scale). Floats that it is set to are quantised; what is computed with is what the
    stored form decodes to. ``init`` is how a session fills it where it is not told otherwise, such as ``"normal(0.02)"``
    or ``"ones"``; zeros when left out.
    """
    if init is not None:
        parse_rule(init)
    if storage != "dense":
        if len(shape) != 2 or not dtype.is_float:
            raise ShapeError(
                f"{storage} storage needs a float matrix, got {dtype}{format_shape(shape)}"
            )
        if shape[0] % Q_BLOCK:
            raise ShapeError(f"{storage} storage needs rows in blocks of {Q_BLOCK}, got {shape[0]}")
    return TensorType(shape, dtype)


parameter.spelling(_leaf_call)


@primitive(family="leaves", traits=["leaf"])
def state(
    name: Name, shape: ShapeOf, dtype: DType = dtypes.f32, *, init: float = 0.0
) -> TensorType:
    """A tensor kept between runs and changed by them (a cache, a running mean), never trained.

    It starts filled with ``init``; ``graph.set_update(state, value)`` says what follows.
    """
    as_data(init, dtype)  # refuses what the type cannot hold
    return TensorType(shape, dtype)


state.spelling(_leaf_call)


@primitive(
    family="leaves",
    traits=["leaf"],
    samples=[sample([1.0, 2.0, 3.0]), sample(2.5), sample([[1, 2], [3, 4]]), sample([True, False])],
)
def constant(values: Values) -> TensorType:
    """A tensor whose values are part of the graph: ``g.constant(data, shape=None, dtype=None)``."""
    return values.type


@constant.spelling
def _(graph: Graph, values: Any, shape: Any = None, dtype: Any = None) -> Any:
    if isinstance(values, Node):
        raise ArgumentError("a constant is made of numbers, not of a node")
    data = as_data(values, None if dtype is None else dtypes.dtype(dtype))
    if shape is not None:
        sizes = as_shape(shape.shape if isinstance(shape, TensorType) else shape)
        if product(sizes) != data.array.size:
            raise ShapeError(f"{data.array.size} values do not fill {format_shape(sizes)}")
        data = Data(data.array.reshape([int(size) for size in sizes]))
    return (data,), {}


@constant.reference
def _(values: Data) -> Array:
    return values.array


@primitive(family="leaves", traits=["view"], facts=Facts(role="part"))
def project(source: Tuple, index: int) -> TensorType:
    """One result of a node that has several."""
    if not isinstance(source, TupleType):
        raise ArgumentError(f"only a node with several results can be projected, not {source}")
    if not 0 <= index < len(source.items):
        raise ArgumentError(f"index {index} is outside 0..{len(source.items) - 1}")
    return source.items[index]


@project.reference
def _(source: tuple[Array, ...], index: int) -> Array:
    return source[index]
