"""How WGSL spells types and constants."""

from __future__ import annotations

import math
import struct
from functools import lru_cache

from ...codegen.simt.builder import Type
from ...graph import dtypes
from ...graph.dtypes import DType

FLOATS = {"half": "f32", "float": "f32", "double": "f64"}


def width(type_: Type) -> int:
    """The bits of an integer type; 0 of others."""
    return int(getattr(type_, "width", 0))


def spelled(type_: Type, signed: bool = False) -> str:
    """How WGSL calls the type that holds values of an IR type."""
    count = getattr(type_, "count", None)
    if count is not None:
        return f"vec{count}<{spelled(type_.element, signed)}>"
    bits = width(type_)
    if bits == 0:
        return FLOATS[str(type_)]
    if bits == 1:
        return "bool"
    return f"{'i' if signed else 'u'}{64 if bits == 64 else 32}"


def element(type_: Type) -> Type:
    """The type of a vector's parts; a scalar's own."""
    return getattr(type_, "element", type_)


@lru_cache(maxsize=64)
def vector(type_: Type, count: int) -> Type:
    """The type of so many scalars of a type."""
    from llvmlite import ir

    return ir.VectorType(type_, count)


@lru_cache(maxsize=8)
def integer(bits: int) -> Type:
    """The IR type of integers."""
    from llvmlite import ir

    return ir.IntType(bits)


def dtype_of(type_: Type) -> DType:
    """The element type that values of a type, or the parts of a vector, are computed in."""
    name = spelled(element(type_))
    return dtypes.i64 if name == "u64" else dtypes.dtype(name)


def number(value: float, type_: Type, signed: bool = False) -> str:
    """A constant as WGSL.

    >>> from llvmlite import ir
    >>> number(1.5, ir.FloatType()), number(-1, ir.IntType(8)), number(True, ir.IntType(1))
    ('1.5f', '255u', 'true')
    """
    bits = width(type_)
    if bits == 1:
        return "true" if value else "false"
    if bits and signed:
        shown = f"{int(value)}{'li' if bits == 64 else 'i'}"
        return f"({shown})" if value < 0 else shown
    if bits:
        return f"{int(value) % (1 << bits)}{'lu' if bits == 64 else 'u'}"
    wide = str(type_) == "double"
    if not wide:
        value = _as_float32(float(value))
    if math.isnan(value):
        return "nan64()" if wide else "bitcast<f32>(nan_bits)"
    if math.isinf(value):
        sign = "-" if value < 0 else ""
        return f"({sign}infinity64())" if wide else f"({sign}bitcast<f32>(infinity_bits))"
    text = repr(value)
    shown = text if "e" in text or "." in text else f"{text}.0"
    shown += "lf" if wide else "f"
    return f"({shown})" if value < 0 or text.startswith("-") else shown


def _as_float32(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)
