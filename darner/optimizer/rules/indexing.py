"""Reading by indices that are known while optimizing: slices."""

from __future__ import annotations

import numpy as np

from ...graph.data import Data
from ...graph.dims import Dim
from ...graph.dtypes import DType
from ..declare import keeps_type, rewrite, rule
from ..match import Match, Value
from ..pattern import Pattern, T, variables
from .joining import cut

table, indices, axis, along, s, kind = variables("table indices axis along s kind")
x, starts, sizes, update, to = variables("x starts sizes update to")
a, b = variables("a b")


def _taken(table: Value, axis: int, start: int, count: int, step: int) -> Pattern:
    """A slice along one axis."""
    starts, steps = [0] * table.rank, [1] * table.rank
    stops = list(table.shape)
    starts[axis], stops[axis], steps[axis] = start, start + (count - 1) * step + 1, step
    return cut(table, starts, stops, steps)


def _in_a_row(m: Match, axis: int) -> Pattern | None:
    """The slice that known indices in a row stand for, in the shape of the indices."""
    constant = m.indices.constant
    if constant is None or not constant.array.size:
        return None
    places = constant.array.reshape(-1).astype(np.int64)
    step = int(places[1] - places[0]) if places.size > 1 else 1
    start, size = int(places[0]), m.table.shape[axis]
    if step < 1 or start < 0 or not isinstance(size, int) or places[-1] >= size:
        return None
    if (np.diff(places) != step).any():
        return None
    made = _taken(m.table, axis, start, places.size, step)
    return made if m.indices.rank == 1 else T.reshape(made, shape=m.root.shape)


def _counted(m: Match, axis: int) -> Pattern | None:
    """The slice that indices 0, 1, 2, ... stand for."""
    count, size = m.s[m.along], m.table.shape[axis]
    if any(d != 1 for i, d in enumerate(m.s) if i != m.along):
        return None
    if count == size:
        made: Pattern = m.table
    elif isinstance(count, int) and isinstance(size, int) and 0 < count < size:
        made = _taken(m.table, axis, 0, count, 1)
    else:
        return None
    if not _counts_to(m.kind, count):
        return None
    return made if len(m.s) == 1 else T.reshape(made, shape=m.root.shape)


_DIGITS = {"bf16": 8, "f16": 11, "f32": 24, "f64": 53}


def _counts_to(kind: DType, count: Dim) -> bool:
    """Whether an element type counts so far without a gap; a symbol is a size, which i32 holds."""
    if not isinstance(count, int):
        return kind.is_int and kind.bits >= 32
    return count <= (kind.limits[1] + 1 if kind.is_int else 2 ** _DIGITS[kind.name])


_iota = T.iota(shape=s, axis=along, dtype=kind)


@rewrite("gather of known neighbours", T.gather(table, indices, axis=axis), simplify=True)
def _(m: Match) -> Pattern | None:
    return _in_a_row(m, m.axis)


@rewrite("embedding of known neighbours", T.embedding(indices, table), simplify=True)
def _(m: Match) -> Pattern | None:
    return _in_a_row(m, 0)


@rewrite("gather in order", T.gather(table, _iota, axis=axis), simplify=True)
def _(m: Match) -> Pattern | None:
    return _counted(m, m.axis)


@rewrite("embedding in order", T.embedding(_iota, table), simplify=True)
def _(m: Match) -> Pattern | None:
    return _counted(m, 0)


@rewrite("gather of iota", T.gather(_iota, indices, axis=0), simplify=True)
def _(m: Match) -> Pattern | None:
    """The element of 0, 1, 2, ... at a place is that place."""
    if len(m.s) != 1 or not m.kind.is_int:
        return None
    return m.indices if m.indices.dtype is m.kind else T.cast(m.indices, to=m.kind)


def _from_one_part(m: Match, axis: int) -> tuple[Value, Pattern] | None:
    """The part of a joined table that known indices lie in, and the indices within it."""
    constant, first = m.indices.constant, m.a.shape[axis]
    sizes = (first, m.b.shape[axis])
    if constant is None or not constant.array.size or not all(isinstance(n, int) for n in sizes):
        return None
    low, high = int(constant.array.min()), int(constant.array.max())
    if low >= 0 and high < sizes[0]:
        return m.a, m.indices
    if sizes[0] <= low and high < sum(sizes):
        moved = np.asarray(constant.array - constant.array.dtype.type(sizes[0]))
        return m.b, T.constant(values=Data(moved))
    return None


@rewrite(
    "gather from one part of a concat",
    T.gather(T.concat([a, b], axis=axis), indices, axis=axis),
    simplify=True,
)
def _(m: Match) -> Pattern | None:
    found = _from_one_part(m, m.axis)
    return None if found is None else T.gather(*found, axis=m.axis)


@rewrite(
    "embedding from one part of a concat",
    T.embedding(indices, T.concat([a, b], axis=0)),
    simplify=True,
)
def _(m: Match) -> Pattern | None:
    found = _from_one_part(m, 0)
    return None if found is None else T.embedding(found[1], found[0])


@rewrite(
    "take in order",
    T.take_along_axis(x, T.iota(shape=s, axis=axis, dtype=kind), axis=axis),
    simplify=True,
)
def _(m: Match) -> Pattern | None:
    return m.x if m.s == m.x.shape and _counts_to(m.kind, m.s[m.axis]) else None


@rewrite("block at a known place", T.dynamic_slice(x, starts, sizes=sizes), simplify=True)
def _(m: Match) -> Pattern | None:
    """Starts are moved inside, as the op does."""
    if m.starts.constant is None or not all(isinstance(d, int) for d in (*m.sizes, *m.x.shape)):
        return None
    given = [int(start) for start in m.starts.constant.array]
    low = [min(max(at, 0), d - n) for at, n, d in zip(given, m.sizes, m.x.shape, strict=True)]
    return cut(m.x, low, [at + n for at, n in zip(low, m.sizes, strict=True)])


rule(
    "update of the whole",
    T.dynamic_update_slice(x, update, starts),
    update,
    when=keeps_type(update),
    simplify=True,
)


@rewrite("cast of iota", T.cast(_iota, to=to), simplify=True)
def _(m: Match) -> Pattern | None:
    """Counting in the other type at once, where neither runs out of numbers."""
    if m.to.kind not in ("int", "float"):
        return None
    if not all(_counts_to(kind, m.s[m.along]) for kind in (m.kind, m.to)):
        return None
    return T.iota(shape=m.s, axis=m.along, dtype=m.to)
