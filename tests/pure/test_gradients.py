"""What the derivative transforms build and keep, and derivatives of any order."""

import os
import subprocess
import sys

import numpy as np
import pytest

import darner
from darner import Graph


def rng(seed=0):
    return np.random.default_rng(seed)


def mlp(layers=3, width=4, dtype="f64"):
    """A few dense layers with a mean square at the end, and values for its leaves."""
    graph = Graph("mlp")
    x = graph.input("x", (5, width), dtype)
    target = graph.input("target", (5, width), dtype)
    for i in range(layers):
        with graph.scope(f"layer{i}"):
            w = graph.parameter("w", (width, width), dtype)
            b = graph.parameter("b", (width,), dtype)
            x = (x @ w + b).tanh(label="out")
    graph.set_outputs([(x - target).square().mean()])
    random = rng(1)
    inputs = {name: random.normal(size=(5, width)) for name in ("x", "target")}
    params = {name: random.normal(size=node.shape) for name, node in graph.parameters.items()}
    return graph, inputs, params


def unused_nodes(graph):
    """Nodes that nothing reads, leaves aside."""
    return [
        node
        for node in graph.nodes
        if not graph.use_count(node)
        and not graph.is_output(node)
        and node not in graph.updates.values()
        and "leaf" not in node.op.traits
    ]


def large_constants(graph):
    return [node for node in graph.nodes if node.op.name == "constant" and node.size > 1]


def slope(graph, inputs, params, name, step=1e-6):
    """The gradient of the first output by a parameter, by differences at every element."""
    found = np.zeros(params[name].shape)
    for place in np.ndindex(found.shape):
        values = []
        for sign in (1, -1):
            moved = params[name].copy()
            moved[place] += sign * step
            values.append(darner.run(graph, inputs, {**params, name: moved})[0].item())
        found[place] = (values[0] - values[1]) / (2 * step)
    return found


# --------------------------------------------------------------------------- what is built


def test_gradients_come_in_the_order_of_the_parameters_and_agree_with_differences():
    graph, inputs, params = mlp()
    found = darner.run(darner.grad(graph), inputs, params)
    assert len(found) == len(params) == 6
    for name, gradient in zip(params, found, strict=True):
        np.testing.assert_allclose(
            gradient, slope(graph, inputs, params, name), rtol=1e-6, atol=1e-9
        )


def test_gradients_come_in_the_order_that_was_asked_for():
    graph, inputs, params = mlp()
    whole = dict(zip(params, darner.run(darner.grad(graph), inputs, params), strict=True))
    names = ["layer2.w", "layer0.b"]
    for name, gradient in zip(
        names, darner.run(darner.grad(graph, names), inputs, params), strict=True
    ):
        np.testing.assert_array_equal(gradient, whole[name])


def test_every_node_of_a_gradient_graph_is_used():
    graph, _, _ = mlp()
    for result in (
        darner.grad(graph),
        darner.value_and_grad(graph),
        darner.grad(graph, "layer1.w"),
        darner.vjp(graph),
        darner.jvp(graph),
        darner.hvp(graph),
    ):
        assert unused_nodes(result) == []
        result.verify()


def test_nothing_is_built_toward_inputs_that_nobody_asked_for():
    graph = Graph()
    x, w = graph.input("x", (8, 4)), graph.parameter("w", (4, 3))
    graph.set_outputs([(x @ w).sum()])
    gradient = darner.grad(graph)
    assert all(node.shape != (8, 4) or node.op.name == "input" for node in gradient.nodes)
    both = darner.grad(graph, ["x", "w"])
    assert len(both) > len(gradient)


def test_the_gradient_of_the_last_layer_does_not_walk_the_others():
    sizes = []
    for layers in (2, 4, 8):
        graph, _, _ = mlp(layers)
        sizes.append(len(darner.grad(graph, f"layer{layers - 1}.w")) - len(graph))
    assert sizes[0] == sizes[1] == sizes[2]


def test_frozen_parameters_cost_nothing():
    graph, inputs, params = mlp(4)
    whole = darner.grad(graph)
    last = darner.grad(graph, ["layer3.w", "layer3.b"])
    frozen = darner.grad(graph, frozen=["layer0", "layer1", "layer2"])
    assert len(frozen) == len(last) < len(whole)
    assert len(frozen.outputs) == 2
    for a, b in zip(
        darner.run(frozen, inputs, params), darner.run(whole, inputs, params)[-2:], strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_frozen_means_a_name_or_a_scope_and_nothing_that_only_begins_alike():
    g = darner.Graph()
    x = g.input("x", (2,))
    names = ["layer1.w", "layer1.b", "layer10.w", "head"]
    total = x.sum()
    for name in names:
        total = total + (x * g.parameter(name, (2,))).sum()
    g.set_outputs([total])
    assert len(darner.grad(g, frozen=["layer1"]).outputs) == 2
    assert len(darner.grad(g, frozen=["layer10.w", "head"]).outputs) == 2
    assert len(darner.grad(g, frozen="head").outputs) == 3
    with pytest.raises(darner.UnknownNameError, match=r"scope 'layer2' to freeze; did you mean"):
        darner.grad(g, frozen=["layer2"])


def test_frozen_bottom_layers_are_not_differentiated_though_the_top_reads_them():
    graph, _, _ = mlp(6)
    top = darner.grad(graph, frozen=["layer0", "layer1", "layer2", "layer3"])
    bottom = darner.grad(graph, frozen=["layer2", "layer3", "layer4", "layer5"])
    assert len(top) < len(bottom)


@pytest.mark.parametrize(
    "transform", [darner.grad, darner.value_and_grad, darner.vjp, darner.jvp, darner.hvp]
)
def test_no_array_of_ones_or_zeros_is_stored(transform):
    graph, _, _ = mlp()
    assert large_constants(transform(graph)) == []


def test_gradients_of_reductions_and_selections_store_no_arrays():
    graph = Graph()
    w = graph.parameter("w", (6, 7))
    parts = [
        w.mean(),
        w.max(0).sum(),
        w.relu().sum(),
        w.softmax().square().sum(),
        w[1:3].sum(),
        graph.where(w > 0.0, w, 0.0).sum(),
        graph.maximum(w, 0.5).sum(),
    ]
    graph.set_outputs([sum(parts[1:], parts[0])])
    assert large_constants(darner.grad(graph)) == []


def test_other_outputs_are_kept_by_value_and_grad_and_left_by_grad():
    graph, inputs, params = mlp()
    hidden = next(node for node in graph.nodes if node.label == "layer1.out")
    graph.set_outputs([graph.outputs[0], hidden, hidden.argmax(-1)])
    plain = darner.run(graph, inputs, params)
    found = darner.run(darner.value_and_grad(graph), inputs, params)
    assert len(found) == 3 + 6
    for a, b in zip(plain, found, strict=False):
        np.testing.assert_array_equal(a, b)
    gradients = darner.run(darner.grad(graph), inputs, params)
    for a, b in zip(gradients, found[3:], strict=True):
        np.testing.assert_array_equal(a, b)


def test_differentiate_is_value_and_grad():
    graph, _, _ = mlp()
    assert darner.differentiate(graph) == darner.value_and_grad(graph)


def test_the_graph_itself_is_left_as_it_was():
    graph, _, _ = mlp()
    before = graph.to_json()
    darner.grad(graph)
    darner.hvp(graph)
    assert graph.to_json() == before


@pytest.mark.slow
def test_the_same_graph_gives_the_same_text_every_time_and_in_every_process():
    graph, _, _ = mlp()
    first = darner.value_and_grad(graph).to_text()
    assert darner.value_and_grad(mlp()[0]).to_text() == first
    script = (
        "from tests.pure.test_gradients import mlp; import darner, sys;"
        "sys.stdout.write(darner.value_and_grad(mlp()[0]).to_text())"
    )
    for seed in ("1", "2"):
        answer = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert answer.stdout == first


def test_contributions_are_summed_from_the_last_user_to_the_first():
    graph = Graph()
    w = graph.parameter("w", (), "f32")
    # In f32, (1 + 1e8) - 1e8 is 0 and (-1e8 + 1e8) + 1 is 1: the order can be seen.
    graph.set_outputs([w * 1.0 + w * 1e8 + w * -1e8])
    (found,) = darner.run(darner.grad(graph), params={"w": 1.0})
    assert found == 1.0


def test_a_value_used_many_times_receives_every_contribution():
    graph = Graph()
    x = graph.input("x", (3,), "f64")
    graph.set_outputs([(x * x * x + x + x).sum()])
    value = np.array([1.0, -2.0, 3.0])
    (found,) = darner.run(darner.grad(graph, "x"), {"x": value})
    np.testing.assert_allclose(found, 3 * value**2 + 2)


# --------------------------------------------------------------------------- by what


def test_gradient_by_a_labelled_node():
    graph = Graph()
    x = graph.input("x", (3,), "f64")
    hidden = x.tanh(label="hidden")
    graph.set_outputs([hidden.exp().sum()])
    value = np.array([0.3, -1.0, 2.0])
    (found,) = darner.run(darner.grad(graph, "hidden"), {"x": value})
    np.testing.assert_allclose(found, np.exp(np.tanh(value)))
    by_node = darner.grad(graph, hidden)
    assert by_node == darner.grad(graph, "hidden") == darner.grad(graph, [hidden.id])


def test_gradient_by_a_node_and_by_what_it_is_made_of():
    graph = Graph()
    x = graph.input("x", (3,), "f64")
    hidden = x.square(label="hidden")
    graph.set_outputs([hidden.exp().sum()])
    value = np.array([0.3, -1.0, 0.5])
    by_hidden, by_x = darner.run(darner.grad(graph, ["hidden", "x"]), {"x": value})
    np.testing.assert_allclose(by_hidden, np.exp(value**2))
    np.testing.assert_allclose(by_x, 2 * value * np.exp(value**2))


def test_gradient_by_a_composite_stays_in_front_of_it():
    graph = Graph()
    x = graph.input("x", (2, 3), "f64")
    chances = x.softmax(label="chances")
    graph.set_outputs([chances.square().sum()])
    value = rng().normal(size=(2, 3))
    shown, gradient = darner.run(darner.value_and_grad(graph, "chances"), {"x": value})[0:2]
    weights = np.exp(value) / np.exp(value).sum(-1, keepdims=True)
    np.testing.assert_allclose(gradient, 2 * weights)
    np.testing.assert_allclose(shown, (weights**2).sum())


@pytest.mark.parametrize("name", ["tanh", "softmax", "l2_normalize", "sign", "clip"])
def test_derivatives_by_a_node_and_by_what_it_is_made_of_are_adjoint(name):
    graph = Graph()
    x = graph.input("x", (3,), "f64")
    hidden = getattr(x, name)(label="hidden")
    graph.set_outputs([(hidden * hidden * x).sum()])
    given = {"x": np.array([0.3, -1.0, 0.5])}
    by_x, by_hidden = darner.run(darner.grad(graph, ["x", "hidden"]), given)
    direction = {
        "tangent_x": np.array([0.2, 1.0, -0.4]),
        "tangent_hidden": np.array([1.0, 0.1, 3.0]),
    }
    moved = darner.run(darner.jvp(graph, ["x", "hidden"]), {**given, **direction})[1]
    wanted = by_x @ direction["tangent_x"] + by_hidden @ direction["tangent_hidden"]
    np.testing.assert_allclose(moved, wanted, rtol=1e-12)


def test_gradient_by_a_node_that_is_its_operand_unchanged():
    graph = Graph()
    x = graph.input("x", (2,), "f64")
    graph.set_outputs([(x.clip(label="same") * x).sum()])
    by_same, by_x = darner.run(darner.grad(graph, ["same", "x"]), {"x": np.array([3.0, 5.0])})
    np.testing.assert_array_equal(by_same, [3.0, 5.0])
    np.testing.assert_array_equal(by_x, [6.0, 10.0])


def test_gradient_by_one_of_several_results():
    graph = Graph()
    x = graph.input("x", (4,), "f64")
    values, _ = x.top_k(2)
    graph.set_outputs([values.square().sum()])
    by_values, by_x = darner.run(
        darner.grad(graph, [values, x]), {"x": np.array([1.0, 4.0, 2.0, 3.0])}
    )
    np.testing.assert_array_equal(by_values, [8.0, 6.0])
    np.testing.assert_array_equal(by_x, [0.0, 8.0, 0.0, 6.0])


def test_gradient_by_a_state():
    graph = Graph()
    s = graph.state("s", (2,), "f64")
    graph.set_outputs([s.square().sum()])
    (found,) = darner.run(darner.grad(graph, "s"), state={"s": np.array([1.0, 3.0])})
    np.testing.assert_array_equal(found, [2.0, 6.0])


def test_gradient_of_the_loss_by_itself_is_one():
    graph = Graph()
    x = graph.input("x", (3,))
    graph.set_outputs([x.sum(label="loss")])
    (found,) = darner.run(darner.grad(graph, "loss"), {"x": np.ones(3)})
    assert found == 1.0


def test_an_unused_parameter_gets_zeros():
    graph = Graph()
    w, v = graph.parameter("w", (2, 3)), graph.parameter("v", (4,))
    graph.set_outputs([w.sum()])
    gradient = darner.grad(graph)
    found = darner.run(gradient, params={"w": np.ones((2, 3)), "v": np.ones(4)})
    np.testing.assert_array_equal(found[1], np.zeros(4))
    assert found[1].dtype == np.float32
    assert large_constants(gradient) == []
    assert v.name == "v"


def test_integer_parameters_are_not_differentiated():
    graph = Graph()
    graph.parameter("places", (2,), "i32")
    w = graph.parameter("w", (5, 3))
    graph.set_outputs([w.gather(graph.parameters["places"]).sum()])
    assert [node.shape for node in darner.grad(graph).outputs] == [(5, 3)]


def test_stop_gradient_passes_the_value_and_no_gradient():
    graph = Graph()
    w = graph.parameter("w", (3,), "f64")
    graph.set_outputs([(w * w.stop_gradient()).sum()])
    value = np.array([1.0, 2.0, 3.0])
    result = darner.run(darner.value_and_grad(graph), params={"w": value})
    assert result[0] == 14.0
    np.testing.assert_array_equal(result[1], value)


def test_behind_stop_gradient_everything_is_zero():
    graph = Graph()
    w = graph.parameter("w", (3,), "f64")
    graph.set_outputs([w.exp().stop_gradient().sum()])
    gradient = darner.grad(graph)
    np.testing.assert_array_equal(darner.run(gradient, params={"w": np.ones(3)})[0], np.zeros(3))
    assert "exp" not in {node.op.name for node in gradient.nodes}


def test_steps_have_the_derivative_zero():
    graph = Graph()
    w = graph.parameter("w", (3,), "f64")
    graph.set_outputs([(w.sign() + w.floor() + w.round()).sum()])
    (found,) = darner.run(darner.grad(graph), params={"w": np.array([0.2, 1.7, -3.1])})
    np.testing.assert_array_equal(found, np.zeros(3))


def test_a_condition_selects_and_gives_no_gradient_of_its_own():
    graph = Graph()
    w = graph.parameter("w", (3,), "f64")
    graph.set_outputs([graph.where(w > 0.0, w * 2.0, -w).sum()])
    (found,) = darner.run(darner.grad(graph), params={"w": np.array([0.2, -1.7, 3.1])})
    np.testing.assert_array_equal(found, [2.0, -1.0, 2.0])


def test_updates_of_states_are_kept():
    graph = Graph()
    w, count = graph.parameter("w", (2,), "f64"), graph.state("count", (), "f64")
    graph.set_update(count, count + 1.0)
    graph.set_outputs([(w * count).sum()])
    for transform in (darner.grad, darner.value_and_grad, darner.jvp, darner.vjp):
        result = transform(graph)
        assert {leaf.name for leaf in result.updates} == {"count"}
        extra = {name: np.ones(node.shape) for name, node in result.inputs.items()}
        state = {"count": np.array(3.0)}
        darner.run(result, extra, {"w": np.ones(2)}, state=state)
        assert state["count"] == 4.0


def test_random_ops_draw_the_same_numbers_in_the_backward_pass():
    graph = Graph()
    w = graph.parameter("w", (50,), "f64")
    dropped = w.dropout(0.5, seed=7)
    graph.set_outputs([dropped.sum(), dropped])
    _, kept, gradient = darner.run(darner.value_and_grad(graph), params={"w": np.ones(50)})
    np.testing.assert_array_equal(gradient, kept)
    assert 0 < (gradient == 0).sum() < 50


def test_symbolic_sizes_stay_symbols():
    graph = Graph()
    x, w = graph.input("x", ("batch", 3), "f64"), graph.parameter("w", (3, 2), "f64")
    graph.set_outputs([(x @ w).tanh().mean()])
    gradient = darner.grad(graph, ["x", "w"])
    assert gradient.outputs[0].shape == graph.inputs["x"].shape
    for size in (1, 5):
        value, weight = rng(size).normal(size=(size, 3)), rng(9).normal(size=(3, 2))
        found = darner.run(gradient, {"x": value}, {"w": weight})
        y = np.tanh(value @ weight)
        inner = (1 - y**2) / y.size
        np.testing.assert_allclose(found[0], inner @ weight.T, rtol=1e-12)
        np.testing.assert_allclose(found[1], value.T @ inner, rtol=1e-12)


def test_gradients_of_narrow_parameters_are_narrow():
    graph = Graph()
    w, x = graph.parameter("w", (3,), "bf16"), graph.input("x", (3,), "f32")
    graph.set_outputs([(w * x).sum()])
    gradient = darner.grad(graph, ["w", "x"])
    assert [str(node.dtype) for node in gradient.outputs] == ["bf16", "f32"]


def test_nodes_of_the_backward_pass_carry_the_line_and_scope_of_the_forward():
    graph, _, _ = mlp(2)
    gradient = darner.grad(graph)
    added = list(gradient.nodes)[len(graph) :]
    assert added
    lines = {node.source for node in graph.nodes}
    assert {node.source for node in added if node.op.name != "constant"} <= lines
    assert {"layer0", "layer1"} <= {node.scope for node in added}


def test_an_output_that_stands_twice_receives_both_cotangents():
    graph = Graph()
    x = graph.input("x", (2,), "f64")
    square = x.square()
    graph.set_outputs([square, square])
    given = {"x": np.ones(2), "d_output_0": np.ones(2), "d_output_1": np.array([2.0, 3.0])}
    np.testing.assert_array_equal(darner.run(darner.vjp(graph, "x"), given)[-1], [6.0, 8.0])


def test_a_leaf_can_be_the_loss():
    graph = Graph()
    graph.set_outputs([graph.input("x", (), "f64")])
    assert darner.run(darner.grad(graph, "x"), {"x": 2.0}) == [1.0]
    assert darner.run(darner.jvp(graph, "x"), {"x": 2.0, "tangent_x": 5.0}) == [2.0, 5.0]


def test_tangents_are_not_pushed_into_what_no_output_needs():
    graph = Graph()
    x = graph.input("x", (3,), "f64")
    graph.set_outputs([x.tanh().sum()])
    lean = len(darner.jvp(graph, "x"))
    x.exp().softmax()
    assert len(darner.jvp(graph, "x")) == lean


# --------------------------------------------------------------------------- orders


def cube(dtype="f64"):
    graph = Graph("cube")
    x = graph.input("x", (), dtype)
    graph.set_outputs([x * x * x + x.exp()])
    return graph


def test_second_and_third_derivatives():
    graph, x = cube(), np.array(0.7)
    wanted = [3 * x**2, 6 * x, 6.0, 0.0]
    for value in wanted:
        graph = darner.grad(graph, "x")
        np.testing.assert_allclose(darner.run(graph, {"x": x})[0], value + np.exp(x), rtol=1e-13)


@pytest.mark.parametrize(
    ("name", "derivatives"),
    [
        ("tanh", lambda x: [1 - np.tanh(x) ** 2, -2 * np.tanh(x) * (1 - np.tanh(x) ** 2)]),
        ("sin", lambda x: [np.cos(x), -np.sin(x), -np.cos(x), np.sin(x)]),
        ("log", lambda x: [1 / x, -1 / x**2, 2 / x**3]),
        ("sqrt", lambda x: [0.5 * x**-0.5, -0.25 * x**-1.5, 0.375 * x**-2.5]),
        ("abs", lambda x: [np.ones(()), np.zeros(()), np.zeros(())]),
        ("relu", lambda x: [np.ones(()), np.zeros(()), np.zeros(())]),
        ("recip", lambda x: [-1 / x**2, 2 / x**3, -6 / x**4]),
    ],
)
def test_gradients_of_gradients_of_one_op(name, derivatives):
    graph = Graph()
    graph.set_outputs([getattr(graph.input("x", (), "f64"), name)()])
    x = np.array(0.6)
    for wanted in derivatives(x):
        graph = darner.grad(graph, "x")
        np.testing.assert_allclose(darner.run(graph, {"x": x})[0], wanted, rtol=1e-12)


def test_gradient_of_a_gradient_penalty():
    graph, inputs, params = mlp(2, 3)
    penalised = darner.grad(graph, "x")
    penalised.set_outputs([penalised.outputs[0].square().sum()])
    found = darner.run(darner.grad(penalised), inputs, params)
    for name, gradient in zip(params, found, strict=True):
        wanted = slope(penalised, inputs, params, name)
        np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-8)


def test_jvp_of_grad_is_hvp():
    graph, inputs, params = mlp(2, 3)
    direction = {f"tangent_{n}": rng(4).normal(size=p.shape) for n, p in params.items()}
    both = darner.jvp(darner.grad(graph), list(params))
    moved = darner.run(both, {**inputs, **direction}, params)[len(params) :]
    whole = darner.run(darner.hvp(graph), {**inputs, **direction}, params)
    for a, b in zip(moved, whole, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)


def test_hvp_agrees_with_differences_of_the_gradient():
    graph, inputs, params = mlp(2, 3)
    direction = {n: rng(4).normal(size=p.shape) for n, p in params.items()}
    found = darner.run(
        darner.hvp(graph), {**inputs, **{f"tangent_{n}": d for n, d in direction.items()}}, params
    )
    gradient, step = darner.grad(graph), 1e-5
    after, before = (
        darner.run(gradient, inputs, {n: p + s * step * direction[n] for n, p in params.items()})
        for s in (1, -1)
    )
    for a, b, product in zip(after, before, found, strict=True):
        np.testing.assert_allclose(product, (a - b) / (2 * step), rtol=1e-6, atol=1e-9)


def test_vjp_of_vjp_and_jvp_of_jvp_find_names_for_their_inputs():
    graph = cube()
    twice = darner.vjp(darner.vjp(graph, "x"), "x")
    assert list(twice.inputs) == ["x", "d_output", "d_output_0", "d_output_1"]
    graph.set_outputs([graph.outputs[0], graph.outputs[0] * 2.0])
    again = darner.vjp(darner.vjp(graph, "x"), "x")
    assert [n for n in again.inputs if n.startswith("d2")] == [
        "d2_output_0",
        "d2_output_1",
        "d2_output_2",
    ]
    moved = darner.jvp(darner.jvp(cube(), "x"), "x")
    assert list(moved.inputs) == ["x", "tangent_x", "tangent2_x"]
    given = {"x": np.array(0.7), "tangent_x": np.array(1.0), "tangent2_x": np.array(1.0)}
    np.testing.assert_allclose(darner.run(moved, given)[-1], 6 * 0.7 + np.exp(0.7), rtol=1e-12)


def test_jvp_gives_the_outputs_and_their_tangents():
    graph = Graph()
    x = graph.input("x", (3,), "f64")
    graph.set_outputs([x.square(), x.argmax(), x.sum()])
    result = darner.jvp(graph, "x")
    value, tangent = np.array([1.0, 5.0, 2.0]), np.array([1.0, 0.5, -1.0])
    found = darner.run(result, {"x": value, "tangent_x": tangent})
    assert len(found) == 5
    np.testing.assert_array_equal(found[3], 2 * value * tangent)
    np.testing.assert_array_equal(found[4], 0.5)


def test_vjp_takes_a_cotangent_for_each_float_output():
    graph = Graph()
    x = graph.input("x", (3,), "f64")
    graph.set_outputs([x.square(), x.argmax(), x.sum()])
    result = darner.vjp(graph, "x")
    assert list(result.inputs) == ["x", "d_output_0", "d_output_1"]
    value, first = np.array([1.0, 5.0, 2.0]), np.array([1.0, 0.5, -1.0])
    found = darner.run(result, {"x": value, "d_output_0": first, "d_output_1": np.array(3.0)})
    np.testing.assert_array_equal(found[-1], 2 * value * first + 3)
