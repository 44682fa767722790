"""Where a derivative jumps or is infinite: what darner decided, once."""

import numpy as np
import pytest

import darner
from darner import Graph


def gradient_at(function, value):
    graph = Graph()
    x = graph.input("x", np.shape(value), "f64")
    graph.set_outputs([function(x).sum()])
    return darner.run(darner.grad(graph, "x"), {"x": np.array(value)})[0]


@pytest.mark.parametrize("name", ["abs", "relu", "sign"])
def test_gradient_at_zero_is_zero(name):
    np.testing.assert_array_equal(gradient_at(lambda x: getattr(x, name)(), [0.0, 0.0]), [0.0, 0.0])


@pytest.mark.parametrize("name", ["max", "min"])
def test_gradient_of_max_and_min_goes_to_the_first_of_equals(name):
    found = gradient_at(lambda x: getattr(x, name)(-1), [[2.0, 2.0, 2.0], [1.0, 1.0, 1.0]])
    np.testing.assert_array_equal(found, [[1, 0, 0], [1, 0, 0]])


def test_gradient_of_max_pool_goes_to_the_first_maximum():
    found = gradient_at(lambda x: x.max_pool(2), np.ones((1, 1, 4, 4)))
    wanted = np.zeros((4, 4))
    wanted[::2, ::2] = 1
    np.testing.assert_array_equal(found[0, 0], wanted)


def test_ties_of_maximum_and_minimum_go_to_the_first_operand():
    for name in ("maximum", "minimum"):
        graph = Graph()
        a, b = graph.input("a", (2,), "f64"), graph.input("b", (2,), "f64")
        graph.set_outputs([getattr(graph, name)(a, b).sum()])
        ones = {"a": np.ones(2), "b": np.ones(2)}
        first, second = darner.run(darner.grad(graph, ["a", "b"]), ones)
        np.testing.assert_array_equal(first, [1, 1])
        np.testing.assert_array_equal(second, [0, 0])


def test_clip_passes_the_gradient_at_its_bounds():
    found = gradient_at(lambda x: x.clip(-1.0, 1.0), [-2.0, -1.0, 0.0, 1.0, 2.0])
    np.testing.assert_array_equal(found, [0, 1, 1, 1, 0])


def test_where_does_not_leak_nan_from_the_branch_not_taken():
    graph = Graph()
    a, b = graph.input("a", (3,), "f64"), graph.input("b", (3,), "f64")
    graph.set_outputs([graph.where(a > 0.0, a, b).sum()])
    given = {"a": np.array([1.0, -1.0, 2.0]), "b": np.array([np.nan, 2.0, np.inf])}
    by_a, by_b = darner.run(darner.grad(graph, ["a", "b"]), given)
    np.testing.assert_array_equal(by_a, [1.0, 0.0, 1.0])
    np.testing.assert_array_equal(by_b, [0.0, 1.0, 0.0])


def test_a_guarded_operand_keeps_a_guarded_function_finite():
    def guarded_log(x):
        positive = x > 0.0
        return x.graph.where(positive, x.graph.where(positive, x, 1.0).log(), 0.0)

    np.testing.assert_array_equal(gradient_at(guarded_log, [-1.0, 0.0, 2.0]), [0.0, 0.0, 0.5])


def test_sqrt_and_log_at_the_edge_have_the_slope_of_their_formula():
    np.testing.assert_array_equal(gradient_at(lambda x: x.sqrt(), [0.0, 4.0]), [np.inf, 0.25])
    np.testing.assert_array_equal(gradient_at(lambda x: x.log(), [0.0, 4.0]), [np.inf, 0.25])


def test_norms_at_zero_give_no_nan():
    zeros = np.zeros((2, 3))
    for function in (lambda x: x.norm(-1), lambda x: x.std(-1), lambda x: x.l2_normalize()):
        assert np.isfinite(gradient_at(function, zeros)).all()


def test_sort_and_top_k_send_the_gradient_where_the_values_came_from():
    value = [3.0, 1.0, 2.0]
    weights = np.array([10.0, 20.0, 30.0])
    found = gradient_at(lambda x: x.sort() * weights, value)
    np.testing.assert_array_equal(found, [30.0, 10.0, 20.0])
    found = gradient_at(lambda x: x.top_k(2)[0] * weights[:2], value)
    np.testing.assert_array_equal(found, [10.0, 0.0, 20.0])
