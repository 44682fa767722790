"""Kernels that can be written in several ways are timed on the device, and the fastest is kept.

A template that has several ways lists them (``Template.variants``), the one it expects to be best first. Without ``tune`` that one is taken, or what an earlier tuning found on the same
device with the same driver and version of darner. Tuning is bounded: each spec a few variants, each variant a few milliseconds, all of it a number of seconds; what was not reached is
not tuned, and said so in the result. A backend says which variants a spec has on its device, and times them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from ...lower.plan import Plan, Spec
from .cache import ObjectCache

SECONDS = 20.0
"""Of all tuning of a build."""
MOST_VARIANTS = 8
"""Of a spec."""
LEAST_GAIN = 0.03
"""A variant that is not faster by this share than what is expected to be best is not worth a choice."""

Choices = dict[str, str]
"""The variant of each spec, by its digest."""
Progress = Callable[[int, int, str], None]
"""What is told how many specs are done, of how many, and which comes next."""


@dataclass(frozen=True)
class Tuned:
    """What tuning found.

    Attributes:
        choices: where another variant than the expected one is faster.
        times: seconds of each variant that was timed, by spec; the expected one is the first.
        left: specs that the time was too short for.
        names: what specs compute, in a few words.
    """

    choices: Choices
    times: Mapping[str, Mapping[str, float]]
    left: int = 0
    names: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = []
        for digest, found in self.times.items():
            expected, chosen = next(iter(found)), self.choices[digest]
            line = f"{self.names.get(digest, digest)}: {chosen}, {found[chosen] * 1e6:.1f} us"
            if chosen != expected:
                line += f" ({expected}, which was expected to be best, {found[expected] * 1e6:.1f})"
            lines.append(line)
        if self.left:
            lines.append(f"{self.left} kernels were not tuned: the time was over")
        return "\n".join(lines)


Made = TypeVar("Made")


class Timer(Protocol, Generic[Made]):
    """A backend's part in tuning."""

    def variants(self, spec: Spec) -> Mapping[str, Made]:
        """The ways to write a spec that are worth a try, the expected one first; none where there is no choice."""
        ...

    def seconds(self, spec: Spec, variants: Mapping[str, Made]) -> dict[str, float]:
        """How long each of them takes."""
        ...


def known_choices(key: str, cache: ObjectCache | None) -> Choices:
    """What earlier tuning found on the device that is known by a key."""
    if cache is None:
        return {}
    found = cache.get(key)
    return {} if found is None else dict(json.loads(found))


def keep_choices(key: str, choices: Choices, cache: ObjectCache | None) -> None:
    """Add to what is known of a device."""
    if cache is not None:
        all_ = known_choices(key, cache) | choices
        cache.put(key, json.dumps(all_).encode())


def tune(
    plan: Plan,
    timer: Timer[Made],
    *,
    seconds: float = SECONDS,
    known: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Tuned:
    """Time the variants of a plan's kernels; those whose spec is ``known`` are not timed again."""
    specs = [spec for digest, spec in plan.specs.items() if digest not in (known or {})]
    chosen: Choices = {}
    times: dict[str, dict[str, float]] = {}
    names: dict[str, str] = {}
    until = time.perf_counter() + seconds
    for done, spec in enumerate(specs):
        if time.perf_counter() > until:
            return Tuned(chosen, times, len(specs) - done, names)
        if progress is not None:
            progress(done, len(specs), spec.ops[-1] if spec.ops else spec.kind)
        variants = timer.variants(spec)
        if len(variants) < 2:
            continue
        found = timer.seconds(spec, variants)
        times[spec.digest] = found
        names[spec.digest] = f"{spec.kind} of {', '.join(str(x.type) for x in spec.inputs[:2])}"
        expected, best = next(iter(variants)), min(found, key=lambda name: found[name])
        gained = found[best] < found[expected] * (1 - LEAST_GAIN)
        chosen[spec.digest] = best if gained else expected
    return Tuned(chosen, times, 0, names)
