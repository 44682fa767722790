"""The gradients of pooling: what windows hand down to the elements they saw.

A plane is one thread's work, so that all that its elements receive is added in one order. Means spread along rows first, then over rows; a maximum is looked for
again in each window, and hands down what it has to one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any

from ...graph import dtypes
from ...graph.node import Node
from .conv_driver import in_lines
from .conv_finish import Finish
from .conv_pack import divided
from .gemm_ir import lane_mask, loop, minimum, offset
from .places import Lanes, Number, as_value
from .pool_plan import Divisor, Pooling, Writer
from .template import Code, Scratch

MOST_ABREAST = 8
"""Elements of a row that one gradient of windows which lie apart may be written to."""
TOGETHER = 4
"""Windows for which the code that hands down is written out."""


class _MeansMemory:
    """Rows of gradients with zeros around them, and rows of what they hand down."""

    def __init__(self, plan: Pooling) -> None:
        last, lanes, size = plan.last, plan.lanes, plan.kept.itemsize
        self.before = -(-last.window // last.stride) - 1
        vectors = -(-last.reach // (lanes * last.stride))
        self.steps = vectors * lanes
        self.given = -(-(self.before + max(self.steps, last.count)) // lanes) * lanes
        self.pitch = self.steps * last.stride + lanes
        self.given_bytes = in_lines(self.given * size)
        self.scratch = Scratch(self.given_bytes + in_lines(plan.pooled_rows * self.pitch * size))


class Means(Writer):
    """The code of ``avg_pool_backward``."""

    memory = _MeansMemory

    def __init__(self, code: Code, main: Node, operands: Sequence[Any], finish: Finish) -> None:
        super().__init__(code, main, finish)
        (self.gradient,) = operands
        self.layout = _MeansMemory(self.plan)
        self.given = self.scratch(0)
        self.spread = self.scratch(self.layout.given_bytes)

    def emit(self) -> None:
        """Everything: threads share planes."""
        self.divisor = Divisor(self)
        if not self._lie_apart:
            self.fill(self.given, self.layout.given, 0.0)
        self.code.each(self.plan.batch * self.plan.channels, self._plane)

    @property
    def _lie_apart(self) -> bool:
        """Whether there are windows, no element is in two of them, and the first begins with the plane."""
        plan = self.plan
        if not plan.pooled_rows:
            return False
        apart = all(
            axis.window <= axis.stride and not axis.low for axis in (*plan.outer, plan.last)
        )
        return apart and len(plan.outer) == 1 and plan.last.stride <= MOST_ABREAST

    def _plane(self, plane: Any) -> None:
        plan, places = self.plan, self.places
        image, channel = divided(self.builder, plane, plan.channels)
        first = places.mul(plane, plan.pooled_rows * plan.last.count)
        start = offset(self.builder, self.gradient, self.dtype.name, first)
        if self._lie_apart:
            self.loop(plan.pooled_rows, lambda row: self._copies([image, channel], start, row))
            return
        self.loop(plan.pooled_rows, lambda row: self._along(start, row))
        self.loop(plan.rows, lambda row: self._collect([image, channel], row))

    def _copies(self, index: list[Number], start: Any, row: Any) -> None:
        """All rows from those that a row of windows saw to before those of the next: copies of one, and zeros."""
        plan, places, builder = self.plan, self.places, self.builder
        last, (outer,) = plan.last, plan.outer
        top = as_value(places.mul(row, outer.stride))
        seen = minimum(builder, builder.add(top, as_value(outer.window)), as_value(outer.size))
        following = builder.add(top, as_value(outer.stride))
        is_last = builder.icmp_signed("==", row, as_value(plan.pooled_rows - 1))
        bottom = builder.select(is_last, as_value(outer.size), following)
        nothing = self.registers.constant(0.0, self.kept, self.lanes)
        begin = places.mul(row, last.count)

        def write(values: Sequence[Any], at: Number) -> None:
            """The rows of some vectors that lie side by side."""

            def one(value: Any, place: Number, mask: Any, i: Any) -> None:
                pixel = places.add(places.mul(i, last.size), place)
                self.finish.emit(self.code, value, [*index, pixel], self.lanes, mask)

            for number, value in enumerate(values):
                place = places.add(at, number * self.lanes)
                left = builder.sub(as_value(last.size), as_value(place))
                # A store of nothing takes long where there is no memory.
                with builder.if_then(builder.icmp_signed(">", left, as_value(0))):
                    mask = lane_mask(builder, left, self.lanes)
                    self.between(top, seen, partial(one, value, place, mask))
                    self.between(seen, bottom, partial(one, nothing, place, mask))

        def vector(at: Any) -> None:
            mask = lane_mask(builder, builder.sub(as_value(last.count), at), self.lanes)
            value = self.load(start, places.add(begin, at), self.dtype, mask)
            value = self.divisor.divide(value, row, at)
            value = builder.select(mask, value, nothing)
            phases = [value if phase < last.window else nothing for phase in range(last.stride)]
            write(self.interleaved(phases), places.mul(at, last.stride))

        whole = self.whole_vectors(last.count)
        self.loop(whole, vector, self.lanes)
        behind = whole * last.stride
        if behind < last.size:
            self.between(
                as_value(behind),
                as_value(last.size),
                lambda at: write([nothing], at),
                self.lanes,
            )

    def _along(self, start: Any, row: Any) -> None:
        """Spread a row of gradients over all that its windows saw along the row."""
        last, layout, places, registers = self.plan.last, self.layout, self.places, self.registers
        begin = places.mul(row, last.count)

        def given(at: Any, mask: Any) -> None:
            value = self.load(start, places.add(begin, at), self.dtype, mask)
            value = self.divisor.divide(value, row, at)
            self.store(value, self.given, places.add(at, layout.before), mask)

        self.vectors(last.count, given)
        to = places.mul(row, layout.pitch)

        def vector(at: Any) -> None:
            phases = []
            for phase in range(last.stride):
                total = registers.constant(0.0, self.kept, self.lanes)
                for number, _ in enumerate(range(phase, last.window, last.stride)):
                    place = places.add(at, layout.before - number)
                    value = self.load(self.given, place, self.kept)
                    total = self.builder.fadd(total, value) if number else value
                phases.append(total)
            place = places.add(to, places.mul(at, last.stride))
            for number, value in enumerate(self.interleaved(phases)):
                self.store(value, self.spread, places.add(place, number * self.lanes))

        self.loop(layout.steps, vector, self.lanes)

    def _collect(self, index: list[Number], number: Any) -> None:
        """One row of the result: the sum of all rows of windows that saw it."""
        plan, places, layout = self.plan, self.places, self.layout
        own = places.split(number, [axis.size for axis in plan.outer])
        ranges = []
        for axis, i in zip(plan.outer, own, strict=True):
            place = places.add(i, axis.low)
            # The last window that begins here or before, and the first that ends behind.
            final = places.clamp(places.div(place, axis.stride), 0, axis.count - 1)
            early = places.add(place, axis.stride - axis.window)
            first = places.div(places.clamp(early, 0, axis.reach + axis.stride), axis.stride)
            ranges.append((as_value(first), as_value(places.add(final, 1))))

        def vector(at: Any, mask: Any) -> None:
            def level(chosen: list[Any], totals: Sequence[Any]) -> Sequence[Any]:
                if len(chosen) < len(ranges):
                    low, high = ranges[len(chosen)]
                    return loop(
                        self.builder, low, high, 1, lambda i, t: level([*chosen, i], t), totals
                    )
                row = places.offset(chosen, [axis.count for axis in plan.outer])
                place = places.add(places.mul(row, layout.pitch), plan.last.low)
                value = self.load(self.spread, places.add(place, at), self.kept)
                return [self.builder.fadd(totals[0], value)]

            (total,) = level([], [self.registers.constant(0.0, self.kept, self.lanes)])
            pixel = places.add(places.mul(number, plan.last.size), at)
            self.finish.emit(self.code, total, [*index, pixel], self.lanes, mask)

        self.vectors(plan.last.size, vector)


class _MaximaMemory:
    """Two planes with padding around them, of elements and of what they receive; and places of maxima."""

    def __init__(self, plan: Pooling) -> None:
        last, lanes, size = plan.last, plan.lanes, plan.kept.itemsize
        self.lengths = [axis.reach for axis in plan.outer]
        self.pitch = last.reach
        whole = -(-last.count // lanes) * lanes
        seen = whole * last.stride + (last.window - 1) * last.dilation
        # The last vectors of the last row go past it.
        self.plane = -(-(prod(self.lengths) * self.pitch + seen) // lanes) * lanes
        self.plane_bytes = in_lines(self.plane * size)
        self.scratch = Scratch(2 * self.plane_bytes + in_lines(whole * 4))


class Maxima(Writer):
    """The code of ``max_pool_backward``."""

    memory = _MaximaMemory

    def __init__(self, code: Code, main: Node, operands: Sequence[Any], finish: Finish) -> None:
        super().__init__(code, main, finish)
        self.source, self.gradient = operands
        self.layout = _MaximaMemory(self.plan)
        self.elements = self.scratch(0)
        self.received = self.scratch(self.layout.plane_bytes)
        self.found = self.scratch(2 * self.layout.plane_bytes)

    def emit(self) -> None:
        """Everything: threads share planes."""
        self.fill(self.elements, self.layout.plane, float("-inf"))
        self.fill(self.received, self.layout.plane, 0.0)
        self.code.each(self.plan.batch * self.plan.channels, self._plane)

    def _plane(self, plane: Any) -> None:
        plan, places = self.plan, self.places
        image, channel = divided(self.builder, plane, plan.channels)
        first = places.mul(plane, plan.rows * plan.last.size)
        source = offset(self.builder, self.source, self.dtype.name, first)
        first = places.mul(plane, plan.pooled_rows * plan.last.count)
        gradient = offset(self.builder, self.gradient, self.dtype.name, first)
        self.loop(plan.rows, lambda row: self._copy(source, row))
        self.loop(plan.pooled_rows, lambda row: self._row(gradient, row))
        self.loop(plan.rows, lambda row: self._collect([image, channel], row))

    def _inner(self, row: Any) -> Number:
        """Where a row of the plane begins amid the padding."""
        plan, places, layout = self.plan, self.places, self.layout
        index = places.split(row, [axis.size for axis in plan.outer])
        moved = [places.add(i, axis.low) for i, axis in zip(index, plan.outer, strict=True)]
        whole = places.mul(places.offset(moved, layout.lengths), layout.pitch)
        return places.add(whole, plan.last.low)

    def _copy(self, source: Any, row: Any) -> None:
        places, width = self.places, self.plan.last.size
        to, start = self._inner(row), places.mul(row, width)

        def vector(at: Any, mask: Any) -> None:
            value = self.load(source, places.add(start, at), self.dtype, mask)
            self.store(value, self.elements, places.add(to, at), mask)

        self.vectors(width, vector)

    def _row(self, gradient: Any, row: Any) -> None:
        """Find the maxima of a row of windows, and give each what its window has."""
        plan, places, layout = self.plan, self.places, self.layout
        last = plan.last
        index = places.split(row, [axis.count for axis in plan.outer])
        moved = [places.mul(i, axis.stride) for i, axis in zip(index, plan.outer, strict=True)]
        corner = places.mul(places.offset(moved, layout.lengths), layout.pitch)
        self.vectors(last.count, lambda at, _: self._find(corner, at))
        start = places.mul(row, last.count)
        to = offset(self.builder, self.received, self.kept.name, corner)

        def one(at: Number) -> None:
            found = self.registers.load(self.found, at, dtypes.i32)
            place = self.registers.as_index(found, dtypes.i32)
            value = self.registers.load(gradient, places.add(start, at), self.dtype)
            value = self.registers.cast(value, self.dtype, self.kept)
            before = self.registers.load(to, place, self.kept)
            self.registers.store(self.builder.fadd(before, value), to, place, self.kept)

        def some(at: Any) -> None:
            for number in range(TOGETHER):
                one(places.add(at, number))

        full = last.count // TOGETHER * TOGETHER
        self.loop(full, some, TOGETHER)
        for rest in range(full, last.count):
            one(rest)

    def _find(self, corner: Number, at: Any) -> None:
        """Where each of some windows has its first maximum, from the first window's corner on."""
        plan, places, registers, layout = self.plan, self.places, self.registers, self.layout
        begin = places.add(corner, places.mul(at, plan.last.stride))
        axes = [*plan.outer, plan.last]
        lengths = [*layout.lengths, layout.pitch]
        # Runs of taps, to be compared two and two, so that few wait for each other. Windows that lie apart are compared tap by tap: the sums that follow are slower where these are quicker.
        two_and_two = plan.last.stride == 1
        runs: list[tuple[int, Any, Any]] = []
        for taps in product(*(range(axis.window) for axis in axes)):
            steps = [tap * axis.dilation for tap, axis in zip(taps, axes, strict=True)]
            step = places.offset(steps, lengths)
            stride = plan.last.stride
            value = self.load(self.elements, places.add(begin, step), self.kept, None, stride)
            runs.append((1, value, registers.constant(step, dtypes.i32, self.lanes)))
            while len(runs) > 1 and (not two_and_two or runs[-1][0] == runs[-2][0]):
                self._join(runs)
        while len(runs) > 1:
            self._join(runs)
        _, _, place = runs[0]
        own = Lanes(places.mul(at, plan.last.stride), self.lanes, plan.last.stride)
        place = self.builder.add(place, registers.of_index(own, dtypes.i32))
        registers.store(place, self.found, Lanes(at, self.lanes), dtypes.i32)

    def _join(self, runs: list[tuple[int, Any, Any]]) -> None:
        """The last two runs as one: of equal maxima that of the first."""
        count, value, here = runs.pop()
        before, best, place = runs.pop()
        better = self.registers.beats("argmax", value, best, self.kept)
        best = self.builder.select(better, value, best)
        runs.append((before + count, best, self.builder.select(better, here, place)))

    def _collect(self, index: list[Number], row: Any) -> None:
        """Write a row of the result, and leave zeros for the next plane."""
        places, width = self.places, self.plan.last.size
        start = self._inner(row)
        nothing = self.registers.constant(0.0, self.kept, self.lanes)

        def vector(at: Any, mask: Any) -> None:
            place = places.add(start, at)
            value = self.load(self.received, place, self.kept, mask)
            self.store(nothing, self.received, place, mask)
            pixel = places.add(places.mul(row, width), at)
            self.finish.emit(self.code, value, [*index, pixel], self.lanes, mask)

        self.vectors(width, vector)
