"""The gradient of a convolution towards its weight: patches times the result's gradient, summed over all pixels of all images.

The product is ``sums[channel * taps + tap][out] = sum over pixels of patch * gradient``. Images are copied to where every tap has a fixed offset from its pixel
(``planes``), so that patches are read in place; where a stride has too many phases for that, they are packed. The gradient is packed into
panels once for all rows, and sums are transposed on their way to the result. Threads share rows; where rows are few, pixels are shared too, in a fixed
number of pieces whose sums are added in order at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ....codegen.ir.emit import (
    accumulator_of,
    ir,
    lane_mask,
    load,
    loop,
    minimum,
    offset,
    store,
    zero,
)
from ....codegen.ir.index import Index, i64
from ....codegen.ir.types import STORAGE_BYTES, Function, Module, Pointer, Value
from ....codegen.problems.conv import Patches, patches_of
from ....graph.integers import ceil_div, round_up
from ....graph.node import Node
from ..contract.pack import transpose
from ..contract.tile import Machine, MicroKernel, Tile
from ..emit.template import Code, Scratch
from .blocks import Reader, ReaderRoom, blocks_of
from .driver import in_lines
from .epilogue import Finish, each_transposed
from .pack import TOGETHER, Packer, divided, grid_of, table_bytes, walk
from .plan import tile_cycles, tiles_of
from .planes import grid_of_planes, write_distances
from .schedule import call_with_rows, rows_of_turns, share_sums

LONGEST_BLOCK = 256
"""The most pixels that are summed in one pass."""
ROWS = 96
"""Rows of patches that are packed together, unless one channel has more."""
PANEL_BYTES = 384 << 10
"""Of the cache next to a core: what packed panels of the gradient may take."""
ENOUGH = 8
"""Pieces of work for threads to share."""
PACKED = 10.0
"""Cycles for a piece of a row of patches, of a vector at most, that is packed where as many channels go together as can."""
IN_PLACE = 1.08
"""What it adds to the products that rows of patches are read where they lie."""
TRANSPOSED = 7.0
"""Cycles for a vector of the gradient that is packed."""


def transpose_panel_kernel(
    module: Module, dtype: str, tile: Tile, non_temporal: bool = False
) -> Function:
    """The function that packs rows of pixels into a panel ``[pixel][row]``, emitted once per module.

    Its signature is ``(pixels, rows, source*, distance, panel*)``. It writes whole squares: what lies behind the last pixel is to be written later,
    or room that is spare, and columns behind the last row are anything. ``non_temporal`` has vectors go past the cache: panels lie at multiples of one.
    """
    types = ir()
    accumulator, lanes, width = accumulator_of(dtype), tile.lanes, tile.width
    name = f"darner.turn.patches.{dtype}.{lanes}.{width}{'.past' if non_temporal else ''}"
    if name in module.globals:
        return module.globals[name]
    word, pointer = types.IntType(64), types.PointerType()
    kind = types.FunctionType(types.VoidType(), [word, word, pointer, word, pointer])
    function = types.Function(module, kind, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    builder = types.IRBuilder(function.append_basic_block("entry"))
    pixels, rows, source, distance, panel = function.args
    last = builder.sub(rows, i64(1))

    def column(at: Value, _: Sequence[Value]) -> None:
        lines = []
        for lane in range(lanes):
            row = minimum(builder, builder.add(at, i64(lane)), last)
            lines.append(offset(builder, source, dtype, builder.mul(row, distance)))

        def square(first: Value, _: Sequence[Value]) -> None:
            mask = lane_mask(builder, builder.sub(pixels, first), lanes)
            values = [
                load(builder, offset(builder, line, dtype, first), dtype, lanes, mask)
                for line in lines
            ]
            corner = builder.add(builder.mul(first, i64(width)), at)
            for lane, value in enumerate(transpose(builder, values)):
                address = offset(builder, panel, accumulator, corner, lane * width)
                store(builder, value, address, accumulator, non_temporal=non_temporal)

        loop(builder, i64(0), pixels, lanes, square)

    loop(builder, i64(0), i64(width), lanes, column)
    builder.ret_void()
    return function


class Layout:
    """How the product is cut, and where its scratch memory lies."""

    def __init__(self, main: Node, machine: Machine) -> None:
        self.main = main
        self.rate = machine.multiplies
        self.dtype = main.operands[0].dtype.name
        self.accumulator = accumulator_of(self.dtype)
        self.size = STORAGE_BYTES[self.accumulator]
        self.patches: Patches = patches_of(main)
        patches = self.patches
        self.taps = prod(patches.kernel)
        self.rows = patches.channels * self.taps
        self.columns = int(main.shape[0]) // patches.groups
        self.tile = min(tiles_of(machine, self.dtype), key=self._cycles)
        width, lanes = self.tile.width, self.tile.lanes
        self.padded = round_up(self.columns, lanes)
        self.panels = ceil_div(self.columns, width)
        self.grid = grid_of_planes(patches)
        self.cut = blocks_of(patches, self.grid, LONGEST_BLOCK, lanes)
        self.block, self.blocks = self.cut.length, self.cut.count
        self.channels = min(patches.channels, max(1, ROWS // self.taps))
        if self.channels > 8:
            self.channels = self.channels // 8 * 8
        self.turns = ceil_div(patches.channels, self.channels)
        self.heights = rows_of_turns(patches.channels, self.channels, self.taps)
        panel = self.block * width * self.size
        self.together = max(1, min(self.panels, PANEL_BYTES // panel))
        self.sections = ceil_div(self.panels, self.together)
        self.together = ceil_div(self.panels, self.sections)
        units = patches.groups * self.sections * self.turns
        self.splits = max(1, min(self.blocks, ceil_div(ENOUGH, units) if units < ENOUGH else 1))
        # The squares that sums are turned around in lie where the panels were.
        square = lanes * lanes * self.size
        spare = lanes * width * self.size
        self.panel_bytes = in_lines(max(self.together * panel + spare, square))
        self.plane = 0
        if self.grid.possible:
            self.plane = self.cut.plane(self.size, lanes)
            planes = self.channels * len(self.grid.planes)
            self.patch_bytes = in_lines(planes * self.plane * self.size)
            self.row_bytes = in_lines(8 * self.heights[0])
            self.table_bytes = self.row_bytes + in_lines(8 * self.block)
        else:
            self.patch_bytes = in_lines(self.channels * self.taps * self.block * self.size)
            self.table_bytes = in_lines(table_bytes(patches, self.block, lanes))
        self.part = patches.groups * self.rows * self.padded

    def _cycles(self, tile: Tile) -> float:
        full, rest = divmod(self.columns, tile.width)
        cycles = full * tile_cycles(tile.rows, tile.vectors, self.rate)
        if rest:
            cycles += tile_cycles(tile.rows, ceil_div(rest, tile.lanes), self.rate)
        return cycles / tile.rows

    @property
    def cycles(self) -> float:
        """Cycles that one thread would take."""
        patches, lanes = self.patches, self.tile.lanes
        pixels = patches.batch * patches.pixels
        cycles = pixels * self.rows * self._cycles(self.tile)
        cycles += pixels * self.padded / lanes * TRANSPOSED
        if self.plane:
            places, planes = (
                self.cut.span + self.grid.halo,
                patches.channels * len(self.grid.planes),
            )
            copied = planes * self.grid.plane_cycles(places, lanes, self.rate)
            return patches.groups * (IN_PLACE * cycles + self.sections * self.blocks * copied)
        row = patches.result[-1]
        pieces = pixels // row * ceil_div(row, lanes)
        # What is written down about a piece is read once for so many channels.
        alone = 1 + (TOGETHER - min(TOGETHER, patches.channels)) / (2 * TOGETHER)
        packed = self.rows * self.sections * pieces * alone * PACKED
        return patches.groups * (cycles + packed)

    @property
    def scratch(self) -> Scratch:
        """The memory it needs: the sums have room for a whole tile behind their end."""
        own = self.panel_bytes + self.patch_bytes + self.table_bytes
        spare = self.tile.lanes * self.padded
        return Scratch(own, in_lines((self.splits * self.part + spare) * self.size))


class Driver:
    """The code of the gradient."""

    def __init__(
        self, code: Code, main: Node, operands: tuple[Pointer, Pointer], finish: Finish
    ) -> None:
        self.code, self.builder, self.finish = code, code.builder, finish
        self.layout = Layout(main, code.machine)
        self.patches, self.tile = self.layout.patches, self.layout.tile
        self.source, self.gradient = operands
        byte = ir().IntType(8)
        builder, layout = self.builder, self.layout
        self.panels = code.own
        self.rows = builder.gep(code.own, [i64(layout.panel_bytes)], source_etype=byte)
        position = layout.panel_bytes + layout.patch_bytes
        table = builder.gep(code.own, [i64(position)], source_etype=byte)
        lanes, dtype = self.tile.lanes, layout.dtype
        if layout.plane:
            self.starts = table
            self.places = builder.gep(table, [i64(layout.row_bytes)], source_etype=byte)
            self.reader = Reader(
                code, layout.cut, dtype, lanes, ReaderRoom(self.rows, layout.plane, self.places)
            )
        else:
            self.packer = Packer(builder, self.patches, dtype, lanes, table)
            self.phase = grid_of(builder, self.patches, None, 0)

    def emit(self) -> None:
        """Everything: the sums, then their way to the result."""
        layout = self.layout
        if layout.plane:
            write_distances(self.builder, layout.grid, layout.channels, layout.plane, self.starts)
        if layout.blocks:
            share_sums(
                self.code, self.layout, self.patches.groups * self.layout.sections, self._block
            )
            self.code.barrier()
        self._finish()

    def _block(
        self,
        index: Value,
        number: Index,
        split: Index,
        keep: Value,
        turns: tuple[Value, Value],
    ) -> None:
        """The pixels of one block: the gradient's panels, then the patches of some channels at a time."""
        builder, layout, patches = self.builder, self.layout, self.patches
        indices = self.code.indices
        group, section = divided(builder, number, layout.sections)
        first, stop = layout.cut.bounds(self.code, index)
        self._pack_gradient(group, section, first, stop)
        if layout.plane:
            described = self.reader.write_offsets(first, stop)
        else:
            described = self.packer.describe(self.phase, first, stop, layout.block)
        length = builder.sub(stop, first)

        def turn(number: Value, _: Sequence[Value]) -> None:
            channel = builder.mul(number, i64(layout.channels))
            count = minimum(
                builder, builder.sub(i64(patches.channels), channel), i64(layout.channels)
            )
            plane = indices.add(indices.mul(group, patches.channels), channel)
            source = offset(builder, self.source, layout.dtype, indices.mul(plane, patches.area))
            if layout.plane:
                self.reader.copy(source, count, described)
            else:
                self.packer.copy(described, source, count, layout.taps, layout.block, self.rows)
            row = builder.mul(channel, i64(layout.taps))
            rows = builder.mul(count, i64(layout.taps))
            base = indices.add(indices.mul(split, patches.groups), group)
            base = indices.add(indices.mul(base, layout.rows), row)
            sums = offset(
                builder, self.code.shared, layout.accumulator, indices.mul(base, layout.padded)
            )
            self._multiply(section, rows, length, sums, keep)

        loop(builder, *turns, 1, turn)

    def _each_panel(self, section: Index, emit_panel: Callable[[Tile, Value, Value], None]) -> None:
        """``emit_panel(tile, number within the section, number)`` for the panels of a section."""
        builder, layout = self.builder, self.layout
        indices = self.code.indices
        first = i64(indices.mul(section, layout.together))
        stop = minimum(builder, builder.add(first, i64(layout.together)), i64(layout.panels))
        full = layout.columns // self.tile.width
        rest = layout.columns % self.tile.width

        def body(number: Value, _: Sequence[Value]) -> None:
            emit_panel(self.tile, builder.sub(number, first), number)

        loop(builder, first, minimum(builder, stop, i64(full)), 1, body)
        if rest:
            last = Tile(self.tile.rows, ceil_div(rest, self.tile.lanes), self.tile.lanes)
            with builder.if_then(builder.icmp_signed(">", stop, i64(full))):
                emit_panel(last, builder.sub(i64(full), first), i64(full))

    def _pack_gradient(self, group: Index, section: Index, first: Value, stop: Value) -> None:
        """Panels ``[pixel][channel]`` of the gradient, image by image."""
        builder, layout, pixels = self.builder, self.layout, self.patches.pixels
        indices = self.code.indices

        def panel(tile: Tile, within: Value, number: Value) -> None:
            width = self.tile.width
            valid = width if tile is self.tile else layout.columns % width
            pack = transpose_panel_kernel(builder.module, layout.dtype, tile)
            target = offset(
                builder,
                self.panels,
                layout.accumulator,
                builder.mul(within, i64(layout.block * width)),
            )
            channel = indices.add(
                indices.mul(group, layout.columns), builder.mul(number, i64(width))
            )

            def run(column: Value, held: Value) -> tuple[Value, Value]:
                image, pixel = divided(builder, column, pixels)
                length = minimum(
                    builder, builder.sub(i64(pixels), i64(pixel)), builder.sub(stop, column)
                )
                plane = indices.add(
                    indices.mul(image, self.patches.groups * layout.columns), channel
                )
                source = offset(
                    builder,
                    self.gradient,
                    layout.dtype,
                    indices.add(indices.mul(plane, pixels), pixel),
                )
                to = offset(
                    builder,
                    target,
                    layout.accumulator,
                    builder.mul(builder.sub(column, first), i64(tile.width)),
                )
                builder.call(pack, [length, i64(valid), source, i64(pixels), to])
                return builder.add(column, length), held

            walk(builder, first, stop, run, i64(0))

        self._each_panel(section, panel)

    def _multiply(
        self, section: Index, rows: Value, length: Value, sums: Pointer, keep: Value
    ) -> None:
        """Add the products of packed rows with the panels of a section to their sums."""
        builder, layout = self.builder, self.layout
        height, pitch = self.tile.rows, i64(layout.padded)

        def panel(tile: Tile, within: Value, number: Value) -> None:
            width = self.tile.width
            at = builder.mul(within, i64(layout.block * width))
            b = offset(builder, self.panels, layout.accumulator, at)
            column = builder.mul(number, i64(width))

            def emit_tile(row: Value, _: Sequence[Value]) -> None:
                out = offset(builder, sums, layout.accumulator, builder.mul(row, pitch), column)
                if layout.plane:
                    form, a = "placed", self.rows
                    starts = builder.gep(self.starts, [row], source_etype=ir().IntType(64))
                    more = [starts, self.places]
                else:
                    position = builder.mul(row, i64(layout.block))
                    form, a = "rows", offset(builder, self.rows, layout.accumulator, position)
                    more = []

                def call(count: int) -> None:
                    exact = Tile(count, tile.vectors, tile.lanes)
                    kernel = MicroKernel(exact, layout.accumulator, form).function(builder.module)
                    arguments = [length, a, i64(layout.block), b, out, pitch, keep, b]
                    builder.call(kernel, [*arguments, *more])

                call_with_rows(builder, builder.sub(rows, row), height, layout.heights, call)

            loop(builder, i64(0), rows, height, emit_tile)

        self._each_panel(section, panel)

    # ------------------------------------------------------------- the way out

    def _finish(self) -> None:
        """Add up what the splits have summed, turn it around in squares, and take it to the results."""
        builder, layout, lanes = self.builder, self.layout, self.tile.lanes
        down, across = ceil_div(layout.rows, lanes), layout.padded // lanes

        def unit(number: Value) -> None:
            rest, second = divided(builder, number, across)
            group, first = divided(builder, rest, down)
            row = builder.mul(i64(first), i64(lanes))
            column = builder.mul(i64(second), i64(lanes))
            base = builder.add(builder.mul(i64(group), i64(layout.rows)), row)
            start = builder.add(builder.mul(base, i64(layout.padded)), column)
            values = []
            for lane in range(lanes):
                total = zero(layout.accumulator, lanes)
                for split in range(layout.splits if layout.blocks else 0):
                    at = split * layout.part + lane * layout.padded
                    address = offset(builder, self.code.shared, layout.accumulator, start, at)
                    value = load(builder, address, layout.accumulator, lanes)
                    total = value if not split else builder.fadd(total, value)
                values.append(total)
            mask = lane_mask(builder, builder.sub(i64(layout.rows), row), lanes)
            count = minimum(builder, builder.sub(i64(layout.columns), column), i64(lanes))

            def emit_lane(lane: Value, sums: Value) -> None:
                out = builder.mul(i64(group), i64(layout.columns))
                out = builder.add(out, builder.add(column, lane))
                self.finish.emit(self.code, sums, [out, row], lanes, mask)

            each_transposed(builder, values, self.panels, layout.accumulator, count, emit_lane)

        self.code.each(self.patches.groups * down * across, unit)
