"""The session: a graph, compiled, with its parameters.

It holds a runner (inputs, steps, outputs), a learner (optimizers and gradients) and an inspector (questions), which work on the same
values. Here is what they have in common: a lock, whether it is closed, and errors that name the method that was called.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..graph import dtypes
from ..graph.data import Array
from ..graph.errors import ArgumentError, Calling, DTypeError, ForkError, FormatError, RunError
from ..graph.forks import SPAWN
from ..graph.graph import Graph, check_graph
from ..graph.habits.hints import input_name, missing
from ..inspect.summary import MemorySummary
from ..io.atomic import Path
from ..lower.plan import Plan
from ..optim.adam import Adam
from ..optim.base import Optimizer
from ..optim.loss_scale import SCALE, is_scaled
from ..optim.sgd import SGD
from .binding import into, known
from .checkpoint import Checkpoint, fit, load_checkpoint, save_checkpoint
from .compiling import Compiler
from .config import SessionConfig, check_seed
from .initialise import check_rules
from .inspecting import Inspector, norm
from .leaves import Leaves
from .pipeline import Plans, check_leaves, session_graph
from .programs import ClosedError
from .restoring import (
    OPTIMIZER_KEY,
    STATES_KEY,
    listed_mismatches,
    names_in,
    translated,
    with_loss_scale_apart,
)
from .running import Runner
from .training import Learner
from .values import Values

if TYPE_CHECKING:
    from ..backends.base.device_array import DeviceArray
    from ..inspect.gradients import GradientSummary
    from ..inspect.memory_map import MemoryMap
    from ..inspect.profile import Profile
    from ..inspect.trace import Trace
    from ..optimizer import OptimizeReport, Target

# For what is called again and again: a step leaves none of Python's memory in the caches, and every line of it that is read costs as much as the memory takes.
_STEP, _WAIT, _READ_LOSS = Calling("step"), Calling("wait"), Calling("read_loss")


class Session:
    """A graph, compiled, with its parameters: what ``build_session`` and its kin return.

    >>> import darner, numpy as np
    >>> g = darner.Graph("line")
    >>> x, y = g.input("x", (4,)), g.input("y", (4,))
    >>> w = g.parameter("w", ())
    >>> g.set_outputs([(w * x - y).square().mean(label="loss")])
    >>> with darner.build_session(g) as session:
    ...     session.set_learning_rate(0.1)
    ...     session.set_input("x", [1.0, 2.0, 3.0, 4.0])
    ...     session.set_input("y", [2.0, 4.0, 6.0, 8.0])
    ...     for _ in range(20):
    ...         session.step()
    ...     print(f"{session.read_loss():.4f} {session.parameters()['w']:.3f}")
    0.0000 2.000
    """

    def __init__(
        self,
        graph: Graph,
        config: SessionConfig,
        plan_file: str | FilePath | None = None,
        given: Collection[str] = (),
        plans: Plans | None = None,
    ) -> None:
        check_graph(graph)
        graph.verify()
        check_leaves(graph)
        check_rules(config.init)
        self._graph = session_graph(graph, config)
        self._config = config
        self._closed = False
        self._values = Values(self._graph, config, given)
        self._compiler = Compiler(self._graph, config, self._values, plan_file, plans)
        self._runner = Runner(self._graph, config, self._values, self._compiler)
        self._learner = Learner(self._graph, config, self._values, self._compiler, self._runner)
        self._inspector = Inspector(self._graph, self._values, self._runner, self._learner)
        self._learner.start()

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
        return dict(self._compiler.phases.seconds)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(self._runner.input_types)

    @property
    def output_names(self) -> tuple[str, ...]:
        """What ``run`` calls the outputs: their labels, or ``output0``, ``output1``, ..."""
        return self._runner.output_names

    def num_outputs(self) -> int:
        """How many outputs the graph has."""
        return len(self._runner.output_names)

    def plan(self, **sizes: int) -> Plan:
        """The plan of a step. With symbolic sizes, the one for these sizes, or that of the last step."""
        with self._using("plan"):
            return self._runner.chosen(sizes).plans.step

    @property
    def report(self) -> OptimizeReport:
        """What the optimizer did for the plan of the last step; empty where the plan came from a file.

        Where plan and code were kept by an earlier build, it is that build's, and says so (``report.cached``).
        """
        with self._using("report"):
            return self._runner.report()

    # ------------------------------------------------------------- inputs

    def set_input(self, name: str, data: Any) -> None:
        """Copy values into an input; they stay until they are set again.

        Args:
            name: of the input.
            data: an array, a list or a DLPack object of the input's shape, or flat with as many values. What element
                types are accepted is said in ``darner.session.binding``.
        """
        with self._using("set_input"):
            self._runner.stage(input_name(name, self._runner.input_types), data)

    def set_input_u32(self, name: str, data: Any) -> None:
        """``set_input`` for an input of u32, such as token ids."""
        with self._using("set_input_u32"):
            types = self._runner.input_types
            name = input_name(name, types)
            found = types[name].dtype
            if found is not dtypes.u32:
                raise DTypeError(f"input '{name}' is {found}, not u32", hint="use set_input")
            self._runner.stage(name, data)

    # ------------------------------------------------------------- running

    def compile(self, **sizes: int) -> None:
        """Make the native code now, and not at the first step; with symbolic sizes, for these."""
        with self._using("compile"):
            self._runner.compile(sizes)

    def step(self) -> None:
        """Run once on the inputs that were set: forward, and in training backward and the updates."""
        shared = self._values.shared
        with shared.lock, _STEP:
            if self._closed or shared.torn or shared.calls:
                self._refuse()
            self._runner.step()

    def wait(self) -> None:
        """Wait until the last step is done; on the CPU it is when ``step`` returns."""
        with self._values.shared.lock, _WAIT:
            self._refuse_if_closed()
            self._runner.wait()

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
            runner = self._runner
            special = runner.step(runner.given(inputs))
            values = [runner.output(special, i) for i in range(len(runner.output_names))]
            if copy:
                values = [np.array(value) for value in values]
            return dict(zip(runner.output_names, values, strict=True))

    # ------------------------------------------------------------- outputs

    def read_loss(self) -> float:
        """The loss of the last step: the first output where it is one number, else 0.0."""
        shared = self._values.shared
        with shared.lock, _READ_LOSS:
            if self._closed or shared.torn or shared.calls:
                self._refuse()
            return self._runner.loss()

    def read_output_by_index(self, index: int, out: Array | None = None) -> Array:
        """An output of the last step, as a copy or in ``out`` (of its shape, or flat)."""
        with self._using("read_output_by_index"):
            if isinstance(index, bool) or not isinstance(index, int | np.integer):
                raise ArgumentError(f"an output's index is an integer, got {index!r}")
            if not 0 <= index < self.num_outputs():
                raise ArgumentError(f"there is no output {index}: there are {self.num_outputs()}")
            found = self._runner.output(self._runner.ran(), int(index))
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
            names = self._runner.output_names
            index = names.index(known("output", name, names))
            found = self._runner.output(self._runner.ran(), index)
            return np.array(found) if out is None else into(out, found, f"output '{name}'")

    def output_on_device(self, name: str, *, copy: bool = True) -> DeviceArray:
        """An output of the last step on the device, for other libraries there: ``torch.from_dlpack(session.output_on_device("logits"))``; without ``copy`` where the next step overwrites it."""
        with self._using("output_on_device"):
            names = self._runner.output_names
            return self._runner.output_on_device(
                names.index(known("output", name, names)), copy=copy
            )

    # ------------------------------------------------------------- parameters and states

    def parameters(self) -> Leaves:
        """The parameters by name, live: ``session.parameters()["w"] = value`` sets one."""
        return Leaves(self, "parameter")

    def state(self) -> Leaves:
        """The states by name, live: moments and settings of the optimizer, caches, running statistics, counters."""
        return Leaves(self, "state")

    def set_parameter(self, name: str, data: Any) -> None:
        """Give a parameter values, of its shape or flat with as many; see ``set_input`` for element types."""
        self._write_leaves("parameter", {name: data}, "set_parameter")

    def get_parameter(self, name: str, out: Array | None = None) -> Array:
        """The value of a parameter, as a copy or in ``out`` (of its shape, or flat and long enough)."""
        return self._read_leaf("parameter", name, out, "get_parameter")

    read_param = get_parameter
    upload_param = set_parameter

    def initialize(self, rule: Any = "kaiming", *, seed: int | None = None) -> None:
        """Give all parameters their first values; ``rule`` as ``SessionConfig.init``, which also has the seed.

        With a mapping, parameters that no pattern fits take the rule they were declared with, or stay as they are.
        """
        with self._using("initialize"):
            check_rules(rule)
            chosen = self._config.seed if seed is None else check_seed(seed)
            self._values.initialise(self._graph.parameters, rule, chosen)

    def _read_leaf(self, kind: str, name: str, out: Array | None, method: str = "") -> Array:
        with self._using(method or f"{kind}s"):
            found = self._values.read(known(kind, name, self._values.types(kind)))
            return np.array(found) if out is None else into(out, found, f"{kind} '{name}'")

    def _write_leaves(self, kind: str, values: Mapping[str, Any], method: str = "") -> None:
        with self._using(method or f"{kind}s"):
            self._values.write_checked(kind, values)

    def share_parameters(self, other: Session, *, states: bool = True) -> None:
        """Use the memory of another session's parameters, and of its states of the same names.

        From then on what one session writes or learns the other has too, without copies. Both must agree on the types of
        what both have; what only this one has stays its own. Sharing with several sessions takes that they share with each
        other: with an encoder and with the whole model, say.
        """
        if not isinstance(other, Session):
            raise ArgumentError("parameters are shared with an open session")
        # Always in the same order: two sessions that share with each other must not wait for each other.
        first, second = sorted((self._values.shared, other._values.shared), key=id)
        with first.lock, second.lock, self._using("share_parameters"):
            if other.closed:
                raise ArgumentError("parameters are shared with an open session")
            if other is self:
                return
            if self._values.shared.sessions > 1 and other._values.shared is not self._values.shared:
                raise ArgumentError(
                    "another session shares this one's parameters already",
                    hint="let the others share from one session",
                )
            if other.device != self.device:
                raise ArgumentError(
                    f"this session is on '{self.device}', the other on '{other.device}'"
                )
            kinds = ("parameter", "state") if states else ("parameter",)
            names = self._values.in_common(other._values, kinds)
            self._runner.unload()
            self._learner.drop_separate()
            self._values.take(names, other._values)

    # ------------------------------------------------------------- optimizers

    @property
    def optimizer(self) -> Optimizer | None:
        """What updates parameters in each step, with its numbers as they are now."""
        return self._runner.optimizer

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Update parameters by this optimizer in every step from now on.

        One of the same class takes over the moments; if only numbers differ, nothing is compiled.
        """
        with self._using("set_optimizer"):
            self._learner.set_optimizer(optimizer)

    def set_learning_rate(self, lr: float) -> None:
        """The learning rate of the steps that follow. Without an optimizer they are plain SGD from now on."""
        with self._using("set_learning_rate"):
            self._learner.set_learning_rate(lr)

    def set_adam(
        self, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
    ) -> None:
        """Adam, with these numbers, in the steps that follow. Its moments survive a change of numbers."""
        with self._using("set_adam"):
            self._learner.set_adam(lr, beta1=beta1, beta2=beta2, epsilon=epsilon)

    def set_lr_multiplier(self, prefix: str, multiplier: float) -> None:
        """Multiply the rate of parameters whose names begin so; the longest prefix that fits counts.

        0.0 freezes them. It lasts until ``clear_lr_multipliers``.
        """
        with self._using("set_lr_multiplier"):
            self._learner.set_multiplier(prefix, multiplier)

    def clear_lr_multipliers(self) -> None:
        """Forget what ``set_lr_multiplier`` set."""
        with self._using("clear_lr_multipliers"):
            self._learner.multiply({})

    def sgd_step(self, lr: float) -> None:
        """Update parameters by the gradients of the last step, apart from it, by SGD."""
        with self._using("sgd_step"):
            self._learner.separate_step(SGD(lr))

    def adam_step(
        self, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
    ) -> None:
        """Update parameters by the gradients of the last step, apart from it, by Adam."""
        with self._using("adam_step"):
            self._learner.separate_step(Adam(lr, beta1=beta1, beta2=beta2, epsilon=epsilon))

    @property
    def loss_scale(self) -> float:
        """The factor of the loss in training with ``precision="f16"``, as the last step left it; 1.0 where there is none."""
        with self._using("loss_scale"):
            return float(self._values.read(SCALE)) if is_scaled(self._graph) else 1.0

    # ------------------------------------------------------------- gradients

    def has_param_grad(self, name: str) -> bool:
        """Whether a step leaves the gradient of a parameter to be read."""
        with self._using("has_param_grad"):
            known("parameter", name, self._graph.parameters)
            return name in self._learner.gradient_names()

    def read_param_grad(self, name: str, out: Array | None = None) -> Array:
        """The gradient of a parameter in the last step, before clipping, as a copy or in ``out``."""
        with self._using("read_param_grad"):
            found = self._learner.gradient(known("parameter", name, self._graph.parameters))
            return np.array(found) if out is None else into(out, found, f"gradient of '{name}'")

    read_grad = read_param_grad

    def gradients(self) -> dict[str, Array]:
        """Copies of all gradients of the last step, by name of the parameter."""
        with self._using("gradients"):
            return self._learner.gradients()

    def read_all_param_grad_norms(self) -> dict[str, float]:
        """The Euclidean norm of each gradient of the last step."""
        return {name: norm(value) for name, value in self.gradients().items()}

    # ------------------------------------------------------------- questions

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
            return self._inspector.parameter_norms()

    def memory_summary(self) -> MemorySummary:
        """How much memory it takes."""
        with self._using("memory_summary"):
            return self._inspector.memory_summary()

    def memory_map(self, **sizes: int) -> MemoryMap:
        """A picture of the arena over the kernels of a step; sizes as for ``plan``."""
        from ..inspect.memory_map import memory_map

        return memory_map(self.plan(**sizes))

    def set_profiling(self, enabled: bool = True) -> None:
        """Time each kernel of the steps that follow, or no longer; ``profile`` tells."""
        with self._using("set_profiling"):
            self._inspector.set_profiling(enabled)

    def profile(self, machine: str | Target | None = None) -> Profile:
        """Time, arithmetic and memory traffic of each kernel in the last steps with profiling on.

        ``machine`` is the roofline to compare with; this one's is measured when left out.
        """
        with self._using("profile"):
            return self._inspector.profile(machine)

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
        with self._using("trace_dispatches"):
            return self._inspector.trace(threshold, inputs, every)

    def dump_grad_summary(self, n: int | None = None) -> GradientSummary:
        """Gradients of the last step beside their parameters, by norm; it prints as a table of the first ``n``."""
        found = self.gradients()
        with self._using("dump_grad_summary"):
            return self._inspector.gradient_summary(found, n)

    # ------------------------------------------------------------- checkpoints

    def save_checkpoint(self, path: Path, *, metadata: Mapping[str, str] | None = None) -> None:
        """Save all parameters and states to a safetensors file, in place of what is there, whole or not at all."""
        with self._using("save_checkpoint"):
            parameters = {name: self._values.kept(name) for name in self._graph.parameters}
            states = {name: self._values.read(name) for name in self._values.types("state")}
            entries = {"session.graph": self._graph.digest()}
            learns = self._learner.used
            if learns is not None:
                entries[OPTIMIZER_KEY] = type(learns).__name__
                entries[STATES_KEY] = json.dumps(list(self._values.added))
                if "optimizer/step" in states:
                    entries["step"] = str(int(states["optimizer/step"]))
            save_checkpoint(path, Checkpoint(parameters, states, {**entries, **(metadata or {})}))

    def load_checkpoint(self, path: Path, *, strict: bool = True) -> dict[str, str]:
        """Restore parameters and states, and return the file's metadata.

        Everything is compared first; with any mismatch nothing is changed, and the error lists all of them. Unless
        ``strict``, names that only one side has are passed over. The states of an optimizer that this session does not have
        yet wait until it is set; an inference session leaves them out.
        """
        with self._using("load_checkpoint"):
            found = translated(path, load_checkpoint(path))
            states = dict(found.states)
            held: dict[str, Array] = {}
            if self._learner.awaits_optimizer:
                learned = names_in(found.metadata.get(STATES_KEY, "[]"), path)
                held = {name: np.array(states.pop(name)) for name in learned if name in states}
            wanted, needed = self._values.kept_types("parameter"), self._values.types("state")
            if (
                found.is_foreign
            ):  # weights of another program: states are restored where it has them
                needed = {name: type_ for name, type_ in needed.items() if name in states}
            states, needed = with_loss_scale_apart(states, needed)
            own = self._values.as_kept(found.parameters)
            trimmed = Checkpoint(own, states, found.metadata)
            made = fit(trimmed, wanted, needed, strict=strict)
            if made.mismatches:
                raise FormatError(listed_mismatches(path, made.mismatches, found.metadata))
            optimizer = self._learner.with_settings(made.checkpoint.states)
            for table, types in (
                (made.checkpoint.parameters, wanted),
                (made.checkpoint.states, needed),
            ):
                for name in types.keys() & table.keys():
                    self._values.write(name, table[name])
            self._learner.hold(held, found.metadata.get(OPTIMIZER_KEY, ""))
            self._runner.optimizer = optimizer
            self._values.changed()
            return dict(found.metadata)

    # ------------------------------------------------------------- care

    @contextmanager
    def _using(self, method: str) -> Iterator[None]:
        """Hold the lock, refuse a closed session, and tell errors the method and the user's line."""
        # Not a class with __enter__: an interrupt in it could keep the lock.
        with self._values.shared.lock, Calling(method):
            self._refuse_if_closed()
            yield

    def _refuse_if_closed(self) -> None:
        shared = self._values.shared
        if self._closed or shared.torn or shared.calls:
            self._refuse()

    def _refuse(self) -> NoReturn:
        if self._closed:
            raise ClosedError(f"the session of graph '{self._graph.name}' is closed")
        if self._values.shared.calls:
            raise RunError(
                f"the session of graph '{self._graph.name}' is in the middle of a step: a function of an op cannot use it"
            )
        raise ForkError(
            f"another thread used the session of graph '{self._graph.name}' when this process was forked: "
            "its parameters may be those of half a step",
            hint=f"fork between steps, or {SPAWN}",
        )

    def close(self) -> None:
        """Free threads, code and memory. Closing twice is no fault; anything else afterwards is an error."""
        with self._values.shared.lock:
            if self._closed:
                return
            if self._values.shared.calls:
                self._refuse()
            self._learner.drop_separate()
            self._closed = True
            self._values.leave()
            self._runner.close()
            self._values.arrays.clear()

    if not TYPE_CHECKING:  # a type checker knows the names itself

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            raise missing("session", "a session has no", name, dir(type(self)))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._closed:
            return f"<Session '{self._graph.name}', closed>"
        how = "inference"
        if self._config.trains:
            name = type(self.optimizer).__name__ if self.optimizer is not None else None
            how = f"training by {name}" if name else "loss and gradients"
        count = len(self._graph.parameters)
        return f"<Session '{self._graph.name}' on {self.device}: {how}, {count} parameters>"
