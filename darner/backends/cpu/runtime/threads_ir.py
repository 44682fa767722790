"""The threads' runtime as LLVM IR: barrier, workers and launch, for every target and way to sleep.

A team is a block of memory of words, one to a line of cache, that its threads watch and change; ``OFFSETS`` says where
each lies. A waiting thread spins for a while (the team's own time), then parks. Where another thread of its team is on its own core
(other programs keep the rest), spinning would only keep that one from coming: it offers the core instead. A worker that begins on the caller's core
leaves it, where there are others.
"""

from __future__ import annotations

import string
import time
from typing import Literal, NamedTuple, get_args

from ....graph.errors import ArgumentError
from .jit import architecture

Parking = Literal["futex", "condition", "alone"]
BARRIER = "darner_barrier"

# Each word that is written by one thread and watched by others has this much room for itself.
LINE = 128
_WORDS = (
    "epoch",  # counts launches; workers wait for it to change
    "idle",  # workers asleep on epoch
    "launch",  # function, argument, threads, spin and the caller's core, constant during a launch
    "pending",  # workers that have not finished the step
    "caller",  # 1 while the caller sleeps on pending
    "arrived",  # threads that came to the barrier
    "generation",  # counts barriers; threads wait for it to change
    "sleepers",  # threads asleep on generation
    "mutex",
    "condition",
    "home",  # the cell below in which the caller counts
    "crowd",  # how many threads of the team are on each core, which share cells where there are many
)
CROWD_CELLS = LINE // 4
OFFSETS = {word: index * LINE for index, word in enumerate(_WORDS)}
RECORDS = len(_WORDS) * LINE
MASK_BYTES = 128  # of the cores that a thread may be on, as glibc has them
RECORD = 32  # what a worker is told at its start: team, thread, epoch
FUTEX_CALL = {"x86_64": 202, "aarch64": 98, "riscv64": 98}

_RUNTIME = string.Template("""
; Returns once the word differs from what was seen. Threads asleep are counted in parked; own is what this thread adds to its core's crowd.
define internal void @await(ptr %team, ptr %word, i32 %seen, ptr %parked, i32 %own) nounwind {
entry:
  %stamp = alloca { i64, i64 }
  %spin.pointer = getelementptr i8, ptr %team, i64 ${launch_spin}
  %spin.time = load i64, ptr %spin.pointer
  br label %spin
spin:
  %count = phi i64 [ 0, %entry ], [ %next, %pause ], [ 0, %look ], [ 0, %offer ], [ 0, %park ]
  %deadline = phi i64 [ 0, %entry ], [ %deadline, %pause ], [ %limit, %look ], [ %limit, %offer ], [ 0, %park ]
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
  br i1 %late, label %park, label %look
look:
  %crowded = call i1 @crowded(ptr %team, i32 %own)
  br i1 %crowded, label %offer, label %spin
offer:
  %offered = call i32 @sched_yield()
  br label %spin
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
  call void @await(ptr %team, ptr %generation, i32 %now, ptr %sleepers, i32 1)
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
  %core.pointer = getelementptr i8, ptr %team, i64 ${launch_core}
  %spin.pointer = getelementptr i8, ptr %team, i64 ${launch_spin}
  ; Between launches a worker counts where it was last: who waits there for it to come offers it the core.
  %cell.first = call ptr @crowd(ptr %team)
  %come.first = atomicrmw add ptr %cell.first, i32 1 monotonic
  br label %wait
wait:
  %seen = phi i32 [ %start, %entry ], [ %epoch, %begin ], [ %epoch, %last ]
  %cell.before = phi ptr [ %cell.first, %entry ], [ %cell, %begin ], [ %cell, %last ]
  call void @await(ptr %team, ptr %team, i32 %seen, ptr %idle, i32 1)
  %epoch = load atomic i32, ptr %team acquire, align 4
  %function = load ptr, ptr %function.pointer
  %argument = load ptr, ptr %argument.pointer
  %threads = load i64, ptr %threads.pointer
  %stop = icmp eq ptr %function, null
  br i1 %stop, label %quit, label %run
run:
  ; Two that only wait for each other may be left on one core for a long time: the worker goes to another.
  %there = load i32, ptr %core.pointer
  %here = call i32 @core()
  %beside = icmp eq i32 %here, %there
  %spin.time = load i64, ptr %spin.pointer
  %room = icmp ne i64 %spin.time, 0
  %moving = and i1 %beside, %room
  br i1 %moving, label %move, label %begin
move:
  call void @away(i32 %here)
  br label %begin
begin:
  %gone = atomicrmw sub ptr %cell.before, i32 1 monotonic
  %cell = call ptr @crowd(ptr %team)
  %come = atomicrmw add ptr %cell, i32 1 monotonic
  call void @step(ptr %function, i64 %thread, i64 %threads, ptr %argument)
  %before = atomicrmw sub ptr %pending, i32 1 seq_cst
  %finished = icmp eq i32 %before, 1
  br i1 %finished, label %last, label %wait
last:
  call void @signal(ptr %team, ptr %pending, ptr %caller)
  br label %wait
quit:
  %left = atomicrmw sub ptr %cell.before, i32 1 monotonic
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
  ; Between launches the caller counts too: there it prepares the next.
  %home = getelementptr i8, ptr %team, i64 ${home}
  %cell.before = load ptr, ptr %home
  %first = icmp eq ptr %cell.before, null
  br i1 %first, label %arrive, label %leave
leave:
  %gone = atomicrmw sub ptr %cell.before, i32 1 monotonic
  br label %arrive
arrive:
  %cell = call ptr @crowd(ptr %team)
  %come = atomicrmw add ptr %cell, i32 1 monotonic
  store ptr %cell, ptr %home
  store ptr %function, ptr %function.pointer
  store ptr %argument, ptr %argument.pointer
  %core = call i32 @core()
  %core.pointer = getelementptr i8, ptr %team, i64 ${launch_core}
  store i32 %core, ptr %core.pointer
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
  call void @await(ptr %team, ptr %pending, i32 %left, ptr %caller, i32 1)
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
define internal i32 @core() nounwind {
  %core = call i32 @sched_getcpu()
  ret i32 %core
}
; Leaves a core for any other that this thread may be on; afterwards it may be on all of them again.
define internal void @away(i32 %core) nounwind {
  %mask = alloca [${mask_bytes} x i8]
  %others = alloca [${mask_bytes} x i8]
  %got = call i32 @sched_getaffinity(i32 0, i64 ${mask_bytes}, ptr %mask)
  %again = call i32 @sched_getaffinity(i32 0, i64 ${mask_bytes}, ptr %others)
  %known = icmp eq i32 %got, 0
  %byte = lshr i32 %core, 3
  %inside = icmp ult i32 %byte, ${mask_bytes}
  %possible = and i1 %known, %inside
  br i1 %possible, label %leave, label %done
leave:
  %place = getelementptr i8, ptr %others, i32 %byte
  %bits = load i8, ptr %place
  %number = and i32 %core, 7
  %bit = shl i32 1, %number
  %keep = xor i32 %bit, 255
  %kept = trunc i32 %keep to i8
  %rest = and i8 %bits, %kept
  store i8 %rest, ptr %place
  ; Without another core this fails, and changes nothing.
  %left = call i32 @sched_setaffinity(i32 0, i64 ${mask_bytes}, ptr %others)
  %back = call i32 @sched_setaffinity(i32 0, i64 ${mask_bytes}, ptr %mask)
  br label %done
done:
  ret void
}
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
define internal ptr @crowd(ptr %team) nounwind {
  %core = call i32 @sched_getcpu()
  %number = and i32 %core, ${last_cell}
  %cells = getelementptr i8, ptr %team, i64 ${crowd}
  %cell = getelementptr i32, ptr %cells, i32 %number
  ret ptr %cell
}
define internal i1 @crowded(ptr %team, i32 %own) nounwind {
  %cell = call ptr @crowd(ptr %team)
  %here = load atomic i32, ptr %cell monotonic, align 4
  %more = icmp sgt i32 %here, %own
  ret i1 %more
}
declare i32 @sched_getcpu()
declare i32 @sched_yield()
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

# Where nobody says on which core a thread is, all count in one cell, and none is taken to be in another's way.
_ANYWHERE = string.Template("""
define internal ptr @crowd(ptr %team) nounwind {
  %cells = getelementptr i8, ptr %team, i64 ${crowd}
  ret ptr %cells
}
define internal i32 @core() nounwind {
  ret i32 -1
}
define internal void @away(i32 %core) nounwind {
  ret void
}
define internal i1 @crowded(ptr %team, i32 %own) nounwind {
  ret i1 false
}
define internal i32 @sched_yield() nounwind {
  ret i32 0
}
""")


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


def runtime_text(triple: str, parking: Parking) -> str:
    """LLVM IR of the barrier, the workers and the launch, for a target."""
    kind = architecture(triple)
    dialect = _DIALECTS.get(kind, _Dialect())
    names = {word: str(offset) for word, offset in OFFSETS.items()}
    names |= {
        "launch_argument": str(OFFSETS["launch"] + 8),
        "launch_threads": str(OFFSETS["launch"] + 16),
        "launch_spin": str(OFFSETS["launch"] + 24),
        "launch_core": str(OFFSETS["launch"] + 32),
        "mask_bytes": str(MASK_BYTES),
        "last_cell": str(CROWD_CELLS - 1),
        "barrier": BARRIER,
        "clock": str(getattr(time, "CLOCK_MONOTONIC", 1)),
        "relax": dialect.relax,
        "flush": dialect.flush,
        "restore": dialect.restore,
    }
    if parking == "futex":
        if kind not in FUTEX_CALL:
            raise ArgumentError(f"no futex is known on {kind}", hint="parking='condition' is")
        park = _FUTEX.substitute(names, call=FUTEX_CALL[kind])
    elif parking == "condition":
        park = _CONDITION.substitute(names) + _ANYWHERE.substitute(names)
    elif parking == "alone":
        park = _ALONE + _ANYWHERE.substitute(names)
    else:
        raise ArgumentError(f"parking is {parking!r}, but threads sleep by {get_args(Parking)}")
    return _RUNTIME.substitute(names) + park + dialect.declarations + "\n"
