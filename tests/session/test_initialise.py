"""The numbers that parameters start with."""

import math
from statistics import NormalDist

import numpy as np
import pytest

import darner
from darner import Graph
from darner.graph import initial
from darner.graph.types import TensorType
from darner.session.initialise import initial_value

COUNT = 400_001

NORMAL = [-1.5527082282846505, -2.4441484815025305, 0.5424086159207808, -0.5769381837630497]
"""By Python's own functions from the counter's 0xa8f0e15f03de43d5 and 0xdebe5899bb19aff6."""
EVEN = [-0.9697796106338501, 0.3198510408401489, 0.4617213010787964, 0.7401838302612305]


def drawn(rule, dtype="f32", shape=(COUNT,), seed=3):
    return initial_value(rule, "a.weight", TensorType.new(shape, dtype), seed)


def test_normal_numbers_are_normal():
    found = drawn("normal(0.5)", "f64") / 0.5
    np.testing.assert_allclose(found.mean(), 0.0, atol=5 / math.sqrt(COUNT))
    np.testing.assert_allclose(found.std(), 1.0, rtol=4 / math.sqrt(COUNT))
    for bound in (-3.0, -1.0, -0.1, 0.0, 0.1, 1.0, 3.0, 4.0):
        share = NormalDist().cdf(bound)
        error = 5 * math.sqrt(share * (1 - share) / COUNT)
        np.testing.assert_allclose((found < bound).mean(), share, atol=error)
    pairs = found[: COUNT // 2 * 2].reshape(-1, 2)
    for one, other in ((pairs[:, 0], pairs[:, 1]), (pairs[1:, 0], pairs[:-1, 1])):
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / math.sqrt(COUNT / 2)
        assert abs(np.corrcoef(one**2, other**2)[0, 1]) < 5 / math.sqrt(COUNT / 2)
    assert len(np.unique(found)) > 0.99 * COUNT


def test_even_numbers_are_even():
    found = drawn("uniform(0.25)") / np.float32(0.25)
    assert -1.0 <= found.min() < -0.9999
    assert 0.9999 < found.max() < 1.0
    shares = np.histogram(found, 20, (-1, 1))[0] / COUNT
    np.testing.assert_allclose(shares, 0.05, atol=5 * math.sqrt(0.05 / COUNT))
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 5 / math.sqrt(COUNT)


def test_truncated_numbers_end_at_two_deviations():
    found = drawn("truncated_normal(0.5)") / 0.5
    assert 1.999 < np.abs(found).max() <= 2.0
    inside = NormalDist().cdf(1.0) - NormalDist().cdf(-1.0)
    whole = NormalDist().cdf(2.0) - NormalDist().cdf(-2.0)
    np.testing.assert_allclose((np.abs(found) < 1).mean(), inside / whole, atol=0.004)


@pytest.mark.parametrize("rule", ["normal(0.02)", "truncated_normal", "uniform", "xavier_normal"])
@pytest.mark.parametrize(("dtype", "exact"), [("f32", 1e-6), ("bf16", 5e-3)])
def test_narrow_types_have_the_numbers_of_f64_rounded(rule, dtype, exact):
    wide, narrow = (drawn(rule, one, (333, 301)) for one in ("f64", dtype))
    error = np.abs(narrow.astype(np.float64) - wide)
    assert error.max() <= exact * np.abs(wide).max()
    assert (error > 0).any() or rule == "uniform"


@pytest.mark.parametrize("rule", ["normal(0.02)", "uniform", "truncated_normal"])
def test_numbers_do_not_depend_on_how_many_are_made_at_a_time(rule, monkeypatch):
    whole = drawn(rule, shape=(7, 1001))
    monkeypatch.setattr(initial, "BLOCK", 256)
    np.testing.assert_array_equal(drawn(rule, shape=(7, 1001)), whole)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (0, 4), (2, 3)])
def test_shapes_of_every_size(shape):
    for rule in ("normal", "uniform", "truncated_normal", "ones", "constant(2)"):
        found = drawn(rule, shape=shape)
        assert (found.shape, found.dtype) == (shape, np.float32)
        assert np.isfinite(found).all()


def test_the_first_numbers_of_a_seed():
    """They are promised: a session of the same seed starts alike in the next version."""
    normal = drawn("normal(1)", shape=(4,), seed=0)
    even = drawn("uniform(1)", shape=(4,), seed=0)
    np.testing.assert_allclose(normal, NORMAL, rtol=2e-6)
    np.testing.assert_allclose(even, EVEN, rtol=1e-6)


def test_layers_of_zeros_that_nobody_gave_values_are_told_of_once():
    g = Graph("zeros")
    x = g.input("x", (4, 3))
    hidden = (x @ g.parameter("first", (3, 5))).relu()
    g.set_outputs([(hidden @ g.parameter("second", (5, 2))).square().mean()])
    given = {"x": np.ones((4, 3), np.float32)}
    with darner.build_session(g, optimizer=darner.optim.SGD(0.1)) as session:
        with pytest.warns(darner.session.ZeroParametersWarning, match="'first', 'second' of graph"):
            session.run(given)
        session.run(given)  # once
    for options in ({"init": "zeros"}, {"init": "kaiming"}):
        with darner.build_session(g, optimizer=darner.optim.SGD(0.1), **options) as session:
            session.run(given)
    with darner.build_session(g, optimizer=darner.optim.SGD(0.1)) as session:
        session.set_parameter("first", np.ones((3, 5)))
        session.run(given)
