"""Tiles of C that stay in registers while rows of B are decoded beside them: each decoded vector is multiplied with all rows of a tile at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ....codegen.ir.emit import (
    broadcast,
    fused_multiply_add,
    lane_mask,
    load,
    loop,
    minimum,
    offset,
    store,
    zero,
)
from ....codegen.ir.index import Index, IndexMath, Lanes, i64
from ....codegen.ir.types import Value
from .columns import Columns
from .decoded_elements import DecodedElements, of_block
from .plan import Cut


@dataclass(frozen=True)
class DecodedTiles:
    """Sums of some rows, tile by tile, where the columns of B lie side by side."""

    elements: DecodedElements
    plan: Cut
    columns: Columns

    def emit(self) -> None:
        """All terms, block by block; the columns of a block, tile by tile."""
        builder, block, k = self.elements.builder, self.plan.block, self.plan.contraction.k
        self._block(i64(0), False)
        if block < k:
            loop(builder, i64(block), i64(k), block, lambda term, _: self._block(term, True))

    def _block(self, term: Value, going_on: bool) -> None:
        """Tiles of the usual width, then vector by vector."""
        builder, plan, columns = self.elements.builder, self.plan, self.columns
        tile, lanes = plan.tile, plan.tile.lanes
        length = builder.sub(columns.stop, columns.first)
        wide = builder.mul(builder.udiv(length, i64(tile.width)), i64(tile.width))
        whole = builder.and_(length, i64(-lanes))

        def rows(at: Value, vectors: int, mask: Value | None = None) -> None:
            self._rows(_Columns(at, vectors, mask), term, going_on)

        loop(builder, i64(0), wide, tile.width, lambda at, _: rows(at, tile.vectors))
        if tile.vectors > 1:
            loop(builder, wide, whole, lanes, lambda at, _: rows(at, 1))
        if plan.contraction.n % lanes:
            with builder.if_then(builder.icmp_signed("<", whole, length)):
                rows(whole, 1, lane_mask(builder, builder.sub(length, whole), lanes))

    def _rows(self, columns: _Columns, term: Value, going_on: bool) -> None:
        """What a block adds to the sums of all rows and some columns; the first rows decode them, and keep them for the others."""
        builder, height, m = self.elements.builder, self.plan.tile.rows, self.plan.contraction.m
        full = m // height * height

        def tile(row: Index, count: int) -> None:
            _Tile(self, columns, row, count, term, going_on).emit()

        tile(0, height)
        if full > height:
            loop(builder, i64(height), i64(full), height, lambda row, _: tile(row, height))
        if full < m:
            tile(full, m - full)


class _Columns(NamedTuple):
    """Vectors of columns.

    Attributes:
        at: the first, of those that are summed.
        vectors: how many vectors.
        mask: the columns that there are, where some are missing.
    """

    at: Value
    vectors: int
    mask: Value | None


@dataclass(frozen=True)
class _Tile:
    """One tile.

    Attributes:
        columns: its columns.
        row: its first row. What comes after row 0 is read from the panel that was kept there.
        height: its rows.
        first: the first of its terms.
        going_on: whether the terms before are in the sums.
    """

    of: DecodedTiles
    columns: _Columns
    row: Index
    height: int
    first: Value
    going_on: bool

    def emit(self) -> None:
        """Add up the terms, those of one block together, and keep the sums."""
        elements, plan, columns = self.of.elements, self.of.plan, self.of.columns
        builder, lanes, k = elements.builder, plan.tile.lanes, plan.contraction.k
        row = i64(IndexMath(builder).mul(self.row, plan.chunk))
        corner = offset(builder, columns.sums, "f32", row, self.columns.at)
        places = [
            offset(builder, corner, "f32", row * plan.chunk + vector * lanes)
            for row in range(self.height)
            for vector in range(self.columns.vectors)
        ]
        totals: Sequence[Value] = [
            load(builder, place, "f32", lanes) if self.going_on else zero("f32", lanes)
            for place in places
        ]
        together = of_block(elements.operand.scheme.block)
        stop = minimum(builder, builder.add(self.first, i64(plan.block)), i64(k))
        # Blocks of terms begin at multiples of whole vectors, and so of these.
        whole = builder.sub(stop, builder.urem(builder.sub(stop, self.first), i64(together)))
        totals = loop(builder, self.first, whole, together, self._adder(together), totals)
        if k % together or plan.block % together:
            totals = loop(builder, whole, stop, 1, self._adder(1), totals)
        for total, place in zip(totals, places, strict=True):
            store(builder, total, place, "f32")

    def _adder(self, count: int) -> Callable[[Value, Sequence[Value]], list[Value]]:
        """What adds so many terms of one block to the sums."""
        lanes, builder = self.of.plan.tile.lanes, self.of.elements.builder

        def add(term: Value, totals: Sequence[Value]) -> list[Value]:
            found = list(totals)
            for step, values in enumerate(self._terms(term, count)):
                for row in range(self.height):
                    factor = self._factor(row, term, step)
                    for vector, value in enumerate(values):
                        to = row * self.columns.vectors + vector
                        found[to] = fused_multiply_add(builder, factor, value, found[to], lanes)
            return found

        return add

    def _terms(self, term: Value, count: int) -> Iterator[list[Value]]:
        """The elements of the columns in so many rows of B, one row after the other."""
        elements, plan, columns = self.of.elements, self.of.plan, self.of.columns
        builder, lanes = elements.builder, plan.tile.lanes
        width = self.columns.vectors * lanes
        within = builder.sub(term, self.first)
        line = offset(builder, columns.panel, "f32", builder.mul(within, i64(width)))
        kept = [
            [
                offset(builder, line, "f32", step * width + vector * lanes)
                for vector in range(self.columns.vectors)
            ]
            for step in range(count)
        ]
        if self.row != 0:
            for places in kept:
                yield [load(builder, place, "f32", lanes) for place in places]
            return
        ahead = elements.first(columns.b)
        own = ahead._replace(term=builder.add(i64(ahead.term), term))
        begin = builder.add(builder.add(i64(ahead.column), columns.first), self.columns.at)
        decoded = []
        for vector in range(self.columns.vectors):
            column = Lanes(builder.add(begin, i64(vector * lanes)), lanes, 1, lanes)
            decoded.append(elements.of_rows(own, column, count, self.columns.mask))
        for step, places in enumerate(kept):
            # What the next columns are decoded from: rows that lie apart are not foreseen.
            here = own._replace(term=builder.add(i64(own.term), i64(step)), column=begin)
            elements.ask(here, 2 * width - 1)
            values = [next(rows) for rows in decoded]
            if plan.keeps_panel:
                for value, place in zip(values, places, strict=True):
                    store(builder, value, place, "f32")
            yield values

    def _factor(self, row: int, term: Value, step: int) -> Value:
        """An element of A in all lanes: of a row of the tile, so many terms after another."""
        builder, columns, math = (
            self.of.elements.builder,
            self.of.columns,
            IndexMath(self.of.elements.builder),
        )
        _, down, across = self.of.plan.contraction.a_strides
        at = math.add(math.mul(self.row, down), math.mul(term, across))
        address = offset(builder, columns.a, "f32", i64(at), step * across + row * down)
        return broadcast(builder, load(builder, address, "f32", 1), self.of.plan.tile.lanes)
