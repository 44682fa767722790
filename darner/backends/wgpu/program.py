"""A plan on a GPU: its buffers, its dispatches, and a step that is one submission."""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

from ...codegen.simt.dispatch import Binding, Written
from ...codegen.simt.families import written
from ...graph.data import Array
from ...graph.errors import UnsupportedError
from ...graph.integers import round_up
from ...io.memory import Bytes
from ...lower.plan import Plan
from ..base.device_program import DeviceProgram, Times
from ..base.limits import check_scratch, last_op
from ..base.readback import Readback, Region
from .bindings import fitted
from .clock import Clock
from .device import LEAST, Device
from .kernels import check_types
from .machine import Machine, limits_of, segment_of
from .native import Call, dispatch_all, handle
from .stage import Move, Stage


class WgpuStaging:
    """Memory that a GPU writes at the end of a step, and the process reads."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self._device = device
        self.buffer = device.staging(nbytes)

    def read(self) -> Bytes:
        """What the device has written, once it is done."""
        return self._device.mapped(self.buffer)

    def close(self) -> None:
        """Give the memory back."""
        self._device.free(self.buffer)


class WgpuProgram(DeviceProgram[Device, WgpuStaging]):
    """A plan, compiled for a GPU, with memory on it for all its values. A step is one submission.

    Args:
        plan: what to run; it was lowered for the target ``gpu``.
        device: where.
        storage: parameters and states by name, of which the device keeps copies.
        saved: what ``saved`` of an equal program gave, on the same GPU: no text is written again.
        choices: how specs are written that can be written in several ways, by digest; see ``tuning``.
    """

    slack = LEAST

    def __init__(
        self,
        plan: Plan,
        device: Device,
        *,
        storage: Mapping[str, Array] | None = None,
        saved: bytes | None = None,
        choices: Mapping[str, str] | None = None,
    ) -> None:
        machine = device.machine
        self._written = (
            _from_bytes(saved) if saved else _written_specs(plan, machine, choices or {})
        )
        scratch = max((w.scratch for w in self._written.values()), default=0)
        super().__init__(plan, device, storage, scratch, segment_of(machine))
        self._clock: Clock | None = None
        device.compile(stage for one in self._written.values() for stage in one.stages)
        self._calls: list[list[Call]] = [[] for _ in plan.kernels]
        self._groups: list[list[Any]] = [[] for _ in plan.kernels]
        self._moves: dict[int, list[tuple[Move, ...]]] = {}
        for number in range(len(plan.kernels)):
            self._bind(number)

    def _staging(self, nbytes: int) -> WgpuStaging:
        return WgpuStaging(self.device, nbytes)

    def _bind(self, number: int) -> None:
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
        self._groups[number], self._calls[number] = groups, calls

    @property
    def saved(self) -> bytes:
        """The text of its shaders, for an equal program in another process."""
        return _to_bytes(self._written)

    @property
    def pipelines(self) -> int:
        """How many different shaders it has."""
        return len({stage.text for w in self._written.values() for stage in w.stages})

    # ------------------------------------------------------------- running

    def _submit(
        self,
        first: int,
        end: int,
        updates: bool,
        times: Times | None,
        back: Readback[WgpuStaging],
    ) -> None:
        with self.device.guard:
            encoder = self.device.encoder()
            if first < end:
                self._record(encoder, first, end, times is not None)
            if updates:
                for source, target in self._updates():
                    _copy(encoder, source, target)
            if back.staging is not None:
                target = Region(back.staging.buffer, 0, back.nbytes)
                for source, place in back.copies():
                    _copy(encoder, source, Region(target.buffer, place, source.nbytes))
            self.device.submit(encoder)
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

    def _wait(self) -> None:
        self.device.wait()

    def close(self) -> None:
        """Free code and memory; copies of parameters stay until the session lets go of them."""
        super().close()
        self._calls, self._groups = [], []


def _written_specs(plan: Plan, machine: Machine, choices: Mapping[str, str]) -> dict[str, Written]:
    """The shaders of a plan's specs."""
    check_types(plan, machine)
    found: dict[str, Written] = {}
    for kernel in plan.kernels:
        if kernel.spec in found:
            continue
        spec, choice = plan.spec(kernel), choices.get(kernel.spec)
        try:
            made = fitted(written(spec, machine, choice), spec, machine)
            found[kernel.spec] = made
            check_scratch(made.scratch, limits_of(machine))
        except UnsupportedError as error:
            raise error.located(last_op(spec), kernel.label, "", kernel.source) from None
    return found


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
