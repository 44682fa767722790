"""Typical calls of an op, written beside it.

From these the tests of every op, transform and backend are made, so a good set has odd sizes, sizes 0 and
1, broadcasting, negative axes, and every option:

    samples=[sample(spec(3, 5), axis=-1), sample(spec(2, 0, 4), axis=0)]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (0,), (7,), (3, 5), (2, 0, 3), (2, 3, 4))
PAIRS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((), ()),
    ((7,), (7,)),
    ((3, 5), (5,)),
    ((3, 1), (1, 5)),
    ((4,), ()),
    ((0, 3), (1, 3)),
    ((2, 1, 4), (3, 1)),
)


@dataclass(frozen=True)
class Spec:
    """A tensor to be made for a test.

    Attributes:
        kind: ``float`` tensors are tried in every float type, and so are ``definite`` ones (symmetric positive
            definite matrices); ``int``, ``bool`` are what they say.
        distinct: no two elements are close, for ops whose answer changes at ties.
        dtype: a fixed element type instead of the one under test.
    """

    shape: tuple[int, ...]
    low: float = -2.0
    high: float = 2.0
    kind: str = "float"
    distinct: bool = False
    dtype: str | None = None


@dataclass(frozen=True)
class Sample:
    """One call: ``Spec`` where a node goes, attributes as they are."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def spec(
    *shape: int,
    low: float = -2.0,
    high: float = 2.0,
    kind: str = "float",
    distinct: bool = False,
    dtype: str | None = None,
) -> Spec:
    """A tensor of a shape with values between ``low`` and ``high``."""
    return Spec(shape, low, high, kind, distinct, dtype)


def ints(*shape: int, high: int, low: int = 0, dtype: str = "i32") -> Spec:
    """Integers in ``low <= n < high``, such as indices."""
    return Spec(shape, low, high, "int", dtype=dtype)


def bools(*shape: int) -> Spec:
    """True or False, evenly."""
    return Spec(shape, kind="bool")


def sample(*args: Any, **kwargs: Any) -> Sample:
    """One call of the op."""
    return Sample(args, kwargs)


def uniform(low: float = -2.0, high: float = 2.0, **kwargs: Any) -> list[Sample]:
    """Calls of a one-operand op over the usual shapes."""
    return [sample(spec(*shape, low=low, high=high), **kwargs) for shape in SHAPES]


def pairs(
    low: float = -2.0, high: float = 2.0, second: Iterable[float] = (), **kwargs: Any
) -> list[Sample]:
    """Calls of a two-operand op over the usual broadcasts; ``second`` is the other's range."""
    low2, high2 = tuple(second) or (low, high)
    return [
        sample(spec(*a, low=low, high=high), spec(*b, low=low2, high=high2), **kwargs)
        for a, b in PAIRS
    ]
