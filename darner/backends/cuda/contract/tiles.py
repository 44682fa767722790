"""Tiles of products by ``wgmma``: what a block computes and with what, and how a product is cut into them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....codegen.simt.contract.product import Product
from ....graph.integers import ceil_div
from ..instructions import wgmma
from .raster import Raster
from .store import SLAB

ROW = wgmma.ROW
WARPGROUP = 128
PARTITION = 512
"""Registers of a lane that a quarter of a multiprocessor has."""


@dataclass(frozen=True)
class WgmmaTile:
    """What a block computes, and how.

    Attributes:
        bm: rows of a block, 64 or more for each warpgroup.
        bn: columns of a block.
        stages: of the ring.
        groups: warpgroups that multiply.
        cluster: blocks below each other that share B.
        blocks: of a multiprocessor.
        slabs: pieces of 64 rows by 128 bytes of results that a warpgroup has on their way to memory.
        registers: of a thread that brings and of one that multiplies; None leaves all alike, and one warp brings.
        turns: whether each of two warpgroups has tiles of its own, so that one multiplies while the other writes.
        full: the share of its peak that a multiprocessor reaches with this tile when it has enough to do.
    """

    bm: int
    bn: int
    stages: int
    groups: int = 2
    cluster: int = 1
    blocks: int = 1
    slabs: int = 1
    registers: tuple[int, int] | None = None
    turns: bool = False
    full: float = 0.7

    @property
    def name(self) -> str:
        """What tells it from others.

        >>> WgmmaTile(128, 256, 4, cluster=2).name
        'wgmma 128x256, 4 stages, cluster of 2'
        """
        cluster = f", cluster of {self.cluster}" if self.cluster > 1 else ""
        together = f", {self.blocks} together" if self.blocks > 1 else ""
        turns = ", in turns" if self.turns else ""
        return f"wgmma {self.bm}x{self.bn}, {self.stages} stages{cluster}{together}{turns}"

    @property
    def threads(self) -> int:
        """Threads of a block: those that multiply, and a warpgroup that gives its registers away or a single warp."""
        return WARPGROUP * (self.groups + 1) if self.registers else WARPGROUP * self.groups + 32

    @property
    def down(self) -> int:
        """Sixty-fours of rows of a warpgroup."""
        return self.bm // (64 * self.sharing)

    @property
    def box(self) -> int:
        """Columns of B that one copy brings where it lies along K: a block's share, or sixty-fours where that is none of whole ones."""
        share = self.bn // self.cluster
        return 64 if share % 64 and self.cluster > 1 else share

    @property
    def sharing(self) -> int:
        """Warpgroups that share a tile."""
        return 1 if self.turns else self.groups

    @property
    def most_registers(self) -> int:
        """Registers that a thread which multiplies can have."""
        if self.registers:
            return self.registers[1]
        warps = ceil_div(self.threads // 32 * self.blocks, 4)
        return min(255, PARTITION // warps // 8 * 8)

    @property
    def stage_bytes(self) -> int:
        """Bytes of both operands' tiles."""
        return (self.bm + self.bn) * ROW

    @property
    def slabs_at(self) -> int:
        """Where slabs begin in shared memory."""
        return self.stages * self.stage_bytes

    @property
    def barriers_at(self) -> int:
        """Where barriers begin in shared memory."""
        return self.slabs_at + self.groups * self.slabs * SLAB

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory."""
        return self.barriers_at + 16 * self.stages


@dataclass(frozen=True)
class WgmmaCut:
    """A tile, the number of parts that sums are cut into, the blocks that take tiles, and how many of them share the terms of a tile: then each has one tile, which is in no cluster otherwise."""

    tile: WgmmaTile
    parts: int
    blocks: int
    sharing: int = 1

    @property
    def name(self) -> str:
        """What tells it from others."""
        parts = f", {self.parts} parts" if self.parts > 1 else ""
        return self.tile.name + parts + (f", shared by {self.sharing}" * (self.sharing > 1))

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.tile.cluster * self.sharing

    def of(self, product: Product, processors: int) -> WgmmaCut:
        """The same with as many blocks as a product has tiles for, at most those that run at a time."""
        most = processors * self.tile.blocks // self.tile.cluster
        blocks = min(self.raster(product).tiles, most) * self.tile.cluster
        return replace(self, blocks=blocks)

    def raster(self, product: Product) -> Raster:
        """The order of a product's tiles; those of a cluster are one."""
        tile = self.tile
        return Raster.of(product, tile.bm * tile.cluster, tile.bn, self.parts)
