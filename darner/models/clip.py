"""CLIP: texts and images as vectors of one space, near to each other where they belong together.

>>> from darner.models.clip import CLIP, CLIPConfig
>>> model = CLIP(CLIPConfig())
>>> g = model.inference_graph(batch=1, texts=3, length=7)
>>> {name: node.shape for name, node in g.inputs.items()}
{'tokens': (3, 7), 'pixels': (1, 3, 224, 224)}
>>> g.outputs[0].label, g.outputs[0].shape, sum(node.type.size for node in g.parameters.values())
('logits_per_image', (1, 3), 151277313)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .. import nn
from ..graph.errors import ArgumentError, ShapeError
from ..graph.graph import Graph
from ..graph.node import Node
from .base import Config, Model
from .fields import as_table
from .images import PatchesConfig, finish, in_a_row, pair, pixels
from .towers import TowerConfig, encoded

LARGEST_TOKEN = 2
"""The ``eos_token_id`` of early configurations, by which they mean the largest token of a text, whichever that is."""


@dataclass(frozen=True, kw_only=True)
class CLIPTowerConfig(TowerConfig):
    """What the configurations of both towers say."""

    projection_dim: int = 512
    hidden_act: str = "quick_gelu"
    initializer_factor: float = 1.0


@dataclass(frozen=True, kw_only=True)
class CLIPTextConfig(CLIPTowerConfig):
    """The sizes of the tower of texts; a text is read where its first ``eos_token_id`` stands."""

    model_type: ClassVar[str] = "clip_text_model"
    architecture: ClassVar[str] = "CLIPTextModel"

    vocab_size: int = 49408
    hidden_size: int = 512
    intermediate_size: int = 2048
    num_attention_heads: int = 8
    max_position_embeddings: int = 77
    eos_token_id: int = 49407

    @property
    def parameter_count(self) -> int:
        """About how many parameters it has."""
        rows = self.vocab_size + self.max_position_embeddings
        return super().parameter_count + self.hidden_size * rows


@dataclass(frozen=True, kw_only=True)
class CLIPVisionConfig(CLIPTowerConfig, PatchesConfig):
    """The sizes of the tower of images."""

    model_type: ClassVar[str] = "clip_vision_model"
    architecture: ClassVar[str] = "CLIPVisionModel"

    hidden_size: int = 768
    intermediate_size: int = 3072
    num_attention_heads: int = 12
    patch_size: int | tuple[int, int] = 32

    @property
    def parameter_count(self) -> int:
        """About how many parameters it has."""
        return super().parameter_count + self.hidden_size * (self.patch_inputs + self.patches)


@dataclass(frozen=True, kw_only=True)
class CLIPConfig(Config):
    """Both towers, and the space they share."""

    model_type: ClassVar[str] = "clip"
    architecture: ClassVar[str] = "CLIPModel"

    text_config: CLIPTextConfig = field(default_factory=CLIPTextConfig)
    vision_config: CLIPVisionConfig = field(default_factory=CLIPVisionConfig)
    projection_dim: int = 512
    logit_scale_init_value: float = 2.6592
    initializer_factor: float = 1.0

    @property
    def layers(self) -> int:
        """How many layers it has."""
        return self.text_config.layers + self.vision_config.layers

    @property
    def parameter_count(self) -> int:
        """About how many parameters it has."""
        towers = self.text_config, self.vision_config
        widths = sum(tower.hidden_size for tower in towers)
        return sum(tower.parameter_count for tower in towers) + self.projection_dim * widths

    @classmethod
    def translated(cls, found: dict[str, Any]) -> dict[str, Any]:
        """The towers' own configurations; early files say them twice, and the second holds, defaults included."""
        towers: dict[str, type[CLIPTowerConfig]] = {
            "text_config": CLIPTextConfig,
            "vision_config": CLIPVisionConfig,
        }
        for name, tower in towers.items():
            given, second = as_table(name, found.get(name)), found.pop(f"{name}_dict", None)
            if second is not None:
                given = {**given, **tower.from_hf(second).to_hf()}
            found[name] = tower.from_hf(given)
        return found


@dataclass(frozen=True)
class CLIP(Model):
    """Two towers; each gives vectors of length 1, and texts and images are compared by their products."""

    config: CLIPConfig

    config_class: ClassVar[type[Config]] = CLIPConfig
    ignored: ClassVar[tuple[str, ...]] = ("*.position_ids",)

    def inference_graph(
        self, batch: int = 1, length: int | None = None, texts: int | None = None
    ) -> Graph:
        """``tokens`` (texts, length) and ``pixels`` (batch, channels, height, width), each with each.

        Gives ``logits_per_image`` (batch, texts), ``logits_per_text`` (texts, batch), ``text_embeds`` and ``image_embeds``.
        There are as many texts as images, and they are as long as can be, unless said otherwise.
        """
        graph = Graph("clip.inference")
        words = self.text_embeds(graph, batch if texts is None else texts, length)
        views = self.image_embeds(graph, batch)
        per_text = self._similarities(words, views)
        return finish(
            graph,
            logits_per_image=per_text.T,
            logits_per_text=per_text,
            text_embeds=words,
            image_embeds=views,
        )

    def text_graph(self, batch: int = 1, length: int | None = None) -> Graph:
        """``tokens`` (batch, length) to ``text_embeds``, alone."""
        graph = Graph("clip.text")
        return finish(graph, text_embeds=self.text_embeds(graph, batch, length))

    def image_graph(self, batch: int = 1) -> Graph:
        """``pixels`` to ``image_embeds``, alone."""
        graph = Graph("clip.image")
        return finish(graph, image_embeds=self.image_embeds(graph, batch))

    def training_graph(self, batch: int = 2, length: int | None = None) -> Graph:
        """The loss of ``tokens`` (batch, length) and ``pixels``, of which each text belongs to the image in its place.

        It is the mean of two cross-entropies: of the images for each text, and of the texts for each image.
        """
        if batch < 2:
            raise ArgumentError(
                f"a batch of {batch} has no other pairs to tell one from", hint="batch=2 or more"
            )
        graph = Graph("clip.training")
        words = self.text_embeds(graph, batch, length, training=True)
        views = self.image_embeds(graph, batch, training=True)
        per_text = self._similarities(words, views)
        places = graph.arange(batch, dtype="i32")
        losses = [graph.cross_entropy_loss(scores, places) for scores in (per_text, per_text.T)]
        return finish(graph, loss=0.5 * (losses[0] + losses[1]))

    # ------------------------------------------------------------- towers

    def text_embeds(
        self, graph: Graph, batch: int, length: int | None = None, training: bool = False
    ) -> Node:
        """Vectors (batch, projection_dim) of length 1 of the input ``tokens``."""
        config = self.config.text_config
        length = config.max_position_embeddings if length is None else length
        if not 0 < length <= config.max_position_embeddings:
            raise ShapeError(
                f"a text has 1 to {config.max_position_embeddings} tokens, not {length}"
            )
        tokens = graph.input("tokens", (batch, length), "i32")
        # All rows of both tables start alike, and by the factor of the whole.
        start = f"normal({0.02 * config.initializer_factor!r})"
        width = config.hidden_size
        with graph.scope("text_model"):
            with graph.scope("embeddings"):
                words = nn.Embedding("token_embedding", config.vocab_size, width, self.dtype, start)
                places = nn.Embedding(
                    "position_embedding", config.max_position_embeddings, width, self.dtype, start
                )
                x = words(tokens) + places.table(graph)[:length]
            x = self._encoded(config, x, causal=True, training=training)
            x = nn.LayerNorm("final_layer_norm", width, config.layer_norm_eps)(x)
        ends = tokens if config.eos_token_id == LARGEST_TOKEN else _is(tokens, config.eos_token_id)
        rows = ends.argmax(axis=-1) + length * graph.arange(batch, dtype="i32")
        return self._projected("text_projection", x.reshape((batch * length, width)).take(rows, 0))

    def image_embeds(self, graph: Graph, batch: int, training: bool = False) -> Node:
        """Vectors (batch, projection_dim) of length 1 of the input ``pixels``."""
        config = self.config.vision_config
        width, factor = config.hidden_size, config.initializer_factor
        start = f"normal({config.initializer_range * factor!r})"
        sides = pair(config.patch_size)
        x = pixels(graph, batch, config.num_channels, config.image_size, self.dtype)
        with graph.scope("vision_model"):
            with graph.scope("embeddings"):
                first = nn.parameter(
                    graph,
                    "class_embedding",
                    (width,),
                    self.dtype,
                    f"normal({factor / math.sqrt(width)!r})",
                )
                cut = nn.Conv2d(
                    "patch_embedding",
                    config.num_channels,
                    width,
                    sides,
                    sides,
                    bias=False,
                    init=start,
                )
                places = nn.Embedding(
                    "position_embedding", 1 + config.patches, width, self.dtype, start
                )
                x = in_a_row(cut(x), first) + places.table(graph)
            # Checkpoints spell it so.
            x = nn.LayerNorm("pre_layrnorm", width, config.layer_norm_eps)(x)
            x = self._encoded(config, x, training=training)
            x = nn.LayerNorm("post_layernorm", width, config.layer_norm_eps)(x[:, 0])
        return self._projected("visual_projection", x)

    def _encoded(
        self, config: CLIPTowerConfig, x: Node, *, causal: bool = False, training: bool = False
    ) -> Node:
        """``x`` (batch, tokens, width) through the layers of a tower."""
        width, factor = config.hidden_size, config.initializer_factor
        # As wide as keeps what is added up over the layers at the size of one.
        narrow = factor / math.sqrt(2 * width * config.num_hidden_layers)
        wide, inner = factor / math.sqrt(width), factor / math.sqrt(2 * width)
        starts = {"out_proj": wide, "fc1": inner}

        def linear(name: str, *sizes: int, **rest: Any) -> nn.Linear:
            return self.linear(
                name, *sizes, **{**rest, "init": f"normal({starts.get(name, narrow)!r})"}
            )

        return encoded(config, x, linear, causal=causal, training=training)

    def _projected(self, name: str, x: Node) -> Node:
        """In the shared space, and of length 1."""
        width = int(x.shape[-1])
        start = f"normal({self.config.initializer_factor / math.sqrt(width)!r})"
        y = self.linear(name, width, self.config.projection_dim, bias=False, init=start)(x)
        return y / y.square().sum((-1,), keepdims=True).sqrt()

    def _similarities(self, words: Node, views: Node) -> Node:
        """Cosines of each text with each image, times a learned scale."""
        start = f"constant({self.config.logit_scale_init_value!r})"
        scale = nn.parameter(words.graph, "logit_scale", (), self.dtype, start)
        return (words @ views.T) * scale.exp()


def _is(tokens: Node, token: int) -> Node:
    """1 where a token is this one, else 0."""
    return (tokens == token).cast("i32")
