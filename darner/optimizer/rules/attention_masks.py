"""Masks of attention that an attribute says in a word: causal, and a window of the last keys.

They come as constants, or as comparisons of positions, which ``iota`` counts. Each is read as one statement about how far a key lies
before its query; query ``i`` stands at key ``i + keys - queries``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...graph.data import Array
from ...graph.dims import Dim, Shape
from ..declare import Condition, rewrite, rule
from ..match import Match
from ..pattern import Pattern, T, Term, variables
from .attention import HIDES

q, k, v, mask, bias, other, n, zero, c = variables("q k v mask bias other n zero c")
rest, attrs = variables("rest attrs")
sa, xa, ta, sb, xb, tb, first, second, s = variables("sa xa ta sb xb tb first second s")

Options = dict[str, Any]


# --------------------------------------------------------------------------- what an attention is like


def _lengths(m: Match) -> tuple[Dim, Dim]:
    """How many queries and keys there are."""
    axis = 2 if m.attrs["layout"] == "bhsd" else 1
    return m.q.shape[axis], m.k.shape[axis]


def _without(m: Match, **changes: Any) -> Options:
    """The attention's attributes, with some changed."""
    return {**m.attrs, **changes}


def _is_open(m: Match) -> bool:
    """Whether there is neither a causal mask nor a window yet."""
    return not m.attrs["causal"] and m.attrs["window"] is None


# --------------------------------------------------------------------------- constants


def visible_options(visible: Array, queries: int, keys: int) -> Options | None:
    """The attributes that show each query the keys it sees in an array; None where none do, or a query sees nothing."""
    if not visible.size:
        return None
    if visible.ndim > 2:
        lead = visible.reshape(-1, *visible.shape[-2:])
        if (lead != lead[0]).any():
            return None
        visible = lead[0]
    seen = np.broadcast_to(visible, (queries, keys))
    distance = np.arange(queries)[:, None] + (keys - queries) - np.arange(keys)
    if not seen.size or not seen.any(1).all():
        return None
    if seen.all():
        return {}
    window = int(distance[seen].max()) + 1
    causal = bool((distance[seen] >= 0).all())
    wanted = (distance >= 0) & (distance < window) if causal else np.abs(distance) < window
    if window < 1 or not (seen == wanted).all():
        return None
    # A window that reaches the first key of all hides nothing.
    reaches = causal and window > distance.max()
    return {"causal": causal, "window": None if reaches else window}


def _read(m: Match, visible: Array) -> Options | None:
    queries, keys = _lengths(m)
    if not (isinstance(queries, int) and isinstance(keys, int) and _is_open(m)):
        return None
    return visible_options(visible, queries, keys)


@rewrite("attention with a known mask", T.scaled_dot_attention(q, k, v, mask, rest=attrs))
def _(m: Match) -> Pattern | None:
    if m.mask.constant is None:
        return None
    found = _read(m, m.mask.constant.array)
    return None if found is None else _bare(m, **found)


@rewrite("attention with a known bias", T.scaled_dot_attention(q, k, v, bias=bias, rest=attrs))
def _(m: Match) -> Pattern | None:
    if m.bias.constant is None:
        return None
    array = m.bias.constant.array.astype(np.float64)
    if not ((array == 0) | (array <= HIDES)).all():
        return None
    found = _read(m, array == 0)
    return None if found is None else _bare(m, **found)


def _bare(m: Match, **changes: Any) -> Pattern:
    """The attention without mask and bias."""
    made: Pattern = T.scaled_dot_attention(m.q, m.k, m.v, **_without(m, **changes))
    return made


@rewrite(
    "attention with a mask that is added",
    T.scaled_dot_attention(q, k, v, bias=T.where(mask, zero, n), rest=attrs),
)
def _(m: Match) -> Pattern | None:
    if m.zero.number != 0 or m.n.number is None or m.n.number > HIDES:
        return None
    if m.n.number == -math.inf:
        return T.scaled_dot_attention(m.q, m.k, m.v, m.mask, **m.attrs)
    # A row that is hidden throughout would have a mean.
    if m.mask.constant is None:
        return None
    found = _read(m, m.mask.constant.array)
    return None if found is None else _bare(m, **found)


# --------------------------------------------------------------------------- comparisons of positions

_A = T.iota(shape=sa, axis=xa, dtype=ta)
_B = T.iota(shape=sb, axis=xb, dtype=tb)


def _position(sizes: Shape, axis: int) -> int:
    """The axis that is counted, from the end."""
    return axis - len(sizes)


def _of_positions(m: Match, queries: Dim, keys: Dim) -> bool:
    """Whether the first operand counts queries and the second keys."""
    return (
        _position(m.sa, m.xa) == -2
        and _position(m.sb, m.xb) == -1
        and m.sa[m.xa] == queries
        and m.sb[m.xb] == keys
    )


def _offset(m: Match) -> Dim | None:
    """The number added to a query's place, where it is one integer."""
    if "c" not in m._found:
        return 0
    number = m.c.number
    return int(number) if number is not None and m.c.dtype.is_int else None


def _is_causal(m: Match) -> bool:
    queries, keys = _lengths(m)
    return _of_positions(m, queries, keys) and _offset(m) == keys - queries


def _shows_all_some(m: Match) -> bool:
    """Whether a causal mask shows each query a key."""
    queries, keys = _lengths(m)
    return queries == keys or (
        isinstance(queries, int) and isinstance(keys, int) and queries < keys
    )


CAUSAL: dict[str, Term] = {"": T.ge(_A, _B), ", shifted": T.ge(T.add(_A, c), _B)}
"""Keys that do not come after the query: in the normal form, queries compared with keys."""

for how, seen in CAUSAL.items():
    causal = Condition("the comparison is the causal mask", _is_causal)
    whole = Condition("each query sees a key", _shows_all_some)

    rule(
        f"attention under a causal comparison{how}",
        T.scaled_dot_attention(q, k, v, seen, rest=attrs),
        lambda m: _bare(m, causal=True),
        when=causal,
    )
    rule(
        f"attention with a bias under a causal comparison{how}",
        T.scaled_dot_attention(q, k, v, seen, bias, rest=attrs),
        lambda m: T.scaled_dot_attention(m.q, m.k, m.v, bias=m.bias, **_without(m, causal=True)),
        when=causal,
    )
    rule(
        f"attention under a causal comparison and a mask{how}",
        T.scaled_dot_attention(q, k, v, T.logical_and(seen, other), rest=attrs),
        lambda m: T.scaled_dot_attention(m.q, m.k, m.v, m.other, **_without(m, causal=True)),
        when=causal & Condition("the mask has four axes at most", lambda m: m.other.rank <= 4),
    )

    @rewrite(
        f"attention with an added causal comparison{how}",
        T.scaled_dot_attention(q, k, v, bias=T.where(seen, zero, n), rest=attrs),
        when=causal & whole,
    )
    def _(m: Match) -> Pattern | None:
        if m.zero.number != 0 or m.n.number is None or m.n.number > HIDES:
            return None
        return _bare(m, causal=True)


@rewrite(
    "attention within a window",
    T.scaled_dot_attention(q, k, v, T.lt(T.add(_A, c), _B), rest=attrs),
)
def _(m: Match) -> Pattern | None:
    queries, keys = _lengths(m)
    offset = _offset(m)
    if not (_of_positions(m, queries, keys) and m.attrs["causal"]) or offset is None:
        return None
    window = keys - queries - offset
    if m.attrs["window"] is not None or not isinstance(window, int) or window < 1:
        return None
    return _bare(m, window=window)


# --------------------------------------------------------------------------- the normal form of comparisons


def _is_int(m: Match) -> bool:
    return all(found.dtype.is_int for found in (m.first, m.second))


_INTEGERS = Condition("first and second are integers", _is_int)

rule("le, turned round", T.le(first, second), T.ge(second, first), when=_INTEGERS)
rule("gt, turned round", T.gt(first, second), T.lt(second, first), when=_INTEGERS)
rule("not less", T.logical_not(T.lt(first, second)), T.ge(first, second), when=_INTEGERS)
rule("not at least", T.logical_not(T.ge(first, second)), T.lt(first, second), when=_INTEGERS)


def _queries(m: Match) -> Term:
    made: Term = T.iota(shape=m.sa, axis=m.xa, dtype=m.ta)
    return made


def _keys(m: Match) -> Term:
    made: Term = T.iota(shape=m.sb, axis=m.xb, dtype=m.tb)
    return made


def _moved(m: Match, sign: int) -> Pattern | None:
    """The count of queries with a number added; None where that is not one small integer."""
    number = m.c.number
    if number is None or not m.ta.is_int or m.ta.limits[0] > -(2**31) or abs(number) > 2**30:
        return None
    made: Pattern = T.add(_queries(m), sign * number)
    return made


def _add_comparison(name: str) -> None:
    call = getattr(T, name)

    def compared(m: Match, sign: int) -> Pattern | None:
        moved = _moved(m, sign)
        if moved is None or (m.c.rank and m.c.shape != (1,)):
            return None
        made: Pattern = call(moved, _keys(m))
        return made

    rule(f"{name} of a distance", call(_A - _B, c), lambda m: compared(m, -1))
    rule(
        f"{name} of positions, moved on the right",
        call(_A, T.add(_B, c)),
        lambda m: compared(m, -1),
    )
    rule(f"{name} of positions, moved back", call(_A - c, _B), lambda m: compared(m, -1))


for name in ("ge", "lt"):
    _add_comparison(name)


@rewrite(
    "iota under another shape",
    T.reshape(T.iota(shape=sa, axis=xa, dtype=ta), shape=s),
    simplify=True,
)
def _(m: Match) -> Pattern | None:
    size = m.sa[m.xa]
    counted = [i for i, found in enumerate(m.s) if found != 1]
    if len(m.sa) != 1 or size == 1 or len(counted) != 1:
        return None
    return T.iota(shape=m.s, axis=counted[0], dtype=m.ta)
