"""Where every value of a plan lies: one arena, planned by liveness, with reuse in place.

    >>> from darner.lower.memory import Request, plan_arena
    >>> arena = plan_arena([Request(256, 0, 1), Request(256, 1, 2), Request(256, 2, 3)])
    >>> arena.offsets, arena.nbytes, arena.naive
    ((0, 256, 0), 512, 768)

A value lives at every step from the one that writes it to the last that reads it, both included, and no two values that
live at one step may overlap. An element-wise kernel may write over what it reads for the last time:

    >>> plan_arena([Request(256, 0, 1), Request(256, 1, 2, in_place_of=(0,))])
    Arena(offsets=(0, 0), nbytes=256, lower_bound=256, naive=512, shared=((1, 0),), alignment=64)

First it is settled who takes over whose room; a chain of such values is one block with one offset, whose size may
shrink as it is handed on. Then the blocks are placed one after another, each in the tightest gap that is free for as
long as it lives. The order decides how good the result is, so several are tried and the best is kept; where none comes
close to the lower bound, blocks around the top of the arena are moved within the best order until one does. Work is
counted in blocks placed, never in seconds, so the same requests always give the same arena.

Sizes are rounded up to the alignment, here and in every figure: a value owns its room to the end of its last cache line.

Where memory comes in segments of a bounded size, no value lies across the end of one: there is a wall, a value of no bytes
that lives at every step.

    >>> sorted(plan_arena([Request(256, 0, 1), Request(256, 0, 1), Request(256, 0, 1)], segment=640).offsets)
    [0, 256, 640]
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

import numpy as np

from ..graph.errors import LESS_MEMORY, InternalError, OutOfMemoryError
from ..graph.integers import round_up
from ..graph.types import MOST_BYTES

CLOSE = 0.02
"""The planner stops looking when the arena exceeds the lower bound by less than this share."""

WORK, WORK_EACH = 6_000, 4
"""How often a block may be placed before the best arena so far is good enough: so often in all, or so often each."""

SMALL_FLOOR = 64
"""A floor has at least this much room to grow: so few pieces are scanned as fast as one."""

SCANNED = 2_500
"""Placing a block among this many others counts twice: each is looked at, if quickly."""


@dataclass(frozen=True, slots=True)
class Request:
    """One value that needs room.

    Attributes:
        nbytes: its size; nothing at all is fine.
        first: the step that writes it.
        last: the last step that reads it; for a result of the plan, the number of steps.
        in_place_of: requests whose room it may take over although step ``first`` still reads them. This is a permission:
            it is used where that step is the last to read the other, the other is large enough, and no one else took it.
    """

    nbytes: int
    first: int
    last: int
    in_place_of: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Arena:
    """Where every request lies.

    Attributes:
        offsets: by request, where it begins.
        nbytes: the size of the whole.
        lower_bound: the most bytes alive at any step; no arena with the same sharing can be smaller.
        naive: the bytes of all requests beside each other.
        shared: pairs of a request and the one whose room it took over.
        alignment: every offset and every figure is a multiple of it.
    """

    offsets: tuple[int, ...]
    nbytes: int
    lower_bound: int
    naive: int
    shared: tuple[tuple[int, int], ...]
    alignment: int = 64


def plan_arena(
    requests: Sequence[Request], *, alignment: int = 64, segment: int | None = None
) -> Arena:
    """Find room for every request in one arena that is as small as can be found quickly.

    With ``segment``, a multiple of the alignment, no request lies across a multiple of that many bytes; what fits into one segment lies as it does without.
    """
    _check_requests(requests, alignment)
    rooms = [_aligned(request.nbytes, alignment) for request in requests]
    if sum(rooms) >= MOST_BYTES:
        raise OutOfMemoryError(
            f"the values that a step makes have {sum(rooms):,} bytes: offsets have 63 bits",
            hint=LESS_MEMORY,
        )
    walls = None if segment is None else _walls(rooms, alignment, segment)
    givers = _take_over(requests)
    chains = _chains(requests, givers)
    blocks = [_block(requests, rooms, chain) for chain in chains]
    live = _live_bytes(blocks)
    bound = max(live, default=0)
    offsets = [0] * len(requests)
    nbytes = 0
    if blocks:
        nbytes, found = _best(blocks, live, None)
        if segment is not None and nbytes > segment:
            nbytes, found = _best(blocks, live, walls)
        for chain, offset in zip(chains, found, strict=True):
            for index in chain:
                offsets[index] = offset
    return Arena(
        tuple(offsets), nbytes, bound, sum(rooms), tuple(sorted(givers.items())), alignment
    )


def check_arena(requests: Sequence[Request], arena: Arena, segment: int | None = None) -> None:
    """Raise unless no two values that live at one step overlap, and every offset is aligned and inside the arena."""
    _check_requests(requests, arena.alignment)
    if len(arena.offsets) != len(requests):
        raise InternalError(f"an arena of {len(arena.offsets)} values for {len(requests)} requests")
    for index, (request, offset) in enumerate(zip(requests, arena.offsets, strict=True)):
        if offset % arena.alignment:
            raise InternalError(f"value {index} at {offset} is not aligned to {arena.alignment}")
        if offset < 0 or offset + request.nbytes > arena.nbytes:
            raise InternalError(
                f"value {index} of {request.nbytes} bytes at {offset} is outside the arena of {arena.nbytes}"
            )
        if segment is not None and request.nbytes > segment - offset % segment:
            raise InternalError(
                f"value {index} of {request.nbytes} bytes at {offset} is in two segments of {segment}"
            )
    _check_shared(requests, arena)
    _check_overlaps(requests, arena)


def _walls(rooms: Sequence[int], alignment: int, segment: int) -> np.ndarray:
    """The ends of as many segments as any order needs, one for each value at worst, as columns of a floor."""
    if segment < 1 or segment % alignment or max(rooms, default=0) > segment:
        raise InternalError(
            f"values of up to {max(rooms, default=0)} bytes, aligned to {alignment}, in segments of {segment}"
        )
    ends = segment * np.arange(1, len(rooms) + 1, dtype=np.int64)
    always = np.full_like(ends, np.iinfo(np.int64).max)
    return np.stack([np.zeros_like(ends), always, ends, ends])


def _check_requests(requests: Sequence[Request], alignment: int) -> None:
    if alignment < 1:
        raise InternalError(f"an alignment of {alignment} bytes is not positive")
    for index, request in enumerate(requests):
        if request.nbytes < 0 or not 0 <= request.first <= request.last:
            raise InternalError(
                f"value {index} of {request.nbytes} bytes cannot live from step {request.first} to {request.last}"
            )
        for other in request.in_place_of:
            if not 0 <= other < len(requests) or other == index:
                raise InternalError(f"value {index} cannot take the room of value {other}")


def _check_shared(requests: Sequence[Request], arena: Arena) -> None:
    """Each value takes over one room at most, each room goes to one value, and all are allowed to."""
    if len(dict(arena.shared)) < len(arena.shared):
        raise InternalError("a value took over two rooms")
    if len({giver for _, giver in arena.shared}) < len(arena.shared):
        raise InternalError("two values took over one room")
    for taker, giver in arena.shared:
        if not 0 <= taker < len(requests) or giver not in _givers(requests, taker):
            raise InternalError(f"value {taker} may not take over the room of value {giver}")
        if arena.offsets[taker] != arena.offsets[giver]:
            raise InternalError(f"value {taker} took over value {giver} but lies elsewhere")


def _check_overlaps(requests: Sequence[Request], arena: Arena) -> None:
    """Walk through the steps with what lives in order of offset, so that only neighbours can overlap.

    A value that takes over a room comes when the step is over and what gave the room is gone: until
    then, the larger of the two has it.
    """
    takers = {taker for taker, _ in arena.shared}
    arrive, leave, take = 0, 1, 2
    events: list[tuple[int, int, int]] = []
    for index, request in enumerate(requests):
        if not request.nbytes or (index in takers and request.first == request.last):
            continue
        events.append((request.first, take if index in takers else arrive, index))
        events.append((request.last, leave, index))
    living: list[tuple[int, int]] = []  # (offset, request)
    for step, event, index in sorted(events):
        entry = (arena.offsets[index], index)
        place = bisect_left(living, entry)
        if event == leave:
            del living[place]
            continue
        living.insert(place, entry)
        for (low, below), (high, above) in pairwise(living[max(place - 1, 0) : place + 2]):
            if low + requests[below].nbytes > high:
                raise InternalError(f"values {below} and {above} overlap in memory at step {step}")


def _aligned(nbytes: int, alignment: int) -> int:
    return round_up(nbytes, alignment)


# Who takes over whose room -------------------------------------------------------------------------


def _givers(requests: Sequence[Request], taker: int) -> list[int]:
    """The requests whose room one can take over, the tightest first."""
    request = requests[taker]
    allowed = [
        other
        for other in dict.fromkeys(request.in_place_of)
        if requests[other].first < request.first == requests[other].last
        and 0 < request.nbytes <= requests[other].nbytes
    ]
    return sorted(allowed, key=lambda other: requests[other].nbytes)


def _take_over(requests: Sequence[Request]) -> dict[int, int]:
    """Request -> the one whose room it takes over, so that the most bytes are saved at every step.

    The largest choose first, and one that finds its rooms taken makes others move to another: such
    augmenting paths never drop anyone, which makes the choice exact, not just good.
    """
    options = {index: _givers(requests, index) for index, r in enumerate(requests) if r.in_place_of}
    givers: dict[int, int] = {}
    takers: dict[int, int] = {}
    for index in sorted(options, key=lambda index: -requests[index].nbytes):
        wanted: dict[int, int] = {}  # giver -> who would have it
        queue = [index]
        for asking in queue:
            fresh = [giver for giver in options[asking] if giver not in wanted]
            wanted.update(dict.fromkeys(fresh, asking))
            free = next((giver for giver in fresh if giver not in takers), None)
            if free is not None:
                _hand_on(free, wanted, givers, takers)
                break
            queue.extend(takers[giver] for giver in fresh)
    return givers


def _hand_on(
    free: int, wanted: dict[int, int], givers: dict[int, int], takers: dict[int, int]
) -> None:
    """Give a free room to who wants it, the room that one had to who wants that, and so on."""
    giver: int | None = free
    while giver is not None:
        taker = wanted[giver]
        takers[giver] = taker
        left = givers.get(taker)
        givers[taker] = giver
        giver = left


def _chains(requests: Sequence[Request], givers: dict[int, int]) -> list[list[int]]:
    """The requests of each block, the first owner of the room first. Those of no bytes need none."""
    takers = {giver: taker for taker, giver in givers.items()}
    chains = []
    for index, request in enumerate(requests):
        if request.nbytes and index not in givers:
            chain = [index]
            while chain[-1] in takers:
                chain.append(takers[chain[-1]])
            chains.append(chain)
    return chains


# Blocks --------------------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """A span of steps through which a block has one size."""

    first: int
    last: int
    nbytes: int


class _Block(NamedTuple):
    """What has one offset: its pieces follow each other in time and do not grow."""

    first: int
    last: int
    nbytes: int
    pieces: tuple[_Piece, ...]

    @property
    def steps(self) -> int:
        return self.last - self.first + 1


def _block(requests: Sequence[Request], rooms: Sequence[int], chain: Sequence[int]) -> _Block:
    pieces: list[_Piece] = []
    for index in chain:
        first, last, nbytes = requests[index].first, requests[index].last, rooms[index]
        if pieces:
            first += 1  # the step that hands the room on still needs all of it
            if pieces[-1].nbytes == nbytes:
                first = pieces.pop().first
        if first <= last:
            pieces.append(_Piece(first, last, nbytes))
    return _Block(pieces[0].first, pieces[-1].last, pieces[0].nbytes, tuple(pieces))


def _live_bytes(blocks: Sequence[_Block]) -> list[int]:
    """The bytes alive at each step."""
    change = [0] * (max((block.last for block in blocks), default=-1) + 2)
    for block in blocks:
        for first, last, nbytes in block.pieces:
            change[first] += nbytes
            change[last + 1] -= nbytes
    return list(accumulate(change))[:-1]


# Placing -------------------------------------------------------------------------------------------


class _Floor:
    """The pieces placed so far, in order of offset, as columns that one expression can scan."""

    def __init__(self, room: int, placed: np.ndarray | None = None) -> None:
        self.count = 0 if placed is None else placed.shape[1]
        self.columns = np.empty((4, self.count + room), dtype=np.int64)
        if placed is not None:
            self.columns[:, : self.count] = placed

    def during(self, first: int, last: int) -> np.ndarray:
        """The columns of what lives at some of the steps."""
        columns = self.columns[:, : self.count]
        return columns[:, (columns[0] <= last) & (columns[1] >= first)]

    def place(self, block: _Block) -> int:
        """Put a block into the tightest gap that is free whenever it lives; on top when there is none."""
        first, last, low, high = self.columns[:, : self.count]
        if len(block.pieces) == 1:
            met = ((first <= block.last) & (last >= block.first)).nonzero()[0]
            slack, ends = low.take(met) - block.nbytes, high.take(met)
        else:
            slack, ends = self._around(block)
        offset = 0
        if ends.size:
            # Between what ends below and what begins above there is this much more than needed. Where there
            # is less, the number is negative, and as an unsigned one larger than any that fits.
            reach = np.maximum.accumulate(ends)
            slack[1:] -= reach[:-1]
            gap = int(slack.view(np.uint64).argmin())
            if slack[gap] < 0:
                offset = int(reach[-1])
            elif gap:
                offset = int(reach[gap - 1])
        for piece in block.pieces:
            self._insert(piece, offset)
        return offset

    def _around(self, block: _Block) -> tuple[np.ndarray, np.ndarray]:
        """For everything that meets a piece of the block: up to where the block fits below, and its end."""
        first, last, low, high = self.columns[:, : self.count]
        met = [
            ((first <= piece.last) & (last >= piece.first)).nonzero()[0] for piece in block.pieces
        ]
        starts = np.concatenate(
            [low[found] - piece.nbytes for found, piece in zip(met, block.pieces, strict=True)]
        )
        order = starts.argsort(kind="stable")
        return starts[order], high[np.concatenate(met)[order]]

    def _insert(self, piece: _Piece, offset: int) -> None:
        columns, count = self.columns, self.count
        place = int(columns[2, :count].searchsorted(offset, side="right"))
        if place < count:
            columns[:, place + 1 : count + 1] = columns[:, place:count]
        columns[0, place] = piece.first
        columns[1, place] = piece.last
        columns[2, place] = offset
        columns[3, place] = offset + piece.nbytes
        self.count = count + 1


def _place_all(
    blocks: Sequence[_Block],
    order: Sequence[int],
    walls: np.ndarray | None,
    limit: int | None = None,
) -> tuple[int, list[int]] | None:
    """The size of the arena and the offset of each block, or None as soon as it exceeds the limit."""
    floor = _Floor(sum(len(block.pieces) for block in blocks), walls)
    offsets = [0] * len(blocks)
    top = 0
    for index in order:
        offset = floor.place(blocks[index])
        offsets[index] = offset
        top = max(top, offset + blocks[index].nbytes)
        if limit is not None and top > limit:
            return None
    return top, offsets


# Orders --------------------------------------------------------------------------------------------


def _best(
    blocks: Sequence[_Block], live: Sequence[int], walls: np.ndarray | None
) -> tuple[int, list[int]]:
    """The smallest arena of all orders, and of what can be made of the best of them."""
    good = int(max(live) * (1 + CLOSE))
    work = max(WORK, WORK_EACH * len(blocks)) - len(blocks)
    cost = len(blocks) + len(blocks) * len(blocks) // (2 * SCANNED)
    peaks = _peaks(blocks, live)
    order = sorted(range(len(blocks)), key=lambda i: (peaks[i], -blocks[i].nbytes, i))
    best, best_order = _place_around_peaks(blocks, order, peaks, live, walls), order
    for order in _orders(blocks):
        if best[0] <= good or work < cost:
            break
        work -= cost
        placed = _place_all(blocks, order, walls, limit=best[0] - 1)
        if placed is not None:
            best, best_order = placed, order
    return _improve(blocks, best_order, best, walls, good, work // cost)


def _orders(blocks: Sequence[_Block]) -> Iterator[list[int]]:
    """The orders worth trying after that of the peaks, those that do best on real graphs first."""
    every = range(len(blocks))
    yield sorted(every, key=lambda i: (-blocks[i].nbytes, -blocks[i].steps, i))
    yield sorted(every, key=lambda i: (-blocks[i].steps, -blocks[i].nbytes, i))
    yield sorted(every, key=lambda i: (-blocks[i].steps * blocks[i].nbytes, i))


def _ranked(live: Sequence[int]) -> list[int]:
    """The steps, those with the most live bytes first."""
    return sorted(range(len(live)), key=lambda step: -live[step])


def _peaks(blocks: Sequence[_Block], live: Sequence[int]) -> list[int]:
    """For each block, the rank of the busiest step of its life, from tables of minima over powers of two."""
    ranks = np.empty(len(live), dtype=np.int64)
    ranks[_ranked(live)] = np.arange(len(live))
    tables = [ranks]
    while 2 ** len(tables) <= len(live):
        half = 2 ** (len(tables) - 1)
        tables.append(np.minimum(tables[-1][:-half], tables[-1][half:]))
    lists = [table.tolist() for table in tables]
    found = []
    for block in blocks:
        level = block.steps.bit_length() - 1
        found.append(min(lists[level][block.first], lists[level][block.last + 1 - 2**level]))
    return found


def _place_around_peaks(
    blocks: Sequence[_Block],
    order: Sequence[int],
    peaks: Sequence[int],
    live: Sequence[int],
    walls: np.ndarray | None,
) -> tuple[int, list[int]]:
    """Place all that lives at the busiest step, then at the busiest of the steps before it and after it, and so on.

    What is placed at a step parts the steps on its left from those on its right: no block is left
    that lives on both sides. So each block is compared only with those that live between the two
    nearest peaks, which keeps the work in proportion to what is alive, however long the plan.
    """
    ranked = _ranked(live)
    offsets = [0] * len(blocks)
    done = [-1, len(live)]  # the peaks so far, and what lies around them
    floors = {-1: _Floor(0, walls)}  # by the peak on the left
    for rank, group in groupby(order, key=peaks.__getitem__):
        members = list(group)
        step = ranked[rank]
        right = bisect_left(done, step)
        left = done[right - 1]
        floor = floors[left]
        room = sum(len(blocks[i].pieces) for i in members)
        if floor.count + room > floor.columns.shape[1]:
            # Sides share a floor, which does no harm, until it has doubled.
            placed = floor.during(left + 1, done[right] - 1)
            floor = _Floor(room + placed.shape[1] + SMALL_FLOOR, placed)
        for i in members:
            offsets[i] = floor.place(blocks[i])
        floors[left] = floors[step] = floor
        done.insert(right, step)
    top = max(offset + block.nbytes for offset, block in zip(offsets, blocks, strict=True))
    return top, offsets


def _improve(
    blocks: Sequence[_Block],
    order: Sequence[int],
    found: tuple[int, list[int]],
    walls: np.ndarray | None,
    good: int,
    attempts: int,
) -> tuple[int, list[int]]:
    """Move blocks within the order, around one that ends at the top of the arena, as long as that does no harm.

    By turns the block itself goes before one that it meets, and one of those it meets goes before
    another. Moves that change nothing are kept too: they lead from one plateau to the next. All
    is drawn from a generator with a fixed seed.
    """
    current = list(order)
    draw = random.Random(0)
    nbytes, offsets = found
    for attempt in range(attempts):
        if nbytes <= good:
            break
        top = draw.choice([i for i in current if offsets[i] + blocks[i].nbytes == nbytes])
        around = [place for place, i in enumerate(current) if _meet(blocks[i], blocks[top])]
        source = draw.choice(around) if attempt % 2 else current.index(top)
        target = draw.choice(around if attempt % 2 else around[: around.index(source) + 1])
        trial = list(current)
        trial.insert(target, trial.pop(source))
        placed = _place_all(blocks, trial, walls, limit=nbytes)
        if placed is not None:
            current = trial
            nbytes, offsets = placed
    return nbytes, offsets


def _meet(one: _Block, other: _Block) -> bool:
    return one.first <= other.last and other.first <= one.last
