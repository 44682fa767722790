"""What training has seen so far: the loss of every step, epochs, and validations."""

from __future__ import annotations

import base64
import os
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..graph.data import Array
from ..graph.errors import FormatError, RunError
from . import stated


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One step of training, as callbacks are told of it.

    Attributes:
        step: its number; the first is 1.
        epoch: the epoch that its last batch belongs to; the first is 0.
        loss: the mean over its batches, before the update.
        amount: how many tokens were seen so far, or samples where the batches have no tokens.
        seconds: how long training took so far, without validation and checkpoints.
    """

    step: int
    epoch: int
    loss: float
    amount: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class ValidationMetrics:
    """What a validation measured.

    Attributes:
        step: after which step.
        epoch: in which epoch.
        values: the mean of each metric over all batches, by name.
    """

    step: int
    epoch: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class EpochStats:
    """One pass over the data.

    Attributes:
        epoch: its number; the first is 0.
        avg_loss: the mean loss of its batches.
        steps: how many steps ended in it.
    """

    epoch: int
    avg_loss: float
    steps: int


@dataclass(repr=False)
class TrainHistory:
    """What training has seen so far, from the first step on, interruptions included. ``print`` shows it in a few lines.

    Attributes:
        losses: the loss of each step.
        epochs: the epochs that were finished.
        validations: what was measured on other data.
        stopped: why training ended before its last step; empty where it did not.
        seconds: how long it took, without validation and checkpoints.

    >>> history = TrainHistory()
    >>> history.losses.extend([2.0, 0.5, 1.0])
    >>> history.final_loss(), history.steps
    (1.0, 3)
    >>> history
    <TrainHistory of 3 steps: loss 2 to 1>
    >>> print(history)
    3 steps
    loss: first 2, last 1, lowest 0.5 (step 2)
    """

    losses: array[float] = field(default_factory=lambda: array("d"))
    epochs: list[EpochStats] = field(default_factory=list)
    validations: list[ValidationMetrics] = field(default_factory=list)
    stopped: str = ""
    seconds: float = field(default=0.0, compare=False)

    def __repr__(self) -> str:
        losses = self.losses
        text = f": loss {losses[0]:.4g} to {losses[-1]:.4g}" if losses else ""
        return f"<TrainHistory of {self.steps} steps{text}>"

    def __str__(self) -> str:
        head = f"{self.steps:,} steps"
        if self.epochs:
            head += f", {len(self.epochs):,} epochs"
        if self.seconds:
            head += f" in {self.seconds:.3g} s"
        if self.stopped:
            head += f" ({self.stopped})"
        losses = self.losses
        if not losses:
            return head
        low = min(range(len(losses)), key=losses.__getitem__)
        lines = [
            head,
            f"loss: first {losses[0]:.4g}, last {losses[-1]:.4g}, lowest {losses[low]:.4g} (step {low + 1:,})",
        ]
        if self.validations:
            last = self.validations[-1]
            values = ", ".join(f"{name} {value:.4g}" for name, value in last.values.items())
            line = f"validation: {len(self.validations):,}, the last after step {last.step:,}: {values}"
            best = self.best()
            if best is not None and best is not last:
                line += f"; the lowest loss {best.values['loss']:.4g} after step {best.step:,}"
            lines.append(line)
        return "\n".join(lines)

    @property
    def steps(self) -> int:
        """How many steps there were."""
        return len(self.losses)

    def final_loss(self) -> float:
        """The mean loss of the last epoch; of the last step where no epoch was finished."""
        if self.epochs:
            return self.epochs[-1].avg_loss
        if not self.losses:
            raise RunError("nothing was trained yet")
        return self.losses[-1]

    def best(self, metric: str = "loss", *, higher: bool = False) -> ValidationMetrics | None:
        """The validation with the lowest (or highest) value of a metric; None where nothing was validated."""
        found = [item for item in self.validations if metric in item.values]
        if not found:
            return None
        pick = max if higher else min
        return pick(found, key=lambda item: item.values[metric])

    def smoothed(self, width: int | None = None) -> Array:
        """The losses as means over up to ``width`` steps on both sides: a hundredth of all when left out."""
        losses = np.array(self.losses)
        return centred_mean(losses, len(losses) // 100 if width is None else width)

    def plot(
        self, path: str | os.PathLike[str], *, log_x: bool = False, log_y: bool = False
    ) -> None:
        """Draw the losses, smoothed, and the validations, as an SVG file."""
        from ..io.atomic import write_atomically

        write_atomically(path, [self.to_svg(log_x=log_x, log_y=log_y).encode()])

    def to_svg(self, *, log_x: bool = False, log_y: bool = False) -> str:
        """The picture that ``plot`` writes."""
        from ..viz.curves import Curve, curves_svg

        steps = np.arange(1, self.steps + 1)
        curves = [
            Curve("each step", steps, np.array(self.losses), "faint"),
            Curve("training", steps, self.smoothed()),
        ]
        points = [
            (item.step, item.values["loss"]) for item in self.validations if "loss" in item.values
        ]
        if points:
            places, values = np.array(points, np.float64).T
            curves.append(Curve("validation", places, values, "points"))
        return curves_svg(curves, x_label="step", y_label="loss", log_x=log_x, log_y=log_y)

    def to_json(self) -> dict[str, Any]:
        """Everything as values of JSON; losses keep all their bits."""
        return {
            "losses": base64.b64encode(np.array(self.losses, "<f8").tobytes()).decode(),
            "epochs": [[item.epoch, item.avg_loss, item.steps] for item in self.epochs],
            "validations": [[v.step, v.epoch, dict(v.values)] for v in self.validations],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TrainHistory:
        """What ``to_json`` made of a history; values of a file, so that each is checked."""
        found = stated.table(values, "'history'")
        return cls(
            _losses(stated.text(stated.entry(found, "losses"), "'losses'")),
            [_epoch(item) for item in stated.items(stated.entry(found, "epochs"), "'epochs'")],
            [
                _validation(item)
                for item in stated.items(stated.entry(found, "validations"), "'validations'")
            ],
        )


def _losses(packed: str) -> array[float]:
    try:
        raw = base64.b64decode(packed, validate=True)
        return array("d", np.frombuffer(raw, "<f8").tolist())
    except ValueError as error:
        raise FormatError(f"the losses cannot be read: {error}") from None


def _epoch(item: Any) -> EpochStats:
    number, mean, steps = stated.items(item, "one of 'epochs'", 3)
    return EpochStats(
        stated.whole(number, "an epoch"),
        stated.number(mean, "the loss of an epoch"),
        stated.whole(steps, "the steps of an epoch"),
    )


def _validation(item: Any) -> ValidationMetrics:
    step, epoch, values = stated.items(item, "one of 'validations'", 3)
    return ValidationMetrics(
        stated.whole(step, "the step of a validation"),
        stated.whole(epoch, "the epoch of a validation"),
        {
            name: stated.number(value, f"the metric '{name}'")
            for name, value in stated.table(values, "the metrics of a validation").items()
        },
    )


def centred_mean(values: Array, width: int) -> Array:
    """The mean of each value with up to ``width`` on both sides.

    At the beginning, where losses fall fast, as many are taken after a value as there are before it; at the end,
    where they waver, all that are left.

    >>> centred_mean(np.array([4.0, 2.0, 0.0, 4.0]), 1).tolist()
    [4.0, 2.0, 2.0, 2.0]
    """
    if not len(values):
        return values
    place = np.arange(len(values))
    reach = np.minimum(width, place)
    first, last = place - reach, np.minimum(place + reach, len(values) - 1)
    # The sums of a long series are of values around 0, so that little is lost in differences.
    middle = values.mean()
    sums = np.concatenate([[0.0], np.cumsum(values - middle)])
    return middle + (sums[last + 1] - sums[first]) / (last + 1 - first)
