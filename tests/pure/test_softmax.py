"""Softmax where it is hard: large logits, masks that leave nothing, empty axes, wrong calls."""

import numpy as np
import pytest
import torch

import darner
from darner import ArgumentError, DTypeError, Graph, ShapeError

INF = float("inf")


def run(build, *arrays, dtype=None, float64=False):
    """The result of ``build`` on inputs holding the arrays."""
    graph = Graph("test")
    nodes = []
    values = {}
    for i, array in enumerate(map(np.asarray, arrays)):
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        values[str(i)] = array
        nodes.append(graph.input(str(i), array.shape, array.dtype if dtype is None else dtype))
    graph.set_outputs([build(*nodes)])
    return darner.run(graph, values, float64=float64)[0]


def test_softmax_of_huge_logits_stays_finite():
    found = run(lambda x: x.softmax(), [[1e30, 0.0, -1e30], [-1e30, -1e30, -1e30]])
    np.testing.assert_allclose(found, [[1, 0, 0], [1 / 3, 1 / 3, 1 / 3]], rtol=1e-6)


def test_log_softmax_keeps_what_softmax_rounds_to_zero():
    found = run(lambda x: x.log_softmax(), [[0.0, -200.0, -300.0]])
    np.testing.assert_allclose(found, [[0, -200, -300]], atol=1e-5)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize(
    "row", [[-INF, -INF], [-INF, 0.0], [INF, 0.0], [float("nan"), 1.0]], ids=str
)
def test_infinities_and_nan_are_treated_as_in_torch(name, row):
    found = run(lambda x: getattr(x, name)(), [row])
    wanted = getattr(torch, name)(torch.tensor([row]), -1).numpy()
    np.testing.assert_array_equal(found, wanted)


def test_rows_of_any_axis_add_up_to_one():
    x = np.random.default_rng(0).normal(size=(3, 4, 5))
    for axis in (0, 1, 2, -1, -3):
        total = run(lambda x, axis=axis: x.softmax(axis).sum(axis), x)
        np.testing.assert_allclose(total, np.ones_like(total), rtol=1e-6)


def test_softmax_of_f16_is_computed_in_f32():
    x = np.linspace(0, 11, 4000, dtype=np.float16)  # the sum of exp overflows f16
    found = run(lambda x: x.softmax(), x)
    wanted = torch.softmax(torch.from_numpy(x.astype(np.float64)), -1).numpy()
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=1e-7)


def test_softmax_of_integers_is_f32():
    found = run(lambda x: x.softmax(), np.array([0, 0], np.int32))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [0.5, 0.5])


def test_softmax_over_no_elements_is_empty():
    assert run(lambda x: x.softmax(1), np.zeros((3, 0))).shape == (3, 0)
    assert run(lambda x: x.log_softmax(0), np.zeros((0, 3))).shape == (0, 3)


def test_masked_softmax_of_a_masked_row_is_zero():
    x = [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [-INF, 5.0, -INF]]
    mask = np.array([[True, False, True], [False, False, False], [True, False, True]])
    found = run(lambda x, m: x.masked_softmax(m), x, mask)
    low, high = np.exp([1.0, 3.0]) / np.exp([1.0, 3.0]).sum()
    np.testing.assert_allclose(found, [[low, 0, high], [0, 0, 0], [0, 0, 0]], rtol=1e-6)


def test_masked_softmax_does_not_look_at_masked_values():
    x = [[float("nan"), 1.0, INF, 1.0]]
    mask = np.array([False, True, False, True])
    found = run(lambda x, m: x.masked_softmax(m), x, mask)
    np.testing.assert_array_equal(found, [[0, 0.5, 0, 0.5]])


def test_backward_ops_are_the_gradients_of_torch():
    rng = np.random.default_rng(1)
    x, dy = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 3, 4))
    for name in ("softmax", "log_softmax"):
        t = torch.tensor(x, requires_grad=True)
        getattr(torch, name)(t, 1).backward(torch.tensor(dy))
        graph = Graph("backward")
        a, g = graph.input("x", x.shape, "f64"), graph.input("dy", x.shape, "f64")
        y = getattr(a, name)(1)
        graph.set_outputs([getattr(y, name + "_backward")(g, 1)])
        found = darner.run(graph, {"x": x, "dy": dy})[0]
        np.testing.assert_allclose(found, t.grad.numpy(), rtol=1e-12, atol=1e-14)


def test_softmin_prefers_the_smallest():
    found = run(lambda x: x.softmin(), [0.0, np.log(3.0)])
    np.testing.assert_allclose(found, [0.75, 0.25], rtol=1e-6)


def test_sm_is_softmax():
    graph = Graph("sm")
    x = graph.input("x", (2, 3))
    assert graph.sm(x, 0).op.name == "softmax"
    assert graph.sm(x.id, 0, (2, 3)).attrs == {"axis": 0}


def test_softmax_of_symbolic_sizes_runs_at_any_size():
    graph = Graph("symbolic")
    x = graph.input("x", ("batch", "n"))
    mask = graph.input("mask", ("n",), "bool")
    graph.set_outputs([x.softmax(), x.masked_softmax(mask, 0)])
    for shape in ((2, 3), (1, 7), (4, 0)):
        plain, masked = darner.run(
            graph, {"x": np.zeros(shape, np.float32), "mask": np.ones(shape[1], np.bool_)}
        )
        np.testing.assert_allclose(plain, np.full(shape, 1 / max(shape[1], 1)), rtol=1e-6)
        np.testing.assert_allclose(masked, np.full(shape, 1 / shape[0]), rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda m: m.x.softmax(2), ArgumentError, "axis 2 is outside -2..1"),
        (lambda m: m.scalar.softmax(), ArgumentError, "axis -1 does not exist in a scalar"),
        (lambda m: m.z.softmax(), DTypeError, "complex values"),
        (lambda m: m.x.masked_softmax(m.x), DTypeError, "mask must be bool, not f32"),
        (
            lambda m: m.x.masked_softmax(m.wide),
            ShapeError,
            r"x is f32\[4, 3\] but mask is bool\[2, 4, 3\]: mask \(2, 4, 3\) does not broadcast",
        ),
        (lambda m: m.x.softmax_backward(m.scalar), ShapeError, "shapes differ"),
        (lambda m: m.x.log_softmax_backward(m.row), ShapeError, "shapes differ"),
    ],
)
def test_wrong_calls_are_refused(call, error, text):
    class Model:
        graph = Graph("wrong")
        x = graph.input("x", (4, 3))
        row = graph.input("row", (3,))
        scalar = graph.input("scalar", ())
        z = graph.input("z", (3,), "c64")
        wide = graph.input("wide", (2, 4, 3), "bool")

    size = len(Model.graph)
    with pytest.raises(error, match=text):
        call(Model)
    assert len(Model.graph) == size
