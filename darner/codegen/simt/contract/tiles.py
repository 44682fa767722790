"""Products of matrices by tiles: what a workgroup needs of both operands goes through its memory, sums stay in registers.

A and B lie in workgroup memory term by term, rows (columns) in vectors of four, so that a thread reads both as vectors: the number of the term is a constant where it is written
out, the number of the vector does not change, and no address is computed. While a block of terms is multiplied, the next is on its way from memory to registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....backends.wgpu.text import spelled
from ...ir.index import Number
from ...ir.math import register_type
from ..dispatch import Dispatch
from ..elements import ThreadElements
from .epilogue import Sink
from .load import PARTS, Reader, multiply_add, named, unsigned
from .plan import Cut, Tile
from .product import Product, View, kept_in

MOST_LINES = 600
"""Lines that writing the sums may take; beyond, they are written in a loop."""


@dataclass(frozen=True)
class _Names:
    """What the shader calls one of the vectors that a thread brings.

    Attributes:
        item: its number in the block.
        line: the line of the operand's memory in which it lies.
        place: its number in that line.
    """

    item: str
    line: str
    place: str


class Loader:
    """Brings blocks of one operand to workgroup memory.

    Args:
        name: of its tile.
        width: rows or columns of the tile.
        extent: all rows or columns.
        first: the first of the workgroup, as a u32 expression.
    """

    def __init__(
        self,
        shader: Dispatch,
        reader: Reader,
        tile: Tile,
        name: str,
        width: int,
        extent: int,
        first: str,
        terms: int,
    ) -> None:
        self.shader = shader
        self.reader = reader
        self.tile = tile
        self.name = name
        self.width = width
        self.extent = extent
        self.first = first
        self.terms = terms
        view = reader.view
        self.turned = view.along == "summed"
        vector = view.vector
        self.line = width // 4 + (tile.pad if self.turned else 0)
        self.across = (tile.bk if self.turned else width) // vector
        self.count = width * tile.bk // vector
        shader.text_shared(name, f"array<array<vec4<{reader.kind}>, {self.line}>, {tile.bk}>")

    @property
    def view(self) -> View:
        """How the operand is read."""
        return self.reader.view

    def _names(self, number: int) -> _Names:
        return _Names(*(f"{self.name}_{word}{number}" for word in ("item", "line", "place")))

    def prepare(self, elements: ThreadElements, batch: Number) -> None:
        """Write what does not change from block to block: where a thread reads, and where it writes to."""
        writer, places = self.shader.builder, elements.places
        vector, threads = self.view.vector, self.shader.threads
        self.bases: list[Number] = []
        for i in range(-(-self.count // threads)):
            own = self._names(i)
            writer.line(f"let {own.item} = local + {i * threads}u;")
            writer.line(f"let {own.line} = {own.item} / {self.across}u;")
            writer.line(f"let {own.place} = {own.item} % {self.across}u;")
            if self.turned:
                free, last = f"{self.first} + {own.line}", self.extent - 1
            else:
                free, last = f"{self.first} / {vector}u + {own.place}", self.extent // vector - 1
            if self.extent % self.width or self.count % threads:
                free = f"min({free}, {last}u)"
            base = self.reader.base(elements, batch, named(self.shader, free))
            self.bases.append(places.plain(base))

    def load(self, elements: ThreadElements, block: str) -> list[str]:
        """Read a thread's share of a block; returns what ``store`` takes."""
        writer, places, tile = self.shader.builder, elements.places, self.tile
        found = []
        for i, base in enumerate(self.bases):
            own = self._names(i)
            if self.turned:
                step = tile.bk // self.view.vector
                number, last = f"{block} * {step}u + {own.place}", self.terms // self.view.vector
            else:
                number, last = f"{block} * {tile.bk}u + {own.line}", self.terms
            part = self.count % self.shader.threads and i == len(self.bases) - 1
            whole = self.terms % tile.bk == 0 and not part
            term = named(self.shader, number)
            inside = term if whole else named(self.shader, f"min({term.text}, {last - 1}u)")
            place = places.add(base, self.reader.step(elements, inside))
            raw = self.reader.load(elements, place)
            if self.terms % tile.bk:
                zero = f"{self.reader.raw}()"
                raw = writer.let_text(None, f"select({zero}, {raw}, {term.text} < {last}u)").text
            found.append(raw)
        return found

    def store(self, loaded: Sequence[str]) -> None:
        """Write what ``load`` gave to workgroup memory."""
        writer = self.shader.builder
        at, vector = self.name, self.view.vector
        for i, raw in enumerate(loaded):
            own = self._names(i)
            lines = []
            if vector == 1:
                term, free = (own.place, own.line) if self.turned else (own.line, own.place)
                lines.append(f"{at}[{term}][{free} / 4u][{free} % 4u] = {raw};")
            elif self.turned:
                wide = writer.let_text(None, self.reader.wide(raw)).text
                place = f"{own.line} / 4u][{own.line} % 4u"
                lines += [
                    f"{at}[{own.place} * 4u + {x}u][{place}] = {wide}.{PARTS[x]};" for x in range(4)
                ]
            else:
                lines.append(f"{at}[{own.line}][{own.place}] = {self.reader.wide(raw)};")
            if (i + 1) * self.shader.threads > self.count:
                with writer.block(f"if ({own.item} < {self.count}u)"):
                    for line in lines:
                        writer.line(line)
            else:
                for line in lines:
                    writer.line(line)


def group_count(product: Product, cut: Cut) -> int:
    """Workgroups of a product."""
    tile = cut.tile
    across, down = -(-product.n // tile.bn), -(-product.m // tile.bm)
    return across * down * product.count * cut.parts


def write_tiles(
    shader: Dispatch, product: Product, cut: Cut, readers: Sequence[Reader], sink: Any
) -> None:
    """Write the kernel of a product; ``sink(part)`` makes what takes the sums of a part, whose number is an expression."""
    tile, writer = cut.tile, shader.builder
    kind = spelled(register_type(kept_in(product)))
    part, batch = _write_places(shader, product, cut)
    took: Sink = sink(part)
    elements = shader.elements()
    loaders = [
        Loader(shader, readers[0], tile, "tile_a", tile.bm, product.m, "row0", product.k),
        Loader(shader, readers[1], tile, "tile_b", tile.bn, product.n, "column0", product.k),
    ]
    for loader in loaders:
        loader.prepare(elements, batch)
    _write_threads(shader, tile)
    for i in range(tile.tm):
        for j in range(tile.tn // 4):
            writer.line(f"var c{i}_{j} = vec4<{kind}>();")
    blocks = -(-product.k // tile.bk)
    each = -(-blocks // cut.parts)
    first, last = "0u", f"{blocks}u"
    if cut.parts > 1:
        writer.line(f"let block0 = {part} * {each}u;")
        writer.line(f"let block1 = min(block0 + {each}u, {blocks}u);")
        first, last = "block0", "block1"
    with writer.block(""), elements.scope():
        for loader in loaders:
            loader.store(loader.load(elements, first))
    shader.barrier()
    with writer.block(f"for (var block = {first}; block < {last}; block++)"), elements.scope():
        following = named(shader, f"min(block + 1u, {last} - 1u)").text
        ahead = [loader.load(elements, following) for loader in loaders]
        _write_products(shader, tile, kind)
        shader.barrier()
        for loader, loaded in zip(loaders, ahead, strict=True):
            loader.store(loaded)
        shader.barrier()
    _write_sums(shader, product, tile, took, batch, kind)


def _write_places(shader: Dispatch, product: Product, cut: Cut) -> tuple[str, Number]:
    """Write which part, matrix and tile a workgroup has; returns the part and the matrix."""
    tile, writer = cut.tile, shader.builder
    across, down = -(-product.n // tile.bn), -(-product.m // tile.bm)
    both = across * down
    writer.line(f"let plane = group / {both}u;")
    writer.line(f"let tile = group % {both}u;")
    writer.line(f"let row0 = (tile / {across}u) * {tile.bm}u;")
    writer.line(f"let column0 = (tile % {across}u) * {tile.bn}u;")
    if product.count == 1:
        return "plane", 0
    writer.line(f"let matrix = plane % {product.count}u;")
    writer.line(f"let part = plane / {product.count}u;")
    return "part", unsigned("matrix")


def _write_threads(shader: Dispatch, tile: Tile) -> None:
    """Write where a thread's rows and columns lie in the tile, in vectors of four."""
    writer, down, across = shader.builder, tile.bm // tile.tm, tile.bn // tile.tn
    beside = tile.across
    if beside and across % beside == 0 and down % (32 // beside) == 0:
        # 32 threads that run in step share rows and columns as much as they can.
        high = 32 // beside
        writer.line("let within = local % 32u;")
        writer.line("let around = local / 32u;")
        writer.line(f"let down = (around / {across // beside}u) * {high}u + within / {beside}u;")
        writer.line(
            f"let across = (around % {across // beside}u) * {beside}u + within % {beside}u;"
        )
    else:
        writer.line(f"let down = local / {across}u;")
        writer.line(f"let across = local % {across}u;")
    for i in range(tile.tm // 4):
        writer.line(f"let down{i} = down + {i * down}u;")
    for j in range(tile.tn // 4):
        writer.line(f"let across{j} = across + {j * across}u;")


def _write_products(shader: Dispatch, tile: Tile, kind: str) -> None:
    """Write the products of the block in workgroup memory."""
    writer = shader.builder

    def terms(numbers: Sequence[str]) -> None:
        for k, number in enumerate(numbers):
            for i in range(tile.tm // 4):
                writer.line(f"let a{k}_{i} = tile_a[{number}][down{i}];")
            for j in range(tile.tn // 4):
                writer.line(f"let b{k}_{j} = tile_b[{number}][across{j}];")
            for i in range(tile.tm):
                a = f"vec4<{kind}>(a{k}_{i // 4}.{PARTS[i % 4]})"
                for j in range(tile.tn // 4):
                    total = f"c{i}_{j}"
                    writer.line(f"{total} = {multiply_add(kind, total, a, f'b{k}_{j}')};")

    if not tile.unroll:
        terms([str(k) for k in range(tile.bk)])
        return
    with writer.block(f"for (var k = 0u; k < {tile.bk}u; k += {tile.unroll}u)"):
        terms([f"k + {k}u" for k in range(tile.unroll)])


def _write_sums(
    shader: Dispatch, product: Product, tile: Tile, sink: Sink, batch: Number, kind: str
) -> None:
    """Write a thread's sums to where they go."""
    writer = shader.builder
    down, across = tile.bm // tile.tm, tile.bn // tile.tn
    fours = tile.tn // 4
    before = len(writer.lines)

    def four(row: str, column: str, sums: str) -> None:
        conditions = []
        if product.m % tile.bm:
            conditions.append(f"{row} < {product.m}u")
        if product.n % tile.bn:
            conditions.append(f"{column} < {product.n}u")
        with writer.block(f"if ({' && '.join(conditions)})" if conditions else ""):
            line = sink.line(batch, unsigned(row))
            if sink.unit == 4:
                sink.write(line, unsigned(column), [f"{sums}.{part}" for part in PARTS])
                return
            for x in range(4):
                one = named(shader, f"{column} + {x}u")
                with writer.block(f"if ({one.text} < {product.n}u)"), sink.elements.scope():
                    sink.write(line, one, [f"{sums}.{PARTS[x]}"])

    def at(i: int, j: int) -> None:
        row = named(shader, f"row0 + down{i // 4} * 4u + {i % 4}u")
        column = named(shader, f"column0 + across{j} * 4u")
        with sink.elements.scope():
            four(row.text, column.text, f"c{i}_{j}")

    at(0, 0)
    written = len(writer.lines) - before
    if written * tile.tm * fours <= MOST_LINES:
        for number in range(1, tile.tm * fours):
            at(number // fours, number % fours)
        return
    del writer.lines[before:]
    names = ", ".join(f"c{i}_{j}" for i in range(tile.tm) for j in range(fours))
    writer.line(f"var sums = array<vec4<{kind}>, {tile.tm * fours}>({names});")
    with writer.block(f"for (var each = 0u; each < {tile.tm * fours}u; each++)"):
        writer.line(f"let i = each / {fours}u;")
        writer.line(f"let j = each % {fours}u;")
        row = named(shader, f"row0 + ((i / 4u) * {down}u + down) * 4u + i % 4u")
        column = named(shader, f"column0 + (j * {across}u + across) * 4u")
        writer.line("let four = sums[each];")
        with sink.elements.scope():
            four(row.text, column.text, "four")
