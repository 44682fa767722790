"""Small models, and sessions of them."""

import numpy as np
import pytest

import darner
from darner import Graph, optim

DEVICES = ("cpu", "reference")


def perceptron(batch=8, pixels=6, hidden=5, classes=3):
    """The network of the first seed, written as there."""
    g = Graph("mnist")
    x = g.input("x", [batch, pixels])
    labels = g.input("labels", [batch, classes])
    w1 = g.parameter("w1", [pixels, hidden])
    b1 = g.parameter("b1", [hidden])
    w2 = g.parameter("w2", [hidden, classes])
    b2 = g.parameter("b2", [classes])
    mm1 = g.matmul(x, w1)
    h1 = g.bias_add(mm1, b1)
    a1 = g.relu(h1)
    mm2 = g.matmul(a1, w2)
    logits = g.bias_add(mm2, b2)
    loss = g.cross_entropy_loss(logits, labels)
    g.set_outputs([loss])
    return g


def line(n=4):
    """A loss of one weight, small enough to compute by hand."""
    g = Graph("line")
    x, y = g.input("x", (n,)), g.input("y", (n,))
    w = g.parameter("w", (3,))
    g.set_outputs([(w.sum() * x - y).square().mean(label="loss")])
    return g


CODE = {}
"""Where compiled code is kept; see ``conftest``."""


def opened(graph, *, params=None, **options):
    """A session of two threads, on the reference unless a test is about the device: nothing is compiled there."""
    session = darner.build(graph, **{"device": "reference", "threads": 2, **CODE, **options})
    if params:
        session.parameters().update(params)
    return session


DATA = {"x": np.array([1, 2, 3, 4], np.float32), "y": np.array([2, 4, 6, 8], np.float32)}
START = {"w": np.array([0.5, 0.25, 0.0], np.float32)}


OPTIMIZERS = {
    "sgd": optim.SGD(0.05),
    "momentum": optim.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": optim.Adam(0.01),
    "adamw": optim.AdamW(0.01, clip_norm=1.0, schedule=optim.warmup(3)),
    "lion": optim.Lion(0.01),
    "accumulated": optim.Adam(0.01, accumulate=2),
}


def here(function):
    """The message of what a call raises."""
    with pytest.raises(darner.DarnerError) as error:
        function()
    return str(error.value)
