"""What everything that is kept on disk is keyed by: the machine that it was made for, and darner's own code."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Set
from dataclasses import fields
from functools import cache
from typing import Any, cast

from ..._version import __version__
from ...graph.errors import PACKAGE, InternalError


class Keyed:
    """A dataclass that is known by all its fields."""

    __slots__ = ()

    def key(self) -> str:
        """All fields as text, the same in every process for equal values, and another where any of them differs.

        Fields are taken as they were declared: one that is added is part of the key.

        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Machine(Keyed):
        ...     cores: int
        >>> Machine(2).key()
        '["Machine", {"cores": 2}]'
        """
        values = {item.name: getattr(self, item.name) for item in fields(cast(Any, self))}
        return json.dumps([type(self).__qualname__, {k: _plain(v) for k, v in values.items()}])


def kept_key(what: str, machine: Keyed) -> str:
    """The name under which something is kept of a machine and this version of darner."""
    return hashlib.sha256(f"{what} {__version__} {machine.key()}".encode()).hexdigest()


def _plain(value: Any) -> Any:
    """A value as JSON has it, the same for equal values whatever the order they were made in."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Set):
        return sorted(_plain(item) for item in value)
    if isinstance(value, Mapping):
        return sorted([_plain(key), _plain(item)] for key, item in value.items())
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    raise InternalError(f"a key cannot hold {value!r}, which may print alike for different values")


@cache
def source_digest() -> str:
    """A hash of darner's own code: what it made before a change is not what it makes after."""
    # Every start reads all of it: paths as text take half the time that objects do.
    digest, files = hashlib.sha256(), []
    for folder, _, names in os.walk(PACKAGE):
        files += [os.path.join(folder, name) for name in names if name.endswith(".py")]
    for path in sorted(files):
        with open(path, "rb", buffering=0) as file:
            content = file.read()
        digest.update(f"{path[len(PACKAGE) :]} {len(content)}\n".encode() + content)
    return digest.hexdigest()
