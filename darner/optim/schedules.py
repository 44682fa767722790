"""Schedules: what the learning rate is multiplied by, as a function of the updates made so far.

A schedule is a factor, so one of them serves any rate: the first update is made with ``learning_rate * schedule(0)``.
One formula serves two ways of asking. In Python it gives a number; in a graph it gives a node, so that a training step
computes its own rate from the counter ``optimizer/step``:

    >>> from darner.optim import cosine, linear_warmup
    >>> schedule = linear_warmup(4) >> cosine(10, end=0.1)
    >>> [round(schedule(step), 3) for step in (0, 2, 4, 9, 14, 100)]
    [0.0, 0.5, 1.0, 0.55, 0.1, 0.1]
    >>> schedule
    linear_warmup(4) >> cosine(10, end=0.1)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..graph.errors import ArgumentError, Calling
from ..graph.node import Node
from .checks import at_least, between, count, positive

Formula = Callable[[Any], Any]
"""From a step (a float or a scalar node) to a factor of the same kind."""


@dataclass(frozen=True, repr=False)
class Schedule:
    """A factor for the learning rate, by step; made by the functions of this module.

    Attributes:
        text: how it is written; schedules written the same, of the same functions, are equal.
        steps: after how many steps the next one of a sequence takes over, where that is known.
        formula: arithmetic that works on a float and on a node alike.
        functions: the user's own in it, which a text cannot tell apart.
    """

    text: str
    steps: int | None
    formula: Formula = field(compare=False)
    functions: tuple[Formula, ...] = ()

    def __call__(self, step: float) -> float:
        """The factor after ``step`` updates."""
        with Calling("schedule"):
            return float(self.formula(float(at_least(step, 0, "a step"))))

    def node(self, step: Node) -> Node:
        """The factor as a node, from a scalar float node that counts updates."""
        with Calling("schedule"):
            if not step.dtype.is_float:
                raise ArgumentError(f"a schedule reads the step as a float, got {step.type}")
            found = self.formula(step)
            return found if isinstance(found, Node) else step.full_like(found)

    def __rshift__(self, following: Schedule) -> Schedule:
        """This schedule for its own number of steps, then ``following`` from its start."""
        return join([self, following])

    def __mul__(self, factor: Schedule | float) -> Schedule:
        """The product with a number or with another schedule."""
        with Calling("schedule"):
            if isinstance(factor, Schedule):
                steps, other = self.steps or factor.steps, factor.formula
                return Schedule(
                    f"({self.text}) * ({factor.text})",
                    steps,
                    lambda step: self.formula(step) * other(step),
                    self.functions + factor.functions,
                )
            scale = at_least(factor, 0, "a factor")
            return Schedule(
                f"{scale!r} * ({self.text})",
                self.steps,
                lambda step: scale * self.formula(step),
                self.functions,
            )

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return self.text


def from_function(formula: Formula, *, steps: int | None = None, name: str = "") -> Schedule:
    """A schedule of one's own: arithmetic on the step that a float and a node both have.

    >>> inverse = from_function(lambda step: (1 + step) ** -0.5)
    >>> inverse(3)
    0.5
    """
    with Calling("from_function"):
        if not callable(formula):
            raise ArgumentError(f"a schedule is a function of the step, got {formula!r}")
        length = None if steps is None else count(steps, "steps")
        for step in (0.0, 1.0):
            try:
                found = formula(step)
            except ArithmeticError as error:
                raise ArgumentError(f"the schedule fails at step {step:g}: {error}") from error
            at_least(found, 0, f"the factor at step {step:g}")
        shown = name or getattr(formula, "__qualname__", repr(formula))
        return Schedule(f"from_function({shown})", length, formula, (formula,))


def constant(factor: float = 1.0, steps: int | None = None) -> Schedule:
    """One factor; with ``steps`` another schedule may follow."""
    with Calling("constant"):
        value = at_least(factor, 0, "factor")
        length = None if steps is None else count(steps, "steps")
        shown = repr(value) if length is None else f"{value!r}, {length}"
        return Schedule(f"constant({shown})", length, lambda step: value + 0.0 * step)


def linear_warmup(steps: int, start: float = 0.0) -> Schedule:
    """In a straight line from ``start`` at step 0 to 1 at ``steps``, and 1 from there."""
    with Calling("linear_warmup"):
        length, low = count(steps, "steps"), at_least(start, 0, "start")
        shown = f"{length}" if low == 0 else f"{length}, start={low!r}"
        return Schedule(
            f"linear_warmup({shown})",
            length,
            lambda step: low + (1.0 - low) * _progress(step, length),
        )


warmup = linear_warmup
"""The short name of ``linear_warmup``."""


def cosine(steps: int, end: float = 0.0) -> Schedule:
    """Half a cosine from 1 to ``end`` over ``steps``, and ``end`` from there."""
    with Calling("cosine"):
        length, low = count(steps, "steps"), at_least(end, 0, "end")
        shown = f"{length}" if low == 0 else f"{length}, end={low!r}"
        return Schedule(
            f"cosine({shown})", length, lambda step: _eased(1.0, low, _progress(step, length))
        )


def polynomial(steps: int, power: float = 1.0, end: float = 0.0) -> Schedule:
    """``(1 - step / steps) ** power`` from 1 to ``end``, and ``end`` from there; a straight line by default."""
    with Calling("polynomial"):
        length, low = count(steps, "steps"), at_least(end, 0, "end")
        exponent = positive(power, "power")
        return Schedule(
            f"polynomial({length}, power={exponent!r}, end={low!r})",
            length,
            lambda step: low + (1.0 - low) * (1.0 - _progress(step, length)) ** exponent,
        )


def exponential(factor: float, every: int = 1) -> Schedule:
    """Multiplied by ``factor`` over every ``every`` steps, smoothly."""
    with Calling("exponential"):
        base, length = positive(factor, "factor"), count(every, "every")
        shown = f"{base!r}" if length == 1 else f"{base!r}, every={length}"
        return Schedule(f"exponential({shown})", None, lambda step: _power(base, step / length))


def step_decay(every: int, factor: float = 0.1) -> Schedule:
    """Multiplied by ``factor`` after every ``every`` steps, at once."""
    with Calling("step_decay"):
        length, base = count(every, "every"), positive(factor, "factor")
        return Schedule(
            f"step_decay({length}, factor={base!r})",
            None,
            lambda step: _power(base, _whole(step, length)),
        )


def piecewise(factors: Mapping[int, float]) -> Schedule:
    """Constant factors, each from its step on: ``piecewise({1000: 0.1, 2000: 0.01})``, and 1 before the first."""
    with Calling("piecewise"):
        if not isinstance(factors, Mapping) or not factors:
            raise ArgumentError(f"factors are a mapping from steps to numbers, got {factors!r}")
        pieces = sorted(
            (count(step, "a step", least=0), at_least(factor, 0, "a factor"))
            for step, factor in factors.items()
        )

        def formula(step: Any) -> Any:
            found: Any = 1.0
            for start, factor in pieces:
                found = _choose(step, start, found, factor)
            return found

        return Schedule(f"piecewise({dict(pieces)!r})", None, formula)


def one_cycle(
    steps: int, warmup_share: float = 0.3, start: float = 1 / 25, end: float = 4e-6
) -> Schedule:
    """Up from ``start`` to 1 and down to ``end``, along cosines, as in PyTorch's ``OneCycleLR``.

    The peak is at step ``warmup_share * steps - 1`` and the end at ``steps - 1``.
    """
    with Calling("one_cycle"):
        length = count(steps, "steps", least=2)
        share = between(warmup_share, 0, 1, "warmup_share")
        first, last = at_least(start, 0, "start"), at_least(end, 0, "end")
        peak, final = share * length - 1.0, length - 1.0
        if peak <= 0:
            raise ArgumentError(
                f"the peak would be at step {peak:g}", hint="more steps, or a larger warmup_share"
            )

        def formula(step: Any) -> Any:
            up = _eased(first, 1.0, _progress(step, peak))
            down = _eased(1.0, last, _clamp((step - peak) / (final - peak)))
            return _choose(step, peak, up, down)

        text = f"one_cycle({length}, warmup_share={share!r}, start={first!r}, end={last!r})"
        return Schedule(text, length, formula)


def join(schedules: Sequence[Schedule]) -> Schedule:
    """Schedules one after the other, each counted from its own start; ``first >> second`` is the same."""
    with Calling("join"):
        parts = list(schedules)
        if not parts or not all(isinstance(part, Schedule) for part in parts):
            raise ArgumentError(f"join takes schedules, got {schedules!r}")
        starts, total = [], 0
        for part in parts[:-1]:
            if part.steps is None:
                raise ArgumentError(
                    f"{part} has no end, so that nothing can follow it",
                    hint="constant takes steps=; so does from_function",
                )
            total += part.steps
            starts.append(total)

        def formula(step: Any) -> Any:
            found = parts[0].formula(step)
            for start, part in zip(starts, parts[1:], strict=True):
                # A node computes every part, so none may be asked about steps before its start.
                found = _choose(step, start, found, part.formula(_at_least_zero(step - start)))
            return found

        end = parts[-1].steps
        return Schedule(
            " >> ".join(part.text for part in parts),
            None if end is None else total + end,
            formula,
            tuple(function for part in parts for function in part.functions),
        )


# ------------------------------------------------------------- arithmetic of floats and nodes


def _progress(step: Any, steps: float) -> Any:
    """The share of ``steps`` that is done, from 0 to 1."""
    return _clamp(step / steps)


def _clamp(value: Any) -> Any:
    return value.clip(0.0, 1.0) if isinstance(value, Node) else min(max(value, 0.0), 1.0)


def _at_least_zero(value: Any) -> Any:
    return value.maximum(0.0) if isinstance(value, Node) else max(value, 0.0)


def _eased(start: float, end: float, share: Any) -> Any:
    """From ``start`` to ``end`` along half a cosine."""
    angle = math.pi * share
    turned = angle.cos() if isinstance(angle, Node) else math.cos(angle)
    return end + (start - end) * 0.5 * (1.0 + turned)


def _power(base: float, exponent: Any) -> Any:
    if isinstance(exponent, Node):
        return exponent.graph.constant(base, dtype=exponent.dtype).pow(exponent)
    return base**exponent


def _whole(step: Any, every: int) -> Any:
    """How many times ``every`` fits; half a step away from the edges, where a quotient may be rounded."""
    quotient = (step + 0.5) / every
    return quotient.floor() if isinstance(quotient, Node) else math.floor(quotient)


def _choose(step: Any, start: float, before: Any, after: Any) -> Any:
    if isinstance(step, Node):
        graph = step.graph
        nodes = [
            item if isinstance(item, Node) else graph.constant(item, dtype=step.dtype)
            for item in (before, after)
        ]
        return graph.where(step < start, *nodes)
    return before if step < start else after


__all__ = [
    "Schedule",
    "constant",
    "cosine",
    "exponential",
    "from_function",
    "join",
    "linear_warmup",
    "one_cycle",
    "piecewise",
    "polynomial",
    "step_decay",
    "warmup",
]
