"""A kernel of attention by ``mma.sync`` while it is written: tiles in shared memory, their fragments, and products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ....codegen.ir.index import Number
from ....codegen.simt.builder import Memory, Value
from ....graph import dtypes
from ....graph.integers import ceil_div
from ....lower.plan import Spec
from ..instructions.warp import cores_of
from ..machine import Machine
from ..printer import Printer
from .plan import Cut, Room
from .problem import Problem, Rows
from .rows import Fragments, RowKernel

Words: TypeAlias = list[Value]
"""Fragments of a factor: four words for each 16 rows (or columns) and the terms that are multiplied at once."""
Left: TypeAlias = Callable[[int], Words]
"""The fragments of A of a warp's rows, for the ``k``-th terms that are multiplied at once: 16, or 8 of tf32."""
Right: TypeAlias = Callable[[Sequence[int], int], Words]
"""Those of B for some sixteens of columns, for the ``k``-th of such terms."""

AT_ONCE = 4
"""Sixteens of columns whose fragments are read together."""


@dataclass(frozen=True)
class Launch:
    """What a kernel is written for.

    Attributes:
        whole: whether results of 16 bits are written in whole words.
    """

    spec: Spec
    machine: Machine
    problem: Problem
    cut: Cut
    room: Room
    whole: bool = False


class Kernel(RowKernel):
    """A launch by ``mma.sync``.

    Attributes:
        launch: what it is written for.
        first: the warp's first row, of those of its block.
    """

    def __init__(self, launch: Launch) -> None:
        problem, cut = launch.problem, launch.cut
        super().__init__(launch.spec, launch.machine, problem, cut.threads, launch.whole)
        self.launch, self.cut, self.room = launch, cut, launch.room
        self.tiles, self.block = cut.tiles, cut.rows
        b = self.builder
        if isinstance(b, Printer):
            # Registers are worth more than a second block.
            b.blocks_together(1)
        self.cores = cores_of(b, launch.machine, launch.room.nbytes)
        self.first = b.let(b.local // 32 * (16 * cut.tiles), "first_row")
        self.row = b.let(self.first + (self.lane >> 2), "own_row")
        eight, low, high = self.lane & 7, (self.lane >> 3) & 1, self.lane >> 4
        # Addresses of the four matrices of ldmatrix: rows first, or terms first.
        self.by_rows = b.let(low * 8 + eight, "by_rows"), b.let(high * 16, "by_rows")
        self.by_terms = b.let(high * 8 + eight, "by_terms"), b.let(low * 16, "by_terms")

    # ------------------------------------------------------------- copies

    def loader(self, rows: Rows, count: int) -> Loader:
        """What copies ``count`` rows of an operand at a time."""
        return Loader(self, rows, count)

    # ------------------------------------------------------------- fragments

    def _lane_offset(self, pitch: int, *, rows_first: bool) -> Value:
        row, byte = self.by_rows if rows_first else self.by_terms
        return self.builder.let(row * pitch + byte, "fragment")

    def left(self, address: Value, pitch: int) -> Left:
        """Fragments of A from rows at an address."""
        b = self.builder
        base = b.let(address + self._lane_offset(pitch, rows_first=True), "left")
        tiles = range(self.cut.tiles)
        return lambda k: self.cores.ldmatrix(
            [b.let(base + (i * 16 * pitch + k * 32)) for i in tiles]
        )

    def right(self, address: Value, pitch: int) -> Right:
        """Fragments of B whose columns are rows at an address, terms beside each other."""
        b = self.builder
        base = b.let(address + self._lane_offset(pitch, rows_first=False), "right")
        return lambda js, k: self.cores.ldmatrix(
            [b.let(base + (j * 16 * pitch + k * 32)) for j in js]
        )

    def across(self, address: Value, pitch: int) -> Right:
        """Fragments of B whose terms are rows at an address, columns beside each other."""
        b = self.builder
        if self.problem.terms == 8:
            return self._across_words(address, pitch)
        base = b.let(address + self._lane_offset(pitch, rows_first=True), "across")
        return lambda js, k: self.cores.ldmatrix(
            [b.let(base + (k * 16 * pitch + j * 32)) for j in js], transposed=True
        )

    def _across_words(self, address: Value, pitch: int) -> Right:
        """The same of words, which no instruction transposes: the terms of a thread are rows ``2t`` and ``2t + 1``, as ``packed`` has them."""
        b = self.builder
        base = b.let(address + self.column * pitch + (self.lane >> 2) * 4, "across")

        def read(js: Sequence[int], k: int) -> Words:
            return [
                b.bits(
                    self.cores.load_one(b.let(base + ((8 * k + x) * pitch + j * 64 + eight * 32)))
                )
                for j in js
                for eight in range(2)
                for x in range(2)
            ]

        return read

    def held(self, address: Value, rows: Rows) -> Left:
        """Fragments of the warp's own rows at an address: read once where they are kept, or whenever they are needed."""
        b = self.builder
        read = self.left(b.let(address + self.first * rows.pitch), rows.pitch)
        if not self.cut.kept:
            return read
        kept = [read(k) for k in range(rows.padded // self.problem.terms)]
        return lambda k: kept[k]

    # ------------------------------------------------------------- products

    def multiply(self, sums: Fragments, left: Left, right: Right, terms: int) -> None:
        """Add the product of fragments; of many columns some at a time, whose words fit registers beside the sums."""
        kind, count = self.problem.kind, len(sums[0]) // 2
        for k in range(terms // self.problem.terms):
            lefts = left(k)
            for begin in range(0, count, AT_ONCE):
                end = min(begin + AT_ONCE, count)
                words = right(range(begin, end), k)
                own = [across[2 * begin : 2 * end] for across in sums]
                self.cores.multiply(kind, own, lefts, words, rounded=True)

    # ------------------------------------------------------------- what passes by

    def passing(
        self,
        loaders: Sequence[Loader],
        begin: Value,
        ends: tuple[Value, Value],
        beside: Callable[[Value, Value], None] | None = None,
    ) -> Iterator[tuple[Value, Value]]:
        """The loop over tiles between ``ends``: yields the tile's first row and its address, one operand after the other.

        Args:
            loaders: of both operands; their heads are set.
            begin: the address of the stages.
            ends: the first row, and the one before which the last tile begins.
            beside: copies what comes with the tile of a row to its stage.
        """
        b, room, step = self.builder, self.room, self.cut.columns

        def copy(row: Value, to: Value) -> None:
            for loader, at in zip(loaders, (0, room.first), strict=True):
                loader.copy(row, b.let(to + at))
            if beside is not None:
                beside(row, to)
            self.cores.commit()

        low, high = ends
        b.barrier()
        copy(low, begin)
        current = b.variable(begin, "current")
        other = b.variable(b.let(begin + room.stage), "other")
        with b.for_(low, high, step, name="tile") as row:
            self.cores.wait(0)
            here, there = b.let(current, "here"), b.let(other, "there")
            for loader, at in zip(loaders, (0, room.first), strict=True):
                loader.round(b.let(here + at))
            # All have this tile now, and are done with the one before it, whose place the next one takes.
            b.barrier()
            with b.if_(row + step < high):
                copy(b.let(row + step), there)
            yield row, here
            current.set(there)
            other.set(here)
        self.cores.wait(0)

    def store_rows(self, sums: Fragments, width: int, pitch: int) -> Callable[..., Value]:
        """Put sums into shared memory, over all that was there; returns what reads one of a row and column."""
        b = self.builder
        b.barrier()
        base = b.let(self.cores.base + (self.row * pitch + self.column * 4), "to")
        for i, own in enumerate(sums):
            for j, four in enumerate(own[: ceil_div(width, 8)]):
                for half in range(2):
                    at = (16 * i + 8 * half) * pitch + 32 * j
                    first, second = (b.let(x) for x in four[2 * half : 2 * half + 2])
                    self.cores.store_pair(b.let(base + at), first, second)
        b.barrier()

        def element(row: Value, column: Value) -> Value:
            return self.cores.load_one(b.let(self.cores.base + (row * pitch + column * 4)))

        return element


class Loader:
    """Copies rows of an operand to shared memory in pieces of 16 bytes, of which each thread has a share.

    Attributes:
        item: the piece that the head begins with.
    """

    item: Value

    def __init__(self, kernel: Kernel, rows: Rows, count: int) -> None:
        b = self.builder = kernel.builder
        self.kernel, self.rows, self.count = kernel, rows, count
        self.memory: Memory = kernel.dispatch.operand(rows.leaf)
        pieces, threads = rows.padded // rows.piece, kernel.cut.threads
        self.total = count * pieces
        self.shares: list[tuple[Value, Value, Value, Value]] = []
        for i in range(ceil_div(self.total, threads)):
            number = b.let(b.local + i * threads)
            row, piece = b.let(number // pieces, "row"), b.let(number % pieces, "piece")
            to = b.let(row * rows.pitch + piece * 16, "to")
            self.shares.append((number, row, piece, to))

    def copy(self, first: Value, to: Value) -> None:
        """Copy the head's rows from ``first`` on to an address; zeros where there are none."""
        b, rows = self.builder, self.rows
        pieces = rows.width // rows.piece
        for number, row, piece, at in self.shares:
            own = b.let(first + row)
            inside = b.min(own, rows.count - 1)
            seen = own < rows.count
            near = piece
            if rows.padded != rows.width:
                seen = seen & (piece < pieces)
                near = b.min(piece, pieces - 1)
            item = b.let(self.item + inside * (rows.strides[2] // rows.piece) + near)
            nbytes = b.let(b.choose(seen, b.index(16), 0))
            whole = self.total % self.kernel.cut.threads == 0
            with b.if_(None if whole else number < self.total):
                self.kernel.cores.copy_async(b.let(to + at), self.memory, item, nbytes)

    def round(self, at: Value) -> None:
        """Round what this thread has copied to an address to what is multiplied, where it is not that in memory."""
        if self.kernel.problem.kind != "tf32":
            return
        b, kernel = self.builder, self.kernel
        for number, _, _, to in self.shares:
            with b.if_(None if self.total % kernel.cut.threads == 0 else number < self.total):
                address = b.let(at + to)
                found = kernel.cores.load_four(address)
                words = [kernel.ops.round_tf32(value) for value in found]
                rounded = [b.let(b.of_bits(word, dtypes.f32)) for word in words]
                kernel.cores.store_four(address, rounded)

    def at(self, batch: Number, head: Number) -> None:
        """Let it read a head."""
        self.item = self.kernel.head_item(self.rows, batch, head)
