"""What a chat template pays for the filters, tests and methods that it calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any

from .budget import Budget, TooMuchError

DEEP = frozenset(["dictsort", "groupby", "max", "min", "sort", "string", "tojson", "unique"])
"""Filters that look at all that is in a value."""
GONE = frozenset(["pprint", "random", "urlize", "wordwrap", "xmlattr"])
"""Filters of Jinja that chats do without: slow, or different each time."""
_SLOW = frozenset(
    [
        "center",
        "e",
        "escape",
        "forceescape",
        "indent",
        "striptags",
        "title",
        "truncate",
        "urlencode",
        "wordcount",
    ]
)
"""Filters that take long for each character."""


def guarded(budget: Budget, name: str, function: Any, deep: bool) -> Any:
    """A filter or test that is charged for what it looks at and for what it makes."""
    # Some are handed the context, or the like, before the value.
    first = 1 if hasattr(function, "jinja_pass_arg") else 0
    before = _BEFORE.get(name)
    look = budget.look if deep else budget.glance

    @wraps(function)
    def charged(*given: Any, **named: Any) -> Any:
        for value in (*given[first:], *named.values()):
            look(value)
            if name in _SLOW and isinstance(value, str):
                budget.step(len(value) >> 1)
        if before is not None and len(given) > first:
            value = before(budget, *given[first:], **named)
            given = (*given[:first], value, *given[first + 1 :])
        return budget.result(function(*given, **named))

    return charged


def _before_format(budget: Budget, value: Any, *given: Any, **named: Any) -> Any:
    budget.percent(value, [given, named])
    return value


def _before_replace(
    budget: Budget, value: Any, old: Any = "", new: Any = "", *_: Any, **__: Any
) -> Any:
    text, old, new = (
        one if isinstance(one, str) else str(budget.look(one)) for one in (value, old, new)
    )
    budget.replaced(text, old, new)
    return value


def _before_join(budget: Budget, value: Any, d: Any = "", *_: Any, **__: Any) -> Any:
    return budget.joined(d if isinstance(d, str) else str(budget.look(d)), value)


def _before_indent(budget: Budget, value: Any, width: Any = 4, *_: Any, **__: Any) -> Any:
    text = value if isinstance(value, str) else str(budget.look(value))
    wide = width if isinstance(width, int) else len(str(width))
    budget.make(len(text) + (text.count("\n") + 1) * max(wide, 0))
    return value


def _before_many(budget: Budget, value: Any, count: Any = 0, *_: Any, **named: Any) -> Any:
    """Before a filter that makes as much as a number says."""
    for number in (count, *named.values()):
        if isinstance(number, int):
            budget.make(abs(number))
            budget.step(abs(number))
    return value


def _before_round(budget: Budget, value: Any, precision: Any = 0, *_: Any, **__: Any) -> Any:
    if isinstance(precision, int):
        budget.number(4 * abs(precision))
    return value


def _before_sum(budget: Budget, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    if not isinstance(start, int | float):  # lists are copied anew for each that is added
        raise TooMuchError("a sum of what are no numbers")
    return list(budget.counted(value))


def _before_list(budget: Budget, value: Any, *_: Any, **__: Any) -> Any:
    return value if isinstance(value, str | list | tuple) else budget.counted(value)


_BEFORE: dict[str, Callable[..., Any]] = {
    "batch": _before_many,
    "center": _before_many,
    "format": _before_format,
    "indent": _before_indent,
    "join": _before_join,
    "list": _before_list,
    "replace": _before_replace,
    "round": _before_round,
    "slice": _before_many,
    "sum": _before_sum,
}
"""What a filter is charged before it runs, and what it is given instead of its value."""


def charged_call(budget: Budget, function: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Charge for a call, and return what the function is given."""
    budget.step(8)
    for value in given:
        budget.glance(value)
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if isinstance(owner, str | bytes):
        budget.step(len(owner) >> (1 if name in _SLOW else 4))
        if name == "join" and given:
            return (budget.joined(owner, given[0]), *given[1:])
        if name == "replace" and len(given) > 1:
            budget.replaced(owner, given[0], given[1])
        elif name in ("center", "ljust", "rjust", "zfill"):
            budget.make(len(owner) + max((one for one in given if isinstance(one, int)), default=0))
    elif isinstance(owner, list | tuple | range) and name in ("count", "index"):
        budget.look(owner)
        for value in given:
            budget.look(value)
    return given


def as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as ``transformers`` writes it in templates: without the escapes that web pages need."""
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= 16):
        raise TooMuchError(f"an indent of {indent!r}, and not of 0 to 16")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def now(form: str) -> str:
    """The date and the time, by a form of ``strftime``."""
    if len(form) > 100 or re.search(r"%[^a-zA-Z%]*\d", form):
        raise TooMuchError(f"a date in the form {form[:50]!r}")
    return datetime.now().astimezone().strftime(form)
