"""Elements that are sums of others: reductions, products of matrices and folded windows, as loops within the code of an element."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...graph.node import Node
from ...lower.specs import sizes as sizes_of
from ..ir.index import Number, lane_count

if TYPE_CHECKING:
    from .elements import Elements


def reduce(e: Elements, node: Node, index: list[Number]) -> Any:
    """A reduction: of lanes side by side where elements of the last axis are, else in each lane."""
    (x,) = node.operands
    axes, sizes, name = node.attrs["axes"], sizes_of(x), node.op.name
    kept = [k for k in range(x.rank) if k not in axes]
    outer = [index[k] for k in kept] if node.attrs["keepdims"] else list(index)

    def place(inner: Sequence[Number]) -> list[Number]:
        result: list[Number] = [0] * x.rank
        pairs = itertools.chain(zip(kept, outer, strict=True), zip(axes, inner, strict=True))
        for axis, i in pairs:
            result[axis] = i
        return result

    def combined(inner: Sequence[Number], total: Any) -> Any:
        value = e.at(x, place(inner))
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


def dot_general(e: Elements, node: Node, index: list[Number]) -> Any:
    """An element of a product of matrices."""
    a, b = node.operands
    attrs = node.attrs
    batch = len(attrs["a_batch"])
    sides = []
    at = batch
    for side, operand in (("a", a), ("b", b)):
        used = (*attrs[f"{side}_batch"], *attrs[f"{side}_contract"])
        free = [k for k in range(operand.rank) if k not in used]
        place: list[Number] = [0] * operand.rank
        for axis, i in zip(attrs[f"{side}_batch"], index[:batch], strict=True):
            place[axis] = i
        for axis, i in zip(free, index[at : at + len(free)], strict=True):
            place[axis] = i
        at += len(free)
        sides.append(place)
    sizes = [sizes_of(a)[axis] for axis in attrs["a_contract"]]

    def inside(inner: list[Any], values: list[Any]) -> Sequence[Any]:
        left, right = list(sides[0]), list(sides[1])
        for k, i in enumerate(inner):
            left[attrs["a_contract"][k]] = i
            right[attrs["b_contract"][k]] = i
        return [
            e.registers.multiply_add(values[0], e.at(a, left), e.at(b, right), a.dtype, node.dtype)
        ]

    count = next((c for c in map(lane_count, index) if c is not None), None)
    first = e.registers.neutral("sum", a.dtype, node.dtype, count)
    (total,) = e.loops(sizes, inside, [first])
    return e.registers.reduced("sum", total, node.dtype)


def fold(e: Elements, node: Node, index: list[Number]) -> Any:
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

    def inside(offsets: list[Any], values: list[Any]) -> Sequence[Any]:
        hits: Any = None
        where = []
        for k in range(count):
            stride, dilation = node.attrs["stride"][k], node.attrs["dilation"][k]
            moved = e.places.sub(index[lead + k], e.places.mul(offsets[k], dilation))
            place = e.places.clamp(moved, 0, (counts[k] - 1) * stride)
            hit = e.places.compare("==", moved, place)
            if stride > 1:
                rest = e.places.mod(place, stride)
                hit = e.registers.both(hit, e.places.compare("==", rest, 0))
            hits = e.registers.both(hits, hit)
            where.append(e.places.div(place, stride))
        value = e.at(x, [*index[:lead], *where, *offsets])
        total = e.registers.combine("sum", values[0], value, x.dtype, node.dtype)
        return [e.registers.choose(hits, total, values[0])]

    (total,) = e.loops(window, inside, [nothing])
    return e.registers.reduced("sum", total, node.dtype)
