"""Llama: grouped queries, rotary positions, RMS norm and SwiGLU, against PyTorch; and how its gradient graph grows."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import darner
from darner import Graph
from tests.models.compare import assert_same_gradients, random_weights

VOCABULARY, LENGTH, HEADS, KEY_HEADS, HEAD, INNER = 19, 7, 4, 2, 6, 20
WIDTH = HEADS * HEAD
THETA = 10000.0


def build(layers=1, dtype="f64", gated="swiglu"):
    graph = Graph("llama")
    tokens = graph.input("tokens", (LENGTH,), "i32")
    labels = graph.input("labels", (LENGTH,), "i32")
    words = graph.parameter("words", (VOCABULARY, WIDTH), dtype)

    def linear(name, x, out):
        return x @ graph.parameter(name, (x.shape[-1], out), dtype)

    def norm(name, x):
        return graph.rms_norm(x, graph.parameter(name, (WIDTH,), dtype))

    x = graph.embedding(tokens, words)
    for i in range(layers):
        with graph.scope(f"layer{i}"):
            h = norm("ln1", x)
            q = graph.rope(linear("q", h, HEADS * HEAD), THETA, HEAD)
            k = graph.rope(linear("k", h, KEY_HEADS * HEAD), THETA, HEAD)
            y = graph.causal_attention(
                q, k, linear("v", h, KEY_HEADS * HEAD), HEADS, KEY_HEADS, HEAD
            )
            x = x + linear("o", y, WIDTH)
            h = norm("ln2", x)
            if gated == "swiglu":
                inner = graph.swiglu(linear("gate", h, INNER), linear("up", h, INNER))
            else:
                inner = graph.swiglu_concat(linear("both", h, 2 * INNER))
            x = x + linear("down", inner, WIDTH)
    logits = norm("last", x) @ words.T
    graph.set_outputs([graph.cross_entropy_loss(logits, labels)])
    return graph


def rotate(x):
    """(length, heads, head) turned by its position, halves paired."""
    angles = torch.arange(len(x), dtype=x.dtype)[:, None] * THETA ** (
        -torch.arange(0, HEAD, 2, dtype=x.dtype) / HEAD
    )
    cos, sin = (f(torch.cat([angles, angles], -1))[:, None] for f in (torch.cos, torch.sin))
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def reference(given, p, layers=1):
    def norm(name, x):
        return F.rms_norm(x, (WIDTH,), p[name], 1e-5)

    x = p["words"][given["tokens"]]
    for i in range(layers):
        weight = {
            n.removeprefix(f"layer{i}."): v for n, v in p.items() if n.startswith(f"layer{i}.")
        }
        h = norm(f"layer{i}.ln1", x)
        q, k, v = ((h @ weight[n]).unflatten(-1, (-1, HEAD)) for n in ("q", "k", "v"))
        k, v = (t.repeat_interleave(HEADS // KEY_HEADS, 1) for t in (rotate(k), v))
        q, k, v = (t.transpose(0, 1) for t in (rotate(q), k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + y.transpose(0, 1).flatten(1) @ weight["o"]
        h = norm(f"layer{i}.ln2", x)
        if "both" in weight:
            gate, up = (h @ weight["both"]).chunk(2, -1)
        else:
            gate, up = h @ weight["gate"], h @ weight["up"]
        x = x + (F.silu(gate) * up) @ weight["down"]
    return F.cross_entropy(norm("last", x) @ p["words"].T, given["labels"])


def text():
    tokens = np.random.default_rng(8).integers(0, VOCABULARY, LENGTH + 1)
    return {"tokens": tokens[:-1], "labels": tokens[1:]}


@pytest.mark.parametrize("gated", ["swiglu", "swiglu_concat"])
def test_llama_block(gated):
    graph = build(gated=gated)
    assert_same_gradients(graph, text(), random_weights(graph), reference)


@pytest.mark.slow
def test_llama_of_three_blocks():
    graph = build(3)
    assert_same_gradients(
        graph, text(), random_weights(graph), lambda given, p: reference(given, p, layers=3)
    )


def test_llama_gradients_for_each_example_of_a_batch():
    graph = build()
    weights = random_weights(graph)
    rng = np.random.default_rng(4)
    tokens = rng.integers(0, VOCABULARY, (3, LENGTH + 1))
    batch = {"tokens": tokens[:, :-1], "labels": tokens[:, 1:]}
    gradient = darner.grad(graph)
    found = darner.run(darner.vmap(gradient, ["tokens", "labels"], 3), batch, weights)
    for i in range(3):
        one = darner.run(gradient, {name: value[i] for name, value in batch.items()}, weights)
        for whole, single in zip(found, one, strict=True):
            np.testing.assert_allclose(
                whole[i], single, rtol=1e-9, atol=1e-12 * np.abs(single).max()
            )


# --------------------------------------------------------------------------- structure


def unused(graph):
    return [
        node
        for node in graph.nodes
        if not graph.use_count(node) and not graph.is_output(node) and node.name is None
    ]


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_every_node_of_the_gradient_graph_is_used(layers):
    assert unused(darner.value_and_grad(build(layers))) == []


@pytest.mark.parametrize("transform", [darner.grad, darner.value_and_grad, darner.vjp, darner.jvp])
def test_each_layer_adds_the_same_nodes(transform):
    counts = [Counter(n.op.name for n in transform(build(layers)).nodes) for layers in range(1, 9)]
    growth = [after - before for before, after in pairwise(counts)]
    assert all(step == growth[0] for step in growth)
    totals = [sum(count.values()) for count in counts]
    assert len({b - a for a, b in pairwise(totals)}) == 1


def test_the_backward_pass_keeps_its_composites_whole():
    names = Counter(node.op.name for node in darner.grad(build(1)).nodes)
    assert names["scaled_dot_attention"] == names["scaled_dot_attention_backward"] == 1
    assert names["rms_norm_backward_input"] == names["rms_norm_backward_gamma"] == 3
    assert names["swiglu_grad_gate"] == names["swiglu_grad_up"] == 1
    # Forward: q, k, v, o, gate, up, down and the logits; backward: two for each.
    assert products(darner.grad(build(1))) == 3 * 8


def products(graph):
    return sum(n.op.name.startswith("matmul") or n.op.name == "dot_general" for n in graph.nodes)


def test_the_backward_pass_stores_no_arrays():
    graph = build(2, "f32")
    known = {node.attrs["values"] for node in graph.nodes if node.op.name == "constant"}
    for node in darner.grad(graph).nodes:
        if node.op.name == "constant" and node.attrs["values"] not in known:
            assert node.size == 1


def test_frozen_layers_leave_only_the_way_through_them():
    # The logits, seven for each layer on the way, and in the first the four after q; one gradient of a weight.
    way_back = 1 + 3 * 7 + 4 + 1
    assert products(darner.grad(build(4), "layer0.q")) == products(build(4)) + way_back
