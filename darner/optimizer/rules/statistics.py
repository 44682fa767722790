"""Means, variances, norms and log-sum-exp from their parts, and what they do not depend on.

The normal spelling of a mean is ``mean``: a sum over the count, or times its reciprocal, becomes one.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes

from ...graph.types import broadcast
from ..declare import Condition, is_float, rule
from ..match import Match, Value
from ..pattern import T, variables
from .reductions import element_count, reduced
from .shapes import aligned

x, m_, c, axis, axes, keepdims, order, rest = variables("x shift c axis axes keepdims order rest")


def _divides_by(m: Match, count: float, inverse: bool) -> bool:
    """Whether the constant c divides by a count, to the last digits of its type."""
    number = m.c.number
    if number is None or count <= 0:
        return False
    if not inverse:
        return bool(number == count)
    digits: Any = ml_dtypes.finfo
    return bool(abs(number * count - 1) <= 4 * float(digits(m.c.dtype.numpy).eps))


def _is_over(m: Match, correction: int, inverse: bool) -> bool:
    """Whether c makes an average of a sum over the axes, and has no axes that the sum lacks."""
    count = element_count(m.x, m.axes)
    if count is None or not m.x.dtype.is_float:
        return False
    if reduced(m.x.shape, m.axes, m.keepdims) != m.root.shape:
        return False
    return _divides_by(m, count - correction, inverse)


def _over(correction: int, inverse: bool) -> Condition:
    less = f" less {correction}" if correction else ""
    return Condition(
        f"c {'is 1 over' if inverse else 'is'} the number of elements{less}",
        lambda m: _is_over(m, correction, inverse),
    )


# ---- means and variances

_sum = T.sum(x, axes=axes, keepdims=keepdims)
_distance = T.square(x - T.mean(x, axes=axes, keepdims=True))
_squares = T.sum(_distance, axes=axes, keepdims=keepdims)
_mean = T.mean(x, axes=axes, keepdims=keepdims)

for how, inverse, divided in (("over", False, T.div), ("times 1 over", True, T.mul)):
    rule(f"mean from sum {how} count", divided(_sum, c), _mean, when=_over(0, inverse))
    rule(
        f"var from sum {how} count less 1",
        divided(_squares, c),
        T.var(x, axes=axes, keepdims=keepdims, correction=1.0),
        when=_over(1, inverse),
    )

rule(
    "var from distances to the mean",
    T.mean(_distance, axes=axes, keepdims=keepdims),
    T.var(x, axes=axes, keepdims=keepdims),
    when=is_float(x),
)
rule("std", T.sqrt(T.var(x, rest=rest)), T.std(x, rest=rest), fusion="Var+Sqrt→Std")
rule(
    "norm",
    T.sqrt(T.sum(T.square(x), axes=axes, keepdims=keepdims)),
    T.norm(x, axes=axes, keepdims=keepdims),
    when=is_float(x),
    fusion="Square+Sum+Sqrt→Norm",
)
rule(
    "logsumexp less its maximum",
    T.logsumexp(x - T.max(x, axes=axes, keepdims=True), axes=axes) + T.max(x, axes=axes),
    T.logsumexp(x, axes=axes),
)

# ---- what a shift or a scale does not change


def _constant_along(value: Value, rank: int, axes: tuple[int, ...]) -> bool:
    """Whether a value of an element-wise op of some rank is the same along axes of it."""
    return all(aligned(value, rank)[axis] == 1 for axis in axes)


def _leaves(m: Match) -> bool:
    return m.x.shape == m.root.shape and _constant_along(m.shift, m.x.rank, (m.axis,))


_same_along = Condition("the shift is the same along the axis", _leaves)

for name in ("softmax", "log_softmax"):
    share = getattr(T, name)
    rule(
        f"{name} of a shift",
        share(x + m_, axis=axis),
        share(x, axis=axis),
        when=_same_along,
        simplify=True,
    )
    # The smallest share may round to 0 and so may others: argmin is left alone.
    rule(
        f"argmax of {name}",
        T.argmax(share(x, axis=axis), axis=axis, keepdims=keepdims),
        T.argmax(x, axis=axis, keepdims=keepdims),
        simplify=True,
    )


def _shift_of_choice(m: Match) -> bool:
    """Whether a shift moves all candidates alike."""
    if not m.x.dtype.is_float or m.shift.rank > m.x.rank:
        return False
    if broadcast(m.x.shape, m.shift.shape) != m.x.shape:
        return False
    along = tuple(range(m.x.rank)) if m.axis is None else (m.axis,)
    return _constant_along(m.shift, m.x.rank, along)


def _is_positive(m: Match) -> bool:
    return bool(m.x.dtype.is_float and m.c.rank == 0 and m.c.number is not None and m.c.number > 0)


def _chosen(value: Any) -> Any:
    return T.argmax(value, axis=axis, keepdims=keepdims)


for how, shifted in (("of", x + m_), ("less", x - m_)):
    rule(
        f"argmax {how} a shift",
        _chosen(shifted),
        _chosen(x),
        when=Condition("the shift moves all alike", _shift_of_choice),
        simplify=True,
    )
for how, scaled in (("multiple", x * c), ("fraction", x / c)):
    rule(
        f"argmax of a positive {how}",
        _chosen(scaled),
        _chosen(x),
        when=Condition("c is a positive constant", _is_positive),
        simplify=True,
    )
rule(
    "argmax of a negative",
    _chosen(-x),
    T.argmin(x, axis=axis, keepdims=keepdims),
    when=is_float(x),
    simplify=True,
)
