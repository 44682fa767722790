"""Kernels that can be written in several ways are timed on the GPU, and the fastest is kept.

A template that has several ways lists them (``Template.variants``), the one it expects to be best first. Without ``tune`` that one is taken, or what an earlier tuning found on the same
GPU with the same driver and version of darner. Tuning is bounded: each spec a few variants, each variant a few milliseconds, all of it a number of seconds; what was not reached is
not tuned, and said so in the result.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...codegen.simt.dispatch import Binding, Written
from ...codegen.simt.families import template_of
from ...lower.plan import Plan, Spec
from ..base.cache import ObjectCache
from ..base.readback import Region
from .bindings import fitted
from .device import Device
from .machine import Machine, kept_key
from .native import Call, dispatch_all, handle
from .stage import Stage

SECONDS = 20.0
"""Of all tuning of a build."""
MOST_VARIANTS = 8
"""Of a spec."""
LEAST_GAIN = 0.03
"""A variant that is not faster by this share than what is expected to be best is not worth a choice."""
REPEATS = 5

Choices = dict[str, str]
"""The variant of each spec, by its digest."""
Progress = Callable[[int, int, str], None]
"""What is told how many specs are done, of how many, and which comes next."""


@dataclass(frozen=True)
class Tuned:
    """What tuning found.

    Attributes:
        choices: where another variant than the expected one is faster.
        times: seconds of each variant that was timed, by spec.
        left: specs that the time was too short for.
    """

    choices: Choices
    times: Mapping[str, Mapping[str, float]]
    left: int = 0


def _key(machine: Machine) -> str:
    return kept_key("tuned", machine)


def known_choices(machine: Machine, cache: ObjectCache | None) -> Choices:
    """What earlier tuning found on this GPU."""
    if cache is None:
        return {}
    found = cache.get(_key(machine))
    return {} if found is None else dict(json.loads(found))


def keep_choices(machine: Machine, choices: Choices, cache: ObjectCache | None) -> None:
    """Add to what is known of this GPU."""
    if cache is not None:
        all_ = known_choices(machine, cache) | choices
        cache.put(_key(machine), json.dumps(all_).encode())


def tune(
    plan: Plan,
    device: Device,
    *,
    seconds: float = SECONDS,
    known: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Tuned:
    """Time the variants of a plan's kernels; those whose spec is ``known`` are not timed again."""
    specs = [spec for digest, spec in plan.specs.items() if digest not in (known or {})]
    chosen: Choices = {}
    times: dict[str, dict[str, float]] = {}
    until, done = time.perf_counter() + seconds, 0
    for done, spec in enumerate(specs):
        if time.perf_counter() > until:
            return Tuned(chosen, times, len(specs) - done)
        if progress is not None:
            progress(done, len(specs), spec.ops[-1] if spec.ops else spec.kind)
        variants = _variants(spec, device.machine)
        if len(variants) < 2:
            continue
        found = _timed(spec, device, variants)
        times[spec.digest] = found
        expected, best = next(iter(variants)), min(found, key=lambda name: found[name])
        gained = found[best] < found[expected] * (1 - LEAST_GAIN)
        chosen[spec.digest] = best if gained else expected
    return Tuned(chosen, times)


def _variants(spec: Spec, machine: Machine) -> dict[str, Written]:
    template = template_of(spec, machine)
    if template is None or template.variants is None:
        return {}
    listed = template.variants(spec, machine)
    found = {name: write() for name, write in list(listed.items())[:MOST_VARIANTS]}
    # What the GPU cannot have bound as it is is written over, and all variants are slow then.
    fits = all(fitted(kernel, spec, machine) is kernel for kernel in found.values())
    return found if fits else {}


def _timed(spec: Spec, device: Device, variants: Mapping[str, Written]) -> dict[str, float]:
    """Seconds of each variant, over memory of its own; in turns, the best of each counts."""
    sizes = [int(node.type.nbytes) for node in (*spec.inputs, *spec.body.outputs)]
    regions = [device.region(size) for size in sizes]
    scratch = device.region(max(one.scratch for one in variants.values()))
    fault = device.region(256)
    try:
        device.compile(stage for one in variants.values() for stage in one.stages)
        held: list[object] = []
        calls = {
            name: [
                _call(device, spec, stage, regions, scratch, fault, held) for stage in one.stages
            ]
            for name, one in variants.items()
        }
        best = dict.fromkeys(variants, float("inf"))
        for _ in range(REPEATS):
            for name in variants:
                few, many = (_run(device, calls[name] * count) for count in (1, 4))
                best[name] = min(best[name], max((many - few) / 3, 1e-9))
        return best
    finally:
        for region in (*regions, scratch, fault):
            device.free(region.buffer)


def _call(  # many parameters: all that one dispatch binds
    device: Device,
    spec: Spec,
    stage: Stage,
    regions: list[Region],
    scratch: Region,
    fault: Region,
    held: list[object],
) -> Call:
    def region(binding: Binding) -> Region:
        if binding.what == "scratch":
            return Region(scratch.buffer, binding.number, binding.nbytes)
        if binding.what == "fault":
            return fault
        first = 0 if binding.what == "operand" else len(spec.inputs)
        return regions[first + binding.number]

    group = device.bind_group([region(binding) for binding in stage.bindings])
    held.append(group)
    return (handle(device.pipeline(stage)), handle(group), *stage.groups)


def _run(device: Device, calls: list[Call]) -> float:
    encoder = device.encoder()
    compute = encoder.begin_compute_pass()
    dispatch_all(compute, calls)
    compute.end()
    started = time.perf_counter()
    device.submit(encoder)
    device.wait()
    return time.perf_counter() - started
