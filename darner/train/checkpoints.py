"""Checkpoints of training: a folder with the newest, the best, and how each of them goes on."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..graph.errors import ArgumentError, FormatError
from ..io.atomic import FileError
from ..io.reading import parse_json
from . import stated
from .callbacks import Callback, is_better
from .history import EpochStats, StepMetrics, TrainHistory, ValidationMetrics

if TYPE_CHECKING:
    from .trainer import Trainer

KEY = "trainer"
"""In a checkpoint's metadata: how training goes on, as JSON."""

BEST = "best.safetensors"
CURVE = "curve.svg"
_NAME = re.compile(r"step-(\d+)(?:-(\d+))?\.safetensors")


def checkpoint_name(step: int, runs: int = 0) -> str:
    """The file of a checkpoint after some steps, and some runs of the next one where it needs several.

    >>> checkpoint_name(120), checkpoint_name(120, 3)
    ('step-00000120.safetensors', 'step-00000120-3.safetensors')
    """
    return f"step-{step:08d}{f'-{runs}' if runs else ''}.safetensors"


def checkpoints(folder: str | os.PathLike[str]) -> list[Path]:
    """The checkpoints in a folder, the oldest first, without the best one."""
    found = []
    try:
        entries = list(Path(folder).iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FileError.of("read", folder, error) from error
    for path in entries:
        match = _NAME.fullmatch(path.name)
        if match is not None:
            found.append((int(match[1]), int(match[2] or 0), path))
    return [path for _, _, path in sorted(found)]


def latest(folder: str | os.PathLike[str]) -> Path | None:
    """The newest checkpoint in a folder; None where there is none."""
    found = checkpoints(folder)
    return found[-1] if found else None


def progress_in(path: str | os.PathLike[str], metadata: Mapping[str, str]) -> Mapping[str, Any]:
    """How training goes on, from the metadata of a checkpoint: what is said of its progress, its batches and its callbacks."""
    if KEY not in metadata:
        raise FormatError(
            f"'{os.fspath(path)}' has parameters, but does not say how training goes on",
            hint="session.load_checkpoint starts from its parameters",
        )
    what = f"{KEY} of '{os.fspath(path)}'"
    found = stated.table(parse_json(metadata[KEY].encode(), what, halves=True), what)
    for name in ("progress", "batches", "callbacks"):
        stated.table(stated.entry(found, name), f"'{name}'")
    return found


class Checkpoints(Callback):
    """Saves training as it goes: every so many steps, and whenever validation was the best so far.

    Args:
        folder: where; it is made if it is not there.
        every: after how many steps; after every epoch when left out. Ends and interruptions are saved besides.
        keep: how many of the newest are kept; the best one is kept besides.
        metric: by which validations are compared.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every: int | None = None,
        keep: int = 3,
        metric: str = "loss",
    ) -> None:
        for name, value in (("checkpoint_every", every), ("keep", keep)):
            wrong = isinstance(value, bool) or not isinstance(value, int) or value < 1
            if value is not None and wrong:
                raise ArgumentError(f"{name} is a whole number of at least 1, got {value!r}")
        if not isinstance(folder, str | os.PathLike):
            raise ArgumentError(f"checkpoint is a folder, got {folder!r}")
        self.folder = Path(folder)
        self.every = every
        self.keep = keep
        self.metric = metric
        self.best: float | None = None
        self._is_best = False
        self._is_due = False
        self._saved: object = None
        self._higher = False
        self._trainer: Trainer | None = None

    def on_start(self, trainer: Trainer) -> None:
        """Make the folder."""
        self._trainer = trainer
        self._higher = trainer.metric(self.metric).higher if trainer.validates else False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError.of("make the folder", self.folder, error) from error

    def on_validation(self, result: ValidationMetrics) -> None:
        """Remember whether this was the best, to be saved with the step."""
        value = result.values[self.metric]
        if is_better(value, self.best, self._higher):
            self.best, self._is_best = value, True

    def on_epoch(self, stats: EpochStats) -> None:
        """Save with the next step, where nothing else is asked for."""
        self._is_due = self.every is None

    def on_step(self, metrics: StepMetrics) -> None:
        """Save, if it is time."""
        if self._is_best:
            self._save_best()
        if self._is_due or (self.every is not None and metrics.step % self.every == 0):
            self.save()

    def on_end(self, history: TrainHistory) -> None:
        """Save the end, and a picture of the way there."""
        if self._is_best:
            self._save_best()
        self.save()
        if history.steps:
            history.plot(self.folder / CURVE)

    def _save_best(self) -> None:
        self._is_best = False
        if self._trainer is not None:
            self._trainer.save(self.folder / BEST)

    def save(self) -> Path | None:
        """Save training as it stands, and remove what is no longer kept."""
        trainer = self._trainer
        if trainer is None:
            return None
        self._is_due = False
        path = self.folder / checkpoint_name(trainer.step, trainer.progress.runs)
        state = (path, len(trainer.history.validations))
        if self._saved != state:
            trainer.save(path)
            self._saved = state
        for old in checkpoints(self.folder)[: -self.keep]:
            old.unlink(missing_ok=True)
        return path

    def state(self) -> dict[str, Any]:
        """The best value so far."""
        return {"best": self.best}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The best value before."""
        best = stated.entry(stated.table(state, "the state of Checkpoints"), "best")
        self.best = None if best is None else stated.number(best, "'best'")
