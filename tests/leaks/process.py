"""What this process holds: memory, threads, open files; as Linux and its C library tell it."""

import ctypes
import gc
import os
from pathlib import Path

LIBRARY = ctypes.CDLL(None)


class Mallinfo(ctypes.Structure):
    """What ``mallinfo2`` returns: sizes of the C library's heap."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


if hasattr(LIBRARY, "mallinfo2"):
    LIBRARY.mallinfo2.restype = Mallinfo


def resident() -> int:
    """Bytes of memory in use by the process, without what is garbage or free but not yet given back."""
    gc.collect()
    if hasattr(LIBRARY, "malloc_trim"):
        LIBRARY.malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def reserved() -> int:
    """Bytes of address space: a stack or a block of code that stays shows here, even if it was never touched."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def allocated() -> int:
    """Bytes that ``malloc`` has given out and not got back, in blocks of its heap and mapped."""
    found = LIBRARY.mallinfo2()
    return int(found.uordblks + found.hblkhd)


def descriptors() -> int:
    """How many files are open."""
    return len(os.listdir("/proc/self/fd"))


def threads() -> int:
    """How many threads the process has."""
    return len(os.listdir("/proc/self/task"))


def workers() -> dict[str, tuple[str, int, int]]:
    """State, processor time in ticks, and switches of each worker of a team, by thread id."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            head, _, rest = (task / "stat").read_text().rpartition(")")
            status = (task / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        if "(darner-" in head:
            fields = rest.split()
            switches = sum(
                int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line
            )
            found[task.name] = fields[0], int(fields[11]) + int(fields[12]), switches
    return found


def eventually(holds) -> bool:
    """Whether something comes to hold in a bounded number of looks."""
    return any(holds() for _ in range(100_000))
