"""Sorting of whole numbers in memory, as functions that kernels share.

What is sorted is a key with the number of its element below it: no two are equal, so every way of sorting gives the same order,
which is the stable one, whatever the threads divide among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...graph.dtypes import DType
from .gemm_ir import loop
from .lanes import Lane, own_function
from .places import as_value
from .vectors import clear_bytes, copy_bytes

SMALL = 48
"""Up to so many are sorted by insertion."""

INDEX_BITS = 32
"""The lower bits of what is sorted: the number of the element."""


def item_bits(dtype: DType) -> int:
    """The width of a key with its number: 64, or 128 for elements of 64 bits."""
    return 128 if dtype.bits > 32 else 64


def key_bytes(dtype: DType) -> int:
    """Bytes of a key."""
    return max(dtype.itemsize, 1)


def item(builder: Any, key: Any, number: Any, bits: int) -> Any:
    """A key (an unsigned integer) with the number of its element below it."""
    from llvmlite import ir  # type: ignore[import-untyped]

    kind = ir.IntType(bits)
    wide = key if key.type == kind else builder.zext(key, kind)
    number = number if number.type == kind else builder.zext(number, kind)
    return builder.or_(builder.shl(wide, ir.Constant(kind, INDEX_BITS)), number)


def number_of(builder: Any, value: Any) -> Any:
    """The number of the element, 64 bits."""
    from llvmlite import ir

    wide = ir.IntType(64)
    value = value if value.type == wide else builder.trunc(value, wide)
    return builder.and_(value, as_value((1 << INDEX_BITS) - 1))


def key_of(builder: Any, value: Any, dtype: DType, descending: bool) -> Any:
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


def _float_key(builder: Any, value: Any, dtype: DType, high: Any) -> Any:
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
    # Positive numbers have the highest bit, of negative ones all bits are turned.
    return (key ^ (~key.shift_right(31, signed=True) | high)).as_float()


# --------------------------------------------------------------------------- functions


def place(builder: Any, pointer: Any, index: Any, bits: int) -> Any:
    """The address of an item."""
    from llvmlite import ir

    return builder.gep(pointer, [as_value(index)], source_etype=ir.IntType(bits))


def read(builder: Any, pointer: Any, index: Any, bits: int) -> Any:
    """An item."""
    from llvmlite import ir

    return builder.load(place(builder, pointer, index, bits), typ=ir.IntType(bits), align=4)


def write(builder: Any, value: Any, pointer: Any, index: Any, bits: int) -> None:
    """Write an item."""
    builder.store(value, place(builder, pointer, index, bits), align=4)


def sort_function(module: Any, bits: int, bytes_: int) -> Any:
    """``sort(data, other, count)``: items in order in ``data``; ``other`` is room for as many. Keys have ``bytes_`` bytes."""
    from llvmlite import ir

    pointer, wide = ir.PointerType(), ir.IntType(64)
    insertion = _insertion_function(module, bits)
    radix = _radix_function(module, bits, bytes_)

    def body(b: Any, data: Any, other: Any, count: Any) -> None:
        small = b.icmp_signed("<=", count, as_value(SMALL))
        with b.if_else(small) as (then, otherwise):
            with then:
                b.call(insertion, [data, count])
            with otherwise:
                b.call(radix, [data, other, count])
        b.ret_void()

    name = f"sort{bits}by{bytes_}"
    return own_function(module, name, ir.VoidType(), [pointer, pointer, wide], body, "noinline")


def insert_function(module: Any, bits: int) -> Any:
    """``insert(data, count, value)``: a value put into its place among the sorted items before ``count``."""
    from llvmlite import ir

    pointer, wide, kind = ir.PointerType(), ir.IntType(64), ir.IntType(bits)

    def body(b: Any, data: Any, count: Any, value: Any) -> None:
        before = b.block
        head, test = b.append_basic_block("head"), b.append_basic_block("test")
        move, done = b.append_basic_block("move"), b.append_basic_block("done")
        b.branch(head)
        b.position_at_end(head)
        at = b.phi(wide)
        at.add_incoming(count, before)
        b.cbranch(b.icmp_signed(">", at, as_value(0)), test, done)
        b.position_at_end(test)
        previous = b.sub(at, as_value(1))
        held = read(b, data, previous, bits)
        b.cbranch(b.icmp_unsigned(">", held, value), move, done)
        b.position_at_end(move)
        write(b, held, data, at, bits)
        at.add_incoming(previous, move)
        b.branch(head)
        b.position_at_end(done)
        write(b, value, data, at, bits)
        b.ret_void()

    return own_function(
        module, f"insert{bits}", ir.VoidType(), [pointer, wide, kind], body, "noinline"
    )


def _insertion_function(module: Any, bits: int) -> Any:
    from llvmlite import ir

    insert = insert_function(module, bits)

    def body(b: Any, data: Any, count: Any) -> None:
        def one(i: Any, _: Sequence[Any]) -> None:
            b.call(insert, [data, i, read(b, data, i, bits)])

        loop(b, as_value(1), count, 1, one)
        b.ret_void()

    kinds = [ir.PointerType(), ir.IntType(64)]
    return own_function(module, f"insertion{bits}", ir.VoidType(), kinds, body, "noinline")


def _radix_function(module: Any, bits: int, bytes_: int) -> Any:
    """Sorting by one byte of the key after another, the lowest first; a byte that all share is passed over."""
    from llvmlite import ir

    pointer, wide, kind = ir.PointerType(), ir.IntType(64), ir.IntType(bits)

    def body(b: Any, data: Any, other: Any, count: Any) -> None:
        counts = b.alloca(wide, 256)
        counts.align = 64

        def digit(value: Any, shift: Any) -> Any:
            moved = b.lshr(value, shift)
            return b.and_(moved if bits == 64 else b.trunc(moved, wide), as_value(255))

        def cell(number: Any) -> Any:
            return b.gep(counts, [number], source_etype=wide)

        def one_pass(number: Any, held: Sequence[Any]) -> Sequence[Any]:
            source, target = held
            shift = b.add(b.mul(number, as_value(8)), as_value(INDEX_BITS))
            shift = shift if bits == 64 else b.zext(shift, kind)
            clear_bytes(b, counts, 256 * 8)

            def count_one(i: Any, _: Sequence[Any]) -> None:
                at = cell(digit(read(b, source, i, bits), shift))
                b.store(b.add(b.load(at, typ=wide), as_value(1)), at)

            loop(b, as_value(0), count, 1, count_one)
            shared = b.load(cell(digit(read(b, source, 0, bits), shift)), typ=wide)
            differs = b.icmp_unsigned("!=", shared, count)
            with b.if_then(differs):

                def running(i: Any, total: Sequence[Any]) -> Sequence[Any]:
                    at = cell(i)
                    here = b.load(at, typ=wide)
                    b.store(total[0], at)
                    return [b.add(total[0], here)]

                def move(i: Any, _: Sequence[Any]) -> None:
                    value = read(b, source, i, bits)
                    at = cell(digit(value, shift))
                    target_place = b.load(at, typ=wide)
                    write(b, value, target, target_place, bits)
                    b.store(b.add(target_place, as_value(1)), at)

                loop(b, as_value(0), as_value(256), 1, running, [as_value(0)])
                loop(b, as_value(0), count, 1, move)
            return [b.select(differs, target, source), b.select(differs, source, target)]

        found, _ = loop(b, as_value(0), as_value(bytes_), 1, one_pass, [data, other])
        from_other = b.icmp_unsigned("==", b.ptrtoint(found, wide), b.ptrtoint(other, wide))
        with b.if_then(from_other):
            copy_bytes(b, data, other, b.mul(count, as_value(bits // 8)))
        b.ret_void()

    kinds = [pointer, pointer, wide]
    name = f"radix{bits}by{bytes_}"
    return own_function(module, name, ir.VoidType(), kinds, body, "noinline")


def merge_function(module: Any, bits: int) -> Any:
    """``merge(a, a_count, b, b_count, target)``: two sorted sequences as one."""
    from llvmlite import ir

    pointer, wide = ir.PointerType(), ir.IntType(64)

    def body(b: Any, left: Any, left_count: Any, right: Any, right_count: Any, to: Any) -> None:
        before = b.block
        head, more = b.append_basic_block("head"), b.append_basic_block("more")
        done = b.append_basic_block("done")
        b.branch(head)
        b.position_at_end(head)
        i, j = b.phi(wide), b.phi(wide)
        for phi in (i, j):
            phi.add_incoming(as_value(0), before)
        both = b.and_(b.icmp_signed("<", i, left_count), b.icmp_signed("<", j, right_count))
        b.cbranch(both, more, done)
        b.position_at_end(more)
        a, c = read(b, left, i, bits), read(b, right, j, bits)
        first = b.icmp_unsigned("<", a, c)
        write(b, b.select(first, a, c), to, b.add(i, j), bits)
        step = b.zext(first, wide)
        i.add_incoming(b.add(i, step), more)
        j.add_incoming(b.add(j, b.sub(as_value(1), step)), more)
        b.branch(head)
        b.position_at_end(done)
        size = as_value(bits // 8)
        rest = b.mul(b.sub(left_count, i), size)
        copy_bytes(b, place(b, to, b.add(i, j), bits), place(b, left, i, bits), rest)
        rest = b.mul(b.sub(right_count, j), size)
        copy_bytes(b, place(b, to, b.add(left_count, j), bits), place(b, right, j, bits), rest)
        b.ret_void()

    kinds = [pointer, wide, pointer, wide, pointer]
    return own_function(module, f"merge{bits}", ir.VoidType(), kinds, body, "noinline")
