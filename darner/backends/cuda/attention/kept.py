"""What gradients need of each query, of what the forward pass kept: a small launch before theirs.

The exponent and share come from the statistics that the forward kernel wrote beside its result; the mean of slopes is the product of a row of the result with its gradient, a few threads for each row.
"""

from __future__ import annotations

from ....codegen.ir.math import emit
from ....codegen.simt.builder import Value
from ....codegen.simt.dispatch import Stage
from ....graph import dtypes
from ....graph.integers import ceil_div
from ....lower.plan import Spec
from ..instructions import threads
from ..machine import WARP, Machine
from ..printer import Printer
from .rows import RowKernel, numbers_of
from .scores import LOG2_E
from .softmax import Known

THREADS = 256


def lanes_of(pieces: int) -> int:
    """Threads that have the pieces of a row between them: a power of 2, a warp at most.

    >>> lanes_of(8), lanes_of(10), lanes_of(64), lanes_of(1)
    (8, 16, 32, 1)
    """
    return min(WARP, 1 << (pieces - 1).bit_length())


def overlaps(machine: Machine) -> bool:
    """Whether the launch behind this one begins while it runs, and waits by itself."""
    return machine.arch == "sm_90a" and not machine.emulated


def write_kept(spec: Spec, machine: Machine, known: Known) -> Stage:
    """The launch that fills ``known``."""
    problem = known.problem
    attention, rows = problem.attention, problem.rows["dy"]
    kernel = RowKernel(spec, machine, problem, THREADS, True)
    b, lanes = kernel.builder, lanes_of(rows.width // rows.piece)
    if overlaps(machine) and isinstance(b, Printer):
        threads.launch_dependents(b.ir)
    total = problem.heads * known.rows
    memory = known.memory(kernel)
    number = b.let(b.group * (THREADS // lanes) + b.local // lanes)
    # Those beyond the last write what it does.
    flat = b.let(b.min(number, total - 1), "flat")
    head, row = b.let(flat // known.rows, "head"), b.let(flat % known.rows, "row")
    batch, own_head = b.let(head // attention.heads), b.let(head % attention.heads)
    slope = _slope(kernel, (batch, own_head), row, b.let(b.local % lanes, "own_lane"))
    mask = lanes // 2
    while mask:
        slope = b.let(slope + b.shuffle_xor(slope, mask))
        mask //= 2
    with b.if_(b.local % lanes == 0):
        base = b.let(b.index(kernel.head_of("statistics", batch, own_head)), "kept")
        inside = b.let(base + b.min(row, attention.queries - 1))
        read = kernel.number("statistics")
        top = b.let(read(inside), "top")
        share = b.let(read(b.let(inside + kernel.stride("statistics", 2))), "share")
        seen = b.let((share > 0.0) & (row < attention.queries))
        exponent: Value = top
        if problem.plain:
            log = emit("log", b, [b.let(b.choose(seen, share, 1.0))], [dtypes.f32], dtypes.f32)
            exponent = b.choose(seen, (b.let(log) - top) * LOG2_E, kernel.hidden)
        memory[flat] = exponent
        memory[flat + known.each] = b.choose(seen, slope, 0.0)
        memory[flat + 2 * known.each] = b.choose(seen, share, 0.0)
    return kernel.dispatch.finish(ceil_div(total, THREADS // lanes))


def _slope(kernel: RowKernel, head: tuple[Value, Value], row: Value, lane: Value) -> Value:
    """A thread's part of the product of a row of the result and its gradient."""
    b, rows = kernel.builder, kernel.problem.rows
    pieces = rows["dy"].width // rows["dy"].piece
    lanes = lanes_of(pieces)
    inside = b.min(row, rows["dy"].count - 1)
    bases = [
        b.let(kernel.head_item(own, *head) + inside * (own.strides[2] // own.piece), "base")
        for own in (rows["dy"], rows["out"])
    ]
    memories = [kernel.dispatch.operand(rows[name].leaf) for name in ("dy", "out")]
    total: Value = b.constant(0.0, dtypes.f32)
    for first in range(0, pieces, lanes):
        piece = b.let(b.min(lane + first, pieces - 1))
        both = [
            numbers_of(kernel, memory, b.let(base + piece))
            for memory, base in zip(memories, bases, strict=True)
        ]
        own = total
        for x, y in zip(*both, strict=True):
            own = b.let(b.fma(x, y, own))
        total = (
            own if first + lanes <= pieces else b.let(b.choose(lane + first < pieces, own, total))
        )
    return total
