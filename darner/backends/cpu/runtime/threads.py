"""Teams of threads that run one native function side by side.

A step is a native function ``void step(i64 thread, i64 threads, ptr argument)``. A team of N runs it
on N threads at once, the caller being thread 0, and returns when all have:

    team = Team(threads=4)
    argument = ...  # a block of memory that holds, among others, team.pointer
    team.run(program.address("step"), argument)

Inside a step, ``void darner_barrier(ptr team)`` waits until every thread of the team has come to it;
what any thread wrote before is then seen by all. Its address is in ``symbols()``, for
``load_object``.

A launch is one native call, made without Python's interpreter lock: dispatch, barriers and parking
are code generated here. A thread that waits spins for a fifth of a millisecond (on Linux it yields its
core meanwhile, where another thread of its team is there too; a worker on the caller's core goes to another first), then sleeps and uses no processor time, on Linux in a futex, on other POSIX systems on a condition variable. Where there
are no POSIX threads (Windows) a team has one thread, and asking for more is an error.

Denormal numbers are zero inside a step (x86-64 and aarch64): a tail of them, as softmax and decaying
moments make, would slow it several times. The caller's own setting is put back afterwards.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
import threading
import weakref
from typing import Any, NamedTuple

from ....graph.errors import ArgumentError, DarnerError
from ....graph.integers import round_up
from .jit import Program, host, lasting, load_object
from .threads_ir import BARRIER, FUTEX_CALL, LINE, OFFSETS, RECORD, RECORDS, Parking, runtime_text

# What a waiting thread spins before it sleeps: longer than the gaps between stages and steps of a
# busy session, far too short to be noticed as load.
SPIN_NANOSECONDS = 200_000
# Generated code keeps tiles on the stack; some C libraries give a thread as little as 128 KiB.
STACK_BYTES = 8 * 2**20


class TeamError(DarnerError, RuntimeError):
    """A team that is closed, cannot start its threads, or was used from inside its own step."""


def default_parking() -> Parking:
    """How threads sleep on this system: in a futex where it has them; alone without threads."""
    if os.name != "posix":
        return "alone"
    known = sys.platform == "linux" and host().architecture in FUTEX_CALL
    return "futex" if known else "condition"


def symbols(parking: Parking | None = None) -> dict[str, int]:
    """What a step may call, by name, for ``load_object``.

    >>> list(symbols())
    ['darner_barrier']
    """
    return {BARRIER: _runtime(parking or default_parking()).barrier}


class _Runtime(NamedTuple):
    barrier: int
    worker: int
    launch: Any


# Threads that are first at the same time make one runtime each. Only one stays in the cache, but code
# was linked to all of them: none may be freed.
_made: list[Program] = []


@functools.cache
def _runtime(parking: Parking) -> _Runtime:
    program = load_object(lasting(runtime_text(host().triple, parking)))
    _made.append(program)
    # CFUNCTYPE gives the interpreter lock up for the length of the call.
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    launch = kind(program.address("launch"))
    return _Runtime(program.address(BARRIER), program.address("worker"), launch)


# Changes in every forked child, where the workers of the teams it inherits do not exist.
_forks = 0
# Reentrant: collecting garbage inside may close another inherited team.
_renewing = threading.RLock()


def _after_fork() -> None:
    global _forks, _renewing
    _forks += 1
    _renewing = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Crew:
    """The memory and the workers of a team: what outlives it until the workers are gone."""

    __slots__ = ("_memory", "address", "closed", "forks", "handles", "lock", "owner", "runtime")

    def __init__(self, threads: int, parking: Parking) -> None:
        size = RECORDS + threads * RECORD
        self._memory = (ctypes.c_char * (size + LINE))()
        self.address = round_up(ctypes.addressof(self._memory), LINE)
        self.runtime = _runtime(parking)
        self.closed = False
        self.forks = -1
        launch = self.address + OFFSETS["launch"]
        ctypes.c_int64.from_address(launch + 16).value = threads
        # With more threads than cores, who spins keeps the core from whom it waits for.
        spin = SPIN_NANOSECONDS if threads <= host().cores else 0
        ctypes.c_int64.from_address(launch + 24).value = spin
        self.renew()

    @property
    def threads(self) -> int:
        return ctypes.c_int64.from_address(self.address + OFFSETS["launch"] + 16).value

    def renew(self) -> None:
        """A crew with no workers yet, in this process, whatever state a fork found it in."""
        with _renewing:
            if self.forks == _forks:
                return  # another thread of this process was first, and may have started workers
            self.lock = threading.Lock()
            self.owner: int | None = None
            self.handles: list[Any] = []
            for word, offset in OFFSETS.items():
                if word != "launch":
                    ctypes.memset(self.address + offset, 0, LINE)
            if self.threads > 1:
                system = _system()
                mutex, condition = OFFSETS["mutex"], OFFSETS["condition"]
                system.pthread_mutex_init(ctypes.c_void_p(self.address + mutex), None)
                system.pthread_cond_init(ctypes.c_void_p(self.address + condition), None)
            self.forks = _forks

    def start(self) -> None:
        """Start the workers; all of them, or none and an error."""
        epoch = ctypes.c_int32.from_address(self.address).value
        try:
            # Signals are for the threads that run Python; faults stay with whoever makes them.
            faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
            # Asked for first: an interrupt as they are blocked must not leave them so.
            masked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
            try:
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
                for thread in range(1, self.threads):
                    self._start_worker(thread, epoch)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        except BaseException:
            self.dismiss()
            raise

    def _start_worker(self, thread: int, epoch: int) -> None:
        system = _system()
        record = self.address + RECORDS + thread * RECORD
        ctypes.c_void_p.from_address(record).value = self.address
        ctypes.c_int64.from_address(record + 8).value = thread
        ctypes.c_int32.from_address(record + 16).value = epoch
        attributes = (ctypes.c_char * 256)()
        # Listed before it is started: an interrupt may come as soon as it runs, and must not lose it.
        handle = ctypes.c_void_p()
        self.handles.append(handle)
        system.pthread_attr_init(attributes)
        system.pthread_attr_setstacksize(attributes, ctypes.c_size_t(STACK_BYTES))
        worker = ctypes.c_void_p(self.runtime.worker)
        failed = system.pthread_create(
            ctypes.byref(handle), attributes, worker, ctypes.c_void_p(record)
        )
        system.pthread_attr_destroy(attributes)
        if failed:
            handle.value = None  # whatever was left in it
            raise TeamError(
                f"thread {thread} of {self.threads} cannot be started: {os.strerror(failed)}",
                hint="ask for fewer threads",
            )
        if sys.platform == "linux":
            system.pthread_setname_np(handle, f"darner-{thread}".encode())

    def dismiss(self) -> None:
        """Send the workers away and wait until they are gone."""
        if self.forks != _forks or not self.handles:
            return
        try:
            self.runtime.launch(self.address, None, None)
        finally:  # an interrupt in between leaves no worker that a later launch would wait for
            while self.handles:
                handle = self.handles.pop()
                if handle.value:
                    _system().pthread_join(handle, None)

    def close(self) -> None:
        if self.forks != _forks:
            self.renew()
        with self.lock:
            self.closed = True
            self.dismiss()


@functools.cache
def _system() -> Any:
    return ctypes.CDLL(None)


class Team:
    """Threads that run native functions side by side.

    Workers start at the first launch and sleep between launches. A team may be used from several
    Python threads, whose launches then take turns, and in forked children, where it starts workers
    of its own. It closes when it is collected.

    Args:
        threads: how many, the caller included; as many as there are cores when left out.
        parking: how idle threads sleep; as the system does best when left out.

    >>> with Team(threads=1) as team:
    ...     team.threads
    1
    """

    __slots__ = ("__weakref__", "_close", "_crew", "threads")

    def __init__(self, threads: int | None = None, *, parking: Parking | None = None) -> None:
        parking = parking or default_parking()
        if threads is None:
            threads = 1 if parking == "alone" else host().cores
        if threads < 1:
            raise ArgumentError(f"a team of {threads} threads cannot run", hint="1 is the least")
        if threads > 1 and parking == "alone":
            raise ArgumentError(
                f"{threads} threads need POSIX threads, which {sys.platform} has not",
                hint="threads=1 works everywhere",
            )
        self.threads = threads
        self._crew = _Crew(threads, parking)
        self._close = weakref.finalize(self, self._crew.close)

    @property
    def pointer(self) -> int:
        """The address that a step passes to ``darner_barrier``. It never changes."""
        return self._crew.address

    @property
    def closed(self) -> bool:
        """Whether the team can no longer run."""
        return self._crew.closed

    def run(self, function: int, argument: int = 0) -> None:
        """Call ``function(thread, threads, argument)`` on every thread, and wait for all.

        Args:
            function: the address of a native step, as ``Program.address`` gives it.
            argument: the address passed on to it.

        Raises:
            TeamError: the team is closed, its threads cannot be started, or its step called this.
        """
        if not function:
            raise ArgumentError("a step at address 0 cannot run")
        crew = self._crew
        if crew.forks != _forks:
            crew.renew()
        me = threading.get_ident()
        if crew.owner == me:
            raise TeamError("a step cannot run another on its own team", hint="use a second team")
        with crew.lock:
            if crew.closed:
                raise TeamError("the team is closed", hint="make a new one")
            if self.threads > 1 and not crew.handles:
                crew.start()
            crew.owner = me
            try:
                crew.runtime.launch(crew.address, function, argument)
            finally:
                crew.owner = None

    def close(self) -> None:
        """Let the workers finish, and join them. Closing twice is no fault."""
        if self._crew.owner == threading.get_ident():
            raise TeamError("a step cannot close its own team")
        self._close()

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Team(threads={self.threads}{', closed' if self.closed else ''})"
