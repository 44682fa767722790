"""ViT: an image as a row of patches, read by a transformer.

>>> from darner.models.vit import ViT, ViTConfig
>>> model = ViT(ViTConfig(num_labels=1000))
>>> g = model.inference_graph(batch=1)
>>> g.outputs[0].shape, sum(node.type.size for node in g.parameters.values())
((1, 1000), 86567656)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .. import nn
from ..graph.graph import Graph
from ..graph.node import Node
from .base import Config, LabelledConfig, Model, matrices
from .images import PatchesConfig, finish, finish_training, in_a_row, pair, pixels


@dataclass(frozen=True, kw_only=True)
class ViTConfig(LabelledConfig, PatchesConfig):
    """The sizes of a ViT."""

    model_type: ClassVar[str] = "vit"
    architecture: ClassVar[str] = "ViTForImageClassification"

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    qkv_bias: bool = True

    @property
    def layers(self) -> int:
        """How many layers it has."""
        return self.num_hidden_layers

    @property
    def parameter_count(self) -> int:
        """About how many parameters it has."""
        layer = matrices(self.hidden_size, self.intermediate_size)
        rows = self.patch_inputs + self.patches + self.num_labels
        return self.hidden_size * rows + self.num_hidden_layers * layer


@dataclass(frozen=True)
class ViT(Model):
    """A ViT with a classifier on what becomes of its class token."""

    config: ViTConfig

    config_class: ClassVar[type[Config]] = ViTConfig
    prefix: ClassVar[str] = "vit."
    ignored: ClassVar[tuple[str, ...]] = ("*pooler.dense.*", "*embeddings.mask_token")

    def inference_graph(self, batch: int = 1) -> Graph:
        """``pixels`` (batch, channels, height, width) to ``logits`` (batch, classes)."""
        graph = Graph(f"{self.config.model_type}.inference")
        return finish(graph, logits=self._logits(self.hidden(graph, batch)))

    def features_graph(self, batch: int = 1) -> Graph:
        """``pixels`` to ``last_hidden_state`` (batch, 1 + patches, width): the class token, then the patches."""
        graph = Graph(f"{self.config.model_type}.features")
        return finish(graph, last_hidden_state=self.hidden(graph, batch))

    def training_graph(self, batch: int = 1) -> Graph:
        """``pixels`` and ``labels`` (batch,) to the loss and the logits."""
        graph = Graph(f"{self.config.model_type}.training")
        logits = self._logits(self.hidden(graph, batch, training=True))
        return finish_training(graph, logits, batch)

    @property
    def init(self) -> str:
        """How matrices start."""
        return f"normal({self.config.initializer_range!r})"

    def norm(self, name: str) -> nn.LayerNorm:
        """A norm over the width."""
        return nn.LayerNorm(name, self.config.hidden_size, self.config.layer_norm_eps)

    def block(self, layer: int, training: bool) -> nn.TransformerBlock:
        """A layer; attention is computed whole where there is no dropout in the middle of it."""
        config = self.config
        biased = config.qkv_bias
        return nn.TransformerBlock(
            f"encoder.layer.{layer}",
            nn.Attention(
                "attention",
                config.hidden_size,
                config.num_attention_heads,
                bias=(biased, biased, biased, True),
                names=("attention.query", "attention.key", "attention.value", "output.dense"),
                causal=False,
                dropout=config.attention_probs_dropout_prob if training else 0.0,
                init=self.init,
                linear=self.linear,
            ),
            nn.MLP(
                "",
                config.hidden_size,
                config.intermediate_size,
                config.hidden_act,
                names=("intermediate.dense", "output.dense"),
                init=self.init,
                linear=self.linear,
            ),
            before=(self.norm("layernorm_before"), self.norm("layernorm_after")),
            dropout=config.hidden_dropout_prob,
        )

    def hidden(self, graph: Graph, batch: int, training: bool = False) -> Node:
        """What the last layer makes of the input ``pixels``."""
        config = self.config
        x = pixels(graph, batch, config.num_channels, config.image_size, self.dtype)
        with graph.scope("vit"):
            with graph.scope("embeddings"):
                x = nn.Dropout(config.hidden_dropout_prob)(self._embedded(x))
            for layer in range(config.num_hidden_layers):
                x = self.block(layer, training)(x)
            return self.norm("layernorm")(x)

    def _embedded(self, x: Node) -> Node:
        config, graph = self.config, x.graph
        width, start = config.hidden_size, f"truncated_normal({config.initializer_range!r})"
        sides = pair(config.patch_size)
        patches = nn.Conv2d(
            "patch_embeddings.projection",
            config.num_channels,
            width,
            sides,
            sides,
            init=self.init,
        )(x)
        first = nn.parameter(graph, "cls_token", (1, 1, width), self.dtype, start)
        places = (1, 1 + config.patches, width)
        positions = nn.parameter(graph, "position_embeddings", places, self.dtype, start)
        return in_a_row(patches, first) + positions

    def _logits(self, hidden: Node) -> Node:
        config = self.config
        head = self.linear("classifier", config.hidden_size, config.num_labels, init=self.init)
        return head(hidden[:, 0])
