"""A block of gradients by ``wgmma``: which kinds there are, where its tiles lie in shared memory, and what it does.

Rows of some operands stay, those of the others pass by in tiles. One warp brings them, two warpgroups multiply, 64 of the rows each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from ....codegen.simt.attention.operands import Place
from ....codegen.simt.builder import Memory, Value, Variable
from ....graph.integers import ceil_div
from ....lower.plan import Spec
from ..instructions import copies, mma, threads
from ..instructions.assembly import F32, I32, I64, assembly
from ..instructions.assembly import Value as Raw
from ..machine import Machine
from ..printer.memory import item_of
from .backward import OfScore, Statistics, of_rows, probabilities, scale_all, slopes
from .hopper import ROW, SLAB, WARPS, WIDE, Barriers, HopperKernel, Ring, slabs_of
from .problem import Problem
from .rows import Fragments
from .scores import Scores, Span
from .softmax import Known

HALF = 64
"""Rows of a warpgroup."""
BLOCK = 2 * HALF
"""Rows of a block."""
SPLIT = 256
"""Elements of rows of keys and values together from which on sums of both are more than registers hold: blocks have one of them."""


OVERLAPPED = 160
"""Elements of rows of keys and values together up to which registers hold two tiles' worth of work for sums of both."""
WIDEST = 192
"""Elements of a row up to which there are registers for scores and slopes of 64 columns beside its sum."""
OVERLAPPED_ALONE = 160
"""Elements of a row up to which they do for one sum, where slopes are computed."""


@dataclass(frozen=True)
class Kind:
    """A kind of blocks.

    Attributes:
        sums: of which operands it has the gradients: of queries; or of keys, of values, or of both.
    """

    sums: tuple[str, ...]

    @property
    def by_query(self) -> bool:
        """Whether its rows are queries."""
        return self.sums == ("q",)

    @property
    def has_slopes(self) -> bool:
        """Whether it needs the gradients of scores."""
        return self.sums != ("v",)

    @property
    def held(self) -> tuple[str, str]:
        """The operands whose rows stay."""
        return ("q", "dy") if self.by_query else ("k", "v")

    @property
    def passing(self) -> tuple[str, str]:
        """The operands whose rows pass by."""
        return ("k", "v") if self.by_query else ("q", "dy")


def kinds_of(problem: Problem, found: dict[str, int]) -> list[Kind]:
    """The kinds of blocks that make the gradients ``found``."""
    keys = tuple(name for name in ("k", "v") if name in found)
    rows = problem.rows
    if rows["k"].padded + rows["v"].padded > SPLIT:
        kinds = [Kind((name,)) for name in keys]
    else:
        kinds = [Kind(keys)] if keys else []
    return kinds + [Kind(("q",))] * ("q" in found)


class Layout:
    """Shared memory: rows that stay, stages of what passes by, statistics of queries that come along, then barriers.

    Attributes:
        rows: that pass by at a time.
        stages: tiles of them.
    """

    def __init__(self, problem: Problem, rows: int, stages: int) -> None:
        self.rows, self.stages = rows, stages
        own = problem.rows
        self.slabs = slabs_of(own["k"]), slabs_of(own["v"])
        self.half = sum(self.slabs) * SLAB
        self.tile = self.half * rows // HALF
        self.begin = 2 * self.half
        self.statistics = self.begin + stages * self.tile
        self.held_in = Barriers(self.statistics + stages * 2 * rows * 4, 1, 1)
        self.full = Barriers(self.held_in.end, stages, 1)
        self.empty = Barriers(self.full.end, stages, 2 * WARPS)
        self.nbytes = ceil_div(self.empty.end, 16) * 16

    @classmethod
    def of(cls, problem: Problem, machine: Machine) -> Layout | None:
        """The one with the largest tiles that there is room for; None where there is too little."""
        narrow = sum(slabs_of(problem.rows[name]) for name in ("k", "v")) == 2
        for rows, stages in ((64, 4 if narrow else 3), (64, 2), (32, 3), (32, 2)):
            found = cls(problem, rows, stages)
            fits = rows < HALF or problem.widest <= WIDEST
            if fits and found.nbytes <= machine.most_shared:
                return found
        return None

    def held(self, which: int) -> int:
        """Where the rows of an operand that stay begin; those of the second warpgroup come after."""
        return which * 2 * self.slabs[0] * SLAB

    def passing(self, which: int) -> int:
        """Where an operand begins in the first stage."""
        return self.begin + which * self.slabs[0] * SLAB * self.rows // HALF


@dataclass(frozen=True)
class Launched:
    """What blocks of all kinds of a launch have in common.

    Attributes:
        spec: what is computed.
        kernel: the launch.
        layout: its shared memory.
        known: what is kept of queries, in ``memory``.
        found: the numbers of the results, by what they are gradients of.
        maps: of the operands, by name.
        level: which of a head's blocks of rows it is, those with most to do first.
        batch: of the block; ``head`` and ``kv_head`` likewise.
        rank: the block's number in its cluster of so many ``together``.
    """

    spec: Spec
    kernel: HopperKernel
    layout: Layout
    known: Known
    memory: Memory
    found: dict[str, int]
    maps: dict[str, Raw]
    level: Value
    batch: Value
    head: Value
    kv_head: Value
    rank: Value
    together: int


class Work:
    """What a block of one kind does, in a warp that brings or in one that multiplies."""

    def __init__(self, own: Launched, kind: Kind) -> None:
        self.own, self.kind, self.kernel = own, kind, own.kernel
        self.problem, self.layout = own.known.problem, own.layout
        self.builder, self.step = own.kernel.builder, own.layout.rows
        b, attention = self.builder, self.problem.attention
        counts = attention.queries, attention.keys
        self.limits = counts if kind.by_query else counts[::-1]
        levels = ceil_div(counts[0] if kind.by_query else counts[1], BLOCK)
        # Where attention is causal, the last queries and the first keys have most to do.
        level = levels - 1 - own.level if kind.by_query else own.level
        self.first = b.let(level * BLOCK, "first")
        self.low, self.tiles = self._range(self.first, BLOCK)
        self.heads = (own.head, own.kv_head) if kind.by_query else (own.kv_head, own.head)

    def _scores(self, first: Value, rows: int) -> Scores:
        return Scores(self.kernel, Span(first, rows, self.step, self.limits, self.kind.by_query))

    def _range(self, first: Value, rows: int) -> tuple[Value, Value]:
        """The first row that passes by, and how many tiles do: at least one."""
        b = self.builder
        low, high = self._scores(first, rows).ends()
        step = self.step
        tiles = b.choose(high > low, (high + (step - 1) - low) // step, 1)
        return low, b.let(tiles, "tiles")

    def _row(self, number: Value) -> Value:
        """The first row of a tile: where attention is causal, tiles at the diagonal come first."""
        b = self.builder
        if self.kind.by_query:
            return b.let(self.low + (self.tiles - 1 - number) * self.step, "tile_row")
        return b.let(self.low + number * self.step, "tile_row")

    def _passing(self, stage: Value, which: int) -> Value:
        at = stage * self.layout.tile + self.layout.passing(which)
        return self.builder.let(self.kernel.base + at, "passing")

    def _statistics(self, stage: Value) -> Value:
        at = stage * (2 * self.step * 4) + self.layout.statistics
        return self.builder.let(self.kernel.base + at, "statistics")

    # ------------------------------------------------------------- bringing

    def produce(self) -> None:
        """Bring what stays, and then tile after tile."""
        b, kernel, own, layout = self.builder, self.kernel, self.own, self.layout
        barrier = kernel.expect(layout.held_in, 0, 2 * layout.half)
        for which, name in enumerate(self.kind.held):
            for half in range(2):
                self._hold(name, which, half, barrier)
        extra = 0 if self.kind.by_query else 2 * self.step * 4
        if extra:
            self._wait_for_known()
        ring = Ring(b, layout.stages)
        with b.for_(0, self.tiles, name="tile") as tile:
            stage, row = ring.stage, self._row(tile)
            kernel.wait(layout.empty, stage, b.let(ring.phase ^ 1))
            barrier = kernel.expect(layout.full, stage, layout.tile + extra)
            for which, name in enumerate(self.kind.passing):
                at = (row, self.heads[1], own.batch)
                address = self._passing(stage, which)
                kernel.bring_rows(name, own.maps[name], address, self.step, at, barrier)
            if extra:
                self._bring_statistics(stage, row, barrier)
            ring.advance()

    def _hold(self, name: str, which: int, half: int, barrier: Value) -> None:
        """Bring the rows of an operand that a warpgroup has: slabs of all of them, in parts as large as tiles."""
        b, kernel, own, layout = self.builder, self.kernel, self.own, self.layout
        first = layout.held(which) + half * layout.slabs[which] * SLAB
        for slab in range(slabs_of(self.problem.rows[name])):
            for row in range(0, HALF, self.step):
                to = b.let(kernel.base + (first + slab * SLAB + row * ROW))
                place = b.let(self.first + (HALF * half + row)), self.heads[0], own.batch
                kernel.bring(own.maps[name], to, (WIDE * slab, *place), barrier)

    def _wait_for_known(self) -> None:
        """What is known of queries is written by the launch ahead, which this one need not wait for until here."""
        if self.problem.attention.reads_kept:
            threads.wait_for_launch(self.builder.ir)

    def _bring_statistics(self, stage: Value, row: Value, barrier: Value) -> None:
        b, own, known = self.builder, self.own, self.own.known
        head = own.batch * self.problem.attention.heads + own.head
        item = b.let(head * known.rows + row)
        to = self._statistics(stage)
        for which in range(2):
            place = b.let(item + which * known.each)
            address = b.address(own.memory, item_of(own.memory), b.index(place))
            there = b.raw(b.let(to + which * (self.step * 4)))
            copies.bulk_load(b.ir, there, address, self.step * 4, b.raw(barrier))

    # ------------------------------------------------------------- multiplying

    def consume(self) -> None:
        """Multiply, and write the gradients."""
        b, kernel, rows = self.builder, self.kernel, self.problem.rows
        self.half = b.let(self.first + kernel.group * HALF, "half")
        self.scores = self._scores(self.half, HALF)
        self.place = Place(self.own.batch, self.heads[0], self.half)
        self.of: OfScore | None = None
        if self.kind.by_query:
            self._wait_for_known()
            self.of = of_rows(kernel, self.own.known, self.own.memory, self.place)
        widths = (rows["k"].padded, rows["v"].padded)
        names = self.kind.sums
        self.sums: list[Fragments] = [kernel.zeros(rows[name].padded, "sum") for name in names]
        kernel.wait(self.layout.held_in, 0, 0)
        self.lefts = [self._held(which, width) for which, width in enumerate(widths)]
        self.ring = Ring(b, self.layout.stages)
        skipped, count = self._own_tiles()
        with b.for_(0, skipped, name="skipped"):
            kernel.release(self.layout.empty, self._come())
        end = b.let(skipped + count, "end")
        if self._overlaps():
            self._overlapped(skipped, end)
        else:
            self._serial(skipped, end)
        with b.for_(end, self.tiles, name="rest"):
            kernel.release(self.layout.empty, self._come())
        self._finish()

    def _overlaps(self) -> bool:
        """Whether registers hold two tiles' worth of work."""
        rows, sums = self.problem.rows, self.kind.sums
        width = sum(rows[name].padded for name in sums)
        if len(sums) > 1:
            return width <= OVERLAPPED
        return width <= OVERLAPPED_ALONE or not self.kind.has_slopes

    def _own_tiles(self) -> tuple[Value, Value]:
        """Tiles of the block that this half passes over at first, and those that it meets: at least one."""
        b = self.builder
        low, tiles = self._range(self.half, HALF)
        begin = b.let(b.min((low - self.low) // self.step, self.tiles - 1), "begin")
        count = b.let(b.min(tiles, self.tiles - begin), "count")
        if self.kind.by_query:
            return b.let(self.tiles - begin - count, "skipped"), count
        return begin, count

    def _held(self, which: int, width: int) -> list[Raw] | list[list[Raw]]:
        """The rows of this half, for each 16 terms: fragments where they fit registers, or where they lie."""
        b, kernel, layout = self.builder, self.kernel, self.layout
        slabs = layout.slabs[which]
        at = b.let(kernel.base + (layout.held(which) + kernel.group * (slabs * SLAB)), "held")
        if sum(layout.slabs) > 2:
            return kernel.along_terms(at, HALF, width)
        row = b.let(kernel.first_row + (kernel.lane & 15))
        line, piece = b.let(at + row * ROW), b.let(kernel.lane >> 4)
        return [
            mma.ldmatrix(b.ir, b.raw(b.let(line + (((piece + 2 * k) ^ (row & 7)) << 4))))
            for k in range(width // 16)
        ]

    def _tile(
        self, stage: Value, row: Value, old: _Words | None = None
    ) -> tuple[list[list[Raw]], list[list[Raw]]]:
        """Probabilities and slopes of a tile as fragments, those that are needed; meanwhile the ``old`` ones are added to the sums."""
        b, kernel, rows, kind = self.builder, self.kernel, self.problem.rows, self.kind
        started = []
        for which in range(2 if kind.has_slopes else 1):
            width = rows[("k", "v")[which]].padded
            rights = kernel.along_terms(self._passing(stage, which), self.step, width)
            started.append(kernel.fresh(self.step, self.lefts[which], rights))
        sums = None if old is None else self._add(old)
        after = 0 if old is None else 1
        scores = kernel.fragments(kernel.waited(started[0], after + len(started) - 1), "score")
        of = self.of or self._of_columns(stage)
        self.scores.finish(scores, row)
        probabilities(kernel, scores, of)
        products: Fragments = [[]]
        if kind.has_slopes:
            products = kernel.fragments(kernel.waited(started[1], after), "product")
            slopes(scores, products, of, None)
        if old is not None and sums is not None:
            self._end(sums, old)
            kernel.release(self.layout.empty, b.let(old.stage))
        weights = kernel.words(scores) if "v" in kind.sums else []
        return weights, kernel.words(products)

    def _of_columns(self, stage: Value) -> OfScore:
        """The statistics of a thread's columns, which are queries."""
        b, base = self.builder, self._statistics(stage)
        found = []
        for j in range(self.step // 8):
            at = b.let(base + (self.kernel.column * 4 + 32 * j))
            both = [self._shared_pair(b.let(at + w * (self.step * 4))) for w in range(2)]
            for exponent, mean in zip(*both, strict=True):
                found.append(Statistics(exponent, mean, exponent))
        return lambda i, j, e: found[2 * j + e % 2]

    def _shared_pair(self, address: Value) -> list[Value]:
        """Two f32 of shared memory, at a multiple of 8."""
        b = self.builder
        pointer = b.ir.inttoptr(b.ir.zext(b.raw(address), I64), ir.PointerType(addrspace=3))
        both = b.ir.load(pointer, typ=ir.VectorType(F32, 2), align=8)
        return [b.held(b.ir.extract_element(both, ir.Constant(I32, i))) for i in range(2)]

    def _add(self, words: _Words) -> list[list[Raw]]:
        """Start to add a tile's products to the sums, as one group."""
        b, kernel = self.builder, self.kernel
        found = []
        for number, (name, sums) in enumerate(zip(self.kind.sums, self.sums, strict=True)):
            which, own = (1, words.weights) if name == "v" else (0, words.slopes)
            rights = kernel.along_columns(self._passing(b.let(words.stage), which), self.step)
            flat = [b.raw(value) for four in sums[0] for value in four]
            last = number == len(self.sums) - 1
            found.append(kernel.added(flat, own, rights, fence=number == 0, commit=last))
        return found

    def _end(self, started: Sequence[Sequence[Raw]], words: _Words) -> None:
        """Wait for the sums."""
        b = self.builder
        flat = [value for raw in started for value in raw]
        ended = self.kernel.waited(flat, 0, [*words.weights, *words.slopes])
        variables = [value for sums in self.sums for four in sums[0] for value in four]
        for variable, value in zip(variables, ended, strict=True):
            variable.set(b.held(value))

    def _come(self) -> Value:
        """Wait for the next tile; returns its stage."""
        stage = self.ring.stage
        self.kernel.wait(self.layout.full, stage, self.ring.phase)
        self.ring.advance()
        return stage

    def _serial(self, first: Value, end: Value) -> None:
        """Tile by tile."""
        b = self.builder
        with b.for_(first, end, name="tile") as tile:
            stage = self._come()
            words = _Words(b.variable(stage, "stage"), *self._tile(stage, self._row(tile)))
            self._end(self._add(words), words)
            self.kernel.release(self.layout.empty, stage)

    def _overlapped(self, first: Value, end: Value) -> None:
        """The last products of a tile run while the next one's scores are worked on."""
        b = self.builder
        stage = self._come()
        weights, slopes_ = self._tile(stage, self._row(first))
        kept = [
            [[b.variable(b.held(word), "word") for word in words] for words in group]
            for group in (weights, slopes_)
        ]
        previous = b.variable(stage, "previous")

        def old() -> _Words:
            raw = [[[b.raw(word) for word in words] for words in group] for group in kept]
            return _Words(previous, raw[0], raw[1])

        with b.for_(b.let(first + 1), end, name="tile") as tile:
            stage = self._come()
            found = self._tile(stage, self._row(tile), old())
            for variables, group in zip(kept, found, strict=True):
                for own, words in zip(variables, group, strict=True):
                    for variable, word in zip(own, words, strict=True):
                        variable.set(b.held(word))
            previous.set(stage)
        last = old()
        self._end(self._add(last), last)
        self.kernel.release(self.layout.empty, b.let(previous))

    # ------------------------------------------------------------- results

    def _finish(self) -> None:
        names = self.kind.sums
        if self.kind.has_slopes:
            scale_all(self.kernel, self.sums[0])
        if self.own.together > 1 and not self.kind.by_query:
            self._together(names)
            return
        for name, sums in zip(names, self.sums, strict=True):
            number = self.own.found[name]
            node = self.own.spec.body.outputs[number]
            self.kernel.write_pairs(sums, node, [number], self.place, self.limits[0])

    def _together(self, names: Sequence[str]) -> None:
        """Add up the sums of a cluster: each block those pairs whose number is its own."""
        b, kernel, _together = self.builder, self.kernel, self.own.together
        flat = [four[h : h + 2] for sums in self.sums for four in sums[0] for h in (0, 2)]
        # Both halves are through with all tiles: sums may lie over them.
        assembly(b.ir, "bar.sync 1, 256;")
        mine = b.let(kernel.base + b.local * 8, "mine")
        for number, (low, high) in enumerate(flat):
            address = b.raw(b.let(mine + number * 2048))
            copies.store_shared(b.ir, address, [b.raw(low), b.raw(high)])
        threads.cluster_sync(b.ir)
        first = 0
        for name, sums in zip(names, self.sums, strict=True):
            pairs = 2 * len(sums[0])
            self._write_sums(name, mine, first, pairs)
            first += pairs
        # Nobody leaves while another reads its memory.
        threads.cluster_sync(b.ir)

    def _write_sums(self, name: str, mine: Value, first: int, pairs: int) -> None:
        """Add up those pairs of sums of all blocks whose number is the block's own, and write them."""
        b, together = self.builder, self.own.together
        number = self.own.found[name]
        node = self.own.spec.body.outputs[number]
        for n in range(ceil_div(pairs, together)):
            pair = b.let(self.own.rank + n * together, "pair")
            with b.if_(None if (n + 1) * together <= pairs else pair < pairs):
                total = self._sum_of_blocks(b.let(mine + (pair + first) * 2048))
                at = (b.let(pair // 2), b.let(pair % 2), self.limits[0])
                self.kernel.write_pair(total, node, number, self.place, at)

    def _sum_of_blocks(self, address: Value) -> list[Value]:
        """The sum of what all blocks of the cluster have at an address, in their order."""
        b = self.builder
        text = (
            "{ .reg .b32 there; mapa.shared::cluster.u32 there, $2, $3; "
            "ld.shared::cluster.v2.f32 {$0, $1}, [there]; }"
        )
        total: list[Value] = []
        for rank in range(self.own.together):
            given = [b.raw(address), ir.Constant(I32, rank)]
            found: list[Value] = [b.held(x) for x in assembly(b.ir, text, [F32, F32], given)]
            total = [b.let(x + y) for x, y in zip(total, found, strict=True)] if total else found
        return total


@dataclass(frozen=True)
class _Words:
    """What a tile adds to sums: the stage that it lies in, and fragments of probabilities and slopes."""

    stage: Variable
    weights: list[list[Raw]]
    slopes: list[list[Raw]]
