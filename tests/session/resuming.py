"""Training that stops and goes on in another process: what both processes build, and what the second one does.

python -m tests.session.resuming FOLDER THREADS    goes on from each checkpoint in FOLDER
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import darner
from darner import optim

BATCH, FEATURES, HIDDEN, CLASSES = 6, 7, 19, 3
STEPS, HALF = 10, 5
PRECISE = {"rtol": 2e-4, "atol": 2e-6}


def classifier(dtype="f32"):
    """A small classifier with dropout, two scopes, and a parameter for tests to freeze."""
    g = darner.Graph("classifier")
    h = g.input("x", (BATCH, FEATURES)).cast(dtype)
    labels = g.input("labels", (BATCH, CLASSES))
    with g.scope("encoder"):
        h = h @ g.parameter("weight", (FEATURES, HIDDEN), dtype) + g.parameter(
            "bias", (HIDDEN,), dtype
        )
        h = (h * g.parameter("scale", (HIDDEN,), dtype)).gelu().dropout(0.25)
    with g.scope("head"):
        scores = h @ g.parameter("weight", (HIDDEN, CLASSES), dtype) + g.parameter(
            "bias", (CLASSES,), dtype
        )
    g.set_outputs([g.cross_entropy_loss(scores.cast("f32"), labels)])
    return g


def heavy_ball(parameter, gradient, velocity, learning_rate, step, friction=0.1):
    """A rule of the user's own, with a state, a number and the step."""
    velocity = (1.0 - friction) * velocity + gradient / step.sqrt()
    return parameter - learning_rate * velocity, velocity


@dataclass(frozen=True)
class RMSProp(optim.Optimizer):
    """A subclass of the user's own."""

    learning_rate: float = 1e-2
    decay: float = 0.9

    def update(self, slot):
        variance = slot.moving_mean("variance", slot.setting("decay"), slot.gradient.square())
        return slot.value - slot.learning_rate * slot.gradient / (variance.sqrt() + 1e-5)


SCHEDULE = optim.warmup(3) >> optim.cosine(6, end=0.1)
EVERYTHING = {
    "schedule": SCHEDULE,
    "clip_value": 0.05,
    "clip_norm": 0.1,
    "accumulate": 3,
    "multipliers": {"encoder": 0.5, "encoder.bias": 2.0, "encoder.scale": 0.0, "head.b*": 0.2},
    "decay_filter": optim.matrices_only,
}
CASES = {
    "sgd": optim.SGD(0.1),
    "sgd momentum": optim.SGD(0.1, momentum=0.9),
    "sgd nesterov decay": optim.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": optim.Adam(0.01),
    "adam amsgrad": optim.Adam(0.01, amsgrad=True, weight_decay=0.01, clip_norm=0.05),
    "adamw": optim.AdamW(0.01, schedule=SCHEDULE),
    "custom rule": optim.custom(heavy_ball, 0.05, schedule=optim.step_decay(2, 0.5)),
    "subclass": RMSProp(0.01, accumulate=2),
    "sgd with everything": optim.SGD(
        0.1, momentum=0.9, dampening=0.5, weight_decay=0.01, **EVERYTHING
    ),
    "adamw with everything": optim.AdamW(0.01, weight_decay=0.1, **EVERYTHING),
    "lion with everything": optim.Lion(0.01, weight_decay=0.1, **EVERYTHING),
    "adafactor with everything": optim.Adafactor(0.05, weight_decay=0.1, **EVERYTHING),
    "16 bits with a master copy": optim.AdamW(0.01, master=True, accumulate=2),
}
FROZEN = "encoder.scale"


def graph_of(name):
    return classifier("bf16" if name.startswith("16 bits") else "f32")


def opened(name, folder, **options):
    """A session of a case; compiled code is kept in the folder, for the other process too."""
    cache = Path(folder) / "code"
    return darner.build(
        graph_of(name), optimizer=CASES[name], **{"cache": cache, "init": start, **options}
    )


def start(name, type_, seed):
    """The first value of a parameter, which no version of an initialiser changes."""
    shape = tuple(int(size) for size in type_.shape)
    values = np.random.default_rng([len(name), *shape]).normal(0.0, 0.5, shape)
    return values + (1.0 if name.endswith("scale") else 0.0)


def batch(step):
    """The data of one step, which no other step has."""
    rng = np.random.default_rng(step)
    x = rng.normal(size=(BATCH, FEATURES)).astype(np.float32)
    return x, np.eye(CLASSES, dtype=np.float32)[rng.integers(0, CLASSES, BATCH)]


def train(session, first, last):
    """The losses of some steps."""
    losses = []
    for step in range(first, last):
        x, labels = batch(step)
        session.set_input("x", x)
        session.set_input("labels", labels)
        session.step()
        session.wait()
        losses.append(session.read_loss())
    return losses


def everything_in(session):
    """All that a session keeps, as bytes that compare bit by bit."""
    found = {**session.parameters(), **session.state()}
    return {name: value.tobytes() for name, value in found.items()}


def checkpoint_of(folder, name):
    return Path(folder) / f"{name}.safetensors"


def finished_of(folder, name):
    return Path(folder) / f"{name}, finished.safetensors"


def main(folder, threads):
    """Go on from every checkpoint; what comes out is left beside it."""
    for name in (name for name in CASES if checkpoint_of(folder, name).exists()):
        with opened(name, folder, threads=int(threads)) as session:
            session.load_checkpoint(checkpoint_of(folder, name))
            losses = train(session, HALF, STEPS)
            session.save_checkpoint(finished_of(folder, name), metadata={"losses": repr(losses)})


if __name__ == "__main__":
    main(*sys.argv[1:])
