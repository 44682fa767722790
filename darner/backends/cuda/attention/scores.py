"""What products become on their way to probabilities: scale, cap, bias, and which keys a query sees.

Rows of a block are queries and columns are keys, or the other way round for the gradients of keys and values. Where a query stands is known, or comes from memory (``Reader.start``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....codegen.ir.index import Number
from ....codegen.simt.attention.operands import unsigned
from ....codegen.simt.builder import Value
from .rows import Fragments, RowKernel

LOG2_E = 1.4426950408889634
FAR = 1 << 30
"""A distance that no two keys are apart."""


@dataclass(frozen=True)
class Span:
    """Blocks of rows and tiles of columns of one head.

    Attributes:
        first: the block's first row.
        rows: of the block.
        step: columns of a tile.
        limits: rows and columns that there are.
        by_query: whether rows are queries.
    """

    first: Value
    rows: int
    step: int
    limits: tuple[int, int]
    by_query: bool


class Scores:
    """Makes scores of products, in place.

    Args:
        kernel: where the code goes; its ``start`` is known.
        span: which rows and columns.
    """

    def __init__(self, kernel: RowKernel, span: Span) -> None:
        self.kernel, self.span = kernel, span
        attention, b = kernel.attention, kernel.builder
        self.builder, self.attention = b, attention
        window = attention.window
        self.window = None if window is None else min(window, FAR)
        self.last = b.let(b.as_signed(b.min(span.first + (span.rows - 1), span.limits[0] - 1)))
        self.begin = b.let(b.as_signed(span.first))
        self.bases: dict[str, Value] = {}

    @property
    def start(self) -> Number:
        """The key at which the first query stands."""
        return self.kernel.start

    def at(self, batch: Value, head: Value) -> None:
        """Find where the head's parts of a mask and a bias begin."""
        for name in ("mask", "bias"):
            if name in self.attention.operands:
                base = self.builder.index(self.kernel.head_of(name, batch, head))
                self.bases[name] = self.builder.let(base, f"{name}_base")

    # ------------------------------------------------------------- which tiles

    def ends(self) -> tuple[Value, Value]:
        """The first column of the first tile that the block's rows see any of, and where there are no more."""
        b, attention, start = self.builder, self.attention, self.start
        low: Number = 0
        high: Number = self.span.limits[1]
        reach = None if self.window is None else self.window - 1
        if self.span.by_query:
            if attention.causal:
                high = b.min(high, self.last + start + 1)
            elif reach is not None:
                high = b.min(high, self.last + start + (reach + 1))
            if reach is not None:
                low = b.max(low, self.begin + start - reach)
        else:
            if attention.causal:
                low = b.max(low, self.begin - start)
            elif reach is not None:
                low = b.max(low, self.begin - start - reach)
            if reach is not None:
                high = b.min(high, self.last - start + (reach + 1))
        step = self.span.step
        first = b.let(b.index(unsigned(b, low) // step * step), "low")
        return first, b.let(b.index(unsigned(b, b.max(high, 0))), "high")

    def is_hidden_somewhere(self, column: Value) -> Value | None:
        """Whether a tile from a column on has any score that is not seen; None where no tile has."""
        b, attention, span = self.builder, self.attention, self.span
        found = []
        if span.limits[1] % span.step:
            found.append(column + (span.step - 1) >= span.limits[1])
        near, far = b.as_signed(column), b.as_signed(column + (span.step - 1))
        # The least and the largest distance of a key before its query.
        if span.by_query:
            least, most = self.begin + self.start - far, self.last + self.start - near
        else:
            least, most = near + self.start - self.last, far + self.start - self.begin
        if attention.causal:
            found.append(least < 0)
        if self.window is not None:
            found.append(most >= self.window)
            if not attention.causal:
                found.append(least <= -self.window)
        hidden: Value | None = None
        for condition in found:
            hidden = condition if hidden is None else hidden | condition
        return hidden

    # ------------------------------------------------------------- scores

    def finish(self, scores: Fragments, column: Value) -> list[list[list[Value]]] | None:
        """Make scores of products; ``column`` is the tile's first. Returns tanh(score / softcap) of each where there is a softcap.

        Of a plain attention products stay as they are, but those that are hidden: the scale is part of the exponent.
        """
        b, kernel = self.builder, self.kernel
        squashed = None if kernel.problem.plain else self._computed(scores, column)
        hidden = self.is_hidden_somewhere(column)
        if hidden is not None:
            with b.if_(hidden):
                self._hide(scores, column)
        if "mask" in self.attention.operands:
            mask = self._reader("mask", column)
            for i, j, e in self._each(scores):
                seen = mask(i, j, e)
                scores[i][j][e].set(b.choose(seen, scores[i][j][e], kernel.hidden))
        return squashed

    def _each(self, scores: Fragments) -> list[tuple[int, int, int]]:
        return [
            (i, j, e) for i, own in enumerate(scores) for j in range(len(own)) for e in range(4)
        ]

    def _computed(self, scores: Fragments, column: Value) -> list[list[list[Value]]] | None:
        """Scale, cap and bias."""
        b, attention, cap = self.builder, self.attention, self.attention.softcap
        squashed: list[list[list[Value]]] = [[[] for _ in own] for own in scores]
        bias = self._reader("bias", column) if "bias" in attention.operands else None
        for i, j, e in self._each(scores):
            own = scores[i][j][e]
            own.set(own * attention.scale)
            if cap is not None:
                squashed[i][j].append(b.let(self.kernel.tanh(b.let(own / cap)), "squashed"))
                own.set(squashed[i][j][e] * cap)
            if bias is not None:
                own.set(own + bias(i, j, e))
        return squashed if cap is not None else None

    def _row(self, i: int, half: int) -> Value:
        """The number of a thread's row, with a sign."""
        return self.builder.as_signed(self.span.first + (self.kernel.row + (16 * i + 8 * half)))

    def _hide(self, scores: Fragments, column: Value) -> None:
        """Let the scores of keys that are not seen be -inf."""
        b, span, attention = self.builder, self.span, self.attention
        own = b.as_signed(column + self.kernel.column)
        left = b.let(span.limits[1] - own, "left") if span.limits[1] % span.step else None
        for i in range(self.kernel.tiles):
            for half in range(2):
                row = self._row(i, half)
                # Of the first column; it changes by one from column to column.
                distance = row + self.start - own if span.by_query else own + self.start - row
                distance = b.let(distance, "distance")
                for j, four in enumerate(scores[i]):
                    for e in (2 * half, 2 * half + 1):
                        at = 8 * j + e % 2
                        by = -at if span.by_query else at
                        found = [] if left is None else [left > at]
                        if attention.causal:
                            found.append(distance >= -by)
                        if self.window is not None:
                            found.append(distance < self.window - by)
                            if not attention.causal:
                                found.append(distance > -self.window - by)
                        seen = found[0]
                        for condition in found[1:]:
                            seen = seen & condition
                        four[e].set(b.choose(seen, four[e], self.kernel.hidden))

    def _reader(self, name: str, column: Value) -> Callable[[int, int, int], Value]:
        """What reads the elements of a mask or bias for a tile, as far as they exist."""
        b, kernel, span = self.builder, self.kernel, self.span
        number = kernel.number(name)
        of_row, of_column = (2, 3) if span.by_query else (3, 2)
        down, along = kernel.stride(name, of_row), kernel.stride(name, of_column)
        rows = [
            [
                b.let(
                    self.bases[name]
                    + b.as_unsigned(b.min(self._row(i, half), span.limits[0] - 1)) * down
                )
                for half in range(2)
            ]
            for i in range(kernel.tiles)
        ]
        columns = [
            [
                b.let(b.min(column + (kernel.column + (8 * j + x)), span.limits[1] - 1) * along)
                for x in range(2)
            ]
            for j in range(span.step // 8)
        ]
        return lambda i, j, e: b.let(number(b.let(rows[i][e // 2] + columns[j][e % 2])))
