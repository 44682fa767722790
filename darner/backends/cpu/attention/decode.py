"""Attention of a few queries over many keys, as in decoding. Lanes are keys while scores are computed, and columns of the result afterwards.

The keys of each head are split into parts; when all parts are done, their sums are combined in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from ....codegen.ir.emit import (
    broadcast,
    ir,
    lane_mask,
    lane_numbers,
    lane_sum,
    load,
    loop,
    maximum,
    minimum,
    offset,
)
from ....codegen.ir.index import Index, i64
from ....codegen.ir.lanes import Lane, function_of, mangled
from ....codegen.ir.types import Builder, LoopBody, Pointer, Value
from .parts import Parts
from .plan import Attention, Room, made_offsets

MOST_VECTORS = 4
"""Vectors of a result that are summed in one pass over the values."""


@dataclass(frozen=True)
class DecodeRoom:
    """Places in bytes, and the elements between two records.

    Attributes:
        scores: of one query and part, in a thread's memory.
        bytes: of a thread's memory.
        records: in shared memory: for each part and query its sums, their maximum and their total.
        record: elements of a record.
    """

    scores: int
    bytes: int
    records: int
    record: int


def decode_room(attention: Attention, shared: Room) -> DecodeRoom:
    """The memory that decoding needs."""
    own = Room()
    scores = own.take(attention.part, attention.size)
    record = attention.padded(attention.value_width) + attention.lanes
    count = attention.batch * attention.heads * attention.queries * attention.parts
    return DecodeRoom(scores, own.bytes, shared.take(record * count, attention.size), record)


class KeyRange(NamedTuple):
    """The keys from ``low`` to before ``high``."""

    low: Value
    high: Value


class Query(NamedTuple):
    """Which query it is: of a batch, a head with its head of keys, and a row."""

    batch: Index
    head: Index
    kv_head: Index
    row: Index


def emit_decode(parts: Parts) -> None:
    """Parts of keys, shared out among the threads, then the sum of parts."""
    attention, code = parts.attention, parts.code
    shared = Room()
    made_offsets(code.spec, attention, shared)
    room = decode_room(attention, shared)
    sizes = (attention.batch, attention.kv_heads, attention.parts)

    def unit(number: Value, _: Sequence[Value]) -> None:
        _emit_part(parts, room, *parts.indices.split(number, sizes))

    # One after the other to the threads in turn: the parts at the end may have nothing to see.
    total = sizes[0] * sizes[1] * sizes[2]
    if total:
        strided_loop(parts, total, unit)
        code.barrier()
    rows = (attention.batch, attention.heads, attention.queries)
    code.each(
        rows[0] * rows[1] * rows[2],
        lambda number: _emit_sum(parts, room, number, *parts.indices.split(number, rows)),
    )


def strided_loop(parts: Parts, total: int, body: Callable[[Value, Sequence[Value]], None]) -> None:
    """``body(i, carried)`` for every ``threads``-th number from this thread's own on."""
    b, code = parts.builder, parts.code
    turns = b.udiv(b.sub(b.add(i64(total), code.threads), b.add(code.thread, i64(1))), code.threads)

    def turn(number: Value, held: Sequence[Value]) -> None:
        body(b.add(code.thread, b.mul(number, code.threads)), held)

    loop(b, i64(0), turns, 1, turn)


def _record(parts: Parts, room: DecodeRoom, row: Index, part: Index) -> Pointer:
    position = parts.indices.add(parts.indices.mul(row, parts.attention.parts), part)
    return offset(
        parts.builder,
        parts.shared(room.records),
        parts.dtype,
        parts.indices.mul(position, room.record),
    )


def _emit_part(parts: Parts, room: DecodeRoom, batch: Index, kv_head: Index, part: Index) -> None:
    attention, b, indices = parts.attention, parts.builder, parts.indices
    start = parts.start(batch)
    keys = visible_range(parts, start, part)
    scores = parts.own(room.scores)

    def query(number: Value, _: Sequence[Value]) -> None:
        group, row = indices.split(number, (attention.group, attention.queries))
        head = indices.add(indices.mul(kv_head, attention.group), group)
        at = indices.offset(
            (batch, head, row), (attention.batch, attention.heads, attention.queries)
        )
        record = _record(parts, room, at, part)
        top = emit_scores(parts, Query(batch, head, kv_head, row), start, keys, scores)
        (total,) = emit_exponentials(parts, top, keys, scores)
        emit_sums(parts, "v", (batch, kv_head), keys, scores, record)
        wide = attention.padded(attention.value_width)
        b.store(top, offset(b, record, parts.dtype, wide))
        b.store(total, offset(b, record, parts.dtype, wide + 1))

    loop(b, i64(0), i64(attention.group * attention.queries), 1, query)


def visible_range(parts: Parts, start: Index, part: Index) -> KeyRange:
    """The keys of a part that a query may see, from a whole vector on."""
    attention, b, indices = parts.attention, parts.builder, parts.indices
    low = i64(indices.mul(part, attention.part))
    high = minimum(b, i64(attention.keys), b.add(low, i64(attention.part)))
    if attention.causal:
        high = minimum(b, high, i64(indices.add(start, attention.queries)))
    if attention.window is not None:
        near = i64(indices.add(start, 1 - attention.window))
        near = b.mul(b.sdiv(maximum(b, near, i64(0)), i64(attention.lanes)), i64(attention.lanes))
        low = maximum(b, low, near)
        if not attention.causal:
            end = indices.add(start, attention.queries + attention.window - 1)
            high = minimum(b, high, i64(end))
    return KeyRange(low, high)


def dots(parts: Parts, query: Pointer, name: str, index: Sequence[Index], key: Value) -> Lane:
    """The products of a query (or a gradient) with a vector of keys (or values) from ``key`` on; the last stands for those beyond."""
    attention, b = parts.attention, parts.builder
    lanes, dtype = attention.lanes, attention.dtype
    width = attention.width if name == "k" else attention.value_width
    end = i64(attention.keys - 1)
    rows = [
        parts.address(name, *index, minimum(b, b.add(key, i64(lane)), end)) for lane in range(lanes)
    ]

    def products(column: Value, sums: Sequence[Value], mask: Value | None = None) -> list[Value]:
        own = load(b, offset(b, query, dtype, column), dtype, lanes, mask)
        found = []
        for position, total in zip(rows, sums, strict=True):
            other = load(b, offset(b, position, dtype, column), dtype, lanes, mask)
            found.append(Lane(b, own).fma(Lane(b, other), Lane(b, total)).value)
        return found

    sums: list[Value] = [parts.number(0.0).value] * lanes
    whole = width // lanes * lanes
    if whole:
        sums = loop(b, i64(0), i64(whole), lanes, products, sums)
    if width % lanes:
        mask = lane_mask(b, i64(width % lanes), lanes)
        sums = products(i64(whole), sums, mask)
    return Lane(b, sum_of_each(b, sums))


def emit_scores(parts: Parts, query: Query, start: Index, keys: KeyRange, scores: Pointer) -> Value:
    """The scores of a query with the keys of a part, one vector of keys after the other, and their maximum."""
    attention, b, indices = parts.attention, parts.builder, parts.indices
    lanes = attention.lanes
    batch, head, kv_head, row = query
    low, high = keys
    vector = parts.address("q", batch, head, row)
    position = b.trunc(i64(indices.add(row, start)), ir().IntType(32))

    def block(key: Value, tops: Sequence[Value]) -> Sequence[Value]:
        score = dots(parts, vector, "k", (batch, kv_head), key)
        left = b.sub(high, key)
        inside = Lane(b, lane_mask(b, left, lanes))
        masks = [_operand(parts, name, batch, head, row, key) for name in ("mask", "bias")]
        seen = parts.seen(parts.spread(position), parts.integers(key))
        score, _ = parts.finished(score, seen, *masks)
        score = inside.choose(score, -inf)
        parts.put(score, scores, b.sub(key, low))
        return [Lane(b, tops[0]).intrinsic("maxnum", score).value]

    (top,) = loop(b, low, high, lanes, block, [parts.number(-inf).value])
    highest = _across(parts, "fmax", top)
    if attention.may_see_nothing:
        # -inf less the lowest number is -inf; less itself it would be NaN.
        least = ir().Constant(highest.type, float(np.finfo(parts.kind.numpy).min))
        highest = Lane(b, highest).intrinsic("maxnum", Lane(b, least)).value
    return highest


def _operand(
    parts: Parts, name: str, batch: Index, head: Index, row: Index, key: Value
) -> Lane | None:
    """The elements of a mask or bias at a vector of keys."""
    attention, b = parts.attention, parts.builder
    item = attention.operands.get(name)
    if item is None:
        return None
    element_address = parts.address(name, batch, head, row, key)
    limit = None
    if attention.keys % attention.lanes:
        left = b.sub(i64(attention.keys), key)
        limit = Lane(b, lane_mask(b, left, attention.lanes))
    return parts.along(name, element_address, item.strides[3], limit)


def _across(parts: Parts, name: str, value: Value) -> Value:
    """A vector's lanes taken together."""
    full = f"llvm.vector.reduce.{name}.{mangled(value.type)}"
    function = function_of(parts.code.module, full, value.type.element, [value.type])
    return parts.builder.call(function, [value])


def sum_of_each(builder: Builder, rows: Sequence[Value]) -> Value:
    """A vector whose lane i is the sum of the lanes of the i-th of as many vectors."""
    rows = list(rows)
    lanes = len(rows)
    distance = 1
    while distance < lanes:
        # Lanes with the distance's bit clear take the first of a pair, the others the second.
        kept = [i if not i & distance else lanes + i for i in range(lanes)]
        moved = [i ^ distance if not i & distance else lanes + (i ^ distance) for i in range(lanes)]
        following = []
        for first, second in zip(rows[0::2], rows[1::2], strict=True):
            a = builder.shuffle_vector(first, second, lane_numbers(kept))
            c = builder.shuffle_vector(first, second, lane_numbers(moved))
            following.append(builder.fadd(a, c))
        rows = following
        distance *= 2
    return rows[0]


def emit_exponentials(
    parts: Parts,
    top: Value,
    keys: KeyRange,
    scores: Pointer,
    slopes: Pointer | None = None,
) -> list[Value]:
    """exp(score - maximum) in place of the scores, and the sum of all; of all times slopes too, where these are given."""
    b = parts.builder
    highest = parts.spread(top)

    def add_vector(at: Value, totals: Sequence[Value]) -> Sequence[Value]:
        value = parts.exp(parts.vector(scores, at) - highest)
        parts.put(value, scores, at)
        found = [(Lane(b, totals[0]) + value).value]
        if slopes is not None:
            found.append(value.fma(parts.vector(slopes, at), Lane(b, totals[1])).value)
        return found

    zeros = [parts.number(0.0).value] * (1 if slopes is None else 2)
    totals = loop(b, i64(0), b.sub(keys.high, keys.low), parts.attention.lanes, add_vector, zeros)
    return [lane_sum(b, total) for total in totals]


def emit_sums(
    parts: Parts,
    name: str,
    index: Sequence[Index],
    keys: KeyRange,
    weights: Pointer,
    record: Pointer,
) -> None:
    """The values (or keys) of a part, weighted: a few vectors of their width at a time."""
    attention, b = parts.attention, parts.builder
    lanes = attention.lanes
    item = attention.operands[name]
    value_width = attention.width if name == "k" else attention.value_width
    values = parts.address(name, *index, keys.low)
    count = b.sub(keys.high, keys.low)
    vectors = attention.padded(value_width) // lanes
    rest = value_width % lanes
    kind = ir().VectorType(ir().IntType(1), lanes)
    last = ir().Constant(kind, [int(lane < rest) for lane in range(lanes)]) if rest else None

    def columns(first: Index, width: int, masked: bool) -> None:
        def some_keys(step: int) -> LoopBody:
            def add_key(key: Value, sums: Sequence[Value]) -> list[Value]:
                found = list(sums)
                for ahead in range(step):
                    at = parts.indices.add(key, ahead)
                    weight = load(b, offset(b, weights, parts.dtype, at), parts.dtype, 1)
                    spread = Lane(b, broadcast(b, weight, lanes))
                    line = parts.indices.add(parts.indices.mul(at, item.strides[2]), first)
                    for c in range(width):
                        address = offset(b, values, item.dtype, line, c * lanes)
                        mask = last if masked and c == width - 1 else None
                        value = Lane(b, load(b, address, item.dtype, lanes, mask))
                        own = ahead % 2 * width + c
                        found[own] = spread.fma(value, Lane(b, found[own])).value
                return found

            return add_key

        sums = [parts.number(0.0).value] * (2 * width)
        even = b.and_(count, i64(-2))
        # A negative count is none.
        even = maximum(b, even, i64(0))
        sums = loop(b, i64(0), even, 2, some_keys(2), sums)
        sums = loop(b, even, count, 1, some_keys(1), sums)
        for c in range(width):
            total = Lane(b, sums[c]) + Lane(b, sums[width + c])
            parts.put(total, record, first, c * lanes)

    full = vectors if last is None else vectors - 1
    whole = full // MOST_VECTORS

    def group(number: Value, _: Sequence[Value]) -> None:
        columns(parts.indices.mul(number, MOST_VECTORS * lanes), MOST_VECTORS, False)

    if whole:
        loop(b, i64(0), i64(whole), 1, group)
    left = vectors - whole * MOST_VECTORS
    if left:
        columns(whole * MOST_VECTORS * lanes, left, last is not None)


def _emit_sum(
    parts: Parts, room: DecodeRoom, number: Value, batch: Index, head: Index, row: Index
) -> None:
    """The result of a query from those of all parts."""
    attention, b = parts.attention, parts.builder
    wide = attention.padded(attention.value_width)
    total_parts = i64(attention.parts)

    def at(part: Value, position: int) -> Value:
        return b.load(
            offset(b, _record(parts, room, number, part), parts.dtype, position),
            typ=parts.number(0.0).element,
        )

    def highest(part: Value, held: Sequence[Value]) -> list[Value]:
        return [Lane(b, held[0]).intrinsic("maxnum", Lane(b, at(part, wide))).value]

    (top,) = loop(
        b, i64(0), total_parts, 1, highest, [ir().Constant(parts.number(0.0).element, -inf)]
    )
    highest_of_all = parts.spread(top)

    def factor(part: Value) -> Lane:
        return parts.exp(parts.spread(at(part, wide)) - highest_of_all)

    def summed(part: Value, held: Sequence[Value]) -> list[Value]:
        own = parts.spread(at(part, wide + 1)) * factor(part)
        return [(Lane(b, held[0]) + own).value]

    (total,) = loop(b, i64(0), total_parts, 1, summed, [parts.number(0.0).value])
    inverse = parts.inverse(Lane(b, total))

    def value_at(column: Index) -> Lane:
        def add_part(part: Value, held: Sequence[Value]) -> list[Value]:
            value = parts.vector(_record(parts, room, number, part), column)
            return [value.fma(factor(part), Lane(b, held[0])).value]

        (found,) = loop(b, i64(0), total_parts, 1, add_part, [parts.number(0.0).value])
        return Lane(b, found) * inverse

    parts.write_result(batch, head, row, value_at)
