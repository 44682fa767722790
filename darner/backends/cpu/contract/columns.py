"""Some columns of the product of a few rows, which are summed before they go to C."""

from __future__ import annotations

from typing import NamedTuple

from ....codegen.ir.types import Pointer, Value


class Columns(NamedTuple):
    """Columns whose sums are made together.

    Attributes:
        a: where A lies.
        b: where B lies.
        first: the first column.
        stop: the one after the last.
        sums: where their sums go, ``[row][column - first]``.
        copy: memory for a copy of the rows of A.
        panel: memory for what is decoded of a tile's columns.
    """

    a: Pointer
    b: Pointer
    first: Value
    stop: Value
    sums: Pointer
    copy: Pointer
    panel: Pointer
