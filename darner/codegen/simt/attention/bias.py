"""The gradient of attention's bias: that of the scores, summed over the axes along which the bias is repeated.

A workgroup has a block of the bias, and goes through all heads and blocks that use it in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from math import prod
from typing import TYPE_CHECKING

from ....graph.integers import ceil_div
from ..builder import Value
from ..dispatch import Stage
from .forward import write_query_operands
from .operands import Place, sum_of_four
from .tile import Block, Tile

if TYPE_CHECKING:
    from .backward import Gradients


def write_bias(work: Gradients, number: int) -> Stage:
    """The dispatch of the bias's gradient."""
    attention, cut = work.attention, work.cuts.statistics
    tile = Tile(work.spec, work.machine, attention, cut)
    b = tile.builder
    tile.need_weights()
    given = [int(size) for size in work.spec.body.outputs[number].shape]
    own = [1] * (4 - len(given)) + given
    whole = (attention.batch, attention.heads, attention.queries, attention.keys)
    repeated = [size == 1 and all_ != 1 for size, all_ in zip(own, whole, strict=True)]
    steps = (1, 1, cut.row_block, cut.column_block)
    counts = [ceil_div(size, step) for size, step in zip(whole, steps, strict=True)]
    grid = [1 if many else n for many, n in zip(repeated, counts, strict=True)]
    units, rest = [], b.group
    for count in reversed(grid):
        units.append(b.let(rest % max(count, 1), "unit"))
        rest = b.let(rest // max(count, 1), "rest")
    units.reverse()
    total = tile.zeros(cut.quads, "total")
    if prod(whole):
        ends = [
            (0, count) if many else (unit, unit + 1)
            for many, unit, count in zip(repeated, units, counts, strict=True)
        ]
        _add_blocks(work, tile, total, ends)
    tile.put_weights(total)
    b.barrier()
    _write(tile, number, own, units, (repeated[2], repeated[3]))
    return tile.dispatch.finish(prod(grid))


def _add_blocks(
    work: Gradients,
    tile: Tile,
    total: Block,
    ends: Sequence[tuple[int | Value, int | Value]],
) -> None:
    """Add the gradients of all blocks of scores that use a block of the bias: between ``ends`` of batches, heads, and blocks of rows and columns."""
    b, cut, known = tile.builder, tile.cut, work.known(tile)
    with ExitStack() as stack:
        batch, head, block = (
            stack.enter_context(b.for_(*limits, name=name))
            for limits, name in zip(ends, ("batch", "head", "block"), strict=False)
        )
        place = Place(batch, head, b.let(block * cut.row_block, "first"))
        rows = write_query_operands(tile, place)
        found = work.of_rows(tile, known, place)
        columns = stack.enter_context(b.for_(*ends[3], name="column_block"))
        column = b.let(columns * cut.column_block, "column")
        stack.enter_context(b.if_(column >= tile.low, column < tile.high))
        scores = tile.product("score", rows["q"], rows["k"].at(column))
        products = tile.product("product", rows["dy"], rows["v"].at(column))
        tile.finish(scores, tile.column_numbers(column))
        work.slopes(tile, scores, products, [[own] * cut.quads for own in found])
        for i, c in tile.each():
            total[i][c].set(total[i][c] + products[i][c])


def _write(
    tile: Tile,
    number: int,
    shape: Sequence[int],
    units: Sequence[Value],
    repeated: tuple[bool, bool],
) -> None:
    """Write a block from shared memory, summed where the bias is ``repeated`` for all queries, or for all keys."""
    b, cut, weights = tile.builder, tile.cut, tile.weights
    rows = 1 if repeated[0] else cut.row_block
    columns = 1 if repeated[1] else cut.column_block
    with b.for_(b.local, rows * columns, cut.threads, name="e") as e:
        own_row = b.let(e // columns, "own_row")
        own_column = b.let(e % columns, "own_column")
        row = b.let(units[2] * rows + own_row, "row")
        column = b.let(units[3] * columns + own_column, "column")
        with b.if_(row < shape[2], column < shape[3]):
            value = b.variable(0.0, "value", tile.kind)
            last = cut.row_block if repeated[0] else own_row + 1
            with b.for_(own_row, last, name="r") as r:
                first = r * cut.weight_pitch
                if repeated[1]:
                    with b.for_(0, cut.column_block // 4, name="c") as c:
                        value.set(value + sum_of_four(weights[first + c]))
                else:
                    place = own_column % cut.across * cut.columns + own_column // cut.across
                    place = b.let(place, "place")
                    value.set(value + weights[first + (place >> 2), place & 3])
            elements = tile.dispatch.elements()
            output = tile.dispatch.body.outputs[number]
            made = elements.registers.cast(value, tile.kind, output.dtype)
            offset = elements.places.offset([*units[:2], row, column], shape)
            elements.registers.store(made, tile.dispatch.results[number], offset, output.dtype)
