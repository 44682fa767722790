"""Tables for people: plain text of even columns, and colours where a terminal has them."""

from __future__ import annotations

import abc
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeAlias

if TYPE_CHECKING:
    from rich.console import RenderableType

INDENT = "  "
WIDEST = 38
"""Characters of a cell of free text before the rest of it is left out."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, on which side its cells stand, and its colour on a terminal."""

    name: str
    side: Literal["left", "right"] = "left"
    style: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of text under headings, and a note below. A column in which every cell is empty is left out.

    >>> table = Table([Column("name"), Column("size", "right")], [("a", "1"), ("bcd", "200")])
    >>> print(table)
      name  size
      ----  ----
      a        1
      bcd    200
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def __str__(self) -> str:
        shown = self._shown()
        heads = [self.columns[i].name for i in shown]
        cells = [[row[i] for i in shown] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
        lines = [heads, ["-" * width for width in widths], *cells]
        sides = [self.columns[i].side for i in shown]
        shown_lines = [self._line(line, widths, sides) for line in lines]
        return "\n".join([*shown_lines, INDENT + self.note] if self.note else shown_lines)

    @staticmethod
    def _line(cells: Sequence[str], widths: Sequence[int], sides: Sequence[str]) -> str:
        placed = [
            cell.rjust(width) if side == "right" else cell.ljust(width)
            for cell, width, side in zip(cells, widths, sides, strict=True)
        ]
        return (INDENT + "  ".join(placed)).rstrip()

    def _shown(self) -> list[int]:
        places = range(len(self.columns))
        return [i for i in places if any(row[i] for row in self.rows)] or list(places)

    def __rich__(self) -> RenderableType:
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            header_style="bold",
            caption=self.note or None,
            caption_justify="left",
        )
        shown = self._shown()
        for i in shown:
            column = self.columns[i]
            table.add_column(
                column.name, justify=column.side, style=column.style, no_wrap=True, overflow="fold"
            )
        for row in self.rows:
            table.add_row(*(Text(row[i]) for i in shown))
        return table


Part: TypeAlias = str | Table


class Report(abc.ABC):
    """Something that prints: lines and tables, one below the other. A subclass has ``_parts``."""

    @abc.abstractmethod
    def _parts(self) -> list[Part]:
        """What is printed."""

    def __str__(self) -> str:
        parts = self._parts()
        text = str(parts[0]) if parts else ""
        for before, part in pairwise(parts):
            # A table belongs to the line above it; what follows a table begins anew.
            text += ("\n\n" if isinstance(before, Table) else "\n") + str(part)
        return text

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        return Group(*(Text(part) if isinstance(part, str) else part for part in self._parts()))

    def show(self, file: TextIO | None = None) -> None:
        """Write it to a file, standard output by default: with colours on a terminal, else plain."""
        file = sys.stdout if file is None else file
        if not file.isatty():
            file.write(f"{self}\n")
            return
        from rich.console import Console

        console = Console(file=file)
        lines = [len(line) for line in str(self).splitlines()]
        # A terminal wraps what is too wide, and nothing is left out.
        console.print(self, soft_wrap=max(lines, default=0) > console.width)


# --------------------------------------------------------------------------- numbers


def seconds(value: float) -> str:
    """A time in three digits: ``12.3 us``, ``1.50 ms``, ``2.00 s``.

    >>> seconds(0.0015), seconds(1.23e-5), seconds(4.2e-8)
    ('1.50 ms', '12.3 us', '42.0 ns')
    """
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= 0.9995 * unit:
            return f"{three_digits(value / unit)} {name}"
    return f"{three_digits(value / 1e-9)} ns"


def three_digits(value: float) -> str:
    """A number that is not negative, with three digits: ``0.12``, ``1.23``, ``12.3``, ``123``."""
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def percent(share: float) -> str:
    """A share: ``41.2 %``, ``0.1 %``."""
    return f"{100 * share:.0f} %" if share >= 0.9995 else f"{100 * share:.1f} %"


def count(value: float, unit: str = "") -> str:
    """A large number in three digits: ``1.50 M``, ``12.3 G``.

    >>> count(6422528, "FLOP"), count(12)
    ('6.42 MFLOP', '12')
    """
    for power, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * power:
            return f"{three_digits(value / power)} {prefix}{unit}".rstrip()
    return f"{value:g} {unit}".rstrip()


def number(value: float | None) -> str:
    """A value of a tensor in four digits; nothing where there is none."""
    if value is None:
        return ""
    return f"{value:.4g}"


def clipped(text: str, width: int = WIDEST) -> str:
    """Text of at most this many characters."""
    return text if len(text) <= width else text[: width - 1] + "…"


def bar(share: float, width: int = 10) -> str:
    """A share as a bar of block characters.

    >>> bar(0.5, 4), bar(0.05, 4), bar(0.0, 4)
    ('██', '▎', '')
    """
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    full, rest = divmod(eighths, 8)
    return "█" * full + ("" if rest == 0 else " ▏▎▍▌▋▊▉"[rest])


def plural(number_: int, noun: str) -> str:
    """``1 kernel``, ``2 kernels``."""
    return f"{number_:,} {noun}{'' if number_ == 1 else 's'}"


def as_json(value: Any) -> Any:
    """A value that JSON has: numbers that are not finite as text."""
    if isinstance(value, float) and not (abs(value) < float("inf")):
        return str(value)
    return value
