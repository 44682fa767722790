"""Integers of generated code: indices and what is computed with them.

A number that is known while generating stays a Python ``int``, so that a stride of 1 and an axis of size 1 leave no
instruction behind; all others are 64-bit values of the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, TypeAlias

Number: TypeAlias = Any
"""An ``int``, or a 64-bit value."""


def as_value(number: Number) -> Any:
    """A number as a 64-bit value."""
    from llvmlite import ir  # type: ignore[import-untyped]

    return ir.Constant(ir.IntType(64), number) if isinstance(number, int) else number


class Places:
    """Arithmetic on numbers, emitted where it is not known already."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def add(self, a: Number, b: Number) -> Number:
        """A + b."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if isinstance(a, int) and a == 0:
            return b
        if isinstance(b, int) and b == 0:
            return a
        return self.builder.add(as_value(a), as_value(b), flags=("nsw",))

    def sub(self, a: Number, b: Number) -> Number:
        """A - b."""
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        if isinstance(b, int) and b == 0:
            return a
        return self.builder.sub(as_value(a), as_value(b), flags=("nsw",))

    def mul(self, a: Number, b: Number) -> Number:
        """A * b."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        for one, other in ((a, b), (b, a)):
            if isinstance(one, int) and one in (0, 1):
                return other if one else 0
        return self.builder.mul(as_value(a), as_value(b), flags=("nsw",))

    def div(self, a: Number, b: int) -> Number:
        """A number that is not negative over a positive one, rounded down."""
        if isinstance(a, int):
            return a // b
        return a if b == 1 else self.builder.udiv(a, as_value(b))

    def mod(self, a: Number, b: int) -> Number:
        """The rest of that."""
        if isinstance(a, int):
            return a % b
        return 0 if b == 1 else self.builder.urem(a, as_value(b))

    def clamp(self, a: Number, low: int, high: int) -> Number:
        """The nearest number from ``low`` to ``high``."""
        if isinstance(a, int):
            return min(max(a, low), high)
        least, most = as_value(low), as_value(high)
        a = self.builder.select(self.builder.icmp_signed("<", a, least), least, a)
        return self.builder.select(self.builder.icmp_signed(">", a, most), most, a)

    def less(self, a: Number, b: Number) -> Any:
        """Whether a < b, as one bit."""
        return self.builder.icmp_signed("<", as_value(a), as_value(b))

    # ------------------------------------------------------------- places in tensors

    def offset(self, index: Sequence[Number], shape: Sequence[int]) -> Number:
        """The place of an element in row-major order."""
        total: Number = 0
        for number, size in zip(index, shape, strict=True):
            total = self.add(self.mul(total, size), number)
        return total

    def split(self, offset: Number, shape: Sequence[int]) -> list[Number]:
        """The indices of the element at a place: the inverse of ``offset``."""
        index: list[Number] = []
        rest = offset
        for axis in range(len(shape) - 1, 0, -1):
            index.append(self.mod(rest, max(shape[axis], 1)))
            rest = self.div(rest, max(shape[axis], 1))
        if shape:
            index.append(rest if shape[0] != 1 else 0)
        return index[::-1]

    def reshaped(
        self, index: Sequence[Number], shape: Sequence[int], other: Sequence[int]
    ) -> list[Number]:
        """Where an element of one shape lies in another with as many elements.

        Axes are taken in the smallest groups that have equal sizes, so that those that stay cost nothing.
        """
        if not prod(shape):
            return [0] * len(other)
        result: list[Number] = []
        i = j = 0
        while i < len(shape) or j < len(other):
            first, second = i, j
            i, j = min(i + 1, len(shape)), min(j + 1, len(other))
            while prod(shape[first:i]) != prod(other[second:j]):
                if prod(shape[first:i]) < prod(other[second:j]) and i < len(shape):
                    i += 1
                elif j < len(other):
                    j += 1
                else:
                    i += 1
            here, there = shape[first:i], other[second:j]
            if len(here) == len(there) == 1:
                result.append(index[first])
            else:
                result += self.split(self.offset(index[first:i], here), there)
        return result
