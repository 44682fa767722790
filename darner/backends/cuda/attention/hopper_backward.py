"""The gradients of attention by ``wgmma``, in one launch of two kinds of blocks and without anything that is added to in turns.

Blocks of keys have 128 keys and values, and tiles of 64 queries and their gradients pass by; blocks of queries have 128 queries and gradients, and keys and values pass by. Neither exchanges anything while it
runs, and the two fill each other's gaps. Scores of keys are computed with keys as rows: probabilities and slopes never leave registers, which a product takes its rows from.

The query heads of a key head are a cluster, whose blocks add up their sums through each other's shared memory, in the order of heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from llvmlite import ir

from ....codegen.simt.attention.operands import Place
from ....codegen.simt.attention.results import are_whole
from ....codegen.simt.builder import Value, Variable
from ....codegen.simt.dispatch import Stage, Written
from ....graph.integers import ceil_div
from ....lower.plan import Spec
from ....lower.specs import sizes
from ..instructions import copies, mma, threads
from ..instructions.assembly import F32, I32, I64, assembly
from ..instructions.assembly import Value as Raw
from ..machine import Machine
from ..printer.memory import item_of
from .backward import GRADIENTS, OfScore, Statistics, of_rows, probabilities, slopes
from .hopper import ROW, SLAB, Barriers, HopperKernel, Ring, rows_map, slabs_of
from .hopper_forward import ForwardKernel, hopper_cuts
from .kept import write_kept
from .problem import Problem
from .rows import Fragments
from .scores import Scores, Span
from .softmax import Known

MAPPED = ("q", "k", "v", "dy")
"""Operands that tensor maps bring."""
TILE = 64
"""Rows that pass by at a time."""
BLOCK = 128
"""Rows of a block."""
MOST_TOGETHER = 8
"""Blocks of a cluster that every card takes."""
WIDEST = 128
"""Elements of a row that registers hold sums of."""
REGISTERS = 24, 240
"""Of a thread that brings, and of one that multiplies."""
L2_SHARE = 0.7
"""Of the L2 cache, for operands that blocks which run together read again."""


def can_write_hopper_backward(spec: Spec, machine: Machine, problem: Problem) -> bool:
    """Whether the gradients are computed so."""
    if not hopper_cuts(problem, machine) or problem.widest > WIDEST:
        return False
    if problem.attention.group > MOST_TOGETHER:
        return False
    if not are_whole(spec, range(len(spec.body.outputs))):
        return False
    return all(rows_map(problem, name, TILE) is not None for name in MAPPED)


def write_hopper_backward(spec: Spec, machine: Machine, problem: Problem) -> Written:
    """The launches of the gradients that the body's results name."""
    found = {
        GRADIENTS[output.attrs["index"]]: i
        for i, output in enumerate(spec.body.outputs)
        if prod(sizes(output))
    }
    if not found:
        return Written(())
    cut = hopper_cuts(problem, machine)[0]
    known = Known.of(problem, 64 * cut.groups)
    if problem.attention.reads_kept:
        first = write_kept(spec, machine, known)
    else:
        first = ForwardKernel(spec, machine, problem, cut, known).write()
    second = BackwardKernel(spec, machine, known, found).write()
    if problem.attention.reads_kept:
        second = replace(second, early=True)
    return Written((first, second), known.nbytes)


@dataclass(frozen=True)
class Kind:
    """A kind of blocks.

    Attributes:
        by_query: whether its rows are queries.
        held: the operands whose rows stay.
        passing: those whose rows pass by.
    """

    by_query: bool

    @property
    def held(self) -> tuple[str, str]:
        """The operands whose rows stay."""
        return ("q", "dy") if self.by_query else ("k", "v")

    @property
    def passing(self) -> tuple[str, str]:
        """The operands whose rows pass by."""
        return ("k", "v") if self.by_query else ("q", "dy")


class Layout:
    """Shared memory: rows that stay, stages of what passes by, statistics of queries that come along, then barriers."""

    def __init__(self, problem: Problem) -> None:
        rows = problem.rows
        self.slabs = slabs_of(rows["k"]), slabs_of(rows["v"])
        self.stages = 4 if sum(self.slabs) == 2 else 3
        self.tile = sum(self.slabs) * SLAB
        self.begin = 2 * self.tile
        self.statistics = self.begin + self.stages * self.tile
        self.held_in = Barriers(self.statistics + self.stages * 2 * TILE * 4, 1, 1)
        self.full = Barriers(self.held_in.end, self.stages, 1)
        self.empty = Barriers(self.full.end, self.stages, 2)
        self.nbytes = ceil_div(self.empty.end, 16) * 16

    def held(self, which: int) -> int:
        """Where the rows of an operand that stay begin; those of the second warpgroup come after."""
        return which * 2 * self.slabs[0] * SLAB

    def passing(self, which: int) -> int:
        """Where an operand begins in the first stage."""
        return self.begin + which * self.slabs[0] * SLAB


class BackwardKernel:
    """The kernel while it is written.

    Args:
        spec: what is computed.
        machine: for which GPU.
        known: what is kept of queries.
        found: the numbers of the results, by what they are gradients of.
    """

    def __init__(self, spec: Spec, machine: Machine, known: Known, found: dict[str, int]) -> None:
        self.spec, self.known, self.found, self.problem = spec, known, found, known.problem
        self.attention = self.problem.attention
        self.layout = Layout(self.problem)
        kernel = HopperKernel(spec, machine, self.problem, 2, self.layout.nbytes)
        self.kernel, self.builder, b = kernel, kernel.builder, kernel.builder
        kernel.row = b.let(kernel.first_row + (kernel.lane >> 2), "row_of_half")
        self.together = self.attention.group
        b.cluster = (self.together, 1, 1)
        self.rank: Value = b.held(threads.cluster_rank(b.ir)) if self.together > 1 else b.index(0)
        self.kinds = [Kind(False)] if {"k", "v"} & found.keys() else []
        self.kinds += [Kind(True)] if "q" in found else []
        self.maps: dict[str, Raw] = {}
        for name in MAPPED:
            described = rows_map(self.problem, name, TILE)
            if described is not None:
                self.maps[name] = b.tensor_map(described)
        self.memory = known.memory(kernel)
        self.section = self._section(machine)

    def _section(self, machine: Machine) -> int:
        """Key heads whose operands fit the L2 cache together: a divisor of all of them."""
        attention, rows = self.attention, self.problem.rows
        each = attention.keys * (rows["k"].width + rows["v"].width)
        each += self.together * attention.queries * (rows["q"].width + rows["dy"].width)
        total = attention.batch * attention.kv_heads
        most = max(1, int(L2_SHARE * machine.l2) // (2 * each))
        return max(n for n in range(1, total + 1) if total % n == 0 and n <= most)

    def levels(self, kind: Kind) -> int:
        """Blocks of rows of a head."""
        return ceil_div(self.attention.queries if kind.by_query else self.attention.keys, BLOCK)

    # ------------------------------------------------------------- the kernel

    def write(self) -> Stage:
        """Write it."""
        b, kernel, attention = self.builder, self.kernel, self.attention
        per, levels = self.section * len(self.kinds), max(map(self.levels, self.kinds))
        number = b.let(b.group // self.together)
        section, inside = b.let(number // (per * levels)), b.let(number % (per * levels))
        self.level, rest = b.let(inside // per, "level"), b.let(inside % per)
        head = b.let(section * self.section + rest % self.section)
        self.which = b.let(rest // self.section, "which")
        self.batch = b.let(head // attention.kv_heads, "batch")
        self.kv_head = b.let(head % attention.kv_heads, "kv_head")
        self.head = b.let(self.kv_head * self.together + self.rank, "head")
        kernel.write_start(self.batch)
        layout = self.layout
        kernel.initialise((layout.held_in, layout.full, layout.empty))
        if self.together > 1:
            threads.cluster_sync(b.ir)
        with b.if_(kernel.group == 2):
            threads.set_max_registers(b.ir, REGISTERS[0], more=False)
            self._by_kind(self._produce)
        with b.else_():
            threads.set_max_registers(b.ir, REGISTERS[1], more=True)
            self._by_kind(self._consume)
        total = attention.batch * attention.kv_heads * len(self.kinds) * levels
        return kernel.dispatch.finish(total * self.together)

    def _by_kind(self, write: Callable[[_Work], None]) -> None:
        """What blocks of each kind do; there are no rows for some."""
        b = self.builder
        most = max(map(self.levels, self.kinds))
        for number, kind in enumerate(self.kinds):
            exists = self.level < self.levels(kind) if self.levels(kind) < most else None
            own = self.which == number if len(self.kinds) > 1 else None
            with b.if_(own, exists):
                write(_Work(self, kind))

    def _produce(self, work: _Work) -> None:
        b, kernel = self.builder, self.kernel
        with b.if_(kernel.warp == 8):
            with b.if_(b.held(threads.elect(b.ir)) == 1):
                work.produce()
            threads.sync_warp(b.ir)
        if self.together > 1 and not work.kind.by_query:
            threads.cluster_sync(b.ir)
            threads.cluster_sync(b.ir)

    def _consume(self, work: _Work) -> None:
        work.consume()


class _Work:
    """What a block of one kind does, in a warp that brings or in one that multiplies."""

    def __init__(self, own: BackwardKernel, kind: Kind) -> None:
        self.own, self.kind, self.kernel, self.builder = own, kind, own.kernel, own.builder
        b, attention = self.builder, own.attention
        self.problem, self.layout = own.problem, own.layout
        counts = attention.queries, attention.keys
        self.limits = counts if kind.by_query else counts[::-1]
        levels = own.levels(kind)
        # Where attention is causal, the last queries and the first keys have most to do.
        level = levels - 1 - own.level if kind.by_query else own.level
        self.first = b.let(level * BLOCK, "first")
        self.low, self.tiles = self._range(self.first, BLOCK)
        self.heads = (own.head, own.kv_head) if kind.by_query else (own.kv_head, own.head)

    def _scores(self, first: Value, rows: int) -> Scores:
        return Scores(self.kernel, Span(first, rows, TILE, self.limits, self.kind.by_query))

    def _range(self, first: Value, rows: int) -> tuple[Value, Value]:
        """The first row that passes by, and how many tiles do: at least one."""
        b = self.builder
        low, high = self._scores(first, rows).ends()
        tiles = b.choose(high > low, (high + (TILE - 1) - low) // TILE, 1)
        return low, b.let(tiles, "tiles")

    def _row(self, number: Value) -> Value:
        """The first row of a tile: where attention is causal, tiles at the diagonal come first."""
        b = self.builder
        if self.kind.by_query:
            return b.let(self.low + (self.tiles - 1 - number) * TILE, "tile_row")
        return b.let(self.low + number * TILE, "tile_row")

    def _passing(self, stage: Value, which: int) -> Value:
        at = stage * self.layout.tile + self.layout.passing(which)
        return self.builder.let(self.kernel.base + at, "passing")

    def _statistics(self, stage: Value) -> Value:
        at = stage * (2 * TILE * 4) + self.layout.statistics
        return self.builder.let(self.kernel.base + at, "statistics")

    # ------------------------------------------------------------- bringing

    def produce(self) -> None:
        """Bring what stays, and then tile after tile."""
        b, kernel, own, layout = self.builder, self.kernel, self.own, self.layout
        barrier = kernel.expect(layout.held_in, 0, 2 * layout.tile)
        for which, name in enumerate(self.kind.held):
            for half in range(2):
                place = layout.held(which) + half * layout.slabs[which] * SLAB
                to = b.let(kernel.base + place)
                first = (b.let(self.first + 64 * half), self.heads[0], own.batch)
                kernel.bring_rows(name, own.maps[name], to, TILE, first, barrier)
        extra = 0 if self.kind.by_query else 2 * TILE * 4
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
                kernel.bring_rows(name, own.maps[name], address, TILE, at, barrier)
            if extra:
                self._bring_statistics(stage, row, barrier)
            ring.advance()

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
            there = b.raw(b.let(to + which * (TILE * 4)))
            copies.bulk_load(b.ir, there, address, TILE * 4, b.raw(barrier))

    # ------------------------------------------------------------- multiplying

    def consume(self) -> None:
        """Multiply, and write the gradients."""
        b, kernel, rows = self.builder, self.kernel, self.problem.rows
        self.half = b.let(self.first + kernel.group * 64, "half")
        self.scores = self._scores(self.half, 64)
        self.place = Place(self.own.batch, self.heads[0], self.half)
        self.of: OfScore | None = None
        if self.kind.by_query:
            self._wait_for_known()
            self.of = of_rows(kernel, self.own.known, self.own.memory, self.place)
        widths = (rows["k"].padded, rows["v"].padded)
        self.sums: list[Fragments] = [
            kernel.zeros(width, "sum") for width in widths[: 1 if self.kind.by_query else 2]
        ]
        kernel.wait(self.layout.held_in, 0, 0)
        self.lefts = [self._held(which, width) for which, width in enumerate(widths)]
        self.ring = Ring(b, self.layout.stages)
        skipped, count = self._own_tiles()
        with b.for_(0, skipped, name="skipped"):
            kernel.release(self.layout.empty, self._come())
        end = b.let(skipped + count, "end")
        if self.kind.by_query or sum(widths) <= OVERLAPPED:
            self._overlapped(skipped, end)
        else:
            self._serial(skipped, end)
        with b.for_(end, self.tiles, name="rest"):
            kernel.release(self.layout.empty, self._come())
        self._finish()

    def _own_tiles(self) -> tuple[Value, Value]:
        """Tiles of the block that this half passes over at first, and those that it meets: at least one."""
        b = self.builder
        low, tiles = self._range(self.half, 64)
        begin = b.let(b.min((low - self.low) // TILE, self.tiles - 1), "begin")
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
            return kernel.along_terms(at, TILE, width)
        row = b.let(kernel.first_row + (kernel.lane & 15))
        line, piece = b.let(at + row * ROW), b.let(kernel.lane >> 4)
        return [
            mma.ldmatrix(b.ir, b.raw(b.let(line + (((piece + 2 * k) ^ (row & 7)) << 4))))
            for k in range(width // 16)
        ]

    def _tile(
        self, stage: Value, row: Value, old: _Words | None = None
    ) -> tuple[list[list[Raw]], list[list[Raw]]]:
        """Probabilities and slopes of a tile as fragments; meanwhile the ``old`` ones are added to the sums."""
        b, kernel, rows = self.builder, self.kernel, self.problem.rows
        started = []
        for which, (left, name) in enumerate(zip(self.lefts, ("k", "v"), strict=True)):
            rights = kernel.along_terms(self._passing(stage, which), TILE, rows[name].padded)
            started.append(kernel.fresh(TILE, left, rights))
        sums = None if old is None else self._add(old)
        scores = kernel.fragments(kernel.waited(started[0], 2 if old else 1), "score")
        of = self.of or self._of_columns(stage)
        self.scores.finish(scores, row)
        probabilities(kernel, scores, of)
        products = kernel.fragments(kernel.waited(started[1], 1 if old else 0), "product")
        slopes(scores, products, of, None)
        if old is not None and sums is not None:
            self._end(sums, old)
            kernel.release(self.layout.empty, b.let(old.stage))
        weights = [] if self.kind.by_query else kernel.words(scores)
        return weights, kernel.words(products)

    def _of_columns(self, stage: Value) -> OfScore:
        """The statistics of a thread's columns, which are queries."""
        b, base = self.builder, self._statistics(stage)
        found = []
        for j in range(TILE // 8):
            for x in range(2):
                at = self.kernel.column * 4 + (32 * j + 4 * x)
                exponent, mean = (
                    self._shared(b.let(base + (at + w * (TILE * 4)))) for w in range(2)
                )
                found.append(Statistics(exponent, mean, exponent))
        return lambda i, j, e: found[2 * j + e % 2]

    def _shared(self, address: Value) -> Value:
        """An f32 of shared memory."""
        b = self.builder
        wide = b.ir.zext(b.raw(address), I64)
        pointer = b.ir.inttoptr(wide, ir.PointerType(addrspace=3))
        return b.held(b.ir.load(pointer, typ=F32, align=4))

    def _add(self, words: _Words) -> list[list[Raw]]:
        """Start to add a tile's products to the sums, as one group."""
        b, kernel = self.builder, self.kernel
        found = []
        given = [words.slopes] if self.kind.by_query else [words.slopes, words.weights]
        for which, (own, sums) in enumerate(zip(given, self.sums, strict=True)):
            rights = kernel.along_columns(self._passing(b.let(words.stage), which), TILE)
            flat = [b.raw(value) for four in sums[0] for value in four]
            last = which == len(given) - 1
            found.append(kernel.added(flat, own, rights, fence=which == 0, commit=last))
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
        _b, scale = self.builder, self.problem.attention.scale
        for four in self.sums[0][0]:
            for value in four:
                value.set(value * scale)
        names = ("q",) if self.kind.by_query else ("k", "v")
        if self.own.together > 1 and not self.kind.by_query:
            self._together(names)
            return
        for name, sums in zip(names, self.sums, strict=True):
            if name in self.own.found:
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
            if name in self.own.found:
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


OVERLAPPED = 160
"""Elements of rows of keys and values together up to which registers hold two tiles' worth of work."""
