"""Training from end to end: digits are learned, and optimizers go the way of PyTorch's."""

import importlib.util
import os
import subprocess
import sys
from argparse import Namespace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import darner
from darner import optim
from tests.zoo import values

ROOT = Path(__file__).parents[2]


def _imported(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mnist = _imported("mnist")
OPTIONS = Namespace(batch=32, threads=1, optimizer="adam", rate=None, seed=0)


def learned(sets, epochs, **changes):
    """The share of a test set that is right after some epochs, and all losses."""
    options = Namespace(**{**vars(OPTIONS), **changes})
    (images, digits), test = sets
    session, classifier = mnist.build_sessions(options)
    rng, losses = np.random.default_rng(0), []
    with session, classifier:
        before = mnist.accuracy(classifier, *test)
        for _ in range(epochs):
            losses += mnist.train_epoch(
                session, images, digits, options.batch, rng, lambda losses: None
            )
        return before, mnist.accuracy(classifier, *test), losses


# --------------------------------------------------------------------------- digits


@pytest.fixture(scope="module")
def drawn():
    return mnist.drawn_digits(9_000, seed=1), mnist.drawn_digits(1_300, seed=2)


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


def test_drawn_digits_are_the_same_every_time_and_of_all_kinds(drawn):
    (images, digits), (others, _) = drawn
    again, same = mnist.drawn_digits(9_000, seed=1)
    np.testing.assert_array_equal(images, again)
    np.testing.assert_array_equal(digits, same)
    assert images.dtype == np.float32
    assert images.shape == (9_000, 784)
    assert (images.min(), images.max()) == (0.0, 1.0)
    assert np.bincount(digits, minlength=10).min() > 700
    assert not np.array_equal(images[:1300], others)


@pytest.mark.slow
def test_mnist_is_learned():
    given = os.environ.get("DARNER_DATA")
    try:
        folder = darner.data.mnist_folder(given)
    except FileNotFoundError:
        pytest.skip("MNIST is on none of its usual places; DARNER_DATA names another")
    training, test = mnist.load_mnist(folder)
    assert training[0].mean() * 255 == pytest.approx(33.32, abs=0.01)
    assert (len(training[1]), len(test[1])) == (60_000, 10_000)
    _, after, _ = learned((training, test), 3)
    assert after >= 0.97


@pytest.mark.slow
def test_the_demo_says_that_mnist_is_missing_and_learns_drawn_digits(tmp_path):
    saved = tmp_path / "trained.safetensors"
    command = [sys.executable, str(ROOT / "examples/mnist.py"), "--epochs", "2", "--drawn", "6000"]
    process = subprocess.run(
        [*command, "--data", str(tmp_path / "nothing"), "--save", str(saved)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "COLUMNS": "100"},
    )
    assert (process.returncode, process.stderr) == (0, "")
    first = process.stdout.splitlines()[1]
    assert first.startswith("MNIST was not found in ")
    assert first.endswith(": training on digits drawn here instead")
    assert "=== Optimization Report ===" in process.stdout
    assert "<Session 'mnist' on cpu: training by Adam, 4 parameters>" in process.stdout
    share = float(process.stdout.split("the end")[1].split("\n\n")[1].split(" %")[0])
    assert 80 < share < 99.9
    session, classifier = mnist.build_sessions(Namespace(**vars(OPTIONS)))
    with session, classifier:
        session.load_checkpoint(saved)
        found = 100 * mnist.accuracy(classifier, *mnist.drawn_digits(1_200, seed=2))
    assert found == pytest.approx(share, abs=0.006)


def test_damaged_files_are_told(tmp_path, monkeypatch, capsys):
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"\x1f\x8b nothing of the kind")
    monkeypatch.setattr(sys, "argv", ["mnist.py", "--data", str(tmp_path)])
    assert mnist.main() == 1
    assert "cannot read MNIST" in capsys.readouterr().out


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
    graph = mnist.build(9)
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
    session = darner.build_session(mnist.build(4), threads=1)
    inputs, params, _ = values(mnist.build(4))
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
