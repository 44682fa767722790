"""The gradients of attention: the scores of a panel of queries once more, then all that comes of them.

A panel's scores and their gradients stay in the thread's own memory while they are used for queries, keys and values; only
where there are very many keys are they computed twice. Query heads and panels that add to the same keys are cut into parts
by shape alone; each part sums in order, and the parts are added in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....codegen.ir.emit import i64, loop, offset
from ....codegen.ir.index import Number, as_value
from ....codegen.ir.lanes import Lane
from ....codegen.problems.attention import GRADIENTS
from ....lower.plan import Spec
from .bias import emit_bias
from .forward import turned_room
from .panel import OpenPanel
from .parts import Parts
from .plan import STRIP_BYTES, Attention, Room, made_places

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
        turned: a block of the mask and of the bias, one row for each key.
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
    turned: dict[str, int]
    bytes: int


def backward_room(spec: Spec, attention: Attention, shared: Room) -> BackwardRoom:
    """The memory that the gradients need."""
    own, size, width = Room(), attention.size, attention.panel
    wide, wide_value = attention.padded(attention.width), attention.padded(attention.value_width)
    results = {GRADIENTS[output.attrs["index"]]: i for i, output in enumerate(spec.body.outputs)}
    is_long = attention.keys * width * size > STRIP_BYTES
    strip = attention.block if is_long else -(-attention.keys // attention.tile.rows)
    strip = strip if is_long else strip * attention.tile.rows
    heads = max(1, attention.batch * attention.kv_heads)
    parts = max(1, min(attention.group * attention.panels, -(-PARTS // heads)))
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
        turned=turned_room(attention, own),
        bytes=own.bytes,
    )


class Gradients:
    """The code of one kernel's gradients."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.attention, self.builder = parts, parts.attention, parts.builder
        shared = Room()
        made_places(parts.code.spec, parts.attention, shared)
        self.room = backward_room(parts.code.spec, parts.attention, shared)
        self.wide = {
            "k": self.attention.padded(self.attention.width),
            "v": self.attention.padded(self.attention.value_width),
        }

    # ------------------------------------------------------------- a panel of queries

    def open_panel(self, batch: Number, head: Number, panel: Number) -> OpenPanel:
        """Pack a panel of queries and gradients, and find the keys it sees."""
        return OpenPanel(self, batch, head, panel)

    def emit(self) -> None:
        """Everything but the gradient of the bias."""
        attention, code, places = self.attention, self.parts.code, self.parts.places
        room = self.room
        heads = attention.batch * attention.kv_heads
        items = attention.group * attention.panels

        def unit(number: Any) -> None:
            batch, kv_head, part = places.split(
                number, (attention.batch, attention.kv_heads, room.parts)
            )
            sums = self.sums_of(number)
            for name, pointer in sums.items():
                self.parts.clear(pointer, attention.keys * self.wide[name])
            first, last = self._share(items, part), self._share(items, places.add(part, 1))

            def item(at: Any, _: Sequence[Any]) -> None:
                member, panel = places.split(at, (attention.group, attention.panels))
                head = places.add(places.mul(kv_head, attention.group), member)
                self.open_panel(batch, head, panel).emit(sums)

            loop(self.builder, as_value(first), as_value(last), 1, item)
            if room.parts == 1:
                for name, pointer in sums.items():

                    def row(
                        key: Any, _: Sequence[Any], name: str = name, pointer: Any = pointer
                    ) -> None:
                        self._write_key(name, batch, kv_head, key, [pointer])

                    loop(self.builder, i64(0), i64(attention.keys), 1, row)

        self.parts.each_uneven(heads * room.parts, unit)
        if room.parts > 1 and {"k", "v"} & set(room.results):
            code.barrier()

            def row(number: Any) -> None:
                batch, kv_head, key = places.split(
                    number, (attention.batch, attention.kv_heads, attention.keys)
                )
                whole = places.add(places.mul(batch, attention.kv_heads), kv_head)
                begin = places.mul(whole, room.parts)
                found = [self.sums_of(places.add(begin, part)) for part in range(room.parts)]
                for name in found[0]:
                    pointers = [sums[name] for sums in found]
                    self._write_key(name, batch, kv_head, key, pointers)

            code.each(heads * attention.keys, row)

    def _share(self, items: int, part: Number) -> Number:
        """Where a part begins among so many items."""
        return self.parts.places.div(self.parts.places.mul(part, items), self.room.parts)

    def sums_of(self, unit: Number) -> dict[str, Any]:
        """Where the gradients of keys and values of a part are summed."""
        found = {}
        for name, place in (("k", self.room.keys), ("v", self.room.values)):
            if name not in self.room.results:
                continue
            if self.room.parts == 1:
                found[name] = self.parts.own(place)
            else:
                distance = self.parts.places.mul(unit, self.attention.keys * self.wide[name])
                pointer = self.parts.shared(place)
                found[name] = offset(self.builder, pointer, self.parts.dtype, distance)
        return found

    def _write_key(
        self, name: str, batch: Number, kv_head: Number, key: Number, pointers: Sequence[Any]
    ) -> None:
        """A row of the gradient of keys or values: the sum of its parts."""
        parts = self.parts
        base = parts.places.mul(key, self.wide[name])

        def value_at(column: Number) -> Lane:
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
