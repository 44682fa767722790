"""Dropout in training and inference."""

import numpy as np
import pytest

import darner
from darner.nn.dropout import Dropout


def steps(layer, count=3, build=darner.build_session):
    """What the layer gives in each of some steps, and the gradient beside it."""
    graph = darner.Graph("dropped")
    x = graph.parameter("x", (40, 50), "f64", init="ones")
    y = layer(x)
    graph.set_outputs([y.sum(), y])
    found = []
    with build(graph) as session:
        for _ in range(count):
            session.step()
            y = session.read_output_by_index(1)
            found.append((y, session.gradients()["x"] if session.config.trains else None))
    return found


def test_elements_are_zero_or_scaled_and_so_are_gradients():
    for y, gradient in steps(Dropout(0.25)):
        assert set(np.unique(y)) == {0.0, 1.0 / 0.75}
        assert (y == 0).mean() == pytest.approx(0.25, abs=0.04)
        np.testing.assert_array_equal(gradient, y)


def test_every_step_leaves_out_others():
    (first, _), (second, _), _ = steps(Dropout(0.5))
    assert 0.4 < (first != second).mean() < 0.6


def test_two_calls_leave_out_others():
    layer = Dropout(0.5)
    ((y, _),) = steps(lambda x: layer(x) * layer(x), 1)
    assert (y != 0).mean() == pytest.approx(0.25, abs=0.05)


def test_another_seed_leaves_out_others():
    ((first, _),) = steps(Dropout(0.5), 1)
    ((again, _),) = steps(Dropout(0.5), 1)
    ((second, _),) = steps(Dropout(0.5, seed=1), 1)
    np.testing.assert_array_equal(first, again)
    assert 0.4 < (first != second).mean() < 0.6


def test_inference_passes_on_what_it_gets():
    ((y, _),) = steps(Dropout(0.5), 1, darner.build_inference_session)
    assert (y == 1).all()


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan")])
def test_a_rate_that_is_no_probability_is_refused(rate):
    with pytest.raises(darner.ArgumentError, match="Dropout: rate is a number from 0 to 1, got"):
        Dropout(rate)
