"""Attention of few queries over many keys by ``mma.sync``: keys and values are read once for all queries of the heads that share them, and how fast they are read is all that counts.

A warp has 16 keys at a time. Lane ``4 g + t`` has row ``g`` of the queries, and of the scores those of the keys ``4 t`` to ``4 t + 3``, which are the terms that it multiplies with values: keys are read in the order that makes
them so, straight from memory to registers. Warps of a block, and the blocks of a cluster, have keys of their own; what they have is put together at the end, in their order. More blocks than a cluster has, and cards without clusters,
leave it to a second launch (``codegen.simt.attention.merge``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from ....codegen.simt.attention.decode import part_of_keys
from ....codegen.simt.attention.merge import Records
from ....codegen.simt.attention.operands import Place, Reader, share_of
from ....codegen.simt.attention.results import RowBlock, are_whole, write_block
from ....codegen.simt.builder import Memory, Value, Variable
from ....codegen.simt.dispatch import Stage, Written
from ....graph import dtypes
from ....graph.integers import ceil_div
from ....lower.plan import Spec
from ..instructions.scalars import LN_2, lane_of
from ..instructions.stream import streaming_of
from ..instructions.warp import cores_of
from ..machine import CLUSTERS, Machine
from ..printer import Printer
from .problem import PIECE, Problem, Rows

WARP = 32
KEYS = 16
"""Keys that a warp has at a time."""
MOST_ROWS = 16
"""Queries of the heads that share keys."""
MOST_PARTS = 8
"""Blocks of a cluster."""
MOST_SHARED = 40 << 10
"""Bytes of shared memory for what warps have at the end."""
LONG = 4 << 20
"""Bytes of keys and values from which on it pays to have more blocks than clusters have, and a second launch."""
ELEMENTS = PIECE // 2
"""Of a piece: factors have 16 bits here."""
LOADS = 16
"""Pieces that a lane asks for before it uses the first."""


@dataclass(frozen=True)
class FewCut:
    """How the work is shared out.

    Attributes:
        warps: of a block.
        units: sixteens of keys that a warp has at a time.
        parts: blocks that share the keys of a head.
        joined: whether they are a cluster.
    """

    warps: int
    units: int
    parts: int
    joined: bool

    @property
    def name(self) -> str:
        """What tells it from others."""
        parts = f", {self.parts} {'blocks of a cluster' if self.joined else 'parts'}"
        return f"few queries by {self.warps} warps{parts if self.parts > 1 else ''}"

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.warps * WARP


def few_cuts(problem: Problem, machine: Machine) -> list[FewCut]:
    """How an attention of few queries may be cut: what is expected to be best first; none where it has too many."""
    attention = problem.attention
    rows = attention.group * attention.queries
    if rows > MOST_ROWS or not (problem.plain and problem.dtype.is_half) or problem.backward:
        return []
    strips = ceil_div(attention.value_width, 64)
    loads = 2 * ceil_div(attention.width, 32) + 4 * strips
    units = max(1, min(LOADS // loads, 2))
    heads = attention.batch * attention.kv_heads
    found = []
    for warps in (8, 4, 2):
        if 4 * warps * rows * attention.value_width > MOST_SHARED:
            continue
        blocks = ceil_div(attention.keys, warps * KEYS)
        wanted = max(1, min(blocks, ceil_div(2 * machine.processors, heads)))
        held = 2 * heads * attention.keys * (attention.width + attention.value_width)
        clusters = machine.capability >= CLUSTERS and not machine.emulated
        if clusters and (wanted <= MOST_PARTS or held < LONG):
            found.append(FewCut(warps, units, min(wanted, MOST_PARTS), joined=True))
        else:
            found.append(FewCut(warps, units, wanted, joined=False))
    return found


def write_few(spec: Spec, machine: Machine, problem: Problem, cut: FewCut) -> Written:
    """The launches of an attention of few queries."""
    work = _Few(spec, machine, problem, cut)
    stage = work.stage()
    if cut.parts == 1 or cut.joined:
        return Written((stage,))
    return Written((stage, work.records.merge()), work.records.nbytes)


@dataclass(frozen=True)
class Source:
    """Keys or values of a head: the memory that they lie in as pieces, and the piece of the first row."""

    rows: Rows
    memory: Memory
    base: Value


class _Few:
    """The launch of the parts."""

    def __init__(self, spec: Spec, machine: Machine, problem: Problem, cut: FewCut) -> None:
        attention = self.attention = problem.attention
        self.problem, self.cut = problem, cut
        self.records = Records(spec, machine, attention, cut.parts)
        whole = are_whole(spec, range(len(spec.body.outputs)))
        self.reader = Reader(spec, machine, attention, cut.threads, whole)
        self.builder = b = self.reader.builder
        self.cores = cores_of(b, machine, 0)
        self.streaming, self.lane_ops = streaming_of(b, machine), lane_of(b, machine)
        if cut.joined and cut.parts > 1:
            cast(Printer, b).cluster = (cut.parts, 1, 1)
        self.rows = attention.group * attention.queries
        self.halves = ceil_div(self.rows, 8)
        self.chunks, self.strips = (
            ceil_div(attention.width, 32),
            ceil_div(attention.value_width, 64),
        )
        self.quads = attention.value_width // 4
        self._memories: dict[int, Memory] = {}
        self._declare()

    def _declare(self) -> None:
        """Shared memory, and the numbers of lanes."""
        b, cut = self.builder, self.cut
        # Rows that are read together lie in different banks.
        self.pitch = 4 * self.chunks + 1
        self.queries = b.shared(dtypes.u32, self.rows * self.pitch, "queries", width=4)
        self.sums = b.shared(dtypes.f32, cut.warps * self.rows * self.quads, "sums", width=4)
        self.tops = b.shared(dtypes.f32, cut.warps * self.rows, "tops")
        self.totals = b.shared(dtypes.f32, cut.warps * self.rows, "totals")
        # What the block has: of each row its maximum and its total, and the sums.
        self.known = b.shared(dtypes.f32, 2 * self.rows, "known")
        self.results = b.shared(dtypes.f32, self.rows * self.quads, "results", width=4)
        self.lane = b.let(b.local % WARP, "lane")
        self.g, self.t = b.let(self.lane // 4, "g"), b.let(self.lane % 4, "t")
        self.warp = b.let(b.local // WARP, "warp")

    def stage(self) -> Stage:
        """The launch."""
        attention, cut, reader, b = self.attention, self.cut, self.reader, self.builder
        heads = cut.parts * attention.kv_heads
        place = Place(
            batch=b.let(b.group // heads, "batch"),
            head=b.let(b.group // cut.parts % attention.kv_heads, "kv_head"),
            first=0,
            part=b.let(b.group % cut.parts, "part"),
        )
        start = reader.start_of(place.batch)
        self._stage_queries(place)
        reader.start = start if isinstance(start, int) else b.let(start, "start")
        low, high = part_of_keys(reader, place.part, cut.parts, cut.warps * KEYS * cut.units)
        self._begin()
        keys, values = (self._source(name, place) for name in ("k", "v"))
        step = cut.warps * cut.units * KEYS
        with b.for_(low, high, step, name="first") as first:
            own = b.let(first + self.warp * (cut.units * KEYS), "own")
            self._add(keys, values, own, high)
        self._keep()
        b.barrier()
        self._join_warps()
        b.barrier()
        self._write(place)
        return reader.dispatch.finish(attention.batch * attention.kv_heads * cut.parts)

    # ------------------------------------------------------------- operands

    def _memory(self, rows: Rows) -> Memory:
        """The operand that rows lie in, as pieces."""
        found = self._memories.get(rows.leaf.id)
        if found is None:
            dispatch = self.reader.dispatch
            found = dispatch.as_vectors(dispatch.operand(rows.leaf), ELEMENTS)
            self._memories[rows.leaf.id] = found
        return found

    def _source(self, name: str, place: Place) -> Source:
        b, rows = self.builder, self.problem.rows[name]
        batch, head, _ = rows.strides
        base = b.index(place.batch) * (batch // ELEMENTS) + place.head * (head // ELEMENTS)
        return Source(
            rows, self._memory(rows), b.let(base + rows.offset // ELEMENTS, f"{name}_base")
        )

    def _stage_queries(self, place: Place) -> None:
        """Bring the queries to shared memory, zeros beyond their width."""
        b, attention, rows = self.builder, self.attention, self.problem.rows["q"]
        memory, (batch, head, row) = self._memory(rows), rows.strides
        pieces, there = 4 * self.chunks, rows.width // ELEMENTS
        first = b.let(b.index(place.batch) * (batch // ELEMENTS) + rows.offset // ELEMENTS)
        with b.for_(b.local, self.rows * pieces, self.cut.threads, name="q") as q:
            own, piece = b.let(q // pieces), b.let(q % pieces)
            of_head = b.let(place.head * attention.group + own // attention.queries)
            at = first + of_head * (head // ELEMENTS) + own % attention.queries * (row // ELEMENTS)
            words = b.let(memory[b.let(at + b.min(piece, there - 1))])
            kept = [b.choose(piece < there, word, 0) for word in words.parts]
            self.queries[b.let(own * self.pitch + piece)] = b.vector(kept)

    # ------------------------------------------------------------- scores and sums

    def _begin(self) -> None:
        """Nothing is seen yet."""
        b, reader = self.builder, self.reader
        self.top = [b.variable(reader.lowest, "top") for _ in range(self.halves)]
        self.total = [b.variable(0.0, "total", dtypes.f32) for _ in range(self.halves)]
        self.made: list[list[list[Variable]]] = [
            [[b.variable(0.0, "o", dtypes.f32) for _ in range(4)] for _ in range(8)]
            for _ in range(self.strips)
        ]
        rows = [b.let(b.min(self.g + 8 * h, self.rows - 1)) for h in range(self.halves)]
        self.row_places = [b.let(row * self.pitch + self.t) for row in rows]
        self.limits = [
            b.let(b.as_signed(row % self.attention.queries) + self.reader.start) for row in rows
        ]

    def _queries_of(self, chunk: int) -> list[list[Value]]:
        """The words of 32 numbers of a lane's rows."""
        b = self.builder
        return [b.let(self.queries[b.let(at + 4 * chunk)]).parts for at in self.row_places]

    def _add(self, keys: Source, values: Source, first: Value, high: Value) -> None:
        """Add some sixteens of keys."""
        b = self.builder
        units = [b.let(first + KEYS * u) for u in range(self.cut.units)]
        read = [self._read_keys(keys, own, high) for own in units]
        # Long rows have no room in registers beside each other.
        short = 2 * self.chunks + 4 * self.strips <= LOADS
        brought = [self._read_values(values, own, high) for own in units] if short else []
        # The queries come to shared memory while the first keys are on their way.
        b.barrier()
        scores = [self._scores(own, unit, high) for own, unit in zip(read, units, strict=True)]
        weights = self._weights(scores)
        brought = brought or [self._read_values(values, own, high) for own in units]
        for own, words in zip(weights, brought, strict=True):
            self._add_values(own, words)

    def _read_keys(self, keys: Source, first: Value, high: Value) -> list[list[list[Value]]]:
        """The words of two tiles of eight keys, by tile and 32 numbers of their rows."""
        b, row = self.builder, keys.rows.strides[2] // ELEMENTS
        there = keys.rows.width // ELEMENTS
        found = []
        for tile in range(2):
            key = b.let(first + (self.g // 2 * 4 + (self.g % 2 + 2 * tile)))
            at = b.let(keys.base + b.min(key, self.attention.keys - 1) * row)
            pieces = []
            for chunk in range(self.chunks):
                piece = b.let(self.t + 4 * chunk)
                inside = key < high
                if 4 * (chunk + 1) > there:
                    inside = inside & (piece < there)
                pieces.append(self.streaming.load(keys.memory, b.let(at + piece), b.let(inside)))
            found.append(pieces)
        return found

    def _read_values(self, values: Source, first: Value, high: Value) -> list[list[list[Value]]]:
        """The words of four values, by strip of 64 columns and value."""
        b, row = self.builder, values.rows.strides[2] // ELEMENTS
        there = values.rows.width // ELEMENTS
        found = []
        for strip in range(self.strips):
            piece = b.let(self.g + 8 * strip)
            pieces = []
            for i in range(4):
                key = b.let(first + (self.t * 4 + i))
                at = b.let(values.base + b.min(key, self.attention.keys - 1) * row)
                inside = key < high
                if 8 * (strip + 1) > there:
                    inside = inside & (piece < there)
                pieces.append(self.streaming.load(values.memory, b.let(at + piece), b.let(inside)))
            found.append(pieces)
        return found

    def _scores(
        self, words: Sequence[Sequence[Sequence[Value]]], first: Value, high: Value
    ) -> list[list[Value]]:
        """The scores of 16 keys, as powers of two: of each half of the rows four."""
        b, kind = self.builder, self.problem.dtype.name
        nothing = b.index(0)
        found: list[list[Value]] = [[] for _ in range(self.halves)]
        scale = self.attention.scale / LN_2
        for tile, chunks in enumerate(words):
            sums = [b.variable(0.0, "s", dtypes.f32) for _ in range(4)]
            for chunk, right in enumerate(chunks):
                rows = self._queries_of(chunk)
                low, high_rows = rows if self.halves == 2 else (rows[0], [nothing] * 4)
                for i in (0, 2):
                    left = [low[i], high_rows[i], low[i + 1], high_rows[i + 1]]
                    self.cores.multiply(kind, [[sums]], left, right[i : i + 2])
            for half in range(self.halves):
                for x in range(2):
                    key = b.let(first + (self.t * 4 + (2 * tile + x)))
                    seen = self._is_seen(key, half, high)
                    own = b.choose(seen, sums[2 * half + x] * scale, self.reader.hidden)
                    found[half].append(b.let(own, "score"))
        return found

    def _is_seen(self, key: Value, half: int, high: Value) -> Value:
        """Whether a row sees a key."""
        b, attention = self.builder, self.attention
        seen = key < high
        distance = self.limits[half] - b.as_signed(key)
        if attention.causal:
            seen = seen & (distance >= 0)
        if attention.window is not None:
            window = min(attention.window, 1 << 30)
            seen = seen & (distance < window)
            if not attention.causal:
                seen = seen & (distance > -window)
        return seen

    def _weights(self, scores: Sequence[Sequence[Sequence[Value]]]) -> list[list[Value]]:
        """The weights of some sixteens of keys as the words of a fragment; sums so far are brought to the new maximum."""
        b, exp2 = self.builder, self.lane_ops.exp2
        words: list[list[Value]] = [[b.index(0)] * 4 for _ in scores]
        for half in range(self.halves):
            most: Value = self.top[half]
            for own in scores:
                for score in own[half]:
                    most = b.let(b.max(most, score))
            for mask in (1, 2):
                most = b.let(b.max(most, b.shuffle_xor(most, mask)))
            factor = b.let(exp2(b.let(self.top[half] - most)), "factor")
            self.top[half].set(most)
            total: Value = b.let(self.total[half] * factor)
            for number, own in enumerate(scores):
                weights = [exp2(b.let(score - most)) for score in own[half]]
                for weight in weights:
                    total = b.let(total + weight)
                for i in range(2):
                    word = self.lane_ops.pack(
                        weights[2 * i], weights[2 * i + 1], self.problem.dtype
                    )
                    words[number][2 * i + half] = word
            self.total[half].set(total)
            for strip in self.made:
                for tile in strip:
                    for x in range(2):
                        tile[2 * half + x].set(tile[2 * half + x] * factor)
        return words

    def _add_values(
        self, left: Sequence[Value], strips: Sequence[Sequence[Sequence[Value]]]
    ) -> None:
        """Add 16 values, weighted."""
        for sums, rows in zip(self.made, strips, strict=True):
            right: list[Value] = []
            for word in range(4):
                pairs = [self.streaming.pair(rows[i][word], rows[i + 1][word]) for i in (0, 2)]
                for half in range(2):
                    right += [pairs[0][half], pairs[1][half]]
            self.cores.multiply(self.problem.dtype.name, [sums], left, right)

    # ------------------------------------------------------------- putting together

    def _keep(self) -> None:
        """Write what a warp has to shared memory."""
        b = self.builder
        for half in range(self.halves):
            for mask in (1, 2):
                own = b.let(self.total[half])
                self.total[half].set(own + b.shuffle_xor(own, mask))
            row = b.let(self.g + 8 * half)
            with b.if_(row < self.rows):
                number = b.let(self.warp * self.rows + row)
                with b.if_(self.t == 0):
                    self.tops[number] = self.top[half]
                    self.totals[number] = self.total[half]
                for strip, tiles in enumerate(self.made):
                    # A lane has 16 columns, from 16 t on.
                    for i in range(4):
                        quad = b.let(16 * strip + 4 * self.t + i)
                        some = tiles[4 * (i % 2) : 4 * (i % 2) + 4]
                        with b.if_(quad < self.quads if 16 * (strip + 1) > self.quads else None):
                            which = 2 * half + i // 2
                            self.sums[b.let(number * self.quads + quad)] = b.vector(
                                [tile[which] for tile in some]
                            )

    def _join_warps(self) -> None:
        """Put together what the warps of the block have."""
        b, warps = self.builder, self.cut.warps
        with b.for_(b.local, self.rows * self.quads, self.cut.threads, name="e") as e:
            row, quad = b.let(e // self.quads), b.let(e % self.quads)
            tops = [b.let(self.tops[row + w * self.rows]) for w in range(warps)]
            most = tops[0]
            for top in tops[1:]:
                most = b.let(b.max(most, top))
            total: Value = b.constant(0.0, dtypes.f32)
            sums: Value = b.constant(0.0, dtypes.f32, 4)
            for w, top in enumerate(tops):
                factor = b.let(self.lane_ops.exp2(b.let(top - most)), "factor")
                total = b.let(b.fma(factor, self.totals[row + w * self.rows], total))
                own = self.sums[b.let((row + w * self.rows) * self.quads + quad)]
                sums = b.let(b.fma(b.splat(factor, 4), own, sums))
            self.results[e] = sums
            with b.if_(quad == 0):
                self.known[row * 2] = most
                self.known[row * 2 + 1] = total

    def _write(self, place: Place) -> None:
        """Hand on what the block has, or the share of it that is the block's."""
        attention, b, cut = self.attention, self.builder, self.cut
        if cut.parts > 1 and not cut.joined:
            self._leave(place)
            return
        joined = cut.joined and cut.parts > 1
        if joined:
            self.streaming.sync_cluster()
        items = attention.queries * self.quads
        single = replace(self.sums, vector=1, shape=(4 * self.sums.shape[0],))
        first = self.streaming.rank() if joined else b.index(0)
        step = cut.parts if joined else 1
        with b.for_(first, attention.group, step, name="member") as member:
            # The sums of warps are of no use any more: what a head's results are takes their place.
            before = b.let(member * attention.queries, "before")
            with b.for_(b.local, items, cut.threads, name="e") as e:
                row = b.let(e // self.quads + before)
                found = self._of_all(row, b.let(e % self.quads), joined)
                self.sums[b.let(e + before * self.quads)] = found
            b.barrier()
            head = b.let(place.head * attention.group + member, "head")

            def element(row: Value, column: Value) -> Value:
                return b.let(single[b.let((row + before) * (4 * self.quads) + column)])

            def vector(row: Value, quad: Value) -> Value:
                return b.let(self.sums[b.let((row + before) * self.quads + quad)])

            numbers = range(len(self.reader.dispatch.body.outputs))
            own = Place(place.batch, head, 0)
            count = attention.queries
            rows = RowBlock(attention.node, numbers, own, count, count, element, vector)
            write_block(self.reader, rows)
        if joined:
            # Nobody ends while others read its shared memory.
            self.streaming.sync_cluster()

    def _of_all(self, row: Value, quad: Value, joined: bool) -> Value:
        """Four columns of a row's result."""
        b = self.builder
        at = b.let(row * self.quads + quad)
        if not joined:
            return b.let(self.results[at] * share_of(self.reader, self.known[row * 2 + 1]))
        ranks, load = range(self.cut.parts), self.streaming.load_of
        tops, totals = (
            [load(self.known, b.let(row * 2 + i), r, 1)[0] for r in ranks] for i in range(2)
        )
        parts = [b.let(b.vector(load(self.results, b.let(at * 4), r, 4))) for r in ranks]
        most = tops[0]
        for top in tops[1:]:
            most = b.let(b.max(most, top))
        total: Value = b.constant(0.0, dtypes.f32)
        sums: Value = b.constant(0.0, dtypes.f32, 4)
        for top, own, part in zip(tops, totals, parts, strict=True):
            factor = b.let(self.lane_ops.exp2(b.let(top - most)), "factor")
            total = b.let(b.fma(factor, own, total))
            sums = b.let(b.fma(b.splat(factor, 4), part, sums))
        return b.let(sums * share_of(self.reader, total))

    def _leave(self, place: Place) -> None:
        """Leave what the block has to the launch that puts parts together."""
        attention, b = self.attention, self.builder
        self.records.bind(self.reader)
        with b.for_(b.local, self.rows * self.quads, self.cut.threads, name="e") as e:
            row, quad = b.let(e // self.quads), b.let(e % self.quads)
            head = b.let(place.head * attention.group + row // attention.queries)
            own = Place(place.batch, head, 0, place.part)
            record = self.records.place(self.reader, own, row % attention.queries)
            self.records.put_sum(record, quad, self.results[e])
            with b.if_(quad == 0):
                top = b.let(b.max(self.known[row * 2] * LN_2, self.reader.lowest))
                self.records.put_known(record, top, self.known[row * 2 + 1])
