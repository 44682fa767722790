"""Loops beside ``jax.lax.scan`` and PyTorch's recurrent layers, and the memory of gradients with checkpoints.

    python -m bench.loops                        # medians of interleaved rounds, two threads each
    python -m bench.loops --threads 1 --rounds 31 lstm map

Results and gradients are compared first. Times are of one call from Python: a step of the session, a call of the
jitted function, forward and backward of the module.
"""

import argparse
import os
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import torch

import darner
from darner import nn

SIZES_LSTM = [(1, 128, 64, 64), (8, 128, 64, 128), (32, 128, 256, 256), (7, 61, 37, 101)]
"""(batch, steps, inputs, width)"""
SIZES_MAP = [(4, 1000), (64, 1000), (1000, 1000), (33, 777), (100_000, 100)]
"""(elements, steps)"""
SIZES_RNN = [(1, 200, 32), (8, 128, 128), (5, 99, 67)]
"""(batch, steps, width)"""


def timed(turns, rounds):
    """The median seconds of each turn, and the median of the rounds' ratios."""
    times = {name: [] for name in turns}
    for turn in (*turns.values(), *turns.values()):
        turn()
    for _ in range(rounds):
        for name, turn in turns.items():
            start = time.perf_counter()
            turn()
            times[name].append(time.perf_counter() - start)
    ours, theirs = times.values()
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    return [statistics.median(values) for values in times.values()], ratio


def report(case, peer, found, ratio):
    ours, theirs = (f"{seconds * 1e3:.3f}" for seconds in found)
    print(
        f"{case:44} darner {ours:>9} ms  {peer} {theirs:>9} ms  {ratio:5.2f} of its time",
        flush=True,
    )


def check(found, wanted, case):
    scale = max(np.abs(wanted).max(), 1e-6)
    error = np.abs(np.asarray(found, np.float64) - wanted).max() / scale
    assert error < 1e-3, f"{case}: results differ by {error:.1e} of the largest number"


def lstm(rounds):
    """LSTM layers, forward and backward, beside PyTorch's."""
    for kind, theirs in (("LSTM", torch.nn.LSTM), ("GRU", torch.nn.GRU)):
        for batch, steps, inputs, width in SIZES_LSTM:
            case = f"{kind} {batch} x {steps} x {inputs} -> {width}, training"
            g = darner.Graph(kind)
            y, _ = getattr(nn, kind)("rnn", inputs, width)(g.input("x", (batch, steps, inputs)))
            g.set_outputs([y.square().sum()])
            x = np.random.default_rng(0).normal(size=(batch, steps, inputs)).astype(np.float32)
            module, given = theirs(inputs, width, batch_first=True), torch.tensor(x)
            with darner.build_session(g, threads=torch.get_num_threads()) as session:
                for name, value in module.named_parameters():
                    session.set_parameter(f"rnn.{name}", value.detach().numpy())

                def ours(session=session, x=x):
                    session.run({"x": x}, copy=False)

                def peer(module=module, given=given):
                    module.zero_grad()
                    module(given)[0].square().sum().backward()

                ours()
                peer()
                for name, value in module.named_parameters():
                    check(session.read_grad(f"rnn.{name}"), value.grad.numpy(), case)
                report(case, "torch", *timed({"darner": ours, "torch": peer}, rounds))


def beside_jax(case, ours, theirs, values, inputs, training, rounds):
    """A graph of one loss beside a function of JAX, by the parameters ``values``."""
    build = darner.build_session if training else darner.build_inference_session
    with build(ours, threads=torch.get_num_threads()) as session:
        for name, value in values.items():
            session.set_parameter(name, value)
        function = jax.jit(jax.value_and_grad(theirs) if training else theirs)
        on_device = jax.tree.map(jnp.asarray, (values, inputs))
        found = session.run(inputs)
        wanted = jax.block_until_ready(function(*on_device))
        check(next(iter(found.values())), np.asarray(wanted[0] if training else wanted), case)
        if training:
            for name in values:
                check(session.read_grad(name), np.asarray(wanted[1][name]), case)
        turns = {
            "darner": lambda: session.run(inputs, copy=False),
            "jax": lambda: jax.block_until_ready(function(*on_device)),
        }
        report(case, "jax", *timed(turns, rounds))


def maps(rounds):
    """A body that is element by element, beside ``jax.lax.scan``."""
    rng = np.random.default_rng(0)
    for count, steps in SIZES_MAP:
        g = darner.Graph("map")
        h, x = g.parameter("h", (count,)), g.input("x", (steps, count))
        last, _ = g.iterate(lambda h, x: ((h * 1.01 + x).sin(), None), h, x)
        g.set_outputs([last.square().sum()])

        def step(h, x):
            return jnp.sin(h * 1.01 + x), None

        def theirs(values, inputs, step=step):
            return jnp.square(jax.lax.scan(step, values["h"], inputs["x"])[0]).sum()

        values = {"h": np.ones(count, np.float32)}
        inputs = {"x": rng.normal(size=(steps, count)).astype(np.float32)}
        for training in (False, True):
            case = f"{count} elements, {steps} steps" + ", gradient" * training
            beside_jax(case, g, theirs, values, inputs, training, rounds)


def rnn(rounds):
    """A recurrent layer by hand, beside ``jax.lax.scan``."""
    rng = np.random.default_rng(0)
    for batch, steps, width in SIZES_RNN:
        g = darner.Graph("rnn")
        w, x = g.parameter("w", (width, width)), g.input("x", (steps, batch, width))
        start = g.zeros((batch, width))
        last, _ = g.iterate(lambda h, x, w=w: ((h @ w + x).tanh(), None), start, x)
        g.set_outputs([last.square().sum()])

        values = {"w": (rng.normal(size=(width, width)) / width**0.5).astype(np.float32)}
        inputs = {"x": rng.normal(size=(steps, batch, width)).astype(np.float32)}
        for training in (False, True):
            case = f"tanh(h @ w + x), {batch} x {steps} x {width}" + ", gradient" * training
            beside_jax(case, g, rnn_loss, values, inputs, training, rounds)


def rnn_loss(values, inputs):
    """What ``rnn`` computes, in JAX."""
    w, x = values["w"], inputs["x"]
    last, _ = jax.lax.scan(lambda h, x: (jnp.tanh(h @ w + x), None), jnp.zeros_like(x[0]), x)
    return jnp.square(last).sum()


def checkpoints(rounds):
    """Bytes of a gradient through 256 steps of 100,000 elements, by the number of carries kept."""
    steps, count = 256, 100_000
    for kept in (None, 256, 64, 16, 4, 1):
        g = darner.Graph("kept")
        h = g.parameter("h", (count,))
        last, _ = g.iterate(
            lambda h, _: ((h * 1.01).sin(), None), h, length=steps, checkpoints=kept
        )
        g.set_outputs([last.square().sum()])
        with darner.build_session(g, threads=torch.get_num_threads()) as session:
            session.set_parameter("h", np.linspace(-1, 1, count).astype(np.float32))
            seconds = []
            for _ in range(max(rounds // 3, 3)):
                start = time.perf_counter()
                session.run({})
                seconds.append(time.perf_counter() - start)
            plan = session.plan()
            print(
                f"checkpoints={kept!s:5} {(plan.arena_bytes + plan.step_bytes) / 1e6:7.1f} MB  "
                f"{statistics.median(seconds) * 1e3:7.2f} ms  {len(plan.kernels)} kernels"
            )


GROUPS = {"lstm": lstm, "map": maps, "rnn": rnn, "checkpoints": checkpoints}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], help="all by default")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.threads == 1:  # read when JAX computes for the first time
        os.environ["XLA_FLAGS"] = (
            "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        )
    for name in given.groups or GROUPS:
        GROUPS[name](given.rounds)


if __name__ == "__main__":
    main()
