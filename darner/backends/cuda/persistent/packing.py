"""Matrices whose columns are neighbours, in the order in which a chain reads them: vectors of columns one after the other, each with all its terms.

As they lie, a warp that reads a vector of columns touches as many lines of memory as it has lanes.
"""

from __future__ import annotations

from ....codegen.simt.builder import Memory
from ....codegen.simt.dispatch import Binding
from ....graph import dtypes
from ..machine import Machine
from ..stage import Stage

THREADS = 256
GROUPS = 8
"""Blocks for each multiprocessor."""


def write_packing(machine: Machine) -> Stage:
    """The launch that packs a matrix: of what lies where, where it goes, and how many rows it has and vectors of a row."""
    threads, groups = (32, 2) if machine.emulated else (THREADS, GROUPS * machine.processors)
    b = machine.builder(threads)
    source = Memory("source", dtypes.u32, vector=4, builder=b)
    target = Memory("target", dtypes.u32, vector=4, builder=b)
    sizes = Memory("sizes", dtypes.u32, builder=b)
    rows, pitch = b.let(b.load(sizes, 0), "rows"), b.let(b.load(sizes, 1), "pitch")
    with b.for_(b.thread, rows * pitch, threads * groups) as at:
        b.store(b.load(source, at % rows * pitch + at // rows), target, at)
    bound = [(source, Binding("operand")), (target, Binding("result")), (sizes, Binding("scratch"))]
    made: Stage = b.finish(groups, bound)
    return made
