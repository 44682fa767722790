"""Programs whose memory is the process's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ...graph.data import Array
from ...graph.errors import InternalError
from ...io.memory import Bytes, aligned
from ...lower.plan import Buffer
from .device_array import DeviceArray
from .mirrors import changed


class HostMemory(Protocol):
    """Reading and writing where buffers are arrays of the process."""

    @property
    def arrays(self) -> Sequence[Array]:
        """The values of the plan's buffers."""

    def read(self, buffer: int, out: Array | None = None) -> Array:
        """A buffer's value, as a copy or in ``out``."""
        if out is None:
            return np.array(self.arrays[buffer])
        out[...] = self.arrays[buffer]
        return out

    def on_device(self, buffer: int, *, copy: bool = True) -> DeviceArray | None:
        """It is no device's."""
        return None

    @property
    def on_host(self) -> bool:
        """Always."""
        return True

    @property
    def notes(self) -> Sequence[str]:
        """Nothing: kernels run one after the other."""
        return ()

    def take(self, buffer: int, other: object, output: int) -> None:
        """What is the process's own is bound instead."""
        raise InternalError("programs on the host take outputs of others by bind")

    def write(self, buffer: int, value: Array) -> None:
        """Give a buffer a value of its type and shape."""
        array = self.arrays[buffer]
        array[...] = value
        changed(array)

    def sync(self) -> None:
        """Nothing is left running when ``run`` returns."""
        return


def empty_like(buffer: Buffer, room: Bytes | None = None) -> Array:
    """Memory for a buffer's value, filled with what it is at first: ``room`` of zeros, or its own."""
    shape = tuple(int(size) for size in buffer.type.shape)
    if room is None:
        room = aligned(buffer.nbytes, f"{buffer.place} '{buffer.name}'")
    array = room.view(buffer.type.dtype.numpy).reshape(shape)
    if buffer.init:
        array[...] = buffer.init
    return array
