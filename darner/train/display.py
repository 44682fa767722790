"""How training goes, on a terminal: a few lines that change; elsewhere, plain lines."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from .callbacks import Callback
from .history import StepMetrics, TrainHistory, ValidationMetrics

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from .trainer import Trainer

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 24
FORGETS = 20.0
"""Steps over which the loss that is shown is smoothed."""


def display_for(progress: bool | None, file: TextIO | None = None) -> Display | None:
    """The display that is asked for: on a terminal (None), also as plain lines elsewhere (True), or none (False)."""
    stream = sys.stderr if file is None else file
    if stream is None or progress is False:  # None: the process was started without one
        return None
    live = stream.isatty()
    if progress is None and not live:
        return None
    return LiveDisplay(stream) if live else Display(stream)


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """A row of bars: the means of ``width`` stretches, from the lowest to the highest.

    >>> sparkline([8, 4, 2, 1, 1, 1], 3)
    '█▂▁'
    >>> sparkline([])
    ''
    """
    found = np.asarray(values, np.float64)
    if not len(found):
        return ""
    parts = np.array_split(found, min(width, len(found)))
    means = np.array([part.mean() for part in parts])
    low, high = means.min(), means.max()
    if not np.isfinite(high - low):
        return ""
    levels = (means - low) / (high - low or 1.0) * (len(BARS) - 1)
    return "".join(BARS[round(level)] for level in levels)


def clock(seconds: float) -> str:
    """A time for a reader.

    >>> clock(75.2), clock(3725)
    ('1:15', '1:02:05')
    """
    whole = round(max(seconds, 0.0))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def rate(value: float) -> str:
    """A rate for a reader.

    >>> rate(12345.6), rate(0.1234)
    ('12,346', '0.12')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.1f}"


class Display(Callback):
    """Plain lines: one for every record of log, validation and warning.

    Attributes:
        smoothed: the loss as a moving mean.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._trainer: Trainer | None = None
        self._sum = self._weight = 0.0
        self._validation = ""
        self._warning = ""
        self._began = 0.0
        self._first = 0

    @property
    def smoothed(self) -> float:
        """The loss as a moving mean over some steps."""
        return self._sum / self._weight if self._weight else float("nan")

    def on_start(self, trainer: Trainer) -> None:
        """Begin to count the time."""
        self._trainer = trainer
        self._warning = ""
        self._began, self._first = monotonic(), trainer.step

    def on_step(self, metrics: StepMetrics) -> None:
        """Smooth the loss."""
        keep = 1.0 - 1.0 / FORGETS
        self._sum = keep * self._sum + metrics.loss
        self._weight = keep * self._weight + 1.0

    def on_log(self, record: Mapping[str, Any]) -> None:
        """A line."""
        speed, unit = self._speed(record)
        parts = [
            self._steps(record["step"]),
            f"loss {record['loss']:.4f}",
            f"learning rate {record['learning_rate']:.3g}",
            f"{rate(speed)} {unit}/s",
            *self._left(),
        ]
        self.tell("  ".join(parts))

    def on_validation(self, result: ValidationMetrics) -> None:
        """A line."""
        self._validation = "  ".join(f"{k} {v:.4f}" for k, v in result.values.items())
        self.tell(f"{self._steps(result.step)}  validation {self._validation}")

    def on_end(self, history: TrainHistory) -> None:
        """Say that it is over, and why."""
        why = f" ({history.stopped})" if history.stopped else ""
        took = clock(monotonic() - self._began)
        self.tell(f"{history.steps:,} steps in {took}{why}")

    def tell(self, text: str) -> None:
        """One line."""
        self._file.write(f"{text}\n")
        self._file.flush()

    def tell_last(self, text: str) -> None:
        """The line that is left to be read when training has ended."""
        self.close()
        self.tell(text)

    def warn(self, text: str) -> None:
        """Show something as soon as lines are drawn again; nothing is written now."""
        self._warning = text

    def _steps(self, step: int) -> str:
        total = None if self._trainer is None else self._trainer.total
        return f"step {step:,}" if total is None else f"step {step:,}/{total:,}"

    def _speed(self, record: Mapping[str, Any]) -> tuple[float, str]:
        unit = "samples" if self._trainer is None else self._trainer.unit
        return float(record.get(f"{unit}_per_second", 0.0)), unit

    def _left(self) -> list[str]:
        """How long it will take, judged by how long it took, validation and checkpoints included."""
        trainer = self._trainer
        if trainer is None or trainer.total is None or trainer.step <= self._first:
            return []
        each = (monotonic() - self._began) / (trainer.step - self._first)
        return [f"{clock(each * (trainer.total - trainer.step))} left"]


class LiveDisplay(Display):
    """Lines of a terminal that change while training goes on; a thread of its own draws them, four times a second."""

    def __init__(self, file: TextIO, console: Console | None = None) -> None:
        super().__init__(file)
        self._console = console
        self._live: Any = None
        self._record: Mapping[str, Any] = {}

    def on_start(self, trainer: Trainer) -> None:
        """Begin to draw."""
        from rich.console import Console
        from rich.live import Live

        super().on_start(trainer)
        console = self._console or Console(file=self._file)
        self._live = Live(get_renderable=self.drawn, console=console, refresh_per_second=4)
        self._live.start()

    def on_log(self, record: Mapping[str, Any]) -> None:
        """What is drawn next."""
        self._record = record

    def on_validation(self, result: ValidationMetrics) -> None:
        """What is drawn next."""
        self._validation = "  ".join(f"{k} {v:.4f}" for k, v in result.values.items())

    def on_end(self, history: TrainHistory) -> None:
        """Leave the lines as they are at last, and say that it is over below them."""
        self.close()
        super().on_end(history)

    def tell(self, text: str) -> None:
        """One line above those that change."""
        if self._live is None:
            super().tell(text)
        else:
            self._live.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Draw once more, and leave it there."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def drawn(self) -> RenderableType:
        """The lines as they are now."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        trainer = self._trainer
        if trainer is None:
            return Text("")
        head = Table.grid(padding=(0, 2))
        total = trainer.total
        bar = ProgressBar(total=total, completed=trainer.step, width=30) if total else Text("")
        head.add_row(
            Text(self._steps(trainer.step), style="bold"),
            bar,
            Text(f"epoch {trainer.epoch}"),
            Text("".join(self._left()), style="dim"),
        )
        loss = f"loss {self.smoothed:.4f}" if self._weight else "compiling"
        # A copy: while NumPy looks at an array, training could not append to it.
        losses = trainer.history.losses[:]
        parts = [(loss, "cyan"), (sparkline(losses), "cyan")]
        if self._validation:
            parts.append((f"validation {self._validation}", "magenta"))
        if self._record:
            speed, unit = self._speed(self._record)
            parts.append((f"learning rate {self._record['learning_rate']:.3g}", ""))
            parts.append((f"{rate(speed)} {unit}/s", "green"))
        spaced = [item for part in parts if part[0] for item in (part, "  ")]
        lines: list[RenderableType] = [head, Text.assemble(*spaced[:-1])]
        if self._warning:
            lines.append(Text(self._warning, style="yellow"))
        return Group(*lines)
