"""How the products of attention are cut for a GPU.

A workgroup has a block of rows and goes through blocks of columns: forward and for the gradient of queries rows are queries and columns are keys, for those of keys and
values it is the other way round. A thread has a few rows and columns of each block of scores, and the same rows of what is summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..cpu.attention_plan import Described
from .machine import Machine

ENOUGH = 264
"""Workgroups that fill a large GPU: blocks are smaller where there would be fewer."""
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
        chunk: columns whose rows do, where they are summed.
        room: vectors of shared memory for the columns.
    """

    down: int
    across: int
    rows: int
    columns: int
    depth: int = 1
    chunk: int = 4
    room: int = 0

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
        return -(-_quads(width) // self.across)


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


def _quads(width: int) -> int:
    return -(-width // 4)


def choose(
    attention: Described,
    machine: Machine,
    rows: int,
    heads: int,
    multiplied: Sequence[int],
    summed: Sequence[int],
) -> Cut | None:
    """The cut for so many rows of each of ``heads``; None where nothing fits.

    Args:
        attention: what is computed.
        machine: the GPU.
        rows: of one head.
        heads: of the whole batch.
        multiplied: the widths of the products that make scores.
        summed: the widths of what is summed with them.
    """
    best: Cut | None = None
    most = 0
    for cut in CUTS:
        found = _fitted(cut, machine, attention, multiplied, summed)
        if found is None:
            continue
        groups = heads * -(-rows // cut.row_block)
        if groups > most:
            best, most = found, groups
        if groups >= ENOUGH:
            break
    return best


def _fitted(
    cut: Cut,
    machine: Machine,
    attention: Described,
    multiplied: Sequence[int],
    summed: Sequence[int],
) -> Cut | None:
    """A cut with the most that shared memory can hold, or None."""
    wide = attention.accumulator == "f64"
    numbers = cut.rows * cut.columns * len(multiplied) + 4 * (cut.rows + cut.columns)
    numbers += 4 * cut.rows * sum(cut.summed(width) for width in summed)
    if numbers * (2 if wide else 1) > MOST_NUMBERS or cut.threads > machine.threads:
        return None
    size = 32 if wide else 16
    deepest = max(1, *(_quads(width) for width in multiplied))
    apart = max([0, *(cut.across * cut.summed(width) for width in summed)])
    rows_out = max([0, *(cut.down * _quads(width) for width in summed)])
    # Exchanged maxima and sums, and the stage of one number that all read.
    others = (cut.row_block * (cut.across + 2) + 4) * size // 4
    weights = cut.row_block * cut.weight_pitch * size
    depths = [deepest, *(depth for depth in (16, 8, 4, 2, 1) if depth < deepest)]
    for depth in depths:
        left, columns = cut.row_block * (depth | 1), cut.column_block * (depth | 1)
        chunk = cut.column_block
        while True:
            room = max(columns, chunk * apart, rows_out)
            if (left + room) * size + weights + others <= machine.shared:
                return Cut(cut.down, cut.across, cut.rows, cut.columns, depth, chunk, room)
            if chunk <= 4 or chunk * apart <= columns:
                break
            chunk //= 2
    return None
