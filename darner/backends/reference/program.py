"""A plan run by the oracle."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ...graph.data import Array
from ...graph.graph import LEAVES
from ...io.memory import Bytes, room_for
from ...lower.plan import Plan
from ..base.host import HostMemory, empty_like
from ..base.host_kernels import run_kernel


class ReferenceProgram(HostMemory):
    """A plan run by the oracle, kernel after kernel, each value in its place in one arena."""

    def __init__(
        self,
        plan: Plan,
        *,
        storage: Mapping[str, Array] | None = None,
        arena: Bytes | None = None,
    ) -> None:
        self.plan = plan
        self.storage: dict[str, Array] = dict(storage or {})
        self.arena = room_for(plan.arena_bytes, arena)
        self._arrays: list[Array] = []
        for buffer in plan.buffers:
            shape = tuple(int(size) for size in buffer.type.shape)
            name = str(buffer.name)
            if buffer.place == "arena":
                start, stop = buffer.range
                room = self.arena[start:stop].view(buffer.type.dtype.numpy)
                self._arrays.append(room.reshape(shape))
            elif buffer.place == "constant":
                self._arrays.append(plan.constants[name].array)
            elif buffer.place == "input":
                self._arrays.append(empty_like(buffer))
            else:
                if name not in self.storage:
                    self.storage[name] = empty_like(buffer)
                self._arrays.append(self.storage[name])
        self._homes = list(self._arrays)

    @property
    def arrays(self) -> Sequence[Array]:
        """The values of the plan's buffers: their memory."""
        return self._arrays

    @property
    def threads(self) -> int:
        """One."""
        return 1

    @property
    def saved(self) -> bytes:
        """Nothing is compiled."""
        return b""

    @property
    def nbytes(self) -> int:
        """Bytes of memory besides parameters and states."""
        own = (b for b in self.plan.buffers if b.place not in (*LEAVES[1:], "arena"))
        return sum(buffer.nbytes for buffer in own) + self.plan.arena_bytes

    def bind(self, buffer: int, array: Array | None) -> None:
        """Let an input be read from the caller's own memory, or from the program's own again (None)."""
        self._arrays[buffer] = self._homes[buffer] if array is None else array

    def run(
        self, first: int = 0, last: int | None = None, times: npt.NDArray[np.int64] | None = None
    ) -> None:
        """Run kernels one after another; ``times`` as in the CPU's program."""
        count = len(self.plan.kernels)
        end = count if last is None else min(last, count)
        # Functions of the user's ops may raise anywhere, and so may an interrupt.
        before = {old: np.array(self._arrays[old]) for old, _ in self.plan.updates}
        try:
            for number in range(first, end):
                start = time.perf_counter_ns()
                run_kernel(self.plan, number, self._arrays)
                if times is not None:
                    times[number, 0] = start, time.perf_counter_ns()
            if last is None:
                after = {old: np.array(self._arrays[new]) for old, new in self.plan.updates}
                for old, value in after.items():
                    self._arrays[old][...] = value
        except BaseException:
            for old, value in before.items():
                self._arrays[old][...] = value
            raise

    def prepare(self, buffer: int | None = None) -> None:
        """Nothing is kept in another order."""

    @property
    def reads(self) -> frozenset[int]:
        """All buffers."""
        return frozenset(range(len(self._arrays)))

    def recovery(self, buffer: int) -> None:
        """Nothing is kept in another order."""

    def close(self) -> None:
        """Nothing is held that is not memory."""
