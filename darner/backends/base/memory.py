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
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...graph.data import Array
from ...graph.errors import LESS_MEMORY, OutOfMemoryError

if TYPE_CHECKING:
    from ...lower.plan import Buffer

ALIGNMENT = 64
LARGE_PAGE = 2 << 20
WATCHED = 1 << 30
"""Bytes from which on it is asked whether the system would keep its promise."""
GROUP = "/sys/fs/cgroup"

Bytes = npt.NDArray[np.uint8]


def aligned(nbytes: int, what: str = "a value") -> Bytes:
    """Zeroed memory that begins at a multiple of 64 bytes.

    Raises:
        OutOfMemoryError: there is not as much; it names ``what`` it is for.

    >>> room = aligned(100)
    >>> len(room), room.ctypes.data % 64, int(room.sum())
    (100, 0, 0)
    """
    try:
        limit = _limit() if nbytes >= WATCHED else None
        if limit is not None and nbytes > limit:
            raise MemoryError
        return _aligned(nbytes)
    except (MemoryError, OSError, OverflowError, ValueError) as error:
        from ...lower.plan_text import size

        free = available()
        known = "" if free is None else f", but {size(free)} are free"
        raise OutOfMemoryError(
            f"{size(nbytes)} of memory are asked for, for {what}{known}", hint=LESS_MEMORY
        ) from error


def _aligned(nbytes: int) -> Bytes:
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


def available() -> int | None:
    """Bytes that can be had without taking them from somebody else, as Linux tells; None where it is not known."""
    found = [_meminfo("MemAvailable")]
    limit, used = _number(f"{GROUP}/memory.max"), _number(f"{GROUP}/memory.current")
    found += [None if limit is None or used is None else max(0, limit - used)]
    known = [number for number in found if number is not None]
    return min(known) if known else None


def _limit() -> int | None:
    """Bytes that the processes of a container may have in all: the system would promise more, and then end one of them."""
    limit, swap = _number(f"{GROUP}/memory.max"), _number(f"{GROUP}/memory.swap.max")
    return None if limit is None or swap is None else limit + swap


def _meminfo(name: str) -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = [line.split() for line in file if line.startswith(f"{name}:")]
    except OSError:
        return None
    return int(lines[0][1]) * 1024 if lines else None


def _number(path: str) -> int | None:
    """The number in a file of the system; None where there is no file, or no limit."""
    try:
        with open(path, encoding="ascii") as file:
            text = file.read().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def room_for(nbytes: int, offered: Bytes | None) -> Bytes:
    """The memory that is offered for an arena, if it is large enough, else new."""
    if offered is not None and len(offered) >= nbytes:
        return offered
    return aligned(nbytes, "the values that a step makes (the arena)")


def empty_like(buffer: Buffer, room: Bytes | None = None) -> Array:
    """Memory for a buffer's value, filled with what it is at first: ``room`` of zeros, or its own."""
    shape = tuple(int(size) for size in buffer.type.shape)
    if room is None:
        room = aligned(buffer.nbytes, f"{buffer.place} '{buffer.name}'")
    array = room.view(buffer.type.dtype.numpy).reshape(shape)
    if buffer.init:
        array[...] = buffer.init
    return array


def together(sizes: Sequence[int], what: str = "values") -> list[Bytes]:
    """Memory for several values in one piece, each at a multiple of 64 bytes.

    >>> [len(room) for room in together([3, 100])]
    [3, 100]
    """
    starts = [0, *accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]
    whole = aligned(starts[-1], what)
    return [whole[start : start + size] for start, size in zip(starts, sizes, strict=False)]


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
