"""A graph split into what is computed once and a linear map: together they are the jvp."""

import numpy as np
import pytest

import darner
from darner import Graph

RNG = np.random.default_rng(3)


def network():
    g = Graph("network")
    x, w = g.input("x", (4, 6), "f64"), g.parameter("w", (6, 5), "f64")
    h = (x @ w).gelu()
    g.set_outputs([h.softmax(-1), (h.exp() * 2.0).sum(0), x.argmax(-1), h.logsumexp(-1)])
    return g


VALUES = {"x": RNG.normal(size=(4, 6))}
PARAMS = {"w": RNG.normal(size=(6, 5))}


def tangents():
    return {"tangent_x": RNG.normal(size=(4, 6)), "tangent_w": RNG.normal(size=(6, 5))}


def named(residuals):
    return {f"residual_{i}": value for i, value in enumerate(residuals)}


def test_both_parts_together_are_the_jvp():
    graph = network()
    primal, linear = darner.linearize(graph, ["x", "w"])
    primal.verify()
    linear.verify()
    moved = tangents()
    wanted = darner.run(darner.jvp(graph, ["x", "w"]), {**VALUES, **moved}, PARAMS)
    count = len(graph.outputs)
    found = darner.run(primal, VALUES, PARAMS)
    for one, other in zip(found[:count], wanted, strict=False):
        np.testing.assert_array_equal(one, other)
    followed = darner.run(linear, {**named(found[count:]), **moved})
    assert len(followed) == len(wanted) - count == 3
    for one, other in zip(followed, wanted[count:], strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_linear_part_is_linear():
    primal, linear = darner.linearize(network(), ["x", "w"])
    saved = named(darner.run(primal, VALUES, PARAMS)[4:])
    first, second = tangents(), tangents()
    mixed = {name: 2.0 * first[name] - 3.0 * second[name] for name in first}
    one, other, both = (darner.run(linear, {**saved, **moved}) for moved in (first, second, mixed))
    for a, b, c in zip(one, other, both, strict=True):
        np.testing.assert_allclose(2.0 * a - 3.0 * b, c, rtol=1e-10, atol=1e-12)
    zero = {name: 0.0 * value for name, value in first.items()}
    for value in darner.run(linear, {**saved, **zero}):
        np.testing.assert_array_equal(value, np.zeros_like(value))


def test_the_linear_part_has_nothing_that_does_not_depend_on_tangents():
    _, linear = darner.linearize(network(), "x")
    assert list(linear.parameters) == []
    assert {name.split("_")[0] for name in linear.inputs} == {"residual", "tangent"}
    reached = {linear.inputs["tangent_x"].id}
    for node in linear.nodes:
        if reached & set(node.inputs):
            reached.add(node.id)
        else:
            assert "leaf" in node.op.traits or "view" in node.op.traits, node


def test_the_primal_part_has_no_tangents_and_computes_nothing_unused():
    primal, linear = darner.linearize(network(), ["x", "w"])
    assert list(primal.inputs) == ["x"]
    assert len(primal.outputs) == 4 + sum(n.startswith("residual") for n in linear.inputs)
    for graph in (primal, linear):
        used = {i for node in graph.nodes for i in node.inputs}
        used |= {node.id for node in graph.outputs}
        assert all(node.id in used for node in graph.nodes if node.name is None)


def test_a_broadcast_value_is_saved_before_it_is_broadcast():
    g = Graph()
    x, b = g.input("x", (100, 3), "f64"), g.input("b", (3,), "f64")
    g.set_outputs([x * b.exp().broadcast_to((100, 3))])
    primal, _ = darner.linearize(g, "x")
    assert [node.shape for node in primal.outputs] == [(100, 3), (3,)]


def test_constants_are_not_saved():
    g = Graph()
    x = g.input("x", (5,), "f64")
    g.set_outputs([x * g.arange(5).cast("f64")])
    primal, linear = darner.linearize(g, "x")
    assert len(primal.outputs) == 1
    assert list(linear.inputs) == ["tangent_x"]
    np.testing.assert_array_equal(darner.run(linear, {"tangent_x": np.ones(5)})[0], np.arange(5.0))


def test_random_numbers_are_saved_not_drawn_again():
    g = Graph()
    x = g.input("x", (5,), "f64")
    g.set_outputs([x * g.random_uniform((5,), dtype="f64")])
    primal, linear = darner.linearize(g, "x")
    assert len(primal.outputs) == 2
    assert not any("random" in node.op.traits for node in linear.nodes)


def test_an_output_that_does_not_move_has_tangent_zero():
    g = Graph()
    x, y = g.input("x", (3,), "f64"), g.input("y", (2,), "f64")
    g.set_outputs([y.exp(), x * 2.0])
    primal, linear = darner.linearize(g, "x")
    assert len(primal.outputs) == 2
    found = darner.run(linear, {"tangent_x": np.ones(3)})
    np.testing.assert_array_equal(found[0], np.zeros(2))
    np.testing.assert_array_equal(found[1], 2 * np.ones(3))


def test_updates_stay_with_the_primal_part():
    g = Graph()
    x, seen = g.input("x", (2,), "f64"), g.state("seen", (2,), "f64")
    g.set_update(seen, seen + x)
    g.set_outputs([x * seen])
    primal, linear = darner.linearize(g, "x")
    assert list(primal.states) == ["seen"]
    assert not linear.states
    state = {"seen": np.array([5.0, 7.0])}
    _, *saved = darner.run(primal, {"x": np.ones(2)}, state=state)
    np.testing.assert_array_equal(state["seen"], [6.0, 8.0])
    moved = {**named(saved), "tangent_x": np.ones(2)}
    np.testing.assert_array_equal(darner.run(linear, moved)[0], [5.0, 7.0])


@pytest.mark.parametrize("transform", ["vjp", "vmap", "linearize"])
def test_the_linear_part_can_be_transformed_further(transform):
    primal, linear = darner.linearize(network(), "x")
    saved = named(darner.run(primal, VALUES, PARAMS)[4:])
    moved = {"tangent_x": tangents()["tangent_x"]}
    straight = darner.run(linear, {**saved, **moved})
    if transform == "vmap":
        batch = np.stack([moved["tangent_x"], 2 * moved["tangent_x"]])
        found = darner.run(darner.vmap(linear, ["tangent_x"], 2), {**saved, "tangent_x": batch})
        for one, other in zip(found, straight, strict=True):
            np.testing.assert_allclose(one, np.stack([other, 2 * other]))
    elif transform == "linearize":
        first, second = darner.linearize(linear, "tangent_x")
        kept = darner.run(first, {**saved, **moved})[3:]
        found = darner.run(second, {**named(kept), "tangent_tangent_x": moved["tangent_x"]})
        for one, other in zip(found, straight, strict=True):
            np.testing.assert_array_equal(one, other)
    else:
        back = darner.vjp(linear, "tangent_x")
        weights = {n: RNG.normal(size=v.shape) for n, v in back.inputs.items() if n[:2] == "d_"}
        gradient = darner.run(back, {**saved, **moved, **weights})[-1]
        pairs = zip(straight, weights.values(), strict=True)
        np.testing.assert_allclose(
            np.sum(gradient * moved["tangent_x"]), sum(np.sum(a * b) for a, b in pairs)
        )


def test_running_the_split_twice_from_one_point_needs_the_primal_part_once():
    primal, linear = darner.linearize(network(), "x")
    saved = named(darner.run(primal, VALUES, PARAMS)[4:])
    graph = darner.jvp(network(), "x")
    for _ in range(3):
        moved = {"tangent_x": tangents()["tangent_x"]}
        wanted = darner.run(graph, {**VALUES, **moved}, PARAMS)[4:]
        for one, other in zip(darner.run(linear, {**saved, **moved}), wanted, strict=True):
            np.testing.assert_array_equal(one, other)
