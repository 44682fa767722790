"""Linear systems, inverses, determinants, and the Cholesky factor."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph.attributes import Float
from ..graph.data import Array
from ..graph.dims import Dim, format_shape, symbol
from ..graph.errors import RunError, ShapeError
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.op import builder, composite, primitive
from ..graph.types import TensorType
from .comparison import lt
from .contract import solve
from .elementwise import mul, where
from .functions import exp
from .samples import sample, spec
from .shapes import broadcast_to, reshape

FAMILY = "linear algebra"


@composite(
    family=FAMILY,
    samples=[
        sample(spec(4, 4, low=0.5, high=3), spec(4)),
        sample(spec(3, 3, low=0.5, high=3), spec(3, 2)),
        sample(spec(1, 1, low=1), spec(1)),
        sample(spec(0, 0), spec(0)),
        sample(spec(2, 2, low=0.5, high=3), spec(2, 0)),
    ],
)
def dense_solve(a: Float, b: Float) -> TensorType:
    """The ``x`` with ``a @ x = b``, for a [N, N] and b [N] or [N, K]."""
    if a.rank != 2:
        raise ShapeError(
            f"a must be a matrix, not {format_shape(a.shape)}",
            hint="batched_dense_solve takes one more axis" if a.rank == 3 else None,
        )
    return _solution(a, b)


@dense_solve.expand
def _(a: Node, b: Node) -> Node:
    return _solve(a, b)


@composite(
    family=FAMILY,
    samples=[
        sample(spec(2, 4, 4, low=0.5, high=3), spec(2, 4)),
        sample(spec(2, 3, 3, low=0.5, high=3), spec(2, 3, 2)),
        sample(spec(1, 1, 1, low=1), spec(1, 1)),
        sample(spec(0, 3, 3), spec(0, 3)),
        sample(spec(2, 0, 0), spec(2, 0, 3)),
    ],
)
def batched_dense_solve(a: Float, b: Float) -> TensorType:
    """``dense_solve`` for each matrix of a batch: a [B, N, N] and b [B, N] or [B, N, K]."""
    if a.rank != 3:
        raise ShapeError(
            f"a must be a batch of matrices, not {format_shape(a.shape)}",
            hint="dense_solve takes one matrix" if a.rank == 2 else None,
        )
    return _solution(a, b)


@batched_dense_solve.expand
def _(a: Node, b: Node) -> Node:
    return _solve(a, b)


def _square(a: TensorType) -> TensorType:
    """The type of ``a``, whose matrices must be square: the rule is that of ``solve``."""
    answer: TensorType = solve.infer(a, a)
    return answer


def _solution(a: TensorType, b: TensorType) -> TensorType:
    """The type of ``x``, which is that of ``b``."""
    lead = _square(a).shape[:-2]
    if b.rank not in (a.rank - 1, a.rank) or b.shape[: len(lead)] != lead:
        vector, matrix = a.shape[:-1], (*a.shape[:-1], symbol("K"))
        raise ShapeError(
            f"b must be {format_shape(vector)} or {format_shape(matrix)}, not {format_shape(b.shape)}"
        )
    if b.shape[len(lead)] != a.shape[-1]:
        raise ShapeError(f"a has {a.shape[-1]} rows, b has {b.shape[len(lead)]}")
    return b


def _solve(a: Node, b: Node) -> Node:
    if b.rank == a.rank:
        return solve(a, b)
    return reshape(solve(a, reshape(b, (*b.shape, 1))), b.shape)


@composite(
    family=FAMILY,
    samples=[
        sample(spec(3, 3, low=0.5, high=3)),
        sample(spec(2, 2, 4, 4, low=0.5, high=3)),
        sample(spec(1, 1, low=1)),
        sample(spec(0, 0)),
        sample(spec(0, 3, 3)),
    ],
)
def inverse(a: Float) -> TensorType:
    """The inverse of each square matrix. A singular one is an error when it runs.

    To multiply with an inverse, ``solve`` is faster and more exact.
    """
    return _square(a)


@inverse.expand
def _(a: Node) -> Node:
    identity = a.graph.eye(a.shape[-1], dtype=a.dtype)
    return solve(a, broadcast_to(identity, a.shape))


# --------------------------------------------------------------------------- factors, determinants


@primitive(
    family=FAMILY,
    samples=[
        sample(spec(3, 3, kind="definite")),
        sample(spec(3, 4, 4, kind="definite")),
        sample(spec(1, 1, low=0.5, high=3)),
        sample(spec(2, 3, 1, 1, low=0.5, high=3)),
        sample(spec(0, 0)),
        sample(spec(0, 2, 2)),
    ],
)
def cholesky(a: Float) -> TensorType:
    """The lower triangular ``l`` with ``l @ l.T = a``, for each positive definite matrix.

    Only the lower triangle of ``a`` is read. A matrix that is not positive definite is an error when it runs.
    """
    return _square(a)


@cholesky.reference
def _(a: Array) -> Array:
    try:
        return np.linalg.cholesky(a)
    except np.linalg.LinAlgError:
        raise RunError("the matrix is not positive definite") from None


@cholesky.cost
def _(a: TensorType) -> Dim:
    # Of the order of n^3; the exact third would not be a whole number of symbolic sizes.
    return a.size * a.shape[-1]


@primitive(
    family=FAMILY,
    samples=[
        sample(spec(3, 3)),
        sample(spec(2, 2, 4, 4)),
        sample(spec(1, 1)),
        sample(spec(5, 1, 1)),
        sample(spec(0, 0)),
        sample(spec(0, 2, 2)),
    ],
)
def slogdet(a: Float) -> tuple[TensorType, TensorType]:
    """The sign of each determinant (0 for a singular matrix) and the logarithm of its absolute value."""
    result = _square(a).with_shape(a.shape[:-2])
    return result, result


@slogdet.reference
def _(a: Array) -> tuple[Array, Array]:
    sign, logarithm = np.linalg.slogdet(a)
    return sign, logarithm


@slogdet.cost
def _(a: TensorType) -> Dim:
    return a.size * a.shape[-1]


@builder(family=FAMILY)
def det(graph: Graph, a: Node, shape: Any = None) -> Node:
    """The determinant of each square matrix. Where it may overflow, use ``slogdet``."""
    sign, logarithm = slogdet(a)
    return mul(sign, exp(logarithm), shape=shape)


@builder(family=FAMILY)
def logdet(graph: Graph, a: Node, shape: Any = None) -> Node:
    """The logarithm of each determinant: -inf where it is 0, NaN where it is negative."""
    sign, logarithm = slogdet(a)
    return where(lt(sign, 0), float("nan"), logarithm, shape=shape)
