"""Strips of C: a few rows over many columns, written in order, for sums of few terms.

Such a sum takes less time than what is around it: a call and some decisions for each tile, and lines of C that have to come. Here one
call makes a whole strip, asks for the lines of the next panel as it writes those of one, and writes what is left of a
vector at the end of a row by itself.
"""

from __future__ import annotations

from typing import Any, Protocol

from ....codegen.ir.emit import (
    accumulator_of,
    broadcast,
    fused_multiply_add,
    i64,
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
from .plan import Cut
from .tile import Tile


class Products(Protocol):
    """What is asked of who computes with strips."""

    builder: Any
    plan: Cut
    own_rows: Any


def emit_strip(products: Products, a: Any, c: Any, b: Any, rows: Any, panels: Any) -> None:
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

    def some(vectors: int, low: Any, count: Any, height: int, valid: int = 0) -> None:
        """``count`` panels of so many vectors from ``low`` on; ``valid`` lanes of the last exist where not all do."""
        tile = Tile(height, vectors, plan.tile.lanes)
        kernel = strip_kernel(builder.module, tile, plan.panel, plan.form, valid > 0)
        skipped = builder.mul(builder.sub(low, first), i64(width * contraction.k))
        place = offset(builder, b, plan.panel, skipped)
        to = offset(builder, c, accumulator, builder.mul(low, i64(width)))
        given = [i64(contraction.k), a_tile, i64(a_stride), place, to, c_stride, count, i64(valid)]
        builder.call(kernel, given)

    def strip(height: int) -> None:
        whole = i64(plan.full_panels)
        if plan.full_panels:
            count = builder.sub(minimum(builder, stop, whole), first)
            some(plan.tile.vectors, first, count, height)
        if plan.last.vectors:
            with builder.if_then(builder.icmp_signed(">", stop, whole)):
                some(plan.last.vectors, whole, i64(1), height, contraction.n % plan.tile.lanes)

    height = plan.tile.rows
    rest = contraction.m % height
    if not rest or contraction.m < height:
        strip(rest or height)
        return
    with builder.if_else(builder.icmp_signed("==", builder.sub(end, start), i64(height))) as both:
        for branch, count in zip(both, (height, rest), strict=True):
            with branch:
                strip(count)


def strip_kernel(module: Any, tile: Tile, panel: str, form: str, masked: bool) -> Any:
    """The function of a strip over panels of type ``panel``, emitted once per module.

    Its signature is ``(k, a*, a_stride, b*, out*, out_stride, count, valid)``: ``count`` panels that lie behind each other. A is read
    as ``tile_kernel`` does it. Where it is ``masked``, only ``valid`` lanes of the last vector of a panel are written.
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


def _emit_kernel(function: Any, tile: Tile, dtype: str, form: str, masked: bool) -> None:
    builder = ir().IRBuilder(function.append_basic_block("entry"))
    k, a, a_stride, b, out, out_stride, count, valid = function.args
    lanes, width = tile.lanes, tile.width
    mask = lane_mask(builder, valid, lanes) if masked else None

    def place_of(index: Any, row: int) -> Any:
        """Where A has a term of a row."""
        if form == "columns":
            return offset(builder, a, dtype, builder.mul(index, a_stride), row)
        return offset(builder, a, dtype, builder.mul(a_stride, i64(row)), index)

    def one_panel(number: Any, _: Any) -> None:
        columns = offset(builder, b, dtype, builder.mul(number, builder.mul(k, i64(width))))
        to = offset(builder, out, dtype, builder.mul(number, i64(width)))

        def term(index: Any, sums: Any) -> list[Any]:
            line = offset(builder, columns, dtype, builder.mul(index, i64(width)))
            vectors = [
                load(builder, offset(builder, line, dtype, vector * lanes), dtype, lanes)
                for vector in range(tile.vectors)
            ]
            following = []
            for row in range(tile.rows):
                value = load(builder, place_of(index, row), dtype, 1)
                value = broadcast(builder, value, lanes)
                for vector, column in enumerate(vectors):
                    total = sums[row * tile.vectors + vector]
                    following.append(fused_multiply_add(builder, value, column, total, lanes))
            return following

        nothing = [zero(dtype, lanes)] * (tile.rows * tile.vectors)
        for at, value in enumerate(loop(builder, i64(0), k, 1, term, nothing)):
            row, vector = divmod(at, tile.vectors)
            place = offset(builder, to, dtype, builder.mul(out_stride, i64(row)), vector * lanes)
            is_last = vector == tile.vectors - 1
            store(builder, value, place, dtype, mask if is_last else None)
            if not masked:
                # The end of the same vector of the next panel: of rows that begin within a line, the beginning is there already.
                later = offset(builder, place, dtype, width + lanes - 1)
                prefetch(builder, later, write=True)

    loop(builder, i64(0), count, 1, one_panel)
    builder.ret_void()
