"""Loops by elements: one dispatch, in which a thread takes an element through all steps, its carries in registers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....graph.errors import InternalError
from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.loops import CARRY, shares_carry
from ....lower.plan import Spec
from ....lower.specs import sizes
from ...ir import types
from ...ir.index import Number
from ...problems.loops import ElementLoop, element_loop
from ..builder import Memory, Value
from ..dispatch import Dispatch, Written
from ..elements import ThreadElements
from ..machine import Machine
from ..template import Template


def _fits(spec: Spec, machine: Machine) -> bool:
    problem = element_loop(spec)
    if problem is None:
        return False
    return not any(_is_in_the_way(spec, problem, name) for name in problem.loop.carries)


def _is_in_the_way(spec: Spec, problem: ElementLoop, name: str) -> bool:
    """Whether a carry is a result as it came, or ends where all threads still read what it begins with."""
    place = problem.loop.places[name]
    if place.result is None or place.operand is None:
        return False
    if not problem.loop.is_updated(name):
        return True
    return name in problem.shared and shares_carry(spec, place.operand, place.result)


class _StepElements(ThreadElements):
    """The elements of a step; ``shifts`` says how many elements before each leaf the operand begins that it is in."""

    shifts: dict[int, Number]

    def _element(self, node: Node, index: list[Number]) -> types.Value:
        if node.id not in self.leaves:
            return super()._element(node, index)
        memory, leaf = self.leaves[node.id]
        offset = self.places.add(self.indices.offset(index, sizes(leaf)), self.shifts[node.id])
        return self.registers.load(memory, offset, leaf.dtype)


class _Elements:
    """The dispatch while it is written."""

    def __init__(self, spec: Spec, machine: Machine) -> None:
        problem = element_loop(spec)
        if problem is None:
            raise InternalError("this is no loop by elements")
        self.problem, self.loop = problem, problem.loop
        self.dispatch = Dispatch(spec, machine)
        self.builder = self.dispatch.builder
        operands = [self._operand(name) for name in problem.leaves]
        self.elements = _StepElements(self.builder, problem.body, operands)
        self.elements.shifts = {
            problem.leaf(name).id: self.loop.places[name].offset // self._item(name)
            for name in problem.leaves
        }

    def written(self) -> Written:
        """The dispatch, with a thread for each element."""
        b, count = self.builder, prod(self.problem.shape)
        with b.if_(b.thread < count):
            self._steps(b.thread)
        return Written((self.dispatch.finish(ceil_div(count, self.dispatch.threads)),))

    def _steps(self, offset: Value) -> None:
        """An element through all steps."""
        problem, elements = self.problem, self.elements
        shape = problem.shape
        index = list(elements.places.split(offset, shape)) if shape else []
        for node in problem.before:
            elements.give(node, elements.at(node, elements.spread(node, index)))
        leaves = [problem.leaf(name) for name in problem.carries]
        begin = [elements.at(leaf, elements.spread(leaf, index)) for leaf in leaves]

        def step(turn: Value, held: Sequence[Value]) -> Sequence[Value]:
            at = elements.places.sub(self.loop.length - 1, turn) if self.loop.reverse else turn
            self._turn_to(at)
            for leaf, value in zip(leaves, held, strict=True):
                elements.give(leaf, value)
            outputs = [problem.output(name) for name in problem.written]
            values = [elements.at(node, elements.spread(node, index)) for node in outputs]
            following = []
            for name, found in zip(problem.written, values, strict=True):
                if name[0] == CARRY:
                    # A name of its own: where carries are exchanged, the first must not change the second.
                    following.append(self.builder.let(found))
                else:
                    self._write(name, found, at, offset)
            return following

        ends = elements.loop(0, self.loop.length, step, begin)
        for name, value in zip(problem.carries, ends, strict=True):
            if self.loop.places[name].result is not None:
                self._write(name, value, 0, offset)

    # ------------------------------------------------------------- memory

    def _item(self, name: str) -> int:
        return self.problem.leaf(name).dtype.itemsize

    def _operand(self, name: str) -> Memory:
        return self.dispatch.operands[self.loop.places[name].operand or 0]

    def _turn_to(self, at: Number) -> None:
        """Let leaves be those of a step."""
        places = self.elements.places
        for name in self.problem.leaves:
            place, leaf = self.loop.places[name], self.problem.leaf(name)
            if place.stride:
                moved = places.mul(at, place.stride // self._item(name))
                shift = places.add(moved, place.offset // self._item(name))
                self.elements.shifts[leaf.id] = shift

    def _write(self, name: str, value: types.Value, at: Number, offset: Value) -> None:
        """Write an element of a carry or of what is stacked; what all elements share is written with the first of them."""
        place, node = self.loop.places[name], self.problem.output(name)
        memory, places = self.dispatch.results[place.result or 0], self.elements.places
        before = places.mul(at, place.stride // node.dtype.itemsize)
        if name not in self.problem.shared:
            target = places.add(before, offset)
            self.elements.registers.store(value, memory, target, node.dtype)
            return
        with self.builder.if_(offset == 0):
            self.elements.registers.store(value, memory, before, node.dtype)


def _write(spec: Spec, machine: Machine) -> Written:
    return _Elements(spec, machine).written()


ELEMENT_LOOPS = Template("element loops", _fits, _write)
"""Loops whose elements know nothing of each other."""
