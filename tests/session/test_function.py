"""``darner.function``: Python functions over nodes, called with arrays."""

from collections import namedtuple

import numpy as np
import pytest
import torch

import darner

Pair = namedtuple("Pair", "sum difference")
A = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
B = np.array([10, 20, 30], np.float32)


def test_a_function_is_traced_once_for_each_shape_and_type():
    calls = []

    @darner.function(threads=1, level=1)
    def scaled(x, y):
        """Adds."""
        calls.append((x.shape, x.dtype))
        return x * 2.0 + y

    assert scaled.__name__ == "scaled"
    assert scaled.__doc__ == "Adds."
    np.testing.assert_array_equal(scaled(A, B), A * 2 + B)
    np.testing.assert_array_equal(scaled(A + 1, B), (A + 1) * 2 + B)
    assert len(calls) == scaled.traces == 1
    np.testing.assert_array_equal(scaled(A[:1], B), A[:1] * 2 + B)
    found = scaled(A.astype(np.float64), y=B.astype(np.float64))
    assert found.dtype == np.float64
    assert scaled.traces == 3
    assert [node.op.name for node in scaled.graph(A, B).nodes][-1] == "add"
    assert scaled.traces == 3
    scaled.clear()
    np.testing.assert_array_equal(scaled(A, B), A * 2 + B)
    assert scaled.traces == 4


def test_results_have_the_structure_that_was_returned():
    @darner.function(device="reference", level=0)
    def several(x, y):
        return {"pair": Pair(x + y, x - y), "list": [x, (y * 2.0, None)], "text": "as it is"}

    found = several(A, B)
    assert found["text"] == "as it is"
    assert isinstance(found["pair"], Pair)
    np.testing.assert_array_equal(found["pair"].sum, A + B)
    np.testing.assert_array_equal(found["pair"].difference, A - B)
    np.testing.assert_array_equal(found["list"][0], A)
    np.testing.assert_array_equal(found["list"][1][0], 2 * B)
    assert found["list"][1][1] is None


def test_arrays_inside_structures_are_inputs_and_other_values_are_static():
    @darner.function(device="reference", level=0)
    def dense(weights, x, *, activation="relu", power=1):
        for layer in weights:
            x = getattr(x @ layer["w"] + layer["b"], activation)()
        for _ in range(power - 1):
            x = x * x
        return x

    rng = np.random.default_rng(0)
    layers = [
        {"w": rng.normal(size=(3, 3)).astype(np.float32), "b": B / 10},
        {"w": rng.normal(size=(3, 2)).astype(np.float32), "b": np.zeros(2, np.float32)},
    ]
    for activation, function in {"relu": lambda v: np.maximum(v, 0), "tanh": np.tanh}.items():
        wanted = A
        for layer in layers:
            wanted = function(wanted @ layer["w"] + layer["b"])
        found = dense(layers, A, activation=activation, power=2)
        np.testing.assert_allclose(found, wanted**2, rtol=1e-4, atol=1e-5)
    assert dense.traces == 2
    assert list(dense.graph(layers, A).inputs) == [
        "weights.0.w",
        "weights.0.b",
        "weights.1.w",
        "weights.1.b",
        "x",
    ]


def test_equal_numbers_of_different_types_are_different_traces():
    @darner.function(device="reference", level=0)
    def by(x, factor):
        return x * factor

    ints = np.array([1, 2], np.int32)
    assert by(ints, 2).dtype == np.int32
    assert by(ints, 2.0).dtype == np.float32
    assert by.traces == 2
    assert by(ints, np.int32(3)).tolist() == [3, 6]  # an array of no axes: an input
    assert by(ints, np.int32(4)).tolist() == [4, 8]
    assert by.traces == 3


def test_torch_tensors_are_arrays_and_methods_are_functions():
    class Model:
        factor = 3.0

        @darner.function(level=0, threads=1)
        def forward(self, x):
            return x * self.factor

    model = Model()
    found = model.forward(torch.ones(4))
    np.testing.assert_array_equal(found, np.full(4, 3.0, np.float32))
    assert isinstance(found, np.ndarray)


def test_only_so_many_traces_are_kept():
    @darner.function(device="reference", level=0, kept=2)
    def double(x):
        return x + x

    for n in (1, 2, 3, 2, 1):
        assert double(np.ones(n, np.float32)).shape == (n,)
    assert double.traces == 4
    assert len(double._traced) == 2


def test_gradients_inside_are_a_matter_of_graphs():
    @darner.function(level=1, threads=1)
    def loss(w, x):
        return (x @ w).square().mean()

    graph = loss.graph(B, A)
    (gradient,) = darner.run(darner.grad(graph, "w"), {"w": B, "x": A})
    np.testing.assert_allclose(gradient, 2 * A.T @ (A @ B) / 2, rtol=1e-5)


def message_of(call):
    with pytest.raises(darner.DarnerError) as error:
        call()
    return str(error.value)


def test_mistakes_are_told():
    @darner.function(device="reference", level=0)
    def product(x, w):
        return x @ w

    message = message_of(lambda: product(A, np.ones((2, 2), np.float32)))
    assert "matmul" in message
    assert "inner sizes 3 and 2 differ (test_function.py:" in message
    assert "product: missing a required argument: 'w'" in message_of(lambda: product(A))
    assert "product: it is called without any array" in message_of(lambda: product(1, 2))
    message = message_of(lambda: product(A, {1, 2}))
    assert "argument 'w' is set, which is neither an array nor hashable" in message

    @darner.function(device="reference")
    def constant(x):
        return 5

    assert "constant: it returned no node, but 5" in message_of(lambda: constant(A))
    message = message_of(lambda: darner.function(device="tpu")(lambda x: x))
    assert "function: there is no device 'tpu'" in message
    assert "a function computes; build_session trains" in message_of(
        lambda: darner.function(mode="train")(lambda x: x)
    )
    assert product.traces == 0
