"""Elements of a B that is decoded as it is read: quantised weights, of which no float is ever in memory.

B has no address. Its elements have the addresses that they would have if it lay in memory from address 0 on, so that whatever cuts a product computes with them as with
others; what reads them makes indices of these again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

from ....codegen.elements.elements import Elements
from ....codegen.elements.packed import decoded_in_block
from ....codegen.ir.emit import ir, lane_numbers, prefetch
from ....codegen.ir.index import Index, IndexMath, Lanes, i64
from ....codegen.ir.types import STORAGE_BYTES, Builder, Pointer, Value
from ....graph.node import Node
from ....lower.specs import sizes
from ....ops.quantised.scheme import QuantScheme
from ..emit.template import Code


def no_address(builder: Builder) -> Pointer:
    """Where a B lies that is in no memory."""
    found: Pointer = builder.inttoptr(i64(0), ir().PointerType())
    return found


@dataclass(frozen=True)
class Decoded:
    """A decoded operand of a kernel's product.

    Attributes:
        code: the kernel.
        node: what is decoded: a matrix, or several.
        summed: which of its axes a product sums over: one of the last two.
    """

    code: Code
    node: Node
    summed: int

    @property
    def scheme(self) -> QuantScheme:
        """How it is stored."""
        return QuantScheme(self.node.attrs["scheme"])

    @property
    def run(self) -> int:
        """Terms that lie side by side and have their scales in common."""
        return self.scheme.layout.run if self.scheme.is_packed else 1

    @property
    def summed_last(self) -> bool:
        """Whether the terms of a sum lie side by side."""
        return self.summed == self.node.rank - 1

    def leaves(self) -> list[Node]:
        """The inputs of the kernel that are read for an element."""
        found: dict[int, Node] = {}
        stack = [self.node]
        while stack:
            node = stack.pop()
            if node.op.name == "input":
                found[node.id] = node
            stack += node.operands
        return [found[id] for id in sorted(found)]


class Ahead(NamedTuple):
    """The element that something begins with: which matrix of a batch, its term and its column."""

    batch: tuple[Index, ...]
    term: Index
    column: Index


@dataclass(frozen=True)
class DecodedElements:
    """Decoded elements in a function that is being written.

    Attributes:
        operand: what is decoded.
        addresses: of the kernel's inputs that are read, by their ids.
    """

    operand: Decoded
    builder: Builder
    addresses: dict[int, Pointer]

    def first(self, address: Pointer) -> Ahead:
        """The element that has an address."""
        builder, node = self.builder, self.operand.node
        number = builder.ptrtoint(address, i64(0).type)
        number = builder.udiv(number, i64(STORAGE_BYTES["f32"]))
        *batch, row, column = IndexMath(builder).split(number, sizes(node))
        last = (column, row) if self.operand.summed_last else (row, column)
        return Ahead(tuple(batch), *last)

    def at(self, ahead: Ahead, mask: Value | None = None) -> Value:
        """The elements at an index of which one number has lanes."""
        elements = self._elements(mask)
        last = [ahead.column, ahead.term] if self.operand.summed_last else [*ahead[1:]]
        lanes = next(number.count for number in last if isinstance(number, Lanes))
        value = elements.at(self.operand.node, [*ahead.batch, *last])
        return elements.indices.spread(value, lanes)

    def of_rows(
        self, ahead: Ahead, columns: Lanes, count: int, mask: Value | None
    ) -> Iterator[Value]:
        """The elements of columns in as many rows from ``ahead`` on, all of one block: its scales are read once. Each is decoded when it is asked for."""
        elements, node = self._elements(mask), self.operand.node
        block = elements.indices.div(ahead.term, self.operand.scheme.block)
        for step in range(count):
            row = elements.indices.add(ahead.term, step)
            value = decoded_in_block(elements, node, [*ahead.batch, row, columns], block)
            yield elements.indices.spread(value, columns.count)

    def ask(self, ahead: Ahead, columns: int) -> None:
        """Prefetch the code so many columns after an element, where codes lie in memory as they are."""
        node, builder, scheme = self.operand.node, self.builder, self.operand.scheme
        codes, math = node.operands[0], IndexMath(builder)
        if codes.id not in self.addresses:
            return
        column = math.add(ahead.column, columns)
        if scheme.is_packed:
            if not self.operand.summed_last:
                return
            byte = math.div(math.mul(ahead.term, scheme.layout.bytes), scheme.block)
            index = [*ahead.batch, column, byte]
        else:
            wide = math.div(column, 2) if scheme.layout.code == "nibble" else column
            index = [*ahead.batch, ahead.term, wide]
        at = i64(math.offset(index, sizes(codes)))
        place = builder.gep(self.addresses[codes.id], [at], source_etype=ir().IntType(8))
        prefetch(builder, place)

    def _elements(self, mask: Value | None) -> Elements:
        code = self.operand.code
        some = next(iter(self.addresses.values()))
        operands = [self.addresses.get(leaf.id, some) for leaf in code.spec.inputs]
        return Elements(self.builder, code.body, operands, mask, width=code.width)


TOGETHER = 8
"""Rows that are decoded at a time, at most."""


def of_block(block: int) -> int:
    """How many rows, from a multiple of their number on, certainly lie in one block.

    >>> of_block(32), of_block(20), of_block(7)
    (8, 4, 1)
    """
    return gcd(block, TOGETHER)


def picked(builder: Builder, values: Value, first: int, count: int) -> Value:
    """Some neighbouring lanes of a vector."""
    if first == 0 and count == values.type.count:
        return values
    return builder.shuffle_vector(values, values, lane_numbers(range(first, first + count)))
