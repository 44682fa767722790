"""Attention's result: a block of queries meets block after block of keys, and keeps a running softmax."""

from __future__ import annotations

from ....lower.plan import Spec
from ...problems.attention import Described
from ..dispatch import Stage, Written
from ..machine import Machine
from .merge import Records
from .operands import share_of
from .plan import Cut, choose
from .results import are_whole, write_sums
from .tile import Rows, Tile, most_of_four, sum_of_four


def forward_cut(attention: Described, machine: Machine) -> Cut | None:
    """How the queries are cut."""
    heads = attention.batch * attention.heads
    return choose(
        *(attention, machine, attention.queries, heads),
        *((attention.width,), (attention.value_width,), attention.keys),
    )


def write_place(tile: Tile, blocks: int, heads: int, batch: int) -> None:
    """``block``, ``head``, ``batch`` and ``part`` of a workgroup, and ``first``, its first row.

    Later queries see more keys where attention is causal: those blocks begin first, so that the short ones fill in at the end.
    """
    total, parts = heads * batch, tile.cut.parts
    tile.line(f"let part = group % {parts}u;")
    if tile.attention.causal:
        place = f"group / {parts * total}u"
        tile.line(f"let block = {f'{blocks - 1}u - {place}' if tile.by_query else place};")
        tile.line(f"let number = group / {parts}u % {total}u;")
    else:
        tile.line(f"let block = group / {parts}u % {blocks}u;")
        tile.line(f"let number = group / {parts * blocks}u;")
    tile.line(f"let head = number % {heads}u;")
    tile.line(f"let batch = number / {heads}u;")
    tile.line(f"let first = block * {tile.cut.row_block}u;")


def write_query_block(tile: Tile) -> dict[str, Rows]:
    """What a workgroup with a block of queries begins with: where it is, and what ``write_query_operands`` says."""
    attention = tile.attention
    blocks = -(-attention.queries // tile.cut.row_block)
    write_place(tile, blocks, attention.heads, attention.batch)
    return write_query_operands(tile)


def write_query_operands(tile: Tile) -> dict[str, Rows]:
    """Where the operands of a block of queries lie; rows begin at ``first``, columns at ``column``."""
    attention = tile.attention
    tile.line(f"let kv_head = head / {attention.group}u;")
    tile.write_start("batch")
    tile.write_rows("first")
    tile.write_range("first")
    found: dict[str, Rows] = {}
    for name in ("q", "k", "v", "dy"):
        if name in attention.operands:
            of_keys = name in ("k", "v")
            base = tile.head_of(name, "batch", "kv_head" if of_keys else "head")
            tile.line(f"let {name}_base = {base};")
            found[name] = Rows(name, f"{name}_base", "column" if of_keys else "first")
    for name in ("mask", "bias"):
        if name in attention.operands:
            tile.write_bases(name, "batch", "head")
    return found


def write_forward(spec: Spec, machine: Machine, attention: Described, cut: Cut) -> Written:
    """The dispatch of the result."""
    numbers = range(len(spec.body.outputs))
    tile = Tile(spec, machine, attention, cut, whole=are_whole(spec, numbers))
    if cut.parts == 1:
        return Written((_stage(tile, None),))
    records = Records(spec, machine, attention, cut.parts)
    return Written((_stage(tile, records), records.merge()), records.nbytes)


def _stage(tile: Tile, records: Records | None) -> Stage:
    cut, attention = tile.cut, tile.attention
    tile.need_weights()
    tile.need_exchange()
    rows = write_query_block(tile)
    for i in range(cut.rows):
        tile.line(f"var top_{i} = {tile.lowest};")
        tile.line(f"var total_{i} = {tile.constant(0.0)};")
    tile.start_sums("sum", "v")
    if cut.kept and attention.width and attention.keys:
        tile.stage_left(rows["q"])
    for _ in tile.blocks_of_columns():
        tile.product("s", rows["q"], rows["k"])
        tile.write_columns("column")
        tile.finish("s")
        for i in range(cut.rows):
            most = most_of_four(f"s_{i}_0")
            for c in range(1, cut.quads):
                most = f"max({most}, {most_of_four(f's_{i}_{c}')})"
            tile.line(f"let most_{i} = max(top_{i}, {most});")
        tile.exchange("most", "peak", lambda a, b: f"max({a}, {b})")
        for i in range(cut.rows):
            tile.line(f"let factor_{i} = {tile.exp(f'top_{i} - peak_{i}')};")
            tile.line(f"top_{i} = peak_{i};")
            for c in range(cut.quads):
                own = f"s_{i}_{c}"
                tile.line(f"{own} = {tile.exp_of_four(f'{own} - peak_{i}')};")
            added = " + ".join(sum_of_four(f"s_{i}_{c}") for c in range(cut.quads))
            tile.line(f"total_{i} = fma(total_{i}, factor_{i}, {added});")
            for w in range(cut.summed(attention.value_width)):
                tile.line(f"sum_{i}_{w} = sum_{i}_{w} * factor_{i};")
        tile.add_weighted("sum", "s", rows["v"])
    tile.shader.barrier()
    tile.exchange("total", "whole", lambda a, b: f"{a} + {b}")
    groups = -(-attention.queries // cut.row_block) * attention.heads * attention.batch
    if records is not None:
        _record(tile, records)
        return tile.shader.finish(groups * cut.parts)
    for i in range(cut.rows):
        tile.line(f"let share_{i} = {share_of(tile, f'whole_{i}')};")
        for w in range(cut.summed(attention.value_width)):
            tile.line(f"sum_{i}_{w} = sum_{i}_{w} * share_{i};")
    numbers = range(len(tile.shader.body.outputs))
    write_sums(tile, "sum", attention.node, numbers, "first", "batch", "head")
    return tile.shader.finish(groups)


def _record(tile: Tile, records: Records) -> None:
    """Leave a part's sums in scratch memory."""
    records.bind(tile)
    for i in range(tile.cut.rows):
        with tile.writer.block(f"if (u32(row_{i}) < {tile.row_count}u)"):
            records.write_place(tile, "head", f"u32(row_{i})")
            for w in range(tile.cut.summed(tile.attention.value_width)):
                quad = f"(across + {w * tile.cut.across}u)"
                with tile.writer.block(f"if ({quad} < {records.quads}u)"):
                    records.put_sum(tile, quad, f"sum_{i}_{w}")
            with tile.writer.block("if (across == 0u)"):
                records.put_known(tile, f"top_{i}", f"whole_{i}")
