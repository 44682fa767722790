"""A profile in the Chrome trace format, which Perfetto reads: one track for each thread, one for steps.

The format is a JSON object with a list of events. Complete events (``ph`` is ``X``) have a start ``ts`` and a length ``dur`` in
microseconds; counters (``C``) are drawn as curves; metadata (``M``) names processes and threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..io.atomic import Path, write_atomically

if TYPE_CHECKING:
    from .profile import Profile, Timing

PROCESS = 1
STEPS = 0
"""The track of whole steps; thread ``t`` has track ``t + 1``."""


def trace_events(profile: Profile) -> list[dict[str, Any]]:
    """All recorded steps as events, the earliest first."""
    origin = int(profile.calls.min())
    events = [*_steps(profile, origin), *_kernels(profile, origin), *_rates(profile, origin)]
    # Of two that begin together the longer one encloses the other.
    events.sort(key=lambda event: (event["ts"], -event.get("dur", 0.0)))
    return [*_names(profile), *events]


def write(profile: Profile, path: Path) -> None:
    """Write the trace."""
    machine = profile.machine
    document = {
        "traceEvents": trace_events(profile),
        "displayTimeUnit": "ns",
        "otherData": {
            "plan": profile.name,
            "threads": profile.threads,
            "steps": profile.steps,
            "roofline": f"{machine} ({'measured' if profile.measured else 'declared'})",
        },
    }
    write_atomically(path, [json.dumps(document, allow_nan=False).encode()])


def _names(profile: Profile) -> Iterator[dict[str, Any]]:
    yield _named("process_name", STEPS, name=f"darner: {profile.name}")
    tracks = ["steps", *(f"thread {thread}" for thread in range(profile.threads))]
    for track, name in enumerate(tracks):
        yield _named("thread_name", track, name=name)
        yield _named("thread_sort_index", track, sort_index=track)


def _named(what: str, track: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": PROCESS, "tid": track, "args": args}


def _steps(profile: Profile, origin: int) -> Iterator[dict[str, Any]]:
    work = profile.work
    for step, (start, end) in enumerate(profile.calls):
        took = int(end - start)
        args = {
            "flops": work.flops,
            "bytes": work.bytes,
            "GFLOP/s": _rate(work.flops, took),
            "GB/s": _rate(work.bytes, took),
        }
        yield _slice(f"step {step}", "step", STEPS, int(start) - origin, took, args)


def _kernels(profile: Profile, origin: int) -> Iterator[dict[str, Any]]:
    described = [_described(kernel) for kernel in profile.kernels]
    copies = len(profile.kernels) - 1  # rows past the kernels are copies, described by the last
    for step in range(profile.steps):
        for row in range(profile.begin.shape[1]):
            name, kind, args = described[min(row, copies)]
            for thread in range(profile.threads):
                start = int(profile.begin[step, row, thread])
                took = int(profile.end[step, row, thread]) - start
                yield _slice(name, kind, thread + 1, start - origin, took, args)


def _rates(profile: Profile, origin: int) -> Iterator[dict[str, Any]]:
    """Curves of arithmetic and traffic: each kernel's over the time from its first thread to its last."""
    for step in range(profile.steps):
        for kernel in profile.kernels:
            if kernel.number < 0:
                continue
            start = int(profile.begin[step, kernel.number].min())
            end = int(profile.end[step, kernel.number].max())
            for name, amount in (("GFLOP/s", kernel.work.flops), ("GB/s", kernel.work.bytes)):
                yield _counter(name, start - origin, _rate(amount, end - start))
        if profile.begin.shape[1]:
            for name in ("GFLOP/s", "GB/s"):
                yield _counter(name, int(profile.end[step].max()) - origin, 0.0)


def _described(kernel: Timing) -> tuple[str, str, dict[str, Any]]:
    args: dict[str, Any] = {"kernel": kernel.name, "ops": kernel.ops}
    if kernel.label:
        args["label"] = kernel.label
    if kernel.source is not None:
        args["source"] = f"{kernel.source.file}:{kernel.source.line}"
    args |= {
        "results": ", ".join(kernel.results),
        "updates": ", ".join(kernel.updated),
        "nodes": ", ".join(map(str, kernel.nodes)),
        "spec": kernel.spec,
        "flops": kernel.work.flops,
        "bytes": kernel.work.bytes,
        "roofline": round(kernel.roofline, 4),
        "limit": kernel.limit,
    }
    what = kernel.title or kernel.ops.partition(",")[0]
    return f"{kernel.name} {what}" if kernel.number >= 0 else "copies", kernel.kind, args


def _slice(
    name: str, kind: str, track: int, start: int, took: int, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "pid": PROCESS,
        "tid": track,
        "ts": start / 1000,
        "dur": took / 1000,
        "args": args,
    }


def _counter(name: str, at: int, value: float) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": PROCESS, "ts": at / 1000, "args": {"value": value}}


def _rate(amount: int, nanoseconds: int) -> float:
    """Thousand millions a second."""
    return round(amount / nanoseconds, 3) if nanoseconds > 0 else 0.0
