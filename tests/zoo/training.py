"""Whole steps of training: a model's loss, its gradients, and the updates of its parameters."""

import darner
from darner import Graph, Node

from .mlp import mlp
from .writer import Spelling


def step(graph: Graph, *, optimizer: str = "adam") -> Graph:
    """One step of training of any model with a loss: its output is the loss, and its parameters are updated."""
    full = darner.value_and_grad(graph)
    loss, *gradients = full.outputs
    update = {"adam": _adam, "sgd": _sgd}[optimizer](full)
    for leaf, gradient in zip(full.parameters.values(), gradients, strict=True):
        full.set_update(leaf, update(leaf, gradient))
    full.set_outputs([loss])
    return full


def _state(leaf: Node, name: str) -> Node:
    return leaf.graph.state(f"{leaf.name}.{name}", leaf.shape, leaf.dtype)


def _sgd(graph: Graph, rate: float = 0.1, momentum: float = 0.9):
    """Descent with momentum."""

    def update(leaf: Node, gradient: Node) -> Node:
        velocity = _state(leaf, "velocity")
        following = momentum * velocity + gradient
        graph.set_update(velocity, following)
        return leaf - rate * following

    return update


def _adam(graph: Graph, rate: float = 0.01, beta1=0.9, beta2=0.999, eps: float = 1e-8):
    """Adam with its corrections of the first steps, which a state counts."""
    dtype = next(iter(graph.parameters.values())).dtype
    counted = graph.state("step", (), dtype)
    count = counted + 1.0
    graph.set_update(counted, count)
    first_share = 1.0 - graph.constant(beta1, dtype=dtype).pow(count)
    second_share = 1.0 - graph.constant(beta2, dtype=dtype).pow(count)

    def update(leaf: Node, gradient: Node) -> Node:
        mean, variance = _state(leaf, "mean"), _state(leaf, "variance")
        next_mean = beta1 * mean + (1 - beta1) * gradient
        next_variance = beta2 * variance + (1 - beta2) * gradient * gradient
        graph.set_update(mean, next_mean)
        graph.set_update(variance, next_variance)
        corrected = (next_variance / second_share).sqrt() + eps
        return leaf - rate * (next_mean / first_share) / corrected

    return update


def mlp_step(*, optimizer: str = "adam", spelling: Spelling = "composite", **sizes) -> Graph:
    """A step of training of the perceptron; ``sizes`` are those of ``mlp``."""
    return step(mlp(spelling=spelling, **sizes), optimizer=optimizer)
