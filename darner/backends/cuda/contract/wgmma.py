"""Products by ``wgmma``: a warp brings tiles of both operands to a ring in shared memory by tensor maps, warpgroups multiply them there (sm_90a).

Blocks stay and take tile after tile. While a tile's sums are written, the next one's operands are on their way. The blocks of a cluster have tiles below each other: each brings a part of B for all of them. Barriers: a stage
is *full* when the bytes of both operands have come, and *empty* when every warp of the cluster that multiplies has read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

from llvmlite import ir

from ....codegen.ir.index import Number
from ....codegen.simt.builder import Value, Variable
from ....codegen.simt.contract.product import Product
from ....codegen.simt.contract.tiles import SinkOf
from ....codegen.simt.dispatch import Binding, Dispatch
from ....graph import dtypes
from ....graph.integers import ceil_div
from ..instructions import barriers, copies, threads, wgmma
from ..instructions.assembly import F32, I16
from ..instructions.warp import NativeCores
from ..printer import Printer
from ..stage import TensorMap
from .fragments import Corner, FragmentWriter, Room
from .operands import Layout, tensor_map
from .raster import Place, Raster
from .store import SLAB, ResultMap, Slabs, SlabWriter

ROW = wgmma.ROW
STEPS = 4
"""Products along K of a stage: 32 bytes each."""
WARPGROUP = 128
NONE = 0xFFFFFFFF
"""No stage."""


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
    full: float = 0.7

    @property
    def name(self) -> str:
        """What tells it from others.

        >>> WgmmaTile(128, 256, 4, cluster=2).name
        'wgmma 128x256, 4 stages, cluster of 2'
        """
        cluster = f", cluster of {self.cluster}" if self.cluster > 1 else ""
        together = f", {self.blocks} together" if self.blocks > 1 else ""
        return f"wgmma {self.bm}x{self.bn}, {self.stages} stages{cluster}{together}"

    @property
    def threads(self) -> int:
        """Threads of a block: those that multiply, and a warpgroup that gives its registers away or a single warp."""
        return WARPGROUP * (self.groups + 1) if self.registers else WARPGROUP * self.groups + 32

    @property
    def down(self) -> int:
        """Sixty-fours of rows of a warpgroup."""
        return self.bm // (64 * self.groups)

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
    """A tile, the number of parts that sums are cut into, and the blocks that take tiles."""

    tile: WgmmaTile
    parts: int
    blocks: int

    @property
    def name(self) -> str:
        """What tells it from others."""
        return self.tile.name + (f", {self.parts} parts" if self.parts > 1 else "")

    def of(self, product: Product, processors: int) -> WgmmaCut:
        """The same with as many blocks as a product has tiles for, at most those that run at a time."""
        most = processors * self.tile.blocks // self.tile.cluster
        blocks = min(self.raster(product).tiles, most) * self.tile.cluster
        return replace(self, blocks=blocks)

    def raster(self, product: Product) -> Raster:
        """The order of a product's tiles; those of a cluster are one."""
        tile = self.tile
        return Raster.of(product, tile.bm * tile.cluster, tile.bn, self.parts)


@dataclass(frozen=True)
class Box:
    """A box that a tensor map brings: its coordinates, the fastest first, where it goes, and how far from pixels patches are."""

    at: Sequence[Value]
    to: int
    taps: Sequence[Value] = ()


@dataclass(frozen=True)
class MappedSource:
    """An operand: how it lies, and what the kernel is bound to there."""

    layout: Layout
    binding: Binding

    def described(self, rows: int, kind: str) -> TensorMap:
        """The tensor map of tiles of so many rows (or columns)."""
        return tensor_map(self.layout, self.binding, rows, kind)

    def boxes(self, kernel: WgmmaKernel, term: Value, first: Value, count: int) -> list[Box]:
        """The boxes of so many rows (or columns) from the first on, of a block of terms."""
        b = kernel.builder
        if self.layout.along == "summed":
            return [Box((term, first), 0)]
        return [Box((b.let(first + 64 * i), term), i * wgmma.CHUNK) for i in range(count // 64)]


class _Ring:
    """The stage that comes next, and the parity of its phase."""

    def __init__(self, kernel: WgmmaKernel) -> None:
        b = self.builder = kernel.builder
        self.stages = kernel.tile.stages
        self._stage = b.variable(b.index(0), "stage")
        self._phase = b.variable(b.index(0), "phase")

    @property
    def stage(self) -> Value:
        """The number of the stage."""
        return self.builder.let(self._stage, "stage")

    @property
    def phase(self) -> Value:
        """Its parity."""
        return self.builder.let(self._phase, "phase")

    def advance(self) -> None:
        """Go on to the next."""
        b = self.builder
        following = b.let(self._stage + 1)
        wraps = b.let(following == self.stages)
        self._stage.set(b.choose(wraps, 0, following))
        self._phase.set(self._phase ^ b.bits(wraps))


class WgmmaKernel:
    """The kernel of a product while it is written.

    Args:
        dispatch: where the code goes; the launch has all of ``cut.blocks``.
        product: what is computed.
        cut: how.
        sources: its operands.
        result: where sums go by tensor map, if they can.
        sink: where they go otherwise.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        product: Product,
        cut: WgmmaCut,
        sources: Sequence[MappedSource],
        result: ResultMap | None,
        sink: SinkOf,
    ) -> None:
        builder = cast(Printer, dispatch.builder)
        self.dispatch, self.builder, self.product = dispatch, builder, product
        self.cut, self.tile, self.sources = cut, cut.tile, sources
        self.sink, self.result = sink, result
        self.places = dispatch.elements().places
        tile = self.tile
        builder.cluster = (tile.cluster, 1, 1)
        builder.blocks_together(tile.blocks)
        self.cores = NativeCores(builder, tile.shared_bytes)
        dtype = sources[0].layout.dtype
        self.kind = "tf32" if dtype is dtypes.f32 else dtype.name
        self.terms = ROW // dtype.itemsize
        self.total = ceil_div(product.k, self.terms)
        self.raster = cut.raster(product)
        rows = tile.bm, tile.bn // tile.cluster
        self.maps = [
            builder.tensor_map(source.described(count, self.kind))
            for source, count in zip(sources, rows, strict=True)
        ]
        self.slabs = SlabWriter(dispatch, result) if result is not None else None
        b = builder
        self.warp = b.held(threads.warp_uniform(b.ir, b.raw(b.local // 32)))
        self.rank: Value = b.held(threads.cluster_rank(b.ir)) if tile.cluster > 1 else b.index(0)

    # ------------------------------------------------------------- addresses

    def full(self, stage: Value | int) -> Value:
        """The address of the barrier that tells that a stage is full, for use in instructions."""
        return self._barrier(0, stage)

    def empty(self, stage: Value | int) -> Value:
        """The address of the barrier that tells that it is empty."""
        return self._barrier(8 * self.tile.stages, stage)

    def _barrier(self, at: int, stage: Value | int) -> Value:
        return self.cores.base + (self.tile.barriers_at + at + stage * 8)

    # ------------------------------------------------------------- the kernel

    def write(self) -> None:
        """Write it."""
        b, tile = self.builder, self.tile
        self._begin()
        with b.if_(self.warp >= 4 * tile.groups):
            self._produce()
        with b.else_():
            self._consume()
        if tile.cluster > 1:
            threads.cluster_sync(b.ir)

    def _begin(self) -> None:
        """Initialise the barriers."""
        b, tile = self.builder, self.tile
        with b.if_(b.local == 0):
            with b.if_((self.cores.base & 1023) != 0):
                threads.trap(b.ir)
            for stage in range(tile.stages):
                barriers.barrier_init(b.ir, b.raw(self.full(stage)), 1)
                count = 4 * tile.groups * tile.cluster
                barriers.barrier_init(b.ir, b.raw(self.empty(stage)), count)
            barriers.fence_barrier_init(b.ir)
            for map_ in self.maps:
                copies.tensor_prefetch(b.ir, map_)
        b.barrier()
        if tile.cluster > 1:
            threads.cluster_sync(b.ir)

    @contextmanager
    def _tiles(self) -> Iterator[tuple[Place, Value, Value]]:
        """The tiles of this block, one after another: where they are, and their first and last blocks of terms."""
        b, tile = self.builder, self.tile
        step = self.cut.blocks // tile.cluster
        number = b.variable(b.let(b.group // tile.cluster), "tile")
        with b.while_(lambda: number < self.raster.tiles):
            place = self.raster.place(b, b.let(number))
            row = b.let(place.row + self.rank * tile.bm, "row")
            own = Place(place.part, place.batch, row, place.column)
            yield own, *self.raster.blocks(b, place.part, self.total)
            number.set(number + step)

    # ------------------------------------------------------------- bringing operands

    def _produce(self) -> None:
        b, tile = self.builder, self.tile
        if tile.registers:
            threads.set_max_registers(b.ir, tile.registers[0], more=False)
        with b.if_(self.warp == 4 * tile.groups):
            with b.if_(b.held(threads.elect(b.ir)) == 1):
                ring = _Ring(self)
                with self._tiles() as (place, first, last):
                    batches = [self._batch(source.layout, place.batch) for source in self.sources]
                    with b.for_(first, last, name="block") as block:
                        self._bring(ring, block, place, batches)
            threads.sync_warp(b.ir)

    def _batch(self, layout: Layout, batch: Number) -> list[Value]:
        """The coordinates of a matrix of the batch, the fastest first."""
        index = self.places.split(batch, [size for size, _ in layout.batch])
        return [self.places.value(i) for i in reversed(index)]

    def _bring(
        self, ring: _Ring, block: Value, place: Place, batches: Sequence[Sequence[Value]]
    ) -> None:
        """Bring a block of terms of both operands to the next stage."""
        b, tile = self.builder, self.tile
        stage = ring.stage
        barriers.barrier_wait(b.ir, b.raw(self.empty(stage)), b.raw(ring.phase ^ 1))
        full = b.let(self.full(stage))
        barriers.barrier_expect(b.ir, b.raw(full), tile.stage_bytes)
        to = b.let(self.cores.base + stage * tile.stage_bytes)
        term = b.let(block * self.terms)
        share = tile.bn // tile.cluster
        own = b.let(self.rank * share)
        everyone = (1 << tile.cluster) - 1 if tile.cluster > 1 else None
        wanted = (
            (to, place.row, tile.bm, None),
            (b.let(to + own * ROW + tile.bm * ROW), b.let(place.column + own), share, everyone),
        )
        for side, (address, first, count, multicast) in enumerate(wanted):
            for box in self.sources[side].boxes(self, term, first, count):
                copies.tensor_load(
                    b.ir,
                    b.raw(b.let(address + box.to)),
                    self.maps[side],
                    [b.raw(x) for x in (*box.at, *batches[side])],
                    b.raw(full),
                    multicast,
                    [b.ir.trunc(b.raw(x), I16) for x in box.taps],
                )
        ring.advance()

    # ------------------------------------------------------------- multiplying

    def _consume(self) -> None:
        b, tile = self.builder, self.tile
        if tile.registers:
            threads.set_max_registers(b.ir, tile.registers[1], more=True)
        ring = _Ring(self)
        group = b.let(self.warp // 4, "group")
        slabs = b.let(self.cores.base + (tile.slabs_at + group * (tile.slabs * SLAB)), "slabs")
        with self._tiles() as (place, first, last):
            took = self.sink(place.part) if self.slabs is None else None
            sums = self._multiply(ring, group, first, last)
            rows = [[own[4 * i : 4 * i + 4] for i in range(tile.bn // 8)] for own in sums]
            top = b.let(place.row + group * (64 * tile.down), "top")
            if self.slabs is not None:
                corner = Corner(place.batch, top, place.column)
                self.slabs.write(Slabs(group, slabs, tile.slabs), corner, rows)
            if took is not None:
                room = Room(
                    b.let(slabs + (self.warp & 3) * (tile.slabs * SLAB // 4)), 32 * tile.slabs
                )
                writer = FragmentWriter(b, self.cores, self.product, room)
                took.begin()
                for number, fragments in enumerate(rows):
                    row = b.let(top + (64 * number + (self.warp & 3) * 16))
                    for j in range(0, len(fragments), room.columns // 8):
                        column = b.let(place.column + 8 * j)
                        part = [fragments[j : j + room.columns // 8]]
                        writer.write(took, Corner(place.batch, row, column), part)
        if self.slabs is not None:
            with b.if_((b.local & (WARPGROUP - 1)) == 0):
                # Shared memory stays until it is read; what is written ends with the kernel.
                copies.bulk_wait(b.ir, 0)

    def _multiply(self, ring: _Ring, group: Value, first: Value, last: Value) -> list[list[Value]]:
        """Multiply a tile's blocks of terms; returns the sums of each sixty-four of rows."""
        b, tile = self.builder, self.tile
        left, right = (source.layout.along == "summed" for source in self.sources)
        shape = wgmma.Shape(self.kind, tile.bn, left, right)
        unknown = ir.Constant(F32, ir.Undefined)
        sums: list[list[Variable]] = [
            [b.variable(b.held(unknown), "sum") for _ in range(shape.sums)]
            for _ in range(tile.down)
        ]
        previous = b.variable(b.index(NONE), "previous")
        with b.for_(first, last, name="block") as block:
            stage = ring.stage
            barriers.barrier_wait(b.ir, b.raw(self.full(stage)), b.raw(ring.phase))
            at = b.let(self.cores.base + stage * tile.stage_bytes, "at")
            keep = b.raw(b.bits(block != first))
            column = wgmma.descriptor(b.ir, b.raw(at + tile.bm * ROW), along_k=right)
            for number, own in enumerate(sums):
                row = b.raw(at + (group * tile.down + number) * wgmma.CHUNK)
                described = wgmma.descriptor(b.ir, row, along_k=left)
                operands = [
                    (
                        wgmma.advance(b.ir, described, step, along_k=left),
                        wgmma.advance(b.ir, column, step, along_k=right),
                    )
                    for step in range(STEPS)
                ]
                final = number == tile.down - 1
                found = wgmma.wgmma(
                    b.ir,
                    shape,
                    [b.raw(x) for x in own],
                    operands,
                    keep=keep,
                    fence=number == 0,
                    commit=final,
                    wait=1 if final else None,
                )
                for variable, value in zip(own, found, strict=True):
                    variable.set(b.held(value))
            # The products of the stage before are over.
            with b.if_(previous < tile.stages):
                self._release(b.let(previous))
            previous.set(stage)
            ring.advance()
        found = [wgmma.wgmma_wait(b.ir, [b.raw(x) for x in own]) for own in sums]
        self._release(b.let(previous))
        return [[b.held(value) for value in values] for values in found]

    def _release(self, stage: Value) -> None:
        """Tell all blocks of the cluster that this warp has read a stage."""
        b, cluster = self.builder, self.tile.cluster
        lane = b.let(b.local & 31)
        empty = b.raw(self.empty(stage))
        with b.if_(lane < cluster):
            if cluster == 1:
                barriers.barrier_arrive(b.ir, empty)
            else:
                barriers.barrier_arrive_remote(b.ir, empty, b.raw(lane))
