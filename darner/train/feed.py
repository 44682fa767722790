"""Batches as training takes them: epoch after epoch, by the names of inputs, from a place that can be kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..graph.errors import ArgumentError, RunError
from . import stated

Batch = Mapping[str, Any]
"""The values of inputs by name."""


class Listed:
    """A list of batches as a source: the same order in every epoch.

    >>> source = Listed(["a", "b", "c"])
    >>> [next(iter(source)), source.state(), list(source), source.state()]
    ['a', {'epoch': 0, 'position': 1}, ['b', 'c'], {'epoch': 1, 'position': 0}]
    """

    def __init__(self, batches: Sequence[Any]) -> None:
        self.batches = batches
        self._epoch = self._position = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        while self._position < len(self.batches):
            self._position += 1
            yield self.batches[self._position - 1]
        self._epoch, self._position = self._epoch + 1, 0

    def state(self) -> dict[str, int]:
        """Where it is."""
        return {"epoch": self._epoch, "position": self._position}

    def restore(self, state: Mapping[str, int]) -> None:
        """Be there again."""
        found = stated.table(state, "the place of the batches")
        epoch = stated.whole(stated.entry(found, "epoch"), "the epoch")
        position = stated.whole(stated.entry(found, "position"), "the position", len(self))
        self._epoch, self._position = epoch, position


class Feed:
    """The batches of a source, one after another, and which epoch they belong to.

    Args:
        source: see ``darner.data.Batches``; or a list of batches; or anything that can be iterated again and again,
            which then cannot be resumed.
        names: what the parts of a batch are called that is no mapping but a tuple of arrays.

    Attributes:
        epoch: the one that the next batch belongs to; the first is 0.
        position: how many batches of it were handed out.
    """

    def __init__(self, source: Any, names: Sequence[str] = ("x", "labels")) -> None:
        if isinstance(source, str | bytes | Mapping) or not isinstance(source, Iterable):
            raise ArgumentError(
                f"batches are iterated over, got {type(source).__name__}",
                hint="a list of {input: array}, or a source of darner.data",
            )
        self.source: Any = source
        self.resumable = hasattr(source, "state") and hasattr(source, "restore")
        if not self.resumable and isinstance(source, Sequence):
            self.source, self.resumable = Listed(source), True
        self.length = len(self.source) if hasattr(self.source, "__len__") else None
        if self.length == 0:
            raise ArgumentError("there are no batches")
        self.epoch = self.position = 0
        self._names = tuple(names)
        self._iterator: Iterator[Any] | None = None

    def next(self) -> Batch | None:
        """The next batch; None, once, where an epoch ended."""
        for _ in range(2):
            if self._iterator is None:
                self._iterator = iter(self.source)
            batch = next(self._iterator, None)
            if batch is not None:
                self.position += 1
                return self.named(batch)
            self._iterator = None
            if self.position:
                self._turn()
                return None
            # A source that was restored behind its last batch may end once before it begins anew.
        raise RunError(
            f"the batches are exhausted after {self.epoch} epochs",
            hint="they are iterated again for every epoch: a generator cannot be",
        )

    def ended(self) -> bool:
        """Whether the batch handed out last was the last of its epoch; the next one is of the following epoch.

        So the end of an epoch is part of the step it belongs to. Where a source has no length, ``next`` tells later.
        """
        if self.position != self.length or self._iterator is None:
            return False
        # The source sees its end too: from here on its state says that an epoch begins.
        if next(self._iterator, None) is not None:
            raise RunError(f"an epoch has {self.length} batches by its length, but there are more")
        self._iterator = None
        self._turn()
        return True

    def pause(self) -> None:
        """Let go of what the source holds while it is iterated, threads say; it goes on where it was."""
        if self.resumable:
            self._iterator = None

    def _turn(self) -> None:
        self.epoch, self.position = self.epoch + 1, 0

    def named(self, batch: Any) -> Batch:
        """A batch as a mapping from inputs to arrays."""
        if isinstance(batch, Mapping):
            return batch
        if not isinstance(batch, tuple | list) or len(batch) != len(self._names):
            raise ArgumentError(
                f"a batch is a mapping from inputs to arrays, or one array for each of {list(self._names)}; "
                f"got {type(batch).__name__}"
            )
        return dict(zip(self._names, batch, strict=True))

    def state(self) -> dict[str, Any]:
        """Where it is, in values of JSON."""
        return {"epoch": self.epoch, "position": self.position, "source": self.source.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Be there again: the next batch is the one after the last that was handed out."""
        found = stated.table(state, "the place of the batches")
        epoch = stated.whole(stated.entry(found, "epoch"), "the epoch")
        position = stated.whole(stated.entry(found, "position"), "the position", self.length)
        self.source.restore(stated.entry(found, "source"))
        self._iterator = None
        self.epoch, self.position = epoch, position


class Amount:
    """How much a batch is: its tokens where it has any, else its samples.

    >>> import numpy as np
    >>> amount = Amount({"tokens": np.zeros((2, 8), np.int32), "labels": np.zeros((2, 8), np.int32)})
    >>> amount.unit, amount({"tokens": np.zeros((4, 8), np.int32)})
    ('tokens', 32)
    >>> amount = Amount({"x": np.zeros((5, 2)), "labels": np.zeros(5, np.int32)})
    >>> amount.unit, amount({"x": np.zeros((3, 2))})
    ('samples', 3)
    """

    TOKENS = ("tokens", "input_ids")

    def __init__(self, batch: Batch) -> None:
        tokens = next((name for name in self.TOKENS if name in batch), None)
        self.unit = "samples" if tokens is None else "tokens"
        self._name = next(iter(batch)) if tokens is None else tokens
        self._whole = tokens is not None

    def __call__(self, batch: Batch) -> int:
        """Of one batch."""
        shape = getattr(batch[self._name], "shape", None)
        if shape is None:
            return len(batch[self._name])
        if self._whole:
            return int(batch[self._name].size)
        return int(shape[0]) if shape else 1
