"""Processes that fork: what a child can go on with, and what it cannot.

A forked child has all of its parent's memory and one of its threads. Three things in that memory may be of no use to it:

- Locks that another thread held stay held for ever. Who has such locks says so (``watch``), and gets new ones in every child.
- A library that was in the middle of a call in another thread may have locks of its own that nobody can renew. So a fork waits until the calls of compilers
  and solvers that go on in other threads (``native_call``) are over; they take moments.
- Threads that belong to a library, or to a driver, are gone. What needs them raises a ``ForkError`` at once (``Origin``).
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

from .errors import ForkError

PATIENCE = 60.0
"""Seconds that a fork waits for a call of a compiler in another thread."""
SPAWN = 'start processes with multiprocessing.get_context("spawn")'


class Watched(Protocol):
    """What wants to know that it is in a forked child."""

    def after_fork(self) -> None:
        """Runs in the child, which has one thread, before anything else does."""


_watched: weakref.WeakSet[Watched] = weakref.WeakSet()


def watch(one: Watched) -> None:
    """Have ``after_fork`` called in every forked child, as long as somebody else has the object."""
    with _registering:
        _watched.add(one)


# --------------------------------------------------------------------------- calls of compilers


_generation = 0
"""Another number in every forked child."""
_late = False
"""Whether a call did not come to an end before the fork that is going on."""
_abandoned = False
"""Whether that was so when this process was made."""
# Reentrant, all of them: collecting garbage may free compiled code anywhere.
_registering = threading.RLock()
_locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
_held: list[threading.RLock] = []
_own = threading.local()


def native_call() -> threading.RLock:
    """The lock that a thread holds while it is inside a compiler or solver: no fork happens meanwhile.

    Each thread has a lock of its own, so that calls of several go on side by side.

    Raises:
        ForkError: this process was forked while such a call went on that did not come to an end.
    """
    if _abandoned:
        raise ForkError(
            "the process was forked while another thread was compiling, which cannot be done here any more",
            hint=SPAWN,
        )
    lock = getattr(_own, "lock", None)
    if lock is None:
        with _registering:
            lock = _own.lock = threading.RLock()
            _locks.add(lock)
    return lock


def _before() -> None:
    global _late
    _registering.acquire()
    for lock in list(_locks):
        if lock.acquire(timeout=PATIENCE):
            _held.append(lock)
        else:
            _late = True


def _after_in_parent() -> None:
    global _late
    _late = False
    while _held:
        _held.pop().release()
    _registering.release()


def _after_in_child() -> None:
    global _generation, _registering, _own, _late, _abandoned
    _generation += 1
    _late, _abandoned = False, _abandoned or _late
    _held.clear()
    _locks.clear()
    _own = threading.local()
    _registering = threading.RLock()
    for one in list(_watched):
        one.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )


# --------------------------------------------------------------------------- threads of libraries


class Origin:
    """The process in which a library, or a device, began to work with threads of its own.

    >>> origin = Origin("the solver")
    >>> origin.begin()
    """

    def __init__(self, what: str, hint: str = "") -> None:
        self.what = what
        self.hint = f"{SPAWN}{hint}"
        self._generation: int | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether it began in a process that this one was forked from."""
        return self._generation not in (None, _generation)

    def begin(self) -> None:
        """Say that it works here, from now on.

        Raises:
            ForkError: it began in a process that this one was forked from.
        """
        if self._generation is None:
            self._generation = _generation
        elif self.elsewhere:
            raise ForkError(
                f"{self.what} works with threads of the process that this one was forked from, and cannot be used here",
                hint=self.hint,
            )
