"""What tests of optimizers share: models, batches, runs of steps, and torch's way along the same gradients."""

import numpy as np
import torch

import darner
from darner import optim
from tests.zoo import llama, mlp, values

MODELS = {"mlp": lambda: mlp(3, dtype="f64"), "llama": lambda: llama(1, dtype="f64")}
STEPS = 10


def train(step, params, batches, state=None):
    """The outputs of every run, and all values after the last."""
    state = {} if state is None else state
    params = {name: value for name, value in params.items() if name in step.parameters}
    outputs = [darner.run(step, batch, params, state=state) for batch in batches]
    return outputs, {**params, **state}


def batches_of(graph, number=STEPS):
    return [values(graph, seed).inputs for seed in range(number)]


def trajectory(graph, batches, make, clip=None):
    """The parameters that an optimizer of torch makes from this graph's gradients."""
    differentiated = darner.value_and_grad(graph)
    start = values(graph).params
    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in start.items()}
    optimizer = make(list(leaves.values()))
    for batch in batches:
        now = {name: leaf.detach().numpy() for name, leaf in leaves.items()}
        _, *gradients = darner.run(differentiated, batch, now)
        for leaf, gradient in zip(leaves.values(), gradients, strict=True):
            leaf.grad = torch.tensor(gradient)
        if clip is not None:
            clip(leaves.values())
        optimizer.step()
    return {name: leaf.detach().numpy() for name, leaf in leaves.items()}


def assert_same(found, expected, rtol=1e-9, atol=1e-12):
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=atol, err_msg=name)


T = torch.optim
PEERS = {
    "sgd": (optim.SGD(0.1), lambda p: T.SGD(p, 0.1)),
    "sgd, momentum": (
        optim.SGD(0.1, momentum=0.9),
        lambda p: T.SGD(p, 0.1, momentum=0.9),
    ),
    "sgd, nesterov": (
        optim.SGD(0.1, momentum=0.9, nesterov=True),
        lambda p: T.SGD(p, 0.1, momentum=0.9, nesterov=True),
    ),
    "sgd, dampening": (
        optim.SGD(0.1, momentum=0.9, dampening=0.3),
        lambda p: T.SGD(p, 0.1, momentum=0.9, dampening=0.3),
    ),
    "sgd, weight decay": (
        optim.SGD(0.1, momentum=0.5, weight_decay=0.02),
        lambda p: T.SGD(p, 0.1, momentum=0.5, weight_decay=0.02),
    ),
    "adam": (optim.Adam(0.01), lambda p: T.Adam(p, 0.01)),
    "adam, other numbers": (
        optim.Adam(0.02, beta1=0.8, beta2=0.95, epsilon=1e-3, weight_decay=0.1),
        lambda p: T.Adam(p, 0.02, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1),
    ),
    "adam, amsgrad": (
        optim.Adam(0.01, beta2=0.5, amsgrad=True),
        lambda p: T.Adam(p, 0.01, betas=(0.9, 0.5), amsgrad=True),
    ),
    "adam, no mean": (
        optim.Adam(0.01, beta1=0.0),
        lambda p: T.Adam(p, 0.01, betas=(0.0, 0.999)),
    ),
    "adamw": (optim.AdamW(0.01), lambda p: T.AdamW(p, 0.01)),
    "adamw, amsgrad": (
        optim.AdamW(0.01, weight_decay=0.3, amsgrad=True),
        lambda p: T.AdamW(p, 0.01, weight_decay=0.3, amsgrad=True),
    ),
    "adafactor": (optim.Adafactor(), lambda p: T.Adafactor(p)),
    "adafactor, other numbers": (
        optim.Adafactor(
            0.05,
            beta2_decay=-0.5,
            epsilon1=1e-3,
            epsilon2=0.1,
            clip_threshold=1.5,
            weight_decay=0.05,
        ),
        lambda p: T.Adafactor(p, 0.05, beta2_decay=-0.5, eps=(1e-3, 0.1), d=1.5, weight_decay=0.05),
    ),
}
