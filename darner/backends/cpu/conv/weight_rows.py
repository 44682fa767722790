"""The weights of a convolution as rows of a matrix, in the type of its sums."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Protocol

from ....codegen.ir.emit import lane_mask, lane_numbers, load, loop, minimum, offset, store
from ....codegen.ir.index import Index, i64
from ....codegen.ir.types import STORAGE_BYTES, Pointer, Value
from ....codegen.problems.conv import Patches, Phase
from ....graph.integers import ceil_div
from ....graph.node import Node
from ..emit.template import Code
from .pack import Grid, divided, grid_of
from .plan import SHARED

MOST_VECTORS, MOST_PHASES = 8, 16
"""Vectors that the taps of one channel may take, and phases, for theirs to be picked out of vectors: the code of each is written out."""
MOVED = 22.0
"""Cycles for a vector of the taps of one channel that is copied."""
TOGETHER = 8
"""Rows of the matrix that are written together: what they read lies side by side."""


class Product(Protocol):
    """What a product of weights with patches is: the op, what it reads, rows of the matrix in one group, and the types of weights and sums."""

    main: Node
    patches: Patches
    rows: int
    backward: bool
    dtype: str
    accumulator: str


def copied_cycles(layout: Product, lanes: int, parts: int) -> float:
    """Cycles that two threads take to write the matrix of a gradient towards the input, whose rows are used in so many parts."""
    if not layout.backward:
        return 0.0
    patches = layout.patches
    lines, taps = patches.groups * layout.rows * patches.channels, prod(patches.kernel)
    cycles = lines * ceil_div(taps, lanes) * MOVED
    if patches.groups * parts == 1:
        cycles += lines * taps / lanes * SHARED
    return cycles / 2


def copy_weights(code: Code, layout: Product, weights: Pointer, phases: Pointer | None) -> None:
    """Write the matrix to the start of the shared memory; each of the ``phases`` has one of its own."""
    _Copy(code, layout, weights, phases).emit()


class _Copy:
    """The code of it."""

    def __init__(
        self, code: Code, layout: Product, weights: Pointer, phases: Pointer | None
    ) -> None:
        self.code, self.layout, self.weights, self.phases = code, layout, weights, phases
        self.lanes = code.machine.vector_bytes // STORAGE_BYTES[layout.accumulator]

    def emit(self) -> None:
        """All of it, by all threads."""
        patches, rows = self.layout.patches, self.layout.rows
        if self.layout.backward:
            vectors = ceil_div(prod(patches.kernel), self.lanes)
            if vectors <= MOST_VECTORS and len(patches.phases) <= MOST_PHASES:
                self.code.each(patches.groups * ceil_div(rows, TOGETHER), self._lines)
            else:
                self.code.each(len(patches.phases) * patches.groups * rows, self._row)
            return
        total = prod(int(size) for size in self.layout.main.operands[1].shape)
        builder, lanes = self.code.builder, self.lanes

        def vector(number: Value) -> None:
            at = builder.mul(number, i64(lanes))
            self._copy(at, at, lane_mask(builder, builder.sub(i64(total), at), lanes))

        self.code.each(ceil_div(total, lanes), vector)

    def _copy(self, at: Value, to: Pointer, mask: Value | None) -> None:
        """A vector of them."""
        builder, layout = self.code.builder, self.layout
        read = offset(builder, self.weights, layout.dtype, at)
        write = offset(builder, self.code.shared, layout.accumulator, to)
        value = load(builder, read, layout.dtype, self.lanes, mask)
        store(builder, value, write, layout.accumulator, mask)

    def _row(self, number: Value) -> None:
        """One row of one phase: from all channels of the source."""
        builder, indices = self.code.builder, self.code.indices
        layout, patches = self.layout, self.layout.patches
        kernel = prod(patches.kernel)
        rows = patches.groups * layout.rows
        phase, row = divided(builder, number, rows)
        grid = grid_of(builder, patches, self.phases, phase)
        group, inner = divided(builder, row, layout.rows)
        length = indices.mul(grid.taps, patches.channels)
        before = indices.mul(grid.first, rows * patches.channels)
        target = indices.add(before, indices.mul(row, length))

        def channel(c: Value, _: object) -> None:
            out = indices.add(indices.mul(group, patches.channels), c)
            at = indices.mul(indices.add(indices.mul(out, layout.rows), inner), kernel)
            to = indices.add(target, indices.mul(c, grid.taps))
            self._some_taps(grid, at, to)

        loop(builder, i64(0), i64(patches.channels), 1, channel)

    def _lines(self, number: Value) -> None:
        """Some rows of every phase, channel by channel: those of one channel lie side by side."""
        builder, indices, layout = self.code.builder, self.code.indices, self.layout
        group, block = divided(builder, number, ceil_div(layout.rows, TOGETHER))
        first = i64(indices.mul(block, TOGETHER))
        stop = minimum(builder, builder.add(first, i64(TOGETHER)), i64(layout.rows))

        def channel(c: Value, _: Sequence[Value]) -> None:
            loop(builder, first, stop, 1, lambda row, _: self._line(group, row, c))

        loop(builder, i64(0), i64(layout.patches.channels), 1, channel)

    def _line(self, group: Index, inner: Value, c: Value) -> None:
        """One row of every phase, of one channel: its taps are read once, and those of each phase picked."""
        builder, indices, lanes = self.code.builder, self.code.indices, self.lanes
        layout, patches = self.layout, self.layout.patches
        kernel = prod(patches.kernel)
        number = indices.add(indices.mul(group, layout.rows), inner)
        rows = patches.groups * layout.rows
        out = indices.add(indices.mul(group, patches.channels), c)
        at = indices.mul(indices.add(indices.mul(out, layout.rows), inner), kernel)
        held = []
        for first in range(0, kernel, lanes):
            mask = None
            if kernel - first < lanes:
                mask = lane_mask(builder, i64(kernel - first), lanes)
            read = offset(builder, self.weights, layout.dtype, at, first)
            held.append(load(builder, read, layout.dtype, lanes, mask))
        before = 0
        for phase in patches.phases:
            taps = _taps_of(patches, phase)
            line = indices.add(
                before * rows * patches.channels,
                indices.mul(indices.add(indices.mul(number, patches.channels), c), len(taps)),
            )
            before += len(taps)
            for start in range(0, len(taps), lanes):
                some = taps[start : start + lanes]
                mask = None
                if len(some) < lanes:
                    mask = lane_mask(builder, i64(len(some)), lanes)
                write = offset(builder, self.code.shared, layout.accumulator, line, start)
                store(builder, self._picked(held, some), write, layout.accumulator, mask)

    def _picked(self, held: list[Value], taps: list[int]) -> Value:
        """The vector of some taps out of those of all."""
        lanes = self.lanes
        first, *others = sorted({tap // lanes for tap in taps})
        found = held[first]
        for number in (first, *others):
            picks = list(range(lanes))
            for lane, tap in enumerate(taps):
                if tap // lanes == number:
                    picks[lane] = lanes + tap % lanes
            found = self.code.builder.shuffle_vector(found, held[number], lane_numbers(picks))
        return found

    def _some_taps(self, grid: Grid, at: Index, to: Index) -> None:
        """The taps of a channel that belong to a phase, in the order in which patches have them."""
        builder, indices = self.code.builder, self.code.indices
        layout, patches = self.layout, self.layout.patches

        def nest(axis: int, number: Index, tap: Index) -> None:
            if axis == len(patches.kernel):
                read = offset(builder, self.weights, layout.dtype, at, tap)
                write = offset(builder, self.code.shared, layout.accumulator, to, number)
                value = load(builder, read, layout.dtype, 1)
                builder.store(value, write, align=STORAGE_BYTES[layout.accumulator])
                return

            def descend(i: Value, _: object) -> None:
                own = indices.add(grid.kernel[axis], indices.mul(i, patches.spacing[axis]))
                following = indices.add(indices.mul(tap, patches.kernel[axis]), own)
                nest(axis + 1, indices.add(indices.mul(number, grid.count[axis]), i), following)

            loop(builder, i64(0), i64(grid.count[axis]), 1, descend)

        nest(0, 0, 0)


def _taps_of(patches: Patches, phase: Phase) -> list[int]:
    """The numbers in the kernel of the taps of a phase, in the order in which patches have them."""
    found = []
    for index in product(*(range(taps.count) for taps in phase.axes)):
        number = 0
        for axis, i in enumerate(index):
            own = phase.axes[axis].kernel + i * patches.spacing[axis]
            number = number * patches.kernel[axis] + own
        found.append(number)
    return found
