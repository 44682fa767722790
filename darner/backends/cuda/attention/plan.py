"""How attention is cut for ``mma.sync``: rows of a block, columns of a tile, and what of it lies in shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from ....graph.integers import ceil_div
from ..machine import Machine
from .problem import Problem, Rows

WARP = 32
STAGES = 2
"""Tiles in shared memory: one is multiplied while the next one comes."""


@dataclass(frozen=True)
class Cut:
    """How the warps of a block share its rows.

    Attributes:
        warps: of a block, one below the other.
        tiles: of 16 rows, of each warp.
        columns: of a tile, which all warps go through; a multiple of 16.
        kept: whether a warp keeps its rows in registers.
    """

    warps: int
    tiles: int
    columns: int
    kept: bool

    @property
    def name(self) -> str:
        """What tells it from others.

        >>> Cut(4, 2, 64, True).name
        'mma 128x64'
        """
        return f"mma {self.rows}x{self.columns}"

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.warps * WARP

    @property
    def rows(self) -> int:
        """Of a block."""
        return self.warps * self.tiles * 16


@dataclass(frozen=True)
class Room:
    """Shared memory: rows that stay, then the stages of what passes by; each is two operands, and statistics of its columns.

    Attributes:
        held: bytes of the rows that stay, where they are not kept in registers.
        first: bytes of the first operand in a stage.
        stage: bytes of a stage.
        staged: bytes of results on their way to memory, which lie over everything else.
    """

    held: int
    first: int
    stage: int
    staged: int

    @property
    def nbytes(self) -> int:
        """Of shared memory."""
        return max(self.held + STAGES * self.stage, self.staged)


@dataclass(frozen=True)
class Pass:
    """One kernel: what stays, what passes by, and how it is cut.

    Attributes:
        held: the operands whose rows stay: queries (and gradients), or keys and values.
        passing: the operands whose rows pass by.
        sums: the widths of what is summed for each row.
        statistics: numbers of each passing row that come along, in f32.
    """

    held: tuple[Rows, ...]
    passing: tuple[Rows, Rows]
    sums: tuple[int, ...]
    statistics: int = 0

    def room(self, cut: Cut) -> Room:
        """The shared memory that a cut takes."""
        rows = cut.rows * sum(rows.pitch for rows in self.held)
        first, second = (cut.columns * rows.pitch for rows in self.passing)
        stage = first + second + self.statistics * cut.columns * 4
        staged = cut.rows * max([0, *(staged_pitch(width) for width in self.sums)])
        held = 0 if cut.kept else rows
        return Room(held, first, stage, max(staged, rows))

    def fits(self, cut: Cut, machine: Machine) -> bool:
        """Whether there is the shared memory that a cut takes."""
        return self.room(cut).nbytes <= machine.most_shared

    def fitting(self, cuts: tuple[Cut, ...], machine: Machine) -> Cut | None:
        """The first cut whose shared memory there is."""
        return next((cut for cut in cuts if self.fits(cut, machine)), None)


def staged_pitch(width: int) -> int:
    """Bytes from row to row of results on their way to memory."""
    return (ceil_div(width, 16) * 16 + 4) * 4


_FORWARD: dict[int, tuple[Cut, ...]] = {
    64: (Cut(4, 2, 64, True), Cut(4, 1, 64, True)),
    128: (Cut(8, 1, 64, True), Cut(4, 1, 64, True), Cut(4, 1, 32, True)),
    256: (Cut(4, 1, 32, False), Cut(2, 1, 16, False)),
}
_GRADIENTS: dict[int, tuple[Cut, ...]] = {
    64: (Cut(4, 1, 64, True), Cut(4, 1, 32, True)),
    128: (Cut(4, 1, 32, False), Cut(2, 1, 32, False)),
    256: (Cut(4, 1, 32, False), Cut(2, 1, 16, False)),
}
_FORWARD_TF32: dict[int, tuple[Cut, ...]] = {
    64: (Cut(4, 1, 64, True), Cut(4, 2, 32, True), Cut(4, 1, 32, True)),
    128: (Cut(4, 2, 32, False), Cut(4, 1, 32, False), Cut(4, 1, 16, False)),
    256: (Cut(4, 1, 32, False), Cut(2, 1, 16, False)),
}
_GRADIENTS_TF32: dict[int, tuple[Cut, ...]] = {
    64: (Cut(4, 1, 64, False), Cut(4, 2, 32, False), Cut(4, 1, 32, False), Cut(2, 1, 32, False)),
    128: (Cut(4, 1, 32, False), Cut(4, 1, 16, False), Cut(2, 1, 16, False)),
    256: (Cut(4, 1, 16, False), Cut(2, 1, 16, False)),
}
"""Cuts by the width of rows up to which they are for, the best first; factors of tf32 take twice the room."""


def _cuts(problem: Problem, *, gradients: bool) -> tuple[Cut, ...]:
    """The cuts for a problem's kind and width."""
    if problem.kind == "tf32":
        table = _GRADIENTS_TF32 if gradients else _FORWARD_TF32
    else:
        table = _GRADIENTS if gradients else _FORWARD
    return next(cuts for most, cuts in table.items() if problem.widest <= most)


def forward_pass(problem: Problem) -> Pass:
    """Queries stay, and keys and values pass by."""
    rows = problem.rows
    return Pass((rows["q"],), (rows["k"], rows["v"]), (rows["v"].width,))


def query_pass(problem: Problem) -> Pass:
    """Queries and the result's gradients stay, and keys and values pass by: the gradients of queries."""
    rows = problem.rows
    return Pass((rows["q"], rows["dy"]), (rows["k"], rows["v"]), (rows["q"].width,))


def key_pass(problem: Problem, names: tuple[str, ...]) -> Pass:
    """Keys and values stay, and queries and the result's gradients pass by: the gradients of ``names``."""
    rows = problem.rows
    sums = tuple(rows[name].width for name in names)
    return Pass((rows["k"], rows["v"]), (rows["q"], rows["dy"]), sums, statistics=3)


def forward_cuts(problem: Problem, machine: Machine) -> tuple[Cut, ...]:
    """The cuts of the result whose shared memory there is, the best first: one of smaller blocks where there are too few for the card."""
    work = forward_pass(problem)
    found = [
        cut
        for cut in _cuts(problem, gradients=False)
        if work.room(cut).nbytes <= machine.most_shared
    ]
    if not found:
        return ()
    first = found[0]
    blocks = problem.heads * ceil_div(problem.attention.queries, first.rows)
    smaller = [c for c in found if c.rows < first.rows and c.columns == first.columns]
    if blocks < machine.processors and smaller:
        found.remove(smaller[0])
        found.insert(0, smaller[0])
    return tuple(found)


def gradient_cuts(problem: Problem, machine: Machine) -> tuple[tuple[Cut, Cut], ...]:
    """The cuts of the gradients of queries, and of those of keys and values: the best pair first."""
    if not forward_cuts(problem, machine):
        return ()
    queries, keys = query_pass(problem), key_pass(problem, ("k", "v"))
    cuts = _cuts(problem, gradients=True)
    best = queries.fitting(cuts, machine), keys.fitting(cuts, machine)
    both = [(cut, cut) for cut in cuts if queries.fits(cut, machine) and keys.fits(cut, machine)]
    if best[0] is None or best[1] is None:
        return ()
    return (best[0], best[1]), *(pair for pair in both if pair != best)


def splits_keys(problem: Problem) -> bool:
    """Whether the gradients of keys and values are too wide for one kernel's registers, and take one each."""
    return problem.rows["k"].padded + problem.rows["v"].padded > 256


FEWEST = 2
"""Blocks of keys for each multiprocessor, below which query heads have blocks of their own."""


def has_few_blocks(problem: Problem, cut: Cut, machine: Machine) -> bool:
    """Whether blocks of keys for all heads that share them are too few for a card."""
    attention = problem.attention
    blocks = ceil_div(attention.keys, cut.rows) * attention.kv_heads * attention.batch
    return attention.group > 1 and blocks < FEWEST * machine.processors
