"""Depthwise convolutions and their gradients: rows of images are shifted, weighted and added.

A plane (one channel of one image) is copied into the thread's own memory with zero padding around it, so that every tap can be
read without a bounds check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod

from ....codegen.ir.emit import (
    Spacing,
    accumulator_of,
    broadcast,
    fused_multiply_add,
    ir,
    lane_mask,
    lane_numbers,
    lane_sum,
    load,
    loop,
    offset,
    store,
    store_strided,
    zero,
)
from ....codegen.ir.index import Index, i64
from ....codegen.ir.types import STORAGE_BYTES, Pointer, Value
from ....codegen.problems.conv import Patches, Phase, patches_of
from ....graph.integers import ceil_div
from ....graph.node import Node
from ..contract.tile import Machine
from ..emit.template import Code, Scratch
from .driver import in_lines
from .epilogue import Finish
from .pack import divided

MOST_TAPS = 128
"""Their code is written out one after the other; larger kernels are products of matrices."""
MOST_PHASES = 16
SUMS = 24
"""Taps whose sums are kept in registers together."""
TOGETHER = 4
"""Rows of pixels that are made together; twice as many where vectors are half as long."""


def is_depthwise(main: Node) -> bool:
    """Whether every channel of the result comes from one of the source, and goes to no other."""
    patches = patches_of(main)
    if patches.channels != 1 or len(patches.phases) > MOST_PHASES:
        return False
    out = int(main.shape[0 if main.op.name == "conv_weight_grad" else 1])
    return out == patches.groups and prod(patches.kernel) <= MOST_TAPS


def _lanes(patches: Patches, most: int, multiplies: int) -> int:
    """Lanes of a vector: half of them where two such are multiplied as quickly as a whole one, and a row fills them better."""
    width = max(phase.axes[-1].pixels for phase in patches.phases)
    halves = ceil_div(width, most // 2)
    return most // 2 if multiplies == 1 and halves % 2 else most


class Layout:
    """Sizes of a plane with zeros around it, and where scratch memory lies."""

    def __init__(self, main: Node, machine: Machine) -> None:
        self.main = main
        self.dtype = main.operands[0].dtype.name
        self.accumulator = accumulator_of(self.dtype)
        self.size = STORAGE_BYTES[self.accumulator]
        self.patches: Patches = patches_of(main)
        patches = self.patches
        most = machine.vector_bytes // self.size
        self.lanes = _lanes(patches, most, machine.multiplies)
        self.together = TOGETHER * most // self.lanes
        self.low: list[int] = []
        self.sizes: list[int] = []
        for axis, size in enumerate(patches.sizes):
            ends = [0, size - 1]
            for taps in {phase.axes[axis] for phase in patches.phases}:
                last = taps.offset + max(0, taps.count - 1) * patches.deltas[axis]
                reach = (taps.pixels - 1) * patches.steps[axis]
                ends += [taps.offset, last, taps.offset + reach, last + reach]
            self.low.append(min(ends))
            self.sizes.append(max(ends) - min(ends) + 1)
        spare = 2 * self.lanes * patches.steps[-1]
        self.plane = prod(self.sizes) + spare
        self.plane_bytes = in_lines(self.plane * self.size)
        self.several_phases = len(patches.phases) > 1
        self.result_bytes = 0
        if self.several_phases:
            self.result_bytes = in_lines((patches.pixels + self.lanes) * self.size)
        elif main.op.name == "conv_weight_grad":
            self.result_bytes = in_lines((prod(patches.kernel) + self.lanes) * self.size)

    @property
    def scratch(self) -> Scratch:
        """The memory it needs."""
        return Scratch(self.plane_bytes + self.result_bytes)


class Driver:
    """The code of one of the three."""

    def __init__(
        self, code: Code, main: Node, operands: tuple[Pointer, Pointer], finish: Finish
    ) -> None:
        self.code, self.builder, self.finish, self.main = code, code.builder, finish, main
        self.layout = Layout(main, code.machine)
        self.patches, self.lanes = self.layout.patches, self.layout.lanes
        self.dtype, self.accumulator = self.layout.dtype, self.layout.accumulator
        self.source, self.other = operands
        byte = ir().IntType(8)
        self.plane = code.own
        self.result = self.builder.gep(code.own, [i64(self.layout.plane_bytes)], source_etype=byte)

    def emit(self) -> None:
        """Everything: threads share planes, or channels where those are summed over."""
        builder, lanes = self.builder, self.lanes
        nothing = zero(self.accumulator, lanes)

        def clear(at: Value, _: Sequence[Value]) -> None:
            store(
                builder,
                nothing,
                offset(builder, self.plane, self.accumulator, at),
                self.accumulator,
            )

        vectors = self.layout.plane_bytes // (lanes * self.layout.size)
        loop(builder, i64(0), i64(vectors * lanes), lanes, clear)
        channels, batch = self.patches.groups, self.patches.batch
        if self.main.op.name == "conv_weight_grad":
            self.code.each(channels, self._weights)
        else:
            self.code.each(batch * channels, self._plane)

    # ------------------------------------------------------------- planes

    def _nest(self, counts: Sequence[int], body: Callable[[list[Value]], None]) -> None:
        """Loops over all indices of some axes."""

        def level(index: list[Value]) -> None:
            if len(index) == len(counts):
                body(index)
                return
            loop(self.builder, i64(0), i64(counts[len(index)]), 1, lambda i, _: level([*index, i]))

        level([])

    def _rows(self, phase: Phase, body: Callable[[list[Value], int], None]) -> None:
        """``body(index, count)`` for all rows of a phase, some neighbours at a time: what they read is read once."""
        counts = [axis.pixels for axis in phase.axes[:-1]]
        if not counts:
            body([], 1)
            return
        builder, most = self.builder, counts[-1]
        together = self.layout.together
        whole = most // together * together

        def emit_nested(index: list[Value]) -> None:
            if whole:
                loop(
                    builder,
                    i64(0),
                    i64(whole),
                    together,
                    lambda i, _: body([*index, i], together),
                )
            if whole < most:
                body([*index, i64(whole)], most - whole)

        self._nest(counts[:-1], emit_nested)

    def _below(self, row: int) -> int:
        """How far below the patch of a pixel that of the pixel so many rows further begins in the plane."""
        return row * self.patches.steps[-2] * self.layout.sizes[-1] if row else 0

    def _copy(self, plane: Index) -> None:
        """Copy a plane into the middle of the zeros."""
        builder, layout, patches, lanes = self.builder, self.layout, self.patches, self.lanes
        indices = self.code.indices
        width = patches.sizes[-1]
        start = offset(builder, self.source, self.dtype, indices.mul(plane, patches.area))

        def row(index: list[Value]) -> None:
            read: Index = 0
            write: Index = 0
            for i, low, size, whole in zip(
                index, layout.low, patches.sizes, layout.sizes, strict=False
            ):
                read = indices.add(indices.mul(read, size), i)
                write = indices.add(indices.mul(write, whole), indices.sub(i, low))
            read = indices.mul(read, width)
            write = indices.add(indices.mul(write, layout.sizes[-1]), -layout.low[-1])

            def vector(at: Value, mask: Value | None) -> None:
                value = load(
                    builder, offset(builder, start, self.dtype, read, at), self.dtype, lanes, mask
                )
                to = offset(builder, self.plane, self.accumulator, write, at)
                store(builder, value, to, self.accumulator, mask)

            self._vectors(width, vector)

        self._nest(patches.sizes[:-1], row)

    def _vectors(self, width: int, vector: Callable[[Value, Value | None], None]) -> None:
        """``vector(start, mask)`` along a row; all but the last are whole."""
        full = width // self.lanes * self.lanes
        if full:
            loop(self.builder, i64(0), i64(full), self.lanes, lambda at, _: vector(at, None))
        if full < width:
            vector(i64(full), lane_mask(self.builder, i64(width - full), self.lanes))

    def _read(self, position: Index) -> Value:
        """A vector of the plane, its lanes a step apart; those past the end of a row are what comes next."""
        builder, lanes, step = self.builder, self.lanes, self.patches.steps[-1]
        start = offset(builder, self.plane, self.accumulator, position)
        if step != 2:
            return load(builder, start, self.accumulator, lanes, None, step)
        low = load(builder, start, self.accumulator, lanes)
        high = load(
            builder, offset(builder, start, self.accumulator, lanes), self.accumulator, lanes
        )
        return builder.shuffle_vector(low, high, lane_numbers(range(0, 2 * lanes, 2)))

    def _taps(self, phase: Phase) -> list[tuple[int, int]]:
        """The taps of a phase: their numbers in the kernel, and where they read, from a pixel's own place on."""
        layout, patches = self.layout, self.patches
        found = []
        for index in product(*(range(taps.count) for taps in phase.axes)):
            number = position = 0
            for axis, i in enumerate(index):
                taps = phase.axes[axis]
                number = number * patches.kernel[axis] + taps.kernel + i * patches.spacing[axis]
                shift = taps.offset + i * patches.deltas[axis] - layout.low[axis]
                position = position * layout.sizes[axis] + shift
            found.append((number, position))
        return found

    def _corner(self, index: Sequence[Value]) -> Index:
        """Where the patch of a pixel begins in the plane."""
        indices = self.code.indices
        total: Index = 0
        for axis, i in enumerate(index):
            step = indices.mul(i, self.patches.steps[axis])
            total = indices.add(indices.mul(total, self.layout.sizes[axis]), step)
        return total

    def _pixel(self, phase: Phase, index: Sequence[Value]) -> Index:
        """The place of a pixel in the result."""
        indices = self.code.indices
        total: Index = 0
        for axis, i in enumerate(index):
            own = indices.add(phase.axes[axis].start, indices.mul(i, self.patches.strides[axis]))
            total = indices.add(indices.mul(total, self.patches.result[axis]), own)
        return total

    def _plane(self, number: Value) -> None:
        """One plane of the result."""
        builder, patches, lanes = self.builder, self.patches, self.lanes
        image, channel = divided(builder, number, patches.groups)
        self._copy(number)
        weights = offset(
            builder, self.other, self.dtype, self.code.indices.mul(channel, prod(patches.kernel))
        )
        for phase in patches.phases:
            taps = self._taps(phase)

            def rows(
                index: list[Value],
                count: int,
                phase: Phase = phase,
                taps: Sequence[tuple[int, int]] = taps,
            ) -> None:
                def vector(at: Value, mask: Value | None) -> None:
                    totals = self._sums(taps, weights, self._corner([*index, at]), count)
                    for row, total in enumerate(totals):
                        here = [*index[:-1], builder.add(index[-1], i64(row))] if row else index
                        pixel = self._pixel(phase, [*here, at])
                        if self.layout.several_phases:
                            to = offset(builder, self.result, self.accumulator, pixel)
                            spacing = Spacing(patches.strides[-1])
                            store_strided(builder, total, to, self.accumulator, spacing, mask)
                        else:
                            self.finish.emit(self.code, total, [image, channel, pixel], lanes, mask)

                self._vectors(phase.axes[-1].pixels, vector)

            self._rows(phase, rows)
        if self.layout.several_phases:

            def whole(at: Value, mask: Value | None) -> None:
                sums = load(
                    builder,
                    offset(builder, self.result, self.accumulator, at),
                    self.accumulator,
                    lanes,
                )
                self.finish.emit(self.code, sums, [image, channel, at], lanes, mask)

            self._vectors(patches.pixels, whole)

    def _sums(
        self, taps: Sequence[tuple[int, int]], weights: Pointer, corner: Index, count: int
    ) -> list[Value]:
        """The sums of a vector of pixels and of those below it, ``count`` rows in all. Every vector of the plane is read once, and used by all rows that meet it."""
        builder, lanes = self.builder, self.lanes
        totals = [zero(self.accumulator, lanes)] * count
        pitch = self.layout.sizes[-1]
        meetings = sorted(
            (place % pitch, place + self._below(row), number, row)
            for number, place in taps
            for row in range(count)
        )
        column = -1
        factors: dict[int, Value] = {}
        last_read, value = -1, zero(self.accumulator, lanes)
        for across, position, number, row in meetings:
            if across != column:
                column, factors = across, {}
            if number not in factors:
                weight = offset(builder, weights, self.dtype, number)
                factors[number] = broadcast(builder, load(builder, weight, self.dtype, 1), lanes)
            if position != last_read:
                last_read, value = position, self._read(self.code.indices.add(corner, position))
            totals[row] = fused_multiply_add(builder, value, factors[number], totals[row], lanes)
        return totals

    # ------------------------------------------------------------- weights

    def _weights(self, channel: Value) -> None:
        """All taps of one channel, as many at a time as there are registers for."""
        builder, patches, lanes = self.builder, self.patches, self.lanes
        (phase,) = patches.phases
        taps = self._taps(phase)
        for first in range(0, len(taps), SUMS):
            some = taps[first : first + SUMS]
            sums = [zero(self.accumulator, lanes)] * len(some)

            def image(
                number: Value, held: Sequence[Value], some: Sequence[tuple[int, int]] = some
            ) -> list[Value]:
                return self._image(number, channel, phase, some, held)

            sums = loop(builder, i64(0), i64(patches.batch), 1, image, sums)
            for (tap, _), value in zip(some, sums, strict=True):
                address = offset(builder, self.result, self.accumulator, tap)
                builder.store(lane_sum(builder, value), address, align=self.layout.size)

        def vector(at: Value, mask: Value | None) -> None:
            sums = load(
                builder, offset(builder, self.result, self.accumulator, at), self.accumulator, lanes
            )
            self.finish.emit(self.code, sums, [channel, at], lanes, mask)

        self._vectors(len(taps), vector)

    def _image(
        self,
        image: Value,
        channel: Value,
        phase: Phase,
        taps: Sequence[tuple[int, int]],
        held: Sequence[Value],
    ) -> list[Value]:
        """Add what one image gives to the sums of some taps."""
        builder, patches, lanes = self.builder, self.patches, self.lanes
        indices = self.code.indices
        plane = builder.add(builder.mul(image, i64(patches.groups)), channel)
        self._copy(plane)
        gradient = offset(builder, self.other, self.dtype, builder.mul(plane, i64(patches.pixels)))
        width = phase.axes[-1].pixels
        full = width // lanes * lanes

        def vector(
            index: list[Value], at: Value, mask: Value | None, sums: Sequence[Value]
        ) -> list[Value]:
            pixel = self._pixel(phase, [*index, at])
            factor = load(
                builder, offset(builder, gradient, self.dtype, pixel), self.dtype, lanes, mask
            )
            corner = self._corner([*index, at])
            nothing = zero(self.accumulator, lanes)
            following = []
            for (_, position), total in zip(taps, sums, strict=True):
                value = self._read(indices.add(corner, position))
                if mask is not None:
                    # Zero times what comes next is not zero where that is infinite.
                    value = builder.select(mask, value, nothing)
                following.append(fused_multiply_add(builder, value, factor, total, lanes))
            return following

        def level(index: list[Value], sums: Sequence[Value]) -> list[Value]:
            if len(index) < len(phase.axes) - 1:
                count = phase.axes[len(index)].pixels
                return loop(
                    builder, i64(0), i64(count), 1, lambda i, inner: level([*index, i], inner), sums
                )
            total = list(sums)
            if full:
                total = loop(
                    builder,
                    i64(0),
                    i64(full),
                    lanes,
                    lambda at, inner: vector(index, at, None, inner),
                    total,
                )
            if full < width:
                total = vector(
                    index, i64(full), lane_mask(builder, i64(width - full), lanes), total
                )
            return total

        return level([], held)
