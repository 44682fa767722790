"""What a trainer costs beside the bare loop of a session, and what accumulation saves.

    python -m bench.training            # JSON: microseconds a step, medians of interleaved rounds

``bare`` runs the session and reads the loss; ``trainer`` trains the same; ``logged`` also writes a log, a record every ten
steps. ``update`` is a run that ends in AdamW, ``gradients`` one that computes gradients alone, ``accumulate 4`` the mean of
four runs that share an update.
"""

import json
import statistics
import tempfile
import time

import numpy as np

import darner
from darner import optim, train

ROUNDS, STEPS = 15, 200


def mlp(batch, width, layers):
    g = darner.Graph("mlp")
    h, target = g.input("x", (batch, width)), g.input("target", (batch, width))
    for i in range(layers):
        weight = g.parameter(f"{i}.weight", (width, width), init="normal(0.03)")
        h = (h @ weight + g.parameter(f"{i}.bias", (width,))).gelu()
    g.set_outputs([g.mse_loss(h, target, label="loss")])
    return g


def batches(batch, width, count=16):
    rng = np.random.default_rng(0)
    draw = lambda: rng.normal(size=(batch, width)).astype(np.float32)  # noqa: E731
    return [{"x": draw(), "target": draw()} for _ in range(count)]


def overhead(width=64, batch=32):
    """Microseconds a step of a small network, bare and trained."""
    data = batches(batch, width)
    optimizer = optim.AdamW(1e-3)

    def opened():
        return darner.build_session(mlp(batch, width, 3), optimizer=optimizer, threads=1)

    with opened() as bare, opened() as plain, opened() as logged:
        folder = tempfile.TemporaryDirectory()
        made = train.Trainer(plain, data, steps=STEPS)
        with_log = train.Trainer(logged, data, steps=STEPS, log=f"{folder.name}/log.jsonl")

        def loop():
            losses = []
            for i in range(STEPS):
                losses.append(bare.run(data[i % len(data)], copy=False)["loss"].item())

        def more(trainer):
            trainer._steps = trainer.step + STEPS
            trainer.train()

        turns = {"bare": loop, "trainer": lambda: more(made), "logged": lambda: more(with_log)}
        found = interleaved(turns, STEPS)
        folder.cleanup()
    return found


def accumulation(width=768, batch=32):
    """Microseconds a run of a network whose update is as dear as its gradients."""
    data = batches(batch, width, 4)
    chosen = {
        "gradients": None,
        "update": optim.AdamW(1e-3, clip_norm=1.0),
        "accumulate 4": optim.AdamW(1e-3, clip_norm=1.0, accumulate=4),
    }
    sessions = {
        name: darner.build_session(mlp(batch, width, 4), optimizer=optimizer)
        for name, optimizer in chosen.items()
    }
    turns = {
        name: lambda session=session: [session.run(item) for item in data]
        for name, session in sessions.items()
    }
    found = interleaved(turns, len(data))
    for session in sessions.values():
        session.close()
    return found


def interleaved(turns, steps):
    """The median time of each, of a step."""
    times = {name: [] for name in turns}
    for turn in turns.values():
        turn()
    for _ in range(ROUNDS):
        for name, turn in turns.items():
            start = time.perf_counter()
            turn()
            times[name].append((time.perf_counter() - start) / steps * 1e6)
    return {name: round(statistics.median(values), 1) for name, values in times.items()}


if __name__ == "__main__":
    print(json.dumps({"overhead": overhead(), "accumulation": accumulation()}))
