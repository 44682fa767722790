"""Work in order: copies, launches and events of a stream, and graphs of what it recorded."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_float, c_size_t, c_void_p

from ....io.memory import Bytes
from .library import Library
from .structures import DEFAULT_STREAM, NON_BLOCKING, RELAXED


class CudaEvent:
    """A point in the work of a stream."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._handle = library.handle("cuEventCreate", 0)

    @property
    def handle(self) -> c_void_p:
        """What the driver knows it by."""
        return self._handle

    def record(self, stream: CudaStream) -> None:
        """Be the point that a stream's work has now."""
        self._library.call("cuEventRecord", self._handle, stream.handle)

    def wait(self) -> None:
        """Wait until the work before it is done."""
        self._library.call("cuEventSynchronize", self._handle)

    def seconds_since(self, other: CudaEvent) -> float:
        """The time between an earlier event and this one, both of which are over."""
        found = c_float()
        self._library.call("cuEventElapsedTime", byref(found), other.handle, self._handle)
        return found.value * 1e-3

    def close(self) -> None:
        """Free it."""
        self._library.call("cuEventDestroy_v2", self._handle)


class CudaGraph:
    """Work that was recorded, and is started as one."""

    def __init__(self, library: Library, recorded: c_void_p) -> None:
        self._library = library
        try:
            found = c_size_t()
            library.call("cuGraphGetNodes", recorded, None, byref(found))
            self.count = int(found.value)
            self._handle = library.handle("cuGraphInstantiateWithFlags", recorded, 0)
        finally:
            library.call("cuGraphDestroy", recorded)

    def start(self, stream: CudaStream) -> None:
        """Start it on a stream."""
        self._library.call("cuGraphLaunch", self._handle, stream.handle)

    def close(self) -> None:
        """Free it."""
        self._library.call("cuGraphExecDestroy", self._handle)


class CudaStream:
    """Work that is done in order, beside that of other streams."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._handle = library.handle("cuStreamCreate", NON_BLOCKING)
        self._reached: CudaEvent | None = None
        self._default: CudaEvent | None = None

    @property
    def handle(self) -> c_void_p:
        """What the driver knows it by."""
        return self._handle

    def wait(self) -> None:
        """Wait until all that was started is done."""
        self._library.call("cuStreamSynchronize", self._handle)

    def follow(self, other: CudaStream) -> None:
        """Let what is started from now on wait for what was started on another stream so far."""
        self._library.call("cuStreamWaitEvent", self._handle, other.reached().handle, 0)

    def follow_event(self, event: CudaEvent) -> None:
        """Let what is started from now on wait for the point that an event is."""
        self._library.call("cuStreamWaitEvent", self._handle, event.handle, 0)

    def follow_default(self) -> None:
        """Let what is started from now on wait for the stream without a name."""
        if self._default is None:
            self._default = CudaEvent(self._library)
        self._library.call("cuEventRecord", self._default.handle, c_void_p(DEFAULT_STREAM))
        self._library.call("cuStreamWaitEvent", self._handle, self._default.handle, 0)

    def reached(self) -> CudaEvent:
        """The point that its work has now."""
        if self._reached is None:
            self._reached = CudaEvent(self._library)
        self._reached.record(self)
        return self._reached

    def send(self, address: int, data: Bytes) -> None:
        """Copy to the device. What is not pinned may change as soon as this returns."""
        where = data.ctypes.data
        self._library.call("cuMemcpyHtoDAsync_v2", address, where, data.nbytes, self._handle)

    def fetch(self, data: Bytes, address: int) -> None:
        """Copy from the device."""
        where = data.ctypes.data
        self._library.call("cuMemcpyDtoHAsync_v2", where, address, data.nbytes, self._handle)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy on the device."""
        self._library.call("cuMemcpyDtoDAsync_v2", target, source, nbytes, self._handle)

    def zero(self, address: int, nbytes: int) -> None:
        """Fill memory of the device with zeros."""
        self._library.call("cuMemsetD8Async", address, 0, nbytes, self._handle)

    def record(self, work: Callable[[], None]) -> CudaGraph:
        """What a function starts on this stream, which is not started yet."""
        library = self._library
        library.call("cuStreamBeginCapture_v2", self._handle, RELAXED)
        try:
            work()
        except BaseException:
            # Recording ends in any case, and what there is of it is thrown away; the first error is the one to tell.
            recorded = c_void_p()
            library.function("cuStreamEndCapture")(self._handle, byref(recorded))
            if recorded.value:
                library.function("cuGraphDestroy")(recorded)
            raise
        recorded = c_void_p()
        library.call("cuStreamEndCapture", self._handle, byref(recorded))
        return CudaGraph(library, recorded)

    def close(self) -> None:
        """Free it."""
        for event in (self._reached, self._default):
            if event is not None:
                event.close()
        self._library.call("cuStreamDestroy_v2", self._handle)
