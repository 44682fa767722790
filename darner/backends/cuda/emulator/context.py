"""The emulated device: memory of the process, work that is done as late as it may be, and faults as the driver would have them."""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

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
    """A point in the work of a stream, and the time when it was reached."""

    def __init__(self) -> None:
        self._time = 0
        self._stream: EmulatedStream | None = None
        self._place = 0
        self.recorded: Point | None = None

    def record(self, stream: EmulatedStream) -> None:
        """Be the point that a stream's work has now."""
        stream.add(self._note, "cuEventRecord")
        recorded = stream.recorded
        self.recorded = None if recorded is None else recorded.point(stream)
        self._stream, self._place = stream, stream.count

    def _note(self) -> None:
        self._time = time.monotonic_ns()

    def wait(self) -> None:
        """Wait until the work before it is done."""
        if self._stream is not None:
            self._stream.work_off(self._place)

    def seconds_since(self, other: EmulatedEvent) -> float:
        """The time between an earlier event and this one."""
        return (self._time - other._time) * 1e-9

    def close(self) -> None:
        """Free it."""


class Point(NamedTuple):
    """A point in what some streams are told: so much of the work of one of them."""

    recorded: Recorded
    lane: int
    until: int


class Recorded:
    """What some streams are told while one of them records: the work of each in order, the recording one's first."""

    def __init__(self) -> None:
        self._streams: list[EmulatedStream] = []
        self.work: list[list[Callable[[], None]]] = []
        self._done: list[int] = []

    def lane(self, stream: EmulatedStream) -> int:
        """The number of a stream, which records from now on."""
        if stream not in self._streams:
            self._streams.append(stream)
            self.work.append([])
            stream.recorded = self
        return self._streams.index(stream)

    def point(self, stream: EmulatedStream) -> Point:
        """The point that a stream's work has now."""
        lane = self.lane(stream)
        return Point(self, lane, len(self.work[lane]))

    def follow(self, stream: EmulatedStream, point: Point) -> None:
        """Let a stream wait for a point of another one."""
        self.work[self.lane(stream)].append(lambda: self.work_off(point.lane, point.until))

    def work_off(self, lane: int, until: int) -> None:
        """Do a stream's work up to a number."""
        while self._done[lane] < until:
            self._done[lane] += 1
            self.work[lane][self._done[lane] - 1]()

    def begin(self) -> None:
        """Nothing is done yet."""
        self._done = [0] * len(self.work)

    def end(self) -> None:
        """No stream records any more."""
        for stream in self._streams:
            stream.recorded = None


class EmulatedGraph:
    """Work that was recorded, and is started as one."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded

    @property
    def count(self) -> int:
        """How many launches and copies it has."""
        return sum(map(len, self._recorded.work))

    def start(self, stream: EmulatedStream) -> None:
        """Start it on a stream; what nobody waits for is never done."""
        stream.add(self._recorded.begin, "cuGraphLaunch")
        for number in range(len(self._recorded.work[0])):
            stream.add(partial(self._recorded.work_off, 0, number + 1), "cuGraphLaunch")

    def close(self) -> None:
        """Free it."""
        self._recorded = Recorded()
        self._recorded.work.append([])


class EmulatedStream:
    """Work that is done in order, and as late as it may be: when somebody waits for it. So whoever forgets to wait gets what was there before.

    Attributes:
        count: how much work was started.
    """

    def __init__(self, context: EmulatedContext) -> None:
        self._context = context
        self.recorded: Recorded | None = None
        self._waiting: deque[Callable[[], None]] = deque()
        self.count = 0

    def add(self, work: Callable[[], None], call: str) -> None:
        """Have something done later, or keep it where the stream records."""
        self._context.check(call)
        if self.recorded is not None:
            self.recorded.work[self.recorded.lane(self)].append(work)
            return
        with self._context.lock:
            self._waiting.append(work)
            self.count += 1

    def work_off(self, until: int) -> None:
        """Do what was started up to a number."""
        with self._context.lock:
            while self._waiting and self.count - len(self._waiting) < until:
                self._waiting.popleft()()

    def wait(self) -> None:
        """Wait until all that was started is done."""
        self._context.check("cuStreamSynchronize")
        self.work_off(self.count)

    def follow(self, other: EmulatedStream) -> None:
        """Let what is started from now on wait for what was started on another stream so far."""
        recorded = self.recorded or other.recorded
        if recorded is not None:
            recorded.follow(self, recorded.point(other))
            return
        until = other.count
        self.add(lambda: other.work_off(until), "cuStreamWaitEvent")

    def follow_event(self, event: EmulatedEvent) -> None:
        """Let what is started from now on wait for the point that an event is."""
        if event.recorded is not None:
            event.recorded.recorded.follow(self, event.recorded)
        else:
            self.add(event.wait, "cuStreamWaitEvent")

    def follow_default(self) -> None:
        """Nobody else works on it."""

    def send(self, address: int, data: Bytes) -> None:
        """Copy to the device. What is not pinned may change as soon as this returns."""
        given = data if self._context.is_pinned(data) else data.copy()
        self._context.check_range(address, data.nbytes, "cuMemcpyHtoDAsync")

        def copy() -> None:
            ctypes.memmove(address, given.ctypes.data, given.nbytes)

        self.add(copy, "cuMemcpyHtoDAsync")

    def fetch(self, data: Bytes, address: int) -> None:
        """Copy from the device; into memory that is not pinned at once."""
        self._context.check_range(address, data.nbytes, "cuMemcpyDtoHAsync")

        def copy() -> None:
            ctypes.memmove(data.ctypes.data, address, data.nbytes)

        self.add(copy, "cuMemcpyDtoHAsync")
        if not self._context.is_pinned(data):
            self.work_off(self.count)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy on the device."""
        for address in (target, source):
            self._context.check_range(address, nbytes, "cuMemcpyDtoDAsync")

        def copy() -> None:
            ctypes.memmove(target, source, nbytes)

        self.add(copy, "cuMemcpyDtoDAsync")

    def zero(self, address: int, nbytes: int) -> None:
        """Fill memory of the device with zeros."""
        self._context.check_range(address, nbytes, "cuMemsetD8Async")

        def clear() -> None:
            ctypes.memset(address, 0, nbytes)

        self.add(clear, "cuMemsetD8Async")

    def record(self, work: Callable[[], None]) -> EmulatedGraph:
        """What a function starts on this stream, which is not started yet."""
        recorded = Recorded()
        recorded.lane(self)
        try:
            work()
            return EmulatedGraph(recorded)
        finally:
            recorded.end()

    def close(self) -> None:
        """Free it; its work is done all the same."""
        self.work_off(self.count)


class EmulatedPinned:
    """Memory of the process.

    Attributes:
        data: its bytes.
    """

    def __init__(self, context: EmulatedContext, nbytes: int) -> None:
        self._context = context
        self.data: Bytes = np.zeros(nbytes, np.uint8)
        context.pinned_rooms[self.data.ctypes.data] = nbytes

    def close(self) -> None:
        """Free it."""
        del self._context.pinned_rooms[self.data.ctypes.data]


class EmulatedLaunch:
    """A launch of a kernel that is prepared."""

    def __init__(self, run: Run, groups: Grid, addresses: Sequence[tuple[int, int]]) -> None:
        self._run, self._groups, self._addresses = run, groups, tuple(addresses)

    def start(self, stream: EmulatedStream) -> None:
        """Start it on a stream."""
        stream.add(self._launch, "cuLaunchKernelEx")

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
        lock: who does or starts work holds it.
        pinned_rooms: pinned memory: where it begins, and its bytes.
    """

    number = 0
    elsewhere = False
    """It has nothing that a forked process has not."""

    def __init__(self, machine: Machine, compiler: Compiler | None = None) -> None:
        self.machine = machine
        self.room = machine.memory
        self.held = 0
        self.lock = threading.RLock()
        self.pinned_rooms: dict[int, int] = {}
        self._streams: weakref.WeakSet[EmulatedStream] = weakref.WeakSet()
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
        for start, room in list(self._memory.items()):
            if start <= address and address + nbytes <= start + room.nbytes:
                return
        name, text = "CUDA_ERROR_INVALID_VALUE", "invalid argument"
        raise DriverError(f"{call}({address:#x}, {nbytes} bytes)", 1, name, text)

    def enter(self) -> None:
        """Be the device of the thread's calls from now on."""
        self.check("cuCtxPushCurrent")

    def leave(self) -> None:
        """Be it no longer."""

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

    def is_pinned(self, data: Bytes) -> bool:
        """Whether an array lies in pinned memory."""
        where, rooms = data.ctypes.data, list(self.pinned_rooms.items())
        return any(start <= where < start + nbytes for start, nbytes in rooms)

    def free(self, address: int) -> None:
        """Give memory back, once all work that was started is done."""
        self.wait()
        self.held -= self._memory.pop(address).nbytes

    def memory(self) -> tuple[int, int]:
        """Bytes that nobody uses, and of all memory."""
        return self.room - self.held, self.room

    def pinned(self, nbytes: int) -> EmulatedPinned:
        """New memory of the process."""
        self.check(f"cuMemHostAlloc({nbytes})")
        return EmulatedPinned(self, nbytes)

    def stream(self) -> EmulatedStream:
        """A new stream."""
        made = EmulatedStream(self)
        self._streams.add(made)
        return made

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
        """Wait until all work of the device is done."""
        self.check("cuCtxSynchronize")
        for stream in list(self._streams):
            stream.wait()


def _compiler() -> Compiler:
    """The emulator's own."""
    from .launch import compile

    return compile
