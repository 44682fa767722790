"""Graphs whose convolutions have channels last: the same numbers, and images that are transposed at the ends only."""

import numpy as np
import pytest

import darner
from darner.lower.prepare import prepare
from darner.transforms.channels_last import with_channels_last
from darner.transforms.gradients import value_and_grad


def values_of(graph, arrays):
    session = darner.build(graph, device="reference", mode="infer", level=0, cache=None)
    return list(session.run(arrays).values())


def net(pool="max_pool"):
    """Convolutions, a batch norm, pooling, a residual and a mean over pixels; and the gradients of everything."""
    g = darner.Graph()
    x, w = g.input("x", (2, 3, 8, 6), "f64"), g.input("w", (4, 3, 3, 3), "f64")
    v, scale = g.input("v", (4, 4, 1, 1), "f64"), g.input("scale", (4,), "f64")
    y = x.conv(w, padding=1, stride=(1, 2))
    mean = y.mean((0, 2, 3), keepdims=True)
    y = (y - mean) / (y - mean).square().mean((0, 2, 3)).sqrt().reshape((4, 1, 1))
    y = (y * scale.reshape((4, 1, 1))).tanh()
    y = getattr(y, pool)(3, stride=2, padding=1)
    y = (y + y.conv(v)).relu()
    g.set_outputs([(y.mean((2, 3)) * g.input("dy", (2, 4), "f64")).sum(), y])
    return value_and_grad(g, ["x", "w", "v", "scale"])


def arrays_of(graph):
    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal([int(n) for n in node.shape])
        for name, node in graph.inputs.items()
    }


@pytest.mark.parametrize("pool", ["max_pool", "avg_pool"])
def test_values_and_gradients_stay_what_they_are(pool):
    graph = net(pool)
    arrays = arrays_of(graph)
    moved = prepare(graph, channels_last=lambda node: True)
    names = [node.op.name for node in moved.nodes]
    assert "conv" not in names
    assert {"conv_last", "conv_last_input_grad", "conv_last_weight_grad"} <= set(names)
    for found, wanted in zip(values_of(moved, arrays), values_of(graph, arrays), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12)


def test_images_are_transposed_at_the_ends_alone():
    moved = prepare(net(), channels_last=lambda node: True)
    transposed = [node for node in moved.nodes if node.op.name == "transpose"]
    ends = {*moved.inputs.values(), *moved.outputs}
    assert len(transposed) == 4
    for node in transposed:
        assert node in ends or node.operands[0] in ends


def test_only_wanted_convolutions_change():
    graph = prepare(net())
    assert with_channels_last(graph, lambda node: False) is graph
    gradients = with_channels_last(graph, lambda node: "kernel" in node.attrs)
    names = [node.op.name for node in gradients.nodes]
    assert names.count("conv") == 2
    assert names.count("conv_last_weight_grad") == 2


def test_what_is_rounded_for_products_is_transposed_before():
    g = darner.Graph()
    x, w = g.input("x", (2, 3, 8, 6)), g.input("w", (4, 3, 3, 3))
    y = x.cast("bf16").cast("f32").conv(w.cast("bf16").cast("f32"))
    g.set_outputs([y.sum()])
    moved = prepare(g, channels_last=lambda node: True)
    names = [node.op.name for node in moved.nodes if node.op.name not in ("input",)]
    assert names == ["transpose", "cast", "cast"] * 2 + ["conv_last", "sum"]
