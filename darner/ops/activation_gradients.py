"""Explicit derivatives of the activations and gated units, each an op like any other.

Every one is a function of the forward operands and of ``dy``, the gradient with respect to the result. At
a kink the derivative is 0 for relu and abs and wherever relu6, hard_sigmoid and hard_tanh bend; leaky_relu,
elu and celu take the side below.
"""

from __future__ import annotations

import math
from typing import Any

from ..graph.attributes import Float
from ..graph.errors import ArgumentError, ShapeError
from ..graph.node import Node
from ..graph.op import Resolved, Rule, composite, resolved
from ..graph.types import TensorType
from .activations import (
    ACTIVATIONS,
    ALIASES,
    FAMILY,
    GELU_CUBE,
    QUICK_GELU_SCALE,
    SELU_ALPHA,
    SELU_SCALE,
    halves,
    last_axis_halved,
    require_equal_shapes,
    sigmoid,
    silu,
    softplus,
)
from .elementwise import choose, where
from .functions import cos, cosh, erf, exp, exp2, rsqrt, sign, sin, sinh, tan, tanh
from .samples import SHAPES, Sample, sample, spec
from .shapes import concat

# --------------------------------------------------------------------------- derivatives, by kind


def _within(x: Node, low: float, high: float, inside: Node) -> Node:
    """``inside`` where low < x < high, else 0."""
    return where((x > low) & (x < high), inside, 0)


def _sigmoid(x: Node, dy: Node) -> Node:
    y = sigmoid(x)
    return dy * y * (1 - y)


def _scaled_silu(x: Node, dy: Node, scale: float) -> Node:
    """Of x * sigmoid(scale * x)."""
    inner = x if scale == 1 else x * scale
    y = sigmoid(inner)
    return dy * y * (inner * (1 - y) + 1)


def _gelu(x: Node, dy: Node) -> Node:
    below = 0.5 * (erf(x * math.sqrt(0.5)) + 1)
    density = exp(-0.5 * x.square()) * (1 / math.sqrt(2 * math.pi))
    return dy * (below + x * density)


def _gelu_approx(x: Node, dy: Node) -> Node:
    scale = math.sqrt(2 / math.pi)
    t = tanh(scale * (x + GELU_CUBE * x.square() * x))
    slope = (3 * GELU_CUBE * x.square() + 1) * scale
    return dy * (0.5 * (t + 1) + 0.5 * x * (1 - t.square()) * slope)


def _mish(x: Node, dy: Node) -> Node:
    t = tanh(softplus(x))
    return dy * (t + x * (1 - t.square()) * sigmoid(x))


def _hard_silu(x: Node, dy: Node) -> Node:
    return where(x < 3, _within(x, -3, 3, dy * (x / 3 + 0.5)), dy)


def _elu(x: Node, dy: Node, scale: float, alpha: float, inner: float) -> Node:
    """Of ``activations.exponential_below``; the exponential never sees a positive x."""
    above = x > 0
    below = exp(where(above, 0, x) * (1 / inner)) * (scale * alpha / inner)
    return dy * where(above, scale, below)


def _tanh(x: Node, dy: Node) -> Node:
    return dy * (1 - tanh(x).square())


def _leaky_relu(x: Node, dy: Node, slope: float) -> Node:
    return where(x > 0, dy, dy * slope)


_BENT: dict[str, tuple[float, Rule]] = {
    "leaky_relu": (0.01, _leaky_relu),
    "elu": (1.0, lambda x, dy, alpha: _elu(x, dy, 1, alpha, 1)),
    "celu": (1.0, lambda x, dy, alpha: _elu(x, dy, 1, alpha, alpha)),
}
"""Those with a parameter: its default, and the derivative given it."""

DERIVATIVES: dict[str, Rule] = {
    "relu": lambda x, dy: where(x > 0, dy, 0),
    "relu6": lambda x, dy: _within(x, 0, 6, dy),
    "selu": lambda x, dy: _elu(x, dy, SELU_SCALE, SELU_ALPHA, 1),
    "sigmoid": _sigmoid,
    "log_sigmoid": lambda x, dy: dy * sigmoid(-x),
    "silu": lambda x, dy: _scaled_silu(x, dy, 1),
    "gelu": _gelu,
    "gelu_approx": _gelu_approx,
    "quick_gelu": lambda x, dy: _scaled_silu(x, dy, QUICK_GELU_SCALE),
    "softplus": lambda x, dy: dy * sigmoid(x),
    "softsign": lambda x, dy: dy / (abs(x) + 1).square(),
    "mish": _mish,
    "hard_sigmoid": lambda x, dy: _within(x, -3, 3, dy / 6),
    "hard_silu": _hard_silu,
    "hard_tanh": lambda x, dy: _within(x, -1, 1, dy),
    "abs": lambda x, dy: dy * sign(x),
    "acos": lambda x, dy: -dy * rsqrt((1 - x) * (1 + x)),
    "acosh": lambda x, dy: dy * rsqrt((x - 1) * (x + 1)),
    "asin": lambda x, dy: dy * rsqrt((1 - x) * (1 + x)),
    "asinh": lambda x, dy: dy * rsqrt(x.square() + 1),
    "atan": lambda x, dy: dy / (x.square() + 1),
    "atanh": lambda x, dy: dy / ((1 - x) * (1 + x)),
    "cos": lambda x, dy: -dy * sin(x),
    "cosh": lambda x, dy: dy * sinh(x),
    "erf": lambda x, dy: dy * exp(-x.square()) * (2 / math.sqrt(math.pi)),
    "erfc": lambda x, dy: dy * exp(-x.square()) * (-2 / math.sqrt(math.pi)),
    "exp": lambda x, dy: dy * exp(x),
    "exp2": lambda x, dy: dy * exp2(x) * math.log(2),
    "expm1": lambda x, dy: dy * exp(x),
    "log": lambda x, dy: dy / x,
    "log10": lambda x, dy: dy / (x * math.log(10)),
    "log1p": lambda x, dy: dy / (x + 1),
    "log2": lambda x, dy: dy / (x * math.log(2)),
    "neg": lambda x, dy: -dy,
    "recip": lambda x, dy: -dy / x.square(),
    "round": lambda x, dy: dy,
    "rsqrt": lambda x, dy: -0.5 * dy * rsqrt(x) / x,
    "sin": lambda x, dy: dy * cos(x),
    "sinh": lambda x, dy: dy * cosh(x),
    "sqrt": lambda x, dy: 0.5 * dy * rsqrt(x),
    "square": lambda x, dy: 2 * dy * x,
    "tan": lambda x, dy: dy * (tan(x).square() + 1),
    "tanh": _tanh,
    **{kind: derivative for kind, (_, derivative) in _BENT.items()},
}
"""For each differentiable activation: x and dy (and its parameter) in, the gradient of x out."""

_RANGES = {
    "acos": (-0.9, 0.9),
    "acosh": (1.2, 4.0),
    "asin": (-0.9, 0.9),
    "atanh": (-0.9, 0.9),
    "log": (0.2, 4.0),
    "log10": (0.2, 4.0),
    "log1p": (-0.7, 4.0),
    "log2": (0.2, 4.0),
    "recip": (0.5, 3.0),
    "rsqrt": (0.2, 4.0),
    "sqrt": (0.2, 4.0),
    "tan": (-1.2, 1.2),
    "relu6": (-9.0, 9.0),
    "hard_sigmoid": (-5.0, 5.0),
    "hard_silu": (-5.0, 5.0),
}


def _x_and_dy(*shape: int, low: float = -4.0, high: float = 4.0) -> tuple[Any, Any]:
    return spec(*shape, low=low, high=high), spec(*shape)


def _each_kind() -> list[Sample]:
    calls = []
    for kind in DERIVATIVES:
        low, high = _RANGES.get(kind, (-4.0, 4.0))
        calls.append(sample(kind, *_x_and_dy(9, low=low, high=high)))
    return calls


@composite(
    family=FAMILY,
    traits=["elementwise"],
    samples=[
        *_each_kind(),
        *(sample("gelu", *_x_and_dy(*shape)) for shape in ((), (0,), (2, 3, 4))),
        sample("leaky_relu", *_x_and_dy(3, 5), alpha=0.3),
        sample("elu", *_x_and_dy(3, 5), alpha=0.5),
        sample("celu", *_x_and_dy(3, 5), alpha=2.0),
        sample("Silu", *_x_and_dy(5, low=-200, high=200)),
        sample("softplus", *_x_and_dy(5, low=-200, high=200)),
        sample("elu", *_x_and_dy(5, low=-200, high=200)),
    ],
)
def activation_backward(kind: str, x: Float, dy: Float, *, alpha: float | None = None) -> Resolved:
    """The gradient of ``activation(kind, x)`` with respect to x, given ``dy``, that of its result.

    The derivative is exact, and 0 at the kinks of relu and abs. Only ``round`` has none worth using: it lets
    ``dy`` through unchanged (straight-through). ``alpha`` is the parameter of leaky_relu, elu and celu.
    """
    known = {name: name for name in DERIVATIVES}
    aliases = {name: op.name for name, op in ALIASES.items()}
    if kind in ACTIVATIONS and kind not in known:
        raise ArgumentError(f"'{kind}' has no derivative but 0")
    name: str = choose({**known, **aliases}, kind, "differentiable activation")
    require_equal_shapes(x=x, dy=dy)
    if name in _BENT:
        alpha = _BENT[name][0] if alpha is None else alpha
    elif alpha is not None:
        raise ArgumentError(f"'{name}' has no parameter alpha")
    if name == "celu" and alpha == 0:
        raise ArgumentError("alpha is 0, by which x is divided")
    return resolved(x, kind=name, alpha=alpha)


@activation_backward.expand
def _(kind: str, x: Node, dy: Node, alpha: float | None) -> Node:
    return DERIVATIVES[kind](x, dy) if alpha is None else DERIVATIVES[kind](x, dy, alpha)


@composite(
    family=FAMILY,
    traits=["elementwise"],
    samples=[sample(*_x_and_dy(*shape)) for shape in SHAPES],
)
def relu_backward(x: Float, dy: Float) -> TensorType:
    """The gradient of ``relu(x)``: ``dy`` where x > 0, else 0."""
    require_equal_shapes(x=x, dy=dy)
    return x


@relu_backward.expand
def _(x: Node, dy: Node) -> Node:
    return DERIVATIVES["relu"](x, dy)


@composite(
    family=FAMILY,
    traits=["elementwise"],
    samples=[sample(*reversed(_x_and_dy(*shape))) for shape in SHAPES],
)
def silu_grad(dy: Float, x: Float) -> TensorType:
    """The gradient of ``silu(x)``, from that of its result. Here ``dy`` comes first."""
    require_equal_shapes(dy=dy, x=x)
    return x


@silu_grad.expand
def _(dy: Node, x: Node) -> Node:
    return DERIVATIVES["silu"](x, dy)


# --------------------------------------------------------------------------- gated units

_GATE_SHAPES = ((), (7,), (3, 5), (2, 0, 3), (1, 2, 3))


@composite(
    family=FAMILY,
    traits=["elementwise"],
    samples=[sample(spec(*s), spec(*s, low=-4, high=4), spec(*s)) for s in _GATE_SHAPES],
)
def swiglu_grad_gate(dy: Float, gate: Float, up: Float) -> TensorType:
    """The gradient of ``swiglu(gate, up)`` with respect to the gate."""
    require_equal_shapes(dy=dy, gate=gate, up=up)
    return gate


@swiglu_grad_gate.expand
def _(dy: Node, gate: Node, up: Node) -> Node:
    return silu_grad(dy * up, gate)


@composite(
    family=FAMILY,
    traits=["elementwise"],
    samples=[sample(spec(*s), spec(*s, low=-4, high=4)) for s in _GATE_SHAPES],
)
def swiglu_grad_up(dy: Float, gate: Float) -> TensorType:
    """The gradient of ``swiglu(gate, up)`` with respect to ``up``."""
    require_equal_shapes(dy=dy, gate=gate)
    return gate


@swiglu_grad_up.expand
def _(dy: Node, gate: Node) -> Node:
    return dy * silu(gate)


@composite(
    family=FAMILY,
    samples=[
        sample(spec(3, 5), spec(3, 10)),
        sample(spec(2, 3, 2), spec(2, 3, 4)),
        sample(spec(3, 5), spec(3, 10), gate_first=False),
        sample(spec(4, 0), spec(4, 0)),
        sample(spec(0, 1), spec(0, 2)),
        sample(spec(3), spec(6), gate_first=False),
    ],
)
def swiglu_concat_grad(dy: Float, x: Float, *, gate_first: bool = True) -> TensorType:
    """The gradient of ``swiglu_concat(x)``, of the shape of x."""
    half = last_axis_halved(x)
    if dy.shape != half.shape:
        raise ShapeError(f"dy is {dy}, but the result of swiglu_concat is {half}")
    return x


@swiglu_concat_grad.expand
def _(dy: Node, x: Node, gate_first: bool) -> Node:
    axis = x.rank - 1
    first, second = halves(x, axis)
    gate, up = (first, second) if gate_first else (second, first)
    of_gate, of_up = swiglu_grad_gate(dy, gate, up), swiglu_grad_up(dy, gate)
    return concat([of_gate, of_up] if gate_first else [of_up, of_gate], axis)
