"""The gradients of attention, in closed form.

With probabilities p and the gradient dy of the result, the gradient of the scores is
``p * (dy . v - sum(p * (dy . v)))``; the rest is the way back through bias, cap and scale. The probabilities
are computed again rather than kept, and are 0 where a key is hidden, so every mask is exact.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from ..graph.attributes import Float, Index, Mask
from ..graph.dims import Shape, format_shape
from ..graph.errors import ArgumentError, ShapeError
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.op import Resolved, builder, composite, resolved
from ..graph.types import TensorType
from .attention import (
    ATTENTION_SAMPLES,
    FAMILY,
    Layout,
    MaskKind,
    as_mask_kind,
    attention_weights,
    by_group,
    heads_first,
    in_layout,
    known_scale,
    scaled_dot_attention,
    ungrouped,
)
from .attention_forms import custom_mask, open_heads
from .contract import dot_general
from .samples import Sample, sample, spec


def _with_gradient(call: Sample) -> Sample:
    """A call of the forward op as one of the backward op: with a gradient of its result."""
    q, k, v, *rest = call.args
    layout = call.kwargs.get("layout", "bhsd")
    batch, heads, length, _ = in_layout(layout, *q.shape)
    shape: Any = in_layout(layout, batch, heads, length, v.shape[-1])
    return sample(q, k, v, spec(*shape), *rest, **call.kwargs)


@composite(family=FAMILY, samples=[_with_gradient(call) for call in ATTENTION_SAMPLES])
def scaled_dot_attention_backward(
    q: Float,
    k: Float,
    v: Float,
    dy: Float,
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
    """The gradients of ``scaled_dot_attention`` with respect to ``q``, ``k``, ``v`` and, if there is one, ``bias``.

    ``dy`` is the gradient of its result; everything else is as it was given there. Key and value heads sum over the query
    heads that use them, and a bias over the axes along which it was repeated.
    """
    forward: Resolved = scaled_dot_attention.infer(
        q,
        k,
        v,
        mask,
        bias,
        layout=layout,
        causal=causal,
        window=window,
        scale=scale,
        softcap=softcap,
        offset=offset,
    )
    expected = forward.type
    if isinstance(expected, TensorType) and dy.shape != expected.shape:
        raise ShapeError(
            f"dy {format_shape(dy.shape)} is not shaped like the result, "
            f"{format_shape(expected.shape)}"
        )
    results = (q, k, v) if bias is None else (q, k, v, bias)
    return resolved(results, **forward.attrs)


def _summed_to(x: Node, shape: Shape) -> Node:
    """``x`` summed over the axes along which ``shape`` was broadcast to its own."""
    extra = x.rank - len(shape)
    axes = [i for i in range(x.rank) if i < extra or (shape[i - extra] == 1 and x.shape[i] != 1)]
    return x.sum(tuple(axes), keepdims=True).reshape(shape) if axes else x.reshape(shape)


@scaled_dot_attention_backward.expand
def _(
    q: Node,
    k: Node,
    v: Node,
    dy: Node,
    mask: Node | None,
    bias: Node | None,
    layout: str,
    causal: bool,
    window: int | None,
    scale: float | None,
    softcap: float | None,
    offset: Node | None,
) -> tuple[Node, ...]:
    q, k, v, dy = (heads_first(item, layout) for item in (q, k, v, dy))
    kv_heads = k.shape[1]
    weights = attention_weights(q, k, mask, bias, offset, causal, window, scale, softcap)
    p = weights.probabilities
    grouped_dy = by_group(dy, kv_heads)
    dv = dot_general(by_group(p, kv_heads), grouped_dy, (2, 3), (2, 3), (0, 1), (0, 1))
    dp = ungrouped(dot_general(grouped_dy, v, (4,), (3,), (0, 1), (0, 1)))
    ds = p * (dp - (p * dp).sum(-1, keepdims=True))
    dbias = [] if bias is None else [_summed_to(ds, bias.shape)]
    if weights.squashed is not None:
        ds = ds * (1 - weights.squashed.square())
    ds = by_group(ds * known_scale(scale, q.shape[3]), kv_heads)
    dq = ungrouped(dot_general(ds, k, (4,), (2,), (0, 1), (0, 1)))
    dk = dot_general(ds, by_group(q, kv_heads), (2, 3), (2, 3), (0, 1), (0, 1))
    return (*(heads_first(item, layout) for item in (dq, dk, dv)), *dbias)


# --------------------------------------------------------------------------- RLX's names


class AttentionBwdWrt(StrEnum):
    """What ``attention_backward`` differentiates with respect to."""

    Q = "q"
    K = "k"
    V = "v"


def _gradients(
    q: Node,
    k: Node,
    v: Node,
    dy: Node,
    num_heads: Any,
    head_dim: Any,
    mask_kind: Any,
    mask: Node | None,
    layout: Any,
    scale: float | None,
    softcap: float | None,
) -> tuple[Node, Node, Node]:
    kind = as_mask_kind(mask_kind)
    takes_tensor = kind in (MaskKind.CUSTOM, MaskKind.BIAS)
    if takes_tensor != (mask is not None):
        needs = "needs the mask of the forward pass" if takes_tensor else "takes no mask tensor"
        raise ArgumentError(f"the mask {kind} {needs}")
    opened = open_heads(q, k, v, num_heads, head_dim, layout=layout)
    sizes = opened.sizes
    found = scaled_dot_attention_backward(
        opened.q,
        opened.k,
        opened.v,
        opened.open("dy", dy, sizes.heads),
        custom_mask(mask, sizes.scores) if kind == MaskKind.CUSTOM else None,
        mask if kind == MaskKind.BIAS else None,
        layout=opened.layout,
        scale=scale,
        softcap=softcap,
        **kind.options,
    )
    dq, dk, dv = (opened.close(item) for item in found[:3])
    return dq, dk, dv


@builder(family=FAMILY)
def attention_backward_all(
    graph: Graph,
    q: Node,
    k: Node,
    v: Node,
    dy: Node,
    num_heads: int,
    head_dim: int,
    mask_kind: Any,
    mask: Node | None = None,
    *,
    layout: Any = None,
    score_scale: float | None = None,
    attn_logit_softcap: float | None = None,
) -> tuple[Node, Node, Node]:
    """The gradients of ``attention`` and its kin with respect to ``q``, ``k`` and ``v``.

    ``mask`` is the tensor of the forward pass, for ``MaskKind.CUSTOM`` and ``MaskKind.BIAS``.
    """
    return _gradients(
        *(q, k, v, dy, num_heads, head_dim, mask_kind, mask),
        *(layout, score_scale, attn_logit_softcap),
    )


@builder(family=FAMILY)
def attention_backward(
    graph: Graph,
    wrt: Any,
    q: Node,
    k: Node,
    v: Node,
    dy: Node,
    num_heads: int,
    head_dim: int,
    mask_kind: Any,
    mask: Node | None = None,
    *,
    layout: Any = None,
    score_scale: float | None = None,
    attn_logit_softcap: float | None = None,
) -> Node:
    """One of the gradients of ``attention_backward_all``: ``wrt`` is ``AttentionBwdWrt.Q``, ``K`` or ``V``, or its text."""
    chosen = str(getattr(wrt, "value", wrt)).lower()
    if chosen not in ("q", "k", "v"):
        raise ArgumentError(f"wrt must be 'q', 'k' or 'v', got {wrt!r}")
    gradients = _gradients(
        *(q, k, v, dy, num_heads, head_dim, mask_kind, mask),
        *(layout, score_scale, attn_logit_softcap),
    )
    return gradients["qkv".index(chosen)]
