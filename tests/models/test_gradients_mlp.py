"""Dense networks: every parameter's gradient against PyTorch."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from darner import Graph
from tests.models.compare import assert_same_gradients, random_weights

SIZES = (7, 16, 9, 5)

ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "mish": F.mish,
    "hard_silu": F.hardswish,
}


def build(activation):
    graph = Graph("mlp")
    x = graph.input("x", (6, SIZES[0]), "f64")
    labels = graph.input("labels", (6,), "i32")
    for i, (inner, outer) in enumerate(pairwise(SIZES)):
        w = graph.parameter(f"w{i}", (inner, outer), "f64")
        x = x @ w + graph.parameter(f"b{i}", (outer,), "f64")
        if i < len(SIZES) - 2:
            x = getattr(x, activation)()
    graph.set_outputs([graph.cross_entropy_loss(x, labels)])
    return graph


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_classifier(activation):
    graph = build(activation)
    rng = np.random.default_rng(3)
    inputs = {"x": rng.normal(size=(6, SIZES[0])), "labels": rng.integers(0, SIZES[-1], 6)}

    def reference(given, w):
        x = given["x"]
        for i in range(len(SIZES) - 1):
            x = x @ w[f"w{i}"] + w[f"b{i}"]
            if i < len(SIZES) - 2:
                x = ACTIVATIONS[activation](x)
        return F.cross_entropy(x, given["labels"])

    weights = random_weights(graph)
    assert_same_gradients(graph, inputs, weights, reference, ["x", *weights])


def test_autoencoder_with_shared_weights_and_a_penalty():
    graph = Graph("autoencoder")
    x = graph.input("x", (5, 8), "f64")
    w = graph.parameter("w", (8, 3), "f64")
    b = graph.parameter("b", (8,), "f64")
    code = (x @ w).tanh()
    error = graph.mse_loss(code @ w.T + b, x)
    graph.set_outputs([error + 0.01 * w.square().sum() + 0.1 * code.abs().mean()])

    def reference(given, p):
        code = torch.tanh(given["x"] @ p["w"])
        error = F.mse_loss(code @ p["w"].T + p["b"], given["x"])
        return error + 0.01 * p["w"].square().sum() + 0.1 * code.abs().mean()

    inputs = {"x": np.random.default_rng(1).normal(size=(5, 8))}
    assert_same_gradients(graph, inputs, random_weights(graph), reference)


def test_mixture_of_experts_with_top_k_gates():
    graph = Graph("experts")
    x = graph.input("x", (6, 4), "f64")
    gate, w = graph.parameter("gate", (4, 3), "f64"), graph.parameter("w", (3, 4, 4), "f64")
    scores, chosen = (x @ gate).top_k(2)
    shares = scores.softmax()
    parts = [
        graph.grouped_matmul(x, w, chosen[:, i]).silu() * shares[:, i : i + 1] for i in range(2)
    ]
    graph.set_outputs([(parts[0] + parts[1]).square().mean()])

    def reference(given, p):
        scores, chosen = torch.topk(given["x"] @ p["gate"], 2)
        shares = torch.softmax(scores, -1)
        outs = torch.einsum("bi,bkio->bko", given["x"], p["w"][chosen])
        return (F.silu(outs) * shares[..., None]).sum(1).square().mean()

    inputs = {"x": np.random.default_rng(1).normal(size=(6, 4))}
    assert_same_gradients(graph, inputs, random_weights(graph), reference)
