"""After any failing call the graph is exactly as it was: nodes, users, names, constants, streams."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import darner
from darner import DarnerError, Graph
from darner.graph import dtypes
from darner.graph.attributes import Tensor
from darner.graph.node import Node
from darner.graph.op import OPS, unregister
from darner.graph.types import TensorType
from darner.ops.samples import Spec
from darner.testing import make_array
from tests.strategies import choose_sample, generators, graphs, snapshot


def start():
    """A graph with one of everything."""
    g = Graph("g")
    x = g.input("x", (2, 3))
    w = g.parameter("w", (3, 4))
    s = g.state("s", (2, 3))
    n = g.input("n", (2,), "i32")
    m = g.input("m", (2, 3), "bool")
    y = (x * 2.0 + n.cast("f32").reshape((2, 1))).tanh(label="y")
    g.set_outputs([y @ w])
    g.set_update(s, y)
    g.next_stream()
    return g, x, w, s, n, m, y


FAILING = [
    # operands
    lambda g, x, w, s, n, m, y: x + w,
    lambda g, x, w, s, n, m, y: x @ x,
    lambda g, x, w, s, n, m, y: n @ np.ones((5, 5)),
    lambda g, x, w, s, n, m, y: g.where(x, 1.0, 2.0),
    lambda g, x, w, s, n, m, y: g.where(m, 9.25, np.ones((5, 5))),
    lambda g, x, w, s, n, m, y: n + np.ones((7,), np.float64),
    lambda g, x, w, s, n, m, y: x.add(17.0, shape=(9, 9)),
    lambda g, x, w, s, n, m, y: g.add(x, 17.0, (9, 9)),
    lambda g, x, w, s, n, m, y: g.concat([x, w, 3.0], axis=0),
    lambda g, x, w, s, n, m, y: g.concat([x, 33.0], axis=0),
    lambda g, x, w, s, n, m, y: x + Graph().input("z", (2, 3)),
    lambda g, x, w, s, n, m, y: g.add(0, 99),
    lambda g, x, w, s, n, m, y: x.clip(55.0, "high"),
    lambda g, x, w, s, n, m, y: x.clip(55.0, np.ones((4, 4, 4))),
    lambda g, x, w, s, n, m, y: g.add(),
    lambda g, x, w, s, n, m, y: g.add(x, 66.0, 3.0, 4.0),
    lambda g, x, w, s, n, m, y: g.add(x, b=77.0, c=1),
    lambda g, x, w, s, n, m, y: g.add(x, 88.0, b=77.0),
    # attributes
    lambda g, x, w, s, n, m, y: x.sum(5),
    lambda g, x, w, s, n, m, y: x.sum((0, -2)),
    lambda g, x, w, s, n, m, y: x.sum("rows"),
    lambda g, x, w, s, n, m, y: x.reshape((4, 4)),
    lambda g, x, w, s, n, m, y: x.cast("f33"),
    lambda g, x, w, s, n, m, y: x.broadcast_to((5, 5)),
    # leaves and names
    lambda g, x, w, s, n, m, y: g.input("x", (2,)),
    lambda g, x, w, s, n, m, y: g.input("", (2,)),
    lambda g, x, w, s, n, m, y: g.input("fresh", (-2,)),
    lambda g, x, w, s, n, m, y: g.input("fresh", (2,), "f33"),
    lambda g, x, w, s, n, m, y: g.parameter("fresh", (31, 2), storage="q4"),
    lambda g, x, w, s, n, m, y: g.parameter("fresh", (32, 2), storage="q5"),
    lambda g, x, w, s, n, m, y: g.state("fresh", (2,), init="zero"),
    lambda g, x, w, s, n, m, y: g.constant([1, [2]]),
    lambda g, x, w, s, n, m, y: g.constant([1, 2, 3], (2, 2)),
    lambda g, x, w, s, n, m, y: g.constant(x),
    lambda g, x, w, s, n, m, y: x.tanh(label=""),
    lambda g, x, w, s, n, m, y: x.tanh(label=3),
    # whole-graph calls
    lambda g, x, w, s, n, m, y: g.set_outputs([y, 99]),
    lambda g, x, w, s, n, m, y: g.set_update(s, y),
    lambda g, x, w, s, n, m, y: g.set_update(w, y),
    lambda g, x, w, s, n, m, y: g.set_inputs(y, [w, w]),
    lambda g, x, w, s, n, m, y: g.node_mut(x).set_attrs(shape=(-5, 5)),
    lambda g, x, w, s, n, m, y: g.relabel(x, ""),
    lambda g, x, w, s, n, m, y: g.bind(k=3),
    lambda g, x, w, s, n, m, y: g.add_node("add", [x, w]),
    lambda g, x, w, s, n, m, y: g.append_node("tanh", [x], (7,), "label"),
    lambda g, x, w, s, n, m, y: g.binary("add", x, w),
    lambda g, x, w, s, n, m, y: g.binary("xor", x, x),
    lambda g, x, w, s, n, m, y: darner.run(g),
]


@pytest.mark.parametrize("fail", FAILING, ids=lambda f: f"line{f.__code__.co_firstlineno}")
def test_a_failing_call_leaves_no_trace(fail):
    parts = start()
    g = parts[0]
    before = snapshot(g)
    with pytest.raises(DarnerError) as caught:
        fail(*parts)
    assert snapshot(g) == before
    g.verify()
    line = fail.__code__.co_firstlineno
    assert str(caught.value).endswith(f"(test_failures.py:{line})")


def bad_calls(op, sample):
    """Calls of an op that are wrong in one way each, from a right one."""
    args, kwargs = list(sample.args), dict(sample.kwargs)
    places = [i for i, value in enumerate(args) if isinstance(value, Spec)]
    yield "unknown keyword", args, {**kwargs, "no_such_argument": 1}
    yield "too many", [*args, *([1.0] * (len(op.params) + 1))], kwargs
    yield "stated shape", args, {**kwargs, "shape": (91, 92, 93)}
    for i in places:
        yield "a word for a node", [*args[:i], "word", *args[i + 1 :]], kwargs
        yield "nothing for a node", [*args[:i], object(), *args[i + 1 :]], kwargs
    yield "empty label", args, {**kwargs, "label": ""}


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), graphs(max_steps=2), generators)
def test_wrong_calls_of_any_op_leave_any_graph_as_it_was(data, graph, generator):
    op, sample = choose_sample(generator.choice)
    made = []

    def filled(value):
        if isinstance(value, Spec):
            array = make_array(value, dtypes.f32, np.random.default_rng(0))
            made.append(graph.input(f"operand{len(made)}", array.shape, array.dtype))
            return made[-1]
        return [filled(item) for item in value] if isinstance(value, list) else value

    why, args, kwargs = data.draw(st.sampled_from(list(bad_calls(op, sample))))
    args = [filled(value) for value in args]
    kwargs = {name: filled(value) for name, value in kwargs.items()}
    before = snapshot(graph)
    try:
        getattr(graph, op.name)(*args, **kwargs)
    except (DarnerError, TypeError):
        assert snapshot(graph) == before, why
        graph.verify()


def test_an_error_inside_a_composite_builder_undoes_everything():
    @darner.builder(family="test", name="fails_late")
    def fails_late(graph: Graph, x: Node) -> Node:
        """Adds nodes of all kinds, then fails."""
        state = graph.state("inner_state", (2,))
        graph.set_update(state, state + 41.0)
        graph.set_update(graph.states["s"], x, replace=True)
        graph.set_update(graph.parameters["w"], graph.parameters["w"] * 2.0)
        graph.next_stream()
        y = (x * 42.0).tanh() + graph.random_bits((2, 3), stream=graph.next_stream()).cast("f32")
        return y @ y

    try:
        parts = start()
        g, x = parts[:2]
        before = snapshot(g)
        with pytest.raises(
            DarnerError, match=r"^fails_late: x is .* in it, matmul: .*inner sizes 3 and 2"
        ):
            g.fails_late(x)
        assert snapshot(g) == before
        with pytest.raises(DarnerError):
            x.fails_late()
        assert snapshot(g) == before
    finally:
        unregister("fails_late")


def test_errors_that_are_not_darners_undo_too():
    @darner.primitive(family="test", name="broken_rule")
    def broken_rule(x: Tensor) -> TensorType:
        """Divides by zero when its shape is asked for."""
        raise ZeroDivisionError("inside the rule")

    @darner.builder(family="test", name="interrupted")
    def interrupted(graph: Graph, x: Node) -> Node:
        """Is stopped by the user half-way."""
        x.exp()
        raise KeyboardInterrupt

    try:
        g, x = start()[:2]
        before = snapshot(g)
        with pytest.raises(ZeroDivisionError, match="inside the rule"):
            g.broken_rule(31.5 * 2)
        with pytest.raises(ZeroDivisionError):
            x.broken_rule()
        with pytest.raises(KeyboardInterrupt):
            x.interrupted()
        assert snapshot(g) == before
    finally:
        unregister("broken_rule")
        unregister("interrupted")
    assert "broken_rule" not in OPS


def test_a_long_list_of_names_is_shortened():
    g = darner.Graph("wide")
    total = g.input("x", (2,))
    for i in range(20):
        total = total + g.parameter(f"w{i}", (2,))
    g.set_outputs([total])
    with pytest.raises(darner.RunError, match=r"'w6', 'w7' and 12 more"):
        darner.run(g, {"x": [1.0, 2.0]}, {})
