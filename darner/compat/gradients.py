"""Derivatives as ops of their own, in the order of arguments that other systems have.

Names with ``backward`` are RLX's, names with ``grad`` Meganeura's.
"""

from __future__ import annotations

from typing import Any

from ..graph.attributes import normalize_axes
from ..graph.dims import Shape, as_shape, format_shape
from ..graph.errors import ShapeError
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.op import builder
from ..graph.types import TensorType
from ..ops.attention.rope import FAMILY as POSITION
from ..ops.attention.rope import rope, rope_with_tables
from ..ops.indexing.index import scatter_add
from ..ops.norms.channel_gradients import (
    group_norm_backward_beta,
    group_norm_backward_gamma,
    group_norm_backward_input,
)
from ..ops.norms.channels import flat_sizes
from ..ops.norms.last_axes import FAMILY as NORMALISATION
from ..ops.norms.last_axes_gradients import (
    layer_norm_backward_gamma,
    layer_norm_backward_input,
    rms_norm_backward_gamma,
    rms_norm_backward_input,
)
from ..ops.shapes.primitives import concat
from ..ops.spatial.conv import FAMILY as CONVOLUTION
from ..ops.spatial.conv import conv_input_grad, conv_weight_grad
from ..ops.spatial.conv_forms import CONV_WEIGHT, check_kernel
from ..ops.spatial.pool import FAMILY as POOLING
from ..ops.spatial.pool import max_pool_backward
from ..ops.spatial.windows import require_axes
from ..transforms.gradients import value_and_grad
from .forms import form


def differentiate(graph: Graph) -> Graph:
    """Meganeura's name for ``value_and_grad`` by all parameters."""
    return value_and_grad(graph)


# --------------------------------------------------------------------------- convolution, pooling


def _four(name: str, stated: Any, axes: str) -> Shape:
    """A stated shape of four axes."""
    shape = stated.shape if isinstance(stated, TensorType) else as_shape(stated)
    if len(shape) != 4:
        raise ShapeError(f"{name} {format_shape(shape)} must be {axes}")
    return shape


def _conv_input(dy: Node, w: Node, x_shape: Any, kernel_size: Any, **options: Any) -> Node:
    require_axes(w, 2, "w", CONV_WEIGHT)
    check_kernel(kernel_size, w.shape[2:])
    sizes = _four("x_shape", x_shape, "(batch, channels, height, width)")[2:]
    result: Node = conv_input_grad(dy, w, sizes=sizes, **options, shape=x_shape)
    return result


def _conv_weight(x: Node, dy: Node, w_shape: Any, kernel_size: Any, **options: Any) -> Node:
    check_kernel(kernel_size, _four("w_shape", w_shape, "(out, in / groups, height, width)")[2:])
    result: Node = conv_weight_grad(x, dy, kernel=kernel_size, **options, shape=w_shape)
    return result


_WINDOW = "kernel_size: Any, stride: Any, padding: Any, dilation: Any, groups: int"

form(
    f"conv2d_backward_input(dy: Node, w: Node, x_shape: Any, {_WINDOW})",
    CONVOLUTION,
    _conv_input,
    "The gradient of ``conv2d`` towards an input of ``x_shape``; see ``conv_input_grad``.",
    by_name=True,
)
form(
    f"conv2d_backward_weight(x: Node, dy: Node, w_shape: Any, {_WINDOW})",
    CONVOLUTION,
    _conv_weight,
    "The gradient of ``conv2d`` towards a weight of ``w_shape``; see ``conv_weight_grad``.",
    by_name=True,
)


@builder(family=POOLING)
def maxpool2d_backward(
    graph: Graph, x: Node, dy: Node, kernel_size: Any, stride: Any, padding: Any
) -> Node:
    """The gradient of ``max_pool2d`` towards its input; see ``max_pool_backward``."""
    require_axes(x, 2)
    require_axes(dy, 2, "dy")
    result: Node = max_pool_backward(x, dy, kernel_size, stride=stride, padding=padding)
    return result


# --------------------------------------------------------------------------- norms

_OF_NORM = "dy: Node, x: Node, w: Node, eps: float = 1e-5"

form(
    f"rms_norm_grad_x({_OF_NORM})",
    NORMALISATION,
    lambda dy, x, w, eps: rms_norm_backward_input(x, w, None, dy, -1, eps),
    "The gradient of ``rms_norm(x, w, eps)`` with respect to x.",
)
form(
    f"rms_norm_grad_w({_OF_NORM})",
    NORMALISATION,
    lambda dy, x, w, eps: rms_norm_backward_gamma(x, w, None, dy, -1, eps),
    "The gradient of ``rms_norm(x, w, eps)`` with respect to w.",
)
form(
    f"layer_norm_grad_x({_OF_NORM})",
    NORMALISATION,
    lambda dy, x, w, eps: layer_norm_backward_input(x, w, dy, -1, eps),
    "The gradient of ``layer_norm(x, w, b, eps)`` with respect to x.",
)
form(
    f"layer_norm_grad_wb({_OF_NORM})",
    NORMALISATION,
    lambda dy, x, w, eps: layer_norm_backward_gamma(x, dy, w.shape, -1, eps),
    """The gradient of ``layer_norm(x, w, b, eps)`` with respect to w, of the type of w.

    In spite of its name it leaves out the bias, as Meganeura's does: that is ``layer_norm_backward_beta(dy)``.
    """,
)


@builder(family=NORMALISATION)
def group_norm_grad_input(
    graph: Graph,
    dy: Node,
    x: Node,
    w: Node,
    batch: int,
    channels: int,
    spatial: int,
    num_groups: int,
    eps: float = 1e-5,
) -> Node:
    """The gradient of the flat ``group_norm`` with respect to x, of the shape of x."""
    sizes = flat_sizes(x, batch, channels, spatial)
    dx = group_norm_backward_input(
        x.reshape(sizes), w, None, dy.reshape(sizes), num_groups=num_groups, eps=eps
    )
    return dx.reshape(x.shape)


@builder(family=NORMALISATION)
def group_norm_grad_weight_bias(
    graph: Graph,
    dy: Node,
    x: Node,
    channels: int,
    spatial: int,
    num_groups: int,
    eps: float = 1e-5,
) -> Node:
    """The gradients of the flat ``group_norm`` with respect to weight and bias, one after the other: [2 * channels]."""
    batch: Any = x.size // (channels * spatial) if channels * spatial else 0
    sizes = flat_sizes(x, batch, channels, spatial)
    x, dy = x.reshape(sizes), dy.reshape(sizes)
    of_weight = group_norm_backward_gamma(x, dy, None, num_groups, eps)
    of_bias = group_norm_backward_beta(x, dy, None, num_groups, eps)
    return concat([of_weight, of_bias], 0)


# --------------------------------------------------------------------------- the rest


@builder(family="index")
def gather_backward(graph: Graph, dy: Node, indices: Node, table_shape: Any, axis: int = 0) -> Node:
    """The derivative of ``gather`` by its table: ``dy`` added up by index into zeros of the table's shape."""
    shape = table_shape.shape if isinstance(table_shape, TensorType) else as_shape(table_shape)
    axis = normalize_axes(axis, len(shape))
    result: Node = scatter_add(indices, dy, shape[axis], axis=axis, shape=shape)
    return result


@builder(family="reduction")
def cumsum_backward(
    graph: Graph, dy: Node, out_shape: Any = None, axis: int = -1, exclusive: bool = False
) -> Node:
    """The derivative of ``cumsum``: running sums of ``dy`` from the end."""
    result: Node = dy.cumsum(axis, exclusive, reverse=True, shape=out_shape)
    return result


@builder(family=POSITION)
def rope_backward(
    graph: Graph, dy: Node, cos: Node, sin: Node, head_dim: int, n_rot: int | None = None
) -> Node:
    """The gradient of ``rope_with_tables`` with respect to its operand: the turn back."""
    return rope_with_tables(dy, cos, -sin, head_dim=head_dim, n_rot=n_rot)


@builder(family=POSITION)
def rope_grad(
    graph: Graph,
    dy: Node,
    theta: float,
    head_dim: int,
    *,
    offset: int = 0,
    layout: Any = "flat",
    positions: Node | None = None,
) -> Node:
    """The gradient of ``rope`` with respect to its operand: the turn back."""
    options = {"offset": offset, "layout": layout, "positions": positions}
    return rope(dy, theta, head_dim, inverse=True, **options)
