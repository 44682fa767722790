"""Rotary positions with what stands around them: usual tables, elements that stay, heads on another axis or side by side."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...graph.data import Array
from ...graph.dims import Shape
from ..declare import rewrite
from ..match import Match, Value
from ..pattern import Pattern, T, Term, variables
from .attention import precision

x, cos, sin, frequencies = variables("x cos sin frequencies")
attrs, p, s, t, u, kind = variables("attrs p s t u kind")
a1, a2, a3, b1, b2, b3 = variables("a1 a2 a3 b1 b2 b3")

WITH_TABLES = T.rope_with_tables(x, cos, sin, rest=attrs)


# --------------------------------------------------------------------------- the usual angles


def usual_theta(turns: Array, n_rot: int, tolerance: float) -> float | None:
    """The theta whose powers are these angles of one step, each to ``tolerance`` of itself; None where there is none.

    One of few digits is taken where it serves: that is what was written.
    """
    pairs = n_rot // 2
    if turns.shape != (pairs,) or not (turns > 0).all():
        return None
    powers = -2 * np.arange(pairs) / n_rot
    found = 10000.0 if pairs == 1 else float(turns[-1] ** (1 / powers[-1]))
    if not math.isfinite(found):
        return None
    for digits in range(1, 17):
        theta = float(f"{found:.{digits - 1}e}")
        if (np.abs(theta**powers - turns) <= tolerance * turns).all():
            return theta
    return None


def _rows(value: Value, columns: int) -> Array | None:
    """A constant table as (length, columns) of f64, where it is the same for all that is in front."""
    if value.constant is None or any(size != 1 for size in value.shape[:-2]):
        return None
    found: Array = value.constant.array.astype(np.float64).reshape(value.shape[-2:])[:, :columns]
    return found


def _with_angle(m: Match, theta: float, inverse: bool) -> Pattern:
    made: Pattern = T.rope(m.x, theta, inverse=inverse, **m.attrs)
    return made


@rewrite("rope of usual tables", WITH_TABLES)
def _(m: Match) -> Pattern | None:
    n_rot = m.attrs["n_rot"]
    tables = [_rows(table, n_rot // 2) for table in (m.cos, m.sin)]
    if tables[0] is None or tables[1] is None or len(tables[0]) < 2:
        return None
    turns = np.arctan2(tables[1][1], tables[0][1])
    inverse = bool((turns < 0).all())
    tolerance = precision(m.cos.dtype)
    theta = usual_theta(-turns if inverse else turns, n_rot, tolerance)
    if theta is None:
        return None
    angles = np.arange(len(tables[0]))[:, None] * theta ** (-2 * np.arange(n_rot // 2) / n_rot)
    sines = -np.sin(angles) if inverse else np.sin(angles)
    off = max(np.abs(np.cos(angles) - tables[0]).max(), np.abs(sines - tables[1]).max())
    return _with_angle(m, theta, inverse) if off <= tolerance else None


_COUNTED = T.iota(shape=s, axis=u, dtype=t)

for how, count in (("", T.cast(_COUNTED, to=kind)), (", not cast", _COUNTED)):
    _ANGLES = count * frequencies

    @rewrite(
        f"rope of computed tables{how}",
        T.rope_with_tables(x, T.cos(_ANGLES), T.sin(_ANGLES), rest=attrs),
    )
    def _(m: Match) -> Pattern | None:
        n_rot = m.attrs["n_rot"]
        known = m.frequencies
        if known.constant is None or known.rank == 0 or known.size != n_rot // 2:
            return None
        # Angles of 16 bits are far from the usual ones.
        if known.dtype.is_half:
            return None
        if known.shape[-1] != n_rot // 2 or m.u != len(m.s) - 2 or m.s[-1] != 1:
            return None
        turns = known.constant.array.astype(np.float64).reshape(-1)
        theta = usual_theta(turns, n_rot, precision(known.dtype))
        return None if theta is None else _with_angle(m, theta, False)


# --------------------------------------------------------------------------- elements that stay


def _is_start(m: Match) -> int | None:
    """How many elements of the last axis turn, where the first slice has them and the second all others."""
    sizes = m.x.shape
    if not sizes:
        return None
    lead, width = sizes[:-1], sizes[-1]
    turned = m.a2[-1]
    zeros = (0,) * len(lead)
    wanted = (
        ((*zeros, 0), (*lead, turned), (1,) * len(sizes)),
        ((*zeros, turned), sizes, (1,) * len(sizes)),
    )
    found = ((m.a1, m.a2, m.a3), (m.b1, m.b2, m.b3))
    fits = isinstance(turned, int) and isinstance(width, int) and found == wanted
    return turned if fits else None


_START, _END = T.slice(x, a1, a2, a3), T.slice(x, b1, b2, b3)

for name, turned in (
    ("rope", T.rope(_START, rest=attrs)),
    ("rope_with_tables", T.rope_with_tables(_START, cos, sin, rest=attrs)),
):

    @rewrite(f"{name} of the first elements", T.concat([turned, _END], axis=-1))
    def _(m: Match, turned: Term = turned) -> Pattern | None:
        size = _is_start(m)
        # Tables as wide as the elements that turn are right for any n_rot up to that.
        if size is None or m.attrs["layout"] == "flat" or m.attrs["n_rot"] != size:
            return None
        return _again(m, turned, m.x, head_dim=m.x.shape[-1])


def _again(m: Match, call: Term, operand: Any, **changes: Any) -> Term:
    """The same call on another operand, with some attributes changed; tables are as they were."""
    tables = {name: changes.pop(name, m[name]) for name in call.slots if name != "x"}
    made: Term = getattr(T, call.op.name)(operand, **tables, **{**m.attrs, **changes})
    return made


# --------------------------------------------------------------------------- where heads are

OTHER = {"hsd": "shd", "shd": "hsd"}


def _is_swap(order: tuple[int, ...]) -> bool:
    """Whether a transpose swaps sequence and heads alone."""
    rank = len(order)
    return rank >= 3 and order == (*range(rank - 3), rank - 2, rank - 3, rank - 1)


def _other_table(table: Value, layout: str) -> Pattern | None:
    """A table of ``layout`` for the other one; None where it differs between heads."""
    if table.rank == 2:
        return table
    *lead, length, columns = table.shape
    if layout == "hsd":
        if lead[-1] != 1:
            return None
        return T.reshape(table, shape=(*lead[:-1], length, columns))
    return T.reshape(table, shape=(*lead, 1, length, columns))


_HEADS = T.transpose(x, perm=p)


@rewrite("rope of the other layout", T.rope(_HEADS, rest=attrs))
def _(m: Match) -> Pattern | None:
    layout = OTHER.get(m.attrs["layout"])
    if layout is None or not _is_swap(m.p):
        return None
    return T.transpose(T.rope(m.x, **{**m.attrs, "layout": layout}), perm=m.p)


@rewrite("rope_with_tables of the other layout", T.rope_with_tables(_HEADS, cos, sin, rest=attrs))
def _(m: Match) -> Pattern | None:
    layout = OTHER.get(m.attrs["layout"])
    if layout is None or not _is_swap(m.p):
        return None
    tables = [_other_table(table, m.attrs["layout"]) for table in (m.cos, m.sin)]
    if None in tables:
        return None
    made = T.rope_with_tables(m.x, *tables, **{**m.attrs, "layout": layout})
    return T.transpose(made, perm=m.p)


def _is_by_head(flat: Shape, opened: Shape) -> bool:
    """Whether (..., length, heads * width) was opened to (..., length, heads, width)."""
    if len(flat) < 2 or len(opened) < 3:
        return False
    length, heads, width = opened[-3:]
    return flat[-2] == length and flat[-1] == heads * width


_BY_HEAD = T.reshape(x, shape=s)


@rewrite("rope of heads side by side", T.rope(_BY_HEAD, rest=attrs))
def _(m: Match) -> Pattern | None:
    if m.attrs["layout"] != "shd" or not _is_by_head(m.x.shape, m.s):
        return None
    return T.reshape(T.rope(m.x, **{**m.attrs, "layout": "flat"}), shape=m.s)


@rewrite(
    "rope_with_tables of heads side by side", T.rope_with_tables(_BY_HEAD, cos, sin, rest=attrs)
)
def _(m: Match) -> Pattern | None:
    if m.attrs["layout"] != "shd" or not _is_by_head(m.x.shape, m.s):
        return None
    if m.cos.rank > 2 and m.x.shape[:-2] != m.s[:-3]:
        return None
    made = T.rope_with_tables(m.x, m.cos, m.sin, **{**m.attrs, "layout": "flat"})
    return T.reshape(made, shape=m.s)
