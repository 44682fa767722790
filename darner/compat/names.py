"""Other names of ops, and shorthands of two or three."""

from __future__ import annotations

from typing import Any

from ..graph import dtypes
from ..graph.dims import format_shape
from ..graph.errors import DTypeError, ShapeError
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.op import OTHER_NAMES, builder
from ..ops.attention.rope import FAMILY as POSITION
from ..ops.attention.rope import rope, rope_with_tables, row_positions
from ..ops.elementwise.activations import swiglu, swiglu_concat
from ..ops.elementwise.arithmetic import add
from ..ops.indexing.index import as_i32, gather
from ..ops.layers.linear import activation_op, check_bias, fused_matmul_bias_act
from ..ops.linalg.matrix import FAMILY as MATRIX
from ..ops.linalg.matrix import matmul
from ..ops.losses.softmax import softmax
from ..ops.norms.last_axes import layer_norm
from ..ops.shapes.primitives import concat
from ..ops.spatial.resize import resize_nearest
from ..ops.spatial.windows import require_node
from .forms import form

OTHER_NAMES |= {"Expand": "broadcast_to", "Custom": "custom_op"}
"""What RLX's ``add_node`` is given; names in other letters (``RmsNorm``, ``TopK``) are found by themselves."""

# --------------------------------------------------------------------------- another name

for _signature, _family, _rule, _doc in (
    ("concat_(inputs: list[Node], axis: int)", "shape", concat, "RLX's spelling of ``concat``."),
    (
        "narrow_(x: Node, axis: int, start: Any, length: Any)",
        "shape",
        lambda x, axis, start, length: x.narrow(axis, start, length),
        "RLX's spelling of ``narrow``.",
    ),
    (
        "reshape_(x: Node, shape: Any)",
        "shape",
        lambda x, shape: x.reshape(shape),
        "RLX's spelling of ``reshape``.",
    ),
    (
        "transpose_(x: Node, perm: Any)",
        "shape",
        lambda x, perm: x.transpose(perm),
        "RLX's spelling of ``transpose``.",
    ),
    (
        "gather_(table: Node, indices: Node, axis: int)",
        "index",
        gather,
        "RLX's spelling of ``gather``.",
    ),
    (
        "mm(a: Node, b: Node, shape: Any = None)",
        MATRIX,
        lambda a, b, shape: matmul(a, b, shape=shape),
        "Shorthand for ``matmul``.",
    ),
    (
        "ln(x: Node, gamma: Node, beta: Node, eps: float = 1e-5)",
        "normalisation",
        layer_norm,
        "RLX's short spelling of ``layer_norm`` over the last axis. (The logarithm is ``log``.)",
    ),
    (
        "sm(x: Node, axis: int = -1, shape: object = None)",
        "softmax",
        lambda x, axis, shape: softmax(x, axis, shape=shape),
        "RLX's short name of ``softmax``.",
    ),
    (
        "linear_fused(x: Node, w: Node, bias: Node, activation: Any = None, out_shape: Any = None)",
        MATRIX,
        lambda x, w, bias, act, shape: fused_matmul_bias_act(x, w, bias, act, shape=shape),
        "``fused_matmul_bias_act`` by RLX's other name.",
    ),
    (
        "rope_n(x: Node, cos: Node, sin: Node, head_dim: int, n_rot: int)",
        POSITION,
        lambda x, cos, sin, head_dim, n_rot: rope_with_tables(
            x, cos, sin, head_dim=head_dim, n_rot=n_rot
        ),
        "``rope_with_tables`` of the first ``n_rot`` elements of each head.",
    ),
    (
        "sum_all(x: Node)",
        "reduction",
        lambda x: x.sum().reshape((1,)),
        "The sum of all elements, as a tensor of shape [1].",
    ),
    (
        "mean_all(x: Node)",
        "reduction",
        lambda x: x.mean().reshape((1,)),
        "The mean of all elements, as a tensor of shape [1].",
    ),
):
    form(_signature, _family, _rule, _doc)


@builder(family="resampling")
def resize_nearest_2x(graph: Graph, x: Node) -> Node:
    """RLX's spelling of ``upsample_2x``."""
    require_node(x)
    result: Node = resize_nearest(x, factor=2)
    return result


@builder(family="reduction")
def sum_rows(graph: Graph, x: Node) -> Node:
    """The rows of a matrix added up: [M, N] gives [N]."""
    if x.rank != 2:
        raise ShapeError(f"x must be a matrix, not of rank {x.rank}", hint="use sum(x, axes)")
    return x.sum(0)


# --------------------------------------------------------------------------- leaves


@builder(family="leaves")
def param(graph: Graph, name: str, shape: Any, dtype: Any = None) -> Node:
    """RLX's spelling of ``parameter``."""
    return graph.parameter(name, shape, dtype)


@builder(family="leaves")
def input_u32(graph: Graph, name: str, shape: Any) -> Node:
    """An input of u32, such as token ids."""
    return graph.input(name, shape, dtypes.u32)


@builder(family="leaves")
def parameter_f16(graph: Graph, name: str, shape: Any) -> Node:
    """A parameter stored as f16; arithmetic with f32 casts it."""
    return graph.parameter(name, shape, dtypes.f16)


@builder(family="leaves")
def parameter_q4(graph: Graph, name: str, shape: Any) -> Node:
    """A matrix kept as 4-bit blocks of 32 rows; see ``parameter``."""
    return graph.parameter(name, shape, storage="q4")


@builder(family="leaves")
def parameter_q8(graph: Graph, name: str, shape: Any) -> Node:
    """A matrix kept as 8-bit blocks of 32 rows; see ``parameter``."""
    return graph.parameter(name, shape, storage="q8")


@builder(family="leaves")
def scalar(graph: Graph, value: float, dtype: Any = "f32") -> Node:
    """A constant of shape [1]."""
    return graph.constant([value], dtype=dtype)


# --------------------------------------------------------------------------- products


@builder(family=MATRIX)
def shared_matmul_pair(graph: Graph, x: Node, w1: Node, w2: Node) -> tuple[Node, Node]:
    """``x @ w1`` and ``x @ w2``; the optimizer makes them one product where that pays."""
    return matmul(x, w1), matmul(x, w2)


def _linear(x: Node, w: Node, bias: Node | None, activation: Any, shape: Any) -> Node:
    """A product, then a bias, then an activation; a stated shape is checked first."""
    result: Node = matmul(x, w, shape=shape)
    if bias is not None:
        check_bias(bias, w.shape[-1])
        result = add(result, bias)
    return result if activation is None else activation_op(activation)(result)


@builder(family=MATRIX)
def linear_bias(
    graph: Graph, x: Node, w: Node, bias: Node | None = None, shape: Any = None
) -> Node:
    """``x @ w + bias`` for w [in, out] and bias [out], which may be left out."""
    return _linear(x, w, bias, None, shape)


@builder(family=MATRIX)
def linear_bias_act(
    graph: Graph,
    x: Node,
    w: Node,
    bias: Node | None = None,
    activation: Any = None,
    shape: Any = None,
) -> Node:
    """``activation(x @ w + bias)`` as separate ops; bias and activation may be left out."""
    return _linear(x, w, bias, activation, shape)


def _check_rows(a: Node) -> None:
    if a.rank < 2:
        raise ShapeError(f"a must have rows, but it is {format_shape(a.shape)}")


@builder(family=MATRIX)
def bias_add(graph: Graph, a: Node, bias: Node, shape: Any = None) -> Node:
    """A vector added to every row: a [..., N] and bias [N]."""
    _check_rows(a)
    check_bias(bias, a.shape[-1])
    return add(a, bias, shape=shape)


@builder(family=MATRIX)
def broadcast_add(graph: Graph, a: Node, b: Node, shape: Any = None) -> Node:
    """One row added to every row: a [..., N] and b [1, N]."""
    _check_rows(a)
    if b.shape != (1, a.shape[-1]):
        raise ShapeError(
            f"b must be one row {format_shape((1, a.shape[-1]))}, not {format_shape(b.shape)}"
        )
    return add(a, b, shape=shape)


@builder(family=MATRIX)
def swiglu_ffn(
    graph: Graph, x: Node, up_w: Node, gate_w: Node, down_w: Node, shape: Any = None
) -> Node:
    """A gated feed-forward block: ``(silu(x @ gate_w) * (x @ up_w)) @ down_w``."""
    up, gate = shared_matmul_pair(x, up_w, gate_w)
    return matmul(swiglu(gate, up), down_w, shape=shape)


@builder(family=MATRIX)
def fused_swiglu_ffn(
    graph: Graph, x: Node, up_w: Node, gate_w: Node, down_w: Node, out_shape: Any = None
) -> Node:
    """``swiglu_ffn`` with one product for up and gate: the weights are joined as [up | gate]."""
    if up_w.shape != gate_w.shape:
        raise ShapeError(
            f"up_w {format_shape(up_w.shape)} and gate_w {format_shape(gate_w.shape)} differ"
        )
    both = matmul(x, concat([up_w, gate_w], -1))
    return matmul(swiglu_concat(both, gate_first=False), down_w, shape=out_shape)


# --------------------------------------------------------------------------- positions


@builder(family=POSITION)
def rope_with_offset(
    graph: Graph, x: Node, theta: float, offset: int, head_dim: int, *, layout: Any = "flat"
) -> Node:
    """``rope`` of a sequence whose first row has position ``offset``."""
    return rope(x, theta, head_dim, offset=offset, layout=layout)


@builder(family=POSITION)
def rope_dynamic_offset(
    graph: Graph, x: Node, theta: float, offset: Node, head_dim: int, *, layout: Any = "flat"
) -> Node:
    """``rope`` of a sequence whose first row has the position that ``offset``, one integer of the graph, gives."""
    if offset.shape not in ((), (1,)):
        raise ShapeError(f"offset {format_shape(offset.shape)} must be one integer")
    if not offset.dtype.is_int:
        raise DTypeError(
            f"offset must be integers, not {offset.dtype}", hint="cast it to i32 first"
        )
    least = 3 if layout == "shd" else 2
    if x.rank < least:
        raise ShapeError(f"x has rank {x.rank}, not at least {least}")
    positions = row_positions(x, layout, 0) + as_i32(offset)
    return rope(x, theta, head_dim, layout=layout, positions=positions)
