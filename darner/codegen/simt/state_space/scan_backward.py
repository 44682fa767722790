"""The gradients of a selective scan: a thread goes forwards and back for one channel, by chunks of steps.

Forwards it keeps the states with which chunks begin; back, those of one chunk. What is summed over channels is summed by a workgroup in its shared memory, then over
workgroups by a second dispatch, always in one order. States are taken a few at a time, so that any number of them fits in that memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ....graph.dtypes import DType
from ....graph.integers import ceil_div, round_up
from ....graph.node import Node
from ....lower.plan import Spec
from ...ir.index import Number
from ...problems.state_space import Scan
from ..builder import Value
from ..dispatch import Stage, Written
from ..machine import Machine
from .scan import THREADS, WRITTEN_OUT, Threads, write_zeros

TILE = 8
"""States that are taken at a time."""


@dataclass(frozen=True)
class Layout:
    """Sizes of the parts of scratch memory, in elements.

    Attributes:
        padded: states, in whole tiles; those that there are not stay 0.
        chunk: steps of a chunk.
        blocks: workgroups of a sequence.
    """

    scan: Scan
    padded: int
    chunk: int
    blocks: int
    threads: int

    @classmethod
    def of(cls, scan: Scan, threads: int) -> Layout:
        """The layout for a scan: a chunk has as many steps as there are chunks, about."""
        chunk = max(8, math.isqrt(max(scan.steps, 1)))
        blocks = ceil_div(scan.channels, threads)
        return cls(scan, round_up(scan.size, TILE), chunk, blocks, threads)

    @property
    def chunks(self) -> int:
        """How many there are."""
        return ceil_div(self.scan.steps, self.chunk)

    @property
    def groups(self) -> int:
        """Workgroups of all sequences."""
        return self.scan.batch * self.blocks

    @property
    def row(self) -> int:
        """One state of every thread."""
        return self.groups * self.threads

    @property
    def starts(self) -> int:
        """States with which chunks begin; they come first."""
        return self.chunks * self.padded * self.row

    @property
    def decays(self) -> int:
        """Decays of a chunk, behind which its states lie."""
        return self.chunk * self.padded * self.row

    @property
    def rows(self) -> int:
        """A gradient by steps and states, for every workgroup."""
        return self.groups * self.scan.steps * self.padded

    @property
    def first_row(self) -> int:
        """Where the first of these two begins."""
        return self.starts + 2 * self.decays + self.padded * self.row

    @property
    def slopes(self) -> int:
        """Where the gradient by ``a`` of every thread begins."""
        return self.first_row + 2 * self.rows

    @property
    def count(self) -> int:
        """All of it."""
        return self.slopes + self.padded * self.row


def write_scan_backward(spec: Spec, machine: Machine, node: Node) -> Written:
    """Two dispatches: what each channel gives, and the sums of that."""
    scan = Scan.of(node)
    layout = Layout.of(scan, min(THREADS, machine.threads))
    if not layout.count or not scan.size:
        return Written(tuple(write_zeros(spec, machine, node, node.operands[:5])))
    stages = (_Backward(spec, machine, node, layout).stage(), _sums(spec, machine, node, layout))
    dtype: DType = scan.dtype
    return Written(stages, layout.count * dtype.itemsize)


class _Backward(Threads):
    """The dispatch in which every thread has a channel."""

    def __init__(self, spec: Spec, machine: Machine, node: Node, layout: Layout) -> None:
        super().__init__(spec, machine, node, layout.threads)
        b, scan = self.b, layout.scan
        self.layout, self.scan = layout, scan
        self.memory = self.dispatch.scratch(0, layout.count, self.kept)
        self.sums = b.shared(self.kept, (2 * TILE, layout.threads), "sums")
        self.batch = b.let(b.group // layout.blocks, "batch")
        own = b.let(b.group % layout.blocks * layout.threads + b.local, "own")
        self.exists = b.let(own < scan.channels, "exists")
        self.channel = b.let(b.min(own, scan.channels - 1), "channel")
        self.paces = self.states(layout.padded, "paces")
        self.held = self.states(layout.padded, "states")
        self.reaching = self.states(layout.padded, "reaching")
        self.slopes = self.states(layout.padded, "slopes")

    # ------------------------------------------------------------- elements

    def at(self, first: int, place: Number, state: Number) -> Number:
        """Where a state of this thread lies, of a part of the scratch memory."""
        places = self.e.places
        row = places.add(places.mul(place, self.layout.padded), state)
        return places.add(places.add(places.mul(row, self.layout.row), self.b.thread), first)

    def by_step(self, name: str, step: Value) -> Value:
        """An element of an operand by steps and channels."""
        return self.read(name, self.batch, step, self.channel)

    def by_state(self, name: str, step: Value, state: Number) -> Value:
        """An element of an operand by steps and states; 0 of a state that there is not."""
        return self._padded(state, lambda k: self.read(name, self.batch, step, k))

    def _padded(self, state: Number, read: Callable[[Number], Value]) -> Value:
        b, size = self.b, self.scan.size
        if isinstance(state, int):
            return read(state) if state < size else self.zero()
        if size == self.layout.padded:
            return read(state)
        return b.let(b.choose(state < size, read(b.min(state, size - 1)), self.zero()))

    def tiles(self, body: Callable[[Number], None]) -> None:
        """``body(first)`` for every tile of states."""
        count = self.layout.padded // TILE
        if self.layout.padded <= WRITTEN_OUT:
            for k in range(count):
                body(k * TILE)
            return
        with self.b.for_(0, count, name="tile") as tile:
            body(self.b.let(tile * TILE))

    def every_state(self, body: Callable[[Number], None]) -> None:
        """``body(state)`` for all states."""

        def tile(first: Number) -> None:
            for k in range(TILE):
                body(self.e.places.add(first, k))

        self.tiles(tile)

    # ------------------------------------------------------------- the way

    def stage(self) -> Stage:
        """There and back."""
        b, layout = self.b, self.layout

        def keep(k: Number) -> None:
            self.paces[k] = self._padded(k, lambda state: self.read("a", self.channel, state))

        self.every_state(keep)
        with b.for_(0, layout.chunks, name="chunk") as chunk:
            first = b.let(chunk * layout.chunk, "first")
            last = b.let(b.min(first + layout.chunk, self.scan.steps), "last")

            def put(k: Number, chunk: Value = chunk) -> None:
                self.memory[self.at(0, chunk, k)] = self.held[k]

            self.every_state(put)
            with b.for_(first, last, name="step") as step:
                self.advance(step, None)
        with b.for_(0, layout.chunks, name="back") as back:
            chunk = b.let(layout.chunks - 1 - back, "chunk")
            self.chunk(chunk)
        with b.if_(self.exists):

            def put_slope(k: Number) -> None:
                self.memory[self.at(layout.slopes, 0, k)] = self.slopes[k]

            self.every_state(put_slope)
        return self.dispatch.finish(layout.groups)

    def chunk(self, chunk: Value) -> None:
        """A chunk again, and back through it."""
        b, layout = self.b, self.layout
        first = b.let(chunk * layout.chunk, "first")
        count = b.let(b.min(layout.chunk, self.scan.steps - first), "count")
        states = layout.starts + layout.decays

        def begin(k: Number) -> None:
            found = b.let(self.memory[self.at(0, chunk, k)])
            self.held[k] = found
            self.memory[self.at(states, 0, k)] = found

        self.every_state(begin)
        with b.for_(0, count, name="place") as place:
            self.advance(b.let(first + place), place)
        with b.for_(0, count, name="turn") as turn:
            place = b.let(count - 1 - turn, "place")
            self.back(b.let(first + place, "step"), place)

    def advance(self, step: Value, place: Value | None) -> None:
        """One step; decays and states are kept where it has a place in a chunk."""
        b, layout = self.b, self.layout
        delta = self.by_step("delta", step)
        driven = b.let(delta * self.by_step("x", step), "driven")

        def state(k: Number) -> None:
            decay = b.let(self.exp(delta * self.paces[k]), "decay")
            new = b.let(b.fma(driven, self.by_state("b", step, k), decay * self.held[k]), "new")
            self.held[k] = new
            if place is not None:
                self.memory[self.at(layout.starts, place, k)] = decay
                behind = self.e.places.add(place, 1)
                self.memory[self.at(layout.starts + layout.decays, behind, k)] = new

        self.every_state(state)

    def back(self, step: Value, place: Value) -> None:
        """One step back: what reaches the states before it, and all gradients of the step."""
        b, layout = self.b, self.layout
        dy = b.let(b.choose(self.exists, self.by_step("dy", step), self.zero()), "dy")
        delta, x = self.by_step("delta", step), self.by_step("x", step)
        driven = b.let(delta * x, "driven")
        by_b, by_a = b.variable(self.zero(), "by_b"), b.variable(self.zero(), "by_a")
        after = b.let(self.e.places.add(place, 1))
        states = layout.starts + layout.decays

        def tile(first: Number) -> None:
            for j in range(TILE):
                k = self.e.places.add(first, j)
                found = b.let(b.fma(dy, self.by_state("c", step, k), self.reaching[k]), "found")
                self.sums[j, b.local] = found * driven
                self.sums[TILE + j, b.local] = dy * self.memory[self.at(states, after, k)]
                by_b.set(b.fma(found, self.by_state("b", step, k), by_b))
                before = b.let(found * self.memory[self.at(layout.starts, place, k)], "before")
                slope = b.let(before * self.memory[self.at(states, place, k)], "slope")
                by_a.set(b.fma(slope, self.paces[k], by_a))
                self.slopes[k] = b.fma(slope, delta, self.slopes[k])
                self.reaching[k] = before
            b.barrier()
            self.add_up(step, first)
            b.barrier()

        self.tiles(tile)
        x_node, delta_node = self.slots["x"], self.slots["delta"]
        with b.if_(self.exists):
            index = (self.batch, step, self.channel)
            self.put(0, x_node, by_b * delta, *index)
            self.put(1, delta_node, b.fma(by_b, x, by_a), *index)

    def add_up(self, step: Value, first: Number) -> None:
        """The sums of a tile over the channels of the workgroup: a thread for each."""
        b, layout = self.b, self.layout
        with b.for_(b.local, 2 * TILE, layout.threads, name="number") as number:
            total = b.variable(self.zero(), "total")
            with b.for_(0, layout.threads, name="other") as other:
                total.set(total + self.sums[number, other])
            row = b.let((b.group * self.scan.steps + step) * layout.padded + first)
            which = b.let(number // TILE * layout.rows + number % TILE + layout.first_row)
            self.memory[row + which] = total


def _sums(spec: Spec, machine: Machine, node: Node, layout: Layout) -> Stage:
    """The dispatch that adds what workgroups and sequences have: a thread for each element of these gradients."""
    scan = layout.scan
    t = Threads(spec, machine, node)
    b = t.b
    by_step, by_channel = scan.batch * scan.steps * scan.size, scan.channels * scan.size
    memory = t.dispatch.scratch(0, layout.count, t.kept)
    with b.if_(b.thread < by_step):
        state, row = b.let(b.thread % scan.size), b.let(b.thread // scan.size)
        batch, step = b.let(row // scan.steps), b.let(row % scan.steps)
        for which, name in ((0, "b"), (1, "c")):
            total = b.variable(t.zero(), "total")
            with b.for_(0, layout.blocks, name="block") as block:
                group = batch * layout.blocks + block
                at = (group * scan.steps + step) * layout.padded + state
                total.set(total + memory[at + (layout.first_row + which * layout.rows)])
            t.put(3 + which, t.slots[name], total, batch, step, state)
    with b.if_(b.thread < by_channel):
        state, channel = b.let(b.thread % scan.size), b.let(b.thread // scan.size)
        total = b.variable(t.zero(), "total")
        with b.for_(0, scan.batch, name="batch") as batch:
            group = batch * layout.blocks + channel // layout.threads
            own = group * layout.threads + channel % layout.threads
            total.set(total + memory[state * layout.row + own + layout.slopes])
        t.put(2, t.slots["a"], total, channel, state)
    return t.finish(max(by_step, by_channel))
