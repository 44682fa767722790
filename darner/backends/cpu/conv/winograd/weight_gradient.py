"""The gradient of a convolution towards its weight in Winograd's form: both operands are transformed, and summed over squares at each pair of points.

The source's vectors of channels are ``[vector][point][square][lane]``, so that a tile's rows are lanes of a vector, and the gradient's are panels
``[panel][point][square][out]``. Where both fit a cache, all threads transform them together and then share the products. Where they do not, blocks of squares are
transformed and summed one after the other, in a fixed number of splits whose sums are added up at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from .....codegen.ir.emit import lane_mask, load, loop, minimum, offset
from .....codegen.ir.index import Index, i64
from .....codegen.ir.types import Function, Pointer, Value
from ...emit.template import Code, Scratch
from ..epilogue import Finish
from ..pack import divided
from .plan import Winograd
from .source import SIZE, Images, Reader, in_lines, lines_of, moved, multiply, width_of
from .transforms import DTYPE, TAPS, source_kernel, taps_kernel, transpose_kernel


class Layout:
    """Where the scratch memory of one gradient lies, in bytes."""

    def __init__(self, form: Winograd) -> None:
        lanes, width = form.tile.lanes, form.tile.width
        self.source = Images(form, form.channels, form.source, form.low, form.ends)
        self.gradient = Images(form, form.out, form.result, (0, 0), form.side)
        self.squares = form.lines * form.across
        self.source_bytes = in_lines(self.source.vectors * form.points * self.squares * lanes)
        self.gradient_bytes = in_lines(form.panels * form.points * self.squares * width)
        # Sums are [panel][vector][point][lane][out], so that those of a vector lie together.
        self.each = form.points * lanes * width
        self.split = in_lines(form.panels * self.source.vectors * self.each) // SIZE
        self.taps_bytes = in_lines(TAPS * lanes * lanes)
        self.run = TAPS * lanes + lanes
        self.transposed_bytes = in_lines(lanes * self.run)
        self.rings = self.source.ring_bytes, self.gradient.ring_bytes
        self.operands = self.source_bytes + self.gradient_bytes
        self.sums_bytes = in_lines(form.group * self.each)

    def scratch(self, form: Winograd) -> Scratch:
        """The memory it needs."""
        own = sum(self.rings) + self.taps_bytes + self.transposed_bytes
        if form.shared:
            return Scratch(own + self.sums_bytes, self.operands)
        return Scratch(own + self.operands, form.splits * self.split * SIZE)


def scratch(form: Winograd) -> Scratch:
    """The memory that a gradient needs."""
    return Layout(form).scratch(form)


class Driver:
    """The code of one gradient."""

    def __init__(
        self, code: Code, form: Winograd, operands: tuple[Pointer, Pointer], finish: Finish
    ) -> None:
        self.code, self.builder, self.indices = code, code.builder, code.indices
        self.form, self.finish, self.layout = form, finish, Layout(form)
        builder, layout = self.builder, self.layout
        place = sum(layout.rings)
        self.taps = moved(builder, code.own, place)
        self.transposed = moved(builder, code.own, place + layout.taps_bytes)
        rest = moved(builder, code.own, place + layout.taps_bytes + layout.transposed_bytes)
        start, self.sums = (code.shared, rest) if form.shared else (rest, code.shared)
        self.source, self.gradient = start, moved(builder, start, layout.source_bytes)
        rings = code.own, moved(builder, code.own, layout.rings[0])
        both = zip((layout.source, layout.gradient), operands, rings, strict=True)
        self.readers = [
            Reader(code, images, operand, ring, self._kernel(gradient=images is layout.gradient))
            for images, operand, ring in both
        ]

    def _kernel(self, gradient: bool) -> Pointer | Function:
        """The transform of the source, or of the gradient."""
        code, form = self.code, self.form
        about = code.module, form.side, form.tile.lanes, gradient
        plain = source_kernel(*about)
        if not (form.shared and form.in_lines):
            return plain
        return code.for_others(plain, source_kernel(*about, non_temporal=True))

    def emit(self) -> None:
        """Everything."""
        form, code, layout, builder = self.form, self.code, self.layout, self.builder
        for reader in self.readers:
            reader.clear()
        everything = i64(0), i64(form.all_lines)
        if form.shared:
            code.each(layout.source.vectors, lambda vector: self._read(0, vector, everything))
            code.each(layout.gradient.vectors, lambda vector: self._read(1, vector, everything))
            code.barrier(non_temporal=form.in_lines)
            code.each(form.panels * form.groups, self._group)
            return
        code.each(form.splits, self._split)
        code.barrier()

        def unit(number: Value) -> None:
            panel, vector = divided(builder, number, layout.source.vectors)
            start = builder.mul(number, i64(layout.each))
            sums = offset(builder, self.sums, DTYPE, start)
            self._take_back(panel, i64(vector), sums, form.splits)

        code.each(form.panels * layout.source.vectors, unit)

    def _read(self, which: int, vector: Value, lines: tuple[Value, Value]) -> None:
        """Transform one vector of channels of the source (0) or of the gradient (1)."""
        form, builder, indices, layout = self.form, self.builder, self.indices, self.layout
        lanes, squares = form.tile.lanes, layout.squares
        if which == 0:
            start: Index = indices.mul(vector, form.points * squares * lanes)
            width: Index = lanes
        else:
            panel, inside = divided(builder, vector, form.tile.vectors)
            _, width = width_of(builder, form, panel)
            start = indices.mul(panel, form.points * squares * form.tile.width)
            start = indices.add(start, indices.mul(inside, lanes))
        target = offset(builder, (self.source, self.gradient)[which], DTYPE, i64(start))
        distance = indices.mul(width, squares)
        self.readers[which].transform(lines, vector, target, width, distance)

    def _read_all(self, which: int, vectors: int, lines: tuple[Value, Value]) -> None:
        def vector(number: Value, _: Sequence[Value]) -> None:
            self._read(which, number, lines)

        loop(self.builder, i64(0), i64(vectors), 1, vector)

    # ------------------------------------------------------------- products

    def _group(self, number: Value) -> None:
        """One panel of some vectors of channels, from the first square to the last, and what becomes of them."""
        builder, layout, form = self.builder, self.layout, self.form
        panel, group = divided(builder, number, form.groups)
        first = builder.mul(i64(group), i64(form.group))
        count = minimum(builder, builder.sub(i64(layout.source.vectors), first), i64(form.group))
        self._multiply(panel, first, count, i64(layout.squares), self.sums, i64(0))

        def emit_element(i: Value, _: Sequence[Value]) -> None:
            sums = offset(builder, self.sums, DTYPE, builder.mul(i, i64(layout.each)))
            self._take_back(panel, builder.add(first, i), sums, 1)

        loop(builder, i64(0), count, 1, emit_element)

    def _split(self, split: Value) -> None:
        """Some blocks, their products added up."""
        form, builder, layout = self.form, self.builder, self.layout
        first = builder.udiv(builder.mul(split, i64(form.blocks)), i64(form.splits))
        after = builder.mul(builder.add(split, i64(1)), i64(form.blocks))
        stop = builder.udiv(after, i64(form.splits))
        sums = offset(builder, self.sums, DTYPE, builder.mul(split, i64(layout.split)))

        def emit_block(block: Value, _: Sequence[Value]) -> None:
            lines = lines_of(builder, form, block)
            for which, images in enumerate((layout.source, layout.gradient)):
                self._read_all(which, images.vectors, lines)
            squares = builder.mul(builder.sub(lines[1], lines[0]), i64(form.across))
            keep = builder.sub(block, first)

            def panel_of(panel: Value, _: Sequence[Value]) -> None:
                start = builder.mul(panel, i64(layout.source.vectors * layout.each))
                target = offset(builder, sums, DTYPE, start)
                vectors = i64(layout.source.vectors)
                self._multiply(panel, i64(0), vectors, squares, target, keep)

            loop(builder, i64(0), i64(form.panels), 1, panel_of)

        loop(builder, first, stop, 1, emit_block)

    def _multiply(
        self, panel: Index, first: Value, count: Value, squares: Value, sums: Pointer, keep: Value
    ) -> None:
        """Sums over ``squares`` squares for ``count`` vectors of channels, added to what is there where ``keep`` is not 0."""
        form, builder, indices, layout = self.form, self.builder, self.indices, self.layout
        lanes, tile = form.tile.lanes, form.tile
        full, width = width_of(builder, form, panel)
        added = builder.icmp_signed(">", keep, i64(0))
        start = indices.mul(panel, form.points * layout.squares * tile.width)

        def point(number: Value, _: Sequence[Value]) -> None:
            at = indices.add(start, indices.mul(indices.mul(number, width), layout.squares))
            b = offset(builder, self.gradient, DTYPE, i64(at))

            def vector(i: Value, _: Sequence[Value]) -> None:
                line = indices.add(indices.mul(builder.add(first, i), form.points), number)
                read = offset(
                    builder, self.source, DTYPE, i64(indices.mul(line, layout.squares * lanes))
                )
                out = indices.mul(
                    indices.add(indices.mul(i, form.points), number), lanes * tile.width
                )
                write = offset(builder, sums, DTYPE, i64(out))
                for row in range(0, lanes, tile.rows):
                    a = offset(builder, read, DTYPE, row)
                    to = offset(builder, write, DTYPE, row * tile.width)
                    arguments = [squares, a, i64(lanes), b, to, i64(tile.width), added, b]
                    multiply(builder, form, full, "columns", arguments)

            loop(builder, i64(0), count, 1, vector)

        loop(builder, i64(0), i64(form.points), 1, point)

    # ------------------------------------------------------------- the way out

    def _take_back(self, panel: Index, vector: Value, sums: Pointer, splits: int) -> None:
        """The sums of one panel and one vector of the source's channels to the results."""
        form, builder, indices, layout = self.form, self.builder, self.indices, self.layout
        lanes, tile = form.tile.lanes, form.tile
        kernel = taps_kernel(self.code.module, form.side, lanes)
        turn = transpose_kernel(self.code.module, lanes)
        _, width = width_of(builder, form, panel)
        channel = builder.mul(vector, i64(lanes))
        channels = minimum(builder, builder.sub(i64(form.channels), channel), i64(lanes))
        row = builder.mul(channel, i64(TAPS))
        length = builder.mul(channels, i64(TAPS))

        def columns(at: Value, _: Sequence[Value]) -> None:
            out = builder.add(i64(indices.mul(panel, tile.width)), at)
            count = minimum(builder, builder.sub(i64(form.out), out), i64(lanes))

            def emit_channel(i: Value, _: Sequence[Value]) -> None:
                read = offset(builder, sums, DTYPE, builder.mul(i, i64(tile.width)), at)
                write = offset(builder, self.taps, DTYPE, builder.mul(i, i64(TAPS * lanes)))
                distances = i64(layout.split), i64(lanes * tile.width)
                builder.call(kernel, [i64(splits), read, *distances, write])

            loop(builder, i64(0), channels, 1, emit_channel)

            builder.call(turn, [length, self.taps, self.transposed, i64(layout.run)])

            def emit_unit(number: Value, _: Sequence[Value]) -> None:
                line = offset(builder, self.transposed, DTYPE, builder.mul(number, i64(layout.run)))

                def piece(address: Value, _: Sequence[Value]) -> None:
                    mask = lane_mask(builder, builder.sub(length, address), lanes)
                    values = load(builder, offset(builder, line, DTYPE, address), DTYPE, lanes)
                    index = [builder.add(out, number), builder.add(row, address)]
                    self.finish.emit(self.code, values, index, lanes, mask)

                loop(builder, i64(0), length, lanes, piece)

            loop(builder, i64(0), count, 1, emit_unit)

        loop(builder, i64(0), i64(width), lanes, columns)
