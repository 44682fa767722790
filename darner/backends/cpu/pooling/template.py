"""Pooling and its gradients as native code.

Windows are pooled in two steps: rows onto each other, then along the rows that this makes. So a window of 5 x 5 takes 10 steps for each vector and not 25, and all that
is read from far is read in whole vectors. The gradients are in ``pooling_backward`` and ``pooling_maxima``.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ....codegen.ir.emit import offset
from ....codegen.ir.index import Number
from ....codegen.ir.types import ACCUMULATOR
from ....graph.errors import InternalError
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ....lower.strided import row_major, strided
from ..conv.driver import in_lines
from ..conv.epilogue import Finish
from ..conv.pack import divided
from ..emit.template import Code, Scratch, Template
from ..runtime.jit import Machine
from .max_gradient import Maxima
from .mean_gradient import Means
from .plan import Divisor, Pooling, Writer

BLOCK = 16384
"""Bytes of pooled rows that are kept for the second step: they stay in the first cache."""


class Forward(Writer):
    """The code of ``max_pool`` and ``avg_pool``."""

    def __init__(self, code: Code, main: Node, source: Any, finish: Finish) -> None:
        super().__init__(code, main, finish)
        self.source = source
        self.layout = Layout(self.plan)
        self.nothing = self.scratch(self.layout.block_bytes)
        self.combined = self.scratch(0)
        self.reduction = "max" if self.plan.is_max else "sum"

    def emit(self) -> None:
        """Everything: threads share blocks of rows."""
        plan, layout = self.plan, self.layout
        neutral = float("-inf") if plan.is_max else 0.0
        self.fill(self.nothing, layout.nothing, neutral, self.dtype)
        self.fill(self.combined, layout.rows * layout.pitch, neutral)
        self.divisor = None if plan.is_max else Divisor(self)
        blocks = -(-plan.pooled_rows // layout.rows)
        self.code.each(plan.batch * plan.channels * blocks, lambda unit: self._block(unit, blocks))

    def _block(self, unit: Any, blocks: int) -> None:
        """Some rows of what is pooled from one plane."""
        plan, layout, places = self.plan, self.layout, self.places
        plane, block = divided(self.builder, unit, blocks)
        image, channel = divided(self.builder, plane, plan.channels)
        first = places.mul(block, layout.rows)
        rows: Number = layout.rows
        if plan.pooled_rows % layout.rows:
            rest = places.sub(plan.pooled_rows, first)
            rows = places.clamp(rest, 0, layout.rows)
        start = offset(
            self.builder,
            self.source,
            self.dtype.name,
            places.mul(plane, plan.rows * plan.last.size),
        )
        self.loop(rows, lambda row: self._onto(start, places.add(first, row), row))
        self.loop(rows, lambda row: self._along([image, channel], places.add(first, row), row))

    def _onto(self, start: Any, number: Number, row: Any) -> None:
        """The rows of one row of windows onto each other."""
        plan, places, registers = self.plan, self.places, self.registers
        index = places.split(number, [axis.count for axis in plan.outer])
        pointers = []
        for taps in plan.taps():
            place: Number = 0
            inside: Any = None
            for axis, i, tap in zip(plan.outer, index, taps, strict=True):
                own = places.add(places.mul(i, axis.stride), tap * axis.dilation - axis.low)
                if axis.sticks_out(tap):
                    # As unsigned numbers, those below 0 are large.
                    within = self.builder.icmp_unsigned(
                        "<", places.plain(own), places.plain(axis.size)
                    )
                    inside = within if inside is None else self.builder.and_(inside, within)
                place = places.add(places.mul(place, axis.size), own)
            pointer = offset(
                self.builder, start, self.dtype.name, places.mul(place, plan.last.size)
            )
            if inside is not None:
                pointer = self.builder.select(inside, pointer, self.nothing)
            pointers.append(pointer)
        to = places.add(places.mul(row, self.layout.pitch), plan.last.low)

        def vector(at: Any, mask: Any) -> None:
            total = self.load(pointers[0], at, self.dtype, mask)
            for pointer in pointers[1:]:
                value = self.load(pointer, at, self.dtype, mask)
                total = registers.merge(self.reduction, total, value, self.kept)
            self.store(total, self.combined, places.add(to, at), mask)

        self.vectors(plan.last.size, vector)

    def _along(self, index: list[Number], number: Number, row: Any) -> None:
        """One row of windows, from what their rows are together."""
        last, places, registers = self.plan.last, self.places, self.registers
        start = places.mul(row, self.layout.pitch)

        def vector(at: Any, mask: Any) -> None:
            begin = places.add(start, places.mul(at, last.stride))
            total: Any = None
            for tap in range(last.window):
                place = places.add(begin, tap * last.dilation)
                value = self.load(self.combined, place, self.kept, None, last.stride)
                total = (
                    value
                    if total is None
                    else registers.merge(self.reduction, total, value, self.kept)
                )
            if self.divisor is not None:
                total = self.divisor.divide(total, number, at)
            pixel = places.add(places.mul(number, last.count), at)
            self.finish.emit(self.code, total, [*index, pixel], self.lanes, mask)

        self.vectors(last.count, vector)


class Layout:
    """Where the scratch memory of pooling lies: a block of rows, and one of what padding is."""

    def __init__(self, plan: Pooling) -> None:
        last, lanes = plan.last, plan.lanes
        whole = -(-last.count // lanes) * lanes
        seen = whole * last.stride + (last.window - 1) * last.dilation
        self.pitch = -(-max(seen, last.reach) // lanes) * lanes
        self.rows = min(plan.pooled_rows, max(1, BLOCK // (self.pitch * plan.kept.itemsize)))
        self.nothing = -(-last.size // lanes) * lanes
        self.block_bytes = in_lines(self.rows * self.pitch * plan.kept.itemsize)
        nothing_bytes = in_lines(self.nothing * plan.dtype.itemsize)
        self.scratch = Scratch(self.block_bytes + nothing_bytes)


def _main(spec: Spec) -> Node | None:
    """The only pooling of a body."""
    found = [node for node in spec.body.nodes if node.op.facts.pools]
    return found[0] if len(found) == 1 else None


def _fits(spec: Spec) -> bool:
    main = _main(spec)
    if main is None or main.dtype.name not in ACCUMULATOR:
        return False
    for operand in main.operands:
        seen = strided(operand)
        if seen is None or seen.base.op.name != "input" or operand.dtype is not main.dtype:
            return False
        if seen.strides != row_major(sizes(operand)):
            return False
    return Finish(spec.body, main, 2).possible


def _scratch(spec: Spec, machine: Machine) -> Scratch:
    main = _main(spec)
    if main is None or not prod(sizes(main)):
        return Scratch()
    plan = Pooling(main, machine)
    if main.op.name == "max_pool_backward":
        return Maxima.memory(plan).scratch
    if main.op.name == "avg_pool_backward":
        return Means.memory(plan).scratch
    return Layout(plan).scratch


def _emit(code: Code) -> None:
    main = _main(code.spec)
    if main is None or not prod(sizes(main)):
        return
    finish = Finish(code.body, main, 2)
    operands = [_address(code, operand) for operand in main.operands]
    if main.op.name == "max_pool_backward":
        Maxima(code, main, operands, finish).emit()
    elif main.op.name == "avg_pool_backward":
        Means(code, main, operands, finish).emit()
    else:
        Forward(code, main, operands[0], finish).emit()


def _address(code: Code, node: Node) -> Any:
    seen = strided(node)
    if seen is None:
        raise InternalError(f"'{node.op.name}' is an operand without an address")
    return offset(code.builder, code.operand_of(seen.base), node.dtype.name, seen.offset)


POOLING = Template("pooling", _fits, _emit, _scratch)
