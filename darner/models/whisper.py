"""Whisper: an encoder of sound, and a decoder that writes what was said.

>>> from darner.models.whisper import Whisper, WhisperConfig
>>> config = WhisperConfig(
...     vocab_size=64, num_mel_bins=8, d_model=32, max_source_positions=20, max_target_positions=16,
...     encoder_layers=1, encoder_attention_heads=4, encoder_ffn_dim=48, decoder_layers=1, decoder_attention_heads=4, decoder_ffn_dim=48)
>>> g = Whisper(config).inference_graph(batch=1, length=5)
>>> {name: leaf.shape for name, leaf in g.inputs.items()}, g.outputs[0].shape
({'features': (1, 8, 40), 'tokens': (1, 5)}, (1, 5, 64))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .. import nn
from ..graph.errors import ShapeError
from ..graph.graph import Graph
from ..graph.node import Node
from ..nn.attention import Sequence
from .base import Config, matrices
from .causal import CausalLM


@dataclass(frozen=True, kw_only=True)
class WhisperConfig(Config):
    """The sizes of a Whisper."""

    model_type: ClassVar[str] = "whisper"
    architecture: ClassVar[str] = "WhisperForConditionalGeneration"

    vocab_size: int = 51865
    num_mel_bins: int = 80
    d_model: int = 384
    encoder_layers: int = 4
    encoder_attention_heads: int = 6
    encoder_ffn_dim: int = 1536
    decoder_layers: int = 4
    decoder_attention_heads: int = 6
    decoder_ffn_dim: int = 1536
    activation_function: str = "gelu"
    max_source_positions: int = 1500
    max_target_positions: int = 448
    init_std: float = 0.02
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    pad_token_id: int | None = 50256
    tie_word_embeddings: bool = True

    @property
    def layers(self) -> int:
        """How many layers it has."""
        return self.encoder_layers + self.decoder_layers

    @property
    def parameter_count(self) -> int:
        """About how many parameters it has."""
        width = self.d_model
        rows = self.vocab_size + self.max_source_positions + self.max_target_positions
        convs = 3 * (self.num_mel_bins + width)
        encoder = self.encoder_layers * matrices(width, self.encoder_ffn_dim)
        decoder = matrices(width, self.decoder_ffn_dim) + 4 * width * width
        return width * (rows + convs) + encoder + self.decoder_layers * decoder

    @property
    def max_position_embeddings(self) -> int:
        """How long a text can be."""
        return self.max_target_positions


@dataclass(frozen=True)
class Whisper(CausalLM):
    """A decoder that attends to what an encoder made of sound.

    ``features`` are log-mel spectra, (batch, num_mel_bins, 2 * max_source_positions). To write a text, run ``encoder_graph`` once: it keeps each
    layer's keys and values of the sound in states, which ``cached_graph`` reads in a session that shares them.
    """

    config: WhisperConfig

    config_class: ClassVar[type[Config]] = WhisperConfig
    frozen: ClassVar[tuple[str, ...]] = ("model.encoder.embed_positions.weight",)

    @property
    def tied(self) -> dict[str, str]:
        """The head is the table of tokens."""
        return {"proj_out.weight": "model.decoder.embed_tokens.weight"}

    @property
    def init(self) -> str:
        """How matrices start."""
        return f"normal({self.config.init_std!r})"

    # ------------------------------------------------------------- parts

    def dropped(self, x: Node) -> Node:
        """``x`` through dropout."""
        return x.dropout(self.config.dropout) if self.config.dropout else x

    def norm(self, name: str) -> nn.LayerNorm:
        """A norm over the width."""
        return nn.LayerNorm(name, self.config.d_model)

    def attention(self, name: str, heads: int, causal: bool) -> nn.Attention:
        """Attention with biases, but for keys."""
        return nn.Attention(
            name,
            self.config.d_model,
            heads,
            bias=(True, False, True, True),
            names=("q_proj", "k_proj", "v_proj", "out_proj"),
            causal=causal,
            dropout=self.config.attention_dropout,
            init=self.init,
            linear=self.linear,
        )

    def feed(self, x: Node, inner: int) -> Node:
        """The layers behind attention, in the scope of their block."""
        config = self.config
        rest: dict[str, Any] = {"init": self.init, "init_bias": "zeros"}
        y = self.norm("final_layer_norm")(x)
        y = nn.activate(
            config.activation_function, self.linear("fc1", config.d_model, inner, **rest)(y)
        )
        y = y.dropout(config.activation_dropout) if config.activation_dropout else y
        return x + self.dropped(self.linear("fc2", inner, config.d_model, **rest)(y))

    def cross(self) -> nn.Attention:
        """Attention of a decoder's layer to the sound."""
        return self.attention("encoder_attn", self.config.decoder_attention_heads, causal=False)

    # ------------------------------------------------------------- encoder and decoder

    def encoded(self, features: Node) -> Node:
        """What the encoder makes of sound: (batch, max_source_positions, width)."""
        config, graph = self.config, features.graph
        width, rows = config.d_model, config.max_source_positions
        with graph.scope("model.encoder"):
            x = nn.Conv1d("conv1", config.num_mel_bins, width, 3, padding=1)(features).gelu()
            x = nn.Conv1d("conv2", width, width, 3, stride=2, padding=1)(x).gelu()
            with graph.scope("embed_positions"):
                places = nn.parameter(graph, "weight", (rows, width), self.dtype, "sinusoids")
            x = self.dropped(x.transpose((0, 2, 1)) + places.stop_gradient())
            for layer in range(config.encoder_layers):
                with graph.scope(f"layers.{layer}"):
                    attend = self.attention(
                        "self_attn", config.encoder_attention_heads, causal=False
                    )
                    x = x + self.dropped(attend(self.norm("self_attn_layer_norm")(x)))
                    x = self.feed(x, config.encoder_ffn_dim)
            return self.norm("layer_norm")(x)

    def decoded(self, tokens: Node, sequence: Sequence, sound: Node | None) -> Node:
        """What the decoder makes of tokens; ``sound`` is the encoder's result, or None where states have what was made of it."""
        config, graph = self.config, tokens.graph
        if sequence.limit > config.max_target_positions:
            raise ShapeError(
                f"this Whisper has {config.max_target_positions} positions, and the text takes {sequence.limit}"
            )
        places = sequence.positions
        if places is None:
            places = graph.arange(int(tokens.shape[-1]), dtype="i32")
        x = self.words(tokens)
        with graph.scope("model.decoder"):
            rows = config.max_target_positions
            x = x + nn.Embedding("embed_positions", rows, config.d_model, self.dtype, self.init)(
                places
            )
            x = self.dropped(x)
            for layer in range(config.decoder_layers):
                with graph.scope(f"layers.{layer}"):
                    attend = self.attention(
                        "self_attn", config.decoder_attention_heads, causal=True
                    )
                    x = x + self.dropped(attend(self.norm("self_attn_layer_norm")(x), sequence))
                    memory = self.memory(graph, int(tokens.shape[0])) if sound is None else sound
                    y = self.cross()(self.norm("encoder_attn_layer_norm")(x), memory=memory)
                    x = self.feed(x + self.dropped(y), config.decoder_ffn_dim)
            return self.norm("layer_norm")(x)

    def memory(self, graph: Graph, batch: int) -> tuple[Node, Node]:
        """The states of a layer that have keys and values of the sound."""
        config = self.config
        heads = config.decoder_attention_heads
        shape = (batch, config.max_source_positions, heads, config.d_model // heads)
        kept = [
            nn.state(graph, f"encoder_attn.memory.{kind}", shape, self.dtype)
            for kind in ("key", "value")
        ]
        return kept[0], kept[1]

    @property
    def words(self) -> nn.Embedding:
        """The table of tokens."""
        config = self.config
        return nn.Embedding(
            "model.decoder.embed_tokens",
            config.vocab_size,
            config.d_model,
            self.dtype,
            self.init,
            config.pad_token_id,
        )

    def hidden(self, tokens: Node, sequence: Sequence) -> Node:
        """What the decoder makes of tokens and of the sound that was encoded last."""
        return self.decoded(tokens, sequence, None)

    def head(self, hidden: Node) -> Node:
        """Scores of every token."""
        return self.words.attend(hidden)

    # ------------------------------------------------------------- graphs

    def _sound(self, graph: Graph, batch: int) -> Node:
        config = self.config
        frames = 2 * config.max_source_positions
        return graph.input("features", (batch, config.num_mel_bins, frames), self.dtype)

    def encoder_graph(self, *, batch: int = 1) -> Graph:
        """``encoded`` (batch, max_source_positions, width) of ``features``; states take what the decoder needs of it."""
        graph = Graph("whisper.encoder")
        hidden = self.encoded(self._sound(graph, batch))
        graph.relabel(hidden, "encoded")
        for layer in range(self.config.decoder_layers):
            with graph.scope(f"model.decoder.layers.{layer}"):
                made = self.cross().remembered(hidden)
                for state, value in zip(self.memory(graph, batch), made, strict=True):
                    graph.set_update(state, value)
        graph.set_outputs([hidden])
        return graph

    def inference_graph(self, *, batch: int = 1, length: int = 64, **rest: Any) -> Graph:
        """``logits`` (batch, length, vocabulary) of ``tokens`` and ``features``."""
        self.refuse(rest)
        graph = Graph("whisper.inference")
        sound = self.encoded(self._sound(graph, batch))
        tokens = graph.input("tokens", (batch, length), "i32")
        logits = self.head(self.decoded(tokens, Sequence(length), sound))
        graph.relabel(logits, "logits")
        graph.set_outputs([logits])
        return graph

    def training_graph(self, *, batch: int = 1, length: int = 64, **rest: Any) -> Graph:
        """The mean cross-entropy of ``labels`` (batch, length), the tokens that follow ``tokens``."""
        self.refuse(rest)
        graph = Graph("whisper.training")
        sound = self.encoded(self._sound(graph, batch))
        tokens = graph.input("tokens", (batch, length), "i32")
        labels = graph.input("labels", (batch, length), "i32")
        logits = self.head(self.decoded(tokens, Sequence(length), sound))
        graph.set_outputs([logits.cross_entropy_loss(labels, label="loss")])
        return graph
