"""BERT and its kin: sentence embeddings (MiniLM), masked words, classes.

>>> from darner.models.bert import Bert, BertConfig
>>> model = Bert(BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48))
>>> g = model.inference_graph(batch=2, length=8)
>>> [(output.label, output.shape) for output in g.outputs]
[('embedding', (2, 32)), ('hidden', (2, 8, 32)), ('pooled', (2, 32))]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .. import nn
from ..graph.errors import ArgumentError, ShapeError
from ..graph.graph import Graph
from ..graph.node import Node
from .base import Config, LabelledConfig, Model, matrices


@dataclass(frozen=True, kw_only=True)
class BertConfig(LabelledConfig):
    """The sizes of a BERT."""

    model_type: ClassVar[str] = "bert"
    architecture: ClassVar[str] = "BertModel"

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    classifier_dropout: float | None = None

    @property
    def layers(self) -> int:
        """How many layers it has."""
        return self.num_hidden_layers

    @property
    def parameter_count(self) -> int:
        """About how many parameters it has."""
        rows = self.vocab_size + self.max_position_embeddings + self.type_vocab_size
        layer = matrices(self.hidden_size, self.intermediate_size)
        return self.hidden_size * rows + self.num_hidden_layers * layer


@dataclass(frozen=True)
class Bert(Model):
    """An encoder: every token sees every other one.

    ``scope`` is where its parameters stand: nothing for a bare model, ``"bert"`` inside one with a head.
    """

    config: BertConfig

    config_class: ClassVar[type[Config]] = BertConfig
    prefix: ClassVar[str] = "bert."
    ignored: ClassVar[tuple[str, ...]] = ("*embeddings.position_ids", "cls.*")
    scope: ClassVar[str] = ""

    @property
    def init(self) -> str:
        """How matrices start."""
        return f"normal({self.config.initializer_range!r})"

    def matrix(self, name: str, inputs: int, outputs: int) -> nn.Linear:
        """A matrix that starts as all do."""
        return self.linear(name, inputs, outputs, init=self.init, init_bias="zeros")

    def norm(self, name: str) -> nn.LayerNorm:
        """A norm over the width."""
        return nn.LayerNorm(name, self.config.hidden_size, self.config.layer_norm_eps)

    def dropped(self, x: Node) -> Node:
        """``x`` through the dropout of hidden values."""
        rate = self.config.hidden_dropout_prob
        return x.dropout(rate) if rate else x

    def inputs(self, graph: Graph, batch: int, length: int) -> tuple[Node, Node, Node]:
        """``tokens``, ``mask`` (1 for tokens, 0 for padding) and ``types``, each (batch, length) i32."""
        if length > self.config.max_position_embeddings:
            raise ShapeError(
                f"this BERT has {self.config.max_position_embeddings} positions, and the text takes {length}"
            )
        shape = (batch, length)
        return (
            graph.input("tokens", shape, "i32"),
            graph.input("mask", shape, "i32"),
            graph.input("types", shape, "i32"),
        )

    def hidden(self, tokens: Node, mask: Node, types: Node) -> Node:
        """What the last layer makes of tokens."""
        graph, config = tokens.graph, self.config
        batch, length = (int(size) for size in tokens.shape)

        def table(name: str, rows: int, padding: int | None = None) -> nn.Embedding:
            return nn.Embedding(name, rows, config.hidden_size, self.dtype, self.init, padding)

        visible = mask.reshape((batch, 1, 1, length)) > 0
        with nn.scope(graph, self.scope):
            with graph.scope("embeddings"):
                x = table("word_embeddings", config.vocab_size, config.pad_token_id)(tokens)
                x = x + table("token_type_embeddings", config.type_vocab_size)(types)
                places = graph.arange(length, dtype="i32")
                x = x + table("position_embeddings", config.max_position_embeddings)(places)
                x = self.dropped(self.norm("LayerNorm")(x))
            for layer in range(config.num_hidden_layers):
                with graph.scope(f"encoder.layer.{layer}"):
                    x = self.block(x, visible)
        return x

    def block(self, x: Node, visible: Node) -> Node:
        """A layer, with its norms behind what is added."""
        config = self.config
        attention = nn.Attention(
            "attention",
            config.hidden_size,
            config.num_attention_heads,
            bias=True,
            names=("self.query", "self.key", "self.value", "output.dense"),
            causal=False,
            dropout=config.attention_probs_dropout_prob,
            init=self.init,
            linear=self.linear,
        )
        x = self.norm("attention.output.LayerNorm")(x + self.dropped(attention(x, mask=visible)))
        inner = self.matrix("intermediate.dense", config.hidden_size, config.intermediate_size)(x)
        inner = nn.activate(config.hidden_act, inner)
        outer = self.matrix("output.dense", config.intermediate_size, config.hidden_size)(inner)
        return self.norm("output.LayerNorm")(x + self.dropped(outer))

    def pooled(self, hidden: Node) -> Node:
        """The first token through a matrix and tanh."""
        width = self.config.hidden_size
        with nn.scope(hidden.graph, self.scope):
            return self.matrix("pooler.dense", width, width)(hidden[:, 0]).tanh()

    def embedding(self, hidden: Node, mask: Node) -> Node:
        """The mean of a text's tokens, of length 1: what sentence transformers compare."""
        batch, length, _ = hidden.shape
        weights = mask.reshape((batch, length, 1)).cast(hidden.dtype)
        mean = (hidden * weights).sum(1) / weights.sum(1).maximum(1e-9)
        return mean.l2_normalize()

    def embedding_graph(self, *, batch: int = 1, length: int = 128) -> Graph:
        """``embedding`` (batch, width) of each text alone; it needs no pooler, which some checkpoints lack."""
        graph = Graph("bert.embedding")
        tokens, mask, types = self.inputs(graph, batch, length)
        found = self.embedding(self.hidden(tokens, mask, types), mask)
        graph.relabel(found, "embedding")
        graph.set_outputs([found])
        return graph

    def inference_graph(self, *, batch: int = 1, length: int = 128) -> Graph:
        """``embedding`` (batch, width) of each text, ``hidden`` (batch, length, width), and ``pooled`` (batch, width)."""
        graph = Graph("bert.inference")
        tokens, mask, types = self.inputs(graph, batch, length)
        hidden = self.hidden(tokens, mask, types)
        outputs = {
            "embedding": self.embedding(hidden, mask),
            "hidden": hidden,
            "pooled": self.pooled(hidden),
        }
        for label, output in outputs.items():
            graph.relabel(output, label)
        graph.set_outputs(list(outputs.values()))
        return graph

    def training_graph(self, *, batch: int = 1, length: int = 128) -> Graph:
        """A bare encoder has no loss; those with a head do."""
        raise ArgumentError(
            "a bare BERT has no loss",
            hint="BertForSequenceClassification and BertForMaskedLM have one",
        )


@dataclass(frozen=True, kw_only=True)
class BertClassifierConfig(BertConfig):
    """The sizes of a BERT with classes."""

    architecture: ClassVar[str] = "BertForSequenceClassification"


@dataclass(frozen=True)
class BertForSequenceClassification(Bert):
    """Classes of whole texts."""

    config_class: ClassVar[type[Config]] = BertClassifierConfig
    scope: ClassVar[str] = "bert"

    def logits(self, graph: Graph, batch: int, length: int) -> Node:
        """Scores of the classes, (batch, num_labels)."""
        config = self.config
        pooled = self.pooled(self.hidden(*self.inputs(graph, batch, length)))
        rate = config.classifier_dropout
        rate = config.hidden_dropout_prob if rate is None else rate
        pooled = pooled.dropout(rate) if rate else pooled
        return self.matrix("classifier", config.hidden_size, config.num_labels)(pooled)

    def inference_graph(self, *, batch: int = 1, length: int = 128) -> Graph:
        """``logits`` (batch, num_labels)."""
        graph = Graph("bert.classes")
        logits = self.logits(graph, batch, length)
        graph.relabel(logits, "logits")
        graph.set_outputs([logits])
        return graph

    def training_graph(self, *, batch: int = 1, length: int = 128) -> Graph:
        """The mean cross-entropy of ``labels`` (batch,)."""
        graph = Graph("bert.classes.training")
        logits = self.logits(graph, batch, length)
        labels = graph.input("labels", (batch,), "i32")
        graph.set_outputs([logits.cross_entropy_loss(labels, label="loss")])
        return graph


@dataclass(frozen=True, kw_only=True)
class BertMaskedConfig(BertConfig):
    """The sizes of a BERT that fills in words."""

    architecture: ClassVar[str] = "BertForMaskedLM"


@dataclass(frozen=True)
class BertForMaskedLM(Bert):
    """Words in the place of masked ones."""

    config_class: ClassVar[type[Config]] = BertMaskedConfig
    scope: ClassVar[str] = "bert"
    ignored: ClassVar[tuple[str, ...]] = (
        "*embeddings.position_ids",
        "cls.seq_relationship.*",
        "bert.pooler.*",
    )

    @property
    def tied(self) -> dict[str, str]:
        """The output's matrix is the table of words."""
        return {
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        }

    def logits(self, graph: Graph, batch: int, length: int) -> Node:
        """Scores of every word, (batch, length, vocabulary)."""
        config = self.config
        hidden = self.hidden(*self.inputs(graph, batch, length))
        width = config.hidden_size
        with graph.scope("cls.predictions"):
            with graph.scope("transform"):
                x = nn.activate(config.hidden_act, self.matrix("dense", width, width)(hidden))
                x = self.norm("LayerNorm")(x)
            bias = nn.parameter(graph, "bias", (config.vocab_size,), self.dtype, "zeros")
        words = nn.Embedding(
            "bert.embeddings.word_embeddings", config.vocab_size, width, self.dtype, self.init
        )
        return words.attend(x) + bias

    def inference_graph(self, *, batch: int = 1, length: int = 128) -> Graph:
        """``logits`` (batch, length, vocabulary)."""
        graph = Graph("bert.words")
        logits = self.logits(graph, batch, length)
        graph.relabel(logits, "logits")
        graph.set_outputs([logits])
        return graph

    def training_graph(self, *, batch: int = 1, length: int = 128) -> Graph:
        """The mean cross-entropy of ``labels`` (batch, length); -100 where a word was not masked."""
        graph = Graph("bert.words.training")
        logits = self.logits(graph, batch, length)
        labels = graph.input("labels", (batch, length), "i32")
        graph.set_outputs([logits.cross_entropy_loss(labels, label="loss")])
        return graph
