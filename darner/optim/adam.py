"""Adam, with weight decay in the gradient or apart from it."""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.node import Node
from .base import Optimizer, Slot
from .checks import truth


@dataclass(frozen=True)
class Adam(Optimizer):
    """Steps scaled by moving means of the gradient and of its square; as ``torch.optim.Adam``.

    States are ``<parameter>/mean`` and ``<parameter>/variance`` and, with ``amsgrad``, their largest value so far,
    ``<parameter>/largest_variance``. ``weight_decay`` is added to the gradient (L2).
    """

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False

    def check(self) -> None:
        """Betas lie in [0, 1), and no number is negative."""
        self.check_fraction("beta1", "beta2")
        self.check_not_negative("epsilon", "weight_decay")
        truth(self.amsgrad, "amsgrad")

    def update(self, slot: Slot) -> Node:
        """``value - rate * mean / (sqrt(variance) + epsilon)``, both corrected for their start at 0."""
        return slot.value - self.step(slot, slot.gradient_with_decay())

    def step(self, slot: Slot, gradient: Node) -> Node:
        """What is subtracted from the parameter; updates the states."""
        beta1, beta2 = slot.setting("beta1"), slot.setting("beta2")
        mean = slot.moving_mean("mean", beta1, gradient)
        variance = slot.moving_mean("variance", beta2, gradient.square())
        if self.amsgrad:
            largest = slot.state("largest_variance")
            variance = slot.set(largest, largest.maximum(variance))
        # Both corrections are applied to scalars, which leaves one division for each element.
        rate = slot.learning_rate / weight_so_far(slot, "beta1")
        correction = slot.shared("correction", lambda: weight_so_far(slot, "beta2").rsqrt())
        return rate * (mean / (variance.sqrt() * correction + slot.setting("epsilon")))


def weight_so_far(slot: Slot, name: str) -> Node:
    """``1 - beta ** step``: how much of a moving mean that started at 0 is samples by now.

    Written with expm1, because a power near 1, rounded to f32, leaves few digits in its difference to 1.
    """
    beta = slot.setting(name)
    return slot.shared(f"weight of {name}", lambda: -(slot.step * beta.log()).expm1())


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weight decay shrinks the parameter itself, apart from the gradient; as ``torch.optim.AdamW``."""

    weight_decay: float = 0.01

    def update(self, slot: Slot) -> Node:
        """Adam's step from the value shrunk by ``rate * weight_decay``."""
        return slot.decayed_value() - self.step(slot, slot.gradient)
