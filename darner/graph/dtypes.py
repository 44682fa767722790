"""Element types and the one promotion table.

>>> promote(f16, bf16)
f32
>>> promote(i32, f16)
f16
>>> dtype("float32") is f32
True
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from .errors import DTypeError

_RANK = {"bool": 0, "int": 1, "float": 2, "complex": 3}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DType:
    """An element type. There is one object per type, so ``is`` compares them.

    ``==`` also compares with the names and types of others, as NumPy's dtypes do: ``x.dtype == "f32"``.
    """

    name: str
    kind: str
    bits: int
    signed: bool
    numpy: np.dtype[Any]

    # The spellings of RLX (`DType.F32`); filled in below the class.
    F64: ClassVar[DType]
    F32: ClassVar[DType]
    F16: ClassVar[DType]
    BF16: ClassVar[DType]
    I8: ClassVar[DType]
    I16: ClassVar[DType]
    I32: ClassVar[DType]
    I64: ClassVar[DType]
    U8: ClassVar[DType]
    U32: ClassVar[DType]
    Bool: ClassVar[DType]
    C64: ClassVar[DType]
    C128: ClassVar[DType]

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        """True for f64, f32, f16 and bf16."""
        return self.kind == "float"

    @property
    def is_int(self) -> bool:
        """True for the signed and unsigned integers (not bool)."""
        return self.kind == "int"

    @property
    def is_half(self) -> bool:
        """True for the 16-bit floats, which are stored narrow and computed in f32."""
        return self.kind == "float" and self.bits == 16

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and largest value of an integer type."""
        if self.kind == "bool":
            return 0, 1
        info = np.iinfo(self.numpy)
        return int(info.min), int(info.max)

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return self is other or (not isinstance(other, DType) and _find(other) is self)

    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return dtype, (self.name,)


def _make(name: str, kind: str, bits: int, numpy: Any, signed: bool = True) -> DType:
    return DType(name, kind, bits, signed, np.dtype(numpy))


f64 = _make("f64", "float", 64, np.float64)
f32 = _make("f32", "float", 32, np.float32)
f16 = _make("f16", "float", 16, np.float16)
bf16 = _make("bf16", "float", 16, ml_dtypes.bfloat16)
i8 = _make("i8", "int", 8, np.int8)
i16 = _make("i16", "int", 16, np.int16)
i32 = _make("i32", "int", 32, np.int32)
i64 = _make("i64", "int", 64, np.int64)
u8 = _make("u8", "int", 8, np.uint8, signed=False)
u32 = _make("u32", "int", 32, np.uint32, signed=False)
bool_ = _make("bool", "bool", 1, np.bool_, signed=False)
c64 = _make("c64", "complex", 64, np.complex64)
# What c64 becomes when a graph runs in float64; not a type users store.
c128 = _make("c128", "complex", 128, np.complex128)

ALL = (f64, f32, f16, bf16, i64, i32, i16, i8, u32, u8, bool_, c64)
FLOATS = (f64, f32, f16, bf16)
_BY_NAME = {t.name: t for t in (*ALL, c128)}
_BY_NUMPY = {t.numpy: t for t in (*ALL, c128)}
_BY_SCALAR: dict[Any, DType] = {t.numpy.type: t for t in (*ALL, c128)}
_SPELLINGS = {**{t.numpy.name: t for t in (*ALL, c128)}, **_BY_NAME}
_PYTHON: dict[Any, DType] = {bool: bool_, int: i32, float: f32, complex: c64}
for _type in (*ALL, c128):
    setattr(DType, "Bool" if _type is bool_ else _type.name.upper(), _type)


def dtype(value: Any) -> DType:
    """The DType of a name (``"f32"``, ``"float32"``), a Python type, or a dtype of NumPy, PyTorch or JAX."""
    found = _find(value)
    if found is None:
        from .habits.hints import hint

        shown = f"'{value}'" if isinstance(value, str) else repr(value)
        name = str(value).rpartition(".")[2]
        raise DTypeError(
            f"{shown} is not an element type",
            hint=hint("dtype", name, _BY_NAME) or f"the types are {', '.join(_BY_NAME)}",
        )
    return found


def _find(value: Any) -> DType | None:
    if isinstance(value, DType):
        return value
    if isinstance(value, np.dtype):
        return _BY_NUMPY.get(value)
    if isinstance(value, str):  # NumPy's codes are not read: its "i8" has 64 bits, ours 8
        return _SPELLINGS.get(value)
    if isinstance(value, type):
        # JAX's types are classes that have the dtype they stand for.
        stood_for: Any = getattr(value, "dtype", None)
        return _PYTHON.get(value) or _BY_SCALAR.get(value) or _BY_NUMPY.get(stood_for)
    # PyTorch's say what they are: str(torch.float32) is "torch.float32".
    return _SPELLINGS.get(str(value).removeprefix("torch.")) if _is_torch(value) else None


def _is_torch(value: Any) -> bool:
    return type(value).__module__ == "torch" and type(value).__name__ == "dtype"


@cache
def promote(a: DType, b: DType) -> DType:
    """The type two operands are both cast to. Commutative; raises where there is none.

    bool gives way to integers, integers to floats, floats to complex; the wider of two floats
    wins, and f16 with bf16 is f32. Signed with unsigned takes the narrowest signed type that
    holds both.
    """
    if a is b:
        return a
    if _RANK[a.kind] != _RANK[b.kind]:
        low, high = (a, b) if _RANK[a.kind] < _RANK[b.kind] else (b, a)
        if high is c64 and low is f64:
            raise DTypeError("f64 and c64 have no common type (there is no 128-bit complex)")
        return high
    if a.kind == "int" and a.signed != b.signed:
        signed, unsigned = (a, b) if a.signed else (b, a)
        bits = max(signed.bits, 2 * unsigned.bits)
        return _BY_NAME[f"i{min(bits, 64)}"]
    if a.bits == b.bits:  # f16 with bf16
        return f32
    return a if a.bits > b.bits else b


def of_python(value: complex | bool, beside: DType | None) -> DType:
    """The type a bare Python number takes next to a tensor: the tensor's, if it can hold the kind."""
    # bool is a kind of int, and enumerations may be too: the first match counts.
    own = next(dtype for kind, dtype in _PYTHON.items() if isinstance(value, kind))
    return beside_or_own(own, beside)


def beside_or_own(own: DType, beside: DType | None) -> DType:
    """The type that values without one of their own take next to a tensor."""
    if beside is None:
        return own
    return beside if _RANK[beside.kind] >= _RANK[own.kind] else promote(own, beside)


def at_least_float(t: DType) -> DType:
    """``t`` where it is float or complex already, else f32."""
    return t if t.kind in ("float", "complex") else f32


def accumulator(t: DType) -> DType:
    """The type of a sum or product: small integers and bool widen to i32, the rest stay."""
    return i32 if t.kind in ("bool", "int") and t.bits < 32 else t
