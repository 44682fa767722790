"""Where the sums of a product go: through the element-wise nodes after it to the results, or as parts of longer sums to scratch memory.

Sums come in units: four columns that are neighbours in the result, or one element. All that a unit's threads write are whole words, so nothing needs to be atomic where units are of four.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from ....graph.dtypes import DType
from ....graph.graph import Graph
from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.specs import sizes
from ....ops.faults import can_fail
from ...ir.index import Number
from ..builder import Memory, Operand, Value, is_packed
from ..dispatch import Dispatch, Stage
from ..elements import ThreadElements
from .product import Axis, Joined, Product, first_column, joined, kept_in, part_elements


@dataclass(frozen=True)
class Line:
    """A row of the product, of one matrix of the batch: what is computed once for all of its columns.

    Attributes:
        index: the indices of the batch axes and row axes, by their places in the result.
        offset: of the row's first element.
    """

    index: tuple[tuple[int, Number], ...]
    offset: Number


Conditions = Sequence[Operand | None]
"""What has to hold; None always does."""

Ahead = Sequence[tuple[Node, Sequence[Operand]]]
"""Elements of operands that a unit reads, which are on their way from memory: one for all of its columns, or one for each."""


class Sink(Protocol):
    """Takes sums."""

    unit: int
    """Columns that are taken together."""
    ahead: int
    """Values that ``read_ahead`` reads."""
    elements: ThreadElements
    """Computes what is written; forgets what is known at the end of a block of code."""

    def begin(self) -> None:
        """Read what all units read: before the first of a tile."""
        ...

    def read_ahead(self, line: Line, column: Number) -> Ahead:
        """Read the elements of operands that a unit needs, for ``write`` further on: several reads are then on their way at a time."""
        ...

    def line(self, batch: Number, row: Number) -> Line:
        """A row to write to."""
        ...

    def write(
        self,
        line: Line,
        column: Number,
        sums: Sequence[Value],
        ahead: Ahead | None = None,
        where: Conditions = (),
    ) -> None:
        """Take the sums of a unit, whose first column this is, if all of ``where`` hold; ``ahead`` is what ``read_ahead`` gave for it."""
        ...


class Results:
    """Takes sums to the kernel's results, through what is element-wise after the product.

    The dispatch is one with ``whole=product.taken.in_fours``. Of a product in halves, the sums of a unit are those of the first half, and then those of the second.
    """

    def __init__(self, dispatch: Dispatch, product: Product) -> None:
        self.dispatch = dispatch
        self.values = product.halves or (product.node,)
        product = self.product = product.taken
        self.unit = 4 if product.in_fours else 1
        if self.unit == 4:
            for memory in list(dispatch.results):
                dispatch.as_vectors(memory, 4)
        found = [joined(output, self.values) for output in dispatch.body.outputs]
        self._outputs = [one for one in found if one is not None]
        self._same, self._beside = (
            _read_with(product, dispatch.body) if self.unit == 4 else ([], [])
        )
        for leaf in {read.leaf.id: read.leaf for read in self._beside}.values():
            dispatch.as_vectors(dispatch.operand(leaf), 4)
        self._single = [leaf for leaf in self._same if prod(sizes(leaf)) == 1]
        self._once: dict[int, Operand] = {}
        self.ahead = len(self._same) - len(self._single) + 4 * len(self._beside)
        self.elements = dispatch.elements()
        known = {leaf.id for leaf in (*self._same, *(read.leaf for read in self._beside))}
        known |= {operand.leaf.id for operand in product.operands}
        leaves = dispatch.body.inputs.values()
        # Nothing but what is read ahead is read, so units that are not written can be computed.
        self._free = self.unit == 4 and all(leaf.id in known for leaf in leaves)
        self._free = self._free and not any(map(can_fail, dispatch.body.nodes))

    def begin(self) -> None:
        """See ``Sink``: numbers that stand alone."""
        for leaf in self._single:
            memory = self.dispatch.operand(leaf)
            self._once[leaf.id] = self.elements.registers.load(memory, 0, leaf.dtype)

    def read_ahead(self, line: Line, column: Number) -> Ahead:
        """See ``Sink``."""
        return self._given(self._unit(line, column)[0])

    def line(self, batch: Number, row: Number) -> Line:
        """A row of the results."""
        found = [self._split(batch, self.product.batch), self._split(row, self.product.rows)]
        places = self.elements.places
        total = places.add(found[0].offset, found[1].offset)
        return Line((*found[0].index, *found[1].index), total)

    def _split(self, number: Number, axes: Sequence[Axis]) -> Line:
        places = self.elements.places
        index = places.split(number, [axis.size for axis in axes])
        total: Number = sum(axis.first for axis in axes)
        found = []
        for i, axis in zip(index, axes, strict=True):
            inside = places.clamp(i, 0, axis.real - 1) if axis.real >= 0 else i
            total = places.add(total, places.mul(inside, axis.apart))
            found.append((axis.place, places.add(places.mul(inside, axis.every), axis.start)))
        return Line(tuple(found), total)

    def _exists(self, column: Number) -> Value | None:
        """Whether there is a column, where operands are filled up; None where that is sure."""
        places, axes = self.elements.places, self.product.columns
        if all(axis.real < 0 for axis in axes):
            return None
        found: Value | None = None
        for i, axis in zip(places.split(column, [axis.size for axis in axes]), axes, strict=True):
            if axis.real >= 0:
                hit = places.compare("<", i, axis.real)
                found = self.elements.registers.both(found, hit)
        return found

    def _unit(self, line: Line, column: Number) -> tuple[list[Number], Number]:
        """The index of a unit's first element in the result, and its offset."""
        first = self._split(column, self.product.columns)
        offset = self.elements.places.add(line.offset, first.offset)
        index: list[Number] = [0] * self.product.node.rank
        for place, i in (*line.index, *first.index):
            index[place] = i
        return index, offset

    def write(
        self,
        line: Line,
        column: Number,
        sums: Sequence[Value],
        ahead: Ahead | None = None,
        where: Conditions = (),
    ) -> None:
        """Compute the results' elements of a unit, and write them.

        Where that reads nothing, only what is written depends on ``where``: code of several units is then one block, whose instructions wait for each other less.
        """
        b = self.dispatch.builder
        exists = self._exists(column)
        where = where if exists is None else (*where, exists)
        if ahead is None or not self._free:
            with b.if_(*where):
                self._write(line, column, sums, ahead, ())
        else:
            self._write(line, column, sums, ahead, where)

    def _write(
        self,
        line: Line,
        column: Number,
        sums: Sequence[Value],
        ahead: Ahead | None,
        where: Conditions,
    ) -> None:
        elements = self.elements
        places = elements.places
        index, offset = self._unit(line, column)
        given = self._given(index) if ahead is None else ahead
        found: list[list[list[Operand]]] = []
        # All are computed before any is written: a result may lie where an operand does.
        for number in range(self.unit):
            with elements.scope():
                for node, total in zip(self.values, sums[number :: self.unit], strict=True):
                    elements.give(node, elements.registers.reduced("sum", total, node.dtype))
                for leaf, parts in given:
                    elements.give(leaf, parts[number % len(parts)])
                own = list(index)
                if number:
                    last = self.product.columns[-1].place
                    own[last] = places.add(own[last], number)
                found.append([self._values(output, own) for output in self._outputs])
        wide = self.unit > 1
        items: list[tuple[Memory, Number, Operand]] = []
        for number, memory in enumerate(self.dispatch.results):
            count = len(self._outputs[number].parts)
            for part in range(count):
                values = [row[number][part] for row in found]
                at = offset if count == 1 else self._side_by_side(index, offset, part, count)
                items.append((memory, at, self._item(values, memory) if wide else values[0]))
        b = self.dispatch.builder
        if not wide:
            for memory, at, item in items:
                elements.registers.store(item, memory, at, memory.dtype)
            return
        kept = [(memory, b.let(places.value(at) >> 2), item) for memory, at, item in items]
        with b.if_(*where):
            for memory, place, item in kept:
                memory[place] = item

    def _values(self, output: Joined, index: Sequence[Number]) -> list[Operand]:
        """The elements of a result that are made of one sum."""
        found = []
        for part in output.parts:
            value = self.elements.at(part, index)
            for cast in output.casts:
                value = self.elements.apply(cast, [value])
            found.append(value)
        return found

    def _side_by_side(
        self, index: Sequence[Number], offset: Number, part: int, count: int
    ) -> Number:
        """Where an element lies in a result of which it is in one of several parts, from where it would lie if that were all."""
        places, width = self.elements.places, sizes(self.product.node)[-1]
        row = places.mul(places.sub(offset, index[-1]), count)
        return places.add(row, places.add(index[-1], part * width))

    def _given(self, index: Sequence[Number]) -> Ahead:
        """The elements of operands that four columns read together: one for all, or one for each."""
        elements = self.elements
        places, registers = elements.places, elements.registers
        found: list[tuple[Node, list[Operand]]] = []
        for leaf in self._same:
            if leaf.id in self._once:
                found.append((leaf, [self._once[leaf.id]]))
                continue
            offset = places.offset(elements.spread(leaf, index), sizes(leaf))
            memory = self.dispatch.operand(leaf)
            found.append((leaf, [registers.load(memory, offset, leaf.dtype)]))
        for read in self._beside:
            own = elements.spread(read.node, index)
            own[-1] = places.add(own[-1], read.start)
            offset = places.offset(own, sizes(read.leaf))
            memory = self.dispatch.operand(read.leaf)
            found.append((read.node, self._four(memory, offset, read.leaf.dtype)))
        return found

    def _four(self, memory: Memory, offset: Number, dtype: DType) -> list[Operand]:
        """Four elements that lie together."""
        registers, places = self.elements.registers, self.elements.places
        four = memory[places.value(offset) >> 2]
        if not is_packed(dtype):
            return four.parts
        share = 4 // dtype.itemsize
        words = [four] * 4 if memory.words == 1 else [four[x // share] for x in range(4)]
        return [registers.unpacked(words[x], x % share, dtype) for x in range(4)]

    def _item(self, values: Sequence[Operand], memory: Memory) -> Value:
        """Four elements as a result's memory has them."""
        registers, b = self.elements.registers, self.dispatch.builder
        if not is_packed(memory.dtype):
            return b.let(b.vector(values))
        share = 4 // memory.dtype.itemsize
        words = [registers.word(values[at : at + share], memory.dtype) for at in range(0, 4, share)]
        return b.let(b.vector(words))


@dataclass(frozen=True)
class Beside:
    """What four columns read together: four elements of an operand, or of a part of its columns.

    Attributes:
        node: the operand, or the slice of it.
        leaf: the operand.
        start: the first column.
    """

    node: Node
    leaf: Node
    start: int = 0


def _read_with(product: Product, body: Graph) -> tuple[list[Node], list[Beside]]:
    """The operands of which four columns read one element, and those of which they read four that lie together.

    Only element-wise nodes of the product's shape read these, so an element is read with the product's own index.
    """
    node = product.node
    same: list[Node] = []
    beside: list[Beside] = []
    # Behind the columns there are only axes of one element.
    last = product.columns[-1].place - node.rank
    if prod(sizes(node)[last:]) != sizes(node)[last]:
        return [], []
    factors = [operand.leaf.id for operand in product.operands]
    for leaf in body.inputs.values():
        # Factors are declared as what they are multiplied from.
        if leaf.id in factors:
            continue
        if not _read_by_element(leaf, node, body):
            beside += _read_in_parts(leaf, node, body)
        elif leaf.rank < -last or leaf.shape[last] == 1:
            same.append(leaf)
        elif leaf.shape[last] == node.shape[last]:
            beside.append(Beside(leaf, leaf))
    return same, beside


def _read_by_element(value: Node, product: Node, body: Graph) -> bool:
    """Whether all that reads a value is element-wise and of the product's shape."""
    users = body.users(value)
    alike = (user.shape == product.shape and "elementwise" in user.op.traits for user in users)
    return bool(users) and all(alike)


def _read_in_parts(leaf: Node, product: Node, body: Graph) -> list[Beside]:
    """The parts of an operand's columns that are read, where nothing else is and each begins at a multiple of four."""
    found: list[Beside] = []
    for user in body.users(leaf):
        start = first_column(user)
        if (
            start is None
            or user.shape != product.shape
            or not _read_by_element(user, product, body)
        ):
            return []
        if start % 4 or sizes(leaf)[-1] % 4:
            return []
        found.append(Beside(user, leaf, start))
    return found


class Parts:
    """Takes parts of sums to scratch memory, where they lie row by row, part after part.

    Args:
        part: the number of the part that is written.
        parts: how many there are.
    """

    def __init__(self, dispatch: Dispatch, product: Product, part: Value, parts: int) -> None:
        self.dispatch = dispatch
        self.product = product
        self.part = part
        self.unit = 4 if product.n % 4 == 0 else 1
        self.ahead = 0
        self.elements = dispatch.elements()
        self.memory = scratch_of(dispatch, product, parts, self.unit)

    def begin(self) -> None:
        """See ``Sink``: there is nothing to read."""

    def read_ahead(self, line: Line, column: Number) -> Ahead:
        """See ``Sink``: there is nothing to read."""
        return ()

    def line(self, batch: Number, row: Number) -> Line:
        """A row of a part."""
        places, product = self.elements.places, self.product
        number = places.add(places.mul(self.part, product.count), batch)
        at = places.mul(places.add(places.mul(number, product.m), row), product.n)
        return Line((), at)

    def write(
        self,
        line: Line,
        column: Number,
        sums: Sequence[Value],
        ahead: Ahead | None = None,
        where: Conditions = (),
    ) -> None:
        """Write a unit."""
        b = self.dispatch.builder
        with b.if_(*where):
            place = self.elements.places.value(self.elements.places.add(line.offset, column))
            item = place if self.unit == 1 else place >> 2
            self.memory[item] = b.vector(sums)


def scratch_of(dispatch: Dispatch, product: Product, parts: int, unit: int) -> Memory:
    """The scratch memory of all parts, in units."""
    return dispatch.scratch(0, parts * part_elements(product), kept_in(product), unit)


TOGETHER = 8
"""Parts that are on their way from memory at the same time."""


def sum_of_parts(dispatch: Dispatch, product: Product, parts: int) -> Stage:
    """The dispatch that adds up the parts, in their order, and takes the sums to the results."""
    b, results = dispatch.builder, Results(dispatch, product)
    unit, places = results.unit, results.elements.places
    memory = scratch_of(dispatch, product, parts, unit)
    units = part_elements(product) // unit
    with b.if_(b.thread < units):
        total = b.variable(memory[b.thread], "total")

        def add(first: Number, count: int) -> None:
            for value in [memory[(first + i) * units + b.thread] for i in range(count)]:
                total.set(total + value)

        whole = (parts - 1) // TOGETHER * TOGETHER
        if whole:
            with b.for_(1, 1 + whole, TOGETHER, name="part") as part:
                add(part, TOGETHER)
        add(1 + whole, parts - 1 - whole)
        first = b.let(b.thread * unit)
        batch, row, column = places.split(first, (product.count, product.m, product.n))
        results.write(results.line(batch, row), column, total.parts)
    return dispatch.finish(ceil_div(units, dispatch.threads))
