"""What changes nothing: neutral elements, what undoes itself, and signs that cancel.

A constant counts as neutral in any shape, if it is one number throughout and the other operand has the result's type already.

Normal spellings, which recognisers may rely on: a sign stands outside of products, quotients and odd functions; comparisons
are equal in both directions.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes

from ...graph.dtypes import DType
from ..declare import Condition, is_float, keeps_type, rewrite, rule
from ..match import Match
from ..pattern import Pattern, T, Variable, variables

x, a, b, c, d, low, high, low2, high2 = variables("x a b c d low high low2 high2")
first, second = variables("first second")


def is_filled(name: Variable, value: float) -> Condition:
    """A constant that is one number throughout."""
    return Condition(f"{name} is {value:g}", lambda m: m[name].number == value)


def is_all(name: Variable, value: bool) -> Condition:
    """A constant of bools that are all the same."""

    def holds(m: Match) -> bool:
        data = m[name].constant
        if data is None or data.type.dtype.kind != "bool" or not data.array.size:
            return False
        return bool((data.array == value).all())

    return Condition(f"{name} is {value}", holds)


# --------------------------------------------------------------------------- neutral elements

KEPT = keeps_type(x)

rule("x * 1", x * c, x, when=is_filled(c, 1) & KEPT, simplify=True)
rule("x / 1", x / c, x, when=is_filled(c, 1) & KEPT, simplify=True)
rule("x + 0", x + c, x, when=is_filled(c, 0) & KEPT, simplify=True)
rule("x - 0", x - c, x, when=is_filled(c, 0) & KEPT, simplify=True)
rule("x ** 1", x**c, x, when=is_filled(c, 1) & KEPT, simplify=True)
rule("0 - x", c - x, -x, when=is_filled(c, 0) & KEPT, simplify=True)
rule("x * -1", x * c, -x, when=is_filled(c, -1) & KEPT, simplify=True)

TRUE, FALSE = is_all(c, True), is_all(c, False)

rule("x and true", T.logical_and(x, c), x, when=TRUE & KEPT, simplify=True)
rule("x and false", T.logical_and(x, c), c, when=FALSE & keeps_type(c), simplify=True)
rule("x or false", T.logical_or(x, c), x, when=FALSE & KEPT, simplify=True)
rule("x or true", T.logical_or(x, c), c, when=TRUE & keeps_type(c), simplify=True)
rule("x xor false", T.logical_xor(x, c), x, when=FALSE & KEPT, simplify=True)
rule("x xor true", T.logical_xor(x, c), T.logical_not(x), when=TRUE & KEPT, simplify=True)

rule("x and x", T.logical_and(x, x), x, simplify=True)
rule("x or x", T.logical_or(x, x), x, simplify=True)
rule("maximum of x and x", T.maximum(x, x), x, simplify=True)
rule("minimum of x and x", T.minimum(x, x), x, simplify=True)


# --------------------------------------------------------------------------- selection

rule("where of equal branches", T.where(c, x, x), x, when=KEPT, simplify=True)
rule("where not", T.where(T.logical_not(c), a, b), T.where(c, b, a), simplify=True)


@rewrite("where of a known condition", T.where(c, a, b), simplify=True)
def _(m: Match) -> Pattern | None:
    if TRUE(m):
        taken = m.a
    elif FALSE(m):
        taken = m.b
    else:
        return None
    result: Pattern = (
        taken if taken.type == m.root.type else T.broadcast_to(taken, shape=m.root.shape)
    )
    return result


IN_ORDER = Condition(
    "low is not above high",
    lambda m: None not in (m.low.number, m.high.number) and m.low.number <= m.high.number,
)

NUMBERS = Condition("x is no bool", lambda m: m.x.dtype.kind != "bool")

rule("clip", T.minimum(T.maximum(x, low), high), T.clip(x, low, high), when=NUMBERS)
rule("clip from above", T.maximum(T.minimum(x, high), low), T.clip(x, low, high), when=IN_ORDER)

for bounds in ({"low": low, "high": high}, {"low": low}, {"high": high}):
    clipped = T.clip(x, **bounds)
    name = " and ".join(bounds)
    rule(f"clip by the same {name}", T.clip(clipped, **bounds), clipped, simplify=True)


@rewrite("clip of clip", T.clip(T.clip(x, low, high), low2, high2), when=KEPT, simplify=True)
def _(m: Match) -> Pattern | None:
    numbers = [value.number for value in (m.low, m.low2, m.high, m.high2)]
    if any(number is None for number in numbers):
        return None
    lower = max(m.low, m.low2, key=lambda value: value.number)
    upper = min(m.high, m.high2, key=lambda value: value.number)
    # Intervals that do not meet leave one number, which depends on their order.
    result: Pattern | None = T.clip(m.x, lower, upper) if lower.number <= upper.number else None
    return result


# --------------------------------------------------------------------------- what does nothing twice

for name in ("relu", "relu6", "hard_tanh", "abs", "sign", "floor", "ceil", "trunc", "round"):
    call = getattr(T, name)
    rule(f"{name} of {name}", call(call(x)), call(x), simplify=True)

rule("relu6 of relu", T.relu6(T.relu(x)), T.relu6(x), simplify=True)
rule("relu of relu6", T.relu(T.relu6(x)), T.relu6(x), simplify=True)

NOT_NEGATIVE = {
    "exp": T.exp(x),
    "sigmoid": T.sigmoid(x),
    "softmax": T.softmax(x, axis=first),
    "square": T.square(x),
}
"""Not sqrt: relu and abs have no slope at 0, and keep its infinite one back."""

for name, call in NOT_NEGATIVE.items():
    # Of integers a square may wrap around to below 0.
    rule(f"relu of {name}", T.relu(call), call, when=is_float(x), simplify=True)
    rule(f"abs of {name}", T.abs(call), call, when=is_float(x), simplify=True)

IS_REAL = Condition("x is real", lambda m: m.x.dtype.kind != "complex")

rule("relu of abs", T.relu(T.abs(x)), T.abs(x), when=is_float(x), simplify=True)
rule("abs of relu", T.abs(T.relu(x)), T.relu(x), simplify=True)

# --------------------------------------------------------------------------- signs

rule("neg of neg", T.neg(T.neg(x)), x, simplify=True)
rule("a + -b", a + (-b), a - b, simplify=True)
rule("a - -b", a - (-b), a + b, simplify=True)
rule("-a - b", (-a) - b, -(a + b))
rule("-(a - b)", -(a - b), b - a, simplify=True)
rule("-a * -b", (-a) * (-b), a * b, simplify=True)
rule("-a / -b", (-a) / (-b), a / b, simplify=True)
rule("-a * b", (-a) * b, -(a * b))
rule("-a / b", (-a) / b, -(a / b))
rule("a / -b", a / (-b), -(a / b))

for name in ("abs", "square", "cos", "cosh"):
    call = getattr(T, name)
    rule(f"{name} of neg", call(-x), call(x), simplify=True)

for name in ("sin", "tanh", "erf", "recip"):
    call = getattr(T, name)
    rule(f"{name} of neg", call(-x), -call(x))

rule("square of abs", T.square(T.abs(x)), T.square(x), when=IS_REAL, simplify=True)

# --------------------------------------------------------------------------- logic and comparison

rule("not of not", T.logical_not(T.logical_not(x)), x, simplify=True)
rule("not of eq", T.logical_not(T.eq(a, b)), T.ne(a, b), simplify=True)
rule("not of ne", T.logical_not(T.ne(a, b)), T.eq(a, b), simplify=True)

ORDERED = Condition("a has no NaN", lambda m: m.a.dtype.kind in ("int", "bool"))

for name, opposite in {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}.items():
    rule(
        f"not of {name}",
        T.logical_not(getattr(T, name)(a, b)),
        getattr(T, opposite)(a, b),
        when=ORDERED,
        simplify=True,
    )

rule("a < b", T.lt(a, b), T.gt(b, a), both_ways=True)
rule("a <= b", T.le(a, b), T.ge(b, a), both_ways=True)

# --------------------------------------------------------------------------- casts


def limits(dtype: DType) -> Any:
    """The digits and exponents of a float type."""
    return ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]


def holds_all(wide: DType, narrow: DType) -> bool:
    """Whether every value of one element type is one of another."""
    if wide is narrow or narrow.kind == "bool":
        return True
    if narrow.is_int and wide.is_int:
        return wide.limits[0] <= narrow.limits[0] and narrow.limits[1] <= wide.limits[1]
    if not wide.is_float:
        return False
    wider = limits(wide)
    if narrow.is_int:
        return narrow.limits[1] <= 2 ** (int(wider.nmant) + 1)
    if not narrow.is_float:
        return False
    own = limits(narrow)
    return bool(own.nmant <= wider.nmant and own.maxexp <= wider.maxexp)


rule("cast to its own type", T.cast(x, to=first), x, when=KEPT, simplify=True)


@rewrite("cast of a wider cast", T.cast(T.cast(x, to=first), to=second), simplify=True)
def _(m: Match) -> Pattern | None:
    own, through, to = m.x.dtype, m.first, m.second
    if not holds_all(through, own):
        return None
    if to is own:
        return m.x
    if own.is_int and through.is_float and to.is_int:
        return None  # floats stop at the limits of an integer type, integers wrap around
    result: Pattern = T.cast(m.x, to=to)
    return result


# --------------------------------------------------------------------------- after differentiation

rule("stop_gradient", T.stop_gradient(x), x, simplify=True, late=True)
