"""Reductions of reductions, of views and of multiples.

The normal spelling of a reduction whose axes stay is ``keepdims=True``: a reshape that puts them back,
or takes them away, becomes part of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...graph.dims import Dim, Shape
from ..declare import Condition, condition, rewrite, rule
from ..match import Match, Value
from ..pattern import Pattern, T, variables
from .shapes import aligned, groups, is_number, reshaped, with_axes

x, y, c, p, s, axes, keepdims, outer, kept = variables("x y c p s axes keepdims outer kept")

MERGING = ("sum", "prod", "max", "min", "any", "all", "mean")
"""Reductions that may be done axis by axis, in any order."""


def reduced(shape: Shape, axes: Iterable[int], keepdims: bool) -> tuple[Dim, ...]:
    """The shape that a reduction over some axes leaves."""
    gone = tuple(axes)
    if keepdims:
        return with_axes(shape, gone)
    return tuple(size for i, size in enumerate(shape) if i not in gone)


def element_count(value: Value, axes: Iterable[int]) -> int | None:
    """How many elements are reduced to one; None where a symbol leaves it open."""
    count = 1
    for axis in axes:
        size = value.shape[axis]
        if not isinstance(size, int):
            return None
        count *= size
    return count


@condition("the element type stays")
def _keeps_dtype(m: Match) -> bool:
    """Small integers and bool are summed in i32: they are not what they were before."""
    return m.x.dtype is m.root.dtype


for name in MERGING:
    reduce = getattr(T, name)
    # Of equal elements the first receives the gradient, and which is first depends on the order of axes.
    ties = name in ("max", "min")

    # ---- of reductions

    @rewrite(
        f"{name} of {name}",
        reduce(reduce(x, axes=axes, keepdims=keepdims), axes=outer, keepdims=kept),
        late=ties,
    )
    def _(m: Match, name: str = name) -> Pattern:
        """All axes at once. Offered only: where the inner one is needed too, the outer costs little."""
        left = [i for i in range(m.x.rank) if m.keepdims or i not in m.axes]
        together = sorted({*m.axes, *(left[i] for i in m.outer)})
        for keep in (m.kept, not m.kept):
            if reduced(m.x.shape, together, keep) == m.root.shape:
                return getattr(T, name)(m.x, axes=together, keepdims=keep)
        made = getattr(T, name)(m.x, axes=together, keepdims=True)
        return T.reshape(made, shape=m.root.shape)

    # ---- of views

    @rewrite(
        f"{name} over axes of size 1",
        reduce(x, axes=axes, keepdims=keepdims),
        when=_keeps_dtype,
        simplify=True,
    )
    def _(m: Match) -> Pattern | None:
        if any(m.x.shape[axis] != 1 for axis in m.axes):
            return None
        return reshaped(m.x, m.root.shape)

    if name in ("prod", "any", "all"):
        continue

    @rewrite(
        f"{name} with its axes put back",
        T.reshape(reduce(x, axes=axes, keepdims=keepdims), shape=s),
    )
    def _(m: Match, name: str = name) -> Pattern | None:
        """Put back, or taken away."""
        if reduced(m.x.shape, m.axes, not m.keepdims) != m.s:
            return None
        return getattr(T, name)(m.x, axes=m.axes, keepdims=not m.keepdims)

    @rewrite(
        f"{name} of transpose",
        reduce(T.transpose(x, perm=p), axes=axes, keepdims=keepdims),
        late=ties,
    )
    def _(m: Match, name: str = name) -> Pattern:
        """Other axes of the value itself; the order of what is left is changed afterwards, where it is less."""
        there = sorted(m.p[axis] for axis in m.axes)
        made = getattr(T, name)(m.x, axes=there, keepdims=m.keepdims)
        left = [axis for axis in m.p if m.keepdims or axis not in there]
        order = [sorted(left).index(axis) for axis in left]
        return made if order == sorted(order) else T.transpose(made, perm=order)

    @rewrite(
        f"{name} of reshape",
        reduce(T.reshape(x, shape=s), axes=axes, keepdims=keepdims),
    )
    def _(m: Match, name: str = name) -> Pattern | None:
        """The axes of the value that the reduced ones were made of, where they were made of whole ones."""
        found = groups(m.x.shape, m.s)
        if found is None:
            return None
        there: list[int] = []
        for before, after in found:
            gone = [axis in m.axes for axis in after]
            if any(gone) and not all(gone):
                return None
            there += before if any(gone) else []
        if not there:
            return None
        for keep in (m.keepdims, not m.keepdims):
            if reduced(m.x.shape, there, keep) == m.root.shape:
                return getattr(T, name)(m.x, axes=there, keepdims=keep)
        return T.reshape(getattr(T, name)(m.x, axes=there), shape=m.root.shape)

    # ---- of broadcasts

    @rewrite(
        f"{name} of broadcast",
        reduce(T.broadcast_to(x, shape=s), axes=axes, keepdims=keepdims),
        when=_keeps_dtype,
    )
    def _(m: Match, name: str = name) -> Pattern | None:
        """Equal elements need no loop: their sum is a multiple, everything else is one of them."""
        own = aligned(m.x, len(m.s))
        repeated = [axis for axis in m.axes if own[axis] != m.s[axis]]
        count = 1
        for axis in repeated:
            size = m.s[axis]
            if not isinstance(size, int) or size == 0:
                return None
            count *= size
        if not repeated:
            return None
        there = [axis - len(m.s) + m.x.rank for axis in m.axes if axis not in repeated]
        there = [axis for axis in there if axis >= 0]
        made: Pattern = m.x
        if there:
            made = getattr(T, name)(made, axes=there, keepdims=True)
        shape = reduced(own, m.axes, m.keepdims)
        if shape != reduced(m.x.shape, there, True):
            made = T.reshape(made, shape=shape)
        if name == "sum" and count != 1:
            made = made * float(count)
        return made if shape == m.root.shape else T.broadcast_to(made, shape=m.root.shape)


# ---- of multiples

_precise = Condition("x is not a 16-bit float", lambda m: not m.x.dtype.is_half)
"""A sum of what was not yet made smaller may leave the range of a 16-bit float."""


@condition("c is not 0, or there are elements")
def _divides(m: Match) -> bool:
    """The sum of nothing is 0, and 0 / 0 is not."""
    return m.c.number not in (None, 0.0) or element_count(m.x, m.axes) not in (None, 0)


for name in ("sum", "mean"):
    reduce = getattr(T, name)
    rule(
        f"{name} of a negative",
        reduce(-x, axes=axes, keepdims=keepdims),
        -reduce(x, axes=axes, keepdims=keepdims),
        when=_keeps_dtype,
        simplify=True,
    )
    rule(
        f"{name} of a multiple",
        reduce(x * c, axes=axes, keepdims=keepdims),
        reduce(x, axes=axes, keepdims=keepdims) * c,
        when=is_number(c) & _keeps_dtype & _precise,
    )
    rule(
        f"{name} of a fraction",
        reduce(x / c, axes=axes, keepdims=keepdims),
        reduce(x, axes=axes, keepdims=keepdims) / c,
        when=is_number(c) & _keeps_dtype & _precise & _divides,
    )
