"""Norms against PyTorch: values, gradients, and the running statistics of batch norm while it trains."""

import numpy as np
import pytest
import torch

import darner
from darner import nn
from tests.nn.compare import assert_close, assert_same, randomised


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(bias):
    module = randomised(torch.nn.LayerNorm(6, eps=1e-3, bias=bias))
    assert_same(nn.LayerNorm("norm", 6, eps=1e-3, bias=bias), module, (2, 5, 6), "norm.")


def test_rms_norm():
    module = randomised(torch.nn.RMSNorm(6, eps=1e-3))
    assert_same(nn.RMSNorm("norm", 6, eps=1e-3), module, (2, 5, 6), "norm.")


class ShiftedRMSNorm(torch.nn.Module):
    """By 1 + weight."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(6))

    def forward(self, x):
        return torch.nn.functional.rms_norm(x, (6,), 1.0 + self.weight, 1e-3)


def test_rms_norm_by_one_plus_weight():
    layer = nn.RMSNorm("norm", 6, eps=1e-3, shifted=True)
    assert_same(layer, randomised(ShiftedRMSNorm()), (2, 5, 6), "norm.")


@pytest.mark.parametrize("shape", [(2, 6, 5), (3, 6, 4, 5)])
def test_group_norm(shape):
    module = randomised(torch.nn.GroupNorm(3, 6, eps=1e-3))
    assert_same(nn.GroupNorm("norm", 3, 6, eps=1e-3), module, shape, "norm.")


BATCHES = {"BatchNorm1d": (4, 6), "BatchNorm2d": (3, 6, 4, 5), "BatchNorm3d": (2, 6, 2, 3, 4)}


@pytest.mark.parametrize(("kind", "shape"), BATCHES.items())
def test_batch_norm_in_training(kind, shape):
    module = randomised(getattr(torch.nn, kind)(6, eps=1e-3))
    layer = nn.BatchNorm("norm", 6, eps=1e-3)
    assert_same(lambda x: layer(x, training=True), module, shape, "norm.")


def test_batch_norm_in_inference():
    module = randomised(torch.nn.BatchNorm2d(6, eps=1e-3)).eval()
    assert_same(nn.BatchNorm("norm", 6, eps=1e-3), module, (3, 6, 4, 5), "norm.")


@pytest.mark.parametrize("momentum", [0.1, 0.4])
def test_running_statistics_follow_the_batches_and_serve_inference(momentum):
    """Three steps of training with SGD, then a session that shares parameters and statistics."""
    rng = np.random.default_rng(0)
    batches = [2.0 + 3.0 * rng.normal(size=(4, 3, 5, 5)) for _ in range(4)]
    module = torch.nn.BatchNorm2d(3, momentum=momentum).double()
    descent = torch.optim.SGD(module.parameters(), lr=0.05)
    layer = nn.BatchNorm("bn", 3, momentum=momentum)

    def graph_of(training):
        graph = darner.Graph("norm")
        y = layer(graph.input("x", (4, 3, 5, 5), "f64"), training=training)
        graph.set_outputs([((y - 0.5).tanh() ** 2).sum(), y] if training else [y])
        return graph

    with darner.build_session(graph_of(True), optimizer=darner.optim.SGD(0.05)) as session:
        for batch in batches[:3]:
            descent.zero_grad()
            y = module(torch.from_numpy(batch))
            ((y - 0.5).tanh() ** 2).sum().backward()
            descent.step()
            session.run({"x": batch})
            assert_close(session.read_output_by_index(1), y)
            for name, wanted in module.state_dict().items():
                leaves = session.parameters() if name in ("weight", "bias") else session.state()
                assert_close(leaves[f"bn.{name}"], wanted, name)
        module.eval()
        with darner.build_inference_session(graph_of(False), share=session) as served:
            (found,) = served.run({"x": batches[3]}).values()
            assert_close(found, module(torch.from_numpy(batches[3])))
            assert served.state()["bn.num_batches_tracked"] == 3


def test_names_of_parameters_and_states():
    graph = darner.Graph("norms")
    x = graph.input("x", (2, 4, 4))
    with graph.scope("block"):
        nn.RMSNorm("rms", 4)(x)
        nn.LayerNorm("layer", 4)(x)
        nn.GroupNorm("group", 2, 4)(x)
        nn.BatchNorm("batch", 4)(x)
    assert list(graph.parameters) == [
        "block.rms.weight",
        *(
            f"block.{kind}.{name}"
            for kind in ("layer", "group", "batch")
            for name in ("weight", "bias")
        ),
    ]
    kept = ["running_mean", "running_var", "num_batches_tracked"]
    assert list(graph.states) == [f"block.batch.{name}" for name in kept]
    with darner.build_inference_session(finished(graph)) as session:
        values = {**dict(session.parameters()), **dict(session.state())}
    ones = {name for name, value in values.items() if (value == 1).all()}
    assert ones == {name for name in values if name.endswith(("weight", "running_var"))}
    assert all((values[name] == 0).all() for name in values.keys() - ones)


def finished(graph):
    graph.set_outputs([graph.nodes[len(graph) - 1]])
    return graph


def test_called_twice_a_norm_uses_the_same_gain():
    graph = darner.Graph("twice")
    norm = nn.LayerNorm("norm", 4)
    norm(norm(graph.input("x", (1, 4))))
    assert list(graph.parameters) == ["norm.weight", "norm.bias"]


def test_mistakes_are_refused_in_the_layers_terms():
    graph = darner.Graph("wrong")
    x = graph.input("x", (1, 4, 1))
    for layer in (nn.RMSNorm("n", 4), nn.LayerNorm("n", 4)):
        kind = type(layer).__name__
        with pytest.raises(darner.ShapeError, match=rf"{kind} 'n' takes 4 on axis -1, but x is"):
            layer(x)
    for layer in (nn.GroupNorm("n", 5, 5), nn.BatchNorm("n", 5)):
        kind = type(layer).__name__
        with pytest.raises(darner.ShapeError, match=rf"{kind} 'n' takes 5 on axis 1, but x is"):
            layer(x)
    with pytest.raises(darner.ShapeError, match="trains on at least two elements a channel"):
        nn.BatchNorm("n", 4)(x, training=True)
    with pytest.raises(darner.ArgumentError, match="BatchNorm 'n': channels is a positive whole"):
        nn.BatchNorm("n", 0)
