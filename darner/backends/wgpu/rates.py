"""What a GPU can do at best, measured in a moment: products a second, bytes a second, the time of a dispatch, and how many processors work side by side.

Rates are measured when a GPU is opened for the first time, and kept on disk under the GPU, its driver and darner's version: the cost model and the roofline of a profile read them. Nothing is
measured on drivers that only pose as a GPU, unless somebody asks.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from ...codegen.simt.dispatch import Binding
from ...graph.integers import ceil_div
from ...optimizer.targets import Target, find_target
from ..base.cache import ObjectCache
from ..base.keys import kept_key
from ..base.readback import Region
from .device import Device
from .machine import Machine
from .native import dispatch_all, handle
from .stage import Stage

CHAINS = 16
"""Sums that grow beside each other in a thread, each a vector of four: as in a product of matrices, eight numbers times two vectors."""
ROUNDS = 512
THREADS = 256
GROUPS = 4096
REPEATS = 5
AWAKE = 0.1
"""Seconds of work before anything counts."""
MOVED = 128 << 20
"""Bytes that are copied: more than a cache holds."""


@dataclass(frozen=True)
class Rates:
    """What was measured.

    Attributes:
        flops: additions and multiplications of f32 a second.
        bandwidth: bytes read and written a second.
        launch: seconds of a dispatch that follows another.
        processors: workgroups that run side by side without slowing each other down.
    """

    flops: float
    bandwidth: float
    launch: float
    processors: int

    @property
    def target(self) -> Target:
        """The roofline that the optimizer and profiles read."""
        declared = find_target("wgpu")
        return Target("this GPU", self.flops, self.bandwidth, self.launch, vector=declared.vector)


def _key(machine: Machine) -> str:
    return kept_key("rates", machine.unmeasured)


def known_rates(machine: Machine, cache: ObjectCache | None = None) -> Rates | None:
    """What was measured on an earlier day."""
    kept = cache or ObjectCache()
    found = kept.get(_key(machine))
    return None if found is None else Rates(**json.loads(found))


def measured_rates(device: Device, cache: ObjectCache | None = None) -> Rates:
    """The rates of a GPU, measured once and kept."""
    found = known_rates(device.machine, cache)
    if found is None:
        found = _measure(device)
        kept = cache or ObjectCache()
        kept.put(_key(device.machine), json.dumps(found.__dict__).encode())
    return found


def _measure(device: Device) -> Rates:
    software = device.machine.software
    groups, nbytes = (8, 4 << 20) if software else (GROUPS, MOVED)
    source, target = device.region(nbytes), device.region(nbytes)
    try:
        compute, copy = _compute(), _copy(nbytes // 16)
        if not software:
            # Cards that have had nothing to do take a while to reach their speed.
            until = time.perf_counter() + AWAKE
            while time.perf_counter() < until:
                _seconds(device, [compute], [target], groups)
        one = _seconds(device, [compute], [target], 1)
        all_ = _seconds(device, [compute], [target], groups)
        work = 2 * ROUNDS * CHAINS * 4 * THREADS
        moving = _seconds(device, [copy], [source, target], nbytes // 16 // THREADS)
        tiny = _seconds(device, [_copy(THREADS)] * 64, [source, target], 1) / 64
        return Rates(
            flops=groups * work / all_,
            bandwidth=2 * nbytes / moving,
            launch=tiny,
            processors=max(1, round(groups * one / all_)),
        )
    finally:
        device.free(source.buffer)
        device.free(target.buffer)


def _seconds(device: Device, texts: list[str], regions: list[Region], groups: int) -> float:
    """The least time of a dispatch, or of some: the difference of doing it several times and once."""
    bindings = tuple(Binding("operand", i) for i in range(len(regions)))
    group = device.bind_group(regions)
    calls = []
    for text in texts:
        pipeline = device.pipeline(Stage(text, (groups, 1), bindings))
        calls.append((handle(pipeline), handle(group), min(groups, 65535), ceil_div(groups, 65535)))

    def run(times: int) -> float:
        encoder = device.encoder()
        compute: Any = encoder.begin_compute_pass()
        dispatch_all(compute, calls * times)
        compute.end()
        started = time.perf_counter()
        device.submit(encoder)
        device.wait()
        return time.perf_counter() - started

    run(1)
    few = min(run(1) for _ in range(REPEATS))
    many = min(run(4) for _ in range(REPEATS))
    return max((many - few) / 3, 1e-9)


def _compute() -> str:
    names = [(i, j) for i in range(CHAINS // 2) for j in range(2)]
    starts = "\n".join(f"  var s{i}{j} = vec4<f32>();" for i, j in names)
    factors = "\n".join(f"  let a{i} = f32(local + {i}u);" for i in range(CHAINS // 2))
    sums = "\n".join(f"    s{i}{j} = fma(vec4<f32>(a{i}), b{j}, s{i}{j});" for i, j in names)
    return f"""@group(0) @binding(0) var<storage, read_write> a: array<vec4<f32>>;
@compute @workgroup_size({THREADS}) fn main(@builtin(local_invocation_index) local: u32) {{
  let b0 = a[local];
  let b1 = a[local + 1u];
{factors}
{starts}
  for (var i = 0u; i < {ROUNDS}u; i++) {{
{sums}
  }}
  a[local + 1u] = {" + ".join(f"s{i}{j}" for i, j in names)};
}}"""


def _copy(count: int) -> str:
    return f"""@group(0) @binding(0) var<storage, read_write> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> b: array<vec4<f32>>;
@compute @workgroup_size({THREADS}) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
  let at = id.x + id.y * {65535 * THREADS}u;
  if (at < {count}u) {{ b[at] = a[at]; }}
}}"""
