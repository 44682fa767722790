"""Gradients kept within bounds: each element by value, all of them together by their norm."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

from ..graph.errors import ArgumentError
from ..graph.node import Node

MARGIN = 1e-6
"""Added to the norm, as PyTorch does, so that a norm of 0 is no division by 0."""


def global_norm(gradients: Sequence[Node]) -> Node:
    """The Euclidean norm of all elements of all gradients, as one scalar; they have one dtype."""
    if not gradients:
        raise ArgumentError("the norm of no gradients was asked for")
    return reduce(add, [gradient.square().sum() for gradient in gradients]).sqrt()


def clip_by_norm(
    gradients: Sequence[Node], limit: Node | float, norm: Node | None = None
) -> list[Node]:
    """The gradients, scaled down together where their norm exceeds ``limit``.

    Equal to ``torch.nn.utils.clip_grad_norm_``: their direction does not change. ``norm`` is theirs, where it is known.
    """
    norm = global_norm(gradients) if norm is None else norm
    factor = (limit / (norm + MARGIN)).minimum(1.0)
    return [gradient * factor for gradient in gradients]


def clip_by_value(gradients: Sequence[Node], limit: Node | float) -> list[Node]:
    """The gradients with every element between ``-limit`` and ``limit``."""
    return [gradient.clip(-limit, limit) for gradient in gradients]
