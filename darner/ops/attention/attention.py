"""Scaled dot-product attention.

One op, with an explicit layout, fewer key than query heads without a copy, causal masks, windows, boolean masks,
additive biases and capped scores. Rows that may attend to nothing give zeros.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, Literal

import numpy as np

from ...graph import dtypes
from ...graph.attributes import Float, Index, Mask
from ...graph.dims import Dim, Shape, divide, format_shape
from ...graph.errors import ArgumentError, DTypeError, ShapeError
from ...graph.facts import Facts
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import Resolved, composite, resolved
from ...graph.types import TensorType, broadcast
from ..elementwise.arithmetic import maximum, where
from ..elementwise.comparison import logical_and
from ..linalg.contract import dot_general
from ..samples import bools, ints, sample, spec
from ..shapes.primitives import concat

FAMILY = "attention"

Layout = Literal["bhsd", "bshd"]
LAYOUTS: tuple[Layout, Layout] = ("bhsd", "bshd")


# --------------------------------------------------------------------------- types


@dataclass(frozen=True)
class Sizes:
    """The sizes of one attention, whatever its layout."""

    batch: Dim
    heads: Dim
    kv_heads: Dim
    queries: Dim
    keys: Dim
    width: Dim
    value_width: Dim

    @property
    def scores(self) -> Shape:
        """The shape of the scores: what masks and biases broadcast to."""
        return (self.batch, self.heads, self.queries, self.keys)


def in_layout(layout: str, batch: Dim, heads: Dim, length: Dim, width: Dim) -> Shape:
    """The shape of a tensor with these sizes."""
    return (batch, heads, length, width) if layout == "bhsd" else (batch, length, heads, width)


def attention_sizes(q: TensorType, k: TensorType, v: TensorType, layout: str) -> Sizes:
    """The sizes that queries, keys and values agree on; an error names the first they do not."""
    for name, item in (("q", q), ("k", k), ("v", v)):
        if item.rank != 4:
            raise ShapeError(
                f"{name} has rank {item.rank}, and layout {layout!r} has 4 axes",
                hint="give it a batch axis and a head axis",
            )
    q_shape, k_shape, v_shape = (in_layout(layout, *item.shape) for item in (q, k, v))
    batch, heads, queries, width = q_shape
    _, kv_heads, keys, _ = k_shape
    for what, wanted, pairs in (
        ("batch sizes", batch, (("k", k_shape[0]), ("v", v_shape[0]))),
        ("widths", width, (("k", k_shape[3]),)),
    ):
        for name, size in pairs:
            if size != wanted:
                raise ShapeError(f"the {what} of q and {name}, {wanted} and {size}, differ")
    if v_shape[1] != kv_heads:
        raise ShapeError(f"k has {kv_heads} heads and v has {v_shape[1]} in layout {layout!r}")
    if v_shape[2] != keys:
        raise ShapeError(f"k has {keys} rows and v has {v_shape[2]} in layout {layout!r}")
    if divide(heads, kv_heads) is None:
        raise ShapeError(
            f"{heads} query heads do not divide among {kv_heads} key and value heads "
            f"in layout {layout!r}"
        )
    return Sizes(batch, heads, kv_heads, queries, keys, width, v_shape[3])


def _check_broadcast(name: str, item: TensorType | None, scores: Shape) -> None:
    if item is None:
        return
    try:
        fits = broadcast(item.shape, scores) == scores
    except ShapeError:
        fits = False
    if not fits:
        raise ShapeError(
            f"{name} {format_shape(item.shape)} does not broadcast to the scores, "
            f"(batch, heads, queries, keys) = {format_shape(scores)}"
        )


def known_scale(scale: float | None, width: Dim) -> float:
    """1 / sqrt(width) unless given; an error while the width is not known."""
    if scale is not None:
        return scale
    return 1 / math.sqrt(int(width)) if width else 1.0


_QKV = (spec(2, 3, 4, 5), spec(2, 3, 6, 5), spec(2, 3, 6, 5))

ATTENTION_SAMPLES = [
    sample(*_QKV),
    sample(spec(1, 4, 3, 4), spec(1, 2, 5, 4), spec(1, 2, 5, 3), causal=True),
    # More queries than keys: the first rows see nothing.
    sample(spec(2, 2, 5, 3), spec(2, 1, 3, 3), spec(2, 1, 3, 2), causal=True, scale=-0.7),
    sample(*_QKV, bools(2, 1, 4, 6), spec(3, 1, 6), softcap=1.5, scale=0.9),
    sample(spec(2, 3, 4, 2), spec(2, 3, 2, 2), spec(2, 3, 2, 2), bools(1, 3, 4, 2)),
    sample(spec(2, 4, 2, 3), spec(2, 5, 1, 3), spec(2, 5, 1, 4), layout="bshd", window=2),
    sample(
        *(spec(1, 6, 4, 3), spec(1, 6, 2, 3), spec(1, 6, 2, 3)),
        bias=spec(4, 6, 6),
        layout="bshd",
        causal=True,
        window=3,
        softcap=2.0,
    ),
    sample(
        *(spec(2, 2, 1, 4), spec(2, 2, 6, 4), spec(2, 2, 6, 4)),
        causal=True,
        offset=ints(1, high=6, dtype="u32"),
    ),
    sample(
        *(spec(2, 2, 3, 4), spec(2, 2, 6, 4), spec(2, 2, 6, 4)),
        bools(6),
        window=2,
        offset=ints(2, low=-2, high=5),
    ),
    sample(spec(0, 2, 1, 3), spec(0, 2, 4, 3), spec(0, 2, 4, 3), bias=spec(1, 2, 1, 4)),
    sample(spec(1, 2, 3, 4), spec(1, 2, 0, 4), spec(1, 2, 0, 2), causal=True),
]


@composite(
    family=FAMILY,
    samples=ATTENTION_SAMPLES,
    facts=Facts(
        role="attention", whole=True, reads_rows=True, full_rate=True, multiplies=("q", "k", "v")
    ),
)
def scaled_dot_attention(
    q: Float,
    k: Float,
    v: Float,
    mask: Mask | None = None,
    bias: Float | None = None,
    *,
    layout: Layout = "bhsd",
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    offset: Index | None = None,
) -> Resolved:
    """Each query's mean of the values, weighted by the softmax of its scores with the keys.

    ``layout`` names the axes: batch, heads, sequence, width. ``k`` and ``v`` may have fewer heads than ``q``:
    query head ``h`` of ``Hq`` uses key and value head ``h * Hkv // Hq``. Widths of ``q`` and ``k`` are equal; that of
    ``v`` is the result's.

    A score is made in this order: ``q . k`` times ``scale`` (1 / sqrt(width) by default); then, with ``softcap`` c,
    ``c * tanh(score / c)``; then ``bias`` is added; then hidden keys are taken out. A key is visible where ``mask`` is
    True and, with ``causal``, where it does not come after the query. ``window`` w leaves the last w keys (the query's
    own among them) when causal, and those less than w away on either side when not. ``mask`` and ``bias`` broadcast to
    (batch, heads, queries, keys) in either layout. A query that sees no key gives zeros.

    Query ``i`` stands at key ``i + offset``. By default the last query stands at the last key; ``offset`` (one integer,
    or one for each of the batch) says otherwise, as when keys are a cache filled only so far.
    """
    sizes = attention_sizes(q, k, v, layout)
    _check_broadcast("mask", mask, sizes.scores)
    _check_broadcast("bias", bias, sizes.scores)
    if window is not None and window < 1:
        raise ArgumentError(f"window {window} must be at least 1: it counts the query's own key")
    if scale is not None and not math.isfinite(scale):
        raise ArgumentError(f"scale {scale} is not finite")
    if softcap is not None and not (softcap > 0 and math.isfinite(softcap)):
        raise ArgumentError(f"softcap {softcap} must be above 0")
    if offset is not None:
        if offset.shape not in ((), (1,), (sizes.batch,)):
            raise ShapeError(
                f"offset {format_shape(offset.shape)} must be one integer, or one for each of "
                f"the batch of {sizes.batch}"
            )
        if not causal and window is None:
            raise ArgumentError("offset moves the causal mask and the window: there is neither")
    shape = in_layout(layout, sizes.batch, sizes.heads, sizes.queries, sizes.value_width)
    settled = known_scale(scale, sizes.width) if isinstance(sizes.width, int) else scale
    return resolved(q.with_shape(shape), scale=settled)


@scaled_dot_attention.spelling
def _(graph: Graph, *args: Any, **kwargs: Any) -> Any:
    mask = kwargs.get("mask", args[3] if len(args) > 3 else None)
    if isinstance(mask, Node) and mask.dtype.kind != "bool":
        raise DTypeError(
            f"mask must be bool, not {mask.dtype}",
            hint="compare it (mask > 0.5), or pass a mask that is added to the scores as bias",
        )
    return args, kwargs


# --------------------------------------------------------------------------- expansion


def heads_first(x: Node, layout: str) -> Node:
    """A tensor of ``layout`` as (batch, heads, sequence, width), or back."""
    return x if layout == "bhsd" else x.transpose((0, 2, 1, 3))


def by_group(x: Node, kv_heads: Dim) -> Node:
    """(batch, heads, rows, columns) with the query heads that share a key head on an axis of their own."""
    batch, heads, rows, columns = x.shape
    return x.reshape((batch, kv_heads, heads // kv_heads, rows, columns))


def ungrouped(x: Node) -> Node:
    """The inverse of ``by_group``."""
    batch, kv_heads, group, rows, columns = x.shape
    return x.reshape((batch, kv_heads * group, rows, columns))


def _distances(graph: Graph, queries: Dim, keys: Dim, offset: Node | None) -> Node:
    """How far each key lies before each query: (queries, keys), or a batch of that."""
    if offset is None:
        # Counted from the end, where both meet, so that sizes need not be known.
        return graph.iota((keys,)).flip() - graph.iota((queries, 1)).flip()
    if offset.dtype is not dtypes.i32:
        offset = offset.cast(dtypes.i32)
    start = offset.reshape((offset.size, 1, 1, 1))
    return start + graph.iota((queries, 1)) - graph.iota((keys,))


def _visible(
    scores: Node,
    mask: Node | None,
    offset: Node | None,
    causal: bool,
    window: int | None,
) -> Node | None:
    """Which keys each query may see; None when all."""
    conditions = [] if mask is None else [mask]
    if causal or window is not None:
        distance = _distances(scores.graph, scores.shape[2], scores.shape[3], offset)
        if causal:
            conditions.append(distance >= 0)
        if window is not None:
            conditions.append(distance < window)
            if not causal:
                conditions.append(distance > -window)
    return reduce(logical_and, conditions) if conditions else None


@dataclass(frozen=True)
class Weights:
    """The probabilities of each query over the keys, and what a gradient needs beside them.

    Attributes:
        probabilities: (batch, heads, queries, keys); a row is 0 where nothing is visible.
        squashed: tanh(score / softcap), where there is a cap.
    """

    probabilities: Node
    squashed: Node | None


@dataclass(frozen=True)
class Scores:
    """What a softmax is made of.

    Attributes:
        scores: (batch, heads, queries, keys); -inf where a key is hidden.
        squashed: tanh(score / softcap), where there is a cap.
        may_see_nothing: whether a row can be -inf as a whole.
    """

    scores: Node
    squashed: Node | None
    may_see_nothing: bool

    def weights(self) -> Weights:
        """Their softmax."""
        return Weights(_softmax(self.scores, self.may_see_nothing), self.squashed)

    def statistics(self) -> Node:
        """(batch, heads, 2, queries): each row's maximum, and 1 over the sum of exponentials of what scores are less than that; zeros where nothing is visible."""
        batch, heads, queries, keys = self.scores.shape
        if keys == 0:
            return self.scores.graph.full((batch, heads, 2, queries), 0.0, self.scores.dtype)
        lowest = float(np.finfo(self.scores.dtype.numpy).min)
        top = maximum(self.scores.max(-1, keepdims=True), lowest)
        total = (self.scores - top).exp().sum(-1, keepdims=True)
        seen = total > 0
        rows = where(seen, top, 0), where(seen, 1 / where(seen, total, 1), 0)
        return concat([row.transpose((0, 1, 3, 2)) for row in rows], 2)

    def weights_by(self, statistics: Node) -> Weights:
        """Their softmax, from what ``statistics`` says."""
        top, share = (
            statistics[:, :, i : i + 1].transpose((0, 1, 3, 2)).cast(self.scores.dtype)
            for i in range(2)
        )
        return Weights((self.scores - top).exp() * share, self.squashed)


def attention_scores(  # many parameters: the op's operands and attributes
    q: Node,
    k: Node,
    mask: Node | None,
    bias: Node | None,
    offset: Node | None,
    causal: bool,
    window: int | None,
    scale: float | None,
    softcap: float | None,
) -> Scores:
    """The scores of queries and keys with their heads first."""
    products = dot_general(by_group(q, k.shape[1]), k, (4,), (3,), (0, 1), (0, 1))
    scores = ungrouped(products) * known_scale(scale, q.shape[3])
    squashed = None
    if softcap is not None:
        squashed = (scores / softcap).tanh()
        scores = squashed * softcap
    if bias is not None:
        scores = scores + bias
    visible = _visible(scores, mask, offset, causal, window)
    if visible is not None:
        scores = where(visible, scores, -math.inf)
    # A bias can hide keys too, by -inf.
    return Scores(scores, squashed, visible is not None or bias is not None)


def _softmax(scores: Node, may_see_nothing: bool) -> Node:
    """The softmax over the last axis, where a row of -inf gives zeros."""
    if scores.shape[-1] == 0:
        return scores
    top = scores.max(-1, keepdims=True)
    if may_see_nothing:
        # -inf less the lowest number is -inf; less itself it would be NaN.
        top = maximum(top, float(np.finfo(scores.dtype.numpy).min))
    raised = (scores - top.stop_gradient()).exp()
    total = raised.sum(-1, keepdims=True)
    if may_see_nothing:
        total = where(total > 0, total, 1)
    return raised / total


@scaled_dot_attention.expand
def _(
    q: Node,
    k: Node,
    v: Node,
    mask: Node | None,
    bias: Node | None,
    layout: str,
    causal: bool,
    window: int | None,
    scale: float | None,
    softcap: float | None,
    offset: Node | None,
) -> Node:
    q, k, v = (heads_first(item, layout) for item in (q, k, v))
    scores = attention_scores(q, k, mask, bias, offset, causal, window, scale, softcap)
    weights = scores.weights()
    grouped = by_group(weights.probabilities, k.shape[1])
    mixed = dot_general(grouped, v, (4,), (2,), (0, 1), (0, 1))
    return heads_first(ungrouped(mixed), layout)


# --------------------------------------------------------------------------- kinds of masks


@dataclass(frozen=True)
class MaskKind:
    """Which keys a query sees: ``MaskKind.NONE``, ``CAUSAL``, ``CUSTOM`` (a mask tensor), ``BIAS`` (added), or a window.

    The texts "none", "causal", "custom" and "bias" stand for them as well.
    """

    name: str
    reach: int | None = None

    NONE: ClassVar[MaskKind]
    CAUSAL: ClassVar[MaskKind]
    CUSTOM: ClassVar[MaskKind]
    BIAS: ClassVar[MaskKind]
    # RLX's own spelling; its None is a word of Python.
    Causal: ClassVar[MaskKind]
    Custom: ClassVar[MaskKind]
    Bias: ClassVar[MaskKind]

    @staticmethod
    def SlidingWindow(w: int) -> MaskKind:
        """The query's own key and the ``w`` before it: w + 1 keys, as RLX counts."""
        return SlidingWindow(w)

    @property
    def options(self) -> dict[str, Any]:
        """The attributes of ``scaled_dot_attention`` that make this mask."""
        if self.reach is not None:
            return {"causal": True, "window": self.reach + 1}
        return {"causal": True} if self.name == "causal" else {}

    def __repr__(self) -> str:
        return f"SlidingWindow({self.reach})" if self.reach is not None else self.name


MaskKind.NONE = MaskKind("none")
MaskKind.CAUSAL = MaskKind.Causal = MaskKind("causal")
MaskKind.CUSTOM = MaskKind.Custom = MaskKind("custom")
MaskKind.BIAS = MaskKind.Bias = MaskKind("bias")

_KINDS = {
    kind.name: kind for kind in (MaskKind.NONE, MaskKind.CAUSAL, MaskKind.CUSTOM, MaskKind.BIAS)
}


def SlidingWindow(w: int) -> MaskKind:
    """The mask that shows a query its own key and the ``w`` before it: w + 1 keys.

    (``sliding_window_attention`` and ``window=`` count the query's own key too: there w is the number of keys.)
    """
    if isinstance(w, bool) or not hasattr(w, "__index__") or int(w) < 0:
        raise ArgumentError(f"a window must be an integer of at least 0, got {w!r}")
    return MaskKind("sliding_window", int(w))


def as_mask_kind(value: Any) -> MaskKind:
    """The kind of mask that a ``MaskKind`` or a word stands for; None is no mask."""
    if isinstance(value, MaskKind):
        return value
    found = _KINDS.get("none" if value is None else str(value).lower())
    if found is None:
        raise ArgumentError(
            f"no kind of mask is called {value!r}",
            hint=f"they are {', '.join(_KINDS)}, and SlidingWindow(w)",
        )
    return found
