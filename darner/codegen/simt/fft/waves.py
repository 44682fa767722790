"""Complex numbers of a thread, and roots of unity that it computes: no table is needed, whatever the length."""

from __future__ import annotations

import math
from collections.abc import Callable

from ....graph.dtypes import DType
from ...ir.butterflies import Complex
from ..builder import Simt, Value


class Wave:
    """A float under a name: what butterflies compute with, in which each value is used several times."""

    __slots__ = ("b", "dtype", "value")

    def __init__(self, b: Simt, value: Value, dtype: DType) -> None:
        self.b = b
        self.value = value
        self.dtype = dtype

    def _of(self, value: Value) -> Wave:
        return Wave(self.b, self.b.let(value, "w"), self.dtype)

    def __add__(self, other: Wave) -> Wave:
        return self._of(self.value + other.value)

    def __sub__(self, other: Wave) -> Wave:
        return self._of(self.value - other.value)

    def __mul__(self, other: Wave | float) -> Wave:
        return self._of(self.value * (other.value if isinstance(other, Wave) else other))

    def __neg__(self) -> Wave:
        return self._of(-self.value)

    def fma(self, factor: Wave | float, term: Wave) -> Wave:
        """``self * factor + term``."""
        if isinstance(factor, Wave):
            by = factor.value
        else:
            by = self.b.constant(factor, self.dtype)
        return self._of(self.b.fma(self.value, by, term.value))

    def where(self, condition: Value, otherwise: Wave) -> Wave:
        """This where a condition holds."""
        return self._of(self.b.choose(condition, self.value, otherwise.value))


def constant(b: Simt, number: float, dtype: DType) -> Wave:
    """A known number."""
    return Wave(b, b.constant(number, dtype), dtype)


def _power_series(x: Wave, dtype: DType, first: int) -> Wave:
    """``1 - x x / ((first + 1) (first + 2)) + ...`` for x within an eighth of a turn."""
    square, terms = x * x, 6 if dtype.itemsize == 4 else 10
    total = constant(x.b, 1.0, dtype)
    one = constant(x.b, 1.0, dtype)
    for term in range(terms, 0, -1):
        low = first + 2 * term - 1
        total = (square * total).fma(-1.0 / (low * (low + 1)), one)
    return total


def root(
    b: Simt, number: Value, count: int, dtype: DType, as_float: Callable[[Value], Value]
) -> Complex:
    """``exp(-2 pi i number / count)`` for a number below ``count``; the angle is first brought within an eighth of a turn of an axis.

    ``as_float`` makes a float of an integer with a sign.
    """
    quarter = b.let((number * 4 + count // 2) // count, "quarter")
    # Four times the distance to the axis is a whole number, with a sign.
    off = b.let(b.as_signed(number * 4 - quarter * count), "off")
    x = Wave(b, b.let(as_float(off) * (math.pi / 2 / count), "angle"), dtype)
    cosine, sine = _power_series(x, dtype, 0), x * _power_series(x, dtype, 1)
    turned = b.let(quarter & 3, "turned")
    odd, back = (turned & 1) == 1, (turned == 1) | (turned == 2)
    re, im = sine.where(odd, cosine), cosine.where(odd, sine)
    # exp(-i (x + q quarter turns)): q = 0 (c, -s), 1 (-s, -c), 2 (-c, s), 3 (s, c)
    return Complex((-re).where(back, re), im.where(turned >= 2, -im))
