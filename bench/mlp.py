"""How fast a step of training is, inputs and all, beside NumPy and PyTorch: the MNIST network, Adam, turns taken.

    python bench/mlp.py                         batches of 32 and 128, on 1 and 2 threads; one JSON object a line
    python bench/mlp.py --threads 1 --rounds 15
    python bench/mlp.py --profile               what Python does in a step, by cProfile

Each of them gets a new batch for every step, computes the loss, its gradients and Adam's updates, and reads the loss.
Losses and parameters are compared before anything is timed. PyTorch runs eagerly, with its fused Adam; without PyTorch
its columns are missing. Times are microseconds of one step: the median of rounds, and the best of them, which other work
on the machine disturbs least. ``darner_parts`` says where darner's go, at best: ``native`` is the call that runs the
step, the others are Python around it.
"""

import argparse
import cProfile
import json
import os
import platform
import pstats
import statistics
import subprocess
import sys
import time

import numpy as np

import darner

PIXELS, HIDDEN, DIGITS = 784, 128, 10
RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-8
BATCHES = 8
PARTS = 60
"""Turns of short bursts, of which the best counts."""


def data(batch):
    """Some batches, and first parameters."""
    rng = np.random.default_rng(0)
    batches = [
        (
            rng.random((batch, PIXELS), np.float32),
            np.eye(DIGITS, dtype=np.float32)[rng.integers(0, DIGITS, batch)],
        )
        for _ in range(BATCHES)
    ]
    shapes = {"w1": (PIXELS, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, DIGITS), "b2": (DIGITS,)}
    start = {
        name: rng.normal(0.0, 0.05, shape).astype(np.float32) for name, shape in shapes.items()
    }
    return batches, start


class Darner:
    """The network of the examples, in a session."""

    def __init__(self, batch, threads, start):
        g = darner.Graph("mnist")
        x, labels = g.input("x", [batch, PIXELS]), g.input("labels", [batch, DIGITS])
        w1, b1, w2, b2 = (g.parameter(name, value.shape) for name, value in start.items())
        hidden = g.relu(g.bias_add(g.matmul(x, w1), b1))
        logits = g.bias_add(g.matmul(hidden, w2), b2)
        g.set_outputs([g.cross_entropy_loss(logits, labels)])
        self.session = darner.build_session(g, threads=threads, progress=False)
        for name, value in start.items():
            self.session.set_parameter(name, value)
        self.session.set_adam(RATE, BETA1, BETA2, EPSILON)

    def step(self, x, labels):
        session = self.session
        session.set_input("x", x)
        session.set_input("labels", labels)
        session.step()
        session.wait()
        return session.read_loss()

    def parameters(self):
        return dict(self.session.parameters())

    def parts(self, x, labels):
        """Microseconds of each call a step makes, of ``step`` without its native call, and of that call."""
        session = self.session
        program = session._runner.last.program
        native = program.run

        def step_without_native():
            program.run = lambda first, last: None
            session.step()
            program.run = native

        calls = {
            "set_input x": lambda: session.set_input("x", x),
            "set_input labels": lambda: session.set_input("labels", labels),
            "step": step_without_native,
            "wait": session.wait,
            "read_loss": session.read_loss,
            "native": native,
        }
        found = dict.fromkeys(calls, float("inf"))
        for _ in range(PARTS):
            for name, call in calls.items():
                found[name] = min(found[name], round(1e6 * burst(call, 2e-3), 1))
        found["python"] = round(sum(found.values()) - found["native"], 1)
        return found


class NumPy:
    """The same by hand."""

    def __init__(self, batch, threads, start):
        self.values = {name: value.copy() for name, value in start.items()}
        self.means = {name: np.zeros_like(value) for name, value in start.items()}
        self.variances = {name: np.zeros_like(value) for name, value in start.items()}
        self.count = 0

    def step(self, x, labels):
        w1, b1, w2, b2 = self.values.values()
        hidden = np.maximum(x @ w1 + b1, 0.0)
        logits = hidden @ w2 + b2
        shifted = logits - logits.max(axis=1, keepdims=True)
        exponentials = np.exp(shifted)
        sums = exponentials.sum(axis=1, keepdims=True)
        loss = -(labels * (shifted - np.log(sums))).sum() / len(x)
        d_logits = (exponentials / sums - labels) / np.float32(len(x))
        d_hidden = (d_logits @ w2.T) * (hidden > 0)
        gradients = [x.T @ d_hidden, d_hidden.sum(axis=0), hidden.T @ d_logits, d_logits.sum(0)]
        self.count += 1
        rate = np.float32(RATE / (1.0 - BETA1**self.count))
        correction = np.float32((1.0 - BETA2**self.count) ** -0.5)
        for name, gradient in zip(self.values, gradients, strict=True):
            mean, variance = self.means[name], self.variances[name]
            mean *= np.float32(BETA1)
            mean += np.float32(1.0 - BETA1) * gradient
            variance *= np.float32(BETA2)
            variance += np.float32(1.0 - BETA2) * gradient * gradient
            divisor = np.sqrt(variance) * correction + np.float32(EPSILON)
            self.values[name] -= rate * mean / divisor
        return float(loss)

    def parameters(self):
        return self.values


class Torch:
    """The same by PyTorch, eagerly."""

    def __init__(self, batch, threads, start):
        import torch

        torch.set_num_threads(threads)
        self.torch = torch
        self.values = {
            name: torch.tensor(value, requires_grad=True) for name, value in start.items()
        }
        self.optimizer = torch.optim.Adam(
            self.values.values(), RATE, betas=(BETA1, BETA2), eps=EPSILON, fused=True
        )

    def step(self, x, labels):
        torch = self.torch
        w1, b1, w2, b2 = self.values.values()
        self.optimizer.zero_grad()
        hidden = torch.relu(torch.addmm(b1, torch.from_numpy(x), w1))
        logits = torch.addmm(b2, hidden, w2)
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels))
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def parameters(self):
        return {name: value.detach().numpy() for name, value in self.values.items()}


def burst(call, seconds):
    """Seconds of one call: the mean over a burst."""
    start, count = time.perf_counter(), 0
    while True:
        call()
        count += 1
        elapsed = time.perf_counter() - start
        if elapsed > seconds:
            return elapsed / count


def contenders(batch, threads, start):
    made = {"darner": Darner(batch, threads, start), "numpy": NumPy(batch, threads, start)}
    try:
        made["torch"] = Torch(batch, threads, start)
    except ImportError:
        print("PyTorch is not installed: no column of it", file=sys.stderr)
    return made


def compare(made, batches):
    """Several steps of each must give the same losses and parameters."""
    exact = None
    for name, one in made.items():
        losses = [one.step(*batch) for batch in batches]
        values = {key: np.array(value) for key, value in one.parameters().items()}
        if exact is None:
            exact = losses, values
            continue
        np.testing.assert_allclose(losses, exact[0], rtol=1e-4, err_msg=name)
        for key, value in values.items():
            np.testing.assert_allclose(value, exact[1][key], rtol=1e-3, atol=2e-5, err_msg=name)


def measure(batch, threads, rounds, seconds):
    batches, start = data(batch)
    made = contenders(batch, threads, start)
    compare(made, batches)
    turn = dict.fromkeys(made, 0)

    def one_step(name):
        turn[name] += 1
        made[name].step(*batches[turn[name] % BATCHES])

    times = {name: [] for name in made}
    for number in range(rounds):
        for name in list(made) if number % 2 else list(made)[::-1]:
            times[name].append(burst(lambda name=name: one_step(name), seconds))
    row = {"bench": "mlp", "batch": batch, "threads": threads, "rounds": rounds}
    for name, spent in times.items():
        row[f"{name}_us"] = round(1e6 * statistics.median(spent), 1)
        row[f"{name}_best_us"] = round(1e6 * min(spent), 1)
        row[f"{name}_steps_per_s"] = round(1 / statistics.median(spent))
    for name in times.keys() - {"darner"}:
        ratios = [theirs / ours for theirs, ours in zip(times[name], times["darner"], strict=True)]
        row[f"times_as_fast_as_{name}"] = round(statistics.median(ratios), 2)
    row["darner_parts"] = made["darner"].parts(*batches[0])
    row["load"] = round(os.getloadavg()[0], 1)
    row["machine"] = platform.processor() or platform.machine()
    return row


def profile(batch, threads, steps=5000):
    """What Python does in a step, by function."""
    batches, start = data(batch)
    one = Darner(batch, threads, start)
    one.step(*batches[0])
    watch = cProfile.Profile()
    watch.enable()
    for number in range(steps):
        one.step(*batches[number % BATCHES])
    watch.disable()
    print(f"{steps} steps, batch {batch}, {threads} threads; cProfile itself makes Python slower")
    pstats.Stats(watch).strip_dirs().sort_stats("tottime").print_stats(22)


def main():
    parser = argparse.ArgumentParser(description="Steps of training beside NumPy and PyTorch.")
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=0.04, help="of each burst")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    if options.profile:
        profile(options.batch[0], options.threads[0])
        return
    # The libraries below NumPy read the number of their threads once, as they start.
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    if (
        any(os.environ.get(name) != str(options.threads[0]) for name in names)
        or options.threads[1:]
    ):
        for threads in options.threads:
            environment = dict.fromkeys(names, str(threads))
            command = [sys.executable, __file__, "--threads", str(threads)]
            command += ["--rounds", str(options.rounds), "--seconds", str(options.seconds)]
            command += ["--batch", *map(str, options.batch)]
            subprocess.run(command, env={**os.environ, **environment}, check=True)
        return
    for batch in options.batch:
        print(json.dumps(measure(batch, options.threads[0], options.rounds, options.seconds)))


if __name__ == "__main__":
    main()
