"""Sorting of whole numbers in memory, as functions that kernels share.

What is sorted is a key with the number of its element below it: no two are equal, so every way of sorting gives the same order,
which is the stable one, whatever the threads divide among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....codegen.ir.emit import loop
from ....codegen.ir.index import as_value
from ....codegen.ir.lanes import own_function
from ....codegen.ir.sort_keys import (
    INDEX_BITS,
)
from ..emit.vectors import clear_bytes, copy_bytes

SMALL = 48
"""Up to so many are sorted by insertion."""


def place(builder: Any, pointer: Any, index: Any, bits: int) -> Any:
    """The address of an item."""
    from llvmlite import ir  # type: ignore[import-untyped]

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
