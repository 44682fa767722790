"""The gradients of the gated delta rule: a thread goes forwards and back for one column of a head's matrix, by chunks of steps.

Columns need no others but for sums: the gradients of queries, keys and gates are summed over the columns of a workgroup in its shared memory, and over workgroups by a second
dispatch, always in one order. Rows are taken a few at a time, so that heads of any width fit in that memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ....graph.integers import ceil_div, round_up
from ....graph.node import Node
from ....lower.plan import Spec
from ...ir.index import Number
from ...problems.state_space import Net
from ..builder import Value
from ..dispatch import Stage, Written
from ..machine import Machine
from .scan import THREADS, Threads, write_zeros

TILE = 8
"""Rows that are taken at a time."""


@dataclass(frozen=True)
class Layout:
    """Sizes of the parts of scratch memory, in elements.

    Attributes:
        padded: rows, in whole tiles; those that there are not stay 0.
        chunk: steps of a chunk: about as many as there are chunks.
        blocks: workgroups of a head.
    """

    net: Net
    padded: int
    chunk: int
    blocks: int
    threads: int

    @classmethod
    def of(cls, net: Net, threads: int) -> Layout:
        """The layout for a rule."""
        chunk = max(8, math.isqrt(max(net.steps, 1)))
        return cls(net, round_up(net.width, TILE), chunk, ceil_div(net.width, threads), threads)

    @property
    def chunks(self) -> int:
        """How many there are."""
        return ceil_div(self.net.steps, self.chunk)

    @property
    def groups(self) -> int:
        """Workgroups of all heads."""
        return self.net.batch * self.net.heads * self.blocks

    @property
    def row(self) -> int:
        """One row of every thread's column."""
        return self.groups * self.threads

    @property
    def matrices(self) -> int:
        """Where the columns before and after each step of a chunk begin; before them are those with which chunks begin."""
        return self.chunks * self.padded * self.row

    @property
    def sums(self) -> int:
        """Where the gradients of queries begin, and behind them those of keys."""
        return self.matrices + (self.chunk + 1) * self.padded * self.row

    @property
    def rows(self) -> int:
        """One of the two, for every workgroup."""
        return self.groups * self.net.steps * self.padded

    @property
    def gates(self) -> int:
        """Where the gradients of gates begin, and behind them those of beta."""
        return self.sums + 2 * self.rows

    @property
    def count(self) -> int:
        """All of it."""
        return self.gates + 2 * self.groups * self.net.steps


def write_net_backward(spec: Spec, machine: Machine, node: Node) -> Written:
    """Two dispatches: what each column gives, and the sums of that."""
    net = Net.of(node)
    layout = Layout.of(net, min(THREADS, machine.threads))
    results = [x for slot, x in zip(node.slots, node.operands, strict=True) if slot in RESULTS]
    if not layout.groups:
        return Written(tuple(write_zeros(spec, machine, node, results)))
    stages = [_Backward(spec, machine, node, layout).stage()]
    if net.steps:
        stages.append(_sums(spec, machine, node, layout))
    return Written(tuple(stages), layout.count * net.dtype.itemsize)


RESULTS = ("q", "k", "v", "g", "beta", "state")
"""Operands that have gradients, in the order of the results."""


class _Backward(Threads):
    """The dispatch in which every thread has a column."""

    def __init__(self, spec: Spec, machine: Machine, node: Node, layout: Layout) -> None:
        super().__init__(spec, machine, node, layout.threads)
        b, net = self.b, layout.net
        self.layout, self.net = layout, net
        self.memory = self.dispatch.scratch(0, layout.count, self.kept)
        self.shared = b.shared(self.kept, (2 * TILE, layout.threads), "sums")
        own = b.let(b.group % layout.blocks * layout.threads + b.local, "own")
        head = b.let(b.group // layout.blocks, "heads")
        self.exists = b.let(own < net.width, "exists")
        self.column = b.let(b.min(own, net.width - 1), "column")
        self.head = b.let(head % net.heads, "head")
        self.batch = b.let(head // net.heads, "batch")
        self.matrix = self.states(layout.padded, "matrix")
        self.reaching = self.states(layout.padded, "reaching")

    # ------------------------------------------------------------- elements

    def at(self, first: int, place: Number, row: Number) -> Number:
        """Where a row of this thread's column lies, of a part of the scratch memory."""
        places = self.e.places
        line = places.add(places.mul(place, self.layout.padded), row)
        return places.add(places.add(places.mul(line, self.layout.row), self.b.thread), first)

    def gate(self, name: str, step: Value) -> Value:
        """A gate of this head."""
        return self.read(name, self.batch, step, self.head)

    def own(self, name: str, step: Value) -> Value:
        """What an operand has for this column; 0 of one that there is not."""
        found = self.read(name, self.batch, step, self.head, self.column)
        return self.b.let(self.b.choose(self.exists, found, self.zero()))

    def of_row(self, name: str, step: Value, row: Value) -> Value:
        """What an operand has for a row; 0 of one that there is not."""
        return self._padded(row, lambda k: self.read(name, self.batch, step, self.head, k))

    def of_state(self, name: str, row: Value) -> Value:
        """A row of this column of a state; 0 where there is none."""
        if name not in self.slots:
            return self.zero()
        b = self.b
        found = self._padded(row, lambda k: self.read(name, self.batch, self.head, k, self.column))
        return b.let(b.choose(self.exists, found, self.zero()))

    def _padded(self, row: Value, read: Callable[[Number], Value]) -> Value:
        b, width = self.b, self.net.width
        if width == self.layout.padded:
            return read(row)
        return b.let(b.choose(row < width, read(b.min(row, width - 1)), self.zero()))

    # ------------------------------------------------------------- the way

    def stage(self) -> Stage:
        """There and back."""
        b, layout = self.b, self.layout
        with b.for_(0, layout.padded, name="row") as row:
            self.matrix[row] = self.of_state("state", row)
            self.reaching[row] = self.of_state("dstate", row)
        with b.for_(0, layout.chunks, name="chunk") as chunk:
            first = b.let(chunk * layout.chunk, "first")
            last = b.let(b.min(first + layout.chunk, self.net.steps), "last")
            with b.for_(0, layout.padded, name="row") as row:
                self.memory[self.at(0, chunk, row)] = self.matrix[row]
            with b.for_(first, last, name="step") as step:
                self.advance(step, None)
        with b.for_(0, layout.chunks, name="back") as back:
            self.chunk(b.let(layout.chunks - 1 - back, "chunk"))
        if "state" in self.slots:
            with b.if_(self.exists), b.for_(0, self.net.width, name="row") as row:
                index = (self.batch, self.head, row, self.column)
                self.put(5, self.slots["state"], self.reaching[row], *index)
        return self.dispatch.finish(layout.groups)

    def chunk(self, chunk: Value) -> None:
        """A chunk again, and back through it."""
        b, layout = self.b, self.layout
        first = b.let(chunk * layout.chunk, "first")
        count = b.let(b.min(layout.chunk, self.net.steps - first), "count")
        with b.for_(0, layout.padded, name="row") as row:
            found = b.let(self.memory[self.at(0, chunk, row)])
            self.matrix[row] = found
            self.memory[self.at(layout.matrices, 0, row)] = found
        with b.for_(0, count, name="place") as place:
            self.advance(b.let(first + place), place)
        with b.for_(0, count, name="turn") as turn:
            place = b.let(count - 1 - turn, "place")
            self.back(b.let(first + place, "step"), place)

    def advance(self, step: Value, place: Value | None) -> None:
        """One step; the column after it is kept where it has a place in a chunk."""
        b, layout = self.b, self.layout
        kept = b.let(self.exp(self.gate("g", step)), "kept")
        known = b.variable(self.zero(), "known")
        with b.for_(0, layout.padded, name="row") as row:
            known.set(b.fma(self.matrix[row], self.of_row("k", step, row), known))
        written = b.let(self.gate("beta", step) * (self.own("v", step) - kept * known), "written")
        with b.for_(0, layout.padded, name="row") as row:
            left = kept * self.matrix[row]
            new = b.let(b.fma(self.of_row("k", step, row), written, left), "new")
            self.matrix[row] = new
            if place is not None:
                self.memory[self.at(layout.matrices, b.let(place + 1), row)] = new

    def back(self, step: Value, place: Value) -> None:
        """One step back: what reaches the column before it, and all gradients of the step."""
        b, layout = self.b, self.layout
        kept, share = b.let(self.exp(self.gate("g", step)), "kept"), self.gate("beta", step)
        given = b.let(self.own("dy", step) * self.net.scale, "given")
        reached, known = b.variable(self.zero(), "reached"), b.variable(self.zero(), "known")
        with b.for_(0, layout.padded, name="row") as row:
            key = self.of_row("k", step, row)
            found = b.let(b.fma(self.of_row("q", step, row), given, self.reaching[row]), "found")
            self.reaching[row] = found
            reached.set(b.fma(found, key, reached))
            known.set(b.fma(self.memory[self.at(layout.matrices, place, row)], key, known))
        missed = b.let(self.own("v", step) - kept * known, "missed")
        written, wanted = b.let(share * missed, "written"), b.let(share * reached, "wanted")
        by_gate = b.variable(self.zero(), "by_gate")
        after = b.let(place + 1, "after")
        with b.for_(0, layout.padded, TILE, name="first") as first:
            for j in range(TILE):
                row = b.let(first + j)
                old = b.let(kept * self.memory[self.at(layout.matrices, place, row)], "old")
                found = b.let(self.reaching[row], "found")
                self.shared[j, b.local] = given * self.memory[self.at(layout.matrices, after, row)]
                self.shared[TILE + j, b.local] = found * written - old * wanted
                before = b.let(found - self.of_row("k", step, row) * wanted, "before")
                by_gate.set(b.fma(before, old, by_gate))
                self.reaching[row] = kept * before
            self.add_up(2 * TILE, lambda number: self._row_sum(number, step, first))
        self.shared[0, b.local] = by_gate
        self.shared[1, b.local] = reached * missed
        self.add_up(2, lambda number: self._gate_sum(number, step))
        with b.if_(self.exists):
            index = (self.batch, step, self.head, self.column)
            self.put(2, self.slots["v"], wanted, *index)

    def add_up(self, count: int, place: Callable[[Value], Value]) -> None:
        """The sums of some rows of shared memory: a thread for each, which writes it to its place."""
        b, layout = self.b, self.layout
        b.barrier()
        with b.for_(b.local, count, layout.threads, name="number") as number:
            total = b.variable(self.zero(), "total")
            with b.for_(0, layout.threads, name="other") as other:
                total.set(total + self.shared[number, other])
            self.memory[place(number)] = total
        b.barrier()

    def _row_sum(self, number: Value, step: Value, first: Value) -> Value:
        b, layout = self.b, self.layout
        line = (b.group * self.net.steps + step) * layout.padded + first
        return b.let(line + number // TILE * layout.rows + number % TILE + layout.sums)

    def _gate_sum(self, number: Value, step: Value) -> Value:
        b, layout = self.b, self.layout
        every = layout.groups * self.net.steps
        return b.let(number * every + b.group * self.net.steps + step + layout.gates)


def _sums(spec: Spec, machine: Machine, node: Node, layout: Layout) -> Stage:
    """The dispatch that adds what workgroups have: a thread for each number of a query and key, the first of which takes the gates too."""
    net = layout.net
    t = Threads(spec, machine, node)
    b = t.b
    memory = t.dispatch.scratch(0, layout.count, t.kept)
    count = net.batch * net.steps * net.heads * net.width
    with b.if_(b.thread < count):
        row, line = b.let(b.thread % net.width, "row"), b.let(b.thread // net.width, "line")
        head, both = b.let(line % net.heads, "head"), b.let(line // net.heads)
        step, batch = b.let(both % net.steps, "step"), b.let(both // net.steps, "batch")
        group = b.let((batch * net.heads + head) * layout.blocks, "group")

        def total(first: int, across: int, column: Number) -> Value:
            found = b.variable(t.zero(), "total")
            with b.for_(0, layout.blocks, name="block") as block:
                at = ((group + block) * net.steps + step) * across + column
                found.set(found + memory[at + first])
            return found

        for result, name in ((0, "q"), (1, "k")):
            found = total(layout.sums + result * layout.rows, layout.padded, row)
            t.put(result, t.slots[name], found, batch, step, head, row)
        with b.if_(row == 0):
            every = layout.groups * net.steps
            for result, name in ((3, "g"), (4, "beta")):
                found = total(layout.gates + (result - 3) * every, 1, 0)
                t.put(result, t.slots[name], found, batch, step, head)
    return t.finish(count)
