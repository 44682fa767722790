"""The pieces that models are made of, written in primitives the way exporters and people write them.

Every function has its number of spellings in ``VARIANTS``; all of one piece compute the same function, and where one
differs in a corner (an overflow, an input it does not support) its comment says so. ``PIECES`` (in ``pieces``) puts each
beside the composite op that it amounts to, as whole graphs.
"""

import math

import numpy as np

from darner import Graph, Node

VARIANTS = {
    "sigmoid": 4,
    "silu": 4,
    "swiglu": 4,
    "relu": 2,
    "gelu_erf": 4,
    "gelu_tanh": 4,
    "softmax": 5,
    "log_softmax": 4,
    "layer_norm": 4,
    "rms_norm": 4,
    "group_norm": 3,
    "batch_norm": 3,
    "rope": 3,
    "attention": 4,
    "cross_entropy": 3,
    "cross_entropy_ignoring": 2,
    "squared_error": 2,
    "linear": 3,
    "conv": 2,
    "avg_pool": 2,
}
"""How many spellings each piece has; ``variant`` counts from 0 and wraps around."""


def chosen(piece: str, variant: int) -> int:
    """The spelling of a piece that ``variant`` stands for."""
    return variant % VARIANTS[piece]


def _mean(x: Node, variant: int, axes=-1) -> Node:
    """The mean with its axes kept: the sum over the count, or times its reciprocal, or as JAX lowers it."""
    picked = [axis % x.rank for axis in ((axes,) if isinstance(axes, int) else axes)]
    count = math.prod(x.shape[axis] for axis in picked)
    match variant % 3:
        case 0:
            return x.sum(picked, keepdims=True) / float(count)
        case 1:
            return x.sum(picked, keepdims=True) * (1 / count)
        case _:
            return _kept(x.sum(picked) / float(count), x, picked)


def _kept(reduced: Node, x: Node, axes: list[int]) -> Node:
    """What a reduction without ``keepdims`` gave, with its axes put back by a reshape."""
    return reduced.reshape([1 if i in axes else size for i, size in enumerate(x.shape)])


def mean(x: Node, axes, variant: int = 0) -> Node:
    """The mean without its axes: the sum over the count, or times its reciprocal."""
    count = math.prod(x.shape[axis] for axis in axes)
    return x.sum(axes) / float(count) if variant % 2 == 0 else x.sum(axes) * (1 / count)


def dropout(x: Node, rate: float) -> Node:
    """``x`` with elements set to 0 by the random numbers of the graph's next stream."""
    graph = x.graph
    bits = graph.random_bits(x.shape, stream=graph.next_stream(), step=graph.random_step())
    dropped = bits < graph.constant(round(rate * 2**32), dtype="u32")
    return graph.where(dropped, 0.0, x * (1 / (1 - rate)))


# --------------------------------------------------------------------------- activations


def sigmoid(x: Node, variant: int = 0) -> Node:
    match chosen("sigmoid", variant):
        case 0:
            return 1.0 / (1.0 + (-x).exp())
        case 1:
            return ((-x).exp() + 1.0).recip()
        case 2:
            return 0.5 * ((0.5 * x).tanh() + 1.0)
        case _:  # NaN where exp(x) overflows
            raised = x.exp()
            return raised / (raised + 1.0)


def silu(x: Node, variant: int = 0) -> Node:
    match chosen("silu", variant):
        case 0:
            return x * (1.0 / (1.0 + (-x).exp()))
        case 1:
            return x / (1.0 + (-x).exp())
        case 2:
            return ((x * -1.0).exp() + 1.0).recip() * x
        case _:  # the logistic function through tanh: cancels far below 0
            half = x * 0.5
            return half * half.tanh() + half


def swiglu(gate: Node, up: Node, variant: int = 0) -> Node:
    match chosen("swiglu", variant):
        case 0:
            return silu(gate, 0) * up
        case 1:
            return up * silu(gate, 1)
        case 2:
            return gate * up * sigmoid(gate, 1)
        case _:
            return (gate * up) / ((-gate).exp() + 1.0)


def relu(x: Node, variant: int = 0) -> Node:
    if chosen("relu", variant) == 0:
        return x.maximum(0.0)
    return x.graph.where(x > 0.0, x, 0.0)  # NaN becomes 0 here


def gelu_erf(x: Node, variant: int = 0) -> Node:
    match chosen("gelu_erf", variant):
        case 0:
            return 0.5 * x * (1.0 + (x / math.sqrt(2)).erf())
        case 1:
            return x * ((x / math.sqrt(2)).erf() + 1.0) * 0.5
        case 2:
            return x * (((x * math.sqrt(0.5)).erf() + 1.0) * 0.5)
        case _:  # more exact than the others where x is far below 0
            return 0.5 * x * (-x * math.sqrt(0.5)).erfc()


def gelu_tanh(x: Node, variant: int = 0) -> Node:
    scale = math.sqrt(2 / math.pi)
    match chosen("gelu_tanh", variant):
        case 0:
            cube = x.pow(3.0)
            return 0.5 * x * (1.0 + (scale * (x + 0.044715 * cube)).tanh())
        case 1:
            inner = (x + x * x * x * 0.044715) * scale
            return x * (inner.tanh() + 1.0) * 0.5
        case 2:
            inner = scale * x * (1.0 + 0.044715 * x.square())
            return x * (0.5 * (1.0 + inner.tanh()))
        case _:  # tanh through the logistic function
            inner = (2 * scale) * (x + 0.044715 * x * x * x)
            return x / (1.0 + (-inner).exp())


# --------------------------------------------------------------------------- softmax and losses


def softmax(x: Node, variant: int = 0, axis: int = -1) -> Node:
    match chosen("softmax", variant):
        case 0:
            raised = (x - x.max(axis, keepdims=True)).exp()
            return raised / raised.sum(axis, keepdims=True)
        case 1:
            raised = (x - x.max(axis, keepdims=True)).exp()
            return raised * raised.sum(axis, keepdims=True).recip()
        case 2:  # as JAX lowers it: no kept axes, explicit broadcasts
            picked = [axis % x.rank]
            top = _kept(x.max(picked), x, picked).stop_gradient()
            raised = (x - top.broadcast_to(x.shape)).exp()
            total = _kept(raised.sum(picked), x, picked)
            return raised / total.broadcast_to(x.shape)
        case 3:
            return log_softmax(x, 0, axis).exp()
        case _:  # overflows where an element is large
            raised = x.exp()
            return raised / raised.sum(axis, keepdims=True)


def log_softmax(x: Node, variant: int = 0, axis: int = -1) -> Node:
    match chosen("log_softmax", variant):
        case 0:
            shifted = x - x.max(axis, keepdims=True)
            return shifted - shifted.exp().sum(axis, keepdims=True).log()
        case 1:
            top = x.max(axis, keepdims=True)
            return x - (top + (x - top).exp().sum(axis, keepdims=True).log())
        case 2:  # -inf where softmax rounds to 0
            return softmax(x, 0, axis).log()
        case _:  # overflows where an element is large
            return x - x.exp().sum(axis, keepdims=True).log()


def _picked(scores: Node, labels: Node) -> Node:
    """From each row the element its label names."""
    column = labels.reshape((*labels.shape, 1))
    return scores.take_along_axis(column, -1).reshape(labels.shape)


def _one_hot(labels: Node, like: Node) -> Node:
    classes = labels.graph.iota((like.shape[-1],)).cast(labels.dtype)
    return labels.reshape((*labels.shape, 1)).eq(classes).cast(like.dtype)


def cross_entropy(logits: Node, labels: Node, variant: int = 0) -> Node:
    """The mean over rows, as [1], of labels that are all class numbers."""
    axes = list(range(labels.rank))
    rows = float(math.prod(labels.shape))
    match chosen("cross_entropy", variant):
        case 0:
            losses = -_picked(log_softmax(logits, 0), labels)
            average = losses.sum(axes) / rows
        case 1:
            hits = _one_hot(labels, logits) * log_softmax(logits, 1)
            average = -(hits.sum(-1).sum(axes) * (1 / rows))
        case _:
            top = logits.max(-1, keepdims=True)
            total = (logits - top).exp().sum(-1, keepdims=True).log() + top
            losses = total.reshape(labels.shape) - _picked(logits, labels)
            average = losses.sum(axes) / rows
    return average.reshape((1,))


def cross_entropy_ignoring(
    logits: Node, labels: Node, variant: int = 0, ignored: int = -100
) -> Node:
    """The mean over the rows whose label is not ``ignored``, as [1]: how PyTorch's loss is decomposed."""
    graph, axes = logits.graph, list(range(labels.rank))
    kept = labels.ne(ignored)
    if chosen("cross_entropy_ignoring", variant) == 0:
        inside = graph.where(kept, labels, graph.constant(0, dtype=labels.dtype))
        picked = _picked(log_softmax(logits, 0), inside)
        losses = graph.where(kept, -picked, 0.0)
        average = losses.sum(axes) / kept.cast(logits.dtype).sum(axes)
    else:  # a row of no hits adds nothing of itself
        weights = kept.cast(logits.dtype)
        losses = -(_one_hot(labels, logits) * log_softmax(logits, 1)).sum(-1)
        average = (losses * weights).sum(axes) / weights.sum(axes)
    return average.reshape((1,))


def squared_error(x: Node, y: Node, variant: int = 0) -> Node:
    """The mean over all elements, as [1]."""
    off = x - y
    square = off * off if chosen("squared_error", variant) == 0 else off.pow(2.0)
    return mean(square, tuple(range(x.rank)), variant).reshape((1,))


# --------------------------------------------------------------------------- norms


def layer_norm(x: Node, weight: Node, bias: Node, eps: float = 1e-5, variant: int = 0) -> Node:
    match chosen("layer_norm", variant):
        case 0:
            centred = x - _mean(x, 0)
            variance = _mean(centred * centred, 0)
            return centred * (variance + eps).rsqrt() * weight + bias
        case 1:  # as in ONNX: Sub, Pow, ReduceMean, Add, Sqrt, Div, Mul, Add
            centred = x - _mean(x, 1)
            variance = _mean(centred.pow(2.0), 1)
            return centred / (variance + eps).sqrt() * weight + bias
        case 2:  # the mean of squares less the square of the mean: cancels where the mean is large
            mean = _mean(x, 2)
            variance = _mean(x.square(), 2) - mean.square()
            return (x - mean) * ((variance + eps).rsqrt() * weight) + bias
        case _:  # as JAX lowers it: explicit broadcasts
            centred = x - _mean(x, 2).broadcast_to(x.shape)
            spread = (_mean(centred.square(), 2) + eps).sqrt().recip()
            scaled = centred * spread.broadcast_to(x.shape) * weight.broadcast_to(x.shape)
            return scaled + bias.broadcast_to(x.shape)


def rms_norm(x: Node, weight: Node, eps: float = 1e-5, variant: int = 0) -> Node:
    match chosen("rms_norm", variant):
        case 0:
            return x * (_mean(x * x, 0) + eps).rsqrt() * weight
        case 1:
            return weight * (x / (_mean(x.pow(2.0), 1) + eps).sqrt())
        case 2:
            spread = 1.0 / (_mean(x.square(), 0) + eps).sqrt()
            return weight * (x * spread)
        case _:
            spread = (_mean(x.square(), 2) + eps).rsqrt()
            return x * (spread * weight)


def _per_channel(vector: Node, x: Node) -> Node:
    return vector.reshape((vector.shape[0], *(1,) * (x.rank - 2)))


def group_norm(
    x: Node, weight: Node, bias: Node, groups: int, eps: float = 1e-5, variant: int = 0
) -> Node:
    batch, channels, *sizes = x.shape
    match chosen("group_norm", variant):
        case 0:
            parts = x.reshape((batch, groups, channels // groups * math.prod(sizes)))
            centred = parts - _mean(parts, 0)
            normal = centred * (_mean(centred * centred, 0) + eps).rsqrt()
        case 1:
            parts = x.reshape((batch, groups, channels // groups, *sizes))
            axes = tuple(range(2, parts.rank))
            centred = parts - _mean(parts, 1, axes)
            normal = centred / (_mean(centred.pow(2.0), 1, axes) + eps).sqrt()
        case _:  # cancels where the mean is large
            parts = x.reshape((batch, groups, channels // groups * math.prod(sizes)))
            mean = _mean(parts, 2)
            normal = (parts - mean) * (_mean(parts.square(), 2) - mean * mean + eps).rsqrt()
    return normal.reshape(x.shape) * _per_channel(weight, x) + _per_channel(bias, x)


def batch_norm(
    x: Node,
    mean: Node,
    variance: Node,
    weight: Node,
    bias: Node,
    eps: float = 1e-5,
    variant: int = 0,
) -> Node:
    """The form of inference."""
    match chosen("batch_norm", variant):
        case 0:
            normal = (x - _per_channel(mean, x)) * _per_channel((variance + eps).rsqrt(), x)
            return normal * _per_channel(weight, x) + _per_channel(bias, x)
        case 1:  # folded into one scale and one shift
            scale = weight * (variance + eps).rsqrt()
            shift = bias - mean * scale
            return x * _per_channel(scale, x) + _per_channel(shift, x)
        case _:
            normal = (x - _per_channel(mean, x)) / (_per_channel(variance, x) + eps).sqrt()
            return normal * _per_channel(weight, x) + _per_channel(bias, x)


# --------------------------------------------------------------------------- attention


def _rope_tables(graph: Graph, length: int, head: int, theta: float, dtype, variant: int):
    """Cosines and sines of (length, head / 2) angles: constants, or computed from the positions."""
    frequencies = theta ** (-2 * np.arange(head // 2) / head)
    if variant < 2:
        angles = np.arange(length)[:, None] * frequencies
        return tuple(
            graph.constant(table, dtype=dtype) for table in (np.cos(angles), np.sin(angles))
        )
    positions = graph.iota((length, 1)).cast(dtype)
    angles = positions * graph.constant(frequencies, dtype=dtype)
    return angles.cos(), angles.sin()


def rope(x: Node, theta: float = 10000.0, variant: int = 0) -> Node:
    """Rotary positions of (..., heads, length, head): element i turns with element i + head / 2."""
    graph, head, length = x.graph, x.shape[-1], x.shape[-2]
    which = chosen("rope", variant)
    cos, sin = _rope_tables(graph, length, head, theta, x.dtype, which)
    lead = (0,) * (x.rank - 1)
    first = graph.slice(x, (*lead, 0), (*x.shape[:-1], head // 2))
    second = graph.slice(x, (*lead, head // 2), x.shape)
    if which == 0:
        return graph.concat([first * cos - second * sin, second * cos + first * sin], -1)
    # Tables of the whole width, and the halves changed over: "rotate_half".
    wide_cos, wide_sin = graph.concat([cos, cos], -1), graph.concat([sin, sin], -1)
    return x * wide_cos + graph.concat([-second, first], -1) * wide_sin


def _shared_heads(x: Node, heads: int) -> Node:
    """Each key head repeated for the query heads that share it."""
    batch, kv_heads, length, head = x.shape
    if kv_heads == heads:
        return x
    each = heads // kv_heads
    wide = x.reshape((batch, kv_heads, 1, length, head))
    wide = wide.broadcast_to((batch, kv_heads, each, length, head))
    return wide.reshape((batch, heads, length, head))


def _hide_future(scores: Node, variant: int) -> Node:
    """Scores of (batch, heads, queries, keys), as many keys as queries, with later keys taken out."""
    graph, size = scores.graph, scores.shape[-1]
    lower = np.tril(np.ones((size, size), np.bool_))
    match variant:
        case 0:
            visible = graph.iota((size, 1)) >= graph.iota((1, size), 1)
            return graph.where(visible, scores, -math.inf)
        case 1:
            return scores + graph.constant(np.where(lower, 0.0, -1e9), dtype=scores.dtype)
        case 2:
            lowest = float(np.finfo(scores.dtype.numpy).min)
            return graph.where(graph.constant(lower), scores, lowest)
        case _:
            shown, hidden = (graph.constant(x, dtype=scores.dtype) for x in (0.0, -math.inf))
            return scores + graph.where(graph.constant(lower), shown, hidden)


def _hide_masked(scores: Node, mask: Node, variant: int) -> Node:
    """Scores with the keys taken out where ``mask`` is False; some key must be left to each query."""
    if variant in (0, 2):
        hidden = -math.inf if variant == 0 else float(np.finfo(scores.dtype.numpy).min)
        return scores.graph.where(mask, scores, hidden)
    return scores + (1.0 - mask.cast(scores.dtype)) * -1e9


def attention(
    q: Node,
    k: Node,
    v: Node,
    variant: int = 0,
    *,
    causal: bool = False,
    mask: Node | None = None,
) -> Node:
    """Of (batch, heads, length, head); keys and values may have fewer heads.

    A query that sees no key gets zeros from the composite, and here NaN or the mean of the values.
    """
    which = chosen("attention", variant)
    batch, heads, queries, head = q.shape
    kv_heads, keys = k.shape[1:3]
    scale = 1 / math.sqrt(head)
    # The second groups queries by the head they share; the others repeat keys and values.
    grouped = which == 1 and kv_heads != heads
    if grouped:
        q = q.reshape((batch, kv_heads, heads // kv_heads * queries, head))
    else:
        k, v = _shared_heads(k, heads), _shared_heads(v, heads)
    match which:
        case 0:
            scores = _batched(q, k, 3) * scale
        case 1:
            scores = _batched(q, k.transpose((0, 1, 3, 2)), 2) / math.sqrt(head)
        case 2:
            scores = _batched(q * scale, k, 3)
        case _:  # as PyTorch decomposes it
            root = math.sqrt(scale)
            scores = _batched(q * root, k.transpose((0, 1, 3, 2)) * root, 2)
    if grouped:
        scores = scores.reshape((batch, heads, queries, keys))
    if causal:
        scores = _hide_future(scores, which)
    if mask is not None:
        scores = _hide_masked(scores, mask, which)
    weights = softmax(scores, which % 3)
    if grouped:
        weights = weights.reshape((batch, kv_heads, heads // kv_heads * queries, keys))
    return _batched(weights, v, 2).reshape((batch, heads, queries, v.shape[-1]))


def _batched(a: Node, b: Node, contract: int) -> Node:
    """Products of (batch, heads, ...) tensors over the last axis of ``a`` and one of ``b``."""
    return a.graph.dot_general(a, b, (3,), (contract,), (0, 1), (0, 1))


# --------------------------------------------------------------------------- linear layers and images


def linear(x: Node, weight: Node, bias: Node | None, variant: int = 0, *, stored="in_out") -> Node:
    """``x`` times a weight stored (in, out) or (out, in)."""
    graph, which = x.graph, chosen("linear", variant)
    contract = 0 if stored == "in_out" else 1
    if stored == "out_in" and which != 0:
        weight, contract = weight.transpose((1, 0)), 0
    if which == 2 and x.rank > 2:  # rows of all leading axes in one, as addmm wants them
        rows = x.reshape((math.prod(x.shape[:-1]), x.shape[-1]))
        product = graph.dot_general(rows, weight, (1,), (contract,))
        product = product if bias is None else product + bias
        return product.reshape((*x.shape[:-1], product.shape[-1]))
    product = graph.dot_general(x, weight, (x.rank - 1,), (contract,))
    if bias is None:
        return product
    return bias + product if which == 1 else product + bias


def conv(
    x: Node, weight: Node, bias: Node | None, variant: int = 0, *, stride: int = 1, padding: int = 0
) -> Node:
    """A convolution of images: windows, and a contraction over channels and kernel."""
    graph, kernel = x.graph, weight.shape[2:]
    if padding:
        x = x.pad(((0, 0), (0, 0), (padding, padding), (padding, padding)))
    patches = graph.windows(x, kernel, (stride, stride))
    if chosen("conv", variant) == 0:
        product = graph.dot_general(weight, patches, (1, 2, 3), (1, 4, 5)).transpose((1, 0, 2, 3))
    else:
        product = graph.dot_general(patches, weight, (1, 4, 5), (1, 2, 3)).transpose((0, 3, 1, 2))
    return product if bias is None else product + _per_channel(bias, product)


def avg_pool(x: Node, size: int, variant: int = 0) -> Node:
    """Means of squares beside each other, which fill the image."""
    if chosen("avg_pool", variant) == 0:
        squares = x.graph.windows(x, (size, size), (size, size))
        return squares.sum((4, 5)) / float(size * size)
    batch, channels, height, width = x.shape
    squares = x.reshape((batch, channels, height // size, size, width // size, size))
    return squares.sum((3, 5)) * (1 / (size * size))


def max_pool(x: Node, size: int) -> Node:
    """Maxima of squares beside each other."""
    return x.graph.windows(x, (size, size), (size, size)).max((4, 5))


def upsample(x: Node) -> Node:
    """Each pixel twice, in both directions."""
    batch, channels, height, width = x.shape
    tall = x.reshape((batch, channels, height, 1, width, 1))
    tall = tall.broadcast_to((batch, channels, height, 2, width, 2))
    return tall.reshape((batch, channels, 2 * height, 2 * width))
