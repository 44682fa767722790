"""The gradients of attention of a few queries. As in decoding, lanes are keys for scores and columns for results.

Each part of the keys computes its exponentials first. When all parts are done, each knows the totals. It then computes the gradients of
its own keys and values, and its share of the queries' gradients; the shares are added in order at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....codegen.ir.emit import broadcast, ir, load, loop, minimum, offset
from ....codegen.ir.index import Index, i64
from ....codegen.ir.lanes import Lane
from ....codegen.ir.types import Pointer, Value
from ....codegen.problems.attention import GRADIENTS
from ....lower.plan import Spec
from .decode import (
    Query,
    dots,
    emit_exponentials,
    emit_scores,
    emit_sums,
    strided_loop,
    visible_range,
)
from .parts import Parts
from .plan import Attention, Room, made_offsets


@dataclass(frozen=True)
class FewRoom:
    """Places in shared memory, in bytes, and the number of each gradient that is wanted.

    Attributes:
        scores: of every query, its parts one after the other; ``slopes`` their gradients.
        records: for each query and part the maximum, the total, and the total of probabilities times slopes.
        queries: for each query and part its share of the gradient.
    """

    results: dict[str, int]
    scores: int
    slopes: int
    records: int
    queries: int


def suits_few(spec: Spec, attention: Attention) -> bool:
    """Whether the gradients wanted are these: none of a bias, and no cap."""
    indices = {output.attrs["index"] for output in spec.body.outputs}
    plain = attention.softcap is None and GRADIENTS.index("bias") not in indices
    return attention.has_few_queries and plain and not attention.is_empty and attention.keys > 0


def few_room(spec: Spec, attention: Attention, shared: Room) -> FewRoom:
    """The memory that the gradients of a few queries need."""
    rows = attention.batch * attention.heads * attention.queries
    size = attention.size
    return FewRoom(
        {GRADIENTS[output.attrs["index"]]: i for i, output in enumerate(spec.body.outputs)},
        shared.take(rows * attention.parts * attention.part, size),
        shared.take(rows * attention.parts * attention.part, size),
        shared.take(rows * attention.parts * attention.lanes, size),
        shared.take(rows * attention.parts * attention.padded(attention.width), size),
    )


def emit_few(parts: Parts) -> None:
    """Both passes over the parts of keys, then the sums for queries."""
    FewGradients(parts).emit()


class FewGradients:
    """The code of the gradients of a few queries."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.attention, self.builder = parts, parts.attention, parts.builder
        shared = Room()
        made_offsets(parts.code.spec, parts.attention, shared)
        self.room = few_room(parts.code.spec, parts.attention, shared)
        self.rows = (self.attention.batch, self.attention.heads, self.attention.queries)

    def emit(self) -> None:
        """All of it."""
        attention, parts = self.attention, self.parts
        sizes = (attention.batch, attention.kv_heads, attention.parts)
        total = sizes[0] * sizes[1] * sizes[2]

        def first(number: Value, _: Sequence[Value]) -> None:
            self._exponentiate(*parts.indices.split(number, sizes))

        def second(number: Value, _: Sequence[Value]) -> None:
            self._differentiate(*parts.indices.split(number, sizes))

        strided_loop(parts, total, first)
        parts.code.barrier()
        strided_loop(parts, total, second)
        if "q" in self.room.results:
            parts.code.barrier()
            count = self.rows[0] * self.rows[1] * self.rows[2]
            parts.code.each(count, self._write_query)

    # ------------------------------------------------------------- places

    def _each_row(
        self, batch: Index, kv_head: Index, body: Callable[[Index, Index, Index], None]
    ) -> None:
        """``body(head, query, row)`` for the queries that share a key head."""
        attention, indices = self.attention, self.parts.indices

        def emit_unit(number: Value, _: Sequence[Value]) -> None:
            member, query = indices.split(number, (attention.group, attention.queries))
            head = indices.add(indices.mul(kv_head, attention.group), member)
            body(head, query, indices.offset((batch, head, query), self.rows))

        loop(self.builder, i64(0), i64(attention.group * attention.queries), 1, emit_unit)

    def _address(
        self, start: int, row: Index, part: Index, elements: int, at: Index = 0
    ) -> Pointer:
        indices = self.parts.indices
        number = indices.add(indices.mul(row, self.attention.parts), part)
        distance = indices.add(indices.mul(number, elements), at)
        return offset(self.builder, self.parts.shared(start), self.parts.dtype, distance)

    def _scores(self, start: int, row: Index, part: Index, low: Value) -> Pointer:
        """The scores (or slopes) of a part from the key ``low`` on."""
        length = self.attention.part
        begin = i64(self.parts.indices.mul(part, length))
        return self._address(start, row, part, length, self.builder.sub(low, begin))

    def _record(self, row: Index, part: Index, item: int) -> Pointer:
        return self._address(self.room.records, row, part, self.attention.lanes, item)

    # ------------------------------------------------------------- the first pass

    def _exponentiate(self, batch: Index, kv_head: Index, part: Index) -> None:
        attention, b, parts, room = self.attention, self.builder, self.parts, self.room
        start = parts.start(batch)
        keys = visible_range(parts, start, part)
        low, high = keys

        def emit_head(head: Index, query: Index, row: Index) -> None:
            for position in (room.scores, room.slopes):
                # Keys that are not seen have no gradient.
                parts.clear(self._address(position, row, part, attention.part), attention.part)
            scores = self._scores(room.scores, row, part, low)
            slopes = self._scores(room.slopes, row, part, low)
            top = emit_scores(parts, Query(batch, head, kv_head, query), start, keys, scores)
            gradient = parts.address("dy", batch, head, query)

            def block(key: Value, _: Sequence[Value]) -> None:
                found = dots(parts, gradient, "v", (batch, kv_head), key)
                parts.put(found, slopes, b.sub(key, low))

            loop(b, low, high, attention.lanes, block)
            totals = emit_exponentials(parts, top, keys, scores, slopes)
            for i, value in enumerate((top, *totals)):
                b.store(value, self._record(row, part, i))

        self._each_row(batch, kv_head, emit_head)

    # ------------------------------------------------------------- the second pass

    def _read(self, row: Index, part: Index, item: int) -> Lane:
        address = self._record(row, part, item)
        return self.parts.spread(self.builder.load(address, typ=self.parts.number(0.0).element))

    def _statistics(self, row: Index, part: Index) -> tuple[Lane, Lane]:
        """What a part's exponentials are to be multiplied by, and the mean slope."""
        b, parts = self.builder, self.parts
        count = i64(self.attention.parts)

        def raised(other: Value, held: Sequence[Value]) -> list[Value]:
            return [Lane(b, held[0]).intrinsic("maxnum", self._read(row, other, 0)).value]

        (top,) = loop(b, i64(0), count, 1, raised, [parts.lowest().value])

        def summed(other: Value, held: Sequence[Value]) -> list[Value]:
            factor = parts.exp(self._read(row, other, 0) - Lane(b, top))
            return [
                self._read(row, other, 1 + i).fma(factor, Lane(b, total)).value
                for i, total in enumerate(held)
            ]

        total, slope = loop(b, i64(0), count, 1, summed, [parts.number(0.0).value] * 2)
        inverse = parts.inverse(Lane(b, total))
        own = parts.exp(self._read(row, part, 0) - Lane(b, top))
        return own * inverse, Lane(b, slope) * inverse

    def _differentiate(self, batch: Index, kv_head: Index, part: Index) -> None:
        attention, b, parts, room = self.attention, self.builder, self.parts, self.room
        keys = visible_range(parts, parts.start(batch), part)
        low, high = keys
        wide = attention.padded(attention.width)

        def emit_head(head: Index, query: Index, row: Index) -> None:
            factor, mean = self._statistics(row, part)
            scores = self._scores(room.scores, row, part, low)
            slopes = self._scores(room.slopes, row, part, low)

            def block(at: Value, _: Sequence[Value]) -> None:
                probability = parts.vector(scores, at) * factor
                gradient = probability * (parts.vector(slopes, at) - mean)
                parts.put(probability, scores, at)
                parts.put(gradient * parts.number(attention.scale), slopes, at)

            loop(b, i64(0), b.sub(high, low), attention.lanes, block)
            if "q" in room.results:
                record = self._address(room.queries, row, part, wide)
                emit_sums(parts, "k", (batch, kv_head), keys, slopes, record)

        self._each_row(batch, kv_head, emit_head)
        first = i64(parts.indices.mul(part, attention.part))
        after = minimum(b, b.add(first, i64(attention.part)), i64(attention.keys))
        for name, operand, position in (("k", "q", room.slopes), ("v", "dy", room.scores)):
            if name in room.results:
                self._write_keys(name, operand, position, (batch, kv_head, part), (first, after))

    def _write_keys(
        self,
        name: str,
        operand: str,
        position: int,
        owner: tuple[Index, Index, Index],
        ends: tuple[Value, Value],
    ) -> None:
        """The gradients of a part's keys (or values): the weighted sum of queries (or gradients).

        ``owner`` says whose part it is: a batch, a head of keys, and its number.
        """
        batch, kv_head, part = owner
        attention, b, parts = self.attention, self.builder, self.parts
        width = attention.width if name == "k" else attention.value_width
        lanes = attention.lanes
        rest = width % lanes
        kind = ir().VectorType(ir().IntType(1), lanes)
        last = ir().Constant(kind, [int(lane < rest) for lane in range(lanes)])

        def emit_key(key: Value, _: Sequence[Value]) -> None:
            def value_at(column: Index) -> Lane:
                # The columns of a last vector that is not full are the only ones known beforehand.
                mask = last if isinstance(column, int) else None

                def add(number: Value, held: Sequence[Value]) -> list[Value]:
                    member, query = parts.indices.split(
                        number, (attention.group, attention.queries)
                    )
                    head = parts.indices.add(parts.indices.mul(kv_head, attention.group), member)
                    row = parts.indices.offset((batch, head, query), self.rows)
                    weights = self._scores(position, row, part, key)
                    weight = broadcast(b, load(b, weights, parts.dtype, 1), lanes)
                    source = parts.moved(
                        parts.address(operand, batch, head, query), attention.dtype, column
                    )
                    value = Lane(b, load(b, source, attention.dtype, lanes, mask))
                    return [value.fma(Lane(b, weight), Lane(b, held[0])).value]

                count = i64(attention.group * attention.queries)
                (total,) = loop(b, i64(0), count, 1, add, [parts.number(0.0).value])
                return Lane(b, total)

            index = parts.result_index(batch, kv_head, key, 0)[:3]
            parts.write_gradient(self.room.results[name], index, width, value_at)

        loop(b, *ends, 1, emit_key)

    # ------------------------------------------------------------- the sums for queries

    def _write_query(self, row: Value) -> None:
        attention, b, parts = self.attention, self.builder, self.parts
        batch, head, query = parts.indices.split(row, self.rows)
        wide = attention.padded(attention.width)

        def value_at(column: Index) -> Lane:
            def add(part: Value, held: Sequence[Value]) -> list[Value]:
                address = self._address(self.room.queries, row, part, wide)
                return [(Lane(b, held[0]) + parts.vector(address, column)).value]

            zero = parts.number(0.0).value
            (total,) = loop(b, i64(0), i64(attention.parts), 1, add, [zero])
            return Lane(b, total)

        index = parts.result_index(batch, head, query, 0)[:3]
        parts.write_gradient(self.room.results["q"], index, attention.width, value_at)
