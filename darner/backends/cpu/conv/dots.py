"""The gradient of a convolution towards its weight where channels are few: vectors run along pixels.

Each element of it is the dot product of two long rows: the source as a tap sees it, and the gradient of the result. Laid out on one grid (``planes``), both are read
in place. A tile keeps a vector of sums for some taps and some channels, and adds its lanes at the end of a block. So any number of channels fills the
vectors, where ``weight_gradient`` has channels in lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....codegen.ir.emit import (
    accumulator_of,
    fused_multiply_add,
    ir,
    lane_mask,
    lane_numbers,
    load,
    loop,
    minimum,
    offset,
    store,
    zero,
)
from ....codegen.ir.index import Index, i64
from ....codegen.ir.types import STORAGE_BYTES, Builder, Module, Value
from ....codegen.problems.conv import Patches, patches_of
from ....graph.integers import ceil_div
from ....graph.node import Node
from ..contract.tile import Machine
from ..emit.template import Code, Scratch
from .driver import in_lines
from .epilogue import Finish
from .pack import divided
from .planes import Channels, Copier, Plane, grid_of_planes, write_distances
from .schedule import call_with_rows, rows_of_turns, share_sums

LONGEST_BLOCK = 1024
"""The most places that are summed in one pass."""
SHORTEST_BLOCK = 256
"""The fewest, where there are so many."""
GRADIENT_BYTES = 256 << 10
"""Of the cache next to a core: what the gradient of a block may take."""
PLANES_BYTES = 192 << 10
"""Of that cache, what the planes of some channels may take."""
ROWS = 96
"""Taps of channels that are summed together, unless one channel has more."""
ENOUGH = 8
"""Pieces of work for threads to share."""
SHAPES = {
    64: ((8, 3), (6, 4), (5, 5), (4, 6), (3, 7), (12, 2), (12, 1)),
    32: ((6, 2), (4, 3), (3, 4), (12, 1)),
}
"""Rows (taps of channels) and columns (channels of the result) whose sums fill the registers, for each width of vectors in bytes."""
ADDED = 3.0
"""Cycles for adding up the lanes of one sum."""
CALLED = 25.0
"""Cycles for a tile, besides its sums."""


def tile_cycles(rows: int, columns: int, rate: int) -> float:
    """Cycles of a vector of places in a tile: rows lie anywhere, so reading one takes two lines of the cache."""
    return max(rows * columns / rate, rows + columns / 2, 4)


class Layout:
    """How the product is cut, and where its scratch memory lies."""

    def __init__(self, main: Node, machine: Machine) -> None:
        self.rate = machine.multiplies
        self.dtype = main.operands[0].dtype.name
        self.accumulator = accumulator_of(self.dtype)
        self.size = STORAGE_BYTES[self.accumulator]
        self.lanes = machine.vector_bytes // self.size
        self.patches: Patches = patches_of(main)
        patches = self.patches
        self.grid = grid_of_planes(patches)
        self.taps = prod(patches.kernel)
        self.rows = patches.channels * self.taps
        self.columns = int(main.shape[0]) // patches.groups
        places = patches.batch * self.grid.image
        longest = GRADIENT_BYTES // (self.columns * self.size)
        longest = max(SHORTEST_BLOCK, min(LONGEST_BLOCK, longest))
        blocks = max(1, ceil_div(places, longest))
        self.block = max(1, ceil_div(places, blocks * self.lanes)) * self.lanes
        self.blocks = ceil_div(places, self.block)
        # An odd number of lines, so that rows do not fall into the same sets of the cache.
        self.pitch = self._pitch(self.block)
        self.plane = self._pitch(self.block + self.grid.halo)
        each = len(self.grid.planes) * self.plane * self.size
        self.channels = max(1, min(patches.channels, ROWS // self.taps, PLANES_BYTES // each))
        self.turns = ceil_div(patches.channels, self.channels)
        self.channels = ceil_div(patches.channels, self.turns)
        self.turns = ceil_div(patches.channels, self.channels)
        units = patches.groups * self.turns
        self.splits = max(1, min(self.blocks, ceil_div(ENOUGH, units) if units < ENOUGH else 1))
        self.heights = rows_of_turns(patches.channels, self.channels, self.taps)
        shapes = SHAPES.get(machine.vector_bytes, SHAPES[64])
        self.tile = min(shapes, key=self._cycles_of_block)
        self.gradient_bytes = in_lines(self.columns * self.pitch * self.size)
        self.plane_bytes = in_lines(self.channels * each)
        self.part = patches.groups * self.columns * self.rows

    def _pitch(self, places: int) -> int:
        line = 64 // self.size
        return (ceil_div(places + self.lanes, line) | 1) * line

    def widths(self, tile: tuple[int, int]) -> tuple[tuple[int, int], ...]:
        """Into how many tiles of which width the columns are cut."""
        count = ceil_div(self.columns, tile[1])
        least, more = divmod(self.columns, count)
        return tuple(pair for pair in ((more, least + 1), (count - more, least)) if pair[0])

    def _cycles_of_block(self, tile: tuple[int, int]) -> float:
        """Cycles of one turn of one block."""
        height, rest = divmod(self.heights[0], tile[0])
        steps, cycles = self.block / self.lanes, 0.0
        for count, width in self.widths(tile):
            for tiles, rows in ((height, tile[0]), (1, rest)):
                if tiles and rows:
                    own = (
                        steps * tile_cycles(rows, width, self.rate) + ADDED * rows * width + CALLED
                    )
                    cycles += count * tiles * own
        return cycles

    @property
    def cycles(self) -> float:
        """Cycles that one thread would take."""
        grid, patches = self.grid, self.patches
        planes = self.channels * len(grid.planes)
        copied = planes * grid.plane_cycles(self.block + grid.halo, self.lanes, self.rate)
        # The gradient is copied once for all turns that a thread has of a block.
        gradient = grid.plane_cycles(self.block, self.lanes, self.rate)
        copied += self.columns * gradient / self.turns
        cycles = self._cycles_of_block(self.tile) + copied
        return patches.groups * self.turns * self.blocks * cycles

    @property
    def scratch(self) -> Scratch:
        """The memory it needs."""
        own = self.gradient_bytes + self.plane_bytes + in_lines(8 * self.heights[0])
        return Scratch(own, in_lines((self.splits * self.part + self.lanes) * self.size))


def dots_kernel(module: Module, dtype: str, lanes: int, rows: int, columns: int) -> Value:
    """The function that sums the products of some rows with some columns, emitted once per module.

    Its signature is ``(places, distances*, a*, b*, b_pitch, out*, out_pitch, keep)``: row ``i`` begins ``distances[i]`` behind ``a``, column ``j``
    at ``b + j * b_pitch``, and their sum goes to ``out[j * out_pitch + i]``, added to what stands there when ``keep`` is set. Places are whole vectors.
    """
    types = ir()
    name = f"darner.dots.{dtype}.{lanes}.{rows}x{columns}"
    if name in module.globals:
        return module.globals[name]
    word, pointer = types.IntType(64), types.PointerType()
    arguments = [word, pointer, pointer, pointer, word, pointer, word, types.IntType(1)]
    function = types.Function(module, types.FunctionType(types.VoidType(), arguments), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    builder = types.IRBuilder(function.append_basic_block("entry"))
    places, distances, a, b, b_pitch, out, out_pitch, keep = function.args
    lines = []
    for row in range(rows):
        address = builder.gep(distances, [i64(row)], source_etype=word)
        lines.append(offset(builder, a, dtype, builder.load(address, typ=word)))
    others = [offset(builder, b, dtype, builder.mul(b_pitch, i64(j))) for j in range(columns)]

    def step(at: Value, sums: Sequence[Value]) -> list[Value]:
        held = [load(builder, offset(builder, line, dtype, at), dtype, lanes) for line in others]
        totals = []
        for row, line in enumerate(lines):
            value = load(builder, offset(builder, line, dtype, at), dtype, lanes)
            for column, other in enumerate(held):
                total = sums[row * columns + column]
                totals.append(fused_multiply_add(builder, value, other, total, lanes))
        return totals

    nothing = [zero(dtype, lanes)] * (rows * columns)
    sums = loop(builder, i64(0), places, lanes, step, nothing)
    for column in range(columns):
        for first in range(0, rows, lanes):
            count = min(lanes, rows - first)
            own = [sums[(first + row) * columns + column] for row in range(count)]
            value = _lane_sums(builder, own)
            to = offset(builder, out, dtype, builder.mul(out_pitch, i64(column)), first)
            mask = lane_mask(builder, i64(count), lanes)
            before = load(builder, to, dtype, lanes, _if(builder, keep, mask))
            store(builder, builder.fadd(value, before), to, dtype, mask)
    builder.ret_void()
    return function


def _if(builder: Builder, condition: Value, mask: Value) -> Value:
    """A mask, or no lane at all."""
    return builder.select(condition, mask, ir().Constant(mask.type, None))


def _lane_sums(builder: Builder, values: Sequence[Value]) -> Value:
    """The sums over the lanes of some vectors, one in each lane; lanes behind the last are anything."""
    lanes = values[0].type.count
    parts = list(values)
    width = lanes
    while width > 1:
        half = width // 2
        groups = range(0, 2 * lanes, width)
        low = lane_numbers([start + i for start in groups for i in range(half)])
        high = lane_numbers([start + half + i for start in groups for i in range(half)])
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [
            builder.fadd(
                builder.shuffle_vector(pair[0], pair[-1], low),
                builder.shuffle_vector(pair[0], pair[-1], high),
            )
            for pair in pairs
        ]
        width = half
    return parts[0]


class Driver:
    """The code of the gradient."""

    def __init__(
        self, code: Code, main: Node, operands: tuple[Value, Value], finish: Finish
    ) -> None:
        self.code, self.builder, self.finish = code, code.builder, finish
        self.layout = Layout(main, code.machine)
        self.patches = self.layout.patches
        self.source, self.gradient = operands
        byte = ir().IntType(8)
        layout = self.layout
        self.planes = self.builder.gep(code.own, [i64(layout.gradient_bytes)], source_etype=byte)
        self.copier = Copier(
            self.builder, layout.grid, self.patches.batch, layout.dtype, layout.lanes
        )
        position = layout.gradient_bytes + layout.plane_bytes
        self.distances = self.builder.gep(code.own, [i64(position)], source_etype=byte)

    def emit(self) -> None:
        """Everything: the sums, then their way to the result."""
        layout = self.layout
        if layout.blocks:
            write_distances(
                self.builder, layout.grid, layout.channels, layout.plane, self.distances
            )
            share_sums(self.code, self.layout, self.patches.groups, self._block)
            self.code.barrier()
        self._finish()

    def _block(
        self, index: Value, group: Index, split: Index, keep: Value, turns: tuple[Value, Value]
    ) -> None:
        """The places of one block: the gradient's, then the planes of some channels at a time."""
        builder, layout, patches = self.builder, self.layout, self.patches
        indices = self.code.indices
        first = builder.mul(index, i64(layout.block))
        channel = indices.mul(group, layout.columns)
        whole = Plane((0,) * len(patches.result), (1,) * len(patches.result), patches.result)
        image = patches.groups * layout.columns * patches.pixels
        start = offset(builder, self.gradient, layout.dtype, indices.mul(channel, patches.pixels))
        self.copier.copy(
            Channels(whole, patches.result, image, start),
            i64(layout.columns),
            (first, layout.block),
            self.code.own,
            layout.pitch,
        )
        before = builder.sub(first, i64(layout.grid.before))

        def turn(number: Value, _: object) -> None:
            channel = builder.mul(number, i64(layout.channels))
            count = minimum(
                builder, builder.sub(i64(patches.channels), channel), i64(layout.channels)
            )
            plane = indices.add(indices.mul(group, patches.channels), channel)
            source = offset(builder, self.source, layout.dtype, indices.mul(plane, patches.area))
            each = len(layout.grid.planes)
            for i, phase in enumerate(layout.grid.planes):
                self.copier.copy(
                    Channels(phase, patches.sizes, patches.image, source),
                    count,
                    (before, layout.block + layout.grid.halo),
                    offset(builder, self.planes, layout.accumulator, i * layout.plane),
                    each * layout.plane,
                )
            base = indices.add(indices.mul(split, patches.groups), group)
            base = indices.mul(indices.mul(base, layout.columns), layout.rows)
            at = indices.add(base, builder.mul(channel, i64(layout.taps)))
            sums = offset(builder, self.code.shared, layout.accumulator, at)
            self._multiply(builder.mul(count, i64(layout.taps)), sums, keep)

        loop(builder, *turns, 1, turn)

    def _multiply(self, rows: Value, sums: Value, keep: Value) -> None:
        """Add the products of a turn's rows with all columns to their sums."""
        builder, layout = self.builder, self.layout
        height = layout.tile[0]
        word = ir().IntType(64)

        def emit_tile(row: Value, _: object) -> None:
            distances = builder.gep(self.distances, [row], source_etype=word)

            def with_rows(count: int) -> None:
                start = 0
                for tiles, width in layout.widths(layout.tile):
                    kernel = dots_kernel(
                        builder.module, layout.accumulator, layout.lanes, count, width
                    )

                    def emit_row(
                        i: Value, _: object, kernel: Value = kernel, width: int = width
                    ) -> None:
                        b = offset(
                            builder,
                            self.code.own,
                            layout.accumulator,
                            builder.mul(i, i64(layout.pitch)),
                        )
                        out = offset(
                            builder,
                            sums,
                            layout.accumulator,
                            row,
                            builder.mul(i, i64(layout.rows)),
                        )
                        places, pitch = i64(layout.block), i64(layout.pitch)
                        arguments = [places, distances, self.planes, b, pitch, out]
                        builder.call(kernel, [*arguments, i64(layout.rows), keep])

                    loop(builder, i64(start), i64(start + tiles * width), width, emit_row)
                    start += tiles * width

            call_with_rows(builder, builder.sub(rows, row), height, layout.heights, with_rows)

        loop(builder, i64(0), rows, height, emit_tile)

    def _finish(self) -> None:
        """Add up what the splits have summed, and take it to the results."""
        builder, layout, lanes = self.builder, self.layout, self.layout.lanes
        vectors = ceil_div(layout.rows, lanes)

        def unit(number: Value) -> None:
            out, vector = divided(builder, number, vectors)
            row = builder.mul(i64(vector), i64(lanes))
            at = builder.add(builder.mul(i64(out), i64(layout.rows)), row)
            mask = lane_mask(builder, builder.sub(i64(layout.rows), row), lanes)
            total = zero(layout.accumulator, lanes)
            for split in range(layout.splits if layout.blocks else 0):
                address = offset(
                    builder, self.code.shared, layout.accumulator, at, split * layout.part
                )
                value = load(builder, address, layout.accumulator, lanes, mask)
                total = value if not split else builder.fadd(total, value)
            self.finish.emit(self.code, total, [out, row], lanes, mask)

        self.code.each(self.patches.groups * layout.columns * vectors, unit)
