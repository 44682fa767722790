"""Strided lanes: read and written as vectors of everything between them, not one by one.

A gather or scatter takes a cycle or two for every lane, more on some processors. A vector of lanes two elements apart is two vectors of neighbours, every other lane of which is masked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .types import Builder, Type, Value

MOST_APART = 4
"""The largest distance of lanes for which that is quicker."""


def is_near(stride: int, lanes: int, itemsize: int) -> bool:
    """Whether lanes so far apart are best reached so; there are masks for wide vectors of wide elements alone.

    >>> is_near(2, 16, 4), is_near(5, 16, 4), is_near(2, 16, 2)
    (True, False, False)
    """
    return 1 < stride <= MOST_APART and itemsize >= 4 and lanes * itemsize >= 32


def spread(builder: Builder, value: Value, stride: int, part: int) -> Value:
    """The lanes of a vector ``stride`` apart: those that come to lie in the ``part``-th of as many vectors, and 0 between.

    It serves values and masks alike.
    """
    from llvmlite import ir

    lanes = value.type.count
    places = range(part * lanes, (part + 1) * lanes)
    picks = [lanes if place % stride else place // stride for place in places]
    numbers = ir.Constant(ir.VectorType(ir.IntType(32), lanes), picks)
    return builder.shuffle_vector(value, ir.Constant(value.type, None), numbers)


def collect(
    builder: Builder,
    kind: Type,
    stride: int,
    read: Callable[[int, int], Value],
    exactly: bool = False,
) -> Value:
    """The vector whose lanes are every ``stride``-th of what lies behind each other in memory.

    Args:
        builder: where the code goes.
        kind: of the vector.
        stride: the distance of lanes.
        read: gives the vector of a number, which begins so many elements behind the first lane.
        exactly: whether nothing behind the last lane may be read; masks see to that otherwise.
    """
    from llvmlite import ir

    lanes = kind.count
    found = ir.Constant(kind, ir.Undefined)
    for part in range(stride):
        begin = part * lanes
        if exactly and part == stride - 1:
            begin = (lanes - 1) * stride + 1 - lanes
        picks = []
        for lane in range(lanes):
            inside = min(lane * stride // lanes, stride - 1) == part
            picks.append(lanes + lane * stride - begin if inside else lane)
        numbers = ir.Constant(ir.VectorType(ir.IntType(32), lanes), picks)
        found = builder.shuffle_vector(found, read(part, begin), numbers)
    return found


def interleaved(builder: Builder, lines: Sequence[Value]) -> list[Value]:
    """The first lanes of some vectors, then their second ones, and so on, in as many vectors."""
    from llvmlite import ir

    if len(lines) == 1:
        return list(lines)
    kind, count = lines[0].type, len(lines)
    lanes = kind.count
    found = []
    for number in range(count):
        vector = ir.Constant(kind, ir.Undefined)
        for which, line in enumerate(lines):
            picks = []
            for lane in range(lanes):
                place, owner = divmod(number * lanes + lane, count)
                picks.append(lanes + place if owner == which else lane)
            numbers = ir.Constant(ir.VectorType(ir.IntType(32), lanes), picks)
            vector = builder.shuffle_vector(vector, line, numbers)
        found.append(vector)
    return found
