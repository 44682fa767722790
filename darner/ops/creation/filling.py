"""Tensors made from a rule: fills, counts, identity matrices, triangles, one-hot rows."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from ...graph import dtypes
from ...graph.attributes import Index, Size, Tensor
from ...graph.dims import Dim, SymbolicDim, as_dim, as_shape
from ...graph.dtypes import DType
from ...graph.errors import ArgumentError, DTypeError, ShapeError
from ...graph.facts import Facts
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import builder, composite
from ...graph.types import TensorType
from ..elementwise.arithmetic import where
from ..samples import Sample, bools, ints, sample, spec
from ..shapes.shaping import integer

FAMILY = "fill"


@builder(family=FAMILY)
def full(graph: Graph, shape: Any, value: Any, dtype: Any = None) -> Node:
    """A tensor filled with one number: a scalar constant, broadcast.

    Without ``dtype`` it is the number's own: i32, f32, bool or c64.
    """
    if isinstance(shape, TensorType):
        shape, dtype = shape.shape, shape.dtype if dtype is None else dtype
    kind = None if dtype is None else dtypes.dtype(dtype)
    if isinstance(value, Node):
        filler = value if kind is None else value.cast(kind)
    else:
        filler = graph.literal(value, kind)
    sizes = as_shape(shape)
    return filler if filler.shape == sizes else filler.broadcast_to(sizes)


@builder(family=FAMILY)
def zeros(graph: Graph, shape: Any, dtype: Any = "f32") -> Node:
    """A tensor of zeros."""
    return graph.full(shape, 0, dtype)


@builder(family=FAMILY)
def ones(graph: Graph, shape: Any, dtype: Any = "f32") -> Node:
    """A tensor of ones."""
    return graph.full(shape, 1, dtype)


@builder(family=FAMILY)
def full_like(graph: Graph, x: Node, value: Any, dtype: Any = None) -> Node:
    """A tensor of ``x``'s shape (and element type, unless another is given) filled with one number."""
    return graph.full(x.shape, value, x.dtype if dtype is None else dtype)


@builder(family=FAMILY)
def zeros_like(graph: Graph, x: Node, dtype: Any = None) -> Node:
    """Zeros in ``x``'s shape and element type."""
    return x.full_like(0, dtype)


@builder(family=FAMILY)
def ones_like(graph: Graph, x: Node, dtype: Any = None) -> Node:
    """Ones in ``x``'s shape and element type."""
    return x.full_like(1, dtype)


# --------------------------------------------------------------------------- counting


@builder(family=FAMILY)
def arange(graph: Graph, start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Node:
    """``start``, ``start + step``, ... before ``stop``; from 0 when only one number is given.

    i32 for integers and f32 otherwise, unless ``dtype`` says more. Sizes may be symbols where step is 1.
    """
    first, last = (0, start) if stop is None else (start, stop)
    given = (first, last, step)
    for value in given:
        if isinstance(value, bool) or not isinstance(value, Real | SymbolicDim):
            raise ArgumentError(f"expected a number, got {value!r}")
    if step == 0:
        raise ArgumentError("step is 0")
    whole = all(isinstance(value, Integral | SymbolicDim) for value in given)
    kind = dtypes.dtype(dtype) if dtype is not None else dtypes.i32 if whole else dtypes.f32
    if kind.kind not in ("int", "float"):
        raise DTypeError(f"{kind} cannot count")
    count: Dim
    if any(isinstance(value, SymbolicDim) for value in given):
        if step != 1 or not whole:
            raise ShapeError("how many there are is not known until the sizes are bound")
        count = last - int(first)
    elif whole:
        count = len(range(int(first), int(last), int(step)))
    else:
        count = max(0, math.ceil((last - first) / step))
    # Narrow types would round or overflow on the way, so they are made from wider ones.
    wide = _counting_type(kind)
    up = graph.iota((count,), 0, wide)
    scaled = up if step == 1 else up * graph.literal(step, wide)
    shifted = scaled if first == 0 else scaled + graph.literal(first, wide)
    return shifted if wide is kind else shifted.cast(kind)


def _counting_type(kind: DType) -> DType:
    if kind.is_int:
        return dtypes.i64 if kind in (dtypes.i64, dtypes.u32) else dtypes.i32
    return dtypes.f32 if kind.is_half else kind


@builder(family=FAMILY)
def linspace(graph: Graph, start: Any, stop: Any, count: int, dtype: Any = "f32") -> Node:
    """``count`` numbers at equal distances from ``start`` to ``stop``, both included."""
    kind = dtypes.dtype(dtype)
    if not kind.is_float:
        raise DTypeError(f"{kind} cannot hold fractions")
    for value in (start, stop):
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ArgumentError(f"expected a number, got {value!r}")
    if integer(count, "count") < 0:
        raise ArgumentError(f"count {count} is negative")
    wide = _counting_type(kind)
    step = (stop - start) / max(count - 1, 1)
    up = graph.iota((count,), 0, wide)
    # Counted from the nearer end, so that both ends are exact.
    from_start = up * graph.literal(step, wide) + graph.literal(start, wide)
    down = graph.literal(max(count - 1, 0), wide) - up
    from_stop = graph.literal(stop, wide) - down * graph.literal(step, wide)
    near = up < graph.literal(max(count / 2, 1), wide)
    result: Node = where(near, from_start, from_stop)
    return result if wide is kind else result.cast(kind)


# --------------------------------------------------------------------------- matrices


@builder(family=FAMILY)
def eye(graph: Graph, n: Any, m: Any = None, dtype: Any = "f32") -> Node:
    """A matrix with ones on its diagonal and zeros elsewhere; square unless ``m`` is given."""
    rows = as_dim(n)
    columns = rows if m is None else as_dim(m)
    on_diagonal = graph.iota((rows, 1), 0) == graph.iota((1, columns), 1)
    return on_diagonal.cast(dtype)


_TRIANGLES: list[Sample] = [
    sample(spec(4, 4)),
    sample(spec(3, 5), 1),
    sample(spec(5, 3), -2),
    sample(spec(2, 3, 3), k=-1),
    sample(spec(0, 3)),
    sample(spec(3, 4), 9),
    sample(ints(3, 3, low=-9, high=9)),
    sample(bools(3, 3), 1),
]


def _check_matrix(x: TensorType) -> None:
    if x.rank < 2:
        raise ShapeError(f"a matrix is needed, not rank {x.rank}")


def _above(x: Node, k: int) -> Node:
    """Where the column passes the row by more than ``k``."""
    rows, columns = x.shape[-2:]
    down = x.graph.iota((rows, 1), 0)
    across = x.graph.iota((1, columns), 1)
    return across > (down + k if k else down)


@composite(family=FAMILY, samples=_TRIANGLES, traits=["moves"], facts=Facts(fused=True))
def tril(x: Tensor, k: int = 0) -> TensorType:
    """The lower triangle of the last two axes: zeros above diagonal ``k`` (0 the main one, 1 above it)."""
    _check_matrix(x)
    return x


@tril.expand
def _(x: Node, k: int) -> Node:
    return where(_above(x, k), x.graph.literal(0, x.dtype), x)


@tril.vjp
def _(g: Node, out: Node, x: Node, k: int) -> Node:
    return tril(g, k)


@tril.vmap
def _(size: Dim, batched: Any, x: Node, k: int) -> Node:
    return tril(x, k)


@composite(family=FAMILY, samples=_TRIANGLES, traits=["moves"], facts=Facts(fused=True))
def triu(x: Tensor, k: int = 0) -> TensorType:
    """The upper triangle of the last two axes: zeros below diagonal ``k`` (0 the main one, 1 above it)."""
    _check_matrix(x)
    return x


@triu.expand
def _(x: Node, k: int) -> Node:
    return where(_above(x, k - 1), x, x.graph.literal(0, x.dtype))


@triu.vjp
def _(g: Node, out: Node, x: Node, k: int) -> Node:
    return triu(g, k)


@triu.vmap
def _(size: Dim, batched: Any, x: Node, k: int) -> Node:
    return triu(x, k)


@composite(
    family=FAMILY,
    samples=[
        sample(ints(5, high=4), 4),
        sample(ints(2, 3, high=7, dtype="u32"), 7, "f64"),
        sample(ints(6, low=-2, high=6), 3),
        sample(ints(high=3, dtype="u8"), 3, "i32"),
        sample(ints(4, high=3, dtype="i64"), 3, "bool"),
        sample(ints(4, high=3), 0),
        sample(ints(0, high=3), 3, "f16"),
    ],
)
def one_hot(indices: Index, depth: Size, dtype: DType = dtypes.f32) -> TensorType:
    """For each index, a row of ``depth`` zeros with a 1 in its place; all zeros when it is outside."""
    if isinstance(depth, int) and depth < 0:
        raise ShapeError(f"depth {depth} is negative")
    return TensorType((*indices.shape, depth), dtype)


@one_hot.expand
def _(indices: Node, depth: Dim, dtype: DType) -> Node:
    return (indices.unsqueeze(-1) == indices.graph.iota((depth,))).cast(dtype)


@one_hot.vmap
def _(size: Dim, batched: Any, indices: Node, depth: Dim, dtype: DType) -> Node:
    return one_hot(indices, depth, dtype)
