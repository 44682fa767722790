"""Loops of any body: the dispatches of a step, as often as there are steps, each with what it reads and writes in that step bound.

What is bound begins at a multiple of ``GRANULE``. Where steps do not, they are copied to scratch memory before the first, each to such a multiple, and what is
stacked is copied from there after the last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from ....graph.errors import UnsupportedError
from ....graph.graph import Graph
from ....graph.integers import round_up
from ....graph.node import Node
from ....lower.loops import CARRY, CONSTANT, Loop, Slots, failing, loop_node, loop_of
from ....lower.plan import Plan, Spec
from ....lower.specs import operand_number, sizes
from ..dispatch import Binding, Stage, Written
from ..machine import GRANULE, Machine
from ..template import Template

MOST = 1 << 15
"""Dispatches of one loop."""


def _fits(spec: Spec, machine: Machine) -> bool:
    from ..families import template_of

    if spec.inner is None or any(True for _ in failing(spec)):
        return False
    return all(template_of(inner, machine) is not None for inner in spec.inner.specs.values())


@dataclass(frozen=True)
class _Place:
    """Where a buffer of the step lies: in the first step, and bytes from one step to the next."""

    binding: Binding
    stride: int = 0

    def at(self, step: int) -> Binding:
        """Where it lies in a step."""
        if not self.stride:
            return self.binding
        moved = step * self.stride
        if self.binding.what == "scratch":
            return replace(self.binding, number=self.binding.number + moved)
        return replace(self.binding, offset=self.binding.offset + moved)


class _Placed(NamedTuple):
    """A dispatch of an inner kernel, and where its operands and results lie; ``copies`` as in the stage of this one."""

    stage: Stage
    operands: list[Binding]
    results: list[Binding]
    copies: tuple[int, int] | None = None


class _Writer:
    """A loop's dispatches in the making."""

    def __init__(self, spec: Spec, machine: Machine) -> None:
        self.spec, self.machine = spec, machine
        self.loop: Loop = loop_of(spec)
        self.slots = Slots.of(loop_node(spec.body))
        self.end = 0
        self.rest = 0
        self.constants: list[Stage] = []
        self.stages: list[_Placed] = []
        self.after: list[_Placed] = []
        self.places: dict[int, _Place] = {}
        swaps = self.loop.exchanged.items()
        self.others = {**dict(swaps), **{other: carry for carry, other in swaps}}

    def written(self) -> Written:
        """All of it."""
        from ..families import written

        plan = self.loop.plan
        arena = self._room(plan.arena_bytes)
        for number, buffer in enumerate(plan.buffers):
            if number in self.others and buffer.place == "arena":
                self.places[number] = _Place(self._scratch(max(buffer.nbytes, 4)))
            elif buffer.place == "arena":
                own = Binding("scratch", arena + (buffer.offset or 0), max(buffer.nbytes, 4))
                self.places[number] = _Place(own)
            elif buffer.place == "constant":
                self.places[number] = _Place(self._scratch(max(buffer.nbytes, 4)))
                self._constant(plan, number)
        for name, number in {**plan.leaves("state"), **plan.leaves("input")}.items():
            self.places[number] = self._leaf(name)
        if self.loop.length:
            inner = {key: written(spec, self.machine) for key, spec in plan.specs.items()}
            self._steps(plan, inner)
            self.rest = max(self.rest, *(one.scratch for one in inner.values()))
        stages = (_moved(one, self.end) for one in (*self.stages, *self.after))
        return Written((*self.constants, *stages), self.end + self.rest)

    def _steps(self, plan: Plan, inner: dict[str, Written]) -> None:
        count = sum(len(inner[kernel.spec].stages) for kernel in plan.kernels)
        if count * self.loop.length > MOST:
            raise UnsupportedError(
                f"a loop of {self.loop.length} steps of {count} dispatches is more than a GPU's {MOST:,}",
                hint="fewer steps, a body that goes element by element, or device='cpu'",
            )
        for turn in range(self.loop.length):
            step = self.loop.step(turn)
            for number, kernel in enumerate(plan.kernels):
                if self.loop.is_left_out(number):
                    continue
                own = [
                    [self._place(i, turn).at(step) for i in ids]
                    for ids in (kernel.operands, kernel.results)
                ]
                for stage in inner[kernel.spec].stages:
                    self._add(stage, *own)

    def _place(self, buffer: int, turn: int) -> _Place:
        """Where a buffer lies in the step of a number: carries may change places with others."""
        if self.loop.lies_at_home(turn):
            return self.places[buffer]
        return self.places[self.others.get(buffer, buffer)]

    def _add(self, stage: Stage, operands: list[Binding], results: list[Binding]) -> None:
        """A dispatch of the step with the loop's memory."""
        if stage.copies is not None:
            source, target = stage.copies
            if operands[source] == results[target]:
                return
        self.stages.append(_Placed(stage, operands, results))

    # ------------------------------------------------------------- places

    def _room(self, nbytes: int) -> int:
        start, self.end = self.end, self.end + round_up(max(nbytes, 4), GRANULE)
        return start

    def _scratch(self, nbytes: int) -> Binding:
        return Binding("scratch", self._room(nbytes), max(nbytes, 4))

    def _leaf(self, name: str) -> _Place:
        """Where a leaf lies, with the dispatches that bring it there, or bring it from there to a result."""
        place, letter, number = self.loop.places[name], name[0], int(name[1:])
        if letter == CARRY:
            return self._carry(name, self.slots.init[number])
        if letter == CONSTANT:
            return _Place(self._whole(self.slots.constants[number]))
        if place.operand is None:
            return self._stacked(place.result or 0)
        return self._stepped(self.slots.xs[number])

    def _carry(self, name: str, init: Node) -> _Place:
        place = self.loop.places[name]
        if place.result is None and not self.loop.is_updated(name):
            return _Place(self._whole(init))
        nbytes = max(int(init.type.nbytes), 4)
        if place.result is None:
            home = self._scratch(nbytes)
        else:
            home = Binding("result", place.result)
        number, copies = self.loop.plan.leaves("state")[name], None
        if number in self.others and not self.loop.lies_at_home(0):
            self._copy(init, self.places[self.others[number]].binding, None)
            return _Place(home)
        if place.result is not None and init.op.name == "input":
            copies = (place.operand or 0, place.result)
        self._copy(init, home, copies)
        return _Place(home)

    def _whole(self, node: Node) -> Binding:
        """An operand that is the same in all steps: where it lies, or a copy without what lies before it."""
        operand = self._direct(node)
        if operand is not None:
            return operand
        room = self._scratch(int(node.type.nbytes))
        self._copy(node, room, None)
        return room

    def _direct(self, node: Node) -> Binding | None:
        return Binding("operand", operand_number(node)) if node.op.name == "input" else None

    def _stepped(self, node: Node) -> _Place:
        """Steps of an operand, side by side where they lie or a granule apart."""
        operand, pitch = self._direct(node), self._pitch(node)
        nbytes = int(node.type.nbytes) // max(self.loop.length, 1)
        if operand is not None and pitch == nbytes:
            return _Place(replace(operand, nbytes=max(nbytes, 4)), nbytes)
        room = self._room(pitch * self.loop.length)
        if prod(sizes(node)):
            graph, operands = _of(node)
            count = pitch // node.dtype.itemsize
            rows = graph.outputs[0].reshape((self.loop.length, -1))
            padded = rows.pad(((0, 0), (0, count - int(rows.shape[1]))))
            graph.set_outputs([padded])
            target = Binding("scratch", room, pitch * self.loop.length)
            self.stages += self._mapped(graph, operands, target)
        return _Place(Binding("scratch", room, max(nbytes, 4)), pitch)

    def _stacked(self, result: int) -> _Place:
        """Steps of what is stacked, likewise."""
        node = self.spec.body.outputs[result]
        pitch = self._pitch(node)
        nbytes = int(node.type.nbytes) // max(self.loop.length, 1)
        if pitch == nbytes:
            return _Place(Binding("result", result, max(nbytes, 4)), nbytes)
        room = self._room(pitch * self.loop.length)
        if prod(sizes(node)):
            graph = Graph("unpadded")
            count = pitch // node.dtype.itemsize
            rows = graph.input("0", (self.loop.length, count), node.dtype)
            own = prod(sizes(node)[1:])
            graph.set_outputs([rows[:, :own].reshape(tuple(sizes(node)))])
            source = Binding("scratch", room, pitch * self.loop.length)
            self.after += self._mapped(graph, [source], Binding("result", result))
        return _Place(Binding("scratch", room, max(nbytes, 4)), pitch)

    def _pitch(self, node: Node) -> int:
        """Bytes from one step to the next, so that all can be bound."""
        nbytes = int(node.type.nbytes) // max(self.loop.length, 1)
        return nbytes if nbytes and nbytes % GRANULE == 0 else round_up(max(nbytes, 4), GRANULE)

    # ------------------------------------------------------------- copies

    def _copy(self, node: Node, target: Binding, copies: tuple[int, int] | None) -> None:
        if prod(sizes(node)):
            graph, operands = _of(node)
            graph.set_outputs([graph.outputs[0].reshape(tuple(sizes(node)))])
            stages = self._mapped(graph, operands, target)
            self.stages += [one._replace(copies=copies) for one in stages]

    def _mapped(self, graph: Graph, operands: list[Binding], target: Binding) -> list[_Placed]:
        """The dispatches of a map that has its operands and its result there."""
        from ..families import written

        made = written(Spec("map", graph.freeze()), self.machine)
        self.rest = max(self.rest, made.scratch)
        return [_Placed(stage, operands, [target]) for stage in made.stages]

    def _constant(self, plan: Plan, number: int) -> None:
        from ..complex.template import constant_stage

        array = plan.constants[str(plan.buffers[number].name)].array
        self.constants.append(constant_stage(self.machine, array, self.places[number].binding))


def _of(node: Node) -> tuple[Graph, list[Binding]]:
    """A graph that is a node of a kernel's body, and the operands that its inputs are."""
    graph, made = Graph("copy"), dict[int, Node]()
    operands: list[Binding] = []
    stack = [node]
    needed: set[int] = set()
    while stack:
        found = stack.pop()
        needed.add(found.id)
        stack += found.operands
    for id in sorted(needed):
        found = node.graph.nodes[id]
        if found.op.name == "input":
            made[id] = graph.input(str(len(operands)), found.shape, found.dtype)
            operands.append(Binding("operand", operand_number(found)))
        else:
            made[id] = graph.insert_like(found, [made[i] for i in found.inputs])
    graph.set_outputs([made[node.id]])
    return graph, operands


def _moved(placed: _Placed, end: int) -> Stage:
    """A dispatch of an inner kernel with the outer kernel's memory, whose own scratch memory begins at ``end``."""
    kinds = {"operand": placed.operands, "result": placed.results}

    def moved(one: Binding) -> Binding:
        if one.what == "scratch":
            return replace(one, number=one.number + end)
        if one.what not in kinds:
            return one
        base = kinds[one.what][one.number]
        if not one.nbytes:
            return base
        if base.what == "scratch":
            return replace(base, number=base.number + one.offset, nbytes=one.nbytes)
        return replace(base, offset=base.offset + one.offset, nbytes=one.nbytes)

    bindings = tuple(map(moved, placed.stage.bindings))
    return replace(placed.stage, bindings=bindings, copies=placed.copies)


def _write(spec: Spec, machine: Machine) -> Written:
    return _Writer(spec, machine).written()


LOOPS = Template("loops", _fits, _write)
"""Loops of any body."""
