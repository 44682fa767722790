"""What all attention code is written with: addresses of operands and of scratch memory, vectors, and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod

import numpy as np

from ....codegen.elements.elements import Elements
from ....codegen.ir.emit import broadcast, ir, load, loop, minimum, offset, store
from ....codegen.ir.index import Index, i64
from ....codegen.ir.lanes import Lane
from ....codegen.ir.math import emit
from ....codegen.ir.types import Pointer, Value
from ....codegen.problems.attention import Operand
from ....graph import dtypes
from ....graph.node import Node
from ..emit.template import Code
from .plan import Attention, Room, made_bases, made_offsets


class Writer:
    """An attention's code in the making: where things lie, numbers in vectors, loops."""

    def __init__(self, code: Code, attention: Attention) -> None:
        self.code = code
        self.attention = attention
        self.builder = code.builder
        self.indices = code.indices
        self.dtype = attention.accumulator
        self.kind = dtypes.dtype(self.dtype)
        self._bases: dict[int, Value] = {}

    # ------------------------------------------------------------- operands

    def make_bases(self) -> None:
        """Write what operands are views of and is no buffer into shared memory, before all else."""
        room = Room()
        places = made_offsets(self.code.spec, self.attention, room)
        bases = made_bases(self.code.spec, self.attention)
        for base in bases:
            pointer = self.shared(places[base.id])
            self._bases[base.id] = pointer
            sizes = [int(size) for size in base.shape]

            def emit_unit(number: Value, base: Node = base, sizes: list[int] = sizes) -> None:
                elements = Elements.of(self.code)
                value = elements.at(base, self.indices.split(number, sizes))
                elements.registers.store(value, self._bases[base.id], number, base.dtype)

            self.code.each(prod(sizes), emit_unit)
        if bases:
            self.code.barrier()

    def own(self, position: int) -> Pointer:
        """An address in this thread's memory."""
        return self._bytes(self.code.own, position)

    def shared(self, position: int) -> Pointer:
        """An address in the memory of all threads."""
        return self._bytes(self.code.shared, position)

    def _bytes(self, pointer: Pointer, position: int) -> Pointer:
        return self.builder.gep(pointer, [i64(position)], source_etype=ir().IntType(8))

    def address(self, name: str, *index: Index) -> Pointer:
        """The address of an operand's element at the first few of its indices."""
        item = self.attention.operands[name]
        return self.moved(self.base(item), item.dtype, self.distance(item, *index))

    def base(self, item: Operand) -> Pointer:
        """The address of what an operand is a view of."""
        made = self._bases.get(item.base.id)
        return self.code.operand_of(item.base) if made is None else made

    def distance(self, item: Operand, *index: Index) -> Index:
        """Elements from there to an index."""
        total: Index = item.offset
        for number, stride in zip(index, item.strides, strict=False):
            total = self.indices.add(total, self.indices.mul(number, stride))
        return total

    def moved(self, pointer: Pointer, dtype: str, *terms: Index) -> Pointer:
        """An address moved by elements."""
        if dtype == "bool":
            total: Index = 0
            for term in terms:
                total = self.indices.add(total, term)
            return self.builder.gep(pointer, [i64(total)], source_etype=ir().IntType(8))
        return offset(self.builder, pointer, dtype, *terms)

    # ------------------------------------------------------------- numbers

    def number(self, value: float, lanes: int | None = None) -> Lane:
        """A constant in every lane."""
        types = ir()
        element = types.DoubleType() if self.dtype == "f64" else types.FloatType()
        count = self.attention.lanes if lanes is None else lanes
        if self.dtype == "f32":
            value = float(np.float32(value))
        kind = types.VectorType(element, count)
        return Lane(self.builder, types.Constant(kind, [value] * count))

    def lowest(self) -> Lane:
        """Where a maximum begins: -inf, or the lowest number where a row may be all -inf."""
        bottom = np.finfo(self.kind.numpy).min
        return self.number(float(bottom) if self.attention.may_see_nothing else -inf)

    def exp(self, x: Lane) -> Lane:
        """The exponential."""
        return x.of(emit("exp", self.builder, [x.value], [self.kind], self.kind))

    def tanh(self, x: Lane) -> Lane:
        """The hyperbolic tangent."""
        return x.of(emit("tanh", self.builder, [x.value], [self.kind], self.kind))

    def inverse(self, total: Lane) -> Lane:
        """1 over a sum of probabilities; 1 where nothing was seen."""
        return 1.0 / (total > 0.0).choose(total, 1.0)

    def vector(self, pointer: Pointer, *terms: Index) -> Lane:
        """A vector of scratch memory."""
        address = offset(self.builder, pointer, self.dtype, *terms)
        return Lane(self.builder, load(self.builder, address, self.dtype, self.attention.lanes))

    def put(self, value: Lane, pointer: Pointer, *terms: Index) -> None:
        """Write a vector of scratch memory."""
        address = offset(self.builder, pointer, self.dtype, *terms)
        store(self.builder, value.value, address, self.dtype)

    def spread(self, scalar: Value) -> Lane:
        """A scalar in every lane."""
        return Lane(self.builder, broadcast(self.builder, scalar, self.attention.lanes))

    # ------------------------------------------------------------- loops

    def rows(
        self,
        count: Index,
        body: Callable[[Value, list[Lane]], Sequence[Lane] | None],
        carried: Sequence[Lane] = (),
    ) -> list[Lane]:
        """``body(row, values)`` for each row."""

        def emit_row(row: Value, values: Sequence[Value]) -> Sequence[Value]:
            following = body(row, [Lane(self.builder, value) for value in values])
            return [item.value for item in following or ()]

        last = loop(self.builder, i64(0), i64(count), 1, emit_row, [item.value for item in carried])
        return [Lane(self.builder, value) for value in last]

    def each_uneven(self, count: int, body: Callable[[Value], None]) -> None:
        """``body(i)`` for this thread's part of ``range(count)``, where later things in a row of them may be more work.

        Threads take one each in turn, in their order and then in the opposite one.
        """
        if not self.attention.causal:
            self.code.each(count, body)
            return
        b, thread, threads = self.builder, self.code.thread, self.code.threads
        rounds = b.udiv(b.add(i64(count - 1), threads), threads) if count else i64(0)
        opposite = b.sub(b.sub(threads, i64(1)), thread)

        def turn(number: Value, _: Sequence[Value]) -> None:
            odd = b.trunc(number, ir().IntType(1))
            position = b.add(b.mul(number, threads), b.select(odd, opposite, thread))
            with b.if_then(b.icmp_signed("<", position, i64(count))):
                body(position)

        loop(b, i64(0), rounds, 1, turn)

    def clear(self, pointer: Pointer, elements: Index) -> None:
        """Zeros in scratch memory; a multiple of a vector."""
        nothing = self.number(0.0)

        def emit_vector(at: Value, _: Sequence[Value]) -> None:
            self.put(nothing, pointer, at)

        loop(self.builder, i64(0), i64(elements), self.attention.lanes, emit_vector)

    def each_block(
        self,
        start: Value,
        stop: Value,
        body: Callable[[Value, Value, list[Lane]], Sequence[Lane] | None],
        carried: Sequence[Lane] = (),
    ) -> list[Lane]:
        """``body(first key, keys, values)`` for blocks of keys."""
        b = self.builder
        block = self.attention.block

        def emit_block(first: Value, values: Sequence[Value]) -> Sequence[Value]:
            count = minimum(b, i64(block), b.sub(stop, first))
            following = body(first, count, [Lane(b, value) for value in values])
            return [item.value for item in following or ()]

        last = loop(b, start, stop, block, emit_block, [item.value for item in carried])
        return [Lane(b, value) for value in last]
