"""The selective scan: a vector of channels at a time, whose states stay in registers, or in the first cache where they are many.

Threads share the vectors of channels of all sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....codegen.ir import elementary
from ....codegen.ir.emit import lane_mask, loop
from ....codegen.ir.index import Index, Lanes, i64
from ....codegen.ir.lanes import Lane
from ....codegen.ir.types import Value
from ....codegen.problems.state_space import Scan, wanted
from ....graph.integers import ceil_div
from ....graph.node import Node
from ..emit.template import Code, Scratch
from ..emit.vectors import each, lanes_of
from ..runtime.jit import Machine
from .operands import Operand, Result, Room

HELD = 16
"""States of a channel that are held in registers, at the most; of more, groups of so many go through the first cache."""


class Channels:
    """A vector of channels of one sequence, while code for it is written.

    Attributes:
        batch: the number of the sequence.
        first: the first channel.
        mask: the lanes that are channels; None where all are.
    """

    def __init__(self, work: ScanWork, batch: Value, block: Value) -> None:
        b, lanes = work.code.builder, work.lanes
        self.work = work
        self.batch = batch
        self.block = block
        self.first = b.mul(block, i64(lanes))
        left = b.sub(i64(work.sizes.channels), self.first)
        whole = work.sizes.channels % lanes == 0
        self.mask = None if whole else lane_mask(b, left, lanes)
        self.lanes = Lanes(self.first, lanes)

    def step(self, name: str, step: Index) -> Lane:
        """What an operand has for these channels at a step."""
        found = self.work.operands[name].masked([self.batch, step, self.lanes], self.mask)
        return Lane(self.work.code.builder, found)

    def row(self, name: str, step: Index, state: Index) -> Lane:
        """What an operand has for one state at a step, in all lanes."""
        return self.work.operands[name].spread([self.batch, step, state], self.work.lanes)

    def pace(self, state: Index) -> Lane:
        """What ``a`` has for one state of these channels."""
        found = self.work.operands["a"].masked([self.lanes, state], self.mask)
        return Lane(self.work.code.builder, found)


class ScanWork:
    """What the code of a scan, or of its gradients, is made with."""

    def __init__(self, code: Code, node: Node) -> None:
        self.code = code
        self.sizes = Scan.of(node)
        self.lanes = lanes_of(code.machine, self.sizes.dtype)
        self.blocks = ceil_div(self.sizes.channels, self.lanes)
        pairs = zip(node.slots, node.operands, strict=True)
        self.operands = {name: Operand(code, operand) for name, operand in pairs}
        results = wanted(code.spec)
        kinds = node.operands[:5] if len(node.operands) > 5 else [node]
        self.results = [Result(code, kind, results.get(i)) for i, kind in enumerate(kinds)]

    def zero(self) -> Lane:
        """A vector of zeros."""
        return self.room().zero()

    def room(self, first: Index = 0, *, shared: bool = False) -> Room:
        """Scratch memory from an element on."""
        pointer = self.code.shared if shared else self.code.own
        return Room(self.code, pointer, self.sizes.dtype, self.lanes).part(first)

    def keep_paces(self, channels: Channels, room: Room) -> None:
        """Write ``a`` of a vector of channels state by state."""

        def keep(state: Value) -> None:
            room.put(channels.pace(state), self.code.indices.mul(state, self.lanes))

        each(self.code.builder, 0, self.sizes.size, keep)

    def groups(
        self,
        body: Callable[[Index, int, Sequence[Value]], Sequence[Value]],
        carried: Sequence[Value],
    ) -> Sequence[Value]:
        """``body(first, count, carried)`` for all states, at most ``HELD`` or a vector of them at a time."""
        most = min(HELD, self.lanes)
        whole = self.sizes.size // most * most

        def group(first: Value, values: Sequence[Value]) -> Sequence[Value]:
            return body(first, most, values)

        if whole == most:
            carried = body(0, most, carried)
        elif whole:
            carried = loop(self.code.builder, i64(0), i64(whole), most, group, carried)
        if whole < self.sizes.size:
            carried = body(whole, self.sizes.size - whole, carried)
        return carried


def decay(delta: Lane, pace: Lane) -> Lane:
    """What is left of a state after a step."""
    return elementary.exp(delta * pace)


def scan_scratch(node: Node, machine: Machine) -> Scratch:
    """Paces and states of a vector of channels."""
    sizes = Scan.of(node)
    return Scratch(own=2 * sizes.size * lanes_of(machine, sizes.dtype) * sizes.dtype.itemsize)


def emit_scan(code: Code, node: Node) -> None:
    """All of a selective scan."""
    work = ScanWork(code, node)
    sizes, b = work.sizes, code.builder

    def unit(number: Value) -> None:
        batch, block = (b.udiv(number, i64(work.blocks)), b.urem(number, i64(work.blocks)))
        _emit_channels(work, Channels(work, batch, block))

    if sizes.steps and sizes.channels:
        code.each(sizes.batch * work.blocks, unit)


def _emit_channels(work: ScanWork, channels: Channels) -> None:
    """All steps of a vector of channels."""
    b, size, lanes = work.code.builder, work.sizes.size, work.lanes
    paces = work.room()
    work.keep_paces(channels, paces)
    if size <= HELD:

        def held_step(step: Value, states: Sequence[Value]) -> Sequence[Value]:
            delta, x = channels.step("delta", step), channels.step("x", step)
            driven, y, following = delta * x, work.zero(), []
            for state, value in enumerate(states):
                kept = decay(delta, paces.get(state * lanes)) * Lane(b, value)
                new = driven.fma(channels.row("b", step, state), kept)
                y = new.fma(channels.row("c", step, state), y)
                following.append(new.value)
            work.results[0].put(y.value, [channels.batch, step, channels.lanes], channels.mask)
            return following

        loop(b, i64(0), i64(work.sizes.steps), 1, held_step, [work.zero().value] * size)
        return
    states = work.room(size * lanes)
    indices = work.code.indices
    each(b, 0, size, lambda state: states.put(work.zero(), indices.mul(state, lanes)))

    def step(step: Value) -> None:
        delta, x = channels.step("delta", step), channels.step("x", step)
        driven = delta * x

        def group(first: Index, count: int, carried: Sequence[Value]) -> Sequence[Value]:
            y = Lane(b, carried[0])
            for number in range(count):
                state = indices.add(first, number)
                at = indices.mul(state, lanes)
                kept = decay(delta, paces.get(at)) * states.get(at)
                new = driven.fma(channels.row("b", step, state), kept)
                states.put(new, at)
                y = new.fma(channels.row("c", step, state), y)
            return [y.value]

        (y,) = work.groups(group, [work.zero().value])
        work.results[0].put(y, [channels.batch, step, channels.lanes], channels.mask)

    each(b, 0, work.sizes.steps, step)
