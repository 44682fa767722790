"""Products whose panels threads claim one by one: all panels while A stays in the cache, columns that are decoded, or some rows of a group of panels in long runs."""

from __future__ import annotations

from collections.abc import Sequence

from ....codegen.ir.emit import minimum, offset
from ....codegen.ir.index import i64
from ....codegen.ir.types import Pointer, Value
from ....graph.integers import ceil_div
from ..emit.template import Code
from .driver import Driver, Turn
from .panel import Following, PanelWork, Terms
from .pieces import Pieces, parts_of, while_claimed
from .plan import Cut
from .shared import claim_blocks, shared_bytes

FEWEST_PANELS, PANELS_OF_THREAD = 8, 4
"""Products of fewer panels, in all or for each thread, are shared out evenly: a panel is too much to be late by."""
TILES_CLAIMED = 4
"""Tiles of columns that are claimed at a time where B is decoded beside them."""
ROWS_CLAIMED = 8
"""Tiles of rows that are claimed at a time where rows are written in long runs."""


def _fewest(plan: Cut) -> int:
    """Panels that are worth claiming. Who computes which changes no bit of them."""
    return max(FEWEST_PANELS, PANELS_OF_THREAD * plan.model.threads)


def can_claim(plan: Cut, packed_b: bool) -> bool:
    """Whether panels of a product are worth claiming."""
    contraction = plan.contraction
    if plan.path == "registers":
        return contraction.batch == 1 and plan.keeps_panel and _strips(plan) >= _fewest(plan)
    if plan.path != "tiles" or contraction.batch != 1 or plan.by_rows or plan.direct:
        return False
    if plan.stays:
        return False
    if plan.runs:
        return _blocks(plan) * _groups(plan) >= _fewest(plan)
    if plan.blocked:
        return plan.panels >= _fewest(plan)
    whole = plan.rows >= contraction.m
    return plan.panels >= _fewest(plan) and (plan.rolling or packed_b) and whole


def can_claim_parts(plan: Cut) -> bool:
    """The same of the parts of sums, which are its batches: where rows need no packing, any thread may have any panel of any of them."""
    if plan.path != "tiles" or plan.by_rows or plan.direct or plan.pack_a:
        return False
    return plan.rolling and plan.contraction.batch * plan.panels >= _fewest(plan)


def scratch_of(plan: Cut, packed_b: bool, straight: bool) -> tuple[int, int]:
    """Bytes that each thread, and all of them together, need for a product whose panels may be claimed, and whose sums go ``straight`` into C or not."""
    if not (plan.blocked and can_claim(plan, packed_b)):
        return plan.scratch_bytes, 0
    return shared_bytes(plan, straight)


def emit_claimed(driver: Driver, code: Code) -> None:
    """All of a product, by claims."""
    if driver.plan.path == "registers":
        _claim_strips(driver, code)
    elif driver.plan.runs:
        _claim_runs(driver, code, *_operands(driver, i64(0)))
    elif driver.plan.blocked:
        claim_blocks(driver, code, *_operands(driver, i64(0)))
    else:
        _claim_panels(driver, code)


def _operands(driver: Driver, batch: Value) -> tuple[Pointer, Pointer]:
    """Where the A and the B of a batch lie."""
    dtype = driver.contraction.dtype
    a, b = driver.offsets(batch)
    return offset(driver.builder, driver.a, dtype, a), offset(driver.builder, driver.b, dtype, b)


# --------------------------------------------------------------------------- panels


def _claim_panels(driver: Driver, code: Code) -> None:
    """Panels that go past rows which all stay in the cache, of one batch after the other."""
    builder, plan, contraction = driver.builder, driver.plan, driver.contraction
    claims, panels = code.claims, (i64(0), i64(plan.panels))
    parts = parts_of(plan)
    division = claims.division(i64(contraction.batch * plan.panels), extra=parts - 1)
    pieces = Pieces(builder, plan, panels, division, parts)
    units = pieces.units
    size = plan.tile.width * contraction.k

    def operands_of(piece: Value) -> tuple[Value, Pointer, Pointer]:
        """The batch of a piece, and where its A and B lie."""
        batch = pieces.block(piece) if contraction.batch > 1 else i64(0)
        return batch, *_operands(driver, batch)

    def start(piece: Value) -> None:
        _, a, b = operands_of(piece)
        if plan.pack_a:
            driver.pack_rows(a, i64(0), i64(contraction.m))
        if plan.rolling:
            driver.pack_first(b, pieces.panel(piece))

    def use_piece(piece: Value, later: Value, turn: Sequence[Value]) -> Sequence[Value]:
        rows, number, following = pieces.rows(piece), pieces.panel(piece), pieces.panel(later)
        batch, a, b = operands_of(piece)
        if plan.rolling:
            _, _, after = operands_of(later)
            left = builder.icmp_unsigned("<", later, units)
            panel = Turn(batch, a, rows, number, b, following, after, left, i64(0))
            return driver.roll(panel, turn)

        def packed(number: Value) -> Pointer:
            return offset(builder, b, plan.panel, builder.mul(number, i64(size)))

        def emit_pass(terms: Terms, _: Sequence[Value]) -> None:
            end = builder.add(terms.position, terms.length)
            ends = builder.icmp_signed("==", end, i64(contraction.k))
            panel = packed(number)
            after = driver.piece(panel, number, end)
            next_one = Following(driver, builder.select(ends, packed(following), after))
            piece_at = driver.piece(panel, number, terms.position)
            driver.panel(PanelWork(batch, a, piece_at, rows, number, terms, i64(0), next_one))

        driver.each_pass(emit_pass)
        return turn

    while_claimed(claims, division, use_piece, [i64(0)], start)


# --------------------------------------------------------------------------- columns that are decoded


def _strips(plan: Cut) -> int:
    return ceil_div(plan.units, TILES_CLAIMED)


def _claim_strips(driver: Driver, code: Code) -> None:
    """Pieces are the columns of some tiles, with all rows: who has them decodes them."""
    builder, plan = driver.builder, driver.plan

    def use_piece(piece: Value) -> None:
        start = builder.mul(piece, i64(TILES_CLAIMED))
        stop = minimum(builder, builder.add(start, i64(TILES_CLAIMED)), i64(plan.units))
        driver.emit(start, stop)

    code.claims.each(_strips(plan), use_piece)


# --------------------------------------------------------------------------- runs of rows


def _groups(plan: Cut) -> int:
    return ceil_div(plan.panels, plan.group)


def _blocks(plan: Cut) -> int:
    return ceil_div(plan.tiles, ROWS_CLAIMED)


def _claim_runs(driver: Driver, code: Code, a: Pointer, b: Pointer) -> None:
    """Pieces are some rows of a group of panels, which each thread packs when it comes to it."""
    builder, plan = driver.builder, driver.plan
    height = ROWS_CLAIMED * plan.tile.rows
    blocks = i64(_blocks(plan))

    def use_piece(piece: Value, _: Value, carried: Sequence[Value]) -> list[Value]:
        group = builder.udiv(piece, blocks)
        first = builder.mul(group, i64(plan.group))
        stop = minimum(builder, builder.add(first, i64(plan.group)), i64(plan.panels))
        with builder.if_then(builder.icmp_signed("!=", group, carried[0])):
            driver.pack_group(b, first, stop)
        start = builder.mul(builder.urem(piece, blocks), i64(height))
        end = minimum(builder, builder.add(start, i64(height)), i64(driver.contraction.m))
        driver.rows_of_group(i64(0), a, driver.own_panels, first, (start, end), (first, stop))
        return [group]

    division = code.claims.division(i64(_groups(plan) * _blocks(plan)))
    while_claimed(code.claims, division, use_piece, [i64(-1)])
