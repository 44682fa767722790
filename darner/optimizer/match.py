"""What a rule sees of a match, and how its result is built.

The same rules run on two things: on a graph, where the canonical form is made, and in an e-graph. Both show a rule
``Value``s, and take its result through one function, ``add``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from ..graph.check import canonical, settle_axes
from ..graph.data import Data
from ..graph.dims import Dim, Shape
from ..graph.dtypes import DType
from ..graph.errors import DarnerError, InternalError
from ..graph.node import Node
from ..graph.op import OPS, Op
from ..graph.types import TensorType, Type
from .pattern import Number, Pattern, Term, Variable


class RuleError(DarnerError):
    """A rewrite rule is wrong: its two sides differ in type, or it cannot be built."""


@dataclass(frozen=True, repr=False, eq=False)
class Value(Pattern):
    """An operand as rules see it; functions that make a result write it into their pattern as it is.

    Attributes:
        handle: the node, or the class of the e-graph.
        leaf: the op's name where it is a parameter, input, state or constant.
        constant: its elements, where they are known.
        layout: for a parameter that is stored with others, which of them and its place among them.
    """

    handle: Any
    type: Type
    leaf: str | None = None
    constant: Data | None = None
    layout: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"<{self.type}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Value):
            return False
        # Nodes make a node of ==; the names of classes are numbers.
        same = self.handle is other.handle
        return same or (isinstance(self.handle, int) and bool(self.handle == other.handle))

    def __hash__(self) -> int:
        return hash(self.handle)

    @property
    def tensor(self) -> TensorType:
        """Its type; a node with several results has none."""
        if not isinstance(self.type, TensorType):
            raise InternalError("a value with several results has no one type")
        return self.type

    @property
    def shape(self) -> Shape:
        """The sizes of its axes."""
        return self.tensor.shape

    @property
    def dtype(self) -> DType:
        """Its element type."""
        return self.tensor.dtype

    @property
    def rank(self) -> int:
        """The number of its axes."""
        return self.tensor.rank

    @property
    def size(self) -> Dim:
        """The number of its elements."""
        return self.tensor.size

    @property
    def number(self) -> float | None:
        """The one number that it consists of, where it is a constant of one value."""
        if self.constant is None or not self.constant.array.size:
            return None
        if self.constant.type.dtype.kind not in ("float", "int"):
            return None
        flat = self.constant.array.reshape(-1)
        first = flat[0]
        return float(first) if flat.size == 1 or bool((flat == first).all()) else None


Add: TypeAlias = Callable[[Op, tuple[str, ...], dict[str, Any], Sequence[Value]], Value]


class Match:
    """The variables of a rule and what they stand for, as attributes: ``m.x.shape``, ``m.axis``."""

    __slots__ = ("_found", "root")

    def __init__(self, root: Value, found: Mapping[str, Any]) -> None:
        self.root = root
        self._found = found

    def __getattr__(self, name: str) -> Any:
        try:
            return self._found[name]
        except KeyError:
            raise AttributeError(f"the pattern has no variable '{name}'") from None

    def __getitem__(self, variable: Variable | str) -> Any:
        return self._found[variable if isinstance(variable, str) else variable.name]


# --------------------------------------------------------------------------- the left side


def fits_number(number: Number, value: Value) -> bool:
    """Whether a value is that scalar constant, to the last digits of its type."""
    if value.constant is None or not isinstance(value.type, TensorType) or value.shape:
        return False
    if value.dtype.kind not in ("float", "int"):
        return False
    found = float(value.constant.array)
    if found == number.value:
        return math.copysign(1, found) == math.copysign(1, number.value) or found != 0
    if value.dtype.kind == "int" or not math.isfinite(found) or not math.isfinite(number.value):
        return False
    return abs(found - number.value) <= 2 * _epsilon(value.dtype) * abs(number.value)


@cache
def _epsilon(dtype: DType) -> float:
    return float(ml_dtypes.finfo(dtype.numpy).eps)  # type: ignore[no-untyped-call]


def fits_attributes(
    term: Term, attrs: Mapping[str, Any], types: Sequence[Type], found: dict[str, Any]
) -> bool:
    """Whether a node's attributes are those of a term; variables are bound on the way."""
    for name, wanted in _settled(term, types):
        value = attrs[name]
        if isinstance(wanted, Variable):
            if wanted.name in found and not same(found[wanted.name], value):
                return False
            found[wanted.name] = value
        elif not same(wanted, value):
            return False
    if term.rest is not None:
        given = {name for name, _ in term.attrs}
        left = {name: value for name, value in attrs.items() if name not in given}
        if term.rest.name in found and found[term.rest.name] != left:
            return False
        found[term.rest.name] = left
    return True


def same(a: Any, b: Any) -> bool:
    """Equality of attributes: 0.0 is not -0.0, True is not 1."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def _settled(term: Term, types: Sequence[Type]) -> Iterator[tuple[str, Any]]:
    """A term's attributes in stored form: axes are counted from the front, as nodes keep them."""
    fixed = term.fixed
    settled = settle_axes(term.op, fixed, types) if term.op.axis_params else fixed
    for name, value in term.attrs:
        yield name, value if isinstance(value, Variable) else settled[name]


def match_node(pattern: Pattern, node: Node) -> Iterator[Match]:
    """The ways in which a graph's node fits a pattern."""
    for found in _match(pattern, node, {}):
        yield Match(node_value(node), found)


def _match(pattern: Pattern, node: Node, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if isinstance(pattern, Variable):
        known = found.get(pattern.name)
        if known is None:
            yield {**found, pattern.name: node_value(node)}
        elif known.handle is node:
            yield found
    elif isinstance(pattern, Number):
        if fits_number(pattern, node_value(node)):
            yield found
    elif isinstance(pattern, Term) and pattern.op is node.op and pattern.slots == node.slots:
        bound = dict(found)
        operands = node.operands
        if not fits_attributes(pattern, node.attrs, [n.type for n in operands], bound):
            return
        orders = [pattern.operands]
        if "commutative" in node.op.traits and pattern.operands[0] != pattern.operands[1]:
            orders.append(pattern.operands[::-1])
        for order in orders:
            yield from _match_all(order, operands, bound)


def _match_all(
    patterns: Sequence[Pattern], nodes: Sequence[Node], found: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    if not patterns:
        yield found
        return
    for bound in _match(patterns[0], nodes[0], found):
        yield from _match_all(patterns[1:], nodes[1:], bound)


def node_value(node: Node) -> Value:
    """A graph's node as rules see it."""
    leaf = node.op.name if "leaf" in node.op.traits else None
    return Value(node, node.type, leaf, node.attrs["values"] if leaf == "constant" else None)


# --------------------------------------------------------------------------- the right side


def build(pattern: Pattern, match: Match, add: Add) -> Value:
    """Make what a rule says, operands first; ``add`` puts each node where the rule runs."""
    if isinstance(pattern, Variable):
        pattern = match[pattern]
        if not isinstance(pattern, Value):
            raise RuleError(f"{pattern!r} is an attribute and stands for an operand")
    if isinstance(pattern, Value):
        return pattern
    if not isinstance(pattern, Term):
        raise RuleError(f"the result of a rule cannot be the number {pattern!r} alone")
    operands = [
        None if isinstance(operand, Number) else build(operand, match, add)
        for operand in pattern.operands
    ]
    # A number has the type of its neighbours; a condition among them says nothing.
    beside = [value.dtype for value in operands if value is not None]
    dtype = next((found for found in beside if found.kind != "bool"), match.root.dtype)
    made = [
        add_number(operand, dtype, add) if value is None else value
        for operand, value in zip(pattern.operands, operands, strict=True)
    ]
    attrs: dict[str, Any] = {}
    for name, value in pattern.attrs:
        attrs[name] = match[value] if isinstance(value, Variable) else value
        if callable(attrs[name]):
            attrs[name] = attrs[name](match)
    if pattern.rest is not None:
        attrs.update(match[pattern.rest])
    return add_call(pattern.op, pattern.slots, attrs, made, add)


def add_call(
    op: Op, slots: tuple[str, ...], attrs: Mapping[str, Any], operands: Sequence[Value], add: Add
) -> Value:
    """Add a call with its attributes brought into the form that nodes store."""
    full = {param.name: canonical(param, attrs[param.name]) for param in op.attributes}
    types = [value.type for value in operands]
    return add(op, slots, settle_axes(op, full, types), operands)


def add_number(number: Pattern, dtype: DType, add: Add) -> Value:
    """A scalar constant of an element type."""
    if not isinstance(number, Number):
        raise InternalError(f"{number!r} is not a number")
    return add_constant(np.asarray(number.value, dtype.numpy), add)


def add_constant(array: Any, add: Add) -> Value:
    """A constant with these elements."""
    return add(OPS["constant"], (), {"values": Data(np.asarray(array))}, [])
