"""Transposes, reshapes and slices moved past element-wise ops, to where they meet their like.

Each kind of view moves one way, so that saturation ends:

- transposes and reshapes move down, past what is computed of them: there they cancel, and what
  follows a contraction stands right behind it;
- reshapes that only add or remove axes of size 1 move up, to the reduction that can keep those axes;
- slices move up: less is computed of a part than of the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..declare import Condition, rule, same_shape
from ..match import Match
from ..pattern import T, variables
from .shapes import is_number, only_unit_axes

a, b, c, p, s, x, y = variables("a b c p s x y")
axis, starts, stops, steps, to = variables("axis starts stops steps to")


def sliced(value: Any) -> Any:
    """A slice of a value, the same one everywhere in a rule."""
    return T.slice(value, starts=starts, stops=stops, steps=steps)


_moves_elements = Condition(
    "the reshape changes more than axes of size 1", lambda m: not only_unit_axes(m.x.shape, m.s)
)
_adds_axes = Condition(
    "the reshape only adds or removes axes of size 1", lambda m: only_unit_axes(m.x.shape, m.s)
)

# ---- functions of one operand


def _functions(names: str) -> dict[str, Callable[[Any], Any]]:
    found: dict[str, Callable[[Any], Any]] = {name: getattr(T, name) for name in names.split()}
    return {**found, "cast": lambda value: T.cast(value, to=to)}


for name, f in _functions("neg exp tanh sigmoid silu relu gelu gelu_approx").items():
    rule(f"{name} of a transpose", f(T.transpose(x, perm=p)), T.transpose(f(x), perm=p))
    rule(
        f"{name} of a reshape",
        f(T.reshape(x, shape=s)),
        T.reshape(f(x), shape=s),
        when=_moves_elements,
    )

for name, f in _functions("neg log sqrt rsqrt recip square").items():
    rule(
        f"axes of size 1 before {name}",
        T.reshape(f(x), shape=s),
        f(T.reshape(x, shape=s)),
        when=_adds_axes,
    )

for name, f in _functions("exp silu relu gelu gelu_approx").items():
    rule(f"slice before {name}", sliced(f(x)), f(sliced(x)))

for name in ("neg", "silu", "relu", "gelu", "gelu_approx"):
    f = getattr(T, name)
    rule(
        f"concat before {name}",
        T.concat([f(a), f(b)], axis=axis),
        f(T.concat([a, b], axis=axis)),
    )

# ---- arithmetic: differences and quotients are sums and products too, where a number is concerned


def _along_last(m: Match) -> bool:
    """Whether b lies along the last axis, which the reshape of x keeps."""
    if m.b.rank != 1 or not m.x.rank or not m.s:
        return False
    return bool(m.x.shape[-1] == m.s[-1] == m.b.shape[0])


for name in ("add", "sub", "mul"):
    op = getattr(T, name)
    rule(
        f"{name} of two transposes",
        op(T.transpose(x, perm=p), T.transpose(y, perm=p)),
        T.transpose(op(x, y), perm=p),
        when=same_shape(x, y),
    )
    rule(
        f"{name} of two reshapes",
        op(T.reshape(x, shape=s), T.reshape(y, shape=s)),
        T.reshape(op(x, y), shape=s),
        when=same_shape(x, y) & _moves_elements,
    )
    rule(
        f"slice before {name}",
        sliced(op(x, y)),
        op(sliced(x), sliced(y)),
        when=same_shape(x, y),
    )

for name in ("add", "sub", "mul", "div"):
    op = getattr(T, name)
    rule(
        f"axes of size 1 before {name}",
        T.reshape(op(x, y), shape=s),
        op(T.reshape(x, shape=s), T.reshape(y, shape=s)),
        when=same_shape(x, y) & _adds_axes,
    )
    rule(
        f"axes of size 1 before {name} of a number",
        T.reshape(op(x, c), shape=s),
        op(T.reshape(x, shape=s), c),
        when=is_number(c) & _adds_axes,
    )

for name in ("add", "mul"):
    op = getattr(T, name)
    rule(
        f"{name} of a transpose and a number",
        op(T.transpose(x, perm=p), c),
        T.transpose(op(x, c), perm=p),
        when=is_number(c),
    )
    rule(
        f"{name} of a reshape and a number",
        op(T.reshape(x, shape=s), c),
        T.reshape(op(x, c), shape=s),
        when=is_number(c) & _moves_elements,
    )
    rule(
        f"{name} of a reshape and a vector",
        op(T.reshape(x, shape=s), b),
        T.reshape(op(x, b), shape=s),
        when=Condition("b lies along the last axis, which the reshape keeps", _along_last)
        & _moves_elements,
    )
    rule(
        f"slice before {name} of a number",
        sliced(op(x, c)),
        op(sliced(x), c),
        when=is_number(c),
    )
