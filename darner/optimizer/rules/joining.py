"""Slices, joins and paddings of one another: what is cut out of a join, joined from cuts, padded to be added."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ...graph.dims import Dim
from ..declare import Condition, keeps_type, rewrite, rule
from ..match import Match, Value
from ..pattern import Pattern, T, variables

x, s, axis, axes, flipped, value, gaps = variables("x s axis axes flipped value gaps")
starts, stops, steps, first, last, stride = variables("starts stops steps first last stride")
padding, outer = variables("padding outer")
NAMES = ("a", "b", "c")
PARTS = tuple(variables(name) for name in NAMES)


def cut(
    part: Value, starts: Sequence[Dim], stops: Sequence[Dim], steps: Sequence[int] | None = None
) -> Pattern:
    """A slice, or the value itself where nothing is cut."""
    steps = (1,) * part.rank if steps is None else tuple(steps)
    if all(
        a == 0 and b == d and c == 1
        for a, b, c, d in zip(starts, stops, steps, part.shape, strict=True)
    ):
        return part
    return T.slice(part, starts=tuple(starts), stops=tuple(stops), steps=steps)


# ---- slices

rule(
    "slice of everything",
    T.slice(x, starts=starts, stops=stops, steps=steps),
    x,
    when=keeps_type(x),
    simplify=True,
)


@rewrite(
    "slice of slice",
    T.slice(
        T.slice(x, starts=first, stops=last, steps=stride), starts=starts, stops=stops, steps=steps
    ),
    simplify=True,
)
def _(m: Match) -> Pattern | None:
    low: list[Dim] = []
    high: list[Dim] = []
    for i, (begin, step) in enumerate(zip(m.first, m.stride, strict=True)):
        if step == 1:
            low.append(begin + m.starts[i])
            high.append(begin + m.stops[i])
            continue
        # The stop of a slice with steps may lie beyond its last element: it is counted anew.
        count, start = m.root.shape[i], m.starts[i]
        if not all(isinstance(size, int) for size in (begin, count, start)):
            return None
        at = begin + start * step if count else 0
        low.append(at)
        high.append(at + (count - 1) * step * m.steps[i] + 1 if count else 0)
    return cut(m.x, low, high, [a * b for a, b in zip(m.stride, m.steps, strict=True)])


@rewrite(
    "slice of broadcast",
    T.slice(T.broadcast_to(x, shape=s), starts=starts, stops=stops, steps=steps),
    simplify=True,
)
def _(m: Match) -> Pattern:
    """Along the axes that were repeated there is nothing to cut."""
    new = len(m.s) - m.x.rank
    repeated = [size == 1 for size in m.x.shape]
    low = [0 if r else d for r, d in zip(repeated, m.starts[new:], strict=True)]
    high = [1 if r else d for r, d in zip(repeated, m.stops[new:], strict=True)]
    step = [1 if r else d for r, d in zip(repeated, m.steps[new:], strict=True)]
    return T.broadcast_to(cut(m.x, low, high, step), shape=m.root.shape)


@rewrite(
    "slice of transpose",
    T.slice(T.transpose(x, perm=axes), starts=starts, stops=stops, steps=steps),
)
def _(m: Match) -> Pattern:
    order = [m.axes.index(i) for i in range(m.x.rank)]
    low, high, step = ([bounds[i] for i in order] for bounds in (m.starts, m.stops, m.steps))
    return T.transpose(cut(m.x, low, high, step), perm=m.axes)


# ---- concatenations

rule("concat of one", T.concat([x], axis=axis), x, simplify=True)


def _sliced_parts(m: Match, count: int) -> list[Pattern] | None:
    """What a slice takes of each part of a concatenation, without the parts it takes nothing of."""
    found: list[Pattern] = []
    start, stop, at = m.starts[m.axis], m.stops[m.axis], m.axis
    offset: Dim = 0
    for part in (m[name] for name in NAMES[:count]):
        end = offset + part.shape[at]
        if start == offset and stop == end:
            low, high = 0, part.shape[at]
        elif not all(isinstance(bound, int) for bound in (start, stop, offset, end)):
            return None
        else:
            low, high = max(start, offset) - offset, min(stop, end) - offset
        if (low == 0 and high == part.shape[at]) or low < high:
            starts, stops = list(m.starts), list(m.stops)
            starts[at], stops[at] = low, high
            found.append(cut(part, starts, stops, m.steps))
        offset = end
    return found


for count in (2, 3):
    joined = T.slice(T.concat(PARTS[:count], axis=axis), starts=starts, stops=stops, steps=steps)

    @rewrite(f"slice of one of {count} parts", joined, simplify=True)
    def _(m: Match, count: int = count) -> Pattern | None:
        offset: Dim = 0
        for part in (m[name] for name in NAMES[:count]):
            end = offset + part.shape[m.axis]
            inside = [m.starts[m.axis] - offset, m.stops[m.axis] - offset, part.shape[m.axis]]
            whole = inside[0] == 0 and inside[1] == inside[2]
            if whole or (
                all(isinstance(n, int) for n in inside) and 0 <= inside[0] < inside[1] <= inside[2]
            ):
                low, high = list(m.starts), list(m.stops)
                low[m.axis], high[m.axis] = inside[0], inside[1]
                return cut(part, low, high, m.steps)
            offset = end
        return None

    @rewrite(f"slice across {count} parts", joined)
    def _(m: Match, count: int = count) -> Pattern | None:
        if m.steps[m.axis] != 1:
            return None
        parts = _sliced_parts(m, count)
        return T.concat(parts, axis=m.axis) if parts is not None and len(parts) > 1 else None


def _bounds(count: int) -> list[tuple[Pattern, ...]]:
    return [variables(f"start{i} stop{i}") for i in range(count)]


for count in (2, 3):
    pieces = [T.slice(x, starts=low, stops=high, steps=steps) for low, high in _bounds(count)]

    @rewrite(f"concat of {count} neighbouring slices", T.concat(pieces, axis=axis), simplify=True)
    def _(m: Match, count: int = count) -> Pattern | None:
        low = [m[f"start{i}"] for i in range(count)]
        high = [m[f"stop{i}"] for i in range(count)]
        at = m.axis
        if m.steps[at] != 1 or any(high[i][at] != low[i + 1][at] for i in range(count - 1)):
            return None
        others = [axis for axis in range(m.x.rank) if axis != at]
        if any(
            low[0][axis] != b[axis] or high[0][axis] != e[axis]
            for b, e in zip(low, high, strict=True)
            for axis in others
        ):
            return None
        stops = [high[-1][axis] if axis == at else size for axis, size in enumerate(high[0])]
        return cut(m.x, low[0], stops, m.steps)


for how, nested in {
    "then more": [T.concat(PARTS[:2], axis=axis), PARTS[2]],
    "after one": [PARTS[0], T.concat(PARTS[1:], axis=axis)],
}.items():
    rule(
        f"concat of a concat {how}",
        T.concat(nested, axis=axis),
        T.concat(PARTS, axis=axis),
        simplify=True,
    )

# ---- paddings


def _plain(*names: str) -> Condition:
    """Nothing between neighbours, nothing cropped."""
    text = f"{', '.join(names)} only add"
    return Condition(text, lambda m: all(min(pair) >= 0 for n in names for pair in m[n]))


@rewrite(
    "padding with nothing", T.pad(x, padding=padding, value=value, interior=gaps), simplify=True
)
def _(m: Match) -> Pattern | None:
    return m.x if all(pair == (0, 0) for pair in m.padding) and not any(m.gaps) else None


@rewrite(
    "padding that only crops", T.pad(x, padding=padding, value=value, interior=gaps), simplify=True
)
def _(m: Match) -> Pattern | None:
    if any(m.gaps) or any(max(pair) > 0 for pair in m.padding):
        return None
    stops = [size + high for size, (_, high) in zip(m.x.shape, m.padding, strict=True)]
    return cut(m.x, [-low for low, _ in m.padding], stops)


@rewrite(
    "padding of padding",
    T.pad(
        T.pad(x, padding=padding, value=value, interior=gaps),
        padding=outer,
        value=value,
        interior=axes,
    ),
    when=_plain("padding", "outer"),
    simplify=True,
)
def _(m: Match) -> Pattern | None:
    if any(m.gaps) or any(m.axes):
        return None
    both = [(a + c, b + d) for (a, b), (c, d) in zip(m.padding, m.outer, strict=True)]
    return T.pad(m.x, padding=both, value=m.value, interior=m.gaps)


_padded = T.slice(
    T.pad(x, padding=padding, value=value, interior=gaps), starts=starts, stops=stops, steps=steps
)


@rewrite("slice inside padding", _padded, when=_plain("padding"), simplify=True)
def _(m: Match) -> Pattern | None:
    """Only what was padded, not the padding, is taken."""
    if any(m.gaps):
        return None
    low = [start - before for start, (before, _) in zip(m.starts, m.padding, strict=True)]
    high = [stop - before for stop, (before, _) in zip(m.stops, m.padding, strict=True)]
    for begin, end, size in zip(low, high, m.x.shape, strict=True):
        whole = begin == 0 and end == size
        known = all(isinstance(n, int) for n in (begin, end, size))
        if not whole and not (known and 0 <= begin < end <= size):
            return None
    return cut(m.x, low, high, m.steps)


@rewrite("slice of padding", _padded, when=_plain("padding"))
def _(m: Match) -> Pattern | None:
    """Part of the value, with less padding around it."""
    sizes = [*m.starts, *m.stops, *m.x.shape]
    if (
        any(m.gaps)
        or any(step != 1 for step in m.steps)
        or not all(isinstance(n, int) for n in sizes)
    ):
        return None
    low, high, around = [], [], []
    for start, stop, (before, _), size in zip(m.starts, m.stops, m.padding, m.x.shape, strict=True):
        begin, end = max(start - before, 0), min(stop - before, size)
        if begin >= end:
            return None
        low.append(begin)
        high.append(end)
        around.append((begin + before - start, stop - before - end))
    return T.pad(cut(m.x, low, high), padding=around, value=m.value)


# ---- sums of paddings: the gradient of what was cut apart


def _joined(pads: list[tuple[Value, tuple[tuple[int, int], ...]]]) -> Pattern | None:
    """Values padded with zeros to stand one behind the other, as their concatenation."""
    spans = [padding for _, padding in pads]
    differing = [i for i, pairs in enumerate(zip(*spans, strict=True)) if len(set(pairs)) > 1]
    if len(differing) != 1 or any(min(pair) < 0 for span in spans for pair in span):
        return None
    at = differing[0]
    pads = sorted(pads, key=lambda pad: pad[1][at][0])
    for (part, span), (_, following) in pairwise(pads):
        if part.shape[at] == 0 or span[at][0] + part.shape[at] != following[at][0]:
            return None
    around = list(pads[0][1])
    around[at] = (pads[0][1][at][0], pads[-1][1][at][1])
    made: Pattern = T.concat([part for part, _ in pads], axis=at)
    return made if all(pair == (0, 0) for pair in around) else T.pad(made, padding=around)


def _fills(made: Pattern | None, whole: bool) -> Pattern | None:
    """The result, where it needs no padding of its own (or where it does)."""
    if made is None or (made.op.name == "concat") != whole:  # type: ignore[attr-defined]
        return None
    return made


p, q, r = variables("p q r")
a, b, c = PARTS
_gaps = {"interior": gaps}
_two = T.pad(a, padding=p, **_gaps) + T.pad(b, padding=q, **_gaps)
_three = (T.pad(a, padding=p, **_gaps) + T.pad(b, padding=q, **_gaps)) + T.pad(
    c, padding=r, **_gaps
)
for whole, label in ((True, "that fill the whole"), (False, "side by side")):

    @rewrite(f"sum of two paddings {label}", _two, simplify=whole)
    def _(m: Match, whole: bool = whole) -> Pattern | None:
        return None if any(m.gaps) else _fills(_joined([(m.a, m.p), (m.b, m.q)]), whole)

    @rewrite(f"sum of three paddings {label}", _three, simplify=whole)
    def _(m: Match, whole: bool = whole) -> Pattern | None:
        parts = [(m.a, m.p), (m.b, m.q), (m.c, m.r)]
        return None if any(m.gaps) else _fills(_joined(parts), whole)


# ---- flips


@rewrite("flip of flip", T.flip(T.flip(x, axes=axes), axes=flipped), simplify=True)
def _(m: Match) -> Pattern:
    once = sorted(set(m.axes) ^ set(m.flipped))
    return T.flip(m.x, axes=once) if once else m.x


@rewrite("flip of axes of size 1", T.flip(x, axes=axes), simplify=True)
def _(m: Match) -> Pattern | None:
    return m.x if all(m.x.shape[axis] == 1 for axis in m.axes) else None
