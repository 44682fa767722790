"""Attributes as text: what makes two terms equal, and what a dumped program shows."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import Any

from ..attributes import Attribute, Pool
from ..data import Data
from ..op import Op

_encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False).encode


def attribute_text(op: Op, attrs: dict[str, Any]) -> str:
    """The attributes of a node in one text: equal texts, equal attributes, to the sign of a zero."""
    if not op.attributes:
        return ""
    values = tuple(attrs.values())
    if any(isinstance(value, Data) for value in values):  # large: not to be kept alive here
        return _write(op, values)
    signs = tuple([math.copysign(1, value) for value in values if isinstance(value, float)])
    return _text(op, values, signs)


@lru_cache(maxsize=20_000)
def _text(op: Op, values: tuple[Any, ...], signs: tuple[float, ...]) -> str:
    return _write(op, values)


def _write(op: Op, values: tuple[Any, ...]) -> str:
    pool = Pool()
    parts = []
    for param, value in zip(op.attributes, values, strict=True):
        if value is None or not isinstance(param.kind, Attribute):
            shown = None
        else:
            shown = param.kind.encode(value, pool)
        # A constant's numbers alone do not tell its element type.
        kind = f" : {value.type}" if isinstance(value, Data) else ""
        parts.append(f"{param.name}={_encode(shown)}{kind}")
    return " ".join(parts)


def quoted(text: str) -> str:
    """A text as egglog writes it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
