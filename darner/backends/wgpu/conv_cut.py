"""How products of matrices are cut into tiles: which tile, and how many parts the sums are cut into where tiles are few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ...graph import dtypes
from ...graph.dtypes import DType
from .conv_tile import Tile
from .machine import Machine

TILES = (
    Tile(128, 128, 16, 8, 8, 0.85),
    Tile(64, 128, 16, 8, 8, 0.75),
    Tile(128, 64, 16, 8, 8, 0.75),
    Tile(64, 64, 16, 4, 8, 0.6),
    Tile(32, 128, 16, 4, 8, 0.6),
    Tile(32, 64, 16, 4, 4, 0.45),
    Tile(32, 32, 16, 4, 4, 0.35),
    Tile(16, 64, 16, 4, 4, 0.35),
)
WIDE_TILES = (
    Tile(64, 64, 8, 8, 4, 0.6),
    Tile(32, 32, 8, 4, 4, 0.35),
)
"""Of f64, which takes twice the memory."""

UNITS = 128
"""Multiprocessors of a large GPU: what has fewer workgroups leaves some idle."""
RATE = 200.0
"""Products that one of them does in a nanosecond, in vectors."""
FULL = 512
"""Threads that keep one busy."""
DISPATCH = 3000.0
"""Nanoseconds for one dispatch more."""
TRAFFIC = 2000.0
"""Bytes of sums that are written and read again in a nanosecond."""
MOST_PARTS = 64
LEAST_STEPS = 4
"""Of a part of the sums: fewer are not worth the rest of the kernel."""


@dataclass(frozen=True)
class Cut:
    """A product's tiles.

    Attributes:
        tile: of each workgroup.
        parts: how many pieces the sums are cut into.
        steps: of one piece, at most.
    """

    tile: Tile
    parts: int
    steps: int


def cut_of(
    rows: int,
    columns: Sequence[int],
    length: int,
    repeats: int,
    machine: Machine,
    dtype: DType,
    pad: int,
    besides: int = 0,
) -> Cut:
    """The tiles of ``repeats`` products of so many rows, for each number of columns in ``columns``, with sums of ``length``.

    ``besides`` are bytes of shared memory that a kernel needs for something else.
    """
    best: tuple[float, Cut] | None = None
    for tile in WIDE_TILES if dtype is dtypes.f64 else TILES:
        if tile.nbytes(dtype, pad) + besides > machine.shared or tile.threads > machine.threads:
            continue
        across = sum(-(-count // tile.columns) for count in columns)
        count = repeats * across * -(-rows // tile.rows)
        steps = -(-length // tile.depth)
        parts = 1
        while True:
            each = -(-steps // parts)
            found = Cut(tile, -(-steps // each) if each else 1, each)
            time = _time(found, count)
            if parts > 1:
                total = repeats * rows * sum(columns) * dtype.itemsize
                time += DISPATCH + (found.parts + 1) * total / TRAFFIC
            if best is None or time < best[0]:
                best = time, found
            parts *= 2
            if parts > MOST_PARTS or steps < parts * LEAST_STEPS:
                break
    if best is None:
        smallest = TILES[-1]
        return Cut(smallest, 1, -(-length // smallest.depth))
    return best[1]


def _time(cut: Cut, count: int) -> float:
    """Nanoseconds that a large GPU would take, more or less."""
    tile = cut.tile
    each = -(-count * cut.parts // UNITS)
    busy = min(1.0, each * tile.threads / FULL)
    products = prod((tile.rows, tile.columns, tile.depth, cut.steps + 2))
    return each * products / (RATE * tile.rate * busy)
