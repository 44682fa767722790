"""Where the sums of a product go: through the element-wise nodes after it to the results, or as parts of longer sums to scratch memory.

Sums come in units: four columns that are neighbours in the result, or one element. All that a unit's threads write are whole words, so nothing needs to be atomic where units are of four.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ....backends.wgpu.text import Text
from ....graph.dtypes import DType
from ....graph.graph import Graph
from ....graph.node import Node
from ....lower.specs import sizes
from ...ir.index import Number
from ...ir.math import register_type
from ..builder import Memory, is_packed
from ..dispatch import Dispatch, Stage
from ..elements import ThreadElements
from .load import PARTS, named, unsigned
from .product import Axis, Product, kept_in, part_elements


@dataclass(frozen=True)
class Line:
    """A row of the product, of one matrix of the batch: what is computed once for all of its columns.

    Attributes:
        index: the indices of the batch axes and row axes, by their places in the result.
        offset: of the row's first element.
    """

    index: tuple[tuple[int, Number], ...]
    offset: Number


class Sink(Protocol):
    """Takes sums."""

    unit: int
    """Columns that are taken together."""
    elements: ThreadElements
    """Computes what is written; forgets what is known at the end of a block of code."""

    def line(self, batch: Number, row: Number) -> Line:
        """A row to write to."""
        ...

    def write(self, line: Line, column: Any, sums: Sequence[str]) -> None:
        """Take the sums of a unit, whose first column this is."""
        ...


class Results:
    """Takes sums to the kernel's results, through what is element-wise after the product.

    The shader is one with ``whole=product.in_fours``.
    """

    def __init__(self, shader: Dispatch, product: Product) -> None:
        self.shader = shader
        self.product = product
        self.unit = 4 if product.in_fours else 1
        if self.unit == 4:
            for memory in list(shader.results):
                shader.as_vectors(memory, 4)
        self._same, self._beside = _read_with(product, shader.body) if self.unit == 4 else ([], [])
        for leaf in self._beside:
            shader.as_vectors(shader.operands[int(str(leaf.name))], 4)
        self.elements = shader.elements()
        self.kind = register_type(kept_in(product))

    def line(self, batch: Number, row: Number) -> Line:
        """A row of the results."""
        found = [self._split(batch, self.product.batch), self._split(row, self.product.rows)]
        places = self.elements.places
        total = places.add(found[0].offset, found[1].offset)
        return Line((*found[0].index, *found[1].index), total)

    def _split(self, number: Number, axes: Sequence[Axis]) -> Line:
        places = self.elements.places
        index = places.split(number, [axis.size for axis in axes])
        total: Number = 0
        for i, axis in zip(index, axes, strict=True):
            total = places.add(total, places.mul(i, axis.apart))
        return Line(tuple((axis.place, i) for axis, i in zip(axes, index, strict=True)), total)

    def write(self, line: Line, column: Any, sums: Sequence[str]) -> None:
        """Compute the results' elements of a unit, and write them."""
        elements, body = self.elements, self.shader.body
        places, node = elements.places, self.product.node
        first = self._split(column, self.product.columns)
        offset = places.add(line.offset, first.offset)
        index: list[Number] = [0] * node.rank
        for place, i in (*line.index, *first.index):
            index[place] = i
        given = self._given(index)
        found: list[list[Any]] = []
        # All are computed before any is written: a result may lie where an operand does.
        for number, text in enumerate(sums):
            with elements.scope():
                value = elements.registers.reduced("sum", Text(self.kind, text), node.dtype)
                elements.give(node, value)
                for leaf, parts in given:
                    elements.give(leaf, parts[number % len(parts)])
                own = list(index)
                if number:
                    last = self.product.columns[-1].place
                    own[last] = places.add(own[last], number)
                found.append([elements.at(output, own) for output in body.outputs])
        for number, memory in enumerate(self.shader.results):
            self._store([row[number] for row in found], memory, offset)

    def _given(self, index: Sequence[Number]) -> list[tuple[Node, list[Any]]]:
        """The elements of operands that four columns read together: one for all, or one for each."""
        elements = self.elements
        places, registers = elements.places, elements.registers
        found: list[tuple[Node, list[Any]]] = []
        for leaves, read in ((self._same, registers.load), (self._beside, self._four)):
            for leaf in leaves:
                memory = self.shader.operands[int(str(leaf.name))]
                offset = places.offset(elements.spread(leaf, index), sizes(leaf))
                value = read(memory, offset, leaf.dtype)
                found.append((leaf, value if isinstance(value, list) else [value]))
        return found

    def _four(self, memory: Memory, offset: Number, dtype: DType) -> list[Any]:
        """Four elements that lie together."""
        registers, places = self.elements.registers, self.elements.places
        four = self.shader.builder.let_text(
            None, f"{memory.name}[{places.text(offset)} >> 2u]"
        ).text
        if not is_packed(dtype):
            return [Text(register_type(dtype), f"{four}.{part}") for part in PARTS]
        share = 4 // dtype.itemsize
        words = (
            [four] * 4 if memory.words == 1 else [f"{four}.{PARTS[x // share]}" for x in range(4)]
        )
        return [registers.unpacked(words[x], f"{x % share}u", dtype) for x in range(4)]

    def _store(self, values: Sequence[Any], memory: Memory, offset: Number) -> None:
        registers, writer = self.elements.registers, self.shader.builder
        if self.unit == 1:
            registers.store(values[0], memory, offset, memory.dtype)
            return
        if is_packed(memory.dtype):
            bits = 8 * memory.dtype.itemsize
            share = 32 // bits
            packed = [registers.packed(value, memory.dtype) for value in values]
            words = [
                " | ".join(
                    f"({text} << {bits * k}u)" for k, text in enumerate(packed[at : at + share])
                )
                for at in range(0, 4, share)
            ]
        else:
            words = [writer.text(value) for value in values]
        text = words[0] if len(words) == 1 else f"{memory.item}({', '.join(words)})"
        writer.line(f"{memory.name}[{self.elements.places.text(offset)} >> 2u] = {text};")


def _read_with(product: Product, body: Graph) -> tuple[list[Node], list[Node]]:
    """The operands of which four columns read one element, and those of which they read four that lie together.

    Only element-wise nodes of the product's shape read these, so an element is read with the product's own index.
    """
    node = product.node
    same, beside = [], []
    if product.columns[-1].place != node.rank - 1:
        return [], []
    for leaf in body.inputs.values():
        users = body.users(leaf)
        alike = (user.shape == node.shape and "elementwise" in user.op.traits for user in users)
        if not users or not all(alike):
            continue
        if leaf.rank == 0 or leaf.shape[-1] == 1:
            same.append(leaf)
        elif leaf.shape[-1] == node.shape[-1]:
            beside.append(leaf)
    return same, beside


class Parts:
    """Takes parts of sums to scratch memory, where they lie row by row, part after part.

    Args:
        part: the number of the part that is written, as a u32 expression.
        parts: how many there are.
    """

    def __init__(self, shader: Dispatch, product: Product, part: str, parts: int) -> None:
        self.shader = shader
        self.product = product
        self.part = part
        self.unit = 4 if product.n % 4 == 0 else 1
        self.elements = shader.elements()
        self.memory = scratch_of(shader, product, parts, self.unit)

    def line(self, batch: Number, row: Number) -> Line:
        """A row of a part."""
        places, product = self.elements.places, self.product
        number = places.add(places.mul(unsigned(self.part), product.count), batch)
        at = places.mul(places.add(places.mul(number, product.m), row), product.n)
        return Line((), at)

    def write(self, line: Line, column: Any, sums: Sequence[str]) -> None:
        """Write a unit."""
        place = self.elements.places.text(self.elements.places.add(line.offset, column))
        if self.unit == 1:
            text, at = sums[0], place
        else:
            text, at = f"{self.memory.item}({', '.join(sums)})", f"{place} >> 2u"
        self.shader.builder.line(f"{self.memory.name}[{at}] = {text};")


def scratch_of(shader: Dispatch, product: Product, parts: int, unit: int) -> Memory:
    """The scratch memory of all parts, in units."""
    return shader.scratch(0, parts * part_elements(product), kept_in(product), unit)


TOGETHER = 8
"""Parts that are on their way from memory at the same time."""


def sum_of_parts(shader: Dispatch, product: Product, parts: int) -> Stage:
    """The dispatch that adds up the parts, in their order, and takes the sums to the results."""
    writer, results = shader.builder, Results(shader, product)
    unit, places = results.unit, results.elements.places
    memory = scratch_of(shader, product, parts, unit)
    units = part_elements(product) // unit

    def add(first: str, count: int) -> None:
        texts = [f"{memory.name}[({first} + {i}u) * {units}u + thread]" for i in range(count)]
        for name in [writer.let_text(None, text).text for text in texts]:
            writer.line(f"total += {name};")

    with writer.block(f"if (thread < {units}u)"):
        writer.line(f"var total = {memory.name}[thread];")
        whole = (parts - 1) // TOGETHER * TOGETHER
        if whole:
            head = f"for (var part = 1u; part < {1 + whole}u; part += {TOGETHER}u)"
            with writer.block(head):
                add("part", TOGETHER)
        add(f"{1 + whole}u", parts - 1 - whole)
        first = named(shader, f"thread * {unit}u")
        batch, row, column = places.split(first, (product.count, product.m, product.n))
        sums = [f"total.{part}" for part in PARTS] if unit == 4 else ["total"]
        results.write(results.line(batch, row), column, sums)
    return shader.finish(-(-units // shader.threads))
