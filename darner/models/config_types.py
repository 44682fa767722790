"""Whether the values of a configuration are of the kinds that its fields are: a ``config.json`` may hold anything."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any

from ..graph.errors import ArgumentError

WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    tuple: "a list",
    dict: "an object",
}


def check(what: str, cls: Any, values: Mapping[str, Any]) -> None:
    """Raise an error that names the first field of a dataclass whose value is of another kind; ``what`` is what has them.

    What is null is as if it were not there, where a field may be left out.
    """
    kinds = _kinds(cls)
    for name, value in values.items():
        kind, may_be_none = kinds[name]
        if value is None and may_be_none:
            continue
        if not _fits(value, kind):
            raise ArgumentError(f"{what} has {_shown(value)} for {name}, which is {_words(kind)}")


@cache
def _kinds(cls: Any) -> dict[str, tuple[Any, bool]]:
    """Of each field its type, and whether it has a default."""
    hints = typing.get_type_hints(cls)
    return {
        one.name: (
            hints[one.name],
            one.default is not MISSING or one.default_factory is not MISSING,
        )
        for one in fields(cls)
    }


def _fits(value: Any, kind: Any) -> bool:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in typing.get_args(kind))
    if origin is tuple:
        inner, *rest = typing.get_args(kind)
        if not isinstance(value, tuple):
            return False
        same = all(_fits(item, inner) for item in value)
        return same or (bool(rest) and rest != [...])  # several kinds: those who use it look closer
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind in (bool, str):
        return isinstance(value, kind)
    return kind is not type(None) or value is None


def _words(kind: Any) -> str:
    """A kind for a reader.

    >>> _words(int | None), _words(tuple[int, ...])
    ('a whole number or null', 'a list')
    """
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_words(one) for one in typing.get_args(kind))
    if kind is type(None):
        return "null"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return WORDS[dict]
    return WORDS.get(origin or kind, str(kind))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
