"""Normalisation over the last axes. Those by channels are in ``channels``, derivatives in ``last_axes_gradients``.

Every variance is the biased one (divided by the count), and ``eps`` stands inside the square root. Weights
scale and biases shift what was normalised; either may be left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graph.attributes import Axes, Axis, Float
from ...graph.dims import Dim, format_shape
from ...graph.errors import ArgumentError, ShapeError
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import Op, composite
from ...graph.types import TensorType
from ..axes import align
from ..elementwise.activations import require_equal_shapes
from ..elementwise.arithmetic import maximum
from ..elementwise.functions import rsqrt
from ..reductions.reduce import in_f32
from ..reductions.statistics import rough_squares
from ..samples import sample, spec

FAMILY = "normalisation"

# --------------------------------------------------------------------------- rules shared by all


def require_eps(eps: float) -> None:
    """Refuse an eps that could make the square root's operand negative."""
    if not eps >= 0:
        raise ArgumentError(f"eps is {eps}, which is not a number from 0 up")


def require_features(x: TensorType, axis: int, **vectors: TensorType | None) -> None:
    """Weights and biases have the shape of the normalised axes: ``axis`` and all after it."""
    wanted = x.shape[axis:]
    for name, vector in vectors.items():
        if vector is not None and vector.shape != wanted:
            if len(wanted) == 1:
                raise ShapeError(f"{name} is {vector} but x has {wanted[0]} features")
            raise ShapeError(
                f"{name} is {vector} but the normalised axes of x are {format_shape(wanted)}"
            )


# --------------------------------------------------------------------------- pieces of expansions


def from_axis(x: Node, axis: int) -> tuple[int, ...]:
    """``axis`` and all axes after it."""
    return tuple(range(axis, x.rank))


def standardised(x: Node, axes: tuple[int, ...], eps: float) -> tuple[Node, Node]:
    """``x`` with mean 0 and variance 1 over ``axes``, and the scale 1 / sqrt(variance + eps) that did it."""
    centred = x - x.mean(axes, True)
    scale = rsqrt(centred.square().mean(axes, True) + eps)
    return centred * scale, scale


def root_mean_square_scaled(x: Node, axes: tuple[int, ...], eps: float) -> tuple[Node, Node]:
    """``x`` with mean square 1 over ``axes``, and the scale that did it."""
    scale = rsqrt(x.square().mean(axes, True) + eps)
    return x * scale, scale


def affine(x: Node, weight: Node | None, bias: Node | None) -> Node:
    """``x * weight + bias``, without what is absent."""
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _next_axis_over_batch(op: Op) -> None:
    """Let a norm over the last axes stay whole over a batch; weights that differ along it come after."""

    @op.vmap
    def _(
        size: Dim,
        batched: dict[str, Any],
        x: Node,
        weight: Node | None,
        bias: Node | None,
        eps: float,
        axis: int,
    ) -> Node:
        rank = x.rank - 1 if batched["x"] else x.rank
        axis = axis + 1 if batched["x"] else axis
        if not batched["weight"] and not batched["bias"]:
            return op(x, weight, bias, eps, axis=axis)
        scale, shift = (
            node if node is None else align(node, batched[name], rank)
            for name, node in (("weight", weight), ("bias", bias))
        )
        return affine(op(x, None, None, eps, axis=axis), scale, shift)


# --------------------------------------------------------------------------- over the last axes

_FEATURES = [
    sample(spec(3, 5), spec(5), spec(5)),
    sample(spec(2, 3, 4), spec(4)),
    sample(spec(4, 7)),
    sample(spec(3, 5), None, spec(5), 1e-3),
    sample(spec(2, 3, 4), spec(3, 4), spec(3, 4), axis=1),
    sample(spec(2, 3, 4), axis=-3),
    sample(spec(7), spec(7), spec(7), eps=0.1),
    sample(spec(0, 4), spec(4), spec(4)),
    sample(spec(3, 0), spec(0), spec(0)),
    sample(spec(4, 1), spec(1), spec(1)),
]


def is_int(value: Any) -> bool:
    """Whether an argument is an integer, of Python's or NumPy's kind."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _axis_fourth(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """(x, weight, bias, axis, eps): an integer in fourth place is the axis, since eps is a float."""
    if len(args) > 3 and is_int(args[3]) and "axis" not in kwargs:
        return (*args[:3], *args[4:]), {**kwargs, "axis": args[3]}
    return args, kwargs


@composite(family=FAMILY, samples=_FEATURES)
def layer_norm(
    x: Float,
    weight: Float | None = None,
    bias: Float | None = None,
    eps: float = 1e-5,
    *,
    axis: Axis = -1,
) -> TensorType:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over ``axis`` and all axes after it.

    Weight and bias have the shape of the normalised axes. ``layer_norm(x, weight, bias, axis, eps)`` is
    understood too: an integer in fourth place is the axis.
    """
    require_eps(eps)
    require_features(x, axis, weight=weight, bias=bias)
    return x


@layer_norm.spelling
def _(graph: Graph, *args: Any, **kwargs: Any) -> Any:
    return _axis_fourth(args, kwargs)


@layer_norm.expand
def _(x: Node, weight: Node | None, bias: Node | None, eps: float, axis: int) -> Node:
    return affine(standardised(x, from_axis(x, axis), eps)[0], weight, bias)


_next_axis_over_batch(layer_norm)


@composite(family=FAMILY, samples=_FEATURES)
def rms_norm(
    x: Float,
    weight: Float | None = None,
    bias: Float | None = None,
    eps: float = 1e-5,
    *,
    axis: Axis = -1,
) -> TensorType:
    """``x / sqrt(mean(x**2) + eps) * weight + bias`` over ``axis`` and all axes after it.

    ``rms_norm(x, weight, eps)`` is understood too: a float in third place is eps.
    """
    require_eps(eps)
    require_features(x, axis, weight=weight, bias=bias)
    return x


@rms_norm.spelling
def _(graph: Graph, *args: Any, **kwargs: Any) -> Any:
    if len(args) > 2 and isinstance(args[2], float | np.floating):
        args = (*args[:2], None, *args[2:])
    return _axis_fourth(args, kwargs)


@rms_norm.expand
def _(x: Node, weight: Node | None, bias: Node | None, eps: float, axis: int) -> Node:
    return affine(root_mean_square_scaled(x, from_axis(x, axis), eps)[0], weight, bias)


_next_axis_over_batch(rms_norm)


_RESIDUAL = [
    sample(spec(3, 5), spec(3, 5), spec(5), spec(5), spec(5), 1e-5),
    sample(spec(2, 3, 4), spec(2, 3, 4), None, spec(4), spec(4), 1e-3),
    sample(spec(3, 5), spec(3, 5), spec(5), spec(5)),
    sample(spec(7), spec(7), None, None, None),
    sample(spec(0, 4), spec(0, 4), spec(4), spec(4), spec(4)),
]


def _after_residual(name: str, norm: Op) -> Op:
    """Declare a norm over the last axis of a sum."""

    @composite(family=FAMILY, name=name, samples=_RESIDUAL)
    def op(
        x: Float,
        residual: Float,
        bias: Float | None,
        gamma: Float | None,
        beta: Float | None = None,
        eps: float = 1e-5,
    ) -> TensorType:
        """``norm(x + residual + bias, gamma, beta, eps)`` over the last axis; bias may be None."""
        require_eps(eps)
        require_equal_shapes(x=x, residual=residual)
        if x.rank == 0:
            raise ShapeError("a scalar has no axis to normalise")
        require_features(x, x.rank - 1, bias=bias, gamma=gamma, beta=beta)
        return x

    op.doc = op.doc.replace("norm", norm.name, 1)

    @op.expand
    def _(x: Node, residual: Node, bias: Node | None, **rest: Node | float | None) -> Node:
        total = affine(x + residual, None, bias)
        return norm(total, rest["gamma"], rest["beta"], rest["eps"])

    return op


fused_residual_ln = _after_residual("fused_residual_ln", layer_norm)
fused_residual_rms_norm = _after_residual("fused_residual_rms_norm", rms_norm)


@composite(
    family=FAMILY,
    samples=[
        sample(spec(3, 5)),
        sample(spec(3, 5), 0),
        sample(spec(2, 3, 4), (1, 2)),
        sample(spec(7), eps=5.0),
        sample(spec(0, 3)),
        sample(spec(3, 0)),
    ],
)
def l2_normalize(x: Float, axis: Axes = (-1,), eps: float = 1e-12) -> TensorType:
    """``x`` divided by its length (the root of the sum of squares) over ``axis``, or by eps where it is shorter."""
    require_eps(eps)
    return x


@l2_normalize.expand
def _(x: Node, axis: tuple[int, ...], eps: float) -> Node:
    total = x.square().sum(axis, True)
    is_rough, scale, _ = rough_squares(total)
    again = (x * scale).square().sum(axis, True)
    plain, scaled = maximum(total.sqrt(), eps).recip(), maximum(again.sqrt(), scale * eps).recip()
    return x * is_rough.where(scaled * scale, plain)


@l2_normalize.vjp
@in_f32
def _(g: Node, out: Node, x: Node, axis: tuple[int, ...], eps: float) -> Node:
    length = x.norm(axis, True)
    # What lies along the vector itself changes its length alone, unless that counts as eps.
    along = (length >= eps).where((g * out).sum(axis, True), 0.0)
    return (g - out * along) / maximum(length, eps)


@l2_normalize.vmap
def _(size: Dim, batched: dict[str, Any], x: Node, axis: tuple[int, ...], eps: float) -> Node:
    return l2_normalize(x, tuple(i + 1 for i in axis), eps)
