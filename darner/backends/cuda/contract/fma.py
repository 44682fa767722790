"""Products of f32 without tensor cores: a ring of tiles in shared memory that ``cp.async`` fills, and threads that keep 8 rows by 8 columns of sums in registers (sm_80).

Operands lie in shared memory as they do in memory: contiguous along K, in rows of 32 terms, or along rows and columns, a term a row. Either way a thread reads 16 bytes at a time, and 8 lanes
never meet in a bank. A thread has fours of neighbouring rows and columns, half a tile apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....codegen.simt.builder import Simt, Value, Variable
from ....codegen.simt.contract.epilogue import Sink
from ....codegen.simt.contract.product import Product
from ....codegen.simt.contract.tiles import SinkOf
from ....codegen.simt.dispatch import Dispatch
from ....graph import dtypes
from ....graph.integers import ceil_div
from ..instructions.warp import Cores
from .fragments import WARP, Corner, Room, SumWriter
from .loaders import ROW, Block, Source, loader_of
from .mma import write_ring
from .operands import PIECE
from .raster import Raster

SIDE = 8
"""Rows and columns of a thread."""
FOUR = 4
TERMS = ROW // 4
"""Terms of a tile."""


@dataclass(frozen=True)
class FmaTile:
    """What a block computes, and how.

    Attributes:
        bm: rows of a block.
        bn: columns of a block.
        stages: tiles in shared memory.
        blocks: of a multiprocessor, at least.
        ahead: fours of terms that are written out.
        full: the share of its peak that a multiprocessor reaches with this tile when it has enough to do.
    """

    bm: int
    bn: int
    stages: int
    blocks: int = 1
    ahead: int = 1
    full: float = 0.75

    @property
    def name(self) -> str:
        """What tells it from others."""
        together = f", {self.blocks} together" if self.blocks > 1 else ""
        ahead = f", {self.ahead} fours" if self.ahead > 1 else ""
        return f"fma {self.bm}x{self.bn}, {self.stages} stages{together}{ahead}"

    @property
    def down(self) -> int:
        """Threads along the rows."""
        return self.bm // SIDE

    @property
    def across(self) -> int:
        """Threads along the columns; 8 or more."""
        return self.bn // SIDE

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.down * self.across

    @property
    def stage_bytes(self) -> int:
        """Bytes of both operands' tiles."""
        return (self.bm + self.bn) * ROW

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory."""
        return self.stages * self.stage_bytes


@dataclass(frozen=True)
class FmaCut:
    """A tile, and the number of parts that sums are cut into."""

    tile: FmaTile
    parts: int = 1

    @property
    def name(self) -> str:
        """What tells it from others."""
        return self.tile.name + (f", {self.parts} parts" if self.parts > 1 else "")

    def raster(self, product: Product) -> Raster:
        """The order of a product's tiles."""
        return Raster.of(product, self.tile.bm, self.tile.bn, self.parts)


class FourReader:
    """Reads a thread's eight rows of A, or columns of B, from a stage: for four terms at a time.

    Args:
        builder: where the code goes.
        cores: reads shared memory.
        along_k: whether the operand lies in rows along K.
        place: the thread's number along the operand's rows.
        block: the operand's tile.
    """

    def __init__(
        self, builder: Simt, cores: Cores, along_k: bool, place: Value, block: Block
    ) -> None:
        b = self.builder = builder
        self.cores, self.along_k = cores, along_k
        self.half = block.rows // 2
        if along_k:
            self.base = b.let(place * (FOUR * ROW) + block.at, "base")
            # All of the thread's rows have the same swizzle: they are neighbours, and a multiple of 32 apart.
            self.key = b.let(place & 7, "key")
        else:
            # Eight lanes read a line of 128 bytes: no swizzle is needed.
            self.pitch = block.rows * 4
            self.base = b.let(place * PIECE + block.at, "base")

    def read(self, stage: Value, four: Value) -> list[list[Value]]:
        """The numbers of a four of terms: a list for each row."""
        b = self.builder
        if self.along_k:
            first = b.let(stage + self.base + ((four ^ self.key) << 4))
            rows = [(i % FOUR + i // FOUR * self.half) * ROW for i in range(SIDE)]
            return [self.cores.load_four(b.let(first + row)) for row in rows]
        found: list[list[Value]] = [[] for _ in range(SIDE)]
        first = b.let(stage + self.base + four * (FOUR * self.pitch))
        for term in range(FOUR):
            for part in range(SIDE // FOUR):
                at = b.let(first + (term * self.pitch + part * self.half * 4))
                for x, value in enumerate(self.cores.load_four(at)):
                    found[part * FOUR + x].append(value)
        return found


class _Thread:
    """A thread's sums, and what adds products to them."""

    def __init__(self, builder: Simt, readers: Sequence[FourReader], ahead: int) -> None:
        self.builder, self.readers, self.ahead = builder, readers, ahead
        self.sums: list[list[Variable]] = [
            [builder.variable(0.0, "c", dtypes.f32) for _ in range(SIDE)] for _ in range(SIDE)
        ]

    def multiply(self, stage: Value) -> None:
        """Add the products of a stage."""
        b = self.builder
        with b.for_(0, TERMS // FOUR, self.ahead, name="four") as four:
            following = self._read(stage, four)
            for number in range(self.ahead):
                rows, columns = following
                if number + 1 < self.ahead:
                    # On their way while these are multiplied.
                    following = self._read(stage, b.let(four + (number + 1)))
                for term in range(FOUR):
                    for i, row in enumerate(rows):
                        for j, column in enumerate(columns):
                            total = self.sums[i][j]
                            total.set(b.fma(row[term], column[term], total))

    def _read(self, stage: Value, four: Value) -> list[list[list[Value]]]:
        """Both operands' numbers of a four of terms."""
        return [reader.read(stage, four) for reader in self.readers]


def write_fma(
    dispatch: Dispatch,
    cores: Cores,
    product: Product,
    cut: FmaCut,
    sources: Sequence[Source],
    sink: SinkOf,
) -> None:
    """Write the kernel of a product."""
    b, tile = dispatch.builder, cut.tile
    raster = cut.raster(product)
    place = raster.place(b, b.group)
    took = sink(place.part)
    blocks = (
        Block(place.batch, place.row, tile.bm, 0),
        Block(place.batch, place.column, tile.bn, tile.bm * ROW),
    )
    loaders = [
        loader_of(dispatch, cores, source, block, (2, None))
        for source, block in zip(sources, blocks, strict=True)
    ]
    # A warp has four threads down and eight across.
    warp, lane = b.let(b.local // WARP, "warp"), b.let(b.local % WARP, "lane")
    wide = tile.across // 8
    down = b.let(warp // wide * 4 + lane // 8, "down")
    across = b.let(warp % wide * 8 + lane % 8, "across")
    readers = [
        FourReader(b, cores, loader.along_k, number, block)
        for loader, number, block in zip(loaders, (down, across), blocks, strict=True)
    ]
    own = _Thread(b, readers, tile.ahead)
    first, last = raster.blocks(b, place.part, ceil_div(product.k, TERMS))
    with write_ring(b, cores, tile, loaders, (first, last)) as stage:
        own.multiply(stage)
    room = Room(b.let(cores.base + warp * (4 * FOUR * WARP * 4)), WARP)
    writer = FourWriter(b, cores, product, room)
    took.begin()
    for i in range(0, SIDE, FOUR):
        row = b.let(place.row + warp // wide * (4 * FOUR) + i // FOUR * (tile.bm // 2))
        for j in range(0, SIDE, FOUR):
            column = b.let(place.column + warp % wide * WARP + j // FOUR * (tile.bn // 2))
            sums = [line[j : j + FOUR] for line in own.sums[i : i + FOUR]]
            writer.write_fours(took, Corner(place.batch, row, column), sums)


class FourWriter(SumWriter):
    """Takes 16 rows by 32 columns of a warp to a sink; a lane has four by four of them."""

    def write_fours(self, sink: Sink, corner: Corner, sums: Sequence[Sequence[Value]]) -> None:
        """Write sums, four rows of four columns."""
        b, lane, room = self.builder, self.lane, self.room
        self.cores.sync_warp()
        first = b.let(lane // 8 * FOUR)
        for i, row in enumerate(sums):
            piece = b.let((lane % 8) ^ (i << 1))
            at = b.let(room.address + (first + i) * room.pitch + piece * PIECE)
            self.cores.store_four(at, row)
        self.cores.sync_warp()
        self.take(sink, corner, 4 * FOUR)
