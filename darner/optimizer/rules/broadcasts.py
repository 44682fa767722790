"""Broadcasts beside element-wise ops, which broadcast anyway and do less work before than after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...graph.op import get_op
from ...graph.types import broadcast
from ..declare import rewrite, rule
from ..match import Match, Value
from ..pattern import Pattern, T, variables
from .shapes import aligned

a, b, c, s, x = variables("a b c s x")

BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "chain", "eq", "ge")
UNARY = ("neg", "exp", "sqrt", "rsqrt", "recip")
"""What is done to statistics before they are broadcast back to what they were taken of."""


def sides(name: str) -> Iterator[tuple[str, Callable[[Any, Any], Any]]]:
    """An op with its special operand first, and for one that is not commutative second too."""
    make = getattr(T, name)
    yield name, make
    if "commutative" not in get_op(name).traits:
        yield f"{name} from the right", lambda special, other: make(other, special)


def _without(m: Match, make: Callable[[Any, Any], Any], value: Value, other: Value) -> Pattern:
    """The op on the value before its broadcast; what is then missing is broadcast after it."""
    shape = broadcast(value.shape, other.shape)
    made: Pattern = make(value, other)
    return made if shape == m.root.shape else T.broadcast_to(made, shape=m.root.shape)


for name in BINARY:
    for label, make in sides(name):
        rule(
            f"{label} of a broadcast",
            make(T.broadcast_to(a, shape=s), b),
            lambda m, make=make: _without(m, make, m.a, m.b),
            simplify=True,
        )

for name in ("add", "sub", "mul", "div"):
    for label, make in sides(name):

        @rewrite(f"{label} of new leading axes", make(T.reshape(a, shape=s), b), simplify=True)
        def _(m: Match, make: Callable[[Any, Any], Any] = make) -> Pattern | None:
            """An element-wise op adds axes of size 1 in front by itself."""
            if m.a.rank >= len(m.s) or m.s != aligned(m.a, len(m.s)):
                return None
            return make(m.a, m.b) if broadcast(m.a.shape, m.b.shape) == m.root.shape else None


for name in UNARY:
    f = getattr(T, name)
    rule(
        f"{name} of a broadcast",
        f(T.broadcast_to(x, shape=s)),
        T.broadcast_to(f(x), shape=s),
        simplify=True,
    )

_SELECTIONS = {
    "where of a broadcast condition": T.where(T.broadcast_to(c, shape=s), a, b),
    "where of a broadcast": T.where(c, T.broadcast_to(a, shape=s), b),
    "where of a broadcast otherwise": T.where(c, a, T.broadcast_to(b, shape=s)),
}
for name, pattern in _SELECTIONS.items():

    @rewrite(name, pattern, simplify=True)
    def _(m: Match) -> Pattern | None:
        whole = broadcast(m.c.shape, m.a.shape, m.b.shape) == m.root.shape
        return T.where(m.c, m.a, m.b) if whole else None
