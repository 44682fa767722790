"""Every name that Meganeura's and RLX's documents promise, under its own spelling.

``tests/seed_names.txt`` is the list. Each builder in scope is called here positionally, as its documents call it,
beside the same computation in darner's own words (or in NumPy); both run and must agree.
"""

from pathlib import Path

import numpy as np
import pytest

import darner
from darner import DType, Graph, Shape
from darner.graph.op import OPS, unregister
from tests.gpu import needs_gpu

NAMES = Path(__file__).parents[1].joinpath("seed_names.txt").read_text().split()


class Desk:
    """A graph with made-up inputs, and the arrays behind them."""

    def __init__(self):
        self.graph = Graph("seed")
        self.values = {}
        self.rng = np.random.default_rng(7)

    def f32(self, *shape, low=-2.0, high=2.0):
        return self._add(self.rng.uniform(low, high, shape).astype(np.float32))

    def u32(self, *shape, high):
        return self._add(self.rng.integers(0, high, shape).astype(np.uint32))

    def c64(self, *shape):
        parts = self.rng.uniform(-2, 2, (2, *shape))
        return self._add((parts[0] + 1j * parts[1]).astype(np.complex64))

    def u8(self, *shape, high):
        return self._add(self.rng.integers(0, high, shape).astype(np.uint8))

    def i8(self, *shape):
        return self._add(self.rng.integers(-128, 128, shape).astype(np.int8))

    def i32(self, *shape, high):
        return self._add(self.rng.integers(-high, high, shape).astype(np.int32))

    def _add(self, array):
        name = f"v{len(self.values)}"
        self.values[name] = array
        return self.graph.input(name, array.shape, array.dtype)

    def run(self, *nodes, device=None):
        """The values of nodes: the reference's, or those of a session on a device."""
        self.graph.set_outputs(list(nodes))
        if device is None:
            return darner.run(self.graph, self.values)
        options = {"device": device, "threads": 1, "progress": False}
        with darner.build_inference_session(self.graph, **options) as session:
            return list(session.run(self.values).values())


BUILDERS = {}


def row(function):
    """Declare a row: the seed's call, and the same thing said otherwise."""
    BUILDERS[function.__name__.removesuffix("__")] = function
    return function


for unary in ("abs", "relu", "sigmoid", "silu", "gelu", "gelu_approx", "neg", "tanh", "exp"):
    BUILDERS[unary] = lambda d, n=unary: (
        getattr(d.graph, n)(x := d.f32(3, 5)),
        getattr(x, n)(),
    )
for unary in ("log", "recip", "sqrt"):
    BUILDERS[unary] = lambda d, n=unary: (
        getattr(d.graph, n)(x := d.f32(3, 5, low=0.5)),
        getattr(x, n)(),
    )


@row
def add(d):
    a, b = d.f32(3, 4), d.f32(3, 4)
    return d.graph.add(a, b), a + b


@row
def sub(d):
    a, b = d.f32(3, 4), d.f32(3, 4)
    return d.graph.sub(a, b), a - b


@row
def mul(d):
    a, b = d.f32(3, 4), d.f32(3, 4)
    return d.graph.mul(a, b), a * b


@row
def div(d):
    a, b = d.f32(3, 4), d.f32(3, 4, low=1)
    return d.graph.div(a, b), a / b


@row
def greater(d):
    a, b = d.f32(3, 4), d.f32(3, 4)
    return d.graph.greater(a, b), (a > b).where(1.0, 0.0)


@row
def eq(d):
    a = d.f32(3, 4)
    return d.graph.eq(a, a), a == a


@row
def lt(d):
    a, b = d.f32(3, 4), d.f32(3, 4)
    return d.graph.lt(a, b), a < b


@row
def binary(d):
    a, b = d.f32(3, 4), d.f32(4, low=0.5)
    shape = Shape.new([3, 4], DType.F32)
    return [
        (d.graph.binary("Add", a, b, shape), a + b),
        (d.graph.binary("sub", a, b, shape), a - b),
        (d.graph.binary("Mul", a, b, shape), a * b),
        (d.graph.binary("Div", a, b, shape), a / b),
        (d.graph.binary("Max", a, b, shape), a.maximum(b)),
        (d.graph.binary("Min", a, b, shape), a.minimum(b)),
        (d.graph.binary("Pow", b, a, shape), b**a),
        (d.graph.binary(darner.BinaryOp.Add, a, b, shape), b + a),
    ]


@row
def activation(d):
    x = d.f32(3, 4, low=0.1)
    shape = Shape.new([3, 4], DType.F32)
    kinds = (
        "Gelu GeluApprox Silu Relu Sigmoid Tanh Exp Log Sqrt Rsqrt Neg Abs Sin Cos Tan Atan Round"
    )
    names = (
        "gelu gelu_approx silu relu sigmoid tanh exp log sqrt rsqrt neg abs sin cos tan atan round"
    )
    return [
        (d.graph.activation(getattr(darner.Activation, kind), x, shape), getattr(x, name)())
        for kind, name in zip(kinds.split(), names.split(), strict=True)
    ]


@row
def cast(d):
    x = d.f32(3)
    return d.graph.cast(x, DType.I32), x.trunc().cast("i32")


@row
def input__(d):
    x = d.graph.input("hidden", Shape.new([2, 3], DType.F32))
    d.values["hidden"] = np.ones((2, 3), np.float32)
    return x, d.graph.ones((2, 3))


@row
def input_u32(d):
    x = d.graph.input_u32("tokens", [4])
    d.values["tokens"] = np.arange(4, dtype=np.uint32)
    return x, d.graph.constant(np.arange(4, dtype=np.uint32))


@row
def parameter(d):
    d.graph.parameter("fc.weight", [784, 128])
    assert d.graph.parameters["fc.weight"].shape == (784, 128)
    return []


@row
def param(d):
    d.graph.param("qkv_weight", Shape.new([384, 1152], DType.F32))
    assert d.graph.parameters["qkv_weight"].type == Shape.new([384, 1152])
    return []


@row
def constant(d):
    c = d.graph.constant([1.0, 2.0, 3.0, 4.0], [2, 2])
    return c, d.graph.constant(np.array([[1, 2], [3, 4]], np.float32))


@row
def scalar(d):
    one = d.graph.scalar(1.0)
    assert one.shape == (1,)
    return one, d.graph.ones((1,))


@row
def matmul(d):
    a, b = d.f32(3, 4), d.f32(4, 5)
    return [
        (d.graph.matmul(a, b), a @ b),
        (d.graph.matmul(a, b, Shape.new([3, 5], DType.F32)), a @ b),
    ]


@row
def mm(d):
    a, b = d.f32(3, 4), d.f32(4, 5)
    return d.graph.mm(a, b), a @ b


@row
def matmul_at(d):
    a, b = d.f32(4, 3), d.f32(4, 5)
    return d.graph.matmul_at(a, b), a.T @ b


@row
def matmul_bt(d):
    a, b = d.f32(3, 4), d.f32(5, 4)
    return d.graph.matmul_bt(a, b), a @ b.T


@row
def transpose(d):
    x = d.f32(4, 8)
    return d.graph.transpose(x), x.T


@row
def transpose_(d):
    x = d.f32(2, 3, 4)
    return d.graph.transpose_(x, [2, 0, 1]), x.transpose((2, 0, 1))


@row
def bias_add(d):
    a, b = d.f32(3, 4), d.f32(4)
    return d.graph.bias_add(a, b), a + b


@row
def broadcast_add(d):
    a, b = d.f32(3, 4), d.f32(1, 4)
    return d.graph.broadcast_add(a, b), a + b


@row
def swiglu(d):
    gate, up = d.f32(3, 4), d.f32(3, 4)
    return d.graph.swiglu(gate, up), gate.silu() * up


@row
def swiglu_concat(d):
    x = d.f32(3, 8)
    return d.graph.swiglu_concat(x), x[:, :4].silu() * x[:, 4:]


@row
def sum_all(d):
    x = d.f32(3, 4)
    return d.graph.sum_all(x), x.sum().reshape((1,))


@row
def mean_all(d):
    x = d.f32(3, 4)
    return d.graph.mean_all(x), x.mean().reshape((1,))


@row
def sum__(d):
    x = d.f32(2, 3, 4)
    return d.graph.sum(x, [0, 2], True), x.sum((0, 2), keepdims=True)


@row
def mean(d):
    x = d.f32(2, 3, 4)
    return d.graph.mean(x, [1], False), x.sum(1) / 3.0


@row
def reduce(d):
    x = d.f32(2, 3, 4)
    shape = Shape.new([2, 1, 4], DType.F32)
    return [
        (
            d.graph.reduce(x, getattr(darner.ReduceOp, kind), [1], True, shape),
            getattr(x, kind.lower())(1, keepdims=True),
        )
        for kind in ("Sum", "Mean", "Max", "Min", "Prod")
    ]


@row
def softmax(d):
    x = d.f32(2, 3, 4)
    e = (x - x.max(1, keepdims=True)).exp()
    return [
        (d.graph.softmax(x), x.softmax(axis=-1)),
        (d.graph.softmax(x, 1, Shape.new([2, 3, 4], DType.F32)), e / e.sum(1, keepdims=True)),
    ]


@row
def sm(d):
    x = d.f32(3, 4)
    return d.graph.sm(x, 0), x.softmax(axis=0)


@row
def log_softmax(d):
    x = d.f32(3, 4)
    return d.graph.log_softmax(x), x.softmax().log()


@row
def cumsum(d):
    x = d.f32(3, 4)
    shape = Shape.new([3, 4], DType.F32)
    return [
        (d.graph.cumsum(x, 1, False, shape), x @ d.graph.ones((4, 4)).triu()),
        (d.graph.cumsum(x, -1, True, shape), x @ d.graph.ones((4, 4)).triu(1)),
    ]


@row
def sample(d):
    logits = d.f32(3, 16)
    drawn = d.graph.sample(logits, 1, 1.0, 0.7, 42, [3])
    return drawn, logits.argmax(-1)


@row
def embedding(d):
    tokens, table = d.u32(5, high=7), d.f32(7, 3)
    return d.graph.embedding(tokens, table), table.gather(tokens)


@row
def scatter_add(d):
    tokens, src = d.u32(5, high=7), d.f32(5, 3)
    return d.graph.scatter_add(tokens, src, 7), tokens.one_hot(7).T @ src


@row
def gather(d):
    table, index = d.f32(2, 7, 3), d.u32(5, high=7)
    return d.graph.gather(table, index, 1, Shape.new([2, 5, 3])), table.take(index, 1)


@row
def gather_(d):
    table, index = d.f32(7, 3), d.u32(5, high=7)
    return d.graph.gather_(table, index, 0), table.gather(index)


@row
def reshape(d):
    x = d.f32(2, 6)
    return [
        (d.graph.reshape(x, [3, -1], Shape.new([3, 4])), x.reshape((3, 4))),
        (d.graph.reshape(x, [12]), x.flatten()),
    ]


@row
def reshape_(d):
    x = d.f32(2, 6)
    return d.graph.reshape_(x, [-1]), x.flatten()


@row
def narrow_(d):
    x = d.f32(4, 6)
    return d.graph.narrow_(x, 1, 2, 3), x[:, 2:5]


@row
def concat(d):
    a, b = d.f32(2 * 3 * 5), d.f32(2 * 4 * 5)
    joined = d.graph.concat([a.reshape((2, 3, 5)), b.reshape((2, 4, 5))], 1, Shape.new([2, 7, 5]))
    return d.graph.concat(a, b, 2, 3, 4, 5), joined.flatten()


@row
def concat_(d):
    a, b = d.f32(2, 3), d.f32(2, 4)
    return d.graph.concat_([a, b], 1), d.graph.concat([a, b], -1)


@row
def split_a(d):
    x = d.f32(2 * 7 * 5)
    return d.graph.split_a(x, 2, 3, 4, 5), x.reshape((2, 7, 5))[:, :3].flatten()


@row
def split_b(d):
    x = d.f32(2 * 7 * 5)
    return d.graph.split_b(x, 2, 3, 4, 5), x.reshape((2, 7, 5))[:, 3:].flatten()


@row
def upsample_2x(d):
    x = d.f32(2 * 3 * 4 * 5)
    wide = x.reshape((2, 3, 4, 5)).repeat(2, 2).repeat(2, 3)
    return d.graph.upsample_2x(x, 2, 3, 4, 5), wide.flatten()


@row
def conv2d(d):
    x, k = d.f32(2 * 3 * 6 * 5), d.f32(4 * 3 * 3 * 3)
    x4, k4 = x.reshape((2, 3, 6, 5)), k.reshape((4, 3, 3, 3))
    whole = x4.conv(k4, stride=2, padding=1)
    return [
        (d.graph.conv2d(x, k, 2, 3, 6, 5, 4, 3, 3, 2, 1), whole.flatten()),
        (d.graph.conv2d(x4, k4, [3, 3], [2, 2], [1, 1], [1, 1], 1), whole),
        (d.graph.conv2d(x4, k4, stride=2, padding=1), whole),
    ]


@row
def conv_transpose2d(d):
    x, w = d.f32(2, 3, 4, 4), d.f32(3, 2, 3, 3)
    found = d.graph.conv_transpose2d(x, w, [3, 3], [2, 2], [1, 1], [1, 1], [1, 1], 1)
    assert found.shape == (2, 2, 8, 8)
    return found, x.conv_input_grad(w, sizes=(8, 8), stride=2, padding=1)


@row
def conv2d_backward_input(d):
    dy, w = d.f32(2, 4, 3, 3), d.f32(4, 3, 3, 3)
    shape = Shape.new([2, 3, 6, 6])
    found = d.graph.conv2d_backward_input(dy, w, shape, [3, 3], [2, 2], [1, 1], [1, 1], 1)
    return found, dy.conv_input_grad(w, sizes=(6, 6), stride=2, padding=1)


@row
def conv2d_backward_weight(d):
    x, dy = d.f32(2, 3, 6, 6), d.f32(2, 4, 3, 3)
    shape = Shape.new([4, 3, 3, 3])
    found = d.graph.conv2d_backward_weight(x, dy, shape, [3, 3], [2, 2], [1, 1], [1, 1], 1)
    return found, x.conv_weight_grad(dy, kernel=(3, 3), stride=2, padding=1)


@row
def selective_scan(d):
    x, delta = d.f32(2, 3, 4), d.f32(2, 3, 4, low=0.1, high=1.0)
    a, b, c = d.f32(4, 5, low=-2.0, high=0.0), d.f32(2, 3, 5), d.f32(2, 3, 5)
    state, rows = d.graph.zeros((2, 4, 5)), []
    for t in range(3):
        pace, drive = delta[:, t].unsqueeze(-1), (delta * x)[:, t].unsqueeze(-1)
        state = (pace * a).exp() * state + drive * b[:, t].unsqueeze(1)
        rows.append((state * c[:, t].unsqueeze(1)).sum(-1))
    shape = Shape.new([2, 3, 4])
    return d.graph.selective_scan(x, delta, a, b, c, 5, shape), d.graph.stack(rows, 1)


def delta_rule(d, state=None):
    """Operands of the gated delta rule, and the results and the state of a loop over them."""
    q, k, v = d.f32(2, 3, 4, 5), d.f32(2, 3, 4, 5, low=-0.5, high=0.5), d.f32(2, 3, 4, 5)
    g, beta = d.f32(2, 3, 4, low=-1.0, high=0.0), d.f32(2, 3, 4, low=0.0, high=1.0)
    matrix, rows = d.graph.zeros((2, 4, 5, 5)) if state is None else state, []
    for t in range(3):
        matrix = matrix * g[:, t].exp().unsqueeze(-1).unsqueeze(-1)
        known = (matrix * k[:, t].unsqueeze(-1)).sum(2)
        written = (v[:, t] - known) * beta[:, t].unsqueeze(-1)
        matrix = matrix + k[:, t].unsqueeze(-1) * written.unsqueeze(2)
        rows.append((matrix * q[:, t].unsqueeze(-1)).sum(2) / 5**0.5)
    return (q, k, v, g, beta), d.graph.stack(rows, 1), matrix


@row
def gated_delta_net(d):
    operands, wanted, _ = delta_rule(d)
    return d.graph.gated_delta_net(*operands, 5, Shape.new([2, 3, 4, 5])), wanted


@row
def gated_delta_net_carry(d):
    state = d.f32(2, 4, 5, 5)
    operands, wanted, final = delta_rule(d, state)
    shape = Shape.new([2, 3, 4, 5])
    o, after = d.graph.gated_delta_net_carry(*operands, state, 5, shape, return_state=True)
    return [(o, wanted), (after, final)]


@row
def maxpool2d_backward(d):
    x, dy = d.f32(2, 3, 4, 4), d.f32(2, 3, 2, 2)
    found = d.graph.maxpool2d_backward(x, dy, [2, 2], [2, 2], [0, 0])
    wide = dy.repeat(2, 2).repeat(2, 3)
    highest = x.max_pool((2, 2)).repeat(2, 2).repeat(2, 3)
    return found, (x == highest).where(wide, 0.0)


def losses(d):
    return d.f32(4, 5), d.f32(4, 5, low=0.1, high=0.9)


@row
def cross_entropy_loss(d):
    logits, labels = losses(d)
    own = -(labels * logits.log_softmax()).sum() / 4.0
    return d.graph.cross_entropy_loss(logits, labels), own.reshape((1,))


@row
def bce_loss(d):
    _, p = losses(d)
    t = d.f32(4, 5, low=0, high=1)
    own = -(t * p.log() + (1.0 - t) * (1.0 - p).log()).mean()
    return d.graph.bce_loss(p, t), own.reshape((1,))


@row
def mse_loss(d):
    a, b = losses(d)
    return d.graph.mse_loss(a, b), ((a - b) ** 2.0).mean().reshape((1,))


@row
def l1_loss(d):
    a, b = losses(d)
    return d.graph.l1_loss(a, b), abs(a - b).mean().reshape((1,))


@row
def softmax_cross_entropy_with_logits(d):
    logits = d.f32(4, 5)
    labels = d.graph.constant([0.0, 2.0, 4.0, 1.0])
    hot = labels.cast("i32").one_hot(5)
    own = -(hot * logits.log_softmax()).sum(-1)
    return d.graph.softmax_cross_entropy_with_logits(logits, labels), own


@row
def softmax_cross_entropy_backward(d):
    logits, d_loss = d.f32(4, 5), d.f32(4)
    labels = d.graph.constant([0.0, 2.0, 4.0, 1.0])
    own = (logits.softmax() - labels.cast("i32").one_hot(5)) * d_loss.unsqueeze(1)
    return d.graph.softmax_cross_entropy_backward(logits, labels, d_loss), own


@row
def rms_norm(d):
    x, w, b = d.f32(3, 8), d.f32(8), d.f32(8)
    own = x * ((x * x).mean(-1, keepdims=True) + 1e-5).rsqrt() * w
    return [
        (d.graph.rms_norm(x, w, 1e-5), own),
        (d.graph.rms_norm(x, w, b, 1e-5), own + b),
    ]


def normalised(x, axis=-1):
    centred = x - x.mean(axis, keepdims=True)
    return centred * ((centred * centred).mean(axis, keepdims=True) + 1e-5).rsqrt()


@row
def layer_norm(d):
    x, w, b = d.f32(3, 8), d.f32(8), d.f32(8)
    own = normalised(x) * w + b
    return [
        (d.graph.layer_norm(x, w, b, 1e-5), own),
        (d.graph.layer_norm(x, w, b, -1, 1e-5, Shape.new([3, 8])), own),
    ]


@row
def ln(d):
    x, w, b = d.f32(3, 8), d.f32(8), d.f32(8)
    return d.graph.ln(x, w, b, 1e-5), normalised(x) * w + b


@row
def layer_norm2d(d):
    x, w, b = d.f32(2, 8, 3, 3), d.f32(8), d.f32(8)
    own = normalised(x, 1) * w.reshape((8, 1, 1)) + b.reshape((8, 1, 1))
    return d.graph.layer_norm2d(x, w, b, 1e-5), own


@row
def group_norm(d):
    x, w, b = d.f32(2, 8, 3, 3), d.f32(8), d.f32(8)
    own = normalised(x.reshape((2, 4, 18))).reshape((2, 8, 3, 3))
    own = own * w.reshape((8, 1, 1)) + b.reshape((8, 1, 1))
    return [
        (d.graph.group_norm(x, w, b, 4, 1e-5), own),
        (d.graph.group_norm(x.flatten(), w, b, 2, 8, 9, 4, 1e-5), own.flatten()),
    ]


@row
def fused_residual_ln(d):
    x, r, c, w, b = d.f32(3, 8), d.f32(3, 8), d.f32(8), d.f32(8), d.f32(8)
    shape = Shape.new([3, 8])
    return [
        (d.graph.fused_residual_ln(x, r, c, w, b, 1e-5, shape), normalised(x + r + c) * w + b),
        (d.graph.fused_residual_ln(x, r, None, w, b, 1e-5, shape), normalised(x + r) * w + b),
    ]


@row
def fused_residual_rms_norm(d):
    x, r, c, w, b = d.f32(3, 8), d.f32(3, 8), d.f32(8), d.f32(8), d.f32(8)
    found = d.graph.fused_residual_rms_norm(x, r, c, w, b, 1e-5, Shape.new([3, 8]))
    return found, (x + r + c).rms_norm(w, b, 1e-5)


@row
def layer_norm_backward_input(d):
    x, w, dy = d.f32(3, 8), d.f32(8), d.f32(3, 8)
    hat, g = normalised(x), dy * w
    centred = x - x.mean(-1, keepdims=True)
    scale = ((centred * centred).mean(-1, keepdims=True) + 1e-5).rsqrt()
    own = scale * (g - g.mean(-1, keepdims=True) - hat * (g * hat).mean(-1, keepdims=True))
    return d.graph.layer_norm_backward_input(x, w, dy, -1, 1e-5), own


@row
def layer_norm_backward_gamma(d):
    x, dy = d.f32(3, 8), d.f32(3, 8)
    found = d.graph.layer_norm_backward_gamma(x, dy, Shape.new([8]), -1, 1e-5)
    return found, (dy * normalised(x)).sum(0)


def rms_parts(d):
    x, w, b, dy = d.f32(3, 8), d.f32(8), d.f32(8), d.f32(3, 8)
    return x, w, b, dy, ((x * x).mean(-1, keepdims=True) + 1e-5).rsqrt()


@row
def rms_norm_backward_input(d):
    x, w, b, dy, r = rms_parts(d)
    g = dy * w
    own = r * (g - x * r * r * (g * x).mean(-1, keepdims=True))
    return d.graph.rms_norm_backward_input(x, w, b, dy, -1, 1e-5), own


@row
def rms_norm_backward_gamma(d):
    x, w, b, dy, r = rms_parts(d)
    return d.graph.rms_norm_backward_gamma(x, w, b, dy, -1, 1e-5), (dy * x * r).sum(0)


@row
def rms_norm_backward_beta(d):
    x, w, b, dy, _ = rms_parts(d)
    return d.graph.rms_norm_backward_beta(x, w, b, dy, -1, 1e-5), dy.sum(0)


def group_parts(d):
    x, w, b, dy = d.f32(2, 4, 3, 3), d.f32(4), d.f32(4), d.f32(2, 4, 3, 3)
    hat = normalised(x.reshape((2, 2, 18))).reshape((2, 4, 3, 3))
    return x, w, b, dy, hat


@row
def group_norm_backward_input(d):
    x, w, b, dy, hat = group_parts(d)
    flat = x.reshape((2, 2, 18))
    centred = flat - flat.mean(-1, keepdims=True)
    scale = ((centred * centred).mean(-1, keepdims=True) + 1e-5).rsqrt()
    g = (dy * w.reshape((4, 1, 1))).reshape((2, 2, 18))
    hat = hat.reshape((2, 2, 18))
    own = scale * (g - g.mean(-1, keepdims=True) - hat * (g * hat).mean(-1, keepdims=True))
    found = d.graph.group_norm_backward_input(x, w, b, dy, 2, 1e-5)
    return found, own.reshape((2, 4, 3, 3))


@row
def group_norm_backward_gamma(d):
    x, _, _, dy, hat = group_parts(d)
    found = d.graph.group_norm_backward_gamma(x, dy, Shape.new([4]), 2, 1e-5)
    return found, (dy * hat).sum((0, 2, 3))


@row
def group_norm_backward_beta(d):
    x, _, _, dy, _ = group_parts(d)
    found = d.graph.group_norm_backward_beta(x, dy, Shape.new([4]), 2, 1e-5)
    return found, dy.sum((0, 2, 3))


@row
def relu_backward(d):
    x, dy = d.f32(3, 4), d.f32(3, 4)
    return d.graph.relu_backward(x, dy), (x > 0.0).where(dy, 0.0)


@row
def activation_backward(d):
    x, dy = d.f32(3, 4), d.f32(3, 4)
    y = x.tanh()
    return d.graph.activation_backward(darner.Activation.Tanh, x, dy), dy * (1.0 - y * y)


@row
def rope_backward(d):
    dy, cos, sin = d.f32(2, 5, 3 * 8), d.f32(5, 4), d.f32(5, 4)
    return d.graph.rope_backward(dy, cos, sin, 8, 8), d.graph.rope(dy, cos, -sin, 8)


@row
def cumsum_backward(d):
    dy = d.f32(3, 4)
    found = d.graph.cumsum_backward(dy, Shape.new([3, 4]), 1, False)
    return found, dy.cumsum(1, reverse=True)


@row
def gather_backward(d):
    dy, index = d.f32(2, 5, 3), d.u32(5, high=7)
    found = d.graph.gather_backward(dy, index, Shape.new([2, 7, 3]), 1)
    return found, index.scatter_add(dy, 7, axis=1)


@row
def rope(d):
    x, cos, sin = d.f32(5, 2 * 8), d.f32(5, 4), d.f32(5, 4)
    a, b = (x.reshape((5, 2, 8))[..., :4], x.reshape((5, 2, 8))[..., 4:])
    c, s = cos.unsqueeze(1), sin.unsqueeze(1)
    turned = d.graph.concat([a * c - b * s, b * c + a * s], -1).reshape((5, 16))
    angles = np.arange(5)[:, None] * 10000.0 ** (-np.arange(4) / 4)
    tables = [d.graph.constant(f(angles).astype(np.float32)) for f in (np.cos, np.sin)]
    return [
        (d.graph.rope(x, cos, sin, 8), turned),
        (d.graph.rope(x, 10000.0, 8), d.graph.rope(x, *tables, 8)),
    ]


@row
def rope_n(d):
    x, cos, sin = d.f32(5, 8), d.f32(5, 4), d.f32(5, 4)
    a, b, rest = x[:, :2], x[:, 2:4], x[:, 4:]
    c, s = cos[:, :2], sin[:, :2]
    own = d.graph.concat([a * c - b * s, b * c + a * s, rest], -1)
    return d.graph.rope_n(x, cos, sin, 8, 4), own


@row
def axial_rope2d(d):
    x = d.f32(1, 6, 2 * 8)
    angles = np.zeros((6, 4))
    for token in range(6):
        tx, ty = token % 3, token // 3
        frequency = 100.0 ** (-4 * np.arange(2) / 8)
        angles[token] = np.concatenate([tx * frequency, ty * frequency])
    c, s = (
        d.graph.constant(f(angles).astype(np.float32)).reshape((6, 1, 4)) for f in (np.cos, np.sin)
    )
    pairs = x.reshape((6, 2, 4, 2))
    a, b = pairs[..., 0], pairs[..., 1]
    own = d.graph.stack([a * c - b * s, b * c + a * s], -1).reshape((1, 6, 16))
    return d.graph.axial_rope2d(x, 3, 2, 8, 2, 100.0, 1), own


def attended(d, q, k, v, visible=None, bias=None, scale=8**-0.5, cap=None):
    """Attention of (batch, heads, length, size) tensors, spelled out."""
    scores = (q @ k.transpose((0, 1, 3, 2))) * scale
    if cap is not None:
        scores = (scores / cap).tanh() * cap
    if bias is not None:
        scores = scores + bias
    if visible is not None:
        scores = d.graph.constant(visible).where(scores, -1e30)
    return scores.softmax() @ v


def heads(x, count):
    length = x.shape[-2]
    return x.reshape((-1, length, count, 8)).transpose((0, 2, 1, 3))


def rows_of(y):
    b, h, s, n = y.shape
    return y.transpose((0, 2, 1, 3)).reshape((b, s, h * n))


def three(d, *lead):
    return [d.f32(*lead, 16) for _ in range(3)]


def rlx(d, **kwargs):
    q, k, v = three(d, 2, 5)
    own = rows_of(attended(d, *(heads(x, 2) for x in (q, k, v)), **kwargs))
    return q, k, v, Shape.new([2, 5, 16]), own


LOWER = np.tril(np.ones((5, 5), bool))
PADDED = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)


def padding_mask(d):
    return d.graph.constant(PADDED.astype(np.float32))


@row
def attention(d):
    q, k, v, shape, own = rlx(d, visible=PADDED[:, None, None, :])
    return d.graph.attention(q, k, v, padding_mask(d), 2, 8, shape), own


@row
def attention_(d):
    q, k, v, _, own = rlx(d, visible=PADDED[:, None, None, :])
    return d.graph.attention_(q, k, v, padding_mask(d), 2, 8), own


@row
def attention_opts(d):
    q, k, v, shape, own = rlx(d, visible=PADDED[:, None, None, :], scale=0.3, cap=5.0)
    return d.graph.attention_opts(q, k, v, padding_mask(d), 2, 8, shape, 0.3, 5.0), own


@row
def attention_kind(d):
    rows = []
    near = LOWER & ~np.tril(LOWER, -3)  # RLX's window of 2 holds three keys
    for kind, visible in (
        (darner.MaskKind.NONE, None),
        (darner.MaskKind.CAUSAL, LOWER),
        (darner.SlidingWindow(2), near),
    ):
        q, k, v, shape, own = rlx(d, visible=visible)
        rows.append((d.graph.attention_kind(q, k, v, 2, 8, kind, shape), own))
    return rows


@row
def attention_kind_opts(d):
    q, k, v, shape, own = rlx(d, visible=LOWER, scale=0.5, cap=3.0)
    kind = darner.MaskKind.CAUSAL
    return d.graph.attention_kind_opts(q, k, v, 2, 8, kind, shape, 0.5, 3.0), own


@row
def attention_bias(d):
    bias = d.f32(2, 2, 5, 5)
    q, k, v, shape, own = rlx(d, bias=bias)
    return d.graph.attention_bias(q, k, v, bias, 2, 8, shape), own


def attention_gradients(d):
    """dQ, dK, dV of causal attention, by the chain rule through its probabilities."""
    q, k, v = three(d, 2, 5)
    dy = d.f32(2, 5, 16)
    hq, hk, hv, hdy = (heads(x, 2) for x in (q, k, v, dy))
    scores = (hq @ hk.transpose((0, 1, 3, 2))) * 8**-0.5
    p = d.graph.constant(LOWER).where(scores, -1e30).softmax()
    dp = hdy @ hv.transpose((0, 1, 3, 2))
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * 8**-0.5
    flip = (0, 1, 3, 2)
    grads = [ds @ hk, ds.transpose(flip) @ hq, p.transpose(flip) @ hdy]
    return (q, k, v, dy), [rows_of(g) for g in grads]


@row
def attention_backward(d):
    args, grads = attention_gradients(d)
    causal = darner.MaskKind.CAUSAL
    return [
        (d.graph.attention_backward(wrt, *args, 2, 8, causal, None), own)
        for wrt, own in zip(darner.AttentionBwdWrt, grads, strict=True)
    ]


@row
def attention_backward_all(d):
    args, grads = attention_gradients(d)
    found = d.graph.attention_backward_all(*args, 2, 8, darner.MaskKind.CAUSAL, None)
    return list(zip(found, grads, strict=True))


@row
def dense_solve(d):
    a = d.f32(4, 4) + d.graph.eye(4) * 6.0
    b, m = d.f32(4), d.f32(4, 2)
    return [
        (a @ d.graph.dense_solve(a, b, Shape.new([4])), b),
        (a @ d.graph.dense_solve(a, m, Shape.new([4, 2])), m),
    ]


@row
def batched_dense_solve(d):
    a = d.f32(3, 4, 4) + d.graph.eye(4) * 6.0
    b = d.f32(3, 4, 2)
    v = d.f32(3, 4)
    return [
        (a @ d.graph.batched_dense_solve(a, b, Shape.new([3, 4, 2])), b),
        ((a @ d.graph.batched_dense_solve(a, v).unsqueeze(-1)).squeeze(-1), v),
    ]


@row
def lora_matmul(d):
    x, w, a, b = d.f32(3, 4), d.f32(4, 5), d.f32(4, 2), d.f32(2, 5)
    return d.graph.lora_matmul(x, w, a, b, 0.5, Shape.new([3, 5])), x @ w + (x @ a @ b) * 0.5


@row
def linear_bias(d):
    x, w, b = d.f32(3, 4), d.f32(4, 5), d.f32(5)
    return [
        (d.graph.linear_bias(x, w, b), x @ w + b),
        (d.graph.linear_bias(x, w, None), x @ w),
    ]


@row
def linear_bias_act(d):
    x, w, b = d.f32(3, 4), d.f32(4, 5), d.f32(5)
    return d.graph.linear_bias_act(x, w, b, darner.Activation.Gelu), (x @ w + b).gelu()


@row
def linear_fused(d):
    x, w, b = d.f32(3, 4), d.f32(4, 5), d.f32(5)
    found = d.graph.linear_fused(x, w, b, darner.Activation.Silu, Shape.new([3, 5]))
    return found, (x @ w + b).silu()


@row
def fused_matmul_bias_act(d):
    x, w, b = d.f32(3, 4), d.f32(4, 5), d.f32(5)
    found = d.graph.fused_matmul_bias_act(x, w, b, None, Shape.new([3, 5]))
    return found, x @ w + b


@row
def shared_matmul_pair(d):
    x, w1, w2 = d.f32(3, 4), d.f32(4, 5), d.f32(4, 6)
    first, second = d.graph.shared_matmul_pair(x, w1, w2)
    return [(first, x @ w1), (second, x @ w2)]


def ffn(d):
    x, up, gate, down = d.f32(3, 4), d.f32(4, 6), d.f32(4, 6), d.f32(6, 4)
    return (x, up, gate, down), ((x @ up) * (x @ gate).silu()) @ down


@row
def swiglu_ffn(d):
    args, own = ffn(d)
    return d.graph.swiglu_ffn(*args), own


@row
def fused_swiglu_ffn(d):
    args, own = ffn(d)
    return d.graph.fused_swiglu_ffn(*args, Shape.new([3, 4])), own


# Codes of 8 bits.


def coded(x, scale, point):
    return ((x / scale).round() + point).clip(-128.0, 127.0).cast("i8")


def by_channel(values, dtype="f32"):
    return np.array(values, dtype).reshape(1, -1, 1)


@row
def quantize(d):
    x = d.f32(3, 5)
    return d.graph.quantize(x, 0.02, 3), coded(x, 0.02, 3.0)


@row
def quantize_per_channel(d):
    x = d.f32(2, 3, 4)
    own = coded(x, by_channel([0.1, 0.2, 0.3], "f4"), by_channel([0, 1, -5], "f4"))
    return d.graph.quantize_per_channel(x, 1, [0.1, 0.2, 0.3], [0, 1, -5]), own


@row
def dequantize(d):
    q = d.i8(3, 5)
    return d.graph.dequantize(q, 0.02, 3), (q.cast("f32") - 3.0) * 0.02


@row
def dequantize_per_channel(d):
    q = d.i8(2, 3, 4)
    own = (q.cast("f32") - by_channel([0, 1, -5], "f4")) * by_channel([0.1, 0.2, 0.3], "f4")
    return d.graph.dequantize_per_channel(q, 1, [0.1, 0.2, 0.3], [0, 1, -5]), own


@row
def q_matmul(d):
    x, w, bias = d.i8(3, 5), d.i8(5, 4), d.i32(4, high=999)
    sums = (x.cast("f64") - 3.0) @ (w.cast("f64") + 2.0) + bias.cast("f64")
    own = coded(sums.cast("f32") * 0.001, 1.0, 5.0)
    return d.graph.q_matmul(x, w, bias, 3, -2, 5, 0.001, Shape.new([3, 4], DType.I8)), own


@row
def q_conv2d(d):
    x, w, bias = d.i8(1, 4, 5, 6), d.i8(6, 2, 3, 2), d.i32(6, high=999)
    images, kernels = x.cast("f64") - 3.0, w.cast("f64") + 2.0
    sums = images.conv(kernels, stride=(1, 2), padding=(1, 0), dilation=(1, 2), groups=2)
    own = coded((sums + bias.cast("f64").reshape((6, 1, 1))).cast("f32") * 0.001, 1.0, 5.0)
    attrs = [3, 2], [1, 2], [1, 0], [1, 2], 2, 3, -2, 5, 0.001, Shape.new([1, 6, 5, 2], DType.I8)
    return d.graph.q_conv2d(x, w, bias, *attrs), own


# Splats.

SPLATS = {"positions": 6, "scales": 6, "rotations": 8, "opacities": 2, "colors": 6, "sh_coeffs": 0}
CAMERA = ([0.0, 0.0, 3.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0], 60.0, 0.1, 100.0, [0.1, 0.2, 0.3])
SMALL = darner.GaussianSplatRenderParams(6, 4, 4, 1.0)


def splats(d):
    """Two round splats that every pixel sees, one behind the other."""
    low = {"positions": -0.2, "scales": 0.0, "rotations": 0.5, "opacities": 0.3}
    high = {"positions": 0.2, "scales": 0.0, "opacities": 0.9}
    leaves = {
        name: d.f32(size, low=low.get(name, 0.1), high=high.get(name, 0.9))
        for name, size in SPLATS.items()
    }
    meta = d.graph.gaussian_splat_render_meta(*CAMERA, SMALL)
    return darner.GaussianSplatInputs(**leaves, meta=meta)


def covered(d, inputs):
    """What each splat takes of each pixel, by how far from its middle a ray passes: it is round and of size 1."""
    y, x = np.mgrid[:4, :6]
    at = np.stack([x.ravel() - 2.5, 1.5 - y.ravel()], 1) * np.tan(np.pi / 6) / 2
    rays = np.concatenate([at, -np.ones((24, 1))], 1)
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    away = np.array(CAMERA[0], "f4") - inputs.positions.reshape((2, 3))
    along = away @ rays.T.astype("f4")
    squares = (away * away).sum(-1, keepdims=True) - along * along
    return inputs.opacities.reshape((2, 1)) * (squares * -0.5).exp(), (away * away).sum(-1)


def light(d, inputs):
    """The light of each pixel before its gamma, [24, 3], what each splat has of it, and what is let through."""
    alpha, distance = covered(d, inputs)
    is_first = (distance[0] <= distance[1]).where(np.float32(1.0), 0.0)
    before = [1.0 - alpha[1] * (1.0 - is_first), 1.0 - alpha[0] * is_first]
    weights = d.graph.stack([alpha[0] * before[0], alpha[1] * before[1]], 1)
    left = (1.0 - alpha[0]) * (1.0 - alpha[1])
    background = np.array(CAMERA[-1], "f4")
    shown = weights @ inputs.colors.reshape((2, 3)) + left.unsqueeze(1) * background
    return shown, weights, left


def picture(d, inputs):
    shown, _, left = light(d, inputs)
    return d.graph.concat([shown**2.2, 1.0 - left.unsqueeze(1)], 1).flatten()


@row
def gaussian_splat_render(d):
    inputs = splats(d)
    return d.graph.gaussian_splat_render(inputs, SMALL), picture(d, inputs)


@row
def gaussian_splat_render_meta(d):
    own = [*CAMERA[0], *CAMERA[1], *CAMERA[2], 60, 0.1, 100, *CAMERA[-1]]
    own += [64, 64, 16, 1.6, 1 / 255, 32, 0.01, 576]
    params = darner.GaussianSplatRenderParams()
    found = d.graph.gaussian_splat_render_meta(*CAMERA, params)
    return found, d.graph.constant(np.array(own, "f4"))


@row
def gaussian_splat_prepare(d):
    inputs = splats(d)
    packed = d.graph.gaussian_splat_prepare(inputs, SMALL)
    shown = [inputs.colors.reshape((2, 3)), inputs.opacities.reshape((2, 1))]
    own = d.graph.concat([d.graph.concat(shown, 1).flatten(), np.ones(2, "f4")])
    return packed[:10], own


@row
def gaussian_splat_rasterize(d):
    inputs = splats(d)
    packed = d.graph.gaussian_splat_prepare(inputs, SMALL)
    found = d.graph.gaussian_splat_rasterize(packed, inputs.meta, SMALL)
    return found, picture(d, inputs)


@row
def gaussian_splat_render_decomposed(d):
    inputs = splats(d)
    return d.graph.gaussian_splat_render_decomposed(inputs, SMALL), picture(d, inputs)


@row
def gaussian_splat_render_backward(d):
    inputs, sent = splats(d), d.f32(96)
    params = darner.GaussianSplatBackwardParams(SMALL, 0.5)
    packed = d.graph.gaussian_splat_render_backward(inputs, sent, params)
    shown, weights, _ = light(d, inputs)
    cut = sent.clip(-0.5, 0.5).reshape((24, 4))[:, :3]
    own = weights.transpose((1, 0)) @ (cut * 2.2 * shown**1.2)
    return packed[22:28], own.flatten()


# Complex numbers and Fourier transforms; matrices of sines and cosines say what they are.


@row
def conjugate(d):
    z = d.c64(3, 4)
    return d.graph.conjugate(z), d.graph.complex(z.real(), -z.imag())


@row
def complex_norm_sq(d):
    z = d.c64(3, 4)
    return d.graph.complex_norm_sq(z), z.real() ** 2.0 + z.imag() ** 2.0


@row
def complex_norm_sq_backward(d):
    z, g = d.c64(3, 4), d.f32(3, 4)
    return d.graph.complex_norm_sq_backward(z, g), g * z


def turns(n, inverse=False):
    k = np.arange(n)
    return np.exp((2j if inverse else -2j) * np.pi * np.outer(k, k) / n).astype(np.complex64)


def direct(z, inverse=False, scale=1.0):
    """A transform along the last axis, term by term."""
    return (z @ turns(z.shape[-1], inverse)) * scale


def halves(block):
    n = block.shape[-1] // 2
    return block[..., :n], block[..., n:]


def joined(z):
    return z.graph.concat([z.real(), z.imag()], -1)


def directly_real(x, scale=1.0):
    """The whole spectrum of real rows that are padded to 8."""
    wide = x.pad([(0, 0), (0, 8 - x.shape[-1])])
    return direct(wide.cast("c64"), scale=scale)


NORMS = [
    (darner.FftNorm.Backward, 1.0, 1.0),
    (darner.FftNorm.Forward, 1.0, 1 / 8),
    (darner.FftNorm.Ortho, 8**-0.5, 8**-0.5),
]


@row
def fft(d):
    z, x = d.c64(3, 5), d.f32(3, 10)
    made = d.graph.complex(*halves(x))
    return [
        (d.graph.fft(z, False), direct(z)),
        (d.graph.fft(z, True), direct(z, True)),
        (d.graph.fft(d.graph.fft(z, False), True), z * 5.0),
        (d.graph.fft(x, False), joined(direct(made))),
        (d.graph.fft(x, True), joined(direct(made, True))),
    ]


@row
def fft_norm(d):
    z = d.c64(3, 8)
    return [
        pair
        for norm, forward, inverse in NORMS
        for pair in (
            (d.graph.fft_norm(z, False, norm), direct(z, scale=forward)),
            (d.graph.fft_norm(z, True, norm), direct(z, True, inverse)),
        )
    ]


@row
def fft_axis(d):
    z, x = d.c64(3, 5, 2), d.f32(6, 5)
    swapped = z.swapaxes(1, 2)
    return [
        (d.graph.fft_axis(z, 1, True), direct(swapped, True).swapaxes(1, 2)),
        (d.graph.fft_axis(x, 0, False), d.graph.fft(x.T, False).T),
    ]


@row
def fftn(d):
    z = d.c64(3, 5)
    both = direct(direct(z.T).T)
    return [(d.graph.fftn(z, [1, 0], False), both), (d.graph.fftn(z, [], True), z)]


@row
def ifftn(d):
    z = d.c64(3, 5)
    return d.graph.ifftn(d.graph.fftn(z, [0, 1], False), [0, 1]), z * 15.0


@row
def pad_last_axis_to_pow2(d):
    x, y = d.f32(2, 5), d.f32(2, 4)
    assert d.graph.pad_last_axis_to_pow2(y) is y
    return d.graph.pad_last_axis_to_pow2(x), d.graph.concat([x, d.graph.zeros((2, 3))], 1)


@row
def split_spectrum(d):
    x = d.f32(2, 6)
    return list(zip(d.graph.split_spectrum(x), (x[:, :3], x[:, 3:]), strict=True))


@row
def fft_real(d):
    x = d.f32(3, 5)
    return [
        pair
        for norm, forward, _ in NORMS
        for whole in [directly_real(x, forward)]
        for pair in zip(d.graph.fft_real(x, norm), (whole.real(), whole.imag()), strict=True)
    ]


@row
def fft_batch_real(d):
    x = d.f32(3, 5)
    whole = directly_real(x)
    found = d.graph.fft_batch_real(x, darner.FftNorm.Backward)
    return list(zip(found, (whole.real(), whole.imag()), strict=True))


@row
def rfft(d):
    x = d.f32(3, 5)
    half = directly_real(x, 8**-0.5)[:, :5]
    found = d.graph.rfft(x, darner.FftNorm.Ortho)
    return list(zip(found, (half.real(), half.imag()), strict=True))


@row
def irfft(d):
    x = d.f32(3, 5)
    re, im = d.graph.rfft(x, darner.FftNorm.Forward)
    return [
        (d.graph.irfft(re, im, 5, darner.FftNorm.Forward), x),
        (d.graph.irfft(re, im, 5, darner.FftNorm.Backward), x * 8.0),
    ]


@row
def ifft_spectrum(d):
    re, im = d.f32(3, 8), d.f32(3, 8)
    own = direct(d.graph.complex(re, im), True, 1 / 8).real()
    return d.graph.ifft_spectrum(re, im, darner.FftNorm.Forward), own


@row
def psd(d):
    re, im = d.f32(3, 5), d.f32(3, 5)
    return d.graph.psd(re, im), (re**2.0 + im**2.0) / 5.0


@row
def psd_real(d):
    x = d.f32(3, 5)
    half = directly_real(x)[:, :5]
    own = (half.real() ** 2.0 + half.imag() ** 2.0) / 8.0
    return d.graph.psd_real(x, darner.FftNorm.Backward), own


@row
def stft(d):
    x = d.f32(3, 9)
    frames = [directly_real(x[:, first : first + 5])[:, :5] for first in (0, 2, 4)]
    own = d.graph.concat([joined(frame).unsqueeze(0) for frame in frames], 0)
    return d.graph.stft(x, 5, 2, darner.FftNorm.Backward), own


@row
def fft_conv1d(d):
    a, b = d.f32(2, 5), d.f32(2, 3)
    own = sum(a.pad([(0, 0), (k, 2 - k)]) * b[:, k : k + 1] for k in range(3))
    return [(d.graph.fft_conv1d(a, b, 16, norm), own) for norm, _, _ in NORMS]


@row
def fftfreq_tensor(d):
    return d.graph.fftfreq_tensor(6), d.graph.constant(np.array([0, 1, 2, -3, -2, -1]) / 6)


@row
def rfftfreq_tensor(d):
    return d.graph.rfftfreq_tensor(7), d.graph.constant(np.arange(4) / 7)


@row
def dequant_matmul(d):
    x, q, scale, zp = d.f32(3, 5), d.i8(5, 6), d.f32(3, 6), d.f32(3, 6)
    rows = np.array([0, 0, 1, 1, 2], np.int32)
    scheme, shape = darner.QuantScheme.Int8BlockAsym(2), Shape.new([3, 6], DType.F32)
    weights = (q.cast("f32") - zp.take(rows, 0)) * scale.take(rows, 0)
    return d.graph.dequant_matmul(x, q, scale, zp, scheme, shape), x @ weights


@row
def dequant_matmul_packed(d):
    x, codes = d.f32(3, 32), d.u8(4, 34, high=60)
    bits = codes[:, :1].cast("i32") + codes[:, 1:2].cast("i32") * 256
    # An f16 below 1 and above the smallest: its exponent is between.
    mantissa = (bits % 1024).cast("f32") * (1 / 1024) + 1.0
    power = bits.floor_divide(1024)
    subnormal = (bits % 1024).cast("f32") * 2.0**-24
    scale = (power == 0).where(subnormal, mantissa * (power - 15).cast("f32").exp2())
    own = x @ (codes[:, 2:].cast("f32") * scale).T
    shape = Shape.new([3, 4], DType.F32)
    return d.graph.dequant_matmul_packed(x, codes, darner.QuantScheme.GgufQ8_0, shape), own


@row
def dequant_matmul_nvfp4(d):
    x, codes, fine, whole = d.f32(3, 16), d.u8(16, 2, high=256), d.u8(1, 4, high=100), d.f32(1)
    low, high = codes.cast("i32") % 16, codes.cast("i32").floor_divide(16)
    both = d.graph.concat([low.unsqueeze(2), high.unsqueeze(2)], 2).reshape((16, 4))
    halves = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = d.graph.constant(np.concatenate([halves, -halves])).gather(both)
    eighths = fine.cast("i32")
    exact = (eighths.floor_divide(8) - 7).cast("f32").exp2() * (1.0 + (eighths % 8) / 8.0)
    exact = (eighths < 8).where(eighths.cast("f32") * 2.0**-9, exact)
    own = x @ (values * exact * whole)
    return d.graph.dequant_matmul_nvfp4(x, codes, fine, whole, Shape.new([3, 4])), own


# Meganeura's names beyond the list: the rest of the Graph page.


@row
def parameter_f16(d):
    w = d.graph.parameter_f16("w", [4, 5])
    assert w.dtype is DType.F16
    return []


@row
def causal_attention(d):
    q, k, v = d.f32(5, 16), d.f32(5, 8), d.f32(5, 8)
    wide = [heads(x, 1).broadcast_to((1, 2, 5, 8)) for x in (k, v)]
    own = rows_of(attended(d, heads(q, 2), *wide, visible=LOWER)).squeeze(0)
    return d.graph.causal_attention(q, k, v, 2, 1, 8), own


@row
def sliding_window_attention(d):
    q, k, v = three(d, 5)
    near = LOWER & ~np.tril(LOWER, -2)
    own = rows_of(attended(d, *(heads(x, 2) for x in (q, k, v)), visible=near)).squeeze(0)
    return d.graph.sliding_window_attention(q, k, v, 2, 2, 8, 2), own


@row
def full_attention(d):
    q, k, v = three(d, 5)
    own = rows_of(attended(d, *(heads(x, 2) for x in (q, k, v)))).squeeze(0)
    return d.graph.full_attention(q, k, v, 2, 2, 8), own


@row
def cross_attention(d):
    q, (k, v) = d.f32(3, 16), three(d, 5)[:2]
    own = rows_of(attended(d, *(heads(x, 2) for x in (q, k, v)))).squeeze(0)
    return [
        (d.graph.cross_attention(q, k, v, 2, 2, 8), own),
        (d.graph.multi_head_attn(q, k, v, 2, 2, 8, True), own),
    ]


@row
def rope_with_offset(d):
    x = d.f32(7, 8)
    return [
        (d.graph.rope_with_offset(x[3:], 1e4, 3, 8), d.graph.rope(x, 1e4, 8)[3:]),
        (
            d.graph.rope_dynamic_offset(x[3:], 1e4, d.graph.constant([3], dtype="u32"), 8),
            d.graph.rope(x, 1e4, 8)[3:],
        ),
    ]


@row
def sum_rows(d):
    x = d.f32(3, 4)
    return d.graph.sum_rows(x), x.sum(0)


@row
def max_pool_2d(d):
    x = d.f32(2 * 3 * 4 * 4)
    own = x.reshape((2, 3, 2, 2, 2, 2)).max((3, 5))
    return d.graph.max_pool_2d(x, 2, 3, 4, 4, 2, 2, 2, 0), own.flatten()


@row
def global_avg_pool(d):
    x = d.f32(2 * 3 * 16)
    return d.graph.global_avg_pool(x, 2, 3, 16), x.reshape((2, 3, 16)).mean(-1)


@row
def conv2d_hw(d):
    x, k = d.f32(2 * 3 * 6), d.f32(4 * 3 * 3)
    own = x.reshape((2, 3, 1, 6)).conv(k.reshape((4, 3, 1, 3)), padding=((0, 0), (1, 1)))
    return d.graph.conv2d_hw(x, k, 2, 3, 1, 6, 4, 1, 3, 1, 0, 1), own.flatten()


@row
def stop_gradient(d):
    x = d.f32(3)
    return d.graph.stop_gradient(x), x


def body_of(*outputs):
    outputs[0].graph.set_outputs(list(outputs))
    return outputs[0].graph


@row
def custom_fn(d):
    a, b = d.f32(3), d.f32(3)
    body, rule = Graph("body"), Graph("rule")
    product = body.input("p", (3,)) * body.input("q", (3,))
    p, q, _, g = (rule.input(n, (3,)) for n in ("p", "q", "primal_output", "d_output"))
    body_of(product), body_of(g * q, g * p)
    return [
        (d.graph.custom_fn([a, b], body, None, None), a * b),
        (d.graph.custom_fn([a, b], body, rule), a * b),
    ]


@row
def custom_op(d):
    a, b = d.f32(3), d.f32(3)

    def powered(arrays, attrs, out):
        out[...] = arrays[0] * arrays[1] ** attrs[0]

    darner.register_op("seed_powered", 2, lambda types, attrs: types[0], powered)
    return d.graph.custom_op("seed_powered", b"\x03", [a, b]), a * b**3.0


@row
def custom_op_packed(d):
    a = d.f32(2, 3)

    def sums(arrays, attrs, out):
        out[:2], out[2:] = arrays[0].sum(1), arrays[0].sum(0)

    darner.register_op("seed_sums", 1, lambda types, attrs: None, sums)
    packed = d.graph.custom_op_packed("seed_sums", b"", [a], Shape.new([5], DType.F32))
    return [
        (d.graph.narrow_(packed, 0, 0, 2), a.sum(1)),
        (d.graph.narrow_(packed, 0, 2, 3), a.sum(0)),
    ]


@row
def custom_fn_multi(d):
    a, b = d.f32(3), d.f32(2, 3)
    body = Graph("body")
    x, y = body.input("x", (3,)), body.input("y", (2, 3))
    handle = d.graph.custom_fn_multi([a, b], body_of(x + y, y.sum(0)))
    assert handle.n_outputs() == 2
    first, second = handle
    return [
        (handle.output(d.graph, 0), a + b),
        (handle.output(d.graph, 1), b.sum(0)),
        (first, a + b),
        (second, b.sum(0)),
    ]


# Names that are methods of the graph itself, or Python's own words for them; tests/pure/test_graph.py
# and test_module.py call each.
def scan_body(bcasts=0, xs=0):
    """``tanh(h * k + x)`` of a carry, so many constants, and so many steps, each [3]."""
    body = Graph("body")
    h = body.input("h", (3,))
    value = h
    for i in range(bcasts):
        value = value * body.input(f"k{i}", (3,))
    for i in range(xs):
        value = value + body.input(f"x{i}", (3,))
    body.set_outputs([value.tanh()])
    return body


def scan_vjp():
    """The transposed body of ``scan_body(xs=1)``."""
    body = Graph("body_vjp")
    h, x, d = (body.input(name, (3,)) for name in ("h", "x", "d_output"))
    inner = d * (1.0 - (h + x).tanh().square())
    body.set_outputs([inner, inner])
    return body


def scan_steps(h, xs, length, k=None):
    """The carries after each step, written out."""
    found = []
    for t in range(length):
        h = ((h if k is None else h * k) + (xs[t] if xs is not None else 0.0)).tanh()
        found.append(h)
    return found


@row
def scan(d):
    h = d.f32(3)
    return d.graph.scan(h, scan_body(), 4), scan_steps(h, None, 4)[-1]


@row
def scan_with_xs(d):
    h, x = d.f32(3), d.f32(4, 3)
    return d.graph.scan_with_xs(h, [x], scan_body(0, 1), 4), scan_steps(h, x, 4)[-1]


@row
def scan_with_bcasts_and_xs(d):
    h, k, x = d.f32(3), d.f32(3), d.f32(4, 3)
    found = d.graph.scan_with_bcasts_and_xs(h, [k], [x], scan_body(1, 1), 4)
    return found, scan_steps(h, x, 4, k)[-1]


@row
def scan_trajectory(d):
    h = d.f32(3)
    return d.graph.scan_trajectory(h, scan_body(), 4), d.graph.stack(scan_steps(h, None, 4), 0)


@row
def scan_checkpointed(d):
    h = d.f32(3)
    return d.graph.scan_checkpointed(h, scan_body(), 7, 3), scan_steps(h, None, 7)[-1]


def scan_gradients(h, xs, upstream, each):
    """The gradients of the first carry and of each step, written out from the last step to the first."""
    length = len(xs)
    carries = [h, *scan_steps(h, xs, length)]
    given, found = 0.0 if each else upstream, []
    for t in reversed(range(length)):
        given = given + upstream[t] if each else given
        given = given * (1.0 - carries[t + 1].square())
        found.append(given)
    return given, h.graph.stack(found[::-1], 0)


def scan_back(d, each, number, checkpoints=None):
    """A backward scan's operands, and both of its gradients."""
    h, x = d.f32(3), d.f32(7, 3)
    upstream = d.f32(7, 3) if each else d.f32(3)
    carries = scan_steps(h, x, 7)
    if checkpoints:
        carries = [carries[-(-(k + 1) * 7 // checkpoints) - 1] for k in range(checkpoints)]
    trajectory = d.graph.stack(carries, 0)
    wanted = scan_gradients(h, x, upstream, each)[number]
    return [h, trajectory, upstream, [x], scan_vjp(), 7, each], wanted


@row
def scan_backward(d):
    calls = [scan_back(d, each, 0) for each in (True, False)]
    return [
        (d.graph.scan_backward(*args, Shape.new([3], DType.F32)), wanted) for args, wanted in calls
    ]


@row
def scan_backward_xs(d):
    calls = [scan_back(d, each, 1) for each in (True, False)]
    return [
        (d.graph.scan_backward_xs(*args, 0, Shape.new([7, 3], DType.F32)), wanted)
        for args, wanted in calls
    ]


@row
def scan_backward_with_checkpoints(d):
    kinds = [(each, k) for each in (True, False) for k in (1, 2, 3, 5, 6)]
    calls = [(scan_back(d, each, 0, k), k) for each, k in kinds]
    return [
        (
            d.graph.scan_backward_with_checkpoints(
                *args, k, scan_body(0, 1), Shape.new([3], DType.F32)
            ),
            wanted,
        )
        for (args, wanted), k in calls
    ]


@row
def scan_backward_xs_with_checkpoints(d):
    kinds = [(True, 0), (False, 7), (True, 3), (False, 4)]
    calls = [(scan_back(d, each, 1, k), k) for each, k in kinds]
    return [
        (d.graph.scan_backward_xs_with_checkpoints(*args, 0, k, scan_body(0, 1), (7, 3)), wanted)
        for (args, wanted), k in calls
    ]


STRUCTURE = [
    "add_node",
    "append_node",
    "bind",
    "define",
    "dynamic_symbols",
    "from_hir",
    "from_lir",
    "has_dynamic_dims",
    "hir",
    "inspect",
    "inspect_module",
    "is_empty",
    "len",
    "module",
    "new",
    "node",
    "node_mut",
    "nodes",
    "nodes_mut",
    "reverse_topo",
    "set_inputs",
    "set_outputs",
    "shape",
    "to_mir",
    "topo_order",
    "use_count",
    "users",
]

BUILT = [
    "build_inference_session",
    "build_session",
    "build_session_cached",
    "build_session_with_report",
]
METHODS = [
    "load_checkpoint",
    "memory_summary",
    "num_outputs",
    "plan",
    "read_loss",
    "read_output_by_index",
    "read_param",
    "save_checkpoint",
    "set_adam",
    "set_input",
    "set_learning_rate",
    "set_parameter",
    "step",
    "wait",
]
# What names.md asks of sessions beyond the seeds' own list.
MORE_METHODS = [
    "set_input_u32",
    "get_parameter",
    "read_output",
    "sgd_step",
    "adam_step",
    "set_lr_multiplier",
    "clear_lr_multipliers",
    "param_names",
    "param_size",
    "has_param_grad",
    "read_param_grad",
    "read_all_param_norms",
    "read_all_param_grad_norms",
    "dump_grad_summary",
    "set_profiling",
    "trace_dispatches",
]


@pytest.mark.parametrize("name", BUILT)
def test_names_of_builders_of_sessions_exist(name):
    assert callable(getattr(darner, name))


@pytest.mark.parametrize("name", METHODS + MORE_METHODS)
def test_names_of_methods_of_sessions_exist(name):
    assert callable(getattr(darner.Session, name))


def test_values_of_sessions_exist():
    assert darner.ExecutionPlan is darner.Plan
    summary = darner.MemorySummary(12_300_000, 8_200_000, 4, 4_100_000)
    assert str(summary) == "4 buffers, 12.3 MB total (8.2 MB adam state), largest 4.1 MB"
    assert darner.SessionConfig().mode == "train"


def test_the_list_is_covered_with_nothing_left_over():
    in_scope = BUILDERS.keys() | set(STRUCTURE) | set(BUILT) | set(METHODS)
    assert sorted(set(NAMES) - in_scope) == []
    assert sorted(set(STRUCTURE) - set(NAMES)) == []


@pytest.mark.parametrize("name", sorted(set(STRUCTURE)))
def test_structural_names_exist(name):
    assert callable(getattr(Graph(), name))


@pytest.fixture
def forgotten():
    """Ops that a test registers are not known after it."""
    before = set(OPS)
    yield
    for name in set(OPS) - before:
        unregister(name)


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_seed_spelling_means_what_it_says(name):
    desk = Desk()
    rows = BUILDERS[name](desk)
    pairs = rows if isinstance(rows, list) else [rows]
    if not pairs:
        return  # a leaf: the row itself asserted its type
    desk.graph.verify()
    flat = [node for pair in pairs for node in pair]
    results = desk.run(*flat)
    for found, wanted in zip(results[::2], results[1::2], strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("name", sorted(BUILDERS))
@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=needs_gpu)])
def test_seed_spelling_runs_in_a_session(name, device):
    desk = Desk()
    rows = BUILDERS[name](desk)
    flat = [node for pair in (rows if isinstance(rows, list) else [rows]) for node in pair]
    if not flat:
        return  # a leaf: there is nothing to run
    if device == "gpu" and name.startswith("custom_op"):
        with pytest.raises(darner.UnsupportedError, match="darner knows only its NumPy function"):
            desk.run(*flat, device=device)
        return
    wanted = desk.run(*flat)
    for found, value in zip(desk.run(*flat, device=device), wanted, strict=True):
        assert found.dtype == value.dtype
        np.testing.assert_allclose(found, value, rtol=5e-4, atol=5e-5)
