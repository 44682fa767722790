"""Division of integers that rounds up."""

from __future__ import annotations


def ceil_div(count: int, size: int) -> int:
    """How many pieces of ``size`` it takes to hold ``count``.

    >>> ceil_div(7, 3), ceil_div(6, 3), ceil_div(0, 3)
    (3, 2, 0)
    """
    return -(-count // size)


def round_up(count: int, size: int) -> int:
    """The least multiple of ``size`` that is not below ``count``.

    >>> round_up(7, 3), round_up(6, 3), round_up(0, 3)
    (9, 6, 0)
    """
    return -(-count // size) * size
