"""Checks of the numbers that optimizers and schedules are given; each returns what it checked."""

from __future__ import annotations

import math
import numbers
from typing import Any

from ..graph.errors import ArgumentError


def number(value: Any, what: str) -> float:
    """A finite real number, as a float."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ArgumentError(f"{what} is a number, got {value!r}")
    if not math.isfinite(value):
        raise ArgumentError(f"{what} must be finite, got {value!r}")
    return float(value)


def at_least(value: Any, low: float, what: str) -> float:
    """A number not below ``low``."""
    found = number(value, what)
    if found < low:
        raise ArgumentError(f"{what} must be at least {low:g}, got {value!r}")
    return found


def positive(value: Any, what: str) -> float:
    """A number above 0."""
    found = number(value, what)
    if found <= 0:
        raise ArgumentError(f"{what} must be above 0, got {value!r}")
    return found


def between(value: Any, low: float, high: float, what: str) -> float:
    """A number from ``low`` up to ``high``, which it does not reach."""
    found = number(value, what)
    if not low <= found < high:
        raise ArgumentError(f"{what} must lie in [{low:g}, {high:g}), got {value!r}")
    return found


def count(value: Any, what: str, least: int = 1) -> int:
    """A whole number not below ``least``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ArgumentError(f"{what} is a whole number, got {value!r}")
    if value < least:
        raise ArgumentError(f"{what} must be at least {least}, got {value!r}")
    return int(value)


def truth(value: Any, what: str) -> bool:
    """True or False itself: anything else in its place is likely a misplaced argument."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{what} is True or False, got {value!r}")
    return value
