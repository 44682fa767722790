"""Products with few rows whose columns have contiguous terms: dot products side by side, in registers.

Nothing is packed. A few rows and a few columns are multiplied vector by vector along k, so that each vector that is loaded serves several
sums; lanes are added up at the end. Columns come from memory in a handful of streams, rows stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....codegen.ir.emit import (
    accumulator_of,
    fused_multiply_add,
    i64,
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
from ....codegen.ir.types import STORAGE_BYTES
from .plan import Cut

AHEAD = 512
"""Elements between what is read and what is prefetched."""
MOST_COLUMNS = 8
"""Streams that are read side by side."""
NEAR_BYTES = 24 << 10
"""Of the nearest cache, what columns may take that several groups of rows read, or all rows."""
FAR = 4
"""How many times as long a vector takes to be loaded from the second cache."""
LATENCY = 4
"""Cycles until a sum can be added to again."""


def dots_together(m: int, sums: int, near: bool) -> tuple[int, int]:
    """Rows and columns whose dot products are made at a time, of ``m`` rows, where registers hold so many sums.

    Rows that are not ``near`` come from the second cache for each group of columns: more columns at a time ask for fewer of them.

    >>> [dots_together(m, 24, near=True) for m in (1, 4, 8, 12, 17)]
    [(1, 8), (4, 6), (8, 3), (12, 2), (12, 2)]
    >>> [dots_together(m, 24, near=False) for m in (1, 4, 8, 12, 17)]
    [(1, 8), (4, 6), (4, 6), (4, 6), (3, 8)]
    """

    def columns(rows: int) -> int:
        return max(1, min(MOST_COLUMNS, sums // rows))

    def cycles(rows: int, together: int) -> float:
        """Of a vector of terms, for one column."""
        loads = rows * (1 if near else FAR) + together
        return max(rows * together, loads, 2 * LATENCY) / 2 / together if rows else 0.0

    def cost(rows: int) -> tuple[float, int]:
        together = columns(rows)
        groups, rest = divmod(m, rows)
        return groups * cycles(rows, together) + cycles(rest, together), -rows

    rows = min(range(1, min(m, sums // 2) + 1), key=cost)
    return rows, columns(rows)


def sum_dots(
    builder: Any, plan: Cut, a: Any, b: Any, first: Any, stop: Any, sums: Any, copy: Any
) -> None:
    """Sums of columns ``first`` to ``stop`` into ``sums[row][column - first]``."""
    contraction, lanes = plan.contraction, plan.tile.lanes
    dtype, accumulator = contraction.dtype, accumulator_of(contraction.dtype)
    k, m, across = contraction.k, contraction.m, contraction.b_strides[2]
    source, source_type, row_stride = _rows(builder, plan, a, copy)
    size = STORAGE_BYTES[source_type]
    near = m * k * size <= NEAR_BYTES
    height, together = dots_together(m, plan.tile.rows * plan.tile.vectors, near)
    alone = height == m
    # What is read again stays in the nearest cache: rows if all are used at once, else columns.
    turns = -(-k * (m if alone else together) * size // NEAR_BYTES)
    length = -(-k // (turns * lanes)) * lanes
    turns = -(-k // length)

    def dots(row: Any, column: Any, begin: Any, rows: int, columns: int) -> None:
        """Some rows and columns, over the terms of one turn."""
        places = [
            offset(builder, source, source_type, builder.mul(row, i64(row_stride)), i * row_stride)
            for i in range(rows)
        ]
        starts = [
            offset(builder, b, dtype, builder.mul(column, i64(across)), i * across)
            for i in range(columns)
        ]
        end = minimum(builder, builder.add(begin, i64(length)), i64(k)) if turns > 1 else i64(k)
        later = needed_later(row, column, begin, columns)

        def multiply(index: Any, totals: Sequence[Any], mask: Any) -> list[Any]:
            following = list(totals)
            # What there is less of is kept in registers.
            few, many = [(places, source_type), (starts, dtype)][:: 1 if rows <= columns else -1]
            kept = [
                load(builder, offset(builder, at, few[1], index), few[1], lanes, mask)
                for at in few[0]
            ]
            if mask is None:
                for place in later:
                    prefetch(builder, offset(builder, place, dtype, index))
            for i, at in enumerate(many[0]):
                value = load(builder, offset(builder, at, many[1], index), many[1], lanes, mask)
                for j, other in enumerate(kept):
                    to = j * columns + i if rows <= columns else i * columns + j
                    following[to] = fused_multiply_add(builder, value, other, totals[to], lanes)
            return following

        totals: Any = [zero(accumulator, lanes)] * (rows * columns)
        whole = builder.and_(end, i64(-lanes))
        totals = loop(builder, begin, whole, lanes, lambda i, t: multiply(i, t, None), totals)
        if k % lanes:
            mask = lane_mask(builder, builder.sub(end, whole), lanes)
            totals = multiply(minimum(builder, whole, i64(k - 1)), totals, mask)
        within = builder.mul(row, i64(plan.chunk)), builder.sub(column, first)
        corner = offset(builder, sums, accumulator, *within)
        for at, value in enumerate(totals):
            place = offset(builder, corner, accumulator, at // columns * plan.chunk + at % columns)
            total = lane_sum(builder, value)
            if turns > 1:
                before = load(builder, place, accumulator, 1)
                is_first = builder.icmp_signed("==", begin, i64(0))
                total = builder.select(is_first, total, builder.fadd(before, total))
            builder.store(total, place, align=STORAGE_BYTES[accumulator])

    def needed_later(row: Any, column: Any, begin: Any, columns: int) -> list[Any]:
        """Where what is read after this lies, from a turn's terms on; each group of rows asks for some columns of it."""
        start, each, skipped = builder.add(column, i64(columns)), columns, i64(0)
        if alone and columns * length * size > NEAR_BYTES:
            start, skipped = column, i64(AHEAD)
        elif not alone:
            each = -(-columns * height // m)
            after = builder.add(begin, i64(length))
            ends = builder.icmp_signed(">=", after, i64(k))
            start = builder.select(ends, start, column)
            start = builder.add(start, builder.mul(builder.sdiv(row, i64(height)), i64(each)))
            skipped = builder.select(ends, builder.sub(i64(0), begin), i64(length))
        place = offset(builder, b, dtype, builder.mul(start, i64(across)), skipped)
        return [offset(builder, place, dtype, i * across) for i in range(each)]

    def each_turn(inside: Callable[[Any], None]) -> None:
        if turns > 1:
            loop(builder, i64(0), i64(k), length, lambda begin, _: inside(begin))
        else:
            inside(i64(0))

    def all_rows(column: Any, begin: Any, columns: int) -> None:
        full = m // height * height

        def one(row: Any, _: Any) -> None:
            dots(row, column, begin, height, columns)

        if full > height:
            loop(builder, i64(0), i64(full), height, one)
        else:
            one(i64(0), None)
        if full < m:
            dots(i64(full), column, begin, m - full, columns)

    def all_columns(inside: Callable[[Any, int], None]) -> None:
        count = builder.sub(stop, first)
        last = builder.sub(stop, builder.srem(count, i64(together)))
        loop(builder, first, last, together, lambda column, _: inside(column, together))
        loop(builder, last, stop, 1, lambda column, _: inside(column, 1))

    if alone:
        each_turn(lambda begin: all_columns(lambda at, columns: all_rows(at, begin, columns)))
    else:
        all_columns(lambda at, columns: each_turn(lambda begin: all_rows(at, begin, columns)))


def _rows(builder: Any, plan: Cut, a: Any, copy: Any) -> tuple[Any, str, int]:
    """Rows of A with contiguous terms, as they lie or copied; their type, and how far they are from each other.

    Vectors that begin within a line take twice as long to load: rows are copied to where none does, as columns cannot be.
    """
    contraction, lanes = plan.contraction, plan.tile.lanes
    dtype, accumulator = contraction.dtype, accumulator_of(contraction.dtype)
    _, down, across = contraction.a_strides
    if across == 1 and down % lanes == 0:
        return a, dtype, down
    k, m, length = contraction.k, contraction.m, plan.row_length

    def copy_row(row: Any, _: Any) -> None:
        start = offset(builder, a, dtype, builder.mul(row, i64(down)))
        target = offset(builder, copy, accumulator, builder.mul(row, i64(length)))

        def vector(index: Any, _: Any) -> None:
            mask = lane_mask(builder, builder.sub(i64(k), index), lanes) if k % lanes else None
            place = offset(builder, start, dtype, builder.mul(index, i64(across)))
            values = load(builder, place, dtype, lanes, mask, across)
            store(builder, values, offset(builder, target, accumulator, index), accumulator)

        loop(builder, i64(0), i64(k), lanes, vector)

    loop(builder, i64(0), i64(m), 1, copy_row)
    return copy, accumulator, length
