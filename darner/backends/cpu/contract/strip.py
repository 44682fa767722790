"""Strips of C for short sums: a few rows over many columns, written in order.

A short sum takes less time than what surrounds it: a call and some branches for each tile, and cache lines of C to be fetched. Here one
call makes a whole strip, prefetches the lines of the next panel while it writes those of one, and handles the partial vector at the end of a row itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ....codegen.ir.emit import (
    accumulator_of,
    broadcast,
    fused_multiply_add,
    ir,
    lane_mask,
    load,
    loop,
    minimum,
    offset,
    prefetch,
    store,
    zero,
)
from ....codegen.ir.index import i64
from ....codegen.ir.types import Builder, Function, Module, Pointer, Value
from .plan import Cut
from .tile import Tile


class Products(Protocol):
    """What is asked of who computes with strips."""

    builder: Builder
    plan: Cut
    own_rows: Pointer


def emit_strip(
    products: Products,
    a: Pointer,
    c: Pointer,
    b: Pointer,
    rows: tuple[Value, Value],
    panels: tuple[Value, Value],
) -> None:
    """Rows of one tile times packed panels, straight into C.

    Args:
        products: whose plan it is.
        a: the first of all rows of A.
        c: the first element of C.
        b: where the first of these panels lies.
        rows: the first row, and the one after the last.
        panels: the first panel, and the one after the last.
    """
    builder, plan = products.builder, products.plan
    contraction, width = plan.contraction, plan.tile.width
    accumulator = accumulator_of(contraction.dtype)
    (start, end), (first, stop) = rows, panels
    _, down, across = contraction.a_strides
    if plan.pack_a:
        a_tile, a_stride = products.own_rows, plan.tile.rows
    else:
        a_tile = offset(builder, a, accumulator, builder.mul(start, i64(down)))
        a_stride = down if plan.form == "rows" else across
    c_stride = i64(contraction.c_strides[1])
    c = offset(builder, c, accumulator, builder.mul(start, c_stride))

    def call_kernel(vectors: int, low: Value, count: Value, height: int, valid: int = 0) -> None:
        """``count`` panels of so many vectors from ``low`` on; ``valid`` lanes of the last exist where not all do."""
        tile = Tile(height, vectors, plan.tile.lanes)
        kernel = strip_kernel(builder.module, tile, plan.panel, plan.form, valid > 0)
        skipped = builder.mul(builder.sub(low, first), i64(width * contraction.k))
        address = offset(builder, b, plan.panel, skipped)
        to = offset(builder, c, accumulator, builder.mul(low, i64(width)))
        given = [
            i64(contraction.k),
            a_tile,
            i64(a_stride),
            address,
            to,
            c_stride,
            count,
            i64(valid),
        ]
        builder.call(kernel, given)

    def strip(height: int) -> None:
        whole = i64(plan.full_panels)
        if plan.full_panels:
            count = builder.sub(minimum(builder, stop, whole), first)
            call_kernel(plan.tile.vectors, first, count, height)
        if plan.last.vectors:
            with builder.if_then(builder.icmp_signed(">", stop, whole)):
                call_kernel(
                    plan.last.vectors, whole, i64(1), height, contraction.n % plan.tile.lanes
                )

    height = plan.tile.rows
    rest = contraction.m % height
    if not rest or contraction.m < height:
        strip(rest or height)
        return
    with builder.if_else(builder.icmp_signed("==", builder.sub(end, start), i64(height))) as both:
        for branch, count in zip(both, (height, rest), strict=True):
            with branch:
                strip(count)


def strip_kernel(module: Module, tile: Tile, panel: str, form: str, masked: bool) -> Function:
    """The function of a strip over panels of type ``panel``, emitted once per module.

    Its signature is ``(k, a*, a_stride, b*, out*, out_stride, count, valid)``: ``count`` panels that lie behind each other. A is read
    as ``MicroKernel`` does it. Where it is ``masked``, only ``valid`` lanes of the last vector of a panel are written.
    """
    types = ir()
    name = f"darner.strip.{panel}.{tile.rows}x{tile.vectors}x{tile.lanes}.{form}"
    name += ".masked" if masked else ""
    if name in module.globals:
        return module.globals[name]
    word, pointer = types.IntType(64), types.PointerType()
    arguments = [word, pointer, word, pointer, pointer, word, word, word]
    function = types.Function(module, types.FunctionType(types.VoidType(), arguments), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    _emit_kernel(function, tile, panel, form, masked)
    return function


def _emit_kernel(function: Function, tile: Tile, dtype: str, form: str, masked: bool) -> None:
    builder = ir().IRBuilder(function.append_basic_block("entry"))
    k, a, a_stride, b, out, out_stride, count, valid = function.args
    lanes, width = tile.lanes, tile.width
    mask = lane_mask(builder, valid, lanes) if masked else None

    def unravelled(index: Value, row: int) -> Pointer:
        """Where A has a term of a row."""
        if form == "columns":
            return offset(builder, a, dtype, builder.mul(index, a_stride), row)
        return offset(builder, a, dtype, builder.mul(a_stride, i64(row)), index)

    def emit_panel(number: Value, _: Sequence[Value]) -> None:
        columns = offset(builder, b, dtype, builder.mul(number, builder.mul(k, i64(width))))
        to = offset(builder, out, dtype, builder.mul(number, i64(width)))

        def term(index: Value, sums: Sequence[Value]) -> list[Value]:
            line = offset(builder, columns, dtype, builder.mul(index, i64(width)))
            vectors = [
                load(builder, offset(builder, line, dtype, vector * lanes), dtype, lanes)
                for vector in range(tile.vectors)
            ]
            following = []
            for row in range(tile.rows):
                value = load(builder, unravelled(index, row), dtype, 1)
                value = broadcast(builder, value, lanes)
                for vector, column in enumerate(vectors):
                    total = sums[row * tile.vectors + vector]
                    following.append(fused_multiply_add(builder, value, column, total, lanes))
            return following

        nothing = [zero(dtype, lanes)] * (tile.rows * tile.vectors)
        for at, value in enumerate(loop(builder, i64(0), k, 1, term, nothing)):
            row, vector = divmod(at, tile.vectors)
            address = offset(builder, to, dtype, builder.mul(out_stride, i64(row)), vector * lanes)
            is_last = vector == tile.vectors - 1
            store(builder, value, address, dtype, mask if is_last else None)
            if not masked:
                # The end of the same vector of the next panel: of rows that begin within a line, the beginning is there already.
                later = offset(builder, address, dtype, width + lanes - 1)
                prefetch(builder, later, write=True)

    loop(builder, i64(0), count, 1, emit_panel)
    builder.ret_void()
