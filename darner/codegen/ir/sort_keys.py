"""Sort keys: whole numbers in the order of elements, and items of a key and an index."""

from __future__ import annotations

from ...graph.dtypes import DType
from .index import i64
from .lanes import Lane
from .types import ElementBuilder, Value

INDEX_BITS = 32
"""The lower bits of what is sorted: the number of the element."""


def item_bits(dtype: DType) -> int:
    """The width of a key with its number: 64, or 128 for elements of 64 bits."""
    return 128 if dtype.bits > 32 else 64


def key_bytes(dtype: DType) -> int:
    """Bytes of a key."""
    return max(dtype.itemsize, 1)


def item(builder: ElementBuilder, key: Value, number: Value, bits: int) -> Value:
    """A key (an unsigned integer) with the number of its element below it."""
    from llvmlite import ir

    kind = ir.IntType(bits)
    wide = key if key.type == kind else builder.zext(key, kind)
    number = number if number.type == kind else builder.zext(number, kind)
    return builder.or_(builder.shl(wide, ir.Constant(kind, INDEX_BITS)), number)


def number_of(builder: ElementBuilder, value: Value) -> Value:
    """The number of the element, 64 bits."""
    from llvmlite import ir

    wide = ir.IntType(64)
    value = value if value.type == wide else builder.trunc(value, wide)
    return builder.and_(value, i64((1 << INDEX_BITS) - 1))


def key_of(builder: ElementBuilder, value: Value, dtype: DType, descending: bool) -> Value:
    """An element as an unsigned integer in the order of elements: NaN above all, the zeros equal."""
    from llvmlite import ir

    bits = max(dtype.bits, 8)
    kind = ir.IntType(bits)
    high = ir.Constant(kind, 1 << (bits - 1))
    if dtype.kind == "bool":
        key = builder.zext(value, kind)
    elif dtype.kind == "int":
        key = builder.xor(value, high) if dtype.signed else value
    else:
        key = _float_key(builder, value, dtype, high)
    return builder.not_(key) if descending else key


def _float_key(builder: ElementBuilder, value: Value, dtype: DType, high: Value) -> Value:
    from llvmlite import ir

    kind = high.type
    raw = value if value.type == kind else builder.bitcast(value, kind)
    size = builder.and_(raw, ir.Constant(kind, (1 << (dtype.bits - 1)) - 1))
    infinity = {"f64": 0x7FF << 52, "f32": 0xFF << 23, "f16": 0x1F << 10, "bf16": 0xFF << 7}
    sign = builder.ashr(raw, ir.Constant(kind, dtype.bits - 1))
    key = builder.xor(raw, builder.or_(sign, high))
    is_zero = builder.icmp_unsigned("==", size, ir.Constant(kind, 0))
    is_nan = builder.icmp_unsigned(">", size, ir.Constant(kind, infinity[dtype.name]))
    key = builder.select(is_zero, high, key)
    return builder.select(is_nan, ir.Constant(kind, (1 << dtype.bits) - 1), key)


def plain_key(value: Lane, dtype: DType, descending: bool) -> Lane:
    """An element of 32 bits, or many, as unsigned integers that the elements can be made of again: -0 below 0."""
    raw = value.as_integer() if dtype.is_float else value
    high = -(1 << 31)
    if dtype.is_float:
        key = raw ^ (raw.shift_right(31, signed=True) | high)
        key = ((raw & 0x7FFFFFFF) > (0xFF << 23)).choose(raw.constant(-1), key)
    else:
        key = raw ^ high if dtype.signed else raw
    return ~key if descending else key


def items(key: Lane, numbers: Lane) -> Lane:
    """Keys of 32 bits with the numbers of their elements, 64 bits, below them."""
    return key.resized(64, signed=False).shift_left(INDEX_BITS) | numbers


def plain_value(key: Lane, dtype: DType, descending: bool) -> Lane:
    """The element that has that key."""
    key = ~key if descending else key
    high = -(1 << 31)
    if not dtype.is_float:
        return key ^ high if dtype.signed else key
    # Positive numbers have the highest bit, of negative ones all bits are inverted.
    return (key ^ (~key.shift_right(31, signed=True) | high)).as_float()
