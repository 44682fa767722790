"""Loops by elements: one function, in which a thread takes some elements through all steps, their carries in registers.

``codegen/problems/loops.py`` says which loops these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ....codegen.elements.elements import Elements
from ....codegen.ir.emit import loop as repeat
from ....codegen.ir.index import Index, i64, lane_count
from ....codegen.ir.types import Pointer, Value
from ....codegen.problems.loops import ElementLoop, element_loop
from ....graph.errors import InternalError
from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.loops import CARRY, CONSTANT
from ....lower.plan import Spec
from ..emit.template import Code, Template
from ..emit.vectors import copy_bytes, moved, same_pointer
from ..maps.template import lanes_for
from ..model import CpuModel

MOST_ELEMENTS = 1 << 15
"""Elements of a step, where steps are read or written: of longer ones what a vector meets next would be far away."""


def _fits(spec: Spec) -> bool:
    problem = element_loop(spec)
    if problem is None:
        return False
    streams = any(name[0] not in (CARRY, CONSTANT) for name in (*problem.leaves, *problem.written))
    return prod(problem.shape) <= MOST_ELEMENTS or not streams


def _emit(code: Code) -> None:
    problem = element_loop(code.spec)
    if problem is None:
        raise InternalError("this is no loop by elements")
    _Elements(replace(code, spec=Spec("map", problem.body)), problem).emit()


class _Elements:
    """The function while it is written; ``code`` has the body of a step."""

    def __init__(self, code: Code, problem: ElementLoop) -> None:
        self.code = code
        self.problem = problem
        self.loop = problem.loop
        self.indices = code.indices
        self.length = problem.shape[-1] if problem.shape else 1
        self.lead = problem.shape[:-1]
        self.count = self._lanes()
        self.pieces = ceil_div(self.length, self.count)
        self.outer = Elements.of(code, operands=self._operands(0))

    def _lanes(self) -> int:
        """Elements that go through the steps together: several vectors hide what one waits for, if threads still have enough to share."""
        rows, threads = prod(self.lead), CpuModel.of(self.code.machine).threads
        count = lanes_for(self.problem.body, self.code.width, self.length)
        while count > self.code.width and rows * ceil_div(self.length, count) < threads:
            count //= 2
        return count

    def emit(self) -> None:
        """Each thread's part of the rows, a few vectors after the other."""
        for name in self.loop.carries:
            if not self.loop.is_updated(name) and self.loop.places[name].result is not None:
                self._copy(name)
        units = prod(self.lead) * self.pieces
        if units == 1:
            with self.code.alone():
                self._load_shared()
                self.outer.loop(0, 1, self._unit)
            return
        if self._load_shared():
            # Where they began may be where they end, which another thread still reads.
            self.code.barrier()
        self.outer.loop(*self.code.share(units), self._unit)

    def _load_shared(self) -> bool:
        """Load what carries begin with that all elements share; whether there are any."""
        self.shared: dict[str, Value] = {}
        for name in self.problem.carries:
            if name in self.problem.shared:
                leaf = self.problem.leaf(name)
                self.shared[name] = self.outer.at(leaf, [0] * leaf.rank)
        return bool(self.shared)

    def _unit(self, number: Index, _: Sequence[Value]) -> Sequence[Value]:
        """A row, or a piece of one."""
        indices, count, length = self.indices, self.count, self.length
        row, piece = indices.div(number, self.pieces), indices.mod(number, self.pieces)
        index, first = indices.split(row, self.lead), indices.mul(row, length)
        start = indices.mul(piece, count)
        stop = indices.clamp(indices.add(start, count), 0, length)

        def block(column: Index, held: list[Value]) -> Sequence[Value]:
            self._steps([*index, column], indices.add(first, column), number)
            return held

        if length == 1:
            self._steps([*index, 0] if self.problem.shape else [], first, number)
        else:
            self.outer.blocks(start, length if self.pieces == 1 else stop, count, block)
        return []

    def _steps(self, index: list[Index], offset: Index, number: Index) -> None:
        """Some elements through all steps."""
        problem, outer, b = self.problem, self.outer, self.code.builder
        first = self.indices.compare("==", number, 0)
        lanes = next((n for n in map(lane_count, index) if n is not None), None)
        kept = {
            node.id: (node, outer.at(node, outer.spread(node, index))) for node in problem.before
        }
        begin = [
            self.shared[name] if name in self.shared else self._start(name, index, lanes)
            for name in problem.carries
        ]

        def step(turn: Value, held: Sequence[Value]) -> Sequence[Value]:
            at = self.indices.sub(self.loop.length - 1, turn) if self.loop.reverse else turn
            elements = Elements.of(self.code, outer.mask, operands=self._operands(at))
            for node, value in kept.values():
                elements.give(node, value)
            for name, value in zip(problem.carries, held, strict=True):
                elements.give(problem.leaf(name), value)
            values = [
                elements.at(problem.output(name), elements.spread(problem.output(name), index))
                for name in problem.written
            ]
            following = []
            for name, value in zip(problem.written, values, strict=True):
                if name[0] == CARRY:
                    following.append(value if name in self.shared else self._whole(value, lanes))
                else:
                    self._write(name, value, at, offset, first)
            return following

        ends = repeat(b, i64(0), i64(self.loop.length), 1, step, begin)
        for name, value in zip(problem.carries, ends, strict=True):
            if self.loop.places[name].result is not None:
                self._write(name, value, 0, offset, first)

    def _start(self, name: str, index: list[Index], lanes: int | None) -> Value:
        leaf = self.problem.leaf(name)
        return self._whole(self.outer.at(leaf, self.outer.spread(leaf, index)), lanes)

    def _whole(self, value: Value, lanes: int | None) -> Value:
        """A value in all lanes, as carries are."""
        return value if lanes is None else self.indices.spread(value, lanes)

    # ------------------------------------------------------------- memory

    def _operands(self, at: Index) -> list[Pointer]:
        """Where what a step reads is."""
        found = []
        for name in self.problem.leaves:
            place = self.loop.places[name]
            base = self.code.operands[place.operand or 0]
            offset = self.indices.add(self.indices.mul(at, place.stride), place.offset)
            found.append(moved(self.code.builder, base, offset))
        return found

    def _write(self, name: str, value: Value, at: Index, offset: Index, first: Value) -> None:
        """Write elements of a carry or of what is stacked; what all elements share is written with the first of them."""
        place, node = self.loop.places[name], self.problem.output(name)
        base = self.code.results[place.result or 0]
        target = moved(self.code.builder, base, self.indices.mul(at, place.stride))
        if name not in self.problem.shared:
            self._store(value, target, offset, node, self.outer.mask)
            return
        with self.code.builder.if_then(first):
            self._store(value, target, 0, node, None)

    def _store(
        self, value: Value, target: Pointer, offset: Index, node: Node, mask: Value | None
    ) -> None:
        self.outer.registers.store(value, target, offset, node.dtype, mask)

    def _copy(self, name: str) -> None:
        """Copy a carry that no step changes to where it ends; threads share it."""
        code, place = self.code, self.loop.places[name]
        b, plan = code.builder, self.loop.plan
        source = moved(b, code.operands[place.operand or 0], place.offset)
        target = code.results[place.result or 0]
        first, last = code.share(plan.buffers[plan.leaves("state")[name]].nbytes)
        with b.if_then(b.not_(same_pointer(b, source, target))):
            copy_bytes(b, moved(b, target, first), moved(b, source, first), b.sub(last, first))


ELEMENT_LOOPS = Template("element loops", _fits, _emit)
"""Loops whose elements know nothing of each other."""
