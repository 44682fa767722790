"""Products whose panels threads claim one by one: who is held up by something else leaves more to the others.

A thread claims one piece ahead, so that what it needs can come, or be packed, while it works on the one before. Which thread computes a
tile changes nothing in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .gemm_driver import Driver
from .gemm_ir import i64, ir, minimum, offset
from .gemm_panel import Following, Terms
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

    def claim(self) -> Any:
        """The number of one more piece; beyond the last, nothing is left."""

    def claimed(self, number: Any, pieces: int) -> None:
        """End the claims with a number for which there was no piece."""


def can_claim(plan: Cut, packed_b: bool) -> bool:
    """Whether panels of a product are worth claiming."""
    contraction = plan.contraction
    if (
        plan.path != "tiles"
        or contraction.batch != 1
        or plan.by_rows
        or plan.direct
        or plan.blocked
    ):
        return False
    if plan.runs:
        return _blocks(plan) * _groups(plan) >= FEWEST_PANELS
    whole = plan.rows >= contraction.m
    return plan.panels >= FEWEST_PANELS and (plan.rolling or packed_b) and whole


def emit_claimed(driver: Driver, claims: Claims) -> None:
    """All of a product, by claims."""
    a_offset, b_offset = driver.offsets(i64(0))
    dtype = driver.contraction.dtype
    a = offset(driver.builder, driver.a, dtype, a_offset)
    b = offset(driver.builder, driver.b, dtype, b_offset)
    if driver.plan.runs:
        _claim_runs(driver, claims, a, b)
    else:
        _claim_panels(driver, claims, a, b)


def _while_claimed(
    builder: Any,
    claims: Claims,
    units: int,
    inside: Callable[[Any, Any, Sequence[Any]], Sequence[Any]],
    carried: Sequence[Any],
    first: Callable[[Any], None] | None = None,
) -> None:
    """``inside(piece, next piece, carried)`` as long as pieces are left; ``first`` of the first piece before."""
    start = claims.claim()
    begun = builder.block
    end = builder.append_basic_block("done")
    some = builder.append_basic_block("some")
    builder.cbranch(builder.icmp_unsigned("<", start, i64(units)), some, end)
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
    builder.cbranch(builder.icmp_unsigned("<", later, i64(units)), body, end)
    builder.position_at_end(end)
    last = builder.phi(start.type)
    last.add_incoming(start, begun)
    last.add_incoming(later, after)
    claims.claimed(last, units)


# --------------------------------------------------------------------------- panels


def _claim_panels(driver: Driver, claims: Claims, a: Any, b: Any) -> None:
    builder, plan, m = driver.builder, driver.plan, driver.contraction.m
    halved = HALVED if plan.tiles >= FEWEST_HALVED else 0
    whole = plan.panels - halved
    units = whole + 2 * halved
    middle = plan.tiles // 2 * plan.tile.rows
    size = plan.tile.width * driver.contraction.k

    def panel_of(piece: Any) -> Any:
        """The panel of a piece; of one beyond the last, the last panel."""
        piece = minimum(builder, piece, i64(units - 1))
        part = builder.add(i64(whole), builder.udiv(builder.sub(piece, i64(whole)), i64(2)))
        return builder.select(builder.icmp_unsigned("<", piece, i64(whole)), piece, part)

    def rows_of(piece: Any) -> tuple[Any, Any]:
        if not halved:
            return i64(0), i64(m)
        is_whole = builder.icmp_unsigned("<", piece, i64(whole))
        second = builder.trunc(builder.sub(piece, i64(whole)), ir().IntType(1))
        start = builder.select(second, i64(middle), i64(0))
        end = builder.select(second, i64(m), i64(middle))
        return builder.select(is_whole, i64(0), start), builder.select(is_whole, i64(m), end)

    def packed(number: Any) -> Any:
        return offset(builder, b, plan.panel, builder.mul(number, i64(size)))

    def start(piece: Any) -> None:
        if plan.pack_a:
            driver.pack_rows(a, i64(0), i64(m))
        if plan.rolling:
            driver.pack_first(b, panel_of(piece))

    def inside(piece: Any, later: Any, turn: Sequence[Any]) -> Sequence[Any]:
        rows, number = rows_of(piece), panel_of(piece)
        if plan.rolling:
            left = builder.icmp_unsigned("<", later, i64(units))
            following = panel_of(later)
            return driver.roll(i64(0), a, b, rows, number, following, left, turn, i64(0))

        def one_pass(terms: Terms, _: Any) -> None:
            end = builder.add(terms.position, terms.length)
            ends = builder.icmp_signed("==", end, i64(driver.contraction.k))
            panel = packed(number)
            after = driver.piece(panel, number, end)
            following = Following(driver, builder.select(ends, packed(panel_of(later)), after))
            piece_at = driver.piece(panel, number, terms.position)
            driver.panel(i64(0), a, piece_at, rows, number, following, terms, i64(0))

        driver.each_pass(one_pass)
        return turn

    _while_claimed(builder, claims, units, inside, [i64(0)], start)


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

    _while_claimed(builder, claims, _groups(plan) * _blocks(plan), inside, [i64(-1)])
