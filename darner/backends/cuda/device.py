"""An NVIDIA GPU that is open: memory, copies, kernels that are loaded once, and who waits for whom. One for each device of the process."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from ...codegen.simt.dispatch import Binding
from ...graph.data import Array
from ...graph.errors import (
    DeviceLostError,
    DeviceMemoryError,
    InternalError,
    UnsupportedError,
)
from ...graph.integers import round_up
from ...io.memory import Bytes, format_size
from ..base.cache import ObjectCache
from ..base.keys import source_digest
from ..base.readback import Region
from .interface import LOST, MEMORY_ERROR, Context, DriverError, Kernel, Launch, Pinned
from .machine import ALIGNMENT
from .stage import Stage

KEPT_KERNELS = 4096
LEAST = 16
"""Bytes of the widest load."""
OLD_DRIVER = (222, 500)
"""CUDA's numbers for code or a function that the driver is too old for."""
WORKERS = 16
HINT = "a smaller batch, remat, a type of fewer bits such as bf16, or fewer sessions at a time"


class Closed(Protocol):
    """What the driver has to be told of when it is no longer needed."""

    def close(self) -> None:
        """Free it."""
        ...


class Allocation:
    """Memory of a device, which is given back when nobody refers to it.

    Attributes:
        address: where it begins.
        nbytes: how many bytes it has.
        queues: whose work reads or writes it.
        give_back: gives it back before.
    """

    __slots__ = ("__weakref__", "address", "give_back", "nbytes", "queues")

    def __init__(self, address: int, nbytes: int, free: Callable[[int, int], None]) -> None:
        self.address = address
        self.nbytes = nbytes
        self.queues: weakref.WeakSet[Queue] = weakref.WeakSet()
        self.give_back = weakref.finalize(self, free, address, nbytes)
        self.give_back.atexit = False  # the process ends, and so does its memory


def address_of(region: Region) -> int:
    """Where a region begins."""
    found: int = region.buffer.address + region.offset
    return found


def launch_of(
    device: Device, kernel: Kernel, stage: Stage, region: Callable[[Binding], Region]
) -> Launch:
    """A launch of a kernel that is prepared, with the memory of its bindings."""
    maps = [
        device.context.tensor_map(about, address_of(region(about.binding))) for about in stage.maps
    ]
    regions = [region(binding) for binding in stage.bindings]
    return kernel.launch(stage, [(address_of(one), _bound(one)) for one in regions], maps)


def _bound(region: Region) -> int:
    """Bytes that a kernel may read of a region: whole vectors, and of what is empty an item."""
    return max(LEAST, round_up(region.nbytes, LEAST))


class Queue:
    """A stream of a device, and the memory that its work has in common with that of others: for these it waits.

    Attributes:
        stream: where its work is started.
        started: how many times work was started.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        with device.guard:
            self.stream = device.context.stream()
        device.closed_with(self, self.stream)
        self.started = 0
        self._waited = 0
        self._memory: weakref.WeakSet[Allocation] = weakref.WeakSet()
        self._neighbours: list[weakref.ref[Queue]] = []
        self._version = -1
        self._seen: dict[int, int] = {}

    def uses(self, region: Region) -> None:
        """Say that its work reads or writes some memory."""
        with self._device.lock:
            region.buffer.queues.add(self)
            self._memory.add(region.buffer)
            self._device.sharing += 1

    def follow_neighbours(self) -> None:
        """Let what is started from now on wait for what others have started on the same memory. Whoever starts work calls this first, and adds to ``started`` after."""
        if self._version != self._device.sharing:
            self._find_neighbours()
        for ref in self._neighbours:
            other = ref()
            if other is not None and self._seen.get(id(other)) != other.started:
                self._seen[id(other)] = other.started
                self.stream.follow(other.stream)

    def wait(self) -> None:
        """Wait until all that was started is done."""
        if self._waited != self.started:
            started = self.started
            with self._device.guard:
                self.stream.wait()
            self._waited = started
        else:
            self._device.check()

    def _find_neighbours(self) -> None:
        with self._device.lock:
            self._version = self._device.sharing
            found = {queue for memory in self._memory for queue in memory.queues}
        found.discard(self)
        self._neighbours = [weakref.ref(queue) for queue in found]
        self._seen = {id(queue): n for queue in found if (n := self._seen.get(id(queue)))}


class Guard:
    """Around every call of the driver: the device is the thread's meanwhile, and errors are darner's own."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __enter__(self) -> None:
        self._device.check()
        try:
            self._device.context.enter()
        except DriverError as error:
            raise self._device.translated(error) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        try:
            if isinstance(error, DriverError):
                raise self._device.translated(error) from error
        finally:
            self._device.context.leave()


class Device:
    """An NVIDIA GPU that is open.

    Args:
        context: the driver's, or the emulator's.

    Attributes:
        context: the driver's, or the emulator's.
        machine: what it is.
        lost: why it can no longer be used, once that is known.
        guard: around every call of the driver: ``with device.guard``.
        lock: who changes what programs share holds it.
        sharing: another number whenever memory is used by one queue more.
        bytes_held: bytes of all memory that was made here and not given back.
        careful: whether every launch is waited for, so that errors name the kernel that failed.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.machine = context.machine
        self.lost = ""
        self.guard = Guard(self)
        self.lock = threading.RLock()
        self.sharing = 0
        self.bytes_held = 0
        self.careful = False
        self._kernels: OrderedDict[str, tuple[Kernel, bytes]] = OrderedDict()
        self.transfers = Queue(self)
        self._room: Pinned | None = None

    # ------------------------------------------------------------- errors

    def check(self) -> None:
        """Raise if the device was lost, or is that of another process."""
        self.context.begin()
        if self.lost:
            raise DeviceLostError(
                f"the GPU '{self.machine.name}' was lost: {self.lost}",
                hint="CUDA works again in a new process only: build the session there and load the last checkpoint",
            )

    def lose(self, reason: str) -> None:
        """Let the device count as lost from now on."""
        self.lost = reason

    def translated(self, error: DriverError, what: str = "") -> Exception:
        """What a user reads of an error of the driver."""
        if error.code in LOST:
            self.lost = self.lost or f"{LOST[error.code]} ({error})"
            try:
                self.check()
            except DeviceLostError as lost:
                return lost
        if error.code == MEMORY_ERROR:
            return self._memory_error(error, what)
        if error.code in OLD_DRIVER:
            return UnsupportedError(
                f"the driver of '{self.machine.name}' cannot do this: {error}",
                hint="install a newer driver: 545 (CUDA 12.3) is the first that will do",
            )
        return InternalError(f"the GPU '{self.machine.name}': {error}")

    def _memory_error(self, error: DriverError, what: str) -> DeviceMemoryError:
        wanted = f" for {what}" if what else f" ({error.call})"
        used = f"{format_size(self.bytes_held)} are in use here"
        with contextlib.suppress(DriverError):
            free, total = self.context.memory()
            used += f", {format_size(total - free)} of {format_size(total)} in all"
        return DeviceMemoryError(
            f"the GPU '{self.machine.name}' has no memory left{wanted}: {used}", hint=HINT
        )

    # ------------------------------------------------------------- memory

    def region(self, nbytes: int, what: str = "a value") -> Region:
        """New memory, zeroed; errors say ``what`` it is for."""
        size = max(ALIGNMENT, round_up(nbytes, ALIGNMENT))
        with self.guard:
            try:
                address = self.context.allocate(size)
            except DriverError as error:
                raise self.translated(error, f"{format_size(size)}, {what}") from error
            made = Allocation(address, size, self._free)
            with self.lock:
                self.bytes_held += size
            made.queues.add(self.transfers)
            self.transfers.stream.zero(address, size)
            self.transfers.started += 1
        return Region(made, 0, nbytes)

    def _free(self, address: int, nbytes: int) -> None:
        """Give memory back; a forked process has none of it, and of a device that is lost it is gone."""
        with self.lock:
            self.bytes_held -= nbytes
        self._quietly(lambda: self.context.free(address))

    def give_back(self, region: Region) -> None:
        """Free the whole memory that a region is in."""
        region.buffer.give_back()

    def closed_with(self, owner: object, made: Closed) -> Callable[[], object]:
        """Have a stream, an event, a graph or pinned memory closed when its owner is gone; or before, by calling what is returned."""
        finish = weakref.finalize(owner, self._close, made)
        finish.atexit = False  # the process ends, and so does its memory
        return finish

    def _close(self, made: Closed) -> None:
        self._quietly(made.close)

    def _quietly(self, free: Callable[[], None]) -> None:
        """Free something, whatever became of the device: of one that is lost, or another process's, it is gone."""
        if self.context.elsewhere or self.lost:
            return
        with contextlib.suppress(DriverError):
            self.context.enter()
            try:
                free()
            finally:
                self.context.leave()

    def write(self, region: Region, array: Array) -> None:
        """Copy an array to the device; it may change as soon as this returns."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if data.nbytes:
            with self.guard, self._transfer(region):
                self.transfers.stream.send(address_of(region), data)

    def read(self, region: Region) -> Bytes:
        """Bytes of the device, once all that was started on them is done."""
        found = np.empty(region.nbytes, np.uint8)
        with self.guard:
            with self._transfer(region):
                if region.nbytes:
                    self.transfers.stream.fetch(found, address_of(region))
            self.transfers.stream.wait()
        return found

    @contextmanager
    def _transfer(self, region: Region) -> Iterator[None]:
        """Copy inside: after what was started on this memory, and before what is started on it later."""
        with self.lock:
            for queue in list(region.buffer.queues):
                if queue is not self.transfers:
                    self.transfers.stream.follow(queue.stream)
            yield
            self.transfers.started += 1

    def copy_foreign(self, region: Region, address: int) -> None:
        """Copy what another library has at an address, and wait until that is done: its memory may go."""
        with self.guard:
            with self._transfer(region):
                self.transfers.stream.follow_default()
                self.transfers.stream.copy(address_of(region), address, region.nbytes)
            self.transfers.stream.wait()

    def pinned(self, nbytes: int, what: str) -> Pinned:
        """Memory of the process that copies go through without being waited for; to be closed by ``closed_with``."""
        with self.guard:
            try:
                return self.context.pinned(max(1, nbytes))
            except DriverError as error:
                raise self.translated(
                    error, f"{format_size(nbytes)} that the process has pinned, {what}"
                ) from error

    def wait(self) -> None:
        """Wait until all that was started is done."""
        with self.guard:
            self.context.wait()

    # ------------------------------------------------------------- code

    def kernels(
        self,
        stages: Iterable[Stage],
        cache: ObjectCache | None = None,
        codes: Mapping[str, bytes] | None = None,
    ) -> dict[str, tuple[Kernel, bytes]]:
        """The kernels of stages with their object code, by digest: loaded, and compiled side by side where they are new.

        Args:
            stages: of one program.
            cache: where object code is kept.
            codes: object code that is known.
        """
        wanted = {stage.digest: stage for stage in stages}
        missing = [stage for digest, stage in wanted.items() if digest not in self._kernels]
        workers = min(len(missing), os.cpu_count() or 1, WORKERS)

        def made(stage: Stage) -> tuple[Kernel, bytes]:
            with self.guard:
                code = (codes or {}).get(stage.digest)
                code = self._code(stage, cache) if code is None else code
                return self.context.load(stage, code), code

        if workers > 1:
            with ThreadPoolExecutor(workers) as pool:
                built = list(pool.map(made, missing))
        else:
            built = [made(stage) for stage in missing]
        with self.lock:
            for stage, kernel in zip(missing, built, strict=True):
                self._kernels.setdefault(stage.digest, kernel)
            found = {}
            for digest in wanted:
                self._kernels.move_to_end(digest)
                found[digest] = self._kernels[digest]
            while len(self._kernels) > KEPT_KERNELS:
                self._kernels.popitem(last=False)
        return found

    def _code(self, stage: Stage, cache: ObjectCache | None) -> bytes:
        if cache is None:
            return self.context.assemble(stage)
        key = code_key(stage, self.machine.key())
        found = cache.get(key)
        if found is None:
            found = self.context.assemble(stage)
            if found:
                cache.put(key, found)
        return found


def code_key(stage: Stage, machine: str) -> str:
    """The name under which object code is kept: of its source, of what compiles it, and of the GPU with its driver."""
    import llvmlite

    about = f"cuda {source_digest()} {llvmlite.__version__} {machine} {stage.digest}"
    return hashlib.sha256(about.encode()).hexdigest()
