"""Constants computed while optimizing, by the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph.data import Data
from ..graph.dims import SymbolicDim
from ..graph.errors import RunError
from ..graph.graph import Graph
from ..graph.op import Op
from ..graph.types import TensorType, Type

LARGEST = 4096
"""Elements that a folded constant may have: what would only make a graph larger is computed when it runs."""

_KEPT = frozenset({"leaf", "random", "barrier"})


def fold(
    op: Op,
    slots: tuple[str, ...],
    attrs: dict[str, Any],
    operands: Sequence[Data | None],
    type_: Type,
) -> Data | None:
    """The value of a call whose operands are all constants, where it is worth keeping."""
    if not foldable(op, type_) or not operands:
        return None
    known = [data for data in operands if data is not None]
    if len(known) < len(operands):
        return None
    # A small constant repeated is better left to be repeated.
    if isinstance(type_, TensorType) and type_.size > max(16, *(d.array.size for d in known)):
        return None
    try:
        return evaluated(op, slots, attrs, known)
    except RunError:
        return None  # what cannot be computed is an error when the graph runs, with its line


def foldable(op: Op, type_: Type) -> bool:
    """Whether a call of constants may become one: a primitive, small, of one known size, and finite in meaning."""
    # A user's function is called when the graph runs: what it raises is told with its line.
    if op.is_composite or not op.builtin or op.traits & _KEPT or not isinstance(type_, TensorType):
        return False
    if any(isinstance(size, SymbolicDim) for size in type_.shape):
        return False
    return int(type_.size) <= LARGEST


def evaluated(
    op: Op, slots: tuple[str, ...], attrs: dict[str, Any], operands: Sequence[Data]
) -> Data:
    """A call on constants, run by the reference."""
    from ..interpreter import compute

    graph = Graph("fold")
    leaves = [graph.insert("constant", [], (), {"values": data}) for data in operands]
    node = graph.insert(op, leaves, slots, attrs)
    with np.errstate(all="ignore"):
        return Data(np.asarray(compute(node, [data.array for data in operands])))
