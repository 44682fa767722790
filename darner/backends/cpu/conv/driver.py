"""Convolutions and their gradients towards the input: a matrix of weights times patches that are packed on the way.

Threads share pieces of the product: a panel of pixels, as wide as a register tile, and some rows (channels of the result). The sums of
a piece go over blocks of channels; each block is packed into the thread's own memory and used by all rows of the piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from ....codegen.ir.emit import (
    Spacing,
    accumulator_of,
    ir,
    lane_mask,
    load,
    loop,
    minimum,
    offset,
    store_strided,
)
from ....codegen.ir.index import Index, i64
from ....codegen.ir.types import STORAGE_BYTES, Builder, Pointer, Value
from ....codegen.problems.conv import Patches, patches_of
from ....graph.integers import ceil_div, round_up
from ....graph.node import Node
from ..contract.tile import Machine, MicroKernel, Tile
from ..emit.template import Code, Scratch
from .epilogue import Finish
from .pack import Grid, Packer, divided, grid_of, phase_table, table_bytes, unravelled, walk
from .plan import Cut, cut
from .weight_rows import copied_cycles, copy_weights


def in_lines(count: int) -> int:
    """Bytes in whole cache lines."""
    return round_up(count, 64)


class Layout:
    """How one product is cut, and where its scratch memory lies."""

    def __init__(self, main: Node, machine: Machine, plain: bool) -> None:
        self.main = main
        self.dtype = main.operands[0].dtype.name
        self.accumulator = accumulator_of(self.dtype)
        self.size = STORAGE_BYTES[self.accumulator]
        self.patches: Patches = patches_of(main)
        self.backward = main.op.name == "conv_input_grad"
        self.rows = int(main.shape[1]) // self.patches.groups
        same = self.dtype == self.accumulator
        # The weights as they stand are rows of the forward product, and columns of the backward one where the kernel is a single tap.
        self.as_columns = self.backward and same and self.patches.is_plain
        self.as_they_are = same and (not self.backward or self.patches.is_plain)
        self.cut: Cut = cut(self.patches, self.rows, self.dtype, machine, self._copied)
        width = self.cut.tile.width
        block = self.cut.channels * max(1, self.patches.most_taps)
        # Panels that go together have all channels, so that every tile is done when it has been computed once.
        self.at_once = self.cut.channels == self.patches.channels
        self.panel_bytes = in_lines(block * width * self.size)
        self.block_bytes = self.cut.together * self.panel_bytes
        height = self.cut.tile.rows if self.at_once else self.cut.height
        self.sum_bytes = in_lines(height * width * self.size)
        self.table_bytes = in_lines(table_bytes(self.patches, width, self.cut.tile.lanes))
        weights = prod(int(size) for size in main.operands[1].shape)
        self.weight_bytes = 0 if self.as_they_are else in_lines(weights * self.size)
        # Pixels of one phase have gaps between them, so vectors of the result are made when all phases are done.
        self.direct = plain and same
        self.several_phases = len(self.patches.phases) > 1
        elements = prod(int(size) for size in main.shape)
        self.raw_bytes = (
            0 if self.direct or not self.several_phases else in_lines(elements * self.size)
        )

    @property
    def cycles(self) -> float:
        """Cycles that two threads would take."""
        return self.cut.cycles

    def _copied(self, lanes: int, parts: int) -> float:
        return 0.0 if self.as_they_are else copied_cycles(self, lanes, parts)

    @property
    def scratch(self) -> Scratch:
        """The memory it needs."""
        own = self.block_bytes + self.sum_bytes + self.table_bytes
        return Scratch(own, self.weight_bytes + self.raw_bytes)


def either(
    builder: Builder, condition: Value | None, first: Callable[[], None], second: Callable[[], None]
) -> None:
    """One or the other; the first where there is no condition."""
    if condition is None:
        first()
        return
    with builder.if_else(condition) as (yes, no):
        with yes:
            first()
        with no:
            second()


@dataclass(frozen=True)
class Piece:
    """What one thread computes at a time, as numbers of the code.

    Attributes:
        grid: its phase.
        group: of channels.
        tiles: what its panel may be wide: the first of them where ``is_first``.
        width: of its panel.
        columns: the first pixel of all images that it has, and the one after its last.
        rows: the first row of the group, and the one after its last.
    """

    grid: Grid
    group: Index
    tiles: Sequence[Tile]
    is_first: Value | None
    width: Index
    columns: tuple[Value, Value]
    rows: tuple[Value, Value]


class Driver:
    """The code of one product."""

    def __init__(
        self, code: Code, main: Node, operands: tuple[Pointer, Pointer], finish: Finish
    ) -> None:
        self.code, self.builder, self.finish = code, code.builder, finish
        self.layout = Layout(main, code.machine, finish.plain)
        self.source, self.weights = operands
        self.patches, self.cut = self.layout.patches, self.layout.cut
        self.tile = self.cut.tile
        self.accumulator, self.dtype = self.layout.accumulator, self.layout.dtype
        byte = ir().IntType(8)
        builder, layout = self.builder, self.layout
        self.block = code.own
        place = layout.block_bytes
        self.sums = builder.gep(code.own, [i64(place)], source_etype=byte)
        place += layout.sum_bytes
        table = builder.gep(code.own, [i64(place)], source_etype=byte)
        self.packer = Packer(builder, self.patches, self.dtype, self.tile.lanes, table)
        self.raw = code.results[0]
        if layout.raw_bytes:
            self.raw = builder.gep(code.shared, [i64(layout.weight_bytes)], source_etype=byte)
        self.phases = phase_table(builder, self.patches)
        self.widest = max(phase.axes[-1].pixels for phase in self.patches.phases)

    def emit(self) -> None:
        """Everything."""
        if not self.layout.as_they_are:
            copy_weights(self.code, self.layout, self.weights, self.phases)
            self.weights = self.code.shared
            self.code.barrier()
        # Phases differ in their taps: who is done with a piece takes the next.
        each = self.code.claims.each if self.layout.several_phases else self.code.each
        each(self.cut.units(self.patches), self._unit)
        if self.layout.several_phases and not self.layout.direct:
            self.code.barrier()
            self._finish_all()

    # ------------------------------------------------------------- the product

    def _unit(self, number: Value) -> None:
        builder, patches, plan = self.builder, self.patches, self.cut
        indices = self.code.indices
        # Groups and parts come last, so that threads have rows of their own, and copied their weights themselves.
        rest, section = divided(builder, number, plan.sections)
        rest, phase = divided(builder, rest, len(patches.phases))
        group, part = divided(builder, rest, plan.parts)
        if patches.phases[0].taps < patches.phases[-1].taps:
            # Those that take longest come first.
            phase = indices.sub(len(patches.phases) - 1, phase)
        grid = grid_of(builder, patches, self.phases, phase)
        start = indices.mul(part, plan.height)
        end = indices.add(start, plan.height)
        if plan.parts * plan.height != plan.rows:
            end = minimum(builder, i64(end), i64(plan.rows))
        rows = i64(start), i64(end)
        first = i64(indices.mul(section, plan.together))
        stop = minimum(builder, builder.add(first, i64(plan.together)), i64(plan.panels))
        if self.phases is not None:
            columns = indices.mul(grid.area, patches.batch)
            most, _ = divided(builder, indices.add(columns, plan.tile.width - 1), plan.tile.width)
            stop = minimum(builder, stop, i64(most))
        if self.layout.at_once:
            self._section(grid, group, rows, first, stop)
        else:
            loop(
                builder,
                first,
                stop,
                1,
                lambda panel, _: self._blocks(self._piece(grid, group, panel, rows)),
            )

    def _tiles(self, panel: Index) -> tuple[list[Tile], Value | None]:
        """The tiles that panels have, and whether this one has the first of them."""
        plan, columns = self.cut, self.patches.most_columns
        full, rest = divmod(columns, plan.tile.width)
        last = Tile(plan.tile.rows, ceil_div(rest, plan.tile.lanes), plan.tile.lanes)
        if self.phases is not None or not rest or last == plan.tile:
            return [plan.tile], None
        if not full:
            return [last], None
        return [plan.tile, last], self.builder.icmp_signed("<", i64(panel), i64(full))

    def _piece(self, grid: Grid, group: Index, panel: Index, rows: tuple[Value, Value]) -> Piece:
        """Some rows of one panel."""
        builder = self.builder
        tiles, is_first = self._tiles(panel)
        width: Index = tiles[0].width
        if is_first is not None:
            width = builder.select(is_first, i64(tiles[0].width), i64(tiles[1].width))
        first = builder.mul(i64(panel), i64(self.tile.width))
        columns = i64(self.code.indices.mul(grid.area, self.patches.batch))
        stop = minimum(builder, builder.add(first, i64(width)), columns)
        return Piece(grid, group, tiles, is_first, width, (first, stop), rows)

    def _pack(self, piece: Piece, entries: Value, c: Value, count: Value, block: Pointer) -> Value:
        """Pack ``count`` channels from ``c`` on; returns how many products they make."""
        builder, patches, indices = self.builder, self.patches, self.code.indices
        plane = indices.add(indices.mul(piece.group, patches.channels), c)
        source = offset(builder, self.source, self.dtype, indices.mul(plane, patches.area))
        self.packer.copy(entries, source, count, piece.grid.taps, piece.width, block)
        return i64(indices.mul(count, piece.grid.taps))

    def _blocks(self, piece: Piece) -> None:
        """One panel, some channels at a time; then all rows are finished."""
        builder, patches, plan = self.builder, self.patches, self.cut
        entries = self.packer.describe(piece.grid, *piece.columns, piece.width)
        straight, base, pitch = self._target(piece)

        def channels(c: Value, _: Sequence[Value]) -> None:
            count = minimum(builder, builder.sub(i64(patches.channels), c), i64(plan.channels))
            length = self._pack(piece, entries, c, count, self.block)
            start, end = piece.rows

            def emit_tile(row: Value, _: Sequence[Value]) -> None:
                position = builder.mul(builder.sub(row, start), pitch)
                out = offset(builder, base, self.accumulator, position)
                self._multiply(piece, row, c, length, self.block, (out, pitch))

            loop(builder, start, end, plan.tile.rows, emit_tile)

        loop(builder, i64(0), i64(patches.channels), plan.channels, channels)
        self._finish_unless(straight, piece)

    def _section(
        self, grid: Grid, group: Index, rows: tuple[Value, Value], first: Value, stop: Value
    ) -> None:
        """Some panels, all channels at a time: the rows of a tile meet them one after the other."""
        builder, patches, layout = self.builder, self.patches, self.layout
        byte = ir().IntType(8)

        def block_of(panel: Value) -> Pointer:
            if self.cut.together == 1:
                return self.block
            position = builder.mul(builder.sub(panel, first), i64(layout.panel_bytes))
            return builder.gep(self.block, [position], source_etype=byte)

        def pack(panel: Value, _: Sequence[Value]) -> None:
            piece = self._piece(grid, group, panel, rows)
            entries = self.packer.describe(grid, *piece.columns, piece.width)
            self._pack(piece, entries, i64(0), i64(patches.channels), block_of(panel))

        loop(builder, first, stop, 1, pack)
        length = i64(self.code.indices.mul(grid.taps, patches.channels))

        def emit_tile(row: Value, _: Sequence[Value]) -> None:
            end = minimum(builder, builder.add(row, i64(self.tile.rows)), rows[1])

            def panel_of(panel: Value, _: Sequence[Value]) -> None:
                piece = self._piece(grid, group, panel, (row, end))
                straight, base, pitch = self._target(piece)
                self._announce(piece)
                self._multiply(piece, row, i64(0), length, block_of(panel), (base, pitch))
                self._finish_unless(straight, piece)

            loop(builder, first, stop, 1, panel_of)

        loop(builder, rows[0], rows[1], self.tile.rows, emit_tile)

    def _target(self, piece: Piece) -> tuple[Value | None, Pointer, Value]:
        """Where sums are kept: in the result itself where a whole panel lies in one image; whether so, the place, the distance of rows."""
        builder, patches, indices = self.builder, self.patches, self.code.indices
        if not self.layout.direct or self.layout.several_phases or patches.pixels < self.tile.lanes:
            return None, self.sums, i64(piece.width)
        first, stop = piece.columns
        width = i64(piece.width)
        image, pixel = divided(builder, first, patches.pixels)
        end = builder.add(i64(pixel), width)
        inside = builder.icmp_signed("<=", end, i64(patches.pixels))
        whole = builder.icmp_signed("==", builder.sub(stop, first), width)
        straight = builder.and_(inside, whole)
        line = indices.add(indices.mul(image, patches.groups), piece.group)
        line = indices.add(indices.mul(line, self.cut.rows), piece.rows[0])
        at = indices.add(indices.mul(line, patches.pixels), pixel)
        target = offset(builder, self.code.results[0], self.accumulator, at)
        pitch = builder.select(straight, i64(patches.pixels), width)
        return straight, builder.select(straight, target, self.sums), pitch

    def _multiply(
        self,
        piece: Piece,
        row: Value,
        c: Value,
        length: Value,
        block: Pointer,
        sums: tuple[Pointer, Value],
    ) -> None:
        """Add the products of one packed block, its channels from ``c`` on, to the sums of one tile's rows: their address, and their stride."""
        builder, patches, plan, indices = self.builder, self.patches, self.cut, self.code.indices
        grid, group = piece.grid, piece.group
        keep = builder.icmp_signed(">", c, i64(0))
        height = plan.tile.rows
        if self.layout.as_columns:
            form, a_stride = "columns", i64(plan.rows)
            line = indices.add(indices.mul(group, patches.channels), c)
            at = indices.add(indices.mul(line, plan.rows), row)
        else:
            form = "rows"
            each = indices.mul(grid.taps, patches.channels)
            a_stride = i64(each)
            before = indices.mul(grid.first, patches.groups * plan.rows * patches.channels)
            line = indices.add(indices.mul(group, plan.rows), row)
            at = indices.add(before, indices.mul(line, each))
            at = indices.add(at, indices.mul(c, grid.taps))
        weights = offset(builder, self.weights, self.accumulator, at)
        arguments = [length, weights, a_stride, block, *sums, keep, block]

        def call(tile: Tile, rows: int) -> None:
            exact = Tile(rows, tile.vectors, tile.lanes)
            kernel = MicroKernel(exact, self.accumulator, form).function(builder.module)
            builder.call(kernel, arguments)

        def of_width(rows: int) -> None:
            either(
                builder,
                piece.is_first,
                lambda: call(piece.tiles[0], rows),
                lambda: call(piece.tiles[-1], rows),
            )

        rest = plan.rows % height
        whole = None
        if plan.rows > height and rest:
            whole = builder.icmp_signed("<=", builder.add(row, i64(height)), i64(plan.rows))
        most = height if plan.rows >= height else rest
        either(builder, whole, lambda: of_width(most), lambda: of_width(rest))

    # ------------------------------------------------------------- the way out

    def _announce(self, piece: Piece) -> None:
        """Ask for what a tile's results are made of besides its sums, before these are computed."""
        builder, indices, plan = self.builder, self.code.indices, self.cut
        if not self.finish.wide or self.layout.several_phases:
            return
        image, pixel = divided(builder, piece.columns[0], piece.grid.area)

        def emit_row(row: Value, _: Sequence[Value]) -> None:
            channel = indices.add(indices.mul(piece.group, plan.rows), row)
            self.finish.announce(self.code, [image, channel, pixel], self.tile.width)

        loop(builder, *piece.rows, 1, emit_row)

    def _finish_unless(self, straight: Value | None, piece: Piece) -> None:
        if straight is None:
            self._finish(piece)
            return
        with self.builder.if_then(self.builder.not_(straight)):
            self._finish(piece)

    def _finish(self, piece: Piece) -> None:
        """Take the sums of a panel to the results: piece by piece of an image, or of a row where a phase has gaps."""
        builder, plan, indices, lanes = self.builder, self.cut, self.code.indices, self.tile.lanes
        several_phases, grid, group = self.layout.several_phases, piece.grid, piece.group
        (first, stop), (start, end) = piece.columns, piece.rows
        rows = self.patches.groups * plan.rows

        def run(column: Value, held: Value) -> tuple[Value, Value]:
            image, index = unravelled(
                builder, column, grid.pixels if several_phases else [grid.area]
            )
            length = builder.sub(
                i64(grid.pixels[-1] if several_phases else grid.area), i64(index[-1])
            )
            length = minimum(builder, length, builder.sub(stop, column))

            def emit_row(row: Value, _: Sequence[Value]) -> None:
                channel = indices.add(indices.mul(group, plan.rows), row)
                position = builder.mul(builder.sub(row, start), i64(piece.width))
                position = builder.add(position, builder.sub(column, first))

                def vector(at: Value, _: Sequence[Value]) -> None:
                    mask = lane_mask(builder, builder.sub(length, at), lanes)
                    sums = load(
                        builder,
                        offset(builder, self.sums, self.accumulator, position, at),
                        self.accumulator,
                        lanes,
                    )
                    if not several_phases:
                        full = [image, channel, indices.add(index[-1], at)]
                        self.finish.emit(self.code, sums, full, lanes, mask)
                        return
                    here = [*index[:-1], indices.add(index[-1], at)]
                    pixel: Index = 0
                    for axis, stride in enumerate(self.patches.strides):
                        own = indices.add(grid.start[axis], indices.mul(here[axis], stride))
                        pixel = indices.add(indices.mul(pixel, self.patches.result[axis]), own)
                    plane = indices.add(indices.mul(image, rows), channel)
                    to = indices.add(indices.mul(plane, self.patches.pixels), pixel)
                    target = offset(builder, self.raw, self.accumulator, to)
                    step, most = self.patches.strides[-1], self.widest
                    spacing = Spacing(step, most)
                    store_strided(builder, sums, target, self.accumulator, spacing, mask)

                loop(builder, i64(0), length, lanes, vector)

            loop(builder, start, end, 1, emit_row)
            return builder.add(column, length), held

        walk(builder, first, stop, run, i64(0))

    def _finish_all(self) -> None:
        """Take the sums of all phases to the results."""
        builder, lanes = self.builder, self.tile.lanes
        channels, pixels = self.patches.groups * self.cut.rows, self.patches.pixels

        def plane(number: Value) -> None:
            image, channel = divided(builder, number, channels)
            start = builder.mul(number, i64(pixels))

            def vector(at: Value, _: object) -> None:
                mask = lane_mask(builder, builder.sub(i64(pixels), at), lanes)
                address = offset(builder, self.raw, self.accumulator, start, at)
                sums = load(builder, address, self.accumulator, lanes, mask)
                self.finish.emit(self.code, sums, [image, channel, at], lanes, mask)

            loop(builder, i64(0), i64(pixels), lanes, vector)

        self.code.each(self.patches.batch * channels, plane)
