"""Kernels of a step that need not wait for each other, on streams beside each other: where one of them leaves processors idle at its end, the next is begun.

A step that is recorded is a graph of launches, and what a launch waits for is what was started before it on its own stream, and on streams that this was told to follow. ``schedule`` gives each kernel a
*lane*, a stream of the recording, so that it waits for what it must follow (``Plan.hazards``) and for little else. Two runs give the same bits: who waits for whom does not change what a kernel computes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

LANES = 4
"""Streams of a recording."""


BEGIN = -1
"""In place of a kernel: the beginning of the recording."""


@dataclass(frozen=True)
class Turn:
    """When a kernel is started.

    Attributes:
        kernel: its number.
        lane: the stream that it is started on; the first is the program's own.
        after: kernels of other lanes, or ``BEGIN``, that this lane waits for first.
    """

    kernel: int
    lane: int
    after: tuple[int, ...] = ()


def schedule(
    hazards: Sequence[Sequence[int]],
    part: range,
    alone: Collection[int] = (),
    lanes: int = LANES,
) -> list[Turn]:
    """The turns of a part of a step, in the order of its kernels.

    Args:
        hazards: for each kernel those that it must follow.
        part: the kernels that are started; those before are done.
        alone: kernels of which no two may run at a time.
        lanes: how many streams there are.

    >>> for turn in schedule([(), (0,), (0,), (1, 2)], range(4), lanes=2):
    ...     print(turn)
    Turn(kernel=0, lane=0, after=())
    Turn(kernel=1, lane=0, after=())
    Turn(kernel=2, lane=1, after=(0,))
    Turn(kernel=3, lane=1, after=(1,))
    """
    last: list[int | None] = [None] * lanes
    lane_of: dict[int, int] = {}
    # For each kernel, and for each lane by now, up to which kernel of every lane it has waited.
    known: dict[int, list[int]] = {}
    seen = [[BEGIN] * lanes for _ in range(lanes)]
    turns: list[Turn] = []
    before: int | None = None
    for kernel in part:
        needed = {i for i in hazards[kernel] if i in part}
        if kernel in alone:
            needed |= set() if before is None else {before}
            before = kernel
        lane = _lane_for(needed, last)
        own = seen[lane]
        after = set[int]()
        for i in sorted(needed, reverse=True):
            if lane_of[i] != lane and i > own[lane_of[i]]:
                after.add(i)
                own[:] = map(max, own, known[i])
        if lane and last[lane] is None and not after:
            # It becomes part of the recording.
            after.add(BEGIN)
        own[lane] = kernel
        known[kernel] = list(own)
        last[lane], lane_of[kernel] = kernel, lane
        turns.append(Turn(kernel, lane, tuple(sorted(after))))
    return turns


def _lane_for(needed: Collection[int], last: Sequence[int | None]) -> int:
    """The lane of a kernel that needs others: where one of them was the last, or else where the last was started longest ago."""
    ends = [lane for lane, kernel in enumerate(last) if kernel in needed]
    if ends:
        return max(ends, key=lambda lane: last[lane] or 0)
    return min(range(len(last)), key=lambda lane: BEGIN if last[lane] is None else last[lane] or 0)
