"""Derived parameters: stored side by side, known by their own names, each in one place."""

import numpy as np
import pytest

import darner
from darner import ArgumentError, Graph
from darner.optimizer import derived_parameters
from darner.optimizer.layout import plan_layouts
from tests.zoo import llama, values


def names(graph, block):
    return [graph.nodes[i].name for i in block]


def projections(*shapes, shared=True):
    """Products of one operand, or each of its own."""
    g = Graph()
    x = g.input("x", (4, 3))
    outputs = []
    for i, shape in enumerate(shapes):
        operand = x if shared else x + float(i)
        outputs.append(operand @ g.parameter(f"w{i}", shape))
    g.set_outputs(outputs)
    return g


def test_weights_of_one_operand_are_stored_together_in_their_order():
    g = projections((3, 2), (3, 5), (3, 1))
    (block,) = plan_layouts(g).blocks
    assert names(g, block) == ["w0", "w1", "w2"]


def test_weights_of_different_operands_are_not():
    assert plan_layouts(projections((3, 2), (3, 5), shared=False)).blocks == ()


def test_all_spellings_of_a_product_count():
    g = Graph()
    x = g.input("x", (4, 3))
    a, b, c = g.parameter("a", (5, 3)), g.parameter("b", (2, 3)), g.parameter("c", (7, 3))
    y = g.dot_general(x, c, (1,), (1,))
    g.set_outputs([x @ a.T, x.matmul_bt(b), y])
    (block,) = plan_layouts(g).blocks
    assert names(g, block) == ["a", "b", "c"]


def test_equal_operands_written_twice_are_one():
    g = Graph()
    x = g.input("x", (4, 3))
    g.set_outputs([x.tanh() @ g.parameter("a", (3, 2)), x.tanh() @ g.parameter("b", (3, 2))])
    (block,) = plan_layouts(g).blocks
    assert names(g, block) == ["a", "b"]


def test_a_weight_is_stored_in_one_place_and_a_second_wish_is_reported():
    g = Graph()
    x, y = g.input("x", (4, 3)), g.input("y", (4, 3))
    a, b, c = (g.parameter(name, (3, 2)) for name in "abc")
    g.set_outputs([x @ a, x @ b, y @ b, y @ c])
    layouts = plan_layouts(g)
    assert [names(g, block) for block in layouts.blocks] == [["a", "b"]]
    (conflict,) = layouts.conflicts
    assert "b, c are not stored together" in conflict
    result, report = darner.optimize(g, report=True)
    assert list(derived_parameters(result)) == ["a+b"]
    assert any("b, c are not stored together" in note for note in report.passes[0].notes)


def test_shared_weights_with_the_same_wish_are_stored_once():
    g = Graph()
    x, y = g.input("x", (4, 3)), g.input("y", (4, 3))
    a, b = g.parameter("a", (3, 2)), g.parameter("b", (3, 2))
    g.set_outputs([x @ a, x @ b, y @ a, y @ b])
    result = darner.optimize(g)
    assert list(derived_parameters(result)) == ["a+b"]
    rng = np.random.default_rng(0)
    inputs = {name: rng.normal(size=(4, 3)) for name in "xy"}
    params = {name: rng.normal(size=(3, 2)) for name in "ab"}
    for found, wanted in zip(
        darner.run(result, inputs, params), darner.run(g, inputs, params), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_quantised_weights_stay_alone():
    g = Graph()
    x = g.input("x", (4, 32))
    g.set_outputs([x @ g.parameter(name, (32, 8), storage="q8") for name in "ab"])
    assert plan_layouts(g).blocks == ()


def test_every_layer_of_a_model_has_its_two_blocks_by_the_original_names():
    graph = llama(3)
    result, _ = darner.optimize_training(graph)
    found = derived_parameters(result)
    assert len(found) == 6
    joined = sorted(len(item.sources) for item in found.values())
    assert joined == [2, 2, 2, 3, 3, 3]
    for item in found.values():
        assert item.name == "+".join(name for name, _ in item.sources)
        for name, size in item.sources:
            assert graph.parameters[name].shape[item.axis] == size
    assert list(result.parameters) == list(graph.parameters)


def test_a_block_is_a_view_in_both_directions():
    result, _ = darner.optimize_training(llama(1))
    params = values(result).params
    for item in derived_parameters(result).values():
        whole = item.join(params)
        assert whole.shape == item.type.shape
        parts = item.split(whole)
        for name, _ in item.sources:
            np.testing.assert_array_equal(parts[name], params[name])
            parts[name][...] = 7.0  # what is written into a part is written into the whole
        assert (whole == 7.0).all()


def test_a_name_that_is_no_part_is_refused():
    result, _ = darner.optimize_training(llama(1))
    item = next(iter(derived_parameters(result).values()))
    with pytest.raises(ArgumentError, match="'other' is not a part of"):
        item.view(item.join(values(result).params), "other")


def test_training_is_the_same_with_the_optimizer_off():
    """Ten steps of gradient descent by the original names, in f64."""
    graph = llama(1, dtype="f64", loss=True)
    inputs, start, _ = values(graph)
    plain = darner.value_and_grad(graph)
    better, _ = darner.optimize_training(graph)
    results = []
    for program in (plain, better):
        params = {name: np.array(value, np.float64) for name, value in start.items()}
        losses = []
        for _ in range(10):
            loss, *gradients = darner.run(program, inputs, params)
            losses.append(float(loss.reshape(-1)[0]))
            for name, gradient in zip(graph.parameters, gradients, strict=True):
                params[name] = params[name] - 0.1 * gradient
        results.append((losses, params))
    (wanted, by_plain), (found, by_better) = results
    assert wanted[-1] < wanted[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    for name in by_plain:
        np.testing.assert_allclose(by_better[name], by_plain[name], rtol=1e-8, atol=1e-10)
