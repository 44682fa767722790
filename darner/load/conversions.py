"""Which element types become which without a value changing its meaning.

| stored | wanted | |
|---|---|---|
| f16, bf16, fp8 | f32, f64 | exact |
| f64, f32 | f32, f16, bf16 | rounds: only where that is allowed, and no number may become infinite |
| f16 | bf16 (and the other way round) | rounds |
| integers | integers | where every value fits |
| anything else | | no |

    >>> converted("w", np.array([1.5], np.float16), np.dtype(np.float32))
    array([1.5], dtype=float32)
    >>> converted("w", np.array([0.1], np.float32), np.dtype(np.float16))
    Traceback (most recent call last):
    darner.graph.errors.DTypeError: 'w' is float32, which float16 cannot hold without rounding; allow_rounding=True rounds it
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from ..graph.data import Array
from ..graph.errors import DTypeError
from ..io.tensorfile import raw_bytes

Kind: TypeAlias = Literal["exact", "rounds", "fits", "refused"]


def kind_of(dtype: np.dtype[Any]) -> str:
    """``int``, ``float``, ``bool`` or ``complex``."""
    # What ml_dtypes adds (bf16, fp8) is of no kind of NumPy's own.
    return {"i": "int", "u": "int", "b": "bool", "c": "complex"}.get(dtype.kind, "float")


def conversion(found: np.dtype[Any], wanted: np.dtype[Any]) -> Kind:
    """What becomes of values: they stay, are rounded, fit or do not (which only they tell), or are refused."""
    if found == wanted:
        return "exact"
    if kind_of(found) != kind_of(wanted):
        return "refused"
    if np.can_cast(found, wanted, "safe"):
        return "exact"
    return "fits" if kind_of(found) == "int" else "rounds"


def fault(array: Array, wanted: np.dtype[Any], allow_rounding: bool) -> str:
    """Why an array cannot become one of another element type, as the end of a sentence; empty where it can."""
    how = conversion(array.dtype, wanted)
    if how == "refused":
        return f"which is not made {wanted.name}"
    if how == "rounds" and not allow_rounding:
        return f"which {wanted.name} cannot hold without rounding"
    if how == "rounds" and _overflows(array, wanted):
        return f"with numbers too large for {wanted.name}"
    if how == "fits" and array.size:
        limits = np.iinfo(wanted)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            return f"with values outside {limits.min} to {limits.max}, which {wanted.name} holds"
    return ""


def converted(
    name: str, array: Array, wanted: np.dtype[Any], *, allow_rounding: bool = False
) -> Array:
    """An array in another element type; itself where it has it already.

    Raises:
        DTypeError: values would change their meaning.
    """
    wrong = fault(array, wanted, allow_rounding)
    if wrong:
        rounds = conversion(array.dtype, wanted) == "rounds" and not allow_rounding
        hint = "allow_rounding=True rounds it" if rounds else None
        raise DTypeError(f"'{name}' is {array.dtype.name}, {wrong}", hint=hint)
    return array.astype(wanted, copy=False)


def _overflows(array: Array, wanted: np.dtype[Any]) -> bool:
    """Whether a finite value becomes infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = array.astype(wanted)
    return bool(np.any(~np.isfinite(rounded) & np.isfinite(array)))


def same_bytes(a: Array, b: Array) -> bool:
    """Whether two arrays are the same bit for bit, shape and element type included."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    first, second = (raw_bytes(np.ascontiguousarray(one)) for one in (a, b))
    return np.array_equal(first, second)
