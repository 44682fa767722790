"""Attention under the names and in the forms of other systems.

Heads that lie side by side in the last axis are given an axis of their own, and ``scaled_dot_attention`` does the
rest: every form here works in the middle of a graph, with any mask, and with fewer key than query heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..graph.build import check_given
from ..graph.dims import Dim, Shape, divide, format_shape
from ..graph.errors import ArgumentError, ShapeError
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.op import builder
from ..graph.types import TensorType
from .attention import (
    FAMILY,
    LAYOUTS,
    Layout,
    MaskKind,
    Sizes,
    as_mask_kind,
    attention_sizes,
    scaled_dot_attention,
)

# --------------------------------------------------------------------------- heads side by side


def count(name: str, value: Any) -> int:
    """A number of heads or a width: an integer above 0."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentError(f"{name} must be an integer, got {value!r}")
    if int(value) < 1:
        raise ArgumentError(f"{name} must be at least 1, not {int(value)}")
    return int(value)


@dataclass(frozen=True)
class Opened:
    """Queries, keys and values with their heads on an axis of their own, and the way back."""

    q: Node
    k: Node
    v: Node
    layout: Layout
    rank: int

    @property
    def sizes(self) -> Sizes:
        """Their sizes."""
        q, k, v = (TensorType(item.shape, item.dtype) for item in (self.q, self.k, self.v))
        return attention_sizes(q, k, v, self.layout)

    def open(self, name: str, x: Node, heads: Dim) -> Node:
        """Another tensor, such as a result's gradient, as these are."""
        if x.rank != self.rank:
            raise ShapeError(f"{name} has rank {x.rank}, q has rank {self.rank}")
        return x if self.rank == 4 else _split_heads(name, x, heads)

    def close(self, x: Node) -> Node:
        """A result in the form that the operands came in."""
        if self.rank == 4:
            return x
        batch, length, heads, width = x.shape
        lead = (length,) if self.rank == 2 else (batch, length)
        return x.reshape((*lead, heads * width))


def _split_heads(name: str, x: Node, heads: Dim) -> Node:
    """(length, heads * width) or (batch, length, heads * width) as (batch, length, heads, width)."""
    width = divide(x.shape[-1], heads)
    if width is None:
        raise ShapeError(f"the {x.shape[-1]} columns of {name} do not divide into {heads} heads")
    batch, length = (1, x.shape[0]) if x.rank == 2 else x.shape[:2]
    return x.reshape((batch, length, heads, width))


def open_heads(
    q: Node,
    k: Node,
    v: Node,
    num_heads: Any,
    head_dim: Any,
    num_kv_heads: Any = None,
    layout: Any = None,
) -> Opened:
    """Find the heads of tensors of rank 2 (length, heads * width), 3 (batch first) or 4.

    Key and value heads are counted from the width of ``k`` unless given. Only rank 4 has a ``layout``; it may be
    left out where the sizes allow just one.
    """
    heads, width = count("num_heads", num_heads), count("head_dim", head_dim)
    for name, item in (("k", k), ("v", v)):
        if item.rank != q.rank:
            raise ShapeError(f"q has rank {q.rank} and {name} has rank {item.rank}")
    if q.rank == 4:
        return Opened(q, k, v, _find_layout(q, k, v, heads, width, layout), 4)
    if q.rank not in (2, 3):
        raise ShapeError(f"q has rank {q.rank}, and attention takes rank 2, 3 or 4")
    if layout is not None:
        raise ArgumentError("layout names the axes of rank 4 tensors", hint="leave it out")
    if q.shape[-1] != heads * width:
        raise ShapeError(f"q has {q.shape[-1]} columns, not num_heads * head_dim = {heads * width}")
    if num_kv_heads is None:
        found = divide(k.shape[-1], width)
        if found is None:
            raise ShapeError(f"the {k.shape[-1]} columns of k are not heads of {width}")
    else:
        found = count("num_kv_heads", num_kv_heads)
        if k.shape[-1] != found * width:
            raise ShapeError(
                f"k has {k.shape[-1]} columns, not num_kv_heads * head_dim = {found * width}"
            )
    return Opened(
        _split_heads("q", q, heads),
        _split_heads("k", k, found),
        _split_heads("v", v, found),
        "bshd",
        q.rank,
    )


def _find_layout(q: Node, k: Node, v: Node, heads: int, width: int, layout: Any) -> Layout:
    if layout is not None and layout not in LAYOUTS:
        raise ArgumentError(f"layout must be 'bhsd' or 'bshd', got {layout!r}")
    fitting: list[Layout] = []
    faults: list[str] = []
    for option in LAYOUTS if layout is None else (layout,):
        try:
            sizes = Opened(q, k, v, option, 4).sizes
            if (sizes.heads, sizes.width) == (heads, width):
                fitting.append(option)
            else:
                faults.append(
                    f"q has {sizes.heads} heads of {sizes.width} in layout {option!r}, "
                    f"not {heads} of {width}"
                )
        except ShapeError as error:
            faults.append(error.rule)
    if len(fitting) == 2:
        raise ArgumentError(
            "both layouts fit these shapes", hint="say layout='bhsd' or layout='bshd'"
        )
    if not fitting:
        raise ShapeError("; ".join(faults))
    return fitting[0]


def _attended(opened: Opened, shape: Any = None, **options: Any) -> Node:
    q, k, v = opened.q, opened.k, opened.v
    result = opened.close(scaled_dot_attention(q, k, v, layout=opened.layout, **options))
    if shape is not None:
        check_given(result, shape)
    return result


# --------------------------------------------------------------------------- Meganeura's names


@builder(family=FAMILY)
def causal_attention(
    graph: Graph, q: Node, k: Node, v: Node, num_heads: int, num_kv_heads: int, head_dim: int
) -> Node:
    """Attention to keys that do not come after the query.

    ``q`` is (length, num_heads * head_dim), ``k`` and ``v`` (length, num_kv_heads * head_dim), or each with a batch axis
    in front. With more keys than queries the last ones align.
    """
    opened = open_heads(q, k, v, num_heads, head_dim, num_kv_heads)
    return _attended(opened, causal=True)


@builder(family=FAMILY)
def sliding_window_attention(
    graph: Graph,
    q: Node,
    k: Node,
    v: Node,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    window: int,
) -> Node:
    """Causal attention to the last ``window`` keys, the query's own among them."""
    opened = open_heads(q, k, v, num_heads, head_dim, num_kv_heads)
    return _attended(opened, causal=True, window=count("window", window))


@builder(family=FAMILY)
def full_attention(
    graph: Graph, q: Node, k: Node, v: Node, num_heads: int, num_kv_heads: int, head_dim: int
) -> Node:
    """Attention of every row to every row of the same sequence."""
    opened = open_heads(q, k, v, num_heads, head_dim, num_kv_heads)
    if opened.sizes.queries != opened.sizes.keys:
        raise ShapeError(
            f"q has {opened.sizes.queries} rows and k has {opened.sizes.keys}",
            hint="cross_attention takes two sequences",
        )
    return _attended(opened)


@builder(family=FAMILY)
def cross_attention(
    graph: Graph, q: Node, k: Node, v: Node, num_heads: int, num_kv_heads: int, head_dim: int
) -> Node:
    """Attention of every row to every row of another sequence, of any length."""
    return _attended(open_heads(q, k, v, num_heads, head_dim, num_kv_heads))


@builder(family=FAMILY)
def multi_head_attn(
    graph: Graph,
    q: Node,
    k: Node,
    v: Node,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    is_cross: bool = False,
) -> Node:
    """Attention without a mask, to a sequence of any length; ``is_cross`` is a note for the reader."""
    return _attended(open_heads(q, k, v, num_heads, head_dim, num_kv_heads))


# --------------------------------------------------------------------------- RLX's names


def custom_mask(mask: Node | None, scores: Shape) -> Node | None:
    """A mask tensor as ``scaled_dot_attention`` takes it: bool, broadcasting to the scores.

    (batch, keys) or (keys,) says which keys count; rank 4 broadcasts as it is. Numbers below 0.5 hide.
    """
    if mask is None:
        return None
    batch, keys = scores[0], scores[3]
    allowed: Sequence[Shape] = ((keys,), (1, keys), (batch, keys))
    if mask.rank != 4:
        if mask.shape not in allowed:
            raise ShapeError(
                f"mask {format_shape(mask.shape)} is not (batch, keys) = {format_shape(allowed[2])}",
                hint="a mask of rank 4 broadcasts to (batch, heads, queries, keys)",
            )
        mask = mask.reshape((mask.shape[0] if mask.rank == 2 else 1, 1, 1, keys))
    return mask if mask.dtype.kind == "bool" else mask >= 0.5


def _custom(
    opened: Opened, mask: Node | None, shape: Any, scale: float | None, softcap: float | None
) -> Node:
    visible = custom_mask(mask, opened.sizes.scores)
    return _attended(opened, shape, mask=visible, scale=scale, softcap=softcap)


@builder(family=FAMILY)
def attention(
    graph: Graph,
    q: Node,
    k: Node,
    v: Node,
    mask: Node | None,
    num_heads: int,
    head_dim: int,
    shape: Any = None,
    *,
    layout: Any = None,
) -> Node:
    """Attention with a mask tensor: (batch, keys), or rank 4 broadcasting to (batch, heads, queries, keys).

    Where the mask is False, or a number below 0.5, keys are hidden. ``q``, ``k`` and ``v`` are (length, heads * head_dim),
    (batch, length, heads * head_dim), or of rank 4 with a ``layout`` ("bhsd" or "bshd", needed where both would fit).
    The number of key and value heads follows from ``k``.
    """
    opened = open_heads(q, k, v, num_heads, head_dim, layout=layout)
    return _custom(opened, mask, shape, None, None)


@builder(family=FAMILY)
def attention_(
    graph: Graph,
    q: Node,
    k: Node,
    v: Node,
    mask: Node | None,
    num_heads: int,
    head_dim: int,
    *,
    layout: Any = None,
) -> Node:
    """The same as ``attention``."""
    opened = open_heads(q, k, v, num_heads, head_dim, layout=layout)
    return _custom(opened, mask, None, None, None)


@builder(family=FAMILY)
def attention_opts(
    graph: Graph,
    q: Node,
    k: Node,
    v: Node,
    mask: Node | None,
    num_heads: int,
    head_dim: int,
    shape: Any = None,
    score_scale: float | None = None,
    attn_logit_softcap: float | None = None,
    *,
    layout: Any = None,
) -> Node:
    """``attention`` with a scale and a softcap; see ``scaled_dot_attention``."""
    opened = open_heads(q, k, v, num_heads, head_dim, layout=layout)
    return _custom(opened, mask, shape, score_scale, attn_logit_softcap)


def _of_kind(
    opened: Opened, mask_kind: Any, shape: Any, scale: float | None, softcap: float | None
) -> Node:
    kind = as_mask_kind(mask_kind)
    if kind in (MaskKind.CUSTOM, MaskKind.BIAS):
        name = "attention" if kind == MaskKind.CUSTOM else "attention_bias"
        raise ArgumentError(f"the mask {kind} needs a tensor", hint=f"call {name}")
    return _attended(opened, shape, scale=scale, softcap=softcap, **kind.options)


@builder(family=FAMILY)
def attention_kind(
    graph: Graph,
    q: Node,
    k: Node,
    v: Node,
    num_heads: int,
    head_dim: int,
    mask_kind: Any,
    shape: Any = None,
    *,
    layout: Any = None,
) -> Node:
    """Attention with a mask that needs no tensor.

    That is ``MaskKind.NONE``, ``MaskKind.CAUSAL``, or ``SlidingWindow(w)``, which shows w + 1 keys. The operands are
    those of ``attention``.
    """
    opened = open_heads(q, k, v, num_heads, head_dim, layout=layout)
    return _of_kind(opened, mask_kind, shape, None, None)


@builder(family=FAMILY)
def attention_kind_opts(
    graph: Graph,
    q: Node,
    k: Node,
    v: Node,
    num_heads: int,
    head_dim: int,
    mask_kind: Any,
    shape: Any = None,
    score_scale: float | None = None,
    attn_logit_softcap: float | None = None,
    *,
    layout: Any = None,
) -> Node:
    """``attention_kind`` with a scale and a softcap; see ``scaled_dot_attention``."""
    opened = open_heads(q, k, v, num_heads, head_dim, layout=layout)
    return _of_kind(opened, mask_kind, shape, score_scale, attn_logit_softcap)


@builder(family=FAMILY)
def attention_bias(
    graph: Graph,
    q: Node,
    k: Node,
    v: Node,
    bias: Node,
    num_heads: int,
    head_dim: int,
    shape: Any = None,
    *,
    layout: Any = None,
) -> Node:
    """Attention with ``bias``, which broadcasts to (batch, heads, queries, keys), added to the scaled scores."""
    opened = open_heads(q, k, v, num_heads, head_dim, layout=layout)
    return _attended(opened, shape, bias=bias)
