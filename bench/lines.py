"""What it costs that two cores use the same lines of cache: ``python -m bench.lines``.

A thread writes lines that all threads have read since: each store waits until the others have let go of its line. On virtual machines that depends on where the host has put
the virtual cores, which changes while a benchmark runs: beside each other, it is a few nanoseconds a line; apart, in different dies or sockets, many times that.
"""

import argparse
import statistics
import time

import numpy as np

from darner.backends.cpu.runtime.jit import compile_module, load_object
from darner.backends.cpu.runtime.threads import Team, symbols

LINE = 64
BYTES = 384 << 10
"""That all threads read, and of which each writes its share: what a cache next to a core holds."""
ROUNDS = 40

_LOOP = """
; arguments: memory, its lines
define void @{name}(i64 %thread, i64 %threads, ptr %arguments) {{
entry:
  %memory = load ptr, ptr %arguments
  %count.at = getelementptr i64, ptr %arguments, i64 1
  %count = load i64, ptr %count.at
  %scaled = mul i64 %thread, %count
  %low = udiv i64 %scaled, %threads
  %after = add i64 %thread, 1
  %scaled.after = mul i64 %after, %count
  %high = udiv i64 %scaled.after, %threads
  br label %check
check:
  %i = phi i64 [ {first}, %entry ], [ %next, %body ]
  %more = icmp ult i64 %i, {last}
  br i1 %more, label %body, label %done
body:
  %distance = mul i64 %i, 64
  %place = getelementptr i8, ptr %memory, i64 %distance
  {act}
  %next = add i64 %i, 1
  br label %check
done:
  ret void
}}
"""
WRITE = _LOOP.format(
    name="write", first="%low", last="%high", act="store volatile i64 %i, ptr %place"
)
READ = _LOOP.format(
    name="read", first="0", last="%count", act="%value = load volatile i64, ptr %place"
)


class Lines:
    """A team with memory that it shares."""

    def __init__(self, threads: int = 2) -> None:
        self.team = Team(threads)
        self.program = load_object(compile_module(WRITE + READ), symbols=symbols())
        room = np.zeros(BYTES + LINE, np.uint8)
        start = -room.ctypes.data % LINE
        self.memory = room[start : start + BYTES]
        self.arguments = np.array([self.memory.ctypes.data, BYTES // LINE], np.int64)

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_: object) -> None:
        self.team.close()

    def _spent(self, name: str) -> float:
        start = time.perf_counter()
        self.team.run(self.program.address(name), self.arguments.ctypes.data)
        return time.perf_counter() - start

    def nanoseconds(self) -> float:
        """For each line that a thread writes and others have read, beyond what writing it again takes: the median of some rounds."""
        found = []
        for _ in range(ROUNDS):
            self._spent("read")
            shared, again = self._spent("write"), self._spent("write")
            found.append(shared - again)
        return statistics.median(found) / (BYTES / LINE / self.team.threads) * 1e9


def shared_line(threads: int) -> float | None:
    """Nanoseconds that a thread waits for each line which another has read; None for one thread."""
    if threads < 2:
        return None
    with Lines(threads) as lines:
        return lines.nanoseconds()


def main() -> None:
    """Print it once in a while."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--every", type=float, default=1.0, help="seconds")
    options = parser.parse_args()
    with Lines(options.threads) as lines:
        for _ in range(options.times):
            print(f"{lines.nanoseconds():.1f} ns a line")
            time.sleep(options.every)


if __name__ == "__main__":
    main()
