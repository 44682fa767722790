"""Attention in parts of the keys: what each part leaves behind, and the dispatch that puts the parts together."""

from __future__ import annotations

from ....lower.plan import Spec
from ...problems.attention import Described
from ..dispatch import Stage
from ..machine import Machine
from .operands import Reader, share_of
from .results import are_whole, write_rows

THREADS = 128
"""Threads that put the parts of some rows together."""
AHEAD = 4
"""Parts that each of them reads at a time."""


class Records:
    """What parts leave in scratch memory: for each query and part its sums, their maximum and their total.

    Attributes:
        quads: vectors of a row of sums.
        nbytes: of scratch memory.
    """

    def __init__(self, spec: Spec, machine: Machine, attention: Described, parts: int) -> None:
        self.spec, self.machine, self.attention, self.parts = spec, machine, attention, parts
        self.quads = -(-attention.value_width // 4)
        self.count = attention.batch * attention.heads * attention.queries * parts
        size = 4
        self.sums_bytes = -(-self.count * self.quads * 4 * size // 256) * 256
        self.nbytes = self.sums_bytes + 2 * self.count * size

    def bind(self, reader: Reader) -> None:
        """Have the memory at hand."""
        scratch, kind = reader.shader.scratch, reader.kind
        self.sums = scratch(0, self.count * self.quads * 4, kind, vector=4).name
        self.known = scratch(self.sums_bytes, 2 * self.count, kind).name

    def write_place(self, reader: Reader, head: str, row: str) -> None:
        """``record``: the number of a query's record of this ``part``."""
        attention = self.attention
        place = f"(batch * {attention.heads}u + {head}) * {attention.queries}u + {row}"
        reader.line(f"let record = ({place}) * {self.parts}u + part;")

    def put_sum(self, reader: Reader, quad: str, value: str) -> None:
        """Write one vector of a row of sums."""
        reader.line(f"{self.sums}[record * {self.quads}u + {quad}] = {value};")

    def put_known(self, reader: Reader, top: str, total: str) -> None:
        """Write what the sums are relative to."""
        reader.line(f"{self.known}[record * 2u] = {top};")
        reader.line(f"{self.known}[record * 2u + 1u] = {total};")

    def merge(self) -> Stage:
        """The dispatch that puts parts together: a workgroup for a few rows, whose threads have some parts of some columns each."""
        attention, parts, quads = self.attention, self.parts, self.quads
        numbers = range(len(self.spec.body.outputs))
        whole = are_whole(self.spec, numbers)
        reader = Reader(self.spec, self.machine, attention, THREADS, whole)
        vector, number = reader.vector, reader.number
        self.bind(reader)
        rows = max(1, min(THREADS // quads, attention.queries))
        items = rows * quads
        slices = max(1, min(parts, THREADS // items))
        shared, held = reader.shader.text_shared, max(items, THREADS)
        shared("results", f"array<{vector}, {held}>")
        shared("tops", f"array<{number}, {held}>")
        shared("totals", f"array<{number}, {held}>")
        blocks = -(-attention.queries // rows)
        reader.line(f"let first = group % {blocks}u * {rows}u;")
        reader.line(f"let head = group / {blocks}u % {attention.heads}u;")
        reader.line(f"let batch = group / {blocks * attention.heads}u;")
        each = f"for (var e = local; e < {items * slices}u; e += {THREADS}u)"
        with reader.writer.block(each):
            own = f"min(first + e % {items}u / {quads}u, {attention.queries - 1}u)"
            place = f"(batch * {attention.heads}u + head) * {attention.queries}u + {own}"
            reader.line(f"let record = ({place}) * {parts}u;")
            reader.line(f"let quad = e % {quads}u;")
            reader.line(f"var top = {reader.lowest};")
            reader.line(f"var total = {reader.constant(0.0)};")
            reader.line(f"var sum = {vector}();")
            begin, step = f"e / {items}u", AHEAD * slices
            with reader.writer.block(f"for (var part = {begin}; part < {parts}u; part += {step}u)"):
                self._some(reader, slices)
            reader.line("results[e] = sum;")
            reader.line("tops[e] = top;")
            reader.line("totals[e] = total;")
        reader.shader.barrier()
        with reader.writer.block(f"for (var e = local; e < {items}u; e += {THREADS}u)"):
            self._slices(reader, items, slices)
        reader.shader.barrier()
        write_rows(reader, rows, "first", lambda row, quad: f"results[{row} * {quads}u + {quad}]")
        return reader.shader.finish(attention.batch * attention.heads * blocks)

    def _some(self, reader: Reader, slices: int) -> None:
        """Add a few parts to ``sum`` and ``total``; one that there is not weighs nothing."""
        last, zero = self.parts - 1, reader.constant(0.0)
        for k in range(AHEAD):
            reader.line(f"let own_{k} = record + min(part + {k * slices}u, {last}u);")
            reader.line(f"let top_{k} = {self.known}[own_{k} * 2u];")
            reader.line(f"let total_{k} = {self.known}[own_{k} * 2u + 1u];")
            reader.line(f"let sum_{k} = {self.sums}[own_{k} * {self.quads}u + quad];")
        most = "top"
        for k in range(AHEAD):
            most = f"max({most}, top_{k})"
        reader.line(f"let peak = {most};")
        reader.line(f"let before = {reader.exp('top - peak')};")
        reader.line("top = peak;")
        reader.line("total = total * before;")
        reader.line("sum = sum * before;")
        for k in range(AHEAD):
            raised, exists = reader.exp(f"top_{k} - peak"), f"part + {k * slices}u <= {last}u"
            reader.line(f"let factor_{k} = select({zero}, {raised}, {exists});")
            reader.line(f"total = fma(total_{k}, factor_{k}, total);")
            reader.line(f"sum = fma(sum_{k}, {reader.vector}(factor_{k}), sum);")

    def _slices(self, reader: Reader, items: int, slices: int) -> None:
        """What the threads of one column and row have, as one."""
        reader.line("var top = tops[e];")
        for k in range(1, slices):
            reader.line(f"top = max(top, tops[e + {k * items}u]);")
        reader.line(f"var total = {reader.constant(0.0)};")
        reader.line(f"var sum = {reader.vector}();")
        with reader.writer.block(f"for (var k = 0u; k < {slices}u; k++)"):
            reader.line(f"let own = e + k * {items}u;")
            reader.line(f"let factor = {reader.exp('tops[own] - top')};")
            reader.line("total = fma(totals[own], factor, total);")
            reader.line(f"sum = fma(results[own], {reader.vector}(factor), sum);")
        reader.line(f"results[e] = sum * {share_of(reader, 'total')};")
