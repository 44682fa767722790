"""Convolutions, and their gradients towards the input, with channels of the result in lanes. No patch is stored.

What some pixels read is copied to where every tap has a fixed offset from its pixel (``blocks``). A tile has a few pixels as rows, read one element at a time
through a table of offsets, and channels of the result as columns. Weights are packed into panels once for all pixels, and sums are transposed on their way to the result. This pays where
images are small: a vector of their pixels would span several rows, and padding between rows would be much of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from ....codegen.ir.emit import accumulator_of, ir, lane_mask, load, loop, minimum, offset
from ....codegen.ir.index import Index, i64
from ....codegen.ir.types import STORAGE_BYTES, Pointer, Value
from ....codegen.problems.conv import Patches, patches_of
from ....graph.integers import ceil_div, round_up
from ....graph.node import Node
from ..contract.tile import Machine, MicroKernel, Tile
from ..emit.non_temporal import LINE
from ..emit.template import Code, Packing, Scratch
from .blocks import Blocks, Reader, ReaderRoom, blocks_of
from .driver import in_lines
from .epilogue import Finish, each_transposed
from .pack import divided, walk
from .plan import SHARED, rows_cycles, tile_cycles, tiles_of
from .planes import grid_of_planes, write_distances
from .schedule import call_with_rows
from .spans import WORTH, Spans, share_of_taps
from .weight_gradient import IN_PLACE, TRANSPOSED, transpose_panel_kernel

PLANES_BYTES = 256 << 10
"""Of the cache next to a core: what the planes of some channels may take."""
NARROW = (8, 2)
"""Rows and vectors of one more tile: channels of two to four vectors, which wide panels would cut unevenly, are two threads' panels."""
LENGTHS = (32, 64, 128, 256)
"""Pixels that a block may have."""
PARTS, MOST_PARTS = (1, 2, 4), 16
"""Pieces that the panels may be cut into, or all of them if they are no more than this: each copies the images by itself."""
TERMS = 256
"""Terms of a panel that are one piece of packing."""
STREAMED = 2.0
"""Cycles for a vector of weights that every block reads from afar."""
PAST = 30.0
"""Cycles for a vector of weights that one thread packs past the cache, and all read."""
ORDERED = 4.0
"""Cycles for a term that is put in the order of the first axis of taps."""
FINISHED = 12.0
"""Cycles for a vector of sums on its way to the result, turned around."""


@dataclass(frozen=True)
class Cut:
    """How the product is cut.

    Attributes:
        tile: pixels and channels kept in registers.
        blocks: of pixels.
        parts: how many pieces the panels are cut into.
        channels: of the source that are copied together.
        cycles: that two threads would take.
    """

    tile: Tile
    blocks: Blocks
    parts: int
    channels: int
    cycles: float


class Layout:
    """How the product is cut, and where its scratch memory lies.

    Attributes:
        packed: whether weights were packed before.
        possible: whether there is code for it: all taps meet all pixels, and the stride has few phases.
    """

    def __init__(self, main: Node, machine: Machine, packed: bool = False) -> None:
        self.main, self.packed = main, packed
        self.dtype = main.operands[0].dtype.name
        self.accumulator = accumulator_of(self.dtype)
        self.size = STORAGE_BYTES[self.accumulator]
        self.patches: Patches = patches_of(main)
        self.backward = main.op.name == "conv_input_grad"
        self.rows = int(main.shape[1]) // self.patches.groups
        self.taps = prod(self.patches.kernel)
        self.length = self.patches.channels * self.taps
        self.possible = [phase.taps for phase in self.patches.phases] == [self.taps]
        if not self.possible:
            return
        self.grid = grid_of_planes(self.patches)
        self.rate = machine.multiplies
        self.possible = self.grid.possible
        if not self.possible:
            return
        self.cut = min(self._cuts(machine), key=lambda cut: cut.cycles)
        tile, blocks = self.cut.tile, self.cut.blocks
        lanes = tile.lanes
        self.padded = round_up(self.rows, lanes)
        self.panels = ceil_div(self.rows, tile.width)
        self.each = ceil_div(self.panels, self.cut.parts)
        self.plane = blocks.plane(self.size, lanes)
        planes = self.cut.channels * len(self.grid.planes)
        self.plane_bytes = in_lines(planes * self.plane * self.size)
        # Whole squares of sums are turned around: there is room for one behind the last.
        self.sum_bytes = in_lines((blocks.length + lanes) * self.padded * self.size)
        self.square_bytes = lanes * lanes * self.size
        self.term_bytes = in_lines(8 * self.cut.channels * self.taps)
        # Of taps that do not meet all pixels there are tables: of places, and of rows of panels of each width.
        self.spans = self._share(tile, blocks) < WORTH
        self.at_once = self.cut.channels == self.patches.channels
        self.tables = (1 + len(self.widths)) * self.spans
        self.span_bytes = in_lines(16 * ceil_div(blocks.length, tile.rows)) * self.spans
        self.rank_bytes = in_lines(8 * self.patches.pixels) * self.spans
        # Weights are turned in whole squares too.
        self.panel = (ceil_div(self.length, lanes) + 1) * lanes * tile.width
        self.panel_bytes = in_lines(self.patches.groups * self.panels * self.panel * self.size)

    def _cuts(self, machine: Machine) -> list[Cut]:
        found = []
        tiles = tiles_of(machine, self.dtype)
        for tile in (*tiles, Tile(*NARROW, tiles[0].lanes)):
            panels = ceil_div(self.rows, tile.width)
            cuts = [blocks_of(self.patches, self.grid, most, tile.rows) for most in LENGTHS]
            for blocks in dict.fromkeys(cuts):
                plane = len(self.grid.planes) * blocks.plane(self.size, tile.lanes) * self.size
                channels = max(1, PLANES_BYTES // plane)
                channels = min(self.patches.channels, channels // 8 * 8 or channels)
                every = panels if panels <= MOST_PARTS else 1
                for parts in sorted({min(parts, panels) for parts in (*PARTS, every)}):
                    cycles = self._cycles(tile, blocks, parts)
                    found.append(Cut(tile, blocks, parts, channels, cycles))
        return found

    def _share(self, tile: Tile, blocks: Blocks) -> float:
        """The share of all taps that pixels meet, as far as the rest is left out."""
        return share_of_taps(self.patches, blocks.images, tile.rows)

    @property
    def widths(self) -> list[int]:
        """Those of panels: of most, and of the last."""
        full, last = self.tiles
        return [tile.width for tile in (self.cut.tile if full else None, last) if tile]

    def _cycles(self, tile: Tile, blocks: Blocks, parts: int) -> float:
        """Cycles that two threads take."""
        patches, grid, lanes = self.patches, self.grid, tile.lanes
        places = blocks.span + grid.halo
        planes = patches.channels * len(grid.planes)
        copied = planes * grid.plane_cycles(places, lanes, self.rate)
        each = rows_cycles(blocks.length, tile, self._of_width(tile))
        vectors = ceil_div(self.rows, lanes)
        products = IN_PLACE * self.length * each
        met = self._share(tile, blocks)
        if met < WORTH:
            products = met * products + self.length * ORDERED
        finished = round_up(blocks.length, lanes) * vectors * FINISHED
        streamed = self.length * vectors * STREAMED
        each = products + finished + streamed
        total = self._of_threads(tile, parts, patches.groups * blocks.count, each, copied)
        if self.packed:
            return total
        terms = self.length
        if self.backward:
            terms = patches.channels * ceil_div(self.taps, lanes) * lanes
        each = TRANSPOSED
        if parts * patches.groups == 1:
            each += SHARED if self.backward else PAST
        return total + patches.groups * terms * vectors * each / 2

    def _of_threads(self, tile: Tile, parts: int, units: int, each: float, copied: float) -> float:
        """Cycles until two threads are done that have as many units of every part; ``each`` is what a unit takes with all panels, besides what is copied for it."""
        vectors = ceil_div(self.rows, tile.lanes)
        panels = ceil_div(self.rows, tile.width)
        own = ceil_div(panels, parts) * tile.vectors
        held = [max(min(own, vectors - part * own), 0) for part in range(parts)]
        half, rest = divmod(parts * units // 2, units)
        first = units * sum(held[:half]) + (rest * held[half] if rest else 0)
        most = max(first, units * vectors - first)
        return most / vectors * each + ceil_div(parts * units, 2) * copied

    def _of_width(self, tile: Tile) -> Callable[[int, int], float]:
        """Cycles of one product for every element of some pixels, over all panels."""
        full, rest = divmod(self.rows, tile.width)
        one = partial(tile_cycles, rate=self.rate)

        def cycles(rows: int, vectors: int) -> float:
            last = one(rows, ceil_div(rest, tile.lanes)) if rest else 0.0
            return full * one(rows, vectors) + last

        return cycles

    @property
    def cycles(self) -> float:
        """Cycles that two threads would take."""
        return self.cut.cycles

    @property
    def tiles(self) -> tuple[int, Tile | None]:
        """How many panels are as wide as the tile, and the tile of the one behind them."""
        tile = self.cut.tile
        full, rest = divmod(self.rows, tile.width)
        last = Tile(tile.rows, ceil_div(rest, tile.lanes), tile.lanes) if rest else None
        return full, last

    @property
    def scratch(self) -> Scratch:
        """The memory it needs."""
        own = self.plane_bytes + self.sum_bytes + self.square_bytes + self.term_bytes
        own += in_lines(8 * self.cut.blocks.length)
        own += self.tables * self.term_bytes + self.span_bytes + self.rank_bytes
        return Scratch(own, 0 if self.packed else self.panel_bytes)


def packing(main: Node, machine: Machine, operand: int) -> Packing:
    """The weights in panels, which need not be packed again while these stay the same."""
    layout = Layout(main, machine, packed=True)
    tile, patches = layout.cut.tile, layout.patches

    def emit(code: Code) -> None:
        _Panels(code, layout, code.operands[0], code.results[0], non_temporal=False).emit(1)

    sizes = f"{patches.groups}, {layout.rows}, {patches.channels}, {layout.taps}"
    key = f"lanes of {tile}, {sizes}, {layout.dtype}, {layout.backward}"
    return Packing(operand, layout.panel_bytes, key, emit)


class _Panels:
    """The code that packs weights into panels ``[term][channel of the result]``, one after the other in every group.

    Args:
        code: where it goes.
        layout: of the product.
        weights: their address.
        target: where the panels go.
        non_temporal: whether they may go past the cache.
    """

    def __init__(
        self, code: Code, layout: Layout, weights: Pointer, target: Pointer, non_temporal: bool
    ) -> None:
        self.code, self.builder, self.layout = code, code.builder, layout
        self.weights, self.target, self.non_temporal = weights, target, non_temporal
        self.tile, self.groups = layout.cut.tile, layout.patches.groups

    def emit(self, parts: int) -> None:
        """All of them. Parts come last: the thread that packs a panel is the one that has its part."""
        layout = self.layout
        pieces = 1 if layout.backward else ceil_div(layout.length, TERMS)
        each = ceil_div(layout.panels, parts)
        self.code.each(
            parts * self.groups * each * pieces, lambda number: self._pack(number, pieces, each)
        )

    def _pack(self, number: Value, pieces: int, each: int) -> None:
        """One of the ``pieces`` of a panel of weights: some terms of it, or all."""
        builder, layout, indices = self.builder, self.layout, self.code.indices
        rest, piece = divided(builder, number, pieces)
        rest, panel = divided(builder, rest, each)
        part, group = divided(builder, rest, self.groups)
        panel = i64(indices.add(indices.mul(part, each), panel))
        full, last = layout.tiles
        if full:
            with builder.if_then(builder.icmp_signed("<", panel, i64(full))):
                self._turn(self.tile, group, panel, piece)
        if last is not None:
            with builder.if_then(builder.icmp_signed("==", panel, i64(full))):
                self._turn(last, group, panel, piece)

    def _turn(self, tile: Tile, group: Index, panel: Index, piece: Index) -> None:
        """Pack weights into a panel ``[term][channel of the result]`` that is as wide as a tile."""
        builder, layout, indices = self.builder, self.layout, self.code.indices
        dtype, length, taps = layout.dtype, layout.length, layout.taps
        row = i64(indices.mul(panel, self.tile.width))
        valid = minimum(builder, i64(tile.width), builder.sub(i64(layout.rows), row))
        number = indices.add(indices.mul(group, layout.panels), panel)
        start = i64(indices.mul(number, layout.panel))
        pack: Value = transpose_panel_kernel(builder.module, dtype, tile)
        if self.non_temporal:
            non_temporal = transpose_panel_kernel(builder.module, dtype, tile, non_temporal=True)
            pack = self.code.for_others(pack, non_temporal)

        def pack_terms(count: Value, at: Index, distance: int, term: Value) -> None:
            source = offset(builder, self.weights, dtype, at)
            to = builder.add(start, builder.mul(term, i64(tile.width)))
            target = offset(builder, self.target, layout.accumulator, to)
            builder.call(pack, [count, valid, source, i64(distance), target])

        if not layout.backward:
            first = i64(indices.mul(piece, TERMS))
            count = minimum(builder, i64(TERMS), builder.sub(i64(length), first))
            line = indices.add(indices.mul(group, layout.rows), row)
            pack_terms(count, indices.add(indices.mul(line, length), first), length, first)
            return

        def channel(c: Value, _: Sequence[Value]) -> None:
            line = indices.add(indices.mul(group, layout.patches.channels), c)
            line = indices.add(indices.mul(line, layout.rows), row)
            pack_terms(i64(taps), indices.mul(line, taps), taps, builder.mul(c, i64(taps)))

        # One after the other: what a square writes too much is what comes next.
        loop(builder, i64(0), i64(layout.patches.channels), 1, channel)


class Driver:
    """The code of one product."""

    def __init__(
        self, code: Code, main: Node, operands: tuple[Pointer, Pointer], finish: Finish
    ) -> None:
        self.code, self.builder, self.finish = code, code.builder, finish
        self.layout = Layout(main, code.machine, code.packed)
        layout = self.layout
        self.source, self.weights = operands
        self.patches, self.tile, self.blocks = layout.patches, layout.cut.tile, layout.cut.blocks
        sizes = [layout.plane_bytes, layout.sum_bytes, layout.square_bytes, layout.term_bytes]
        sizes += [in_lines(8 * self.blocks.length), *[layout.term_bytes] * layout.tables]
        sizes.append(layout.span_bytes)
        places = [sum(sizes[:count]) for count in range(len(sizes) + 1)]
        self.planes, self.sums, self.square, self.terms, self.places, *tables, spans, ranks = (
            self._byte(code.own, place) for place in places
        )
        self.spans: Spans | None = None
        if layout.spans:
            self.tables = list(zip(tables, [0, *layout.widths], strict=True))
            self.spans = Spans(code, self.blocks, self.tile.rows, spans, ranks)
        self.packed = self.weights if code.packed else code.shared
        self.reader = Reader(
            code,
            self.blocks,
            layout.dtype,
            self.tile.lanes,
            ReaderRoom(self.planes, layout.plane, self.places),
        )

    def _byte(self, pointer: Pointer, position: int) -> Pointer:
        return self.builder.gep(pointer, [i64(position)], source_etype=ir().IntType(8))

    def emit(self) -> None:
        """Everything."""
        layout, patches, parts = self.layout, self.patches, self.layout.cut.parts
        write_distances(self.builder, layout.grid, layout.cut.channels, layout.plane, self.terms)
        if layout.at_once:
            self._order(i64(patches.channels))
        if not self.code.packed:
            # Where there are no parts or groups, all threads read all panels. What the squares of a few taps write too much would go past the cache twice.
            lines = self.tile.lanes * layout.size == LINE
            non_temporal = lines and parts * patches.groups == 1 and not layout.backward
            _Panels(self.code, layout, self.weights, self.packed, non_temporal).emit(parts)
            self.code.barrier(non_temporal)
        self.code.each(patches.groups * self.blocks.count * parts, self._unit)

    def _order(self, channels: Value) -> None:
        if self.spans is not None:
            self.spans.order(channels, self.layout.taps, self.terms, self.tables)

    def _unit(self, number: Value) -> None:
        """Some pixels of one group, and some panels: channels of the source are copied, and met by every tile."""
        builder, layout, patches = self.builder, self.layout, self.patches
        indices = self.code.indices
        rest, block = divided(builder, number, self.blocks.count)
        part, group = divided(builder, rest, patches.groups)
        first, stop = self.blocks.bounds(self.code, i64(block))
        if self.spans is None:
            start = self.reader.write_offsets(first, stop)
        else:
            start = self.spans.write(first, stop, self.places)
        low = i64(indices.mul(part, layout.each))
        high = minimum(builder, builder.add(low, i64(layout.each)), i64(layout.panels))

        def channels(c: Value, _: Sequence[Value]) -> None:
            count = minimum(
                builder, builder.sub(i64(patches.channels), c), i64(layout.cut.channels)
            )
            plane = indices.add(indices.mul(group, patches.channels), c)
            source = offset(builder, self.source, layout.dtype, indices.mul(plane, patches.area))
            self.reader.copy(source, count, start)
            if not layout.at_once:
                self._order(count)
            keep = builder.icmp_signed(">", c, i64(0))
            before = builder.mul(c, i64(layout.taps))
            self._multiply(group, (low, high), builder.sub(stop, first), count, before, keep)

        loop(builder, i64(0), i64(patches.channels), layout.cut.channels, channels)
        self._finish(group, (low, high), first, stop)

    def _multiply(
        self,
        group: Index,
        panels: tuple[Value, Value],
        pixels: Value,
        channels: Value,
        before: Value,
        keep: Value,
    ) -> None:
        """Add the products of some channels, whose terms begin at ``before``, to the sums of a block."""
        builder, layout, indices = self.builder, self.layout, self.code.indices
        word, tile = ir().IntType(64), self.tile
        full, last = layout.tiles

        def panel(number: Value, exact: Tile) -> None:
            line = indices.add(indices.mul(group, layout.panels), number)
            at = indices.add(indices.mul(line, layout.panel), builder.mul(before, i64(exact.width)))
            b = offset(builder, self.packed, layout.accumulator, at)
            column = builder.mul(number, i64(tile.width))

            def emit_tile(row: Value, _: Sequence[Value]) -> None:
                out = builder.add(builder.mul(row, i64(layout.padded)), column)
                out = offset(builder, self.sums, layout.accumulator, out)
                starts = builder.gep(self.places, [row], source_etype=word)

                length, form, tables = self._terms(row, channels, exact)

                def call(count: int) -> None:
                    own = Tile(count, exact.vectors, exact.lanes)
                    kernel = MicroKernel(own, layout.accumulator, "placed", form).function(
                        builder.module
                    )
                    arguments = [length, self.planes, i64(0), b, out, i64(layout.padded), keep, b]
                    builder.call(kernel, [*arguments, *tables[:-1], starts, tables[-1]])

                left = builder.sub(pixels, row)
                call_with_rows(builder, left, tile.rows, self.blocks.lengths, call)

            loop(builder, i64(0), pixels, tile.rows, emit_tile)

        low, high = panels
        if full:
            loop(builder, low, minimum(builder, high, i64(full)), 1, lambda i, _: panel(i, tile))
        if last is not None:
            with builder.if_then(builder.icmp_signed(">", high, i64(full))):
                panel(i64(full), last)

    def _terms(self, row: Value, channels: Value, tile: Tile) -> tuple[Value, str, list[Pointer]]:
        """How many terms a tile of pixels has, how rows of the panel are found, and tables of those and of the places of terms."""
        builder, layout = self.builder, self.layout
        if self.spans is None:
            return builder.mul(channels, i64(layout.taps)), "packed", [self.terms]
        low, high = self.spans.span(row)
        each = builder.mul(channels, i64(layout.taps // self.patches.kernel[0]))
        start = builder.mul(low, each)
        (places, _), *panels = self.tables
        rows = {width: table for table, width in panels}[tile.width]
        tables = [
            builder.gep(table, [start], source_etype=ir().IntType(64)) for table in (rows, places)
        ]
        return builder.mul(builder.sub(high, low), each), "placed", tables

    def _finish(self, group: Index, panels: tuple[Value, Value], first: Value, stop: Value) -> None:
        """Take the sums of a block to the results, in squares of pixels and channels that are turned around."""
        builder, layout, indices = self.builder, self.layout, self.code.indices
        lanes, pixels = self.tile.lanes, self.patches.pixels
        low = builder.mul(panels[0], i64(self.tile.width))
        high = builder.mul(panels[1], i64(self.tile.width))
        high = minimum(builder, high, i64(layout.rows))

        def run(pixel: Value, held: Value) -> tuple[Value, Value]:
            image, inner = divided(builder, pixel, pixels)
            left = builder.sub(i64(pixels), i64(inner))
            length = minimum(builder, left, builder.sub(stop, pixel))
            own_image, _ = divided(builder, builder.sub(pixel, first), pixels)

            def emit_vector(at: Value, _: Sequence[Value]) -> None:
                mask = lane_mask(builder, builder.sub(length, at), lanes)
                row = builder.add(builder.sub(pixel, first), at)
                rows = [builder.add(row, i64(lane)) for lane in range(lanes)]
                if self.spans is not None and self.blocks.images > 1:
                    # Behind an image's last pixel anything is read.
                    most = i64(pixels - 1)
                    inside = [
                        minimum(builder, builder.add(at, i64(lane)), most) for lane in range(lanes)
                    ]
                    rows = [self.spans.rank(own_image, place) for place in inside]
                starts = [builder.mul(row, i64(layout.padded)) for row in rows]

                def across(channel: Value, _: Sequence[Value]) -> None:
                    values = []
                    for start in starts:
                        place = builder.add(start, channel)
                        place = offset(builder, self.sums, layout.accumulator, place)
                        values.append(load(builder, place, layout.accumulator, lanes))
                    count = minimum(builder, builder.sub(high, channel), i64(lanes))

                    def emit_lane(lane: Value, sums: Value) -> None:
                        own = builder.add(channel, lane)
                        line = indices.add(indices.mul(group, layout.rows), own)
                        index = [image, line, indices.add(inner, at)]
                        self.finish.emit(self.code, sums, index, lanes, mask)

                    each_transposed(
                        builder, values, self.square, layout.accumulator, count, emit_lane
                    )

                loop(builder, low, high, lanes, across)

            loop(builder, i64(0), length, lanes, emit_vector)
            return builder.add(pixel, length), held

        walk(builder, first, stop, run, i64(0))
