"""Parameters and states on a device with memory of its own: who has the newer value, the device or the process, and who else has a copy.

A leaf is a mirror of the session's array. Where several stand side by side in one buffer (``Buffer.parts``), the process has them as a ``Block``: the session's arrays are mirrored by views of it,
and the block itself by the device. So a part is read and written by its own name, shared with sessions that store it otherwise, and saved, as if it stood alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from ...graph.data import Array
from ...graph.errors import ArgumentError
from ...io.memory import Bytes, reclaim
from ...lower.plan import Buffer, Plan
from .blocks import Block, block_of, parts_of
from .host import empty_like
from .mirrors import Mirror, changes, mirror, mirrors_of, refresh
from .readback import Region


class Named(Protocol):
    """A machine, as errors tell of it."""

    @property
    def name(self) -> str:
        """What its driver calls it."""
        ...


class Holder(Protocol):
    """A device that is open, as leaves use it."""

    @property
    def machine(self) -> Named:
        """What it is."""
        ...

    def region(self, nbytes: int, what: str = ...) -> Region:
        """New memory, zeroed; errors say ``what`` it is for."""
        ...

    def write(self, region: Region, array: Array) -> None:
        """Copy an array to the device; it may change as soon as this returns."""
        ...

    def read(self, region: Region) -> Bytes:
        """Bytes of the device, once all that was started is done."""
        ...

    def check(self) -> None:
        """Raise if the device was lost, or is that of another process."""
        ...


class DeviceLeaves:
    """The parameters and states of one program.

    Args:
        plan: of the program.
        device: where it runs.
        storage: the session's arrays by name; those that are missing are made.
    """

    def __init__(self, plan: Plan, device: Holder, storage: dict[str, Array]) -> None:
        self._device = device
        self._storage = storage
        self._arrays: dict[int, Array] = {}
        self._blocks: dict[int, Block] = {}
        self._mirrors: dict[int, Mirror] = {}
        self._parts: list[Mirror] = []
        self._sent = -1
        for number, buffer in enumerate(plan.buffers):
            if buffer.place in ("parameter", "state"):
                self._arrays[number] = self._array(number, buffer)
                self._mirrors[number] = self._mirror(number, buffer)
        for one in (*self._parts, *self._mirrors.values()):
            one.users += 1
        written = {old for old, _ in plan.updates}.union(*(k.results for k in plan.kernels))
        self._written = written.intersection(self._mirrors)
        self._updated = [self._mirrors[old] for old, _ in plan.updates if old in self._mirrors]
        self._kept_results = [
            (number, self._mirrors[buffer])
            for number, kernel in enumerate(plan.kernels)
            for buffer in kernel.results
            if buffer in self._mirrors
        ]

    def __contains__(self, buffer: int) -> bool:
        """Whether a buffer is a parameter or state."""
        return buffer in self._mirrors

    def region(self, buffer: int) -> Region:
        """Where it lies on the device."""
        found: Region = self._mirrors[buffer].copy
        return found

    # ------------------------------------------------------------- making it

    def _array(self, number: int, buffer: Buffer) -> Array:
        """What the process has of a leaf: the session's array, or the block of several."""
        if buffer.parts is None:
            name = str(buffer.name)
            if name not in self._storage:
                self._storage[name] = empty_like(buffer)
            return self._storage[name]
        for name, type_ in parts_of(buffer).types(buffer.type).items():
            if name not in self._storage:
                self._storage[name] = empty_like(replace(buffer, type=type_, name=name))
            self._refuse_others(self._storage[name], f"{buffer.place} '{name}'")
        found = self._blocks[number] = block_of(buffer, self._storage)
        self._parts += found.mirrors
        return found.array

    def _mirror(self, number: int, buffer: Buffer) -> Mirror:
        """The copy on the device."""
        what = f"{buffer.place} '{buffer.name}'"
        device = self._device

        def pull(region: Region, array: Array) -> None:
            reclaim(array)
            array[...] = device.read(region).view(array.dtype).reshape(array.shape)

        def make(array: Array) -> Mirror:
            where = f"the GPU '{device.machine.name}'"
            region = device.region(array.nbytes, what)
            return Mirror(array, device, region, pull, device.write, where)

        self._refuse_others(self._arrays[number], what)
        return mirror(self._arrays[number], make, owner=device)

    def _refuse_others(self, array: Array, what: str) -> None:
        """Raise where another device has a copy of an array."""
        for one in mirrors_of(array):
            if one.owner is self._device or isinstance(one.owner, Block):
                continue
            if isinstance(one.owner, type(self._device)):
                one.owner.check()
            raise ArgumentError(
                f"the {what} is kept by {one.where} already, and '{self._device.machine.name}' is another device",
                hint="sessions that share parameters are on one device",
            )

    # ------------------------------------------------------------- values

    def read(self, buffer: int) -> Array | None:
        """The value, as a copy, where the process has it; None where it is on the device alone."""
        if buffer in self._blocks:
            self._blocks[buffer].fill()
        elif not self._mirrors[buffer].newer_here:
            return None
        return np.array(refresh(self._arrays[buffer]))

    def write(self, buffer: int, write: Callable[[], None]) -> None:
        """Have a value written to the device, which then is the newest there is."""
        found = self._mirrors[buffer]
        self._own(buffer, found)
        write()
        found.newer_here, found.newer_there = False, True

    def send(self) -> None:
        """Let the device have every leaf whose value is elsewhere; what the program changes is the device's alone from now on."""
        if self._sent == changes():
            return
        for number, found in self._mirrors.items():
            if number in self._written or number in self._blocks:
                self._own(number, found)
            elif len(mirrors_of(self._arrays[number])) > 1:
                found.fill()
            found.send()
        self._sent = changes()

    def _own(self, buffer: int, found: Mirror) -> None:
        """Have the value where the program will change it, and let all other copies know that theirs grow old."""
        if buffer in self._blocks:
            for one in self._blocks[buffer].mirrors:
                if not one.newer_there:
                    one.take()
        elif len(mirrors_of(self._arrays[buffer])) > 1:
            found.take()

    def ran(self, first: int, end: int, updates: bool) -> None:
        """Note that some kernels were started, and whether leaves took their new values after them."""
        for number, found in self._kept_results:
            if first <= number < end:
                found.newer_there = True
        if updates:
            for found in self._updated:
                found.newer_there = True

    def close(self) -> None:
        """Leave copies to whoever wants them next: they are freed with the arrays, or when another program takes these in another order."""
        for one in (*self._parts, *self._mirrors.values()):
            one.users -= 1
        self._parts, self._mirrors = [], {}
