"""Masks and biases turned so that a row is one key: the order in which scores are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....codegen.ir.emit import element_type, i64, ir, loop, minimum, widen
from ....codegen.ir.types import ACCUMULATOR, STORAGE_BYTES
from ..contract.pack import transpose


def turn_kernel(module: Any, dtype: str, width: int, lanes: int) -> Any:
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


def _emit_turn(function: Any, dtype: str, width: int, lanes: int) -> None:
    types = ir()
    keys, valid, source, stride, target = function.args
    b = types.IRBuilder(function.append_basic_block("entry"))
    is_mask = dtype == "bool"
    element = types.IntType(8) if is_mask else element_type(dtype)
    wide = element if is_mask else element_type(ACCUMULATOR[dtype])
    size = 1 if is_mask else STORAGE_BYTES[dtype]
    wide_size = 1 if is_mask else STORAGE_BYTES[ACCUMULATOR[dtype]]

    def row_of(query: Any) -> Any:
        row = minimum(b, query, b.sub(valid, i64(1)))
        return b.gep(source, [b.mul(row, stride)], source_etype=element)

    def widened(value: Any) -> Any:
        return value if is_mask else widen(b, value, dtype)

    def put(value: Any, key: Any, query: Any) -> None:
        place = b.add(b.mul(key, i64(width)), query)
        b.store(value, b.gep(target, [place], source_etype=wide), align=wide_size)

    def vectors(first: Any, _: Sequence[Any]) -> None:
        starts = [row_of(b.add(first, i64(lane))) for lane in range(lanes)]

        def square(key: Any, _: Sequence[Any]) -> None:
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

    def elements(query: Any, _: Sequence[Any]) -> None:
        start = row_of(query)

        def one(key: Any, _: Sequence[Any]) -> None:
            place = b.gep(start, [key], source_etype=element)
            put(widened(b.load(place, typ=element, align=size)), key, query)

        loop(b, i64(0), keys, 1, one)

    with b.if_else(b.icmp_signed(">=", keys, i64(lanes))) as (many, few):
        with many:
            loop(b, i64(0), i64(width), lanes, vectors)
        with few:
            loop(b, i64(0), i64(width), 1, elements)
    b.ret_void()
