"""Models that give the next token: graphs to train them, to score a text, and to write one token after another."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..graph.errors import ArgumentError
from ..graph.graph import Graph
from ..graph.node import Node
from ..nn.attention import Sequence
from .base import Model


@dataclass(frozen=True)
class CausalLM(Model):
    """A language model over integers below ``config.vocab_size``."""

    @abstractmethod
    def hidden(self, tokens: Node, sequence: Sequence) -> Node:
        """What the last layer makes of ``tokens`` (batch, length): (batch, length, width)."""

    @abstractmethod
    def head(self, hidden: Node) -> Node:
        """Scores of every token, (..., vocabulary)."""

    def read(self, tokens: Node, sequence: Sequence, /, **rest: Any) -> Node:
        """``hidden``, of the tokens and whatever else a model reads; what graphs are asked for beyond their sizes comes here."""
        self.refuse(rest)
        return self.hidden(tokens, sequence)

    def refuse(self, rest: Mapping[str, Any]) -> None:
        """An error where a graph is asked for something that the model does not know."""
        if rest:
            raise ArgumentError(f"a graph of {type(self).__name__} takes no '{next(iter(rest))}'")

    def inference_graph(self, *, batch: int = 1, length: int = 128, **rest: Any) -> Graph:
        """``tokens`` (batch, length) as ``logits`` (batch, length, vocabulary)."""
        graph = Graph(f"{self.config.model_type}.inference")
        tokens = graph.input("tokens", (batch, length), "i32")
        logits = self.head(self.read(tokens, Sequence(length), **rest))
        graph.relabel(logits, "logits")
        graph.set_outputs([logits])
        return graph

    def training_graph(self, *, batch: int = 1, length: int = 128, **rest: Any) -> Graph:
        """The mean cross-entropy of ``labels`` (batch, length), the tokens that follow ``tokens``.

        A label of -100 counts for nothing.
        """
        graph = Graph(f"{self.config.model_type}.training")
        tokens = graph.input("tokens", (batch, length), "i32")
        labels = graph.input("labels", (batch, length), "i32")
        logits = self.head(self.read(tokens, Sequence(length), **rest))
        graph.set_outputs([logits.cross_entropy_loss(labels, label="loss")])
        return graph

    def cached_graph(
        self,
        *,
        batch: int = 1,
        length: int = 1,
        cache: int = 512,
        padded: bool = False,
        **rest: Any,
    ) -> Graph:
        """``logits`` (batch, vocabulary) of one of ``tokens`` (batch, length) that follow what a cache holds.

        ``position`` (1,) is the row of the cache where the first token goes, and ``last`` (1,) which of the tokens is wanted (the
        last one where ``length`` is 1, and then there is no such input): those behind it may be anything, as their rows are
        written again. With ``padded``, ``start`` (batch,) is the first row of each text that is no padding.

        The caches are states; sessions that share parameters share them.
        """
        graph = Graph(f"{self.config.model_type}.cached")
        tokens = graph.input("tokens", (batch, length), "i32")
        start = graph.input("start", (batch,), "i32") if padded else None
        hidden = self.read(tokens, Sequence.cached(graph, length, cache, start), **rest)
        if length > 1:
            last = graph.input("last", (1,), "i32")
            hidden = hidden.take(last, axis=1)
        logits = self.head(hidden.reshape((batch, hidden.shape[-1])))
        graph.relabel(logits, "logits")
        graph.set_outputs([logits])
        return graph
