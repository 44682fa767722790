"""Saves checkpoints and is killed while it does: the other half of the tests of crashes.

Each line of standard input is an order, answered with a line when its process is dead:

    at N        one save, which kills itself with SIGKILL just before its Nth call to the system
    after N     saves without end, killed from outside when it has made N calls to the system

Each order is served by a fork, so that the import is paid for once.
"""

import os
import signal
import sys
import traceback

import numpy as np

from darner.io import atomic
from darner.session.checkpoint import Checkpoint, save_checkpoint

WATCHED = ("open", "write", "fchmod", "fsync", "replace", "unlink", "close")
PIECE = 1 << 14


def version(number: int) -> Checkpoint:
    """A checkpoint in which every value is the same number."""
    parameters = {f"w{i}": np.full((37, 50 + i), number, np.float32) for i in range(6)}
    return Checkpoint(parameters, {"m": np.full(20_000, number, np.int64)}, {"step": str(number)})


def watch(before) -> None:
    """Call a function before each call to the system that a save makes."""

    class Watched:
        def __getattr__(self, name):
            return getattr(os, name)

    def wrapped(name, call):
        def run(*args):
            before()
            if name == "write":  # a little at a time, as a nearly full or remote disk may
                return call(args[0], args[1][:PIECE])
            return call(*args)

        return run

    watched = Watched()
    for name in WATCHED:
        setattr(watched, name, wrapped(name, getattr(os, name)))
    atomic.os = watched


def die_at(path: str, number: int, count: int) -> None:
    calls = 0

    def before() -> None:
        nonlocal calls
        calls += 1
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)

    watch(before)
    save_checkpoint(path, version(number))


def save_for_ever(path: str, number: int, progress: int) -> None:
    watch(lambda: os.write(progress, b"."))
    while True:
        number += 1
        save_checkpoint(path, version(number))


def serve(path: str) -> None:
    for trial, line in enumerate(sys.stdin, start=1):
        order, count = line.split()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                if order == "at":
                    die_at(path, trial, int(count))
                else:
                    save_for_ever(path, trial * 1_000_000, writing)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.close(writing)
        if order == "after":
            for _ in range(int(count)):
                os.read(reading, 1)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(reading)
        ended = {0: "finished", -signal.SIGKILL: "killed"}
        code = os.waitstatus_to_exitcode(status)
        sys.stdout.write(f"{trial} {ended.get(code, code)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
