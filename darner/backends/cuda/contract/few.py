"""Products of a few rows: every byte of the other operand is read once, and how fast it is read is all that counts.

Warps of a block have columns of their own, or share the terms of columns; so do blocks where there are few columns. The blocks that share columns are a cluster: each adds up what its warps have, and then a part of the results over all
blocks, in their order, from their shared memory. Without clusters a second launch adds the parts. Before anything else a warp asks for its first weights; while they come, the rows are brought to shared memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2

from ....codegen.ir.index import Number
from ....codegen.simt.builder import Memory, Value
from ....codegen.simt.contract.epilogue import Ahead, Sink
from ....codegen.simt.contract.load import offset
from ....codegen.simt.contract.product import Product, steps
from ....codegen.simt.contract.tiles import SinkOf
from ....codegen.simt.dispatch import Dispatch
from ....codegen.simt.elements import ThreadElements
from ....graph import dtypes
from ....graph.integers import ceil_div
from ..instructions.stream import Streaming
from ..instructions.warp import Cores
from ..machine import CLUSTERS, STATIC_SHARED, Machine
from .dots import WARP, Columns, Dots, Rows, Step, dots_of, step_of
from .operands import PIECE, Layout

MOST_ROWS = 16
"""Up to so many rows there are these kernels."""
PARTS = (1, 2, 4, 8)
"""Blocks of a cluster: such numbers as leave few multiprocessors over."""
PIECES = 8
"""Pieces of 16 bytes that a lane asks for before it uses the first."""

LATENCY = 0.75
"""Microseconds until what is asked for is there."""
BYTES = 3_900_000.0
"""That come from memory in a microsecond."""
BYTES_OF_ONE = 45_000.0
"""The same for one multiprocessor."""
CLUSTER = 0.5
"""Microseconds that the blocks of a cluster wait for each other."""
CLUSTER_OF_ONE = 0.03
"""And read what one of them has."""
DISPATCH = 2.2
"""Microseconds of another launch."""
WARPS = (2, 4, 8, 16)
"""Warps of a block."""
REGISTERS = 1 << 16
"""Of a multiprocessor."""


@dataclass(frozen=True)
class FewCut:
    """How the work is shared out.

    Attributes:
        across: warps of a block that have columns of their own.
        deep: warps that share the terms of a column.
        parts: blocks that share them.
        ahead: steps that a warp asks for before it uses the first.
    """

    across: int
    deep: int
    parts: int
    ahead: int

    @property
    def name(self) -> str:
        """What tells it from others."""
        parts = f", {self.parts} parts" if self.parts > 1 else ""
        return f"few rows by {self.across} x {self.deep} warps, {self.ahead} ahead{parts}"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.across * self.deep * WARP


@dataclass(frozen=True)
class Extent:
    """What a block has of a product.

    Attributes:
        width: columns; of a product in halves, those of the first and then those of the second.
        each: steps of the terms of a part.
        total: steps of all terms.
    """

    width: int
    each: int
    total: int

    @staticmethod
    def of(product: Product, step: Step, cut: FewCut) -> Extent:
        """The extent of a block."""
        total = ceil_div(product.k, step.terms)
        return Extent(step.columns * cut.across, ceil_div(total, cut.parts), total)


def few_blocks(product: Product, step: Step, cut: FewCut) -> int:
    """Blocks of a product's launch."""
    width = Extent.of(product, step, cut).width
    return ceil_div(product.n, width) * product.count * cut.parts


def own_words(product: Product, step: Step, cut: FewCut, rows: Rows) -> int:
    """Words of shared memory for what a block has itself: the rows, whose place its warps' sums take."""
    sums = product.m * Extent.of(product, step, cut).width * cut.deep
    return ceil_div(max(rows.words, sums), 4) * 4


def shared_words(product: Product, step: Step, cut: FewCut, rows: Rows) -> int:
    """Words of shared memory in all: behind a block's own is what others of the cluster hand over, who may be further on."""
    handed = product.m * Extent.of(product, step, cut).width * cut.parts if cut.parts > 1 else 0
    return own_words(product, step, cut, rows) + handed


def rows_of(product: Product, step: Step, cut: FewCut, memory: Memory) -> Rows:
    """The rows as a block has them."""
    return Rows(memory, product.m, Extent.of(product, step, cut).each * step.terms, step)


def cuts_of(product: Product, layout: Layout, machine: Machine) -> list[FewCut]:
    """How a product may be shared out: what is expected to be best first; none where its rows have no room in shared memory."""
    step = step_of(layout)
    found = _cuts(product, step, machine)
    return sorted(found, key=lambda cut: expected(product, step, cut, machine))


def _cuts(product: Product, step: Step, machine: Machine) -> list[FewCut]:
    """The ways in which warps that take such steps may share a product out."""
    total = ceil_div(product.k, step.terms)
    clusters = machine.capability >= CLUSTERS and not machine.emulated
    nowhere = Memory("rows", dtypes.u32, vector=4)
    pieces = PIECES if product.m <= MOST_ROWS // 2 or step.itemsize == 2 else PIECES // 2
    found = []
    for warps, across, parts in itertools.product(WARPS, (1, 2, 4), PARTS):
        deep, each = warps // across, ceil_div(total, parts)
        if product.halves and not (across % 2 == 0 and (parts == 1 or clusters)):
            continue
        if not deep or (parts > 1 and ceil_div(total, each) < parts):
            continue
        ahead = max(1, min(pieces // step.pieces, ceil_div(each, deep)))
        cut = FewCut(across, deep, parts, ahead)
        words = shared_words(product, step, cut, rows_of(product, step, cut, nowhere))
        registers = cut.threads * _registers(product, step)
        if 4 * words <= STATIC_SHARED and registers <= REGISTERS:
            found.append(cut)
    return found


def expected(product: Product, step: Step, cut: FewCut, machine: Machine) -> float:
    """Microseconds that a product is expected to take: what the busiest multiprocessor reads, at the rate of what it has asked for."""
    extent = Extent.of(product, step, cut)
    blocks = few_blocks(product, step, cut)
    resident = max(1, REGISTERS // (cut.threads * _registers(product, step)))
    # Parts of a card that clusters lie in have multiprocessors left over.
    left = machine.processors // 11 if cut.parts > 2 else 0
    side_by_side = machine.processors - left
    turns = ceil_div(blocks, side_by_side * resident)
    together = min(resident, ceil_div(blocks, side_by_side))
    rounds = ceil_div(extent.each, cut.deep)
    own = extent.width * extent.each * step.terms * step.itemsize * together * turns
    asked = together * cut.threads * PIECE * step.pieces * min(rounds, cut.ahead)
    rate = min(asked / LATENCY, BYTES_OF_ONE)
    stored = product.count * product.n * product.k * step.itemsize
    found = LATENCY + max(own / rate, stored / BYTES)
    # What is asked for in vain: the last round of steps is not full.
    found += 0.05 * (rounds * cut.deep - extent.each) / extent.each
    found += 0.06 * log2(cut.deep) + 0.02 * cut.across
    if cut.parts > 1:
        clusters = machine.capability >= CLUSTERS
        found += CLUSTER + CLUSTER_OF_ONE * cut.parts if clusters else DISPATCH
    return found


def _registers(product: Product, step: Step) -> int:
    """Those that a thread has, about."""
    if step.itemsize == 4:
        return 96 if product.m <= MOST_ROWS // 2 else 168
    return 72 if step.by_terms else 112


# --------------------------------------------------------------------------- the kernel


@dataclass(frozen=True)
class Place:
    """Which part of a product a block has: a matrix of the batch, its first column, its part of the sums, and that part's first step and the one after its last."""

    batch: Number
    column: Value
    part: Value
    first: Value
    stop: Value


class FewKernel:
    """The code of a product of a few rows.

    Args:
        dispatch: where it goes.
        product: what is computed.
        cut: how the work is shared out.
        layout: how the streamed operand lies.
        tools: the instructions of its warps.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        product: Product,
        cut: FewCut,
        layout: Layout,
        tools: tuple[Cores, Streaming],
    ) -> None:
        self.dispatch, self.product, self.cut = dispatch, product, cut
        self.builder = b = dispatch.builder
        self.cores, self.streaming = tools
        self.step = step_of(layout)
        # Of a product in halves, a column is a column of either.
        self.taken, self.values = product.taken, len(product.halves) or 1
        self.extent = Extent.of(product, self.step, cut)
        unplaced = rows_of(product, self.step, cut, Memory("rows", dtypes.u32, vector=4))
        items = ceil_div(shared_words(product, self.step, cut, unplaced), 4)
        room = b.shared(dtypes.u32, (items,), "rows", 4)
        self.rows = replace(unplaced, memory=room)
        self.sums = self.rows.view(1, floats=True)
        leaf = product.operands[1].leaf
        memory = dispatch.as_vectors(dispatch.operand(leaf), layout.piece)
        self.columns = Columns(layout, memory, product.n, product.k)
        self.place = self._place()
        self.warp = b.let(b.local // WARP, "warp")
        if self._takers > cut.threads:
            self.streaming.arrive()

    @property
    def groups(self) -> int:
        """Blocks of the launch."""
        return few_blocks(self.product, self.step, self.cut)

    @property
    def width(self) -> int:
        """Columns of a block, of either half."""
        return self.extent.width // self.values

    def _place(self) -> Place:
        b, cut, extent = self.builder, self.cut, self.extent
        tile, part = b.let(b.group // cut.parts, "tile"), b.let(b.group % cut.parts, "part")
        across = ceil_div(self.taken.n, self.width)
        batch: Number = b.let(tile // across, "matrix") if self.product.count > 1 else 0
        first = b.let(part * extent.each, "first")
        stop = b.let(b.min(first + extent.each, extent.total), "stop")
        return Place(batch, b.let(tile % across * self.width, "column"), part, first, stop)

    def write(self, sink: SinkOf, layout: Layout | None) -> None:
        """Write the kernel; ``layout`` is how the rows lie, where they lie in pieces along the terms."""
        b, cut = self.builder, self.cut
        took = sink(self.place.part)
        dots = dots_of(self.dispatch, self.streaming, self.cores, self.columns, self.rows)
        slice_ = b.let(self.warp % cut.deep, "slice")
        own = b.let(self.warp // cut.deep, "own")
        column: Value = b.let(self.place.column + own * self.step.columns)
        if self.product.halves:
            half = b.let(own // (cut.across // 2), "half")
            inside = own % (cut.across // 2) * self.step.columns
            column = b.let(half * self.taken.n + self.place.column + inside)
        dots.start(self.place.batch, column)
        took.begin()
        # What the only unit of a thread reads comes while weights do.
        once = self.product.m * (self.width // took.unit) <= self._takers
        ahead = self._read_ahead(took) if once else None
        self._write_loop(dots, slice_, layout)
        b.barrier()
        first = b.let(slice_ * self._count + own * self.step.columns)
        dots.keep(self.sums, first, self.extent.width)
        b.barrier()
        self._write_results(took, ahead)

    @property
    def _takers(self) -> int:
        """Threads that take units of the results."""
        joined = self.cut.parts > 1 and self.streaming.clusters
        return self.cut.threads * (self.cut.parts if joined else 1)

    def _first_unit(self) -> Value:
        """The number of this thread's first unit."""
        b, local = self.builder, self.builder.local
        if self._takers == self.cut.threads:
            return local
        return b.let(self.streaming.rank() * self.cut.threads + local)

    def _read_ahead(self, sink: Sink) -> Ahead:
        """What this thread's unit reads, or the last one where it has none."""
        b, across = self.builder, self.width // sink.unit
        unit = b.let(b.min(self._first_unit(), self.product.m * across - 1))
        row: Number = b.let(unit // across) if self.product.m > 1 else 0
        column = b.let(self.place.column + unit % across * sink.unit)
        if self.taken.n % self.width:
            column = b.let(b.min(column, self.taken.n - sink.unit))
        return sink.read_ahead(sink.line(self.place.batch, row), column)

    @property
    def _count(self) -> int:
        """Sums of a block."""
        return self.product.m * self.extent.width

    # ------------------------------------------------------------- sums

    def _write_loop(self, dots: Dots, slice_: Value, layout: Layout | None) -> None:
        """Write the loop over a warp's steps: those of the next round are on their way while those of this one are added.

        All warps of a block have as many rounds, of which the last may have steps that are not there.
        """
        b, cut, place = self.builder, self.cut, self.place
        together = cut.ahead * cut.deep
        last = self.extent.total - (cut.parts - 1) * self.extent.each

        def steps_from(base: Number) -> list[Value]:
            return [b.let(base + (slice_ + i * cut.deep)) for i in range(cut.ahead)]

        def load(numbers: Sequence[Value], *, whole: bool) -> list[list[Value]]:
            return [dots.load(n, None if whole else b.let(n < place.stop)) for n in numbers]

        def add(words: Sequence[Sequence[Value]], base: Value, *, whole: bool) -> None:
            for number, own in zip(steps_from(base), words, strict=True):
                inside = b.let(number - place.first)
                # What is not there is 0, and is added to the last of the rows.
                dots.add(own, inside if whole else b.let(b.min(inside, self.extent.each - 1)))

        whole = last >= together
        ahead = load(steps_from(place.first), whole=whole)
        self._write_rows(layout)
        b.barrier()
        if self.extent.each <= together:
            add(ahead, place.first, whole=whole)
            return
        base = b.variable(place.first, "base")
        held = [[b.variable(word, "held") for word in words] for words in ahead]
        if self.extent.each >= 2 * together:
            with b.while_(lambda: base + 2 * together <= place.stop):
                coming = load(steps_from(base + together), whole=True)
                add([[b.let(word) for word in words] for words in held], b.let(base), whole=True)
                for words, fresh in zip(held, coming, strict=True):
                    for word, value in zip(words, fresh, strict=True):
                        word.set(value)
                base.set(base + together)
        rest = self.extent.each % together or last % together
        coming = load(steps_from(b.let(base + together)), whole=False) if rest else []
        add([[b.let(word) for word in words] for words in held], b.let(base), whole=whole)
        if rest:
            add(coming, b.let(base + together), whole=False)

    # ------------------------------------------------------------- rows

    def _write_rows(self, layout: Layout | None) -> None:
        """Bring the rows' terms to shared memory, and zeros where there are none."""
        b, product, rows, place = self.builder, self.product, self.rows, self.place
        dtype = product.operands[0].leaf.dtype
        piece = PIECE // dtype.itemsize
        pieces = rows.terms // piece
        elements = self.dispatch.elements()
        read = _Pieces(self.dispatch, elements, product, layout)
        with b.for_(b.local, rows.count * pieces, self.cut.threads, name="q") as q:
            row: Number = b.let(q // pieces, "row") if rows.count > 1 else 0
            number = b.let(q % pieces, "piece")
            term = b.let(place.first * self.step.terms + number * piece)
            words = read.words(place.batch, row, term)
            if rows.by_term:
                single = rows.view(1)
                for i, word in enumerate(words):
                    single[b.let((number * piece + i) * rows.pitch + row)] = word
            else:
                at = b.index(row) * rows.pitch + number * 4
                rows.memory[b.let(at // 4)] = b.vector(words)

    # ------------------------------------------------------------- results

    def _write_results(self, sink: Sink, ahead: Ahead | None) -> None:
        """Add up what warps and blocks have, and hand it on; ``ahead`` is what the only unit of a thread reads."""
        b, cut, unit = self.builder, self.cut, sink.unit
        across = self.width // unit
        count = self.product.m * across
        joined = self._takers > cut.threads
        if joined:
            self._hand_out(count, unit)
        with b.for_(self._first_unit(), count, self._takers, name="o") as o:
            row: Number = b.let(o // across) if self.product.m > 1 else 0
            column = b.let(self.place.column + o % across * unit)
            sums: list[Value] = []
            for value in range(self.values):
                if joined:
                    sums += self._of_all(b.let((o + value * count) * unit), unit)
                else:
                    sums += self._own(self._place_of(o, value, unit), unit)
            with b.if_(column < self.taken.n if self.taken.n % self.width else None):
                sink.write(sink.line(self.place.batch, row), column, sums, ahead)

    def _place_of(self, unit: Value, value: int, size: int) -> Value:
        """The number of the first sum of a unit: of its row, and of one of the halves."""
        across = self.width // size
        inside = unit % across * size + value * self.width
        return self.builder.let(unit // across * self.extent.width + inside)

    def _hand_out(self, count: int, unit: int) -> None:
        """Let the blocks of the cluster have the sums of the units that are theirs."""
        b, cut = self.builder, self.cut
        # All have begun, so there is memory to write to.
        self.streaming.await_cluster()
        rank = self.streaming.rank()
        with b.for_(b.local, count, cut.threads, name="o") as o:
            owner = b.let(o // cut.threads % cut.parts, "owner")
            for value in range(self.values):
                totals = self._own(self._place_of(o, value, unit), unit)
                own = b.let((rank * (count * self.values) + (o + value * count)) * unit)
                to = b.let(own + self._joined)
                self.streaming.store_to(self.rows.memory, to, owner, totals)
        self.streaming.sync_cluster()

    @property
    def _joined(self) -> int:
        """The number of the first of the sums in shared memory that blocks of the cluster have handed over."""
        return own_words(self.product, self.step, self.cut, self.rows)

    def _numbers(self, width: int) -> Memory:
        return self.rows.view(width, floats=True)

    def _own(self, at: Value, unit: int) -> list[Value]:
        """Neighbouring sums of a block: those of its warps, in their order."""
        b, memory = self.builder, self._numbers(unit)
        found = [b.let(memory[b.let((at + i * self._count) // unit)]) for i in range(self.cut.deep)]
        total = found[0]
        for other in found[1:]:
            total = b.let(total + other)
        return total.parts

    def _of_all(self, at: Value, unit: int) -> list[Value]:
        """Neighbouring sums of all blocks of a cluster, in their order."""
        b, memory, each = self.builder, self._numbers(unit), self.product.m * self.extent.width
        places = [b.let(at + (self._joined + rank * each)) for rank in range(self.cut.parts)]
        found = [b.let(memory[b.let(place // unit)]) for place in places]
        total = found[0]
        for other in found[1:]:
            total = b.let(total + other)
        return total.parts


class _Pieces:
    """Reads the rows in pieces of 16 bytes along the terms, as words."""

    def __init__(
        self,
        dispatch: Dispatch,
        elements: ThreadElements,
        product: Product,
        layout: Layout | None,
    ) -> None:
        self.builder, self.elements, self.product = dispatch.builder, elements, product
        self.layout = layout
        operand = product.operands[0]
        self.dtype = operand.leaf.dtype
        self.offset = operand.offset
        memory = dispatch.operand(operand.leaf)
        self.memory = memory if layout is None else dispatch.as_vectors(memory, layout.piece)

    def words(self, batch: Number, row: Number, term: Value) -> list[Value]:
        """Four words: the terms from ``term`` on, a multiple of a piece's."""
        if self.layout is None:
            return self._one_by_one(batch, row, term)
        b, layout, places = self.builder, self.layout, self.elements.places
        count = self.product.k // layout.piece
        number = b.let(term // layout.piece)
        total = places.add(
            offset(self.elements, batch, layout.in_pieces("batch")), layout.offset // layout.piece
        )
        total = places.add(total, offset(self.elements, row, layout.in_pieces("free")))
        own = b.let(b.min(number, count - 1))
        total = places.add(total, offset(self.elements, own, layout.in_pieces("summed")))
        found = b.let(self.memory[places.value(total)])
        return [b.let(b.choose(number < count, word, 0)) for word in b.bits(found).parts]

    def _one_by_one(self, batch: Number, row: Number, term: Value) -> list[Value]:
        b, places, registers = self.builder, self.elements.places, self.elements.registers
        total = places.add(offset(self.elements, batch, steps(self.product.batch, 0)), self.offset)
        total = places.add(total, offset(self.elements, row, steps(self.product.rows, 0)))
        found: list[Value] = []
        for i in range(PIECE // self.dtype.itemsize):
            number = b.let(term + i)
            own = b.let(b.min(number, self.product.k - 1))
            at = places.add(total, offset(self.elements, own, steps(self.product.summed, 0)))
            value = registers.load(self.memory, at, self.dtype)
            found.append(b.let(b.choose(number < self.product.k, value, 0)))
        if self.dtype is dtypes.f32:
            return [b.let(b.bits(value)) for value in found]
        return [
            b.let(registers.word(found[i : i + 2], self.dtype)) for i in range(0, len(found), 2)
        ]
