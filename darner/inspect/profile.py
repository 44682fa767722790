"""What a step takes: every kernel on every thread, against what the machine could do.

A ``Recorder`` (``darner.inspect.recorder``) runs steps with a clock around each kernel and makes a ``Profile``.

The time of a kernel is from its start to the start of the next, the mean over threads: its work, and the wait for other
threads after it. So in each step the times of all kernels, with what it takes to start and join the threads, add up to the
step. The medians over steps need not, where steps differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..graph.cached import cached_property
from ..graph.errors import Calling, Source
from ..io.atomic import Path
from ..lower.work import KernelWork
from ..optimizer.targets import Target
from .tables import Part, Report

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Timing:
    """One kernel of a step; all times are in seconds.

    Attributes:
        number: its position in the plan; -1 for what leaves take over at the end of a step.
        kind, ops, spec: what it computes, and the digest of that.
        label, source, nodes: where it comes from in the user's graph.
        results: the types of its results.
        updated: the parameters and states it writes.
        work: the least arithmetic and traffic.
        median, best: its time, over steps.
        wait: the part of the median in which threads wait for others.
        imbalance: how much longer than the mean the slowest thread works: 0.0 where all work alike.
        share: of the medians of all kernels and of the overhead together, which may be less than the median step.
        roofline: the least time on the machine as a share of the median; more than 1.0 where caches spare memory.
        limit: what bounds it from below, ``flops`` or ``bytes``.
    """

    number: int
    kind: str
    ops: str
    spec: str
    label: str | None
    source: Source | None
    nodes: tuple[int, ...]
    results: tuple[str, ...]
    updated: tuple[str, ...]
    work: KernelWork
    median: float
    best: float
    wait: float
    imbalance: float
    share: float
    roofline: float
    limit: str

    @property
    def name(self) -> str:
        """``k3``, or ``copies``."""
        return "copies" if self.number < 0 else f"k{self.number}"

    @property
    def title(self) -> str:
        """Its label; where it has none, the parameters and states it updates."""
        if self.label or not self.updated:
            return self.label or ""
        more = f" and {len(self.updated) - 1} more" if len(self.updated) > 1 else ""
        return f"=> {self.updated[0]}{more}"

    @property
    def gflops(self) -> float:
        """Thousand millions of operations a second."""
        return self.work.flops / self.median / 1e9 if self.median else 0.0

    @property
    def gigabytes(self) -> float:
        """Thousand millions of bytes a second."""
        return self.work.bytes / self.median / 1e9 if self.median else 0.0


@dataclass(frozen=True)
class Group:
    """Kernels taken together: of one kind, or of one spec. The fields are sums of theirs."""

    name: str
    ops: str
    kernels: int
    seconds: float
    wait: float
    share: float
    roofline: float
    work: KernelWork

    @property
    def gflops(self) -> float:
        """Thousand millions of operations a second."""
        return self.work.flops / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gigabytes(self) -> float:
        """Thousand millions of bytes a second."""
        return self.work.bytes / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True)
class Profile(Report):
    """What steps took. ``str`` is a table; ``to_perfetto`` writes a trace that https://ui.perfetto.dev shows.

    Attributes:
        name: the plan's name.
        threads: how many ran it.
        steps: how many were recorded.
        median, best: seconds of a whole step.
        overhead: seconds of the median step to start and to join threads.
        kernels: every kernel, in the order of the plan; then the copies at the end, where there are any.
        machine: the roofline they are measured against; ``measured`` says whether it was measured here.
        begin, end: when each thread began and ended each kernel: (steps, kernels, threads), in nanoseconds.
        calls: when each step was called and when it was done: (steps, 2), in nanoseconds.
    """

    name: str
    threads: int
    steps: int
    median: float
    best: float
    overhead: float
    kernels: tuple[Timing, ...]
    machine: Target
    measured: bool
    begin: Times = field(repr=False)
    end: Times = field(repr=False)
    calls: Times = field(repr=False)

    @property
    def work(self) -> KernelWork:
        """The arithmetic and the traffic of a step."""
        return sum((kernel.work for kernel in self.kernels), start=KernelWork())

    @property
    def roofline(self) -> float:
        """The least time of all kernels, one after the other, as a share of the step's."""
        least = sum(kernel.work.seconds(self.machine) for kernel in self.kernels)
        return least / self.median if self.median else 0.0

    @cached_property
    def kinds(self) -> tuple[Group, ...]:
        """The kernels of each kind together, the longest first."""
        return self._grouped(lambda kernel: kernel.kind)

    @cached_property
    def specs(self) -> tuple[Group, ...]:
        """The kernels of each spec together, the longest first: equal layers count as one."""
        return self._grouped(lambda kernel: kernel.spec)

    def _grouped(self, key: Callable[[Timing], str]) -> tuple[Group, ...]:
        members: dict[str, list[Timing]] = {}
        for kernel in self.kernels:
            members.setdefault(key(kernel), []).append(kernel)
        groups = [self._group(name, found) for name, found in members.items()]
        return tuple(sorted(groups, key=lambda group: -group.seconds))

    def _group(self, name: str, members: Sequence[Timing]) -> Group:
        seconds = sum(kernel.median for kernel in members)
        least = sum(kernel.work.seconds(self.machine) for kernel in members)
        return Group(
            name=name,
            ops=members[0].ops,
            kernels=len(members),
            seconds=seconds,
            wait=sum(kernel.wait for kernel in members),
            share=sum(kernel.share for kernel in members),
            roofline=least / seconds if seconds else 0.0,
            work=sum((kernel.work for kernel in members), start=KernelWork()),
        )

    def records(self) -> list[dict[str, Any]]:
        """One dictionary for each kernel, of values that JSON has."""
        from .profile_text import record

        return [record(kernel) for kernel in self.kernels]

    def text(self, top: int | None = 20, order: str = "time") -> str:
        """The tables as plain text.

        Args:
            top: how many kernels and specs are listed; all with None.
            order: ``time``, the longest first; or ``plan``, as they run.
        """
        from .profile_text import parts

        with Calling("Profile.text"):
            return Report.__str__(_Listing(parts(self, top, order)))

    def _parts(self) -> list[Part]:
        from .profile_text import parts

        return parts(self)

    def __str__(self) -> str:
        return Report.__str__(self)

    def trace_events(self) -> list[dict[str, Any]]:
        """The recorded steps as events of the Chrome trace format."""
        from .perfetto import trace_events

        return trace_events(self)

    def to_perfetto(self, path: Path) -> None:
        """Write the recorded steps as a trace; the file is whole or as it was.

        It opens in https://ui.perfetto.dev and in chrome://tracing: one track for each thread, and one for steps.
        """
        from .perfetto import write

        with Calling("Profile.to_perfetto"):
            write(self, path)


class _Listing(Report):
    """Parts that are there already."""

    def __init__(self, found: list[Part]) -> None:
        self._found = found

    def _parts(self) -> list[Part]:
        return self._found
