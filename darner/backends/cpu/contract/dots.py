"""Products with few rows where the columns of B are contiguous: dot products side by side, in registers.

Nothing is packed. A few rows and a few columns are multiplied vector by vector along k, so that each loaded vector serves several
sums; lanes are added at the end. Columns stream from memory, rows stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....codegen.ir.emit import (
    accumulator_of,
    fused_multiply_add,
    lane_mask,
    lane_sum,
    load,
    loop,
    minimum,
    offset,
    prefetch,
    store,
    zero,
)
from ....codegen.ir.index import i64
from ....codegen.ir.types import STORAGE_BYTES, Builder, Pointer, Value
from ....graph.integers import ceil_div
from ..model import CpuModel
from .columns import Columns
from .plan import Cut

AHEAD = 512
"""Elements between what is read and what is prefetched."""
MOST_COLUMNS = 8
"""Streams that are read side by side."""
NEAR = 3 / 4
"""Of the nearest cache, what columns may take that several groups of rows read, or all rows."""


def dots_together(m: int, sums: int, near: bool, model: CpuModel) -> tuple[int, int]:
    """Rows and columns whose dot products are made at a time, of ``m`` rows, where registers hold so many sums.

    Rows that are not ``near`` come from the second cache for each group of columns: more columns at a time ask for fewer of them.

    >>> model = CpuModel(threads=1, multiplies=1)
    >>> [dots_together(m, 24, True, model) for m in (1, 4, 8, 12, 17)]
    [(1, 8), (4, 6), (8, 3), (12, 2), (12, 2)]
    >>> [dots_together(m, 24, False, model) for m in (1, 4, 8, 12, 17)]
    [(1, 8), (4, 6), (4, 6), (4, 6), (3, 8)]
    """

    def columns(rows: int) -> int:
        return max(1, min(MOST_COLUMNS, sums // rows))

    def cycles(rows: int, together: int) -> float:
        """Of a vector of terms, for one column."""
        loads = rows * (1 if near else model.l2_reads) + together
        return max(rows * together, loads, 2 * model.cycles.latency) / 2 / together if rows else 0.0

    def cost(rows: int) -> tuple[float, int]:
        together = columns(rows)
        groups, rest = divmod(m, rows)
        return groups * cycles(rows, together) + cycles(rest, together), -rows

    rows = min(range(1, min(m, sums // 2) + 1), key=cost)
    return rows, columns(rows)


def sum_dots(builder: Builder, plan: Cut, columns: Columns) -> None:
    """The sums of some columns, as dot products."""
    _Dots(builder, plan, columns).emit()


class _Dots:
    """Dot products of all rows with some columns: which are made together, and over how many terms."""

    def __init__(self, builder: Builder, plan: Cut, columns: Columns) -> None:
        self.builder, self.plan, self.columns = builder, plan, columns
        contraction, lanes = plan.contraction, plan.tile.lanes
        self.dtype, self.accumulator = contraction.dtype, accumulator_of(contraction.dtype)
        self.lanes, self.k, self.m = lanes, contraction.k, contraction.m
        self.across = contraction.b_strides[2]
        found = contiguous_rows(builder, plan, columns.a, columns.copy)
        self.source, self.source_type, self.row_stride = found
        self.size = STORAGE_BYTES[self.source_type]
        self.most = plan.model.of_l1(NEAR)
        near = self.m * self.k * self.size <= self.most
        sums = plan.tile.rows * plan.tile.vectors
        self.height, self.together = dots_together(self.m, sums, near, plan.model)
        self.alone = self.height == self.m
        # What is read again stays in the nearest cache: rows if all are used at once, else columns.
        again = self.m if self.alone else self.together
        turns = ceil_div(self.k * again * self.size, self.most)
        self.length = ceil_div(self.k, turns * lanes) * lanes
        self.turns = ceil_div(self.k, self.length)

    def emit(self) -> None:
        """All of them."""
        if self.alone:
            self._each_turn(
                lambda begin: self._all_columns(
                    lambda at, columns: self._all_rows(at, begin, columns)
                )
            )
        else:
            self._all_columns(
                lambda at, columns: self._each_turn(
                    lambda begin: self._all_rows(at, begin, columns)
                )
            )

    def _each_turn(self, body: Callable[[Value], None]) -> None:
        if self.turns > 1:
            loop(self.builder, i64(0), i64(self.k), self.length, lambda begin, _: body(begin))
        else:
            body(i64(0))

    def _all_rows(self, column: Value, begin: Value, columns: int) -> None:
        full = self.m // self.height * self.height

        def emit_rows(row: Value, _: object) -> None:
            self._emit_block(row, column, begin, self.height, columns)

        if full > self.height:
            loop(self.builder, i64(0), i64(full), self.height, emit_rows)
        else:
            emit_rows(i64(0), None)
        if full < self.m:
            self._emit_block(i64(full), column, begin, self.m - full, columns)

    def _all_columns(self, body: Callable[[Value, int], None]) -> None:
        builder, together = self.builder, self.together
        first, stop = self.columns.first, self.columns.stop
        count = builder.sub(stop, first)
        last = builder.sub(stop, builder.srem(count, i64(together)))
        loop(builder, first, last, together, lambda column, _: body(column, together))
        loop(builder, last, stop, 1, lambda column, _: body(column, 1))

    def _emit_block(self, row: Value, column: Value, begin: Value, rows: int, columns: int) -> None:
        """Some rows and columns, over the terms of one turn."""
        builder, k, lanes = self.builder, self.k, self.lanes
        stride, across = self.row_stride, self.across
        row_starts = [
            offset(
                builder, self.source, self.source_type, builder.mul(row, i64(stride)), i * stride
            )
            for i in range(rows)
        ]
        starts = [
            offset(
                builder, self.columns.b, self.dtype, builder.mul(column, i64(across)), i * across
            )
            for i in range(columns)
        ]
        end = i64(k)
        if self.turns > 1:
            end = minimum(builder, builder.add(begin, i64(self.length)), i64(k))
        later = self._needed_later(row, column, begin, columns)

        def multiply(index: Value, totals: Sequence[Value], mask: Value | None) -> list[Value]:
            following = list(totals)
            # What there is less of is kept in registers.
            sides = [(row_starts, self.source_type), (starts, self.dtype)]
            few, many = sides[:: 1 if rows <= columns else -1]
            kept = [
                load(builder, offset(builder, at, few[1], index), few[1], lanes, mask)
                for at in few[0]
            ]
            if mask is None:
                for address in later:
                    prefetch(builder, offset(builder, address, self.dtype, index))
            for i, at in enumerate(many[0]):
                value = load(builder, offset(builder, at, many[1], index), many[1], lanes, mask)
                for j, other in enumerate(kept):
                    to = j * columns + i if rows <= columns else i * columns + j
                    following[to] = fused_multiply_add(builder, value, other, totals[to], lanes)
            return following

        totals = [zero(self.accumulator, lanes)] * (rows * columns)
        whole = builder.and_(end, i64(-lanes))
        totals = loop(builder, begin, whole, lanes, lambda i, t: multiply(i, t, None), totals)
        if k % lanes:
            mask = lane_mask(builder, builder.sub(end, whole), lanes)
            totals = multiply(minimum(builder, whole, i64(k - 1)), totals, mask)
        self._write(row, column, begin, columns, totals)

    def _write(
        self, row: Value, column: Value, begin: Value, columns: int, totals: Sequence[Value]
    ) -> None:
        """Write the sums of a turn, or add them to those of the turns before."""
        builder, chunk, accumulator = self.builder, self.plan.chunk, self.accumulator
        within = builder.mul(row, i64(chunk)), builder.sub(column, self.columns.first)
        corner = offset(builder, self.columns.sums, accumulator, *within)
        for at, value in enumerate(totals):
            target = offset(builder, corner, accumulator, at // columns * chunk + at % columns)
            total = lane_sum(builder, value)
            if self.turns > 1:
                before = load(builder, target, accumulator, 1)
                is_first = builder.icmp_signed("==", begin, i64(0))
                total = builder.select(is_first, total, builder.fadd(before, total))
            builder.store(total, target, align=STORAGE_BYTES[accumulator])

    def _needed_later(self, row: Value, column: Value, begin: Value, columns: int) -> list[Pointer]:
        """Where what is read after this lies, from a turn's terms on; each group of rows asks for some columns of it."""
        builder, height, length, across = self.builder, self.height, self.length, self.across
        start, each, skipped = builder.add(column, i64(columns)), columns, i64(0)
        if self.alone and columns * length * self.size > self.most:
            start, skipped = column, i64(AHEAD)
        elif not self.alone:
            each = ceil_div(columns * height, self.m)
            after = builder.add(begin, i64(length))
            ends = builder.icmp_signed(">=", after, i64(self.k))
            start = builder.select(ends, start, column)
            start = builder.add(start, builder.mul(builder.sdiv(row, i64(height)), i64(each)))
            skipped = builder.select(ends, builder.sub(i64(0), begin), i64(length))
        first = builder.mul(start, i64(across))
        address = offset(builder, self.columns.b, self.dtype, first, skipped)
        return [offset(builder, address, self.dtype, i * across) for i in range(each)]


def contiguous_rows(
    builder: Builder, plan: Cut, a: Pointer, copy: Pointer
) -> tuple[Pointer, str, int]:
    """Rows of A with contiguous terms, as they lie or copied; their type, and how far they are from each other.

    Vectors that begin within a line take twice as long to load: rows are copied to where none does, as columns cannot be.
    """
    contraction, lanes = plan.contraction, plan.tile.lanes
    dtype, accumulator = contraction.dtype, accumulator_of(contraction.dtype)
    _, down, across = contraction.a_strides
    if across == 1 and down % lanes == 0:
        return a, dtype, down
    k, m, length = contraction.k, contraction.m, plan.row_length

    def copy_row(row: Value, _: Sequence[Value]) -> None:
        start = offset(builder, a, dtype, builder.mul(row, i64(down)))
        target = offset(builder, copy, accumulator, builder.mul(row, i64(length)))

        def vector(index: Value, _: Sequence[Value]) -> None:
            mask = lane_mask(builder, builder.sub(i64(k), index), lanes) if k % lanes else None
            address = offset(builder, start, dtype, builder.mul(index, i64(across)))
            values = load(builder, address, dtype, lanes, mask, across)
            store(builder, values, offset(builder, target, accumulator, index), accumulator)

        loop(builder, i64(0), i64(k), lanes, vector)

    loop(builder, i64(0), i64(m), 1, copy_row)
    return copy, accumulator, length
