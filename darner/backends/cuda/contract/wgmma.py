"""Products by ``wgmma``: a warp brings tiles of both operands to a ring in shared memory by tensor maps, warpgroups multiply them there (sm_90a).

Blocks stay and take tile after tile. While a tile's sums are written, the next one's operands are on their way. The blocks of a cluster have tiles below each other: each brings a part of B for all of them. Barriers: a stage
is *full* when the bytes of both operands have come, and *empty* when every warp of the cluster that multiplies has read it.

Warpgroups share a tile, or each has tiles of its own and they multiply in turns: then one takes its sums through what comes after the product while the other multiplies.

Where there are few tiles with long sums, the blocks of a cluster share a tile: each has some of the terms, and takes some of the rows further, which it adds up from the shared memory of all, in their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from llvmlite import ir

from ....codegen.ir.index import Number
from ....codegen.simt.builder import Value, Variable
from ....codegen.simt.contract.epilogue import Sink
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
from .fragments import MOST_AHEAD, Corner, Fragment, FragmentWriter, Room, Unit
from .operands import PIECE, Layout, tensor_map
from .raster import Place
from .store import SLAB, ResultMap, Slabs, SlabWriter
from .tiles import ROW, WARPGROUP, WgmmaCut

STEPS = 4
"""Products along K of a stage: 32 bytes each."""
CHUNK = 64
"""Columns of a box, where boxes are of one half of the columns, or lie along the columns."""
NONE = 0xFFFFFFFF
"""No stage."""
OTHERS = 40
"""Registers of a thread that hold neither sums nor what is read beside them."""
TURN = 8
"""The first of the named barriers by which a warpgroup tells another that it may multiply."""


@dataclass(frozen=True)
class Box:
    """A box that a tensor map brings: its coordinates, the fastest first, and how far from pixels patches are."""

    at: Sequence[Value]
    taps: Sequence[Value] = ()


@dataclass(frozen=True)
class MappedSource:
    """An operand: how it lies, and what the kernel is bound to there."""

    layout: Layout
    binding: Binding

    def described(self, rows: int, kind: str) -> TensorMap:
        """The tensor map of tiles of so many rows (or columns)."""
        return tensor_map(self.layout, self.binding, rows, kind)

    def box(self, kernel: WgmmaKernel, term: Value, first: Value) -> Box:
        """The box of rows (or columns) from the first on, of a block of terms."""
        del kernel
        return Box((term, first) if self.layout.along == "summed" else (first, term))


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

    def skip(self, count: Value) -> None:
        """Leave out so many stages, which another warpgroup reads."""
        b = self.builder
        following = b.let(self._stage + count)
        self._stage.set(b.let(following % self.stages))
        self._phase.set(self._phase ^ (b.let(following // self.stages) & 1))


@dataclass(frozen=True)
class _Turn:
    """Whose turn it is to multiply: a warpgroup's, its tile's number, the number of the block's first tile, and how far apart they are."""

    group: Value
    number: Value
    start: Value
    step: int


@dataclass(frozen=True)
class Piece:
    """Some of a warp's sums: where they begin, and the numbers of their fragments."""

    corner: Corner
    fragments: Sequence[int]


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
        builder.cluster = (cut.cluster, 1, 1)
        builder.blocks_together(tile.blocks)
        self.cores = NativeCores(builder, tile.shared_bytes)
        dtype = sources[0].layout.dtype
        self.kind = "tf32" if dtype is dtypes.f32 else dtype.name
        self.terms = ROW // dtype.itemsize
        self.total = ceil_div(product.k, self.terms)
        self.raster = cut.raster(product)
        self.half = product.n // 2 if product.halves else 0
        rows = tile.bm, CHUNK if self.half else tile.box
        self.maps = [
            builder.tensor_map(source.described(count, self.kind))
            for source, count in zip(sources, rows, strict=True)
        ]
        self.slabs = SlabWriter(dispatch, result) if result is not None else None
        b = builder
        self.warp = b.held(threads.warp_uniform(b.ir, b.raw(b.local // 32)))
        self.rank: Value = b.held(threads.cluster_rank(b.ir)) if cut.cluster > 1 else b.index(0)

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
            if self.cut.sharing > 1:
                # The sums are there.
                threads.cluster_sync(b.ir)
        with b.else_():
            self._consume()
        if self.cut.cluster > 1:
            threads.cluster_sync(b.ir)

    def _begin(self) -> None:
        """Initialise the barriers."""
        b, tile = self.builder, self.tile
        with b.if_(b.local == 0):
            with b.if_((self.cores.base & 1023) != 0):
                threads.trap(b.ir)
            for stage in range(tile.stages):
                barriers.barrier_init(b.ir, b.raw(self.full(stage)), 1)
                count = 4 * tile.sharing * tile.cluster
                barriers.barrier_init(b.ir, b.raw(self.empty(stage)), count)
            barriers.fence_barrier_init(b.ir)
            for map_ in self.maps:
                copies.tensor_prefetch(b.ir, map_)
        b.barrier()
        if tile.cluster > 1:
            threads.cluster_sync(b.ir)

    @contextmanager
    def _tiles(self, turn: Value | None = None) -> Iterator[tuple[Place, Value, Value]]:
        """The tiles of this block, one after another: where they are, and their first and last blocks of terms.

        With ``turn``, 0 or 1, every second one.
        """
        b, tile = self.builder, self.tile
        step = self.cut.blocks // self.cut.cluster
        start = b.let(b.group // self.cut.cluster)
        number = b.variable(start if turn is None else b.let(start + turn * step), "tile")
        with b.while_(lambda: number < self.raster.tiles):
            own_number = b.let(number)
            place = self.raster.place(b, own_number)
            down: Value = b.index(0) if self.cut.sharing > 1 else self.rank
            row = b.let(place.row + down * tile.bm, "row")
            own = Place(place.part, place.batch, row, place.column)
            if turn is not None:
                self.turn = _Turn(turn, own_number, start, step)
            blocks = self.raster.blocks(b, place.part, self.total)
            if self.cut.sharing > 1:
                each = ceil_div(self.total, self.cut.sharing)
                first = b.let(self.rank * each)
                blocks = first, b.let(b.min(first + each, self.total), "last")
            yield own, *blocks
            number.set(number + (step if turn is None else 2 * step))

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

        def bring(side: int, address: Value, first: Value, extent: int) -> None:
            along_k = self.sources[side].layout.along == "summed"
            halved = side == 1 and self.half > 0
            width = (tile.bm, CHUNK if halved else tile.box)[side] if along_k else CHUNK
            for i in range(extent // width):
                corner: Value = b.let(first + i * width)
                if halved:
                    corner = self._in_halves(corner)
                box = self.sources[side].box(self, term, corner)
                copies.tensor_load(
                    b.ir,
                    b.raw(b.let(address + i * width * ROW)),
                    self.maps[side],
                    [b.raw(x) for x in (*box.at, *batches[side])],
                    b.raw(full),
                    (1 << tile.cluster) - 1 if side and tile.cluster > 1 else None,
                    [b.ir.trunc(b.raw(x), I16) for x in box.taps],
                )

        bring(0, to, place.row, tile.bm)
        columns = b.let(to + tile.bm * ROW)
        if tile.cluster == 1:
            bring(1, columns, place.column, tile.bn)
        elif tile.bn // tile.cluster % 64 == 0:
            extent = tile.bn // tile.cluster
            own = b.let(self.rank * extent)
            bring(1, b.let(columns + own * ROW), b.let(place.column + own), extent)
        else:
            # The sixty-fours of columns are dealt out to the blocks.
            for i in range(tile.bn // 64):
                with b.if_(self.rank == i % tile.cluster):
                    column = b.let(place.column + 64 * i)
                    bring(1, b.let(columns + i * wgmma.CHUNK), column, 64)
        ring.advance()

    def _in_halves(self, column: Value) -> Value:
        """The column that a chunk of a product in halves begins at: chunks are by turns of the first half and of the second."""
        second = column // CHUNK % 2
        return self.builder.let(column // (2 * CHUNK) * CHUNK + second * self.half)

    # ------------------------------------------------------------- multiplying

    def _consume(self) -> None:
        b, tile = self.builder, self.tile
        if tile.registers:
            threads.set_max_registers(b.ir, tile.registers[1], more=True)
        ring = _Ring(self)
        group = b.let(self.warp // 4, "group")
        slabs = b.let(self.cores.base + (tile.slabs_at + group * (tile.slabs * SLAB)), "slabs")
        with self._tiles(group if tile.turns else None) as (place, first, last):
            # Of tiles in turns each warpgroup has all rows.
            below: Value = b.index(0) if tile.turns else group
            top = b.let(place.row + below * (64 * tile.down), "top")
            corner = Corner(place.batch, top, place.column)
            took = self.sink(place.part) if self.slabs is None else None
            if took is not None:
                writer, pieces = self._writer(slabs), self._pieces(corner)
                took.begin()
                ahead = self._read_ahead(took, writer, pieces, 0)
            if tile.turns:
                self._await_turn(ring)
            sums = self._multiply(ring, below, first, last)
            if tile.turns:
                self._end_turn()
            rows = [[own[4 * i : 4 * i + 4] for i in range(tile.bn // 8)] for own in sums]
            if self.slabs is not None:
                self.slabs.write(Slabs(group, slabs, tile.slabs), corner, rows)
            if took is not None:
                self._write(took, writer, pieces, rows, ahead)
        if self.slabs is not None:
            with b.if_((b.local & (WARPGROUP - 1)) == 0):
                # Shared memory stays until it is read; what is written ends with the kernel.
                copies.bulk_wait(b.ir, 0)

    def _writer(self, slabs: Value) -> FragmentWriter:
        """What takes this warp's sums to a sink, through its part of the slabs."""
        b, tile = self.builder, self.tile
        address = b.let(slabs + (self.warp & 3) * (tile.slabs * SLAB // 4))
        return FragmentWriter(b, self.cores, self.product, Room(address, 32 * tile.slabs))

    def _pieces(self, corner: Corner) -> list[Piece]:
        """The pieces of a warp's sums, that go through its shared memory one after another."""
        b, tile = self.builder, self.tile
        across = tile.bn // 8
        found = []
        for number in range(tile.down):
            row = b.let(corner.row + (64 * number + (self.warp & 3) * 16))
            for column, own in self._columns(across, corner.column, 4 * tile.slabs):
                at = Corner(corner.batch, row, column)
                found.append(Piece(at, [number * across + i for i in own]))
        return found

    def _columns(
        self, count: int, column: Value, per: int
    ) -> Iterator[tuple[Value, Sequence[int]]]:
        """The numbers of a row's fragments, so many at a time, and the column that they begin at: of a product in halves as many of either."""
        b = self.builder
        if not self.half:
            for j in range(0, count, per):
                yield b.let(column + 8 * j), range(j, j + per)
            return
        each, across = per // 2, CHUNK // 8
        for pair in range(0, count, 2 * across):
            for j in range(pair, pair + across, each):
                first = b.let(column // 2 + 8 * (j - pair // 2))
                yield first, [*range(j, j + each), *range(j + across, j + across + each)]

    def _read_ahead(
        self, sink: Sink, writer: FragmentWriter, pieces: Sequence[Piece], number: int
    ) -> list[Unit]:
        """Have on its way what is read beside the sums of a piece, where there are registers for it."""
        sums = self.tile.down * self.tile.bn // 2
        roomy = sums + 2 * MOST_AHEAD + OTHERS <= self.tile.most_registers
        if number >= len(pieces) or self.cut.sharing > 1 or not roomy:
            return []
        return writer.ahead(sink, pieces[number].corner, 16)

    def _write(
        self,
        sink: Sink,
        writer: FragmentWriter,
        pieces: Sequence[Piece],
        rows: Sequence[Sequence[Fragment]],
        ahead: list[Unit],
    ) -> None:
        """Take the sums of a warpgroup to a sink: for each sixty-four of rows the fragments of eight columns each; ``ahead`` is what the first piece reads."""
        b, sharing = self.builder, self.cut.sharing
        if sharing > 1:
            self._keep(rows)
            threads.cluster_sync(b.ir)
        fragments = [one for own in rows for one in own]
        for number, piece in enumerate(pieces):
            if sharing == 1:
                following = self._read_ahead(sink, writer, pieces, number + 1)
                own = [fragments[i] for i in piece.fragments]
                writer.write(sink, piece.corner, [own], ahead)
                ahead = following
                continue
            # Pieces are dealt out to the blocks, of each warp to another.
            with b.if_(b.let((self.warp + number) % sharing) == self.rank):
                own = [self._added(i) for i in piece.fragments]
                writer.write(sink, piece.corner, [own])

    def _kept_at(self, number: int) -> Value:
        """Where this thread's fragment of a number is kept in shared memory, over the ring, which is read to its end."""
        apart = WARPGROUP * self.tile.groups * PIECE
        return self.builder.let(self.cores.base + (self.builder.local * PIECE + number * apart))

    def _keep(self, rows: Sequence[Sequence[Fragment]]) -> None:
        """Let the blocks of the cluster see this one's sums."""
        b = self.builder
        # All warps of the block have multiplied what lies there.
        barriers.named_barrier(b.ir, TURN, WARPGROUP * self.tile.groups)
        for number, fragment in enumerate(one for own in rows for one in own):
            self.cores.store_four(self._kept_at(number), fragment)

    def _added(self, number: int) -> Fragment:
        """A fragment of the sums of all blocks of the cluster, in their order."""
        b = self.builder
        at = b.raw(self._kept_at(number))
        parts: list[list[Value]] = [
            [b.held(x) for x in copies.load_cluster(b.ir, at, rank)]
            for rank in range(self.cut.sharing)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = [b.let(x + y) for x, y in zip(total, part, strict=True)]
        return total

    def _await_turn(self, ring: _Ring) -> None:
        """Wait until the tile before this one is multiplied, by the other warpgroup, and leave out its stages."""
        b, turn = self.builder, self.turn
        follows = b.let(turn.number != turn.start)
        with b.if_(follows):
            barriers.named_barrier(b.ir, b.raw(b.let(turn.group + TURN)), 2 * WARPGROUP)
        count = b.index(self.total)
        if self.cut.parts > 1:
            before = self.raster.place(b, b.let(turn.number - turn.step))
            first, last = self.raster.blocks(b, before.part, self.total)
            count = b.let(last - first)
        ring.skip(b.let(b.choose(follows, count, 0)))

    def _end_turn(self) -> None:
        """Tell the other warpgroup, if it has a tile, that it may multiply it."""
        b, turn = self.builder, self.turn
        with b.if_(turn.number + turn.step < self.raster.tiles):
            other = b.let((turn.group ^ 1) + TURN)
            barriers.named_arrive(b.ir, b.raw(other), 2 * WARPGROUP)

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
