"""Files that are believed because nobody else can have written them: compiled code, plans, and what was measured.

Whoever can write a file of code that is loaded can do what its user can. A hash inside the file says that it is whole, not who wrote it; so a file
is read only where the system says that it is the user's own or the system's (root's), that nobody else may write it or the folder it lies in, and that
nobody else may put another folder in the place of one above (folders above may be writable if they are sticky, as ``/tmp`` is, or by the group that is the
user's alone, with which many systems begin).

What is checked is what was opened, never a name: folders are opened one in another from the root on, links among them followed only if they are the
user's or the system's, and files are opened in the folder that was checked, not through links. Pipes, devices and files with a second name are refused.

On Windows, where folders of the user are the user's alone by their access lists, which Python does not show, nothing is asked about owners.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

from ...graph.errors import DarnerError

AnyPath: TypeAlias = str | os.PathLike[str]

POSIX = os.name == "posix"
UNFINISHED = ".unfinished"
"""How the names of files end that are being written."""
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
MOST_LINKS = 40

_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
# Opening a pipe would wait for somebody to write to it.
_FILE = _READ | getattr(os, "O_NONBLOCK", 0)
_FOLDER = _READ | getattr(os, "O_DIRECTORY", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
_NEW |= getattr(os, "O_BINARY", 0)


class UntrustedError(DarnerError, PermissionError):
    """A file or folder that somebody else owns or may write: what it holds is not believed."""

    __str__ = DarnerError.__str__


class Entry(NamedTuple):
    """A file of a folder: when it was last written or used, in nanoseconds, its size and name."""

    used: int
    nbytes: int
    name: str


class Folder:
    """A folder that was found to be the user's; see ``opened_folder``."""

    def __init__(self, path: str, descriptor: int | None) -> None:
        self.path = path
        self._descriptor = descriptor

    def read(self, name: str, most: int | None = None) -> bytes:
        """All of a file.

        Raises:
            UntrustedError: it is somebody else's, no plain file, or has more than ``most`` bytes.
            OSError: it is not there, or cannot be read.
        """
        shown = os.path.join(self.path, name)
        try:
            descriptor = os.open(self._place(name), _FILE, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
                raise UntrustedError(f"'{shown}' is not a plain file") from None
            raise
        try:
            _check_file(shown, status(descriptor), most)
        except BaseException:
            os.close(descriptor)
            raise
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            return file.readall()

    def write(self, name: str, data: bytes) -> None:
        """Put a file in its place, whole or not at all; only the user may read it."""
        # Not flushed to the medium: what is believed of a file is in its content.
        draft = f"{secrets.token_hex(8)}{UNFINISHED}"
        descriptor = os.open(self._place(draft), _NEW, 0o600, dir_fd=self._descriptor)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            ends = {"src_dir_fd": self._descriptor, "dst_dir_fd": self._descriptor}
            os.replace(self._place(draft), self._place(name), **ends)
        except BaseException:
            self.remove(draft)
            raise

    def touch(self, name: str) -> None:
        """Note that a file was used."""
        if self._descriptor is None:
            os.utime(self._place(name))
        else:
            os.utime(name, dir_fd=self._descriptor, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there: of two processes that do, one finds it gone."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._place(name), dir_fd=self._descriptor)

    def entries(self, suffix: str) -> list[Entry]:
        """Its plain files of a suffix, those first that were not used for the longest time."""
        found: list[Entry] = []
        with self._listed() as items:
            for item in items:
                if not item.name.endswith(suffix):
                    continue
                with contextlib.suppress(FileNotFoundError):  # removed by another process
                    about = item.stat(follow_symlinks=False)
                    if stat.S_ISREG(about.st_mode):
                        found.append(Entry(about.st_mtime_ns, about.st_size, item.name))
        return sorted(found)

    def _place(self, name: str) -> str:
        """What the system is to be asked for, relative to the folder where it can be."""
        return os.path.join(self.path, name) if self._descriptor is None else name

    @contextlib.contextmanager
    def _listed(self) -> Iterator[Iterator[os.DirEntry[str]]]:
        if self._descriptor is None:
            with os.scandir(self.path) as items:
                yield items
            return
        descriptor = os.open(".", _READ, dir_fd=self._descriptor)
        try:
            with os.scandir(descriptor) as items:
                yield items
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def opened_folder(path: AnyPath, *, create: bool = False) -> Iterator[Folder]:
    """A folder whose files can be believed; ``create`` makes what is missing of its path, for the user alone.

    Raises:
        UntrustedError: somebody else owns or may write it, or may put another in its place.
        OSError: it is not there, is no folder, or cannot be made.
    """
    name = os.path.join(os.getcwd(), os.fspath(path))
    if not POSIX:
        if create:
            os.makedirs(name, exist_ok=True)
        yield Folder(name, None)
        return
    descriptor = _opened(name, create)
    try:
        yield Folder(name, descriptor)
    finally:
        os.close(descriptor)


def read_file(path: AnyPath) -> bytes:
    """All of a file that can be believed; raises as ``opened_folder`` and ``Folder.read`` do."""
    found = Path(path)
    with opened_folder(found.parent) as folder:
        return folder.read(found.name)


# --------------------------------------------------------------------------- looking


def status(descriptor: int) -> os.stat_result:
    """What the system says of something that was opened."""
    return os.fstat(descriptor)


def owners() -> tuple[int, int]:
    """Whose files are believed: this user's and the system's."""
    return os.geteuid(), 0


def _opened(path: str, create: bool) -> int:
    """The descriptor of a folder that was found to be the user's, as were all above it."""
    pending, at, links = _parts(path), "/", 0
    held = _descriptor_of("/")
    try:
        while pending:
            _check_above(at, status(held))
            name = pending.pop()
            inside = _entered(name, held, create)
            if inside is None:
                target = _target(os.path.join(at, name), name, held)
                links += 1
                if links > MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                pending += _parts(target)
                if not target.startswith("/"):
                    continue
                name, inside = "/", _descriptor_of("/")
            at = os.path.join(at, name)
            held, old = inside, held
            os.close(old)
        found = status(held)
        _check_owner(at, found)
        _check_mode(at, found)
    except BaseException:
        os.close(held)
        raise
    return held


def _parts(path: str) -> list[str]:
    """The names on a path, the first at the end."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _entered(name: str, above: int, create: bool) -> int | None:
    """The folder of a name in another one, or None where that is no folder."""
    try:
        return _descriptor_of(name, above)
    except FileNotFoundError:
        if not create:
            raise
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            return None
        raise
    with contextlib.suppress(FileExistsError):  # another process was first
        os.mkdir(name, 0o700, dir_fd=above)
    return _descriptor_of(name, above)


def _descriptor_of(name: str, above: int | None = None) -> int:
    """The descriptor of a folder in another one. It need not be readable to be passed through."""
    try:
        return os.open(name, _FOLDER, dir_fd=above)
    except PermissionError:
        if not hasattr(os, "O_PATH"):
            raise
        return os.open(name, _FOLDER | os.O_PATH, dir_fd=above)


def _target(shown: str, name: str, above: int) -> str:
    """Where a link leads that may be followed."""
    found = os.stat(name, dir_fd=above, follow_symlinks=False)
    if not stat.S_ISLNK(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), shown)
    _check_owner(shown, found)
    return os.readlink(name, dir_fd=above)


def _check_owner(shown: str, found: os.stat_result) -> None:
    if found.st_uid not in owners():
        raise UntrustedError(f"'{shown}' belongs to somebody else (user {found.st_uid})")


def _check_mode(shown: str, found: os.stat_result) -> None:
    if found.st_mode & OTHERS_WRITE:
        mode = stat.S_IMODE(found.st_mode)
        raise UntrustedError(
            f"'{shown}' may be written by others (mode {mode:04o})", hint=f"chmod go-w '{shown}'"
        )


def _check_file(shown: str, found: os.stat_result, most: int | None) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UntrustedError(f"'{shown}' is not a plain file")
    if POSIX:
        _check_owner(shown, found)
        _check_mode(shown, found)
        if found.st_nlink > 1:
            raise UntrustedError(f"'{shown}' has {found.st_nlink} names")
    if most is not None and found.st_size > most:
        raise UntrustedError(f"'{shown}' has {found.st_size:,} bytes, more than {most:,}")


def _check_above(shown: str, found: os.stat_result) -> None:
    """Raise where somebody else could replace what lies in a folder."""
    _check_owner(shown, found)
    alone = not found.st_mode & stat.S_IWOTH and _is_alone(found.st_gid, os.geteuid())
    if not found.st_mode & stat.S_ISVTX and not alone:
        _check_mode(shown, found)


@lru_cache(maxsize=64)
def _is_alone(group: int, user: int) -> bool:
    """Whether a group is that of one user and nobody else."""
    import grp
    import pwd

    try:
        me, found = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    own = me.pw_gid == group and found.gr_name == me.pw_name
    return own and set(found.gr_mem) <= {me.pw_name}
