"""A few rows times a B that is decoded: terms are multiplied as they are decoded, in registers, and no panel is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

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

FEWEST_SUMS = 8
"""Sums that are enough to keep the multipliers busy while each waits for the one before."""


@dataclass(frozen=True)
class DecodedDots:
    """Dot products of a few rows with columns whose terms lie side by side."""

    elements: DecodedElements
    plan: Cut
    columns: Columns

    def emit(self) -> None:
        """All columns, some at a time, with some rows at a time."""
        builder, columns, plan = self.elements.builder, self.columns, self.plan
        rows = contiguous_rows(builder, plan, columns.a, columns.copy)
        ahead = self.elements.first(columns.b)

        tile = plan.dots

        def some_columns(number: Value, count: int) -> None:
            own = ahead._replace(column=builder.add(i64(ahead.column), number))
            corner = offset(builder, columns.sums, "f32", builder.sub(number, columns.first))
            for first in range(0, plan.contraction.m, tile.rows):
                height = min(tile.rows, plan.contraction.m - first)
                group = _Group(self, own, rows, range(first, first + height), count)
                for (row, column), total in group.totals().items():
                    at = offset(builder, corner, "f32", row * plan.chunk + column)
                    builder.store(lane_sum(builder, total), at, align=STORAGE_BYTES["f32"])

        length = builder.sub(columns.stop, columns.first)
        whole = builder.sub(columns.stop, builder.urem(length, i64(tile.columns)))
        loop(
            builder,
            columns.first,
            whole,
            tile.columns,
            lambda at, _: some_columns(at, tile.columns),
        )
        if tile.columns > 1:
            loop(builder, whole, columns.stop, 1, lambda at, _: some_columns(at, 1))


@dataclass(frozen=True)
class _Group:
    """Dot products of some rows with some columns.

    Attributes:
        ahead: the first element of the first column.
        source: where the rows of A lie, as what, and how far apart.
        rows: which of them. Those after row 0 find what is decoded in the panel that was kept there.
        columns: how many.
    """

    of: DecodedDots
    ahead: Ahead
    source: tuple[Pointer, str, int]
    rows: range
    columns: int

    def totals(self) -> dict[tuple[int, int], Value]:
        """The sums of each lane, for each row and column: of as many terms at a time as have their scales in common."""
        builder, contraction = self.of.elements.builder, self.of.plan.contraction
        lanes, run = self.of.plan.tile.lanes, contraction.decoded
        names = list(product(self.rows, range(self.columns)))
        # A sum waits for the one before it: few have several parts.
        each = run // lanes if len(names) < FEWEST_SUMS else 1

        def add(number: Value, sums: Sequence[Value], width: int) -> list[Value]:
            following = list(sums)
            for part, values in enumerate(self._values(number, width)):
                for index, (row, column) in enumerate(names):
                    factor = self._factor(row, number, part)
                    to = index * each + part % each
                    own = values[column]
                    following[to] = fused_multiply_add(builder, own, factor, following[to], lanes)
            return following

        sums: Sequence[Value] = [zero("f32", lanes)] * (len(names) * each)
        whole = contraction.k // run * run
        sums = loop(builder, i64(0), i64(whole), run, lambda i, t: add(i, t, run), sums)
        for begin in range(whole, contraction.k, lanes):
            sums = add(i64(begin), sums, lanes)
        return {
            name: reduce(builder.fadd, sums[index * each : (index + 1) * each])
            for index, name in enumerate(names)
        }

    def _factor(self, row: int, number: Value, part: int) -> Value:
        """A vector of a row of A."""
        builder, lanes = self.of.elements.builder, self.of.plan.tile.lanes
        source, kind, stride = self.source
        at = offset(builder, source, kind, number, row * stride + part * lanes)
        return load(builder, at, kind, lanes)

    def _values(self, number: Value, width: int) -> list[list[Value]]:
        """So many terms of the columns: vector by vector, those of each column."""
        elements, plan, ahead = self.of.elements, self.of.plan, self.ahead
        builder, lanes, parts = elements.builder, plan.tile.lanes, range(width // plan.tile.lanes)
        line = offset(builder, self.of.columns.panel, "f32", number)

        def place(part: int, column: int) -> Pointer:
            return offset(builder, line, "f32", column * plan.row_length + part * lanes)

        columns = range(self.columns)
        if self.rows.start:
            return [[load(builder, place(p, c), "f32", lanes) for c in columns] for p in parts]
        term = Lanes(builder.add(i64(ahead.term), number), width, 1, width)
        found: list[list[Value]] = [[] for _ in parts]
        for column in columns:
            own = ahead._replace(column=builder.add(i64(ahead.column), i64(column)))
            if self.columns > 1:
                # The same terms of the columns after these: streams that end soon are not foreseen.
                elements.ask(own._replace(term=term.start), self.columns)
            values = elements.at(own._replace(term=term))
            for part in parts:
                value = picked(builder, values, part * lanes, lanes)
                found[part].append(value)
                if plan.keeps_panel:
                    store(builder, value, place(part, column), "f32")
        return found


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
            values = list(self.elements.of_rows(own, places, count, mask))
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
