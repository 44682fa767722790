"""Parameters and states that a program keeps in panels or side by side: mirrors of the session's arrays, which then need no memory of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import overload

from ....graph.data import Array
from ....io.memory import Bytes, aligned, reclaim
from ....lower.plan import Plan
from ...base.blocks import Block
from ...base.mirrors import Mirror, changed, drop, mirror, refresh, there_are_mirrors
from ..emit.panels import Panels


class Leaves:
    """The parameters and states of one program: some in panels, some side by side or both, and others that another program may have so.

    Args:
        plan: of the program.
        arrays: of its buffers.
        panels: by name, those that this program has in panels.
        blocks: by buffer, those that are several side by side.
    """

    def __init__(
        self,
        plan: Plan,
        arrays: Sequence[Array],
        panels: Mapping[str, Panels],
        blocks: Mapping[int, Block],
    ) -> None:
        self._mirrors: dict[int, Mirror] = {}
        self._blocks = dict(blocks)
        self._parts = [one for block in blocks.values() for one in block.mirrors]
        self._plain: list[Array] = []
        updated = {old for old, _ in plan.updates}
        used = {i for kernel in plan.kernels for i in (*kernel.operands, *kernel.results)}
        used.update(plan.outputs, updated, (new for _, new in plan.updates))
        for place in ("parameter", "state"):
            for name, buffer in plan.leaves(place).items():
                if name in panels:
                    self._mirrors[buffer] = _in_panels(arrays[buffer], panels[name])
                elif buffer in used:
                    self._plain.append(arrays[buffer])
        for one in self._all():
            one.users += 1
        self._written = [arrays[i] for i in updated if i not in self._mirrors]

    def _all(self) -> Iterator[Mirror]:
        yield from self._parts
        yield from self._mirrors.values()

    def address(self, buffer: int, array: Array) -> int:
        """Where kernels find a buffer's value."""
        found = self._mirrors.get(buffer)
        return int(array.ctypes.data if found is None else found.copy.ctypes.data)

    def refresh(self, buffer: int) -> None:
        """Let the array of a buffer hold its value, if that is in panels or in arrays of its parts."""
        if buffer in self._blocks:
            self._blocks[buffer].fill()
        if buffer in self._mirrors:
            self._mirrors[buffer].refresh()

    def collect(self) -> None:
        """Let every value be where the program's kernels read it, and know that they will change some."""
        if not there_are_mirrors():
            return
        for one in self._all():
            if not one.newer_there:
                one.take()
        for array in self._plain:
            drop(refresh(array))
        for array in self._written:
            changed(array)

    def close(self) -> None:
        """Leave what is in panels or side by side to whoever wants it next."""
        for one in self._all():
            one.users -= 1
        self._mirrors, self._blocks, self._parts = {}, {}, []


class Values(Sequence[Array]):
    """The values of a plan's buffers: arrays that hold them when they are asked for."""

    def __init__(self, arrays: Sequence[Array], leaves: Leaves) -> None:
        self._arrays = arrays
        self._leaves = leaves

    def __len__(self) -> int:
        return len(self._arrays)

    @overload
    def __getitem__(self, index: int) -> Array: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Array]: ...
    def __getitem__(self, index: int | slice) -> Array | Sequence[Array]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        self._leaves.refresh(index)
        return self._arrays[index]


def _in_panels(array: Array, panels: Panels) -> Mirror:
    """The copy of an array in panels."""

    def pull(room: Bytes, array: Array) -> None:
        reclaim(array)
        panels.unpack(room, array)

    def push(room: Bytes, array: Array) -> None:
        panels.pack(array, room)

    def make(array: Array) -> Mirror:
        room = aligned(panels.elements * array.itemsize, "a parameter in panels")
        return Mirror(array, panels, room, pull, push, "the CPU, in panels")

    return mirror(array, make, owner=panels)
