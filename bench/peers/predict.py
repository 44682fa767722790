"""What the cost model predicts beside what was measured, kernel by kernel: ``python -m bench.peers --predict``.

A session of darner runs with a clock around each kernel. A kernel is predicted as the optimizer's roofline has it: the time to
start it, and its arithmetic or its traffic, whichever takes longer. Only ratios between kernels decide what the
optimizer chooses, but a model that is right on the whole is right between them.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from darner.lower.work import KernelWork
from darner.optimizer.targets import Measurement, Target, calibrate

from . import engine_darner
from .report import grid, three_digits

STEPS = 20
"""Steps that are recorded."""


@dataclass(frozen=True)
class Timed:
    """One kernel: what it is, what it has to do, and the seconds it took."""

    kind: str
    work: KernelWork
    seconds: float

    def predicted(self, target: Target) -> float:
        """The seconds that a target says."""
        return target.launch + self.work.seconds(target)

    def ratio(self, target: Target) -> float:
        """Predicted over measured."""
        return self.predicted(target) / self.seconds


def kind_of(kernel: Any) -> str:
    """The kind of a kernel of a profile, convolutions apart from products, and updates of parameters from both."""
    kind = "conv" if "conv" in kernel.ops else str(kernel.kind)
    return f"{kind}, update" if kernel.updated else kind


def recorded(workload: Any, threads: int, steps: int = STEPS) -> list[Timed]:
    """The kernels of a workload's step, timed."""
    session, _ = engine_darner.filled(workload, threads)
    session.set_profiling()
    for _ in range(steps):
        session.step()
    session.wait()
    kernels = session.profile(machine="cpu").kernels
    session.close()
    return [Timed(kind_of(k), k.work, k.median) for k in kernels if k.median > 0 and k.number >= 0]


def correlation(kernels: Sequence[Timed], target: Target) -> float | None:
    """Of the logarithms of predicted and measured times; None where they do not vary."""
    if len(kernels) < 3:
        return None
    logs = np.log([[k.predicted(target), k.seconds] for k in kernels]).T
    if logs.std(axis=1).min() < 1e-9:
        return None
    return float(np.corrcoef(logs)[0, 1])


def fitted(kernels: Sequence[Timed], target: Target) -> Target:
    """The target whose rates and launch fit the kernels best, by least squares of relative errors.

    Every kernel counts alike, however long it takes.
    """
    rows = []
    for kernel in kernels:
        work = kernel.work
        flops = work.contraction_flops + work.other_flops / target.vector
        rows.append(Measurement(flops, work.bytes, 1.0, kernel.seconds))
    return calibrate(target, rows)


def factor(kernels: Sequence[Timed], target: Target) -> float:
    """What predictions would have to be multiplied with to be right on the whole: the middle of logarithms."""
    return math.exp(-statistics.median(math.log(k.ratio(target)) for k in kernels))


def summary(kernels: Sequence[Timed], target: Target) -> list[dict[str, Any]]:
    """For each kind, and for all: how many, milliseconds measured and predicted, ratios, correlation."""
    members: dict[str, list[Timed]] = {}
    for kernel in kernels:
        members.setdefault(kernel.kind, []).append(kernel)
    ordered = sorted(members.items(), key=lambda item: -sum(k.seconds for k in item[1]))
    found = []
    for kind, some in [*ordered, ("all", list(kernels))]:
        measured, predicted = sum(k.seconds for k in some), sum(k.predicted(target) for k in some)
        found.append(
            {
                "kind": kind,
                "kernels": len(some),
                "measured_ms": 1e3 * measured,
                "predicted_ms": 1e3 * predicted,
                "ratio": predicted / measured,
                "median_ratio": statistics.median(k.ratio(target) for k in some),
                "factor": factor(some, target),
                "correlation": correlation(some, target),
            }
        )
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The summary as a table; ratios above 1: predicted to take longer than it does."""
    head = ["kind", "kernels", "measured ms", "predicted ms", "ratio", "median ratio", "factor"]
    lines = []
    for row in rows:
        line = [row["kind"], str(row["kernels"])]
        line += [three_digits(row[key]) for key in ("measured_ms", "predicted_ms")]
        line += [f"{row[key]:.2f}" for key in ("ratio", "median_ratio", "factor")]
        found = row["correlation"]
        lines.append([*line, "" if found is None else f"{found:.2f}"])
    return grid([*head, "correlation"], lines)
