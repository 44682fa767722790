"""Runs: stretches of a trace in which the same block of operations comes again and again.

A trace is the sequence of a graph's computing nodes, each with a number that says what it is. Deep
models are written by a loop, so their blocks lie one after the other, and the sequence equals
itself shifted by the length of a block. That is how runs are found: one comparison of arrays for
each period that is worth a try.

Two kinds of numbers propose runs. Exact ones tell nodes apart by everything but their wiring; loose
ones only by their op, so that a model whose every third layer has a wider window is a run of
layers, not of groups of three. A run is worth what it saves: the nodes it covers, less one copy of
each distinct block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..graph.cached import cached_property

Integers: TypeAlias = npt.NDArray[np.int64]

LEAST = 8
"""The least nodes of a block; smaller ones are grouped until they have as many."""

NEARLY = 6
"""The least nodes of a block that is not a group of smaller ones, and hands on a single value."""

CANDIDATES = 64
"""How many periods are tried for one stretch, the most promising ones."""

NEIGHBOURS = 8
"""How many later occurrences of a node's number propose a period."""


@dataclass(frozen=True)
class Trace:
    """The computing nodes of a graph by position, and who reads whom.

    Attributes:
        exact: for each position, a number that stands for the op, attributes, types and kinds of
            operands.
        loose: for each position, a number that stands for the op alone.
        producers: for each read of a position by another, the one that is read, in order of the
            readers.
        readers: for each read, the one that reads; ascending.
    """

    exact: Integers
    loose: Integers
    producers: Integers
    readers: Integers

    def __len__(self) -> int:
        return len(self.exact)

    @cached_property
    def last_reader(self) -> Integers:
        """For each position the last that reads it, or itself."""
        last = np.arange(len(self), dtype=np.int64)
        np.maximum.at(last, self.producers, self.readers)
        return last


@dataclass(frozen=True)
class Run:
    """``count`` blocks of ``period`` positions, one after the other from ``start`` on.

    Attributes:
        saving: the nodes it covers, less one copy of each distinct block.
        final: True when nothing reads what its blocks make, so that what lies around it is not cut
            by it.
    """

    start: int
    period: int
    count: int
    saving: int = 0
    final: bool = False

    @property
    def stop(self) -> int:
        """The position after its last."""
        return self.start + self.period * self.count

    @property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """First position, and the one after the last, of every block."""
        starts = range(self.start, self.stop, self.period)
        return tuple((start, start + self.period) for start in starts)


def find_runs(trace: Trace) -> list[Run]:
    """All runs, in order; they do not overlap. The one that saves most is taken first.

    >>> labels = np.array([7, *[1, 2, 3, 4, 5, 6, 1, 2, 9] * 3, 8])
    >>> none = np.empty(0, np.int64)
    >>> [(run.start, run.period, run.count) for run in find_runs(Trace(labels, labels, none, none))]
    [(1, 9, 3)]
    """
    found: list[Run] = []
    waiting = [(0, len(trace))]
    while waiting:
        low, high = waiting.pop()
        run = _best_run(trace, low, high)
        if run is not None:
            found.append(run)
            waiting += [(low, run.start), (run.stop, high)]
    return sorted(found, key=lambda run: run.start)


def _best_run(trace: Trace, low: int, high: int) -> Run | None:
    """The run that saves most within ``low:high``; the smallest period among equals."""
    best = _best_chain(trace, low, high)
    small = _best_results(trace, low, high)
    if small is not None and (best is None or small.saving > 2 * best.saving):
        return small
    return best


# --------------------------------------------------------------------------- blocks of a size


def _best_chain(trace: Trace, low: int, high: int) -> Run | None:
    best: Run | None = None
    for labels in (trace.exact, trace.loose):
        for period in _periods(labels[low:high]):
            start, length = _longest_streak(labels[low:high], period)
            promised = length // period * period - period
            if length < 2 * period or (best is not None and promised < best.saving):
                continue
            if period < LEAST and _is_group(labels[low + start : low + start + length], period):
                continue
            run = _placed(trace, low + start, length, period)
            if run.saving and (best is None or _worth(run) > _worth(best)):
                best = run
    return best


def _is_group(labels: Integers, period: int) -> bool:
    """True when a stretch has a smaller period too."""
    smaller = [part for part in range(1, period) if period % part == 0]
    return any(bool((labels[:-part] == labels[part:]).all()) for part in smaller)


def _worth(run: Run) -> tuple[int, int, int]:
    """What makes one run better than another; even a block that differs is better than a rest."""
    return run.saving, run.stop - run.start, -run.period


def _periods(labels: Integers) -> list[int]:
    """Periods worth a try: distances at which numbers come again, the most frequent ones."""
    if len(labels) < 2 * NEARLY:
        return []
    order = np.argsort(labels, kind="stable")
    grouped = labels[order]
    frequency = np.zeros(len(labels), np.int64)
    for step in range(1, min(NEIGHBOURS, len(labels) - 1) + 1):
        same = grouped[step:] == grouped[:-step]
        distances = (order[step:] - order[:-step])[same]
        frequency += np.bincount(distances, minlength=len(labels))
    periods = np.flatnonzero(frequency[: len(labels) // 2 + 1])
    periods = periods[periods >= NEARLY]
    chosen = np.argsort(-frequency[periods], kind="stable")[:CANDIDATES]
    return sorted(periods[chosen].tolist())


def _longest_streak(labels: Integers, period: int) -> tuple[int, int]:
    """Where the longest stretch with this period starts, and its length."""
    differs = np.flatnonzero(labels[:-period] != labels[period:])
    ends = np.concatenate(([-1], differs, [len(labels) - period]))
    lengths = np.diff(ends) - 1
    longest = int(lengths.argmax())
    return int(ends[longest]) + 1, int(lengths[longest]) + period


def _placed(trace: Trace, start: int, length: int, period: int) -> Run:
    """The run in a stretch, cut where the fewest values cross from block to block.

    A better border is worth more than a block: it is met between all blocks, and what is left over
    is met once.
    """
    # What is read shortly after the last block crosses too.
    values, reads = _crossing(trace, start, min(start + length + period, len(trace)))
    offsets = min(period, length - 2 * period + 1)
    inner = (length - offsets + 1) // period - 1  # borders between blocks, whatever the offset
    # The median: a few values that live for long must not decide, and the ends may differ.
    borders = slice(period, period + inner * period)
    by_value = np.median(values[borders].reshape(inner, period)[:, :offsets], axis=0)
    by_read = np.median(reads[borders].reshape(inner, period)[:, :offsets], axis=0)
    counts = (length - np.arange(offsets)) // period
    offset = int(np.lexsort((by_read, -counts, by_value))[0])
    count = int(counts[offset])
    if period < LEAST and by_value[offset] > 1:
        return Run(start + offset, period, count)  # a part of a block, such as half of a residual
    distinct = _distinct(trace, start + offset, period, count)
    return Run(start + offset, period, count, (count - distinct) * period)


def _crossing(trace: Trace, start: int, stop: int) -> tuple[Integers, Integers]:
    """For each position of a stretch: values, and reads, that come from before it and go past it.

    Only what is made and read within the stretch counts: what a backward pass keeps of every layer
    is no border.
    """
    first, last = np.searchsorted(trace.readers, (start, stop))
    inside = trace.producers[first:last] >= start
    producers = trace.producers[first:last][inside] - start
    readers = trace.readers[first:last][inside] - start
    size = stop - start + 2
    reads = np.bincount(producers + 1, minlength=size) - np.bincount(readers + 1, minlength=size)
    final = np.arange(stop - start, dtype=np.int64)
    np.maximum.at(final, producers, readers)
    opened = np.arange(1, stop - start + 1)
    values = np.bincount(opened, minlength=size) - np.bincount(final + 1, minlength=size)
    return np.cumsum(values), np.cumsum(reads)


def _distinct(trace: Trace, start: int, period: int, count: int) -> int:
    """How many different blocks a run has, by a hash of their exact numbers and inner wiring."""
    stop = start + period * count
    rows = trace.exact[start:stop].reshape(count, period).astype(np.uint64)
    hashes = (rows * _mixed(np.arange(period))).sum(axis=1, dtype=np.uint64)
    first, last = np.searchsorted(trace.readers, (start, stop))
    readers, producers = trace.readers[first:last] - start, trace.producers[first:last] - start
    block, place = np.divmod(readers, period)
    from_where = np.maximum(producers - block * period, -1)  # other blocks are all alike
    np.add.at(hashes, block, _mixed((from_where + 2) * period + place))
    return len(np.unique(hashes))


def _mixed(values: Integers) -> npt.NDArray[np.uint64]:
    """Odd numbers that look random, the same for the same values."""
    mixed = (values.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    return mixed * np.uint64(0xBF58476D1CE4E5B9) | np.uint64(1)


# --------------------------------------------------------------------------- small results


def _best_results(trace: Trace, low: int, high: int) -> Run | None:
    """A run of blocks below the least size that nothing else reads, such as updates of parameters.

    Only what is final may be as small as that: a chain of small blocks would cut apart what can be
    improved together.
    """
    best: Run | None = None
    for period in range(2, min(LEAST - 1, (high - low) // 2) + 1):
        windows = np.lib.stride_tricks.sliding_window_view(trace.last_reader[low:high], period)
        starts = np.arange(low, high - period + 1)
        final = windows.max(axis=1) < starts + period
        if np.count_nonzero(final) < 2:
            continue
        for labels in (trace.exact, trace.loose):
            same = labels[low : high - period] == labels[low + period : high]
            alike = np.lib.stride_tricks.sliding_window_view(same, period).min(axis=1)
            repeats = alike & final[: len(alike)] & final[period:]
            for phase in range(period):
                run = _results_at(trace, repeats[phase::period], low + phase, period)
                if run is not None and run.saving > (0 if best is None else best.saving):
                    best = run
    return best


def _results_at(
    trace: Trace, repeats: npt.NDArray[np.bool_], start: int, period: int
) -> Run | None:
    ends = np.concatenate(([-1], np.flatnonzero(~repeats), [len(repeats)]))
    lengths = np.diff(ends) - 1
    longest = int(lengths.argmax())
    if not lengths[longest]:
        return None
    first, count = start + (int(ends[longest]) + 1) * period, int(lengths[longest]) + 1
    distinct = _distinct(trace, first, period, count)
    return Run(first, period, count, (count - distinct) * period, final=True)
