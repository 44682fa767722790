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

from typing import TYPE_CHECKING, NoReturn

from ..graph.habits.hints import missing
from .activations import ACTIVATIONS, activate
from .attention import Attention, MultiHeadAttention, Rope, Sequence
from .base import parameter, scope, state
from .blocks import MLP, SwiGLU, TransformerBlock
from .convs import (
    Conv,
    Conv1d,
    Conv2d,
    Conv3d,
    Convolution,
    ConvTranspose,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from .dropout import Dropout
from .linear import Embedding, Linear, LinearMaker, LoRA, LoRALinear
from .norms import BatchNorm, GroupNorm, LayerNorm, RMSNorm
from .pools import (
    AdaptiveAvgPool,
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AvgPool,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    GlobalAvgPool,
    MaxPool,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
)
from .recurrent import GRU, LSTM, RNN
from .state_space import Mamba

if not TYPE_CHECKING:  # a type checker knows the names itself

    def __getattr__(name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise missing("layer", "darner.nn has no", name, __all__)


__all__ = [
    "ACTIVATIONS",
    "GRU",
    "LSTM",
    "MLP",
    "RNN",
    "AdaptiveAvgPool",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "Attention",
    "AvgPool",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BatchNorm",
    "Conv",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Convolution",
    "Dropout",
    "Embedding",
    "GlobalAvgPool",
    "GroupNorm",
    "LayerNorm",
    "Linear",
    "LinearMaker",
    "LoRA",
    "LoRALinear",
    "Mamba",
    "MaxPool",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MultiHeadAttention",
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
