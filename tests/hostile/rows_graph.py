"""Graphs built, changed and read by somebody who means no good, or does not know better."""

import json

import numpy as np

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
    VerifyError,
)
from tests.hostile.rows import Table

bad = Table("graph")
ROWS = bad


class Evil:
    """An object whose every conversion fails, in a way of its own."""

    def __index__(self):
        raise RuntimeError("no index")

    def __iter__(self):
        raise RuntimeError("no items")

    def __repr__(self):
        return "<evil>"


# fmt: off
# ---- names
bad("name that is None", lambda m: m.g.input(None, (3,)), ArgumentError, "name")
bad("name of bytes", lambda m: m.g.parameter(b"w2", (3,)), ArgumentError, "name")
bad("state named like a parameter", lambda m: m.g.state("w", (3,)), NameTakenError, "'w'")
bad("input named like a state", lambda m: m.g.input("cache", (3,)), NameTakenError, "'cache'")
bad("lone surrogate as a name", lambda m: m.g.input("\ud800", (3,)), ArgumentError, "surrogates")
bad("scope of a number", lambda m: m.g.scope(3).__enter__(), ArgumentError, "scope")
bad("scope that is empty", lambda m: m.g.scope("").__enter__(), ArgumentError, "scope")
bad("label of bytes", lambda m: m.g.relu(m.x, label=b"x"), ArgumentError, "label")
bad("relabelled by a number", lambda m: m.g.relabel(m.x, 7), ArgumentError, "label")
bad("graph named by a number", lambda m: Graph(7), ArgumentError, "name")
bad("copy named by a list", lambda m: m.g.copy(["x"]), ArgumentError, "name")
# ---- Fourier transforms
bad("frequencies of no memory", lambda m: m.g.fftfreq_tensor(1 << 40), ArgumentError, "more than memory holds")
bad("frequencies of no array", lambda m: m.g.rfftfreq_tensor(1 << 70), ArgumentError, "more than memory holds")
bad("spectrum of no memory", lambda m: m.x.rfft(n=1 << 62), ShapeError, "larger than any memory")
bad("convolution of no memory", lambda m: m.x.fft_conv1d(m.x, 1 << 62), ShapeError, "larger than any memory")
bad("convolution of a negative length", lambda m: m.x.fft_conv1d(m.x, -1), ArgumentError, "n_fft")
bad("frame longer than any signal", lambda m: m.x.stft(1 << 70, 1), ShapeError, "a frame 1180591620717411303424")
bad("hop that is a float", lambda m: m.x.stft(1, 1.0), ArgumentError, "hop")
bad("norm that is a class", lambda m: m.x.rfft(darner.FftNorm), ArgumentError, "norm")
bad("norm that is no number", lambda m: m.x.rfft(float("nan")), ArgumentError, "norm")
bad("norm in RLX's word", lambda m: m.x.rfft("Backward"), ArgumentError, "expected one of 'none'")
bad("transform of None", lambda m: m.g.fftn(None), ArgumentError, "x must be a node")
bad("halves of None", lambda m: m.g.split_spectrum(None), ArgumentError, "spectrum must be a node")
bad("padding of None", lambda m: m.g.pad_last_axis_to_pow2(None), ArgumentError, "x must be a node")
bad("parts of what has one", lambda m: m.x.imag(), DTypeError, "must be complex")
# ---- sizes
bad("size that is a float", lambda m: m.g.input("n", (2.0, 3)), ShapeError, "2.0")
bad("size that is a bool", lambda m: m.g.input("n", (True, 3)), ShapeError, "True")
bad("size that is None", lambda m: m.g.input("n", (None, 3)), ShapeError, "None")
bad("size that is nested", lambda m: m.g.input("n", ((2, 3), 4)), ShapeError, "not an integer")
bad("shape that is None", lambda m: m.g.input("n", None), (ShapeError, ArgumentError), "shape")
bad("shape of somebody's own iterable", lambda m: m.g.input("n", {"a": -1}.values()), ShapeError, "negative")
bad("symbol with a space", lambda m: m.g.input("n", ("a b",)), ShapeError, "not a size")
bad("symbol with a bracket", lambda m: m.g.input("n", ("a]",)), ShapeError, "not a size")
bad("symbol of a long number", lambda m: m.g.input("n", ("9" * 5000,)), ShapeError, "not a size")
bad("symbol that subtracts itself away", lambda m: m.g.input("n", ("-seq-1",)), ShapeError, "negative")
bad("symbol divided by zero", lambda m: darner.symbol("n") // 0, ShapeError, "zero")
bad("symbol named by a number", lambda m: darner.symbol(7), ShapeError, "name")
bad("symbol used as a number", lambda m: int(darner.symbol("n")), ShapeError, "not a number yet")
bad("symbols compared before they are known", lambda m: darner.symbol("n") < 3, ShapeError, "not known until")
bad("symbol bound to a float", lambda m: m.g.bind(seq=2.5), ShapeError, "2.5")
bad("symbol bound to text that is none", lambda m: m.g.bind(seq="a b"), ShapeError, "not a size")
bad("bind to a list", lambda m: m.g.bind([("seq", 3)]), ArgumentError, "bind")
# ---- quantised weights
bad("scheme of a number", lambda m: m.g.dequantize_blocks(m.bytes, scheme=4), ArgumentError, "scheme")
bad("scheme of somebody's own", lambda m: m.g.dequantize_blocks(m.bytes, scheme=Evil()), ArgumentError, "scheme")
bad("scheme of bytes", lambda m: m.g.dequantize_blocks(m.bytes, scheme=b"q4_0"), ArgumentError, "scheme")
bad("scheme with a newline", lambda m: m.g.dequantize_blocks(m.bytes, scheme="q4_0\n"), ArgumentError, "scheme")
bad("scheme of a vast block", lambda m: darner.QuantScheme("int8_block(" + "9" * 30 + ")"), ArgumentError, "a block must have")
bad("scheme of a long number", lambda m: darner.QuantScheme("int8_block(" + "9" * 5000 + ")"), ArgumentError, "a block must have")
bad("scheme of a surrogate", lambda m: darner.QuantScheme("\ud800"), ArgumentError, "scheme")
bad("scheme that nobody knows", lambda m: m.g.dequantize_blocks(m.bytes, scheme="q4"), UnknownNameError, "no scheme 'q4'")
bad("weights to f16", lambda m: m.g.dequantize_blocks(m.bytes, scheme="fp8_e4m3", to="f16"), DTypeError, "f32 or f64")
bad("codes of somebody's own", lambda m: darner.quantize_weights(Evil(), "q8_0"), RunError, "weights")
# ---- element types
bad("type that is a number", lambda m: m.g.input("n", (3,), 32), DTypeError, "32")
bad("type of objects", lambda m: m.g.input("n", (3,), object), DTypeError, "object")
bad("type of dates", lambda m: m.g.input("n", (3,), "datetime64[s]"), DTypeError, "datetime64")
bad("cast to a string", lambda m: m.x.cast("str"), DTypeError, "str")
bad("cast to a tensor type", lambda m: m.x.cast("f32[3]"), DTypeError, "f32[3]")
bad("bits of floats by name", lambda m: m.g.add_node("bitwise_and", [m.x, m.x]), (ArgumentError, DTypeError), "bitwise_and")
bad("remainder of complex numbers", lambda m: m.z % 2, (ArgumentError, DTypeError), "c64")
bad("sorting complex numbers", lambda m: m.z.sort(), DTypeError, "c64")
bad("rows picked by booleans", lambda m: m.g.gather(m.w, m.mask), DTypeError, "integers")
bad("bits beside floats", lambda m: m.ids | m.x, DTypeError, "f32")
# ---- operands
bad("operand is an object", lambda m: m.g.add(m.x, Evil()), ArgumentError, "Evil")
bad("operand is a dictionary", lambda m: m.g.relu({}), ArgumentError, "relu")
bad("operand is a negative id", lambda m: m.g.relu(-1), UnknownNameError, "-1")
bad("operand is a large id", lambda m: m.g.relu(10**30), UnknownNameError, "nodes")
bad("operand is a float where a node is needed", lambda m: m.g.matmul(m.x, 2.5), (ShapeError, ArgumentError), "matmul")
bad("operand is a class", lambda m: m.g.relu(Graph), ArgumentError, "relu")
bad("operand is a tuple of results", lambda m: m.g.relu(m.pair), ArgumentError, "project one")
bad("operand of a frozen graph", lambda m: m.frozen.relu(m.frozen.node(0)), ArgumentError, "frozen")
bad("operand of a graph beside", lambda m: m.g.add(m.x, m.foreign), ArgumentError, "other")
bad("operand is ragged", lambda m: m.g.add(m.x, [[1.0], [2.0, 3.0]]), ArgumentError, "constant")
bad("operand is text", lambda m: m.x + "1", ArgumentError, "str")
bad("operand is an array of objects", lambda m: m.x + np.array([Graph()]), (ArgumentError, DTypeError), "add")
bad("operand is too large for its type", lambda m: m.ids + 2**31, ArgumentError, "2147483648")
bad("operand is too large for any type", lambda m: m.ids + 10**400, ArgumentError, "add")
bad("operand is infinite for bf16 by rounding", lambda m: m.half + 1e39, ArgumentError, "too large")
bad("power of a matrix by a matrix", lambda m: m.x ** m.w, ShapeError, "broadcast")
# ---- attributes
bad("axis is a float", lambda m: m.x.sum(1.0), ArgumentError, "1.0")
bad("axis is huge", lambda m: m.x.sum(10**30), ArgumentError, "does not fit")
bad("axis is a bool", lambda m: m.x.softmax(axis=True), ArgumentError, "axis")
bad("dropout of everything and more", lambda m: m.x.dropout(1.5), ArgumentError, "dropout")
bad("dropout of a negative share", lambda m: m.x.dropout(-0.1), ArgumentError, "dropout")
bad("dropout of NaN", lambda m: m.x.dropout(float("nan")), ArgumentError, "nan")
bad("epsilon below zero", lambda m: m.x.rms_norm(m.b, eps=-1.0), (ArgumentError, ShapeError), "rms_norm")
bad("pool window of nothing", lambda m: m.image.max_pool((0, 2)), ArgumentError, "0")
bad("pool window larger than the picture", lambda m: m.image.max_pool((9, 9)), ShapeError, "9")
bad("convolution by groups that do not divide", lambda m: m.g.conv2d(m.image, m.image, groups=2), ShapeError, "2")
bad("convolution with a stride of zero", lambda m: m.g.conv2d(m.image, m.image, stride=0), ArgumentError, "stride")
bad("convolution with negative padding", lambda m: m.g.conv2d(m.image, m.image, padding=-9), (ArgumentError, ShapeError), "conv")
bad("convolution with a huge dilation", lambda m: m.g.conv2d(m.image, m.image, dilation=10**9), ShapeError, "conv")
bad("reshape to more than is there", lambda m: m.x.reshape((2**40, 2**40)), ShapeError, "24 elements")
bad("broadcast to fewer axes", lambda m: m.x.broadcast_to((6,)), ShapeError, "broadcast")
bad("permutation with a stranger", lambda m: m.cube.transpose((0, 1, 7)), ArgumentError, "7")
bad("slice with a step of zero", lambda m: m.x[::0], ArgumentError, "step")
bad("index by a float", lambda m: m.x[1.5], (ArgumentError, DTypeError), "1.5")
bad("index by text", lambda m: m.x["row"], ArgumentError, "'row'")
bad("index by two ellipses", lambda m: m.x[..., ...], ArgumentError, "...")
bad("index below the first", lambda m: m.x[-5], (ArgumentError, ShapeError), "-5")
bad("index by a node of floats", lambda m: m.x[m.scalar], (ArgumentError, DTypeError), "f32")
bad("concatenation of a scalar", lambda m: m.g.concat([m.scalar, m.scalar], 0), (ArgumentError, ShapeError), "concat")
bad("concatenation of a number", lambda m: m.g.concat(3, 0), ArgumentError, "concat")
bad("stack of different sizes", lambda m: m.g.stack([m.x, m.w]), ShapeError, "stack")
bad("split that leaves a remainder", lambda m: m.g.split(m.x, 4, 1), (ShapeError, ArgumentError), "6")
bad("top of a fraction", lambda m: m.x.top_k(1.5), ArgumentError, "1.5")
bad("argmax of nothing", lambda m: m.none.argmax(0), ShapeError, "no elements")
bad("one hot of negative classes", lambda m: m.ids.one_hot(-3), (ArgumentError, ShapeError), "-3")
bad("range without end", lambda m: m.g.arange(0, 10, 0), ArgumentError, "0")
bad("einsum of nonsense", lambda m: m.g.einsum("i->->j", m.x), ArgumentError, "einsum")
bad("einsum of too many operands", lambda m: m.g.einsum("ij", m.x, m.x), ArgumentError, "einsum")
bad("einsum of a letter from nowhere", lambda m: m.g.einsum("ij->ik", m.x), ArgumentError, "'k'")
bad("einsum of a number", lambda m: m.g.einsum(3, m.x), ArgumentError, "einsum")
bad("initialiser that is none", lambda m: m.g.parameter("p", (3,), init="norml"), ArgumentError, "norml")
bad("initialiser with NaN", lambda m: m.g.parameter("p", (3,), init="normal(nan)"), ArgumentError, "nan")
bad("initialiser that is code", lambda m: m.g.parameter("p", (3,), init="__import__('os')"), ArgumentError, "initialiser")
bad("cholesky of a strip", lambda m: m.g.cholesky(m.x), ShapeError, "square")
bad("solve with a strip", lambda m: m.g.dense_solve(m.square, m.x), ShapeError, "rows")
bad("loss of labels that are fractions", lambda m: m.g.cross_entropy_loss(m.h, m.b), (DTypeError, ShapeError), "cross_entropy_loss")
bad("attention of two axes", lambda m: m.g.scaled_dot_attention(m.x, m.x, m.x), ShapeError, "scaled_dot_attention")
# ---- the graph itself
bad("outputs of nothing", lambda m: m.g.set_outputs(None), ArgumentError, "set_outputs")
bad("outputs that are a tuple of results", lambda m: m.g.set_outputs([m.pair]), (ArgumentError, ShapeError), "set_outputs")
bad("outputs of an unknown id", lambda m: m.g.set_outputs([999]), UnknownNameError, "999")
bad("output of a graph beside another", lambda m: m.g.set_outputs([m.loss, m.foreign]), ArgumentError, "other")
bad("update twice", lambda m: m.g.set_update(m.cache, m.x), ArgumentError, "cache")
bad("update of a result", lambda m: m.g.set_update(m.h, m.h), ArgumentError, "set_update")
bad("update of another type", lambda m: m.g.set_update(m.cache, m.half, replace=True), (DTypeError, ShapeError), "cache")
bad("operands of a leaf", lambda m: m.g.set_inputs(m.x, [m.w]), ArgumentError, "input")
bad("operands of other shapes", lambda m: m.g.set_inputs(m.h, [m.w, m.x]), ShapeError, "matmul")
bad("operands that come later", lambda m: m.g.set_inputs(m.h, [m.loss, m.w]), ArgumentError, "before")
bad("operands that are too few", lambda m: m.g.set_inputs(m.h, [m.x]), ArgumentError, "matmul")
bad("node by a name", lambda m: m.g.node("x"), (ArgumentError, UnknownNameError), "'x'")
bad("node by a float", lambda m: m.g.node(1.5), (ArgumentError, UnknownNameError), "1.5")
bad("node of a graph beside", lambda m: m.g.node(m.foreign), ArgumentError, "other")
bad("frozen graph gets outputs", lambda m: m.frozen.set_outputs([0]), ArgumentError, "frozen")
bad("frozen graph gets a leaf", lambda m: m.frozen.input("n", (3,)), ArgumentError, "frozen")
bad("truth of a mask", lambda m: 1 if m.mask else 0, ArgumentError, "truth")
bad("length of a scalar", lambda m: len(m.scalar), TypeError, "length")
bad("iteration over a scalar", lambda m: list(m.scalar), TypeError, "scalar")
bad("in-place change of an attribute", lambda m: setattr(m.x, "shape", (1,)), ArgumentError, "shape")
bad("attribute removed", lambda m: delattr(m.x, "op"), (ArgumentError, AttributeError), "op")
bad("remat that keeps an unknown op", lambda m: m.g.remat("r", ["sofmax"]).__enter__(), UnknownNameError, "sofmax")
bad("remat of negative bytes", lambda m: m.g.remat("r", -1).__enter__(), ArgumentError, "larger_than")
bad("op that is none, by name", lambda m: m.g.add_node("no_such_op", [m.x]), ArgumentError, "no_such_op")
bad("node added with an attribute too many", lambda m: m.g.add_node("relu", [m.x], axis=1), ArgumentError, "axis")
# ---- transforms
bad("gradient of a matrix", lambda m: darner.grad(m.matrix), (ArgumentError, ShapeError), "loss")
bad("gradient with respect to nobody", lambda m: darner.grad(m.g, ["nobody"]), (UnknownNameError, ArgumentError), "nobody")
bad("gradient of a graph that is none", lambda m: darner.grad("graph"), ArgumentError, "Graph")
bad("optimised is a string", lambda m: darner.optimize("graph"), ArgumentError, "Graph")
# ---- running
bad("run without inputs", lambda m: darner.run(m.g), RunError, "'x'")
bad("run with a stranger", lambda m: darner.run(m.g, *given(m, y=3)), RunError, "'y'")
bad("run with a wrong shape", lambda m: darner.run(m.g, *given(m, x=np.ones((4, 7)))), (RunError, ShapeError), "'x'")
bad("run with text", lambda m: darner.run(m.g, *given(m, x="hello")), (RunError, DTypeError, ShapeError), "'x'")
bad("run with a ragged list", lambda m: darner.run(m.g, *given(m, x=[[1], [2, 3]])), (RunError, ShapeError), "'x'")
bad("run with inputs as a list", lambda m: darner.run(m.g, [1, 2]), (RunError, ArgumentError), "input")
# ---- texts
bad("text of bytes", lambda m: Graph.from_text(b"graph @g {\n}"), FormatError, "text")
bad("text of nothing", lambda m: Graph.from_text(""), FormatError, "graph @")
bad("text without an end", lambda m: Graph.from_text(m.g.to_text().rstrip()[:-1]), FormatError, "closing")
bad("text with a node from the future", lambda m: Graph.from_text(m.g.to_text().replace("matmul(%0", "matmul(%99")), FormatError, "99")
bad("text with a wrong type", lambda m: Graph.from_text(m.g.to_text().replace("f32[4, 5]", "f32[4, 6]")), FormatError, "stated")
bad("text with a number skipped", lambda m: Graph.from_text(m.g.to_text().replace("%1 =", "%2 =")), FormatError, "%2")
bad("text with two graphs", lambda m: Graph.from_text(f"{m.g.to_text()}\n" * 2), FormatError, "inner")
bad("text with a deep list", lambda m: Graph.from_text(text("constant(value=" + "[" * 9999 + ")")), FormatError, "line 2")
bad("text with a long id", lambda m: Graph.from_text(text(f"relu(%{'9' * 5000})")), FormatError, "line 2")
bad("text with an unknown attribute", lambda m: Graph.from_text(text('input(name="x", colour=3)')), FormatError, "colour")
bad("text with a name twice", lambda m: Graph.from_text(text('input(name="x") : f32[]\n  %1 = input(name="x")')), FormatError, "line 3")
bad("text with an argument twice", lambda m: Graph.from_text(text('input(name="x", name="y")')), FormatError, "twice")
bad("text that returns what is not there", lambda m: Graph.from_text("graph @g {\n  return %0\n}"), FormatError, "line 2")
bad("text that updates what is not there", lambda m: Graph.from_text("graph @g {\n  update %0 = %1\n}"), FormatError, "line 2")
bad("text of the other format", lambda m: Graph.from_text(m.g.to_json()), FormatError, "line 1")
bad("JSON of a list", lambda m: Graph.from_json("[]"), FormatError, "object")
bad("JSON of a number", lambda m: Graph.from_json("3"), FormatError, "object")
bad("JSON of bytes that are no text", lambda m: Graph.from_json(b"\xff\xfe\x00"), FormatError, "JSON")
bad("JSON of None", lambda m: Graph.from_json(None), FormatError, "JSON")
bad("JSON that is deep", lambda m: Graph.from_json("[" * 99999), FormatError, "nested")
bad("JSON of another format", lambda m: Graph.from_json(changed(m, format="onnx")), FormatError, "onnx")
bad("JSON of the future", lambda m: Graph.from_json(changed(m, version=99)), FormatError, "99")
bad("JSON without nodes", lambda m: Graph.from_json(changed(m, nodes=None)), FormatError, "nodes")
bad("JSON with nodes by name", lambda m: Graph.from_json(changed(m, nodes={})), FormatError, "nodes")
bad("JSON with an unknown output", lambda m: Graph.from_json(changed(m, outputs=[999])), FormatError, "999")
bad("JSON with outputs of text", lambda m: Graph.from_json(changed(m, outputs=["x"])), FormatError, "x")
bad("JSON with a triple of updates", lambda m: Graph.from_json(changed(m, updates=[[1, 2, 3]])), FormatError, "two ids")
bad("JSON with a wrong type table", lambda m: Graph.from_json(changed(m, types=["f32[", 3])), FormatError, "type 0")
bad("JSON with a negative type", lambda m: Graph.from_json(edited(m, type=-1)), FormatError, "type")
bad("JSON with a line of text", lambda m: Graph.from_json(edited(m, source=[0, "x"])), FormatError, "line")
bad("JSON with a file outside", lambda m: Graph.from_json(edited(m, source=[99, 1])), FormatError, "file")
bad("JSON with a slot of a number", lambda m: Graph.from_json(edited(m, slots=[1])), FormatError, "slot")
bad("JSON with operands by text", lambda m: Graph.from_json(edited(m, inputs=["x"])), FormatError, "node 0")
bad("JSON with a constant of nothing", lambda m: Graph.from_json(changed(m, constants={"a": {}})), FormatError, "constant")
bad("JSON with a constant that is a bomb", lambda m: Graph.from_json(changed(m, constants={"a": bomb()})), FormatError, "constant")
bad("JSON with a constant of a list", lambda m: Graph.from_json(changed(m, constants={"a": [1]})), FormatError, "constant")
bad("JSON with remat of a number", lambda m: Graph.from_json(changed(m, remat={"r": 3})), FormatError, "polic")
bad("JSON with streams of text", lambda m: Graph.from_json(changed(m, streams="many")), FormatError, "streams")
bad("verification of somebody's edit", lambda m: edited_inside(m).verify(), VerifyError, "recorded")
# fmt: on


def given(m, **inputs):
    """Values for all inputs, some of them as they are given, and for all parameters."""

    def zeros(leaf):
        return np.zeros(
            [size if isinstance(size, int) else 3 for size in leaf.shape], leaf.dtype.numpy
        )

    found = {name: zeros(leaf) for name, leaf in m.g.inputs.items()}
    return {**found, **inputs}, {name: zeros(leaf) for name, leaf in m.g.parameters.items()}


def text(call):
    """A graph of one line."""
    return f"graph @g {{\n  %0 = {call} : f32[]\n}}"


def changed(m, **fields):
    """The graph's JSON with other fields."""
    return json.dumps({**json.loads(m.g.to_json()), **fields})


def edited(m, **fields):
    """The graph's JSON with other fields of its first node."""
    document = json.loads(m.g.to_json())
    document["nodes"][0] |= fields
    return json.dumps(document)


def bomb():
    """A few bytes that unpack to many."""
    import base64
    import zlib

    packed = zlib.compress(bytes(10**7))
    return {"type": "f32[2]", "zlib": base64.b64encode(packed).decode()}


def edited_inside(m):
    """A graph changed behind its own back."""
    from darner.graph.node import change_node

    made = m.g.copy()
    change_node(made.node(made.outputs[0].id), type=m.x.type)
    return made
