"""Small models with contractions of every kind, and how far two devices may be apart in a lower precision."""

import numpy as np

import darner
from darner import Graph, nn

DIGITS = {"f32": 2.0**-24, "tf32": 2.0**-11, "bf16": 2.0**-9, "f16": 2.0**-11}
"""The largest relative error of rounding once."""


def perceptron(batch=16, width=12, hidden=24, classes=5):
    """Two layers with biases."""
    g = Graph("perceptron")
    x, target = g.input("x", (batch, width)), g.input("target", (batch, classes))
    h = (x @ g.parameter("w1", (width, hidden)) + g.parameter("b1", (hidden,))).gelu()
    y = h @ g.parameter("w2", (hidden, hidden)) + g.parameter("b2", (hidden,))
    y = y.gelu() @ g.parameter("w3", (hidden, classes))
    g.set_outputs([(y - target).square().mean(label="loss"), y])
    return g


def convolutions():
    """Convolutions: plain, with a stride, and of each channel by itself."""
    g = Graph("convolutions")
    x, target = g.input("x", (2, 3, 9, 9)), g.input("target", (2, 4))
    h = g.conv2d(x, g.parameter("w1", (6, 3, 3, 3)), padding=1).tanh()
    h = g.conv2d(h, g.parameter("w2", (6, 6, 3, 3)), padding=1, stride=2).tanh()
    h = g.conv2d(h, g.parameter("w3", (6, 1, 3, 3)), padding=1, groups=6).tanh()
    y = h.reshape((2, 150)) @ g.parameter("w4", (150, 4))
    g.set_outputs([(y - target).square().mean(label="loss"), y])
    return g


def attention():
    """A layer of attention with fewer heads of keys than of queries, and a residual."""
    g = Graph("attention")
    x = g.input("x", (2, 11, 16))
    q = (x @ g.parameter("q", (16, 16))).reshape((2, 11, 4, 4))
    k = (x @ g.parameter("k", (16, 8))).reshape((2, 11, 2, 4))
    v = (x @ g.parameter("v", (16, 8))).reshape((2, 11, 2, 4))
    mixed = g.scaled_dot_attention(q, k, v, layout="bshd", causal=True).reshape((2, 11, 16))
    y = (x + mixed @ g.parameter("o", (16, 16))).rms_norm()
    g.set_outputs([y.square().mean(label="loss") + y.abs().mean(), y])
    return g


def recurrent():
    """An LSTM: products inside of a loop."""
    g = Graph("recurrent")
    found = nn.LSTM("lstm", 6, 8)(g.input("x", (5, 3, 6)))
    y = found[0] if isinstance(found, tuple) else found
    g.set_outputs([y.square().mean(label="loss"), y])
    return g


def block():
    """A gated block with norms, whose values are large enough that kernels compute some again."""
    g = Graph("block")
    x, target = g.input("x", (64, 32)), g.input("target", (64, 32))
    h = (x @ g.parameter("in", (32, 288))).rms_norm(g.parameter("scale", (288,)))
    gate, up = (h @ g.parameter(name, (288, 288)) for name in ("gate", "up"))
    y = gate.swiglu(up) @ g.parameter("out", (288, 32))
    g.set_outputs([(y - target).square().mean(label="loss"), y])
    return g


MODELS = {made.__name__: made for made in (perceptron, convolutions, attention, recurrent)}


def values_of(graph, seed=0):
    """Inputs, and parameters of the size that layers have."""
    rng = np.random.default_rng(seed)
    inputs = {n: rng.normal(size=leaf.shape).astype(np.float32) for n, leaf in graph.inputs.items()}
    parameters = {}
    for name, leaf in graph.parameters.items():
        fan_in = leaf.shape[0] if leaf.rank == 2 else int(np.prod(leaf.shape[1:])) or 1
        drawn = rng.normal(size=leaf.shape) / np.sqrt(fan_in)
        parameters[name] = drawn.astype(np.float32)
    return inputs, parameters


def found_by(graph, device, precision, seed=0, **options):
    """The outputs and gradients of one step."""
    inputs, parameters = values_of(graph, seed)
    options = {"cache": None, "threads": 1, **options}
    with darner.build_session(graph, device=device, precision=precision, **options) as session:
        session.parameters().update(parameters)
        return {**session.run(inputs), **session.gradients()}


def assert_alike(found, wanted, precision, digits=1.0):
    """Agreement to rounding: sums in another order may put a value on the other side of a border, and that is one digit of the precision."""
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        size = np.abs(wanted[name]).max(initial=1e-6)
        limit = digits * max(DIGITS[precision], 1e-5) * size
        np.testing.assert_allclose(value, wanted[name], rtol=0, atol=limit, err_msg=name)
        typical = np.abs(value - wanted[name]).mean() if value.size else 0.0
        assert typical <= limit / 4, name
