"""Attention of a few queries in a stage: parts of the keys are shared out to blocks, and whoever reads the result puts the parts together.

A block reads each key and value of its part once, for all queries of the heads that share them: some lanes have a key between them, each of these eight of its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ....codegen.ir.index import Number
from ....codegen.ir.math import emit
from ....codegen.problems.attention import Described
from ....codegen.simt.builder import Memory, Operand, Value, Variable
from ....codegen.simt.dispatch import operand_number
from ....codegen.simt.elements import ThreadElements
from ....codegen.simt.machine import power_above
from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.errors import InternalError
from ....graph.integers import ceil_div
from ....lower.specs import sizes
from .code import WARP, Code, StageElements
from .forms import Form, Place, parts_of
from .light import each
from .roles import attention_of
from .rows import numbers_of

EACH = 8
"""Numbers of a key that a lane has."""
TOGETHER = 8
"""Groups of lanes whose sums are read at a time."""
MOST_TOUCHED = 4
"""Keys of a group of lanes that are brought near before a block waits."""
LEAST_EXPONENT = -87.0
FARTHEST = 1 << 29
LOWEST = float(np.finfo(np.float32).min)


class Part(NamedTuple):
    """A part of the keys of a head.

    Attributes:
        first: the first of its queries, among those of the heads that share keys.
        head: the head of keys, of the whole batch.
        part: which part.
        batch: of the head.
        kv: the head among those of its batch.
        start: where the first query stands among the keys.
        low: the first key.
        high: what is behind the last.
    """

    first: Value
    head: Value
    part: Value
    batch: Value
    kv: Value
    start: Value
    low: Value
    high: Value


class Attention:
    """An attention in a stage.

    Args:
        code: of the chain.
        form: of the stage.
    """

    def __init__(self, code: Code, form: Form) -> None:
        if form.main is None:
            raise InternalError("a stage of an attention has no attention")
        self.code, self.builder, self.work = code, code.builder, form.main
        self.spec = code.spec(self.work)
        found = attention_of(self.spec)
        if found is None:
            raise InternalError("a kernel that is no attention came to the code of those")
        self.about: Described = found
        self.parts = parts_of(self.spec, code.shape.blocks)
        self.heads = found.batch * found.kv_heads
        self.all_rows = found.group * found.queries
        self.rows = self._rows_together()
        self.width = found.width
        self.lanes = power_above(self.width // EACH)
        self.groups = code.threads // self.lanes
        b = self.builder
        self.lane = b.let(b.local % self.lanes, "lane")
        self.own = b.let(b.local // self.lanes, "group")
        self.known: Part | None = None

    def prepare(self) -> None:
        """Bring keys and values near, where a block has one part of them; what the stage replaces of them is read later."""
        if self.items > self.code.shape.blocks:
            return
        b = self.builder
        self.known = self._part_of(b.let(b.index(self.code.shape.blocks - 1) - b.group, "item"))
        most = ceil_div(ceil_div(self.about.keys, self.parts), self.groups)
        for number in range(min(most, MOST_TOUCHED)):
            key = b.let(self.known.low + (self.own + number * self.groups))
            near = b.let(b.min(key, self.about.keys - 1))
            for name in ("k", "v"):
                memory, at = self._vectors(name, self.known, near)
                self.code.exchange.touch(memory, at)

    @property
    def items(self) -> int:
        """Pieces of work: some queries of the heads that share keys, and a part of these."""
        return self.heads * self.parts * (self.all_rows // self.rows)

    def _rows_together(self) -> int:
        """Queries that a block works on at a time: as few as there are blocks for, as they are one after the other."""
        rows, blocks = self.all_rows, self.code.shape.blocks
        some = [n for n in range(1, rows + 1) if rows % n == 0]
        fits = (n for n in some if self.heads * self.parts * (rows // n) <= blocks)
        return next(fits, rows)

    def place(self, name: str) -> tuple[Place, int]:
        """Where an operand is, and the number of its first element."""
        operand = self.about.operands[name]
        return self.work.operands[operand_number(operand.base)], operand.offset

    # ------------------------------------------------------------- a part of the keys

    def write(self) -> None:
        """The parts of this block: the last blocks have them, as the first have more of the products."""
        b, blocks = self.builder, self.code.shape.blocks
        if self.known is not None:
            self._write_part(self.known)
            return
        with b.for_(b.index(blocks - 1) - b.group, self.items, blocks, name="item") as item:
            self._write_part(self._part_of(item))

    def _part_of(self, item: Value) -> Part:
        """The part of the keys that an item is."""
        b, about = self.builder, self.about
        splits = self.all_rows // self.rows
        head, part = b.let(item // (self.parts * splits), "head"), b.let(item % self.parts, "part")
        first = b.let(item // self.parts % splits * self.rows, "first_row")
        batch, kv = b.let(head // about.kv_heads), b.let(head % about.kv_heads)
        start = self._start(self.code.elements(self.work), batch)
        return Part(first, head, part, batch, kv, start, *self._range(start, part))

    def _start(self, elements: StageElements, batch: Value) -> Value:
        """Where the first query stands among the keys."""
        b, node = self.builder, self.about.offset
        if node is None:
            return b.as_signed(b.let(b.index(self.about.keys - self.about.queries)))
        one = node.rank == 0 or int(node.shape[0]) == 1
        index: list[Number] = [] if node.rank == 0 else [0 if one else batch]
        found = elements.places.clamp(elements.integer(node, index), -FARTHEST, FARTHEST)
        return b.let(b.as_signed(elements.places.value(found)), "start")

    def _write_part(self, part: Part) -> None:
        b, about = self.builder, self.about
        queries = self._queries(part)
        tops = [b.variable(LOWEST, "top", dtypes.f32) for _ in range(self.rows)]
        totals = [b.variable(0.0, "total", dtypes.f32) for _ in range(self.rows)]
        sums = [[b.variable(0.0, "sum", dtypes.f32) for _ in range(EACH)] for _ in range(self.rows)]
        first = b.variable(part.low, "first")
        with b.while_(lambda: first < part.high):
            key = b.let(first + self.own, "key")
            near = b.let(b.min(key, about.keys - 1))
            keys, values = (self._numbers(name, part, near) for name in ("k", "v"))
            for r in range(self.rows):
                score = self._score(queries, r, keys, key, part)
                self._add(score, values, tops[r], totals[r], sums[r])
            first.set(first + self.groups)
        self._together(part, tops, totals, sums)

    def _queries(self, part: Part) -> Memory:
        """The queries of the heads that share keys, as f32."""
        code, b, about = self.code, self.builder, self.about
        place, offset = self.place("q")
        strides = about.operands["q"].strides
        source = code.memory(place)
        memory = code.shared(dtypes.f32, (self.rows, self.lanes * EACH), "queries")

        def body(at: Value) -> None:
            row, number = b.let(at // (self.lanes * EACH)), b.let(at % (self.lanes * EACH))
            query = b.let(row + part.first)
            query_head = b.let(part.kv * about.group + query // about.queries)
            inside = b.let(b.min(number, self.width - 1))
            place_of = part.batch * strides[0] + query_head * strides[1]
            place_of = (
                place_of + (query % about.queries) * strides[2] + inside * strides[3] + offset
            )
            elements = code.elements(self.work)
            value = elements.registers.load(source, b.let(place_of), place.dtype)
            value = elements.registers.cast(value, place.dtype, dtypes.f32)
            b.store(b.choose(number < self.width, value, 0.0), memory, (row, number))

        each(code, self.rows * self.lanes * EACH, body)
        code.barrier()
        return memory

    def _range(self, start: Value, part: Value) -> tuple[Value, Value]:
        """The first key of a part and what is behind its last, of those that any query sees."""
        b, about = self.builder, self.about
        low: Number = b.as_signed(b.index(0))
        high: Number = b.as_signed(b.index(about.keys))
        window = None if about.window is None else min(about.window, FARTHEST)
        if about.causal:
            high = b.min(high, start + about.queries)
        if window is not None:
            low = b.max(low, start - (window - 1))
            if not about.causal:
                high = b.min(high, start + (about.queries + window - 1))
        begin = b.let(b.as_unsigned(low), "begin")
        end = b.let(b.as_unsigned(b.max(high, 0)), "end")
        seen = b.let(b.choose(end > begin, end - begin, 0), "seen")
        length = b.let((seen + (self.parts - 1)) // self.parts, "length")
        first = b.let(b.min(begin + part * length, end), "low")
        return first, b.let(b.min(first + length, end), "high")

    def _vectors(self, name: str, part: Part, key: Value) -> tuple[Memory, Value]:
        """Where the numbers of a key or value that this lane has lie, in items of 16 bytes."""
        code, b, about = self.code, self.builder, self.about
        place, offset = self.place(name)
        strides = about.operands[name].strides
        lane = self.lane
        if self.lanes * EACH != self.width:
            lane = b.let(b.min(lane, self.width // EACH - 1))
        start = part.batch * strides[0] + part.kv * strides[1] + key * strides[2]
        at = b.let((start + (lane * EACH + offset)) // (16 // place.dtype.itemsize))
        return code.vectors(place), at

    def _numbers(self, name: str, part: Part, key: Value) -> list[Value]:
        """The numbers of a key or value that this lane has, as f32."""
        code, b = self.code, self.builder
        place, _ = self.place(name)
        memory, at = self._vectors(name, part, key)
        loads = [b.let(b.load(memory, at + i)) for i in range(EACH * place.dtype.itemsize // 16)]
        found = [number for load in loads for number in numbers_of(code, load, place.dtype)]
        elements = code.elements(self.work)
        for wanted in place.rounded:
            found = [self._rounded(elements, value, wanted) for value in found]
        return found

    def _rounded(self, elements: StageElements, value: Value, wanted: DType) -> Value:
        registers = elements.registers
        narrow = registers.cast(value, dtypes.f32, wanted)
        return self.builder.let(registers.cast(narrow, wanted, dtypes.f32))

    # many parameters: what a score depends on.
    def _score(
        self, queries: Memory, r: int, keys: Sequence[Value], key: Value, part: Part
    ) -> Value:
        """A score: the product of all lanes of the key, scale, cap, and what hides it."""
        b, about = self.builder, self.about
        vectors = replace(queries, dtype=dtypes.u32, vector=4, shape=(self.rows * self.lanes * 2,))
        query: list[Value] = []
        for half in range(2):
            at = self.lane * 2 + (half + r * self.lanes * 2)
            query += numbers_of(self.code, b.load(vectors, b.let(at)), dtypes.f32)
        total = b.let(query[0] * keys[0])
        for x, y in zip(query[1:], keys[1:], strict=True):
            total = b.let(b.fma(x, y, total))
        mask = self.lanes // 2
        while mask:
            total = b.let(total + b.shuffle_xor(total, mask))
            mask //= 2
        score: Operand = b.let(total * about.scale)
        if about.softcap is not None:
            capped: Operand = emit(
                "tanh", b, [b.let(score / about.softcap)], [dtypes.f32], dtypes.f32
            )
            score = b.let(capped * about.softcap)
        seen = key < part.high
        distance = b.as_signed(part.start + (part.first + r) % about.queries) - b.as_signed(key)
        if about.causal:
            seen = seen & (distance >= 0)
        if about.window is not None:
            window = min(about.window, FARTHEST)
            seen = seen & (distance < window)
            if not about.causal:
                seen = seen & (distance > -window)
        return b.let(b.choose(seen, score, b.constant(float("-inf"), dtypes.f32)), "score")

    def _exp(self, x: Value) -> Value:
        """The exponential of a number that is not above 0."""
        b = self.builder
        x = b.let(x)
        return b.let(
            b.choose(x < LEAST_EXPONENT, 0.0, b.call("exp", b.let(b.max(x, LEAST_EXPONENT))))
        )

    # many parameters: the running state of a query.
    def _add(
        self,
        score: Value,
        values: Sequence[Value],
        top: Variable,
        total: Variable,
        sums: Sequence[Variable],
    ) -> None:
        b = self.builder
        peak = b.let(b.max(top, score), "peak")
        factor, weight = self._exp(top - peak), self._exp(score - peak)
        top.set(peak)
        total.set(b.fma(total, factor, weight))
        for own, value in zip(sums, values, strict=True):
            own.set(b.fma(own, factor, weight * value))

    # many parameters: what all groups of lanes have found.
    def _together(
        self,
        part: Part,
        tops: Sequence[Variable],
        totals: Sequence[Variable],
        sums: Sequence[Sequence[Variable]],
    ) -> None:
        """The sums of all groups as one, to where they go."""
        code, b, rows = self.code, self.builder, self.rows
        width, warps = self.lanes * EACH, code.threads // WARP
        peaks = code.shared(dtypes.f32, (rows, warps), "tops")
        whole = code.shared(dtypes.f32, (rows, self.groups), "totals")
        parts = code.shared(dtypes.f32, (rows, self.groups, width), "parts")
        highest = code.shared(dtypes.f32, rows, "highest")
        for r, top in enumerate(tops):
            peak = b.let(top)
            mask = self.lanes
            while mask < WARP:
                peak = b.let(b.max(peak, b.shuffle_xor(peak, mask)))
                mask *= 2
            with b.if_(b.local % WARP == 0):
                b.store(peak, peaks, (r, b.local // WARP))
        code.barrier()
        for r in range(rows):
            found = [b.let(b.load(peaks, (r, w))) for w in range(warps)]
            peak = found[0]
            for other in found[1:]:
                peak = b.let(b.max(peak, other))
            factor = self._exp(tops[r] - peak)
            with b.if_(b.local == 0):
                b.store(peak, highest, r)
            with b.if_(self.lane == 0):
                b.store(totals[r] * factor, whole, (r, self.own))
            for i, own in enumerate(sums[r]):
                b.store(own * factor, parts, (r, self.own, self.lane * EACH + i))
        code.barrier()
        (places,) = self.work.results
        words = code.words(places[0])
        record = self.width + 2

        def body(at: Value) -> None:
            row, number = b.let(at // record), b.let(at % record)
            value = b.variable(0.0, "value", dtypes.f32)
            with b.if_(number < self.width):
                value.set(self._added(lambda g: b.load(parts, (row, g, number))))
            with b.if_(number == self.width):
                value.set(b.load(highest, row))
            with b.if_(number > self.width):
                value.set(self._added(lambda g: b.load(whole, (row, g))))
            at_word = b.let(
                ((part.head * self.all_rows + part.first + row) * self.parts + part.part) * record
                + number
            )
            code.exchange.put(b.let(b.bits(value)), words, at_word)

        each(code, rows * record, body)
        code.barrier()

    def _added(self, read: Callable[[Number], Value]) -> Value:
        """The sum of what all groups of lanes have, several of which are read at a time."""
        b = self.builder
        total = b.variable(0.0, "total", dtypes.f32)
        whole = self.groups // TOGETHER * TOGETHER

        def add(numbers: Sequence[Number]) -> None:
            for value in [b.let(read(number)) for number in numbers]:
                total.set(total + value)

        if whole:
            with b.for_(0, whole, TOGETHER, name="g") as g:
                add([b.let(g + i) for i in range(TOGETHER)])
        add([b.index(g) for g in range(whole, self.groups)])
        return b.let(total)


# --------------------------------------------------------------------------- putting parts together


def gather_parts(code: Code, source: Place, target: Place) -> None:
    """Bring the result of an attention to shared memory: its parts together, and what is element-wise after it."""
    b, spec = code.builder, code.chain.specs[source.source]
    about = attention_of(spec)
    if about is None:
        raise InternalError("parts come of an attention")
    parts = parts_of(spec, code.shape.blocks)
    memory, words = code.memory(target), code.words(source, 4)
    pairs, record = about.width // 2, about.width // 2 + 1
    rows = about.batch * about.heads * about.queries

    def body(at: Value) -> None:
        row, pair = b.let(at // pairs), b.let(at % pairs)
        first = b.let(row * (parts * record))
        knowns = code.exchange.pairs(
            words, [b.let(first + (p * record + pairs)) for p in range(parts)]
        )
        found = code.exchange.pairs(words, [b.let(first + p * record + pair) for p in range(parts)])
        tops = [b.let(b.of_bits(top, dtypes.f32)) for top, _ in knowns]
        peak = tops[0]
        for top in tops[1:]:
            peak = b.let(b.max(peak, top))
        total, sums = b.constant(0.0, dtypes.f32), [b.constant(0.0, dtypes.f32) for _ in range(2)]
        for top, (_, weight), two in zip(tops, knowns, found, strict=True):
            below = b.let(top - peak)
            factor = b.let(
                b.choose(
                    below < LEAST_EXPONENT, 0.0, b.call("exp", b.let(b.max(below, LEAST_EXPONENT)))
                )
            )
            total = b.let(b.fma(factor, b.of_bits(weight, dtypes.f32), total))
            sums = [
                b.let(b.fma(factor, b.of_bits(word, dtypes.f32), own))
                for word, own in zip(two, sums, strict=True)
            ]
        share = b.let(1.0 / b.let(b.choose(total > 0.0, total, 1.0)))
        for number, own in enumerate(sums):
            _finish(code, source, memory, row, b.let(pair * 2 + number), b.let(own * share))

    each(code, rows * pairs, body)


# many parameters: an element of a result.
def _finish(
    code: Code, source: Place, memory: Memory, row: Value, number: Value, value: Value
) -> None:
    """An element of the attention to shared memory, through what is element-wise after it. Rows are query after query of each head."""
    spec = code.chain.specs[source.source]
    about = attention_of(spec)
    if about is None:
        return
    elements = ThreadElements(code.builder, spec.body, [memory] * len(spec.inputs))
    places = elements.places
    # Queries of a head follow each other, and heads that share keys.
    query, head = row % about.queries, row // about.queries
    batch, own = head // about.heads, head % about.heads
    bhsd = about.layout == "bhsd"
    sizes_ = (
        (about.batch, about.heads, about.queries)
        if bhsd
        else (about.batch, about.queries, about.heads)
    )
    index = [batch, own, query, number] if bhsd else [batch, query, own, number]
    at = places.offset([code.builder.let(i) for i in index], [*sizes_, about.width])
    (output,) = spec.body.outputs
    # The node's own type: f32 where operands are narrower.
    value_ = elements.registers.cast(value, dtypes.f32, about.node.dtype)
    elements.give(about.node, value_)
    found = elements.at(output, places.split(at, sizes(output)))
    elements.registers.store(found, memory, at, output.dtype)
