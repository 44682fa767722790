"""Attention's result: a block of queries meets block after block of keys, and keeps a running softmax."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

from ....graph.integers import ceil_div
from ....lower.plan import Spec
from ...problems.attention import Described, result_numbers
from ..builder import Value
from ..dispatch import Stage, Written
from ..machine import Machine
from .merge import Records
from .operands import Place, most_of_four, share_of, sum_of_four
from .plan import Blocks, Cut, choose
from .results import are_whole, keeps_statistics, write_statistics, write_sums
from .tile import Block, Rows, Tile


def forward_cut(attention: Described, machine: Machine) -> Cut | None:
    """How the queries are cut."""
    heads = attention.batch * attention.heads
    widths = (attention.width,), (attention.value_width,)
    return choose(Blocks(attention.queries, heads, *widths, attention.keys), machine)


def write_place(tile: Tile, blocks: int, heads: int, batch: int) -> Place:
    """What a workgroup works on.

    Later queries see more keys where attention is causal: those blocks begin first, so that the short ones fill in at the end.
    """
    b, total, parts = tile.builder, heads * batch, tile.cut.parts
    if tile.attention.causal:
        block = b.group // (parts * total)
        if tile.by_query:
            block = blocks - 1 - block
        number = b.group // parts % total
    else:
        block = b.group // parts % blocks
        number = b.group // (parts * blocks)
    block, number = b.let(block, "block"), b.let(number, "number")
    return Place(
        batch=b.let(number // heads, "batch"),
        head=b.let(number % heads, "head"),
        first=b.let(block * tile.cut.row_block, "first"),
        part=b.let(b.group % parts, "part"),
    )


def write_query_block(tile: Tile) -> tuple[Place, dict[str, Rows]]:
    """What a workgroup with a block of queries begins with: where it is, and what ``write_query_operands`` says."""
    attention = tile.attention
    blocks = ceil_div(attention.queries, tile.cut.row_block)
    place = write_place(tile, blocks, attention.heads, attention.batch)
    return place, write_query_operands(tile, place)


def write_query_operands(tile: Tile, place: Place) -> dict[str, Rows]:
    """Where the operands of a block of queries lie, from its first row on; keys and values are to be met block by block."""
    attention, b = tile.attention, tile.builder
    kv_head = b.let(place.head // attention.group, "kv_head")
    tile.write_start(place.batch)
    tile.write_rows(place.first)
    tile.write_range(place)
    found: dict[str, Rows] = {}
    for name in ("q", "k", "v", "dy"):
        if name in attention.operands:
            of_keys = name in ("k", "v")
            base = tile.head_of(name, place.batch, kv_head if of_keys else place.head)
            found[name] = Rows(name, b.let(b.index(base), f"{name}_base"), place.first)
    tile.write_bases(place.batch, place.head)
    return found


def write_forward(spec: Spec, machine: Machine, attention: Described, cut: Cut) -> Written:
    """The dispatch of the result."""
    numbers = result_numbers(spec)
    tile = Tile(spec, machine, attention, cut, whole=are_whole(spec, numbers))
    if cut.parts == 1:
        return Written((_stage(tile, None),))
    records = Records(spec, machine, attention, cut.parts)
    return Written((_stage(tile, records), records.merge()), records.nbytes)


def _stage(tile: Tile, records: Records | None) -> Stage:
    b, cut, attention = tile.builder, tile.cut, tile.attention
    tile.need_weights()
    tile.need_exchange()
    place, rows = write_query_block(tile)
    top = tile.numbers(tile.lowest, "top")
    total = tile.numbers(0.0, "total")
    sums = tile.start_sums("v")
    if cut.kept and attention.width and attention.keys:
        tile.stage_left(rows["q"])
    for column in tile.blocks_of_columns():
        scores = tile.product("score", rows["q"], rows["k"].at(column))
        tile.finish(scores, tile.column_numbers(column))
        most = []
        for own, before in zip(scores, top, strict=True):
            found = most_of_four(b, own[0])
            for score in own[1:]:
                found = b.max(found, most_of_four(b, score))
            most.append(b.let(b.max(before, found), "most"))
        for i, peak in enumerate(tile.exchange(most, b.max)):
            factor = b.let(tile.exp(top[i] - peak), "factor")
            top[i].set(peak)
            for score in scores[i]:
                score.set(tile.exp(score - peak))
            added = sum_of_four(scores[i][0])
            for score in scores[i][1:]:
                added = added + sum_of_four(score)
            total[i].set(b.fma(total[i], factor, added))
            for value in sums[i]:
                value.set(value * factor)
        tile.add_weighted(sums, scores, rows["v"].at(column))
    b.barrier()
    whole = tile.exchange(total, add)
    groups = ceil_div(attention.queries, cut.row_block) * attention.heads * attention.batch
    if records is not None:
        _record(tile, records, place, (sums, top, whole))
        return tile.dispatch.finish(groups * cut.parts)
    if keeps_statistics(tile):
        with b.if_(tile.across == 0):
            for row_number, peak, all_ in zip(tile.row_numbers, top, whole, strict=True):
                row = b.as_unsigned(row_number)
                with b.if_(row < tile.row_count):
                    write_statistics(tile, place, row, peak, all_)
    for own, all_ in zip(sums, whole, strict=True):
        share = b.let(share_of(tile, all_), "share")
        for value in own:
            value.set(value * share)
    write_sums(tile, sums, attention.node, result_numbers(tile.dispatch.spec), place)
    return tile.dispatch.finish(groups)


def _record(
    tile: Tile,
    records: Records,
    place: Place,
    found: tuple[Block, Sequence[Value], Sequence[Value]],
) -> None:
    """Leave a part's sums in scratch memory, with each row's maximum and total."""
    b = tile.builder
    records.bind(tile)
    for number, sums, top, total in zip(tile.row_numbers, *found, strict=True):
        row = b.as_unsigned(number)
        with b.if_(row < tile.row_count):
            record = records.place(tile, place, row)
            for w, value in enumerate(sums):
                quad = tile.across + w * tile.cut.across
                with b.if_(quad < records.quads):
                    records.put_sum(record, quad, value)
            with b.if_(tile.across == 0):
                records.put_known(record, top, total)
