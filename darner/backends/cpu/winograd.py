"""Convolutions in Winograd's form: the source transformed, one product of matrices for each pair of points, and the sums taken back.

A block of squares goes through all of it in the cache next to a core: its channels are transformed into matrices ``[point][square][channel]``, each meets the
transformed weights of some channels of the result, and these are finished before the next channels begin. Where there are so many channels that few squares fit,
all threads transform the source together first, and then share blocks and channels of the result.
"""

from __future__ import annotations

from typing import Any

from .conv_finish import Finish
from .conv_pack import divided
from .gemm_ir import STORAGE_BYTES, i64, ir, lane_mask, load, loop, maximum, minimum, offset
from .gemm_tile import Tile, tile_kernel
from .places import Number, as_value
from .template import Code, Packing, Scratch
from .winograd_plan import KERNEL, Winograd
from .winograd_transforms import (
    DTYPE,
    fill_kernel,
    result_kernel,
    source_kernel,
    turn_kernel,
    weight_kernel,
)

SIZE = STORAGE_BYTES[DTYPE]


class Layout:
    """Where the scratch memory of one convolution lies, in bytes."""

    def __init__(self, form: Winograd) -> None:
        lanes = form.tile.lanes
        one_part = form.parts == 1
        # Columns of zeros stay where they are; with one line across an image only its own columns are copied.
        self.first = max(0, form.low[1]) if one_part else 0
        needed = form.side * form.across + KERNEL - 1
        self.copied = min(form.source[1], needed - self.first) if one_part else needed
        columns = self.first + -(-self.copied // lanes) * lanes
        self.pitch = max(columns, needed) * lanes
        self.ring = _lines(2 * form.side * self.pitch)
        # The rows of a line follow each other as in the result where a line is as wide as that.
        self.width = form.result[1] if one_part else form.side * form.across
        self.pixels = _lines((form.side * self.width + form.side + lanes) * lanes)
        self.square = _lines(lanes * lanes)
        self.sums = _lines(form.points * form.rows * form.tile.width)
        self.source = _lines(form.source_elements)
        self.weights = _lines(form.weight_elements)
        self.shared_source = self.source * form.blocks if form.shared else 0

    def scratch(self, form: Winograd) -> Scratch:
        """The memory it needs."""
        own = self.ring + self.pixels + self.square + self.sums
        return Scratch(own + (0 if form.shared else self.source), self.weights + self.shared_source)


def _lines(elements: int) -> int:
    """Bytes in whole cache lines."""
    return -(-elements * SIZE // 64) * 64


def scratch(form: Winograd) -> Scratch:
    """The memory that a convolution needs."""
    return Layout(form).scratch(form)


def packing(form: Winograd, operand: int) -> Packing:
    """The transformed weights, which need not be made again while these stay the same."""

    def emit(code: Code) -> None:
        _transform_weights(code, form, code.operands[0], code.results[0])

    key = f"winograd of {form.side}, {form.tile}, {form.channels}, {form.out}, {form.flipped}"
    return Packing(operand, Layout(form).weights, key, emit)


def _transform_weights(code: Code, form: Winograd, weights: Any, target: Any) -> None:
    """Weights to ``[panel][point][channel][out]``."""
    builder, places, tile = code.builder, code.places, form.tile
    taps = KERNEL * KERNEL
    distance = taps if form.flipped else taps * form.channels
    kernel = weight_kernel(code.module, form.side, tile.lanes, distance, form.flipped)

    def one(number: Any) -> None:
        panel, channel = divided(builder, number, form.channels)
        _, width = _width(builder, form, panel)
        start = places.mul(panel, form.points * form.channels * tile.width)
        start = places.add(start, places.mul(channel, width))
        point_distance = as_value(places.mul(width, form.channels))

        def vector(at: Any, _: Any) -> None:
            out = places.add(places.mul(panel, tile.width), at)
            if form.flipped:
                line = places.add(places.mul(channel, form.out), out)
            else:
                line = places.add(places.mul(out, form.channels), channel)
            read = offset(builder, weights, DTYPE, as_value(places.mul(line, taps)))
            write = offset(builder, target, DTYPE, as_value(places.add(start, at)))
            left = builder.sub(i64(form.out), as_value(out))
            builder.call(kernel, [left, read, write, point_distance])

        loop(builder, i64(0), as_value(width), tile.lanes, vector)

    code.each(form.panels * form.channels, one)


def _width(builder: Any, form: Winograd, panel: Number) -> tuple[Any, Number]:
    """Whether a panel is as wide as the tile (None where all are), and its width."""
    if form.last == form.tile:
        return None, form.tile.width
    if form.panels == 1:
        return None, form.last.width
    full = builder.icmp_signed("<", as_value(panel), i64(form.panels - 1))
    return full, builder.select(full, i64(form.tile.width), i64(form.last.width))


class Driver:
    """The code of one convolution."""

    def __init__(
        self, code: Code, form: Winograd, operands: tuple[Any, Any], finish: Finish
    ) -> None:
        self.code, self.builder, self.places = code, code.builder, code.places
        self.form, self.finish, self.layout = form, finish, Layout(form)
        self.image, self.weights = operands
        byte, layout = ir().IntType(8), self.layout
        place = 0
        found = []
        for size in (layout.ring, layout.pixels, layout.square, layout.sums):
            found.append(self.builder.gep(code.own, [i64(place)], source_etype=byte))
            place += size
        self.ring, self.pixels, self.square, self.sums = found
        if form.shared:
            self.source = self.builder.gep(code.shared, [i64(layout.weights)], source_etype=byte)
        else:
            self.source = self.builder.gep(code.own, [i64(place)], source_etype=byte)

    def emit(self) -> None:
        """Everything."""
        form, code = self.form, self.code
        if not code.packed:
            _transform_weights(code, form, self.weights, code.shared)
            self.weights = code.shared
        self._clear_ring()
        if form.shared:
            code.each(form.blocks * (form.depth // form.tile.lanes), self._share_of_source)
        if form.shared or not code.packed:
            code.barrier()
        code.each(form.units, self._unit)

    def _unit(self, number: Any) -> None:
        form, builder = self.form, self.builder
        if form.shared:
            panel, block = divided(builder, number, form.blocks)
            source = self._source_of(block)
            self._panel(block, panel, source)
            return
        vectors = form.depth // form.tile.lanes
        loop(
            builder,
            i64(0),
            i64(vectors),
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

    def _lines(self, block: Number) -> tuple[Any, Any]:
        """The first line of a block, and the one after its last."""
        form, builder = self.form, self.builder
        first = as_value(self.places.mul(block, form.lines))
        return first, minimum(builder, builder.add(first, i64(form.lines)), i64(form.all_lines))

    def _place(self, line: Any) -> tuple[Number, Number, Number]:
        """The image, the part of the width, and the number from above of a line."""
        rest, down = divided(self.builder, line, self.form.down)
        image, part = divided(self.builder, rest, self.form.parts)
        return image, part, down

    # ------------------------------------------------------------- the way in

    def _clear_ring(self) -> None:
        """Zeros around what is copied are never written again."""
        builder, lanes = self.builder, self.form.tile.lanes
        zeros = ir().Constant(ir().VectorType(ir().FloatType(), lanes), None)

        def vector(at: Any, _: Any) -> None:
            builder.store(zeros, offset(builder, self.ring, DTYPE, at), align=SIZE)

        loop(builder, i64(0), i64(2 * self.form.side * self.layout.pitch), lanes, vector)

    def _source_of(self, block: Number) -> Any:
        return offset(
            self.builder,
            self.source,
            DTYPE,
            as_value(self.places.mul(block, self.layout.source // SIZE)),
        )

    def _share_of_source(self, number: Any) -> None:
        block, vector = divided(self.builder, number, self.form.depth // self.form.tile.lanes)
        self._transform(block, vector, self._source_of(block))

    def _transform(self, block: Number, vector: Number, target: Any) -> None:
        """One vector of channels of a block's squares."""
        form, builder, places, layout = self.form, self.builder, self.places, self.layout
        lanes, (height, width) = form.tile.lanes, form.source
        channel = as_value(places.mul(vector, lanes))
        exist = minimum(builder, builder.sub(i64(form.channels), channel), i64(lanes))
        fill = fill_kernel(self.code.module, lanes)
        kernel = source_kernel(self.code.module, form.side, lanes)
        first, stop = self._lines(block)

        def one_line(line: Any, _: Any) -> None:
            image, part, down = self._place(line)
            plane = places.add(places.mul(image, form.channels), channel)
            top = as_value(places.mul(down, form.side))
            # What the line above has read already is still there.
            fresh = builder.or_(
                builder.icmp_signed("==", line, first),
                builder.icmp_signed("==", as_value(down), i64(0)),
            )
            begin = builder.select(fresh, i64(0), i64(KERNEL - 1))
            left = places.sub(places.mul(part, form.side * form.across), form.low[1])
            left = places.add(left, layout.first)

            def one_row(i: Any, _: Any) -> None:
                row = builder.add(top, i)
                y = builder.sub(row, i64(form.low[0]))
                inside = builder.icmp_unsigned("<", y, i64(height))
                at = places.add(places.mul(places.add(places.mul(plane, height), y), width), left)
                low = maximum(builder, as_value(places.sub(0, left)), i64(0))
                high = builder.select(inside, as_value(places.sub(width, left)), i64(0))
                slot = builder.mul(builder.and_(row, i64(2 * form.side - 1)), i64(layout.pitch))
                to = offset(builder, self.ring, DTYPE, slot, layout.first * lanes)
                read = offset(builder, self.image, DTYPE, as_value(at))
                arguments = [i64(layout.copied), low, high, exist, read, i64(height * width), to]
                builder.call(fill, arguments)

            loop(builder, begin, i64(form.ends), 1, one_row)
            square = places.mul(builder.sub(line, first), form.across)
            at = places.add(places.mul(square, form.depth), channel)
            arguments = [
                i64(form.across),
                self.ring,
                i64(layout.pitch),
                top,
                offset(builder, target, DTYPE, as_value(at)),
                i64(form.depth),
                i64(form.rows * form.depth),
            ]
            builder.call(kernel, arguments)

        loop(builder, first, stop, 1, one_line)

    # ------------------------------------------------------------- products

    def _panel(self, block: Number, panel: Number, source: Any) -> None:
        """The products of a block with one panel of weights, and what becomes of them."""
        form, builder, places = self.form, self.builder, self.places
        full, width = _width(builder, form, panel)
        start = places.mul(panel, form.points * form.channels * form.tile.width)
        each = places.mul(width, form.channels)
        tiles = form.rows // form.tile.rows

        def point(number: Any, _: Any) -> None:
            at = places.add(start, places.mul(number, each))
            weights = offset(builder, self.weights, DTYPE, as_value(at))
            following = offset(builder, weights, DTYPE, as_value(each))

            def rows(tile: Any, _: Any) -> None:
                line = places.add(
                    places.mul(number, form.rows), places.mul(tile, form.tile.rows)
                )
                a = offset(builder, source, DTYPE, as_value(places.mul(line, form.depth)))
                out = offset(builder, self.sums, DTYPE, as_value(places.mul(line, width)))
                # Each tile asks for its share of the next weights.
                ahead = builder.gep(
                    following,
                    [builder.mul(tile, i64(16 * form.channels))],
                    source_etype=ir().IntType(8),
                )
                self._multiply(full, a, weights, out, width, ahead)

            loop(builder, i64(0), i64(tiles), 1, rows)

        loop(builder, i64(0), i64(form.points), 1, point)
        self._take_back(block, panel, width)

    def _multiply(self, full: Any, a: Any, b: Any, out: Any, pitch: Number, ahead: Any) -> None:
        form, builder = self.form, self.builder

        def call(tile: Tile) -> None:
            kernel = tile_kernel(self.code.module, tile, DTYPE, "rows")
            no = ir().Constant(ir().IntType(1), 0)
            arguments = [i64(form.channels), a, i64(form.depth), b, out, as_value(pitch), no, ahead]
            builder.call(kernel, arguments)

        if full is None:
            call(form.tile if form.panels > 1 else form.last)
            return
        with builder.if_else(full) as (whole, narrow):
            with whole:
                call(form.tile)
            with narrow:
                call(form.last)

    # ------------------------------------------------------------- the way out

    def _take_back(self, block: Number, panel: Number, width: Number) -> None:
        """The sums of a panel to the results, a vector of channels and a line of squares at a time."""
        form, builder, places, layout = self.form, self.builder, self.places, self.layout
        lanes = form.tile.lanes
        kernel = result_kernel(self.code.module, form.side, lanes)
        first, stop = self._lines(block)
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
        image, part, down = self._place(line)
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
        """Neighbouring pixels of some channels, turned around a square at a time."""
        builder, places, lanes = self.builder, self.places, self.form.tile.lanes
        turn = turn_kernel(self.code.module, lanes)

        def piece(at: Any, _: Any) -> None:
            place = builder.mul(builder.add(start, at), i64(lanes))
            builder.call(turn, [offset(builder, self.pixels, DTYPE, place), self.square])
            mask = lane_mask(builder, builder.sub(length, at), lanes)

            def one(number: Any, _: Any) -> None:
                row = offset(builder, self.square, DTYPE, builder.mul(number, i64(lanes)))
                sums = load(builder, row, DTYPE, lanes)
                index = [image, builder.add(channel, number), places.add(pixel, at)]
                self.finish.emit(self.code, sums, index, lanes, mask)

            loop(builder, i64(0), channels, 1, one)

        loop(builder, i64(0), length, lanes, piece)
