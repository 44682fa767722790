"""An optimizer from a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields, make_dataclass
from functools import lru_cache
from typing import Any, ClassVar

from ..graph.errors import ArgumentError, Calling
from ..graph.node import Node
from .base import Optimizer, Slot
from .checks import number

GIVEN = ("learning_rate", "step")
"""What a rule may ask for by name, beside its states and numbers."""


@dataclass(frozen=True)
class Custom(Optimizer):
    """An optimizer whose rule is a function. ``custom`` makes a subclass of each rule, with its numbers as fields."""

    rule: ClassVar[Callable[..., Any]]
    states: ClassVar[tuple[str, ...]] = ()
    numbers: ClassVar[tuple[str, ...]] = ()

    learning_rate: float

    def check(self) -> None:
        """Numbers of the rule are numbers."""
        for name in self.numbers:
            object.__setattr__(self, name, number(getattr(self, name), name))

    def update(self, slot: Slot) -> Node:
        """Call the rule, and update its states by what it returns."""
        states = {name: slot.state(name) for name in self.states}
        asked = inspect.signature(self.rule).parameters
        given = {name: getattr(slot, name) for name in GIVEN if name in asked}
        numbers = {name: slot.setting(name) for name in self.numbers}
        answer = self.rule(slot.value, slot.gradient, **states, **given, **numbers)
        value, *following = answer if isinstance(answer, tuple | list) else (answer,)
        if len(following) != len(states):
            raise ArgumentError(
                f"the rule '{type(self).__name__}' has {len(states)} states "
                f"but gave {len(following)}",
                hint=f"return ({', '.join(['parameter', *self.states])})",
            )
        for (name, state), node in zip(states.items(), following, strict=True):
            if not isinstance(node, Node) or node.type != state.type:
                shown = node.type if isinstance(node, Node) else repr(node)
                raise ArgumentError(f"the state '{name}' is {state.type}, the rule gave {shown}")
            slot.set(state, node)
        return value


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
    >>> optimizer.states, optimizer.friction
    (('velocity',), 0.1)
    """
    with Calling("custom"):
        if not callable(rule):
            raise ArgumentError(f"the rule is a function, got {rule!r}")
        # Optimizers of one rule have one class, as the moments of one may go on in another.
        made = _class_of(rule) if isinstance(rule, Hashable) else _new_class(rule)
        for name in defaults or {}:
            if name not in made.numbers:
                raise ArgumentError(
                    f"the rule has no number '{name}'", hint=f"it has {[*made.numbers]}"
                )
        return made(learning_rate, **(defaults or {}), **options)


def _new_class(rule: Callable[..., Any]) -> type[Custom]:
    """The class of a rule's optimizers: its states and numbers are read off the signature."""
    asked = list(inspect.signature(rule).parameters.values())
    if len(asked) < 2 or any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in asked):
        raise ArgumentError("the rule names the parameter, the gradient, and then its states")
    own = [item for item in asked[2:] if item.name not in GIVEN]
    numbers = [item for item in own if item.default is not item.empty]
    taken = {item.name for item in fields(Custom)} | set(dir(Custom))
    for item in numbers:
        if item.name in taken:
            raise ArgumentError(
                f"the rule's number '{item.name}' has the name of something every optimizer has"
            )
    name = str(getattr(rule, "__name__", type(rule).__name__))
    made: type[Custom] = make_dataclass(
        name if name.isidentifier() else "Custom",
        [(item.name, float, field(default=item.default, kw_only=True)) for item in numbers],
        bases=(Custom,),
        namespace={
            "__doc__": rule.__doc__,
            "__module__": getattr(rule, "__module__", __name__),
            "rule": staticmethod(rule),
            "states": tuple(item.name for item in own if item.default is item.empty),
            "numbers": tuple(item.name for item in numbers),
        },
        frozen=True,
    )
    return made


_class_of = lru_cache(maxsize=256)(_new_class)
