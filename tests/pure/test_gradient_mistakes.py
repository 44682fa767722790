"""What the derivative transforms refuse, and what they say."""

import numpy as np
import pytest

import darner
from darner import Graph
from tests.pure.test_gradients import mlp


def test_a_loss_that_is_not_one_number_is_refused():
    graph = Graph()
    graph.set_outputs([graph.parameter("w", (2, 3)).tanh()])
    with pytest.raises(darner.ArgumentError, match="must be one float") as caught:
        darner.grad(graph)
    assert "f32[2, 3]" in str(caught.value)
    assert "reduce it (sum, mean, a loss), or use vjp" in str(caught.value)
    assert "test_gradient_mistakes.py" in str(caught.value)


def test_an_integer_loss_is_refused():
    graph = Graph()
    graph.set_outputs([graph.parameter("w", (3,)).argmax()])
    with pytest.raises(darner.ArgumentError, match=r"must be one float, but it is i32\[\]"):
        darner.grad(graph)


def test_a_graph_without_outputs_is_refused():
    graph = Graph("empty")
    graph.parameter("w", (3,))
    with pytest.raises(darner.ArgumentError, match="graph 'empty' has no output"):
        darner.grad(graph)


def test_an_integer_has_no_gradient():
    graph = Graph()
    places, w = graph.input("places", (2,), "i32"), graph.parameter("w", (5,))
    graph.set_outputs([w.gather(places).sum()])
    for transform in (darner.grad, darner.vjp, darner.jvp, darner.hvp):
        with pytest.raises(darner.ArgumentError, match=r"'places' is i32\[2\]: only floats"):
            transform(graph, "places")


def test_several_results_at_once_and_names_given_twice_are_refused():
    graph = Graph()
    x = graph.input("x", (4,))
    values, _ = x.top_k(2)
    graph.set_outputs([values.sum()])
    for transform in (darner.grad, darner.vjp, darner.jvp, darner.hvp):
        with pytest.raises(darner.ArgumentError, match="has several results: project one first"):
            transform(graph, values.operands[0])
        with pytest.raises(darner.ArgumentError, match="'x' is named twice"):
            transform(graph, ["x", "x"])


def test_an_unknown_name_is_answered_with_the_nearest():
    graph, _, _ = mlp()
    for transform in (darner.grad, darner.vjp, darner.jvp, darner.hvp):
        with pytest.raises(darner.UnknownNameError, match=r"did you mean 'layer1\.w'") as caught:
            transform(graph, "layer1.ww")
        assert "no leaf or label 'layer1.ww'" in str(caught.value)


def test_a_node_of_another_graph_is_refused():
    graph, _, _ = mlp()
    other = Graph("other").input("x", (3,))
    with pytest.raises(darner.ArgumentError, match="is a node of graph 'other'"):
        darner.grad(graph, other)


def accuracy(kind):
    graph = Graph()
    x, w = graph.input("x", (4, 3)), graph.parameter("w", (3, 5))
    scores = x @ w
    if kind == "argmax":
        picked = scores.argmax(-1, label="picked")
    elif kind == "gt":
        picked = scores.gt(0.5, label="picked")
    else:
        picked = scores.cast("i32", label="picked")
    graph.set_outputs([picked.cast("f32").mean()])
    return graph, picked


@pytest.mark.parametrize("kind", ["argmax", "gt", "cast"])
def test_a_gradient_that_would_have_to_pass_a_step_names_op_path_and_line(kind):
    graph, picked = accuracy(kind)
    with pytest.raises(darner.ArgumentError) as caught:
        darner.grad(graph)
    error = caught.value
    assert error.op == kind
    assert error.label == "picked"
    assert error.source == picked.source
    text = str(error)
    assert text.startswith(f"{kind} 'picked': no gradient reaches 'w'")
    assert f"the only way is through {kind}, which has no derivative" in text
    assert f"(w -> matmul -> {kind} -> cast)" in text
    assert text.endswith(f"({picked.source})")


def test_a_second_way_around_a_step_is_enough():
    graph = Graph()
    w = graph.parameter("w", (3,), "f64")
    graph.set_outputs([((w > 0.0).cast("f64") * w).sum()])
    (found,) = darner.run(darner.grad(graph), params={"w": np.array([1.0, -1.0, 2.0])})
    np.testing.assert_array_equal(found, [1.0, 0.0, 1.0])


def test_an_op_without_any_derivative_says_so():
    @darner.primitive(family="tests", name="only_forward")
    def only_forward(x: darner.graph.attributes.Float) -> darner.TensorType:
        """An op that nobody gave a derivative."""
        return x

    only_forward.reference(lambda x: x)
    try:
        graph = Graph()
        graph.set_outputs([only_forward(graph.parameter("w", (3,)), label="odd").sum()])
        for transform in (darner.grad, darner.jvp):
            with pytest.raises(darner.ArgumentError, match="only_forward 'odd': has no derivative"):
                transform(graph)
    finally:
        darner.graph.op.unregister("only_forward")


def test_an_index_that_becomes_a_value_is_named_though_no_cast_stands_in_the_graph():
    graph = Graph()
    scores = graph.parameter("scores", (4,))
    hot = scores.argmax(label="best").one_hot(4, label="hot")
    graph.set_outputs([(hot * graph.input("x", (4,))).sum()])
    with pytest.raises(darner.ArgumentError, match="no gradient reaches 'scores'") as caught:
        darner.grad(graph)
    text = str(caught.value)
    assert "through argmax" in text
    assert "scores -> argmax -> one_hot" in text
    assert "test_gradient_mistakes.py" in text


def test_an_index_that_only_selects_gives_zero():
    graph = Graph()
    scores, table = graph.parameter("scores", (4,)), graph.parameter("table", (4,))
    graph.set_outputs([table.gather(scores.argmax())])
    params = {"scores": np.array([0.0, 3.0, 1.0, 2.0]), "table": np.arange(4.0)}
    for found, wanted in zip(
        darner.run(darner.grad(graph), {}, params), ([0, 0, 0, 0], [0, 1, 0, 0]), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


def test_a_name_like_no_other_is_answered_with_what_there_is():
    graph = Graph("model")
    graph.set_outputs([(graph.input("x", (3,)) * graph.parameter("w", (3,))).sum()])
    for call in (
        lambda: darner.grad(graph, "zebra"),
        lambda: darner.vmap(graph, ["zebra"], 4),
        lambda: darner.substitute(graph, {"zebra": lambda g: g.ones((3,))}),
    ):
        with pytest.raises(
            darner.UnknownNameError, match=r"'model' has no leaf.*'zebra'; it has x, w"
        ):
            call()
    with pytest.raises(darner.UnknownNameError, match="'zebra' to freeze; it has w"):
        darner.grad(graph, frozen=["zebra"])
