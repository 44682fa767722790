"""Attention and blocks against PyTorch, written out by hand."""

import math

import numpy as np
import pytest
import torch

import darner
from darner import nn
from tests.nn.compare import assert_close, assert_same, randomised

WIDTH, HEADS = 12, 4


class Attention(torch.nn.Module):
    """What ``nn.Attention`` says it computes, one step after the other."""

    def __init__(self, kv_heads=HEADS, size=WIDTH // HEADS, bias=False, memory_width=WIDTH, **how):
        super().__init__()
        self.q_proj = torch.nn.Linear(WIDTH, HEADS * size, bias=bias)
        self.k_proj = torch.nn.Linear(memory_width, kv_heads * size, bias=bias)
        self.v_proj = torch.nn.Linear(memory_width, kv_heads * size, bias=bias)
        self.o_proj = torch.nn.Linear(HEADS * size, WIDTH, bias=bias)
        self.kv_heads, self.size, self.how = kv_heads, size, how

    def forward(self, x, memory=None, visible=None):
        memory = x if memory is None else memory
        q = self.q_proj(x).unflatten(-1, (HEADS, self.size)).transpose(1, 2)
        k, v = (
            part(memory).unflatten(-1, (self.kv_heads, self.size)).transpose(1, 2)
            for part in (self.k_proj, self.v_proj)
        )
        shared = HEADS // self.kv_heads
        k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
        scores = q @ k.transpose(-1, -2) * self.how.get("scale", 1 / math.sqrt(self.size))
        if cap := self.how.get("softcap"):
            scores = cap * torch.tanh(scores / cap)
        apart = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
        seen = torch.ones_like(apart, dtype=torch.bool)
        if self.how.get("causal"):
            seen &= apart >= 0
        if window := self.how.get("window"):
            seen &= apart.abs() < window
        seen = seen if visible is None else seen & visible
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2))


KINDS = {
    "plain": {"causal": False},
    "causal": {"causal": True},
    "shared heads": {"causal": True, "kv_heads": 2},
    "one key head": {"causal": False, "kv_heads": 1},
    "window": {"causal": True, "window": 3},
    "window on both sides": {"causal": False, "window": 2},
    # Without a cap the bias of keys would have no gradient: it moves all scores of a query alike.
    "capped": {
        "causal": True,
        "softcap": 0.7,
        "scale": 0.9,
        "window": 4,
        "kv_heads": 2,
        "bias": True,
    },
}


def ours(dropout=0.0, **options):
    return nn.Attention("attn", WIDTH, HEADS, dropout=dropout, **options)


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_attention(options):
    assert_same(ours(**options), randomised(Attention(**options)), (2, 7, WIDTH), "attn.")


def test_heads_that_are_not_the_width_apart():
    layer = ours(head_dim=5, causal=True)
    assert_same(layer, randomised(Attention(size=5, causal=True)), (2, 7, WIDTH), "attn.")


def test_biases_of_some_matrices():
    graph = darner.Graph("biased")
    ours(bias=(True, False, True, False))(graph.input("x", (1, 3, WIDTH)))
    biases = [name for name in graph.parameters if name.endswith("bias")]
    assert biases == ["attn.q_proj.bias", "attn.v_proj.bias"]


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_dropout_in_the_middle_changes_nothing_in_inference(options):
    """Attention is written out then, with its masks and caps."""
    found = []
    x = np.random.default_rng(0).normal(size=(2, 7, WIDTH))
    for rate in (0.3, 0.0):
        graph = darner.Graph("dropped")
        graph.set_outputs([ours(rate, **options)(graph.input("x", x.shape, "f64"))])
        with darner.build_inference_session(graph, seed=1) as session:
            found += session.run({"x": x}).values()
    np.testing.assert_allclose(found[0], found[1], rtol=1e-10, atol=1e-12)


def test_dropout_leaves_out_weights_in_training():
    """With values of 1 everywhere, a result is the share of weights that is left, over 1 - rate: 1 on the average."""
    graph = darner.Graph("dropped")
    layer = nn.Attention("", 4, 1, causal=False, dropout=0.5, linear=passed_on)
    y = layer(graph.parameter("x", (1, 400, 4), "f64", init="ones"))
    graph.set_outputs([y.sum(), y])
    with darner.build_session(graph) as session:
        session.step()
        shares = session.read_output_by_index(1)
    assert shares.mean() == pytest.approx(1.0, abs=0.01)
    assert shares.std() == pytest.approx(1 / math.sqrt(400), rel=0.2)


def passed_on(name, inputs, outputs, **rest):
    """A matrix that changes nothing."""
    return lambda x: x


def test_attention_to_another_sequence():
    rng = np.random.default_rng(0)
    memory = rng.normal(size=(2, 5, 6))
    visible = rng.integers(0, 2, (2, 1, 1, 5)).astype(bool)
    visible[..., 0] = True
    module = randomised(Attention(memory_width=6))
    other, seen = torch.from_numpy(memory), torch.from_numpy(visible)

    def layer(x):
        constant = x.graph.constant(memory)
        return ours(memory_width=6)(x, memory=constant, mask=x.graph.constant(visible))

    class Bound(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = module

        def forward(self, x):
            return self.attn(x, other, seen)

    assert_same(layer, Bound(), (2, 7, WIDTH))


@pytest.mark.parametrize("options", [KINDS["causal"], KINDS["window"], KINDS["capped"]])
def test_token_by_token_from_a_cache_as_all_at_once(options):
    """Rotary positions and all; the cache has room for more than there is."""
    layer = ours(rope=nn.Rope(WIDTH // HEADS + 1), head_dim=WIDTH // HEADS + 1, **options)
    x = np.random.default_rng(0).normal(size=(2, 6, WIDTH))
    whole = darner.Graph("whole")
    whole.set_outputs([layer(whole.input("x", x.shape, "f64"))])
    single = darner.Graph("single")
    token = single.input("x", (2, 1, WIDTH), "f64")
    single.set_outputs([layer(token, nn.Sequence.cached(single, 1, 8))])
    with darner.build_inference_session(whole, seed=2) as session:
        (wanted,) = session.run({"x": x}).values()
        with darner.build_inference_session(single, share=session) as decoder:
            for row in range(6):
                given = {"x": x[:, row : row + 1], "position": np.array([row], np.int32)}
                (found,) = decoder.run(given).values()
                np.testing.assert_allclose(found[:, 0], wanted[:, row], rtol=1e-10, atol=1e-12)


def test_mistakes_are_named():
    with pytest.raises(darner.ArgumentError, match="4 heads cannot share 3 key heads evenly"):
        ours(kv_heads=3)
    with pytest.raises(darner.ArgumentError, match="5 heads do not divide the width 12"):
        nn.Attention("attn", 12, 5)
    with pytest.raises(darner.ArgumentError, match="has 4 names, or 2"):
        ours(names=("qkv", "o", "x"))
    graph = darner.Graph("wrong")
    with pytest.raises(darner.ShapeError, match=r"Attention 'attn' takes 12 on axis -1"):
        ours()(graph.input("x", (2, 3, 8)))
    with pytest.raises(darner.ShapeError, match="9 tokens do not fit a cache of 8 rows"):
        nn.Sequence.cached(graph, 9, 8)


# --------------------------------------------------------------------------- blocks


class Gated(torch.nn.Module):
    """``down(activation(gate(x)) * up(x))``."""

    def __init__(self, activation):
        super().__init__()
        self.gate_proj = torch.nn.Linear(WIDTH, 20, bias=False)
        self.up_proj = torch.nn.Linear(WIDTH, 20, bias=False)
        self.down_proj = torch.nn.Linear(20, WIDTH, bias=False)
        self.activation = activation

    def forward(self, x):
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


ACTIVATIONS = {
    "gelu": torch.nn.functional.gelu,
    "gelu_pytorch_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "gelu_new": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "swish": torch.nn.functional.silu,
    "mish": torch.nn.functional.mish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


@pytest.mark.parametrize("name", ["silu", "gelu_pytorch_tanh"])
def test_gated_layers(name):
    layer = nn.SwiGLU("mlp", WIDTH, 20, activation=name)
    assert_same(layer, randomised(Gated(ACTIVATIONS[name])), (3, WIDTH), "mlp.")


def test_gate_and_up_as_one_matrix():
    """The first half is the gate."""
    separate, joint = darner.Graph("separate"), darner.Graph("joint")
    names = ("gate_up_proj", "down_proj")
    x = np.random.default_rng(0).normal(size=(3, WIDTH))
    with (
        darner.build_inference_session(only(separate, nn.SwiGLU("mlp", WIDTH, 20), x)) as one,
        darner.build_inference_session(
            only(joint, nn.SwiGLU("mlp", WIDTH, 20, names=names), x)
        ) as two,
    ):
        halves = [one.parameters()[f"mlp.{name}_proj.weight"] for name in ("gate", "up")]
        two.parameters()["mlp.gate_up_proj.weight"] = np.concatenate(halves)
        two.parameters()["mlp.down_proj.weight"] = one.parameters()["mlp.down_proj.weight"]
        (wanted,), (found,) = (list(session.run({"x": x}).values()) for session in (one, two))
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


def only(graph, layer, x):
    graph.set_outputs([layer(graph.input("x", x.shape, "f64"))])
    return graph


class Plain(torch.nn.Module):
    """``fc2(activation(fc1(x)))``."""

    def __init__(self, activation):
        super().__init__()
        self.fc1 = torch.nn.Linear(WIDTH, 20)
        self.fc2 = torch.nn.Linear(20, WIDTH)
        self.activation = activation

    def forward(self, x):
        return self.fc2(self.activation(self.fc1(x)))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_two_matrices_and_what_is_between_them(name):
    layer = nn.MLP("mlp", WIDTH, 20, activation=name)
    assert_same(layer, randomised(Plain(ACTIVATIONS[name])), (3, WIDTH), "mlp.")


def test_an_activation_that_is_not_known_is_named():
    graph = darner.Graph("wrong")
    with pytest.raises(darner.ArgumentError, match="there is no activation 'gelo'"):
        nn.MLP("mlp", 4, 8, activation="gelo")(graph.input("x", (1, 4)))


class Block(torch.nn.Module):
    """Norms before attention and matrices, and perhaps behind them."""

    def __init__(self, after):
        super().__init__()
        self.attn, self.mlp = Attention(causal=True), Plain(torch.relu)
        self.one, self.two = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.after = after
        if after:
            self.three, self.four = torch.nn.RMSNorm(WIDTH, 1e-5), torch.nn.RMSNorm(WIDTH, 1e-5)

    def forward(self, x):
        y = self.attn(self.one(x))
        x = x + (self.three(y) if self.after else y)
        y = self.mlp(self.two(x))
        return x + (self.four(y) if self.after else y)


@pytest.mark.parametrize("after", [False, True])
def test_block(after):
    block = nn.TransformerBlock(
        "block",
        ours(causal=True),
        nn.MLP("mlp", WIDTH, 20, activation="relu"),
        before=(nn.LayerNorm("one", WIDTH), nn.LayerNorm("two", WIDTH)),
        after=(nn.RMSNorm("three", WIDTH), nn.RMSNorm("four", WIDTH)) if after else None,
    )
    assert_same(block, randomised(Block(after)), (2, 5, WIDTH), "block.")


def test_padding_is_not_trained_by_looking_it_up():
    rng = np.random.default_rng(0)
    tokens, cotangent = np.array([[1, 3, 0], [0, 3, 2]]), rng.normal(size=(2, 3, 4))
    module = torch.nn.Embedding(5, 4, padding_idx=3).double()
    y = module(torch.from_numpy(tokens))
    (y.sin() * torch.from_numpy(cotangent)).sum().backward()
    graph = darner.Graph("padded")
    rows = nn.Embedding("wte", 5, 4, "f64", padding=3)(graph.input("tokens", (2, 3), "i32"))
    graph.set_outputs([(rows.sin() * graph.constant(cotangent)).sum(), rows])
    with darner.build_session(graph) as session:
        session.parameters()["wte.weight"] = module.weight.detach().numpy()
        session.run({"tokens": tokens.astype(np.int32)})
        assert_close(session.read_output_by_index(1), y)
        found = session.gradients()["wte.weight"]
    assert_close(found, module.weight.grad)
    assert (found[3] == 0).all()
    assert found[0].any()
