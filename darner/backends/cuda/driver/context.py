"""The devices that the driver knows, and one that is open: memory, code, streams."""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

import numpy as np

from ....graph.errors import InternalError
from ....io.memory import Bytes
from ..interface import DriverError
from ..machine import Machine, arch_of
from ..stage import Stage, TensorMap
from .code import CudaKernel, link
from .library import ORIGIN, Library
from .stream import CudaEvent, CudaStream
from .structures import (
    MAP_ALIGNMENT,
    MAP_BYTES,
    MAP_PROMOTIONS,
    MAP_SWIZZLES,
    MAP_TYPES,
    About,
)

NAME_BYTES = 256


def machines(library: Library) -> list[Machine]:
    """The devices of a driver, in the order of their numbers."""
    count = library.number("cuDeviceGetCount")
    return [machine_of(library, number) for number in range(count)]


def machine_of(library: Library, number: int) -> Machine:
    """What is known of a device."""
    device = library.number("cuDeviceGet", number)
    name = ctypes.create_string_buffer(NAME_BYTES)
    library.call("cuDeviceGetName", name, NAME_BYTES, device)
    memory = c_size_t()
    library.call("cuDeviceTotalMem_v2", byref(memory), device)

    def about(which: About) -> int:
        return library.number("cuDeviceGetAttribute", int(which), device)

    capability = about(About.MAJOR), about(About.MINOR)
    return Machine(
        name=name.value.decode("utf-8", "replace"),
        capability=capability,
        arch=arch_of(capability),
        processors=about(About.PROCESSORS),
        memory=memory.value,
        l2=about(About.L2),
        most_shared=about(About.MOST_SHARED),
        driver=library.number("cuDriverGetVersion"),
        threads=about(About.THREADS),
    )


class CudaPinned:
    """Memory of the process that the device reads and writes by itself.

    Attributes:
        data: its bytes.
    """

    def __init__(self, library: Library, nbytes: int) -> None:
        self._library = library
        self._address = library.handle("cuMemHostAlloc", nbytes, 0)
        held = (ctypes.c_ubyte * nbytes).from_address(self._address.value or 0)
        self.data: Bytes = np.ctypeslib.as_array(held)
        self.data[:] = 0

    def close(self) -> None:
        """Free it."""
        self._library.call("cuMemFreeHost", self._address)


class CudaContext:
    """A device that is open: its primary context, which other libraries of the process use too.

    Attributes:
        machine: what it is.
        number: which of the driver's devices.
    """

    def __init__(self, library: Library, number: int) -> None:
        self._library = library
        self.number = number
        self.machine = machine_of(library, number)
        device = library.number("cuDeviceGet", number)
        self._context = library.handle("cuDevicePrimaryCtxRetain", device)

    @property
    def elsewhere(self) -> bool:
        """Whether it was opened in a process that this one was forked from."""
        return ORIGIN.elsewhere

    def begin(self) -> None:
        """Say that it is used here; a ``ForkError`` where it was opened in a process that this one was forked from."""
        ORIGIN.begin()

    def enter(self) -> None:
        """Be the device of the thread's calls from now on."""
        self._library.call("cuCtxPushCurrent_v2", self._context)

    def leave(self) -> None:
        """Be it no longer: what was the device before is it again."""
        popped = c_void_p()
        self._library.function("cuCtxPopCurrent_v2")(byref(popped))

    # ------------------------------------------------------------- memory

    def allocate(self, nbytes: int) -> int:
        """The address of new memory."""
        found = c_uint64()
        self._library.call("cuMemAlloc_v2", byref(found), nbytes)
        return found.value

    def free(self, address: int) -> None:
        """Give memory back, once all work that was started is done."""
        self._library.call("cuMemFree_v2", address)

    def memory(self) -> tuple[int, int]:
        """Bytes that nobody uses, and of all memory."""
        free, total = c_size_t(), c_size_t()
        self._library.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def pinned(self, nbytes: int) -> CudaPinned:
        """New memory of the process."""
        return CudaPinned(self._library, nbytes)

    # ------------------------------------------------------------- work

    def stream(self) -> CudaStream:
        """A new stream."""
        return CudaStream(self._library)

    def event(self) -> CudaEvent:
        """A new event."""
        return CudaEvent(self._library)

    def wait(self) -> None:
        """Wait until all work of the device is done."""
        self._library.call("cuCtxSynchronize")

    # ------------------------------------------------------------- code

    def assemble(self, stage: Stage) -> bytes:
        """The object code of a stage's kernel."""
        from ..code import to_ptx

        return link(self._library, to_ptx(stage.ir, self.machine.arch), stage.kernel)

    def load(self, stage: Stage, code: bytes) -> CudaKernel:
        """The kernel of a stage, from its object code."""
        made = CudaKernel(self._library, stage, code, self.machine.processors)
        finish = weakref.finalize(made, self._unload, made.module)
        finish.atexit = False  # the process ends, and so does its memory
        return made

    def _unload(self, module: c_void_p) -> None:
        """Take code off the device; of a device that is lost it is gone already."""
        if self.elsewhere:
            return
        with contextlib.suppress(DriverError):
            self.enter()
            try:
                self._library.call("cuModuleUnload", module)
            finally:
                self.leave()

    def tensor_map(self, about: TensorMap, address: int) -> bytes:
        """A tensor map as a kernel takes it."""
        where = address + about.offset
        if about.dtype not in MAP_TYPES:
            raise InternalError(f"a tensor map has no elements of {about.dtype}")
        room = (ctypes.c_char * (MAP_BYTES + MAP_ALIGNMENT))()
        start = ctypes.addressof(room)
        start += -start % MAP_ALIGNMENT
        rank = len(about.sizes)
        name = "cuTensorMapEncodeIm2col" if about.lower else "cuTensorMapEncodeTiled"
        corners = c_int * max(1, rank - 2)
        shape = (
            (corners(*about.lower), corners(*about.upper), *about.box)
            if about.lower
            else ((c_uint * rank)(*about.box),)
        )
        steps = (1, *about.steps, 1) if about.lower else (1,) * rank
        arguments = (
            *(start, MAP_TYPES[about.dtype], rank, where),
            (c_uint64 * rank)(*about.sizes),
            (c_uint64 * max(1, rank - 1))(*about.strides),
            *shape,
            (c_uint * rank)(*steps),
            *(0, MAP_SWIZZLES[about.swizzle], MAP_PROMOTIONS[about.promotion]),
            int(about.not_a_number),
        )
        try:
            self._library.call(name, *arguments)
        except DriverError as error:
            call = f"{name}({about} at {where:#x})"
            raise DriverError(call, error.code, error.name, error.text) from None
        return ctypes.string_at(start, MAP_BYTES)
