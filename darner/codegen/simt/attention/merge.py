"""Attention in parts of the keys: what each part leaves behind, and the dispatch that puts the parts together."""

from __future__ import annotations

from ....graph.integers import ceil_div, round_up
from ....lower.plan import Spec
from ...ir.index import Number
from ...problems.attention import Described, result_numbers
from ..builder import Memory, Value, Variable
from ..dispatch import Stage
from ..machine import GRANULE, Machine
from .operands import Place, Reader, share_of
from .results import are_whole, keeps_statistics, write_rows, write_statistics

THREADS = 128
"""Threads that put the parts of some rows together."""
AHEAD = 4
"""Parts that each of them reads at a time."""


class Running:
    """Sums that are relative to a maximum, with their total: of some keys, and of more and more of them."""

    def __init__(self, reader: Reader, top: Value) -> None:
        b = reader.builder
        self.reader, self.builder = reader, b
        self.top = b.variable(top, "top")
        self.total: Variable = b.variable(0.0, "total", reader.kind)
        self.sum: Variable = b.variable(0.0, "sum", reader.kind, width=4)

    def add(self, total: Value, sum_: Value, factor: Value) -> None:
        """Add those of other keys, by a factor."""
        b = self.builder
        self.total.set(b.fma(total, factor, self.total))
        self.sum.set(b.fma(sum_, factor, self.sum))

    def share(self) -> Value:
        """The sums by their total."""
        return self.sum * share_of(self.reader, self.total)


class Records:
    """What parts leave in scratch memory: for each query and part its sums, their maximum and their total.

    Attributes:
        quads: vectors of a row of sums.
        nbytes: of scratch memory.
    """

    sums: Memory
    known: Memory

    def __init__(self, spec: Spec, machine: Machine, attention: Described, parts: int) -> None:
        self.spec, self.machine, self.attention, self.parts = spec, machine, attention, parts
        self.quads = ceil_div(attention.value_width, 4)
        self.count = attention.batch * attention.heads * attention.queries * parts
        size = 4
        self.sums_bytes = round_up(self.count * self.quads * 4 * size, GRANULE)
        self.nbytes = self.sums_bytes + 2 * self.count * size

    def bind(self, reader: Reader) -> None:
        """Have the memory at hand."""
        scratch, kind = reader.dispatch.scratch, reader.kind
        self.sums = scratch(0, self.count * self.quads * 4, kind, vector=4)
        self.known = scratch(self.sums_bytes, 2 * self.count, kind)

    def place(self, reader: Reader, place: Place, row: Number) -> Value:
        """The number of a query's record of a part."""
        attention, b = self.attention, reader.builder
        head = (place.batch * attention.heads + place.head) * attention.queries + row
        return b.let(head * self.parts + place.part, "record")

    def put_sum(self, record: Value, quad: Value, value: Value) -> None:
        """Write one vector of a row of sums."""
        self.sums[record * self.quads + quad] = value

    def put_known(self, record: Value, top: Value, total: Value) -> None:
        """Write what the sums are relative to."""
        self.known[record * 2] = top
        self.known[record * 2 + 1] = total

    def merge(self) -> Stage:
        """The dispatch that puts parts together: a workgroup for a few rows, whose threads have some parts of some columns each."""
        attention, parts, quads = self.attention, self.parts, self.quads
        whole = are_whole(self.spec, result_numbers(self.spec))
        reader = Reader(self.spec, self.machine, attention, THREADS, whole)
        b = reader.builder
        self.bind(reader)
        rows = max(1, min(THREADS // quads, attention.queries))
        items = rows * quads
        slices = max(1, min(parts, THREADS // items))
        held = max(items, THREADS)
        self.results = b.shared(reader.kind, held, "results", width=4)
        self.tops = b.shared(reader.kind, held, "tops")
        self.totals = b.shared(reader.kind, held, "totals")
        blocks = ceil_div(attention.queries, rows)
        place = Place(
            batch=b.let(b.group // (blocks * attention.heads), "batch"),
            head=b.let(b.group // blocks % attention.heads, "head"),
            first=b.let(b.group % blocks * rows, "first"),
        )
        with b.for_(b.local, items * slices, THREADS, name="e") as e:
            row = b.min(e % items // quads + place.first, attention.queries - 1)
            record = self.place(reader, place, row)
            quad = b.let(e % quads, "quad")
            running = Running(reader, reader.lowest)
            with b.for_(e // items, parts, AHEAD * slices, name="part") as part:
                self._add_parts(running, record, quad, part, slices)
            self.results[e] = running.sum
            self.tops[e] = running.top
            self.totals[e] = running.total
        b.barrier()
        with b.for_(b.local, items, THREADS, name="e") as e:
            running = self._add_slices(reader, e, items, slices)
            if keeps_statistics(reader):
                row = b.let(place.first + e // quads)
                with b.if_(e % quads == 0, row < attention.queries):
                    write_statistics(reader, place, row, running.top, running.total)
        b.barrier()
        write_rows(reader, place, rows, lambda row, quad: self.results[row * quads + quad])
        return reader.dispatch.finish(attention.batch * attention.heads * blocks)

    def _add_parts(
        self, running: Running, record: Value, quad: Value, part: Value, slices: int
    ) -> None:
        """Add a few parts; one that there is not weighs nothing."""
        b, exp, last = running.builder, running.reader.exp, self.parts - 1
        found = []
        for k in range(AHEAD):
            own = b.let(record + b.min(part + k * slices, last), "own")
            known = self.known[own * 2], self.known[own * 2 + 1]
            found.append((*known, self.sums[own * self.quads + quad]))
        most: Value = running.top
        for top, _, _ in found:
            most = b.max(most, top)
        peak = b.let(most, "peak")
        before = b.let(exp(running.top - peak), "before")
        running.top.set(peak)
        running.total.set(running.total * before)
        running.sum.set(running.sum * before)
        for k, (top, total, sum_) in enumerate(found):
            factor = b.choose(part + k * slices <= last, exp(top - peak), 0.0)
            running.add(total, sum_, b.let(factor, "factor"))

    def _add_slices(self, reader: Reader, e: Value, items: int, slices: int) -> Running:
        """What the threads of one column and row have, as one."""
        b = reader.builder
        running = Running(reader, self.tops[e])
        for other in range(1, slices):
            running.top.set(b.max(running.top, self.tops[e + other * items]))
        with b.for_(0, slices, name="k") as k:
            own = b.let(e + k * items, "own")
            factor = b.let(reader.exp(self.tops[own] - running.top), "factor")
            running.add(self.totals[own], self.results[own], factor)
        self.results[e] = running.share()
        return running
