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
from ..contract.tile import Tile
from ..model import CpuModel
from ..runtime.jit import Machine

PANELS = 3 / 16
"""Of the cache next to a core: what packed panels may take together."""
MOST_PANELS = 16
"""The most of them: further ones are as good as packed anew."""
ENOUGH = 16
"""Pieces of work that are left for each thread, however many panels go together."""
MOST_PARTS = 16
"""Pieces that the rows may be cut into, where threads are no more than that."""
LONGEST_BLOCK = 576
"""The most products that one pass over a packed block sums, unless one channel has more."""


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
        cycles: that all threads would take.
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


def uneven(rows: int, parts: int, height: int, model: CpuModel) -> float:
    """How much more than its even share the first thread has, where so many parts of rows come one after the other; 1 where threads have no whole parts, nor parts whole threads."""
    threads = model.threads
    if parts % threads == 0:
        return threads * min(rows, parts // threads * height) / rows
    return parts * min(rows, height) / rows if threads % parts == 0 else 1.0


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


def _cycles(
    patches: Patches, rows: int, tile: Tile, parts: int, height: int, model: CpuModel
) -> float:
    """Cycles that all threads take with the rows in so many parts of a height: each packs patches by itself."""
    total, cycles = 0.0, model.cycles
    work = rows_cycles(rows, tile, partial(tile_cycles, rate=model.multiplies))
    packed = cycles.spaced if patches.steps[-1] > 1 else cycles.packed
    finished = cycles.finished if len(patches.phases) == 1 else cycles.finished_apart
    for phase in patches.phases:
        columns = round_up(patches.batch * phase.pixels, tile.lanes)
        pieces = pieces_of(columns, phase.axes[-1].pixels, tile)
        each = columns / tile.width * work + parts * pieces * packed
        total += phase.taps * (patches.channels * each + parts * pieces * cycles.described)
        total += rows * pieces * finished
    panels = ceil_div(patches.most_columns, tile.width)
    total *= patches.groups
    units = len(patches.phases) * patches.groups * panels * parts
    if units == panels and panels and panels % model.threads == 0:
        # All threads but the last have whole panels.
        vectors = ceil_div(patches.most_columns, tile.lanes)
        return total * model.largest_share(vectors, tile.vectors)
    return model.time(total, max(1, units)) * uneven(rows, parts, height, model)


def cut(
    patches: Patches,
    rows: int,
    dtype: str,
    machine: Machine,
    copied: Callable[[int, int], float],
) -> Cut:
    """Choose tiles, blocks and pieces: those that all threads would be done with first.

    ``copied(lanes, parts)`` says what copying the weights takes with the rows in so many parts.
    """
    columns, model = patches.most_columns, CpuModel.of(machine)
    best: Cut | None = None
    for tile in tiles_of(machine, dtype):
        panels = max(1, ceil_div(columns, tile.width))
        tiles = ceil_div(rows, tile.rows)
        for parts in sorted({min(parts, tiles) for parts in model.doubled(1, MOST_PARTS, 1)}):
            each = ceil_div(tiles, parts)
            parts = ceil_div(tiles, each)
            cycles = _cycles(patches, rows, tile, parts, each * tile.rows, model)
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
        together = max(
            1, min(MOST_PANELS, model.of_l2(PANELS) // panel, pieces // (ENOUGH * model.threads))
        )
    return replace(found, channels=block, together=together)
