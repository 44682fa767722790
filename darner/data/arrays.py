"""Batches from arrays, in memory or in files.

>>> import numpy as np
>>> from darner import data
>>> pictures, digits = np.zeros((10, 784), np.float32), np.arange(10)
>>> source = data.Arrays({"x": pictures, "labels": digits}, batch=4)
>>> [batch["labels"].tolist() for batch in source]
[[0, 2, 9, 1], [8, 5, 4, 3]]
>>> [batch["labels"].tolist() for batch in source]
[[5, 3, 7, 8], [2, 4, 1, 0]]
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..graph.arrays import as_array
from ..graph.data import Array
from ..graph.errors import ArgumentError, ShapeError, nearest
from ..io.atomic import Path
from .batches import Batch, Epochs, Stream, batches_of, random_order, random_source, whole
from .filearrays import FileArray, open_array, open_arrays

Transform = Callable[[Batch], Mapping[str, Array]]
Augment = Callable[[Batch, np.random.Generator], Mapping[str, Array]]


class Arrays(Epochs):
    """Batches of rows of arrays that have as many rows each.

    Args:
        arrays: arrays, or paths of ``.npy`` files, by the names of the graph's inputs; or the path of an ``.npz`` file. A
            ``.npy`` file stays open: rows are read when their batch is made. An ``.npz`` file is read into memory.
        batch: rows of a batch.
        shuffle: whether each epoch has an order of its own, which is that of (seed, epoch) on every machine.
        seed: where the order comes from.
        drop_last: whether rows that do not fill a batch are left out; otherwise the last batch is a smaller one.
        transform: a function of a batch that returns the batch to hand out: scaling, one-hot labels.
        augment: the same with a random generator, which depends on the seed and the place in the epoch alone; before
            ``transform``.

    Batches are copies, which may be written to. ``split`` parts the rows in two sources:

    >>> source = Arrays({"x": np.arange(10)}, batch=2, transform=lambda batch: {"x": batch["x"] / 10})
    >>> train, valid = source.split(0.8, seed=1)
    >>> train.rows, valid.rows
    (8, 2)
    >>> sorted(np.concatenate([batch["x"] for batch in (*train, *valid)]).tolist())
    [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    """

    def __init__(  # many parameters: they are the user's options, by name
        self,
        arrays: Mapping[str, Any] | Path,
        batch: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = True,
        transform: Transform | None = None,
        augment: Augment | None = None,
    ) -> None:
        super().__init__(seed)
        self._arrays = _opened(arrays)
        self._chosen: Array | None = None
        self._set(batch, shuffle, drop_last, transform, augment)

    def _set(
        self,
        batch: int,
        shuffle: bool,
        drop_last: bool,
        transform: Transform | None,
        augment: Augment | None,
    ) -> None:
        self.batch = whole("batch", batch, 1)
        self.shuffle, self.drop_last = bool(shuffle), bool(drop_last)
        self.transform, self.augment = transform, augment
        self._count = batches_of(self.rows, self.batch, self.drop_last, "rows")

    @property
    def rows(self) -> int:
        """How many rows the source has."""
        if self._chosen is not None:
            return len(self._chosen)
        return len(next(iter(self._arrays.values())))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arrays."""
        return tuple(self._arrays)

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return self._count

    def __repr__(self) -> str:
        shapes = ", ".join(
            f"{name} {array.dtype}{list(array.shape[1:])}" for name, array in self._arrays.items()
        )
        return f"<Arrays of {self.rows:,} rows ({shapes}) in batches of {self.batch}>"

    def batch_at(self, epoch: int, position: int) -> Batch:
        """One batch, wherever the source is."""
        place: Any = slice(position * self.batch, min((position + 1) * self.batch, self.rows))
        if self.shuffle:
            place = self.order_of(self.rows, epoch)[place]
        if self._chosen is not None:
            place = self._chosen[place]
        if isinstance(place, slice):
            batch = {name: np.array(array[place]) for name, array in self._arrays.items()}
        else:
            batch = {name: array.take(place, axis=0) for name, array in self._arrays.items()}
        if self.augment is not None:
            bits = random_source(self.seed, epoch, Stream.AUGMENT, position)
            batch = _table("augment", self.augment(batch, np.random.Generator(bits)))
        if self.transform is not None:
            batch = _table("transform", self.transform(batch))
        return batch

    def split(self, fraction: float, seed: int = 0, **options: Any) -> tuple[Arrays, Arrays]:
        """Two sources: one of ``fraction`` of the rows, chosen by ``seed``, and one of all the others.

        No array is copied. ``options`` are what the second does otherwise, such as ``augment=None, drop_last=False`` to
        validate.
        """
        first = round(fraction * self.rows) if 0 < fraction < 1 else 0
        if not 0 < first < self.rows:
            raise ArgumentError(
                f"a fraction of {fraction!r} does not part {self.rows} rows in two sets that have any"
            )
        seed = whole("seed", seed, 0, 2**64 - 1)
        order = random_order(self.rows, seed, stream=Stream.SPLIT)
        # Sorted, so that a source that does not shuffle reads its file from front to end.
        parts = np.sort(order[:first]), np.sort(order[first:])
        if self._chosen is not None:
            parts = self._chosen[parts[0]], self._chosen[parts[1]]
        return self._copy(parts[0], {}), self._copy(parts[1], options)

    def with_options(self, **options: Any) -> Arrays:
        """A source of the same rows, at its beginning, with other options: those of the class, but not the arrays."""
        return self._copy(self._chosen, options)

    def _copy(self, chosen: Array | None, options: Mapping[str, Any]) -> Arrays:
        own = {
            key: getattr(self, key)
            for key in ("batch", "shuffle", "drop_last", "transform", "augment")
        }
        for key in options:
            if key not in own and key != "seed":
                raise ArgumentError(
                    f"there is no option '{key}'", hint=nearest(key, [*own, "seed"])
                )
        copy = Arrays.__new__(Arrays)
        Epochs.__init__(copy, options.get("seed", self.seed))
        copy._arrays, copy._chosen = self._arrays, chosen
        copy._set(**{**own, **{key: options[key] for key in options if key != "seed"}})
        return copy


class DataLoader(Arrays):
    """Examples and labels end to end, as batches of ``x`` and ``labels``: the spelling of Meganeura.

    >>> loader = DataLoader(np.arange(8.0), np.arange(4), sample_size=2, label_size=1, batch=2, shuffle=False)
    >>> next(iter(loader))
    {'x': array([[0., 1.], [2., 3.]]), 'labels': array([[0], [1]])}
    """

    def __init__(
        self,
        data: Any,
        labels: Any,
        sample_size: int,
        label_size: int,
        batch: int,
        **options: Any,
    ) -> None:
        arrays = {
            name: _in_rows(name, as_array(flat, name)[0], whole(size_name, size, 1))
            for name, flat, size_name, size in (
                ("x", data, "sample_size", sample_size),
                ("labels", labels, "label_size", label_size),
            )
        }
        super().__init__(arrays, batch, **options)


def _in_rows(name: str, flat: Array, size: int) -> Array:
    if flat.size % size:
        raise ShapeError(f"the {flat.size} numbers of '{name}' are no rows of {size}")
    return flat.reshape(-1, size)


def _table(what: str, batch: Any) -> Batch:
    """What a user's function made of a batch, if it is one."""
    if not isinstance(batch, Mapping) or not all(isinstance(name, str) for name in batch):
        raise ArgumentError(
            f"{what} returned a {type(batch).__name__}, not a table of arrays by name",
            hint="return the batch itself where it was changed in place",
        )
    return {name: as_array(value, f"'{name}'")[0] for name, value in batch.items()}


def _opened(arrays: Mapping[str, Any] | Path) -> dict[str, Array | FileArray]:
    """Arrays by name, of equally many rows."""
    if isinstance(arrays, str | os.PathLike):
        arrays = open_arrays(arrays)
    if not isinstance(arrays, Mapping):
        raise ArgumentError(
            f"arrays are given by name, or as the path of an .npz file, got {type(arrays).__name__}",
            hint="{'x': images, 'labels': labels}",
        )
    if not arrays:
        raise ArgumentError("there are no arrays")
    opened: dict[str, Array | FileArray] = {}
    for name, value in arrays.items():
        if not isinstance(name, str):
            raise ArgumentError(f"arrays go by the names of a graph's inputs, got {name!r}")
        if isinstance(value, str | os.PathLike):
            value = open_array(value)
        array = value if isinstance(value, FileArray) else as_array(value, f"'{name}'")[0]
        if array.ndim == 0 or array.dtype.hasobject:
            raise ShapeError(
                f"'{name}' is {array.dtype}{list(array.shape)}, which has no rows of numbers"
            )
        opened[name] = array
    rows = {name: len(array) for name, array in opened.items()}
    if len(set(rows.values())) > 1:
        shown = ", ".join(f"'{name}' has {count}" for name, count in rows.items())
        raise ShapeError(f"all arrays have a row for each example, but {shown}")
    return opened
