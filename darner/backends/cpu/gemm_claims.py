"""Products whose panels threads claim one by one: who is held up by something else leaves more to the others.

A thread claims one piece ahead, so that what it needs can come, or be packed, while it works on the one before. Which thread computes a
tile changes nothing in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .gemm_driver import Driver
from .gemm_ir import STORAGE_BYTES, accumulator_of, i64, ir, loop, maximum, minimum, offset
from .gemm_panel import Following, Meanwhile, Piece, Slices, Terms, emit_pack_panel
from .gemm_plan import Cut

FEWEST_PANELS = 8
"""Products of fewer panels are shared out evenly: a panel is too much to be late by."""
HALVED = 2
"""The last panels, which are claimed in two halves so that threads end at about the same time."""
FEWEST_HALVED = 8
"""Tiles that a panel needs for that."""
ROWS_CLAIMED = 8
"""Tiles of rows that are claimed at a time where rows are written in long runs."""


class Claims(Protocol):
    """How pieces are claimed: what of ``Code`` is used here."""

    @property
    def shared(self) -> Any:
        """Memory of all threads: as much as ``scratch_of`` says."""

    def claim(self) -> Any:
        """The number of one more piece; beyond the last, nothing is left."""

    def claimed(self, number: Any, pieces: Any) -> None:
        """End the claims with a number for which there was no piece."""

    def share(self, count: int) -> tuple[Any, Any]:
        """This thread's part of so many things."""

    def barrier(self) -> None:
        """Wait until every thread has come here."""


def can_claim(plan: Cut, packed_b: bool) -> bool:
    """Whether panels of a product are worth claiming."""
    contraction = plan.contraction
    if plan.path != "tiles" or contraction.batch != 1 or plan.by_rows or plan.direct:
        return False
    if plan.stays:
        return False
    if plan.runs:
        return _blocks(plan) * _groups(plan) >= FEWEST_PANELS
    if plan.blocked:
        return plan.panels >= FEWEST_PANELS and plan.passes == 1
    whole = plan.rows >= contraction.m
    return plan.panels >= FEWEST_PANELS and (plan.rolling or packed_b) and whole


def scratch_of(plan: Cut, packed_b: bool) -> tuple[int, int]:
    """Bytes that each thread, and all of them together, need for a product whose panels may be claimed."""
    if not (plan.blocked and can_claim(plan, packed_b)):
        return plan.scratch_bytes, 0
    _, _, sums = plan.scratch_parts()
    panels, rows = _shared_parts(plan)
    return sums, panels + rows


def emit_claimed(driver: Driver, claims: Claims) -> None:
    """All of a product, by claims."""
    a_offset, b_offset = driver.offsets(i64(0))
    dtype = driver.contraction.dtype
    a = offset(driver.builder, driver.a, dtype, a_offset)
    b = offset(driver.builder, driver.b, dtype, b_offset)
    if driver.plan.runs:
        _claim_runs(driver, claims, a, b)
    elif driver.plan.blocked:
        _claim_blocks(driver, claims, a, b)
    else:
        _claim_panels(driver, claims, a, b)


def _while_claimed(
    builder: Any,
    claims: Claims,
    units: Any,
    inside: Callable[[Any, Any, Sequence[Any]], Sequence[Any]],
    carried: Sequence[Any],
    first: Callable[[Any], None] | None = None,
) -> None:
    """``inside(piece, next piece, carried)`` as long as pieces are left; ``first`` of the first piece before."""
    start = claims.claim()
    begun = builder.block
    end = builder.append_basic_block("done")
    some = builder.append_basic_block("some")
    builder.cbranch(builder.icmp_unsigned("<", start, units), some, end)
    builder.position_at_end(some)
    if first is not None:
        first(start)
    before = builder.block
    body = builder.append_basic_block("claimed")
    builder.branch(body)
    builder.position_at_end(body)
    piece = builder.phi(start.type)
    piece.add_incoming(start, before)
    values = [builder.phi(value.type) for value in carried]
    for phi, value in zip(values, carried, strict=True):
        phi.add_incoming(value, before)
    later = claims.claim()
    following = inside(piece, later, values)
    after = builder.block
    piece.add_incoming(later, after)
    for phi, value in zip(values, following, strict=True):
        phi.add_incoming(value, after)
    builder.cbranch(builder.icmp_unsigned("<", later, units), body, end)
    builder.position_at_end(end)
    last = builder.phi(start.type)
    last.add_incoming(start, begun)
    last.add_incoming(later, after)
    claims.claimed(last, units)


# --------------------------------------------------------------------------- panels


@dataclass(frozen=True)
class _Pieces:
    """What is claimed: panels, one block of rows after the other; of the last of them, halves.

    Attributes:
        panels: the first, and the one after the last.
        blocks: likewise, of blocks of ``plan.rows`` rows.
        halved: how many are claimed in halves.
    """

    builder: Any
    plan: Cut
    panels: tuple[Any, Any]
    blocks: tuple[int, int]
    halved: int

    @property
    def _each(self) -> Any:
        return self.builder.sub(self.panels[1], self.panels[0])

    @property
    def _whole(self) -> Any:
        count = self.builder.mul(self._each, i64(self.blocks[1] - self.blocks[0]))
        return maximum(self.builder, self.builder.sub(count, i64(self.halved)), i64(0))

    @property
    def units(self) -> Any:
        """How many there are."""
        return self.builder.add(self._whole, i64(2 * self.halved))

    def _index(self, piece: Any) -> tuple[Any, Any, Any]:
        """Which panel of which block, from 0 on; the number of a half; whether it is one."""
        builder, whole = self.builder, self._whole
        over = builder.sub(piece, whole)
        halved = builder.icmp_signed(">=", over, i64(0))
        index = builder.select(halved, builder.add(whole, builder.lshr(over, i64(1))), piece)
        return index, builder.and_(over, i64(1)), halved

    def panel(self, piece: Any) -> Any:
        """The panel of a piece; of one beyond the last, the last panel."""
        builder = self.builder
        piece = minimum(builder, piece, builder.sub(self.units, i64(1)))
        index, _, _ = self._index(piece)
        number = builder.urem(index, self._each)
        # From both ends in turns: lines that lie side by side are not written by two threads at a time.
        near = builder.lshr(number, i64(1))
        odd = builder.icmp_signed("==", builder.and_(number, i64(1)), i64(1))
        first, last = self.panels[0], builder.sub(self.panels[1], i64(1))
        return builder.select(odd, builder.sub(last, near), builder.add(first, near))

    def rows(self, piece: Any) -> tuple[Any, Any]:
        """The rows of a piece: the first, and the one after the last."""
        builder, plan = self.builder, self.plan
        index, half, halved = self._index(piece)
        block = builder.add(i64(self.blocks[0]), builder.udiv(index, self._each))
        start = builder.mul(block, i64(plan.rows))
        end = minimum(builder, builder.add(start, i64(plan.rows)), i64(plan.contraction.m))
        if not self.halved:
            return start, end
        twice = 2 * plan.tile.rows
        tiles = builder.udiv(builder.sub(end, start), i64(twice))
        middle = builder.add(start, builder.mul(tiles, i64(plan.tile.rows)))
        second = builder.icmp_signed("==", half, i64(1))
        top = builder.and_(halved, second)
        bottom = builder.and_(halved, builder.not_(second))
        return builder.select(top, middle, start), builder.select(bottom, middle, end)


def _halved(plan: Cut) -> int:
    """Panels that are claimed in halves."""
    tiles = min(plan.rows // plan.tile.rows, plan.tiles)
    return HALVED if tiles >= FEWEST_HALVED else 0


def _claim_panels(driver: Driver, claims: Claims, a: Any, b: Any) -> None:
    """Panels that go past rows which all stay in the cache."""
    builder, plan, m = driver.builder, driver.plan, driver.contraction.m
    pieces = _Pieces(builder, plan, (i64(0), i64(plan.panels)), (0, 1), _halved(plan))
    units = pieces.units
    size = plan.tile.width * driver.contraction.k

    def packed(number: Any) -> Any:
        return offset(builder, b, plan.panel, builder.mul(number, i64(size)))

    def start(piece: Any) -> None:
        if plan.pack_a:
            driver.pack_rows(a, i64(0), i64(m))
        if plan.rolling:
            driver.pack_first(b, pieces.panel(piece))

    def inside(piece: Any, later: Any, turn: Sequence[Any]) -> Sequence[Any]:
        rows, number = pieces.rows(piece), pieces.panel(piece)
        if plan.rolling:
            left = builder.icmp_unsigned("<", later, units)
            following = pieces.panel(later)
            return driver.roll(i64(0), a, b, rows, number, following, left, turn, i64(0))

        def one_pass(terms: Terms, _: Any) -> None:
            end = builder.add(terms.position, terms.length)
            ends = builder.icmp_signed("==", end, i64(driver.contraction.k))
            panel = packed(number)
            after = driver.piece(panel, number, end)
            following = Following(driver, builder.select(ends, packed(pieces.panel(later)), after))
            piece_at = driver.piece(panel, number, terms.position)
            driver.panel(i64(0), a, piece_at, rows, number, following, terms, i64(0))

        driver.each_pass(one_pass)
        return turn

    _while_claimed(builder, claims, units, inside, [i64(0)], start)


# --------------------------------------------------------------------------- panels of blocks of rows


def _shared_parts(plan: Cut) -> tuple[int, int]:
    """Bytes of the panels, and of the rows of A, that threads pack for each other."""
    k, size = plan.contraction.k, STORAGE_BYTES[accumulator_of(plan.contraction.dtype)]
    panels = 0 if plan.packed else plan.group * plan.tile.width * k * size
    return panels, plan.tiles * plan.tile.rows * k * size if plan.pack_a else 0


def _claim_blocks(driver: Driver, claims: Claims, a: Any, b: Any) -> None:
    """Panels that go past blocks of rows: packed, where they are not, by who has them with the first block, for all."""
    builder, plan = driver.builder, driver.plan
    # Memory of a thread's own is for sums alone.
    driver.own_sums, driver.own_panels = driver.own_panels, claims.shared
    if plan.pack_a:
        _pack_shared_rows(driver, claims, a)
    blocks = -(-plan.tiles * plan.tile.rows // plan.rows)
    if driver.packed_b:
        _claim_some(driver, claims, (a, b), (i64(0), i64(plan.panels)), (0, blocks))
        return

    def group(first: Any, _: Any) -> None:
        stop = minimum(builder, builder.add(first, i64(plan.group)), i64(plan.panels))
        _claim_some(driver, claims, (a, b), (first, stop), (0, 1))
        claims.barrier()
        _claim_some(driver, claims, (a, b), (first, stop), (1, blocks))
        if plan.group < plan.panels:
            claims.barrier()

    loop(builder, i64(0), i64(plan.panels), plan.group, group)


def _pack_shared_rows(driver: Driver, claims: Claims, a: Any) -> None:
    """Pack all of A, each thread some of its tiles."""
    builder, plan = driver.builder, driver.plan
    panels, _ = _shared_parts(plan)
    packed = builder.gep(claims.shared, [i64(panels)], source_etype=ir().IntType(8))
    low, high = claims.share(plan.tiles)
    start, end = driver.rows_of(low, high)
    place = builder.mul(start, i64(driver.contraction.k))
    driver.own_rows = offset(builder, packed, driver.accumulator, place)
    driver.pack_rows(a, start, end)
    driver.own_rows = packed
    claims.barrier()


def _claim_some(
    driver: Driver,
    claims: Claims,
    given: tuple[Any, Any],
    panels: tuple[Any, Any],
    blocks: tuple[int, int],
) -> None:
    """Some panels of some blocks; where B is not packed before, those of the first block are, each while the one before is used."""
    builder, plan, k = driver.builder, driver.plan, driver.contraction.k
    (a, b), whole = given, (i64(0), i64(0), i64(k))
    packing = not driver.packed_b and blocks[0] == 0
    pieces = _Pieces(builder, plan, panels, blocks, 0 if packing else _halved(plan))
    units = pieces.units
    base, skipped = (b, i64(0)) if driver.packed_b else (driver.own_panels, panels[0])

    def place(number: Any) -> Any:
        before = builder.mul(builder.sub(number, skipped), i64(plan.tile.width * k))
        return offset(builder, base, plan.panel, before)

    def start(piece: Any) -> None:
        number = pieces.panel(piece)
        emit_pack_panel(builder, plan, b, number, place(number), whole)

    def inside(piece: Any, later: Any, _: Sequence[Any]) -> Sequence[Any]:
        rows, number, following = pieces.rows(piece), pieces.panel(piece), pieces.panel(later)
        meanwhile: Meanwhile = Following(driver, place(following))
        if packing:
            left = builder.icmp_unsigned("<", later, units)
            next_piece = Piece(following, i64(0), i64(k), left)
            # Which piece comes after that is not known yet.
            beyond = Piece(following, i64(0), i64(k), ir().Constant(left.type, 0))
            meanwhile = Slices(driver, b, rows, next_piece, beyond, place(following))
        terms = Terms(i64(0), i64(k), i64(k), i64(0), driver.own_sums)
        driver.panel(i64(0), a, place(number), rows, number, meanwhile, terms, i64(0))
        return []

    _while_claimed(builder, claims, units, inside, [], start if packing else None)


# --------------------------------------------------------------------------- runs of rows


def _groups(plan: Cut) -> int:
    return -(-plan.panels // plan.group)


def _blocks(plan: Cut) -> int:
    return -(-plan.tiles // ROWS_CLAIMED)


def _claim_runs(driver: Driver, claims: Claims, a: Any, b: Any) -> None:
    """Pieces are some rows of a group of panels, which each thread packs when it comes to it."""
    builder, plan = driver.builder, driver.plan
    height = ROWS_CLAIMED * plan.tile.rows
    blocks = i64(_blocks(plan))

    def inside(piece: Any, _: Any, carried: Sequence[Any]) -> list[Any]:
        group = builder.udiv(piece, blocks)
        first = builder.mul(group, i64(plan.group))
        stop = minimum(builder, builder.add(first, i64(plan.group)), i64(plan.panels))
        with builder.if_then(builder.icmp_signed("!=", group, carried[0])):
            driver.pack_group(b, first, stop)
        start = builder.mul(builder.urem(piece, blocks), i64(height))
        end = minimum(builder, builder.add(start, i64(height)), i64(driver.contraction.m))
        driver.rows_of_group(i64(0), a, driver.own_panels, first, (start, end), (first, stop))
        return [group]

    _while_claimed(builder, claims, i64(_groups(plan) * _blocks(plan)), inside, [i64(-1)])
