"""Blocks of scores in the registers of a workgroup: products of rows, what becomes of them, and sums weighted by them.

Thread ``(down, across)`` has rows ``down + i * cut.down`` and columns ``across + j * cut.across`` of a block; its scores are named vectors of 4 columns each. Weights go
through shared memory in the order of threads, and the rows that they weigh are put there in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ....lower.plan import Spec
from ...problems.attention import Described
from ..machine import Machine
from .operands import Reader
from .plan import Cut

AXES = "xyzw"
AT_ONCE = 8
"""Vectors that a thread reads before it puts them into shared memory."""


@dataclass(frozen=True)
class Rows:
    """Rows of an operand: its name, the distance of its head's first number, and the first row; texts of u32."""

    name: str
    base: str
    first: str


class Tile(Reader):
    """A dispatch whose workgroups have a block of rows each.

    Args:
        spec: what the kernel computes.
        machine: for which GPU.
        attention: what is computed, with sizes.
        cut: how.
        by_query: whether rows are queries and columns are keys; or the other way round.
    """

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
        shared = self.shader.text_shared
        deepest = max(1, -(-attention.width // 4))
        self.left_pitch = (deepest | 1) if cut.kept else cut.pitch
        shared("left", f"array<{self.vector}, {cut.row_block * self.left_pitch}>")
        shared("right", f"array<{self.vector}, {cut.room}>")
        self.line(f"let down = local / {cut.across}u;")
        self.line(f"let across = local % {cut.across}u;")

    # ------------------------------------------------------------- loops

    def each(self) -> Iterator[tuple[int, int]]:
        """Numbers of a thread's vectors of scores: row and quad."""
        for i in range(self.cut.rows):
            for c in range(self.cut.quads):
                yield i, c

    @contextmanager
    def counted(self, name: str, start: str, stop: str, step: int) -> Iterator[None]:
        """A loop over u32 numbers."""
        with self.writer.block(f"for (var {name} = {start}; {name} < {stop}; {name} += {step}u)"):
            yield

    def blocks_of_columns(self) -> Iterator[None]:
        """The loop over blocks of columns, each from ``column`` on: ``for _ in`` it, since there is none where nothing is to be met."""
        if self.column_count:
            with self.counted("column", "low", "high", self.cut.column_block):
                yield

    # ------------------------------------------------------------- shared memory

    def _reads(self, name: str, count: int, *, whole: bool = False) -> str:
        """What reads vectors of an operand in blocks of ``count`` rows; of ``whole`` ones, none is beyond its row."""
        quads = -(-self.width(name) // 4)
        inside = self.rows(name) % count == 0 and (whole or quads % self.cut.depth == 0)
        return self.four(name, inside)

    def _stage_rows(self, target: str, count: int, rows: Rows, first: str) -> None:
        cut, four = self.cut, self._reads(rows.name, count)
        stage(
            self,
            target,
            cut.pitch,
            count,
            cut.depth,
            lambda row, quad: f"{four}({rows.base}, {rows.first} + {row}, {first} + {quad})",
        )

    def stage_left(self, rows: Rows) -> None:
        """Put whole rows into shared memory, once for all columns."""
        four = self._reads(rows.name, self.cut.row_block, whole=True)
        quads = -(-self.width(rows.name) // 4)
        stage(
            self,
            "left",
            self.left_pitch,
            self.cut.row_block,
            quads,
            lambda row, quad: f"{four}({rows.base}, {rows.first} + {row}, {quad})",
        )

    # ------------------------------------------------------------- products

    def product(self, target: str, rows: Rows, columns: Rows) -> None:
        """Products of all rows and columns of a block as ``target``; rows that are kept are in shared memory already."""
        cut = self.cut
        for i, c in self.each():
            self.line(f"var {target}_{i}_{c} = {self.vector}();")
        quads = -(-self.width(rows.name) // 4)
        if not quads:
            return
        several = quads > cut.depth
        with self.writer.block(
            f"for (var depth = 0u; depth < {quads}u; depth += {cut.depth}u)" if several else ""
        ):
            first = "depth" if several else "0u"
            self.shader.barrier()
            if not cut.kept:
                self._stage_rows("left", cut.row_block, rows, first)
            self._stage_rows("right", cut.column_block, columns, first)
            self.shader.barrier()
            limit = f"min({cut.depth}u, {quads}u - depth)" if several else f"{quads}u"
            self.line(f"let limit = {limit};")
            with self.counted("d", "0u", "limit", 1):
                self._multiply(target, f"{first} + d" if cut.kept else "d")

    def _multiply(self, target: str, place: str) -> None:
        """One vector of each row, at its place in shared memory, and of each column."""
        cut = self.cut
        self.line(f"let of_row = down * {self.left_pitch}u + {place};")
        self.line(f"let of_column = across * {cut.pitch}u + d;")
        for j in range(cut.columns):
            self.line(f"let r{j} = right[of_column + {j * cut.across * cut.pitch}u];")
        for c in range(cut.quads):
            for axis in AXES:
                parts = ", ".join(f"r{4 * c + k}.{axis}" for k in range(4))
                self.line(f"let c{c}{axis} = {self.vector}({parts});")
        for i in range(cut.rows):
            self.line(f"let l{i} = left[of_row + {i * cut.down * self.left_pitch}u];")
            for c in range(cut.quads):
                name = f"{target}_{i}_{c}"
                for axis in AXES:
                    self.line(f"{name} = fma({self.vector}(l{i}.{axis}), c{c}{axis}, {name});")

    # ------------------------------------------------------------- sums

    def start_sums(self, target: str, name: str) -> None:
        """Zeros for the rows of what is summed."""
        for i in range(self.cut.rows):
            for w in range(self.cut.summed(self.width(name))):
                self.line(f"var {target}_{i}_{w} = {self.vector}();")

    def need_weights(self) -> None:
        """Have room for weights in shared memory."""
        self.shader.text_shared(
            "weights", f"array<{self.vector}, {self.cut.row_block * self.cut.weight_pitch}>"
        )

    def put_weights(self, source: str) -> None:
        """Put a thread's scores into shared memory, one row after the other."""
        cut = self.cut
        self.line(f"let own_weights = down * {cut.weight_pitch}u + across * {cut.quads}u;")
        for i, c in self.each():
            place = f"own_weights + {i * cut.down * cut.weight_pitch + c}u"
            self.line(f"weights[{place}] = {source}_{i}_{c};")

    def add_weighted(self, target: str, weights: str, columns: Rows) -> None:
        """Add the columns' rows, weighted by scores, to sums. Nobody may be reading weights any more."""
        cut = self.cut
        across = cut.summed(self.width(columns.name))
        quads, pitch = -(-self.width(columns.name) // 4), cut.across * across
        if not quads:
            return
        four = self._reads(columns.name, cut.column_block, whole=True)
        several = cut.chunk < cut.column_block
        with self.writer.block(""):
            self.put_weights(weights)
            with self.writer.block(
                f"for (var part = 0u; part < {cut.column_block}u; part += {cut.chunk}u)"
                if several
                else ""
            ):
                part = "part" if several else "0u"
                self.shader.barrier()

                def value(row: str, quad: str) -> str:
                    place = f"({part} + {row})"
                    column = (
                        f"{place} / {cut.columns}u + {cut.across}u * ({place} % {cut.columns}u)"
                    )
                    return f"{four}({columns.base}, {columns.first} + {column}, {quad})"

                stage(self, "right", pitch, cut.chunk, quads, value)
                self.shader.barrier()
                with self.counted("p", "0u", f"{cut.chunk // 4}u", 1):
                    self.line(f"let of_row = down * {cut.weight_pitch}u + {part} / 4u + p;")
                    for i in range(cut.rows):
                        place = f"of_row + {i * cut.down * cut.weight_pitch}u"
                        self.line(f"let w{i} = weights[{place}];")
                    for k, axis in enumerate(AXES):
                        for w in range(across):
                            place = f"(p * 4u + {k}u) * {pitch}u + across + {w * cut.across}u"
                            self.line(f"let v{k}_{w} = right[{place}];")
                        for i in range(cut.rows):
                            for w in range(across):
                                name = f"{target}_{i}_{w}"
                                factor = f"{self.vector}(w{i}.{axis})"
                                self.line(f"{name} = fma({factor}, v{k}_{w}, {name});")

    # ------------------------------------------------------------- which keys are seen

    def write_rows(self, first: str) -> None:
        """``row0``, ...: the numbers of a thread's rows, from the block's first."""
        for i in range(self.cut.rows):
            self.line(f"let row_{i} = i32({first} + down) + {i * self.cut.down}i;")

    def write_columns(self, first: str) -> None:
        """``columns0``, ...: those of its columns, 4 at a time."""
        cut = self.cut
        for c in range(cut.quads):
            steps = ", ".join(f"{(4 * c + k) * cut.across}i" for k in range(4))
            self.line(f"let columns_{c} = i32({first} + across) + vec4<i32>({steps});")

    def write_bases(self, name: str, batch: str, head: str) -> None:
        """Where the head's part of a mask or bias begins."""
        self.line(f"let {name}_base = {self.head_of(name, batch, head)};")

    def write_places(self, name: str) -> None:
        """Where the elements of a mask or bias lie for a thread's rows and columns, as far as they exist."""
        of_row, of_column = (2, 3) if self.by_query else (3, 2)
        for i in range(self.cut.rows):
            inside = f"u32(min(row_{i}, {self.row_count - 1}i))"
            stride = self.stride(name, of_row)
            self.line(f"let {name}_row_{i} = {name}_base + {inside} * {stride};")
        for c in range(self.cut.quads):
            inside = f"min(columns_{c}, vec4<i32>({self.column_count - 1}i))"
            stride = self.stride(name, of_column)
            self.line(f"let {name}_column_{c} = vec4<u32>({inside}) * {stride};")

    def _four_of(self, name: str, i: int, c: int) -> str:
        one = self.one(name)
        parts = ", ".join(f"{one}({name}_row_{i} + {name}_column_{c}.{axis})" for axis in AXES)
        kind = "vec4<bool>" if name == "mask" else self.vector
        return f"{kind}({parts})"

    def finish(self, target: str, squashed: str = "") -> None:
        """Make scores of products, in place: scale, cap, bias, and what hides keys.

        ``squashed`` names what takes tanh(score / softcap), where a gradient needs it.
        """
        attention = self.attention
        for name in ("mask", "bias"):
            if name in attention.operands:
                self.write_places(name)
        scale = self.constant(attention.scale)
        for i, c in self.each():
            own = f"{target}_{i}_{c}"
            self.line(f"{own} = {own} * {scale};")
            if attention.softcap is not None:
                cap = self.constant(attention.softcap)
                cut = f"{squashed or 'squashed'}_{i}_{c}"
                self.line(f"let {cut} = {self.tanh_of_four(f'{own} / {cap}')};")
                self.line(f"{own} = {cut} * {cap};")
            if "bias" in attention.operands:
                self.line(f"{own} = {own} + {self._four_of('bias', i, c)};")
            seen = " & ".join(self._seen(i, c))
            if seen:
                self.line(f"{own} = select({self.vector}({self.hidden}), {own}, {seen});")

    def _seen(self, i: int, c: int) -> list[str]:
        """What must be true of a vector of keys that are seen."""
        attention, window = self.attention, self.attention.window
        found = []
        if self.column_count % self.cut.column_block:
            found.append(f"(columns_{c} < vec4<i32>({self.column_count}i))")
        query, key = (f"row_{i}", f"columns_{c}") if self.by_query else (f"columns_{c}", f"row_{i}")
        distance = f"({query} + start - {key})"
        if attention.causal:
            found.append(f"({distance} >= vec4<i32>(0i))")
        if window is not None:
            window = min(window, 1 << 30)
            found.append(f"({distance} < vec4<i32>({window}i))")
            if not attention.causal:
                found.append(f"({distance} > vec4<i32>({-window}i))")
        if "mask" in attention.operands:
            found.append(self._four_of("mask", i, c))
        return found

    def write_range(self, first: str) -> None:
        """``low`` and ``high``: from which column on, in whole blocks, and before which, a block of rows sees any; u32."""
        attention, window, cut = self.attention, self.attention.window, self.cut
        low, high = "0i", f"{self.column_count}i"
        last = f"i32(min({first} + {cut.row_block - 1}u, {max(self.row_count, 1) - 1}u))"
        begin = f"i32({first})"
        reach = None if window is None else min(window, 1 << 30) - 1
        if self.by_query:
            if attention.causal:
                high = f"min({high}, start + {last} + 1i)"
            elif reach is not None:
                high = f"min({high}, start + {last} + {reach + 1}i)"
            if reach is not None:
                low = f"max({low}, start + {begin} - {reach}i)"
        else:
            if attention.causal:
                low = f"max({low}, {begin} - start)"
            elif reach is not None:
                low = f"max({low}, {begin} - start - {reach}i)"
            if reach is not None:
                high = f"min({high}, {last} - start + {reach + 1}i)"
        block = f"{cut.column_block}u"
        begin, end = ("low", "high") if cut.parts == 1 else ("begin", "end")
        self.line(f"let {begin} = u32({low}) / {block} * {block};")
        self.line(f"let {end} = u32(max({high}, 0i));")
        if cut.parts > 1:
            self.line(
                f"let blocks = select(0u, (end + {block} - 1u - begin) / {block}, end > begin);"
            )
            length = f"(blocks + {cut.parts - 1}u) / {cut.parts}u * {block}"
            self.line(f"let low = min(begin + part * ({length}), end);")
            self.line(f"let high = min(low + {length}, end);")

    # ------------------------------------------------------------- sums over rows

    def need_exchange(self) -> None:
        """Have room for one number of every row and thread, and one of every row."""
        cut = self.cut
        self.shader.text_shared(
            "partial", f"array<{self.number}, {cut.row_block * (cut.across + 1)}>"
        )
        self.shader.text_shared("agreed", f"array<{self.number}, {cut.row_block}>")

    def exchange(self, values: str, result: str, combine: Callable[[str, str], str]) -> None:
        """``result_i``: the numbers ``values_i`` of all threads of a row as one."""
        cut = self.cut
        pitch = cut.across + 1
        for i in range(cut.rows):
            self.line(f"partial[(down + {i * cut.down}u) * {pitch}u + across] = {values}_{i};")
        self.shader.barrier()
        with self.counted("e", "local", f"{cut.row_block}u", cut.threads):
            self.line(f"var all = partial[e * {pitch}u];")
            for k in range(1, cut.across):
                self.line(f"all = {combine('all', f'partial[e * {pitch}u + {k}u]')};")
            self.line("agreed[e] = all;")
        self.shader.barrier()
        for i in range(cut.rows):
            self.line(f"let {result}_{i} = agreed[down + {i * cut.down}u];")


def stage(
    reader: Reader,
    target: str,
    pitch: int,
    count: int,
    width: int,
    value: Callable[[str, str], str],
) -> None:
    """Fill ``count`` rows of ``width`` vectors of shared memory, ``pitch`` apart; ``value(row, vector)`` reads one."""
    threads, total = reader.shader.threads, count * width
    turns = -(-total // threads)
    together = min(AT_ONCE, turns)
    step = threads * together
    with reader.writer.block(f"for (var e = local; e < {total}u; e += {step}u)"):
        names = []
        for k in range(together):
            at, row = f"e{k}", f"row{k}"
            reader.line(f"let {at} = e + {k * threads}u;")
            reader.line(f"let {row} = {at} / {width}u;")
            reader.line(f"let quad{k} = {at} % {width}u;")
            reader.line(f"let value{k} = {value(row, f'quad{k}')};")
            names.append((at, f"{row} * {pitch}u + quad{k}", f"value{k}"))
        for k, (at, place, name) in enumerate(names):
            store = f"{target}[{place}] = {name};"
            inside = total % step == 0 or k == 0
            reader.line(store if inside else f"if ({at} < {total}u) {{ {store} }}")


def sum_of_four(x: str) -> str:
    """The sum of a vector's numbers."""
    return f"(({x}.x + {x}.y) + ({x}.z + {x}.w))"


def most_of_four(x: str) -> str:
    """The largest of them."""
    return f"max(max({x}.x, {x}.y), max({x}.z, {x}.w))"
