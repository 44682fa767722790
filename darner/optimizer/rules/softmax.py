"""Softmax, its logarithm and their gradients, recognised in the spellings of their parts.

What is subtracted before the exponential cancels in the result, so it plays no part here: first the
quotient of exponentials becomes a softmax, or the difference from their ``logsumexp`` its
logarithm; then the shift of its operand goes. That is no loss: the composite has one of its own.
"""

from __future__ import annotations

import math

from ..declare import Condition, condition, is_float, keeps_type, rule, same_type
from ..match import Match, Value
from ..pattern import Pattern, T, variables

x, y, z, c, g, mask, axis, axes, keepdims = variables("x y z c g mask axis axes keepdims")


@condition("the sum is along one axis")
def _one_axis(m: Match) -> bool:
    return len(m.axes) == 1


def _of_axes(name: str) -> Pattern:
    term: Pattern = getattr(T, name)(z, axis=lambda m: m.axes[0])
    return term


# --------------------------------------------------------------------------- softmax

rule(
    "softmax",
    T.exp(z) / T.sum(T.exp(z), axes, True),
    _of_axes("softmax"),
    when=is_float(z) & _one_axis,
    fusion="Exp+Sum+Div→Softmax",
)
rule("exp of log_softmax", T.exp(T.log_softmax(x, axis)), T.softmax(x, axis))


def _flat(value: Value, whole: Value, axes: tuple[int, ...]) -> bool:
    """Whether a value that is broadcast to ``whole`` is one number along some axes."""
    missing = whole.rank - value.rank
    return all(i < missing or value.shape[i - missing] == 1 for i in axes)


_shifted = Condition(
    "the shift is one number along the axis, and x is not broadcast",
    lambda m: m.x.type == m.root.type and _flat(m.c, m.x, (m.axis,)),
)
for _name in ("softmax", "log_softmax"):
    _call = getattr(T, _name)
    rule(
        f"{_name} of a shifted operand",
        _call(x - c, axis),
        _call(x, axis),
        when=_shifted,
        simplify=True,
    )

rule(
    "masked_softmax",
    T.softmax(T.where(mask, x, -math.inf), axis),
    T.masked_softmax(x, mask, axis),
    when=keeps_type(x),
    fusion="Where+Softmax→MaskedSoftmax",
)

# --------------------------------------------------------------------------- its logarithm


def _spans(x: Value, c: Value) -> bool:
    """Whether ``x - c`` has the type of x."""
    if x.dtype is not c.dtype or c.rank > x.rank:
        return False
    beside = x.shape[x.rank - c.rank :]
    return all(size in (1, whole) for size, whole in zip(c.shape, beside, strict=True))


rule(
    "logsumexp",
    T.log(T.sum(T.exp(z), axes, keepdims)),
    T.logsumexp(z, axes, keepdims),
    when=is_float(z),
    fusion="Exp+Sum+Log→LogSumExp",
)
rule(
    "logsumexp of a shifted operand",
    T.logsumexp(x - c, axes, True) + c,
    T.logsumexp(x, axes, True),
    when=Condition(
        "the shift is one number for each result, and x is not broadcast",
        lambda m: m.c.type == m.root.type and _spans(m.x, m.c) and _flat(m.c, m.x, m.axes),
    ),
)
rule(
    "log_softmax",
    z - T.logsumexp(z, axes, True),
    _of_axes("log_softmax"),
    when=is_float(z) & _one_axis,
    fusion="Sub+LogSumExp→LogSoftmax",
)
rule("log of softmax", T.log(T.softmax(x, axis)), T.log_softmax(x, axis))

# --------------------------------------------------------------------------- gradients


_gradient = same_type(y, g) & is_float(y) & _one_axis
_products = T.sum(y * g, axes, True)
for _name, _spelling in (
    ("softmax_backward", y * (g - _products)),
    ("softmax_backward, multiplied out", y * g - y * _products),
):
    rule(
        _name,
        _spelling,
        T.softmax_backward(y, g, axis=lambda m: m.axes[0]),
        when=_gradient,
        fusion="Mul+Sum+Sub→SoftmaxBackward",
    )
rule(
    "log_softmax_backward",
    g - T.exp(y) * T.sum(g, axes, True),
    T.log_softmax_backward(y, g, axis=lambda m: m.axes[0]),
    when=_gradient,
    fusion="Exp+Sum+Sub→LogSoftmaxBackward",
)
