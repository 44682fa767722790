"""Rewrite rules: rows of data.

    >>> from darner.optimizer import T, rule, variables
    >>> x = variables("x")
    >>> rule("tan", T.sin(x) / T.cos(x), T.tan(x))
    rule 'tan': div(sin(x), cos(x)) -> tan(x)
    >>> from darner.optimizer.declare import remove_rule
    >>> remove_rule("tan")

A rule says that its right side computes what its left side does; whether that is cheaper is decided elsewhere, by cost. A rule with
``simplify=True`` is never worse: it is applied already where the canonical form of a graph is made.

Where a result must be computed from the match, a function makes it; None means that the rule does not apply:

    @rewrite("transpose of transpose", T.transpose(T.transpose(x, perm=p), perm=q))
    def _(m):
        return T.transpose(m.x, perm=[m.p[i] for i in m.q])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..graph.errors import ArgumentError, NameTakenError, did_you_mean
from .match import Match, RuleError, Value
from .pattern import Pattern, Term, Variable, as_pattern, attribute_variables, operand_variables

Mode: TypeAlias = Literal["train", "inference"]
Result: TypeAlias = Callable[[Match], Pattern | None]


@dataclass(frozen=True)
class Condition:
    """A guard, with the words in which a report says that it failed. ``&`` joins two.

    ``constants`` names variables that must be constants for it to hold: only such are searched for.
    """

    text: str
    holds: Callable[[Match], bool]
    constants: frozenset[str] = frozenset()

    def __call__(self, match: Match) -> bool:
        """Whether it holds for a match."""
        return self.holds(match)

    def __and__(self, other: Condition) -> Condition:
        return Condition(
            f"{self.text} and {other.text}",
            lambda m: self.holds(m) and other.holds(m),
            self.constants | other.constants,
        )

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, repr=False, eq=False)
class Rule:
    """One row of the table.

    Attributes:
        name: what reports and tests call it.
        pattern: the left side.
        result: the right side, or a function of the match that makes it (None: does not apply).
        when: the guard.
        mode: where it may run: "train", "inference" or "both".
        simplify: never worse, so applied in the canonical form too.
        fusion: the label under which a report counts the fusion, where it is one.
        late: not before differentiation (the gradient of the left side is the better one).
        family: the module that holds it.
    """

    name: str
    pattern: Term
    result: Pattern | Result
    when: Condition | None = None
    mode: Literal["both", "train", "inference"] = "both"
    simplify: bool = False
    fusion: str | None = None
    late: bool = False
    family: str = ""

    def produce(self, match: Match) -> Pattern | None:
        """The right side for a match, or None where the rule does not apply."""
        try:
            if self.when is not None and not self.when(match):
                return None
            return self.result(match) if callable(self.result) else self.result
        except Exception as error:
            kind = type(error).__name__
            raise RuleError(
                f"the guard or the result of rule '{self.name}' failed: {kind}: {error}"
            ) from error

    def runs(self, mode: Mode, before_gradient: bool) -> bool:
        """Whether it may be used in a pass."""
        return self.mode in ("both", mode) and not (self.late and before_gradient)

    def __repr__(self) -> str:
        right = "..." if callable(self.result) else repr(self.result)
        guard = f" when {self.when}" if self.when is not None else ""
        return f"rule '{self.name}': {self.pattern!r} -> {right}{guard}"


RULES: dict[str, Rule] = {}


def rule(  # many parameters: a rule's record, field by field
    name: str,
    pattern: Any,
    result: Any,
    *,
    when: Condition | None = None,
    mode: Literal["both", "train", "inference"] = "both",
    simplify: bool = False,
    fusion: str | None = None,
    late: bool = False,
    both_ways: bool = False,
) -> Rule:
    """Declare a rule; from now on every optimization uses it. ``both_ways`` declares its inverse too."""
    if not isinstance(pattern, Term):
        raise ArgumentError(f"the left side of rule '{name}' must be a call, not {pattern!r}")
    right = result if callable(result) and not isinstance(result, Pattern) else as_pattern(result)
    if isinstance(right, Pattern):
        _check_variables(name, pattern, right)
    made = Rule(name, pattern, right, when, mode, simplify, fusion, late, _family(result, when))
    _add(made)
    if both_ways:
        rule(f"{name}, reversed", right, pattern, when=when, mode=mode, fusion=fusion, late=late)
    return made


def rewrite(name: str, pattern: Any, **options: Any) -> Callable[[Result], Rule]:
    """Declare a rule whose result the decorated function makes."""
    return lambda function: rule(name, pattern, function, **options)


def condition(text: str) -> Callable[[Callable[[Match], bool]], Condition]:
    """Make a guard of a function of the match; ``text`` says what it asks."""
    return lambda function: Condition(text, function)


def remove_rule(name: str) -> None:
    """Take a rule out of the table."""
    if name not in RULES:
        raise ArgumentError(f"there is no rule '{name}'", hint=did_you_mean(name, RULES))
    del RULES[name]


def _add(made: Rule) -> None:
    if made.name in RULES:
        raise NameTakenError(f"there is a rule '{made.name}' already")
    RULES[made.name] = made


def _check_variables(name: str, left: Pattern, right: Pattern) -> None:
    known = {*operand_variables(left), *attribute_variables(left)}
    for used in (*operand_variables(right), *attribute_variables(right)):
        if used not in known:
            raise ArgumentError(f"the result of rule '{name}' uses '{used}', which is not matched")


def _family(result: Any, when: Condition | None) -> str:
    import sys

    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        if frame.f_back is None:
            break
        frame = frame.f_back
    module = str(frame.f_globals.get("__name__", ""))
    return module.rpartition(".")[2]


# --------------------------------------------------------------------------- common guards


def same_type(*names: Variable) -> Condition:
    """All have one shape and element type."""
    text = f"{', '.join(n.name for n in names)} have one type"
    return Condition(text, lambda m: len({m[n].type for n in names}) == 1)


def same_shape(*names: Variable) -> Condition:
    """All have one shape."""
    text = f"{', '.join(n.name for n in names)} have one shape"
    return Condition(text, lambda m: len({m[n].shape for n in names}) == 1)


def keeps_type(name: Variable) -> Condition:
    """The variable has the type of the whole (nothing was broadcast on the way)."""
    return Condition(f"{name} has the result's type", lambda m: m[name].type == m.root.type)


def is_float(*names: Variable) -> Condition:
    """All are floats."""
    text = f"{', '.join(n.name for n in names)} are floats"
    return Condition(text, lambda m: all(m[n].dtype.is_float for n in names))


def is_vector(*names: Variable) -> Condition:
    """All have one axis."""
    text = f"{', '.join(n.name for n in names)} are vectors"
    return Condition(text, lambda m: all(m[n].rank == 1 for n in names))


def is_parameter(*names: Variable) -> Condition:
    """All are parameters."""
    text = f"{', '.join(n.name for n in names)} are parameters"
    return Condition(text, lambda m: all(m[n].leaf == "parameter" for n in names))


def stored_together(*names: Variable) -> Condition:
    """Parameters that may stand one after another in one stored block, in any order.

    Where layouts are not decided (``layout`` is None for all, as in a proof), any parameters may.
    """

    def holds(m: Match) -> bool:
        found = [m[n] for n in names]
        if any(value.leaf != "parameter" for value in found):
            return False
        layouts = [value.layout for value in found if value.layout is not None]
        if not layouts:
            return True
        places = sorted(place for _, place in layouts)
        one_block = len({block for block, _ in layouts}) == 1 and len(layouts) == len(found)
        return one_block and places == list(range(places[0], places[0] + len(places)))

    return Condition(f"{', '.join(n.name for n in names)} are parameters stored together", holds)


def in_stored_order(*found: Value) -> list[Value]:
    """Parameters in the order in which they are stored."""
    return sorted(found, key=lambda value: value.layout or (0, 0))


def is_scalar(*names: Variable) -> Condition:
    """All have no axes."""
    text = f"{', '.join(n.name for n in names)} are scalars"
    return Condition(text, lambda m: all(m[n].rank == 0 for n in names))


def is_constant(*names: Variable) -> Condition:
    """All are known numbers, one value each."""
    text = f"{', '.join(n.name for n in names)} are constant numbers"
    return Condition(
        text,
        lambda m: all(m[n].number is not None for n in names),
        frozenset(n.name for n in names),
    )


def values(match: Match) -> Iterator[Value]:
    """The operands that a match binds."""
    for found in match._found.values():
        if isinstance(found, Value):
            yield found
