"""What a user is told after a mistake.

Each row is one mistake: a call, the error's class, and pieces of its text. Every message must also name the op that was
called and the line of this file, and the graph must be as it was before the call.
"""

import re

import numpy as np
import pytest

import darner
from darner import (
    ArgumentError,
    DTypeError,
    FormatError,
    Graph,
    NameTakenError,
    RunError,
    ShapeError,
    UnknownNameError,
)


class Model:
    """A graph with one leaf of each sort, under short names."""

    def __init__(self):
        self.g = g = Graph("model")
        self.x = g.input("x", (32, 784))
        self.w = g.parameter("w", (512, 128))
        self.v = g.input("v", (784,))
        self.cube = g.input("cube", (2, 3, 4))
        self.image = g.input("image", (1, 3, 8, 8))
        self.ids = g.input("ids", (5,), "i32")
        self.mask = g.input("mask", (32, 784), "bool")
        self.small = g.input("small", (4,), "u8")
        self.z = g.input("z", (3,), "c64")
        self.seq = g.input("seq", ("seq", 8))
        self.scalar = g.input("scalar", ())
        self.q = g.input("q", (1, 6, 5, 8))
        self.k = g.input("k", (1, 4, 5, 8))
        self.cache = g.state("cache", (16, 8))


MISTAKES = []


def mistake(name, error, *pieces):
    def declare(function):
        MISTAKES.append(pytest.param(function, error, pieces, id=name))
        return function

    return declare


def wrong(name, function, error, *pieces):
    MISTAKES.append(pytest.param(function, error, pieces, id=name))


# fmt: off
# ---- shapes
wrong("inner sizes", lambda m: m.g.matmul(m.x, m.w, label="ffn.up"), ShapeError,
      "matmul 'ffn.up'", "[32, 784]", "[512, 128]", "784 and 512")
wrong("inner sizes by operator", lambda m: m.x @ m.w, ShapeError, "matmul", "784 and 512")
wrong("matmul of a scalar", lambda m: m.scalar @ m.w, ShapeError, "matmul")
wrong("matmul_bt", lambda m: m.g.matmul_bt(m.x, m.w), ShapeError, "matmul_bt", "784", "128")
wrong("matmul_at", lambda m: m.g.matmul_at(m.x, m.w), ShapeError, "matmul_at", "32", "512")
wrong("no broadcast", lambda m: m.x + m.w, ShapeError, "add", "784 and 128", "axis -1")
wrong("no broadcast in where", lambda m: m.mask.where(m.x, m.w), ShapeError, "where", "784 and 128")
wrong("reshape does not fill", lambda m: m.cube.reshape((5, 5)), ShapeError, "reshape", "24 elements", "(5, 5)")
wrong("reshape does not divide", lambda m: m.cube.reshape((5, -1)), ShapeError, "24 elements", "(5, -1)")
wrong("reshape with two unknowns", lambda m: m.cube.reshape((-1, -1)), ArgumentError, "only one", "-1")
wrong("reshape to a negative size", lambda m: m.cube.reshape((-2, 12)), ShapeError, "-2 is negative")
wrong("broadcast_to", lambda m: m.v.broadcast_to((32, 100)), ShapeError, "(784,)", "(32, 100)")
wrong("concat ranks", lambda m: m.g.concat([m.x, m.v], 0), ShapeError, "concat", "rank 1", "rank 2")
wrong("concat sizes", lambda m: m.g.concat([m.x, m.w], 0), ShapeError, "784 and 128", "axis 1")
wrong("concat of nothing", lambda m: m.g.concat([], 0), ArgumentError, "concat", "at least one")
wrong("concat without a list", lambda m: m.g.concat(m.x, m.x), ArgumentError, "concat([a, b], axis)")
wrong("slice outside", lambda m: m.g.slice(m.x, (0, 0), (33, 784)), ShapeError, "slice", "33", "0..32")
wrong("narrow outside", lambda m: m.g.narrow_(m.x, 1, 700, 100), (ShapeError, ArgumentError), "narrow", "100 elements from 700", "784")
wrong("index outside", lambda m: m.cube[2], (ShapeError, ArgumentError), "2", "axis 0")
wrong("too many indices", lambda m: m.v[0, 0], (ShapeError, ArgumentError), "getitem", "2", "rank 1")
wrong("padding crops too much", lambda m: m.v.pad(((-800, 0),)), ShapeError, "pad", "784")
wrong("padding pairs", lambda m: m.cube.pad(((1, 1), (1, 1))), ArgumentError, "2 pairs", "rank 3")
wrong("max of nothing", lambda m: m.g.input("e", (0, 3)).max(0), ShapeError, "max", "no elements")
wrong("top_k too many", lambda m: m.v.top_k(1000), ArgumentError, "top_k", "1000", "784")
wrong("scatter_add sizes", lambda m: m.g.scatter_add(m.ids, m.x, 9), ShapeError, "scatter_add", "(32,)", "(5,)")
wrong("take_along_axis rank", lambda m: m.x.take_along_axis(m.ids, 1), ShapeError, "ranks 2 and 1")
wrong("conv channels", lambda m: m.g.conv2d(m.image, m.g.input("f", (4, 5, 3, 3))), ShapeError, "conv", "3", "5")
wrong("conv kernel too large", lambda m: m.g.conv2d(m.image, m.g.input("f", (4, 3, 9, 9))), ShapeError, "9", "8")
wrong("norm weight", lambda m: m.x.layer_norm(m.g.parameter("n", (7,)), m.g.parameter("o", (7,))), ShapeError,
      "layer_norm", "7", "784")
wrong("swiglu halves", lambda m: m.g.swiglu_concat(m.g.input("odd", (2, 7))), ShapeError, "swiglu_concat", "7")
wrong("loss shapes", lambda m: m.g.mse_loss(m.x, m.v), ShapeError, "mse_loss", "[32, 784]", "[784]")
wrong("heads do not divide", lambda m: m.g.scaled_dot_attention(m.q, m.k, m.k), ShapeError,
      "scaled_dot_attention", "6", "4")
wrong("solve not square", lambda m: m.g.dense_solve(m.x, m.v), ShapeError, "square")
wrong("einsum sizes", lambda m: m.g.einsum("ij,jk->ik", m.x, m.w), ShapeError, "einsum", "'j'", "784", "512")
wrong("stated shape", lambda m: m.g.relu(m.x, (32, 10)), ShapeError, "relu", "(32, 784)", "(32, 10)", "stated")
wrong("stated shape by keyword", lambda m: m.g.tanh(m.x, shape=(1,)), ShapeError, "(1,)", "stated")
wrong("stated type", lambda m: m.g.relu(m.x, darner.Shape.new([32, 784], "f16")), DTypeError, "f32", "f16", "stated")
wrong("negative size", lambda m: m.g.input("bad", (3, -1)), ShapeError, "input", "-1 is negative")
wrong("size not an integer", lambda m: m.g.input("bad", (3, 2.5)), ShapeError, "2.5", "not an integer")
wrong("size of words", lambda m: m.g.input("bad", ("two words",)), ShapeError, "two words", "not a size")
wrong("constant does not fill", lambda m: m.g.constant([1.0, 2.0, 3.0], (2, 2)), ShapeError, "3 values", "(2, 2)")
wrong("symbolic remainder", lambda m: m.seq.reshape((-1, 16)), ShapeError, "reshape", "8*seq")
wrong("symbol against number", lambda m: m.seq + m.g.input("y", (7, 8)), ShapeError, "seq", "7")
wrong("q4 rows", lambda m: m.g.parameter_q4("q4", (33, 8)), ShapeError, "32", "33")
# ---- element types
wrong("float index", lambda m: m.g.gather(m.x, m.v), DTypeError, "gather", "indices", "integers", "f32", "cast")
wrong("float mask", lambda m: m.x.where(m.x, m.x), DTypeError, "condition", "bool", "f32")
wrong("bool arithmetic", lambda m: -m.mask, DTypeError, "neg", "bool", "cast")
wrong("complex order", lambda m: m.z.maximum(m.z), DTypeError, "complex", "c64")
wrong("complex to real", lambda m: m.z.cast("f32"), ArgumentError, "cast", "c64", "f32")
wrong("f64 with c64", lambda m: m.g.input("d", (3,), "f64") * m.z, DTypeError, "f64", "c64", "no common type")
wrong("unknown type", lambda m: m.g.input("bad", (3,), "f23"), DTypeError, "f23", "did you mean")
wrong("type that numpy has and we do not", lambda m: m.x.cast("uint16"), DTypeError, "uint16")
wrong("bits of floats", lambda m: m.x.bitwise_and(m.x), (ArgumentError, DTypeError), "bitwise_and", "f32")
wrong("logic of floats", lambda m: m.x & m.mask, DTypeError, "logical_and", "bool", "f32")
wrong("embedding of floats", lambda m: m.g.embedding(m.v, m.w), DTypeError, "embedding", "integers")
# ---- constants
wrong("out of range", lambda m: m.small + 300, ArgumentError, "add", "300", "u8", "0 to 255")
wrong("negative for unsigned", lambda m: m.small * -1, ArgumentError, "-1", "u8")
wrong("constant of strings", lambda m: m.g.constant(["a", "b"]), ArgumentError, "constant", "not numbers")
wrong("ragged constant", lambda m: m.g.constant([[1.0], [2.0, 3.0]]), ArgumentError, "constant")
wrong("constant of a node", lambda m: m.g.constant(m.x), ArgumentError, "node")
wrong("fractions as integers", lambda m: m.g.constant([0.5], dtype="i32"), ArgumentError, "fractions", "i32")
# ---- axes and attributes
wrong("axis too large", lambda m: m.x.softmax(axis=2), ArgumentError, "softmax", "axis 2", "-2..1")
wrong("axis of a scalar", lambda m: m.scalar.sum(0), ArgumentError, "sum", "axis 0", "scalar")
wrong("axis twice", lambda m: m.cube.sum((0, -3)), ArgumentError, "sum", "twice")
wrong("axis not an integer", lambda m: m.x.softmax(axis="last"), ArgumentError, "axis", "'last'")
wrong("axis is a node", lambda m: m.x.softmax(axis=m.ids), ArgumentError, "axis", "not a node")
wrong("permutation too short", lambda m: m.cube.transpose((0, 1)), ArgumentError, "perm", "2 axes", "rank 3")
wrong("permutation repeats", lambda m: m.cube.transpose((0, 1, 1)), ArgumentError, "twice")
wrong("flag is a number", lambda m: m.x.sum(0, keepdims=3), ArgumentError, "keepdims", "True or False")
wrong("step of zero", lambda m: m.v[::0], ArgumentError, "step")
wrong("stride of zero", lambda m: m.image.max_pool((2, 2), stride=0), ArgumentError, "stride")
wrong("unknown activation", lambda m: m.g.activation("Gulu", m.x), ArgumentError, "Gulu", "gelu")
wrong("unknown reduction", lambda m: m.g.reduce(m.x, "median", [0], False), ArgumentError, "median", "sum")
wrong("seed out of range", lambda m: m.g.random_bits((3,), seed=-1), ArgumentError, "seed", "-1")
wrong("window of zero", lambda m: m.g.scaled_dot_attention(m.q, m.q, m.q, causal=True, window=0), ArgumentError,
      "window", "0")
# ---- arguments and names
wrong("missing argument", lambda m: m.g.matmul(m.x), ArgumentError, "matmul", "'b' is missing", "matmul(a, b)")
wrong("too many arguments", lambda m: m.g.tanh(m.x, m.x, m.x), ArgumentError, "tanh", "1 argument", "got 3")
wrong("unknown keyword", lambda m: m.x.softmax(axes=1), ArgumentError, "'axes'", "did you mean 'axis'")
wrong("argument twice", lambda m: m.x.softmax(1, axis=1), ArgumentError, "'axis'", "twice")
wrong("operand is text", lambda m: m.g.tanh("x"), ArgumentError, "tanh", "'x'", "str")
wrong("operand is None", lambda m: m.g.tanh(None), ArgumentError, "tanh", "missing")
wrong("operand of another graph", lambda m: m.x + Graph("other").input("y", (784,)), ArgumentError,
      "'other'", "'model'")
wrong("unknown id", lambda m: m.g.tanh(99), UnknownNameError, "99", "14 nodes")
wrong("duplicate input", lambda m: m.g.input("x", (3,)), NameTakenError, "'x'", "input %0")
wrong("parameter named as an input", lambda m: m.g.parameter("x", (3,)), NameTakenError, "'x'", "input %0")
wrong("empty name", lambda m: m.g.input("", (3,)), ArgumentError, "name", "non-empty")
wrong("name is a number", lambda m: m.g.parameter(3, (3,)), ArgumentError, "name", "3")
wrong("bad label", lambda m: m.g.tanh(m.x, label=3), ArgumentError, "label", "3")
wrong("unknown op by name", lambda m: m.g.add_node("softmx", [m.x]), ArgumentError, "softmx", "did you mean 'softmax'")
wrong("output is no node", lambda m: m.g.set_outputs(["y"]), ArgumentError, "set_outputs", "'y'")
wrong("output of another graph", lambda m: m.g.set_outputs([Graph("other").input("y", (1,))]), ArgumentError, "'other'")
wrong("update of an input", lambda m: m.g.set_update(m.x, m.x), ArgumentError, "set_update", "input")
wrong("update with another type", lambda m: m.g.set_update(m.cache, m.x), ShapeError, "'cache'", "[16, 8]", "[32, 784]")
wrong("unknown symbol", lambda m: m.g.bind(sq=3), UnknownNameError, "'sq'", "did you mean 'seq'")
wrong("negative binding", lambda m: m.g.bind(seq=-3), ShapeError, "-3 is negative")
wrong("operand from the future", lambda m: m.g.set_inputs(m.x.tanh(), [m.x.exp()]), ArgumentError, "before")
wrong("truth of a node", lambda m: bool(m.mask), ArgumentError, "no truth value", "where")
wrong("array of a node", lambda m: np.asarray(m.x), ArgumentError, "not an array", "darner.run")
wrong("assignment to a node", lambda m: setattr(m.x, "label", "y"), ArgumentError, "label", "assigned")
# ---- running
wrong("missing input", lambda m: darner.run(m.g, {}), RunError, "run", "'x'")
wrong("unknown input", lambda m: darner.run(m.g, {"xx": 1}), RunError, "'xx'", "did you mean 'x'")
# fmt: on


def snapshot(model):
    g = model.g
    return g.to_text(), [len(g.users(n)) for n in g.nodes], sorted(g._names), g._streams, g._scopes


@pytest.mark.parametrize(("call", "error", "pieces"), MISTAKES)
def test_a_mistake_is_named_and_leaves_no_trace(call, error, pieces):
    model = Model()
    before = snapshot(model)
    with pytest.raises(error) as caught:
        call(model)
    text = str(caught.value)
    for piece in pieces:
        assert piece in text
    line = re.search(r"\(test_mistakes\.py:(\d+)\)$", text)
    assert line, text
    first = call.__code__.co_firstlineno
    assert first <= int(line.group(1)) <= first + 2
    if not made_helper_nodes(call):
        assert snapshot(model) == before


def made_helper_nodes(call):
    """Whether the row itself adds nodes before the call that fails."""
    return bool({"input", "parameter", "tanh", "exp"} & set(call.__code__.co_names)) or (
        "g" in call.__code__.co_names and "random_bits" in call.__code__.co_names
    )


def test_there_are_enough_of_them():
    assert len(MISTAKES) >= 60


def test_a_method_that_does_not_exist_suggests_one():
    g = Graph()
    x = g.input("x", (3,))
    with pytest.raises(
        AttributeError, match="Graph has no method or op 'sofmax'; did you mean 'softmax'"
    ):
        g.sofmax(x)
    with pytest.raises(
        AttributeError, match="Node has no attribute or op 'thanh'; did you mean 'tanh'"
    ):
        x.thanh()


def test_the_error_carries_its_parts():
    m = Model()
    with pytest.raises(ShapeError) as caught:
        m.g.matmul(m.x, m.w, label="up")
    error = caught.value
    assert (error.op, error.label) == ("matmul", "up")
    assert error.operands == "a is f32[32, 784] but b is f32[512, 128]"
    assert error.source.file == __file__
    assert "784 and 512" in error.rule


def test_errors_are_also_the_builtin_kind_a_caller_expects():
    m = Model()
    with pytest.raises(ValueError):
        m.x @ m.w
    with pytest.raises(TypeError):
        m.g.gather(m.x, m.v)
    with pytest.raises(KeyError):
        m.g.bind(nothing=3)


def test_text_that_is_not_a_graph_is_refused():
    with pytest.raises(FormatError, match=r"line 1: expected 'graph @name \{'"):
        Graph.from_text("hello")
    with pytest.raises(FormatError, match="not JSON"):
        Graph.from_json("{")
    with pytest.raises(
        FormatError, match=r"line 2: .*no op is called 'sofmax'.*did you mean 'softmax'"
    ):
        Graph.from_text("graph @g {\n  %0 = sofmax() : f32[]\n}")


def test_a_failure_at_run_time_names_op_label_and_line():
    m = Model()
    g = Graph()
    table = g.input("table", (4, 2))
    rows = g.gather(table, g.input("ids", (3,), "i32"), label="rows")
    g.set_outputs([rows])
    with pytest.raises(
        RunError, match=r"gather 'rows': .*index 9 is outside 0\.\.3 \(test_mistakes"
    ):
        darner.run(g, {"table": np.zeros((4, 2)), "ids": np.array([0, 9, 1])})
    assert m is not None


def test_a_builder_shows_which_arguments_go_by_name():
    g = Graph()
    x = g.input("x", (2, 3, 8, 8))
    told = r"takes 2 arguments by position, got 3; the call is sum_pool\(x, window, \*, stride=None"
    with pytest.raises(ArgumentError, match=told):
        g.sum_pool(x, (2, 2), 1)
    assert g.sum_pool(x, (2, 2), stride=1).shape == (2, 3, 7, 7)
