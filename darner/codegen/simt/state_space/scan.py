"""The selective scan: a thread goes along the sequence for one channel, whose states it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import cast

from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ...ir.index import Number
from ...ir.math import emit
from ...problems.state_space import Scan, wanted
from ..builder import Memory, Value
from ..dispatch import Dispatch, Stage, Written
from ..machine import Machine

THREADS = 64
"""Threads of a workgroup: few, so that a short list of channels keeps many processors busy."""
WRITTEN_OUT = 16
"""Up to so many states have code of their own and are held in registers; of more, a loop goes through an array."""


class Threads:
    """A dispatch whose threads hold states, and how they read and write."""

    def __init__(self, spec: Spec, machine: Machine, node: Node, threads: int = THREADS) -> None:
        self.node = node
        self.dispatch = Dispatch(spec, machine, threads=threads)
        self.b = self.dispatch.builder
        self.e = self.dispatch.elements()
        self.kept = self.e.registers.kept_in(node.operands[0].dtype)
        self.slots = dict(zip(node.slots, node.operands, strict=True))
        self.wanted = wanted(spec)

    def read(self, name: str, *index: Number) -> Value:
        """An element of an operand, as what is computed with."""
        operand = self.slots[name]
        value = self.e.registers.cast(self.e.at(operand, list(index)), operand.dtype, self.kept)
        return self.b.let(value)

    def exp(self, value: Value) -> Value:
        """The exponential, as exact as that of maps."""
        return cast(Value, emit("exp", self.b, [self.b.let(value)], [self.kept], self.kept))

    def zero(self) -> Value:
        """A zero of the type that is computed in."""
        return self.b.constant(0.0, self.kept)

    def put(self, result: int, like: Node, value: Value, *index: Number) -> None:
        """Write an element of a result, where that is wanted."""
        if result not in self.wanted:
            return
        registers = self.e.registers
        offset = self.e.places.offset(list(index), sizes(like))
        found = registers.cast(self.b.let(value), self.kept, like.dtype)
        registers.store(found, self.dispatch.results[self.wanted[result]], offset, like.dtype)

    def states(self, count: int, name: str) -> Memory:
        """An array of this thread, of zeros."""
        return self.b.array([self.zero()] * max(count, 1), name)

    def each(self, count: int, body: Callable[[Number], None]) -> None:
        """``body(k)`` for each of some states: one after the other in the code where they are few."""
        if count <= WRITTEN_OUT:
            for k in range(count):
                body(k)
            return
        with self.b.for_(0, count, name="k") as k:
            body(k)

    def finish(self, count: int) -> Stage:
        """The dispatch, with a thread for each of so many things."""
        return self.dispatch.finish(ceil_div(count, self.dispatch.threads))


def write_zeros(spec: Spec, machine: Machine, node: Node, like: Sequence[Node]) -> list[Stage]:
    """Results, each shaped like a node, of what has no elements: those that have some are 0."""
    stages = []
    for result, operand in enumerate(like):
        whole = sizes(operand)
        if prod(whole) and result in wanted(spec):
            t = Threads(spec, machine, node)
            with t.b.if_(t.b.thread < prod(whole)):
                index = t.e.places.split(t.b.thread, whole)
                t.put(result, operand, t.zero(), *index)
            stages.append(t.finish(prod(whole)))
    return stages


def write_scan(spec: Spec, machine: Machine, node: Node) -> Written:
    """The stage of a scan; none where it has no elements."""
    scan = Scan.of(node)
    count = scan.batch * scan.channels
    if not count * scan.steps:
        return Written(())
    t = Threads(spec, machine, node)
    b = t.b
    with b.if_(b.thread < count):
        batch = b.let(b.thread // scan.channels, "batch")
        channel = b.let(b.thread % scan.channels, "channel")
        states, paces = t.states(scan.size, "states"), t.states(scan.size, "paces")

        def keep(k: Number) -> None:
            paces[k] = t.read("a", channel, k)

        t.each(scan.size, keep)
        with b.for_(0, scan.steps, name="step") as step:
            delta = t.read("delta", batch, step, channel)
            driven = b.let(delta * t.read("x", batch, step, channel), "driven")
            y = b.variable(t.zero(), "y")

            def advance(k: Number) -> None:
                kept = t.exp(delta * paces[k]) * states[k]
                new = b.let(b.fma(driven, t.read("b", batch, step, k), kept), "new")
                states[k] = new
                y.set(b.fma(new, t.read("c", batch, step, k), y))

            t.each(scan.size, advance)
            t.put(0, node, y, batch, step, channel)
    return Written((t.finish(count),))
