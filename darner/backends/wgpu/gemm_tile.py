"""How a product of matrices is cut for a GPU: the form of its kernel, its tiles, and the parts of its sums.

Everything that measurements decide stands here.
"""

from __future__ import annotations

from dataclasses import dataclass

from .gemm_load import kept_in
from .gemm_product import Product
from .machine import Machine

PROCESSORS = 132
"""Multiprocessors that work should be there for."""
FEW = 4
"""Up to so many rows (or columns), a product is a few sums for each column: all that counts is how fast the matrix is read."""
SMALL = 16
"""Up to so many rows and columns, and for sums of as many terms, threads read straight from memory."""
SHORT = 8
"""The same for any sizes of sums this short."""
LEAST_TERMS = 128
"""Terms that a part of sums has at least."""
MOST_PARTS = 64
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
        speed: products in a unit of time, where the GPU is full, beside those of other tiles.
        unroll: terms that are written out; a divisor of ``bk``.
        pad: vectors that a line of a transposed tile is longer by, so that threads write to different banks.
        across: threads along columns that stand beside each other in a group of 32; 0 for whole rows of threads.
        buffers: tiles in workgroup memory: 2 need half as many barriers, and twice the memory.
        band: rows of tiles that are gone through together, so that the columns they share are still in the cache; 0 for one.
        cooperative: whether matrices of 16 x 16 are multiplied by one instruction; both operands are f16 then.
    """

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    speed: float = 1.0
    unroll: int = 16
    pad: int = 1
    across: int = 8
    buffers: int = 1
    band: int = 8
    cooperative: bool = False

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return (self.bm // self.tm) * (self.bn // self.tn)

    def shared_bytes(self, itemsize: int) -> int:
        """Bytes of workgroup memory."""
        return self.buffers * self.bk * (self.bm + self.bn + 8 * self.pad) * itemsize


TILES = (
    Tile(128, 128, 16, 8, 8, 1.0),
    Tile(64, 128, 16, 8, 8, 0.9),
    Tile(128, 64, 16, 8, 8, 0.9),
    Tile(64, 64, 16, 4, 8, 0.7),
    Tile(64, 64, 16, 4, 4, 0.55),
    Tile(32, 64, 16, 4, 4, 0.5),
    Tile(64, 32, 16, 4, 4, 0.5),
    Tile(32, 32, 16, 4, 4, 0.4),
    Tile(16, 64, 16, 4, 4, 0.35),
    Tile(64, 16, 16, 4, 4, 0.35),
    Tile(16, 32, 16, 4, 4, 0.25),
    Tile(16, 16, 16, 4, 4, 0.15),
)
"""The tiles that there are."""

COOPERATIVE = Tile(128, 128, 32, 64, 32, 8.0, pad=8, cooperative=True)
"""The tile of products of f16 by cooperative matrices: a subgroup of 32 threads computes ``tm`` x ``tn``."""


@dataclass(frozen=True)
class Cut:
    """A tile, and the number of parts that sums are cut into."""

    tile: Tile
    parts: int = 1


def form_of(product: Product) -> str:
    """The form of a product's kernel: ``thread``, ``vector`` or ``tiles``."""
    m, n, k = product.m, product.n, product.k
    if k <= SHORT or (max(m, n) <= SMALL and k <= 4 * SMALL):
        return "thread"
    return "vector" if min(m, n) <= FEW else "tiles"


def choose(product: Product, machine: Machine) -> Cut:
    """The tile of a product, and the parts of its sums, by what they are expected to take."""
    kept = kept_in(product)
    tiles = [
        tile
        for tile in TILES
        if tile.threads <= machine.threads and tile.shared_bytes(kept.itemsize) <= machine.shared
    ]
    found = [Cut(tile, parts) for tile in tiles for parts in _parts(product, tile)]
    return min(found, key=lambda cut: _cost(product, cut))


def _parts(product: Product, tile: Tile) -> list[int]:
    """The numbers of parts that sums may be cut into."""
    from .gemm_finish import part_bytes

    blocks = -(-product.k // tile.bk)
    found, parts = {1: None}, 2
    while parts <= MOST_PARTS and product.k // parts >= LEAST_TERMS:
        each = -(-blocks // parts)
        # No part is empty.
        whole = -(-blocks // each)
        if whole * part_bytes(product) <= MOST_PART_BYTES:
            found[whole] = None
        parts *= 2
    return list(found)


RESIDENT = 512
"""Threads that keep a multiprocessor busy."""
LAUNCH = 3.0e6
"""What another dispatch costs, in products of one multiprocessor at full speed."""


def _cost(product: Product, cut: Cut) -> float:
    """The time that a product takes, in products of one multiprocessor at full speed."""
    tile = cut.tile
    tiles = -(-product.m // tile.bm) * -(-product.n // tile.bn) * product.count * cut.parts
    terms = -(-product.k // cut.parts) + 2 * tile.bk
    # Tiles that one multiprocessor gets; few of them leave it idle while it waits for memory.
    each = -(-tiles // PROCESSORS)
    busy = min(1.0, each * tile.threads / RESIDENT)
    work = each * tile.bm * tile.bn * terms / (tile.speed * max(busy, 0.1))
    return work + (LAUNCH if cut.parts > 1 else 0.0)


def is_cooperative(product: Product, machine: Machine) -> bool:
    """Whether a product's matrices are multiplied by cooperative matrices: both are stored as f16, and whole tiles."""
    tile = COOPERATIVE
    stored = {operand.leaf.dtype.name for operand in product.operands}
    whole = product.m % tile.bm == product.n % tile.bn == product.k % tile.bk == 0
    return machine.cooperative and machine.half and stored == {"f16"} and whole
