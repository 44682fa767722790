"""Sizes that are known, and sizes that have a name.

A dimension is an ``int`` or a ``SymbolicDim``: a polynomial with integer coefficients over symbols
that stand for sizes (never negative). Arithmetic that comes out constant gives an ``int`` back.

    >>> seq = symbol("seq")
    >>> 2 * seq + 1
    2*seq+1
    >>> (2 * seq + 3) // 2
    seq+1
    >>> bind_dim(2 * seq + 1, {"seq": 5})
    11
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from .errors import ShapeError

Monomial: TypeAlias = tuple[str, ...]

_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_LONGEST = 1000  # digits of a number that is read; Python itself refuses to read very long ones


class SymbolicDim:
    """A size that is not a constant. Make one with ``symbol`` or ``parse_dim``."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = tuple(sorted(terms.items(), key=lambda t: (-len(t[0]), t[0])))
        self._hash = hash(self.terms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SymbolicDim) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        text = ""
        for monomial, factor in self.terms:
            sign = "-" if factor < 0 else "+" if text else ""
            scale = abs(factor)
            names = "*".join(monomial)
            body = str(scale) if not monomial else names if scale == 1 else f"{scale}*{names}"
            text += sign + body
        return text

    @property
    def symbols(self) -> frozenset[str]:
        """The names this size depends on."""
        return frozenset(name for monomial, _ in self.terms for name in monomial)

    def __add__(self, other: Dim) -> Dim:
        if not isinstance(other, int | SymbolicDim):
            return NotImplemented
        terms = dict(self.terms)
        for monomial, factor in _terms(other):
            terms[monomial] = terms.get(monomial, 0) + factor
        return _simplify(terms)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + -other

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    def __mul__(self, other: Dim) -> Dim:
        if not isinstance(other, int | SymbolicDim):
            return NotImplemented
        terms: dict[Monomial, int] = {}
        for left, a in self.terms:
            for right, b in _terms(other):
                monomial = tuple(sorted(left + right))
                terms[monomial] = terms.get(monomial, 0) + a * b
        return _simplify(terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        """The quotient, where the remainder is the same for every value of the symbols."""
        return _split(self, other, "//")[0]

    def __rfloordiv__(self, other: int) -> Dim:
        return _split(other, self, "//")[0]

    def __mod__(self, other: Dim) -> int:
        """The remainder, where it is the same for every value of the symbols."""
        return _split(self, other, "%")[1]

    def __rmod__(self, other: int) -> int:
        return _split(other, self, "%")[1]

    def __lt__(self, other: Dim) -> bool:
        return _less(self, other)

    def __gt__(self, other: Dim) -> bool:
        return _less(other, self)

    def __le__(self, other: Dim) -> bool:
        return not _less(other, self)

    def __ge__(self, other: Dim) -> bool:
        return not _less(self, other)

    def __index__(self) -> int:
        raise ShapeError(f"size {self} is not a number yet", hint=f"bind {_listed(self)} first")

    __int__ = __index__

    def __bool__(self) -> bool:
        return _less(0, self)


Dim: TypeAlias = int | SymbolicDim
Shape: TypeAlias = tuple[Dim, ...]


def symbol(name: str) -> SymbolicDim:
    """A size known only by its name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ShapeError(f"'{name}' is not a name for a dimension")
    return SymbolicDim({(name,): 1})


def _terms(value: Dim) -> Sequence[tuple[Monomial, int]]:
    return value.terms if isinstance(value, SymbolicDim) else (((), value),)


def _simplify(terms: Mapping[Monomial, int]) -> Dim:
    kept = {monomial: factor for monomial, factor in terms.items() if factor}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    return SymbolicDim(kept)


def _listed(*values: SymbolicDim) -> str:
    names = frozenset().union(*(value.symbols for value in values))
    return ", ".join(f"'{name}'" for name in sorted(names))


def _less(a: Dim, b: Dim) -> bool:
    """A < b, when that holds or fails for every value of the symbols (which are 0 or more)."""
    difference = b - a
    if isinstance(difference, int):
        return difference > 0
    factors = dict(difference.terms)
    constant = factors.pop((), 0)
    if constant > 0 and all(factor > 0 for factor in factors.values()):
        return True
    if constant <= 0 and all(factor < 0 for factor in factors.values()):
        return False
    raise ShapeError(
        f"whether {a} < {b} is not known until {_listed(difference)} is bound", hint="bind it first"
    )


def divide(a: Dim, b: Dim) -> Dim | None:
    """A / b where that is exact, else None."""
    if not isinstance(b, SymbolicDim):
        if b == 0 or any(factor % b for _, factor in _terms(a)):
            return None
        return _simplify({monomial: factor // b for monomial, factor in _terms(a)})
    # Long division: the terms are in a monomial order, so each step must cancel the first one.
    below, scale = b.terms[0]
    quotient: Dim = 0
    while a != 0:
        above, factor = _terms(a)[0]
        rest = _without(above, below)
        if rest is None or factor % scale:
            return None
        step = _simplify({rest: factor // scale})
        quotient, a = quotient + step, a - step * b
    return quotient


def _without(monomial: Monomial, part: Monomial) -> Monomial | None:
    """A monomial divided by another, or None where that leaves a fraction."""
    rest = list(monomial)
    for name in part:
        if name not in rest:
            return None
        rest.remove(name)
    return tuple(rest)


def _split(a: Dim, b: Dim, sign: str) -> tuple[Dim, int]:
    """Quotient and remainder of a division with symbols in it."""
    if b == 0:
        raise ShapeError(f"{a} {sign} 0 divides by zero")
    # 2*seq+5 by 2: the constant alone decides the remainder when all other terms divide.
    remainder = dict(_terms(a)).get((), 0) % b if isinstance(b, int) else 0
    quotient = divide(a - remainder, b)
    if quotient is None:
        symbols = _listed(*(value for value in (a, b) if isinstance(value, SymbolicDim)))
        raise ShapeError(
            f"{a} {sign} {b} is not known until {symbols} is bound", hint="bind it first"
        )
    return quotient, remainder


_SIZE = re.compile(r"[+-]?[^+-]+([+-][^+-]+)*")


def parse_dim(text: str) -> Dim:
    """Read a size as it prints: ``"seq"``, ``"2*seq+1"``, ``"batch*seq"``."""
    total: Dim = 0
    stripped = text.strip()
    if not _SIZE.fullmatch(stripped):
        raise _not_a_size(text)
    for piece in re.findall(r"[+-]?[^+-]+", stripped):
        term: Dim = -1 if piece.startswith("-") else 1
        for factor in map(str.strip, piece.lstrip("+-").split("*")):
            if factor.isascii() and factor.isdigit() and len(factor) <= _LONGEST:
                term = term * int(factor)
            elif _NAME.fullmatch(factor):
                term = term * symbol(factor)
            else:
                raise _not_a_size(text)
        total = total + term
    return total


def _not_a_size(text: str) -> ShapeError:
    shown = text if len(text) <= 40 else text[:37] + "..."
    return ShapeError(f"'{shown}' is not a size: write a number, a name, or 2*seq+1")


def as_dim(value: Any) -> Dim:
    """A size from an int, a NumPy integer, a symbol, or text. Negative sizes are refused."""
    if isinstance(value, str):
        value = parse_dim(value)
    if isinstance(value, SymbolicDim):
        if all(factor < 0 for _, factor in value.terms) and value.terms[-1][0] == ():
            raise ShapeError(f"size {value} is negative")
        return value
    unknown = value is None or (isinstance(value, int) and value == -1)
    varies = "a size that varies has a name: 'batch'" if unknown else None
    try:
        size = operator.index(value)
    except TypeError:
        raise ShapeError(f"size {value!r} is not an integer", hint=varies) from None
    if isinstance(value, bool):
        raise ShapeError(f"size {value!r} is not an integer")
    if size < 0:
        raise ShapeError(f"size {size} is negative", hint=varies)
    return size


def as_shape(value: Any) -> Shape:
    """A shape from an int or any sequence of sizes."""
    if isinstance(value, tuple | list):
        return tuple(map(as_dim, value))
    if isinstance(value, str | SymbolicDim):
        return (as_dim(value),)
    try:
        sizes = tuple(value)
    except TypeError:
        if hasattr(value, "__index__"):
            return (as_dim(value),)
        raise ShapeError(f"{value!r} is not a shape: write a tuple of sizes") from None
    return tuple(map(as_dim, sizes))


def bind_dim(value: Dim, bindings: Mapping[str, Dim]) -> Dim:
    """Put sizes in place of symbols; symbols without one stay."""
    if isinstance(value, int):
        return value
    total: Dim = 0
    for monomial, factor in value.terms:
        term: Dim = factor
        for name in monomial:
            term = term * bindings.get(name, symbol(name))
        total = total + term
    if isinstance(total, int) and total < 0:
        raise ShapeError(f"size {value} becomes {total}, which is negative")
    return total


def product(sizes: Sequence[Dim]) -> Dim:
    """The number of elements of a shape."""
    total: Dim = 1
    for size in sizes:
        total = total * size
    return total


def format_shape(shape: Sequence[Dim]) -> str:
    """A shape as error messages show it: ``(32, 784)``, ``(seq,)``, ``()``."""
    inner = ", ".join(map(str, shape))
    return f"({inner},)" if len(shape) == 1 else f"({inner})"
