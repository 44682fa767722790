"""Errors name the function that was called, with its own operands, not an op that it is made of."""

import inspect
import re

import numpy as np
import pytest

import darner
from darner import DarnerError, Graph, ShapeError, UnknownNameError
from darner.graph.op import BUILDERS, OPS


def test_a_linear_of_wrong_sizes_is_told_as_linear():
    g = Graph()
    x, w = g.input("x", (2, 3)), g.input("w", (3, 5))
    with pytest.raises(ShapeError) as caught:
        g.linear(x, w)
    assert str(caught.value).startswith(
        "linear: x is f32[2, 3] but w is f32[3, 5]: inner sizes 3 and 5 differ (test_called"
    )


def wrong_calls():
    """Every builder on operands of shapes that few of them take, in several combinations."""
    shapes = [(), (2,), (3, 4), (2, 3, 4), (1, 2, 5, 5)]
    for item in BUILDERS.values():
        if not item.builtin:
            continue
        params = list(inspect.signature(item.function).parameters.values())[1:]
        required = [p for p in params if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        for shift in range(3):
            for other in (1, "x", -7):
                yield item, required, shapes[shift:] + shapes[:shift], other


def test_no_builder_hides_behind_an_op_it_calls():
    named = []
    for item, required, shapes, other in wrong_calls():
        g = Graph()
        nodes = iter([g.input(f"in{i}", shape) for i, shape in enumerate(shapes)] * 2)
        given = [
            [next(nodes), next(nodes)]
            if "list[Node]" in str(p.annotation)
            else next(nodes)
            if "Node" in str(p.annotation)
            else other
            for p in required
        ]
        try:
            getattr(g, item.name)(*given)
        except DarnerError as error:
            named.append((item.name, error.op, str(error)))
    assert len(named) > 200
    assert [row for row in named if row[0] != row[1]] == []


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda g, x: g.rope(x, g.input("cos", (9, 9)), g.input("sin", (9, 9)), 4), "rope"),
        (lambda g, x: g.concat(x, x, 7, 7, 7, 7), "concat"),
        (lambda g, x: g.group_norm(x, x, x, 7, 7, 7, 7, 1e-5), "group_norm"),
        (lambda g, x: x.mean(axis=9), "mean"),
        (lambda g, x: x[9], "getitem"),
        (lambda g, x: g.add_node("softmax", [x], axis=9), "softmax"),
    ],
)
def test_other_spellings_are_told_by_the_name_that_was_called(call, name):
    g = Graph()
    with pytest.raises(DarnerError) as caught:
        call(g, g.input("x", (2, 8)))
    assert caught.value.op == name


def test_a_function_declared_elsewhere_tells_what_failed_in_it():
    @darner.builder(family="tests", name="twice_wrong")
    def twice_wrong(graph: Graph, x: darner.Node) -> darner.Node:
        """A product that does not fit."""
        return x @ x

    try:
        g = Graph()
        with pytest.raises(
            ShapeError, match=r"^twice_wrong: x is f32\[2, 3\]: in it, matmul: a is"
        ):
            g.twice_wrong(g.input("x", (2, 3)))
    finally:
        darner.graph.op.unregister("twice_wrong")


# --------------------------------------------------------------------------- labels and devices


def classifier(loss, labels="labels"):
    g = Graph()
    x, y = g.input("x", (4, 3)), g.input(labels, (4,), "i32")
    g.set_outputs([loss(g, x @ g.parameter("w", (3, 5)), y)])
    return g


LOSSES = {
    "cross entropy": lambda g, z, y: g.cross_entropy_loss(z, y, label="loss"),
    "negative log-likelihood": lambda g, z, y: g.nll_loss(z.log_softmax(), y, label="loss"),
    "computed": lambda g, z, y: g.cross_entropy_loss(z, y + 0, label="loss"),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("wrong", [5, -1])
@pytest.mark.parametrize("level", [0, 1])
def test_a_label_that_is_no_class_names_the_input(loss, wrong, level):
    values = {"x": np.ones((4, 3), np.float32), "classes": np.array([0, 1, wrong, 2])}
    graph = classifier(loss, "classes")
    with (
        darner.build_session(graph, level=level, init="ones", threads=1) as session,
        pytest.raises(darner.RunError) as caught,
    ):
        session.run(values)
    assert re.search(rf"index {wrong}\b.* is outside 0\.\.4", str(caught.value))
    assert "input 'classes'" in str(caught.value)


@pytest.mark.parametrize(
    ("device", "ours"), [("rocm", "gpu"), ("mps", "gpu"), ("GPU", "gpu"), ("nvidia", "cuda")]
)
def test_devices_of_others_are_answered(device, ours):
    told = f"no device '{device}'; write device=\"{ours}\""
    with pytest.raises(darner.ArgumentError, match=told):
        darner.build_inference_session(classifier(LOSSES["cross entropy"]), device=device)


@pytest.mark.parametrize(
    "name",
    [
        "build",
        "build_session",
        "build_inference_session",
        "build_session_unoptimized",
        "build_session_with_report",
    ],
)
def test_a_session_that_cannot_be_built_names_how_it_was_asked_for(name):
    with pytest.raises(darner.ArgumentError, match=f"^{name}: SessionConfig has no 'speed'"):
        getattr(darner, name)(classifier(LOSSES["cross entropy"]), speed=3)


def test_an_unknown_op_is_still_told_by_name():
    with pytest.raises((UnknownNameError, DarnerError), match="no op is called 'nothing'"):
        Graph().add_node("nothing", [])
    assert "linear" not in OPS
