"""Plans and programs of a session: read where an earlier build kept them, else made and kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..backends.base.backend import Tuning
from ..backends.base.lowering import compile_for
from ..backends.base.program import Program
from ..backends.base.registry import backend_of
from ..graph.garbage import without_collection
from ..graph.graph import Graph
from ..io.memory import Bytes, give_back_code, trim
from ..lower.plan import Plan
from ..optim.base import Optimizer
from .buildkey import build_key
from .config import SessionConfig
from .copies import Copies
from .pipeline import Pipeline, Plans
from .planfile import load_plans, save_plans
from .programs import Loaded, Sizes, Specialised
from .progress import Phases
from .values import Values

if TYPE_CHECKING:
    from ..backends.base.cache import ObjectCache

LARGE = 32 << 20
"""Bytes of parameters from which on a session needs memory more than a quick next build."""


class Compiler:
    """What makes the specialisations of a session.

    Args:
        graph: of the session.
        config: of the session.
        values: its parameters and states, whose memory programs use.
        plan_file: where plans are kept, if in a file of their own.
        plans: of known sizes and the config's optimizer, where they were made before.

    Attributes:
        phases: how long each phase of building took.
    """

    def __init__(
        self,
        graph: Graph,
        config: SessionConfig,
        values: Values,
        plan_file: str | Path | None,
        plans: Plans | None = None,
    ) -> None:
        self._graph = graph
        self._config = config
        self._values = values
        self._plan_file = None if plan_file is None else Path(plan_file)
        self._plans = plans
        self._pipelines: OrderedDict[Sizes, Pipeline] = OrderedDict()
        self.phases = Phases(graph.name, config.progress)

    # ------------------------------------------------------------- plans

    def specialised(self, sizes: Sizes, optimizer: Optimizer | None) -> Specialised:
        """The plans for these sizes, with these updates."""
        if self._plans is not None and not sizes and optimizer == self._config.optimizer:
            return Specialised(self._plans, self._graph)
        with self.phases.shown(), without_collection():
            if self._plan_file is not None and not sizes:
                found = self._plans_of_file(self._plan_file, self._pipeline(sizes), optimizer)
                return Specialised(found, self._graph)
            cache, key, plans = self._config.object_cache(), None, None
            if cache is not None:
                from .buildcache import load_build

                with self.phases.timed("load"):
                    key = build_key(self._graph, self._config, optimizer, sizes)
                    if key is not None:
                        plans = load_build(cache, key, optimizer)
            if plans is not None:
                return Specialised(plans, self._graph)
            backend_of(self._config.device).warm_up()
            pipeline = self._pipeline(sizes)
            return Specialised(pipeline.plans(optimizer, self.phases.timed), self._graph, key)

    def _pipeline(self, sizes: Sizes) -> Pipeline:
        """The pipeline for these sizes, kept as long as its specialisation could be."""
        found = self._pipelines.get(sizes)
        if found is None:
            bound = self._graph.bind(dict(sizes)) if sizes else self._graph
            found = self._pipelines[sizes] = Pipeline(bound, self._config, self._graph)
        self._pipelines.move_to_end(sizes)
        while len(self._pipelines) > self._config.specialisations:
            self._pipelines.popitem(last=False)
        return found

    def _plans_of_file(self, path: Path, pipeline: Pipeline, optimizer: Optimizer | None) -> Plans:
        found, key = load_plans(path, self._graph, self._config, optimizer, self.phases.timed)
        if found is None:
            found = pipeline.plans(optimizer, self.phases.timed, key)
            if key is not None:
                save_plans(path, found, optimizer)
        return found

    # ------------------------------------------------------------- programs

    def load(self, special: Specialised) -> Loaded:
        """Have the programs of a specialisation in memory, from what was saved of equal ones, or compiled."""
        phase = "load" if special.saved else "compile"
        with self.phases.shown(), self.phases.timed(phase), without_collection():
            loaded = self._made(special)
            special.load(loaded)
        return loaded

    def _made(self, special: Specialised) -> Loaded:
        """The programs of a specialisation, kept for the next time where they are new."""
        cache, key, saved = self._config.object_cache(), special.key, iter(special.saved)
        plans = [special.plans.step, special.plans.setup]
        # Code that is kept with its plans is not kept a second time.
        objects = None if key is not None else cache
        other = None if special.partner is None else special.partner.program
        fixed: tuple[list[int], list[int]] = (self._fixed(special), [])
        arenas = (None if other is None else other.arena, None)
        copies = self._values.copies(special.plans.step, special.plans.copies)
        made = [
            self.program(plan, fixed[number], objects, next(saved, None), arenas[number], copies)
            for number, plan in enumerate(plans)
            if plan is not None
        ]
        if not special.saved:
            special.saved = tuple(program.saved for program in made)
            trim()
            step = special.plans.step
            kept = sum(step.buffers[i].nbytes for i in step.leaves("parameter").values())
            if kept >= LARGE:
                give_back_code()
        if key is not None and cache is not None:
            from .buildcache import keep_build

            keep_build(cache, key, special.plans, special.saved)
            special.key = None
        # What a step has copies of may be read by nothing else in it.
        for program in made if copies is not None else made[:1]:
            self.keep_what_is_read(program)
        return Loaded(made[0], made[1] if len(made) > 1 else None, copies)

    def _fixed(self, special: Specialised) -> list[int]:
        """The buffers of a step that change only with the parameters: at inference these, and what is made of them alone."""
        if self._config.trains:
            return []
        step = special.plans.step
        updated = {leaf for leaf, _ in step.updates}
        leaves = step.leaves("parameter").values()
        return [*special.setup_inputs, *(i for i in leaves if i not in updated)]

    def program(
        self,
        plan: Plan,
        fixed: Sequence[int] = (),
        cache: ObjectCache | None = None,
        saved: bytes | None = None,
        arena: Bytes | None = None,
        copies: Copies | None = None,
    ) -> Program:
        """A plan, compiled, on the memory of the session's parameters and states, and of copies of parameters."""
        config, storage = self._config, self._values.arrays
        if copies is not None:
            storage = {**storage, **copies.arrays}
        return compile_for(
            config.device,
            plan,
            threads=config.threads,
            storage=storage,
            cache=cache,
            fixed=fixed,
            saved=saved,
            arena=arena,
            tuning=Tuning(config.tune, config.object_cache(), self.phases.counted),
        )

    def keep_what_is_read(self, program: Program) -> None:
        """Let parameters hold their values that a step reads as they are."""
        if not program.on_host:
            return
        plan, weights = program.plan, self._values.shared.weights
        for number in program.reads.intersection(plan.leaves("parameter").values()):
            parts = plan.buffers[number].parts
            names = [str(plan.buffers[number].name)] if parts is None else [*parts]
            for name in names:
                weights.keep(program.storage[name])
