"""The largest element of a row and the sum of powers below it in one pass: what softmax needs of rows that are too long to keep.

The largest so far is what the powers are taken of; where a larger one comes, the sum so far is scaled by as much as it is larger.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ....graph.dtypes import f32
from ....graph.node import Node
from ...ir.math import emit
from ...problems.rows import Passes
from ..builder import Operand, Simt

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


def scaled(b: Simt, total: Operand, peak: Operand, higher: Operand) -> Operand:
    """A sum of powers below ``peak`` as one of powers below what is not lower; of no powers, as no elements are above -inf, it is 0."""
    zero = b.constant(0.0, f32)
    return b.select(is_lowest(b, peak), zero, b.fmul(total, _factor(b, peak, higher)))


def _factor(b: Simt, peak: Operand, higher: Operand) -> Operand:
    """What powers below ``peak`` are multiplied by to be such below what is not lower."""
    lower = emit("sub", b, [peak, higher], [f32, f32], f32)
    factor = emit("exp", b, [lower], [f32], f32)
    # The difference of two infinities is no number.
    return b.select(b.fcmp_ordered("==", peak, higher), b.constant(1.0, f32), factor)


def kept_scale(b: Simt, peak: Operand, highest: Operand) -> Operand:
    """The same for powers that are kept: in a row of -inf they are no numbers."""
    factor = b.select(is_lowest(b, peak), b.constant(0.0, f32), _factor(b, peak, highest))
    return b.select(is_lowest(b, highest), b.constant(math.nan, f32), factor)


def is_lowest(b: Simt, peak: Operand) -> Operand:
    """Whether the largest element is -inf."""
    return b.fcmp_ordered("==", peak, b.constant(-math.inf, f32))


def above_lowest(b: Simt, peak: Operand) -> Operand:
    """What powers are taken below, where the largest so far may be -inf: its powers are then 0."""
    return b.select(is_lowest(b, peak), b.constant(0.0, f32), peak)


def completed(b: Simt, total: Operand, peak: Operand) -> Operand:
    """The sum when all elements are in it: of a row of -inf it is NaN, as -inf less -inf is."""
    return b.select(is_lowest(b, peak), b.constant(math.nan, f32), total)
