"""As many transforms as a vector has lanes: passes of butterflies that leave the numbers in order (Stockham), or a convolution (Bluestein).

A pass of radix r over what is left of length n, with s finished transforms side by side, takes ``x[q + s (p + m j)]`` for j below r, m = n / r, and writes its results, times
powers of a root of unity, to ``y[q + s (r p + k)]``. Every lane does the same, so vectors are never taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ....codegen.ir.butterflies import Complex, butterfly
from ....codegen.ir.emit import loop
from ....codegen.ir.index import Index, i64
from ....codegen.ir.lanes import Lane
from ....codegen.ir.types import Pointer, Value
from ....codegen.problems.fft import (
    LARGEST_RADIX,
    chirp,
    chirp_spectrum,
    convolved_length,
    is_smooth,
    radices,
    roots,
)
from .registers import Vectors

MOST_TERMS = 97
"""The largest sum of primes above the largest butterfly that are summed up term by term; beyond it a convolution is quicker, or as quick."""


def is_direct(count: int) -> bool:
    """Whether a length is made of passes alone."""
    return is_smooth(count, MOST_TERMS)


Load = Callable[[Index], Complex]
Store = Callable[[Index, Complex], None]


class LaneTransform:
    """Transforms of a length in each lane.

    Attributes:
        count: the length.
        elements: of scratch memory.
    """

    def __init__(self, vectors: Vectors, count: int, lanes: int) -> None:
        self.vectors = vectors
        self.count = count
        self.lanes = lanes
        self.smooth = is_direct(count)
        self.length = count if self.smooth else convolved_length(count)
        self.radices = radices(self.length)
        self._tables: list[Pointer | None] | None = None
        self._chirps: tuple[Pointer, Pointer] | None = None

    @staticmethod
    def elements(count: int, lanes: int) -> int:
        """Elements of scratch memory that it needs."""
        if is_direct(count):
            terms = max(radices(count), default=1)
            terms = terms if terms > LARGEST_RADIX else 0
            return 2 * lanes * (count * min(2, max(0, len(radices(count)) - 1)) + terms)
        return 2 * lanes * convolved_length(count) * 3

    def emit(self, load: Load, store: Store, room: Pointer) -> None:
        """Transform what ``load`` gives, from scratch memory to ``store``."""
        if self.smooth:
            self._passes(load, store, room)
        else:
            self._convolved(load, store, room)

    # ------------------------------------------------------------- passes

    def _roots(self) -> list[Pointer | None]:
        """For each pass ``exp(-2 pi i p k / n)``, by p and k > 0; none where p is 0 alone."""
        if self._tables is None:
            self._tables, left = [], self.length
            for radix in self.radices:
                behind = left // radix
                powers = np.outer(np.arange(behind), np.arange(1, radix))
                name = f"roots{left}by{radix}"
                self._tables.append(
                    self.vectors.table(name, roots(powers, left)) if behind > 1 else None
                )
                left = behind
        return self._tables

    def _passes(self, load: Load, store: Store, room: Pointer) -> None:
        vectors, lanes, count = self.vectors, self.lanes, self.length
        rooms = [room, vectors.moved(room, 2 * lanes * count)]
        if not self.radices:
            store(0, load(0))
            return
        left, side = count, 1
        terms = vectors.moved(room, 2 * lanes * count * min(2, len(self.radices) - 1))
        for number, (radix, table) in enumerate(zip(self.radices, self._roots(), strict=True)):
            source, target = rooms[number % 2 - 1], rooms[number % 2]
            is_first, is_last = number == 0, number == len(self.radices) - 1

            def read(place: Index, source: Pointer = source, direct: bool = is_first) -> Complex:
                return load(place) if direct else vectors.load_slot(source, place, lanes)

            def write(
                place: Index, z: Complex, target: Pointer = target, direct: bool = is_last
            ) -> None:
                if direct:
                    store(place, z)
                else:
                    vectors.store_slot(z, target, place, lanes)

            step = _Pass(radix, left // radix, side, table)
            if radix > LARGEST_RADIX:
                self._long_pass(step, read, write, terms)
            else:
                self._pass(step, read, write)
            left, side = left // radix, side * radix

    def _pass(self, step: _Pass, read: Load, write: Store) -> None:
        vectors, indices, radix = self.vectors, self.vectors.indices, step.radix

        def part(p: Value) -> None:
            if step.table is None:
                factors = []
            else:
                first = indices.mul(p, radix - 1)
                factors = [
                    vectors.entry(step.table, indices.add(first, k), self.lanes)
                    for k in range(radix - 1)
                ]
            before = indices.mul(p, step.side)
            after = indices.mul(before, radix)

            def column(q: Value) -> None:
                place = indices.add(before, q)
                gaps = (step.behind * step.side * j for j in range(radix))
                found = butterfly([read(indices.add(place, gap)) for gap in gaps])
                place = indices.add(after, q)
                for k, z in enumerate(found):
                    turned = z.times(factors[k - 1]) if k and factors else z
                    write(indices.add(place, step.side * k), turned)

            vectors.all(step.side, column)

        vectors.all(step.behind, part)

    def _long_pass(self, step: _Pass, read: Load, write: Store, terms: Pointer) -> None:
        """A pass of a larger prime: sums and differences of what lies opposite each other, kept in ``terms``, times cosines and sines."""
        vectors, lanes, radix, half = self.vectors, self.lanes, step.radix, step.radix // 2
        b, indices = vectors.b, vectors.indices
        order = np.arange(1, half + 1)
        waves = vectors.table(f"waves{radix}", np.conj(roots(np.outer(order, order), radix)))
        gap = step.behind * step.side

        def lane(value: Value) -> Lane:
            return Lane(b, value)

        def column(p: Value, q: Value) -> None:
            place = indices.add(indices.mul(p, step.side), q)
            after = indices.add(indices.mul(p, step.side * radix), q)
            first = read(place)

            def fold(j: Value, held: Sequence[Value]) -> Sequence[Value]:
                near = read(indices.add(place, indices.mul(indices.add(j, 1), gap)))
                far = read(indices.add(place, indices.mul(indices.sub(radix - 1, j), gap)))
                total = near.plus(far)
                vectors.store_slot(total, terms, indices.mul(j, 2), lanes)
                odd = indices.add(indices.mul(j, 2), 1)
                vectors.store_slot(near.minus(far), terms, odd, lanes)
                found = Complex(*map(lane, held)).plus(total)
                return [found.re.value, found.im.value]

            held = loop(b, i64(0), i64(half), 1, fold, [first.re.value, first.im.value])
            write(after, Complex(*map(lane, held)))

            def pair(k: Value) -> None:
                row = indices.mul(k, half)

                def add(j: Value, held: Sequence[Value]) -> Sequence[Value]:
                    wave = vectors.entry(waves, indices.add(row, j), lanes)
                    total = vectors.load_slot(terms, indices.mul(j, 2), lanes)
                    odd = vectors.load_slot(terms, indices.add(indices.mul(j, 2), 1), lanes)
                    a, c, d, e = map(lane, held)
                    sums = total.re.fma(wave.re, a), total.im.fma(wave.re, c)
                    rest = odd.re.fma(wave.im, d), odd.im.fma(wave.im, e)
                    return [value.value for value in (*sums, *rest)]

                zero = vectors.zero(lanes).value
                start = [first.re.value, first.im.value, zero, zero]
                a, c, d, e = map(lane, loop(b, i64(0), i64(half), 1, add, start))
                found = Complex(a + e, c - d), Complex(a - e, c + d)
                for z, number in zip(found, (k, indices.sub(radix - 2, k)), strict=True):
                    if step.table is not None:
                        at = indices.add(indices.mul(p, radix - 1), number)
                        z = z.times(vectors.entry(step.table, at, lanes))
                    write(indices.add(after, indices.mul(indices.add(number, 1), step.side)), z)

            vectors.all(half, pair)

        vectors.all(step.behind, lambda p: vectors.all(step.side, lambda q: column(p, q)))

    # ------------------------------------------------------------- convolutions

    def _convolved(self, load: Load, store: Store, room: Pointer) -> None:
        vectors, lanes, length = self.vectors, self.lanes, self.length
        if self._chirps is None:
            self._chirps = (
                vectors.table(f"chirp{self.count}", chirp(self.count)),
                vectors.table(f"spectrum{self.count}", chirp_spectrum(self.count, length)),
            )
        wave, spectrum = self._chirps
        line, rest = room, vectors.moved(room, 2 * lanes * length)
        zero = Complex(vectors.zero(lanes), vectors.zero(lanes))

        def fill(k: Value) -> None:
            z = load(k).times(vectors.entry(wave, k, lanes))
            vectors.store_slot(z, line, k, lanes)

        def clear(k: Value) -> None:
            vectors.store_slot(zero, line, vectors.indices.add(k, self.count), lanes)

        def multiply(k: Index, z: Complex) -> None:
            product = z.times(vectors.entry(spectrum, k, lanes))
            vectors.store_slot(product.exchanged, line, k, lanes)

        def keep(k: Index, z: Complex) -> None:
            vectors.store_slot(z, line, k, lanes)

        def finish(k: Value) -> None:
            z = vectors.load_slot(line, k, lanes).exchanged
            store(k, z.times(vectors.entry(wave, k, lanes)))

        def read(k: Index) -> Complex:
            return vectors.load_slot(line, k, lanes)

        vectors.all(self.count, fill)
        vectors.all(length - self.count, clear)
        self._passes(read, multiply, rest)
        self._passes(read, keep, rest)
        vectors.all(self.count, finish)


class _Pass:
    """One pass: its radix, how many parts are left behind it, how many stand side by side before it, and its roots of unity."""

    def __init__(self, radix: int, behind: int, side: int, table: Pointer | None) -> None:
        self.radix, self.behind, self.side, self.table = radix, behind, side, table
