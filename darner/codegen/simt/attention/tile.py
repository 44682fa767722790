"""Blocks of scores in the registers of a workgroup: products of rows, what becomes of them, and sums weighted by them.

Thread ``(down, across)`` has rows ``down + i * cut.down`` and columns ``across + j * cut.across`` of a block; its scores are vectors of 4 columns each. Weights go
through shared memory in the order of threads, and the rows that they weigh are put there in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ....graph.integers import ceil_div
from ....lower.plan import Spec
from ...ir.index import Number
from ...problems.attention import Described
from ..builder import Memory, Value, Variable
from ..machine import Machine
from .operands import Place, Reader, unsigned
from .plan import Cut

AT_ONCE = 8
"""Vectors that a thread reads before it puts them into shared memory."""

Block: TypeAlias = list[list[Variable]]
"""A thread's numbers of a block of scores, or of sums: vectors, row by row."""


@dataclass(frozen=True)
class Rows:
    """Rows of an operand: its name, the distance of its head's first number, and the first row."""

    name: str
    base: Number
    first: Number = 0

    def at(self, first: Number) -> Rows:
        """Those from another row on."""
        return replace(self, first=first)


class Tile(Reader):
    """A dispatch whose workgroups have a block of rows each.

    Args:
        spec: what the kernel computes.
        machine: for which GPU.
        attention: what is computed, with sizes.
        cut: how.
        by_query: whether rows are queries and columns are keys; or the other way round.

    Attributes:
        left: the rows in shared memory; ``right`` the columns, ``weights`` a block of scores.
        row_numbers: the numbers of a thread's rows, with signs.
        low: from which column on, in whole blocks, a block of rows sees any; ``high`` before which.
        bases: where the head's parts of a mask and a bias begin.
    """

    row_numbers: list[Value]
    low: Value
    high: Value
    weights: Memory

    def __init__(
        self,
        spec: Spec,
        machine: Machine,
        attention: Described,
        cut: Cut,
        *,
        by_query: bool = True,
        whole: bool = False,
    ) -> None:
        super().__init__(spec, machine, attention, cut.threads, whole)
        self.cut = cut
        self.by_query = by_query
        counts = attention.queries, attention.keys
        self.row_count, self.column_count = counts if by_query else counts[::-1]
        deepest = max(1, ceil_div(attention.width, 4))
        self.left_pitch = (deepest | 1) if cut.kept else cut.pitch
        b = self.builder
        self.left = b.shared(self.kind, cut.row_block * self.left_pitch, "left", width=4)
        self.right = b.shared(self.kind, cut.room, "right", width=4)
        self.down = b.let(b.local // cut.across, "down")
        self.across = b.let(b.local % cut.across, "across")
        self.bases: dict[str, Value] = {}

    # ------------------------------------------------------------- loops

    def each(self) -> Iterator[tuple[int, int]]:
        """Numbers of a thread's vectors of scores: row and quad."""
        for i in range(self.cut.rows):
            for c in range(self.cut.quads):
                yield i, c

    def zeros(self, count: int, name: str) -> Block:
        """So many vectors of each of a thread's rows."""
        b = self.builder
        return [
            [b.variable(0, name, self.kind, width=4) for _ in range(count)]
            for _ in range(self.cut.rows)
        ]

    def numbers(self, initial: Value | float, name: str) -> list[Variable]:
        """A number of each of a thread's rows."""
        return [self.builder.variable(initial, name, self.kind) for _ in range(self.cut.rows)]

    def blocks_of_columns(self) -> Iterator[Value]:
        """The loop over blocks of columns: ``for column in`` it, since there is none where nothing is to be met."""
        if self.column_count:
            block = self.cut.column_block
            with self.builder.for_(self.low, self.high, block, name="column") as column:
                yield column

    # ------------------------------------------------------------- shared memory

    def _reads(self, name: str, count: int, *, whole: bool = False) -> Callable[..., Value]:
        """What reads vectors of an operand in blocks of ``count`` rows; of ``whole`` ones, none is beyond its row."""
        quads = ceil_div(self.width(name), 4)
        inside = self.rows(name) % count == 0 and (whole or quads % self.cut.depth == 0)
        return self.four(name, inside)

    def _stage_rows(self, target: Memory, count: int, rows: Rows, first: Number) -> None:
        cut, four = self.cut, self._reads(rows.name, count)

        def vector(row: Value, quad: Value) -> Value:
            return four(rows.base, rows.first + row, quad + first)

        stage(self, Stretch(target, count, cut.depth, cut.pitch), vector)

    def stage_left(self, rows: Rows) -> None:
        """Put whole rows into shared memory, once for all columns."""
        four = self._reads(rows.name, self.cut.row_block, whole=True)
        quads = ceil_div(self.width(rows.name), 4)

        def vector(row: Value, quad: Value) -> Value:
            return four(rows.base, rows.first + row, quad)

        stage(self, Stretch(self.left, self.cut.row_block, quads, self.left_pitch), vector)

    # ------------------------------------------------------------- products

    def product(self, name: str, rows: Rows, columns: Rows) -> Block:
        """Products of all rows and columns of a block; rows that are kept are in shared memory already."""
        b, cut = self.builder, self.cut
        scores = self.zeros(cut.quads, name)
        quads = ceil_div(self.width(rows.name), 4)

        def add(first: Number, limit: Number) -> None:
            b.barrier()
            if not cut.kept:
                self._stage_rows(self.left, cut.row_block, rows, first)
            self._stage_rows(self.right, cut.column_block, columns, first)
            b.barrier()
            with b.for_(0, limit, name="d") as d:
                self._multiply(scores, d + first if cut.kept else d, d)

        if quads > cut.depth:
            with b.for_(0, quads, cut.depth, name="depth") as depth:
                add(depth, b.let(b.min(cut.depth, quads - depth), "limit"))
        elif quads:
            with b.scope():
                add(0, quads)
        return scores

    def _multiply(self, scores: Block, place: Value, d: Value) -> None:
        """One vector of each row, at its place in shared memory, and of each column."""
        b, cut = self.builder, self.cut
        of_row = b.let(self.down * self.left_pitch + place, "of_row")
        of_column = b.let(self.across * cut.pitch + d, "of_column")
        right = [self.right[of_column + j * cut.across * cut.pitch] for j in range(cut.columns)]
        columns = [
            [b.let(b.vector([column[axis] for column in right[at : at + 4]])) for axis in range(4)]
            for at in range(0, cut.columns, 4)
        ]
        for i, own in enumerate(scores):
            left = self.left[of_row + i * cut.down * self.left_pitch]
            for score, four in zip(own, columns, strict=True):
                for axis, column in enumerate(four):
                    score.set(b.fma(left[axis], column, score))

    # ------------------------------------------------------------- sums

    def start_sums(self, operand: str, name: str = "sum") -> Block:
        """Zeros for the rows of an operand that are summed."""
        return self.zeros(self.cut.summed(self.width(operand)), name)

    def need_weights(self) -> None:
        """Have room for weights in shared memory."""
        count = self.cut.row_block * self.cut.weight_pitch
        self.weights = self.builder.shared(self.kind, count, "weights", width=4)

    def put_weights(self, source: Block) -> None:
        """Put a thread's scores into shared memory, one row after the other."""
        b, cut = self.builder, self.cut
        own = b.let(self.down * cut.weight_pitch + self.across * cut.quads, "own_weights")
        for i, c in self.each():
            self.weights[own + (i * cut.down * cut.weight_pitch + c)] = source[i][c]

    def add_weighted(self, sums: Block, weights: Block, columns: Rows) -> None:
        """Add the columns' rows, weighted by scores, to sums. Nobody may be reading weights any more."""
        b, cut = self.builder, self.cut
        pitch = cut.across * cut.summed(self.width(columns.name))
        quads = ceil_div(self.width(columns.name), 4)
        if not quads:
            return
        four = self._reads(columns.name, cut.column_block, whole=True)
        self.put_weights(weights)

        def add(part: Number) -> None:
            b.barrier()

            def vector(row: Value, quad: Value) -> Value:
                place = row + part
                column = place // cut.columns + cut.across * (place % cut.columns)
                return four(columns.base, columns.first + column, quad)

            stage(self, Stretch(self.right, cut.chunk, quads, pitch), vector)
            b.barrier()
            with b.for_(0, cut.chunk // 4, name="p") as p:
                self._weigh(sums, p, part, pitch)

        if cut.chunk < cut.column_block:
            with b.for_(0, cut.column_block, cut.chunk, name="part") as part:
                add(part)
        else:
            with b.scope():
                add(0)

    def _weigh(self, sums: Block, p: Value, part: Number, pitch: int) -> None:
        """Add 4 columns, the ``p``-th of those in shared memory."""
        b, cut = self.builder, self.cut
        of_row = b.let(self.down * cut.weight_pitch + part // 4 + p, "of_row")
        weights = [self.weights[of_row + i * cut.down * cut.weight_pitch] for i in range(cut.rows)]
        for k in range(4):
            first = (p * 4 + k) * pitch + self.across
            values = [self.right[first + w * cut.across] for w in range(pitch // cut.across)]
            for own, weight in zip(sums, weights, strict=True):
                for total, value in zip(own, values, strict=True):
                    total.set(b.fma(weight[k], value, total))

    # ------------------------------------------------------------- which keys are seen

    def write_rows(self, first: Number) -> None:
        """Find the numbers of a thread's rows, from the block's first."""
        b = self.builder
        begin = b.as_signed(self.down + first)
        self.row_numbers = [
            b.let(begin + i * self.cut.down, f"row_{i}") for i in range(self.cut.rows)
        ]

    def column_numbers(self, first: Number) -> list[Value]:
        """The numbers of a thread's columns, 4 at a time."""
        b, cut = self.builder, self.cut
        begin = b.as_signed(self.across + first)
        return [
            b.let(begin + b.vector([(4 * c + k) * cut.across for k in range(4)], like=begin))
            for c in range(cut.quads)
        ]

    def write_bases(self, batch: Number, head: Number) -> None:
        """Find where the head's parts of a mask and a bias begin."""
        b = self.builder
        for name in ("mask", "bias"):
            if name in self.attention.operands:
                base = b.index(self.head_of(name, batch, head))
                self.bases[name] = b.let(base, f"{name}_base")

    def _places(self, name: str, columns: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        """Where the elements of a mask or bias lie for a thread's rows and columns, as far as they exist."""
        b = self.builder
        of_row, of_column = (2, 3) if self.by_query else (3, 2)
        rows = []
        for row in self.row_numbers:
            inside = b.as_unsigned(b.min(row, self.row_count - 1))
            rows.append(b.let(self.bases[name] + inside * self.stride(name, of_row)))
        across = []
        for column in columns:
            inside = b.as_unsigned(b.min(column, self.column_count - 1))
            across.append(b.let(inside * self.stride(name, of_column)))
        return rows, across

    def finish(self, scores: Block, columns: Sequence[Value]) -> list[list[Value]]:
        """Make scores of products, in place: scale, cap, bias, and what hides keys; ``columns`` are their numbers.

        Returns tanh(score / softcap), which a gradient needs, where there is a softcap.
        """
        attention, b = self.attention, self.builder
        names: list[str] = [name for name in ("mask", "bias") if name in attention.operands]
        places = {name: self._places(name, columns) for name in names}
        numbers = {name: self.number(name) for name in names}

        def four_of(name: str, i: int, c: int) -> Value:
            rows, across = places[name]
            return b.vector([numbers[name](rows[i] + part) for part in across[c].parts])

        cap = attention.softcap
        squashed: list[list[Value]] = [[] for _ in scores]
        for i, c in self.each():
            own = scores[i][c]
            own.set(own * attention.scale)
            if cap is not None:
                squashed[i].append(b.let(self.tanh(own / cap), "squashed"))
                own.set(squashed[i][c] * cap)
            if "bias" in attention.operands:
                own.set(own + four_of("bias", i, c))
            seen = self._seen(self.row_numbers[i], columns[c])
            if "mask" in attention.operands:
                mask = four_of("mask", i, c)
                seen = mask if seen is None else seen & mask
            if seen is not None:
                own.set(b.choose(seen, own, self.hidden))
        return squashed

    def _seen(self, row: Value, column: Value) -> Value | None:
        """Which of a vector of columns a row sees, as far as places decide that; None for all."""
        attention, window = self.attention, self.attention.window
        found = []
        if self.column_count % self.cut.column_block:
            found.append(column < self.column_count)
        query, key = (row, column) if self.by_query else (column, row)
        distance = query + self.start - key
        if attention.causal:
            found.append(distance >= 0)
        if window is not None:
            window = min(window, 1 << 30)
            found.append(distance < window)
            if not attention.causal:
                found.append(distance > -window)
        seen: Value | None = None
        for condition in found:
            seen = condition if seen is None else seen & condition
        return seen

    def write_range(self, place: Place) -> None:
        """Find ``low`` and ``high`` of a block of rows, or of the part of them that a workgroup has."""
        b, attention, window, cut = self.builder, self.attention, self.attention.window, self.cut
        low: Number = 0
        high: Number = self.column_count
        last = b.as_signed(b.min(place.first + (cut.row_block - 1), max(self.row_count, 1) - 1))
        begin = b.as_signed(b.index(place.first))
        reach = None if window is None else min(window, 1 << 30) - 1
        if self.by_query:
            if attention.causal:
                high = b.min(high, last + self.start + 1)
            elif reach is not None:
                high = b.min(high, last + self.start + (reach + 1))
            if reach is not None:
                low = b.max(low, begin + self.start - reach)
        else:
            if attention.causal:
                low = b.max(low, begin - self.start)
            elif reach is not None:
                low = b.max(low, begin - self.start - reach)
            if reach is not None:
                high = b.min(high, last - self.start + (reach + 1))
        block, parts = cut.column_block, cut.parts
        begin = b.let(b.index(unsigned(b, low) // block * block), "low")
        end = b.let(b.index(unsigned(b, b.max(high, 0))), "high")
        if parts > 1:
            blocks = b.choose(end > begin, (end + (block - 1) - begin) // block, 0)
            length = b.let((b.let(blocks, "blocks") + (parts - 1)) // parts * block, "length")
            begin = b.let(b.min(begin + place.part * length, end), "low")
            end = b.let(b.min(begin + length, end), "high")
        self.low, self.high = begin, end

    # ------------------------------------------------------------- sums over rows

    def need_exchange(self) -> None:
        """Have room for one number of every row and thread, and one of every row."""
        b, cut = self.builder, self.cut
        self.partial = b.shared(self.kind, cut.row_block * (cut.across + 1), "partial")
        self.agreed = b.shared(self.kind, cut.row_block, "agreed")

    def exchange(
        self, values: Sequence[Value], combine: Callable[[Value, Value], Value]
    ) -> list[Value]:
        """The numbers that all threads of a row have, as one: for each row."""
        b, cut = self.builder, self.cut
        pitch = cut.across + 1
        for i, value in enumerate(values):
            self.partial[(self.down + i * cut.down) * pitch + self.across] = value
        b.barrier()
        with b.for_(b.local, cut.row_block, cut.threads, name="e") as e:
            total = b.variable(self.partial[e * pitch], "all")
            for k in range(1, cut.across):
                total.set(combine(total, self.partial[e * pitch + k]))
            self.agreed[e] = total
        b.barrier()
        return [self.agreed[self.down + i * cut.down] for i in range(cut.rows)]


@dataclass(frozen=True)
class Stretch:
    """A part of shared memory: ``count`` rows of ``width`` vectors, ``pitch`` apart."""

    memory: Memory
    count: int
    width: int
    pitch: int


def stage(reader: Reader, stretch: Stretch, vector: Callable[[Value, Value], Value]) -> None:
    """Fill a part of shared memory; ``vector(row, number)`` reads one."""
    b, threads = reader.builder, reader.dispatch.threads
    total = stretch.count * stretch.width
    together = min(AT_ONCE, ceil_div(total, threads))
    step = threads * together
    with b.for_(b.local, total, step, name="e") as e:
        found = []
        for k in range(together):
            at = b.let(e + k * threads, "at")
            row, quad = b.let(at // stretch.width, "row"), b.let(at % stretch.width, "quad")
            found.append((at, row * stretch.pitch + quad, b.let(vector(row, quad))))
        for k, (at, place, value) in enumerate(found):
            with b.if_(None if total % step == 0 or k == 0 else at < total):
                stretch.memory[place] = value
