"""Graphs as users write them, on which the rules of activations, softmax, norms and losses fire."""

import math

from tests.optimizer.firing import table

FIRES, fires = table()


def some(g, d, name="x", shape=None):
    """An input of the graph's float type."""
    return g.input(name, d.shape() if shape is None else shape, d.float)


def two(g, d, least=0):
    """Two inputs of one type, the second of which is broadcast at times."""
    shape = d.shape(least)
    other = d.choice((shape, shape, d.broadcast(shape)))
    return some(g, d, "x", shape), some(g, d, "y", other)


def pair(g, d, least=0):
    """Two inputs of one type."""
    shape = d.shape(least)
    return some(g, d, "x", shape), some(g, d, "y", shape)


def rows(g, d, name="x"):
    """An input whose last axis has elements."""
    return some(g, d, name, (*d.shape(0, 2), d.size(1)))


# --------------------------------------------------------------------------- activations


def of_one(name, make):
    """A function of one operand that makes a rule fire."""
    fires(name)(lambda g, d: make(some(g, d)))


SCALE = math.sqrt(2 / math.pi)

of_one("sigmoid", lambda x: 1.0 / ((-x).exp() + 1.0))
of_one("sigmoid from above", lambda x: x.exp() / (x.exp() + 1.0))
of_one("sigmoid by tanh", lambda x: (x * 0.5).tanh() * 0.5 + 0.5)
of_one("sigmoid by tanh, half last", lambda x: ((x * 0.5).tanh() + 1.0) * 0.5)
of_one("sigmoid of a multiple", lambda x: ((x * -3.0).exp() + 1.0).recip())
of_one("silu", lambda x: x * x.sigmoid())
of_one("silu by tanh", lambda x: (x * 0.5) * (x * 0.5).tanh() + x * 0.5)
of_one("quick_gelu", lambda x: x * (x * 1.702).sigmoid())
of_one("log of sigmoid", lambda x: x.sigmoid().log())
of_one("log_sigmoid by softplus", lambda x: -(-x).softplus())
of_one("log_sigmoid by its parts", lambda x: x.minimum(0.0) - (-x.abs()).exp().log1p())
for _name, _part in {
    "gelu": lambda x: (x * math.sqrt(0.5)).erf() + 1.0,
    "gelu by a quotient": lambda x: (x / math.sqrt(2)).erf() + 1.0,
    "gelu by erfc": lambda x: (x * -math.sqrt(0.5)).erfc(),
}.items():
    of_one(_name, lambda x, part=_part: (x * part(x)) * 0.5)
    of_one(f"{_name}, half first", lambda x, part=_part: (x * 0.5) * part(x))
    of_one(f"{_name}, half inside", lambda x, part=_part: x * (part(x) * 0.5))
of_one("polynomial of gelu", lambda x: x * (x.square() * 0.044715 + 1.0))
of_one(
    "gelu_approx",
    lambda x: (x * (((x + x * x.square() * 0.044715) * SCALE).tanh() + 1.0)) * 0.5,
)
of_one(
    "gelu_approx, half first",
    lambda x: (x * 0.5) * (((x + x * x.square() * 0.044715) * SCALE).tanh() + 1.0),
)
of_one(
    "gelu_approx, half inside",
    lambda x: x * ((((x + x * x.square() * 0.044715) * SCALE).tanh() + 1.0) * 0.5),
)
of_one(
    "gelu_approx by sigmoid",
    lambda x: x * ((x + x * x.square() * 0.044715) * (2 * SCALE)).sigmoid(),
)
of_one("relu", lambda x: x.maximum(0.0))
of_one("relu, zero first", lambda x: x.graph.maximum(x.graph.constant(0.0, dtype=x.dtype), x))
of_one("relu by selection", lambda x: x.graph.where(x > 0.0, x, 0.0))
of_one("relu by opposite selection", lambda x: x.graph.where(x <= 0.0, 0.0, x))
of_one("relu by selection from 0", lambda x: x.graph.where(x >= 0.0, x, 0.0))
of_one("relu by selection below 0", lambda x: x.graph.where(x < 0.0, 0.0, x))
of_one("relu6", lambda x: x.relu().minimum(6.0))
of_one("relu6, six first", lambda x: x.minimum(6.0).relu())
of_one("relu6 by clip", lambda x: x.clip(0.0, 6.0))
of_one("hard_tanh", lambda x: x.clip(-1.0, 1.0))
of_one("hard_sigmoid", lambda x: (x + 3.0).relu6() / 6.0)
of_one("hard_sigmoid by clip", lambda x: (x * (1 / 6) + 0.5).clip(0.0, 1.0))
of_one("hard_silu", lambda x: x * x.hard_sigmoid())
of_one("hard_silu by relu6", lambda x: (x * (x + 3.0).relu6()) / 6.0)
of_one("leaky_relu", lambda x: x.graph.where(x > 0.0, x, x * 0.2))
of_one("leaky_relu from 0", lambda x: x.graph.where(x >= 0.0, x, x * 0.2))
of_one("leaky_relu by maximum", lambda x: x.maximum(x * 0.01))
of_one("elu", lambda x: x.graph.where(x > 0.0, x, x.exp() - 1.0))
of_one("elu of alpha", lambda x: x.graph.where(x > 0.0, x, x.expm1() * 0.5))
of_one("softplus", lambda x: (x.exp() + 1.0).log())
of_one("softplus by its parts", lambda x: x.maximum(0.0) + (-x.abs()).exp().log1p())
of_one("mish", lambda x: x * x.softplus().tanh())
of_one("softsign", lambda x: x / (x.abs() + 1.0))
of_one("tanh by sinh", lambda x: x.sinh() / x.cosh())
of_one("tanh by exp", lambda x: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()))


@fires("swiglu", "swiglu by its product")
def _(g, d):
    x, y = two(g, d)
    return [x.silu() * y, (x * y) * x.sigmoid()]


@fires("geglu")
def _(g, d):
    x, y = two(g, d)
    return x.gelu() * y


def halves(g, d):
    """The two halves of an input along its last axis, which is even at least at first."""
    lead = d.shape(1, 2)
    width = d.choice((4, 4, 5, 2))
    x = some(g, d, "x", (*lead, width))
    start = (0,) * len(lead)
    first = g.slice(x, (*start, 0), (*lead, width // 2))
    return first, g.slice(x, (*start, width - width // 2), (*lead, width))


@fires("glu")
def _(g, d):
    first, second = halves(g, d)
    return first * second.sigmoid()


@fires("swiglu of halves, gate first", "swiglu of halves, gate second")
def _(g, d):
    first, second = halves(g, d)
    return [first.swiglu(second), second.swiglu(first)]


@fires("relu_backward")
def _(g, d):
    x, y = two(g, d)
    return g.where(x > 0.0, y, 0.0)


# --------------------------------------------------------------------------- softmax


@fires("softmax", "softmax of a shifted operand")
def _(g, d):
    x = rows(g, d)
    raised = (x - x.max(-1, keepdims=True).stop_gradient()).exp()
    return raised / raised.sum(-1, keepdims=True)


@fires("softmax")
def _(g, d):
    x = rows(g, d)
    axis = d.axis(x.rank)
    return x.exp() * (1.0 / x.exp().sum(axis, keepdims=True))


@fires("exp of log_softmax", "log of softmax")
def _(g, d):
    x = rows(g, d)
    return [x.log_softmax(d.axis(x.rank)).exp(), x.softmax().log()]


@fires("logsumexp", "log_softmax", "log_softmax of a shifted operand")
def _(g, d):
    x = rows(g, d)
    shifted = x - x.max(-1, keepdims=True)
    return shifted - shifted.exp().sum(-1, keepdims=True).log()


@fires("logsumexp of a shifted operand")
def _(g, d):
    x = rows(g, d)
    top = x.max(-1, keepdims=True)
    return (x - top).exp().sum(-1, keepdims=True).log() + top


@fires("masked_softmax")
def _(g, d):
    shape = (*d.shape(0, 2), d.size(1))
    x = some(g, d, "x", shape)
    return g.where(g.input("mask", d.broadcast(shape), "bool"), x, -math.inf).softmax()


@fires("softmax_backward")
def _(g, d):
    y, dy = two(g, d, 1)
    return y * (dy - (y * dy).sum(-1, keepdims=True))


@fires("softmax_backward, multiplied out")
def _(g, d):
    y, dy = two(g, d, 1)
    return y * dy - y * (y * dy).sum(-1, keepdims=True)


@fires("log_softmax_backward")
def _(g, d):
    y, dy = pair(g, d, 1)
    return dy - y.exp() * dy.sum(-1, keepdims=True)


# --------------------------------------------------------------------------- norms by rows


def features(g, d, x, name="weight", axis=-1):
    """A vector for the last axes of ``x``; not always of one number for each element."""
    shape = x.shape[axis % x.rank :]
    leads = d.choice(((), (), (1,) * (x.rank - len(shape)), None))
    return some(g, d, name, d.broadcast(shape) if leads is None else (*leads, *shape))


@fires("rms_norm", "rms_norm times a weight")
def _(g, d):
    x = some(g, d, shape=d.shape(1))
    first = d.axis(x.rank) % x.rank
    scale = (x.square().mean(list(range(first, x.rank)), keepdims=True) + 1e-6).rsqrt()
    return x * scale * features(g, d, x, axis=first)


@fires("rms_norm, weight on the scale")
def _(g, d):
    x = some(g, d, shape=d.shape(1))
    return x * ((x.square().mean(-1, keepdims=True) + 1e-5).rsqrt() * features(g, d, x))


@fires("rms_norm, weight on the operand")
def _(g, d):
    x = some(g, d, shape=d.shape(1))
    return (x * features(g, d, x)) * (x.square().mean(-1, keepdims=True) + 1e-5).rsqrt()


@fires("layer_norm", "layer_norm times a weight")
def _(g, d):
    x = some(g, d, shape=d.shape(1))
    centred = x - x.mean(-1, keepdims=True)
    normal = centred / (centred.square().mean(-1, keepdims=True) + 1e-5).sqrt()
    return normal * features(g, d, x)


@fires("layer_norm with weight")
def _(g, d):
    x = some(g, d, shape=d.shape(1))
    return (x - x.mean(-1, keepdims=True)).rms_norm(some(g, d, "weight", x.shape[-1:]), 1e-5)


@fires("variance written out")
def _(g, d):
    x = some(g, d, shape=d.shape(1))
    return (x - x.mean(-1, keepdims=True)) * (x.var(-1, keepdims=True) + 1e-5).rsqrt()


@fires("variance by the mean of squares")
def _(g, d):
    x = some(g, d, shape=d.shape(1))
    mean = x.mean(-1, keepdims=True)
    return x.square().mean(-1, keepdims=True) - mean.square()


@fires("rms_norm plus a bias", "layer_norm plus a bias")
def _(g, d):
    x = some(g, d, shape=d.shape(1))
    bias = features(g, d, x, "bias")
    return [x.rms_norm() + bias, x.layer_norm() + bias]


@fires("weighted rms_norm plus a bias", "weighted layer_norm plus a bias")
def _(g, d):
    x = some(g, d, shape=d.shape(1))
    weight, bias = some(g, d, "weight", x.shape[-1:]), features(g, d, x, "bias")
    return [x.rms_norm(weight) + bias, x.layer_norm(weight) + bias]


@fires("fused_residual_rms_norm", "fused_residual_rms_norm, of a biased operand")
def _(g, d):
    x, y = pair(g, d, 1)
    weight, bias = (some(g, d, name, x.shape[-1:]) for name in ("weight", "bias"))
    return [(x + y).rms_norm(weight), ((x + bias) + y).rms_norm(weight)]


@fires("fused_residual_ln without bias", "fused_residual_ln without bias, of a biased operand")
def _(g, d):
    x, y = pair(g, d, 1)
    weight, bias = (some(g, d, name, x.shape[-1:]) for name in ("weight", "bias"))
    return [(x + y).layer_norm(weight), ((x + bias) + y).layer_norm(weight)]


@fires("fused_residual_ln", "fused_residual_ln, of a biased operand")
def _(g, d):
    x, y = pair(g, d, 1)
    weight, bias, shift = (some(g, d, name, x.shape[-1:]) for name in ("weight", "bias", "shift"))
    return [(x + y).layer_norm(weight, bias), ((x + shift) + y).layer_norm(weight, bias)]


# --------------------------------------------------------------------------- norms by channels


def image(g, d):
    """(batch, channels, height, width) with an even number of channels."""
    return some(g, d, "x", (d.size(), d.choice((4, 2, 6)), d.size(1), d.size(1)))


def by_channel(g, d, x, name):
    """One number for each channel, with axes of size 1 after it."""
    return some(g, d, name, x.shape[1:2]).reshape((x.shape[1], *(1,) * (x.rank - 2)))


@fires("group_norm", "group_norm times a weight", "weighted group_norm plus a bias")
def _(g, d):
    x = image(g, d)
    batch, channels, *sizes = x.shape
    parts = x.reshape((batch, 2, channels // 2, *sizes))
    normal = parts.layer_norm(axis=2).reshape(x.shape)
    return normal * by_channel(g, d, x, "weight") + by_channel(g, d, x, "bias")


@fires("group_norm plus a bias")
def _(g, d):
    x = image(g, d)
    return x.group_norm(num_groups=2) + by_channel(g, d, x, "bias")


@fires("instance_norm", "weighted instance_norm plus a bias")
def _(g, d):
    x = image(g, d)
    normal = x.layer_norm(axis=2)
    return normal * by_channel(g, d, x, "weight") + by_channel(g, d, x, "bias")


@fires("instance_norm times a weight", "instance_norm plus a bias")
def _(g, d):
    x = image(g, d)
    normal = x.instance_norm()
    return [normal * by_channel(g, d, x, "weight"), normal + by_channel(g, d, x, "bias")]


@fires("group_norm_silu", "group_norm_silu with weight and bias")
def _(g, d):
    x = image(g, d)
    weight, bias = (some(g, d, name, x.shape[1:2]) for name in ("weight", "bias"))
    return [x.group_norm(num_groups=2).silu(), x.group_norm(weight, bias, 2).silu()]


@fires("batch_norm", "batch_norm times a weight", "weighted batch_norm plus a bias")
def _(g, d):
    x = image(g, d)
    mean, var = by_channel(g, d, x, "mean"), by_channel(g, d, x, "var").square()
    normal = (x - mean) / (var + 1e-5).sqrt()
    return normal * by_channel(g, d, x, "weight") + by_channel(g, d, x, "bias")


@fires("batch_norm, scale reshaped")
def _(g, d):
    x = image(g, d)
    var = some(g, d, "var", x.shape[1:2]).square()
    scale = (var + 1e-5).rsqrt().reshape((x.shape[1], 1, 1))
    return (x - by_channel(g, d, x, "mean")) * scale


@fires("batch_norm plus a bias")
def _(g, d):
    x = image(g, d)
    mean, var = (some(g, d, name, x.shape[1:2]) for name in ("mean", "var"))
    return x.batch_norm(mean, var.square()) + by_channel(g, d, x, "bias")


@fires("batch_norm as scale and shift")
def _(g, d):
    x = image(g, d)
    mean, var, weight, bias = (
        some(g, d, name, x.shape[1:2]) for name in ("mean", "var", "weight", "bias")
    )
    scale = weight * (var.square() + 1e-5).rsqrt()
    shape = (x.shape[1], 1, 1)
    return x * scale.reshape(shape) + (bias - mean * scale).reshape(shape)


@fires("batch_norm as scale and shift of rows")
def _(g, d):
    x = some(g, d, "x", d.matrix())
    mean, var, weight, bias = (
        some(g, d, name, x.shape[1:]) for name in ("mean", "var", "weight", "bias")
    )
    scale = weight * (var.square() + 1e-5).rsqrt()
    return x * scale + (bias - mean * scale)


@fires("l2_normalize")
def _(g, d):
    x = some(g, d, shape=d.shape(1))
    return x * x.square().sum(d.axis(x.rank), keepdims=True).maximum(1e-6).rsqrt()


@fires("l2_normalize by maximum", "l2_normalize by clip")
def _(g, d):
    x = some(g, d, shape=d.shape(1))
    length = x.square().sum(-1, keepdims=True).sqrt()
    return [x / length.maximum(1e-3), x / length.clip(1e-3)]


# --------------------------------------------------------------------------- losses of classes


def classes(g, d, kind=None):
    """Scores of (rows, classes) and a class number for each row."""
    shape = (d.size(1), d.size(1))
    scores = some(g, d, "x", shape)
    return scores, g.input("labels", shape[:1], kind or d.choice(("u32", "i32")))


def picked(scores, labels):
    return scores.take_along_axis(labels.reshape((*labels.shape, 1)), -1).reshape(labels.shape)


@fires("nll_loss of each row", "cross_entropy_loss of class numbers", "nll_loss, mean")
def _(g, d):
    scores, labels = classes(g, d)
    return -picked(scores.log_softmax(), labels).mean()


@fires("cross_entropy_loss by logsumexp", "cross_entropy_loss, mean", "cross_entropy_loss, sum")
def _(g, d):
    scores, labels = classes(g, d)
    losses = scores.logsumexp(-1) - picked(scores, labels)
    return [losses.mean(), losses.sum()]


@fires("cross_entropy_loss by logsumexp, reshaped")
def _(g, d):
    scores, labels = classes(g, d)
    total = scores.logsumexp(-1, keepdims=True)
    return total.reshape(labels.shape) - picked(scores, labels)


@fires("cross_entropy_loss of each row")
def _(g, d):
    return g.softmax_cross_entropy_with_logits(*classes(g, d)).mean()


@fires("nll_loss, sum")
def _(g, d):
    return g.nll_loss(*classes(g, d), reduction="none").sum()


def ignoring(g, d):
    """Scores, class numbers, which of them count, and those with a class in place of the others."""
    count = d.size()
    scores, labels = some(g, d, "x", (count, 5)), g.input("labels", (count,), "u32")
    kept = labels.ne(d.choice((1, 4)))
    return scores, labels, kept, g.where(kept, labels, g.constant(0, dtype="u32"))


@fires("nll_loss of labels not ignored", "mean nll_loss of labels not ignored")
def _(g, d):
    scores, _, kept, inside = ignoring(g, d)
    losses = g.where(kept, scores.nll_loss(inside, reduction="none"), 0.0)
    return losses.sum() / kept.cast(scores.dtype).sum()


@fires("nll_loss of labels not ignored, negated")
def _(g, d):
    scores, _, kept, inside = ignoring(g, d)
    return g.where(kept, picked(scores, inside), 0.0)


@fires("cross_entropy_loss of labels not ignored", "mean cross_entropy_loss of labels not ignored")
def _(g, d):
    scores, _, kept, inside = ignoring(g, d)
    losses = g.where(kept, scores.logsumexp(-1) - picked(scores, inside), 0.0)
    return losses.sum() / kept.cast(scores.dtype).sum()


@fires("cross_entropy_loss of weights")
def _(g, d):
    x, y = two(g, d, 1)
    return -(y * x.log_softmax()).sum(-1)


@fires("sum of cross_entropy_loss of weights", "mean of negated cross_entropy_loss of weights")
def _(g, d):
    x, y = pair(g, d, 2)
    rows = math.prod(x.shape[:-1])
    return (y * x.log_softmax()).sum() * (1 / max(rows, 1))


@fires("mean of cross_entropy_loss of weights")
def _(g, d):
    x, y = pair(g, d, 2)
    total = x.cross_entropy_loss(y, reduction="sum").reshape(())
    return total / float(max(math.prod(x.shape[:-1]), 1))


# --------------------------------------------------------------------------- losses of elements


@fires("mse_loss", "mse_loss, sum")
def _(g, d):
    x, y = two(g, d, 1)
    return [(x - y).square().mean(), (x - y).square().sum()]


@fires("l1_loss", "l1_loss, sum")
def _(g, d):
    x, y = two(g, d, 1)
    return [(x - y).abs().mean(), (x - y).abs().sum()]


@fires("bce_with_logits_loss", "bce_with_logits_loss, mean")
def _(g, d):
    x, y = two(g, d, 1)
    return ((x.maximum(0.0) - x * y) + (-x.abs()).exp().log1p()).mean()


@fires("bce_with_logits_loss by softplus", "bce_with_logits_loss, sum")
def _(g, d):
    x, y = two(g, d, 1)
    return (x.softplus() - x * y).sum()


@fires("bce_with_logits_loss by log_sigmoid")
def _(g, d):
    x, y = two(g, d)
    return -(y * x.log_sigmoid() + (1.0 - y) * (-x).log_sigmoid())


@fires("bce_with_logits_loss by two of log_sigmoid")
def _(g, d):
    x, y = two(g, d)
    return -(y * x.log_sigmoid()) - (1.0 - y) * (-x).log_sigmoid()


@fires("bce_with_logits_loss by log_sigmoid and logits")
def _(g, d):
    x, y = two(g, d)
    return (1.0 - y) * x - x.log_sigmoid()
