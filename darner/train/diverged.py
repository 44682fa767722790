"""A loss that is no number any more: where it came from, found by making the run before it once more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..graph.errors import RunError
from ..optim.base import GRADIENT_SUM
from .feed import Batch

if TYPE_CHECKING:
    from ..inspect.trace import Trace
    from .trainer import Trainer

PATIENCE = 60.0
"""Seconds that runs since the last checkpoint may take to be made again."""


class DivergedError(RunError):
    """The loss is NaN or infinite.

    Attributes:
        step: the step in which it is.
        trace: what the kernels of the run made, where that could be told.
        checkpoint: the last one before it.
    """

    step: int = 0
    trace: Trace | None = None
    checkpoint: Path | None = None


def diverged(trainer: Trainer, batch: Batch, loss: float) -> DivergedError:
    """The error for a run whose loss is not finite; the trainer is at its last checkpoint again, where there is one."""
    progress, checkpoint = trainer.progress, trainer.last_checkpoint
    text = f"the loss is {loss:g} at step {progress.step + 1}"
    if progress.accumulate > 1:
        text += f", run {progress.runs + 1} of {progress.accumulate}"
    trace = _traced(trainer, batch, checkpoint)
    found = _blamed(trace)
    hint = "a smaller learning rate, a warm-up or clip_norm may help"
    if checkpoint is not None:
        hint = f"the last good checkpoint is '{checkpoint}'; {hint}"
    elif trace.first is None:
        hint = f"with checkpoint= the kernel is found; {hint}"
    error = DivergedError(f"{text}: {found}" if found else text, hint=hint)
    error.step, error.trace, error.checkpoint = progress.step + 1, trace, checkpoint
    return error


def _traced(trainer: Trainer, batch: Batch, checkpoint: Path | None) -> Trace:
    """What the run made, or the one before it, whose update may have been the fault.

    The update that followed the loss is made already, and what it was made from is gone. But training can be resumed
    exactly, so it is made once more from the last checkpoint on.
    """
    progress = trainer.progress
    # Sums that have the bad gradient already would hide who made it; they are of no use any more.
    states = trainer.session.state()
    sums = [name for name in states if name.endswith(GRADIENT_SUM)]
    states.update({name: np.zeros_like(states[name]) for name in sums})
    trace = trainer.session.trace_dispatches(inputs=batch)
    if checkpoint is None:
        return trace
    trainer.load(checkpoint)
    again = progress.total_runs - trainer.progress.total_runs
    seconds = again * progress.seconds / max(progress.total_runs, 1)
    if (trace.first is None or trace.leaves) and seconds <= PATIENCE:
        trace = _replayed(trainer, again)
        trainer.load(checkpoint)
    return trace


def _replayed(trainer: Trainer, runs: int) -> Trace:
    session = trainer.session
    for left in range(runs, -1, -1):
        batch = trainer.next_batch()
        if left <= 1:
            trace = session.trace_dispatches(inputs=batch)
            if trace or not left:
                return trace
        session.run(batch, copy=False)
    raise RunError("there was no run to make again")


def _blamed(trace: Trace) -> str:
    """The kernel, the cause and the line that a trace names, in one line; empty where it names none."""
    first = trace.first
    if first is None:
        return f"before it ran, {trace.leaves[0]}" if trace.leaves else ""
    label = f" '{first.label}'" if first.label else ""
    cause = f": {first.cause}" if first.cause is not None else f" of {first.ops}"
    line = f" ({first.source})" if first.source is not None else ""
    return f"kernel {first.name} {first.kind}{label} made it{cause}{line}"
