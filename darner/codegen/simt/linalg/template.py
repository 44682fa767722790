"""Linear algebra: ``solve``, ``triangular_solve``, ``cholesky`` and ``slogdet``, a workgroup for each matrix of a batch.

Matrix and right-hand sides stand side by side, in the memory of the workgroup where they fit and in scratch memory otherwise, in f32 or f64. Each step of an elimination
is shared by all threads, which then wait for each other. A pivot of 0, or a root of what is not positive, is told of as a fault of the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod

from ....graph import dtypes
from ....graph.integers import round_up
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ....ops.faults import can_fail
from ...ir.index import Number
from ...ir.math import emit
from ...problems.nodes import main_node
from ..builder import Memory, Operand, Simt, Value, Variable
from ..dispatch import Dispatch, Written
from ..machine import GRANULE, Machine, power_above, power_below
from ..template import Template

LARGE = 128
"""From so many rows on, a matrix gets as many threads as a workgroup can have."""
PANEL = 8
"""Columns of a large matrix that are worked on together."""
TALL = 64
"""Rows below them whose factors are in the memory of the workgroup."""
AHEAD = 4
"""Rows that a thread reads before it writes the first of them."""
MOST = 1024
"""More threads than this wait for each other longer than they save."""


class _Work:
    """A matrix, and code on its elements."""

    def __init__(self, spec: Spec, machine: Machine, node: Node) -> None:
        self.spec, self.node = spec, node
        a = node.operands[0]
        whole = sizes(a)
        self.lead, self.order = whole[:-2], whole[-1]
        self.batch = prod(self.lead)
        self.sides = sizes(node.operands[1])[-1] if len(node.operands) > 1 else 0
        self.width = self.order + self.sides
        self.dtype = dtypes.f32 if a.dtype.is_half else a.dtype
        self.bits = dtypes.i64 if self.dtype is dtypes.f64 else dtypes.u32
        area = self.order * self.width
        threads = min(256, max(32, power_above(area // 4)))
        if self.order >= LARGE:
            threads = min(MOST, machine.threads)
        # A workgroup that combines by halves has a power of two of threads.
        threads = power_below(min(threads, machine.threads))
        self.dispatch = Dispatch(spec, machine, threads=threads)
        self.threads = self.dispatch.threads
        self.builder: Simt = self.dispatch.builder
        self.elements = self.dispatch.elements()
        room = machine.shared - threads * (4 + self.dtype.itemsize)
        self.inside = area * self.dtype.itemsize <= room
        self.scratch = 0
        self.memory: Memory
        self._largest: tuple[Memory, Memory] | None = None
        self.base: Number = 0
        if self.inside:
            self.memory = self.builder.shared(self.dtype, max(area, 1), "work")
        else:
            self.scratch = round_up(self.batch * area * self.dtype.itemsize, GRANULE)
            self.memory = self.dispatch.scratch(0, self.batch * area, self.dtype)
            self.base = self.builder.let(self.builder.group * area, "base")

    # ------------------------------------------------------------- elements

    def place(self, row: Number, column: Number) -> Number:
        """Where an element of the matrix lies."""
        return self.base + row * self.width + column

    def at(self, row: Number, column: Number) -> Value:
        """An element of the matrix."""
        return self.memory[self.place(row, column)]

    def put(self, row: Number, column: Number, value: Operand) -> None:
        """Give it another value."""
        self.memory[self.place(row, column)] = value

    def wait(self) -> None:
        """Let the threads meet: what each wrote is then seen by all."""
        self.builder.barrier(buffers=not self.inside)

    @contextmanager
    def each(self, count: Number) -> Iterator[Value]:
        """Numbers from 0 to before ``count``, shared out."""
        with self.builder.for_(self.builder.local, count, self.threads) as i:
            yield i

    def _across(self, columns: int) -> int:
        """Threads that stand side by side along the columns of a block."""
        return min(power_above(columns), 32, self.threads)

    @contextmanager
    def rows_of(self, first: Number, last: Number, columns: int) -> Iterator[Value]:
        """Rows of a block from ``first`` to before ``last``, which has at most so many ``columns``."""
        across, b = self._across(columns), self.builder
        begin = b.local // across + first
        with b.for_(begin, last, self.threads // across, name="i") as i:
            yield i

    @contextmanager
    def columns_of(self, first: Number, last: Number, columns: int) -> Iterator[Value]:
        """Columns of it: threads side by side take these."""
        across, b = self._across(columns), self.builder
        with b.for_(b.local % across + first, last, across, name="j") as j:
            yield j

    def fill(self, operand: int, start: int, *, lower: bool = False) -> None:
        """Copy an operand to the columns from ``start`` on, or what is not above its diagonal."""
        node, b = self.node.operands[operand], self.builder
        columns = sizes(node)[-1]
        with self.each(self.order * columns) as i:
            row = b.let(i // columns, "row")
            column = b.let(i % columns, "column")
            places = self.elements.places
            lead = places.split(b.group, self.lead) if self.lead else []
            value: Operand = self.elements.at(node, [*lead, row, column])
            value = self.elements.registers.cast(value, node.dtype, self.dtype)
            if lower:
                value = b.select(b.let(column <= row), value, self.constant(0))
            self.put(row, start + column, value)

    def write(self, columns: int, start: int) -> None:
        """Write the result from the columns from ``start`` on."""
        registers, b = self.elements.registers, self.builder
        with self.each(self.order * columns) as i:
            found = self.at(i // columns, start + i % columns)
            value = registers.cast(found, self.dtype, self.node.dtype)
            offset = b.let(b.group * (self.order * columns) + i)
            registers.store(value, self.dispatch.results[0], offset, self.node.dtype)

    def constant(self, number: float) -> Operand:
        """A number in the type that is computed in."""
        return self.elements.registers.constant(number, self.dtype)

    def magnitude(self, value: Value) -> Value:
        """The bits of a number without its sign: larger for larger numbers, NaN above all."""
        return self.builder.bits(value) & ((1 << (self.dtype.bits - 1)) - 1)

    @property
    def infinity(self) -> int:
        """The bits of infinity."""
        return 0x7FF << 52 if self.dtype is dtypes.f64 else 0xFF << 23

    # ------------------------------------------------------------- elimination

    def eliminate(self) -> Variable:
        """Make the matrix upper triangular, each step by the largest element that is left in its column; returns the sign of the order of rows."""
        b, n, width = self.builder, self.order, self.width
        sign = b.variable(self.constant(1), "sign")
        if not self.inside:
            self._eliminate_panels(sign)
            return sign
        with b.for_(0, n, name="k") as k:
            self._exchange(k, sign)
            pivot = self.at(k, k)
            self.refuse_pivot(pivot)
            with b.if_(self._usable(pivot)), self.rows_of(k + 1, n, width) as i:
                factor = b.let(self.at(i, k) / pivot, "factor")
                with self.columns_of(k + 1, width, width) as j:
                    self.subtract(i, j, factor, self.at(k, j))
            self.wait()
        return sign

    def subtract(self, row: Number, column: Number, a: Value, b: Value) -> None:
        """Take a product from an element."""
        place = self.place(row, column)
        self.memory[place] = self.memory[place] - a * b

    def _exchange(self, k: Value, sign: Variable) -> None:
        """Exchange row ``k`` for the one with the first largest element of its column."""
        b = self.builder
        chosen = self._pivot(k)
        with b.if_(chosen != k):
            with self.each(self.width) as i:
                upper, lower = self.at(k, i), self.at(chosen, i)
                self.put(k, i, lower)
                self.put(chosen, i, upper)
            sign.set(-sign)
        self.wait()

    def _usable(self, pivot: Value) -> Value:
        return self.magnitude(pivot) != 0

    def refuse(self, wrong: Value) -> None:
        """Tell of a matrix that cannot be taken, where ``wrong`` holds."""
        b = self.builder
        self.elements.tell_if((b.local == 0) & wrong, self.node, b.group)

    def refuse_pivot(self, pivot: Value) -> None:
        """Tell of a matrix with a pivot of 0; the sign of a determinant is 0 then, which is no fault."""
        if can_fail(self.node):
            self.refuse(~self._usable(pivot))

    # ------------------------------------------------------------- elimination of large matrices

    def _eliminate_panels(self, sign: Variable) -> None:
        """The same, a few columns at a time: what is right of them is read and written once for all of these."""
        b, n = self.builder, self.order
        factors = b.shared(self.dtype, TALL * (PANEL // 4), "factors", width=4)
        with b.for_(0, n, PANEL, name="start") as start:
            stop = b.let(b.min(start + PANEL, n), "stop")
            with b.for_(start, stop, name="k") as k:
                self._exchange(k, sign)
                self._narrow_step(k, stop)
            self._upper_rows(start, stop)
            self._lower_rows(start, stop, factors)

    def _narrow_step(self, k: Value, stop: Value) -> None:
        """Take row ``k`` out of those below, in the panel alone; the factors stay where there would be zeros."""
        b = self.builder
        pivot = self.at(k, k)
        self.refuse_pivot(pivot)
        with b.for_(k + 1 + b.local, self.order, self.threads) as i:
            factor = b.variable(self.constant(0), "factor")
            with b.if_(self._usable(pivot)):
                factor.set(self.at(i, k) / pivot)
            self.put(i, k, factor)
            with b.for_(k + 1, stop, name="j") as j:
                self.subtract(i, j, factor, self.at(k, j))
        self.wait()

    @contextmanager
    def _right_of(self, stop: Value) -> Iterator[Value]:
        """The columns right of a panel, shared out."""
        b = self.builder
        with b.for_(stop + b.local, self.width, self.threads, name="j") as j:
            yield j

    def _upper_rows(self, start: Value, stop: Value) -> None:
        """The rows of the panel, right of it: a thread for each column, from the first row to the last."""
        b = self.builder
        with self._right_of(stop) as j:
            upper = [b.variable(self.constant(0), "upper") for _ in range(PANEL)]
            for t, own in enumerate(upper):
                with b.if_(start + t < stop):
                    own.set(self.at(start + t, j))
                    for s, other in enumerate(upper[:t]):
                        own.set(own - self.at(start + t, start + s) * other)
                    self.put(start + t, j, own)
        self.wait()

    def _lower_rows(self, start: Value, stop: Value, factors: Memory) -> None:
        """All that is below and right of the panel: some rows' factors at a time are shared by all columns."""
        b, n, halves = self.builder, self.order, PANEL // 4
        with b.for_(stop, n, TALL, name="top") as top:
            with self.each(TALL * halves) as i:
                row = b.let(b.min(top + i // halves, n - 1), "row")
                parts = [self.at(row, start + i % halves * 4 + k) for k in range(4)]
                factors[i] = b.vector(parts)
            self.wait()
            with self._right_of(stop) as j:
                # Rows below a panel are only there where it has all its columns.
                upper = [self.at(start + t, j) for t in range(PANEL)]
                with b.for_(0, b.min(b.index(TALL), n - top), AHEAD, name="r") as r:
                    self._rows_ahead(top, r, j, upper, factors)
            self.wait()

    def _rows_ahead(
        self, top: Value, r: Value, j: Value, upper: Sequence[Value], factors: Memory
    ) -> None:
        """Take the panel's rows out of a few rows of a column."""
        b, n, halves = self.builder, self.order, PANEL // 4
        found = [b.variable(self.at(b.min(top + r + q, n - 1), j), "found") for q in range(AHEAD)]
        for q, own in enumerate(found):
            for half in range(halves):
                row = factors[(r + q) * halves + half]
                for t, factor in enumerate(row.parts):
                    own.set(own - factor * upper[half * 4 + t])
            with b.if_(top + r + q < n):
                self.put(top + r + q, j, own)

    def _pivot(self, k: Value) -> Value:
        """The first row with the largest element of column ``k``; row ``k`` itself where that is NaN."""
        b, threads = self.builder, self.threads
        if self._largest is None:
            self._largest = (
                b.shared(self.bits, threads, "largest"),
                b.shared(dtypes.u32, threads, "largest_row"),
            )
        largest, largest_row = self._largest
        most = b.variable(0, "most", self.bits)
        row = b.variable(k, "row")
        with b.for_(k + b.local, self.order, threads) as i:
            size = b.variable(self.magnitude(self.at(i, k)), "size")
            # NaN is larger than nothing, and nothing is larger than it.
            with b.if_(size > self.infinity):
                infinity = b.constant(self.infinity, self.bits)
                size.set(b.choose(i == k, infinity, b.constant(0, self.bits)))
            with b.if_(size > most):
                most.set(size)
                row.set(i)
        largest[b.local] = most
        largest_row[b.local] = row
        b.barrier()
        halves = b.iterate(threads // 2, lambda half: half > 0, lambda half: half >> 1, "half")
        with halves as half:
            with b.if_(b.local < half):
                other, other_row = largest[b.local + half], largest_row[b.local + half]
                own, own_row = largest[b.local], largest_row[b.local]
                with b.if_((other > own) | ((other == own) & (other_row < own_row))):
                    largest[b.local] = other
                    largest_row[b.local] = other_row
            b.barrier()
        return largest_row[0]

    def substitute(self, lower: bool, unit_diagonal: bool) -> None:
        """Solve a triangular system for the right-hand sides, row by row."""
        b, n, sides = self.builder, self.order, self.sides
        with b.for_(0, n, name="step") as step:
            k = b.let(step if lower else n - 1 - step, "k")
            if not unit_diagonal:
                if self.node.op.name == "triangular_solve":
                    self.refuse_pivot(self.at(k, k))
                with self.each(sides) as i:
                    self.put(k, n + i, self.at(k, n + i) / self.at(k, k))
                self.wait()
            first, last = (k + 1, n) if lower else (0, k)
            with self.rows_of(first, last, sides) as i, self.columns_of(n, self.width, sides) as j:
                self.subtract(i, j, self.at(i, k), self.at(k, j))
            self.wait()


# --------------------------------------------------------------------------- what is asked for


def _solve(work: _Work) -> None:
    work.fill(0, 0)
    work.fill(1, work.order)
    work.wait()
    work.eliminate()
    work.substitute(False, False)
    work.write(work.sides, work.order)


def _triangular_solve(work: _Work) -> None:
    work.fill(0, 0)
    work.fill(1, work.order)
    work.wait()
    attrs = work.node.attrs
    work.substitute(bool(attrs["lower"]), bool(attrs["unit_diagonal"]))
    work.write(work.sides, work.order)


def _slogdet(work: _Work) -> None:
    work.fill(0, 0)
    work.wait()
    order = work.eliminate()
    b, elements, dtype = work.builder, work.elements, work.dtype
    with b.if_(b.local == 0):

        def multiply_pivot(k: Value, held: list[Value]) -> list[Value]:
            value = work.at(k, k)
            sign = emit("sign", b, [value], [dtype], dtype)
            size = emit("abs", b, [value], [dtype], dtype)
            logarithm = emit("log", b, [size], [dtype], dtype)
            return [b.fmul(held[0], sign), b.fadd(held[1], logarithm)]

        found = b.loop(0, work.order, 1, multiply_pivot, [order, work.constant(0)])
        for output, result in zip(work.spec.body.outputs, work.dispatch.results, strict=True):
            value = found[int(output.attrs["index"])]
            value = elements.registers.cast(value, dtype, output.dtype)
            elements.registers.store(value, result, b.group, output.dtype)


def _cholesky(work: _Work) -> None:
    """Column by column: each takes what it stands for out of all that is left; above the diagonal is 0."""
    b, n = work.builder, work.order
    work.fill(0, 0, lower=True)
    work.wait()
    with b.for_(0, n, name="k") as k:
        with b.if_(b.local == 0):
            value = work.at(k, k)
            # NaN is not positive, and a compiler may take it to be anything but for its bits.
            size = b.let(work.magnitude(value), "size")
            work.refuse((size == 0) | (b.bits(value) != size) | (size > work.infinity))
            work.put(k, k, emit("sqrt", b, [value], [work.dtype], work.dtype))
        work.wait()
        with work.each(n - 1 - k) as i:
            row = k + 1 + i
            work.put(row, k, work.at(row, k) / work.at(k, k))
        work.wait()
        with work.rows_of(k + 1, n, n) as i, work.columns_of(k + 1, i + 1, n) as j:
            work.subtract(i, j, work.at(i, k), work.at(j, k))
        work.wait()
    work.write(n, 0)


WRITERS: dict[str, Callable[[_Work], None]] = {
    "cholesky": _cholesky,
    "slogdet": _slogdet,
    "solve": _solve,
    "triangular_solve": _triangular_solve,
}


def _fits(spec: Spec, machine: Machine) -> bool:
    return main_node(spec).op.name in WRITERS


def _write(spec: Spec, machine: Machine) -> Written:
    node = main_node(spec)
    work = _Work(spec, machine, node)
    if not work.batch or not any(prod(sizes(output)) for output in spec.body.outputs):
        return Written(())
    WRITERS[node.op.name](work)
    return Written((work.dispatch.finish(work.batch),), work.scratch)


SOLVING = Template("solving", _fits, _write)
