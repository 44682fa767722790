"""A GPU that is open: buffers, pipelines, transfers. One for each adapter of the process."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...codegen.simt.machine import GRANULE
from ...graph.data import Array
from ...graph.errors import (
    ArgumentError,
    DarnerError,
    DeviceLostError,
    DeviceMemoryError,
    optional,
)
from ...graph.forks import Origin, watch
from ...graph.integers import round_up
from ..base.readback import Region
from .machine import ASKED, LIMITS, Machine
from .native import losses, notice_losses, unchecked_module, vulkan_only, wait
from .stage import Stage

KEPT_PIPELINES = 4096
LEAST = 32
"""Bytes of the smallest range that a shader has bound."""


def bound_bytes(region: Region) -> int:
    """Bytes that a shader sees of a region: whole words, and at least one item of the widest kind."""
    return max(LEAST, round_up(region.nbytes, 4))


DRIVER = Origin("the driver of the GPU")
"""A driver's threads, memory and queues are those of the process that opened it."""
_lock = threading.RLock()
_adapters: list[Any] | None = None
_open: dict[int, Device] = {}


class _Locked:
    """The lock above, which another thread may have when a process is forked."""

    def after_fork(self) -> None:
        global _lock
        _lock = threading.RLock()


_LOCKED = _Locked()
watch(_LOCKED)


def _wgpu() -> Any:
    return optional("wgpu", "gpu", "a GPU")


@contextmanager
def _runtime_folder() -> Iterator[None]:
    """Without this variable some drivers, looking for a display, write an error to the terminal each time they are asked."""
    if "XDG_RUNTIME_DIR" in os.environ:
        yield
        return
    os.environ["XDG_RUNTIME_DIR"] = tempfile.gettempdir()
    try:
        yield
    finally:
        del os.environ["XDG_RUNTIME_DIR"]


def adapters() -> list[Any]:
    """The adapters of this machine, real ones first; found once."""
    global _adapters
    with _lock:
        if _adapters is None:
            DRIVER.begin()
            wgpu = _wgpu()
            notice_losses()
            vulkan_only()
            with _runtime_folder():
                found = wgpu.gpu.enumerate_adapters_sync()
            order = {"DiscreteGPU": 0, "IntegratedGPU": 1, "Unknown": 2, "CPU": 3}
            _adapters = sorted(found, key=lambda one: order.get(one.info["adapter_type"], 2))
        return list(_adapters)


def machine_of(adapter: Any) -> Machine:
    """What is known of an adapter."""
    info, limits = adapter.info, adapter.limits
    return Machine(
        name=str(info["device"]),
        kind=str(info["adapter_type"]),
        api=str(info["backend_type"]),
        driver=str(info["description"]),
        features=frozenset(name for name in ASKED if name in adapter.features),
        limits={name: int(limits[name]) for name in LIMITS if name in limits},
        subgroups=(int(info["stackgroup_min_size"]), int(info["stackgroup_max_size"])),
    )


def machines() -> list[Machine]:
    """The GPUs of this machine, in the order of their numbers."""
    return [machine_of(adapter) for adapter in adapters()]


def find(name: str) -> int:
    """The number of the GPU that ``gpu``, ``gpu:1`` or ``gpu:some name`` means."""
    found = machines()
    if not found:
        raise ArgumentError(
            "there is no GPU that Vulkan, Metal or DX12 knows",
            hint="install a driver (for NVIDIA, AMD and Intel it brings Vulkan; mesa-vulkan-drivers runs on the CPU), or use device='cpu'",
        )
    wanted = name.partition(":")[2]
    if not wanted:
        return 0
    count = "1 GPU" if len(found) == 1 else f"{len(found)} GPUs"
    listed = "; ".join(f"gpu:{i} is {machine.name}" for i, machine in enumerate(found))
    if wanted.isdecimal():
        if int(wanted) >= len(found):
            raise ArgumentError(
                f"there is no GPU {wanted}: this machine has {count}", hint=f"{listed}"
            )
        return int(wanted)
    fits = [i for i, machine in enumerate(found) if wanted.lower() in machine.name.lower()]
    if not fits:
        raise ArgumentError(
            f"no GPU is called '{wanted}': this machine has {count}", hint=f"{listed}"
        )
    return fits[0]


def opened(name: str = "gpu") -> Device:
    """The GPU of that name, opened where it is not yet."""
    with _lock:
        number = find(name)
        DRIVER.begin()
        device = _open.get(number)
        if device is not None:
            device.look()
            if not device.lost:
                return device
            _forget_adapters()
            number = find(name)
        device = _open[number] = Device(adapters()[number])
        if not device.machine.software:
            from .rates import measured_rates

            found = measured_rates(device).processors
            device.machine = replace(device.machine, processors=found)
        return device


def _forget_adapters() -> None:
    """What was known of the machine's adapters is no longer so: one was reset, or taken out."""
    global _adapters
    _adapters = None


class _Guard:
    """Calls of the driver: refused where the device was lost, and with errors of darner's own."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __enter__(self) -> None:
        self._device.check()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, DarnerError):
            return
        if isinstance(error, _wgpu().GPUOutOfMemoryError):
            raise DeviceMemoryError(
                f"the GPU '{self._device.machine.name}' has no memory left: {self._device.bytes_held:,} bytes are in use here",
                hint="a smaller batch, a type of fewer bits, or fewer sessions at a time",
            ) from error
        self._device.look()
        self._device.check()


class Device:
    """A GPU that was opened.

    Attributes:
        machine: what it is.
        lost: why it can no longer be used, once that is known.
        guard: around every call of the driver: ``with device.guard``.
    """

    def __init__(self, adapter: Any) -> None:
        self.machine = machine_of(adapter)
        wanted = sorted(self.machine.features)
        limits = {name: adapter.limits[name] for name in LIMITS if name in adapter.limits}
        self._device = adapter.request_device_sync(required_features=wanted, required_limits=limits)
        self._queue = self._device.queue
        self._usage = _wgpu().BufferUsage
        self._layouts: dict[int, tuple[Any, Any]] = {}
        self._pipelines: OrderedDict[str, Any] = OrderedDict()
        self._nothing: Region | None = None
        self._buffers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._losses = losses()[0]
        self.lost: str = ""
        self.guard = _Guard(self)

    # ------------------------------------------------------------- memory

    def region(self, nbytes: int, what: str = "a value") -> Region:
        """New memory, zeroed; errors say ``what`` it is for."""
        size = max(LEAST, round_up(nbytes, 4))
        most = self.machine.most_bytes
        if size > most:
            raise DeviceMemoryError(
                f"{what} takes a buffer of {size:,} bytes, which is more than '{self.machine.name}' allows ({most:,})",
                hint="a smaller batch, or a type of fewer bits",
            )
        usage = self._usage.STORAGE | self._usage.COPY_SRC | self._usage.COPY_DST
        return Region(self._buffer(size, usage), 0, nbytes)

    def _buffer(self, size: int, usage: int) -> Any:
        with self.guard:
            made = self._device.create_buffer(size=size, usage=usage)
        with _lock:
            self._buffers.add(made)
        return made

    @property
    def bytes_held(self) -> int:
        """Bytes of all buffers that were made here and not given back."""
        with _lock:
            return sum(buffer.size for buffer in self._buffers)

    def staging(self, nbytes: int) -> Any:
        """Memory that the device writes and the process reads."""
        return self._buffer(
            max(4, round_up(nbytes, 4)), self._usage.MAP_READ | self._usage.COPY_DST
        )

    def mapped(self, buffer: Any) -> npt.NDArray[np.uint8]:
        """What the device has written to such memory, once it is done."""
        with self.guard:
            buffer.map_async("READ_NOSYNC").sync_wait()
            try:
                return np.frombuffer(buffer.read_mapped(), np.uint8)
            finally:
                buffer.unmap()

    def query_room(self, nbytes: int) -> Region:
        """Memory for timestamps."""
        usage = self._usage.QUERY_RESOLVE | self._usage.COPY_SRC
        return Region(self._buffer(nbytes, usage), 0, nbytes)

    def free(self, buffer: Any) -> None:
        """Give memory back; a forked process has none of it."""
        if DRIVER.elsewhere:
            return
        with _lock:
            self._buffers.discard(buffer)
        buffer.destroy()

    def give_back(self, region: Region) -> None:
        """Free the whole memory that a region is in."""
        self.free(region.buffer)

    def write(self, region: Region, array: Array) -> None:
        """Copy an array to the device; it may change as soon as this returns."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if data.nbytes % 4:
            data = np.concatenate([data, np.zeros(-data.nbytes % 4, np.uint8)])
        if data.nbytes:
            with self.guard:
                self._queue.write_buffer(region.buffer, region.offset, data)

    def read(self, region: Region) -> npt.NDArray[np.uint8]:
        """Bytes of the device, once all that was started is done."""
        size = round_up(region.nbytes, 4)
        if not size:
            return np.empty(0, np.uint8)
        with self.guard:
            found = self._queue.read_buffer(region.buffer, region.offset, size)
        return np.frombuffer(found, np.uint8)[: region.nbytes]

    def wait(self) -> None:
        """Wait until all that was started is done."""
        with self.guard:
            wait(self._device)
        self.check()

    def look(self) -> None:
        """Find out whether the device was lost: it would refuse the least buffer."""
        if self.lost:
            return
        try:
            self._device.create_buffer(size=4, usage=self._usage.COPY_DST).destroy()
        except _wgpu().GPUError as error:
            if "lost" in str(error):
                self.lost = losses()[1] or "its driver says so"

    def check(self) -> None:
        """Raise if the device was lost, as far as anybody was told, or is that of another process."""
        DRIVER.begin()
        count = losses()[0]
        if count != self._losses:
            self._losses = count
            self.look()
        if self.lost:
            raise DeviceLostError(
                f"the GPU '{self.machine.name}' was lost: {self.lost}",
                hint="build the session anew and load the last checkpoint",
            )

    def lose(self, reason: str) -> None:
        """Let the device count as lost from now on, as if its driver had been reset."""
        self.lost = reason
        self._device.destroy()

    # ------------------------------------------------------------- code

    def layout(self, count: int) -> tuple[Any, Any]:
        """The layouts of so many buffers: of a bind group, and of a pipeline."""
        if count not in self._layouts:
            visible = _wgpu().ShaderStage.COMPUTE
            entries = [
                {"binding": i, "visibility": visible, "buffer": {"type": "storage"}}
                for i in range(count)
            ]
            group = self._device.create_bind_group_layout(entries=entries)
            whole = self._device.create_pipeline_layout(bind_group_layouts=[group])
            self._layouts[count] = group, whole
        return self._layouts[count]

    def pipeline(self, stage: Stage) -> Any:
        """The compiled shader of a dispatch; the same for the same text."""
        found = self._pipelines.get(stage.text)
        if found is None:
            with self.guard:
                module = unchecked_module(self._device, stage.text)
                found = self._device.create_compute_pipeline(
                    layout=self.layout(len(stage.bindings))[1],
                    compute={"module": module, "entry_point": "main"},
                )
        with _lock:
            self._pipelines[stage.text] = found
            self._pipelines.move_to_end(stage.text)
            while len(self._pipelines) > KEPT_PIPELINES:
                self._pipelines.popitem(last=False)
        return found

    def compile(self, stages: Iterable[Stage]) -> None:
        """Compile what is not compiled yet, side by side: drivers take tens of milliseconds for each."""
        missing = {stage.text: stage for stage in stages if stage.text not in self._pipelines}
        if len(missing) < 2:
            return
        for count in {len(stage.bindings) for stage in missing.values()}:
            self.layout(count)
        workers = min(len(missing), os.cpu_count() or 1, 16)
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(self.pipeline, missing.values()))

    def bind_group(self, regions: Sequence[Region]) -> Any:
        """Ranges of buffers as a dispatch has them bound; for what has no elements, a range that one of any type fits into."""
        if not all(one.nbytes for one in regions):
            if self._nothing is None:
                self._nothing = self.region(GRANULE)
            nothing = self._nothing
            regions = [one if one.nbytes else nothing for one in regions]
        entries = [
            {
                "binding": i,
                "resource": {"buffer": one.buffer, "offset": one.offset, "size": bound_bytes(one)},
            }
            for i, one in enumerate(regions)
        ]
        with self.guard:
            layout = self.layout(len(regions))[0]
            return self._device.create_bind_group(layout=layout, entries=entries)

    def encoder(self) -> Any:
        """What records commands."""
        return self._device.create_command_encoder()

    def submit(self, encoder: Any) -> None:
        """Start what was recorded."""
        with self.guard:
            self._queue.submit([encoder.finish()])

    @property
    def raw(self) -> Any:
        """The device as wgpu knows it."""
        return self._device
