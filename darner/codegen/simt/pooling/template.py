"""Pooling and its gradients: a thread for each element of the result.

Gradients are gathered: an element looks for the windows that cover it. Which element of a window is its first maximum is found once for each window, and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod

from ....graph import dtypes
from ....graph.errors import InternalError
from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.roles import pooling_ops
from ....lower.specs import sizes
from ...ir.index import Number
from ...problems.pooling import Axis
from ..builder import Memory, Operand
from ..dispatch import Dispatch, Written
from ..elements import ThreadElements
from ..machine import Machine
from ..main_node import Element, is_bound, main_of, main_stages
from ..template import Template

WRITTEN_OUT = 32
"""The most elements of a window whose code is written one after the other: their loads are on the way together."""


class Pooling:
    """The windows of a pooling node."""

    def __init__(self, main: Node) -> None:
        self.main = main
        backward = main.op.name.endswith("backward")
        attrs, rank = main.attrs, len(main.attrs["window"])
        self.whole = main if backward else main.operands[0]
        self.pooled = main.operands[-1] if backward else main
        every = zip(
            sizes(self.whole)[2:],
            sizes(self.pooled)[2:],
            attrs["window"],
            attrs["stride"],
            attrs.get("dilation", (1,) * rank),
            attrs["padding"],
            strict=True,
        )
        self.axes = [
            Axis(size, count, window, stride, dilation, *map(int, pair))
            for size, count, window, stride, dilation, pair in every
        ]
        self.window = [axis.window for axis in self.axes]

    def taps(
        self,
        e: ThreadElements,
        body: Callable[[list[Number], Number, list[Operand]], Sequence[Operand]],
        carried: Sequence[Operand],
    ) -> list[Operand]:
        """``body(tap, its number, carried values)`` for the elements of a window."""
        if prod(self.window) > WRITTEN_OUT:
            return e.loops(
                self.window,
                lambda tap, held: body(tap, e.places.offset(tap, self.window), held),
                carried,
            )
        values = list(carried)
        for number, tap in enumerate(product(*map(range, self.window))):
            values = list(body(list(tap), number, values))
        return values

    def seen(
        self, e: ThreadElements, index: Sequence[Number], tap: Sequence[Number]
    ) -> tuple[list[Number], Operand]:
        """Where an element of a window lies, and whether it does; somewhere inside where not."""
        places, where, hits = e.places, list[Number](index[:2]), None
        for axis, i, k in zip(self.axes, index[2:], tap, strict=True):
            moved = places.add(places.mul(i, axis.stride), places.mul(k, axis.dilation))
            place = places.sub(moved, axis.low)
            numbers = [k] if isinstance(k, int) else range(axis.window)
            if any(axis.sticks_out(number) for number in numbers):
                place, hit = _within(e, place, axis.size)
                hits = e.registers.both(hits, hit)
            where.append(place)
        return where, hits

    @property
    def covers(self) -> list[int]:
        """How many windows can cover one element, along each axis."""
        return [ceil_div((a.window - 1) * a.dilation + 1, a.stride) for a in self.axes]

    def covering(
        self,
        e: ThreadElements,
        index: Sequence[Number],
        body: Callable[[list[Number], Number, Operand, list[Operand]], Sequence[Operand]],
        carried: Sequence[Operand],
    ) -> list[Operand]:
        """``body(window, the element's number in it, whether it covers the element, carried values)`` for all that may; some window where it does not."""
        places, both = e.places, e.registers.both
        moved = [places.add(i, axis.low) for i, axis in zip(index[2:], self.axes, strict=True)]
        latest = [
            places.div(place, axis.stride) for place, axis in zip(moved, self.axes, strict=True)
        ]

        def visit_window(back: Sequence[Number], values: list[Operand]) -> Sequence[Operand]:
            where, tap, hits = list[Number](index[:2]), list[Number](), None
            for axis, last, place, number in zip(self.axes, latest, moved, back, strict=True):
                window, hit = _within(e, places.sub(last, number), axis.count)
                rest = places.sub(place, places.mul(window, axis.stride))
                span = (axis.window - 1) * axis.dilation + 1
                near = places.compare("<", rest, span)
                if axis.dilation > 1:
                    near = both(near, places.compare("==", places.mod(rest, axis.dilation), 0))
                hits = both(hits, both(hit, near))
                where.append(window)
                tap.append(places.div(rest, axis.dilation))
            return body(where, places.offset(tap, self.window), hits, values)

        if prod(self.covers) > WRITTEN_OUT:
            return e.loops(self.covers, visit_window, carried)
        values = list(carried)
        for back in product(*map(range, self.covers)):
            values = list(visit_window(back, values))
        return values

    # ------------------------------------------------------------- the ops

    def forward(self, e: ThreadElements, index: list[Number]) -> Operand:
        """An element of ``max_pool`` or ``avg_pool``."""
        main, registers = self.main, e.registers
        name = "max" if main.op.name == "max_pool" else "sum"
        nothing = registers.neutral(name, main.dtype, main.dtype)

        def merge_tap(tap: list[Number], _: Number, values: list[Operand]) -> Sequence[Operand]:
            where, hits = self.seen(e, index, tap)
            value = registers.cast(
                e.at(self.whole, where), main.dtype, registers.kept_in(main.dtype)
            )
            if hits is not None:
                value = registers.choose(hits, value, nothing)
            return [registers.merge(name, values[0], value, main.dtype)]

        (total,) = self.taps(e, merge_tap, [nothing])
        if name == "sum":
            total = self.shared(e, total, index[2:])
        return registers.reduced(name, total, main.dtype)

    def shared(self, e: ThreadElements, total: Operand, window: Sequence[Number]) -> Operand:
        """A number divided by the elements that the mean of a window is over."""
        counts = bool(self.main.attrs["count_include_pad"])
        held: Number = 1
        for axis, i in zip(self.axes, window, strict=True):
            numbers = axis.held(counts)
            if len({*numbers}) == 1:
                held = e.places.mul(held, numbers[0])
                continue
            first = e.places.mul(i, axis.stride)
            before = 0 if counts else axis.low
            behind = axis.low + axis.size + (axis.high if counts else 0)
            end = e.places.clamp(e.places.add(first, axis.window), 0, behind)
            begin = e.places.clamp(first, before, behind)
            held = e.places.mul(held, e.places.sub(end, begin))
        kept = e.registers.kept_in(self.main.dtype)
        if isinstance(held, int):
            return e.builder.fdiv(total, e.registers.constant(held, kept))
        return e.builder.fdiv(total, e.registers.of_index(held, kept))

    def means_backward(self, e: ThreadElements, index: list[Number]) -> Operand:
        """An element of ``avg_pool_backward``: its share of every window that covers it."""
        main, registers = self.main, e.registers
        kept = registers.kept_in(main.dtype)
        nothing = registers.constant(0.0, kept)

        def add_share(
            where: list[Number], _: Number, hits: Operand, values: list[Operand]
        ) -> Sequence[Operand]:
            value = registers.cast(e.at(self.pooled, where), main.dtype, kept)
            share = registers.choose(hits, self.shared(e, value, where[2:]), nothing)
            return [e.builder.fadd(values[0], share)]

        (total,) = self.covering(e, index, add_share, [nothing])
        return registers.reduced("sum", total, main.dtype)

    def first_maximum(self, e: ThreadElements, index: Sequence[Number]) -> Operand:
        """The number of the element that is the first maximum of a window."""
        main, registers = self.main, e.registers
        kept = registers.kept_in(main.dtype)
        source = main.operands[0]
        padding = registers.constant(float("-inf"), kept)

        def compare_tap(
            tap: list[Number], number: Number, values: list[Operand]
        ) -> Sequence[Operand]:
            where, hits = self.seen(e, index, tap)
            value = registers.cast(e.at(source, where), main.dtype, kept)
            if hits is not None:
                value = registers.choose(hits, value, padding)
            better = registers.beats("argmax", value, values[0], kept)
            best = registers.choose(better, value, values[0])
            return [best, registers.choose(better, e.places.plain(number), values[1])]

        # Where nothing beats -inf, the first element is the first maximum.
        _, found = self.taps(e, compare_tap, [padding, e.places.plain(0)])
        return found

    def maxima_backward(
        self, e: ThreadElements, index: list[Number], memory: Memory | None
    ) -> Operand:
        """An element of ``max_pool_backward``: what the windows have whose first maximum it is; ``memory`` holds where those are, if anything does."""
        registers, dtype = e.registers, self.main.dtype
        kept, windows = registers.kept_in(dtype), sizes(self.pooled)
        nothing = registers.constant(0.0, kept)

        def add_if_maximum(
            where: list[Number], number: Number, hits: Operand, values: list[Operand]
        ) -> Sequence[Operand]:
            if memory is None:
                found = self.first_maximum(e, where)
            else:
                found = registers.load(memory, e.places.offset(where, windows), dtypes.u32)
            hits = registers.both(hits, e.places.compare("==", found, number))
            value = registers.cast(e.at(self.pooled, where), dtype, kept)
            return [e.builder.fadd(values[0], registers.choose(hits, value, nothing))]

        (total,) = self.covering(e, index, add_if_maximum, [nothing])
        return registers.reduced("sum", total, dtype)


def _within(e: ThreadElements, place: Number, size: int) -> tuple[Number, Operand]:
    """A place that is on an axis, and whether the given one was: below 0 is far above, as numbers without signs are."""
    plain = e.places.plain(place)
    hit = e.builder.icmp_unsigned("<", plain, e.places.plain(size))
    return e.builder.select(hit, plain, e.places.plain(0)), hit


def _fits(spec: Spec, machine: Machine) -> bool:
    main = main_of(spec, pooling_ops())
    if main is None or not main.dtype.is_float or not is_bound(spec, machine):
        return False
    return main.dtype is not dtypes.f64 or machine.wide


def _write(spec: Spec, machine: Machine) -> Written:
    main = main_of(spec, pooling_ops())
    if main is None:
        raise InternalError("a kernel of pooling without a pooling")
    plan = Pooling(main)
    if not prod(sizes(main)):
        return Written(())
    if main.op.name == "max_pool_backward":
        return _maxima_backward(spec, machine, plan)
    backward = main.op.name == "avg_pool_backward"
    element = plan.means_backward if backward else plan.forward
    return Written(tuple(main_stages(spec, machine, main, lambda _: element)))


def _maxima_backward(spec: Spec, machine: Machine, plan: Pooling) -> Written:
    """First where each window has its first maximum, then what each element receives; at once where no windows lie over each other."""
    if prod(plan.covers) == 1:
        return Written(
            tuple(
                main_stages(
                    spec,
                    machine,
                    plan.main,
                    lambda _: lambda e, index: plan.maxima_backward(e, index, None),
                )
            )
        )
    windows = sizes(plan.pooled)
    dispatch = Dispatch(spec, machine)
    b = dispatch.builder
    with b.if_(b.thread < prod(windows)):
        e = dispatch.elements()
        found = plan.first_maximum(e, e.places.split(b.thread, windows))
        memory = dispatch.scratch(0, prod(windows), dtypes.u32)
        e.registers.store(found, memory, b.thread, dtypes.u32)
    first = dispatch.finish(ceil_div(prod(windows), dispatch.threads))

    def element(dispatch: Dispatch) -> Element:
        memory = dispatch.scratch(0, prod(windows), dtypes.u32)
        return lambda e, index: plan.maxima_backward(e, index, memory)

    second = main_stages(spec, machine, plan.main, element)
    return Written((first, *second), prod(windows) * 4)


POOLING = Template("pooling", _fits, _write)
