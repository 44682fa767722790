"""Reductions, matrix products and folded windows as loops within the code of an element."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...graph.node import Node
from ...lower.specs import sizes as sizes_of
from ..ir.index import Index, lane_count
from ..ir.types import Value

if TYPE_CHECKING:
    from .elements import Elements


def reduce(e: Elements, node: Node, index: list[Index]) -> Value:
    """A reduction: of lanes side by side where elements of the last axis are, else in each lane."""
    (x,) = node.operands
    axes, sizes, name = node.attrs["axes"], sizes_of(x), node.op.name
    kept = [k for k in range(x.rank) if k not in axes]
    outer = [index[k] for k in kept] if node.attrs["keepdims"] else list(index)

    def operand_index(inner: Sequence[Index]) -> list[Index]:
        result: list[Index] = [0] * x.rank
        pairs = itertools.chain(zip(kept, outer, strict=True), zip(axes, inner, strict=True))
        for axis, i in pairs:
            result[axis] = i
        return result

    def combined(inner: Sequence[Index], total: Value) -> Value:
        value = e.at(x, operand_index(inner))
        following = e.registers.combine(name, total, value, x.dtype, node.dtype)
        if e.mask is None or lane_count(following) is None:
            return following
        return e.registers.choose(e.mask, following, total)

    count = next((c for c in map(lane_count, index) if c is not None), None)
    if count is not None or not axes or axes[-1] != x.rank - 1 or sizes[-1] < e.width // 2:
        first = e.registers.neutral(name, x.dtype, node.dtype, count)
        (total,) = e.loops(
            [sizes[axis] for axis in axes], lambda inner, held: [combined(inner, held[0])], [first]
        )
        return e.registers.reduced(name, total, node.dtype)
    count = e.width * (4 if sizes[-1] >= 8 * e.width else 1)
    first = e.registers.neutral(name, x.dtype, node.dtype, count)
    (total,) = e.loops(
        [sizes[axis] for axis in axes[:-1]],
        lambda inner, held: e.blocks(
            0, sizes[-1], count, lambda lanes, sums: [combined([*inner, lanes], sums[0])], held
        ),
        [first],
    )
    return e.registers.reduced(name, e.registers.across(name, total, node.dtype), node.dtype)


def dot_general(e: Elements, node: Node, index: list[Index]) -> Value:
    """An element of a product of matrices."""
    a, b = node.operands
    attrs = node.attrs
    batch = len(attrs["a_batch"])
    sides = []
    at = batch
    for side, operand in (("a", a), ("b", b)):
        used = (*attrs[f"{side}_batch"], *attrs[f"{side}_contract"])
        free = [k for k in range(operand.rank) if k not in used]
        position: list[Index] = [0] * operand.rank
        for axis, i in zip(attrs[f"{side}_batch"], index[:batch], strict=True):
            position[axis] = i
        for axis, i in zip(free, index[at : at + len(free)], strict=True):
            position[axis] = i
        at += len(free)
        sides.append(position)
    sizes = [sizes_of(a)[axis] for axis in attrs["a_contract"]]

    def add_product(inner: list[Index], values: list[Value]) -> Sequence[Value]:
        left, right = list(sides[0]), list(sides[1])
        for k, i in enumerate(inner):
            left[attrs["a_contract"][k]] = i
            right[attrs["b_contract"][k]] = i
        return [
            e.registers.multiply_add(values[0], e.at(a, left), e.at(b, right), a.dtype, node.dtype)
        ]

    count = next((c for c in map(lane_count, index) if c is not None), None)
    first = e.registers.neutral("sum", a.dtype, node.dtype, count)
    (total,) = e.loops(sizes, add_product, [first])
    return e.registers.reduced("sum", total, node.dtype)


def fold(e: Elements, node: Node, index: list[Index]) -> Value:
    """The sum of the window elements that lie on an element."""
    (x,) = node.operands
    count = len(node.attrs["sizes"])
    lead = x.rank - 2 * count
    sizes = sizes_of(x)
    counts, window = sizes[lead : lead + count], sizes[lead + count :]
    lanes = next((c for c in map(lane_count, index) if c is not None), None)
    nothing = e.registers.neutral("sum", x.dtype, node.dtype, lanes)
    if not all(counts) or not all(window):
        return e.registers.reduced("sum", nothing, node.dtype)

    def add_window(offsets: list[Index], values: list[Value]) -> Sequence[Value]:
        hits: Value | None = None
        where = []
        for k in range(count):
            stride, dilation = node.attrs["stride"][k], node.attrs["dilation"][k]
            moved = e.indices.sub(index[lead + k], e.indices.mul(offsets[k], dilation))
            position = e.indices.clamp(moved, 0, (counts[k] - 1) * stride)
            hit = e.indices.compare("==", moved, position)
            if stride > 1:
                rest = e.indices.mod(position, stride)
                hit = e.registers.both(hit, e.indices.compare("==", rest, 0))
            hits = e.registers.both(hits, hit)
            where.append(e.indices.div(position, stride))
        value = e.at(x, [*index[:lead], *where, *offsets])
        total = e.registers.combine("sum", values[0], value, x.dtype, node.dtype)
        return [total if hits is None else e.registers.choose(hits, total, values[0])]

    (total,) = e.loops(window, add_window, [nothing])
    return e.registers.reduced("sum", total, node.dtype)
