"""The geometry of pooling: planes (one channel of one image), their rows, and the windows over them.

All axes of a plane but the last are merged into rows. So there are two directions: across rows, and along one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod

from ....codegen.ir.emit import lane_mask, loop
from ....codegen.ir.index import Index, IndexMath, Lanes, i64
from ....codegen.ir.registers import Registers
from ....codegen.ir.types import Pointer, Value
from ....codegen.problems.pooling import Axis
from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.integers import round_up
from ....graph.node import Node
from ....lower.specs import sizes
from ..conv.epilogue import Finish
from ..emit.template import Code
from ..model import CpuModel
from ..runtime.jit import Machine


class Pooling:
    """The geometry of a pooling node, and the types it computes in."""

    def __init__(self, main: Node, machine: Machine) -> None:
        backward = main.op.name.endswith("backward")
        attrs, rank = main.attrs, len(main.attrs["window"])
        whole = main if backward else main.operands[0]
        pooled = main.operands[-1] if backward else main
        every = zip(
            sizes(whole)[2:],
            sizes(pooled)[2:],
            attrs["window"],
            attrs["stride"],
            attrs.get("dilation", (1,) * rank),
            attrs["padding"],
            strict=True,
        )
        axes = [
            Axis(size, count, window, stride, dilation, *map(int, pair))
            for size, count, window, stride, dilation, pair in every
        ]
        # A plane of one axis is one row.
        self.outer = axes[:-1] or [Axis(1, 1, 1, 1, 1, 0, 0)]
        self.last = axes[-1]
        self.main, self.dtype = main, main.dtype
        self.accumulator: DType = dtypes.f32 if main.dtype.is_half else main.dtype
        self.lanes = machine.vector_bytes // self.accumulator.itemsize
        self.model = CpuModel.of(machine)
        self.batch, self.channels = sizes(main)[:2]
        self.is_max = main.op.name.startswith("max_pool")

    @property
    def rows(self) -> int:
        """Rows of a plane."""
        return prod(axis.size for axis in self.outer)

    @property
    def pooled_rows(self) -> int:
        """Rows of what is pooled from a plane."""
        return prod(axis.count for axis in self.outer)

    def taps(self) -> Iterator[tuple[int, ...]]:
        """The rows that a window has elements in, as indices in it."""
        return product(*(range(axis.window) for axis in self.outer))

    def held(self) -> tuple[list[int], list[int]]:
        """How many elements windows are means of: a factor for each row of windows, and for each in a row."""
        counts = bool(self.main.attrs["count_include_pad"])
        rows = [prod(some) for some in product(*(axis.held(counts) for axis in self.outer))]
        return rows, self.last.held(counts)


class Writer:
    """What is written in the same way for every kernel of pooling."""

    def __init__(self, code: Code, main: Node, finish: Finish) -> None:
        self.code, self.builder, self.finish = code, code.builder, finish
        self.plan = Pooling(main, code.machine)
        self.indices = IndexMath(code.builder)
        self.registers = Registers(code.builder)
        self.lanes, self.accumulator, self.dtype = (
            self.plan.lanes,
            self.plan.accumulator,
            self.plan.dtype,
        )

    def scratch(self, nbytes: int) -> Pointer:
        """This thread's memory from a byte on."""
        from llvmlite import ir

        return self.builder.gep(self.code.own, [i64(nbytes)], source_etype=ir.IntType(8))

    def loop(self, count: Index, body: Callable[[Value], None], step: int = 1) -> None:
        """``body(i)`` for every ``step``-th number below ``count``."""
        self.between(i64(0), i64(count), body, step)

    def between(
        self, low: Value, high: Value, body: Callable[[Value], None], step: int = 1
    ) -> None:
        """``body(i)`` for every ``step``-th number from ``low`` to before ``high``."""

        def emit_index(i: Value, _: Sequence[Value]) -> None:
            body(i)

        loop(self.builder, low, high, step, emit_index)

    def vectors(self, width: int, vector: Callable[[Value, Value | None], None]) -> None:
        """``vector(start, mask)`` along a row; all but the last are whole."""
        full = width // self.lanes * self.lanes
        if full == self.lanes:
            vector(i64(0), None)
        elif full:
            self.loop(full, lambda at: vector(at, None), self.lanes)
        if full < width:
            vector(i64(full), lane_mask(self.builder, i64(width - full), self.lanes))

    def load(
        self, pointer: Pointer, at: Index, dtype: DType, mask: Value | None = None, stride: int = 1
    ) -> Value:
        """A vector as the type that is computed in; its lanes are ``stride`` apart, and then there is no mask."""
        offset = Lanes(at, self.lanes, stride)
        if stride > 1:
            value = self.registers.every_few(pointer, offset, dtype)
        else:
            value = self.registers.load(pointer, offset, dtype, mask)
        return self.registers.cast(value, dtype, self.accumulator)

    def store(self, value: Value, pointer: Pointer, at: Index, mask: Value | None = None) -> None:
        """Write a vector to scratch memory."""
        self.registers.store(value, pointer, Lanes(at, self.lanes), self.accumulator, mask)

    def fill(self, pointer: Pointer, count: int, number: float, dtype: DType | None = None) -> None:
        """Set ``count`` elements, a multiple of the lanes, to a number."""
        dtype = dtype or self.accumulator
        value = self.registers.constant(number, dtype, self.lanes)

        def vector(at: Value) -> None:
            self.registers.store(value, pointer, Lanes(at, self.lanes), dtype)

        self.loop(count, vector, self.lanes)

    def interleaved(self, values: Sequence[Value]) -> list[Value]:
        """The lanes of some vectors in turn, as as many vectors."""
        from llvmlite import ir

        if len(values) == 1:
            return list(values)
        kind = ir.VectorType(ir.IntType(32), self.lanes)
        result = []
        for block in range(len(values)):
            found = ir.Constant(values[0].type, ir.Undefined)
            for own, value in enumerate(values):
                picks = []
                for lane in range(self.lanes):
                    number, turn = divmod(block * self.lanes + lane, len(values))
                    picks.append(self.lanes + number if turn == own else lane)
                found = self.builder.shuffle_vector(found, value, ir.Constant(kind, picks))
            result.append(found)
        return result

    def whole_vectors(self, count: int) -> int:
        """A number of elements rounded up to whole vectors."""
        return round_up(count, self.lanes)

    def table(self, numbers: Sequence[int]) -> Value:
        """Constants in memory, as the type that is computed in, up to whole vectors."""
        from llvmlite import ir

        module = self.code.module
        rest = self.whole_vectors(len(numbers)) - len(numbers)
        element = ir.DoubleType() if self.accumulator is dtypes.f64 else ir.FloatType()
        kind = ir.ArrayType(element, len(numbers) + rest)
        values = [float(number) for number in (*numbers, *[1] * rest)]
        found = ir.GlobalVariable(module, kind, module.get_unique_name("held"))
        found.global_constant, found.linkage = True, "internal"
        found.initializer = ir.Constant(kind, values)
        return found


class Divisor:
    """What the sum of a window is divided by."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        rows, columns = writer.plan.held()
        self.number = rows[0] * columns[0] if len({*rows}) == len({*columns}) == 1 else None
        if self.number is None:
            self.rows, self.columns = writer.table(rows), writer.table(columns)

    def divide(self, sums: Value, row: Index, at: Value) -> Value:
        """The means of the windows of a row from ``at`` on."""
        writer = self.writer
        builder, registers, lanes, accumulator = (
            writer.builder,
            writer.registers,
            writer.lanes,
            writer.accumulator,
        )
        if self.number is None:
            factor = writer.indices.spread(registers.load(self.rows, row, accumulator), lanes)
            return builder.fdiv(
                sums, builder.fmul(writer.load(self.columns, at, accumulator), factor)
            )
        if self.number & (self.number - 1):
            return builder.fdiv(sums, registers.constant(self.number, accumulator, lanes))
        # The inverse of a power of two is exact.
        return builder.fmul(sums, registers.constant(1 / self.number, accumulator, lanes))
