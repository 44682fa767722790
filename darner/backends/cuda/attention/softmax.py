"""A running softmax of the rows of a warp, and what is kept of it for gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add

from ....codegen.ir.index import Number
from ....codegen.ir.math import emit
from ....codegen.simt.attention.operands import Place, share_of
from ....codegen.simt.attention.results import keeps_statistics, write_statistics
from ....codegen.simt.builder import Memory, Simt, Value, Variable
from ....graph import dtypes
from ....graph.integers import ceil_div
from .problem import Problem
from .rows import Fragments, RowKernel, pair_of
from .scores import LOG2_E

CHAINS = 4
"""Sums or maxima of a row that a thread has under way: additions depend on each other."""
LOWEST = -1e30
"""Where the maximum of plain scores begins: less than any, and times the scale still a number."""


def combined(
    builder: Simt, numbers: Sequence[Value], combine: Callable[[Value, Value], Number]
) -> Value:
    """Some numbers as one, in a few chains that do not wait for each other."""
    chains = [builder.let(number) for number in numbers[:CHAINS]]
    for number, value in enumerate(numbers[CHAINS:]):
        chains[number % CHAINS] = builder.let(combine(chains[number % CHAINS], value))
    while len(chains) > 1:
        pairs = zip(chains[::2], chains[1::2], strict=False)
        rest = chains[-1:] if len(chains) % 2 else []
        chains = [*(builder.let(combine(x, y)) for x, y in pairs), *rest]
    return chains[0]


@dataclass
class Softmax:
    """A running softmax of a warp's rows: what is known of each row that a thread has parts of.

    Attributes:
        top: the largest score, in base 2 times the scale where the attention is plain.
        total: of this thread's columns alone.
    """

    kernel: RowKernel
    top: list[list[Variable]]
    total: list[list[Variable]]

    @classmethod
    def of(cls, kernel: RowKernel) -> Softmax:
        """Before any key."""
        b, tiles = kernel.builder, kernel.tiles
        initial = b.constant(LOWEST, dtypes.f32) if kernel.problem.plain else kernel.lowest
        top = [[b.variable(initial, "top") for _ in range(2)] for _ in range(tiles)]
        total = [[b.variable(0.0, "total", dtypes.f32) for _ in range(2)] for _ in range(tiles)]
        return cls(kernel, top, total)

    @property
    def scale(self) -> float:
        """What differences of scores are multiplied by to be powers of 2."""
        problem = self.kernel.problem
        return LOG2_E * (problem.attention.scale if problem.plain else 1.0)

    def powers(self, scores: Fragments, top: Sequence[Sequence[Value]]) -> None:
        """Exponentials of scores less their row's top, in place."""
        b, exp2 = self.kernel.builder, self.kernel.ops.exp2
        scale = b.constant(self.scale, dtypes.f32)
        for own, tops in zip(scores, top, strict=True):
            lows = [b.let(-(most * self.scale), "low") for most in tops]
            for four in own:
                for e, score in enumerate(four):
                    if self.kernel.problem.plain:
                        score.set(exp2(b.let(b.fma(score, scale, lows[e // 2]))))
                    else:
                        # The lowest number of a bias, times a factor, would be infinite.
                        score.set(exp2(b.let((score - tops[e // 2]) * self.scale)))

    def meet(self, scores: Fragments) -> list[list[Value]]:
        """Meet a tile: scores become exponentials; returns what brings the sums of each row so far to its new top."""
        b, kernel = self.kernel.builder, self.kernel
        tops = self._tops(scores)
        factors: list[list[Value]] = []
        for i, own_tops in enumerate(tops):
            factors.append([])
            for half, top in enumerate(own_tops):
                before = b.let((self.top[i][half] - top) * self.scale)
                factor = b.let(kernel.ops.exp2(before), "factor")
                self.top[i][half].set(top)
                self.total[i][half].set(self.total[i][half] * factor)
                factors[i].append(factor)
        self.powers(scores, tops)
        for i, own in enumerate(scores):
            for half in range(2):
                numbers = [value for four in own for value in four[2 * half : 2 * half + 2]]
                added = combined(b, numbers, add)
                self.total[i][half].set(self.total[i][half] + added)
        return factors

    def _tops(self, scores: Fragments) -> list[list[Value]]:
        """The largest score of each row so far and in a tile."""
        b = self.kernel.builder
        found: list[Value] = []
        for own, tops in zip(scores, self.top, strict=True):
            for half in range(2):
                numbers = [value for four in own for value in four[2 * half : 2 * half + 2]]
                found.append(combined(b, [tops[half], *numbers], b.max))
        for mask in (1, 2):
            others = self.kernel.shuffled(found, mask)
            found = [b.let(b.max(x, y), "most") for x, y in zip(found, others, strict=True)]
        return [found[k : k + 2] for k in range(0, len(found), 2)]

    def totals(self) -> list[list[Value]]:
        """The totals of whole rows: four threads have parts of each."""
        return [self.kernel.quad_sums(own) for own in self.total]

    def shares(self, place: Place) -> list[list[Value]]:
        """What sums are multiplied by in the end: 1 over each row's total; what the kernel keeps for gradients is written."""
        b, totals = self.kernel.builder, self.totals()
        if keeps_statistics(self.kernel):
            self._keep(place, totals)
        return [[b.let(share_of(self.kernel, total), "share") for total in own] for own in totals]

    def _keep(self, place: Place, totals: Sequence[Sequence[Value]]) -> None:
        kernel, b = self.kernel, self.kernel.builder
        scale = kernel.attention.scale if kernel.problem.plain else 1.0
        with b.if_((kernel.lane & 3) == 0):
            for i, own in enumerate(totals):
                for half, total in enumerate(own):
                    row = b.let(place.first + (kernel.row + (16 * i + 8 * half)), "row")
                    with b.if_(row < kernel.attention.queries):
                        write_statistics(kernel, place, row, self.top[i][half] * scale, total)


def scale_rows(sums: Fragments, factors: Sequence[Sequence[Value]]) -> None:
    """Multiply the sums of each row by its own factor."""
    for own, of_rows in zip(sums, factors, strict=True):
        for four in own:
            for e, value in enumerate(four):
                value.set(value * of_rows[e // 2])


# --------------------------------------------------------------------------- statistics


@dataclass(frozen=True)
class Known:
    """What is kept of each query in scratch memory: ``COUNT`` numbers, each an array over heads whose rows are filled up to ``rows``.

    The exponent: what is added to the scores of a plain attention, in base 2, to have probabilities as powers; of others their top.
    The mean of slopes. The share, 1 over the total: of a plain attention it is part of the exponent.
    """

    problem: Problem
    rows: int

    COUNT = 3

    @classmethod
    def of(cls, problem: Problem, rows: int) -> Known:
        """For a kernel whose blocks have so many rows."""
        return cls(problem, ceil_div(problem.attention.queries, rows) * rows)

    @property
    def each(self) -> int:
        """Numbers of an array."""
        return self.problem.heads * self.rows

    @property
    def nbytes(self) -> int:
        """Of scratch memory."""
        return self.COUNT * self.each * 4

    def memory(self, kernel: RowKernel, vector: int = 1) -> Memory:
        """The scratch memory in a launch."""
        return kernel.dispatch.scratch(0, self.COUNT * self.each, dtypes.f32, vector=vector)


def write_known(
    kernel: RowKernel, known: Known, place: Place, sums: Fragments, running: Softmax
) -> None:
    """Write what is known of a block's queries; ``sums`` are still to be divided by their totals."""
    b, problem = kernel.builder, kernel.problem
    attention, memory = problem.attention, known.memory(kernel)
    head = b.let((place.batch * attention.heads + place.head) * known.rows, "known_head")
    slope = _slopes(kernel, place)
    for i, (own, totals) in enumerate(zip(sums, running.totals(), strict=True)):
        rows = [b.let(place.first + (kernel.row + (16 * i + 8 * half)), "row") for half in range(2)]
        parts = [slope([four[2 * h : 2 * h + 2] for four in own], rows[h]) for h in range(2)]
        for half, tilt in enumerate(kernel.quad_sums(parts)):
            row, total, top = rows[half], totals[half], running.top[i][half]
            share = b.let(share_of(kernel, total), "share")
            seen = b.let((total > 0.0) & (row < attention.queries))
            exponent: Value = top
            if problem.plain:
                log = emit("log", b, [b.let(b.choose(seen, total, 1.0))], [dtypes.f32], dtypes.f32)
                shift = -(top * running.scale) - b.let(log) * LOG2_E
                exponent = b.choose(seen, shift, kernel.hidden)
            with b.if_((kernel.lane & 3) == 0):
                memory[head + row] = exponent
                memory[head + row + known.each] = b.choose(seen, tilt * share, 0.0)
                memory[head + row + 2 * known.each] = b.choose(seen, share, 0.0)


def _slopes(kernel: RowKernel, place: Place) -> Callable[[Sequence[Sequence[Value]], Value], Value]:
    """What multiplies a thread's sums of a row with the gradient of the result there, as it lies in memory."""
    b, rows = kernel.builder, kernel.problem.rows["dy"]
    memory = kernel.dispatch.operand(rows.leaf)
    head = kernel.head_item(rows, place.batch, place.head)

    def slope(pairs: Sequence[Sequence[Value]], row: Value) -> Value:
        inside = b.min(row, rows.count - 1)
        base = b.let(head + inside * (rows.strides[2] // rows.piece), "dy_row")
        total: Value = b.constant(0.0, dtypes.f32)
        for j, (low, high) in enumerate(pairs):
            if 8 * j >= rows.width:
                continue
            first, second = pair_of(kernel, memory, base, j)
            total = b.let(b.fma(low, first, b.fma(high, second, total)))
        return total

    return slope
