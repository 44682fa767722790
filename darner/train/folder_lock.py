"""A folder that one training uses at a time: who comes second is told who has it.

The lock is the system's, on a file in the folder. It ends with the process that has it, however that ends, so there is none to be removed by
hand. A forked child has no part in it: it neither keeps the lock when its parent is gone, nor gives it away.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import platform
import shlex
import sys
import warnings
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from weakref import WeakSet

from ..graph.errors import RunError
from ..io.atomic import FileError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LOCK = ".darner-lock"
"""The file that is locked; it says who has it, and is gone when nobody has."""
NOTHING = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
"""What file systems answer that have no locks."""
_FAR = 1 << 30
"""Windows lets nobody read what is locked: a byte behind the text is."""


class FolderInUseError(RunError):
    """A training folder that another training uses.

    Attributes:
        owner: who has it, as far as it is known: ``pid``, ``host``, ``since`` and ``command``.
    """

    owner: dict[str, Any]


class FolderLock:
    """The right to use a folder. ``hold`` makes the folder where it is not there.

    Args:
        folder: which one.
        otherwise: how to name another one, for the error: ``checkpoint=``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first, second = FolderLock(folder, "out="), FolderLock(folder, "out=")
    ...     first.hold()
    ...     try:
    ...         second.hold()
    ...     except FolderInUseError as error:
    ...         error.owner["pid"] == os.getpid()
    ...     first.release()
    ...     second.hold()
    ...     second.release()
    ...     os.listdir(folder)
    True
    []
    """

    def __init__(self, folder: str | os.PathLike[str], otherwise: str) -> None:
        self.folder = Path(folder)
        self._otherwise = otherwise
        self._descriptor: int | None = None
        self._made: list[Path] = []

    @property
    def held(self) -> bool:
        """Whether this process has it."""
        return self._descriptor is not None

    def hold(self) -> None:
        """Have the folder until ``release``; raises FolderInUseError where another has it."""
        if self.held:
            return
        made = _make(self.folder)
        try:
            self._descriptor = self._locked()
        except BaseException:
            _remove(made)
            raise
        self._made = made
        _HELD.add(self)

    def release(self) -> None:
        """Let others have it. A folder that was made for nothing is removed."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        _HELD.discard(self)
        if sys.platform != "win32":
            with suppress(OSError):  # it is as good as gone
                os.unlink(self.folder / LOCK)
        os.close(descriptor)
        if sys.platform == "win32":
            with suppress(OSError):  # another has it by now
                os.unlink(self.folder / LOCK)
        _remove(self._made)
        self._made = []

    def _forked(self) -> None:
        """In a child: the parent's lock lasts as long as the parent's own descriptor alone."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor, self._made = None, []

    def _locked(self) -> int:
        path = self.folder / LOCK
        collected = False
        while True:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0))
            except OSError as error:
                raise FileError.of("lock", path, error, "its folder must be writable") from error
            try:
                if _is_taken(descriptor, self.folder):
                    owner = _owner(path)
                    if not collected and _is_here(owner):
                        gc.collect()  # what had it may be waiting to be collected
                        collected = True
                        os.close(descriptor)
                        continue
                    raise self._in_use(owner)
                # Who had it before may have removed the file between the two calls above.
                if _same(descriptor, path):
                    _write(descriptor)
                    return descriptor
                os.close(descriptor)
            except BaseException:
                os.close(descriptor)
                raise

    def _in_use(self, owner: dict[str, Any]) -> FolderInUseError:
        if _is_here(owner):
            error = FolderInUseError(
                f"'{self.folder}' is in use by another trainer of this process, since {owner['since']}",
                hint=f"close() that one, or name another folder: {self._otherwise}",
            )
        else:
            error = FolderInUseError(
                f"'{self.folder}' is in use by {_shown(owner)}",
                hint=f"wait for it or end it, or name another folder: {self._otherwise}",
            )
        error.owner = owner
        return error


_HELD: WeakSet[FolderLock] = WeakSet()


def _after_fork() -> None:
    for lock in list(_HELD):
        lock._forked()
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _is_taken(descriptor: int, folder: Path) -> bool:
    """Lock a file; whether another has it. A file system without locks is told of, and then nobody has."""
    try:
        if sys.platform == "win32":
            os.lseek(descriptor, _FAR, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            os.lseek(descriptor, 0, os.SEEK_SET)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            return True
        if error.errno not in NOTHING:
            raise FileError.of("lock", folder, error) from error
        warnings.warn(
            f"the file system of '{folder}' has no locks ({error.strerror}): see to it that one training at a time uses the folder",
            RuntimeWarning,
            stacklevel=2,
        )
    return False


def _same(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one of that name."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


def _write(descriptor: int) -> None:
    """Say who has it."""
    command = [os.path.basename(sys.executable), *sys.orig_argv[1:]]
    owner = {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": datetime.now().astimezone().isoformat(" ", "seconds"),
        "command": " ".join(map(shlex.quote, command))[:300],
    }
    with suppress(OSError):  # a full disk: the lock is there, only nobody will read whose it is
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(owner).encode())


def _owner(path: Path) -> dict[str, Any]:
    """Who has it, by what the file says; empty where it does not say it yet."""
    try:
        found = json.loads(path.read_bytes())
        return {name: found[name] for name in ("pid", "host", "since", "command")}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def _is_here(owner: dict[str, Any]) -> bool:
    return owner.get("pid") == os.getpid() and owner.get("host") == platform.node()


def _shown(owner: dict[str, Any]) -> str:
    if not owner:
        return "another process"
    return f"process {owner['pid']} on {owner['host']} since {owner['since']} ({owner['command']})"


def _make(folder: Path) -> list[Path]:
    """Make a folder; what was made, the innermost first."""
    missing = []
    for path in (folder, *folder.parents):
        if path.exists():
            break
        missing.append(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError.of("make the folder", folder, error) from error
    return missing


def _remove(folders: list[Path]) -> None:
    with suppress(OSError):  # it is used
        for folder in folders:
            folder.rmdir()
