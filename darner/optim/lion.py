"""Lion: the sign of a mean as the step."""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.node import Node
from .base import Optimizer, Slot


@dataclass(frozen=True)
class Lion(Optimizer):
    """Steps of one size in every element, along the sign of the mean (Chen et al. 2023, "evolved sign momentum").

    The only state is ``<parameter>/momentum``. Weight decay is decoupled. Rates are commonly 3 to 10 times smaller
    than Adam's, and the weight decay larger by as much.
    """

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.0

    def check(self) -> None:
        """Betas lie in [0, 1), and no number is negative."""
        self.check_fraction("beta1", "beta2")
        self.check_not_negative("weight_decay")

    def update(self, slot: Slot) -> Node:
        """``value - rate * (sign(between mean and gradient) + weight_decay * value)``."""
        beta1, beta2 = slot.setting("beta1"), slot.setting("beta2")
        state = slot.state("momentum")
        direction = (beta1 * state + (1.0 - beta1) * slot.gradient).sign()
        slot.set(state, beta2 * state + (1.0 - beta2) * slot.gradient)
        return slot.decayed_value() - slot.learning_rate * direction
