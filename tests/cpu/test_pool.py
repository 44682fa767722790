"""Pooling and its gradients as native code, against the reference in float64."""

from itertools import product

import numpy as np
import pytest

import darner
from darner import Graph
from darner.backends.cpu.kernels import template_of
from darner.backends.cpu.pooling.template import POOLING
from darner.lower.lower import lower
from darner.lower.roles import whole_ops
from darner.ops.spatial.pool import avg_pool, avg_pool_backward, max_pool, max_pool_backward
from darner.testing import assert_close
from tests.cpu.running import compiled, run_program

OPS = ("max_pool", "max_pool_backward", "avg_pool", "avg_pool_backward")

SHAPES = {
    "a row": ((2, 3, 37), {"window": 3, "stride": 2}),
    "one window a row": ((2, 3, 9, 5), {"window": (3, 5), "stride": (1, 5)}),
    "narrow": ((3, 5, 34, 7), {"window": 2}),
    "square": ((2, 3, 19, 19), {"window": 3, "stride": 1}),
    "padded as in residual networks": ((2, 4, 23, 40), {"window": 3, "stride": 2, "padding": 1}),
    "padded on one side": (
        (1, 3, 12, 33),
        {"window": 5, "stride": (2, 3), "padding": ((3, 0), (0, 4))},
    ),
    "short rows, windows side by side": ((3, 5, 24, 8), {"window": 3, "stride": 3}),
    "windows side by side, the last beyond the end": (
        (2, 3, 10, 53),
        {"window": 3, "stride": 3, "ceil_mode": True},
    ),
    "a long way behind the last window": ((2, 3, 9, 50), {"window": 2, "stride": (5, 3)}),
    "many elements a window": ((1, 3, 20, 37), {"window": (2, 8), "stride": (2, 8)}),
    "gaps between windows": ((1, 2, 17, 90), {"window": (2, 3), "stride": (3, 7)}),
    "far windows": ((1, 2, 8, 140), {"window": (1, 4), "stride": (2, 8), "padding": (0, 1)}),
    "more rows than a block has": ((1, 1, 150, 70), {"window": 2, "stride": 1}),
    "one plane": ((1, 1, 21, 18), {"window": 4, "stride": (3, 2), "padding": 2}),
    "a plane in bands": ((1, 1, 190, 67), {"window": 5, "stride": 2, "padding": ((2, 1), (0, 2))}),
    "bands of windows side by side": (
        (1, 2, 83, 90),
        {"window": 3, "stride": 3, "ceil_mode": True},
    ),
    "long windows far from each other": (
        (1, 2, 40, 150),
        {"window": (3, 14), "stride": (11, 8), "padding": (1, 5)},
    ),
    "a partial last window": (
        (2, 2, 10, 20),
        {"window": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    ),
    "a volume in bands": ((1, 1, 40, 9, 20), {"window": 3, "stride": 1, "padding": 1}),
    "a volume": ((2, 2, 5, 7, 18), {"window": (2, 3, 3), "stride": (1, 2, 2), "padding": 1}),
}


def pooled(op, shape, attrs, dtype="f32"):
    """The graph of one of the four ops over inputs."""
    graph = Graph()
    if op in ("max_pool", "avg_pool"):
        node = (max_pool if op == "max_pool" else avg_pool)(graph.input("x", shape, dtype), **attrs)
    elif op == "max_pool_backward":
        x = graph.input("x", shape, dtype)
        counts = max_pool(Graph().input("x", shape, dtype), **attrs).shape
        node = max_pool_backward(x, graph.input("dy", counts, dtype), **attrs)
    else:
        counts = avg_pool(Graph().input("x", shape, dtype), **attrs).shape
        node = avg_pool_backward(graph.input("dy", counts, dtype), sizes=shape[2:], **attrs)
    graph.set_outputs([node])
    return graph


def inputs_of(graph, seed=0):
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(tuple(map(int, leaf.shape))).astype(leaf.dtype.numpy)
        for name, leaf in graph.inputs.items()
    }


def results(graph, given, threads=2):
    program = compiled(graph, threads=threads, whole=whole_ops())
    try:
        return run_program(program, given)
    finally:
        program.close()


def templates(graph):
    plan = lower(graph, target="cpu", whole=whole_ops())
    return [template_of(plan.spec(kernel)) for kernel in plan.kernels]


def assert_right(graph, dtype="f32", threads=2, given=None, length=128):
    given = inputs_of(graph) if given is None else given
    found = results(graph, given, threads)
    for a, b in zip(found, darner.run(graph, given, {}, float64=True), strict=True):
        assert_close(a, b, dtype, length)
    return found


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", SHAPES)
def test_pooling_is_that_of_the_reference(op, name):
    shape, attrs = SHAPES[name]
    graph = pooled(op, shape, attrs)
    assert templates(graph) == [POOLING]
    assert_right(graph)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
def test_pooling_of_other_floats(op, dtype):
    attrs = {"window": 3, "stride": 2, "padding": 1}
    graph = pooled(op, (2, 3, 13, 41), attrs, dtype)
    assert templates(graph) == [POOLING]
    assert_right(graph, dtype)


@pytest.mark.parametrize("op", ["max_pool", "max_pool_backward"])
def test_windows_with_holes(op):
    attrs = {"window": 3, "stride": (1, 2), "padding": (2, 1), "dilation": (3, 2)}
    assert_right(pooled(op, (2, 3, 16, 39), attrs))


@pytest.mark.parametrize("op", ["avg_pool", "avg_pool_backward"])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_padding_that_is_no_part_of_the_mean(op, ceil_mode):
    attrs = {"window": 4, "stride": 3, "padding": 2, "ceil_mode": ceil_mode}
    assert_right(pooled(op, (2, 2, 11, 24), {**attrs, "count_include_pad": False}))


@pytest.mark.parametrize("op", OPS)
def test_results_do_not_depend_on_the_number_of_threads(op):
    graph = pooled(op, (3, 5, 14, 27), {"window": 3, "stride": 1, "padding": 1})
    one, two, three = (assert_right(graph, threads=threads)[0] for threads in (1, 2, 3))
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, three)


def test_a_plane_in_bands_is_the_same_for_any_number_of_threads():
    attrs = {"window": (4, 3), "stride": 1, "padding": (2, 1)}
    graph = pooled("max_pool_backward", (1, 1, 130, 80), attrs)
    one, *others = (assert_right(graph, threads=threads)[0] for threads in (1, 2, 3))
    for other in others:
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_the_first_of_equal_maxima_takes_the_gradient(stride):
    graph = pooled("max_pool_backward", (2, 2, 20, 35), {"window": 3, "stride": stride})
    given = inputs_of(graph)
    given["x"] = np.random.default_rng(1).integers(0, 2, given["x"].shape).astype(np.float32)
    assert_right(graph, given=given)


def test_padding_loses_against_nothing_but_is_first_where_all_is_least():
    attrs = {"window": 3, "stride": 2, "padding": 1}
    given = {"x": np.full((1, 1, 8, 20), -np.inf, np.float32)}
    forward = pooled("max_pool", (1, 1, 8, 20), attrs)
    np.testing.assert_array_equal(results(forward, given)[0], np.full((1, 1, 4, 10), -np.inf))
    backward = pooled("max_pool_backward", (1, 1, 8, 20), attrs)
    given["dy"] = np.arange(1, 41, dtype=np.float32).reshape((1, 1, 4, 10))
    (wanted,) = darner.run(backward, given, {}, float64=True)
    np.testing.assert_array_equal(results(backward, given)[0], wanted)


def test_a_maximum_with_nan_is_nan_and_the_first_nan_takes_the_gradient():
    attrs = {"window": 3, "stride": 2, "padding": 1}
    forward = pooled("max_pool", (1, 2, 9, 40), attrs)
    x = inputs_of(forward)["x"]
    x[np.random.default_rng(2).random(x.shape) < 0.1] = np.nan
    (wanted,) = darner.run(forward, {"x": x}, {})
    assert np.isnan(wanted).any()
    assert not np.isnan(wanted).all()
    np.testing.assert_array_equal(results(forward, {"x": x})[0], wanted)
    backward = pooled("max_pool_backward", x.shape, attrs)
    given = {**inputs_of(backward), "x": x}
    (wanted,) = darner.run(backward, given, {}, float64=True)
    np.testing.assert_allclose(results(backward, given)[0], wanted, rtol=1e-6)


@pytest.mark.parametrize("op", OPS)
def test_what_follows_is_done_where_results_are_written(op):
    graph = pooled(op, (2, 3, 12, 21), {"window": 2, "stride": 2})
    (node,) = graph.outputs
    scale = graph.input("scale", (3, 1, 1))
    graph.set_outputs([(node * scale + graph.input("other", node.shape)).tanh()])
    assert templates(graph) == [POOLING]
    assert_right(graph)


def test_a_window_over_a_whole_image_is_a_reduction():
    graph = Graph()
    graph.set_outputs([graph.input("x", (4, 8, 7, 7)).avg_pool(7)])
    assert POOLING not in templates(graph)
    assert_right(graph)


def test_random_windows():
    rng = np.random.default_rng(5)
    for number, op in product(range(12), OPS):
        window = rng.integers(1, 6, 2)
        stride = rng.integers(1, 7, 2)
        padding = [tuple(int(rng.integers(0, reach)) for _ in range(2)) for reach in window]
        sizes = rng.integers(6, 48, 2)
        attrs = {
            "window": tuple(map(int, window)),
            "stride": tuple(map(int, stride)),
            "padding": tuple(padding),
            "ceil_mode": bool(number % 2),
        }
        if op.startswith("avg"):
            attrs["count_include_pad"] = bool(number % 3)
        shape = (*map(int, rng.integers(1, 4, 2)), *map(int, sizes))
        assert_right(pooled(op, shape, attrs), threads=1 + number % 3)
