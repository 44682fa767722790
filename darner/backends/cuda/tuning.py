"""Ways to write a kernel, timed on an NVIDIA GPU; ``base.tuning`` chooses among them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import islice

from ...codegen.simt.dispatch import FAULT_BYTES, Binding, Written
from ...lower.plan import Plan, Spec
from ..base import tuning
from ..base.cache import ObjectCache
from ..base.keys import kept_key
from ..base.readback import Region
from ..base.tuning import MOST_VARIANTS, SECONDS, Choices, Progress, Tuned
from .device import Device, address_of, launch_of
from .interface import Event, Launch, Recording
from .kernels import template_of
from .machine import Machine

LAUNCHES = 8
"""Launches that are timed together, as a graph."""
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
        template = template_of(spec, self.device.machine)
        if template is None or template.variants is None:
            return {}
        listed = template.variants(spec, self.device.machine)
        return {name: write() for name, write in islice(listed.items(), MOST_VARIANTS)}

    def seconds(self, spec: Spec, variants: Mapping[str, Written]) -> dict[str, float]:
        """See ``base.tuning.Timer``: over memory of its own; in turns, the best of each counts."""
        device = self.device
        stages = [stage for one in variants.values() for stage in one.stages]
        kernels = device.kernels(stages)
        values = [int(node.type.nbytes) for node in (*spec.inputs, *spec.body.outputs)]
        scratch = max(one.scratch for one in variants.values())
        held = [device.region(size, "tuning") for size in (*values, scratch, FAULT_BYTES)]

        def region(binding: Binding) -> Region:
            if binding.what == "scratch":
                return Region(held[-2].buffer, held[-2].offset + binding.number, binding.nbytes)
            if binding.what == "fault":
                return held[-1]
            found = held[binding.number + (len(spec.inputs) if binding.what == "result" else 0)]
            nbytes = binding.nbytes or found.nbytes - binding.offset
            return Region(found.buffer, found.offset + binding.offset, nbytes)

        try:
            with device.guard:
                for one in held:
                    device.transfers.stream.zero(address_of(one), one.nbytes)
                launches = {
                    name: [
                        launch_of(device, kernels[stage.digest][0], stage, region)
                        for stage in one.stages
                    ]
                    for name, one in variants.items()
                }
                return self._timed(launches)
        finally:
            for one in held:
                device.give_back(one)

    def _timed(self, launches: Mapping[str, list[Launch]]) -> dict[str, float]:
        device = self.device
        stream = device.transfers.stream
        first, last = device.context.event(), device.context.event()

        def start(of: list[Launch]) -> None:
            for _ in range(LAUNCHES):
                for launch in of:
                    launch.start(stream)

        best = dict.fromkeys(launches, float("inf"))
        for of in launches.values():
            for launch in of:
                # An error tells of the kernel that it is an error of.
                launch.start(stream)
        graphs: dict[str, Recording] = {}
        try:
            for name, of in launches.items():
                graphs[name] = stream.record(partial(start, of))
            for _ in range(REPEATS):
                for name, graph in graphs.items():
                    first.record(stream)
                    graph.start(stream)
                    last.record(stream)
                    best[name] = min(best[name], _seconds(first, last) / LAUNCHES)
        finally:
            for graph in graphs.values():
                graph.close()
            first.close()
            last.close()
        return best


def _seconds(first: Event, last: Event) -> float:
    last.wait()
    return max(last.seconds_since(first), 1e-9)
