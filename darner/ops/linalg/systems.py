"""Linear systems, inverses, determinants, and the Cholesky factor."""

from __future__ import annotations

from functools import wraps
from typing import Any

import numpy as np

from ...graph import dtypes
from ...graph.attributes import Float
from ...graph.data import Array
from ...graph.dims import Dim, format_shape, symbol
from ...graph.errors import ShapeError
from ...graph.facts import Facts
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import Rule, builder, composite, primitive
from ...graph.types import TensorType
from ..axes import from_front, spread, to_front
from ..elementwise.arithmetic import mul, where
from ..elementwise.comparison import lt
from ..elementwise.functions import exp
from ..faults import check_matrices
from ..samples import sample, spec
from ..shapes.primitives import broadcast_to, reshape, transpose

FAMILY = "linear algebra"

# --------------------------------------------------------------------------- solves


def computed_in_f32(rule: Rule) -> Rule:
    """A vjp rule of several steps that takes 16-bit floats as f32, and rounds only at its end."""

    @wraps(rule)
    def wide(g: Any, out: Any, **arguments: Any) -> Any:
        nodes = {name: x for name, x in arguments.items() if isinstance(x, Node)}
        halves = {name: x for name, x in nodes.items() if x.dtype.is_half}
        if not halves:
            return rule(g, out, **arguments)
        widened = {name: _widened(x) for name, x in halves.items()}
        answer = rule(_widened(g), _widened(out), **{**arguments, **widened})
        return {name: _narrowed(part, halves[name].dtype) for name, part in answer.items()}

    return wide


def _widened(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_widened, value))
    return None if value is None else value.cast(dtypes.f32)


def _narrowed(part: Rule | None, kind: dtypes.DType) -> Rule | None:
    return None if part is None else lambda: part().cast(kind)


def flipped(a: Node) -> Node:
    """Each matrix of ``a`` transposed."""
    order = (*range(a.rank - 2), a.rank - 1, a.rank - 2)
    result: Node = transpose(a, order)
    return result


def _check_square(a: TensorType) -> None:
    if a.rank < 2 or a.shape[-1] != a.shape[-2]:
        raise ShapeError("a must be square in its last two axes")


@primitive(
    family=FAMILY,
    facts=Facts(fails_on="matrix", refuses="singular"),
    samples=[
        sample(spec(3, 3, low=0.5, high=3), spec(3, 2)),
        sample(spec(2, 4, 4, low=0.5, high=3), spec(2, 4, 1)),
        sample(spec(1, 1, low=1), spec(1, 5)),
        sample(spec(0, 0), spec(0, 2)),
    ],
)
def solve(a: Float, b: Float) -> TensorType:
    """The ``x`` with ``a @ x = b``, for each matrix of a batch. ``b`` is a matrix of right-hand sides.

    A singular ``a`` is an error when it runs.
    """
    _check_square(a)
    if b.rank != a.rank or b.shape[:-2] != a.shape[:-2]:
        raise ShapeError("b must have a's batch axes and two more")
    if b.shape[-2] != a.shape[-1]:
        raise ShapeError(f"a has {a.shape[-1]} rows, b has {b.shape[-2]}")
    return b


@solve.reference
def _(a: Array, b: Array) -> Array:
    try:
        return np.linalg.solve(a, b)
    except np.linalg.LinAlgError:
        check_matrices("solve", a, _is_regular)
        raise


def _is_regular(matrix: Array) -> bool:
    try:
        np.linalg.inv(matrix)
    except np.linalg.LinAlgError:
        return False
    return True


@solve.vjp
@computed_in_f32
def _(g: Node, out: Node, a: Node, b: Node) -> Any:
    found = solve(flipped(a), g)
    return {"a": lambda: -found.matmul_bt(out), "b": lambda: found}


@solve.vmap
def _(size: Dim, batched: dict[str, Any], a: Node, b: Node) -> Node:
    return _solve_batch(solve, size, batched, a, b)


def _solve_batch(
    rule: Rule, size: Dim, batched: dict[str, Any], a: Node, b: Node, **attrs: Any
) -> Node:
    """A solve over a batch. Right-hand sides of one shared matrix stand side by side as its columns."""
    if batched["a"]:
        return rule(a, b if batched["b"] else spread(b, size), **attrs)
    last = a.rank - 1
    side_by_side = from_front(b, last)
    columns = (*side_by_side.shape[:last], size * b.shape[-1])
    found = rule(a, reshape(side_by_side, columns), **attrs)
    return to_front(reshape(found, side_by_side.shape), last)


@primitive(
    family=FAMILY,
    facts=Facts(fails_on="matrix", refuses="singular"),
    samples=[
        sample(spec(3, 3, low=0.5, high=3), spec(3, 2)),
        sample(spec(2, 4, 4, low=0.5, high=3), spec(2, 4, 1), lower=False),
        sample(spec(3, 3, low=0.5, high=3), spec(3, 2), unit_diagonal=True),
        sample(spec(0, 0), spec(0, 2)),
    ],
)
def triangular_solve(
    a: Float, b: Float, *, lower: bool = True, unit_diagonal: bool = False
) -> TensorType:
    """Like ``solve``, reading only one triangle of ``a`` (and taking its diagonal as 1 if asked).

    A 0 on the diagonal is an error when it runs.
    """
    return solve.infer(a, b)


@triangular_solve.reference
def _(a: Array, b: Array, lower: bool, unit_diagonal: bool) -> Array:
    if unit_diagonal:
        i = np.arange(a.shape[-1])
        a = np.array(a)
        a[..., i, i] = 1
    check_matrices("triangular_solve", a, lambda matrix: bool(np.diagonal(matrix).all()))
    if not lower:
        return np.linalg.solve(np.triu(a), b)
    # Back to front it is upper triangular, where elimination has nothing to do and exchanges no rows.
    return np.linalg.solve(np.tril(a)[..., ::-1, ::-1], b[..., ::-1, :])[..., ::-1, :]


@triangular_solve.vjp
@computed_in_f32
def _(g: Node, out: Node, a: Node, b: Node, lower: bool, unit_diagonal: bool) -> Any:
    found = triangular_solve(flipped(a), g, lower=not lower, unit_diagonal=unit_diagonal)

    def by_matrix() -> Node:
        # Only what is read can matter.
        whole = -found.matmul_bt(out)
        kept = 1 if unit_diagonal else 0
        return whole.tril(-kept) if lower else whole.triu(kept)

    return {"a": by_matrix, "b": lambda: found}


@triangular_solve.vmap
def _(
    size: Dim, batched: dict[str, Any], a: Node, b: Node, lower: bool, unit_diagonal: bool
) -> Node:
    attrs = {"lower": lower, "unit_diagonal": unit_diagonal}
    return _solve_batch(triangular_solve, size, batched, a, b, **attrs)


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


@inverse.vjp
@computed_in_f32
def _(g: Node, out: Node, a: Node) -> Any:
    return {"a": lambda: -out.matmul_at(g.matmul_bt(out))}


@inverse.vmap
def _(size: Dim, batched: dict[str, Any], a: Node) -> Node:
    return inverse(a)


# --------------------------------------------------------------------------- factors, determinants


@primitive(
    family=FAMILY,
    facts=Facts(fails_on="matrix", refuses="not positive definite"),
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

    Only the lower triangle of ``a`` is read, and so only there is a gradient: what the other triangle
    would share of it in a symmetric ``a`` is added in. A matrix that is not positive definite is an
    error when it runs.
    """
    return _square(a)


@cholesky.reference
def _(a: Array) -> Array:
    check_matrices("cholesky", a, _is_definite)
    return np.linalg.cholesky(a)


def _is_definite(matrix: Array) -> bool:
    """Whether a matrix has a factor; NaN has none, whatever LAPACK makes of it."""
    try:
        return not np.isnan(np.linalg.cholesky(matrix)).any()
    except np.linalg.LinAlgError:
        return False


@cholesky.cost
def _(a: TensorType) -> Dim:
    # Of the order of n^3; the exact third would not be a whole number of symbolic sizes.
    return a.size * a.shape[-1]


@cholesky.vjp
@computed_in_f32
def _(g: Node, out: Node, a: Node) -> Any:
    def by_matrix() -> Node:
        upper = flipped(out)
        inner = _half_diagonal(out.matmul_at(g.tril()))
        # Twice a solve from the left: the second is one from the right, transposed.
        left = upper.triangular_solve(inner, lower=False)
        both = upper.triangular_solve(flipped(left), lower=False)
        return _half_diagonal(both + flipped(both))

    return {"a": by_matrix}


def _half_diagonal(x: Node) -> Node:
    """The lower triangle with its diagonal halved."""
    return (x.tril() + x.tril(-1)) * 0.5


@cholesky.vmap
def _(size: Dim, batched: dict[str, Any], a: Node) -> Node:
    return cholesky(a)


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
    """The sign of each determinant (0 for a singular matrix) and the logarithm of its absolute value.

    The logarithm's gradient is the transposed inverse, which a singular matrix does not have: an error when it runs.
    The sign has none.
    """
    result = _square(a).with_shape(a.shape[:-2])
    return result, result


@slogdet.reference
def _(a: Array) -> tuple[Array, Array]:
    sign, logarithm = np.linalg.slogdet(a)
    return sign, logarithm


@slogdet.cost
def _(a: TensorType) -> Dim:
    return a.size * a.shape[-1]


@slogdet.vjp
@computed_in_f32
def _(g: tuple[Node | None, Node | None], out: tuple[Node, Node], a: Node) -> Any:
    weight = g[1]
    if weight is None:
        return {"a": None}
    return {"a": lambda: reshape(weight, (*weight.shape, 1, 1)) * flipped(inverse(a))}


@slogdet.vmap
def _(size: Dim, batched: dict[str, Any], a: Node) -> Any:
    return slogdet(a)


@builder(family=FAMILY)
def det(graph: Graph, a: Node, shape: Any = None) -> Node:
    """The determinant of each square matrix. Where it may overflow, use ``slogdet``.

    Its gradient, like that of ``slogdet``, needs a matrix that is not singular.
    """
    sign, logarithm = slogdet(a)
    return mul(sign, exp(logarithm), shape=shape)


@builder(family=FAMILY)
def logdet(graph: Graph, a: Node, shape: Any = None) -> Node:
    """The logarithm of each determinant: -inf where it is 0, NaN where it is negative."""
    sign, logarithm = slogdet(a)
    return where(lt(sign, 0), float("nan"), logarithm, shape=shape)
