"""What a program needs of a device: the driver's objects and the emulator's are alike in this.

Whatever goes wrong raises a ``DriverError``; ``Device.guard`` makes of it what users read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

from ...io.memory import Bytes
from .machine import Machine
from .stage import Stage, TensorMap

MEMORY_ERROR = 2
"""CUDA's number for too little memory."""
LOST = {
    46: "it is busy or unavailable",
    214: "its memory had an error that could not be corrected",
    220: "a link to another device had an error that could not be corrected",
    700: "a kernel read or wrote outside of memory",
    702: "a kernel ran for longer than the display allows",
    709: "its context was destroyed",
    710: "a kernel's assertion failed",
    714: "a kernel's stack had an error",
    715: "a kernel had an instruction that the device does not know, or trapped",
    716: "a kernel read or wrote at an address that is not aligned",
    717: "a kernel used an address of another kind of memory",
    718: "a kernel jumped out of its code",
    719: "a kernel failed",
    721: "the device ended its work because of an error of another",
    999: "its driver does not say why",
}
"""Errors after which every call of the process fails, by CUDA's numbers, and what happened."""


class DriverError(Exception):
    """A call of the driver failed.

    Attributes:
        call: which, with its arguments.
        code: CUDA's number for what happened.
        name: CUDA's name for it.
        text: CUDA's words.
    """

    def __init__(self, call: str, code: int, name: str, text: str, log: str = "") -> None:
        self.call, self.code, self.name, self.text, self.log = call, code, name, text, log
        super().__init__(str(self))

    def __str__(self) -> str:
        told = f"{self.call} failed: {self.name} ({self.code}): {self.text}"
        return f"{told}\n{self.log}" if self.log else told


class Kernel(Protocol):
    """Code on the device."""

    def launch(
        self, stage: Stage, addresses: Sequence[tuple[int, int]], maps: Sequence[bytes]
    ) -> Launch:
        """A launch that is prepared: for each of the stage's bindings where it lies and how many bytes it has, and its maps."""
        ...


class Launch(Protocol):
    """A launch of a kernel that is prepared: it is started as often as one likes."""

    def start(self, stream: Any) -> None:
        """Start it on a stream of the same device."""
        ...


class Event(Protocol):
    """A point in the work of a stream."""

    def record(self, stream: Any) -> None:
        """Be the point that a stream's work has now."""
        ...

    def wait(self) -> None:
        """Wait until the work before it is done."""
        ...

    def seconds_since(self, other: Any) -> float:
        """The time between an earlier event and this one, both of which are over."""
        ...

    def close(self) -> None:
        """Free it."""
        ...


class Recording(Protocol):
    """Work that was recorded, and is started as one."""

    @property
    def count(self) -> int:
        """How many launches and copies it has."""
        ...

    def start(self, stream: Any) -> None:
        """Start it on a stream."""
        ...

    def close(self) -> None:
        """Free it."""
        ...


class Stream(Protocol):
    """Work that is done in order, beside that of other streams."""

    def wait(self) -> None:
        """Wait until all that was started is done."""
        ...

    def follow(self, other: Self) -> None:
        """Let what is started from now on wait for what was started on another stream so far."""
        ...

    def follow_event(self, event: Any) -> None:
        """Let what is started from now on wait for the point that an event is."""
        ...

    def follow_default(self) -> None:
        """Let what is started from now on wait for the stream without a name."""
        ...

    def send(self, address: int, data: Bytes) -> None:
        """Copy to the device. What is not pinned may change as soon as this returns."""
        ...

    def fetch(self, data: Bytes, address: int) -> None:
        """Copy from the device."""
        ...

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy on the device."""
        ...

    def zero(self, address: int, nbytes: int) -> None:
        """Fill memory of the device with zeros."""
        ...

    def record(self, work: Callable[[], None]) -> Recording:
        """What a function starts on this stream, which is not started yet."""
        ...

    def close(self) -> None:
        """Free it."""
        ...


class Pinned(Protocol):
    """Memory of the process that the device reads and writes by itself.

    Attributes:
        data: its bytes.
    """

    data: Bytes

    def close(self) -> None:
        """Free it."""
        ...


class Context(Protocol):
    """A device that is open.

    Attributes:
        machine: what it is.
        number: which of the driver's devices.
    """

    machine: Machine
    number: int

    @property
    def elsewhere(self) -> bool:
        """Whether it was opened in a process that this one was forked from."""
        ...

    def begin(self) -> None:
        """Say that it is used here; a ``ForkError`` where it was opened in a process that this one was forked from."""
        ...

    def enter(self) -> None:
        """Be the device of the thread's calls from now on."""
        ...

    def leave(self) -> None:
        """Be it no longer: what was the device before is it again."""
        ...

    def allocate(self, nbytes: int) -> int:
        """The address of new memory."""
        ...

    def free(self, address: int) -> None:
        """Give memory back, once all work that was started is done."""
        ...

    def memory(self) -> tuple[int, int]:
        """Bytes that nobody uses, and of all memory."""
        ...

    def pinned(self, nbytes: int) -> Pinned:
        """New memory of the process."""
        ...

    def stream(self) -> Stream:
        """A new stream."""
        ...

    def event(self) -> Event:
        """A new event."""
        ...

    def assemble(self, stage: Stage) -> bytes:
        """The object code of a stage's kernel: what takes long, and is worth keeping; nothing where that is of no use."""
        ...

    def load(self, stage: Stage, code: bytes) -> Kernel:
        """The kernel of a stage, from its object code."""
        ...

    def tensor_map(self, about: TensorMap, address: int) -> bytes:
        """A tensor map as a kernel takes it."""
        ...

    def wait(self) -> None:
        """Wait until all work of the device is done."""
        ...
