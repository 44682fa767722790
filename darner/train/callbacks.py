"""What training tells others: callbacks, and the small ones that come with darner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..graph.errors import ArgumentError
from . import stated
from .history import EpochStats, StepMetrics, TrainHistory, ValidationMetrics

if TYPE_CHECKING:
    from .trainer import Trainer

HOOKS = ("on_start", "on_step", "on_log", "on_validation", "on_epoch", "on_end")


class Callback:
    """Something that training tells what happens. A subclass defines what it wants to hear of.

    Nothing is called that a class does not define, so that a step costs nothing for hooks that nobody uses.
    """

    def on_start(self, trainer: Trainer) -> None:
        """Training begins, or goes on. ``trainer.stop(reason)`` ends it after the step."""

    def on_step(self, metrics: StepMetrics) -> None:
        """A step is done, with the validation that followed it, if one did."""

    def on_log(self, record: Mapping[str, Any]) -> None:
        """Some steps are done: step, epoch, loss, learning_rate, tokens_per_second, seconds, gradient_norm."""

    def on_validation(self, result: ValidationMetrics) -> None:
        """Validation measured something."""

    def on_epoch(self, stats: EpochStats) -> None:
        """An epoch is over."""

    def on_end(self, history: TrainHistory) -> None:
        """Training is over; not called where it was interrupted or failed."""

    def close(self) -> None:
        """Training ends in whatever way: files and displays are let go. Called once for every ``on_start``."""

    def state(self) -> Any:
        """What a checkpoint keeps of this callback, in values of JSON; None for nothing."""
        return None

    def restore(self, state: Any) -> None:
        """Go on from what ``state`` gave."""


MetricCallback = Callback


class Told(Callback):
    """A plain function as a callback: it is called with the metrics of every step."""

    def __init__(self, function: Callable[[StepMetrics], Any]) -> None:
        self.function = function

    def on_step(self, metrics: StepMetrics) -> None:
        """Pass it on."""
        self.function(metrics)


def as_callback(value: Any) -> Callback:
    """A callback from one, or from a function of ``StepMetrics``."""
    if isinstance(value, Callback):
        return value
    if callable(value):
        return Told(value)
    raise ArgumentError(
        f"a callback is a train.Callback or a function of StepMetrics, got {value!r}"
    )


def listeners(callbacks: Iterable[Callback], hook: str) -> list[Callable[..., None]]:
    """The methods that define a hook, in the order of the callbacks."""
    default = getattr(Callback, hook)
    return [getattr(item, hook) for item in callbacks if getattr(type(item), hook) is not default]


@dataclass
class LossHistory(Callback):
    """Keeps the loss of each step in a list.

    >>> kept = LossHistory()
    >>> kept.on_step(StepMetrics(step=1, epoch=0, loss=0.5))
    >>> kept.losses
    [0.5]
    """

    losses: list[float] = field(default_factory=list)

    def on_step(self, metrics: StepMetrics) -> None:
        """Keep it."""
        self.losses.append(metrics.loss)

    def state(self) -> list[float]:
        """The losses."""
        return list(self.losses)

    def restore(self, state: list[float]) -> None:
        """The losses before the checkpoint."""
        self.losses = [stated.number(loss, "a loss") for loss in stated.items(state, "the losses")]


class EarlyStop(Callback):
    """Ends training when a metric of validation no longer gets better.

    Args:
        patience: how many validations in a row may bring nothing.
        metric: its name.
        minimum: by how much it must get better to count.
        higher: whether more is better; when left out, as the metric itself says.

    >>> stop = EarlyStop(patience=2)
    >>> for step, loss in enumerate([1.0, 0.5, 0.6, 0.7]):
    ...     stop.on_validation(ValidationMetrics(step, 0, {"loss": loss}))
    >>> stop.best, stop.waited, stop.reason
    (0.5, 2, 'loss was no better than 0.5 in 2 validations')
    """

    def __init__(
        self,
        patience: int = 3,
        metric: str = "loss",
        minimum: float = 0.0,
        *,
        higher: bool | None = None,
    ) -> None:
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise ArgumentError(f"patience is a whole number of validations, got {patience!r}")
        if not minimum >= 0.0:
            raise ArgumentError(f"minimum is not negative, got {minimum!r}")
        self.patience = patience
        self.metric = metric
        self.minimum = minimum
        self.higher = higher
        self.best: float | None = None
        self.waited = 0
        self.reason = ""
        self._trainer: Trainer | None = None

    def on_start(self, trainer: Trainer) -> None:
        """Learn which way the metric gets better."""
        self._trainer = trainer
        if self.higher is None:
            self.higher = trainer.metric(self.metric).higher

    def on_validation(self, result: ValidationMetrics) -> None:
        """Stop where it has waited long enough."""
        value = result.values[self.metric]
        if is_better(value, self.best, bool(self.higher), self.minimum):
            self.best, self.waited = value, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            best = "anything" if self.best is None else f"{self.best:.6g}"
            self.reason = f"{self.metric} was no better than {best} in {self.waited} validations"
            if self._trainer is not None:
                self._trainer.stop(self.reason)

    def state(self) -> dict[str, Any]:
        """The best value, and for how long there was none."""
        return {"best": self.best, "waited": self.waited}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on waiting."""
        found = stated.table(state, "the state of EarlyStop")
        best = stated.entry(found, "best")
        waited = stated.whole(stated.entry(found, "waited"), "'waited'")
        self.best, self.waited = None if best is None else stated.number(best, "'best'"), waited


def is_better(value: float, best: float | None, higher: bool, minimum: float = 0.0) -> bool:
    """Whether a value counts as progress; NaN never does."""
    if value != value:
        return False
    if best is None:
        return True
    gain = value - best if higher else best - value
    return gain > minimum
