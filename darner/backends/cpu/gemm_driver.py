"""The loops of a contraction's function: groups of panels, blocks of rows, panels, tiles, and the way to C."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .gemm_ir import (
    accumulator_of,
    i64,
    ir,
    lane_mask,
    load,
    loop,
    maximum,
    minimum,
    offset,
    store,
)
from .gemm_pack import pack_kernel
from .gemm_plan import Cut
from .gemm_tile import Tile, tile_kernel
from .gemm_vector import sum_dots, sum_panels, sum_rows

Epilogue = Callable[[Any, Any, Any, Any, Any, Any, Any], Any]
"""``(builder, sums, batch, row, column, mask, extra)`` to the vector to store. ``column`` is that of the first lane;
``mask`` says which lanes exist, or is None when all do; ``extra`` is the function's argument of that name."""

Share = Callable[[Any, Any, Any, int, Callable[[Any, Any], None]], None]
"""``(builder, thread, threads, units, work)``: emits calls of ``work(start, stop)`` over this thread's units."""


def emit_pack_panel(builder: Any, plan: Cut, source: Any, number: Any, target: Any) -> None:
    """Call the function that packs panel ``number`` of the B at ``source``."""
    contraction = plan.contraction
    _, down, across = contraction.b_strides
    contiguous = "columns" if across == 1 else "k" if down == 1 else "neither"
    width = plan.tile.width
    start = offset(builder, source, contraction.dtype, builder.mul(number, i64(width * across)))

    def panel(tile: Tile) -> None:
        valid = width if tile is plan.tile else contraction.n % width
        pack = pack_kernel(
            builder.module, contraction.dtype, plan.panel, tile.width, tile.lanes, contiguous
        )
        sizes = i64(contraction.k), i64(valid)
        builder.call(pack, [*sizes, start, i64(down), i64(across), target])

    either_panel(builder, plan, number, panel)


def either_panel(builder: Any, plan: Cut, number: Any, emit: Callable[[Tile], None]) -> None:
    """Emit what is done with a panel for the tiles that panel ``number`` may have."""
    if plan.full_panels == plan.panels:
        emit(plan.tile)
    elif not plan.full_panels:
        emit(plan.last)
    else:
        whole = builder.icmp_signed("<", number, i64(plan.full_panels))
        with builder.if_else(whole) as (full, partial):
            with full:
                emit(plan.tile)
            with partial:
                emit(plan.last)


class Driver:
    """The loops of one contraction's function around its micro-kernels."""

    def __init__(
        self,
        builder: Any,
        plan: Cut,
        arguments: Sequence[Any],
        epilogue: Epilogue | None,
        packed_b: bool,
    ) -> None:
        self.builder, self.plan, self.epilogue, self.packed_b = builder, plan, epilogue, packed_b
        self.contraction = plan.contraction
        self.accumulator = accumulator_of(self.contraction.dtype)
        self.thread, self.threads, self.a, self.b, self.c, self.extra, scratch = arguments
        byte = ir().IntType(8)
        start = builder.mul(self.thread, i64(plan.scratch_bytes))
        own = builder.gep(scratch, [start], source_etype=byte)
        panels, rows, _ = plan.scratch_parts()
        self.own_panels = own
        self.own_rows = builder.gep(own, [i64(panels)], source_etype=byte)
        self.own_sums = builder.gep(own, [i64(panels + rows)], source_etype=byte)

    def emit(self, share: Share) -> None:
        """Everything: this thread's units, batch by batch."""
        builder, plan = self.builder, self.plan
        each = plan.units // self.contraction.batch

        def work(start: Any, stop: Any) -> None:
            first = builder.sdiv(start, i64(each))
            last = builder.sdiv(builder.add(stop, i64(each - 1)), i64(each))

            def batch(index: Any, _: Any) -> None:
                before = builder.mul(index, i64(each))
                low = maximum(builder, builder.sub(start, before), i64(0))
                high = minimum(builder, builder.sub(stop, before), i64(each))
                self.one_batch(index, low, high)

            loop(builder, first, last, 1, batch)

        share(builder, self.thread, self.threads, plan.units, work)

    def one_batch(self, batch: Any, low: Any, high: Any) -> None:
        """Units ``low`` to ``high`` of one batch."""
        builder, plan, contraction = self.builder, self.plan, self.contraction
        dtype = contraction.dtype
        distances = contraction.a_strides[0], contraction.b_strides[0], contraction.c_strides[0]
        if self.packed_b and distances[1]:
            distances = distances[0], plan.packed_elements, distances[2]
        a, b, c = (
            offset(builder, pointer, dtype, builder.mul(batch, i64(distance)))
            for pointer, distance in zip((self.a, self.b, self.c), distances, strict=True)
        )
        if plan.path == "tiles":
            if plan.by_rows:
                rows = (
                    builder.mul(low, i64(plan.tile.rows)),
                    minimum(builder, builder.mul(high, i64(plan.tile.rows)), i64(contraction.m)),
                )
                self.block(batch, a, b, c, rows, (i64(0), i64(plan.panels)))
            else:
                self.block(batch, a, b, c, (i64(0), i64(contraction.m)), (low, high))
            return
        if plan.path == "panels":
            self.few_rows_packed(batch, a, b, c, low, high)
            return
        sum_columns = sum_rows if plan.path == "rows" else sum_dots

        end = minimum(builder, builder.mul(high, i64(plan.grain)), i64(contraction.n))

        def chunk(first: Any, _: Any) -> None:
            stop = minimum(builder, builder.add(first, i64(plan.chunk)), end)
            sum_columns(builder, plan, a, b, first, stop, self.own_sums, self.own_rows)
            self.finish_columns(batch, c, first, stop)

        loop(builder, builder.mul(low, i64(plan.grain)), end, plan.chunk, chunk)

    def few_rows_packed(self, batch: Any, a: Any, b: Any, c: Any, low: Any, high: Any) -> None:
        """A few rows times packed panels ``low`` to ``high``: several side by side, then one by one."""
        builder, plan = self.builder, self.plan
        width, streams = plan.tile.width, plan.chunk // plan.tile.width

        def some(count: int) -> Callable[[Any, Any], None]:
            def panels(number: Any, _: Any) -> None:
                def sums(tile: Tile) -> None:
                    sum_panels(builder, plan, tile, count, a, b, number, self.own_sums)

                if count > 1:
                    sums(plan.tile)
                else:
                    either_panel(builder, plan, number, sums)
                first = builder.mul(number, i64(width))
                stop = builder.add(first, i64(width * count))
                stop = minimum(builder, stop, i64(self.contraction.n))
                self.finish_columns(batch, c, first, stop)

            return panels

        whole = minimum(builder, high, i64(plan.full_panels))
        count = maximum(builder, builder.sub(whole, low), i64(0))
        turn = builder.add(low, builder.mul(builder.sdiv(count, i64(streams)), i64(streams)))
        if streams > 1:
            loop(builder, low, turn, streams, some(streams))
            low = turn
        loop(builder, low, high, 1, some(1))

    def finish_columns(self, batch: Any, c: Any, first: Any, stop: Any) -> None:
        """Take the sums of a few rows, columns ``first`` to ``stop``, to C."""
        builder, plan = self.builder, self.plan

        def vectors(column: Any, _: Any) -> None:
            mask = lane_mask(builder, builder.sub(stop, column), plan.tile.lanes)
            for row in range(self.contraction.m):
                at = builder.add(i64(row * plan.chunk), builder.sub(column, first))
                place = offset(builder, self.own_sums, self.accumulator, at)
                self.finish(batch, c, i64(row), column, place, mask)

        loop(builder, first, stop, plan.tile.lanes, vectors)

    def block(self, batch: Any, a: Any, b: Any, c: Any, rows: Any, panels: Any) -> None:
        """All of some rows and panels: groups of panels, blocks of rows, panels."""
        builder, plan, contraction = self.builder, self.plan, self.contraction
        size = plan.tile.width * contraction.k

        def group(first: Any, stop: Any) -> None:
            base, skipped = b, i64(0)
            if not self.packed_b:
                base, skipped = self.own_panels, first

                def pack(number: Any, _: Any) -> None:
                    place = builder.mul(builder.sub(number, first), i64(size))
                    target = offset(builder, self.own_panels, plan.panel, place)
                    emit_pack_panel(builder, plan, b, number, target)

                loop(builder, first, stop, 1, pack)

            def some_rows(start: Any, _: Any) -> None:
                end = minimum(builder, builder.add(start, i64(plan.rows)), rows[1])
                if plan.pack_a:
                    self.pack_rows(a, start, end)

                def panel(number: Any, _: Any) -> None:
                    place = builder.mul(builder.sub(number, skipped), i64(size))
                    at = offset(builder, base, plan.panel, place)

                    def tiles(tile: Tile) -> None:
                        self.panel(tile, batch, a, at, c, start, end, number)

                    either_panel(builder, plan, number, tiles)

                loop(builder, first, stop, 1, panel)

            loop(builder, rows[0], rows[1], plan.rows, some_rows)

        if self.packed_b or plan.group >= plan.panels:
            group(*panels)
            return

        def groups(first: Any, _: Any) -> None:
            group(first, minimum(builder, builder.add(first, i64(plan.group)), panels[1]))

        loop(builder, panels[0], panels[1], plan.group, groups)

    def pack_rows(self, a: Any, start: Any, end: Any) -> None:
        """Pack rows ``start`` to ``end`` of A, tile by tile."""
        builder, plan, contraction = self.builder, self.plan, self.contraction
        _, down, across = contraction.a_strides
        contiguous = "columns" if down == 1 else "k" if across == 1 else "neither"
        height = plan.tile.rows
        pack = pack_kernel(
            builder.module,
            contraction.dtype,
            self.accumulator,
            height,
            plan.tile.lanes,
            contiguous,
        )

        def tile(row: Any, _: Any) -> None:
            source = offset(builder, a, contraction.dtype, builder.mul(row, i64(down)))
            place = builder.mul(builder.sub(row, start), i64(contraction.k))
            target = offset(builder, self.own_rows, self.accumulator, place)
            valid = minimum(builder, builder.sub(end, row), i64(height))
            sizes = i64(contraction.k), valid
            builder.call(pack, [*sizes, source, i64(across), i64(down), target])

        loop(builder, start, end, height, tile)

    def panel(
        self,
        tile: Tile,
        batch: Any,
        a: Any,
        b: Any,
        c: Any,
        start: Any,
        end: Any,
        number: Any,
    ) -> None:
        """Rows ``start`` to ``end`` of the columns of one panel, at ``b``."""
        builder, plan, contraction = self.builder, self.plan, self.contraction
        width, height, k = plan.tile.width, plan.tile.rows, contraction.k
        column = builder.mul(number, i64(width))
        valid = width if tile is plan.tile else contraction.n % width
        # Sums go straight into C where they need nothing more.
        straight = (
            self.epilogue is None
            and contraction.c_strides[2] == 1
            and contraction.dtype == self.accumulator
            and valid == tile.width
        )
        one_pass = plan.block >= k
        next_panel = offset(builder, b, plan.panel, tile.width * k)

        def one_pass_over(position: Any, _: Any) -> None:
            length = minimum(builder, builder.sub(i64(k), position), i64(plan.block))
            b_block = offset(builder, b, plan.panel, builder.mul(position, i64(tile.width)))
            later = builder.icmp_signed(">", position, i64(0))

            def one_tile(row: Any, _: Any) -> None:
                if plan.pack_a:
                    form, a_stride = "columns", i64(height)
                    place = builder.mul(builder.sub(row, start), i64(k))
                    skipped = builder.mul(position, i64(height))
                    a_tile = offset(builder, self.own_rows, self.accumulator, place, skipped)
                else:
                    form, a_stride = "rows", i64(contraction.a_strides[1])
                    a_tile = offset(
                        builder, a, self.accumulator, builder.mul(row, a_stride), position
                    )
                if straight:
                    out_stride = i64(contraction.c_strides[1])
                    out = offset(builder, c, self.accumulator, builder.mul(row, out_stride), column)
                    keep = ir().Constant(ir().IntType(1), 1) if contraction.accumulate else later
                else:
                    out_stride, keep = i64(tile.width), later
                    place = i64(0) if one_pass else builder.sub(row, start)
                    place = builder.mul(place, out_stride)
                    out = offset(builder, self.own_sums, self.accumulator, place)
                ahead = builder.gep(
                    next_panel,
                    [builder.mul(builder.sdiv(builder.sub(row, start), i64(height)), i64(k * 16))],
                    source_etype=ir().IntType(8),
                )
                count = minimum(builder, builder.sub(end, row), i64(height))

                def call(rows: int) -> None:
                    exact = Tile(rows, tile.vectors, tile.lanes)
                    kernel = tile_kernel(builder.module, exact, plan.panel, form)
                    builder.call(
                        kernel, [length, a_tile, a_stride, b_block, out, out_stride, keep, ahead]
                    )

                rest = contraction.m % height
                if not rest:
                    call(height)
                elif contraction.m < height:
                    call(rest)
                else:
                    whole = builder.icmp_signed("==", count, i64(height))
                    with builder.if_else(whole) as (full, partial):
                        with full:
                            call(height)
                        with partial:
                            call(rest)
                if not straight:
                    done = builder.icmp_signed("==", builder.add(position, length), i64(k))
                    with builder.if_then(done):
                        self.finish_tile(tile, batch, c, row, count, column, valid, out)

            loop(builder, start, end, height, one_tile)

        if one_pass:
            one_pass_over(i64(0), ())
        else:
            loop(builder, i64(0), i64(k), plan.block, one_pass_over)

    def finish_tile(
        self,
        tile: Tile,
        batch: Any,
        c: Any,
        row: Any,
        count: Any,
        column: Any,
        valid: int,
        sums: Any,
    ) -> None:
        """Take the sums of a tile to C. A real loop: unrolled, the sums would be kept in registers and spilled."""
        builder = self.builder

        def one_row(index: Any, _: Any) -> None:
            for vector in range(tile.vectors):
                done = vector * tile.lanes
                mask = None
                if valid - done < tile.lanes:
                    mask = lane_mask(builder, i64(valid - done), tile.lanes)
                place = offset(
                    builder, sums, self.accumulator, builder.mul(index, i64(tile.width)), done
                )
                at = builder.add(column, i64(done))
                self.finish(batch, c, builder.add(row, index), at, place, mask, valid - done == 1)

        loop(builder, i64(0), count, 1, one_row)

    def finish(
        self,
        batch: Any,
        c: Any,
        row: Any,
        column: Any,
        place: Any,
        mask: Any,
        alone: bool = False,
    ) -> None:
        """Take one vector of sums to C, through the epilogue; ``alone``: only its first lane exists."""
        builder, contraction, lanes = self.builder, self.contraction, self.plan.tile.lanes
        values = load(builder, place, self.accumulator, lanes)
        _, down, across = contraction.c_strides
        target = offset(
            builder,
            c,
            contraction.dtype,
            builder.mul(row, i64(down)),
            builder.mul(column, i64(across)),
        )
        if contraction.accumulate:
            before = load(builder, target, contraction.dtype, lanes, mask, across)
            values = builder.fadd(before, values)
        if self.epilogue is not None:
            values = self.epilogue(builder, values, batch, row, column, mask, self.extra)
        store(builder, values, target, contraction.dtype, mask, across, alone)
