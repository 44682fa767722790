"""Memory of the process for values: zeroed, at multiples of a cache line, in large pages where there is much of it.

A matrix is read in columns of a few lines each, every line in another page of 4 KB: with pages of 2 MB the processor has the addresses of all of them at hand. That
is worth a sixth of the speed of products whose weights do not fit the cache.

What is not needed for a while can be given back to the system (``release``), and the same memory be used again later.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..graph.data import Array

ALIGNMENT = 64
LARGE_PAGE = 2 << 20

Bytes = npt.NDArray[np.uint8]


def aligned(nbytes: int) -> Bytes:
    """Zeroed memory that begins at a multiple of 64 bytes.

    >>> room = aligned(100)
    >>> len(room), room.ctypes.data % 64, int(room.sum())
    (100, 0, 0)
    """
    if nbytes < LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        room = np.zeros(nbytes + ALIGNMENT, np.uint8)
        start = -room.ctypes.data % ALIGNMENT
        return room[start : start + nbytes]
    # Private, so that a forked child has its own copy; the system may decline large pages, and then gives small ones.
    mapped = mmap.mmap(-1, nbytes + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel built without large pages
        mapped.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(mapped, np.uint8)
    start = -whole.ctypes.data % LARGE_PAGE
    return whole[start : start + nbytes]


def room_for(nbytes: int, offered: Bytes | None) -> Bytes:
    """The memory that is offered, if it is large enough, else new."""
    return offered if offered is not None and len(offered) >= nbytes else aligned(nbytes)


def together(sizes: Sequence[int]) -> list[Bytes]:
    """Memory for several values in one piece, each at a multiple of 64 bytes.

    >>> [len(room) for room in together([3, 100])]
    [3, 100]
    """
    starts = np.cumsum([0, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)])
    whole = aligned(int(starts[-1]))
    return [
        whole[start : start + size] for start, size in zip(starts.tolist(), sizes, strict=False)
    ]


def release(array: Array) -> None:
    """Give the pages that an array of ``aligned`` memory fills back to the system; what it held is lost.

    It can be written again at any time, and its memory is then taken anew. Nothing happens where there is little of it, or on systems that do not take
    single pages back.
    """
    # Without large pages: the system would make one again of the few small pages that neighbours still hold in it.
    _advise(array, "MADV_DONTNEED", "MADV_NOHUGEPAGE")


def reclaim(array: Array) -> None:
    """Have what was released in large pages again, once it is written."""
    _advise(array, "MADV_HUGEPAGE")


def trim() -> None:
    """Let the C library give back what it holds of memory that was freed: building leaves megabytes of it, and so does who makes weights one after the other.

    Nothing happens with libraries that have no such call.
    """
    if sys.platform == "linux" and (found := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        found(ctypes.c_size_t(0))


COMPILERS = ("libllvmlite", "egglog", "highspy")
"""What the paths of libraries contain that are used to build, and not to run."""


def give_back_code() -> int:
    """Let the system take back the pages of compilers' code that are in memory, 60 MB after a build, and say how many bytes they span.

    They are copies of what lies in files, and come back page by page where somebody builds again, which takes milliseconds. Only code is given back: pages of
    data may have been changed when the library was loaded.
    """
    if sys.platform != "linux":
        return 0
    call = ctypes.CDLL(None).madvise
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    given = 0
    with open("/proc/self/maps", encoding="utf-8") as file:
        for line in file:
            place, allowed, *_, path = line.split(maxsplit=5)
            if allowed == "r-xp" and any(name in path for name in COMPILERS):
                first, last = (int(end, 16) for end in place.split("-"))
                if not call(first, last - first, mmap.MADV_DONTNEED):
                    given += last - first
    return given


def _advise(array: Array, *advice: str) -> None:
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    owner = owner.obj if isinstance(owner, memoryview) else owner
    # Elsewhere the same names promise less: pages may keep what they hold, and their memory.
    if not isinstance(owner, mmap.mmap) or sys.platform != "linux":
        return
    first = array.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
    start = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (first + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
    if length <= 0:
        return
    for name in advice:
        with contextlib.suppress(OSError):  # a kernel built without large pages
            owner.madvise(getattr(mmap, name), start, length)
