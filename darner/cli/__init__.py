"""The command ``darner``.

Each subcommand is a module that adds its arguments to the parser and returns an exit code: 0 when it
did what was asked, 2 when the request was wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

EXIT_USAGE = 2


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    from .. import __version__
    from . import ops

    parser = argparse.ArgumentParser(
        prog="darner",
        description="A graph compiler for neural networks.",
        epilog="'darner COMMAND --help' says more about one command.",
    )
    parser.add_argument("--version", action="version", version=f"darner {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    ops.add_command(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough (`darner ops | head`); Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code
