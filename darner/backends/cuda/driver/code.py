"""PTX to object code, object code to kernels, and launches that are prepared once."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Array, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from math import prod
from typing import Any

from ....graph.errors import InternalError
from ..interface import DriverError
from ..stage import Stage
from .library import Library
from .stream import CudaStream
from .structures import (
    ERROR_LOG,
    ERROR_LOG_BYTES,
    PTX,
    LaunchAttribute,
    LaunchConfig,
    Launching,
    OfKernel,
)

LOG_BYTES = 1 << 14
STATIC_LIMIT = 48 << 10
PORTABLE_CLUSTER = 8


def link(library: Library, ptx: str, name: str) -> bytes:
    """The object code of PTX. It takes tens of milliseconds, in which other threads go on."""
    log = ctypes.create_string_buffer(LOG_BYTES)
    keys = (c_int * 2)(ERROR_LOG, ERROR_LOG_BYTES)
    values = (c_void_p * 2)(ctypes.addressof(log), LOG_BYTES)
    state, data = c_void_p(), ptx.encode() + b"\0"
    library.call("cuLinkCreate_v2", 2, keys, values, byref(state))
    try:
        given: tuple[Any, ...] = (state, PTX, data, len(data), name.encode(), 0, None, None)
        code, size = c_void_p(), c_size_t()
        try:
            library.call("cuLinkAddData_v2", *given)
            library.call("cuLinkComplete", state, byref(code), byref(size))
        except DriverError as error:
            error.log = log.value.decode("utf-8", "replace")
            raise DriverError(
                f"{error.call} of '{name}'", error.code, error.name, error.text, error.log
            ) from None
        return ctypes.string_at(code, size.value)
    finally:
        library.call("cuLinkDestroy", state)


class CudaKernel:
    """Code on the device.

    Args:
        library: the driver.
        stage: what it is the code of.
        code: object code, or PTX that ends with a zero.
        processors: of the device.
    """

    def __init__(self, library: Library, stage: Stage, code: bytes, processors: int) -> None:
        self._library = library
        self._processors = processors
        self.name = stage.kernel
        held = c_char_p(code)  # for the call: the driver copies it
        self.module = library.handle("cuModuleLoadData", ctypes.cast(held, c_void_p))
        self.handle = library.handle("cuModuleGetFunction", self.module, stage.kernel.encode())
        self._asked = 0
        if max(stage.cluster) > PORTABLE_CLUSTER:
            self._set(OfKernel.LARGE_CLUSTERS, 1)

    def launch(
        self, stage: Stage, addresses: Sequence[tuple[int, int]], maps: Sequence[bytes]
    ) -> CudaLaunch:
        """A launch that is prepared: where each of the stage's bindings lies, and its maps."""
        static = self.attribute(OfKernel.STATIC_SHARED)
        if stage.shared > self._asked and stage.shared + static > STATIC_LIMIT:
            self._set(OfKernel.MOST_SHARED, stage.shared)
            self._asked = stage.shared
        made = CudaLaunch(self._library, self, stage, addresses, maps)
        if stage.cooperative:
            self._check_residence(stage, made)
        return made

    def _check_residence(self, stage: Stage, launch: CudaLaunch) -> None:
        """Refuse a launch whose blocks wait for each other and would not all run at once: it would never end."""
        if stage.cluster != (1, 1, 1):
            most = launch.clusters() * prod(stage.cluster)
        else:
            most = self.blocks(stage.threads, stage.shared) * self._processors
        if prod(stage.groups) > most:
            raise InternalError(
                f"{launch} has {prod(stage.groups)} blocks that wait for each other, and the device holds {most} at a time"
            )

    def attribute(self, which: OfKernel) -> int:
        """What the compiler made of it: registers, bytes of local memory, ..."""
        return self._library.number("cuFuncGetAttribute", int(which), self.handle)

    def blocks(self, threads: int, shared: int) -> int:
        """How many blocks a processor holds at a time."""
        name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        return self._library.number(name, self.handle, threads, shared)

    def _set(self, which: OfKernel, value: int) -> None:
        self._library.call("cuFuncSetAttribute", self.handle, int(which), value)


class CudaLaunch:
    """A launch of a kernel that is prepared: arguments, grid and attributes stay where they are in memory."""

    def __init__(
        self,
        library: Library,
        kernel: CudaKernel,
        stage: Stage,
        addresses: Sequence[tuple[int, int]],
        maps: Sequence[bytes],
    ) -> None:
        self._library, self._kernel, self._stage = library, kernel, stage
        self._pointers = (ctypes.c_uint64 * max(1, len(addresses)))(*(at for at, _ in addresses))
        self._maps = [ctypes.create_string_buffer(found, len(found)) for found in maps]
        start = ctypes.addressof(self._pointers)
        where = [start + 8 * number for number in range(len(addresses))]
        where += [ctypes.addressof(found) for found in self._maps]
        self._arguments = (c_void_p * max(1, len(where)))(*where)
        self._attributes = _attributes(stage)
        self._config = LaunchConfig(
            (c_uint * 3)(*stage.groups),
            (c_uint * 3)(stage.threads, 1, 1),
            stage.shared,
            None,
            ctypes.cast(self._attributes, POINTER(LaunchAttribute)),
            len(self._attributes),
        )
        self._launch = library.function("cuLaunchKernelEx")

    def start(self, stream: CudaStream) -> None:
        """Start it on a stream of the same device."""
        self._config.stream = stream.handle
        code = self._launch(byref(self._config), self._kernel.handle, self._arguments, None)
        if code:
            self._library.fail("cuLaunchKernelEx", code, (str(self),))

    def clusters(self) -> int:
        """How many of its clusters the device holds at a time."""
        name = "cuOccupancyMaxActiveClusters"
        return self._library.number(name, self._kernel.handle, byref(self._config))

    def __str__(self) -> str:
        stage = self._stage
        told = f"{self._kernel.name}: grid {stage.groups}, {stage.threads} threads"
        told += f", {stage.shared} bytes of shared memory" if stage.shared else ""
        told += f", clusters of {stage.cluster}" if stage.cluster != (1, 1, 1) else ""
        pointers = ", ".join(
            f"{binding.what} {binding.number} at {address:#x}"
            for binding, address in zip(stage.bindings, self._pointers, strict=False)
        )
        return f"{told}; {pointers}; {len(self._maps)} tensor maps"


def _attributes(stage: Stage) -> Array[LaunchAttribute]:
    found = []
    if stage.cluster != (1, 1, 1):
        found.append(_attribute(Launching.CLUSTER, *stage.cluster))
    if stage.cooperative:
        # Its blocks have the card to themselves: it does not start before the launch ahead has ended.
        found.append(_attribute(Launching.COOPERATIVE, 1))
    elif stage.early:
        found.append(_attribute(Launching.EARLY, 1))
    return (LaunchAttribute * len(found))(*found)


def _attribute(which: Launching, *values: int) -> LaunchAttribute:
    made = LaunchAttribute(number=int(which))
    for place, value in enumerate(values):
        made.values[place] = value
    return made
