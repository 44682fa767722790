"""Convolutions of every channel by itself, and their gradients: rows of images, shifted, weighted and added.

There is nothing to multiply matrices for. A plane (one channel of one image) is copied into the thread's own memory with zeros around it, so that every tap can be
read without asking where it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

from ....codegen.ir.emit import (
    accumulator_of,
    broadcast,
    fused_multiply_add,
    i64,
    ir,
    lane_mask,
    lane_numbers,
    lane_sum,
    load,
    loop,
    offset,
    store,
    zero,
)
from ....codegen.ir.index import Number
from ....codegen.ir.types import STORAGE_BYTES
from ....codegen.problems.conv import Patches, Phase, patches_of
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
    halves = -(-width // (most // 2))
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
        self.apart = len(patches.phases) > 1
        self.result_bytes = 0
        if self.apart:
            self.result_bytes = in_lines((patches.pixels + self.lanes) * self.size)
        elif main.op.name == "conv_weight_grad":
            self.result_bytes = in_lines((prod(patches.kernel) + self.lanes) * self.size)

    @property
    def scratch(self) -> Scratch:
        """The memory it needs."""
        return Scratch(self.plane_bytes + self.result_bytes)


class Driver:
    """The code of one of the three."""

    def __init__(self, code: Code, main: Node, operands: tuple[Any, Any], finish: Finish) -> None:
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

        def clear(at: Any, _: Any) -> None:
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

    def _nest(self, counts: Sequence[int], inside: Callable[[list[Any]], None]) -> None:
        """Loops over all indices of some axes."""

        def level(index: list[Any]) -> None:
            if len(index) == len(counts):
                inside(index)
                return
            loop(self.builder, i64(0), i64(counts[len(index)]), 1, lambda i, _: level([*index, i]))

        level([])

    def _rows(self, phase: Phase, inside: Callable[[list[Any], int], None]) -> None:
        """``inside(index, count)`` for all rows of a phase, some neighbours at a time: what they read is read once."""
        counts = [axis.pixels for axis in phase.axes[:-1]]
        if not counts:
            inside([], 1)
            return
        builder, most = self.builder, counts[-1]
        together = self.layout.together
        whole = most // together * together

        def some(index: list[Any]) -> None:
            if whole:
                loop(
                    builder,
                    i64(0),
                    i64(whole),
                    together,
                    lambda i, _: inside([*index, i], together),
                )
            if whole < most:
                inside([*index, i64(whole)], most - whole)

        self._nest(counts[:-1], some)

    def _below(self, row: int) -> int:
        """How far below the patch of a pixel that of the pixel so many rows further begins in the plane."""
        return row * self.patches.steps[-2] * self.layout.sizes[-1] if row else 0

    def _copy(self, plane: Number) -> None:
        """Copy a plane into the middle of the zeros."""
        builder, layout, patches, lanes = self.builder, self.layout, self.patches, self.lanes
        places = self.code.places
        width = patches.sizes[-1]
        start = offset(builder, self.source, self.dtype, places.mul(plane, patches.area))

        def row(index: list[Any]) -> None:
            read: Number = 0
            write: Number = 0
            for i, low, size, whole in zip(
                index, layout.low, patches.sizes, layout.sizes, strict=False
            ):
                read = places.add(places.mul(read, size), i)
                write = places.add(places.mul(write, whole), places.sub(i, low))
            read = places.mul(read, width)
            write = places.add(places.mul(write, layout.sizes[-1]), -layout.low[-1])

            def vector(at: Any, mask: Any) -> None:
                value = load(
                    builder, offset(builder, start, self.dtype, read, at), self.dtype, lanes, mask
                )
                to = offset(builder, self.plane, self.accumulator, write, at)
                store(builder, value, to, self.accumulator, mask)

            self._vectors(width, vector)

        self._nest(patches.sizes[:-1], row)

    def _vectors(self, width: int, vector: Callable[[Any, Any], None]) -> None:
        """``vector(start, mask)`` along a row; all but the last are whole."""
        full = width // self.lanes * self.lanes
        if full:
            loop(self.builder, i64(0), i64(full), self.lanes, lambda at, _: vector(at, None))
        if full < width:
            vector(i64(full), lane_mask(self.builder, i64(width - full), self.lanes))

    def _read(self, place: Number) -> Any:
        """A vector of the plane, its lanes a step apart; those past the end of a row are what comes next."""
        builder, lanes, step = self.builder, self.lanes, self.patches.steps[-1]
        start = offset(builder, self.plane, self.accumulator, place)
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
            number = place = 0
            for axis, i in enumerate(index):
                taps = phase.axes[axis]
                number = number * patches.kernel[axis] + taps.kernel + i * patches.spacing[axis]
                shift = taps.offset + i * patches.deltas[axis] - layout.low[axis]
                place = place * layout.sizes[axis] + shift
            found.append((number, place))
        return found

    def _corner(self, index: Sequence[Any]) -> Number:
        """Where the patch of a pixel begins in the plane."""
        places, total = self.code.places, 0
        for axis, i in enumerate(index):
            step = places.mul(i, self.patches.steps[axis])
            total = places.add(places.mul(total, self.layout.sizes[axis]), step)
        return total

    def _pixel(self, phase: Phase, index: Sequence[Any]) -> Number:
        """The place of a pixel in the result."""
        places, total = self.code.places, 0
        for axis, i in enumerate(index):
            own = places.add(phase.axes[axis].start, places.mul(i, self.patches.strides[axis]))
            total = places.add(places.mul(total, self.patches.result[axis]), own)
        return total

    def _plane(self, number: Any) -> None:
        """One plane of the result."""
        builder, patches, lanes = self.builder, self.patches, self.lanes
        image, channel = divided(builder, number, patches.groups)
        self._copy(number)
        weights = offset(
            builder, self.other, self.dtype, self.code.places.mul(channel, prod(patches.kernel))
        )
        for phase in patches.phases:
            taps = self._taps(phase)

            def rows(index: list[Any], count: int, phase: Phase = phase, taps: Any = taps) -> None:
                def vector(at: Any, mask: Any) -> None:
                    totals = self._sums(taps, weights, self._corner([*index, at]), count)
                    for row, total in enumerate(totals):
                        here = [*index[:-1], builder.add(index[-1], i64(row))] if row else index
                        pixel = self._pixel(phase, [*here, at])
                        if self.layout.apart:
                            to = offset(builder, self.result, self.accumulator, pixel)
                            store(builder, total, to, self.accumulator, mask, patches.strides[-1])
                        else:
                            self.finish.emit(self.code, total, [image, channel, pixel], lanes, mask)

                self._vectors(phase.axes[-1].pixels, vector)

            self._rows(phase, rows)
        if self.layout.apart:

            def whole(at: Any, mask: Any) -> None:
                sums = load(
                    builder,
                    offset(builder, self.result, self.accumulator, at),
                    self.accumulator,
                    lanes,
                )
                self.finish.emit(self.code, sums, [image, channel, at], lanes, mask)

            self._vectors(patches.pixels, whole)

    def _sums(
        self, taps: Sequence[tuple[int, int]], weights: Any, corner: Number, count: int
    ) -> list[Any]:
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
        factors: dict[int, Any] = {}
        read: tuple[int, Any] = (-1, None)
        for across, place, number, row in meetings:
            if across != column:
                column, factors = across, {}
            if number not in factors:
                weight = offset(builder, weights, self.dtype, number)
                factors[number] = broadcast(builder, load(builder, weight, self.dtype, 1), lanes)
            if place != read[0]:
                read = place, self._read(self.code.places.add(corner, place))
            totals[row] = fused_multiply_add(builder, read[1], factors[number], totals[row], lanes)
        return totals

    # ------------------------------------------------------------- weights

    def _weights(self, channel: Any) -> None:
        """All taps of one channel, as many at a time as there are registers for."""
        builder, patches, lanes = self.builder, self.patches, self.lanes
        (phase,) = patches.phases
        taps = self._taps(phase)
        for first in range(0, len(taps), SUMS):
            some = taps[first : first + SUMS]
            sums = [zero(self.accumulator, lanes)] * len(some)

            def image(
                number: Any, held: Sequence[Any], some: Sequence[tuple[int, int]] = some
            ) -> list[Any]:
                return self._image(number, channel, phase, some, held)

            sums = loop(builder, i64(0), i64(patches.batch), 1, image, sums)
            for (tap, _), value in zip(some, sums, strict=True):
                place = offset(builder, self.result, self.accumulator, tap)
                builder.store(lane_sum(builder, value), place, align=self.layout.size)

        def vector(at: Any, mask: Any) -> None:
            sums = load(
                builder, offset(builder, self.result, self.accumulator, at), self.accumulator, lanes
            )
            self.finish.emit(self.code, sums, [channel, at], lanes, mask)

        self._vectors(len(taps), vector)

    def _image(
        self,
        image: Any,
        channel: Any,
        phase: Phase,
        taps: Sequence[tuple[int, int]],
        held: Sequence[Any],
    ) -> list[Any]:
        """Add what one image gives to the sums of some taps."""
        builder, patches, lanes = self.builder, self.patches, self.lanes
        places = self.code.places
        plane = builder.add(builder.mul(image, i64(patches.groups)), channel)
        self._copy(plane)
        gradient = offset(builder, self.other, self.dtype, builder.mul(plane, i64(patches.pixels)))
        width = phase.axes[-1].pixels
        full = width // lanes * lanes

        def vector(index: list[Any], at: Any, mask: Any, sums: Sequence[Any]) -> list[Any]:
            pixel = self._pixel(phase, [*index, at])
            factor = load(
                builder, offset(builder, gradient, self.dtype, pixel), self.dtype, lanes, mask
            )
            corner = self._corner([*index, at])
            nothing = zero(self.accumulator, lanes)
            following = []
            for (_, place), total in zip(taps, sums, strict=True):
                value = self._read(places.add(corner, place))
                if mask is not None:
                    # Zero times what comes next is not zero where that is infinite.
                    value = builder.select(mask, value, nothing)
                following.append(fused_multiply_add(builder, value, factor, total, lanes))
            return following

        def level(index: list[Any], sums: Sequence[Any]) -> list[Any]:
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
