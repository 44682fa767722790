"""A kernel of attention whose warps have some rows each, while it is written: what both forms of products have in common.

Of each 16 rows and 8 columns a thread has the columns ``2 (lane % 4)`` and the next one, of the row ``lane / 4`` and of the one 8 further on: ``mma.sync`` and ``wgmma`` leave sums so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ....codegen.ir.index import Number
from ....codegen.simt.attention.operands import Reader
from ....codegen.simt.builder import Memory, Value, Variable
from ....graph import dtypes
from ....lower.plan import Spec
from ..instructions.scalars import lane_of
from ..machine import Machine
from .problem import PIECE, Problem, Rows

Fragments: TypeAlias = list[list[list[Variable]]]
"""Sums of a warp: for each 16 rows and each 8 columns, four of this thread."""


class RowKernel(Reader):
    """A launch whose blocks have some rows each.

    Attributes:
        problem: what is computed.
        tiles: of 16 rows, that a warp has.
        block: rows of a block.
        lane: the thread's number in its warp.
        row: the thread's first row, of those of its block; it is set by who knows the warps.
        column: its first of every 8 columns.
    """

    row: Value

    def __init__(
        self, spec: Spec, machine: Machine, problem: Problem, threads: int, whole: bool
    ) -> None:
        super().__init__(spec, machine, problem.attention, threads, whole)
        self.problem = problem
        self.tiles, self.block = 1, 64
        for leaf in {rows.leaf.id: rows.leaf for rows in problem.rows.values()}.values():
            self.dispatch.as_vectors(self.dispatch.operand(leaf), PIECE // leaf.dtype.itemsize)
        b = self.builder
        self.ops = lane_of(b, machine)
        self.lane = b.let(b.local & 31, "lane")
        self.column = b.let((self.lane & 3) * 2, "own_column")

    def uniform(self, value: Value) -> Value:
        """See ``Reader``: branches need no more here. Shared memory of its own would move what a launch asks for to an address that tensor maps cannot write to."""
        return value

    def head_item(self, rows: Rows, batch: Number, head: Number) -> Value:
        """The number of the piece that a head begins with."""
        b = self.builder
        found = b.index(rows.offset // rows.piece)
        for number, stride in ((batch, rows.strides[0]), (head, rows.strides[1])):
            if stride:
                found = found + number * (stride // rows.piece)
        return b.let(found, "head_item")

    def zeros(self, columns: int, name: str) -> Fragments:
        """Sums of a warp's rows and so many columns."""
        b = self.builder
        return [
            [[b.variable(0.0, name, dtypes.f32) for _ in range(4)] for _ in range(columns // 8)]
            for _ in range(self.tiles)
        ]

    def packed(self, sums: Fragments) -> list[list[Value]]:
        """Sums as fragments of A, for all columns that are multiplied at once, which become terms: four words for each 16 rows.

        Of tf32 a thread's columns ``2t`` and ``2t + 1`` become the terms ``t`` and ``t + 4``; who reads B does so in the same order (``Kernel.across``).
        """
        kind, pack, together = self.problem.dtype, self.ops.pack, self.problem.terms // 8
        if together == 1:
            return [
                [self.ops.round_tf32(own[j][e]) for own in sums for e in (0, 2, 1, 3)]
                for j in range(len(sums[0]))
            ]
        return [
            [
                pack(pair[0], pair[1], kind)
                for own in sums
                for eight in own[j : j + 2]
                for pair in (eight[:2], eight[2:])
            ]
            for j in range(0, len(sums[0]), 2)
        ]

    def shuffled(self, values: Sequence[Value], mask: int) -> list[Value]:
        """What the lane has whose number differs in these bits."""
        return [self.builder.shuffle_xor(value, mask) for value in values]

    def quad_sums(self, values: Sequence[Value]) -> list[Value]:
        """The sums over the four threads that have parts of a row."""
        b = self.builder
        found = [b.let(value) for value in values]
        for mask in (1, 2):
            others = self.shuffled(found, mask)
            found = [b.let(x + y) for x, y in zip(found, others, strict=True)]
        return found


def numbers_of(kernel: RowKernel, memory: Memory, item: Value) -> list[Value]:
    """The factors of a piece, as f32."""
    b = kernel.builder
    parts = b.let(memory[item]).parts
    if kernel.problem.dtype is dtypes.f32:
        return [b.let(b.of_bits(kernel.ops.round_tf32(part), dtypes.f32)) for part in parts]
    return [number for word in parts for number in _halves(kernel, word)]


def pair_of(kernel: RowKernel, memory: Memory, head: Value, j: int) -> tuple[Value, Value]:
    """The factors of a thread's two columns of the ``j``-th 8 of a row that begins with a piece."""
    b, column = kernel.builder, kernel.column
    if kernel.problem.dtype is not dtypes.f32:
        low, high = _halves(kernel, b.let(memory[b.let(head + j), b.let(column >> 1)]))
        return b.let(low), b.let(high)
    item = b.let(head + 2 * j + (column >> 2))
    first, second = (
        b.let(b.of_bits(kernel.ops.round_tf32(memory[item, b.let((column & 3) + x)]), dtypes.f32))
        for x in range(2)
    )
    return first, second


def _halves(kernel: RowKernel, word: Value) -> tuple[Value, Value]:
    """The two factors of 16 bits in a word, as f32."""
    b = kernel.builder
    if kernel.problem.dtype is dtypes.f16:
        both = b.let(b.halves(word))
        return both.x, both.y
    return b.of_bits(word << 16, dtypes.f32), b.of_bits(word & 0xFFFF0000, dtypes.f32)
