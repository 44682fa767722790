"""What all code of attention is written with: addresses of operands and scratch memory, vectors of numbers, loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod
from typing import Any

import numpy as np

from ....codegen.elements.elements import Elements
from ....codegen.ir.emit import broadcast, i64, ir, load, loop, minimum, offset, store
from ....codegen.ir.index import Number, as_value
from ....codegen.ir.lanes import Lane
from ....codegen.ir.math import emit
from ....codegen.problems.attention import Operand
from ....graph import dtypes
from ....graph.node import Node
from ..emit.template import Code
from .plan import Attention, Room, made_bases, made_places


class Writer:
    """An attention's code in the making: where things lie, numbers in vectors, loops."""

    def __init__(self, code: Code, attention: Attention) -> None:
        self.code = code
        self.attention = attention
        self.builder = code.builder
        self.places = code.places
        self.dtype = attention.accumulator
        self.kind = dtypes.dtype(self.dtype)
        self._bases: dict[int, Any] = {}

    # ------------------------------------------------------------- operands

    def make_bases(self) -> None:
        """Write what operands are views of and is no buffer into shared memory, before all else."""
        room = Room()
        places = made_places(self.code.spec, self.attention, room)
        bases = made_bases(self.code.spec, self.attention)
        for base in bases:
            pointer = self.shared(places[base.id])
            self._bases[base.id] = pointer
            sizes = [int(size) for size in base.shape]

            def one(number: Any, base: Node = base, sizes: list[int] = sizes) -> None:
                elements = Elements.of(self.code)
                value = elements.at(base, self.places.split(number, sizes))
                elements.registers.store(value, self._bases[base.id], number, base.dtype)

            self.code.each(prod(sizes), one)
        if bases:
            self.code.barrier()

    def own(self, place: int) -> Any:
        """An address in this thread's memory."""
        return self._bytes(self.code.own, place)

    def shared(self, place: int) -> Any:
        """An address in the memory of all threads."""
        return self._bytes(self.code.shared, place)

    def _bytes(self, pointer: Any, place: int) -> Any:
        return self.builder.gep(pointer, [i64(place)], source_etype=ir().IntType(8))

    def address(self, name: str, *index: Number) -> Any:
        """The address of an operand's element at the first few of its indices."""
        item = self.attention.operands[name]
        return self.moved(self.base(item), item.dtype, self.distance(item, *index))

    def base(self, item: Operand) -> Any:
        """The address of what an operand is a view of."""
        made = self._bases.get(item.base.id)
        return self.code.operand_of(item.base) if made is None else made

    def distance(self, item: Operand, *index: Number) -> Number:
        """Elements from there to an index."""
        total: Number = item.offset
        for number, stride in zip(index, item.strides, strict=False):
            total = self.places.add(total, self.places.mul(number, stride))
        return total

    def moved(self, pointer: Any, dtype: str, *terms: Number) -> Any:
        """An address moved by elements."""
        if dtype == "bool":
            total: Number = 0
            for term in terms:
                total = self.places.add(total, term)
            return self.builder.gep(pointer, [as_value(total)], source_etype=ir().IntType(8))
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

    def vector(self, pointer: Any, *terms: Number) -> Lane:
        """A vector of scratch memory."""
        place = offset(self.builder, pointer, self.dtype, *terms)
        return Lane(self.builder, load(self.builder, place, self.dtype, self.attention.lanes))

    def put(self, value: Lane, pointer: Any, *terms: Number) -> None:
        """Write a vector of scratch memory."""
        place = offset(self.builder, pointer, self.dtype, *terms)
        store(self.builder, value.value, place, self.dtype)

    def spread(self, scalar: Any) -> Lane:
        """A scalar in every lane."""
        return Lane(self.builder, broadcast(self.builder, scalar, self.attention.lanes))

    # ------------------------------------------------------------- loops

    def rows(
        self,
        count: Any,
        inside: Callable[[Any, list[Lane]], Sequence[Lane] | None],
        carried: Sequence[Lane] = (),
    ) -> list[Lane]:
        """``inside(row, values)`` for each row."""

        def one(row: Any, values: Sequence[Any]) -> Sequence[Any]:
            following = inside(row, [Lane(self.builder, value) for value in values])
            return [item.value for item in following or ()]

        last = loop(self.builder, i64(0), as_value(count), 1, one, [item.value for item in carried])
        return [Lane(self.builder, value) for value in last]

    def each_uneven(self, count: int, inside: Callable[[Any], None]) -> None:
        """``inside(i)`` for this thread's part of ``range(count)``, where later things in a row of them may be more work.

        Threads take one each in turn, in their order and then in the opposite one.
        """
        if not self.attention.causal:
            self.code.each(count, inside)
            return
        b, thread, threads = self.builder, self.code.thread, self.code.threads
        rounds = b.udiv(b.add(i64(count - 1), threads), threads) if count else i64(0)
        opposite = b.sub(b.sub(threads, i64(1)), thread)

        def turn(number: Any, _: Sequence[Any]) -> None:
            odd = b.trunc(number, ir().IntType(1))
            place = b.add(b.mul(number, threads), b.select(odd, opposite, thread))
            with b.if_then(b.icmp_signed("<", place, i64(count))):
                inside(place)

        loop(b, i64(0), rounds, 1, turn)

    def clear(self, pointer: Any, elements: Number) -> None:
        """Zeros in scratch memory; a multiple of a vector."""
        nothing = self.number(0.0)

        def one(at: Any, _: Sequence[Any]) -> None:
            self.put(nothing, pointer, at)

        loop(self.builder, i64(0), as_value(elements), self.attention.lanes, one)

    def each_block(
        self,
        start: Any,
        stop: Any,
        inside: Callable[[Any, Any, list[Lane]], Sequence[Lane] | None],
        carried: Sequence[Lane] = (),
    ) -> list[Lane]:
        """``inside(first key, keys, values)`` for blocks of keys."""
        b = self.builder
        block = self.attention.block

        def one(first: Any, values: Sequence[Any]) -> Sequence[Any]:
            count = minimum(b, i64(block), b.sub(stop, first))
            following = inside(first, count, [Lane(b, value) for value in values])
            return [item.value for item in following or ()]

        last = loop(b, start, stop, block, one, [item.value for item in carried])
        return [Lane(b, value) for value in last]
