"""What models of images share: pixels that come in, labels, and the loss of a classification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..graph.errors import ArgumentError
from ..graph.graph import Graph
from ..graph.node import Node
from .base import Config, float_input


@dataclass(frozen=True, kw_only=True)
class LabelledConfig(Config):
    """A configuration that names its classes by ``id2label``, or says how many there are."""

    num_labels: int = 2

    @classmethod
    def translated(cls, found: dict[str, Any]) -> dict[str, Any]:
        """The number of classes, from their names where it is not said."""
        if found.get("id2label") is not None:
            found["num_labels"] = len(found["id2label"])
        return found

    def to_hf(self) -> dict[str, Any]:
        """What ``config.json`` says of it: names where there are some, else their number."""
        found = super().to_hf()
        if found.get("id2label") is not None:
            del found["num_labels"]
        return found


def pair(size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width, from one number or both."""
    height, width = (size, size) if isinstance(size, int) else size
    return height, width


def pixels(graph: Graph, batch: int, channels: int, size: int | Sequence[int], dtype: str) -> Node:
    """The input ``pixels`` (batch, channels, height, width), in ``dtype``; what is narrower than f32 comes in as f32."""
    return float_input(graph, "pixels", (batch, channels, *pair(size)), dtype)


def finish(graph: Graph, logits: Node) -> Graph:
    """The graph with the output ``logits``."""
    graph.relabel(logits, "logits")
    graph.set_outputs([logits])
    return graph.verify()


def finish_training(graph: Graph, logits: Node, batch: int) -> Graph:
    """The graph with the cross-entropy of ``logits`` and the input ``labels`` (batch,), and the logits beside it."""
    if logits.shape[-1] == 1:
        raise ArgumentError("a classification of one class has no loss", hint="set num_labels")
    labels = graph.input("labels", (batch,), "i32")
    loss = graph.cross_entropy_loss(logits, labels, label="loss")
    graph.relabel(logits, "logits")
    graph.set_outputs([loss, logits])
    return graph.verify()
