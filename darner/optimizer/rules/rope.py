"""Rotary positions, recognised in slices, products and concatenations.

Turned pairs become ``rope_with_tables``, which is the same for any tables; where the tables are those of ``rope``, to the last
digits of their type, ``rope_forms`` says so, and takes in what stands around.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graph.dims import Dim, Shape
from ...graph.errors import ShapeError
from ...graph.types import broadcast
from ..declare import rewrite
from ..match import Match, Value
from ..pattern import Pattern, T, Term, variables

x, cos, sin, angles, table = variables("x cos sin angles table")
a1, a2, a3, b1, b2, b3, axis = variables("a1 a2 a3 b1 b2 b3 axis")
c1, c2, c3, p, s, t, u = variables("c1 c2 c3 p s t u")


# --------------------------------------------------------------------------- where pairs are


def _piece(starts: Any, stops: Any, steps: Any) -> Term:
    made: Term = T.slice(x, starts=starts, stops=stops, steps=steps)
    return made


_FIRST, _SECOND, _REST = _piece(a1, a2, a3), _piece(b1, b2, b3), _piece(c1, c2, c3)


def _is_range(m: Match, piece: str, start: Dim, stop: Dim, step: int = 1) -> bool:
    """Whether a slice takes all of ``x`` but for a range of its last axis."""
    starts, stops, steps = (m[f"{piece}{i}"] for i in (1, 2, 3))
    whole = m.x.shape
    return bool(
        starts[:-1] == (0,) * (len(whole) - 1)
        and stops[:-1] == whole[:-1]
        and steps == (*(1,) * (len(whole) - 1), step)
        and (starts[-1], stops[-1]) == (start, stop)
    )


def _halves(m: Match) -> bool:
    """Whether the slices are the halves of the last axis."""
    width = m.x.shape[-1] if m.x.rank else 0
    if not isinstance(width, int) or width % 2 or width == 0:
        return False
    return _is_range(m, "a", 0, width // 2) and _is_range(m, "b", width // 2, width)


def _turned(m: Match, first: Value, second: Value, columns: int, **options: Any) -> Pattern | None:
    """``x`` turned by tables that were multiplied with its pairs; None where their axes do not say whose they are."""
    if first.shape != second.shape or first.rank < 2 or first.shape[-1] != columns:
        return None
    if m.root.type != m.x.type or not m.x.dtype.is_float:
        return None
    lead, found = m.x.shape[:-1], first.shape[:-1]
    if _fits(found, lead):
        return T.rope_with_tables(m.x, first, second, layout="hsd", **options)
    # Heads after the sequence: tables have an axis of size 1 in their place.
    if len(found) >= 2 and found[-1] == 1 and m.x.rank >= 3 and _fits(found[:-1], lead[:-1]):
        narrow = [T.reshape(each, shape=(*found[:-1], columns)) for each in (first, second)]
        return T.rope_with_tables(m.x, *narrow, layout="shd", **options)
    return None


def _fits(found: Shape, places: Shape) -> bool:
    """Whether there is an entry for each row of the sequence, the same for all that is in front of it."""
    try:
        return found[-1] == places[-1] and broadcast(found, places) == places
    except ShapeError:
        return False


# --------------------------------------------------------------------------- turning


def _parts(first: Term, second: Term) -> tuple[Term, Term]:
    return first * cos - second * sin, second * cos + first * sin


@rewrite(
    "rope of halves",
    T.concat([*_parts(_FIRST, _SECOND)], axis=-1),
    fusion="Slice+Mul+Add+Concat→Rope",
)
def _(m: Match) -> Pattern | None:
    return _turned(m, m.cos, m.sin, m.x.shape[-1] // 2) if _halves(m) else None


@rewrite(
    "rope of halves, turned back",
    T.concat([_FIRST * cos + _SECOND * sin, _SECOND * cos - _FIRST * sin], axis=-1),
    fusion="Slice+Mul+Add+Concat→Rope",
)
def _(m: Match) -> Pattern | None:
    if not _halves(m):
        return None
    found = _turned(m, m.cos, m.sin, m.x.shape[-1] // 2)
    if not isinstance(found, Term):
        return None
    turned, first, second = found.operands
    return T.rope_with_tables(turned, first, -second, **dict(found.attrs))


@rewrite(
    "rope of some elements, in three parts",
    T.concat([*_parts(_FIRST, _SECOND), _REST], axis=-1),
    fusion="Slice+Mul+Add+Concat→Rope",
)
def _(m: Match) -> Pattern | None:
    half, width = m.a2[-1] if m.a2 else 0, m.x.shape[-1] if m.x.rank else 0
    if not (isinstance(half, int) and isinstance(width, int) and 0 < 2 * half < width):
        return None
    ranges = (("a", 0, half), ("b", half, 2 * half), ("c", 2 * half, width))
    if not all(_is_range(m, *found) for found in ranges):
        return None
    return _turned(m, m.cos, m.sin, half, n_rot=2 * half)


@rewrite(
    "rope with halves changed over",
    x * T.concat([cos, cos], axis=-1)
    + T.concat([-_SECOND, _FIRST], axis=-1) * T.concat([sin, sin], axis=-1),
    fusion="Slice+Mul+Add+Concat→Rope",
)
def _(m: Match) -> Pattern | None:
    return _turned(m, m.cos, m.sin, m.x.shape[-1] // 2) if _halves(m) else None


@rewrite(
    "rope with halves changed over, by known tables",
    x * cos + T.concat([-_SECOND, _FIRST], axis=-1) * sin,
    fusion="Slice+Mul+Add+Concat→Rope",
)
def _(m: Match) -> Pattern | None:
    if not _halves(m) or not (_repeats(m.cos) and _repeats(m.sin)):
        return None
    half = m.x.shape[-1] // 2
    # The halves are equal, so the first of each table is all of it.
    made = _turned(m, m.cos, m.sin, 2 * half)
    if not isinstance(made, Term):
        return None
    turned, *tables = made.operands
    narrow = [_first_columns(each, half) for each in tables]
    return T.rope_with_tables(turned, *narrow, **dict(made.attrs))


def _repeats(value: Value) -> bool:
    """Whether the two halves of a constant's last axis are the same."""
    if value.constant is None or value.rank < 2 or int(value.shape[-1]) % 2:
        return False
    first, second = np.split(value.constant.array, 2, -1)
    return bool((first == second).all())


def _first_columns(pattern: Pattern, count: int) -> Pattern:
    shape = dict(pattern.attrs)["shape"] if isinstance(pattern, Term) else _shape(pattern)
    starts = (0,) * len(shape)
    made: Pattern = T.slice(pattern, starts=starts, stops=(*shape[:-1], count))
    return made


def _shape(pattern: Pattern) -> Shape:
    return pattern.shape if isinstance(pattern, Value) else ()


# --------------------------------------------------------------------------- neighbours


def _side_by_side(first: Term, second: Term) -> Term:
    parts = [T.reshape(part, shape=s) for part in _parts(first, second)]
    made: Term = T.reshape(T.concat(parts, axis=-1), shape=t)
    return made


def _weaves(m: Match) -> bool:
    """Whether (..., pairs) become (..., pairs, 1), two of them (..., pairs, 2), and that the shape of ``x``."""
    width = m.x.shape[-1] if m.x.rank else 0
    if not isinstance(width, int) or width % 2 or width == 0:
        return False
    return tuple(m.s) == (*m.x.shape[:-1], width // 2, 1) and tuple(m.t) == m.x.shape


@rewrite(
    "rope of neighbours",
    _side_by_side(_FIRST, _SECOND),
    fusion="Slice+Mul+Add+Concat→Rope",
)
def _(m: Match) -> Pattern | None:
    if not _weaves(m):
        return None
    width = m.x.shape[-1]
    if not all(_steps_over(m, piece, start) for piece, start in (("a", 0), ("b", 1))):
        return None
    return _turned(m, m.cos, m.sin, width // 2, interleaved=True)


def _steps_over(m: Match, piece: str, start: int) -> bool:
    width = m.x.shape[-1]
    # The stop may or may not count the neighbour that is stepped over.
    return any(_is_range(m, piece, start, stop, 2) for stop in (width, width - 1 + start))


_PAIRS = T.reshape(x, shape=u)
_NEIGHBOURS = [
    T.reshape(T.slice(_PAIRS, starts=found[0], stops=found[1], steps=found[2]), shape=p)
    for found in ((a1, a2, a3), (b1, b2, b3))
]


@rewrite(
    "rope of pairs on an axis of their own",
    _side_by_side(*_NEIGHBOURS),
    fusion="Slice+Mul+Add+Concat→Rope",
)
def _(m: Match) -> Pattern | None:
    if not _weaves(m):
        return None
    lead, half = m.x.shape[:-1], m.x.shape[-1] // 2
    if tuple(m.u) != (*lead, half, 2) or tuple(m.p) != (*lead, half):
        return None
    zeros = (0,) * (len(lead) + 1)
    for place, piece in enumerate(("a", "b")):
        starts, stops, steps = (m[f"{piece}{i}"] for i in (1, 2, 3))
        if starts != (*zeros, place) or stops != (*lead, half, place + 1) or set(steps) != {1}:
            return None
    return _turned(m, m.cos, m.sin, half, interleaved=True)


# --------------------------------------------------------------------------- tables written twice as wide

for name in ("cos", "sin"):
    call = getattr(T, name)

    @rewrite(f"{name} of angles written twice", call(T.concat([angles, angles], axis=axis)))
    def _(m: Match, call: Any = call) -> Pattern | None:
        return T.concat([call(m.angles), call(m.angles)], axis=m.axis)


@rewrite("reshape of a table written twice", T.reshape(T.concat([table, table], axis=-1), shape=s))
def _(m: Match) -> Pattern | None:
    width = m.table.shape[-1]
    before = [found for found in m.table.shape[:-1] if found != 1]
    if not m.s or m.s[-1] != 2 * width or [found for found in m.s[:-1] if found != 1] != before:
        return None
    narrow = T.reshape(m.table, shape=(*m.s[:-1], width))
    return T.concat([narrow, narrow], axis=-1)
