"""Short Fourier transforms of values in registers, on any builder: what passes of long ones consist of.

All go forward, ``X[k] = sum x[n] exp(-2 pi i k n / N)``; the other direction is the same with real and imaginary parts exchanged, before and after.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from .index import Number


class Complex(NamedTuple):
    """A complex number in registers: its parts have Python's operators and ``fma``, in one lane or in many."""

    re: Number
    im: Number

    def plus(self, other: Complex) -> Complex:
        """The sum."""
        return Complex(self.re + other.re, self.im + other.im)

    def minus(self, other: Complex) -> Complex:
        """The difference."""
        return Complex(self.re - other.re, self.im - other.im)

    def times(self, other: Complex) -> Complex:
        """The product."""
        re = self.re.fma(other.re, -(self.im * other.im))
        return Complex(re, self.re.fma(other.im, self.im * other.re))

    def scaled(self, factor: float) -> Complex:
        """The product with a real number."""
        return self if factor == 1.0 else Complex(self.re * factor, self.im * factor)

    @property
    def exchanged(self) -> Complex:
        """Real and imaginary part in each other's place."""
        return Complex(self.im, self.re)

    def turned(self, number: int, count: int) -> Complex:
        """The product with ``exp(-2 pi i number / count)``; quarters of a turn cost nothing."""
        eighths = 8 * number
        if eighths % count == 0:
            return self._by_eighths(eighths // count % 8)
        angle = 2 * math.pi * number / count
        c, s = math.cos(angle), math.sin(angle)
        return Complex(self.re.fma(c, self.im * s), self.im.fma(c, self.re * -s))

    def _by_eighths(self, eighths: int) -> Complex:
        z = self
        if eighths % 2:
            half = math.sqrt(0.5)
            z = Complex((z.re + z.im) * half, (z.im - z.re) * half)
        quarter = eighths // 2
        if quarter == 1:
            return Complex(z.im, -z.re)
        if quarter == 2:
            return Complex(-z.re, -z.im)
        return Complex(-z.im, z.re) if quarter == 3 else z


_FACTORS = {4: (2, 2), 6: (2, 3), 8: (2, 4), 9: (3, 3), 16: (4, 4)}


def butterfly(values: Sequence[Complex]) -> list[Complex]:
    """The transform of a few values, of a prime number of them or one in the table of factors."""
    count = len(values)
    if count == 1:
        return list(values)
    if count == 2:
        a, b = values
        return [a.plus(b), a.minus(b)]
    if count in _FACTORS:
        return _of_factors(values, *_FACTORS[count])
    return _of_prime(values)


def _of_factors(values: Sequence[Complex], first: int, second: int) -> list[Complex]:
    count = first * second
    columns = [butterfly(values[n::second]) for n in range(second)]
    found: list[Complex] = [values[0]] * count
    for k in range(first):
        row = butterfly([columns[n][k].turned(n * k, count) for n in range(second)])
        found[k::first] = row
    return found


def _of_prime(values: Sequence[Complex]) -> list[Complex]:
    """Sums and differences of what lies opposite each other: sums meet cosines alone, differences sines."""
    count = len(values)
    half = range(1, count // 2 + 1)
    first = values[0]
    sums = {j: values[j].plus(values[count - j]) for j in half}
    differences = {j: values[j].minus(values[count - j]) for j in half}
    found: list[Complex] = [first] * count
    total = first
    for j in half:
        total = total.plus(sums[j])
    found[0] = total
    for k in half:
        even, odd = first, None
        for j in half:
            angle = 2 * math.pi * (j * k % count) / count
            c, s = math.cos(angle), math.sin(angle)
            even = Complex(sums[j].re.fma(c, even.re), sums[j].im.fma(c, even.im))
            part = differences[j]
            odd = (
                part.scaled(s)
                if odd is None
                else Complex(part.re.fma(s, odd.re), part.im.fma(s, odd.im))
            )
        if odd is not None:
            found[k] = Complex(even.re + odd.im, even.im - odd.re)
            found[count - k] = Complex(even.re - odd.im, even.im + odd.re)
    return found
