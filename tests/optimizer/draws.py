"""Sizes and element types drawn at random, so that one function writes many graphs.

>>> d = Draws(0)
>>> d.shape(least=2)
(5, 3)

Seed 0 is the plain one, on which every rule must fire: no size is 0 or 1, no two sizes drawn one after the other are
the same, shapes have two axes where that is allowed, and floats are f32. The other seeds draw anything.
"""

import random
from collections.abc import Sequence
from typing import Any

SIZES = (0, 1, 2, 3, 5)
FLOATS = ("f32", "f32", "bf16", "f16")


class Draws:
    """One seed's draws; the same seed gives the same ones in the same order.

    Attributes:
        seed: the seed.
        plain: whether this is the plain one.
        float: an element type, one for the whole graph; the name of a float type.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.plain = seed == 0
        self._random = random.Random(seed)
        self._plain_sizes = 0
        self.float = "f32" if self.plain else self._random.choice(FLOATS)

    def size(self, least: int = 0) -> int:
        """The size of an axis: 0, 1, 2, 3 or 5, and at least ``least``."""
        if self.plain:
            self._plain_sizes += 1
            sizes = [size for size in (5, 3, 2) if size >= least]
            return sizes[(self._plain_sizes - 1) % len(sizes)]
        # Zeros hide what a rule computes, so they are rare.
        sizes = [size for size in SIZES if size >= least]
        return self._random.choices(sizes, [1 if size == 0 else 3 for size in sizes])[0]

    def rank(self, least: int = 0, most: int = 3) -> int:
        """The number of axes."""
        if self.plain:
            return min(max(2, least), most)
        return self._random.randint(least, most)

    def shape(self, least: int = 0, most: int = 3) -> tuple[int, ...]:
        """A shape with ``least`` to ``most`` axes."""
        most = max(least, most)
        return tuple(self.size() for _ in range(self.rank(least, most)))

    def matrix(self) -> tuple[int, int]:
        """The sizes of a matrix."""
        return self.size(), self.size()

    def dtype(self) -> str:
        """A float type: ``float`` itself, so that all operands of a graph agree."""
        return self.float

    def integer(self, low: int, high: int) -> int:
        """A number from ``low`` to ``high``, both included."""
        return self._random.randint(low, high)

    def choice(self, values: Sequence[Any]) -> Any:
        """One of the values; the plain draws take the first."""
        return values[0] if self.plain else self._random.choice(values)

    def flag(self) -> bool:
        """True or False; the plain draws say True."""
        return self.choice((True, False))

    def axis(self, rank: int) -> int:
        """An axis of a shape with ``rank`` axes, from the front or from the back; plain: the last."""
        return self.choice([-1, *range(-rank, rank)])

    def permutation(self, rank: int) -> list[int]:
        """An order of ``rank`` axes; the plain draws turn them round."""
        axes = list(range(rank))
        if self.plain:
            return axes[::-1]
        self._random.shuffle(axes)
        return axes

    def broadcast(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts to this one; plain: its last axis alone."""
        if self.plain:
            return tuple(shape[-1:])
        kept = self._random.randint(0, len(shape))
        return tuple(
            1 if self._random.random() < 0.3 else size for size in shape[len(shape) - kept :]
        )
