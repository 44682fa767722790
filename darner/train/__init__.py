"""Training: steps, validation, checkpoints, logs and a live display.

Modules, in the order data passes through them:

    feed         batches by name, epoch after epoch, from a place that can be kept
    trainer      the loop; ``diverged`` says where a NaN came from, ``interrupts`` what Ctrl-C does
    resuming     what a trainer saves, and how it goes on from there; ``progress`` is where it stands,
                 ``folder_lock`` what keeps others out of its folder
    validation   other data, the same parameters; ``metrics`` are what is measured there
    history      what there was so far
    callbacks    who is told of it: ``checkpoints``, ``logs`` and ``display`` are callbacks
"""

from ..compat.training import TrainConfig
from .callbacks import Callback, EarlyStop, LossHistory, MetricCallback
from .checkpoints import Checkpoints, checkpoints, latest
from .diverged import DivergedError
from .folder_lock import FolderInUseError
from .history import EpochStats, StepMetrics, TrainHistory, ValidationMetrics
from .logs import JsonLog, TensorBoard
from .metrics import Metric, accuracy, loss, perplexity
from .resuming import TrainingInterrupted
from .trainer import Trainer

__all__ = [
    "Callback",
    "Checkpoints",
    "DivergedError",
    "EarlyStop",
    "EpochStats",
    "FolderInUseError",
    "JsonLog",
    "LossHistory",
    "Metric",
    "MetricCallback",
    "StepMetrics",
    "TensorBoard",
    "TrainConfig",
    "TrainHistory",
    "Trainer",
    "TrainingInterrupted",
    "ValidationMetrics",
    "accuracy",
    "checkpoints",
    "latest",
    "loss",
    "perplexity",
]
