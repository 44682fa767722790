"""Blocks of pixels whose patches are read in place: some images, or a piece of one.

What the pixels of a block read is copied to planes (``planes``), some channels at a time. The offset of each pixel is written to a table; with the offset of each tap
it gives every element of every patch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from ....codegen.ir.emit import accumulator_of, ir, loop, minimum, offset
from ....codegen.ir.index import Index, i64
from ....codegen.ir.types import Pointer, Value
from ....codegen.problems.conv import Patches
from ....graph.integers import ceil_div, round_up
from ..emit.template import Code
from .pack import divided, unravelled, walk
from .planes import Channels, Copier, Grid


@dataclass(frozen=True)
class Blocks:
    """How pixels are cut.

    Attributes:
        patches: of whose pixels.
        grid: their places.
        images: of a block.
        pieces: blocks of an image, where a block has one.
        length: pixels of a block, unless it is the last.
    """

    patches: Patches
    grid: Grid
    images: int
    pieces: int
    length: int

    @property
    def count(self) -> int:
        """How many there are."""
        return ceil_div(self.patches.batch, self.images) * self.pieces

    @property
    def lengths(self) -> tuple[int, ...]:
        """The pixels that blocks have."""
        patches = self.patches
        if self.images > 1:
            last = (patches.batch - 1) % self.images + 1
            return tuple(dict.fromkeys((self.length, last * patches.pixels)))
        return tuple(dict.fromkeys((self.length, (patches.pixels - 1) % self.length + 1)))

    @property
    def span(self) -> int:
        """Places from the first pixel of a block to its last, at the most."""
        if self.images > 1:
            return self.images * self.grid.image
        sizes, pitches = self.patches.result, self.grid.pitches
        total, whole = self.length, 1
        for axis in range(len(sizes) - 1, -1, -1):
            gap = (pitches[axis] - sizes[axis]) * prod(pitches[axis + 1 :])
            whole += (sizes[axis] - 1) * prod(pitches[axis + 1 :])
            if axis:
                # So often may the pixels of a block go on in the next row, or plane.
                total += ceil_div(self.length - 1, prod(sizes[axis:])) * gap
        return min(total, whole)

    def plane(self, size: int, lanes: int) -> int:
        """Elements of ``size`` bytes from one plane to the next: an odd number of lines, so that planes do not fall into the same sets of the cache."""
        line = 64 // size
        return (ceil_div(self.span + self.grid.halo + lanes, line) | 1) * line

    def bounds(self, code: Code, index: Value) -> tuple[Value, Value]:
        """The first pixel of a block, of all images, and the one after its last."""
        builder, indices, pixels = code.builder, code.indices, self.patches.pixels
        if self.images == 1:
            image, piece = divided(builder, index, self.pieces)
            start = indices.mul(image, pixels)
            first = i64(indices.add(start, indices.mul(piece, self.length)))
            end = i64(indices.add(start, pixels))
        else:
            first = builder.mul(index, i64(self.length))
            end = i64(self.patches.batch * pixels)
        return first, minimum(builder, builder.add(first, i64(self.length)), end)


def blocks_of(patches: Patches, grid: Grid, longest: int, whole: int) -> Blocks:
    """Blocks of at most ``longest`` pixels, or a little more for a multiple of ``whole``."""
    if patches.pixels < longest:
        images = max(1, min(patches.batch, longest // max(1, patches.pixels)))
        return Blocks(patches, grid, images, 1, images * patches.pixels)
    each = ceil_div(patches.pixels, ceil_div(patches.pixels, longest))
    length = min(round_up(each, whole), patches.pixels)
    return Blocks(patches, grid, 1, ceil_div(patches.pixels, length), length)


class ReaderRoom(NamedTuple):
    """Memory that blocks are prepared in.

    Attributes:
        planes: for the planes of some channels.
        plane: elements from one to the next.
        table: for how far behind the first pixel of a block each lies, a 64-bit number for each.
    """

    planes: Pointer
    plane: int
    table: Pointer


class Reader:
    """The code that prepares blocks.

    Args:
        code: of the kernel.
        blocks: how pixels are cut.
        dtype: how images are stored.
        lanes: of a vector of their accumulator.
        room: the memory it writes to.
    """

    def __init__(
        self,
        code: Code,
        blocks: Blocks,
        dtype: str,
        lanes: int,
        room: ReaderRoom,
    ) -> None:
        self.code, self.blocks, self.dtype = code, blocks, dtype
        self.planes, self.plane, self.table = room
        patches = blocks.patches
        self.copier = Copier(code.builder, blocks.grid, patches.batch, dtype, lanes)

    def write_offsets(self, first: Value, stop: Value) -> Value:
        """Write down how far behind the first pixel of a block each lies; returns the place of the first."""
        builder, indices = self.code.builder, self.code.indices
        patches, pitches = self.blocks.patches, self.blocks.grid.pitches
        word = ir().IntType(64)

        def offset_at(pixel: Value) -> Index:
            image, index = unravelled(builder, pixel, patches.result)
            return indices.offset([image, *index], [patches.batch, *pitches])

        start = i64(offset_at(first))

        def row(pixel: Value, held: Value) -> tuple[Value, Value]:
            _, column = divided(builder, pixel, patches.result[-1])
            left = builder.sub(i64(patches.result[-1]), i64(column))
            length = minimum(builder, left, builder.sub(stop, pixel))
            here = builder.sub(i64(offset_at(pixel)), start)
            to = builder.sub(pixel, first)

            def emit_element(i: Value, _: Sequence[Value]) -> None:
                address = builder.gep(self.table, [builder.add(to, i)], source_etype=word)
                builder.store(builder.add(here, i), address)

            loop(builder, i64(0), length, 1, emit_element)
            return builder.add(pixel, length), held

        walk(builder, first, stop, row, i64(0))
        return start

    def copy(self, source: Pointer, count: Value, start: Value) -> None:
        """Copy what the pixels of a block meet in ``count`` channels of ``source``; ``start`` is the place of the first pixel."""
        builder, blocks, grid = self.code.builder, self.blocks, self.blocks.grid
        accumulator = accumulator_of(self.dtype)
        for number, plane in enumerate(grid.planes):
            self.copier.copy(
                Channels(plane, blocks.patches.sizes, blocks.patches.image, source),
                count,
                (builder.sub(start, i64(grid.before)), blocks.span + grid.halo),
                offset(builder, self.planes, accumulator, number * self.plane),
                len(grid.planes) * self.plane,
            )
