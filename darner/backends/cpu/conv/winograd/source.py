"""The input transform of Winograd convolutions: rows of images are transposed so that vectors run over channels, and lines of squares are transformed from there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .....codegen.ir.emit import ir, loop, maximum, minimum, offset
from .....codegen.ir.index import Index, i64
from .....codegen.ir.types import STORAGE_BYTES, Builder, Function, Pointer, Value
from .....graph.integers import ceil_div, round_up
from ...contract.tile import MicroKernel, Tile
from ...emit.template import Code
from ..pack import divided
from .plan import Winograd
from .transforms import DTYPE, fill_kernel

SIZE = STORAGE_BYTES[DTYPE]


def in_lines(elements: int) -> int:
    """Bytes of so many elements, in whole cache lines."""
    return round_up(elements * SIZE, 64)


def moved(builder: Builder, pointer: Pointer, count: int) -> Pointer:
    """A pointer moved by some bytes."""
    return builder.gep(pointer, [i64(count)], source_etype=ir().IntType(8))


@dataclass(frozen=True)
class Images:
    """What squares are read from, and how.

    Attributes:
        form: the squares.
        channels: of an image.
        size: its height and width.
        low: rows and columns of zeros before it.
        reach: rows and columns that a square reads.
    """

    form: Winograd
    channels: int
    size: tuple[int, int]
    low: tuple[int, int]
    reach: int

    @property
    def vectors(self) -> int:
        """Vectors of channels."""
        return ceil_div(self.channels, self.form.tile.lanes)

    @property
    def _needed(self) -> int:
        return self.form.side * (self.form.across - 1) + self.reach

    @property
    def first(self) -> int:
        """The first column of the ring that is ever written: with one line across an image, zeros before it stay where they are."""
        return self.low[1] if self.form.parts == 1 else 0

    @property
    def copied(self) -> int:
        """Columns that are copied from there on."""
        if self.form.parts > 1:
            return self._needed
        return min(self.size[1], self._needed - self.first)

    @property
    def pitch(self) -> int:
        """Elements of a row of the ring."""
        lanes = self.form.tile.lanes
        columns = self.first + round_up(self.copied, lanes)
        return max(columns, self._needed) * lanes

    @property
    def ring_bytes(self) -> int:
        """Bytes of the ring of rows."""
        return in_lines(2 * self.form.side * self.pitch)


class Reader:
    """Code that transforms lines of squares.

    Args:
        code: where it goes.
        images: what is read.
        start: address of the first image.
        ring: memory of ``images.ring_bytes``, which no other reader uses.
        kernel: the transform: ``source_kernel`` or one like it.
    """

    def __init__(
        self, code: Code, images: Images, start: Pointer, ring: Pointer, kernel: Pointer | Function
    ) -> None:
        self.code, self.builder, self.indices = code, code.builder, code.indices
        self.images, self.form, self.start = images, images.form, start
        self.ring, self.kernel = ring, kernel

    def clear(self) -> None:
        """Write the zeros around what is copied, once."""
        builder, lanes = self.builder, self.form.tile.lanes
        zeros = ir().Constant(ir().VectorType(ir().FloatType(), lanes), None)

        def vector(at: Value, _: Sequence[Value]) -> None:
            builder.store(zeros, offset(builder, self.ring, DTYPE, at), align=SIZE)

        loop(builder, i64(0), i64(2 * self.form.side * self.images.pitch), lanes, vector)

    def transform(
        self,
        lines: tuple[Value, Value],
        vector: Index,
        target: Pointer,
        square_distance: Index,
        point_distance: Index,
    ) -> None:
        """The squares of some lines, of one vector of channels, to ``target``."""
        form, builder, indices, images = self.form, self.builder, self.indices, self.images
        lanes, (height, width) = form.tile.lanes, images.size
        channel = i64(indices.mul(vector, lanes))
        exist = minimum(builder, builder.sub(i64(images.channels), channel), i64(lanes))
        fill = fill_kernel(self.code.module, lanes)
        first, stop = lines

        def emit_line(line: Value, _: Sequence[Value]) -> None:
            image, part, down = position_of_line(builder, form, line)
            plane = indices.add(indices.mul(image, images.channels), channel)
            top = i64(indices.mul(down, form.side))
            # What the line above has read already is still there.
            fresh = builder.or_(
                builder.icmp_signed("==", line, first),
                builder.icmp_signed("==", i64(down), i64(0)),
            )
            begin = builder.select(fresh, i64(0), i64(images.reach - form.side))
            left = indices.sub(indices.mul(part, form.side * form.across), images.low[1])
            left = indices.add(left, images.first)

            def emit_row(i: Value, _: Sequence[Value]) -> None:
                row = builder.add(top, i)
                y = builder.sub(row, i64(images.low[0]))
                inside = builder.icmp_unsigned("<", y, i64(height))
                at = indices.add(
                    indices.mul(indices.add(indices.mul(plane, height), y), width), left
                )
                low = maximum(builder, i64(indices.sub(0, left)), i64(0))
                high = builder.select(inside, i64(indices.sub(width, left)), i64(0))
                slot = builder.mul(builder.and_(row, i64(2 * form.side - 1)), i64(images.pitch))
                to = offset(builder, self.ring, DTYPE, slot, images.first * lanes)
                read = offset(builder, self.start, DTYPE, i64(at))
                arguments = [i64(images.copied), low, high, exist, read, i64(height * width), to]
                builder.call(fill, arguments)

            loop(builder, begin, i64(images.reach), 1, emit_row)
            square = indices.mul(builder.sub(line, first), form.across)
            to = offset(builder, target, DTYPE, i64(indices.mul(square, square_distance)))
            distances = i64(square_distance), i64(point_distance)
            arguments = [i64(form.across), self.ring, i64(images.pitch), top, to, *distances]
            builder.call(self.kernel, arguments)

        loop(builder, first, stop, 1, emit_line)


def lines_of(builder: Builder, form: Winograd, block: Value) -> tuple[Value, Value]:
    """The first line of a block, and the one after its last."""
    first = builder.mul(block, i64(form.lines))
    return first, minimum(builder, builder.add(first, i64(form.lines)), i64(form.all_lines))


def position_of_line(builder: Builder, form: Winograd, line: Value) -> tuple[Index, Index, Index]:
    """The image, the part of the width, and the number from above of a line."""
    rest, down = divided(builder, line, form.down)
    image, part = divided(builder, rest, form.parts)
    return image, part, down


def width_of(builder: Builder, form: Winograd, panel: Index) -> tuple[Value | None, Index]:
    """Whether a panel is as wide as the tile (None where all are alike), and its width."""
    if form.last == form.tile:
        return None, form.tile.width
    if form.panels == 1:
        return None, form.last.width
    full = builder.icmp_signed("<", i64(panel), i64(form.panels - 1))
    return full, builder.select(full, i64(form.tile.width), i64(form.last.width))


def multiply(
    builder: Builder, form: Winograd, full: Value | None, reading: str, arguments: Sequence[Value]
) -> None:
    """One tile of a panel's products, by what ``width_of`` says of it; ``reading`` and ``arguments`` are those of ``MicroKernel``."""

    def call(tile: Tile) -> None:
        builder.call(MicroKernel(tile, DTYPE, reading).function(builder.module), arguments)

    if full is None:
        call(form.tile if form.panels > 1 else form.last)
        return
    with builder.if_else(full) as (whole, narrow):
        with whole:
            call(form.tile)
        with narrow:
            call(form.last)
