"""What a micro-kernel asks memory for while it computes, so that it is in the cache when its turn comes.

Two lines of cache are asked for in each turn of the loop over k: all at once, they would hold up the loads of the tile itself. Where they lie is
said by an ``Asks``, a few words in memory that every turn reads again: kept in registers, they would push out the addresses of A.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .gemm_ir import i64, ir, minimum, prefetch

LINE = 64
EACH = 2 * LINE
"""Bytes that a turn asks for."""
WRITTEN = 5
"""The words that say where a tile is written: its place, and the distance of its rows."""
WORDS = 7
STREAMS = 3
"""Places that lie alike and can be asked for together, as an update's weights and moments."""


class Asks:
    """Words in memory that say what the turns of a tile ask for: rows, each in some turns, a power of two of them.

    Args:
        builder: at the entry of the function in which tiles are called.
    """

    def __init__(self, builder: Any) -> None:
        word = ir().IntType(64)
        with builder.goto_entry_block():
            self.place = builder.alloca(word, WORDS + STREAMS - 1)

    def rows(self, builder: Any, first: Any, stride: int, row_bytes: int, rows: Any) -> None:
        """Ask for ``rows`` rows of bytes from ``first`` on, ``stride`` bytes apart."""
        touched = row_bytes + (LINE if stride % LINE else 0)
        parts = 1
        while parts * EACH < touched:
            parts *= 2
        often = builder.mul(rows, i64(parts))
        words = [i64(stride), i64(parts.bit_length() - 1), i64(parts - 1), often]
        self._write(builder, first, words)

    def run(self, builder: Any, first: Any) -> None:
        """Ask for what follows ``first``, for as long as there are turns."""
        self._write(builder, first, [i64(EACH), i64(0), i64(0), i64(1 << 62)])

    def writes(self, builder: Any, first: Any, stride: Any) -> None:
        """Say where the tile will be written, rows of so many bytes apart: a line that has to come first would keep others waiting."""
        builder.store(builder.ptrtoint(first, i64(0).type), _word(builder, self.place, WRITTEN))
        builder.store(stride, _word(builder, self.place, WRITTEN + 1))

    def beside(self, builder: Any, first: Any, others: Sequence[Any]) -> None:
        """Say how far the other streams are from the first; those that are missing are the first once more."""
        word = i64(0).type
        base = builder.ptrtoint(first, word)
        others = [*others, *[first] * STREAMS][: STREAMS - 1]
        for number, other in enumerate(others):
            distance = builder.sub(builder.ptrtoint(other, word), base)
            builder.store(distance, _word(builder, self.place, WORDS + number))

    def _write(self, builder: Any, first: Any, words: Sequence[Any]) -> None:
        values = [builder.ptrtoint(first, i64(0).type), *words]
        for number, value in enumerate(values):
            builder.store(value, _word(builder, self.place, number))


def ask(builder: Any, asks: Any, turn: Any, streams: int) -> None:
    """Ask for the lines of a turn, of so many streams."""
    turn = minimum(builder, turn, _read(builder, asks, 4))
    row = builder.mul(builder.lshr(turn, _read(builder, asks, 2)), _read(builder, asks, 1))
    part = builder.mul(builder.and_(turn, _read(builder, asks, 3)), i64(EACH))
    place = builder.add(builder.add(_read(builder, asks, 0), row), part)
    places = [
        place,
        *(builder.add(place, _read(builder, asks, WORDS + i)) for i in range(streams - 1)),
    ]
    for line in range(0, EACH, LINE):
        for start in places:
            address = builder.inttoptr(builder.add(start, i64(line)), ir().PointerType())
            prefetch(builder, address, near=2)


def ask_for_target(builder: Any, asks: Any, turn: Any, rows: int, row_bytes: int) -> None:
    """Ask, in one turn for each row, for the lines in which a tile will be written."""
    row = minimum(builder, turn, i64(rows - 1))
    row = builder.mul(row, _read(builder, asks, WRITTEN + 1))
    place = builder.add(_read(builder, asks, WRITTEN), row)
    for line in range(0, row_bytes, LINE):
        # The last element of each line's length: of rows that begin within a line, the first is there since the panel before.
        address = builder.add(place, i64(min(line + LINE, row_bytes) - 1))
        prefetch(builder, builder.inttoptr(address, ir().PointerType()), near=3, write=True)


def _read(builder: Any, place: Any, number: int) -> Any:
    # An ordered load is not moved out of the loop.
    return builder.load_atomic(_word(builder, place, number), "monotonic", 8, typ=i64(0).type)


def _word(builder: Any, place: Any, number: int) -> Any:
    return builder.gep(place, [i64(number)], source_etype=i64(0).type)
