"""The gradient of mean pooling: what windows hand down to the elements they saw, along rows first, then over rows.

A plane is one thread's work, so that all that its elements receive is added in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ....codegen.ir.emit import lane_mask, loop, minimum, offset
from ....codegen.ir.index import Number, as_value
from ....graph.node import Node
from ..conv.driver import in_lines
from ..conv.epilogue import Finish
from ..conv.pack import divided
from ..emit.template import Code, Scratch
from .plan import Divisor, Pooling, Writer

MOST_ABREAST = 8
"""Elements of a row that one gradient of windows which lie apart may be written to."""


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
