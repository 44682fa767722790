"""The largest element of a row and the sum of powers below it in one pass: what softmax needs of rows that are too long to keep.

The largest so far is what the powers are taken of; where a larger one comes, the sum so far is scaled by as much as it is larger.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ....backends.wgpu.writer import Writer
from ....graph.dtypes import f32
from ....graph.node import Node
from ...ir.math import emit, register_type
from ...problems.rows import Passes

SEEN_THROUGH = ("broadcast_to", "reshape", "stop_gradient")


def joined(passes: Passes) -> Passes | None:
    """The passes with the first two as one, where they are the largest ``x`` and the sum of ``exp(x - largest)``."""
    if len(passes.levels) < 2 or any(len(level) != 1 for level in passes.levels[:2]):
        return None
    if any(passes.guards[:2]):
        return None
    (peak,), (total,) = passes.levels[:2]
    if (peak.op.name, total.op.name) != ("max", "sum"):
        return None
    (power,) = total.operands
    (difference,) = power.operands if power.op.name == "exp" else (power,)
    if difference.op.name != "sub":
        return None
    x, below = difference.operands
    alike = x.id == peak.operands[0].id and _source(below).id == peak.id
    if not alike or any(node.dtype is not f32 for node in (x, peak, power, total)):
        return None
    # What waits for the sum waits for one pass less; what waits for the largest alone waits for as many.
    level = {id: number - (number > 1) for id, number in passes.level.items()}
    guards = (None, *passes.guards[2:])
    return replace(passes, levels=((peak, total), *passes.levels[2:]), level=level, guards=guards)


def _source(node: Node) -> Node:
    while node.op.name in SEEN_THROUGH:
        (node,) = node.operands
    return node


def scaled(writer: Writer, total: Any, peak: Any, higher: Any) -> Any:
    """A sum of powers below ``peak`` as one of powers below what is not lower; of no powers, as no elements are above -inf, it is 0."""
    one, zero = (_constant(number) for number in (1.0, 0.0))
    lower = emit("sub", writer, [peak, higher], [f32, f32], f32)
    factor = emit("exp", writer, [lower], [f32], f32)
    # The difference of two infinities is no number.
    factor = writer.select(writer.fcmp_ordered("==", peak, higher), one, factor)
    return writer.select(is_lowest(writer, peak), zero, writer.fmul(total, factor))


def is_lowest(writer: Writer, peak: Any) -> Any:
    """Whether the largest element is -inf."""
    return writer.fcmp_ordered("==", peak, _constant(-math.inf))


def above_lowest(writer: Writer, peak: Any) -> Any:
    """What powers are taken below, where the largest so far may be -inf: its powers are then 0."""
    return writer.select(is_lowest(writer, peak), _constant(0.0), peak)


def completed(writer: Writer, total: Any, peak: Any) -> Any:
    """The sum when all elements are in it: of a row of -inf it is NaN, as -inf less -inf is."""
    return writer.select(is_lowest(writer, peak), _constant(math.nan), total)


def _constant(number: float) -> Any:
    from llvmlite import ir  # type: ignore[import-untyped]

    return ir.Constant(register_type(f32), number)
