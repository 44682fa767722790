"""Sorting of integers in memory, as functions that kernels share.

What is sorted is a key with the index of its element in the low bits. No two are equal, so every algorithm gives the same order,
which is the stable one, however threads divide the work.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....codegen.ir.emit import loop
from ....codegen.ir.index import Index, i64
from ....codegen.ir.lanes import own_function
from ....codegen.ir.sort_keys import (
    INDEX_BITS,
)
from ....codegen.ir.types import Builder, Function, Module, Pointer, Value
from ..emit.vectors import clear_bytes, copy_bytes

SMALL = 48
"""Up to so many are sorted by insertion."""


def item_address(builder: Builder, pointer: Pointer, index: Index, bits: int) -> Pointer:
    """The address of an item."""
    from llvmlite import ir

    return builder.gep(pointer, [i64(index)], source_etype=ir.IntType(bits))


def read(builder: Builder, pointer: Pointer, index: Index, bits: int) -> Value:
    """An item."""
    from llvmlite import ir

    return builder.load(item_address(builder, pointer, index, bits), typ=ir.IntType(bits), align=4)


def write(builder: Builder, value: Value, pointer: Pointer, index: Index, bits: int) -> None:
    """Write an item."""
    builder.store(value, item_address(builder, pointer, index, bits), align=4)


def sort_function(module: Module, bits: int, bytes_: int) -> Function:
    """``sort(data, other, count)``: items in order in ``data``; ``other`` is room for as many. Keys have ``bytes_`` bytes."""
    from llvmlite import ir

    pointer, wide = ir.PointerType(), ir.IntType(64)
    insertion = _insertion_function(module, bits)
    radix = _radix_function(module, bits, bytes_)

    def body(b: Builder, data: Pointer, other: Pointer, count: Value) -> None:
        small = b.icmp_signed("<=", count, i64(SMALL))
        with b.if_else(small) as (then, otherwise):
            with then:
                b.call(insertion, [data, count])
            with otherwise:
                b.call(radix, [data, other, count])
        b.ret_void()

    name = f"sort{bits}by{bytes_}"
    return own_function(module, name, ir.VoidType(), [pointer, pointer, wide], body, "noinline")


def insert_function(module: Module, bits: int) -> Function:
    """``insert(data, count, value)``: a value put into its place among the sorted items before ``count``."""
    from llvmlite import ir

    pointer, wide, kind = ir.PointerType(), ir.IntType(64), ir.IntType(bits)

    def body(b: Builder, data: Pointer, count: Value, value: Value) -> None:
        before = b.block
        head, test = b.append_basic_block("head"), b.append_basic_block("test")
        move, done = b.append_basic_block("move"), b.append_basic_block("done")
        b.branch(head)
        b.position_at_end(head)
        at = b.phi(wide)
        at.add_incoming(count, before)
        b.cbranch(b.icmp_signed(">", at, i64(0)), test, done)
        b.position_at_end(test)
        previous = b.sub(at, i64(1))
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


def _insertion_function(module: Module, bits: int) -> Function:
    from llvmlite import ir

    insert = insert_function(module, bits)

    def body(b: Builder, data: Pointer, count: Value) -> None:
        def emit_step(i: Value, _: Sequence[Value]) -> None:
            b.call(insert, [data, i, read(b, data, i, bits)])

        loop(b, i64(1), count, 1, emit_step)
        b.ret_void()

    kinds = [ir.PointerType(), ir.IntType(64)]
    return own_function(module, f"insertion{bits}", ir.VoidType(), kinds, body, "noinline")


def _radix_function(module: Module, bits: int, bytes_: int) -> Function:
    """Sorting by one byte of the key after another, the lowest first; a byte that all share is passed over."""
    from llvmlite import ir

    pointer, wide, kind = ir.PointerType(), ir.IntType(64), ir.IntType(bits)

    def body(b: Builder, data: Pointer, other: Pointer, count: Value) -> None:
        counts = b.alloca(wide, 256)
        counts.align = 64

        def digit(value: Value, shift: Value) -> Value:
            moved = b.lshr(value, shift)
            return b.and_(moved if bits == 64 else b.trunc(moved, wide), i64(255))

        def cell(number: Value) -> Pointer:
            return b.gep(counts, [number], source_etype=wide)

        def emit_pass(number: Value, held: Sequence[Pointer]) -> Sequence[Pointer]:
            source, target = held
            shift = b.add(b.mul(number, i64(8)), i64(INDEX_BITS))
            shift = shift if bits == 64 else b.zext(shift, kind)
            clear_bytes(b, counts, 256 * 8)

            def count_one(i: Value, _: Sequence[Value]) -> None:
                at = cell(digit(read(b, source, i, bits), shift))
                b.store(b.add(b.load(at, typ=wide), i64(1)), at)

            loop(b, i64(0), count, 1, count_one)
            shared = b.load(cell(digit(read(b, source, 0, bits), shift)), typ=wide)
            differs = b.icmp_unsigned("!=", shared, count)
            with b.if_then(differs):

                def running(i: Value, total: Sequence[Value]) -> Sequence[Value]:
                    at = cell(i)
                    here = b.load(at, typ=wide)
                    b.store(total[0], at)
                    return [b.add(total[0], here)]

                def move(i: Value, _: Sequence[Value]) -> None:
                    value = read(b, source, i, bits)
                    at = cell(digit(value, shift))
                    target_offset = b.load(at, typ=wide)
                    write(b, value, target, target_offset, bits)
                    b.store(b.add(target_offset, i64(1)), at)

                loop(b, i64(0), i64(256), 1, running, [i64(0)])
                loop(b, i64(0), count, 1, move)
            return [b.select(differs, target, source), b.select(differs, source, target)]

        found, _ = loop(b, i64(0), i64(bytes_), 1, emit_pass, [data, other])
        from_other = b.icmp_unsigned("==", b.ptrtoint(found, wide), b.ptrtoint(other, wide))
        with b.if_then(from_other):
            copy_bytes(b, data, other, b.mul(count, i64(bits // 8)))
        b.ret_void()

    kinds = [pointer, pointer, wide]
    name = f"radix{bits}by{bytes_}"
    return own_function(module, name, ir.VoidType(), kinds, body, "noinline")


def merge_function(module: Module, bits: int) -> Value:
    """``merge(a, a_count, b, b_count, target)``: two sorted sequences as one."""
    from llvmlite import ir

    pointer, wide = ir.PointerType(), ir.IntType(64)

    def body(
        b: Builder,
        left: Pointer,
        left_count: Value,
        right: Pointer,
        right_count: Value,
        to: Pointer,
    ) -> None:
        before = b.block
        head, more = b.append_basic_block("head"), b.append_basic_block("more")
        done = b.append_basic_block("done")
        b.branch(head)
        b.position_at_end(head)
        i, j = b.phi(wide), b.phi(wide)
        for phi in (i, j):
            phi.add_incoming(i64(0), before)
        both = b.and_(b.icmp_signed("<", i, left_count), b.icmp_signed("<", j, right_count))
        b.cbranch(both, more, done)
        b.position_at_end(more)
        a, c = read(b, left, i, bits), read(b, right, j, bits)
        first = b.icmp_unsigned("<", a, c)
        write(b, b.select(first, a, c), to, b.add(i, j), bits)
        step = b.zext(first, wide)
        i.add_incoming(b.add(i, step), more)
        j.add_incoming(b.add(j, b.sub(i64(1), step)), more)
        b.branch(head)
        b.position_at_end(done)
        size = i64(bits // 8)
        rest = b.mul(b.sub(left_count, i), size)
        copy_bytes(b, item_address(b, to, b.add(i, j), bits), item_address(b, left, i, bits), rest)
        rest = b.mul(b.sub(right_count, j), size)
        copy_bytes(
            b,
            item_address(b, to, b.add(left_count, j), bits),
            item_address(b, right, j, bits),
            rest,
        )
        b.ret_void()

    kinds = [pointer, wide, pointer, wide, pointer]
    return own_function(module, f"merge{bits}", ir.VoidType(), kinds, body, "noinline")
