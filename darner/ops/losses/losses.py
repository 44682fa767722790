"""Losses. Each is a true scalar of shape [1] (the mean), which can be used anywhere in a graph.

``reduction="sum"`` adds up instead, and ``"none"`` keeps one loss an element (one a row where
classes stand on the last axis). The mean of nothing is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from ...graph import dtypes
from ...graph.attributes import Float, Free, normalize_axes
from ...graph.dims import format_shape
from ...graph.errors import ArgumentError, DTypeError, ShapeError
from ...graph.node import Node
from ...graph.op import Resolved, composite, resolved
from ...graph.types import TensorType, broadcast
from ..axes import sum_to
from ..elementwise.activations import repeat_over_batch, sigmoid
from ..elementwise.arithmetic import where
from ..reductions.reduce import reduced, with_axes
from ..reductions.statistics import element_count, rough_squares
from ..samples import Sample, bools, ints, sample, spec
from .softmax import log_softmax, softmax

FAMILY = "loss"
BCE_CLAMP = 1e-7

Reduction = Literal["mean", "sum", "none"]


# --------------------------------------------------------------------------- what they share


def _reduced(losses: TensorType, reduction: str) -> TensorType:
    return losses if reduction == "none" else losses.with_shape([1])


def _same_shape(a: TensorType, b: TensorType) -> TensorType:
    if a.shape != b.shape:
        raise ShapeError("shapes differ", hint="losses do not broadcast")
    return a


def _reduce(losses: Node, reduction: str, divisor: Any = None) -> Node:
    """The mean (or the sum over ``divisor``), the sum, or the losses themselves."""
    if reduction == "none":
        return losses
    if reduction == "mean" and divisor is None:
        return losses.mean().reshape((1,))
    total = losses.sum()
    return (total if reduction == "sum" else total / divisor).reshape((1,))


def _wide(x: Node) -> Node:
    """16-bit floats as f32, in which a rule computes to round once at its end (and a count is a number)."""
    return x.cast(dtypes.f32) if x.dtype.is_half else x


def _like(gradient: Node, operand: Node) -> Node:
    """A gradient in the element type of its operand."""
    return gradient if gradient.dtype is operand.dtype else gradient.cast(operand.dtype)


def _unreduced(g: Node, reduction: str, count: Callable[[], Any]) -> Node:
    """The cotangent of the losses, from that of their reduction: one number for all of them, or their own."""
    g = _wide(g)
    if reduction == "none":
        return g
    total = g.reshape(())
    return total / count() if reduction == "mean" else total


# --------------------------------------------------------------------------- element by element


def _elements(*options: dict[str, Any], low: float = -2.0, high: float = 2.0) -> list[Sample]:
    """Calls with two tensors of equal shape, then one for each set of options."""
    shapes: list[tuple[int, ...]] = [(4, 3), (), (7,), (2, 3, 4), (1, 1)]
    calls = [sample(spec(*s, low=low, high=high), spec(*s, low=low, high=high)) for s in shapes]
    reductions: list[dict[str, Any]] = [{"reduction": "sum"}, {"reduction": "none"}]
    for keywords in (*reductions, *options):
        calls.append(
            sample(spec(3, 5, low=low, high=high), spec(3, 5, low=low, high=high), **keywords)
        )
    calls.append(sample(spec(0, 3), spec(0, 3), reduction="sum"))
    return calls


@composite(family=FAMILY, samples=_elements())
def mse_loss(pred: Float, target: Float, *, reduction: Reduction = "mean") -> TensorType:
    """The mean of (pred - target) squared."""
    return _reduced(_same_shape(pred, target), reduction)


@mse_loss.expand
def _(pred: Node, target: Node, reduction: str) -> Node:
    return _reduce((pred - target).square(), reduction)


@composite(family=FAMILY, samples=_elements())
def l1_loss(pred: Float, target: Float, *, reduction: Reduction = "mean") -> TensorType:
    """The mean of |pred - target|. Where they are equal its derivative is 0."""
    return _reduced(_same_shape(pred, target), reduction)


@l1_loss.expand
def _(pred: Node, target: Node, reduction: str) -> Node:
    return _reduce((pred - target).abs(), reduction)


@composite(family=FAMILY, samples=_elements({"delta": 0.5}, {"delta": 3.0}))
def huber_loss(
    pred: Float, target: Float, delta: float = 1.0, *, reduction: Reduction = "mean"
) -> TensorType:
    """Half the square of pred - target up to ``delta``, and beyond it a line of slope ``delta``."""
    if not delta > 0:
        raise ArgumentError(f"delta must be positive, got {delta}")
    return _reduced(_same_shape(pred, target), reduction)


@huber_loss.expand
def _(pred: Node, target: Node, delta: float, reduction: str) -> Node:
    return _reduce(_huber(pred - target, delta), reduction)


def _huber(difference: Node, delta: float) -> Node:
    distance = difference.abs()
    near = 0.5 * difference.square()
    return where(distance.lt(delta), near, delta * (distance - 0.5 * delta))


@composite(family=FAMILY, samples=_elements({"beta": 0.25}, {"beta": 0.0}))
def smooth_l1_loss(
    pred: Float, target: Float, beta: float = 1.0, *, reduction: Reduction = "mean"
) -> TensorType:
    """|pred - target| less ``beta / 2``, rounded into a parabola where it is below ``beta``.

    ``huber_loss`` with that delta, over ``beta``; ``beta=0`` is ``l1_loss``.
    """
    if not beta >= 0:
        raise ArgumentError(f"beta must not be negative, got {beta}")
    return _reduced(_same_shape(pred, target), reduction)


@smooth_l1_loss.expand
def _(pred: Node, target: Node, beta: float, reduction: str) -> Node:
    difference = pred - target
    losses = difference.abs() if beta == 0 else _huber(difference, beta) / beta
    return _reduce(losses, reduction)


@composite(family=FAMILY, samples=_elements(low=0.05, high=0.95))
def bce_loss(pred: Float, labels: Float, *, reduction: Reduction = "mean") -> TensorType:
    """Binary cross-entropy of probabilities: the mean of -(t log p + (1 - t) log(1 - p)).

    Probabilities are kept within 1e-7 of 0 and 1, so no loss exceeds about 16.1, and beyond that no
    gradient flows. ``bce_with_logits_loss`` takes what comes before the sigmoid and needs no limit.
    """
    return _reduced(_same_shape(pred, labels), reduction)


@bce_loss.expand
def _(pred: Node, labels: Node, reduction: str) -> Node:
    # 1 - p has its own limits: 1 - 1e-7 is no f32, and the log of its distance from 1 would be off.
    hit, miss = (p.clip(BCE_CLAMP, 1 - BCE_CLAMP).log() for p in (pred, 1.0 - pred))
    return _reduce(-(labels * hit + (1.0 - labels) * miss), reduction)


@composite(family=FAMILY, samples=[*_elements(), sample(spec(3, low=-90, high=90), bools(3))])
def bce_with_logits_loss(
    logits: Float, labels: Float, *, reduction: Reduction = "mean"
) -> TensorType:
    """Binary cross-entropy of sigmoid(logits), exact for logits of any size."""
    return _reduced(_same_shape(logits, labels), reduction)


@bce_with_logits_loss.expand
def _(logits: Node, labels: Node, reduction: str) -> Node:
    tail = (-logits.abs()).exp().log1p()
    return _reduce(logits.maximum(0.0) - logits * labels + tail, reduction)


@bce_with_logits_loss.vjp
def _(g: Node, out: Node, logits: Node, labels: Node, reduction: str) -> Any:
    # The parts have kinks at 0 that cancel in their sum: only a rule for the whole is exact there.
    axes = tuple(range(logits.rank))
    each = _unreduced(g, reduction, lambda: element_count(_wide(logits), axes))
    return {
        "logits": lambda: _like((sigmoid(_wide(logits)) - _wide(labels)) * each, logits),
        "labels": lambda: _like(-(_wide(logits) * each), labels),
    }


@composite(
    family=FAMILY,
    samples=[
        sample(spec(4, 3, low=-3, high=0), spec(4, 3, low=0.1, high=1)),
        sample(spec(5, low=-3, high=0), ints(5, high=2, dtype="f32")),
        sample(spec(4, 3, low=-3, high=0), spec(4, 3, low=-3, high=0), log_target=True),
        sample(spec(4, 3), spec(4, 3, low=0.1, high=1), reduction="batchmean"),
        sample(spec(4, 3), spec(4, 3, low=0.1, high=1), reduction="sum"),
        sample(spec(2, 3, 2), spec(2, 3, 2, low=0.1, high=1), reduction="none"),
        sample(spec(0, 3), spec(0, 3), reduction="sum"),
    ],
)
def kl_div(
    log_probs: Float,
    target: Float,
    *,
    log_target: bool = False,
    reduction: Literal["mean", "batchmean", "sum", "none"] = "mean",
) -> TensorType:
    """The Kullback-Leibler divergence, target * (log(target) - log_probs) at each element.

    As in PyTorch ``mean`` divides by the number of elements; ``batchmean`` divides by the first
    size, which is the divergence of the distributions in each row. Targets of 0 add nothing; with
    ``log_target`` the targets are logarithms too.
    """
    if reduction == "batchmean" and log_probs.rank == 0:
        raise ShapeError("batchmean needs a first axis")
    return _reduced(_same_shape(log_probs, target), reduction)


@kl_div.expand
def _(log_probs: Node, target: Node, log_target: bool, reduction: str) -> Node:
    if log_target:
        losses = target.exp() * (target - log_probs)
    else:
        # The log is taken of 1 instead of 0, so that neither a value nor a gradient is NaN.
        entropy = target * where(target.eq(0.0), 1.0, target).log()
        losses = entropy - target * log_probs
    if reduction == "batchmean":
        return _reduce(losses, "mean", element_count(losses, (0,)))
    return _reduce(losses, reduction)


# --------------------------------------------------------------------------- classes


def _check_classes(scores: TensorType, labels: TensorType, name: str) -> TensorType:
    """The type of one number a row, where ``labels`` holds each row's class."""
    if scores.rank == 0:
        raise ShapeError(f"{name} needs an axis of classes")
    if labels.shape != scores.shape[:-1]:
        raise ShapeError(
            f"integer labels must be {format_shape(scores.shape[:-1])}, one for each row of {name}"
        )
    return scores.with_shape(scores.shape[:-1])


def _pick(scores: Node, labels: Node) -> Node:
    """From each row the element its label names; labels outside the row are an error of the run."""
    return scores.take_along_axis(labels.reshape((*labels.shape, 1)), -1).reshape(labels.shape)


def _kept(labels: Node, ignore_index: int) -> Node | None:
    """Which labels count, or None when the type of the labels cannot hold ``ignore_index``."""
    low, high = labels.dtype.limits
    return labels.ne(ignore_index) if low <= ignore_index <= high else None


def _smoothed(losses: Node, log_probs: Node, smoothing: float) -> Node:
    """A share of the weight taken from the labels and spread evenly over the classes."""
    if smoothing == 0:
        return losses
    return (1 - smoothing) * losses - smoothing * log_probs.mean(-1)


def _class_losses(
    log_probs: Node, labels: Node, ignore_index: int, smoothing: float, reduction: str
) -> Node:
    """Minus the log-probability of each row's label, rows of ``ignore_index`` left out."""
    kept = _kept(labels, ignore_index)
    losses = -_pick(log_probs, labels if kept is None else where(kept, labels, 0))
    losses = _smoothed(losses, log_probs, smoothing)
    if kept is None:
        return _reduce(losses, reduction)
    return _reduce(where(kept, losses, 0.0), reduction, kept.cast(losses.dtype).sum())


@composite(
    family=FAMILY,
    samples=[
        sample(spec(4, 3, low=-3, high=0), ints(4, high=3)),
        sample(spec(2, 5, 3), ints(2, 5, high=3, dtype="u32")),
        sample(spec(6, 3), ints(6, high=3, dtype="i64"), ignore_index=1),
        sample(spec(6, 3), ints(6, high=3), ignore_index=2, reduction="sum"),
        sample(spec(6, 3), ints(6, high=3), ignore_index=2, reduction="none"),
        sample(spec(3), ints(high=3)),
        sample(spec(0, 3), ints(0, high=3), reduction="sum"),
    ],
)
def nll_loss(
    log_probs: Float, labels: Free, *, ignore_index: int = -100, reduction: Reduction = "mean"
) -> TensorType:
    """Minus the log-probability of each row's class: ``log_probs`` is [..., C], ``labels`` [...].

    Rows whose label is ``ignore_index`` count for nothing. Any other label outside 0..C-1 is an
    error when the graph runs.
    """
    if not labels.dtype.is_int:
        raise DTypeError(f"labels must be integers, not {labels.dtype}", hint="cast them to i32")
    return _reduced(_check_classes(log_probs, labels, "log_probs"), reduction)


@nll_loss.expand
def _(log_probs: Node, labels: Node, ignore_index: int, reduction: str) -> Node:
    return _class_losses(log_probs, labels, ignore_index, 0.0, reduction)


@composite(
    family=FAMILY,
    samples=[
        sample(spec(4, 3), spec(4, 3, low=0, high=1)),
        sample(spec(4, 3, low=-40, high=40), bools(4, 3)),
        sample(spec(1, 7), ints(1, 7, high=2)),
        sample(spec(4, 3), spec(4, 3, low=0, high=1), label_smoothing=0.1, reduction="none"),
        sample(spec(5, 3), ints(5, high=3)),
        sample(spec(2, 3, 4), ints(2, 3, high=4, dtype="u32")),
        sample(spec(6, 3), ints(6, high=3, dtype="i64"), ignore_index=1),
        sample(spec(6, 3), ints(6, high=3), label_smoothing=0.2, ignore_index=2),
        sample(spec(6, 3), ints(6, high=3), label_smoothing=0.2, ignore_index=2, reduction="sum"),
        sample(spec(0, 3), spec(0, 3), reduction="sum"),
    ],
)
def cross_entropy_loss(
    logits: Float,
    labels: Free,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> TensorType:
    """Minus the log-probability that softmax(logits) gives the labels, as the mean over rows.

    ``logits`` is [..., C]. Labels of the same shape are weights of the classes (one-hot, soft, or
    of any sum): -sum(labels * log_softmax(logits)) / rows. Integer labels of shape [...] are class
    numbers, with PyTorch's meaning of ``ignore_index`` (such rows count for nothing, in the mean
    too) and ``label_smoothing`` (that share of the weight is spread evenly over the classes). Other
    labels outside 0..C-1 are an error when the graph runs.
    """
    if not 0 <= label_smoothing <= 1:
        raise ArgumentError(f"label_smoothing must be in 0..1, got {label_smoothing}")
    if labels.shape == logits.shape and logits.rank > 0:
        if labels.dtype.kind == "complex":
            raise DTypeError(f"labels of {labels.dtype} are not weights")
        if ignore_index >= 0:
            raise ArgumentError(
                f"ignore_index={ignore_index} needs class numbers as labels, not weights"
            )
        weighed = dtypes.promote(logits.dtype, labels.dtype)
        return _reduced(TensorType(logits.shape[:-1], weighed), reduction)
    if not labels.dtype.is_int:
        raise ShapeError(
            "shapes differ", hint="labels that are class numbers, one a row, must be integers"
        )
    return _reduced(_check_classes(logits, labels, "logits"), reduction)


@cross_entropy_loss.expand
def _(
    logits: Node, labels: Node, label_smoothing: float, ignore_index: int, reduction: str
) -> Node:
    log_probs = log_softmax(logits, -1)
    if labels.shape != logits.shape:
        return _class_losses(log_probs, labels, ignore_index, label_smoothing, reduction)
    weights = labels.cast(dtypes.promote(logits.dtype, labels.dtype))
    losses = -(weights * log_probs).sum(-1)
    return _reduce(_smoothed(losses, log_probs, label_smoothing), reduction)


@cross_entropy_loss.vjp
def _(
    g: Node,
    out: Node,
    logits: Node,
    labels: Node,
    label_smoothing: float,
    ignore_index: int,
    reduction: str,
) -> Any:
    scores = _wide(logits)
    if labels.shape != logits.shape:
        return {
            "logits": lambda: _like(
                _class_gradient(g, scores, labels, ignore_index, label_smoothing, reduction), logits
            )
        }
    rows = tuple(range(logits.rank - 1))
    each = _unreduced(g, reduction, lambda: element_count(scores, rows))
    each = each.unsqueeze(-1) if reduction == "none" else each

    def of_logits() -> Node:
        weights = _smooth_weights(labels.cast(each.dtype), label_smoothing)
        excess = softmax(scores, -1) * weights.sum(-1, keepdims=True) - weights
        return _like(excess * each, logits)

    return {
        "logits": of_logits,
        "labels": lambda: _like(log_softmax(scores, -1) * (each * (label_smoothing - 1)), labels),
    }


def _class_gradient(
    g: Node, scores: Node, labels: Node, ignore_index: int, smoothing: float, reduction: str
) -> Node:
    """What the scores receive when labels are class numbers; rows of ``ignore_index`` get 0."""
    kept = _kept(labels, ignore_index)
    if kept is None:
        rows = tuple(range(labels.rank))
        each = _unreduced(g, reduction, lambda: element_count(scores, rows))
        each = each.broadcast_to(labels.shape)
    else:
        counted = kept
        each = _unreduced(g, reduction, lambda: counted.cast(scores.dtype).sum())
        each, labels = where(kept, each, 0.0), where(kept, labels, 0)
    if smoothing == 0:
        return softmax_cross_entropy_backward(scores, labels, each)
    weights = _smooth_weights(labels.one_hot(scores.shape[-1], scores.dtype), smoothing)
    return (softmax(scores, -1) - weights) * each.unsqueeze(-1)


def _smooth_weights(weights: Node, smoothing: float) -> Node:
    """Weights of classes, a share of them spread evenly: what ``_smoothed`` amounts to."""
    if smoothing == 0 or weights.shape[-1] == 0:
        return weights
    return weights * (1 - smoothing) + smoothing / element_count(weights, (-1,))


def _check_encoded(labels: TensorType) -> None:
    """Class numbers may come as integers, or as floats that hold every such integer exactly."""
    if not (labels.dtype.is_int or labels.dtype in (dtypes.f32, dtypes.f64)):
        raise DTypeError(
            f"labels of {labels.dtype} cannot hold class numbers", hint="use integers, or f32"
        )


_ENCODED: list[tuple[Sample, tuple[int, ...]]] = [
    (sample(spec(5, 3), ints(5, high=3, dtype="f32")), (5,)),
    (sample(spec(4, 7, low=-40, high=40), ints(4, high=7)), (4,)),
    (sample(spec(1, 3), ints(1, high=3, dtype="u32")), (1,)),
    (sample(spec(2, 3, 4), ints(2, 3, high=4, dtype="i64")), (2, 3)),
    (sample(spec(0, 3), ints(0, high=3)), (0,)),
]


@composite(family=FAMILY, samples=[call for call, _ in _ENCODED])
def softmax_cross_entropy_with_logits(logits: Float, labels: Free) -> TensorType:
    """The cross-entropy of each row: log(sum(exp(logits))) less the logit of the row's class.

    ``logits`` is [N, C] and ``labels`` [N] (or [..., C] and [...]): integers, or whole numbers in
    f32. Labels outside 0..C-1 are an error when the graph runs.
    """
    _check_encoded(labels)
    return _check_classes(logits, labels, "logits")


@softmax_cross_entropy_with_logits.expand
def _(logits: Node, labels: Node) -> Node:
    return -_pick(
        log_softmax(logits, -1), labels if labels.dtype.is_int else labels.cast(dtypes.i32)
    )


@softmax_cross_entropy_with_logits.vjp
def _(g: Node, out: Node, logits: Node, labels: Node) -> Any:
    def of_labels() -> Node:
        raise ArgumentError(
            "no gradient passes through labels that are class numbers",
            hint="cast them to integers, or stop the gradient",
        )

    return {
        "logits": lambda: softmax_cross_entropy_backward(logits, labels, g),
        "labels": of_labels,
    }


repeat_over_batch(softmax_cross_entropy_with_logits)


@composite(family=FAMILY, samples=[sample(*call.args, spec(*rows)) for call, rows in _ENCODED])
def softmax_cross_entropy_backward(logits: Float, labels: Free, d_loss: Float) -> TensorType:
    """The gradient of ``softmax_cross_entropy_with_logits`` for its logits.

    (softmax(logits) - one_hot(labels)) * d_loss, where ``d_loss`` is the gradient of each row's
    loss.
    """
    _check_encoded(labels)
    rows = _check_classes(logits, labels, "logits")
    if d_loss.shape != rows.shape:
        raise ShapeError(f"d_loss must be {format_shape(rows.shape)}, one number for each row")
    return logits


@softmax_cross_entropy_backward.expand
def _(logits: Node, labels: Node, d_loss: Node) -> Node:
    column = (*labels.shape, 1)
    classes = logits.graph.iota(logits.shape, -1)
    hit = classes.eq(labels.cast(dtypes.i32).reshape(column)).cast(logits.dtype)
    return (softmax(logits, -1) - hit) * d_loss.reshape(column)


repeat_over_batch(softmax_cross_entropy_backward)


# --------------------------------------------------------------------------- similarity


@composite(
    family=FAMILY,
    samples=[
        sample(spec(4, 3), spec(4, 3)),
        sample(spec(2, 3, 4), spec(2, 3, 4), 1),
        sample(spec(2, 3, 4), spec(3, 1), 0),
        sample(spec(5), spec(2, 5)),
        sample(spec(3, 4, low=-1e-3, high=1e-3), spec(3, 4), eps=0.5),
        sample(spec(0, 3), spec(0, 3)),
        sample(spec(3, 0), spec(3, 0)),
    ],
)
def cosine_similarity(a: Float, b: Float, axis: int = -1, *, eps: float = 1e-8) -> Resolved:
    """The cosine of the angle between ``a`` and ``b`` along ``axis`` of their broadcast shape.

    Their dot product over both lengths, neither of which counts as less than ``eps``.
    """
    if not eps >= 0:
        raise ArgumentError(f"eps must not be negative, got {eps}")
    both = a.with_shape(broadcast(a.shape, b.shape))
    axis = normalize_axes(axis, both.rank)
    return resolved(reduced(both, (axis,), keepdims=False), axis=axis)


@cosine_similarity.expand
def _(a: Node, b: Node, axis: int, eps: float) -> Node:
    shape = broadcast(a.shape, b.shape)
    a, b = a.broadcast_to(shape), b.broadcast_to(shape)
    square_a, square_b = a.square().sum(axis), b.square().sum(axis)
    (rough_a, scale_a, _), (rough_b, scale_b, _) = rough_squares(square_a), rough_squares(square_b)
    plain = _cosine((a * b).sum(axis), (square_a, square_b), (eps, eps))
    # All again, of multiples, where squares may have overflowed or underflowed.
    a, b = (x * with_axes(scale, x, (axis,), False) for x, scale in ((a, scale_a), (b, scale_b)))
    squares = a.square().sum(axis), b.square().sum(axis)
    scaled = _cosine((a * b).sum(axis), squares, (scale_a * eps, scale_b * eps))
    return (rough_a | rough_b).where(scaled, plain)


def _cosine(dot: Node, squares: tuple[Node, Node], least: tuple[Any, Any]) -> Node:
    """The cosine of an angle by a dot product and the squares of both lengths, each of which is at least as said."""
    first, second = (
        square.sqrt().maximum(length) for square, length in zip(squares, least, strict=True)
    )
    return dot / (first * second)


@cosine_similarity.vjp
def _(g: Node, out: Node, a: Node, b: Node, axis: int, eps: float) -> Any:
    kind, shapes = a.dtype, {"a": a.shape, "b": b.shape}
    if kind.is_half:
        g, a, b = (node.cast("f32") for node in (g, a, b))
        out = a.cosine_similarity(b, axis, eps=eps)
    shape = broadcast(a.shape, b.shape)
    a, b = a.broadcast_to(shape), b.broadcast_to(shape)
    g, out = with_axes(g, a, (axis,), False), with_axes(out, a, (axis,), False)
    lengths = {"a": a.norm((axis,), True), "b": b.norm((axis,), True)}
    unit = {"a": a / lengths["a"].maximum(eps), "b": b / lengths["b"].maximum(eps)}

    def towards(own: str, other: str) -> Node:
        # What lies along the vector itself changes its length alone, unless that counts as eps.
        counts = lengths[own] >= eps
        across = unit[other] - counts.where(out, 0.0) * unit[own]
        made = sum_to(across * (g / lengths[own].maximum(eps)), shapes[own])
        return made.cast(kind) if kind.is_half else made

    return {"a": lambda: towards("a", "b"), "b": lambda: towards("b", "a")}
