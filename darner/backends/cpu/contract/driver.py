"""The loop nest of a contraction: groups of panels, blocks of rows, panels, tiles, and the stores to C."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....codegen.ir.emit import accumulator_of, ir, lane_mask, load, loop, maximum, minimum, offset
from ....codegen.ir.index import Index, i64
from ....codegen.ir.types import Builder, Function, Pointer, Value
from .blocks import emit_blocked
from .columns import Columns
from .dots import sum_dots
from .pack import PackKernel
from .panel import (
    Following,
    PanelWork,
    Piece,
    Slices,
    Terms,
    each_run,
    emit_pack_panel,
)
from .panel_tiles import PanelTiles
from .plan import Cut
from .prefetch import Asks, Rows
from .strip import emit_strip
from .vector import sum_rows

TERMS_PACKED = 32
"""Of k, how many are packed for all tiles of A before the next, where the rows of a k are contiguous."""

Share = Callable[[Builder, Value, Value, int, Callable[[Value, Value], None]], None]
"""``(builder, thread, threads, units, work)``: emits calls of ``work(start, stop)`` over this thread's units."""

Write = Callable[[Value, Index, Index, Index, Value | None], None]
"""``(sums, batch, row, column, mask)``: takes a vector of sums to where it goes, each vector once."""

Offsets = Callable[[Value], tuple[Value, Value]]
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
    straight: Callable[[Value], Pointer] | None = None
    reads: Callable[[Value, Value, Value], list[Pointer]] | None = None
    read_bytes: int = 0
    written: Callable[[Value, Value, Value], Pointer] | None = None
    written_bytes: int = 0


@dataclass(frozen=True)
class Turn:
    """A panel that is used while the one after it is packed.

    Attributes:
        batch: which product of a batch.
        a: where its A lies.
        rows: the first, and the one after the last.
        number: of the panel.
        b: the B that it is packed from.
        following: the number of the panel after it.
        following_b: the B that this is packed from.
        exists: whether there is one.
        first_packed: the first row of A that is packed; the first of ``rows`` when left out.
    """

    batch: Value
    a: Pointer
    rows: tuple[Value, Value]
    number: Value
    b: Pointer
    following: Value
    following_b: Pointer
    exists: Value
    first_packed: Value | None = None


@dataclass(frozen=True)
class Operands:
    """What a contraction reads.

    Attributes:
        a: the address of A's first element.
        b: that of B's, or of its packed panels.
        offsets: where batches lie, in elements; the contraction's strides say it when left out.
        packed_b: whether B was packed before.
    """

    a: Pointer
    b: Pointer
    offsets: Offsets | None = None
    packed_b: bool = False


class Driver:
    """The loops of one contraction's function around its micro-kernels.

    Args:
        builder: where the code goes.
        plan: how the contraction is cut.
        operands: what it reads.
        own: ``plan.scratch_bytes`` of memory for this thread alone.
        target: where the sums go.
    """

    def __init__(
        self, builder: Builder, plan: Cut, operands: Operands, own: Pointer, target: Target
    ) -> None:
        self.builder, self.plan, self.target = builder, plan, target
        self.a, self.b, self.packed_b = operands.a, operands.b, operands.packed_b
        self.contraction = plan.contraction
        self.accumulator = accumulator_of(self.contraction.dtype)
        self.offsets = operands.offsets or self._by_strides
        self.asks = Asks(builder)
        self.streamed = target.reads is not None and plan.streams > 0 and plan.passes == 1
        byte = ir().IntType(8)
        panels, rows, _ = plan.scratch_parts()
        self.own_panels = own
        self.own_rows = builder.gep(own, [i64(panels)], source_etype=byte)
        self.own_sums = builder.gep(own, [i64(panels + rows)], source_etype=byte)

    def _by_strides(self, batch: Value) -> tuple[Value, Value]:
        a, b = self.contraction.a_strides[0], self.contraction.b_strides[0]
        if self.packed_b and b:
            b = self.plan.packed_elements
        return self.builder.mul(batch, i64(a)), self.builder.mul(batch, i64(b))

    def emit(self, start: Value, stop: Value) -> None:
        """Units ``start`` to ``stop`` of all, batch by batch."""
        builder, plan = self.builder, self.plan
        each = plan.units // self.contraction.batch
        first = builder.sdiv(start, i64(each))
        last = builder.sdiv(builder.add(stop, i64(each - 1)), i64(each))

        def batch(index: Value, _: Sequence[Value]) -> None:
            before = builder.mul(index, i64(each))
            low = maximum(builder, builder.sub(start, before), i64(0))
            high = minimum(builder, builder.sub(stop, before), i64(each))
            self.emit_batch(index, low, high)

        loop(builder, first, last, 1, batch)

    def emit_batch(self, batch: Value, low: Value, high: Value) -> None:
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
        if plan.decoder is not None:
            sum_columns = plan.decoder.sum_few
        end = minimum(builder, builder.mul(high, i64(plan.grain)), i64(contraction.n))

        def chunk(first: Value, _: Sequence[Value]) -> None:
            stop = minimum(builder, builder.add(first, i64(plan.chunk)), end)
            own = self.own_sums, self.own_rows, self.own_panels
            sum_columns(builder, plan, Columns(a, b, first, stop, *own))
            self.finish_columns(batch, first, stop)

        loop(builder, builder.mul(low, i64(plan.grain)), end, plan.chunk, chunk)

    def rows_of(self, low: Value, high: Value) -> tuple[Value, Value]:
        """The rows of tiles ``low`` to ``high``."""
        builder, height = self.builder, i64(self.plan.tile.rows)
        end = minimum(builder, builder.mul(high, height), i64(self.contraction.m))
        return builder.mul(low, height), end

    def segments(self, batch: Value, a: Pointer, b: Pointer, low: Value, high: Value) -> None:
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

        def segment(number: Value, _: Sequence[Value]) -> None:
            is_first = builder.icmp_signed("==", number, i64(0))
            is_last = builder.icmp_signed("==", number, i64(2))

            def of(one: Value, two: Value, three: Value) -> Value:
                return builder.select(is_first, one, builder.select(is_last, three, two))

            end = builder.add(last, builder.zext(ends, last.type))
            panels = of(first, following, last), of(following, last, end)
            top = of(skipped, i64(0), i64(0))
            bottom = of(builder.select(within, over, tiles), tiles, over)
            self.block(batch, a, b, self.rows_of(top, bottom), panels)

        loop(builder, i64(0), i64(3), 1, segment)

    def finish_columns(self, batch: Value, first: Value, stop: Value) -> None:
        """Take the sums of a few rows, columns ``first`` to ``stop``, to C."""
        builder, plan = self.builder, self.plan

        def vectors(column: Value, _: Sequence[Value]) -> None:
            mask = lane_mask(builder, builder.sub(stop, column), plan.tile.lanes)

            def emit_row(row: Value, _: Sequence[Value] | None) -> None:
                at = builder.mul(row, i64(plan.chunk)), builder.sub(column, first)
                address = offset(builder, self.own_sums, self.accumulator, *at)
                self.finish(batch, row, column, address, mask)

            if self.contraction.m == 1:
                emit_row(i64(0), None)
            else:
                loop(builder, i64(0), i64(self.contraction.m), 1, emit_row)

        loop(builder, first, stop, plan.tile.lanes, vectors)

    def block(
        self,
        batch: Value,
        a: Pointer,
        b: Pointer,
        rows: tuple[Value, Value],
        panels: tuple[Value, Value],
    ) -> None:
        """All of some rows and panels: groups of panels, blocks of rows, panels."""
        builder, plan = self.builder, self.plan
        if plan.rolling:
            self.rolling(batch, a, b, rows, panels)
            return

        def group(first: Value, stop: Value) -> None:
            base, skipped = b, i64(0)
            if not self.packed_b and not plan.direct:
                base, skipped = self.own_panels, first
                self.pack_group(b, first, stop)
            self.rows_of_group(batch, a, base, skipped, rows, (first, stop))

        if self.packed_b or plan.direct or plan.group >= plan.panels:
            group(*panels)
            return

        def groups(first: Value, _: Sequence[Value]) -> None:
            group(first, minimum(builder, builder.add(first, i64(plan.group)), panels[1]))

        loop(builder, panels[0], panels[1], plan.group, groups)

    def pack_group(self, b: Pointer, first: Value, stop: Value) -> None:
        """Pack panels ``first`` to ``stop``, one after the other."""
        builder, plan = self.builder, self.plan
        size = plan.tile.width * self.contraction.k

        def pack(number: Value, _: Sequence[Value]) -> None:
            position = builder.mul(builder.sub(number, first), i64(size))
            target = offset(builder, self.own_panels, plan.panel, position)
            emit_pack_panel(builder, plan, b, number, target)

        loop(builder, first, stop, 1, pack)

    def rows_of_group(
        self,
        batch: Value,
        a: Pointer,
        base: Pointer,
        skipped: Value,
        rows: tuple[Value, Value],
        panels: tuple[Value, Value],
    ) -> None:
        """Some rows, block by block, of panels that lie at ``base`` from panel ``skipped`` on."""
        builder, plan = self.builder, self.plan
        size = plan.tile.width * (1 if plan.direct else self.contraction.k)

        def some_rows(start: Value, _: Sequence[Value]) -> None:
            end = minimum(builder, builder.add(start, i64(plan.rows)), rows[1])
            if plan.pack_a:
                self.pack_rows(a, start, end)
            if plan.strips and self.target.straight is not None:
                c = self.target.straight(batch)
                within = builder.mul(builder.sub(panels[0], skipped), i64(size))
                at = offset(builder, base, plan.panel, within)
                emit_strip(self, a, c, at, (start, end), panels)
                return

            def panel(number: Value, _: Sequence[Value]) -> None:
                within = builder.mul(builder.sub(number, skipped), i64(size))
                at = offset(builder, base, plan.panel, within)

                def emit_pass(terms: Terms, _: Sequence[Value]) -> None:
                    piece = self.piece(at, number, terms.position)
                    width = self.width_of(number)
                    following = offset(builder, piece, plan.panel, builder.mul(terms.length, width))
                    later = None if plan.direct else Following(self, following)
                    work = PanelWork(batch, a, piece, (start, end), number, terms, start, later)
                    self.panel(work)

                self.each_pass(emit_pass)

            loop(builder, panels[0], panels[1], 1, panel)

        loop(builder, rows[0], rows[1], plan.rows, some_rows)

    def width_of(self, number: Value) -> Value:
        """Columns of a packed panel."""
        return self.of_panel(number, self.plan.tile.width, self.plan.last.width)

    def piece(self, panel: Pointer, number: Value, position: Value) -> Pointer:
        """Where terms from ``position`` on of a panel lie."""
        stride = i64(self.contraction.b_strides[1]) if self.plan.direct else self.width_of(number)
        return offset(self.builder, panel, self.plan.panel, self.builder.mul(position, stride))

    def each_pass(
        self,
        body: Callable[[Terms, Sequence[Value]], Sequence[Value] | None],
        carried: Sequence[Value] = (),
    ) -> Sequence[Value]:
        """``body(terms, carried)`` for the terms that are summed at a time, of rows whose terms are packed together."""
        builder, k, block = self.builder, self.contraction.k, self.plan.block
        if block >= k:
            return body(Terms(i64(0), i64(k), i64(k), i64(0), self.own_sums), carried) or ()

        def emit_pass(position: Value, values: Sequence[Value]) -> Sequence[Value] | None:
            length = minimum(builder, builder.sub(i64(k), position), i64(block))
            skipped = builder.mul(position, i64(self.plan.tile.rows))
            return body(Terms(position, length, i64(k), skipped, self.own_sums), values)

        return loop(builder, i64(0), i64(k), block, emit_pass, carried)

    def rolling(
        self,
        batch: Value,
        a: Pointer,
        b: Pointer,
        rows: tuple[Value, Value],
        panels: tuple[Value, Value],
    ) -> None:
        """All of some rows and panels, while the panel after each is packed between its tiles."""
        builder, plan = self.builder, self.plan
        first, stop = panels
        with builder.if_then(builder.icmp_signed("<", first, stop)):
            if plan.pack_a:
                self.pack_rows(a, *rows)
            self.pack_first(b, first)

            def panel(number: Value, ring: Sequence[Value]) -> Sequence[Value]:
                following = builder.add(number, i64(1))
                exists = builder.icmp_signed("<", following, stop)
                turn = Turn(batch, a, rows, number, b, following, b, exists)
                return self.roll(turn, ring)

            loop(builder, first, stop, 1, panel, [i64(0)])

    def ring(self, turn: Value) -> Pointer:
        """Where a piece lies, of the two that are packed and used in turns."""
        size = self.plan.tile.width * self.plan.block
        position = self.builder.mul(turn, i64(size))
        return offset(self.builder, self.own_panels, self.plan.panel, position)

    def pack_first(self, b: Pointer, number: Value) -> None:
        """Pack the first piece of a panel, before any is used."""
        span = i64(0), i64(0), i64(self.plan.block)
        emit_pack_panel(self.builder, self.plan, b, number, self.ring(i64(0)), span)

    def roll(self, turn: Turn, ring: Sequence[Value]) -> Sequence[Value]:
        """Use the panel of a turn, whose first piece is packed; pack its others and the first of the following one meanwhile.

        ``ring`` says which of the two pieces of memory is packed; it comes back for the turn after.
        """
        builder, plan, k = self.builder, self.plan, self.contraction.k
        rows = turn.rows

        def piece_after(position: Value) -> tuple[Piece, Pointer]:
            """The piece at a position of this panel, and its B; beyond its last, the first of the following."""
            ends = builder.icmp_signed(">=", position, i64(k))
            position = builder.select(ends, i64(0), position)
            length = minimum(builder, builder.sub(i64(k), position), i64(plan.block))
            which = builder.select(ends, turn.following, turn.number)
            there = builder.or_(builder.not_(ends), turn.exists)
            source = builder.select(ends, turn.following_b, turn.b)
            return Piece(which, position, length, there), source

        def emit_pass(terms: Terms, carried: Sequence[Value]) -> list[Value]:
            other = builder.xor(carried[0], i64(1))
            position = builder.add(terms.position, terms.length)
            piece, source = piece_after(position)
            beyond, _ = piece_after(builder.add(position, i64(plan.block)))
            later = Slices(self, source, rows, piece, beyond, self.ring(other))
            panel = self.ring(carried[0])
            first = rows[0] if turn.first_packed is None else turn.first_packed
            work = PanelWork(turn.batch, turn.a, panel, rows, turn.number, terms, first, later)
            self.panel(work)
            return [other]

        return self.each_pass(emit_pass, ring)

    def pack_rows(
        self,
        a: Pointer,
        start: Value,
        end: Value,
        span: tuple[Value, Value] | None = None,
        choose: Callable[[Function, Function], Pointer] | None = None,
    ) -> None:
        """Pack rows ``start`` to ``end`` of A, tile by tile; of a span of k, its first and its length.

        ``choose`` chooses the function that does so: of a plain one, and one that writes past the cache.
        """
        builder, plan, contraction = self.builder, self.plan, self.contraction
        _, down, across = contraction.a_strides
        contiguous = "columns" if down == 1 else "k" if across == 1 else "neither"
        height = plan.tile.rows
        kinds = contraction.dtype, self.accumulator
        plain, other = (
            PackKernel(*kinds, height, plan.tile.lanes, contiguous, non_temporal=beyond).function(
                builder.module
            )
            for beyond in (False, choose is not None)
        )
        pack = plain if choose is None else choose(plain, other)

        begin, length = span or (i64(0), i64(contraction.k))

        def tile(row: Value, terms: tuple[Value, Value] | None = None) -> None:
            source = offset(builder, a, contraction.dtype, builder.mul(row, i64(down)))
            position = builder.mul(builder.sub(row, start), length)
            target = offset(builder, self.own_rows, self.accumulator, position)
            valid = minimum(builder, builder.sub(end, row), i64(height))

            def pack_terms(first: Value, a_offset: Value, _: Value | None, count: Value) -> None:
                read = offset(builder, source, contraction.dtype, a_offset)
                write = offset(builder, target, self.accumulator, builder.mul(first, i64(height)))
                builder.call(pack, [count, valid, read, i64(across), i64(down), write])

            if contraction.strided_terms:
                together = i64(contraction.together)
                each_run(
                    builder, contraction, lambda terms, at, _: pack_terms(terms, at, _, together)
                )
                return
            first, count = terms or (i64(0), length)
            pack_terms(first, builder.mul(builder.add(begin, first), i64(across)), None, count)

        if contiguous != "columns" or contraction.strided_terms:
            loop(builder, start, end, height, lambda row, _: tile(row))
            return

        # The rows of a k lie side by side, more than one tile's in a line: a few k of all tiles at a time.
        def some_terms(first: Value, _: Sequence[Value]) -> None:
            count = minimum(builder, builder.sub(length, first), i64(TERMS_PACKED))
            loop(builder, start, end, height, lambda row, _: tile(row, (first, count)))

        loop(builder, i64(0), length, TERMS_PACKED, some_terms)

    def panel(self, work: PanelWork) -> None:
        """Some rows of the columns of one panel, and some terms of their sums."""
        PanelTiles(self, work).emit()

    def ask_for_reads(self, batch: Value, row: Value, column: Value) -> None:
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

    def of_panel(self, number: Value, whole: int, last: int) -> Value:
        """A number that is another one in the last panel, where that is narrower."""
        plan = self.plan
        if plan.full_panels == plan.panels:
            return i64(whole)
        if not plan.full_panels:
            return i64(last)
        full = self.builder.icmp_signed("<", number, i64(plan.full_panels))
        return self.builder.select(full, i64(whole), i64(last))

    def finish(
        self, batch: Value, row: Value, column: Value, address: Pointer, mask: Value | None
    ) -> None:
        """Take one vector of sums to where it goes."""
        values = load(self.builder, address, self.accumulator, self.plan.tile.lanes)
        self.target.write(values, batch, row, column, mask)
