"""What a micro-kernel prefetches while it computes.

Each iteration of the loop over k prefetches one or two cache lines. All at once, they would hold up the loads of the tile itself, which wait for the
same few line-fill buffers. One line is enough wherever there are enough iterations. An ``Asks`` says where the lines are: a few words in
memory that every iteration reads again. Kept in registers, they would push out the addresses of A.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....codegen.ir.emit import ir, minimum, prefetch
from ....codegen.ir.index import i64
from ....codegen.ir.types import Builder, Pointer, Value

LINE = 64
EACH = 2 * LINE
"""Bytes that a turn asks for. Where lines come one by one, half of them were asked for the turn before."""
STREAMS = 3
"""Places that lie alike and can be asked for together, as an update's weights and moments."""
WRITTEN = 6
"""The words that say where a tile is written: its place, and the distance of its rows."""
BESIDE = 8
"""How far other streams are from the first."""
READS = BESIDE + STREAMS - 1
"""The same words for what the sums of a tile are joined with."""
WORDS = 2 * READS


@dataclass(frozen=True)
class Rows:
    """Rows of bytes that are asked for, each in some turns.

    Attributes:
        stride: bytes from one to the next.
        length: bytes of each.
        count: how many there are, usually.
        turns: in which they have to be asked for.

    >>> Rows(4096, 192, 8, 128).taken, Rows(4096, 192, 8, 20).taken
    (32, 16)
    """

    stride: int
    length: int
    count: int
    turns: int

    @property
    def _pairs(self) -> int:
        """Turns for a row where each asks for two lines: a power of two."""
        touched = self.length + (LINE if self.stride % LINE else 0)
        pairs = 1
        while pairs * EACH < touched:
            pairs *= 2
        return pairs

    @property
    def step(self) -> int:
        """Bytes from what a turn asks for to what the next does."""
        return paced(2 * self._pairs * self.count, self.turns)

    @property
    def parts(self) -> int:
        """Turns for a row."""
        return self._pairs * EACH // self.step

    @property
    def taken(self) -> int:
        """Turns for all of them."""
        return self.parts * self.count


def paced(lines: int, turns: int) -> int:
    """Bytes that a turn has to go on by for so many lines: one where that will do.

    >>> paced(100, 144), paced(200, 144)
    (64, 128)
    """
    return LINE if lines <= turns else EACH


class Asks:
    """Words in memory that say what the turns of a tile ask for: rows, each in some turns, a power of two of them.

    What a tile's sums are joined with is needed first, and comes first; other turns ask for what the next tiles need.

    Args:
        builder: at the entry of the function in which tiles are called.
    """

    def __init__(self, builder: Builder) -> None:
        word = ir().IntType(64)
        with builder.goto_entry_block():
            self.place = builder.alloca(word, WORDS)
            for number in range(STREAMS - 1):
                builder.store(i64(0), _word(builder, self.place, BESIDE + number))

    def rows(self, builder: Builder, first: Pointer, rows: Rows, count: Value) -> None:
        """Ask for ``count`` rows from ``first`` on."""
        self._write_rows(builder, 0, first, rows, count)

    def reads(self, builder: Builder, addresses: Sequence[Pointer], rows: Rows) -> None:
        """Ask before that for rows from each of some places on."""
        first, *others = addresses
        self._write_rows(builder, READS, first, rows, i64(rows.count))
        word = i64(0).type
        base = builder.ptrtoint(first, word)
        # Those that are missing are the first once more.
        for number, other in enumerate([*others, *[first] * STREAMS][: STREAMS - 1]):
            distance = builder.sub(builder.ptrtoint(other, word), base)
            builder.store(distance, _word(builder, self.place, READS + BESIDE + number))

    def run(self, builder: Builder, first: Pointer, step: int) -> None:
        """Ask for what follows ``first``, ``step`` bytes in every turn."""
        self._write(builder, 0, first, [i64(step), i64(0), i64(0), i64(1 << 62), i64(0)])

    def writes(self, builder: Builder, first: Pointer, stride: Value) -> None:
        """Say where the tile will be written, rows of so many bytes apart: a line that has to come first would keep others waiting."""
        builder.store(builder.ptrtoint(first, i64(0).type), _word(builder, self.place, WRITTEN))
        builder.store(stride, _word(builder, self.place, WRITTEN + 1))

    def _write_rows(
        self, builder: Builder, at: int, first: Pointer, rows: Rows, count: Value
    ) -> None:
        parts = rows.parts
        often = builder.mul(count, i64(parts))
        words = [i64(rows.stride), i64(parts.bit_length() - 1), i64(parts - 1), often]
        self._write(builder, at, first, [*words, i64(rows.step)])

    def _write(self, builder: Builder, at: int, first: Pointer, words: Sequence[Value]) -> None:
        values = [builder.ptrtoint(first, i64(0).type), *words]
        for number, value in enumerate(values):
            builder.store(value, _word(builder, self.place, at + number))


def ask(builder: Builder, asks: Pointer, turn: Value, streams: int) -> None:
    """Ask for the lines of a turn, of so many streams: of what is read with the sums where there are any, then of what is needed later."""
    if streams > 1:
        often = _read(builder, asks, READS + 4)
        reading = builder.icmp_signed("<", turn, often)
        turn = builder.select(reading, turn, builder.sub(turn, often))
        asks = builder.select(reading, _word(builder, asks, READS), asks)
    turn = minimum(builder, turn, _read(builder, asks, 4))
    row = builder.mul(builder.lshr(turn, _read(builder, asks, 2)), _read(builder, asks, 1))
    part = builder.mul(builder.and_(turn, _read(builder, asks, 3)), _read(builder, asks, 5))
    position = builder.add(builder.add(_read(builder, asks, 0), row), part)
    places = [
        position,
        *(builder.add(position, _read(builder, asks, BESIDE + i)) for i in range(streams - 1)),
    ]
    for line in range(0, EACH, LINE):
        for start in places:
            address = builder.inttoptr(builder.add(start, i64(line)), ir().PointerType())
            prefetch(builder, address, near=2)


def ask_for_target(builder: Builder, asks: Pointer, turn: Value, rows: int, row_bytes: int) -> None:
    """Ask, in one turn for each row, for the lines in which a tile will be written."""
    # Asking for a row again costs less than to know that it was.
    again = not rows & (rows - 1)
    row = builder.and_(turn, i64(rows - 1)) if again else minimum(builder, turn, i64(rows - 1))
    row = builder.mul(row, _read(builder, asks, WRITTEN + 1))
    position = builder.add(_read(builder, asks, WRITTEN), row)
    for line in range(0, row_bytes, LINE):
        # The last element of each line's length: of rows that begin within a line, the first is there since the panel before.
        address = builder.add(position, i64(min(line + LINE, row_bytes) - 1))
        prefetch(builder, builder.inttoptr(address, ir().PointerType()), near=3, write=True)


def _read(builder: Builder, address: Pointer, number: int) -> Value:
    # Part of the instruction that uses it: no pass of LLVM's that would move it out of the loop is run over tiles.
    return builder.load(_word(builder, address, number), typ=i64(0).type)


def _word(builder: Builder, address: Pointer, number: int) -> Pointer:
    return builder.gep(address, [i64(number)], source_etype=i64(0).type)
