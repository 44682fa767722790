"""What all products of a chain have in common: what they multiply, and where their sums go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....codegen.ir.index import Number
from ....codegen.simt.builder import Memory, Operand, Value
from ....codegen.simt.dispatch import operand_number
from ....graph import dtypes
from ....graph.cached import cached_property
from ....graph.dtypes import DType
from ....graph.errors import InternalError
from ....graph.node import Node
from ....lower.specs import sizes
from .code import Code, StageElements
from .forms import Form, Work
from .roles import Matrix, matrix_of, tail_of

AHEAD = 8
"""Vectors of the matrix that a thread asks for before it waits."""
SUMS = 32
"""Sums of a thread."""


@dataclass(frozen=True)
class Share:
    """The columns of a block.

    Attributes:
        first: its first unit of columns.
        count: how many it has.
        most: how many any block has.
    """

    first: Value
    count: Value
    most: int


def shared_out(code: Code, units: int) -> Share:
    """Some units shared out to all blocks: neighbours to one block."""
    b, blocks = code.builder, code.shape.blocks
    each, more = divmod(units, blocks)
    first = b.let(b.group * each + b.min(b.group, more), "first")
    count = b.let(b.choose(b.group < more, b.index(each + 1), b.index(each)), "count")
    return Share(first, count, each + (more > 0))


def numbers_of(code: Code, vector: Value, dtype: DType) -> list[Value]:
    """The numbers of a load of 16 bytes as f32."""
    b = code.builder
    found: list[Value] = []
    for word in b.let(vector).parts:
        if dtype is dtypes.f32:
            found.append(b.let(b.of_bits(word, dtypes.f32)))
        elif dtype is dtypes.f16:
            found += [b.let(part) for part in b.let(b.halves(word)).parts]
        else:
            bits = (word << 16, word & 0xFFFF0000)
            found += [b.let(b.of_bits(half, dtypes.f32)) for half in bits]
    return found


Ahead = Sequence[tuple[Node, Callable[[], Operand]]]
"""Elements of operands that are on their way, and what gives them when they are wanted."""


class Rows:
    """A product in a stage: what it multiplies, and where its sums go.

    Args:
        code: of the chain.
        form: of the stage.
    """

    def __init__(self, code: Code, form: Form) -> None:
        if form.main is None:
            raise InternalError("a stage of a product has no product")
        self.code, self.builder = code, code.builder
        self.main: Work = form.main
        matrix = matrix_of(code.spec(self.main))
        if matrix is None:
            raise InternalError("a kernel that is no product came to the code of those")
        self.matrix: Matrix = matrix
        product = matrix.product
        self.m, self.k, self.n = product.m, product.k, product.n
        self.taps: tuple[int, ...] = (0,)
        self.last = form.tail
        if matrix.tail is not None:
            self.taps, self.n = matrix.tail.starts, matrix.tail.columns
        if self.last is not None:
            tail = tail_of(code.spec(self.last), self.m)
            if tail is None:
                raise InternalError("what comes after a product does not fit it")
            self.taps, self.n = tail.starts, tail.columns
        place = self.main.operands[matrix.weight]
        self.dtype: DType = place.dtype
        self.vector = matrix.vector
        self.weights: Memory = code.vectors(place)
        self.strides: list[Value] | None = None
        if form.strides >= 0:
            # Rows and vectors of a row: they are the program's to choose.
            self.strides = [
                self.builder.let(self.builder.narrowed(n)) for n in code.given[form.strides]
            ]
        self.x = self.main.operands[matrix.x]
        rows = code.memory(self.x)
        self.rows: Memory = rows.singles if rows.packed else rows

    # ------------------------------------------------------------- operands

    def load(self, row: Number, vector: Number) -> Value:
        """A vector of a row of the matrix, as it lies in memory."""
        b, pitch = self.builder, self.matrix.pitch // self.vector
        start = self.matrix.product.operands[1].offset // self.vector
        if self.strides is None:
            return b.let(b.load(self.weights, b.index(row) * pitch + vector + start), "weights")
        down, across = self.strides
        at = (b.index(row) + start // pitch) * down + (b.index(vector) + start % pitch) * across
        return b.let(b.load(self.weights, at), "weights")

    def number(self, row: int, term: Value) -> Value:
        """A number of the rows as f32."""
        b = self.builder
        value = b.load(self.rows, term + row * self.k)
        return b.let(self.as_f32(value), "x")

    def as_f32(self, value: Value) -> Operand:
        """An element of the rows as f32."""
        b = self.builder
        if self.x.dtype is dtypes.bf16:
            return b.of_bits(b.zext(value, b.index(0).type) << 16, dtypes.f32)
        if self.x.dtype is dtypes.f16:
            return b.fpext(value, b.constant(0.0, dtypes.f32).type)
        return value

    # ------------------------------------------------------------- results

    def elements(self) -> list[StageElements]:
        """The elements of what comes after the sums: of the product's kernel, and of the one after it."""
        last = [] if self.last is None else [self.code.elements(self.last)]
        return [self.code.elements(self.main), *last]

    @cached_property
    def beside(self) -> list[Node]:
        """Operands of which a result reads the element in its own place."""
        node, body = self.matrix.product.node, self.code.spec(self.main).body
        factors = (self.matrix.x, self.matrix.weight)
        found = []
        for number, leaf in enumerate(self.code.spec(self.main).inputs):
            users = body.users(leaf)
            alike = (user.shape == node.shape and "elementwise" in user.op.traits for user in users)
            # What the stage itself makes is not there before.
            early = number not in factors and self.main.operands[number].what != "local"
            early = early and self.matrix.tail is None
            if early and sizes(leaf) == sizes(node) and all(alike):
                found.append(leaf)
        return found

    def ahead(self, row: Number, column: Value) -> Ahead:
        """What a result reads besides its sums, asked for before the rows are there."""
        if not self.beside:
            return ()
        return [(leaf, self._ahead(leaf, row, column)) for leaf in self.beside]

    def _ahead(self, leaf: Node, row: Number, column: Value) -> Callable[[], Operand]:
        code, b = self.code, self.builder
        own = code.elements(self.main)
        index = self._index(own, row, column)
        place = self.main.operands[operand_number(leaf)]
        if place.what == "words":
            at = b.let(own.places.value(own.places.offset(index, sizes(leaf))))
            asked = code.exchange.asked(code.words(place), at)
            return lambda: code.of_word(code.exchange.settled(asked), place.dtype)
        value = own.at(leaf, index)
        return lambda: value

    def _index(self, own: StageElements, row: Number, column: Number) -> list[Number]:
        at = own.places.add(own.places.mul(row, self.matrix.product.n), column)
        return own.places.split(at, sizes(self.matrix.product.node))

    def finish(self, row: Number, column: Value, sums: Sequence[Value], ahead: Ahead = ()) -> None:
        """Take the sums of a result, one for each tap, to where they go."""
        if self.matrix.tail is not None:
            self._finish_taps(row, column, sums)
            return
        code, (own, *last) = self.code, self.elements()
        node, body = self.matrix.product.node, code.spec(self.main).body
        found: list[Operand] = []
        for tap, total in zip(self.taps, sums, strict=True):
            at = own.places.add(
                own.places.mul(row, self.matrix.product.n), own.places.add(column, tap)
            )
            index = own.places.split(at, sizes(node))
            for leaf, value in ahead:
                own.give(leaf, value())
            own.give(node, own.registers.reduced("sum", total, node.dtype))
            with own.scope():
                values = [own.at(output, index) for output in body.outputs]
            if not last:
                for value, places in zip(values, self.main.results, strict=True):
                    code.leave(own, value, places, at)
                return
            found.append(values[0])
        self._finish_tail(last[0], row, column, found)

    def _finish_taps(self, row: Number, column: Value, sums: Sequence[Value]) -> None:
        """The same where results are made of several columns."""
        code, node = self.code, self.matrix.product.node
        own, body = code.elements(self.main), code.spec(self.main).body
        found = [own.registers.reduced("sum", total, node.dtype) for total in sums]
        values = dict(zip(self.taps, found, strict=True))
        for user in body.users(node):
            own.give(user, values[int(user.attrs["starts"][-1])])
        at = own.places.add(own.places.mul(row, self.n), column)
        index = own.places.split(at, sizes(body.outputs[0]))
        done = [own.at(output, index) for output in body.outputs]
        for value, places in zip(done, self.main.results, strict=True):
            code.leave(own, value, places, at)

    def _finish_tail(
        self, elements: StageElements, row: Number, column: Value, found: Sequence[Operand]
    ) -> None:
        work = self.last
        if work is None:
            return
        body = self.code.spec(work).body
        values = dict(zip(self.taps, found, strict=True))
        for node in body.nodes:
            if node.op.name == "slice":
                elements.give(node, values[int(node.attrs["starts"][-1])])
        (output,) = body.outputs
        at = elements.places.add(elements.places.mul(row, self.n), column)
        index = elements.places.split(at, sizes(output))
        self.code.leave(elements, elements.at(output, index), work.results[0], at)


def halves(count: int) -> list[int]:
    """The masks of shuffles that add up so many lanes."""
    return [1 << k for k in reversed(range(count.bit_length() - 1))]
