"""Memory for values: zeroed, aligned, in large pages where the system has them."""

import mmap
import os
import warnings

import numpy as np
import pytest

from darner.backends.memory import ALIGNMENT, LARGE_PAGE, aligned, together


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
