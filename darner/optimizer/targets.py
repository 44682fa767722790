"""What a machine can do, as the optimizer sees it: a roofline.

A kernel takes the time of its slower half, arithmetic or memory, and a fixed time to start:

    seconds = launch + max(flops / rate, bytes / bandwidth)

The figures need not be exact: they compare plans. Those below are round numbers for one machine of each kind;
``calibrate`` fits them to measurements.

    >>> from darner.optimizer import target
    >>> slow = target("slow", flops=1e9, bandwidth=1e9, launch=0.0)
    >>> slow.seconds(flops=2e9, bytes=1e9)
    2.0
    >>> from darner.optimizer.targets import remove_target
    >>> remove_target("slow")
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ..graph.errors import ArgumentError, NameTakenError, nearest


@dataclass(frozen=True)
class Target:
    """A machine.

    Attributes:
        flops: additions and multiplications a second in contractions, of f32.
        bandwidth: bytes a second between memory and the processor.
        launch: seconds to start a kernel and to wait for those before it.
        vector: the share of ``flops`` that element-wise work reaches.
        half: how many times faster contractions of 16-bit floats are.
        slow: ops for which it has no kernel of their own, and how many times longer what they consist of takes.
        wide: whether each kernel has the whole machine: what two of them read comes from memory twice, and each ends with processors that wait for the last.
    """

    name: str
    flops: float
    bandwidth: float
    launch: float
    vector: float = 0.25
    half: float = 1.0
    slow: Mapping[str, float] = field(default_factory=dict, hash=False)
    wide: bool = False

    def seconds(self, flops: float, bytes: float, launches: float = 1.0) -> float:
        """The least time that the work takes."""
        return launches * self.launch + max(flops / self.flops, bytes / self.bandwidth)

    def __str__(self) -> str:
        return (
            f"{self.name} ({self.flops / 1e9:,.0f} GFLOP/s, {self.bandwidth / 1e9:,.0f} GB/s, "
            f"{self.launch * 1e6:.1f} us a kernel)"
        )


TARGETS: dict[str, Target] = {}


def target(  # many parameters: a target's record, field by field
    name: str,
    *,
    flops: float,
    bandwidth: float,
    launch: float,
    vector: float = 0.25,
    half: float = 1.0,
    slow: Mapping[str, float] | None = None,
    wide: bool = False,
) -> Target:
    """Declare a target, which ``optimize(graph, target=name)`` then knows."""
    if name in TARGETS:
        raise NameTakenError(f"there is a target '{name}' already")
    if min(flops, bandwidth, vector, half) <= 0 or launch < 0:
        raise ArgumentError(f"target '{name}' needs positive rates and a launch time of at least 0")
    made = Target(name, flops, bandwidth, launch, vector, half, dict(slow or {}), wide)
    TARGETS[name] = made
    return made


def remove_target(name: str) -> None:
    """Take a target out of the table."""
    find_target(name)
    del TARGETS[name]


def find_target(which: str | Target) -> Target:
    """A target by its name, or itself."""
    if isinstance(which, Target):
        return which
    if which not in TARGETS:
        raise ArgumentError(f"there is no target '{which}'", hint=nearest(which, tuple(TARGETS)))
    return TARGETS[which]


@dataclass(frozen=True)
class Measurement:
    """One timed piece of work."""

    flops: float
    bytes: float
    launches: float
    seconds: float


def calibrate(which: str | Target, measurements: Iterable[Measurement]) -> Target:
    """The target with rates that fit measurements: of each kind of limit, those that it explains.

    Every measurement is assigned to the half of the roofline that takes longer in it, each rate is fitted to its own, and the
    assignment is made again until it holds. A rate that nothing measures stays as it was.
    """
    made = find_target(which)
    rows = list(measurements)
    for row in rows:
        if row.seconds <= 0 or min(row.flops, row.bytes, row.launches) < 0:
            raise ArgumentError(f"{row} is not a measurement: its time must be positive")
    before: list[bool] | None = None
    for _ in range(20):
        by_flops = [row.flops / made.flops >= row.bytes / made.bandwidth for row in rows]
        if by_flops == before:
            break
        before = by_flops
        made = _fitted(made, rows, by_flops)
    return made


def _fitted(made: Target, rows: list[Measurement], by_flops: list[bool]) -> Target:
    # seconds = launch * launches + flops / rate, or + bytes / bandwidth; each row weighted by its time.
    matrix = np.zeros((len(rows), 3))
    for i, (row, limit) in enumerate(zip(rows, by_flops, strict=True)):
        matrix[i] = (row.launches, row.flops if limit else 0.0, 0.0 if limit else row.bytes)
        matrix[i] /= row.seconds
    known = np.array([made.launch, 1 / made.flops, 1 / made.bandwidth])
    used = np.asarray(matrix.any(axis=0))
    if not used.any():
        return made
    scale = np.where(used, np.abs(matrix).max(axis=0), 1.0)
    free = [i for i in range(3) if used[i]]
    while free:
        answer = np.linalg.lstsq(matrix[:, free] / scale[free], np.ones(len(rows)), rcond=None)[0]
        if (answer > 0).all():
            known[free] = answer / scale[free]
            break
        # A time below nothing: what fits worst is left out, and taken as it was (a launch as 0).
        worst = free[int(np.argmin(answer))]
        if worst == 0:
            known[0] = 0.0
        free.remove(worst)
    return replace(
        made, launch=float(known[0]), flops=float(1 / known[1]), bandwidth=float(1 / known[2])
    )


# The CPU's kernel takes plain convolutions to Winograd's form by itself, where that pays. The op, written out, has no
# kernel: measured, its transforms reach a tenth of the bandwidth.
target("cpu", flops=240e9, bandwidth=30e9, launch=0.5e-6, slow={"winograd_conv": 6.0})
target("wgpu", flops=8e12, bandwidth=400e9, launch=4e-6, half=2.0)
# An H200: a launch inside a graph, copies of f32, multiply-adds as far as they were reached; tensor cores do 700 TFLOP/s of bf16. A convolution is
# one kernel there; Winograd's is eight that go through memory.
target(
    "cuda",
    flops=50e12,
    bandwidth=4e12,
    launch=1.2e-6,
    half=14.0,
    wide=True,
    slow={"winograd_conv": 6.0},
)
