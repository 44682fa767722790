"""Attention, recognised in its parts: products, scale, cap, masks, softmax.

A row whose keys are all hidden is zeros in ``scaled_dot_attention``; spelled in parts it is NaN, or, where hidden scores are finite,
a mean. So a mask is taken as a mask where it hides by -inf, or where it is known to show every query some key. Any other
mask is taken as what is added to the scores, which is always the same.
"""

from __future__ import annotations

import math
from functools import cache

import ml_dtypes

from ...graph.dims import Dim, divide
from ...graph.dtypes import DType
from ..declare import rewrite
from ..match import Match, Value
from ..pattern import Number, Pattern, T, Term, variables

q, k, v, c, r, cap, mask, n, bias = variables("q k v c r cap mask n bias")
shape, back = variables("shape back")

ABSORBS = -1e25
"""A number so far below 0 that a score added to it leaves it as it is."""

HIDES = -1e9
"""What is added to a score to leave it no weight beside others."""


# --------------------------------------------------------------------------- the parts


@cache
def precision(dtype: DType) -> float:
    """How far apart, relative to their size, two numbers of a type may be that were rounded on the way."""
    return 4 * float(ml_dtypes.finfo(dtype.numpy).eps)  # type: ignore[no-untyped-call]


def settled_scale(scale: float, width: Dim, dtype: DType) -> float:
    """A scale read from constants: the usual one, where it differs from that by rounding alone."""
    if isinstance(width, int) and width > 0:
        usual = 1 / math.sqrt(width)
        if abs(scale - usual) <= precision(dtype) * usual:
            return usual
    return scale


def scalar(value: float) -> Pattern:
    """A constant of the result's element type, in places where neighbours have another."""
    return T.reshape(Number(value), shape=())


_PRODUCT = T.matmul_bt(q, k)

CORES: dict[str, Term] = {
    "scores": _PRODUCT,
    "scaled scores": _PRODUCT * c,
    "capped scores": T.tanh(_PRODUCT * r) * cap,
}
"""Scores before anything is hidden."""


def _options(m: Match, core: str) -> dict[str, float] | None:
    """The attributes that say what was done to the products; None where they are not known numbers."""
    if core == "scores":
        scale, softcap = 1.0, None
    elif core == "scaled scores":
        scale, softcap = m.c.number, None
    else:
        softcap = m.cap.number
        if softcap is None or m.r.number is None or not 0 < softcap < math.inf:
            return None
        scale = m.r.number * softcap
    if scale is None or not math.isfinite(scale):
        return None
    found = {"scale": settled_scale(scale, m.q.shape[-1], m.q.dtype)}
    return found if softcap is None else {**found, "softcap": softcap}


def _probabilities(scores: Term) -> dict[str, tuple[Term, tuple[str, ...]]]:
    """The ways from scores to probabilities, each with the variables that hide or shift them."""
    return {
        "": (T.softmax(scores, axis=-1), ()),
        " with a bias": (T.softmax(scores + bias, axis=-1), ("bias",)),
        " under a mask": (T.softmax(T.where(mask, scores, n), axis=-1), ("mask", "n")),
        " with a bias under a mask": (
            T.softmax(T.where(mask, scores + bias, n), axis=-1),
            ("bias", "mask", "n"),
        ),
        " in masked_softmax": (T.masked_softmax(scores, mask, axis=-1), ("mask",)),
        " with a bias in masked_softmax": (
            T.masked_softmax(scores + bias, mask, axis=-1),
            ("bias", "mask"),
        ),
    }


def _hidden(m: Match, names: tuple[str, ...]) -> dict[str, Pattern] | None:
    """The operands ``mask`` and ``bias``; None where they do not amount to the same."""
    found: dict[str, Pattern] = {name: m[name] for name in ("mask", "bias") if name in names}
    if any(m[name].rank > 4 for name in found):
        return None
    if "n" not in names or m.n.number == -math.inf:
        return found
    # Hidden scores are finite: a row of them has a mean, so they stay numbers that are added.
    if m.n.number is None or m.n.number > ABSORBS or "bias" in names:
        return None
    return {"bias": T.where(m.mask, scalar(0.0), m.n)}


def _one_head_each(m: Match) -> bool:
    """Queries, keys and values have the same leading axes, and nothing beside them was broadcast."""
    sizes = (m.q.shape, m.k.shape, m.v.shape)
    return (
        m.q.dtype.is_float
        and all(value.dtype == m.q.dtype for value in (m.k, m.v))
        and all(len(found) == m.q.rank and found[:-2] == m.q.shape[:-2] for found in sizes)
        and m.k.shape[-2] == m.v.shape[-2]
        and 0 not in m.q.shape[:-2]
    )


def _in_four_axes(value: Value) -> Pattern:
    ones = (1,) * (4 - value.rank)
    return T.reshape(value, shape=(*ones, *value.shape)) if ones else value


def _add_recognition(core: str, way: str, probabilities: Term, names: tuple[str, ...]) -> None:
    @rewrite(
        f"attention of {core}{way}",
        T.matmul(probabilities, v),
        fusion="MatMul+Softmax+MatMul→Attention",
    )
    def _(m: Match) -> Pattern | None:
        if not _one_head_each(m) or not 2 <= m.q.rank <= 4:
            return None
        if m.root.shape != (*m.q.shape[:-1], m.v.shape[-1]):
            return None
        options, hidden = _options(m, core), _hidden(m, names)
        if options is None or hidden is None:
            return None
        operands = [_in_four_axes(value) for value in (m.q, m.k, m.v)]
        made = T.scaled_dot_attention(*operands, **hidden, **options)
        return made if m.q.rank == 4 else T.reshape(made, shape=m.root.shape)


for core, scores in CORES.items():
    for way, (probabilities, names) in _probabilities(scores).items():
        _add_recognition(core, way, probabilities, names)


# --------------------------------------------------------------------------- queries grouped by key head

GROUPED: dict[str, tuple[str, Term]] = {
    "grouped scores": ("scores", T.reshape(_PRODUCT, shape=shape)),
    "scaled grouped scores": ("scaled scores", T.reshape(_PRODUCT, shape=shape) * c),
}
"""Products of (batch, key heads, group * queries, width), opened to (batch, heads, queries, keys)."""


def _opens(m: Match) -> bool:
    """(batch, key heads, group * queries, keys) is reshaped to (batch, key heads * group, queries, keys) and back."""
    if m.q.rank != 4 or len(m.shape) != 4:
        return False
    batch, kv_heads, rows, _ = m.q.shape
    keys = m.k.shape[-2]
    found_batch, heads, queries, found_keys = m.shape
    return (
        (found_batch, found_keys) == (batch, keys)
        and m.back == (batch, kv_heads, rows, keys)
        and bool(divide(heads, kv_heads) is not None)
        and heads * queries == kv_heads * rows
        and 0 not in (*m.shape, *m.q.shape)
    )


def _add_grouped(
    label: str, core: str, way: str, probabilities: Term, names: tuple[str, ...]
) -> None:
    pattern = T.matmul(T.reshape(probabilities, shape=back), v)

    @rewrite(f"attention of {label}{way}", pattern, fusion="MatMul+Softmax+MatMul→Attention")
    def _(m: Match) -> Pattern | None:
        if not _one_head_each(m) or not _opens(m):
            return None
        options, hidden = _options(m, core), _hidden(m, names)
        if options is None or hidden is None:
            return None
        opened = T.reshape(m.q, shape=(*m.shape[:3], m.q.shape[-1]))
        made = T.scaled_dot_attention(opened, m.k, m.v, **hidden, **options)
        return T.reshape(made, shape=m.root.shape)


for label, (core, scores) in GROUPED.items():
    for way, (probabilities, names) in _probabilities(scores).items():
        if len(names) < 3 and "masked_softmax" not in way:
            _add_grouped(label, core, way, probabilities, names)


# --------------------------------------------------------------------------- other spellings of hiding

a, fill = variables("a fill")


def _far_below(number: float | None) -> bool:
    return number is not None and number <= HIDES


@rewrite("hidden by where, the other way round", T.where(mask, n, a))
def _(m: Match) -> Pattern | None:
    if not _far_below(m.n.number) or m.a.number is not None or not m.a.dtype.is_float:
        return None
    return T.where(T.logical_not(m.mask), m.a, m.n)


@rewrite("hidden by masked_fill", T.masked_fill(a, mask, value=fill))
def _(m: Match) -> Pattern | None:
    if not _far_below(m.fill) or not m.a.dtype.is_float:
        return None
    return T.where(T.logical_not(m.mask), m.a, scalar(m.fill))
