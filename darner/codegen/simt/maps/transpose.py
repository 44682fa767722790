"""Maps that turn an operand around: what lies side by side in the operand lies far apart in the result.

Read element by element, every thread of a group would touch another line of memory. So a workgroup takes a square of the result: it reads the square as it lies in the operand, puts it into
workgroup memory, and writes it as it lies in the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ....lower.strided import Strided, is_view, strided
from ...elements.elements import can_emit
from ...ir.index import Number
from ..builder import Value
from ..dispatch import Dispatch, Written
from ..machine import Machine
from ..template import Template

SIDE = 32
"""Elements along each side of a square."""
LINES = 8
"""Lines of a square that a workgroup has threads for."""
LEAST = 1 << 14
"""Elements from which on it pays."""


@dataclass(frozen=True)
class Turn:
    """A view that is turned.

    Attributes:
        node: the view, of the result's shape.
        seen: where its elements lie.
        axis: the one along which they lie side by side; in the result that is the last.
    """

    node: Node
    seen: Strided
    axis: int


@lru_cache(maxsize=4096)
def turn_of(spec: Spec) -> Turn | None:
    """The operand that a map turns, if it turns one."""
    body = spec.body
    shape = tuple(sizes(body.outputs[0]))
    same = all(tuple(sizes(node)) == shape for node in body.outputs)
    if spec.kind != "map" or not can_emit(body) or not same or prod(shape) < LEAST:
        return None
    for node in body.nodes:
        if not is_view(node) or tuple(sizes(node)) != shape or node.dtype.itemsize != 4:
            continue
        if any(is_view(user) for user in body.users(node)):
            continue
        if not all("elementwise" in user.op.traits for user in body.users(node)):
            continue
        seen = strided(node)
        if seen is None or seen.base.name is None or abs(seen.strides[-1]) <= 1:
            continue
        axes = [a for a, step in enumerate(seen.strides) if step == 1 and shape[a] >= SIDE // 4]
        if axes and shape[-1] >= SIDE // 4:
            return Turn(node, seen, axes[0])
    return None


def _fits(spec: Spec, machine: Machine) -> bool:
    one_word = all(node.dtype.itemsize == 4 for node in spec.body.outputs)
    return one_word and machine.threads >= SIDE * LINES and turn_of(spec) is not None


def _write(spec: Spec, machine: Machine) -> Written:
    turn = turn_of(spec)
    if turn is None:
        return Written(())
    return _Squares(spec, machine, turn).write()


class _Squares:
    """The dispatch of a map that turns an operand."""

    def __init__(self, spec: Spec, machine: Machine, turn: Turn) -> None:
        self.turn = turn
        self.shape = sizes(spec.body.outputs[0])
        self.dispatch = Dispatch(spec, machine, threads=SIDE * LINES)
        self.builder = self.dispatch.builder
        self.elements = self.dispatch.elements()
        rank = len(self.shape)
        self.others = [a for a in range(rank - 1) if a != turn.axis]
        self.down = ceil_div(self.shape[turn.axis], SIDE)
        self.across = ceil_div(self.shape[-1], SIDE)

    def write(self) -> Written:
        """All of it."""
        b, dispatch, elements = self.builder, self.dispatch, self.elements
        rows, columns = self.shape[self.turn.axis], self.shape[-1]
        operand = dispatch.operand(self.turn.seen.base)
        # One more column, so that a column's elements are in different banks.
        square = b.shared(operand.dtype, (SIDE, SIDE + 1), "square")
        line = b.let(b.local // SIDE, "line")
        place = b.let(b.local % SIDE, "place")
        across = b.let(b.group % self.across * SIDE, "across")
        down = b.let(b.group // self.across % self.down * SIDE, "down")
        outer = self._outer()
        for step in range(0, SIDE, LINES):
            row, column = down + place, across + line + step
            with b.if_(row < rows, column < columns):
                index = self._index(outer, b.let(row), b.let(column))
                square[line + step, place] = operand[self._offset(index)]
        b.barrier()
        for step in range(0, SIDE, LINES):
            row, column = down + line + step, across + place
            with b.if_(row < rows, column < columns):
                elements.give(self.turn.node, square[place, line + step])
                index = self._index(outer, b.let(row), b.let(column))
                values = [elements.at(node, index) for node in dispatch.body.outputs]
                offset = elements.places.offset(index, self.shape)
                for node, value, result in zip(
                    dispatch.body.outputs, values, dispatch.results, strict=True
                ):
                    elements.registers.store(value, result, offset, node.dtype)
        rest = prod(self.shape[a] for a in self.others)
        return Written((dispatch.finish(self.across * self.down * rest),))

    def _outer(self) -> list[Number]:
        """The indices along axes that squares do not extend along."""
        number = self.builder.let(self.builder.group // (self.across * self.down))
        return self.elements.places.split(number, [self.shape[a] for a in self.others])

    def _index(self, outer: list[Number], row: Value, column: Value) -> list[Number]:
        index: list[Number] = [0] * len(self.shape)
        for axis, number in zip(self.others, outer, strict=True):
            index[axis] = number
        index[self.turn.axis], index[-1] = row, column
        return index

    def _offset(self, index: list[Number]) -> Number:
        """Where the view's element lies in the operand."""
        places = self.elements.places
        total: Number = self.turn.seen.offset
        for number, step in zip(index, self.turn.seen.strides, strict=True):
            total = places.add(total, places.mul(number, step))
        return total


TURNED = Template("turned", _fits, _write)
