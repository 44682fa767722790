"""Packing of panels of B: all at once, or slice by slice while the panel before is used; and what is prefetched meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ....codegen.ir.emit import ir, loop, maximum, minimum, offset
from ....codegen.ir.index import i64
from ....codegen.ir.types import STORAGE_BYTES, Builder, Pointer, Value
from ....graph.integers import ceil_div
from ..emit.panels import Panels
from ..model import LINE
from .pack import Ends, PackKernel
from .plan import Contraction, Cut, PanelOf
from .prefetch import Asks, Rows, paced
from .tile import Tile


def emit_pack_panel(
    builder: Builder,
    plan: Cut,
    source: Pointer,
    number: Value,
    target: Pointer,
    span: tuple[Value, Value, Value] | None = None,
) -> None:
    """Call the function that packs panel ``number`` of the B at ``source``; of a span of k, its first in B and in ``target``, and its length."""
    contraction = plan.contraction
    if contraction.b_panels is not None:
        whole = i64(0), i64(0), i64(contraction.k)
        transposed = _TransposedPanels(builder, plan, contraction.b_panels, source)
        transposed.pack(number, target, span or whole)
        return
    _, down, across = contraction.b_strides
    contiguous = "columns" if across == 1 else "k" if down == 1 else "neither"
    width = plan.tile.width
    decoder = plan.decoder
    start = offset(builder, source, contraction.dtype, builder.mul(number, i64(width * across)))

    def panel(tile: Tile) -> None:
        valid = width if tile is plan.tile else contraction.n % width
        if decoder is not None:
            place, at, count = span or (i64(0), i64(0), i64(contraction.k))
            write = offset(builder, target, plan.panel, builder.mul(at, i64(tile.width)))
            read = offset(builder, start, contraction.dtype, builder.mul(place, i64(down)))
            decoder.pack(builder, PanelOf(tile.width, valid, tile.lanes), (read, count), write)
            return
        ends = Ends(valid < tile.width, span is None and 0 < contraction.together < tile.lanes)
        kernel = PackKernel(contraction.dtype, plan.panel, tile.width, tile.lanes, contiguous, ends)
        pack = kernel.function(builder.module)

        def pack_run(terms: Value, _: Value | None, b_offset: Value, count: Value) -> None:
            read = offset(builder, start, contraction.dtype, b_offset)
            write = offset(builder, target, plan.panel, builder.mul(terms, i64(tile.width)))
            builder.call(pack, [count, i64(valid), read, i64(down), i64(across), write])

        if span is None:
            together = i64(contraction.together)
            each_run(builder, contraction, lambda terms, _, at: pack_run(terms, _, at, together))
        else:
            pack_run(span[1], None, builder.mul(span[0], i64(down)), span[2])

    either_panel(builder, plan, number, panel)


@dataclass(frozen=True)
class _TransposedPanels:
    """A B whose transpose lies in panels, and so its terms.

    Attributes:
        panels: the form of these.
        source: where they lie.
    """

    builder: Builder
    plan: Cut
    panels: Panels
    source: Pointer

    def pack(self, number: Value, target: Pointer, span: tuple[Value, Value, Value]) -> None:
        """Pack panel ``number``: as many terms at a time as lie in one of theirs."""
        builder, plan, panels = self.builder, self.plan, self.panels
        contraction, grain = plan.contraction, i64(panels.width)
        first, skipped, count = span
        end = builder.add(first, count)

        def panel(tile: Tile) -> None:
            valid = plan.tile.width if tile is plan.tile else contraction.n % plan.tile.width
            kernel = PackKernel(contraction.dtype, plan.panel, tile.width, tile.lanes, "k")
            pack = kernel.function(builder.module)

            def pack_terms(index: Value, _: Sequence[Value]) -> None:
                begin = builder.mul(index, grain)
                low, high = (
                    maximum(builder, first, begin),
                    minimum(builder, end, builder.add(begin, grain)),
                )
                place, across = self.column(number, low)
                at = builder.add(skipped, builder.sub(low, first))
                write = offset(builder, target, plan.panel, builder.mul(at, i64(tile.width)))
                given = [builder.sub(high, low), i64(valid), place, i64(1), across, write]
                builder.call(pack, given)

            last = builder.sdiv(builder.add(end, i64(panels.width - 1)), grain)
            loop(builder, builder.sdiv(first, grain), last, 1, pack_terms)

        either_panel(builder, plan, number, panel)

    def column(self, number: Value, term: Value) -> tuple[Pointer, Value]:
        """Where the first column of panel ``number`` has a term, if terms lie in panels, and how far two columns are from each other."""
        builder, plan, panels = self.builder, self.plan, self.panels
        width = i64(panels.width)
        index = builder.sdiv(term, width)
        across = width
        if panels.last:
            is_last = builder.icmp_signed("==", index, i64(panels.columns // panels.width))
            across = builder.select(is_last, i64(panels.last), width)
        address = offset(
            builder,
            self.source,
            plan.contraction.dtype,
            builder.mul(index, i64(panels.width * panels.rows)),
            builder.mul(builder.mul(number, i64(plan.tile.width)), across),
            builder.sub(term, builder.mul(index, width)),
        )
        return address, across


def each_run(
    builder: Builder, contraction: Contraction, body: Callable[[Value, Value, Value], None]
) -> None:
    """``body(terms, a, b)`` for each run of terms that follow each other: how many come before, and where it begins."""

    def nest(axis: int, number: Value, a: Value, b: Value) -> None:
        if axis == len(contraction.strided_terms):
            body(builder.mul(number, i64(contraction.together)), a, b)
            return
        size, a_stride, b_stride = contraction.strided_terms[axis]

        def descend(index: Value, _: Sequence[Value]) -> None:
            nest(
                axis + 1,
                builder.add(builder.mul(number, i64(size)), index),
                builder.add(a, builder.mul(index, i64(a_stride))),
                builder.add(b, builder.mul(index, i64(b_stride))),
            )

        loop(builder, i64(0), i64(size), 1, descend)

    nest(0, i64(0), i64(0), i64(0))


def either_panel(builder: Builder, plan: Cut, number: Value, emit: Callable[[Tile], None]) -> None:
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

    builder: Builder
    plan: Cut
    asks: Asks

    @property
    def turns_free(self) -> int:
        """Turns of a tile that may ask for what is needed after it."""


@dataclass(frozen=True)
class Terms:
    """Terms of all sums that one pass adds up.

    Attributes:
        position: the first.
        length: how many.
        distance: terms that are packed of each row of A.
        skipped: elements of a packed tile of A before these.
        sums: where those are kept that do not go straight into C, from the first packed row on.
    """

    position: Value
    length: Value
    distance: Value
    skipped: Value
    sums: Pointer


class Meanwhile(Protocol):
    """What is done for the next piece of B while one is used."""

    def before_tile(self, row: Value, start: Value, near: Pointer) -> None:
        """What is done before the tile of ``row``, of rows from ``start`` on; ``near`` is in the cache already."""


@dataclass(frozen=True)
class PanelWork:
    """Some rows of the columns of one panel of a product, and some terms of their sums.

    Attributes:
        batch: which product of a batch.
        a: where its A lies.
        b: where these terms of the panel lie.
        rows: the first, and the one after the last.
        number: of the panel.
        terms: of the sums.
        first_packed: the first of the rows of A that are packed, where rows are.
        meanwhile: what is done for the next panel, where anything is.
    """

    batch: Value
    a: Pointer
    b: Pointer
    rows: tuple[Value, Value]
    number: Value
    terms: Terms
    first_packed: Value
    meanwhile: Meanwhile | None = None


def _tiles(builder: Builder, plan: Cut, rows: tuple[Value, Value]) -> Value:
    """Tiles that some rows make, a lower last one included."""
    above = builder.add(builder.sub(rows[1], rows[0]), i64(plan.tile.rows - 1))
    return builder.sdiv(above, i64(plan.tile.rows))


@dataclass(frozen=True)
class Following:
    """The next piece lies packed at ``place``, and is asked for part by part."""

    products: Products
    place: Pointer

    def before_tile(self, row: Value, start: Value, near: Pointer) -> None:
        """Say what a tile asks for."""
        builder, plan = self.products.builder, self.products.plan
        size = plan.block * plan.tile.width * STORAGE_BYTES[plan.panel]
        turns = self.products.turns_free
        tiles = ceil_div(min(plan.rows, plan.contraction.m), plan.tile.rows)
        step = paced(ceil_div(size, LINE), tiles * turns)
        number = builder.sdiv(builder.sub(row, start), i64(plan.tile.rows))
        distance = builder.mul(number, i64(turns * step))
        left = builder.icmp_unsigned("<", distance, i64(size))
        address = builder.gep(self.place, [distance], source_etype=ir().IntType(8))
        self.products.asks.run(builder, builder.select(left, address, near), step)


@dataclass(frozen=True)
class Piece:
    """Terms ``position`` to ``position + length`` of panel ``number``; ``exists`` where there is such a piece."""

    number: Value
    position: Value
    length: Value
    exists: Value


@dataclass(frozen=True)
class Slices:
    """A piece of B, packed in slices of k: one before each tile of ``rows`` that uses the piece before it.

    What a slice is packed from is asked for one tile earlier. It is little enough to stay in the cache even where its rows are a
    power of two apart. The piece goes to ``target``; ``beyond`` is the one after it.
    """

    products: Products
    source: Pointer
    rows: tuple[Value, Value]
    piece: Piece
    beyond: Piece
    target: Pointer

    def before_tile(self, row: Value, start: Value, near: Pointer) -> None:
        """Pack the slice of this tile, and say that it asks for what the next is packed from."""
        builder, plan, piece = self.products.builder, self.products.plan, self.piece
        contraction, tile = plan.contraction, plan.tile
        tiles = _tiles(builder, plan, self.rows)
        # Whole vectors of k, which are transposed at once.
        grain = i64(contraction.whole_terms(1, tile.lanes))
        length = builder.sdiv(builder.sub(piece.length, i64(1)), builder.mul(tiles, grain))
        length = builder.mul(builder.add(length, i64(1)), grain)
        number = builder.sdiv(builder.sub(row, start), i64(tile.rows))
        first = builder.mul(number, length)
        count = minimum(builder, length, builder.sub(piece.length, first))
        some = builder.icmp_signed(">", count, i64(0))
        with builder.if_then(builder.and_(some, piece.exists)):
            terms = builder.add(piece.position, first), first, count
            emit_pack_panel(builder, plan, self.source, piece.number, self.target, terms)
        # The slice after this one; after the last, the first of the piece after.
        after = builder.add(number, i64(1))
        ends = builder.icmp_signed("==", after, tiles)
        after = builder.mul(after, length)
        within = builder.and_(builder.icmp_signed("<", after, piece.length), piece.exists)
        wanted = builder.select(ends, self.beyond.exists, within)
        panel = builder.select(ends, self.beyond.number, piece.number)
        inside = builder.add(piece.position, after)
        after = builder.select(ends, self.beyond.position, inside)
        size = STORAGE_BYTES[contraction.dtype]
        _, down, across = contraction.b_strides
        if contraction.b_panels is not None:
            panels = _TransposedPanels(builder, plan, contraction.b_panels, self.source)
            place, _ = panels.column(panel, after)
        else:
            place = offset(
                builder,
                self.source,
                contraction.dtype,
                builder.mul(panel, i64(tile.width * across)),
                builder.mul(after, i64(down)),
            )
        if plan.decoder is not None:
            wanted = ir().Constant(wanted.type, 0)  # it lies at no address
        place = builder.select(wanted, place, near)
        usual = ceil_div(plan.block * tile.rows, plan.rows)
        usual = contraction.whole_terms(usual, tile.lanes)
        turns = self.products.turns_free
        if across == 1:
            count, rows = length, Rows(down * size, tile.width * size, usual, turns)
        else:
            wide = usual if contraction.b_panels is None else contraction.b_panels.width
            count, rows = i64(tile.width), Rows(across * size, wide * size, tile.width, turns)
        self.products.asks.rows(builder, place, rows, builder.select(wanted, count, i64(0)))


@dataclass(frozen=True)
class Either:
    """Slices of the next piece where ``packing``, what is packed already elsewhere."""

    builder: Builder
    packing: Value
    slices: Slices
    following: Following

    def before_tile(self, row: Value, start: Value, near: Pointer) -> None:
        """One or the other."""
        with self.builder.if_else(self.packing) as (rolling, packed):
            with rolling:
                self.slices.before_tile(row, start, near)
            with packed:
                self.following.before_tile(row, start, near)
