"""What all optimizers share: their common options, and the slot in which one parameter is updated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from ..graph import dtypes
from ..graph.constructing import Constructed
from ..graph.dims import Dim
from ..graph.dtypes import DType
from ..graph.errors import ArgumentError
from ..graph.graph import Graph
from ..graph.habits.hints import hint, missing
from ..graph.node import Node
from .checks import at_least, between, count, positive, truth
from .schedules import Schedule

PREFIX = "optimizer"
"""Before the names of what belongs to no parameter: ``optimizer/step``, ``optimizer/learning_rate``."""

ACCUMULATED = f"{PREFIX}/accumulated"
"""The state that counts the runs since the last update, where several share one."""

GRADIENT_NORM = f"{PREFIX}/gradient_norm"
"""The state that has the norm of all gradients at the last update, before ``clip_norm``, where that is set."""

GRADIENT_SUM = "/gradient_sum"
"""After a parameter's name: the sum of its gradients since the last update, where several runs share one."""

DecayFilter = Callable[[str, tuple[Dim, ...]], bool]
"""From a parameter's name and shape to whether weight decay applies to it."""


KnownAs = tuple[str, tuple[Dim, ...]]
"""A parameter's name and shape, by which an optimizer's options are looked up."""


def matrices_only(name: str, shape: tuple[Dim, ...]) -> bool:
    """A ``decay_filter`` that leaves out biases, gains of norms and all other vectors and scalars."""
    return len(shape) > 1


@dataclass(frozen=True)
class Optimizer(metaclass=Constructed):
    """How a parameter follows from its gradient. A subclass adds its numbers and ``update``.

    Attributes:
        learning_rate: the rate, which the state ``optimizer/learning_rate`` starts with.
        schedule: what the rate is multiplied by, as a function of the updates made so far.
        multipliers: factors of the rate by parameter or scope: ``{"encoder": 0.1, "encoder.head": 1.0}``. The longest
            one that fits counts; ``"layer*"`` fits every name that begins so. With 0.0 a parameter is frozen: it has
            no gradient, no state and no update.
        decay_filter: says by name and shape which parameters weight decay applies to; all by default.
        clip_value: the largest magnitude of a gradient's element; applied before ``clip_norm``.
        clip_norm: the largest norm of all gradients together; they are scaled down to it.
        accumulate: how many runs share an update, which is made with the mean of their gradients.
        master: keep an f32 copy of 16-bit parameters, to which small updates are added without loss.

    Every subclass declares ``learning_rate`` as its own first field. A number that is declared as a field becomes a
    state, ``optimizer/<field>``, where ``update`` asks for it, and can be set between runs. One that is 0.0 where that
    leaves a part out (momentum, weight decay) is part of the graph: the state is not made.
    """

    _habits: ClassVar[str] = "optimizer argument"

    schedule: Schedule | None = field(default=None, kw_only=True)
    multipliers: Mapping[str, float] = field(default_factory=dict, kw_only=True, hash=False)
    decay_filter: DecayFilter | None = field(default=None, kw_only=True)
    clip_norm: float | None = field(default=None, kw_only=True)
    clip_value: float | None = field(default=None, kw_only=True)
    accumulate: int = field(default=1, kw_only=True)
    master: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self._check_common()
        self.check()

    if not TYPE_CHECKING:  # a type checker knows the names itself

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            raise missing(
                "optimizer attribute", f"{type(self).__name__} has no", name, dir(type(self))
            )

    @property
    def takes_complex(self) -> bool:
        """Whether its rule holds for complex parameters too, as one that is linear in the gradient does."""
        return False

    def check(self) -> None:
        """Refuse wrong numbers; a subclass adds its own. Runs as an optimizer is made."""

    def update(self, slot: Slot) -> Node:
        """The parameter's next value, from ``slot``, where states are made and updated."""
        raise ArgumentError(
            f"{type(self).__name__} has no rule", hint="define update(self, slot) -> Node"
        )

    def setting(self, name: str) -> float:
        """The number a state ``optimizer/<name>`` starts with."""
        found = getattr(self, name, None)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise ArgumentError(f"{type(self).__name__} has no number '{name}'")
        return float(found)

    def multiplier(self, name: str) -> float:
        """What the learning rate of a parameter is multiplied by."""
        fitting = [prefix for prefix in self.multipliers if fits(prefix, name)]
        # At the same length a whole word says more than the beginning of one.
        closest = max(fitting, key=_closeness, default=None)
        return 1.0 if closest is None else self.multipliers[closest]

    def decays(self, name: str, shape: tuple[Dim, ...]) -> bool:
        """Whether weight decay applies to a parameter."""
        return self.decay_filter is None or bool(self.decay_filter(name, shape))

    def _check_common(self) -> None:
        rate = getattr(self, "learning_rate", None)
        if isinstance(rate, Schedule):
            raise ArgumentError(
                "learning_rate is a number, which a schedule multiplies",
                hint="learning_rate=1e-3, schedule=...",
            )
        if isinstance(rate, Mapping | list | tuple | Iterator):
            raise ArgumentError(
                f"learning_rate is a number, got a {type(rate).__name__}",
                hint=hint("optimizer argument", "params"),
            )
        at_least(rate, 0, "learning_rate")
        if self.schedule is not None and not isinstance(self.schedule, Schedule):
            raise ArgumentError(
                f"schedule is one of darner.optim's, got {self.schedule!r}",
                hint="from_function makes one of a function",
            )
        if not isinstance(self.multipliers, Mapping):
            raise ArgumentError(f"multipliers map names to numbers, got {self.multipliers!r}")
        for prefix, factor in self.multipliers.items():
            if not isinstance(prefix, str):
                raise ArgumentError(f"multipliers are given by name, got {prefix!r}")
            at_least(factor, 0, f"the multiplier of '{prefix}'")
        object.__setattr__(self, "multipliers", dict(self.multipliers))  # the caller's may change
        if self.decay_filter is not None and not callable(self.decay_filter):
            raise ArgumentError(
                f"decay_filter is a function of name and shape, got {self.decay_filter!r}"
            )
        for name in ("clip_norm", "clip_value"):
            if getattr(self, name) is not None:
                positive(getattr(self, name), name)
        count(self.accumulate, "accumulate")
        truth(self.master, "master")

    def check_fraction(self, *names: str) -> None:
        """Each field must lie in [0, 1), such as the rate of a moving mean."""
        for name in names:
            between(getattr(self, name), 0, 1, name)

    def check_not_negative(self, *names: str) -> None:
        """Each field must be a number not below 0."""
        for name in names:
            at_least(getattr(self, name), 0, name)

    def settings(self) -> dict[str, float]:
        """The names of the states that numbers of this optimizer may become, with what they start at."""
        names = [item.name for item in fields(self)]
        numbers = {name: getattr(self, name) for name in names if name != "accumulate"}
        return {
            f"{PREFIX}/{name}": float(value)
            for name, value in numbers.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }


def fits(prefix: str, name: str) -> bool:
    """Whether an entry of ``multipliers`` means a parameter: itself, the scope it stands in, or ``begins*``."""
    if prefix.endswith("*"):
        return name.startswith(prefix[:-1])
    return name == prefix or name.startswith((f"{prefix}.", f"{prefix}/"))


def as_dtype(node: Node, dtype: DType) -> Node:
    """A node in a dtype: itself where it has that already, so that no step is full of idle casts."""
    return node if node.dtype is dtype else node.cast(dtype)


def _closeness(prefix: str) -> tuple[int, bool]:
    return len(prefix.rstrip("*")), not prefix.endswith("*")


def runs_so_far(graph: Graph) -> Node:
    """The state that counts the runs since the last update."""
    return graph.state(ACCUMULATED, (), dtypes.i32)


class Clock:
    """What a step has once for all parameters: its counters, its settings and its rate."""

    def __init__(self, graph: Graph, optimizer: Optimizer, dtype: DType, due: bool = False) -> None:
        self.graph = graph
        self.optimizer = optimizer
        self.dtype = dtype
        self.accumulates = optimizer.accumulate > 1
        self._settings: dict[str, Node] = {}
        self._shared: dict[tuple[str, DType], Node] = {}
        done = graph.state(f"{PREFIX}/step", (), dtypes.i32)
        self.due = self._accumulation(due) if self.accumulates else None
        following = done + 1
        graph.set_update(done, self.when_due(following, done))
        self.step = following.cast(dtype)
        rate = self.setting("learning_rate")
        if optimizer.schedule is not None:
            rate = rate * optimizer.schedule.node(done.cast(dtype))
        self.learning_rate = rate

    def _accumulation(self, due: bool) -> Node | None:
        """Whether this run is the last of those that share an update; None where it is known to be."""
        counted = runs_so_far(self.graph)
        if due:
            self.graph.set_update(counted, counted.zeros_like())
            return None
        last = counted.ge(self.optimizer.accumulate - 1)
        self.graph.set_update(counted, self.graph.where(last, counted.zeros_like(), counted + 1))
        return last

    def when_due(self, following: Node, before: Node) -> Node:
        """``following`` in runs that make an update, ``before`` in the others."""
        return following if self.due is None else self.graph.where(self.due, following, before)

    def setting(self, name: str) -> Node:
        """The state of a number, made when it is first asked for."""
        if name not in self._settings:
            self._settings[name] = self.graph.state(
                f"{PREFIX}/{name}", (), self.dtype, init=self.optimizer.setting(name)
            )
        return self._settings[name]

    def shared(self, name: str, dtype: DType, make: Callable[[], Node]) -> Node:
        """A scalar that is the same for all parameters, computed once for each dtype."""
        if (name, dtype) not in self._shared:
            self._shared[name, dtype] = make()
        return self._shared[name, dtype]


class Slot:
    """One parameter in a step that is being built: what an optimizer's rule reads and writes.

    Attributes:
        name: the parameter's name.
        value: its value, in the dtype of the computation (f32 for 16-bit parameters).
        gradient: its gradient in that dtype: the mean over accumulated runs, clipped.
        learning_rate: its rate at this step, schedule and multiplier included.
        step: the number of this update as a float: 1 at the first.
        decays: whether weight decay applies to it.
    """

    def __init__(
        self,
        clock: Clock,
        leaf: Node,
        value: Node,
        gradient: Node,
        known_as: KnownAs | None = None,
    ) -> None:
        self._clock = clock
        self._leaf = leaf
        self.name, shape = known_as or (str(leaf.name), leaf.shape)
        self.value = value
        self.gradient = gradient
        self.decays = clock.optimizer.decays(self.name, shape)
        factor = clock.optimizer.multiplier(self.name)
        rate = clock.learning_rate if factor == 1.0 else clock.learning_rate * factor
        self.learning_rate = as_dtype(rate, self.dtype)
        self.step = as_dtype(clock.step, self.dtype)

    @property
    def dtype(self) -> DType:
        """The dtype of value, gradient and states."""
        return self.value.dtype

    @property
    def graph(self) -> Graph:
        """The graph of the step."""
        return self._clock.graph

    def setting(self, name: str) -> Node:
        """A number of the optimizer as the state ``optimizer/<name>``, in this slot's dtype."""
        return as_dtype(self._clock.setting(name), self.dtype)

    def shared(self, name: str, make: Callable[[], Node]) -> Node:
        """A scalar that is the same in every slot of this dtype, so that it is computed once."""
        return self._clock.shared(name, self.dtype, make)

    def state(self, name: str, shape: Any = None, init: float = 0.0) -> Node:
        """A new state ``<parameter>/<name>``, by default of the parameter's shape."""
        shape = self._leaf.shape if shape is None else shape
        return self.graph.state(f"{self._leaf.name}/{name}", shape, self.dtype, init=init)

    def set(self, state: Node, following: Node) -> Node:
        """What a state is after the update; returned for use in the same step."""
        self.graph.set_update(state, self._clock.when_due(following, state))
        return following

    def moving_mean(self, name: str, rate: Node, sample: Node) -> Node:
        """A state ``name`` that becomes ``rate * state + (1 - rate) * sample``: what it becomes."""
        state = self.state(name)
        return self.set(state, rate * state + (1.0 - rate) * sample)

    def weight_decay(self) -> Node | None:
        """The setting ``weight_decay``; None where it is 0 or does not apply to this parameter."""
        if not self.decays or self._clock.optimizer.setting("weight_decay") == 0.0:
            return None
        return self.setting("weight_decay")

    def gradient_with_decay(self) -> Node:
        """The gradient of the loss with the penalty ``weight_decay / 2 * |value|**2`` (L2)."""
        decay = self.weight_decay()
        return self.gradient if decay is None else self.gradient + decay * self.value

    def decayed_value(self) -> Node:
        """The value shrunk by ``learning_rate * weight_decay``, apart from the gradient (decoupled)."""
        decay = self.weight_decay()
        return self.value if decay is None else self.value * (1.0 - self.learning_rate * decay)

    def finish(self, following: Node, master: Node | None) -> None:
        """Update the parameter, and its master copy where it has one."""
        if not isinstance(following, Node) or following.type != self.value.type:
            shown = following.type if isinstance(following, Node) else repr(following)
            raise ArgumentError(
                f"the rule of {type(self._clock.optimizer).__name__} gave {shown} "
                f"for '{self.name}', which is {self.value.type}"
            )
        if master is not None:
            # The copy of runs that make no update is the value that was read, whatever the state held.
            self.graph.set_update(master, self._clock.when_due(following, self.value))
        stored = as_dtype(following, self._leaf.dtype)
        self.graph.set_update(self._leaf, self._clock.when_due(stored, self._leaf))
