"""Jacobians and Hessians against PyTorch's, alone and composed with other transforms; replacing leaves."""

import numpy as np
import pytest
import torch

import darner
from darner import ArgumentError, Graph, ShapeError, UnknownNameError

RNG = np.random.default_rng(5)
X, W = RNG.normal(size=(3, 4)), RNG.normal(size=(4, 2))
BOTH = [darner.jacrev, darner.jacfwd]


def layer():
    """Two float outputs, of different shapes, and one that is not a float."""
    g = Graph("layer")
    x, w = g.input("x", (3, 4), "f64"), g.parameter("w", (4, 2), "f64")
    h = (x @ w).tanh()
    g.set_outputs([h, (h.exp() * 2.0).sum(0), x.argmax()])
    return g


def torch_layer(x, w):
    h = torch.tanh(x @ w)
    return h, (h.exp() * 2.0).sum(0)


def close(found, wanted):
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-11, atol=1e-12)


def tensors(*arrays):
    return [torch.from_numpy(np.array(array)) for array in arrays]


# --------------------------------------------------------------------------- Jacobians


@pytest.mark.parametrize("transform", BOTH)
def test_jacobians_agree_with_torch_for_each_output_and_each_input(transform):
    graph = transform(layer(), ["x", "w"]).verify()
    assert [node.shape for node in graph.outputs] == [
        (3, 2, 3, 4),
        (3, 2, 4, 2),
        (2, 3, 4),
        (2, 4, 2),
    ]
    wanted = torch.func.jacrev(torch_layer, (0, 1))(*tensors(X, W))
    found = darner.run(graph, {"x": X}, {"w": W})
    for one, other in zip(found, [block for row in wanted for block in row], strict=True):
        close(one, other)


@pytest.mark.parametrize("transform", BOTH)
def test_parameters_are_meant_by_default(transform):
    assert [node.shape for node in transform(layer()).outputs] == [(3, 2, 4, 2), (2, 4, 2)]


@pytest.mark.parametrize("transform", BOTH)
def test_the_basis_is_counted_and_never_stored(transform):
    graph = transform(layer(), "x")
    assert list(graph.inputs) == ["x"]
    constants = [node for node in graph.nodes if node.op.name == "constant"]
    assert all(node.size == 1 for node in constants)
    assert "iota" in {node.op.name for node in graph.nodes}


def test_the_forward_pass_is_computed_once_for_several_outputs():
    assert [node.op.name for node in darner.jacrev(layer(), "x").nodes].count("tanh") == 1
    assert [node.op.name for node in darner.jacfwd(layer(), ["x", "w"]).nodes].count("tanh") == 1


@pytest.mark.parametrize("transform", BOTH)
def test_what_an_output_does_not_depend_on_has_a_jacobian_of_zeros(transform):
    g = Graph()
    x, y = g.input("x", (2,), "f64"), g.input("y", (3,), "f64")
    g.set_outputs([x.exp(), y * 2.0])
    found = darner.run(transform(g, ["x", "y"]), {"x": np.zeros(2), "y": np.zeros(3)})
    for one, other in zip(
        found, [np.eye(2), np.zeros((2, 3)), np.zeros((3, 2)), 2 * np.eye(3)], strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("transform", BOTH)
def test_scalars_and_empty_tensors_have_jacobians(transform):
    g = Graph()
    x, empty = g.input("x", (), "f64"), g.input("empty", (0, 2), "f64")
    g.set_outputs([x * x, empty.exp(), empty.sum() + x])
    graph = transform(g, ["x", "empty"])
    found = darner.run(graph, {"x": np.array(3.0), "empty": np.zeros((0, 2))})
    assert [value.shape for value in found] == [(), (0, 2), (0, 2), (0, 2, 0, 2), (), (0, 2)]
    assert (float(found[0]), float(found[4])) == (6.0, 1.0)


@pytest.mark.parametrize("transform", BOTH)
def test_sizes_may_be_symbols(transform):
    g = Graph()
    g.set_outputs([g.input("x", ("n",), "f64").square()])
    graph = transform(g, "x")
    assert [str(size) for size in graph.outputs[0].shape] == ["n", "n"]
    np.testing.assert_array_equal(
        darner.run(graph, {"x": np.array([1.0, 2.0, 3.0])})[0], np.diag([2.0, 4.0, 6.0])
    )


@pytest.mark.parametrize("transform", BOTH)
def test_a_node_in_the_middle_can_be_differentiated_by(transform):
    g = Graph()
    h = g.input("x", (2,), "f64").exp()
    g.set_outputs([h.square()])
    found = darner.run(transform(g, [h]), {"x": np.log([2.0, 3.0])})
    np.testing.assert_allclose(found[0], np.diag([4.0, 6.0]))


@pytest.mark.parametrize("transform", BOTH)
def test_updates_of_states_stay(transform):
    g = Graph()
    x, seen = g.input("x", (2,), "f64"), g.state("seen", (2,), "f64")
    g.set_update(seen, seen + x)
    g.set_outputs([x.square()])
    state = {}
    darner.run(transform(g, "x"), {"x": np.array([1.0, 2.0])}, state=state)
    np.testing.assert_array_equal(state["seen"], [1.0, 2.0])


@pytest.mark.parametrize("transform", BOTH)
def test_jacobians_of_softmax_attention_and_top_k_agree_with_each_other(transform):
    g = Graph()
    x = g.input("x", (3, 4), "f64")
    values, _ = x.top_k(2)
    g.set_outputs([x.softmax(-1), x.layer_norm(g.ones((4,), "f64"), g.zeros((4,), "f64")), values])
    found = darner.run(transform(g, "x"), {"x": X})

    def peer(x):
        return x.softmax(-1), torch.nn.functional.layer_norm(x, (4,)), x.topk(2).values

    for one, other in zip(found, torch.func.jacrev(peer)(*tensors(X)), strict=True):
        close(one, other)


@pytest.mark.parametrize("transform", BOTH)
def test_complex_values_are_refused(transform):
    g = Graph()
    z = g.input("z", (2,), "c64")
    g.set_outputs([z * z])
    with pytest.raises(ArgumentError, match=r"complex values is not one matrix.*use vjp or jvp"):
        transform(g, "z")


@pytest.mark.parametrize("transform", BOTH)
def test_integers_between_are_named_with_the_line(transform):
    g = Graph()
    x = g.input("x", (3,))
    g.set_outputs([x.argmax().cast("f32")])
    with pytest.raises(ArgumentError, match=r"no gradient reaches 'x'.*argmax.*test_jacobians.py"):
        transform(g, "x")


@pytest.mark.parametrize("transform", BOTH)
def test_nothing_to_differentiate_is_an_error(transform):
    g = Graph()
    x = g.input("x", (3,))
    g.set_outputs([x.argmax()])
    with pytest.raises(ArgumentError, match="no output is a float"):
        transform(g, "x")
    g.set_outputs([x])
    with pytest.raises(ArgumentError, match=r"nothing to differentiate by; name an input"):
        transform(g)


# --------------------------------------------------------------------------- Hessians


def energy():
    g = layer()
    g.set_outputs([g.outputs[1].square().sum()])
    return g


def torch_energy(x, w):
    return torch_layer(x, w)[1].square().sum()


# Reverse mode twice: PyTorch's forward mode warns about itself.
torch_hessian = torch.func.jacrev(torch.func.jacrev(torch_energy, (0, 1)), (0, 1))


def test_hessian_has_a_block_for_every_pair():
    graph = darner.hessian(energy(), ["x", "w"]).verify()
    wanted = torch_hessian(*tensors(X, W))
    found = darner.run(graph, {"x": X}, {"w": W})
    for one, other in zip(found, [block for row in wanted for block in row], strict=True):
        close(one, other)


def test_hessian_of_a_linear_function_by_a_labelled_node_is_zero():
    g = Graph()
    h = g.input("x", (2,), "f64").exp(label="h")
    g.set_outputs([(h * 3.0).sum()])
    np.testing.assert_array_equal(
        darner.run(darner.hessian(g, "h"), {"x": np.zeros(2)})[0], np.zeros((2, 2))
    )
    product = darner.run(darner.hvp(g, "h"), {"x": np.zeros(2), "tangent_h": np.ones(2)})
    np.testing.assert_array_equal(product[0], np.zeros(2))
    assert [node.id for node in g.outputs] == [len(g) - 1]


def test_hessian_needs_one_element():
    with pytest.raises(ArgumentError, match=r"must be one float, but it is f64\[3, 2\]"):
        darner.hessian(layer(), "x")


def test_hessian_is_jacobian_of_jacobian_in_any_order():
    graph, values = energy(), {"x": X}
    wanted = darner.run(darner.hessian(graph, "x"), values, {"w": W})[0]
    for outer in BOTH:
        for inner in BOTH:
            found = darner.run(outer(inner(graph, "x"), "x"), values, {"w": W})[0]
            np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12)


def test_hessian_times_a_vector_is_hvp():
    graph, vector = energy(), RNG.normal(size=(3, 4))
    block = darner.run(darner.hessian(graph, "x"), {"x": X}, {"w": W})[0]
    product = darner.run(darner.hvp(graph, "x"), {"x": X, "tangent_x": vector}, {"w": W})[0]
    np.testing.assert_allclose(np.einsum("abcd,cd", block, vector), product, rtol=1e-10)


# --------------------------------------------------------------------------- with batches

BATCH = RNG.normal(size=(5, 3, 4))


def test_per_example_gradients_are_the_batch_of_the_gradient():
    graph = darner.vmap(darner.grad(energy(), "w"), ["x"], 5)
    found = darner.run(graph, {"x": BATCH}, {"w": W})[0]
    wanted = torch.func.vmap(torch.func.grad(torch_energy, 1), (0, None))(*tensors(BATCH, W))
    close(found, wanted)


def test_hessian_of_a_batch_is_the_batch_of_the_hessian():
    graph = darner.vmap(darner.hessian(energy(), ["x", "w"]), ["x"], 5)
    found = darner.run(graph, {"x": BATCH}, {"w": W})
    wanted = torch.func.vmap(torch_hessian, (0, None))(*tensors(BATCH, W))
    for one, other in zip(found, [block for row in wanted for block in row], strict=True):
        close(one, other)


@pytest.mark.parametrize("transform", BOTH)
def test_jacobian_of_a_batched_function(transform):
    g = Graph()
    g.set_outputs([g.input("x", (4,), "f64").softmax()])
    graph = transform(darner.vmap(g, ["x"], 3), "x")
    found = darner.run(graph, {"x": X})[0]
    wanted = torch.func.jacrev(lambda x: x.softmax(-1))(*tensors(X))
    close(found, wanted)


def test_gradient_of_a_jacobian():
    g = Graph()
    x = g.input("x", (3,), "f64")
    g.set_outputs([x.tanh() * x.sum()])
    jacobian = darner.jacrev(g, "x")
    jacobian.set_outputs([jacobian.outputs[0].square().sum()])
    point = RNG.normal(size=3)
    found = darner.run(darner.grad(jacobian, "x"), {"x": point})[0]

    def peer(x):
        return torch.func.jacrev(lambda x: x.tanh() * x.sum())(x).square().sum()

    close(found, torch.func.grad(peer)(*tensors(point)))


# --------------------------------------------------------------------------- substitute


def test_substitute_puts_a_node_in_place_of_a_leaf():
    g = layer()
    new = darner.substitute(g, {"x": lambda h: h.input("raw", (3, 4), "f64") * 2.0}).verify()
    assert list(new.inputs) == ["raw"]
    assert list(new.parameters) == ["w"]
    wanted = darner.run(g, {"x": 2 * X}, {"w": W})
    for one, other in zip(darner.run(new, {"raw": X}, {"w": W}), wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_replacement_may_read_the_leaves_that_remain():
    new = darner.substitute(layer(), {"w": lambda h: h.inputs["x"].T[:, :2]})
    found = darner.run(new, {"x": X})
    np.testing.assert_allclose(found[0], np.tanh(X @ X.T[:, :2]))


def test_substitute_refuses_what_does_not_fit():
    g = layer()
    with pytest.raises(ShapeError, match=r"'x' is f64\[3, 4\], but its replacement is f64\[2\]"):
        darner.substitute(g, {"x": lambda h: h.zeros((2,), "f64")})
    with pytest.raises(UnknownNameError, match=r"no leaf 'xx'; did you mean 'x'"):
        darner.substitute(g, {"xx": lambda h: h.zeros((3, 4), "f64")})
    with pytest.raises(ArgumentError, match="must be a function of the new graph, got 3"):
        darner.substitute(g, {"x": 3})
    with pytest.raises(ArgumentError, match="must return a node of the graph it gets"):
        darner.substitute(g, {"x": lambda h: g.outputs[0]})
    counter = Graph()
    state = counter.state("n", ())
    counter.set_update(state, state + 1.0)
    with pytest.raises(ArgumentError, match="'n' has an update"):
        darner.substitute(counter, {"n": lambda h: h.zeros(())})
