"""How products of matrices are cut into tiles: which tile, and how many parts the sums are cut into where tiles are few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.integers import ceil_div
from ..machine import Machine, turns
from .tile import Tile

TILES = (
    Tile(128, 128, 16, 8, 8, 0.685, beside=8),
    Tile(64, 128, 16, 8, 8, 0.66),
    Tile(128, 64, 16, 8, 8, 0.66),
    Tile(64, 64, 16, 8, 8, 0.645),
    Tile(64, 64, 16, 8, 4, 0.58),
    Tile(32, 128, 16, 4, 8, 0.5),
    Tile(64, 64, 16, 4, 4, 0.46),
    Tile(32, 64, 16, 4, 4, 0.45),
    Tile(64, 32, 16, 4, 4, 0.45),
    Tile(32, 32, 16, 4, 4, 0.41),
    Tile(16, 64, 16, 4, 4, 0.4),
    Tile(64, 16, 16, 4, 4, 0.4),
    Tile(16, 32, 16, 4, 4, 0.35),
)
"""With the share of its peak that an NVIDIA H200 reaches in plain products."""
WIDE_TILES = (
    Tile(64, 64, 8, 8, 4, 0.6),
    Tile(32, 32, 8, 4, 4, 0.4),
    Tile(16, 32, 8, 4, 4, 0.35),
)
"""Of f64, which takes twice the memory."""

REGISTERS = 1 << 16
"""Of one of them."""
ALONE = 0.75
"""The share of its peak that one reaches while no thread waits for memory."""
LATENCY = 500
"""Cycles that a step takes beside its products, where nothing else is there to do meanwhile."""
DISPATCH = 6500
"""Cycles for one dispatch more."""
TRAFFIC = 2400
"""Bytes of sums that are written or read in a cycle."""
MOST_PARTS = 64
MOST_PART_BYTES = 64 << 20
"""What the parts of all sums may take together."""
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


@dataclass(frozen=True)
class Products:
    """Products of matrices that are alike.

    Attributes:
        rows: of each.
        columns: of each of the products that differ in nothing else.
        length: of the sums.
        repeats: how often there are all of these.
        dtype: the type that is computed in.
        pad: vectors of shared memory behind each row; see ``Tile.nbytes``.
    """

    rows: int
    columns: Sequence[int]
    length: int
    repeats: int
    dtype: DType
    pad: int


def cut_of(products: Products, machine: Machine, besides: int = 0) -> Cut:
    """The tiles of products; ``besides`` are bytes of shared memory that a kernel needs for something else."""
    dtype, rows = products.dtype, products.rows
    tiles: tuple[Tile, ...] = WIDE_TILES if dtype is dtypes.f64 else TILES
    if machine.software:
        # Compiling takes longer there than running.
        tiles = tuple(tile for tile in tiles if tile.high * tile.wide <= 16)
    fitting = [
        tile
        for tile in tiles
        if tile.nbytes(dtype, products.pad) + besides <= machine.shared
        and tile.threads <= machine.threads
    ]
    nbytes = products.repeats * rows * sum(products.columns) * dtype.itemsize
    found: list[tuple[float, int, Cut]] = []
    for tile in fitting or tiles[-1:]:
        across = sum(ceil_div(count, tile.columns) for count in products.columns)
        count = products.repeats * across * ceil_div(rows, tile.rows)
        steps, parts = ceil_div(products.length, tile.depth), 1
        while parts == 1 or (
            parts <= MOST_PARTS
            and steps >= parts * LEAST_STEPS
            and parts * nbytes <= MOST_PART_BYTES
        ):
            each = ceil_div(steps, parts)
            cut = Cut(tile, ceil_div(steps, each) if each else 1, each)
            found.append((_cycles(cut, count, nbytes, machine.processors), len(found), cut))
            parts *= 2
    return min(found)[2]


def _cycles(cut: Cut, count: int, nbytes: int, processors: int) -> float:
    """The time that a large GPU would take, more or less: the slowest multiprocessor's steps."""
    tile = cut.tile
    each = turns(count * cut.parts, processors)
    held = tile.threads * (2 * tile.high * tile.wide + 48)
    together = min(each, max(1, REGISTERS // held))
    work = tile.high * tile.wide * tile.depth
    # A multiprocessor has four schedulers, each for groups of 32 threads.
    groups = ceil_div(tile.threads, 32)
    full = work / tile.rate * max(groups * together / 4, 1)
    alone = work / ALONE * ceil_div(groups, 4) + LATENCY
    found = each / together * (cut.steps + 1) * max(full, alone)
    if cut.parts == 1:
        return found
    return found + DISPATCH + 2 * cut.parts * nbytes / TRAFFIC
