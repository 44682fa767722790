"""Products with a few rows: every element of the matrix is read once, and how fast it is read is all that counts.

The terms of a column's sums are shared out to threads of a workgroup, and to workgroups where there are few columns. Neighbouring threads read neighbouring vectors: they have
neighbouring columns where those lie together, and neighbouring terms where these do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ....graph.integers import ceil_div
from ...ir.index import Number
from ..builder import Memory, Value
from ..dispatch import Dispatch
from ..machine import Machine, power_above, power_below
from .epilogue import Sink
from .load import Reader, ThreadSums, terms_of
from .plan import MOST_PART_BYTES
from .product import Product, View, kept_in, part_bytes
from .tiles import SinkOf

THREADS = 512
"""Threads of a workgroup, at most."""
FEWEST = 64
"""Threads of a workgroup at least, if there is work for them."""
LINE = 128
"""Bytes that neighbouring threads read together, where columns lie together."""
AHEAD = 4
"""Vectors of the matrix that a thread asks for before it uses the first."""
STEP = 0.5
"""Microseconds until what a thread asks for is there."""
DISPATCH = 3.5
"""Microseconds that one more dispatch takes."""
BYTES = 4_000_000
"""That are read in a microsecond."""


@dataclass(frozen=True)
class Share:
    """How the work is shared out.

    Attributes:
        threads: of a workgroup.
        slices: threads that share the terms of a column.
        columns: columns of a thread.
        parts: workgroups that share the terms of a column.
        ahead: steps that are written out.
    """

    threads: int
    slices: int
    columns: int
    parts: int
    ahead: int

    @property
    def name(self) -> str:
        """What tells it from others."""
        parts = f", {self.parts} parts" if self.parts > 1 else ""
        return f"{self.units} x {self.columns} columns by {self.slices} slices{parts}"

    @property
    def units(self) -> int:
        """Threads of a workgroup that have different columns."""
        return self.threads // self.slices

    @property
    def width(self) -> int:
        """Columns of a workgroup."""
        return self.units * self.columns


def shares_of(product: Product, views: Sequence[View], machine: Machine) -> list[Share]:
    """How a product with few rows may be shared out: what is expected to be best first."""
    matrix, terms = views[1], terms_of(views)
    by_columns = matrix.along == "free"
    groups = product.k // terms
    if by_columns:
        columns = matrix.vector
        ahead = AHEAD if terms == 1 else AHEAD // 2
    else:
        # What is read of the rows serves several columns.
        columns = 1 if product.m == 1 else 2 if product.m <= 2 else 4
        ahead = AHEAD // columns
    threads = min(THREADS if by_columns else THREADS // 2, machine.threads)
    size = kept_in(product).itemsize
    while product.m * columns * threads * size > min(machine.shared, MOST_SHARED):
        threads //= 2
    across = power_below(ceil_div(product.n, columns))
    if by_columns:
        units = min(LINE // (columns * matrix.leaf.dtype.itemsize), across, threads)
        units = min(max(units, threads // power_below(groups)), across, threads)
    else:
        # A thread has a few steps at least, and 32 read a line of memory.
        slices = min(max(power_below(groups // AHEAD), 32), power_below(groups), threads)
        few = product.n * product.count * slices < machine.processors * threads * columns
        units = 1 if few else threads // slices
    # Fours of results are whole in a workgroup.
    least = 4 // columns if product.in_fours else 1
    units = max(units, least)
    found: dict[Share, None] = {}
    for some, count in ((units, 2), (2 * units, 1), (units // 2, 1), (4 * units, 1)):
        # No thread is without columns, nor without terms, if it can be helped.
        number = min(max(min(some, power_above(ceil_div(product.n, columns))), least), threads)
        slices = min(threads // number, power_above(groups))
        if number * slices < FEWEST:
            number = max(number, min(FEWEST // slices, power_above(ceil_div(product.n, columns))))
        share = Share(number * slices, slices, columns, 1, ahead)
        found.update(dict.fromkeys(_in_parts(product, share, groups, machine.processors)[:count]))
    return list(found)


def _in_parts(product: Product, share: Share, groups: int, processors: int) -> list[Share]:
    """A share with its terms in parts: the numbers of parts that are expected to be best first."""
    workgroups = group_count(product, share)
    batches = ceil_div(groups, share.slices * share.ahead)
    stored = product.operands[1].leaf.dtype.itemsize
    read = product.count * product.n * product.k * stored / BYTES

    def expected(parts: int) -> float:
        """Microseconds."""
        full = max(1.0, workgroups * parts / (2 * processors))
        waited = ceil_div(batches, parts) * full * STEP
        if parts == 1:
            return max(waited, read)
        return max(waited, read + 2 * parts * part_bytes(product) / BYTES) + DISPATCH

    some = [parts for parts in PARTS if parts <= batches]
    fit = [parts for parts in some if parts * part_bytes(product) <= MOST_PART_BYTES]
    best = min(map(expected, (1, *fit)))
    # Fewer parts, where more gain next to nothing.
    order = sorted({1, *fit}, key=lambda parts: (expected(parts) > 1.1 * best, parts))
    return [replace(share, parts=parts) for parts in order]


PARTS = (1, 2, 4, 8, 16, 32)
"""Numbers of workgroups that may share the terms of a column."""
MOST_SHARED = 32768
"""Bytes of workgroup memory."""


def group_count(product: Product, share: Share) -> int:
    """Workgroups of a product."""
    return ceil_div(product.n, share.width) * product.count * share.parts


def write_vector(
    dispatch: Dispatch, product: Product, share: Share, readers: Sequence[Reader], sink: SinkOf
) -> None:
    """Write the kernel of a product."""
    b = dispatch.builder
    across = ceil_div(product.n, share.width)
    column = b.let(b.group % across * share.width, "column0")
    plane = b.let(b.group // across, "plane")
    batch: Number = b.let(plane % product.count, "matrix") if product.count > 1 else 0
    part = b.let(plane // product.count, "part")
    took = sink(part)
    elements = dispatch.elements()
    by_columns = readers[1].view.along == "free"
    by = share.units if by_columns else share.slices
    near, far = b.local % by, b.local // by
    unit = b.let(near if by_columns else far, "unit")
    slice_ = b.let(far if by_columns else near, "slice")
    reader, places = readers[1], elements.places
    first = b.let(column + unit * share.columns)
    if reader.view.vector > 1 and by_columns:
        numbers, last = [b.let(first // 4)], product.n // 4 - 1
    else:
        numbers, last = [places.add(first, j) for j in range(share.columns)], product.n - 1
    if product.n % share.width:
        numbers = [b.let(b.min(places.value(number), last)) for number in numbers]
    bases = (
        [readers[0].base(elements, batch, row) for row in range(product.m)],
        [reader.base(elements, batch, number) for number in numbers],
    )
    sums = ThreadSums(dispatch, elements, readers, bases, (product.m, share.columns))
    _write_terms(product, share, sums, slice_, part)
    partial = b.shared(sums.kept, (len(sums.sums), share.threads), "partial")
    for number, total in enumerate(sums.sums):
        partial[number, b.local] = total
    b.barrier()
    if share.slices > 1:
        _write_reduction(share, sums, partial, slice_, share.units if by_columns else 1)
    apart = 1 if by_columns else share.slices
    _write_results(product, share, Partial(partial, apart), took, batch, column)


def _write_terms(
    product: Product, share: Share, sums: ThreadSums, slice_: Value, part: Value
) -> None:
    """Write the loop over a thread's terms."""
    b = sums.builder
    groups = product.k // sums.terms
    each = ceil_div(groups, share.parts)
    group = b.variable(slice_ + part * each, "group0")
    stop = b.let(b.min((part + 1) * each, groups), "stop")
    step, ahead = share.slices, share.ahead
    if each >= step * ahead:
        with b.while_(lambda: group + (ahead - 1) * step < stop):
            numbers = [b.let(group + i * step) for i in range(ahead)]
            for loaded in [sums.load(number) for number in numbers]:
                sums.add(loaded)
            group.set(group + ahead * step)
    left = min(ahead - 1, ceil_div(each, step)) if each >= step * ahead else ceil_div(each, step)
    if groups % (share.parts * step * ahead) == 0:
        return
    # What is left is asked for at once too.
    with b.scope():
        some = []
        for i in range(left):
            number = b.let(group + i * step)
            inside = b.let(number < stop)
            some.append(sums.load(b.let(b.min(number, groups - 1)), inside))
        for loaded in some:
            sums.add(loaded)


def _write_reduction(
    share: Share, sums: ThreadSums, partial: Memory, slice_: Value, apart: int
) -> None:
    """Write how the sums of the threads that share columns become one: halves onto halves, always in the same order."""
    b = sums.builder
    with b.iterate(
        share.slices // 2, lambda half: half > 0, lambda half: half // 2, "half"
    ) as half:
        with b.if_(slice_ < half):
            for number, total in enumerate(sums.sums):
                total += partial[number, b.local + half * apart]
                partial[number, b.local] = total
        b.barrier()


@dataclass(frozen=True)
class Partial:
    """Sums of a workgroup's threads in shared memory; the threads of neighbouring columns are ``apart``."""

    memory: Memory
    apart: int


def _write_results(
    product: Product,
    share: Share,
    partial: Partial,
    sink: Sink,
    batch: Number,
    first: Value,
) -> None:
    """Write the sums to where they go, a unit for each thread."""
    b, unit = sink.elements.builder, sink.unit
    across = share.width // unit
    with b.for_(b.local, product.m * across, share.threads, name="o") as o:
        row = b.let(o // across) if product.m > 1 else b.index(0)
        inside = b.let(o % across * unit)
        column = b.let(first + inside)
        places = [b.let(inside + x) for x in range(unit)]
        with b.if_(column < product.n):
            # The number of the sum among a thread's, and the thread.
            held = [
                partial.memory[
                    row * share.columns + place % share.columns,
                    place // share.columns * partial.apart,
                ]
                for place in places
            ]
            sink.write(sink.line(batch, row if product.m > 1 else 0), column, held)
