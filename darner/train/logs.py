"""Logs of training: JSON lines, and event files of TensorBoard."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ..graph.errors import optional
from ..io.atomic import FileError, write_atomically
from .callbacks import Callback
from .history import EpochStats, ValidationMetrics

if TYPE_CHECKING:
    from .trainer import Trainer


class JsonLog(Callback):
    """One JSON object a line, written through at once: ``{"kind": "train", "step": 10, "loss": 0.5, ...}``.

    ``kind`` is ``train``, ``validation`` or ``epoch``. Where training goes on from a checkpoint, lines of later steps are
    dropped first, as those steps are made again; where it begins, so are all that a file of this name has.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file: TextIO | None = None

    def on_start(self, trainer: Trainer) -> None:
        """Open the file."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                self._cut(trainer)
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise FileError.of("write", self.path, error) from error

    def on_log(self, record: Mapping[str, Any]) -> None:
        """A line of training."""
        self._write({"kind": "train", **record})

    def on_validation(self, result: ValidationMetrics) -> None:
        """A line of validation."""
        head = {"kind": "validation", "step": result.step, "epoch": result.epoch}
        self._write({**head, **result.values})

    def on_epoch(self, stats: EpochStats) -> None:
        """A line of an epoch."""
        found = {"epoch": stats.epoch, "loss": stats.avg_loss, "steps": stats.steps}
        self._write({"kind": "epoch", **found})

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()

    def _cut(self, trainer: Trainer) -> None:
        """Drop the records of steps that were not made, epochs that were not finished and validations that will be made again, from the first one on."""
        kept: list[str] = []
        validations = trainer.history.validations
        steps = {"train": trainer.step, "validation": validations[-1].step if validations else -1}
        lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        for line in lines:
            try:
                found = json.loads(line)
                if found["kind"] == "epoch":
                    is_later = found["epoch"] >= trainer.epoch
                else:
                    is_later = found["step"] > steps[found["kind"]]
            # The line that was being written when the process died, or one that is none of ours.
            except (ValueError, RecursionError, LookupError, TypeError):
                break
            if is_later:
                break
            kept.append(line)
        if len(kept) < len(lines):
            write_atomically(self.path, [f"{line}\n".encode() for line in kept])


class TensorBoard(Callback):
    """Scalars as event files of TensorBoard: ``train/loss``, ``validation/loss`` and so on."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._writer: Any = None
        _tensorboard()

    def on_start(self, trainer: Trainer) -> None:
        """Open a new event file; what earlier files have of later steps is void."""
        writer, events, _ = _tensorboard()
        self._writer = writer(str(self.folder))
        if trainer.step:
            started = events.SessionLog(status=events.SessionLog.START)
            marked = events.Event(wall_time=time.time(), step=trainer.step + 1, session_log=started)
            self._writer.add_event(marked)

    def on_log(self, record: Mapping[str, Any]) -> None:
        """Scalars of training."""
        self._scalars("train", record)

    def on_validation(self, result: ValidationMetrics) -> None:
        """Scalars of validation."""
        self._scalars("validation", {"step": result.step, **result.values})

    def close(self) -> None:
        """Write what is left, and close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _scalars(self, group: str, record: Mapping[str, Any]) -> None:
        if self._writer is None:
            return
        _, events, summaries = _tensorboard()
        values = [
            summaries.Summary.Value(tag=f"{group}/{name}", simple_value=value)
            for name, value in record.items()
            if name != "step"
        ]
        summary = summaries.Summary(value=values)
        event = events.Event(wall_time=time.time(), step=record["step"], summary=summary)
        self._writer.add_event(event)
        self._writer.flush()


def _tensorboard() -> tuple[Any, Any, Any]:
    """TensorBoard's writer of events, and its messages: of events and of summaries."""
    names = (
        "summary.writer.event_file_writer",
        "compat.proto.event_pb2",
        "compat.proto.summary_pb2",
    )
    writers, events, summaries = (
        optional(f"tensorboard.{name}", "tensorboard", "writing event files") for name in names
    )
    return writers.EventFileWriter, events, summaries
