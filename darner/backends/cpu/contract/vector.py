"""Products with a few rows: B is read once, from where it stands, at the speed of memory.

Where B's columns are contiguous, several of its rows are added at a time into the sums, which stay in the nearest
cache: a handful of streams keeps memory busy. Where its k are contiguous, see ``gemm_dots``.
"""

from __future__ import annotations

from typing import Any

from ....codegen.ir.emit import (
    accumulator_of,
    broadcast,
    fused_multiply_add,
    i64,
    lane_mask,
    load,
    loop,
    offset,
    prefetch,
    store,
    zero,
)
from .plan import Cut


def sum_rows(
    builder: Any, plan: Cut, a: Any, b: Any, first: Any, stop: Any, sums: Any, _: Any
) -> None:
    """Sums of columns ``first`` to ``stop`` into ``sums[row][column - first]``: rows of B added up."""
    contraction, lanes = plan.contraction, plan.tile.lanes
    dtype, accumulator = contraction.dtype, accumulator_of(contraction.dtype)
    _, row_stride, k_stride = contraction.a_strides
    together = 8 if contraction.m <= 2 else 4

    def clear(column: Any, _: Any) -> None:
        for row in range(contraction.m):
            place = offset(builder, sums, accumulator, column, row * plan.chunk)
            store(builder, zero(accumulator, lanes), place, accumulator)

    width = builder.sub(stop, first)
    loop(builder, i64(0), width, lanes, clear)
    whole = builder.and_(width, i64(-lanes))
    edge = lane_mask(builder, builder.sub(width, whole), lanes)

    def add(index: Any, count: int) -> None:
        """Rows ``index`` to ``index + count`` of B."""
        factors = []
        for row in range(contraction.m):
            for step in range(count):
                at = builder.mul(builder.add(index, i64(step)), i64(k_stride))
                place = offset(builder, a, dtype, at, row * row_stride)
                factors.append(broadcast(builder, load(builder, place, dtype, 1), lanes))
        starts = [
            offset(
                builder,
                b,
                dtype,
                builder.mul(builder.add(index, i64(step)), i64(contraction.b_strides[1])),
                first,
            )
            for step in range(count)
        ]

        def vector(column: Any, mask: Any) -> None:
            # The rows after these, while these are added: too far for what the processor foresees by itself.
            for start in starts if mask is None and plan.asks else ():
                later = builder.add(column, i64(count * contraction.b_strides[1]))
                prefetch(builder, offset(builder, start, dtype, later))
            values = [
                load(builder, offset(builder, start, dtype, column), dtype, lanes, mask)
                for start in starts
            ]
            for row in range(contraction.m):
                place = offset(builder, sums, accumulator, column, row * plan.chunk)
                total = load(builder, place, accumulator, lanes)
                for step, value in enumerate(values):
                    factor = factors[row * count + step]
                    total = fused_multiply_add(builder, factor, value, total, lanes)
                store(builder, total, place, accumulator)

        loop(builder, i64(0), whole, lanes, lambda column, _: vector(column, None))
        if contraction.n % lanes:
            with builder.if_then(builder.icmp_signed("<", whole, width)):
                vector(whole, edge)

    most = i64(contraction.k // together * together)
    loop(builder, i64(0), most, together, lambda index, _: add(index, together))
    if contraction.k % together:
        loop(builder, most, i64(contraction.k), 1, lambda index, _: add(index, 1))
