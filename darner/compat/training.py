"""What Meganeura calls the configuration of a trainer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..optim.base import Optimizer
from ..optim.sgd import SGD


@dataclass(frozen=True)
class TrainConfig:
    """How a ``Trainer`` is set up, in Meganeura's words.

    Attributes:
        optimizer: SGD at a rate of 0.01 when left out.
        learning_rate: its rate, in place of the optimizer's own.
        log_interval: after how many steps there is a line of log.
        data_input, label_input: what the two parts of a batch are called, where batches are pairs.

    >>> TrainConfig(learning_rate=0.5).chosen.learning_rate
    0.5
    """

    optimizer: Optimizer | None = None
    learning_rate: float | None = None
    log_interval: int = 100
    data_input: str = "x"
    label_input: str = "labels"

    @property
    def chosen(self) -> Optimizer:
        """The optimizer, at the rate that was asked for."""
        if self.optimizer is None:
            return SGD(0.01 if self.learning_rate is None else self.learning_rate)
        if self.learning_rate is None:
            return self.optimizer
        return replace(self.optimizer, learning_rate=self.learning_rate)  # type: ignore[call-arg]
