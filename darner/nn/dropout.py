"""Elements left out at random, in training."""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.node import Node
from .base import Layer, within


@dataclass(frozen=True)
class Dropout(Layer):
    """Sets elements to 0 with probability ``rate`` and divides the others by 1 - rate, others in every step.

    An inference session passes on what it gets, and so does a rate of 0.

    >>> import darner
    >>> from darner.nn.dropout import Dropout
    >>> g = darner.Graph("dropped")
    >>> x = g.input("x", (3, 4))
    >>> Dropout(0.1)(x).op.name, Dropout(0.0)(x) is x
    ('dropout', True)
    """

    rate: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        within(self, 0, 1, "rate")

    def __call__(self, x: Node) -> Node:
        """``x`` with some of its elements."""
        return x.dropout(self.rate, seed=self.seed) if self.rate else x
