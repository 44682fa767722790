"""Contiguous elements: loads, stores and work sharing for kernels that go by index.

Such a kernel sees a tensor as rows of columns. ``tiles`` shares the columns of all rows among the threads, ``sweep`` goes
along them a vector at a time, and ``Source`` reads an operand there, as vectors where its elements are contiguous.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from ....codegen.elements.elements import Elements
from ....codegen.ir.emit import broadcast, intrinsic, loop, maximum, minimum
from ....codegen.ir.index import Index, i64, neighbours
from ....codegen.ir.math import emit, memory_type
from ....codegen.ir.registers import Registers
from ....codegen.ir.types import Builder, Module, Pointer, Value, accumulator_type
from ....graph.data import Array
from ....graph.dtypes import DType
from ....graph.errors import InternalError
from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.plan import ALIGNMENT
from ....lower.specs import sizes
from ....lower.strided import merged_stride, strided
from ..runtime.jit import Machine
from .template import Code


def lanes_of(machine: Machine, dtype: DType) -> int:
    """How many elements a vector has while they are being combined."""
    return machine.vector_bytes // max(accumulator_type(dtype).itemsize, 1)


# --------------------------------------------------------------------------- memory


def element_address(builder: Builder, pointer: Pointer, offset: Index, dtype: DType) -> Pointer:
    """The address of an element."""
    return builder.gep(pointer, [i64(offset)], source_etype=memory_type(dtype))


def cast(builder: Builder, value: Value, found: DType, wanted: DType) -> Value:
    """Elements of another type."""
    return value if found is wanted else emit("cast", builder, [value], [found], wanted)


def constant(builder: Builder, number: int, dtype: DType, lanes: int = 1) -> Value:
    """A number in every lane."""
    return broadcast(builder, Registers(builder).constant(number, dtype), lanes)


def copy_bytes(builder: Builder, target: Pointer, source: Pointer, count: Index) -> None:
    """Copy bytes from where they lie to where none of them does."""
    from llvmlite import ir

    pointer, bit = ir.PointerType(), ir.IntType(1)
    kinds = [pointer, pointer, ir.IntType(64), bit]
    function = intrinsic(builder.module, "llvm.memcpy.p0.p0.i64", ir.VoidType(), kinds)
    builder.call(function, [target, source, i64(count), ir.Constant(bit, 0)])


def clear_bytes(builder: Builder, target: Pointer, count: Index, value: int = 0) -> None:
    """Zero bytes, or give them another value."""
    from llvmlite import ir

    byte, bit = ir.IntType(8), ir.IntType(1)
    kinds = [ir.PointerType(), byte, ir.IntType(64), bit]
    function = intrinsic(builder.module, "llvm.memset.p0.i64", ir.VoidType(), kinds)
    builder.call(function, [target, ir.Constant(byte, value), i64(count), ir.Constant(bit, 0)])


def moved(builder: Builder, pointer: Pointer, count: Index) -> Pointer:
    """A pointer moved by bytes."""
    from llvmlite import ir

    return builder.gep(pointer, [i64(count)], source_etype=ir.IntType(8))


def constant_array(module: Module, name: str, array: Array) -> Pointer:
    """The address of an array that is part of the code; equal arrays of one name are there once."""
    from llvmlite import ir

    contents = np.ascontiguousarray(array).tobytes()
    name = f"{name}.{array.dtype.name}.{hashlib.sha256(contents).hexdigest()[:16]}"
    found = module.globals.get(name)
    if found is None:
        data = bytearray(contents)
        value = ir.Constant(ir.ArrayType(ir.IntType(8), len(data)), data)
        found = ir.GlobalVariable(module, value.type, name)
        found.linkage = "internal"
        found.global_constant = True
        found.align = ALIGNMENT
        found.initializer = value
    return found


def same_pointer(builder: Builder, a: Pointer, b: Pointer) -> Value:
    """Whether two pointers are equal, as one bit."""
    from llvmlite import ir

    wide = ir.IntType(64)
    return builder.icmp_unsigned("==", builder.ptrtoint(a, wide), builder.ptrtoint(b, wide))


# --------------------------------------------------------------------------- going along


def each(builder: Builder, first: Index, last: Index, body: Callable[[Value], None]) -> None:
    """``body(i)`` for every i from ``first`` to before ``last``."""

    def emit_index(i: Value, _: Sequence[Value]) -> None:
        body(i)

    loop(builder, i64(first), i64(last), 1, emit_index)


def sweep(
    builder: Builder, first: Index, last: Index, lanes: int, body: Callable[[Index, int], None]
) -> None:
    """``body(column, width)`` from ``first`` to before ``last``: whole vectors, then the rest one by one."""
    known = last - first if isinstance(first, int) and isinstance(last, int) else None
    if known == 1:
        body(first, 1)
        return
    rest: Index = first

    def vector(column: Value, _: Sequence[Value]) -> None:
        body(column, lanes)

    if lanes > 1 and (known is None or known >= lanes):
        start, stop = i64(first), i64(last)
        count = builder.sdiv(builder.sub(stop, start), i64(lanes))
        whole = builder.add(start, builder.mul(count, i64(lanes)))
        loop(builder, start, whole, lanes, vector)
        rest = whole
        if known is not None and known % lanes == 0:
            return
    each(builder, rest, last, lambda column: body(column, 1))


def tiles(
    code: Code, rows: int, columns: int, block: int, body: Callable[[Value, Index, Index], None]
) -> None:
    """``body(row, first, last)`` for this thread's part of all columns of all rows, in blocks of neighbours."""
    if not rows * columns:
        return
    if columns <= block:
        code.each(rows, lambda row: body(row, 0, columns))
        return
    b = code.builder
    blocks = ceil_div(columns, block)
    first, last = code.share(rows * blocks)
    one_more = b.add(last, i64(blocks - 1))

    def row(number: Value) -> None:
        start = b.mul(number, i64(blocks))
        low = maximum(b, b.sub(first, start), i64(0))
        high = minimum(b, b.sub(last, start), i64(blocks))
        end = minimum(b, b.mul(high, i64(block)), i64(columns))
        body(number, b.mul(low, i64(block)), end)

    with b.if_then(b.icmp_signed("<", first, last)):
        each(b, b.udiv(first, i64(blocks)), b.udiv(one_more, i64(blocks)), row)


# --------------------------------------------------------------------------- operands


class Source:
    """An operand as rows of columns: its first ``lead`` axes number the rows, the others are the columns.

    Attributes:
        wide: whether columns lie side by side, so that they can be read as vectors.
    """

    def __init__(self, code: Code, node: Node, lead: int) -> None:
        self._code = code
        self._node = node
        self._inner = sizes(node)[lead:]
        seen = strided(node)
        self._seen = seen if seen is not None and seen.base.name is not None else None
        self.wide = False
        if self._seen is not None:
            step = merged_stride(self._inner, self._seen.strides[lead:])
            self.wide = step == 1 and prod(self._inner) > 1

    def lanes(self, wanted: int) -> int:
        """As many as are wanted, or 1 where elements are read one by one."""
        return wanted if self.wide else 1

    def address(self, index: Sequence[Index], column: Index) -> Pointer:
        """Where an element lies, of an operand that is ``wide``."""
        offset = self._offset(index, column)
        return element_address(self._code.builder, self._pointer, offset, self._node.dtype)

    def at(self, index: Sequence[Index], column: Index, lanes: int = 1) -> Value:
        """The elements of a row from a column on."""
        code, b = self._code, self._code.builder
        if self.wide:
            return Registers(b).load(
                self._pointer, neighbours(self._offset(index, column), lanes), self._node.dtype
            )
        elements = Elements.of(code)
        inner = elements.indices.split(column, self._inner) if self._inner else []
        return elements.at(self._node, [*index, *inner])

    def integer(self, index: Sequence[Index], column: Index) -> Value:
        """An element of integers as a number."""
        value = self.at(index, column)
        return Registers(self._code.builder).as_index(value, self._node.dtype)

    @property
    def _pointer(self) -> Pointer:
        if self._seen is None:
            raise InternalError("an operand that is no view of an input has no address")
        return self._code.operand_of(self._seen.base)

    def _offset(self, index: Sequence[Index], column: Index) -> Index:
        indices = self._code.indices
        if self._seen is None:
            return column
        total: Index = indices.add(column, self._seen.offset)
        for number, stride in zip(index, self._seen.strides, strict=False):
            total = indices.add(total, indices.mul(number, stride))
        return total
