"""Several tensors side by side in one: where each lies, and views of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .data import Array
from .dims import Dim
from .errors import ArgumentError
from .types import TensorType


@dataclass(frozen=True)
class Parts:
    """What a stored block is made of: tensors by name, which stand side by side along an axis.

    Attributes:
        axis: the axis along which they stand side by side.
        sources: each one's name and its size along ``axis``, in order.

    >>> both = Parts(1, (("gate", 2), ("up", 1)))
    >>> both.places
    {'gate': (0, 2), 'up': (2, 3)}
    >>> whole = both.join({"gate": np.array([[1, 2]]), "up": np.array([[3]])})
    >>> whole, both.view(whole, "up")
    (array([[1, 2, 3]]), array([[3]]))
    """

    axis: int
    sources: tuple[tuple[str, Dim], ...]

    def __iter__(self) -> Iterator[str]:
        """The names, in order."""
        return (name for name, _ in self.sources)

    @property
    def places(self) -> dict[str, tuple[int, int]]:
        """Where along the axis each begins and ends."""
        found, start = {}, 0
        for name, size in self.sources:
            found[name] = (start, start + int(size))
            start += int(size)
        return found

    @property
    def size(self) -> int:
        """Of all of them along the axis."""
        return sum(int(size) for _, size in self.sources)

    def with_suffix(self, suffix: str) -> Parts:
        """The same parts of something that each of the names has: ``/mean``."""
        return Parts(self.axis, tuple((f"{name}{suffix}", size) for name, size in self.sources))

    def types(self, whole: TensorType) -> dict[str, TensorType]:
        """The type of each part of a whole of this type."""
        shape, axis = whole.shape, self.axis
        return {
            name: TensorType((*shape[:axis], size, *shape[axis + 1 :]), whole.dtype)
            for name, size in self.sources
        }

    def bounds(self, name: str, shape: Sequence[Dim]) -> tuple[list[int], list[int]]:
        """Where a part begins and ends along every axis of a whole of this shape."""
        starts, stops = [0] * len(shape), [int(size) for size in shape]
        starts[self.axis], stops[self.axis] = self.places[name]
        return starts, stops

    def join(self, values: Mapping[str, Array]) -> Array:
        """The whole from its parts."""
        return np.concatenate([values[name] for name in self], self.axis)

    def split(self, whole: Array) -> dict[str, Array]:
        """The parts of the whole, as views: what is written into them is written into it."""
        return {name: self.view(whole, name) for name in self}

    def view(self, whole: Array, name: str) -> Array:
        """One part of the whole, as a view."""
        places = self.places
        if name not in places:
            raise ArgumentError(f"'{name}' is not a part of {'+'.join(self)}")
        start, stop = places[name]
        index = [slice(None)] * whole.ndim
        index[self.axis] = slice(start, stop)
        return whole[tuple(index)]
