"""Kernels of Fourier transforms: which numbers stand in the lanes of a vector, and who does what.

columns   neighbours behind the axis: nothing is moved
rows      rows of a batch, transposed in squares on the way in and out: short transforms
line      parts of one transform in two steps: long ones; threads share one where there are few
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from ....codegen.ir.butterflies import Complex
from ....codegen.ir.index import Index, i64
from ....codegen.ir.types import Pointer, Value
from ....codegen.problems.fft import Transform, transform
from ....codegen.problems.nodes import main_node
from ....graph.integers import ceil_div, round_up
from ....lower.plan import ALIGNMENT, Spec
from ..emit.template import Code, Scratch, Template
from ..emit.vectors import each, lanes_of, moved
from ..model import CpuModel
from ..runtime.jit import Machine
from .ends import Ends, half_turn, layout, reads_neighbours, tangled, untangled
from .lanes import LaneTransform
from .registers import Vectors, power_below
from .split import LineTransform, SplitTransform

Form = Literal["columns", "rows", "line"]

SHARED = 1 << 13
"""Numbers from which on threads share a transform, where there are too few to give each its own."""


@dataclass(frozen=True)
class Plan:
    """How a problem is computed.

    Attributes:
        problem: what it is.
        form: what stands in lanes.
        count: numbers of the complex transform that does it.
        lanes: of its vectors.
        together: whether all threads work on one transform.
        copied: bytes of operands that are copied first.
    """

    problem: Transform
    form: Form
    count: int
    lanes: int
    together: bool
    copied: int

    @property
    def line(self) -> LineTransform:
        """The form for long transforms."""
        return LineTransform(self.count, self.lanes, self.problem.dtype.itemsize)

    @property
    def held(self) -> int:
        """Elements of the numbers that stand between a transform and what real signals need besides."""
        return 2 * (self.count + 1) if self.problem.is_real else 0


@lru_cache(maxsize=1024)
def plan_of(spec: Spec, machine: Machine) -> Plan | None:
    """How a spec is computed, if it is transforms in a layout that there is code for."""
    problem = transform(spec)
    if problem is None:
        return None
    node = main_node(spec)
    if problem.kind == "complex" and layout(node.operands[0], problem) is None:
        return None
    width = lanes_of(machine, problem.dtype)
    count = problem.count
    if problem.is_real and count % 2 == 0:
        count //= 2
    copied = Ends.copied_bytes(node, problem)
    model = CpuModel.of(machine)
    if problem.inner > 1:
        lanes = min(width, power_below(problem.inner))
        return Plan(problem, "columns", count, lanes, False, copied)
    rows = min(width, power_below(max(problem.rows, 1)), power_below(count))
    line = LineTransform(count, width, problem.dtype.itemsize).plan.lanes
    near = 4 * rows * count * problem.dtype.itemsize <= model.l1
    if (rows >= line and (near or line < 4) and rows > 1) or count < 4:
        return Plan(problem, "rows", count, rows, False, copied)
    together = problem.rows < 2 * model.threads and count >= SHARED
    return Plan(problem, "line", count, width, together, copied)


def _fits(spec: Spec) -> bool:
    problem = transform(spec)
    if problem is None:
        return False
    if problem.kind == "complex":
        return layout(main_node(spec).operands[0], problem) is not None
    # Operands of padded transforms are dense, or copied by a kernel of their own.
    dense = problem.is_plain or reads_neighbours(main_node(spec), problem)
    return problem.stored.is_float and dense


def _scratch(spec: Spec, machine: Machine) -> Scratch:
    plan = plan_of(spec, machine)
    if plan is None:
        return Scratch()
    size = plan.problem.dtype.itemsize
    if plan.form == "line":
        line = plan.line
        between = round_up((line.between + plan.held) * size, ALIGNMENT)
        own = round_up(line.own * size, ALIGNMENT)
        if plan.together:
            return Scratch(own=own, shared=plan.copied + between)
        return Scratch(own=own + between, shared=plan.copied)
    work = LaneTransform.elements(plan.count, plan.lanes)
    panels = 4 * plan.lanes * (plan.count + 1) if plan.form == "rows" else 0
    return Scratch(own=(work + panels) * size, shared=plan.copied)


def _emit(code: Code) -> None:
    plan = plan_of(code.spec, code.machine)
    if plan is None or not plan.problem.rows * plan.problem.inner:
        return
    vectors = Vectors(code, plan.problem.dtype)
    ends = Ends(vectors, main_node(code.spec), plan.problem)
    ends.copy(code.shared)
    {"columns": _columns, "rows": _Rows.emit_all, "line": _Lines.emit_all}[plan.form](
        plan, vectors, ends
    )


# --------------------------------------------------------------------------- columns


def _columns(plan: Plan, vectors: Vectors, ends: Ends) -> None:
    """Lanes are neighbours behind the axis."""
    code, problem, lanes = vectors.code, plan.problem, plan.lanes
    inner = LaneTransform(vectors, plan.count, lanes)
    blocks = ceil_div(problem.inner, lanes)

    def block(number: Value) -> None:
        row = vectors.indices.div(number, blocks)

        def only(_: int, body: Callable[[Value], None]) -> None:
            body(vectors.b.sub(number, vectors.b.mul(i64(row), i64(blocks))))

        def transform_from(behind: Index) -> None:
            inner.emit(
                lambda k: ends.read(row, k, lanes, behind),
                lambda k, z: ends.write(row, k, z, behind),
                code.own,
            )

        vectors.blocks(problem.inner, lanes, only, transform_from)

    code.each(problem.rows * blocks, block)


# --------------------------------------------------------------------------- rows


class _Rows:
    """Lanes are rows: squares are transposed into a panel of numbers, and out of another."""

    def __init__(self, plan: Plan, vectors: Vectors, ends: Ends) -> None:
        self.plan, self.vectors, self.ends = plan, vectors, ends
        self.lanes, self.count = plan.lanes, plan.count
        panel = 2 * self.lanes * (self.count + 1)
        self.given = vectors.code.own
        self.found = vectors.moved(self.given, panel)
        self.work = vectors.moved(self.found, panel)
        self.transform = LaneTransform(vectors, self.count, self.lanes)
        self.roots = (
            vectors.table(f"half{plan.problem.count}", half_turn(plan.problem.count))
            if ends.packed
            else self.given
        )

    @classmethod
    def emit_all(cls, plan: Plan, vectors: Vectors, ends: Ends) -> None:
        """Transforms of all rows."""
        made = cls(plan, vectors, ends)

        def share(count: int, body: Callable[[Value], None]) -> None:
            vectors.code.each(count, body)

        vectors.blocks(plan.problem.rows, plan.lanes, share, made.block)

    def block(self, row: Index) -> None:
        """As many rows as there are lanes."""
        kind, vectors = self.plan.problem.kind, self.vectors
        whole = kind == "whole"
        self.gather(row, self.plan.problem.bins if whole else self.count)
        source, target = self.given, self.found
        if whole:
            self.join()
            source, target = target, source
        self.transform.emit(
            lambda k: self._read(source, k),
            lambda k, z: vectors.store_slot(z, target, k, self.lanes),
            self.work,
        )
        if kind == "half":
            self.part()
            source, target = target, source
        self.scatter(row, target, self.plan.problem.bins if kind == "half" else self.count)

    def _read(self, panel: Pointer, k: Index) -> Complex:
        return self.vectors.load_slot(panel, k, self.lanes)

    def gather(self, row: Index, count: int) -> None:
        """The rows as a panel."""
        vectors, lanes = self.vectors, self.lanes

        def square(first: Index) -> None:
            lines = [
                self.ends.read(vectors.indices.add(row, i), first, lanes) for i in range(lanes)
            ]
            turned = [vectors.transposed([line[side] for line in lines]) for side in range(2)]
            for i in range(lanes):
                z = Complex(turned[0][i], turned[1][i])
                vectors.store_slot(z, self.given, vectors.indices.add(first, i), lanes)

        def single(k: Index) -> None:
            for i in range(lanes):
                z = self.ends.read(vectors.indices.add(row, i), k, 1)
                place = vectors.indices.add(vectors.indices.mul(k, 2 * lanes), i)
                vectors.store_both(z, self.given, place, vectors.indices.add(place, lanes))

        if count >= lanes:
            vectors.blocks(count, lanes, vectors.all, square)
        else:
            vectors.all(count, single)

    def scatter(self, row: Index, panel: Pointer, count: int) -> None:
        """A panel as rows."""
        vectors, lanes = self.vectors, self.lanes

        def square(first: Index) -> None:
            slots = [self._read(panel, vectors.indices.add(first, i)) for i in range(lanes)]
            turned = [vectors.transposed([slot[side] for slot in slots]) for side in range(2)]
            for i in range(lanes):
                z = Complex(turned[0][i], turned[1][i])
                self.ends.write(vectors.indices.add(row, i), first, z)

        def single(k: Index) -> None:
            for i in range(lanes):
                place = vectors.indices.add(vectors.indices.mul(k, 2 * lanes), i)
                z = vectors.load_both(panel, place, vectors.indices.add(place, lanes), 1)
                self.ends.write(vectors.indices.add(row, i), k, z)

        if count >= lanes:
            vectors.blocks(count, lanes, vectors.all, square)
        else:
            vectors.all(count, single)

    def part(self) -> None:
        """Half a spectrum, from what was found to where numbers were given."""
        vectors, lanes, problem = self.vectors, self.lanes, self.plan.problem

        def store(k: Index, z: Complex) -> None:
            vectors.store_slot(z, self.given, k, lanes)

        if not self.ends.packed:
            vectors.all(
                problem.bins, lambda k: store(k, self._read(self.found, k).scaled(problem.scale))
            )
            return
        first = self._read(self.found, 0)
        zero = vectors.zero(lanes)
        store(0, Complex((first.re + first.im) * problem.scale, zero))
        store(self.count, Complex((first.re - first.im) * problem.scale, zero))

        def bin_of(k: Value) -> None:
            mirror = self._read(self.found, vectors.indices.sub(self.count, k))
            root = vectors.entry(self.roots, k, lanes)
            store(k, untangled(self._read(self.found, k), mirror, root, problem.scale / 2))

        each(vectors.b, 1, self.count, bin_of)

    def join(self) -> None:
        """What a transform gives real numbers of, from half a spectrum, exchanged for the inverse direction."""
        vectors, lanes, problem = self.vectors, self.lanes, self.plan.problem

        def store(k: Index, z: Complex) -> None:
            vectors.store_slot(z.exchanged, self.found, k, lanes)

        first = self._read(self.given, 0)
        if self.ends.packed:
            last = self._read(self.given, self.count)
            store(0, Complex(first.re + last.re, first.re - last.re))
        else:
            store(0, Complex(first.re, vectors.zero(lanes)))

        def number(k: Value) -> None:
            other = vectors.indices.sub(self.count, k)
            if self.ends.packed:
                root = vectors.entry(self.roots, k, lanes)
                store(k, tangled(self._read(self.given, k), self._read(self.given, other), root))
                return
            z = self._read(self.given, k)
            store(k, z)
            store(other, Complex(z.re, -z.im))

        each(vectors.b, 1, self.count if self.ends.packed else problem.bins, number)


# --------------------------------------------------------------------------- lines


class _Lines:
    """Lanes are parts of one transform."""

    def __init__(self, plan: Plan, vectors: Vectors, ends: Ends) -> None:
        code = vectors.code
        self.plan, self.vectors, self.ends = plan, vectors, ends
        self.line = plan.line
        size = plan.problem.dtype.itemsize
        own = round_up(self.line.own * size, ALIGNMENT)
        start = moved(code.builder, code.shared, plan.copied)
        self.between = start if plan.together else moved(code.builder, code.own, own)
        self.held = vectors.moved(self.between, self.line.between)
        self.split = SplitTransform(vectors, self.line.plan, self.share, self.wait)
        self.lanes = min(self.line.plan.lanes, power_below(max(plan.count - 1, 1)))
        self.roots = (
            vectors.planes(f"half{plan.problem.count}", half_turn(plan.problem.count))
            if ends.packed
            else self.between
        )

    @classmethod
    def emit_all(cls, plan: Plan, vectors: Vectors, ends: Ends) -> None:
        """Transforms of all rows, one after the other or each by one thread."""
        made = cls(plan, vectors, ends)
        if plan.together:
            vectors.all(plan.problem.rows, made.row)
        else:
            vectors.code.each(plan.problem.rows, made.row)

    def share(self, count: int, body: Callable[[Value], None]) -> None:
        """A thread's part of a row, or all of its own row."""
        if self.plan.together:
            self.vectors.code.each(count, body)
        else:
            self.vectors.all(count, body)

    def wait(self) -> None:
        """Let threads that share a row meet."""
        if self.plan.together:
            self.vectors.code.barrier()

    def row(self, row: Value) -> None:
        """One transform."""
        kind, ends = self.plan.problem.kind, self.ends
        if kind == "whole":
            self.join(row)
        self.line.emit(
            self.split,
            self._held if kind == "whole" else lambda k, lanes: ends.read(row, k, lanes),
            self._hold if kind == "half" else lambda k, z: ends.write(row, k, z),
            self.between,
            self.vectors.code.own,
        )
        if kind == "half":
            self.part(row)

    # ------------------------------------------------------------- real signals

    def _held(self, k: Index, lanes: int) -> Complex:
        place = self.vectors.indices.add(k, self.plan.count + 1)
        return self.vectors.load_both(self.held, k, place, lanes)

    def _hold(self, k: Index, z: Complex) -> None:
        place = self.vectors.indices.add(k, self.plan.count + 1)
        self.vectors.store_both(z, self.held, k, place)

    def _inner(self, body: Callable[[Index], None]) -> None:
        """``body(k)`` for blocks of numbers from 1 to before the last, and the rest by one thread."""
        vectors = self.vectors
        vectors.blocks(
            self.plan.count - 1, self.lanes, self.share, lambda k: body(vectors.indices.add(k, 1))
        )

    def _ends(self, body: Callable[[], None]) -> None:
        if self.plan.together:
            with self.vectors.code.alone():
                body()
        else:
            body()

    def _mirror(self, k: Index) -> Index:
        """Where the mirrors of a block of numbers begin."""
        return self.vectors.indices.sub(self.plan.count - self.lanes + 1, k)

    def _reversed(self, z: Complex) -> Complex:
        return Complex(*(self.vectors.reversed(part) for part in z))

    def _root(self, k: Index) -> Complex:
        place = self.vectors.indices.add(k, self.plan.count + 1)
        return self.vectors.load_both(self.roots, k, place, self.lanes)

    def part(self, row: Value) -> None:
        """Half a spectrum from the numbers that are held."""
        vectors, problem, ends = self.vectors, self.plan.problem, self.ends
        if not ends.packed:
            wide = min(self.lanes, power_below(problem.bins))

            def copy(k: Index) -> None:
                ends.write(row, k, self._held(k, wide).scaled(problem.scale))

            vectors.blocks(problem.bins, wide, self.share, copy)
            self.wait()
            return

        def first_and_last() -> None:
            z, zero = self._held(0, 1), vectors.zero(1)
            ends.write(row, 0, Complex((z.re + z.im) * problem.scale, zero))
            ends.write(row, self.plan.count, Complex((z.re - z.im) * problem.scale, zero))

        def bins(k: Index) -> None:
            mirror = self._reversed(self._held(self._mirror(k), self.lanes))
            found = untangled(self._held(k, self.lanes), mirror, self._root(k), problem.scale / 2)
            ends.write(row, k, found)

        self._ends(first_and_last)
        self._inner(bins)
        self.wait()

    def join(self, row: Value) -> None:
        """What a transform gives real numbers of, from half a spectrum, exchanged for the inverse direction."""
        vectors, problem, ends = self.vectors, self.plan.problem, self.ends
        count, indices = self.plan.count, self.vectors.indices
        if ends.packed:

            def first() -> None:
                a, z = ends.read(row, 0, 1), ends.read(row, count, 1)
                self._hold(0, Complex(a.re - z.re, a.re + z.re))

            def numbers(k: Index) -> None:
                mirror = self._reversed(ends.read(row, self._mirror(k), self.lanes))
                z = tangled(ends.read(row, k, self.lanes), mirror, self._root(k))
                self._hold(k, z.exchanged)

            self._ends(first)
            self._inner(numbers)
            self.wait()
            return
        wide = min(self.lanes, power_below(problem.bins - 1))

        def alone() -> None:
            self._hold(0, Complex(vectors.zero(1), ends.read(row, 0, 1).re))

        def both(k: Index) -> None:
            k = indices.add(k, 1)
            z = ends.read(row, k, wide)
            self._hold(k, z.exchanged)
            mirror = self._reversed(Complex(-z.im, z.re))
            self._hold(indices.sub(count - wide + 1, k), mirror)

        self._ends(alone)
        vectors.blocks(problem.bins - 1, wide, self.share, both)
        self.wait()


FFT = Template("fft", _fits, _emit, _scratch)
