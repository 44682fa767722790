"""Convolutions against PyTorch's modules."""

import numpy as np
import pytest
import torch

import darner
from darner import nn
from darner.nn import convs
from tests.nn.compare import SIZES, assert_same, randomised

CONV = {
    "plain": {"kernel_size": 3},
    "no bias": {"kernel_size": 2, "bias": False},
    "strided": {"kernel_size": 3, "stride": 2, "padding": 1},
    "dilated": {"kernel_size": 2, "dilation": 2, "padding": 1},
    "grouped": {"kernel_size": 3, "groups": 2, "padding": 1},
    "depthwise": {"kernel_size": 3, "groups": 4, "stride": 2},
    "same": {"kernel_size": 3, "padding": "same"},
}

TRANSPOSED = {
    "plain": {"kernel_size": 3},
    "no bias": {"kernel_size": 2, "stride": 2, "bias": False},
    "odd": {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1},
    "dilated": {"kernel_size": 2, "dilation": 2, "padding": 1},
    "grouped": {"kernel_size": 3, "stride": 2, "groups": 2},
}


@pytest.mark.parametrize("options", CONV.values(), ids=CONV)
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_convolution(axes, options):
    ours = getattr(convs, f"Conv{axes}d")("conv", 4, 8, **options)
    theirs = randomised(getattr(torch.nn, f"Conv{axes}d")(4, 8, **options))
    assert_same(ours, theirs, (2, 4, *SIZES[axes]), "conv.")


@pytest.mark.parametrize("options", TRANSPOSED.values(), ids=TRANSPOSED)
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_transposed_convolution(axes, options):
    ours = getattr(convs, f"ConvTranspose{axes}d")("conv", 4, 6, **options)
    theirs = randomised(getattr(torch.nn, f"ConvTranspose{axes}d")(4, 6, **options))
    sizes = tuple(size - 2 for size in SIZES[axes])
    assert_same(ours, theirs, (2, 4, *sizes), "conv.")


def test_a_number_for_each_axis():
    options = {"kernel_size": (3, 1), "stride": (1, 2), "padding": (2, 0), "dilation": (2, 1)}
    ours = convs.Conv2d("", 4, 5, **options)
    assert_same(ours, randomised(torch.nn.Conv2d(4, 5, **options)), (2, 4, 7, 6))


@pytest.mark.parametrize("kind", ["Conv2d", "ConvTranspose2d"])
def test_starts_as_far_from_zero_as_in_pytorch(kind):
    graph = darner.Graph("start")
    y = getattr(convs, kind)("conv", 48, 32, 3, groups=2)(graph.input("x", (1, 48, 5, 5)))
    graph.set_outputs([y])
    theirs = getattr(torch.nn, kind)(48, 32, 3, groups=2)
    inner, _ = torch.nn.init._calculate_fan_in_and_fan_out(theirs.weight)
    bound = 1 / np.sqrt(inner)
    assert 0.98 * bound < theirs.weight.abs().max() <= bound
    with darner.build_inference_session(graph) as session:
        weight, bias = (session.parameters()[f"conv.{name}"] for name in ("weight", "bias"))
    assert weight.shape == theirs.weight.shape
    assert bias.shape == theirs.bias.shape
    assert 0.98 * bound < np.abs(weight).max() <= bound
    assert 0.8 * bound < np.abs(bias).max() <= bound
    assert weight.std() == pytest.approx(bound / np.sqrt(3), rel=0.03)


def test_initialisers_can_be_chosen():
    graph = darner.Graph("start")
    x = graph.input("x", (1, 2, 5))
    convs.Conv1d("a", 2, 2, 3, init="normal(0.02)")(x)
    convs.Conv1d("b", 2, 2, 3, init="kaiming_normal", init_bias="ones")(x)
    starts = {name: node.attrs["init"] for name, node in graph.parameters.items()}
    assert starts == {
        "a.weight": "normal(0.02)",
        "a.bias": "zeros",
        "b.weight": "kaiming_normal",
        "b.bias": "ones",
    }


def test_called_twice_it_uses_the_same_kernel():
    graph = darner.Graph("twice")
    conv = convs.Conv2d("conv", 3, 3, 3, padding=1)
    with graph.scope("block"):
        conv(conv(graph.input("x", (1, 3, 4, 4))))
    assert list(graph.parameters) == ["block.conv.weight", "block.conv.bias"]


def test_a_second_kernel_of_another_size_under_the_same_name_is_refused():
    graph = darner.Graph("twice")
    x = graph.input("x", (1, 3, 4, 4))
    convs.Conv2d("conv", 3, 3, 3)(x)
    with pytest.raises(
        darner.ShapeError, match=r"'conv.weight' is the parameter f32\[3, 3, 3, 3\]"
    ):
        convs.Conv2d("conv", 3, 3, 1)(x)


def test_wrong_operands_are_refused_in_the_layers_terms():
    graph = darner.Graph("wrong")
    with pytest.raises(
        darner.ShapeError, match=r"Conv2d 'conv' takes 3 on axis 1, but x is f32\[1, 4"
    ):
        convs.Conv2d("conv", 3, 8, 3)(graph.input("x", (1, 4, 5, 5)))
    with pytest.raises(darner.ShapeError, match="rank 3"):
        convs.Conv2d("conv", 3, 8, 3)(graph.input("y", (1, 3, 5)))
    with pytest.raises(darner.ShapeError, match="does not fit"):
        convs.Conv1d("long", 3, 8, 7)(graph.input("z", (1, 3, 5)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: convs.Conv1d("c", 0, 1, 1), "inputs is a positive whole number, got 0"),
        (lambda: convs.Conv1d("c", 4, 6, 1, groups=3), "'c': 4 inputs do not divide into 3 groups"),
        (lambda: convs.Conv1d("c", 4, 6, 1, groups=4), "6 outputs do not divide into 4 groups"),
        (lambda: convs.Conv3d("c", 4, 6, (1, 2)), "kernel_size"),
        (lambda: convs.Conv2d("c", 4, 6, 0), "kernel_size"),
    ],
)
def test_sizes_that_cannot_be_are_refused(make, message):
    with pytest.raises(darner.ArgumentError, match=message):
        make()


def test_layers_are_values():
    assert convs.Conv2d("c", 1, 2, 3) == convs.Conv2d("c", 1, 2, 3)
    assert convs.Conv2d("c", 1, 2, 3) != convs.Conv1d("c", 1, 2, 3)
    assert repr(convs.Conv1d("c", 1, 2, 3)).startswith("Conv1d(name='c', inputs=1")
    assert nn.Linear("c", 1, 2) != convs.Conv1d("c", 1, 2, 3)
