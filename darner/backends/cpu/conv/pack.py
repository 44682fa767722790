"""Patches copied into blocks ``B[channel * taps + tap][pixel]``: what a convolution multiplies, as rows of a matrix.

Neighbouring pixels of a row read neighbouring elements, so a block consists of *segments*: for one tap, a vector of pixels of one row. Which segments there
are, what they read and which of their lanes lie outside of the tensor is the same for all channels, and is written down in a table first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....codegen.ir.emit import (
    accumulator_of,
    constant_words,
    ir,
    lane_numbers,
    load,
    loop,
    maximum,
    minimum,
    offset,
    store,
)
from ....codegen.ir.index import Index, IndexMath, i64
from ....codegen.ir.types import Builder, Pointer, Value
from ....codegen.problems.conv import Patches

ENTRY = 4
"""Numbers of an entry of the table: the source's offset, the target's, the lanes read, the lanes written."""
TOGETHER = 8
"""Channels that are copied by one walk through the table."""
FIELDS = 5
"""Numbers of an axis of a phase, in the order of ``Taps``."""


@dataclass(frozen=True)
class Grid:
    """A phase as numbers of the code: known ones where there is one phase, read from a table otherwise.

    Attributes:
        pixels, start, count, offset, kernel: as in ``Taps``, for each axis.
        area: pixels of an image.
        taps: of all axes.
        first: taps of the phases before.
    """

    pixels: Sequence[Index]
    start: Sequence[Index]
    count: Sequence[Index]
    offset: Sequence[Index]
    kernel: Sequence[Index]
    area: Index
    taps: Index
    first: Index


def phase_table(builder: Builder, patches: Patches) -> Pointer | None:
    """A constant with the numbers of every phase; None where there is one."""
    if len(patches.phases) == 1:
        return None
    numbers: list[int] = []
    first = 0
    for phase in patches.phases:
        for taps in phase.axes:
            numbers += [taps.pixels, taps.start, taps.count, taps.offset, taps.kernel]
        numbers += [phase.pixels, phase.taps, first]
        first += phase.taps
    return constant_words(builder, "darner.phases", numbers)


def grid_of(builder: Builder, patches: Patches, table: Pointer | None, phase: Index) -> Grid:
    """The numbers of one phase."""
    rank = len(patches.sizes)
    size = FIELDS * rank + 3
    if table is None:
        (only,) = patches.phases
        fields: list[Index] = []
        for taps in only.axes:
            fields += [taps.pixels, taps.start, taps.count, taps.offset, taps.kernel]
        fields += [only.pixels, only.taps, 0]
    else:
        word = ir().IntType(64)
        start = builder.mul(i64(phase), i64(size))
        fields = []
        for number in range(size):
            address = builder.gep(table, [builder.add(start, i64(number))], source_etype=word)
            fields.append(builder.load(address, typ=word))
    pixels, starts, count, offsets, kernel = (
        [fields[FIELDS * axis + k] for axis in range(rank)] for k in range(FIELDS)
    )
    return Grid(pixels, starts, count, offsets, kernel, *fields[FIELDS * rank :])


def divided(builder: Builder, number: Index, by: Index) -> tuple[Index, Index]:
    """A number over another, rounded down, and the rest; none is negative."""
    if isinstance(number, int) and isinstance(by, int):
        return divmod(number, by)
    if isinstance(by, int) and by == 1:
        return number, 0
    number, by = i64(number), i64(by)
    quotient = builder.udiv(number, by)
    return quotient, builder.sub(number, builder.mul(quotient, by))


def unravelled(
    builder: Builder, column: Value, sizes: Sequence[Index]
) -> tuple[Index, list[Index]]:
    """The image of a column, and the indices of its pixel."""
    index: list[Index] = []
    rest: Index = column
    for size in reversed(sizes):
        rest, inner = divided(builder, rest, size)
        index.append(inner)
    return rest, index[::-1]


def walk(
    builder: Builder,
    start: Value,
    stop: Value,
    body: Callable[[Value, Value], tuple[Value, Value]],
    held: Value,
) -> Value:
    """``while start < stop: start, held = body(start, held)``; returns what is held last."""
    before = builder.block
    head = builder.append_basic_block("head")
    inside = builder.append_basic_block("inside")
    after = builder.append_basic_block("after")
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(ir().IntType(64))
    index.add_incoming(start, before)
    value = builder.phi(held.type)
    value.add_incoming(held, before)
    builder.cbranch(builder.icmp_signed("<", index, stop), inside, after)
    builder.position_at_end(inside)
    following, kept = body(index, value)
    index.add_incoming(following, builder.block)
    value.add_incoming(kept, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return value


class Packer:
    """Copies patches of some pixels.

    Args:
        builder: where the code goes.
        patches: what is copied.
        dtype: how the source is stored; blocks are of its accumulator.
        lanes: of a vector of the accumulator.
        table: memory for ``table_bytes``.
    """

    def __init__(
        self, builder: Builder, patches: Patches, dtype: str, lanes: int, table: Pointer
    ) -> None:
        self.builder, self.patches, self.dtype, self.lanes = builder, patches, dtype, lanes
        self.table = table
        self.step = patches.steps[-1]

    def describe(self, grid: Grid, first: Value, stop: Value, pitch: Index) -> Value:
        """Write the table for columns ``first`` to ``stop`` of rows that are ``pitch`` apart; returns how many entries it has."""
        builder, patches = self.builder, self.patches
        indices = IndexMath(builder)
        rank = len(patches.sizes)
        word = ir().IntType(64)
        strides = [1] * rank
        for axis in range(rank - 2, -1, -1):
            strides[axis] = strides[axis + 1] * patches.sizes[axis + 1]

        def segment(column: Value, entry: Value) -> tuple[Value, Value]:
            image, index = unravelled(builder, column, grid.pixels)
            length = minimum(
                builder,
                i64(indices.sub(grid.pixels[-1], index[-1])),
                minimum(builder, builder.sub(stop, column), i64(self.lanes)),
            )
            written = _bits(builder, i64(0), length)
            base: Index = indices.mul(image, patches.image)
            corner = [indices.mul(i, step) for i, step in zip(index, patches.steps, strict=True)]

            def tap(axis: int, number: Index, source: Index, inside: Value | None) -> None:
                """The taps of one axis, in loops over those of the next."""

                def emit_element(i: Value, _: Sequence[Value]) -> None:
                    shift = indices.add(grid.offset[axis], indices.mul(i, patches.deltas[axis]))
                    at = indices.add(corner[axis], shift)
                    here = indices.add(source, indices.mul(at, strides[axis]))
                    following = indices.add(indices.mul(number, grid.count[axis]), i)
                    if axis < rank - 1:
                        valid = builder.icmp_unsigned("<", i64(at), i64(patches.sizes[axis]))
                        valid = valid if inside is None else builder.and_(inside, valid)
                        tap(axis + 1, following, here, valid)
                        return
                    read = self._lanes_read(i64(at), length)
                    if inside is not None:
                        read = builder.select(inside, read, i64(0))
                    # A load of nothing goes where there is memory: elsewhere it takes a microsecond.
                    nothing = builder.icmp_unsigned("==", read, i64(0))
                    here = builder.select(nothing, i64(0), i64(here))
                    # Columns count from the first, and rows from the first tap.
                    target = indices.add(indices.mul(following, pitch), builder.sub(column, first))
                    row = builder.mul(builder.add(entry, i64(following)), i64(ENTRY))
                    for field, value in enumerate((here, target, read, written)):
                        address = builder.gep(
                            self.table, [builder.add(row, i64(field))], source_etype=word
                        )
                        builder.store(i64(value), address)

                loop(builder, i64(0), i64(grid.count[axis]), 1, emit_element)

            tap(0, 0, base, None)
            return builder.add(column, length), builder.add(entry, i64(grid.taps))

        return walk(builder, first, stop, segment, i64(0))

    def _lanes_read(self, at: Value, length: Value) -> Value:
        """Which elements from ``at`` on lie in the row: a bit for each lane, or for each element where every second is taken."""
        builder, size, step = self.builder, self.patches.sizes[-1], self.step
        low = maximum(builder, builder.neg(at), i64(0))
        high = builder.sub(i64(size), at)
        if step == 2:
            length = builder.sub(builder.shl(length, i64(1)), i64(1))
        elif step > 2:
            low = builder.udiv(builder.add(low, i64(step - 1)), i64(step))
            high = maximum(builder, builder.add(high, i64(step - 1)), i64(0))
            high = builder.udiv(high, i64(step))
        high = maximum(builder, minimum(builder, high, length), i64(0))
        return _bits(builder, minimum(builder, low, high), high)

    def copy(
        self,
        entries: Value,
        source: Pointer,
        channels: Value,
        taps: Index,
        pitch: Index,
        block: Pointer,
    ) -> None:
        """Copy ``channels`` channels from ``source`` on, as the table says."""
        builder = self.builder
        rows = IndexMath(builder).mul(taps, pitch)
        accumulator = accumulator_of(self.dtype)

        def copy_several(together: int) -> Callable[[Value, Sequence[Value]], None]:
            def body(channel: Value, _: Sequence[Value]) -> None:
                start = offset(
                    builder, source, self.dtype, builder.mul(channel, i64(self.patches.area))
                )
                end = offset(builder, block, accumulator, builder.mul(channel, i64(rows)))
                loop(
                    builder,
                    i64(0),
                    entries,
                    1,
                    lambda i, _: self._segment(i, start, end, rows, together),
                )

            return body

        together = min(TOGETHER, self.patches.channels)
        whole = builder.mul(builder.udiv(channels, i64(together)), i64(together))
        loop(builder, i64(0), whole, together, copy_several(together))
        if together > 1:
            loop(builder, whole, channels, 1, copy_several(1))

    def _segment(
        self, number: Value, source: Pointer, block: Pointer, rows: Index, together: int
    ) -> None:
        """One entry of the table, for some channels."""
        builder, lanes = self.builder, self.lanes
        accumulator = accumulator_of(self.dtype)
        word = ir().IntType(64)
        row = builder.mul(number, i64(ENTRY))
        values = [
            builder.load(
                builder.gep(self.table, [builder.add(row, i64(field))], source_etype=word),
                typ=word,
            )
            for field in range(ENTRY)
        ]
        start = offset(builder, source, self.dtype, values[0])
        end = offset(builder, block, accumulator, values[1])
        written = _mask(builder, values[3], lanes)
        read = _mask(builder, values[2], lanes)
        more = None
        if self.step == 2:
            more = _mask(builder, builder.lshr(values[2], i64(lanes)), lanes)
        for channel in range(together):
            at = offset(builder, start, self.dtype, channel * self.patches.area)
            if self.step == 1:
                value = load(builder, at, self.dtype, lanes, read)
            elif self.step == 2:
                low = load(builder, at, self.dtype, lanes, read)
                high = load(
                    builder, offset(builder, at, self.dtype, lanes), self.dtype, lanes, more
                )
                value = builder.shuffle_vector(low, high, lane_numbers(range(0, 2 * lanes, 2)))
            else:
                value = load(builder, at, self.dtype, lanes, read, self.step)
            to = offset(builder, end, accumulator, IndexMath(builder).mul(rows, channel))
            store(builder, value, to, accumulator, written)


def table_bytes(patches: Patches, columns: int, lanes: int) -> int:
    """Bytes of the table for so many columns."""
    return 8 * ENTRY * patches.segments(columns, lanes) * max(1, patches.most_taps)


def _bits(builder: Builder, low: Value, high: Value) -> Value:
    """The bits from ``low`` up to ``high``; both are below 64."""
    ones = i64(-1)
    below = builder.not_(builder.shl(ones, high))
    return builder.and_(below, builder.shl(ones, low))


def _mask(builder: Builder, bits: Value, lanes: int) -> Value:
    """The lowest bits as one for each lane."""
    types = ir()
    return builder.bitcast(
        builder.trunc(bits, types.IntType(lanes)), types.VectorType(types.IntType(1), lanes)
    )
