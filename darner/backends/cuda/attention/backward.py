"""The gradients of attention by ``mma.sync``, without anything that two blocks add to.

First what is known of each query (``kept.write_kept``, or ``forward.write_known_again`` where the forward pass kept nothing). Then blocks of queries sum their gradients over keys, and blocks of keys theirs and those of values over the
queries of all heads that share them; there scores are computed with keys as rows, so that probabilities leave the products as the next ones take them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from ....codegen.simt.attention.operands import Place
from ....codegen.simt.attention.parts import Parts
from ....codegen.simt.attention.results import are_whole
from ....codegen.simt.builder import Memory, Value
from ....codegen.simt.dispatch import Stage, Written
from ....graph import dtypes
from ....graph.integers import ceil_div
from ....lower.plan import Spec
from ....lower.specs import sizes
from ..machine import Machine
from .forward import block_place, write_known_again, write_results
from .kept import write_kept
from .kernel import Kernel, Launch, Left, Loader
from .plan import Cut, forward_cuts, has_few_blocks, key_pass, query_pass, splits_keys
from .problem import Problem
from .rows import Fragments, RowKernel
from .scores import LOG2_E, Scores, Span
from .softmax import Known

GRADIENTS = ("q", "k", "v")
"""What gradients are of, in the order of the op's results."""


@dataclass(frozen=True)
class Statistics:
    """What is known of the query of a score; see ``softmax.Known``."""

    exponent: Value
    mean: Value
    share: Value


OfScore = Callable[[int, int, int], Statistics]
"""Those of a score: its tile of 16 rows, its 8 columns, and which of the thread's four."""


def write_backward(
    spec: Spec, machine: Machine, problem: Problem, cuts: tuple[Cut, Cut]
) -> Written:
    """The launches of the gradients that the body's results name; ``cuts`` are one of ``gradient_cuts``."""
    first = forward_cuts(problem, machine)[0]
    found = {
        GRADIENTS[output.attrs["index"]]: i
        for i, output in enumerate(spec.body.outputs)
        if prod(sizes(output))
    }
    if not found:
        return Written(())
    known = Known.of(problem, first.rows)
    if problem.attention.reads_kept:
        stages = [write_kept(spec, machine, known)]
    else:
        stages = [write_known_again(spec, machine, problem, first)]
    if "q" in found:
        stages.append(_of_queries(spec, machine, known, cuts[0], found["q"]))
    names = [name for name in ("k", "v") if name in found]
    parts = None
    if names and has_few_blocks(problem, cuts[1], machine):
        parts = Parts.of(problem.attention, found, known.nbytes)
    work = _KeyLaunch(spec, machine, known, cuts[1], parts)
    groups = [(name,) for name in names] if splits_keys(problem) else [names]
    stages += [work.write({name: found[name] for name in group}) for group in groups if group]
    if parts is None:
        return Written(tuple(stages), known.nbytes)
    return Written((*stages, parts.merge(spec, machine, found)), parts.end)


# --------------------------------------------------------------------------- what both kinds do


def probabilities(kernel: RowKernel, scores: Fragments, of: OfScore) -> None:
    """Scores as probabilities, in place."""
    b, problem = kernel.builder, kernel.problem
    scale = b.constant(problem.attention.scale * LOG2_E, dtypes.f32)
    for i, own in enumerate(scores):
        for j, four in enumerate(own):
            for e, score in enumerate(four):
                known = of(i, j, e)
                if problem.plain:
                    power = b.fma(score, scale, known.exponent)
                    score.set(kernel.ops.exp2(b.let(power)))
                else:
                    power = b.let((score - known.exponent) * LOG2_E)
                    score.set(kernel.ops.exp2(power) * known.share)


def slopes(
    scores: Fragments,
    products: Fragments,
    of: OfScore,
    squashed: list[list[list[Value]]] | None,
) -> None:
    """The gradients of scores in place of products; ``scores`` are probabilities."""
    for i, own in enumerate(products):
        for j, four in enumerate(own):
            for e, product in enumerate(four):
                slope = scores[i][j][e] * (product - of(i, j, e).mean)
                if squashed is not None:
                    cap = squashed[i][j][e]
                    slope = slope * (1.0 - cap * cap)
                product.set(slope)


def scale_all(kernel: RowKernel, sums: Fragments) -> None:
    """Multiply sums by the attention's scale."""
    for own in sums:
        for four in own:
            for value in four:
                value.set(value * kernel.attention.scale)


def _held(kernel: Kernel, names: Sequence[str], place: Place, head: Value) -> list[Left]:
    """Bring the block's rows of two operands to shared memory; returns what reads their fragments."""
    b, at, readers, loaders = kernel.builder, kernel.cores.base, [], []
    for name in names:
        rows = kernel.problem.rows[name]
        loader = kernel.loader(rows, kernel.cut.rows)
        loader.at(place.batch, head)
        loader.copy(b.index(place.first), at)
        loaders.append((loader, at))
        readers.append((at, rows))
        at = b.let(at + kernel.cut.rows * rows.pitch)
    kernel.cores.commit()
    kernel.cores.wait(0)
    for loader, own in loaders:
        loader.round(own)
    b.barrier()
    return [kernel.held(begin, rows) for begin, rows in readers]


# --------------------------------------------------------------------------- queries


def _of_queries(spec: Spec, machine: Machine, known: Known, cut: Cut, number: int) -> Stage:
    """The launch of the gradients of queries."""
    problem = known.problem
    attention, rows = problem.attention, problem.rows
    room = query_pass(problem).room(cut)
    kernel = Kernel(Launch(spec, machine, problem, cut, room, are_whole(spec, [number])))
    b = kernel.builder
    memory = known.memory(kernel)
    blocks = ceil_div(attention.queries, cut.rows)
    place = block_place(kernel, blocks, attention.heads, backwards=attention.causal)
    batch, head, first = (b.index(x) for x in (place.batch, place.head, place.first))
    kv_head = b.let(head // attention.group, "kv_head")
    kernel.write_start(place.batch)
    span = Span(first, cut.rows, cut.columns, (rows["q"].count, rows["k"].count), True)
    scores_of = Scores(kernel, span)
    scores_of.at(batch, head)
    own = of_rows(kernel, known, memory, place)
    queries, gradients = _held(kernel, ("q", "dy"), place, head)
    passing = [kernel.loader(rows[name], cut.columns) for name in ("k", "v")]
    for loader in passing:
        loader.at(place.batch, kv_head)
    sums = kernel.zeros(rows["q"].padded, "sum")
    begin = b.let(kernel.cores.base + room.held, "stages")
    for column, stage in kernel.passing(passing, begin, scores_of.ends()):
        scores, products = (kernel.zeros(cut.columns, name) for name in ("score", "product"))
        keys = kernel.right(stage, rows["k"].pitch)
        values = kernel.right(b.let(stage + room.first), rows["v"].pitch)
        kernel.multiply(scores, queries, keys, rows["k"].padded)
        kernel.multiply(products, gradients, values, rows["v"].padded)
        squashed = scores_of.finish(scores, column)
        probabilities(kernel, scores, own)
        slopes(scores, products, own, squashed)
        across = kernel.across(stage, rows["k"].pitch)
        kernel.multiply(sums, kernel.packed(products).__getitem__, across, cut.columns)
    scale_all(kernel, sums)
    write_results(kernel, sums, place, [number])
    return kernel.dispatch.finish(blocks * problem.heads)


def of_rows(kernel: RowKernel, known: Known, memory: Memory, place: Place) -> OfScore:
    """The statistics of a thread's rows, which are queries."""
    b, heads = kernel.builder, kernel.attention.heads
    base = b.let((place.batch * heads + place.head) * known.rows + place.first + kernel.row)
    last = known.rows - 1
    found = []
    for i in range(kernel.tiles):
        for half in range(2):
            own = 16 * i + 8 * half
            # The last block may have more rows than are known of.
            beyond = b.max(place.first + kernel.row + own, last) - last
            at = b.let(base + own - beyond, "known")
            numbers = [b.let(memory[at + k * known.each]) for k in range(known.COUNT)]
            found.append(Statistics(*numbers))
    return lambda i, j, e: found[2 * i + e // 2]


# --------------------------------------------------------------------------- keys and values


@dataclass(frozen=True)
class _KeyLaunch:
    """A launch of the gradients of keys, of values, or of both; with ``parts`` each query head has blocks of its own."""

    spec: Spec
    machine: Machine
    known: Known
    cut: Cut
    parts: Parts | None

    def write(self, found: dict[str, int]) -> Stage:
        """Write it; ``found`` are the numbers of the results."""
        spec, known, cut, parts = self.spec, self.known, self.cut, self.parts
        problem = known.problem
        attention, rows = problem.attention, problem.rows
        room = key_pass(problem, tuple(found)).room(cut)
        numbers = list(found.values())
        kernel = Kernel(Launch(spec, self.machine, problem, cut, room, are_whole(spec, numbers)))
        b = kernel.builder
        blocks, each = ceil_div(attention.keys, cut.rows), attention.group if parts else 1
        place = block_place(kernel, blocks, attention.kv_heads * each, backwards=False)
        batch, own_head, first = (b.index(x) for x in (place.batch, place.head, place.first))
        kv_head = b.let(own_head // each, "kv_head")
        kernel.write_start(place.batch)
        span = Span(first, cut.rows, cut.columns, (rows["k"].count, rows["q"].count), False)
        work = _KeyWork(kernel, Scores(kernel, span), known, found)
        work.left = _held(kernel, ("k", "v"), place, kv_head)
        loaders = [kernel.loader(rows[name], cut.columns) for name in ("q", "dy")]
        begin = b.let(kernel.cores.base + room.held, "stages")
        with b.for_(0, attention.group // each, name="member") as member:
            head = b.let(own_head if parts else kv_head * attention.group + member, "query_head")
            work.scores.at(batch, head)
            for loader in loaders:
                loader.at(place.batch, head)
            work.begin(loaders, b.let((batch * attention.heads + head) * known.rows, "known_head"))
            for column, stage in kernel.passing(loaders, begin, work.scores.ends(), work.copy):
                work.tile(column, stage)
        for name, number in found.items():
            if name == "k":
                scale_all(kernel, work.sums[name])
            if parts is not None:
                _write_parts(kernel, parts, name, work.sums[name], place)
            else:
                write_results(kernel, work.sums[name], place, [number], attention.keys)
        return kernel.dispatch.finish(blocks * attention.kv_heads * each * attention.batch)


def _write_parts(kernel: Kernel, parts: Parts, name: str, sums: Fragments, place: Place) -> None:
    """Leave a block's sums for who adds those of all heads; ``place`` says of which query head."""
    b, attention = kernel.builder, kernel.attention
    width, memory = kernel.problem.rows[name].width, parts.memory(kernel, vector=2)
    for i, own in enumerate(sums):
        for half in range(2):
            row = b.let(kernel.row + (16 * i + 8 * half) + place.first)
            with b.if_(row < attention.keys):
                item = b.let(parts.row(kernel, name, place, row) * 2 + (kernel.column >> 1))
                for j, four in enumerate(own[: ceil_div(width, 8)]):
                    inside = None if 8 * (j + 1) <= width else kernel.column + 8 * j < width
                    with b.if_(inside):
                        memory[item + 4 * j] = b.vector(four[2 * half : 2 * half + 2])


class _KeyWork:
    """A block of keys: its sums, and what a tile of queries adds to them."""

    left: list[Left]
    head: Value

    def __init__(self, kernel: Kernel, scores: Scores, known: Known, found: dict[str, int]) -> None:
        self.kernel, self.scores, self.known = kernel, scores, known
        self.memory = known.memory(kernel, vector=4)
        rows = kernel.problem.rows
        self.sums = {name: kernel.zeros(rows[name].padded, f"sum_{name}") for name in found}
        room = kernel.room
        self.statistics = room.stage - known.COUNT * kernel.cut.columns * 4

    def begin(self, loaders: Sequence[Loader], head: Value) -> None:
        """Let tiles be of another head, whose statistics begin there."""
        self.head = head

    def copy(self, row: Value, to: Value) -> None:
        """Copy the statistics of the queries from ``row`` on to a stage."""
        kernel, known = self.kernel, self.known
        b, each = kernel.builder, kernel.cut.columns // 4
        threads, total = kernel.cut.threads, known.COUNT * each
        for i in range(ceil_div(total, threads)):
            number = b.let(b.local + i * threads)
            with b.if_(None if total % threads == 0 else number < total):
                which, piece = b.let(number // each), b.let(number % each)
                # Tiles may reach beyond the rows that are known of; those queries are hidden.
                own = b.let(b.min(row // 4 + piece, known.rows // 4 - 1))
                item = b.let(self.head // 4 + which * (known.each // 4) + own)
                at = b.let(to + self.statistics + number * 16)
                kernel.cores.copy_async(at, self.memory, item, 16)

    def _of_columns(self, stage: Value) -> OfScore:
        """The statistics of a thread's columns, which are queries."""
        kernel = self.kernel
        b, columns = kernel.builder, kernel.cut.columns
        base = b.let(stage + self.statistics + kernel.column * 4, "known")
        plain = kernel.problem.plain

        def read(which: int, column: int) -> Value:
            return kernel.cores.load_one(b.let(base + (which * columns + column) * 4))

        found = []
        for j in range(columns // 8):
            for x in range(2):
                exponent, mean = read(0, 8 * j + x), read(1, 8 * j + x)
                share = exponent if plain else read(2, 8 * j + x)
                found.append(Statistics(exponent, mean, share))
        return lambda i, j, e: found[2 * j + e % 2]

    def tile(self, column: Value, stage: Value) -> None:
        """Add what a tile of queries, from ``column`` on, gives the block's keys."""
        kernel, rows = self.kernel, self.kernel.problem.rows
        b, columns = kernel.builder, kernel.cut.columns
        second = b.let(stage + kernel.room.first)
        known = self._of_columns(stage)
        scores = kernel.zeros(columns, "score")
        kernel.multiply(
            scores, self.left[0], kernel.right(stage, rows["q"].pitch), rows["k"].padded
        )
        products = kernel.zeros(columns if "k" in self.sums else 0, "product")
        if "k" in self.sums:
            gradients = kernel.right(second, rows["dy"].pitch)
            kernel.multiply(products, self.left[1], gradients, rows["v"].padded)
        squashed = self.scores.finish(scores, column)
        probabilities(kernel, scores, known)
        if "v" in self.sums:
            across = kernel.across(second, rows["dy"].pitch)
            kernel.multiply(self.sums["v"], kernel.packed(scores).__getitem__, across, columns)
        if "k" in self.sums:
            slopes(scores, products, known, squashed)
            across = kernel.across(stage, rows["q"].pitch)
            kernel.multiply(self.sums["k"], kernel.packed(products).__getitem__, across, columns)
