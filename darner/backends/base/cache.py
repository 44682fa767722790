"""Compiled code on disk, so that what was compiled once is loaded in a millisecond the next time.

An entry is one file, named by a hash of everything its bytes depend on, which whoever keeps it makes: a backend of its code (with ``Machine.key()``,
``keys.py``), a session of a whole build (``session/buildkey.py``). It holds a hash of its own content and name, so damage is noticed.
Entries appear whole or not at all (written beside, then renamed), so any number of processes may
share a folder. The least recently used go first when the folder grows past its limit.

Code that is loaded is run, so entries are believed only where nobody but the user and the system
can have written them (``backends/base/trust.py``).

A cache never makes anything fail: a folder that cannot be written, or is not to be believed, is told
of once, and then done without.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from ...graph.errors import ArgumentError
from .trust import UNFINISHED, Entry, UntrustedError, opened_folder
from .trust import Folder as Opened

_MAGIC = b"darner object 2\n"
_SUFFIX = ".object"
# A file that no writer has renamed for so long belongs to a process that was killed.
_ABANDONED_SECONDS = 3600.0
# What this process was told already: every session makes a cache of its own.
_told: set[tuple[type[CacheWarning], str]] = set()


class CacheWarning(UserWarning):
    """The cache on disk could not be used as asked; results are not affected."""


class CorruptEntryWarning(CacheWarning):
    """A cached object was damaged. It was removed, and is made again."""


class UntrustedCacheWarning(CacheWarning):
    """A cache that somebody else could have written was not used."""


class Folder(enum.Enum):
    """Folders that are known by what they are for."""

    USER = "user"


def default_folder() -> Path | None:
    """Where objects are kept unless told otherwise: ``$XDG_CACHE_HOME/darner/objects``; None for a user who has no home."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    # The convention has relative paths ignored: they would name a place per working directory.
    base = configured if os.path.isabs(configured) else os.path.expanduser("~/.cache")
    return Path(base) / "darner" / "objects" if os.path.isabs(base) else None


class ObjectCache:
    """Object code by key, in a folder of bounded size.

    Args:
        folder: where; the user's cache folder when left out, and None keeps nothing.
        limit_bytes: the most that the folder may hold.

    >>> cache = ObjectCache(None)
    >>> cache.put("key", b"code")
    >>> cache.get("key") is None
    True
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | Folder | None = Folder.USER,
        limit_bytes: int = 512 * 2**20,
    ) -> None:
        if limit_bytes < 0:
            raise ArgumentError(f"limit_bytes is {limit_bytes}, but a size is not negative")
        if isinstance(folder, Folder):
            folder = default_folder()
        self.folder: Path | None = None if folder is None else Path(folder)
        self.limit_bytes = limit_bytes

    def get(self, key: str) -> bytes | None:
        """The object of a key, or None. A damaged one is removed, with a warning."""
        name = self._name(key)
        with self._opened() as folder:
            if folder is None:
                return None
            try:
                data = folder.read(name, self.limit_bytes)
            except UntrustedError as error:
                self._tell(UntrustedCacheWarning, f"a cached object is made again: {error}", name)
                return None
            except OSError:  # not there
                return None
            code = _unsealed(key, data)
            if code is None:
                with contextlib.suppress(OSError):  # a folder shared read-only keeps its damage
                    folder.remove(name)
                warnings.warn(
                    f"cached object {self.folder}/{name} is damaged: it is removed, and made again",
                    CorruptEntryWarning,
                    stacklevel=2,
                )
                return None
            with contextlib.suppress(OSError):  # removed meanwhile, or shared read-only
                folder.touch(name)
            return code

    def put(self, key: str, code: bytes) -> None:
        """Keep an object, and remove the least recently used where the folder grows too large."""
        data, name = _MAGIC + _seal(key, code) + code, self._name(key)
        if len(data) > self.limit_bytes:
            return
        try:
            with self._opened(create=True) as folder:
                if folder is not None:
                    folder.write(name, data)
                    self._trim(folder)
        except OSError as error:
            text = (
                f"objects cannot be cached in {self.folder} ({error.strerror}): "
                "they are compiled each time"
            )
            self._tell(CacheWarning, text)

    def size(self) -> int:
        """Bytes that the entries take.

        >>> ObjectCache(None).size()
        0
        """
        return sum(entry.nbytes for entry in self._entries())

    def clear(self) -> None:
        """Remove every entry."""
        with self._opened() as folder:
            if folder is not None:
                for entry in folder.entries(_SUFFIX):
                    folder.remove(entry.name)

    def _name(self, key: str) -> str:
        if not key.isalnum():
            raise ArgumentError(
                f"'{key}' is not a key of this cache", hint="a key is made of letters and digits"
            )
        return key + _SUFFIX

    @contextlib.contextmanager
    def _opened(self, *, create: bool = False) -> Iterator[Opened | None]:
        """The folder; None where there is none, or it is not to be believed. Only with ``create`` are other faults errors."""
        with contextlib.ExitStack() as held:
            folder = None
            try:
                if self.folder is not None:
                    folder = held.enter_context(opened_folder(self.folder, create=create))
            except UntrustedError as error:
                self._tell(
                    UntrustedCacheWarning, f"the cache in {self.folder} is not used: {error}"
                )
            except OSError:
                if create:
                    raise
            yield folder

    def _tell(self, kind: type[CacheWarning], text: str, name: str = "") -> None:
        """Warn, once in a process for each folder, or each ``name`` in it."""
        told = kind, f"{self.folder}/{name}"
        if told not in _told:
            _told.add(told)
            warnings.warn(text, kind, stacklevel=4)

    def _entries(self) -> list[Entry]:
        with self._opened() as folder:
            return [] if folder is None else folder.entries(_SUFFIX)

    def _trim(self, folder: Opened) -> None:
        entries = folder.entries(_SUFFIX)
        total = sum(entry.nbytes for entry in entries)
        for entry in entries:
            if total <= self.limit_bytes:
                break
            folder.remove(entry.name)
            total -= entry.nbytes
        oldest = time.time_ns() - int(_ABANDONED_SECONDS * 1e9)
        for entry in folder.entries(UNFINISHED):
            if entry.used < oldest:
                folder.remove(entry.name)


def _seal(key: str, code: bytes) -> bytes:
    """A hash of the content and of its name: an entry copied to another name is no entry."""
    return hashlib.sha256(key.encode() + b"\n" + code).digest()


def _unsealed(key: str, data: bytes) -> bytes | None:
    """The code of an entry's bytes, or None where they are not what was written under this key."""
    start = len(_MAGIC) + hashlib.sha256().digest_size
    code = data[start:]
    sealed = data.startswith(_MAGIC) and _seal(key, code) == data[len(_MAGIC) : start]
    return code if sealed else None
