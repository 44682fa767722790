"""Loops written as Python functions: what they capture, what they return, and mistakes in them."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

import darner
from darner import ArgumentError, Graph, ShapeError, nn
from darner.transforms.loops.tidy import tidy_loops
from tests.unrolled import loops_of, unrolled

RNG = np.random.default_rng(0)


def close(found, wanted, rtol=1e-9):
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-9)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_values_and_gradients_are_those_of_a_loop_in_torch(dtype, reverse):
    g = Graph("rnn")
    x = g.input("x", (5, 2, 3), dtype)
    w, u = g.parameter("w", (3, 3), dtype), g.parameter("u", (3, 3), dtype)

    def step(carry, x_t):
        h = (x_t @ w + carry["h"] @ u).tanh()
        return {"h": h, "n": carry["n"] + h.sum()}, (h * 2.0, [h.sum(-1)])

    start = {"n": g.zeros((), dtype), "h": g.zeros((2, 3), dtype)}
    last, (doubled, [sums]) = g.iterate(step, start, x, reverse=reverse)
    g.set_outputs([last["h"].square().sum() + last["n"] + doubled.sin().sum() + sums.exp().sum()])
    inputs = {"x": RNG.standard_normal((5, 2, 3))}
    weights = {name: RNG.standard_normal((3, 3)) for name in "wu"}

    tensors = {
        name: torch.tensor(value, requires_grad=True) for name, value in (inputs | weights).items()
    }
    h, n, total = torch.zeros(2, 3, dtype=torch.float64), 0.0, 0.0
    for x_t in tensors["x"].flip(0) if reverse else tensors["x"]:
        h = torch.tanh(x_t @ tensors["w"] + h @ tensors["u"])
        n = n + h.sum()
        total = total + (2.0 * h).sin().sum() + h.sum(-1).exp().sum()
    total = total + h.square().sum() + n
    total.backward()
    found = darner.run(darner.value_and_grad(g, ["w", "u", "x"]), inputs, weights)
    wanted = [total.item(), *(tensors[name].grad.numpy() for name in "wux")]
    close(found, wanted, rtol=1e-9 if dtype == "f64" else 2e-3)


def captured_in_layers(checkpoints=None, reverse=False):
    """A layer in a scope in a step, a loop in the step that captures from both graphs around it."""
    g = Graph("net")
    x, n = g.input("x", (5, 2, 4), "f64"), g.input("n", (3,), "f64")

    def step(carry, x_t):
        z = nn.Linear("cell", 8, 4)(g.concat([carry["h"], x_t], axis=1)).tanh()
        k, _ = g.iterate(lambda a, b: (a * b + n.sum() + z.mean(), None), z.sum(), n)
        return {"h": z, "k": (carry["k"][0] + k,)}, (z, None, [k])

    with g.scope("outer"):
        start = {"h": g.zeros((2, 4), "f64"), "k": (g.zeros((), "f64"),)}
        last, (zs, nothing, [ks]) = g.iterate(
            step, start, x, reverse=reverse, checkpoints=checkpoints
        )
    assert nothing is None
    g.set_outputs([last["h"].sum() + last["k"][0].sin() + zs.square().sum() + ks.sum()])
    return g


def test_layers_in_a_step_declare_parameters_around_it():
    g = captured_in_layers()
    assert {name: p.shape for name, p in g.parameters.items()} == {
        "outer.cell.weight": (4, 8),
        "outer.cell.bias": (4,),
    }
    values = {"x": RNG.standard_normal((5, 2, 4)), "n": np.array([0.1, 0.2, 0.3])}
    weights = {name: 0.3 * RNG.standard_normal(p.shape) for name, p in g.parameters.items()}
    wrt = [*weights, *values]
    found = darner.run(darner.value_and_grad(g, wrt), values, weights)
    close(found, darner.run(darner.value_and_grad(unrolled(g), wrt), values, weights))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("checkpoints", [1, 2, 3, 4, 5])
def test_checkpoints_change_neither_values_nor_gradients(checkpoints, reverse):
    values = {"x": RNG.standard_normal((5, 2, 4)), "n": np.array([0.1, 0.2, 0.3])}
    plain, kept = captured_in_layers(None, reverse), captured_in_layers(checkpoints, reverse)
    weights = {name: 0.3 * RNG.standard_normal(p.shape) for name, p in plain.parameters.items()}
    wrt = [*weights, *values]
    wanted = darner.run(darner.value_and_grad(plain, wrt), values, weights)
    found = darner.value_and_grad(kept, wrt)
    close(darner.run(found, values, weights), wanted)
    close(darner.run(darner.optimize(found), values, weights), wanted)


@pytest.mark.parametrize("checkpoints", [1, 2, 3, 5, 6, 7])
def test_the_gradient_of_a_checkpointed_scan_is_the_same_bit_for_bit(checkpoints):
    body = Graph("body")
    body.set_outputs([(body.input("h", (11,)) * 1.3).sin()])

    def both(make):
        g = Graph("scan")
        g.set_outputs([make(g, g.parameter("h", (11,))).exp().sum()])
        weights = {"h": np.linspace(-2, 2, 11, dtype=np.float32)}
        return darner.run(darner.value_and_grad(g), {}, weights)

    value, gradient = both(lambda g, h: g.scan(h, body, 7))
    found = both(lambda g, h: g.scan_checkpointed(h, body, 7, checkpoints))
    assert found[0] == value
    assert np.array_equal(found[1], gradient)


def test_constants_stay_inside_and_equal_captures_are_one():
    g = Graph()
    w, x = g.input("w", (3,)), g.input("x", (4, 3))
    two = g.constant(2.0)
    h, _ = g.iterate(lambda h, x: ((h + w) * two + w * x, None), g.zeros((3,)), x)
    g.set_outputs([h])
    (made,) = loops_of(g)
    assert [node.name for node in made.constants] == ["w"]


def test_numbers_and_arrays_may_start_a_loop():
    g = Graph()
    (total, count), _ = g.iterate(
        lambda c, x: ((c[0] + x, c[1] + 1), None),
        (np.zeros(2, np.float32), 0),
        g.input("x", (3, 2)),
    )
    g.set_outputs([total, count])
    found = darner.run(g, {"x": np.ones((3, 2))})
    assert found[0].tolist() == [3, 3]
    assert found[1] == 3


def test_the_steps_of_lax_fori_loop():
    g = Graph()
    value, _ = g.iterate(lambda c, i: (c * 2.0 + i.cast("f32"), None), 1.0, g.arange(4))
    g.set_outputs([value])
    assert darner.run(g)[0] == 16 + 0 * 8 + 1 * 4 + 2 * 2 + 3


class TestMistakes:
    """Each is an error at the building line, and leaves the graph as it was."""

    @pytest.fixture
    def g(self):
        g = Graph("g")
        g.input("x", (5, 3))
        g.input("h", (3,))
        yield g
        assert [node.op.name for node in g.nodes] == ["input", "input"]

    @pytest.mark.parametrize(
        ("step", "text"),
        [
            (lambda c, x: c + x, "must return the next carry and what it writes, not one node"),
            (lambda c, x: ((c, c), None), r"the carry is node, but the next one is \(node, node\)"),
            (lambda c, x: (c, "a"), "what the step writes must be nodes, .* not 'a'"),
            (lambda c, x: (c.dropout(0.5), None), "draws random numbers"),
            (lambda c, x: (c + x.reshape((1,)), None), r"in its step, reshape: x is f32\[3\]: "),
        ],
    )
    def test_in_the_step(self, g, step, text):
        with pytest.raises(darner.DarnerError, match=text):
            g.iterate(step, g.inputs["h"], g.inputs["x"])

    def test_a_carry_that_changes_its_type(self, g):
        with pytest.raises(ShapeError, match=r"carry is f32\[3\], but after a step it is f32\[\]"):
            g.iterate(lambda c, x: (c.sum(), None), g.inputs["h"], g.inputs["x"])
        with pytest.raises(ShapeError, match=r"carry\['n'\]\[1\] is f32\[3\], but after"):
            g.iterate(
                lambda c, x: ({"n": (c["n"][0], x.sum())}, None),
                {"n": (g.inputs["h"], g.inputs["h"])},
                g.inputs["x"],
            )

    def test_a_number_of_steps_that_is_missing_or_wrong(self, g):
        h, x = g.inputs["h"], g.inputs["x"]
        with pytest.raises(ArgumentError, match="number of steps is missing; give xs or length="):
            g.iterate(lambda c, x: (c, None), h)
        with pytest.raises(ShapeError, match="xs has 5 steps where there are 4"):
            g.iterate(lambda c, x: (c, None), h, x, length=4)
        with pytest.raises(ArgumentError, match="checkpoints must be between 1 and the 5 steps"):
            g.iterate(lambda c, x: (c, None), h, x, checkpoints=6)

    def test_a_step_that_is_no_function(self, g):
        with pytest.raises(ArgumentError, match="must be a function of the carry and x, not one"):
            g.iterate(g.inputs["h"], g.inputs["h"], g.inputs["x"])

    def test_scan_with_the_arguments_of_jax(self, g):
        with pytest.raises(ArgumentError, match=r"body must be a Graph.*g\.iterate takes a Python"):
            g.scan(lambda c, x: (c, x), g.inputs["h"], g.inputs["x"])


def test_a_symbolic_number_of_steps_must_be_bound():
    g = Graph()
    x = g.input("x", ("time", 3))
    with pytest.raises(ShapeError, match=r"xs has time; bind it first: graph\.bind\(time=\.\.\.\)"):
        g.iterate(lambda c, x: (c + x, None), g.zeros((3,)), x)


def test_a_node_of_the_body_cannot_be_used_outside_of_it():
    g, leaked = Graph("g"), []
    x = g.input("x", (5, 3))
    g.iterate(lambda c, x: (leaked.append(c) or c + x, None), g.zeros((3,)), x)
    for build in (lambda: leaked[0] + x[0], lambda: x[0] + leaked[0], lambda: g.exp(leaked[0])):
        with pytest.raises(ArgumentError, match="is a node of graph"):
            build()


def test_sizes_that_are_symbols_are_bound_in_bodies_too():
    g = Graph()
    x = g.input("x", (4, "batch", 3))
    h, y = g.iterate(lambda h, x: ((h + x).tanh(), h), g.zeros(("batch", 3)), x)
    g.set_outputs([h, y])
    assert y.shape[0] == 4
    assert g.dynamic_symbols() == ["batch"]
    bound = g.bind(batch=2)
    assert [node.shape for node in bound.outputs] == [(2, 3), (4, 2, 3)]
    assert darner.run(g, {"x": np.ones((4, 2, 3))})[1].shape == (4, 2, 3)


def test_a_loop_in_a_scope_that_is_recomputed():
    def build(keep):
        g = Graph()
        x, w = g.input("x", (5, 3), "f64"), g.parameter("w", (3, 3), "f64")

        def block():
            return g.iterate(
                lambda h, x: ((h @ w + x).tanh(), h * x), g.zeros((3,), "f64"), x.sin()
            )

        if keep:
            h, y = block()
        else:
            with g.remat("block"):
                h, y = block()
        g.set_outputs([h.sum() + y.square().sum()])
        return darner.value_and_grad(g)

    values, weights = {"x": RNG.standard_normal((5, 3))}, {"w": RNG.standard_normal((3, 3))}
    wanted = darner.run(build(True), values, weights)
    again = build(False)
    assert len(loops_of(again)) == 3  # the second computes the first again
    close(darner.run(again, values, weights), wanted)
    close(darner.run(darner.optimize(again), values, weights), wanted)


def test_jacobians_and_linear_parts_of_loops():
    g = Graph()
    x = g.input("x", (4, 2), "f64")
    h, y = g.iterate(lambda h, x: ((h * x).sin() + x, h), g.zeros((2,), "f64"), x)
    g.set_outputs([y.square().sum() + h.sum()])
    plain, values = unrolled(g), {"x": RNG.standard_normal((4, 2))}
    close(
        darner.run(darner.hessian(g, "x"), values), darner.run(darner.hessian(plain, "x"), values)
    )
    (primal, linear) = darner.linearize(g, "x")
    assert len(loops_of(primal)) == 1
    assert len(linear) > 0


def test_what_a_loop_costs_grows_with_its_steps():
    def flops(steps):
        g = Graph()
        h, _ = g.iterate(lambda h, _: ((h @ h), None), g.input("h", (8, 8)), length=steps)
        g.set_outputs([h])
        return darner.graph_cost(g).flops

    assert flops(10) == 10 * flops(1) == 10 * 2 * 8**3


def test_sums_over_steps_of_16_bit_floats_are_made_in_f32():
    """One gradient of 1 and 600 of 0.001: bf16 added step by step would stay at 1."""
    g = Graph()
    x, w = g.input("x", (601,), "bf16"), g.parameter("w", (), "bf16")
    _, y = g.iterate(lambda h, x: (h, (h + w) * x), g.zeros((), "bf16"), x)
    g.set_outputs([y.cast("f32").sum()])
    values = np.full(601, 0.001, np.float32)
    values[0] = 1.0
    (found,) = darner.run(darner.grad(g), {"x": values}, {"w": np.float32(0.5)})
    assert abs(float(found) - 1.6) < 0.02


def test_expansion_goes_into_bodies_of_bodies():
    g = Graph()

    def step(h, x):
        inner, _ = g.iterate(lambda a, _: (a.silu(), None), h, length=2)
        return inner.gelu() + x, None

    h, _ = g.iterate(step, g.zeros((3,)), g.input("x", (4, 3)))
    g.set_outputs([h])
    (outer,) = loops_of(darner.expand(g))
    (inner,) = loops_of(outer.body)
    for body in (outer.body, inner.body):
        assert not any(node.op.is_composite for node in body.nodes)
    values = {"x": RNG.standard_normal((4, 3))}
    close(darner.run(darner.expand(g), values), darner.run(g, values), rtol=1e-5)


def test_equal_loops_are_equal_graphs_and_print_and_read_back():
    def build(scale):
        g = Graph()
        x = g.input("x", (4, 3))
        h, _ = g.iterate(lambda h, x: ((h + x) * scale, None), g.zeros((3,)), x)
        g.set_outputs([h])
        return g

    assert build(0.5) == build(0.5)
    assert build(0.5) != build(0.25)
    assert build(0.5).digest() != build(0.25).digest()
    assert Graph.from_text(build(0.5).to_text()) == build(0.5)
    assert Graph.from_json(build(0.5).to_json()) == build(0.5)
    assert build(0.5).verify() is not None


class Progress(NamedTuple):
    state: darner.Node
    steps: darner.Node


def test_a_carry_may_be_a_tuple_with_names_and_count_its_steps():
    g = Graph()
    x = g.input("x", (5, 3))
    last, _ = g.iterate(
        lambda c, x: (Progress((c.state + x).tanh(), c.steps + 1), None),
        Progress(g.zeros((3,)), 0),
        x,
    )
    assert isinstance(last, Progress)
    g.set_outputs([last.state, last.steps])
    values = {"x": RNG.standard_normal((5, 3))}
    for graph in (g, tidy_loops(g), darner.optimize(g)):
        found = darner.run(graph, values)
        assert found[1] == 5
        assert found[1].dtype == np.int32


def test_a_scope_of_a_step_can_be_recomputed():
    """The product in the scope is not kept: the backward loop computes it again."""

    def build(keep):
        g = Graph()
        x, w = g.input("x", (5, 2, 3), "f64"), g.parameter("w", (3, 3), "f64")

        def step(h, x_t):
            if keep:
                return ((h @ w).tanh() + x_t), None
            with h.graph.remat("cell"):
                following = (h @ w).tanh() + x_t
            return following, None

        h, _ = g.iterate(step, g.zeros((2, 3), "f64"), x)
        g.set_outputs([h.square().sum()])
        return g

    values, weights = {"x": RNG.standard_normal((5, 2, 3))}, {"w": RNG.standard_normal((3, 3))}
    plain, again = (darner.value_and_grad(build(keep)) for keep in (True, False))
    close(darner.run(again, values, weights), darner.run(plain, values, weights))
    kept = [len(loops_of(graph)[0].body.outputs) for graph in (plain, again)]
    assert kept == [3, 2]  # the carry, what it begins with, and with the scope no product
