"""A plan on an NVIDIA GPU: its memory, its launches, and a step that is one graph of CUDA."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from ...codegen.simt.dispatch import Written
from ...graph.cached import cached_property
from ...graph.data import Array
from ...graph.errors import DarnerError
from ...io.memory import Bytes
from ...lower.plan import Buffer, Kernel, Plan
from ..base.cache import ObjectCache
from ..base.device_array import DeviceArray, Value
from ..base.device_program import DeviceProgram, Times
from ..base.limits import last_op
from ..base.readback import Readback, Region
from . import lanes
from .device import Device, Queue, address_of, launch_of
from .inputs import Inputs
from .interface import DriverError, Event, Launch, Pinned, Recording, Stream
from .kernels import limits_of, written_specs
from .lanes import BEGIN, schedule
from .machine import ALIGNMENT
from .saved import from_bytes, to_bytes
from .sharing import array_of

KEPT_GRAPHS = 8
"""Graphs of a program: of whole steps and the parts that they run in. What else is run is started launch by launch."""


class PinnedStaging:
    """Memory of the process that a step writes at its end."""

    def __init__(self, device: Device, queue: Queue, nbytes: int) -> None:
        self._device, self._queue = device, queue
        self.memory: Pinned = device.pinned(nbytes, "results that are read")
        self._finish = device.closed_with(self, self.memory)

    def read(self) -> Bytes:
        """What the device has written, once it is done."""
        self._queue.wait()
        return self.memory.data

    def close(self) -> None:
        """Give the memory back."""
        self._finish()


class Part(NamedTuple):
    """What of a step is started at once.

    Attributes:
        first: its first kernel.
        end: the one after its last.
        updates: whether leaves take their new values after it.
        verdict: whether only faults are read back.
    """

    first: int
    end: int
    updates: bool
    verdict: bool


class CudaProgram(DeviceProgram[Device, PinnedStaging]):
    """A plan, compiled for an NVIDIA GPU, with memory on it for all its values. A step is one graph, recorded at its second run.

    Args:
        plan: what to run; it was lowered for the target ``cuda``.
        device: where.
        storage: parameters and states by name, of which the device keeps copies.
        saved: what ``saved`` of an equal program gave, on the same GPU: nothing is written or compiled again.
        cache: where object code is kept.
        choices: how specs are written that can be written in several ways, by digest; see ``tuning``.
    """

    slack = ALIGNMENT

    def __init__(
        self,
        plan: Plan,
        device: Device,
        *,
        storage: Mapping[str, Array] | None = None,
        saved: bytes | None = None,
        cache: ObjectCache | None = None,
        choices: Mapping[str, str] | None = None,
    ) -> None:
        self._written: dict[str, Written]
        codes: dict[str, bytes] = {}
        if saved:
            self._written, codes = from_bytes(saved)
        else:
            self._written = written_specs(plan, device.machine, choices)
        stages = [stage for kernel in self._written.values() for stage in kernel.stages]
        self._kernels = device.kernels(stages, cache, codes)
        self.queue = Queue(device)
        self._inputs = Inputs(plan, device, self.queue)
        scratch = max((kernel.scratch for kernel in self._written.values()), default=0)
        super().__init__(plan, device, storage, scratch, limits_of(device.machine).segment)
        self._graphs: dict[Part, Recording | None] = {}
        self._recorded: list[Callable[[], object]] = []
        self._events: list[Event] = []
        self._lanes: list[Stream] = [self.queue.stream]
        self._marks: list[Event] = []
        self._launches: list[list[Launch]] = [[] for _ in plan.kernels]
        for region in self._regions:
            self.queue.uses(region)
        for region in self._owned:
            self.queue.uses(region)
        for number in range(len(plan.kernels)):
            self._bind(number)

    # ------------------------------------------------------------- memory and launches

    def _input(self, number: int, buffer: Buffer) -> Region:
        return self._inputs.region(number, buffer.nbytes) or super()._input(number, buffer)

    def _staging(self, nbytes: int) -> PinnedStaging:
        return PinnedStaging(self.device, self.queue, nbytes)

    def _bind(self, number: int) -> None:
        spec = self.plan.kernels[number].spec
        launches: list[Launch] = []
        with self.device.guard:
            for stage in self._written[spec].stages:
                if stage.copies is not None and self._in_place(number, *stage.copies):
                    continue
                kernel = self._kernels[stage.digest][0]
                region = partial(self._region, number)
                launches.append(launch_of(self.device, kernel, stage, region))
        self._launches[number] = launches

    def take(self, buffer: int, other: DeviceProgram[Device, PinnedStaging], output: int) -> None:
        """Let an input be another program's output, where it lies; its own memory is given back."""
        super().take(buffer, other, output)
        self.queue.uses(self._regions[buffer])
        self._forget_graphs()

    def on_device(self, buffer: int, *, copy: bool = True) -> DeviceArray:
        """A buffer's value on the device, once it is there: a copy of it, or the program's own memory."""
        region, about = self._regions[buffer], self.plan.buffers[buffer]
        if copy:
            room = self.device.region(region.nbytes, "an output")
            if region.nbytes:
                with self.device.guard:
                    self.queue.stream.follow(self.device.transfers.stream)
                    self.queue.started += 1
                    self.queue.stream.copy(address_of(room), address_of(region), region.nbytes)
            region = room
        self._wait()
        shape = [int(size) for size in about.type.shape]
        return array_of(self.device, region, shape, about.type.dtype.numpy)

    # ------------------------------------------------------------- what it is

    @property
    def saved(self) -> bytes:
        """Its kernels, for an equal program in another process."""
        return to_bytes(self._written, {key: code for key, (_, code) in self._kernels.items()})

    @property
    def nbytes(self) -> int:
        """Bytes of memory besides parameters and states."""
        return super().nbytes + self._inputs.nbytes

    @property
    def kernels(self) -> int:
        """How many different kernels it has."""
        return len(self._kernels)

    # ------------------------------------------------------------- running

    def _send_inputs(self, inputs: Mapping[int, Value]) -> None:
        with self.device.guard:
            self.queue.follow_neighbours()
            self.queue.started += 1
            self._inputs.send(inputs, self._regions)

    # many parameters: as in the base.
    def _submit(
        self,
        first: int,
        end: int,
        updates: bool,
        times: Times | None,
        back: Readback[PinnedStaging],
    ) -> None:
        part = Part(first, end, updates, back is self._verdict)
        with self.device.guard:
            self.queue.follow_neighbours()
            # Before the work: some of it may have been started when an error comes.
            self.queue.started += 1
            if times is not None:
                self._run_timed(part, times)
            elif not self._replay(part):
                self._launch(part)

    def _replay(self, part: Part) -> bool:
        """Start what was recorded of a part of the step, if it is one that runs again and again."""
        if part not in self._graphs:
            # The first time an error tells of the kernel that it is an error of.
            if len(self._graphs) < KEPT_GRAPHS:
                self._graphs[part] = None
            return False
        graph = self._graphs[part]
        if self.device.careful:
            return False
        if graph is None:
            try:
                graph = self.queue.stream.record(lambda: self._launch_in_lanes(part))
            finally:
                while self._marks:
                    self._marks.pop().close()
            self._graphs[part] = graph
            self._recorded.append(self.device.closed_with(self, graph))
        graph.start(self.queue.stream)
        return True

    def _launch(self, part: Part) -> None:
        """Start the launches and copies of a part, one by one."""
        for number in range(part.first, part.end):
            self._launch_kernel(number)
        self._launch_copies(part)

    def _launch_in_lanes(self, part: Part) -> None:
        """The same, with kernels that need not wait for each other on streams beside each other."""
        alone = {k for k, kernel in enumerate(self.plan.kernels) if self._scratch_of(kernel)}
        turns = schedule(self._hazards, range(part.first, part.end), alone, lanes.LANES)
        while len(self._lanes) <= max((turn.lane for turn in turns), default=0):
            stream = self.device.context.stream()
            self.device.closed_with(self, stream)
            self._lanes.append(stream)
        marks: dict[int, Event] = {}
        wanted = {kernel for turn in turns for kernel in turn.after}
        if BEGIN in wanted:
            marks[BEGIN] = self._marked(self.queue.stream)
        for turn in turns:
            stream = self._lanes[turn.lane]
            for other in turn.after:
                stream.follow_event(marks[other])
            self._launch_kernel(turn.kernel, stream)
            if turn.kernel in wanted:
                marks[turn.kernel] = self._marked(stream)
        for lane in {turn.lane for turn in turns} - {0}:
            self.queue.stream.follow(self._lanes[lane])
        self._launch_copies(part)

    def _marked(self, stream: Stream) -> Event:
        """The point that a stream's work has now."""
        event = self.device.context.event()
        self._marks.append(event)
        event.record(stream)
        return event

    def _scratch_of(self, kernel: Kernel) -> int:
        """Bytes of the scratch memory, of which there is one, that a kernel needs."""
        return self._written[kernel.spec].scratch

    @cached_property
    def _hazards(self) -> tuple[tuple[int, ...], ...]:
        return self.plan.hazards()

    def _launch_kernel(self, number: int, stream: Stream | None = None) -> None:
        stream = stream or self.queue.stream
        try:
            for launch in self._launches[number]:
                launch.start(stream)
                if self.device.careful:
                    stream.wait()
        except DriverError as error:
            raise self._located(error, number) from error

    def _launch_copies(self, part: Part) -> None:
        stream = self.queue.stream
        if part.updates:
            for source, target in self._updates():
                if source.nbytes:
                    stream.copy(address_of(target), address_of(source), source.nbytes)
        back = self._verdict if part.verdict else self._back
        if back.staging is not None:
            room = back.staging.memory.data
            for region, place in back.copies():
                stream.fetch(room[place : place + region.nbytes], address_of(region))

    def _located(self, error: DriverError, number: int) -> Exception:
        """An error of a launch, with the op, label and line of the kernel."""
        kernel = self.plan.kernels[number]
        found = self.device.translated(error)
        if isinstance(found, DarnerError):
            found.located(last_op(self.plan.spec(kernel)), kernel.label, "", kernel.source)
        return found

    def _run_timed(self, part: Part, times: Times) -> None:
        """The same with the time between kernels, by the GPU's own clock."""
        while len(self._events) <= part.end - part.first:
            event = self.device.context.event()
            self.device.closed_with(self, event)
            self._events.append(event)
        stream, events = self.queue.stream, self._events
        events[0].record(stream)
        for number in range(part.first, part.end):
            self._launch_kernel(number)
            events[number - part.first + 1].record(stream)
        self._launch_copies(part)
        stream.wait()
        now, count = _now(), part.end - part.first
        ends = [now - round(events[count].seconds_since(e) * 1e9) for e in events[: count + 1]]
        for place in range(count):
            times[part.first + place, 0] = ends[place], ends[place + 1]

    def _wait(self) -> None:
        self.queue.wait()

    def _forget_graphs(self) -> None:
        for close in self._recorded:
            close()
        self._recorded.clear()
        self._graphs.clear()

    def close(self) -> None:
        """Free code and memory; copies of parameters stay until the session lets go of them."""
        if not self.device.lost and not self.device.context.elsewhere:
            self._wait()
        self._forget_graphs()
        super().close()
        self._inputs.close()
        self._launches, self._events, self._lanes = [], [], []


def _now() -> int:
    if hasattr(time, "CLOCK_MONOTONIC"):
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return time.monotonic_ns()
