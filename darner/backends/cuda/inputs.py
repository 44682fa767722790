"""Inputs of a step on their way to the device: small ones side by side, through memory that the device reads by itself.

So a step starts without waiting for its inputs, and all small ones are one copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...graph.data import Array
from ...graph.integers import round_up
from ...io.memory import Bytes
from ...lower.plan import Plan
from ..base.device_array import DeviceArray, Value
from ..base.readback import Region
from .device import Device, Queue, address_of
from .interface import Event, Pinned
from .machine import ALIGNMENT

SMALL = 1 << 20
"""Bytes up to which an input goes through pinned memory."""
SLOTS = 4
"""Steps whose inputs may be on their way at a time."""


@dataclass(eq=False)
class _Slot:
    """Pinned memory for the inputs of one step, and the point when they have been read."""

    memory: Pinned
    read: Event
    used: bool = False


class Inputs:
    """The small inputs of a program, in one piece of memory.

    Args:
        plan: the program's.
        device: where they go.
        queue: the program's.
    """

    def __init__(self, plan: Plan, device: Device, queue: Queue) -> None:
        self._device = device
        self._queue = queue
        self._places: dict[int, int] = {}
        self.nbytes = 0
        for number, buffer in enumerate(plan.buffers):
            if buffer.place == "input" and buffer.nbytes <= SMALL:
                self._places[number] = self.nbytes
                self.nbytes += round_up(max(1, buffer.nbytes), ALIGNMENT)
        self._memory = device.region(self.nbytes, "inputs") if self.nbytes else None
        self._slots: list[_Slot] = []
        self._turn = 0

    def region(self, number: int, nbytes: int) -> Region | None:
        """Where an input lies; None where it is not small."""
        if self._memory is None or number not in self._places:
            return None
        return Region(self._memory.buffer, self._places[number], nbytes)

    @property
    def memory(self) -> Region | None:
        """All of them."""
        return self._memory

    def send(self, inputs: Mapping[int, Value], regions: list[Region]) -> None:
        """Start copying inputs to the device, each to its region; their arrays may change as soon as this returns."""
        small: dict[int, Array] = {}
        for number, value in inputs.items():
            where = address_of(regions[number])
            if isinstance(value, DeviceArray):
                self._copy(where, value)
            elif number in self._places:
                small[number] = value
            elif value.nbytes:
                self._queue.stream.send(where, _bytes(value))
        if small:
            self._send_small(small, sorted(small))

    def _copy(self, address: int, array: DeviceArray) -> None:
        """An array that lies on the device already; what has it is kept until the copy must have been made."""
        if array.nbytes:
            self._queue.stream.follow(self._device.transfers.stream)
            self._queue.stream.copy(address, array.address, array.nbytes)
            self._queue.stream.wait()

    def _send_small(self, inputs: Mapping[int, Array], numbers: list[int]) -> None:
        slot = self._slot()
        room = slot.memory.data
        runs: list[list[int]] = []
        for number in numbers:
            start, data = self._places[number], _bytes(inputs[number])
            room[start : start + data.nbytes] = data
            stop = start + round_up(max(1, data.nbytes), ALIGNMENT)
            if runs and runs[-1][1] == start:
                runs[-1][1] = stop
            else:
                runs.append([start, stop])
        if self._memory is not None:
            whole = address_of(self._memory)
            for start, stop in runs:
                self._queue.stream.send(whole + start, room[start:stop])
        slot.read.record(self._queue.stream)
        slot.used = True

    def _slot(self) -> _Slot:
        """Pinned memory that nobody reads any more."""
        if len(self._slots) < SLOTS:
            memory = self._device.pinned(self.nbytes, "inputs on their way")
            slot = _Slot(memory, self._device.context.event())
            for made in (slot.memory, slot.read):
                self._device.closed_with(slot, made)
            self._slots.append(slot)
            return slot
        self._turn = (self._turn + 1) % SLOTS
        slot = self._slots[self._turn]
        if slot.used:
            slot.read.wait()
        return slot

    def close(self) -> None:
        """Let go of all memory."""
        self._slots.clear()
        if self._memory is not None:
            self._device.give_back(self._memory)


def _bytes(array: Array) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
