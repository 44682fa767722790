"""Metrics: numbers that say how good outputs are, averaged over all batches of a validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..graph.data import Array
from ..graph.errors import ArgumentError, UnknownNameError, nearest
from .feed import Batch

Outputs = Mapping[str, Array]
Measure = Callable[[Outputs, Batch], Any]
"""From a run's outputs and its batch to a sum and how many it is the sum of, or to one mean."""


def _as_it_is(mean: float) -> float:
    return mean


@dataclass(frozen=True)
class Metric:
    """A number that is measured on batches and averaged.

    Attributes:
        name: what it is called in logs.
        measure: gives for a batch a sum and the number of its terms; or a mean, which counts as much as the batch does.
        higher: whether more is better.
        finish: what is made of the mean over all batches.
    """

    name: str
    measure: Measure
    higher: bool = False
    finish: Callable[[float], float] = _as_it_is

    @property
    def is_known(self) -> bool:
        """Whether it comes with darner: measuring a batch then changes nothing."""
        return isinstance(self.measure, _Loss | _Accuracy)


def loss(output: str | None = None) -> Metric:
    """The mean of an output that is one number: the first one when left out."""
    return Metric("loss", _Loss(output))


def perplexity(output: str | None = None) -> Metric:
    """How many tokens a language model wavers between: e to the power of its mean loss."""
    return Metric("perplexity", _Loss(output), finish=_exponential)


def accuracy(output: str = "logits", labels: str = "labels") -> Metric:
    """The share of labels that have the largest score; labels below 0 count for nothing.

    Labels are class numbers, or rows with one 1.

    >>> scores = np.array([[1.0, 3.0], [2.0, 0.0], [0.0, 1.0]])
    >>> accuracy().measure({"logits": scores}, {"labels": np.array([1, 1, -100])})
    (1, 2)
    """
    return Metric("accuracy", _Accuracy(output, labels), higher=True)


KNOWN: dict[str, Callable[[], Metric]] = {
    "loss": loss,
    "accuracy": accuracy,
    "perplexity": perplexity,
}


def as_metrics(given: Any) -> list[Metric]:
    """Metrics from metrics, names of ``KNOWN``, or a mapping from names to functions."""
    if isinstance(given, str | Metric) or not isinstance(given, Iterable):
        raise ArgumentError(f"metrics are a list or a table by name, got {given!r}")
    items = list(given.items()) if isinstance(given, Mapping) else [(None, item) for item in given]
    found = []
    for name, item in items:
        if isinstance(item, str):
            if item not in KNOWN:
                raise UnknownNameError(f"there is no metric '{item}'", hint=nearest(item, KNOWN))
            item = KNOWN[item]()
        elif not isinstance(item, Metric):
            if not callable(item) or name is None:
                raise ArgumentError(
                    f"a metric is a train.Metric or a name, got {item!r}",
                    hint="functions have names: metrics={'name': function}",
                )
            item = Metric(name, item)
        found.append(item)
    names = [item.name for item in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ArgumentError(f"there are two metrics '{twice}'")
    return found


def weight_of(batch: Batch, name: str = "labels") -> int:
    """How much the means of a batch count: its labels that count, or its samples where labels are no class numbers.

    >>> weight_of({"x": np.zeros((4, 2)), "labels": np.array([[1, 0, -100], [2, 2, 1]])})
    5
    >>> weight_of({"x": np.zeros((4, 2))})
    4
    """
    labels = batch.get(name)
    if labels is not None:
        values = np.asarray(labels)
        if values.dtype.kind in "iu":
            return int(np.count_nonzero(values >= 0))
    shape = np.shape(next(iter(batch.values())))
    return shape[0] if shape else 1


@dataclass(frozen=True)
class _Loss:
    output: str | None

    def __call__(self, outputs: Outputs, batch: Batch) -> float:
        name = next(iter(outputs)) if self.output is None else self.output
        value = _output(outputs, name)
        if value.size != 1:
            raise ArgumentError(f"the loss is one number, but output '{name}' is {value.shape}")
        return float(value.reshape(()))


@dataclass(frozen=True)
class _Accuracy:
    output: str
    labels: str

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[int, int]:
        scores = _output(outputs, self.output)
        if self.labels not in batch:
            raise UnknownNameError(
                f"batches have no '{self.labels}'", hint=nearest(self.labels, list(batch))
            )
        labels = np.asarray(batch[self.labels])
        if labels.dtype.kind == "f":
            labels = labels.argmax(-1)
        chosen = scores.argmax(-1).reshape(labels.shape)
        counted = labels >= 0
        right = np.count_nonzero((chosen == labels) & counted)
        return int(right), int(np.count_nonzero(counted))


def _output(outputs: Outputs, name: str) -> Array:
    if name not in outputs:
        raise UnknownNameError(
            f"the graph has no output '{name}'", hint=nearest(name, list(outputs))
        )
    return outputs[name]


def _exponential(mean: float) -> float:
    return math.exp(mean) if mean < 700.0 else math.inf


def _number(metric: Metric, found: Any) -> float:
    """What a user's function measured."""
    try:
        return float(found)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"the metric '{metric.name}' gave {found!r}",
            hint="it gives a number, or a sum and how many it is the sum of",
        ) from None


class Means:
    """Metrics over batches, added up and averaged at the end; ``labels`` is the input that says what counts."""

    def __init__(self, metrics: Iterable[Metric], labels: str = "labels") -> None:
        self._metrics = list(metrics)
        self._labels = labels
        self._sums = [0.0] * len(self._metrics)
        self._counts = [0.0] * len(self._metrics)

    def add(self, outputs: Outputs, batch: Batch) -> None:
        """One batch more."""
        weight: int | None = None
        for i, metric in enumerate(self._metrics):
            found = metric.measure(outputs, batch)
            if isinstance(found, tuple) and len(found) == 2:
                total, count = _number(metric, found[0]), _number(metric, found[1])
            else:
                weight = weight_of(batch, self._labels) if weight is None else weight
                total, count = _number(metric, found) * weight if weight else 0.0, float(weight)
            self._sums[i] += total
            self._counts[i] += count

    def values(self) -> dict[str, float]:
        """The mean of each metric; NaN where nothing counted."""
        found = zip(self._metrics, self._sums, self._counts, strict=True)
        return {m.name: m.finish(total / n) if n else math.nan for m, total, n in found}
