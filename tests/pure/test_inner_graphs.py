"""Graphs as attributes of nodes: frozen, compared, printed, saved and bound with the graph around them."""

import json

import numpy as np
import pytest

import darner
from darner import ArgumentError, FormatError, Graph, VerifyError
from darner.graph.attributes import Body, Tensor
from darner.graph.op import OPS, unregister
from darner.graph.types import TensorType
from darner.interpreter import evaluate


@pytest.fixture(autouse=True)
def repeat_op():
    """An op that applies a graph to its operand a number of times."""

    @darner.primitive(family="test", name="repeat_body")
    def repeat_body(x: Tensor, body: Body, times: int = 2) -> TensorType:
        """``body(body(... x))``."""
        if body.outputs[0].type != x:
            raise darner.ShapeError(f"the body gives {body.outputs[0].type}, not {x}")
        return x

    @repeat_body.reference
    def _(x, body, times):
        name = next(iter(body.inputs))
        for _ in range(times):
            x = evaluate(body, {name: x})[body.outputs[0].id]
        return x

    yield repeat_body
    unregister("repeat_body")
    assert "repeat_body" not in OPS


def body_of(build, shape=(2,), name="body"):
    g = Graph(name)
    g.set_outputs([build(g.input("carry", shape))])
    return g


def doubler(shape=(2,), name="body"):
    return body_of(lambda x: x * 2.0, shape, name)


def nested(depth, shape=(2,)):
    """A body that holds a body that holds a body."""
    body = body_of(lambda x: x + 1.0, shape)
    for i in range(depth):
        body = body_of(lambda x, b=body: x.repeat_body(b), shape, f"level{i}")
    return body


def round_trip(graph):
    graph.verify()
    text, document = graph.to_text(), graph.to_json()
    for again in (Graph.from_text(text), Graph.from_json(document)):
        assert again.verify() == graph
        assert again.to_text() == text
        assert again.digest() == graph.digest()
    assert Graph.from_json(document).to_json() == document
    return Graph.from_text(text)


def test_a_body_runs_and_is_frozen():
    g = Graph("g")
    body = doubler()
    y = g.input("x", (2,)).repeat_body(body, 3)
    g.set_outputs([y])
    np.testing.assert_array_equal(darner.run(g, {"x": np.float32([1, 2])})[0], [8, 16])
    with pytest.raises(ArgumentError, match="graph 'body' is frozen"):
        body.nodes[0].tanh()
    with pytest.raises(ArgumentError, match="body: expected a Graph, got int"):
        g.node(0).repeat_body(5)
    with pytest.raises(darner.ShapeError, match=r"the body gives f32\[3\], not f32\[2\]"):
        g.node(0).repeat_body(doubler((3,)))
    g.verify()


def test_a_body_prints_below_its_graph_once():
    g = Graph("g")
    x = g.input("x", (2,))
    g.set_outputs([x.repeat_body(doubler(), 3).repeat_body(doubler(name="twin"), 2)])
    key = doubler().digest()
    assert str(g).splitlines()[:6] == [
        "graph @g {",
        '  %0 = input(name="x") : f32[2]',
        f'  %1 = repeat_body(%0, body={{"graph": "{key}"}}, times=3) : f32[2]',
        f'  %2 = repeat_body(%1, body={{"graph": "{key}"}}) : f32[2]',
        "  return %2",
        "}",
    ]
    assert str(g).splitlines()[6] == f"inner {key}"
    assert str(g).count("inner ") == 1
    again = round_trip(g)
    assert again.nodes[1].attrs["body"] is again.nodes[2].attrs["body"]
    assert len(json.loads(g.to_json())["inner"]) == 1


def test_nested_bodies_survive_and_share():
    body = nested(3)
    g = Graph("g")
    x = g.input("x", (2,))
    g.set_outputs([x.repeat_body(body) + x.repeat_body(nested(1))])
    again = round_trip(g)
    assert str(g).count("inner ") == 4
    values = {"x": np.float32([0, 5])}
    np.testing.assert_array_equal(darner.run(again, values)[0], darner.run(g, values)[0])
    np.testing.assert_array_equal(darner.run(g, values)[0], [16 + 4, 16 + 4 + 10])


def test_large_constants_of_a_body_stand_in_the_one_table():
    table = np.arange(40, dtype=np.float32)
    g = Graph("g")
    x = g.input("x", (40,))
    g.set_outputs([x.repeat_body(body_of(lambda x: x + table, (40,))) + table])
    assert g.to_text().count("\nconstant ") == 1
    round_trip(g)


def test_the_digest_sees_into_bodies_but_not_their_names():
    def digest(body, times=2):
        g = Graph()
        g.set_outputs([g.input("x", (2,)).repeat_body(body, times)])
        return g.digest()

    base = digest(doubler())
    assert digest(doubler(name="other")) == base
    assert digest(body_of(lambda x: x * 3.0)) != base
    assert digest(doubler(), 3) != base
    assert digest(nested(2)) != digest(nested(3))


def test_the_digest_of_a_frozen_graph_is_computed_once(monkeypatch):
    body = nested(2).freeze()
    first = body.digest()
    monkeypatch.setattr(
        "darner.graph.text.dump.digest", lambda graph: pytest.fail("computed again")
    )
    assert body.digest() == first
    assert hash(body) == int(first[:15], 16)


def test_bodies_are_bound_with_the_graph_around_them():
    g = Graph("g")
    x = g.input("x", ("n", 3))
    y = x.repeat_body(nested(1, ("n", 3)))
    z = g.input("z", (2,)).repeat_body(doubler())
    g.set_outputs([y, z])
    assert g.dynamic_symbols() == ["n"]
    bound = g.bind(n=4).verify()
    assert not bound.has_dynamic_dims()
    inner = bound.node(y.id).attrs["body"]
    assert inner.inputs["carry"].shape == (4, 3)
    assert inner.nodes[1].attrs["body"].inputs["carry"].shape == (4, 3)
    assert bound.node(z.id).attrs["body"] == doubler()
    values = np.ones((4, 3), np.float32)
    found = darner.run(g, {"x": values, "z": np.zeros(2)})
    np.testing.assert_array_equal(found[0], values + 4)
    round_trip(bound)


def test_symbols_that_only_a_body_has_are_known():
    body = Graph("body")
    carry = body.input("carry", (2,))
    body.input("unused", ("k",))
    body.set_outputs([carry])
    g = Graph("g")
    g.set_outputs([g.input("x", (2,)).repeat_body(body)])
    assert g.has_dynamic_dims()
    assert g.dynamic_symbols() == ["k"]
    bound = g.bind(k=3)
    assert not bound.has_dynamic_dims()
    assert bound.nodes[1].attrs["body"].inputs["unused"].shape == (3,)


def test_copies_and_wider_types_reach_into_bodies():
    g = Graph("g")
    x = g.input("x", (2,))
    g.set_outputs([x.repeat_body(body_of(lambda x: x.sigmoid() * 0.1))])
    assert g.copy() == g
    assert g.toposort() == g
    wide = darner.in_float64(g).verify()
    assert wide.nodes[1].attrs["body"].inputs["carry"].dtype.name == "f64"
    flat = darner.expand(g).verify()
    inner = flat.nodes[1].attrs["body"]
    assert not any(node.op.is_composite for node in inner.nodes)
    values = {"x": np.float32([1, -1])}
    np.testing.assert_array_equal(darner.run(flat, values)[0], darner.run(g, values)[0])
    np.testing.assert_allclose(
        darner.run(g, values, float64=True)[0], darner.run(g, values)[0], rtol=1e-6
    )


def test_verification_reaches_into_bodies():
    body = doubler()
    g = Graph("g")
    g.set_outputs([g.input("x", (2,)).repeat_body(body)])
    object.__setattr__(body.nodes[0], "label", 7)
    with pytest.raises(VerifyError, match="node %1: node %0: has label 7"):
        g.verify()
    object.__setattr__(body.nodes[0], "label", None)
    g.verify()
    body._frozen = False
    with pytest.raises(VerifyError, match="has an inner graph 'body' that is not frozen"):
        g.verify()


# --------------------------------------------------------------------------- damaged documents


def example():
    g = Graph("g")
    g.set_outputs([g.input("x", (2,)).repeat_body(nested(1))])
    return g


def test_missing_and_damaged_inner_graphs_are_named():
    g = example()
    outer = g.nodes[1].attrs["body"].digest()
    inner = nested(0).digest()
    doc = json.loads(g.to_json())

    def refused(change):
        changed = json.loads(json.dumps(doc))
        change(changed)
        with pytest.raises(FormatError) as caught:
            Graph.from_json(json.dumps(changed))
        return str(caught.value)

    assert f"node 1: inner graph {outer} is not in the document" in refused(
        lambda d: d.update(inner={})
    )
    assert f"inner graph {outer}: node 1: inner graph {inner} is not in the document" in refused(
        lambda d: d["inner"].pop(inner)
    )
    assert f"inner graph {inner} is damaged" in refused(
        lambda d: d["inner"][inner].update(outputs=[0])
    )
    assert "the field 'nodes' is missing" in refused(lambda d: d["inner"][outer].pop("nodes"))
    assert "should be an object, not 5" in refused(lambda d: d["inner"].update({outer: 5}))
    assert "expected a reference to an inner graph, got 'body'" in refused(
        lambda d: d["nodes"][1]["attrs"].update(body="body")
    )
    assert "argument 'body' is missing" in refused(
        lambda d: d["nodes"][1]["attrs"].update(body=None)
    )


def test_an_inner_graph_that_holds_itself_is_refused():
    doc = json.loads(example().to_json())
    key = doc["nodes"][1]["attrs"]["body"]["graph"]
    doc["inner"][key]["nodes"][1]["attrs"]["body"]["graph"] = key
    with pytest.raises(FormatError, match=f"inner graph {key} is not in the document"):
        Graph.from_json(json.dumps(doc))


def test_truncated_text_with_inner_graphs_is_refused():
    text = example().to_text()
    for end in range(len(text)):
        with pytest.raises(FormatError):
            Graph.from_text(text[:end])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.replace("inner ", "inner x"), "is not in the document"),
        (lambda t: t.split("\ninner")[0], "is not in the document"),
        (lambda t: t.replace("add(%0, %1)", "sub(%0, %1)"), "is damaged: it is now"),
        (lambda t: t.replace("add(%0, %1)", "add(%0, %7)"), "has no node 7"),
        (lambda t: "inner abc\n" + t, "no line starts with 'graph @'"),
    ],
)
def test_damaged_text_with_inner_graphs_is_refused(change, message):
    with pytest.raises(FormatError) as caught:
        Graph.from_text(change(example().to_text()))
    assert message in str(caught.value)


def test_deep_nesting_survives():
    g = Graph("g")
    g.set_outputs([g.input("x", (2,)).repeat_body(nested(60))])
    round_trip(g)
