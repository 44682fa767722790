"""Sums over rows that a kernel of rows makes on the way: the gradient of a norm's weight, say.

Rows come in chunks of a fixed number. Each chunk has sums of its own in the shared memory; when all are there, they are added up in their order, so that no
sum depends on how many threads there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....codegen.elements.elements import Elements
from ....codegen.ir.index import Index, Lanes, i64
from ....codegen.ir.types import Pointer, Value, accumulator_type
from ....graph.node import Node
from ..emit.template import Code
from .program import RowProgram, room


def columns_at(program: RowProgram, number: int) -> int:
    """Where the sums of all chunks for a column sum begin in the shared memory, in bytes."""
    return number * program.chunks * room(program.row_elements, 8)


class ColumnSums:
    """The column sums of one kernel: its nodes that are sums over all rows, and where their results go."""

    def __init__(
        self,
        code: Code,
        program: RowProgram,
        elements: Elements,
        columns: Sequence[tuple[Node, Pointer]],
    ) -> None:
        self.code = code
        self.program = program
        self.elements = elements
        self.columns = columns
        self.indices = elements.indices
        self.registers = elements.registers
        self.chunk: Index = 0

    def begin(self, chunk: Index) -> None:
        """What follows is of this chunk, whose sums are 0."""
        program = self.program
        self.chunk = chunk

        def clear(lanes: Lanes, _: object) -> Sequence[Value]:
            for slot, (node, _) in enumerate(self.columns):
                nothing = self.registers.neutral("sum", node.dtype, node.dtype, program.lanes)
                self._held(slot, lanes, nothing)
            return []

        self.elements.blocks(0, program.row_elements, program.lanes, clear)

    def add(self, index: list[Index], value_of: Callable[[Node], Value]) -> None:
        """Add elements of a row to the sums of its chunk."""
        for slot, (node, _) in enumerate(self.columns):
            (x,) = node.operands
            value = value_of(x)
            # Lanes beyond the row's end have a place in memory, which nobody reads.
            lanes = index[-1]
            (total,) = self._held(slot, lanes)
            total = self.registers.combine("sum", total, value, x.dtype, node.dtype)
            self._held(slot, lanes, total)

    def write(self) -> None:
        """Write the results: this thread's part of the columns, of the sums of all chunks in their order."""
        program, indices, e = self.program, self.indices, self.elements
        blocks = program.row_elements // program.lanes

        def block(number: Index, _: object) -> Sequence[Value]:
            lanes = Lanes(indices.mul(number, program.lanes), program.lanes)
            if program.space[-1] % program.lanes:
                e.mask = indices.less(lanes, program.space[-1])
            for slot in range(len(self.columns)):
                self._write_column(slot, lanes)
            e.mask = None
            return []

        e.loop(*self.code.share(blocks), block)

    def _write_column(self, slot: int, lanes: Lanes) -> None:
        node, pointer = self.columns[slot]

        def add_chunk(number: Index, totals: list[Value]) -> Sequence[Value]:
            self.chunk = number
            (other,) = self._held(slot, lanes)
            return [self.registers.merge("sum", totals[0], other, node.dtype)]

        self.chunk = 0
        first = self._held(slot, lanes)
        (total,) = self.elements.loop(1, self.program.chunks, add_chunk, first)
        total = self.registers.reduced("sum", total, node.dtype)
        self.registers.store(total, pointer, lanes, node.dtype, self.elements.mask)

    def _held(self, slot: int, lanes: Index, value: Value | None = None) -> list[Value]:
        """Sums of this chunk for a column sum: written, or read."""
        from llvmlite import ir

        program, b = self.program, self.code.builder
        first = [i64(columns_at(program, slot))]
        pointer = b.gep(self.code.shared, first, source_etype=ir.IntType(8))
        dtype = accumulator_type(self.columns[slot][0].dtype)
        start = self.indices.mul(self.chunk, room(program.row_elements, 8) // dtype.itemsize)
        offset = self.indices.add(start, lanes)
        if value is None:
            return [self.registers.load(pointer, offset, dtype)]
        self.registers.store(value, pointer, offset, dtype)
        return []
