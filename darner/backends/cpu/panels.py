"""Matrices in panels, read back: who has one packed need not keep it as it was given."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...graph.data import Array
from ..memory import Bytes


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
        rows, columns, width, last, turned = self
        matrix = out.reshape(columns, rows).T if turned else out.reshape(rows, columns)
        elements, start = packed.view(out.dtype), 0
        for first in range(0, columns, width):
            wide = width if first + width <= columns else last
            panel = elements[start : start + rows * wide].reshape(rows, wide)
            some = matrix[:, first : first + width]
            some[...] = panel[:, : some.shape[1]]
            start += panel.size
        return out
