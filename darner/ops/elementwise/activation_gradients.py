"""Explicit derivatives of the activations and gated units, each an op like any other, and the rules that use them.

Every one is a function of the forward operands and of ``dy``, the gradient with respect to the result. At
a kink the derivative is 0 for relu and abs and wherever relu6, hard_sigmoid and hard_tanh bend; leaky_relu,
elu and celu take the side below, hard_silu the outer one. Second derivatives come from the expansions.
"""

from __future__ import annotations

import math
from typing import Any

from ...graph.attributes import Float
from ...graph.errors import ArgumentError, ShapeError
from ...graph.facts import Facts
from ...graph.node import Node
from ...graph.op import Op, Resolved, Rule, composite, resolved
from ...graph.types import TensorType
from ..samples import SHAPES, Sample, sample, spec
from ..shapes.primitives import concat
from .activations import (
    ACTIVATIONS,
    ALIASES,
    FAMILY,
    GELU_CUBE,
    QUICK_GELU_SCALE,
    SELU_ALPHA,
    SELU_SCALE,
    celu,
    elu,
    geglu,
    gelu,
    glu,
    halves,
    last_axis_halved,
    leaky_relu,
    relu,
    repeat_over_batch,
    require_equal_shapes,
    sigmoid,
    silu,
    softplus,
    swiglu,
    swiglu_concat,
)
from .arithmetic import choose, where
from .functions import erf, exp, tanh

# --------------------------------------------------------------------------- derivatives, by kind


def _within(x: Node, low: float, high: float, inside: Node) -> Node:
    """``inside`` where low < x < high, else 0."""
    return where((x > low) & (x < high), inside, 0)


def _of_sigmoid(y: Node, dy: Node) -> Node:
    """The derivative of sigmoid from its result."""
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


def _leaky_relu(x: Node, dy: Node, slope: float) -> Node:
    return where(x > 0, dy, dy * slope)


def _by_rule(op: Op, rule: Rule) -> Rule:
    """A primitive's derivative is its own rule, here as everywhere."""
    return lambda x, dy: rule(dy, op(x), x)


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
    "sigmoid": lambda x, dy: _of_sigmoid(sigmoid(x), dy),
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
    "round": lambda x, dy: dy,
    **{kind: derivative for kind, (_, derivative) in _BENT.items()},
    **{
        op.name: _by_rule(op, rule)
        for op in ACTIVATIONS.values()
        if not op.is_composite and (rule := op.rules.vjp) is not None
    },
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


repeat_over_batch(activation_backward)


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


repeat_over_batch(relu_backward)


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


repeat_over_batch(silu_grad)


# --------------------------------------------------------------------------- rules of the activations


def _attach(op: Op) -> None:
    op.vjp(lambda g, out, x: activation_backward(op.name, x, g))


for _op in ACTIVATIONS.values():
    if _op.is_composite and _op.name not in _BENT:
        _attach(_op)

# From the result, which the next op keeps anyway, so that the operand need not live on.
relu.vjp(lambda g, out, x: relu_backward(out, g))
sigmoid.vjp(lambda g, out, x: _of_sigmoid(out, g))
leaky_relu.vjp(lambda g, out, x, slope: activation_backward("leaky_relu", x, g, alpha=slope))
elu.vjp(lambda g, out, x, alpha: activation_backward("elu", x, g, alpha=alpha))
celu.vjp(lambda g, out, x, alpha: activation_backward("celu", x, g, alpha=alpha))


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


repeat_over_batch(swiglu_grad_gate)


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


repeat_over_batch(swiglu_grad_up)


@swiglu.vjp
def _(g: Node, out: Node, gate: Node, up: Node) -> Any:
    return {
        "gate": lambda: swiglu_grad_gate(g, gate, up),
        "up": lambda: swiglu_grad_up(g, gate),
    }


@geglu.vjp
def _(g: Node, out: Node, gate: Node, up: Node) -> Any:
    return {
        "gate": lambda: activation_backward("gelu", gate, g * up),
        "up": lambda: g * gelu(gate),
    }


@composite(
    family=FAMILY,
    facts=Facts(fused=True),
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


repeat_over_batch(swiglu_concat_grad)


@swiglu_concat.vjp
def _(g: Node, out: Node, x: Node, gate_first: bool) -> Node:
    return swiglu_concat_grad(g, x, gate_first=gate_first)


@glu.vjp
def _(g: Node, out: Node, x: Node, axis: int) -> Node:
    first, second = halves(x, axis)
    weight = sigmoid(second)
    return concat([g * weight, _of_sigmoid(weight, g * first)], axis)
