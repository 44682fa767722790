"""Products with matrices whose columns are neighbours in memory: a thread has a vector of columns and some terms of their sums, and threads of the same columns are added up by way of shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ....codegen.ir.index import Number
from ....codegen.simt.builder import Memory, Value, Variable
from ....codegen.simt.machine import power_below
from ....graph import dtypes
from ....graph.integers import ceil_div
from .code import WARP, Code
from .forms import Form
from .rows import AHEAD, SUMS, Ahead, Rows, halves, numbers_of, shared_out

WIDE = 8
"""Vectors of columns that a block works on at a time."""


class _Result(NamedTuple):
    """The result of a thread.

    Attributes:
        lanes: threads that add it up.
        number: of the result among the block's; there may be fewer.
        unit: its vector of columns, among those of a turn.
        within: its column in that, and its row.
        row: its row.
        column: its column, in the first turn.
    """

    lanes: int
    number: Value
    unit: Value
    within: Value
    row: Number
    column: Value


class ByColumns(Rows):
    """Columns are neighbours in memory."""

    def __init__(self, code: Code, form: Form) -> None:
        super().__init__(code, form)
        self.share = shared_out(code, self.n // self.vector)
        taps = len(self.taps)
        # Turns of equal width: none has threads without columns, if it can be helped.
        self.turns = ceil_div(self.share.most, max(1, WIDE // taps))
        self.wide = ceil_div(self.share.most, self.turns)
        self.each = code.threads // self.wide
        self.steps = ceil_div(self.k, self.each)
        self.steps_ahead = max(1, min(AHEAD // taps, self.steps))
        self.together = max(1, min(self.m, SUMS // (taps * self.vector)))
        b = self.builder
        self.unit = b.let(b.local % self.wide, "unit")
        self.lane = b.let(b.local // self.wide, "lane")
        self.early: list[list[Value]] = []
        self.known: Ahead = ()
        self._rooms: dict[int, Memory] = {}

    def _room(self, count: int) -> Memory:
        """Shared memory for so many sums of every thread."""
        if count not in self._rooms:
            shape = count, self.code.threads
            self._rooms[count] = self.code.shared(dtypes.f32, shape, "sums")
        return self._rooms[count]

    def prepare(self) -> None:
        """Ask for what can be had before the rows are there."""
        column = self._column(0)
        self.early = [self._loads(column, step) for step in range(self.steps_ahead)]
        if self.m <= self.together:
            result = self._result(0, range(self.m))
            self.known = self.ahead(result.row, result.column)

    def _result(self, first: int, rows: range) -> _Result:
        """The result that this thread finishes in the first turn, of some from ``first`` on."""
        b = self.builder
        per = self.vector * len(rows)
        results = self.wide * per
        lanes = min(WARP, power_below(max(1, self.code.threads // results)))
        number = b.let(b.local // lanes + first)
        result = b.let(b.min(number, results - 1))
        unit, within = b.let(result // per), b.let(result % per)
        own = b.let(b.min(self.share.first + unit, self.n // self.vector - 1))
        column = b.let(own * self.vector + within % self.vector)
        row: Number = b.let(within // self.vector + rows.start) if self.m > 1 else 0
        return _Result(lanes, number, unit, within, row, column)

    def _column(self, turn: Number) -> Value:
        """The vector of columns of this thread in a turn; of those that no block has the last."""
        b = self.builder
        own = self.share.first + (b.index(turn) * self.wide + self.unit)
        return b.let(b.min(own, self.n // self.vector - 1), "column")

    def _loads(self, column: Value, step: Number) -> list[Value]:
        b = self.builder
        term = b.let(b.min(b.index(step) * self.each + self.lane, self.k - 1), "term")
        return [self.load(term, column + tap // self.vector) for tap in self.taps]

    def write(self) -> None:
        """Multiply, add up, and take the sums to where they go."""
        b = self.builder
        self._turn(0, early=True)
        if self.turns > 1:
            with b.for_(1, self.turns, name="turn") as turn:
                self._turn(turn, early=False)

    def _turn(self, turn: Number, *, early: bool) -> None:
        for first in range(0, self.m, self.together):
            rows = range(first, min(first + self.together, self.m))
            self._some_rows(turn, rows, early=early)

    def _some_rows(self, turn: Number, rows: range, *, early: bool) -> None:
        b, column = self.builder, self._column(turn)
        sums = [
            [[b.variable(0.0, "sum", dtypes.f32) for _ in range(self.vector)] for _ in rows]
            for _ in self.taps
        ]
        done = 0
        if early:
            for known, loaded in enumerate(self.early):
                self._add(sums, rows, known, loaded)
            done = self.steps_ahead
        if done < self.steps:
            together = max(1, AHEAD // len(self.taps))
            with b.for_(done, self.steps, together, name="step") as step:
                numbers = [b.let(step + i) for i in range(together)]
                loads = [self._loads(column, number) for number in numbers]
                for number, loaded in zip(numbers, loads, strict=True):
                    self._add(sums, rows, number, loaded)
        self._reduce(turn, rows, sums, early=early)

    def _add(
        self,
        sums: Sequence[Sequence[Sequence[Variable]]],
        rows: range,
        step: Number,
        loaded: Sequence[Value],
    ) -> None:
        b = self.builder
        term = b.let(b.index(step) * self.each + self.lane, "term")
        near = b.let(b.min(term, self.k - 1))
        inside = b.let((term < self.k) & (self.lane < self.each))
        xs = [b.let(b.choose(inside, self.number(row, near), 0.0)) for row in rows]
        for own, vector in zip(sums, loaded, strict=True):
            numbers = numbers_of(self.code, vector, self.dtype)
            for x, totals in zip(xs, own, strict=True):
                for total, weight in zip(totals, numbers, strict=True):
                    total.set(b.fma(weight, x, total))

    def _reduce(
        self,
        turn: Number,
        rows: range,
        sums: Sequence[Sequence[Sequence[Variable]]],
        *,
        early: bool,
    ) -> None:
        b, code, taps = self.builder, self.code, len(self.taps)
        flat = [total for own in sums for totals in own for total in totals]
        memory = self._room(len(flat))
        for number, total in enumerate(flat):
            b.store(total, memory, (number, b.local))
        code.barrier()
        per = self.vector * len(rows)
        results = self.wide * per
        lanes = self._result(0, rows).lanes
        for first in range(0, results, code.threads // lanes):
            found = self._result(first, rows)
            lane = b.let(b.local % lanes)
            totals = []
            for tap in range(taps):
                total = b.variable(0.0, "total", dtypes.f32)
                for at in range(ceil_div(self.each, lanes)):
                    thread = b.let(lane + at * lanes)
                    with b.if_(thread < self.each if (at + 1) * lanes > self.each else None):
                        place = found.within + tap * per, thread * self.wide + found.unit
                        total.set(total + b.load(memory, place))
                for mask in halves(lanes):
                    total.set(total + b.shuffle_xor(total, mask))
                totals.append(b.let(total))
            own = b.let(b.index(turn) * self.wide + found.unit)
            inside = (own < self.share.count) & (lane == 0) & (found.number < results)
            with b.if_(inside):
                vector = b.let(self.share.first + own)
                column = b.let(vector * self.vector + found.within % self.vector)
                known = self.known if early and not first else ()
                self.finish(found.row, column, totals, known)
        code.barrier()
