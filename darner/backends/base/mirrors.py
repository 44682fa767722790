"""Values of the process that a device has a copy of, or a program in another order: which of the two is newer.

A session keeps parameters and states as arrays of the process. A device works on copies of its own, and nothing is copied until somebody reads what the other has written.
Who reads such an array calls ``refresh`` first, who has written one calls ``changed``; for arrays that no device knows both do nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ...graph.data import Array
from .memory import release


class Mirror:
    """An array and its copy on a device.

    Args:
        array: of the process.
        owner: the device.
        copy: what it has.
        pull: copies from the device to the array.
        push: copies from the array to the device.
        where: the copy is, in words.

    Attributes:
        newer_here: whether the array has a value that the copy has not.
        newer_there: whether the copy has a value that the array has not.
        users: programs that work on the copy; it is freed only when there is none.
    """

    def __init__(
        self,
        array: Array,
        owner: Any,
        copy: Any,
        pull: Callable[[Any, Array], None],
        push: Callable[[Any, Array], None],
        where: str,
    ) -> None:
        self.owner = owner
        self.where = where
        self.users = 0
        self.copy = copy
        self._array = weakref.ref(array)
        self._pull = pull
        self._push = push
        self.newer_here = True
        self.newer_there = False

    def refresh(self) -> None:
        """Let the array have the value that the device gave its copy."""
        array = self._array()
        if self.newer_there and array is not None:
            self._pull(self.copy, array)
            self.newer_there = False

    def send(self) -> None:
        """Let the device have the array's value."""
        array = self._array()
        if self.newer_here and array is not None:
            self._push(self.copy, array)
            self.newer_here = False

    def move(self) -> None:
        """Let the value be in the copy alone, which has it, and give the array's memory back."""
        array = self._array()
        if array is not None:
            self.newer_there = True
            release(array)


_mirrors: dict[int, Mirror] = {}


def mirror(array: Array, make: Callable[[Array], Mirror]) -> Mirror:
    """An array's copy on a device, made where there is none."""
    found = _mirrors.get(id(array))
    if found is None:
        found = _mirrors[id(array)] = make(array)
        weakref.finalize(array, _mirrors.pop, id(array), None)
    return found


def refresh(array: Array) -> Array:
    """The array, with the value that a device may have given it."""
    found = _mirrors.get(id(array))
    if found is not None:
        found.refresh()
    return array


def changed(array: Array) -> None:
    """Tell that an array was written to."""
    found = _mirrors.get(id(array))
    if found is not None:
        found.newer_here, found.newer_there = True, False


def drop(array: Array) -> None:
    """Free the copy that no program works on any more; the array holds its value."""
    found = _mirrors.get(id(array))
    if found is not None and not found.users:
        del _mirrors[id(array)]


def there_are_mirrors() -> bool:
    """Whether any array has a copy."""
    return bool(_mirrors)
