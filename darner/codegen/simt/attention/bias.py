"""The gradient of attention's bias: that of the scores, summed over the axes along which the bias is repeated.

A workgroup has a block of the bias, and goes through all heads and blocks that use it in order.
"""

from __future__ import annotations

from contextlib import ExitStack
from math import prod
from typing import TYPE_CHECKING

from ....backends.wgpu.text import Text
from ...ir.math import register_type
from ..dispatch import Stage
from .forward import write_query_operands
from .tile import Tile, sum_of_four

if TYPE_CHECKING:
    from .backward import Gradients


def write_bias(work: Gradients, number: int) -> Stage:
    """The dispatch of the bias's gradient."""
    attention, cut = work.attention, work.cuts.statistics
    tile = Tile(work.spec, work.machine, attention, cut)
    tile.need_weights()
    output = work.spec.body.outputs[number]
    given = [int(size) for size in output.shape]
    own = [1] * (4 - len(given)) + given
    whole = (attention.batch, attention.heads, attention.queries, attention.keys)
    repeated = [size == 1 and all_ != 1 for size, all_ in zip(own, whole, strict=True)]
    steps = (1, 1, cut.row_block, cut.column_block)
    counts = [-(-size // step) for size, step in zip(whole, steps, strict=True)]
    grid = [1 if many else n for many, n in zip(repeated, counts, strict=True)]
    rest = "group"
    for axis in (3, 2, 1, 0):
        tile.line(f"let unit{axis} = {rest} % {max(grid[axis], 1)}u;")
        tile.line(f"let rest{axis} = {rest} / {max(grid[axis], 1)}u;")
        rest = f"rest{axis}"
    for i, c in tile.each():
        tile.line(f"var total_{i}_{c} = {tile.vector}();")
    if prod(whole):
        known = work.known(tile)
        names = ("batch", "head", "block", "column_block")
        with ExitStack() as stack:
            for axis, name in enumerate(names):
                limits = ("0u", f"{counts[axis]}u") if repeated[axis] else (f"unit{axis}", "")
                stop = limits[1] or f"unit{axis} + 1u"
                stack.enter_context(tile.counted(name, limits[0], stop, 1))
                if axis == 2:
                    tile.line(f"let first = block * {cut.row_block}u;")
                    rows = write_query_operands(tile)
                    work.read_rows(tile, known)
            tile.line(f"let column = column_block * {cut.column_block}u;")
            stack.enter_context(tile.writer.block("if (column >= low && column < high)"))
            tile.product("s", rows["q"], rows["k"])
            tile.product("g", rows["dy"], rows["v"])
            tile.write_columns("column")
            tile.finish("s")
            for i, c in tile.each():
                work.slopes(tile, i, c, f"top_{i}", f"share_{i}", f"mean_{i}")
                tile.line(f"total_{i}_{c} = total_{i}_{c} + g_{i}_{c};")
    tile.put_weights("total")
    tile.shader.barrier()
    _write(tile, number, own, repeated[2], repeated[3])
    return tile.shader.finish(prod(grid))


def _write(tile: Tile, number: int, own: list[int], all_queries: bool, all_keys: bool) -> None:
    """Write a block from shared memory, summed where the bias is repeated."""
    from llvmlite import ir

    cut, writer = tile.cut, tile.writer
    rows = 1 if all_queries else cut.row_block
    columns = 1 if all_keys else cut.column_block
    with tile.counted("e", "local", f"{rows * columns}u", cut.threads):
        tile.line(f"let own_row = e / {columns}u;")
        tile.line(f"let own_column = e % {columns}u;")
        tile.line(f"let row = unit2 * {rows}u + own_row;")
        tile.line(f"let column = unit3 * {columns}u + own_column;")
        with writer.block(f"if (row < {own[2]}u && column < {own[3]}u)"):
            tile.line(f"var value = {tile.constant(0.0)};")
            last = f"{cut.row_block}u" if all_queries else "own_row + 1u"
            with tile.counted("r", "own_row", last, 1):
                if all_keys:
                    with tile.counted("c", "0u", f"{cut.column_block // 4}u", 1):
                        tile.line(f"let four = weights[r * {cut.weight_pitch}u + c];")
                        tile.line(f"value += {sum_of_four('four')};")
                else:
                    tile.line(
                        f"let place = own_column % {cut.across}u * {cut.columns}u "
                        f"+ own_column / {cut.across}u;"
                    )
                    vector = f"weights[r * {cut.weight_pitch}u + (place >> 2u)]"
                    tile.line(f"value += {vector}[place & 3u];")
            elements = tile.shader.elements()
            output = tile.shader.body.outputs[number]
            word = ir.IntType(32)
            index = [Text(word, name) for name in ("unit0", "unit1", "row", "column")]
            made = elements.registers.cast(
                writer.let_text(register_type(tile.kind), "value"), tile.kind, output.dtype
            )
            place = elements.places.offset(index, own)
            elements.registers.store(made, tile.shader.results[number], place, output.dtype)
