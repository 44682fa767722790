"""The gradients of one panel of queries: its scores, their gradients, and what these add to keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....codegen.ir.emit import loop, minimum, offset
from ....codegen.ir.index import Index, i64
from ....codegen.ir.lanes import Lane
from ....codegen.ir.types import Pointer, Value
from ..contract.pack import PackKernel
from ..contract.tile import Tile
from .forward import PanelQueries, PanelScores
from .parts import TileProduct
from .plan import column_tiles

if TYPE_CHECKING:
    from .backward import Gradients


class OpenPanel:
    """A panel of queries whose gradients are being computed."""

    def __init__(self, work: Gradients, batch: Index, head: Index, panel: Index) -> None:
        self.work, self.parts, self.attention = work, work.parts, work.attention
        parts, attention, indices, b = work.parts, work.attention, work.parts.indices, work.builder
        self.batch, self.head, self.panel = batch, head, panel
        self.kv_head = indices.div(head, attention.group)
        self.first = indices.mul(panel, attention.panel)
        left = b.sub(i64(attention.queries), i64(self.first))
        self.valid = minimum(b, i64(attention.panel), left)
        room = work.room
        self.queries, self.gradients = parts.own(room.queries), parts.own(room.gradients)
        at = (batch, head, self.first)
        parts.transposed_panel("q", attention.width, at, self.valid, self.queries)
        parts.transposed_panel("dy", attention.value_width, at, self.valid, self.gradients)
        start = parts.start(batch)
        end = indices.add(self.first, self.valid)
        self.low, self.high = parts.key_range(start, self.first, end)
        place = (batch, head, self.first, self.valid, start)
        self.scores = PanelScores(parts, PanelQueries(*place), room.transposed)
        self.vectors = range(attention.tile.vectors)

    def _strip(self, position: int, key: Value) -> Pointer:
        """The first row of a block in a strip of scores."""
        if self.work.room.is_long:
            return self.parts.own(position)
        row = self.parts.builder.sub(key, self.low)
        distance = self.parts.indices.mul(row, self.attention.panel)
        return offset(self.parts.builder, self.parts.own(position), self.parts.dtype, distance)

    # ------------------------------------------------------------- a block of keys

    def _rows(self, name: str, key: Value, keys: Value) -> tuple[Pointer, Index]:
        width = self.attention.width if name == "k" else self.attention.value_width
        room = self.parts.own(self.work.room.copies)
        return self.parts.block_rows(name, width, (self.batch, self.kv_head, key), keys, room)

    def score(self, key: Value, keys: Value, tops: Sequence[Lane]) -> list[Lane]:
        """The scores of a block, and the maxima they raise."""
        room = self.work.room
        rows, scores = self._rows("k", key, keys), self._strip(room.scores, key)
        self.parts.scores(keys, rows, self.attention.width, self.queries, scores)
        capped = self.attention.softcap is not None
        squashes = self._strip(room.squashes, key) if capped else None
        return self.scores.finish(key, keys, scores, tops, squashes)

    def slope(self, key: Value, keys: Value) -> None:
        """The gradients of a block's probabilities."""
        rows, slopes = self._rows("v", key, keys), self._strip(self.work.room.slopes, key)
        self.parts.scores(keys, rows, self.attention.value_width, self.gradients, slopes)

    def sum_up(
        self, key: Value, keys: Value, tops: Sequence[Lane], held: Sequence[Lane]
    ) -> list[Lane]:
        """Add a block to the totals and to the sums of probabilities times slopes; a strip keeps the exponentials."""
        parts, attention, room = self.parts, self.attention, self.work.room
        scores, slopes = self._strip(room.scores, key), self._strip(room.slopes, key)
        count = len(self.vectors)

        def add_row(row: Value, held: list[Lane]) -> list[Lane]:
            base = parts.indices.mul(row, attention.panel)
            powers = [
                parts.exp(self.scores.shifted(scores, base, c, tops[c])) for c in self.vectors
            ]
            found = [total + power for total, power in zip(held[:count], powers, strict=True)]
            for c, power in enumerate(powers):
                if not room.is_long:
                    parts.put(power, scores, base, c * attention.lanes)
                found.append(
                    power.fma(parts.vector(slopes, base, c * attention.lanes), held[count + c])
                )
            return found

        return parts.rows(keys, add_row, held)

    def statistics(self) -> tuple[list[Lane], list[Lane], list[Lane]]:
        """The maxima, the inverse totals and the mean slopes of the panel's queries."""
        parts, count = self.parts, len(self.vectors)
        lowest, nothing = parts.lowest(), parts.number(0.0)
        if self.work.room.is_long:

            def online(key: Value, keys: Value, held: list[Lane]) -> list[Lane]:
                tops = held[:count]
                raised = self.score(key, keys, tops)
                self.slope(key, keys)
                old, new = self.scores.scaled_tops(tops), self.scores.scaled_tops(raised)
                factors = [parts.exp(a - c) for a, c in zip(old, new, strict=True)]
                sums = [s * f for s, f in zip(held[count:], factors * 2, strict=True)]
                return [*raised, *self.sum_up(key, keys, new, sums)]

            held = parts.each_block(
                self.low, self.high, online, [lowest] * count + [nothing] * (2 * count)
            )
            tops, sums = self.scores.scaled_tops(held[:count]), held[count:]
        else:
            tops = parts.each_block(self.low, self.high, self.score, [lowest] * count)
            tops = self.scores.scaled_tops(tops)

            def summed(key: Value, keys: Value, held: list[Lane]) -> list[Lane]:
                self.slope(key, keys)
                return self.sum_up(key, keys, tops, held)

            sums = parts.each_block(self.low, self.high, summed, [nothing] * (2 * count))
        inverses = [parts.inverse(total) for total in sums[:count]]
        means = [s * inverse for s, inverse in zip(sums[count:], inverses, strict=True)]
        return tops, inverses, means

    def turn(
        self,
        key: Value,
        keys: Value,
        known: tuple[Sequence[Lane], Sequence[Lane], Sequence[Lane]],
        exponentiated: bool,
        add_to: Pointer | None = None,
        present: Sequence[Lane] = (),
    ) -> None:
        """Probabilities in place of scores, and gradients of the products in place of slopes.

        ``add_to`` takes the gradients of the scores themselves, for a bias, of the queries that are ``present``, and
        nothing else is written.
        """
        parts, attention, room = self.parts, self.attention, self.work.room
        scores, slopes = self._strip(room.scores, key), self._strip(room.slopes, key)
        tops, inverses, means = known
        scale = parts.number(attention.scale)

        def emit_row(row: Value, _: list[Lane]) -> None:
            base = parts.indices.mul(row, attention.panel)
            for c in self.vectors:
                at = (base, c * attention.lanes)
                if exponentiated:
                    power = parts.vector(scores, *at)
                else:
                    power = parts.exp(self.scores.shifted(scores, base, c, tops[c]))
                probability = power * inverses[c]
                gradient = probability * (parts.vector(slopes, *at) - means[c])
                if add_to is not None:
                    if present:
                        gradient = present[c].choose(gradient, 0.0)
                    parts.put(parts.vector(add_to, *at) + gradient, add_to, *at)
                    continue
                if attention.softcap is not None:
                    squashed = parts.vector(self._strip(room.squashes, key), *at)
                    gradient = gradient * (1.0 - squashed * squashed)
                parts.put(probability, scores, *at)
                parts.put(gradient * scale, slopes, *at)

        parts.rows(keys, emit_row)

    # ------------------------------------------------------------- all of it

    def emit(self, sums: dict[str, Pointer]) -> None:
        """The panel's part of every gradient."""
        parts, attention, room = self.parts, self.attention, self.work.room
        known = self.statistics()
        if "bias" in room.results:
            self._keep(known)
        panels = {}
        for name, operand, position in (
            ("k", "q", room.query_rows),
            ("v", "dy", room.gradient_rows),
        ):
            if name in sums:
                panels[name] = parts.own(position)
                self._pack_rows(operand, name, panels[name])
        result = parts.own(room.sums)
        if "q" in room.results:
            parts.clear(result, attention.width * attention.panel)

        def block(key: Value, keys: Value, _: list[Lane]) -> None:
            if room.is_long:
                self.score(key, keys, [parts.lowest()] * len(self.vectors))
                self.slope(key, keys)
            self.turn(key, keys, known, not room.is_long)
            weights = {"v": room.scores, "k": room.slopes}
            for name, pointer in sums.items():
                self._add(name, key, keys, self._strip(weights[name], key), panels[name], pointer)
            if "q" in room.results:
                slopes = self._strip(room.slopes, key)
                parts.mixture(keys, self._rows("k", key, keys), attention.width, slopes, result)

        parts.each_block(self.low, self.high, block)
        if "q" in room.results:
            self._write_queries(result)

    def _pack_rows(self, operand: str, name: str, panel: Pointer) -> None:
        """The rows of queries or gradients, in panels of columns."""
        parts, attention = self.parts, self.attention
        item = attention.operands[operand]
        width = attention.width if name == "k" else attention.value_width
        column = 0
        for tile in column_tiles(attention, width):
            kernel = PackKernel(item.dtype, parts.dtype, tile.width, attention.lanes, "columns")
            pack = kernel.function(parts.code.module)
            source = parts.address(operand, self.batch, self.head, self.first)
            source = parts.moved(source, item.dtype, column)
            target = offset(parts.builder, panel, parts.dtype, column * attention.panel)
            present = i64(min(tile.width, width - column))
            stride = i64(item.strides[2])
            parts.builder.call(pack, [self.valid, present, source, stride, i64(1), target])
            column += tile.width

    def _add(
        self, name: str, key: Value, keys: Value, weights: Pointer, panel: Pointer, sums: Pointer
    ) -> None:
        """Add rows of queries (or gradients), weighted, to the gradients of a block of keys (or values)."""
        parts, attention, b = self.parts, self.attention, self.parts.builder
        wide = self.work.wide[name]
        width = attention.width if name == "k" else attention.value_width
        column = 0
        for tile in column_tiles(attention, width):

            def emit_tile(tile: Tile, row: Value, column: int = column) -> None:
                source = offset(b, weights, parts.dtype, parts.indices.mul(row, attention.panel))
                at = offset(b, panel, parts.dtype, column * attention.panel)
                line = parts.indices.mul(b.add(key, row), wide)
                target = offset(b, sums, parts.dtype, line, column)
                parts.product(
                    TileProduct(
                        "rows",
                        tile,
                        self.valid,
                        (source, attention.panel),
                        at,
                        (target, wide),
                        True,
                    )
                )

            parts.tiles(keys, attention.keys, tile, emit_tile)
            column += tile.width

    def _write_queries(self, result: Pointer) -> None:
        parts, attention = self.parts, self.attention
        rows = parts.own(self.work.room.rows)
        parts.transposed_back(attention.width, result, rows)
        wide = self.work.wide["k"]

        def row(i: Value, _: Sequence[Value]) -> None:
            base = parts.indices.mul(i, wide)
            at = parts.indices.add(self.first, i)
            index = parts.result_index(self.batch, self.head, at, 0)[:3]
            parts.write_gradient(
                self.work.room.results["q"],
                index,
                attention.width,
                lambda column: parts.vector(rows, base, column),
            )

        loop(parts.builder, i64(0), self.valid, 1, row)

    # ------------------------------------------------------------- what the bias needs

    def _statistics_at(self) -> Pointer:
        attention, indices = self.attention, self.parts.indices
        number = indices.offset(
            (self.batch, self.head, self.panel),
            (attention.batch, attention.heads, attention.panels),
        )
        pointer = self.parts.shared(self.work.room.statistics)
        distance = indices.mul(number, 3 * attention.panel)
        return offset(self.parts.builder, pointer, self.parts.dtype, distance)

    def _keep(self, known: tuple[Sequence[Lane], Sequence[Lane], Sequence[Lane]]) -> None:
        place = self._statistics_at()
        for i, values in enumerate(known):
            for c, value in enumerate(values):
                self.parts.put(value, place, i * self.attention.panel + c * self.attention.lanes)

    def kept(self) -> tuple[list[Lane], list[Lane], list[Lane]]:
        """The statistics of before."""
        place = self._statistics_at()
        tops, inverses, means = (
            [
                self.parts.vector(place, i * self.attention.panel + c * self.attention.lanes)
                for c in self.vectors
            ]
            for i in range(3)
        )
        return tops, inverses, means
