"""The part of a session that answers questions: memory, norms, time, and where numbers go wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph.data import Array
from ..graph.errors import ArgumentError
from ..graph.graph import Graph
from ..inspect.summary import MemorySummary
from ..optim.adam import Adam
from .running import Runner
from .training import Learner
from .values import Values

if TYPE_CHECKING:
    from ..inspect.gradients import GradientSummary
    from ..inspect.profile import Profile
    from ..inspect.trace import Trace
    from ..optimizer import Target

ADAM_STATES = ("mean", "variance", "largest_variance")


class Inspector:
    """What looks into a session. Whoever calls it holds the session's lock."""

    def __init__(self, graph: Graph, values: Values, runner: Runner, learner: Learner) -> None:
        self._graph = graph
        self._values = values
        self._runner = runner
        self._learner = learner

    def parameter_norms(self) -> dict[str, float]:
        """The Euclidean norm of each parameter."""
        return {name: norm(self._values.read(name)) for name in self._graph.parameters}

    def memory_summary(self) -> MemorySummary:
        """How much memory the session takes."""
        arrays, added = self._values.arrays, self._values.added
        sizes = [array.nbytes for array in arrays.values()] + self._values.copied_bytes
        for special in self._runner.kept.values():
            plans = (special.plans.step, special.plans.setup)
            for plan in [plan for plan in plans if plan is not None]:
                outside = [b for b in plan.buffers if b.place in ("input", "constant")]
                sizes += [b.nbytes for b in outside if b.name not in special.plans.setup_names]
                sizes += [size for size in (plan.arena_bytes, plan.step_bytes) if size]
        moments = 0
        if isinstance(self._learner.used, Adam):
            names = [name for name in added if name.rpartition("/")[2] in ADAM_STATES]
            moments = sum(arrays[name].nbytes for name in names)
        return MemorySummary(sum(sizes), moments, len(sizes), max(sizes, default=0))

    def set_profiling(self, enabled: bool) -> None:
        """Time each kernel of the steps that follow, or no longer."""
        if not isinstance(enabled, bool):
            raise ArgumentError(f"profiling is True or False, got {enabled!r}")
        self._runner.profiling = enabled
        self._runner.forget_recorders()

    def profile(self, machine: str | Target | None) -> Profile:
        """What the last steps with profiling on took."""
        loaded = self._runner.ran().loaded
        if loaded is None or loaded.recorder is None:
            raise ArgumentError(
                "profiling was off in the last step", hint="set_profiling(True), then step()"
            )
        return loaded.recorder.profile(machine)

    def trace(
        self, threshold: float | None, inputs: Mapping[str, Any] | None, every: bool
    ) -> Trace:
        """A step kernel by kernel, after which everything is as it was."""
        from ..inspect.trace import trace_dispatches

        given = self._runner.given(inputs)
        special, loaded = self._runner.ready(given)
        try:
            if loaded.prepared is not None:
                # What is looked at are values, in the order they were given.
                loaded.prepared.fill()
                loaded.version = -1
            return trace_dispatches(loaded.program, threshold=threshold, every=every)
        finally:
            self._runner.release(given, special, loaded)

    def gradient_summary(
        self, gradients: Mapping[str, Array], shown: int | None
    ) -> GradientSummary:
        """Gradients beside their parameters."""
        from ..inspect.gradients import gradient_summary

        parameters = {name: self._values.read(name) for name in gradients}
        return gradient_summary(gradients, parameters, shown=shown)


def norm(value: Array) -> float:
    """The Euclidean norm of all elements, in f64."""
    return float(np.linalg.norm(value.astype(np.float64).reshape(-1)))
