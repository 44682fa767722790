"""Long lists of names, short: numbered names are folded, and columns aligned.

>>> rows = [(f"layers.{i}.norm.weight", "f32[8]") for i in (0, 1, 2, 5)]
>>> folded([*rows, ("head.bias", "f32[4]")])
[('layers.{0..2,5}.norm.weight (4)', 'f32[8]'), ('head.bias', 'f32[4]')]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TypeAlias

Row: TypeAlias = tuple[str, ...]
"""A name, and what stands beside it."""
_Numbers: TypeAlias = tuple[int, ...]
_MOST_NUMBERS = 8
"""Names with more numbers in them are not folded: no model has any."""
_LONG = 120


def folded(rows: Iterable[Row]) -> list[Row]:
    """Rows whose names differ in numbers alone as one, with how many they are; in the order of the first of each.

    Only rows with equal other columns are folded, and only names that are all there: ``{0..2}.{0..3}`` are twelve.
    """
    groups: dict[tuple[str, Row], list[_Numbers]] = {}
    for name, *cells in rows:
        words = name.split(".")
        # "007" and "7" are two names, and other scripts have digits too.
        places = [
            i
            for i, word in enumerate(words)
            if word.isdecimal() and len(word) < 10 and str(int(word)) == word
        ]
        places = places if len(places) <= _MOST_NUMBERS else []
        numbers = tuple(int(words[i]) for i in places)
        for i in places:
            words[i] = "{}"
        pattern = ".".join(words)
        if "{}" in name or "{}" not in pattern:
            pattern, numbers = name, ()
        groups.setdefault((pattern, tuple(cells)), []).append(numbers)
    return [
        (shown, *cells)
        for (pattern, cells), found in groups.items()
        for shown in _spelled(pattern, found)
    ]


def _spelled(pattern: str, found: list[_Numbers]) -> list[str]:
    """Names of one pattern: as one if they are all combinations of their numbers, else split by the first that varies."""
    found = list(dict.fromkeys(found))
    if len(found) == 1:
        return [_filled(pattern, [str(number) for number in found[0]])]
    columns = list(zip(*found, strict=True))
    choices = [sorted(set(column)) for column in columns]
    # Numbers that are always the same ones, as in "h.3 (from layers.3)", vary together.
    distinct = dict(zip(columns, choices, strict=True))
    if len(found) == prod(map(len, distinct.values())):
        return [f"{_filled(pattern, [_ranges(choice) for choice in choices])} ({len(found)})"]
    varies = next(i for i, choice in enumerate(choices) if len(choice) > 1)
    parts = ([numbers for numbers in found if numbers[varies] == n] for n in choices[varies])
    return [name for part in parts for name in _spelled(pattern, part)]


def _filled(pattern: str, texts: Sequence[str]) -> str:
    pieces = pattern.split("{}")
    return (
        "".join(piece + text for piece, text in zip(pieces, [*texts, ""], strict=False))
        if texts
        else pattern
    )


def _ranges(numbers: list[int]) -> str:
    """Sorted numbers, with runs written as their ends: ``{0..3,7}``."""
    if len(numbers) == 1:
        return str(numbers[0])
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = (f"{run[0]}..{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)
    return "{" + ",".join(texts) + "}"


def _short(cell: str) -> str:
    """A cell on its line: files may hold names of any length, with any characters."""
    plain = cell if cell.isprintable() else repr(cell)
    return plain if len(plain) <= _LONG else f"{plain[:_LONG]}..."


def aligned(rows: Sequence[Row], *, most: int = 40) -> list[str]:
    """Rows as lines with their columns aligned, indented; after so many of them, how many more there are."""
    shown = [tuple(map(_short, row)) for row in rows[:most]]
    columns = max((len(row) for row in shown), default=0)
    widths = [
        max((len(row[i]) for row in shown if i < len(row)), default=0) for i in range(columns)
    ]
    lines = [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        for row in shown
    ]
    if len(rows) > most:
        lines.append(f"  and {len(rows) - most} more")
    return lines
