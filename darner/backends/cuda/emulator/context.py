"""The emulated device: memory of the process, work that is done at once, and faults as the driver would have them."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from ....graph.errors import InternalError
from ....io.memory import Bytes
from ..interface import MEMORY_ERROR, DriverError
from ..machine import ALIGNMENT, Machine
from ..stage import Grid, Stage, TensorMap

Run = Callable[[Grid, Sequence[tuple[int, int]]], None]
"""Compiled code: blocks along each axis, and for each pointer its address and bytes."""


class Compiler(Protocol):
    """What makes code of stages."""

    def __call__(self, stage: Stage) -> Run:
        """The code of a stage, for the host's processor."""
        ...


class EmulatedEvent:
    """A point in the work of a stream: a time."""

    def __init__(self) -> None:
        self._time = 0

    def record(self, stream: EmulatedStream) -> None:
        """Be the point that a stream's work has now."""
        stream.started(self._note)

    def _note(self) -> None:
        self._time = time.monotonic_ns()

    def wait(self) -> None:
        """All work is done when it has been started."""

    def seconds_since(self, other: EmulatedEvent) -> float:
        """The time between an earlier event and this one."""
        return (self._time - other._time) * 1e-9

    def close(self) -> None:
        """Free it."""


class EmulatedGraph:
    """Work that was recorded, and is started as one."""

    def __init__(self, work: Sequence[Callable[[], None]]) -> None:
        self._work = tuple(work)

    @property
    def count(self) -> int:
        """How many launches and copies it has."""
        return len(self._work)

    def start(self, stream: EmulatedStream) -> None:
        """Start it on a stream."""
        for work in self._work:
            stream.started(work)

    def close(self) -> None:
        """Free it."""
        self._work = ()


class EmulatedStream:
    """Work that is done in order: at once, or when what was recorded is started."""

    def __init__(self, context: EmulatedContext) -> None:
        self._context = context
        self._recorded: list[Callable[[], None]] | None = None

    def started(self, work: Callable[[], None]) -> None:
        """Do something now, or keep it where the stream records."""
        self._context.check("cuLaunch")
        if self._recorded is None:
            work()
        else:
            self._recorded.append(work)

    def wait(self) -> None:
        """Nothing is left to do."""
        self._context.check("cuStreamSynchronize")

    def follow(self, other: EmulatedStream) -> None:
        """What was started is done."""
        self._context.check("cuStreamWaitEvent")

    def send(self, address: int, data: Bytes) -> None:
        """Copy to the device."""
        self._copy(address, data.ctypes.data, data.nbytes, "cuMemcpyHtoDAsync", data)

    def fetch(self, data: Bytes, address: int) -> None:
        """Copy from the device."""
        self._copy(data.ctypes.data, address, data.nbytes, "cuMemcpyDtoHAsync", data)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy on the device."""
        self._copy(target, source, nbytes, "cuMemcpyDtoDAsync")

    # many parameters: a copy, its name in errors, and memory that is to live as long.
    def _copy(
        self, target: int, source: int, nbytes: int, call: str, held: Bytes | None = None
    ) -> None:
        self._context.check(call)
        of_device = [target] if held is None else []
        of_device += [source] if call.startswith("cuMemcpyDtoD") else []
        for address in of_device:
            self._context.check_range(address, nbytes, call)

        def move(_held: Bytes | None = held) -> None:
            ctypes.memmove(target, source, nbytes)

        self.started(move)

    def zero(self, address: int, nbytes: int) -> None:
        """Fill memory of the device with zeros."""
        self._context.check_range(address, nbytes, "cuMemsetD8Async")

        def clear() -> None:
            ctypes.memset(address, 0, nbytes)

        self.started(clear)

    def record(self, work: Callable[[], None]) -> EmulatedGraph:
        """What a function starts on this stream, which is not started yet."""
        self._recorded = []
        try:
            work()
            return EmulatedGraph(self._recorded)
        finally:
            self._recorded = None

    def close(self) -> None:
        """Free it."""


class EmulatedPinned:
    """Memory of the process.

    Attributes:
        data: its bytes.
    """

    def __init__(self, nbytes: int) -> None:
        self.data: Bytes = np.zeros(nbytes, np.uint8)

    def close(self) -> None:
        """Free it."""


class EmulatedLaunch:
    """A launch of a kernel that is prepared."""

    def __init__(self, run: Run, groups: Grid, addresses: Sequence[tuple[int, int]]) -> None:
        self._run, self._groups, self._addresses = run, groups, tuple(addresses)

    def start(self, stream: EmulatedStream) -> None:
        """Start it on a stream."""
        stream.started(self._launch)

    def _launch(self) -> None:
        self._run(self._groups, self._addresses)


class EmulatedKernel:
    """Code for the host's processor."""

    def __init__(self, context: EmulatedContext, run: Run) -> None:
        self._context, self._run = context, run

    def launch(
        self, stage: Stage, addresses: Sequence[tuple[int, int]], maps: Sequence[bytes]
    ) -> EmulatedLaunch:
        """A launch that is prepared; every pointer lies in memory of the device."""
        if maps:
            raise InternalError("the emulated device has no tensor maps")
        for address, nbytes in addresses:
            self._context.check_range(address, nbytes, "cuLaunchKernelEx")
        return EmulatedLaunch(self._run, stage.groups, addresses)


class EmulatedContext:
    """A device in software that is open.

    Args:
        machine: what it poses as.
        compiler: what makes code of stages; the emulator's own where there is none.

    Attributes:
        machine: what it poses as.
        room: bytes of all its memory.
        held: bytes that are in use.
    """

    elsewhere = False
    """It has nothing that a forked process has not."""

    def __init__(self, machine: Machine, compiler: Compiler | None = None) -> None:
        self.machine = machine
        self.room = machine.memory
        self.held = 0
        self._compiler = compiler
        self._memory: dict[int, Bytes] = {}
        self._fault: tuple[int, str, str] | None = None

    def begin(self) -> None:
        """Nothing has to be started."""

    def fail(self, code: int, name: str, text: str) -> None:
        """Let every call fail from now on, as a driver's do after a fault of a kernel."""
        self._fault = code, name, text

    def check(self, call: str) -> None:
        """Raise where calls fail."""
        if self._fault is not None:
            raise DriverError(call, *self._fault)

    def check_range(self, address: int, nbytes: int, call: str) -> None:
        """Raise where memory is not the device's, all of it."""
        for start, room in self._memory.items():
            if start <= address and address + nbytes <= start + room.nbytes:
                return
        name, text = "CUDA_ERROR_INVALID_VALUE", "invalid argument"
        raise DriverError(f"{call}({address:#x}, {nbytes} bytes)", 1, name, text)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Be the device of the thread's calls meanwhile."""
        self.check("cuCtxPushCurrent")
        yield

    def allocate(self, nbytes: int) -> int:
        """The address of new memory, which holds what nobody should read."""
        call = f"cuMemAlloc({nbytes})"
        self.check(call)
        if self.held + nbytes > self.room:
            raise DriverError(call, MEMORY_ERROR, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
        room = np.full(nbytes + ALIGNMENT, 0xFF, np.uint8)
        room = room[-room.ctypes.data % ALIGNMENT :][:nbytes]
        self._memory[room.ctypes.data] = room
        self.held += nbytes
        return int(room.ctypes.data)

    def free(self, address: int) -> None:
        """Give memory back."""
        self.held -= self._memory.pop(address).nbytes

    def memory(self) -> tuple[int, int]:
        """Bytes that nobody uses, and of all memory."""
        return self.room - self.held, self.room

    def pinned(self, nbytes: int) -> EmulatedPinned:
        """New memory of the process."""
        self.check(f"cuMemHostAlloc({nbytes})")
        return EmulatedPinned(nbytes)

    def stream(self) -> EmulatedStream:
        """A new stream."""
        return EmulatedStream(self)

    def event(self) -> EmulatedEvent:
        """A new event."""
        return EmulatedEvent()

    def assemble(self, stage: Stage) -> bytes:
        """Nothing is worth keeping: code for the host's processor is made in a moment."""
        return b""

    def load(self, stage: Stage, code: bytes) -> EmulatedKernel:
        """The kernel of a stage."""
        self.check(f"cuModuleLoadData({stage.kernel})")
        return EmulatedKernel(self, (self._compiler or _compiler())(stage))

    def tensor_map(self, about: TensorMap, address: int) -> bytes:
        """It has none."""
        raise InternalError("the emulated device has no tensor maps")

    def wait(self) -> None:
        """Nothing is left to do."""
        self.check("cuCtxSynchronize")


def _compiler() -> Compiler:
    """The emulator's own."""
    from .launch import compile

    return compile
