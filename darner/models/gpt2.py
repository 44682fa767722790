"""GPT-2: learned positions, layer norms, one matrix for queries, keys and values.

>>> from darner.models.gpt2 import GPT2, GPT2Config
>>> g = GPT2(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4)).training_graph(batch=2, length=16)
>>> list(g.parameters)[:4]
['transformer.wte.weight', 'transformer.wpe.weight', 'transformer.h.0.ln_1.weight', 'transformer.h.0.ln_1.bias']
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from .. import nn
from ..graph.errors import ShapeError
from ..graph.node import Node
from ..nn.attention import Sequence
from .base import Config, matrices
from .causal import CausalLM


@dataclass(frozen=True, kw_only=True)
class GPT2Config(Config):
    """The sizes of a GPT-2; ``bias=False`` leaves every bias out, as nanoGPT does."""

    model_type: ClassVar[str] = "gpt2"
    architecture: ClassVar[str] = "GPT2LMHeadModel"

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    tie_word_embeddings: bool = True
    bias: bool = True

    @property
    def layers(self) -> int:
        """How many layers it has."""
        return self.n_layer

    @property
    def parameter_count(self) -> int:
        """About how many parameters it has."""
        tables = self.vocab_size * (1 if self.tie_word_embeddings else 2) + self.n_positions
        layer = matrices(self.n_embd, self.n_inner or 4 * self.n_embd)
        return tables * self.n_embd + self.n_layer * layer


@dataclass(frozen=True)
class GPT2(CausalLM):
    """A decoder with learned positions."""

    config: GPT2Config

    config_class: ClassVar[type[Config]] = GPT2Config
    prefix: ClassVar[str] = "transformer."
    ignored: ClassVar[tuple[str, ...]] = ("*.attn.bias", "*.attn.masked_bias")

    @property
    def tied(self) -> dict[str, str]:
        """The head, where it is the table of tokens."""
        own = {"lm_head.weight": "transformer.wte.weight"}
        return own if self.config.tie_word_embeddings else {}

    @property
    def init(self) -> str:
        """How matrices start."""
        return f"normal({self.config.initializer_range!r})"

    def table(self, name: str, rows: int) -> nn.Embedding:
        """A table of rows of the width."""
        return nn.Embedding(f"transformer.{name}", rows, self.config.n_embd, self.dtype, self.init)

    def norm(self, name: str) -> nn.LayerNorm:
        """A norm over the width."""
        config = self.config
        return nn.LayerNorm(name, config.n_embd, config.layer_norm_epsilon, config.bias)

    def added(self, name: str, inputs: int, outputs: int, **rest: object) -> nn.Linear:
        """A matrix of a block; the last of attention and of the MLP start smaller the deeper the model is."""
        config = self.config
        small = config.initializer_range / math.sqrt(2 * config.n_layer)
        start = f"normal({small!r})" if name == "c_proj" else self.init
        return self.linear(name, inputs, outputs, **{**rest, "init": start, "init_bias": "zeros"})

    def block(self, layer: int) -> nn.TransformerBlock:
        """A layer."""
        config = self.config
        size = config.n_embd // config.n_head
        scale = size**-0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            scale /= layer + 1
        return nn.TransformerBlock(
            f"transformer.h.{layer}",
            nn.Attention(
                "attn",
                config.n_embd,
                config.n_head,
                bias=config.bias,
                names=("c_attn", "c_proj"),
                scale=scale,
                dropout=config.attn_pdrop,
                stored="in_out",
                linear=self.added,
            ),
            nn.MLP(
                "mlp",
                config.n_embd,
                config.n_inner or 4 * config.n_embd,
                config.activation_function,
                config.bias,
                names=("c_fc", "c_proj"),
                stored="in_out",
                linear=self.added,
            ),
            before=(self.norm("ln_1"), self.norm("ln_2")),
            dropout=config.resid_pdrop,
        )

    def hidden(self, tokens: Node, sequence: Sequence) -> Node:
        """What the last layer makes of tokens."""
        config, graph = self.config, tokens.graph
        if sequence.limit > config.n_positions:
            raise ShapeError(
                f"this GPT-2 has {config.n_positions} positions, and the text takes {sequence.limit}"
            )
        places = sequence.positions
        if places is None:
            places = graph.arange(int(tokens.shape[-1]), dtype="i32")
        x = self.table("wte", config.vocab_size)(tokens)
        x = x + self.table("wpe", config.n_positions)(places)
        x = x.dropout(config.embd_pdrop) if config.embd_pdrop else x
        for layer in range(config.n_layer):
            x = self.block(layer)(x, sequence)
        return self.norm("transformer.ln_f")(x)

    def head(self, hidden: Node) -> Node:
        """Scores of every token."""
        config = self.config
        if config.tie_word_embeddings:
            return self.table("wte", config.vocab_size).attend(hidden)
        return nn.Linear("lm_head", config.n_embd, config.vocab_size, bias=False, init=self.init)(
            hidden
        )
