"""The arena of a plan over time, drawn: what lies where, when most is alive, and which values those are.

Time goes to the right, a column for some kernels; addresses go up. The largest values have letters.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase

import numpy as np

from ..graph.errors import ArgumentError, Calling, Source
from ..io.memory import format_size
from ..lower.plan import Plan
from .tables import Column, Part, Report, Table, percent, plural

LETTERS = ascii_uppercase + ascii_lowercase
FREE, OTHER = "·", "░"
LEVELS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Block:
    """A value in the arena.

    Attributes:
        buffer: its position in the plan.
        start, end: its bytes, from the first to after the last.
        first, last: the kernel that writes it and the last that reads it; the number of kernels where it outlasts them.
        type: its shape and element type.
        label, source: of the kernel that writes it.
    """

    buffer: int
    start: int
    end: int
    first: int
    last: int
    type: str
    label: str | None
    source: Source | None

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.end - self.start


@dataclass(frozen=True)
class MemoryMap(Report):
    """The arena of a plan.

    Attributes:
        name: the plan's.
        nbytes, naive_bytes: its size, and what it would be if each value had a place of its own.
        kernels: how many there are.
        blocks: every value, the largest first.
        alive: bytes of the values alive at each kernel, those that it takes over in place counted once.
        width, height: of the drawing, in characters.
        steps: the kernels that are loops, and the bytes of the arena that each has for its steps, besides this one.
    """

    name: str
    nbytes: int
    naive_bytes: int
    kernels: int
    blocks: tuple[Block, ...]
    alive: tuple[int, ...]
    width: int = 72
    height: int = 12
    top: int = 10
    steps: tuple[tuple[int, int], ...] = ()

    @property
    def peak(self) -> int:
        """The first kernel at which most bytes are alive."""
        return int(np.argmax(self.alive)) if self.alive else 0

    @property
    def peak_bytes(self) -> int:
        """How many they are."""
        return max(self.alive, default=0)

    def at(self, kernel: int) -> tuple[Block, ...]:
        """What is alive while a kernel runs, the largest first."""
        return tuple(block for block in self.blocks if block.first <= kernel <= block.last)

    def __str__(self) -> str:
        return Report.__str__(self)

    def _parts(self) -> list[Part]:
        saved = 1 - self.nbytes / self.naive_bytes if self.naive_bytes else 0.0
        head = f"arena of '{self.name}': {format_size(self.nbytes)}"
        if saved > 0:
            head += f", {percent(saved)} less than {format_size(self.naive_bytes)} without sharing"
        own = [
            f"k{number} is a loop, whose steps have an arena of {format_size(nbytes)} of their own"
            for number, nbytes in self.steps
        ]
        if not self.blocks:
            return ["\n".join([head, *own])]
        peak = f"most is alive at k{self.peak}: {format_size(self.peak_bytes)}"
        fill = self.peak_bytes / self.nbytes
        return [
            "\n".join([f"{head}; {peak}, {percent(fill)} of it", *own]),
            "",
            *self._drawing(),
            "",
            f"the largest of {plural(len(self.blocks), 'value')}",
            self._table(),
        ]

    # ------------------------------------------------------------- drawing

    def _drawing(self) -> list[str]:
        columns = min(self.width, max(self.kernels, 1))
        edges = np.linspace(0, self.kernels, columns + 1)
        grid = [[FREE] * columns for _ in range(self.height)]
        letters = {block.buffer: LETTERS[i] for i, block in enumerate(self.blocks[: self.top])}
        step = self.nbytes / self.height
        # The smallest first, so that the largest are on top where several share a cell.
        for block in reversed(self.blocks):
            mark = letters.get(block.buffer, OTHER)
            low = int(block.start / step)
            high = min(max(int(np.ceil(block.end / step)), low + 1), self.height)
            for column in range(columns):
                if block.first < edges[column + 1] and block.last >= edges[column]:
                    for row in range(low, high):
                        grid[row][column] = mark
        names = [format_size(int(step * (row + 1))) for row in range(self.height)]
        margin = max(map(len, (*names, "alive")))
        lines = [
            f"  {names[row].rjust(margin)} │{''.join(grid[row])}"
            for row in reversed(range(self.height))
        ]
        levels = "".join(self._level(edges[i], edges[i + 1]) for i in range(columns))
        ends = "k0".ljust(max(columns - len(f"k{self.kernels - 1}"), 3)) + f"k{self.kernels - 1}"
        return [
            *lines,
            f"  {'alive'.rjust(margin)} │{levels}",
            f"  {' ' * margin}  {ends if columns > 8 else ''}".rstrip(),
        ]

    def _level(self, start: float, end: float) -> str:
        part = self.alive[int(start) : max(int(np.ceil(end)), int(start) + 1)]
        share = max(part, default=0) / max(self.peak_bytes, 1)
        return LEVELS[int(np.ceil(share * (len(LEVELS) - 1)))]

    def _table(self) -> Table:
        columns = (
            Column("", style="bold"),
            Column("value"),
            Column("type"),
            Column("size", "right", "cyan"),
            Column("alive"),
            Column("at the peak"),
            Column("label", style="green"),
            Column("line", style="dim"),
        )
        rows = []
        for i, block in enumerate(self.blocks[: self.top]):
            until = "the end" if block.last >= self.kernels else f"k{block.last}"
            rows.append(
                (
                    LETTERS[i],
                    f"b{block.buffer}",
                    block.type,
                    format_size(block.nbytes),
                    f"k{block.first} to {until}",
                    "yes" if block.first <= self.peak <= block.last else "",
                    block.label or "",
                    "" if block.source is None else str(block.source),
                )
            )
        return Table(columns, rows)


def memory_map(plan: Plan, *, width: int = 72, height: int = 12, top: int = 10) -> MemoryMap:
    """The arena of a plan over time.

    Args:
        plan: any plan.
        width: of the drawing, in characters.
        height: likewise.
        top: how many values have letters and are listed.
    """
    with Calling("memory_map"):
        if width < 1 or height < 1 or not 0 < top <= len(LETTERS):
            raise ArgumentError(
                f"a map of {width} by {height} with {top} letters cannot be drawn",
                hint=f"there are {len(LETTERS)} letters",
            )
    blocks = []
    for i, (buffer, life) in enumerate(zip(plan.buffers, plan.lifetimes(), strict=True)):
        if life is not None and buffer.nbytes:
            kernel = plan.kernels[life[0]]
            place = (kernel.label, kernel.source)
            blocks.append(Block(i, *buffer.range, *life, str(buffer.type), *place))
    blocks.sort(key=lambda block: (-block.nbytes, block.first, block.buffer))
    return MemoryMap(
        name=plan.name,
        nbytes=plan.arena_bytes,
        naive_bytes=plan.naive_bytes,
        kernels=len(plan.kernels),
        blocks=tuple(blocks),
        alive=tuple(_alive(blocks, k) for k in range(len(plan.kernels))),
        width=width,
        height=height,
        top=top,
        steps=tuple(
            (number, inner.arena_bytes)
            for number, kernel in enumerate(plan.kernels)
            if (inner := plan.spec(kernel).inner) is not None
        ),
    )


def _alive(blocks: list[Block], kernel: int) -> int:
    """Bytes that hold a value while a kernel runs: places that two of them share count once."""
    spans = sorted((b.start, b.end) for b in blocks if b.first <= kernel <= b.last)
    total = reached = 0
    for start, end in spans:
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total
