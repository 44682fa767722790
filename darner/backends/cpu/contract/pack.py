"""Packing of operands into panels ``P[k][width]``, which the micro-kernel reads one after the other.

The same function packs B (the width runs over columns) and, with a width of the tile's rows, A (over rows).
Three ways, chosen by the strides as emitted: copy vectors where the width is contiguous, transpose blocks in
registers where k is, and element by element otherwise. Missing columns become zeros.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ....codegen.ir.emit import (
    accumulator_of,
    element_type,
    i64,
    ir,
    lane_mask,
    lane_numbers,
    load,
    loop,
    minimum,
    offset,
    store,
    widen,
    zero,
)
from ....codegen.ir.types import STORAGE_BYTES


class Ends(NamedTuple):
    """What is known of the panels that a function packs where k is contiguous.

    Attributes:
        partial: whether some of their columns are missing, always.
        short: whether they have fewer k than a vector has lanes, and one at least.
    """

    partial: bool = False
    short: bool = False


USUAL = Ends()

LEAST_PAST = 16
"""Bytes of a vector that can go past the cache."""


def pack_kernel(
    module: Any,
    source: str,
    target: str,
    width: int,
    lanes: int,
    contiguous: str,
    ends: Ends = USUAL,
    past: bool = False,
) -> Any:
    """The function that packs one panel, emitted once per module.

    Its signature is ``(k, valid, source*, k_stride, column_stride, panel*)``: ``valid`` of the ``width`` columns
    exist. ``target`` is the source's type or its accumulator; ``contiguous`` says which stride is 1: ``columns``,
    ``k`` or ``neither``. What ``ends`` says costs code of its own, and matters for ``k`` alone. ``past`` has vectors go past the cache, to panels
    at multiples of a line: other threads read them, and have read what was there before.
    """
    types = ir()
    while width % lanes:
        lanes //= 2
    name = f"darner.pack.{source}.{target}.{width}.{lanes}.{contiguous}"
    if contiguous == "k":
        name += f"{'.partial' if ends.partial else ''}{'.short' if ends.short else ''}"
    past = past and lanes * STORAGE_BYTES[target] >= LEAST_PAST
    name += ".past" if past else ""
    if name in module.globals:
        return module.globals[name]
    word, pointer = types.IntType(64), types.PointerType()
    arguments = [word, word, pointer, word, word, pointer]
    function = types.Function(module, types.FunctionType(types.VoidType(), arguments), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    builder = types.IRBuilder(function.append_basic_block("entry"))
    if lanes == 1 or contiguous == "neither":
        _pack_elements(builder, function.args, source, target, width, i64(0))
    elif contiguous == "columns":
        _pack_rows(builder, function.args, source, target, width, lanes, past)
    else:
        _pack_transposed(builder, function.args, source, target, width, lanes, ends, past)
    builder.ret_void()
    return function


def _pack_rows(
    builder: Any, arguments: Any, source: str, target: str, width: int, lanes: int, past: bool
) -> None:
    """Copy vectors: the columns of a k are contiguous."""
    k, valid, start, k_stride, _, panel = arguments

    def copy(masked: bool) -> None:
        masks = [
            lane_mask(builder, builder.sub(valid, i64(at)), lanes) if masked else None
            for at in range(0, width, lanes)
        ]

        def one(index: Any, _: Any) -> None:
            read = offset(builder, start, source, builder.mul(index, k_stride))
            write = offset(builder, panel, target, builder.mul(index, i64(width)))
            for at, mask in zip(range(0, width, lanes), masks, strict=True):
                value = load(builder, offset(builder, read, source, at), source, lanes, mask)
                store(builder, value, offset(builder, write, target, at), target, past=past)

        loop(builder, i64(0), k, 1, one)

    with builder.if_else(builder.icmp_signed("==", valid, i64(width))) as (full, partial):
        with full:
            copy(masked=False)
        with partial:
            copy(masked=True)


def _pack_transposed(
    builder: Any,
    arguments: Any,
    source: str,
    target: str,
    width: int,
    lanes: int,
    ends: Ends,
    past: bool,
) -> None:
    """Transpose square blocks in registers: the k of a column are contiguous."""
    k, valid, start, _, column_stride, panel = arguments
    some = lane_mask(builder, k, lanes) if ends.short else None

    def block(index: Any) -> None:
        # A loop over the width too: unrolled, its code would take longest to generate of all.
        def square(at: Any, _: Any) -> None:
            corner = builder.add(builder.mul(index, i64(width)), at)
            if not (ends.partial or ends.short):
                first = builder.add(builder.mul(column_stride, at), index)
                read = offset(builder, start, source, first)
                write = offset(builder, panel, target, corner)
                turned = _square(builder.module, source, target, lanes, past)
                builder.call(turned, [read, column_stride, write, i64(width)])
                return

            def column(lane: int) -> Any:
                # Of columns that are missing, the last is read once more.
                number = builder.add(at, i64(lane))
                if ends.partial:
                    number = minimum(builder, number, last_column)
                return builder.mul(column_stride, number)

            places = [offset(builder, start, source, column(i), index) for i in range(lanes)]
            columns = _transposed(builder, places, source, some)
            if ends.partial:
                exists = lane_mask(builder, builder.sub(valid, at), lanes)
                nothing = zero(accumulator_of(source), lanes)
                columns = [builder.select(exists, value, nothing) for value in columns]
            for lane, value in enumerate(columns):
                place = offset(builder, panel, target, corner, lane * width)
                if not ends.short:
                    store(builder, value, place, target, past=past)
                    continue
                with builder.if_then(builder.icmp_signed("<", i64(lane), k)):
                    store(builder, value, place, target, past=past)

        loop(builder, i64(0), i64(width), lanes, square)

    last_column = builder.sub(valid, i64(1))
    if ends.short:
        block(i64(0))
        return
    enough = builder.icmp_signed(">=", k, i64(lanes))
    if not ends.partial:
        enough = builder.and_(enough, builder.icmp_signed("==", valid, i64(width)))
    # The last block may repeat some terms of the one before.
    last = builder.sub(k, i64(lanes))
    done = builder.select(enough, k, i64(0))
    loop(builder, i64(0), done, lanes, lambda index, _: block(minimum(builder, index, last)))
    _pack_elements(builder, arguments, source, target, width, done)


def _square(module: Any, source: str, target: str, lanes: int, past: bool) -> Any:
    """The function that transposes one square, ``(source*, column_stride, target*, target_stride)``: panels of all widths share it."""
    types = ir()
    name = f"darner.pack.square.{source}.{target}.{lanes}{'.past' if past else ''}"
    if name in module.globals:
        return module.globals[name]
    word, pointer = types.IntType(64), types.PointerType()
    kind = types.FunctionType(types.VoidType(), [pointer, word, pointer, word])
    function = types.Function(module, kind, name)
    function.linkage = "internal"
    for mark in ("noinline", "nounwind"):
        function.attributes.add(mark)
    builder = types.IRBuilder(function.append_basic_block("entry"))
    start, column_stride, corner, stride = function.args
    places = [
        offset(builder, start, source, builder.mul(column_stride, i64(lane)))
        for lane in range(lanes)
    ]
    for lane, value in enumerate(_transposed(builder, places, source)):
        place = offset(builder, corner, target, builder.mul(stride, i64(lane)))
        store(builder, value, place, target, past=past)
    builder.ret_void()
    return function


def _transposed(builder: Any, places: list[Any], dtype: str, mask: Any = None) -> list[Any]:
    """The columns of a square whose rows lie at these places; of each row, the lanes of a mask."""
    lanes = len(places)
    if mask is None and lanes == 16 and STORAGE_BYTES[dtype] == 4:
        return transposed_in_quarters(builder, places, dtype)
    return transpose(builder, [load(builder, place, dtype, lanes, mask) for place in places])


def transposed_in_quarters(builder: Any, places: list[Any], dtype: str) -> list[Any]:
    """The columns of a block of 16 x 16 whose rows lie at these places.

    Quarters of rows are put where they belong as they are loaded, which two units can do; what is left to the one unit that
    exchanges lanes is half of what ``transpose`` would ask of it.
    """
    columns = []
    for quarter in range(0, 16, 4):
        vectors = []
        for row in range(4):
            parts = [
                load(builder, offset(builder, places[row + 4 * part], dtype, quarter), dtype, 4)
                for part in range(4)
            ]
            vector = builder.shuffle_vector(parts[0], parts[0], lane_numbers([*range(4)] * 4))
            for number, part in enumerate(parts[1:], 1):
                wide = builder.shuffle_vector(part, part, lane_numbers([*range(4)] * 4))
                first = 4 * number
                mask = [16 + i if first <= i < first + 4 else i for i in range(16)]
                vector = builder.shuffle_vector(vector, wide, lane_numbers(mask))
            vectors.append(vector)
        columns += _turned_quarters(builder, vectors)
    return columns


def _turned_quarters(builder: Any, rows: list[Any]) -> list[Any]:
    """Four vectors whose quarters are the rows of blocks of 4 x 4, as those of the columns of these."""

    def pairs(a: Any, b: Any, picks: tuple[int, int, int, int]) -> Any:
        mask = [4 * part + pick % 4 + 16 * (pick // 4) for part in range(4) for pick in picks]
        return builder.shuffle_vector(a, b, lane_numbers(mask))

    low, high = (0, 4, 1, 5), (2, 6, 3, 7)
    a, b = pairs(rows[0], rows[1], low), pairs(rows[2], rows[3], low)
    c, d = pairs(rows[0], rows[1], high), pairs(rows[2], rows[3], high)
    left, right = (0, 1, 4, 5), (2, 3, 6, 7)
    return [pairs(a, b, left), pairs(a, b, right), pairs(c, d, left), pairs(c, d, right)]


def transpose(builder: Any, rows: list[Any]) -> list[Any]:
    """The columns of a square block given as its rows, by exchanging halves of ever smaller distance."""
    lanes = len(rows)
    distance = lanes // 2
    while distance:
        # Lanes 0..2*lanes-1 number those of the two operands of a shuffle, one after the other.
        low = [lane if not lane & distance else lanes + (lane ^ distance) for lane in range(lanes)]
        high = [lane ^ distance if not lane & distance else lanes + lane for lane in range(lanes)]
        following = list(rows)
        for row in range(lanes):
            if not row & distance:
                pair = rows[row], rows[row | distance]
                following[row] = builder.shuffle_vector(*pair, lane_numbers(low))
                following[row | distance] = builder.shuffle_vector(*pair, lane_numbers(high))
        rows = following
        distance //= 2
    return rows


def _pack_elements(
    builder: Any, arguments: Any, source: str, target: str, width: int, first: Any
) -> None:
    """Element by element, from k = ``first`` on."""
    k, valid, start, k_stride, column_stride, panel = arguments
    same = source == target
    kind = element_type(source)
    nothing = ir().Constant(element_type(target), 0 if target == "bf16" else 0.0)
    align = STORAGE_BYTES[target]

    def line(index: Any, _: Any) -> None:
        read = offset(builder, start, source, builder.mul(index, k_stride))
        write = offset(builder, panel, target, builder.mul(index, i64(width)))

        def one(column: Any, _: Any) -> None:
            place = offset(builder, read, source, builder.mul(column, column_stride))
            value = builder.load(place, typ=kind, align=STORAGE_BYTES[source])
            value = value if same else widen(builder, value, source)
            builder.store(value, offset(builder, write, target, column), align=align)

        def missing(column: Any, _: Any) -> None:
            builder.store(nothing, offset(builder, write, target, column), align=align)

        loop(builder, i64(0), valid, 1, one)
        loop(builder, valid, i64(width), 1, missing)

    loop(builder, first, k, 1, line)
