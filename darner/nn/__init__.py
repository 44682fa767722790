"""Layers: plain dataclasses that add nodes to a graph, with the parameter names HuggingFace uses.

    >>> import darner
    >>> from darner import nn
    >>> g = darner.Graph("classifier")
    >>> x = g.input("x", (32, 784))
    >>> logits = nn.Linear("fc2", 128, 10)(nn.Linear("fc1", 784, 128)(x).relu())
    >>> list(g.parameters)
    ['fc1.weight', 'fc1.bias', 'fc2.weight', 'fc2.bias']

Parameters say how they start, so that a session needs no ``init``; it depends on the session's ``seed`` and their names.
"""

from .activations import ACTIVATIONS, activate
from .attention import Attention, Rope, Sequence
from .base import parameter, scope, state
from .blocks import MLP, SwiGLU, TransformerBlock
from .linear import Embedding, Linear, LinearMaker, LoRA, LoRALinear
from .norms import BatchNorm, GroupNorm, LayerNorm, RMSNorm

__all__ = [
    "ACTIVATIONS",
    "MLP",
    "Attention",
    "BatchNorm",
    "Embedding",
    "GroupNorm",
    "LayerNorm",
    "Linear",
    "LinearMaker",
    "LoRA",
    "LoRALinear",
    "RMSNorm",
    "Rope",
    "Sequence",
    "SwiGLU",
    "TransformerBlock",
    "activate",
    "parameter",
    "scope",
    "state",
]
