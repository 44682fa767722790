"""Pairing: which stretches of a trace belong together, because one differentiates the other.

The backward pass of a layer reads what the layer kept for itself: values that the layer makes, and
reads too. That tells the two passes of one layer from everything else: the next layer only reads a
result, an optimizer only gradients. A pair is worth more as one block than as two, since both
passes contract the same values.

Where the backward pass is a run whose blocks answer to distinct blocks of an earlier run, block is
joined to block. Where it is no run (a last layer that differs by a node, two layers of which one
needs no gradient of its input), or its blocks straddle those of the forward pass, it is cut by
whose values are read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from .runs import LEAST, Integers, Run, Trace

NOBODY = -1

MOST = 0.8
"""The share of a block's reads of kept values that must go to one partner."""

EVIDENCE = 3
"""The least reads of kept values that tie a stretch which is no block of a run."""


@dataclass
class _Groups:
    """Stretches that form one region each, by number; ``home`` says for each position which one."""

    home: Integers
    members: list[list[tuple[int, int]]] = field(default_factory=list)

    def add(self, start: int, stop: int, group: int | None = None) -> int:
        """Put a stretch into a group, a new one unless said; returns the group."""
        if group is None:
            group = len(self.members)
            self.members.append([])
        self.members[group].append((start, stop))
        self.home[start:stop] = group
        return group


def join(
    trace: Trace, runs: Sequence[Run], leaves: Sequence[tuple[int, ...]]
) -> list[list[tuple[int, int]]]:
    """Regions, each as the stretches it is made of: first position, and the one after the last.

    ``leaves`` gives for each position the parameters, states and inputs that it reads.
    """
    groups = _Groups(np.full(len(trace), NOBODY, np.int64))
    kept: list[Run] = []
    for run in runs:
        partners = _partners(trace, run, groups)
        if partners is None:
            continue  # what it straddles is cut below, with the rest
        for (start, stop), partner in zip(run.blocks, partners, strict=True):
            groups.add(start, stop, partner)
        kept.append(run)
    owned = _owned_leaves(groups, leaves)
    rest: int | None = None
    for start, stop, apart in _gaps(kept, len(trace)):
        rest = None if apart else rest
        rest = _cut(trace, (start, stop), rest, groups, owned, leaves)
    return groups.members


def _kept_reads(trace: Trace, start: int, stop: int, groups: _Groups) -> tuple[Integers, Integers]:
    """Reads within a stretch of what an earlier group made and reads itself: readers and groups."""
    own = groups.home[trace.producers]
    inside = (own != NOBODY) & (own == groups.home[trace.readers])
    shared = np.zeros(len(trace), bool)
    shared[trace.producers[inside]] = True
    first, last = np.searchsorted(trace.readers, (start, stop))
    producers, readers = trace.producers[first:last], trace.readers[first:last]
    evidence = shared[producers] & (producers < start)
    return readers[evidence], groups.home[producers[evidence]]


def _partners(trace: Trace, run: Run, groups: _Groups) -> list[int | None] | None:
    """For each block of a run the group it joins, or None for one of its own.

    None altogether when the blocks have partners but straddle them.
    """
    readers, givers = _kept_reads(trace, run.start, run.stop, groups)
    votes: list[Counter[int]] = [Counter() for _ in range(run.count)]
    for block, giver in zip(
        ((readers - run.start) // run.period).tolist(), givers.tolist(), strict=True
    ):
        votes[block][giver] += 1
    tied = [vote for vote in votes if vote]
    if 2 * len(tied) < run.count:
        return [None] * run.count
    chosen = [max(vote, key=lambda group: (vote[group], -group)) for vote in tied]
    clear = all(vote[top] >= MOST * vote.total() for vote, top in zip(tied, chosen, strict=True))
    if not clear or len(set(chosen)) < len(chosen):
        return None
    found = iter(chosen)
    return [next(found) if vote else None for vote in votes]


def _owned_leaves(groups: _Groups, leaves: Sequence[tuple[int, ...]]) -> dict[int, int]:
    """Leaves that one group alone reads; shared ones do not say whose gradient is computed."""
    readers: defaultdict[int, set[int]] = defaultdict(set)
    for read, group in zip(leaves, groups.home.tolist(), strict=True):
        if group != NOBODY:
            for leaf in read:
                readers[leaf].add(group)
    return {leaf: next(iter(found)) for leaf, found in readers.items() if len(found) == 1}


def _gaps(runs: Sequence[Run], size: int) -> Iterator[tuple[int, int, bool]]:
    """The stretches that no run covers, and whether a run that others read lies before each."""
    end, apart = 0, True
    for run in runs:
        if end < run.start:
            yield end, run.start, apart
            apart = False
        end, apart = run.stop, apart or not run.final
    if end < size:
        yield end, size, apart


def _marks(trace: Trace, start: int, stop: int, groups: _Groups) -> list[tuple[int, int, int]]:
    """Stretches tied to a group, as (first position, last position, group), in order.

    Reads further apart than the group is long are no stretch: the next layer reads a result early,
    and the backward pass comes much later.
    """
    readers, givers = _kept_reads(trace, start, stop, groups)
    reach = {
        giver: max(LEAST, sum(end - begin for begin, end in groups.members[giver]))
        for giver in np.unique(givers).tolist()
    }
    stretches: list[tuple[int, int, int, int]] = []
    for reader, giver in zip(readers.tolist(), givers.tolist(), strict=True):
        if stretches and _continues(stretches[-1][1:3], reader, giver, reach):
            first, _, _, weight = stretches.pop()
            stretches.append((first, reader, giver, weight + 1))
        else:
            stretches.append((reader, reader, giver, 1))
    merged: list[tuple[int, int, int]] = []
    for first, last, giver, weight in stretches:
        if weight < EVIDENCE:
            continue
        if merged and _continues(merged[-1][1:], first, giver, reach):
            first = merged.pop()[0]
        if not merged or merged[-1][1] < first:
            merged.append((first, last, giver))
    return merged


def _continues(before: tuple[int, int], first: int, giver: int, reach: dict[int, int]) -> bool:
    last, known = before
    return known == giver and first - last <= reach[giver]


def _cut(
    trace: Trace,
    gap: tuple[int, int],
    rest: int | None,
    groups: _Groups,
    owned: dict[int, int],
    leaves: Sequence[tuple[int, ...]],
) -> int | None:
    """Give the marked stretches of a gap to their groups, what lies between to groups of its own.

    ``rest`` is the group that what comes first continues. Returns the group that the next gap may
    continue.
    """
    start, stop = gap
    marks = _marks(trace, start, stop, groups)
    spans = []
    end = start
    for first, last, group in marks:
        # A gradient enters a layer through its parameters, before it meets anything that was kept.
        while first > end and any(owned.get(leaf) == group for leaf in leaves[first - 1]):
            first -= 1
        spans.append((first, last + 1, group))
        end = last + 1
    # Past the last kept value a layer still adds up what it hands on. How far is seen between two
    # stretches; at the end of the graph nothing says where the layer ends, but a few nodes are no
    # region.
    bounds = [first for first, _, _ in spans[1:]]
    followed = stop < len(trace)
    tails = [
        _tail(trace, first, last, bound)
        for (first, last, _), bound in zip(spans, [*bounds, stop], strict=False)
    ]
    bounded = tails if followed else tails[:-1]
    longest = max(bounded, default=LEAST - 1)
    end = start
    for (first, last, group), tail in zip(spans, tails, strict=True):
        if end < first:
            groups.add(end, first, rest)
        rest = None
        end = last + min(tail, longest)
        groups.add(first, end, group)
    return groups.add(end, stop, rest) if end < stop else None


def _tail(trace: Trace, first: int, last: int, bound: int) -> int:
    """How many positions from ``last`` on read the stretch ``first:last`` or what follows of it."""
    end = last
    while end < bound:
        low, high = np.searchsorted(trace.readers, (end, end + 1))
        if not (trace.producers[low:high] >= first).any():
            break
        end += 1
    return end - last
