"""How the operands of a product are read: offsets from numbers of rows and terms, vectors as they are stored, and as numbers to multiply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....backends.wgpu.text import Text, spelled
from ....graph import dtypes
from ....graph.dtypes import DType
from ...ir.index import Number
from ...ir.math import register_type
from ..builder import Memory, is_packed
from ..dispatch import Dispatch
from ..elements import ThreadElements
from .product import Steps, View

PARTS = "xyzw"


class Reader:
    """Reads one operand of a product.

    Args:
        shader: where the code goes; the operand is declared as the view's vectors.
        view: how the operand is read.
        kept: the type that its elements are multiplied in.
    """

    def __init__(self, shader: Dispatch, view: View, kept: DType) -> None:
        self.shader = shader
        self.view = view
        self.kept = kept
        self.kind = spelled(register_type(kept))
        number = int(str(view.leaf.name))
        if view.vector > 1:
            shader.as_vectors(shader.operands[number], view.vector)
        self._number = number

    @property
    def memory(self) -> Memory:
        """The operand's buffer."""
        return self.shader.operands[self._number]

    @property
    def raw(self) -> str:
        """The type of what ``load`` gives."""
        return self.kind if self.view.vector == 1 else self.memory.item

    def base(self, elements: ThreadElements, batch: Number, free: Number) -> Number:
        """The place of a row's (or column's) first term; along ``free`` vectors, their number."""
        places = elements.places
        start = places.add(offset(elements, batch, self.view.batch), self.view.offset)
        return places.add(start, offset(elements, free, self.view.free))

    def step(self, elements: ThreadElements, term: Number) -> Number:
        """How far a term is from the first; along ``summed`` vectors, their number."""
        return offset(elements, term, self.view.summed)

    def load(self, elements: ThreadElements, place: Number) -> str:
        """What lies at a place, as it is stored; an element of a type of its own as a number."""
        if self.view.vector > 1:
            text = elements.places.text(place)
            return self.shader.builder.let_text(None, f"{self.memory.name}[{text}]").text
        registers = elements.registers
        value = registers.load(self.memory, place, self.view.leaf.dtype)
        found = registers.cast(value, self.view.leaf.dtype, self.kept)
        return self.shader.builder.text(found)

    def wide(self, raw: str) -> str:
        """A vector that ``load`` gave, as numbers to multiply."""
        dtype = self.view.leaf.dtype
        if not is_packed(dtype) or self.view.vector == 1:
            return raw
        if not raw.isidentifier():
            raw = self.shader.builder.let_text(None, raw).text
        if dtype is dtypes.f16:
            return f"vec4<f32>(unpack2x16float({raw}.x), unpack2x16float({raw}.y))"
        words = ", ".join(f"{raw}.{x} << 16u, {raw}.{x} & 0xffff0000u" for x in "xy")
        return f"bitcast<vec4<f32>>(vec4<u32>({words}))"


def offset(elements: ThreadElements, number: Number, axes: Steps) -> Number:
    """Where an index lies, from its number among all."""
    places = elements.places
    index = places.split(number, [size for size, _ in axes])
    total: Number = 0
    for i, (_, stride) in zip(index, axes, strict=True):
        total = places.add(total, places.mul(i, stride))
    return total


def unsigned(text: str) -> Text:
    """A u32 expression that costs nothing to repeat, as an index."""
    from llvmlite import ir  # type: ignore[import-untyped]

    return Text(ir.IntType(32), text)


def named(shader: Dispatch, text: str) -> Text:
    """A u32 expression under a name, as an index."""
    from llvmlite import ir

    return shader.builder.let_text(ir.IntType(32), text)


def multiply_add(kind: str, total: str, a: str, b: str) -> str:
    """One more product, of numbers or vectors of them."""
    return f"fma({a}, {b}, {total})" if kind == "f32" else f"{total} + {a} * {b}"


# --------------------------------------------------------------------------- sums of one thread


class ThreadSums:
    """Sums that one thread keeps in registers, read straight from memory: some rows by some columns.

    Args:
        readers: of A and of B.
        elements: computes offsets.
        bases: for A and for B, the places of its rows or columns; of fours of them along ``free`` vectors.
        counts: rows and columns.
    """

    def __init__(
        self,
        shader: Dispatch,
        elements: ThreadElements,
        readers: Sequence[Reader],
        bases: Sequence[Sequence[Number]],
        counts: tuple[int, int],
    ) -> None:
        self.shader = shader
        self.elements = elements
        self.readers = readers
        self.bases = bases
        self.counts = counts
        self.kind = readers[0].kind
        self.terms = terms_of([reader.view for reader in readers])
        for name in self.names():
            shader.builder.line(f"var {name} = {self.kind}(0);")

    def names(self) -> list[str]:
        """The sums, row by row."""
        rows, columns = self.counts
        return [f"sum{i}_{j}" for i in range(rows) for j in range(columns)]

    def load(self, group: Any, inside: str = "") -> list[list[list[str]]]:
        """Read the terms of a group; returns, for A and for B, expressions by term and by row or column.

        Where ``inside`` is false all are 0; they are read even so.
        """
        return [
            self._side(reader, bases, group, inside)
            for reader, bases in zip(self.readers, self.bases, strict=True)
        ]

    def _side(
        self, reader: Reader, bases: Sequence[Number], group: Any, inside: str
    ) -> list[list[str]]:
        elements, places, view = self.elements, self.elements.places, reader.view

        def read(place: Number) -> str:
            raw = reader.load(elements, place)
            if inside:
                raw = f"select({reader.raw}(), {raw}, {inside})"
            wide = reader.wide(raw) if view.vector > 1 else raw
            return wide if wide.isidentifier() else self.shader.builder.let_text(None, wide).text

        found: list[list[str]] = [[] for _ in range(self.terms)]
        if view.along == "summed" and view.vector > 1:
            step = reader.step(elements, group)
            for base in bases:
                wide = read(places.add(base, step))
                for term in range(self.terms):
                    found[term].append(f"{wide}.{PARTS[term]}")
            return found
        for term in range(self.terms):
            step = reader.step(elements, places.add(places.mul(group, self.terms), term))
            for base in bases:
                value = read(places.add(base, step))
                found[term] += [f"{value}.{x}" for x in PARTS] if view.vector > 1 else [value]
        return found

    def add(self, loaded: Sequence[Sequence[Sequence[str]]]) -> None:
        """Add the products of what ``load`` gave."""
        a, b = loaded
        rows, columns = self.counts
        for term in range(self.terms):
            for i in range(rows):
                for j in range(columns):
                    total = f"sum{i}_{j}"
                    product = multiply_add(self.kind, total, a[term][i], b[term][j])
                    self.shader.builder.line(f"{total} = {product};")


def terms_of(views: Sequence[View]) -> int:
    """Terms that are read together: as many as a vector along the sums has."""
    return max((view.vector for view in views if view.along == "summed"), default=1)
