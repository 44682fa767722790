"""Mistakes with layers that are usual among those who know PyTorch: told in the layer's terms, with the line."""

import inspect

import numpy as np
import pytest

import darner
from darner import nn

NAMED = {
    "Linear(784, 10)": (nn.Linear, (784, 10)),
    "Conv2d(1, 8, 3)": (nn.Conv2d, (1, 8, 3)),
    "Embedding(100, 64)": (nn.Embedding, (100, 64)),
    "LayerNorm(64)": (nn.LayerNorm, (64,)),
    "BatchNorm(8)": (nn.BatchNorm, (8,)),
    "LSTM(8, 16)": (nn.LSTM, (8, 16)),
    "Attention(64, 4)": (nn.Attention, (64, 4)),
}


@pytest.mark.parametrize("call", NAMED)
def test_a_layer_without_its_name_is_shown_with_one(call):
    layer, arguments = NAMED[call]
    kind, _, rest = call.partition("(")
    with pytest.raises(darner.ArgumentError) as caught:
        layer(*arguments)
    assert f'nn.{kind}("name", {rest}' in str(caught.value)
    assert "the name comes first" in str(caught.value)
    assert "(test_mistakes.py:" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: nn.Linear("fc", 8), "missing 1 required positional argument: 'outputs'"),
        (
            lambda: nn.Linear("fc", 8, 2, out=3),
            "has no argument 'out'; did you mean 'outputs'?",
        ),
        (lambda: nn.Dropout(p=0.5), "has no argument 'p'; write rate="),
        (lambda: nn.MaxPool2d(size=2), "has no argument 'size'"),
    ],
)
def test_wrong_arguments_show_the_call(make, text):
    with pytest.raises(darner.ArgumentError) as caught:
        make()
    assert text in str(caught.value)
    assert "(test_mistakes.py:" in str(caught.value)


@pytest.mark.parametrize("layer", [nn.Linear("fc", 3, 4), nn.MaxPool2d(2), nn.Dropout(0.1)])
def test_a_layer_is_called_with_a_node(layer):
    with pytest.raises(
        darner.ArgumentError, match=r"takes a node of a graph, got ndarray; g.input"
    ):
        layer(np.zeros((2, 3), np.float32))


def test_pictures_with_their_channels_last_are_told_the_order_of_axes():
    g = darner.Graph("pictures")
    with pytest.raises(darner.ShapeError) as caught:
        nn.Conv2d("conv", 1, 8, 3)(g.input("x", (2, 28, 28, 1)))
    assert "but x is f32[2, 28, 28, 1]; the axes are (batch, channels, ...)" in str(caught.value)
    assert "(test_mistakes.py:" in str(caught.value)


def test_indices_of_an_embedding_that_are_floats_are_told_how_to_be_integers():
    g = darner.Graph("text")
    with pytest.raises(darner.DTypeError, match=r'input\(name, shape, "i32"\)'):
        nn.Embedding("table", 10, 4)(g.input("tokens", (2, 8)))


@pytest.mark.parametrize("size", [None, -1])
def test_a_size_that_varies_is_told_to_have_a_name(size):
    with pytest.raises(darner.ShapeError, match="a size that varies has a name: 'batch'"):
        darner.Graph("any").input("x", (size, 8))


def test_a_parameter_among_the_inputs_is_told_where_it_goes():
    g = darner.Graph("scaled")
    g.set_outputs([g.input("x", (2,)) * g.parameter("w", (2,))])
    with pytest.raises(
        darner.DarnerError, match=r"'w' is a parameter: run\(graph, inputs, params\)"
    ):
        darner.run(g, {"x": np.ones(2), "w": np.ones(2)})


def test_layers_show_their_own_signature():
    assert list(inspect.signature(nn.Linear).parameters)[:3] == ["name", "inputs", "outputs"]
    assert list(inspect.signature(nn.Linear.__call__).parameters) == ["self", "x"]
