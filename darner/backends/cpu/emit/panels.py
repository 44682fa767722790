"""Matrices in panels, and back: who has one packed need not keep it as it was given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from ....graph.data import Array
from ...base.memory import Bytes


class Offer(NamedTuple):
    """What of a kernel may lie in panels: operands, and after them results, by position.

    Attributes:
        alone: each by itself.
        together: all of them or none.
    """

    alone: Mapping[int, Panels] = {}
    together: Mapping[int, Panels] = {}

    def get(self, position: int) -> Panels | None:
        """The panels that one may lie in, if it may."""
        return self.alone.get(position) or self.together.get(position)


class Panels(NamedTuple):
    """A matrix of ``rows`` by ``columns``, all of an operand, as panels ``[panel][row][width]`` of its own elements.

    Attributes:
        rows, columns: its sizes.
        width: columns of a panel.
        last: columns that the last panel has room for, if it is not a whole one; else 0.
        turned: whether the operand has the columns one after the other, not the rows.

    >>> import numpy as np
    >>> packed = np.array([1, 2, 4, 5, 3, 0, 6, 0], np.int32).view(np.uint8)
    >>> Panels(2, 3, 2, 2, False).unpacked(packed, like=np.empty((2, 3), np.int32))
    array([[1, 2, 3],
           [4, 5, 6]], dtype=int32)
    """

    rows: int
    columns: int
    width: int
    last: int
    turned: bool

    def unpacked(self, packed: Bytes, like: Array) -> Array:
        """The operand as it was, of the shape and type of another array."""
        out = np.empty_like(like)
        self.unpack(packed, out)
        return out

    @property
    def elements(self) -> int:
        """How many there are in panels, those that fill up the last one included."""
        whole, rest = divmod(self.columns, self.width)
        return self.rows * (whole * self.width + (self.last if rest else 0))

    def unpack(self, packed: Bytes, operand: Array) -> None:
        """Give an operand the value that is in panels."""
        for panel, some in self._pairs(packed, operand):
            some[...] = panel

    def pack(self, operand: Array, packed: Bytes) -> None:
        """Put an operand into panels; what fills up the last one stays as it is."""
        for panel, some in self._pairs(packed, operand):
            panel[...] = some

    def _pairs(self, packed: Bytes, operand: Array) -> Iterator[tuple[Array, Array]]:
        """Each panel, as far as it holds columns, and the same columns of an operand."""
        rows, columns, width, last, turned = self
        matrix = operand.reshape(columns, rows).T if turned else operand.reshape(rows, columns)
        elements, start = packed.view(operand.dtype), 0
        for first in range(0, columns, width):
            wide = width if first + width <= columns else last
            panel = elements[start : start + rows * wide].reshape(rows, wide)
            some = matrix[:, first : first + width]
            yield panel[:, : some.shape[1]], some
            start += panel.size
