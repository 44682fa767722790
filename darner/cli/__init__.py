"""The command ``darner``.

Each subcommand is a module that adds its arguments to the parser and returns an exit code; ``exits`` has a table of them. What a
command needs is imported when it runs. Whatever goes wrong comes to ``main``, which says it in one line.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from .._start import begun
from .._version import __version__
from .exits import DONE, FAILED, STOPPED, UNHEARD, USAGE, exit_of, line_of
from .options import Parser
from .streams import OutputError, drop, prepared, say

EXIT_FAILED = FAILED.code
EXIT_USAGE = USAGE.code
EXIT_INTERRUPTED = STOPPED.code

COMMANDS = ("train", "write", "chat", "embed", "inspect", "doctor", "bench", "ops")
"""The modules of the commands, in the order that they are listed."""
TRACEBACK = "--traceback"


def make_parser() -> Parser:
    """The parser of the whole command line."""
    parser = Parser(
        prog="darner",
        description="A graph compiler for neural networks.",
        epilog="'darner COMMAND --help' says more about one command.",
    )
    parser.add_argument("--version", action="version", version=f"darner {__version__}")
    parser.add_argument(
        TRACEBACK, action="store_true", help="on an error, show where in darner it was raised"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in COMMANDS:
        import_module(f".{name}", __name__).add_command(commands)
    parser.commands = commands.choices
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Wrong usage, ``--help`` and ``--version`` raise SystemExit."""
    begun()
    given = list(sys.argv[1:] if argv is None else argv)
    with prepared():
        return _Command(given).carry_out()


class _Command:
    """One command line, and what becomes of it."""

    def __init__(self, given: list[str]) -> None:
        self.given = given
        self.name = "darner"
        self.traceback = False

    def carry_out(self) -> int:
        """Run it, and say in one line what went wrong."""
        ended: SystemExit | None = None
        try:
            try:
                code = self._run()
            except SystemExit as stop:
                ended, code = stop, DONE.code
            sys.stdout.flush()
        except BaseException as error:
            return self._failed(error)
        if ended is not None:
            raise ended
        return code

    def _run(self) -> int:
        arguments = self._parsed()
        self.name, self.traceback = arguments.parser.prog, arguments.traceback
        with _warnings_in_a_line(self.name):
            code: int = arguments.run(arguments)
        return code

    def _parsed(self) -> argparse.Namespace:
        given = list(self.given)
        first = next((i for i, one in enumerate(given) if not one.startswith("-")), None)
        if first is not None and given[first] == "bench":
            others = given[first + 1 :]
            if others[:1] not in (["-h"], ["--help"]):
                given[first + 1 :] = ["--", *others]  # all that follows is another program's
        parser = make_parser()
        if first is not None:
            parser.must_be_command(given[first])
        arguments, unknown = parser.parse_known_args(given)
        chosen = getattr(arguments, "parser", parser)
        if unknown:
            chosen.unknown(unknown[0])
        if chosen is parser:
            parser.error(f"which command? there are {', '.join(parser.commands)}")
        return arguments

    def _failed(self, error: BaseException) -> int:
        found = exit_of(error)
        if isinstance(error, OutputError):
            drop(sys.stdout)
        if found not in (DONE, UNHEARD):
            if self.traceback:
                import traceback

                say("".join(traceback.format_exception(error)).rstrip())
            say(f"{self.name}: {line_of(error)}")
        return found.code


@contextmanager
def _warnings_in_a_line(name: str) -> Iterator[None]:
    """Warnings as a line each, without the line of darner's code that gave them."""
    with warnings.catch_warnings():

        def show(message: Any, *where: Any, **others: Any) -> None:
            say(f"{name}: warning: {' '.join(str(message).split())}")

        warnings.showwarning = show
        yield
