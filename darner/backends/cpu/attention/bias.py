"""The gradient of attention's bias: the gradient of the scores, summed over the axes along which the bias is broadcast.

Each thread owns some elements of the result and goes through all heads that use them in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....codegen.ir.emit import (
    lane_mask,
    lane_sum,
    loop,
    maximum,
    minimum,
    offset,
    store_first_lane,
)
from ....codegen.ir.index import Index, Lanes, i64
from ....codegen.ir.lanes import Lane
from ....codegen.ir.registers import Registers
from ....codegen.ir.types import Value
from ....graph.integers import ceil_div
from ..contract.pack import PackKernel

if TYPE_CHECKING:
    from .backward import Gradients


def emit_bias(work: Gradients) -> None:
    """Sum what the scores of each block of queries and keys say."""
    BiasGradient(work).emit()


class BiasGradient:
    """The code of a bias's gradient."""

    def __init__(self, work: Gradients) -> None:
        self.work, self.parts, self.attention = work, work.parts, work.attention
        self.builder = work.builder
        attention = work.attention
        self.number = work.room.results["bias"]
        self.output = work.parts.code.body.outputs[self.number]
        sizes = [int(size) for size in self.output.shape]
        own = [1] * (4 - len(sizes)) + sizes
        self.sizes = own
        self.all_queries = own[2] == 1 and attention.queries != 1
        self.all_keys = own[3] == 1 and attention.keys != 1
        self.blocks = ceil_div(attention.keys, attention.block)
        # Whatever is in a block of rows that a sum does not reach must be 0: it is cleared as a whole.
        self.totals = work.parts.own(work.room.sums_of_bias)

    def emit(self) -> None:
        """Every block of the bias, shared out among the threads."""
        attention, parts = self.attention, self.parts
        own = self.sizes
        cut = (
            *own[:2],
            1 if self.all_queries else attention.panels,
            1 if self.all_keys else self.blocks,
        )

        def unit(number: Value) -> None:
            b = self.builder
            batch, head, panel, block = parts.indices.split(number, cut)
            parts.clear(self.totals, attention.block * attention.panel)
            many = (
                attention.batch if own[0] == 1 else 1,
                attention.heads if own[1] == 1 else 1,
                attention.panels if self.all_queries else 1,
                self.blocks if self.all_keys else 1,
            )

            def emit_vector(at: Value, _: Sequence[Value]) -> None:
                inner = parts.indices.split(at, many)
                index = [
                    parts.indices.add(outer, within)
                    for outer, within in zip((batch, head, panel, block), inner, strict=True)
                ]
                self._add(*index)

            loop(b, i64(0), i64(many[0] * many[1] * many[2] * many[3]), 1, emit_vector)
            self._write(batch, head, panel, block)

        total = cut[0] * cut[1] * cut[2] * cut[3]
        if total:
            parts.code.each(total, unit)

    def _keys(self, block: Index) -> tuple[Value, Value]:
        """The first key of a block, and how many it has."""
        first = i64(self.parts.indices.mul(block, self.attention.block))
        left = self.builder.sub(i64(self.attention.keys), first)
        return first, minimum(self.builder, i64(self.attention.block), left)

    def _add(self, batch: Index, head: Index, panel: Index, block: Index) -> None:
        """Add the gradients of the scores of one block of one head."""
        b, parts = self.builder, self.parts
        key, keys = self._keys(block)
        opened = self.work.open_panel(batch, head, panel)
        low = maximum(b, key, opened.low)
        high = minimum(b, b.add(key, keys), opened.high)
        with b.if_then(b.icmp_signed("<", low, high)):
            opened.low = key  # where strips begin
            known = opened.kept()
            opened.score(key, keys, [parts.lowest()] * len(opened.vectors))
            opened.slope(key, keys)
            if self.all_queries:
                # Lanes without a query have no gradient.
                lanes = self.attention.lanes
                present = [
                    Lane(b, lane_mask(b, b.sub(opened.valid, i64(c * lanes)), lanes))
                    for c in opened.vectors
                ]
            else:
                present = []
            opened.turn(key, keys, known, False, self.totals, present)

    def _write(self, batch: Index, head: Index, panel: Index, block: Index) -> None:
        attention, b, parts = self.attention, self.builder, self.parts
        key, keys = self._keys(block)
        first = i64(parts.indices.mul(panel, attention.panel))
        valid = minimum(b, i64(attention.panel), b.sub(i64(attention.queries), first))
        if self.all_keys:
            self._sum_rows()
            key, keys = i64(0), i64(1)
        if self.all_queries:
            self._write_row(batch, head, key, keys)
            return
        wide = attention.padded(attention.block)
        rows = parts.own(self.work.room.rows)
        kernel = PackKernel(parts.dtype, parts.dtype, wide, attention.lanes, "k")
        pack = kernel.function(parts.code.module)
        width = i64(attention.panel)
        present = i64(attention.block)
        b.call(pack, [width, present, self.totals, i64(1), width, rows])
        registers = Registers(b)

        def row(i: Value, _: Sequence[Value]) -> None:
            line = parts.indices.offset((batch, head, b.add(first, i), key), self.sizes)

            def emit_column(column: Value, _: Sequence[Value]) -> None:
                mask = lane_mask(b, b.sub(keys, column), attention.lanes)
                value = parts.vector(rows, parts.indices.mul(i, wide), column)
                position = Lanes(parts.indices.add(line, column), attention.lanes)
                registers.store(
                    parts.narrowed(value),
                    parts.code.results[self.number],
                    position,
                    self.output.dtype,
                    mask,
                )

            loop(b, i64(0), keys, attention.lanes, emit_column)

        loop(b, i64(0), valid, 1, row)

    def _sum_rows(self) -> None:
        """All rows of the totals into the first."""
        parts, attention = self.parts, self.attention
        vectors = range(attention.tile.vectors)

        def add_row(row: Value, held: list[Lane]) -> list[Lane]:
            base = parts.indices.mul(row, attention.panel)
            return [
                total + parts.vector(self.totals, base, c * attention.lanes)
                for c, total in enumerate(held)
            ]

        found = parts.rows(attention.block, add_row, [parts.number(0.0) for _ in vectors])
        for c, total in enumerate(found):
            parts.put(total, self.totals, c * attention.lanes)

    def _write_row(self, batch: Index, head: Index, key: Value, keys: Value) -> None:
        """The sum of each row's lanes."""
        parts, attention, b = self.parts, self.attention, self.builder

        def emit_row(row: Value, _: Sequence[Value]) -> None:
            base = parts.indices.mul(row, attention.panel)
            total = parts.vector(self.totals, base, 0)
            for c in range(1, attention.tile.vectors):
                total = total + parts.vector(self.totals, base, c * attention.lanes)
            position = parts.indices.offset((batch, head, 0, b.add(key, row)), self.sizes)
            target = offset(b, parts.code.results[self.number], attention.result, position)
            every = parts.spread(lane_sum(b, total.value))
            store_first_lane(b, every.value, target, attention.result)

        loop(b, i64(0), keys, 1, emit_row)
