"""A layer in darner and the module of PyTorch that it stands for, with the same weights: values and every gradient."""

import numpy as np
import torch

import darner

TOLERANCE = 1e-10
"""Of float64, relative to the largest value."""

SIZES = {1: (9,), 2: (8, 9), 3: (5, 6, 4)}
"""Spatial sizes by the number of axes."""


def randomised(module, seed=0):
    """The module in float64, its parameters the same numbers every time, none of them 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.2 + 0.4 * torch.randn(parameter.shape, generator=generator))
    return module


def assert_close(found, wanted, name="the result"):
    wanted = wanted.detach().numpy()
    assert found.shape == wanted.shape, name
    scale = float(np.abs(wanted).max())
    assert scale > 0, f"the test says nothing about {name}"
    np.testing.assert_allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE * scale, err_msg=name)


def graph_of(layer, shape, cotangent):
    """The layer in the middle of a graph, the loss a random functional of its result; ``x`` is a parameter, so as to have a gradient."""
    graph = darner.Graph("layer")
    x = graph.parameter("x", shape, "f64")
    y = layer(x.tanh() * 2.0)
    loss = (y.sin() * graph.constant(cotangent)).sum(label="loss")
    graph.set_outputs([loss, y])
    return graph


def assert_same(layer, module, shape, prefix="", seed=0):
    """Compare values and the gradients of operand and parameters; ``prefix`` stands before the module's names in the graph."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=shape)
    x = torch.from_numpy(values).requires_grad_()
    y = module(x.tanh() * 2.0)
    cotangent = rng.normal(size=tuple(y.shape))
    (y.sin() * torch.from_numpy(cotangent)).sum().backward()
    weights = {prefix + name: value for name, value in module.named_parameters()}
    graph = graph_of(layer, shape, cotangent)
    assert set(graph.parameters) == {"x", *weights}
    with darner.build_session(graph) as session:
        session.parameters()["x"] = values
        session.parameters().update({name: value.detach() for name, value in weights.items()})
        session.step()
        assert_close(session.read_output_by_index(1), y)
        gradients = session.gradients()
    for name, leaf in {"x": x, **weights}.items():
        assert_close(gradients[name], leaf.grad, f"the gradient of {name}")
