"""What a GPU can do at best: bytes a second, measured by copying; products a second, by its processors and their clock."""

from __future__ import annotations

from functools import cache

from ...optimizer.targets import Target, find_target
from .device import Device, address_of
from .machine import Machine

MOVED = 256 << 20
"""Bytes that are copied: more than a cache holds."""
PART = 64
"""They are no more than one in so many bytes of the memory."""
REPEATS = 5


@cache
def rates_of(device: Device) -> Target:
    """The roofline that profiles compare with."""
    declared = find_target("cuda")
    if device.machine.emulated:
        return declared
    return Target(
        "this GPU",
        declared.flops * _share(device.machine),
        _bandwidth(device),
        declared.launch,
        vector=declared.vector,
        half=declared.half,
    )


def _share(machine: Machine) -> float:
    """Its processors, of those that the declared rates are of."""
    return machine.processors / Machine.without_card("sm_90a").processors


def _bandwidth(device: Device) -> float:
    moved = min(MOVED, device.machine.memory // PART)
    source, target = (device.region(moved, "a measurement") for _ in range(2))
    with device.guard:
        stream = device.transfers.stream
        first, last = device.context.event(), device.context.event()
        times = []
        for _ in range(REPEATS):
            first.record(stream)
            stream.copy(address_of(target), address_of(source), moved)
            last.record(stream)
            last.wait()
            times.append(last.seconds_since(first))
        first.close()
        last.close()
    for region in (source, target):
        device.give_back(region)
    return 2 * moved / max(min(times), 1e-9)
