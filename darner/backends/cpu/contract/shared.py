"""Products of many rows whose operands threads pack for each other, and whose panels they claim one by one.

Rows of A go through the cache in blocks, and sums of many terms in passes. B is packed by who has its panels with the first block of rows, for
all: each while the panel before is used. Nobody waits for that: who comes to a panel that is not there yet packs it for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....codegen.ir.emit import accumulator_of, i64, ir, loop, minimum, offset
from ....codegen.ir.types import STORAGE_BYTES
from ..emit.template import Code
from ..emit.work_queue import QUEUES
from .driver import Driver
from .panel import Either, Following, Meanwhile, Piece, Slices, Terms, emit_pack_panel
from .pieces import Pieces, parts_of, while_claimed
from .plan import Cut

TILES_PACKED = 16
"""Tiles of A that are claimed at a time to be packed."""


def shared_bytes(plan: Cut, straight: bool) -> tuple[int, int]:
    """Bytes that each thread, and all of them together, need; sums go ``straight`` into C or do not."""
    panel = 0 if plan.packed else _panel_bytes(plan)
    return _own_sums(plan) + panel, sum(_parts(plan, straight))


def _own_sums(plan: Cut) -> int:
    """Bytes of sums that are taken to C in the same pass."""
    return _round(plan.rows * plan.tile.width * _size(plan)) if plan.passes == 1 else 0


def _size(plan: Cut) -> int:
    return STORAGE_BYTES[accumulator_of(plan.contraction.dtype)]


def _panel_bytes(plan: Cut) -> int:
    """Of what one pass needs of a panel."""
    return _round(plan.tile.width * plan.block * _size(plan))


def _parts(plan: Cut, straight: bool) -> tuple[int, int, int]:
    """Bytes of the panels and of the rows of A that one pass needs, and of sums that later ones go on with."""
    height = plan.tiles * plan.tile.rows
    panels = 0 if plan.packed else plan.shared_group * _panel_bytes(plan)
    rows = height * plan.block * _size(plan) if plan.pack_a else 0
    # Those of a last panel with a part of a vector do not go straight.
    width = plan.last.width if straight else plan.full_panels * plan.tile.width + plan.last.width
    sums = height * width * _size(plan) if plan.passes > 1 else 0
    return panels, _round(rows), sums


def _round(count: int) -> int:
    """Whole lines of cache."""
    return -(-count // 64) * 64


def claim_blocks(driver: Driver, code: Code, a: Any, b: Any) -> None:
    """Panels that go past blocks of rows, in one pass over their terms or in several."""
    builder, plan, k = driver.builder, driver.plan, driver.contraction.k
    panels, rows, _ = _parts(plan, driver.target.straight is not None)
    byte = ir().IntType(8)
    own, shared = driver.own_panels, code.shared
    driver.own_rows = builder.gep(shared, [i64(panels)], source_etype=byte)
    sums = own
    if plan.passes > 1:
        sums = builder.gep(shared, [i64(panels + rows)], source_etype=byte)
    own = builder.gep(own, [i64(_own_sums(plan))], source_etype=byte)
    group = plan.panels if driver.packed_b else plan.shared_group

    def one_pass(position: Any, _: Any) -> None:
        length = minimum(builder, builder.sub(i64(k), position), i64(plan.block))
        if plan.pack_a:
            _pack_rows(driver, code, a, (position, length))

        def some(first: Any, _: Any) -> None:
            stop = minimum(builder, builder.add(first, i64(group)), i64(plan.panels))
            shape = _Shared(driver, code, (a, b), (first, stop), (position, length), sums, own)
            shape.claim(group)
            if group < plan.panels or plan.passes > 1:
                code.barrier()

        loop(builder, i64(0), i64(plan.panels), group, some)

    loop(builder, i64(0), i64(k), plan.block, one_pass)


def _pack_rows(driver: Driver, code: Code, a: Any, span: tuple[Any, Any]) -> None:
    """Pack some terms of all rows of A, each thread those that it claims."""
    builder, plan, packed = driver.builder, driver.plan, driver.own_rows
    count = -(-plan.tiles // TILES_PACKED)

    def some(piece: Any) -> None:
        low = builder.mul(piece, i64(TILES_PACKED))
        start, end = driver.rows_of(low, builder.add(low, i64(TILES_PACKED)))
        place = builder.mul(start, span[1])
        driver.own_rows = offset(builder, packed, driver.accumulator, place)
        driver.pack_rows(a, start, end, span, code.for_others)

    code.claims.each(count, some)
    driver.own_rows = packed
    code.barrier(past=True)


@dataclass(frozen=True)
class _Shared:
    """A group of panels, with all blocks of rows, in one pass.

    Attributes:
        given: where A and B lie.
        panels: the first, and the one after the last.
        terms: the first, and how many.
        sums: where sums are kept that do not go straight into C.
        own: room for a panel of this thread alone.
    """

    driver: Driver
    code: Code
    given: tuple[Any, Any]
    panels: tuple[Any, Any]
    terms: tuple[Any, Any]
    sums: Any
    own: Any

    def claim(self, group: int) -> None:
        """Claim its pieces, of at most ``group`` panels."""
        driver, claims = self.driver, self.code.claims
        builder, plan = driver.builder, driver.plan
        packing = not driver.packed_b
        blocks = -(-plan.tiles * plan.tile.rows // plan.rows)
        # Panels of the first block are claimed whole: who has one packs it.
        fewest = plan.panels - (-(-plan.panels // group) - 1) * group
        parts = parts_of(plan) if (blocks > 1 and fewest >= QUEUES) or not packing else 1
        count = builder.sub(self.panels[1], self.panels[0])
        # A thread has the same panels with every block: it packed them.
        division = claims.division(count, blocks, parts - 1)
        pieces = Pieces(builder, plan, self.panels, division, parts)

        def mark(number: Any) -> None:
            claims.mark(builder.sub(number, self.panels[0]))

        def start(piece: Any) -> None:
            with builder.if_then(pieces.begins(piece)):
                number = pieces.panel(piece)
                self.pack(number, self.place(number))
                mark(number)

        def inside(piece: Any, later: Any, _: Sequence[Any]) -> Sequence[Any]:
            rows, number, following = pieces.rows(piece), pieces.panel(piece), pieces.panel(later)
            place = self.place(number)
            if packing:
                mine = pieces.begins(piece)
                seen = claims.marked(builder.sub(number, self.panels[0]))
                there = builder.or_(mine, seen)
                with builder.if_then(builder.not_(there), likely=False):
                    self.pack(number, self.own)
                place = builder.select(there, place, self.own)
            first = pieces.begins(later)
            meanwhile = self.meanwhile(rows, following, first)
            terms = Terms(*self.terms, self.terms[1], i64(0), self.sums_of(number))
            driver.panel(i64(0), self.given[0], place, rows, number, meanwhile, terms, i64(0))
            if packing:
                with builder.if_then(first):
                    mark(following)
            return []

        first = start if packing else None
        while_claimed(builder, claims, division, inside, [], first, packing)

    def place(self, number: Any) -> Any:
        """Where the terms of a panel lie packed."""
        driver = self.driver
        builder, plan = driver.builder, driver.plan
        if driver.packed_b:
            before = builder.mul(number, i64(plan.tile.width * plan.contraction.k))
            panel = offset(builder, self.given[1], plan.panel, before)
            return driver.piece(panel, number, self.terms[0])
        before = builder.mul(builder.sub(number, self.panels[0]), i64(_panel_bytes(plan)))
        return builder.gep(self.code.shared, [before], source_etype=ir().IntType(8))

    def pack(self, number: Any, place: Any) -> None:
        """Pack the terms of a panel."""
        driver, (position, length) = self.driver, self.terms
        span = position, i64(0), length
        emit_pack_panel(driver.builder, driver.plan, self.given[1], number, place, span)

    def meanwhile(self, rows: tuple[Any, Any], following: Any, packing: Any) -> Meanwhile:
        """What is done for the next panel: it is packed slice by slice, or asked for."""
        driver, place = self.driver, self.place(following)
        asking = Following(driver, place)
        if driver.packed_b:
            return asking
        piece = Piece(following, *self.terms, packing)
        # Which piece comes after that is not known yet.
        beyond = Piece(following, *self.terms, ir().Constant(packing.type, 0))
        slices = Slices(driver, self.given[1], rows, piece, beyond, place)
        return Either(driver.builder, packing, slices, asking)

    def sums_of(self, number: Any) -> Any:
        """Where the sums of a panel are kept, from the first row on."""
        driver = self.driver
        builder, plan = driver.builder, driver.plan
        if plan.passes == 1 or driver.target.straight is not None:
            return self.sums
        size = plan.tiles * plan.tile.rows * plan.tile.width
        return offset(builder, self.sums, driver.accumulator, builder.mul(number, i64(size)))
