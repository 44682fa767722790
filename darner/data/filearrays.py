"""Arrays in files: ``.npy`` and raw ones, whose rows are read when they are asked for, and ``.npz``, which is read whole.

Files are read by position and not mapped, so that one that is cut short is an error and not the end of the process (see
``darner.io.reading``).
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from ..graph.data import Array
from ..graph.errors import ArgumentError, FormatError
from ..io.atomic import Path
from ..io.reading import RegularFile, shown
from ..io.tensorfile import raw_bytes

KEPT = 64 << 20
"""Bytes up to which the rows of a file are read once and kept: single ones are then taken from memory."""
MOST_UNPACKED = 256 << 20
"""Bytes that any packed file may become; what is more than `PACKED` times as long as the file is refused beyond it."""
PACKED = 64
_HEADER = 10_000
"""Bytes that NumPy allows the description of an array."""
_ZIP = b"PK"


class FileArray:
    """An array in a file. It is read-only, and read where it is looked at: ``array[3]``, ``array[10:20]``, ``array[[5, 2]]``.

    ``np.asarray`` reads all of it. Rows that follow each other are read at once, and a small file is read only once.

    >>> import tempfile
    >>> from darner import data
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/x.npy", np.arange(12).reshape(4, 3))
    ...     found = data.open_array(f"{folder}/x.npy")
    >>> found
    <FileArray '...x.npy': int64[4, 3]>
    >>> found[1:3].tolist(), found[[3, 0]].tolist()
    ([[3, 4, 5], [6, 7, 8]], [[9, 10, 11], [0, 1, 2]])
    """

    def __init__(
        self,
        file: RegularFile,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        start: int,
        by_columns: bool = False,
    ) -> None:
        self.shape, self.dtype = shape, dtype
        self._file, self._start = file, start
        self._row = prod(shape[1:]) * dtype.itemsize
        self._kept: Array | None = None
        if by_columns:  # no row lies in one piece
            whole = FileArray(file, dtype, shape[::-1], start)
            self._kept = np.asarray(whole).T
        elif self.nbytes <= KEPT:
            self._kept = self._read(0, len(self))

    @property
    def path(self) -> str:
        """The file."""
        return self._file.path

    @property
    def size_of_file(self) -> int:
        """How many bytes the file had when it was opened."""
        return self._file.size

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements there are."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes they take."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<FileArray '{self.path}': {self.dtype.name}{list(self.shape)}>"

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        found: Array = self._rows(slice(None))
        found = found if dtype is None else found.astype(dtype, copy=False)
        return found.copy() if copy else found

    def tolist(self) -> list[Any]:
        """All of it as a list."""
        found: list[Any] = self._rows(slice(None)).tolist()
        return found

    def __getitem__(self, index: Any) -> Any:
        rows, rest = (index[0], index[1:]) if isinstance(index, tuple) and index else (index, ())
        found = self._rows(rows)
        if not rest:
            return found
        return found[rest] if isinstance(rows, int | np.integer) else found[(slice(None), *rest)]

    def take(self, rows: Any, axis: int = 0) -> Array:
        """Rows by their numbers, as a new array."""
        if axis != 0:
            raise ArgumentError(f"rows of a file are taken along axis 0, got {axis}")
        numbers = np.asarray(rows)
        found = self._rows(numbers)
        return found if numbers.ndim else found.copy()

    def _rows(self, rows: Any) -> Any:
        if isinstance(rows, slice):
            if self._kept is not None:
                return self._kept[rows]
            start, stop, step = rows.indices(len(self))
            if step == 1:
                return self._read(start, max(stop - start, 0))
            rows = np.arange(start, stop, step)
        numbers = np.asarray(rows)
        if numbers.dtype == np.bool_ and numbers.shape == self.shape[:1]:
            numbers = np.flatnonzero(numbers)
        if numbers.size and numbers.dtype.kind not in "iu":
            raise ArgumentError(f"rows of a file have whole numbers, got {numbers.dtype}")
        if numbers.size and (numbers.min() < -len(self) or numbers.max() >= len(self)):
            raise ArgumentError(f"'{self.path}' has rows from 0 to {len(self) - 1:,}, got {rows}")
        if self._kept is not None:
            return self._kept[numbers.astype(np.intp, copy=False)]
        return self._gathered(numbers.astype(np.int64) % len(self))

    def windows(self, starts: Array, length: int) -> Array:
        """``length`` rows from each start on: (starts, length, ...)."""
        if self._kept is not None:
            return self._kept[starts[:, None] + np.arange(length)]
        return self._pieces(starts, length)

    def _gathered(self, numbers: Array) -> Any:
        """Rows in any order; neighbours are read together."""
        flat = numbers.reshape(-1)
        joined = np.flatnonzero(np.diff(flat) == 1)
        if not len(joined):
            found = self._pieces(flat, 1)
        else:
            found = np.empty((flat.size, *self.shape[1:]), self.dtype)
            breaks = np.flatnonzero(np.diff(flat) != 1) + 1
            ends = [0, *breaks.tolist(), flat.size]
            room, row = raw_bytes(found), self._row
            for begin, end in pairwise(ends):
                self._fill(room[begin * row : end * row], int(flat[begin]))
        return found.reshape((*numbers.shape, *self.shape[1:]))[()]

    def _pieces(self, starts: Array, length: int) -> Array:
        found = np.empty((len(starts), length, *self.shape[1:]), self.dtype)
        room, size = raw_bytes(found), length * self._row
        for i, first in enumerate(starts.tolist()):
            self._fill(room[i * size : (i + 1) * size], first)
        return found

    def _read(self, first: int, count: int) -> Array:
        found = np.empty((count, *self.shape[1:]), self.dtype)
        self._fill(raw_bytes(found), first)
        found.flags.writeable = False
        return found

    def _fill(self, room: memoryview, first: int) -> None:
        self._file.read_into(room, self._start + first * self._row, "what is asked for")


def open_array(path: Path) -> FileArray:
    """The array of a ``.npy`` file, which is read where it is looked at.

    Raises:
        FileError: there is no such file, or the system will not read it.
        FormatError: it is no array of numbers, or is cut short.
    """
    file = RegularFile(path)
    head = file.read(0, min(file.size, _HEADER + 12))
    if head.startswith(_ZIP):
        raise FormatError(f"'{file.path}' is no .npy file but a collection of them (.npz)")
    dtype, shape, by_columns, start = _described(head, file.size, file.path)
    if not shape:
        raise FormatError(f"'{file.path}' holds a single {dtype.name}, which has no rows")
    return FileArray(file, dtype, shape, start, by_columns and len(shape) > 1)


def open_raw(path: Path, dtype: np.dtype[Any]) -> FileArray:
    """The numbers that fill a file."""
    file = RegularFile(path)
    return FileArray(file, dtype, (file.size // dtype.itemsize,), 0)


def open_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an ``.npz`` file by their names, read into memory."""
    file = RegularFile(path)
    if file.read(0, min(6, file.size)) == b"\x93NUMPY":
        raise FormatError(
            f"'{file.path}' holds one array without a name", hint="give arrays as {'x': path}"
        )
    try:
        with zipfile.ZipFile(io.BufferedReader(_Stream(file))) as packed:
            members = packed.infolist()
            check_unpacked(file.path, sum(one.file_size for one in members), file.size)
            return {
                one.filename.removesuffix(".npy"): _parsed(packed.read(one), file.path)
                for one in members
            }
    except (FormatError, OSError):
        raise
    except Exception as error:  # whatever a zip file can make its reader stumble over
        raise _damaged(file.path, error) from error


def check_unpacked(path: str, size: int, packed: int) -> None:
    """An error for a packed file that is made to fill the memory."""
    if size > max(MOST_UNPACKED, PACKED * packed):
        raise FormatError(
            f"'{path}' has {packed:,} bytes and unpacks to {size:,}, more than {PACKED} times as many",
            hint="unpack it yourself, if it is meant so",
        )


class _Stream(io.RawIOBase):
    """A file as `zipfile` reads it."""

    def __init__(self, file: RegularFile) -> None:
        self._file, self._place = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._file.size}[whence]
        if start + offset < 0:
            raise ValueError(f"there is no position {start + offset}")
        self._place = start + offset
        return self._place

    def readinto(self, room: Any) -> int:
        count = max(0, min(len(room), self._file.size - self._place))
        self._file.read_into(memoryview(room).cast("B")[:count], self._place)
        self._place += count
        return count


def _parsed(content: bytes, path: str) -> Array:
    """The array of a ``.npy`` file in memory."""
    dtype, shape, by_columns, start = _described(content, len(content), path)
    found = np.frombuffer(content, dtype, prod(shape), start)
    return found.reshape(shape, order="F" if by_columns else "C").copy()


def _described(
    head: bytes, size: int, path: str
) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """What the header of a ``.npy`` file of so many bytes says: element type, shape, order, and where the data begin."""
    stream = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        formats = np.lib.format
        read = formats.read_array_header_1_0 if version[0] == 1 else formats.read_array_header_2_0
        shape, by_columns, dtype = read(stream, _HEADER)
    except Exception as error:  # whatever Python's own reader of literals stumbles over
        raise _damaged(path, error) from error
    if dtype.hasobject or not dtype.itemsize:
        raise _damaged(path, ValueError(f"its elements are {dtype}, which are no numbers"))
    if any(type(one) is not int or one < 0 for one in shape) or len(shape) > 64:
        raise _damaged(path, ValueError(f"no array has the shape {shown(shape)}"))
    start = stream.tell()
    if prod(max(one, 1) for one in shape) * dtype.itemsize >= 1 << 63:
        raise _damaged(path, ValueError(f"no array has the shape {shown(shape)}"))
    wanted = prod(shape) * dtype.itemsize
    if wanted > size - start:
        raise _damaged(
            path,
            ValueError(
                f"its header says {dtype.name}{list(shape)}, which takes {wanted:,} bytes, but {size - start:,} follow"
            ),
        )
    return dtype, shape, by_columns, start


def _damaged(path: str | os.PathLike[str], error: Exception) -> FormatError:
    return FormatError(f"'{os.fspath(path)}' is not a whole NumPy file: {error}")
