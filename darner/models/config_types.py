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
        low, high = _bounds(name)
        if isinstance(value, int) and not low <= value <= high:
            raise ArgumentError(f"{what} has {value} for {name}, which is from {low:,} to {high:,}")


def part(what: str, found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The configuration of a part of a model, by its name in that of the whole; empty where it has none."""
    value = found.get(name) or {}
    if not isinstance(value, Mapping):
        raise ArgumentError(f"{what} has {_shown(value)} for {name}, which is {WORDS[dict]}")
    return value


def _bounds(name: str) -> tuple[int, int]:
    """The least and the most that a number can be, by the name of its field: there are no models of fewer or more."""
    if name.endswith(_LAYERS) and name != "num_expert_layers":
        return 0, 10_000
    if name.endswith(_SIZES) and name != "type_vocab_size":
        return 1, 2**31 - 1
    return -(2**63), 2**63 - 1


_LAYERS = ("layers", "n_layer", "layers_per_block")
_SIZES = ("heads", "n_head", "n_embd", "d_model", "hidden_size", "intermediate_size", "vocab_size")


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
