"""Activations, recognised in the spellings of their parts.

Recognition goes in small steps: the spellings of a sigmoid become ``sigmoid``, its product with its
operand ``silu``, that with another ``swiglu``. Each is written on the normal spellings that
``strength`` says, which other spellings are equal to.

Where the parts have another derivative at a kink (``maximum(x, 0)`` gives all of it to x at 0,
``relu`` nothing), the rule is late: what a graph means is not changed before it was differentiated.
"""

from __future__ import annotations

import math

from ...graph.errors import InternalError
from ...ops.elementwise.activations import GELU_CUBE, QUICK_GELU_SCALE
from ..declare import Condition, is_constant, is_float, is_scalar, rewrite, rule, same_type
from ..match import Match, Value
from ..pattern import Pattern, T, Variable, variables

x, y, c, g, u, low, high, steps = variables("x y c g u low high steps")
starts, stops, later_starts, later_stops = variables("starts stops later_starts later_stops")

floats = is_float(x)


def decimal(value: Value) -> float:
    """A constant's number as it was written: the shortest decimal that its type rounds to it."""
    if value.constant is None:
        raise InternalError("only a constant has a number")
    return float(str(value.constant.array.reshape(-1)[0]))


def within(name: Variable, least: float, most: float) -> Condition:
    """The variable is a scalar constant between two numbers, which it may be."""

    def holds(m: Match) -> bool:
        number = m[name].number
        return m[name].rank == 0 and number is not None and least <= number <= most

    return Condition(f"{name} is a constant from {least} to {most}", holds)


def halved(part: Pattern) -> dict[str, Pattern]:
    """The ways to write ``0.5 * x * part``; constants of 16-bit floats stay where they are."""
    return {
        "": (x * part) * 0.5,
        ", half first": (x * 0.5) * part,
        ", half inside": x * (part * 0.5),
    }


# --------------------------------------------------------------------------- sigmoid

_half_tanh = T.tanh(x * 0.5)
rule("sigmoid", T.recip(T.exp(-x) + 1.0), T.sigmoid(x), when=floats)
rule("sigmoid from above", T.exp(x) * T.recip(T.exp(x) + 1.0), T.sigmoid(x), when=floats)
rule("sigmoid by tanh", _half_tanh * 0.5 + 0.5, T.sigmoid(x), when=floats)
rule("sigmoid by tanh, half last", (_half_tanh + 1.0) * 0.5, T.sigmoid(x), when=floats)


@rewrite(
    "sigmoid of a multiple", T.recip(T.exp(x * c) + 1.0), when=floats & within(c, -math.inf, 0)
)
def _(m: Match) -> Pattern:
    result: Pattern = T.sigmoid(m.x * -m.c.number)
    return result


rule("silu", x * T.sigmoid(x), T.silu(x), fusion="Mul+Sigmoid→Silu")
rule("silu by tanh", (x * 0.5) * _half_tanh + x * 0.5, T.silu(x), when=floats)
rule(
    "quick_gelu",
    x * T.sigmoid(x * QUICK_GELU_SCALE),
    T.quick_gelu(x),
    fusion="Mul+Sigmoid→QuickGelu",
)

rule("log of sigmoid", T.log(T.sigmoid(x)), T.log_sigmoid(x))
rule("log_sigmoid by softplus", -T.softplus(-x), T.log_sigmoid(x))
rule(
    "log_sigmoid by its parts",
    T.minimum(x, 0.0) - T.log1p(T.exp(-T.abs(x))),
    T.log_sigmoid(x),
    when=floats,
)

# --------------------------------------------------------------------------- gated units

_gated = same_type(g, u) & is_float(g)
rule("swiglu", T.silu(g) * u, T.swiglu(g, u), when=_gated, fusion="Silu+Mul→SwiGLU")
rule(
    "swiglu by its product",
    (g * u) * T.sigmoid(g),
    T.swiglu(g, u),
    when=_gated,
    fusion="Silu+Mul→SwiGLU",
)
rule("geglu", T.gelu(g) * u, T.geglu(g, u), when=_gated, fusion="Gelu+Mul→GeGLU")


def _halves(m: Match) -> int | None:
    """The axis along which two slices are the first and the second half of x."""
    rank = m.x.rank
    if tuple(m.steps) != (1,) * rank or tuple(m.starts) != (0,) * rank:
        return None
    if tuple(m.later_stops) != m.x.shape:
        return None
    cut = [axis for axis in range(rank) if m.stops[axis] != m.x.shape[axis]]
    if len(cut) != 1 or m.x.shape[cut[0]] != 2 * m.stops[cut[0]]:
        return None
    begins = tuple(m.stops[axis] if axis == cut[0] else 0 for axis in range(rank))
    return cut[0] if tuple(m.later_starts) == begins else None


_first = T.slice(x, starts=starts, stops=stops, steps=steps)
_second = T.slice(x, starts=later_starts, stops=later_stops, steps=steps)


@rewrite("glu", _first * T.sigmoid(_second), when=floats, fusion="Slice+Sigmoid+Mul→GLU")
def _(m: Match) -> Pattern | None:
    axis = _halves(m)
    return None if axis is None else T.glu(m.x, axis=axis)


for _gate_first in (True, False):
    _operands = (_first, _second) if _gate_first else (_second, _first)

    @rewrite(
        f"swiglu of halves, gate {'first' if _gate_first else 'second'}",
        T.swiglu(*_operands),
        fusion="Slice+SwiGLU→SwiGLUConcat",
    )
    def _(m: Match, gate_first: bool = _gate_first) -> Pattern | None:
        if _halves(m) != m.x.rank - 1:
            return None
        result: Pattern = T.swiglu_concat(m.x, gate_first=gate_first)
        return result


# --------------------------------------------------------------------------- gelu

_ERF = "Erf+Mul→Gelu"
for _name, _part in {
    "gelu": T.erf(x * math.sqrt(0.5)) + 1.0,
    "gelu by a quotient": T.erf(x / math.sqrt(2)) + 1.0,
    "gelu by erfc": T.erfc(x * -math.sqrt(0.5)),
}.items():
    for _words, _spelling in halved(_part).items():
        rule(f"{_name}{_words}", _spelling, T.gelu(x), when=floats, fusion=_ERF)

_SCALE = math.sqrt(2 / math.pi)
_polynomial = x + (x * T.square(x)) * GELU_CUBE
rule("polynomial of gelu", x * (T.square(x) * GELU_CUBE + 1.0), _polynomial, when=floats)
_TANH = "Tanh+Mul→GeluApprox"
for _words, _spelling in halved(T.tanh(_polynomial * _SCALE) + 1.0).items():
    rule(f"gelu_approx{_words}", _spelling, T.gelu_approx(x), when=floats, fusion=_TANH)
rule(
    "gelu_approx by sigmoid",
    x * T.sigmoid(_polynomial * (2 * _SCALE)),
    T.gelu_approx(x),
    fusion=_TANH,
)

# --------------------------------------------------------------------------- straight lines

rule("relu", T.maximum(x, 0.0), T.relu(x), late=True)
rule("relu, zero first", T.maximum(0.0, x), T.relu(x))
rule("relu by selection", T.where(T.gt(x, 0.0), x, 0.0), T.relu(x))
rule("relu by opposite selection", T.where(T.le(x, 0.0), 0.0, x), T.relu(x))
rule("relu by selection from 0", T.where(T.ge(x, 0.0), x, 0.0), T.relu(x), late=True)
rule("relu by selection below 0", T.where(T.lt(x, 0.0), 0.0, x), T.relu(x), late=True)
rule("relu6", T.minimum(T.relu(x), 6.0), T.relu6(x), late=True)
rule("relu6, six first", T.relu(T.minimum(x, 6.0)), T.relu6(x), late=True)
rule("relu6 by clip", T.clip(x, 0.0, 6.0), T.relu6(x), late=True)
rule("hard_tanh", T.clip(x, -1.0, 1.0), T.hard_tanh(x), when=floats, late=True)
rule("hard_sigmoid", T.relu6(x + 3.0) * (1 / 6), T.hard_sigmoid(x), when=floats, late=True)
rule(
    "hard_sigmoid by clip",
    T.clip(x * (1 / 6) + 0.5, 0.0, 1.0),
    T.hard_sigmoid(x),
    when=floats,
    late=True,
)
rule("hard_silu", x * T.hard_sigmoid(x), T.hard_silu(x), late=True)
rule("hard_silu by relu6", (x * T.relu6(x + 3.0)) * (1 / 6), T.hard_silu(x), when=floats, late=True)


def _leaky(m: Match) -> Pattern:
    result: Pattern = T.leaky_relu(m.x, slope=decimal(m.c))
    return result


_slope = floats & is_scalar(c) & is_constant(c)
rule("leaky_relu", T.where(T.gt(x, 0.0), x, x * c), _leaky, when=_slope)
rule("leaky_relu from 0", T.where(T.ge(x, 0.0), x, x * c), _leaky, when=_slope, late=True)
rule("leaky_relu by maximum", T.maximum(x, x * c), _leaky, when=floats & within(c, 0, 1), late=True)


def _elu(m: Match) -> Pattern:
    result: Pattern = T.elu(m.x, alpha=decimal(m.c))
    return result


# The exponential of the side not taken may overflow here; in ``elu`` it is not computed.
rule("elu", T.where(T.gt(x, 0.0), x, T.expm1(x)), T.elu(x), when=floats)
rule("elu of alpha", T.where(T.gt(x, 0.0), x, T.expm1(x) * c), _elu, when=_slope)

# --------------------------------------------------------------------------- smooth ones

rule("softplus", T.log1p(T.exp(x)), T.softplus(x), when=floats)
_tail = T.log1p(T.exp(-T.abs(x)))
rule("softplus by its parts", T.maximum(x, 0.0) + _tail, T.softplus(x), when=floats)
rule("mish", x * T.tanh(T.softplus(x)), T.mish(x), fusion="Softplus+Tanh+Mul→Mish")
rule("softsign", x / (T.abs(x) + 1.0), T.softsign(x), when=floats)

rule("tanh by sinh", T.sinh(x) / T.cosh(x), T.tanh(x), when=floats)
_grown, _shrunk = T.exp(x), T.exp(-x)
rule("tanh by exp", (_grown - _shrunk) / (_grown + _shrunk), T.tanh(x), when=floats)

# --------------------------------------------------------------------------- gradients

rule(
    "relu_backward",
    T.where(T.gt(x, 0.0), y, 0.0),
    T.relu_backward(x, y),
    when=same_type(x, y) & floats,
)
