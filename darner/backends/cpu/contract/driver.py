"""The loops of a contraction's function: groups of panels, blocks of rows, panels, tiles, and the way to C."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ....codegen.ir.emit import (
    accumulator_of,
    i64,
    ir,
    lane_mask,
    load,
    loop,
    maximum,
    minimum,
    offset,
)
from ....codegen.ir.types import STORAGE_BYTES
from .blocks import emit_blocked
from .dots import sum_dots
from .pack import pack_kernel
from .panel import (
    Following,
    Meanwhile,
    Piece,
    Slices,
    Terms,
    each_run,
    either_panel,
    emit_pack_panel,
)
from .plan import Cut
from .prefetch import STREAMS, Asks, Rows
from .strip import emit_strip
from .tile import Tile, tile_kernel
from .vector import sum_rows

TERMS_PACKED = 32
"""Of k, how many are packed for all tiles of A before the next, where the rows of a k are contiguous."""

Share = Callable[[Any, Any, Any, int, Callable[[Any, Any], None]], None]
"""``(builder, thread, threads, units, work)``: emits calls of ``work(start, stop)`` over this thread's units."""

Write = Callable[[Any, Any, Any, Any, Any], None]
"""``(sums, batch, row, column, mask)``: takes a vector of sums to where it goes, each vector once."""

Offsets = Callable[[Any], tuple[Any, Any]]
"""Where the A and the B of a batch begin, in elements."""


@dataclass(frozen=True)
class Target:
    """Where the sums of a contraction go.

    Attributes:
        write: takes a vector of them there.
        straight: the address of a batch of C where nothing needs to be done to them; None where something does. Rows
            and columns lie as the contraction's ``c_strides`` say.
        reads: the addresses, given a batch, a row and a column, of what ``write`` will read there: the largest elements first.
        read_bytes: of one element of the first of them.
        written: the address, given a batch, a row and a column, of what ``write`` writes there.
        written_bytes: of one element of that.
    """

    write: Write
    straight: Callable[[Any], Any] | None = None
    reads: Callable[[Any, Any, Any], list[Any]] | None = None
    read_bytes: int = 0
    written: Callable[[Any, Any, Any], Any] | None = None
    written_bytes: int = 0


class Driver:
    """The loops of one contraction's function around its micro-kernels.

    Args:
        builder: where the code goes.
        plan: how the contraction is cut.
        a: the address of A's first element.
        b: that of B's, or of its packed panels.
        own: ``plan.scratch_bytes`` of memory for this thread alone.
        target: where the sums go.
        offsets: where batches lie; the contraction's strides say it when left out.
        packed_b: whether B was packed before.
    """

    def __init__(
        self,
        builder: Any,
        plan: Cut,
        a: Any,
        b: Any,
        own: Any,
        target: Target,
        offsets: Offsets | None = None,
        packed_b: bool = False,
    ) -> None:
        self.builder, self.plan, self.target, self.packed_b = builder, plan, target, packed_b
        self.contraction = plan.contraction
        self.accumulator = accumulator_of(self.contraction.dtype)
        self.a, self.b = a, b
        self.offsets = offsets or self._by_strides
        self.asks = Asks(builder)
        self.streamed = target.reads is not None and plan.streams > 0 and plan.passes == 1
        byte = ir().IntType(8)
        panels, rows, _ = plan.scratch_parts()
        self.own_panels = own
        self.own_rows = builder.gep(own, [i64(panels)], source_etype=byte)
        self.own_sums = builder.gep(own, [i64(panels + rows)], source_etype=byte)

    def _by_strides(self, batch: Any) -> tuple[Any, Any]:
        a, b = self.contraction.a_strides[0], self.contraction.b_strides[0]
        if self.packed_b and b:
            b = self.plan.packed_elements
        return self.builder.mul(batch, i64(a)), self.builder.mul(batch, i64(b))

    def emit(self, start: Any, stop: Any) -> None:
        """Units ``start`` to ``stop`` of all, batch by batch."""
        builder, plan = self.builder, self.plan
        each = plan.units // self.contraction.batch
        first = builder.sdiv(start, i64(each))
        last = builder.sdiv(builder.add(stop, i64(each - 1)), i64(each))

        def batch(index: Any, _: Any) -> None:
            before = builder.mul(index, i64(each))
            low = maximum(builder, builder.sub(start, before), i64(0))
            high = minimum(builder, builder.sub(stop, before), i64(each))
            self.one_batch(index, low, high)

        loop(builder, first, last, 1, batch)

    def one_batch(self, batch: Any, low: Any, high: Any) -> None:
        """Units ``low`` to ``high`` of one batch."""
        builder, plan, contraction = self.builder, self.plan, self.contraction
        a_offset, b_offset = self.offsets(batch)
        a = offset(builder, self.a, contraction.dtype, a_offset)
        b = offset(builder, self.b, contraction.dtype, b_offset)
        if plan.path == "tiles":
            if plan.blocked:
                emit_blocked(self, batch, a, b, low, high)
            elif plan.by_rows:
                rows = self.rows_of(low, high)
                self.block(batch, a, b, rows, (i64(0), i64(plan.panels)))
            else:
                self.segments(batch, a, b, low, high)
            return
        sum_columns = sum_rows if plan.path == "rows" else sum_dots

        end = minimum(builder, builder.mul(high, i64(plan.grain)), i64(contraction.n))

        def chunk(first: Any, _: Any) -> None:
            stop = minimum(builder, builder.add(first, i64(plan.chunk)), end)
            sum_columns(builder, plan, a, b, first, stop, self.own_sums, self.own_rows)
            self.finish_columns(batch, first, stop)

        loop(builder, builder.mul(low, i64(plan.grain)), end, plan.chunk, chunk)

    def rows_of(self, low: Any, high: Any) -> tuple[Any, Any]:
        """The rows of tiles ``low`` to ``high``."""
        builder, height = self.builder, i64(self.plan.tile.rows)
        end = minimum(builder, builder.mul(high, height), i64(self.contraction.m))
        return builder.mul(low, height), end

    def segments(self, batch: Any, a: Any, b: Any, low: Any, high: Any) -> None:
        """Units that are tiles, panel after panel: the rest of a panel, whole panels, the beginning of one."""
        builder, tiles = self.builder, i64(self.plan.tiles)
        if self.plan.tiles == 1:
            self.block(batch, a, b, (i64(0), i64(self.contraction.m)), (low, high))
            return
        first, skipped = builder.sdiv(low, tiles), builder.srem(low, tiles)
        last, over = builder.sdiv(high, tiles), builder.srem(high, tiles)
        begun = builder.icmp_signed(">", skipped, i64(0))
        within = builder.and_(begun, builder.icmp_signed("==", first, last))
        following = builder.add(first, builder.zext(begun, i64(0).type))
        ends = builder.and_(builder.icmp_signed(">", over, i64(0)), builder.not_(within))

        def segment(number: Any, _: Any) -> None:
            is_first = builder.icmp_signed("==", number, i64(0))
            is_last = builder.icmp_signed("==", number, i64(2))

            def of(one: Any, two: Any, three: Any) -> Any:
                return builder.select(is_first, one, builder.select(is_last, three, two))

            end = builder.add(last, builder.zext(ends, last.type))
            panels = of(first, following, last), of(following, last, end)
            top = of(skipped, i64(0), i64(0))
            bottom = of(builder.select(within, over, tiles), tiles, over)
            self.block(batch, a, b, self.rows_of(top, bottom), panels)

        loop(builder, i64(0), i64(3), 1, segment)

    def finish_columns(self, batch: Any, first: Any, stop: Any) -> None:
        """Take the sums of a few rows, columns ``first`` to ``stop``, to C."""
        builder, plan = self.builder, self.plan

        def vectors(column: Any, _: Any) -> None:
            mask = lane_mask(builder, builder.sub(stop, column), plan.tile.lanes)

            def one(row: Any, _: Any) -> None:
                at = builder.mul(row, i64(plan.chunk)), builder.sub(column, first)
                place = offset(builder, self.own_sums, self.accumulator, *at)
                self.finish(batch, row, column, place, mask)

            if self.contraction.m == 1:
                one(i64(0), None)
            else:
                loop(builder, i64(0), i64(self.contraction.m), 1, one)

        loop(builder, first, stop, plan.tile.lanes, vectors)

    def block(self, batch: Any, a: Any, b: Any, rows: Any, panels: Any) -> None:
        """All of some rows and panels: groups of panels, blocks of rows, panels."""
        builder, plan = self.builder, self.plan
        if plan.rolling:
            self.rolling(batch, a, b, rows, panels)
            return

        def group(first: Any, stop: Any) -> None:
            base, skipped = b, i64(0)
            if not self.packed_b and not plan.direct:
                base, skipped = self.own_panels, first
                self.pack_group(b, first, stop)
            self.rows_of_group(batch, a, base, skipped, rows, (first, stop))

        if self.packed_b or plan.direct or plan.group >= plan.panels:
            group(*panels)
            return

        def groups(first: Any, _: Any) -> None:
            group(first, minimum(builder, builder.add(first, i64(plan.group)), panels[1]))

        loop(builder, panels[0], panels[1], plan.group, groups)

    def pack_group(self, b: Any, first: Any, stop: Any) -> None:
        """Pack panels ``first`` to ``stop``, one after the other."""
        builder, plan = self.builder, self.plan
        size = plan.tile.width * self.contraction.k

        def pack(number: Any, _: Any) -> None:
            place = builder.mul(builder.sub(number, first), i64(size))
            target = offset(builder, self.own_panels, plan.panel, place)
            emit_pack_panel(builder, plan, b, number, target)

        loop(builder, first, stop, 1, pack)

    def rows_of_group(
        self, batch: Any, a: Any, base: Any, skipped: Any, rows: Any, panels: Any
    ) -> None:
        """Some rows, block by block, of panels that lie at ``base`` from panel ``skipped`` on."""
        builder, plan = self.builder, self.plan
        size = plan.tile.width * (1 if plan.direct else self.contraction.k)

        def some_rows(start: Any, _: Any) -> None:
            end = minimum(builder, builder.add(start, i64(plan.rows)), rows[1])
            if plan.pack_a:
                self.pack_rows(a, start, end)
            if plan.strips and self.target.straight is not None:
                c = self.target.straight(batch)
                place = builder.mul(builder.sub(panels[0], skipped), i64(size))
                at = offset(builder, base, plan.panel, place)
                emit_strip(self, a, c, at, (start, end), panels)
                return

            def panel(number: Any, _: Any) -> None:
                place = builder.mul(builder.sub(number, skipped), i64(size))
                at = offset(builder, base, plan.panel, place)

                def one_pass(terms: Terms, _: Any) -> None:
                    piece = self.piece(at, number, terms.position)
                    width = self.width_of(number)
                    following = offset(builder, piece, plan.panel, builder.mul(terms.length, width))
                    later = None if plan.direct else Following(self, following)
                    self.panel(batch, a, piece, (start, end), number, later, terms, start)

                self.each_pass(one_pass)

            loop(builder, panels[0], panels[1], 1, panel)

        loop(builder, rows[0], rows[1], plan.rows, some_rows)

    def width_of(self, number: Any) -> Any:
        """Columns of a packed panel."""
        return self.of_panel(number, self.plan.tile.width, self.plan.last.width)

    def piece(self, panel: Any, number: Any, position: Any) -> Any:
        """Where terms from ``position`` on of a panel lie."""
        stride = i64(self.contraction.b_strides[1]) if self.plan.direct else self.width_of(number)
        return offset(self.builder, panel, self.plan.panel, self.builder.mul(position, stride))

    def each_pass(
        self, inside: Callable[[Terms, Any], Sequence[Any] | None], carried: Sequence[Any] = ()
    ) -> Sequence[Any]:
        """``inside(terms, carried)`` for the terms that are summed at a time, of rows whose terms are packed together."""
        builder, k, block = self.builder, self.contraction.k, self.plan.block
        if block >= k:
            return inside(Terms(i64(0), i64(k), i64(k), i64(0), self.own_sums), carried) or ()

        def one(position: Any, values: Any) -> Any:
            length = minimum(builder, builder.sub(i64(k), position), i64(block))
            skipped = builder.mul(position, i64(self.plan.tile.rows))
            return inside(Terms(position, length, i64(k), skipped, self.own_sums), values)

        return loop(builder, i64(0), i64(k), block, one, carried)

    def rolling(self, batch: Any, a: Any, b: Any, rows: Any, panels: Any) -> None:
        """All of some rows and panels, while the panel after each is packed between its tiles."""
        builder, plan = self.builder, self.plan
        first, stop = panels
        with builder.if_then(builder.icmp_signed("<", first, stop)):
            if plan.pack_a:
                self.pack_rows(a, *rows)
            self.pack_first(b, first)

            def panel(number: Any, turn: Any) -> Any:
                following = builder.add(number, i64(1))
                exists = builder.icmp_signed("<", following, stop)
                return self.roll(batch, a, (b, b), rows, number, following, exists, turn)

            loop(builder, first, stop, 1, panel, [i64(0)])

    def ring(self, turn: Any) -> Any:
        """Where a piece lies, of the two that are packed and used in turns."""
        size = self.plan.tile.width * self.plan.block
        place = self.builder.mul(turn, i64(size))
        return offset(self.builder, self.own_panels, self.plan.panel, place)

    def pack_first(self, b: Any, number: Any) -> None:
        """Pack the first piece of a panel, before any is used."""
        span = i64(0), i64(0), i64(self.plan.block)
        emit_pack_panel(self.builder, self.plan, b, number, self.ring(i64(0)), span)

    def roll(
        self,
        batch: Any,
        a: Any,
        both: tuple[Any, Any],
        rows: Any,
        number: Any,
        following: Any,
        exists: Any,
        turn: Any,
        origin: Any = None,
    ) -> Sequence[Any]:
        """Use the panel of a turn, whose first piece is packed; pack its others and the first of the following one meanwhile.

        ``both`` are the B of this panel, and that of the following.
        """
        builder, plan, k = self.builder, self.plan, self.contraction.k

        def piece_after(position: Any) -> tuple[Piece, Any]:
            """The piece at a position of this panel, and its B; beyond its last, the first of the following."""
            ends = builder.icmp_signed(">=", position, i64(k))
            position = builder.select(ends, i64(0), position)
            length = minimum(builder, builder.sub(i64(k), position), i64(plan.block))
            which = builder.select(ends, following, number)
            there = builder.or_(builder.not_(ends), exists)
            return Piece(which, position, length, there), builder.select(ends, both[1], both[0])

        def one_pass(terms: Terms, carried: Any) -> list[Any]:
            other = builder.xor(carried[0], i64(1))
            position = builder.add(terms.position, terms.length)
            piece, source = piece_after(position)
            beyond, _ = piece_after(builder.add(position, i64(plan.block)))
            later = Slices(self, source, rows, piece, beyond, self.ring(other))
            start = rows[0] if origin is None else origin
            self.panel(batch, a, self.ring(carried[0]), rows, number, later, terms, start)
            return [other]

        return self.each_pass(one_pass, turn)

    def pack_rows(
        self,
        a: Any,
        start: Any,
        end: Any,
        span: tuple[Any, Any] | None = None,
        past: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        """Pack rows ``start`` to ``end`` of A, tile by tile; of a span of k, its first and its length.

        ``past`` chooses the function that does so: of a plain one, and one that writes past the cache.
        """
        builder, plan, contraction = self.builder, self.plan, self.contraction
        _, down, across = contraction.a_strides
        contiguous = "columns" if down == 1 else "k" if across == 1 else "neither"
        height = plan.tile.rows
        kinds = contraction.dtype, self.accumulator
        pack, other = (
            pack_kernel(builder.module, *kinds, height, plan.tile.lanes, contiguous, past=beyond)
            for beyond in (False, past is not None)
        )
        if past is not None:
            pack = past(pack, other)

        begin, length = span or (i64(0), i64(contraction.k))

        def tile(row: Any, terms: tuple[Any, Any] | None = None) -> None:
            source = offset(builder, a, contraction.dtype, builder.mul(row, i64(down)))
            place = builder.mul(builder.sub(row, start), length)
            target = offset(builder, self.own_rows, self.accumulator, place)
            valid = minimum(builder, builder.sub(end, row), i64(height))

            def some(first: Any, a_offset: Any, _: Any, count: Any) -> None:
                read = offset(builder, source, contraction.dtype, a_offset)
                write = offset(builder, target, self.accumulator, builder.mul(first, i64(height)))
                builder.call(pack, [count, valid, read, i64(across), i64(down), write])

            if contraction.apart:
                together = i64(contraction.together)
                each_run(builder, contraction, lambda terms, at, _: some(terms, at, _, together))
                return
            first, count = terms or (i64(0), length)
            some(first, builder.mul(builder.add(begin, first), i64(across)), None, count)

        if contiguous != "columns" or contraction.apart:
            loop(builder, start, end, height, lambda row, _: tile(row))
            return

        # The rows of a k lie side by side, more than one tile's in a line: a few k of all tiles at a time.
        def some_terms(first: Any, _: Any) -> None:
            count = minimum(builder, builder.sub(length, first), i64(TERMS_PACKED))
            loop(builder, start, end, height, lambda row, _: tile(row, (first, count)))

        loop(builder, i64(0), length, TERMS_PACKED, some_terms)

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
        """Some rows of the columns of one panel, and some terms of their sums; ``later`` is what is done meanwhile for the next.

        ``b`` is where these terms of the panel lie. Where rows of A are packed, ``origin`` is the first of those that are.
        """
        start, end = rows
        builder, plan, contraction = self.builder, self.plan, self.contraction
        height, k = plan.tile.rows, contraction.k
        column = builder.mul(number, i64(plan.tile.width))
        width = self.width_of(number)
        valid = self.of_panel(number, plan.tile.width, contraction.n % plan.tile.width)
        straight = self.target.straight
        # Whether sums go straight into C: always, never, or in all panels but the last.
        mixed = straight is not None and contraction.n % plan.tile.lanes > 0
        if mixed and not plan.full_panels:
            straight, mixed = None, False
        is_straight = builder.icmp_signed("<", number, i64(plan.full_panels))
        one_pass = plan.block >= k
        b_stride = i64(contraction.b_strides[1]) if plan.direct else width
        again = builder.icmp_signed(">", terms.position, i64(0))

        def one_tile(row: Any, _: Any) -> None:
            if plan.pack_a:
                a_stride = i64(height)
                place = builder.mul(builder.sub(row, origin), terms.distance)
                a_tile = offset(builder, self.own_rows, self.accumulator, place, terms.skipped)
            else:
                _, down, across = contraction.a_strides
                a_stride = i64(down if across == 1 else across)
                place = builder.mul(row, i64(down))
                skipped = builder.mul(terms.position, i64(across))
                a_tile = offset(builder, a, self.accumulator, place, skipped)
            place = i64(0) if one_pass else builder.sub(row, origin)
            out = offset(builder, terms.sums, self.accumulator, builder.mul(place, width))
            out_stride, keep = width, again
            if straight is not None:
                down = i64(contraction.c_strides[1])
                c = offset(
                    builder, straight(batch), self.accumulator, builder.mul(row, down), column
                )
                always = ir().Constant(ir().IntType(1), 1)
                kept = always if contraction.accumulate else again
                chosen = [c, down, kept]
                if mixed:
                    others = (out, out_stride, keep)
                    chosen = [
                        builder.select(is_straight, one, other)
                        for one, other in zip(chosen, others, strict=True)
                    ]
                out, out_stride, keep = chosen
            count = minimum(builder, builder.sub(end, row), i64(height))
            if later is not None:
                later.before_tile(row, start, b)
            if self.streamed:
                self.ask_for_reads(batch, row, column)
            elif straight is not None or not one_pass or self.target.written is None:
                size = STORAGE_BYTES[self.accumulator]
                self.asks.writes(builder, out, builder.mul(out_stride, i64(size)))
            else:
                size = contraction.c_strides[1] * self.target.written_bytes
                self.asks.writes(builder, self.target.written(batch, row, column), i64(size))

            def call(rows: int, tile: Tile) -> None:
                exact = Tile(rows, tile.vectors, tile.lanes)
                given = [terms.length, a_tile, a_stride, b, out, out_stride, keep]
                lanes = contraction.n % tile.lanes
                masked = ".masked" if lanes and tile is not plan.tile else ""
                if plan.direct:
                    given += [b, b_stride, i64(lanes)]
                    run(exact, f"rows{masked}", given)
                else:
                    run(exact, "packed", [*given, self.asks.place], STREAMS if self.streamed else 1)

            def run(exact: Tile, b_form: str, given: list[Any], asking: int = 0) -> None:
                step = height if plan.pack_a else 0
                kernel = tile_kernel(
                    builder.module, exact, plan.panel, plan.form, b_form, asking, plan.pace, step
                )
                builder.call(kernel, given)

            def whole_or_rest(tile: Tile) -> None:
                rest = contraction.m % height
                if not rest or contraction.m < height:
                    call(rest or height, tile)
                    return
                whole = builder.icmp_signed("==", count, i64(height))
                with builder.if_else(whole) as (full, partial):
                    with full:
                        call(height, tile)
                    with partial:
                        call(rest, tile)

            either_panel(builder, plan, number, whole_or_rest)
            if straight is None or mixed:
                done = builder.icmp_signed("==", builder.add(terms.position, terms.length), i64(k))
                if mixed:
                    done = builder.and_(done, builder.not_(is_straight))
                with builder.if_then(done):
                    self.finish_tile(batch, row, count, column, width, valid, out)

        loop(builder, start, end, height, one_tile)

    def ask_for_reads(self, batch: Any, row: Any, column: Any) -> None:
        """Have a tile ask for what its sums are joined with, while they are summed."""
        if self.target.reads is not None:
            places = self.target.reads(batch, row, column)
            self.asks.reads(self.builder, places, self.rows_read)

    @property
    def rows_read(self) -> Rows:
        """The rows that are read where a tile is written."""
        tile, size = self.plan.tile, self.target.read_bytes
        stride = self.contraction.c_strides[1] * size
        return Rows(stride, tile.width * size, tile.rows, self.plan.turns)

    @property
    def turns_free(self) -> int:
        """Turns of a tile that may ask for what is needed after it."""
        taken = self.rows_read.taken if self.streamed else 0
        return max(0, self.plan.turns - taken)

    def of_panel(self, number: Any, whole: int, last: int) -> Any:
        """A number that is another one in the last panel, where that is narrower."""
        plan = self.plan
        if plan.full_panels == plan.panels:
            return i64(whole)
        if not plan.full_panels:
            return i64(last)
        full = self.builder.icmp_signed("<", number, i64(plan.full_panels))
        return self.builder.select(full, i64(whole), i64(last))

    def finish_tile(
        self, batch: Any, row: Any, count: Any, column: Any, width: Any, valid: Any, sums: Any
    ) -> None:
        """Take the sums of a tile to C. Real loops: unrolled, the sums would be kept in registers and spilled."""
        builder, lanes = self.builder, self.plan.tile.lanes
        rest = self.contraction.n % lanes

        def one_row(index: Any, _: Any) -> None:
            def one_vector(done: Any, _: Any) -> None:
                mask = lane_mask(builder, builder.sub(valid, done), lanes) if rest else None
                place = offset(builder, sums, self.accumulator, builder.mul(index, width), done)
                at = builder.add(column, done)
                self.finish(batch, builder.add(row, index), at, place, mask)

            loop(builder, i64(0), valid, lanes, one_vector)

        loop(builder, i64(0), count, 1, one_row)

    def finish(self, batch: Any, row: Any, column: Any, place: Any, mask: Any) -> None:
        """Take one vector of sums to where it goes."""
        values = load(self.builder, place, self.accumulator, self.plan.tile.lanes)
        self.target.write(values, batch, row, column, mask)
