"""The part of a session that learns: its optimizer, its gradients, and updates apart from steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..backends.base.lowering import lower_for
from ..backends.base.program import Program
from ..graph.data import Array
from ..graph.errors import ArgumentError, RunError
from ..graph.graph import Graph
from ..graph.types import TensorType
from ..lower.plan import Plan
from ..optim.adam import Adam
from ..optim.base import PREFIX, Optimizer, fits
from ..optim.sgd import SGD
from .binding import into, known
from .config import SessionConfig
from .pipeline import GRADIENT, keeps_gradients, trained_names, update_graph
from .programs import allocate_all
from .running import Running, leaf_type

NO_STEP = "compute gradients first: step(), with no optimizer or keep_gradients=True"


class Training(Running):
    """Optimizers and gradients of a session; see ``Session``."""

    def __init__(
        self,
        graph: Graph,
        config: SessionConfig,
        plan_file: str | Path | None = None,
        given: Collection[str] = (),
    ) -> None:
        super().__init__(graph, config, plan_file, given)
        # States of a checkpoint that wait for their optimizer, and the name of its class.
        self._held: dict[str, Array] = {}
        self._held_for = ""
        self._multipliers: dict[str, float] = {}
        self._own_multipliers: Mapping[str, float] = {}
        self._optimizer_states: dict[str, TensorType] = {}
        self._separate: tuple[Optimizer, Program] | None = None
        # The first plan is made now, so that whatever is wrong is told when a session is built.
        if config.optimizer is not None:
            self._change(config.optimizer)
            self._own_multipliers = config.optimizer.multipliers
            if not self._symbols:
                self._compiled(self._specialised(()))
        elif not self._symbols:
            self._specialised(())

    # ------------------------------------------------------------- optimizers

    @property
    def optimizer(self) -> Optimizer | None:
        """What updates parameters in each step, with its numbers as they are now."""
        return self._optimizer

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Update parameters by this optimizer in every step from now on.

        One of the same class takes over the moments; if only numbers differ, nothing is compiled.
        """
        with self._using("set_optimizer"):
            if not isinstance(optimizer, Optimizer):
                raise ArgumentError(f"the optimizer is one of darner.optim's, got {optimizer!r}")
            before = self._own_multipliers
            self._own_multipliers = optimizer.multipliers
            try:
                self._change(self._with_multipliers(optimizer))
            except BaseException:
                self._own_multipliers = before
                raise

    def set_learning_rate(self, lr: float) -> None:
        """The learning rate of the steps that follow. Without an optimizer they are plain SGD from now on."""
        with self._using("set_learning_rate"):
            if self._optimizer is None:
                self._must_train()
                self._change(self._with_multipliers(SGD(lr)))
            else:
                self._change(replace(self._optimizer, learning_rate=lr))  # type: ignore[call-arg]

    def set_adam(
        self, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
    ) -> None:
        """Adam, with these numbers, in the steps that follow. Its moments survive a change of numbers."""
        with self._using("set_adam"):
            self._must_train()
            numbers: dict[str, Any] = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon}
            if isinstance(self._optimizer, Adam):
                self._change(replace(self._optimizer, learning_rate=lr, **numbers))
            else:
                self._change(self._with_multipliers(Adam(lr, **numbers)))

    def set_lr_multiplier(self, prefix: str, multiplier: float) -> None:
        """Multiply the rate of parameters whose names begin so; the longest prefix that fits counts.

        0.0 freezes them. It lasts until ``clear_lr_multipliers``.
        """
        with self._using("set_lr_multiplier"):
            self._must_train()
            names = list(self._graph.parameters)
            if not isinstance(prefix, str) or not any(name.startswith(prefix) for name in names):
                known("parameter or prefix", prefix, names)
            if not any(fits(prefix, name) for name in names):
                prefix = f"{prefix}*"
            self._multiply({**self._multipliers, prefix: multiplier})

    def clear_lr_multipliers(self) -> None:
        """Forget what ``set_lr_multiplier`` set."""
        with self._using("clear_lr_multipliers"):
            self._multiply({})

    def _multiply(self, multipliers: dict[str, float]) -> None:
        before = self._multipliers
        self._multipliers = multipliers
        try:
            # Also without an optimizer the numbers are checked, as part of one.
            made = self._with_multipliers(self._optimizer or SGD(0.0))
            if self._optimizer is not None:
                self._change(made)
        except BaseException:
            self._multipliers = before
            raise

    def _with_multipliers(self, optimizer: Optimizer) -> Optimizer:
        both = {**self._own_multipliers, **self._multipliers}
        return optimizer if both == optimizer.multipliers else replace(optimizer, multipliers=both)

    def _must_train(self) -> None:
        if not self._config.trains:
            raise ArgumentError(
                "an inference session does not train", hint="build_session makes one that does"
            )

    def _change(self, new: Optimizer) -> None:
        """Take another optimizer; whatever fails leaves the session as it was."""
        self._must_train()
        old = self._optimizer
        if old is not None and (old == new or self._only_numbers(old, new)):
            self._optimizer = new
            self._write_settings(new)
            return
        special = None if self._symbols else self._make((), new)
        if special is None:
            states = _states_of(update_graph(self._graph, new))
        else:
            states = self._states_in(special.plans.step)
        if self._last is not None:
            self._last.retire()
        self._kept.clear()
        self._drop_separate()
        self._adopt(new, states, old if old is not None else self._separate_optimizer())
        self._optimizer = new
        if special is not None:
            self._kept.put((), special)

    def _only_numbers(self, old: Optimizer, new: Optimizer) -> bool:
        """Whether the graph of both is the same, and only states differ."""
        if type(old) is not type(new):
            return False
        names = [
            item.name for item in fields(old) if getattr(old, item.name) != getattr(new, item.name)
        ]
        return bool(names) and all(
            f"{PREFIX}/{name}" in self._optimizer_states
            and isinstance(getattr(new, name), int | float)
            for name in names
        )

    def _write_settings(self, optimizer: Optimizer) -> None:
        for name, value in optimizer.settings().items():
            if name in self._optimizer_states:
                self._shared.weights.write(self._storage[name], np.asarray(value))

    def _states_in(self, plan: Plan) -> dict[str, tuple[TensorType, float]]:
        """The states that an optimizer added to the graph of a plan: their types, and what they are at first."""
        own = self._graph.states
        places = plan.leaves("state").items()
        added = {name: plan.buffers[place] for name, place in places if name not in own}
        return {name: (buffer.type, buffer.init) for name, buffer in added.items()}

    def _adopt(
        self, new: Optimizer, states: dict[str, tuple[TensorType, float]], old: Optimizer | None
    ) -> None:
        """Memory for the states of an optimizer. Those of one of the same class go on, all others start anew."""
        same = type(old) is type(new)
        for name, type_ in self._optimizer_states.items():
            fits_new = name in states and states[name][0] == type_
            if not (same and fits_new):
                del self._storage[name]
        self._optimizer_states = {name: type_ for name, (type_, _) in states.items()}
        missing = {name: about for name, about in states.items() if name not in self._storage}
        self._storage |= allocate_all(missing)
        self._write_settings(new)
        held, self._held = self._held, {}
        if type(new).__name__ != self._held_for:
            return
        for name, value in held.items():
            taken = name in self._optimizer_states and name not in new.settings()
            if taken and value.size == self._storage[name].size:  # flat in Meganeura's layout
                room = self._storage[name]
                self._shared.weights.write(room, value.reshape(room.shape))

    # ------------------------------------------------------------- updates apart from steps

    def sgd_step(self, lr: float) -> None:
        """Update parameters by the gradients of the last step, apart from it, by SGD."""
        with self._using("sgd_step"):
            self._separate_step(self._with_multipliers(SGD(lr)))

    def adam_step(
        self, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
    ) -> None:
        """Update parameters by the gradients of the last step, apart from it, by Adam."""
        with self._using("adam_step"):
            numbers: dict[str, Any] = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon}
            self._separate_step(self._with_multipliers(Adam(lr, **numbers)))

    def _separate_optimizer(self) -> Optimizer | None:
        return None if self._separate is None else self._separate[0]

    def _drop_separate(self) -> None:
        if self._separate is not None:
            self._separate[1].close()

    def _separate_step(self, optimizer: Optimizer) -> None:
        self._must_train()
        if self._optimizer is not None:
            raise ArgumentError(
                f"each step already updates parameters by {type(self._optimizer).__name__}",
                hint="build the session without an optimizer",
            )
        special = self._ran()
        if not special.plans.gradients:
            raise RunError("the last step kept no gradients", hint=NO_STEP)
        old = self._separate_optimizer()
        if old is None or not (old == optimizer or self._only_numbers(old, optimizer)):
            graph = update_graph(self._graph, optimizer)
            plan = lower_for(self._config.device, graph)
            self._drop_separate()
            self._adopt(optimizer, _states_of(graph), old)
            cache = self._config.object_cache()
            self._separate = (optimizer, self._compile(plan, (), cache))
            self._keep_what_is_read(self._separate[1])
        _, program = self._separate or (optimizer, None)
        if program is None:
            raise RunError("there is no program of updates")
        self._separate = (optimizer, program)
        self._write_settings(optimizer)
        for name, buffer in program.plan.leaves("input").items():
            source = special.gradient_buffer(name.removeprefix(GRADIENT))
            if source is None:
                raise RunError(f"the last step kept no gradient of '{name}'", hint=NO_STEP)
            program.bind(buffer, special.value(source))
        program.run()
        self._shared.version += 1

    # ------------------------------------------------------------- gradients

    def has_param_grad(self, name: str) -> bool:
        """Whether a step leaves the gradient of a parameter to be read."""
        with self._using("has_param_grad"):
            known("parameter", name, self._graph.parameters)
            return name in self._gradient_names()

    def _gradient_names(self) -> tuple[str, ...]:
        if not self._config.trains or not keeps_gradients(self._config, self._optimizer):
            return ()
        return trained_names(self._graph, self._optimizer)

    def read_param_grad(self, name: str, out: Array | None = None) -> Array:
        """The gradient of a parameter in the last step, before clipping, as a copy or in ``out``."""
        with self._using("read_param_grad"):
            found = self._gradient(known("parameter", name, self._graph.parameters))
            return np.array(found) if out is None else into(out, found, f"gradient of '{name}'")

    read_grad = read_param_grad

    def gradients(self) -> dict[str, Array]:
        """Copies of all gradients of the last step, by name of the parameter."""
        with self._using("gradients"):
            names = self._ran().plans.gradients
            if not names:
                raise RunError("the last step kept no gradients", hint=NO_STEP)
            return {name: np.array(self._gradient(name)) for name in names}

    def read_all_param_grad_norms(self) -> dict[str, float]:
        """The Euclidean norm of each gradient of the last step."""
        return {name: norm(value) for name, value in self.gradients().items()}

    def _gradient(self, name: str) -> Array:
        special = self._ran()
        buffer = special.gradient_buffer(name)
        if buffer is None:
            raise RunError(f"the last step kept no gradient of '{name}'", hint=NO_STEP)
        return special.value(buffer)

    def close(self) -> None:
        """Free threads, code and memory. Closing twice is no fault; anything else afterwards is an error."""
        with self._shared.lock:
            if not self._closed:
                self._drop_separate()
                self._separate = None
        super().close()


def _states_of(graph: Graph) -> dict[str, tuple[TensorType, float]]:
    """The states of a graph: their types, and what they are at first."""
    leaves = graph.states.items()
    return {name: (leaf_type(leaf), leaf.attrs["init"]) for name, leaf in leaves}


def norm(value: Array) -> float:
    """The Euclidean norm of all elements, in f64."""
    return float(np.linalg.norm(value.astype(np.float64).reshape(-1)))
