"""Kernels that go along an axis in order: running sums, products, maxima and minima.

A tensor is seen as [outer, length, inner]. Columns of the inner axes are taken a vector at a time; along the last axis each row is one chain. 16-bit
floats are summed in f32, each result rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ....codegen.ir.emit import broadcast, loop
from ....codegen.ir.index import Number, as_value
from ....codegen.ir.math import emit
from ....codegen.ir.registers import Registers
from ....codegen.problems.scan import NAMES
from ....lower.plan import Spec
from ....lower.specs import sizes
from ..emit.template import Code, Template
from ..emit.vectors import Source, cast, kept_in, lanes_of, store, sweep, tiles


def _fits(spec: Spec) -> bool:
    return len(spec.body.outputs) == 1 and spec.body.outputs[0].op.name in NAMES


def _emit(code: Code) -> None:
    (node,) = code.body.outputs
    (x,) = node.operands
    (result,) = code.results
    b, places = code.builder, code.places
    axis, whole = int(node.attrs["axis"]), sizes(x)
    if not prod(whole):
        return
    lead, length, inner = whole[:axis], whole[axis], prod(whole[axis + 1 :])
    reduction, op = NAMES[node.op.name]
    exclusive, reverse = node.attrs.get("exclusive", False), node.attrs["reverse"]
    kept = kept_in(node.dtype)
    source = Source(code, x, axis + 1)
    lanes = source.lanes(lanes_of(code.machine, node.dtype))

    def tile(row: Any, first: Number, last: Number) -> None:
        outer = places.split(row, lead) if lead else []
        start = places.mul(row, length * inner)

        def columns(column: Any, width: int) -> None:
            def one(step: Any, totals: Sequence[Any]) -> Sequence[Any]:
                at = places.sub(length - 1, step) if reverse else step
                value = cast(b, source.at([*outer, at], column, width), x.dtype, kept)
                total = emit(op, b, [totals[0], value], [kept, kept], kept)
                shown = cast(b, totals[0] if exclusive else total, kept, node.dtype)
                offset = places.add(places.add(start, places.mul(at, inner)), column)
                store(b, shown, result, offset, node.dtype)
                return [total]

            neutral = Registers(b).neutral(reduction, x.dtype, node.dtype)
            loop(b, as_value(0), as_value(length), 1, one, [broadcast(b, neutral, width)])

        sweep(b, first, last, lanes, columns)

    tiles(code, prod(lead), inner, lanes, tile)


SCANS = Template("scans", _fits, _emit)
