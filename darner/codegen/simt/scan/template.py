"""Kernels that go along an axis in order: running sums, products, maxima and minima.

A tensor is seen as [outer, length, inner]. Where there are many columns, or short ones, a thread goes along each. Otherwise a workgroup does: every thread takes a few
neighbours, what the threads have is scanned in the memory of the workgroup, and what all have together goes on to the next part of the row. Few long rows are divided: each
piece is summed up first, and then scanned from what those before it come to. So sums and products are formed in another order than one after
another. 16-bit floats are summed in f32, each result rounded once.
"""

from __future__ import annotations

from math import prod

from ....graph import dtypes
from ....graph.integers import ceil_div
from ....lower.plan import Spec
from ....lower.specs import sizes
from ...ir.index import Number
from ...ir.math import emit
from ...ir.registers import Registers
from ...problems.scan import NAMES
from ..builder import Memory, Operand, Simt, Value, Variable, is_packed
from ..dispatch import WORKGROUP, Dispatch, Stage, Written
from ..machine import Machine, power_above, power_below
from ..template import Template

ALONE = 32
"""Along so few elements a thread goes by itself."""
MANY = 8192
"""Columns that keep a GPU busy with a thread for each."""
NEIGHBOURS = 8
"""Elements that a thread takes at once, in a workgroup that goes along a row."""
PIECE = 2048
"""Elements of a piece of a long row: what a workgroup takes at a time."""
ROWS = 256
"""Rows that keep a GPU busy with a workgroup for each."""


class _Scan:
    """What is combined, and how a row's elements are read and its results written."""

    def __init__(self, spec: Spec, machine: Machine) -> None:
        (node,) = spec.body.outputs
        self.spec, self.machine, self.node = spec, machine, node
        (self.x,) = node.operands
        self.axis, whole = int(node.attrs["axis"]), sizes(node)
        self.lead, self.length, self.tail = (
            whole[: self.axis],
            whole[self.axis],
            whole[self.axis + 1 :],
        )
        self.inner = prod(self.tail)
        self.rows = prod(self.lead) * self.inner
        self.reduction, self.op = NAMES[node.op.name]
        self.exclusive = bool(node.attrs.get("exclusive", False))
        self.reverse = bool(node.attrs["reverse"])
        self.kept = Registers.kept_in(node.dtype)

    # ------------------------------------------------------------- elements

    def start(self, dispatch: Dispatch) -> Simt:
        """Say which dispatch all that follows is written to."""
        self.dispatch, self.elements = dispatch, dispatch.elements()
        self.builder: Simt = dispatch.builder
        return self.builder

    def running(self, name: str) -> Variable:
        """A running result that nothing was added to."""
        registers = self.elements.registers
        nothing = registers.neutral(self.reduction, self.x.dtype, self.node.dtype)
        return self.builder.variable(nothing, name)

    def _place(self, step: Value) -> Number:
        return self.elements.places.sub(self.length - 1, step) if self.reverse else step

    def read(self, row: Value, step: Value) -> Operand:
        """The element of a row that comes at a step."""
        places = self.elements.places
        outer, inner = places.div(row, self.inner), places.mod(row, self.inner)
        lead = places.split(outer, self.lead) if self.lead else []
        tail = places.split(inner, self.tail) if self.tail else []
        value = self.elements.at(self.x, [*lead, self._place(step), *tail])
        return self.elements.registers.cast(value, self.x.dtype, self.kept)

    def write(self, row: Value, step: Value, total: Operand) -> None:
        """The result of a step."""
        places, registers = self.elements.places, self.elements.registers
        outer, inner = places.div(row, self.inner), places.mod(row, self.inner)
        at = places.add(places.mul(outer, self.length), self._place(step))
        offset = places.add(places.mul(at, self.inner), inner)
        value = registers.cast(total, self.kept, self.node.dtype)
        registers.store(value, self.dispatch.results[0], offset, self.node.dtype)

    def combined(self, a: Operand, b: Operand) -> Operand:
        """Two running results as one."""
        return emit(self.op, self.builder, [a, b], [self.kept, self.kept], self.kept)

    # ------------------------------------------------------------- dispatches

    def by_threads(self) -> Stage:
        """A thread goes along each row."""
        dispatch = Dispatch(self.spec, self.machine, threads=64)
        b = self.start(dispatch)
        with b.if_(b.thread < self.rows):
            total = self.running("total")
            with b.for_(0, self.length, name="step") as step:
                following = self.combined(total, self.read(b.thread, step))
                self.write(b.thread, step, total if self.exclusive else following)
                total.set(following)
        return dispatch.finish(ceil_div(self.rows, dispatch.threads))

    def by_workgroups(self, pieces: int = 1) -> Stage:
        """A workgroup goes along each piece of a row; where there are several, it begins with what those before come to."""
        b = self._begin(pieces)
        threads = self.dispatch.threads
        carried = self.running("carried")
        if pieces > 1:
            sums = self._sums(pieces)
            own = self.running("own")
            with b.for_(b.local, self.piece, threads) as i:
                own.set(self.combined(own, self._from_scratch(sums[b.group - self.piece + i])))
            self._reduce(own)
            carried.set(self.held[0])
            b.barrier()
        with b.for_(self.first, self.last, threads * NEIGHBOURS, name="part") as part:
            self._part(b.let(part + b.local * NEIGHBOURS, "at"), carried)
        return self.dispatch.finish(self.rows * pieces)

    def sums(self, pieces: int) -> Stage:
        """What every piece of a row comes to."""
        b = self._begin(pieces)
        sums, own = self._sums(pieces), self.running("own")
        with b.for_(self.first + b.local, self.last, self.dispatch.threads, name="step") as step:
            own.set(self.combined(own, self.read(self.row, step)))
        self._reduce(own)
        with b.if_(b.local == 0):
            total = self.held[0]
            sums[b.group] = b.bits(total) if is_packed(self.kept) else total
        return self.dispatch.finish(self.rows * pieces)

    # ------------------------------------------------------------- pieces

    def _begin(self, pieces: int) -> Simt:
        """A dispatch with a workgroup for each piece of each row, which knows where its own begins and ends."""
        size = ceil_div(self.length, pieces)
        needed = max(32, power_above(ceil_div(size, NEIGHBOURS)))
        threads = min(power_below(min(WORKGROUP, self.machine.threads)), needed)
        b = self.start(Dispatch(self.spec, self.machine, threads=threads))
        # What the threads of the workgroup have come to.
        self.held = b.shared(self.kept, self.dispatch.threads, "held")
        self.row = b.let(b.group // pieces, "row")
        self.piece = b.let(b.group % pieces, "piece")
        self.first = b.let(b.min(self.piece * size, self.length), "first")
        self.last = b.let(b.min(self.first + size, self.length), "last")
        return b

    def _sums(self, pieces: int) -> Memory:
        held = dtypes.u32 if is_packed(self.kept) else self.kept
        return self.dispatch.scratch(0, self.rows * pieces, held)

    def _from_scratch(self, word: Value) -> Value:
        return self.builder.of_bits(word, self.kept) if is_packed(self.kept) else word

    def _reduce(self, own: Value) -> None:
        """What all threads have together, in ``held[0]``."""
        b, held = self.builder, self.held
        held[b.local] = own
        b.barrier()
        halves = b.iterate(
            self.dispatch.threads // 2, lambda half: half > 0, lambda half: half >> 1, "half"
        )
        with halves as half:
            with b.if_(b.local < half):
                held[b.local] = self.combined(held[b.local], held[b.local + half])
            b.barrier()

    def _part(self, at: Value, carried: Variable) -> None:
        """As many elements as a workgroup takes at a time, this thread's from ``at`` on; ``carried`` is what came before."""
        b, held, threads = self.builder, self.held, self.dispatch.threads
        own, values = self.running("own"), []
        for k in range(NEIGHBOURS):
            value = self.running("x")
            with b.if_(at + k < self.last):
                value.set(self.read(self.row, b.let(at + k)))
            own.set(self.combined(own, value))
            values.append(value)
        held[b.local] = own
        b.barrier()
        doubles = b.iterate(1, lambda apart: apart < threads, lambda apart: apart << 1, "apart")
        with doubles as apart:
            found = self.running("found")
            with b.if_(b.local >= apart):
                found.set(held[b.local - apart])
            b.barrier()
            own.set(self.combined(found, own))
            held[b.local] = own
            b.barrier()
        former = self.running("former")
        with b.if_(b.local > 0):
            former.set(held[b.local - 1])
        total = b.variable(self.combined(carried, former), "total")
        for k, value in enumerate(values):
            with b.if_(at + k < self.last):
                following = self.combined(total, value)
                self.write(self.row, b.let(at + k), total if self.exclusive else following)
                total.set(following)
        carried.set(self.combined(carried, held[threads - 1]))
        b.barrier()


def _fits(spec: Spec, machine: Machine) -> bool:
    return len(spec.body.outputs) == 1 and spec.body.outputs[0].op.name in NAMES


def _write(spec: Spec, machine: Machine) -> Written:
    scan = _Scan(spec, machine)
    if not scan.rows * scan.length:
        return Written(())
    if scan.length <= ALONE or scan.rows >= MANY:
        return Written((scan.by_threads(),))
    pieces = ceil_div(scan.length, PIECE)
    if scan.rows >= ROWS or pieces == 1:
        return Written((scan.by_workgroups(),))
    stages = (scan.sums(pieces), scan.by_workgroups(pieces))
    size = max(4, scan.kept.itemsize)
    return Written(stages, scan.rows * pieces * size)


SCANS = Template("scans", _fits, _write)
