"""Explicit derivatives of the normalisations, each an op like any other.

Every one is a function of the forward operands and of ``dy``, the gradient with respect to the result, and
computes the statistics again. With ``n`` for what was normalised, ``s`` for the scale that did it and ``g``
for dy times the weight:

    layer, group and batch norm   dx = s * (g - mean(g) - n * mean(g * n))
    rms norm                      dx = s * (g - n * mean(g * n))
    weight and bias               sum(dy * n) and sum(dy), over all they were broadcast along

Names with ``backward`` are RLX's, with its order of arguments; names with ``grad`` are Meganeura's, in which
dy comes first.
"""

from __future__ import annotations

from typing import Any

from ..graph.attributes import Axis, Float, ShapeOf
from ..graph.dims import Shape, format_shape
from ..graph.errors import ShapeError
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.op import Resolved, builder, composite, resolved
from ..graph.types import TensorType
from .activations import require_equal_shapes
from .channel_norms import (
    affine_channels,
    but_channels,
    flat_sizes,
    grouped,
    require_channels,
    require_groups,
)
from .norms import (
    FAMILY,
    affine,
    from_axis,
    require_eps,
    require_features,
    root_mean_square_scaled,
    standardised,
)
from .samples import sample, spec
from .shapes import concat


def _through_statistics(
    normal: Node, scale: Node, g: Node, axes: tuple[int, ...], *, centred: bool = True
) -> Node:
    """The gradient before normalisation, given that after it."""
    rest = g - normal * (g * normal).mean(axes, True)
    return scale * (rest - g.mean(axes, True) if centred else rest)


def _before_axis(x: Node, axis: int) -> tuple[int, ...]:
    return tuple(range(axis))


def _stated_shape(name: str, stated: Shape | None, found: Shape) -> Shape:
    """RLX states the shape of the result; it is verified, never trusted."""
    if stated is not None and stated != found:
        raise ShapeError(f"{name} is {format_shape(stated)}, but by x it is {format_shape(found)}")
    return found


# --------------------------------------------------------------------------- layer norm


@composite(
    family=FAMILY,
    samples=[
        sample(spec(3, 5), spec(5), spec(3, 5), -1, 1e-5),
        sample(spec(2, 3, 4), spec(4), spec(2, 3, 4)),
        sample(spec(2, 3, 4), spec(3, 4), spec(2, 3, 4), 1, 1e-3),
        sample(spec(4, 7), None, spec(4, 7)),
        sample(spec(7), spec(7), spec(7), eps=0.1),
        sample(spec(0, 4), spec(4), spec(0, 4)),
        sample(spec(3, 0), spec(0), spec(3, 0)),
    ],
)
def layer_norm_backward_input(
    x: Float, gamma: Float | None, dy: Float, axis: Axis = -1, eps: float = 1e-5
) -> TensorType:
    """The gradient of ``layer_norm(x, gamma, beta, eps, axis=axis)`` with respect to x."""
    require_eps(eps)
    require_equal_shapes(x=x, dy=dy)
    require_features(x, axis, gamma=gamma)
    return x


@layer_norm_backward_input.expand
def _(x: Node, gamma: Node | None, dy: Node, axis: int, eps: float) -> Node:
    axes = from_axis(x, axis)
    normal, scale = standardised(x, axes, eps)
    return _through_statistics(normal, scale, affine(dy, gamma, None), axes)


@composite(
    family=FAMILY,
    samples=[
        sample(spec(3, 5), spec(3, 5), (5,), -1, 1e-5),
        sample(spec(2, 3, 4), spec(2, 3, 4)),
        sample(spec(2, 3, 4), spec(2, 3, 4), (3, 4), 1, 1e-3),
        sample(spec(7), spec(7), eps=0.1),
        sample(spec(0, 4), spec(0, 4), (4,)),
        sample(spec(3, 0), spec(3, 0), (0,)),
    ],
)
def layer_norm_backward_gamma(
    x: Float, dy: Float, gamma_shape: ShapeOf | None = None, axis: Axis = -1, eps: float = 1e-5
) -> Resolved:
    """The gradient of ``layer_norm(x, gamma, beta, eps, axis=axis)`` with respect to gamma."""
    require_eps(eps)
    require_equal_shapes(x=x, dy=dy)
    shape = _stated_shape("gamma_shape", gamma_shape, x.shape[axis:])
    return resolved(x.with_shape(shape), gamma_shape=shape)


@layer_norm_backward_gamma.expand
def _(x: Node, dy: Node, gamma_shape: Shape, axis: int, eps: float) -> Node:
    normal, _ = standardised(x, from_axis(x, axis), eps)
    return (dy * normal).sum(_before_axis(x, axis))


@composite(
    family=FAMILY,
    samples=[
        sample(spec(3, 5)),
        sample(spec(2, 3, 4), (3, 4), 1),
        sample(spec(7), (7,), 0),
        sample(spec(0, 4), (4,), -1),
    ],
)
def layer_norm_backward_beta(
    dy: Float, beta_shape: ShapeOf | None = None, axis: Axis = -1
) -> Resolved:
    """The gradient of ``layer_norm`` with respect to beta: ``dy`` summed over the axes before ``axis``."""
    shape = _stated_shape("beta_shape", beta_shape, dy.shape[axis:])
    return resolved(dy.with_shape(shape), beta_shape=shape)


@layer_norm_backward_beta.expand
def _(dy: Node, beta_shape: Shape, axis: int) -> Node:
    return dy.sum(_before_axis(dy, axis))


# --------------------------------------------------------------------------- rms norm

_RMS = [
    sample(spec(3, 5), spec(5), spec(5), spec(3, 5), -1, 1e-5),
    sample(spec(2, 3, 4), spec(4), None, spec(2, 3, 4)),
    sample(spec(2, 3, 4), spec(3, 4), spec(3, 4), spec(2, 3, 4), 1, 1e-3),
    sample(spec(4, 7), None, None, spec(4, 7)),
    sample(spec(3, 5, low=3, high=9), spec(5), spec(5), spec(3, 5)),
    sample(spec(7), spec(7), None, spec(7), eps=0.1),
    sample(spec(0, 4), spec(4), spec(4), spec(0, 4)),
]


def _rms_rule(
    x: TensorType,
    gamma: TensorType | None,
    beta: TensorType | None,
    dy: TensorType,
    axis: int,
    eps: float,
) -> TensorType:
    require_eps(eps)
    require_equal_shapes(x=x, dy=dy)
    require_features(x, axis, gamma=gamma, beta=beta)
    return x


@composite(family=FAMILY, samples=_RMS)
def rms_norm_backward_input(
    x: Float,
    gamma: Float | None,
    beta: Float | None,
    dy: Float,
    axis: Axis = -1,
    eps: float = 1e-5,
) -> TensorType:
    """The gradient of ``rms_norm(x, gamma, beta, eps, axis=axis)`` with respect to x."""
    return _rms_rule(x, gamma, beta, dy, axis, eps)


@rms_norm_backward_input.expand
def _(x: Node, gamma: Node | None, beta: Node | None, dy: Node, axis: int, eps: float) -> Node:
    axes = from_axis(x, axis)
    normal, scale = root_mean_square_scaled(x, axes, eps)
    return _through_statistics(normal, scale, affine(dy, gamma, None), axes, centred=False)


@composite(family=FAMILY, samples=_RMS)
def rms_norm_backward_gamma(
    x: Float,
    gamma: Float | None,
    beta: Float | None,
    dy: Float,
    axis: Axis = -1,
    eps: float = 1e-5,
) -> TensorType:
    """The gradient of ``rms_norm(x, gamma, beta, eps, axis=axis)`` with respect to gamma."""
    return x.with_shape(_rms_rule(x, gamma, beta, dy, axis, eps).shape[axis:])


@rms_norm_backward_gamma.expand
def _(x: Node, gamma: Node | None, beta: Node | None, dy: Node, axis: int, eps: float) -> Node:
    normal, _ = root_mean_square_scaled(x, from_axis(x, axis), eps)
    return (dy * normal).sum(_before_axis(x, axis))


@composite(family=FAMILY, samples=_RMS)
def rms_norm_backward_beta(
    x: Float,
    gamma: Float | None,
    beta: Float | None,
    dy: Float,
    axis: Axis = -1,
    eps: float = 1e-5,
) -> TensorType:
    """The gradient of ``rms_norm(x, gamma, beta, eps, axis=axis)`` with respect to beta: ``dy`` summed."""
    return x.with_shape(_rms_rule(x, gamma, beta, dy, axis, eps).shape[axis:])


@rms_norm_backward_beta.expand
def _(x: Node, gamma: Node | None, beta: Node | None, dy: Node, axis: int, eps: float) -> Node:
    return dy.sum(_before_axis(x, axis))


# --------------------------------------------------------------------------- group norm

_GROUP = [
    sample(spec(2, 6, 3, 2), spec(2, 6, 3, 2), (6,), 3, 1e-5),
    sample(spec(2, 4, 5), spec(2, 4, 5), (4,), 2, 1e-3),
    sample(spec(3, 8), spec(3, 8), num_groups=2),
    sample(spec(2, 3, 4), spec(2, 3, 4), (3,), 1),
    sample(spec(0, 4, 3), spec(0, 4, 3), (4,), 2),
]


@composite(
    family=FAMILY,
    samples=[
        sample(spec(2, 6, 3, 2), spec(6), spec(6), spec(2, 6, 3, 2), 3, 1e-5),
        sample(spec(2, 4, 5), spec(4), None, spec(2, 4, 5), 2, 1e-3),
        sample(spec(3, 8), None, None, spec(3, 8), 2),
        sample(spec(2, 3, 4), spec(3), spec(3), spec(2, 3, 4), num_groups=1),
        sample(spec(0, 4, 3), spec(4), spec(4), spec(0, 4, 3), 2),
    ],
)
def group_norm_backward_input(
    x: Float,
    gamma: Float | None,
    beta: Float | None,
    dy: Float,
    num_groups: int,
    eps: float = 1e-5,
) -> TensorType:
    """The gradient of ``group_norm(x, gamma, beta, num_groups, eps)`` with respect to x."""
    require_eps(eps)
    require_equal_shapes(x=x, dy=dy)
    require_channels(x, 2, gamma=gamma, beta=beta)
    require_groups(x, num_groups)
    return x


@group_norm_backward_input.expand
def _(
    x: Node, gamma: Node | None, beta: Node | None, dy: Node, num_groups: int, eps: float
) -> Node:
    groups = grouped(x, num_groups)
    axes = from_axis(groups, 2)
    normal, scale = standardised(groups, axes, eps)
    g = grouped(affine_channels(dy, gamma, None), num_groups)
    return _through_statistics(normal, scale, g, axes).reshape(x.shape)


def _group_vector(
    name: str, x: TensorType, dy: TensorType, stated: Shape | None, num_groups: int, eps: float
) -> Resolved:
    require_eps(eps)
    require_equal_shapes(x=x, dy=dy)
    require_channels(x, 2)
    require_groups(x, num_groups)
    shape = _stated_shape(name, stated, (x.shape[1],))
    return resolved(x.with_shape(shape), **{name: shape})


@composite(family=FAMILY, samples=_GROUP)
def group_norm_backward_gamma(
    x: Float, dy: Float, gamma_shape: ShapeOf | None = None, num_groups: int = 1, eps: float = 1e-5
) -> Resolved:
    """The gradient of ``group_norm(x, gamma, beta, num_groups, eps)`` with respect to gamma."""
    return _group_vector("gamma_shape", x, dy, gamma_shape, num_groups, eps)


@group_norm_backward_gamma.expand
def _(x: Node, dy: Node, gamma_shape: Shape, num_groups: int, eps: float) -> Node:
    groups = grouped(x, num_groups)
    normal, _ = standardised(groups, from_axis(groups, 2), eps)
    return (dy * normal.reshape(x.shape)).sum(but_channels(x))


@composite(family=FAMILY, samples=_GROUP)
def group_norm_backward_beta(
    x: Float, dy: Float, beta_shape: ShapeOf | None = None, num_groups: int = 1, eps: float = 1e-5
) -> Resolved:
    """The gradient of ``group_norm(x, gamma, beta, num_groups, eps)`` with respect to beta: ``dy`` summed."""
    return _group_vector("beta_shape", x, dy, beta_shape, num_groups, eps)


@group_norm_backward_beta.expand
def _(x: Node, dy: Node, beta_shape: Shape, num_groups: int, eps: float) -> Node:
    return dy.sum(but_channels(x))


# --------------------------------------------------------------------------- batch norm


@composite(
    family=FAMILY,
    samples=[
        sample(spec(2, 3, 4, 2), spec(3), spec(2, 3, 4, 2)),
        sample(spec(7, 3), None, spec(7, 3), 1e-3),
        sample(spec(2, 1, 5), spec(1), spec(2, 1, 5)),
        sample(spec(3, 0, 2), spec(0), spec(3, 0, 2)),
    ],
)
def batch_norm_backward(
    x: Float, weight: Float | None, dy: Float, eps: float = 1e-5
) -> tuple[TensorType, TensorType, TensorType]:
    """The gradients of ``batch_norm_training(x, weight, bias, eps)[0]``: of x, of the weight and of the bias.

    The statistics are part of the function, so the gradient flows through them; that they are results of
    their own (for running averages) adds nothing to it.
    """
    require_eps(eps)
    require_equal_shapes(x=x, dy=dy)
    require_channels(x, 2, weight=weight)
    vector = x.with_shape([x.shape[1]])
    return x, vector, vector


@batch_norm_backward.expand
def _(x: Node, weight: Node | None, dy: Node, eps: float) -> tuple[Node, Node, Node]:
    axes = but_channels(x)
    normal, scale = standardised(x, axes, eps)
    dx = _through_statistics(normal, scale, affine_channels(dy, weight, None), axes)
    return dx, (dy * normal).sum(axes), dy.sum(axes)


# --------------------------------------------------------------------------- Meganeura's spellings


@builder(family=FAMILY)
def rms_norm_grad_x(graph: Graph, dy: Node, x: Node, w: Node, eps: float = 1e-5) -> Node:
    """The gradient of ``rms_norm(x, w, eps)`` with respect to x."""
    return rms_norm_backward_input(x, w, None, dy, -1, eps)


@builder(family=FAMILY)
def rms_norm_grad_w(graph: Graph, dy: Node, x: Node, w: Node, eps: float = 1e-5) -> Node:
    """The gradient of ``rms_norm(x, w, eps)`` with respect to w."""
    return rms_norm_backward_gamma(x, w, None, dy, -1, eps)


@builder(family=FAMILY)
def layer_norm_grad_x(graph: Graph, dy: Node, x: Node, w: Node, eps: float = 1e-5) -> Node:
    """The gradient of ``layer_norm(x, w, b, eps)`` with respect to x."""
    return layer_norm_backward_input(x, w, dy, -1, eps)


@builder(family=FAMILY)
def layer_norm_grad_wb(graph: Graph, dy: Node, x: Node, w: Node, eps: float = 1e-5) -> Node:
    """The gradient of ``layer_norm(x, w, b, eps)`` with respect to w, of the type of w.

    In spite of its name it leaves out the bias, as Meganeura's does: that is ``layer_norm_backward_beta(dy)``.
    """
    return layer_norm_backward_gamma(x, dy, w.shape, -1, eps)


@builder(family=FAMILY)
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


@builder(family=FAMILY)
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
