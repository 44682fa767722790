"""How a product of matrices is cut for a GPU: the form of its kernel, its tiles, and the parts of its sums.

Everything that measurements decide stands here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....graph.integers import ceil_div
from ..machine import PROCESSORS, Machine, turns
from .product import Product, kept_in, part_bytes

FEW = 8
"""Up to so many rows (or columns), a product is a few sums for each column: all that counts is how fast the matrix is read."""
SMALL = 16
"""Up to so many rows and columns, and for sums of as many terms, threads read straight from memory."""
SHORT = 8
"""The same for any sizes of sums this short."""
LEAST_TERMS = 64
"""Terms that a part of sums has at least."""
MOST_PARTS = 64
MOST_HELD = 256
"""Bytes of sums that a thread keeps in registers."""
MOST_PART_BYTES = 64 << 20
"""What the parts of all sums may take together."""


@dataclass(frozen=True)
class Tile:
    """What a workgroup computes at once, and how.

    Attributes:
        bm: rows of a workgroup.
        bn: columns of a workgroup.
        bk: terms that are brought to workgroup memory together.
        tm: rows of a thread, a multiple of 4.
        tn: columns of a thread, a multiple of 4.
        full: the share of its peak that a multiprocessor reaches with this tile when it has enough to do.
        unroll: terms that are written out; all of them where it is 0.
        pad: vectors that a line of a transposed tile is longer by, so that threads write to different banks.
        across: threads along columns that stand beside each other in a group of 32; 0 for whole rows of threads.
    """

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    full: float
    unroll: int = 0
    pad: int = 1
    across: int = 8

    @property
    def name(self) -> str:
        """What tells it from others."""
        return f"{self.bm}x{self.bn}x{self.bk} by {self.tm}x{self.tn}"

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return (self.bm // self.tm) * (self.bn // self.tn)

    def shared_bytes(self, itemsize: int) -> int:
        """Bytes of workgroup memory."""
        return self.bk * (self.bm + self.bn + 8 * self.pad) * itemsize


TILES = (
    Tile(128, 128, 16, 8, 8, 0.685),
    Tile(64, 128, 16, 8, 8, 0.66, across=16),
    Tile(128, 64, 16, 8, 8, 0.66),
    Tile(64, 64, 16, 8, 8, 0.645),
    Tile(64, 64, 16, 8, 4, 0.58),
    Tile(64, 64, 16, 4, 4, 0.46),
    Tile(32, 64, 16, 4, 4, 0.45),
    Tile(64, 32, 16, 4, 4, 0.45),
    Tile(32, 32, 32, 4, 4, 0.39),
    Tile(32, 32, 16, 4, 4, 0.41),
    Tile(16, 64, 16, 4, 4, 0.4),
    Tile(64, 16, 16, 4, 4, 0.4),
    Tile(16, 32, 16, 4, 4, 0.35),
    Tile(16, 16, 16, 4, 4, 0.3),
)
"""The tiles that there are, with what was measured on an NVIDIA H200, all buffers bound for reading and writing: 64 x 128 is best where they are not."""


@dataclass(frozen=True)
class Cut:
    """A tile, and the number of parts that sums are cut into."""

    tile: Tile
    parts: int = 1

    @property
    def name(self) -> str:
        """What tells it from others.

        >>> Cut(TILES[0], 2).name
        '128x128x16 by 8x8, 2 parts'
        """
        return self.tile.name + (f", {self.parts} parts" if self.parts > 1 else "")


def form_of(product: Product) -> str:
    """The form of a product's kernel: ``thread``, ``vector`` or ``tiles``."""
    m, n, k = product.m, product.n, product.k
    if k <= SHORT or (max(m, n) <= SMALL and k <= 4 * SMALL):
        return "thread"
    return "vector" if min(m, n) <= FEW else "tiles"


def ranked(product: Product, machine: Machine) -> list[Cut]:
    """The tiles that a product may have, with the parts of its sums: what is expected to take the least time first."""
    size = kept_in(product).itemsize
    tiles = [
        tile
        for tile in TILES
        if tile.threads <= machine.threads
        and tile.shared_bytes(size) <= machine.shared
        and tile.tm * tile.tn * size <= MOST_HELD
    ]
    if machine.software:
        # Compiling takes longer there than running.
        tiles = [replace(tile, unroll=4) for tile in tiles if tile.tm * tile.tn <= 16]
    found = [Cut(tile, parts) for tile in tiles for parts in _parts(product, tile)]
    return sorted(found, key=lambda cut: cycles(product, cut, machine.processors))


def _parts(product: Product, tile: Tile) -> list[int]:
    """The numbers of parts that sums may be cut into: no part is empty."""
    blocks = ceil_div(product.k, tile.bk)
    found, parts = {1}, 2
    while parts <= MOST_PARTS and product.k // parts >= LEAST_TERMS:
        whole = ceil_div(blocks, ceil_div(blocks, parts))
        if whole * part_bytes(product) <= MOST_PART_BYTES:
            found.add(whole)
        parts *= 2
    return sorted(found)


# --------------------------------------------------------------------------- what a product takes

ALONE = 0.75
"""The share of its peak that a multiprocessor reaches while a group of 32 threads does not wait for memory."""
LATENCY = 350
"""Cycles that a block of terms takes beside its products, where nothing else is there to do meanwhile."""
DISPATCH = 5300
"""Cycles that one more dispatch takes."""
BYTES_PER_CYCLE = 2400
"""That go to and from memory."""
REGISTERS = 1 << 16
"""Of a multiprocessor."""


def cycles(product: Product, cut: Cut, processors: int = PROCESSORS) -> float:
    """The time that a product takes, in cycles: the slowest multiprocessor's blocks of terms.

    It is within a fifth of what an H200 takes for 128 x 576 x 576 up to 4096 x 4096 x 4096, with any tile and any number of parts.
    """
    tile = cut.tile
    tiles = ceil_div(product.m, tile.bm) * ceil_div(product.n, tile.bn) * product.count * cut.parts
    blocks = ceil_div(product.k, tile.bk)
    blocks = ceil_div(blocks, cut.parts)
    each = turns(tiles, processors)
    together = min(each, max(1, REGISTERS // (tile.threads * (2 * tile.tm * tile.tn + 48))))
    # A multiprocessor has four schedulers, each for groups of 32 threads.
    work = tile.tm * tile.tn * tile.bk
    groups = ceil_div(tile.threads, 32)
    full = work / tile.full * max(groups * together / 4, 1)
    alone = work / ALONE * ceil_div(groups, 4) + LATENCY
    found = each / together * (blocks + 1) * max(full, alone)
    if cut.parts == 1:
        return found
    return found + DISPATCH + 2 * cut.parts * part_bytes(product) / BYTES_PER_CYCLE
