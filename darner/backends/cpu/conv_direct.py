"""Convolutions and their gradients towards the input whose patches are never written down: a tile reads the images themselves.

Images are copied to where every tap has a fixed distance from its pixel (``conv_planes``), once for all taps and all channels of the result. Pixels that stand next to each
other there are the columns of a tile, and zeros between rows are computed along and left out at the end. ``conv_driver`` packs all patches instead, which pays
where many channels of the result use them, or where images are so small that the zeros between them would be much of the work.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ...graph.node import Node
from .conv_driver import in_lines
from .conv_finish import Finish
from .conv_pack import divided, place_of, walk
from .conv_planes import COPIED, SPACED, Copier, grid_of_planes, write_distances
from .conv_plan import Patches, patches_of, tiles_of
from .conv_rows import copy_weights
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
ENOUGH = 16
"""Pieces of work that are left for threads to share."""
FINISHED = 8.0
"""Cycles for a piece of a row, of a vector at most, on its way to the result."""
CALLED = 20.0
"""Cycles for a tile, besides its sums."""


def tile_cycles(rows: int, vectors: int) -> float:
    """Cycles of one product for every element of a tile: vectors lie anywhere, so reading one takes two lines of the cache."""
    return max(rows * vectors / 2, vectors + (rows + 1) / 2, 4)


class Layout:
    """How the product is cut, and where its scratch memory lies.

    Attributes:
        possible: whether there is code for it: pixels have one phase, and the cache holds a tile's width of all channels.
    """

    def __init__(self, main: Node, machine: Machine) -> None:
        self.main = main
        self.dtype = main.operands[0].dtype.name
        self.accumulator = accumulator_of(self.dtype)
        self.size = STORAGE_BYTES[self.accumulator]
        self.patches: Patches = patches_of(main)
        self.backward = main.op.name == "conv_input_grad"
        self.rows = int(main.shape[1]) // self.patches.groups
        self.possible = len(self.patches.phases) == 1 and self.patches.most_taps > 0
        if not self.possible:
            return
        self.grid = grid_of_planes(self.patches)
        self.taps = self.patches.most_taps
        self.length = self.patches.channels * self.taps
        self.tile = min(tiles_of(machine, self.dtype), key=self._tile_cycles)
        self.places = self.patches.batch * self.grid.image
        planes = self.patches.channels * len(self.grid.planes)
        width = self.tile.width
        most = PLANES_BYTES // (planes * self.size) - self.grid.halo - 2 * self.tile.lanes
        self.possible = most >= width
        wanted = -(-self.places * self.patches.groups // ENOUGH)
        self.strips = max(1, min(most, wanted) // width)
        self.block = self.strips * width
        self.blocks = -(-self.places // self.block)
        line = 64 // self.size
        # An odd number of lines, so that planes do not fall into the same sets of the cache.
        self.plane = (-(-(self.block + self.grid.halo + self.tile.lanes) // line) | 1) * line
        self.plane_bytes = in_lines(planes * self.plane * self.size)
        self.sum_bytes = in_lines(self.tile.rows * width * self.size)
        self.as_they_are = self.dtype == self.accumulator and not self.backward
        weights = prod(int(size) for size in main.operands[1].shape)
        self.weight_bytes = 0 if self.as_they_are else in_lines(weights * self.size)

    def _tile_cycles(self, tile: Tile) -> float:
        """Cycles of one term of all rows, for a vector of places."""
        full, rest = divmod(self.rows, tile.rows)
        cycles = full * tile_cycles(tile.rows, tile.vectors)
        return (cycles + (tile_cycles(rest, tile.vectors) if rest else 0)) / tile.vectors

    @property
    def cycles(self) -> float:
        """Cycles that one thread would take."""
        patches, tile = self.patches, self.tile
        each = patches.channels * len(self.grid.planes) * (self.block + self.grid.halo)
        copied = each / tile.lanes * (SPACED if patches.steps[-1] > 1 else COPIED)
        vectors = self.strips * tile.vectors
        multiplied = vectors * self.length * self._tile_cycles(tile)
        pieces = self.block / self.grid.pitches[-1] * -(-patches.result[-1] // tile.lanes)
        finished = self.rows * max(pieces, vectors) * FINISHED
        called = self.strips * -(-self.rows // tile.rows) * CALLED
        return patches.groups * self.blocks * (copied + multiplied + finished + called)

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
        self.patches, self.tile = self.layout.patches, self.layout.tile
        layout, grid = self.layout, self.layout.grid
        byte = ir().IntType(8)
        self.sums = self.builder.gep(code.own, [i64(layout.plane_bytes)], source_etype=byte)
        self.copier = Copier(
            self.builder, grid, self.patches.batch, layout.dtype, self.tile.lanes
        )
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
        self.code.each(layout.blocks * self.patches.groups, self._unit)

    def _unit(self, number: Any) -> None:
        """Some places of one group: the images are copied, then every tile of rows meets them."""
        builder, layout, patches = self.builder, self.layout, self.patches
        places, grid = self.code.places, layout.grid
        group, block = divided(builder, number, layout.blocks)
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

        def rows_of(height: int) -> Any:
            def body(row: Any, _: Any) -> None:
                def strip(within: Any, _: Any) -> None:
                    self._multiply(height, group, row, within)
                    self._finish(height, group, row, builder.add(first, within))

                loop(builder, i64(0), i64(layout.block), self.tile.width, strip)

            return body

        height = self.tile.rows
        whole = layout.rows // height * height
        if whole:
            loop(builder, i64(0), i64(whole), height, rows_of(height))
        if layout.rows > whole:
            rows_of(layout.rows - whole)(i64(whole), None)

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
