"""Where training stands: all that a checkpoint has to know besides the session and the batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..graph.errors import FormatError
from . import stated
from .history import EpochStats, TrainHistory


@dataclass
class Progress:
    """Where training stands.

    Attributes:
        accumulate: how many runs make a step.
        step: how many steps were made.
        runs: how many runs of the next one.
        amount: how many tokens, or samples, were seen.
        seconds: how long it took, without validation and checkpoints.
        epoch: the one that the last batch belonged to.
        validation_due: whether an epoch ended, and the next step is to be validated.
        history: what there was so far.

    >>> progress = Progress(accumulate=2)
    >>> progress.add(3.0, 8, epoch=0), progress.add(1.0, 8, epoch=0)
    (False, True)
    >>> progress.step, progress.runs, progress.amount, list(progress.history.losses)
    (1, 0, 16, [2.0])
    """

    accumulate: int = 1
    step: int = 0
    runs: int = 0
    amount: int = 0
    seconds: float = 0.0
    epoch: int = 0
    validation_due: bool = False
    history: TrainHistory = field(default_factory=TrainHistory)
    # The losses of this step's runs, and of this epoch's; and how many runs and steps the epoch had.
    _sum: float = 0.0
    _epoch_sum: float = 0.0
    _epoch_runs: int = 0
    _epoch_steps: int = 0

    def add(self, loss: float, amount: int, epoch: int) -> bool:
        """Count a run; whether it ended a step."""
        self.epoch = epoch
        self.amount += amount
        self._sum += loss
        self._epoch_sum += loss
        self._epoch_runs += 1
        self.runs += 1
        if self.runs < self.accumulate:
            return False
        self.history.losses.append(self._sum / self.accumulate)
        self.step += 1
        self._epoch_steps += 1
        self.runs, self._sum = 0, 0.0
        return True

    def end_epoch(self) -> EpochStats:
        """Count an epoch."""
        mean = self._epoch_sum / self._epoch_runs
        stats = EpochStats(self.epoch, mean, self._epoch_steps)
        self._epoch_sum, self._epoch_runs, self._epoch_steps = 0.0, 0, 0
        self.history.epochs.append(stats)
        return stats

    @property
    def total_runs(self) -> int:
        """How many runs there were."""
        return self.step * self.accumulate + self.runs

    def to_json(self) -> dict[str, Any]:
        """Everything as values of JSON, which keep all bits of floats."""
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**found, "history": self.history.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Progress:
        """What ``to_json`` made of it; values of a file, so that each is checked."""
        kinds = {"int": stated.whole, "float": stated.number, "bool": stated.truth}
        checks = {item.name: kinds.get(str(item.type)) for item in fields(cls)}
        for name in stated.table(values, "'progress'"):
            if name not in checks:
                raise FormatError(f"progress has no '{name}'")
        found: dict[str, Any] = {}
        for name, check in checks.items():
            value = stated.entry(values, name)
            found[name] = TrainHistory.from_json(value) if check is None else check(value, name)
        made = cls(**found)
        made.history.seconds = made.seconds
        if made.step != made.history.steps or not 0 <= made.runs < max(made.accumulate, 1):
            raise FormatError(
                f"step {made.step} and run {made.runs} of {made.accumulate} do not fit a history of {made.history.steps} steps"
            )
        return made
