"""The JSON files of a model's folder: its configuration, and how it generates text."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..graph.errors import ArgumentError, FormatError
from ..io.atomic import write_atomically
from ..io.reading import read_json, shown

CONFIG = "config.json"
GENERATION = "generation_config.json"


def write_json(path: Path, table: Mapping[str, Any]) -> None:
    """Write a JSON object, its keys in order, so that equal objects give equal bytes."""
    try:
        text = json.dumps(table, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        # A name of a file that is not UTF-8 has lone surrogates: JSON can hold them escaped alone.
        data = text.encode("utf-8", "backslashreplace")
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"what is to be '{path.name}' is no JSON: {error}") from None
    write_atomically(path, [data])


def config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What the ``config.json`` of a model's folder says; it names the architecture by ``model_type``."""
    path = Path(folder).expanduser() / CONFIG
    found = read_json(path)
    kind = found.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise FormatError(
            f"'{path}' has {'no model_type' if kind is None else f'the model_type {shown(kind)}'}",
            hint='it is the name of an architecture, such as "llama"',
        )
    return found


LENGTHS = ("max_length", "max_new_tokens", "min_length", "min_new_tokens", "num_beams")
"""What of a ``generation_config.json`` is a number of tokens or texts."""


def generation_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What the ``generation_config.json`` of a model's folder says; nothing where there is none."""
    path = Path(folder).expanduser() / GENERATION
    found = read_json(path) if os.path.lexists(path) else {}
    for name in LENGTHS:
        value = found.get(name)
        if value is not None and (type(value) is not int or not 0 <= value < 1 << 63):
            raise FormatError(f"'{path}' has {name}={shown(value)}, which is no number of tokens")
    return found
