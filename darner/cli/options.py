"""What the commands have in common: their parsers, options that several take, and how numbers are shown."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ..graph.errors import ArgumentError


def new_parser(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], **texts: Any
) -> argparse.ArgumentParser:
    """The parser of a command; ``help``, ``description`` and ``example`` say what it does."""
    example = texts.pop("example", "")
    after = texts.pop("epilog", "")
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        epilog=(f"example:\n{example}" if example else "") + (f"\n\n{after}" if after else ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **texts,
    )
    parser.add_argument(
        "--traceback", action="store_true", help="on an error, show where in darner it was raised"
    )
    parser.set_defaults(run=run, parser=parser)
    return parser


def add_machine(parser: argparse.ArgumentParser) -> None:
    """The options that say where sessions run."""
    group = parser.add_argument_group("machine")
    group.add_argument("--threads", type=whole, metavar="N", help="threads (default: one a core)")
    group.add_argument("--device", default="cpu", help="cpu, or reference (slow) (default: cpu)")


def machine(options: argparse.Namespace) -> dict[str, Any]:
    """The options of sessions that ``add_machine`` reads."""
    return {"threads": options.threads, "device": options.device}


# --------------------------------------------------------------------------- kinds of arguments


def whole(text: str) -> int:
    """A whole number above 0."""
    return _number(text, int, lambda value: value > 0, "a whole number above 0")


def count(text: str) -> int:
    """A whole number, or 0."""
    return _number(text, int, lambda value: value >= 0, "a whole number")


def positive(text: str) -> float:
    """A number above 0."""
    return _number(text, float, lambda value: 0 < value < math.inf, "a number above 0")


def _number(text: str, kind: Callable[[str], Any], holds: Callable[[Any], bool], what: str) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not holds(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value


def texts(given: Iterable[str]) -> list[str]:
    """Texts of the command line; ``-`` is what standard input has."""
    return [sys.stdin.read() if text == "-" else text for text in given]


def lines_of(given: Iterable[str]) -> list[str]:
    """Texts of the command line; ``-`` is every line of standard input that is not empty."""
    found: list[str] = []
    for text in given:
        found += [line for line in sys.stdin.read().splitlines() if line] if text == "-" else [text]
    if not found:
        raise ArgumentError("there is no text")
    return found


# --------------------------------------------------------------------------- results


def print_json(value: Any) -> None:
    """A result as JSON, for other programs."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def rate(amount: float, seconds: float) -> str:
    """So many a second, with three digits.

    >>> rate(1234, 0.5), rate(1, 3), rate(3, 0)
    ('2,470', '0.333', '-')
    """
    if seconds <= 0:
        return "-"
    value = amount / seconds
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"
