"""What plans know of a processor: its caches, what its acts cost, and how many threads share the work.

Kernels are cut, and the form of each is chosen, by this model alone, and the model is made of a ``Machine`` alone, all of whose fields are in every key of kept code:

>>> from darner.backends.cpu.runtime.jit import Machine
>>> model = CpuModel.of(Machine("x86_64-unknown-linux-gnu", "znver4", "", 64, 2, 32 << 10, 1 << 20, 32 << 20))
>>> model.threads, model.of_l2(3 / 4) >> 10, model.of_last(1 / 2) >> 20
(2, 768, 16)

What the threads change is which form is taken and in how many pieces its work is cut, never how a sum is cut into parts: results are the same on any number of
threads that a session asks for. Constants beside the code of a kernel are properties of its algorithm; what depends on a processor stands here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import ceil

from ...graph.integers import ceil_div
from .runtime.jit import Machine

LINE = 64
"""Bytes of a line of cache, on every processor that there is code for; where one has longer lines, these are halves of them."""

ASSUMED_L1 = 32 << 10
"""Bytes of a level 1 data cache that cannot be read."""
ASSUMED_L2 = 1 << 20
"""Bytes of a level 2 cache that cannot be read."""
ASSUMED_L3 = 32 << 20
"""Bytes of a level 3 cache that cannot be read."""
MOST_L1 = 32 << 10
"""Bytes of a level 1 cache that plans count on, at the most: with 48 KiB they are no quicker."""
MOST_L2 = 1 << 20
"""Bytes of a level 2 cache that plans count on, at the most: with 2 MiB some products gain what a convolution's gradient loses (docs/rejected.md)."""
FORESEEN = 2
"""Rows of a product that Zen 4 foresees."""
EVEN = 32
"""Pieces of work for each thread that make their shares as good as even."""
L3_OF_CORE = 16 << 20
"""Bytes of a level 3 cache that plans count on for each core: the rest is for cores that run something else, often in other virtual machines."""


@dataclass(frozen=True)
class Cycles:
    """Cycles that a core takes for the acts which kernels consist of; measured on a Zen 4, whose vectors have 64 bytes.

    A piece is what a vector holds of neighbouring elements, or less where a row ends.

    Attributes:
        packed: a piece of a row of an image, packed for one tap of one channel.
        spaced: the same of elements that lie apart.
        packed_rows: the same for the gradient towards a weight, where as many channels go together as can.
        described: writing down what such a piece reads, for all channels.
        copied: a piece of a row of an image that is copied to where taps have fixed distances; twice as many where half a vector is multiplied, and moved, at a time.
        moved: a vector of the taps of one channel that is copied.
        transposed: a vector that is packed across rows.
        ordered: a term that is put in the order of the first axis of taps.
        streamed: a vector of weights that every block of pixels reads from afar.
        finished: a piece of a row on its way from sums to the result.
        finished_apart: the same where others come to lie between its pixels.
        finished_places: the same where zeros between rows are left out.
        interleaved: the same where it is interleaved with others as well.
        finished_lanes: a vector of sums that is transposed on its way to the result.
        called: calling a tile.
        called_dots: calling a tile of scalar products.
        lanes_added: adding up the lanes of a sum.
        latency: until a sum can be added to again.
        line_shared: a line that one thread writes and all read: those that have read it before have to let go of it.
        line_past: the same of a line that is written past the cache.
        byte_shared: a byte that other threads read, or that does not fit the cache next to a core.
        transformed: by the side of a square, a vector of channels of one square, to or from its values at points.
        transformed_weights: likewise, the kernels of a vector of channels with one other.
    """

    packed: float = 5.0
    spaced: float = 6.5
    packed_rows: float = 10.0
    described: float = 5.0
    copied: float = 6.0
    moved: float = 22.0
    transposed: float = 7.0
    ordered: float = 4.0
    streamed: float = 2.0
    finished: float = 1.5
    finished_apart: float = 18.0
    finished_places: float = 4.5
    interleaved: float = 8.0
    finished_lanes: float = 12.0
    called: float = 15.0
    called_dots: float = 25.0
    lanes_added: float = 3.0
    latency: int = 4
    line_shared: float = 60.0
    line_past: float = 30.0
    byte_shared: float = 0.4
    transformed: tuple[tuple[int, float], ...] = ((4, 400.0), (2, 150.0))
    transformed_weights: tuple[tuple[int, float], ...] = ((4, 300.0), (2, 150.0))


@dataclass(frozen=True)
class CpuModel:
    """What plans count on.

    Attributes:
        threads: that share the work: one for each core.
        multiplies: vectors that a core multiplies, and adds to others, in a cycle.
        l1: bytes of the nearest cache of a core.
        l2: bytes of the cache next to a core, which is its own.
        last: bytes of the last caches that all threads have together.
        far_bytes: that a core reads in a cycle from the last cache or from memory, beside what it computes.
        near_bytes: that it so reads from its level 2 cache.
        foreseen: rows of a product up to which the processor is left to foresee what it will read of the other operand: Zen 4 foresees few streams, and what comes
            too early drives out of the nearest cache what is used now.
        l2_reads: how many times as long a vector takes to be loaded from there as from the nearest cache.
        cycles: what the acts of kernels cost.
    """

    threads: int
    multiplies: int
    l1: int = ASSUMED_L1
    l2: int = ASSUMED_L2
    last: int = ASSUMED_L3
    far_bytes: float = 12.0
    near_bytes: float = 48.0
    foreseen: int = 0
    l2_reads: int = 4
    cycles: Cycles = Cycles()

    @classmethod
    def of(cls, machine: Machine) -> CpuModel:
        """The model of a machine, made of its fields alone."""
        return _model(machine)

    def of_l1(self, share: float) -> int:
        """Bytes of a share of the nearest cache."""
        return int(self.l1 * share)

    def of_l2(self, share: float) -> int:
        """Bytes of a share of the cache next to a core."""
        return int(self.l2 * share)

    def of_last(self, share: float) -> int:
        """Bytes of a share of the last caches of all threads."""
        return int(self.last * share)

    def of_own_last(self, share: float) -> int:
        """Bytes of a share of what one thread has of the last cache, which is no less than the cache before that."""
        return int(max(self.last // self.threads, self.l2) * share)

    def time(self, cycles: float, units: int) -> float:
        """Cycles until all threads are done that share so many equal pieces of work, which take ``cycles`` together.

        >>> CpuModel(threads=4, multiplies=2).time(100.0, 5)
        40.0
        """
        if units >= EVEN * self.threads:
            return cycles / self.threads
        return cycles / units * ceil_div(units, self.threads)

    def largest_share(
        self, total: float, each: float, times: int = 1, pieces: int | None = None
    ) -> float:
        """The share of ``total`` that the thread which has most of it has, cut into pieces of ``each`` and a rest.

        Every piece comes ``times`` over, one after the other, and threads have runs of them (``Code.share``). ``pieces`` is said where there are empty ones.

        >>> CpuModel(threads=2, multiplies=2).largest_share(17, 16)
        0.9411764705882353
        """
        units = (max(1, ceil(total / each)) if pieces is None else pieces) * times
        if units <= self.threads:
            return min(each / total, 1.0) / times

        def before(unit: int) -> float:
            piece, within = divmod(unit, times)
            start = min(total, piece * each)
            return start * times + (min(total, start + each) - start) * within

        ends = [before(thread * units // self.threads) for thread in range(self.threads + 1)]
        most = max(stop - start for start, stop in pairwise(ends))
        return most / (total * times)

    def doubled(self, least: int, most: int, of_thread: int) -> tuple[int, ...]:
        """Numbers of pieces that work may be cut into: ``least``, twice that and so on, up to ``most`` or to ``of_thread`` for each thread.

        >>> CpuModel(threads=16, multiplies=2).doubled(8, 32, 4)
        (8, 16, 32, 64)
        """
        found = [least]
        while found[-1] * 2 <= max(most, of_thread * self.threads):
            found.append(found[-1] * 2)
        return tuple(found)


@lru_cache(maxsize=64)
def _model(machine: Machine) -> CpuModel:
    sharing = min(machine.l3_cores or machine.cores, machine.cores)
    last = min(machine.l3 or ASSUMED_L3, L3_OF_CORE * sharing)
    return CpuModel(
        threads=machine.cores,
        multiplies=machine.multiplies,
        l1=min(machine.l1 or ASSUMED_L1, MOST_L1),
        l2=min(machine.l2 or ASSUMED_L2, MOST_L2),
        last=last * ceil_div(machine.cores, sharing),
        foreseen=FORESEEN if machine.multiplies == 1 else 0,
    )
