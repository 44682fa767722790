"""How element types are stored, and the types that their sums are kept in."""

from __future__ import annotations

from ...graph import dtypes
from ...graph.dtypes import DType

STORAGE_BYTES = {"f32": 4, "f64": 8, "bf16": 2, "f16": 2}


def accumulator_type(result: DType) -> DType:
    """The type that running results are kept in: that of the result, or f32 for 16-bit floats."""
    return dtypes.f32 if result.is_half else result


ACCUMULATOR = {name: accumulator_type(dtypes.dtype(name)).name for name in STORAGE_BYTES}
"""The same by name, for the types that contractions have kernels for."""
