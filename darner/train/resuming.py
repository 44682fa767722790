"""The part of a trainer that stops and goes on: what it saves, and how it is there again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import SIGINT
from types import TracebackType
from typing import Any, Self
from weakref import finalize

from ..graph.errors import ArgumentError, Calling, DarnerError, FormatError, RunError
from ..io.tensorfile import open_tensors
from ..session.session import Session
from .callbacks import Callback
from .checkpoints import KEY, Checkpoints, latest, progress_in
from .feed import Feed
from .folder_lock import FolderLock
from .history import TrainHistory
from .progress import Progress


class TrainingInterrupted(KeyboardInterrupt):
    """Training was ended by Ctrl-C or SIGTERM, after a whole run.

    Attributes:
        history: what there was until then.
        checkpoint: where training was saved; None where no folder was given.
        signal: the number of the signal.
    """

    def __init__(
        self,
        text: str,
        history: TrainHistory,
        checkpoint: Path | None,
        signal: int = SIGINT,
    ) -> None:
        super().__init__(text)
        self.history = history
        self.checkpoint = checkpoint
        self.signal = int(signal)


class Resuming:
    """A trainer's state, in files and back; see ``Trainer``, which adds the rest."""

    session: Session
    callbacks: list[Callback]
    progress: Progress
    feed: Feed | None
    checkpoints: Checkpoints | None
    _left_at: Path | None = None

    @property
    def step(self) -> int:
        """How many steps were made."""
        return self.progress.step

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to; the first is 0."""
        return 0 if self.feed is None else self.feed.epoch

    @property
    def history(self) -> TrainHistory:
        """What there was so far."""
        return self.progress.history

    @property
    def last_checkpoint(self) -> Path | None:
        """The newest checkpoint in the trainer's folder."""
        return None if self.checkpoints is None else latest(self.checkpoints.folder)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the session, and all it takes to go on exactly from here."""
        feed = self.feed
        if feed is None or not feed.resumable:
            raise RunError(
                "the batches do not say where they are",
                hint="session.save_checkpoint saves the rest",
            )
        found = {
            "progress": self.progress.to_json(),
            "batches": feed.state(),
            "callbacks": {name: item.state() for name, item in self._named_callbacks()},
        }
        self.session.save_checkpoint(path, metadata={KEY: json.dumps(found)})

    def resume(self, path: str | os.PathLike[str] | None = None) -> Self:
        """Go on from a checkpoint: a file, or the newest in a folder; in the trainer's own folder when left out."""
        with Calling("resume"):
            if path is None:
                if self.checkpoints is None:
                    raise ArgumentError("there is no folder of checkpoints", hint="resume(folder)")
                path = self.checkpoints.folder
            chosen = Path(path)
            found = chosen if chosen.is_file() else latest(chosen)
            if found is None:
                raise ArgumentError(f"there is no checkpoint in '{chosen}'")
            self.load(found)
            return self

    def load(self, path: Path) -> None:
        """Be where a checkpoint was saved, or, where that is an error, stay where it is."""
        if self.feed is None:
            raise ArgumentError(
                "there are no batches to go on with", hint="Trainer(session, batches)"
            )
        self._must_resume(self.feed)
        try:
            found = progress_in(path, open_tensors(path).metadata)
            progress, runs = Progress.from_json(found["progress"]), self.progress.accumulate
        except FormatError as error:
            raise _in_file(path, error) from error
        if progress.runs and progress.accumulate != runs:
            raise ArgumentError(
                f"'{path}' is in the middle of a step of {progress.accumulate} batches, not of {runs}",
                hint=f"accumulate={progress.accumulate}",
            )
        progress.accumulate = runs
        places: list[tuple[str, Any, Any]] = [("the batches", self.feed, found["batches"])]
        places += [
            (name, item, found["callbacks"][name])
            for name, item in self._named_callbacks()
            if found["callbacks"].get(name) is not None
        ]
        with _put_back() as moved:
            for name, item, state in places:
                moved.append((item, item.state()))
                _restore(path, name, item, state)
            self.session.load_checkpoint(path)
        self.progress = progress

    def _must_resume(self, feed: Feed) -> None:
        if not feed.resumable:
            raise ArgumentError(
                f"checkpoints need batches that say where they are, which {type(feed.source).__name__} does not",
                hint="a list, or a source of darner.data: with state() and restore(state)",
            )

    def _resumed(self, resume: bool | str | os.PathLike[str]) -> None:
        """What the option ``resume`` asks for."""
        if not isinstance(resume, bool):
            self.resume(resume)
        elif self.last_checkpoint is not None and self.checkpoints is not None:
            if not resume:
                raise ArgumentError(
                    f"'{self.checkpoints.folder}' has checkpoints of an earlier training",
                    hint="resume=True goes on from there; or name another folder",
                )
            self.resume()

    # ------------------------------------------------------------- whose the folder is

    def _have_folder(self, owned: ExitStack) -> None:
        """Have the folder of checkpoints, until ``owned`` is closed or nobody has the trainer any more."""
        self._lock: FolderLock | None = None
        if self.checkpoints is not None:
            self._lock = FolderLock(self.checkpoints.folder, "checkpoint=")
            self._lock.hold()
            owned.callback(self._lock.release)
            finalize(self, self._lock.release)

    def _leave_folder(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let others go on where training did not come to its end: this trainer may never be closed."""
        if error is not None and self._lock is not None and self._lock.held:
            self._left_at = self.last_checkpoint
            self._lock.release()

    def _have_folder_again(self) -> None:
        """Have the folder once more where it was left, as it was left."""
        if self._lock is None or self._lock.held:
            return
        self._lock.hold()
        if self.last_checkpoint != self._left_at:
            self._lock.release()
            raise RunError(
                f"another training went on in '{self._lock.folder}' after this one ended",
                hint="Trainer(..., resume=True) goes on from there",
            )

    def _named_callbacks(self) -> list[tuple[str, Callback]]:
        """Callbacks by the name of their class; several of one class are numbered."""
        counts: dict[str, int] = {}
        found = []
        for item in self.callbacks:
            kind = type(item).__name__
            counts[kind] = counts.get(kind, 0) + 1
            found.append((kind if counts[kind] == 1 else f"{kind} {counts[kind]}", item))
        return found

    def next_batch(self) -> Any:
        """The next batch, of whatever epoch; it counts as handed out."""
        if self.feed is None:
            raise ArgumentError("there are no batches")
        while (batch := self.feed.next()) is None:
            continue
        self.feed.ended()
        return batch

    def _interrupted(self, hint: str | None, signal: int) -> TrainingInterrupted:
        """Save, and say how to go on."""
        path = None if self.checkpoints is None else self.checkpoints.save()
        progress = self.progress
        text = f"training was interrupted after step {progress.step}"
        if progress.runs:
            text += f" and {progress.runs} of {progress.accumulate} runs"
        if path is None:
            text += "; nothing is saved without checkpoint=; train() goes on in this process"
        else:
            call = f"Trainer(..., checkpoint={str(path.parent)!r}, resume=True).train()"
            text += f" and saved; to go on: {hint or call}"
        return TrainingInterrupted(text, self.history, path, signal)


@contextmanager
def _put_back() -> Iterator[list[tuple[Any, Any]]]:
    """Things with the states they had, which they get again where what follows fails."""
    moved: list[tuple[Any, Any]] = []
    try:
        yield moved
    except BaseException:
        for item, state in reversed(moved):
            if state is not None:
                item.restore(state)
        raise


def _restore(path: Path, name: str, item: Any, state: Any) -> None:
    """Put something in a state that a file says; whatever it makes of a wrong one is an error of the file."""
    try:
        item.restore(state)
    except FormatError as error:
        raise _in_file(path, error) from error
    except DarnerError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise FormatError(
            f"'{path}' has a state of {name} that it cannot be put in: {error!r}"
        ) from error


def _in_file(path: Path, error: FormatError) -> FormatError:
    if str(path) in error.rule:
        return error
    text = f"'{path}' does not say how training goes on: {error.rule}"
    return FormatError(text, hint=error.hint)
