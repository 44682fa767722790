"""An optimizer from a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..graph.errors import ArgumentError, Calling
from ..graph.node import Node
from .base import Optimizer, Slot

GIVEN = ("learning_rate", "step")
"""What a rule may ask for by name, beside its states and numbers."""


@dataclass(frozen=True)
class Custom(Optimizer):
    """An optimizer whose rule is a function; ``custom`` reads its states and numbers off the signature."""

    learning_rate: float
    rule: Callable[..., Any]
    states: tuple[str, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict, hash=False)

    def setting(self, name: str) -> float:
        """A default of the rule, or the learning rate."""
        return float(self.numbers[name]) if name in self.numbers else super().setting(name)

    def settings(self) -> dict[str, float]:
        """The states of the rule's defaults, beside those that every optimizer has."""
        own = {f"optimizer/{name}": float(value) for name, value in self.numbers.items()}
        return {**super().settings(), **own}

    def update(self, slot: Slot) -> Node:
        """Call the rule, and update its states by what it returns."""
        states = {name: slot.state(name) for name in self.states}
        given = {name: getattr(slot, name) for name in GIVEN if name in self._names()}
        numbers = {name: slot.setting(name) for name in self.numbers}
        answer = self.rule(slot.value, slot.gradient, **states, **given, **numbers)
        value, *following = answer if isinstance(answer, tuple | list) else (answer,)
        if len(following) != len(states):
            raise ArgumentError(
                f"the rule '{self._shown()}' has {len(states)} states but gave {len(following)}",
                hint=f"return ({', '.join(['parameter', *self.states])})",
            )
        for (name, state), node in zip(states.items(), following, strict=True):
            if not isinstance(node, Node) or node.type != state.type:
                shown = node.type if isinstance(node, Node) else repr(node)
                raise ArgumentError(f"the state '{name}' is {state.type}, the rule gave {shown}")
            slot.set(state, node)
        return value

    def _names(self) -> list[str]:
        return list(inspect.signature(self.rule).parameters)

    def _shown(self) -> str:
        return str(getattr(self.rule, "__name__", self.rule))


def custom(
    rule: Callable[..., Any], learning_rate: float, *, defaults: Any = None, **options: Any
) -> Custom:
    """An optimizer from ``rule(parameter, gradient, <states>, learning_rate, <numbers>)``.

    The rule returns the next parameter, followed by the next value of each state. Names after the first two are states
    of the parameter's shape that start at 0, except ``learning_rate`` and ``step`` (1.0 at the first update), which are
    given, and names with a default, which are numbers: states ``optimizer/<name>`` that can be set between runs.
    ``defaults`` replaces defaults of numbers; ``options`` are those of every optimizer.

    >>> def heavy_ball(parameter, gradient, velocity, learning_rate, friction=0.1):
    ...     velocity = (1.0 - friction) * velocity + gradient
    ...     return parameter - learning_rate * velocity, velocity
    >>> optimizer = custom(heavy_ball, 0.01, clip_norm=1.0)
    >>> optimizer.states, optimizer.settings()["optimizer/friction"]
    (('velocity',), 0.1)
    """
    with Calling("custom"):
        if not callable(rule):
            raise ArgumentError(f"the rule is a function, got {rule!r}")
        asked = list(inspect.signature(rule).parameters.values())
        if len(asked) < 2 or any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in asked):
            raise ArgumentError("the rule names the parameter, the gradient, and then its states")
        own = [item for item in asked[2:] if item.name not in GIVEN]
        numbers = {item.name: item.default for item in own if item.default is not item.empty}
        for name, value in (defaults or {}).items():
            if name not in numbers:
                raise ArgumentError(f"the rule has no number '{name}'", hint=f"it has {[*numbers]}")
            numbers[name] = value
        states = tuple(item.name for item in own if item.default is item.empty)
        return Custom(learning_rate, rule, states, numbers, **options)
