"""SmolVLM: texts with images in them. A SigLIP tower reads the images, and a Llama reads what it made of them among the words.

>>> from darner.models.smolvlm import SmolVLM
>>> text = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
>>> vision = {"hidden_size": 24, "intermediate_size": 48, "num_attention_heads": 2, "image_size": 64, "patch_size": 8}
>>> found = {"text_config": text, "vision_config": vision, "scale_factor": 2, "image_token_id": 63}
>>> model = SmolVLM.from_config({"model_type": "smolvlm", **found})
>>> model.config.image_tokens
16
>>> g = model.inference_graph(batch=2, length=40, images=2)
>>> {name: node.shape for name, node in g.inputs.items()}, g.outputs[0].shape
({'tokens': (2, 40), 'pixels': (4, 3, 64, 64)}, (2, 40, 64))
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from .. import nn
from ..graph.errors import ArgumentError
from ..graph.graph import Graph
from ..graph.node import Node
from ..nn.attention import Sequence
from . import architecture
from .base import Config, float_input
from .causal import CausalLM
from .fields import as_table
from .images import PatchesConfig, finish, grid, in_a_row, pair, pixels
from .llama import Llama, LlamaConfig
from .towers import TowerConfig, encoded


@dataclass(frozen=True, kw_only=True)
class SmolVLMVisionConfig(TowerConfig, PatchesConfig):
    """The sizes of the tower of images."""

    model_type: ClassVar[str] = "smolvlm_vision"
    architecture: ClassVar[str] = "SmolVLMVisionTransformer"

    hidden_size: int = 1152
    intermediate_size: int = 3072
    num_attention_heads: int = 16
    patch_size: int | tuple[int, int] = 32
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6

    @property
    def parameter_count(self) -> int:
        """About how many parameters it has."""
        return super().parameter_count + self.hidden_size * (self.patch_inputs + self.patches)

    @property
    def side(self) -> int:
        """How many patches stand beside each other, and above each other."""
        rows, columns = grid(self.image_size, self.patch_size)
        if rows != columns:
            raise ArgumentError(f"SmolVLM's images are square, not of {rows} x {columns} patches")
        return rows


@dataclass(frozen=True, kw_only=True)
class SmolVLMConfig(Config):
    """The sizes of both parts; ``scale_factor`` x ``scale_factor`` patches become one token.

    ``text_config`` is that of a Llama, or of one of its kin.
    """

    model_type: ClassVar[str] = "smolvlm"
    architecture: ClassVar[str] = "SmolVLMForConditionalGeneration"

    text_config: LlamaConfig
    vision_config: SmolVLMVisionConfig = SmolVLMVisionConfig()
    image_token_id: int = 128257
    scale_factor: int = 2
    tie_word_embeddings: bool = False

    @property
    def layers(self) -> int:
        """How many layers it has."""
        return self.text_config.layers + self.vision_config.layers

    @property
    def parameter_count(self) -> int:
        """About how many parameters it has."""
        parts = self.text_config, self.vision_config
        joined = self.vision_config.hidden_size * self.scale_factor**2
        own = sum(part.parameter_count for part in parts)
        return own + joined * self.text_config.hidden_size

    def __post_init__(self) -> None:
        super().__post_init__()
        side = self.vision_config.side
        if self.scale_factor < 1 or side % self.scale_factor:
            raise ArgumentError(
                f"{side} patches in a row cannot be joined by {self.scale_factor}",
                hint="scale_factor divides image_size // patch_size",
            )

    @classmethod
    def translated(cls, found: dict[str, Any]) -> dict[str, Any]:
        """The parts' own configurations."""
        if not found.get("text_config"):
            raise ArgumentError("the configuration of a 'smolvlm' needs text_config")
        text = {"model_type": "llama", **as_table("text_config", found["text_config"])}
        read = architecture(text["model_type"])
        if not issubclass(read, Llama):
            raise ArgumentError(
                f"the text part of a 'smolvlm' is a Llama or one of its kin, not '{text['model_type']}'"
            )
        found["text_config"] = read.config_class.from_hf(text)
        found["vision_config"] = SmolVLMVisionConfig.from_hf(
            as_table("vision_config", found.get("vision_config"))
        )
        return found

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return self.text_config.vocab_size

    @property
    def max_position_embeddings(self) -> int:
        """How long texts are, with the tokens of their images."""
        return self.text_config.max_position_embeddings

    @property
    def image_tokens(self) -> int:
        """How many tokens stand for an image."""
        return self.vision_config.patches // self.scale_factor**2


@dataclass(frozen=True)
class SmolVLM(CausalLM):
    """A language model that sees: what it makes of images takes the place of the tokens ``image_token_id``.

    ``pixels`` (batch * images, channels, height, width) are the images of the first text, then those of the second, and so on. The
    image tokens of a text stand for its images in order, ``config.image_tokens`` for each. A text may have fewer images than
    others: then the last ones that are given are not looked at. Image tokens beyond the images are words like any other.
    """

    config: SmolVLMConfig

    config_class: ClassVar[type[Config]] = SmolVLMConfig
    prefix: ClassVar[str] = "model."
    ignored: ClassVar[tuple[str, ...]] = (*Llama.ignored, "*.position_ids")

    # ------------------------------------------------------------- parts

    @property
    def text(self) -> Llama:
        """The part that reads and writes text."""
        config = replace(
            self.config.text_config, tie_word_embeddings=self.config.tie_word_embeddings
        )
        made = architecture(config.model_type)(config, self.dtype, self.linear)
        if not isinstance(made, Llama):
            raise ArgumentError(f"'{config.model_type}' is no kin of Llama")
        return replace(made, body="model.text_model")

    @property
    def tied(self) -> dict[str, str]:
        """The head, where it is the table of tokens."""
        return self.text.tied

    def head(self, hidden: Node) -> Node:
        """Scores of every token."""
        return self.text.head(hidden)

    def hidden(self, tokens: Node, sequence: Sequence) -> Node:
        """What the last layer makes of tokens without images."""
        return self.text.hidden(tokens, sequence)

    def features(self, x: Node, training: bool = False) -> Node:
        """What the text part reads of images (count, channels, height, width): (count, image_tokens, width)."""
        config, graph = self.config.vision_config, x.graph
        width, side, factor = config.hidden_size, config.side, self.config.scale_factor
        start = f"normal({config.initializer_range!r})"

        def linear(name: str, *sizes: int, **rest: Any) -> nn.Linear:
            return self.linear(name, *sizes, **{**rest, "init": start, "init_bias": "zeros"})

        with graph.scope("model.vision_model"):
            with graph.scope("embeddings"):
                sides = pair(config.patch_size)
                cut = nn.Conv2d(
                    "patch_embedding", config.num_channels, width, sides, sides, init=start
                )
                places = nn.Embedding(
                    "position_embedding", config.patches, width, self.dtype, start
                )
                # Each patch has its own row. transformers looks for it by fractions in f32, and finds a neighbour's in some
                # grids (25 in a row), which depends on the processor; not in those of checkpoints (27 and 32).
                x = in_a_row(cut(x)) + places.table(graph)
            x = encoded(config, x, linear, training=training)
            x = nn.LayerNorm("post_layernorm", width, config.layer_norm_eps)(x)
        # Neighbouring patches become one token, as wide as all of them.
        count, rows, inner = int(x.shape[0]), side // factor, width * factor**2
        x = x.reshape((count, rows, factor, rows, factor, width)).transpose((0, 1, 3, 2, 4, 5))
        x = x.reshape((count, rows * rows, inner))
        outer = self.config.text_config.hidden_size
        joined = self.linear(
            "model.connector.modality_projection.proj", inner, outer, bias=False, init=start
        )
        return joined(x)

    def embedded(self, tokens: Node, features: Node) -> Node:
        """The words of ``tokens`` (batch, length), with the features of the images of each text in the places of its image tokens."""
        graph, (batch, length) = tokens.graph, (int(axis) for axis in tokens.shape)
        words = self.text.embedded(tokens)
        count = int(features.shape[0]) * int(features.shape[1]) // batch
        marked = tokens == self.config.image_token_id
        place = marked.cast("i32").cumsum(axis=1) - 1
        first = count * graph.arange(batch, dtype="i32").reshape((batch, 1))
        table = features.reshape((batch * count, int(features.shape[2])))
        seen = graph.embedding(place.maximum(0).minimum(count - 1) + first, table)
        taken = marked.logical_and(place < count)
        return taken.reshape((batch, length, 1)).where(seen, words)

    def read(
        self,
        tokens: Node,
        sequence: Sequence,
        /,
        images: int = 0,
        encoded: bool = False,
        training: bool = False,
        **rest: Any,
    ) -> Node:
        """What the last layer makes of tokens and the ``images`` of each text; ``encoded`` ones come as ``features``."""
        if rest or not images:
            return super().read(tokens, sequence, **rest)
        graph, count = tokens.graph, images * int(tokens.shape[0])
        if encoded:
            shape = (count, self.config.image_tokens, self.config.text_config.hidden_size)
            features = float_input(graph, "features", shape, self.dtype)
        else:
            features = self.features(self._pixels(graph, count), training)
        return self.text.transformed(self.embedded(tokens, features), sequence)

    def _pixels(self, graph: Graph, count: int) -> Node:
        config = self.config.vision_config
        return pixels(graph, count, config.num_channels, config.image_size, self.dtype)

    # ------------------------------------------------------------- graphs

    def inference_graph(
        self, *, batch: int = 1, length: int = 128, images: int = 1, **rest: Any
    ) -> Graph:
        """``tokens`` (batch, length) and ``pixels``, ``images`` for each text, as ``logits`` (batch, length, vocabulary)."""
        return super().inference_graph(batch=batch, length=length, images=images, **rest)

    def training_graph(
        self, *, batch: int = 1, length: int = 128, images: int = 1, **rest: Any
    ) -> Graph:
        """The mean cross-entropy of ``labels`` (batch, length), the tokens that follow ``tokens``; -100 counts for nothing."""
        rest = {**rest, "images": images, "training": True}
        return super().training_graph(batch=batch, length=length, **rest)

    def vision_graph(self, *, images: int = 1) -> Graph:
        """``pixels`` (images, channels, height, width) as ``features`` (images, image_tokens, width of the text part)."""
        graph = Graph("smolvlm.vision")
        return finish(graph, features=self.features(self._pixels(graph, images)))

    def check_images(self, texts: Several[Several[int]], images: int) -> None:
        """Whether texts have the tokens of as many images as there are."""
        tokens = self.config.image_tokens
        for index, text in enumerate(texts):
            found = sum(token == self.config.image_token_id for token in text)
            if found % tokens or found > images * tokens:
                raise ArgumentError(
                    f"prompt {index} has {found} tokens of images; {images} images take {images * tokens}",
                    hint=f"an image takes {tokens} times the token {self.config.image_token_id}",
                )
