"""What is done to the operands of an attention that it can do itself: scale them, share heads, take another layout."""

from __future__ import annotations

import math
from typing import Any

from ...graph.dims import divide
from ..declare import rewrite
from ..match import Match, Value
from ..pattern import Pattern, T, Term, variables
from .attention import settled_scale

q, k, v, mask, bias, c = variables("q k v mask bias c")
attrs, pq, pk, pv = variables("attrs pq pk pv")
k1, k2, k3, v1, v2, v3 = variables("k1 k2 k3 v1 v2 v3")

FORMS: dict[str, dict[str, Any]] = {
    "": {},
    " under a mask": {"mask": mask},
    " with a bias": {"bias": bias},
    " with a bias under a mask": {"mask": mask, "bias": bias},
}
"""Attention by its optional operands."""


def _attention(form: dict[str, Any], *operands: Pattern) -> Term:
    made: Term = T.scaled_dot_attention(*operands, **form, rest=attrs)
    return made


def _again(m: Match, form: dict[str, Any], **changes: Any) -> Pattern:
    """The attention of a match on ``m.q``, ``m.k`` and ``m.v``, with some attributes changed."""
    options = {**m.attrs, **changes}
    made: Pattern = T.scaled_dot_attention(
        m.q, m.k, m.v, **{name: m[name] for name in form}, **options
    )
    return made


def _scaled(m: Match, value: Value) -> float | None:
    """The attention's scale times the number by which an operand is multiplied."""
    number, scale = m.c.number, m.attrs["scale"]
    # The product must have the operand's own shape.
    if number is None or scale is None or m.c.rank > value.rank:
        return None
    if any(
        size != 1 and size != own
        for size, own in zip(m.c.shape[::-1], value.shape[::-1], strict=False)
    ):
        return None
    whole = scale * number
    return settled_scale(whole, m.q.shape[-1], m.q.dtype) if math.isfinite(whole) else None


# --------------------------------------------------------------------------- shared heads


def _head_axis(m: Match) -> int:
    return 1 if m.attrs["layout"] == "bhsd" else 2


def _is_repeat(m: Match, value: Value, opened: Any, spread: Any, joined: Any) -> bool:
    """Whether reshape, broadcast and reshape repeat each head in place."""
    axis = _head_axis(m)
    if value.rank != 4:
        return False
    before, heads, after = value.shape[:axis], value.shape[axis], value.shape[axis + 1 :]
    if len(spread) != 5 or tuple(opened) != (*before, heads, 1, *after):
        return False
    count = spread[axis + 1]
    return bool(
        tuple(spread) == (*before, heads, count, *after)
        and tuple(joined) == (*before, heads * count, *after)
        and count != 0
    )


def _divides(m: Match) -> bool:
    """Whether query heads divide among the key heads that are left."""
    axis = _head_axis(m)
    heads, kv_heads = m.q.shape[axis], m.k.shape[axis]
    return m.v.shape[axis] == kv_heads and kv_heads != 0 and divide(heads, kv_heads) is not None


def _is_spread(m: Match, value: Value, wide: Any) -> bool:
    """Whether a broadcast repeats the only head."""
    axis = _head_axis(m)
    if value.rank != 4 or value.shape[axis] != 1:
        return False
    return tuple(wide) == (*value.shape[:axis], wide[axis], *value.shape[axis + 1 :])


# --------------------------------------------------------------------------- layouts

SWAP = (0, 2, 1, 3)
OTHER = {"bhsd": "bshd", "bshd": "bhsd"}


def _add_rules(way: str, form: dict[str, Any]) -> None:
    @rewrite(f"attention of scaled queries{way}", _attention(form, q * c, k, v))
    def _(m: Match) -> Pattern | None:
        scale = _scaled(m, m.q)
        return None if scale is None else _again(m, form, scale=scale)

    @rewrite(f"attention of scaled keys{way}", _attention(form, q, k * c, v))
    def _(m: Match) -> Pattern | None:
        scale = _scaled(m, m.k)
        return None if scale is None else _again(m, form, scale=scale)

    repeated = [
        T.reshape(T.broadcast_to(T.reshape(value, shape=a), shape=b), shape=d)
        for value, a, b, d in ((k, k1, k2, k3), (v, v1, v2, v3))
    ]

    @rewrite(f"attention of repeated heads{way}", _attention(form, q, *repeated))
    def _(m: Match) -> Pattern | None:
        keys = _is_repeat(m, m.k, m.k1, m.k2, m.k3)
        fits = keys and _is_repeat(m, m.v, m.v1, m.v2, m.v3) and _divides(m)
        return _again(m, form) if fits else None

    spread = [T.broadcast_to(value, shape=a) for value, a in ((k, k1), (v, v1))]

    @rewrite(f"attention of one repeated head{way}", _attention(form, q, *spread))
    def _(m: Match) -> Pattern | None:
        fits = _is_spread(m, m.k, m.k1) and _is_spread(m, m.v, m.v1)
        return _again(m, form) if fits else None

    turned = [T.transpose(value, perm=perm) for value, perm in ((q, pq), (k, pk), (v, pv))]

    @rewrite(f"attention of the other layout{way}", _attention(form, *turned))
    def _(m: Match) -> Pattern | None:
        if not m.pq == m.pk == m.pv == SWAP:
            return None
        return T.transpose(_again(m, form, layout=OTHER[m.attrs["layout"]]), perm=SWAP)


for way, form in FORMS.items():
    _add_rules(way, form)
