"""A plan on a device with memory of its own: where values lie, which of them are newer than the process's, and what a step does besides its kernels.

What is the device's own is left to who derives from ``DeviceProgram``: how a kernel is bound to its buffers, and how some kernels are started.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ...codegen.simt.dispatch import FAULT_BYTES, Binding
from ...codegen.simt.machine import GRANULE
from ...graph.data import Array
from ...graph.errors import InternalError
from ...io.memory import Bytes
from ...lower.faults import raised
from ...lower.plan import Buffer, Plan
from .device_array import DeviceArray, Value
from .device_leaves import DeviceLeaves, Holder
from .readback import MOST, Readback, Region, S

FAULTS = -1
"""What is read back besides outputs."""
Times = npt.NDArray[np.int64]


class Device(Holder, Protocol):
    """A device that is open, as programs use it."""

    def give_back(self, region: Region) -> None:
        """Free the whole memory that a region is in."""
        ...


D = TypeVar("D", bound=Device)


class Arrays(Sequence[Array]):
    """The values of a program's buffers, copied from the device when they are asked for."""

    def __init__(self, count: int, read: Callable[[int], Array]) -> None:
        self._count = count
        self._read = read

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, buffer: Any) -> Any:
        return self._read(buffer)


class DeviceProgram(Generic[D, S]):
    """A plan with memory on a device for all its values.

    Args:
        plan: what to run.
        device: where.
        storage: parameters and states by name, of which the device keeps copies.
        scratch: bytes that kernels have besides, one kernel at a time.
        segment: bytes of the largest piece of memory.
    """

    slack = 0
    """Bytes past the last value of a piece of memory that a kernel may have bound."""

    def __init__(
        self,
        plan: Plan,
        device: D,
        storage: Mapping[str, Array] | None,
        scratch: int,
        segment: int,
    ) -> None:
        self.plan = plan
        self.device = device
        self.storage: dict[str, Array] = dict(storage or {})
        self.arena: Bytes = np.empty(0, np.uint8)
        self._owned: list[Region] = []
        self._leaves = DeviceLeaves(plan, device, self.storage)
        self._regions = self._memory(segment)
        self._pending: dict[int, Value] = {}
        self._scratch = self._own(scratch + self.slack, "scratch memory of kernels")
        failing = (number for number, kernel in enumerate(plan.kernels) if kernel.checks)
        self._checked = {number: place for place, number in enumerate(failing)}
        self._faults = self._own(FAULT_BYTES * len(self._checked), "what kernels tell of faults")
        small = {
            i: self._regions[i]
            for i in dict.fromkeys(plan.outputs)
            if plan.buffers[i].place == "arena" and plan.buffers[i].nbytes <= MOST
        }
        faults = {FAULTS: self._faults} if self._checked else {}
        self._back = self._readback({**small, **faults})
        self._verdict = self._readback(faults)
        # A leaf that takes the old value of another: that is set aside first.
        olds = {old for old, new in plan.updates if old != new}
        self._rooms = {
            new: self._own(plan.buffers[new].nbytes, "an old value that is set aside")
            for old, new in plan.updates
            if old != new and new in olds
        }
        self._uses: dict[int, list[int]] = {}
        for number, kernel in enumerate(plan.kernels):
            for buffer in {*kernel.operands, *kernel.results}:
                self._uses.setdefault(buffer, []).append(number)

    # ------------------------------------------------------------- what is the device's own

    @abstractmethod
    def _staging(self, nbytes: int) -> S:
        """Memory that the device writes at the end of a step, and the process reads."""

    @abstractmethod
    def _bind(self, number: int) -> None:
        """Have a kernel use the regions of its buffers as they are now."""

    # many parameters: what is started, what follows it, and where it tells of it.
    @abstractmethod
    def _submit(
        self, first: int, end: int, updates: bool, times: Times | None, back: Readback[S]
    ) -> None:
        """Start some kernels, let leaves take their new values where ``updates`` says so, and have ``back`` copied after them."""

    @abstractmethod
    def _wait(self) -> None:
        """Wait until what was started is done."""

    # ------------------------------------------------------------- memory

    def _readback(self, regions: Mapping[int, Region]) -> Readback[S]:
        found: Readback[S] = Readback(regions)
        if found.nbytes:
            found.staging = self._staging(found.nbytes)
        return found

    def _own(self, nbytes: int, what: str) -> Region:
        region = self.device.region(nbytes, what)
        self._owned.append(region)
        return region

    def _disown(self, region: Region) -> None:
        """Give memory back that nothing uses any more."""
        owned = [one for one in self._owned if one.buffer is region.buffer]
        if owned:
            self._owned.remove(owned[0])
            self.device.give_back(region)

    def _memory(self, segment: int) -> list[Region]:
        """Where each buffer lies."""
        plan = self.plan
        # What is empty, or less than an item, may stand at the end: it is bound as something.
        arena = [
            self._own(min(segment, plan.arena_bytes - start) + self.slack, "values of a step")
            for start in range(0, plan.arena_bytes, segment)
        ] or [self._own(self.slack, "values of a step")]
        regions = []
        for number, buffer in enumerate(plan.buffers):
            if buffer.place == "arena":
                if buffer.offset is None or buffer.offset % GRANULE:
                    raise InternalError(f"a buffer of the arena lies at {buffer.offset}")
                which, offset = divmod(buffer.offset, segment)
                if offset + buffer.nbytes > segment:
                    raise InternalError(
                        f"a value of the arena lies across two buffers of {segment:,} bytes: the plan was lowered for another GPU"
                    )
                # What is empty may begin where the last piece ends.
                piece = arena[min(which, len(arena) - 1)]
                regions.append(Region(piece.buffer, offset, buffer.nbytes))
            elif buffer.place in ("parameter", "state"):
                regions.append(self._leaves.region(number))
            elif buffer.place == "input":
                regions.append(self._input(number, buffer))
            else:
                regions.append(self._own(buffer.nbytes, f"the constant '{buffer.name}'"))
                self.device.write(regions[-1], plan.constants[str(buffer.name)].array)
        return regions

    def _input(self, number: int, buffer: Buffer) -> Region:
        """Where an input lies."""
        return self._own(buffer.nbytes, f"input '{buffer.name}'")

    def _in_place(self, number: int, operand: int, result: int) -> bool:
        """Whether a kernel has a result where an operand of it lies."""
        kernel = self.plan.kernels[number]
        old, new = self._regions[kernel.operands[operand]], self._regions[kernel.results[result]]
        return old.buffer is new.buffer and old.offset == new.offset

    def _region(self, number: int, binding: Binding) -> Region:
        kernel = self.plan.kernels[number]
        if binding.what == "scratch":
            return Region(self._scratch.buffer, binding.number, binding.nbytes)
        if binding.what in ("operand", "result"):
            buffers = kernel.operands if binding.what == "operand" else kernel.results
            whole = self._regions[buffers[binding.number]]
            if not binding.nbytes:
                return whole
            return Region(whole.buffer, whole.offset + binding.offset, binding.nbytes)
        place = self._checked.get(number)
        if place is None:
            raise InternalError("a kernel that cannot fail tells of faults")
        return Region(self._faults.buffer, place * FAULT_BYTES, FAULT_BYTES)

    # ------------------------------------------------------------- what it is

    @property
    def arrays(self) -> Arrays:
        """The values of the plan's buffers."""
        return Arrays(len(self.plan.buffers), self.read)

    @property
    def on_host(self) -> bool:
        """Never."""
        return False

    @property
    def threads(self) -> int:
        """One: what runs it is the GPU."""
        return 1

    @property
    def nbytes(self) -> int:
        """Bytes of memory besides parameters and states."""
        return sum(region.nbytes for region in self._owned)

    # ------------------------------------------------------------- values

    def read(self, buffer: int, out: Array | None = None) -> Array:
        """A buffer's value, as a copy or in ``out``."""
        about = self.plan.buffers[buffer]
        if buffer in self._pending:
            found = np.array(self._pending[buffer])
        elif buffer in self._leaves and (here := self._leaves.read(buffer)) is not None:
            found = here
        else:
            shape = tuple(int(size) for size in about.type.shape)
            inside = buffer in self._back
            data = self._back.read(buffer) if inside else self.device.read(self._regions[buffer])
            found = np.array(data).view(about.type.dtype.numpy).reshape(shape)
        if out is None:
            return found
        out[...] = found
        return out

    def write(self, buffer: int, value: Array) -> None:
        """Give a buffer a value of its type and shape."""
        dtype = self.plan.buffers[buffer].type.dtype.numpy
        data = np.asarray(value).astype(dtype, copy=False)

        def write() -> None:
            self.device.write(self._regions[buffer], data)

        if buffer in self._leaves:
            self._leaves.write(buffer, write)
        else:
            write()
        self._pending.pop(buffer, None)
        self._back.forget()

    def bind(self, buffer: int, array: Value | None) -> None:
        """Let an input have an array's value in the next step; it is copied to the device when that begins."""
        if array is None:
            self._pending.pop(buffer, None)
        else:
            self._pending[buffer] = array

    def on_device(self, buffer: int, *, copy: bool = True) -> DeviceArray | None:
        """A buffer's value on the device, where other libraries can read that."""
        return None

    def take(self, buffer: int, other: DeviceProgram[D, S], output: int) -> None:
        """Let an input be another program's output, where it lies; its own memory is given back."""
        before = self._regions[buffer]
        self._regions[buffer] = other._regions[output]
        for number in self._uses.get(buffer, ()):
            self._bind(number)
        self._disown(before)

    def prepare(self, buffer: int | None = None) -> None:
        """Nothing is kept in another order."""

    @property
    def reads(self) -> frozenset[int]:
        """All buffers."""
        return frozenset(range(len(self.plan.buffers)))

    def recovery(self, buffer: int) -> Callable[[], Array] | None:
        """Nothing is kept in another order."""
        return None

    # ------------------------------------------------------------- running

    def run(self, first: int = 0, last: int | None = None, times: Times | None = None) -> None:
        """Start all kernels, or some. Without ``last`` updated leaves take their new values at the end.

        Where kernels can fail and leaves change, those before the plan's commit point are started by themselves, and waited for.

        Raises:
            RunError: the data were such that a kernel could not do its work; no leaf has changed. Where none is to change, and
                where inputs do not keep to the plan's ``bounds``, ``sync`` raises it.
        """
        self._send()
        end = len(self.plan.kernels) if last is None else min(last, len(self.plan.kernels))
        commit = self.plan.commit if self.plan.updates else 0
        if first < commit <= end:
            self._start(first, commit, False, times, self._verdict)
            self._raise_faults(self._verdict)
            first = commit
        self._start(first, end, last is None, times, self._back)

    def _start(
        self, first: int, end: int, updates: bool, times: Times | None, back: Readback[S]
    ) -> None:
        self._submit(first, end, updates, times, back)
        back.begin()
        self._leaves.ran(first, end, updates)

    def _send(self) -> None:
        """Let the device have the inputs, and the leaves that are newer here."""
        if self._pending:
            self._send_inputs(self._pending)
            self._pending.clear()
        self._leaves.send()

    def _send_inputs(self, inputs: Mapping[int, Value]) -> None:
        for buffer, array in inputs.items():
            self.device.write(self._regions[buffer], np.asarray(array))

    def _updates(self) -> Iterator[tuple[Region, Region]]:
        """What is copied, from where and where to, for leaves to take their new values: by way of scratch memory where one is another's."""
        for new, room in self._rooms.items():
            yield self._regions[new], room
        for old, new in self.plan.updates:
            if old != new:
                yield self._rooms.get(new, self._regions[new]), self._regions[old]

    def sync(self) -> None:
        """Wait until what was started is done, and raise where a kernel could not do its work."""
        if not self._checked:
            self._wait()
        elif FAULTS in self._back:
            self._raise_faults(self._back)

    def _raise_faults(self, back: Readback[S]) -> None:
        words = back.read(FAULTS).view(np.uint32).reshape(-1, FAULT_BYTES // 4)
        bad = np.flatnonzero(words[:, 0])
        if not len(bad):
            return
        number = next(n for n, place in self._checked.items() if place == bad[0])
        told = [int(word) for word in words[bad[0]].astype(np.int32)[:3]]
        self.device.write(self._faults, np.zeros(self._faults.nbytes, np.uint8))
        self._back.forget()
        raise raised(self.plan, number, told)

    def close(self) -> None:
        """Free code and memory; copies of parameters stay until the session lets go of them."""
        for region in self._owned:
            self.device.give_back(region)
        self._leaves.close()
        self._back.close()
        self._verdict.close()
        self._owned = []
