"""Constant values carried inside a graph: immutable, compared and hashed bit for bit."""

from __future__ import annotations

import base64
import hashlib
import zlib
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from . import dtypes
from .arrays import as_array
from .dims import as_shape
from .dtypes import DType
from .errors import ArgumentError, DarnerError, FormatError
from .types import TensorType

Array: TypeAlias = npt.NDArray[Any]


class Data:
    """A read-only array with a content hash.

    Two are equal when type, shape and every bit are, so NaN equals itself and -0.0 is not 0.0.
    """

    __slots__ = ("array", "digest", "type")

    def __init__(self, array: Array) -> None:
        kind = dtypes.dtype(array.dtype)
        # ascontiguousarray makes a scalar one-dimensional; the reshape undoes that.
        stored = np.array(array, dtype=kind.numpy, order="C", copy=True).reshape(array.shape)
        stored.flags.writeable = False
        self.array = stored
        self.type = TensorType(as_shape(stored.shape), kind)
        head = str(self.type).encode()
        self.digest = hashlib.blake2b(head + stored.tobytes(), digest_size=16).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Data) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Data({self.type}, {self.digest[:8]})"

    def literal(self) -> Any:
        """Nested lists that read back to the same bits, or None where there are none."""
        kind = self.type.dtype
        with np.errstate(invalid="ignore"):  # a signalling NaN
            if kind.kind == "complex" or not np.all(np.isfinite(self.array)):
                return None
        if kind.kind != "float":
            return self.array.tolist()
        # The shortest decimal that rounds back: 0.1 for an f32, not 0.10000000149011612.
        exact = self.array.astype(np.float32) if kind is dtypes.bf16 else self.array
        shortest = [float(str(x)) for x in exact.reshape(-1)]
        return np.array(shortest, np.float64).reshape(exact.shape).tolist()

    def to_json(self) -> dict[str, str]:
        """Type and bytes as text; compressed where that is shorter."""
        raw = self.array.tobytes()
        packed = zlib.compress(raw, 6)
        codec, body = ("zlib", packed) if len(packed) < len(raw) else ("raw", raw)
        return {"type": str(self.type), codec: base64.b64encode(body).decode("ascii")}

    @classmethod
    def from_json(cls, document: Any) -> Data:
        """The inverse of ``to_json``."""
        from .types import parse_type

        try:
            kind = parse_type(document["type"])
            if not isinstance(kind, TensorType):
                raise ValueError("it is not one tensor")
            count = int(kind.nbytes)
            codec = "zlib" if "zlib" in document else "raw"
            raw = base64.b64decode(document[codec], validate=True)
            if codec == "zlib":  # never more than the type asks for, whatever was packed
                raw = zlib.decompressobj().decompress(raw, count + 1)
            if len(raw) != count:
                raise ValueError(f"{kind} needs {count} bytes")
            array = np.frombuffer(raw, kind.dtype.numpy).reshape([int(d) for d in kind.shape])
        except KeyError as error:
            raise FormatError(f"a stored constant has no field {error}") from error
        except (AttributeError, TypeError, ValueError, OverflowError, zlib.error) as error:
            raise FormatError(f"a stored constant cannot be read: {error}") from error
        return cls(array)


def as_data(value: Any, dtype: DType | None = None) -> Data:
    """Constant data from a number, a nested list or an array.

    Without ``dtype`` an array keeps its own; numbers and lists take i32, f32, bool or c64.
    """
    if isinstance(value, Data):
        return (
            value if dtype is None or dtype is value.type.dtype else Data(_cast(value.array, dtype))
        )
    if type(value) in (bool, int, float):
        # A key of its own for -0.0, which is equal to 0.0.
        return _of_number(value, dtype, repr(value) if value == 0 else "")
    return _of_array(value, dtype)


@lru_cache(maxsize=1024, typed=True)
def _of_number(value: float, dtype: DType | None, zero: str) -> Data:
    """The data of a bare number; the same few are met again and again."""
    return _of_array(value, dtype)


def _of_array(value: Any, dtype: DType | None) -> Data:
    if isinstance(value, int) and dtype is not None and dtype.is_float:
        try:
            value = float(value)  # NumPy has no integers above 64 bits
        except OverflowError:
            raise ArgumentError(f"{_shown(value)} is too large for {dtype}") from None
    try:
        array, typed = as_array(value, "it", ArgumentError)
    except DarnerError as error:
        raise ArgumentError(
            f"cannot make a constant of {_shown(value)}: {error.rule}", hint=error.hint
        ) from None
    if dtype is None:
        if typed:
            dtype = dtypes.dtype(array.dtype)
        else:
            default = {"b": dtypes.bool_, "i": dtypes.i32, "u": dtypes.i32, "c": dtypes.c64}
            dtype = default.get(array.dtype.kind, dtypes.f32)
    return Data(_cast(array, dtype))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _cast(array: Array, dtype: DType) -> Array:
    """Cast to ``dtype``, refusing values it cannot hold."""
    if array.dtype == dtype.numpy or array.size == 0:
        return array.astype(dtype.numpy, copy=False)
    if array.dtype.kind == "c" and dtype.kind != "complex":
        raise ArgumentError(f"complex values do not fit in {dtype}")
    if dtype.is_int:
        low, high = dtype.limits
        # As Python's numbers, which compare exactly where floats would round the limits.
        smallest, largest = array.min().item(), array.max().item()
        if not (low <= smallest and largest <= high):
            worst = largest if largest > high else smallest
            raise ArgumentError(f"{worst} does not fit in {dtype} ({low} to {high})")
        if array.dtype.kind not in "iub" and not np.array_equal(np.trunc(array), array):
            raise ArgumentError(f"fractions do not fit in {dtype}", hint="round or cast them first")
    with np.errstate(over="ignore", invalid="ignore"):
        result = array.astype(dtype.numpy)
        grown = np.isinf(result) & np.isfinite(array)
    if grown.any():
        raise ArgumentError(f"{array[grown].flat[0]} is too large for {dtype}")
    return result
