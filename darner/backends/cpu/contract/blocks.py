"""Products whose A does not fit the cache: blocks of rows and of k that do, and panels of B that go past each of them.

B is packed while the first rows use it, one piece during the piece before, and stays packed for the others. Threads have panels of their
own; one that two of them share is cut in every block of rows, so that no block is packed for it alone. This is for batches and for few
panels; other products of many rows have their panels claimed (``gemm_shared``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ....codegen.ir.emit import i64, ir, loop, minimum, offset
from .panel import Either, Following, Meanwhile, Piece, Products, Slices, Terms, emit_pack_panel


class Panels(Products, Protocol):
    """What is asked of who computes with panels here."""

    accumulator: str
    own_panels: Any
    own_sums: Any
    packed_b: bool

    def pack_rows(self, a: Any, start: Any, end: Any, span: tuple[Any, Any]) -> None:
        """Pack some terms of rows ``start`` to ``end`` of A."""

    def piece(self, panel: Any, number: Any, position: Any) -> Any:
        """Where terms from ``position`` on of a panel lie that was packed whole."""

    def panel(
        self,
        batch: Any,
        a: Any,
        b: Any,
        rows: Any,
        number: Any,
        later: Meanwhile | None,
        terms: Terms,
        origin: Any,
    ) -> None:
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

    rows: tuple[Any, Any]
    panels: tuple[Any, Any]
    skipped: Any
    over: Any


def emit_blocked(driver: Panels, batch: Any, a: Any, b: Any, low: Any, high: Any) -> None:
    """Units ``low`` to ``high`` of one batch."""
    builder, plan = driver.builder, driver.plan
    with builder.if_then(builder.icmp_signed("<", low, high)):
        _emit_share(driver, batch, a, b, _share(builder, plan, low, high))


def _share(builder: Any, plan: Any, low: Any, high: Any) -> Share:
    m, tiles = i64(plan.contraction.m), i64(plan.tiles)
    if plan.by_rows:
        height = i64(plan.tile.rows)
        rows = builder.mul(low, height), minimum(builder, builder.mul(high, height), m)
        return Share(rows, (i64(0), i64(plan.panels)), i64(0), i64(0))
    over = builder.srem(high, tiles)
    begun = builder.zext(builder.icmp_signed(">", over, i64(0)), high.type)
    stop = builder.add(builder.sdiv(high, tiles), begun)
    return Share((i64(0), m), (builder.sdiv(low, tiles), stop), builder.srem(low, tiles), over)


def _emit_share(driver: Panels, batch: Any, a: Any, b: Any, share: Share) -> None:
    """Groups of panels, blocks of rows, blocks of k, panels."""
    builder, plan = driver.builder, driver.plan
    k = plan.contraction.k

    def group(first: Any, _: Any) -> None:
        stop = minimum(builder, builder.add(first, i64(plan.group)), share.panels[1])
        if not driver.packed_b:
            span = i64(0), i64(0), i64(plan.block)
            emit_pack_panel(builder, plan, b, first, driver.own_panels, span)

        def some_rows(start: Any, _: Any) -> None:
            end = minimum(builder, builder.add(start, i64(plan.rows)), share.rows[1])

            def some_terms(position: Any, _: Any) -> None:
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
    b: Any
    share: Share
    panels: tuple[Any, Any]
    rows: tuple[Any, Any]
    terms: tuple[Any, Any]

    def panel(self, batch: Any, a: Any, number: Any) -> None:
        """What one panel adds, while the next is packed or asked for."""
        driver = self.driver
        builder, plan = driver.builder, driver.plan
        position, length = self.terms
        rows = self.rows_of(number)
        size = plan.rows * plan.tile.width if plan.passes > 1 else 0
        place = builder.mul(builder.sub(number, self.panels[0]), i64(size))
        sums = offset(builder, driver.own_sums, driver.accumulator, place)
        terms = Terms(position, length, length, i64(0), sums)
        later = self.later(number, rows)
        driver.panel(
            batch, a, self.place(number, position), rows, number, later, terms, self.rows[0]
        )

    def rows_of(self, number: Any) -> tuple[Any, Any]:
        """The rows of this block that are this thread's in a panel."""
        builder, plan, share = self.driver.builder, self.driver.plan, self.share
        start, end = self.rows
        if plan.by_rows:
            return start, end
        height = i64(plan.tile.rows)
        above = builder.add(builder.sub(end, start), i64(plan.tile.rows - 1))
        tiles = builder.sdiv(above, height)

        def row(tile: Any) -> Any:
            """Of the block, as much as ``tile`` is of all tiles."""
            part = builder.sdiv(builder.mul(tiles, tile), i64(plan.tiles))
            return builder.add(start, builder.mul(part, height))

        is_first = builder.icmp_signed("==", number, share.panels[0])
        is_last = builder.icmp_signed("==", builder.add(number, i64(1)), share.panels[1])
        is_last = builder.and_(is_last, builder.icmp_signed(">", share.over, i64(0)))
        top = builder.select(is_first, row(share.skipped), start)
        return top, builder.select(is_last, row(share.over), end)

    def place(self, number: Any, position: Any) -> Any:
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

    def later(self, number: Any, rows: tuple[Any, Any]) -> Meanwhile:
        """What is done for the piece after that of a panel."""
        driver = self.driver
        builder, plan = driver.builder, driver.plan
        piece = self.piece_after(number)
        place = self.place(piece.number, piece.position)
        following = Following(driver, place)
        if driver.packed_b:
            return following
        packing = builder.icmp_signed("==", self.rows[0], self.share.rows[0])
        idle = builder.icmp_signed(">=", *rows)
        missing = builder.and_(builder.and_(packing, idle), piece.exists)
        with builder.if_then(missing):
            # No tile of this thread is there to pack it in between.
            span = piece.position, i64(0), piece.length
            emit_pack_panel(builder, plan, self.b, piece.number, place, span)
        beyond = self.piece_after(builder.add(number, i64(1)))
        slices = Slices(driver, self.b, rows, piece, beyond, place)
        return Either(builder, packing, slices, following)

    def piece_after(self, number: Any) -> Piece:
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
