"""Packing of operands into panels ``P[k][width]``, which the micro-kernel reads one after the other.

The same function packs B (the width runs over columns) and, with a width of the tile's rows, A (over rows).
Three ways, chosen by the strides as emitted: copy vectors where the width is contiguous, transpose blocks in
registers where k is, and element by element otherwise. Missing columns become zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ....codegen.ir.emit import (
    accumulator_of,
    element_type,
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
from ....codegen.ir.index import i64
from ....codegen.ir.types import STORAGE_BYTES, Builder, Function, Module, Pointer, Value


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


@dataclass(frozen=True)
class PackKernel:
    """A function that packs one panel, emitted once per module.

    Its signature is ``(k, valid, source*, k_stride, column_stride, panel*)``: ``valid`` of the ``width`` columns
    exist.

    Attributes:
        source: the type of what is packed.
        target: that type, or its accumulator.
        width: columns of a panel.
        lanes: of the widest vector; fewer where the width is no multiple of them.
        contiguous: which stride is 1: ``columns``, ``k`` or ``neither``.
        ends: what is known of the panels; it costs code of its own, and matters for ``k`` alone.
        non_temporal: whether vectors go past the cache, to panels at multiples of a line: other threads read them, and have
            read what was there before.
    """

    source: str
    target: str
    width: int
    lanes: int
    contiguous: str
    ends: Ends = USUAL
    non_temporal: bool = False

    def __post_init__(self) -> None:
        lanes = self.lanes
        while self.width % lanes:
            lanes //= 2
        object.__setattr__(self, "lanes", lanes)
        whole = lanes * STORAGE_BYTES[self.target] >= LEAST_PAST
        object.__setattr__(self, "non_temporal", self.non_temporal and whole)

    @property
    def name(self) -> str:
        """What the function is called."""
        name = (
            f"darner.pack.{self.source}.{self.target}.{self.width}.{self.lanes}.{self.contiguous}"
        )
        if self.contiguous == "k":
            name += (
                f"{'.partial' if self.ends.partial else ''}{'.short' if self.ends.short else ''}"
            )
        return name + (".past" if self.non_temporal else "")

    def function(self, module: Module) -> Function:
        """The function in a module."""
        types = ir()
        found: Function | None = module.globals.get(self.name)
        if found is not None:
            return found
        word, pointer = types.IntType(64), types.PointerType()
        arguments = [word, word, pointer, word, word, pointer]
        kind = types.FunctionType(types.VoidType(), arguments)
        function: Function = types.Function(module, kind, self.name)
        function.linkage = "internal"
        function.attributes.add("noinline")
        function.attributes.add("nounwind")
        builder = types.IRBuilder(function.append_basic_block("entry"))
        if self.lanes == 1 or self.contiguous == "neither":
            _pack_elements(self, builder, function.args, i64(0))
        elif self.contiguous == "columns":
            _pack_rows(self, builder, function.args)
        else:
            _pack_transposed(self, builder, function.args)
        builder.ret_void()
        return function


def _pack_rows(kernel: PackKernel, builder: Builder, arguments: Sequence[Value]) -> None:
    """Copy vectors: the columns of a k are contiguous."""
    source, target, width, lanes = kernel.source, kernel.target, kernel.width, kernel.lanes
    k, valid, start, k_stride, _, panel = arguments

    def copy(masked: bool) -> None:
        masks = [
            lane_mask(builder, builder.sub(valid, i64(at)), lanes) if masked else None
            for at in range(0, width, lanes)
        ]

        def copy_row(index: Value, _: Sequence[Value]) -> None:
            read = offset(builder, start, source, builder.mul(index, k_stride))
            write = offset(builder, panel, target, builder.mul(index, i64(width)))
            for at, mask in zip(range(0, width, lanes), masks, strict=True):
                value = load(builder, offset(builder, read, source, at), source, lanes, mask)
                store(
                    builder,
                    value,
                    offset(builder, write, target, at),
                    target,
                    non_temporal=kernel.non_temporal,
                )

        loop(builder, i64(0), k, 1, copy_row)

    with builder.if_else(builder.icmp_signed("==", valid, i64(width))) as (full, partial):
        with full:
            copy(masked=False)
        with partial:
            copy(masked=True)


def _pack_transposed(kernel: PackKernel, builder: Builder, arguments: Sequence[Value]) -> None:
    """Transpose square blocks in registers: the k of a column are contiguous."""
    source, target, width, lanes = kernel.source, kernel.target, kernel.width, kernel.lanes
    ends = kernel.ends
    k, valid, start, _, column_stride, panel = arguments
    some = lane_mask(builder, k, lanes) if ends.short else None

    def block(index: Value) -> None:
        # A loop over the width too: unrolled, its code would take longest to generate of all.
        def square(at: Value, _: Sequence[Value]) -> None:
            corner = builder.add(builder.mul(index, i64(width)), at)
            if not (ends.partial or ends.short):
                first = builder.add(builder.mul(column_stride, at), index)
                read = offset(builder, start, source, first)
                write = offset(builder, panel, target, corner)
                transposed = _square(kernel, builder.module)
                builder.call(transposed, [read, column_stride, write, i64(width)])
                return

            def column(lane: int) -> Value:
                # Of columns that are missing, the last is read once more.
                number = builder.add(at, i64(lane))
                if ends.partial:
                    number = minimum(builder, number, last_column)
                return builder.mul(column_stride, number)

            addresses = [offset(builder, start, source, column(i), index) for i in range(lanes)]
            columns = _transposed(builder, addresses, source, some)
            if ends.partial:
                exists = lane_mask(builder, builder.sub(valid, at), lanes)
                nothing = zero(accumulator_of(source), lanes)
                columns = [builder.select(exists, value, nothing) for value in columns]
            for lane, value in enumerate(columns):
                address = offset(builder, panel, target, corner, lane * width)
                if not ends.short:
                    store(builder, value, address, target, non_temporal=kernel.non_temporal)
                    continue
                with builder.if_then(builder.icmp_signed("<", i64(lane), k)):
                    store(builder, value, address, target, non_temporal=kernel.non_temporal)

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
    _pack_elements(kernel, builder, arguments, done)


def _square(kernel: PackKernel, module: Module) -> Function:
    """The function that transposes one square, ``(source*, column_stride, target*, target_stride)``: panels of all widths share it."""
    source, target, lanes = kernel.source, kernel.target, kernel.lanes
    types = ir()
    name = f"darner.pack.square.{source}.{target}.{lanes}{'.past' if kernel.non_temporal else ''}"
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
    addresses = [
        offset(builder, start, source, builder.mul(column_stride, i64(lane)))
        for lane in range(lanes)
    ]
    for lane, value in enumerate(_transposed(builder, addresses, source)):
        address = offset(builder, corner, target, builder.mul(stride, i64(lane)))
        store(builder, value, address, target, non_temporal=kernel.non_temporal)
    builder.ret_void()
    return function


def _transposed(
    builder: Builder, addresses: list[Pointer], dtype: str, mask: Value | None = None
) -> list[Value]:
    """The columns of a square whose rows lie at these places; of each row, the lanes of a mask."""
    lanes = len(addresses)
    if mask is None and lanes == 16 and STORAGE_BYTES[dtype] == 4:
        return transposed_in_quarters(builder, addresses, dtype)
    return transpose(builder, [load(builder, place, dtype, lanes, mask) for place in addresses])


def transposed_in_quarters(builder: Builder, addresses: list[Pointer], dtype: str) -> list[Value]:
    """The columns of a block of 16 x 16 whose rows lie at these places.

    Quarters of rows are put where they belong as they are loaded, which two units can do; what is left to the one unit that
    exchanges lanes is half of what ``transpose`` would ask of it.
    """
    columns = []
    for quarter in range(0, 16, 4):
        vectors = []
        for row in range(4):
            parts = [
                load(builder, offset(builder, addresses[row + 4 * part], dtype, quarter), dtype, 4)
                for part in range(4)
            ]
            vector = builder.shuffle_vector(parts[0], parts[0], lane_numbers([*range(4)] * 4))
            for number, part in enumerate(parts[1:], 1):
                wide = builder.shuffle_vector(part, part, lane_numbers([*range(4)] * 4))
                first = 4 * number
                mask = [16 + i if first <= i < first + 4 else i for i in range(16)]
                vector = builder.shuffle_vector(vector, wide, lane_numbers(mask))
            vectors.append(vector)
        columns += _transposed_quarters(builder, vectors)
    return columns


def _transposed_quarters(builder: Builder, rows: list[Value]) -> list[Value]:
    """Four vectors whose quarters are the rows of blocks of 4 x 4, as those of the columns of these."""

    def pairs(a: Value, b: Value, picks: tuple[int, int, int, int]) -> Value:
        mask = [4 * part + pick % 4 + 16 * (pick // 4) for part in range(4) for pick in picks]
        return builder.shuffle_vector(a, b, lane_numbers(mask))

    low, high = (0, 4, 1, 5), (2, 6, 3, 7)
    a, b = pairs(rows[0], rows[1], low), pairs(rows[2], rows[3], low)
    c, d = pairs(rows[0], rows[1], high), pairs(rows[2], rows[3], high)
    left, right = (0, 1, 4, 5), (2, 3, 6, 7)
    return [pairs(a, b, left), pairs(a, b, right), pairs(c, d, left), pairs(c, d, right)]


def transpose(builder: Builder, rows: list[Value]) -> list[Value]:
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
    kernel: PackKernel, builder: Builder, arguments: Sequence[Value], first: Value
) -> None:
    """Element by element, from k = ``first`` on."""
    source, target, width = kernel.source, kernel.target, kernel.width
    k, valid, start, k_stride, column_stride, panel = arguments
    same = source == target
    kind = element_type(source)
    nothing = ir().Constant(element_type(target), 0 if target == "bf16" else 0.0)
    align = STORAGE_BYTES[target]

    def line(index: Value, _: Sequence[Value]) -> None:
        read = offset(builder, start, source, builder.mul(index, k_stride))
        write = offset(builder, panel, target, builder.mul(index, i64(width)))

        def copy_element(column: Value, _: Sequence[Value]) -> None:
            address = offset(builder, read, source, builder.mul(column, column_stride))
            value = builder.load(address, typ=kind, align=STORAGE_BYTES[source])
            value = value if same else widen(builder, value, source)
            builder.store(value, offset(builder, write, target, column), align=align)

        def missing(column: Value, _: Sequence[Value]) -> None:
            builder.store(nothing, offset(builder, write, target, column), align=align)

        loop(builder, i64(0), valid, 1, copy_element)
        loop(builder, valid, i64(width), 1, missing)

    loop(builder, first, k, 1, line)
