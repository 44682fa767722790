"""Transforms as steps: what a thread does for one number or butterfly of a row, when all that the steps before write is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ....graph.dtypes import DType
from ....graph.integers import ceil_div
from ...ir.butterflies import Complex, butterfly
from ...problems.fft import Transform, convolved_length, is_smooth, radices
from ..builder import Simt, Value
from .waves import Wave, constant, root


class Row(Protocol):
    """A row of the problem in the code of a thread."""

    b: Simt
    dtype: DType

    def operand_at(self, number: Value | int) -> Complex:
        """A number of the operand."""

    def give(self, number: Value | int, z: Complex) -> None:
        """Write a number of the result."""

    def get(self, room: int, number: Value | int) -> Complex:
        """A number between steps."""

    def put(self, room: int, number: Value | int, z: Complex) -> None:
        """Write one."""

    def as_float(self, value: Value) -> Value:
        """A float of an integer with a sign."""


Body = Callable[[Row, Value], None]


@dataclass(frozen=True)
class Step:
    """``body(row, i)`` for every i below ``count``."""

    count: int
    body: Body


@dataclass(frozen=True)
class Steps:
    """All of them, and the rooms for numbers between them, each of so many."""

    steps: tuple[Step, ...]
    rooms: int
    length: int


Get = Callable[[Row, Value], Complex]
Put = Callable[[Row, Value, Complex], None]


def _power(row: Row, number: Value, count: int) -> Complex:
    return root(row.b, number, count, row.dtype, row.as_float)


def _passes(count: int, get: Get, put: Put, rooms: tuple[int, int]) -> list[Step]:
    """The passes of a smooth length (see ``backends.cpu.fft.lanes``), from ``get`` through two rooms to ``put``."""
    found, left, side = [], count, 1
    factors = radices(count)
    for number, radix in enumerate(factors):
        source, target = rooms[number % 2 - 1], rooms[number % 2]
        is_first, is_last = number == 0, number == len(factors) - 1

        def read(row: Row, i: Value, source: int = source, first: bool = is_first) -> Complex:
            return get(row, i) if first else row.get(source, i)

        def write(
            row: Row, i: Value, z: Complex, target: int = target, last: bool = is_last
        ) -> None:
            if last:
                put(row, i, z)
            else:
                row.put(target, i, z)

        found.append(_pass(count, radix, left, side, read, write))
        left, side = left // radix, side * radix
    return found or [Step(1, lambda row, i: put(row, i, get(row, i)))]


def _pass(  # many parameters: what a pass consists of
    count: int, radix: int, left: int, side: int, read: Get, write: Put
) -> Step:
    def body(row: Row, i: Value) -> None:
        b = row.b
        p, q = b.let(i // side, "p"), b.let(i % side, "q")
        found = butterfly([read(row, b.let(i + count // radix * j)) for j in range(radix)])
        first = b.let(q + p * (side * radix), "first")
        for k, z in enumerate(found):
            if k and left > radix:
                z = z.times(_power(row, b.let(p * k, "power"), left))
            write(row, b.let(first + k * side), z)

    return Step(count // radix, body)


def steps_of(problem: Transform) -> Steps:
    """The steps of a problem whose operands are real tensors."""
    packed = problem.is_real and problem.count % 2 == 0
    count = problem.count // 2 if packed else problem.count
    before: list[Step] = []
    after: list[Step] = []

    def get(row: Row, i: Value) -> Complex:
        return row.operand_at(i)

    def put(row: Row, i: Value, z: Complex) -> None:
        row.give(i, z)

    if problem.kind == "whole":
        before = [Step(count, lambda row, i: row.put(0, i, _joined(row, i, count, packed)))]

        def get(row: Row, i: Value) -> Complex:
            return row.get(0, i)

    if problem.kind == "half":
        after = [Step(problem.bins, lambda row, i: _part(row, i, problem, packed))]

        def put(row: Row, i: Value, z: Complex) -> None:
            row.put(0, i, z)

    if is_smooth(count):
        # The last pass must not write the room that it reads.
        rooms = (1, 2) if problem.kind == "half" and len(radices(count)) % 2 else (1, 0)
        length = max(count, problem.bins if problem.is_real else 0)
        middle = _passes(count, get, put, rooms)
        return Steps((*before, *middle, *after), 3 if 2 in rooms else 2, length)
    return _convolved(count, get, put, (before, after))


def _convolved(count: int, get: Get, put: Put, ends: tuple[list[Step], list[Step]]) -> Steps:
    """A transform of a length with a large prime factor, as a convolution with a chirp."""
    length = convolved_length(count)
    line, spectrum, rooms = 3, 4, (1, 2)

    def wave(row: Row, i: Value) -> Complex:
        return _power(row, _square(row.b, i, 2 * count), 2 * count)

    def fill(row: Row, i: Value) -> None:
        b = row.b
        zero = constant(b, 0.0, row.dtype)
        near = b.let(b.choose(i < count, i, 0), "near")
        z = get(row, near).times(wave(row, near))
        inside = i < count
        row.put(line, i, Complex(z.re.where(inside, zero), z.im.where(inside, zero)))
        away = b.let(b.choose(i < count, i, length - i), "away")
        known = b.let(away < count, "known")
        safe = b.let(b.choose(known, away, 0), "safe")
        chirp = wave(row, safe)
        row.put(spectrum, i, Complex(chirp.re.where(known, zero), (-chirp.im).where(known, zero)))

    def multiply(row: Row, i: Value, z: Complex) -> None:
        product = z.times(row.get(spectrum, i)).scaled(1.0 / length)
        row.put(line, i, product.exchanged)

    def finish(row: Row, i: Value) -> None:
        put(row, i, row.get(line, i).exchanged.times(wave(row, i)))

    def of(room: int) -> tuple[Get, Put]:
        return (lambda row, i: row.get(room, i)), (lambda row, i, z: row.put(room, i, z))

    steps = [
        *ends[0],
        Step(length, fill),
        *_passes(length, *of(spectrum), rooms),
        *_passes(length, of(line)[0], multiply, rooms),
        *_passes(length, *of(line), rooms),
        Step(count, finish),
        *ends[1],
    ]
    return Steps(tuple(steps), 5, length)


def _square(b: Simt, i: Value, modulus: int) -> Value:
    """The rest of a square; the product of two numbers below 2**21 has no place in 32 bits."""
    if modulus <= 1 << 16:
        return b.let(i * i % modulus, "square")
    high = b.let((i >> 10) * i % modulus, "high")
    return b.let((high * 1024 % modulus + i * (i & 1023) % modulus) % modulus, "square")


LONGEST = 1 << 20
"""The longest transform that is a convolution: indices are squared in 32 bits."""


def can_step(problem: Transform) -> bool:
    """Whether there are steps for a length."""
    packed = problem.is_real and problem.count % 2 == 0
    count = problem.count // 2 if packed else problem.count
    return is_smooth(count) or count <= LONGEST


# --------------------------------------------------------------------------- real signals


def _mirror(row: Row, i: Value, count: int) -> Value:
    """Where the mirror of a number is: that of the first is the first."""
    b = row.b
    return b.let(b.choose(i == 0, 0, count - i), "mirror")


def _part(row: Row, i: Value, problem: Transform, packed: bool) -> None:
    """A number of half a spectrum; see ``backends.cpu.fft.ends``."""
    b = row.b
    if not packed:
        row.give(i, row.get(0, i).scaled(problem.scale))
        return
    count = problem.count // 2
    own = b.let(b.choose(i == count, 0, i), "own")
    z, mirror = row.get(0, own), row.get(0, _mirror(row, own, count))
    even = Complex(z.re + mirror.re, z.im - mirror.im)
    odd = Complex(z.im + mirror.im, mirror.re - z.re)
    found = even.plus(odd.times(_power(row, i, problem.count)))
    row.give(i, found.scaled(problem.scale / 2))


def _joined(row: Row, i: Value, count: int, packed: bool) -> Complex:
    """What a transform gives real numbers of, exchanged for the inverse direction."""
    b = row.b
    zero = constant(b, 0.0, row.dtype)

    def bin_of(number: Value, alone: Value) -> Complex:
        z = row.operand_at(number)
        return Complex(z.re, zero.where(alone, z.im))

    if packed:
        first = bin_of(i, i == 0)
        other = b.let(count - i, "other")
        mirror = bin_of(other, i == 0)
        even = Complex(first.re + mirror.re, first.im - mirror.im)
        odd = Complex(first.re - mirror.re, first.im + mirror.im)
        power = _power(row, i, 2 * count)
        turned = odd.times(Complex(power.re, -power.im))
        return Complex(even.im + turned.re, even.re - turned.im)
    near = b.let(i < ceil_div(count + 1, 2), "near")
    z = bin_of(b.let(b.choose(near, i, count - i), "bin"), i == 0)
    return Complex(z.im.where(near, -z.im), z.re)


__all__ = ["Step", "Steps", "Wave", "can_step", "steps_of"]
