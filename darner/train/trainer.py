"""The loop of training: runs, steps, epochs, validation, and whoever is told of them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from math import isfinite
from time import perf_counter
from typing import Any

from ..compat.training import TrainConfig
from ..graph.errors import ArgumentError, Calling, RunError, UnknownNameError, nearest
from ..graph.graph import Graph
from ..optim.base import GRADIENT_NORM, PREFIX, Optimizer
from ..session.builders import build_session
from ..session.session import Session
from .callbacks import HOOKS, Callback, EarlyStop, as_callback, listeners
from .checkpoints import Checkpoints
from .display import Display, display_for
from .diverged import diverged
from .feed import Amount, Feed
from .history import EpochStats, StepMetrics, TrainHistory, ValidationMetrics
from .interrupts import Interrupts
from .logs import JsonLog, TensorBoard
from .metrics import Metric, as_metrics, loss
from .progress import Progress
from .resuming import Resuming
from .validation import Validator

LOG_INTERVAL = 10
LOG = "log.jsonl"
"""The name of the log in the folder of checkpoints, where no other is asked for."""


class Trainer(Resuming):
    """Trains a session on batches.

    Args:
        session: a training session, or the graph of one (then ``options`` are those of ``build_session``).
        batches: a source of ``darner.data``, or a list of batches: mappings from inputs to arrays.
        config: Meganeura's way to say some of this.
        optimizer: in place of the session's own.
        steps: how many updates to make; or
        epochs: how many times to go through the batches.
        validation: other batches, on which metrics are measured.
        validation_graph: what is run on them, or a session of it; the training graph, without dropout, when left out.
        validate_every: after how many steps; after every epoch when left out. The end is validated in any case.
        metrics: what is measured besides the loss: names (``"accuracy"``, ``"perplexity"``), ``train.Metric``, or a
            mapping from names to functions of outputs and batch.
        callbacks: objects of ``train.Callback``, or functions of ``StepMetrics``.
        accumulate: how many batches share an update; as the optimizer says when left out.
        checkpoint: a folder for checkpoints, the curve of the loss, and the log. Until ``close`` it is this trainer's alone.
        checkpoint_every: after how many steps; after every epoch when left out.
        keep: how many of the newest checkpoints are kept, beside the best.
        resume: go on from the newest checkpoint in the folder, if there is one; or from the file that is named.
        log: a file of JSON lines; True for ``log.jsonl`` beside the checkpoints.
        log_interval: after how many steps there is a record of log.
        tensorboard: a folder for event files.
        early_stop: ends training when validation gets no better.
        progress: show how it goes: on a terminal (None), also as plain lines where there is none (True), never (False).
        resume_hint: how to go on after an interruption, in place of the call in Python.

    Attributes:
        session: what is trained.
        progress: where training stands.
    """

    def __init__(  # many parameters: they are the user's options, by name
        self,
        session: Session | Graph,
        batches: Any = None,
        config: TrainConfig | None = None,
        *,
        optimizer: Optimizer | None = None,
        steps: int | None = None,
        epochs: int | None = None,
        validation: Any = None,
        validation_graph: Graph | Session | None = None,
        validate_every: int | None = None,
        metrics: Any = (),
        callbacks: Iterable[Any] = (),
        accumulate: int | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int | None = None,
        keep: int = 3,
        resume: bool | str | os.PathLike[str] = False,
        log: str | os.PathLike[str] | bool | None = None,
        log_interval: int | None = None,
        tensorboard: str | os.PathLike[str] | None = None,
        early_stop: EarlyStop | None = None,
        progress: bool | None = None,
        resume_hint: str | None = None,
        **options: Any,
    ) -> None:
        if isinstance(batches, TrainConfig) and config is None:  # in Meganeura's order
            batches, config = None, batches
        self._names = ("x", "labels")
        if config is not None:
            self._names = (config.data_input, config.label_input)
            optimizer = config.chosen if optimizer is None else optimizer
            log_interval = config.log_interval if log_interval is None else log_interval
        with Calling("Trainer"):
            self._every = _whole("log_interval", log_interval) or LOG_INTERVAL
            self._validate_every = _whole("validate_every", validate_every)
            self._steps, self._epochs = _whole("steps", steps), _whole("epochs", epochs)
            self.feed: Feed | None = None if batches is None else Feed(batches, self._names)
            found = as_metrics(metrics)
            if all(item.name != "loss" for item in found):
                found.insert(0, loss())
            self.metrics = found
            watched = found[0].name
            if early_stop is not None:
                watched = self.metric(early_stop.metric).name
                if validation is None:
                    raise ArgumentError("early_stop looks at validation", hint="validation=batches")
            self.checkpoints: Checkpoints | None = None
            if checkpoint is not None:
                self.checkpoints = Checkpoints(checkpoint, checkpoint_every, keep, watched)
                if self.feed is not None:
                    self._must_resume(self.feed)
            self._display: Display | None = display_for(progress)
            own = [self._log(log), None if tensorboard is None else TensorBoard(tensorboard)]
            if not isinstance(callbacks, Iterable):
                raise ArgumentError(f"callbacks are a list, got {callbacks!r}")
            given = [as_callback(item) for item in callbacks]
            # The last one saves what all others know after a step.
            last = (*own, *given, early_stop, self._display, self.checkpoints)
            self.callbacks: list[Callback] = [item for item in last if item is not None]
            self._paced = (0, 0.0)
            self._amount_of: Amount | None = None
            self._told: defaultdict[str, list[Any]] = defaultdict(list)
            self._resume_hint = resume_hint
            with ExitStack() as owned:  # closed where what follows fails
                self._have_folder(owned)
                self.session = self._opened(session, optimizer, accumulate, options, owned)
                self._validator: Validator | None = None
                if validation is not None:
                    self._validator = Validator(
                        self.session, validation, self.metrics, validation_graph, self._names
                    )
                    owned.callback(self._validator.close)
                self.progress = Progress(self.accumulate)
                self._resumed(resume)
                self._owned = owned.pop_all()

    # ------------------------------------------------------------- set up

    def _opened(
        self,
        session: Session | Graph,
        optimizer: Optimizer | None,
        accumulate: int | None,
        options: dict[str, Any],
        owned: ExitStack,
    ) -> Session:
        chosen = optimizer
        if isinstance(session, Session):
            if options:
                raise ArgumentError(f"Trainer has no option '{next(iter(options))}'")
            chosen = session.optimizer if optimizer is None else optimizer
        if not isinstance(chosen, Optimizer):
            what = "there is no optimizer" if chosen is None else f"{chosen!r} is no optimizer"
            raise ArgumentError(what, hint="Trainer(..., optimizer=optim.AdamW(3e-4))")
        if accumulate is not None and accumulate != chosen.accumulate:
            chosen = replace(chosen, accumulate=accumulate)
        self.accumulate = chosen.accumulate
        if not isinstance(session, Session):
            return owned.enter_context(build_session(session, optimizer=chosen, **options))
        if chosen != session.optimizer:
            session.set_optimizer(chosen)
        return session

    def _log(self, log: str | os.PathLike[str] | bool | None) -> JsonLog | None:
        if log is None or log is False:
            return None
        if log is not True:
            return JsonLog(log)
        if self.checkpoints is None:
            raise ArgumentError("log=True is a file beside the checkpoints", hint="checkpoint=")
        return JsonLog(self.checkpoints.folder / LOG)

    # ------------------------------------------------------------- what it is

    @property
    def validates(self) -> bool:
        """Whether there is validation."""
        return self._validator is not None

    @property
    def total(self) -> int | None:
        """How many steps there are in all, where that is known."""
        found = [] if self._steps is None else [self._steps]
        if self._epochs is not None and self.feed is not None and self.feed.length is not None:
            found.append(self._epochs * self.feed.length // self.accumulate)
        return min(found, default=None)

    @property
    def unit(self) -> str:
        """What is counted: tokens, or samples."""
        return "samples" if self._amount_of is None else self._amount_of.unit

    @property
    def learning_rate(self) -> float:
        """The rate of the last update, its schedule included."""
        optimizer = self.session.optimizer
        if optimizer is None:
            raise RunError("the session has no optimizer any more")
        rate: float = optimizer.setting("learning_rate")
        if optimizer.schedule is None:
            return rate
        done = int(self.session.state()[f"{PREFIX}/step"])
        return rate * optimizer.schedule(max(done - 1, 0))

    @property
    def gradient_norm(self) -> float | None:
        """The norm of all gradients at the last update, before clipping; None where there is no ``clip_norm``."""
        optimizer = self.session.optimizer
        if optimizer is None or optimizer.clip_norm is None:
            return None
        return float(self.session.state()[GRADIENT_NORM])

    def metric(self, name: str) -> Metric:
        """The metric of a name."""
        found = {item.name: item for item in self.metrics}
        if name not in found:
            raise UnknownNameError(f"there is no metric '{name}'", hint=nearest(name, found))
        return found[name]

    # ------------------------------------------------------------- training

    def train(self, batches: Any = None, epochs: int | None = None) -> TrainHistory:
        """Train to the end, from where it stands.

        Args:
            batches: in place of those that the trainer was made with.
            epochs: how many more times to go through them, in place of ``steps`` and ``epochs``.

        Raises:
            TrainingInterrupted: Ctrl-C was pressed, or SIGTERM came; training was saved first, if there is a folder for checkpoints.
            DivergedError: the loss is NaN or infinite; the last checkpoint is left as it is.
        """
        with Calling("train"):
            feed = self._fed(batches, epochs)
            self._have_folder_again()
            warn = None if self._display is None else self._display.warn
            with ExitStack() as closing, Interrupts(warn) as interrupts:
                closing.push(self._leave_folder)
                closing.callback(self._told.clear)
                closing.callback(feed.pause)
                for item in self.callbacks:
                    item.on_start(self)
                    closing.callback(item.close)
                self._told.update((hook, listeners(self.callbacks, hook)) for hook in HOOKS)
                if not self.session.graph.dynamic_symbols():
                    self.session.compile()
                if self._validator is not None:
                    self._validator.try_out()
                self._loop(feed, interrupts)
                if self._validator is not None and not self._is_validated():
                    self.validate()
                for ended in self._told["on_end"]:
                    ended(self.history)
            return self.history

    def train_epoch(self, batches: Any = None) -> EpochStats:
        """Go through the batches once more."""
        return self.train(batches, 1).epochs[-1]

    def stop(self, reason: str) -> None:
        """End training after the step that is being made; for callbacks."""
        self.history.stopped = reason

    def _fed(self, batches: Any, epochs: int | None) -> Feed:
        if batches is not None:
            before, self.feed = self.epoch, Feed(batches, self._names)
            self.feed.epoch = before
        if self.feed is None:
            raise ArgumentError(
                "there are no batches", hint="train(batches), or Trainer(session, batches)"
            )
        if self.checkpoints is not None:
            self._must_resume(self.feed)
        if epochs is not None:
            self._steps, self._epochs = None, self.feed.epoch + (_whole("epochs", epochs) or 0)
        if self._steps is None and self._epochs is None:
            raise ArgumentError("there is no end", hint="steps=, or epochs=")
        self.history.stopped = ""
        return self.feed

    def _loop(self, feed: Feed, interrupts: Interrupts) -> None:
        run, name = self.session.run, self.session.output_names[0]
        progress = self.progress
        self._paced = (progress.amount, progress.seconds)
        self._mark = perf_counter()
        while not self._is_over(feed):
            batch = feed.next()
            if batch is None:
                self._end_epoch()
                continue
            loss = run(batch, copy=False)[name].item()
            if not isfinite(loss):
                raise diverged(self, batch, loss)
            if self._amount_of is None:
                self._amount_of = Amount(batch)
            is_step = progress.add(loss, self._amount_of(batch), feed.epoch)
            if feed.ended():
                self._end_epoch()
            if is_step:
                self._end_step()
            if interrupts.pending is not None:
                stopped = self._interrupted(self._resume_hint, interrupts.pending)
                if self._display is not None:
                    self._display.tell_last(str(stopped))
                raise stopped

    def _is_over(self, feed: Feed) -> bool:
        if self.history.stopped and not self.progress.runs:
            return True
        if self._steps is not None and self.step >= self._steps:
            return True
        return self._epochs is not None and feed.epoch >= self._epochs

    def _end_step(self) -> None:
        """Tell everyone; what they do is not part of the time of training."""
        progress = self.progress
        progress.seconds += perf_counter() - self._mark
        progress.history.seconds = progress.seconds
        if progress.step % self._every == 0:
            self._write_log()
        every = self._validate_every
        if progress.validation_due or (every is not None and progress.step % every == 0):
            self.validate()
        if self._told["on_step"]:
            loss = progress.history.losses[-1]
            seen = (progress.amount, progress.seconds)
            metrics = StepMetrics(progress.step, progress.epoch, loss, *seen)
            for listener in self._told["on_step"]:
                listener(metrics)
        self._mark = perf_counter()

    def _end_epoch(self) -> None:
        stats = self.progress.end_epoch()
        for listener in self._told["on_epoch"]:
            listener(stats)
        # Metrics are those of a step: where the epoch ends between two, the next one is waited for.
        self.progress.validation_due = self.validates and self._validate_every is None

    def _write_log(self) -> None:
        if not self._told["on_log"]:
            return
        progress, before = self.progress, self._paced
        seconds = progress.seconds - before[1]
        losses = progress.history.losses[-self._every :]
        record = {
            "step": progress.step,
            "epoch": progress.epoch,
            "loss": sum(losses) / len(losses),
            "learning_rate": self.learning_rate,
            f"{self.unit}_per_second": (progress.amount - before[0]) / seconds if seconds else 0.0,
            "seconds": progress.seconds,
        }
        norm = self.gradient_norm
        if norm is not None:
            record["gradient_norm"] = norm
        self._paced = (progress.amount, progress.seconds)
        for listener in self._told["on_log"]:
            listener(record)

    # ------------------------------------------------------------- validation

    def validate(self) -> dict[str, float]:
        """Measure the metrics on the batches of validation now."""
        if self._validator is None:
            raise ArgumentError("there is no validation", hint="Trainer(..., validation=batches)")
        self.progress.validation_due = False
        result = ValidationMetrics(self.step, self.progress.epoch, self._validator.measure())
        self.history.validations.append(result)
        for listener in self._told["on_validation"]:
            listener(result)
        return dict(result.values)

    def _is_validated(self) -> bool:
        found = self.history.validations
        return not self.step or bool(found and found[-1].step == self.step)

    # ------------------------------------------------------------- care

    def close(self) -> None:
        """Free what the trainer made itself (the session of validation, and its own where it was given a graph), and leave its folder."""
        self._owned.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        total = "" if self.total is None else f" of {self.total}"
        return f"<Trainer of '{self.session.graph.name}': step {self.step}{total}>"


def _whole(name: str, value: int | None) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ArgumentError(f"{name} is a whole number of at least 1, got {value!r}")
    return value
