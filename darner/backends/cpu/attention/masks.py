"""Masks and biases, transposed so that a row is one key. Scores are stored in this order."""

from __future__ import annotations

from collections.abc import Sequence

from ....codegen.ir.emit import element_type, ir, loop, minimum, widen
from ....codegen.ir.index import i64
from ....codegen.ir.types import ACCUMULATOR, STORAGE_BYTES, Function, Module, Pointer, Value
from ..contract.pack import transpose


def transpose_kernel(module: Module, dtype: str, width: int, lanes: int) -> Function:
    """The function that turns a block of a mask or bias, emitted once per module.

    Its signature is ``(keys, valid, source*, stride, target*)``: ``target[key][query]`` becomes ``source[query][key]``
    with rows of ``source`` ``stride`` apart; floats become their accumulator. Of the ``width`` queries ``valid`` exist, and the
    others get what the last has.
    """
    types = ir()
    name = f"darner.turn.queries.{dtype}.{width}.{lanes}"
    if name in module.globals:
        return module.globals[name]
    word, pointer = types.IntType(64), types.PointerType()
    kind = types.FunctionType(types.VoidType(), [word, word, pointer, word, pointer])
    function = types.Function(module, kind, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    _emit_turn(function, dtype, width, lanes)
    return function


def _emit_turn(function: Function, dtype: str, width: int, lanes: int) -> None:
    types = ir()
    keys, valid, source, stride, target = function.args
    b = types.IRBuilder(function.append_basic_block("entry"))
    is_mask = dtype == "bool"
    element = types.IntType(8) if is_mask else element_type(dtype)
    wide = element if is_mask else element_type(ACCUMULATOR[dtype])
    size = 1 if is_mask else STORAGE_BYTES[dtype]
    wide_size = 1 if is_mask else STORAGE_BYTES[ACCUMULATOR[dtype]]

    def row_of(query: Value) -> Pointer:
        row = minimum(b, query, b.sub(valid, i64(1)))
        return b.gep(source, [b.mul(row, stride)], source_etype=element)

    def widened(value: Value) -> Value:
        return value if is_mask else widen(b, value, dtype)

    def put(value: Value, key: Value, query: Value) -> None:
        position = b.add(b.mul(key, i64(width)), query)
        b.store(value, b.gep(target, [position], source_etype=wide), align=wide_size)

    def vectors(first: Value, _: Sequence[Value]) -> None:
        starts = [row_of(b.add(first, i64(lane))) for lane in range(lanes)]

        def square(key: Value, _: Sequence[Value]) -> None:
            # The last square overlaps the one before.
            key = minimum(b, key, b.sub(keys, i64(lanes)))
            kind = types.VectorType(element, lanes)
            rows = [
                widened(b.load(b.gep(start, [key], source_etype=element), typ=kind, align=size))
                for start in starts
            ]
            for lane, value in enumerate(transpose(b, rows)):
                put(value, b.add(key, i64(lane)), first)

        loop(b, i64(0), keys, lanes, square)

    def elements(query: Value, _: Sequence[Value]) -> None:
        start = row_of(query)

        def emit_key(key: Value, _: Sequence[Value]) -> None:
            address = b.gep(start, [key], source_etype=element)
            put(widened(b.load(address, typ=element, align=size)), key, query)

        loop(b, i64(0), keys, 1, emit_key)

    with b.if_else(b.icmp_signed(">=", keys, i64(lanes))) as (many, few):
        with many:
            loop(b, i64(0), i64(width), lanes, vectors)
        with few:
            loop(b, i64(0), i64(width), 1, elements)
    b.ret_void()
