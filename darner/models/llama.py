"""Llama and its kin: SmolLM2, Mistral, Qwen2, Qwen3, Phi-3, Gemma 2 and 3.

They are one architecture. What tells them apart is in their configurations, and in the few properties that a class overrides.

    >>> from darner.models.llama import Llama, LlamaConfig
    >>> config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    >>> g = Llama(config).inference_graph(batch=1, length=10)
    >>> g.outputs[0].shape
    (1, 10, 64)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from .. import nn
from ..graph.errors import ArgumentError
from ..graph.node import Node
from ..io.reading import shown
from ..nn.attention import Sequence
from .base import Config
from .causal import CausalLM
from .fields import as_table
from .rope import check_rope, make_rope, rope_parameters

SLIDING = "sliding_attention"
FULL = "full_attention"


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(Config):
    """The sizes of a Llama; SmolLM2 is one."""

    model_type: ClassVar[str] = "llama"
    architecture: ClassVar[str] = "LlamaForCausalLM"
    default_theta: ClassVar[float] = 10000.0

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    pad_token_id: int | None = None
    tie_word_embeddings: bool = False
    rope_parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0}, hash=False
    )
    attention_bias: bool = False
    attention_dropout: float = 0.0
    mlp_bias: bool = False
    sliding_window: int | None = None
    layer_types: tuple[str, ...] | None = None

    @classmethod
    def translated(cls, found: dict[str, Any]) -> dict[str, Any]:
        """Older spellings of rotary positions and activations as the newer ones."""
        found["rope_parameters"] = rope_parameters(found, cls.default_theta)
        if "hidden_activation" in found:
            given = found.pop("hidden_activation")
            found["hidden_act"] = "gelu_pytorch_tanh" if given is None else given
        return found

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ArgumentError(
                f"num_attention_heads {self.num_attention_heads} do not divide the hidden_size {self.hidden_size}",
                hint="a head_dim says how wide they are",
            )
        if self.layer_types is not None:
            if len(self.layer_types) < self.num_hidden_layers:
                raise ArgumentError(
                    f"layer_types has {len(self.layer_types)} kinds, for {self.num_hidden_layers} layers"
                )
            wrong = [kind for kind in self.layer_types if kind not in (FULL, SLIDING)]
            if wrong:
                raise ArgumentError(
                    f"layer_types are '{FULL}' or '{SLIDING}', got {shown(wrong[0])}"
                )
        self.check_rope()

    def check_rope(self) -> None:
        """Refuse rotary positions that cannot be computed."""
        check_rope(self.rope_parameters, self.width_of_head)

    @property
    def layers(self) -> int:
        """How many layers it has."""
        return self.num_hidden_layers

    @property
    def parameter_count(self) -> int:
        """About how many parameters it has."""
        heads = self.num_attention_heads
        both = heads + (self.num_key_value_heads or heads)
        layer = 2 * both * self.width_of_head + 3 * self.intermediate_size + 2
        tables = self.vocab_size * (1 if self.tie_word_embeddings else 2)
        return self.hidden_size * (tables + self.num_hidden_layers * layer)

    @property
    def width_of_head(self) -> int:
        """Of queries, keys and values."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def layer_type(self, layer: int) -> str:
        """Whether a layer sees everything before, or a window."""
        if self.layer_types is not None:
            return self.layer_types[layer]
        return FULL if self.sliding_window is None else SLIDING

    def window(self, layer: int) -> int | None:
        """How many keys a layer sees, where that is limited."""
        return self.sliding_window if self.layer_type(layer) == SLIDING else None


@dataclass(frozen=True)
class Llama(CausalLM):
    """A decoder of RMS norms, rotary positions, shared key heads and gated layers.

    Attributes:
        body: the scope of all but the head; another one where it is the text part of a larger model.
    """

    config: LlamaConfig
    body: str = "model"

    config_class: ClassVar[type[Config]] = LlamaConfig
    prefix: ClassVar[str] = "model."
    ignored: ClassVar[tuple[str, ...]] = ("*.rotary_emb.inv_freq",)
    shifted: ClassVar[bool] = False
    """Whether norms multiply by 1 + weight."""
    normed_heads: ClassVar[bool] = False
    """Whether each head's queries and keys are normalised."""
    biased: ClassVar[tuple[bool, bool, bool, bool] | None] = None
    """Which of the matrices of attention have a bias, where the configuration does not say."""
    attention_names: ClassVar[tuple[str, ...]] = ("q_proj", "k_proj", "v_proj", "o_proj")
    mlp_names: ClassVar[tuple[str, ...]] = ("gate_proj", "up_proj", "down_proj")

    @property
    def tied(self) -> dict[str, str]:
        """The head, where it is the table of tokens."""
        own = {"lm_head.weight": f"{self.body}.embed_tokens.weight"}
        return own if self.config.tie_word_embeddings else {}

    @property
    def init(self) -> str:
        """How matrices start."""
        return f"normal({self.config.initializer_range!r})"

    @property
    def words(self) -> nn.Embedding:
        """The table of tokens."""
        config = self.config
        return nn.Embedding(
            f"{self.body}.embed_tokens",
            config.vocab_size,
            config.hidden_size,
            self.dtype,
            self.init,
            config.pad_token_id,
        )

    def embedded(self, tokens: Node) -> Node:
        """What enters the first layer."""
        return self.words(tokens)

    def rope(self, layer: int, limit: int) -> nn.Rope:
        """The rotary positions of a layer."""
        config = self.config
        return make_rope(
            config.rope_parameters,
            config.width_of_head,
            max_positions=config.max_position_embeddings,
            limit=limit,
        )

    def norm(self, name: str) -> nn.RMSNorm:
        """A norm over the width."""
        config = self.config
        return nn.RMSNorm(name, config.hidden_size, config.rms_norm_eps, self.shifted)

    def attention(self, layer: int, limit: int) -> nn.Attention:
        """The attention of a layer."""
        config = self.config
        return nn.Attention(
            "self_attn",
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.width_of_head,
            bias=config.attention_bias if self.biased is None else self.biased,
            names=self.attention_names,
            rope=self.rope(layer, limit),
            norm=config.rms_norm_eps if self.normed_heads else None,
            shifted=self.shifted,
            window=config.window(layer),
            dropout=config.attention_dropout,
            init=self.init,
            linear=self.linear,
        )

    def block(self, layer: int, limit: int) -> nn.TransformerBlock:
        """A layer."""
        config = self.config
        return nn.TransformerBlock(
            f"{self.body}.layers.{layer}",
            self.attention(layer, limit),
            nn.SwiGLU(
                "mlp",
                config.hidden_size,
                config.intermediate_size,
                config.mlp_bias,
                config.hidden_act,
                self.mlp_names,
                self.init,
                self.linear,
            ),
            before=(self.norm("input_layernorm"), self.norm("post_attention_layernorm")),
        )

    def hidden(self, tokens: Node, sequence: Sequence) -> Node:
        """What the last layer makes of tokens."""
        return self.transformed(self.embedded(tokens), sequence)

    def transformed(self, x: Node, sequence: Sequence) -> Node:
        """What the last layer makes of what enters the first, (batch, length, width)."""
        for layer in range(self.config.num_hidden_layers):
            x = self.block(layer, sequence.limit)(x, sequence)
        return self.norm(f"{self.body}.norm")(x)

    def head(self, hidden: Node) -> Node:
        """Scores of every token."""
        config = self.config
        if config.tie_word_embeddings:
            return self.words.attend(hidden)
        return nn.Linear(
            "lm_head", config.hidden_size, config.vocab_size, bias=False, init=self.init
        )(hidden)


@dataclass(frozen=True, kw_only=True)
class MistralConfig(LlamaConfig):
    """The sizes of a Mistral, whose layers see a window."""

    model_type: ClassVar[str] = "mistral"
    architecture: ClassVar[str] = "MistralForCausalLM"
    max_position_embeddings: int = 131072
    sliding_window: int | None = 4096


@dataclass(frozen=True)
class Mistral(Llama):
    """A Llama that sees a window."""

    config_class: ClassVar[type[Config]] = MistralConfig


@dataclass(frozen=True, kw_only=True)
class Qwen2Config(LlamaConfig):
    """The sizes of a Qwen2; later layers see a window where ``use_sliding_window`` says so."""

    model_type: ClassVar[str] = "qwen2"
    architecture: ClassVar[str] = "Qwen2ForCausalLM"
    max_position_embeddings: int = 32768
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28

    def layer_type(self, layer: int) -> str:
        """Whether a layer sees everything before, or a window."""
        if self.layer_types is not None:
            return self.layer_types[layer]
        return SLIDING if self.use_sliding_window and layer >= self.max_window_layers else FULL


@dataclass(frozen=True)
class Qwen2(Llama):
    """A Llama with biases of queries, keys and values."""

    config_class: ClassVar[type[Config]] = Qwen2Config
    biased: ClassVar[tuple[bool, bool, bool, bool] | None] = (True, True, True, False)


@dataclass(frozen=True, kw_only=True)
class Qwen3Config(Qwen2Config):
    """The sizes of a Qwen3."""

    model_type: ClassVar[str] = "qwen3"
    architecture: ClassVar[str] = "Qwen3ForCausalLM"
    head_dim: int | None = 128


@dataclass(frozen=True)
class Qwen3(Llama):
    """A Llama whose heads normalise queries and keys."""

    config_class: ClassVar[type[Config]] = Qwen3Config
    normed_heads: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Phi3Config(LlamaConfig):
    """The sizes of a Phi-3."""

    model_type: ClassVar[str] = "phi3"
    architecture: ClassVar[str] = "Phi3ForCausalLM"
    max_position_embeddings: int = 4096
    original_max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    pad_token_id: int | None = 32000
    resid_pdrop: float = 0.0
    embd_pdrop: float = 0.0

    @classmethod
    def translated(cls, found: dict[str, Any]) -> dict[str, Any]:
        """``su`` was the first name of longrope."""
        found = super().translated(found)
        if found["rope_parameters"]["rope_type"] == "su":
            found["rope_parameters"]["rope_type"] = "longrope"
        return found


@dataclass(frozen=True)
class Phi3(Llama):
    """A Llama whose checkpoints have one matrix for queries, keys and values, and one for gate and up."""

    config: Phi3Config

    config_class: ClassVar[type[Config]] = Phi3Config
    attention_names: ClassVar[tuple[str, ...]] = ("qkv_proj", "o_proj")
    mlp_names: ClassVar[tuple[str, ...]] = ("gate_up_proj", "down_proj")

    def rope(self, layer: int, limit: int) -> nn.Rope:
        """Rotary positions, stretched beyond the length of training."""
        config = self.config
        return make_rope(
            config.rope_parameters,
            config.width_of_head,
            max_positions=config.max_position_embeddings,
            original_positions=config.original_max_position_embeddings,
            limit=limit,
        )

    def embedded(self, tokens: Node) -> Node:
        """What enters the first layer."""
        x = super().embedded(tokens)
        return x.dropout(self.config.embd_pdrop) if self.config.embd_pdrop else x

    def block(self, layer: int, limit: int) -> nn.TransformerBlock:
        """A layer."""
        return replace(super().block(layer, limit), dropout=self.config.resid_pdrop)


@dataclass(frozen=True, kw_only=True)
class Gemma2Config(LlamaConfig):
    """The sizes of a Gemma 2: every other layer sees a window, and scores are capped."""

    model_type: ClassVar[str] = "gemma2"
    architecture: ClassVar[str] = "Gemma2ForCausalLM"
    head_dim: int | None = 256
    hidden_act: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 8192
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = True
    query_pre_attn_scalar: int = 256
    sliding_window: int | None = 4096
    final_logit_softcapping: float | None = 30.0
    attn_logit_softcapping: float | None = 50.0

    def layer_type(self, layer: int) -> str:
        """Windows first, in turns."""
        if self.layer_types is not None:
            return self.layer_types[layer]
        return FULL if layer % 2 else SLIDING

    def to_hf(self) -> dict[str, Any]:
        """What ``config.json`` says of it, where the activation has another name."""
        found = super().to_hf()
        return {**found, "hidden_activation": found.pop("hidden_act")}


@dataclass(frozen=True)
class Gemma2(Llama):
    """A decoder with norms before and behind, capped scores, and a table scaled by the root of its width."""

    config: Gemma2Config

    config_class: ClassVar[type[Config]] = Gemma2Config
    shifted: ClassVar[bool] = True

    def embedded(self, tokens: Node) -> Node:
        """What enters the first layer."""
        return super().embedded(tokens) * float(self.config.hidden_size) ** 0.5

    def attention(self, layer: int, limit: int) -> nn.Attention:
        """The attention of a layer."""
        config = self.config
        return replace(
            super().attention(layer, limit),
            scale=float(config.query_pre_attn_scalar) ** -0.5,
            softcap=config.attn_logit_softcapping,
        )

    def block(self, layer: int, limit: int) -> nn.TransformerBlock:
        """A layer."""
        return replace(
            super().block(layer, limit),
            before=(self.norm("input_layernorm"), self.norm("pre_feedforward_layernorm")),
            after=(self.norm("post_attention_layernorm"), self.norm("post_feedforward_layernorm")),
        )

    def head(self, hidden: Node) -> Node:
        """Scores of every token, capped."""
        scores, cap = super().head(hidden), self.config.final_logit_softcapping
        return scores if cap is None else cap * (scores / cap).tanh()


@dataclass(frozen=True, kw_only=True)
class Gemma3Config(Gemma2Config):
    """The sizes of the text part of a Gemma 3: five layers with a window, then one without."""

    model_type: ClassVar[str] = "gemma3_text"
    architecture: ClassVar[str] = "Gemma3ForCausalLM"
    max_position_embeddings: int = 131072
    final_logit_softcapping: float | None = None
    attn_logit_softcapping: float | None = None
    sliding_window_pattern: int = 6
    rope_parameters: Mapping[str, Any] = field(
        default_factory=lambda: {
            FULL: {"rope_type": "default", "rope_theta": 1000000.0},
            SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
        },
        hash=False,
    )

    @classmethod
    def translated(cls, found: dict[str, Any]) -> dict[str, Any]:
        """Rotary positions are those of the kind of layer."""
        given = as_table("rope_parameters", found.get("rope_parameters"))
        local = found.pop("rope_local_base_freq", None)
        local = 10000.0 if local is None else local
        if FULL in given or SLIDING in given:
            kinds = {
                FULL: rope_parameters({"rope_parameters": given.get(FULL)}, 1000000.0),
                SLIDING: rope_parameters({"rope_parameters": given.get(SLIDING)}, local),
            }
        else:
            plain = {"rope_type": "default", "rope_theta": local}
            kinds = {FULL: rope_parameters(found, 1000000.0), SLIDING: plain}
        rest = {name: value for name, value in found.items() if name != "rope_parameters"}
        return {**super().translated(rest), "rope_parameters": kinds}

    def check_rope(self) -> None:
        """Refuse rotary positions that cannot be computed, of any kind of layer."""
        for kind, parameters in self.rope_parameters.items():
            check_rope(
                as_table(f"rope_parameters of {shown(kind)}", parameters), self.width_of_head
            )

    def layer_type(self, layer: int) -> str:
        """Every sixth layer sees everything."""
        if self.layer_types is not None:
            return self.layer_types[layer]
        return SLIDING if (layer + 1) % self.sliding_window_pattern else FULL

    def to_hf(self) -> dict[str, Any]:
        """What ``config.json`` says of it."""
        found = super().to_hf()
        found["layer_types"] = [self.layer_type(i) for i in range(self.num_hidden_layers)]
        return found


@dataclass(frozen=True)
class Gemma3(Gemma2):
    """A Gemma 2 whose heads normalise queries and keys, with rotary positions of two kinds."""

    config: Gemma3Config

    config_class: ClassVar[type[Config]] = Gemma3Config
    normed_heads: ClassVar[bool] = True

    def rope(self, layer: int, limit: int) -> nn.Rope:
        """Those of the layer's kind."""
        config = self.config
        kind = config.layer_type(layer)
        if kind not in config.rope_parameters:
            raise ArgumentError(f"rope_parameters have no '{kind}', which layer {layer} is")
        return make_rope(
            config.rope_parameters[kind],
            config.width_of_head,
            max_positions=config.max_position_embeddings,
            limit=limit,
        )
