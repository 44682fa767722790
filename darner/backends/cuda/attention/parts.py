"""Gradients of keys and values that several blocks have parts of: one for each query head, where there are too few blocks of keys for a card.

Blocks leave their sums in scratch memory, and a launch adds those of the heads that share a key head, in their order.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....codegen.simt.attention.operands import Place
from ....codegen.simt.attention.results import RowBlock, are_whole, write_block
from ....codegen.simt.builder import Memory, Value
from ....codegen.simt.dispatch import Stage
from ....graph import dtypes
from ....graph.integers import ceil_div, round_up
from ....lower.plan import Spec
from ..machine import ALIGNMENT, Machine
from .plan import Cut
from .problem import Problem
from .rows import Fragments, RowKernel

THREADS = 256
ROWS = 32
"""Rows of a block that adds parts."""
FEWEST = 2
"""Blocks for each multiprocessor, below which query heads have blocks of their own."""


@dataclass(frozen=True)
class Parts:
    """The parts of some gradients in scratch memory.

    Attributes:
        problem: the gradients.
        start: the first byte.
        names: of what they are the gradients.
    """

    problem: Problem
    start: int
    names: tuple[str, ...]

    @classmethod
    def of(
        cls, problem: Problem, cut: Cut, machine: Machine, names: tuple[str, ...], start: int
    ) -> Parts | None:
        """The parts of gradients; None where blocks of keys are enough."""
        attention = problem.attention
        blocks = ceil_div(attention.keys, cut.rows) * attention.kv_heads * attention.batch
        if attention.group == 1 or blocks >= FEWEST * machine.processors or not names:
            return None
        return cls(problem, round_up(start, ALIGNMENT), names)

    def _count(self, name: str) -> int:
        return self.problem.heads * self.problem.attention.keys * self.problem.rows[name].width

    def _start(self, name: str) -> int:
        before = self.names[: self.names.index(name)]
        return self.start + sum(round_up(4 * self._count(own), ALIGNMENT) for own in before)

    @property
    def end(self) -> int:
        """The byte after the last."""
        return self._start(self.names[-1]) + 4 * self._count(self.names[-1])

    def _memory(self, kernel: RowKernel, name: str, vector: int) -> Memory:
        return kernel.dispatch.scratch(self._start(name), self._count(name), dtypes.f32, vector)

    def write(self, kernel: RowKernel, name: str, sums: Fragments, place: Place) -> None:
        """Leave a block's sums; ``place`` says of which query head."""
        b, problem = kernel.builder, self.problem
        width, keys = problem.rows[name].width, problem.attention.keys
        memory = self._memory(kernel, name, 2)
        head = b.let((place.batch * problem.attention.heads + place.head) * keys, "part_head")
        for i, own in enumerate(sums):
            for half in range(2):
                row = b.let(kernel.row + (16 * i + 8 * half) + place.first)
                with b.if_(row < keys):
                    item = b.let((head + row) * (width // 2) + (kernel.column >> 1), "item")
                    for j, four in enumerate(own[: ceil_div(width, 8)]):
                        seen = None if 8 * (j + 1) <= width else kernel.column + 8 * j < width
                        with b.if_(seen):
                            memory[item + 4 * j] = b.vector(four[2 * half : 2 * half + 2])

    def merge(self, spec: Spec, machine: Machine, found: dict[str, int]) -> Stage:
        """The launch that adds parts and writes the results ``found``."""
        problem, attention = self.problem, self.problem.attention
        whole = are_whole(spec, [found[name] for name in self.names])
        kernel = RowKernel(spec, machine, problem, THREADS, whole)
        b, blocks = kernel.builder, ceil_div(attention.keys, ROWS)
        number = b.let(b.group // blocks, "number")
        place = Place(
            batch=b.let(number // attention.kv_heads, "batch"),
            head=b.let(number % attention.kv_heads, "kv_head"),
            first=b.let(b.group % blocks * ROWS, "first"),
        )
        for name in self.names:
            self._add(kernel, name, spec, found[name], place)
        return kernel.dispatch.finish(blocks * attention.kv_heads * attention.batch)

    def _add(self, kernel: RowKernel, name: str, spec: Spec, number: int, place: Place) -> None:
        b, attention = kernel.builder, self.problem.attention
        quads, keys = self.problem.rows[name].width // 4, attention.keys
        memory = self._memory(kernel, name, 4)
        first = b.let((place.batch * attention.heads + place.head * attention.group) * keys)

        def vector(row: Value, quad: Value) -> Value:
            item = b.let((first + place.first + row) * quads + quad, "item")
            parts = [memory[item + m * keys * quads] for m in range(attention.group)]
            total: Value = parts[0]
            for part in parts[1:]:
                total = total + part
            return b.let(total)

        def element(row: Value, column: Value) -> Value:
            item = b.let((first + place.first + row) * quads + (column >> 2), "item")
            part = b.let(column & 3)
            total: Value = memory[item, part]
            for m in range(1, attention.group):
                total = total + memory[item + m * keys * quads, part]
            return b.let(total)

        node = spec.body.outputs[number]
        write_block(kernel, RowBlock(node, [number], place, ROWS, keys, element, vector))
