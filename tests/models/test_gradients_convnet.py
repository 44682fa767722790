"""A convolutional network with batch norm, max-pool, strides and groups, against PyTorch."""

import numpy as np
import torch
import torch.nn.functional as F

import darner
from darner import Graph
from tests.models.compare import assert_same_gradients, random_weights


def build():
    graph = Graph("convnet")
    x = graph.input("x", (3, 3, 13, 11), "f64")
    labels = graph.input("labels", (3,), "i32")

    def conv(name, x, out, kernel, **options):
        inner = x.shape[1] // options.get("groups", 1)
        w = graph.parameter(f"{name}.weight", (out, inner, kernel, kernel), "f64")
        return graph.conv(x, w, **options)

    def batch_norm(name, x):
        channels = x.shape[1]
        weight = graph.parameter(f"{name}.weight", (channels,), "f64")
        bias = graph.parameter(f"{name}.bias", (channels,), "f64")
        y, mean, var = graph.batch_norm_training(x, weight, bias)
        for kind, value in (("mean", mean), ("var", var)):
            running = graph.state(f"{name}.running_{kind}", (channels,), "f64")
            graph.set_update(running, running * 0.9 + value * 0.1)
        return y

    x = batch_norm("norm0", conv("conv0", x, 8, 3, padding=1)).relu()
    x = x.max_pool(3, stride=2, padding=1)
    short = conv("short", x, 12, 1, stride=2)
    x = batch_norm("norm1", conv("conv1", x, 12, 3, stride=2, padding=1, groups=4)).relu()
    x = batch_norm("norm2", conv("conv2", x, 12, 3, padding=2, dilation=2, groups=12))
    x = (x + short).relu()
    x = x.max_pool(2, ceil_mode=True).mean((2, 3))
    w = graph.parameter("head.weight", (12, 5), "f64")
    b = graph.parameter("head.bias", (5,), "f64")
    graph.set_outputs([graph.cross_entropy_loss(x @ w + b, labels, label_smoothing=0.1)])
    return graph


def reference(given, p):
    def norm(name, x):
        return F.batch_norm(
            x, None, None, p[f"{name}.weight"], p[f"{name}.bias"], training=True, eps=1e-5
        )

    x = F.relu(norm("norm0", F.conv2d(given["x"], p["conv0.weight"], padding=1)))
    x = F.max_pool2d(x, 3, 2, 1)
    short = F.conv2d(x, p["short.weight"], stride=2)
    x = F.conv2d(x, p["conv1.weight"], stride=2, padding=1, groups=4)
    x = F.relu(norm("norm1", x))
    x = norm("norm2", F.conv2d(x, p["conv2.weight"], padding=2, dilation=2, groups=12))
    x = F.relu(x + short)
    x = F.max_pool2d(x, 2, ceil_mode=True).mean((2, 3))
    logits = x @ p["head.weight"] + p["head.bias"]
    return F.cross_entropy(logits, given["labels"], label_smoothing=0.1)


def images():
    rng = np.random.default_rng(5)
    return {"x": rng.normal(size=(3, 3, 13, 11)), "labels": rng.integers(0, 5, 3)}


def test_conv_net():
    graph = build()
    weights = random_weights(graph)
    assert_same_gradients(graph, images(), weights, reference, ["x", *weights])


def test_running_statistics_are_updated_by_the_training_graph():
    graph = build()
    state = {}
    darner.run(darner.value_and_grad(graph), images(), random_weights(graph), state=state)
    x = torch.from_numpy(images()["x"])
    w = torch.from_numpy(random_weights(graph)["conv0.weight"])
    y = F.conv2d(x, w, padding=1)
    np.testing.assert_allclose(state["norm0.running_mean"], 0.1 * y.mean((0, 2, 3)), rtol=1e-12)
    assert set(state) == {f"norm{i}.running_{kind}" for i in range(3) for kind in ("mean", "var")}
