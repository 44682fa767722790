"""Ways to write a kernel, timed on a GPU of wgpu; ``base.tuning`` chooses among them."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ...codegen.simt.dispatch import Binding, Written
from ...codegen.simt.families import template_of
from ...lower.plan import Plan, Spec
from ..base import tuning
from ..base.cache import ObjectCache
from ..base.keys import kept_key
from ..base.readback import Region
from ..base.tuning import MOST_VARIANTS, SECONDS, Choices, Progress, Tuned
from .bindings import fitted
from .device import Device
from .machine import Machine
from .native import Call, dispatch_all, handle
from .stage import Stage

REPEATS = 5


def known_choices(machine: Machine, cache: ObjectCache | None) -> Choices:
    """What earlier tuning found on this GPU."""
    return tuning.known_choices(kept_key("tuned", machine), cache)


def keep_choices(machine: Machine, choices: Choices, cache: ObjectCache | None) -> None:
    """Add to what is known of this GPU."""
    tuning.keep_choices(kept_key("tuned", machine), choices, cache)


def tune(
    plan: Plan,
    device: Device,
    *,
    seconds: float = SECONDS,
    known: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Tuned:
    """Time the variants of a plan's kernels; those whose spec is ``known`` are not timed again."""
    return tuning.tune(plan, _Timer(device), seconds=seconds, known=known, progress=progress)


class _Timer:
    """The variants of a device's kernels."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def variants(self, spec: Spec) -> dict[str, Written]:
        """See ``base.tuning.Timer``."""
        return _variants(spec, self.device.machine)

    def seconds(self, spec: Spec, variants: Mapping[str, Written]) -> dict[str, float]:
        """See ``base.tuning.Timer``."""
        return _timed(spec, self.device, variants)


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
