"""Object code on disk, so that what was compiled once is loaded in a millisecond the next time.

An entry is one file, named by a hash of everything its bytes depend on: the IR, the target, and the
versions of LLVM, llvmlite and darner. (Whole builds are kept here too, under keys of their own; see
``session/buildcache.py``.) It holds a hash of its own content and name, so damage is noticed.
Entries appear whole or not at all (written beside, then renamed), so any number of processes may
share a folder. The least recently used go first when the folder grows past its limit.

A cache never makes anything fail: a folder that cannot be written is told of once, and then done
without.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import os
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...graph.errors import ArgumentError
from .jit import Machine, compile_module, host

_MAGIC = b"darner object 2\n"
_SUFFIX = ".object"
_UNFINISHED = ".unfinished"
# A file that no writer has renamed for so long belongs to a process that was killed.
_ABANDONED_SECONDS = 3600.0
# Folders that this process has told cannot be written: every session makes a cache of its own.
_told_unwritable: set[Path] = set()


class CacheWarning(UserWarning):
    """The cache on disk could not be used as asked; results are not affected."""


class CorruptEntryWarning(CacheWarning):
    """A cached object was damaged. It was removed, and is made again."""


class Folder(enum.Enum):
    """Folders that are known by what they are for."""

    USER = "user"


def default_folder() -> Path:
    """Where objects are kept unless told otherwise: ``$XDG_CACHE_HOME/darner/objects``."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    # The convention has relative paths ignored: they would name a place per working directory.
    base = Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"
    return base / "darner" / "objects"


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

    def key(
        self,
        module: Any,
        *,
        machine: Machine | None = None,
        cpu: str | None = None,
        features: str | None = None,
        passes: bool = False,
    ) -> str:
        """The name under which the object of a module is kept: 64 hexadecimal digits.

        It covers all that the bytes depend on: the machine they are for, this one when left out; ``cpu`` and ``features`` as in ``compile_module``.
        """
        import llvmlite  # type: ignore[import-untyped]
        import llvmlite.binding as llvm  # type: ignore[import-untyped]

        from ... import __version__

        target = machine or host()
        if cpu is not None:
            target = replace(target, cpu=cpu, features=features or "")
        elif features is not None:
            target = replace(target, features=features)
        versions = [__version__, llvmlite.__version__, repr(llvm.llvm_version_info)]
        digest = hashlib.sha256()
        for part in (*versions, target.key(), repr(passes), str(module)):
            data = part.encode()
            # Lengths keep the parts apart: no two lists of parts give the same bytes.
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()

    def compile(
        self,
        module: Any,
        *,
        cpu: str | None = None,
        features: str | None = None,
        passes: bool = False,
    ) -> bytes:
        """What ``compile_module`` gives, from the cache where it is there, and kept where not."""
        text = str(module)
        key = self.key(text, cpu=cpu, features=features, passes=passes)
        code = self.get(key)
        if code is None:
            code = compile_module(text, cpu=cpu, features=features, passes=passes)
            self.put(key, code)
        return code

    def get(self, key: str) -> bytes | None:
        """The object of a key, or None. A damaged one is removed, with a warning."""
        if self.folder is None:
            return None
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:  # not there, or a folder that put tells of
            return None
        code = _unsealed(key, data)
        if code is None:
            with contextlib.suppress(OSError):  # a folder shared read-only keeps its damage
                _remove(path)
            warnings.warn(
                f"cached object {path} is damaged: it is removed, and made again",
                CorruptEntryWarning,
                stacklevel=2,
            )
            return None
        with contextlib.suppress(OSError):  # removed meanwhile, or shared read-only: it ages sooner
            os.utime(path)
        return code

    def put(self, key: str, code: bytes) -> None:
        """Keep an object, and remove the least recently used where the folder grows too large."""
        data = _MAGIC + _seal(key, code) + code
        if self.folder is None or len(data) > self.limit_bytes:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(self._path(key), data)
            self._trim()
        except OSError as error:
            if self.folder not in _told_unwritable:
                _told_unwritable.add(self.folder)
                warnings.warn(
                    f"objects cannot be cached in {self.folder} ({error.strerror}): "
                    "they are compiled each time",
                    CacheWarning,
                    stacklevel=2,
                )

    def size(self) -> int:
        """Bytes that the entries take.

        >>> ObjectCache(None).size()
        0
        """
        return sum(size for _, size, _ in self._entries(_SUFFIX))

    def clear(self) -> None:
        """Remove every entry."""
        for _, _, path in self._entries(_SUFFIX):
            _remove(path)

    def _path(self, key: str) -> Path:
        if self.folder is None or not key.isalnum():
            raise ArgumentError(f"'{key}' is not a key of this cache", hint="key() makes them")
        return self.folder / (key + _SUFFIX)

    def _write(self, path: Path, data: bytes) -> None:
        # Not flushed to the medium: after a power cut the content hash tells, and it is rebuilt.
        handle, name = tempfile.mkstemp(suffix=_UNFINISHED, dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(name, path)
        except BaseException:
            _remove(Path(name))
            raise

    def _entries(self, suffix: str) -> list[tuple[int, int, Path]]:
        """When each file was last used, its size and path, the oldest first."""
        found: list[tuple[int, int, Path]] = []
        for path in self.folder.glob(f"*{suffix}") if self.folder is not None else ():
            try:
                status = path.stat()
            except FileNotFoundError:  # removed by another process
                continue
            found.append((status.st_mtime_ns, status.st_size, path))
        return sorted(found)

    def _trim(self) -> None:
        entries = self._entries(_SUFFIX)
        total = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if total <= self.limit_bytes:
                break
            _remove(path)
            total -= size
        oldest = time.time_ns() - int(_ABANDONED_SECONDS * 1e9)
        for written, _, path in self._entries(_UNFINISHED):
            if written < oldest:
                _remove(path)


def _seal(key: str, code: bytes) -> bytes:
    """A hash of the content and of its name: an entry copied to another name is no entry."""
    return hashlib.sha256(key.encode() + b"\n" + code).digest()


def _unsealed(key: str, data: bytes) -> bytes | None:
    """The code of an entry's bytes, or None where they are not what was written under this key."""
    start = len(_MAGIC) + hashlib.sha256().digest_size
    code = data[start:]
    sealed = data.startswith(_MAGIC) and _seal(key, code) == data[len(_MAGIC) : start]
    return code if sealed else None


def _remove(path: Path) -> None:
    # Two processes may remove the same file; that one of them finds it gone is no fault.
    path.unlink(missing_ok=True)
