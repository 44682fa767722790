"""How the rows of a kernel are shared out: threads of a row, rows of a workgroup, elements of a thread, pieces of a long row.

Neighbouring threads read neighbouring elements: where the last axis is reduced they are of one row, in vectors where these lie side by side, and where it is not they are of rows side by side.
A row whose elements all fit in the registers of its threads is read once; a longer one is read again in every pass. Where there are few rows, each is cut in pieces, and every pass is a
dispatch that leaves a partial result for each piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ...graph.graph import Graph
from ..cpu.row_program import COSTLY, Passes
from .machine import Machine

THREADS = 256
"""Threads of a workgroup, unless a row is too long for their registers."""
EACH = 8
"""Elements of a short row that a thread has: more threads would wait for each other longer than they compute."""
MOST_HELD = 32
"""Elements that a thread keeps in registers, at most."""
AT_ONCE = 8
"""Elements, or vectors of half as many, that a thread asks for before it waits for any."""
LINES = 1200
"""Lines of a shader that elements may take, written out one after another."""
FEW_GROUPS = 128
"""Workgroups that leave a GPU idle where they are fewer."""
ENOUGH_GROUPS = 512
LEAST_SPLIT = 1 << 15
"""Elements of a workgroup from which on it is worth another dispatch to share them out."""
LONGEST = 256
"""Sums that a thread adds up one after another, at most: the error of a sum grows with it."""
SIDE = 32
"""Rows side by side that a workgroup has at least, so that whole lines of memory are read."""


@dataclass(frozen=True)
class Layout:
    """How rows are shared out.

    Attributes:
        peers: threads of a row, a power of two.
        side: rows of a workgroup.
        vector: elements of a row side by side that a thread has at once.
        held: vectors of a thread that stay in registers; 0 where a row has more and is read in every pass.
        at_once: vectors that are asked for together, where none stay.
        pieces: parts of a row that workgroups have.
        piece: elements of such a part.
    """

    peers: int
    side: int
    vector: int
    held: int
    at_once: int
    pieces: int
    piece: int

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return self.peers * self.side

    @property
    def stride(self) -> int:
        """Elements of a row that its threads have at once, one vector each."""
        return self.peers * self.vector

    @property
    def step(self) -> int:
        """Elements of a row that its threads go through before they come back to the loop."""
        return self.stride * self.at_once


def power_above(number: int) -> int:
    """The least power of two that is not below a number.

    >>> [power_above(n) for n in (0, 1, 5, 8)]
    [1, 1, 8, 8]
    """
    return 1 << max(number - 1, 0).bit_length()


def lies_across(passes: Passes) -> bool:
    """Whether elements of one row lie side by side in memory; otherwise those of different rows do."""
    return passes.axes[-1] == len(passes.space) - 1


def row_length(passes: Passes) -> int:
    """Elements of a row."""
    return prod(passes.space[axis] for axis in passes.axes)


def row_count(passes: Passes) -> int:
    """How many rows there are."""
    return prod(passes.space) // row_length(passes)


def cost(body: Graph) -> int:
    """About how many lines one element of a body takes."""
    return sum(
        30 if node.op.name in COSTLY else 3 for node in body.nodes if node.op.name != "constant"
    )


def layout_for(body: Graph, passes: Passes, machine: Machine) -> Layout:
    """How a kernel's rows are shared out on a GPU."""
    across = lies_across(passes)
    length, rows = row_length(passes), row_count(passes)
    vector = _vector(passes.space[-1]) if across else 1
    most = min(MOST_HELD, max(vector, LINES // cost(body) // vector * vector))
    threads = min(THREADS, machine.threads)
    if across:
        peers = min(threads, power_above(-(-length // EACH)))
        if length > peers * most and len(passes.levels) + _writes_rows(body, passes) > 1:
            # As many threads as a workgroup can have, if that keeps the row in registers.
            wanted = power_above(-(-length // most))
            peers = wanted if wanted <= machine.threads else peers
        side = max(1, min(threads // peers, power_above(-(-rows // ENOUGH_GROUPS))))
        side = max(side, min(SIDE // peers, power_above(rows)))
    else:
        side = min(SIDE, threads, power_above(rows))
        peers = min(threads // side, power_above(-(-length // EACH)))
        while side * peers < threads and -(-rows // (2 * side)) >= ENOUGH_GROUPS:
            side *= 2
    return _pieces(passes, peers, side, vector, most, body)


def _vector(last: int) -> int:
    return next(size for size in (4, 2, 1) if last % size == 0)


def _writes_rows(body: Graph, passes: Passes) -> bool:
    return any(tuple(map(int, output.shape)) == passes.space for output in body.outputs)


def _pieces(passes: Passes, peers: int, side: int, vector: int, most: int, body: Graph) -> Layout:
    length, rows = row_length(passes), row_count(passes)
    held = -(-length // (peers * vector))
    at_once = max(1, min(AT_ONCE // (1 if vector == 1 else 2), most // vector))
    step = peers * vector * at_once
    groups = -(-rows // side)
    split = 1
    if groups < FEW_GROUPS and length * side >= LEAST_SPLIT:
        split = min(-(-ENOUGH_GROUPS // groups), length // step)
    if held * vector > most:
        # Long columns, where there are enough of them: cut for the sake of the sums' error alone.
        split = max(split, -(-length // (step * LONGEST)))
    if split > 1:
        piece = -(-length // (split * step)) * step
        pieces = -(-length // piece)
        if pieces > 1:
            return Layout(peers, side, vector, 0, at_once, pieces, piece)
    held = held if held * vector <= most else 0
    return Layout(peers, side, vector, held, at_once, 1, length)
