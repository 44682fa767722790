"""Convolutions in Winograd's form: the source transformed, one product of matrices for each pair of points, and the sums taken back.

A block of squares goes through all of it in the cache next to a core: its channels are transformed into matrices ``[point][square][channel]``, each meets the
transformed weights of some channels of the result, and these are finished before the next channels begin. Where there are so many channels that few squares fit,
all threads transform the source together first, and then share blocks and channels of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .....codegen.ir.emit import lane_mask, load, loop, minimum, offset
from .....codegen.ir.index import Index, i64
from .....codegen.ir.types import Pointer, Value
from .....graph.integers import round_up
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
    position_of_line,
    width_of,
)
from .transforms import DTYPE, TAPS, result_kernel, source_kernel, transpose_kernel, weight_kernel

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
        self.run = round_up(pixels, lanes) + lanes
        self.transposed = in_lines(lanes * self.run)
        self.sums = in_lines(form.points * form.rows * form.tile.width)
        self.source = in_lines(form.source_elements)
        # Weights are transformed in chunks where they are used once, else all of them first.
        chunks = max(1, CHUNK_BYTES // (form.points * form.tile.width * SIZE) // lanes)
        self.chunk = min(form.depth, chunks * lanes)
        self.chunk_bytes = in_lines(form.points * self.chunk * form.tile.width)
        self.weights = in_lines(form.weight_elements)

    def scratch(self, form: Winograd) -> Scratch:
        """The memory it needs."""
        own = self.images.ring_bytes + self.pixels + self.transposed + self.sums
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


def _transform_weights(code: Code, form: Winograd, weights: Pointer, target: Pointer) -> None:
    """All weights to ``[panel][point][channel][out]``."""
    builder, indices, tile = code.builder, code.indices, form.tile
    groups = form.depth // tile.lanes

    def emit_unit(number: Value) -> None:
        panel, group = divided(builder, number, groups)
        _, width = width_of(builder, form, panel)
        channel = builder.mul(i64(group), i64(tile.lanes))
        stop = minimum(builder, builder.add(channel, i64(tile.lanes)), i64(form.channels))
        start = indices.mul(panel, form.points * form.channels * tile.width)
        start = indices.add(start, indices.mul(channel, width))
        to = offset(builder, target, DTYPE, i64(start))
        distance = i64(indices.mul(width, form.channels))
        room = WeightTarget(to, distance, for_others=True)
        _transform_some(code, form, weights, panel, (channel, stop), room)

    code.each(form.panels * groups, emit_unit)


class WeightTarget(NamedTuple):
    """Where transformed weights go.

    Attributes:
        start: the first of them.
        point_distance: elements from one point to the next.
        for_others: whether other threads read them.
    """

    start: Pointer
    point_distance: Value
    for_others: bool = False


def _transform_some(
    code: Code,
    form: Winograd,
    weights: Pointer,
    panel: Index,
    channels: tuple[Value, Value],
    target: WeightTarget,
) -> None:
    """The weights of one panel and some of the source's channels to ``target[point][channel][out]``."""
    builder, indices, lanes = code.builder, code.indices, form.tile.lanes
    kernel: Value = weight_kernel(code.module, form.side, lanes, form.flipped)
    if target.for_others and form.in_lines:
        non_temporal = weight_kernel(code.module, form.side, lanes, form.flipped, non_temporal=True)
        kernel = code.for_others(kernel, non_temporal)
    distance = TAPS * (form.out if form.flipped else form.channels)
    first, stop = channels
    _, width = width_of(builder, form, panel)

    def vector(at: Value, _: Sequence[Value]) -> None:
        out = indices.add(indices.mul(panel, form.tile.width), at)
        left = builder.sub(i64(form.out), i64(out))

        def group(channel: Value, _: Sequence[Value]) -> None:
            count = minimum(builder, builder.sub(stop, channel), i64(lanes))
            if form.flipped:
                line = indices.add(indices.mul(channel, form.out), out)
            else:
                line = indices.add(indices.mul(out, form.channels), channel)
            read = offset(builder, weights, DTYPE, i64(indices.mul(line, TAPS)))
            position = indices.add(indices.mul(builder.sub(channel, first), width), at)
            write = offset(builder, target.start, DTYPE, i64(position))
            distances = i64(width), target.point_distance
            builder.call(kernel, [count, left, read, i64(distance), write, *distances])

        loop(builder, first, stop, lanes, group)

    loop(builder, i64(0), i64(width), lanes, vector)


class Driver:
    """The code of one convolution."""

    def __init__(
        self, code: Code, form: Winograd, operands: tuple[Pointer, Pointer], finish: Finish
    ) -> None:
        self.code, self.builder, self.indices = code, code.builder, code.indices
        self.form, self.finish, self.layout = form, finish, Layout(form)
        images, self.weights = operands
        layout = self.layout
        place = layout.images.ring_bytes
        found = []
        for size in (layout.pixels, layout.transposed, layout.sums):
            found.append(moved(self.builder, code.own, place))
            place += size
        self.pixels, self.transposed, self.sums = found
        rest = moved(self.builder, code.own, place)
        self.chunk = rest
        self.source = code.shared if form.shared else rest
        kernel: Value = source_kernel(code.module, form.side, form.tile.lanes)
        if form.shared and form.in_lines:
            non_temporal = source_kernel(code.module, form.side, form.tile.lanes, non_temporal=True)
            kernel = code.for_others(kernel, non_temporal)
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
            code.barrier(non_temporal=form.in_lines)
        code.each(form.units, self._unit)

    def _unit(self, number: Value) -> None:
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

    def _source_of(self, block: Index) -> Pointer:
        position = self.indices.mul(block, self.layout.source // SIZE)
        return offset(self.builder, self.source, DTYPE, i64(position))

    def _share_of_source(self, number: Value) -> None:
        block, vector = divided(self.builder, number, self.layout.images.vectors)
        self._transform(i64(block), vector, self._source_of(block))

    def _transform(self, block: Value, vector: Index, source: Pointer) -> None:
        """One vector of channels of a block's squares, as columns of the matrices."""
        form, builder = self.form, self.builder
        target = offset(builder, source, DTYPE, i64(self.indices.mul(vector, form.tile.lanes)))
        lines = lines_of(builder, form, block)
        self.reader.transform(lines, vector, target, form.depth, form.rows * form.depth)

    # ------------------------------------------------------------- products

    def _panel(self, block: Index, panel: Index, source: Pointer) -> None:
        """The products of a block with one panel of weights, and what becomes of them."""
        form, builder, indices = self.form, self.builder, self.indices
        _, width = width_of(builder, form, panel)
        if form.shared:
            self._chunks(panel, source)
        else:
            start = indices.mul(panel, form.points * form.channels * form.tile.width)
            weights = offset(builder, self.weights, DTYPE, i64(start))
            self._products(panel, source, weights, i64(0), i64(form.channels), form.channels)
        self._take_back(block, panel, width)

    def _chunks(self, panel: Index, source: Pointer) -> None:
        """The products with some channels after the other, whose weights are transformed just before."""
        form, builder, layout = self.form, self.builder, self.layout
        _, width = width_of(builder, form, panel)
        point_distance = i64(self.indices.mul(width, layout.chunk))

        def chunk(first: Value, _: Sequence[Value]) -> None:
            stop = minimum(builder, builder.add(first, i64(layout.chunk)), i64(form.channels))
            channels = first, stop
            room = WeightTarget(self.chunk, point_distance)
            _transform_some(self.code, form, self.weights, panel, channels, room)
            count = builder.sub(stop, first)
            self._products(panel, source, self.chunk, first, count, layout.chunk)

        loop(builder, i64(0), i64(form.channels), layout.chunk, chunk)

    def _products(
        self,
        panel: Index,
        source: Pointer,
        weights: Pointer,
        first: Value,
        count: Value,
        distance: int,
    ) -> None:
        """Add the products of ``count`` channels from ``first`` on, whose points are ``distance`` channels apart, to the sums."""
        form, builder, indices = self.form, self.builder, self.indices
        full, width = width_of(builder, form, panel)
        tiles = form.rows // form.tile.rows
        added = builder.icmp_signed(">", first, i64(0))

        def point(number: Value, _: Sequence[Value]) -> None:
            at = i64(indices.mul(number, indices.mul(width, distance)))
            here = offset(builder, weights, DTYPE, at)
            following = offset(builder, here, DTYPE, i64(indices.mul(width, distance)))

            def rows(tile: Value, _: Sequence[Value]) -> None:
                line = indices.add(
                    indices.mul(number, form.rows), indices.mul(tile, form.tile.rows)
                )
                at = i64(indices.add(indices.mul(line, form.depth), first))
                a = offset(builder, source, DTYPE, at)
                out = offset(builder, self.sums, DTYPE, i64(indices.mul(line, width)))
                # Each tile asks for its share of the next weights: a line for every four channels.
                ahead = offset(builder, following, DTYPE, builder.mul(tile, i64(4 * form.channels)))
                arguments = [count, a, i64(form.depth), here, out, i64(width), added, ahead]
                multiply(builder, form, full, "rows", arguments)

            loop(builder, i64(0), i64(tiles), 1, rows)

        loop(builder, i64(0), i64(form.points), 1, point)

    # ------------------------------------------------------------- the way out

    def _take_back(self, block: Index, panel: Index, width: Index) -> None:
        """The sums of a panel to the results, a vector of channels and a line of squares at a time."""
        form, builder, indices, layout = self.form, self.builder, self.indices, self.layout
        lanes = form.tile.lanes
        kernel = result_kernel(self.code.module, form.side, lanes)
        first, stop = lines_of(builder, form, i64(block))
        start = i64(indices.mul(panel, form.tile.width))
        count = minimum(builder, builder.sub(i64(form.out), start), i64(width))

        def vector(at: Value, _: Sequence[Value]) -> None:
            channel = builder.add(start, at)
            channels = minimum(builder, builder.sub(count, at), i64(lanes))

            def emit_line(line: Value, _: Sequence[Value]) -> None:
                square = indices.mul(builder.sub(line, first), form.across)
                read = i64(indices.add(indices.mul(square, width), at))
                arguments = [
                    i64(form.across),
                    offset(builder, self.sums, DTYPE, read),
                    i64(width),
                    i64(indices.mul(width, form.rows)),
                    self.pixels,
                    i64(layout.width * lanes),
                ]
                builder.call(kernel, arguments)
                self._write_line(line, channel, channels)

            loop(builder, first, stop, 1, emit_line)

        loop(builder, i64(0), count, lanes, vector)

    def _write_line(self, line: Value, channel: Value, channels: Value) -> None:
        """The pixels of a line: all at once where its rows follow each other in the result."""
        form, builder, indices, layout = self.form, self.builder, self.indices, self.layout
        image, part, down = position_of_line(builder, form, line)
        height, width = form.result
        top = i64(indices.mul(down, form.side))
        rows = minimum(builder, builder.sub(i64(height), top), i64(form.side))
        if form.parts == 1:
            length = i64(indices.mul(rows, width))
            self._write_run(image, channel, channels, i64(0), indices.mul(top, width), length)
            return
        left = indices.mul(part, layout.width)
        length = minimum(builder, i64(indices.sub(width, left)), i64(layout.width))

        def emit_row(row: Value, _: object) -> None:
            pixel = indices.add(indices.mul(builder.add(top, row), width), left)
            start = i64(indices.mul(row, layout.width))
            self._write_run(image, channel, channels, start, pixel, length)

        loop(builder, i64(0), rows, 1, emit_row)

    def _write_run(
        self,
        image: Index,
        channel: Value,
        channels: Value,
        start: Value,
        pixel: Index,
        length: Value,
    ) -> None:
        """Neighbouring pixels of some channels: turned around, and then finished a channel after the other, as they lie in the result."""
        builder, indices, lanes = self.builder, self.indices, self.form.tile.lanes
        turn = transpose_kernel(self.code.module, lanes)
        pixels = offset(builder, self.pixels, DTYPE, builder.mul(start, i64(lanes)))
        pitch = i64(self.layout.run)
        builder.call(turn, [length, pixels, self.transposed, pitch])

        def emit_channel(number: Value, _: Sequence[Value]) -> None:
            row = offset(builder, self.transposed, DTYPE, builder.mul(number, pitch))

            def piece(at: Value, _: Sequence[Value]) -> None:
                mask = lane_mask(builder, builder.sub(length, at), lanes)
                sums = load(builder, offset(builder, row, DTYPE, at), DTYPE, lanes)
                index = [image, builder.add(channel, number), indices.add(pixel, at)]
                self.finish.emit(self.code, sums, index, lanes, mask)

            loop(builder, i64(0), length, lanes, piece)

        loop(builder, i64(0), channels, 1, emit_channel)
