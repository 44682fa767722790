"""The way into Winograd's form: rows of images are turned so that vectors run over channels, and lines of squares are transformed from there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .....codegen.ir.emit import i64, ir, loop, maximum, minimum, offset
from .....codegen.ir.index import Number, as_value
from .....codegen.ir.types import STORAGE_BYTES
from ...contract.tile import Tile, tile_kernel
from ...emit.template import Code
from ..pack import divided
from .plan import Winograd
from .transforms import DTYPE, fill_kernel

SIZE = STORAGE_BYTES[DTYPE]


def in_lines(elements: int) -> int:
    """Bytes of so many elements, in whole cache lines."""
    return -(-elements * SIZE // 64) * 64


def moved(builder: Any, pointer: Any, count: int) -> Any:
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
        return -(-self.channels // self.form.tile.lanes)

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
        columns = self.first + -(-self.copied // lanes) * lanes
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

    def __init__(self, code: Code, images: Images, start: Any, ring: Any, kernel: Any) -> None:
        self.code, self.builder, self.places = code, code.builder, code.places
        self.images, self.form, self.start = images, images.form, start
        self.ring, self.kernel = ring, kernel

    def clear(self) -> None:
        """Write the zeros around what is copied, once."""
        builder, lanes = self.builder, self.form.tile.lanes
        zeros = ir().Constant(ir().VectorType(ir().FloatType(), lanes), None)

        def vector(at: Any, _: Any) -> None:
            builder.store(zeros, offset(builder, self.ring, DTYPE, at), align=SIZE)

        loop(builder, i64(0), i64(2 * self.form.side * self.images.pitch), lanes, vector)

    def transform(
        self,
        lines: tuple[Any, Any],
        vector: Number,
        target: Any,
        square_distance: Number,
        point_distance: Number,
    ) -> None:
        """The squares of some lines, of one vector of channels, to ``target``."""
        form, builder, places, images = self.form, self.builder, self.places, self.images
        lanes, (height, width) = form.tile.lanes, images.size
        channel = as_value(places.mul(vector, lanes))
        exist = minimum(builder, builder.sub(i64(images.channels), channel), i64(lanes))
        fill = fill_kernel(self.code.module, lanes)
        first, stop = lines

        def one_line(line: Any, _: Any) -> None:
            image, part, down = place_of_line(builder, form, line)
            plane = places.add(places.mul(image, images.channels), channel)
            top = as_value(places.mul(down, form.side))
            # What the line above has read already is still there.
            fresh = builder.or_(
                builder.icmp_signed("==", line, first),
                builder.icmp_signed("==", as_value(down), i64(0)),
            )
            begin = builder.select(fresh, i64(0), i64(images.reach - form.side))
            left = places.sub(places.mul(part, form.side * form.across), images.low[1])
            left = places.add(left, images.first)

            def one_row(i: Any, _: Any) -> None:
                row = builder.add(top, i)
                y = builder.sub(row, i64(images.low[0]))
                inside = builder.icmp_unsigned("<", y, i64(height))
                at = places.add(places.mul(places.add(places.mul(plane, height), y), width), left)
                low = maximum(builder, as_value(places.sub(0, left)), i64(0))
                high = builder.select(inside, as_value(places.sub(width, left)), i64(0))
                slot = builder.mul(builder.and_(row, i64(2 * form.side - 1)), i64(images.pitch))
                to = offset(builder, self.ring, DTYPE, slot, images.first * lanes)
                read = offset(builder, self.start, DTYPE, as_value(at))
                arguments = [i64(images.copied), low, high, exist, read, i64(height * width), to]
                builder.call(fill, arguments)

            loop(builder, begin, i64(images.reach), 1, one_row)
            square = places.mul(builder.sub(line, first), form.across)
            to = offset(builder, target, DTYPE, as_value(places.mul(square, square_distance)))
            distances = as_value(square_distance), as_value(point_distance)
            arguments = [i64(form.across), self.ring, i64(images.pitch), top, to, *distances]
            builder.call(self.kernel, arguments)

        loop(builder, first, stop, 1, one_line)


def lines_of(builder: Any, form: Winograd, block: Any) -> tuple[Any, Any]:
    """The first line of a block, and the one after its last."""
    first = builder.mul(block, i64(form.lines))
    return first, minimum(builder, builder.add(first, i64(form.lines)), i64(form.all_lines))


def place_of_line(builder: Any, form: Winograd, line: Any) -> tuple[Number, Number, Number]:
    """The image, the part of the width, and the number from above of a line."""
    rest, down = divided(builder, line, form.down)
    image, part = divided(builder, rest, form.parts)
    return image, part, down


def width_of(builder: Any, form: Winograd, panel: Number) -> tuple[Any, Number]:
    """Whether a panel is as wide as the tile (None where all are alike), and its width."""
    if form.last == form.tile:
        return None, form.tile.width
    if form.panels == 1:
        return None, form.last.width
    full = builder.icmp_signed("<", as_value(panel), i64(form.panels - 1))
    return full, builder.select(full, i64(form.tile.width), i64(form.last.width))


def multiply(
    builder: Any, form: Winograd, full: Any, reading: str, arguments: Sequence[Any]
) -> None:
    """One tile of a panel's products, by what ``width_of`` says of it; ``reading`` and ``arguments`` are those of ``tile_kernel``."""

    def call(tile: Tile) -> None:
        builder.call(tile_kernel(builder.module, tile, DTYPE, reading), arguments)

    if full is None:
        call(form.tile if form.panels > 1 else form.last)
        return
    with builder.if_else(full) as (whole, narrow):
        with whole:
            call(form.tile)
        with narrow:
            call(form.last)
