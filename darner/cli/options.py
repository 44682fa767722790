"""What the commands have in common: their parsers, options that several take, and how numbers are shown."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from ..backends.base.registry import DEFAULT_DEVICE, built_in
from ..graph.errors import ArgumentError, did_you_mean, nearest
from ..graph.precision import PRECISIONS
from .exits import USAGE
from .streams import read_input, say, text_of

MOST = 2**31 - 1
"""The largest size or number of steps that may be asked for."""
MOST_THREADS = 1024
MOST_SEED = 2**64 - 1


class Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong.

    Attributes:
        commands: the parsers of commands by name, where it is that of all of them.
    """

    commands: Mapping[str, Any]

    def error(self, message: str) -> NoReturn:
        """Wrong usage."""
        say(f"{self.prog}: error: {message} ('{self.prog} --help' shows what there is)")
        sys.exit(USAGE.code)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write help or a version; argparse would not say where that fails."""
        if message:
            (sys.stderr if file is None else file).write(message)

    def must_be_command(self, name: str) -> None:
        """Wrong usage where there is no such command."""
        if name not in self.commands:
            self.error(f"there is no command '{name}'; {nearest(name, self.commands, 'there are')}")

    def unknown(self, argument: str) -> NoReturn:
        """Wrong usage: an argument that nothing takes."""
        name = argument.partition("=")[0]
        if not name.startswith("-"):
            self.error(f"there is one argument too many: '{argument}'")
        known = [option for action in self._actions for option in action.option_strings]
        hint = did_you_mean(name, known)
        self.error(f"there is no option '{name}'{f'; {hint}' if hint else ''}")


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
    # It may stand before the command too: nothing is said of it here where it is not given here.
    parser.add_argument(
        "--traceback",
        action="store_true",
        default=argparse.SUPPRESS,
        help="on an error, show where in darner it was raised",
    )
    parser.set_defaults(run=run, parser=parser)
    return parser


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model that a command is about."""
    parser.add_argument(
        "folder", type=path, metavar="FOLDER", help="a model's folder, or its name on the hub"
    )


def add_machine(parser: argparse.ArgumentParser) -> None:
    """The options that say where sessions run."""
    group = parser.add_argument_group("machine")
    group.add_argument("--threads", type=threads, metavar="N", help="threads (default: one a core)")
    names = ", ".join(row.spelling or row.name for row in built_in())
    group.add_argument(
        "--device", default=DEFAULT_DEVICE, help=f"{names} (default: {DEFAULT_DEVICE})"
    )
    add_precision(group)


def add_precision(group: argparse._ActionsContainer) -> None:
    """The option that says what products are computed in."""
    group.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="what products multiply in, while they add in f32 (default: f32)",
    )


def machine(options: argparse.Namespace) -> dict[str, Any]:
    """The options of sessions that ``add_machine`` reads."""
    return {
        "threads": options.threads,
        "device": options.device,
        "precision": options.precision or "f32",
    }


# --------------------------------------------------------------------------- kinds of arguments


def whole(text: str) -> int:
    """A whole number above 0."""
    return _within(text, 1, MOST)


def count(text: str) -> int:
    """A whole number, or 0."""
    return _within(text, 0, MOST)


def threads(text: str) -> int:
    """A number of threads."""
    return _within(text, 1, MOST_THREADS)


def seed(text: str) -> int:
    """A seed of random numbers."""
    return _within(text, 0, MOST_SEED)


def positive(text: str) -> float:
    """A number above 0."""
    return _number(text, float, lambda value: 0 < value < math.inf, "a number above 0")


def words(text: str) -> str:
    """A text, which is UTF-8."""
    try:
        return text_of(text)
    except UnicodeDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no text in UTF-8: {error}") from None


def path(text: str) -> str:
    """The name of a file or folder, whatever its bytes are."""
    if not text:
        raise argparse.ArgumentTypeError("the name of a file or folder is empty")
    if "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a file or folder")
    return text


def _within(text: str, least: int, most: int) -> int:
    what = f"a whole number from {least} to {most:,}"
    found: int = _number(text, int, lambda value: least <= value <= most, what)
    return found


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
    return [read_input() if text == "-" else text for text in given]


def lines_of(given: Iterable[str]) -> list[str]:
    """Texts of the command line; ``-`` is every line of standard input that is not empty."""
    found: list[str] = []
    for text in given:
        found += [line for line in read_input().splitlines() if line] if text == "-" else [text]
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
