"""Values in registers: how each element type is held, loaded, stored, combined.

An element is held as it is stored, but for bool, which is a byte in memory and a bit here. Sums of 16-bit floats are kept in f32, those of small
integers in the type of the result, as the reference does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graph import dtypes
from ...graph.dtypes import DType
from ...graph.errors import InternalError
from ...graph.node import Node
from .math import emit
from .places import Number, as_value


def memory_type(dtype: DType) -> Any:
    """The type of an element in memory."""
    from llvmlite import ir  # type: ignore[import-untyped]

    if dtype.kind == "float" and dtype.name != "bf16":
        return {64: ir.DoubleType(), 32: ir.FloatType(), 16: ir.HalfType()}[dtype.bits]
    if dtype.kind in ("int", "bool", "float"):
        return ir.IntType(8 if dtype.kind == "bool" else dtype.bits)
    raise InternalError(f"the CPU backend has no code for {dtype}")


def register_type(dtype: DType) -> Any:
    """The type of an element in code."""
    from llvmlite import ir

    return ir.IntType(1) if dtype.kind == "bool" else memory_type(dtype)


class Registers:
    """Code on elements."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    # ------------------------------------------------------------- memory

    def load(self, pointer: Any, offset: Number, dtype: DType) -> Any:
        """The element at an offset."""
        kind = memory_type(dtype)
        place = self.builder.gep(pointer, [as_value(offset)], source_etype=kind)
        value = self.builder.load(place, typ=kind)
        return self.builder.trunc(value, register_type(dtype)) if dtype.kind == "bool" else value

    def store(self, value: Any, pointer: Any, offset: Number, dtype: DType) -> None:
        """Write an element."""
        kind = memory_type(dtype)
        if dtype.kind == "bool":
            value = self.builder.zext(value, kind)
        self.builder.store(value, self.builder.gep(pointer, [as_value(offset)], source_etype=kind))

    # ------------------------------------------------------------- numbers

    def constant(self, number: Any, dtype: DType) -> Any:
        """A number as an element."""
        from llvmlite import ir

        stored = np.asarray(number).astype(dtype.numpy)
        kind = register_type(dtype)
        if dtype.kind == "float" and dtype.name != "bf16":
            return ir.Constant(kind, float(stored))
        bits = stored.view(np.uint16) if dtype.name == "bf16" else stored
        return ir.Constant(kind, int(bits))

    def of_index(self, index: Any, dtype: DType) -> Any:
        """An index as an element."""
        wide = dtypes.i64
        if dtype is wide:
            return index
        return emit("cast", self.builder, [index], [wide], dtype, {"to": dtype})

    def as_index(self, value: Any, dtype: DType) -> Any:
        """An element of integers as an index."""
        wide = dtypes.i64
        if dtype is wide:
            return value
        return emit("cast", self.builder, [value], [dtype], wide, {"to": wide})

    def apply(self, node: Node, operands: list[Any]) -> Any:
        """An element-wise op."""
        kinds = [operand.dtype for operand in node.operands]
        return emit(node.op.name, self.builder, operands, kinds, node.dtype, node.attrs)

    def _cast(self, value: Any, found: DType, wanted: DType) -> Any:
        if found is wanted:
            return value
        return emit("cast", self.builder, [value], [found], wanted, {"to": wanted})

    # ------------------------------------------------------------- reductions

    @staticmethod
    def _kept_in(result: DType) -> DType:
        """The type that a running result is kept in."""
        return dtypes.f32 if result.is_half else result

    def neutral(self, name: str, operand: DType, result: DType) -> Any:
        """What a reduction of nothing is."""
        kept = self._kept_in(result)
        if name in ("sum", "any"):
            return self.constant(0, kept)
        if name in ("prod", "all"):
            return self.constant(1, kept)
        if kept.kind == "float":
            return self.constant(-np.inf if name == "max" else np.inf, kept)
        if kept.kind == "bool":
            return self.constant(name == "min", kept)
        low, high = kept.limits
        return self.constant(low if name == "max" else high, kept)

    def combine(self, name: str, total: Any, value: Any, operand: DType, result: DType) -> Any:
        """One more element of a reduction."""
        kept = self._kept_in(result)
        value = self._cast(value, operand, kept)
        op = _COMBINES[name]
        return emit(op, self.builder, [total, value], [kept, kept], kept, {})

    def multiply_add(self, total: Any, a: Any, b: Any, operand: DType, result: DType) -> Any:
        """One more product of a contraction."""
        kept = self._kept_in(result)
        a, b = self._cast(a, operand, kept), self._cast(b, operand, kept)
        if kept.kind == "float":
            return self.builder.fma(a, b, total)
        product = emit("mul", self.builder, [a, b], [kept, kept], kept, {})
        return emit("add", self.builder, [total, product], [kept, kept], kept, {})

    def reduced(self, name: str, total: Any, result: DType) -> Any:
        """A running result as an element."""
        return self._cast(total, self._kept_in(result), result)

    def beats(self, name: str, value: Any, best: Any, dtype: DType) -> Any:
        """Whether an element is a better maximum (or minimum): the first wins, and NaN wins over all."""
        order = "gt" if name == "argmax" else "lt"
        better = emit(order, self.builder, [value, best], [dtype, dtype], dtypes.bool_, {})
        if dtype.kind != "float":
            return better
        is_nan = [
            emit("is_nan", self.builder, [item], [dtype], dtypes.bool_, {})
            for item in (value, best)
        ]
        first_nan = self.builder.and_(is_nan[0], self.builder.not_(is_nan[1]))
        return self.builder.or_(first_nan, self.builder.and_(better, self.builder.not_(is_nan[1])))


_COMBINES = {
    "sum": "add",
    "prod": "mul",
    "max": "maximum",
    "min": "minimum",
    "any": "logical_or",
    "all": "logical_and",
}
