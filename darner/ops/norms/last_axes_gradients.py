"""Explicit derivatives of the normalisations over the last axes, each an op like any other, and the rules that use them.

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

from functools import cache
from typing import Any

from ...graph.attributes import Axis, Float, ShapeOf
from ...graph.dims import Dim, Shape, format_shape
from ...graph.errors import ShapeError
from ...graph.node import Node
from ...graph.op import Op, Resolved, Rule, composite, resolved
from ...graph.types import TensorType
from ..axes import align, spread
from ..elementwise.activations import require_equal_shapes
from ..samples import sample, spec
from .last_axes import (
    FAMILY,
    affine,
    from_axis,
    fused_residual_ln,
    fused_residual_rms_norm,
    layer_norm,
    require_eps,
    require_features,
    rms_norm,
    root_mean_square_scaled,
    standardised,
)


def through_statistics(
    normal: Node, scale: Node, g: Node, axes: tuple[int, ...], *, centred: bool = True
) -> Node:
    """The gradient before normalisation, given that after it."""
    rest = g - normal * (g * normal).mean(axes, True)
    return scale * (rest - g.mean(axes, True) if centred else rest)


def _before_axis(x: Node, axis: int) -> tuple[int, ...]:
    return tuple(range(axis))


def stated_shape(name: str, stated: Shape | None, found: Shape) -> Shape:
    """RLX states the shape of the result; it is verified, never trusted."""
    if stated is not None and stated != found:
        raise ShapeError(f"{name} is {format_shape(stated)}, but by x it is {format_shape(found)}")
    return found


def _over_batch(
    size: Dim, batched: dict[str, bool], x: Node, gamma: Node | None, dy: Node
) -> tuple[Node, Node | None, Node]:
    """Operands of one batch; a weight that differs along it is multiplied into dy, where it ends up anyway."""
    x = x if batched["x"] else spread(x, size)
    dy = dy if batched["dy"] else spread(dy, size)
    if gamma is None or not batched["gamma"]:
        return x, gamma, dy
    return x, None, dy * align(gamma, True, x.rank - 1)


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
    return through_statistics(normal, scale, affine(dy, gamma, None), axes)


@layer_norm_backward_input.vmap
def _(size: Dim, batched: dict[str, bool], *, axis: int, eps: float, **operands: Any) -> Node:
    return layer_norm_backward_input(*_over_batch(size, batched, **operands), axis + 1, eps)


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
    shape = stated_shape("gamma_shape", gamma_shape, x.shape[axis:])
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
    shape = stated_shape("beta_shape", beta_shape, dy.shape[axis:])
    return resolved(dy.with_shape(shape), beta_shape=shape)


@layer_norm_backward_beta.expand
def _(dy: Node, beta_shape: Shape, axis: int) -> Node:
    return dy.sum(_before_axis(dy, axis))


@layer_norm.vjp
def _of_layer_norm(
    g: Node,
    out: Node,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    eps: float,
    axis: int,
) -> Any:
    return {
        "x": lambda: layer_norm_backward_input(x, weight, g, axis, eps),
        "weight": lambda: layer_norm_backward_gamma(x, g, None, axis, eps),
        "bias": lambda: layer_norm_backward_beta(g, None, axis),
    }


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


def _of_rms(by: str, doc: str = "") -> Op:
    """Declare the gradient of ``rms_norm`` by its operand ``x`` or by what it is multiplied with or shifted by."""

    @composite(
        family=FAMILY, name=f"rms_norm_backward_{'input' if by == 'x' else by}", samples=_RMS
    )
    def op(
        x: Float,
        gamma: Float | None,
        beta: Float | None,
        dy: Float,
        axis: Axis = -1,
        eps: float = 1e-5,
    ) -> TensorType:
        """The gradient of ``rms_norm(x, gamma, beta, eps, axis=axis)`` with respect to"""
        require_eps(eps)
        require_equal_shapes(x=x, dy=dy)
        require_features(x, axis, gamma=gamma, beta=beta)
        return x if by == "x" else x.with_shape(x.shape[axis:])

    op.doc += f" {by}{doc}."
    return op


rms_norm_backward_input = _of_rms("x")
rms_norm_backward_gamma = _of_rms("gamma")
rms_norm_backward_beta = _of_rms("beta", ": ``dy`` summed")


@rms_norm_backward_input.expand
def _(x: Node, gamma: Node | None, beta: Node | None, dy: Node, axis: int, eps: float) -> Node:
    axes = from_axis(x, axis)
    normal, scale = root_mean_square_scaled(x, axes, eps)
    return through_statistics(normal, scale, affine(dy, gamma, None), axes, centred=False)


@rms_norm_backward_input.vmap
def _(size: Dim, batched: dict[str, bool], *, axis: int, eps: float, **operands: Any) -> Node:
    x, gamma, dy = _over_batch(size, batched, operands["x"], operands["gamma"], operands["dy"])
    return rms_norm_backward_input(x, gamma, None, dy, axis + 1, eps)


@rms_norm_backward_gamma.expand
def _(x: Node, dy: Node, axis: int, eps: float, **rest: Node | None) -> Node:
    normal, _ = root_mean_square_scaled(x, from_axis(x, axis), eps)
    return (dy * normal).sum(_before_axis(x, axis))


@rms_norm_backward_beta.expand
def _(x: Node, dy: Node, axis: int, **rest: object) -> Node:
    return dy.sum(_before_axis(x, axis))


@rms_norm.vjp
def _of_rms_norm(
    g: Node,
    out: Node,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    eps: float,
    axis: int,
) -> Any:
    return {
        "x": lambda: rms_norm_backward_input(x, weight, None, g, axis, eps),
        "weight": lambda: rms_norm_backward_gamma(x, None, None, g, axis, eps),
        "bias": lambda: rms_norm_backward_beta(x, None, None, g, axis, eps),
    }


# --------------------------------------------------------------------------- after a residual


def _after_residual(op: Op, rule: Rule) -> None:
    """A norm of ``x + residual + bias`` has the norm's own rule, at the sum computed again."""

    @op.vjp
    def _(
        g: Node,
        out: Node,
        x: Node,
        residual: Node,
        bias: Node | None,
        gamma: Node | None,
        beta: Node | None,
        eps: float,
    ) -> Any:
        total = affine(x + residual, None, bias)
        of = rule(g, out, x=total, weight=gamma, bias=beta, eps=eps, axis=x.rank - 1)
        of_sum = cache(of["x"])
        return {
            "x": of_sum,
            "residual": of_sum,
            "bias": lambda: of_sum().sum(_before_axis(x, x.rank - 1)),
            "gamma": of["weight"],
            "beta": of["bias"],
        }


_after_residual(fused_residual_ln, _of_layer_norm)
_after_residual(fused_residual_rms_norm, _of_rms_norm)
