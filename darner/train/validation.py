"""Validation: metrics on data that is not trained on, with the parameters of the session that trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.errors import ArgumentError
from ..graph.graph import Graph
from ..session.builders import build_inference_session
from ..session.pipeline import without_dropout
from ..session.session import Session
from .feed import Feed
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
        self._own = not isinstance(graph, Session)
        if isinstance(graph, Session):
            self.session = graph
            return
        chosen = _without_updates(trained.graph) if graph is None else graph
        config = trained.config
        self.session = build_inference_session(
            chosen,
            share=trained,
            device=config.device,
            threads=config.threads,
            level=config.level,
            cache=config.cache,
            progress=config.progress,
        )

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
