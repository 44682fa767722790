"""The JSON form: exact, versioned, the same in every process; and what is said of damaged documents."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from darner import FormatError, Graph
from tests.strategies import graphs, odd_text


def model():
    g = Graph("mlp")
    x = g.input("x", ("n", 3))
    w = g.parameter("w", (3, 4))
    with g.remat("head", ["matmul"]):
        y = (x @ w).clip(None, 6.0, label="capped")
        z = y.sum(-1, keepdims=True)
    s = g.state("count", (), "i32", init=1)
    g.set_update(s, s + 1)
    big = g.constant(np.linspace(0, 1, 40, dtype=np.float32))
    g.concat([big, big], axis=0)
    g.next_stream()
    g.set_outputs([z, y])
    return g


def document():
    return json.loads(model().to_json())


def read(doc):
    return Graph.from_json(json.dumps(doc))


# --------------------------------------------------------------------------- the form


def test_json_restores_everything():
    g = model()
    text = g.to_json()
    again = Graph.from_json(text).verify()
    assert again == g
    assert again.to_json() == text
    assert again.to_text() == g.to_text()
    assert again.name == "mlp"
    for old, new in zip(g.nodes, again.nodes, strict=True):
        assert (new.label, new.scope, new.source, new.type) == (
            old.label,
            old.scope,
            old.source,
            old.type,
        )
    assert again.outputs[0].id == g.outputs[0].id
    assert [(a.id, b.id) for a, b in again.updates.items()] == [
        (a.id, b.id) for a, b in g.updates.items()
    ]
    assert again.next_stream() == g.next_stream()


def test_the_document_states_its_format_and_version():
    doc = document()
    assert (doc["format"], doc["version"]) == ("darner.graph", 1)
    assert doc["files"] == [__file__]
    assert doc["nodes"][0] == {
        "op": "input",
        "inputs": [],
        "attrs": {"name": "x", "shape": ["n", 3], "dtype": "f32"},
        "type": 0,
        "source": [0, doc["nodes"][0]["source"][1]],
    }
    assert len(doc["constants"]) == 1
    assert len(set(doc["types"])) == len(doc["types"])


def test_the_document_is_strict_json():
    g = model()
    g.state("nan", (), init=float("nan"))
    g.state("inf", (), init=-float("inf"))
    g.constant(float("nan"))

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    json.loads(g.to_json(), parse_constant=refuse)
    again = Graph.from_json(g.to_json()).verify()
    assert np.isnan(again.states["nan"].attrs["init"])
    assert again.states["inf"].attrs["init"] == -np.inf


@given(odd_text, odd_text, odd_text, odd_text)
def test_names_may_be_any_text(graph_name, name, label, scope):
    g = Graph(graph_name)
    with g.scope(scope):
        g.set_outputs([g.input(name, (2,)).tanh(label=label)])
    again = Graph.from_json(g.to_json())
    assert again.to_json() == g.to_json()
    assert (again.name, again.nodes[1].scope) == (graph_name, scope)
    assert again.nodes[1].label == f"{scope}.{label}"


def test_bytes_are_read_too():
    assert Graph.from_json(model().to_json().encode()) == model()


CHILD = """
import json, sys
from darner import Graph
for text in json.load(sys.stdin):
    graph = Graph.from_json(text).verify()
    assert graph.to_json() == text
    print(graph.digest(), hash(graph))
"""


@pytest.mark.slow
def test_the_digest_is_the_same_in_every_process():
    found = []

    @settings(max_examples=25, database=None, deadline=None)
    @given(graphs())
    def collect(graph):
        found.append((graph.to_json(), f"{graph.digest()} {hash(graph)}"))

    collect()
    for seed in ("0", "1"):
        child = subprocess.run(
            [sys.executable, "-c", CHILD],
            input=json.dumps([text for text, _ in found]),
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert child.stdout.splitlines() == [wanted for _, wanted in found]


# --------------------------------------------------------------------------- damaged documents


def changed(*path, to):
    """The document with one value replaced."""
    doc = document()
    at = doc
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = to
    return doc


def without(*path):
    doc = document()
    at = doc
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    return doc


def node_of(op):
    return next(i for i, record in enumerate(document()["nodes"]) if record["op"] == op)


MATMUL, SUM, CLIP, CONCAT, CONSTANT = map(node_of, ("matmul", "sum", "clip", "concat", "constant"))
KEY = next(iter(document()["constants"]))


@pytest.mark.parametrize(
    ("doc", "message"),
    [
        ([], "the document should be an object, not []"),
        (None, "the document should be an object, not None"),
        ({}, "the field 'format' is missing"),
        (changed("format", to="onnx"), "the format is 'onnx', not 'darner.graph'"),
        (changed("format", to=7), "the field 'format' should be text, not 7"),
        (changed("version", to=2), "version 2 is not known here: this darner reads version 1"),
        (changed("version", to=True), "the field 'version' should be an integer, not True"),
        (changed("version", to="1"), "the field 'version' should be an integer, not '1'"),
        (without("nodes"), "the field 'nodes' is missing"),
        (without("outputs"), "the field 'outputs' is missing"),
        (without("updates"), "the field 'updates' is missing"),
        (without("types"), "the field 'types' is missing"),
        (without("constants"), "the field 'constants' is missing"),
        (without("inner"), "the field 'inner' is missing"),
        (without("name"), "the field 'name' is missing"),
        (changed("name", to=["mlp"]), "the field 'name' should be text, not ['mlp']"),
        (changed("nodes", to={}), "the field 'nodes' should be a list, not {}"),
        (changed("types", 0, to="f99[3]"), "type 0: 'f99' is not an element type"),
        (changed("types", 0, to=3), "type 0: a type should be text, not 3"),
        (changed("types", 0, to="f32[-1]"), "type 0: size -1 is negative"),
        (changed("files", 0, to=3), "an entry of 'files' should be text, not 3"),
        (changed("nodes", 0, to="x"), "node 0: a node should be an object, not 'x'"),
        (changed("nodes", 0, "op", to="inputt"), "node 0: no op is called 'inputt'; did you mean"),
        (changed("nodes", 0, "op", to=None), "node 0: the field 'op' is missing"),
        (changed("nodes", 0, "type", to=99), "node 0: type 99 is outside the document's table"),
        (changed("nodes", 0, "type", to=-1), "node 0: type -1 is outside the document's table"),
        (changed("nodes", 0, "type", to="f32"), "node 0: the type should be an integer, not 'f32'"),
        (
            changed("nodes", 0, "source", to=[9, 1]),
            "node 0: file 9 is outside the document's table",
        ),
        (changed("nodes", 0, "source", to=[0]), "'source' should be [file, line], not [0]"),
        (
            changed("nodes", 0, "source", to=[0, "1"]),
            "node 0: a line should be an integer, not '1'",
        ),
        (changed("nodes", 0, "label", to=5), "node 0: the field 'label' should be text, not 5"),
        (changed("nodes", 0, "label", to=""), "node 0: a label must be non-empty text"),
        (changed("nodes", 0, "scope", to=5), "node 0: the field 'scope' should be text, not 5"),
        (changed("nodes", 0, "attrs", to=[]), "node 0: the field 'attrs' should be an object"),
        (changed("nodes", 0, "attrs", "name", to=None), "node 0: argument 'name' is missing"),
        (changed("nodes", 0, "attrs", "speed", to=1), "node 0: input has no attribute 'speed'"),
        (changed("nodes", 0, "attrs", "dtype", to="f99"), "node 0: 'f99' is not an element type"),
        (changed("nodes", 0, "attrs", "dtype", to=[]), "node 0: [] is not an element type"),
        (changed("nodes", 0, "attrs", "shape", to=["n", 4]), "stated to be f32[n, 3], but input"),
        (changed("nodes", 0, "attrs", "shape", to="-"), "node 0: '-' is not a size"),
        (
            changed("nodes", 1, "attrs", "name", to="x"),
            "node 1: the name 'x' is taken by the input",
        ),
        (without("nodes", 0, "attrs", "name"), "node 0: input needs the attribute 'name'"),
        (changed("nodes", MATMUL, "inputs", to=[0]), "takes 2 operands, got 1"),
        (changed("nodes", MATMUL, "inputs", to=[0, 1, 1]), "takes 2 operands, got 3"),
        (changed("nodes", MATMUL, "inputs", to=[0, 99]), "graph 'mlp' has no node 99"),
        (changed("nodes", MATMUL, "inputs", to=[0, MATMUL]), f"has no node {MATMUL}"),
        (changed("nodes", MATMUL, "inputs", to=[0, -1]), "has no node -1"),
        (changed("nodes", MATMUL, "inputs", to=[0, "1"]), "a node's id is an integer, got '1'"),
        (changed("nodes", MATMUL, "inputs", to=[0, True]), "a node's id is an integer, got True"),
        (changed("nodes", MATMUL, "inputs", to=[1, 0]), "inner sizes 4 and n differ"),
        (changed("nodes", MATMUL, "inputs", to="01"), "the field 'inputs' should be a list"),
        (changed("nodes", MATMUL, "type", to=0), "it is stated to be f32[n, 3], but matmul gives"),
        (changed("nodes", CLIP, "slots", to=["x"]), "takes 1 operands, got 2"),
        (changed("nodes", CLIP, "slots", to=["x", "hi"]), "clip has no operand 'hi'"),
        (changed("nodes", CLIP, "slots", to=["high", "x"]), "are out of order: high, x"),
        (changed("nodes", CLIP, "slots", to=["x", "x"]), "clip has operand 'x' 2 times"),
        (changed("nodes", CLIP, "slots", to=["low", "high"]), "operand 'x' is missing"),
        (changed("nodes", CLIP, "slots", to=[["x"], "high"]), "a slot should be text, not ['x']"),
        (without("nodes", CLIP, "slots"), "takes 3 operands, got 2"),
        (changed("nodes", SUM, "attrs", "axes", to=[5]), "axis 5 is outside -2..1"),
        (changed("nodes", SUM, "attrs", "axes", to=[0, 0]), "axes [0, 0] name one axis twice"),
        (changed("nodes", SUM, "attrs", "axes", to="x"), "axes: expected an integer, got 'x'"),
        (changed("nodes", SUM, "attrs", "axes", to=[[1]]), "axes: expected an integer, got (1,)"),
        (changed("nodes", SUM, "attrs", "keepdims", to="yes"), "keepdims: expected True or False"),
        (
            changed("nodes", CONSTANT, "attrs", "values", to="six"),
            "cannot make a constant of 'six'",
        ),
        (changed("nodes", CONSTANT, "attrs", "values", to=None), "argument 'values' is missing"),
        (changed("nodes", CONSTANT, "attrs", "values", to=[6, [0]]), "cannot make a constant of"),
        (
            changed("nodes", CONSTANT, "attrs", "values", to={}),
            "constant None is not in the document",
        ),
        (changed("outputs", to=[99]), "has no node 99"),
        (changed("outputs", to=["x"]), "a node's id is an integer, got 'x'"),
        (changed("outputs", to=7), "the field 'outputs' should be a list, not 7"),
        (changed("updates", to=[[0]]), "an entry of 'updates' should be two ids, not [0]"),
        (changed("updates", to=[5]), "an entry of 'updates' should be a list, not 5"),
        (changed("updates", to=[[0, 0]]), "%0 is input, not a state or parameter"),
        (changed("updates", to=[[1, 0]]), "'w' is f32[3, 4], but its update is f32[n, 3]"),
        (changed("updates", to=[[1, 1], [1, 1]]), "'w' is already updated by %1"),
        (changed("remat", to=[]), "the field 'remat' should be an object, not []"),
        (changed("remat", "head", to=7), "expected a policy with keep and larger_than, got 7"),
        (changed("remat", "head", "keep", to=7), "keep should be a list of names, not 7"),
        (changed("remat", "head", "keep", to=[[]]), "keep should be a list of names, not [[]]"),
        (changed("remat", "head", "keep", to=["matmull"]), "no op is called 'matmull'"),
        (changed("remat", "head", "larger_than", to="x"), "larger_than is a number of bytes"),
        (changed("streams", to="many"), "the field 'streams' should be an integer, not 'many'"),
        (changed("constants", KEY, to=None), "a stored constant cannot be read"),
        (changed("constants", KEY, "type", to="f32[41]"), "f32[41] needs 164 bytes"),
        (changed("constants", KEY, "type", to="i32[40]"), f"constant {KEY} is damaged"),
        (changed("constants", to={}), f"constant {KEY} is not in the document"),
        (changed("inner", to=[]), "the field 'inner' should be an object, not []"),
    ],
)
def test_damaged_documents_name_the_place_and_the_fault(doc, message):
    with pytest.raises(FormatError) as caught:
        read(doc)
    assert message in str(caught.value)
    assert str(caught.value).startswith("from_json: ")
    assert "(test_json.py:" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON: Expecting value"),
        ("{", "not JSON"),
        ("graph @g {\n}", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (None, "not JSON"),
        (5, "not JSON"),
        ("[" * 200_000, "the JSON is nested too deeply"),
        ('{"a":' * 200_000, "the JSON is nested too deeply"),
        ("9" * 5000, "not JSON"),
    ],
)
def test_text_that_is_not_json_is_refused(text, message):
    with pytest.raises(FormatError) as caught:
        Graph.from_json(text)
    assert message in str(caught.value)


def test_every_truncation_is_noticed():
    text = model().to_json()
    for end in range(0, len(text), 7):
        with pytest.raises(FormatError):
            Graph.from_json(text[:end])


def test_deep_junk_in_an_attribute_is_refused():
    deep = "[" * 900 + "]" * 900
    text = model().to_json().replace('"axes":[1]', f'"axes":{deep}')
    with pytest.raises(FormatError, match=r"node 5|nested too deeply"):
        Graph.from_json(text)


def test_fields_that_mean_nothing_are_passed_over():
    doc = changed("comment", to={"written": "by hand"})
    doc["nodes"][0]["color"] = "red"
    assert read(doc) == model()


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 60)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "x", "n", "f32", "-1", "nan", "low", "constant", 10**30, -1])
    | odd_text,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["constant", "graph", "op", "x"]), inner, max_size=2)
    ),
    max_leaves=5,
)


def places(value, path=()):
    """Every place in a document, outer ones first."""
    yield path
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*path, key))


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(st.data())
def test_random_damage_is_refused_or_gives_a_legal_graph(data):
    doc = document()
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(list(places(doc))))
        if not path:
            continue
        at = doc
        for key in path[:-1]:
            at = at[key]
        if data.draw(st.booleans()) and isinstance(at, dict):
            del at[path[-1]]
        else:
            at[path[-1]] = data.draw(junk)
    try:
        graph = read(doc)
    except FormatError:
        return
    graph.verify()
    text = graph.to_json()
    assert Graph.from_json(text).to_json() == text
    assert Graph.from_text(graph.to_text()) == graph


@settings(max_examples=40, deadline=None)
@given(graphs(max_steps=3), st.data())
def test_operands_that_point_elsewhere_are_refused_or_fit(graph, data):
    doc = json.loads(graph.to_json())
    readers = [record for record in doc["nodes"] if record["inputs"]]
    if not readers:
        return
    record = data.draw(st.sampled_from(readers))
    i = data.draw(st.integers(0, len(record["inputs"]) - 1))
    record["inputs"][i] = data.draw(st.integers(-1, len(graph)))
    try:
        again = read(doc)
    except FormatError:
        return
    again.verify()
    assert [node.type for node in again.nodes] == [node.type for node in graph.nodes]
