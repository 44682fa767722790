"""What a checkpoint states of training, checked: each function returns the value, or says what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..graph.errors import FormatError


def table(value: Any, what: str) -> Mapping[str, Any]:
    """A table of values by name."""
    if not isinstance(value, Mapping):
        raise FormatError(f"{what} should be a table, not {_shown(value)}")
    return value


def entry(values: Mapping[str, Any], name: str) -> Any:
    """A value of a table that has to have it."""
    if name not in values:
        raise FormatError(f"there is no '{name}'")
    return values[name]


def items(value: Any, what: str, length: int | None = None) -> list[Any]:
    """A list, of so many items where that is said."""
    if not isinstance(value, list | tuple) or (length is not None and len(value) != length):
        count = "" if length is None else f" of {length}"
        raise FormatError(f"{what} should be a list{count}, not {_shown(value)}")
    return list(value)


def whole(value: Any, what: str, high: int | None = None) -> int:
    """A whole number from 0, up to ``high`` where that is said."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise FormatError(f"{what} should be a whole number, not {_shown(value)}")
    if high is not None and value > high:
        raise FormatError(f"{what} is {value}, but {high} at most can be")
    return value


def number(value: Any, what: str) -> float:
    """A number; NaN and infinities are ones."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FormatError(f"{what} should be a number, not {_shown(value)}")
    try:
        return float(value)
    except OverflowError:
        raise FormatError(f"{what} is {_shown(value)}, which no float holds") from None


def text(value: Any, what: str) -> str:
    """A text."""
    if not isinstance(value, str):
        raise FormatError(f"{what} should be text, not {_shown(value)}")
    return value


def truth(value: Any, what: str) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise FormatError(f"{what} should be true or false, not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    found = ascii(value)
    return found if len(found) <= 40 else f"{found[:37]}..."
