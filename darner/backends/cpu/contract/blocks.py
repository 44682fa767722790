"""Products whose A does not fit the cache. A is cut into blocks of rows and of k that do fit, and panels of B stream past each block.

B is packed while the first block uses it, one piece ahead, and stays packed for the other blocks. Each thread has panels of its
own; a panel that two threads share is split in every block of rows, so that no block is packed for it alone. This form serves batches and products of few
panels; in other products of many rows, threads claim panels (``shared``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ....codegen.ir.emit import ir, loop, minimum, offset
from ....codegen.ir.index import i64
from ....codegen.ir.types import Builder, Pointer, Value
from .panel import (
    Either,
    Following,
    Meanwhile,
    PanelWork,
    Piece,
    Products,
    Slices,
    Terms,
    emit_pack_panel,
)
from .plan import Cut


class Panels(Products, Protocol):
    """What is asked of who computes with panels here."""

    accumulator: str
    own_panels: Pointer
    own_sums: Pointer
    packed_b: bool

    def pack_rows(self, a: Pointer, start: Value, end: Value, span: tuple[Value, Value]) -> None:
        """Pack some terms of rows ``start`` to ``end`` of A."""

    def piece(self, panel: Pointer, number: Value, position: Value) -> Pointer:
        """Where terms from ``position`` on of a panel lie that was packed whole."""

    def panel(self, work: PanelWork) -> None:
        """Some terms of some rows of one panel."""


@dataclass(frozen=True)
class Share:
    """What a thread has of one product.

    Attributes:
        rows: the first, and the one after the last.
        panels: likewise.
        skipped: of the first panel, tiles that are another thread's.
        over: of the last panel, tiles that are this thread's; 0 where all are.
    """

    rows: tuple[Value, Value]
    panels: tuple[Value, Value]
    skipped: Value
    over: Value


def emit_blocked(
    driver: Panels, batch: Value, a: Pointer, b: Pointer, low: Value, high: Value
) -> None:
    """Units ``low`` to ``high`` of one batch."""
    builder, plan = driver.builder, driver.plan
    with builder.if_then(builder.icmp_signed("<", low, high)):
        _emit_share(driver, batch, a, b, _share(builder, plan, low, high))


def _share(builder: Builder, plan: Cut, low: Value, high: Value) -> Share:
    m, tiles = i64(plan.contraction.m), i64(plan.tiles)
    if plan.by_rows:
        height = i64(plan.tile.rows)
        rows = builder.mul(low, height), minimum(builder, builder.mul(high, height), m)
        return Share(rows, (i64(0), i64(plan.panels)), i64(0), i64(0))
    over = builder.srem(high, tiles)
    begun = builder.zext(builder.icmp_signed(">", over, i64(0)), high.type)
    stop = builder.add(builder.sdiv(high, tiles), begun)
    return Share((i64(0), m), (builder.sdiv(low, tiles), stop), builder.srem(low, tiles), over)


def _emit_share(driver: Panels, batch: Value, a: Pointer, b: Pointer, share: Share) -> None:
    """Groups of panels, blocks of rows, blocks of k, panels."""
    builder, plan = driver.builder, driver.plan
    k = plan.contraction.k

    def group(first: Value, _: Sequence[Value]) -> None:
        stop = minimum(builder, builder.add(first, i64(plan.group)), share.panels[1])
        if not driver.packed_b:
            span = i64(0), i64(0), i64(plan.block)
            emit_pack_panel(builder, plan, b, first, driver.own_panels, span)

        def some_rows(start: Value, _: Sequence[Value]) -> None:
            end = minimum(builder, builder.add(start, i64(plan.rows)), share.rows[1])

            def some_terms(position: Value, _: Sequence[Value]) -> None:
                length = minimum(builder, builder.sub(i64(k), position), i64(plan.block))
                if plan.pack_a:
                    driver.pack_rows(a, start, end, (position, length))
                block = _Block(driver, b, share, (first, stop), (start, end), (position, length))
                loop(builder, first, stop, 1, lambda number, _: block.panel(batch, a, number))

            loop(builder, i64(0), i64(k), plan.block, some_terms)

        loop(builder, *share.rows, plan.rows, some_rows)

    loop(builder, *share.panels, plan.group, group)


@dataclass(frozen=True)
class _Block:
    """A block of rows and k that is in the cache, and the group of panels that go past it."""

    driver: Panels
    b: Pointer
    share: Share
    panels: tuple[Value, Value]
    rows: tuple[Value, Value]
    terms: tuple[Value, Value]

    def panel(self, batch: Value, a: Pointer, number: Value) -> None:
        """What one panel adds, while the next is packed or asked for."""
        driver = self.driver
        builder, plan = driver.builder, driver.plan
        position, length = self.terms
        rows = self.rows_of(number)
        size = plan.rows * plan.tile.width if plan.passes > 1 else 0
        within = builder.mul(builder.sub(number, self.panels[0]), i64(size))
        sums = offset(builder, driver.own_sums, driver.accumulator, within)
        terms = Terms(position, length, length, i64(0), sums)
        later = self.later(number, rows)
        panel = self.piece_address(number, position)
        driver.panel(PanelWork(batch, a, panel, rows, number, terms, self.rows[0], later))

    def rows_of(self, number: Value) -> tuple[Value, Value]:
        """The rows of this block that are this thread's in a panel."""
        builder, plan, share = self.driver.builder, self.driver.plan, self.share
        start, end = self.rows
        if plan.by_rows:
            return start, end
        height = i64(plan.tile.rows)
        above = builder.add(builder.sub(end, start), i64(plan.tile.rows - 1))
        tiles = builder.sdiv(above, height)

        def row(tile: Value) -> Value:
            """Of the block, as much as ``tile`` is of all tiles."""
            part = builder.sdiv(builder.mul(tiles, tile), i64(plan.tiles))
            return builder.add(start, builder.mul(part, height))

        is_first = builder.icmp_signed("==", number, share.panels[0])
        is_last = builder.icmp_signed("==", builder.add(number, i64(1)), share.panels[1])
        is_last = builder.and_(is_last, builder.icmp_signed(">", share.over, i64(0)))
        top = builder.select(is_first, row(share.skipped), start)
        return top, builder.select(is_last, row(share.over), end)

    def piece_address(self, number: Value, position: Value) -> Pointer:
        """Where a piece lies packed."""
        driver = self.driver
        builder, plan = driver.builder, driver.plan
        size = i64(plan.tile.width * plan.contraction.k)
        if driver.packed_b:
            panel = offset(builder, self.b, plan.panel, builder.mul(number, size))
            return driver.piece(panel, number, position)
        before = builder.mul(builder.sub(number, self.panels[0]), size)
        skipped = builder.mul(position, i64(plan.tile.width))
        return offset(builder, driver.own_panels, plan.panel, before, skipped)

    def later(self, number: Value, rows: tuple[Value, Value]) -> Meanwhile:
        """What is done for the piece after that of a panel."""
        driver = self.driver
        builder, plan = driver.builder, driver.plan
        piece = self.piece_after(number)
        address = self.piece_address(piece.number, piece.position)
        following = Following(driver, address)
        if driver.packed_b:
            return following
        packing = builder.icmp_signed("==", self.rows[0], self.share.rows[0])
        idle = builder.icmp_signed(">=", *rows)
        missing = builder.and_(builder.and_(packing, idle), piece.exists)
        with builder.if_then(missing):
            # No tile of this thread is there to pack it in between.
            span = piece.position, i64(0), piece.length
            emit_pack_panel(builder, plan, self.b, piece.number, address, span)
        beyond = self.piece_after(builder.add(number, i64(1)))
        slices = Slices(driver, self.b, rows, piece, beyond, address)
        return Either(builder, packing, slices, following)

    def piece_after(self, number: Value) -> Piece:
        """The same terms of the next panel, or the next terms of the first."""
        builder, plan = self.driver.builder, self.driver.plan
        k = i64(plan.contraction.k)
        position, length = self.terms
        following = builder.add(number, i64(1))
        turns = builder.icmp_signed(">=", following, self.panels[1])
        further = builder.add(position, length)
        ends = builder.and_(turns, builder.icmp_signed("==", further, k))
        position = builder.select(turns, further, position)
        position = builder.select(ends, i64(0), position)
        length = minimum(builder, builder.sub(k, position), i64(plan.block))
        number = builder.select(turns, self.panels[0], following)
        return Piece(number, position, length, builder.xor(ends, ir().Constant(ends.type, 1)))
