"""Parameters and states that programs have side by side in one block of memory: each is a mirror of the session's array, and its copy is a view of the block.

While programs work on a block, the values are there and the arrays need no memory of their own. Whoever reads or writes one of them by its own name goes by
``mirrors``, as for a device. A block may itself have a mirror: the same block in panels.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...graph.data import Array
from ...graph.errors import InternalError
from ...graph.parts import Parts
from ...io.memory import reclaim
from ...lower.plan import Buffer
from .host import empty_like
from .mirrors import Mirror, changed, mirror, mirrors_of, refresh


class Block:
    """Several arrays of a session, side by side.

    Args:
        buffer: of a plan: what the block is.
        arrays: of the session, in the order of the buffer's parts.

    Attributes:
        array: the block. It holds its value after ``fill``.
    """

    def __init__(self, buffer: Buffer, arrays: Sequence[Array]) -> None:
        parts = parts_of(buffer)
        self.array = empty_like(replace(buffer, init=0.0))
        self._arrays = [weakref.ref(array) for array in arrays]
        self._axis = parts.axis
        views = parts.split(self.array).values()
        made = [self._mirror(*pair) for pair in zip(arrays, views, strict=True)]
        # They hold the block, and the arrays hold them: when these are gone, all is freed at once.
        self._mirrors = [weakref.ref(one) for one in made]

    @property
    def mirrors(self) -> list[Mirror]:
        """Of the session's arrays, in order; their copies are views of the block."""
        found = (one() for one in self._mirrors)
        return [one for one in found if one is not None]

    def _mirror(self, array: Array, view: Array) -> Mirror:
        where = "the CPU, side by side with others"
        return mirror(
            array, lambda a: Mirror(a, self, view, self._pull, self._push, where), owner=self
        )

    def _pull(self, view: Array, array: Array) -> None:
        refresh(self.array)
        reclaim(array)
        array[...] = view

    def _push(self, view: Array, array: Array) -> None:
        refresh(self.array)
        view[...] = array
        changed(self.array)

    def holds(self, arrays: Sequence[Array], axis: int) -> bool:
        """Whether it is the block of these arrays."""
        if axis != self._axis or [id(one()) for one in self._arrays] != [*map(id, arrays)]:
            return False
        # A part that another program wanted by itself, while none worked on the block, is no part any more.
        return len(self.mirrors) == len(arrays)

    def fill(self) -> None:
        """Let the block hold its value, and the arrays theirs."""
        for one in self.mirrors:
            one.fill()
        refresh(self.array)

    def take(self) -> None:
        """Let the block be the only one that has the values: they will be changed there."""
        for one in self.mirrors:
            one.take()


def parts_of(buffer: Buffer) -> Parts:
    """What stands side by side in a buffer."""
    if buffer.parts is None:
        raise InternalError(f"the {buffer.place} '{buffer.name}' has no parts")
    return buffer.parts


def block_of(buffer: Buffer, storage: Mapping[str, Array]) -> Block:
    """The block of a buffer's parts, which all programs on the same arrays share; ``storage`` has the arrays by name."""
    parts = parts_of(buffer)
    arrays = [storage[name] for name in parts]
    return find_block(arrays, parts.axis) or Block(buffer, arrays)


def find_block(arrays: Sequence[Array], axis: int) -> Block | None:
    """The block in which these arrays stand side by side along an axis, if there is one."""
    for one in mirrors_of(arrays[0]):
        if isinstance(one.owner, Block) and one.owner.holds(arrays, axis):
            return one.owner
    return None
