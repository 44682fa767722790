"""Attention's result by ``mma.sync``: a block of queries meets tile after tile of keys and values, and keeps a running softmax.

The same kernel finds what gradients need of each query: there it writes no result, but its exponent and the mean of its slopes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....codegen.ir.math import emit
from ....codegen.simt.attention.operands import Place, share_of
from ....codegen.simt.attention.results import RowBlock, are_whole, write_block
from ....codegen.simt.builder import Value, Variable
from ....codegen.simt.dispatch import Stage, Written
from ....graph import dtypes
from ....graph.integers import ceil_div
from ....lower.plan import Spec
from ..machine import Machine
from .kernel import Fragments, Kernel, Launch
from .plan import Cut, forward_pass, staged_pitch
from .problem import Problem
from .scores import LOG2_E, Scores, Span

LOWEST = -1e30
"""Where the maximum of plain scores begins: less than any, and times the scale still a number."""


def block_place(kernel: Kernel, blocks: int, heads: int, *, backwards: bool) -> Place:
    """What a block works on: all heads of one block of rows, then those of the next.

    Where attention is causal some blocks have more to do. These begin first, so that short ones fill in at the end: of queries the last ones (``backwards``), of keys the first.
    """
    b = kernel.builder
    total = heads * kernel.attention.batch
    number = b.let(b.group % total, "number")
    block = b.group // total
    if backwards:
        block = blocks - 1 - block
    return Place(
        batch=b.let(number // heads, "batch"),
        head=b.let(number % heads, "head"),
        first=b.let(block * kernel.cut.rows, "first"),
    )


@dataclass
class Softmax:
    """A running softmax of a warp's rows: what is known of each row that a thread has parts of.

    Attributes:
        top: the largest score, in base 2 times the scale where the attention is plain.
        total: of this thread's columns alone.
    """

    kernel: Kernel
    top: list[list[Variable]]
    total: list[list[Variable]]

    @classmethod
    def of(cls, kernel: Kernel) -> Softmax:
        """Before any key."""
        b, tiles = kernel.builder, kernel.cut.tiles
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

    def add(self, scores: Fragments, sums: Fragments) -> None:
        """Meet a tile: scores become exponentials, and sums so far are brought to the new top."""
        b, kernel = self.kernel.builder, self.kernel
        tops = self._tops(scores)
        for i, four_sums in enumerate(sums):
            for half in range(2):
                before = b.let((self.top[i][half] - tops[i][half]) * self.scale)
                factor = b.let(kernel.ops.exp2(before), "factor")
                self.top[i][half].set(tops[i][half])
                for four in four_sums:
                    for value in four[2 * half : 2 * half + 2]:
                        value.set(value * factor)
                self.total[i][half].set(self.total[i][half] * factor)
        self.powers(scores, tops)
        for i, own in enumerate(scores):
            for half in range(2):
                added = own[0][2 * half] + own[0][2 * half + 1]
                for four in own[1:]:
                    added = b.let(added + (four[2 * half] + four[2 * half + 1]))
                self.total[i][half].set(self.total[i][half] + added)

    def _tops(self, scores: Fragments) -> list[list[Value]]:
        """The largest score of each row so far and in a tile."""
        b = self.kernel.builder
        found: list[Value] = []
        for own, tops in zip(scores, self.top, strict=True):
            for half in range(2):
                most: Value = tops[half]
                for four in own:
                    most = b.let(b.max(b.max(most, four[2 * half]), four[2 * half + 1]))
                found.append(most)
        for mask in (1, 2):
            others = self.kernel.cores.shuffle_xor(found, mask)
            found = [b.let(b.max(x, y), "most") for x, y in zip(found, others, strict=True)]
        return [found[k : k + 2] for k in range(0, len(found), 2)]

    def totals(self) -> list[list[Value]]:
        """The totals of whole rows: four threads have parts of each."""
        return [quad_sums(self.kernel, own) for own in self.total]


def quad_sums(kernel: Kernel, values: Sequence[Value]) -> list[Value]:
    """The sums over the four threads that have parts of a row."""
    b = kernel.builder
    found = [b.let(value) for value in values]
    for mask in (1, 2):
        others = kernel.cores.shuffle_xor(found, mask)
        found = [b.let(x + y) for x, y in zip(found, others, strict=True)]
    return found


def write_attention(kernel: Kernel, place: Place) -> tuple[Fragments, Softmax]:
    """Write the loop over keys; returns the weighted sums of values, which are still to be divided by their totals."""
    b, problem, cut, room = kernel.builder, kernel.problem, kernel.cut, kernel.room
    rows = problem.rows
    batch = b.index(place.batch)
    kv_head = b.let(place.head // problem.attention.group, "kv_head")
    kernel.write_start(place.batch)
    first = b.index(place.first)
    span = Span(first, cut.rows, cut.columns, (rows["q"].count, rows["k"].count), True)
    scores_of = Scores(kernel, span)
    scores_of.at(batch, b.index(place.head))
    queries = kernel.loader(rows["q"], cut.rows)
    queries.at(place, b.index(place.head))
    passing = [kernel.loader(rows[name], cut.columns) for name in ("k", "v")]
    for loader in passing:
        loader.at(place, kv_head)
    queries.copy(first, kernel.cores.base)
    kernel.cores.commit()
    kernel.cores.wait(0)
    b.barrier()
    left = kernel.held(kernel.cores.base, rows["q"])
    running = Softmax.of(kernel)
    sums = kernel.zeros(rows["v"].padded, "sum")
    begin = b.let(kernel.cores.base + room.held, "stages")
    for column, stage in kernel.passing(passing, begin, scores_of.ends()):
        scores = kernel.zeros(cut.columns, "score")
        keys = kernel.right(stage, rows["k"].pitch)
        kernel.multiply(scores, left, keys, rows["k"].padded)
        scores_of.finish(scores, column)
        running.add(scores, sums)
        values = kernel.across(b.let(stage + room.first), rows["v"].pitch)
        kernel.multiply(sums, kernel.packed(scores), values, cut.columns)
    return sums, running


def write_forward(spec: Spec, machine: Machine, problem: Problem, cut: Cut) -> Written:
    """The launch of the result, and of what is computed of its elements."""
    numbers = range(len(spec.body.outputs))
    whole = are_whole(spec, numbers)
    room = forward_pass(problem).room(cut)
    kernel = Kernel(Launch(spec, machine, problem, cut, room, whole))
    b, attention = kernel.builder, problem.attention
    blocks = ceil_div(attention.queries, cut.rows)
    place = block_place(kernel, blocks, attention.heads, backwards=attention.causal)
    sums, running = write_attention(kernel, place)
    for own, totals in zip(sums, running.totals(), strict=True):
        shares = [b.let(share_of(kernel, total), "share") for total in totals]
        for four in own:
            for e, value in enumerate(four):
                value.set(value * shares[e // 2])
    write_results(kernel, sums, place, numbers)
    return Written((kernel.dispatch.finish(blocks * problem.heads),))


def write_results(
    kernel: Kernel, sums: Fragments, place: Place, numbers: Sequence[int], limit: int | None = None
) -> None:
    """Write sums as the rows of a block: the elements that the results ``numbers`` are made of."""
    node = kernel.problem.attention.node
    if kernel.problem.backward:
        node = kernel.dispatch.body.outputs[numbers[0]]
    width = int(node.shape[-1])
    element = kernel.store_rows(sums, width, staged_pitch(width))

    def vector(row: Value, quad: Value) -> Value:
        return kernel.builder.vector([element(row, quad * 4 + x) for x in range(4)])

    count = kernel.attention.queries if limit is None else limit
    write_block(kernel, RowBlock(node, numbers, place, kernel.cut.rows, count, element, vector))


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
    def of(cls, problem: Problem, cut: Cut) -> Known:
        """For a kernel that is cut so."""
        return cls(problem, ceil_div(problem.attention.queries, cut.rows) * cut.rows)

    @property
    def each(self) -> int:
        """Numbers of an array."""
        return self.problem.heads * self.rows

    @property
    def nbytes(self) -> int:
        """Of scratch memory."""
        return self.COUNT * self.each * 4


def write_statistics(spec: Spec, machine: Machine, problem: Problem, cut: Cut) -> Stage:
    """The launch that finds out what gradients need of each query."""
    room = forward_pass(problem).room(cut)
    kernel = Kernel(Launch(spec, machine, problem, cut, room))
    b, attention = kernel.builder, problem.attention
    known = Known.of(problem, cut)
    memory = kernel.dispatch.scratch(0, known.COUNT * known.each, dtypes.f32)
    blocks = ceil_div(attention.queries, cut.rows)
    place = block_place(kernel, blocks, attention.heads, backwards=attention.causal)
    sums, running = write_attention(kernel, place)
    head = b.let((place.batch * attention.heads + place.head) * known.rows, "known_head")
    slope = _slopes(kernel, place)
    for i, (own, totals) in enumerate(zip(sums, running.totals(), strict=True)):
        rows = [b.let(place.first + (kernel.row + (16 * i + 8 * half)), "row") for half in range(2)]
        parts = [slope([four[2 * h : 2 * h + 2] for four in own], rows[h]) for h in range(2)]
        for half, tilt in enumerate(quad_sums(kernel, parts)):
            row, total, top = rows[half], totals[half], running.top[i][half]
            share = b.let(share_of(kernel, total), "share")
            seen = b.let((total > 0.0) & (row < attention.queries))
            exponent: Value = top
            if problem.plain:
                log = emit("log", b, [b.let(b.choose(seen, total, 1.0))], [dtypes.f32], dtypes.f32)
                shift = -(top * running.scale) - log * LOG2_E
                exponent = b.choose(seen, shift, kernel.hidden)
            with b.if_((kernel.lane & 3) == 0):
                memory[head + row] = exponent
                memory[head + row + known.each] = b.choose(seen, tilt * share, 0.0)
                memory[head + row + 2 * known.each] = b.choose(seen, share, 0.0)
    return kernel.dispatch.finish(blocks * problem.heads)


def _slopes(kernel: Kernel, place: Place) -> Callable[[Sequence[Sequence[Value]], Value], Value]:
    """What multiplies a thread's sums of a row with the gradient of the result there, as it lies in memory."""
    b, rows = kernel.builder, kernel.problem.rows["dy"]
    memory = kernel.dispatch.operand(rows.leaf)
    head = kernel.head_item(rows, b.index(place.batch), b.index(place.head))
    kind = kernel.problem.dtype

    def slope(pairs: Sequence[Sequence[Value]], row: Value) -> Value:
        inside = b.min(row, rows.count - 1)
        base = b.let(head + inside * (rows.strides[2] // 8), "dy_row")
        total: Value = b.constant(0.0, dtypes.f32)
        for j, (low, high) in enumerate(pairs):
            if 8 * j >= rows.width:
                continue
            word = b.let(memory[b.let(base + j), b.let(kernel.column >> 1)])
            if kind is dtypes.f16:
                both = b.let(b.halves(word))
                first, second = both.x, both.y
            else:
                first = b.of_bits(word << 16, dtypes.f32)
                second = b.of_bits(word & 0xFFFF0000, dtypes.f32)
            total = b.let(b.fma(low, first, b.fma(high, second, total)))
        return total

    return slope
