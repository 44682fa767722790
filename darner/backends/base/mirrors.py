"""Values of the process that a device has a copy of, or a program in another order: which of the two is newer.

A session keeps parameters and states as arrays of the process. A device works on copies of its own, and nothing is copied until somebody reads what the other has written.
Who reads such an array calls ``refresh`` first, who has written one calls ``changed``; for arrays that no device knows both do nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from ...graph.data import Array
from ...io.memory import release


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
        _note_change()

    def refresh(self) -> None:
        """Let the array have the value that the device gave its copy."""
        array = self._array()
        if self.newer_there and array is not None:
            self._pull(self.copy, array)
            self.newer_there = False
            _note_change()

    def send(self) -> None:
        """Let the device have the array's value."""
        array = self._array()
        if self.newer_here and array is not None:
            self._push(self.copy, array)
            self.newer_here = False

    def fill(self) -> None:
        """Let the copy have the value, wherever it is."""
        array = self._array()
        if array is None or self.newer_there:
            return
        for one in _mirrors[id(array)]:
            one.refresh()
        self.send()

    def take(self) -> None:
        """Let the copy be the only one that has the value: it will be changed there. The memory of the array, and of copies that nobody uses, is given back."""
        if self.newer_there:
            return
        self.fill()
        array = self._array()
        if array is not None:
            found = _mirrors[id(array)]
            found[:] = [one for one in found if one is self or one.users]
            for one in found:
                one.newer_here = True
            _note_change()
            self.newer_here, self.newer_there = False, True
            release(array)


_mirrors: dict[int, list[Mirror]] = {}
"""By array, its copies: the value is in the array, or in one of them."""
_numbers = count(1)
_changes = [0]


def mirror(array: Array, make: Callable[[Array], Mirror], owner: object = None) -> Mirror:
    """An array's copy on a device, made where there is none; with an owner that one's, beside those of others."""
    found = _mirrors.get(id(array))
    if found is None:
        found = _mirrors[id(array)] = []
        weakref.finalize(array, _mirrors.pop, id(array), None)
    for one in found:
        if owner is None or one.owner == owner:
            return one
    for one in found:
        one.refresh()
    found.append(make(array))
    return found[-1]


def mirrors_of(array: Array) -> Sequence[Mirror]:
    """All copies of an array."""
    return _mirrors.get(id(array), ())


def refresh(array: Array) -> Array:
    """The array, with the value that a device may have given it."""
    for one in _mirrors.get(id(array), ()):
        one.refresh()
    return array


def changed(array: Array) -> None:
    """Tell that an array was written to."""
    for one in _mirrors.get(id(array), ()):
        one.newer_here, one.newer_there = True, False
        _note_change()


def changes() -> int:
    """Another number whenever an array has become newer than a copy of it: until then nobody need look for such."""
    return _changes[0]


def _note_change() -> None:
    _changes[0] = next(_numbers)


def drop(array: Array) -> None:
    """Free the copies that no program works on any more; the array holds its value."""
    found = _mirrors.get(id(array))
    if found:
        found[:] = [one for one in found if one.users]


def there_are_mirrors() -> bool:
    """Whether any array has a copy."""
    return bool(_mirrors)
