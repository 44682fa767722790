"""The forward pass of attention: a panel of queries goes over blocks of keys and keeps an online softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ....codegen.ir.emit import ir, lane_mask, load, loop, minimum, offset
from ....codegen.ir.index import Index, i64
from ....codegen.ir.lanes import Lane
from ....codegen.ir.types import Pointer, Value
from .masks import transpose_kernel
from .parts import Parts
from .plan import Attention, Room


@dataclass(frozen=True)
class ForwardRoom:
    """Places in a thread's memory, in bytes.

    Attributes:
        queries: the panel of queries.
        gathered: its rows, where they are several heads'.
        scores: a block of scores, one row for each key.
        sums: the result, transposed.
        rows: the result, one row for each query.
        keys: a block of keys as numbers to compute with, where they are stored narrower.
        values: likewise of values.
        transposed: a block of the mask and of the bias, one row for each key.
        bytes: all of it.
    """

    queries: int
    gathered: int
    scores: int
    sums: int
    rows: int
    keys: int
    values: int
    transposed: dict[str, int]
    bytes: int


def forward_room(attention: Attention) -> ForwardRoom:
    """The memory that the forward kernel needs."""
    room, size = Room(), attention.size
    wide, wide_value = attention.padded(attention.width), attention.padded(attention.value_width)
    copied = attention.block if attention.is_narrow else 0
    return ForwardRoom(
        queries=room.take(attention.width * attention.panel, size),
        gathered=room.take(wide * attention.panel if attention.stack > 1 else 0, size),
        scores=room.take(attention.block * attention.panel, size),
        sums=room.take(wide_value * attention.panel, size),
        rows=room.take(wide_value * attention.panel, size),
        keys=room.take(copied * wide, size),
        values=room.take(copied * wide_value, size),
        transposed=transposed_room(attention, room),
        bytes=room.bytes,
    )


def transposed_room(attention: Attention, room: Room) -> dict[str, int]:
    """Where a block of the mask and of the bias is put, one row for each key."""
    return {
        name: room.take(attention.block * attention.panel, size)
        for name, size in (("mask", 1), ("bias", attention.size))
        if attention.is_transposed(name)
    }


class PanelQueries(NamedTuple):
    """The queries of one panel.

    Attributes:
        batch: whose they are.
        head: likewise.
        first: the first of them.
        valid: how many there are.
        start: the key at which the first query of all stands.
    """

    batch: Index
    head: Index
    first: Index
    valid: Value
    start: Index


class PanelScores:
    """The scores of one panel of queries, finished and exponentiated in place."""

    def __init__(self, parts: Parts, queries: PanelQueries, transposed: dict[str, int]) -> None:
        self.parts, self.transposed = parts, transposed
        self.batch, self.head, first, self.valid, start = queries
        self.first = first
        attention = parts.attention
        self.vectors = range(attention.tile.vectors)
        self.positions: list[Lane] = []
        if attention.causal or attention.window is not None:
            self.positions = [
                self._position(parts.indices.add(first, c * attention.lanes), start)
                for c in self.vectors
            ]

    def _position(self, number: Index, start: Index) -> Lane:
        """Where the queries of a vector stand among the keys."""
        parts, attention, b = self.parts, self.parts.attention, self.parts.builder
        if attention.stack == 1:
            return parts.integers(parts.indices.add(number, start))
        numbers = parts.integers(number)
        within = b.urem(numbers.value, numbers.constant(attention.queries_of_head).value)
        return numbers.of(within) + parts.spread(b.trunc(i64(start), ir().IntType(32)))

    def _turn(self, key: Value, keys: Value) -> None:
        """Turn the mask and the bias of a block of keys."""
        parts, attention = self.parts, self.parts.attention
        for name, position in self.transposed.items():
            item = attention.operands[name]
            turn = transpose_kernel(parts.code.module, item.dtype, attention.panel, attention.lanes)
            source = parts.address(name, self.batch, self.head, self.first, key)
            stride = i64(item.strides[2])
            parts.builder.call(turn, [keys, self.valid, source, stride, parts.own(position)])

    def _operand(self, name: str, row: Value, key: Value) -> list[Lane | None]:
        """The elements of a mask or bias at a key, which is a row of its block, for every vector of queries."""
        parts, attention = self.parts, self.parts.attention
        item = attention.operands.get(name)
        if item is None:
            return [None] * len(self.vectors)
        lanes = attention.lanes
        if name in self.transposed:
            block = parts.own(self.transposed[name])
            base = parts.indices.mul(row, attention.panel)
            if item.dtype != "bool":
                return [parts.vector(block, base, c * lanes) for c in self.vectors]
            return [
                parts.along(name, parts.moved(block, "bool", base, c * lanes), 1, None)
                for c in self.vectors
            ]
        element_address = parts.address(name, self.batch, self.head, self.first, key)
        stride = item.strides[2]
        if stride == 0:
            return [parts.scalar(name, element_address)] * len(self.vectors)
        found: list[Lane | None] = []
        whole = attention.queries % attention.panel == 0
        for c in self.vectors:
            start = parts.moved(element_address, item.dtype, c * lanes * stride)
            limit = None
            if not whole:
                left = parts.builder.sub(self.valid, i64(c * lanes))
                limit = Lane(parts.builder, lane_mask(parts.builder, left, lanes))
            found.append(parts.along(name, start, stride, limit))
        return found

    def finish(
        self,
        first: Value,
        count: Value,
        scores: Pointer,
        tops: Sequence[Lane],
        squashes: Pointer | None = None,
    ) -> list[Lane]:
        """Make scores of the products of ``count`` keys, and the maxima that they raise.

        ``squashes`` takes tanh(score / softcap), where a gradient needs it. Plain scores are left as they are:
        the maxima then are the products'.
        """
        parts, attention = self.parts, self.parts.attention
        width, lanes = attention.panel, attention.lanes
        self._turn(first, count)

        def finish_row(row: Value, tops: list[Lane]) -> list[Lane]:
            base = parts.indices.mul(row, width)
            key = parts.builder.add(first, row)
            masks, biases = self._operand("mask", row, key), self._operand("bias", row, key)
            number = parts.spread(parts.builder.trunc(key, ir().IntType(32)))
            following = []
            for c in self.vectors:
                score = parts.vector(scores, base, c * lanes)
                if not attention.is_plain:
                    seen = parts.seen(self.positions[c], number) if self.positions else None
                    score, squashed = parts.finished(score, seen, masks[c], biases[c])
                    parts.put(score, scores, base, c * lanes)
                    if squashes is not None and squashed is not None:
                        parts.put(squashed, squashes, base, c * lanes)
                following.append(tops[c].intrinsic("maxnum", score))
            return following

        return parts.rows(count, finish_row, tops)

    def shifted(self, scores: Pointer, base: Index, c: int, top: Lane) -> Lane:
        """A score less the maximum of its query."""
        parts, attention = self.parts, self.parts.attention
        score = parts.vector(scores, base, c * attention.lanes)
        if attention.is_plain:
            return score.fma(parts.number(attention.scale), -top)
        return score - top

    def scaled_tops(self, tops: Sequence[Lane]) -> list[Lane]:
        """The maxima of scores, from those that ``finish`` gives."""
        attention = self.parts.attention
        if not attention.is_plain:
            return list(tops)
        return [top * self.parts.number(attention.scale) for top in tops]

    def exponentiate(
        self, count: Value, scores: Pointer, tops: Sequence[Lane], totals: Sequence[Lane]
    ) -> list[Lane]:
        """exp(score - maximum) in place of ``count`` rows of scores, added to totals."""
        parts, attention = self.parts, self.parts.attention

        def exponentiate_row(row: Value, totals: list[Lane]) -> list[Lane]:
            base = parts.indices.mul(row, attention.panel)
            values = [parts.exp(self.shifted(scores, base, c, top)) for c, top in enumerate(tops)]
            for c, value in enumerate(values):
                parts.put(value, scores, base, c * attention.lanes)
            return [total + value for total, value in zip(totals, values, strict=True)]

        return parts.rows(count, exponentiate_row, totals)


def emit_forward(parts: Parts) -> None:
    """Panels of queries, shared out among the threads."""
    attention = parts.attention
    room = forward_room(attention)

    def unit(number: Value) -> None:
        batch, head, panel = parts.indices.split(
            number, (attention.batch, attention.heads, attention.panels)
        )
        _emit_panel(parts, room, batch, head, panel)

    parts.each_uneven(attention.batch * attention.heads * attention.panels, unit)


def _emit_panel(parts: Parts, room: ForwardRoom, batch: Index, head: Index, panel: Index) -> None:
    attention, b, indices = parts.attention, parts.builder, parts.indices
    width = attention.panel
    queries, scores, sums = parts.own(room.queries), parts.own(room.scores), parts.own(room.sums)
    first = indices.mul(panel, width)
    valid = minimum(b, i64(width), b.sub(i64(attention.queries), i64(first)))
    kv_head = indices.div(head, attention.group)
    start = parts.start(batch)
    if attention.stack > 1:
        _gather_panel(parts, room, batch, head, first, valid)
        low, high = parts.key_range(start, 0, attention.queries_of_head)
    else:
        parts.transposed_panel("q", attention.width, (batch, head, first), valid, queries)
        low, high = parts.key_range(start, first, indices.add(first, valid))
    parts.clear(sums, attention.value_width * width)
    work = PanelScores(parts, PanelQueries(batch, head, first, valid, start), room.transposed)
    count = attention.tile.vectors
    lowest, nothing = parts.lowest(), parts.number(0.0)

    def block(key: Value, keys: Value, held: list[Lane]) -> list[Lane]:
        tops, totals = held[:count], held[count:]
        rows = parts.block_rows(
            "k", attention.width, (batch, kv_head, key), keys, parts.own(room.keys)
        )
        parts.scores(keys, rows, attention.width, queries, scores)
        # Plain maxima are of products: those of before are kept so, and scaled when used.
        raised = work.finish(key, keys, scores, tops)
        old, new = work.scaled_tops(tops), work.scaled_tops(raised)
        factors = [parts.exp(a - c) for a, c in zip(old, new, strict=True)]
        totals = [total * factor for total, factor in zip(totals, factors, strict=True)]
        totals = work.exponentiate(keys, scores, new, totals)
        with b.if_then(b.icmp_signed(">", key, low)):
            _scale_rows(parts, sums, attention.value_width, factors)
        rows = parts.block_rows(
            "v", attention.value_width, (batch, kv_head, key), keys, parts.own(room.values)
        )
        parts.mixture(keys, rows, attention.value_width, scores, sums)
        return [*raised, *totals]

    ends = parts.each_block(low, high, block, [lowest] * count + [nothing] * count)
    _scale_rows(parts, sums, attention.value_width, [parts.inverse(end) for end in ends[count:]])
    rows = parts.own(room.rows)
    parts.transposed_back(attention.value_width, sums, rows)
    wide = attention.padded(attention.value_width)

    def row(i: Value, _: Sequence[Value]) -> None:
        base = indices.mul(i, wide)
        of_head, at = _query(parts, head, indices.add(first, i))
        parts.write_result(batch, of_head, at, lambda column: parts.vector(rows, base, column))

    loop(b, i64(0), valid, 1, row)


def _query(parts: Parts, head: Index, number: Index) -> tuple[Index, Index]:
    """Which head of the graph a query of a stack belongs to, and which of its queries it is."""
    attention, indices = parts.attention, parts.indices
    if attention.stack == 1:
        return head, number
    which, at = indices.split(number, (attention.stack, attention.queries_of_head))
    return indices.add(indices.mul(head, attention.stack), which), at


def _gather_panel(
    parts: Parts, room: ForwardRoom, batch: Index, head: Index, first: Index, valid: Value
) -> None:
    """Pack the queries of stacked heads as columns of a panel."""
    attention, b, indices = parts.attention, parts.builder, parts.indices
    item, rows = attention.operands["q"], parts.own(room.gathered)
    wide, lanes = attention.padded(attention.width), attention.lanes

    def row(i: Value, _: Sequence[Value]) -> None:
        source = parts.address("q", batch, *_query(parts, head, indices.add(first, i)))

        def vector(column: Index, _: int, mask: Value | None) -> None:
            value = load(b, offset(b, source, item.dtype, column), item.dtype, lanes, mask)
            parts.put(Lane(b, value), rows, indices.mul(i, wide), column)

        parts.write_row(attention.width, vector)

    loop(b, i64(0), valid, 1, row)
    parts.pack_panel(parts.dtype, attention.width, (rows, wide), valid, parts.own(room.queries))


def _scale_rows(parts: Parts, sums: Pointer, count: int, factors: Sequence[Lane]) -> None:
    """Multiply the rows of a transposed result by a factor for each query."""
    attention = parts.attention

    def emit_row(row: Value, _: list[Lane]) -> None:
        base = parts.indices.mul(row, attention.panel)
        for c, factor in enumerate(factors):
            value = parts.vector(sums, base, c * attention.lanes)
            parts.put(value * factor, sums, base, c * attention.lanes)

    parts.rows(count, emit_row)
