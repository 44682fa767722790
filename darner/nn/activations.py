"""Activations by the names that configurations use."""

from __future__ import annotations

from collections.abc import Callable

from ..graph.errors import ArgumentError, nearest
from ..graph.node import Node

ACTIVATIONS: dict[str, Callable[[Node], Node]] = {
    "gelu": lambda x: x.gelu(),
    "gelu_fast": lambda x: x.gelu_approx(),
    "gelu_new": lambda x: x.gelu_approx(),
    "gelu_pytorch_tanh": lambda x: x.gelu_approx(),
    "identity": lambda x: x,
    "mish": lambda x: x.mish(),
    "quick_gelu": lambda x: x.quick_gelu(),
    "relu": lambda x: x.relu(),
    "sigmoid": lambda x: x.sigmoid(),
    "silu": lambda x: x.silu(),
    "swish": lambda x: x.silu(),
    "tanh": lambda x: x.tanh(),
}
"""``gelu`` is exact; ``gelu_new``, ``gelu_fast`` and ``gelu_pytorch_tanh`` are the form with tanh."""


def activate(name: str, x: Node) -> Node:
    """``x`` through the activation of a name.

    >>> import darner
    >>> activate("swish", darner.Graph().input("x", (2,))).op.name
    'silu'
    """
    if name not in ACTIVATIONS:
        raise ArgumentError(
            f"there is no activation '{name}'", hint=nearest(name, ACTIVATIONS, "there are")
        )
    return ACTIVATIONS[name](x)
