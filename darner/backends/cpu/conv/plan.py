"""What a convolution kernel computes, in the one form that the forward pass and both gradients share.

Every one of them reads *patches* of a tensor [batch, channels, *sizes]: for a pixel of a grid and a tap of the kernel, the element at
``pixel * step + offset`` on each axis, or 0 where that lies outside. The gradient towards the input of a strided convolution is several such
problems, one for each phase of the stride: the pixels of a phase are met by the same taps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from ....codegen.ir.emit import accumulator_of
from ....codegen.ir.types import STORAGE_BYTES
from ....codegen.problems.conv import (
    Patches,
)
from ....graph.errors import InternalError
from ....graph.integers import ceil_div, round_up
from ..contract.tile import Machine, Tile

PANEL_BYTES = 192 << 10
"""Of the cache next to a core: what packed panels may take together."""
MOST_PANELS = 16
"""The most of them: further ones are as good as packed anew."""
ENOUGH = 32
"""Pieces of work that are left for threads to share, however many panels go together."""
LONGEST_BLOCK = 576
"""The most products that one pass over a packed block sums, unless one channel has more."""
MANY_UNITS = 64
"""Pieces of work that make the shares of threads as good as even."""
PACKED, SPACED = 5.0, 6.5
"""Cycles for a piece of a row, of a vector at most, that is packed for one tap of one channel; and for one of elements that lie apart."""
DESCRIBED = 5.0
"""Cycles for writing down what such a piece reads, for all channels."""
FINISHED = 1.5
"""Cycles for a piece of a row on its way to the result."""
SHARED = 60.0
"""Cycles for a line of weights that one thread writes and all read: those that have read it before have to let go of it."""
SCATTERED = 18.0
"""Cycles for such a piece where others come to lie between its pixels."""


@dataclass(frozen=True)
class Cut:
    """How the product of a matrix with patches is cut for a machine.

    Attributes:
        tile: rows and columns kept in registers.
        rows: rows of the product, in one group.
        channels: how many are packed together.
        panels: of the tile's width, in the phase that has most.
        parts: how many pieces the rows are cut into, for threads to share.
        height: rows of a piece.
        together: panels that are packed, and used with the same rows, together; more than one only where all channels are packed at a time.
        cycles: that two threads would take.
    """

    tile: Tile
    rows: int
    channels: int
    panels: int
    parts: int
    height: int
    together: int
    cycles: float

    @property
    def sections(self) -> int:
        """Groups of panels."""
        return ceil_div(self.panels, self.together)

    def units(self, patches: Patches) -> int:
        """Pieces of work that threads share out."""
        return len(patches.phases) * patches.groups * self.sections * self.parts


def tiles_of(machine: Machine, dtype: str) -> list[Tile]:
    """The tiles that fill a machine's registers well, of different widths."""
    lanes = machine.vector_bytes // STORAGE_BYTES[accumulator_of(dtype)]
    shapes = ((6, 2), (4, 3)) if machine.vector_bytes == 32 else ((8, 3), (6, 4))
    return [Tile(rows, vectors, lanes) for rows, vectors in shapes]


def tile_cycles(rows: int, vectors: int, rate: int = 2) -> float:
    """Cycles of one product for every element of a tile: ``rate`` can be added at a time, and two be read."""
    return max(rows * vectors / rate, (rows + vectors) / 2, 4)


def shared(cycles: float, units: int) -> float:
    """Cycles until two threads are done that share so many equal pieces of work."""
    return cycles / 2 if units >= MANY_UNITS else cycles / units * ceil_div(units, 2)


def uneven(rows: int, parts: int, height: int) -> float:
    """How much more than its half the first of two threads has that share so many parts of rows, one after the other."""
    return 1.0 if parts % 2 else 2 * min(rows, parts // 2 * height) / rows


def rows_cycles(rows: int, tile: Tile, cycles: Callable[[int, int], float]) -> float:
    """Cycles of one product for every element of some rows of a tile's width; ``cycles`` says those of a tile."""
    full, rest = divmod(rows, tile.rows)
    return full * cycles(tile.rows, tile.vectors) + (cycles(rest, tile.vectors) if rest else 0.0)


def pieces_of(columns: float, row: int, tile: Tile) -> float:
    """Pieces of rows that so many neighbouring pixels consist of, in panels as wide as a tile."""
    return (
        max(columns / row * ceil_div(row, tile.lanes), columns / tile.lanes)
        + columns / tile.width / 2
    )


def _cycles(patches: Patches, rows: int, tile: Tile, parts: int, rate: int) -> float:
    """Cycles that two threads take with the rows in so many parts: each packs patches by itself."""
    total = 0.0
    work = rows_cycles(rows, tile, partial(tile_cycles, rate=rate))
    packed = SPACED if patches.steps[-1] > 1 else PACKED
    finished = FINISHED if len(patches.phases) == 1 else SCATTERED
    for phase in patches.phases:
        columns = round_up(patches.batch * phase.pixels, tile.lanes)
        pieces = pieces_of(columns, phase.axes[-1].pixels, tile)
        each = columns / tile.width * work + parts * pieces * packed
        total += phase.taps * (patches.channels * each + parts * pieces * DESCRIBED)
        total += rows * pieces * finished
    panels = ceil_div(patches.most_columns, tile.width)
    units = len(patches.phases) * patches.groups * panels * parts
    if units == panels and panels % 2 == 0:
        # One thread has the first half of the panels, and those are whole.
        vectors = ceil_div(patches.most_columns, tile.lanes)
        total *= panels * tile.vectors / vectors
    return shared(patches.groups * total, max(1, units))


def cut(
    patches: Patches,
    rows: int,
    dtype: str,
    machine: Machine,
    copied: Callable[[int, int], float],
) -> Cut:
    """Choose tiles, blocks and pieces: those that two threads would be done with first.

    ``copied(lanes, parts)`` says what copying the weights takes with the rows in so many parts.
    """
    columns = patches.most_columns
    best: Cut | None = None
    for tile in tiles_of(machine, dtype):
        panels = max(1, ceil_div(columns, tile.width))
        tiles = ceil_div(rows, tile.rows)
        for parts in sorted({min(parts, tiles) for parts in (1, 2, 4, 8, 16)}):
            each = ceil_div(tiles, parts)
            parts = ceil_div(tiles, each)
            cycles = _cycles(patches, rows, tile, parts, machine.multiplies)
            cycles *= uneven(rows, parts, each * tile.rows)
            cycles += copied(tile.lanes, parts)
            if best is None or cycles < best.cycles * 0.98:
                best = Cut(tile, rows, 1, panels, parts, each * tile.rows, 1, cycles)
    if best is None:
        raise InternalError(f"no tiles for vectors of {machine.vector_bytes} bytes")
    found = best
    taps = max(1, patches.most_taps)
    blocks = max(1, ceil_div(patches.channels * taps, LONGEST_BLOCK))
    block = ceil_div(patches.channels, min(blocks, patches.channels))
    together = 1
    if block == patches.channels:
        panel = block * taps * found.tile.width * STORAGE_BYTES[accumulator_of(dtype)]
        pieces = len(patches.phases) * patches.groups * found.panels * found.parts
        together = max(1, min(MOST_PANELS, PANEL_BYTES // panel, pieces // ENOUGH))
    return replace(found, channels=block, together=together)
