"""How threads share the gradient of a convolution towards its weight: groups of channels, and blocks of pixels that are summed in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ....codegen.ir.emit import loop, maximum, minimum
from ....codegen.ir.index import i64
from ....codegen.ir.types import Builder, Value
from ..emit.template import Code
from .pack import divided


class Cuts(Protocol):
    """How often a gradient is cut: turns of channels, blocks of pixels, and splits of those."""

    turns: int
    blocks: int
    splits: int


def rows_of_turns(channels: int, each: int, taps: int) -> tuple[int, ...]:
    """The rows that turns of ``each`` channels have: all but the last, and the last where it differs.

    >>> rows_of_turns(10, 4, 9)
    (36, 18)
    """
    return tuple(dict.fromkeys((min(each, channels) * taps, ((channels - 1) % each + 1) * taps)))


def share_sums(code: Code, layout: Cuts, groups: int, block: Callable[..., None]) -> None:
    """This thread's part of sums over blocks of pixels: for some of (group, split) a range of turns of channels.

    ``block(index, group, split, keep, turns)`` adds one block to the sums of a split, or begins them where ``keep`` is not set.
    """
    builder, turns = code.builder, layout.turns
    first, last = code.share(groups * layout.splits * turns)

    def emit_unit(number: Value, _: Sequence[Value]) -> None:
        before = builder.mul(number, i64(turns))
        low = maximum(builder, builder.sub(first, before), i64(0))
        high = minimum(builder, builder.sub(last, before), i64(turns))
        group, split = divided(builder, number, layout.splits)
        start, stop = (
            builder.udiv(
                builder.mul(builder.add(i64(split), i64(k)), i64(layout.blocks)),
                i64(layout.splits),
            )
            for k in (0, 1)
        )

        def emit_step(index: Value, _: Sequence[Value]) -> None:
            keep = builder.icmp_signed(">", index, start)
            block(index, group, split, keep, (low, high))

        loop(builder, start, stop, 1, emit_step)

    end = builder.udiv(builder.add(last, i64(turns - 1)), i64(turns))
    loop(builder, builder.udiv(first, i64(turns)), end, 1, emit_unit)


def call_with_rows(
    builder: Builder, left: Value, height: int, turns: Sequence[int], call: Callable[[int], None]
) -> None:
    """``call`` with the rows of a whole tile, or with those that are ``left`` of a turn; ``turns`` are the rows that turns have."""
    rests = sorted({rows % height for rows in turns} - {0})
    if max(turns) < height and len(set(turns)) == 1:
        call(max(turns))
        return
    if not rests:
        call(height)
        return
    whole = builder.icmp_signed(">=", left, i64(height))
    with builder.if_else(whole) as (full, partial):
        with full:
            call(height)
        with partial:
            for rest in rests:
                if len(rests) == 1:
                    call(rest)
                    continue
                with builder.if_then(builder.icmp_signed("==", left, i64(rest))):
                    call(rest)
