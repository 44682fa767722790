"""Products with matrices that have the terms of a column as neighbours in memory: a warp has a few columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....codegen.ir.index import Number
from ....codegen.simt.builder import Value, Variable
from ....graph import dtypes
from ....graph.integers import ceil_div
from .code import WARP, Code
from .forms import Form
from .rows import SUMS, Rows, halves, numbers_of, shared_out

AT_ONCE = 4
"""Columns that a warp works on at a time."""


class ByTerms(Rows):
    """The terms of a column are neighbours in memory."""

    def __init__(self, code: Code, form: Form) -> None:
        super().__init__(code, form)
        self.share = shared_out(code, self.n)
        b, warps = self.builder, code.threads // WARP
        self.steps = ceil_div(self.k // self.vector, WARP)
        most = max(1, AT_ONCE // len(self.taps))
        self.columns = max(
            1, min(most, ceil_div(self.share.most, warps), SUMS // (len(self.taps) * self.m))
        )
        self.steps_ahead = max(1, min(self.steps, 12 // (self.columns * len(self.taps))))
        self.lane, self.warp = b.let(b.local % WARP, "lane"), b.let(b.local // WARP, "warp")
        self.across = warps * self.columns
        self.early: list[list[Value]] = []

    def prepare(self) -> None:
        """Ask for what can be had before the rows are there."""
        columns = self._columns(0)
        self.early = [self._loads(columns, step) for step in range(self.steps_ahead)]

    def _columns(self, turn: Number) -> list[Value]:
        b = self.builder
        first = self.share.first + (b.index(turn) * self.across + self.warp * self.columns)
        return [b.let(b.min(first + i, self.n - 1), "column") for i in range(self.columns)]

    def _loads(self, columns: Sequence[Value], step: Number) -> list[Value]:
        b = self.builder
        vector = b.let(b.min(b.index(step) * WARP + self.lane, self.k // self.vector - 1))
        return [self.load(column + tap, vector) for column in columns for tap in self.taps]

    def write(self) -> None:
        """Multiply, add up, and take the sums to where they go."""
        b = self.builder
        turns = ceil_div(self.share.most, self.across)
        self._turn(0, early=True)
        if turns > 1:
            with b.for_(1, turns, name="turn") as turn:
                self._turn(turn, early=False)

    def _turn(self, turn: Number, *, early: bool) -> None:
        b, columns = self.builder, self._columns(turn)
        count = self.columns * len(self.taps)
        sums = [[b.variable(0.0, "sum", dtypes.f32) for _ in range(self.m)] for _ in range(count)]
        done = 0
        if early:
            for known, loaded in enumerate(self.early):
                self._add(sums, known, loaded)
            done = self.steps_ahead
        if done < self.steps:
            with b.for_(done, self.steps, self.steps_ahead, name="step") as step:
                numbers = [b.let(step + i) for i in range(self.steps_ahead)]
                loads = [self._loads(columns, number) for number in numbers]
                for number, loaded in zip(numbers, loads, strict=True):
                    self._add(sums, number, loaded)
        for own in sums:
            for total in own:
                for mask in halves(WARP):
                    total.set(total + b.shuffle_xor(total, mask))
        self._leave(turn, sums)

    def _add(
        self, sums: Sequence[Sequence[Variable]], step: Number, loaded: Sequence[Value]
    ) -> None:
        b = self.builder
        vector = b.let(b.index(step) * WARP + self.lane)
        near = b.let(b.min(vector, self.k // self.vector - 1))
        inside = b.let(vector * self.vector < self.k)
        weights = [numbers_of(self.code, own, self.dtype) for own in loaded]
        for row in range(self.m):
            xs = self._numbers(row, near)
            for own, numbers in zip(sums, weights, strict=True):
                total = b.variable(own[row], "part")
                for x, weight in zip(xs, numbers, strict=True):
                    total.set(b.fma(weight, x, total))
                own[row].set(b.choose(inside, total, own[row]))

    def _numbers(self, row: int, vector: Value) -> list[Value]:
        """The numbers of a row that meet a vector of the matrix."""
        b, size = self.builder, self.x.dtype.itemsize
        each = 16 // size
        memory = replace(self.rows, dtype=dtypes.u32, vector=4, single=False)
        if self.vector % each or self.k % each:
            first = b.let(vector * self.vector)
            return [self.number(row, first + i) for i in range(self.vector)]
        found: list[Value] = []
        for part in range(self.vector // each):
            at = vector * (self.vector // each) + (part + row * self.k // each)
            found += numbers_of(self.code, b.load(memory, at), self.x.dtype)
        return found

    def _leave(self, turn: Number, sums: Sequence[Sequence[Variable]]) -> None:
        """Each result is finished by a lane of its own."""
        b, taps = self.builder, len(self.taps)
        count = self.columns * self.m
        column, row = b.let(self.lane // self.m), b.let(self.lane % self.m)
        totals = []
        for tap in range(taps):
            total: Value = b.let(sums[tap][0])
            for number in range(1, count):
                c, r = divmod(number, self.m)
                total = b.let(b.choose(self.lane == number, sums[c * taps + tap][r], total))
            totals.append(total)
        own = b.let(b.index(turn) * self.across + self.warp * self.columns + column)
        with b.if_((self.lane < count) & (own < self.share.count)):
            self.finish(row if self.m > 1 else 0, b.let(self.share.first + own), totals)
