"""RNN, LSTM and GRU beside PyTorch's: outputs, last states, and the gradients of all that goes in."""

import numpy as np
import pytest
import torch

import darner
from darner import ArgumentError, ShapeError
from darner.nn.recurrent import GRU, LSTM, RNN
from darner.testing import assert_close

LAYERS = {"lstm": (LSTM, torch.nn.LSTM), "gru": (GRU, torch.nn.GRU), "rnn": (RNN, torch.nn.RNN)}
BATCH, TIME, INPUTS, WIDTH = 3, 5, 4, 6


def beside_torch(kind, dtype, started, time=TIME, **options):
    """darner's graph with a loss, the values it runs on, and PyTorch's results and gradients of the same."""
    ours, theirs = LAYERS[kind]
    rng = np.random.default_rng(0)
    real = {"f32": np.float32, "f64": np.float64}[dtype]
    g = darner.Graph(kind)
    layer = ours("rnn", INPUTS, WIDTH, **options)
    count = layer.num_layers * layer.directions
    inputs = {"x": rng.normal(size=(BATCH, time, INPUTS)).astype(real)}
    names = ours.STATES if started else ()
    for name in names:
        inputs[name] = rng.normal(size=(count, BATCH, WIDTH)).astype(real)
    leaves = {name: g.input(name, value.shape, dtype) for name, value in inputs.items()}
    initial = tuple(leaves[name] for name in names)
    if not started:
        outputs = layer(leaves["x"])
    else:
        outputs = layer(leaves["x"], initial if kind == "lstm" else initial[0])
    y, last = outputs[0], outputs[1] if kind == "lstm" else (outputs[1],)
    results = [y, *last]
    # A random weight for every number, so that no gradient cancels.
    weights = [rng.normal(size=result.shape).astype(real) for result in results]
    loss = sum((result * weight).sum() for result, weight in zip(results, weights, strict=True))
    g.set_outputs([loss, *results])

    module = theirs(
        INPUTS,
        WIDTH,
        options.get("num_layers", 1),
        bias=options.get("bias", True),
        batch_first=True,
        bidirectional=options.get("bidirectional", False),
        dtype=torch.float64,
    )
    parameters = {f"rnn.{name}": value for name, value in module.named_parameters()}
    assert {name: leaf.shape for name, leaf in g.parameters.items()} == {
        name: tuple(value.shape) for name, value in parameters.items()
    }
    values = {name: value.detach().numpy().astype(real) for name, value in parameters.items()}
    with torch.no_grad():
        for name, value in parameters.items():
            value.copy_(torch.tensor(values[name]))
    given = {
        name: torch.tensor(value, dtype=torch.float64, requires_grad=True)
        for name, value in inputs.items()
    }
    start = tuple(given[name] for name in names)
    found, end = module(given["x"], None if not started else start if kind == "lstm" else start[0])
    found = [found, *(end if kind == "lstm" else (end,))]
    total = sum((each * torch.tensor(w)).sum() for each, w in zip(found, weights, strict=True))
    total.backward()
    gradients = {name: leaf.grad.numpy() for name, leaf in {**given, **parameters}.items()}
    return g, inputs, values, [each.detach().numpy() for each in (total, *found)], gradients


CASES = [
    {},
    {"bias": False},
    {"num_layers": 2},
    {"bidirectional": True},
    {"num_layers": 3, "bidirectional": True},
    {"num_layers": 2, "bidirectional": True, "bias": False},
    {"time": 1, "num_layers": 2},
]


@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize("started", [False, True], ids=["from zero", "from states"])
@pytest.mark.parametrize("kind", LAYERS)
def test_values_and_gradients_are_those_of_pytorch(kind, started, options):
    g, inputs, values, wanted, gradients = beside_torch(kind, "f64", started, **options)
    for found, expected in zip(darner.run(g, inputs, values), wanted, strict=True):
        if expected.ndim == 0:  # the loss is a small difference of large sums
            np.testing.assert_allclose(found.reshape(()), expected, rtol=1e-9, atol=1e-12)
        else:
            assert_close(found, expected, "f64", 300)
    loss = g.copy()
    loss.set_outputs(loss.outputs[:1])
    leaves = [*inputs, *values]
    found = darner.run(darner.grad(loss, leaves), inputs, values)
    for name, gradient in zip(leaves, found, strict=True):
        assert_close(gradient, gradients[name], "f64", 300)


@pytest.mark.parametrize("time", [1, 4])
@pytest.mark.parametrize("kind", LAYERS)
def test_tangents_fit_the_gradients(kind, time):
    """Moved along a direction, the loss changes by what its gradient says; and the gradient by what its difference does."""
    g, inputs, values, _, gradients = beside_torch(kind, "f64", False, time=time, num_layers=2)
    g.set_outputs(g.outputs[:1])
    direction = np.random.default_rng(5).normal(size=inputs["x"].shape)
    moving = {**inputs, "tangent_x": direction}
    _, change = darner.run(darner.jvp(g, "x"), moving, values)
    assert_close(change.reshape(()), (gradients["x"] * direction).sum(), "f64", 300)
    (curved,) = darner.run(darner.hvp(g, "x"), moving, values)
    step, gradient = 1e-5, darner.grad(g, "x")
    (ahead,), (behind,) = (
        darner.run(gradient, {"x": inputs["x"] + sign * step * direction}, values)
        for sign in (1, -1)
    )
    np.testing.assert_allclose(curved, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAYERS)
def test_compiled_training_has_the_gradients_of_pytorch(kind):
    options = {"bidirectional": True, "time": 3}
    g, inputs, values, wanted, gradients = beside_torch(kind, "f32", True, **options)
    g.set_outputs(g.outputs[:1])
    with darner.build_session(g, threads=1) as session:
        session.parameters().update(values)
        session.run(inputs)
        assert_close(session.read_loss(), wanted[0], "f32", 300)
        for name in values:
            assert_close(session.read_grad(name), gradients[name], "f32", 300)


@pytest.mark.parametrize("kind", LAYERS)
def test_compiled_inference_has_the_values_of_pytorch(kind):
    g, inputs, values, wanted, _ = beside_torch(kind, "f32", False, time=13)
    g.set_outputs(g.outputs[1:])
    with darner.build_inference_session(g, threads=1) as session:
        session.parameters().update(values)
        for found, expected in zip(session.run(inputs).values(), wanted[1:], strict=True):
            assert_close(found, expected, "f32", 300)


def test_a_sequence_in_two_parts_is_the_whole():
    """The last states of one part start the next, with the same parameters."""
    g = darner.Graph("parts")
    layer = LSTM("lstm", INPUTS, WIDTH, num_layers=2)
    x = g.input("x", (BATCH, 6, INPUTS))
    whole, (h, c) = layer(x)
    first, states = layer(x[:, :2])
    second, (h2, c2) = layer(x[:, 2:], states)
    g.set_outputs([whole, h, c, g.concat([first, second], axis=1), h2, c2])
    assert len(g.parameters) == 8
    rng = np.random.default_rng(1)
    values = {name: rng.normal(size=leaf.shape) for name, leaf in g.parameters.items()}
    found = darner.run(g, {"x": rng.normal(size=x.shape)}, values)
    for one, other in zip(found[:3], found[3:], strict=True):
        assert_close(one, other, "f32", 20)


def test_dropout_is_between_layers_alone():
    def count(layers):
        g = darner.Graph("dropped")
        GRU("gru", INPUTS, WIDTH, num_layers=layers, dropout=0.5)(g.input("x", (2, 3, INPUTS)))
        return sum(node.op.name == "dropout" for node in g.nodes)

    assert [count(layers) for layers in (1, 2, 4)] == [0, 1, 3]


def test_parameters_start_as_those_of_pytorch():
    g = darner.Graph("start")
    LSTM("lstm", 4, 16)(g.input("x", (1, 2, 4)))
    assert {leaf.attrs["init"] for leaf in g.parameters.values()} == {"uniform(0.25)"}


@pytest.mark.parametrize("size", [(2, 4), (2, 3, 5), (2, 0, 4), (2, "time", 4)])
def test_operands_that_do_not_fit_are_told(size):
    g = darner.Graph("wrong")
    with pytest.raises(ShapeError, match=r"LSTM 'lstm' takes .*but x is f32"):
        LSTM("lstm", 4, 8)(g.input("x", size))


def test_states_that_do_not_fit_are_told():
    g = darner.Graph("wrong")
    x, h = g.input("x", (2, 3, 4)), g.input("h", (1, 2, 8))
    with pytest.raises(
        ShapeError, match=r"GRU 'gru' starts from h .*2, 2, 8.* but it is .*1, 2, 8"
    ):
        GRU("gru", 4, 8, num_layers=2)(x, h)
    with pytest.raises(ArgumentError, match="LSTM 'lstm' starts from h and c"):
        LSTM("lstm", 4, 8)(x, (h,))
    with pytest.raises(ArgumentError, match="GRU 'gru': width is a positive whole number, got 0"):
        GRU("gru", 4, 0)
    with pytest.raises(ArgumentError, match=r"dropout is at least 0 and below 1, got 1\.5"):
        GRU("gru", 4, 8, dropout=1.5)


def test_a_recurrent_layer_may_be_rectified():
    g = darner.Graph("rnn")
    y, _ = RNN("rnn", INPUTS, WIDTH, nonlinearity="relu")(g.input("x", (BATCH, TIME, INPUTS)))
    g.set_outputs([y])
    module = torch.nn.RNN(INPUTS, WIDTH, nonlinearity="relu", batch_first=True)
    x = np.random.default_rng(0).normal(size=(BATCH, TIME, INPUTS)).astype(np.float32)
    values = {f"rnn.{name}": p.detach().numpy() for name, p in module.named_parameters()}
    (found,) = darner.run(g, {"x": x}, values)
    assert_close(found, module(torch.tensor(x))[0].detach().numpy(), "f32", 100)
    with pytest.raises(ArgumentError, match="nonlinearity is 'tanh' or 'relu', got 'gelu'"):
        RNN("rnn", INPUTS, WIDTH, nonlinearity="gelu")


@pytest.mark.parametrize("kind", LAYERS)
def test_the_graph_of_a_layer_does_not_grow_with_time(kind):
    def nodes(time):
        g = darner.Graph(kind)
        outputs = LAYERS[kind][0]("rnn", 4, 5, num_layers=2)(g.input("x", (2, time, 4)))
        g.set_outputs([outputs[0].sum()])
        return len(darner.grad(g))

    assert nodes(3) == nodes(3000)
