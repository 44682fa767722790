"""Products with a few rows: B is read once, from where it stands, at the speed of memory.

Where B's columns are contiguous, several of its rows are added at a time into the sums, which stay in the nearest
cache; packed panels are read several at a time. Either way a handful of streams keeps memory busy. Where its k are contiguous, see
``gemm_dots``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .gemm_ir import (
    STORAGE_BYTES,
    accumulator_of,
    broadcast,
    fused_multiply_add,
    i64,
    lane_mask,
    load,
    loop,
    maximum,
    minimum,
    offset,
    prefetch,
    store,
    zero,
)
from .gemm_panel import either_panel
from .gemm_plan import Cut
from .gemm_tile import Tile

AHEAD_OF_PANELS = 1536
"""Elements between what is read of a packed panel and what is prefetched."""


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


class Products(Protocol):
    """What is asked of who computes with few rows."""

    builder: Any
    plan: Cut
    own_sums: Any

    def finish_columns(self, batch: Any, first: Any, stop: Any) -> None:
        """Take the sums of columns ``first`` to ``stop`` to C."""


def sum_all_panels(products: Products, batch: Any, a: Any, b: Any, low: Any, high: Any) -> None:
    """A few rows times packed panels ``low`` to ``high``: several side by side, then one by one."""
    builder, plan, sums = products.builder, products.plan, products.own_sums
    width, streams = plan.tile.width, plan.chunk // plan.tile.width

    def some(count: int) -> Callable[[Any, Any], None]:
        def panels(number: Any, _: Any) -> None:
            def of(tile: Tile) -> None:
                sum_panels(builder, plan, tile, count, a, b, number, sums)

            if count > 1:
                of(plan.tile)
            else:
                either_panel(builder, plan, number, of)
            first = builder.mul(number, i64(width))
            stop = builder.add(first, i64(width * count))
            products.finish_columns(batch, first, minimum(builder, stop, i64(plan.contraction.n)))

        return panels

    whole = minimum(builder, high, i64(plan.full_panels))
    count = maximum(builder, builder.sub(whole, low), i64(0))
    turn = builder.add(low, builder.mul(builder.sdiv(count, i64(streams)), i64(streams)))
    if streams > 1:
        loop(builder, low, turn, streams, some(streams))
        low = turn
    loop(builder, low, high, 1, some(1))


def sum_panels(
    builder: Any, plan: Cut, tile: Tile, streams: int, a: Any, b: Any, number: Any, sums: Any
) -> None:
    """Sums of ``streams`` packed panels of B from panel ``number`` on, into ``sums[row][column]``."""
    contraction, lanes = plan.contraction, tile.lanes
    dtype, accumulator = contraction.dtype, accumulator_of(contraction.dtype)
    _, row_stride, k_stride = contraction.a_strides
    k, m = contraction.k, contraction.m
    place = builder.mul(number, i64(plan.tile.width * k))
    panels = [
        offset(builder, b, dtype, place, stream * tile.width * k) for stream in range(streams)
    ]
    line = 64 // STORAGE_BYTES[dtype]

    def one(index: Any, totals: Any) -> list[Any]:
        following = list(totals)
        at = builder.mul(index, i64(k_stride))
        factors = []
        for row in range(m):
            factor = load(builder, offset(builder, a, dtype, at, row * row_stride), dtype, 1)
            factors.append(broadcast(builder, factor, lanes))
        for stream, panel in enumerate(panels):
            start = offset(builder, panel, dtype, builder.mul(index, i64(tile.width)))
            for column in range(0, tile.width, line):
                prefetch(builder, offset(builder, start, dtype, AHEAD_OF_PANELS + column))
            for vector in range(tile.vectors):
                value = load(builder, offset(builder, start, dtype, vector * lanes), dtype, lanes)
                for row, factor in enumerate(factors):
                    to = (row * streams + stream) * tile.vectors + vector
                    following[to] = fused_multiply_add(builder, factor, value, following[to], lanes)
        return following

    totals: Any = [zero(accumulator, lanes)] * (m * streams * tile.vectors)
    totals = loop(builder, i64(0), i64(k), 1, one, totals)
    for row in range(m):
        for vector in range(streams * tile.vectors):
            to = offset(builder, sums, accumulator, row * plan.chunk + vector * lanes)
            store(builder, totals[row * streams * tile.vectors + vector], to, accumulator)
