"""Which block of threads computes which tile of a product."""

from __future__ import annotations

from dataclasses import dataclass

from ....codegen.ir.index import Number
from ....codegen.simt.builder import Simt, Value
from ....codegen.simt.contract.product import Product
from ....graph.integers import ceil_div

RASTER = 8
"""Tiles down that blocks which run together go through before they go across: they read a compact part of both operands."""


@dataclass(frozen=True)
class Place:
    """Which part of a product is computed: a part of the sums, a matrix of the batch, and the first row and column."""

    part: Value
    batch: Number
    row: Value
    column: Value


@dataclass(frozen=True)
class Raster:
    """The order of a product's tiles.

    Attributes:
        down: tiles along the rows.
        across: tiles along the columns.
        count: matrices of the batch.
        parts: parts of each sum.
        bm: rows of a tile.
        bn: columns of a tile.
    """

    down: int
    across: int
    count: int
    parts: int
    bm: int
    bn: int

    @staticmethod
    def of(product: Product, bm: int, bn: int, parts: int = 1) -> Raster:
        """That of a product's tiles of so many rows and columns."""
        down, across = ceil_div(product.m, bm), ceil_div(product.n, bn)
        return Raster(down, across, product.count, parts, bm, bn)

    @property
    def tiles(self) -> int:
        """Tiles in all."""
        return self.down * self.across * self.count * self.parts

    def place(self, b: Simt, number: Value) -> Place:
        """What the tile of a number is."""
        each = self.down * self.across
        tile, rest = b.let(number % each), b.let(number // each)
        top = b.let(tile // (self.across * RASTER) * RASTER, "top")
        high = b.let(b.min(self.down - top, RASTER))
        within = b.let(tile - top * self.across)
        row, column = b.let(top + within % high), b.let(within // high)
        batch: Number = b.let(rest % self.count, "matrix") if self.count > 1 else 0
        part = b.let(rest // self.count, "part")
        return Place(part, batch, b.let(row * self.bm, "row0"), b.let(column * self.bn, "column0"))

    def blocks(self, b: Simt, part: Value, total: int) -> tuple[Value, Value]:
        """The first of a part's blocks of terms, of ``total``, and the one after its last."""
        if self.parts == 1:
            return b.index(0), b.index(total)
        each = ceil_div(total, self.parts)
        first = b.let(part * each, "first")
        return first, b.let(b.min(first + each, total), "last")
