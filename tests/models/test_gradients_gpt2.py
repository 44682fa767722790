"""GPT-2: learned positions, layer norm, gelu, tied embeddings and cross-entropy, against PyTorch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import darner
from darner import Graph
from tests.models.compare import assert_same_gradients, random_weights

VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS = 17, 6, 12, 3, 2


def build(batch=2):
    graph = Graph("gpt2")
    tokens = graph.input("tokens", (batch, LENGTH), "i32")
    labels = graph.input("labels", (batch, LENGTH), "i32")
    words = graph.parameter("words", (VOCABULARY, WIDTH), "f64")
    places = graph.parameter("places", (LENGTH, WIDTH), "f64")

    def linear(name, x, out):
        w = graph.parameter(f"{name}.weight", (x.shape[-1], out), "f64")
        return x @ w + graph.parameter(f"{name}.bias", (out,), "f64")

    def norm(name, x):
        weight = graph.parameter(f"{name}.weight", (WIDTH,), "f64")
        return graph.layer_norm(x, weight, graph.parameter(f"{name}.bias", (WIDTH,), "f64"))

    x = graph.embedding(tokens, words) + places
    for i in range(LAYERS):
        with graph.scope(f"layer{i}"):
            q, k, v = linear("qkv", norm("ln1", x), 3 * WIDTH).chunk(3, -1)
            y = graph.causal_attention(q, k, v, HEADS, HEADS, WIDTH // HEADS)
            x = x + linear("out", y, WIDTH)
            x = x + linear("down", linear("up", norm("ln2", x), 4 * WIDTH).gelu_approx(), WIDTH)
    logits = norm("last", x) @ words.T
    graph.set_outputs([graph.cross_entropy_loss(logits, labels)])
    return graph


def reference(given, p):
    def linear(name, x):
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    def norm(name, x):
        return F.layer_norm(x, (WIDTH,), p[f"{name}.weight"], p[f"{name}.bias"], 1e-5)

    x = F.embedding(given["tokens"], p["words"]) + p["places"]
    for i in range(LAYERS):
        name = f"layer{i}"
        qkv = linear(f"{name}.qkv", norm(f"{name}.ln1", x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in qkv)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + linear(f"{name}.out", y)
        inner = F.gelu(linear(f"{name}.up", norm(f"{name}.ln2", x)), approximate="tanh")
        x = x + linear(f"{name}.down", inner)
    logits = norm("last", x) @ p["words"].T
    return F.cross_entropy(logits.flatten(0, 1), given["labels"].flatten())


def text(ignored=0):
    rng = np.random.default_rng(8)
    tokens = rng.integers(0, VOCABULARY, (2, LENGTH + 1))
    labels = tokens[:, 1:].copy()
    labels[:, :ignored] = -100
    return {"tokens": tokens[:, :-1], "labels": labels}


@pytest.mark.parametrize("ignored", [0, 3])
def test_gpt2(ignored):
    graph = build()
    assert_same_gradients(graph, text(ignored), random_weights(graph), reference)


def test_embedding_rows_that_are_not_looked_up_get_only_what_the_logits_send():
    graph = build()
    weights = random_weights(graph)
    given = text()
    absent = sorted(set(range(VOCABULARY)) - set(given["tokens"].ravel().tolist()))
    assert absent
    leaf = torch.from_numpy(weights["words"]).requires_grad_()
    tied = {name: torch.from_numpy(value) for name, value in weights.items()} | {"words": leaf}
    loss = reference({name: torch.from_numpy(value) for name, value in given.items()}, tied)
    (wanted,) = torch.autograd.grad(loss, leaf)
    (found,) = darner.run(darner.grad(graph, "words"), given, weights)
    np.testing.assert_allclose(found[absent], wanted.numpy()[absent], rtol=1e-9)
