"""Mamba's mixer beside that of transformers: outputs and all gradients."""

import numpy as np
import pytest
import torch

import darner
from darner import Graph, nn
from darner.testing import assert_close


def peer(**options):
    mamba = pytest.importorskip("transformers.models.mamba.modeling_mamba")
    config = mamba.MambaConfig(
        hidden_size=12, intermediate_size=20, state_size=5, time_step_rank=3, **options
    )
    torch.manual_seed(0)
    mixer = mamba.MambaMixer(config, 0)
    with torch.no_grad():
        for value in mixer.parameters():
            value.add_(0.1 * torch.randn_like(value))
    return mixer


@pytest.mark.parametrize("bias", [False, True])
def test_the_mixer_is_that_of_transformers_by_its_names(bias):
    mixer = peer(use_bias=bias)
    graph = Graph()
    x = graph.input("x", (2, 7, 12))
    layer = nn.Mamba("mixer", 12, 20, state_size=5, rank=3, bias=bias)
    graph.set_outputs([layer(x)])
    params = {f"mixer.{n}": p.detach().numpy() for n, p in mixer.named_parameters()}
    assert {n: p.shape for n, p in graph.parameters.items()} == {
        n: p.shape for n, p in params.items()
    }
    rng = np.random.default_rng(1)
    given, dy = rng.normal(size=(2, 2, 7, 12)).astype(np.float32)
    leaf = torch.from_numpy(given).requires_grad_()
    answer = mixer(leaf)
    names = ["x", *params]
    leaves = [leaf, *mixer.parameters()]
    wanted = torch.autograd.grad(answer, leaves, torch.from_numpy(dy))
    assert_close(darner.run(graph, {"x": given}, params)[0], answer.numpy(force=True), "f32", 84)
    backward = darner.vjp(graph, names)
    (cotangent,) = (name for name in backward.inputs if name != "x")
    found = darner.run(backward, {"x": given, cotangent: dy}, params)
    for a, b in zip(found[1:], wanted, strict=True):
        assert_close(a, b.numpy(), "f32", 1680)


def test_a_width_that_does_not_fit_is_refused_in_the_layers_words():
    with pytest.raises(darner.ShapeError, match="Mamba 'mixer' takes 8 on axis 2, but x is f32"):
        nn.Mamba("mixer", 8)(Graph().input("x", (1, 4, 6)))
    with pytest.raises(darner.ArgumentError, match="rank is a positive whole number, got 0"):
        nn.Mamba("mixer", 8, rank=0)
