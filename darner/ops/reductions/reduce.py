"""Reductions over any axes, arg-reductions, running reductions, and linear recurrences."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import numpy as np

from ...graph import dtypes
from ...graph.attributes import Analytic, Axes, Axis, Mask, Real, Tensor
from ...graph.data import Array
from ...graph.dims import Dim, format_shape, product
from ...graph.errors import ArgumentError, ShapeError
from ...graph.facts import Facts
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import Op, Rule, composite, primitive
from ...graph.types import TensorType
from ..axes import spread
from ..samples import Sample, bools, ints, sample, spec
from ..shapes.primitives import concat, flip, pad, reshape, transpose
from ..shapes.shaping import cut

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


def in_line(x: Node, axes: tuple[int, ...]) -> tuple[Node, int, Callable[[Node], Node]]:
    """``x`` with ``axes`` made into one, in row-major order; where that one is; and the way back."""
    if len(axes) == 1:
        return x, axes[0], lambda value: value
    kept = [i for i in range(x.rank) if i not in axes]
    order = (*kept, *axes)
    moved = _permuted(x, order)
    line = reshape(moved, (*moved.shape[: len(kept)], product(moved.shape[len(kept) :])))

    def back(value: Node) -> Node:
        return _permuted(reshape(value, moved.shape), tuple(order.index(i) for i in range(x.rank)))

    return line, len(kept), back


def _permuted(x: Node, order: tuple[int, ...]) -> Node:
    return x if order == tuple(range(x.rank)) else transpose(x, order)


def along(x: Node, axis: int) -> Node:
    """0, 1, 2, ... along one axis of ``x``, with size 1 on the others."""
    return x.graph.iota([size if i == axis else 1 for i, size in enumerate(x.shape)], axis)


def in_f32(rule: Rule) -> Rule:
    """A vjp rule of one operand that computes with 16-bit floats in f32, and rounds at its end."""

    @wraps(rule)
    def wide(g: Node, out: Node, x: Node, **attrs: Any) -> Node:
        if not x.dtype.is_half:
            return rule(g, out, x, **attrs)
        result: Node = rule(g.cast("f32"), out.cast("f32"), x.cast("f32"), **attrs)
        return result.cast(x.dtype)

    return wide


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


def _reduction(  # many parameters: an op's record, field by field
    name: str,
    doc: str,
    numpy: Rule,
    kind: Any,
    samples: list[Sample],
    *,
    empty: bool,
    widen: bool,
    selects: bool = False,
) -> Op:
    def infer(x: TensorType, axes: tuple[int, ...], keepdims: bool = False) -> TensorType:
        if not empty:
            require_elements(x, axes)
        kept = x.with_dtype(dtypes.accumulator(x.dtype)) if widen else x
        return reduced(kept, axes, keepdims)

    infer.__annotations__ = {"x": kind, "axes": Axes | None, "keepdims": bool}
    infer.__defaults__ = (None, False)
    infer.__doc__ = doc
    facts = Facts(role="reduce", reads_all=True, selects=selects)
    op = primitive(family=FAMILY, name=name, samples=samples, facts=facts)(infer)
    op.spelling(reduction_call)
    op.vmap(lambda size, batched, x, axes, keepdims: op(x, tuple(a + 1 for a in axes), keepdims))

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


@prod.vjp
@in_f32
def _(g: Node, out: Node, x: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
    # The product of the others, without a division: exact whatever is 0.
    line, axis, back = in_line(x, axes)
    before = shifted(cumprod(line, axis), axis, 1, 1.0)
    after = shifted(cumprod(line, axis, reverse=True), axis, -1, 1.0)
    return with_axes(g, x, axes, keepdims) * back(before * after)


max_ = _reduction(
    "max",
    """The largest element over ``axes`` (all by default); NaN if there is one. Of 0 and -0 it is either.

    Its gradient goes to the first of the largest elements, in row-major order.
    """,
    np.max,
    Real,
    _DISTINCT,
    empty=False,
    widen=False,
    selects=True,
)
min_ = _reduction(
    "min",
    """The smallest element over ``axes`` (all by default); NaN if there is one. Of 0 and -0 it is either.

    Its gradient goes to the first of the smallest elements, in row-major order.
    """,
    np.min,
    Real,
    _DISTINCT,
    empty=False,
    widen=False,
    selects=True,
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
    facts = Facts(role="reduce", reads_all=True, finds=True)
    op = primitive(family=FAMILY, name=name, samples=samples, facts=facts)(infer)
    op.reference(lambda x, axis, keepdims: numpy(x, axis=axis, keepdims=keepdims))

    @op.vmap
    def _(size: Dim, batched: Any, x: Node, axis: int | None, keepdims: bool) -> Node:
        if axis is not None:
            return op(x, axis + 1, keepdims)
        result: Node = op(reshape(x, (size, product(x.shape[1:]))), 1)
        return reshape(result, (size, *(1,) * (x.rank - 1))) if keepdims else result

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


def first_extreme(x: Node, axes: tuple[int, ...], choose: Op) -> Node:
    """Whether each element is the one that ``choose`` (argmax or argmin) finds over ``axes``."""
    line, axis, back = in_line(x, axes)
    return back(along(line, axis) == choose(line, axis, True))


def _extreme_vjp(choose: Op) -> Rule:
    def rule(g: Node, out: Node, x: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
        return first_extreme(x, axes, choose).where(with_axes(g, x, axes, keepdims), 0.0)

    return rule


max_.vjp(_extreme_vjp(argmax))
min_.vjp(_extreme_vjp(argmin))

# --------------------------------------------------------------------------- running reductions

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
    facts=Facts(role="scan"),
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


@cumsum.vmap
def _(size: Dim, batched: Any, x: Node, axis: int, exclusive: bool, reverse: bool) -> Node:
    return cumsum(x, axis + 1, exclusive, reverse=reverse)


def _running(name: str, doc: str, numpy: Rule, kind: Any, *, widen: bool = False) -> Op:
    def infer(x: TensorType, axis: int = -1, *, reverse: bool = False) -> TensorType:
        return x.with_dtype(dtypes.accumulator(x.dtype)) if widen else x

    infer.__annotations__ = {"x": kind, "axis": Axis, "reverse": bool}
    infer.__doc__ = doc
    samples = [*_RUNNING, sample(spec(3, 5), 1, reverse=True)]
    facts = Facts(role="scan", selects=not widen)
    op = primitive(family=FAMILY, name=name, samples=samples, facts=facts)(infer)
    op.vmap(lambda size, batched, x, axis, reverse: op(x, axis + 1, reverse=reverse))

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
cummax = _running(
    "cummax",
    "Running maxima along ``axis``. The gradient of each goes to the first element that has it.",
    np.maximum.accumulate,
    Real,
)
cummin = _running(
    "cummin",
    "Running minima along ``axis``. The gradient of each goes to the first element that has it.",
    np.minimum.accumulate,
    Real,
)


def shifted(x: Node, axis: int, places: int, filler: float) -> Node:
    """``x`` moved up along ``axis`` (down for negative places), with ``filler`` where nothing comes."""
    padding = tuple((places, -places) if i == axis else (0, 0) for i in range(x.rank))
    return pad(x, padding, filler)


@cumprod.vjp
@in_f32
def _(g: Node, out: Node, x: Node, axis: int, reverse: bool) -> Node:
    # An element's share of all products it is in: what comes before it, times a sum of products of what comes after
    # it. No division, so zeros are exact.
    step = -1 if reverse else 1
    after = linear_recurrence(shifted(x, axis, -step, 0.0), g, axis, reverse=not reverse)
    return shifted(out, axis, step, 1.0) * after


def _running_extreme_vjp(g: Node, out: Node, x: Node, axis: int, reverse: bool) -> Node:
    if reverse:
        return flip(_running_extreme_vjp(flip(g, axis), flip(out, axis), x, axis, False), axis)
    # A new extreme is one that differs from the last; nothing comes after NaN.
    last = shifted(out, axis, 1, 0.0)
    is_new = (out != last) & ~last.is_nan()
    place: Node = cummax(is_new.where(along(out, axis), 0), axis)
    result: Node = place.scatter_add_along_axis(g, x.shape[axis], axis)
    return result


cummax.vjp(_running_extreme_vjp)
cummin.vjp(_running_extreme_vjp)


@composite(
    family=FAMILY,
    samples=[
        sample(spec(3, 5), spec(3, 5)),
        sample(spec(3, 5), spec(3, 5), 0),
        sample(spec(2, 3, 4), spec(2, 3, 4), 1, reverse=True),
        sample(spec(1), spec(1)),
        sample(spec(2, 0), spec(2, 0), reverse=True),
        sample(ints(4, high=3), spec(4)),
    ],
)
def linear_recurrence(
    a: Analytic, b: Analytic, axis: Axis = -1, *, reverse: bool = False
) -> TensorType:
    """``y[i] = a[i] * y[i - 1] + b[i]`` along ``axis``, from ``y[-1] = 0``; ``reverse`` starts at the end.

    It takes about log2(size) steps over the whole tensor. The first ``a`` is not used.
    """
    if a.shape != b.shape:
        raise ShapeError(
            f"a is {format_shape(a.shape)}, b is {format_shape(b.shape)}: shapes must be equal"
        )
    return b


@linear_recurrence.expand
def _(a: Node, b: Node, axis: int, reverse: bool) -> Node:
    size = int(b.shape[axis])
    span = 1
    while span < size:
        # Every element now holds what its last ``span`` terms give: joined with those before them.
        head, tail = _split(b, axis, span, reverse)
        reach, factor = _split(a, axis, span, reverse)
        b = _joined(head, tail + factor * _trimmed(b, axis, span, reverse), axis, reverse)
        a = _joined(reach, factor * _trimmed(a, axis, span, reverse), axis, reverse)
        span *= 2
    return b


def _split(x: Node, axis: int, span: int, reverse: bool) -> tuple[Node, Node]:
    """The first ``span`` elements in the direction of the walk, and the rest."""
    size = x.shape[axis]
    if reverse:
        return cut(x, axis, size - span, size), cut(x, axis, 0, size - span)
    return cut(x, axis, 0, span), cut(x, axis, span, size)


def _trimmed(x: Node, axis: int, span: int, reverse: bool) -> Node:
    """``x`` without the last ``span`` elements in the direction of the walk."""
    return _split(x, axis, span, not reverse)[1]


def _joined(first: Node, rest: Node, axis: int, reverse: bool) -> Node:
    return concat([rest, first] if reverse else [first, rest], axis)


@linear_recurrence.vjp
def _(g: Node, out: Node, a: Node, b: Node, axis: int, reverse: bool) -> Any:
    step = -1 if reverse else 1

    @cache
    def to_b() -> Node:
        factors = shifted(a, axis, -step, 0.0)
        return linear_recurrence(factors, g, axis, reverse=not reverse)

    return {"a": lambda: to_b() * shifted(out, axis, step, 0.0), "b": to_b}


@linear_recurrence.vmap
def _(size: Dim, batched: Any, a: Node, b: Node, axis: int, reverse: bool) -> Node:
    whole = [node if batched[name] else spread(node, size) for name, node in (("a", a), ("b", b))]
    return linear_recurrence(*whole, axis + 1, reverse=reverse)
