"""Values in registers: how each element type is loaded, stored and combined, in one lane or many.

Sums of 16-bit floats are kept in f32, those of small integers in the type of the result, as the reference does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np

from ...graph import dtypes
from ...graph.dtypes import DType
from ...graph.node import Node
from .index import Index, IndexMath, Lanes, i64, lane_count
from .interleave import MOST_APART, collect, is_near, spread
from .lanes import Lane, function_of, mangled
from .math import emit, memory_type, register_type
from .types import ElementBuilder, Memory, Pointer, Type, Value, accumulator_type

CHUNK = 64
"""Bytes that are picked from together."""


class Registers:
    """Code on elements."""

    def __init__(self, builder: ElementBuilder) -> None:
        self.builder = builder
        self.indices = IndexMath(builder)

    # ------------------------------------------------------------- memory

    def load(
        self, pointer: Memory, offset: Index, dtype: DType, mask: Value | None = None
    ) -> Value:
        """The elements at offsets; a lane outside ``mask`` reads nothing."""
        count = lane_count(offset)
        element = memory_type(dtype)
        if count is None:
            address = self.builder.gep(pointer, [i64(offset)], source_etype=element)
            return self._held(self.builder.load(address, typ=element, align=dtype.itemsize), dtype)
        kind = memory_type(dtype, count)
        if isinstance(offset, Lanes) and offset.stride in (1, -1):
            first = offset.start
            if offset.stride < 0:
                first = self.indices.sub(first, count - 1)
                mask = None if mask is None else self.reversed(mask)
            address = self.builder.gep(pointer, [i64(first)], source_etype=element)
            if mask is None:
                value = self.builder.load(address, typ=kind, align=dtype.itemsize)
            else:
                value = self._masked("load", kind, [address], mask, dtype)
            return self._held(self.reversed(value) if offset.stride < 0 else value, dtype)
        if isinstance(offset, Lanes) and 2 <= offset.stride <= MOST_APART and mask is None:
            return self._held(self.every_few(pointer, offset, dtype), dtype)
        if isinstance(offset, Lanes) and is_near(offset.stride, count, dtype.itemsize):
            few = self.all_lanes(count) if mask is None else mask
            return self._held(self._masked_few(kind, pointer, offset, dtype, few), dtype)
        places = self._pointers(pointer, offset, dtype, count)
        mask = self.all_lanes(count) if mask is None else mask
        return self._held(self._masked("gather", kind, [places], mask, dtype), dtype)

    def every_few(self, pointer: Memory, offset: Lanes, dtype: DType) -> Value:
        """Every second (third, ...) element: all between the first and the last are read, and theirs picked."""
        from llvmlite import ir

        lanes = min(offset.count, CHUNK // dtype.itemsize)
        kind = memory_type(dtype, lanes)
        chunks = []
        for chunk in range(offset.count // lanes):
            first = self.indices.add(offset.start, chunk * lanes * offset.stride)

            def read(_: int, begin: int, first: Index = first) -> Value:
                at = [i64(self.indices.add(first, begin))]
                address = self.builder.gep(pointer, at, source_etype=memory_type(dtype))
                return self.builder.load(address, typ=kind, align=dtype.itemsize)

            chunks.append(collect(self.builder, kind, offset.stride, read, exactly=True))
        while len(chunks) > 1:
            width = 2 * chunks[0].type.count
            numbers = ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(width)))
            pairs = zip(chunks[::2], chunks[1::2], strict=True)
            chunks = [self.builder.shuffle_vector(low, high, numbers) for low, high in pairs]
        return chunks[0]

    def _masked_few(
        self, kind: Type, pointer: Memory, offset: Lanes, dtype: DType, mask: Value
    ) -> Value:
        """The same where only the lanes of a mask may be read."""

        def read(part: int, _: int) -> Value:
            place = self._address_of_part(pointer, offset, part, dtype)
            some = spread(self.builder, mask, offset.stride, part)
            return self._masked("load", kind, [place], some, dtype)

        return collect(self.builder, kind, offset.stride, read)

    def _address_of_part(self, pointer: Memory, offset: Lanes, part: int, dtype: DType) -> Pointer:
        """Where the ``part``-th of the vectors begins in which the lanes of ``offset`` lie."""
        first = i64(self.indices.add(offset.start, part * offset.count))
        return self.builder.gep(pointer, [first], source_etype=memory_type(dtype))

    def store(
        self,
        value: Value,
        pointer: Memory,
        offset: Index,
        dtype: DType,
        mask: Value | None = None,
        *,
        non_temporal: bool = False,
    ) -> None:
        """Write elements, only in the lanes of ``mask``; ``non_temporal`` the cache, where they lie at a multiple of 64 bytes.

        A vector whose offset is that of its first lane is written to neighbours.
        """
        count = lane_count(offset)
        if count is None and (count := lane_count(value)) is not None:
            offset = Lanes(offset, count)
        element = memory_type(dtype)
        if count is not None:
            value = self.indices.spread(value, count)
        if dtype.kind == "bool":
            value = self.builder.zext(value, memory_type(dtype, count))
        if count is None:
            place = self.builder.gep(pointer, [i64(offset)], source_etype=element)
            self.builder.store(value, place, align=dtype.itemsize)
            return
        if isinstance(offset, Lanes) and is_near(offset.stride, count, dtype.itemsize):
            mask = self.all_lanes(count) if mask is None else mask
            for part in range(offset.stride):
                one, some = (
                    spread(self.builder, item, offset.stride, part) for item in (value, mask)
                )
                place = self._address_of_part(pointer, offset, part, dtype)
                self._masked("store", None, [one, place], some, dtype)
            return
        if not isinstance(offset, Lanes) or offset.stride != 1:
            places = self._pointers(pointer, offset, dtype, count)
            mask = self.all_lanes(count) if mask is None else mask
            self._masked("scatter", None, [value, places], mask, dtype)
            return
        place = self.builder.gep(pointer, [i64(offset.start)], source_etype=element)
        if mask is None and non_temporal and count * dtype.itemsize % 64 == 0:
            from llvmlite import ir

            written = self.builder.store(value, place, align=64)
            one = ir.Constant(ir.IntType(32), 1)
            written.set_metadata("nontemporal", self.builder.module.add_metadata([one]))
            return
        if mask is None:
            self.builder.store(value, place, align=dtype.itemsize)
            return
        if dtype.itemsize < 4:
            # LLVM 22 makes a store that narrows, under a mask known to be the first lane's, as wide as
            # what it narrows: so that lane is written by itself.
            zero = self.lane_number(0)
            with self.builder.if_then(self.builder.extract_element(mask, zero)):
                first = self.builder.extract_element(value, zero)
                self.builder.store(first, place, align=dtype.itemsize)
            mask = self.builder.insert_element(mask, self.constant(False, dtypes.bool_), zero)
        self._masked("store", None, [value, place], mask, dtype)

    def prefetch(self, pointer: Memory, offset: Index, dtype: DType, count: int) -> None:
        """Ask for ``count`` elements from the first of ``offset`` on, a line at a time."""
        from llvmlite import ir

        word = ir.IntType(32)
        kinds = [ir.PointerType(), word, word, word]
        function = function_of(self.builder.module, "llvm.prefetch.p0", ir.VoidType(), kinds)
        first = offset.start if isinstance(offset, Lanes) else offset
        for line in range(0, count, max(1, 64 // dtype.itemsize)):
            address = self.builder.gep(
                pointer, [i64(self.indices.add(first, line))], source_etype=memory_type(dtype)
            )
            # To be read, into the second level of the cache, as data.
            settings = [ir.Constant(word, number) for number in (0, 2, 1)]
            self.builder.call(function, [address, *settings])

    def _held(self, value: Value, dtype: DType) -> Value:
        if dtype.kind != "bool":
            return value
        return self.builder.trunc(value, register_type(dtype, lane_count(value)))

    def _pointers(self, pointer: Memory, offset: Index, dtype: DType, count: int) -> Value:
        from llvmlite import ir

        offsets = self.indices.vector(offset, count)
        places = self.builder.gep(pointer, [offsets], source_etype=memory_type(dtype))
        # A gep by a vector gives a vector of pointers, which llvmlite does not infer.
        places.type = ir.VectorType(ir.PointerType(), count)
        return places

    def _masked(
        self, act: str, kind: Type | None, arguments: Sequence[Value], mask: Value, dtype: DType
    ) -> Value:
        """A masked access: a load has its type, a store its value."""
        from llvmlite import ir

        align = ir.Constant(ir.IntType(32), dtype.itemsize)
        value = kind if kind is not None else arguments[0].type
        ending = "p0" if act in ("load", "store") else f"v{value.count}p0"
        passed = [*arguments, align, mask]
        if kind is not None:
            passed.append(ir.Constant(kind, None))
        result = ir.VoidType() if kind is None else kind
        name = f"llvm.masked.{act}.{mangled(value)}.{ending}"
        function = function_of(self.builder.module, name, result, [item.type for item in passed])
        return self.builder.call(function, passed)

    # ------------------------------------------------------------- lanes

    @staticmethod
    def lane_number(number: int) -> Value:
        """The number of a lane, as instructions take it."""
        from llvmlite import ir

        return ir.Constant(ir.IntType(32), number)

    def all_lanes(self, count: int) -> Value:
        """The mask that leaves no lane out."""
        return self.constant(True, dtypes.bool_, count)

    def reversed(self, value: Value) -> Value:
        """The lanes in the other order."""
        return self.picked(value, range(value.type.count - 1, -1, -1))

    def picked(self, value: Value, numbers: Sequence[int]) -> Value:
        """Some lanes of a vector."""
        from llvmlite import ir

        kind = ir.VectorType(ir.IntType(32), len(numbers))
        return self.builder.shuffle_vector(value, value, ir.Constant(kind, list(numbers)))

    def choose(self, condition: Value, chosen: Value, otherwise: Value) -> Value:
        """One of two values in each lane."""
        values = [condition, chosen, otherwise]
        counts = [lane_count(value) for value in values]
        count = next((count for count in counts if count is not None), None)
        if count is not None:
            values = [self.indices.spread(value, count) for value in values]
        return self.builder.select(*values)

    @overload
    def both(self, first: Value, second: Value | None) -> Value: ...

    @overload
    def both(self, first: Value | None, second: Value) -> Value: ...

    @overload
    def both(self, first: Value | None, second: Value | None) -> Value | None: ...

    def both(self, first: Value | None, second: Value | None) -> Value | None:
        """The lanes that two masks have in common; None stands for all."""
        if first is None or second is None:
            return second if first is None else first
        return self.choose(first, second, self.constant(False, dtypes.bool_, lane_count(first)))

    # ------------------------------------------------------------- numbers

    def constant(self, number: complex, dtype: DType, lanes: int | None = None) -> Value:
        """A number as an element, in every lane."""
        from llvmlite import ir

        stored = np.asarray(number).astype(dtype.numpy)
        kind = register_type(dtype, lanes)
        if dtype.kind == "float" and dtype.name != "bf16":
            plain: float = float(stored)
        else:
            plain = int(stored.view(np.uint16) if dtype.name == "bf16" else stored)
        return ir.Constant(kind, plain if lanes is None else [plain] * lanes)

    def of_index(self, index: Index, dtype: DType) -> Value:
        """An index as an element."""
        return self.cast(self.indices.plain(index), dtypes.i64, dtype)

    def as_index(self, value: Value, dtype: DType) -> Value:
        """An element of integers as an index."""
        return self.cast(value, dtype, dtypes.i64)

    def apply(self, node: Node, operands: Sequence[Value]) -> Value:
        """An element-wise op; where one operand has lanes, all have."""
        count = next((lane_count(item) for item in operands if lane_count(item)), None)
        if count is not None:
            operands = [self.indices.spread(item, count) for item in operands]
        kinds = [operand.dtype for operand in node.operands]
        return emit(node.op, self.builder, operands, kinds, node.dtype, node.attrs)

    def by_inverse(self, value: Value, divisor: Value) -> Value:
        """A quotient as a product with the divisor's inverse, which is worth it where many are divided by it.

        Within 1.5 units in the last place. The inverse of a very large or small divisor has no exponent: a power of two is taken out first.
        """
        count = lane_count(value) or lane_count(divisor)
        under = Lane(self.builder, divisor)
        size, power = under.absolute(), {32: 2.0**64, 64: 2.0**512}[under.bits]
        one = under.constant(1.0)
        factor = (size < 1.0 / power).choose(under.constant(power), one)
        factor = (size > power).choose(under.constant(1.0 / power), factor)
        inverse = 1.0 / (under * factor)
        values = [value, factor.value, inverse.value]
        if count is not None:
            values = [self.indices.spread(item, count) for item in values]
        a, b, c = (Lane(self.builder, item) for item in values)
        return (a * b * c).value

    def cast(self, value: Value, found: DType, wanted: DType) -> Value:
        """A value in another element type."""
        if found is wanted:
            return value
        return emit("cast", self.builder, [value], [found], wanted, {"to": wanted})

    # ------------------------------------------------------------- reductions

    kept_in = staticmethod(accumulator_type)
    """The same function, under the name that GPU templates have for it."""

    def neutral(self, name: str, operand: DType, result: DType, lanes: int | None = None) -> Value:
        """What a reduction of nothing is."""
        running = accumulator_type(result)
        return self.constant(_neutral(name, running), running, lanes)

    def least(self, name: str, dtype: DType, lanes: int | None = None) -> Value:
        """What nothing but NaN loses against, looking for a place."""
        return self.constant(_neutral("max" if name == "argmax" else "min", dtype), dtype, lanes)

    def combine(
        self, name: str, total: Value, value: Value, operand: DType, result: DType
    ) -> Value:
        """One more element of a reduction."""
        running = accumulator_type(result)
        return self.merge(name, total, self.cast(value, operand, running), result)

    def merge(self, name: str, total: Value, other: Value, result: DType) -> Value:
        """Two running results as one."""
        running = accumulator_type(result)
        count = lane_count(total) or lane_count(other)
        if count is not None:
            total, other = self.indices.spread(total, count), self.indices.spread(other, count)
        # The running result comes last: a maximum looks for NaN in its first operand, which need not wait for it.
        return emit(_COMBINES[name], self.builder, [other, total], [running, running], running, {})

    def across(self, name: str, total: Value, result: DType) -> Value:
        """The running results of all lanes as one: halves onto halves."""
        while (count := lane_count(total)) is not None:
            if count == 1:
                return self.builder.extract_element(total, self.lane_number(0))
            half = count // 2
            if count % 2:
                last = self.builder.extract_element(total, self.lane_number(count - 1))
                rest = self.across(name, self.picked(total, range(count - 1)), result)
                return self.merge(name, rest, last, result)
            low, high = self.picked(total, range(half)), self.picked(total, range(half, count))
            total = self.merge(name, low, high, result)
        return total

    def multiply_add(
        self, total: Value, a: Value, b: Value, operand: DType, result: DType
    ) -> Value:
        """One more product of a contraction."""
        running = accumulator_type(result)
        a, b = self.cast(a, operand, running), self.cast(b, operand, running)
        count = lane_count(a) or lane_count(b) or lane_count(total)
        if count is not None:
            a, b, total = (self.indices.spread(item, count) for item in (a, b, total))
        if running.kind == "float":
            made = getattr(self.builder, "lane", Lane)
            return made(self.builder, a).fma(*(made(self.builder, x) for x in (b, total))).value
        product = emit("mul", self.builder, [a, b], [running, running], running, {})
        return emit("add", self.builder, [total, product], [running, running], running, {})

    def reduced(self, name: str, total: Value, result: DType) -> Value:
        """A running result as an element."""
        return self.cast(total, accumulator_type(result), result)

    def beats(self, name: str, value: Value, best: Value, dtype: DType) -> Value:
        """Whether an element is a better maximum (or minimum): the first wins, and NaN wins over all."""
        order = "gt" if name == "argmax" else "lt"
        count = lane_count(value) or lane_count(best)
        if count is not None:
            value, best = self.indices.spread(value, count), self.indices.spread(best, count)
        if dtype.name in ("f32", "f64"):
            # Better, or NaN, unless the best is NaN.
            sign = ">" if name == "argmax" else "<"
            beyond = self.builder.fcmp_unordered(sign, value, best)
            return self.builder.and_(beyond, self.builder.fcmp_ordered("ord", best, best))
        better = emit(order, self.builder, [value, best], [dtype, dtype], dtypes.bool_, {})
        if dtype.kind != "float":
            return better
        is_nan = [self.is_nan(item, dtype) for item in (value, best)]
        first_nan = self.builder.and_(is_nan[0], self.builder.not_(is_nan[1]))
        return self.builder.or_(first_nan, self.builder.and_(better, self.builder.not_(is_nan[1])))

    def is_nan(self, value: Value, dtype: DType) -> Value:
        """Whether a float is NaN."""
        return emit("is_nan", self.builder, [value], [dtype], dtypes.bool_, {})


def _neutral(name: str, running: DType) -> float:
    if name in ("sum", "any"):
        return 0
    if name in ("prod", "all"):
        return 1
    if running.kind == "float":
        return -np.inf if name == "max" else np.inf
    if running.kind == "bool":
        return name == "min"
    low, high = running.limits
    return low if name == "max" else high


_COMBINES = {
    "sum": "add",
    "prod": "mul",
    "max": "larger",
    "min": "smaller",
    "any": "logical_or",
    "all": "logical_and",
}
