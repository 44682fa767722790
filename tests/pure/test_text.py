"""The text form: what it looks like, that it reads back exactly, and what is said of damaged text."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from darner import FormatError, Graph
from darner.graph.data import as_data
from darner.graph.op import get_op
from tests.strategies import graphs, odd_text


def model():
    g = Graph("mlp")
    x = g.input("x", (2, 3))
    w = g.parameter("w", (3, 4))
    with g.scope("head"):
        y = (x @ w).clip(None, 6.0, label="capped")
        z = y.sum(-1, keepdims=True)
    s = g.state("count", (), "i32", init=1)
    g.set_update(s, s + 1)
    g.set_outputs([z, y])
    return g


TEXT = """\
graph @mlp {
  %0 = input(name="x") : f32[2, 3]
  %1 = parameter(name="w") : f32[3, 4]
  %2 = matmul(%0, %1) : f32[2, 4]
  %3 = constant(values=6.0) : f32[]
  %4 = clip(%2, high=%3) : f32[2, 4] "head.capped"
  %5 = sum(%4, axes=[1], keepdims=true) : f32[2, 1]
  %6 = state(name="count", init=1.0) : i32[]
  %7 = constant(values=1) : i32[]
  %8 = add(%6, %7) : i32[]
  update %6 = %8
  return %5, %4
}"""


def round_trip(graph):
    text = graph.to_text()
    again = Graph.from_text(text)
    assert again == graph
    assert again.to_text() == text
    assert [node.label for node in again.nodes] == [node.label for node in graph.nodes]
    assert again.name == graph.name
    return again.verify()


# --------------------------------------------------------------------------- the form


def test_a_graph_prints_one_line_a_node():
    g = model()
    assert str(g) == TEXT
    assert g.to_text() == TEXT
    round_trip(g)


def test_two_dumps_are_the_same_text():
    assert str(model()) == str(model())
    assert model().digest() == model().digest()


def test_hand_written_text_is_read_with_axes_from_the_back():
    g = Graph.from_text(
        'graph @by hand {\n  %0 = input(name="x") : f32[2, 3]\n'
        "  %1 = sum(%0, axes=[-1]) : f32[2]\n\n  return %1\n}\n\n"
    )
    assert g.name == "by hand"
    assert g.nodes[1].attrs["axes"] == (1,)
    round_trip(g)


def test_windows_line_ends_are_read():
    assert Graph.from_text(TEXT.replace("\n", "\r\n")) == model()


def test_large_constants_stand_in_a_table_below():
    g = Graph("g")
    small = g.constant(np.arange(16, dtype=np.float32))
    large = g.constant(np.arange(17, dtype=np.float32))
    g.constant(np.arange(17, dtype=np.float32))
    g.set_outputs([small, large])
    key = large.attrs["values"].digest
    lines = g.to_text().splitlines()
    assert f'constant(values={{"constant": "{key}"}}) : f32[17]' in lines[2]
    assert [line for line in lines if line.startswith("constant ")] == [lines[-1]]
    assert lines[-1].startswith(f'constant {key} {{"type": "f32[17]", "zlib": "')
    assert str(g).splitlines() == lines[:-1]
    round_trip(g)
    with pytest.raises(FormatError, match=r"is not in the document; str\(graph\) leaves large"):
        Graph.from_text(str(g))


@pytest.mark.parametrize(
    "values",
    [
        np.float32([np.nan, 1.0]),
        np.float32([np.inf]),
        np.float32([-0.0, 0.0]),
        np.float16([0.1, 65504, 6e-8]),
        np.zeros((0, 3), np.int8),
        np.zeros((2, 0, 3), np.float64),
        np.complex64([1 + 2j]),
        np.array(True),
        np.array([2**63 - 1, -(2**63)]),
        np.array(2**32 - 1, np.uint32),
        np.random.default_rng(0).normal(size=(40, 3)),
    ],
)
def test_constants_of_every_kind_survive(values):
    g = Graph()
    node = g.constant(values)
    g.set_outputs([node])
    stored = round_trip(g).outputs[0].attrs["values"].array
    assert stored.tobytes() == values.tobytes()
    assert stored.dtype == values.dtype
    assert stored.shape == values.shape


def test_infinite_and_nan_attributes_survive():
    g = Graph()
    for i, value in enumerate((float("nan"), float("inf"), -float("inf"), -0.0, 1e-300)):
        g.state(f"s{i}", (2,), init=value)
    found = [node.attrs["init"] for node in round_trip(g).nodes]
    np.testing.assert_array_equal(found, [np.nan, np.inf, -np.inf, -0.0, 1e-300])
    assert np.signbit(found[3])


@given(odd_text, odd_text, odd_text, odd_text)
def test_names_may_be_any_text(graph_name, name, label, scope):
    g = Graph(graph_name)
    with g.scope(scope):
        g.set_outputs([g.input(name, (2,)).tanh(label=label)])
    again = round_trip(g)
    assert again.nodes[0].name == f"{scope}.{name}"
    assert again.nodes[1].label == f"{scope}.{label}"


def test_lists_and_optional_operands_print_by_name():
    g = Graph("g")
    x = g.input("x", (2, 3))
    g.concat([x, x, x], axis=0)
    x.clip(x, None)
    x.clip(None, x)
    lines = str(g).splitlines()
    assert "concat([%0, %0, %0]" in lines[2]
    assert "clip(%0, low=%0)" in lines[3]
    assert "clip(%0, high=%0)" in lines[4]
    round_trip(g)


# --------------------------------------------------------------------------- damaged text


def edited(old, new):
    assert TEXT.count(old) == 1
    return TEXT.replace(old, new)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no line starts with 'graph @'"),
        ("hello", "line 1: expected 'graph @name {', 'inner' or 'constant', got 'hello'"),
        (TEXT + "\nhello", "line 14: expected 'graph @name {'"),
        (TEXT + "\n" + TEXT, "line 14: a second graph needs 'inner' before it"),
        (edited("graph @mlp {", "graph mlp {"), "line 1: expected 'graph @name {'"),
        (edited("graph @mlp {", 'graph @"mlp {'), "line 1 cannot be read"),
        (edited("graph @mlp {", "graph @mlp"), "line 1: expected 'graph @name {'"),
        (TEXT[:-1], "the text ends before the closing '}'"),
        (edited("%2 = matmul", "%3 = matmul"), "line 4: expected node %2, got %3"),
        (
            edited("= matmul(", "= matmull("),
            "line 4: no op is called 'matmull'; did you mean 'matmul'?",
        ),
        (edited("matmul(%0, %1)", "matmul(%0)"), "line 4: operand 'b' is missing"),
        (edited("matmul(%0, %1)", "matmul(%0, %1, %1)"), "line 4: too many operands at column"),
        (edited("matmul(%0, %1)", "matmul(%0, %9)"), "line 4: graph 'mlp' has no node 9"),
        (edited("matmul(%0, %1)", "matmul(%0, %2)"), "line 4: graph 'mlp' has no node 2"),
        (edited("matmul(%0, %1)", "matmul(%0, %7)"), "line 4: graph 'mlp' has no node 7"),
        (edited("matmul(%0, %1)", "matmul(%0, %0)"), "line 4: inner sizes 3 and 2 differ"),
        (edited("matmul(%0, %1)", "matmul(%0; %1)"), "line 4: expected ', ' or ')' at column"),
        (edited("matmul(%0, %1)", "matmul(%0, c=%1)"), "line 4: matmul has no operand 'c'"),
        (edited("matmul(%0, %1)", "matmul(%0, a=%1)"), "line 4: argument 'a' is given twice"),
        (edited("matmul(%0, %1)", "matmul(%0, b=[%1, %1])"), "has operand 'b' 2 times"),
        (edited("matmul(%0, %1)", 'matmul(%0, b="w")'), "line 4: expected %id for 'b'"),
        (edited("matmul(%0, %1)", "matmul(%0, %1"), "line 4: expected ', ' or ')' at column"),
        (
            edited(": f32[2, 4]\n  %3", ": f32[2, 5]\n  %3"),
            "it is stated to be f32[2, 5], but matmul",
        ),
        (edited(": f32[2, 4]\n  %3", ": f99[2, 4]\n  %3"), "line 4: 'f99' is not an element type"),
        (edited(": f32[2, 4]\n  %3", ": f32[2, four!]\n  %3"), "line 4: ' four!' is not a size"),
        (edited(": f32[2, 4]\n  %3", "\n  %3"), "line 4: expected ' : type' after the call"),
        (edited("axes=[1]", "axes=[7]"), "line 7: axis 7 is outside -2..1"),
        (edited("axes=[1]", 'axes="rows"'), "line 7: axes: expected an integer, got 'rows'"),
        (
            edited("axes=[1]", "axis=[1]"),
            "line 7: sum has no attribute 'axis'; did you mean 'axes'",
        ),
        (edited("axes=[1]", "axes=[1], axes=[1]"), "line 7: argument 'axes' is given twice"),
        (edited("axes=[1]", "axes=[1"), "line 7 cannot be read"),
        (edited("keepdims=true", "keepdims=1"), "line 7: keepdims: expected True or False, got 1"),
        (edited("keepdims=true", "keepdims=null"), "line 7: argument 'keepdims' is missing"),
        (edited('name="w"', 'name="x"'), "line 3: the name 'x' is taken by the input %0"),
        (edited('name="w"', "name=5"), "line 3: name: a name must be text, got 5"),
        (edited('name="w"', 'name=""'), "line 3: name: a name must be non-empty text"),
        (edited('name="w"', r'name="\ud800"'), "surrogates not allowed"),
        (
            edited('parameter(name="w")', "parameter()"),
            "line 3: parameter needs the attribute 'name'",
        ),
        (edited("values=6.0", "values=[6.0]"), "line 5: it is stated to be f32[], but constant"),
        (edited("values=6.0", 'values="six"'), "line 5: cannot make a constant of 'six'"),
        (edited("values=1)", "values=1.5)"), "line 9: fractions do not fit in i32"),
        (
            edited("values=1)", 'values={"constant": "beef"})'),
            "constant beef is not in the document",
        ),
        (
            edited("%8 = add(%6, %7)", "%8 = add(%6, %3)"),
            "line 10: b is f32 beside i32: both need one element type",
        ),
        (edited('"head.capped"', '"head.capped'), "line 6 cannot be read"),
        (edited('"head.capped"', '""'), "line 6: a label must be non-empty text"),
        (
            edited("update %6 = %8", "update %6 = %9"),
            "line 11: set_update: graph 'mlp' has no node 9",
        ),
        (edited("update %6 = %8", "update %0 = %8"), "%0 is input, not a state or parameter"),
        (
            edited("update %6 = %8", "update %6 = %0"),
            "'count' is i32[], but its update is f32[2, 3]",
        ),
        (edited("update %6 = %8", "update %6"), "line 11: expected '%id = op(...) : type'"),
        (edited("return %5, %4", "return %5, %44"), "line 12: graph 'mlp' has no node 44"),
        (edited("return %5, %4", "return 5"), "line 12: expected 'return %id, %id', got '5'"),
        (edited("return %5, %4", "return %5 %4"), "line 12: expected 'return %id, %id'"),
        (TEXT + "\nconstant abc", "line 14 cannot be read"),
        (TEXT + "\nconstant abc {}", "line 14: a stored constant has no field 'type'"),
        (TEXT + "\nconstant abc " + "[" * 100_000, "line 14 cannot be read"),
        (edited("axes=[1]", "axes=" + "[" * 100_000), "line 7 cannot be read"),
        (TEXT.replace("%", "%" + "9" * 5000), "line 2"),
    ],
)
def test_damaged_text_names_the_line_and_the_fault(text, message):
    with pytest.raises(FormatError) as caught:
        Graph.from_text(text)
    assert message in str(caught.value)
    assert str(caught.value).startswith("from_text: ")
    assert "(test_text.py:" in str(caught.value)


@pytest.mark.parametrize("value", [None, 5, b"graph @g {\n}", ["graph"]])
def test_only_text_is_read(value):
    with pytest.raises(FormatError, match="expected text, got"):
        Graph.from_text(value)


def test_a_damaged_constant_is_noticed():
    g = Graph()
    g.set_outputs([g.constant(np.arange(20, dtype=np.uint8))])
    other = as_data(np.arange(20, dtype=np.uint8)[::-1])
    text = g.to_text()
    lines = text.split("\n")
    key = lines[-1].split()[1]
    lines[-1] = f"constant {key} {json.dumps(other.to_json())}"
    with pytest.raises(
        FormatError, match=rf"line 5: constant {key} is damaged: its content is now"
    ):
        Graph.from_text("\n".join(lines))
    for i in range(text.index("{", text.index("\nconstant")), len(text)):
        with pytest.raises(FormatError, match="line 5"):
            Graph.from_text(text[:i] + "!" + text[i + 1 :])


def test_every_truncation_is_noticed():
    g = model()
    g.constant(np.arange(30, dtype=np.float32))
    text = g.to_text()
    for end in range(len(text)):
        with pytest.raises(FormatError):
            Graph.from_text(text[:end])


def checked(text):
    """A graph that keeps every rule, or None when the text was refused as it should be."""
    try:
        graph = Graph.from_text(text)
    except FormatError:
        return None
    return round_trip(graph)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_random_edits_are_refused_or_give_a_legal_graph(data):
    text = data.draw(st.sampled_from([TEXT, model().to_text()]))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 6)))
        piece = data.draw(
            st.text(st.sampled_from('%0123456789=(),[]{}":. \nfinaxreturnupdate\\'), max_size=5)
            | st.sampled_from(
                ["null", "NaN", "1e999", "-1", "graph @", "}", "inner x\n", "%8", "add("]
            )
        )
        text = text[:start] + piece + text[end:]
    checked(text)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(graphs(max_steps=3), st.data())
def test_lines_left_out_doubled_or_swapped_are_noticed_or_harmless(graph, data):
    lines = graph.to_text().split("\n")
    i = data.draw(st.integers(0, len(lines) - 1))
    j = data.draw(st.integers(0, len(lines) - 1))
    kind = data.draw(st.sampled_from(["drop", "double", "swap"]))
    if kind == "drop":
        del lines[i]
    elif kind == "double":
        lines.insert(j, lines[i])
    else:
        lines[i], lines[j] = lines[j], lines[i]
    checked("\n".join(lines))


def test_the_digest_does_not_depend_on_how_attributes_were_spelled():
    def digest(build):
        g = Graph()
        g.set_outputs([build(g.input("x", (2, 3)))])
        return g.digest()

    assert digest(lambda x: x.sum(-1)) == digest(lambda x: x.sum(axes=(1,)))
    assert digest(lambda x: x.sum()) == digest(lambda x: x.sum((0, 1)))
    assert digest(lambda x: x.sum(0)) != digest(lambda x: x.sum(1))
    assert digest(lambda x: x + 1) == digest(lambda x: get_op("add")(x, 1.0))
