"""Products of matrices by tiles: what a workgroup needs of both operands goes through its memory, sums stay in registers.

A and B lie in workgroup memory term by term, rows (columns) in vectors of four, so that a thread reads both as vectors: the number of the term is a constant where it is written
out, the number of the vector does not change, and no address is computed. While a block of terms is multiplied, the next is on its way from memory to registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....graph.dtypes import DType
from ....graph.integers import ceil_div
from ...ir.index import Number
from ..builder import Memory, Value, Variable
from ..dispatch import Dispatch
from ..elements import ThreadElements
from .epilogue import Sink
from .load import Reader, multiply_add
from .plan import Cut, Tile
from .product import Product, View, kept_in

MOST_LINES = 600
"""Lines that writing the sums may take; beyond, they are written in a loop."""


@dataclass(frozen=True)
class _Share:
    """One of the vectors that a thread brings.

    Attributes:
        item: its number in the block.
        line: the line of the operand's memory in which it lies.
        place: its number in that line.
        base: where that line begins.
    """

    item: Value
    line: Value
    place: Value
    base: Number


@dataclass(frozen=True)
class Side:
    """One operand of a product in tiles.

    Attributes:
        name: of its tile.
        width: rows or columns of the tile.
        extent: all rows or columns.
        terms: of a sum.
    """

    name: str
    width: int
    extent: int
    terms: int


class Loader:
    """Brings blocks of one operand to workgroup memory.

    Attributes:
        memory: the tile, as [term, vector of rows or columns].
    """

    def __init__(self, dispatch: Dispatch, reader: Reader, tile: Tile, side: Side) -> None:
        self.dispatch = dispatch
        self.builder = dispatch.builder
        self.reader = reader
        self.tile = tile
        self.side = side
        view = reader.view
        self.turned = view.along == "summed"
        vector = view.vector
        line = side.width // 4 + (tile.pad if self.turned else 0)
        self.across = (tile.bk if self.turned else side.width) // vector
        self.count = side.width * tile.bk // vector
        self.memory: Memory = self.builder.shared(reader.kept, (tile.bk, line), side.name, width=4)
        self.shares: list[_Share] = []

    @property
    def view(self) -> View:
        """How the operand is read."""
        return self.reader.view

    def prepare(self, elements: ThreadElements, batch: Number, first: Value) -> None:
        """Write what does not change from block to block: where a thread reads, and where it writes to.

        ``first`` is the first row or column of the workgroup.
        """
        b, places = self.builder, elements.places
        vector, threads = self.view.vector, self.dispatch.threads
        for i in range(ceil_div(self.count, threads)):
            item = b.let(b.local + i * threads, "item")
            line = b.let(item // self.across, "line")
            place = b.let(item % self.across, "place")
            if self.turned:
                free, last = first + line, self.side.extent - 1
            else:
                free, last = first // vector + place, self.side.extent // vector - 1
            if self.side.extent % self.side.width or self.count % threads:
                free = b.min(free, last)
            base = places.plain(self.reader.base(elements, batch, b.let(free)))
            self.shares.append(_Share(item, line, place, base))

    def load(self, elements: ThreadElements, block: Number) -> list[Value]:
        """Read a thread's share of a block; returns what ``store`` takes."""
        b, places, tile = self.builder, elements.places, self.tile
        found = []
        for i, own in enumerate(self.shares):
            if self.turned:
                step, last = tile.bk // self.view.vector, self.side.terms // self.view.vector
                number = block * step + own.place
            else:
                number, last = block * tile.bk + own.line, self.side.terms
            part = self.count % self.dispatch.threads and i == len(self.shares) - 1
            whole = self.side.terms % tile.bk == 0 and not part
            term = b.let(number)
            inside = term if whole else b.let(b.min(term, last - 1))
            raw = self.reader.load(
                elements, places.add(own.base, self.reader.step(elements, inside))
            )
            if self.side.terms % tile.bk:
                raw = b.let(b.choose(term < last, raw, 0))
            found.append(raw)
        return found

    def store(self, loaded: Sequence[Value]) -> None:
        """Write what ``load`` gave to workgroup memory."""
        b, tile = self.builder, self.memory
        for i, (own, raw) in enumerate(zip(self.shares, loaded, strict=True)):
            certain = (i + 1) * self.dispatch.threads <= self.count
            turned_vector = self.turned and self.view.vector > 1
            wide = b.let(self.reader.wide(raw)) if turned_vector else self.reader.wide(raw)
            with b.if_(None if certain else own.item < self.count):
                if self.view.vector == 1:
                    term, free = (own.place, own.line) if self.turned else (own.line, own.place)
                    tile[term, free // 4, free % 4] = raw
                elif self.turned:
                    for x in range(4):
                        tile[own.place * 4 + x, own.line // 4, own.line % 4] = wide[x]
                else:
                    tile[own.line, own.place] = wide


def group_count(product: Product, cut: Cut) -> int:
    """Workgroups of a product."""
    tile = cut.tile
    across, down = ceil_div(product.n, tile.bn), ceil_div(product.m, tile.bm)
    return across * down * product.count * cut.parts


SinkOf = Callable[[Value], Sink]
"""Makes what takes the sums of a part, by its number."""


def write_tiles(
    dispatch: Dispatch, product: Product, cut: Cut, readers: Sequence[Reader], sink: SinkOf
) -> None:
    """Write the kernel of a product."""
    tile, b = cut.tile, dispatch.builder
    row, column, part, batch = _write_places(dispatch, product, cut)
    took = sink(part)
    elements = dispatch.elements()
    loaders = [
        Loader(dispatch, readers[0], tile, Side("tile_a", tile.bm, product.m, product.k)),
        Loader(dispatch, readers[1], tile, Side("tile_b", tile.bn, product.n, product.k)),
    ]
    for loader, first in zip(loaders, (row, column), strict=True):
        loader.prepare(elements, batch, first)
    threads = _Threads(dispatch, tile, kept_in(product), row, column)
    blocks = ceil_div(product.k, tile.bk)
    each = ceil_div(blocks, cut.parts)
    start: Number = 0
    stop: Number = blocks
    if cut.parts > 1:
        start = b.let(part * each, "start")
        stop = b.let(b.min(start + each, blocks), "stop")
    with b.scope():
        for loader in loaders:
            loader.store(loader.load(elements, start))
    b.barrier()
    with b.for_(start, stop, name="block") as block:
        following = b.let(b.min(block + 1, stop - 1), "following")
        ahead = [loader.load(elements, following) for loader in loaders]
        threads.write_products(loaders[0].memory, loaders[1].memory)
        b.barrier()
        for loader, loaded in zip(loaders, ahead, strict=True):
            loader.store(loaded)
        b.barrier()
    threads.write_sums(product, took, batch)


def _write_places(
    dispatch: Dispatch, product: Product, cut: Cut
) -> tuple[Value, Value, Value, Number]:
    """Write which tile, part and matrix a workgroup has; returns the tile's first row and column, the part and the matrix."""
    b, tile = dispatch.builder, cut.tile
    across, down = ceil_div(product.n, tile.bn), ceil_div(product.m, tile.bm)
    plane = b.let(b.group // (across * down), "plane")
    own = b.let(b.group % (across * down), "tile")
    row = b.let(own // across * tile.bm, "row0")
    column = b.let(own % across * tile.bn, "column0")
    if product.count == 1:
        return row, column, plane, 0
    matrix = b.let(plane % product.count, "matrix")
    return row, column, b.let(plane // product.count, "part"), matrix


class _Threads:
    """The sums of a workgroup's threads, and where these stand in the tile.

    Attributes:
        down: a thread's rows, as numbers of vectors of four; ``across`` its columns.
        sums: of each row, in vectors of four columns.
    """

    def __init__(
        self, dispatch: Dispatch, tile: Tile, kept: DType, row: Value, column: Value
    ) -> None:
        self.dispatch, self.tile, self.kept = dispatch, tile, kept
        b = self.builder = dispatch.builder
        self.row, self.column = row, column
        self.high, self.wide = tile.bm // tile.tm, tile.bn // tile.tn
        beside = tile.across
        if beside and self.wide % beside == 0 and self.high % (32 // beside) == 0:
            # 32 threads that run in step share rows and columns as much as they can.
            within, around = b.let(b.local % 32, "within"), b.let(b.local // 32, "around")
            sets, high = self.wide // beside, 32 // beside
            first = b.let(around // sets * high + within // beside, "down")
            second = b.let(around % sets * beside + within % beside, "across")
        else:
            first = b.let(b.local // self.wide, "down")
            second = b.let(b.local % self.wide, "across")
        self.first, self.second = first, second
        self.down = [b.let(first + i * self.high, "down") for i in range(tile.tm // 4)]
        self.across = [b.let(second + j * self.wide, "across") for j in range(tile.tn // 4)]
        self.sums: list[list[Variable]] = [
            [b.variable(0, f"c{i}_{j}", kept, width=4) for j in range(tile.tn // 4)]
            for i in range(tile.tm)
        ]

    def write_products(self, left: Memory, right: Memory) -> None:
        """Write the products of the block in workgroup memory."""
        b, tile = self.builder, self.tile

        def terms(numbers: Sequence[Number]) -> None:
            for number in numbers:
                rows = [left[number, down] for down in self.down]
                columns = [right[number, across] for across in self.across]
                for i, totals in enumerate(self.sums):
                    factor = b.splat(rows[i // 4][i % 4], 4)
                    for total, column in zip(totals, columns, strict=True):
                        total.set(multiply_add(b, self.kept, total, factor, column))

        if not tile.unroll:
            terms(range(tile.bk))
            return
        with b.for_(0, tile.bk, tile.unroll, name="k") as k:
            terms([k + i for i in range(tile.unroll)])

    def write_sums(self, product: Product, sink: Sink, batch: Number) -> None:
        """Write a thread's sums to where they go."""
        b, tile = self.builder, self.tile

        def four(row: Value, column: Value, sums: Value) -> None:
            with b.if_(
                row < product.m if product.m % tile.bm else None,
                column < product.n if product.n % tile.bn else None,
            ):
                line = sink.line(batch, row)
                if sink.unit == 4:
                    sink.write(line, column, sums.parts)
                    return
                for x in range(4):
                    own = b.let(column + x)
                    with b.if_(own < product.n):
                        sink.write(line, own, [sums[x]])

        def at(i: int, j: int) -> None:
            row = b.let(self.row + self.down[i // 4] * 4 + i % 4)
            column = b.let(self.column + self.across[j] * 4)
            with b.scope():
                four(row, column, self.sums[i][j])

        fours = tile.tn // 4
        if b.trial(lambda: at(0, 0)) * tile.tm * fours <= MOST_LINES:
            for number in range(tile.tm * fours):
                at(number // fours, number % fours)
            return
        sums = b.array([total for totals in self.sums for total in totals], "sums")
        with b.for_(0, tile.tm * fours, name="each") as each:
            i, j = b.let(each // fours, "i"), b.let(each % fours, "j")
            row = b.let(self.row + (i // 4 * self.high + self.first) * 4 + i % 4)
            column = b.let(self.column + (j * self.wide + self.second) * 4)
            four(row, column, sums[each])
