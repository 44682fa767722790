"""The type of a value: its shape and element type, and how shapes combine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from . import dtypes
from .dims import (
    Dim,
    Shape,
    SymbolicDim,
    as_shape,
    bind_dim,
    format_shape,
    product,
)
from .dtypes import DType
from .errors import FormatError, ShapeError

MOST_BYTES = 1 << 63
"""Bytes that no tensor has: offsets are signed numbers of 64 bits."""


MOST_AXES = 64
"""NumPy's limit."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of one tensor. Prints, and parses, as ``f32[32, 784]``.

    RLX calls this a Shape: ``Shape.new([4, 15, 384], DType.F32)`` makes one too.
    """

    shape: Shape
    dtype: DType

    def __post_init__(self) -> None:
        if len(self.shape) > MOST_AXES:
            raise ShapeError(
                f"{len(self.shape)} axes are more than the {MOST_AXES} that arrays have"
            )
        # Empty tensors too: strides and offsets are made of the other sizes.
        nbytes = self.dtype.itemsize
        for size in self.shape:
            if isinstance(size, int):
                nbytes *= size or 1
        if nbytes >= MOST_BYTES:
            raise ShapeError(
                f"{self.dtype.name}[{', '.join(map(str, self.shape))}] is larger than any memory: its bytes do not fit 63 bits"
            )

    @classmethod
    def new(cls, shape: Any, dtype: Any = "f32") -> TensorType:
        """A type from loose spellings of its shape and dtype."""
        return cls(as_shape(shape), dtypes.dtype(dtype))

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> Dim:
        """The number of elements."""
        return product(self.shape)

    @property
    def nbytes(self) -> Dim:
        """Bytes when stored densely."""
        return self.size * self.dtype.itemsize

    @property
    def symbols(self) -> frozenset[str]:
        """Names of the symbolic sizes in the shape."""
        found = [d.symbols for d in self.shape if isinstance(d, SymbolicDim)]
        return frozenset().union(*found)

    def with_shape(self, shape: Sequence[Dim]) -> TensorType:
        """The same element type with another shape."""
        return TensorType(tuple(shape), self.dtype)

    def with_dtype(self, dtype: DType) -> TensorType:
        """The same shape with another element type."""
        return TensorType(self.shape, dtype)

    def bind(self, bindings: Mapping[str, Dim]) -> TensorType:
        """Put sizes in place of symbols."""
        return TensorType(tuple(bind_dim(d, bindings) for d in self.shape), self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class TupleType:
    """The type of a node with several results; only ``project`` reads one."""

    items: tuple[TensorType, ...]

    def bind(self, bindings: Mapping[str, Dim]) -> TupleType:
        """Put sizes in place of symbols."""
        return TupleType(tuple(t.bind(bindings) for t in self.items))

    @property
    def symbols(self) -> frozenset[str]:
        """Names of the symbolic sizes in any item."""
        return frozenset().union(*(t.symbols for t in self.items))

    @property
    def nbytes(self) -> Dim:
        """Bytes of all items."""
        total: Dim = 0
        for item in self.items:
            total = total + item.nbytes
        return total

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.items))})"


Type: TypeAlias = TensorType | TupleType

_TENSOR = re.compile(r"([a-z]+\d*)\[([^\[\]]*)\]")
_TUPLE = re.compile(r"\(([a-z]+\d*\[[^\[\]]*\](, [a-z]+\d*\[[^\[\]]*\])*)?\)")


@lru_cache(maxsize=4096)
def parse_type(text: str) -> Type:
    """Read a type as it prints."""
    stripped = text.strip()
    if _TUPLE.fullmatch(stripped):
        return TupleType(tuple(_parse_tensor(item[0]) for item in _TENSOR.finditer(stripped)))
    return _parse_tensor(stripped)


def _parse_tensor(text: str) -> TensorType:
    match = _TENSOR.fullmatch(text)
    if match is None:
        shown = text if len(text) <= 40 else text[:37] + "..."
        raise FormatError(f"'{shown}' is not a type: expected a form like f32[32, 784]")
    sizes = match[2].split(",") if match[2] else []
    return TensorType(as_shape(sizes), dtypes.dtype(match[1]))


def broadcast(*shapes: Shape) -> Shape:
    """NumPy's rule: aligned at the right, equal sizes or 1."""
    rank = max(map(len, shapes), default=0)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        # From the last axis, where the shapes are aligned: that is the mismatch a reader sees first.
        for i, size in zip(range(rank - 1, -1, -1), reversed(shape), strict=False):
            if size == 1 or size == result[i]:
                continue
            if result[i] != 1:
                raise ShapeError(
                    f"sizes {result[i]} and {size} on axis {i - rank} do not broadcast"
                )
            result[i] = size
    return tuple(result)


__all__ = [
    "Dim",
    "Shape",
    "TensorType",
    "TupleType",
    "Type",
    "broadcast",
    "format_shape",
    "parse_type",
    "product",
]
