"""Every piece of ``spellings`` as whole graphs, beside the composite op that it amounts to."""

from collections.abc import Callable

from darner import Graph, Node

from .spellings import (
    VARIANTS,
    attention,
    avg_pool,
    batch_norm,
    conv,
    cross_entropy,
    cross_entropy_ignoring,
    gelu_erf,
    gelu_tanh,
    group_norm,
    layer_norm,
    linear,
    log_softmax,
    relu,
    rms_norm,
    rope,
    sigmoid,
    silu,
    softmax,
    squared_error,
    swiglu,
)


def _graph_of(name: str, build: Callable[..., Node], leaves: dict[str, tuple]) -> Graph:
    graph = Graph(name)
    nodes = [graph.input(leaf, shape, kind) for leaf, (shape, kind) in leaves.items()]
    graph.set_outputs([build(*nodes)])
    return graph


def _piece(name, leaves, composite, primitive, variants=None):
    """A row of ``PIECES``; a leaf of no element type is a float."""

    def typed(dtype):
        return {
            leaf: shape if isinstance(shape[-1], str) else (shape, dtype)
            for leaf, shape in leaves.items()
        }

    def in_composites(dtype="f32") -> Graph:
        return _graph_of(name, composite, typed(dtype))

    def in_primitives(variant, dtype="f32") -> Graph:
        return _graph_of(name, lambda *nodes: primitive(*nodes, variant), typed(dtype))

    return variants or VARIANTS[name], in_composites, in_primitives


_ROWS = {"x": (6, 10)}
_NORM = {"x": (2, 5, 12), "weight": (12,)}
_IMAGE = {"x": (2, 8, 4, 3), "weight": (8,), "bias": (8,)}
_HEADS = {"q": (2, 4, 6, 4), "k": (2, 2, 6, 4), "v": (2, 2, 6, 4)}
_MASK = {"mask": ((2, 1, 1, 6), "bool")}
_SCORES = {"logits": (7, 9)}


def _attention_piece(name, leaves, **options):
    def composite(q, k, v, mask=None):
        return q.graph.scaled_dot_attention(q, k, v, mask, **options)

    def primitive(q, k, v, *rest):
        *mask, variant = rest
        return attention(q, k, v, variant, mask=mask[0] if mask else None, **options)

    return _piece(name, leaves, composite, primitive, VARIANTS["attention"])


PIECES: dict[str, tuple[int, Callable[..., Graph], Callable[..., Graph]]] = {
    "sigmoid": _piece("sigmoid", _ROWS, lambda x: x.sigmoid(), sigmoid),
    "silu": _piece("silu", _ROWS, lambda x: x.silu(), silu),
    "swiglu": _piece(
        "swiglu", {"gate": (6, 10), "up": (6, 10)}, lambda gate, up: gate.swiglu(up), swiglu
    ),
    "relu": _piece("relu", _ROWS, lambda x: x.relu(), relu),
    "gelu_erf": _piece("gelu_erf", _ROWS, lambda x: x.gelu(), gelu_erf),
    "gelu_tanh": _piece("gelu_tanh", _ROWS, lambda x: x.gelu_approx(), gelu_tanh),
    "softmax": _piece("softmax", _ROWS, lambda x: x.softmax(), softmax),
    "softmax of the first axis": _piece(
        "softmax", _ROWS, lambda x: x.softmax(0), lambda x, variant: softmax(x, variant, 0)
    ),
    "log_softmax": _piece("log_softmax", _ROWS, lambda x: x.log_softmax(), log_softmax),
    "layer_norm": _piece(
        "layer_norm",
        {**_NORM, "bias": (12,)},
        lambda x, weight, bias: x.layer_norm(weight, bias, 1e-5),
        lambda x, weight, bias, variant: layer_norm(x, weight, bias, 1e-5, variant),
    ),
    "rms_norm": _piece(
        "rms_norm",
        _NORM,
        lambda x, weight: x.rms_norm(weight, 1e-6),
        lambda x, weight, variant: rms_norm(x, weight, 1e-6, variant),
    ),
    "group_norm": _piece(
        "group_norm",
        _IMAGE,
        lambda x, weight, bias: x.group_norm(weight, bias, 4),
        lambda x, weight, bias, variant: group_norm(x, weight, bias, 4, 1e-5, variant),
    ),
    "batch_norm": _piece(
        "batch_norm",
        {"x": (2, 8, 4, 3), "mean": (8,), "variance": (8,), "weight": (8,), "bias": (8,)},
        lambda *nodes: nodes[0].batch_norm(*nodes[1:]),
        lambda *nodes: batch_norm(*nodes[:-1], 1e-5, nodes[-1]),
    ),
    "rope": _piece(
        "rope",
        {"x": (2, 3, 5, 8)},
        lambda x: x.graph.rope(x, 10000.0, layout="hsd"),
        lambda x, variant: rope(x, 10000.0, variant),
    ),
    "attention": _attention_piece("attention", _HEADS),
    "attention of as many heads": _attention_piece(
        "attention", {**_HEADS, "k": (2, 4, 6, 4), "v": (2, 4, 6, 4)}, causal=True
    ),
    "causal attention": _attention_piece("attention", _HEADS, causal=True),
    "masked attention": _attention_piece("attention", {**_HEADS, **_MASK}),
    # Labels that are not signed cannot hold the number to ignore: the loss is of every row.
    "cross_entropy": _piece(
        "cross_entropy",
        {**_SCORES, "labels": ((7,), "u32")},
        lambda logits, labels: logits.cross_entropy_loss(labels),
        cross_entropy,
    ),
    "cross_entropy_ignoring": _piece(
        "cross_entropy_ignoring",
        {**_SCORES, "labels": ((7,), "i32")},
        lambda logits, labels: logits.cross_entropy_loss(labels),
        cross_entropy_ignoring,
    ),
    "squared_error": _piece(
        "squared_error",
        {"x": (6, 10), "y": (6, 10)},
        lambda x, y: x.graph.mse_loss(x, y),
        squared_error,
    ),
    "linear": _piece(
        "linear",
        {"x": (2, 5, 12), "weight": (12, 7), "bias": (7,)},
        lambda x, weight, bias: x @ weight + bias,
        linear,
    ),
    "linear of a weight stored (out, in)": _piece(
        "linear",
        {"x": (2, 5, 12), "weight": (7, 12), "bias": (7,)},
        lambda x, weight, bias: x @ weight.T + bias,
        lambda *nodes: linear(*nodes, stored="out_in"),
    ),
    "conv": _piece(
        "conv",
        {"x": (2, 3, 7, 6), "weight": (4, 3, 3, 3), "bias": (4,)},
        lambda x, weight, bias: x.conv2d(weight, bias=bias, stride=2, padding=1),
        lambda *nodes: conv(*nodes, stride=2, padding=1),
    ),
    "avg_pool": _piece(
        "avg_pool",
        {"x": (2, 3, 6, 4)},
        lambda x: x.avg_pool(2),
        lambda x, variant: avg_pool(x, 2, variant),
    ),
}
"""Name -> (spellings, the graph of the composite, the graph of spelling ``variant``); both take ``dtype=``."""
