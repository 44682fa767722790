"""Steps of a session: inputs in, a run, outputs out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backends.base.device_array import DeviceArray, Value
from ..backends.base.registry import backend_of
from ..graph.data import Array
from ..graph.dims import as_dim
from ..graph.errors import ArgumentError, RunError, ShapeError, listed
from ..graph.graph import Graph
from ..graph.habits.hints import input_name
from ..graph.types import TensorType
from ..optim.base import ACCUMULATED, Optimizer
from ..optim.step import Summing
from .binding import as_value, check_shape, is_bindable, known, solve_sizes
from .compiling import Compiler
from .config import SessionConfig
from .pipeline import output_names
from .preparing import Prepared, Taken
from .programs import Kept, Loaded, Sizes, Specialised, input_types
from .values import Values, allocate

NOTHING: Mapping[str, Value] = {}
"""The inputs of a step on what was set."""


@dataclass(frozen=True)
class _Added:
    """How many gradients have been added up, and until when that is right: another session may write or train what is shared."""

    count: int
    writes: int
    trainings: int

    @property
    def at(self) -> tuple[int, int]:
        return self.writes, self.trainings


class Runner:
    """What runs a session's steps. Whoever calls it holds the session's lock, and knows that it is open.

    Attributes:
        input_types: of the inputs, by name.
        output_names: what the outputs are called.
        staged: the values that inputs were set to.
        kept: the specialisations used last.
        last: the one that ran last.
        optimizer: what updates parameters in each step.
        profiling: whether kernels are timed.
    """

    def __init__(
        self, graph: Graph, config: SessionConfig, values: Values, compiler: Compiler
    ) -> None:
        self._config = config
        self._values = values
        self._compiler = compiler
        self._symbols = graph.dynamic_symbols()
        self.input_types = input_types(graph)
        self.output_names = output_names(graph)
        self.has_loss = bool(self.output_names) and graph.outputs[0].size == 1
        self.staged: dict[str, Value] = {}
        self.kept = Kept(config.specialisations)
        self.last: Specialised | None = None
        self.optimizer: Optimizer | None = None
        self.profiling = False
        self._stagings = 0
        self._versions: dict[str, int] = {}
        self._added: _Added | None = None

    @property
    def has_symbols(self) -> bool:
        """Whether sizes are known by the inputs of a step only."""
        return bool(self._symbols)

    # ------------------------------------------------------------- inputs

    def stage(self, name: str, data: Any) -> None:
        """Copy values into an input; they stay until they are set again."""
        array = self._value(name, data)
        staged = self.staged.get(name)
        if isinstance(array, DeviceArray):
            self._stagings += 1
            self.staged[name] = array
            self._versions[name] = self._versions.get(name, 0) + 1
            return
        if staged is None or isinstance(staged, DeviceArray) or staged.shape != array.shape:
            staged = self.staged[name] = allocate(
                TensorType(tuple(array.shape), self.input_types[name].dtype), f"input '{name}'"
            )
        # Before the values: an interrupt may leave some of them.
        self._stagings += 1
        staged[...] = array
        self._versions[name] = self._versions.get(name, 0) + 1

    def _value(self, name: str, data: object) -> Value:
        """What an input is given, as its type wants it: an array, or one that lies on the session's device."""
        type_, what = self.input_types[name], f"input '{name}'"
        if isinstance(data, np.ndarray):
            return as_value(data, type_, what)
        found = backend_of(self._config.device).taken(self._config.device, data, what)
        if found is None:
            return as_value(data, type_, what)
        # Integers may be indices, which are looked at before a step begins.
        if type_.dtype.is_int or found.dtype != type_.dtype.numpy:
            return as_value(found.numpy(), type_, what)
        check_shape(found.shape, type_, what)
        return found

    def given(self, inputs: Mapping[str, Any] | None) -> Mapping[str, Value]:
        """Values for one run, checked, and the caller's own memory where they can be."""
        if inputs is None:
            return NOTHING
        if not isinstance(inputs, Mapping):
            raise ArgumentError(
                f"inputs are values by name, got {type(inputs).__name__}", hint="run({'x': array})"
            )
        given: dict[str, Value] = {}
        for called, value in inputs.items():
            name = input_name(called, self.input_types)
            if name in given:
                raise ArgumentError(f"input '{name}' is given twice, once as '{called}'")
            array = self._value(name, value)
            bindable = isinstance(array, DeviceArray) or is_bindable(array)
            given[name] = array if bindable else np.array(array, order="C")
        return given

    # ------------------------------------------------------------- running

    def step(self, given: Mapping[str, Value] = NOTHING) -> Specialised:
        """Run once on these inputs, and on those that were set."""
        if self._values.unset:
            self._values.warn_of_zeros(self.optimizer is not None)
        special, loaded = (None if given else self._last_again()) or self.ready(given)
        # An interrupt may come as soon as the native call is over: what is noted here must be right with and without it.
        shared = self._values.shared
        added, self._added = self._added, None
        if special.changes_parameters:
            shared.version += 1
        if self.optimizer is not None:
            shared.trainings += 1
        try:
            if special.plans.step.host_kernels:
                with shared.calling():
                    special.execute(loaded)
            else:
                special.execute(loaded)
        finally:
            if given:
                self.release(given, special, loaded)
        if special.changes_parameters and loaded.copies is not None:
            loaded.copies.version = shared.version
        if added is not None and self.optimizer is not None:
            count = (added.count + 1) % self.optimizer.accumulate
            self._added = _Added(count, added.writes, shared.trainings)
        self.last = special
        return special

    def ready(self, given: Mapping[str, Value]) -> tuple[Specialised, Loaded]:
        """The programs for these inputs and those that were set, ready to run on them, once; then ``release``."""
        values = {**self.staged, **given} if given else self.staged
        if len(values) < len(self.input_types):
            missing = [name for name in self.input_types if name not in values]
            shown = listed(map(repr, missing))
            raise RunError(f"no value was given for input {shown}", hint="set_input, or run({...})")
        sizes: Sizes = ()
        if self._symbols:
            shapes = {name: array.shape for name, array in values.items()}
            sizes = tuple(sorted(solve_sizes(self.input_types, shapes, self._symbols).items()))
        special = self._of_this_run(self.specialised(sizes), sizes)
        special.check(values)
        loaded = self.loaded(special)
        self._prepare(special, loaded)
        program, bound = loaded.program, loaded.bound
        for name, array in values.items():
            mark = None if name in given else (id(array), self._versions[name])
            if mark is None or bound.get(name) != mark:
                program.bind(special.inputs[name], array)
                bound[name] = mark
        alike = self.optimizer is None or self.optimizer.accumulate == 1
        loaded.ready = None if given or not alike else self._stagings
        return special, loaded

    def _last_again(self) -> tuple[Specialised, Loaded] | None:
        """What ran last, where nothing has happened since that it would have to be made ready for again."""
        special = self.last
        if special is None:
            return None
        loaded = special.loaded
        if loaded is None or loaded.ready != self._stagings:
            return None
        if (loaded.recorder is not None) != self.profiling:
            return None
        version = self._values.shared.version
        if self._config.trains:
            fresh = loaded.copies is None or loaded.copies.version == version
        else:
            fresh = loaded.version == version
        return (special, loaded) if fresh else None

    def release(self, given: Mapping[str, Value], special: Specialised, loaded: Loaded) -> None:
        """Let go of the caller's memory, which may go away."""
        for name in given:
            loaded.program.bind(special.inputs[name], None)
            loaded.bound.pop(name, None)

    def _prepare(self, special: Specialised, loaded: Loaded) -> None:
        """Compute again what depends on parameters alone, if they have changed."""
        version = self._values.shared.version
        if self._config.trains:
            self._copy(loaded, version)
            return
        if loaded.version == version:
            return
        if loaded.prepared is None:
            loaded.prepared = self._prepared(special, loaded)
        setup = special.plans.setup
        if setup is not None and setup.host_kernels:
            with self._values.shared.calling():
                loaded.prepared.run()
        else:
            loaded.prepared.run()
        special.check(special.made_indices(loaded.program))
        loaded.version = version

    @staticmethod
    def _copy(loaded: Loaded, version: int) -> None:
        """Make the copies anew that a training step reads, if parameters have changed otherwise than by such a step."""
        copies, setup = loaded.copies, loaded.setup
        if copies is not None and setup is not None and copies.version != version:
            setup.run()
            copies.version = version

    def _prepared(self, special: Specialised, loaded: Loaded) -> Prepared | Taken:
        step, setup, inputs = loaded.program, loaded.setup, special.setup_inputs
        if not step.on_host:
            return Taken(step, setup, inputs)
        return Prepared(step, setup, inputs, self._values.shared.weights)

    def wait(self) -> None:
        """Wait until the last step is done."""
        if self.last is not None and self.last.program is not None:
            self.last.program.sync()

    # ------------------------------------------------------------- outputs

    def ran(self) -> Specialised:
        """What ran last, whose outputs can be read."""
        if self.last is None:
            raise RunError("nothing has run yet", hint="call step() first")
        if not self.last.has_results:
            raise RunError("the last step failed, and has no outputs", hint="call step() again")
        return self.last

    def loss(self) -> float:
        """The first output of the last step where it is one number, else 0.0."""
        if not self.has_loss:
            return 0.0
        special = self.ran()
        return float(special.value(special.plans.step.outputs[0]).item())

    def output(self, special: Specialised, index: int) -> Array:
        """An output as a read-only view."""
        view = special.value(special.plans.step.outputs[index]).view()
        view.flags.writeable = False
        return view

    def output_on_device(self, index: int, *, copy: bool) -> DeviceArray:
        """An output where it lies, or a copy there."""
        special = self.ran()
        found = special.on_device(special.plans.step.outputs[index], copy=copy)
        if found is None:
            raise ArgumentError(
                f"output '{self.output_names[index]}' is not in memory of a device that other libraries read",
                hint="session.output(name) gives it as an array of NumPy",
            )
        return found

    # ------------------------------------------------------------- specialisations

    def chosen(self, sizes: Mapping[str, int]) -> Specialised:
        """The specialisation for sizes by the names of their symbols; with symbols and no sizes that of the last step."""
        if not self._symbols or sizes:
            unknown = [name for name in self._symbols if name not in sizes]
            if unknown:
                raise ArgumentError(f"the size {', '.join(unknown)} is not given")
            for name in sizes:
                known("symbol", name, self._symbols)
            return self.specialised(tuple(sorted((n, _size(n, v)) for n, v in sizes.items())))
        if self.last is None or self.last.retired:
            raise RunError(
                f"the sizes {', '.join(self._symbols)} are not known before the first step",
                hint=f"plan({self._symbols[0]}=...)",
            )
        return self.last

    def specialised(self, sizes: Sizes) -> Specialised:
        """The specialisation for these sizes, made where it is not there."""
        found = self.kept.get(sizes)
        if found is None:
            found = self._compiler.specialised(sizes, self.optimizer)
            self.kept.put(sizes, found)
        return found

    def _of_this_run(self, special: Specialised, sizes: Sizes) -> Specialised:
        """What the next run is: of the runs that share an update only the last one makes it."""
        shared = 1 if self.optimizer is None else self.optimizer.accumulate
        if self.optimizer is None or shared == 1 or self._accumulated() >= shared - 1:
            return special
        return self._summing(special, sizes)

    def _accumulated(self) -> int:
        """How many gradients have been added up since the last update; read from the state where it is not known."""
        shared, known = self._values.shared, self._added
        if known is None or known.at != (shared.weights.writes, shared.trainings):
            count = int(self._values.read(ACCUMULATED))
            known = self._added = _Added(count, shared.weights.writes, shared.trainings)
        return known.count

    def _summing(self, special: Specialised, sizes: Sizes) -> Specialised:
        """What runs in place of a specialisation where gradients are only added up, made where it is not there."""
        if special.summing is not None or self.optimizer is None:
            return special.summing or special
        return special.pair(self._compiler.specialised(sizes, Summing.before(self.optimizer)))

    def compile(self, sizes: Mapping[str, int]) -> None:
        """Have the programs of all runs of these sizes in memory."""
        special = self.chosen(sizes)
        self.loaded(special)
        if self.optimizer is not None and self.optimizer.accumulate > 1:
            self.loaded(self._summing(special, tuple(sorted(sizes.items()))))

    def loaded(self, special: Specialised) -> Loaded:
        """The programs of a specialisation, compiled where they are not there."""
        loaded = special.loaded or self._compiler.load(special)
        if self.profiling and loaded.recorder is None:
            from ..inspect.recorder import Recorder

            loaded.recorder = Recorder(loaded.program)
        return loaded

    # ------------------------------------------------------------- changes

    def forget_recorders(self) -> None:
        """Times that were recorded are gone."""
        for special in self.kept.values():
            for member in (special, special.summing):
                if member is not None and member.loaded is not None:
                    member.loaded.recorder = None

    def retire(self) -> None:
        """Run none of the specialisations any more; the results of the last step are still read."""
        # They leave the table before the last is retired: an interrupt between must not leave a retired one in it.
        specials = self.kept.take_all()
        if self.last is not None:
            self.last.retire()
        for special in specials:
            special.close()

    def unload(self) -> None:
        """Free all programs, as their code has addresses of memory that is used no more."""
        self._added = None
        for special in self.kept.values():
            special.close()

    def close(self) -> None:
        """Free everything."""
        self.kept.clear()
        self.last = None
        self.staged.clear()


def _size(name: str, value: Any) -> int:
    """The size that a symbol is given."""
    size = as_dim(value)
    if not isinstance(size, int):
        raise ShapeError(f"the size of '{name}' is a number, got {value!r}")
    return size
