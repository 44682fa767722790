"""Sums and products put in another order: factors taken out, chains of matrices, scales beside products.

Nothing here is better by itself: every row offers another order, and the cost of the whole decides. A row whose other order
computes with sums or products that were not there before asks for floats of a wide range (not f16), in which they do not overflow.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from ..declare import (
    Condition,
    is_constant,
    is_float,
    is_scalar,
    keeps_type,
    rewrite,
    rule,
    same_type,
)
from ..match import Match, Value
from ..pattern import Pattern, T, Variable, variables
from .strength import is_wide, keeps_digits, scaled

x, y, a, b, c, s, perm, shape = variables("x y a b c s perm shape")

PRODUCTS: dict[tuple[bool, bool], Callable[[Any, Any], Any]] = {
    (False, False): T.matmul,
    (True, False): T.matmul_at,
    (False, True): T.matmul_bt,
}
"""The matrix products, by which of their operands they take transposed."""

NAMES = {(False, False): "matmul", (True, False): "matmul_at", (False, True): "matmul_bt"}


def _differ(one: Variable, other: Variable) -> Condition:
    return Condition(f"{one} and {other} differ", lambda m: bool(m[one] != m[other]))


# --------------------------------------------------------------------------- factors

# Of one product twice, each result would be another such sum: 2 x, 4 x, 8 x, and so on.
rule("a * b + a * c", a * b + a * c, a * (b + c), when=is_wide(a) & _differ(b, c))
rule("a * b - a * c", a * b - a * c, a * (b - c), when=is_wide(a) & _differ(b, c))
rule("x + x * y", x + x * y, x * (y + 1.0), when=is_wide(x))
rule("x - x * y", x - x * y, x * (1.0 - y), when=is_wide(x))
rule("x * y - x", x * y - x, x * (y + -1.0), when=is_wide(x))


@rewrite("x * c + x", x * c + x, when=is_constant(c) & is_wide(x) & keeps_type(x))
def _(m: Match) -> Pattern | None:
    if not keeps_digits(m.x.dtype, m.c.number, 1.0):
        return None
    return scaled(m.x, m.c.number + 1, m.x.dtype)


for form, make in PRODUCTS.items():
    name = NAMES[form]
    joined = same_type(a, b) & is_wide(a) & _differ(a, b)
    rule(f"{name} of x by a and b", make(x, a) + make(x, b), make(x, a + b), when=joined)
    rule(f"{name} of a and b by x", make(a, x) + make(b, x), make(a + b, x), when=joined)

# --------------------------------------------------------------------------- chains of matrices

Factor = tuple[Pattern, bool]
"""A matrix of a chain, and whether it is transposed in it."""


def _order_matters(m: Match) -> bool:
    """Matrices, not all square of one size: of those every order costs the same."""
    if not m.a.rank == m.b.rank == m.c.rank == 2:
        return False
    return len({*m.a.shape, *m.b.shape, *m.c.shape}) > 1


MATRICES = Condition("a, b and c are matrices, not all square", _order_matters)


def _multiplied(left: Factor, right: Factor) -> Factor:
    """The product of two factors, itself transposed where both are: there is no form for that."""
    if left[1] and right[1]:
        return T.matmul(right[0], left[0]), True
    return PRODUCTS[left[1], right[1]](left[0], right[0]), False


def _factors(form: tuple[bool, bool], left: Pattern, right: Pattern, turned: bool) -> list[Factor]:
    """A product as factors; those of its transpose stand the other way round."""
    if turned:
        return [(right, not form[1]), (left, not form[0])]
    return [(left, form[0]), (right, form[1])]


for outer, inner in product(PRODUCTS, PRODUCTS):
    early = PRODUCTS[outer](PRODUCTS[inner](a, b), c)
    one, two = _factors(inner, a, b, turned=outer[0])
    result = _multiplied(one, _multiplied(two, (c, outer[1])))[0]
    rule(f"order of {early!r}", early, result, when=MATRICES & is_wide(a))

    late = PRODUCTS[outer](a, PRODUCTS[inner](b, c))
    two, three = _factors(inner, b, c, turned=outer[1])
    result = _multiplied(_multiplied((a, outer[0]), two), three)[0]
    rule(f"order of {late!r}", late, result, when=MATRICES & is_wide(a))

# --------------------------------------------------------------------------- scales and signs beside products


def _is_smaller(name: Variable) -> Condition:
    """Only there is a scale cheaper on an operand than on the product."""

    def holds(m: Match) -> bool:
        own, whole = m[name].size, m.root.size
        return isinstance(own, int) and isinstance(whole, int) and own < whole

    return Condition(f"{name} is smaller than the result", holds)


for form, make in PRODUCTS.items():
    name = NAMES[form]
    number = is_scalar(s) & is_wide(s)
    rule(f"{name} of a scaled a", make(a * s, b), make(a, b) * s, when=number)
    rule(f"{name} of a scaled b", make(a, b * s), make(a, b) * s, when=number)
    rule(f"scale of {name} to a", make(a, b) * s, make(a * s, b), when=number & _is_smaller(a))
    rule(f"scale of {name} to b", make(a, b) * s, make(a, b * s), when=number & _is_smaller(b))
    rule(f"{name} of -a", make(-a, b), -make(a, b), when=is_float(a))
    rule(f"{name} of -b", make(a, -b), -make(a, b), when=is_float(a))

rule(
    "transpose of x * s",
    T.transpose(x * s, perm=perm),
    T.transpose(x, perm=perm) * s,
    when=is_scalar(s),
)
rule(
    "reshape of x * s",
    T.reshape(x * s, shape=shape),
    T.reshape(x, shape=shape) * s,
    when=is_scalar(s),
)

# --------------------------------------------------------------------------- transposed products


def _turned(value: Value) -> Pattern:
    """The matrices of a value transposed."""
    axes = list(range(value.rank))
    result: Pattern = T.transpose(value, perm=[*axes[:-2], axes[-1], axes[-2]])
    return result


def _turns_matrices(m: Match) -> bool:
    axes = tuple(range(m.root.rank))
    if min(m.a.rank, m.b.rank) < 2:
        return False
    return tuple(m.perm) == (*axes[:-2], axes[-1], axes[-2])


TURNED = Condition("the last two axes change places", _turns_matrices)

rule(
    "transpose of matmul_at",
    T.transpose(T.matmul_at(a, b), perm=perm),
    T.matmul_at(b, a),
    when=TURNED,
)
rule(
    "transpose of matmul_bt",
    T.transpose(T.matmul_bt(a, b), perm=perm),
    T.matmul_bt(b, a),
    when=TURNED,
)


# Of the transposes that these two make, one is gone where the operand was transposed itself.
@rewrite("transpose of matmul to a", T.transpose(T.matmul(a, b), perm=perm), when=TURNED)
def _(m: Match) -> Pattern | None:
    result: Pattern = T.matmul_at(m.b, _turned(m.a))
    return result


@rewrite("transpose of matmul to b", T.transpose(T.matmul(a, b), perm=perm), when=TURNED)
def _(m: Match) -> Pattern | None:
    result: Pattern = T.matmul_bt(_turned(m.b), m.a)
    return result


# --------------------------------------------------------------------------- sums beside products


def _is_bias(name: Variable, other: Variable) -> Condition:
    def holds(m: Match) -> bool:
        bias, root = m[name].shape, m.root.shape
        if len(bias) != 1 or len(root) < 2 or bias[0] != root[-1]:
            return False
        return bool(m[other].type == m.root.type)

    return Condition(f"{name} has one number for each column, {other} the result's type", holds)


# The bias goes first: it is added where the product is written, and the residual after it.
for form, make in PRODUCTS.items():
    name = NAMES[form]
    when = _is_bias(b, c) & is_float(b)
    x_y = make(x, y)
    rule(f"{name} + residual + bias", (x_y + c) + b, (x_y + b) + c, when=when, late=True)
    rule(f"{name} + (residual + bias)", x_y + (c + b), (x_y + b) + c, when=when, late=True)
