"""The part of a session that learns: its optimizer, its gradients, and updates apart from steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from ..backends.base.lowering import lower_for
from ..backends.base.program import Program
from ..graph.data import Array
from ..graph.errors import ArgumentError, RunError
from ..graph.graph import Graph
from ..graph.types import TensorType
from ..optim.adam import Adam
from ..optim.base import PREFIX, Optimizer, fits
from ..optim.sgd import SGD
from .binding import known
from .compiling import Compiler
from .config import SessionConfig
from .pipeline import GRADIENT, Plans, keeps_gradients, trained_names, update_graph
from .running import Runner
from .values import Values, states_of

NO_STEP = "compute gradients first: step(), with no optimizer or keep_gradients=True"


class Learner:
    """What changes a session's parameters by gradients. Whoever calls it holds the session's lock.

    Attributes:
        multipliers: of the learning rate, by the names they are for, as ``set_lr_multiplier`` set them.
    """

    def __init__(
        self,
        graph: Graph,
        config: SessionConfig,
        values: Values,
        compiler: Compiler,
        runner: Runner,
    ) -> None:
        self._graph = graph
        self._config = config
        self._values = values
        self._compiler = compiler
        self._runner = runner
        # States of a checkpoint that wait for their optimizer, and the name of its class.
        self._held: dict[str, Array] = {}
        self._held_for = ""
        self.multipliers: dict[str, float] = {}
        self._own_multipliers: Mapping[str, float] = {}
        self._separate: tuple[Optimizer, Program] | None = None

    @property
    def optimizer(self) -> Optimizer | None:
        """What updates parameters in each step."""
        return self._runner.optimizer

    @property
    def used(self) -> Optimizer | None:
        """What updates parameters, in each step or apart from them."""
        return self._runner.optimizer or self._separate_optimizer()

    def start(self) -> None:
        """Make the first plan, so that whatever is wrong is told when a session is built."""
        runner, optimizer = self._runner, self._config.optimizer
        if optimizer is not None:
            self._change(optimizer)
            self._own_multipliers = optimizer.multipliers
        if not runner.has_symbols:
            special = runner.specialised(())
            if optimizer is not None:
                runner.loaded(special)

    # ------------------------------------------------------------- optimizers

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Update by this optimizer in every step from now on."""
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
        """Another rate; without an optimizer, plain SGD with it."""
        if self.optimizer is None:
            self._must_train()
            self._change(self._with_multipliers(SGD(lr)))
        else:
            self._change(replace(self.optimizer, learning_rate=lr))  # type: ignore[call-arg]  # every optimizer declares it

    def set_adam(self, lr: float, **numbers: Any) -> None:
        """Adam with these numbers, or other numbers of the Adam that there is."""
        self._must_train()
        if isinstance(self.optimizer, Adam):
            self._change(replace(self.optimizer, learning_rate=lr, **numbers))
        else:
            self._change(self._with_multipliers(Adam(lr, **numbers)))

    def set_multiplier(self, prefix: str, multiplier: float) -> None:
        """Multiply the rate of parameters whose names begin so."""
        self._must_train()
        names = list(self._graph.parameters)
        if not isinstance(prefix, str) or not any(name.startswith(prefix) for name in names):
            known("parameter or prefix", prefix, names)
        if not any(fits(prefix, name) for name in names):
            prefix = f"{prefix}*"
        self.multiply({**self.multipliers, prefix: multiplier})

    def multiply(self, multipliers: dict[str, float]) -> None:
        """Have these multipliers in place of all that were set."""
        before = self.multipliers
        self.multipliers = multipliers
        try:
            # Also without an optimizer the numbers are checked, as part of one.
            made = self._with_multipliers(self.optimizer or SGD(0.0))
            if self.optimizer is not None:
                self._change(made)
        except BaseException:
            self.multipliers = before
            raise

    def _with_multipliers(self, optimizer: Optimizer) -> Optimizer:
        both = {**self._own_multipliers, **self.multipliers}
        return optimizer if both == optimizer.multipliers else replace(optimizer, multipliers=both)

    def _must_train(self) -> None:
        if not self._config.trains:
            raise ArgumentError(
                "an inference session does not train", hint="build_session makes one that does"
            )

    def _change(self, new: Optimizer) -> None:
        """Take another optimizer; whatever fails leaves the session as it was."""
        self._must_train()
        runner, old = self._runner, self.optimizer
        if old is not None and (old == new or self._only_numbers(old, new)):
            runner.optimizer = new
            self._values.write_settings(new)
            return
        special = None if runner.has_symbols else self._compiler.specialised((), new)
        if special is None:
            states = states_of(update_graph(self._graph, new))
        else:
            states = self._states_in(special.plans, new)
        runner.retire()
        self._close_separate()
        self._adopt(new, states, old if old is not None else self._separate_optimizer())
        runner.optimizer = new
        if special is not None:
            runner.kept.put((), special)

    def _only_numbers(self, old: Optimizer, new: Optimizer) -> bool:
        """Whether the graph of both is the same, and only states differ."""
        if type(old) is not type(new):
            return False
        names = [
            item.name for item in fields(old) if getattr(old, item.name) != getattr(new, item.name)
        ]
        return bool(names) and all(
            f"{PREFIX}/{name}" in self._values.added and isinstance(getattr(new, name), int | float)
            for name in names
        )

    def _states_in(self, plans: Plans, optimizer: Optimizer) -> dict[str, tuple[TensorType, float]]:
        """The states that an optimizer added to the graph of a plan: their types, and what they are at first."""
        plan = plans.step
        if any(buffer.parts is not None for buffer in plan.buffers):
            # In the order that they have where each is stored by itself, which is that of files.
            return states_of(update_graph(self._graph, optimizer))
        own = {*self._graph.states, *plans.copies}
        added = {name: buffer for name, buffer in plan.stored("state").items() if name not in own}
        return {name: (buffer.type, buffer.init) for name, buffer in added.items()}

    def _adopt(
        self, new: Optimizer, states: dict[str, tuple[TensorType, float]], old: Optimizer | None
    ) -> None:
        """Have the states of an optimizer. Those of one of the same class go on, all others start anew."""
        values = self._values
        values.adopt(states, keep=type(old) is type(new))
        values.write_settings(new)
        held, self._held = self._held, {}
        if type(new).__name__ != self._held_for:
            return
        for name, value in held.items():
            taken = name in values.added and name not in new.settings()
            if taken and value.size == values.arrays[name].size:  # flat in Meganeura's layout
                values.write(name, value.reshape(values.arrays[name].shape))

    # ------------------------------------------------------------- updates apart from steps

    def _separate_optimizer(self) -> Optimizer | None:
        return None if self._separate is None else self._separate[0]

    def _close_separate(self) -> None:
        if self._separate is not None:
            self._separate[1].close()

    def drop_separate(self) -> None:
        """Free the program of updates apart from steps."""
        self._close_separate()
        self._separate = None

    def separate_step(self, plain: Optimizer) -> None:
        """Update parameters by the gradients of the last step, apart from it."""
        optimizer = self._with_multipliers(plain)
        self._must_train()
        if self.optimizer is not None:
            raise ArgumentError(
                f"each step already updates parameters by {type(self.optimizer).__name__}",
                hint="build the session without an optimizer",
            )
        special = self._runner.ran()
        if not special.plans.gradients:
            raise RunError("the last step kept no gradients", hint=NO_STEP)
        program = self._separate_program(optimizer)
        self._separate = (optimizer, program)
        self._values.write_settings(optimizer)
        for name, buffer in program.plan.leaves("input").items():
            source = special.gradient_buffer(name.removeprefix(GRADIENT))
            if source is None:
                raise RunError(f"the last step kept no gradient of '{name}'", hint=NO_STEP)
            program.bind(buffer, special.value(source))
        program.run()
        self._values.changed()

    def _separate_program(self, optimizer: Optimizer) -> Program:
        """The program of updates, compiled where the one that is there makes others."""
        if self._separate is not None:
            old, program = self._separate
            if old == optimizer or self._only_numbers(old, optimizer):
                return program
        graph = update_graph(self._graph, optimizer)
        plan = lower_for(self._config.device, graph)
        self._close_separate()
        self._adopt(optimizer, states_of(graph), self._separate_optimizer())
        program = self._compiler.program(plan, (), self._config.object_cache())
        self._separate = (optimizer, program)
        self._compiler.keep_what_is_read(program)
        return program

    # ------------------------------------------------------------- gradients

    def gradient_names(self) -> tuple[str, ...]:
        """The parameters whose gradients a step leaves to be read."""
        if not self._config.trains or not keeps_gradients(self._config, self.optimizer):
            return ()
        return trained_names(self._graph, self.optimizer)

    def gradient(self, name: str) -> Array:
        """The gradient of a parameter in the last step."""
        special = self._runner.ran()
        buffer = special.gradient_buffer(name)
        if buffer is None:
            raise RunError(f"the last step kept no gradient of '{name}'", hint=NO_STEP)
        return special.value(buffer)

    def gradients(self) -> dict[str, Array]:
        """Copies of all gradients of the last step."""
        names = self._runner.ran().plans.gradients
        if not names:
            raise RunError("the last step kept no gradients", hint=NO_STEP)
        return {name: np.array(self.gradient(name)) for name in names}

    # ------------------------------------------------------------- checkpoints

    @property
    def awaits_optimizer(self) -> bool:
        """Whether there are no states of an optimizer yet."""
        return self.optimizer is None and not self._values.added

    def hold(self, states: Mapping[str, Array], optimizer: str) -> None:
        """Keep states of a checkpoint until an optimizer of this class is set; inference leaves them out."""
        self._held = dict(states) if self._config.trains else {}
        self._held_for = optimizer

    def with_settings(self, states: Mapping[str, Array]) -> Optimizer | None:
        """The optimizer with the numbers that states say; one that it refuses is an error."""
        if self.optimizer is None:
            return None
        numbers: dict[str, Any] = {}
        for name in self.optimizer.settings():
            if name in self._values.added and name in states:
                field = name.partition("/")[2]
                value = float(states[name])
                # A number that is the same in f32 is left as the user wrote it.
                if np.float32(getattr(self.optimizer, field)) != np.float32(value):
                    numbers[field] = value
        return replace(self.optimizer, **numbers) if numbers else self.optimizer
