"""Files that are replaced whole: whoever reads one sees the old content or the new, never a mixture.

The new content goes to a temporary file in the same folder, reaches the disk, and takes the name of
the old one in a single rename; then the folder reaches the disk. Each writer has a temporary file of
its own, so writers cannot damage each other: the last to finish wins.

A writer that dies leaves its temporary file behind. While it lives it holds a lock on that file,
which the system drops when it dies; so the next writer of the same path can tell, and removes it.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import Any, TypeAlias

from ..graph.errors import ArgumentError, DarnerError

if sys.platform != "win32":
    import fcntl

Path: TypeAlias = str | os.PathLike[str]


class FileError(DarnerError, OSError):
    """A file that the system would not open, read or write.

    Attributes:
        errno: the system's number for the cause, as in any OSError.
        filename: the path.
    """

    def __init__(
        self, rule: str, path: str = "", number: int | None = None, *, hint: str | None = None
    ) -> None:
        super().__init__(rule, hint=hint)
        self.filename = path
        self.errno = number

    __str__ = DarnerError.__str__

    def __reduce__(self) -> tuple[Any, ...]:
        # OSError's own forgets the path and the number on the way to another process.
        return type(self), (self.rule, self.filename, self.errno), self.__dict__

    @classmethod
    def of(cls, action: str, path: Path, error: OSError, hint: str | None = None) -> FileError:
        """The error for an action (``"read"``) that the system refused."""
        name = os.fspath(path)
        cause = error.strerror or str(error)
        return cls(f"cannot {action} '{name}': {cause}", name, error.errno, hint=hint)


def as_path(path: object) -> str:
    """What is given as a path, as text, or an error where no file can have it."""
    found = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(found, str):
        raise ArgumentError(f"a path is a text or a Path, got {path!r}")
    return found


def write_atomically(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Put chunks of bytes, one after another, in place of what the path names.

    A file that exists keeps its permissions, and one that may not be written is refused. A symbolic
    link stays a link: the file it leads to is replaced.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(f"{folder}/notes", [b"one, ", b"two"])
    ...     with open(f"{folder}/notes") as file:
    ...         file.read(), os.listdir(folder)
    ('one, two', ['notes'])

    Raises:
        FileError: the system refused (a full disk, say). The old file is then untouched.
    """
    try:
        target = os.path.realpath(as_path(path))
    except ValueError as error:  # a name with a NUL in it
        raise FileError(f"cannot write {path!r}: {error}", os.fspath(path), errno.EINVAL) from None
    old = None
    try:
        old = _replaceable(target)
        _remove_abandoned(target)
        with _replacing(target, old) as descriptor:
            for chunk in chunks:
                _write_all(descriptor, memoryview(chunk))
            if old is not None:
                _keep_permissions(descriptor, old)
    except OSError as error:
        hint = None if old is None else "what was there before is unchanged"
        raise FileError.of("write", path, error, hint) from error
    try:
        _sync_folder(os.path.dirname(target))
    except OSError as error:
        hint = "the new file is in place, but a power failure now could bring back the old one"
        raise FileError.of("make sure of", path, error, hint) from error


def _replaceable(target: str) -> os.stat_result | None:
    """What is at the target now, if anything; raises where it is not a file that may be written."""
    try:
        old = os.lstat(target)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(old.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if not stat.S_ISREG(old.st_mode):  # a device or a pipe; or a link to itself
        raise OSError(errno.EINVAL, "it is not a regular file")
    # A rename asks only for the folder's permission, but a file made read-only was meant to stay.
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "it is read-only")
    return old


def _keep_permissions(descriptor: int, old: os.stat_result) -> None:
    """Give the new file the owner and the mode of the one it replaces."""
    if sys.platform == "win32":
        return
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        with suppress(PermissionError):  # only the administrator may give a file away
            os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def _prefix(target: str) -> str:
    """How temporary files for a target begin: short, however long the name of the target is."""
    name = os.fsencode(os.path.basename(target))
    return f".darner-{blake2b(name, digest_size=8).hexdigest()}-"


@contextmanager
def _replacing(target: str, old: os.stat_result | None) -> Iterator[int]:
    """A new, locked file beside the target, which replaces it at the end; removed after an error."""
    # Nobody else may read the new content for a moment, where they could not read the old.
    mode = 0o666 if old is None else 0o600
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    flags |= getattr(os, "O_BINARY", 0)
    while True:
        name = f"{_prefix(target)}{secrets.token_hex(8)}.tmp"
        temporary = os.path.join(os.path.dirname(target), name)
        descriptor = os.open(temporary, flags, mode)
        _lock(descriptor, wait=True)
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)  # another writer found it before it was locked, and removed it
    is_open = True
    try:
        yield descriptor
        os.fsync(descriptor)
        if sys.platform == "win32":  # which renames no open file, and has no lock to keep
            os.close(descriptor)
            is_open = False
        os.replace(temporary, target)
    finally:
        with suppress(OSError):  # renamed away; or it stays, for the next writer to remove
            os.unlink(temporary)
        if is_open:
            os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> bool:
    """Lock a file until it is closed; False where another holds it, or files cannot be locked.

    Where the file system has no locks, every temporary file seems to have a living writer and none is
    ever removed: untidy, but safe.
    """
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def _remove_abandoned(target: str) -> None:
    """Remove the temporary files of writers of this target that have died."""
    folder, prefix = os.path.dirname(target), _prefix(target)
    with os.scandir(folder) as entries:
        found = [entry.path for entry in entries if entry.name.startswith(prefix)]
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    for path in found:
        # It may vanish at any moment, renamed or removed; or belong to someone else; or be a link or a
        # pipe that someone gave such a name.
        with suppress(OSError):
            descriptor = os.open(path, flags)
            try:
                if _lock(descriptor, wait=False):
                    os.unlink(path)
            finally:
                os.close(descriptor)


def _write_all(descriptor: int, data: memoryview) -> None:
    """Write all of it: the system may take less than it was given."""
    while data:
        data = data[os.write(descriptor, data) :]


def _sync_folder(folder: str) -> None:
    """Wait until a rename in the folder has reached the disk."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
