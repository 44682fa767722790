"""Views of views: reshapes, transposes and broadcasts that undo, repeat or amount to one another.

What only adds or removes axes of size 1 is written as a reshape: it never moves an element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from ...graph.dims import Dim, Shape, SymbolicDim
from ..declare import Condition, keeps_type, rewrite, rule
from ..match import Match, Value
from ..pattern import Pattern, T, Variable, variables

Groups: TypeAlias = list[tuple[list[int], list[int]]]

x, p, q, s, t = variables("x p q s t")


def reshaped(value: Value, shape: Sequence[Dim]) -> Pattern:
    """A value under another shape; itself where that is the one it has."""
    return value if value.shape == tuple(shape) else T.reshape(value, shape=tuple(shape))


def groups(before: Shape, after: Shape) -> Groups | None:
    """The axes of two shapes of one value side by side: runs with equal numbers of elements, as short as can be.

    An axis of size 1 may stand alone, against nothing. None where symbols or zeros leave it open.
    """
    found: Groups = []
    i = j = 0
    while i < len(before) or j < len(after):
        if i < len(before) and j < len(after) and before[i] == after[j]:
            found.append(([i], [j]))
            i, j = i + 1, j + 1
        elif i < len(before) and before[i] == 1:
            found.append(([i], []))
            i += 1
        elif j < len(after) and after[j] == 1:
            found.append(([], [j]))
            j += 1
        else:
            ends = _run(before, i, after, j)
            if ends is None:
                return None
            found.append((list(range(i, ends[0])), list(range(j, ends[1]))))
            i, j = ends
    return found


def _run(before: Shape, i: int, after: Shape, j: int) -> tuple[int, int] | None:
    """Where the shortest run from two places on ends."""
    left = right = 1
    first = True
    while first or left != right:
        first = False
        from_left = left <= right
        sizes, place = (before, i) if from_left else (after, j)
        if place == len(sizes):
            return None
        size = sizes[place]
        if isinstance(size, SymbolicDim) or size == 0:
            return None
        if from_left:
            left, i = left * size, i + 1
        else:
            right, j = right * size, j + 1
    return i, j


def only_unit_axes(before: Shape, after: Shape) -> bool:
    """Whether a reshape only adds and removes axes of size 1."""
    return [d for d in before if d != 1] == [d for d in after if d != 1]


def is_number(*names: Variable) -> Condition:
    """All have no axes, known or not."""
    text = f"{', '.join(n.name for n in names)} have no axes"
    return Condition(text, lambda m: all(m[n].rank == 0 for n in names))


# ---- reshape

rule(
    "reshape of reshape",
    T.reshape(T.reshape(x, shape=s), shape=t),
    T.reshape(x, shape=t),
    simplify=True,
)
rule("reshape to its own shape", T.reshape(x, shape=s), x, when=keeps_type(x), simplify=True)

# ---- transpose


@rewrite("transpose of transpose", T.transpose(T.transpose(x, perm=p), perm=q), simplify=True)
def _(m: Match) -> Pattern:
    order = tuple(m.p[axis] for axis in m.q)
    return m.x if order == tuple(range(len(order))) else T.transpose(m.x, perm=order)


@rewrite("transpose that moves nothing", T.transpose(x, perm=p), simplify=True)
def _(m: Match) -> Pattern | None:
    return m.x if m.p == tuple(range(m.x.rank)) else None


@rewrite("transpose of axes of size 1", T.transpose(x, perm=p))
def _(m: Match) -> Pattern | None:
    """Offered only: what recognises a transposed operand looks for the transpose."""
    order = [axis for axis in m.p if m.x.shape[axis] != 1]
    return reshaped(m.x, m.root.shape) if order == sorted(order) else None


@rewrite("transpose past axes of size 1", T.transpose(T.reshape(x, shape=s), perm=p))
def _(m: Match) -> Pattern | None:
    """Towards the value: what is a transpose of it meets others, and contractions, there."""
    if m.x.rank == len(m.s) or not only_unit_axes(m.x.shape, m.s):
        return None
    origin = dict(
        zip(
            [j for j, size in enumerate(m.s) if size != 1],
            [i for i, size in enumerate(m.x.shape) if size != 1],
            strict=True,
        )
    )
    order = [origin[j] for j in m.p if j in origin]
    if order == sorted(order):
        return reshaped(m.x, m.root.shape)
    unit = [i for i, size in enumerate(m.x.shape) if size == 1]
    return T.reshape(T.transpose(m.x, perm=(*unit, *order)), shape=m.root.shape)


# ---- broadcast

rule("broadcast to its own shape", T.broadcast_to(x, shape=s), x, when=keeps_type(x), simplify=True)
rule(
    "broadcast of broadcast",
    T.broadcast_to(T.broadcast_to(x, shape=s), shape=t),
    T.broadcast_to(x, shape=t),
    simplify=True,
)


def _leads_with_ones(m: Match) -> bool:
    new = len(m.s) - m.x.rank
    return new > 0 and m.s == (1,) * new + m.x.shape


rule(
    "broadcast of new leading axes",
    T.broadcast_to(T.reshape(x, shape=s), shape=t),
    T.broadcast_to(x, shape=t),
    when=Condition("the reshape only adds axes of size 1 in front", _leads_with_ones),
    simplify=True,
)
rule(
    "reshape of a broadcast number",
    T.reshape(T.broadcast_to(x, shape=s), shape=t),
    T.broadcast_to(x, shape=t),
    when=is_number(x),
    simplify=True,
)
rule(
    "transpose of a broadcast number",
    T.transpose(T.broadcast_to(x, shape=s), perm=p),
    lambda m: T.broadcast_to(m.x, shape=m.root.shape),
    when=is_number(x),
    simplify=True,
)


@rewrite("transpose of broadcast", T.transpose(T.broadcast_to(x, shape=s), perm=p))
def _(m: Match) -> Pattern | None:
    """Less is moved before than after the broadcast."""
    if m.x.rank == 0 or m.x.rank != len(m.s):
        return None
    return T.broadcast_to(T.transpose(m.x, perm=m.p), shape=m.root.shape)


def aligned(value: Value, rank: int) -> tuple[Dim, ...]:
    """The shape of a value with axes of size 1 in front, up to a rank."""
    return (1,) * (rank - value.rank) + value.shape


def with_axes(shape: Shape, axes: Sequence[int], size: Any = 1) -> tuple[Dim, ...]:
    """A shape with some of its sizes replaced."""
    return tuple(size if i in axes else d for i, d in enumerate(shape))
