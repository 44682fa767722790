"""Sums as tensor cores leave them in registers, taken to where they go: through shared memory, so that lanes beside each other write beside each other, and code for an element is written once for many.

A thread has two neighbouring columns of two rows, 8 apart. A warp writes its sums to shared memory in rows of f32, with 16-byte pieces swizzled so that no bank is met twice, and reads them back row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....codegen.ir.index import Number
from ....codegen.simt.builder import Simt, Value
from ....codegen.simt.contract.epilogue import Sink
from ....codegen.simt.contract.product import Product
from ..instructions.warp import Cores

Fragment = Sequence[Value]
"""Four sums of a thread, as ``mma.sync`` and ``wgmma`` have them: two columns of a row, and of the row 8 further on."""
ROWS = 16
WARP = 32
MOST_AHEAD = 48
"""Values that a thread has on their way from memory while it writes."""


def _together(lines: int, values: int) -> int:
    """How many lines are written together that read so many values each.

    >>> _together(8, 12), _together(8, 0), _together(8, 100)
    (4, 2, 1)
    """
    most = MOST_AHEAD // values if values else 2
    return max((n for n in (1, 2, 4, 8) if n <= most and lines % n == 0), default=1)


@dataclass(frozen=True)
class Corner:
    """Where sums begin: a matrix of the batch, a row and a column."""

    batch: Number
    row: Value
    column: Value


@dataclass(frozen=True)
class Room:
    """Shared memory of a warp: its address, and how many columns of f32 its rows have; a power of two, 32 or more."""

    address: Value
    columns: int

    @property
    def pitch(self) -> int:
        """Bytes of a row."""
        return 4 * self.columns

    def nbytes(self, rows: int) -> int:
        """Bytes of so many rows."""
        return rows * self.pitch


class SumWriter:
    """Takes sums of a warp from its shared memory to a sink.

    Args:
        builder: where the code goes.
        cores: reads and writes shared memory.
        product: what is computed. Of one in halves, a row of the room has columns of the first half, and then the same of the second.
        room: the warp's shared memory.
    """

    def __init__(self, builder: Simt, cores: Cores, product: Product, room: Room) -> None:
        b = self.builder = builder
        self.cores, self.product, self.room = cores, product.taken, room
        self.values = len(product.halves) or 1
        self.lane = b.let(b.local & (WARP - 1), "lane")

    def take(self, sink: Sink, corner: Corner, count: int) -> None:
        """Read rows back, and write them: four columns a lane, or where these are not written together one.

        What several units read from memory is on its way before the first of them is written.
        """
        b, lane, columns = self.builder, self.lane, self.room.columns // self.values
        unit = sink.unit
        across = min(columns // unit, WARP)
        high = WARP // across
        line, own = b.let(lane // across), b.let(lane % across * unit)
        chunks = columns // (across * unit)
        together = _together(count // high, sink.ahead * chunks)
        with b.for_(0, count // high, together, name="line") as number:
            units = []
            for i in range(together):
                inside = b.let((number + i) * high + line)
                row = b.let(corner.row + inside)
                target = sink.line(corner.batch, self._clipped(row, self.product.m, 1))
                for chunk in range(chunks):
                    place = b.let(own + chunk * across * unit)
                    column = b.let(corner.column + place)
                    at = self._clipped(column, self.product.n, unit)
                    units.append((inside, row, target, place, column, sink.read_ahead(target, at)))
            sums = [
                [
                    total
                    for value in range(self.values)
                    for total in self._read(inside, b.let(place + value * columns), unit)
                ]
                for inside, _, _, place, _, _ in units
            ]
            for own_sums, (_, row, target, _, column, ahead) in zip(sums, units, strict=True):
                where = (
                    row < self.product.m if self._cut(self.product.m) else None,
                    column < self.product.n if self._cut(self.product.n) else None,
                )
                sink.write(target, column, own_sums, ahead, where)

    def _clipped(self, place: Value, extent: int, unit: int) -> Number:
        """A row or column, or the last one that there is: what is read there is not written."""
        if not self._cut(extent):
            return place
        return self.builder.min(place, extent - unit)

    def _cut(self, extent: int) -> bool:
        """Whether tiles may reach beyond an axis; the largest is 256."""
        return extent % 256 != 0

    def _read(self, row: Value, column: Value, unit: int) -> list[Value]:
        """Sums that lie beside each other in shared memory."""
        b, room = self.builder, self.room
        piece = b.let((column >> 2) ^ ((row & 3) << 1))
        at = b.let(room.address + row * room.pitch + (piece << 4))
        if unit == 1:
            return [self.cores.load_one(b.let(at + ((column & 3) << 2)))]
        return self.cores.load_four(at)


class FragmentWriter(SumWriter):
    """Takes fragments to a sink."""

    def write(self, sink: Sink, corner: Corner, rows: Sequence[Sequence[Fragment]]) -> None:
        """Write sums: for each 16 rows the fragments of 8 columns each, as many as a row of the room has columns for."""
        self.cores.sync_warp()
        self._keep(rows)
        self.cores.sync_warp()
        self.take(sink, corner, ROWS * len(rows))

    def _keep(self, rows: Sequence[Sequence[Fragment]]) -> None:
        """Write the fragments to shared memory."""
        b, lane, room = self.builder, self.lane, self.room
        row, pair = b.let(lane >> 2), b.let(lane & 3)
        base = b.let(room.address + row * room.pitch + ((pair & 1) << 3))
        key = b.let((row & 3) << 1)
        for j in range(len(rows[0])):
            piece = b.let(((pair >> 1) + 2 * j) ^ key)
            column = b.let(base + (piece << 4))
            for i, fragments in enumerate(rows):
                for h in range(2):
                    # The swizzle does not change with rows that are a multiple of 4 apart.
                    at = b.let(column + (ROWS * i + 8 * h) * room.pitch)
                    self.cores.store_pair(at, fragments[j][2 * h], fragments[j][2 * h + 1])
