"""Elements side by side: what kernels that go by index read, write and share out.

A kernel of this kind sees a tensor as rows of columns. ``tiles`` shares the columns of all rows out among the threads, ``sweep`` goes
along them a vector at a time, and ``Source`` reads an operand there, as vectors where its elements lie side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from ....codegen.elements.elements import Elements
from ....codegen.ir.emit import broadcast, intrinsic, loop, maximum, minimum
from ....codegen.ir.index import Number, as_value
from ....codegen.ir.math import emit, memory_type, register_type
from ....codegen.ir.registers import Registers
from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.node import Node
from ....lower.specs import sizes
from ....lower.strided import merged_stride, strided
from ..runtime.jit import Machine
from .template import Code


def kept_in(dtype: DType) -> DType:
    """The type that running results of a type are kept in: f32 for 16-bit floats."""
    return dtypes.f32 if dtype.is_half else dtype


def lanes_of(machine: Machine, dtype: DType) -> int:
    """How many elements a vector has while they are being combined."""
    return machine.vector_bytes // max(kept_in(dtype).itemsize, 1)


# --------------------------------------------------------------------------- memory


def memory_place(builder: Any, pointer: Any, offset: Number, dtype: DType) -> Any:
    """The address of an element."""
    return builder.gep(pointer, [as_value(offset)], source_etype=memory_type(dtype))


def load(builder: Any, pointer: Any, offset: Number, dtype: DType, lanes: int = 1) -> Any:
    """So many elements from an offset on; one is a scalar."""
    count = lanes if lanes > 1 else None
    place = memory_place(builder, pointer, offset, dtype)
    value = builder.load(place, typ=memory_type(dtype, count), align=dtype.itemsize)
    return builder.trunc(value, register_type(dtype, count)) if dtype.kind == "bool" else value


def store(builder: Any, value: Any, pointer: Any, offset: Number, dtype: DType) -> None:
    """Write one element, or a vector of them."""
    if dtype.kind == "bool":
        value = builder.zext(value, memory_type(dtype, getattr(value.type, "count", None)))
    place = memory_place(builder, pointer, offset, dtype)
    builder.store(value, place, align=dtype.itemsize)


def cast(builder: Any, value: Any, found: DType, wanted: DType) -> Any:
    """Elements of another type."""
    return value if found is wanted else emit("cast", builder, [value], [found], wanted)


def constant(builder: Any, number: Any, dtype: DType, lanes: int = 1) -> Any:
    """A number in every lane."""
    return broadcast(builder, Registers(builder).constant(number, dtype), lanes)


def copy_bytes(builder: Any, target: Any, source: Any, count: Number) -> None:
    """Copy bytes from where they lie to where none of them does."""
    from llvmlite import ir  # type: ignore[import-untyped]

    pointer, bit = ir.PointerType(), ir.IntType(1)
    kinds = [pointer, pointer, ir.IntType(64), bit]
    function = intrinsic(builder.module, "llvm.memcpy.p0.p0.i64", ir.VoidType(), kinds)
    builder.call(function, [target, source, as_value(count), ir.Constant(bit, 0)])


def clear_bytes(builder: Any, target: Any, count: Number, value: int = 0) -> None:
    """Zero bytes, or give them another value."""
    from llvmlite import ir

    byte, bit = ir.IntType(8), ir.IntType(1)
    kinds = [ir.PointerType(), byte, ir.IntType(64), bit]
    function = intrinsic(builder.module, "llvm.memset.p0.i64", ir.VoidType(), kinds)
    builder.call(function, [target, ir.Constant(byte, value), as_value(count), ir.Constant(bit, 0)])


def moved(builder: Any, pointer: Any, count: Number) -> Any:
    """A pointer moved by bytes."""
    from llvmlite import ir

    return builder.gep(pointer, [as_value(count)], source_etype=ir.IntType(8))


def same_pointer(builder: Any, a: Any, b: Any) -> Any:
    """Whether two pointers are equal, as one bit."""
    from llvmlite import ir

    wide = ir.IntType(64)
    return builder.icmp_unsigned("==", builder.ptrtoint(a, wide), builder.ptrtoint(b, wide))


# --------------------------------------------------------------------------- going along


def each(builder: Any, first: Number, last: Number, inside: Callable[[Any], None]) -> None:
    """``inside(i)`` for every i from ``first`` to before ``last``."""

    def one(i: Any, _: Sequence[Any]) -> None:
        inside(i)

    loop(builder, as_value(first), as_value(last), 1, one)


def sweep(
    builder: Any, first: Number, last: Number, lanes: int, inside: Callable[[Any, int], None]
) -> None:
    """``inside(column, width)`` from ``first`` to before ``last``: whole vectors, then the rest one by one."""
    known = last - first if isinstance(first, int) and isinstance(last, int) else None
    if known == 1:
        inside(first, 1)
        return
    whole: Number = first

    def vector(column: Any, _: Sequence[Any]) -> None:
        inside(column, lanes)

    if lanes > 1 and (known is None or known >= lanes):
        start, stop = as_value(first), as_value(last)
        count = builder.sdiv(builder.sub(stop, start), as_value(lanes))
        whole = builder.add(start, builder.mul(count, as_value(lanes)))
        loop(builder, start, whole, lanes, vector)
        if known is not None and known % lanes == 0:
            return
    each(builder, whole, last, lambda column: inside(column, 1))


def tiles(
    code: Code, rows: int, columns: int, block: int, inside: Callable[[Any, Number, Number], None]
) -> None:
    """``inside(row, first, last)`` for this thread's part of all columns of all rows, in blocks of neighbours."""
    if not rows * columns:
        return
    if columns <= block:
        code.each(rows, lambda row: inside(row, 0, columns))
        return
    b = code.builder
    blocks = -(-columns // block)
    first, last = code.share(rows * blocks)
    one_more = b.add(last, as_value(blocks - 1))

    def row(number: Any) -> None:
        start = b.mul(number, as_value(blocks))
        low = maximum(b, b.sub(first, start), as_value(0))
        high = minimum(b, b.sub(last, start), as_value(blocks))
        end = minimum(b, b.mul(high, as_value(block)), as_value(columns))
        inside(number, b.mul(low, as_value(block)), end)

    with b.if_then(b.icmp_signed("<", first, last)):
        each(b, b.udiv(first, as_value(blocks)), b.udiv(one_more, as_value(blocks)), row)


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

    def address(self, index: Sequence[Number], column: Number) -> Any:
        """Where an element lies, of an operand that is ``wide``."""
        offset = self._offset(index, column)
        return memory_place(self._code.builder, self._pointer, offset, self._node.dtype)

    def at(self, index: Sequence[Number], column: Number, lanes: int = 1) -> Any:
        """The elements of a row from a column on."""
        code, b = self._code, self._code.builder
        if self.wide:
            return load(b, self._pointer, self._offset(index, column), self._node.dtype, lanes)
        elements = Elements.of(code)
        inner = elements.places.split(column, self._inner) if self._inner else []
        return elements.at(self._node, [*index, *inner])

    def integer(self, index: Sequence[Number], column: Number) -> Any:
        """An element of integers as a number."""
        value = self.at(index, column)
        return Registers(self._code.builder).as_index(value, self._node.dtype)

    @property
    def _pointer(self) -> Any:
        return self._code.operand_of(self._seen.base) if self._seen is not None else None

    def _offset(self, index: Sequence[Number], column: Number) -> Number:
        places = self._code.places
        if self._seen is None:
            return column
        total: Number = places.add(column, self._seen.offset)
        for number, stride in zip(index, self._seen.strides, strict=False):
            total = places.add(total, places.mul(number, stride))
        return total
