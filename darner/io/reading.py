"""Files that were written by others: opened once, read by position, and never mapped into memory.

A file that is mapped kills the process (SIGBUS) when somebody cuts it short before its pages are looked at. What is read by
position is an error instead, which names the file and says how much of it is missing.

Everything that a model's folder or a data set holds is opened here, so that no file can make a reader wait (a pipe), go on for
ever (a device), or fill the memory (a text of many gigabytes).

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     with open(f"{folder}/config.json", "w") as file:
...         _ = file.write('{"layers": 2, "layers": 3}')
...     read_json(f"{folder}/config.json")
Traceback (most recent call last):
darner.graph.errors.FormatError: '...config.json' has 'layers' twice
"""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..graph.errors import DarnerError, FormatError
from .atomic import FileError, Path, as_path

MOST_JSON = 32 << 20
"""Bytes of a JSON file; the index of a model of a hundred thousand tensors has 10 million."""
MOST_PARTS = 1_500_000
"""Lists and tables of a JSON text, and entries of tables: each of them takes far more memory and time than its signs."""
_LOOKED_AT = 1 << 16
MOST_DEPTH = 64
"""How deep tables and lists of a JSON file stand in one another."""
_SHOWN = 80


class RegularFile:
    """A file that is open for reading by position; it is closed when nothing refers to it any more.

    It stays the same file when another takes its name. Several threads may read at a time.

    Attributes:
        path: where it was found.
        size: how many bytes it had when it was opened.

    Raises:
        FileError: there is no such file, it is no regular one (a folder, a pipe, a device), or the system will not read it.
    """

    def __init__(self, path: Path) -> None:
        self.path = as_path(path)
        try:
            # A pipe that nobody writes to must not make us wait.
            descriptor = os.open(
                path,
                os.O_RDONLY
                | getattr(os, "O_NONBLOCK", 0)
                | getattr(os, "O_CLOEXEC", 0)
                | getattr(os, "O_BINARY", 0),
            )
            weakref.finalize(self, os.close, descriptor)
            found = os.fstat(descriptor)
            if stat.S_ISDIR(found.st_mode):
                raise IsADirectoryError(errno.EISDIR, "it is a folder")
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
        except OSError as error:
            raise FileError.of("read", path, error) from error
        except ValueError as error:  # a name with a NUL in it
            raise FileError(
                f"cannot read {shown(self.path)}: {error}", self.path, errno.EINVAL
            ) from error
        self.size = found.st_size
        self._descriptor = descriptor
        self._written = found.st_mtime_ns
        self._lock = threading.Lock()

    def read(self, start: int, count: int, what: str = "its content") -> bytes:
        """So many bytes from a position on; ``what`` they are is for the error."""
        room = bytearray(count)
        self.read_into(memoryview(room), start, what)
        return bytes(room)

    def read_into(self, room: memoryview, start: int, what: str = "its content") -> None:
        """Fill memory with the bytes from a position on.

        Raises:
            FormatError: the file ends before: it is shorter than it was.
            FileError: the system will not read it.
        """
        try:
            # Nearly always one call is enough, and small rows are read one by one.
            done = self._read_some(room, start)
            while done < len(room):
                count = self._read_some(room[done:], start + done)
                if not count:
                    raise FormatError(
                        f"'{self.path}' was cut short while it was open: {what} takes {len(room):,} bytes from byte "
                        f"{start:,} on, and {done:,} are there",
                        hint="write it anew beside the old one, and rename it",
                    )
                done += count
        except OSError as error:
            raise FileError.of("read", self.path, error) from error

    def _read_some(self, room: memoryview, start: int) -> int:
        """As much as the system reads in one call, which is at most 2 GiB."""
        if sys.platform == "win32":
            with self._lock, io.FileIO(self._descriptor, closefd=False) as file:
                file.seek(start)
                return file.readinto(room) or 0
        else:
            return os.preadv(self._descriptor, (room,), start)

    def check_unchanged(self) -> None:
        """An error where the file was written to since it was opened, as what is read then belongs to no one file."""
        try:
            found = os.fstat(self._descriptor)
        except OSError as error:
            raise FileError.of("read", self.path, error) from error
        if found.st_size != self.size:
            raise FormatError(
                f"'{self.path}' had {self.size:,} bytes when it was opened, and has {found.st_size:,} now",
                hint="write it anew beside the old one, and rename it",
            )
        if found.st_mtime_ns != self._written:
            raise FormatError(
                f"'{self.path}' was written to since it was opened", hint="open it again"
            )


def physical_memory() -> int:
    """The bytes of memory of this machine; a great many where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 62


def read_whole(path: Path) -> bytes:
    """The whole of a file, if it fits this machine's memory twice."""
    most = physical_memory() // 2
    return read_file(path, most=most, what="what is read into half of this machine's memory")


def read_file(path: Path, *, most: int, what: str = "such a file") -> bytes:
    """The whole of a file that has at most so many bytes; ``what`` it is is for the error."""
    file = RegularFile(path)
    if file.size > most:
        raise FormatError(f"'{file.path}' has {file.size:,} bytes, and {what} has at most {most:,}")
    return file.read(0, file.size)


def read_text(path: Path, *, most: int = MOST_JSON, what: str = "such a text") -> str:
    """A file of UTF-8; an error names the file."""
    return decode(read_file(path, most=most, what=what), f"'{os.fspath(path)}'")


def decode(data: bytes, what: str) -> str:
    """Bytes of UTF-8 as text, with or without a mark of it at their beginning."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"{what} is no text in UTF-8: {error}") from None


def read_json(path: Path, *, halves: bool = False) -> dict[str, Any]:
    """The JSON object in a file; an error names the file. ``halves`` as in ``parse_json``."""
    name = f"'{os.fspath(path)}'"
    data = read_file(path, most=MOST_JSON, what="a file of JSON")
    found = parse_json(data, name, halves=halves)
    if not isinstance(found, dict):
        kind = type(found).__name__
        raise FormatError(f"{name} holds a JSON {kind}, where an object is needed")
    return found


def parse_json(data: bytes, what: str, *, halves: bool = False) -> Any:
    """The JSON in some bytes, which are ``what`` in errors: not too deep, and no table with a name twice.

    Escapes can spell halves of characters, which no file and no terminal takes: they are refused unless allowed.

    >>> parse_json(b"[" * 100_000, "'config.json'")
    Traceback (most recent call last):
    darner.graph.errors.FormatError: 'config.json' has lists and tables more than 64 deep
    """
    text = decode(data, what)
    count = data.count(b"[") + data.count(b"{")
    if count > MOST_DEPTH and _is_deep(data[:_LOOKED_AT] if count > MOST_PARTS else data):
        raise FormatError(f"{what} has lists and tables more than {MOST_DEPTH} deep")
    if max(count, data.count(b":")) > MOST_PARTS:
        raise FormatError(
            f"{what} has more than {MOST_PARTS:,} lists and tables, or entries of tables"
        )

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            raise FormatError(f"{what} has {shown(counts.most_common(1)[0][0])} twice")
        return table

    try:
        found = json.loads(text, object_pairs_hook=unique)
    except FormatError:
        raise
    except ValueError as error:
        raise FormatError(f"{what} is not JSON: {error}") from None
    if not halves and "\\u" in text:
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise FormatError(f"{what} is not JSON: {error}") from None
    return found


def _is_deep(data: bytes) -> bool:
    """Whether brackets outside of strings stand more than `MOST_DEPTH` deep in one another."""
    # What is escaped ends no string. Then every second stretch between quotes is one.
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    signs = np.frombuffer(plain, np.uint8)
    inside = np.bitwise_xor.accumulate(signs == ord('"'))
    step = ((signs == ord("[")) | (signs == ord("{"))).astype(np.int8)
    step -= (signs == ord("]")) | (signs == ord("}"))
    step[inside] = 0
    return bool(np.cumsum(step, dtype=np.int32).max(initial=0) > MOST_DEPTH)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the file before the message of an error about what it says."""
    try:
        yield
    except DarnerError as error:
        if os.fspath(path) not in error.rule:
            error.rule = f"'{os.fspath(path)}': {error.rule}"
            error.args = (error.rule,)
        raise


def shown(value: object) -> str:
    """A value of a file as one short line of an error.

    >>> shown([1] * 1000)
    '[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, ... (3,000 characters)'
    """
    if isinstance(value, int) and abs(value) >= 10**_SHOWN:
        return f"a number of {value.bit_length():,} bits"
    if isinstance(value, list | tuple | dict | str) and len(value) > 100 * _SHOWN:
        return f"a {type(value).__name__} of {len(value):,} items"
    text = repr(value)
    if len(text) <= _SHOWN:
        return text
    return f"{text[: _SHOWN // 2]}... ({len(text):,} characters)"
