"""Pieces of a product that threads claim one by one: who is held up by something else leaves more to the others.

A thread claims one piece ahead, so that what it needs can come, or be packed, while it works on the one before. Which thread computes a
tile changes nothing in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .gemm_ir import i64, maximum, minimum
from .gemm_plan import Cut
from .gemm_tile import halves_of_cycles

LAST = 2
"""The last panels, which are claimed in parts so that threads end at about the same time."""
MOST_PARTS = 4
FEWEST_TILES = 4
"""Tiles that such a part has at least."""


class Claims(Protocol):
    """How pieces are claimed: what of ``Code`` is used for that."""

    @property
    def shared(self) -> Any:
        """Memory of all threads: as much as ``scratch_of`` says."""

    def claim(self) -> Any:
        """The number of one more piece; beyond the last, nothing is left."""

    def claimed(self, number: Any, pieces: Any, marks: bool = False) -> None:
        """End the claims with a number for which there was no piece; where there are ``marks``, take them back."""

    def each_claimed(self, pieces: int, inside: Callable[[Any], None]) -> None:
        """``inside(piece)`` for the pieces that this thread claims."""

    def mark(self, number: Any) -> None:
        """Say that something is done, until all pieces are claimed; what this thread wrote before is seen by who sees the mark."""

    def marked(self, number: Any) -> Any:
        """Whether that was said."""

    def barrier(self) -> None:
        """Wait until every thread has come here."""


def while_claimed(
    builder: Any,
    claims: Claims,
    units: Any,
    inside: Callable[[Any, Any, Sequence[Any]], Sequence[Any]],
    carried: Sequence[Any],
    first: Callable[[Any], None] | None = None,
    marks: bool = False,
) -> None:
    """``inside(piece, next piece, carried)`` as long as pieces are left; ``first`` of the first piece before.

    ``marks`` says that things are marked meanwhile.
    """
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
    claims.claimed(last, units, marks)


@dataclass(frozen=True)
class Pieces:
    """What is claimed: panels, one block after the other; of the last of them, parts.

    Attributes:
        panels: the first, and the one after the last.
        blocks: how many blocks of ``plan.rows`` rows there are, or batches where all rows stay in the cache.
        parts: in which the last panels are claimed.
    """

    builder: Any
    plan: Cut
    panels: tuple[Any, Any]
    blocks: int
    parts: int

    @property
    def each(self) -> Any:
        """How many there are with one block of rows."""
        return self.builder.sub(self.panels[1], self.panels[0])

    @property
    def _whole(self) -> Any:
        count = self.builder.mul(self.each, i64(self.blocks))
        return maximum(self.builder, self.builder.sub(count, i64(self._cut)), i64(0))

    @property
    def _cut(self) -> int:
        return LAST if self.parts > 1 else 0

    @property
    def units(self) -> Any:
        """How many there are."""
        return self.builder.add(self._whole, i64(self.parts * self._cut))

    def _index(self, piece: Any) -> tuple[Any, Any, Any]:
        """Which panel of which block, from 0 on; the number of a part; whether it is one."""
        builder, whole = self.builder, self._whole
        over = builder.sub(piece, whole)
        is_part = builder.icmp_signed(">=", over, i64(0))
        last = builder.add(whole, builder.udiv(over, i64(self.parts)))
        return builder.select(is_part, last, piece), builder.urem(over, i64(self.parts)), is_part

    def panel(self, piece: Any) -> Any:
        """The panel of a piece; of one beyond the last, the last panel."""
        builder = self.builder
        piece = minimum(builder, piece, builder.sub(self.units, i64(1)))
        index, _, _ = self._index(piece)
        number = builder.urem(index, self.each)
        # From both ends in turns: lines that lie side by side are not written by two threads at a time.
        near = builder.lshr(number, i64(1))
        odd = builder.icmp_signed("==", builder.and_(number, i64(1)), i64(1))
        first, last = self.panels[0], builder.sub(self.panels[1], i64(1))
        return builder.select(odd, builder.sub(last, near), builder.add(first, near))

    def block(self, piece: Any) -> Any:
        """The block of a piece; of one beyond the last, the last block."""
        last = self.builder.sub(self.units, i64(1))
        index, _, _ = self._index(minimum(self.builder, piece, last))
        return self.builder.udiv(index, self.each)

    def rows(self, piece: Any) -> tuple[Any, Any]:
        """The rows of a piece: the first, and the one after the last."""
        builder, plan = self.builder, self.plan
        _, part, is_part = self._index(piece)
        start = builder.mul(self.block(piece), i64(plan.rows)) if plan.blocked else i64(0)
        end = minimum(builder, builder.add(start, i64(plan.rows)), i64(plan.contraction.m))
        if self.parts == 1:
            return start, end
        height = i64(plan.tile.rows)
        above = builder.add(builder.sub(end, start), i64(plan.tile.rows - 1))
        tiles = builder.udiv(above, height)

        def row(number: Any) -> Any:
            before = builder.udiv(builder.mul(tiles, number), i64(self.parts))
            return minimum(builder, builder.add(start, builder.mul(before, height)), end)

        top, bottom = row(part), row(builder.add(part, i64(1)))
        return builder.select(is_part, top, start), builder.select(is_part, bottom, end)


def parts_of(plan: Cut) -> int:
    """In how many parts the last panels are claimed; each part packs its panel again where it is not kept."""
    tiles = min(plan.rows // plan.tile.rows, plan.tiles)
    return max(1, min(2 if plan.rolling else MOST_PARTS, tiles // FEWEST_TILES))


def fair_share(builder: Any, share: Callable[[int], tuple[Any, Any]], plan: Cut) -> tuple[Any, Any]:
    """This thread's units where they are shared out in runs: tiles of a narrower last panel take less time than others.

    ``share`` says which of so many things are this thread's.
    """
    if plan.path != "tiles" or plan.by_rows or plan.full_panels in (0, plan.panels):
        return share(plan.units)
    whole, last = (halves_of_cycles(tile.rows, tile.vectors) for tile in (plan.tile, plan.last))
    before, of_batch = plan.full_panels * plan.tiles, plan.panels * plan.tiles
    time = before * whole + plan.tiles * last

    def unit(moment: Any) -> Any:
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
