"""Convolutions, and their gradients towards the input, with channels of the result in lanes: no patch is ever written down.

What some pixels meet is copied to where every tap has a fixed distance from its pixel (``conv_blocks``). A tile has a few pixels as rows, read one element at a time wherever they
lie, and channels of the result as columns; weights are packed into panels once for all pixels, and the sums are turned around where they go to the result. It pays where
images are small: a vector of their pixels would take several rows, and zeros between rows would be much of the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from ....codegen.ir.emit import accumulator_of, i64, ir, lane_mask, load, loop, minimum, offset
from ....codegen.ir.index import Number, as_value
from ....codegen.ir.types import STORAGE_BYTES
from ....codegen.problems.conv import Patches, patches_of
from ....graph.node import Node
from ..contract.tile import Machine, Tile, tile_kernel
from ..emit.non_temporal import LINE
from ..emit.template import Code, Packing, Scratch
from .blocks import Blocks, Reader, blocks_of
from .driver import in_lines
from .epilogue import Finish, each_turned
from .pack import divided, walk
from .plan import SHARED, rows_cycles, tile_cycles, tiles_of
from .planes import grid_of_planes, write_distances
from .schedule import call_with_rows
from .spans import WORTH, Spans, share_of_taps
from .weight_gradient import IN_PLACE, TURNED, turning_kernel

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
        self.padded = -(-self.rows // lanes) * lanes
        self.panels = -(-self.rows // tile.width)
        self.each = -(-self.panels // self.cut.parts)
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
        self.span_bytes = in_lines(16 * -(-blocks.length // tile.rows)) * self.spans
        self.rank_bytes = in_lines(8 * self.patches.pixels) * self.spans
        # Weights are turned in whole squares too.
        self.panel = (-(-self.length // lanes) + 1) * lanes * tile.width
        self.panel_bytes = in_lines(self.patches.groups * self.panels * self.panel * self.size)

    def _cuts(self, machine: Machine) -> list[Cut]:
        found = []
        tiles = tiles_of(machine, self.dtype)
        for tile in (*tiles, Tile(*NARROW, tiles[0].lanes)):
            panels = -(-self.rows // tile.width)
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
        vectors = -(-self.rows // lanes)
        products = IN_PLACE * self.length * each
        met = self._share(tile, blocks)
        if met < WORTH:
            products = met * products + self.length * ORDERED
        finished = -(-blocks.length // lanes) * lanes * vectors * FINISHED
        streamed = self.length * vectors * STREAMED
        each = products + finished + streamed
        total = self._of_threads(tile, parts, patches.groups * blocks.count, each, copied)
        if self.packed:
            return total
        terms = self.length
        if self.backward:
            terms = patches.channels * -(-self.taps // lanes) * lanes
        each = TURNED
        if parts * patches.groups == 1:
            each += SHARED if self.backward else PAST
        return total + patches.groups * terms * vectors * each / 2

    def _of_threads(self, tile: Tile, parts: int, units: int, each: float, copied: float) -> float:
        """Cycles until two threads are done that have as many units of every part; ``each`` is what a unit takes with all panels, besides what is copied for it."""
        vectors = -(-self.rows // tile.lanes)
        panels = -(-self.rows // tile.width)
        own = -(-panels // parts) * tile.vectors
        held = [max(min(own, vectors - part * own), 0) for part in range(parts)]
        half, rest = divmod(parts * units // 2, units)
        first = units * sum(held[:half]) + (rest * held[half] if rest else 0)
        most = max(first, units * vectors - first)
        return most / vectors * each + -(-parts * units // 2) * copied

    def _of_width(self, tile: Tile) -> Any:
        """Cycles of one product for every element of some pixels, over all panels."""
        full, rest = divmod(self.rows, tile.width)
        one = partial(tile_cycles, rate=self.rate)

        def cycles(rows: int, vectors: int) -> float:
            last = one(rows, -(-rest // tile.lanes)) if rest else 0.0
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
        last = Tile(tile.rows, -(-rest // tile.lanes), tile.lanes) if rest else None
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
        _Panels(code, layout, code.operands[0], code.results[0], past=False).emit(1)

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
        past: whether they may go past the cache.
    """

    def __init__(self, code: Code, layout: Layout, weights: Any, target: Any, past: bool) -> None:
        self.code, self.builder, self.layout = code, code.builder, layout
        self.weights, self.target, self.past = weights, target, past
        self.tile, self.groups = layout.cut.tile, layout.patches.groups

    def emit(self, parts: int) -> None:
        """All of them. Parts come last: the thread that packs a panel is the one that has its part."""
        layout = self.layout
        pieces = 1 if layout.backward else -(-layout.length // TERMS)
        each = -(-layout.panels // parts)
        self.code.each(
            parts * self.groups * each * pieces, lambda number: self._pack(number, pieces, each)
        )

    def _pack(self, number: Any, pieces: int, each: int) -> None:
        """One of the ``pieces`` of a panel of weights: some terms of it, or all."""
        builder, layout, places = self.builder, self.layout, self.code.places
        rest, piece = divided(builder, number, pieces)
        rest, panel = divided(builder, rest, each)
        part, group = divided(builder, rest, self.groups)
        panel = as_value(places.add(places.mul(part, each), panel))
        full, last = layout.tiles
        if full:
            with builder.if_then(builder.icmp_signed("<", panel, i64(full))):
                self._turn(self.tile, group, panel, piece)
        if last is not None:
            with builder.if_then(builder.icmp_signed("==", panel, i64(full))):
                self._turn(last, group, panel, piece)

    def _turn(self, tile: Tile, group: Number, panel: Number, piece: Number) -> None:
        """Pack weights into a panel ``[term][channel of the result]`` that is as wide as a tile."""
        builder, layout, places = self.builder, self.layout, self.code.places
        dtype, length, taps = layout.dtype, layout.length, layout.taps
        row = as_value(places.mul(panel, self.tile.width))
        valid = minimum(builder, i64(tile.width), builder.sub(i64(layout.rows), row))
        number = places.add(places.mul(group, layout.panels), panel)
        start = as_value(places.mul(number, layout.panel))
        pack = turning_kernel(builder.module, dtype, tile)
        if self.past:
            past = turning_kernel(builder.module, dtype, tile, past=True)
            pack = self.code.for_others(pack, past)

        def some(count: Any, at: Number, distance: int, term: Any) -> None:
            source = offset(builder, self.weights, dtype, at)
            to = builder.add(start, builder.mul(term, i64(tile.width)))
            target = offset(builder, self.target, layout.accumulator, to)
            builder.call(pack, [count, valid, source, i64(distance), target])

        if not layout.backward:
            first = as_value(places.mul(piece, TERMS))
            count = minimum(builder, i64(TERMS), builder.sub(i64(length), first))
            line = places.add(places.mul(group, layout.rows), row)
            some(count, places.add(places.mul(line, length), first), length, first)
            return

        def channel(c: Any, _: Any) -> None:
            line = places.add(places.mul(group, layout.patches.channels), c)
            line = places.add(places.mul(line, layout.rows), row)
            some(i64(taps), places.mul(line, taps), taps, builder.mul(c, i64(taps)))

        # One after the other: what a square writes too much is what comes next.
        loop(builder, i64(0), i64(layout.patches.channels), 1, channel)


class Driver:
    """The code of one product."""

    def __init__(self, code: Code, main: Node, operands: tuple[Any, Any], finish: Finish) -> None:
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
            code, self.blocks, layout.dtype, self.tile.lanes, self.planes, layout.plane, self.places
        )

    def _byte(self, pointer: Any, place: int) -> Any:
        return self.builder.gep(pointer, [i64(place)], source_etype=ir().IntType(8))

    def emit(self) -> None:
        """Everything."""
        layout, patches, parts = self.layout, self.patches, self.layout.cut.parts
        write_distances(self.builder, layout.grid, layout.cut.channels, layout.plane, self.terms)
        if layout.at_once:
            self._order(i64(patches.channels))
        if not self.code.packed:
            # Where there are no parts or groups, all threads read all panels. What the squares of a few taps write too much would go past the cache twice.
            lines = self.tile.lanes * layout.size == LINE
            past = lines and parts * patches.groups == 1 and not layout.backward
            _Panels(self.code, layout, self.weights, self.packed, past).emit(parts)
            self.code.barrier(past)
        self.code.each(patches.groups * self.blocks.count * parts, self._unit)

    def _order(self, channels: Any) -> None:
        if self.spans is not None:
            self.spans.order(channels, self.layout.taps, self.terms, self.tables)

    def _unit(self, number: Any) -> None:
        """Some pixels of one group, and some panels: channels of the source are copied, and met by every tile."""
        builder, layout, patches = self.builder, self.layout, self.patches
        places = self.code.places
        rest, block = divided(builder, number, self.blocks.count)
        part, group = divided(builder, rest, patches.groups)
        first, stop = self.blocks.bounds(self.code, as_value(block))
        if self.spans is None:
            start = self.reader.write_places(first, stop)
        else:
            start = self.spans.write(first, stop, self.places)
        low = as_value(places.mul(part, layout.each))
        high = minimum(builder, builder.add(low, i64(layout.each)), i64(layout.panels))

        def channels(c: Any, _: Any) -> None:
            count = minimum(
                builder, builder.sub(i64(patches.channels), c), i64(layout.cut.channels)
            )
            plane = places.add(places.mul(group, patches.channels), c)
            source = offset(builder, self.source, layout.dtype, places.mul(plane, patches.area))
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
        group: Number,
        panels: tuple[Any, Any],
        pixels: Any,
        channels: Any,
        before: Any,
        keep: Any,
    ) -> None:
        """Add the products of some channels, whose terms begin at ``before``, to the sums of a block."""
        builder, layout, places = self.builder, self.layout, self.code.places
        word, tile = ir().IntType(64), self.tile
        full, last = layout.tiles

        def panel(number: Any, exact: Tile) -> None:
            line = places.add(places.mul(group, layout.panels), number)
            at = places.add(places.mul(line, layout.panel), builder.mul(before, i64(exact.width)))
            b = offset(builder, self.packed, layout.accumulator, at)
            column = builder.mul(number, i64(tile.width))

            def one_tile(row: Any, _: Any) -> None:
                out = builder.add(builder.mul(row, i64(layout.padded)), column)
                out = offset(builder, self.sums, layout.accumulator, out)
                starts = builder.gep(self.places, [row], source_etype=word)

                length, form, tables = self._terms(row, channels, exact)

                def call(count: int) -> None:
                    own = Tile(count, exact.vectors, exact.lanes)
                    kernel = tile_kernel(builder.module, own, layout.accumulator, "placed", form)
                    arguments = [length, self.planes, i64(0), b, out, i64(layout.padded), keep, b]
                    builder.call(kernel, [*arguments, *tables[:-1], starts, tables[-1]])

                left = builder.sub(pixels, row)
                call_with_rows(builder, left, tile.rows, self.blocks.lengths, call)

            loop(builder, i64(0), pixels, tile.rows, one_tile)

        low, high = panels
        if full:
            loop(builder, low, minimum(builder, high, i64(full)), 1, lambda i, _: panel(i, tile))
        if last is not None:
            with builder.if_then(builder.icmp_signed(">", high, i64(full))):
                panel(i64(full), last)

    def _terms(self, row: Any, channels: Any, tile: Tile) -> tuple[Any, str, list[Any]]:
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

    def _finish(self, group: Number, panels: tuple[Any, Any], first: Any, stop: Any) -> None:
        """Take the sums of a block to the results, in squares of pixels and channels that are turned around."""
        builder, layout, places = self.builder, self.layout, self.code.places
        lanes, pixels = self.tile.lanes, self.patches.pixels
        low = builder.mul(panels[0], i64(self.tile.width))
        high = builder.mul(panels[1], i64(self.tile.width))
        high = minimum(builder, high, i64(layout.rows))

        def run(pixel: Any, held: Any) -> tuple[Any, Any]:
            image, inner = divided(builder, pixel, pixels)
            left = builder.sub(i64(pixels), as_value(inner))
            length = minimum(builder, left, builder.sub(stop, pixel))
            own_image, _ = divided(builder, builder.sub(pixel, first), pixels)

            def some(at: Any, _: Any) -> None:
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

                def across(channel: Any, _: Any) -> None:
                    values = []
                    for start in starts:
                        place = builder.add(start, channel)
                        place = offset(builder, self.sums, layout.accumulator, place)
                        values.append(load(builder, place, layout.accumulator, lanes))
                    count = minimum(builder, builder.sub(high, channel), i64(lanes))

                    def one(lane: Any, sums: Any) -> None:
                        line = builder.add(channel, lane)
                        line = places.add(places.mul(group, layout.rows), line)
                        index = [image, line, places.add(inner, at)]
                        self.finish.emit(self.code, sums, index, lanes, mask)

                    each_turned(builder, values, self.square, layout.accumulator, count, one)

                loop(builder, low, high, lanes, across)

            loop(builder, i64(0), length, lanes, some)
            return builder.add(pixel, length), held

        walk(builder, first, stop, run, i64(0))
