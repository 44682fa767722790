"""The command ``darner``.

Each subcommand is a module that adds its arguments to the parser and returns an exit code: 0 when it did what was asked, 1 when it
failed, 2 when the request was wrong, 130 when it was interrupted. What a command needs is imported when it runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

COMMANDS = ("train", "write", "chat", "embed", "inspect", "doctor", "bench", "ops")
"""The modules of the commands, in the order that they are listed."""


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    from .. import __version__

    parser = argparse.ArgumentParser(
        prog="darner",
        description="A graph compiler for neural networks.",
        epilog="'darner COMMAND --help' says more about one command.",
    )
    parser.add_argument("--version", action="version", version=f"darner {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        import_module(f".{name}", __name__).add_command(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    from ..graph.errors import DarnerError

    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["bench"] and given[1:2] not in (["-h"], ["--help"]):
        given[1:1] = ["--"]  # all that follows is another program's
    arguments = make_parser().parse_args(given)
    name = arguments.parser.prog
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough (`darner ops | head`); Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except DarnerError as error:
        if arguments.traceback:
            raise
        # The line that called darner is the command's own, as is the method, unless it is an op with its operands.
        error.source = None
        if not error.operands:
            error.op = None
        print(f"{name}: {error}", file=sys.stderr)
        return EXIT_FAILED
    return code
