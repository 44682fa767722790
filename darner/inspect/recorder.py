"""Steps run with a clock around each kernel, and what their times say.

    >>> import darner
    >>> from darner.backends.base.lowering import compile_for, lower_for
    >>> g = darner.Graph("example")
    >>> g.set_outputs([g.input("x", (64, 32)) @ g.parameter("w", (32, 16))])
    >>> program = compile_for("cpu", lower_for("cpu", g), threads=1)
    >>> found = profile(program, steps=3, machine="cpu")
    >>> found.steps, found.kernels[0].kind, found.kernels[0].work.flops
    (3, 'contract', 65536)
    >>> program.close()

A session keeps a ``Recorder`` while profiling is on; for one look, ``profile(program)`` records some steps and leaves parameters
and states as they were.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ..backends.base.registry import backend_of
from ..graph.errors import ArgumentError, Calling, RunError
from ..lower.plan import Plan
from ..lower.work import KernelWork, kernel_work
from ..optimizer.targets import Target, find_target
from .inspected import Inspectable, run_and_wait, shown_ops, unchanged, updated_leaves
from .profile import Profile, Times, Timing

KEPT = 64
"""Steps that a recorder remembers, the last ones."""


class Recorder:
    """Runs steps of a program with a clock around each kernel.

    It keeps the last steps in memory of its own, so that recording allocates nothing during a step. ``run`` stands for the
    program's own.

    Args:
        program: what to run.
        keep: how many steps are remembered.
    """

    def __init__(self, program: Inspectable, *, keep: int = KEPT) -> None:
        if keep < 1:
            raise ArgumentError(f"a recorder that keeps {keep} steps records none")
        self._program = program
        plan = program.plan
        # What leaves take over are rows after the kernels: a copy for each, and at most one to put its source aside.
        rows = len(plan.kernels) + 2 * len(plan.updates)
        self._times = np.zeros((keep, rows, program.threads, 2), np.int64)
        self._calls = np.zeros((keep, 2), np.int64)
        # Where a step was run in two parts: the kernel after the pause, and the pause.
        self._pauses = np.zeros((keep, 2), np.int64)
        self._count = 0

    @property
    def steps(self) -> int:
        """How many steps are remembered."""
        return min(self._count, len(self._calls))

    def run(self, first: int = 0, last: int | None = None) -> None:
        """Run a step, timed; or a part of it: what begins at 0 begins a step, what has no end ends it."""
        place = self._count % len(self._calls)
        call, pause, start = self._calls[place], self._pauses[place], _now()
        if first == 0:
            call[0] = start
            pause[:] = 0
        else:
            pause[:] = first, start - call[1]
        run_and_wait(self._program, first, last, self._times[place])
        call[1] = _now()
        self._count += last is None

    def clear(self) -> None:
        """Forget all steps."""
        self._count = 0

    def profile(self, machine: str | Target | None = None) -> Profile:
        """What the remembered steps took.

        Args:
            machine: the roofline to compare with: a target or its name. When left out, this machine's is measured, which
                takes a moment the first time.

        Raises:
            RunError: nothing was recorded.
        """
        with Calling("profile"):
            if not self._count:
                raise RunError("no step was recorded", hint="run one with profiling on first")
            plan, kept = self._program.plan, self.steps
            roofline, measured = _machine(self._program, machine)
            # The oldest first.
            order = np.argsort(self._calls[:kept, 0])
            times = self._times[:kept][order]
            return _profile(
                plan,
                times[:, : self._rows(times)],
                self._calls[:kept][order],
                self._pauses[:kept][order],
                roofline,
                measured,
            )

    def _rows(self, times: Times) -> int:
        """How many rows a step has: those that a clock wrote."""
        written = times[-1, :, 0, 1] > 0
        return int(written.nonzero()[0][-1]) + 1 if written.any() else 0


def profile(
    program: Inspectable,
    steps: int = 10,
    *,
    warmup: int = 2,
    machine: str | Target | None = None,
) -> Profile:
    """Record some steps of a program, on the inputs it has, and leave parameters and states as they were.

    Args:
        program: what to run.
        steps: how many are recorded.
        warmup: how many run before.
        machine: as in ``Recorder.profile``.
    """
    with Calling("profile"):
        if steps < 1 or warmup < 0:
            raise ArgumentError(f"{steps} steps after {warmup} cannot be recorded")
    recorder = Recorder(program, keep=steps)
    with unchanged(program):
        for _ in range(warmup):
            recorder.run()
        recorder.clear()
        for _ in range(steps):
            recorder.run()
    return recorder.profile(machine)


def _now() -> int:
    """Nanoseconds of the clock that kernels are timed with."""
    if hasattr(time, "CLOCK_MONOTONIC"):
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return time.monotonic_ns()


def _machine(program: Inspectable, machine: str | Target | None) -> tuple[Target, bool]:
    """The roofline to compare with, and whether it was measured."""
    if machine is not None:
        return find_target(machine), False
    backend = backend_of(program.plan.target)
    measured = backend.measured_model(program)
    if measured is not None:
        return measured, True
    return backend.target_model(backend.machine(backend.name)), False


# --------------------------------------------------------------------------- from times to figures


def _profile(
    plan: Plan, times: Times, calls: Times, pauses: Times, machine: Target, measured: bool
) -> Profile:
    begin, end = times[..., 0], times[..., 1]
    whole = (calls[:, 1] - calls[:, 0] - pauses[:, 1]) / 1e9
    spans = _spans(begin, end, pauses)
    lasting = spans.mean(axis=2) / 1e9
    working = (end - begin).mean(axis=2) / 1e9
    slowest = (end - begin).max(axis=2) / 1e9
    copies = slice(len(plan.kernels), None)
    medians = [float(np.median(lasting[:, k])) for k in range(len(plan.kernels))]
    copying = lasting[:, copies].sum(axis=1)
    copied = float(np.median(copying)) if begin.shape[1] > len(plan.kernels) else 0.0
    overhead = float(np.median(whole - lasting.sum(axis=1)))
    total = sum(medians) + copied + max(overhead, 0.0)
    kernels = [
        _timing(plan, k, lasting[:, k], working[:, k], slowest[:, k], total, machine)
        for k in range(len(plan.kernels))
    ]
    if begin.shape[1] > len(plan.kernels):
        kernels.append(
            _copies(
                plan,
                copying,
                working[:, copies].sum(axis=1),
                slowest[:, copies].sum(axis=1),
                total,
                machine,
            )
        )
    return Profile(
        name=plan.name,
        threads=times.shape[2],
        steps=len(calls),
        median=float(np.median(whole)),
        best=float(whole.min()),
        overhead=overhead,
        kernels=tuple(kernels),
        machine=machine,
        measured=measured,
        begin=begin,
        end=end,
        calls=calls,
    )


def _spans(begin: Times, end: Times, pauses: Times) -> Times:
    """From the start of each kernel to that of the next, by thread; the last ends with the slowest thread."""
    spans = np.zeros_like(begin)
    if begin.shape[1]:
        spans[:, :-1] = begin[:, 1:] - begin[:, :-1]
        spans[:, -1] = end[:, -1].max(axis=1, keepdims=True) - begin[:, -1]
        for step, (row, pause) in enumerate(pauses):
            if 0 < row < begin.shape[1]:
                spans[step, row - 1] -= pause
    return spans


def _figures(
    work: KernelWork, lasting: Any, working: Any, slowest: Any, total: float, machine: Target
) -> dict[str, Any]:
    median, busy = float(np.median(lasting)), float(np.median(working))
    return {
        "work": work,
        "median": median,
        "best": float(lasting.min()),
        "wait": max(median - busy, 0.0),
        "imbalance": float(np.median(slowest)) / busy - 1 if busy else 0.0,
        "share": median / total if total else 0.0,
        "roofline": work.seconds(machine) / median if median else 0.0,
        "limit": work.limit(machine),
    }


def _timing(  # many parameters: the columns of one row of a profile
    plan: Plan, k: int, lasting: Any, working: Any, slowest: Any, total: float, machine: Target
) -> Timing:
    kernel, spec = plan.kernels[k], plan.spec(k)
    return Timing(
        number=k,
        kind=spec.kind,
        ops=shown_ops(spec),
        spec=kernel.spec,
        label=kernel.label,
        source=kernel.source,
        nodes=kernel.nodes,
        results=tuple(str(plan.buffers[i].type) for i in kernel.results),
        updated=updated_leaves(plan, kernel),
        **_figures(kernel_work(plan, k), lasting, working, slowest, total, machine),
    )


def _copies(
    plan: Plan, lasting: Any, working: Any, slowest: Any, total: float, machine: Target
) -> Timing:
    moved = [old for old, new in plan.updates if old != new]
    nbytes = sum(plan.buffers[i].nbytes for i in moved)
    return Timing(
        number=-1,
        kind="copy",
        ops="copy",
        spec="copy",
        label=None,
        source=None,
        nodes=(),
        results=tuple(str(plan.buffers[i].type) for i in moved),
        updated=tuple(str(plan.buffers[i].name) for i in moved),
        **_figures(
            KernelWork(read=nbytes, written=nbytes), lasting, working, slowest, total, machine
        ),
    )
