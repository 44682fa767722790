"""Reductions over any axes, arg-reductions and running reductions."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.attributes import Axes, Axis, Mask, Real, Tensor
from ..graph.data import Array
from ..graph.errors import ArgumentError, ShapeError
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.op import Op, Rule, primitive
from ..graph.types import TensorType
from .samples import Sample, bools, ints, sample, spec

FAMILY = "reduction"

_SAMPLES = [
    sample(spec(3, 5)),
    sample(spec(3, 5), -1),
    sample(spec(2, 3, 4), (0, 2)),
    sample(spec(2, 3, 4), (0, 2), True),
    sample(spec(1, 7), 0),
    sample(spec()),
    sample(spec(3, 0, 2), 0),
    sample(ints(3, 4, low=-5, high=6), 1),
]
_EMPTY = [sample(spec(0, 3)), sample(spec(3, 0), 1)]
_DISTINCT = [
    sample(spec(3, 5, distinct=True)),
    sample(spec(3, 5, distinct=True), -1),
    sample(spec(2, 3, 4, distinct=True), 1, True),
    sample(spec(1, 7, distinct=True), 0),
    sample(spec(3, 0, 2), 0),
    sample(ints(3, 4, low=-5, high=6), 1),
]


def reduced(x: TensorType, axes: tuple[int, ...], keepdims: bool) -> TensorType:
    """The type of ``x`` with some axes summed away (or left at size 1)."""
    if keepdims:
        return x.with_shape([1 if i in axes else size for i, size in enumerate(x.shape)])
    return x.with_shape([size for i, size in enumerate(x.shape) if i not in axes])


def with_axes(value: Node, x: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
    """A reduction's result (or its cotangent) with the axes of ``x`` that went kept at size 1."""
    if keepdims or not axes:
        return value
    return value.reshape(tuple(1 if i in axes else size for i, size in enumerate(x.shape)))


def require_elements(x: TensorType, axes: tuple[int, ...]) -> None:
    """Refuse to look for an extreme of nothing."""
    for axis in axes:
        if x.shape[axis] == 0:
            raise ShapeError(f"axis {axis} has no elements to choose from")


def reduction_call(graph: Graph, *args: Any, **kwargs: Any) -> Any:
    """Other names for the arguments of a reduction: ``axis`` for one axis, ``keep_dim`` as RLX says."""
    for other, name in (("axis", "axes"), ("keep_dim", "keepdims")):
        if other in kwargs:
            if name in kwargs:
                raise ArgumentError(f"'{other}' and '{name}' are one argument, given twice")
            kwargs[name] = kwargs.pop(other)
    return args, kwargs


def _reduction(
    name: str, doc: str, numpy: Rule, kind: Any, samples: list[Sample], *, empty: bool, widen: bool
) -> Op:
    def infer(x: TensorType, axes: tuple[int, ...], keepdims: bool = False) -> TensorType:
        if not empty:
            require_elements(x, axes)
        kept = x.with_dtype(dtypes.accumulator(x.dtype)) if widen else x
        return reduced(kept, axes, keepdims)

    infer.__annotations__ = {"x": kind, "axes": Axes | None, "keepdims": bool}
    infer.__defaults__ = (None, False)
    infer.__doc__ = doc
    op = primitive(family=FAMILY, name=name, samples=samples)(infer)
    op.spelling(reduction_call)

    @op.reference
    def _(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
        # Small integers are summed in the type of the result, and NumPy's order of summation follows
        # the layout, so that one is fixed too.
        wide = x.astype(dtypes.accumulator(dtypes.dtype(x.dtype)).numpy, order="C") if widen else x
        return numpy(wide, axis=axes, keepdims=keepdims)

    return op


sum_ = _reduction(
    "sum",
    """The sum over ``axes`` (all by default). bool and integers below 32 bits sum to i32.""",
    lambda x, axis, keepdims: np.sum(x, axis, dtype=x.dtype, keepdims=keepdims),
    Tensor,
    [*_SAMPLES, *_EMPTY, sample(bools(3, 4), 1)],
    empty=True,
    widen=True,
)


@sum_.vjp
def _(g: Node, out: Node, x: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
    return with_axes(g, x, axes, keepdims).broadcast_to(x.shape)


prod = _reduction(
    "prod",
    """The product over ``axes`` (all by default). bool and integers below 32 bits widen to i32.""",
    lambda x, axis, keepdims: np.prod(x, axis, dtype=x.dtype, keepdims=keepdims),
    Tensor,
    [*_SAMPLES, *_EMPTY],
    empty=True,
    widen=True,
)
max_ = _reduction(
    "max",
    """The largest element over ``axes`` (all by default); NaN if there is one.""",
    np.max,
    Real,
    _DISTINCT,
    empty=False,
    widen=False,
)
min_ = _reduction(
    "min",
    """The smallest element over ``axes`` (all by default); NaN if there is one.""",
    np.min,
    Real,
    _DISTINCT,
    empty=False,
    widen=False,
)
_BOOLS = [
    sample(bools(3, 5)),
    sample(bools(3, 5), -1),
    sample(bools(2, 3, 4), (0, 2), True),
    sample(bools(0, 3), 0),
]
any_ = _reduction(
    "any",
    """Whether any element over ``axes`` is True; False for none.""",
    np.any,
    Mask,
    _BOOLS,
    empty=True,
    widen=False,
)
all_ = _reduction(
    "all",
    """Whether all elements over ``axes`` are True; True for none.""",
    np.all,
    Mask,
    _BOOLS,
    empty=True,
    widen=False,
)


def _arg_reduction(name: str, doc: str, numpy: Rule) -> Op:
    def infer(x: TensorType, axis: int | None = None, keepdims: bool = False) -> TensorType:
        axes = tuple(range(x.rank)) if axis is None else (axis,)
        require_elements(x, axes)
        return reduced(x, axes, keepdims).with_dtype(dtypes.i32)

    infer.__annotations__ = {"x": Real, "axis": Axis | None, "keepdims": bool}
    infer.__doc__ = doc
    samples = [
        sample(spec(3, 5, distinct=True)),
        sample(spec(3, 5, distinct=True), -1),
        sample(spec(2, 3, 4, distinct=True), 1, True),
        sample(spec(3, 0), 0),
        sample(ints(4, 6, high=3), 1),
    ]
    op = primitive(family=FAMILY, name=name, samples=samples)(infer)
    op.reference(lambda x, axis, keepdims: numpy(x, axis=axis, keepdims=keepdims))
    return op


argmax = _arg_reduction(
    "argmax",
    """The index (i32) of the first largest element along ``axis``, or in the flattened tensor.""",
    np.argmax,
)
argmin = _arg_reduction(
    "argmin",
    """The index (i32) of the first smallest element along ``axis``, or in the flattened tensor.""",
    np.argmin,
)

_RUNNING = [
    sample(spec(3, 5)),
    sample(spec(3, 5), 0),
    sample(spec(2, 3, 4), -2),
    sample(spec(0, 3), 0),
    sample(spec(1)),
    sample(ints(6, low=-3, high=4)),
]


@primitive(
    family=FAMILY,
    samples=[
        *_RUNNING,
        sample(spec(3, 5), 1, True),
        sample(spec(3, 5), 1, reverse=True),
        sample(spec(4), 0, True, reverse=True),
        sample(spec(0), 0, True),
        sample(bools(5), 0),
    ],
)
def cumsum(
    x: Tensor, axis: Axis = -1, exclusive: bool = False, *, reverse: bool = False
) -> TensorType:
    """Running sums along ``axis``; ``exclusive`` leaves each element out of its own sum.

    ``reverse`` starts at the end. bool and integers below 32 bits sum to i32.
    """
    return x.with_dtype(dtypes.accumulator(x.dtype))


@cumsum.reference
def _(x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
    x = x.astype(dtypes.accumulator(dtypes.dtype(x.dtype)).numpy)
    x = np.flip(x, axis) if reverse else x
    total = np.cumsum(x, axis, dtype=x.dtype)
    if exclusive:
        total = np.roll(total, 1, axis)
        total[(slice(None),) * axis + (slice(0, 1),)] = 0
    return np.flip(total, axis) if reverse else total


@cumsum.vjp
def _(g: Node, out: Node, x: Node, axis: int, exclusive: bool, reverse: bool) -> Node:
    return cumsum(g, axis, exclusive, reverse=not reverse)


def _running(name: str, doc: str, numpy: Rule, kind: Any, *, widen: bool = False) -> Op:
    def infer(x: TensorType, axis: int = -1, *, reverse: bool = False) -> TensorType:
        return x.with_dtype(dtypes.accumulator(x.dtype)) if widen else x

    infer.__annotations__ = {"x": kind, "axis": Axis, "reverse": bool}
    infer.__doc__ = doc
    samples = [*_RUNNING, sample(spec(3, 5), 1, reverse=True)]
    op = primitive(family=FAMILY, name=name, samples=samples)(infer)

    @op.reference
    def _(x: Array, axis: int, reverse: bool) -> Array:
        x = x.astype(dtypes.accumulator(dtypes.dtype(x.dtype)).numpy) if widen else x
        answer = numpy(np.flip(x, axis) if reverse else x, axis, dtype=x.dtype)
        return np.flip(answer, axis) if reverse else answer

    return op


cumprod = _running(
    "cumprod",
    "Running products along ``axis``. bool and integers below 32 bits widen to i32.",
    np.multiply.accumulate,
    Tensor,
    widen=True,
)
cummax = _running("cummax", "Running maxima along ``axis``.", np.maximum.accumulate, Real)
cummin = _running("cummin", "Running minima along ``axis``.", np.minimum.accumulate, Real)
