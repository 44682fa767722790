"""The gradient of max pooling: each window hands down what it has to its first maximum.

Everything is done axis by axis, which takes 5 + 5 steps for a window of 5x5. The maximum of a window is that of the maxima of its rows, so what is kept is the
place of each row's maximum, and which row won. Backwards, a row receives from the windows that it won in, and an element from the rows.

Along an axis an element has a *phase*, its place modulo the stride, and a *slot*, that by which the place exceeds it. With the elements of one phase beside each other,
the n-th elements of all windows lie beside each other too, and so do those of all rows. An axis is then one loop over whole vectors, which never ends with a row:

    phases of the last axis, ..., phases of the first axis, slots of the first axis, ..., slots of the last axis

An element asks the windows that might have chosen it, always in the same order, so a sum does not depend on who computes it. Where a window would lie across the end of a row there
are slots without a window, which hand down zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from ....codegen.ir.emit import minimum, offset
from ....codegen.ir.index import Index, Lanes, i64
from ....codegen.ir.types import Pointer, Value
from ....codegen.problems.pooling import Axis
from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.integers import ceil_div
from ....graph.node import Node
from ..conv.driver import in_lines
from ..conv.epilogue import Finish
from ..conv.pack import divided
from ..emit.template import Code, Scratch
from .plan import Pooling, Writer

BAND = 1 << 14
"""Bytes of a thread's memory that are worked on together: planes are taken in bands of as much."""
HALO = 24
"""How often the rows of a band must outnumber those that it has in common with the next, for both compute them."""
FEW = 8
"""Parts that there should be for threads to share, where planes are few."""


class _Along:
    """Phases and slots of an axis.

    Attributes:
        front: slots before the first element of the plane.
        taps: phase and slot of each element of the first window.
        reach: slots that a window has beyond its first.
        slots: of all windows, and of all elements.
        pixels: those that elements of the plane lie in.
        unit: elements from one slot to the next.
        flat: elements of one phase.
    """

    def __init__(self, axis: Axis) -> None:
        self.axis, self.stride = axis, axis.stride
        self.front = ceil_div(axis.low, axis.stride)
        begin = self.front * axis.stride - axis.low
        places = [begin + tap * axis.dilation for tap in range(axis.window)]
        self.taps = [(place % axis.stride, place // axis.stride) for place in places]
        self.reach = self.taps[-1][1]
        self.pixels = ceil_div(axis.size, axis.stride)
        self.slots = max(axis.count + self.reach, self.front + self.pixels)
        self.unit = self.flat = 0

    @property
    def is_trivial(self) -> bool:
        """Whether windows are elements."""
        return self.stride == 1 and self.taps == [(0, 0)]

    @property
    def phases(self) -> list[int]:
        """Those that any window sees."""
        return sorted({phase for phase, _ in self.taps})

    @property
    def is_read_again(self) -> bool:
        """Whether elements that do not lie side by side are read more than once, so that it pays to move them."""
        return self.stride > 1 and len(self.phases) < len(self.taps)

    @property
    def span(self) -> int:
        """How far from its place a window's last element lies."""
        return self.reach * self.unit


class _Memory:
    """Bands of a plane, and where all that is kept of one lies.

    Attributes:
        axes: first to last.
        own: slots of the first axis whose elements a band writes.
        bands: of a plane.
        back: slots of the first axis before those, of windows that a band has for others.
        elements: of the band as they are, and padding.
        phases: the same, one phase of the last axis after the other.
        best: the maxima, of each axis but the first.
        taps: which element of a window is the maximum, of each axis.
        given: what windows have, then what each axis but the last handed down.
        result: what elements receive.
        filled: the first and the last byte of memory that must hold a number before anything, and the number.
    """

    def __init__(self, plan: Pooling) -> None:
        self.plan = plan
        self._lay_out(1)
        first, planes = self.axes[0], plan.batch * plan.channels
        own = max(BAND * first.slots // self.total, HALO * first.reach)
        few = max(first.pixels // ceil_div(FEW, planes), 2 * first.reach)
        own = max(min(own, few), 1)
        self._lay_out(max(first.pixels // own, 1))
        self.scratch = Scratch(self.total)

    def _lay_out(self, bands: int) -> None:
        plan, lanes = self.plan, self.plan.lanes
        self.axes = [_Along(axis) for axis in (*plan.outer, plan.last)]
        first, last = self.axes[0], self.axes[-1]
        self.own = ceil_div(first.pixels, bands)
        self.bands, self.back = ceil_div(first.pixels, self.own), 0
        self.windows = first.axis.count
        if self.bands > 1:
            self.back = first.reach
            self.windows = self.back + self.own
            first.slots = self.windows + first.reach
        whole = prod(along.slots for along in self.axes)
        unit = whole
        for number, along in enumerate(self.axes):
            unit //= along.slots
            along.unit = unit
            along.flat = whole * prod(before.stride for before in self.axes[:number])
        self.total = 0
        self.filled: list[tuple[int, int, float]] = []
        every = last.flat * last.stride
        seen = (lanes + last.span) * last.stride
        self.elements = self._take(every, 0, seen, float("-inf"))
        self.phases = self._take(every, 0, lanes + last.span) if last.is_read_again else 0
        self.best, self.taps, self.given = [0], [], []
        for number, along in enumerate(self.axes):
            if number:
                self.best.append(self._take(along.flat, 0, lanes + self.axes[number - 1].span))
            self.taps.append(self._take(along.flat, along.span, lanes))
            self.given.append(self._take(along.flat, along.span, lanes, 0.0))
        self.result = self._take(every, 0, lanes * last.stride, 0.0)

    def _take(self, count: int, before: int, behind: int, number: float | None = None) -> int:
        """Memory of some elements, with more on either side; the byte of the first of them."""
        size = self.plan.accumulator.itemsize
        start = self.total + in_lines(before * size)
        end = start + in_lines((count + behind) * size)
        if number is not None:
            self.filled.append((self.total, end, number))
        self.total = end
        return start


class Maxima(Writer):
    """The code of ``max_pool_backward``."""

    memory = _Memory

    def __init__(self, code: Code, main: Node, operands: Sequence[Value], finish: Finish) -> None:
        super().__init__(code, main, finish)
        self.source, self.gradient = operands
        self.layout = _Memory(self.plan)

    def emit(self) -> None:
        """Everything: threads share bands of planes."""
        layout = self.layout
        for first, end, number in layout.filled:
            self.fill(self.scratch(first), (end - first) // self.accumulator.itemsize, number)
        self.code.each(self.plan.batch * self.plan.channels * layout.bands, self._band)

    def _band(self, number: Value) -> None:
        plan, layout = self.plan, self.layout
        plane, band = divided(self.builder, number, layout.bands)
        begin = self.indices.mul(band, layout.own) if layout.bands > 1 else 0
        self._copy(plane, begin)
        self._give(plane, begin)
        self._search()
        self._hand_down()
        image, channel = divided(self.builder, plane, plan.channels)
        self._collect([image, channel], begin)

    # ------------------------------------------------------------- rows in and out

    def _rows(self, first: Index, sizes: Sequence[int], row: Callable[[list[Index]], None]) -> None:
        """``row(index)`` for all rows, with as many along the first axis as ``first`` says."""
        inner = prod(sizes)

        def emit_unit(number: Value) -> None:
            place, rest = divided(self.builder, number, inner)
            row([place, *self.indices.split(rest, list(sizes))])

        self.loop(self.indices.mul(first, inner), emit_unit)

    def _scratch_offset(self, position: Index, index: Sequence[Index]) -> Index:
        """Where a row of elements begins, one slot taken as one; the first axis by its place in the band."""
        indices, layout = self.indices, self.layout
        outer = layout.axes[:-1]
        inner = [
            indices.add(i, along.front * along.stride)
            for i, along in zip(index, outer[1:], strict=True)
        ]
        total: Index = layout.axes[-1].front
        for within, along in zip([position, *inner], outer, strict=True):
            slot = indices.div(within, along.stride)
            phase = indices.sub(within, indices.mul(slot, along.stride))
            total = indices.add(total, indices.mul(slot, along.unit))
            total = indices.add(total, indices.mul(phase, along.flat))
        return total

    def _inside(self, number: Index, size: int) -> tuple[Index, Value | None]:
        """A number below ``size``, and whether it is the given one, where that may be another."""
        if self.layout.bands == 1:
            return number, None
        accumulator = self.indices.clamp(number, 0, size - 1)
        return accumulator, self.builder.icmp_signed("==", i64(accumulator), i64(number))

    def _row_in(
        self,
        source: tuple[Pointer, Index],
        target: tuple[Pointer, Index],
        width: int,
        dtype: DType,
        is_in: Value | None,
        other: float,
    ) -> None:
        """Copy a row into scratch memory, or fill it with a number; both are an address and the index of the first element."""
        indices = self.indices
        nothing = self.registers.constant(other, self.accumulator, self.lanes)

        def vector(at: Value, mask: Value | None) -> None:
            value = self.load(source[0], indices.add(source[1], at), dtype, mask)
            if is_in is not None:
                value = self.builder.select(is_in, value, nothing)
            self.store(value, target[0], indices.add(target[1], at), mask)

        self.vectors(width, vector)

    def _copy(self, plane: Index, begin: Index) -> None:
        """The elements that the windows of a band see."""
        plan, indices, layout = self.plan, self.indices, self.layout
        first, last = layout.axes[0], layout.axes[-1]
        sizes = [axis.size for axis in plan.outer]
        start = indices.mul(plane, plan.rows * plan.last.size)
        source = offset(self.builder, self.source, self.dtype.name, start)
        elements = self.scratch(layout.elements)
        step: Index = 0
        if layout.bands == 1:
            count, lead = first.axis.size, first.front * first.stride
        else:
            count, lead = first.slots * first.stride, 0
            step = indices.mul(indices.sub(begin, layout.back), first.stride)

        def row(index: list[Index]) -> None:
            address = self._scratch_offset(indices.add(index[0], lead), index[1:])
            pixel, is_in = self._inside(indices.add(index[0], step), first.axis.size)
            begin = indices.mul(indices.offset([pixel, *index[1:]], sizes), plan.last.size)
            to = indices.mul(address, last.stride)
            target = elements, to
            self._row_in((source, begin), target, plan.last.size, self.dtype, is_in, float("-inf"))

        self._rows(count, sizes[1:], row)

    def _give(self, plane: Index, begin: Index) -> None:
        """What the windows of a band have."""
        plan, indices, layout = self.plan, self.indices, self.layout
        first, outer = layout.axes[0], layout.axes[:-1]
        counts = [axis.count for axis in plan.outer]
        start = indices.mul(plane, plan.pooled_rows * plan.last.count)
        gradient = offset(self.builder, self.gradient, self.dtype.name, start)
        given = self.scratch(layout.given[0])
        step = 0 if layout.bands == 1 else indices.add(begin, first.front - layout.back)

        def row(index: list[Index]) -> None:
            position: Index = 0
            for i, along in zip(index, outer, strict=True):
                position = indices.add(position, indices.mul(i, along.unit))
            window, is_in = self._inside(indices.add(index[0], step), first.axis.count)
            begin = indices.mul(indices.offset([window, *index[1:]], counts), plan.last.count)
            self._row_in(
                (gradient, begin), (given, position), plan.last.count, self.dtype, is_in, 0.0
            )

        self._rows(layout.windows, counts[1:], row)

    def _collect(self, index: list[Index], begin: Index) -> None:
        """Write what the elements of a band received."""
        plan, indices, layout = self.plan, self.indices, self.layout
        first, last = layout.axes[0], layout.axes[-1]
        sizes = [axis.size for axis in plan.outer]
        step = indices.mul(begin, first.stride)
        lead = (first.front if layout.bands == 1 else layout.back) * first.stride
        count: Index = first.axis.size
        if layout.bands > 1:
            left = i64(indices.sub(first.axis.size, step))
            count = minimum(self.builder, i64(layout.own * first.stride), left)
        result = self.scratch(layout.result)

        def row(inner: list[Index]) -> None:
            start = indices.mul(
                self._scratch_offset(indices.add(inner[0], lead), inner[1:]), last.stride
            )
            number = indices.offset([indices.add(inner[0], step), *inner[1:]], sizes)
            begin = indices.mul(number, plan.last.size)

            def vector(at: Value, mask: Value | None) -> None:
                value = self.load(result, indices.add(start, at), self.accumulator, mask)
                pixel = indices.add(begin, at)
                self.finish.emit(self.code, value, [*index, pixel], self.lanes, mask)

            self.vectors(plan.last.size, vector)

        self._rows(count, sizes[1:], row)

    # ------------------------------------------------------------- axes

    def _search(self) -> None:
        """Which element of each window is its maximum, axis by axis from the last on."""
        layout = self.layout
        last = layout.axes[-1]
        values, distance = self.scratch(layout.elements), last.stride
        if last.is_read_again:
            values, distance = self.scratch(layout.phases), 1
            for phase in last.phases:
                self.loop(last.flat, partial(self._pick, phase), self.lanes)
        for number in reversed(range(len(layout.axes))):
            along = layout.axes[number]
            if along.is_trivial:
                continue
            best = self.scratch(layout.best[number]) if number else None
            taps = self.scratch(layout.taps[number])
            count = along.flat if number else layout.windows * along.unit
            self.loop(
                count, partial(self._compare, along, values, distance, best, taps), self.lanes
            )
            if best is not None:
                values, distance = best, 1

    def _pick(self, phase: int, at: Value) -> None:
        """Some elements of a phase of the last axis."""
        layout, indices = self.layout, self.indices
        last = layout.axes[-1]
        value = self._strided(self.scratch(layout.elements), indices.mul(at, last.stride), phase)
        position = indices.add(at, phase * last.flat)
        self.store(value, self.scratch(layout.phases), position)

    def _strided(self, pointer: Pointer, at: Index, phase: int) -> Value:
        """Some elements of a phase, which lie as far apart as windows do."""
        position = Lanes(self.indices.add(at, phase), self.lanes, self.layout.axes[-1].stride)
        return self.registers.every_few(pointer, position, self.accumulator)

    def _compare(
        self,
        along: _Along,
        values: Pointer,
        distance: int,
        best: Pointer | None,
        taps: Pointer,
        at: Value,
    ) -> None:
        """The maxima of some windows along an axis: of equal ones the first."""
        builder, indices, registers = self.builder, self.indices, self.registers
        most: Value | None = None
        for number, (phase, step) in enumerate(along.taps):
            if distance > 1:
                begin = indices.mul(indices.add(at, step * along.unit), distance)
                value = self._strided(values, begin, phase)
            else:
                position = indices.add(at, phase * along.flat + step * along.unit)
                value = self.load(values, position, self.accumulator)
            here = registers.constant(number, self._word, self.lanes)
            if most is None:
                most, found = value, here
                continue
            better = registers.beats("argmax", value, most, self.accumulator)
            most = builder.select(better, value, most)
            found = builder.select(better, here, found)
        registers.store(found, taps, Lanes(at, self.lanes), self._word)
        if best is not None and most is not None:
            self.store(most, best, at)

    @property
    def _word(self) -> DType:
        """Integers as wide as elements."""
        return dtypes.i64 if self.accumulator is dtypes.f64 else dtypes.i32

    def _hand_down(self) -> None:
        """From windows to elements, axis by axis from the first on."""
        layout = self.layout
        given = self.scratch(layout.given[0])
        for number, along in enumerate(layout.axes):
            is_last = number == len(layout.axes) - 1
            to = self.scratch(layout.result if is_last else layout.given[number + 1])
            taps = self.scratch(layout.taps[number])
            if is_last:
                self.loop(along.flat, partial(self._spread, along, given, taps, to), self.lanes)
                continue
            for phase in along.phases:
                # One phase after the other: the last vector of one goes past it.
                self.loop(
                    along.flat, partial(self._phase, along, given, taps, to, phase), self.lanes
                )
            given = to

    def _received(
        self, along: _Along, given: Pointer, taps: Pointer, phase: int, at: Value
    ) -> Value:
        """What some elements of a phase receive along an axis."""
        builder, indices, registers = self.builder, self.indices, self.registers
        if along.is_trivial:
            return self.load(given, at, self.accumulator)
        total = registers.constant(0.0, self.accumulator, self.lanes)
        for number, (own, step) in enumerate(along.taps):
            if own != phase:
                continue
            position = indices.sub(at, step * along.unit)
            found = registers.load(taps, Lanes(position, self.lanes), self._word)
            here = registers.constant(number, self._word, self.lanes)
            chosen = builder.icmp_signed("==", found, here)
            more = builder.fadd(total, self.load(given, position, self.accumulator))
            total = builder.select(chosen, more, total)
        return total

    def _phase(
        self, along: _Along, given: Pointer, taps: Pointer, to: Pointer, phase: int, at: Value
    ) -> None:
        value = self._received(along, given, taps, phase, at)
        self.store(value, to, self.indices.add(at, phase * along.flat))

    def _spread(self, along: _Along, given: Pointer, taps: Pointer, to: Pointer, at: Value) -> None:
        """All phases of the last axis, in turn as they lie in a row."""
        indices, stride = self.indices, along.stride
        nothing = self.registers.constant(0.0, self.accumulator, self.lanes)
        values = {phase: self._received(along, given, taps, phase, at) for phase in along.phases}
        begin = indices.mul(at, stride)
        phases = [values.get(phase, nothing) for phase in range(stride)]
        for number, value in enumerate(self.interleaved(phases)):
            self.store(value, to, indices.add(begin, number * self.lanes))
