"""Reductions over the same axes in another order: one node, and one value on every backend and level."""

import math
from itertools import permutations

import numpy as np
import pytest

import darner
from darner import Graph

SHAPE = (3, 4, 5)
REDUCTIONS = {
    "sum": lambda x, axes, keepdims: x.sum(axes, keepdims),
    "prod": lambda x, axes, keepdims: x.prod(axes, keepdims),
    "max": lambda x, axes, keepdims: x.max(axes, keepdims),
    "min": lambda x, axes, keepdims: x.min(axes, keepdims),
    "any": lambda x, axes, keepdims: (x > 1.9).any(axes, keepdims),
    "all": lambda x, axes, keepdims: (x > 0.6).all(axes, keepdims),
    "mean": lambda x, axes, keepdims: x.mean(axes, keepdims),
    "var": lambda x, axes, keepdims: x.var(axes, keepdims),
    "std": lambda x, axes, keepdims: x.std(axes, keepdims, correction=1),
    "norm": lambda x, axes, keepdims: x.norm(axes, keepdims),
    "norm of order 1": lambda x, axes, keepdims: x.norm(axes, keepdims, order=1),
    "largest": lambda x, axes, keepdims: x.norm(axes, keepdims, order=math.inf),
    "logsumexp": lambda x, axes, keepdims: x.logsumexp(axes, keepdims),
    "count_nonzero": lambda x, axes, keepdims: x.count_nonzero(axes, keepdims),
    "l2_normalize": lambda x, axes, keepdims: x.l2_normalize(axes),
    "flip": lambda x, axes, keepdims: x.flip(axes),
}
ORDERS = [axes for count in (1, 2, 3) for axes in permutations(range(3), count)]


def _all_of(name, order):
    """A graph of one reduction over every choice of axes, each put in order by ``order``."""
    g = Graph()
    x = g.input("x", SHAPE)
    make = REDUCTIONS[name]
    g.set_outputs([make(x, order(axes), kept) for axes in ORDERS for kept in (False, True)])
    return g


@pytest.mark.parametrize("name", REDUCTIONS)
def test_axes_are_a_set(name):
    given, ascending = _all_of(name, tuple), _all_of(name, lambda axes: tuple(sorted(axes)))
    behind = _all_of(name, lambda axes: tuple(axis - 3 for axis in axes))
    assert str(given) == str(ascending) == str(behind)
    assert given.digest() == ascending.digest()


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_any_order_gives_the_value_of_the_ascending_one(level):
    x = np.random.default_rng(0).uniform(0.5, 2.0, SHAPE).astype(np.float32)
    g = Graph()
    node = g.input("x", SHAPE)
    cases = [
        (make, axes, kept) for make in REDUCTIONS.values() for axes in ORDERS for kept in (0, 1)
    ]
    g.set_outputs([make(node, axes, bool(kept)) for make, axes, kept in cases])
    wanted = darner.run(g, {"x": x})
    with darner.build_inference_session(g, level=level) as session:
        found = list(session.run({"x": x}).values())
    assert len(found) == len(cases)
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=1e-5)


@pytest.mark.parametrize("name", sorted({*REDUCTIONS} - {"any", "all", "count_nonzero", "flip"}))
def test_gradients_do_not_ask_for_the_order_of_axes(name):
    x = np.random.default_rng(1).uniform(0.5, 2.0, SHAPE)
    found = []
    for axes in [(0, 2), (2, 0), (-1, 0)]:
        g = Graph()
        node = g.parameter("x", SHAPE, "f64")
        g.set_outputs([(REDUCTIONS[name](node, axes, True) * node).sum()])
        found.append(darner.run(darner.grad(g), params={"x": x})[-1])
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_numbers_are_those_of_numpy():
    x = np.random.default_rng(2).uniform(0.5, 2.0, SHAPE).astype(np.float32)
    g = Graph()
    node = g.input("x", SHAPE)
    g.set_outputs([node.mean((-1, -2)), node.max((2, 1, 0)), node.var((1, 0), True)])
    with darner.build_inference_session(g) as session:
        mean, peak, spread = session.run({"x": x}).values()
    np.testing.assert_allclose(mean, x.mean((1, 2)), rtol=1e-5)
    np.testing.assert_array_equal(peak, x.max())
    np.testing.assert_allclose(spread, x.var((0, 1), keepdims=True), rtol=1e-5)
