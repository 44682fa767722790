"""A plan on a GPU: its buffers, its dispatches, and a step that is one submission."""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
import numpy.typing as npt

from ...codegen.simt.dispatch import FAULT_BYTES, Binding, Written
from ...codegen.simt.families import written
from ...graph.data import Array
from ...graph.errors import ArgumentError, InternalError, UnsupportedError
from ...graph.integers import round_up
from ...io.memory import Bytes
from ...lower.faults import raised
from ...lower.plan import Buffer, Plan
from ..base.host import empty_like
from ..base.mirrors import Mirror, mirror
from .bindings import fitted
from .clock import Clock
from .device import LEAST, Device, Region
from .kernels import check_types
from .limits import check_scratch, last_op, segment_of
from .native import Call, dispatch_all, handle
from .readback import MOST, Readback
from .stage import Move, Stage

FAULTS = -1
"""What is read back besides outputs."""


class Arrays(Sequence[Array]):
    """The values of a program's buffers, copied from the device when they are asked for."""

    def __init__(self, program: WgpuProgram) -> None:
        self._program = program

    def __len__(self) -> int:
        return len(self._program.plan.buffers)

    def __getitem__(self, buffer: Any) -> Any:
        return self._program.read(buffer)


class WgpuProgram:
    """A plan, compiled for a GPU, with memory on it for all its values.

    Args:
        plan: what to run; it was lowered for the target ``gpu``.
        device: where.
        storage: parameters and states by name, of which the device keeps copies.
        saved: what ``saved`` of an equal program gave, on the same GPU: no text is written again.
        choices: how specs are written that can be written in several ways, by digest; see ``tuning``.
    """

    def __init__(
        self,
        plan: Plan,
        device: Device,
        *,
        storage: Mapping[str, Array] | None = None,
        saved: bytes | None = None,
        choices: Mapping[str, str] | None = None,
    ) -> None:
        self.plan = plan
        self.device = device
        self.storage: dict[str, Array] = dict(storage or {})
        self.arena: Bytes = np.empty(0, np.uint8)
        self._written = _from_bytes(saved) if saved else self._write_all(choices or {})
        self._owned: list[Region] = []
        self._mirrors: dict[int, Mirror] = {}
        self._regions = self._memory()
        self._homes = list(self._regions)
        self._pending: dict[int, Array] = {}
        self._scratch = self._own(
            max((w.scratch for w in self._written.values()), default=0) + LEAST
        )
        failing = (number for number, kernel in enumerate(plan.kernels) if kernel.checks)
        self._checked = {number: place for place, number in enumerate(failing)}
        self._faults = self._own(FAULT_BYTES * len(self._checked))
        small = {
            i: self._regions[i]
            for i in dict.fromkeys(plan.outputs)
            if plan.buffers[i].place == "arena" and plan.buffers[i].nbytes <= MOST
        }
        self._back = Readback(device, {**small, FAULTS: self._faults} if self._checked else small)
        self._verdict = Readback(device, {FAULTS: self._faults} if self._checked else {})
        self._clock: Clock | None = None
        self._kept_results = [
            (number, self._mirrors[buffer])
            for number, kernel in enumerate(plan.kernels)
            for buffer in kernel.results
            if buffer in self._mirrors
        ]
        # A leaf that takes the old value of another: that is set aside first.
        olds = {old for old, new in plan.updates if old != new}
        self._rooms = {
            new: self._own(plan.buffers[new].nbytes)
            for old, new in plan.updates
            if old != new and new in olds
        }
        device.compile(stage for one in self._written.values() for stage in one.stages)
        self._calls: list[list[Call]] = []
        self._groups: list[list[Any]] = []
        self._moves: dict[int, list[tuple[Move, ...]]] = {}
        for number in range(len(plan.kernels)):
            groups, calls = self._bound(number)
            self._groups.append(groups)
            self._calls.append(calls)
        self._uses: dict[int, list[int]] = {}
        for number, kernel in enumerate(plan.kernels):
            for buffer in {*kernel.operands, *kernel.results}:
                self._uses.setdefault(buffer, []).append(number)

    # ------------------------------------------------------------- making it

    def _write_all(self, choices: Mapping[str, str]) -> dict[str, Written]:
        check_types(self.plan, self.device.machine)
        found: dict[str, Written] = {}
        machine = self.device.machine
        for kernel in self.plan.kernels:
            if kernel.spec in found:
                continue
            spec, choice = self.plan.spec(kernel), choices.get(kernel.spec)
            try:
                made = fitted(written(spec, machine, choice), spec, machine)
                found[kernel.spec] = made
                check_scratch(made.scratch, machine)
            except UnsupportedError as error:
                raise error.located(last_op(spec), kernel.label, "", kernel.source) from None
        return found

    def _own(self, nbytes: int) -> Region:
        region = self.device.region(nbytes)
        self._owned.append(region)
        return region

    def _memory(self) -> list[Region]:
        """Where each buffer lies."""
        plan = self.plan
        segment = segment_of(self.device.machine)
        # What is empty, or less than an item, may stand at the end: it is bound as something.
        arena = [
            self._own(min(segment, plan.arena_bytes - start) + LEAST)
            for start in range(0, plan.arena_bytes, segment)
        ] or [self._own(LEAST)]
        regions = []
        for number, buffer in enumerate(plan.buffers):
            if buffer.place == "arena":
                if buffer.offset is None or buffer.offset % self.device.machine.alignment:
                    raise InternalError(f"a buffer of the arena lies at {buffer.offset}")
                which, offset = divmod(buffer.offset, segment)
                if offset + buffer.nbytes > segment:
                    raise InternalError(
                        f"a value of the arena lies across two buffers of {segment:,} bytes: the plan was lowered for another GPU"
                    )
                regions.append(Region(arena[which].buffer, offset, buffer.nbytes))
            elif buffer.place in ("parameter", "state"):
                regions.append(self._mirrored(number, buffer))
            else:
                regions.append(self._own(buffer.nbytes))
                if buffer.place == "constant":
                    self.device.write(regions[-1], plan.constants[str(buffer.name)].array)
        return regions

    def _mirrored(self, number: int, buffer: Buffer) -> Region:
        name = str(buffer.name)
        if name not in self.storage:
            self.storage[name] = empty_like(buffer)
        device = self.device

        def pull(region: Region, array: Array) -> None:
            array[...] = device.read(region).view(array.dtype).reshape(array.shape)

        def make(array: Array) -> Mirror:
            where = f"the GPU '{device.machine.name}'"
            return Mirror(array, device, device.region(array.nbytes), pull, device.write, where)

        found = mirror(self.storage[name], make)
        if found.owner is not device:
            if isinstance(found.owner, type(device)):
                found.owner.check()
            raise ArgumentError(
                f"the {buffer.place} '{name}' is kept by {found.where} already, and '{device.machine.name}' is another device",
                hint="sessions that share parameters are on one device",
            )
        found.users += 1
        self._mirrors[number] = found
        return found.copy

    def _bound(self, number: int) -> tuple[list[Any], list[Call]]:
        """The dispatches of a kernel with their buffers."""
        kernel = self.plan.kernels[number]
        groups, calls, moves = [], [], []
        for stage in self._written[kernel.spec].stages:
            if stage.copies is not None and self._in_place(number, *stage.copies):
                continue
            regions = [self._region(number, binding) for binding in stage.bindings]
            groups.append(self.device.bind_group(regions))
            pipeline = self.device.pipeline(stage)
            calls.append((handle(pipeline), handle(groups[-1]), *stage.groups))
            moves.append(stage.moves)
        if any(moves):
            self._moves[number] = moves
        return groups, calls

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
        return Arrays(self)

    @property
    def on_host(self) -> bool:
        """Never."""
        return False

    @property
    def threads(self) -> int:
        """One: what runs it is the GPU."""
        return 1

    @property
    def saved(self) -> bytes:
        """The text of its shaders, for an equal program in another process."""
        return _to_bytes(self._written)

    @property
    def nbytes(self) -> int:
        """Bytes of memory besides parameters and states."""
        return sum(region.nbytes for region in self._owned)

    @property
    def pipelines(self) -> int:
        """How many different shaders it has."""
        return len({stage.text for w in self._written.values() for stage in w.stages})

    # ------------------------------------------------------------- values

    def read(self, buffer: int, out: Array | None = None) -> Array:
        """A buffer's value, as a copy or in ``out``."""
        about = self.plan.buffers[buffer]
        if buffer in self._pending:
            found = np.array(self._pending[buffer])
        elif buffer in self._mirrors and self._mirrors[buffer].newer_here:
            found = np.array(self.storage[str(about.name)])
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
        self.device.write(self._regions[buffer], np.asarray(value).astype(dtype, copy=False))
        self._pending.pop(buffer, None)
        self._back.forget()
        if buffer in self._mirrors:
            self._mirrors[buffer].newer_here = False
            self._mirrors[buffer].newer_there = True

    def bind(self, buffer: int, array: Array | None) -> None:
        """Let an input have an array's value in the next step; it is copied to the device when that begins."""
        if array is None:
            self._pending.pop(buffer, None)
        else:
            self._pending[buffer] = array

    def take(self, buffer: int, other: WgpuProgram, output: int) -> None:
        """Let an input be another program's output, where it lies."""
        self._regions[buffer] = other._regions[output]
        for number in self._uses.get(buffer, ()):
            self._groups[number], self._calls[number] = self._bound(number)

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

    def run(
        self, first: int = 0, last: int | None = None, times: npt.NDArray[np.int64] | None = None
    ) -> None:
        """Start all kernels, or some, as one submission. Without ``last`` updated leaves take their new values at the end.

        Where kernels can fail and leaves change, those before the plan's commit point are a submission of their own, which is waited for.

        Raises:
            RunError: the data were such that a kernel could not do its work; no leaf has changed. Where none is to change, and
                where inputs do not keep to the plan's ``bounds``, ``sync`` raises it.
        """
        self._send()
        end = len(self.plan.kernels) if last is None else min(last, len(self.plan.kernels))
        commit = self.plan.commit if self.plan.updates else 0
        if first < commit <= end:
            self._submit(first, commit, False, times, self._verdict)
            self._raise_faults(self._verdict)
            first = commit
        self._submit(first, end, last is None, times, self._back)

    def _submit(
        self,
        first: int,
        end: int,
        updates: bool,
        times: npt.NDArray[np.int64] | None,
        back: Readback,
    ) -> None:
        """Start some kernels as one submission, and have some values copied back after them."""
        with self.device.guard:
            encoder = self.device.encoder()
            if first < end:
                self._record(encoder, first, end, times is not None)
            if updates:
                self._update(encoder)
            back.record(encoder)
            self.device.submit(encoder)
        for number, found in self._kept_results:
            if first <= number < end:
                found.newer_there = True
        if times is not None and self._clock is not None and first < end:
            read = self._clock.read()[: end - first + 1]
            times[first:end, 0, 0], times[first:end, 0, 1] = read[:-1], read[1:]

    def _record(self, encoder: Any, first: int, end: int, timed: bool) -> None:
        """The dispatches of some kernels as one pass, with the time between them where it is asked for."""
        if timed and self._clock is None:
            if "timestamp-query-inside-passes" not in self.device.machine.features:
                raise UnsupportedError(
                    f"the GPU '{self.device.machine.name}' does not tell the time of single kernels",
                    hint="time whole steps instead",
                )
            self._clock = Clock(self.device, len(self.plan.kernels) + 1)
        clock = self._clock if timed else None
        compute = encoder.begin_compute_pass()
        if clock is not None:
            clock.write(compute, 0)
        start = first
        for number in range(first, end):
            alone = number in self._moves
            if not alone and clock is None and number < end - 1:
                continue
            plain = number if alone else number + 1
            dispatch_all(compute, itertools.chain.from_iterable(self._calls[start:plain]))
            if alone:
                compute.end()
                self._record_moving(encoder, number)
                compute = encoder.begin_compute_pass()
            if clock is not None:
                clock.write(compute, number - first + 1)
            start = number + 1
        compute.end()
        if clock is not None:
            clock.resolve(encoder)

    def _record_moving(self, encoder: Any, number: int) -> None:
        """A kernel that has some of its values copied to scratch memory, each dispatch a pass of its own."""
        for call, moves in zip(self._calls[number], self._moves[number], strict=True):
            pairs = [
                (self._region(number, move.binding), self._region(number, move.room), move)
                for move in moves
            ]
            for there, here, _ in pairs:
                _copy(encoder, there, here)
            compute = encoder.begin_compute_pass()
            dispatch_all(compute, [call])
            compute.end()
            for there, here, move in pairs:
                if move.binding.what != "operand":
                    _copy(encoder, here, there)

    def _send(self) -> None:
        for buffer, array in self._pending.items():
            self.device.write(self._regions[buffer], array)
        self._pending.clear()
        for found in self._mirrors.values():
            found.send()

    def _update(self, encoder: Any) -> None:
        """Leaves take their new values: by way of scratch memory where one is another's."""
        for new, room in self._rooms.items():
            _copy(encoder, self._regions[new], room)
        for old, new in self.plan.updates:
            if old != new:
                _copy(encoder, self._rooms.get(new, self._regions[new]), self._regions[old])
        for old, _ in self.plan.updates:
            if old in self._mirrors:
                self._mirrors[old].newer_there = True

    def sync(self) -> None:
        """Wait until what was started is done, and raise where a kernel could not do its work."""
        if not self._checked:
            self.device.wait()
        elif FAULTS in self._back:
            self._raise_faults(self._back)

    def _raise_faults(self, back: Readback) -> None:
        words = back.read(FAULTS).view(np.uint32).reshape(-1, FAULT_BYTES // 4)
        bad = np.flatnonzero(words[:, 0])
        if not len(bad):
            return
        number = next(n for n, place in self._checked.items() if place == bad[0])
        told = words[bad[0]].astype(np.int32)
        self.device.write(self._faults, np.zeros(self._faults.nbytes, np.uint8))
        self._back.forget()
        raise raised(self.plan, number, [int(word) for word in told[:3]])

    def close(self) -> None:
        """Free code and memory; copies of parameters stay until the session lets go of them."""
        for region in self._owned:
            self.device.free(region.buffer)
        self._back.close()
        self._verdict.close()
        self._owned, self._calls, self._groups = [], [], []


def _copy(encoder: Any, source: Region, target: Region) -> None:
    if source.nbytes:
        size = round_up(source.nbytes, 4)
        encoder.copy_buffer_to_buffer(
            source.buffer, source.offset, target.buffer, target.offset, size
        )


def _to_bytes(all_: Mapping[str, Written]) -> bytes:
    texts: dict[str, int] = {}
    content = {
        digest: [
            kernel.scratch,
            [
                [
                    texts.setdefault(stage.text, len(texts)),
                    stage.groups,
                    [astuple(binding) for binding in stage.bindings],
                    stage.copies,
                    [astuple(move) for move in stage.moves],
                ]
                for stage in kernel.stages
            ],
        ]
        for digest, kernel in all_.items()
    }
    return zlib.compress(json.dumps([list(texts), content]).encode())


def _from_bytes(saved: bytes) -> dict[str, Written]:
    texts, content = json.loads(zlib.decompress(saved))
    found = {}
    for digest, (scratch, stages) in content.items():
        made = [
            Stage(
                texts[text],
                tuple(groups),
                tuple(Binding(*one) for one in bindings),
                copies and tuple(copies),
                tuple(Move(Binding(*binding), Binding(*room)) for binding, room in moves),
            )
            for text, groups, bindings, copies, moves in stages
        ]
        found[digest] = Written(tuple(made), scratch)
    return found
