"""The graph: reading it, adding to it, its names, scopes, outputs, updates and streams."""

import copy
import pickle
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import darner
from darner import (
    ArgumentError,
    DTypeError,
    Graph,
    NameTakenError,
    ShapeError,
    TensorType,
    UnknownNameError,
)
from darner.graph.graph import NodeList
from darner.graph.node import Node
from darner.graph.op import OPS, unregister


def diamond():
    """x feeds two branches that meet: x, a = neg x, b = exp x, c = a + b, d = c * c."""
    g = Graph("diamond")
    x = g.input("x", (2, 3))
    a = x.neg(label="left")
    b = x.exp(label="right")
    c = g.add(a, b)
    d = g.mul(c, c)
    g.set_outputs([d])
    return SimpleNamespace(g=g, x=x, a=a, b=b, c=c, d=d)


def line_of_caller():
    return sys._getframe(1).f_lineno


# --------------------------------------------------------------------------- reading


def test_ids_are_positions_and_nodes_are_unique_objects():
    m = diamond()
    assert [node.id for node in m.g.nodes] == [0, 1, 2, 3, 4]
    assert m.g.node(3) is m.c
    assert m.g.node(m.c) is m.c
    assert m.g.node(np.int64(3)) is m.c
    assert len(m.g) == m.g.len() == 5
    assert m.g.shape(3) == m.g.shape(m.c) == darner.Shape.new((2, 3), "f32")
    assert (m.g.shape(3).rank, m.g.shape(3).dtype) == (2, "f32")


def test_an_empty_graph_is_empty_but_true():
    g = Graph.new("empty")
    assert g.is_empty()
    assert bool(g)
    assert g.len() == 0
    assert g.nodes == []
    assert g.outputs() == []
    assert g.name == "empty"
    assert g.verify() is g
    g.constant(1.0)
    assert not g.is_empty()


def test_accessors_can_be_called_or_read():
    m = diamond()
    assert m.g.nodes() == m.g.nodes == [m.x, m.a, m.b, m.c, m.d]
    assert m.g.outputs() == m.g.outputs == (m.d,)


def test_users_are_distinct_and_in_order():
    m = diamond()
    assert m.g.users(m.x) == [m.a, m.b]
    assert m.g.users(m.c) == [m.d]  # which reads it twice
    assert m.g.users(m.d.id) == []
    assert [m.g.use_count(i) for i in range(5)] == [2, 1, 1, 1, 0]


def test_orders_of_nodes():
    m = diamond()
    assert m.g.topo_order() == m.g.nodes
    assert m.g.reverse_topo() == [m.d, m.c, m.b, m.a, m.x]
    for node in m.g.topo_order():
        assert all(i < node.id for i in node.inputs)


def test_is_output_asks_about_one_node():
    m = diamond()
    assert m.g.is_output(m.d)
    assert m.g.is_output(4)
    assert not m.g.is_output(m.c)


@pytest.mark.parametrize(
    ("id", "kind", "text"),
    [
        (5, UnknownNameError, "graph 'diamond' has no node 5: it has 5 nodes"),
        (-1, UnknownNameError, "graph 'diamond' has no node -1"),
        (True, ArgumentError, "a node's id is an integer, got True"),
        ("x", ArgumentError, "a node's id is an integer, got 'x'"),
        (1.0, ArgumentError, "a node's id is an integer, got 1.0"),
        (None, ArgumentError, "a node's id is an integer, got None"),
    ],
)
def test_unknown_nodes_are_refused(id, kind, text):
    m = diamond()
    with pytest.raises(kind) as caught:
        m.g.node(id)
    assert text in str(caught.value)


def test_nodes_of_another_graph_are_refused():
    m, other = diamond(), Graph("other")
    y = other.input("y", (2, 3))
    for use in (
        lambda: m.g.node(y),
        lambda: m.g.users(y),
        lambda: m.g.add(m.x, y),
        lambda: m.x + y,
        lambda: m.g.set_outputs([y]),
        lambda: m.g.set_inputs(m.a, [y]),
    ):
        with pytest.raises(ArgumentError, match="graph 'other', not of 'diamond'"):
            use()
    assert len(m.g) == 5


def test_unknown_methods_suggest_the_nearest_op():
    with pytest.raises(AttributeError, match="Graph has no method or op 'sofmax'; did you mean"):
        Graph().sofmax
    with pytest.raises(AttributeError, match="Node has no attribute or op 'tahn'; did you mean"):
        Graph().input("x", (2,)).tahn()


def test_every_op_is_listed_as_a_method():
    g = Graph()
    assert {"tanh", "add", "input", "set_outputs"} <= set(dir(g))
    assert {"tanh", "add", "shape"} <= set(dir(g.input("x", ())))
    assert "input" not in dir(g.node(0))
    assert "e to the power" in g.exp.__doc__
    assert g.exp.__name__ == "exp"


# --------------------------------------------------------------------------- lists of nodes


def test_node_lists_compare_by_identity_and_never_build():
    m = diamond()
    nodes = m.g.nodes
    assert m.c in nodes
    assert nodes.index(m.c) == 3
    assert nodes.index(m.c, 2) == 3
    assert nodes.count(m.c) == 1
    assert NodeList([m.a, m.b, m.a]).count(m.a) == 2
    with pytest.raises(ValueError, match="is not in the list"):
        nodes.index(m.c, 0, 2)
    assert Graph().input("x", (2,)) not in nodes
    assert nodes != [m.x]
    assert nodes[1:3] == [m.a, m.b]
    assert isinstance(nodes[1:3], NodeList)
    assert nodes[-1] is m.d
    assert list(reversed(nodes)) == [m.d, m.c, m.b, m.a, m.x]
    assert "neg" in repr(nodes)
    assert len(m.g) == 5


def test_a_loop_over_nodes_does_not_visit_what_it_adds():
    m = diamond()
    for node in m.g.nodes:
        node.relu()
    assert len(m.g) == 10


# --------------------------------------------------------------------------- outputs and updates


def test_outputs_may_be_nodes_ids_or_one_node():
    m = diamond()
    for given, wanted in [
        (m.c, [m.c]),
        (3, [m.c]),
        (np.int64(3), [m.c]),
        ([m.c, 1], [m.c, m.a]),
        ((m.c, m.c), [m.c, m.c]),
        ((node for node in (m.a, m.b)), [m.a, m.b]),
        (m.g.nodes[:2], [m.x, m.a]),
        ([], []),
    ]:
        m.g.set_outputs(given)
        assert m.g.outputs == wanted


@pytest.mark.parametrize("outputs", [[99], ["x"], None, 1.5, [None], [True]])
def test_wrong_outputs_are_refused_and_the_old_ones_stay(outputs):
    m = diamond()
    with pytest.raises((ArgumentError, UnknownNameError), match="set_outputs"):
        m.g.set_outputs(outputs)
    assert m.g.outputs == [m.d]


def test_updates_say_what_a_state_becomes():
    g = Graph()
    s, w = g.state("s", (3,)), g.parameter("w", (3,))
    g.set_update(s, s + 1.0)
    g.set_update("w" and w.id, (w * 0.5).id)
    assert {leaf.name: value.op.name for leaf, value in g.updates.items()} == {
        "s": "add",
        "w": "mul",
    }


def test_an_update_can_be_replaced_when_that_is_meant():
    g = Graph()
    s, x = g.state("s", (3,)), g.input("x", (3,))
    g.set_update(s, x)
    g.set_update(s, s, replace=True)
    assert g.updates == {s: s}


def test_wrong_updates_are_refused():
    g = Graph("g")
    x, s, t = g.input("x", (3,)), g.state("s", (3,)), g.state("t", (3,))
    g.set_update(s, x)
    for call, kind, text in [
        (lambda: g.set_update(x, s), ArgumentError, "%0 is input, not a state or parameter"),
        (
            lambda: g.set_update(s, x),
            ArgumentError,
            "'s' is already updated by %0; chain the writes",
        ),
        (
            lambda: g.set_update(t, x.cast("f16")),
            ShapeError,
            "'t' is f32[3], but its update is f16[3]",
        ),
        (lambda: g.set_update(t, 99), UnknownNameError, "has no node 99"),
    ]:
        with pytest.raises(kind) as caught:
            call()
        assert text in str(caught.value)
        assert str(caught.value).startswith("set_update: ")
    assert [leaf.name for leaf in g.updates] == ["s"]


# --------------------------------------------------------------------------- names and scopes


def test_leaves_are_found_by_name_in_order():
    g = Graph()
    w, x, s, b = (
        g.parameter("w", (2,)),
        g.input("x", (2,)),
        g.state("s", (2,)),
        g.parameter("b", (2,)),
    )
    assert list(g.parameters) == ["w", "b"]
    assert g.parameters["b"] is b
    assert list(g.inputs.items()) == [("x", x)]
    assert list(g.states.items()) == [("s", s)]
    assert w.name == "w"
    assert (w + b).name is None


def test_a_name_is_taken_once_whatever_the_kind():
    g = Graph()
    g.parameter("w", (2,))
    for make in (g.input, g.parameter, g.state):
        with pytest.raises(NameTakenError, match="the name 'w' is taken by the parameter %0"):
            make("w", (2,))
    assert len(g) == 1


def test_scopes_prefix_names_and_labels_and_nest():
    g = Graph()
    with g.scope("encoder"):
        assert g.current_scope == "encoder"
        with g.scope("layer0"):
            w = g.parameter("w", (2,))
            y = w.tanh(label="act")
            plain = y.exp()
        b = g.parameter("b", (2,))
    outside = g.parameter("w", (2,))
    assert [n.name for n in (w, b, outside)] == ["encoder.layer0.w", "encoder.b", "w"]
    assert (y.label, y.scope) == ("encoder.layer0.act", "encoder.layer0")
    assert (plain.label, plain.scope) == (None, "encoder.layer0")
    assert g.current_scope == ""


def test_a_scope_ends_with_an_error_inside_it():
    g = Graph()
    with pytest.raises(ShapeError), g.scope("a"), g.scope("b"):
        g.input("x", (2,)) + g.input("y", (3,))
    assert g.current_scope == ""
    assert g.inputs.keys() == {"a.b.x", "a.b.y"}


@pytest.mark.parametrize("name", ["", None, 3, "\ud800"])
def test_scopes_and_labels_must_be_text(name):
    g = Graph()
    x = g.input("x", (2,))
    with pytest.raises(ArgumentError, match="scope: a scope"), g.scope(name):
        pass
    if name is not None:
        with pytest.raises(ArgumentError, match="a label"):
            x.tanh(label=name)
        with pytest.raises(ArgumentError, match="relabel: a label"):
            g.relabel(x, name)
    with pytest.raises(ArgumentError, match=r"input: .*(a name|a label|'name' is missing)"):
        g.input(name, (2,))
    assert len(g) == 1
    assert g.current_scope == ""


def test_lone_surrogates_cannot_be_written_so_they_are_refused():
    with pytest.raises(ArgumentError, match=r"a graph's name cannot be .* surrogates not allowed"):
        Graph("\ud800")


@pytest.mark.parametrize("name", [None, 3, ["a"]])
def test_a_graph_is_named_by_text(name):
    with pytest.raises(ArgumentError, match="Graph: a graph's name must be text"):
        Graph(name)


def test_relabel_changes_one_label():
    m = diamond()
    m.g.relabel(m.c, "sum")
    m.g.relabel(1, None)
    assert [node.label for node in m.g.nodes] == [None, None, "right", "sum", None]


def test_a_builder_labels_its_result_but_never_an_old_node():
    @darner.builder(family="test", name="maybe_double")
    def maybe_double(graph: Graph, x: Node, twice: bool) -> Node:
        """2x or x."""
        return x * 2.0 if twice else x

    try:
        m = diamond()
        assert m.g.maybe_double(m.a, True, label="doubled").label == "doubled"
        assert m.g.maybe_double(m.a, False, label="same") is m.a
        assert m.a.label == "left"
        assert m.a.maybe_double(twice=True).op.name == "mul"
        assert m.g.maybe_double(1, twice=False) is m.a  # a node's id
        with pytest.raises(ArgumentError, match=r"the call is maybe_double\(x, twice\)"):
            m.g.maybe_double(m.a)
    finally:
        unregister("maybe_double")
    with pytest.raises(AttributeError, match="maybe_double"):
        Graph().maybe_double


# --------------------------------------------------------------------------- generic calls


def test_add_node_takes_any_op_by_name_or_record():
    g = Graph()
    x = g.input("x", (2, 3))
    y = g.add_node("tanh", [x])
    assert (y.op.name, y.inputs) == ("tanh", (0,))
    assert g.add_node(y.op, [y.id]).inputs == (1,)
    assert g.add_node("sum", [x], axes=1).shape == (2,)
    assert g.add_node("concat", [x, x], axis=0).shape == (4, 3)
    assert g.add_node("input", [], (4,), name="late").name == "late"
    assert g.add_node("tanh", [x], label="named").label == "named"
    assert g.add_node("tanh", [x], (2, 3)).shape == (2, 3)


def test_append_node_has_a_label_or_a_leafs_name():
    g = Graph()
    x = g.append_node("input", [], (2, 3), "x")
    y = g.append_node("exp", [x], (2, 3), "y")
    assert (x.name, y.label) == ("x", "y")
    assert g.append_node("exp", [x], name="z").label == "z"
    assert g.append_node("exp", [x]).label is None


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda g, x: g.add_node("tanhh", [x]), "add_node: no op is called 'tanhh'; did you mean"),
        (lambda g, x: g.add_node("tanh", [9]), "add_node: graph 'g' has no node 9"),
        (lambda g, x: g.add_node("tanh", x.id), "inputs must be a list of nodes, got 0"),
        (lambda g, x: g.add_node("tanh", []), "tanh: argument 'x' is missing"),
        (lambda g, x: g.add_node("tanh", [x, x]), "tanh: takes 1 argument, got 2"),
        (
            lambda g, x: g.add_node("tanh", [x], (3, 3)),
            "the result is (2, 3), but (3, 3) was stated",
        ),
        (lambda g, x: g.add_node("tanh", [x], speed=1), "tanh: has no argument 'speed'"),
    ],
)
def test_wrong_generic_calls_name_the_fault(call, text):
    g = Graph("g")
    x = g.input("x", (2, 3))
    with pytest.raises(darner.DarnerError) as caught:
        call(g, x)
    assert text in str(caught.value)
    assert len(g) == 1


def test_ids_stand_for_nodes_in_methods_of_a_graph():
    g = Graph()
    x, y = g.input("x", (2,)), g.input("y", (2,))
    assert g.sub(0, 1).inputs == (0, 1)
    assert g.sub(0, b=1).inputs == (x.id, y.id)
    assert g.concat([0, 1], axis=0).inputs == (0, 1)
    with pytest.raises(
        UnknownNameError, match=rf"sub: .*no node 77.*\({__name__.split('.')[-1]}.py:"
    ):
        g.sub(0, 77)


def test_stated_shapes_are_checked_never_trusted():
    g = Graph()
    x = g.input("x", (2, 3))
    assert x.exp(shape=(2, 3)).shape == (2, 3)
    assert g.exp(x, (2, 3)).shape == (2, 3)
    assert g.exp(x, TensorType.new((2, 3))).shape == (2, 3)
    with pytest.raises(ShapeError, match=r"the result is \(2, 3\), but \(3, 2\) was stated"):
        x.exp(shape=(3, 2))
    with pytest.raises(DTypeError, match="the result is f32, but f16 was stated"):
        g.exp(x, TensorType.new((2, 3), "f16"))
    assert len(g) == 4


# --------------------------------------------------------------------------- literals and streams


def test_equal_numbers_share_a_constant():
    g = Graph()
    x = g.input("x", (2,))
    y = x + 1.0
    z = x * 1.0
    assert y.inputs[1] == z.inputs[1]
    assert (x + 0.0).inputs[1] != (x + -0.0).inputs[1]
    assert (x + 1).inputs[1] == y.inputs[1]  # the number takes the type beside it
    assert (x.cast("f16") + 1.0).inputs[1] != y.inputs[1]
    assert (x + np.float32(1)).inputs[1] == y.inputs[1]
    assert (x + np.array([1.0, 2.0], np.float32)).operands[1].shape == (2,)


def test_streams_are_never_given_twice():
    g = Graph()
    assert [g.next_stream(), g.next_stream()] == [0, 1]
    g.random_bits((3,), stream=7)
    g.random_bits((3,), stream=2**32 - 1)
    assert g.next_stream() == 8
    g.set_outputs([g.nodes[0]])
    for again in (g.copy(), g.toposort(), Graph.from_json(g.to_json())):
        assert again.next_stream() == 9
    assert Graph.from_text(g.to_text()).next_stream() == 8  # what its own nodes use
    assert darner.expand(g).next_stream() == 9


# --------------------------------------------------------------------------- freezing, comparing


def test_a_frozen_graph_refuses_changes_and_its_copy_does_not():
    m = diamond()
    assert m.g.freeze() is m.g
    before = m.g.digest()
    for change in (
        lambda: m.x + m.x,
        lambda: m.g.input("y", (2,)),
        lambda: m.g.set_outputs([m.x]),
        lambda: m.g.set_inputs(m.a, [m.b]),
        lambda: m.g.set_update(m.x, m.x),
        lambda: m.g.relabel(m.x, "new"),
        lambda: m.g.node_mut(m.a).set_label("new"),
        lambda: m.g.node_mut(m.a).set_attrs(speed=1),
        lambda: m.g.add_node("tanh", [m.x]),
    ):
        with pytest.raises(ArgumentError, match=r"graph 'diamond' is frozen; copy\(\) it"):
            change()
    assert m.g.digest() == before
    assert m.g.outputs == [m.d]
    again = m.g.copy()
    again.node(0).tanh()
    assert len(again) == 6
    assert again != m.g


def test_graphs_are_equal_by_structure_not_by_names_of_their_own():
    a, b = diamond().g, diamond().g
    assert a == b
    assert hash(a) == hash(b)
    b.name = "another"
    b.relabel(1, "renamed")
    assert a == b
    b.set_outputs([3])
    assert a != b
    assert a != "diamond"
    assert len({a, diamond().g, b}) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda g: g.node(0).tanh(),
        lambda g: g.set_outputs([]),
        lambda g: g.set_outputs([2, 2]),
        lambda g: g.set_inputs(3, [1, 1]),
        lambda g: g.node_mut(0).set_attrs(shape=(5, 3)),
    ],
)
def test_the_digest_changes_with_the_structure(change):
    g = diamond().g
    before = g.digest()
    change(g)
    assert g.digest() != before
    assert g != diamond().g


def test_the_digest_sees_every_attribute_and_type():
    def digest(dtype="f32", name="x", init=0.0, update=False, value=2.0, low=0.0):
        g = Graph()
        s = g.state("s", (2,), dtype, init=init)
        y = g.input(name, (2,), dtype).clip(low, 1.0)
        g.set_outputs([y * value])
        if update:
            g.set_update(s, y)
        return g.digest()

    variants = [
        {},
        {"dtype": "f16"},
        {"name": "z"},
        {"init": 1.0},
        {"init": -0.0},
        {"init": float("nan")},
        {"update": True},
        {"value": -2.0},
        {"low": -0.0},
    ]
    digests = [digest(**variant) for variant in variants]
    assert len(set(digests)) == len(variants)
    assert digests == [digest(**variant) for variant in variants]


def test_copies_keep_everything_and_are_apart():
    m = diamond()
    m.g.node(0).tanh(label="dead")
    again = m.g.copy("renamed")
    assert again.name == "renamed"
    assert again == m.g
    assert [(n.label, n.scope, n.source) for n in again.nodes] == [
        (n.label, n.scope, n.source) for n in m.g.nodes
    ]
    again.node(0) * 3.0
    assert len(again) == len(m.g) + 2
    assert m.g.copy().name == "diamond"


def test_pickles_and_deep_copies_are_equal_and_nodes_follow():
    m = diamond()
    m.g.freeze()
    for again in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        assert again.g == m.g
        assert again.g.to_json() == m.g.to_json()
        assert again.g is not m.g
        assert again.c is again.g.node(3)
        with pytest.raises(ArgumentError, match="is frozen"):
            again.x.tanh()
    assert copy.copy(m.c) is m.c
    free = copy.deepcopy(diamond().g)
    free.node(0).tanh()
    assert len(free) == 6


def test_large_constants_are_not_kept_alive_by_the_op():
    g = Graph()
    g.constant(np.ones(1000))
    g.input("x", (2,))
    assert not OPS["constant"]._memo
    assert not OPS["input"]._memo


def test_a_copy_still_shares_its_constants():
    g = Graph()
    x = g.input("x", (2,))
    y = x + 1.5
    again = g.copy()
    assert (again.node(0) * 1.5).inputs[1] == y.inputs[1]


# --------------------------------------------------------------------------- errors and lines


def test_nodes_remember_the_users_line():
    g = Graph()
    x, here = g.input("x", (2,)), line_of_caller()
    y = x + 1.0
    assert x.source.line == here
    assert x.source.file == __file__
    assert str(y.source) == f"test_graph.py:{here + 1}"
    assert {node.source.line for node in g.nodes} == {here, here + 1}


@pytest.mark.parametrize(
    "fail",
    [
        lambda g: g.set_outputs([99]),
        lambda g: g.set_inputs(0, [0]),
        lambda g: g.set_update(0, 0),
        lambda g: g.node_mut(0).set_attrs(speed=1),
        lambda g: g.bind(n=3),
        lambda g: g.add_node("tanh", [99]),
        lambda g: g.relabel(0, ""),
        lambda g: g.node(0) + g.node(1),
        lambda g: g.add(0, 1),
        lambda g: g.binary("add", 0, 1),
        lambda g: g.binary("power of", 0, 1),
        lambda g: g.add(0, 99),
        lambda g: g.scope("").__enter__(),
        lambda g: bool(g.node(0)),
        lambda g: len(g.input("d", ("n", 2))),
        lambda g: setattr(g.node(0), "type", None),
        lambda g: Graph.from_text("junk"),
        lambda g: Graph.from_json("junk"),
        lambda g: Graph(3),
    ],
)
def test_errors_name_the_users_line(fail):
    g = Graph("g")
    g.input("x", (2,))
    g.input("y", (3,))
    line = fail.__code__.co_firstlineno
    with pytest.raises(darner.DarnerError) as caught:
        fail(g)
    assert str(caught.value).endswith(f"(test_graph.py:{line})")


def test_an_error_shows_op_label_both_types_rule_and_line():
    g = Graph()
    with g.scope("ffn"):
        x, w = g.input("x", (32, 784)), g.parameter("w", (512, 128))
        here = line_of_caller() + 2
        with pytest.raises(ShapeError) as caught:
            g.matmul(x, w, label="up")
    assert str(caught.value) == (
        "matmul 'ffn.up': a is f32[32, 784] but b is f32[512, 128]: "
        f"inner sizes 784 and 512 differ (test_graph.py:{here})"
    )
    error = caught.value
    assert (error.op, error.label) == ("matmul", "ffn.up")
    assert error.operands == "a is f32[32, 784] but b is f32[512, 128]"
    assert error.rule == "inner sizes 784 and 512 differ"
    assert (error.source.file, error.source.line) == (__file__, here)


# --------------------------------------------------------------------------- symbols


def test_symbols_of_a_graph_are_listed_and_bound():
    g = Graph()
    x = g.input("x", ("batch", "seq"))
    y = g.input("y", ("seq",))
    g.set_outputs([x + y])
    assert g.has_dynamic_dims()
    assert g.dynamic_symbols() == ["batch", "seq"]
    half = g.bind(seq=7)
    assert half.dynamic_symbols() == ["batch"]
    assert [str(n.type) for n in half.nodes] == ["f32[batch, 7]", "f32[7]", "f32[batch, 7]"]
    whole = half.bind({"batch": 2})
    assert not whole.has_dynamic_dims()
    assert whole.outputs[0].shape == (2, 7)
    assert g.outputs[0].shape == (darner.symbol("batch"), darner.symbol("seq"))
    assert not Graph().has_dynamic_dims()
    assert Graph().dynamic_symbols() == []


def test_inspect_shows_counts_labels_lines_and_outputs():
    m = diamond()
    s = m.g.state("s", (2, 3))
    m.g.set_update(s, m.d)
    text = m.g.inspect()
    first, second, *rest = text.splitlines()
    assert first == "graph @diamond (6 nodes, 1 output, 144 B unshared)"
    assert second == "  ops: add=1, exp=1, input=1, mul=1, neg=1, state=1"
    assert '"left"' in rest[1]
    assert f"// test_graph.py:{m.a.source.line}" in rest[1]
    assert rest[4].endswith("<- output")
    assert rest[-2:] == ['  update %5 "s" = %4', "  return %4"]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (12_345_678, "12.3 MB"), (5e12, "5000.0 GB")],
)
def test_bytes_print_in_powers_of_a_thousand(count, text):
    from darner.graph.text.annotated import format_bytes

    assert format_bytes(int(count)) == text
    assert format_bytes(4 * darner.symbol("n")) == "4*n B"


def test_inspect_keeps_one_line_a_node_whatever_the_names():
    g = Graph("two\nlines")
    g.input('quote"\nline', (2,)).tanh(label="a\nb")
    assert len(g.inspect().splitlines()) == 5
