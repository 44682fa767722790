"""Training graphs whose steps fail on some data, on every device: an index, a matrix, an exponent."""

from dataclasses import dataclass

import numpy as np

import darner
from darner import Graph


@dataclass(frozen=True)
class Failing:
    """A graph with a loss, inputs that it trains on, inputs that make a step fail, and what the error says."""

    graph: Graph
    good: dict
    bad: dict
    says: str


def _embedding() -> Failing:
    g = Graph("embedding")
    tokens = g.input("tokens", (6,), "i32")
    hidden = g.gather(g.parameter("table", (20, 4)), tokens * 2, label="lookup")
    g.set_outputs([((hidden @ g.parameter("w", (4, 3))).tanh()).square().mean()])
    good = {"tokens": np.arange(6, dtype=np.int32)}
    bad = {"tokens": np.array([1, 2, 10, 3, 4, 5], np.int32)}
    return Failing(g, good, bad, r"gather 'lookup': .*index 20 is outside 0\.\.19.* \(failing\.py:")


def _two_lookups() -> Failing:
    """Both are in one kernel; the second is at fault."""
    g = Graph("two")
    i = g.input("i", (6,), "i32")
    first = g.gather(g.parameter("a", (9, 4)), i % 9, label="first")
    second = g.gather(g.parameter("b", (9, 4)), i + 1, label="second")
    g.set_outputs([(first * second).sin().mean()])
    good = {"i": np.arange(6, dtype=np.int32)}
    bad = {"i": np.array([0, 0, 0, 8, 0, 0], np.int32)}
    return Failing(g, good, bad, r"gather 'second': .*index 9 is outside 0\.\.8.* \(failing\.py:")


def _labels() -> Failing:
    g = Graph("labels")
    x, labels = g.input("x", (5, 7)), g.input("labels", (5,), "i32")
    logits = (x @ g.parameter("w", (7, 6))).tanh() @ g.parameter("head", (6, 4))
    g.set_outputs([logits.cross_entropy_loss(labels)])
    images = np.random.default_rng(0).random((5, 7), np.float32)
    good = {"x": images, "labels": np.array([0, 3, -100, 1, 2], np.int32)}
    bad = {"x": images, "labels": np.array([0, 3, -100, 4, 2], np.int32)}
    return Failing(g, good, bad, r"input 'labels' has the index 4, which is outside 0\.\.3")


def _matrices(name: str, says: str, broken, gradient_only: bool = False) -> Failing:
    g = Graph(name)
    a, b = g.input("a", (2, 2, 4, 4)), g.input("b", (2, 2, 4, 3))
    moved = a + 0.0 * g.parameter("w", (4, 4))
    made = {
        "solve": lambda: moved.solve(b, label="system"),
        "triangular_solve": lambda: moved.triangular_solve(b, label="system"),
        "inverse": lambda: moved.inverse(label="system"),
        "cholesky": lambda: moved.cholesky(label="system"),
        "det": lambda: moved.det(),
    }[name]()
    g.set_outputs([made.square().mean()])
    rng = np.random.default_rng(1)
    square = rng.random((2, 2, 4, 4), np.float32)
    good = square @ square.transpose(0, 1, 3, 2) + 2 * np.eye(4, dtype=np.float32)
    bad = good.copy()
    bad[1, 0] = broken
    sides = rng.random((2, 2, 4, 3), np.float32)
    return Failing(g, {"a": good, "b": sides}, {"a": bad, "b": sides}, says)


def _power() -> Failing:
    g = Graph("power")
    base, exponent = g.input("base", (5,), "i32"), g.input("exponent", (5,), "i32")
    power = g.pow(base, exponent, label="tower").cast("f32")
    g.set_outputs([(power * g.parameter("w", (5,))).sum()])
    bases = np.arange(5, dtype=np.int32)
    good = {"base": bases, "exponent": np.array([0, 1, 2, 3, 2], np.int32)}
    bad = {"base": bases, "exponent": np.array([0, 1, -3, 3, 2], np.int32)}
    return Failing(g, good, bad, r"pow 'tower': .*exponent -3 is negative")


SINGULAR = r"the matrix at \[1, 0\] of the batch is singular \(failing\.py:"
INDEFINITE = r"the matrix at \[1, 0\] of the batch is not positive definite \(failing\.py:"
HOLE = np.diag([1.0, 1.0, 0.0, 1.0]).astype(np.float32)
CASES = {
    "embedding": _embedding,
    "two lookups in one kernel": _two_lookups,
    "labels": _labels,
    "solve": lambda: _matrices("solve", f"solve 'system': .*{SINGULAR}", 1.0),
    "triangular_solve": lambda: _matrices(
        "triangular_solve", f"triangular_solve 'system': .*{SINGULAR}", HOLE
    ),
    "inverse": lambda: _matrices("inverse", f"solve 'system': .*{SINGULAR}", 0.0),
    "cholesky": lambda: _matrices("cholesky", f"cholesky 'system': .*{INDEFINITE}", -HOLE),
    "cholesky of NaN": lambda: _matrices("cholesky", INDEFINITE, np.nan),
    "det's gradient": lambda: _matrices("det", f"solve: .*{SINGULAR}", HOLE),
    "power": _power,
}


def contents(session: darner.Session) -> dict[str, bytes]:
    """Every parameter, moment, state and counter of a session, bit for bit."""
    leaves = {**session.parameters(), **session.state()}
    return {name: np.asarray(value).tobytes() for name, value in leaves.items()}
