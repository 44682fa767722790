"""Files of tokens, which may be larger than memory, and windows of them as batches.

A file is a ``.npy`` file, or a raw ``.bin`` file of 16 or 32 bits a token without header, as nanoGPT and others write it.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from ..graph.arrays import as_array
from ..graph.data import Array
from ..graph.errors import ArgumentError, DTypeError, FormatError, ShapeError
from ..io.atomic import FileError, Path, write_atomically
from .batches import Batch, Epochs, Stream, batches_of, random_source, whole
from .filearrays import FileArray, open_array, open_raw

WIDTHS: dict[str, np.dtype[Any]] = {"u16": np.dtype("<u2"), "u32": np.dtype("<u4")}
"""Element types of files of tokens."""
IGNORED = -100
"""The label that counts for nothing."""
PIECE = 1 << 20
"""How many bytes are copied at once."""

Order = Literal["random", "sequential", "shuffled"]
Row = TypeVar("Row", Array, FileArray)


def _width(dtype: str) -> np.dtype[Any]:
    if dtype not in WIDTHS:
        raise ArgumentError(f"tokens are stored as 'u16' or 'u32', got {dtype!r}")
    return WIDTHS[dtype]


def open_tokens(path: Path, dtype: str = "u16") -> FileArray:
    """The tokens of a file: read-only, and read where they are looked at.

    Args:
        path: a ``.npy`` file of whole numbers, or any other file of raw ones.
        dtype: how raw tokens are stored: ``"u16"`` or ``"u32"``; a ``.npy`` file says so itself.
    """
    name = os.fspath(path)
    if name.endswith(".npy"):
        return _checked(open_array(path), f"'{name}'")
    width = _width(dtype)
    found = open_raw(path, width)
    if found.size_of_file % width.itemsize:
        raise FormatError(f"'{name}' has {found.size_of_file:,} bytes, which are no {dtype} tokens")
    if not len(found):
        raise FormatError(f"'{name}' is empty")
    return found


def write_tokens(
    path: Path,
    pieces: Iterable[Any],
    dtype: str = "u16",
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write tokens piece by piece, so that a corpus need not fit in memory; returns how many there were.

    The file appears when it is whole. A file that was there before is replaced then, and stays after an error.

    Args:
        path: a file whose name ends in ``.npy``, or ``.bin`` for raw tokens.
        pieces: arrays or lists of tokens, such as the tokens of each document.
        dtype: ``"u16"``, which holds tokens below 65,536, or ``"u32"``.
        progress: called after each piece with the number of tokens so far.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_tokens(f"{folder}/corpus.npy", [[1, 2, 3], np.array([4, 5])])
    ...     open_tokens(f"{folder}/corpus.npy").tolist()
    5
    [1, 2, 3, 4, 5]
    """
    name, width = os.fspath(path), _width(dtype)
    if not name.endswith((".npy", ".bin")):
        raise ArgumentError(f"files of tokens end in .npy or .bin, got '{name}'")
    packed = _Packed(pieces, width, progress)
    try:
        if name.endswith(".bin"):
            write_atomically(path, packed)
        else:
            _write_npy(path, packed)
    except FileError as error:
        if packed.failure is not None and error.__cause__ is packed.failure:
            raise packed.failure from None  # it was the pieces that could not be read
        raise
    return packed.count


class _Packed:
    """Pieces of tokens as bytes, counted."""

    def __init__(
        self, pieces: Iterable[Any], width: np.dtype[Any], progress: Callable[[int], None] | None
    ) -> None:
        self.count = 0
        self.width = width
        self.failure: OSError | None = None
        self._pieces, self._progress = pieces, progress

    def __iter__(self) -> Iterator[memoryview]:
        try:
            for number, piece in enumerate(self._pieces):
                tokens = _packed(piece, self.width, number)
                self.count += len(tokens)
                # As bytes: a view of words would be counted in words.
                yield tokens.view(np.uint8).data
                if self._progress is not None:
                    self._progress(self.count)
        except OSError as error:
            self.failure = error
            raise


def _write_npy(path: Path, packed: _Packed) -> None:
    """The header comes first and holds the number of tokens, which is known last: they wait in a file without a name."""
    try:
        with tempfile.TemporaryFile(dir=os.path.dirname(os.path.abspath(path))) as spool:
            for chunk in packed:
                spool.write(chunk)
            spool.seek(0)
            header = io.BytesIO()
            about = {"descr": packed.width.str, "fortran_order": False, "shape": (packed.count,)}
            np.lib.format.write_array_header_1_0(header, about)
            write_atomically(path, chain([header.getvalue()], iter(lambda: spool.read(PIECE), b"")))
    except FileError:
        raise
    except OSError as error:
        raise FileError.of("write", path, error) from error


def _packed(piece: Any, width: np.dtype[Any], number: int) -> Array:
    tokens = as_array(piece, f"piece {number}")[0]
    if tokens.size == 0:
        return np.empty(0, width)
    _checked(tokens, f"piece {number}")
    low, high = int(tokens.min()), int(tokens.max())
    limit = 1 << (8 * width.itemsize)
    if low < 0 or high >= limit:
        raise ArgumentError(
            f"piece {number} has the token {low if low < 0 else high}, but the file holds those from 0 to {limit - 1:,}",
            hint="write it with dtype='u32'" if low >= 0 and high < 1 << 32 else None,
        )
    return np.ascontiguousarray(tokens, width)


def _checked(tokens: Row, what: str) -> Row:
    if tokens.dtype.kind not in "iu":
        raise DTypeError(f"tokens are whole numbers, but {what} is {tokens.dtype}")
    if tokens.ndim != 1:
        raise ShapeError(f"tokens are one row of numbers, but {what} has the shape {tokens.shape}")
    return tokens


class TokenWindows(Epochs):
    """Windows of a long row of tokens: batches of ``tokens`` and ``labels``, i32, both (batch, length).

    Labels are the tokens that follow, so that a window reads ``length + 1`` tokens.

    Args:
        tokens: whole numbers, or the path of a file of them (see ``open_tokens``).
        length: tokens of a window.
        batch: windows of a batch.
        seed: where random numbers come from.
        order: ``"random"``: windows that begin anywhere, and an epoch is as many as would cover the tokens once;
            ``"sequential"`` or ``"shuffled"``: each window once, side by side, as validation needs it.
        drop_last: whether windows that do not fill a batch are left out. Otherwise the last batch is filled up with windows
            whose labels are -100, which count for nothing: all batches have one shape.
        dtype: how tokens are stored in a raw file.

    >>> windows = TokenWindows(np.arange(10), length=4, batch=2, order="sequential")
    >>> next(iter(windows))
    {'tokens': array([[0, 1, 2, 3], [4, 5, 6, 7]], dtype=int32),
     'labels': array([[1, 2, 3, 4], [5, 6, 7, 8]], dtype=int32)}
    """

    def __init__(  # many parameters: they are the user's options, by name
        self,
        tokens: Any,
        length: int,
        batch: int,
        seed: int = 0,
        order: Order = "random",
        drop_last: bool = True,
        dtype: str = "u16",
    ) -> None:
        super().__init__(seed)
        self.length, self.batch = whole("length", length, 1), whole("batch", batch, 1)
        if order not in get_args(Order):
            raise ArgumentError(f"order is {', '.join(get_args(Order))}, got {order!r}")
        self.order, self.drop_last = order, bool(drop_last)
        self._tokens: Array | FileArray
        if isinstance(tokens, str | os.PathLike):
            self._tokens = open_tokens(tokens, dtype)
        elif isinstance(tokens, FileArray):
            self._tokens = _checked(tokens, "what was given")
        else:
            self._tokens = _checked(as_array(tokens, "what was given")[0], "what was given")
        count = len(self._tokens)
        if count <= self.length:
            raise ArgumentError(
                f"{count} tokens have no window of {self.length} and the token after it",
                hint=f"take a length of {count - 1} at most" if count > 1 else None,
            )
        # Windows side by side: the last token is only a label.
        self.windows = (count - 1) // self.length
        if order == "random":
            self._count = max(1, count // (self.batch * self.length))
        else:
            self._count = batches_of(self.windows, self.batch, self.drop_last, "windows")

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return self._count

    def __repr__(self) -> str:
        return (
            f"<TokenWindows of {len(self._tokens):,} tokens: {self.batch} x {self.length}, "
            f"{self.order}, {len(self):,} batches an epoch>"
        )

    def batch_at(self, epoch: int, position: int) -> Batch:
        """One batch, wherever the source is."""
        starts = self._starts(epoch, position)
        # One reading serves both: labels are the tokens one further.
        if isinstance(self._tokens, FileArray):
            found = self._tokens.windows(starts, self.length + 1)
        else:
            found = self._tokens[starts[:, None] + np.arange(self.length + 1)]
        low, high = int(found.min()), int(found.max())
        if low < 0 or high >= 1 << 31:
            raise ArgumentError(
                f"a window has the token {low if low < 0 else high}; tokens are from 0 to {2**31 - 1:,}"
            )
        tokens = np.zeros((self.batch, self.length), np.int32)
        labels = np.full((self.batch, self.length), IGNORED, np.int32)
        tokens[: len(starts)], labels[: len(starts)] = found[:, :-1], found[:, 1:]
        return {"tokens": tokens, "labels": labels}

    def _starts(self, epoch: int, position: int) -> Array:
        """Where the windows of a batch begin."""
        if self.order == "random":
            bits = random_source(self.seed, epoch, Stream.WINDOWS, position)
            drawn = np.asarray(bits.random_raw(self.batch), np.uint64)
            places = np.uint64(len(self._tokens) - self.length)
            return (drawn % places).astype(np.int64)
        rows = slice(position * self.batch, min((position + 1) * self.batch, self.windows))
        if self.order == "sequential":
            return np.arange(rows.start, rows.stop) * self.length
        return self.order_of(self.windows, epoch)[rows] * self.length
