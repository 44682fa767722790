"""What this processor can do at best: its roofline, measured in a fraction of a second.

Two small native functions run on a team of threads: multiplications with additions on registers alone, and reading memory
that no cache holds. The best of several runs counts. The arithmetic of one core is measured and counted for each core that
runs; memory is shared, so all threads read together, and on a machine that is busy with other work the bandwidth comes out
too low.
"""

from __future__ import annotations

import ctypes
import functools
import string
import time

import numpy as np

from ....optimizer.targets import Target, find_target
from .jit import compile_module, host, load_object
from .threads import Team

CHAINS = 12
"""Sums that grow beside each other: enough to hide the latency of an addition, few enough for 16 registers."""

ROUNDS = 1 << 16
"""Additions of each sum in a run: a fraction of a millisecond, which passes between two interruptions."""

REPEATS = 24
"""Runs, of which the best counts."""

PIECE = 8 << 20
"""Bytes that a run reads; the next one reads others, until what was read first has left the cache."""

ALONE = 0.5
"""The share of the peak that element-wise work can reach: an addition counts one where a fused one counts two."""

SMALLEST, LARGEST = 32 << 20, 128 << 20
"""Bytes that are read at least and at most; between them, twice the last cache. All are multiples of a piece."""

_PEAK = string.Template("""
; arguments: rounds, a line of 64 bytes for each thread
define void @compute(i64 %thread, i64 %threads, ptr %arguments) {
entry:
  %rounds = load i64, ptr %arguments
  %lines.place = getelementptr i64, ptr %arguments, i64 1
  %lines = load ptr, ptr %lines.place
  %place = mul i64 %thread, 64
  %line = getelementptr i8, ptr %lines, i64 %place
  %factor = load ${vector}, ptr %line, align 4
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
${sums}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %rounds
  br i1 %more, label %loop, label %done
done:
${total}
  store ${vector} %total${last}, ptr %line, align 4
  ret void
}
declare ${vector} @llvm.fma.v${lanes}f32(${vector}, ${vector}, ${vector})

; arguments: memory, blocks of ${chains} vectors in all, a line of 64 bytes for each thread
define void @read(i64 %thread, i64 %threads, ptr %arguments) {
entry:
  %memory = load ptr, ptr %arguments
  %blocks.place = getelementptr i64, ptr %arguments, i64 1
  %blocks = load i64, ptr %blocks.place
  %lines.place = getelementptr i64, ptr %arguments, i64 2
  %lines = load ptr, ptr %lines.place
  %place = mul i64 %thread, 64
  %line = getelementptr i8, ptr %lines, i64 %place
  %scaled = mul i64 %thread, %blocks
  %first = udiv i64 %scaled, %threads
  %other = add i64 %thread, 1
  %scaled.other = mul i64 %other, %blocks
  %end = udiv i64 %scaled.other, %threads
  br label %loop
loop:
  %i = phi i64 [ %first, %entry ], [ %next, %loop ]
${loads}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
${total}
  store ${vector} %total${last}, ptr %line, align 4
  ret void
}
""")


def peak_text(vector_bytes: int) -> str:
    """LLVM IR of the two functions, for registers of this many bytes."""
    lanes = vector_bytes // 4
    vector = f"<{lanes} x float>"
    chains = range(CHAINS)
    entering = [
        f"  %sum{c} = phi {vector} [ zeroinitializer, %entry ], [ %new{c}, %loop ]" for c in chains
    ]
    sums = [
        f"  %new{c} = call {vector} @llvm.fma.v{lanes}f32({vector} %sum{c}, {vector} %factor, {vector} %factor)"
        for c in chains
    ]
    loads = [f"  %block = mul i64 %i, {CHAINS}"]
    for c in chains:
        loads += [
            f"  %index{c} = add i64 %block, {c}",
            f"  %from{c} = getelementptr {vector}, ptr %memory, i64 %index{c}",
            f"  %value{c} = load {vector}, ptr %from{c}, align 4",
            f"  %new{c} = fadd {vector} %sum{c}, %value{c}",
        ]
    total = [f"  %total0 = fadd {vector} %new0, zeroinitializer"]
    total += [f"  %total{c} = fadd {vector} %total{c - 1}, %new{c}" for c in chains[1:]]
    return _PEAK.substitute(
        vector=vector,
        lanes=lanes,
        chains=CHAINS,
        last=CHAINS - 1,
        sums="\n".join(entering + sums),
        loads="\n".join(entering + loads),
        total="\n".join(total),
    )


@functools.cache
def measured_target(threads: int | None = None) -> Target:
    """This machine's roofline with so many threads, as many as it has cores by default; measured once.

    The rate of contractions is that of f32, and the time to start a kernel is the ``cpu`` target's.
    """
    machine = host()
    program = load_object(compile_module(peak_text(machine.vector_bytes)))
    try:
        with Team(1) as alone, Team(threads) as team:
            count = team.threads
            lines = np.full(16 * (count + 1), 0.5, np.float32)
            lines_at = lines.ctypes.data
            flops = 2 * ROUNDS * CHAINS * (machine.vector_bytes // 4) * min(count, machine.cores)
            seconds = _best(alone, program.address("compute"), [[ROUNDS, lines_at]])
            memory = np.ones(_bytes_read(machine.l3), np.uint8)
            blocks = PIECE // (CHAINS * machine.vector_bytes)
            starts = range(memory.ctypes.data, memory.ctypes.data + memory.nbytes, PIECE)
            pieces = [[start, blocks, lines_at] for start in starts]
            reading = _best(team, program.address("read"), pieces)
            moved = blocks * CHAINS * machine.vector_bytes
    finally:
        program.close()
    name = f"this machine with {count} thread{'' if count == 1 else 's'}"
    return Target(name, flops / seconds, moved / reading, find_target("cpu").launch, vector=ALONE)


def _bytes_read(cache: int | None) -> int:
    return min(max(2 * (cache or 0), SMALLEST), LARGEST) // PIECE * PIECE


def _best(team: Team, function: int, turns: list[list[int]]) -> float:
    """Seconds of the fastest run; runs take turns with these arguments."""
    tables = [(ctypes.c_uint64 * len(arguments))(*arguments) for arguments in turns]
    best = float("inf")
    for run in range(max(REPEATS, 2 * len(tables))):
        place = ctypes.addressof(tables[run % len(tables)])
        start = time.perf_counter_ns()
        team.run(function, place)
        best = min(best, (time.perf_counter_ns() - start) / 1e9)
    return best
