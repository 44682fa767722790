"""Maps that turn an operand around: what lies side by side in the operand lies far apart in the result.

Read element by element, every thread of a group would touch another line of memory. So a workgroup takes a square of the result: it reads the square as it lies in the operand, puts it into
workgroup memory, and writes it as it lies in the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from ....backends.wgpu.machine import Machine
from ....backends.wgpu.writer import Text
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ....lower.strided import Strided, is_view, strided
from ...elements.elements import can_emit
from ...ir.index import Number
from ...ir.math import register_type
from ..shader import Shader, Written
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
        self.shader = Shader(spec, machine, threads=SIDE * LINES)
        self.elements = self.shader.elements()
        rank = len(self.shape)
        self.others = [a for a in range(rank - 1) if a != turn.axis]
        self.down = -(-self.shape[turn.axis] // SIDE)
        self.across = -(-self.shape[-1] // SIDE)

    def write(self) -> Written:
        """All of it."""
        writer, shader = self.shader.writer, self.shader
        kind = register_type(self.turn.node.dtype)
        memory = shader.operands[int(str(self.turn.seen.base.name))]
        # One more column, so that a column's elements are in different banks.
        square = shader.shared("square", f"array<array<{memory.item}, {SIDE + 1}>, {SIDE}>")
        writer.line(f"let line = local / {SIDE}u;")
        writer.line(f"let place = local % {SIDE}u;")
        for name, count in (("across", self.across), ("down", self.down)):
            before = "group" if name == "across" else f"(group / {self.across}u)"
            writer.line(f"let {name} = ({before} % {count}u) * {SIDE}u;")
        outer = self._outer()
        for step in range(0, SIDE, LINES):
            row, column = "down + place", f"across + line + {step}u"
            inside = f"{row} < {self.shape[self.turn.axis]}u && {column} < {self.shape[-1]}u"
            with writer.block(f"if ({inside})"):
                index = self._index(outer, self._number(row), self._number(column))
                offset = self._offset(index)
                writer.line(f"{square}[line + {step}u][place] = {memory.name}[{offset}];")
        shader.barrier()
        for step in range(0, SIDE, LINES):
            row, column = f"down + line + {step}u", "across + place"
            inside = f"{row} < {self.shape[self.turn.axis]}u && {column} < {self.shape[-1]}u"
            with writer.block(f"if ({inside})"), self.elements.scope():
                self.elements.give(self.turn.node, Text(kind, f"{square}[place][line + {step}u]"))
                index = self._index(outer, self._number(row), self._number(column))
                values = [self.elements.at(node, index) for node in shader.body.outputs]
                at = self.elements.places.offset(index, self.shape)
                for node, value, result in zip(
                    shader.body.outputs, values, shader.results, strict=True
                ):
                    self.elements.registers.store(value, result, at, node.dtype)
        rest = prod(self.shape[a] for a in self.others)
        return Written((shader.finish(self.across * self.down * rest),))

    def _number(self, text: str) -> Text:
        from llvmlite import ir  # type: ignore[import-untyped]

        return self.shader.writer.let(ir.IntType(32), text)

    def _outer(self) -> list[Number]:
        """The indices along axes that squares do not extend along."""
        number = self._number(f"group / {self.across * self.down}u")
        return self.elements.places.split(number, [self.shape[a] for a in self.others])

    def _index(self, outer: list[Number], row: Number, column: Number) -> list[Number]:
        index: list[Number] = [0] * len(self.shape)
        for axis, number in zip(self.others, outer, strict=True):
            index[axis] = number
        index[self.turn.axis], index[-1] = row, column
        return index

    def _offset(self, index: list[Number]) -> str:
        """Where the view's element lies in the operand."""
        places = self.elements.places
        total: Number = self.turn.seen.offset
        for number, step in zip(index, self.turn.seen.strides, strict=True):
            total = places.add(total, places.mul(number, step))
        return places.text(total)


TURNED = Template("turned", _fits, _write)
