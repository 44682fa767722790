"""Products with a few rows where the rows of B are contiguous: B is read once, in place, at the speed of memory.

Several rows of B are added at a time into the sums, which stay in the nearest cache. Where B's columns are contiguous, see ``dots``.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....codegen.ir.emit import (
    accumulator_of,
    broadcast,
    fused_multiply_add,
    lane_mask,
    load,
    loop,
    offset,
    prefetch,
    store,
    zero,
)
from ....codegen.ir.index import i64
from ....codegen.ir.types import Builder, Value
from .columns import Columns
from .plan import Cut


def sum_rows(builder: Builder, plan: Cut, columns: Columns) -> None:
    """The sums of some columns: rows of B added up."""
    a, b, first, stop, sums, *_ = columns
    contraction, lanes = plan.contraction, plan.tile.lanes
    dtype, accumulator = contraction.dtype, accumulator_of(contraction.dtype)
    _, row_stride, k_stride = contraction.a_strides
    together = 8 if contraction.m <= 2 else 4

    def clear(column: Value, _: Sequence[Value]) -> None:
        for row in range(contraction.m):
            address = offset(builder, sums, accumulator, column, row * plan.chunk)
            store(builder, zero(accumulator, lanes), address, accumulator)

    width = builder.sub(stop, first)
    loop(builder, i64(0), width, lanes, clear)
    whole = builder.and_(width, i64(-lanes))
    edge = lane_mask(builder, builder.sub(width, whole), lanes)

    def add(index: Value, count: int) -> None:
        """Rows ``index`` to ``index + count`` of B."""
        factors = []
        for row in range(contraction.m):
            for step in range(count):
                at = builder.mul(builder.add(index, i64(step)), i64(k_stride))
                address = offset(builder, a, dtype, at, row * row_stride)
                factors.append(broadcast(builder, load(builder, address, dtype, 1), lanes))
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

        def vector(column: Value, mask: Value | None) -> None:
            # The rows after these, while these are added: too far for what the processor foresees by itself.
            for start in starts if mask is None and plan.asks else ():
                later = builder.add(column, i64(count * contraction.b_strides[1]))
                prefetch(builder, offset(builder, start, dtype, later))
            values = [
                load(builder, offset(builder, start, dtype, column), dtype, lanes, mask)
                for start in starts
            ]
            for row in range(contraction.m):
                address = offset(builder, sums, accumulator, column, row * plan.chunk)
                total = load(builder, address, accumulator, lanes)
                for step, value in enumerate(values):
                    factor = factors[row * count + step]
                    total = fused_multiply_add(builder, factor, value, total, lanes)
                store(builder, total, address, accumulator)

        loop(builder, i64(0), whole, lanes, lambda column, _: vector(column, None))
        if contraction.n % lanes:
            with builder.if_then(builder.icmp_signed("<", whole, width)):
                vector(whole, edge)

    most = i64(contraction.k // together * together)
    loop(builder, i64(0), most, together, lambda index, _: add(index, together))
    if contraction.k % together:
        loop(builder, most, i64(contraction.k), 1, lambda index, _: add(index, 1))
