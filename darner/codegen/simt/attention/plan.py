"""How the products of attention are cut for a GPU.

A workgroup has a block of rows and goes through blocks of columns: forward and for the gradient of queries rows are queries and columns are keys, for those of keys and
values it is the other way round. A thread has a few rows and columns of each block of scores, and the same rows of what is summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ....graph.integers import ceil_div
from ..machine import Machine

BUSY = 132 * 256
"""Threads that keep a large GPU busy."""
BYTES_PER_PRODUCT = 0.12
"""What a large GPU reads from its cache, in bytes, while it multiplies and adds two numbers."""
BALANCED = 16
"""Products for each vector read from shared memory, from which on reading does not hold them up."""
SHORTEST = 4
"""Blocks of columns that a part has at least."""
MOST_NUMBERS = 208
"""Numbers that a thread keeps: what its registers can hold."""


@dataclass(frozen=True)
class Cut:
    """How the threads of a workgroup share a block of scores.

    Attributes:
        down: threads along rows.
        across: threads along columns.
        rows: of each thread, ``down`` apart.
        columns: of each thread, ``across`` apart; a multiple of 4.
        depth: vectors of 4 numbers of a row that lie in shared memory at a time.
        kept: whether the rows do as a whole, once for all columns.
        chunk: columns whose rows do, where they are summed.
        room: vectors of shared memory for the columns.
        parts: of the columns, where there are too few blocks of rows; what they make is put together at the end.
    """

    down: int
    across: int
    rows: int
    columns: int
    depth: int = 1
    kept: bool = False
    chunk: int = 4
    room: int = 0
    parts: int = 1

    @property
    def threads(self) -> int:
        """Of a workgroup."""
        return self.down * self.across

    @property
    def row_block(self) -> int:
        """Rows of a workgroup."""
        return self.down * self.rows

    @property
    def column_block(self) -> int:
        """Columns that are met at a time."""
        return self.across * self.columns

    @property
    def quads(self) -> int:
        """Vectors of a thread's columns."""
        return self.columns // 4

    @property
    def pitch(self) -> int:
        """Vectors from row to row in shared memory: odd, so that neighbours lie in different banks."""
        return self.depth | 1

    @property
    def weight_pitch(self) -> int:
        """Vectors from row to row of a block of scores in shared memory."""
        return (self.column_block // 4) | 1

    def summed(self, width: int) -> int:
        """Vectors of a thread in each of its rows of a sum."""
        return ceil_div(ceil_div(width, 4), self.across)


CUTS = (
    Cut(8, 8, 8, 8),
    Cut(8, 16, 8, 4),
    Cut(8, 16, 4, 4),
    Cut(8, 8, 4, 4),
    Cut(4, 16, 4, 4),
    Cut(4, 16, 2, 4),
    Cut(2, 32, 1, 4),
)
"""How blocks can be shared out: those that load least for each product first."""


@dataclass(frozen=True)
class Blocks:
    """What is cut.

    Attributes:
        rows: of one head.
        heads: of the whole batch.
        multiplied: the widths of the products that make scores.
        summed: the widths of what is summed with them.
        columns: that a row meets, where they may be cut into parts.
    """

    rows: int
    heads: int
    multiplied: tuple[int, ...]
    summed: tuple[int, ...]
    columns: int = 0


def choose(blocks: Blocks, machine: Machine) -> Cut | None:
    """The cut of some blocks; None where nothing fits."""
    found = [_fitted(cut, machine, blocks.multiplied, blocks.summed) for cut in CUTS]
    fitting = [
        _in_parts(cut, blocks.rows, blocks.heads, blocks.columns)
        for cut in found
        if cut is not None
    ]
    return min(fitting, key=lambda cut: _cost(cut, blocks.rows, blocks.heads), default=None)


def _in_parts(cut: Cut, rows: int, heads: int, columns: int) -> Cut:
    """The same with as many parts of columns as keep a GPU busy."""
    threads = max(1, heads * ceil_div(rows, cut.row_block)) * cut.threads
    blocks = ceil_div(columns, cut.column_block)
    return replace(cut, parts=max(1, min(BUSY // threads, blocks // SHORTEST)))


def _cost(cut: Cut, rows: int, heads: int) -> float:
    """What all scores take, in products of numbers on a GPU that is fully busy: for each column and number of a row."""
    groups = max(1, heads * ceil_div(rows, cut.row_block))
    reads = 4 * cut.rows * cut.columns / (cut.rows + cut.columns)
    speed = min(1.0, reads / BALANCED) * min(1.0, groups * cut.parts * cut.threads / BUSY)
    return max(groups * cut.row_block / speed, groups * 4 / BYTES_PER_PRODUCT)


def _fitted(
    cut: Cut, machine: Machine, multiplied: Sequence[int], summed: Sequence[int]
) -> Cut | None:
    """A cut with the most that shared memory can hold, or None."""
    numbers = cut.rows * cut.columns * len(multiplied) + 4 * (cut.rows + cut.columns)
    numbers += 4 * cut.rows * sum(cut.summed(width) for width in summed)
    if numbers > MOST_NUMBERS or cut.threads > machine.threads:
        return None
    size = 16
    deepest = max(1, *(ceil_div(width, 4) for width in multiplied))
    apart = max([0, *(cut.across * cut.summed(width) for width in summed)])
    rows_out = max([0, *(cut.down * ceil_div(width, 4) for width in summed)])
    # Exchanged maxima and sums, and a number that all read.
    others = (cut.row_block * (cut.across + 2) + 4) * size // 4
    weights = cut.row_block * cut.weight_pitch * size
    for depth in (deepest, *(depth for depth in (16, 8, 4, 2, 1) if depth < deepest)):
        # Rows of one product can stay: those of two take turns.
        for kept in (True, False) if len(multiplied) == 1 else (False,):
            left = cut.row_block * ((deepest if kept else depth) | 1)
            columns = cut.column_block * (depth | 1)
            chunk = cut.column_block
            while chunk > 4 and chunk * apart > columns:
                chunk //= 2
            room = max(columns, chunk * apart, rows_out)
            if (left + room) * size + weights + others <= machine.shared:
                return replace(cut, depth=depth, kept=kept, chunk=chunk, room=room)
    return None
