"""Names that users of PyTorch, JAX, NumPy and Keras bring along, and what they are here: one table of data (``table``).

Each place where a name can be unknown (an attribute of a node, an argument of an op, a layer, an optimizer ...) has rows
of *foreign name: how it is written here*. Errors show them as hints; a test checks that every name on the right exists.

    >>> hint("tensor", "permute")
    'write x.transpose((0, 2, 1))'
    >>> hint("optimizer argument", "lr")
    'write learning_rate='

Few foreign names are taken as they are: arguments that mean the same in all of them (``ALIASES``), ``x.ndim``, NumPy's
element-wise functions on nodes (``UFUNCS``), element types of other libraries.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

from ..errors import MissingNameError, UnknownNameError, did_you_mean, nearest
from .table import ALIASES, HABITS, INPUT_HINTS, INPUTS

_ARGUMENT = re.compile(r"\b(\w+)=(?!=)")


def hint(place: str, name: str, known: Iterable[str] = ()) -> str | None:
    """What to write for a name that is not there: by the table, else the nearest of the ``known``."""
    written = HABITS[place].get(name)
    names = list(known)
    arguments = _ARGUMENT.findall(written or "") if place.endswith("argument") else []
    if arguments and names and not any(item in names for item in arguments):
        written = None  # an argument of others
    if written is None and place == "tensor" and name.endswith("_") and name[:-1] in names:
        return f"nodes do not change: write x = x.{name[:-1]}()"
    if written is None:
        return did_you_mean(name, names)
    if written.startswith("nothing:"):
        return written.replace("nothing:", "drop it:")
    return written.removeprefix(": ") if written.startswith(": ") else f"write {written}"


def renamed(keywords: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Keywords with aliases under the names that an op has for them."""
    found = {}
    for name, value in keywords.items():
        if name in ALIASES and name not in known:
            ours = next((other for other in ALIASES[name] if other in known), name)
            found[name if ours in keywords else ours] = value
        else:
            found[name] = value
    return found


def missing(place: str, what: str, name: str, known: Iterable[str] = ()) -> MissingNameError:
    """The error for an attribute that is not there: ``what`` has it not."""
    return MissingNameError(f"{what} '{name}'", partial(hint, place, name, tuple(known)))


def input_name(name: Any, inputs: Collection[str]) -> str:
    """The input that a name means: itself, or the one that HuggingFace calls so."""
    if isinstance(name, str):
        if name in inputs:
            return name
        if (ours := INPUTS.get(name)) is not None and ours in inputs:
            return ours
    found = INPUT_HINTS.get(str(name)) or nearest(str(name), inputs)
    raise UnknownNameError(f"there is no input {name!r}", hint=found)
