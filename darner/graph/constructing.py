"""How layers and optimizers are made: wrong arguments are answered in the words of the user's old library.

>>> from darner import nn
>>> nn.Linear(8, 3)
Traceback (most recent call last):
darner.graph.errors.CallError: Linear: the name comes first, got 8; write nn.Linear("name", 8, 3): parameters are called after it (...)
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from abc import ABCMeta
from types import FrameType
from typing import Any

from .errors import PACKAGE, CallError, DarnerError, Source
from .habits import hints

_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'.*")


class Constructed(ABCMeta):
    """The class of dataclasses that users make by hand. Errors of a call name the class and the user's line.

    Attributes:
        _habits: the place in the table of foreign names where arguments are looked up.
    """

    _habits: str

    @property
    def __signature__(cls) -> inspect.Signature:
        """That of the fields, for editors and ``help``."""
        whole = inspect.signature(cls.__init__)  # type: ignore[misc]
        return whole.replace(parameters=list(whole.parameters.values())[1:])

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make one; see the module's text."""
        try:
            _check_name(cls, args, kwargs)
            return super().__call__(*args, **kwargs)
        except DarnerError as error:
            error.located(cls.__name__, _label(cls, args, kwargs), "", caller_of_constructor())
            raise
        except TypeError as error:
            whose, _, text = str(error).partition(".__init__() ")
            if whose not in {one.__name__ for one in cls.__mro__}:  # of a call further in
                raise
            found = _explained(cls, text)
            label = _label(cls, args, kwargs)
            raise found.located(cls.__name__, label, "", caller_of_constructor()) from None


def _names(cls: Any) -> list[str]:
    return [item.name for item in dataclasses.fields(cls) if item.init]


def _label(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The name that a layer is given."""
    if _names(cls)[:1] != ["name"]:
        return None
    given = args[0] if args else kwargs.get("name")
    return given if isinstance(given, str) else None


def signature(cls: Any) -> str:
    """The call of a class as its fields say, those by position first."""
    fields = sorted(
        (item for item in dataclasses.fields(cls) if item.init), key=lambda f: f.kw_only is True
    )
    return f"{cls.__name__}({', '.join(map(_shown, fields))})"


def _shown(item: dataclasses.Field[Any]) -> str:
    if item.default is not dataclasses.MISSING:
        return f"{item.name}={item.default!r}"
    return item.name if item.default_factory is dataclasses.MISSING else f"{item.name}=..."


def _check_name(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    names = _names(cls)
    if not names or names[0] != "name":
        return
    given = args[0] if args else kwargs.get("name", "")
    unknown = next((name for name in kwargs if name not in names), None)
    if unknown is None and not isinstance(given, str):
        module = cls.__module__.split(".")[1] if cls.__module__.startswith("darner.") else ""
        spelled = f"{module}.{cls.__name__}" if module else cls.__name__
        shown = ['"name"', *map(repr, args), *(f"{key}={kwargs[key]!r}" for key in kwargs)]
        raise CallError(
            f"the name comes first, got {given!r}",
            hint=f"write {spelled}({', '.join(shown)}): parameters are called after it",
        )


def _explained(cls: Any, text: str) -> CallError:
    found = None
    if (unknown := _UNEXPECTED.fullmatch(text)) is not None:
        text = f"has no argument '{unknown[1]}'"
        found = hints.hint(cls._habits, unknown[1], _names(cls))
    return CallError(text, hint=found or f"the call is {signature(cls)}")


def caller_of_constructor() -> Source | None:
    """The user's line, beyond the ``__init__`` that dataclasses generate, which has no file, and their ``replace``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        generated = code.co_filename == "<string>" and code.co_name == "__init__"
        replaced = code.co_filename == dataclasses.__file__
        if not (generated or replaced) and not code.co_filename.startswith(PACKAGE):
            return Source(code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None
