"""Products of small matrices that lie in the first caches: functions that kernels of one module share.

All matrices are padded with zeros: rows to whole vectors, and as many of them as ``ROWS`` divides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....codegen.ir.emit import broadcast, lane_sum, loop
from ....codegen.ir.index import Index, i64, neighbours
from ....codegen.ir.lanes import Lane, own_function
from ....codegen.ir.registers import Registers
from ....codegen.ir.types import Builder, Function, Pointer, Value
from ....graph.dtypes import DType
from ..emit.template import Code
from ..emit.vectors import constant, each
from .operands import Room

ROWS = 4
"""Rows of a tile."""


@dataclass(frozen=True)
class Matrix:
    """A matrix in scratch memory.

    Attributes:
        room: where its first element lies.
        rows: how many rows it has.
        columns: how many elements a row has: a multiple of a vector's.
        row: elements from one row to the next.
        step: elements from one column to the next; only what is multiplied from the left may have another than 1.
    """

    room: Room
    rows: int
    columns: int
    row: int
    step: int = 1

    def transposed(self) -> Matrix:
        """The same elements with rows for columns, to be multiplied from the left."""
        return Matrix(self.room, self.columns, self.rows, self.step, self.row)

    def vectors(self) -> range:
        """Where the vectors of a row begin."""
        return range(0, self.columns, self.room.lanes)


class Products:
    """Products of matrices, and what is done row by row."""

    def __init__(self, code: Code, dtype: DType, lanes: int) -> None:
        self.code = code
        self.b = code.builder
        self.dtype = dtype
        self.lanes = lanes

    # ------------------------------------------------------------- products

    def multiply(self, out: Matrix, a: Matrix, b: Matrix, *, more: bool = False) -> None:
        """``out = a b``, or ``out + a b`` where there is ``more``."""
        from llvmlite import ir

        flag = ir.Constant(ir.IntType(1), int(more))
        sizes = [out.row, a.row, a.step, b.row, out.rows, a.columns, out.columns]
        pointers = [out.room.pointer, a.room.pointer, b.room.pointer]
        self.b.call(self._product(), [*pointers, *map(i64, sizes), flag])

    def multiply_rows(self, out: Matrix, a: Matrix, b: Matrix) -> None:
        """``out = a b'``: the products of all rows of ``a`` with all rows of ``b``."""
        sizes = [out.row, a.row, b.row, out.rows, out.columns, a.columns]
        pointers = [out.room.pointer, a.room.pointer, b.room.pointer]
        self.b.call(self._dots(), [*pointers, *map(i64, sizes)])

    def _own(
        self, name: str, pointers: int, sizes: int, flags: int, body: Callable[..., None]
    ) -> Function:
        from llvmlite import ir

        kinds = [ir.PointerType()] * pointers
        kinds += [ir.IntType(64)] * sizes + [ir.IntType(1)] * flags
        full = f"{name}_{self.dtype.name}_{self.lanes}"
        return own_function(
            self.code.module,
            full,
            ir.VoidType(),
            kinds,
            body,
            mark="noinline",
        )

    def _at(self, b: Builder, pointer: Pointer, offset: Value, lanes: int) -> Lane:
        return Lane(b, Registers(b).load(pointer, neighbours(offset, lanes), self.dtype))

    def _spread(self, b: Builder, pointer: Pointer, offset: Value) -> Lane:
        return Lane(b, broadcast(b, self._at(b, pointer, offset, 1).value, self.lanes))

    def _product(self) -> Function:
        wide = 4 if self.code.machine.vector_bytes == 64 else 2

        def body(b: Builder, out: Pointer, a: Pointer, other: Pointer, *sizes: Value) -> None:
            out_row, a_row, a_step, b_row, rows, inner, columns, more = sizes

            def tile(row: Value, column: Value, count: int) -> None:
                starts = [b.mul(b.add(row, i64(k)), a_row) for k in range(ROWS)]
                places = [
                    b.add(b.mul(b.add(row, i64(k)), out_row), b.add(column, i64(v * self.lanes)))
                    for k in range(ROWS)
                    for v in range(count)
                ]
                zero = constant(b, 0, self.dtype, self.lanes)
                # Where nothing is there yet, anything may be read.
                begin = [
                    b.select(more, self._at(b, out, place, self.lanes).value, zero)
                    for place in places
                ]

                def add(p: Value, held: Sequence[Value]) -> Sequence[Value]:
                    across, down = b.mul(p, a_step), b.add(b.mul(p, b_row), column)
                    vectors = [
                        self._at(b, other, b.add(down, i64(v * self.lanes)), self.lanes)
                        for v in range(count)
                    ]
                    following = []
                    for k, start in enumerate(starts):
                        factor = self._spread(b, a, b.add(start, across))
                        for v, vector in enumerate(vectors):
                            total = Lane(b, held[k * count + v])
                            following.append(factor.fma(vector, total).value)
                    return following

                found = loop(b, i64(0), inner, 1, add, begin)
                for place, value in zip(places, found, strict=True):
                    Registers(b).store(value, out, neighbours(place, self.lanes), self.dtype)

            def rows_of(column: Value, count: int) -> None:
                loop(b, i64(0), rows, ROWS, lambda row, _: tile(row, column, count))

            step = wide * self.lanes
            whole = b.mul(b.sdiv(columns, i64(step)), i64(step))
            loop(b, i64(0), whole, step, lambda column, _: rows_of(column, wide))
            loop(b, whole, columns, self.lanes, lambda column, _: rows_of(column, 1))
            b.ret_void()

        return self._own("small_product", 3, 7, 1, body)

    def _dots(self) -> Function:
        def body(b: Builder, out: Pointer, a: Pointer, other: Pointer, *sizes: Value) -> None:
            out_row, a_row, b_row, rows, columns, inner = sizes

            def tile(row: Value, column: Value) -> None:
                start = b.mul(row, a_row)
                starts = [b.mul(b.add(column, i64(k)), b_row) for k in range(self.lanes)]

                def add(p: Value, held: Sequence[Value]) -> Sequence[Value]:
                    left = self._at(b, a, b.add(start, p), self.lanes)
                    return [
                        left.fma(
                            self._at(b, other, b.add(first, p), self.lanes), Lane(b, total)
                        ).value
                        for first, total in zip(starts, held, strict=True)
                    ]

                begin = [constant(b, 0, self.dtype, self.lanes)] * self.lanes
                found = loop(b, i64(0), inner, self.lanes, add, begin)
                total = lane_sums(b, [Lane(b, value) for value in found])
                place = neighbours(b.add(b.mul(row, out_row), column), self.lanes)
                Registers(b).store(total.value, out, place, self.dtype)

            def rows_of(column: Value) -> None:
                loop(b, i64(0), rows, 1, lambda row, _: tile(row, column))

            loop(b, i64(0), columns, self.lanes, lambda column, _: rows_of(column))
            b.ret_void()

        return self._own("small_dots", 3, 6, 0, body)

    # ------------------------------------------------------------- rows

    def scale_rows(self, matrix: Matrix, factors: Room) -> None:
        """Multiply each row with its number."""

        def row(number: Value) -> None:
            factor = factors.spread(number)
            start = self.b.mul(number, i64(matrix.row))
            for column in matrix.vectors():
                at = self.code.indices.add(start, column)
                matrix.room.put(matrix.room.get(at) * factor, at)

        each(self.b, 0, matrix.rows, row)

    def dot(self, left: Matrix, right: Matrix, row: Value) -> Value:
        """The product of two rows."""
        a, b = (self.code.indices.mul(row, x.row) for x in (left, right))
        total = left.room.zero()
        for column in left.vectors():
            x = left.room.get(self.code.indices.add(a, column))
            total = x.fma(right.room.get(self.code.indices.add(b, column)), total)
        return lane_sum(self.b, total.value)


def lane_sums(builder: Builder, vectors: Sequence[Lane]) -> Lane:
    """The sums of the lanes of as many vectors as each has lanes, side by side: halves of neighbours onto each other."""
    held: list[Value] = [vector.value for vector in vectors]
    lanes = len(held)
    registers = Registers(builder)
    while len(held) > 1:
        following = []
        for low, high in zip(held[::2], held[1::2], strict=True):
            both = _joined(builder, low, high)
            even, odd = (registers.picked(both, range(k, 2 * lanes, 2)) for k in (0, 1))
            following.append(builder.fadd(even, odd))
        held = following
    return Lane(builder, held[0])


def _joined(builder: Builder, low: Value, high: Value) -> Value:
    from llvmlite import ir

    count = 2 * low.type.count
    numbers = ir.Constant(ir.VectorType(ir.IntType(32), count), list(range(count)))
    return builder.shuffle_vector(low, high, numbers)


def part_of(room: Room, first: Index, rows: int, columns: int) -> Matrix:
    """A matrix whose rows follow each other from an element on."""
    return Matrix(room.part(first), rows, columns, columns)
