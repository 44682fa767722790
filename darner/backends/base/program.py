"""A plan, compiled, with memory for its values: what a session asks of it whatever the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...graph.data import Array
from ...io.memory import Bytes
from ...lower.plan import Plan
from .device_array import DeviceArray


class Program(Protocol):
    """A plan, compiled, with memory for its values.

    Attributes:
        plan: what it runs.
        arena: the memory of what a run makes on the way.
        storage: the memory of parameters and states by name; programs may share it.
    """

    plan: Plan
    arena: Bytes
    storage: dict[str, Array]

    @property
    def arrays(self) -> Sequence[Array]:
        """The values of the plan's buffers: their memory, or copies where it is a device's."""

    @property
    def threads(self) -> int:
        """How many threads run it."""

    @property
    def saved(self) -> bytes:
        """What lets an equal program be made without compiling anything, in another process too."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory besides parameters and states."""

    def read(self, buffer: int, out: Array | None = None) -> Array:
        """A buffer's value, as a copy or in ``out``."""

    def write(self, buffer: int, value: Array) -> None:
        """Give a buffer a value of its type and shape."""

    def bind(self, buffer: int, array: Any) -> None:
        """Let an input be read from the caller's own memory, or from the program's own again (None); from a ``DeviceArray`` where its backend gave that."""

    def on_device(self, buffer: int, *, copy: bool = True) -> DeviceArray | None:
        """A buffer's value on the device, once it is there: a copy of it, or the program's own memory; None where other libraries cannot read that."""

    @property
    def on_host(self) -> bool:
        """Whether its memory is the process's own."""

    @property
    def notes(self) -> Sequence[str]:
        """What a report says of how the plan is run, where that is not kernel by kernel or might have been otherwise."""

    def take(self, buffer: int, other: Any, output: int) -> None:
        """Let an input be the output of another program on the same device, where it lies; not for programs on the host."""

    def prepare(self, buffer: int | None = None) -> None:
        """Make ready what changes seldom, or one buffer of it, as it is now: before the first step, and after every change."""

    @property
    def reads(self) -> frozenset[int]:
        """The buffers that a step reads or changes themselves, and not only what ``prepare`` made of them."""

    def recovery(self, buffer: int) -> Callable[[], Array] | None:
        """What gives the value that a buffer had when it was prepared, if that can be read from what was made of it."""

    def run(
        self, first: int = 0, last: int | None = None, times: npt.NDArray[np.int64] | None = None
    ) -> None:
        """Start all kernels, or some. Without ``last`` updated leaves take their new values at the end."""

    def sync(self) -> None:
        """Wait until what was started is done."""

    def close(self) -> None:
        """Free threads, code and memory."""
