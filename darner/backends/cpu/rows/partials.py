"""Partial results of rows that are cut in pieces: one for each piece, in the shared memory, until all threads have passed."""

from __future__ import annotations

from collections.abc import Sequence

from ....codegen.elements.elements import Elements
from ....codegen.ir.index import Index, Lanes
from ....codegen.ir.types import Value, accumulator_type
from ....graph.dtypes import DType
from ..emit.template import Code
from .program import RowProgram


class Partials:
    """The partial results of one kernel, by pass, reduction, row and piece."""

    def __init__(self, code: Code, program: RowProgram, elements: Elements) -> None:
        self.memory = code.shared
        self.program = program
        self.elements = elements
        self.registers = elements.registers

    def _at(self, level: int, slot: int, row: Index, piece: Index) -> tuple[Index, DType]:
        """Where a partial result lies, and the type it is kept in."""
        program, indices = self.program, self.elements.indices
        kept = accumulator_type(program.levels[level][slot].dtype)
        earlier = sum(len(nodes) for nodes in program.levels[:level]) + slot
        number = indices.offset([earlier, row, piece], [0, program.units, program.pieces])
        lanes = 1 if program.across else program.lanes
        # Every one has eight bytes a lane, whatever its type.
        first = indices.mul(number, lanes * (8 // kept.itemsize))
        return first if program.across else Lanes(first, program.lanes), kept

    def store(self, level: int, slot: int, row: Index, piece: Index, value: Value) -> None:
        """Write a partial result."""
        offset, kept = self._at(level, slot, row, piece)
        self.registers.store(value, self.memory, offset, kept)

    def _load(self, level: int, slot: int, row: Index, piece: Index) -> Value:
        offset, kept = self._at(level, slot, row, piece)
        return self.registers.load(self.memory, offset, kept)

    def merged(self, level: int, row: Index) -> list[Value]:
        """A row's results of an earlier pass, from its pieces in their order."""
        nodes = self.program.levels[level]
        firsts = [self._load(level, slot, row, 0) for slot in range(len(nodes))]

        def merge_piece(piece: Index, totals: list[Value]) -> Sequence[Value]:
            return [
                self.registers.merge(
                    node.op.name, total, self._load(level, slot, row, piece), node.dtype
                )
                for slot, (node, total) in enumerate(zip(nodes, totals, strict=True))
            ]

        return self.elements.loop(1, self.program.pieces, merge_piece, firsts)
