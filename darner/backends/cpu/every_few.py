"""Lanes that lie a few elements apart in memory: read and written by vectors of all that lies between, and not one by one.

Gathering and scattering take a cycle or two for every lane, more on some processors. A vector of lanes two apart is two vectors of neighbours, every other of which is masked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MOST_APART = 4
"""The largest distance of lanes for which that is quicker."""


def is_near(stride: int, lanes: int, itemsize: int) -> bool:
    """Whether lanes so far apart are best reached so; there are masks for wide vectors of wide elements alone.

    >>> is_near(2, 16, 4), is_near(5, 16, 4), is_near(2, 16, 2)
    (True, False, False)
    """
    return 1 < stride <= MOST_APART and itemsize >= 4 and lanes * itemsize >= 32


def spread(builder: Any, value: Any, stride: int, part: int) -> Any:
    """The lanes of a vector ``stride`` apart: those that come to lie in the ``part``-th of as many vectors, and 0 between.

    It serves values and masks alike.
    """
    from llvmlite import ir  # type: ignore[import-untyped]

    lanes = value.type.count
    places = range(part * lanes, (part + 1) * lanes)
    picks = [lanes if place % stride else place // stride for place in places]
    numbers = ir.Constant(ir.VectorType(ir.IntType(32), lanes), picks)
    return builder.shuffle_vector(value, ir.Constant(value.type, None), numbers)


def collect(builder: Any, kind: Any, stride: int, read: Callable[[int], Any]) -> Any:
    """The vector whose lanes are every ``stride``-th of ``stride`` vectors that lie behind each other; ``read`` gives the one of a number."""
    from llvmlite import ir

    lanes = kind.count
    found = ir.Constant(kind, ir.Undefined)
    for part in range(stride):
        picks = []
        for lane in range(lanes):
            vector, place = divmod(lane * stride, lanes)
            picks.append(lanes + place if vector == part else lane)
        numbers = ir.Constant(ir.VectorType(ir.IntType(32), lanes), picks)
        found = builder.shuffle_vector(found, read(part), numbers)
    return found
