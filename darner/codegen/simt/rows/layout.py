"""How the rows of a kernel are shared out: threads of a row, rows of a workgroup, elements of a thread, pieces of a long row.

Neighbouring threads read neighbouring elements: where the last axis is reduced they are of one row, in vectors where these lie side by side, and where it is not they are of rows side by side.
A row whose elements all fit in the registers of its threads is read once; a longer one is read again in every pass. Where there are few rows, each is cut in pieces, and every pass is a
dispatch that leaves a partial result for each piece.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ....graph import dtypes
from ....graph.graph import Graph
from ....graph.integers import ceil_div, round_up
from ....graph.node import Node
from ....lower.specs import sizes
from ...problems.rows import Passes
from ..machine import Machine, power_above

THREADS = 256
"""Threads of a workgroup, unless a row is too long for their registers."""
EACH = 8
"""Elements of a short row that a thread has: more threads would wait for each other longer than they compute."""
MOST_HELD = 32
"""Elements that a thread keeps in registers, at most."""
AT_ONCE = 8
"""Elements, or vectors of half as many, that a thread asks for before it waits for any."""
REGISTERS = 64
"""Elements of all operands and sums together that a thread keeps: more, and fewer threads find room beside each other."""
LINES = 1450
"""Lines of a kernel that elements may take, written out one after another."""
FEW_GROUPS = 128
"""Workgroups that leave a GPU idle where they are fewer."""
ENOUGH_GROUPS = 512
LEAST_SPLIT = 1 << 14
"""Elements of a workgroup from which on it is worth another dispatch to share them out."""
KEPT_AT_ONCE = 4
"""Vectors that a thread asks for together, where its row stays in shared memory."""
MERGED = 1024
"""Bytes of a workgroup's memory that are left to what threads merge."""
MOST_BESIDE = 1024
"""Threads of a processor whose elements all fit in its registers."""
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
        adjacent: whether threads of one row stand side by side; otherwise those of different rows do.
    """

    peers: int
    side: int
    vector: int
    held: int
    at_once: int
    pieces: int
    piece: int
    adjacent: bool

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


def largest_group(machine: Machine) -> int:
    """The most threads of a workgroup, as a power of two."""
    return 1 << (machine.threads.bit_length() - 1)


def lies_across(passes: Passes) -> bool:
    """Whether elements of one row lie side by side in memory; otherwise those of different rows do."""
    return passes.axes[-1] == len(passes.space) - 1


def row_length(passes: Passes) -> int:
    """Elements of a row."""
    return prod(passes.space[axis] for axis in passes.axes)


def row_count(passes: Passes) -> int:
    """How many rows there are."""
    return prod(passes.space) // row_length(passes)


def full_nodes(body: Graph, passes: Passes) -> tuple[list[Node], list[Node]]:
    """The operands and the results of which a row has many elements."""
    inputs = [
        leaf for leaf in body.inputs.values() if leaf.rank and _last(leaf) == passes.space[-1]
    ]
    outputs = [node for node in body.outputs if tuple(sizes(node)) == passes.space]
    return inputs, outputs


def _last(node: Node) -> int:
    return sizes(node)[-1]


def most_held(body: Graph, passes: Passes) -> int:
    """Elements of a row that a thread can keep in registers, and a kernel has lines for."""
    inputs, _ = full_nodes(body, passes)
    each = 1 + len(inputs) + len(passes.columns)
    lines = sum(_lines(node) for node in body.nodes if tuple(sizes(node)) == passes.space)
    lines += 4 * sum(map(len, passes.levels))
    return max(1, min(MOST_HELD, REGISTERS // each, LINES // lines))


def _lines(node: Node) -> int:
    """About how many lines one element of a node takes; what is rounded to 16 bits takes more."""
    if node.op.name in ("broadcast_to", "reshape"):
        return 0
    return (30 if node.op.facts.effort == "much" else 2) + (14 if node.dtype.is_half else 0)


def _vector(body: Graph, passes: Passes) -> int:
    """Elements side by side that are read at once: 16 bytes of the widest type where the rows' length allows it."""
    if not lies_across(passes):
        return 1
    inputs, outputs = full_nodes(body, passes)
    widest = max((node.dtype.itemsize for node in (*inputs, *outputs)), default=4)
    most = min(8, 16 // widest)
    return next(size for size in (8, 4, 2, 1) if size <= most and passes.space[-1] % size == 0)


def layout_for(body: Graph, passes: Passes, machine: Machine) -> Layout:
    """How a kernel's rows are shared out on a GPU."""
    length, rows = row_length(passes), row_count(passes)
    vector = _vector(body, passes)
    _, outputs = full_nodes(body, passes)
    most = max(vector, most_held(body, passes) // vector * vector)
    largest = largest_group(machine)
    threads = min(THREADS, largest)
    if lies_across(passes):
        peers = min(threads, power_above(ceil_div(length, EACH)))
        if peers > 1 and _slots(length, peers // 2, vector) < _slots(length, peers, vector):
            # Fewer threads, of which fewer have nothing to do.
            peers //= 2
        in_step = min(machine.subgroups[0], threads) if machine.subgroup else 1
        if in_step < peers and _slots(length, in_step, vector) <= in_step * most:
            # Threads that run in step have their sums without waiting for others.
            peers = in_step
        if length > peers * most and len(passes.levels) + bool(outputs) > 1:
            # As many threads as a workgroup can have, if that keeps the row in registers; where it does not, the fewer rows
            # are under way at the same time, the more of them the next pass finds in the cache.
            wanted = power_above(ceil_div(length, most))
            if wanted <= largest or rows >= FEW_GROUPS:
                peers = min(wanted, largest)
        side = max(1, min(threads // peers, power_above(ceil_div(rows, ENOUGH_GROUPS))))
        side = max(side, min(min(SIDE, threads) // peers, power_above(rows)))
    else:
        side = min(SIDE, threads, power_above(passes.space[-1]))
        peers = min(threads // side, power_above(ceil_div(length, EACH)))
        while side * peers < threads and ceil_div(rows, 2 * side) >= ENOUGH_GROUPS:
            side *= 2
    held = ceil_div(length, peers * vector)
    # Pieces have a dispatch for each pass; rows that are not cut have all passes written out in one.
    cut = ceil_div(rows, side) < few_groups(lies_across(passes)) and length * side >= LEAST_SPLIT
    written_out = 1 if cut else len(passes.levels) + bool(outputs)
    at_once = max(1, min(AT_ONCE // (1 if vector == 1 else 2), most // vector // written_out))
    layout = Layout(peers, side, vector, held, at_once, 1, length, lies_across(passes))
    if held * vector <= most:
        return layout
    return _in_pieces(replace(layout, held=0), length, rows)


def kept_layout(layout: Layout, passes: Passes, machine: Machine) -> Layout | None:
    """How rows are shared out that stay in the memory of their workgroups; None where they do not fit there, or are held or cut already."""
    length = row_length(passes)
    nbytes = length * dtypes.f32.itemsize + MERGED
    if layout.held or layout.pieces > 1 or not layout.adjacent or layout.side > 1:
        return None
    if passes.space[-1] != length or nbytes > machine.ample:
        return None
    # Workgroups that fit beside each other share the threads of a processor.
    beside = max(1, machine.ample // nbytes)
    peers = max(THREADS, power_above(ceil_div(MOST_BESIDE, beside)))
    peers = min(peers, largest_group(machine), power_above(ceil_div(length, layout.vector)))
    at_once = max(1, min(KEPT_AT_ONCE, length // (peers * layout.vector)))
    found = replace(layout, peers=peers, at_once=at_once)
    # Beside each step of a thread stands the largest element that it had met.
    peaks = ceil_div(length, found.step) * peers * dtypes.f32.itemsize
    return found if nbytes + peaks <= machine.ample and peaks + MERGED <= machine.shared else None


def _slots(length: int, peers: int, vector: int) -> int:
    """Places for elements that so many threads have, those behind the row's end counted."""
    return round_up(length, peers * vector)


def few_groups(across: bool) -> int:
    """Workgroups below which rows are cut: of rows side by side threads read a word at a time, and it takes more of them to have as much on the way."""
    return FEW_GROUPS if across else ENOUGH_GROUPS


def _in_pieces(layout: Layout, length: int, rows: int) -> Layout:
    """Rows that are not held: cut where there are few, and so that no thread adds up too much by itself."""
    groups, step = ceil_div(rows, layout.side), layout.step
    split = ceil_div(length, step * LONGEST)
    if groups < few_groups(layout.adjacent) and length * layout.side >= LEAST_SPLIT:
        split = max(split, min(ceil_div(ENOUGH_GROUPS, groups), ceil_div(length, step)))
    piece = ceil_div(length, max(split, 1) * step) * step
    pieces = ceil_div(length, piece)
    return replace(layout, pieces=pieces, piece=piece) if pieces > 1 else layout
