"""Convolutions in Winograd's form: the source transformed, one product of matrices for each pair of points, and the sums taken back.

A block of squares goes through all of it in the cache next to a core: its channels are transformed into matrices ``[point][square][channel]``, each meets the
transformed weights of some channels of the result, and these are finished before the next channels begin. Where there are so many channels that few squares fit,
all threads transform the source together first, and then share blocks and channels of the result.
"""

from __future__ import annotations

from typing import Any

from .....codegen.ir.emit import i64, lane_mask, load, loop, minimum, offset
from .....codegen.ir.index import Number, as_value
from ...emit.template import Code, Packing, Scratch
from ..epilogue import Finish
from ..pack import divided
from .plan import Winograd
from .source import (
    SIZE,
    Images,
    Reader,
    in_lines,
    lines_of,
    moved,
    multiply,
    place_of_line,
    width_of,
)
from .transforms import DTYPE, TAPS, result_kernel, source_kernel, turn_kernel, weight_kernel

CHUNK_BYTES = 640 << 10
"""Of the cache next to a core: transformed weights of some channels that are used at once."""


class Layout:
    """Where the scratch memory of one convolution lies, in bytes."""

    def __init__(self, form: Winograd) -> None:
        lanes = form.tile.lanes
        self.images = Images(form, form.channels, form.source, form.low, form.ends)
        # The rows of a line follow each other as in the result where a line is as wide as that.
        self.width = form.result[1] if form.parts == 1 else form.side * form.across
        self.pixels = in_lines((form.side * self.width + form.side + lanes) * lanes)
        pixels = self.width if form.parts > 1 else form.side * self.width
        # Not a power of two apart, or all channels would lie in one set of the cache.
        self.run = -(-pixels // lanes) * lanes + lanes
        self.turned = in_lines(lanes * self.run)
        self.sums = in_lines(form.points * form.rows * form.tile.width)
        self.source = in_lines(form.source_elements)
        # Weights are transformed in chunks where they are used once, else all of them first.
        chunks = max(1, CHUNK_BYTES // (form.points * form.tile.width * SIZE) // lanes)
        self.chunk = min(form.depth, chunks * lanes)
        self.chunk_bytes = in_lines(form.points * self.chunk * form.tile.width)
        self.weights = in_lines(form.weight_elements)

    def scratch(self, form: Winograd) -> Scratch:
        """The memory it needs."""
        own = self.images.ring_bytes + self.pixels + self.turned + self.sums
        if form.shared:
            return Scratch(own + self.chunk_bytes, self.source * form.blocks)
        return Scratch(own + self.source, self.weights)


def scratch(form: Winograd) -> Scratch:
    """The memory that a convolution needs."""
    return Layout(form).scratch(form)


def packing(form: Winograd, operand: int) -> Packing | None:
    """The transformed weights, which need not be made again while these stay the same; those that are used once are as quickly transformed as read."""
    if form.shared:
        return None

    def emit(code: Code) -> None:
        _transform_weights(code, form, code.operands[0], code.results[0])
        # What went past the cache may be seen late: before anyone is told that this kernel is done, it is.
        code.builder.fence("seq_cst")

    key = f"winograd of {form.side}, {form.tile}, {form.channels}, {form.out}, {form.flipped}"
    return Packing(operand, Layout(form).weights, key, emit)


def _transform_weights(code: Code, form: Winograd, weights: Any, target: Any) -> None:
    """All weights to ``[panel][point][channel][out]``."""
    builder, places, tile = code.builder, code.places, form.tile
    groups = form.depth // tile.lanes

    def one(number: Any) -> None:
        panel, group = divided(builder, number, groups)
        _, width = width_of(builder, form, panel)
        channel = builder.mul(as_value(group), i64(tile.lanes))
        stop = minimum(builder, builder.add(channel, i64(tile.lanes)), i64(form.channels))
        start = places.mul(panel, form.points * form.channels * tile.width)
        start = places.add(start, places.mul(channel, width))
        to = offset(builder, target, DTYPE, as_value(start))
        distance = as_value(places.mul(width, form.channels))
        _transform_some(code, form, weights, panel, (channel, stop), to, distance, for_others=True)

    code.each(form.panels * groups, one)


def _transform_some(
    code: Code,
    form: Winograd,
    weights: Any,
    panel: Number,
    channels: tuple[Any, Any],
    target: Any,
    point_distance: Any,
    for_others: bool = False,
) -> None:
    """The weights of one panel and some of the source's channels to ``target[point][channel][out]``, which other threads read where it is ``for_others``."""
    builder, places, lanes = code.builder, code.places, form.tile.lanes
    kernel = weight_kernel(code.module, form.side, lanes, form.flipped)
    if for_others and form.in_lines:
        past = weight_kernel(code.module, form.side, lanes, form.flipped, past=True)
        kernel = code.for_others(kernel, past)
    distance = TAPS * (form.out if form.flipped else form.channels)
    first, stop = channels
    _, width = width_of(builder, form, panel)

    def vector(at: Any, _: Any) -> None:
        out = places.add(places.mul(panel, form.tile.width), at)
        left = builder.sub(i64(form.out), as_value(out))

        def group(channel: Any, _: Any) -> None:
            count = minimum(builder, builder.sub(stop, channel), i64(lanes))
            if form.flipped:
                line = places.add(places.mul(channel, form.out), out)
            else:
                line = places.add(places.mul(out, form.channels), channel)
            read = offset(builder, weights, DTYPE, as_value(places.mul(line, TAPS)))
            place = places.add(places.mul(builder.sub(channel, first), width), at)
            write = offset(builder, target, DTYPE, as_value(place))
            distances = as_value(width), point_distance
            builder.call(kernel, [count, left, read, i64(distance), write, *distances])

        loop(builder, first, stop, lanes, group)

    loop(builder, i64(0), as_value(width), lanes, vector)


class Driver:
    """The code of one convolution."""

    def __init__(
        self, code: Code, form: Winograd, operands: tuple[Any, Any], finish: Finish
    ) -> None:
        self.code, self.builder, self.places = code, code.builder, code.places
        self.form, self.finish, self.layout = form, finish, Layout(form)
        images, self.weights = operands
        layout = self.layout
        place = layout.images.ring_bytes
        found = []
        for size in (layout.pixels, layout.turned, layout.sums):
            found.append(moved(self.builder, code.own, place))
            place += size
        self.pixels, self.turned, self.sums = found
        rest = moved(self.builder, code.own, place)
        self.chunk = rest
        self.source = code.shared if form.shared else rest
        kernel = source_kernel(code.module, form.side, form.tile.lanes)
        if form.shared and form.in_lines:
            past = source_kernel(code.module, form.side, form.tile.lanes, past=True)
            kernel = code.for_others(kernel, past)
        self.reader = Reader(code, layout.images, images, code.own, kernel)

    def emit(self) -> None:
        """Everything."""
        form, code = self.form, self.code
        if not form.shared and not code.packed:
            _transform_weights(code, form, self.weights, code.shared)
            self.weights = code.shared
        self.reader.clear()
        if form.shared:
            code.each(form.blocks * self.layout.images.vectors, self._share_of_source)
        if form.shared or not code.packed:
            code.barrier(past=form.in_lines)
        code.each(form.units, self._unit)

    def _unit(self, number: Any) -> None:
        form, builder = self.form, self.builder
        if form.shared:
            panel, block = divided(builder, number, form.blocks)
            source = self._source_of(block)
            self._panel(block, panel, source)
            return
        loop(
            builder,
            i64(0),
            i64(self.layout.images.vectors),
            1,
            lambda vector, _: self._transform(number, vector, self.source),
        )
        loop(
            builder,
            i64(0),
            i64(form.panels),
            1,
            lambda panel, _: self._panel(number, panel, self.source),
        )

    # ------------------------------------------------------------- the way in

    def _source_of(self, block: Any) -> Any:
        place = self.places.mul(block, self.layout.source // SIZE)
        return offset(self.builder, self.source, DTYPE, as_value(place))

    def _share_of_source(self, number: Any) -> None:
        block, vector = divided(self.builder, number, self.layout.images.vectors)
        self._transform(as_value(block), vector, self._source_of(block))

    def _transform(self, block: Any, vector: Number, source: Any) -> None:
        """One vector of channels of a block's squares, as columns of the matrices."""
        form, builder = self.form, self.builder
        target = offset(builder, source, DTYPE, as_value(self.places.mul(vector, form.tile.lanes)))
        lines = lines_of(builder, form, block)
        self.reader.transform(lines, vector, target, form.depth, form.rows * form.depth)

    # ------------------------------------------------------------- products

    def _panel(self, block: Number, panel: Number, source: Any) -> None:
        """The products of a block with one panel of weights, and what becomes of them."""
        form, builder, places = self.form, self.builder, self.places
        _, width = width_of(builder, form, panel)
        if form.shared:
            self._chunks(panel, source)
        else:
            start = places.mul(panel, form.points * form.channels * form.tile.width)
            weights = offset(builder, self.weights, DTYPE, as_value(start))
            self._products(panel, source, weights, i64(0), i64(form.channels), form.channels)
        self._take_back(block, panel, width)

    def _chunks(self, panel: Number, source: Any) -> None:
        """The products with some channels after the other, whose weights are transformed just before."""
        form, builder, layout = self.form, self.builder, self.layout
        _, width = width_of(builder, form, panel)
        point_distance = as_value(self.places.mul(width, layout.chunk))

        def chunk(first: Any, _: Any) -> None:
            stop = minimum(builder, builder.add(first, i64(layout.chunk)), i64(form.channels))
            channels = first, stop
            _transform_some(
                self.code, form, self.weights, panel, channels, self.chunk, point_distance
            )
            count = builder.sub(stop, first)
            self._products(panel, source, self.chunk, first, count, layout.chunk)

        loop(builder, i64(0), i64(form.channels), layout.chunk, chunk)

    def _products(
        self, panel: Number, source: Any, weights: Any, first: Any, count: Any, distance: int
    ) -> None:
        """Add the products of ``count`` channels from ``first`` on, whose points are ``distance`` channels apart, to the sums."""
        form, builder, places = self.form, self.builder, self.places
        full, width = width_of(builder, form, panel)
        tiles = form.rows // form.tile.rows
        added = builder.icmp_signed(">", first, i64(0))

        def point(number: Any, _: Any) -> None:
            at = as_value(places.mul(number, places.mul(width, distance)))
            here = offset(builder, weights, DTYPE, at)
            following = offset(builder, here, DTYPE, as_value(places.mul(width, distance)))

            def rows(tile: Any, _: Any) -> None:
                line = places.add(places.mul(number, form.rows), places.mul(tile, form.tile.rows))
                at = as_value(places.add(places.mul(line, form.depth), first))
                a = offset(builder, source, DTYPE, at)
                out = offset(builder, self.sums, DTYPE, as_value(places.mul(line, width)))
                # Each tile asks for its share of the next weights: a line for every four channels.
                ahead = offset(builder, following, DTYPE, builder.mul(tile, i64(4 * form.channels)))
                arguments = [count, a, i64(form.depth), here, out, as_value(width), added, ahead]
                multiply(builder, form, full, "rows", arguments)

            loop(builder, i64(0), i64(tiles), 1, rows)

        loop(builder, i64(0), i64(form.points), 1, point)

    # ------------------------------------------------------------- the way out

    def _take_back(self, block: Number, panel: Number, width: Number) -> None:
        """The sums of a panel to the results, a vector of channels and a line of squares at a time."""
        form, builder, places, layout = self.form, self.builder, self.places, self.layout
        lanes = form.tile.lanes
        kernel = result_kernel(self.code.module, form.side, lanes)
        first, stop = lines_of(builder, form, as_value(block))
        start = as_value(places.mul(panel, form.tile.width))
        count = minimum(builder, builder.sub(i64(form.out), start), as_value(width))

        def vector(at: Any, _: Any) -> None:
            channel = builder.add(start, at)
            channels = minimum(builder, builder.sub(count, at), i64(lanes))

            def one_line(line: Any, _: Any) -> None:
                square = places.mul(builder.sub(line, first), form.across)
                read = as_value(places.add(places.mul(square, width), at))
                arguments = [
                    i64(form.across),
                    offset(builder, self.sums, DTYPE, read),
                    as_value(width),
                    as_value(places.mul(width, form.rows)),
                    self.pixels,
                    i64(layout.width * lanes),
                ]
                builder.call(kernel, arguments)
                self._write_line(line, channel, channels)

            loop(builder, first, stop, 1, one_line)

        loop(builder, i64(0), count, lanes, vector)

    def _write_line(self, line: Any, channel: Any, channels: Any) -> None:
        """The pixels of a line: all at once where its rows follow each other in the result."""
        form, builder, places, layout = self.form, self.builder, self.places, self.layout
        image, part, down = place_of_line(builder, form, line)
        height, width = form.result
        top = as_value(places.mul(down, form.side))
        rows = minimum(builder, builder.sub(i64(height), top), i64(form.side))
        if form.parts == 1:
            length = as_value(places.mul(rows, width))
            self._write_run(image, channel, channels, i64(0), places.mul(top, width), length)
            return
        left = places.mul(part, layout.width)
        length = minimum(builder, as_value(places.sub(width, left)), i64(layout.width))

        def one_row(row: Any, _: Any) -> None:
            pixel = places.add(places.mul(builder.add(top, row), width), left)
            start = as_value(places.mul(row, layout.width))
            self._write_run(image, channel, channels, start, pixel, length)

        loop(builder, i64(0), rows, 1, one_row)

    def _write_run(
        self, image: Number, channel: Any, channels: Any, start: Any, pixel: Number, length: Any
    ) -> None:
        """Neighbouring pixels of some channels: turned around, and then finished a channel after the other, as they lie in the result."""
        builder, places, lanes = self.builder, self.places, self.form.tile.lanes
        turn = turn_kernel(self.code.module, lanes)
        pixels = offset(builder, self.pixels, DTYPE, builder.mul(start, i64(lanes)))
        pitch = i64(self.layout.run)
        builder.call(turn, [length, pixels, self.turned, pitch])

        def one_channel(number: Any, _: Any) -> None:
            row = offset(builder, self.turned, DTYPE, builder.mul(number, pitch))

            def piece(at: Any, _: Any) -> None:
                mask = lane_mask(builder, builder.sub(length, at), lanes)
                sums = load(builder, offset(builder, row, DTYPE, at), DTYPE, lanes)
                index = [image, builder.add(channel, number), places.add(pixel, at)]
                self.finish.emit(self.code, sums, index, lanes, mask)

            loop(builder, i64(0), length, lanes, piece)

        loop(builder, i64(0), channels, 1, one_channel)
