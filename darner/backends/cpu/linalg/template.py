"""Linear algebra: ``solve``, ``triangular_solve``, ``cholesky`` and ``slogdet``, for each matrix of a batch.

Matrices are worked on in scratch memory, in rows that are whole vectors, in f32 or f64. Threads share the batch; a large matrix that is alone is shared by
its rows. A pivot of 0, or a root of what is not positive, is told of as a fault of the matrix.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from ....codegen.ir.emit import broadcast, loop
from ....codegen.ir.index import Number, as_value
from ....codegen.ir.lanes import Lane
from ....codegen.ir.math import emit
from ....graph.dtypes import DType
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ..emit.template import Code, Scratch, Template
from ..emit.vectors import Source, cast, clear_bytes, constant, each, kept_in, lanes_of, load, store
from ..runtime.jit import Machine

LARGE = 96
"""A matrix of so many rows is worth sharing."""

FEW = 8
"""A batch of fewer cannot keep all threads busy."""


class _Shape:
    """How a kernel's matrices lie in scratch memory: so many rows of ``width`` elements, right-hand sides from ``start`` on."""

    def __init__(self, node: Node, machine: Machine) -> None:
        a = node.operands[0]
        whole = sizes(a)
        self.dtype = kept_in(a.dtype)
        self.lead, self.order = whole[:-2], whole[-1]
        self.batch = prod(self.lead)
        self.lanes = lanes_of(machine, a.dtype)
        self.sides = 0 if len(node.operands) == 1 else sizes(node.operands[1])[-1]
        self.start = 0 if node.op.name == "triangular_solve" else self._rounded(self.order)
        self.width = self.start + self._rounded(self.sides)
        pivots = node.op.name in ("solve", "slogdet")
        self.shared = pivots and self.batch < FEW and self.order >= LARGE
        self.elements = self.order * self.width
        # One more element holds the sign of the order of rows.
        self.nbytes = (self.elements + 1) * self.dtype.itemsize

    def _rounded(self, count: int) -> int:
        return -(-count // self.lanes) * self.lanes


def _main(spec: Spec) -> Node:
    output = spec.body.outputs[0]
    return output.operands[0] if output.op.name == "project" else output


def _fits(spec: Spec) -> bool:
    return _main(spec).op.name in EMITTERS


def _scratch(spec: Spec, machine: Machine) -> Scratch:
    shape = _Shape(_main(spec), machine)
    return Scratch(shared=shape.nbytes) if shape.shared else Scratch(own=shape.nbytes)


def _emit(code: Code) -> None:
    node = _main(code.spec)
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

    def offset(self, row: Number, column: Number) -> Number:
        """The place of an element in scratch memory."""
        places = self.code.places
        return places.add(places.mul(row, self.shape.width), column)

    def get(self, row: Number, column: Number, lanes: int = 1) -> Any:
        """Elements of the matrix."""
        return load(self.b, self.memory, self.offset(row, column), self.dtype, lanes)

    def put(self, value: Any, row: Number, column: Number) -> None:
        """Write elements of the matrix."""
        store(self.b, value, self.memory, self.offset(row, column), self.dtype)

    def given(self, operand: int, number: Any, row: Number, column: Number) -> Any:
        """An element of an operand, in the type that is computed in."""
        lead = self.code.places.split(number, self.shape.lead) if self.shape.lead else []
        value = self.operands[operand].at([*lead, row], column)
        return cast(self.b, value, self.kinds[operand], self.dtype)

    def vectors(self, first: Number, last: int, inside: Callable[[Any], None]) -> None:
        """``inside(column)`` for every vector that has elements from ``first`` to before ``last``."""
        lanes = self.shape.lanes
        start = self.b.and_(as_value(first), as_value(-lanes))

        def one(column: Any, _: Sequence[Any]) -> None:
            inside(column)

        loop(self.b, start, as_value(last), lanes, one)

    def subtract(self, row: Any, other: Any, factor: Any, first: Number) -> None:
        """``row -= factor * other`` from a column on; what stands before it in its vector is not needed any more."""
        lanes = self.shape.lanes
        wide = broadcast(self.b, self.b.fneg(factor), lanes)

        def one(column: Any) -> None:
            total, value = self.get(row, column, lanes), self.get(other, column, lanes)
            self.put(
                Lane(self.b, value).fma(Lane(self.b, wide), Lane(self.b, total)).value, row, column
            )

        self.vectors(first, self.shape.width, one)

    def fill(self, number: Any, operand: int, start: int) -> None:
        """Copy an operand to the columns from ``start`` on."""
        columns = self.shape.order if operand == 0 else self.shape.sides

        def row(i: Any) -> None:
            each(
                self.b,
                0,
                columns,
                lambda j: self.put(
                    self.given(operand, number, i, j), i, self.code.places.add(j, start)
                ),
            )

        each(self.b, 0, self.shape.order, row)

    def clear(self) -> None:
        """Zeros in all scratch memory of the matrix."""
        clear_bytes(self.b, self.memory, self.shape.nbytes)

    def write(self, number: Any, columns: int, value: Callable[[Any, Any], Any], to: DType) -> None:
        """Write all rows of a result."""
        places = self.code.places
        order = self.shape.order
        (result,) = self.code.results

        def row(i: Any) -> None:
            start = places.mul(places.add(places.mul(number, order), i), columns)

            def element(j: Any) -> None:
                found = cast(self.b, value(i, j), self.dtype, to)
                store(self.b, found, result, places.add(start, j), to)

            each(self.b, 0, columns, element)

        first, last = self.code.share(order) if self.shape.shared else (0, order)
        each(self.b, first, last, row)

    def refuse(self, wrong: Any, node: Node, number: Any) -> None:
        """Tell of a matrix that a node cannot take, where ``wrong`` holds."""
        self.code.faults.tell_if(self.b, wrong, node, number)

    # ------------------------------------------------------------- threads

    def alone(self) -> Any:
        """A context for one thread, where several work on a matrix."""
        return self.code.alone() if self.shape.shared else contextlib.nullcontext()

    def wait(self) -> None:
        """Let the threads that work on a matrix meet."""
        if self.shape.shared:
            self.code.barrier()

    def below(self, row: Any, inside: Callable[[Any], None]) -> None:
        """``inside(i)`` for this thread's part of the rows below one."""
        b = self.b
        first = b.add(row, as_value(1))
        if not self.shape.shared:
            each(b, first, self.shape.order, inside)
            return
        low, high = self.code.share(b.sub(as_value(self.shape.order), first))
        each(b, b.add(first, low), b.add(first, high), inside)


# --------------------------------------------------------------------------- elimination


def _eliminate(work: _Work, singular: Callable[[Any], None] | None = None) -> None:
    """Make the matrix upper triangular, each step by the largest element that is left in its column.

    ``singular(wrong)`` is told whether that is 0.
    """
    b, shape = work.b, work.shape
    with work.alone():
        store(b, constant(b, 1, work.dtype), work.memory, shape.elements, work.dtype)

    def step(k: Any) -> None:
        with work.alone():
            _pivot(work, k)
        work.wait()
        pivot = work.get(k, k)
        usable = b.fcmp_unordered("!=", pivot, constant(b, 0, work.dtype))
        if singular is not None:
            singular(b.not_(usable))
        with b.if_then(usable):

            def row(i: Any) -> None:
                factor = b.fdiv(work.get(i, k), pivot)
                work.subtract(i, k, factor, k)

            work.below(k, row)
        work.wait()

    each(b, 0, shape.order, step)


def _pivot(work: _Work, k: Any) -> None:
    """Exchange row ``k`` for the one with the first largest element of its column."""
    b, shape = work.b, work.shape
    first = Lane(b, work.get(k, k)).absolute().value

    def row(i: Any, held: Sequence[Any]) -> Sequence[Any]:
        size = Lane(b, work.get(i, k)).absolute().value
        larger = b.fcmp_ordered(">", size, held[0])
        return [b.select(larger, size, held[0]), b.select(larger, i, held[1])]

    start = b.add(k, as_value(1))
    _, best = loop(b, start, as_value(shape.order), 1, row, [first, k])
    with b.if_then(b.icmp_signed("!=", best, k)):

        def exchange(column: Any) -> None:
            one, other = work.get(k, column, shape.lanes), work.get(best, column, shape.lanes)
            work.put(other, k, column)
            work.put(one, best, column)

        work.vectors(0, shape.width, exchange)
        sign = load(b, work.memory, shape.elements, work.dtype)
        store(b, b.fneg(sign), work.memory, shape.elements, work.dtype)


def _substitute(
    work: _Work,
    entry: Callable[[Any, Any], Any],
    lower: bool,
    unit_diagonal: bool,
    singular: Callable[[Any], None] | None = None,
) -> None:
    """Solve a triangular system for the right-hand sides in scratch memory, row by row; ``singular(wrong)`` is told whether its diagonal has a 0."""
    b, shape = work.b, work.shape

    def step(number: Any) -> None:
        k = number if lower else b.sub(as_value(shape.order - 1), number)
        if not unit_diagonal:
            corner = entry(k, k)
            if singular is not None:
                singular(b.fcmp_ordered("==", corner, constant(b, 0, work.dtype)))
            diagonal = broadcast(b, corner, shape.lanes)

            def divide(column: Any) -> None:
                work.put(b.fdiv(work.get(k, column, shape.lanes), diagonal), k, column)

            work.vectors(shape.start, shape.width, divide)
        first, last = (b.add(k, as_value(1)), shape.order) if lower else (0, k)
        each(b, first, last, lambda i: work.subtract(i, k, entry(i, k), shape.start))

    each(b, 0, shape.order, step)


def _solve(work: _Work, node: Node, number: Any) -> None:
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
        number, shape.sides, lambda i, j: work.get(i, work.code.places.add(j, start)), node.dtype
    )
    work.wait()


def _triangular_solve(work: _Work, node: Node, number: Any) -> None:
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


def _slogdet(work: _Work, node: Node, number: Any) -> None:
    b, shape, dtype = work.b, work.shape, work.dtype
    with work.alone():
        work.clear()
        work.fill(number, 0, 0)
    work.wait()
    _eliminate(work)
    with work.alone():

        def one(k: Any, held: Sequence[Any]) -> Sequence[Any]:
            value = work.get(k, k)
            sign = emit("sign", b, [value], [dtype], dtype)
            size = Lane(b, value).absolute().value
            logarithm = emit("log", b, [size], [dtype], dtype)
            return [b.fmul(held[0], sign), b.fadd(held[1], logarithm)]

        start = [load(b, work.memory, shape.elements, dtype), constant(b, 0, dtype)]
        found = loop(b, as_value(0), as_value(shape.order), 1, one, start)
        for output, result in zip(work.code.body.outputs, work.code.results, strict=True):
            value = cast(b, found[int(output.attrs["index"])], dtype, output.dtype)
            store(b, value, result, number, output.dtype)
    work.wait()


# --------------------------------------------------------------------------- Cholesky


def _cholesky(work: _Work, node: Node, number: Any) -> None:
    """Row by row: each element from the product of two rows as far as they are known; the rest is 0."""
    b, shape, dtype = work.b, work.shape, work.dtype
    lanes = shape.lanes
    work.clear()

    def element(i: Any, j: Any) -> Any:
        def more(column: Any, held: Sequence[Any]) -> Sequence[Any]:
            left, right = (Lane(b, work.get(row, column, lanes)) for row in (i, j))
            return [left.fma(right, Lane(b, held[0])).value]

        nothing = constant(b, 0, dtype, lanes)
        (total,) = loop(b, as_value(0), j, lanes, more, [nothing])
        return b.fsub(work.given(0, number, i, j), _lane_sum(b, total, lanes))

    def row(i: Any) -> None:
        each(b, 0, i, lambda j: work.put(b.fdiv(element(i, j), work.get(j, j)), i, j))
        corner = element(i, i)
        work.refuse(b.fcmp_unordered("<=", corner, constant(b, 0, dtype)), node, number)
        work.put(emit("sqrt", b, [corner], [dtype], dtype), i, i)

    each(b, 0, shape.order, row)
    work.write(number, shape.order, work.get, node.dtype)


def _lane_sum(builder: Any, value: Any, lanes: int) -> Any:
    """The sum of a vector's lanes, by halves."""
    from llvmlite import ir  # type: ignore[import-untyped]

    while lanes > 1:
        lanes //= 2
        word = ir.IntType(32)
        kind = ir.VectorType(word, lanes)
        halves = [
            builder.shuffle_vector(
                value, value, ir.Constant(kind, [start + lane for lane in range(lanes)])
            )
            for start in (0, lanes)
        ]
        value = builder.fadd(*halves)
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
