"""A model in darner and in PyTorch, with the same weights: loss and every gradient, in float64."""

import numpy as np
import torch

import darner
from darner.lower.roles import whole_ops
from tests.cpu.running import compiled, run_program


def random_weights(graph, seed=0):
    """Weights for every parameter: about the size at which training starts, vectors around 1."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, node in graph.parameters.items():
        shape = tuple(int(size) for size in node.shape)
        if len(shape) == 1:
            found[name] = rng.uniform(0.5, 1.5, shape)
        else:
            found[name] = rng.normal(0, 1 / np.sqrt(np.prod(shape[1:])), shape)
    return found


def assert_same_gradients(graph, inputs, weights, reference, wrt=None):
    """Compare loss and gradients, by the reference and by native code, with ``reference(inputs, weights)``, a loss in PyTorch, to 1e-9."""
    wrt = list(weights) if wrt is None else wrt
    leaves = {name: torch.from_numpy(value).requires_grad_() for name, value in weights.items()}
    given = {name: torch.from_numpy(np.asarray(value)) for name, value in inputs.items()}
    for name in wrt:
        if name in given:
            given[name].requires_grad_()
    loss = reference(given, leaves)
    wanted = torch.autograd.grad(loss, [{**given, **leaves}[name] for name in wrt])
    result = darner.value_and_grad(graph, wrt).verify()
    program = compiled(result, threads=2, whole=whole_ops())
    by_native_code = run_program(program, inputs, weights)
    program.close()
    for value, *found in (darner.run(result, inputs, weights), by_native_code):
        np.testing.assert_allclose(value.item(), loss.item(), rtol=1e-9)
        for name, ours, theirs in zip(wrt, found[-len(wrt) :], wanted, strict=True):
            expected = theirs.numpy()
            scale = np.abs(expected).max()
            assert scale > 0, f"the test says nothing about {name}"
            np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-9 * scale, err_msg=name)
