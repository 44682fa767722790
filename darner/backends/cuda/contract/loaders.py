"""Tiles of operands on their way to shared memory: a thread's share of pieces of 16 bytes, swizzled so that ``ldmatrix`` meets no bank twice.

Operands that lie in whole pieces are brought by copies that run by themselves. Of others a thread reads words, shifts elements to their places or gathers what is contiguous along the other axis, and writes the piece when it has
multiplied what was there before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from ....codegen.ir.index import Number
from ....codegen.simt.builder import Memory, Value
from ....codegen.simt.contract.load import offset
from ....codegen.simt.dispatch import Dispatch
from ....codegen.simt.elements import ThreadElements
from ....graph.integers import ceil_div
from ..instructions.warp import Cores
from .operands import PIECE, Layout

ROW = 128
"""Bytes of K in a tile."""


@dataclass(frozen=True)
class Source:
    """An operand: how it lies, the memory that it lies in as items of 16 bytes (or of a word), its rows (or columns) and terms, and the elements of that memory."""

    layout: Layout
    memory: Memory
    extent: int
    terms: int
    elements: int

    @property
    def loader(self) -> type[Loader]:
        """What brings its tiles: in whole pieces where it lies in such."""
        return PieceLoader if self.layout.whole else WordLoader


@dataclass(frozen=True)
class Block:
    """Where a block of threads works: a matrix of the batch, the first row or column, and its tile's rows and place in a stage."""

    batch: Number
    first: Value
    rows: int
    at: int


Shifts = tuple[int | None, int | None]


class Loader(ABC):
    """Brings tiles of one operand to shared memory, in pieces of 16 bytes that each thread has a share of.

    Args:
        dispatch: where the code goes.
        cores: copies.
        source: the operand.
        block: which part of it.
        shifts: so many low bits of a line's number do not count in its swizzle, as lines that 8 lanes read together differ in what is above: of operands along K, and of others; None swizzles nothing,
            and -1 by twice the number, for lines of which 8 lanes read two pieces each.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        cores: Cores,
        source: Source,
        block: Block,
        shifts: Shifts = (0, 0),
    ) -> None:
        b = self.builder = dispatch.builder
        self.cores, self.source, self.block = cores, source, block
        self.elements: ThreadElements = dispatch.elements()
        layout = source.layout
        self.along_k = layout.along == "summed"
        self.across = ROW // PIECE if self.along_k else block.rows * layout.dtype.itemsize // PIECE
        self.lines = block.rows if self.along_k else ROW // layout.dtype.itemsize
        self.apart = dispatch.threads // self.across
        self.piece, self.line = self._share()
        shift = shifts[not self.along_k]
        count = self.lines // self.apart
        pitch = self.across * PIECE
        if shift is None or self.apart % (4 if shift < 0 else 8 << shift) == 0:
            # The swizzle is the same for all of them.
            first = self._place(self.line, shift)
            self.tos = [first + i * self.apart * pitch for i in range(count)]
        else:
            lines = [b.let(self.line + i * self.apart) for i in range(count)]
            self.tos = [self._place(line, shift) for line in lines]

    def _share(self) -> tuple[Value, Value]:
        """Which piece of a line a thread brings, and of which line the first: neighbours bring what lies together."""
        b = self.builder
        return b.let(b.local % self.across, "piece"), b.let(b.local // self.across, "line")

    def _place(self, line: Value, shift: int | None) -> Value:
        """Where this thread's piece of a line goes in a stage."""
        b = self.builder
        piece = self.piece
        if shift is not None:
            piece = b.let(piece ^ ((line & 3) << 1 if shift < 0 else (line >> shift) & 7))
        return b.let(line * (self.across * PIECE) + (piece << 4) + self.block.at, "to")

    def _kept(self, number: Number) -> Number:
        return number if isinstance(number, int) else self.builder.let(number)

    @abstractmethod
    def start(self, block: Value, stage: Value) -> Callable[[], None]:
        """Start to copy the tile of a block of terms to the stage at an address, zeros beyond the operand; returns what ends it."""


class PieceLoader(Loader):
    """Brings an operand that lies in whole pieces, by copies that run by themselves."""

    def __init__(
        self,
        dispatch: Dispatch,
        cores: Cores,
        source: Source,
        block: Block,
        shifts: Shifts = (0, 0),
    ) -> None:
        super().__init__(dispatch, cores, source, block, shifts)
        b, layout, places = self.builder, source.layout, self.elements.places
        origin = places.add(
            offset(self.elements, block.batch, layout.in_pieces("batch")),
            layout.offset // layout.piece,
        )
        free = layout.in_pieces("free")
        self.bases: list[Number] = []
        if self.along_k:
            for i in range(self.lines // self.apart):
                row = b.let(b.min(block.first + (self.line + i * self.apart), source.extent - 1))
                self.bases.append(self._kept(places.add(origin, offset(self.elements, row, free))))
        else:
            piece = b.let(block.first // layout.piece + self.piece)
            last = ceil_div(source.extent, layout.piece) - 1
            inside = b.let(b.min(piece, last))
            self.bases.append(self._kept(places.add(origin, offset(self.elements, inside, free))))
            self.width = self._bytes_of(piece, source.extent)

    def _bytes_of(self, piece: Value, extent: int) -> Value | int:
        """Bytes of a piece that there are, along an axis of so many elements."""
        b, layout = self.builder, self.source.layout
        count = ceil_div(extent, layout.piece)
        whole = b.choose(piece < count, b.index(PIECE), 0)
        if extent % layout.piece == 0:
            return b.let(whole)
        rest = extent % layout.piece * layout.dtype.itemsize
        return b.let(b.choose(piece == count - 1, b.index(rest), whole))

    def start(self, block: Value, stage: Value) -> Callable[[], None]:
        """See ``Loader``."""
        b, source, layout = self.builder, self.source, self.source.layout
        places = self.elements.places
        steps = layout.in_pieces("summed")
        terms = ROW // layout.dtype.itemsize
        if self.along_k:
            piece = b.let(block * self.across + self.piece)
            nbytes = self._bytes_of(piece, source.terms)
            inside = b.let(b.min(piece, ceil_div(source.terms, layout.piece) - 1))
            moved = self._kept(offset(self.elements, inside, steps))
            for base, to in zip(self.bases, self.tos, strict=True):
                item = places.value(places.add(base, moved))
                self.cores.copy_async(b.let(stage + to), source.memory, item, nbytes)
            return nothing
        for i, to in enumerate(self.tos):
            term = b.let(block * terms + (self.line + i * self.apart))
            inside = b.let(b.min(term, source.terms - 1))
            item = places.value(places.add(self.bases[0], offset(self.elements, inside, steps)))
            nbytes = b.let(b.choose(term < source.terms, self.width, 0))
            self.cores.copy_async(b.let(stage + to), source.memory, item, nbytes)
        return nothing


class WordLoader(Loader):
    """Brings an operand that does not lie in whole pieces, word by word.

    Elements of 16 bits that are neighbours in a piece are neighbours in memory too, from any element on: a thread reads them and shifts them to their places. Those of f32 are copied one by one, and may be any number of elements apart.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        cores: Cores,
        source: Source,
        block: Block,
        shifts: Shifts = (0, 0),
    ) -> None:
        super().__init__(dispatch, cores, source, block, shifts)
        layout, places = source.layout, self.elements.places
        self.narrow = layout.dtype.itemsize == 2
        self.origin = places.add(offset(self.elements, block.batch, layout.batch), layout.offset)
        others = [step for axes in (layout.batch, layout.free, layout.summed) for _, step in axes]
        others.remove(1)
        # Every piece begins at a whole word.
        self.even = self.narrow and layout.offset % 2 == 0 and all(n % 2 == 0 for n in others)
        self.last = ceil_div(source.elements * layout.dtype.itemsize, 4) - 1

    def start(self, block: Value, stage: Value) -> Callable[[], None]:
        """See ``Loader``."""
        b, layout = self.builder, self.source.layout
        terms = ROW // layout.dtype.itemsize
        found = []
        for i, to in enumerate(self.tos):
            line = b.let(self.line + i * self.apart)
            along = b.let(self.piece * layout.piece)
            of_term, of_row = (along, line) if self.along_k else (line, along)
            row, term = b.let(self.block.first + of_row), b.let(block * terms + of_term)
            at = b.let(stage + to)
            if self.narrow:
                found.append((at, self._words(row, term)))
            else:
                self._copy(at, row, term)

        def write() -> None:
            for at, words in found:
                self.cores.store_four(at, words)

        return write

    def _left(self, row: Value, term: Value) -> Value:
        """How many elements of a piece there are that begins at a row (or column) and a term."""
        b, source = self.builder, self.source
        ends = (term, source.terms), (row, source.extent)
        (first, extent), (other, others) = ends if self.along_k else ends[::-1]
        return b.let(b.choose(other < others, extent - b.min(first, extent), 0))

    def _at(self, row: Value, term: Value) -> Value:
        """Where an element lies, or one that there is."""
        b, places, source = self.builder, self.elements.places, self.source
        row, term = b.let(b.min(row, source.extent - 1)), b.let(b.min(term, source.terms - 1))
        at = places.add(self.origin, offset(self.elements, row, source.layout.free))
        found = places.value(places.add(at, offset(self.elements, term, source.layout.summed)))
        return b.let(found)

    def _words(self, row: Value, term: Value) -> list[Value]:
        """The words of eight elements of 16 bits that lie together."""
        b, memory, left = self.builder, self.source.memory, self._left(row, term)
        at = self._at(row, term)
        first = b.let(at >> 1)
        read = [b.let(memory[b.min(first + x, self.last)]) for x in range(4 if self.even else 5)]
        if not self.even:
            odd = b.let((at & 1) != 0)
            shifted = [(read[x] >> 16) | (read[x + 1] << 16) for x in range(4)]
            read = [b.let(b.choose(odd, shifted[x], read[x])) for x in range(4)]
        return [
            b.let(b.choose(left > 2 * x + 1, word, b.choose(left > 2 * x, word & 0xFFFF, 0)))
            for x, word in enumerate(read)
        ]

    def _copy(self, to: Value, row: Value, term: Value) -> None:
        """Copy the four elements of f32 of a piece, each by itself."""
        b, left = self.builder, self._left(row, term)
        for x in range(4):
            at = self._at(row, b.let(term + x)) if self.along_k else self._at(b.let(row + x), term)
            nbytes = b.let(b.choose(left > x, b.index(4), 0))
            self.cores.copy_word_async(b.let(to + 4 * x), self.source.memory, at, nbytes)


def nothing() -> None:
    """Copies that run by themselves need no end."""


def loader_of(
    dispatch: Dispatch,
    cores: Cores,
    source: Source,
    block: Block,
    shifts: Shifts = (0, 0),
) -> Loader:
    """What brings an operand."""
    return source.loader(dispatch, cores, source, block, shifts)
