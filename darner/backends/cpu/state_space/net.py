"""The gated delta rule: some columns of a head's matrix at a time, which need no others, step by step.

A step goes once over the matrix: it forgets, takes in what is written, and is multiplied by the query and by the key of the next step. The columns of a unit
lie in the first cache; a single step reads them where the state lies, and writes them where it will.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....codegen.ir import elementary
from ....codegen.ir.emit import lane_mask, loop, minimum
from ....codegen.ir.index import Index, Lanes, i64
from ....codegen.ir.lanes import Lane
from ....codegen.ir.types import Value
from ....codegen.problems.state_space import NET_FINAL, Net, wanted
from ....graph.integers import ceil_div, round_up
from ....graph.node import Node
from ..emit.template import Code, Scratch
from ..emit.vectors import each, lanes_of
from ..runtime.jit import Machine
from .operands import Operand, Result, Room

UNROLLED = 4
"""Rows of a matrix that are gone through at once; every other one has sums of its own, so that none waits for the last."""


@dataclass(frozen=True)
class Cut:
    """How a head's matrix is cut.

    Attributes:
        lanes: columns of a vector.
        vectors: vectors of a unit.
        units: how many there are of a head.
        padded: elements of a row of keys or queries.
    """

    net: Net
    lanes: int
    vectors: int
    units: int
    padded: int

    @classmethod
    def of(cls, node: Node, machine: Machine) -> Cut:
        """The cut for a rule."""
        net = Net.of(node)
        lanes = lanes_of(machine, net.dtype)
        count = ceil_div(net.width, lanes)
        vectors = 3 if count % 3 == 0 and count % 2 else min(2, max(count, 1))
        return cls(net, lanes, vectors, ceil_div(count, vectors), round_up(net.width, lanes))

    @property
    def columns(self) -> int:
        """Columns of a unit, in whole vectors."""
        return self.vectors * self.lanes

    @property
    def matrix(self) -> int:
        """Elements of a unit's columns."""
        return self.net.width * self.columns


def net_scratch(node: Node, machine: Machine) -> Scratch:
    """The columns of a unit, and three rows of numbers that are converted."""
    cut = Cut.of(node, machine)
    return Scratch(own=(cut.matrix + 3 * cut.padded) * cut.net.dtype.itemsize)


def emit_net(code: Code, node: Node) -> None:
    """All of a gated delta rule."""
    cut = Cut.of(node, code.machine)
    net, b = cut.net, code.builder
    operands = {n: Operand(code, x) for n, x in zip(node.slots, node.operands, strict=True)}
    found = wanted(code.spec)
    o = Result(code, node.operands[0], found.get(0))
    has_final = node.op.name == NET_FINAL
    final = Result(code, node.operands[5], found.get(1)) if has_final else None

    def unit(number: Value) -> None:
        head = b.udiv(number, i64(cut.units))
        columns = _Columns(
            code,
            cut,
            operands,
            b.udiv(head, i64(net.heads)),
            b.urem(head, i64(net.heads)),
            b.mul(b.urem(number, i64(cut.units)), i64(cut.columns)),
        )
        if net.steps == 1 and final is not None and final.pointer is not None:
            columns.single_step(o, final)
        else:
            columns.all_steps(o, final)

    if net.heads and net.width:
        code.each(net.batch * net.heads * cut.units, unit)


class _Columns:
    """Some columns of the matrix of one head, while code for them is written."""

    def __init__(  # many parameters: what a unit is, and where it is
        self,
        code: Code,
        cut: Cut,
        operands: dict[str, Operand],
        batch: Value,
        head: Value,
        first: Value,
    ) -> None:
        b = code.builder
        self.code, self.cut, self.b = code, cut, b
        self.net = cut.net
        self.operands = operands
        self.batch, self.head = batch, head
        self.starts = [code.indices.add(first, k * cut.lanes) for k in range(cut.vectors)]
        whole = cut.net.width % cut.columns == 0
        self.masks = [
            None if whole else lane_mask(b, b.sub(i64(cut.net.width), i64(start)), cut.lanes)
            for start in self.starts
        ]
        self.room = Room(code, code.own, cut.net.dtype, cut.lanes)

    # ------------------------------------------------------------- operands

    def lanes(self, k: int) -> Lanes:
        """The columns of a vector."""
        return Lanes(self.starts[k], self.cut.lanes)

    def zeros(self) -> list[Lane]:
        """A zero for each vector."""
        return [self.room.zero()] * self.cut.vectors

    def state_row(self, row: Index) -> list[Lane]:
        """A row of the state that the sequence begins with."""
        state, at = self.operands["state"], [self.batch, self.head, row]
        return [
            Lane(self.b, state.masked([*at, self.lanes(k)], mask))
            for k, mask in enumerate(self.masks)
        ]

    def kept_row(self, row: Index) -> list[Lane]:
        """A row of the matrix in scratch memory."""
        indices, cut = self.code.indices, self.cut
        start = indices.mul(row, cut.columns)
        return [self.room.get(indices.add(start, k * cut.lanes)) for k in range(cut.vectors)]

    def keep_row(self, row: Index, values: Sequence[Lane]) -> None:
        """Write a row of the matrix to scratch memory."""
        indices, cut = self.code.indices, self.cut
        start = indices.mul(row, cut.columns)
        for k, value in enumerate(values):
            self.room.put(value, indices.add(start, k * cut.lanes))

    def put_row(self, result: Result, index: Sequence[Index], values: Sequence[Lane]) -> None:
        """Write a row of a result."""
        for k, value in enumerate(values):
            result.put(value.value, [*index, self.lanes(k)], self.masks[k])

    def numbers(self, name: str, step: Index, place: int) -> Callable[[Index], Lane]:
        """The numbers of a query or key of this head at a step; of 16-bit floats a copy is made at a place of its own."""
        operand, index = self.operands[name], [self.batch, step, self.head]
        if not operand.is_narrow:
            return lambda row: operand.spread([*index, row], self.cut.lanes)
        room = self.room.part(self.cut.matrix + place * self.cut.padded)
        lanes, width = self.cut.lanes, self.net.width

        def convert(number: Value) -> None:
            start = self.b.mul(number, i64(lanes))
            left = lane_mask(self.b, self.b.sub(i64(width), start), lanes)
            mask = left if width % lanes else None
            found = operand.masked([*index, Lanes(start, lanes)], mask)
            room.put(Lane(self.b, found), start)

        each(self.b, 0, self.cut.padded // lanes, convert)
        return room.spread

    def gate(self, step: Index) -> tuple[Lane, Lane]:
        """What is left of the matrix after a step, and how much is written."""
        index, lanes = [self.batch, step, self.head], self.cut.lanes
        kept = elementary.exp(self.operands["g"].spread(index, lanes))
        return kept, self.operands["beta"].spread(index, lanes)

    # ------------------------------------------------------------- steps

    def rows(self, body: Callable[[Index, list[Lane]], list[Lane]], sums: int) -> list[list[Lane]]:
        """``body(row, sums)`` for all rows; the sums, for each vector, of the even and the odd rows are added."""
        b, width, vectors = self.b, self.net.width, self.cut.vectors
        each_turn = sums * vectors
        begin = [value.value for value in self.zeros()] * (2 * sums)

        def several(row: Value, held: Sequence[Value]) -> Sequence[Value]:
            values = [Lane(b, value) for value in held]
            for k in range(UNROLLED):
                part = slice((k % 2) * each_turn, (k % 2 + 1) * each_turn)
                values[part] = body(self.code.indices.add(row, k), values[part])
            return [value.value for value in values]

        whole = width // UNROLLED * UNROLLED
        found = [Lane(b, v) for v in loop(b, i64(0), i64(whole), UNROLLED, several, begin)]
        for row in range(whole, width):
            part = slice((row % 2) * each_turn, (row % 2 + 1) * each_turn)
            found[part] = body(row, found[part])
        total = [found[k] + found[each_turn + k] for k in range(each_turn)]
        return [total[k * vectors : (k + 1) * vectors] for k in range(sums)]

    def known(
        self, key: Callable[[Index], Lane], row_of: Callable[[Index], list[Lane]]
    ) -> list[Lane]:
        """What the matrix has for a key."""

        def add(row: Index, sums: list[Lane]) -> list[Lane]:
            number = key(row)
            return [number.fma(x, total) for x, total in zip(row_of(row), sums, strict=True)]

        return self.rows(add, 1)[0]

    def written(self, step: Index, kept: Lane, share: Lane, known: Sequence[Lane]) -> list[Lane]:
        """What a step writes: its value, less what the matrix has for its key."""
        v, index = self.operands["v"], [self.batch, step, self.head]
        return [
            share * (Lane(self.b, v.masked([*index, self.lanes(k)], mask)) - kept * known[k])
            for k, mask in enumerate(self.masks)
        ]

    def put_result(self, o: Result, step: Index, values: Sequence[Lane]) -> None:
        """Write what a query found."""
        scaled = [value * self.net.scale for value in values]
        self.put_row(o, [self.batch, step, self.head], scaled)

    def single_step(self, o: Result, final: Result) -> None:
        """One step from a state, which is read twice and written once."""
        key, query = self.numbers("k", 0, 0), self.numbers("q", 0, 1)
        kept, share = self.gate(0)
        written = self.written(0, kept, share, self.known(key, self.state_row))

        def update(row: Index, sums: list[Lane]) -> list[Lane]:
            number, asked = key(row), query(row)
            new = [
                number.fma(d, x * kept) for x, d in zip(self.state_row(row), written, strict=True)
            ]
            self.put_row(final, [self.batch, self.head, row], new)
            return [asked.fma(x, total) for x, total in zip(new, sums, strict=True)]

        self.put_result(o, 0, self.rows(update, 1)[0])

    def all_steps(self, o: Result, final: Result | None) -> None:
        """All steps of the sequence."""
        b, net = self.b, self.net
        has_state = "state" in self.operands
        each(
            b,
            0,
            net.width,
            lambda row: self.keep_row(row, self.state_row(row) if has_state else self.zeros()),
        )
        begin = self.zeros()
        if has_state and net.steps:
            begin = self.known(self.numbers("k", 0, 0), self.kept_row)

        def step(step: Value, held: Sequence[Value]) -> Sequence[Value]:
            known = self.step(o, step, [Lane(b, value) for value in held])
            return [value.value for value in known]

        loop(b, i64(0), i64(net.steps), 1, step, [value.value for value in begin])
        if final is not None and final.pointer is not None:
            each(
                b,
                0,
                net.width,
                lambda row: self.put_row(final, [self.batch, self.head, row], self.kept_row(row)),
            )

    def step(self, o: Result, step: Value, known: Sequence[Lane]) -> list[Lane]:
        """One step, given what the matrix has for its key; what it has then for the next key is returned."""
        b = self.b
        following = minimum(b, b.add(step, i64(1)), i64(self.net.steps - 1))
        kept, share = self.gate(step)
        written = self.written(step, kept, share, known)
        key, query = self.numbers("k", step, 0), self.numbers("q", step, 1)
        later = self.numbers("k", following, 2)

        def update(row: Index, sums: list[Lane]) -> list[Lane]:
            number, asked, asked_next = key(row), query(row), later(row)
            new = [
                number.fma(d, x * kept) for x, d in zip(self.kept_row(row), written, strict=True)
            ]
            self.keep_row(row, new)
            first = [asked.fma(x, total) for x, total in zip(new, sums, strict=False)]
            rest = sums[len(new) :]
            return first + [asked_next.fma(x, t) for x, t in zip(new, rest, strict=True)]

        found, known_next = self.rows(update, 2)
        self.put_result(o, step, found)
        return known_next
