"""Parameters that are stored in blocks: what they are in memory, and what is computed with."""

from __future__ import annotations

import numpy as np

from ...graph import dtypes
from ...graph.data import Array
from ...graph.dims import divide
from ...graph.dtypes import DType
from ...graph.errors import ShapeError
from ...graph.node import Node
from ...graph.types import TensorType
from ..creation.leaves import Q_BLOCK
from .packed import decoded, dequantize_blocks
from .quantiser import quantize_weights
from .scheme import QuantScheme

STORED: dict[str, QuantScheme] = {"q4": QuantScheme.GgufQ4_1, "q8": QuantScheme.GgufQ8_0}
"""The schemes of the ways to store a matrix; its blocks run down columns, so that it is its transpose that lies in memory."""


def stored_type(type_: TensorType, storage: str) -> TensorType:
    """What a parameter is in memory.

    >>> stored_type(TensorType.new((64, 3)), "q8"), stored_type(TensorType.new((64, 3)), "dense")
    (TensorType(shape=(3, 68), dtype=u8), TensorType(shape=(64, 3), dtype=f32))
    """
    if storage == "dense":
        return type_
    rows, columns = type_.shape
    blocks = divide(rows, Q_BLOCK)
    if blocks is None:
        raise ShapeError(f"{storage} storage needs rows in blocks of {Q_BLOCK}, got {rows}")
    return TensorType((columns, blocks * STORED[storage].layout.bytes), dtypes.u8)


def stored(array: Array, storage: str) -> Array:
    """A value of a parameter as it is in memory."""
    if storage == "dense":
        return array
    return quantize_weights(array.T, STORED[storage]).codes


def restored(array: Array, storage: str, dtype: DType) -> Array:
    """What lies in memory as a value of a parameter of this type."""
    if storage == "dense":
        return array
    wide = dtype if dtype is dtypes.f64 else dtypes.f32
    return np.ascontiguousarray(decoded(STORED[storage], array, wide).T).astype(dtype.numpy)


def stored_value(array: Array, storage: str) -> Array:
    """What a parameter is computed with, from the value it was given."""
    if storage == "dense":
        return array
    return restored(stored(array, storage), storage, dtypes.dtype(array.dtype))


def restored_node(packed: Node, storage: str, dtype: DType) -> Node:
    """The same in a graph."""
    to = dtype if dtype is dtypes.f64 else dtypes.f32
    weights = dequantize_blocks(packed, scheme=STORED[storage], to=to).transpose((1, 0))
    result: Node = weights if dtype is to else weights.cast(dtype)
    return result
