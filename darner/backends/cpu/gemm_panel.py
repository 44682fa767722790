"""Panels of B: packed all at once, or slice by slice while the panel before is used; and what of the next is asked for meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from .gemm_ahead import EACH, Asks
from .gemm_ir import STORAGE_BYTES, i64, ir, loop, minimum, offset
from .gemm_pack import pack_kernel
from .gemm_plan import Contraction, Cut
from .gemm_tile import Tile, terms_of_turn


def emit_pack_panel(
    builder: Any,
    plan: Cut,
    source: Any,
    number: Any,
    target: Any,
    span: tuple[Any, Any] | None = None,
) -> None:
    """Call the function that packs panel ``number`` of the B at ``source``; of a span of k, its first and its length."""
    contraction = plan.contraction
    _, down, across = contraction.b_strides
    contiguous = "columns" if across == 1 else "k" if down == 1 else "neither"
    width = plan.tile.width
    start = offset(builder, source, contraction.dtype, builder.mul(number, i64(width * across)))

    def panel(tile: Tile) -> None:
        valid = width if tile is plan.tile else contraction.n % width
        pack = pack_kernel(
            builder.module, contraction.dtype, plan.panel, tile.width, tile.lanes, contiguous
        )

        def some(terms: Any, _: Any, b_offset: Any, count: Any = None) -> None:
            count = i64(contraction.together) if count is None else count
            read = offset(builder, start, contraction.dtype, b_offset)
            write = offset(builder, target, plan.panel, builder.mul(terms, i64(tile.width)))
            builder.call(pack, [count, i64(valid), read, i64(down), i64(across), write])

        if span is None:
            each_run(builder, contraction, some)
        else:
            some(span[0], None, builder.mul(span[0], i64(down)), span[1])

    either_panel(builder, plan, number, panel)


def each_run(
    builder: Any, contraction: Contraction, inside: Callable[[Any, Any, Any], None]
) -> None:
    """``inside(terms, a, b)`` for each run of terms that follow each other: how many come before, and where it begins."""

    def nest(axis: int, number: Any, a: Any, b: Any) -> None:
        if axis == len(contraction.apart):
            inside(builder.mul(number, i64(contraction.together)), a, b)
            return
        size, a_stride, b_stride = contraction.apart[axis]

        def one(index: Any, _: Any) -> None:
            nest(
                axis + 1,
                builder.add(builder.mul(number, i64(size)), index),
                builder.add(a, builder.mul(index, i64(a_stride))),
                builder.add(b, builder.mul(index, i64(b_stride))),
            )

        loop(builder, i64(0), i64(size), 1, one)

    nest(0, i64(0), i64(0), i64(0))


def either_panel(builder: Any, plan: Cut, number: Any, emit: Callable[[Tile], None]) -> None:
    """Emit what is done with a panel for the tiles that panel ``number`` may have."""
    if plan.full_panels == plan.panels:
        emit(plan.tile)
    elif not plan.full_panels:
        emit(plan.last)
    else:
        whole = builder.icmp_signed("<", number, i64(plan.full_panels))
        with builder.if_else(whole) as (full, partial):
            with full:
                emit(plan.tile)
            with partial:
                emit(plan.last)


class Products(Protocol):
    """What is asked of who computes with panels."""

    builder: Any
    plan: Cut
    asks: Asks


def _passes(plan: Cut) -> int:
    return -(-plan.contraction.k // plan.block)


def _number(builder: Any, plan: Cut, row: Any, start: Any, position: Any, tiles: Any) -> Any:
    """Tiles of a panel before this one, those of earlier passes over k included."""
    number = builder.sdiv(builder.sub(row, start), i64(plan.tile.rows))
    if _passes(plan) > 1:
        before = builder.mul(builder.sdiv(position, i64(plan.block)), tiles)
        number = builder.add(number, before)
    return number


@dataclass(frozen=True)
class Following:
    """The next panel lies packed at ``place``, and is asked for part by part."""

    products: Products
    place: Any

    def before_tile(self, row: Any, start: Any, position: Any, near: Any) -> None:
        """Say what a tile asks for; ``near`` is in the cache already."""
        builder, plan = self.products.builder, self.products.plan
        turns = plan.block // terms_of_turn(plan.tile)
        size = plan.contraction.k * plan.tile.width * STORAGE_BYTES[plan.panel]
        tiles = plan.rows // plan.tile.rows
        number = _number(builder, plan, row, start, position, i64(tiles))
        distance = builder.mul(number, i64(turns * EACH))
        left = builder.icmp_unsigned("<", distance, i64(size))
        place = builder.gep(self.place, [distance], source_etype=ir().IntType(8))
        self.products.asks.run(builder, builder.select(left, place, near))


@dataclass(frozen=True)
class Slices:
    """Panel ``number`` of B, packed to ``target`` in slices of k: one before each tile of the panel before it.

    What a slice is packed from is asked for one tile earlier. It is little enough to stay in the cache even where its rows are a
    power of two apart.
    """

    products: Products
    source: Any
    rows: tuple[Any, Any]
    number: Any
    stop: Any
    target: Any

    def before_tile(self, row: Any, start: Any, position: Any, near: Any) -> None:
        """Pack the slice of this tile, and say that it asks for what the next is packed from; ``near`` is in the cache already."""
        builder, plan = self.products.builder, self.products.plan
        contraction = plan.contraction
        tile, k = plan.tile, contraction.k
        tiles = builder.sdiv(
            builder.sub(builder.add(self.rows[1], i64(tile.rows - 1)), self.rows[0]), i64(tile.rows)
        )
        tiles = builder.mul(tiles, i64(_passes(plan)))
        # Whole vectors of k, which are transposed at once.
        length = builder.add(builder.sdiv(builder.sub(i64(k), i64(1)), tiles), i64(1))
        length = builder.and_(builder.add(length, i64(tile.lanes - 1)), i64(-tile.lanes))
        number = _number(
            builder, plan, row, start, position, builder.sdiv(tiles, i64(_passes(plan)))
        )
        first = builder.mul(number, length)
        count = minimum(builder, length, builder.sub(i64(k), first))
        some = builder.icmp_signed(">", count, i64(0))
        exists = builder.icmp_signed("<", self.number, self.stop)
        with builder.if_then(builder.and_(some, exists)):
            emit_pack_panel(builder, plan, self.source, self.number, self.target, (first, count))
        # The slice after this one; after the last, the first of the panel after.
        after = builder.add(number, i64(1))
        ends = builder.icmp_signed("==", after, tiles)
        after = builder.mul(builder.select(ends, i64(0), after), length)
        panel = builder.add(self.number, builder.zext(ends, i64(0).type))
        size = STORAGE_BYTES[contraction.dtype]
        _, down, across = contraction.b_strides
        place = offset(
            builder,
            self.source,
            contraction.dtype,
            builder.mul(panel, i64(tile.width * across)),
            builder.mul(after, i64(down)),
        )
        wanted = builder.and_(
            builder.icmp_signed("<", after, i64(k)), builder.icmp_signed("<", panel, self.stop)
        )
        place = builder.select(wanted, place, near)
        if across == 1:
            rows, row_bytes, stride = length, tile.width * size, down * size
        else:
            usual = -(-k // (plan.tiles * _passes(plan)))
            row_bytes = -(-usual // tile.lanes) * tile.lanes * size
            rows, stride = i64(tile.width), across * size
        rows = builder.select(wanted, rows, i64(0))
        self.products.asks.rows(builder, place, stride, row_bytes, rows)
