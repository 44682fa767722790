"""The MNIST digits, from their four IDX files.

>>> from darner import data
>>> train, test = data.mnist("data/mnist", dtype="f32")  # doctest: +SKIP
>>> train.images.shape, train.labels.shape  # doctest: +SKIP
((60000, 28, 28), (60000,))
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..graph.data import Array
from ..graph.errors import ArgumentError, FormatError
from ..io.atomic import Path as PathLike
from .arrays import DataLoader
from .idx import read_idx
from .places import data_folders, not_found

SIDE, DIGITS = 28, 10


class Digits(NamedTuple):
    """Pictures and what they show."""

    images: Array
    """(count, 28, 28): bytes, or f32 from 0 to 1."""
    labels: Array
    """(count,): i32 from 0 to 9."""


def mnist(folder: PathLike | None = None, *, dtype: str = "u8") -> tuple[Digits, Digits]:
    """The 60,000 digits to learn from, and the 10,000 to be tested on.

    Args:
        folder: where the four files are, gzipped or not; else the usual places are searched.
        dtype: of the pictures: ``"u8"`` as in the files, or ``"f32"``, divided by 255.

    Raises:
        FileError: a file is not there; the error says where it was looked for.
        FormatError: a file is damaged, or does not hold what its name says.
    """
    if dtype not in ("u8", "f32"):
        raise ArgumentError(f"pictures are 'u8' or 'f32', got {dtype!r}")
    found = mnist_folder(folder)
    train, test = (
        _digits(
            _file(found, f"{part}-images-idx3-ubyte"), _file(found, f"{part}-labels-idx1-ubyte")
        )
        for part in ("train", "t10k")
    )
    if dtype == "u8":
        return train, test
    return Digits(_scaled(train.images), train.labels), Digits(_scaled(test.images), test.labels)


def mnist_places() -> Iterator[Path]:
    """Where MNIST is often found."""
    for base in data_folders():
        yield from (base / "mnist", base / "MNIST" / "raw")


def mnist_folder(folder: PathLike | None = None) -> Path:
    """The folder of the MNIST files: the one that is given, if it has any, or the first usual place that does."""
    places = list(mnist_places()) if folder is None else [Path(folder)]
    for place in places:
        if any(path.exists() for path in _names(place, "train-images-idx3-ubyte")):
            return place
    hint = "download the four files, and name their folder; drawn_digits(count, seed) draws some like them"
    raise not_found("MNIST (train-images-idx3-ubyte.gz)", places, hint)


def _names(folder: Path, name: str) -> list[Path]:
    """What a file is called: mirrors differ in a dash, and in whether it is gzipped."""
    dotted = name.replace("-idx", ".idx")
    return [folder / each for each in (f"{name}.gz", name, f"{dotted}.gz", dotted)]


def _file(folder: Path, name: str) -> Path:
    for path in _names(folder, name):
        if path.exists():
            return path
    raise not_found(f"{name}.gz", [folder], f"it may also be called {name} or so")


def _digits(images: PathLike, labels: PathLike, gzipped: bool | None = None) -> Digits:
    """Pictures and labels of two files that belong together."""
    found = read_idx(images, rank=3, gzipped=gzipped)
    shown = read_idx(labels, rank=1, gzipped=gzipped)
    if found.dtype != np.uint8 or found.shape[1:] != (SIDE, SIDE):
        raise FormatError(
            f"'{os.fspath(images)}' holds {found.dtype}{list(found.shape)}, not pictures of {SIDE} by {SIDE} bytes"
        )
    if len(found) != len(shown):
        raise FormatError(
            f"'{os.fspath(images)}' has {len(found):,} pictures, but '{os.fspath(labels)}' {len(shown):,} labels"
        )
    if shown.dtype != np.uint8 or shown.max(initial=0) >= DIGITS:
        raise FormatError(
            f"'{os.fspath(labels)}' holds {shown.dtype} up to {shown.max(initial=0)}, not digits"
        )
    return Digits(found, shown.astype(np.int32))


def _scaled(images: Array) -> Array:
    return images.astype(np.float32) / np.float32(255)


@dataclass(frozen=True)
class MnistDataset:
    """Pictures as rows of 784 numbers from 0 to 1, labels one-hot: the spelling of Meganeura.

    ``MnistDataset.load(images, labels).loader(32)`` gives batches of ``x`` (32, 784) and ``labels`` (32, 10).
    """

    images: Array
    labels: Array

    @classmethod
    def load(cls, images: PathLike, labels: PathLike) -> MnistDataset:
        """From two IDX files."""
        return cls._of(_digits(images, labels, gzipped=False))

    @classmethod
    def load_gz(cls, images: PathLike, labels: PathLike) -> MnistDataset:
        """From two gzipped IDX files."""
        return cls._of(_digits(images, labels, gzipped=True))

    @classmethod
    def _of(cls, digits: Digits) -> MnistDataset:
        one_hot = np.eye(DIGITS, dtype=np.float32)[digits.labels]
        return cls(_scaled(digits.images).reshape(-1, SIDE * SIDE), one_hot)

    @property
    def n(self) -> int:
        """How many pictures there are."""
        return len(self.images)

    def loader(self, batch: int, **options: Any) -> DataLoader:
        """Batches of them; options are those of ``Arrays``."""
        return DataLoader(self.images, self.labels, SIDE * SIDE, DIGITS, batch, **options)
