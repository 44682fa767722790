"""Sums as tensor cores leave them in registers, taken to where they go.

A thread has two neighbouring columns of two rows, 8 apart. Neighbouring lanes swap two of these, and then have four columns of one row: the unit that results are written in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....codegen.simt.builder import Simt, Value
from ....codegen.simt.contract.epilogue import Sink
from ....codegen.simt.contract.product import Product
from ..instructions.warp import Cores

Fragment = Sequence[Value]
"""Four sums of a thread, as ``mma.sync`` and ``wgmma`` have them: two columns of a row, and of the row 8 further on."""


@dataclass(frozen=True)
class Corner:
    """Where the sums of a warp begin: a matrix of the batch, a row and a column."""

    batch: Value | int
    row: Value
    column: Value


def write_fragments(
    builder: Simt,
    cores: Cores,
    product: Product,
    sink: Sink,
    corner: Corner,
    rows: Sequence[Sequence[Fragment]],
) -> None:
    """Take the sums of a warp to a sink: for each 16 rows the fragments of 8 columns each, one beside the other."""
    b = builder
    lane = b.let(b.local & 31, "lane")
    for number, fragments in enumerate(rows):
        own = b.let(corner.row + (number * 16 + (lane >> 2)), "row")
        column = b.let(corner.column + (lane & 3) * 2, "column")
        if sink.unit == 4:
            row = b.let(own + (lane & 1) * 8)
            first = b.let(corner.column + (lane & 2) * 2)
            fours = _fours(b, cores, lane, fragments)
            _write_row(b, product, sink, Corner(corner.batch, row, first), fours)
            continue
        for half in range(2):
            pairs = [fragment[2 * half : 2 * half + 2] for fragment in fragments]
            row = b.let(own + 8 * half)
            _write_row(b, product, sink, Corner(corner.batch, row, column), pairs)


def _fours(
    b: Simt, cores: Cores, lane: Value, fragments: Sequence[Fragment]
) -> list[list[Value]]:
    """Four neighbouring columns of each fragment: of the first row in lanes with even numbers, of the second one in the others."""
    even = b.let((lane & 1) == 0)
    sent = [
        b.let(b.choose(even, fragment[2 + i], fragment[i]))
        for fragment in fragments
        for i in range(2)
    ]
    got = cores.shuffle_xor(sent, 1)
    found = []
    for number, fragment in enumerate(fragments):
        other = got[2 * number : 2 * number + 2]
        first = [b.let(b.choose(even, fragment[i], other[i])) for i in range(2)]
        found.append([*first, *(b.let(b.choose(even, other[i], fragment[2 + i])) for i in range(2))])
    return found


def _write_row(
    b: Simt, product: Product, sink: Sink, corner: Corner, groups: Sequence[Sequence[Value]]
) -> None:
    """Write what a thread has of a row: a few neighbouring columns of every 8."""
    with b.if_(corner.row < product.m):
        line = sink.line(corner.batch, corner.row)
        for number, values in enumerate(groups):
            first = b.let(corner.column + 8 * number)
            if sink.unit == 4:
                with b.if_(first < product.n):
                    sink.write(line, first, values)
                continue
            for x, value in enumerate(values):
                own = b.let(first + x)
                with b.if_(own < product.n):
                    sink.write(line, own, [value])
