"""Adafactor: second moments of matrices as the product of a column and a row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..graph.errors import ArgumentError
from ..graph.node import Node
from .base import Optimizer, Slot
from .checks import at_least, number, truth


@dataclass(frozen=True)
class Adafactor(Optimizer):
    """Adam's scaling in little memory (Shazeer and Stern 2018); the defaults are those of ``torch.optim.Adafactor``.

    Over the last two axes of a parameter the second moment is the product of ``<parameter>/row_variance`` and
    ``<parameter>/column_variance``; scalars and vectors have ``<parameter>/variance``.

    Attributes:
        beta2_decay: the share of new samples in the moments at step t is ``t ** beta2_decay``.
        epsilon1: the smallest root of a second moment; by default the rounding unit of the dtype.
        epsilon2: the smallest magnitude that a parameter counts as having, for ``scale_parameter``.
        clip_threshold: the largest root mean square of a step, before the rate.
        weight_decay: decoupled.
        relative_step: limit the rate to ``1 / sqrt(t)``.
        scale_parameter: multiply the rate by the root mean square of the parameter.
    """

    learning_rate: float = 1e-2
    beta2_decay: float = -0.8
    epsilon1: float | None = None
    epsilon2: float = 1e-3
    clip_threshold: float = 1.0
    weight_decay: float = 0.0
    relative_step: bool = True
    scale_parameter: bool = True

    def check(self) -> None:
        """The decay is not positive, the threshold at least 1, and no other number is negative."""
        if number(self.beta2_decay, "beta2_decay") > 0:
            raise ArgumentError(f"beta2_decay must not be above 0, got {self.beta2_decay!r}")
        if self.epsilon1 is not None:
            at_least(self.epsilon1, 0, "epsilon1")
        self.check_not_negative("epsilon2", "weight_decay")
        at_least(self.clip_threshold, 1, "clip_threshold")
        truth(self.relative_step, "relative_step")
        truth(self.scale_parameter, "scale_parameter")

    def update(self, slot: Slot) -> Node:
        """The gradient over the root of its second moment, limited, times the rate."""
        lowest = self._lowest(slot)
        step = slot.gradient * self._second_moment(slot, lowest).maximum(lowest.square()).rsqrt()
        excess = (_magnitude(step) / slot.setting("clip_threshold")).maximum(1.0)
        return slot.decayed_value() - self._rate(slot) / excess * step

    def _lowest(self, slot: Slot) -> Node:
        """The smallest root of a second moment."""
        if self.epsilon1 is not None:
            return slot.setting("epsilon1")
        return slot.graph.constant(float(np.finfo(slot.dtype.numpy).eps), dtype=slot.dtype)

    def _rate(self, slot: Slot) -> Node:
        rate = slot.learning_rate
        if self.relative_step:
            rate = rate.minimum(slot.step.rsqrt())
        if self.scale_parameter:
            rate = rate * _magnitude(slot.value).maximum(slot.setting("epsilon2"))
        return rate

    def _second_moment(self, slot: Slot, lowest: Node) -> Node:
        decay = slot.setting("beta2_decay")
        share = slot.shared("share of new samples", lambda: slot.step.pow(decay))
        squares, shape = slot.gradient.square(), slot.gradient.shape
        if len(shape) < 2:
            return _moved(slot, slot.state("variance"), share, squares)
        rows = slot.state("row_variance", (*shape[:-1], 1))
        columns = slot.state("column_variance", (*shape[:-2], 1, shape[-1]))
        row = _moved(slot, rows, share, squares.mean(-1, keepdims=True))
        column = _moved(slot, columns, share, squares.mean(-2, keepdims=True))
        return row * column / row.mean(-2, keepdims=True).maximum(lowest)


def _moved(slot: Slot, state: Node, share: Node, sample: Node) -> Node:
    return slot.set(state, state + share * (sample - state))


def _magnitude(value: Node) -> Node:
    """The root mean square of all elements."""
    return value.square().mean().sqrt()
