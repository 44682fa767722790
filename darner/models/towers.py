"""Towers: the layers that read images, and texts, in CLIP and SigLIP."""

from __future__ import annotations

from dataclasses import dataclass

from .. import nn
from ..graph.node import Node
from ..nn.linear import LinearMaker
from .base import Config, matrices


@dataclass(frozen=True, kw_only=True)
class TowerConfig(Config):
    """The sizes of a tower."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int = 12
    num_attention_heads: int
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-5
    attention_dropout: float = 0.0
    initializer_range: float = 0.02

    @property
    def layers(self) -> int:
        """How many layers it has."""
        return self.num_hidden_layers

    @property
    def parameter_count(self) -> int:
        """About how many parameters its layers have."""
        return self.num_hidden_layers * matrices(self.hidden_size, self.intermediate_size)


def encoded(
    config: TowerConfig,
    x: Node,
    linear: LinearMaker,
    *,
    causal: bool = False,
    training: bool = False,
) -> Node:
    """``x`` (batch, tokens, width) through the layers of a tower, whose matrices ``linear`` makes.

    Attention is computed whole where there is no dropout in the middle of it.
    """
    width = config.hidden_size
    attention = nn.Attention(
        "self_attn",
        width,
        config.num_attention_heads,
        bias=True,
        names=("q_proj", "k_proj", "v_proj", "out_proj"),
        causal=causal,
        dropout=config.attention_dropout if training else 0.0,
        linear=linear,
    )
    mlp = nn.MLP("mlp", width, config.intermediate_size, config.hidden_act, linear=linear)
    norms = [nn.LayerNorm(f"layer_norm{i}", width, config.layer_norm_eps) for i in (1, 2)]
    for layer in range(config.num_hidden_layers):
        name = f"encoder.layers.{layer}"
        x = nn.TransformerBlock(name, attention, mlp, before=(norms[0], norms[1]))(x)
    return x
