"""A few rows times a B that is decoded: terms are multiplied as they are decoded, in registers, and no panel is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from ....codegen.ir.emit import (
    broadcast,
    fused_multiply_add,
    lane_mask,
    lane_sum,
    load,
    loop,
    offset,
    store,
    zero,
)
from ....codegen.ir.index import Lanes, i64
from ....codegen.ir.types import STORAGE_BYTES, Pointer, Value
from .columns import Columns
from .decoded_elements import Ahead, DecodedElements, of_block, picked
from .dots import contiguous_rows
from .plan import Cut

FACTORS = 16
"""Elements of A that rows of B are multiplied with at a time, at most."""


@dataclass(frozen=True)
class DecodedDots:
    """Dot products of a few rows with columns whose terms lie side by side."""

    elements: DecodedElements
    plan: Cut
    columns: Columns

    def emit(self) -> None:
        """All columns, one after the other."""
        builder, columns, plan = self.elements.builder, self.columns, self.plan
        rows = contiguous_rows(builder, plan, columns.a, columns.copy)
        ahead = self.elements.first(columns.b)

        def column(number: Value, _: Sequence[Value]) -> None:
            own = ahead._replace(column=builder.add(i64(ahead.column), number))
            corner = offset(builder, columns.sums, "f32", builder.sub(number, columns.first))
            for row, total in enumerate(self._totals(own, rows)):
                at = offset(builder, corner, "f32", row * plan.chunk)
                builder.store(lane_sum(builder, total), at, align=STORAGE_BYTES["f32"])

        loop(builder, columns.first, columns.stop, 1, column)

    def _totals(self, ahead: Ahead, rows: tuple[Pointer, str, int]) -> Sequence[Value]:
        """The sums of each lane, for each row: of as many terms at a time as have their scales in common."""
        builder, contraction = self.elements.builder, self.plan.contraction
        source, kind, stride = rows
        lanes, run = self.plan.tile.lanes, contraction.decoded
        each = run // lanes

        def add(number: Value, totals: Sequence[Value], width: int) -> list[Value]:
            term = Lanes(builder.add(i64(ahead.term), number), width, 1, width)
            values = self.elements.at(ahead._replace(term=term))
            following = list(totals)
            for part in range(width // lanes):
                own = picked(builder, values, part * lanes, lanes)
                for row in range(contraction.m):
                    at = offset(builder, source, kind, number, row * stride + part * lanes)
                    factor, to = load(builder, at, kind, lanes), row * each + part
                    following[to] = fused_multiply_add(builder, own, factor, totals[to], lanes)
            return following

        totals: Sequence[Value] = [zero("f32", lanes)] * (contraction.m * each)
        whole = contraction.k // run * run
        totals = loop(builder, i64(0), i64(whole), run, lambda i, t: add(i, t, run), totals)
        for begin in range(whole, contraction.k, lanes):
            totals = add(i64(begin), totals, lanes)
        parts = [totals[row * each : (row + 1) * each] for row in range(contraction.m)]
        return [reduce(builder.fadd, own) for own in parts]


@dataclass(frozen=True)
class DecodedRows:
    """Rows of B added up, where its columns lie side by side: several at a time into sums that stay in the nearest cache."""

    elements: DecodedElements
    plan: Cut
    columns: Columns

    def emit(self) -> None:
        """All terms, those of one block at a time where a block has enough of them."""
        builder, plan = self.elements.builder, self.plan
        k, block = plan.contraction.k, self.elements.operand.scheme.block
        together = min(of_block(block), 1 << (FACTORS // plan.contraction.m).bit_length() - 1)
        self._clear()
        # Where parts of the sums begin is a multiple of the lanes, and so of these.
        whole = k // together * together
        loop(builder, i64(0), i64(whole), together, lambda i, _: self._add(i, together))
        loop(builder, i64(whole), i64(k), 1, lambda i, _: self._add(i, 1))

    def _clear(self) -> None:
        builder, plan, columns = self.elements.builder, self.plan, self.columns
        width = builder.sub(columns.stop, columns.first)

        def clear(column: Value, _: Sequence[Value]) -> None:
            for row in range(plan.contraction.m):
                at = offset(builder, columns.sums, "f32", column, row * plan.chunk)
                store(builder, zero("f32", plan.tile.lanes), at, "f32")

        loop(builder, i64(0), width, plan.tile.lanes, clear)

    def _add(self, first: Value, count: int) -> None:
        """Rows ``first`` to ``first + count`` of B, times their factors."""
        builder, plan, columns = self.elements.builder, self.plan, self.columns
        contraction, lanes = plan.contraction, plan.tile.lanes
        _, row_stride, k_stride = contraction.a_strides
        ahead = self.elements.first(columns.b)
        factors = []
        for row in range(contraction.m):
            for step in range(count):
                at = builder.mul(builder.add(first, i64(step)), i64(k_stride))
                address = offset(builder, columns.a, "f32", at, row * row_stride)
                factors.append(broadcast(builder, load(builder, address, "f32", 1), lanes))
        own = ahead._replace(term=builder.add(i64(ahead.term), first))

        def vector(column: Value, mask: Value | None) -> None:
            begin = builder.add(builder.add(i64(ahead.column), columns.first), column)
            places = Lanes(begin, lanes, 1, lanes)
            values = self.elements.of_rows(own, places, count, mask)
            for row in range(contraction.m):
                address = offset(builder, columns.sums, "f32", column, row * plan.chunk)
                total = load(builder, address, "f32", lanes)
                for step, value in enumerate(values):
                    factor = factors[row * count + step]
                    total = fused_multiply_add(builder, factor, value, total, lanes)
                store(builder, total, address, "f32")

        width = builder.sub(columns.stop, columns.first)
        whole = builder.and_(width, i64(-lanes))
        loop(builder, i64(0), whole, lanes, lambda column, _: vector(column, None))
        if contraction.n % lanes:
            with builder.if_then(builder.icmp_signed("<", whole, width)):
                vector(whole, lane_mask(builder, builder.sub(width, whole), lanes))
