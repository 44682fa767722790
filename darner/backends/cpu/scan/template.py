"""Scans along an axis: cumulative sums, products, maxima and minima.

A tensor is seen as [outer, length, inner]. Columns of the inner axes are taken a vector at a time; along the last axis each row is one chain. 16-bit
floats are summed in f32, and each result is rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....codegen.ir.emit import broadcast, loop
from ....codegen.ir.index import Index, i64
from ....codegen.ir.math import emit
from ....codegen.ir.registers import Registers
from ....codegen.ir.types import Value, accumulator_type
from ....codegen.problems.scan import NAMES
from ....lower.plan import Spec
from ....lower.specs import sizes
from ..emit.template import Code, Template
from ..emit.vectors import Source, cast, lanes_of, sweep, tiles


def _fits(spec: Spec) -> bool:
    return len(spec.body.outputs) == 1 and spec.body.outputs[0].op.name in NAMES


def _emit(code: Code) -> None:
    (node,) = code.body.outputs
    (x,) = node.operands
    (result,) = code.results
    b, indices = code.builder, code.indices
    axis, whole = int(node.attrs["axis"]), sizes(x)
    if not prod(whole):
        return
    lead, length, inner = whole[:axis], whole[axis], prod(whole[axis + 1 :])
    reduction, op = NAMES[node.op.name]
    exclusive, reverse = node.attrs.get("exclusive", False), node.attrs["reverse"]
    accumulator = accumulator_type(node.dtype)
    source = Source(code, x, axis + 1)
    lanes = source.lanes(lanes_of(code.machine, node.dtype))

    def tile(row: Value, first: Index, last: Index) -> None:
        outer = indices.split(row, lead) if lead else []
        start = indices.mul(row, length * inner)

        def columns(column: Index, width: int) -> None:
            def add_step(step: Value, totals: Sequence[Value]) -> Sequence[Value]:
                at = indices.sub(length - 1, step) if reverse else step
                value = cast(b, source.at([*outer, at], column, width), x.dtype, accumulator)
                total = emit(op, b, [totals[0], value], [accumulator, accumulator], accumulator)
                shown = cast(b, totals[0] if exclusive else total, accumulator, node.dtype)
                offset = indices.add(indices.add(start, indices.mul(at, inner)), column)
                Registers(b).store(shown, result, offset, node.dtype)
                return [total]

            neutral = Registers(b).neutral(reduction, x.dtype, node.dtype)
            loop(b, i64(0), i64(length), 1, add_step, [broadcast(b, neutral, width)])

        sweep(b, first, last, lanes, columns)

    tiles(code, prod(lead), inner, lanes, tile)


SCANS = Template("scans", _fits, _emit)
