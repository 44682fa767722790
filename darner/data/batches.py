"""What a source of batches is, and the place in it that a run can be resumed from.

A batch is a table of NumPy arrays by the names of a graph's inputs. A source hands out batches epoch by epoch, and knows its
place: ``state()`` is a few JSON values, and ``restore`` goes back there, to the batch after the last one that was handed out.

What is random is a pure function of the seed, the epoch and the position (Philox counters, as everywhere in darner), so that
nothing but these numbers has to be remembered, and the order is the same on every machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from ..graph.data import Array
from ..graph.errors import ArgumentError, FormatError
from ..graph.integers import ceil_div

Batch: TypeAlias = dict[str, Array]
"""Arrays by the names of a graph's inputs."""


@runtime_checkable
class Batches(Protocol):
    """A source of batches that knows its place.

    >>> import numpy as np
    >>> from darner import data
    >>> source = data.Arrays({"x": np.arange(6)}, batch=2, shuffle=False)
    >>> isinstance(source, data.Batches)
    True
    """

    def __iter__(self) -> Iterator[Batch]:
        """The batches that are left of this epoch; after its end, those of the next."""
        ...

    def __len__(self) -> int:
        """How many batches an epoch has."""
        ...

    def state(self) -> dict[str, Any]:
        """The place of the source, in values that JSON can hold."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a place: what follows is what followed when ``state`` was called."""
        ...


class Stream(IntEnum):
    """What random numbers are for: each use has numbers of its own."""

    ORDER = 0
    SPLIT = 1
    WINDOWS = 2
    AUGMENT = 3


def random_source(seed: int, epoch: int, stream: Stream, position: int = 0) -> np.random.Philox:
    """Random bits that depend on these four numbers alone, wherever they are drawn."""
    key = np.array([seed, epoch], np.uint64)
    return np.random.Philox(key=key, counter=np.array([0, 0, position, stream], np.uint64))


def random_order(count: int, seed: int, epoch: int = 0, stream: Stream = Stream.ORDER) -> Array:
    """The numbers below ``count`` in the order of an epoch.

    >>> random_order(5, seed=1), random_order(5, seed=1, epoch=1)
    (array([3, 2, 0, 1, 4]), array([0, 3, 4, 2, 1]))
    """
    keys = random_source(seed, epoch, stream).random_raw(count)
    # A stable sort leaves nothing open, not even for equal keys.
    return np.argsort(np.asarray(keys, np.uint64), kind="stable")


class Epochs(ABC):
    """A source whose batches are a function of epoch and position; what is left is keeping the place.

    A subclass says how many batches an epoch has, and what a batch is:

    >>> class Squares(Epochs):
    ...     def __len__(self):
    ...         return 3
    ...     def batch_at(self, epoch, position):
    ...         return {"x": np.array([epoch, position**2])}
    >>> source = Squares()
    >>> [batch["x"].tolist() for batch in source], source.state()
    ([[0, 0], [0, 1], [0, 4]], {'epoch': 1, 'position': 0, 'seed': 0, 'batches': 3})

    There is one place, whoever iterates: two iterators share out the batches of an epoch, and a loop that was left by
    ``break`` is continued by the next one.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = whole("seed", seed, 0, 2**64 - 1)
        self._epoch = 0
        self._position = 0
        # The order of the epoch at hand, kept while it lasts.
        self._order: tuple[tuple[int, int, int], Array] | None = None

    @abstractmethod
    def __len__(self) -> int:
        """How many batches an epoch has."""

    @abstractmethod
    def batch_at(self, epoch: int, position: int) -> Batch:
        """One batch, wherever the source is."""

    def order_of(self, count: int, epoch: int) -> Array:
        """The numbers below ``count`` in the random order of an epoch."""
        key = (count, self.seed, epoch)
        if self._order is None or self._order[0] != key:
            self._order = (key, random_order(count, self.seed, epoch))
        return self._order[1]

    def __iter__(self) -> Iterator[Batch]:
        """The batches that are left of this epoch; after its end, those of the next."""
        epoch = self._epoch
        while self._epoch == epoch:
            batch = self.batch_at(epoch, self._position)
            # The place moves on before the batch is handed out, and not at all where it could not be made.
            self._position += 1
            if self._position >= len(self):
                self._epoch, self._position = epoch + 1, 0
            yield batch

    def state(self) -> dict[str, Any]:
        """The place: complete epochs, batches of this one, the seed; and the batches of an epoch, as a check."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "seed": self.seed,
            "batches": len(self),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to the place that ``state()`` told, of this or of an equal source; its seed comes with it."""
        if not isinstance(state, Mapping):
            raise FormatError(
                f"a state is a table, got {state!r}",
                hint="give restore() what state() of an equal source returned",
            )
        missing = [key for key in ("epoch", "position", "seed", "batches") if key not in state]
        if missing:
            raise FormatError(
                f"the state {dict(state)!r} has no {' and no '.join(missing)}",
                hint="give restore() what state() of an equal source returned",
            )
        if state["batches"] != len(self):
            raise FormatError(
                f"the state is of a source with {state['batches']} batches an epoch, this one has {len(self)}",
                hint="make the source with the same examples and sizes as before",
            )
        epoch = whole("epoch", state["epoch"], 0, 2**64 - 1)
        position = whole("position", state["position"], 0, len(self) - 1)
        self.seed = whole("seed", state["seed"], 0, 2**64 - 1)
        self._epoch, self._position = epoch, position


def whole(name: str, value: Any, low: int, high: int | None = None) -> int:
    """A whole number within bounds, or an error that names it."""
    number = None
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        number = int(value)
    if number is None or number < low or (high is not None and number > high):
        bounds = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ArgumentError(f"{name} is a whole number, {bounds}, got {value!r}")
    return number


def batches_of(count: int, batch: int, drop_last: bool, what: str) -> int:
    """How many batches ``count`` things fill; at least one."""
    if count == 0:
        raise ArgumentError(f"there are no {what}")
    if drop_last and count < batch:
        raise ArgumentError(
            f"{count} {what} do not fill one batch of {batch}",
            hint=f"take batches of {count} at most, or drop_last=False",
        )
    return count // batch if drop_last else ceil_div(count, batch)
