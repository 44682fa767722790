"""Cheaper arithmetic: powers as products, divisions by constants as products, constants gathered.

Normal spellings, which recognisers may rely on, whatever was written:

- ``square(x)`` for x * x and x ** 2; ``recip``, ``sqrt`` and ``rsqrt`` for the other powers; x ** 3 is ``x * square(x)``.
- ``a * recip(b)`` for a / b (but not in f16, where a reciprocal overflows early), ``a * rsqrt(b)`` for a / sqrt(b) and
  ``recip(x)`` for 1 / x; ``x * 0.5`` for x / 2; ``x + -1.0`` for x - 1.0.
- A constant factor comes last and once: ``(x * y) * 0.5`` for (0.5 * x) * y; ``x * 0.5 + 0.5`` for 0.5 * (x + 1).
- ``-(x * 2.0)`` and ``x * -2.0`` are one thing, as are ``expm1(x)`` and exp(x) - 1, ``log1p(x)`` and log(x + 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from ...graph import dtypes
from ...graph.data import Array
from ...graph.dtypes import DType
from ...graph.node import Node
from ..declare import Condition, is_constant, is_float, is_scalar, keeps_type, rewrite, rule
from ..match import Match
from ..pattern import Pattern, T, Variable, variables
from .identities import is_filled, limits

x, y, a, b, c, d, rest, axis = variables("x y a b c d rest axis")

KEPT = keeps_type(x)
SCALED = is_constant(c) & is_float(x) & KEPT
"""``x`` beside one number, by which it is not broadcast."""


def is_wide(*names: Variable) -> Condition:
    """All are floats of a range in which products of ordinary numbers do not overflow: not f16."""
    text = f"{', '.join(n.name for n in names)} are floats of a wide range"
    return Condition(
        text, lambda m: all(m[n].dtype.is_float and m[n].dtype is not dtypes.f16 for n in names)
    )


def is_normal(dtype: DType, value: float) -> bool:
    """Whether a float type has a number without losing digits or the number itself."""
    info = limits(dtype)
    return value == 0 or float(info.tiny) <= abs(value) <= float(info.max)


def _slack(dtype: DType) -> float:
    """A relative difference that is rounding alone."""
    return 4 * float(limits(dtype).eps)


def _rounded(dtype: DType, value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.asarray(value, dtype.numpy))


def keeps_digits(dtype: DType, first: float, second: float) -> bool:
    """Whether the sum of two numbers has the digits of both: the larger does not swallow the smaller."""
    total = first + second
    return abs(_rounded(dtype, total) - total) <= _slack(dtype) * min(abs(first), abs(second))


def _may_round(m: Match, exact: Fraction) -> bool:
    """Whether a number made of two may stand for both: rounded in a graph, but in an e-graph only as it is.

    There, scales that lead in a circle up to rounding would make a value equal to itself times that rounding, and so
    to its every power, for ever.
    """
    return isinstance(m.root.handle, Node) or Fraction(_rounded(m.x.dtype, float(exact))) == exact


def scaled(value: Pattern, factor: float, dtype: DType) -> Pattern | None:
    """A value times a number, which may be 1; None where the number does not fit."""
    factor = _rounded(dtype, factor)
    if not is_normal(dtype, factor) or factor == 0:
        return None
    if abs(factor) == 1:
        return value if factor > 0 else -value
    return value * factor


def shifted(m: Match, value: Pattern, plus: float, minus: float) -> Pattern | None:
    """A value plus a difference of numbers, which may be 0; None where that does not fit."""
    dtype, shift = m.x.dtype, plus - minus
    if not is_normal(dtype, shift) or not keeps_digits(dtype, plus, -minus):
        return None
    if not _may_round(m, Fraction(plus) - Fraction(minus)):
        return None
    # What takes back most of what it adds is there to round: (x + 2**23) - 2**23.
    if dtype.is_float and max(abs(plus), abs(minus)) > 256 * max(1.0, abs(shift)):
        return None
    return value if shift == 0 else value + shift


# --------------------------------------------------------------------------- powers

FLOAT_KEPT = is_float(x) & KEPT

rule("x ** 2", x**c, T.square(x), when=is_filled(c, 2) & KEPT, simplify=True)
rule("x ** 3", x**c, x * T.square(x), when=is_filled(c, 3) & KEPT)
rule("x ** 4", x**c, T.square(T.square(x)), when=is_filled(c, 4) & KEPT)
rule("x ** 0.5", x**c, T.sqrt(x), when=is_filled(c, 0.5) & FLOAT_KEPT, simplify=True)
rule("x ** -1", x**c, T.recip(x), when=is_filled(c, -1) & FLOAT_KEPT, simplify=True)
rule("x ** -0.5", x**c, T.rsqrt(x), when=is_filled(c, -0.5) & FLOAT_KEPT, simplify=True)
# The square of an f16 overflows where its inverse is a number still.
rule("x ** -2", x**c, T.recip(T.square(x)), when=is_filled(c, -2) & is_wide(x) & KEPT)
rule("2 ** x", c**x, T.exp2(x), when=is_filled(c, 2) & FLOAT_KEPT, simplify=True)

rule("x * x", x * x, T.square(x), both_ways=True)
rule("x * (x * c)", x * (x * c), T.square(x) * c, when=is_constant(c) & is_wide(x))

rule("recip of recip", T.recip(T.recip(x)), x, simplify=True)
rule("recip of sqrt", T.recip(T.sqrt(x)), T.rsqrt(x), when=is_float(x), simplify=True)
rule("recip of rsqrt", T.recip(T.rsqrt(x)), T.sqrt(x), simplify=True)
rule("sqrt of recip", T.sqrt(T.recip(x)), T.rsqrt(x), when=is_float(x), simplify=True)
rule("sqrt of square", T.sqrt(T.square(x)), T.abs(x), when=is_float(x), simplify=True)
rule("x * rsqrt(x)", x * T.rsqrt(x), T.sqrt(x))

_SQUARES = T.sum(T.square(x), rest=rest)
rule("square of a norm", T.square(T.sqrt(_SQUARES)), _SQUARES, when=is_float(x), simplify=True)

# --------------------------------------------------------------------------- divisions

rule("1 / x", c / x, T.recip(x), when=is_filled(c, 1) & KEPT, simplify=True)
rule("a / b", a / b, a * T.recip(b), when=is_wide(b))
rule("a / (exp(x) + 1)", a / (T.exp(x) + 1.0), a * T.recip(T.exp(x) + 1.0), when=is_float(x))
rule("a * recip(b)", a * T.recip(b), a / b, when=is_float(b))
rule("a / sqrt(b)", a / T.sqrt(b), a * T.rsqrt(b), when=is_float(b))


@rewrite("x / c", x / c, when=SCALED)
def _(m: Match) -> Pattern | None:
    dtype = m.x.dtype
    if not m.c.number or not math.isfinite(m.c.number):
        return None
    inverse = 1 / m.c.number
    if dtype.is_half and _rounded(dtype, inverse) != inverse:
        return None  # of few digits, one more rounding shows
    return scaled(m.x, inverse, dtype)


# --------------------------------------------------------------------------- constants gathered

_FINITE = Condition(
    "c and d are finite numbers",
    lambda m: all(v.number is not None and math.isfinite(v.number) for v in (m.c, m.d)),
)
_MANY_DIGITS = Condition("x has many digits", lambda m: not m.x.dtype.is_half)

rule("x + x", x + x, x * 2.0, when=is_float(x))


@rewrite("(x * c) * d", (x * c) * d, when=SCALED & _FINITE, simplify=True)
def _(m: Match) -> Pattern | None:
    result = scaled(m.x, m.c.number * m.d.number, m.x.dtype)
    if result is None or not _may_round(m, Fraction(m.c.number) * Fraction(m.d.number)):
        return None
    return result


@rewrite("(x + c) + d", (x + c) + d, when=SCALED & _FINITE, simplify=True)
def _(m: Match) -> Pattern | None:
    return shifted(m, m.x, m.c.number, -m.d.number)


@rewrite("x - c", x - c, when=SCALED)
def _(m: Match) -> Pattern | None:
    return None if m.c.number == 0 else m.x + -m.c.number


@rewrite("c - (d - x)", c - (d - x), when=SCALED & _FINITE, simplify=True)
def _(m: Match) -> Pattern | None:
    return shifted(m, m.x, m.c.number, m.d.number)


@rewrite("(c - x) + d", (c - x) + d, when=SCALED & _FINITE)
def _(m: Match) -> Pattern | None:
    return shifted(m, -m.x, m.c.number, -m.d.number)


@rewrite("(x + c) * d", (x + c) * d, when=SCALED & _FINITE & _MANY_DIGITS)
def _(m: Match) -> Pattern | None:
    offset = m.c.number * m.d.number
    if not is_normal(m.x.dtype, offset):
        return None
    result = scaled(m.x, m.d.number, m.x.dtype)
    return None if result is None else result + offset


@rewrite("neg of x * c", -(x * c), when=SCALED)
def _(m: Match) -> Pattern | None:
    return scaled(m.x, -m.c.number, m.x.dtype)


@rewrite("x * negative", x * c, when=SCALED)
def _(m: Match) -> Pattern | None:
    value = m.c.number
    return None if not value < 0 or value == -1 else -(m.x * -value)


_NUMBER_LAST = Condition(
    "c alone is a constant number",
    lambda m: m.c.number is not None and m.x.number is None and m.y.number is None,
)
rule("(x * c) * y", (x * c) * y, (x * y) * c, when=_NUMBER_LAST & is_scalar(c) & is_wide(x))

# --------------------------------------------------------------------------- the product of the chain rule


def _all(name: Variable, text: str, test: Callable[[Array], Array]) -> Condition:
    """A constant whose elements all pass a test."""

    def holds(m: Match) -> bool:
        data = m[name].constant
        return data is not None and m[name].dtype.is_float and bool(test(data.array).all())

    return Condition(f"{name} is a constant, {text}", holds)


rule("chain by a number", T.chain(x, c), x * c, when=_all(c, "finite", np.isfinite), simplify=True)
rule("chain of a number", T.chain(c, x), c * x, when=_all(c, "not 0", np.abs), simplify=True)

# --------------------------------------------------------------------------- exponentials and logarithms

LOG_2, LOG_10 = math.log(2), math.log(10)

rule("log of exp", T.log(T.exp(x)), x, simplify=True)
rule("log2 of exp2", T.log2(T.exp2(x)), x, simplify=True)
rule("log1p of expm1", T.log1p(T.expm1(x)), x, simplify=True)

for name, positive in {
    "sigmoid": T.sigmoid(x),
    "softmax": T.softmax(x, axis=axis),
    "abs": T.abs(x),
    "square": T.square(x),
}.items():
    rule(f"exp of log of {name}", T.exp(T.log(positive)), positive, when=is_float(x), simplify=True)

rule("exp(a) * exp(b)", T.exp(a) * T.exp(b), T.exp(a + b))
rule("exp(a) / exp(b)", T.exp(a) / T.exp(b), T.exp(a - b))
rule("recip of exp", T.recip(T.exp(x)), T.exp(-x))
rule("square of exp", T.square(T.exp(x)), T.exp(x * 2.0))
rule("exp(x) - 1", T.exp(x) - 1.0, T.expm1(x), when=is_float(x))
rule("exp(x) + -1", T.exp(x) + -1.0, T.expm1(x), when=is_float(x))
rule("log(x + 1)", T.log(x + 1.0), T.log1p(x), when=is_float(x))
rule("exp of x * log 2", T.exp(x * LOG_2), T.exp2(x), when=is_float(x), simplify=True)
rule("exp2 of x / log 2", T.exp2(x * (1 / LOG_2)), T.exp(x), simplify=True)
rule("log(x) / log 2", T.log(x) * (1 / LOG_2), T.log2(x), when=is_float(x), simplify=True)
rule("log(x) / log 10", T.log(x) * (1 / LOG_10), T.log10(x), when=is_float(x), simplify=True)
rule("log2(x) * log 2", T.log2(x) * LOG_2, T.log(x), simplify=True)

rule("log of sqrt", T.log(T.sqrt(x)), T.log(x) * 0.5, when=is_float(x))
rule("log of recip", T.log(T.recip(x)), -T.log(x), when=is_float(x))


@rewrite("log of x ** c", T.log(x**c), when=SCALED)
def _(m: Match) -> Pattern | None:
    # An even power of a negative number has a logarithm, the number itself has none.
    if not math.isfinite(m.c.number) or m.c.number % 2 == 0:
        return None
    result: Pattern = T.log(m.x) * m.c.number
    return result


# --------------------------------------------------------------------------- the logistic function

rule("1 - sigmoid(x)", 1.0 - T.sigmoid(x), T.sigmoid(-x))
rule("sigmoid(x) * 2 - 1", T.sigmoid(x) * 2.0 + -1.0, T.tanh(x * 0.5))
