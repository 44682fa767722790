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

from ..graph.graph import Graph
from ..graph.node import Node
from ..nn.base import parameter
from ..nn.convs import Conv2d
from ..nn.dropout import Dropout
from ..nn.norms import LayerNorm
from .base import Config, Model
from .encoder import Encoder, LayerNames
from .images import LabelledConfig, finish, finish_training, grid, in_a_row, pair, pixels

NAMES = LayerNames(
    norms=("layernorm_before", "layernorm_after"),
    matrices=(
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
        "attention.output.dense",
        "intermediate.dense",
        "output.dense",
    ),
)


@dataclass(frozen=True, kw_only=True)
class ViTConfig(LabelledConfig):
    """The sizes of a ViT; ``image_size`` and ``patch_size`` are one number, or height and width."""

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
    image_size: int | tuple[int, int] = 224
    patch_size: int | tuple[int, int] = 16
    num_channels: int = 3
    qkv_bias: bool = True

    def __post_init__(self) -> None:
        grid(self.image_size, self.patch_size)

    @property
    def patches(self) -> int:
        """Into how many patches an image is cut."""
        rows, columns = grid(self.image_size, self.patch_size)
        return rows * columns


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
        return finish_training(graph, self._logits(self.hidden(graph, batch)), batch)

    def hidden(self, graph: Graph, batch: int) -> Node:
        """What the last layer makes of the input ``pixels``."""
        config = self.config
        x = pixels(graph, batch, config.num_channels, config.image_size, self.dtype)
        with graph.scope("vit"):
            with graph.scope("embeddings"):
                x = Dropout(config.hidden_dropout_prob)(self._embedded(x))
            x = self._encoder()(x)
            return LayerNorm("layernorm", config.hidden_size, config.layer_norm_eps)(x)

    def _embedded(self, x: Node) -> Node:
        config, graph = self.config, x.graph
        width, start = config.hidden_size, f"truncated_normal({config.initializer_range!r})"
        sides = pair(config.patch_size)
        patches = Conv2d(
            "patch_embeddings.projection",
            config.num_channels,
            width,
            sides,
            sides,
            init=f"normal({config.initializer_range!r})",
        )(x)
        first = parameter(graph, "cls_token", (1, 1, width), self.dtype, start)
        places = (1, 1 + config.patches, width)
        positions = parameter(graph, "position_embeddings", places, self.dtype, start)
        return in_a_row(patches, first) + positions

    def _encoder(self) -> Encoder:
        config = self.config
        return Encoder(
            "encoder.layer.{}",
            config.num_hidden_layers,
            config.hidden_size,
            config.num_attention_heads,
            config.intermediate_size,
            NAMES,
            dict.fromkeys(NAMES.matrices, f"normal({config.initializer_range!r})"),
            config.hidden_act,
            config.layer_norm_eps,
            bias=config.qkv_bias,
            dropout=config.hidden_dropout_prob,
            attention_dropout=config.attention_probs_dropout_prob,
            linear=self.linear,
        )

    def _logits(self, hidden: Node) -> Node:
        config = self.config
        start = f"normal({config.initializer_range!r})"
        return self.linear("classifier", config.hidden_size, config.num_labels, init=start)(
            hidden[:, 0]
        )
