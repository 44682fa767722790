"""The gradients of attention: recomputes the scores of a panel of queries, then everything that follows from them.

Scores and their gradients stay in the thread's own memory while queries, keys and values use them; with very many keys they are computed twice.
Query heads and panels that add to the same keys are split into parts that depend on shapes alone. Each part sums in order, and parts are added in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....codegen.ir.emit import loop, offset
from ....codegen.ir.index import Index, i64
from ....codegen.ir.lanes import Lane
from ....codegen.ir.types import Pointer, Value
from ....codegen.problems.attention import GRADIENTS
from ....graph.integers import ceil_div
from ....lower.plan import Spec
from .bias import emit_bias
from .forward import transposed_room
from .panel import OpenPanel
from .parts import Parts
from .plan import STRIP_BYTES, Attention, Room, made_offsets

PARTS = 16
"""Pieces of work that the gradients of keys and values are worth cutting into."""


@dataclass(frozen=True)
class BackwardRoom:
    """Places in bytes, and how the work is cut.

    Attributes:
        results: the number of each gradient that is wanted, by the operand's name.
        parts: of the queries that add to the same keys.
        strip: rows of scores that are kept; ``is_long`` where these are not all.
        queries: the panel of queries, a row for each width; ``gradients`` likewise of the result's gradient.
        query_rows: the same, a row for each query; ``gradient_rows`` likewise.
        scores: of the panel, ``slopes`` their gradients, ``squashes`` tanh(score / softcap).
        sums: the gradient of queries, transposed; ``rows`` as rows.
        copies: a block of keys or values as numbers to compute with.
        keys: sums of the gradients of keys, and ``values`` of values; in shared memory where there are parts.
        statistics: shared: maximum, inverse total and mean slope of every query, where the bias has a gradient.
        sums_of_bias: a block of its gradient.
        transposed: a block of the mask and of the bias, one row for each key.
        bytes: of a thread's memory.
    """

    results: dict[str, int]
    parts: int
    strip: int
    is_long: bool
    queries: int
    gradients: int
    query_rows: int
    gradient_rows: int
    scores: int
    slopes: int
    squashes: int
    sums: int
    rows: int
    copies: int
    keys: int
    values: int
    statistics: int
    sums_of_bias: int
    transposed: dict[str, int]
    bytes: int


def backward_room(spec: Spec, attention: Attention, shared: Room) -> BackwardRoom:
    """The memory that the gradients need."""
    own, size, width = Room(), attention.size, attention.panel
    wide, wide_value = attention.padded(attention.width), attention.padded(attention.value_width)
    results = {GRADIENTS[output.attrs["index"]]: i for i, output in enumerate(spec.body.outputs)}
    is_long = attention.keys * width * size > STRIP_BYTES
    strip = attention.block if is_long else ceil_div(attention.keys, attention.tile.rows)
    strip = strip if is_long else strip * attention.tile.rows
    heads = max(1, attention.batch * attention.kv_heads)
    parts = max(1, min(attention.group * attention.panels, ceil_div(PARTS, heads)))
    home, copies = (shared, heads * parts) if parts > 1 else (own, 1)
    most = max(wide, wide_value)
    statistics = attention.batch * attention.heads * attention.panels * width * 3
    return BackwardRoom(
        results=results,
        parts=parts,
        strip=strip,
        is_long=is_long,
        queries=own.take(attention.width * width, size),
        gradients=own.take(attention.value_width * width, size),
        query_rows=own.take(wide * width, size),
        gradient_rows=own.take(wide_value * width, size),
        scores=own.take(strip * width, size),
        slopes=own.take(strip * width, size),
        squashes=own.take(strip * width if attention.softcap is not None else 0, size),
        sums=own.take(wide * width, size),
        rows=own.take(max(wide * width, attention.padded(attention.block) * width), size),
        copies=own.take(attention.block * most if attention.is_narrow else 0, size),
        keys=home.take(copies * attention.keys * wide, size),
        values=home.take(copies * attention.keys * wide_value, size),
        statistics=shared.take(statistics if "bias" in results else 0, size),
        sums_of_bias=own.take(attention.block * width if "bias" in results else 0, size),
        transposed=transposed_room(attention, own),
        bytes=own.bytes,
    )


class Gradients:
    """The code of one kernel's gradients."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.attention, self.builder = parts, parts.attention, parts.builder
        shared = Room()
        made_offsets(parts.code.spec, parts.attention, shared)
        self.room = backward_room(parts.code.spec, parts.attention, shared)
        self.wide = {
            "k": self.attention.padded(self.attention.width),
            "v": self.attention.padded(self.attention.value_width),
        }

    # ------------------------------------------------------------- a panel of queries

    def open_panel(self, batch: Index, head: Index, panel: Index) -> OpenPanel:
        """Pack a panel of queries and gradients, and find the keys it sees."""
        return OpenPanel(self, batch, head, panel)

    def emit(self) -> None:
        """Everything but the gradient of the bias."""
        attention, code, indices = self.attention, self.parts.code, self.parts.indices
        room = self.room
        heads = attention.batch * attention.kv_heads
        items = attention.group * attention.panels

        def unit(number: Value) -> None:
            batch, kv_head, part = indices.split(
                number, (attention.batch, attention.kv_heads, room.parts)
            )
            sums = self.sums_of(number)
            for name, pointer in sums.items():
                self.parts.clear(pointer, attention.keys * self.wide[name])
            first, last = self._share(items, part), self._share(items, indices.add(part, 1))

            def item(at: Value, _: Sequence[Value]) -> None:
                member, panel = indices.split(at, (attention.group, attention.panels))
                head = indices.add(indices.mul(kv_head, attention.group), member)
                self.open_panel(batch, head, panel).emit(sums)

            loop(self.builder, i64(first), i64(last), 1, item)
            if room.parts == 1:
                for name, pointer in sums.items():

                    def row(
                        key: Value, _: Sequence[Value], name: str = name, pointer: Pointer = pointer
                    ) -> None:
                        self._write_key(name, batch, kv_head, key, [pointer])

                    loop(self.builder, i64(0), i64(attention.keys), 1, row)

        self.parts.each_uneven(heads * room.parts, unit)
        if room.parts > 1 and {"k", "v"} & set(room.results):
            code.barrier()

            def row(number: Value) -> None:
                batch, kv_head, key = indices.split(
                    number, (attention.batch, attention.kv_heads, attention.keys)
                )
                whole = indices.add(indices.mul(batch, attention.kv_heads), kv_head)
                begin = indices.mul(whole, room.parts)
                found = [self.sums_of(indices.add(begin, part)) for part in range(room.parts)]
                for name in found[0]:
                    pointers = [sums[name] for sums in found]
                    self._write_key(name, batch, kv_head, key, pointers)

            code.each(heads * attention.keys, row)

    def _share(self, items: int, part: Index) -> Index:
        """Where a part begins among so many items."""
        return self.parts.indices.div(self.parts.indices.mul(part, items), self.room.parts)

    def sums_of(self, unit: Index) -> dict[str, Pointer]:
        """Where the gradients of keys and values of a part are summed."""
        found = {}
        for name, position in (("k", self.room.keys), ("v", self.room.values)):
            if name not in self.room.results:
                continue
            if self.room.parts == 1:
                found[name] = self.parts.own(position)
            else:
                distance = self.parts.indices.mul(unit, self.attention.keys * self.wide[name])
                pointer = self.parts.shared(position)
                found[name] = offset(self.builder, pointer, self.parts.dtype, distance)
        return found

    def _write_key(
        self, name: str, batch: Index, kv_head: Index, key: Index, pointers: Sequence[Pointer]
    ) -> None:
        """A row of the gradient of keys or values: the sum of its parts."""
        parts = self.parts
        base = parts.indices.mul(key, self.wide[name])

        def value_at(column: Index) -> Lane:
            total = parts.vector(pointers[0], base, column)
            for pointer in pointers[1:]:
                total = total + parts.vector(pointer, base, column)
            return total

        index = parts.result_index(batch, kv_head, key, 0)[:3]
        width = self.attention.width if name == "k" else self.attention.value_width
        parts.write_gradient(self.room.results[name], index, width, value_at)


def emit_backward(parts: Parts) -> None:
    """The gradients that the body's results name."""
    work = Gradients(parts)
    work.emit()
    if "bias" in work.room.results:
        parts.code.barrier()
        emit_bias(work)
