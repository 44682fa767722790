"""The loop of a step: kernel after kernel, from a table in memory.

A table has one row for each kernel: the function, its arguments, and whether all threads wait after it. So the code of a plan is its specs' alone: thirty
layers that compute the same thing need nothing more, a single kernel can be run, and each can be timed.
"""

from __future__ import annotations

import copy
import functools
import string
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .jit import Program, host, lasting, load_object
from .threads import Team, symbols
from .threads_ir import BARRIER

_STEPS = string.Template("""
declare void @${barrier}(ptr)
declare i32 @clock_gettime(i32, ptr)

define internal i64 @now(ptr %stamp) nounwind {
  %ignored = call i32 @clock_gettime(i32 ${clock}, ptr %stamp)
  %seconds = load i64, ptr %stamp
  %place = getelementptr i8, ptr %stamp, i64 8
  %fraction = load i64, ptr %place
  %scaled = mul i64 %seconds, 1000000000
  %total = add i64 %scaled, %fraction
  ret i64 %total
}

; table: team, rows, first row, row after the last, times (or null), the row at which to commit (or 0), addresses of words that tell of faults, how many
; row: function, arguments, whether to wait after it
define void @steps(i64 %thread, i64 %threads, ptr %table) {
entry:
  %stamp = alloca { i64, i64 }
  %team = load ptr, ptr %table
  %rows.place = getelementptr i64, ptr %table, i64 1
  %rows = load ptr, ptr %rows.place
  %first.place = getelementptr i64, ptr %table, i64 2
  %first = load i64, ptr %first.place
  %last.place = getelementptr i64, ptr %table, i64 3
  %last = load i64, ptr %last.place
  %times.place = getelementptr i64, ptr %table, i64 4
  %times = load ptr, ptr %times.place
  %timed = icmp ne ptr %times, null
  %commit.place = getelementptr i64, ptr %table, i64 5
  %commit = load i64, ptr %commit.place
  %words.place = getelementptr i64, ptr %table, i64 6
  %words = load ptr, ptr %words.place
  %count.place = getelementptr i64, ptr %table, i64 7
  %count = load i64, ptr %count.place
  br label %head
head:
  %i = phi i64 [ %first, %entry ], [ %next, %following ], [ %next, %look ]
  %more = icmp slt i64 %i, %last
  br i1 %more, label %one, label %done
one:
  %number = mul i64 %i, 3
  %function.place = getelementptr i64, ptr %rows, i64 %number
  %function = load ptr, ptr %function.place
  %arguments.place = getelementptr i64, ptr %function.place, i64 1
  %arguments = load ptr, ptr %arguments.place
  %waits.place = getelementptr i64, ptr %function.place, i64 2
  %waits = load i64, ptr %waits.place
  br i1 %timed, label %measured, label %plain
plain:
  call void %function(i64 %thread, i64 %threads, ptr %arguments)
  br label %after
measured:
  %before = call i64 @now(ptr %stamp)
  call void %function(i64 %thread, i64 %threads, ptr %arguments)
  %end = call i64 @now(ptr %stamp)
  %line = mul i64 %i, %threads
  %cell = add i64 %line, %thread
  %twice = mul i64 %cell, 2
  %start.place = getelementptr i64, ptr %times, i64 %twice
  store i64 %before, ptr %start.place
  %end.place = getelementptr i64, ptr %start.place, i64 1
  store i64 %end, ptr %end.place
  br label %after
after:
  %wait = icmp ne i64 %waits, 0
  br i1 %wait, label %barrier, label %following
barrier:
  call void @${barrier}(ptr %team)
  br label %following
following:
  %next = add i64 %i, 1
  %commits = icmp eq i64 %next, %commit
  br i1 %commits, label %look, label %head
look:
  ; All threads have waited here: each sees the same words, and goes on or leaves like the others.
  %k = phi i64 [ 0, %following ], [ %k.next, %whole ]
  %looked = icmp sge i64 %k, %count
  br i1 %looked, label %head, label %word
word:
  %word.place = getelementptr ptr, ptr %words, i64 %k
  %word.address = load ptr, ptr %word.place
  %told = load i64, ptr %word.address
  %faulty = icmp ne i64 %told, 0
  br i1 %faulty, label %done, label %whole
whole:
  %k.next = add i64 %k, 1
  br label %look
done:
  ret void
}

; arguments: five of every kernel, then source, target, bytes: what a leaf takes over at the end of a step
define void @copy(i64 %thread, i64 %threads, ptr %arguments) {
  %source.place = getelementptr i64, ptr %arguments, i64 5
  %source = load ptr, ptr %source.place
  %target.place = getelementptr i64, ptr %arguments, i64 6
  %target = load ptr, ptr %target.place
  %bytes.place = getelementptr i64, ptr %arguments, i64 7
  %bytes = load i64, ptr %bytes.place
  %scaled = mul i64 %thread, %bytes
  %first = udiv i64 %scaled, %threads
  %other = add i64 %thread, 1
  %scaled.other = mul i64 %other, %bytes
  %last = udiv i64 %scaled.other, %threads
  %count = sub i64 %last, %first
  %from = getelementptr i8, ptr %source, i64 %first
  %to = getelementptr i8, ptr %target, i64 %first
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %count, i1 false)
  ret void
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
""")

FIXED = 5
"""Arguments of every kernel before its operands: team, scratch of all threads, bytes of one thread's, shared scratch, faults."""


class Row(NamedTuple):
    """One kernel of a step.

    Attributes:
        function: its address.
        arguments: the fixed ones, then addresses of operands and results.
        waits: whether all threads wait after it.
    """

    function: int
    arguments: Sequence[int]
    waits: bool


# Threads that are first at the same time make one each, and use the addresses of their own: none is freed.
_made: list[Program] = []


_ahead: list[threading.Thread] = []


def make_ahead() -> None:
    """Compile what every process needs once on a thread of its own: the first build still has a plan to make, on one core."""
    if _ahead or host().cores < 2:
        return
    thread = threading.Thread(target=_made_runtime, name="darner start", daemon=True)
    _ahead.append(thread)
    if _ahead[0] is thread:  # of several that come here at once, one starts
        thread.start()


def _runtime() -> Program:
    if _ahead and _ahead[0].is_alive() and _ahead[0] is not threading.current_thread():
        _ahead[0].join()
    return _made_runtime()


@functools.cache
def _made_runtime() -> Program:
    clock = getattr(time, "CLOCK_MONOTONIC", 1)
    text = _STEPS.substitute(barrier=BARRIER, clock=clock)
    program = load_object(lasting(text), symbols=symbols())
    _made.append(program)
    return program


def copy_function() -> int:
    """The address of the kernel that copies bytes."""
    return _runtime().address("copy")


class Steps:
    """Rows in memory, and the call that runs them.

    Args:
        team: the threads.
        rows: what they run.
        commit: after how many rows to look for faults, and leave where there is one; the last of these rows has the threads wait.
        words: addresses of what is then looked at: a fault makes it other than 0.

    Attributes:
        arguments: of all rows one after another; ``places`` says which are whose.
    """

    def __init__(
        self, team: Team, rows: Sequence[Row], commit: int = 0, words: Sequence[int] = ()
    ) -> None:
        self._team = team
        self._commit, self._words = commit, np.array(words, np.uint64)
        self._function = _runtime().address("steps")
        self._starts = np.cumsum([0, *(len(row.arguments) for row in rows)])
        self.arguments = np.array([x for row in rows for x in row.arguments], np.uint64)
        self._rows = np.zeros((len(rows), 3), np.uint64)
        for i, row in enumerate(rows):
            place = self.arguments.ctypes.data + 8 * int(self._starts[i])
            self._rows[i] = (row.function, place, int(row.waits))
        self._make_table()

    def _make_table(self) -> None:
        end = [self._commit, self._words.ctypes.data, len(self._words)]
        table = np.array([self._team.pointer, self._rows.ctypes.data, 0, 0, 0, *end], np.uint64)
        self._place = table.ctypes.data
        # Written in every run: a view of plain numbers takes a third of an array's time.
        self._table = table.data

    def __len__(self) -> int:
        return len(self._rows)

    def places(self, uses: Sequence[tuple[int, int]]) -> npt.NDArray[np.int64]:
        """Where in ``arguments`` the addresses of operands and results are, each given by row and number."""
        return np.array([int(self._starts[row]) + FIXED + number for row, number in uses], np.int64)

    def repeated(self, count: int) -> Steps:
        """These rows so many times over, all threads waiting after each time: what a benchmark runs in one call."""
        made = copy.copy(self)
        made._rows = np.tile(self._rows, (count, 1))
        made._rows[len(self) - 1 :: len(self), 2] = 1
        made._commit = 0
        made._make_table()
        return made

    def run(
        self, first: int = 0, last: int | None = None, times: npt.NDArray[np.int64] | None = None
    ) -> None:
        """Run the kernels from ``first`` to before ``last``.

        ``times`` of shape (kernels, threads, 2) takes when each thread began and ended each, in nanoseconds.
        """
        table = self._table
        table[2] = first
        table[3] = len(self._rows) if last is None else last
        table[4] = 0 if times is None else times.ctypes.data
        self._team.run(self._function, self._place)
