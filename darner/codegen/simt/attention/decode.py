"""Attention of a few queries over many keys, as when decoding: workgroups take parts of the keys, which a second dispatch puts together.

A workgroup reads a block of keys once for all queries of the heads that share them, a key for each thread. For the sums over values its threads stand in teams: a thread
has some columns, a team some keys of each block, and its own maximum; teams are put together at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ....graph.integers import ceil_div, round_up
from ....lower.plan import Spec
from ...ir.index import Number
from ...problems.attention import Described, result_numbers
from ..builder import Memory, Value, Variable
from ..dispatch import Stage, Written
from ..machine import Machine
from .merge import Records, Running
from .operands import Place, Reader, most_of_four, sum_of_four, unsigned
from .results import are_whole, write_rows
from .tile import Stretch, stage

THREADS = 128
MOST_ROWS = 16
"""Queries of the heads that share keys, from which on blocks of queries are better."""
MOST_SUMS = 16
"""Vectors of a sum that a thread keeps."""
GROUPS = 528
"""Workgroups that keep a large GPU's memory busy."""


@dataclass(frozen=True)
class Parts:
    """How the work is cut.

    Attributes:
        rows: queries of all heads that share keys.
        team: threads that have one number of every value between them.
        columns: vectors of each of them.
        depth: vectors of a key that lie in shared memory at a time.
        parts: of the keys.
    """

    rows: int
    team: int
    columns: int
    depth: int
    parts: int

    @property
    def teams(self) -> int:
        """Teams of a workgroup."""
        return THREADS // self.team

    @property
    def share(self) -> int:
        """Keys of a block that a team has."""
        return THREADS // self.teams


def decode_parts(attention: Described, machine: Machine) -> Parts | None:
    """How decoding is cut; None where blocks of queries are better, or nothing fits."""
    rows = attention.group * attention.queries
    if attention.is_empty or rows > MOST_ROWS or attention.keys < THREADS // 2:
        return None
    if machine.threads < THREADS or not attention.value_width or not attention.width:
        return None
    quads = ceil_div(attention.value_width, 4)
    team = min((32, 16, 8, 4), key=lambda n: (round_up(quads, n), -n))
    columns = ceil_div(quads, team)
    if rows * columns > MOST_SUMS:
        return None
    size, deepest = 16, ceil_div(attention.width, 4)
    known = rows * (deepest + THREADS // 4 + quads) * size + 2 * THREADS * size // 4 + 16
    for depth in (8, 4, 2, 1):
        if known + max(THREADS * (depth | 1), THREADS * columns) * size <= machine.shared:
            break
    else:
        return None
    blocks = ceil_div(attention.keys, THREADS)
    heads = attention.batch * attention.kv_heads
    parts = max(1, min(blocks, ceil_div(GROUPS, heads)))
    return Parts(rows, team, columns, min(depth, deepest), parts)


def write_decode(spec: Spec, machine: Machine, attention: Described, parts: Parts) -> Written:
    """Parts of keys, and where there are several what puts them together."""
    work = _Decode(spec, machine, attention, parts)
    if parts.parts == 1:
        return Written((work.stage(),))
    return Written((work.stage(), work.records.merge()), work.records.nbytes)


def part_of_keys(reader: Reader, part: Number, parts: int, block: int) -> tuple[Value, Value]:
    """The first of a part's keys and what is behind its last, of those that any query sees; all parts but the last are whole blocks of keys."""
    b, attention, window, start = (
        reader.builder,
        reader.attention,
        reader.attention.window,
        reader.start,
    )
    low: Number = 0
    high: Number = attention.keys
    if attention.causal:
        high = b.min(high, start + attention.queries)
    if window is not None:
        window = min(window, 1 << 30)
        low = b.max(low, start - (window - 1))
        if not attention.causal:
            high = b.min(high, start + (attention.queries + window - 1))
    begin = b.let(b.index(unsigned(b, low) // 4 * 4), "begin")
    end = b.let(b.index(unsigned(b, b.max(high, 0))), "end")
    seen = b.let(b.choose(end > begin, end - begin, 0), "seen")
    together = block * parts
    length = b.let((seen + (together - 1)) // together * block, "length")
    first = b.let(b.min(begin + part * length, end), "low")
    return first, b.let(b.min(first + length, end), "high")


@dataclass(frozen=True)
class Query:
    """A query of one of the heads that share keys.

    Attributes:
        head: its head.
        number: which query of the head it is.
        places: where its rows of a mask and a bias begin.
        top: its maximum, of the keys that a team has met.
        total: relative to that.
        sums: of a thread's columns.
    """

    head: Value
    number: int
    places: dict[str, Value]
    top: Variable
    total: Variable
    sums: list[Variable]


class _Decode:
    """The dispatches of attention of a few queries."""

    def __init__(self, spec: Spec, machine: Machine, attention: Described, parts: Parts) -> None:
        self.attention, self.parts = attention, parts
        self.records = Records(spec, machine, attention, parts.parts)
        whole = are_whole(spec, result_numbers(spec))
        self.reader = Reader(spec, machine, attention, THREADS, whole)
        self.builder = self.reader.builder
        self.deepest = ceil_div(attention.width, 4)

    # ------------------------------------------------------------- a part of the keys

    def stage(self) -> Stage:
        """The dispatch of the parts."""
        attention, parts, reader, b = self.attention, self.parts, self.reader, self.builder
        kind = reader.kind
        self.queries = b.shared(kind, parts.rows * self.deepest, "queries", width=4)
        # Keys, and at the end the sums of teams.
        room = max(THREADS * (parts.depth | 1), THREADS * parts.columns)
        self.block = b.shared(kind, room, "block", width=4)
        self.scores = b.shared(kind, parts.rows * THREADS, "scores")
        self.tops = b.shared(kind, parts.teams, "tops")
        self.totals = b.shared(kind, parts.teams, "totals")
        heads = parts.parts * attention.kv_heads
        place = Place(
            batch=b.let(b.group // heads, "batch"),
            head=b.let(b.group // parts.parts % attention.kv_heads, "kv_head"),
            first=0,
            part=b.let(b.group % parts.parts, "part"),
        )
        self.team = b.let(b.local // parts.team, "team")
        self.member = b.let(b.local % parts.team, "member")
        reader.write_start(place.batch)
        low, high = part_of_keys(reader, place.part, parts.parts, THREADS)
        self.keys, self.values = (
            b.let(b.index(reader.head_of(name, place.batch, place.head)), f"{name}_base")
            for name in ("k", "v")
        )
        self._stage_queries(place)
        queries = list(self._queries(place))
        with b.for_(low, high, THREADS, name="first") as first:
            self._write_scores(queries, first, high)
            self._add_values(queries, first)
        self._together(queries, place)
        return reader.dispatch.finish(attention.batch * attention.kv_heads * parts.parts)

    def _queries(self, place: Place) -> Iterator[Query]:
        """All queries, which have met no keys."""
        attention, reader, b = self.attention, self.reader, self.builder
        for r in range(self.parts.rows):
            head = place.head * attention.group + r // attention.queries
            number = r % attention.queries
            places: dict[str, Value] = {}
            for name in ("mask", "bias"):
                if name in attention.operands:
                    base = reader.head_of(name, place.batch, head)
                    row = b.index(base + number * reader.stride(name, 2))
                    places[name] = b.let(row, f"{name}_row")
            top = b.variable(reader.lowest, "top")
            total = b.variable(0.0, "total", reader.kind)
            sums = [b.variable(0.0, "sum", reader.kind, width=4) for _ in range(self.parts.columns)]
            yield Query(head, number, places, top, total, sums)

    def _stage_queries(self, place: Place) -> None:
        attention, reader = self.attention, self.reader
        first = self.builder.let(place.head * attention.group, "first_head")
        four = reader.four("q")

        def vector(row: Value, quad: Value) -> Value:
            head = first + row // attention.queries
            base = reader.head_of("q", place.batch, head)
            return four(base, row % attention.queries, quad)

        rows = self.parts.rows
        stage(reader, Stretch(self.queries, rows, self.deepest, self.deepest), vector)

    def _write_scores(self, queries: list[Query], first: Value, high: Value) -> None:
        """The scores of all queries with a block of keys, into shared memory."""
        b, parts, reader = self.builder, self.parts, self.reader
        four = reader.four("k")
        dots = [b.variable(0.0, "dots", reader.kind, width=4) for _ in queries]

        def add(begin: Number, limit: Number) -> None:
            b.barrier()

            def vector(row: Value, quad: Value) -> Value:
                return four(self.keys, first + row, quad + begin)

            pitch = parts.depth | 1
            stage(reader, Stretch(self.block, THREADS, parts.depth, pitch), vector)
            b.barrier()
            with b.for_(0, limit, name="d") as d:
                key = self.block[b.local * pitch + d]
                for r, own in enumerate(dots):
                    query = self.queries[d + begin + r * self.deepest]
                    own.set(b.fma(query, key, own))

        if self.deepest > parts.depth:
            with b.for_(0, self.deepest, parts.depth, name="depth") as depth:
                add(depth, b.min(parts.depth, self.deepest - depth))
        else:
            with b.scope():
                add(0, self.deepest)
        number = b.let(first + b.local, "number")
        scores = [
            self._score(query, sum_of_four(own), number, number < high)
            for query, own in zip(queries, dots, strict=True)
        ]
        for r, score in enumerate(scores):
            self.scores[b.local + r * THREADS] = score
        b.barrier()

    def _score(self, query: Query, product: Value, number: Value, seen: Value) -> Value:
        """A score from a product with the key of that number: scale, cap, bias, and what hides the key."""
        b, attention, window = self.builder, self.attention, self.attention.window
        reader, key = self.reader, b.as_signed(number)
        near = b.min(number, attention.keys - 1)
        own = b.let(product * attention.scale, "own")
        if attention.softcap is not None:
            own = b.let(reader.tanh(own / attention.softcap) * attention.softcap, "own")
        if "bias" in attention.operands:
            place = query.places["bias"] + near * reader.stride("bias", 3)
            own = b.let(own + reader.number("bias")(place), "own")
        distance = query.number + reader.start - key
        if attention.causal:
            seen = seen & (distance >= 0)
        if window is not None:
            window = min(window, 1 << 30)
            seen = seen & (distance < window)
            if not attention.causal:
                seen = seen & (distance > -window)
        if "mask" in attention.operands:
            place = query.places["mask"] + near * reader.stride("mask", 3)
            seen = seen & reader.number("mask")(place)
        return b.let(b.choose(seen, own, reader.hidden), "score")

    def _add_values(self, queries: list[Query], first: Value) -> None:
        """Add a block of values, weighted by their scores: every team its own keys, 4 at a time."""
        b, parts, exp, four = self.builder, self.parts, self.reader.exp, self.reader.four("v")
        with b.for_(0, parts.share, 4, name="u") as u:
            at = b.let(self.team * parts.share + u, "at")
            values = []
            for w in range(parts.columns):
                column = self.member + w * parts.team
                values.append([b.let(four(self.values, first + at + k, column)) for k in range(4)])
            for r, query in enumerate(queries):
                scores = [self.scores[at + (r * THREADS + k)] for k in range(4)]
                score = b.let(b.vector(scores), "score")
                peak = b.let(b.max(query.top, most_of_four(b, score)), "peak")
                factor = b.let(exp(query.top - peak), "factor")
                weights = b.let(exp(score - peak), "weights")
                query.top.set(peak)
                query.total.set(b.fma(query.total, factor, sum_of_four(weights)))
                for own, several in zip(query.sums, values, strict=True):
                    own.set(own * factor)
                    for weight, value in zip(weights.parts, several, strict=True):
                        own.set(b.fma(weight, value, own))

    # ------------------------------------------------------------- putting together

    def _together(self, queries: list[Query], place: Place) -> None:
        """The sums of all teams as one, and where they go."""
        parts, b = self.parts, self.builder
        quads, wide = self.records.quads, self.parts.team * self.parts.columns
        results: Memory | None = None
        if parts.parts > 1:
            self.records.bind(self.reader)
        else:
            results = b.shared(self.reader.kind, parts.rows * quads, "results", width=4)
        for r, query in enumerate(queries):
            b.barrier()
            for w, value in enumerate(query.sums):
                self.block[self.team * wide + self.member + w * parts.team] = value
            with b.if_(self.member == 0):
                self.tops[self.team] = query.top
                self.totals[self.team] = query.total
            b.barrier()
            with b.for_(b.local, quads, THREADS, name="quad") as quad:
                running = self._of_teams(quad, wide)
                if results is not None:
                    results[quad + r * quads] = running.share()
                    continue
                of_query = Place(place.batch, query.head, 0, place.part)
                record = self.records.place(self.reader, of_query, query.number)
                self.records.put_sum(record, quad, running.sum)
                with b.if_(quad == 0):
                    self.records.put_known(record, running.top, running.total)
        if results is not None:
            self._write_results(place, results)

    def _of_teams(self, quad: Value, wide: int) -> Running:
        """What all teams have of a vector of the sums."""
        b, parts = self.builder, self.parts
        running = Running(self.reader, self.tops[0])
        with b.for_(1, parts.teams, name="t") as t:
            running.top.set(b.max(running.top, self.tops[t]))
        with b.for_(0, parts.teams, name="t") as t:
            factor = b.let(self.reader.exp(self.tops[t] - running.top), "factor")
            running.add(self.totals[t], self.block[t * wide + quad], factor)
        return running

    def _write_results(self, place: Place, results: Memory) -> None:
        """Write what stands in shared memory."""
        attention, b, quads = self.attention, self.builder, self.records.quads
        b.barrier()
        with b.for_(0, attention.group, name="member_head") as member:
            head = b.let(place.head * attention.group + member, "head")
            before = member * attention.queries

            def vector(row: Value, quad: Value) -> Value:
                return results[(before + row) * quads + quad]

            write_rows(self.reader, Place(place.batch, head, 0), attention.queries, vector)
