"""A warp's dot products of a few rows with streamed columns: weights come from memory 16 bytes a lane, straight to registers; the rows lie in shared memory.

``Dots`` is one of four, by the size of elements and by what is contiguous in memory (``dots_of``). 16-bit numbers are multiplied by ``mma.sync``: a lane's 16 bytes are words of a fragment, in an order of terms
that the rows' fragments have too, so nothing is rearranged where terms are contiguous, and where columns are, two terms are put beside each other by one instruction. f32 is multiplied as it is, by fused multiply-adds.

A step is what a warp adds at a time: some columns by some terms. Whoever has a kernel that streams weights calls ``load`` for several steps before it calls ``add`` for the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ....codegen.ir.index import Number
from ....codegen.simt.builder import Memory, Value, Variable
from ....codegen.simt.contract.load import offset
from ....codegen.simt.dispatch import Dispatch
from ....codegen.simt.elements import ThreadElements
from ....graph import dtypes
from ....graph.integers import ceil_div
from ..instructions.stream import Streaming
from ..instructions.warp import Cores
from .operands import Layout

WARP = 32


@dataclass(frozen=True)
class Step:
    """What a warp adds at a time.

    Attributes:
        columns: of the warp.
        terms: of each.
        pieces: of 16 bytes that a lane reads.
        by_terms: whether terms are contiguous in memory; columns are otherwise.
        itemsize: bytes of an element.
    """

    columns: int
    terms: int
    pieces: int
    by_terms: bool
    itemsize: int


def step_of(layout: Layout) -> Step:
    """The steps of an operand that lies so."""
    by_terms, size = layout.along == "summed", layout.dtype.itemsize
    if size == 2:
        return Step(8, 32, 1, True, 2) if by_terms else Step(64, 16, 4, False, 2)
    return Step(16, 32, 4, True, 4) if by_terms else Step(32, 4, 1, False, 4)


@dataclass(frozen=True)
class Rows:
    """A few rows in shared memory: as many terms of each as a block adds up, and zeros beyond what there is.

    Attributes:
        memory: items of four words.
        count: how many rows there are.
        terms: of each.
        step: how they are read.
    """

    memory: Memory
    count: int
    terms: int
    step: Step

    @property
    def by_term(self) -> bool:
        """Whether all rows of a term lie beside each other."""
        return self.step.itemsize == 4 and not self.step.by_terms

    @property
    def pitch(self) -> int:
        """Words from one row to the next, or from one term to the next."""
        if self.by_term:
            return 4 * ceil_div(self.count, 4) if self.count > 2 else self.count
        words = self.terms * self.step.itemsize // 4
        # Rows that are read together lie in different banks.
        apart = 16 if self.step.by_terms else 8
        return words if self.count == 1 else ceil_div(words, WARP) * WARP + apart

    @property
    def words(self) -> int:
        """Words in all."""
        return (self.terms if self.by_term else self.count) * self.pitch

    def view(self, width: int, *, floats: bool = False) -> Memory:
        """The memory as items of so many words."""
        dtype = dtypes.f32 if floats else dtypes.u32
        items = 4 * self.memory.shape[0] // width
        return replace(self.memory, dtype=dtype, vector=width, shape=(items,))


@dataclass(frozen=True)
class Columns:
    """The operand whose columns are streamed: how it lies, in items of 16 bytes; columns and terms in all."""

    layout: Layout
    memory: Memory
    extent: int
    terms: int


def first_item(elements: ThreadElements, columns: Columns, batch: Number, free: Number) -> Number:
    """The item of a column's, or a piece of columns', first term."""
    layout, places = columns.layout, elements.places
    start = offset(elements, batch, layout.in_pieces("batch"))
    start = places.add(start, layout.offset // layout.piece)
    return places.add(start, offset(elements, free, layout.in_pieces("free")))


class Dots(Protocol):
    """The dot products of a warp."""

    def start(self, batch: Number, column: Value) -> None:
        """Begin with a matrix and a first column."""
        ...

    def load(self, step: Value, inside: Value | None = None) -> list[Value]:
        """The words of a step; zeros where ``inside`` is false."""
        ...

    def add(self, words: Sequence[Value], step: Value) -> None:
        """Add the products of a step's words with the rows at step ``step`` of those in shared memory."""
        ...

    def keep(self, sums: Memory, first: Value, pitch: int) -> None:
        """Write the sums to shared memory, row by row of ``pitch`` numbers from number ``first`` on. All lanes of the warp come here."""
        ...


class _Streamed:
    """What all of them have: where a lane reads."""

    def __init__(
        self, dispatch: Dispatch, streaming: Streaming, columns: Columns, rows: Rows
    ) -> None:
        self.builder = b = dispatch.builder
        self.streaming, self.columns, self.rows = streaming, columns, rows
        self.elements = dispatch.elements()
        self.step = rows.step
        self.lane = b.let(b.local % WARP, "lane")
        self._bases: list[Number] = []

    def _base(self, batch: Number, free: Number) -> Number:
        """The item of a column's (or a piece of columns') first term."""
        found = first_item(self.elements, self.columns, batch, free)
        return found if isinstance(found, int) else self.builder.let(found)

    def _piece(self, base: Number, number: Value, count: int, inside: Value | None) -> list[Value]:
        """The piece with a number along the sums, of so many."""
        b, places = self.builder, self.elements.places
        layout = self.columns.layout
        per = layout.piece if layout.along == "summed" else 1
        if count % (self.step.terms // per):
            within = number < count
            inside = within if inside is None else inside & within
        if inside is not None:
            number = b.let(b.min(number, count - 1))
        item = places.add(base, offset(self.elements, number, layout.in_pieces("summed")))
        return self.streaming.load(self.columns.memory, places.value(item), inside)

    def _clipped(self, number: Value, count: int) -> Value:
        """A column, or a piece of columns, that there is."""
        return self.builder.let(self.builder.min(number, count - 1))


class _Halves(_Streamed):
    """Of 16-bit numbers: lane ``4 g + t`` has column ``g`` of an ``mma.sync``, and its terms with number ``t``."""

    def __init__(
        self,
        dispatch: Dispatch,
        streaming: Streaming,
        columns: Columns,
        rows: Rows,
        cores: Cores,
    ) -> None:
        super().__init__(dispatch, streaming, columns, rows)
        b = self.builder
        self.cores, self.kind = cores, columns.layout.dtype.name
        self.g, self.t = b.let(self.lane // 4, "g"), b.let(self.lane % 4, "t")
        tiles = 1 if self.step.by_terms else 8
        self.sums: list[list[Variable]] = [
            [b.variable(0.0, "c", dtypes.f32) for _ in range(4)] for _ in range(tiles)
        ]
        self._nothing = b.index(0)
        count = rows.count
        # Rows that there are not give sums that nobody writes.
        own = [b.min(self.g + 8 * i, count - 1) for i in range(ceil_div(count, 8))]
        self._own = [b.let(b.index(row) * rows.pitch) for row in own]

    def _left(self, step: Value, width: int) -> list[list[Value]]:
        """The words of this lane's terms: of row ``g`` and of row ``g + 8``."""
        b, memory = self.builder, self.rows.view(width)
        at = b.let(step * (self.step.terms // 2) + self.t * width)
        found = [b.let(memory[b.let((row + at) // width)]).parts for row in self._own]
        return found if len(found) == 2 else [found[0], [self._nothing] * width]


class HalvesByTerms(_Halves):
    """Of 16-bit numbers whose terms are contiguous: 8 columns by 32 terms."""

    def start(self, batch: Number, column: Value) -> None:
        """See ``Dots``."""
        self._bases = [self._base(batch, self._clipped(column + self.g, self.columns.extent))]

    def load(self, step: Value, inside: Value | None = None) -> list[Value]:
        """See ``Dots``."""
        count = ceil_div(self.columns.terms, self.columns.layout.piece)
        return self._piece(self._bases[0], self.builder.let(step * 4 + self.t), count, inside)

    def add(self, words: Sequence[Value], step: Value) -> None:
        """See ``Dots``."""
        low, high = self._left(step, 4)
        for i in (0, 2):
            left = [low[i], high[i], low[i + 1], high[i + 1]]
            self.cores.multiply(self.kind, [self.sums], left, words[i : i + 2])

    def keep(self, sums: Memory, first: Value, pitch: int) -> None:
        """See ``Dots``."""
        b, two = self.builder, replace(sums, vector=2, shape=(sums.shape[0] // 2,))
        for half in range(len(self._own)):
            row = b.let(self.g + 8 * half)
            with b.if_(row < self.rows.count):
                at = b.let((first + row * pitch + 2 * self.t) // 2)
                two[at] = b.vector(self.sums[0][2 * half : 2 * half + 2])


class HalvesByColumns(_Halves):
    """Of 16-bit numbers whose columns are contiguous: 64 columns by 16 terms. Lane ``4 g + t`` reads 8 columns, from ``8 g`` on, of the terms ``4 t`` to ``4 t + 3``."""

    def start(self, batch: Number, column: Value) -> None:
        """See ``Dots``."""
        piece = self._clipped(column // 8 + self.g, ceil_div(self.columns.extent, 8))
        self._bases = [self._base(batch, piece)]

    def load(self, step: Value, inside: Value | None = None) -> list[Value]:
        """See ``Dots``."""
        b, found = self.builder, []
        first = b.let(step * 16 + self.t * 4)
        for i in range(4):
            found += self._piece(self._bases[0], b.let(first + i), self.columns.terms, inside)
        return found

    def add(self, words: Sequence[Value], step: Value) -> None:
        """See ``Dots``."""
        low, high = self._left(step, 2)
        rows = [words[4 * i : 4 * i + 4] for i in range(4)]
        right: list[Value] = []
        for word in range(4):
            pairs = [self.streaming.pair(rows[i][word], rows[i + 1][word]) for i in (0, 2)]
            for half in range(2):
                right += [pairs[0][half], pairs[1][half]]
        left = [low[0], high[0], low[1], high[1]]
        self.cores.multiply(self.kind, [self.sums], left, right)

    def keep(self, sums: Memory, first: Value, pitch: int) -> None:
        """See ``Dots``: a lane has 16 columns, from ``16 t`` on."""
        b, four = self.builder, replace(sums, vector=4, shape=(sums.shape[0] // 4,))
        for half in range(len(self._own)):
            row = b.let(self.g + 8 * half)
            with b.if_(row < self.rows.count):
                at = b.let((first + row * pitch + 16 * self.t) // 4)
                for i in range(4):
                    which = 2 * half + i // 2
                    tiles = self.sums[4 * (i % 2) : 4 * (i % 2) + 4]
                    four[at + i] = b.vector([tile[which] for tile in tiles])


class _Floats(_Streamed):
    """Of f32."""

    def __init__(
        self, dispatch: Dispatch, streaming: Streaming, columns: Columns, rows: Rows
    ) -> None:
        super().__init__(dispatch, streaming, columns, rows)
        b = self.builder
        self.near, self.far = b.let(self.lane % 8, "near"), b.let(self.lane // 8, "far")
        self.sums: list[list[Variable]] = [
            [b.variable(0.0, "c", dtypes.f32) for _ in range(4)] for _ in range(rows.count)
        ]

    def _numbers(self, words: Sequence[Value]) -> list[Value]:
        b = self.builder
        return [b.let(b.of_bits(word, dtypes.f32)) for word in words]

    def _reduce(self, masks: Sequence[int]) -> None:
        """Add up what the lanes have whose numbers differ in these bits."""
        b = self.builder
        for row in self.sums:
            for total in row:
                for mask in masks:
                    total.set(total + b.shuffle_xor(b.let(total), mask))


class FloatsByTerms(_Floats):
    """Of f32 whose terms are contiguous: 16 columns by 32 terms. A lane reads four terms, from ``4 near`` on, of the columns ``far``, ``far + 4`` and so on."""

    def start(self, batch: Number, column: Value) -> None:
        """See ``Dots``."""
        own = [self._clipped(column + (self.far + 4 * i), self.columns.extent) for i in range(4)]
        self._bases = [self._base(batch, one) for one in own]

    def load(self, step: Value, inside: Value | None = None) -> list[Value]:
        """See ``Dots``."""
        piece = self.builder.let(step * 8 + self.near)
        count = ceil_div(self.columns.terms, self.columns.layout.piece)
        return [word for base in self._bases for word in self._piece(base, piece, count, inside)]

    def add(self, words: Sequence[Value], step: Value) -> None:
        """See ``Dots``."""
        b, memory, pitch = self.builder, self.rows.view(4, floats=True), self.rows.pitch
        right = self._numbers(words)
        at = b.let(step * 8 + self.near)
        for row, totals in enumerate(self.sums):
            left = b.let(memory[b.let(at + row * pitch // 4)]).parts
            for i, total in enumerate(totals):
                for x in range(4):
                    total.set(b.fma(left[x], right[4 * i + x], total))

    def keep(self, sums: Memory, first: Value, pitch: int) -> None:
        """See ``Dots``."""
        b = self.builder
        self._reduce((1, 2, 4))
        with b.if_(self.near == 0):
            for row, totals in enumerate(self.sums):
                for i, total in enumerate(totals):
                    sums[b.let(first + row * pitch + (self.far + 4 * i))] = total


class FloatsByColumns(_Floats):
    """Of f32 whose columns are contiguous: 32 columns by 4 terms. A lane reads four columns, from ``4 near`` on, of term ``far``."""

    def start(self, batch: Number, column: Value) -> None:
        """See ``Dots``."""
        piece = self._clipped(column // 4 + self.near, ceil_div(self.columns.extent, 4))
        self._bases = [self._base(batch, piece)]

    def load(self, step: Value, inside: Value | None = None) -> list[Value]:
        """See ``Dots``."""
        term = self.builder.let(step * 4 + self.far)
        return self._piece(self._bases[0], term, self.columns.terms, inside)

    def add(self, words: Sequence[Value], step: Value) -> None:
        """See ``Dots``."""
        b, pitch, count = self.builder, self.rows.pitch, self.rows.count
        width = min(pitch, 4)
        memory = self.rows.view(width, floats=True)
        right = self._numbers(words)
        at = b.let((step * 4 + self.far) * (pitch // width))
        left = [part for i in range(pitch // width) for part in b.let(memory[at + i]).parts]
        for row in range(count):
            for x, total in enumerate(self.sums[row]):
                total.set(b.fma(left[row], right[x], total))

    def keep(self, sums: Memory, first: Value, pitch: int) -> None:
        """See ``Dots``."""
        b, four = self.builder, replace(sums, vector=4, shape=(sums.shape[0] // 4,))
        self._reduce((8, 16))
        with b.if_(self.far == 0):
            for row, totals in enumerate(self.sums):
                four[b.let((first + row * pitch + 4 * self.near) // 4)] = b.vector(totals)


def dots_of(
    dispatch: Dispatch, streaming: Streaming, cores: Cores, columns: Columns, rows: Rows
) -> Dots:
    """The dot products of a warp with columns that lie so."""
    if columns.layout.dtype.itemsize == 2:
        halves = HalvesByTerms if rows.step.by_terms else HalvesByColumns
        return halves(dispatch, streaming, columns, rows, cores)
    floats = FloatsByTerms if rows.step.by_terms else FloatsByColumns
    return floats(dispatch, streaming, columns, rows)
