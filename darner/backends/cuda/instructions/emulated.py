"""The instructions of a warp as arithmetic of the SIMT builder: what a device in software runs in their place.

What lanes hand each other goes through shared memory and a barrier of the whole block, so all its threads have to come to every one of these. Shared memory is one array, and addresses are bytes from its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....codegen.simt.builder import Memory, Value, Variable
from ....graph import dtypes
from ..emulator.printer import EmulatedPrinter
from .mma import TERMS

WARP = 32


class EmulatedCores:
    """See ``warp.Cores``.

    Args:
        builder: where the code goes.
        nbytes: of shared memory.
    """

    def __init__(self, builder: EmulatedPrinter, nbytes: int) -> None:
        self.builder = builder
        self.memory: Memory = builder.dynamic_shared(nbytes)
        self._rooms: dict[int, Memory] = {}
        self.base: Value = builder.index(0)
        self._lane = builder.let(builder.local & (WARP - 1), "lane")
        self._first = builder.let(builder.local - self._lane, "first")

    def _exchange(self, words: Sequence[Value]) -> Memory:
        """Let the other lanes see some words of this one: word ``i`` of thread ``t`` is at ``i, t``."""
        b = self.builder
        memory = self._rooms.get(len(words))
        if memory is None:
            shape = len(words), b.threads
            memory = self._rooms[len(words)] = b.shared(dtypes.u32, shape, f"exchange{len(words)}")
        b.barrier()
        for i, word in enumerate(words):
            memory[i, b.local] = word
        b.barrier()
        return memory

    # ------------------------------------------------------------- products

    def multiply(
        self,
        dtype: str,
        sums: Sequence[Sequence[Sequence[Variable]]],
        left: Sequence[Value],
        right: Sequence[Value],
        *,
        rounded: bool = False,
    ) -> None:
        """See ``Cores``; what is rounded stays so."""
        b, lane = self.builder, self._lane
        memory = self._exchange([*left, *right])
        row, column = b.let(self._first + lane // 4 * 4), b.let(self._first + lane % 4 * 8)
        half = TERMS[dtype] // 2
        # Four lanes hold the terms of a row between them; so do those of a column.
        with b.for_(0, 2, name="half") as which, b.for_(0, 4, name="t") as t:
            rows, columns = b.let(row + t), b.let(column + t)
            for number in range(half // 4):
                b_numbers = [
                    self._number(memory[len(left) + 2 * j + which, columns + 4 * x], dtype, number)
                    for j in range(len(right) // 2)
                    for x in range(2)
                ]
                for i, across in enumerate(sums):
                    for h in range(2):
                        a = self._number(memory[4 * i + 2 * which + h, rows], dtype, number)
                        for j, totals in enumerate(across):
                            for x in range(2):
                                total = totals[2 * h + x]
                                total.set(b.fma(a, b_numbers[2 * j + x], total))

    def _number(self, word: Value, dtype: str, number: int) -> Value:
        """One of the numbers in a word."""
        b = self.builder
        if dtype == "tf32":
            # To the nearest, ties away from zero.
            return b.let(b.of_bits((word + 0x1000) & 0xFFFFE000, dtypes.f32))
        if dtype == "f16":
            return b.let(b.halves(word)[number])
        return b.let(b.of_bits(word & 0xFFFF0000 if number else word << 16, dtypes.f32))

    def ldmatrix(self, addresses: Sequence[Value], *, transposed: bool = False) -> list[Value]:
        """See ``Cores``."""
        b, lane = self.builder, self._lane
        memory = self._exchange(addresses)
        found: list[Value] = []
        for number in range(len(addresses)):
            for matrix in range(4):
                first = b.let(self._first + 8 * matrix)
                if not transposed:
                    row = b.let(memory[number, first + lane // 4] >> 4)
                    found.append(b.let(self.memory[row, lane & 3]))
                    continue
                halves = []
                for i in range(2):
                    row = b.let(memory[number, first + ((lane & 3) * 2 + i)] >> 4)
                    both = self.memory[row, lane // 8]
                    halves.append(b.let((both >> ((lane // 4 & 1) * 16)) & 0xFFFF))
                found.append(b.let(halves[0] | (halves[1] << 16)))
        return found

    # ------------------------------------------------------------- shared memory

    def store_pair(self, address: Value, first: Value, second: Value) -> None:
        """See ``Cores``."""
        b = self.builder
        for i, value in enumerate((first, second)):
            self.memory[address >> 4, ((address >> 2) & 3) + i] = b.bits(value)

    def store_four(self, address: Value, values: Sequence[Value]) -> None:
        """See ``Cores``."""
        self.memory[address >> 4] = self.builder.bits(self.builder.vector(values))

    def load_one(self, address: Value) -> Value:
        """See ``Cores``."""
        b = self.builder
        return b.let(b.of_bits(self.memory[address >> 4, (address >> 2) & 3], dtypes.f32))

    def load_four(self, address: Value) -> list[Value]:
        """See ``Cores``."""
        found: Value = self.builder.of_bits(self.memory[address >> 4], dtypes.f32)
        return list(found.parts)

    def sync_warp(self) -> None:
        """See ``Cores``."""
        self.builder.barrier()

    # ------------------------------------------------------------- copies

    def copy_async(self, to: Value, source: Memory, item: Value, nbytes: Value | int) -> None:
        """See ``Cores``."""
        b = self.builder
        found = b.bits(source[item]) if source.dtype is dtypes.f32 else source[item]
        parts = []
        for x in range(4):
            part = found[x]
            if not isinstance(nbytes, int):
                left = b.let(b.max(nbytes, 4 * x) - 4 * x)
                mask = b.choose(left >= 4, 0xFFFFFFFF, b.choose(left >= 2, b.index(0xFFFF), 0))
                part = part & mask
            parts.append(b.let(part))
        self.memory[to >> 4] = b.vector(parts)

    def copy_word_async(self, to: Value, source: Memory, item: Value, nbytes: Value | int) -> None:
        """See ``Cores``."""
        b = self.builder
        word = b.bits(source[item]) if source.dtype is dtypes.f32 else source[item]
        if not isinstance(nbytes, int):
            word = b.choose(nbytes > 0, word, 0)
        self.memory[to >> 4, (to >> 2) & 3] = b.let(word)

    def commit(self) -> None:
        """See ``Cores``: copies are done when they are written."""

    def wait(self, most: int = 0) -> None:
        """See ``Cores``."""
