"""How the operands of a product are read: offsets from numbers of rows and terms, vectors as they are stored, and as numbers to multiply."""

from __future__ import annotations

from collections.abc import Sequence

from ....graph import dtypes
from ....graph.dtypes import DType
from ....lower.specs import sizes
from ...elements.neighbours import decoded_neighbours
from ...ir.index import Number
from ..builder import Memory, Operand, Simt, Value, Variable, is_packed
from ..dispatch import Dispatch
from ..elements import ThreadElements
from .product import Steps, View


class Reader:
    """Reads one operand of a product.

    Args:
        dispatch: where the code goes; the operand is declared as the view's vectors.
        view: how the operand is read.
        kept: the type that its elements are multiplied in.
    """

    def __init__(self, dispatch: Dispatch, view: View, kept: DType) -> None:
        self.dispatch = dispatch
        self.builder = dispatch.builder
        self.view = view
        self.kept = kept
        self.decoded = view.leaf.op.facts.decodes
        if view.vector > 1 and not self.decoded:
            dispatch.as_vectors(self.memory, view.vector)

    @property
    def memory(self) -> Memory:
        """The operand's buffer."""
        return self.dispatch.operand(self.view.leaf)

    def base(self, elements: ThreadElements, batch: Number, free: Number) -> Number:
        """The place of a row's (or column's) first term; along ``free`` vectors, their number."""
        places = elements.places
        start = places.add(offset(elements, batch, self.view.batch), self.view.offset)
        return places.add(start, offset(elements, free, self.view.free))

    def step(self, elements: ThreadElements, term: Number) -> Number:
        """How far a term is from the first; along ``summed`` vectors, their number."""
        return offset(elements, term, self.view.summed)

    def load(self, elements: ThreadElements, place: Number) -> Value:
        """What lies at a place, as it is stored; an element of a type of its own as a number."""
        if self.decoded:
            return self._decode(elements, place)
        if self.view.vector > 1:
            return self.memory[place]
        registers, dtype = elements.registers, self.view.leaf.dtype
        found: Operand = registers.cast(registers.load(self.memory, place, dtype), dtype, self.kept)
        return found

    def _decode(self, elements: ThreadElements, place: Number) -> Value:
        """The elements that would lie at a place."""
        b, leaf, count = self.builder, self.view.leaf, self.view.vector
        if count == 1:
            return b.let(elements.at(leaf, elements.places.split(place, sizes(leaf))))
        *rows, last = sizes(leaf)
        *before, number = elements.places.split(place, [*rows, last // count])
        first = elements.places.mul(number, count)
        return b.vector(
            [b.let(x) for x in decoded_neighbours(elements, leaf, before, first, count)]
        )

    def wide(self, raw: Value) -> Value:
        """A vector that ``load`` gave, as numbers to multiply."""
        b, dtype = self.builder, self.view.leaf.dtype
        if not is_packed(dtype) or self.view.vector == 1:
            return raw
        if dtype is dtypes.f16:
            return b.vector([b.halves(raw.x), b.halves(raw.y)])
        words = [bits for word in (raw.x, raw.y) for bits in (word << 16, word & 0xFFFF0000)]
        return b.of_bits(b.vector(words), dtypes.f32)


def offset(elements: ThreadElements, number: Number, axes: Steps) -> Number:
    """Where an index lies, from its number among all."""
    places = elements.places
    index = places.split(number, [size for size, _ in axes])
    total: Number = 0
    for i, (_, stride) in zip(index, axes, strict=True):
        total = places.add(total, places.mul(i, stride))
    return total


def multiply_add(b: Simt, kept: DType, total: Value, left: Value, right: Value) -> Value:
    """One more product, of numbers or vectors of them."""
    return b.fma(left, right, total) if kept is dtypes.f32 else total + left * right


# --------------------------------------------------------------------------- sums of one thread


class ThreadSums:
    """Sums that one thread keeps in registers, read straight from memory: some rows by some columns.

    Args:
        readers: of A and of B.
        elements: computes offsets.
        bases: for A and for B, the places of its rows or columns; of fours of them along ``free`` vectors.
        counts: rows and columns.

    Attributes:
        sums: those of all columns, row by row.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        elements: ThreadElements,
        readers: Sequence[Reader],
        bases: Sequence[Sequence[Number]],
        counts: tuple[int, int],
    ) -> None:
        self.builder = dispatch.builder
        self.elements = elements
        self.readers = readers
        self.bases = bases
        self.kept = readers[0].kept
        self.terms = terms_of([reader.view for reader in readers])
        rows, self.columns = counts
        self.sums: list[Variable] = [
            self.builder.variable(0, f"sum{i}_{j}", self.kept)
            for i in range(rows)
            for j in range(self.columns)
        ]

    def load(self, group: Number, inside: Value | None = None) -> list[list[list[Value]]]:
        """Read the terms of a group; returns values for A and for B, by term and by row or column.

        Where ``inside`` is false all are 0; they are read even so.
        """
        return [
            self._side(reader, bases, group, inside)
            for reader, bases in zip(self.readers, self.bases, strict=True)
        ]

    def _side(
        self, reader: Reader, bases: Sequence[Number], group: Number, inside: Value | None
    ) -> list[list[Value]]:
        b, elements, places, view = self.builder, self.elements, self.elements.places, reader.view

        def read(place: Number) -> Value:
            raw = reader.load(elements, place)
            if inside is not None:
                raw = b.let(b.choose(inside, raw, 0))
            return b.let(reader.wide(raw)) if is_packed(view.leaf.dtype) else raw

        found: list[list[Value]] = [[] for _ in range(self.terms)]
        if view.along == "summed" and view.vector > 1:
            step = reader.step(elements, group)
            for base in bases:
                wide = read(places.add(base, step))
                for term in range(self.terms):
                    found[term].append(wide[term])
            return found
        for term in range(self.terms):
            step = reader.step(elements, places.add(places.mul(group, self.terms), term))
            for base in bases:
                found[term] += read(places.add(base, step)).parts
        return found

    def add(self, loaded: Sequence[Sequence[Sequence[Value]]]) -> None:
        """Add the products of what ``load`` gave."""
        left, right = loaded
        for term in range(self.terms):
            for number, total in enumerate(self.sums):
                i, j = divmod(number, self.columns)
                a, c = left[term][i], right[term][j]
                total.set(multiply_add(self.builder, self.kept, total, a, c))


def terms_of(views: Sequence[View]) -> int:
    """Terms that are read together: as many as a vector along the sums has."""
    return max((view.vector for view in views if view.along == "summed"), default=1)
