"""Pieces of a product that threads claim one by one.

A thread claims one piece ahead, so that its operands can be prefetched or packed while it works on the piece before. Which thread computes a
tile does not change the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....codegen.ir.emit import minimum
from ....codegen.ir.index import i64
from ....codegen.ir.types import Builder, Value
from ..emit.work_queue import Claims, Division
from .plan import Cut
from .tile import halves_of_cycles

MOST_PARTS = 4
"""In which the last panel of every queue is claimed, so that threads end at about the same time."""
FEWEST_TILES = 4
"""Tiles that such a part has at least."""


def while_claimed(
    claims: Claims,
    division: Division,
    emit_body: Callable[[Value, Value, Sequence[Value]], Sequence[Value]],
    carried: Sequence[Value],
    first: Callable[[Value], None] | None = None,
    marks: bool = False,
) -> None:
    """``emit_body(piece, next piece, carried)`` as long as pieces are left; ``first`` of the first piece before.

    ``marks`` says that things are marked meanwhile.
    """
    builder = claims.builder
    units, tried = division.pieces, claims.begin()
    start = claims.claim(division, tried)
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
    later = claims.claim(division, tried)
    following = emit_body(piece, later, values)
    after = builder.block
    piece.add_incoming(later, after)
    for phi, value in zip(values, following, strict=True):
        phi.add_incoming(value, after)
    builder.cbranch(builder.icmp_unsigned("<", later, units), body, end)
    builder.position_at_end(end)
    claims.end(marks)


@dataclass(frozen=True)
class Pieces:
    """What is claimed: panels, one block after the other; parts of the last of every queue.

    Attributes:
        panels: the first, and the one after the last.
        division: of the panels, all blocks of a queue's own, or of the panels of all blocks.
        parts: in which the last panels are claimed.
    """

    builder: Builder
    plan: Cut
    panels: tuple[Value, Value]
    division: Division
    parts: int

    @property
    def units(self) -> Value:
        """How many there are."""
        return self.division.pieces

    def _index(self, piece: Value) -> tuple[Value, Value, Value]:
        """The panel and the block of a piece, or of the last one; the number of a part, negative where it is none."""
        builder, division = self.builder, self.division
        piece = minimum(builder, piece, builder.sub(self.units, i64(1)))
        queue = division.queue(piece)
        low = division.first(queue)
        count = builder.sub(division.first(builder.add(queue, i64(1))), low)
        number = builder.sub(piece, division.before(queue))
        last = builder.sub(builder.mul(count, i64(division.blocks)), i64(1))
        thing = minimum(builder, number, last)
        if division.blocks == 1:
            low, thing, count = i64(0), builder.add(low, thing), builder.sub(*self.panels[::-1])
        panel = builder.add(builder.add(self.panels[0], low), builder.urem(thing, count))
        return panel, builder.udiv(thing, count), builder.sub(number, last)

    def panel(self, piece: Value) -> Value:
        """The panel of a piece; of one beyond the last, the last panel."""
        return self._index(piece)[0]

    def block(self, piece: Value) -> Value:
        """The block of ``plan.rows`` rows of a piece, or the batch where all rows stay in the cache; of one beyond the last, the last."""
        return self._index(piece)[1]

    def begins(self, piece: Value) -> Value:
        """Whether there is such a piece, and it is of the first block."""
        builder = self.builder
        exists = builder.icmp_unsigned("<", piece, self.units)
        return builder.and_(exists, builder.icmp_unsigned("==", self.block(piece), i64(0)))

    def rows(self, piece: Value) -> tuple[Value, Value]:
        """The rows of a piece: the first, and the one after the last."""
        builder, plan = self.builder, self.plan
        *_, part = self._index(piece)
        start = builder.mul(self.block(piece), i64(plan.rows)) if plan.blocked else i64(0)
        end = minimum(builder, builder.add(start, i64(plan.rows)), i64(plan.contraction.m))
        if self.parts == 1:
            return start, end
        height = i64(plan.tile.rows)
        above = builder.add(builder.sub(end, start), i64(plan.tile.rows - 1))
        tiles = builder.udiv(above, height)

        def row(number: Value) -> Value:
            before = builder.udiv(builder.mul(tiles, number), i64(self.parts))
            return minimum(builder, builder.add(start, builder.mul(before, height)), end)

        is_part = builder.icmp_signed(">=", part, i64(0))
        top, bottom = row(part), row(builder.add(part, i64(1)))
        return builder.select(is_part, top, start), builder.select(is_part, bottom, end)


def parts_of(plan: Cut) -> int:
    """In how many parts the last panels are claimed; each part packs its panel again where it is not kept."""
    tiles = min(plan.rows // plan.tile.rows, plan.tiles)
    return max(1, min(2 if plan.rolling else MOST_PARTS, tiles // FEWEST_TILES))


def fair_share(
    builder: Builder, share: Callable[[int], tuple[Value, Value]], plan: Cut
) -> tuple[Value, Value]:
    """This thread's units where they are shared out in runs: tiles of a narrower last panel take less time than others.

    ``share`` says which of so many things are this thread's.
    """
    if plan.path != "tiles" or plan.by_rows or plan.full_panels in (0, plan.panels):
        return share(plan.units)
    whole, last = (halves_of_cycles(tile.rows, tile.vectors) for tile in (plan.tile, plan.last))
    before, of_batch = plan.full_panels * plan.tiles, plan.panels * plan.tiles
    time = before * whole + plan.tiles * last

    def unit(moment: Value) -> Value:
        """The unit that is begun when so much time has passed."""
        batch = builder.udiv(moment, i64(time))
        within = builder.urem(moment, i64(time))
        over = builder.sub(within, i64(before * whole))
        narrow = builder.add(i64(before), builder.udiv(over, i64(last)))
        wide = builder.udiv(within, i64(whole))
        is_wide = builder.icmp_signed("<", over, i64(0))
        number = builder.select(is_wide, wide, narrow)
        return builder.add(builder.mul(batch, i64(of_batch)), number)

    low, high = share(plan.contraction.batch * time)
    return unit(low), unit(high)
