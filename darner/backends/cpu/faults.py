"""Faults that only the data shows, such as an index outside its axis: how native code tells of them.

A kernel writes what it found beside its arguments, and goes on with an index inside; the program raises after the step. No kernel checks for them
but those that read or write by index.
"""

from __future__ import annotations

from typing import Any

from ...graph.errors import DarnerError, RunError
from ...lower.bounds import index_inputs
from ...lower.plan import Plan
from .lanes import Lane, function_of, mangled
from .places import Places, as_value, lane_count

INDEXED = frozenset(
    {"gather", "take_along_axis", "scatter", "scatter_add", "scatter_add_along_axis"}
)
"""The ops that check their indices."""

FAULT = 3
"""The first words of a kernel, 64 bits each, by which it tells of a fault: whether it found one, the index, and the size of the axis. ``claims`` has the others."""


def emit_check(builder: Any, fault: Any, index: Any, size: int, mask: Any = None) -> None:
    """Tell of an index, a 64-bit value or a vector of them, that is not from 0 to before ``size``."""
    from llvmlite import ir  # type: ignore[import-untyped]

    count = lane_count(index)
    limit = as_value(size) if count is None else Places(builder).vector(size, count)
    outside = builder.icmp_unsigned(">=", index, limit)
    if mask is not None and count is not None:
        outside = builder.and_(outside, mask)
    with builder.if_then(Lane(builder, outside).any().value, likely=False):
        found = index
        if count is not None:
            # Of several faults the largest index is told: any would do.
            least = ir.Constant(index.type, [-(2**63)] * count)
            chosen = builder.select(outside, index, least)
            name = f"llvm.vector.reduce.smax.{mangled(index.type)}"
            function = function_of(builder.module, name, ir.IntType(64), [index.type])
            found = builder.call(function, [chosen])
        for place, value in ((1, found), (2, as_value(size)), (0, as_value(1))):
            target = builder.gep(fault, [as_value(place)], source_etype=ir.IntType(64))
            builder.store(value, target)


def fault_of(plan: Plan, number: int, index: int, size: int) -> DarnerError:
    """The error of a kernel that met an index outside of its axis."""
    kernel = plan.kernels[number]
    op = next(name for name in plan.spec(kernel).ops if name in INDEXED)
    text = f"index {index} is outside 0..{size - 1}"
    if size == 0:
        text = f"index {index}: the axis has no elements"
    if given := index_inputs(plan, kernel):
        text += f", and comes from input {', '.join(repr(name) for name in given)}"
    return RunError(text).located(op, kernel.label, "", kernel.source)
