"""Training from end to end: digits are learned, and optimizers go the way of PyTorch's."""

from argparse import Namespace
from itertools import pairwise

import numpy as np
import pytest
import torch

import darner
from darner import data, optim
from tests.zoo import values

SIDE, HIDDEN, DIGITS = 28, 128, 10
PIXELS = SIDE * SIDE
TEST_BATCH = 500
OPTIONS = Namespace(batch=32, threads=1, optimizer="adam", rate=None, seed=0)


def build(batch, training=True):
    """The network: with its loss to train it, with its scores to use it."""
    g = darner.Graph("mnist")
    x = g.input("x", [batch, PIXELS])
    w1 = g.parameter("w1", [PIXELS, HIDDEN])
    b1 = g.parameter("b1", [HIDDEN])
    w2 = g.parameter("w2", [HIDDEN, DIGITS])
    b2 = g.parameter("b2", [DIGITS])
    hidden = g.relu(g.bias_add(g.matmul(x, w1), b1))
    logits = g.bias_add(g.matmul(hidden, w2), b2, label="logits")
    if training:
        labels = g.input("labels", [batch, DIGITS])
        loss = g.cross_entropy_loss(logits, labels, label="loss")
        g.set_outputs([loss])
    else:
        g.set_outputs([logits])
    return g


def build_sessions(options):
    """One session that trains, and one with the same parameters that classifies."""
    chosen = {"threads": options.threads, "progress": False}  # there is a line of our own
    session = darner.build_session(build(options.batch), **chosen)
    rng = np.random.default_rng(options.seed)
    for name, fan_in in (("w1", PIXELS), ("w2", HIDDEN)):
        shape = session.parameters()[name].shape
        session.set_parameter(name, rng.normal(0.0, (2.0 / fan_in) ** 0.5, shape))
    if options.optimizer == "sgd":
        session.set_learning_rate(options.rate or 0.1)
    else:
        session.set_adam(options.rate or 1e-3, 0.9, 0.999, 1e-8)

    scores = build(TEST_BATCH, training=False)
    classifier = darner.build_inference_session(scores, share=session, **chosen)
    return session, classifier


def train_epoch(session, images, digits, batch, rng, report):
    """Show the session every image once, in random order; returns the loss of each step."""
    one_hot = np.eye(DIGITS, dtype=np.float32)
    order = rng.permutation(len(images))[: len(images) // batch * batch]
    losses = []
    for chosen in order.reshape(-1, batch):
        session.set_input("x", images[chosen])
        session.set_input("labels", one_hot[digits[chosen]])
        session.step()
        session.wait()
        losses.append(session.read_loss())
        report(losses)
    return losses


def accuracy(classifier, images, digits):
    """The share of images that are classified right."""
    right = 0
    for start in range(0, len(images), TEST_BATCH):
        part = images[start : start + TEST_BATCH]
        filled = np.zeros((TEST_BATCH, PIXELS), np.float32)
        filled[: len(part)] = part
        scores = classifier.run({"x": filled})["logits"][: len(part)]
        right += int((scores.argmax(axis=1) == digits[start : start + TEST_BATCH]).sum())
    return right / len(images)


def learned(sets, epochs, **changes):
    """The share of a test set that is right after some epochs, and all losses."""
    options = Namespace(**{**vars(OPTIONS), **changes})
    (images, digits), test = sets
    session, classifier = build_sessions(options)
    rng, losses = np.random.default_rng(0), []
    with session, classifier:
        before = accuracy(classifier, *test)
        for _ in range(epochs):
            losses += train_epoch(session, images, digits, options.batch, rng, lambda losses: None)
        return before, accuracy(classifier, *test), losses


def flat(digits):
    """Pictures in a row each, between 0 and 1, and their labels."""
    return digits.images.reshape(-1, PIXELS), digits.labels


# --------------------------------------------------------------------------- digits


@pytest.fixture(scope="module")
def drawn():
    return flat(data.drawn_digits(9_000, seed=1)), flat(data.drawn_digits(1_300, seed=2))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"optimizer": "sgd", "rate": 0.2}, marks=pytest.mark.slow),
        pytest.param({"threads": 2, "batch": 50}, marks=pytest.mark.slow),
    ],
)
def test_drawn_digits_are_learned(drawn, changes):
    before, after, losses = learned(drawn, 3, **changes)
    assert before < 0.35
    assert after > 0.95
    assert np.mean(losses[:5]) > 1.5
    assert np.mean(losses[-50:]) < 0.25


@pytest.mark.slow
def test_mnist_is_learned():
    try:
        training, test = data.mnist(dtype="f32")
    except FileNotFoundError:
        pytest.skip("MNIST is on none of its usual places")
    assert training.images.mean() * 255 == pytest.approx(33.32, abs=0.01)
    assert (len(training.labels), len(test.labels)) == (60_000, 10_000)
    _, after, _ = learned((flat(training), flat(test)), 3)
    assert after >= 0.97


# --------------------------------------------------------------------------- beside PyTorch


class Lion(torch.optim.Optimizer):
    """The rule of its paper."""

    def __init__(self, leaves, lr, betas, weight_decay):
        super().__init__(leaves, {"lr": lr, "betas": betas, "decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), rate = group["betas"], group["lr"]
            for leaf in group["params"]:
                mean = self.state[leaf].setdefault("mean", torch.zeros_like(leaf))
                direction = torch.sign(beta1 * mean + (1 - beta1) * leaf.grad)
                mean.mul_(beta2).add_((1 - beta2) * leaf.grad)
                leaf.mul_(1 - rate * group["decay"]).sub_(rate * direction)


T = torch.optim
PEERS = {
    "sgd": (optim.SGD(0.1), lambda p: T.SGD(p, 0.1)),
    "sgd, nesterov, decay": (
        optim.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        lambda p: T.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    "adam": (optim.Adam(0.01, weight_decay=0.1), lambda p: T.Adam(p, 0.01, weight_decay=0.1)),
    "adamw, amsgrad": (
        optim.AdamW(0.01, weight_decay=0.3, amsgrad=True),
        lambda p: T.AdamW(p, 0.01, weight_decay=0.3, amsgrad=True),
    ),
    "lion": (
        optim.Lion(0.003, weight_decay=0.1),
        lambda p: Lion(p, 0.003, (0.9, 0.99), 0.1),
    ),
    "adafactor": (optim.Adafactor(0.05), lambda p: T.Adafactor(p, 0.05)),
}


@pytest.mark.parametrize("name", PEERS)
def test_a_session_trains_as_pytorch_does(name):
    """The seed's network, twelve steps, all of it computed on both sides."""
    ours, make = PEERS[name]
    graph = build(9)
    rng = np.random.default_rng(0)
    start = {
        key: rng.normal(0, 0.05, leaf.shape).astype(np.float32)
        for key, leaf in graph.parameters.items()
    }
    leaves = {key: torch.tensor(value, requires_grad=True) for key, value in start.items()}
    w1, b1, w2, b2 = leaves.values()
    theirs = make(list(leaves.values()))
    with darner.build_session(graph, optimizer=ours, threads=1) as session:
        session.parameters().update(start)
        for step in range(12):
            inputs = values(graph, step).inputs
            x, labels = (torch.tensor(inputs[key]) for key in ("x", "labels"))
            scores = torch.relu(x @ w1 + b1) @ w2 + b2
            loss = -(labels * scores.log_softmax(1)).sum(1).mean()
            theirs.zero_grad()
            loss.backward()
            theirs.step()
            session.run(inputs)
            assert session.read_loss() == pytest.approx(loss.item(), rel=1e-4, abs=1e-6)
        for key, leaf in leaves.items():
            found, wanted = session.read_param(key), leaf.detach().numpy()
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5, err_msg=key)


def test_the_loop_of_the_seed_goes_down():
    """Written as users were promised: plain SGD fused into each step by ``set_learning_rate``."""
    session = darner.build_session(build(4), threads=1)
    inputs, params, _ = values(build(4))
    with session:
        for name, value in params.items():
            session.set_parameter(name, value.reshape(-1))
        session.set_input("x", inputs["x"].reshape(-1))
        session.set_input("labels", inputs["labels"].reshape(-1))
        losses = []
        for _ in range(30):
            session.set_learning_rate(0.01)
            session.step()
            session.wait()
            losses.append(session.read_loss())
        assert losses[-1] < 0.5 * losses[0]
        assert all(b < a for a, b in pairwise(losses))
        flat = np.empty(784 * 128, np.float32)
        session.read_param("w1", flat)
        assert not np.array_equal(flat, params["w1"].reshape(-1))
