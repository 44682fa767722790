"""Memory for values: zeroed, aligned, in large pages where the system has them."""

import ctypes
import mmap
import os
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import darner
from darner.backends.base.memory import ALIGNMENT, LARGE_PAGE, aligned, give_back_code, together
from darner.backends.cpu.runtime.jit import compile_module, load_object
from darner.session import running


@pytest.mark.parametrize("nbytes", [0, 1, 63, 4096, LARGE_PAGE - 1, LARGE_PAGE, 3 * LARGE_PAGE + 5])
def test_memory_is_zeroed_and_begins_at_a_line(nbytes):
    room = aligned(nbytes)
    assert room.nbytes == nbytes
    assert nbytes == 0 or room.ctypes.data % ALIGNMENT == 0
    assert not room.any()
    room[...] = 7
    assert (room == 7).all()


def test_pieces_lie_in_one_and_do_not_overlap():
    rooms = together([3, LARGE_PAGE, 0, 100])
    for number, room in enumerate(rooms):
        assert not len(room) or room.ctypes.data % ALIGNMENT == 0
        room[...] = number + 1
    assert [room.nbytes for room in rooms] == [3, LARGE_PAGE, 0, 100]
    assert [set(np.unique(room)) for room in rooms] == [{1}, {2}, set(), {4}]


def test_a_system_that_declines_large_pages_gives_small_ones(monkeypatch):
    class Refusing(mmap.mmap):
        def madvise(self, *_):
            raise OSError("no large pages")

    monkeypatch.setattr(mmap, "mmap", Refusing)
    room = aligned(2 * LARGE_PAGE)
    room[-1] = 1
    assert room.nbytes == 2 * LARGE_PAGE


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_writes_its_own_copy():
    room = aligned(LARGE_PAGE)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # other threads are none of its business
        child = os.fork()
    if child == 0:
        room[...] = 9
        os._exit(int(room[0]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not room.any()


# --------------------------------------------------------------------------- the compiler's own

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what is in memory")
TWICE = """
define i64 @twice(i64 %x) {
  %y = mul i64 %x, 2
  ret i64 %y
}
"""


def code_in_memory():
    """Bytes of LLVM's code that are in memory."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if re.match("[0-9a-f]+-", line):
            inside = "r-xp" in line and "libllvmlite" in line
        elif inside and line.startswith("Rss:"):
            found += 1024 * int(line.split()[1])
    return found


@on_linux
def test_the_compilers_code_is_given_back_and_comes_back_when_it_is_needed():
    code = compile_module(TWICE)
    before = code_in_memory()
    assert give_back_code() > 2**20
    assert code_in_memory() < before / 4
    assert compile_module(TWICE) == code
    program = load_object(code)
    twice = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(program.address("twice"))
    assert twice(21) == 42


@on_linux
@pytest.mark.parametrize("large", [True, False])
def test_a_session_of_large_weights_gives_it_back_when_it_is_built(monkeypatch, large):
    calls = []
    monkeypatch.setattr(running, "give_back_code", lambda: calls.append(True))
    monkeypatch.setattr(running, "LARGE", 40 * 24 * 4 + (not large))
    g = darner.Graph()
    x, w = g.input("x", (3, 40)), g.parameter("w", (40, 24))
    g.set_outputs([x @ w])
    with darner.build_inference_session(g, cache=False) as session:
        session.compile()
    assert calls == [True] * large
