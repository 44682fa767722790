"""Products with a few rows: every element of the matrix is read once, and how fast it is read is all that counts.

The terms of a column's sums are shared out to threads of a workgroup, and to workgroups where there are few columns. Neighbouring threads read neighbouring vectors: they have
neighbouring columns where those lie together, and neighbouring terms where these do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..dispatch import Dispatch
from ..machine import Machine, power_above, power_below
from .epilogue import Sink
from .load import Reader, ThreadSums, named, terms_of, unsigned
from .plan import MOST_PART_BYTES
from .product import Product, View, kept_in, part_bytes

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
    across = power_below(-(-product.n // columns))
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
        number = min(max(min(some, power_above(-(-product.n // columns))), least), threads)
        slices = min(threads // number, power_above(groups))
        if number * slices < FEWEST:
            number = max(number, min(FEWEST // slices, power_above(-(-product.n // columns))))
        share = Share(number * slices, slices, columns, 1, ahead)
        found.update(dict.fromkeys(_in_parts(product, share, groups, machine.processors)[:count]))
    return list(found)


def _in_parts(product: Product, share: Share, groups: int, processors: int) -> list[Share]:
    """A share with its terms in parts: the numbers of parts that are expected to be best first."""
    workgroups = group_count(product, share)
    batches = -(-groups // (share.slices * share.ahead))
    stored = product.operands[1].leaf.dtype.itemsize
    read = product.count * product.n * product.k * stored / BYTES

    def expected(parts: int) -> float:
        """Microseconds."""
        full = max(1.0, workgroups * parts / (2 * processors))
        waited = -(-batches // parts) * full * STEP
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
    return -(-product.n // share.width) * product.count * share.parts


def write_vector(
    shader: Dispatch, product: Product, share: Share, readers: Sequence[Reader], sink: Any
) -> None:
    """Write the kernel; ``sink(part)`` makes what takes the sums of a part, whose number is an expression."""
    writer = shader.builder
    across = -(-product.n // share.width)
    writer.line(f"let column0 = (group % {across}u) * {share.width}u;")
    writer.line(f"let plane = group / {across}u;")
    writer.line(f"let matrix = plane % {product.count}u;")
    writer.line(f"let part = plane / {product.count}u;")
    took: Sink = sink("part")
    elements = shader.elements()
    batch = unsigned("matrix") if product.count > 1 else 0
    by_columns = readers[1].view.along == "free"
    unit, slice_ = ("%", "/") if by_columns else ("/", "%")
    by = share.units if by_columns else share.slices
    writer.line(f"let unit = local {unit} {by}u;")
    writer.line(f"let slice = local {slice_} {by}u;")
    reader, places = readers[1], elements.places
    first = named(shader, f"column0 + unit * {share.columns}u")
    if reader.view.vector > 1 and by_columns:
        numbers, last = [named(shader, f"{first.text} / 4u")], product.n // 4 - 1
    else:
        numbers, last = [places.add(first, j) for j in range(share.columns)], product.n - 1
    if product.n % share.width:
        numbers = [named(shader, f"min({places.text(number)}, {last}u)") for number in numbers]
    bases = (
        [readers[0].base(elements, batch, row) for row in range(product.m)],
        [reader.base(elements, batch, number) for number in numbers],
    )
    sums = ThreadSums(shader, elements, readers, bases, (product.m, share.columns))
    _write_terms(shader, product, share, sums)
    if share.slices > 1:
        _write_reduction(shader, share, sums, by_columns)
    _write_results(shader, product, share, sums, took, batch, by_columns)


def _write_terms(shader: Dispatch, product: Product, share: Share, sums: ThreadSums) -> None:
    """Write the loop over a thread's terms."""
    writer, elements = shader.builder, sums.elements
    groups = product.k // sums.terms
    each = -(-groups // share.parts)
    writer.line(f"var group0 = slice + part * {each}u;")
    writer.line(f"let stop = min((part + 1u) * {each}u, {groups}u);")
    step, ahead = share.slices, share.ahead
    if each >= step * ahead:
        last = f"group0 + {(ahead - 1) * step}u"
        head = f"for (; {last} < stop; group0 += {ahead * step}u)"
        with writer.block(head), elements.scope():
            numbers = [named(shader, f"group0 + {i * step}u") for i in range(ahead)]
            for loaded in [sums.load(number) for number in numbers]:
                sums.add(loaded)
    left = min(ahead - 1, -(-each // step)) if each >= step * ahead else -(-each // step)
    if groups % (share.parts * step * ahead) == 0:
        return
    # What is left is asked for at once too.
    with writer.block(""), elements.scope():
        some = []
        for i in range(left):
            number = named(shader, f"group0 + {i * step}u").text
            inside = named(shader, f"{number} < stop").text
            some.append(sums.load(named(shader, f"min({number}, {groups - 1}u)"), inside))
        for loaded in some:
            sums.add(loaded)


def _write_reduction(shader: Dispatch, share: Share, sums: ThreadSums, by_columns: bool) -> None:
    """Write how the sums of the threads that share columns become one: halves onto halves, always in the same order."""
    writer, names = shader.builder, sums.names()
    shader.text_shared("partial", f"array<array<{sums.kind}, {share.threads}>, {len(names)}>")
    for number, name in enumerate(names):
        writer.line(f"partial[{number}][local] = {name};")
    shader.barrier()
    apart = share.units if by_columns else 1
    with writer.block(f"for (var half = {share.slices // 2}u; half > 0u; half = half / 2u)"):
        with writer.block("if (slice < half)"):
            for number, name in enumerate(names):
                writer.line(f"{name} += partial[{number}][local + half * {apart}u];")
                writer.line(f"partial[{number}][local] = {name};")
        shader.barrier()


def _write_results(
    shader: Dispatch,
    product: Product,
    share: Share,
    sums: ThreadSums,
    sink: Sink,
    batch: Any,
    by_columns: bool,
) -> None:
    """Write the sums to where they go, a unit for each thread."""
    writer, unit = shader.builder, sink.unit
    apart = 1 if by_columns else share.slices
    if share.slices == 1:
        shader.text_shared(
            "partial", f"array<array<{sums.kind}, {share.threads}>, {len(sums.names())}>"
        )
        for number, name in enumerate(sums.names()):
            writer.line(f"partial[{number}][local] = {name};")
        shader.barrier()
    across = share.width // unit
    with (
        writer.block(f"for (var o = local; o < {product.m * across}u; o += {share.threads}u)"),
        sink.elements.scope(),
    ):
        row = named(shader, f"o / {across}u") if product.m > 1 else unsigned("0u")
        inside = named(shader, f"(o % {across}u) * {unit}u").text
        column = named(shader, f"column0 + {inside}")
        # The number of the sum among a thread's, and the thread.
        at = f"{row.text} * {share.columns}u + "
        texts = []
        for x in range(unit):
            place = named(shader, f"{inside} + {x}u").text
            texts.append(
                f"partial[{at}{place} % {share.columns}u][({place} / {share.columns}u) * {apart}u]"
            )
        with writer.block(f"if ({column.text} < {product.n}u)"):
            held = [named(shader, text).text for text in texts]
            sink.write(sink.line(batch, row if product.m > 1 else 0), column, held)
