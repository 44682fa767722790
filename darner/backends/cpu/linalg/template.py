"""Linear algebra: ``solve``, ``triangular_solve``, ``cholesky`` and ``slogdet``, for each matrix of a batch.

Matrices are copied to scratch memory, in rows of whole vectors, in f32 or f64. Threads share the batch; a single large matrix is shared by
its rows. A pivot of 0, or the root of a number that is not positive, is reported as a fault of the matrix.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from math import prod
from typing import Any

from ....codegen.ir.emit import broadcast, loop
from ....codegen.ir.index import Index, i64, neighbours
from ....codegen.ir.lanes import Lane
from ....codegen.ir.math import emit
from ....codegen.ir.registers import Registers
from ....codegen.ir.types import Block, Builder, Value, accumulator_type
from ....codegen.problems.nodes import main_node
from ....graph.dtypes import DType
from ....graph.integers import round_up
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ..emit.template import Code, Scratch, Template
from ..emit.vectors import Source, cast, clear_bytes, constant, each, lanes_of
from ..model import CpuModel
from ..runtime.jit import Machine

LARGE = 96
"""A matrix of so many rows is worth sharing."""

FEW = 8
"""A batch of fewer, or of fewer than there are threads, cannot keep all of these busy."""


class _Shape:
    """How a kernel's matrices lie in scratch memory: so many rows of ``width`` elements, right-hand sides from ``start`` on."""

    def __init__(self, node: Node, machine: Machine) -> None:
        a = node.operands[0]
        whole = sizes(a)
        self.dtype = accumulator_type(a.dtype)
        self.lead, self.order = whole[:-2], whole[-1]
        self.batch = prod(self.lead)
        self.lanes = lanes_of(machine, a.dtype)
        self.sides = 0 if len(node.operands) == 1 else sizes(node.operands[1])[-1]
        self.start = 0 if node.op.name == "triangular_solve" else self._rounded(self.order)
        self.width = self.start + self._rounded(self.sides)
        pivots = node.op.name in ("solve", "slogdet")
        few = self.batch < max(FEW, CpuModel.of(machine).threads)
        self.shared = pivots and few and self.order >= LARGE
        self.elements = self.order * self.width
        # One more element holds the sign of the order of rows.
        self.nbytes = (self.elements + 1) * self.dtype.itemsize

    def _rounded(self, count: int) -> int:
        return round_up(count, self.lanes)


def _fits(spec: Spec) -> bool:
    return main_node(spec).op.name in EMITTERS


def _scratch(spec: Spec, machine: Machine) -> Scratch:
    shape = _Shape(main_node(spec), machine)
    return Scratch(shared=shape.nbytes) if shape.shared else Scratch(own=shape.nbytes)


def _emit(code: Code) -> None:
    node = main_node(code.spec)
    work = _Work(code, node)
    inside = EMITTERS[node.op.name]
    if work.shape.shared:
        each(code.builder, 0, work.shape.batch, lambda number: inside(work, node, number))
    else:
        code.each(work.shape.batch, lambda number: inside(work, node, number))


class _Work:
    """A matrix in scratch memory, and code on its rows."""

    def __init__(self, code: Code, node: Node) -> None:
        self.code = code
        self.b = code.builder
        self.shape = _Shape(node, code.machine)
        self.dtype: DType = self.shape.dtype
        self.memory = code.shared if self.shape.shared else code.own
        self.operands = [Source(code, operand, operand.rank - 1) for operand in node.operands]
        self.kinds = [operand.dtype for operand in node.operands]

    # ------------------------------------------------------------- elements and rows

    def offset(self, row: Index, column: Index) -> Index:
        """The place of an element in scratch memory."""
        indices = self.code.indices
        return indices.add(indices.mul(row, self.shape.width), column)

    def get(self, row: Index, column: Index, lanes: int = 1) -> Value:
        """Elements of the matrix."""
        return Registers(self.b).load(
            self.memory, neighbours(self.offset(row, column), lanes), self.dtype
        )

    def put(self, value: Value, row: Index, column: Index) -> None:
        """Write elements of the matrix."""
        Registers(self.b).store(value, self.memory, self.offset(row, column), self.dtype)

    def given(self, operand: int, number: Value, row: Index, column: Index) -> Value:
        """An element of an operand, in the type that is computed in."""
        lead = self.code.indices.split(number, self.shape.lead) if self.shape.lead else []
        value = self.operands[operand].at([*lead, row], column)
        return cast(self.b, value, self.kinds[operand], self.dtype)

    def vectors(self, first: Index, last: int, body: Callable[[Value], None]) -> None:
        """``body(column)`` for every vector that has elements from ``first`` to before ``last``."""
        lanes = self.shape.lanes
        start = self.b.and_(i64(first), i64(-lanes))

        def emit_column(column: Value, _: Sequence[Value]) -> None:
            body(column)

        loop(self.b, start, i64(last), lanes, emit_column)

    def subtract(self, row: Value, other: Value, factor: Value, first: Index) -> None:
        """``row -= factor * other`` from a column on; what stands before it in its vector is not needed any more."""
        lanes = self.shape.lanes
        wide = broadcast(self.b, self.b.fneg(factor), lanes)

        def emit_column(column: Value) -> None:
            total, value = self.get(row, column, lanes), self.get(other, column, lanes)
            self.put(
                Lane(self.b, value).fma(Lane(self.b, wide), Lane(self.b, total)).value, row, column
            )

        self.vectors(first, self.shape.width, emit_column)

    def fill(self, number: Value, operand: int, start: int) -> None:
        """Copy an operand to the columns from ``start`` on."""
        columns = self.shape.order if operand == 0 else self.shape.sides

        def row(i: Value) -> None:
            each(
                self.b,
                0,
                columns,
                lambda j: self.put(
                    self.given(operand, number, i, j), i, self.code.indices.add(j, start)
                ),
            )

        each(self.b, 0, self.shape.order, row)

    def clear(self) -> None:
        """Zeros in all scratch memory of the matrix."""
        clear_bytes(self.b, self.memory, self.shape.nbytes)

    def write(
        self, number: Value, columns: int, value: Callable[[Value, Value], Value], to: DType
    ) -> None:
        """Write all rows of a result."""
        indices = self.code.indices
        order = self.shape.order
        (result,) = self.code.results

        def row(i: Value) -> None:
            start = indices.mul(indices.add(indices.mul(number, order), i), columns)

            def element(j: Value) -> None:
                found = cast(self.b, value(i, j), self.dtype, to)
                Registers(self.b).store(found, result, indices.add(start, j), to)

            each(self.b, 0, columns, element)

        first, last = self.code.share(order) if self.shape.shared else (0, order)
        each(self.b, first, last, row)

    def refuse(self, wrong: Value, node: Node, number: Value) -> None:
        """Tell of a matrix that a node cannot take, where ``wrong`` holds."""
        self.code.faults.tell_if(self.b, wrong, node, number)

    # ------------------------------------------------------------- threads

    def alone(self) -> AbstractContextManager[Block | None]:
        """A context for one thread, where several work on a matrix."""
        return self.code.alone() if self.shape.shared else contextlib.nullcontext()

    def wait(self) -> None:
        """Let the threads that work on a matrix meet."""
        if self.shape.shared:
            self.code.barrier()

    def below(self, row: Value, body: Callable[[Value], None]) -> None:
        """``body(i)`` for this thread's part of the rows below one."""
        b = self.b
        first = b.add(row, i64(1))
        if not self.shape.shared:
            each(b, first, self.shape.order, body)
            return
        low, high = self.code.share(b.sub(i64(self.shape.order), first))
        each(b, b.add(first, low), b.add(first, high), body)


# --------------------------------------------------------------------------- elimination


def _eliminate(work: _Work, singular: Callable[[Value], None] | None = None) -> None:
    """Make the matrix upper triangular, each step by the largest element that is left in its column.

    ``singular(wrong)`` is told whether that is 0.
    """
    b, shape = work.b, work.shape
    with work.alone():
        Registers(b).store(constant(b, 1, work.dtype), work.memory, shape.elements, work.dtype)

    def step(k: Value) -> None:
        with work.alone():
            _pivot(work, k)
        work.wait()
        pivot = work.get(k, k)
        usable = b.fcmp_unordered("!=", pivot, constant(b, 0, work.dtype))
        if singular is not None:
            singular(b.not_(usable))
        with b.if_then(usable):

            def row(i: Value) -> None:
                factor = b.fdiv(work.get(i, k), pivot)
                work.subtract(i, k, factor, k)

            work.below(k, row)
        work.wait()

    each(b, 0, shape.order, step)


def _pivot(work: _Work, k: Value) -> None:
    """Exchange row ``k`` for the one with the first largest element of its column."""
    b, shape = work.b, work.shape
    first = Lane(b, work.get(k, k)).absolute().value

    def row(i: Value, held: Sequence[Value]) -> Sequence[Value]:
        size = Lane(b, work.get(i, k)).absolute().value
        larger = b.fcmp_ordered(">", size, held[0])
        return [b.select(larger, size, held[0]), b.select(larger, i, held[1])]

    start = b.add(k, i64(1))
    _, best = loop(b, start, i64(shape.order), 1, row, [first, k])
    with b.if_then(b.icmp_signed("!=", best, k)):

        def exchange(column: Value) -> None:
            one, other = work.get(k, column, shape.lanes), work.get(best, column, shape.lanes)
            work.put(other, k, column)
            work.put(one, best, column)

        work.vectors(0, shape.width, exchange)
        sign = Registers(b).load(work.memory, shape.elements, work.dtype)
        Registers(b).store(b.fneg(sign), work.memory, shape.elements, work.dtype)


def _substitute(
    work: _Work,
    entry: Callable[[Value, Value], Value],
    lower: bool,
    unit_diagonal: bool,
    singular: Callable[[Value], None] | None = None,
) -> None:
    """Solve a triangular system for the right-hand sides in scratch memory, row by row; ``singular(wrong)`` is told whether its diagonal has a 0."""
    b, shape = work.b, work.shape

    def step(number: Value) -> None:
        k = number if lower else b.sub(i64(shape.order - 1), number)
        if not unit_diagonal:
            corner = entry(k, k)
            if singular is not None:
                singular(b.fcmp_ordered("==", corner, constant(b, 0, work.dtype)))
            diagonal = broadcast(b, corner, shape.lanes)

            def divide(column: Value) -> None:
                work.put(b.fdiv(work.get(k, column, shape.lanes), diagonal), k, column)

            work.vectors(shape.start, shape.width, divide)
        first, last = (b.add(k, i64(1)), shape.order) if lower else (0, k)
        each(b, first, last, lambda i: work.subtract(i, k, entry(i, k), shape.start))

    each(b, 0, shape.order, step)


def _solve(work: _Work, node: Node, number: Value) -> None:
    shape = work.shape
    with work.alone():
        work.clear()
        work.fill(number, 0, 0)
        work.fill(number, 1, shape.start)
    work.wait()
    _eliminate(work, lambda wrong: work.refuse(wrong, node, number))
    with work.alone():
        _substitute(work, work.get, False, False)
    work.wait()
    start = shape.start
    work.write(
        number, shape.sides, lambda i, j: work.get(i, work.code.indices.add(j, start)), node.dtype
    )
    work.wait()


def _triangular_solve(work: _Work, node: Node, number: Value) -> None:
    work.clear()
    work.fill(number, 1, 0)
    lower, unit = bool(node.attrs["lower"]), bool(node.attrs["unit_diagonal"])
    _substitute(
        work,
        lambda i, k: work.given(0, number, i, k),
        lower,
        unit,
        lambda wrong: work.refuse(wrong, node, number),
    )
    work.write(number, work.shape.sides, work.get, node.dtype)


def _slogdet(work: _Work, node: Node, number: Value) -> None:
    b, shape, dtype = work.b, work.shape, work.dtype
    with work.alone():
        work.clear()
        work.fill(number, 0, 0)
    work.wait()
    _eliminate(work)
    with work.alone():

        def add_diagonal(k: Value, held: Sequence[Value]) -> Sequence[Value]:
            value = work.get(k, k)
            sign = emit("sign", b, [value], [dtype], dtype)
            size = Lane(b, value).absolute().value
            logarithm = emit("log", b, [size], [dtype], dtype)
            return [b.fmul(held[0], sign), b.fadd(held[1], logarithm)]

        start = [Registers(b).load(work.memory, shape.elements, dtype), constant(b, 0, dtype)]
        found = loop(b, i64(0), i64(shape.order), 1, add_diagonal, start)
        for output, result in zip(work.code.body.outputs, work.code.results, strict=True):
            value = cast(b, found[int(output.attrs["index"])], dtype, output.dtype)
            Registers(b).store(value, result, number, output.dtype)
    work.wait()


# --------------------------------------------------------------------------- Cholesky


def _cholesky(work: _Work, node: Node, number: Value) -> None:
    """Row by row: each element from the product of two rows as far as they are known; the rest is 0."""
    b, shape, dtype = work.b, work.shape, work.dtype
    lanes = shape.lanes
    work.clear()

    def element(i: Value, j: Value) -> Value:
        def more(column: Value, held: Sequence[Value]) -> Sequence[Value]:
            left, right = (Lane(b, work.get(row, column, lanes)) for row in (i, j))
            return [left.fma(right, Lane(b, held[0])).value]

        nothing = constant(b, 0, dtype, lanes)
        (total,) = loop(b, i64(0), j, lanes, more, [nothing])
        return b.fsub(work.given(0, number, i, j), _lane_sum(b, total, lanes))

    def row(i: Value) -> None:
        each(b, 0, i, lambda j: work.put(b.fdiv(element(i, j), work.get(j, j)), i, j))
        corner = element(i, i)
        work.refuse(b.fcmp_unordered("<=", corner, constant(b, 0, dtype)), node, number)
        work.put(emit("sqrt", b, [corner], [dtype], dtype), i, i)

    each(b, 0, shape.order, row)
    work.write(number, shape.order, work.get, node.dtype)


def _lane_sum(builder: Builder, value: Value, lanes: int) -> Value:
    """The sum of a vector's lanes, by halves."""
    from llvmlite import ir

    while lanes > 1:
        lanes //= 2
        word = ir.IntType(32)
        kind = ir.VectorType(word, lanes)
        low, high = (
            builder.shuffle_vector(
                value, value, ir.Constant(kind, [start + lane for lane in range(lanes)])
            )
            for start in (0, lanes)
        )
        value = builder.fadd(low, high)
    if isinstance(value.type, ir.VectorType):
        value = builder.extract_element(value, ir.Constant(ir.IntType(32), 0))
    return value


EMITTERS: dict[str, Callable[[_Work, Node, Any], None]] = {
    "cholesky": _cholesky,
    "slogdet": _slogdet,
    "solve": _solve,
    "triangular_solve": _triangular_solve,
}

SOLVING = Template("solving", _fits, _emit, _scratch)
