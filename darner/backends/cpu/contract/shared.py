"""Products of many rows whose operands threads pack for each other, and whose panels they claim one by one.

A goes through the cache in blocks of rows, and long sums in several passes. The thread that has a panel with the first block of rows packs it for
all, while it uses the panel before. Nobody waits: a thread that finds a panel not yet packed packs it for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....codegen.ir.emit import accumulator_of, ir, loop, minimum, offset
from ....codegen.ir.index import i64
from ....codegen.ir.types import STORAGE_BYTES, Pointer, Value
from ....graph.integers import ceil_div, round_up
from ..emit.template import Code
from ..emit.work_queue import QUEUES
from .driver import Driver
from .panel import Either, Following, Meanwhile, PanelWork, Piece, Slices, Terms, emit_pack_panel
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
    return round_up(count, 64)


def claim_blocks(driver: Driver, code: Code, a: Pointer, b: Pointer) -> None:
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

    def emit_pass(position: Value, _: Sequence[Value]) -> None:
        length = minimum(builder, builder.sub(i64(k), position), i64(plan.block))
        if plan.pack_a:
            _pack_rows(driver, code, a, (position, length))

        def use_group(first: Value, _: Sequence[Value]) -> None:
            stop = minimum(builder, builder.add(first, i64(group)), i64(plan.panels))
            shape = _Shared(driver, code, (a, b), (first, stop), (position, length), sums, own)
            shape.claim(group)
            if group < plan.panels or plan.passes > 1:
                code.barrier()

        loop(builder, i64(0), i64(plan.panels), group, use_group)

    loop(builder, i64(0), i64(k), plan.block, emit_pass)


def _pack_rows(driver: Driver, code: Code, a: Pointer, span: tuple[Value, Value]) -> None:
    """Pack some terms of all rows of A, each thread those that it claims."""
    builder, plan, packed = driver.builder, driver.plan, driver.own_rows
    count = ceil_div(plan.tiles, TILES_PACKED)

    def pack_piece(piece: Value) -> None:
        low = builder.mul(piece, i64(TILES_PACKED))
        start, end = driver.rows_of(low, builder.add(low, i64(TILES_PACKED)))
        position = builder.mul(start, span[1])
        driver.own_rows = offset(builder, packed, driver.accumulator, position)
        driver.pack_rows(a, start, end, span, code.for_others)

    code.claims.each(count, pack_piece)
    driver.own_rows = packed
    code.barrier(non_temporal=True)


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
    given: tuple[Pointer, Pointer]
    panels: tuple[Value, Value]
    terms: tuple[Value, Value]
    sums: Pointer
    own: Pointer

    def claim(self, group: int) -> None:
        """Claim its pieces, of at most ``group`` panels."""
        driver, claims = self.driver, self.code.claims
        builder, plan = driver.builder, driver.plan
        packing = not driver.packed_b
        blocks = ceil_div(plan.tiles * plan.tile.rows, plan.rows)
        # Panels of the first block are claimed whole: who has one packs it.
        fewest = plan.panels - (ceil_div(plan.panels, group) - 1) * group
        parts = parts_of(plan) if (blocks > 1 and fewest >= QUEUES) or not packing else 1
        count = builder.sub(self.panels[1], self.panels[0])
        # A thread has the same panels with every block: it packed them.
        division = claims.division(count, blocks, parts - 1)
        pieces = Pieces(builder, plan, self.panels, division, parts)

        def mark(number: Value) -> None:
            claims.mark(builder.sub(number, self.panels[0]))

        def start(piece: Value) -> None:
            with builder.if_then(pieces.begins(piece)):
                number = pieces.panel(piece)
                self.pack(number, self.panel_address(number))
                mark(number)

        def use_piece(piece: Value, later: Value, _: Sequence[Value]) -> Sequence[Value]:
            rows, number, following = pieces.rows(piece), pieces.panel(piece), pieces.panel(later)
            panel_address = self.panel_address(number)
            if packing:
                mine = pieces.begins(piece)
                seen = claims.marked(builder.sub(number, self.panels[0]))
                there = builder.or_(mine, seen)
                with builder.if_then(builder.not_(there), likely=False):
                    self.pack(number, self.own)
                panel_address = builder.select(there, panel_address, self.own)
            first = pieces.begins(later)
            meanwhile = self.meanwhile(rows, following, first)
            terms = Terms(*self.terms, self.terms[1], i64(0), self.sums_of(number))
            work = PanelWork(
                i64(0), self.given[0], panel_address, rows, number, terms, i64(0), meanwhile
            )
            driver.panel(work)
            if packing:
                with builder.if_then(first):
                    mark(following)
            return []

        first = start if packing else None
        while_claimed(claims, division, use_piece, [], first, packing)

    def panel_address(self, number: Value) -> Pointer:
        """Where the terms of a panel lie packed."""
        driver = self.driver
        builder, plan = driver.builder, driver.plan
        if driver.packed_b:
            before = builder.mul(number, i64(plan.tile.width * plan.contraction.k))
            panel = offset(builder, self.given[1], plan.panel, before)
            return driver.piece(panel, number, self.terms[0])
        before = builder.mul(builder.sub(number, self.panels[0]), i64(_panel_bytes(plan)))
        return builder.gep(self.code.shared, [before], source_etype=ir().IntType(8))

    def pack(self, number: Value, address: Pointer) -> None:
        """Pack the terms of a panel."""
        driver, (position, length) = self.driver, self.terms
        span = position, i64(0), length
        emit_pack_panel(driver.builder, driver.plan, self.given[1], number, address, span)

    def meanwhile(self, rows: tuple[Value, Value], following: Value, packing: Value) -> Meanwhile:
        """What is done for the next panel: it is packed slice by slice, or asked for."""
        driver, address = self.driver, self.panel_address(following)
        asking = Following(driver, address)
        if driver.packed_b:
            return asking
        piece = Piece(following, *self.terms, packing)
        # Which piece comes after that is not known yet.
        beyond = Piece(following, *self.terms, ir().Constant(packing.type, 0))
        slices = Slices(driver, self.given[1], rows, piece, beyond, address)
        return Either(driver.builder, packing, slices, asking)

    def sums_of(self, number: Value) -> Pointer:
        """Where the sums of a panel are kept, from the first row on."""
        driver = self.driver
        builder, plan = driver.builder, driver.plan
        if plan.passes == 1 or driver.target.straight is not None:
            return self.sums
        size = plan.tiles * plan.tile.rows * plan.tile.width
        return offset(builder, self.sums, driver.accumulator, builder.mul(number, i64(size)))
