"""A product of a few rows with a matrix: every block has some columns, and reads their part of the matrix before it waits for the rows.

Where columns are neighbours in memory, a thread has a vector of columns and some terms of their sums; threads of the same columns are added up by way of shared memory. Where the terms of a column are
neighbours, a warp has a few columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from ....codegen.ir.index import Number
from ....codegen.simt.builder import Memory, Operand, Value, Variable
from ....codegen.simt.machine import power_below
from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.errors import InternalError
from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.specs import sizes
from .chain import Form, Work
from .code import WARP, Code, StageElements
from .roles import Matrix, matrix_of, tail_of

AHEAD = 8
"""Vectors of the matrix that a thread asks for before it waits."""
SUMS = 32
"""Sums of a thread."""
WIDE = 8
"""Vectors of columns that a block works on at a time."""
AT_ONCE = 4
"""Columns that a warp works on at a time."""


@dataclass(frozen=True)
class Share:
    """The columns of a block.

    Attributes:
        first: its first unit of columns.
        count: how many it has.
        most: how many any block has.
    """

    first: Value
    count: Value
    most: int


def shared_out(code: Code, units: int) -> Share:
    """Some units shared out to all blocks: neighbours to one block."""
    b, blocks = code.builder, code.shape.blocks
    each, more = divmod(units, blocks)
    first = b.let(b.group * each + b.min(b.group, more), "first")
    count = b.let(b.choose(b.group < more, b.index(each + 1), b.index(each)), "count")
    return Share(first, count, each + (more > 0))


def numbers_of(code: Code, vector: Value, dtype: DType) -> list[Value]:
    """The numbers of a load of 16 bytes as f32."""
    b = code.builder
    found: list[Value] = []
    for word in b.let(vector).parts:
        if dtype is dtypes.f32:
            found.append(b.let(b.of_bits(word, dtypes.f32)))
        elif dtype is dtypes.f16:
            found += [b.let(part) for part in b.let(b.halves(word)).parts]
        else:
            bits = (word << 16, word & 0xFFFF0000)
            found += [b.let(b.of_bits(half, dtypes.f32)) for half in bits]
    return found


Ahead = Sequence[tuple[Node, Operand]]
"""Elements of operands that are known."""


class Rows:
    """A product in a stage: what it multiplies, and where its sums go.

    Args:
        code: of the chain.
        form: of the stage.
    """

    def __init__(self, code: Code, form: Form) -> None:
        if form.main is None:
            raise InternalError("a stage of a product has no product")
        self.code, self.builder = code, code.builder
        self.main: Work = form.main
        matrix = matrix_of(code.spec(self.main))
        if matrix is None:
            raise InternalError("a kernel that is no product came to the code of those")
        self.matrix: Matrix = matrix
        product = matrix.product
        self.m, self.k, self.n = product.m, product.k, product.n
        self.taps: tuple[int, ...] = (0,)
        self.last = form.tail
        if self.last is not None:
            tail = tail_of(code.spec(self.last), self.m)
            if tail is None:
                raise InternalError("what comes after a product does not fit it")
            self.taps, self.n = tail.starts, tail.columns
        place = self.main.operands[matrix.weight]
        self.dtype: DType = place.dtype
        self.vector = matrix.vector
        self.weights: Memory = code.vectors(place)
        self.x = self.main.operands[matrix.x]
        rows = code.memory(self.x)
        self.rows: Memory = rows.singles if rows.packed else rows

    # ------------------------------------------------------------- operands

    def load(self, row: Number, vector: Number) -> Value:
        """A vector of the matrix as it lies in memory."""
        b, pitch = self.builder, self.matrix.pitch // self.vector
        start = self.matrix.product.operands[1].offset // self.vector
        return b.let(b.load(self.weights, b.index(row) * pitch + vector + start), "weights")

    def number(self, row: int, term: Value) -> Value:
        """A number of the rows as f32."""
        b = self.builder
        value = b.load(self.rows, term + row * self.k)
        return b.let(self.as_f32(value), "x")

    def as_f32(self, value: Value) -> Operand:
        """An element of the rows as f32."""
        b = self.builder
        if self.x.dtype is dtypes.bf16:
            return b.of_bits(b.zext(value, b.index(0).type) << 16, dtypes.f32)
        if self.x.dtype is dtypes.f16:
            return b.fpext(value, b.constant(0.0, dtypes.f32).type)
        return value

    # ------------------------------------------------------------- results

    def elements(self) -> list[StageElements]:
        """The elements of what comes after the sums: of the product's kernel, and of the one after it."""
        last = [] if self.last is None else [self.code.elements(self.last)]
        return [self.code.elements(self.main), *last]

    @cached_property
    def beside(self) -> list[Node]:
        """Operands of which a result reads the element in its own place."""
        node, body = self.matrix.product.node, self.code.spec(self.main).body
        factors = (self.matrix.x, self.matrix.weight)
        found = []
        for number, leaf in enumerate(self.code.spec(self.main).inputs):
            users = body.users(leaf)
            alike = (user.shape == node.shape and "elementwise" in user.op.traits for user in users)
            # What the stage itself makes is not there before.
            early = number not in factors and self.main.operands[number].what != "local"
            if early and sizes(leaf) == sizes(node) and all(alike):
                found.append(leaf)
        return found

    def ahead(self, row: Number, column: Value) -> Ahead:
        """What a result reads besides its sums, asked for before the rows are there."""
        if not self.beside:
            return ()
        own = self.code.elements(self.main)
        index = self._index(own, row, column)
        return [(leaf, own.at(leaf, index)) for leaf in self.beside]

    def _index(self, own: StageElements, row: Number, column: Number) -> list[Number]:
        at = own.places.add(own.places.mul(row, self.matrix.product.n), column)
        return own.places.split(at, sizes(self.matrix.product.node))

    def finish(self, row: Number, column: Value, sums: Sequence[Value], ahead: Ahead = ()) -> None:
        """Take the sums of a result, one for each tap, to where they go."""
        code, (own, *last) = self.code, self.elements()
        node, body = self.matrix.product.node, code.spec(self.main).body
        found: list[Operand] = []
        for tap, total in zip(self.taps, sums, strict=True):
            at = own.places.add(
                own.places.mul(row, self.matrix.product.n), own.places.add(column, tap)
            )
            index = own.places.split(at, sizes(node))
            for leaf, value in ahead:
                own.give(leaf, value)
            own.give(node, own.registers.reduced("sum", total, node.dtype))
            with own.scope():
                values = [own.at(output, index) for output in body.outputs]
            if not last:
                for value, places in zip(values, self.main.results, strict=True):
                    code.leave(own, value, places, at)
                return
            found.append(values[0])
        self._finish_tail(last[0], row, column, found)

    def _finish_tail(
        self, elements: StageElements, row: Number, column: Value, found: Sequence[Operand]
    ) -> None:
        work = self.last
        if work is None:
            return
        body = self.code.spec(work).body
        values = dict(zip(self.taps, found, strict=True))
        for node in body.nodes:
            if node.op.name == "slice":
                elements.give(node, values[int(node.attrs["starts"][-1])])
        (output,) = body.outputs
        at = elements.places.add(elements.places.mul(row, self.n), column)
        index = elements.places.split(at, sizes(output))
        self.code.leave(elements, elements.at(output, index), work.results[0], at)


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
                for mask in _halves(lanes):
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


def _halves(count: int) -> list[int]:
    return [1 << k for k in reversed(range(count.bit_length() - 1))]


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
                for mask in _halves(WARP):
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


def product_in(code: Code, form: Form) -> ByColumns | ByTerms:
    """The product of a stage."""
    if form.main is None:
        raise InternalError("a stage of a product has no product")
    matrix = matrix_of(code.spec(form.main))
    by_columns = matrix is not None and matrix.by_columns
    return ByColumns(code, form) if by_columns else ByTerms(code, form)
