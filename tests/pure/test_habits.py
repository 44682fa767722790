"""What users of PyTorch, JAX, NumPy and Keras write: taken, or answered with the right spelling."""

import copy
import dataclasses
import inspect
import math
import pickle
import re

import numpy as np
import pytest
import torch

import darner
from darner import (
    ArgumentError,
    CallError,
    DarnerError,
    DTypeError,
    Graph,
    MissingNameError,
    Node,
    Session,
    data,
    load,
    nn,
    optim,
    text,
    train,
)
from darner.graph.dtypes import dtype
from darner.graph.habits.table import ALIASES, HABITS, OPERATORS, UFUNCS
from darner.graph.op import BUILDERS, OPS, find
from darner.session import SessionConfig

# --------------------------------------------------------------------------- the table

MODULES = {
    "nn": nn,
    "optim": optim,
    "darner": darner,
    "data": data,
    "load": load,
    "train": train,
    "text": text,
}
CLASSES = {
    "x": Node,
    "y": Node,
    "g": Graph,
    "session": Session,
    "layer": nn.Linear,
    "optimizer": optim.SGD,
}
FIELDS = {
    item.name
    for owner in (*vars(nn).values(), *vars(optim).values(), SessionConfig)
    if dataclasses.is_dataclass(owner)
    for item in dataclasses.fields(owner)
}
ARGUMENTS = {
    *(param.name for op in OPS.values() for param in op.params),
    *(name for item in BUILDERS.values() for name in item.parameters),
    *FIELDS,
    *inspect.signature(nn.BatchNorm.__call__).parameters,
    *inspect.signature(darner.build).parameters,
    *("label", "name"),
}
REFERENCE = re.compile(
    r"\b(x|y|g|nn|optim|session|layer|optimizer|darner|data|load|train|text)\.([A-Za-z_]\w*)"
)
ROWS = [
    pytest.param(place, written, id=f"{place}: {foreign}")
    for place, rows in HABITS.items()
    for foreign, written in rows.items()
]


def exists(owner, name):
    if owner in MODULES:
        return hasattr(MODULES[owner], name)
    if owner in ("layer", "optimizer"):
        return name in FIELDS
    known = find(name) if CLASSES[owner] in (Node, Graph) else None
    return known is not None or hasattr(CLASSES[owner], name) or name in Node.__slots__


@pytest.mark.parametrize(("place", "written"), ROWS)
def test_every_row_names_what_exists(place, written):
    references = REFERENCE.findall(written)
    arguments = re.findall(r"\b(\w+)=(?!=)", written)
    kinds = re.findall(r'"(\w+)"', written) if place == "dtype" else []
    assert (
        references or arguments or kinds or written.startswith(("nothing:", ":")) or " " in written
    )
    for owner, name in references:
        assert exists(owner, name), f"{owner}.{name}"
    for name in arguments:
        assert name in ARGUMENTS, f"{name}="
    for name in kinds:
        assert dtype(name)


def test_no_row_hides_a_name_that_exists():
    for place, owners in {
        "tensor": (),
        "layer": (nn,),
        "optimizer": (optim,),
        "darner": (darner,),
        "session": (Session,),
        "optimizer attribute": (optim.SGD,),
        "layer attribute": (nn.Linear,),
    }.items():
        for name in HABITS[place]:
            assert not any(hasattr(owner, name) for owner in owners), f"{place}: {name}"
    for name in HABITS["tensor"]:
        item = find(name)
        assert item is None, name
        assert name not in vars(Node), name


def test_aliases_and_functions_stand_for_what_exists():
    for names in ALIASES.values():
        assert set(names) <= ARGUMENTS
    for name in (*UFUNCS.values(), *OPERATORS.values()):
        assert name in OPS
    for name in UFUNCS:
        assert isinstance(getattr(np, name), np.ufunc)


# --------------------------------------------------------------------------- nodes


def start():
    g = Graph()
    x, y = g.input("x", (2, 3, 4)), g.input("y", (2, 3, 4))
    return g, x, y


A = np.linspace(0.1, 0.9, 24).astype(np.float32).reshape(2, 3, 4)
B = np.linspace(0.9, 0.2, 24).astype(np.float32).reshape(2, 3, 4)

TAKEN = {
    "x.sum(dim=1, keepdim=True)": lambda a, b: a.sum(1, keepdims=True),
    "x.max(dim=-1)": lambda a, b: a.max(-1),
    "x.cumsum(dim=0)": lambda a, b: a.cumsum(0),
    "g.concat([x, y], dim=1)": lambda a, b: np.concatenate([a, b], 1),
    "g.stack([x, y], dim=1)": lambda a, b: np.stack([a, b], 1),
    "x.unsqueeze(dim=1)": lambda a, b: a[:, None],
    "x.flatten(start_dim=1)": lambda a, b: a.reshape(2, 12),
    "x.flip(dims=(0,))": lambda a, b: a[::-1],
    "x.clip(min=0.2, max=0.5)": lambda a, b: a.clip(0.2, 0.5),
    "np.sin(x)": lambda a, b: np.sin(a),
    "np.maximum(x, y)": np.maximum,
    "np.multiply(A, y)": lambda a, b: A * b,
    "A * y": lambda a, b: A * b,
    "A - y": lambda a, b: A - b,
    "A < y": lambda a, b: b > A,
    "A @ y.swapaxes(1, 2)": lambda a, b: A @ b.swapaxes(1, 2),
    "np.float32(2) / y": lambda a, b: np.float32(2) / b,
    "torch.from_numpy(A) - y": lambda a, b: A - b,
    "torch.from_numpy(A) // y": lambda a, b: A // b,
    "round(x)": lambda a, b: np.round(a),
    "abs(x)": lambda a, b: abs(a),
}


@pytest.mark.parametrize("code", TAKEN)
def test_what_can_only_mean_one_thing_is_taken(code):
    g, x, y = start()
    g.set_outputs([eval(code, {"g": g, "x": x, "y": y, "np": np, "torch": torch, "A": A})])
    found = darner.run(g, {"x": A, "y": B})[0]
    np.testing.assert_allclose(found, TAKEN[code](A, B), rtol=1e-6)


def test_axes_are_counted_by_ndim_too():
    _, x, _ = start()
    assert x.ndim == x.rank == 3


def test_both_names_of_one_argument_are_refused():
    _, x, _ = start()
    with pytest.raises(ArgumentError, match="'dim'"):
        x.softmax(dim=1, axis=1)


ANSWERED = {
    "x.permute(0, 2, 1)": (AttributeError, "write x.transpose((0, 2, 1))"),
    "x.detach()": (AttributeError, "write x.stop_gradient()"),
    "x.view(2, -1)": (AttributeError, "write x.reshape((2, -1))"),
    "x.item()": (AttributeError, "no numbers until the graph runs"),
    "x.backward()": (AttributeError, "session.step()"),
    "x.to('cuda')": (AttributeError, 'device="gpu"'),
    "x.relu_()": (AttributeError, "x.relu()"),
    "x.exp_()": (AttributeError, "write x = x.exp()"),
    "x.requires_grad": (AttributeError, "darner.grad"),
    "g.cat([x, y])": (AttributeError, "write g.concat([a, b], axis)"),
    "g.tensor([1.0])": (AttributeError, "g.constant(values)"),
    "x.softmaxx()": (AttributeError, "did you mean 'softmax'?"),
    "x.size()": (TypeError, "write x.shape"),
    "x.size(0)": (TypeError, "write x.shape[0]"),
    "x.reshape(2, 12)": (ArgumentError, "x.reshape((2, -1))"),
    "x.transpose(0, 1)": (ArgumentError, "x.swapaxes(0, 1)"),
    "x.dropout(p=0.5)": (ArgumentError, "rate="),
    "x.gelu(approximate='tanh')": (ArgumentError, "x.gelu_approx()"),
    "x.var(unbiased=False)": (ArgumentError, "correction=0.0"),
    "x.softmax(axes=1)": (ArgumentError, "did you mean 'axis'?"),
    "g.unsqueeze(x, axes=1)": (
        ArgumentError,
        "unsqueeze: .*has no argument 'axes'; did you mean 'axis'?",
    ),
    "np.add.reduce(x)": (TypeError, "x.sum(axis)"),
    "np.exp(x, out=A)": (TypeError, "nodes do not change"),
    "np.sum(x)": (TypeError, "numpy.sum: .*g.sum("),
    "np.concatenate([x, y])": (TypeError, "write g.concat([a, b], axis)"),
    "np.heaviside(x, y)": (TypeError, "numpy.heaviside is not an op on nodes"),
    "torch.relu(x)": (TypeError, "write g.relu("),
    "torch.cat([x, y])": (TypeError, "write g.concat([a, b], axis)"),
    "math.sin(x)": (TypeError, "x.sin() for math.sin(x)"),
    "int(x)": (TypeError, "int() takes a number"),
    "round(x, 2)": (ArgumentError, "(x * 100).round() / 100"),
    "x.cast('double')": (TypeError, 'write "f64"'),
    "g.input('z', (2,), torch.float8_e4m3fn)": (TypeError, "is not an element type"),
    "darner.jit": (AttributeError, "write darner.function"),
    "darner.Tensor": (AttributeError, "darner.Node"),
    "nn.ReLU()": (AttributeError, "write x.relu()"),
    "nn.Sequential()": (AttributeError, "nn.Linear("),
    "nn.Dense(3)": (AttributeError, 'write nn.Linear("fc", 8, 16)'),
    "nn.Linear(8, 3)": (TypeError, 'the name comes first, got 8; write nn.Linear("name", 8, 3)'),
    "nn.Conv2d(3, 8, 3, 1)": (TypeError, "the name comes first, got 3"),
    "nn.Linear('fc', in_features=8, out_features=3)": (
        TypeError,
        "Linear 'fc': has no argument 'in_features'; write inputs=",
    ),
    "nn.Linear('fc', 8)": (TypeError, "the call is Linear(name, inputs, outputs, bias=True"),
    "nn.Dropout(p=0.1)": (TypeError, "write rate="),
    "nn.LSTM('rnn', 8, 16, batch_first=True)": (TypeError, "x is (batch, time, inputs)"),
    "nn.Linear('fc', 8, 3).weight": (AttributeError, "g.parameters"),
    "optim.AdamW(lr=1e-3)": (TypeError, "AdamW: has no argument 'lr'; write learning_rate="),
    "optim.AdamW(1e-3, eps=1e-6)": (TypeError, "write epsilon="),
    "optim.AdamW(1e-3, betas=(0.9, 0.99))": (TypeError, "write beta1=, beta2="),
    "optim.AdamW(g.parameters, 1e-3)": (
        ArgumentError,
        "the session trains the parameters of its graph",
    ),
    "optim.SGD()": (TypeError, "the call is SGD(learning_rate, momentum=0.0"),
    "optim.SGD(0.1).step()": (AttributeError, "session.step()"),
    "optim.RMSprop": (AttributeError, "optim.custom(rule, 1e-2)"),
    "optim.lr_scheduler": (AttributeError, "schedule=optim.warmup(100) >> optim.cosine(900)"),
}


@pytest.mark.parametrize("code", ANSWERED)
def test_what_is_written_otherwise_is_answered_with_it(code):
    kind, words = ANSWERED[code]
    g, x, y = start()
    names = {"g": g, "x": x, "y": y, "np": np, "torch": torch, "A": A, "math": math}
    with pytest.raises(kind) as caught:
        eval(code, {**names, "nn": nn, "optim": optim, "darner": darner})
    assert isinstance(caught.value, DarnerError)
    pattern = ".*".join(re.escape(part) for part in words.split(".*"))
    assert re.search(pattern, str(caught.value)), str(caught.value)
    assert len(g) == 2


def test_a_session_answers_too():
    g, x, _ = start()
    g.set_outputs([x.relu()])
    with darner.build_inference_session(g, level=0) as session:
        for name, words in {"state_dict": "session.parameters()", "eval": "share=session"}.items():
            with pytest.raises(MissingNameError, match=re.escape(words)):
                getattr(session, name)
        assert not hasattr(session, "backward")


# --------------------------------------------------------------------------- tools that probe


@pytest.mark.parametrize(
    "thing",
    [start()[1], start()[0], nn.Linear("fc", 8, 3), optim.AdamW(1e-3), nn, optim, darner],
    ids=lambda thing: type(thing).__name__,
)
def test_attributes_that_are_not_there_are_missing_in_python_s_sense(thing):
    assert not hasattr(thing, "permute")
    assert getattr(thing, "permute", 7) == 7
    for name in ("_repr_html_", "__wrapped__", "_ipython_canary_method_should_not_exist_"):
        assert not hasattr(thing, name)


def test_what_is_made_by_hand_can_be_copied_pickled_and_replaced():
    for made in (nn.Linear("fc", 8, 3), nn.Conv2d("c", 3, 8, 3), optim.AdamW(1e-3, clip_norm=1.0)):
        assert copy.copy(made) == copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == made
    assert dataclasses.replace(nn.Linear("fc", 8, 3), outputs=4).outputs == 4
    assert list(inspect.signature(nn.Linear).parameters)[:3] == ["name", "inputs", "outputs"]


def test_errors_can_be_pickled():
    _, x, _ = start()
    with pytest.raises(MissingNameError) as caught:
        x.permute
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(CallError) as wrong:
        nn.Linear(8, 3)
    assert str(pickle.loads(pickle.dumps(wrong.value))) == str(wrong.value)


# --------------------------------------------------------------------------- element types


@pytest.mark.parametrize(
    ("kind", "same"),
    [
        ("f32", ["f32", "float32", np.float32, np.dtype("float32"), torch.float32, float]),
        ("bf16", ["bf16", "bfloat16", torch.bfloat16]),
        ("i64", ["i64", "int64", np.int64, torch.int64, torch.long]),
        ("bool", ["bool", bool, np.bool_, torch.bool]),
    ],
)
def test_element_types_are_equal_to_their_names_elsewhere(kind, same):
    x = Graph().input("x", (2,), kind)
    for other in same:
        assert x.dtype == other
        assert (x.dtype != other) is False
        assert Graph().input("x", (2,), other).dtype is x.dtype
    for other in ("f64", "i8", "nonsense", None, 3, torch.float64, np.int8):
        assert x.dtype != other
    assert {x.dtype: 1}[dtype(kind)] == 1


def test_element_types_of_jax_have_the_dtype_they_stand_for():
    class float32:
        dtype = np.dtype("float32")

    assert dtype(float32) is dtype("f32")


def test_dtype_errors_are_type_errors():
    with pytest.raises(DTypeError, match="'half' is not an element type; write \"f16\""):
        dtype("half")
