"""Ctrl-C while the command ``darner`` starts: one line, as later.

Importing darner takes a few tenths of a second, in which an interrupt would end in the traceback of whatever was being imported. This
module is the first that darner imports; it imports nothing that Python has not loaded, and does something only in a process that is
the command, until ``begun``.
"""

from __future__ import annotations

# What is below ``signal``, which would first import others itself.
import _signal  # type: ignore[import-not-found]
import os
import sys

INTERRUPTED = 130
"""The exit code after Ctrl-C: 128 and the number of the signal, as shells have it."""
SCRIPTS = ("darner", "darner.exe", "darner-script.py")
MODULES = ("darner", "darner.cli", "-mdarner", "-mdarner.cli")

_before: list[object] = []


def is_command(argv: list[str], whole: list[str]) -> bool:
    """Whether a process is the command, by its arguments as Python has them, and as the system has.

    >>> is_command(["/usr/bin/darner", "ops"], []), is_command(["train.py"], ["python", "train.py"])
    (True, False)
    >>> is_command(["-m", "ops"], ["python", "-m", "darner.cli", "ops"])
    True
    """
    name = argv[0] if argv else ""
    # While a package is imported that -m names, this stands in place of the file.
    if name == "-m":
        return any(one in MODULES for one in whole)
    return os.path.basename(name) in SCRIPTS


def _end(number: int, frame: object) -> None:
    """End at once: nothing was begun that would have to be left in order."""
    try:
        os.write(2, b"darner: interrupted\n")
    finally:
        os._exit(INTERRUPTED)


def begun() -> None:
    """The command is there; from now on an interrupt is KeyboardInterrupt again."""
    if _before:
        _signal.signal(_signal.SIGINT, _before.pop())


# Only where Python would raise KeyboardInterrupt: a shell's background jobs ignore interrupts.
_raises = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
if _raises and is_command(getattr(sys, "argv", []), sys.orig_argv):
    _before.append(_signal.signal(_signal.SIGINT, _end))
