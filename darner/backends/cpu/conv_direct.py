"""Convolutions and their gradients towards the input whose patches are never written down: a tile reads the images themselves.

Images are copied to where every tap has a fixed distance from its pixel (``conv_planes``), once for all taps and all channels of the result. Pixels that stand next to each
other there are the columns of a tile, and zeros between rows are computed along and left out at the end. ``conv_driver`` packs all patches instead, which pays
where many channels of the result use them, or where images are so small that the zeros between them would be much of the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from ...graph.node import Node
from .conv_driver import in_lines
from .conv_finish import Finish
from .conv_pack import divided, place_of, walk
from .conv_plan import Patches, patches_of, pieces_of, rows_cycles, shared, tiles_of
from .conv_planes import COPIED, SPACED, Copier, grid_of_planes, write_distances
from .conv_rows import copy_weights
from .conv_turns import call_with_rows
from .gemm_ir import (
    STORAGE_BYTES,
    accumulator_of,
    i64,
    ir,
    lane_mask,
    load,
    loop,
    minimum,
    offset,
)
from .gemm_tile import Machine, Tile, tile_kernel
from .places import Number, as_value
from .template import Code, Scratch

PLANES_BYTES = 512 << 10
"""Of the cache next to a core: what the images of a piece of work may take, all channels of them."""
PIECES = (8, 16, 32)
"""Of work, that all places may be cut into for threads to share."""
PARTS = (1, 2, 4)
"""Pieces that the rows may be cut into: each copies the images by itself."""
FINISHED = 4.5
"""Cycles for a piece of a row, of a vector at most, on its way to the result."""
CALLED = 15.0
"""Cycles for a tile, besides its sums."""


def tile_cycles(rows: int, vectors: int) -> float:
    """Cycles of one product for every element of a tile: vectors lie anywhere, so reading one takes two lines of the cache."""
    return max(rows * vectors / 2, vectors + (rows + 1) / 2, 4)


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
        possible: whether there is code for it: all taps meet all pixels, the stride has few phases, and the cache holds a tile's width of all channels.
    """

    def __init__(self, main: Node, machine: Machine) -> None:
        self.main = main
        self.dtype = main.operands[0].dtype.name
        self.accumulator = accumulator_of(self.dtype)
        self.size = STORAGE_BYTES[self.accumulator]
        self.patches: Patches = patches_of(main)
        self.backward = main.op.name == "conv_input_grad"
        self.rows = int(main.shape[1]) // self.patches.groups
        self.length = self.patches.channels * self.patches.most_taps
        taps = prod(self.patches.kernel)
        self.possible = [phase.taps for phase in self.patches.phases] == [taps]
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
        self.blocks = -(-self.places // self.block)
        line = 64 // self.size
        # An odd number of lines, so that planes do not fall into the same sets of the cache.
        self.plane = (-(-(self.block + self.grid.halo + lanes) // line) | 1) * line
        self.plane_bytes = in_lines(self.planes * self.plane * self.size)
        self.sum_bytes = in_lines(self.cut.tile.rows * width * self.size)
        self.as_they_are = self.dtype == self.accumulator and not self.backward
        weights = prod(int(size) for size in main.operands[1].shape)
        self.weight_bytes = 0 if self.as_they_are else in_lines(weights * self.size)

    def _cuts(self, machine: Machine) -> list[Cut]:
        """All ways that keep the images of a piece in the cache."""
        found = []
        for tile in tiles_of(machine, self.dtype):
            most = PLANES_BYTES // (self.planes * self.size) - self.grid.halo - 2 * tile.lanes
            total = -(-self.places // tile.width)
            tiles = -(-self.rows // tile.rows)
            held = most // tile.width
            wanted = {min(held, -(-total // pieces)) for pieces in PIECES}
            for strips in sorted(wanted) if held > 0 else ():
                for parts in sorted({min(parts, tiles) for parts in PARTS}):
                    height = -(-tiles // parts) * tile.rows
                    parts = -(-self.rows // height)
                    cycles = self._cycles(tile, strips, parts)
                    found.append(Cut(tile, strips, parts, height, cycles))
        return found

    def _cycles(self, tile: Tile, strips: int, parts: int) -> float:
        """Cycles that two threads take."""
        patches = self.patches
        total = -(-self.places // tile.width)
        blocks = -(-total // strips)
        places = blocks * (strips * tile.width + self.grid.halo)
        copied = SPACED if patches.steps[-1] > 1 else COPIED
        cycles = parts * self.planes * places / tile.lanes * copied
        cycles += total * self.length * rows_cycles(self.rows, tile, tile_cycles)
        cycles += total * -(-self.rows // tile.rows) * CALLED
        cycles += self.rows * pieces_of(self.places, self.grid.pitches[-1], tile) * FINISHED
        return shared(patches.groups * cycles, patches.groups * blocks * parts)

    @property
    def scratch(self) -> Scratch:
        """The memory it needs."""
        own = self.plane_bytes + self.sum_bytes + in_lines(8 * self.length)
        return Scratch(own, self.weight_bytes)


class Driver:
    """The code of one product."""

    def __init__(self, code: Code, main: Node, operands: tuple[Any, Any], finish: Finish) -> None:
        self.code, self.builder, self.finish = code, code.builder, finish
        self.layout = Layout(main, code.machine)
        self.source, self.weights = operands
        self.patches, self.tile = self.layout.patches, self.layout.cut.tile
        layout, grid = self.layout, self.layout.grid
        byte = ir().IntType(8)
        self.sums = self.builder.gep(code.own, [i64(layout.plane_bytes)], source_etype=byte)
        self.copier = Copier(self.builder, grid, self.patches.batch, layout.dtype, self.tile.lanes)
        place = layout.plane_bytes + layout.sum_bytes
        self.distances = self.builder.gep(code.own, [i64(place)], source_etype=byte)

    def emit(self) -> None:
        """Everything."""
        layout = self.layout
        if not layout.as_they_are:
            copy_weights(self.code, layout, self.weights, None)
            self.weights = self.code.shared
            self.code.barrier()
        channels = self.patches.channels
        write_distances(self.builder, layout.grid, channels, layout.plane, self.distances)
        self.code.each(self.patches.groups * layout.blocks * layout.cut.parts, self._unit)

    def _unit(self, number: Any) -> None:
        """Some places of one group: the images are copied, then every tile of rows meets them."""
        builder, layout, patches = self.builder, self.layout, self.patches
        places, grid = self.code.places, layout.grid
        rest, part = divided(builder, number, layout.cut.parts)
        group, block = divided(builder, rest, layout.blocks)
        first = builder.mul(as_value(block), i64(layout.block))
        plane = places.mul(group, patches.channels)
        source = offset(builder, self.source, layout.dtype, places.mul(plane, patches.area))
        each = len(grid.planes)
        for i, phase in enumerate(grid.planes):
            self.copier.copy(
                phase,
                patches.sizes,
                patches.image,
                source,
                i64(patches.channels),
                (builder.sub(first, i64(grid.before)), layout.block + grid.halo),
                offset(builder, self.code.own, layout.accumulator, i * layout.plane),
                each * layout.plane,
            )

        stop = minimum(builder, i64(layout.block), builder.sub(i64(layout.places), first))
        start = as_value(places.mul(part, layout.cut.height))
        end = minimum(builder, builder.add(start, i64(layout.cut.height)), i64(layout.rows))

        def tile(row: Any, _: Any) -> None:
            def with_rows(height: int) -> None:
                def strip(within: Any, _: Any) -> None:
                    self._multiply(height, group, row, within)
                    self._finish(height, group, row, builder.add(first, within))

                loop(builder, i64(0), stop, self.tile.width, strip)

            left = builder.sub(i64(layout.rows), row)
            call_with_rows(builder, left, self.tile.rows, (layout.rows,), with_rows)

        loop(builder, start, end, self.tile.rows, tile)

    def _multiply(self, height: int, group: Number, row: Any, within: Any) -> None:
        """The sums of some rows over one strip of places."""
        builder, layout, places = self.builder, self.layout, self.code.places
        line = places.add(places.mul(group, layout.rows), row)
        at = places.mul(line, layout.length)
        weights = offset(builder, self.weights, layout.accumulator, at)
        images = offset(builder, self.code.own, layout.accumulator, within)
        tile = Tile(height, self.tile.vectors, self.tile.lanes)
        kernel = tile_kernel(builder.module, tile, layout.accumulator, "rows", "placed")
        length, never = i64(layout.length), ir().Constant(ir().IntType(1), 0)
        arguments = [length, weights, length, images, self.sums, i64(tile.width), never, images]
        builder.call(kernel, [*arguments, self.distances])

    def _finish(self, height: int, group: Number, row: Any, first: Any) -> None:
        """Take the sums of some rows to the results, row by row of the images."""
        builder, layout, patches = self.builder, self.layout, self.patches
        places, grid, lanes = self.code.places, layout.grid, self.tile.lanes
        stop = minimum(builder, builder.add(first, i64(self.tile.width)), i64(layout.places))

        def run(place: Any, held: Any) -> tuple[Any, Any]:
            image, index = place_of(builder, place, grid.pitches)
            column = as_value(index[-1])
            rest = minimum(
                builder, builder.sub(i64(grid.pitches[-1]), column), builder.sub(stop, place)
            )
            length = minimum(builder, rest, builder.sub(i64(patches.result[-1]), column))
            pixel: Number = 0
            for axis, one in enumerate(index):
                pixel = places.add(places.mul(pixel, patches.result[axis]), one)
                if axis < len(index) - 1:
                    valid = builder.icmp_signed("<", as_value(one), i64(patches.result[axis]))
                    length = builder.select(valid, length, i64(0))

            def vector(at: Any, _: Any) -> None:
                mask = lane_mask(builder, builder.sub(length, at), lanes)
                here = builder.add(builder.sub(place, first), at)

                def one_row(number: Any, _: Any) -> None:
                    channel = places.add(places.mul(group, layout.rows), builder.add(row, number))
                    from_ = builder.add(builder.mul(number, i64(self.tile.width)), here)
                    sums = offset(builder, self.sums, layout.accumulator, from_)
                    value = load(builder, sums, layout.accumulator, lanes, mask)
                    index = [image, channel, places.add(pixel, at)]
                    self.finish.emit(self.code, value, index, lanes, mask)

                loop(builder, i64(0), i64(height), 1, one_row)

            loop(builder, i64(0), length, lanes, vector)
            return builder.add(place, rest), held

        walk(builder, first, stop, run, i64(0))
