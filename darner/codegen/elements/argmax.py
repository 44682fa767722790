"""``argmax`` and ``argmin``: the index of an extreme, an element at a time or a vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...graph import dtypes
from ...graph.node import Node
from ...lower.specs import sizes
from ..ir.index import Index, Lanes, i64, lane_count
from ..ir.types import Value

if TYPE_CHECKING:
    from .elements import Elements


def arg_reduce(e: Elements, node: Node, index: list[Index]) -> Value:
    """The place of the largest or smallest element; the first of equal ones, and NaN before all."""
    (x,) = node.operands
    axis = node.attrs["axis"]
    length = int(x.size) if axis is None else sizes(x)[axis]
    outer = list(index)
    if axis is not None and node.attrs.get("keepdims"):
        outer.pop(axis)

    def index_at(i: Index) -> list[Index]:
        if axis is None:
            return e.indices.split(i, sizes(x))
        return [*outer[:axis], i, *outer[axis:]]

    single = all(lane_count(i) is None for i in index)
    if single and looks_along(node) and length >= e.width:
        return _arg_reduce_along(e, node, length, index_at)
    first = e.at(x, index_at(0))
    count = lane_count(first)
    start = e.indices.plain(0) if count is None else e.indices.vector(0, count)

    def keep_better(i: Index, values: list[Value]) -> Sequence[Value]:
        best, where = values
        value = e.at(x, index_at(i))
        better = e.registers.beats(node.op.name, value, best, x.dtype)
        here = i64(i) if count is None else e.indices.vector(i, count)
        return [e.registers.choose(better, value, best), e.registers.choose(better, here, where)]

    _, where = e.loop(1, length, keep_better, [first, start])
    return e.registers.of_index(where, node.dtype)


def looks_along(node: Node) -> bool:
    """Whether a node is the place of an extreme along the last axis, whose elements lie side by side."""
    if not node.op.facts.finds:
        return False
    rank, axis = node.operands[0].rank, node.attrs["axis"]
    return axis == rank - 1 or (axis is None and rank == 1)


def _arg_reduce_along(
    e: Elements, node: Node, length: int, position: Callable[[Index], list[Index]]
) -> Value:
    """A vector at a time: every lane keeps its best and the block it was in, and the lanes are compared at the end."""
    (x,), registers = node.operands, e.registers
    vectors = 4 if length >= 16 * e.width else 2 if length >= 8 * e.width else 1
    name, count = node.op.name, e.width * vectors

    def better(value: Value, best: Value) -> Value:
        return registers.beats(name, value, best, x.dtype)

    def keep_better(lanes: Lanes, values: list[Value]) -> Sequence[Value]:
        best, where = values
        value = e.indices.spread(e.at(x, position(lanes)), count)
        found = registers.both(e.mask, better(value, best))
        here = registers.cast(i64(lanes.start), dtypes.i64, dtypes.i32)
        return [registers.choose(found, value, best), registers.choose(found, here, where)]

    first = registers.least(name, x.dtype, count)
    nothing = registers.constant(0, dtypes.i32, count)
    best, where = e.blocks(0, length, count, keep_better, [first, nothing])
    numbers = registers.cast(e.indices.vector(Lanes(0, count), count), dtypes.i64, dtypes.i32)
    where = e.builder.add(where, numbers)
    while count > 1:
        count //= 2
        low, high = range(count), range(count, 2 * count)
        (a, b), (i, j) = (
            [registers.picked(item, some) for some in (low, high)] for item in (best, where)
        )
        # Of equal ones the first wins.
        same = e.builder.not_(better(a, b))
        before = e.builder.icmp_signed("<", j, i)
        other = e.builder.or_(better(b, a), e.builder.and_(same, before))
        best, where = registers.choose(other, b, a), registers.choose(other, j, i)
    found = e.builder.extract_element(where, registers.lane_number(0))
    return registers.cast(found, dtypes.i32, node.dtype)
