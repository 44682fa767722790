"""Attention under the names and in the forms of other systems.

Heads that lie side by side in the last axis are given an axis of their own, and ``scaled_dot_attention`` does the
rest: every form here works in the middle of a graph, with any mask, and with fewer key than query heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from ..graph.build import check_given
from ..graph.dims import Shape, format_shape
from ..graph.errors import ArgumentError, ShapeError
from ..graph.node import Node
from ..ops.attention.attention import FAMILY, MaskKind, as_mask_kind, scaled_dot_attention
from ..ops.attention.gradients import scaled_dot_attention_backward
from ..ops.attention.heads import Opened, count, open_heads
from .forms import form

_OPERANDS = "q: Node, k: Node, v: Node"
_HEADS = "num_heads: int, head_dim: int"
_GROUPED = "num_heads: int, num_kv_heads: int, head_dim: int"
_OPTIONS = "score_scale: float | None = None, attn_logit_softcap: float | None = None"
_LAYOUT = "*, layout: Any = None"


def _opened(given: Mapping[str, Any]) -> Opened:
    sizes = (given["num_heads"], given["head_dim"], given.get("num_kv_heads"))
    return open_heads(given["q"], given["k"], given["v"], *sizes, layout=given.get("layout"))


def _attended(opened: Opened, shape: Any = None, **options: Any) -> Node:
    q, k, v = opened.q, opened.k, opened.v
    result = opened.close(scaled_dot_attention(q, k, v, layout=opened.layout, **options))
    if shape is not None:
        check_given(result, shape)
    return result


# --------------------------------------------------------------------------- Meganeura's names


Options = Callable[[Opened, Mapping[str, Any]], dict[str, Any]]
"""What follows for ``scaled_dot_attention`` from the operands and all that was given."""


def _by(options: Options) -> Callable[..., Node]:
    def rule(**given: Any) -> Node:
        opened = _opened(given)
        return _attended(opened, given.get("shape"), **options(opened, given))

    return rule


def _same_sequence(opened: Opened, given: Mapping[str, Any]) -> dict[str, Any]:
    if opened.sizes.queries != opened.sizes.keys:
        raise ShapeError(
            f"q has {opened.sizes.queries} rows and k has {opened.sizes.keys}",
            hint="cross_attention takes two sequences",
        )
    return {}


for _name, _more, _options, _doc in (
    (
        "causal_attention",
        "",
        lambda opened, given: {"causal": True},
        """Attention to keys that do not come after the query.

    ``q`` is (length, num_heads * head_dim), ``k`` and ``v`` (length, num_kv_heads * head_dim), or each with a batch axis
    in front. With more keys than queries the last ones align.
    """,
    ),
    (
        "sliding_window_attention",
        ", window: int",
        lambda opened, given: {"causal": True, "window": count("window", given["window"])},
        "Causal attention to the last ``window`` keys, the query's own among them.",
    ),
    (
        "full_attention",
        "",
        _same_sequence,
        "Attention of every row to every row of the same sequence.",
    ),
    (
        "cross_attention",
        "",
        lambda opened, given: {},
        "Attention of every row to every row of another sequence, of any length.",
    ),
    (
        "multi_head_attn",
        ", is_cross: bool = False",
        lambda opened, given: {},
        "Attention without a mask, to a sequence of any length; ``is_cross`` is a note for the reader.",
    ),
):
    form(f"{_name}({_OPERANDS}, {_GROUPED}{_more})", FAMILY, _by(_options), _doc, by_name=True)


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


def _of_mask(opened: Opened, given: Mapping[str, Any]) -> dict[str, Any]:
    """A mask that is a kind, a tensor of what is visible, or a bias."""
    options = {"scale": given.get("score_scale"), "softcap": given.get("attn_logit_softcap")}
    if "mask_kind" in given:
        kind = as_mask_kind(given["mask_kind"])
        if kind in (MaskKind.CUSTOM, MaskKind.BIAS):
            name = "attention" if kind == MaskKind.CUSTOM else "attention_bias"
            raise ArgumentError(f"the mask {kind} needs a tensor", hint=f"call {name}")
        options |= kind.options
    elif "bias" in given:
        options["bias"] = given["bias"]
    else:
        options["mask"] = custom_mask(given["mask"], opened.sizes.scores)
    return options


for _name, _parameters, _doc in (
    (
        "attention",
        f"mask: Node | None, {_HEADS}, shape: Any = None",
        """Attention with a mask tensor: (batch, keys), or rank 4 broadcasting to (batch, heads, queries, keys).

    Where the mask is False, or a number below 0.5, keys are hidden. ``q``, ``k`` and ``v`` are (length, heads * head_dim),
    (batch, length, heads * head_dim), or of rank 4 with a ``layout`` ("bhsd" or "bshd", needed where both would fit).
    The number of key and value heads follows from ``k``.
    """,
    ),
    ("attention_", f"mask: Node | None, {_HEADS}", "The same as ``attention``."),
    (
        "attention_opts",
        f"mask: Node | None, {_HEADS}, shape: Any = None, {_OPTIONS}",
        "``attention`` with a scale and a softcap; see ``scaled_dot_attention``.",
    ),
    (
        "attention_kind",
        f"{_HEADS}, mask_kind: Any, shape: Any = None",
        """Attention with a mask that needs no tensor.

    That is ``MaskKind.NONE``, ``MaskKind.CAUSAL``, or ``SlidingWindow(w)``, which shows w + 1 keys. The operands are
    those of ``attention``.
    """,
    ),
    (
        "attention_kind_opts",
        f"{_HEADS}, mask_kind: Any, shape: Any = None, {_OPTIONS}",
        "``attention_kind`` with a scale and a softcap; see ``scaled_dot_attention``.",
    ),
    (
        "attention_bias",
        f"bias: Node, {_HEADS}, shape: Any = None",
        "Attention with ``bias``, which broadcasts to (batch, heads, queries, keys), added to the scaled scores.",
    ),
):
    _signature = f"{_name}({_OPERANDS}, {_parameters}, {_LAYOUT})"
    form(_signature, FAMILY, _by(_of_mask), _doc, by_name=True)


# --------------------------------------------------------------------------- RLX's gradients


class AttentionBwdWrt(StrEnum):
    """What ``attention_backward`` differentiates with respect to."""

    Q = "q"
    K = "k"
    V = "v"


def _gradients(**given: Any) -> tuple[Node, Node, Node]:
    kind, mask = as_mask_kind(given["mask_kind"]), given["mask"]
    takes_tensor = kind in (MaskKind.CUSTOM, MaskKind.BIAS)
    if takes_tensor != (mask is not None):
        needs = "needs the mask of the forward pass" if takes_tensor else "takes no mask tensor"
        raise ArgumentError(f"the mask {kind} {needs}")
    opened = _opened(given)
    sizes = opened.sizes
    found = scaled_dot_attention_backward(
        opened.q,
        opened.k,
        opened.v,
        opened.open("dy", given["dy"], sizes.heads),
        custom_mask(mask, sizes.scores) if kind == MaskKind.CUSTOM else None,
        mask if kind == MaskKind.BIAS else None,
        layout=opened.layout,
        scale=given["score_scale"],
        softcap=given["attn_logit_softcap"],
        **kind.options,
    )
    dq, dk, dv = (opened.close(item) for item in found[:3])
    return dq, dk, dv


def _gradient(wrt: Any, **given: Any) -> Node:
    chosen = str(getattr(wrt, "value", wrt)).lower()
    if chosen not in ("q", "k", "v"):
        raise ArgumentError(f"wrt must be 'q', 'k' or 'v', got {wrt!r}")
    return _gradients(**given)["qkv".index(chosen)]


_BACKWARD = f"{_OPERANDS}, dy: Node, {_HEADS}, mask_kind: Any, mask: Node | None = None, {_LAYOUT}, {_OPTIONS}"

form(
    f"attention_backward_all({_BACKWARD}) -> tuple[Node, Node, Node]",
    FAMILY,
    _gradients,
    """The gradients of ``attention`` and its kin with respect to ``q``, ``k`` and ``v``.

    ``mask`` is the tensor of the forward pass, for ``MaskKind.CUSTOM`` and ``MaskKind.BIAS``.
    """,
    by_name=True,
)
form(
    f"attention_backward(wrt: Any, {_BACKWARD})",
    FAMILY,
    _gradient,
    "One of the gradients of ``attention_backward_all``: ``wrt`` is ``AttentionBwdWrt.Q``, ``K`` or ``V``, or its text.",
    by_name=True,
)
