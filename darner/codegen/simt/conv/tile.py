"""Products of matrices in tiles: what of them is the same whatever the operands are.

A workgroup computes a tile of rows x columns. Step by step, ``depth`` rows of both operands come into shared memory, and every thread multiplies what it needs of them into
sums that it keeps in registers as named vectors. Where an operand's elements come from is a ``Loader``'s business: it fetches those of the next step into registers
while the present one is multiplied. At the end the sums go through shared memory once more, so that neighbouring threads have neighbouring columns.

    tiles = Tiles(shader, tile, dtypes.f32)
    tiles.run(first, last, [loader_of_rows, loader_of_columns])
    tiles.give(lambda row, column, values: ...)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ....backends.wgpu.text import Text
from ....graph import dtypes
from ....graph.dtypes import DType
from ...ir.index import Number
from ..builder import Memory
from ..dispatch import Dispatch
from ..elements import ThreadElements

ROWS, COLUMNS = "rows_tile", "columns_tile"
"""The operands' parts in shared memory."""


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

    def fetch(self, step: Text) -> None:
        """Read the elements of a step into registers; steps come one after the other."""

    def put(self) -> None:
        """Write these to shared memory."""


class Tiles:
    """The tile of a workgroup in the code of a shader."""

    def __init__(self, shader: Dispatch, tile: Tile, kept: DType, pad: int = 0) -> None:
        self.shader, self.tile, self.kept = shader, tile, kept
        self.writer = shader.builder
        self.scalar = "f64" if kept is dtypes.f64 else "f32"
        self.vector = f"vec4<{self.scalar}>"
        for name, count in ((ROWS, tile.rows), (COLUMNS, tile.columns)):
            kind = f"array<array<{self.vector}, {count // 4 + pad}>, {tile.depth}>"
            shader.text_shared(name, kind)
        self.across = tile.columns // tile.wide
        self.down = tile.rows // tile.high
        self.sums = [[f"sum{i}_{j}" for j in range(tile.wide // 4)] for i in range(tile.high)]

    @property
    def zero(self) -> str:
        """Nothing, as a number."""
        return "0.0lf" if self.scalar == "f64" else "0.0f"

    def let(self, text: str) -> Text:
        """Give an index a name."""
        found: Text = self.writer.let_text(number("").type, text)
        return found

    def plus(self, value: Number, constant: int) -> Number:
        """An index moved."""
        if isinstance(value, int):
            return value + constant
        return self.let(f"{value.text} + {constant}u") if constant else value

    def load(
        self,
        e: ThreadElements,
        register: str,
        memory: Memory,
        at: Number,
        inside: Any,
        *,
        safe: bool = False,
    ) -> None:
        """Read an element into a variable: 0 where ``inside`` does not hold; what lies there is not read unless that is ``safe``."""
        if inside is not None and not safe:
            at = e.builder.select(inside, e.places.plain(at), e.places.plain(0))
        value = e.registers.load(memory, at, memory.dtype)
        text = e.builder.text(e.registers.cast(value, memory.dtype, self.kept))
        if inside is not None:
            text = f"select({self.zero}, {text}, {e.builder.text(inside)})"
        e.builder.line(f"{register} = {text};")

    def _threads(self) -> None:
        """Where a thread's vectors begin: 32 that run in step share rows and columns as much as they can."""
        line, beside = self.writer.line, self.tile.beside or self.across
        line(
            f"let own_column = local / 32u % {self.across // beside}u * {beside}u + local % {beside}u;"
        )
        high = 32 // beside if beside < self.across else 0
        if high:
            around = f"local / {32 * (self.across // beside)}u"
            line(f"let own_row = {around} * {high}u + local % 32u / {beside}u;")
        else:
            line(f"let own_row = local / {self.across}u;")

    def run(
        self,
        first: str,
        last: str,
        loaders: Sequence[Loader],
        prepare: Callable[[Text], None] | None = None,
    ) -> None:
        """All products of the steps from ``first`` to before ``last``; ``prepare`` writes to shared memory what fetching a step needs."""
        writer = self.writer
        self._threads()
        if prepare is not None:
            prepare(number(first))
            self.shader.barrier()
        for names in self.sums:
            for name in names:
                writer.line(f"var {name} = {self.vector}();")
        # One pass more than there are steps: each fetches for the next while it multiplies what the one before put down.
        with writer.block(f"for (var step = {first}; step <= {last}; step++)"):
            with writer.block(f"if (step < {last})"):
                for loader in loaders:
                    loader.fetch(number("step"))
            with writer.block(f"if (step > {first})"):
                self._multiply()
            self.shader.barrier()
            with writer.block(f"if (step < {last})"):
                for loader in loaders:
                    loader.put()
                if prepare is not None:
                    prepare(number("(step + 1u)"))
            self.shader.barrier()

    def _multiply(self) -> None:
        line, tile = self.writer.line, self.tile
        for k in range(tile.depth):
            for i in range(tile.high // 4):
                line(f"let a{k}_{i} = rows_tile[{k}][{i * self.down}u + own_row];")
            for j in range(tile.wide // 4):
                line(f"let b{k}_{j} = columns_tile[{k}][{j * self.across}u + own_column];")
            for i, names in enumerate(self.sums):
                for j, name in enumerate(names):
                    factor = f"{self.vector}(a{k}_{i // 4}[{i % 4}])"
                    line(f"{name} = fma({factor}, b{k}_{j}, {name});")

    def give(
        self,
        together: int,
        before: Callable[[Text], Any],
        inside: Callable[[Any, Text, list[Text]], None],
        elements: ThreadElements,
    ) -> None:
        """``inside(before(column), row, sums)`` for all sums of the tile, ``together`` neighbouring columns at a time.

        The columns of a thread do not change, so ``before`` is written once. Rows and columns count from the tile's first.
        """
        tile, writer, places = self.tile, self.writer, elements.places
        lanes = tile.columns // together
        column = places.mul(self.let(f"local % {lanes}u"), together)
        found = before(places.plain(column))
        starts = self.let(f"local / {lanes}u")
        passes = tile.threads // lanes
        with writer.block(f"for (var turn = 0u; turn < {tile.high}u; turn++)"):
            with writer.block("switch turn"):
                for i, names in enumerate(self.sums):
                    case = f"case {i}u:" if i + 1 < tile.high else "default:"
                    with writer.block(case):
                        for j, name in enumerate(names):
                            at = f"{j * self.across}u + own_column"
                            writer.line(f"columns_tile[own_row][{at}] = {name};")
            self.shader.barrier()
            head = f"for (var part = {writer.text(starts)}; part < {self.down}u; part += {passes}u)"
            with writer.block(head), elements.scope():
                text = f"((turn >> 2u) * {self.down}u + part) * 4u + (turn & 3u)"
                row = self.let(text)
                values = []
                for k in range(together):
                    at = places.text(places.add(column, k))
                    kind = elements.registers.constant(0.0, self.kept).type
                    text = f"columns_tile[part][({at}) >> 2u][({at}) & 3u]"
                    values.append(writer.let_text(kind, text))
                inside(found, row, values)
            self.shader.barrier()


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
        self, tiles: Tiles, name: str, count: int, *, deep: bool = False, vector: int = 1
    ) -> None:
        self.tiles, self.name, self.vector = tiles, name, vector
        threads, depth, units = tiles.tile.threads, tiles.tile.depth, count // vector
        items = depth * units // threads
        fast = depth if deep else units
        same = tiles.let(f"local % {fast}u")
        self.first: Number = 0 if threads == fast else tiles.let(f"local / {fast}u")
        self.shifts = [i * (threads // fast) for i in range(items)]
        others = [tiles.plus(self.first, shift) for shift in self.shifts]
        self.depths: list[Number] = [same] * items if deep else others
        self.places: list[Number] = others if deep else [same] * items
        kind = tiles.vector if vector == 4 else tiles.scalar
        self.registers = [f"{name}_{i}" for i in range(items)]
        for register in self.registers:
            tiles.writer.line(f"var {register} = {kind}();")

    def put(self) -> None:
        """Write the registers to shared memory."""
        for k, place, register in zip(self.depths, self.places, self.registers, strict=True):
            row, at = text_of(k), text_of(place)
            at = f"[{at}]" if self.vector == 4 else f"[{at} >> 2u][{at} & 3u]"
            self.tiles.writer.line(f"{self.name}[{row}]{at} = {register};")


def text_of(value: Number) -> str:
    """An index as an expression."""
    return f"{value}u" if isinstance(value, int) else str(value.text)


def number(text: str) -> Text:
    """An expression as an index."""
    from llvmlite import ir

    return Text(ir.IntType(32), text)
