"""Stochastic gradient descent."""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.errors import ArgumentError
from ..graph.node import Node
from .base import Optimizer, Slot
from .checks import number, truth


@dataclass(frozen=True)
class SGD(Optimizer):
    """Descent along the gradient, with momentum where it is asked for; as ``torch.optim.SGD``.

    The state of momentum is ``<parameter>/momentum``. ``weight_decay`` is added to the gradient (L2).

    >>> SGD(0.1, momentum=0.9).settings()["optimizer/momentum"]
    0.9
    """

    learning_rate: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    dampening: float = 0.0

    @property
    def takes_complex(self) -> bool:
        """Its steps are sums of gradients; bounds are real."""
        return self.clip_norm is None and self.clip_value is None

    def check(self) -> None:
        """Momentum lies in [0, 1), numbers are not negative, and Nesterov's form needs plain momentum."""
        self.check_fraction("momentum")
        self.check_not_negative("weight_decay")
        if not 0.0 <= number(self.dampening, "dampening") <= 1.0:
            raise ArgumentError(f"dampening must lie in [0, 1], got {self.dampening!r}")
        truth(self.nesterov, "nesterov")
        if self.nesterov and (self.momentum == 0.0 or self.dampening != 0.0):
            raise ArgumentError("nesterov needs momentum above 0 and no dampening")

    def update(self, slot: Slot) -> Node:
        """``value - rate * velocity``."""
        return slot.value - slot.learning_rate * self._direction(slot)

    def _direction(self, slot: Slot) -> Node:
        gradient = slot.gradient_with_decay()
        if self.momentum == 0.0:
            return gradient
        momentum, state = slot.setting("momentum"), slot.state("momentum")
        following = momentum * state + gradient
        if self.dampening != 0.0:
            damped = momentum * state + (1.0 - slot.setting("dampening")) * gradient
            # The first gradient is taken whole: there is nothing yet that it could disturb.
            following = slot.graph.where(slot.step.eq(1.0), gradient, damped)
        slot.set(state, following)
        return gradient + momentum * following if self.nesterov else following
