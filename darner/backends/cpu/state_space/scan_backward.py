"""The gradients of a selective scan: forwards for the states at the beginning of each chunk of steps, then chunk by chunk from the last.

A unit of work is a share of the channels of one sequence, whatever the number of threads. What is summed over channels (the gradients of ``b`` and ``c``) or over
sequences (that of ``a``) is kept for each unit, and added in one order when all are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....codegen.ir.emit import lane_mask, loop, minimum
from ....codegen.ir.index import Index, Lanes, i64
from ....codegen.ir.lanes import Lane
from ....codegen.ir.types import Value
from ....codegen.problems.state_space import Scan
from ....graph.integers import ceil_div, round_up
from ....graph.node import Node
from ..emit.template import Code, Scratch
from ..emit.vectors import clear_bytes, each, lanes_of
from ..runtime.jit import Machine
from .matrices import lane_sums
from .operands import Room
from .scan import Channels, ScanWork, decay

UNITS = 32
"""Units of work that there are at least, where there are as many vectors of channels: enough for many threads, and few enough to add up."""

KEPT = 1024
"""States of a channel that are kept while going back through a chunk of steps, about: so that they stay in the second cache."""

MOST = 64
"""Steps of a chunk, at the most."""


@dataclass(frozen=True)
class Layout:
    """Where everything lies in scratch memory, in elements.

    Attributes:
        chunk: steps of a chunk.
        chunks: how many there are.
        vectors: elements of one vector for each state.
        shares: into how many the channels of a sequence are divided.
        row: the states of a step, in whole vectors.
    """

    sizes: Scan
    lanes: int
    chunk: int
    chunks: int
    vectors: int
    shares: int
    row: int

    @classmethod
    def of(cls, node: Node, machine: Machine) -> Layout:
        """The layout for the gradients of a scan."""
        sizes = Scan.of(node)
        lanes = lanes_of(machine, sizes.dtype)
        chunk = min(max(KEPT // max(sizes.size, 1), 8), MOST, max(sizes.steps, 1))
        blocks = ceil_div(sizes.channels, lanes)
        shares = min(blocks, ceil_div(UNITS, max(sizes.batch, 1)))
        return cls(
            sizes,
            lanes,
            chunk,
            ceil_div(sizes.steps, chunk),
            sizes.size * lanes,
            max(shares, 1),
            round_up(sizes.size, lanes),
        )

    @property
    def blocks(self) -> int:
        """Vectors of channels."""
        return ceil_div(self.sizes.channels, self.lanes)

    @property
    def slopes(self) -> int:
        """Where the gradient of ``a`` is summed; before it lie the paces."""
        return self.vectors

    @property
    def reaching(self) -> int:
        """Where what reaches the states from later steps is kept."""
        return 2 * self.vectors

    @property
    def starts(self) -> int:
        """Where the states lie with which chunks begin."""
        return 3 * self.vectors

    @property
    def decays(self) -> int:
        """Where the decays of a chunk lie."""
        return self.starts + (self.chunks + 1) * self.vectors

    @property
    def states(self) -> int:
        """Where the states before and after each step of a chunk lie."""
        return self.decays + self.chunk * self.vectors

    @property
    def sums(self) -> int:
        """Where the two sums over states lie of each step of a chunk."""
        return self.states + (self.chunk + 1) * self.vectors

    @property
    def own(self) -> int:
        """Elements of a thread."""
        return self.sums + 2 * self.chunk * self.lanes

    @property
    def rows(self) -> int:
        """Elements of one gradient by steps and states, of all units."""
        return self.sizes.batch * self.shares * self.sizes.steps * self.row

    @property
    def channels(self) -> int:
        """Channels in whole vectors."""
        return self.blocks * self.lanes

    @property
    def shared(self) -> int:
        """Elements of all threads: the gradients of ``b``, of ``c``, and of ``a``, each for every unit or sequence."""
        return 2 * self.rows + self.sizes.batch * self.sizes.size * self.channels


def backward_scratch(node: Node, machine: Machine) -> Scratch:
    """The memory that gradients need."""
    layout = Layout.of(node, machine)
    width = layout.sizes.dtype.itemsize
    return Scratch(layout.own * width, layout.shared * width)


def emit_scan_backward(code: Code, node: Node) -> None:
    """All gradients of a selective scan."""
    layout = Layout.of(node, code.machine)
    work = _Backward(code, node, layout)
    code.each(layout.sizes.batch * layout.shares, work.unit)
    code.barrier()
    for position, first in ((3, 0), (4, layout.rows)):
        work.add_rows(position, first)
    work.add_slopes()


class _Backward(ScanWork):
    """What the code of the gradients is made with."""

    def __init__(self, code: Code, node: Node, layout: Layout) -> None:
        super().__init__(code, node)
        self.layout = layout
        self.b = code.builder
        self.width = layout.sizes.dtype.itemsize

    # ------------------------------------------------------------- a unit

    def unit(self, number: Value) -> None:
        """A share of the channels of one sequence."""
        b, layout = self.b, self.layout
        rows = layout.sizes.steps * layout.row
        for first in (0, layout.rows):
            at = self.code.indices.add(self.code.indices.mul(number, rows), first)
            clear_bytes(b, self.room(at, shared=True).pointer, rows * self.width)
        batch, share = b.udiv(number, i64(layout.shares)), b.urem(number, i64(layout.shares))
        low, high = (
            b.udiv(b.mul(end, i64(layout.blocks)), i64(layout.shares))
            for end in (share, b.add(share, i64(1)))
        )
        each(b, low, high, lambda block: self.vector(number, Channels(self, batch, block)))

    def vector(self, number: Value, channels: Channels) -> None:
        """All steps of a vector of channels, there and back."""
        b, layout, indices = self.b, self.layout, self.code.indices
        self.keep_paces(channels, self.room())
        for first in (layout.slopes, layout.reaching, layout.starts):
            clear_bytes(b, self.room(first).pointer, layout.vectors * self.width)
        self.keep_starts(channels)

        def chunk(back: Value) -> None:
            index = b.sub(i64(layout.chunks - 1), back)
            start = b.mul(index, i64(layout.chunk))
            left = b.sub(i64(layout.sizes.steps), start)
            count = minimum(b, left, i64(layout.chunk))
            sums = self.room(layout.sums)
            clear_bytes(b, sums.pointer, 2 * layout.chunk * self.lanes * self.width)

            def group(first: Index, states: int, _: Sequence[Value]) -> Sequence[Value]:
                span = _Span(first, states, index, start, count)
                self.again(channels, span)
                self.back(number, channels, span)
                return []

            self.groups(group, [])
            self.finish(channels, start, count)

        each(b, 0, layout.chunks, chunk)

        def slope(state: Value) -> None:
            row = indices.add(indices.mul(channels.batch, layout.sizes.size), state)
            at = indices.add(indices.mul(row, layout.channels), channels.first)
            found = self.room(layout.slopes).get(indices.mul(state, self.lanes))
            self.room(2 * layout.rows, shared=True).put(found, at)

        each(b, 0, layout.sizes.size, slope)

    def advance(
        self, channels: Channels, step: Value, first: Index, states: Sequence[Value]
    ) -> tuple[list[Lane], list[Lane]]:
        """The decays of some states at a step, and the states after it."""
        delta, x = channels.step("delta", step), channels.step("x", step)
        driven, indices = delta * x, self.code.indices
        decays, following = [], []
        for number, value in enumerate(states):
            state = indices.add(first, number)
            kept = decay(delta, self.room().get(indices.mul(state, self.lanes)))
            decays.append(kept)
            row = channels.row("b", step, state)
            following.append(driven.fma(row, kept * Lane(self.b, value)))
        return decays, following

    def keep_starts(self, channels: Channels) -> None:
        """The states with which all chunks begin; before the first they are 0."""
        layout, b, indices = self.layout, self.b, self.code.indices

        def group(first: Index, count: int, _: Sequence[Value]) -> Sequence[Value]:
            def chunk(index: Value, held: Sequence[Value]) -> Sequence[Value]:
                start = b.mul(index, i64(layout.chunk))

                def step(step: Value, states: Sequence[Value]) -> Sequence[Value]:
                    return [x.value for x in self.advance(channels, step, first, states)[1]]

                end = b.add(start, i64(layout.chunk))
                after = loop(b, start, end, 1, step, held)
                starts = self.room(layout.starts)
                row = indices.mul(indices.add(index, 1), layout.vectors)
                for number, value in enumerate(after):
                    at = indices.mul(indices.add(first, number), self.lanes)
                    starts.put(Lane(b, value), indices.add(row, at))
                return after

            # The last chunk is gone through only on the way back.
            loop(b, i64(0), i64(layout.chunks - 1), 1, chunk, [self.zero().value] * count)
            return []

        self.groups(group, [])

    def again(self, channels: Channels, span: _Span) -> None:
        """The decays and states of a chunk, from the states that it begins with."""
        layout, b, indices = self.layout, self.b, self.code.indices
        decays, states, starts = map(self.room, (layout.decays, layout.states, layout.starts))
        begin = []
        for number in range(span.states):
            at = indices.mul(indices.add(span.first, number), self.lanes)
            found = starts.get(indices.add(indices.mul(span.index, layout.vectors), at))
            states.put(found, at)
            begin.append(found.value)

        def step(place: Value, held: Sequence[Value]) -> Sequence[Value]:
            kept, following = self.advance(channels, b.add(span.start, place), span.first, held)
            row = indices.mul(place, layout.vectors)
            for number, (factor, new) in enumerate(zip(kept, following, strict=True)):
                at = indices.add(row, indices.mul(indices.add(span.first, number), self.lanes))
                decays.put(factor, at)
                states.put(new, indices.add(at, layout.vectors))
            return [new.value for new in following]

        loop(b, i64(0), span.count, 1, step, begin)

    # ------------------------------------------------------------- back

    def back(self, number: Value, channels: Channels, span: _Span) -> None:
        """Some states of a chunk, from its last step to its first."""
        layout, b, indices = self.layout, self.b, self.code.indices
        reaching = self.room(layout.reaching)
        places = [indices.mul(indices.add(span.first, k), self.lanes) for k in range(span.states)]

        def step(back: Value, held: Sequence[Value]) -> Sequence[Value]:
            place = b.sub(b.sub(span.count, i64(1)), back)
            return self.back_step(number, channels, span, place, held)

        begin = [reaching.get(at).value for at in places]
        for value, at in zip(loop(b, i64(0), span.count, 1, step, begin), places, strict=True):
            reaching.put(Lane(b, value), at)

    def back_step(  # many parameters: where in the loops it stands
        self,
        number: Value,
        channels: Channels,
        span: _Span,
        place: Value,
        held: Sequence[Value],
    ) -> Sequence[Value]:
        """One step of some states: from what reaches them later to what reaches them before it."""
        layout, b, indices = self.layout, self.b, self.code.indices
        decays, states, slopes = map(self.room, (layout.decays, layout.states, layout.slopes))
        step = b.add(span.start, place)
        dy, delta, x = (channels.step(name, step) for name in ("dy", "delta", "x"))
        driven, by_b, by_a = delta * x, self.zero(), self.zero()
        row = indices.mul(place, layout.vectors)
        to_b, to_c, following = [], [], []
        for k, value in enumerate(held):
            state = indices.add(span.first, k)
            lane = indices.mul(state, self.lanes)
            at = indices.add(row, lane)
            found = dy.fma(channels.row("c", step, state), Lane(b, value))
            to_c.append(dy * states.get(indices.add(at, layout.vectors)))
            to_b.append(found * driven)
            by_b = found.fma(channels.row("b", step, state), by_b)
            before = found * decays.get(at)
            slope = before * states.get(at)
            by_a = slope.fma(self.room().get(lane), by_a)
            slopes.put(slope.fma(delta, slopes.get(lane)), lane)
            following.append(before.value)
        sums = self.room(layout.sums)
        for first, summed in ((0, by_b), (layout.chunk * self.lanes, by_a)):
            total = indices.add(indices.mul(place, self.lanes), first)
            sums.put(sums.get(total) + summed, total)
        unit_row = indices.mul(
            indices.add(indices.mul(number, layout.sizes.steps), step), layout.row
        )
        for first, vectors in ((0, to_b), (layout.rows, to_c)):
            room = self.room(first, shared=True)
            target = indices.add(unit_row, span.first)
            whole = [*vectors, *[self.zero()] * (self.lanes - len(vectors))]
            room.put(room.get(target) + lane_sums(b, whole), target)
        return following

    def finish(self, channels: Channels, start: Value, count: Value) -> None:
        """The gradients by ``x`` and ``delta`` of a chunk, whose sums over all states are there."""
        b, indices = self.b, self.code.indices
        sums = self.room(self.layout.sums)

        def step(place: Value) -> None:
            step = b.add(start, place)
            delta, x = channels.step("delta", step), channels.step("x", step)
            at = indices.mul(place, self.lanes)
            by_b = sums.get(at)
            by_a = sums.get(indices.add(at, self.layout.chunk * self.lanes))
            index: list[Index] = [channels.batch, step, channels.lanes]
            self.results[0].put((by_b * delta).value, index, channels.mask)
            self.results[1].put(by_b.fma(x, by_a).value, index, channels.mask)

        each(b, 0, count, step)

    # ------------------------------------------------------------- sums of units

    def add_rows(self, position: int, first: int) -> None:
        """The gradient by ``b`` or ``c``: of each step the sum over all shares of its channels."""
        layout, b, indices = self.layout, self.b, self.code.indices
        steps, result = layout.sizes.steps, self.results[position]
        room = self.room(first, shared=True)

        def row(number: Value) -> None:
            batch, step = b.udiv(number, i64(steps)), b.urem(number, i64(steps))

            def vector(column: Value, _: Sequence[Value]) -> None:
                def add(share: Value, total: Sequence[Value]) -> Sequence[Value]:
                    unit = indices.add(indices.mul(batch, layout.shares), share)
                    at = indices.mul(indices.add(indices.mul(unit, steps), step), layout.row)
                    return [(Lane(b, total[0]) + room.get(indices.add(at, column))).value]

                shares = layout.shares if layout.blocks else 0
                (total,) = loop(b, i64(0), i64(shares), 1, add, [self.zero().value])
                mask = lane_mask(b, b.sub(i64(layout.sizes.size), column), self.lanes)
                whole = layout.sizes.size % self.lanes == 0
                place: list[Index] = [batch, step, Lanes(column, self.lanes)]
                result.put(total, place, None if whole else mask)

            loop(b, i64(0), i64(layout.sizes.size), self.lanes, vector)

        if result.pointer is not None and steps:
            self.code.each(layout.sizes.batch * steps, row)

    def add_slopes(self) -> None:
        """The gradient by ``a``: the sum over all sequences."""
        layout, b, indices = self.layout, self.b, self.code.indices
        size, result = layout.sizes.size, self.results[2]
        room: Room = self.room(2 * layout.rows, shared=True)

        def block(number: Value) -> None:
            first = b.mul(number, i64(self.lanes))
            mask = lane_mask(b, b.sub(i64(layout.sizes.channels), first), self.lanes)

            def state(state: Value) -> None:
                def add(batch: Value, total: Sequence[Value]) -> Sequence[Value]:
                    row = indices.add(indices.mul(batch, size), state)
                    at = indices.add(indices.mul(row, layout.channels), first)
                    return [(Lane(b, total[0]) + room.get(at)).value]

                batches = i64(layout.sizes.batch)
                (total,) = loop(b, i64(0), batches, 1, add, [self.zero().value])
                result.put(total, [Lanes(first, self.lanes), state], mask)

            each(b, 0, size, state)

        if result.pointer is not None:
            self.code.each(layout.blocks, block)


@dataclass(frozen=True)
class _Span:
    """Some states of a chunk of steps.

    Attributes:
        first: the first of the states.
        states: how many there are.
        index: of the chunk.
        start: its first step.
        count: its steps.
    """

    first: Index
    states: int
    index: Value
    start: Value
    count: Value
