"""A plan, compiled and ready to run."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np

from ...graph.data import Array
from ...graph.errors import RunError
from ...lower.plan import Plan
from .jit import compile_module, load_object
from .kernels import emit_plan
from .threads import Team, symbols


class CpuProgram:
    """A plan as native code, with memory of its own.

    ``run`` is one native call; the arena, parameters and states live here between calls.
    """

    def __init__(self, plan: Plan, *, threads: int | None = None) -> None:
        self.plan = plan
        code = compile_module(emit_plan(plan), passes=True)
        self._program = load_object(code, symbols=symbols())
        self._team = Team(threads)
        self._arena = np.zeros(plan.arena_bytes + 64, np.uint8)
        start = -self._arena.ctypes.data % 64
        self._values: list[Array] = []
        for buffer in plan.buffers:
            shape = tuple(int(size) for size in buffer.type.shape)
            if buffer.place == "arena" and buffer.offset is not None:
                begin = start + buffer.offset
                room = self._arena[begin : begin + buffer.nbytes]
                self._values.append(room.view(buffer.type.dtype.numpy).reshape(shape))
            elif buffer.place == "constant":
                self._values.append(np.array(plan.constants[str(buffer.name)].array, copy=True))
            else:
                self._values.append(np.full(shape, buffer.init, buffer.type.dtype.numpy))
        addresses = [self._team.pointer, *(value.ctypes.data for value in self._values)]
        self._table = (ctypes.c_void_p * len(addresses))(*addresses)
        self._step = self._program.address("step")

    def run(
        self,
        inputs: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        *,
        state: MutableMapping[str, Any] | None = None,
    ) -> list[Array]:
        """The outputs for these values; what is not given keeps the value it has."""
        for place, given in (("input", inputs), ("parameter", params), ("state", state)):
            self._write(place, given or {})
        self._team.run(self._step, ctypes.addressof(self._table))
        outputs = [np.array(self._values[i]) for i in self.plan.outputs]
        news = [(old, np.array(self._values[new])) for old, new in self.plan.updates if old != new]
        for old, value in news:
            self._values[old][...] = value
        if state is not None:
            for name, i in self.plan.leaves("state").items():
                state[name] = np.array(self._values[i])
            for old, _ in self.plan.updates:
                state[str(self.plan.buffers[old].name)] = np.array(self._values[old])
        return outputs

    def _write(self, place: str, given: Mapping[str, Any]) -> None:
        leaves = self.plan.leaves(place)
        if place == "state":
            leaves = {**self.plan.leaves("parameter"), **leaves}
        for name, value in given.items():
            if name not in leaves:
                raise RunError(f"the plan has no {place} '{name}'")
            target = self._values[leaves[name]]
            array = np.asarray(value)
            if array.shape != target.shape:
                raise RunError(f"{place} '{name}' is {target.shape}, the value is {array.shape}")
            target[...] = array.astype(target.dtype)

    def close(self) -> None:
        """Stop the threads and free the code."""
        self._team.close()
        self._program.close()
