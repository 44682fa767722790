"""Verification: each rule of a graph, broken on purpose, is found and named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import Graph, TensorType, VerifyError
from darner.graph.data import as_data
from darner.graph.op import OPS, get_op, unregister
from tests.strategies import graphs


def model():
    g = Graph("g")
    x = g.input("x", (2, 3))  # %0
    w = g.parameter("w", (2, 3))  # %1
    s = g.state("s", (2,))  # %2
    y = g.add(x, w, label="sum")  # %3
    z = y.sum(-1)  # %4
    c = z * 2.0  # %5, %6
    values, _ = c.top_k(1)  # %7, %8, %9
    values.clip(None, 1.0)  # %10, %11
    g.set_outputs([c])
    g.set_update(s, c)
    return g


def put(g, position, /, **fields):
    """Set fields of a node behind the graph's back."""
    for name, value in fields.items():
        object.__setattr__(g.nodes[position], name, value)


def test_a_graph_that_was_built_is_legal():
    g = model()
    assert g.verify() is g
    assert [node.op.name for node in g.nodes] == [
        "input",
        "parameter",
        "state",
        "add",
        "sum",
        "constant",
        "mul",
        "top_k",
        "project",
        "project",
        "constant",
        "clip",
    ]


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda g: put(g, 3, id=7), "node %3: stands at 3 but says it is %7 of 'g'"),
        (lambda g: put(g, 3, graph=Graph("h")), "node %3: stands at 3 but says it is %3 of 'h'"),
        (lambda g: put(g, 3, graph=None), "node %3: stands at 3 but says it is %3 of 'None'"),
        (lambda g: put(g, 3, op="add"), "node %3: has op 'add', which is not Op"),
        (lambda g: put(g, 3, op=get_op("neg")), "node %3: neg has no operand 'a'"),
        (
            lambda g: put(g, 4, op=get_op("tanh")),
            "has attributes ['axes', 'keepdims'], expected []",
        ),
        (lambda g: put(g, 3, op=get_op("matmul")), "node %3: inner sizes 3 and 2 differ"),
        (lambda g: put(g, 3, op=get_op("eq")), "recorded as f32[2, 3], but eq gives bool[2, 3]"),
        (lambda g: put(g, 3, inputs=(0,)), "takes 2 operands, got 1"),
        (lambda g: put(g, 3, inputs=[0, 1]), "has inputs [0, 1], which is not tuple"),
        (lambda g: put(g, 3, inputs=(0, 3)), "node %3: reads %3, which does not come before it"),
        (lambda g: put(g, 3, inputs=(0, 9)), "node %3: reads %9, which does not come before it"),
        (lambda g: put(g, 3, inputs=(0, -1)), "node %3: reads %-1, which does not come before it"),
        (lambda g: put(g, 3, inputs=(0, "w")), "node %3: reads %w, which does not come before it"),
        (lambda g: put(g, 3, inputs=(0, True)), "reads %True, which does not come before it"),
        (
            lambda g: put(g, 3, inputs=(0, 0)),
            "the users recorded for %1 are not those of the graph",
        ),
        (lambda g: put(g, 3, inputs=(0, 2)), "node %3: sizes 3 and 2 on axis -1 do not broadcast"),
        (lambda g: put(g, 8, inputs=(6,)), "'source' must be a node with several results"),
        (lambda g: put(g, 11, inputs=(7, 10)), "'x' has type (f32[1], i32[1]): project one"),
        (lambda g: put(g, 3, slots=("a",)), "takes 1 operands, got 2"),
        (lambda g: put(g, 3, slots=("b", "a")), "the operands of add are out of order: b, a"),
        (lambda g: put(g, 3, slots=("a", "a")), "add has operand 'a' 2 times"),
        (lambda g: put(g, 3, slots=("a", "c")), "add has no operand 'c'"),
        (lambda g: put(g, 3, slots=("a", 3)), "has a slot 3, which is not text"),
        (lambda g: put(g, 3, slots=None), "has slots None, which is not tuple"),
        (lambda g: put(g, 11, slots=("low", "high")), "operand 'x' is missing"),
        (lambda g: put(g, 3, attrs={"axis": 1}), "has attributes ['axis'], expected []"),
        (lambda g: put(g, 3, attrs=None), "has attrs None, which is not dict"),
        (lambda g: put(g, 4, attrs={"axes": (1,)}), "has attributes ['axes'], expected"),
        (
            lambda g: put(g, 4, attrs={"keepdims": False, "axes": (1,)}),
            "has attributes ['keepdims', 'axes'], expected ['axes', 'keepdims']",
        ),
        (
            lambda g: put(g, 4, attrs={"axes": (-1,), "keepdims": False}),
            "has axes=(-1,), whose canonical form is (1,)",
        ),
        (
            lambda g: put(g, 4, attrs={"axes": [1], "keepdims": False}),
            "has axes=[1], whose canonical form is (1,)",
        ),
        (
            lambda g: put(g, 4, attrs={"axes": (True,), "keepdims": False}),
            "axes: expected an integer, got True",
        ),
        (
            lambda g: put(g, 4, attrs={"axes": (7,), "keepdims": False}),
            "axis 7 is outside -2..1",
        ),
        (
            lambda g: put(g, 4, attrs={"axes": (1,), "keepdims": 0}),
            "keepdims: expected True or False, got 0",
        ),
        (
            lambda g: put(g, 4, attrs={"axes": (1,), "keepdims": None}),
            "argument 'keepdims' is missing",
        ),
        (
            lambda g: put(g, 4, attrs={"axes": (0,), "keepdims": False}),
            "is recorded as f32[2], but sum gives f32[3]",
        ),
        (
            lambda g: put(g, 2, attrs={**g.nodes[2].attrs, "init": 0}),
            "has init=0, whose canonical form is 0.0",
        ),
        (lambda g: put(g, 3, type=TensorType.new((3, 2))), "recorded as f32[3, 2], but add gives"),
        (lambda g: put(g, 3, type=TensorType.new((2, 3), "f16")), "recorded as f16[2, 3], but add"),
        (lambda g: put(g, 3, type=None), "has type None, which is not"),
        (
            lambda g: put(g, 0, type=TensorType.new((2, 4))),
            "recorded as f32[2, 4], but input gives",
        ),
        (lambda g: put(g, 3, label=5), "has label 5, which is not str | None"),
        (lambda g: put(g, 3, label=""), "a label must be non-empty text"),
        (lambda g: put(g, 3, scope=None), "has scope None, which is not str"),
        (lambda g: put(g, 3, source="here.py:1"), "has source 'here.py:1', which is not"),
        (lambda g: g._names.pop("x"), "the name table of graph 'g' does not match its leaves"),
        (lambda g: g._names.update(x=1), "the name table of graph 'g' does not match its leaves"),
        (
            lambda g: put(g, 1, attrs={**g.nodes[1].attrs, "name": "x"}),
            "node %1: has the name 'x' of %0",
        ),
        (lambda g: g._users[0].append(5), "the users recorded for %0 are not those of the graph"),
        (lambda g: g._users.pop(), "the users recorded for %11 are not those of the graph"),
        (lambda g: g._outputs.append(99), "output %99 is not a node of graph 'g'"),
        (lambda g: g._outputs.append(-1), "output %-1 is not a node of graph 'g'"),
        (lambda g: g._outputs.append(7), "output %7 has several results"),
        (lambda g: g._updates.update({2: 99}), "update of %2 by %99 is not between nodes"),
        (lambda g: g._updates.update({0: 0}), "update of %0, which is not a state or parameter"),
        (lambda g: g._updates.update({2: 0}), "update of %2 (f32[2]) by %0 (f32[2, 3])"),
        (lambda g: g._literals.update({as_data(9.0): 5}), "%5 is recorded as the constant"),
        (lambda g: g._literals.update({as_data(9.0): 99}), "%99 is recorded as the constant"),
        (lambda g: g._nodes.pop(), "users recorded"),
        (lambda g: g._nodes.reverse(), "node %0: stands at 0 but says it is %11"),
    ],
)
def test_each_broken_rule_is_named(damage, text):
    g = model()
    damage(g)
    with pytest.raises(VerifyError) as caught:
        g.verify()
    assert text in str(caught.value)


def test_the_error_has_the_op_the_label_and_the_line():
    g = model()
    line = g.nodes[3].source.line
    put(g, 3, type=TensorType.new((3, 2)))
    with pytest.raises(VerifyError) as caught:
        g.verify()
    assert str(caught.value) == (
        "add 'sum': node %3: is recorded as f32[3, 2], but add gives f32[2, 3] "
        f"(test_verify.py:{line})"
    )


def test_mixed_element_types_are_not_legal_whatever_was_recorded():
    g = Graph()
    x, n = g.input("x", (2,)), g.input("n", (2,), "i32")
    y = x + x
    put(g, y.id, inputs=(x.id, n.id))
    with pytest.raises(VerifyError, match="b is i32 beside f32: both need one element type"):
        g.verify()


def test_passes_cannot_insert_what_a_call_would_have_cast():
    g = Graph()
    x, n, b = g.input("x", (2,)), g.input("n", (2,), "i32"), g.input("b", (2,), "bool")
    for op, operands, slots, attrs, text in [
        ("add", [x, n], ("a", "b"), {}, "both need one element type"),
        ("add", [b, b], ("a", "b"), {}, "bool has no arithmetic"),
        ("exp", [n], ("x",), {}, "x must be float, not i32"),
        ("logical_not", [x], ("x",), {}, "x must be bool, not f32"),
        ("sum", [x], ("x",), {"axes": (-1,), "keepdims": False}, "axes are not counted from the"),
        ("sum", [x], ("x",), {"axes": (3,), "keepdims": False}, "axis 3 is outside"),
        ("sum", [x], ("x",), {"axes": (0,)}, "sum has the attributes ['axes', 'keepdims'], got"),
        ("add", [x], ("a",), {}, "operand 'b' is missing"),
        ("add", [x, x], ("a", "z"), {}, "add has no operand 'z'"),
        ("add", [x, x], ("a",), {}, "takes 1 operands, got 2"),
    ]:
        with pytest.raises(darner.DarnerError) as caught:
            g.insert(op, operands, slots, attrs)
        assert text in str(caught.value)
    assert len(g) == 3


def test_inserted_attributes_may_come_in_any_order():
    g = Graph()
    x = g.input("x", (2, 3))
    y = g.insert("sum", [x], ("x",), {"keepdims": True, "axes": (1,)})
    assert list(y.attrs) == ["axes", "keepdims"]
    assert y.shape == (2, 1)
    g.verify()


def test_an_op_that_was_removed_is_no_longer_legal():
    @darner.primitive(family="test", name="removed_op")
    def removed_op(x: darner.graph.attributes.Tensor) -> TensorType:
        """x."""
        return x

    g = Graph()
    g.input("x", (2,)).removed_op()
    assert g.verify() is g
    unregister("removed_op")
    with pytest.raises(VerifyError, match="op 'removed_op' is not the registered one"):
        g.verify()
    assert "removed_op" not in OPS


def test_nan_and_negative_zero_attributes_are_canonical():
    g = Graph()
    g.state("nan", (), init=float("nan"))
    g.state("zero", (), init=-0.0)
    g.verify()


FIELDS = ("id", "op", "inputs", "slots", "attrs", "type", "label", "scope", "source", "graph")


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(graphs(max_steps=4), st.data())
def test_damage_to_any_field_is_found_or_leaves_an_equal_graph(graph, data):
    digest = graph.digest()
    node = data.draw(st.sampled_from(list(graph.nodes)))
    position = node.id
    field = data.draw(st.sampled_from(FIELDS))
    other = data.draw(st.sampled_from(list(graph.nodes)))
    old = getattr(node, field)
    new = data.draw(
        st.sampled_from([None, 3, "x", (), {}, -1, 1.5, [0], getattr(other, field), object()])
    )
    put(graph, position, **{field: new})
    try:
        graph.verify()
    except VerifyError as error:
        message = str(error)
    else:
        message = None
    if message is not None:
        assert "%" in message or "name table" in message
        put(graph, position, **{field: old})
        graph.verify()
    elif graph.digest() != digest:
        # The damage made another legal graph: one op for another of the same type, say.
        assert Graph.from_json(graph.to_json()) == graph


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_every_graph_that_can_be_built_is_legal(graph):
    graph.verify()
    graph.copy().verify()
    graph.toposort().verify()
    darner.expand(graph).verify()
    darner.in_float64(graph).verify()
    graph.bind(dict.fromkeys(graph.dynamic_symbols(), 3)).verify()


def test_verification_evaluates_each_rule_once_per_question():
    calls = []

    @darner.primitive(family="test", name="counted")
    def counted(x: darner.graph.attributes.Tensor, level: int = 0) -> TensorType:
        """x."""
        calls.append(level)
        return x

    try:
        g = Graph()
        x = g.input("x", (2,))
        for i in range(3000):
            x = g.counted(x, i % 3)
        g.set_outputs([x])
        g.verify()
        g.copy().toposort()
        Graph.from_json(g.to_json()).verify()
        assert sorted(calls) == [0, 1, 2]
    finally:
        unregister("counted")
