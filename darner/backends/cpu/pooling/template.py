"""Pooling and its gradients as native code.

Windows are pooled in two steps: rows onto each other, then along the resulting row. So a window of 5 x 5 takes 10 steps for each vector and not 25, and
memory is read in whole vectors. The gradients are in ``mean_gradient`` and ``max_gradient``.
"""

from __future__ import annotations

from math import prod

from ....codegen.ir.emit import offset
from ....codegen.ir.index import Index
from ....codegen.ir.types import ACCUMULATOR, Pointer, Value
from ....graph.errors import InternalError
from ....graph.integers import ceil_div, round_up
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

BLOCK = 1 / 2
"""Of the nearest cache, pooled rows that are kept for the second step."""


class Forward(Writer):
    """The code of ``max_pool`` and ``avg_pool``."""

    def __init__(self, code: Code, main: Node, source: Pointer, finish: Finish) -> None:
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
        blocks = ceil_div(plan.pooled_rows, layout.rows)
        self.code.each(plan.batch * plan.channels * blocks, lambda unit: self._block(unit, blocks))

    def _block(self, unit: Value, blocks: int) -> None:
        """Some rows of what is pooled from one plane."""
        plan, layout, indices = self.plan, self.layout, self.indices
        plane, block = divided(self.builder, unit, blocks)
        image, channel = divided(self.builder, plane, plan.channels)
        first = indices.mul(block, layout.rows)
        rows: Index = layout.rows
        if plan.pooled_rows % layout.rows:
            rest = indices.sub(plan.pooled_rows, first)
            rows = indices.clamp(rest, 0, layout.rows)
        start = offset(
            self.builder,
            self.source,
            self.dtype.name,
            indices.mul(plane, plan.rows * plan.last.size),
        )
        self.loop(rows, lambda row: self._onto(start, indices.add(first, row), row))
        self.loop(rows, lambda row: self._along([image, channel], indices.add(first, row), row))

    def _onto(self, start: Pointer, number: Index, row: Value) -> None:
        """The rows of one row of windows onto each other."""
        plan, indices, registers = self.plan, self.indices, self.registers
        index = indices.split(number, [axis.count for axis in plan.outer])
        pointers = []
        for taps in plan.taps():
            position: Index = 0
            inside: Value | None = None
            for axis, i, tap in zip(plan.outer, index, taps, strict=True):
                own = indices.add(indices.mul(i, axis.stride), tap * axis.dilation - axis.low)
                if axis.sticks_out(tap):
                    # As unsigned numbers, those below 0 are large.
                    within = self.builder.icmp_unsigned(
                        "<", indices.plain(own), indices.plain(axis.size)
                    )
                    inside = within if inside is None else self.builder.and_(inside, within)
                position = indices.add(indices.mul(position, axis.size), own)
            pointer = offset(
                self.builder, start, self.dtype.name, indices.mul(position, plan.last.size)
            )
            if inside is not None:
                pointer = self.builder.select(inside, pointer, self.nothing)
            pointers.append(pointer)
        to = indices.add(indices.mul(row, self.layout.pitch), plan.last.low)

        def vector(at: Value, mask: Value | None) -> None:
            total = self.load(pointers[0], at, self.dtype, mask)
            for pointer in pointers[1:]:
                value = self.load(pointer, at, self.dtype, mask)
                total = registers.merge(self.reduction, total, value, self.accumulator)
            self.store(total, self.combined, indices.add(to, at), mask)

        self.vectors(plan.last.size, vector)

    def _along(self, index: list[Index], number: Index, row: Value) -> None:
        """One row of windows, from what their rows are together."""
        last, indices, registers = self.plan.last, self.indices, self.registers
        start = indices.mul(row, self.layout.pitch)

        def vector(at: Value, mask: Value | None) -> None:
            begin = indices.add(start, indices.mul(at, last.stride))
            total = self.load(self.combined, begin, self.accumulator, None, last.stride)
            for tap in range(1, last.window):
                position = indices.add(begin, tap * last.dilation)
                value = self.load(self.combined, position, self.accumulator, None, last.stride)
                total = registers.merge(self.reduction, total, value, self.accumulator)
            if self.divisor is not None:
                total = self.divisor.divide(total, number, at)
            pixel = indices.add(indices.mul(number, last.count), at)
            self.finish.emit(self.code, total, [*index, pixel], self.lanes, mask)

        self.vectors(last.count, vector)


class Layout:
    """Where the scratch memory of pooling lies: a block of rows, and one of what padding is."""

    def __init__(self, plan: Pooling) -> None:
        last, lanes = plan.last, plan.lanes
        whole = round_up(last.count, lanes)
        seen = whole * last.stride + (last.window - 1) * last.dilation
        self.pitch = round_up(max(seen, last.reach), lanes)
        most = plan.model.of_l1(BLOCK) // (self.pitch * plan.accumulator.itemsize)
        self.rows = min(plan.pooled_rows, max(1, most))
        self.nothing = round_up(last.size, lanes)
        self.block_bytes = in_lines(self.rows * self.pitch * plan.accumulator.itemsize)
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


def _address(code: Code, node: Node) -> Pointer:
    seen = strided(node)
    if seen is None:
        raise InternalError(f"'{node.op.name}' is an operand without an address")
    return offset(code.builder, code.operand_of(seen.base), node.dtype.name, seen.offset)


POOLING = Template("pooling", _fits, _emit, _scratch)
