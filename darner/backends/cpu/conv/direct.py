"""Convolutions, and their gradients towards the input, that read images in place: no patch is stored.

Images are copied once, for all taps and all channels of the result, to where every tap has a fixed offset from its pixel (``planes``). Neighbouring pixels
are the columns of a tile; padding between rows is computed too and left out at the end. Where a stride gives the gradient several phases, all phases read the same
copy, and results that alternate within a row are interleaved on their way out. ``driver`` packs all patches instead, which pays
where many channels of the result use them, or where images are so small that padding would be much of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from ....codegen.ir.emit import accumulator_of, ir, lane_mask, load, loop, minimum, offset
from ....codegen.ir.index import Index, i64
from ....codegen.ir.interleave import interleaved
from ....codegen.ir.types import STORAGE_BYTES, Pointer, Value
from ....codegen.problems.conv import Patches, Phase, patches_of
from ....graph.integers import ceil_div
from ....graph.node import Node
from ..contract.tile import Machine, MicroKernel, Tile
from ..emit.template import Code, Scratch
from .driver import in_lines
from .epilogue import Finish
from .pack import divided, phase_table, unravelled, walk
from .plan import pieces_of, rows_cycles, shared, tiles_of, uneven
from .planes import MOST_PLANES, Channels, Copier, grid_of_planes, write_distances
from .schedule import call_with_rows
from .weight_rows import copied_cycles, copy_weights

PLANES_BYTES = 512 << 10
"""Of the cache next to a core: what the images of a piece of work may take, all channels of them."""
PIECES = (8, 16, 32)
"""Of work, that all places may be cut into for threads to share."""
PARTS = (1, 2, 4)
"""Pieces that the rows may be cut into: each copies the images by itself."""
FINISHED = 4.5
"""Cycles for a piece of a row, of a vector at most, on its way to the result."""
INTERLEAVED = 8.0
"""Cycles for such a piece that is interleaved with others."""
CALLED = 15.0
"""Cycles for a tile, besides its sums."""


def tile_cycles(rows: int, vectors: int, rate: int = 2) -> float:
    """Cycles of one product for every element of a tile, ``rate`` at a time: vectors lie anywhere, so reading one takes two lines of the cache."""
    return max(rows * vectors / rate, vectors + (rows + 1) / 2, 4)


@dataclass(frozen=True)
class Cut:
    """How the product is cut.

    Attributes:
        tile: rows and places kept in registers.
        strips: of a tile's width, whose places are copied together.
        parts: how many pieces the rows are cut into.
        height: rows of a piece.
        cycles: that two threads would take.
    """

    tile: Tile
    strips: int
    parts: int
    height: int
    cycles: float


class Layout:
    """How the product is cut, and where its scratch memory lies.

    Attributes:
        possible: whether there is code for it: all taps meet pixels, the stride has few phases, and the cache holds a tile's width of all channels.
    """

    def __init__(self, main: Node, machine: Machine) -> None:
        self.main = main
        self.dtype = main.operands[0].dtype.name
        self.accumulator = accumulator_of(self.dtype)
        self.size = STORAGE_BYTES[self.accumulator]
        self.patches: Patches = patches_of(main)
        self.backward = main.op.name == "conv_input_grad"
        self.rows = int(main.shape[1]) // self.patches.groups
        self.as_they_are = self.dtype == self.accumulator and not self.backward
        phases = self.patches.phases
        self.length = self.patches.channels * sum(phase.taps for phase in phases)
        # How many phases lie between each other in a row.
        self.abreast = len({phase.axes[-1] for phase in phases})
        whole = sum(phase.taps for phase in phases) == prod(self.patches.kernel)
        self.possible = (
            whole and self.abreast == self.patches.strides[-1] and len(phases) <= MOST_PLANES
        )
        if not self.possible:
            return
        self.grid = grid_of_planes(self.patches)
        self.places = self.patches.batch * self.grid.image
        self.planes = self.patches.channels * len(self.grid.planes)
        cuts = self._cuts(machine) if self.grid.possible else []
        self.possible = bool(cuts)
        if not cuts:
            return
        self.cut = min(cuts, key=lambda cut: cut.cycles)
        width, lanes = self.cut.tile.width, self.cut.tile.lanes
        self.block = self.cut.strips * width
        self.blocks = ceil_div(self.places, self.block)
        line = 64 // self.size
        # An odd number of lines, so that planes do not fall into the same sets of the cache.
        self.plane = (ceil_div(self.block + self.grid.halo + lanes, line) | 1) * line
        self.plane_bytes = in_lines(self.planes * self.plane * self.size)
        self.sum_bytes = in_lines((self.abreast * self.cut.tile.rows * width + lanes) * self.size)
        weights = prod(int(size) for size in main.operands[1].shape)
        self.weight_bytes = 0 if self.as_they_are else in_lines(weights * self.size)

    def _cuts(self, machine: Machine) -> list[Cut]:
        """All ways that keep the images of a piece in the cache."""
        found = []
        for tile in tiles_of(machine, self.dtype):
            most = PLANES_BYTES // (self.planes * self.size) - self.grid.halo - 2 * tile.lanes
            total = ceil_div(self.places, tile.width)
            tiles = ceil_div(self.rows, tile.rows)
            held = most // tile.width
            wanted = {min(held, ceil_div(total, pieces)) for pieces in PIECES}
            for strips in sorted(wanted) if held > 0 else ():
                for parts in sorted({min(parts, tiles) for parts in PARTS}):
                    height = ceil_div(tiles, parts) * tile.rows
                    parts = ceil_div(self.rows, height)
                    cycles = self._cycles(tile, strips, parts, machine.multiplies)
                    if not self.as_they_are:
                        cycles *= uneven(self.rows, parts, height)
                        cycles += copied_cycles(self, tile.lanes, parts)
                    found.append(Cut(tile, strips, parts, height, cycles))
        return found

    def _cycles(self, tile: Tile, strips: int, parts: int, rate: int) -> float:
        """Cycles that two threads take."""
        patches = self.patches
        total = ceil_div(self.places, tile.width)
        blocks = ceil_div(total, strips)
        places = blocks * (strips * tile.width + self.grid.halo)
        copied = self.grid.plane_cycles(places, tile.lanes, rate)
        cycles = parts * self.planes * copied
        cycles += (
            total * self.length * rows_cycles(self.rows, tile, partial(tile_cycles, rate=rate))
        )
        cycles += len(patches.phases) * total * ceil_div(self.rows, tile.rows) * CALLED
        pieces = pieces_of(self.places, self.grid.pitches[-1], tile)
        finished = FINISHED if self.abreast == 1 else INTERLEAVED
        cycles += len(patches.phases) * self.rows * pieces * finished
        return shared(patches.groups * cycles, patches.groups * blocks * parts)

    @property
    def cycles(self) -> float:
        """Cycles that two threads would take."""
        return self.cut.cycles

    @property
    def scratch(self) -> Scratch:
        """The memory it needs."""
        own = self.plane_bytes + self.sum_bytes + in_lines(8 * self.length)
        return Scratch(own, self.weight_bytes)


class Driver:
    """The code of one product."""

    def __init__(
        self, code: Code, main: Node, operands: tuple[Pointer, Pointer], finish: Finish
    ) -> None:
        self.code, self.builder, self.finish = code, code.builder, finish
        self.layout = Layout(main, code.machine)
        self.source, self.weights = operands
        self.patches, self.tile = self.layout.patches, self.layout.cut.tile
        layout, grid = self.layout, self.layout.grid
        byte = ir().IntType(8)
        self.sums = self.builder.gep(code.own, [i64(layout.plane_bytes)], source_etype=byte)
        self.copier = Copier(self.builder, grid, self.patches.batch, layout.dtype, self.tile.lanes)
        position = layout.plane_bytes + layout.sum_bytes
        self.distances = self.builder.gep(code.own, [i64(position)], source_etype=byte)

    def emit(self) -> None:
        """Everything."""
        layout = self.layout
        if not layout.as_they_are:
            copy_weights(self.code, layout, self.weights, phase_table(self.builder, self.patches))
            self.weights = self.code.shared
            self.code.barrier()
        channels = self.patches.channels
        write_distances(self.builder, layout.grid, channels, layout.plane, self.distances)
        self.code.each(self.patches.groups * layout.blocks * layout.cut.parts, self._unit)

    def _unit(self, number: Value) -> None:
        """Some places of one group: the images are copied, then every tile of rows meets them."""
        builder, layout, patches = self.builder, self.layout, self.patches
        indices, grid = self.code.indices, layout.grid
        if layout.as_they_are:
            rest, part = divided(builder, number, layout.cut.parts)
            group, block = divided(builder, rest, layout.blocks)
        else:
            # As in ``driver``: threads have rows of their own, whose weights they copied.
            rest, block = divided(builder, number, layout.blocks)
            group, part = divided(builder, rest, layout.cut.parts)
        first = builder.mul(i64(block), i64(layout.block))
        plane = indices.mul(group, patches.channels)
        source = offset(builder, self.source, layout.dtype, indices.mul(plane, patches.area))
        each = len(grid.planes)
        for i, phase in enumerate(grid.planes):
            self.copier.copy(
                Channels(phase, patches.sizes, patches.image, source),
                i64(patches.channels),
                (builder.sub(first, i64(grid.before)), layout.block + grid.halo),
                offset(builder, self.code.own, layout.accumulator, i * layout.plane),
                each * layout.plane,
            )

        stop = minimum(builder, i64(layout.block), builder.sub(i64(layout.places), first))
        start = i64(indices.mul(part, layout.cut.height))
        end = minimum(builder, builder.add(start, i64(layout.cut.height)), i64(layout.rows))

        def tile(row: Value, _: Sequence[Value]) -> None:
            def with_rows(height: int) -> None:
                def strip(within: Value, _: Sequence[Value]) -> None:
                    for start in range(0, len(patches.phases), layout.abreast):
                        for beside in range(layout.abreast):
                            self._multiply(height, group, row, within, start + beside)
                        phase = patches.phases[start]
                        self._finish(height, group, row, builder.add(first, within), phase)

                loop(builder, i64(0), stop, self.tile.width, strip)

            left = builder.sub(i64(layout.rows), row)
            call_with_rows(builder, left, self.tile.rows, (layout.rows,), with_rows)

        loop(builder, start, end, self.tile.rows, tile)

    def _sums_of(self, beside: int, *terms: Value) -> Pointer:
        """Where the sums of one of the phases that are abreast lie."""
        size = beside * self.tile.rows * self.tile.width
        return offset(self.builder, self.sums, self.layout.accumulator, size, *terms)

    def _multiply(self, height: int, group: Index, row: Value, within: Value, number: int) -> None:
        """The sums of some rows over one strip of places, in one phase."""
        builder, layout, indices = self.builder, self.layout, self.code.indices
        patches = self.patches
        length = patches.phases[number].taps * patches.channels
        before = sum(phase.taps for phase in patches.phases[:number]) * patches.channels
        line = indices.add(indices.mul(group, layout.rows), row)
        at = indices.add(before * patches.groups * layout.rows, indices.mul(line, length))
        weights = offset(builder, self.weights, layout.accumulator, at)
        images = offset(builder, self.code.own, layout.accumulator, within)
        distances = builder.gep(self.distances, [i64(before)], source_etype=ir().IntType(64))
        tile = Tile(height, self.tile.vectors, self.tile.lanes)
        kernel = MicroKernel(tile, layout.accumulator, "rows", "placed").function(builder.module)
        sums = self._sums_of(number % layout.abreast)
        never = ir().Constant(ir().IntType(1), 0)
        each = i64(length)
        arguments = [each, weights, each, images, sums, i64(tile.width), never, images]
        builder.call(kernel, [*arguments, distances])

    def _finish(self, height: int, group: Index, row: Value, first: Value, phase: Phase) -> None:
        """Take the sums of some rows to the results, row by row of the images: those of a phase, and of all that are abreast with it."""
        builder, layout, patches = self.builder, self.layout, self.patches
        indices, grid, lanes = self.code.indices, layout.grid, self.tile.lanes
        stop = minimum(builder, builder.add(first, i64(self.tile.width)), i64(layout.places))
        abreast, width = layout.abreast, patches.result[-1]

        def run(address: Value, held: Value) -> tuple[Value, Value]:
            image, index = unravelled(builder, address, grid.pitches)
            column = i64(index[-1])
            rest = minimum(
                builder, builder.sub(i64(grid.pitches[-1]), column), builder.sub(stop, address)
            )
            # Of the result's row: what is left of it, and what these places have.
            begin = i64(indices.mul(column, abreast))
            length = minimum(
                builder, i64(indices.mul(rest, abreast)), builder.sub(i64(width), begin)
            )
            pixel: Index = 0
            for axis, one in enumerate(index[:-1]):
                taps = phase.axes[axis]
                own = indices.add(taps.start, indices.mul(one, patches.strides[axis]))
                pixel = indices.add(indices.mul(pixel, patches.result[axis]), own)
                valid = builder.icmp_signed("<", i64(one), i64(taps.pixels))
                length = builder.select(valid, length, i64(0))
            pixel = indices.add(indices.mul(pixel, width), begin)

            def vectors(at: Value, _: Sequence[Value]) -> None:
                """The vectors of ``lanes`` places, from ``at`` on."""
                here = builder.add(builder.sub(address, first), at)
                done = indices.mul(at, abreast)
                left = builder.sub(length, i64(done))
                masks = [
                    lane_mask(builder, builder.sub(left, i64(number * lanes)), lanes)
                    for number in range(min(abreast, ceil_div(width, lanes)))
                ]

                def emit_row(number: Value, _: Sequence[Value]) -> None:
                    channel = indices.add(indices.mul(group, layout.rows), builder.add(row, number))
                    from_ = builder.add(builder.mul(number, i64(self.tile.width)), here)
                    values = [
                        load(builder, self._sums_of(beside, from_), layout.accumulator, lanes)
                        for beside in range(abreast)
                    ]
                    for vector, value in enumerate(interleaved(builder, values)[: len(masks)]):
                        at_pixel = indices.add(pixel, indices.add(done, vector * lanes))
                        full = [image, channel, at_pixel]
                        self.finish.emit(self.code, value, full, lanes, masks[vector])

                loop(builder, i64(0), i64(height), 1, emit_row)

            places_left = builder.udiv(builder.add(length, i64(abreast - 1)), i64(abreast))
            loop(builder, i64(0), places_left, lanes, vectors)
            return builder.add(address, rest), held

        walk(builder, first, stop, run, i64(0))
