"""Index arithmetic of generated code, for one lane or many.

A number that is known while code is generated stays a Python ``int``, so that a stride of 1 and an axis of size 1 emit nothing. ``Lanes`` are numbers
at equal distances, one for each lane of a vector: as long as an index is one of these, elements are read with plain loads. All others are 64-bit values of
the code, or vectors of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod
from typing import Any, TypeAlias, overload

from ...graph.errors import InternalError
from .types import ElementBuilder, Type, Value

Index: TypeAlias = "int | Value | Lanes"
"""An ``int``, a 64-bit value, ``Lanes``, or a vector of 64-bit values."""

Number: TypeAlias = Any
"""The same for GPU templates, whose values are texts."""


@dataclass(frozen=True, eq=False)
class Lanes:
    """The numbers ``start``, ``start + stride``, ...: one for each of ``count`` lanes.

    Attributes:
        start: the first of them.
        count: how many there are.
        stride: the distance of two.
        multiple: a number that ``start`` is known to be a multiple of.
        low: what none of them is known to be below, those of lanes that do not exist aside.
        high: what all of them are known to be below.

    >>> Lanes(32, 16).multiple
    32
    """

    start: Index
    count: int
    stride: int = 1
    multiple: int = 1
    low: int | None = None
    high: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.start, int):
            object.__setattr__(self, "multiple", self.start)

    def is_inside(self, size: int) -> bool:
        """Whether all are known to be from 0 to before ``size``."""
        return self.low is not None and self.high is not None and 0 <= self.low <= self.high <= size

    def is_outside(self, size: int) -> bool:
        """Whether none of them is known to be from 0 to before ``size``."""
        before = self.high is not None and self.high <= 0
        return before or (self.low is not None and self.low >= size)

    def within(self, size: int) -> bool:
        """Whether no lane is in another block of ``size`` than the first."""
        return self.stride == 1 and size % self.count == 0 and self.multiple % self.count == 0


# Constants belong to no module, and have their text made once: the same ones are met in every kernel.


@lru_cache(maxsize=4096)
def _constant(number: int) -> Value:
    from llvmlite import ir

    return ir.Constant(ir.IntType(64), number)


def i64(number: Index) -> Value:
    """A number that is the same in all lanes as a 64-bit value: a constant where it is known."""
    if isinstance(number, int):
        return _constant(number)
    if isinstance(number, Lanes):
        raise InternalError("lanes have no one value")
    return number


@lru_cache(maxsize=4096)
def _steps(stride: int, count: int) -> Value:
    """Numbers of 64 bits in as many lanes: 0, ``stride``, twice that, ..."""
    from llvmlite import ir

    kind = ir.VectorType(ir.IntType(64), count)
    return ir.Constant(kind, [lane * stride for lane in range(count)])


def same_in_lanes(kind: Type, number: float, count: int) -> Value:
    """A constant of an element type in every lane."""
    from llvmlite import ir

    # 0.0 equals -0.0, and NaN nothing: texts tell them apart.
    key = str(kind), repr(number), count
    found = _same.get(key)
    if found is None:
        if len(_same) >= _MOST:
            _same.clear()
        found = _same[key] = ir.Constant(ir.VectorType(kind, count), [number] * count)
    return found


_MOST = 4096
_same: dict[tuple[str, str, int], Value] = {}


def neighbours(first: Index, count: int) -> Index:
    """The numbers from ``first`` on in as many lanes; ``first`` itself for one."""
    return Lanes(first, count) if count > 1 else first


def lane_count(number: Index) -> int | None:
    """Lanes of a number or value; None where it is the same in all."""
    if isinstance(number, int):
        return None
    if isinstance(number, Lanes):
        return number.count
    found = getattr(number.type, "count", None)
    return None if found is None else int(found)


def identity(number: Index) -> object:
    """What two numbers that are the same have in common."""
    if isinstance(number, int):
        return number
    if isinstance(number, Lanes):
        return ("lanes", identity(number.start), number.count, number.stride)
    return ("value", id(number))


class IndexMath:
    """Arithmetic on numbers, emitted where it is not known already."""

    def __init__(self, builder: ElementBuilder) -> None:
        self.builder = builder

    # ------------------------------------------------------------- lanes

    def spread(self, value: Value, count: int) -> Value:
        """A value of any type in every lane."""
        from llvmlite import ir

        if lane_count(value) is not None:
            return value
        kind = ir.VectorType(value.type, count)
        if isinstance(value, ir.Constant):
            return same_in_lanes(value.type, value.constant, count)
        first = self.builder.insert_element(
            ir.Constant(kind, ir.Undefined), value, ir.Constant(ir.IntType(32), 0)
        )
        zeros = same_in_lanes(ir.IntType(32), 0, count)
        return self.builder.shuffle_vector(first, first, zeros)

    def vector(self, number: Index, count: int) -> Value:
        """A number as a vector of 64-bit values."""
        if not isinstance(number, Lanes):
            return self.spread(i64(number), count)
        steps = _steps(number.stride, number.count)
        if isinstance(number.start, int) and number.start == 0:
            return steps
        return self.builder.add(self.spread(i64(number.start), number.count), steps)

    def plain(self, number: Index) -> Value:
        """A number as one value, or as a vector of them where it differs from lane to lane."""
        return self.vector(number, number.count) if isinstance(number, Lanes) else i64(number)

    def _both(self, a: Index, b: Index) -> tuple[Value, Value]:
        """Two numbers as values of one type."""
        count = lane_count(a) or lane_count(b)
        if count is None:
            return i64(a), i64(b)
        return self.vector(a, count), self.vector(b, count)

    # ------------------------------------------------------------- arithmetic

    def add(self, a: Index, b: Index) -> Index:
        """A + b."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if isinstance(a, int) and a == 0:
            return b
        if isinstance(b, int) and b == 0:
            return a
        if isinstance(b, Lanes) and not isinstance(a, Lanes):
            a, b = b, a
        if isinstance(a, Lanes) and lane_count(b) is None:
            if not isinstance(b, int):
                return Lanes(self.add(a.start, b), a.count, a.stride)
            low = None if a.low is None else a.low + b
            high = None if a.high is None else a.high + b
            start, multiple = self.add(a.start, b), gcd(a.multiple, b)
            return Lanes(start, a.count, a.stride, multiple, low, high)
        if isinstance(a, Lanes) and isinstance(b, Lanes):
            multiple = gcd(a.multiple, b.multiple)
            return Lanes(self.add(a.start, b.start), a.count, a.stride + b.stride, multiple)
        return self.builder.add(*self._both(a, b), flags=("nsw",))

    def sub(self, a: Index, b: Index) -> Index:
        """A - b."""
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        if isinstance(b, int) and b == 0:
            return a
        if isinstance(a, Lanes) and isinstance(b, int):
            return self.add(a, -b)
        if isinstance(a, Lanes) and lane_count(b) is None:
            return Lanes(self.sub(a.start, b), a.count, a.stride)
        if isinstance(b, Lanes) and lane_count(a) is None:
            multiple = gcd(b.multiple, a) if isinstance(a, int) else 1
            return Lanes(self.sub(a, b.start), b.count, -b.stride, multiple)
        return self.builder.sub(*self._both(a, b), flags=("nsw",))

    def mul(self, a: Index, b: Index) -> Index:
        """A * b."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        for one, other in ((a, b), (b, a)):
            if isinstance(one, int):
                if one in (0, 1):
                    return other if one else 0
                if isinstance(other, Lanes):
                    start = self.mul(other.start, one)
                    return Lanes(start, other.count, other.stride * one, other.multiple * one)
        return self.builder.mul(*self._both(a, b), flags=("nsw",))

    def div(self, a: Index, b: int) -> Index:
        """A number that is not negative over a positive one, rounded down."""
        if isinstance(a, int):
            return a // b
        if b == 1:
            return a
        if isinstance(a, Lanes) and a.within(b):
            return self.div(a.start, b)
        return self.builder.udiv(*self._both(a, b))

    def mod(self, a: Index, b: int) -> Index:
        """The rest of that."""
        if isinstance(a, int):
            return a % b
        if b == 1:
            return 0
        if isinstance(a, Lanes) and a.within(b):
            return Lanes(self.mod(a.start, b), a.count, 1, gcd(a.multiple, b))
        return self.builder.urem(*self._both(a, b))

    def clamp(self, a: Index, low: int, high: int) -> Index:
        """The nearest number from ``low`` to ``high``."""
        if isinstance(a, int):
            return min(max(a, low), high)
        a, least = self._both(a, low)
        _, most = self._both(a, high)
        a = self.builder.select(self.builder.icmp_signed("<", a, least), least, a)
        return self.builder.select(self.builder.icmp_signed(">", a, most), most, a)

    def compare(self, sign: str, a: Index, b: Index) -> Value:
        """Whether ``a sign b``, as one bit for each lane."""
        return self.builder.icmp_signed(sign, *self._both(a, b))

    def less(self, a: Index, b: Index) -> Value:
        """Whether a < b, as one bit for each lane."""
        return self.compare("<", a, b)

    # ------------------------------------------------------------- places in tensors

    @overload
    def offset(self, index: Sequence[int], shape: Sequence[int]) -> int: ...

    @overload
    def offset(self, index: Sequence[Index], shape: Sequence[int]) -> Index: ...

    def offset(self, index: Sequence[Index], shape: Sequence[int]) -> Index:
        """The place of an element in row-major order."""
        total: Index = 0
        for number, size in zip(index, shape, strict=True):
            total = self.add(self.mul(total, size), number)
        return total

    def split(self, offset: Index, shape: Sequence[int]) -> list[Index]:
        """The indices of the element at a place: the inverse of ``offset``."""
        index: list[Index] = []
        rest = offset
        for axis in range(len(shape) - 1, 0, -1):
            index.append(self.mod(rest, max(shape[axis], 1)))
            rest = self.div(rest, max(shape[axis], 1))
        if shape:
            index.append(rest if shape[0] != 1 else 0)
        return index[::-1]

    def reshaped(
        self, index: Sequence[Index], shape: Sequence[int], other: Sequence[int]
    ) -> list[Index]:
        """Where an element of one shape lies in another with as many elements.

        Axes are taken in the smallest groups that have equal sizes, so that those that stay cost nothing.
        """
        if not prod(shape):
            return [0] * len(other)
        result: list[Index] = []
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
