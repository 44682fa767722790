"""Kernels of Fourier transforms: steps in the memory of a workgroup, where a transform fits it, or as dispatches over scratch memory."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.graph import Graph
from ....graph.integers import ceil_div, round_up
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ...elements.complex_pairs import in_pairs
from ...elements.elements import can_emit
from ...ir.butterflies import Complex
from ...ir.index import Number
from ...problems.fft import Transform, transform
from ...problems.nodes import main_node
from ..builder import Memory, Simt, Value
from ..dispatch import Dispatch, Stage, Written
from ..machine import GRANULE, Machine, power_above
from ..template import Template
from .steps import Steps, can_step, steps_of
from .waves import Wave, constant

MOST = 256
"""Threads of a workgroup that has a transform."""


def _fits(spec: Spec, machine: Machine) -> bool:
    problem = transform(spec)
    if problem is None or not problem.stored.is_float or not problem.is_plain:
        return False
    return can_step(problem) and (problem.kind != "complex" or can_emit(_pairs(spec).body))


@lru_cache(maxsize=1024)
def _pairs(spec: Spec) -> Spec:
    """The operand of a transform of complex numbers as pairs of floats, which is what its memory and that of the result hold."""
    operand = Graph("operand")
    made: dict[int, Node] = {}
    for node in spec.body.nodes:
        if node.op.name != "fft":
            made[node.id] = operand.insert_like(node, [made[i] for i in node.inputs])
    operand.set_outputs([made[main_node(spec).inputs[0]]])
    return Spec("map", in_pairs(operand))


def _write(spec: Spec, machine: Machine) -> Written:
    problem = transform(spec)
    if problem is None or not problem.rows * problem.inner:
        return Written(())
    steps = steps_of(problem)
    if problem.kind == "complex":
        spec = _pairs(spec)
    room = 2 * steps.length * problem.dtype.itemsize
    if steps.rooms * room <= machine.shared:
        return Written((_in_workgroups(spec, machine, problem, steps),))
    size = round_up(problem.rows * problem.inner * room, GRANULE) * steps.rooms
    stages = [_as_dispatch(spec, machine, problem, steps, k) for k in range(len(steps.steps))]
    return Written(tuple(stages), size)


def _in_workgroups(spec: Spec, machine: Machine, problem: Transform, steps: Steps) -> Stage:
    """A workgroup for each transform."""
    most = max(step.count for step in steps.steps)
    dispatch = Dispatch(spec, machine, threads=min(MOST, max(32, power_above(most))))
    b = dispatch.builder
    rooms = [b.shared(problem.dtype, (2, steps.length), f"room{k}") for k in range(steps.rooms)]
    row = _RowInWorkgroup(dispatch, problem, b.group, rooms)
    for number, step in enumerate(steps.steps):
        if number:
            b.barrier()
        with b.for_(b.local, step.count, dispatch.threads, "i") as i:
            step.body(row, i)
    return dispatch.finish(problem.rows * problem.inner)


def _as_dispatch(
    spec: Spec, machine: Machine, problem: Transform, steps: Steps, number: int
) -> Stage:
    """One step of all rows."""
    dispatch = Dispatch(spec, machine)
    b, step = dispatch.builder, steps.steps[number]
    rows = problem.rows * problem.inner
    units = rows * step.count
    each = round_up(rows * 2 * steps.length * problem.dtype.itemsize, GRANULE)
    memory = dispatch.scratch(0, each // problem.dtype.itemsize * steps.rooms, problem.dtype)
    with b.if_(b.thread < units):
        row = b.let(b.thread // step.count, "row")
        step.body(
            _RowInScratch(dispatch, problem, row, memory, each, steps.length),
            b.let(b.thread % step.count, "i"),
        )
    return dispatch.finish(ceil_div(units, dispatch.threads))


class _Row:
    """A row of operands and results; the direction is seen to, and the factor."""

    def __init__(self, dispatch: Dispatch, problem: Transform, row: Value) -> None:
        self.b: Simt = dispatch.builder
        self.dtype: DType = problem.dtype
        self.problem, self.dispatch = problem, dispatch
        self.elements = dispatch.elements()
        self.node = main_node(dispatch.spec)
        """The transform, or of complex numbers its operand in pairs."""
        outputs = zip(dispatch.body.outputs, dispatch.results, strict=True)
        self.results = {int(output.attrs.get("index", 0)): result for output, result in outputs}
        self.row = row
        self.packed = problem.is_real and problem.count % 2 == 0

    # ------------------------------------------------------------- operands

    def operand_at(self, number: Value | int) -> Complex:
        """A number of the operand; real ones in pairs where their number is even."""
        kind, b = self.problem.kind, self.b
        if kind == "half":
            if self.packed:
                first = b.let(b.index(number) * 2)
                return Complex(self._read(0, first), self._read(0, b.let(first + 1)))
            return Complex(self._read(0, number), constant(b, 0.0, self.dtype))
        if kind == "whole":
            return Complex(self._read(0, number), self._read(1, number))
        if kind == "complex":
            return self._directed(Complex(*(self._read(None, number, side) for side in (0, 1))))
        other = b.let(b.index(number) + self.problem.count)
        return self._directed(Complex(self._read(0, number), self._read(0, other)))

    def _read(self, operand: int | None, number: Value | int, *side: int) -> Wave:
        places = self.elements.places
        x = self.node if operand is None else self.node.operands[operand]
        before = len(self.problem.lead)
        behind = sizes(x)[before + 1 : len(sizes(x)) - len(side)]
        inner = prod(behind)
        lead = places.split(places.div(self.row, inner), self.problem.lead) if before else []
        tail = places.split(places.mod(self.row, inner), behind) if behind else []
        value = self.elements.at(x, [*lead, number, *tail, *side])
        value = self.b.let(self.elements.registers.cast(value, x.dtype, self.dtype))
        return Wave(self.b, value, self.dtype)

    # ------------------------------------------------------------- results

    def give(self, number: Value | int, z: Complex) -> None:
        """Write a number of the result; those of half a spectrum are scaled before."""
        problem, places = self.problem, self.elements.places
        if problem.kind == "half":
            place: Number = places.add(places.mul(self.row, problem.bins), number)
            for side, part in enumerate(z):
                if side in self.results:
                    self._write(part, side, place)
            return
        z = self._directed(z.scaled(problem.scale))
        if problem.kind == "whole":
            step = 2 if self.packed else 1
            place = places.add(places.mul(self.row, problem.count), places.mul(number, step))
            self._write(z.re, 0, place)
            if self.packed:
                self._write(z.im, 0, places.add(place, 1))
            return
        outer, behind = places.div(self.row, problem.inner), places.mod(self.row, problem.inner)
        size = problem.count * (1 if problem.kind == "complex" else 2)
        place = places.add(places.mul(outer, size), number)
        place = places.add(places.mul(place, problem.inner), behind)
        if problem.kind == "complex":
            place = places.mul(place, 2)
            self._write(z.re, 0, place)
            self._write(z.im, 0, places.add(place, 1))
            return
        self._write(z.re, 0, place)
        self._write(z.im, 0, places.add(place, problem.count * problem.inner))

    def _write(self, part: Wave, result: int, place: Number) -> None:
        registers, stored = self.elements.registers, self.problem.stored
        value = registers.cast(part.value, self.dtype, stored)
        registers.store(value, self.results[result], place, stored)

    def _directed(self, z: Complex) -> Complex:
        return z.exchanged if self.problem.inverse else z

    def as_float(self, value: Value) -> Value:
        """A float of an integer with a sign."""
        found: Number = self.elements.registers.cast(value, dtypes.i32, self.dtype)
        return self.b.let(found)


class _RowInWorkgroup(_Row):
    """With what is between steps in the memory of the workgroup."""

    def __init__(
        self, dispatch: Dispatch, problem: Transform, row: Value, rooms: list[Memory]
    ) -> None:
        super().__init__(dispatch, problem, row)
        self.rooms = rooms

    def get(self, room: int, number: Value | int) -> Complex:
        """A number between steps."""
        b, memory = self.b, self.rooms[room]
        return Complex(*(Wave(b, b.let(memory[side, number]), self.dtype) for side in range(2)))

    def put(self, room: int, number: Value | int, z: Complex) -> None:
        """Write one."""
        for side, part in enumerate(z):
            self.rooms[room][side, number] = part.value


class _RowInScratch(_Row):
    """With what is between steps in scratch memory."""

    def __init__(  # many parameters: where it lies
        self,
        dispatch: Dispatch,
        problem: Transform,
        row: Value,
        memory: Memory,
        each: int,
        length: int,
    ) -> None:
        super().__init__(dispatch, problem, row)
        self.memory, self.length = memory, length
        self.each = each // problem.dtype.itemsize
        self.first = self.b.let(row * (2 * length), "start")

    def _place(self, room: int, side: int, number: Value | int) -> Value:
        return self.b.let(self.first + (room * self.each + side * self.length) + number)

    def get(self, room: int, number: Value | int) -> Complex:
        """A number between steps."""
        b = self.b
        parts = (self.memory[self._place(room, side, number)] for side in range(2))
        return Complex(*(Wave(b, b.let(part), self.dtype) for part in parts))

    def put(self, room: int, number: Value | int, z: Complex) -> None:
        """Write one."""
        for side, part in enumerate(z):
            self.memory[self._place(room, side, number)] = part.value


FFT = Template("fft", _fits, _write)
