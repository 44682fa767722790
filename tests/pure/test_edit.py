"""Graphs from graphs, and checked edits in place."""

import numpy as np
import pytest

import darner
from darner import ArgumentError, DTypeError, Graph, ShapeError, UnknownNameError
from tests.strategies import snapshot

# --------------------------------------------------------------------------- bind


def chain():
    g = Graph("chain")
    x = g.input("x", ("n", "m"))
    y = (x.tanh() * 2.0).reshape((-1,))
    z = y.broadcast_to((3, "n*m"))
    g.set_outputs([z])
    return g


def test_bind_puts_sizes_in_types_and_attributes():
    g = chain()
    bound = g.bind(n=4, m=5)
    assert bound.outputs[0].shape == (3, 20)
    assert bound.inputs["x"].attrs["shape"] == (4, 5)
    assert all(not node.type.symbols for node in bound.nodes)
    bound.verify()
    values = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    for graph in (g, bound):
        found = darner.run(graph, {"x": values})[0]
        np.testing.assert_allclose(
            found, np.broadcast_to(np.tanh(values).ravel() * 2, (3, 20)), rtol=1e-6
        )


def test_bind_keeps_labels_lines_outputs_updates_and_the_original():
    g = Graph("g")
    s = g.state("s", ("n",))
    y = s.tanh(label="act")
    g.set_outputs([y])
    g.set_update(s, y)
    before = g.digest()
    bound = g.bind(n=3)
    assert bound.name == "g"
    assert bound.nodes[1].label == "act"
    assert bound.nodes[1].source == y.source
    assert {a.id: b.id for a, b in bound.updates.items()} == {0: 1}
    assert g.digest() == before


def test_bind_to_other_symbols_and_in_steps_is_the_same():
    g = chain()
    direct = g.bind(n=6, m=2)
    assert g.bind(n="3*k").bind(k=2).bind(m=2) == direct
    assert g.bind({"n": "m", "m": "n"}).bind(m=6, n=2) == direct
    assert g.bind() == g
    assert g.bind(n=np.int64(6), m=2) == direct


@pytest.mark.parametrize(
    ("sizes", "kind", "text"),
    [
        ({"nn": 3}, UnknownNameError, "graph 'chain' has no symbol 'nn'; did you mean 'n'?"),
        ({"zzz": 3}, UnknownNameError, "its symbols are m, n"),
        ({"n": -1}, ShapeError, "size -1 is negative"),
        ({"n": 1.5}, ShapeError, "size 1.5 is not an integer"),
        ({"n": True}, ShapeError, "size True is not an integer"),
        ({"n": "+"}, ShapeError, "'+' is not a size"),
    ],
)
def test_wrong_bindings_are_refused(sizes, kind, text):
    with pytest.raises(kind) as caught:
        chain().bind(sizes)
    assert text in str(caught.value)
    assert str(caught.value).startswith("bind: ")


def test_a_graph_without_symbols_says_so():
    with pytest.raises(UnknownNameError, match="it has no symbols"):
        Graph().bind(n=1)


def test_sizes_that_stop_fitting_are_named_with_the_node():
    g = Graph()
    x, y = g.input("x", ("n",)), g.input("y", ("n",))
    x.add(y, label="sum")
    z = g.input("z", ("n-3",))
    assert g.bind(n=5).node(z.id).shape == (2,)
    with pytest.raises(ShapeError, match=r"input: size n-3 becomes -1, which is negative"):
        g.bind(n=2)


# --------------------------------------------------------------------------- toposort


def test_toposort_drops_what_nothing_needs_and_keeps_leaves():
    g = Graph("g")
    x = g.input("x", (2,))
    dead = x.exp()
    dead.neg()
    unused = g.parameter("unused", (3,))
    s = g.state("s", (2,))
    fresh = s + 1.0
    y = x.tanh(label="kept")
    g.set_outputs([y])
    g.set_update(s, fresh)
    tidy = g.toposort()
    assert [node.op.name for node in tidy.nodes] == [
        "input",
        "parameter",
        "state",
        "constant",
        "add",
        "tanh",
    ]
    assert tidy.parameters["unused"].type == unused.type
    assert tidy.outputs[0].label == "kept"
    assert [node.id for node in tidy.nodes] == list(range(6))
    assert len(g) == 8
    assert tidy.toposort() == tidy
    values = np.float32([0.5, -1.0])
    state = {}
    np.testing.assert_array_equal(
        darner.run(tidy, {"x": values}, {"unused": np.zeros(3)}, state=state)[0], np.tanh(values)
    )
    np.testing.assert_array_equal(state["s"], [1.0, 1.0])


def test_toposort_of_a_graph_without_outputs_keeps_leaves_only():
    g = Graph()
    g.input("x", (2,)).tanh()
    assert [node.op.name for node in g.toposort().nodes] == ["input"]


# --------------------------------------------------------------------------- edits in place


def two_branches():
    g = Graph("g")
    x = g.input("x", (2, 3))
    y = g.input("y", (2, 3))
    wide = g.input("wide", (4, 1, 3))
    g.input("long", (2, 7))
    g.input("ints", (2, 3), "i32")
    g.input("flat", (3,))
    a = x.neg(label="a")
    b = g.add(a, y, label="b")
    c = b.sum(-1, label="c")
    g.set_outputs([c])
    return g, x, y, wide, a, b, c


def zeros(g):
    return {name: np.zeros(node.shape, node.dtype.numpy) for name, node in g.inputs.items()}


def test_set_inputs_rewires_and_users_follow():
    g, x, y, _, a, b, _ = two_branches()
    g.set_inputs(b, [y, y])
    assert b.operands == (y, y)
    assert g.users(y) == [b]
    assert g.users(a) == []
    assert g.use_count(x) == 1
    g.verify()
    values = np.ones((2, 3), np.float32)
    result = darner.run(g, {**zeros(g), "x": values, "y": values})[0]
    np.testing.assert_array_equal(result, [6.0, 6.0])


def test_set_inputs_infers_everything_after_it_anew():
    g, _, y, wide, a, b, c = two_branches()
    g.set_inputs(a, [wide])
    assert a.shape == (4, 1, 3)
    assert b.shape == (4, 2, 3)
    assert y.shape == (2, 3)
    assert c.attrs["axes"] == (1,)
    assert c.shape == (4, 3)  # the axis stays the one it was, counted from the front
    g.verify()


def test_set_inputs_takes_ids_and_nodes():
    g, x, y, _, _, b, _ = two_branches()
    g.set_inputs(b.id, [x.id, y])
    assert b.inputs == (0, 1)
    g.node_mut(b).set_inputs([1, 0])
    assert b.inputs == (1, 0)
    g.verify()


@pytest.mark.parametrize(
    ("edit", "kind", "text"),
    [
        (lambda g: g.set_inputs(7, [0]), ArgumentError, "add has 2 operands, got 1"),
        (lambda g: g.set_inputs(6, [7]), ArgumentError, "%7 comes after %6: an operand must come"),
        (lambda g: g.set_inputs(6, [6]), ArgumentError, "%6 comes after %6"),
        (lambda g: g.set_inputs(6, [99]), UnknownNameError, "has no node 99"),
        (lambda g: g.set_inputs(99, [0]), UnknownNameError, "has no node 99"),
        (lambda g: g.set_inputs(7, [0, 3]), ShapeError, "do not broadcast"),
        (
            lambda g: g.set_inputs(7, [0, 4]),
            DTypeError,
            "i32 beside f32: both need one element type",
        ),
        (lambda g: g.set_inputs(8, [5]), ArgumentError, "axis 1 is outside -1..0"),
        (lambda g: g.node_mut(8).set_attrs(axes=5), ArgumentError, "axis 5 is outside"),
        (lambda g: g.node_mut(8).set_attrs(axes=(0, 0)), ArgumentError, "name one axis twice"),
        (lambda g: g.node_mut(8).set_attrs(axes="x"), ArgumentError, "axes: expected an integer"),
        (lambda g: g.node_mut(8).set_attrs(axis=1), ArgumentError, "did you mean 'axes'"),
        (lambda g: g.node_mut(6).set_attrs(axis=1), ArgumentError, "neg has no attribute 'axis'"),
        (lambda g: g.node_mut(8).set_attrs(keepdims=None), ArgumentError, "'keepdims' is missing"),
        (lambda g: g.node_mut(0).set_attrs(name="z"), ArgumentError, "the name of a leaf cannot"),
        (lambda g: g.node_mut(0).set_attrs(shape=(2, 9)), ShapeError, "do not broadcast"),
        (lambda g: g.node_mut(0).set_attrs(dtype="i32"), DTypeError, "both need one element type"),
        (lambda g: g.node_mut(0).set_attrs(shape=(-1,)), ShapeError, "shape: size -1 is negative"),
        (lambda g: g.node_mut(9), UnknownNameError, "has no node 9"),
        (lambda g: g.node_mut(0).set_label(""), ArgumentError, "a label must be non-empty"),
    ],
)
def test_wrong_edits_change_nothing(edit, kind, text):
    g = two_branches()[0]
    before = snapshot(g)
    with pytest.raises(kind) as caught:
        edit(g)
    assert text in str(caught.value)
    assert snapshot(g) == before
    g.verify()


def test_an_edit_that_breaks_a_later_node_names_that_node():
    g, _, _, _, _, b, _ = two_branches()
    late = g.input("late", (2, 3))
    g.set_outputs([b.matmul(g.parameter("w", (3, 4)), label="project")])
    g.set_inputs(b, [0, 0])
    with pytest.raises(ArgumentError):
        g.set_inputs(b, [late, late])  # it comes later
    with pytest.raises(ShapeError, match=r"matmul 'project'.*inner sizes 5 and 3 differ"):
        g.node_mut(0).set_attrs(shape=(2, 5))
    assert b.shape == (2, 3)


def test_set_attrs_infers_types_and_counts_axes_from_the_front():
    g, _, _, _, _, _, c = two_branches()
    g.node_mut(c).set_attrs(axes=-2, keepdims=True)
    assert c.attrs == {"axes": (0,), "keepdims": True}
    assert c.shape == (1, 3)
    g.verify()
    g.node_mut(c).set_attrs(axes=None)
    assert c.attrs["axes"] == (0, 1)


def test_a_changed_constant_is_not_taken_for_its_old_value():
    g = Graph()
    x = g.input("x", ())
    y = x * 2.0
    g.node_mut(y.inputs[1]).set_attrs(values=3.0)
    z = x * 2.0
    g.set_outputs([y, z])
    g.verify()
    assert [float(v) for v in darner.run(g, {"x": np.float32(1.0)})] == [3.0, 2.0]


def test_updates_must_keep_their_type_through_edits():
    g = Graph()
    s, x = g.state("s", (2,)), g.input("x", (2,))
    y = x.neg()
    g.set_update(s, y)
    with pytest.raises(ArgumentError, match="the update of 's' would no longer have its type"):
        g.node_mut(x).set_attrs(shape=(3,))
    assert y.shape == (2,)
    g.verify()


def test_editors_chain_and_cover_every_node():
    g = two_branches()[0]
    editors = g.nodes_mut()
    assert [editor.node for editor in editors] == list(g.nodes)
    editors[7].set_inputs([0, 1]).set_label("renamed")
    assert g.node(7).label == "renamed"
    assert g.node(7).inputs == (0, 1)
    editors[7].set_label(None)
    assert g.node(7).label is None


# --------------------------------------------------------------------------- expand, in_float64


def test_expand_leaves_primitives_and_keeps_labels_and_lines():
    g = Graph("g")
    x = g.input("x", (4,), "f16")
    y = x.sigmoid(label="gate")
    g.set_outputs([y])
    s = g.state("s", (4,), "f16")
    g.set_update(s, y)
    flat = darner.expand(g)
    assert not any(node.op.is_composite for node in flat.nodes)
    assert {node.label for node in flat.nodes if node.op.name not in ("input", "state")} == {"gate"}
    assert {node.source for node in flat.nodes[1:-1]} == {y.source}
    assert [leaf.name for leaf in flat.updates] == ["s"]
    values = np.linspace(-3, 3, 4).astype(np.float16)
    np.testing.assert_array_equal(
        darner.run(flat, {"x": values})[0], darner.run(g, {"x": values})[0]
    )


def test_expand_keeps_what_it_is_told_to_keep():
    g = Graph()
    g.set_outputs([g.input("x", (4,)).sigmoid().softplus()])
    kept = darner.expand(g, keep=lambda node: node.op.name == "sigmoid")
    names = [node.op.name for node in kept.nodes]
    assert "sigmoid" in names
    assert "softplus" not in names


def test_float64_widens_floats_constants_and_casts():
    g = Graph()
    x = g.input("x", (2,), "f16")
    n = g.input("n", (2,), "i32")
    g.set_outputs([x.cast("bf16") * 0.1 + n, n + 1])
    wide = darner.in_float64(g).verify()
    assert {node.dtype.name for node in wide.nodes} == {"f64", "i32"}
    found = darner.run(wide, {"x": np.array([1.0, 3.0]), "n": np.array([1, 2])})
    np.testing.assert_allclose(found[0], [1.1, 2.3], rtol=1e-3)
    assert found[1].dtype == np.int32
