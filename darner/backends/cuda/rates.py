"""What a GPU can do at best, measured in a moment: f32 multiplied and added a second, and bytes a second."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ...codegen.simt.builder import Memory
from ...codegen.simt.dispatch import Binding
from ...graph.dtypes import f32
from ...optimizer.targets import Target, find_target
from ..base.readback import Region
from .device import Device, address_of
from .machine import Machine
from .stage import Stage

MOVED = 256 << 20
"""Bytes that are copied: more than a cache holds."""
PART = 64
"""They are no more than one in so many bytes of the memory."""
REPEATS = 5
THREADS = 256
BLOCKS = 8
"""Blocks of a processor, so that its units always have a product that waits for none."""
SUMS = 16
"""Sums that grow beside each other in a thread."""
ROUNDS = 1024


@cache
def rates_of(device: Device) -> Target:
    """The roofline that profiles compare with; of an emulated device the declared one."""
    declared = find_target("cuda")
    if device.machine.emulated:
        return declared
    flops, bandwidth = _flops(device), _bandwidth(device)
    vector, half = declared.vector, declared.half
    return Target("this GPU", flops, bandwidth, declared.launch, vector=vector, half=half)


def products(machine: Machine, groups: int) -> Stage:
    """A launch that multiplies and adds as fast as it can, and writes a number for each thread."""
    b = machine.builder(THREADS)
    memory = Memory("sums", f32, builder=b)
    factor = b.let(b.load(memory, b.thread))
    sums = [b.variable(float(number), "sum", f32) for number in range(SUMS)]
    with b.for_(0, ROUNDS):
        for total in sums:
            total.set(b.fma(total, factor, factor))
    whole = sums[0] + 0.0
    for total in sums[1:]:
        whole = whole + total
    b.store(whole, memory, b.thread)
    stage: Stage = b.finish(groups, [(memory, Binding("operand"))])
    return stage


def _flops(device: Device) -> float:
    groups = BLOCKS * device.machine.processors
    stage = products(device.machine, groups)
    kernel, _ = device.kernels([stage])[stage.digest]
    region = device.region(4 * groups * THREADS, "a measurement")
    with device.guard:
        launch = kernel.launch(stage, [(address_of(region), region.nbytes)], [])
        seconds = _seconds(device, lambda: launch.start(device.transfers.stream), (region,))
    return 2 * SUMS * ROUNDS * THREADS * groups / seconds


def _bandwidth(device: Device) -> float:
    moved = min(MOVED, device.machine.memory // PART)
    source, target = (device.region(moved, "a measurement") for _ in range(2))
    stream, pair = device.transfers.stream, (source, target)
    with device.guard:
        seconds = _seconds(
            device, lambda: stream.copy(address_of(target), address_of(source), moved), pair
        )
    return 2 * moved / seconds


def _seconds(device: Device, start: Callable[[], None], regions: tuple[Region, ...]) -> float:
    """The least time that some work takes; then the memory is given back."""
    stream = device.transfers.stream
    first, last = device.context.event(), device.context.event()
    times = []
    for _ in range(REPEATS):
        first.record(stream)
        start()
        last.record(stream)
        last.wait()
        times.append(last.seconds_since(first))
    for event in (first, last):
        event.close()
    for region in regions:
        device.give_back(region)
    return max(min(times), 1e-9)
