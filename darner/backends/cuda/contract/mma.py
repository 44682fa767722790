"""Products by ``mma.sync``: a ring of tiles in shared memory that ``cp.async`` fills, and warps that multiply fragments of them (sm_80).

A tile has 128 bytes of K. Operands that are contiguous along K lie in rows of 128 bytes, others in rows of one term each; 16-byte pieces are swizzled by the number of the row, so that ``ldmatrix``
reads eight rows without a bank twice. The fragments of the next 32 bytes of K are read before the current ones are multiplied, also from one tile to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from ....codegen.simt.builder import Simt, Value, Variable
from ....codegen.simt.contract.product import Product
from ....codegen.simt.contract.tiles import SinkOf
from ....codegen.simt.dispatch import Dispatch
from ....graph import dtypes
from ....graph.integers import ceil_div
from ..instructions.warp import Cores
from .fragments import Corner, FragmentWriter, Room
from .loaders import ROW, Block, Loader, Source, loader_of
from .raster import Raster

STEPS = 4
"""Products along K of a tile: 32 bytes each."""


@dataclass(frozen=True)
class MmaTile:
    """What a block computes, and how.

    Attributes:
        bm: rows of a block.
        bn: columns of a block.
        wm: rows of a warp.
        wn: columns of a warp.
        stages: tiles in shared memory.
        blocks: of a multiprocessor, at least; registers are given out for these.
        full: products that a multiprocessor does in a cycle, of its peak, when it has enough to do.
    """

    bm: int
    bn: int
    wm: int
    wn: int
    stages: int
    blocks: int = 1
    full: float = 0.55

    @property
    def name(self) -> str:
        """What tells it from others."""
        return f"mma {self.bm}x{self.bn} by {self.wm}x{self.wn}, {self.stages} stages"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.bm // self.wm * (self.bn // self.wn) * 32

    @property
    def stage_bytes(self) -> int:
        """Bytes of both operands' tiles."""
        return (self.bm + self.bn) * ROW

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory."""
        return self.stages * self.stage_bytes


@dataclass(frozen=True)
class MmaCut:
    """A tile, the number of parts that sums are cut into, and whether operands that lie in no whole pieces are read as they lie, or packed first."""

    tile: MmaTile
    parts: int = 1
    loose: bool = False

    @property
    def name(self) -> str:
        """What tells it from others."""
        parts = f", {self.parts} parts" if self.parts > 1 else ""
        return self.tile.name + parts + (", not packed" if self.loose else "")

    def raster(self, product: Product) -> Raster:
        """The order of a product's tiles."""
        return Raster.of(product, self.tile.bm, self.tile.bn, self.parts)


class FragmentReader:
    """Reads the fragments of one operand from a stage: sixteen rows (of A) or columns (of B) at a time.

    Args:
        builder: where the code goes.
        cores: reads matrices.
        along_k: whether the operand lies in rows along K.
        first: the warp's first row in the tile.
        block: the operand's tile; A's is the first in a stage.
        size: bytes of an element.
    """

    def __init__(  # many parameters: where an operand's tile is, and how it lies
        self,
        builder: Simt,
        cores: Cores,
        along_k: bool,
        first: Value,
        block: Block,
        size: int = 2,
    ) -> None:
        b = self.builder = builder
        self.cores, self.along_k, self.size = cores, along_k, size
        lane = b.let(b.local & 31, "lane")
        eight = b.let(lane & 7)
        low, high = b.let((lane >> 3) & 1), b.let(lane >> 4)
        # The four matrices: of A rows change first and terms then, of B terms and then columns.
        by_row, by_term = (low, high) if block.at == 0 else (high, low)
        self.offsets: list[Value] = []
        if along_k:
            row = b.let((first + (by_row * 8 + eight)) * ROW + block.at)
            for step in range(STEPS):
                self.offsets.append(b.let(row + (((by_term + 2 * step) ^ eight) << 4)))
            self.apart, self.deep = 16 * ROW, 0
        elif size == 4:
            self._prepare_words(first, block, lane)
        else:
            pitch = block.rows * 2
            row = b.let((by_term * 8 + eight) * pitch + block.at)
            self.apart, self.deep = 0, 16 * pitch
            self.piece = b.let(first // 8 + by_row)
            self.row, self.eight = row, eight

    def _prepare_words(self, first: Value, block: Block, lane: Value) -> None:
        """Write where a lane's words lie, of which no instruction reads several: of four neighbouring terms, and of eight rows."""
        b = self.builder
        self.pitch = block.rows * 4
        self.low = block.at == 0
        term, row = b.let(lane & 3), b.let(first + (lane >> 2))
        key = b.let(term << 1)
        at = b.let(term * self.pitch + ((row & 3) << 2) + block.at)
        # Rows that are 8 apart are two pieces apart.
        self.bases = [b.let(at + ((((row >> 2) + 2 * i) ^ key) << 4)) for i in range(4)]

    def _words(self, stage: Value, step: int, count: int) -> list[Value]:
        b, found = self.builder, []
        for i in range(count):
            for number in range(4):
                high_row, high_term = (
                    (number & 1, number >> 1) if self.low else (number >> 1, number & 1)
                )
                eights = 2 * i + high_row
                moved = (8 * step + 4 * high_term) * self.pitch + eights // 4 * 128
                at = b.let(stage + (self.bases[eights % 4] + moved))
                found.append(b.let(b.bits(self.cores.load_one(at))))
        return found

    def prepare(self, count: int) -> None:
        """Write the addresses of so many sixteens of rows."""
        if not self.along_k and self.size == 2:
            b = self.builder
            self.offsets = [
                b.let(self.row + (((self.piece + 2 * i) ^ self.eight) << 4)) for i in range(count)
            ]

    def read(self, stage: Value, step: int, count: int) -> list[Value]:
        """Four words for each of some sixteens of rows, for one product along K."""
        b = self.builder
        if not self.along_k and self.size == 4:
            return self._words(stage, step, count)
        if self.along_k:
            addresses = [stage + (self.offsets[step] + i * self.apart) for i in range(count)]
        else:
            addresses = [stage + (self.offsets[i] + step * self.deep) for i in range(count)]
        return self.cores.ldmatrix([*map(b.let, addresses)], transposed=not self.along_k)


class _Warp:
    """The main loop of a warp: its fragments and its sums."""

    def __init__(
        self,
        builder: Simt,
        cores: Cores,
        tile: MmaTile,
        dtype: str,
        readers: Sequence[FragmentReader],
    ) -> None:
        self.builder, self.cores, self.tile, self.dtype = builder, cores, tile, dtype
        self.readers = readers
        self.down, self.across = tile.wm // 16, tile.wn // 8
        for reader, count in zip(readers, (self.down, self.across // 2), strict=True):
            reader.prepare(count)
        self.sums: list[list[list[Variable]]] = [
            [[builder.variable(0.0, "c", dtypes.f32) for _ in range(4)] for _ in range(self.across)]
            for _ in range(self.down)
        ]

    def fragments(self, stage: Value, step: int) -> list[Value]:
        """The fragments of both operands for one product along K."""
        left, right = self.readers
        return left.read(stage, step, self.down) + right.read(stage, step, self.across // 2)

    def multiply(self, fragments: Sequence[Value]) -> None:
        """Add the products of fragments."""
        count = 4 * self.down
        self.cores.multiply(self.dtype, self.sums, fragments[:count], fragments[count:])


def write_mma(
    dispatch: Dispatch,
    cores: Cores,
    product: Product,
    cut: MmaCut,
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
    dtype = sources[0].layout.dtype
    loaders = [
        loader_of(dispatch, cores, source, block, (0, 0 if dtype.itemsize == 2 else -1))
        for source, block in zip(sources, blocks, strict=True)
    ]
    warp = b.let(b.local // 32, "warp")
    down = tile.bm // tile.wm
    row, column = b.let(warp % down * tile.wm), b.let(warp // down * tile.wn)
    readers = [
        FragmentReader(b, cores, loader.along_k, first, block, dtype.itemsize)
        for loader, first, block in zip(loaders, (row, column), blocks, strict=True)
    ]
    own = _Warp(b, cores, tile, "tf32" if dtype is dtypes.f32 else dtype.name, readers)
    total = ceil_div(product.k, ROW // dtype.itemsize)
    # Blocks beyond the last one are not brought, where it is known which that is.
    most = total if cut.parts == 1 else None
    _write_loop(cores, own, loaders, raster.blocks(b, place.part, total), most)
    values = len(product.halves) or 1
    own_column = b.let((place.column + column) // values)
    corner = Corner(place.batch, b.let(place.row + row), own_column)
    room = Room(b.let(cores.base + warp * (tile.wm * tile.wn * 4)), tile.wn)
    took.begin()
    FragmentWriter(b, cores, product, room).write(took, corner, own.sums)


def _write_loop(
    cores: Cores,
    own: _Warp,
    loaders: Sequence[Loader],
    blocks: tuple[Value, Value],
    most: int | None,
) -> None:
    """Write the loop over blocks of terms, of which there are at most so many."""
    b, tile = own.builder, own.tile
    first, last = blocks

    def start(block: Value, stage: Value, number: int) -> list[Callable[[], None]]:
        there = most is None or number < most
        ends = [loader.start(block, stage) for loader in loaders] if there else []
        cores.commit()
        return ends

    def arrive() -> None:
        cores.wait(tile.stages - 2)
        b.barrier()

    def following(stage: Value) -> Value:
        end = cores.base + (tile.stages - 1) * tile.stage_bytes
        return b.let(b.choose(stage == end, cores.base, stage + tile.stage_bytes))

    for i in range(tile.stages - 1):
        for end in start(b.let(first + i), b.let(cores.base + i * tile.stage_bytes), i):
            end()
    arrive()
    current = b.variable(cores.base, "current")
    filled = b.variable(b.let(cores.base + (tile.stages - 1) * tile.stage_bytes), "filled")
    held = [b.variable(word, "held") for word in own.fragments(b.let(cores.base), 0)]
    ends: list[Callable[[], None]] = []
    with b.for_(first, last, name="block") as block:
        stage = b.let(current, "stage")
        fragments: list[Value] = [b.let(word) for word in held]
        for step in range(STEPS):
            if step == STEPS - 1:
                arrive()
                after = following(stage)
                current.set(after)
                ahead = own.fragments(after, 0)
            else:
                ahead = own.fragments(stage, step + 1)
            if step == 0:
                to = b.let(filled)
                ends = start(b.let(block + (tile.stages - 1)), to, tile.stages - 1)
                filled.set(following(to))
            own.multiply(fragments)
            if step == STEPS - 2:
                # What a thread read by itself has come in the meantime.
                for end in ends:
                    end()
            fragments = ahead
        for variable, word in zip(held, fragments, strict=True):
            variable.set(word)
    # The tiles are read: what comes next has their memory.
    cores.wait(0)
    b.barrier()


class RingTile(Protocol):
    """A tile whose stages form a ring."""

    @property
    def stages(self) -> int:
        """How many there are."""
        ...

    @property
    def stage_bytes(self) -> int:
        """Bytes of each."""
        ...


@contextmanager
def write_ring(
    b: Simt,
    cores: Cores,
    tile: RingTile,
    loaders: Sequence[Loader],
    blocks: tuple[Value, Value],
) -> Iterator[Value]:
    """Write a loop over blocks of terms: what is written inside has the address of a stage that is there; after the loop, all of shared memory is free."""

    def copy(block: Value, stage: Value) -> None:
        ends = [loader.start(block, stage) for loader in loaders]
        cores.commit()
        for end in ends:
            end()

    def following(stage: Value) -> Value:
        end = cores.base + (tile.stages - 1) * tile.stage_bytes
        return b.let(b.choose(stage == end, cores.base, stage + tile.stage_bytes))

    first, last = blocks
    for i in range(tile.stages - 1):
        copy(b.let(first + i), b.let(cores.base + i * tile.stage_bytes))
    current = b.variable(cores.base, "current")
    filled = b.variable(b.let(cores.base + (tile.stages - 1) * tile.stage_bytes), "filled")
    with b.for_(first, last, name="block") as block:
        cores.wait(tile.stages - 2)
        b.barrier()
        # Everybody has read the stage before.
        to, stage = b.let(filled), b.let(current, "stage")
        copy(b.let(block + (tile.stages - 1)), to)
        filled.set(following(to))
        yield stage
        current.set(following(stage))
    cores.wait(0)
    b.barrier()
