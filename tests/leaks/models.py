"""Sessions of small models, for tests that make many."""

import numpy as np

import darner
from darner import Graph, optim

SIZE = 96


def graph(rows: int = 7, name: str = "small") -> Graph:
    """A loss, and beside it a prediction."""
    g = Graph(name)
    x, y = g.input("x", (rows, SIZE)), g.input("y", (rows, 3))
    hidden = (x @ g.parameter("w", (SIZE, SIZE)) + g.parameter("b", (SIZE,))).tanh()
    found = hidden @ g.parameter("v", (SIZE, 3))
    g.set_outputs([(found - y).square().mean(label="loss"), found.softmax(label="prediction")])
    return g


def values(seed: int = 0, rows: int = 7) -> dict[str, np.ndarray]:
    """Inputs."""
    random = np.random.default_rng(seed)
    return {
        "x": random.standard_normal((rows, SIZE), dtype=np.float32),
        "y": random.standard_normal((rows, 3), dtype=np.float32),
    }


def training(rows: int = 7, **options):
    """A session that learns by Adam."""
    options = {"threads": 2, "level": 1, "init": "kaiming", **options}
    return darner.build_session(graph(rows), optimizer=optim.Adam(0.01), **options)


def inference(rows: int = 7, **options):
    """A session that predicts."""
    options = {"threads": 2, "level": 1, "init": "kaiming", **options}
    return darner.build_inference_session(graph(rows), **options)


def learned(session, steps: int, seed: int = 0) -> dict[str, np.ndarray]:
    """What a session has after some steps, its parameters and its loss."""
    for name, value in values(seed).items():
        session.set_input(name, value)
    for _ in range(steps):
        session.step()
    return {**session.parameters(), "loss": np.float32(session.read_loss())}


def same(one, other) -> bool:
    """Whether two results are equal, bit for bit."""
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)
