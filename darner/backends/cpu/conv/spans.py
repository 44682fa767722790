"""Which taps some pixels need: near the edge of an image, taps of the first axis that lie outside are skipped.

Pixels of a block are ordered along that axis, over all its images, so that the pixels of a tile need the same taps. Terms of the product are
ordered by the taps of that axis, so that those which a tile needs are contiguous. Tables say where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from ....codegen.ir.emit import ir, loop, maximum, minimum
from ....codegen.ir.index import Index, i64
from ....codegen.ir.types import Pointer, Value
from ....codegen.problems.conv import Patches
from ..emit.template import Code
from .blocks import Blocks
from .pack import divided, unravelled

WORTH = 0.95
"""The share of all taps that may be met at the most for the rest to be left out."""
LONG = 64
"""Pixels of the same taps from which on tiles that have others too are few."""


def met(patches: Patches, row: int) -> tuple[int, int]:
    """The first tap of the first axis that meets pixels of a row, and the one after the last."""
    (phase,) = patches.phases
    taps = phase.axes[0]
    corner = row * patches.steps[0] + taps.offset
    inside = [
        tap for tap in range(taps.count) if 0 <= corner + tap * patches.deltas[0] < patches.sizes[0]
    ]
    return (inside[0], inside[-1] + 1) if inside else (0, 0)


@lru_cache(maxsize=256)
def share_of_taps(patches: Patches, images: int, rows: int) -> float:
    """The share of all taps that tiles of so many pixels need, of blocks of so many images."""
    height, count = patches.result[0], patches.phases[0].axes[0].count
    spans = [met(patches, y) for y in range(height)]
    each = images * prod(patches.result[1:])
    if each >= LONG:
        return sum(high - low for low, high in spans) / (height * count)
    starts = range(0, height * each, rows)
    needed = 0
    for start in starts:
        of_tile = spans[start // each : (min(start + rows, height * each) - 1) // each + 1]
        needed += max(high for _, high in of_tile) - min(low for low, _ in of_tile)
    return needed / (len(starts) * count)


class Spans:
    """The code that says which terms tiles need.

    Args:
        code: of the kernel.
        blocks: of pixels.
        rows: pixels of a tile.
        table: memory for two numbers of 64 bits for each tile of a block.
        ranks: memory for such a number for each pixel of an image.
    """

    def __init__(
        self, code: Code, blocks: Blocks, rows: int, table: Pointer, ranks: Pointer
    ) -> None:
        self.code, self.builder, self.blocks, self.rows = code, code.builder, blocks, rows
        self.table, self.ranks = table, ranks
        self.patches = blocks.patches
        self.inner = prod(self.patches.result[1:])

    def write(self, first: Value, stop: Value, addresses: Pointer) -> Value:
        """Write down what the tiles of a block need, and the places of its pixels; returns the place of the first."""
        builder, whole = self.builder, self.blocks.images > 1
        numbers = self.code.indices
        pixels = self.patches.pixels
        images: Index = builder.udiv(builder.sub(stop, first), i64(pixels)) if whole else 1
        begin: Index = 0 if whole else divided(builder, first, pixels)[1]
        each = numbers.mul(images, self.inner)

        def tile(at: Value, _: Sequence[Value]) -> None:
            end = minimum(builder, builder.add(at, i64(self.rows)), builder.sub(stop, first))
            ends = at, builder.sub(end, i64(1))
            found = [self._met(divided(builder, numbers.add(begin, q), each)[0]) for q in ends]
            (low, high), (other, most) = found
            pair = builder.mul(builder.udiv(at, i64(self.rows)), i64(2))
            self._store(minimum(builder, low, other), self.table, pair)
            self._store(maximum(builder, high, most), self.table, builder.add(pair, i64(1)))

        loop(builder, i64(0), builder.sub(stop, first), self.rows, tile)
        if whole:
            self._rank(images)
        return self._write_offsets(first, stop, images, addresses)

    def _met(self, row: Index) -> tuple[Value, Value]:
        """As ``met``, for a number of the code."""
        builder, patches, numbers = self.builder, self.patches, self.code.indices
        taps, delta = patches.phases[0].axes[0], patches.deltas[0]
        corner = i64(numbers.add(numbers.mul(row, patches.steps[0]), taps.offset))
        before, behind = builder.neg(corner), builder.sub(i64(patches.sizes[0] - 1), corner)
        if delta < 0:
            before, behind = builder.neg(behind), corner
        size = abs(delta)
        low = builder.udiv(maximum(builder, builder.add(before, i64(size - 1)), i64(0)), i64(size))
        high = builder.udiv(maximum(builder, builder.add(behind, i64(size)), i64(0)), i64(size))
        high = minimum(builder, high, i64(taps.count))
        return minimum(builder, low, high), high

    def _rank(self, images: Index) -> None:
        """Where the pixels of a block's first image come."""
        builder, numbers = self.builder, self.code.indices

        def pixel(at: Value, _: object) -> None:
            row, inner = divided(builder, at, self.inner)
            rank = numbers.add(numbers.mul(numbers.mul(row, images), self.inner), inner)
            self._store(i64(rank), self.ranks, at)

        loop(builder, i64(0), i64(self.patches.pixels), 1, pixel)

    def _write_offsets(self, first: Value, stop: Value, images: Index, table: Pointer) -> Value:
        """Write down how far behind the first pixel of a block each lies, in the order of tiles; returns the place of the first."""
        builder, numbers, patches = self.builder, self.code.indices, self.patches
        pitches = self.blocks.grid.pitches

        def offset_at(pixel: Index) -> Value:
            image, index = unravelled(builder, i64(pixel), patches.result)
            return i64(numbers.offset([image, *index], [patches.batch, *pitches]))

        start = offset_at(first)

        def emit_vector(at: Value, _: Sequence[Value]) -> None:
            pixel: Index = at
            if self.blocks.images > 1:
                rest, inner = divided(builder, at, self.inner)
                row, image = divided(builder, rest, images)
                line = numbers.add(numbers.mul(image, patches.result[0]), row)
                pixel = numbers.add(numbers.mul(line, self.inner), inner)
            here = offset_at(numbers.add(first, pixel))
            self._store(builder.sub(here, start), table, at)

        loop(builder, i64(0), builder.sub(stop, first), 1, emit_vector)
        return start

    def span(self, row: Value) -> tuple[Value, Value]:
        """The first tap that the tile of a block's ``row``-th pixel needs, and the one after the last."""
        pair = self.builder.mul(self.builder.udiv(row, i64(self.rows)), i64(2))
        return self._load(self.table, pair), self._load(self.table, self.builder.add(pair, i64(1)))

    def rank(self, image: Index, pixel: Index) -> Value:
        """Where a pixel of one of a block's images comes."""
        before = self._load(self.ranks, i64(pixel))
        return self.builder.add(before, i64(self.code.indices.mul(image, self.inner)))

    def order(
        self, count: Value, taps: int, terms: Pointer, tables: list[tuple[Pointer, int]]
    ) -> None:
        """Write the terms of ``count`` channels in the order of the first axis: each of ``tables`` gets their rows in a panel of that width, the first what ``terms`` says."""
        builder = self.builder
        outer = self.patches.kernel[0]
        inner = taps // outer
        (places, _), *panels = tables

        def tap(t: Value, _: Sequence[Value]) -> None:
            def channel(c: Value, _: Sequence[Value]) -> None:
                old = builder.add(builder.mul(c, i64(taps)), builder.mul(t, i64(inner)))
                new = builder.mul(builder.add(builder.mul(t, count), c), i64(inner))

                def emit_element(i: Value, _: Sequence[Value]) -> None:
                    term, to = builder.add(old, i), builder.add(new, i)
                    self._store(self._load(terms, term), places, to)
                    for table, width in panels:
                        self._store(builder.mul(term, i64(width)), table, to)

                loop(builder, i64(0), i64(inner), 1, emit_element)

            loop(builder, i64(0), count, 1, channel)

        loop(builder, i64(0), i64(outer), 1, tap)

    def _load(self, table: Pointer, at: Value) -> Value:
        word = ir().IntType(64)
        return self.builder.load(self.builder.gep(table, [at], source_etype=word), typ=word)

    def _store(self, value: Value, table: Pointer, at: Value) -> None:
        address = self.builder.gep(table, [at], source_etype=ir().IntType(64))
        self.builder.store(i64(value), address)
