"""Attention of a few queries over many keys, as when decoding: workgroups take parts of the keys, which a second dispatch puts together.

A workgroup reads a block of keys once for all queries of the heads that share them, a key for each thread. For the sums over values its threads stand in teams: a thread
has some columns, a team some keys of each block, and its own maximum; teams are put together at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ....lower.plan import Spec
from ...problems.attention import Described
from ..dispatch import Stage, Written
from ..machine import Machine
from .merge import Records
from .operands import Reader, share_of
from .results import are_whole, write_rows
from .tile import AXES, most_of_four, stage, sum_of_four

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
    quads = -(-attention.value_width // 4)
    team = min((32, 16, 8, 4), key=lambda n: (-(-quads // n) * n, -n))
    columns = -(-quads // team)
    if rows * columns > MOST_SUMS:
        return None
    size, deepest = 16, -(-attention.width // 4)
    known = rows * (deepest + THREADS // 4 + quads) * size + 2 * THREADS * size // 4 + 16
    for depth in (8, 4, 2, 1):
        if known + max(THREADS * (depth | 1), THREADS * columns) * size <= machine.shared:
            break
    else:
        return None
    blocks = -(-attention.keys // THREADS)
    heads = attention.batch * attention.kv_heads
    parts = max(1, min(blocks, -(-GROUPS // heads)))
    return Parts(rows, team, columns, min(depth, deepest), parts)


def write_decode(spec: Spec, machine: Machine, attention: Described, parts: Parts) -> Written:
    """Parts of keys, and where there are several what puts them together."""
    work = _Decode(spec, machine, attention, parts)
    if parts.parts == 1:
        return Written((work.stage(),))
    return Written((work.stage(), work.records.merge()), work.records.nbytes)


class _Decode:
    def __init__(self, spec: Spec, machine: Machine, attention: Described, parts: Parts) -> None:
        self.spec, self.machine, self.attention, self.parts = spec, machine, attention, parts
        self.records = Records(spec, machine, attention, parts.parts)

    def _rows(self) -> Iterator[tuple[int, str, int]]:
        """The number of each row, its head as text, and which query of the head it is."""
        queries = self.attention.queries
        for r in range(self.parts.rows):
            yield r, f"(kv_head * {self.attention.group}u + {r // queries}u)", r % queries

    # ------------------------------------------------------------- a part of the keys

    def stage(self) -> Stage:
        """The dispatch of the parts."""
        attention, parts = self.attention, self.parts
        whole = are_whole(self.spec, range(len(self.spec.body.outputs)))
        reader = Reader(self.spec, self.machine, attention, THREADS, whole)
        shared, vector = reader.shader.text_shared, reader.vector
        deepest = -(-attention.width // 4)
        shared("queries", f"array<{vector}, {parts.rows * deepest}>")
        # Keys, and at the end the sums of teams.
        room = max(THREADS * (parts.depth | 1), THREADS * parts.columns)
        shared("block", f"array<{vector}, {room}>")
        shared("scores", f"array<{reader.number}, {parts.rows * THREADS}>")
        shared("tops", f"array<{reader.number}, {parts.teams}>")
        shared("totals", f"array<{reader.number}, {parts.teams}>")
        reader.line(f"let part = group % {parts.parts}u;")
        reader.line(f"let kv_head = group / {parts.parts}u % {attention.kv_heads}u;")
        reader.line(f"let batch = group / {parts.parts * attention.kv_heads}u;")
        reader.line(f"let team = local / {parts.team}u;")
        reader.line(f"let member = local % {parts.team}u;")
        reader.write_start("batch")
        self._write_range(reader)
        for name in ("k", "v"):
            reader.line(f"let {name}_base = {reader.head_of(name, 'batch', 'kv_head')};")
        self._stage_queries(reader)
        for r, head, query in self._rows():
            for name in ("mask", "bias"):
                if name in attention.operands:
                    base = reader.head_of(name, "batch", head)
                    row = f"{query}u * {reader.stride(name, 2)}"
                    reader.line(f"let {name}_{r} = {base} + {row};")
            reader.line(f"var top_{r} = {reader.lowest};")
            reader.line(f"var total_{r} = {reader.constant(0.0)};")
            for w in range(parts.columns):
                reader.line(f"var sum_{r}_{w} = {vector}();")
        with reader.writer.block(f"for (var first = low; first < high; first += {THREADS}u)"):
            self._scores(reader)
            self._sums(reader)
        self._together(reader)
        return reader.shader.finish(attention.batch * attention.kv_heads * parts.parts)

    def _write_range(self, reader: Reader) -> None:
        """``low`` and ``high``: the part's keys, of those that any query sees; all parts but the last are whole blocks."""
        attention, window = self.attention, self.attention.window
        low, high = "0i", f"{attention.keys}i"
        if attention.causal:
            high = f"min({high}, start + {attention.queries}i)"
        if window is not None:
            window = min(window, 1 << 30)
            low = f"max({low}, start - {window - 1}i)"
            if not attention.causal:
                high = f"min({high}, start + {attention.queries + window - 1}i)"
        reader.line(f"let begin = u32({low}) / 4u * 4u;")
        reader.line(f"let end = u32(max({high}, 0i));")
        reader.line("let seen = select(0u, end - begin, end > begin);")
        together = THREADS * self.parts.parts
        reader.line(f"let length = (seen + {together - 1}u) / {together}u * {THREADS}u;")
        reader.line("let low = min(begin + part * length, end);")
        reader.line("let high = min(low + length, end);")

    def _stage_queries(self, reader: Reader) -> None:
        attention, deepest = self.attention, -(-self.attention.width // 4)
        reader.line(f"let first_head = kv_head * {attention.group}u;")
        four = reader.four("q")

        def value(row: str, quad: str) -> str:
            head = f"(first_head + {row} / {attention.queries}u)"
            base = reader.head_of("q", "batch", head)
            return f"{four}({base}, {row} % {attention.queries}u, {quad})"

        stage(reader, "queries", deepest, self.parts.rows, deepest, value)

    def _scores(self, reader: Reader) -> None:
        """The scores of all queries with a block of keys, into shared memory."""
        attention, parts = self.attention, self.parts
        deepest, pitch = -(-attention.width // 4), parts.depth | 1
        four = reader.four("k")
        for r in range(parts.rows):
            reader.line(f"var dots_{r} = {reader.vector}();")
        several = deepest > parts.depth
        with reader.writer.block(
            f"for (var depth = 0u; depth < {deepest}u; depth += {parts.depth}u)" if several else ""
        ):
            begin = "depth" if several else "0u"
            reader.shader.barrier()
            stage(
                reader,
                "block",
                pitch,
                THREADS,
                parts.depth,
                lambda row, quad: f"{four}(k_base, first + {row}, {begin} + {quad})",
            )
            reader.shader.barrier()
            limit = f"min({parts.depth}u, {deepest}u - depth)" if several else f"{deepest}u"
            with reader.writer.block(f"for (var d = 0u; d < {limit}; d++)"):
                reader.line(f"let key = block[local * {pitch}u + d];")
                for r in range(parts.rows):
                    query = f"queries[{r * deepest}u + {begin} + d]"
                    reader.line(f"dots_{r} = fma({query}, key, dots_{r});")
        reader.line("let key = i32(first + local);")
        reader.line(f"let near = u32(min(key, {attention.keys - 1}i));")
        for r, _, at in self._rows():
            reader.line(f"let score_{r} = {self._finished(reader, r, at)};")
        for r in range(parts.rows):
            reader.line(f"scores[{r * THREADS}u + local] = score_{r};")
        reader.shader.barrier()

    def _finished(self, reader: Reader, r: int, query: int) -> str:
        """A score from a product: scale, cap, bias, and what hides the key."""
        attention, window = self.attention, self.attention.window
        reader.line(
            f"var own_{r} = {sum_of_four(f'dots_{r}')} * {reader.constant(attention.scale)};"
        )
        if attention.softcap is not None:
            cap = reader.constant(attention.softcap)
            reader.line(f"own_{r} = {reader.tanh(f'own_{r} / {cap}')} * {cap};")
        if "bias" in attention.operands:
            place = f"bias_{r} + near * {reader.stride('bias', 3)}"
            reader.line(f"own_{r} = own_{r} + {reader.one('bias')}({place});")
        seen = ["first + local < high"]
        distance = f"({query}i + start - key)"
        if attention.causal:
            seen.append(f"{distance} >= 0i")
        if window is not None:
            window = min(window, 1 << 30)
            seen.append(f"{distance} < {window}i")
            if not attention.causal:
                seen.append(f"{distance} > {-window}i")
        if "mask" in attention.operands:
            seen.append(f"{reader.one('mask')}(mask_{r} + near * {reader.stride('mask', 3)})")
        test = " && ".join(f"({text})" for text in seen)
        return f"select({reader.hidden}, own_{r}, {test})"

    def _sums(self, reader: Reader) -> None:
        """Add a block of values, weighted by their scores: every team its own keys, 4 at a time."""
        parts = self.parts
        four = reader.four("v")
        with reader.writer.block(f"for (var u = 0u; u < {parts.share}u; u += 4u)"):
            reader.line(f"let at = team * {parts.share}u + u;")
            for w in range(parts.columns):
                for k in range(4):
                    column = f"member + {w * parts.team}u"
                    reader.line(f"let v{k}_{w} = {four}(v_base, first + at + {k}u, {column});")
            for r in range(parts.rows):
                places = (f"scores[{r * THREADS}u + at + {k}u]" for k in range(4))
                reader.line(f"let s_{r} = {reader.vector}({', '.join(places)});")
                reader.line(f"let peak_{r} = max(top_{r}, {most_of_four(f's_{r}')});")
                reader.line(f"let factor_{r} = {reader.exp(f'top_{r} - peak_{r}')};")
                reader.line(f"let p_{r} = {reader.exp_of_four(f's_{r} - peak_{r}')};")
                reader.line(f"top_{r} = peak_{r};")
                reader.line(f"total_{r} = fma(total_{r}, factor_{r}, {sum_of_four(f'p_{r}')});")
                for w in range(parts.columns):
                    own = f"sum_{r}_{w}"
                    reader.line(f"{own} = {own} * factor_{r};")
                    for k, axis in enumerate(AXES):
                        factor = f"{reader.vector}(p_{r}.{axis})"
                        reader.line(f"{own} = fma({factor}, v{k}_{w}, {own});")

    # ------------------------------------------------------------- putting together

    def _together(self, reader: Reader) -> None:
        """The sums of all teams as one, and where they go."""
        parts, attention = self.parts, self.attention
        several = parts.parts > 1
        wide = parts.team * parts.columns
        quads = self.records.quads
        if several:
            self.records.bind(reader)
        else:
            reader.shader.text_shared("results", f"array<{reader.vector}, {parts.rows * quads}>")
        for r, head, query in self._rows():
            reader.shader.barrier()
            for w in range(parts.columns):
                place = f"team * {wide}u + member + {w * parts.team}u"
                reader.line(f"block[{place}] = sum_{r}_{w};")
            with reader.writer.block("if (member == 0u)"):
                reader.line(f"tops[team] = top_{r};")
                reader.line(f"totals[team] = total_{r};")
            reader.shader.barrier()
            with reader.writer.block(
                f"for (var quad = local; quad < {quads}u; quad += {THREADS}u)"
            ):
                reader.line("var top = tops[0];")
                with reader.writer.block(f"for (var t = 1u; t < {parts.teams}u; t++)"):
                    reader.line("top = max(top, tops[t]);")
                reader.line(f"var total = {reader.constant(0.0)};")
                reader.line(f"var sum = {reader.vector}();")
                with reader.writer.block(f"for (var t = 0u; t < {parts.teams}u; t++)"):
                    reader.line(f"let factor = {reader.exp('tops[t] - top')};")
                    reader.line("total = fma(totals[t], factor, total);")
                    place = f"block[t * {wide}u + quad]"
                    reader.line(f"sum = fma({place}, {reader.vector}(factor), sum);")
                if several:
                    self.records.write_place(reader, head, f"{query}u")
                    self.records.put_sum(reader, "quad", "sum")
                    with reader.writer.block("if (quad == 0u)"):
                        self.records.put_known(reader, "top", "total")
                else:
                    share = share_of(reader, "total")
                    reader.line(f"results[{r * quads}u + quad] = sum * {share};")
        if not several:
            reader.shader.barrier()
            with reader.writer.block(
                f"for (var member_head = 0u; member_head < {attention.group}u; member_head++)"
            ):
                reader.line(f"let head = kv_head * {attention.group}u + member_head;")
                before, quads = f"member_head * {attention.queries}u", self.records.quads
                write_rows(
                    *(reader, attention.queries, "0u"),
                    lambda row, quad: f"results[({before} + {row}) * {quads}u + {quad}]",
                )
