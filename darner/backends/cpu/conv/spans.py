"""Taps that some pixels meet: near the edge of an image those of the first axis that lie outside of it are left out.

Pixels of a block are taken in the order of that axis, those of all its images together, so that a tile has pixels which the same taps meet. Terms of the product are
taken in the order of the taps of the axis, so that those which a tile needs lie side by side: a few tables say where they are.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

from ....codegen.ir.emit import i64, ir, loop, maximum, minimum
from ....codegen.ir.index import Number, as_value
from ....codegen.problems.conv import Patches
from ..emit.template import Code
from .blocks import Blocks
from .pack import divided, place_of

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

    def __init__(self, code: Code, blocks: Blocks, rows: int, table: Any, ranks: Any) -> None:
        self.code, self.builder, self.blocks, self.rows = code, code.builder, blocks, rows
        self.table, self.ranks = table, ranks
        self.patches = blocks.patches
        self.inner = prod(self.patches.result[1:])

    def write(self, first: Any, stop: Any, places: Any) -> Any:
        """Write down what the tiles of a block need, and the places of its pixels; returns the place of the first."""
        builder, whole = self.builder, self.blocks.images > 1
        numbers = self.code.places
        pixels = self.patches.pixels
        images: Number = builder.udiv(builder.sub(stop, first), i64(pixels)) if whole else 1
        begin: Number = 0 if whole else divided(builder, first, pixels)[1]
        each = numbers.mul(images, self.inner)

        def tile(at: Any, _: Any) -> None:
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
        return self._places(first, stop, images, places)

    def _met(self, row: Number) -> tuple[Any, Any]:
        """As ``met``, for a number of the code."""
        builder, patches, numbers = self.builder, self.patches, self.code.places
        taps, delta = patches.phases[0].axes[0], patches.deltas[0]
        corner = as_value(numbers.add(numbers.mul(row, patches.steps[0]), taps.offset))
        before, behind = builder.neg(corner), builder.sub(i64(patches.sizes[0] - 1), corner)
        if delta < 0:
            before, behind = builder.neg(behind), corner
        size = abs(delta)
        low = builder.udiv(maximum(builder, builder.add(before, i64(size - 1)), i64(0)), i64(size))
        high = builder.udiv(maximum(builder, builder.add(behind, i64(size)), i64(0)), i64(size))
        high = minimum(builder, high, i64(taps.count))
        return minimum(builder, low, high), high

    def _rank(self, images: Number) -> None:
        """Where the pixels of a block's first image come."""
        builder, numbers = self.builder, self.code.places

        def pixel(at: Any, _: Any) -> None:
            row, inner = divided(builder, at, self.inner)
            rank = numbers.add(numbers.mul(numbers.mul(row, images), self.inner), inner)
            self._store(as_value(rank), self.ranks, at)

        loop(builder, i64(0), i64(self.patches.pixels), 1, pixel)

    def _places(self, first: Any, stop: Any, images: Number, table: Any) -> Any:
        """Write down how far behind the first pixel of a block each lies, in the order of tiles; returns the place of the first."""
        builder, numbers, patches = self.builder, self.code.places, self.patches
        pitches = self.blocks.grid.pitches

        def place_at(pixel: Number) -> Any:
            image, index = place_of(builder, pixel, patches.result)
            return as_value(numbers.offset([image, *index], [patches.batch, *pitches]))

        start = place_at(first)

        def one(at: Any, _: Any) -> None:
            pixel: Number = at
            if self.blocks.images > 1:
                rest, inner = divided(builder, at, self.inner)
                row, image = divided(builder, rest, images)
                line = numbers.add(numbers.mul(image, patches.result[0]), row)
                pixel = numbers.add(numbers.mul(line, self.inner), inner)
            here = place_at(numbers.add(first, pixel))
            self._store(builder.sub(here, start), table, at)

        loop(builder, i64(0), builder.sub(stop, first), 1, one)
        return start

    def span(self, row: Any) -> tuple[Any, Any]:
        """The first tap that the tile of a block's ``row``-th pixel needs, and the one after the last."""
        pair = self.builder.mul(self.builder.udiv(row, i64(self.rows)), i64(2))
        return self._load(self.table, pair), self._load(self.table, self.builder.add(pair, i64(1)))

    def rank(self, image: Number, pixel: Number) -> Any:
        """Where a pixel of one of a block's images comes."""
        before = self._load(self.ranks, as_value(pixel))
        return self.builder.add(before, as_value(self.code.places.mul(image, self.inner)))

    def order(self, count: Any, taps: int, terms: Any, tables: list[tuple[Any, int]]) -> None:
        """Write the terms of ``count`` channels in the order of the first axis: each of ``tables`` gets their rows in a panel of that width, the first what ``terms`` says."""
        builder = self.builder
        outer = self.patches.kernel[0]
        inner = taps // outer
        (places, _), *panels = tables

        def tap(t: Any, _: Any) -> None:
            def channel(c: Any, _: Any) -> None:
                old = builder.add(builder.mul(c, i64(taps)), builder.mul(t, i64(inner)))
                new = builder.mul(builder.add(builder.mul(t, count), c), i64(inner))

                def one(i: Any, _: Any) -> None:
                    term, to = builder.add(old, i), builder.add(new, i)
                    self._store(self._load(terms, term), places, to)
                    for table, width in panels:
                        self._store(builder.mul(term, i64(width)), table, to)

                loop(builder, i64(0), i64(inner), 1, one)

            loop(builder, i64(0), count, 1, channel)

        loop(builder, i64(0), i64(outer), 1, tap)

    def _load(self, table: Any, at: Any) -> Any:
        word = ir().IntType(64)
        return self.builder.load(self.builder.gep(table, [at], source_etype=word), typ=word)

    def _store(self, value: Any, table: Any, at: Any) -> None:
        place = self.builder.gep(table, [at], source_etype=ir().IntType(64))
        self.builder.store(as_value(value), place)
