"""The part of a session that runs: inputs in, a step, outputs out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backends.base.backend import Tuning
from ..backends.base.lowering import compile_for
from ..backends.base.memory import Bytes, give_back_code, trim
from ..backends.base.program import Program
from ..backends.base.registry import backend_of
from ..graph import dtypes
from ..graph.data import Array
from ..graph.dims import as_dim
from ..graph.errors import (
    ArgumentError,
    Calling,
    DTypeError,
    ForkError,
    RunError,
    ShapeError,
    listed,
)
from ..graph.forks import SPAWN
from ..graph.garbage import without_collection
from ..graph.graph import Graph, check_graph
from ..graph.habits import input_name
from ..graph.node import Node
from ..graph.types import TensorType
from ..lower.plan import Plan
from ..ops.leaves import stored_value
from ..optim.base import ACCUMULATED, Optimizer
from ..optim.step import Summing
from .binding import as_value, into, is_bindable, known, solve_sizes
from .buildkey import build_key
from .config import SessionConfig
from .initialise import check_rules, initial_value, rule_for, warn_of_zeros
from .pipeline import Pipeline, Plans, check_leaves, output_names
from .planfile import load_plans, save_plans
from .preparing import Prepared, Taken
from .programs import (
    ClosedError,
    Kept,
    Shared,
    Sizes,
    Specialised,
    allocate,
    allocate_all,
    input_types,
)
from .progress import Phases

if TYPE_CHECKING:
    from ..backends.base.cache import ObjectCache
    from ..optimizer import OptimizeReport

# For what is called again and again: a step leaves none of Python's memory in the caches, and every line of it that is read costs as much as the memory takes.
_STEP, _WAIT, _READ_LOSS = Calling("step"), Calling("wait"), Calling("read_loss")

LARGE = 32 << 20
"""Bytes of parameters from which on a session needs memory more than a quick next build."""


class Running:
    """Memory, plans and programs of a session; see ``Session``, which adds the rest."""

    def __init__(
        self,
        graph: Graph,
        config: SessionConfig,
        plan_file: str | Path | None = None,
        given: Collection[str] = (),
    ) -> None:
        check_graph(graph)
        graph.verify()
        check_leaves(graph)
        check_rules(config.init)
        self._graph = graph.copy().freeze()
        self._config = config
        self._plan_file = None if plan_file is None else Path(plan_file)
        self._shared = Shared(changes=config.trains or bool(graph.states))
        self._closed = False
        self._phases = Phases(graph.name, config.progress)
        self._input_types = input_types(self._graph)
        self._symbols = self._graph.dynamic_symbols()
        self._output_names = output_names(self._graph)
        self._has_loss = bool(self._output_names) and self._graph.outputs[0].size == 1
        self._staged: dict[str, Array] = {}
        self._storage: dict[str, Array] = {}
        self._kept = Kept(config.specialisations)
        self._last: Specialised | None = None
        self._added: tuple[int, int] | None = None
        self._versions: dict[str, int] = {}
        self._stagings = 0
        self._optimizer: Optimizer | None = None
        self._profiling = False
        parameters, states = self._graph.parameters, self._graph.states
        starts = {name: (leaf_type(leaf), 0.0) for name, leaf in parameters.items()}
        starts |= {name: (leaf_type(leaf), leaf.attrs["init"]) for name, leaf in states.items()}
        self._storage |= allocate_all(starts)
        # What another session gives need not be drawn.
        self._initialise(
            [name for name in parameters if name not in given], config.init, config.seed
        )

    # ------------------------------------------------------------- what it is

    @property
    def graph(self) -> Graph:
        """The graph it was built from."""
        return self._graph

    @property
    def config(self) -> SessionConfig:
        """What was asked for."""
        return self._config

    @property
    def device(self) -> str:
        """Where it runs."""
        return self._config.device

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def build_seconds(self) -> dict[str, float]:
        """How long each phase of building took so far."""
        return dict(self._phases.seconds)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(self._input_types)

    @property
    def output_names(self) -> tuple[str, ...]:
        """What ``run`` calls the outputs: their labels, or ``output0``, ``output1``, ..."""
        return self._output_names

    def num_outputs(self) -> int:
        """How many outputs the graph has."""
        return len(self._output_names)

    def plan(self, **sizes: int) -> Plan:
        """The plan of a step. With symbolic sizes, the one for these sizes, or that of the last step."""
        with self._using("plan"):
            return self._chosen(sizes).plans.step

    @property
    def report(self) -> OptimizeReport:
        """What the optimizer did for the plan of the last step; empty where the plan came from a file.

        Where plan and code were kept by an earlier build, it is that build's, and says so (``report.cached``).
        """
        with self._using("report"):
            return self._chosen({}).plans.report

    def _chosen(self, sizes: Mapping[str, int]) -> Specialised:
        if not self._symbols or sizes:
            unknown = [name for name in self._symbols if name not in sizes]
            if unknown:
                raise ArgumentError(f"the size {', '.join(unknown)} is not given")
            for name in sizes:
                known("symbol", name, self._symbols)
            return self._specialised(tuple(sorted((n, _size(n, v)) for n, v in sizes.items())))
        if self._last is None or self._last.retired:
            raise RunError(
                f"the sizes {', '.join(self._symbols)} are not known before the first step",
                hint=f"plan({self._symbols[0]}=...)",
            )
        return self._last

    # ------------------------------------------------------------- inputs

    def set_input(self, name: str, data: Any) -> None:
        """Copy values into an input; they stay until they are set again.

        Args:
            name: of the input.
            data: an array, a list or a DLPack object of the input's shape, or flat with as many values. What element
                types are accepted is said in ``darner.session.binding``.
        """
        with self._using("set_input"):
            self._stage(input_name(name, self._input_types), data)

    def set_input_u32(self, name: str, data: Any) -> None:
        """``set_input`` for an input of u32, such as token ids."""
        with self._using("set_input_u32"):
            name = input_name(name, self._input_types)
            found = self._input_types[name].dtype
            if found is not dtypes.u32:
                raise DTypeError(f"input '{name}' is {found}, not u32", hint="use set_input")
            self._stage(name, data)

    def _stage(self, name: str, data: Any) -> None:
        array = as_value(data, self._input_types[name], f"input '{name}'")
        staged = self._staged.get(name)
        if staged is None or staged.shape != array.shape:
            staged = self._staged[name] = allocate(
                TensorType(tuple(array.shape), self._input_types[name].dtype), f"input '{name}'"
            )
        # Before the values: an interrupt may leave some of them.
        self._stagings += 1
        staged[...] = array
        self._versions[name] = self._versions.get(name, 0) + 1

    # ------------------------------------------------------------- running

    def compile(self, **sizes: int) -> None:
        """Make the native code now, and not at the first step; with symbolic sizes, for these."""
        with self._using("compile"):
            special = self._chosen(sizes)
            self._compiled(special)
            if self._optimizer is not None and self._optimizer.accumulate > 1:
                self._compiled(self._summing(special, tuple(sorted(sizes.items()))))

    def step(self) -> None:
        """Run once on the inputs that were set: forward, and in training backward and the updates."""
        with self._shared.lock, _STEP:
            self._refuse_if_closed()
            self._step({})

    def wait(self) -> None:
        """Wait until the last step is done; on the CPU it is when ``step`` returns."""
        with self._shared.lock, _WAIT:
            self._refuse_if_closed()
            if self._last is not None and self._last.program is not None:
                self._last.program.sync()

    def run(
        self, inputs: Mapping[str, Any] | None = None, *, copy: bool = True
    ) -> dict[str, Array]:
        """Run once and return the outputs by name.

        Args:
            inputs: values by name, used for this run alone, read where they lie if they are contiguous and of the input's
                type. An input that is not given has the value of ``set_input``.
            copy: return arrays of the caller's own. Without it they are read-only views of the session's memory, which the
                next step overwrites.
        """
        with self._using("run"):
            special = self._step(self._given(inputs))
            values = [self._output(special, i) for i in range(self.num_outputs())]
            if copy:
                values = [np.array(value) for value in values]
            return dict(zip(self._output_names, values, strict=True))

    def _step(self, given: Mapping[str, Array]) -> Specialised:
        if self._unset:
            self._warn_of_zeros()
        special, program = self._ready(given)
        # An interrupt may come as soon as the native call is over: what is noted here must be right with and without it.
        added, self._added = self._added, None
        if special.changes_parameters:
            self._shared.version += 1
        try:
            special.execute(program)
        finally:
            self._release(given, special, program)
        if added is not None and self._optimizer is not None:
            writes, count = added
            self._added = writes, (count + 1) % self._optimizer.accumulate
        self._last = special
        return special

    def _ready(self, given: Mapping[str, Array]) -> tuple[Specialised, Program]:
        """The program for these inputs and those that were set, ready to run on them, once; then ``_release``."""
        if not given and (again := self._last_again()) is not None:
            return again
        values = {**self._staged, **given} if given else self._staged
        if len(values) < len(self._input_types):
            missing = [name for name in self._input_types if name not in values]
            shown = listed(map(repr, missing))
            raise RunError(f"no value was given for input {shown}", hint="set_input, or run({...})")
        sizes: Sizes = ()
        if self._symbols:
            shapes = {name: array.shape for name, array in values.items()}
            sizes = tuple(sorted(solve_sizes(self._input_types, shapes, self._symbols).items()))
        special = self._of_this_run(self._specialised(sizes), sizes)
        special.check(values)
        program = self._compiled(special)
        self._prepare(special, program)
        for name, array in values.items():
            mark = None if name in given else (id(array), self._versions[name])
            if mark is None or special.bound.get(name) != mark:
                program.bind(special.inputs[name], array)
                special.bound[name] = mark
        alike = self._optimizer is None or self._optimizer.accumulate == 1
        special.ready = None if given or not alike else self._stagings
        return special, program

    def _last_again(self) -> tuple[Specialised, Program] | None:
        """What ran last, where nothing has happened since that it would have to be made ready for again."""
        special = self._last
        if special is None or special.program is None or special.ready != self._stagings:
            return None
        if (special.recorder is not None) != self._profiling:
            return None
        fresh = self._config.trains or special.version == self._shared.version
        return (special, special.program) if fresh else None

    def _release(self, given: Mapping[str, Array], special: Specialised, program: Program) -> None:
        """Let go of the caller's memory, which may go away."""
        for name in given:
            program.bind(special.inputs[name], None)
            special.bound.pop(name, None)

    def _given(self, inputs: Mapping[str, Any] | None) -> dict[str, Array]:
        """Values for one run, checked, and the caller's own memory where they can be."""
        given: dict[str, Array] = {}
        if inputs is None:
            return given
        if not isinstance(inputs, Mapping):
            raise ArgumentError(
                f"inputs are values by name, got {type(inputs).__name__}", hint="run({'x': array})"
            )
        for called, value in inputs.items():
            name = input_name(called, self._input_types)
            if name in given:
                raise ArgumentError(f"input '{name}' is given twice, once as '{called}'")
            array = as_value(value, self._input_types[name], f"input '{name}'")
            given[name] = array if is_bindable(array) else np.array(array, order="C")
        return given

    def _prepare(self, special: Specialised, program: Program) -> None:
        """Compute again what depends on parameters alone, if they have changed."""
        if self._config.trains or special.version == self._shared.version:
            return
        if special.prepared is None:
            special.prepared = self._prepared(special, program)
        special.prepared.run()
        special.check(special.made_indices(program))
        special.version = self._shared.version

    def _prepared(self, special: Specialised, program: Program) -> Prepared | Taken:
        if not program.on_host:
            return Taken(program, special.setup, special.setup_inputs)
        weights = self._shared.weights
        return Prepared(program, special.setup, special.setup_inputs, weights)

    # ------------------------------------------------------------- outputs

    def read_loss(self) -> float:
        """The loss of the last step: the first output where it is one number, else 0.0."""
        with self._shared.lock, _READ_LOSS:
            self._refuse_if_closed()
            if not self._has_loss:
                return 0.0
            special = self._ran()
            return float(special.value(special.plans.step.outputs[0]).item())

    def read_output_by_index(self, index: int, out: Array | None = None) -> Array:
        """An output of the last step, as a copy or in ``out`` (of its shape, or flat)."""
        with self._using("read_output_by_index"):
            if isinstance(index, bool) or not isinstance(index, int | np.integer):
                raise ArgumentError(f"an output's index is an integer, got {index!r}")
            if not 0 <= index < self.num_outputs():
                raise ArgumentError(f"there is no output {index}: there are {self.num_outputs()}")
            found = self._output(self._ran(), int(index))
            return np.array(found) if out is None else into(out, found, f"output {index}")

    def read_output(self, length: int | None = None, out: Array | None = None) -> Array:
        """The first output of the last step, or its first ``length`` elements in one row."""
        found = self.read_output_by_index(0)
        if length is not None:
            with self._using("read_output"):
                if not isinstance(length, int | np.integer) or not 0 <= length <= found.size:
                    raise ArgumentError(f"output 0 has {found.size} elements, not {length!r}")
            found = found.reshape(-1)[:length]
        return found if out is None else into(out, found, "output 0")

    def output(self, name: str, out: Array | None = None) -> Array:
        """An output of the last step by its name."""
        with self._using("output"):
            index = self._output_names.index(known("output", name, self._output_names))
            found = self._output(self._ran(), index)
            return np.array(found) if out is None else into(out, found, f"output '{name}'")

    def _ran(self) -> Specialised:
        if self._last is None:
            raise RunError("nothing has run yet", hint="call step() first")
        if not self._last.ran:
            raise RunError("the last step failed, and has no outputs", hint="call step() again")
        return self._last

    def _output(self, special: Specialised, index: int) -> Array:
        """An output as a read-only view."""
        view = special.value(special.plans.step.outputs[index]).view()
        view.flags.writeable = False
        return view

    # ------------------------------------------------------------- plans and programs

    def _specialised(self, sizes: Sizes) -> Specialised:
        """The specialisation for these sizes, made where it is not there."""
        found = self._kept.get(sizes)
        if found is None:
            found = self._make(sizes, self._optimizer)
            self._kept.put(sizes, found)
        return found

    def _of_this_run(self, special: Specialised, sizes: Sizes) -> Specialised:
        """What the next run is: of the runs that share an update only the last one makes it."""
        shared = 1 if self._optimizer is None else self._optimizer.accumulate
        if self._optimizer is None or shared == 1 or self._accumulated() >= shared - 1:
            return special
        return self._summing(special, sizes)

    def _accumulated(self) -> int:
        """How many gradients have been added up since the last update; read from the state where it is not known."""
        writes = self._shared.weights.writes
        if self._added is None or self._added[0] != writes:
            self._added = writes, int(self._value(ACCUMULATED))
        return self._added[1]

    def _summing(self, special: Specialised, sizes: Sizes) -> Specialised:
        """What runs in place of a specialisation where gradients are only added up, made where it is not there."""
        if special.summing is not None or self._optimizer is None:
            return special.summing or special
        return special.pair(self._make(sizes, Summing.before(self._optimizer)))

    def _make(self, sizes: Sizes, optimizer: Optimizer | None) -> Specialised:
        with self._phases.shown(), without_collection():
            if self._plan_file is not None and not sizes:
                pipeline = self._kept.pipeline(sizes, self._graph, self._config)
                found = self._plans_of_file(self._plan_file, pipeline, optimizer)
                return Specialised(found, self._graph)
            cache, key, plans = self._config.object_cache(), None, None
            if cache is not None:
                from .buildcache import load_build

                with self._phases.timed("load"):
                    key = build_key(self._graph, self._config, optimizer, sizes)
                    if key is not None:
                        plans = load_build(cache, key, optimizer)
            if plans is not None:
                return Specialised(plans, self._graph)
            backend_of(self._config.device).warm_up()
            pipeline = self._kept.pipeline(sizes, self._graph, self._config)
            return Specialised(pipeline.plans(optimizer, self._phases.timed), self._graph, key)

    def _plans_of_file(self, path: Path, pipeline: Pipeline, optimizer: Optimizer | None) -> Plans:
        found, key = load_plans(path, self._graph, self._config, optimizer, self._phases.timed)
        if found is None:
            found = pipeline.plans(optimizer, self._phases.timed, key)
            if key is not None:
                save_plans(path, found, optimizer)
        return found

    def _compiled(self, special: Specialised) -> Program:
        """The program of a specialisation, compiled where it is not there."""
        if special.program is None:
            phase = "load" if special.saved else "compile"
            with self._phases.shown(), self._phases.timed(phase), without_collection():
                program = self._make_programs(special)
        else:
            program = special.program
        if self._profiling and special.recorder is None:
            from .recorder import Recorder

            special.recorder = Recorder(program)
        return program

    def _make_programs(self, special: Specialised) -> Program:
        """The programs of a specialisation, from what was saved of equal ones, or compiled and kept for the next time."""
        cache, key, saved = self._config.object_cache(), special.key, iter(special.saved)
        plans = [special.plans.step, special.plans.setup]
        # Code that is kept with its plans is not kept a second time.
        objects = None if key is not None else cache
        other = None if special.partner is None else special.partner.program
        fixed: tuple[list[int], list[int]] = (self._fixed(special), [])
        arenas = (None if other is None else other.arena, None)
        made = [
            self._compile(plan, fixed[number], objects, next(saved, None), arenas[number])
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
        self._keep_what_is_read(made[0])
        special.setup = made[1] if len(made) > 1 else None
        special.program = made[0]
        return made[0]

    def _fixed(self, special: Specialised) -> list[int]:
        """The buffers of a step that change only with the parameters: at inference these, and what is made of them alone."""
        if self._config.trains:
            return []
        step = special.plans.step
        updated = {leaf for leaf, _ in step.updates}
        leaves = step.leaves("parameter").values()
        return [*special.setup_inputs, *(i for i in leaves if i not in updated)]

    def _compile(
        self,
        plan: Plan,
        fixed: Sequence[int] = (),
        cache: ObjectCache | None = None,
        saved: bytes | None = None,
        arena: Bytes | None = None,
    ) -> Program:
        config = self._config
        return compile_for(
            config.device,
            plan,
            threads=config.threads,
            storage=self._storage,
            cache=cache,
            fixed=fixed,
            saved=saved,
            arena=arena,
            tuning=Tuning(config.tune, config.object_cache(), self._phases.counted),
        )

    # ------------------------------------------------------------- memory

    def _value(self, name: str) -> Array:
        """The value of a parameter or state, to be read: its memory, or a copy."""
        return self._shared.weights.read(self._storage[name])

    def _keep_what_is_read(self, program: Program) -> None:
        """Let parameters hold their values that a step reads as they are."""
        if not program.on_host:
            return
        for buffer in program.reads.intersection(program.plan.leaves("parameter").values()):
            self._shared.weights.keep(program.arrays[buffer])

    def _initialise(self, names: list[str], rules: Any, seed: int) -> None:
        made = {}
        leaves = self._graph.parameters
        for name in names:
            leaf = leaves[name]
            rule = rule_for(name, rules, leaf.attrs["init"])
            if rule is not None:
                value = initial_value(rule, name, leaf_type(leaf), seed)
                made[name] = stored_value(value, leaf.attrs["storage"])
        self._unset = [n for n in names if n not in made and len(leaves[n].shape) > 1]
        for name, value in made.items():
            self._shared.weights.write(self._storage[name], value)
        self._shared.version += 1

    def _warn_of_zeros(self) -> None:
        names, self._unset = self._unset, []
        if self._optimizer is not None:
            warn_of_zeros(self._graph.name, {name: self._value(name) for name in names})

    # ------------------------------------------------------------- care

    @contextmanager
    def _using(self, method: str) -> Iterator[None]:
        """Hold the lock, refuse a closed session, and tell errors the method and the user's line."""
        # Not a class with __enter__: an interrupt in it could keep the lock.
        with self._shared.lock, Calling(method):
            self._refuse_if_closed()
            yield

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise ClosedError(f"the session of graph '{self._graph.name}' is closed")
        if self._shared.torn:
            raise ForkError(
                f"another thread used the session of graph '{self._graph.name}' when this process was forked: "
                "its parameters may be those of half a step",
                hint=f"fork between steps, or {SPAWN}",
            )

    def close(self) -> None:
        """Free threads, code and memory. Closing twice is no fault; anything else afterwards is an error."""
        with self._shared.lock:
            if self._closed:
                return
            self._closed = True
            self._shared.sessions -= 1
            if not self._shared.sessions:
                self._shared.weights.forget()
            self._kept.clear()
            self._last = None
            self._staged.clear()
            self._storage.clear()


def _size(name: str, value: Any) -> int:
    """The size that a symbol is given."""
    size = as_dim(value)
    if not isinstance(size, int):
        raise ShapeError(f"the size of '{name}' is a number, got {value!r}")
    return size


def leaf_type(leaf: Node) -> TensorType:
    """The type of a parameter or state."""
    return TensorType(leaf.shape, leaf.dtype)
