"""A plan, compiled and ready to run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from ....codegen.ir.faults import FAULT
from ....graph.cached import cached_property
from ....graph.data import Array
from ....graph.errors import InternalError
from ....graph.integers import round_up
from ....io.memory import ALIGNMENT, Bytes, aligned, room_for, together
from ....lower.faults import raised
from ....lower.plan import Buffer, Plan
from ...base.blocks import block_of, parts_of
from ...base.cache import ObjectCache
from ...base.host import HostMemory, empty_like
from ...base.host_kernels import run_kernel
from ...base.mirrors import refresh
from ..emit.work_queue import WORDS
from .jit import Machine, host, load_object
from .mirrors import Leaves, Values
from .native import Native, Packed, native_of
from .steps import FIXED, Row, Steps, copy_function
from .threads import Team, symbols

LEAVES = ("parameter", "state")


class CpuProgram(HostMemory):
    """A plan as native code, with memory for all its values.

    ``run`` is one native call: between its start and its end there is no Python and no allocation. Functions of a user's ops part it.

    Args:
        plan: what to run; it was lowered for the target ``cpu``.
        threads: how many run it; as many as there are cores when left out.
        storage: memory of parameters and states by name, to be shared with another program.
        cache: where compiled code is kept; none when left out.
        machine: what code is made for, where it is not this machine but a lesser one.
        fixed: buffers that change seldom: what kernels want packed of them is packed by ``prepare``, which must run before the first
            step and after every change of theirs.
        saved: what ``saved`` of an equal program gave, on the same machine: nothing is emitted or compiled.
        arena: that of a program that never runs at the same time, to be used by this one too if it is large enough.

    Attributes:
        arena: the memory of what a run makes on the way.
        storage: the memory of parameters and states by name.
    """

    # many parameters: all but the plan are options of one program, given by name.
    def __init__(
        self,
        plan: Plan,
        *,
        threads: int | None = None,
        storage: Mapping[str, Array] | None = None,
        cache: ObjectCache | None = None,
        machine: Machine | None = None,
        fixed: Collection[int] = (),
        saved: bytes | None = None,
        arena: Bytes | None = None,
    ) -> None:
        self.plan = plan
        if saved is not None:
            native = Native.from_bytes(saved)
        else:
            native = native_of(plan, machine or host(), fixed, cache)
        self._native = native
        self._code = load_object(*native.objects, symbols=symbols())
        self._team = Team(threads)
        self.arena = room_for(plan.arena_bytes, arena)
        self.storage: dict[str, Array] = dict(storage or {})
        self._blocks = {
            number: block_of(buffer, self._parts(buffer))
            for number, buffer in enumerate(plan.buffers)
            if buffer.parts is not None
        }
        self._arrays = [self._memory(*pair) for pair in enumerate(plan.buffers)]
        self._homes = list(self._arrays)
        self._leaves = Leaves(plan, self._arrays, native.panels, self._blocks)
        self._packed = self._packed_memory(native)
        uses: dict[int, list[tuple[int, int]]] = {}
        self._packing: dict[int, list[tuple[int, int]]] = {}
        rows = self._rows(native, uses)
        first, width = self._faults.ctypes.data, self._faults.strides[0]
        words = [first + number * width for number in native.checked if number < plan.commit]
        self._steps = Steps(self._team, rows, plan.commit, words)
        self._packs = Steps(self._team, self._pack_rows(native, self._packing))
        self._places = [
            {buffer: steps.places(found) for buffer, found in places.items()}
            for steps, places in ((self._steps, uses), (self._packs, self._packing))
        ]

    @property
    def arrays(self) -> Sequence[Array]:
        """The values of the plan's buffers; who changes a parameter or state uses ``write``."""
        return Values(self._arrays, self._leaves)

    @property
    def threads(self) -> int:
        """How many threads run it."""
        return self._team.threads

    @property
    def saved(self) -> bytes:
        """Its code, for an equal program in another process."""
        return self._native.to_bytes()

    @property
    def nbytes(self) -> int:
        """Bytes of memory besides parameters and states: the arena, inputs, constants and scratch."""
        others = [i for i, buffer in enumerate(self.plan.buffers) if buffer.place not in LEAVES]
        own = sum(self._arrays[i].nbytes for i in others if self.plan.buffers[i].place != "arena")
        own += sum(one.nbytes for rooms in self._packed.values() for one, _ in rooms.values())
        return own + self.arena.nbytes + self._scratch.nbytes + self._shared.nbytes

    # ------------------------------------------------------------- making it

    def _parts(self, buffer: Buffer) -> dict[str, Array]:
        """The memory of what stands side by side in a buffer, by name."""
        parts = parts_of(buffer)
        for name, type_ in parts.types(buffer.type).items():
            if name not in self.storage:
                self.storage[name] = empty_like(replace(buffer, type=type_, name=name))
        return {name: self.storage[name] for name in parts}

    def _memory(self, number: int, buffer: Buffer) -> Array:
        if number in self._blocks:
            return self._blocks[number].array
        if buffer.place == "arena":
            if buffer.offset is None:
                raise InternalError("a buffer of the arena has no place")
            shape = tuple(int(size) for size in buffer.type.shape)
            room = self.arena[buffer.offset : buffer.offset + buffer.nbytes]
            return room.view(buffer.type.dtype.numpy).reshape(shape)
        if buffer.place == "constant":
            array = empty_like(buffer)
            array[...] = self.plan.constants[str(buffer.name)].array
            return array
        if buffer.place in LEAVES:
            name = str(buffer.name)
            if name not in self.storage:
                self.storage[name] = empty_like(buffer)
            return self.storage[name]
        return empty_like(buffer)

    def _rows(self, native: Native, uses: dict[int, list[tuple[int, int]]]) -> list[Row]:
        """The rows of a step; ``uses`` takes where each buffer is an operand or result: row and number."""
        plan = self.plan
        stride = round_up(native.own, ALIGNMENT)
        self._scratch = aligned(stride * self.threads, "the scratch memory of all threads")
        self._shared = aligned(native.shared, "scratch memory")
        pointers = (self._team.pointer, self._scratch.ctypes.data, stride, self._shared.ctypes.data)
        self._pointers = pointers
        self._faults = np.zeros((len(plan.kernels), WORDS), np.int64)
        self._fault_words = self._faults.reshape(-1).data
        self._checked = [number * WORDS for number in native.checked]
        places = [self._leaves.address(i, array) for i, array in enumerate(self._arrays)]
        faults, width = self._faults.ctypes.data, self._faults.strides[0]
        functions = {name: self._code.address(name) for name in dict.fromkeys(native.kernels)}
        rows = []
        for number, kernel in enumerate(plan.kernels):
            buffers = (*kernel.operands, *kernel.results)
            packing = native.packed[number]
            addresses = [places[i] for i in buffers]
            for place, buffer in enumerate(buffers):
                if packing is not None and place == packing.operand:
                    addresses[place] = self._packed[buffer][packing.key][1].ctypes.data
                else:
                    uses.setdefault(buffer, []).append((number, place))
            fixed = (*pointers, faults + number * width)
            function = functions[native.kernels[number]]
            rows.append(Row(function, (*fixed, *addresses), native.waits[number]))
        for source, target, buffer in self._copies():
            # The source may be an input, which is bound to other memory later.
            if source is self._arrays[buffer]:
                uses.setdefault(buffer, []).append((len(rows), 0))
            ends = (source.ctypes.data, target.ctypes.data, source.nbytes)
            rows.append(Row(copy_function(), (*pointers, 0, *ends), True))
        if len(pointers) + 1 != FIXED:
            raise InternalError(f"kernels have {len(pointers) + 1} fixed arguments, not {FIXED}")
        return rows

    def _packed_memory(self, native: Native) -> dict[int, dict[str, tuple[Packed, Bytes]]]:
        """How and where to each buffer is packed; what two kernels want in the same order they share."""
        wanted = {}
        for kernel, packing in zip(self.plan.kernels, native.packed, strict=True):
            if packing is not None:
                wanted[kernel.operands[packing.operand], packing.key] = packing
        rooms = together([packing.nbytes for packing in wanted.values()], "packed parameters")
        found: dict[int, dict[str, tuple[Packed, Bytes]]] = {}
        for ((buffer, key), packing), room in zip(wanted.items(), rooms, strict=True):
            found.setdefault(buffer, {})[key] = packing, room
        return found

    def _pack_rows(self, native: Native, uses: dict[int, list[tuple[int, int]]]) -> list[Row]:
        """The rows that pack; ``uses`` as in ``_rows``."""
        rows: list[Row] = []
        for buffer, rooms in self._packed.items():
            uses[buffer] = [(len(rows) + number, 0) for number in range(len(rooms))]
            for key, (_, room) in rooms.items():
                function = self._code.address(native.packing[key])
                ends = (self._arrays[buffer].ctypes.data, room.ctypes.data)
                rows.append(Row(function, (*self._pointers, 0, *ends), False))
        return rows

    def _copies(self) -> list[tuple[Array, Array, int]]:
        """What leaves take over at the end, from where, to where and of which buffer.

        First what would change meanwhile is put aside.
        """
        moved = [(new, old) for old, new in self.plan.updates if old != new]
        changing = {old for _, old in moved}
        aside = {new: empty_like(self.plan.buffers[new]) for new, _ in moved if new in changing}
        first = [(self._arrays[new], room, new) for new, room in aside.items()]
        later = [(aside.get(new, self._arrays[new]), self._arrays[old], new) for new, old in moved]
        return first + later

    # ------------------------------------------------------------- using it

    def bind(self, buffer: int, array: Array | None) -> None:
        """Let an input be read from the caller's own memory, or from the program's own again (None).

        The array is contiguous and of the buffer's type and shape, and must not change during a run.
        """
        array = self._homes[buffer] if array is None else array
        if self._arrays[buffer] is array:
            return
        address = array.ctypes.data
        (places, arguments), (packed, sources) = (
            (self._places[0].get(buffer), self._steps.arguments),
            (self._places[1].get(buffer), self._packs.arguments),
        )
        # Interrupts come after calls and in loops: none of these is here, to part the address from the array.
        if packed is not None:
            sources[packed] = address
        if places is not None:
            arguments[places] = address
        self._arrays[buffer] = array

    def prepare(self, buffer: int | None = None) -> None:
        """Pack what kernels want packed of the buffers that change seldom, or of one of them, as they are now."""
        if buffer is None:
            self._leaves.collect()
            self._packs.run()
            return
        self._leaves.refresh(buffer)
        refresh(self._arrays[buffer])
        for number, _ in self._packing.get(buffer, ()):
            self._packs.run(number, number + 1)

    @cached_property
    def reads(self) -> frozenset[int]:
        """The buffers that a step reads or changes themselves, and not only what ``prepare`` made of them."""
        ends = frozenset(i for update in self.plan.updates for i in update)
        return ends.union(self._places[0], self.plan.outputs)

    def recovery(self, buffer: int) -> Callable[[], Array] | None:
        """What gives the value that a buffer had when it was prepared, if that can be read from what was made of it."""
        for packing, room in self._packed.get(buffer, {}).values():
            if packing.panels is not None:
                return partial(packing.panels.unpacked, room, like=self._arrays[buffer])
        return None

    def write(self, buffer: int, value: Array) -> None:
        """Give a buffer a value of its type and shape."""
        if buffer in self._blocks:
            self._blocks[buffer].take()
        super().write(buffer, value)

    def run(
        self, first: int = 0, last: int | None = None, times: npt.NDArray[np.int64] | None = None
    ) -> None:
        """Run all kernels, or some; ``times`` as in ``Steps.run``.

        Raises:
            RunError: the data were such that a kernel could not do its work, or a function of the user's raised. No parameter or state has changed, provided that
                inputs keep to the plan's ``bounds``; what else the step wrote means nothing.
        """
        self._leaves.collect()
        for number in self.plan.host_kernels:
            if first <= number and (last is None or number < last):
                if first < number:
                    self._steps.run(first, number, times)
                    self._check()
                self._call(number, times)
                first = number + 1
        if last is None or first < last:
            self._steps.run(first, last, times)
            self._check()

    def _call(self, number: int, times: npt.NDArray[np.int64] | None) -> None:
        """Run a kernel that is a function of the user's, while the threads wait."""
        start = time.monotonic_ns()
        run_kernel(self.plan, number, self._arrays)
        if times is not None:
            times[number] = start
            times[number, 0, 1] = time.monotonic_ns()

    def _check(self) -> None:
        for place in self._checked:
            if self._fault_words[place]:
                self._raise_fault()

    def _raise_fault(self) -> None:
        number = int(np.flatnonzero(self._faults[:, 0])[0])
        words = [int(word) for word in self._faults[number, :FAULT]]
        self._faults[:, :FAULT] = 0
        raise raised(self.plan, number, words)

    def close(self) -> None:
        """Stop the threads and free the code."""
        self._team.close()
        self._code.close()
        self._leaves.close()
