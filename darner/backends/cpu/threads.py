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
are code generated here. A thread that waits spins for a fifth of a millisecond, then sleeps and uses
no processor time, on Linux in a futex, on other POSIX systems on a condition variable. Where there
are no POSIX threads (Windows) a team has one thread, and asking for more is an error.

Denormal numbers are zero inside a step (x86-64 and aarch64): a tail of them, as softmax and decaying
moments make, would slow it several times. The caller's own setting is put back afterwards.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import string
import sys
import threading
import time
import weakref
from types import TracebackType
from typing import Any, Literal, NamedTuple, get_args

from ...graph.errors import ArgumentError, DarnerError
from .jit import Program, architecture, compile_module, host, load_object

Parking = Literal["futex", "condition", "alone"]
BARRIER = "darner_barrier"

# What a waiting thread spins before it sleeps: longer than the gaps between stages and steps of a
# busy session, far too short to be noticed as load.
SPIN_NANOSECONDS = 200_000
# Generated code keeps tiles on the stack; some C libraries give a thread as little as 128 KiB.
STACK_BYTES = 8 * 2**20
# Each word that is written by one thread and watched by others has this much room for itself.
_LINE = 128
_WORDS = (
    "epoch",  # counts launches; workers wait for it to change
    "idle",  # workers asleep on epoch
    "launch",  # function, argument, threads and spin, constant during a launch
    "pending",  # workers that have not finished the step
    "caller",  # 1 while the caller sleeps on pending
    "arrived",  # threads that came to the barrier
    "generation",  # counts barriers; threads wait for it to change
    "sleepers",  # threads asleep on generation
    "mutex",
    "condition",
)
_OFFSETS = {word: index * _LINE for index, word in enumerate(_WORDS)}
_RECORDS = len(_WORDS) * _LINE
_RECORD = 32  # what a worker is told at its start: team, thread, epoch
_FUTEX_CALL = {"x86_64": 202, "aarch64": 98, "riscv64": 98}

_RUNTIME = string.Template("""
; Returns once the word differs from what was seen. Threads asleep are counted in parked.
define internal void @await(ptr %team, ptr %word, i32 %seen, ptr %parked) nounwind {
entry:
  %stamp = alloca { i64, i64 }
  %spin.pointer = getelementptr i8, ptr %team, i64 ${launch_spin}
  %spin.time = load i64, ptr %spin.pointer
  br label %spin
spin:
  %count = phi i64 [ 0, %entry ], [ %next, %pause ], [ 0, %clock ], [ 0, %park ]
  %deadline = phi i64 [ 0, %entry ], [ %deadline, %pause ], [ %limit, %clock ], [ 0, %park ]
  %value = load atomic i32, ptr %word acquire, align 4
  %changed = icmp ne i32 %value, %seen
  br i1 %changed, label %done, label %pause
pause:
  ${relax}
  %next = add i64 %count, 1
  %long = icmp eq i64 %next, 64
  br i1 %long, label %clock, label %spin
clock:
  %ignored = call i32 @clock_gettime(i32 ${clock}, ptr %stamp)
  %seconds = load i64, ptr %stamp
  %fraction.pointer = getelementptr i8, ptr %stamp, i64 8
  %fraction = load i64, ptr %fraction.pointer
  %scaled = mul i64 %seconds, 1000000000
  %now = add i64 %scaled, %fraction
  %first = icmp eq i64 %deadline, 0
  %end = add i64 %now, %spin.time
  %limit = select i1 %first, i64 %end, i64 %deadline
  %late = icmp sge i64 %now, %limit
  br i1 %late, label %park, label %spin
park:
  %before = atomicrmw add ptr %parked, i32 1 seq_cst
  call void @park(ptr %team, ptr %word, i32 %seen)
  %after = atomicrmw sub ptr %parked, i32 1 seq_cst
  br label %spin
done:
  ret void
}

; Wakes who sleeps on a word. The word was changed before, in sequential order with parked.
define internal void @signal(ptr %team, ptr %word, ptr %parked) nounwind {
  %asleep = load atomic i32, ptr %parked seq_cst, align 4
  %any = icmp ne i32 %asleep, 0
  br i1 %any, label %wake, label %done
wake:
  call void @wake(ptr %team, ptr %word)
  br label %done
done:
  ret void
}

define void @${barrier}(ptr %team) nounwind {
  %threads.pointer = getelementptr i8, ptr %team, i64 ${launch_threads}
  %threads = load i64, ptr %threads.pointer
  %alone = icmp eq i64 %threads, 1
  br i1 %alone, label %done, label %arrive
arrive:
  %arrived = getelementptr i8, ptr %team, i64 ${arrived}
  %generation = getelementptr i8, ptr %team, i64 ${generation}
  %sleepers = getelementptr i8, ptr %team, i64 ${sleepers}
  %now = load atomic i32, ptr %generation acquire, align 4
  %before = atomicrmw add ptr %arrived, i32 1 acq_rel
  %all = trunc i64 %threads to i32
  %mine = add i32 %before, 1
  %last = icmp eq i32 %mine, %all
  br i1 %last, label %release, label %wait
release:
  store atomic i32 0, ptr %arrived monotonic, align 4
  %new = add i32 %now, 1
  store atomic i32 %new, ptr %generation seq_cst, align 4
  call void @signal(ptr %team, ptr %generation, ptr %sleepers)
  ret void
wait:
  call void @await(ptr %team, ptr %generation, i32 %now, ptr %sleepers)
  br label %done
done:
  ret void
}

define internal void @step(ptr %function, i64 %thread, i64 %threads, ptr %argument) {
  ${flush}
  call void %function(i64 %thread, i64 %threads, ptr %argument)
  ${restore}
  ret void
}

define ptr @worker(ptr %record) {
entry:
  %team = load ptr, ptr %record
  %thread.pointer = getelementptr i8, ptr %record, i64 8
  %thread = load i64, ptr %thread.pointer
  %start.pointer = getelementptr i8, ptr %record, i64 16
  %start = load i32, ptr %start.pointer
  %idle = getelementptr i8, ptr %team, i64 ${idle}
  %function.pointer = getelementptr i8, ptr %team, i64 ${launch}
  %argument.pointer = getelementptr i8, ptr %team, i64 ${launch_argument}
  %threads.pointer = getelementptr i8, ptr %team, i64 ${launch_threads}
  %pending = getelementptr i8, ptr %team, i64 ${pending}
  %caller = getelementptr i8, ptr %team, i64 ${caller}
  br label %wait
wait:
  %seen = phi i32 [ %start, %entry ], [ %epoch, %run ], [ %epoch, %last ]
  call void @await(ptr %team, ptr %team, i32 %seen, ptr %idle)
  %epoch = load atomic i32, ptr %team acquire, align 4
  %function = load ptr, ptr %function.pointer
  %argument = load ptr, ptr %argument.pointer
  %threads = load i64, ptr %threads.pointer
  %stop = icmp eq ptr %function, null
  br i1 %stop, label %quit, label %run
run:
  call void @step(ptr %function, i64 %thread, i64 %threads, ptr %argument)
  %before = atomicrmw sub ptr %pending, i32 1 seq_cst
  %finished = icmp eq i32 %before, 1
  br i1 %finished, label %last, label %wait
last:
  call void @signal(ptr %team, ptr %pending, ptr %caller)
  br label %wait
quit:
  ret ptr null
}

; Runs a function on all threads; without a function, sends the workers away and does not wait.
define void @launch(ptr %team, ptr %function, ptr %argument) {
  %idle = getelementptr i8, ptr %team, i64 ${idle}
  %function.pointer = getelementptr i8, ptr %team, i64 ${launch}
  %argument.pointer = getelementptr i8, ptr %team, i64 ${launch_argument}
  %threads.pointer = getelementptr i8, ptr %team, i64 ${launch_threads}
  %pending = getelementptr i8, ptr %team, i64 ${pending}
  %caller = getelementptr i8, ptr %team, i64 ${caller}
  %threads = load i64, ptr %threads.pointer
  %all = trunc i64 %threads to i32
  %workers = sub i32 %all, 1
  store ptr %function, ptr %function.pointer
  store ptr %argument, ptr %argument.pointer
  store atomic i32 %workers, ptr %pending monotonic, align 4
  %before = atomicrmw add ptr %team, i32 1 seq_cst
  call void @signal(ptr %team, ptr %team, ptr %idle)
  %stop = icmp eq ptr %function, null
  br i1 %stop, label %done, label %run
run:
  call void @step(ptr %function, i64 0, i64 %threads, ptr %argument)
  br label %check
check:
  %left = load atomic i32, ptr %pending acquire, align 4
  %finished = icmp eq i32 %left, 0
  br i1 %finished, label %done, label %wait
wait:
  call void @await(ptr %team, ptr %pending, i32 %left, ptr %caller)
  br label %check
done:
  ret void
}
""")

_FUTEX = string.Template("""
define internal void @park(ptr %team, ptr %word, i32 %seen) nounwind {
  %ignored = call i64 (i64, ...) @syscall(i64 ${call}, ptr %word, i64 128, i32 %seen, ptr null, ptr null, i64 0)
  ret void
}
define internal void @wake(ptr %team, ptr %word) nounwind {
  %ignored = call i64 (i64, ...) @syscall(i64 ${call}, ptr %word, i64 129, i64 2147483647, ptr null, ptr null, i64 0)
  ret void
}
declare i64 @syscall(i64, ...)
declare i32 @clock_gettime(i32, ptr)
""")

_CONDITION = string.Template("""
define internal void @park(ptr %team, ptr %word, i32 %seen) nounwind {
  %mutex = getelementptr i8, ptr %team, i64 ${mutex}
  %condition = getelementptr i8, ptr %team, i64 ${condition}
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  br label %check
check:
  %value = load atomic i32, ptr %word acquire, align 4
  %same = icmp eq i32 %value, %seen
  br i1 %same, label %wait, label %done
wait:
  %waited = call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %check
done:
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}
define internal void @wake(ptr %team, ptr %word) nounwind {
  %mutex = getelementptr i8, ptr %team, i64 ${mutex}
  %condition = getelementptr i8, ptr %team, i64 ${condition}
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  %woken = call i32 @pthread_cond_broadcast(ptr %condition)
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @clock_gettime(i32, ptr)
""")

# For a team of one thread, which never waits.
_ALONE = """
define internal void @park(ptr %team, ptr %word, i32 %seen) nounwind {
  ret void
}
define internal void @wake(ptr %team, ptr %word) nounwind {
  ret void
}
define internal i32 @clock_gettime(i32 %clock, ptr %stamp) nounwind {
  store { i64, i64 } zeroinitializer, ptr %stamp
  ret i32 0
}
"""


class _Dialect(NamedTuple):
    """What an architecture has its own instructions for."""

    relax: str = ""
    flush: str = ""
    restore: str = ""
    declarations: str = ""


_DIALECTS = {
    "x86_64": _Dialect(
        relax="call void @llvm.x86.sse2.pause()",
        # Bits 15 and 6 of MXCSR: results, then operands, that are denormal count as zero.
        flush="""%saved = alloca i32
  %changed = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %saved)
  %control = load i32, ptr %saved
  %flushing = or i32 %control, 32832
  store i32 %flushing, ptr %changed
  call void @llvm.x86.sse.ldmxcsr(ptr %changed)""",
        restore="call void @llvm.x86.sse.ldmxcsr(ptr %saved)",
        declarations="""declare void @llvm.x86.sse2.pause()
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)""",
    ),
    "aarch64": _Dialect(
        relax="call void @llvm.aarch64.hint(i32 1)",
        # Bit 24 of FPCR: denormal operands and results count as zero.
        flush="""%control = call i64 @llvm.aarch64.get.fpcr()
  %flushing = or i64 %control, 16777216
  call void @llvm.aarch64.set.fpcr(i64 %flushing)""",
        restore="call void @llvm.aarch64.set.fpcr(i64 %control)",
        declarations="""declare void @llvm.aarch64.hint(i32)
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)""",
    ),
}


class TeamError(DarnerError, RuntimeError):
    """A team that is closed, cannot start its threads, or was used from inside its own step."""


def runtime_text(triple: str, parking: Parking) -> str:
    """LLVM IR of the barrier, the workers and the launch, for a target."""
    kind = architecture(triple)
    dialect = _DIALECTS.get(kind, _Dialect())
    names = {word: str(offset) for word, offset in _OFFSETS.items()}
    names |= {
        "launch_argument": str(_OFFSETS["launch"] + 8),
        "launch_threads": str(_OFFSETS["launch"] + 16),
        "launch_spin": str(_OFFSETS["launch"] + 24),
        "barrier": BARRIER,
        "clock": str(getattr(time, "CLOCK_MONOTONIC", 1)),
        "relax": dialect.relax,
        "flush": dialect.flush,
        "restore": dialect.restore,
    }
    if parking == "futex":
        if kind not in _FUTEX_CALL:
            raise ArgumentError(f"no futex is known on {kind}", hint="parking='condition' is")
        park = _FUTEX.substitute(call=_FUTEX_CALL[kind])
    elif parking == "condition":
        park = _CONDITION.substitute(names)
    elif parking == "alone":
        park = _ALONE
    else:
        raise ArgumentError(f"parking is {parking!r}, but threads sleep by {get_args(Parking)}")
    return _RUNTIME.substitute(names) + park + dialect.declarations + "\n"


def default_parking() -> Parking:
    """How threads sleep on this system: in a futex where it has them; alone without threads."""
    if os.name != "posix":
        return "alone"
    known = sys.platform == "linux" and host().architecture in _FUTEX_CALL
    return "futex" if known else "condition"


def symbols(parking: Parking | None = None) -> dict[str, int]:
    """What a step may call, by name, for ``load_object``.

    >>> list(symbols())
    ['darner_barrier']
    """
    return {BARRIER: _runtime(parking or default_parking()).barrier}


class _Runtime(NamedTuple):
    program: Program  # keeps the addresses valid
    barrier: int
    worker: int
    launch: Any


@functools.cache
def _runtime(parking: Parking) -> _Runtime:
    program = load_object(compile_module(runtime_text(host().triple, parking)))
    # CFUNCTYPE gives the interpreter lock up for the length of the call.
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    launch = kind(program.address("launch"))
    return _Runtime(program, program.address(BARRIER), program.address("worker"), launch)


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
        size = _RECORDS + threads * _RECORD
        self._memory = (ctypes.c_char * (size + _LINE))()
        self.address = -(-ctypes.addressof(self._memory) // _LINE) * _LINE
        self.runtime = _runtime(parking)
        self.closed = False
        self.forks = -1
        launch = self.address + _OFFSETS["launch"]
        ctypes.c_int64.from_address(launch + 16).value = threads
        # With more threads than cores, who spins keeps the core from whom it waits for.
        spin = SPIN_NANOSECONDS if threads <= host().cores else 0
        ctypes.c_int64.from_address(launch + 24).value = spin
        self.renew()

    @property
    def threads(self) -> int:
        return ctypes.c_int64.from_address(self.address + _OFFSETS["launch"] + 16).value

    def renew(self) -> None:
        """A crew with no workers yet, in this process, whatever state a fork found it in."""
        with _renewing:
            if self.forks == _forks:
                return  # another thread of this process was first, and may have started workers
            self.lock = threading.Lock()
            self.owner: int | None = None
            self.handles: list[Any] = []
            for word, offset in _OFFSETS.items():
                if word != "launch":
                    ctypes.memset(self.address + offset, 0, _LINE)
            if self.threads > 1:
                system = _system()
                mutex, condition = _OFFSETS["mutex"], _OFFSETS["condition"]
                system.pthread_mutex_init(ctypes.c_void_p(self.address + mutex), None)
                system.pthread_cond_init(ctypes.c_void_p(self.address + condition), None)
            self.forks = _forks

    def start(self) -> None:
        """Start the workers; all of them, or none and an error."""
        epoch = ctypes.c_int32.from_address(self.address).value
        try:
            # Signals are for the threads that run Python; faults stay with whoever makes them.
            faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
            masked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
            try:
                for thread in range(1, self.threads):
                    self.handles.append(self._start_worker(thread, epoch))
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        except BaseException:
            self.dismiss()
            raise

    def _start_worker(self, thread: int, epoch: int) -> Any:
        system = _system()
        record = self.address + _RECORDS + thread * _RECORD
        ctypes.c_void_p.from_address(record).value = self.address
        ctypes.c_int64.from_address(record + 8).value = thread
        ctypes.c_int32.from_address(record + 16).value = epoch
        attributes = (ctypes.c_char * 256)()
        handle = ctypes.c_void_p()
        system.pthread_attr_init(attributes)
        system.pthread_attr_setstacksize(attributes, ctypes.c_size_t(STACK_BYTES))
        worker = ctypes.c_void_p(self.runtime.worker)
        failed = system.pthread_create(
            ctypes.byref(handle), attributes, worker, ctypes.c_void_p(record)
        )
        system.pthread_attr_destroy(attributes)
        if failed:
            raise TeamError(
                f"thread {thread} of {self.threads} cannot be started: {os.strerror(failed)}",
                hint="ask for fewer threads",
            )
        if sys.platform == "linux":
            system.pthread_setname_np(handle, f"darner-{thread}".encode())
        return handle

    def dismiss(self) -> None:
        """Send the workers away and wait until they are gone."""
        if self.forks != _forks or not self.handles:
            return
        self.runtime.launch(self.address, None, None)
        while self.handles:
            _system().pthread_join(self.handles.pop(), None)

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Team(threads={self.threads}{', closed' if self.closed else ''})"
