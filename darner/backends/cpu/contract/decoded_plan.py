"""Which path products take whose B is decoded, and how tiles are cut whose sums stay in registers meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ....codegen.ir.types import STORAGE_BYTES
from ....graph.integers import ceil_div, round_up
from ..model import CpuModel
from .tile import Tile

if TYPE_CHECKING:
    from .plan import Contraction

# Shares of caches (``CpuModel``).
FROM_MEMORY = 1 / 2
"""Of the last caches, the elements from which on a B comes from memory."""
SUMS_HELD = 1 / 8
"""Of the cache next to a core, the sums of one block of terms that wait for the next."""

# What follows are properties of the code, the same on all processors.
MOST_DOT_ROWS = 16
"""The most rows that dot products are made of with columns whose terms are decoded side by side."""
DOT_ROWS_ALONE, DOT_ROWS_OF_MANY = 8, 5
"""The most rows of such products that are made at a time, where these are all rows and where there are more."""
FEWEST_DOT_ROWS = 3
"""From so many rows on, several columns are taken at a time: a vector of A then serves them all."""
FEWEST_IN_REGISTERS, FEWEST_FROM_MEMORY = 3, 5
"""From so many rows on, tiles of sums stay in registers; for fewer, rows of B stream past sums in the nearest cache. The second number is for a B that comes from memory."""
MOST_IN_REGISTERS = 384
"""The most rows of which such tiles are made; of more, decoding takes a small part of the time."""
ROWS_ALONE, ROWS_OF_MANY = 12, 8
"""The most rows of such a tile, where one has them all and where there are several. Those of A are read as they lie: more would drive each other out of the nearest cache."""
BESIDE, MOST_VECTORS = 2, 4
"""Registers that each vector of a tile takes beside its sums, and the most vectors of a tile, or columns of dot products."""
TERMS = 256
"""Rows of B that are decoded of all columns before the next: enough for few sums to wait, and few enough for memory to be read on and on."""


def decoded_path(contraction: Contraction, tile: Tile, model: CpuModel) -> str:
    """The path of a product of a few rows with a B that is decoded, where packing panels of it would take longer; none of others.

    It is ``dots`` where terms lie side by side; where columns do, ``rows``, or ``registers``, where tiles of sums stay in registers.
    """
    m = contraction.m
    if not contraction.decoded or contraction.strided_terms or tile.lanes == 1:
        return ""
    if min(m, contraction.k) == 0 or m > MOST_IN_REGISTERS:
        return ""
    if contraction.decoded % tile.lanes == 0:
        return "dots" if m <= MOST_DOT_ROWS else ""
    if contraction.b_strides[2] != 1 or contraction.n <= tile.lanes:
        return ""
    far = contraction.k * contraction.n > model.of_last(FROM_MEMORY)
    return "rows" if m < (FEWEST_FROM_MEMORY if far else FEWEST_IN_REGISTERS) else "registers"


def in_registers(contraction: Contraction, usual: Tile, model: CpuModel) -> tuple[Tile, int, int]:
    """The tile of sums in registers, the terms of a block, and the columns whose sums wait for the next; ``usual`` is the tile of other products."""
    tile = decoded_tile(contraction.m, usual)
    blocks = ceil_div(contraction.k, TERMS)
    block = contraction.whole_terms(ceil_div(contraction.k, blocks), tile.lanes)
    held = model.of_l2(SUMS_HELD) // (contraction.m * STORAGE_BYTES["f32"]) // tile.width
    chunk = min(round_up(contraction.n, tile.lanes), max(1, held) * tile.width)
    return tile, min(block, contraction.k), chunk


def decoded_tile(m: int, usual: Tile) -> Tile:
    """The tile of sums that stay in registers beside what is decoded: as few of them as rows need, and as even.

    >>> [(tile.rows, tile.vectors) for tile in (decoded_tile(m, Tile(8, 3, 16)) for m in (3, 8, 12, 16, 33))]
    [(3, 4), (8, 2), (12, 2), (8, 2), (7, 3)]
    >>> [(tile.rows, tile.vectors) for tile in (decoded_tile(m, Tile(6, 2, 8)) for m in (3, 5, 12, 16))]
    [(3, 2), (5, 2), (12, 1), (8, 1)]
    """
    most = ROWS_ALONE if m <= ROWS_ALONE else ROWS_OF_MANY
    rows = ceil_div(m, ceil_div(m, most))
    sums = usual.rows * usual.vectors
    vectors = (sums + sums // 6) // (rows + BESIDE)
    return Tile(rows, max(1, min(MOST_VECTORS, vectors)), usual.lanes)


class Dots(NamedTuple):
    """Rows and columns whose dot products are made at a time."""

    rows: int
    columns: int


def decoded_dots(m: int, parts: int, usual: Tile) -> Dots:
    """How many are, of ``m`` rows, where ``parts`` vectors of a column are decoded together; ``usual`` is the tile of other products.

    >>> [tuple(decoded_dots(m, 2, Tile(8, 3, 16))) for m in (1, 3, 6, 8, 12, 16)]
    [(1, 1), (3, 4), (6, 3), (8, 2), (4, 4), (4, 4)]
    """
    most = DOT_ROWS_ALONE if m <= DOT_ROWS_ALONE else DOT_ROWS_OF_MANY
    rows = ceil_div(m, ceil_div(m, most))
    sums = usual.rows * usual.vectors
    columns = (sums + sums // 12) // (rows + parts) if m >= FEWEST_DOT_ROWS else 1
    return Dots(rows, max(1, min(MOST_VECTORS, columns)))
