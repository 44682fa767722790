"""Patterns: calls of ops with variables in them, written like the calls themselves.

    >>> from darner.optimizer.pattern import T, variables
    >>> x, axis = variables("x axis")
    >>> T.softmax(x * 2.0, axis=axis)
    softmax(mul(x, 2.0), axis=axis)

A variable in the place of an operand stands for any value, in the place of an attribute for any attribute; the same
variable twice stands for the same thing. An attribute that is left out has its default, as in a call; ``rest=a`` stands for all
attributes not given. On the right of a rule an attribute may be a function of the match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..graph.cached import cached_property
from ..graph.check import canonical
from ..graph.errors import ArgumentError
from ..graph.op import REQUIRED, Op, get_op


class Pattern:
    """A variable, a number, or a call with patterns in it. Operators make calls."""

    def __add__(self, other: Any) -> Term:
        return T.add(self, other)

    def __radd__(self, other: Any) -> Term:
        return T.add(other, self)

    def __sub__(self, other: Any) -> Term:
        return T.sub(self, other)

    def __rsub__(self, other: Any) -> Term:
        return T.sub(other, self)

    def __mul__(self, other: Any) -> Term:
        return T.mul(self, other)

    def __rmul__(self, other: Any) -> Term:
        return T.mul(other, self)

    def __truediv__(self, other: Any) -> Term:
        return T.div(self, other)

    def __rtruediv__(self, other: Any) -> Term:
        return T.div(other, self)

    def __matmul__(self, other: Any) -> Term:
        return T.matmul(self, other)

    def __pow__(self, other: Any) -> Term:
        return T.pow(self, other)

    def __neg__(self) -> Term:
        return T.neg(self)


@dataclass(frozen=True, repr=False)
class Variable(Pattern):
    """Anything: a value where it stands for an operand, an attribute where it stands for one."""

    name: str

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, repr=False)
class Number(Pattern):
    """A scalar constant, of the element type that its neighbours have."""

    value: float

    def __repr__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, repr=False)
class Term(Pattern):
    """A call: an op, patterns for its operands, and attributes (values, variables, functions)."""

    op: Op
    slots: tuple[str, ...]
    operands: tuple[Pattern, ...]
    attrs: tuple[tuple[str, Any], ...]
    rest: Variable | None = None

    @cached_property
    def fixed(self) -> dict[str, Any]:
        """The attributes as they are stored; None in the place of variables and of the rest."""
        given = {name: value for name, value in self.attrs if not isinstance(value, Variable)}
        return {
            param.name: canonical(param, given[param.name]) if param.name in given else None
            for param in self.op.attributes
        }

    def __repr__(self) -> str:
        parts = [repr(operand) for operand in self.operands]
        shown = {param.name: param.default for param in self.op.attributes}
        for name, value in self.attrs:
            if callable(value) or value != shown[name] or shown[name] is REQUIRED:
                text = "..." if callable(value) else repr(value)
                parts.append(f"{name}={text}")
        if self.rest is not None:
            parts.append(f"rest={self.rest}")
        return f"{self.op.name}({', '.join(parts)})"


def variables(names: str) -> Any:
    """One variable for each word; a single word gives the variable itself."""
    made = tuple(Variable(name) for name in names.split())
    return made[0] if len(made) == 1 else made


class _Calls:
    """``T.name(...)`` is a pattern of that op."""

    def __getattr__(self, name: str) -> Callable[..., Term]:
        op = get_op(name)

        def make(*args: Any, rest: Variable | None = None, **kwargs: Any) -> Term:
            return _term(op, args, kwargs, rest)

        return make


T: Any = _Calls()


def as_pattern(value: Any) -> Pattern:
    """Numbers become constants."""
    if isinstance(value, Pattern):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Number(float(value))
    raise ArgumentError(f"a pattern is made of variables, numbers and calls, not of {value!r}")


def _term(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], rest: Variable | None) -> Term:
    if len(args) > len(op.positional):
        raise ArgumentError(f"{op.name} takes {len(op.positional)} arguments, got {len(args)}")
    given = dict(zip([param.name for param in op.positional], args, strict=False))
    for name, value in kwargs.items():
        if name not in op.by_name or name in given:
            raise ArgumentError(f"{op.name} has no argument '{name}', or it was given twice")
        given[name] = value
    slots: list[str] = []
    operands: list[Pattern] = []
    attrs: list[tuple[str, Any]] = []
    for param in op.params:
        value = given.get(param.name, REQUIRED)
        if param.is_operand:
            if value is REQUIRED or value is None:
                if not param.optional:
                    raise ArgumentError(f"the pattern of {op.name} lacks operand '{param.name}'")
                continue
            found = list(value) if param.variadic else [value]
            slots += [param.name] * len(found)
            operands += [as_pattern(item) for item in found]
        elif value is not REQUIRED:
            attrs.append((param.name, value))
        elif rest is None:
            if param.default is REQUIRED:
                raise ArgumentError(f"the pattern of {op.name} lacks attribute '{param.name}'")
            attrs.append((param.name, param.default))
    return Term(op, tuple(slots), tuple(operands), tuple(attrs), rest)


def terms(pattern: Pattern) -> Iterator[Term]:
    """The calls of a pattern, operands before what uses them, each place once."""
    if isinstance(pattern, Term):
        for operand in pattern.operands:
            yield from terms(operand)
        yield pattern


def operand_variables(pattern: Pattern) -> list[str]:
    """The variables that stand for values, in order of first appearance."""
    found: dict[str, None] = {}
    for term in terms(pattern):
        for operand in term.operands:
            if isinstance(operand, Variable):
                found[operand.name] = None
    if isinstance(pattern, Variable):
        found[pattern.name] = None
    return list(found)


def attribute_variables(pattern: Pattern) -> list[str]:
    """The variables that stand for attributes."""
    found: dict[str, None] = {}
    for term in terms(pattern):
        for _, value in term.attrs:
            if isinstance(value, Variable):
                found[value.name] = None
        if term.rest is not None:
            found[term.rest.name] = None
    return list(found)
