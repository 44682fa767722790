"""Products of matrices in tiles: what of them is the same whatever the operands are.

A workgroup computes a tile of rows x columns. Step by step, ``depth`` rows of both operands come into shared memory, and every thread multiplies what it needs of them into
sums that it keeps in registers as named vectors. Where an operand's elements come from is a ``Loader``'s business: it fetches those of the next step into registers
while the present one is multiplied. At the end the sums go through shared memory once more, so that neighbouring threads have neighbouring columns.

    tiles = Tiles(dispatch, tile, dtypes.f32)
    tiles.run(first, last, [loader_of_rows, loader_of_columns])
    tiles.give(together, before, write_row, elements)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ....graph.dtypes import DType
from ...ir.index import Number
from ..builder import Memory, Simt, Value, Variable
from ..dispatch import Dispatch
from ..elements import ThreadElements

Found = TypeVar("Found")


@dataclass(frozen=True)
class Tile:
    """A workgroup's part of a product.

    Attributes:
        rows: of the product.
        columns: of it.
        depth: rows of both operands that are in shared memory together.
        high: rows that a thread has, a multiple of 4.
        wide: columns that it has, a multiple of 4.
        rate: of the multiplications that a GPU can do, how many it does with such tiles.
        beside: threads of 32 that run in step that stand side by side along the columns; 0 for as many as there are.
    """

    rows: int
    columns: int
    depth: int
    high: int
    wide: int
    rate: float
    beside: int = 0

    @property
    def threads(self) -> int:
        """Of a workgroup."""
        return (self.rows // self.high) * (self.columns // self.wide)

    def nbytes(self, dtype: DType, pad: int) -> int:
        """Shared memory; ``pad`` are vectors behind each row, so that threads that write below each other find other banks."""
        return self.depth * (self.rows + self.columns + 8 * pad) * dtype.itemsize


class Loader(Protocol):
    """What brings an operand into shared memory."""

    def fetch(self, step: Value) -> None:
        """Read the elements of a step into registers; steps come one after the other."""

    def put(self) -> None:
        """Write these to shared memory."""


@dataclass(frozen=True)
class Source:
    """Where an element is read from: a place in memory, and whether there is one (None: always).

    What lies there where there is none is not read, unless that is ``safe``.
    """

    memory: Memory
    at: Number
    inside: Value | None = None
    safe: bool = False


class Tiles:
    """The tile of a workgroup in the code of a dispatch.

    Attributes:
        rows: the part of the first operand in shared memory, as [row of the step, vector of rows].
        columns: that of the second.
    """

    def __init__(self, dispatch: Dispatch, tile: Tile, kept: DType, pad: int = 0) -> None:
        self.dispatch, self.tile, self.kept = dispatch, tile, kept
        self.builder: Simt = dispatch.builder
        self.rows, self.columns = (
            self.builder.shared(kept, (tile.depth, count // 4 + pad), name, width=4)
            for name, count in (("rows_tile", tile.rows), ("columns_tile", tile.columns))
        )
        self.across = tile.columns // tile.wide
        self.down = tile.rows // tile.high
        self.sums: list[list[Variable]] = []

    def load(self, e: ThreadElements, register: Variable, source: Source) -> None:
        """Read an element into a variable: 0 where there is none."""
        at, inside, dtype = source.at, source.inside, source.memory.dtype
        if inside is not None and not source.safe:
            at = e.builder.select(inside, e.places.plain(at), e.places.plain(0))
        value = e.registers.cast(e.registers.load(source.memory, at, dtype), dtype, self.kept)
        if inside is not None:
            value = e.builder.choose(inside, value, 0.0)
        register.set(value)

    def _threads(self) -> None:
        """Where a thread's vectors begin: 32 that run in step share rows and columns as much as they can."""
        b, across, beside = self.builder, self.across, self.tile.beside or self.across
        column = b.local // 32 % (across // beside) * beside + b.local % beside
        self.own_column = b.let(column, "own_column")
        high = 32 // beside if beside < across else 0
        row = b.local // across
        if high:
            row = b.local // (32 * (across // beside)) * high + b.local % 32 // beside
        self.own_row = b.let(row, "own_row")

    def run(
        self,
        first: Number,
        last: Number,
        loaders: Sequence[Loader],
        prepare: Callable[[Number], None] | None = None,
    ) -> None:
        """All products of the steps from ``first`` to before ``last``; ``prepare`` writes to shared memory what fetching a step needs."""
        b, tile = self.builder, self.tile
        self._threads()
        if prepare is not None:
            prepare(first)
            b.barrier()
        self.sums = [
            [b.variable(0, f"sum{i}_{j}", self.kept, width=4) for j in range(tile.wide // 4)]
            for i in range(tile.high)
        ]
        # One pass more than there are steps: each fetches for the next while it multiplies what the one before put down.
        steps = b.iterate(first, lambda step: step <= last, lambda step: step + 1, "step")
        with steps as step:
            with b.if_(step < last):
                for loader in loaders:
                    loader.fetch(step)
            with b.if_(step > first):
                self._multiply()
            b.barrier()
            with b.if_(step < last):
                for loader in loaders:
                    loader.put()
                if prepare is not None:
                    prepare(step + 1)
            b.barrier()

    def _multiply(self) -> None:
        b, tile = self.builder, self.tile
        for k in range(tile.depth):
            rows = [self.rows[k, i * self.down + self.own_row] for i in range(tile.high // 4)]
            columns = [
                self.columns[k, j * self.across + self.own_column] for j in range(tile.wide // 4)
            ]
            for i, sums in enumerate(self.sums):
                for column, total in zip(columns, sums, strict=True):
                    total.set(b.fma(rows[i // 4][i % 4], column, total))

    def give(
        self,
        together: int,
        before: Callable[[Value], Found],
        write_row: Callable[[Found, Value, list[Value]], None],
        elements: ThreadElements,
    ) -> None:
        """``write_row(before(column), row, sums)`` for all sums of the tile, ``together`` neighbouring columns at a time.

        The columns of a thread do not change, so ``before`` is written once. Rows and columns count from the tile's first.
        """
        tile, b, places, held = self.tile, self.builder, elements.places, self.columns
        lanes = tile.columns // together
        column = b.index(places.mul(b.let(b.local % lanes), together))
        found = before(column)
        start = b.let(b.local // lanes)

        def put(i: int) -> None:
            for j, total in enumerate(self.sums[i]):
                held[self.own_row, j * self.across + self.own_column] = total

        with b.for_(0, tile.high, name="turn") as turn:
            b.switch(turn, tile.high, put)
            b.barrier()
            with b.for_(start, self.down, tile.threads // lanes, name="part") as part:
                row = b.let(((turn >> 2) * self.down + part) * 4 + (turn & 3))
                values = []
                for k in range(together):
                    at = places.value(places.add(column, k))
                    values.append(held[part, at >> 2, at & 3])
                write_row(found, row, values)
            b.barrier()


class Share:
    """What each thread brings into one of the shared tiles: single elements, or vectors of 4 along the tile's axis.

    Neighbouring threads have neighbouring elements along the tile (``across``), or of the steps' axis (``deep``).

    Attributes:
        depths: for each of the thread's elements, which row of the step it is of.
        places: for each, which row or column of the tile it is of; of a vector, its number.
        first: what of these differs from element to element, of the thread's first: a number where it is known.
        shifts: how far that of each is from it.
    """

    def __init__(
        self, tiles: Tiles, memory: Memory, count: int, *, deep: bool = False, vector: int = 1
    ) -> None:
        self.memory, self.vector = memory, vector
        b, threads, depth = tiles.builder, tiles.tile.threads, tiles.tile.depth
        units = count // vector
        items = depth * units // threads
        fast = depth if deep else units
        same = b.let(b.local % fast)
        self.first: Number = 0 if threads == fast else b.let(b.local // fast)
        self.shifts = [i * (threads // fast) for i in range(items)]
        others: list[Number] = [self.first + shift for shift in self.shifts]
        if threads != fast:
            others = [
                b.let(other) if shift else self.first
                for other, shift in zip(others, self.shifts, strict=True)
            ]
        self.depths: list[Number] = [same] * items if deep else others
        self.places: list[Number] = others if deep else [same] * items
        self.registers = [
            b.variable(0, f"{memory.name}_{i}", tiles.kept, vector) for i in range(items)
        ]

    def put(self) -> None:
        """Write the registers to shared memory."""
        for k, place, register in zip(self.depths, self.places, self.registers, strict=True):
            if self.vector == 4:
                self.memory[k, place] = register
            else:
                self.memory[k, place >> 2, place & 3] = register
