"""The gradients of attention, in closed form.

With probabilities p and the gradient dy of the result, the gradient of the scores is
``p * (dy . v - sum(p * (dy . v)))``; the rest is the way back through bias, cap and scale. The probabilities
are computed again rather than kept, and are 0 where a key is hidden, so every mask is exact. What they were divided by
(``attention_statistics``) and the mean slope, which is ``sum(dy * out)``, can come from the forward pass: lowering has
it so where kernels keep them (``lower.kept``), and a graph never needs to.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ...graph import dtypes
from ...graph.attributes import Float, Free, Index, Mask
from ...graph.dims import Dim, format_shape
from ...graph.dtypes import DType
from ...graph.errors import ShapeError
from ...graph.facts import Facts, Kept
from ...graph.node import Node
from ...graph.op import Resolved, composite, resolved
from ...graph.types import TensorType
from ..axes import spread, sum_to
from ..linalg.contract import dot_general
from ..samples import Sample, sample, spec
from .attention import (
    ATTENTION_SAMPLES,
    FAMILY,
    Layout,
    attention_scores,
    attention_sizes,
    by_group,
    heads_first,
    in_layout,
    known_scale,
    scaled_dot_attention,
    ungrouped,
)


def _with_gradient(call: Sample) -> Sample:
    """A call of the forward op as one of the backward op: with a gradient of its result."""
    q, k, v, *rest = call.args
    layout = call.kwargs.get("layout", "bhsd")
    batch, heads, length, _ = in_layout(layout, *q.shape)
    shape: Any = in_layout(layout, batch, heads, length, v.shape[-1])
    return sample(q, k, v, spec(*shape), *rest, **call.kwargs)


def _computed_in(dtype: DType) -> DType:
    """The type of an attention's statistics: what its operands are computed in."""
    return dtypes.f32 if dtype.is_half else dtype


@composite(
    family=FAMILY,
    samples=ATTENTION_SAMPLES,
    facts=Facts(
        role="attention",
        reads_rows=True,
        full_rate=True,
        multiplies=("q", "k", "v"),
        beside="scaled_dot_attention",
    ),
)
def attention_statistics(
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
    """What the softmax of ``scaled_dot_attention`` divides by, for each query: (batch, heads, 2, queries), in f32 of 16-bit floats.

    First each query's largest score, then 1 over the sum of the exponentials of its scores less that; both are 0 where it sees no
    key. A probability is the exponential of a score less the first, times the second. Operands are those of ``scaled_dot_attention``.
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
    return resolved(_statistics_type(q, k, v, layout), **forward.attrs)


def _statistics_type(q: TensorType, k: TensorType, v: TensorType, layout: str) -> TensorType:
    sizes = attention_sizes(q, k, v, layout)
    shape = (sizes.batch, sizes.heads, 2, sizes.queries)
    return TensorType(shape, _computed_in(q.dtype))


@attention_statistics.expand
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
    q, k = (heads_first(item, layout) for item in (q, k))
    scores = attention_scores(q, k, mask, bias, offset, causal, window, scale, softcap)
    return scores.statistics()


@composite(
    family=FAMILY,
    samples=[_with_gradient(call) for call in ATTENTION_SAMPLES],
    facts=Facts(
        role="attention",
        whole=True,
        reads_rows=True,
        full_rate=True,
        multiplies=("q", "k", "v", "dy", "out"),
        kernels=2.0,
        kept=Kept("scaled_dot_attention", "attention_statistics"),
    ),
)
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
    out: Float | None = None,
    statistics: Free | None = None,
) -> Resolved:
    """The gradients of ``scaled_dot_attention`` with respect to ``q``, ``k``, ``v`` and, if there is one, ``bias``.

    ``dy`` is the gradient of its result; everything else is as it was given there. Key and value heads sum over the query
    heads that use them, and a bias over the axes along which it was repeated. ``out``, its result, and ``statistics``, its
    ``attention_statistics``, save computing them again; they must be what these ops give.
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
    if (out is None) != (statistics is None):
        raise ShapeError("out and statistics are given together, or neither is")
    kept = _statistics_type(q, k, v, layout)
    for name, item, wanted in (("out", out, expected), ("statistics", statistics, kept)):
        if item is not None and item != wanted:
            raise ShapeError(f"{name} {item} is not what the forward pass makes, {wanted}")
    results = (q, k, v) if bias is None else (q, k, v, bias)
    return resolved(results, **forward.attrs)


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
    out: Node | None,
    statistics: Node | None,
) -> tuple[Node, ...]:
    q, k, v, dy = (heads_first(item, layout) for item in (q, k, v, dy))
    kv_heads = k.shape[1]
    scores = attention_scores(q, k, mask, bias, offset, causal, window, scale, softcap)
    weights = scores.weights() if statistics is None else scores.weights_by(statistics)
    p = weights.probabilities
    grouped_dy = by_group(dy, kv_heads)
    dv = dot_general(by_group(p, kv_heads), grouped_dy, (2, 3), (2, 3), (0, 1), (0, 1))
    dp = ungrouped(dot_general(grouped_dy, v, (4,), (3,), (0, 1), (0, 1)))
    mean = (p * dp if out is None else dy * heads_first(out, layout)).sum(-1, keepdims=True)
    ds = p * (dp - mean)
    dbias = [] if bias is None else [sum_to(ds, bias.shape)]
    if weights.squashed is not None:
        ds = ds * (1 - weights.squashed.square())
    ds = by_group(ds * known_scale(scale, q.shape[3]), kv_heads)
    dq = ungrouped(dot_general(ds, k, (4,), (2,), (0, 1), (0, 1)))
    dk = dot_general(ds, by_group(q, kv_heads), (2, 3), (2, 3), (0, 1), (0, 1))
    return (*(heads_first(item, layout) for item in (dq, dk, dv)), *dbias)


# --------------------------------------------------------------------------- rules


@scaled_dot_attention.vjp
def _(g: Node, out: Node, q: Node, k: Node, v: Node, **rest: Any) -> Any:
    @cache
    def gradients() -> tuple[Node, ...]:
        return scaled_dot_attention_backward(q, k, v, g, **rest)

    wanted = ("q", "k", "v") if rest["bias"] is None else ("q", "k", "v", "bias")
    return {name: lambda i=i: gradients()[i] for i, name in enumerate(wanted)}


class _Batch:
    """A batch of attentions as one of more rows: the batch goes into their own batch axis.

    What they share is repeated where it differs along that axis, and left as it is where it broadcasts.
    """

    def __init__(self, size: Dim, batched: dict[str, bool], q: Node) -> None:
        self.size, self.batched = size, batched
        self.rows = q.shape[1] if batched["q"] else q.shape[0]

    def merge(self, name: str, x: Node) -> Node:
        """An operand with the batch axis, or to be repeated along it, whose next axis is the rows."""
        whole = x if self.batched[name] else spread(x, self.size)
        if whole.shape[1] != self.rows:
            whole = whole.broadcast_to((self.size, self.rows, *whole.shape[2:]))
        merged: Node = whole.reshape((self.size * self.rows, *whole.shape[2:]))
        return merged

    def merge_scores(self, name: str, x: Node | None, *, repeat: bool = False) -> Node | None:
        """A mask or bias; ``repeat`` gives each of the batch its own."""
        if x is None:
            return None
        own = self.batched[name]
        shape = x.shape[own:]
        if not own and not repeat and (len(shape) < 4 or shape[0] == 1):
            return x
        return self.merge(name, x.reshape((*x.shape[:own], *(1,) * (4 - len(shape)), *shape)))

    def merge_offset(self, offset: Node | None) -> Node | None:
        """The offset: one for all, or one for each row."""
        if offset is None or (not self.batched["offset"] and offset.shape in ((), (1,))):
            return offset
        rank = 1 + self.batched["offset"]
        return self.merge(
            "offset", offset if offset.rank == rank else offset.reshape((self.size, 1))
        )

    def split(self, x: Node) -> Node:
        """A result with the batch axis in front again."""
        result: Node = x.reshape((self.size, self.rows, *x.shape[1:]))
        return result


@scaled_dot_attention.vmap
def _(
    size: Dim,
    batched: Any,
    q: Node,
    k: Node,
    v: Node,
    mask: Node | None,
    bias: Node | None,
    offset: Node | None,
    **attrs: Any,
) -> Node:
    batch = _Batch(size, batched, q)
    whole = scaled_dot_attention(
        *(batch.merge(name, x) for name, x in (("q", q), ("k", k), ("v", v))),
        batch.merge_scores("mask", mask),
        batch.merge_scores("bias", bias),
        offset=batch.merge_offset(offset),
        **attrs,
    )
    return batch.split(whole)


@attention_statistics.vmap
def _(
    size: Dim,
    batched: dict[str, bool],
    q: Node,
    k: Node,
    v: Node,
    mask: Node | None,
    bias: Node | None,
    offset: Node | None,
    **attrs: object,
) -> Node:
    batch = _Batch(size, batched, q)
    whole = attention_statistics(
        *(batch.merge(name, x) for name, x in (("q", q), ("k", k), ("v", v))),
        batch.merge_scores("mask", mask),
        batch.merge_scores("bias", bias),
        offset=batch.merge_offset(offset),
        **attrs,
    )
    return batch.split(whole)


@scaled_dot_attention_backward.vmap
def _(
    size: Dim,
    batched: Any,
    q: Node,
    k: Node,
    v: Node,
    dy: Node,
    mask: Node | None,
    bias: Node | None,
    offset: Node | None,
    out: Node | None,
    statistics: Node | None,
    **attrs: Any,
) -> tuple[Node, ...]:
    batch = _Batch(size, batched, q)
    if out is not None and statistics is not None:
        attrs["out"], attrs["statistics"] = (
            batch.merge(name, x) for name, x in (("out", out), ("statistics", statistics))
        )
    found = scaled_dot_attention_backward(
        *(batch.merge(name, x) for name, x in (("q", q), ("k", k), ("v", v), ("dy", dy))),
        batch.merge_scores("mask", mask),
        batch.merge_scores("bias", bias, repeat=True),
        offset=batch.merge_offset(offset),
        **attrs,
    )
    gradients = [batch.split(item) for item in found]
    if bias is not None:
        shape = bias.shape[1:] if batched["bias"] else bias.shape
        if len(shape) < 4 or shape[0] != batch.rows:
            gradients[3] = gradients[3].sum(1)
        gradients[3] = gradients[3].reshape((size, *shape))
    return tuple(gradients)


# --------------------------------------------------------------------------- RLX's names
