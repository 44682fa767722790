"""The part of a session that answers questions: memory, norms, time, and where numbers go wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..graph.errors import ArgumentError
from ..inspect.summary import MemorySummary
from ..optim.adam import Adam
from .binding import known
from .training import Training, norm

if TYPE_CHECKING:
    from ..inspect.gradients import GradientSummary
    from ..inspect.memory_map import MemoryMap
    from ..inspect.profile import Profile
    from ..inspect.trace import Trace
    from ..optimizer import Target

ADAM_STATES = ("mean", "variance", "largest_variance")


class Inspecting(Training):
    """What can be asked of a session; see ``Session``."""

    def param_names(self) -> list[str]:
        """The names of the parameters, in the order they were declared."""
        with self._using("param_names"):
            return list(self._graph.parameters)

    def param_size(self, name: str) -> int:
        """How many elements a parameter has."""
        with self._using("param_size"):
            leaf = self._graph.parameters[known("parameter", name, self._graph.parameters)]
            return int(leaf.size)

    def read_all_param_norms(self) -> dict[str, float]:
        """The Euclidean norm of each parameter."""
        with self._using("read_all_param_norms"):
            return {name: norm(self._value(name)) for name in self._graph.parameters}

    def memory_summary(self) -> MemorySummary:
        """How much memory it takes."""
        with self._using("memory_summary"):
            sizes = [array.nbytes for array in self._storage.values()]
            for special in self._kept.values():
                plans = (special.plans.step, special.plans.setup)
                for plan in [plan for plan in plans if plan is not None]:
                    outside = [b for b in plan.buffers if b.place in ("input", "constant")]
                    sizes += [b.nbytes for b in outside if b.name not in special.plans.setup_names]
                    sizes += [plan.arena_bytes] if plan.arena_bytes else []
            moments = 0
            if isinstance(self._optimizer or self._separate_optimizer(), Adam):
                names = [n for n in self._optimizer_states if n.rpartition("/")[2] in ADAM_STATES]
                moments = sum(self._storage[name].nbytes for name in names)
            return MemorySummary(sum(sizes), moments, len(sizes), max(sizes, default=0))

    def memory_map(self, **sizes: int) -> MemoryMap:
        """A picture of the arena over the kernels of a step; sizes as for ``plan``."""
        from ..inspect.memory_map import memory_map

        return memory_map(self.plan(**sizes))

    def set_profiling(self, enabled: bool = True) -> None:
        """Time each kernel of the steps that follow, or no longer; ``profile`` tells."""
        with self._using("set_profiling"):
            if not isinstance(enabled, bool):
                raise ArgumentError(f"profiling is True or False, got {enabled!r}")
            self._profiling = enabled
            for special in self._kept.values():
                for one in (special, special.summing):
                    if one is not None:
                        one.recorder = None

    def profile(self, machine: str | Target | None = None) -> Profile:
        """Time, arithmetic and memory traffic of each kernel in the last steps with profiling on.

        ``machine`` is the roofline to compare with; this one's is measured when left out.
        """
        with self._using("profile"):
            special = self._ran()
            if special.recorder is None:
                raise ArgumentError(
                    "profiling was off in the last step", hint="set_profiling(True), then step()"
                )
            return special.recorder.profile(machine)

    def trace_dispatches(
        self,
        threshold: float | None = None,
        inputs: Mapping[str, Any] | None = None,
        *,
        every: bool = False,
    ) -> Trace:
        """Run a step kernel by kernel and find the first one that makes a NaN or an infinity.

        Parameters, states and outputs are afterwards as they were. Arguments as in ``darner.inspect.trace``; inputs that
        are not given have the values of ``set_input``.
        """
        from ..inspect.trace import trace_dispatches

        with self._using("trace_dispatches"):
            given = self._given(inputs)
            special, program = self._ready(given)
            try:
                if special.prepared is not None:
                    # What is looked at are values, in the order they were given.
                    special.prepared.fill()
                    special.version = -1
                return trace_dispatches(program, threshold=threshold, every=every)
            finally:
                self._release(given, special, program)

    def dump_grad_summary(self, n: int | None = None) -> GradientSummary:
        """Gradients of the last step beside their parameters, by norm; it prints as a table of the first ``n``."""
        from ..inspect.gradients import gradient_summary

        found = self.gradients()
        with self._using("dump_grad_summary"):
            parameters = {name: self._value(name) for name in found}
            return gradient_summary(found, parameters, shown=n)
