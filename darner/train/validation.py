"""Validation: metrics on data that is not trained on, with the parameters of the session that trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..graph.errors import ArgumentError, DarnerError
from ..graph.graph import Graph
from ..session.binding import check_values
from ..session.builders import build_inference_session
from ..session.pipeline import without_dropout
from ..session.programs import input_types
from ..session.session import Session
from .feed import Batch, Feed, Listed
from .metrics import Means, Metric


class Validator:
    """Measures metrics over all batches of a source.

    Args:
        trained: the session whose parameters are used.
        batches: as for training; every measurement sees the same ones in the same order.
        metrics: what is measured.
        graph: what is run, or a session of it; the graph that is trained when left out, without its dropout.
        names: of the parts of batches that are tuples; the last one is that of labels.
    """

    def __init__(
        self,
        trained: Session,
        batches: Any,
        metrics: Sequence[Metric],
        graph: Graph | Session | None = None,
        names: Sequence[str] = ("x", "labels"),
    ) -> None:
        self.metrics = list(metrics)
        self._feed = Feed(batches, names)
        self._labels = names[-1]
        self._start = self._feed.state() if self._feed.resumable else None
        self._tried = False
        self._own = not isinstance(graph, Session)
        if isinstance(graph, Session):
            self.session = graph
            self._check()
            return
        chosen = _without_updates(trained.graph) if graph is None else graph
        self._check(chosen)
        config = trained.config
        self.session = build_inference_session(
            chosen,
            share=trained,
            device=config.device,
            threads=config.threads,
            precision=config.precision,
            level=config.level,
            cache=config.cache,
            progress=config.progress,
        )

    def _check(self, graph: Graph | None = None) -> None:
        """Look at batches before anything is trained: all of a list, else the first.

        Inputs that a session was given before need not be in them, where it is no session of this one's own.
        """
        found = self.session.graph if graph is None else graph
        types = input_types(found)
        for i, batch in enumerate(self._peeked()):
            try:
                check_values(types, batch, found.dynamic_symbols(), whole=graph is not None)
            except DarnerError as error:
                rule = f"batch {i} of validation: {error.rule}"
                raise type(error)(rule, hint=error.hint) from error

    def _peeked(self) -> list[Batch]:
        """Batches that can be looked at and are handed out later all the same."""
        feed = self._feed
        if isinstance(feed.source, Listed):
            return [feed.named(batch) for batch in feed.source.batches]
        if isinstance(feed.source, Iterator):
            return []  # what is taken from one is gone
        first = next(iter(feed.source), None)
        if self._start is not None:
            feed.restore(self._start)
        if first is None:
            raise ArgumentError("there are no batches of validation")
        return [feed.named(first)]

    def try_out(self) -> None:
        """Measure one batch, so that a metric that cannot be measured is told before training, and not after an epoch of it.

        A function of the user's own is called when there is something to measure, and not before.
        """
        if self._tried:
            return
        self._tried = True
        known = [metric for metric in self.metrics if metric.is_known]
        for batch in self._peeked()[:1] if known else ():
            Means(known, self._labels).add(self.session.run(batch, copy=False), batch)

    def measure(self) -> dict[str, float]:
        """The mean of each metric over all batches."""
        if self._start is not None:
            self._feed.restore(self._start)
        means = Means(self.metrics, self._labels)
        while (batch := self._feed.next()) is not None:
            means.add(self.session.run(batch, copy=False), batch)
            if self._feed.ended():
                break
        return means.values()

    def close(self) -> None:
        """Free the session, where it is this one's own."""
        if self._own:
            self.session.close()


def _without_updates(graph: Graph) -> Graph:
    """The graph that is trained, where running it changes nothing but parameters."""
    changed = [str(leaf.name) for leaf in without_dropout(graph).updates]
    if changed:
        raise ArgumentError(
            f"running the graph '{graph.name}' changes its states {', '.join(changed[:4])}, "
            "so that validation would disturb training",
            hint="validation_graph= is the graph for it: the one of inference, with the loss as first output",
        )
    return graph
