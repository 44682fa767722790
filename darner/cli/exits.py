"""How a command ends: its exit code, and the one line that says why.

The table below is the only place that knows the codes; ``docs/cli.md`` has it too, and a test compares the two.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from itertools import pairwise

from .._start import INTERRUPTED
from ..graph.errors import DarnerError, InternalError, MissingPackageError
from .streams import OutputError

MOST = 700
"""Characters of a line that says what went wrong; the whole of a longer text comes with the traceback."""
REPORT = "--traceback shows where; please report it with that"
LESS = "fewer or shorter texts at once (--batch, --length), or a smaller model, take less"


@dataclass(frozen=True)
class Exit:
    """A way to end.

    Attributes:
        code: the exit code.
        meaning: for the documentation.
        kinds: the exceptions that end so.
    """

    code: int
    meaning: str
    kinds: tuple[type[BaseException], ...] = ()


DONE = Exit(0, "it is done; or whoever read the output has seen enough (`darner ops \\| head`)")
FAILED = Exit(
    1, "what was asked for cannot be done: a model, a text or a value does not fit", (DarnerError,)
)
USAGE = Exit(2, "wrong usage: an unknown command or option, or a wrong value of one")
FILE = Exit(
    3,
    "a file or stream cannot be read or written: not there, no permission, a full disk",
    (OSError,),
)
PACKAGE = Exit(
    4,
    "a package is not installed; the line has the command that installs it",
    (MissingPackageError, ImportError),
)
MEMORY = Exit(5, "there is not enough memory", (MemoryError,))
FAULT = Exit(
    70,
    "a fault of darner itself, which is worth a report with `--traceback`",
    (InternalError,),
)
STOPPED = Exit(INTERRUPTED, "Ctrl-C; `darner train` has saved training", (KeyboardInterrupt,))
UNHEARD = Exit(
    141, "whoever read what a command has to say besides its output is gone", (BrokenPipeError,)
)
TERMINATED = Exit(143, "`darner train` was told to end (SIGTERM), and has saved training")

EXITS = (DONE, FAILED, USAGE, FILE, PACKAGE, MEMORY, FAULT, STOPPED, UNHEARD, TERMINATED)
"""All of them, by their codes."""

_ORDER = (STOPPED, UNHEARD, PACKAGE, MEMORY, FAULT, FILE, FAILED)
"""Which is looked at first, where an exception is of several kinds; what is of none is a fault."""


def exit_of(error: BaseException) -> Exit:
    """How a command ends that raised this.

    >>> exit_of(FileNotFoundError()).code, exit_of(KeyError()).code, exit_of(InternalError("x")).code
    (3, 70, 70)
    """
    if isinstance(error, OutputError) and error.errno == errno.EPIPE:
        return DONE  # the reader of a result has seen enough; what else is said may not be missed
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return MEMORY
    return next((one for one in _ORDER if isinstance(error, one.kinds)), FAULT)


def line_of(error: BaseException) -> str:
    """What an error says, for whoever typed the command: in one line."""
    return _one_line(_text(error, exit_of(error)))


def _text(error: BaseException, found: Exit) -> str:
    if found is STOPPED:
        return "interrupted"
    if isinstance(error, DarnerError):
        # The line that called darner is the command's own, as is the method, unless it is an op with its operands.
        error.source = None
        if not error.operands:
            error.op = None
        return f"a fault of darner: {error}; {REPORT}" if found is FAULT else str(error)
    text = str(error)
    if found is MEMORY:
        said = error.strerror if isinstance(error, OSError) else text
        return f"there is not enough memory{f': {said}' if said else ''}; {LESS}"
    if isinstance(error, OSError):
        cause = error.strerror or text or type(error).__name__
        if isinstance(error, OutputError):
            return f"cannot write standard output: {cause}"
        if error.filename is None:
            return f"cannot go on: {cause}"
        return f"cannot use '{os.fsdecode(error.filename)}': {cause}"
    if found is PACKAGE:
        return f"a package cannot be imported: {text}; 'darner doctor' says which are missing"
    return f"a fault of darner: {type(error).__name__}{f': {text}' if text else ''}; {REPORT}"


def _one_line(text: str) -> str:
    r"""Lines as one, cut where it is too long for a reader.

    >>> _one_line("two do not fit:\n  a  f32[2]\n  b  f32[3]\n")
    'two do not fit: a f32[2], b f32[3]'
    """
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    shown = text.strip()
    if len(lines) > 1:
        shown = lines[0]
        for before, line in pairwise(lines):
            shown += f" {line}" if before.endswith((":", ";", ",")) else f", {line}"
    if len(shown) > MOST:
        shown = f"{shown[:MOST]} ... (--traceback shows all of it)"
    return shown
