"""Gradients of keys and values in parts, one for each query head: where blocks of keys, each for all heads that share them, are too few to keep a GPU busy.

Workgroups leave their sums in scratch memory, and a dispatch adds those of the heads that share a key head, in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ....graph import dtypes
from ....graph.integers import ceil_div, round_up
from ....lower.plan import Spec
from ...ir.index import Number
from ...problems.attention import Described
from ..builder import Memory, Value
from ..dispatch import Stage
from ..machine import GRANULE, Machine
from .operands import Place, Reader
from .results import RowBlock, are_whole, write_block

THREADS = 256
ROWS = 32
"""Rows of a workgroup that adds parts."""


@dataclass(frozen=True)
class Parts:
    """The parts of some gradients in scratch memory, in f32.

    Attributes:
        attention: the gradients.
        names: of which operands, keys and values among them.
        start: the first byte.
    """

    attention: Described
    names: tuple[str, ...]
    start: int

    @classmethod
    def of(cls, attention: Described, found: Mapping[str, int], used: int) -> Parts:
        """The parts of those results that are gradients of keys or values, after so many bytes of scratch memory."""
        names = tuple(name for name in ("k", "v") if name in found)
        return cls(attention, names, round_up(used, GRANULE))

    def quads(self, name: str) -> int:
        """Vectors of 4 numbers of a row."""
        attention = self.attention
        return ceil_div(attention.width if name == "k" else attention.value_width, 4)

    @property
    def _rows(self) -> int:
        return self.attention.batch * self.attention.heads * self.attention.keys

    @property
    def _count(self) -> int:
        return 4 * self._rows * sum(map(self.quads, self.names))

    @property
    def end(self) -> int:
        """The byte after the last."""
        return self.start + 4 * self._count

    def memory(self, reader: Reader, vector: int = 4) -> Memory:
        """All of them in a dispatch."""
        return reader.dispatch.scratch(self.start, self._count, dtypes.f32, vector=vector)

    def row(self, reader: Reader, name: str, place: Place, row: Number) -> Value:
        """The number of a row's first vector; the head of a place is that of queries."""
        first = self._rows * self.quads("k") if name == "v" and "k" in self.names else 0
        head = (place.batch * self.attention.heads + place.head) * self.attention.keys
        return reader.builder.let((head + row) * self.quads(name) + first, "part_row")

    def merge(self, spec: Spec, machine: Machine, found: Mapping[str, int]) -> Stage:
        """The dispatch that adds parts and writes the results ``found``."""
        attention = self.attention
        whole = are_whole(spec, [found[name] for name in self.names])
        reader = Reader(spec, machine, attention, THREADS, whole)
        b, blocks = reader.builder, ceil_div(attention.keys, ROWS)
        number = b.let(b.group // blocks, "number")
        place = Place(
            batch=b.let(number // attention.kv_heads, "batch"),
            head=b.let(number % attention.kv_heads, "kv_head"),
            first=b.let(b.group % blocks * ROWS, "first"),
        )
        memory = self.memory(reader)
        for name in self.names:
            self._add(reader, memory, name, spec, found[name], place)
        return reader.dispatch.finish(blocks * attention.kv_heads * attention.batch)

    def _add(  # many parameters: a result of a dispatch
        self, reader: Reader, memory: Memory, name: str, spec: Spec, number: int, place: Place
    ) -> None:
        b, attention = reader.builder, self.attention
        head = b.let(place.head * attention.group, "query_head")
        step = attention.keys * self.quads(name)

        def vector(row: Value, quad: Value) -> Value:
            first = self.row(reader, name, Place(place.batch, head, 0), place.first + row)
            item = b.let(first + quad, "item")
            total: Value = memory[item]
            for member in range(1, attention.group):
                total = total + memory[item + member * step]
            return b.let(total)

        def element(row: Value, column: Value) -> Value:
            four = vector(row, b.let(column >> 2))
            return b.let(four[column & 3])

        node = spec.body.outputs[number]
        block = RowBlock(node, [number], place, ROWS, attention.keys, element, vector)
        write_block(reader, block)
