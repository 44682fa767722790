"""Explicit derivatives of the normalisations by channels, each an op like any other, and the rules that use them.

The formulas and the order of arguments are those of ``last_axes_gradients``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ...graph import dtypes
from ...graph.attributes import Float, ShapeOf
from ...graph.dims import Dim, Shape
from ...graph.node import Node
from ...graph.op import Resolved, composite, resolved
from ...graph.types import TensorType
from ..axes import spread
from ..elementwise.activations import require_equal_shapes
from ..elementwise.functions import rsqrt
from ..reductions.statistics import element_count
from ..samples import sample, spec
from .channels import (
    affine_channels,
    along_channels,
    batch_norm_training,
    but_channels,
    channels_over_batch,
    folded,
    group_norm,
    grouped,
    instance_norm,
    layer_norm2d,
    require_channels,
    require_groups,
)
from .last_axes import FAMILY, from_axis, layer_norm, require_eps, standardised
from .last_axes_gradients import (
    layer_norm_backward_gamma,
    layer_norm_backward_input,
    stated_shape,
    through_statistics,
)

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
    return through_statistics(normal, scale, g, axes).reshape(x.shape)


@group_norm_backward_input.vmap
def _(
    size: Dim,
    batched: dict[str, Any],
    x: Node,
    gamma: Node | None,
    beta: Node | None,
    dy: Node,
    num_groups: int,
    eps: float,
) -> Node:
    x = x if batched["x"] else spread(x, size)
    dy = dy if batched["dy"] else spread(dy, size)
    if gamma is not None and batched["gamma"]:
        dy, gamma = dy * channels_over_batch(gamma, True, x.rank - 1), None
    dx = group_norm_backward_input(folded(x), gamma, None, folded(dy), num_groups, eps)
    return dx.reshape(x.shape)


def _group_vector(
    name: str, x: TensorType, dy: TensorType, stated: Shape | None, num_groups: int, eps: float
) -> Resolved:
    require_eps(eps)
    require_equal_shapes(x=x, dy=dy)
    require_channels(x, 2)
    require_groups(x, num_groups)
    shape = stated_shape(name, stated, (x.shape[1],))
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


@group_norm.vjp
def _(
    g: Node,
    out: Node,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    num_groups: int,
    eps: float,
) -> Any:
    return {
        "x": lambda: group_norm_backward_input(x, weight, None, g, num_groups, eps),
        "weight": lambda: group_norm_backward_gamma(x, g, None, num_groups, eps),
        "bias": lambda: g.sum(but_channels(x)),
    }


@instance_norm.vjp
def _(g: Node, out: Node, x: Node, weight: Node | None, bias: Node | None, eps: float) -> Any:
    def of_x() -> Node:
        return layer_norm_backward_input(x, None, affine_channels(g, weight, None), 2, eps)

    return {
        "x": of_x,
        "weight": lambda: (g * layer_norm(x, eps=eps, axis=2)).sum(but_channels(x)),
        "bias": lambda: g.sum(but_channels(x)),
    }


@layer_norm2d.vjp
def _(g: Node, out: Node, x: Node, weight: Node | None, bias: Node | None, eps: float) -> Any:
    def channels_last(node: Node) -> Node:
        return node.transpose((0, 2, 3, 1))

    def of_x() -> Node:
        dx = layer_norm_backward_input(channels_last(x), weight, channels_last(g), 3, eps)
        return dx.transpose((0, 3, 1, 2))

    return {
        "x": of_x,
        "weight": lambda: layer_norm_backward_gamma(
            channels_last(x), channels_last(g), None, 3, eps
        ),
        "bias": lambda: g.sum(but_channels(x)),
    }


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
    # The statistics are those of the forward pass, word by word, so a step computes them once. What is normalised is computed again from x, which is
    # less to keep: the difference is taken the other way round, which has the same numbers and is no node of the forward pass.
    mean = x.mean(axes, True)
    scale = rsqrt((x - mean).square().mean(axes, True) + eps)
    normal = (mean - x) * -scale
    # One weight a channel comes out of the means: the sums are those that weight and bias receive.
    of_weight, of_bias = (dy * normal).sum(axes), dy.sum(axes)
    count = element_count(x, axes)
    rest = dy - normal * along_channels(of_weight / count, x) - along_channels(of_bias / count, x)
    return affine_channels(scale, weight, None) * rest, of_weight, of_bias


@batch_norm_training.vjp
def _(g: Any, out: Any, x: Node, weight: Node | None, bias: Node | None, eps: float) -> Any:
    of_y, of_mean, of_var = g
    axes = but_channels(x)

    @cache
    def backward() -> Any:
        return batch_norm_backward(x, weight, of_y, eps)

    def of_x() -> Node:
        if of_mean is None and of_var is None:
            return backward()[0]
        rest = _of_statistics(x, of_mean, of_var)
        return rest if of_y is None else backward()[0] + rest

    if of_y is None:
        return {"x": of_x}
    return {"x": of_x, "weight": lambda: backward()[1], "bias": lambda: of_y.sum(axes)}


def _of_statistics(x: Node, of_mean: Node | None, of_var: Node | None) -> Node:
    """What x receives from its mean and its variance, which are results of their own."""
    half = x.dtype.is_half
    wide = x.cast(dtypes.f32) if half else x
    axes = but_channels(x)
    total: Any = 0.0
    if of_mean is not None:
        total = along_channels(of_mean, x)
    if of_var is not None:
        centred = wide - wide.mean(axes, True)
        total = centred * (2 * along_channels(of_var, x)) + total
    result = (total / element_count(wide, axes)).broadcast_to(x.shape)
    return result.cast(x.dtype) if half else result


# --------------------------------------------------------------------------- Meganeura's spellings
