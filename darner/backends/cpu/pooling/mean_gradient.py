"""The gradient of mean pooling: each window adds its share to the elements it covers, along rows first, then across rows.

A plane is one thread's work, so that everything an element receives is added in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ....codegen.ir.emit import lane_mask, loop, minimum, offset
from ....codegen.ir.index import Index, i64
from ....codegen.ir.types import Pointer, Value
from ....graph.integers import ceil_div, round_up
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
        last, lanes, size = plan.last, plan.lanes, plan.accumulator.itemsize
        self.before = ceil_div(last.window, last.stride) - 1
        vectors = ceil_div(last.reach, lanes * last.stride)
        self.steps = vectors * lanes
        self.given = round_up(self.before + max(self.steps, last.count), lanes)
        self.pitch = self.steps * last.stride + lanes
        self.given_bytes = in_lines(self.given * size)
        self.scratch = Scratch(self.given_bytes + in_lines(plan.pooled_rows * self.pitch * size))


class Means(Writer):
    """The code of ``avg_pool_backward``."""

    memory = _MeansMemory

    def __init__(self, code: Code, main: Node, operands: Sequence[Pointer], finish: Finish) -> None:
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
        disjoint = all(
            axis.window <= axis.stride and not axis.low for axis in (*plan.outer, plan.last)
        )
        return disjoint and len(plan.outer) == 1 and plan.last.stride <= MOST_ABREAST

    def _plane(self, plane: Value) -> None:
        plan, indices = self.plan, self.indices
        image, channel = divided(self.builder, plane, plan.channels)
        first = indices.mul(plane, plan.pooled_rows * plan.last.count)
        start = offset(self.builder, self.gradient, self.dtype.name, first)
        if self._lie_apart:
            self.loop(plan.pooled_rows, lambda row: self._copies([image, channel], start, row))
            return
        self.loop(plan.pooled_rows, lambda row: self._along(start, row))
        self.loop(plan.rows, lambda row: self._collect([image, channel], row))

    def _copies(self, index: list[Index], start: Pointer, row: Value) -> None:
        """All rows from those that a row of windows saw to before those of the next: copies of one, and zeros."""
        plan, indices, builder = self.plan, self.indices, self.builder
        last, (outer,) = plan.last, plan.outer
        top = i64(indices.mul(row, outer.stride))
        seen = minimum(builder, builder.add(top, i64(outer.window)), i64(outer.size))
        following = builder.add(top, i64(outer.stride))
        is_last = builder.icmp_signed("==", row, i64(plan.pooled_rows - 1))
        bottom = builder.select(is_last, i64(outer.size), following)
        nothing = self.registers.constant(0.0, self.accumulator, self.lanes)
        begin = indices.mul(row, last.count)

        def write(values: Sequence[Value], at: Index) -> None:
            """The rows of some vectors that lie side by side."""

            def write_phase(value: Value, position: Index, mask: Value, i: Value) -> None:
                pixel = indices.add(indices.mul(i, last.size), position)
                self.finish.emit(self.code, value, [*index, pixel], self.lanes, mask)

            for number, value in enumerate(values):
                position = indices.add(at, number * self.lanes)
                left = builder.sub(i64(last.size), i64(position))
                # A store of nothing takes long where there is no memory.
                with builder.if_then(builder.icmp_signed(">", left, i64(0))):
                    mask = lane_mask(builder, left, self.lanes)
                    self.between(top, seen, partial(write_phase, value, position, mask))
                    self.between(seen, bottom, partial(write_phase, nothing, position, mask))

        def vector(at: Value) -> None:
            mask = lane_mask(builder, builder.sub(i64(last.count), at), self.lanes)
            value = self.load(start, indices.add(begin, at), self.dtype, mask)
            value = self.divisor.divide(value, row, at)
            value = builder.select(mask, value, nothing)
            phases = [value if phase < last.window else nothing for phase in range(last.stride)]
            write(self.interleaved(phases), indices.mul(at, last.stride))

        whole = self.whole_vectors(last.count)
        self.loop(whole, vector, self.lanes)
        behind = whole * last.stride
        if behind < last.size:
            self.between(
                i64(behind),
                i64(last.size),
                lambda at: write([nothing], at),
                self.lanes,
            )

    def _along(self, start: Pointer, row: Value) -> None:
        """Spread a row of gradients over all that its windows saw along the row."""
        last, layout, indices, registers = self.plan.last, self.layout, self.indices, self.registers
        begin = indices.mul(row, last.count)

        def given(at: Value, mask: Value | None) -> None:
            value = self.load(start, indices.add(begin, at), self.dtype, mask)
            value = self.divisor.divide(value, row, at)
            self.store(value, self.given, indices.add(at, layout.before), mask)

        self.vectors(last.count, given)
        to = indices.mul(row, layout.pitch)

        def vector(at: Value) -> None:
            phases = []
            for phase in range(last.stride):
                total = registers.constant(0.0, self.accumulator, self.lanes)
                for number, _ in enumerate(range(phase, last.window, last.stride)):
                    position = indices.add(at, layout.before - number)
                    value = self.load(self.given, position, self.accumulator)
                    total = self.builder.fadd(total, value) if number else value
                phases.append(total)
            position = indices.add(to, indices.mul(at, last.stride))
            for number, value in enumerate(self.interleaved(phases)):
                self.store(value, self.spread, indices.add(position, number * self.lanes))

        self.loop(layout.steps, vector, self.lanes)

    def _collect(self, index: list[Index], number: Value) -> None:
        """One row of the result: the sum of all rows of windows that saw it."""
        plan, indices, layout = self.plan, self.indices, self.layout
        own = indices.split(number, [axis.size for axis in plan.outer])
        ranges = []
        for axis, i in zip(plan.outer, own, strict=True):
            position = indices.add(i, axis.low)
            # The last window that begins here or before, and the first that ends behind.
            final = indices.clamp(indices.div(position, axis.stride), 0, axis.count - 1)
            early = indices.add(position, axis.stride - axis.window)
            first = indices.div(indices.clamp(early, 0, axis.reach + axis.stride), axis.stride)
            ranges.append((i64(first), i64(indices.add(final, 1))))

        def vector(at: Value, mask: Value | None) -> None:
            def level(chosen: list[Value], totals: Sequence[Value]) -> Sequence[Value]:
                if len(chosen) < len(ranges):
                    low, high = ranges[len(chosen)]
                    return loop(
                        self.builder, low, high, 1, lambda i, t: level([*chosen, i], t), totals
                    )
                row = indices.offset(chosen, [axis.count for axis in plan.outer])
                position = indices.add(indices.mul(row, layout.pitch), plan.last.low)
                value = self.load(self.spread, indices.add(position, at), self.accumulator)
                return [self.builder.fadd(totals[0], value)]

            (total,) = level([], [self.registers.constant(0.0, self.accumulator, self.lanes)])
            pixel = indices.add(indices.mul(number, plan.last.size), at)
            self.finish.emit(self.code, total, [*index, pixel], self.lanes, mask)

        self.vectors(plan.last.size, vector)
