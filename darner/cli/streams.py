"""Standard input, output and error as a command finds them: closed, full, or of an encoding that lacks characters."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from ..graph.errors import FormatError

INPUT = "standard input"


class OutputError(OSError):
    """Standard output cannot be written."""


class Output:
    """Standard output, which says so where it is the one that cannot be written: other files may fail with the same error."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text."""
        with _as_output_error():
            written: int = self._stream.write(text)
        return written

    def flush(self) -> None:
        """Let what is held leave."""
        with _as_output_error():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _as_output_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(error.errno, error.strerror) from error


@contextmanager
def prepared() -> Iterator[None]:
    """Streams that can be used, whatever the process was started with.

    Python has None for a stream that is closed. In its place comes one that fails when it is used, for input and output; for errors,
    one that swallows them. Characters that an encoding lacks are written as a question mark.
    """
    before = {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}
    for number, name in enumerate(before):
        if before[name] is None:
            setattr(sys, name, _in_place_of(number))
    stream: Any = sys.stdout
    errors = getattr(stream, "errors", None)
    replaces = errors in ("strict", "surrogateescape") and hasattr(stream, "reconfigure")
    with ExitStack() as after:
        if replaces:
            stream.reconfigure(errors="replace")
            after.callback(_reconfigure, stream, errors)
        for name, own in before.items():
            after.callback(setattr, sys, name, own)
        setattr(sys, "stdout", Output(stream))
        yield


def _reconfigure(stream: Any, errors: Any) -> None:
    if not stream.closed:
        with suppress(OSError):  # what it held was told of already
            stream.reconfigure(errors=errors)


def _in_place_of(number: int) -> Any:
    """A stream for a closed descriptor, which is taken: a file that is opened later must not get it."""
    try:
        os.fstat(number)
    except OSError:
        # Input that cannot be read, output that cannot be written; what is said besides may be lost.
        flags = os.O_RDONLY if number == 1 else os.O_WRONLY
        taken = os.open(os.devnull, flags)
        if taken != number:
            os.dup2(taken, number)
            os.close(taken)
    return open(number, "r" if number == 0 else "w", closefd=False, errors="replace")


def drop(stream: Any) -> None:
    """Let go of what a stream still holds; at exit Python would try once more to write it, and complain."""
    with suppress(OSError, ValueError):  # no file at all: a test's, or a notebook's
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)


def say(text: object, end: str = "\n") -> None:
    """A line on standard error; where that cannot be written either, nobody is left to be told."""
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except OSError:
        drop(sys.stderr)


def text_of(argument: str) -> str:
    """An argument of the command line as text; where its bytes are none in UTF-8, UnicodeDecodeError.

    What Python could not decode it has as lone surrogates, also where the bytes are UTF-8 and the locale's encoding is not.
    """
    return argument if _is_whole(argument) else os.fsencode(argument).decode("utf-8")


def _is_whole(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def read_input() -> str:
    """All of standard input."""
    with _readable():
        return _decoded(sys.stdin.read())


def read_line() -> str:
    """A line of standard input; empty at its end."""
    with _readable():
        return _decoded(sys.stdin.readline())


def ask(prompt: str) -> str:
    """A line that is typed after a prompt; EOFError where there is none."""
    with _readable():
        return _decoded(input(prompt))


def _decoded(text: str) -> str:
    if _is_whole(text):
        return text
    return text.encode(sys.stdin.encoding or "utf-8", "surrogateescape").decode("utf-8")


@contextmanager
def _readable() -> Iterator[None]:
    from ..io.atomic import FileError

    try:
        yield
    except UnicodeError as error:
        encoding = getattr(error, "encoding", "") or getattr(sys.stdin, "encoding", "utf-8")
        raise FormatError(
            f"{INPUT} is no text in {encoding}: {error}",
            hint="give it as UTF-8, and set PYTHONIOENCODING=utf-8 where the terminal has another encoding",
        ) from error
    except OSError as error:
        raise FileError.of("read", INPUT, error) from error
