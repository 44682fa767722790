"""Products with a few rows: every element of the matrix is read once, and how fast it is read is all that counts.

The terms of a column's sums are shared out to threads of a workgroup, and to workgroups where there are few columns. Neighbouring threads read neighbouring vectors: they have
neighbouring columns where those lie together, and neighbouring terms where these do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .gemm_finish import Sink
from .gemm_load import Reader, ThreadSums, kept_in, named, terms_of, unsigned
from .gemm_product import Product, View
from .gemm_tile import MOST_PART_BYTES, MOST_PARTS, PROCESSORS
from .machine import Machine
from .shader import Shader

THREADS = 256
"""Threads of a workgroup."""
AHEAD = 4
"""Vectors of the matrix that a thread asks for before it uses the first."""
ENOUGH = 2 * PROCESSORS
"""Workgroups that keep all multiprocessors busy."""


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
    def units(self) -> int:
        """Threads of a workgroup that have different columns."""
        return self.threads // self.slices

    @property
    def width(self) -> int:
        """Columns of a workgroup."""
        return self.units * self.columns


def share_of(product: Product, views: Sequence[View], machine: Machine) -> Share:
    """How a product with few rows is shared out."""
    matrix = views[1]
    by_columns = matrix.along == "free"
    columns = 4 if by_columns and matrix.vector == 4 else 1
    size = kept_in(product).itemsize
    threads = min(THREADS, machine.threads)
    while product.m * columns * threads * size > min(machine.shared, 16384):
        threads //= 2
    groups = product.k // terms_of(views)
    most = _power(min(threads, -(-product.n // columns)))
    # Fours of results are whole in a workgroup.
    least = 4 // columns if product.in_fours else 1
    if by_columns:
        units = min(32, most)
    else:
        # A thread has at least a few steps, and 32 of them read a line of memory.
        wanted = _power(max(1, groups // AHEAD))
        units = max(1, threads // max(min(wanted, threads), 32))
        if product.n * product.count < ENOUGH * units:
            units = 1
    units = min(max(units, least), threads)
    slices = threads // units
    workgroups = product.count * -(-product.n // (units * columns))
    parts = min(-(-ENOUGH // workgroups), groups // (slices * AHEAD), MOST_PARTS)
    ahead = AHEAD if terms_of(views) == 1 or not by_columns else 2
    share = Share(threads, slices, columns, max(1, parts), ahead)
    from .gemm_finish import part_bytes

    if share.parts * part_bytes(product) > MOST_PART_BYTES:
        return Share(threads, slices, columns, 1, ahead)
    return share


def _power(count: int) -> int:
    """The power of two that is not below a number."""
    return 1 << (max(count, 1) - 1).bit_length()


def group_count(product: Product, share: Share) -> int:
    """Workgroups of a product."""
    return -(-product.n // share.width) * product.count * share.parts


def write_vector(
    shader: Shader, product: Product, share: Share, readers: Sequence[Reader], sink: Any
) -> None:
    """Write the kernel; ``sink(part)`` makes what takes the sums of a part, whose number is an expression."""
    writer = shader.writer
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
    column = f"column0 + unit * {share.columns}u"
    if product.n % share.width:
        column = f"min({column}, {product.n - share.columns}u)"
    first = named(shader, f"({column}) / {share.columns}u")
    bases = (
        [readers[0].base(elements, batch, row) for row in range(product.m)],
        [readers[1].base(elements, batch, first)],
    )
    sums = ThreadSums(shader, elements, readers, bases, (product.m, share.columns))
    _write_terms(shader, product, share, sums)
    if share.slices > 1:
        _write_reduction(shader, share, sums, by_columns)
    _write_results(shader, product, share, sums, took, batch, by_columns)


def _write_terms(shader: Shader, product: Product, share: Share, sums: ThreadSums) -> None:
    """Write the loop over a thread's terms."""
    writer, elements = shader.writer, sums.elements
    groups = product.k // sums.terms
    each = -(-groups // share.parts)
    writer.line(f"var group0 = slice + part * {each}u;")
    writer.line(f"let stop = min((part + 1u) * {each}u, {groups}u);")
    step, ahead = share.slices, share.ahead
    if groups // share.parts >= step * ahead:
        with (
            writer.block(
                f"for (; group0 + {(ahead - 1) * step}u < stop; group0 += {ahead * step}u)"
            ),
            elements.scope(),
        ):
            loaded = [
                sums.load(named(shader, f"group0 + {number * step}u")) for number in range(ahead)
            ]
            for item in loaded:
                sums.add(item)
    with writer.block(f"for (; group0 < stop; group0 += {step}u)"), elements.scope():
        sums.add(sums.load(named(shader, "group0")))


def _write_reduction(shader: Shader, share: Share, sums: ThreadSums, by_columns: bool) -> None:
    """Write how the sums of the threads that share columns become one: halves onto halves, always in the same order."""
    writer, names = shader.writer, sums.names()
    shader.shared("partial", f"array<array<{sums.kind}, {share.threads}>, {len(names)}>")
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
    shader: Shader,
    product: Product,
    share: Share,
    sums: ThreadSums,
    sink: Sink,
    batch: Any,
    by_columns: bool,
) -> None:
    """Write the sums to where they go, a unit for each thread."""
    writer, unit = shader.writer, sink.unit
    apart = 1 if by_columns else share.slices
    if share.slices == 1:
        shader.shared("partial", f"array<array<{sums.kind}, {share.threads}>, {len(sums.names())}>")
        for number, name in enumerate(sums.names()):
            writer.line(f"partial[{number}][local] = {name};")
        shader.barrier()
    across = share.width // unit
    with (
        writer.block(f"for (var o = local; o < {product.m * across}u; o += {share.threads}u)"),
        sink.elements.scope(),  # type: ignore[attr-defined]
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
