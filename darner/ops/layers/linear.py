"""Linear layers, gated feed-forward blocks, low-rank adapters, one matrix per row."""

from __future__ import annotations

from typing import Any

from ...graph import dtypes
from ...graph.attributes import Float, Index, Number
from ...graph.dims import Dim, format_shape
from ...graph.errors import ShapeError
from ...graph.facts import Facts
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import Op, Resolved, builder, composite, get_op, resolved
from ...graph.types import TensorType
from ..elementwise.activations import ACTIVATIONS, ALIASES
from ..elementwise.arithmetic import add, choose, where
from ..indexing.index import as_i32, gather
from ..linalg.matrix import FAMILY, check_inner, contraction, matmul, matmul_bt
from ..samples import ints, sample, spec
from ..shapes.primitives import reshape, transpose


def _check_rank(name: str, type: TensorType, rank: int, form: str) -> None:
    if type.rank != rank:
        raise ShapeError(f"{name} must be {form}, not {format_shape(type.shape)}")


def activation_op(kind: Any) -> Op:
    """The op that a name or enum member stands for."""
    op: Op = choose({**ACTIVATIONS, **ALIASES}, kind, "activation")
    return op


def check_bias(bias: TensorType | Node, columns: Dim) -> None:
    if bias.shape != (columns,):
        raise ShapeError(
            f"bias must be {format_shape((columns,))}, one number for each column, "
            f"not {format_shape(bias.shape)}"
        )


@composite(
    family=FAMILY,
    facts=Facts(full_rate=True, multiplies=("input", "weight")),
    samples=[
        sample(spec(3, 5), spec(5, 4), spec(4)),
        sample(spec(3, 5), spec(5, 4), spec(4), "gelu"),
        sample(spec(2, 3, 5), spec(5, 4), spec(4), activation="Silu"),
        sample(spec(5), spec(5, 1), spec(1), "tanh"),
        sample(spec(3, 0), spec(0, 2), spec(2), "relu"),
        sample(spec(0, 3), spec(3, 2), spec(2)),
    ],
)
def fused_matmul_bias_act(
    input: Float, weight: Float, bias: Float, activation: str | None = None
) -> Resolved:
    """``activation(input @ weight + bias)`` as one op; 16-bit floats are rounded once, at its end.

    ``weight`` is [in, out], ``bias`` [out]. ``activation`` is a name or an ``Activation``.
    """
    _check_rank("weight", weight, 2, "a matrix [in, out]")
    product = matmul.infer(input, weight)
    check_bias(bias, weight.shape[1])
    name = None if activation is None else activation_op(activation).name
    return resolved(product, activation=name)


@fused_matmul_bias_act.expand
def _(input: Node, weight: Node, bias: Node, activation: str | None) -> Node:
    result = add(matmul(input, weight), bias)
    return result if activation is None else get_op(activation)(result)


@builder(family=FAMILY)
def linear(graph: Graph, x: Node, w: Node, bias: Node | None = None, shape: Any = None) -> Node:
    """``x @ w.T + bias`` with PyTorch's layout of a weight: [out, in]."""
    if w.rank != 2:
        raise ShapeError(f"w must be a matrix [out, in], not {format_shape(w.shape)}")
    vector = x.rank == 1
    result: Node = matmul(w, x, shape=shape) if vector else matmul_bt(x, w, shape=shape)
    if bias is not None:
        check_bias(bias, w.shape[0])
        result = add(result, bias)
    return result


# --------------------------------------------------------------------------- adapters and experts


@composite(
    family=FAMILY,
    facts=Facts(full_rate=True),
    samples=[
        sample(spec(3, 5), spec(5, 4), spec(5, 2), spec(2, 4), 0.5),
        sample(spec(2, 3, 5), spec(5, 4), spec(5, 2), spec(2, 4), scale=-2.0),
        sample(spec(5), spec(5, 4), spec(5, 1), spec(1, 4), 3),
        sample(spec(3, 5), spec(5, 4), spec(5, 0), spec(0, 4), 1.0),
        sample(spec(0, 5), spec(5, 4), spec(5, 2), spec(2, 4), 1.0),
    ],
)
def lora_matmul(x: Float, w: Float, a: Float, b: Float, scale: float = 1.0) -> TensorType:
    """``x @ w + scale * (x @ a) @ b``: a weight [K, N] with a low-rank change a [K, R], b [R, N]."""
    for name, operand in (("w", w), ("a", a), ("b", b)):
        _check_rank(name, operand, 2, "a matrix")
    if a.shape[0] != w.shape[0]:
        raise ShapeError(f"a has {a.shape[0]} rows, w has {w.shape[0]}")
    if a.shape[1] != b.shape[0]:
        raise ShapeError(f"a has rank {a.shape[1]} but b has rank {b.shape[0]}")
    if b.shape[1] != w.shape[1]:
        raise ShapeError(f"b has {b.shape[1]} columns, w has {w.shape[1]}")
    return matmul.infer(x, w)


@lora_matmul.expand
def _(x: Node, w: Node, a: Node, b: Node, scale: float) -> Node:
    # The scale goes where there are fewest elements to multiply.
    return add(matmul(x, w), matmul(matmul(x, a) * scale, b))


@composite(
    family=FAMILY,
    facts=Facts(full_rate=True, multiplies=("x", "w")),
    samples=[
        sample(spec(6, 5), spec(3, 5, 4), ints(6, high=3)),
        sample(spec(2, 3, 5), spec(4, 5, 2), ints(2, 3, high=4, dtype="u32")),
        sample(spec(4, 1), spec(1, 1, 3), ints(4, high=1, dtype="i64")),
        sample(spec(0, 5), spec(3, 5, 4), ints(0, high=3)),
        sample(spec(2, 0), spec(3, 0, 4), ints(2, high=3)),
    ],
)
def grouped_matmul(x: Number, w: Number, expert: Index) -> TensorType:
    """Each row times the matrix its index chooses: ``y[i] = x[i] @ w[expert[i]]``.

    ``x`` is [..., K], ``w`` [E, K, N] and ``expert`` has one integer in 0..E-1 for each row.
    """
    _check_rank("w", w, 3, "one matrix for each expert [E, K, N]")
    if x.rank == 0:
        raise ShapeError("x is a scalar")
    if expert.shape != x.shape[:-1]:
        raise ShapeError(
            f"x has rows {format_shape(x.shape[:-1])}, expert is {format_shape(expert.shape)}"
        )
    check_inner(x.shape[-1], w.shape[1])
    return TensorType((*expert.shape, w.shape[2]), dtypes.accumulator(x.dtype))


@grouped_matmul.expand
def _(x: Node, w: Node, expert: Node) -> Node:
    rows = range(expert.rank)
    return contraction(x, [*rows, "k"], gather(w, expert), [*rows, "k", "n"], [*rows, "n"])


@grouped_matmul.vjp
def _(g: Node, out: Node, x: Node, w: Node, expert: Node) -> Any:
    def by_weight() -> Node:
        # Rows of each expert beside zeros: smaller than a matrix for every row, and one product.
        rows = range(expert.rank)
        index = as_i32(reshape(expert, (*expert.shape, 1, 1)))
        chosen = index == w.graph.iota((w.shape[0], 1))
        own = where(chosen, reshape(x, (*expert.shape, 1, x.shape[-1])), 0.0)
        return contraction(own, [*rows, "e", "k"], g, [*rows, "n"], ["e", "k", "n"])

    return {
        "x": lambda: grouped_matmul(g, transpose(w, (0, 2, 1)), expert),
        "w": by_weight,
    }
