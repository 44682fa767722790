"""The tiles of one panel: what the micro-kernel is called with for each, and how its sums get to C."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ....codegen.ir.emit import ir, lane_mask, loop, minimum, offset
from ....codegen.ir.index import i64
from ....codegen.ir.types import STORAGE_BYTES, Pointer, Value
from .panel import PanelWork, either_panel
from .prefetch import STREAMS
from .tile import MicroKernel, Tile

if TYPE_CHECKING:
    from .driver import Driver


class Sums(NamedTuple):
    """Where the sums of a tile go.

    Attributes:
        out: the address of the first.
        stride: elements from one row of them to the next.
        keep: whether they are added to what stands there.
    """

    out: Pointer
    stride: Value
    keep: Value


class PanelTiles:
    """A loop over the tiles of some rows of one panel.

    Args:
        driver: whose contraction it is.
        work: what is computed.
    """

    def __init__(self, driver: Driver, work: PanelWork) -> None:
        self.driver, self.work = driver, work
        self.builder, self.plan, self.contraction = driver.builder, driver.plan, driver.contraction
        builder, plan, n = self.builder, self.plan, self.contraction.n
        self.column = builder.mul(work.number, i64(plan.tile.width))
        self.width = driver.width_of(work.number)
        self.valid = driver.of_panel(work.number, plan.tile.width, n % plan.tile.width)
        # Sums go straight into C in all panels, in none, or in all but the last.
        self.straight = driver.target.straight
        self.mixed = self.straight is not None and n % plan.tile.lanes > 0
        if self.mixed and not plan.full_panels:
            self.straight, self.mixed = None, False
        self.is_straight = builder.icmp_signed("<", work.number, i64(plan.full_panels))
        self.emit_pass = plan.block >= self.contraction.k
        self.again = builder.icmp_signed(">", work.terms.position, i64(0))

    def emit(self) -> None:
        """Write the loop."""
        start, end = self.work.rows
        loop(self.builder, start, end, self.plan.tile.rows, lambda row, _: self._emit_tile(row))

    def _emit_tile(self, row: Value) -> None:
        """One tile, from a row on."""
        builder, work = self.builder, self.work
        start, end = work.rows
        a, a_stride = self._a_of(row)
        sums = self._sums_of(row)
        count = minimum(builder, builder.sub(end, row), i64(self.plan.tile.rows))
        if work.meanwhile is not None:
            work.meanwhile.before_tile(row, start, work.b)
        self._prefetch_target(row, sums)
        given = [work.terms.length, a, a_stride, work.b, *sums]
        either_panel(
            builder, self.plan, work.number, lambda tile: self._multiply(tile, count, given)
        )
        if self.straight is None or self.mixed:
            self._finish_if_last(row, count, sums.out)

    def _a_of(self, row: Value) -> tuple[Pointer, Value]:
        """Where a tile's rows of A lie, and the distance of two rows or two terms of them."""
        builder, driver, terms = self.builder, self.driver, self.work.terms
        if self.plan.pack_a:
            before = builder.mul(builder.sub(row, self.work.first_packed), terms.distance)
            a = offset(builder, driver.own_rows, driver.accumulator, before, terms.skipped)
            return a, i64(self.plan.tile.rows)
        _, down, across = self.contraction.a_strides
        before = builder.mul(row, i64(down))
        skipped = builder.mul(terms.position, i64(across))
        a = offset(builder, self.work.a, driver.accumulator, before, skipped)
        return a, i64(down if across == 1 else across)

    def _sums_of(self, row: Value) -> Sums:
        """Where a tile's sums go: to memory of the thread's own, or straight into C."""
        builder, driver, work = self.builder, self.driver, self.work
        kept_row = i64(0) if self.emit_pass else builder.sub(row, work.first_packed)
        out = offset(
            builder, work.terms.sums, driver.accumulator, builder.mul(kept_row, self.width)
        )
        own = Sums(out, self.width, self.again)
        if self.straight is None:
            return own
        down = i64(self.contraction.c_strides[1])
        c = offset(
            builder,
            self.straight(work.batch),
            driver.accumulator,
            builder.mul(row, down),
            self.column,
        )
        always = ir().Constant(ir().IntType(1), 1)
        into_c = Sums(c, down, always if self.contraction.accumulate else self.again)
        if not self.mixed:
            return into_c
        pairs = zip(into_c, own, strict=True)
        return Sums(*(builder.select(self.is_straight, c, other) for c, other in pairs))

    def _prefetch_target(self, row: Value, sums: Sums) -> None:
        """Ask for what is read or written when the tile is done."""
        builder, driver, target = self.builder, self.driver, self.driver.target
        if driver.streamed:
            driver.ask_for_reads(self.work.batch, row, self.column)
        elif self.straight is not None or not self.emit_pass or target.written is None:
            size = STORAGE_BYTES[driver.accumulator]
            driver.asks.writes(builder, sums.out, builder.mul(sums.stride, i64(size)))
        else:
            size = self.contraction.c_strides[1] * target.written_bytes
            written = target.written(self.work.batch, row, self.column)
            driver.asks.writes(builder, written, i64(size))

    def _multiply(self, tile: Tile, count: Value, given: list[Value]) -> None:
        """Call the micro-kernel for all rows of a tile, or for as many as are left."""
        builder, height, m = self.builder, self.plan.tile.rows, self.contraction.m
        rest = m % height
        if not rest or m < height:
            self._call(Tile(rest or height, tile.vectors, tile.lanes), tile, given)
            return
        whole = builder.icmp_signed("==", count, i64(height))
        with builder.if_else(whole) as (full, partial):
            with full:
                self._call(Tile(height, tile.vectors, tile.lanes), tile, given)
            with partial:
                self._call(Tile(rest, tile.vectors, tile.lanes), tile, given)

    def _call(self, exact: Tile, tile: Tile, given: list[Value]) -> None:
        """Call a micro-kernel: ``exact`` has as many rows as there are, ``tile`` is that of the panel."""
        builder, plan, driver = self.builder, self.plan, self.driver
        step = plan.tile.rows if plan.pack_a else 0
        if not plan.direct:
            asking = STREAMS if driver.streamed else 1
            kernel = MicroKernel(
                exact, plan.panel, plan.form, asking=asking, pace=plan.pace, distance=step
            )
            builder.call(kernel.function(builder.module), [*given, driver.asks.place])
            return
        lanes = self.contraction.n % tile.lanes
        b_form = "rows.masked" if lanes and tile is not plan.tile else "rows"
        kernel = MicroKernel(exact, plan.panel, plan.form, b_form, pace=plan.pace, distance=step)
        b_stride = i64(self.contraction.b_strides[1])
        more = [self.work.b, b_stride, i64(lanes)]
        builder.call(kernel.function(builder.module), [*given, *more])

    def _finish_if_last(self, row: Value, count: Value, out: Pointer) -> None:
        """Take a tile's sums to C once all terms are in them."""
        builder, terms = self.builder, self.work.terms
        after = builder.add(terms.position, terms.length)
        done = builder.icmp_signed("==", after, i64(self.contraction.k))
        if self.mixed:
            done = builder.and_(done, builder.not_(self.is_straight))
        with builder.if_then(done):
            self._finish(row, count, out)

    def _finish(self, row: Value, count: Value, sums: Pointer) -> None:
        """Take the sums of a tile to C. Real loops: unrolled, the sums would be kept in registers and spilled."""
        builder, lanes, driver = self.builder, self.plan.tile.lanes, self.driver
        rest = self.contraction.n % lanes

        def emit_row(index: Value, _: object) -> None:
            def emit_vector(done: Value, _: object) -> None:
                mask = lane_mask(builder, builder.sub(self.valid, done), lanes) if rest else None
                first = builder.mul(index, self.width)
                vector = offset(builder, sums, driver.accumulator, first, done)
                column = builder.add(self.column, done)
                driver.finish(self.work.batch, builder.add(row, index), column, vector, mask)

            loop(builder, i64(0), self.valid, lanes, emit_vector)

        loop(builder, i64(0), count, 1, emit_row)
