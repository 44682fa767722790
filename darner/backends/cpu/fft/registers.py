"""Complex vectors of kernels of Fourier transforms: loads, stores, tables, and squares transposed in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ....codegen.ir.butterflies import Complex
from ....codegen.ir.emit import broadcast, lane_mask, lane_numbers, minimum
from ....codegen.ir.index import Index, i64, neighbours
from ....codegen.ir.interleave import interleaved
from ....codegen.ir.lanes import Lane
from ....codegen.ir.registers import Registers
from ....codegen.ir.types import Pointer, Value
from ....graph.data import Array
from ....graph.dtypes import DType
from ....graph.integers import ceil_div
from ..emit.template import Code
from ..emit.vectors import cast, constant_array, each

Share = Callable[[int, Callable[[Value], None]], None]
"""What goes through a number of pieces of work: all of them, or this thread's part."""


def power_below(count: int) -> int:
    """The largest power of two that is not above a number."""
    return 1 << (count.bit_length() - 1)


class Vectors:
    """Code on complex vectors of one element type."""

    def __init__(self, code: Code, dtype: DType) -> None:
        self.code = code
        self.b = code.builder
        self.indices = code.indices
        self.dtype = dtype
        self.registers = Registers(code.builder)

    # ------------------------------------------------------------- memory

    def load(  # many parameters: what is read, and how much of it there is
        self,
        pointer: Pointer,
        offset: Index,
        lanes: int,
        stored: DType | None = None,
        left: Index | None = None,
    ) -> Lane:
        """Neighbours; zeros from where none are ``left``."""
        stored = stored or self.dtype
        if left is not None and lanes == 1:
            there = self.b.icmp_signed(">", i64(left), i64(0))
            # What is not there is read from the last place that is.
            back = self.b.select(there, i64(0), self.b.sub(i64(left), i64(1)))
            last = self.load(pointer, self.indices.add(offset, back), 1, stored)
            return last.of(self.b.select(there, last.value, self.zero(1).value))
        mask = None if left is None else lane_mask(self.b, i64(left), lanes)
        value = self.registers.load(pointer, neighbours(offset, lanes), stored, mask)
        return Lane(self.b, cast(self.b, value, stored, self.dtype))

    def store(  # many parameters: what is written, and how much of it
        self,
        value: Lane,
        pointer: Pointer,
        offset: Index,
        stored: DType | None = None,
        left: Index | None = None,
    ) -> None:
        """Write neighbours, as many as are ``left``."""
        stored = stored or self.dtype
        written = cast(self.b, value.value, self.dtype, stored)
        if left is None:
            self.registers.store(written, pointer, offset, stored)
        elif value.count is None:
            with self.b.if_then(self.b.icmp_signed(">", i64(left), i64(0))):
                self.registers.store(written, pointer, offset, stored)
        else:
            mask = lane_mask(self.b, i64(left), value.count)
            at = neighbours(offset, value.count)
            self.registers.store(written, pointer, at, stored, mask)

    def zero(self, lanes: int) -> Lane:
        """Zeros."""
        return Lane(self.b, broadcast(self.b, self.registers.constant(0, self.dtype), lanes))

    def load_both(self, pointer: Pointer, first: Index, second: Index, lanes: int) -> Complex:
        """Real parts from one place, imaginary ones from another."""
        return Complex(self.load(pointer, first, lanes), self.load(pointer, second, lanes))

    def store_both(self, z: Complex, pointer: Pointer, first: Index, second: Index) -> None:
        """The same the other way."""
        self.store(z.re, pointer, first)
        self.store(z.im, pointer, second)

    def load_pairs(self, pointer: Pointer, offset: Index, lanes: int, stored: DType) -> Complex:
        """Complex numbers whose parts alternate, from an element on."""
        if lanes == 1:
            second = self.indices.add(offset, 1)
            return Complex(
                self.load(pointer, offset, 1, stored), self.load(pointer, second, 1, stored)
            )
        low = self.load(pointer, offset, lanes, stored)
        return self.parted(low, self.load(pointer, self.indices.add(offset, lanes), lanes, stored))

    def parted(self, low: Lane, high: Lane) -> Complex:
        """Complex numbers of vectors in which their parts alternate."""
        numbers = (range(side, 2 * low.type.count, 2) for side in range(2))
        parts = (self.b.shuffle_vector(low.value, high.value, lane_numbers(n)) for n in numbers)
        return Complex(*(Lane(self.b, part) for part in parts))

    def store_pairs(self, z: Complex, pointer: Pointer, offset: Index, stored: DType) -> None:
        """Complex numbers with alternating parts, from an element on."""
        for number, line in enumerate(self.joined(z)):
            place = self.indices.add(offset, number * (z.re.count or 1))
            self.store(line, pointer, place, stored)

    def joined(self, z: Complex) -> list[Lane]:
        """The two vectors in which the parts of complex numbers alternate."""
        if z.re.count is None:
            return [z.re, z.im]
        lines = interleaved(self.b, [z.re.value, z.im.value])
        return [Lane(self.b, line) for line in lines]

    def load_slot(self, pointer: Pointer, number: Index, lanes: int) -> Complex:
        """The vectors of a number of a lane transform: its real parts, then its imaginary ones."""
        offset = self.indices.mul(number, 2 * lanes)
        return self.load_both(pointer, offset, self.indices.add(offset, lanes), lanes)

    def store_slot(self, z: Complex, pointer: Pointer, number: Index, lanes: int) -> None:
        """Write them."""
        offset = self.indices.mul(number, 2 * lanes)
        self.store_both(z, pointer, offset, self.indices.add(offset, lanes))

    def moved(self, pointer: Pointer, elements: int) -> Pointer:
        """A pointer moved by elements."""
        return self.registers.builder.gep(
            pointer, [i64(elements)], source_etype=self.registers.constant(0, self.dtype).type
        )

    # ------------------------------------------------------------- tables

    def table(self, name: str, numbers: Array) -> Pointer:
        """Complex numbers as a constant, parts alternating."""
        both = np.stack([numbers.real, numbers.imag], -1).astype(self.dtype.numpy)
        return constant_array(self.code.module, name, both)

    def planes(self, name: str, numbers: Array) -> Pointer:
        """Complex numbers as a constant: all real parts, then all imaginary ones."""
        both = np.stack([numbers.real.ravel(), numbers.imag.ravel()]).astype(self.dtype.numpy)
        return constant_array(self.code.module, name, both)

    def entry(self, table: Pointer, number: Index, lanes: int) -> Complex:
        """A number of a table in every lane."""
        offset = self.indices.mul(number, 2)
        parts = (self.load(table, self.indices.add(offset, side), 1).value for side in range(2))
        return Complex(*(Lane(self.b, broadcast(self.b, part, lanes)) for part in parts))

    # ------------------------------------------------------------- lanes

    def reversed(self, value: Lane) -> Lane:
        """The lanes in the other order."""
        return value if value.count is None else value.of(self.registers.reversed(value.value))

    def transposed(self, rows: Sequence[Lane]) -> list[Lane]:
        """A square of as many vectors as they have lanes, by exchanging halves, quarters, and so on."""
        values = [row.value for row in rows]
        count = len(values)
        step = count // 2
        while step:
            low = [i if not i & step else count + i - step for i in range(count)]
            high = [i + step if not i & step else count + i for i in range(count)]
            for i in range(count):
                if not i & step:
                    a, c = values[i], values[i + step]
                    values[i] = self.b.shuffle_vector(a, c, lane_numbers(low))
                    values[i + step] = self.b.shuffle_vector(a, c, lane_numbers(high))
            step //= 2
        return [Lane(self.b, value) for value in values]

    # ------------------------------------------------------------- going along

    def all(self, count: int, body: Callable[[Value], None]) -> None:
        """``body(i)`` for every number below ``count``."""
        if count == 1:
            body(i64(0))
        elif count:
            each(self.b, 0, count, body)

    def blocks(self, count: int, lanes: int, share: Share, body: Callable[[Index], None]) -> None:
        """``body(first)`` for blocks of lanes; the last overlaps the one before it where they do not fit."""
        number = ceil_div(count, lanes)

        def block(i: Value) -> None:
            first = self.b.mul(i, i64(lanes))
            body(first if count % lanes == 0 else minimum(self.b, first, i64(count - lanes)))

        if number:
            share(number, block)
