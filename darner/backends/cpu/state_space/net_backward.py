"""The gradients of the gated delta rule: a head at a time, by chunks of steps, each of which is products of small matrices.

Forwards, the matrix with which each chunk begins is kept. Backwards, from the last chunk to the first, what the steps of a chunk wrote is found again (a triangular
system), then the gradient of that (the transposed system), and the gradient of the matrix goes on to the chunk before. Decays between steps are products of their
gates, never differences of sums, so that nothing is lost and a gate of minus infinity is a zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....codegen.ir import elementary
from ....codegen.ir.emit import broadcast, lane_mask, lane_sum, loop, minimum
from ....codegen.ir.index import Index, Lanes, i64
from ....codegen.ir.lanes import Lane
from ....codegen.ir.types import Value
from ....codegen.problems.state_space import Net, wanted
from ....graph.integers import ceil_div, round_up
from ....graph.node import Node
from ..emit.template import Code, Scratch
from ..emit.vectors import clear_bytes, constant, copy_bytes, each, lanes_of
from ..runtime.jit import Machine
from .matrices import ROWS, Matrix, Products, part_of
from .operands import Operand, Result, Room

CHUNK = 32
"""Steps of a chunk; half of that for narrow heads, whose matrices are no larger than what a chunk adds."""

ROW_MATRICES = ("k", "q", "v", "dy", "written", "reached", "dq", "dk", "more")
SQUARES = ("decays", "keys", "queries", "by_keys", "by_queries")
NUMBERS = ("gate", "beta", "first", "last", "until", "since", "running")


@dataclass(frozen=True)
class Layout:
    """Sizes of the matrices of a chunk, and where they lie in scratch memory.

    Attributes:
        chunk: steps of a chunk.
        chunks: how many there are.
        width: keys and values of a head, padded.
    """

    net: Net
    lanes: int
    chunk: int
    chunks: int
    width: int

    @classmethod
    def of(cls, node: Node, machine: Machine) -> Layout:
        """The layout for the gradients of a rule."""
        net = Net.of(node)
        lanes = lanes_of(machine, net.dtype)
        unit = max(lanes, ROWS)
        most = CHUNK if net.width > CHUNK else CHUNK // 2
        chunk = round_up(max(1, min(most, net.steps)), unit)
        return cls(net, lanes, chunk, ceil_div(net.steps, chunk), round_up(net.width, unit))

    @property
    def matrix(self) -> int:
        """Elements of a head's matrix."""
        return self.width * self.width

    @property
    def offsets(self) -> dict[str, int]:
        """Where each matrix begins, and where all of them end."""
        sizes = {
            **dict.fromkeys(ROW_MATRICES, self.chunk * self.width),
            **dict.fromkeys(SQUARES, self.chunk * self.chunk),
            **dict.fromkeys(NUMBERS, self.chunk),
            "later": self.matrix,
            "starts": max(self.chunks, 1) * self.matrix,
        }
        found, total = {}, 0
        for name, size in sizes.items():
            found[name] = total
            total += size
        return {**found, "end": total}


def net_backward_scratch(node: Node, machine: Machine) -> Scratch:
    """The matrices of a chunk, and those with which all chunks of a head begin."""
    layout = Layout.of(node, machine)
    return Scratch(own=layout.offsets["end"] * layout.net.dtype.itemsize)


def emit_net_backward(code: Code, node: Node) -> None:
    """All gradients of a gated delta rule."""
    layout = Layout.of(node, code.machine)
    net, b = layout.net, code.builder
    if net.heads:
        code.each(
            net.batch * net.heads,
            lambda unit: _Head(
                code, node, layout, b.udiv(unit, i64(net.heads)), b.urem(unit, i64(net.heads))
            ).emit(),
        )


class _Head:
    """One head of one sequence, while code for it is written."""

    def __init__(self, code: Code, node: Node, layout: Layout, batch: Value, head: Value) -> None:
        self.code, self.b, self.layout, self.net = code, code.builder, layout, layout.net
        self.batch, self.head = batch, head
        self.operands = {
            name: Operand(code, x) for name, x in zip(node.slots, node.operands, strict=True)
        }
        found = wanted(code.spec)
        kinds = [x for s, x in zip(node.slots, node.operands, strict=True) if s not in LATER]
        names = ("q", "k", "v", "g", "beta", "state")
        self.results = {
            name: Result(code, kind, found.get(i))
            for i, (name, kind) in enumerate(zip(names, kinds, strict=False))
        }
        self.products = Products(code, self.net.dtype, layout.lanes)
        self.room = Room(code, code.own, self.net.dtype, layout.lanes)
        at, chunk, width = layout.offsets, layout.chunk, layout.width
        self.of = {
            **{name: part_of(self.room, at[name], chunk, width) for name in ROW_MATRICES},
            **{name: part_of(self.room, at[name], chunk, chunk) for name in SQUARES},
            "later": part_of(self.room, at["later"], width, width),
        }
        self.numbers = {name: self.room.part(at[name]) for name in NUMBERS}
        self.nbytes = self.net.dtype.itemsize

    def emit(self) -> None:
        """The whole head, there and back."""
        b, layout = self.b, self.layout
        first, later = self.start(0), self.of["later"]
        self.read_matrix(first, "state")
        self.read_matrix(later, "dstate")
        every = len(ROW_MATRICES) * layout.chunk * layout.width
        clear_bytes(b, self.room.pointer, every * self.nbytes)

        def forward(chunk: Value) -> None:
            self.read(chunk, ("k", "v"))
            self.find_written(self.start(chunk))
            self.go_on(self.start(chunk), self.start(b.add(chunk, i64(1))))

        each(b, 0, layout.chunks - 1, forward)

        def backward(back: Value) -> None:
            chunk = b.sub(i64(layout.chunks - 1), back)
            start = self.start(chunk)
            self.read(chunk, ("k", "v", "q", "dy"))
            self.find_written(start)
            self.find_reached()
            self.gradients_of_decays()
            self.gradients_of_rows(start)
            self.write(chunk)
            self.go_back()

        each(b, 0, layout.chunks, backward)
        if "state" in self.results:
            self.write_rows("state", later, i64(self.net.width), self.matrix_row)

    # ------------------------------------------------------------- memory

    def start(self, chunk: Index) -> Matrix:
        """The matrix with which a chunk begins."""
        indices, layout = self.code.indices, self.layout
        at = indices.add(indices.mul(chunk, layout.matrix), layout.offsets["starts"])
        return part_of(self.room, at, layout.width, layout.width)

    def matrix_row(self, row: Index) -> list[Index]:
        """Where a row of a state lies."""
        return [self.batch, self.head, row]

    def columns(self) -> Sequence[tuple[Lanes, Value | None]]:
        """The vectors of a row of an operand, with the lanes that exist."""
        width, lanes = self.net.width, self.layout.lanes
        return [
            (
                Lanes(start, lanes),
                lane_mask(self.b, i64(width - start), lanes) if start + lanes > width else None,
            )
            for start in range(0, width, lanes)
        ]

    def read_rows(
        self, name: str, matrix: Matrix, count: Value, place: Callable[[Index], list[Index]]
    ) -> None:
        """Copy rows of an operand; what comes behind them stays."""

        def row(number: Value) -> None:
            start = self.b.mul(number, i64(matrix.row))
            for column, mask in self.columns():
                found = self.operands[name].masked([*place(number), column], mask)
                at = self.code.indices.add(start, column.start)
                matrix.room.put(Lane(self.b, found), at)

        each(self.b, 0, count, row)

    def write_rows(
        self, name: str, matrix: Matrix, count: Value, place: Callable[[Index], list[Index]]
    ) -> None:
        """Write rows of a result."""

        def row(number: Value) -> None:
            start = self.b.mul(number, i64(matrix.row))
            for column, mask in self.columns():
                value = matrix.room.get(self.code.indices.add(start, column.start))
                self.results[name].put(value.value, [*place(number), column], mask)

        if self.results[name].pointer is not None:
            each(self.b, 0, count, row)

    def read_matrix(self, matrix: Matrix, name: str) -> None:
        """The matrix of an operand, or zeros where there is none."""
        clear_bytes(self.b, matrix.room.pointer, self.layout.matrix * self.nbytes)
        if name in self.operands:
            self.read_rows(name, matrix, i64(self.net.width), self.matrix_row)

    def span(self, chunk: Value) -> tuple[Value, Value]:
        """The first step of a chunk, and how many it has."""
        start = self.b.mul(chunk, i64(self.layout.chunk))
        left = self.b.sub(i64(self.net.steps), start)
        return start, minimum(self.b, left, i64(self.layout.chunk))

    def read(self, chunk: Value, names: Sequence[str]) -> None:
        """The rows of a chunk, and its decays; steps behind the last one do nothing."""
        b, layout = self.b, self.layout
        start, count = self.span(chunk)

        def at(row: Index) -> list[Index]:
            return [self.batch, self.code.indices.add(start, row), self.head]

        left = b.mul(b.sub(i64(layout.chunk), count), i64(layout.width * self.nbytes))
        for name in names:
            matrix = self.of[name]
            behind = matrix.room.part(b.mul(count, i64(matrix.row)))
            clear_bytes(b, behind.pointer, left)
            self.read_rows(name, matrix, count, at)
        one, zero = (constant(b, number, self.net.dtype) for number in (1, 0))

        def gates(row: Value) -> None:
            exists = b.icmp_signed("<", row, count)
            place = at(minimum(b, row, b.sub(count, i64(1))))
            gate = elementary.exp(Lane(b, self.operands["g"].at(place))).value
            self.numbers["gate"].put_number(b.select(exists, gate, one), row)
            beta = self.operands["beta"].at(place)
            self.numbers["beta"].put_number(b.select(exists, beta, zero), row)

        each(b, 0, layout.chunk, gates)
        self.make_decays(one)

    def make_decays(self, one: Value) -> None:
        """What is left at each step (a row) of what was written at each before it; of what was there at first, and of all at the end."""
        b, layout = self.b, self.layout
        decays, room = self.of["decays"], self.of["decays"].room
        clear_bytes(b, room.pointer, layout.chunk * self.nbytes)
        room.put_number(one, 0)
        first = self.numbers["gate"].number(0)
        self.numbers["first"].put_number(first, 0)

        def row(step: Value, held: Sequence[Value]) -> Sequence[Value]:
            gate = self.numbers["gate"].number(step)
            spread = Lane(b, broadcast(b, gate, layout.lanes))
            start = b.mul(step, i64(decays.row))
            for column in decays.vectors():
                at = self.code.indices.add(start, column)
                room.put(room.get(b.sub(i64(at), i64(decays.row))) * spread, at)
            room.put_number(one, b.add(start, step))
            total = b.fmul(held[0], gate)
            self.numbers["first"].put_number(total, step)
            return [total]

        loop(b, i64(1), i64(layout.chunk), 1, row, [first])
        last = room.part((layout.chunk - 1) * decays.row).pointer
        copy_bytes(b, self.numbers["last"].pointer, last, layout.chunk * self.nbytes)

    # ------------------------------------------------------------- forward

    def decayed(self, square: Matrix, *, strict: bool) -> None:
        """Multiply products of rows with what is left between their steps; those of a step with itself are 0 where ``strict``."""
        b, decays = self.b, self.of["decays"]
        zero = constant(b, 0, self.net.dtype)

        def row(step: Value) -> None:
            start = b.mul(step, i64(square.row))
            for column in square.vectors():
                at = self.code.indices.add(start, column)
                square.room.put(square.room.get(at) * decays.room.get(at), at)
            if strict:
                square.room.put_number(zero, b.add(start, step))

        each(b, 0, square.rows, row)

    def find_written(self, start: Matrix) -> None:
        """What each step of a chunk writes, into ``written``; what it missed takes the place of its value in ``v``."""
        keys, k, v, known = (self.of[name] for name in ("keys", "k", "v", "more"))
        self.products.multiply_rows(keys, k, k)
        self.decayed(keys, strict=True)
        self.products.multiply(known, k, start)
        written, beta, first = self.of["written"], self.numbers["beta"], self.numbers["first"]
        b, indices = self.b, self.code.indices

        def row(step: Value) -> None:
            at = b.mul(step, i64(v.row))
            share, left = beta.spread(step), first.spread(step)

            def finish(column: int, taken: Lane) -> None:
                place = indices.add(at, column)
                missed = v.room.get(place) - left * known.room.get(place) - taken
                v.room.put(missed, place)
                written.room.put(missed * share, place)

            self.sum_rows(keys, written, step, (i64(0), step), finish, by_column=False)

        each(b, 0, self.layout.chunk, row)

    def sum_rows(  # many parameters: a sum of rows, with their factors
        self,
        factors: Matrix,
        rows: Matrix,
        step: Value,
        span: tuple[Value, Value],
        finish: Callable[[int, Lane], None],
        *,
        by_column: bool,
    ) -> None:
        """``finish(column, sum)`` for the sum of some rows, each times its number in a row (or column) of ``factors``."""
        b, lanes, indices = self.b, self.layout.lanes, self.code.indices
        starts = list(rows.vectors())
        for first in range(0, len(starts), 4):
            columns = starts[first : first + 4]

            def add(
                other: Value, held: Sequence[Value], columns: Sequence[int] = tuple(columns)
            ) -> Sequence[Value]:
                place = [other, step] if by_column else [step, other]
                factor = factors.room.spread(b.add(b.mul(place[0], i64(factors.row)), place[1]))
                at = b.mul(other, i64(rows.row))
                return [
                    factor.fma(rows.room.get(indices.add(at, column)), Lane(b, total)).value
                    for column, total in zip(columns, held, strict=True)
                ]

            begin = [constant(b, 0, self.net.dtype, lanes)] * len(columns)
            found = loop(b, span[0], span[1], 1, add, begin)
            for column, total in zip(columns, found, strict=True):
                finish(column, Lane(b, total))

    def go_on(self, start: Matrix, following: Matrix) -> None:
        """The matrix after a chunk."""
        last = self.layout.chunk - 1
        self.products.scale_rows(self.of["k"], self.numbers["last"])
        left = self.numbers["first"].spread(last)
        self.scaled_copy(start, following, left)
        self.products.multiply(following, self.of["k"].transposed(), self.of["written"], more=True)

    def scaled_copy(self, source: Matrix, target: Matrix, factor: Lane) -> None:
        """A head's matrix times a number."""

        def vector(number: Value) -> None:
            at = self.b.mul(number, i64(self.layout.lanes))
            target.room.put(source.room.get(at) * factor, at)

        each(self.b, 0, self.layout.matrix // self.layout.lanes, vector)

    # ------------------------------------------------------------- back

    def find_reached(self) -> None:
        """The gradient of what each step wrote; ``written`` stays, and ``dy`` is scaled as results are."""
        b, indices, layout = self.b, self.code.indices, self.layout
        dy, queries, reached = (self.of[name] for name in ("dy", "queries", "reached"))
        scale = Lane(b, constant(b, 1, self.net.dtype, layout.lanes)) * self.net.scale

        def scaled(number: Value) -> None:
            at = b.mul(number, i64(layout.lanes))
            dy.room.put(dy.room.get(at) * scale, at)

        each(b, 0, layout.chunk * layout.width // layout.lanes, scaled)
        self.products.multiply_rows(queries, self.of["q"], self.of["k"])
        self.decayed(queries, strict=False)
        self.products.multiply(reached, self.of["k"], self.of["later"])
        self.products.scale_rows(reached, self.numbers["last"])
        self.products.multiply(reached, queries.transposed(), dy, more=True)
        keys, shares = self.of["keys"], self.of["more"]

        def row(back: Value) -> None:
            step = b.sub(i64(layout.chunk - 1), back)
            at = b.mul(step, i64(reached.row))
            beta = self.numbers["beta"].spread(step)

            def finish(column: int, taken: Lane) -> None:
                place = indices.add(at, column)
                found = reached.room.get(place) - taken
                reached.room.put(found, place)
                shares.room.put(found * beta, place)

            span = b.add(step, i64(1)), i64(layout.chunk)
            self.sum_rows(keys, shares, step, span, finish, by_column=True)

        each(b, 0, layout.chunk, row)

    def gradients_of_decays(self) -> None:
        """The gradients of products of rows, times what is left between their steps; and, summed from below, those of what is left."""
        b, indices, layout = self.b, self.code.indices, self.layout
        by_keys, by_queries, decays = (
            self.of[name] for name in ("by_keys", "by_queries", "decays")
        )
        self.products.multiply_rows(by_queries, self.of["dy"], self.of["written"])
        self.products.multiply_rows(by_keys, self.of["more"], self.of["written"])
        running = self.numbers["running"]
        clear_bytes(b, running.pointer, layout.chunk * self.nbytes)

        def row(back: Value) -> None:
            step = b.sub(i64(layout.chunk - 1), back)
            start, total = b.mul(step, i64(decays.row)), running.zero()
            for column in decays.vectors():
                at = indices.add(start, column)
                x, y = by_queries.room.get(at), -by_keys.room.get(at)
                reached = x * self.of["queries"].room.get(at) + y * self.of["keys"].room.get(at)
                added = running.get(column) + reached
                running.put(added, column)
                before = lane_mask(b, b.sub(step, i64(column)), layout.lanes)
                total = total + Lane(b, before).choose(added, running.zero())
                left = decays.room.get(at)
                by_queries.room.put(x * left, at)
                by_keys.room.put(y * left, at)
            by_keys.room.put_number(constant(b, 0, self.net.dtype), b.add(start, step))
            self.numbers["gate"].put_number(lane_sum(b, total.value), step)

        each(b, 0, layout.chunk, row)

    def gradients_of_rows(self, start: Matrix) -> None:
        """The gradients of queries and keys, and what they say about decays from the beginning and until the end."""
        b, of, products = self.b, self.of, self.products
        q, k, dq, dk = (of[name] for name in ("q", "k", "dq", "dk"))
        products.multiply_rows(dq, of["dy"], start)
        products.scale_rows(dq, self.numbers["first"])
        products.multiply_rows(dk, of["more"], start)
        self.negate(dk)
        products.scale_rows(dk, self.numbers["first"])

        def until(step: Value) -> None:
            found = b.fadd(products.dot(q, dq, step), products.dot(k, dk, step))
            self.numbers["until"].put_number(found, step)

        each(b, 0, self.layout.chunk, until)
        products.multiply(dq, of["by_queries"], k, more=True)
        products.multiply(dk, of["by_keys"], k, more=True)
        products.multiply(dk, of["by_keys"].transposed(), k, more=True)
        products.multiply(dk, of["by_queries"].transposed(), q, more=True)
        # v is not needed any more once its gradient by beta is known.
        self.gradient_of_beta()
        since = of["v"]
        products.multiply_rows(since, of["written"], of["later"])
        products.scale_rows(since, self.numbers["last"])

        def add(step: Value) -> None:
            self.numbers["since"].put_number(products.dot(k, since, step), step)
            at = b.mul(step, i64(dk.row))
            for column in dk.vectors():
                place = self.code.indices.add(at, column)
                dk.room.put(dk.room.get(place) + since.room.get(place), place)

        each(b, 0, self.layout.chunk, add)
        self.gradient_of_gates(start)

    def negate(self, matrix: Matrix) -> None:
        """Change all signs."""

        def vector(number: Value) -> None:
            at = self.b.mul(number, i64(self.layout.lanes))
            matrix.room.put(-matrix.room.get(at), at)

        each(self.b, 0, matrix.rows * matrix.columns // self.layout.lanes, vector)

    def gradient_of_beta(self) -> None:
        """What each step missed, times the gradient of what it wrote."""

        def row(step: Value) -> None:
            found = self.products.dot(self.of["reached"], self.of["v"], step)
            self.numbers["beta"].put_number(found, step)

        each(self.b, 0, self.layout.chunk, row)

    def gradient_of_gates(self, start: Matrix) -> None:
        """Every decay in which a gate has a part: between steps, from the beginning, until the end, and through all of the chunk."""
        b, layout = self.b, self.layout
        later = self.of["later"]

        def part(number: Value, held: Sequence[Value]) -> Sequence[Value]:
            at = b.mul(number, i64(layout.lanes))
            return [start.room.get(at).fma(later.room.get(at), Lane(b, held[0])).value]

        begin = [constant(b, 0, self.net.dtype, layout.lanes)]
        vectors = i64(layout.matrix // layout.lanes)
        (total,) = loop(b, i64(0), vectors, 1, part, begin)
        whole = self.numbers["first"].number(layout.chunk - 1)
        through = b.fmul(lane_sum(b, total), whole)
        gate = self.numbers["gate"]

        def below(back: Value, held: Sequence[Value]) -> Sequence[Value]:
            step = b.sub(i64(layout.chunk - 1), back)
            found = b.fadd(held[0], self.numbers["until"].number(step))
            gate.put_number(b.fadd(gate.number(step), b.fadd(found, through)), step)
            return [found]

        def above(step: Value, held: Sequence[Value]) -> Sequence[Value]:
            gate.put_number(b.fadd(gate.number(step), held[0]), step)
            return [b.fadd(held[0], self.numbers["since"].number(step))]

        nothing = constant(b, 0, self.net.dtype)
        loop(b, i64(0), i64(layout.chunk), 1, below, [nothing])
        loop(b, i64(0), i64(layout.chunk), 1, above, [nothing])

    def write(self, chunk: Value) -> None:
        """The gradients of a chunk."""
        start, count = self.span(chunk)

        def at(row: Index) -> list[Index]:
            return [self.batch, self.code.indices.add(start, row), self.head]

        for name, matrix in (("q", "dq"), ("k", "dk"), ("v", "more")):
            self.write_rows(name, self.of[matrix], count, at)
        for name, numbers in (("g", "gate"), ("beta", "beta")):

            def row(number: Value, name: str = name, numbers: str = numbers) -> None:
                self.results[name].put(self.numbers[numbers].number(number), at(number))

            each(self.b, 0, count, row)

    def go_back(self) -> None:
        """The gradient of the matrix before a chunk."""
        of, products, later = self.of, self.products, self.of["later"]
        first = self.numbers["first"]
        self.scaled_copy(later, later, first.spread(self.layout.chunk - 1))
        products.scale_rows(of["dy"], first)
        products.scale_rows(of["more"], first)
        self.negate(of["more"])
        products.multiply(later, of["q"].transposed(), of["dy"], more=True)
        products.multiply(later, of["k"].transposed(), of["more"], more=True)


LATER = ("dy", "dstate")
"""Operands that are gradients."""
