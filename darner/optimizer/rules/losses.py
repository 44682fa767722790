"""Losses, recognised in the spellings of their parts.

First the loss of each row or element is found, then its mean or sum is taken in. A loss composite
is of shape [1] where parts give a scalar; the reshape between them meets the one that the parts end
with.

What a row's class number picks is an ``nll_loss`` that ignores nothing: its ``ignore_index`` is a
number that the labels cannot hold. Weights of the classes (one-hot rows and others) stay weights:
that all of them name a class is not known.
"""

from __future__ import annotations

from typing import Any

from ..declare import Condition, condition, is_float, rewrite, rule, same_type
from ..match import Match, Value
from ..pattern import Pattern, T, variables
from .identities import limits

x, y, p, l, c, s, t, nought, none = variables("x y p l c s t nought none")  # noqa: E741
axes, rows, index, attrs, to = variables("axes rows index attrs to")

IGNORED = -100
"""The usual ``ignore_index``."""


def can_hold(labels: Value, number: int) -> bool:
    """Whether labels may be that number."""
    least, most = labels.dtype.limits
    return bool(least <= number <= most)


def no_label(labels: Value) -> int:
    """An ``ignore_index`` that no label is."""
    return int(labels.dtype.limits[0]) - 1 if can_hold(labels, IGNORED) else IGNORED


def _scalar(term: Pattern) -> Pattern:
    result: Pattern = T.reshape(term, shape=())
    return result


@condition("all of a tensor with axes is reduced to a scalar")
def _whole(m: Match) -> bool:
    return m.root.rank == 0 and len(m.axes) > 0


# --------------------------------------------------------------------------- classes


def _are_classes(labels: Value, scores: Value) -> bool:
    return labels.dtype.is_int and scores.rank > 0 and labels.shape == scores.shape[:-1]


@rewrite(
    "nll_loss of each row",
    T.reshape(T.take_along_axis(p, T.reshape(l, shape=s), -1), shape=t),
    when=is_float(p),
)
def _(m: Match) -> Pattern | None:
    if not _are_classes(m.l, m.p) or m.root.shape != m.l.shape or tuple(m.s) != (*m.l.shape, 1):
        return None
    result: Pattern = -T.nll_loss(m.p, m.l, ignore_index=no_label(m.l), reduction="none")
    return result


rule(
    "cross_entropy_loss of class numbers",
    T.nll_loss(T.log_softmax(x), l, rest=attrs),
    T.cross_entropy_loss(x, l, rest=attrs, label_smoothing=0.0),
    fusion="LogSoftmax+NLL→CrossEntropy",
)


def _class_losses(m: Match) -> Pattern | None:
    if not _are_classes(m.l, m.x) or tuple(m.s) != (*m.l.shape, 1) or m.root.shape != m.l.shape:
        return None
    result: Pattern = T.cross_entropy_loss(m.x, m.l, ignore_index=no_label(m.l), reduction="none")
    return result


_picked = T.reshape(T.take_along_axis(x, T.reshape(l, shape=s), -1), shape=t)
for _words, _total in (
    ("", T.logsumexp(x, -1)),
    (", reshaped", T.reshape(T.logsumexp(x, -1, True), shape=t)),
):
    rule(
        f"cross_entropy_loss by logsumexp{_words}",
        _total - _picked,
        _class_losses,
        when=is_float(x),
        fusion="LogSumExp+Gather→CrossEntropy",
    )


@rewrite("cross_entropy_loss of each row", T.softmax_cross_entropy_with_logits(x, l))
def _(m: Match) -> Pattern | None:
    if not m.l.dtype.is_int:
        return None
    result: Pattern = T.cross_entropy_loss(m.x, m.l, ignore_index=no_label(m.l), reduction="none")
    return result


# --------------------------------------------------------------------------- rows that are left out

_kept = T.ne(l, c)
_inside = T.where(_kept, l, nought)


def _ignoring(m: Match, call: Any) -> Pattern | None:
    scalars = (m.c, m.nought, m.none)
    if not _are_classes(m.l, m.p) or any(value.rank > 0 for value in scalars):
        return None
    if m.c.number is None or m.nought.number != 0 or m.none.number != 0 or can_hold(m.l, m.index):
        return None
    result: Pattern = call(m.p, m.l, ignore_index=int(m.c.number), reduction="none")
    return result


for _name in ("nll_loss", "cross_entropy_loss"):
    _call = getattr(T, _name)
    _losses = _call(p, _inside, ignore_index=index, reduction="none")

    @rewrite(f"{_name} of labels not ignored", T.where(_kept, _losses, none))
    def _(m: Match, call: Any = _call) -> Pattern | None:
        return _ignoring(m, call)

    @rewrite(
        f"mean {_name} of labels not ignored",
        T.sum(_call(p, l, ignore_index=index, reduction="none"), axes)
        / T.sum(T.cast(_kept, to=to), rows),
        when=_whole,
        fusion="Sum+Div→Loss",
    )
    def _(m: Match, call: Any = _call) -> Pattern | None:
        # A count by rows that are not all would have been broadcast: the whole would be no scalar.
        if not _are_classes(m.l, m.p) or m.c.rank > 0 or m.c.number != m.index or not m.to.is_float:
            return None
        return _scalar(call(m.p, m.l, ignore_index=m.index))


@rewrite(
    "nll_loss of labels not ignored, negated",
    T.where(_kept, -T.nll_loss(p, _inside, ignore_index=index, reduction="none"), none),
)
def _(m: Match) -> Pattern | None:
    found = _ignoring(m, T.nll_loss)
    return None if found is None else T.neg(found)


# --------------------------------------------------------------------------- weights of classes

_weighed = same_type(x, y) & is_float(x)
_products = y * T.log_softmax(x)
rule(
    "cross_entropy_loss of weights",
    T.sum(_products, -1),
    -T.cross_entropy_loss(x, y, reduction="none"),
    when=_weighed,
    fusion="LogSoftmax+Mul+Sum→CrossEntropy",
)
_sum = _scalar(T.cross_entropy_loss(x, y, reduction="sum"))
rule("sum of cross_entropy_loss of weights", T.sum(_products, axes), -_sum, when=_weighed & _whole)


@condition("c is one over the number of rows")
def _over_rows(m: Match) -> bool:
    if m.x.shape != m.y.shape or m.x.rank < 2 or m.c.rank > 0 or m.c.number is None:
        return False
    count = 1
    for size in m.x.shape[:-1]:
        if not isinstance(size, int):
            return False
        count *= size
    return count > 0 and abs(m.c.number * count - 1) <= 4 * limits(m.c.dtype).eps


_mean = _scalar(T.cross_entropy_loss(x, y))
rule("mean of cross_entropy_loss of weights", _sum * c, _mean, when=_over_rows)
rule("mean of negated cross_entropy_loss of weights", -_sum * c, -_mean, when=_over_rows)

# --------------------------------------------------------------------------- by element

_difference = x - y
_pair = same_type(x, y) & is_float(x) & _whole
for _name, _each in (("mse_loss", T.square(_difference)), ("l1_loss", T.abs(_difference))):
    _call = getattr(T, _name)
    rule(_name, T.mean(_each, axes), _scalar(_call(x, y)), when=_pair)
    rule(f"{_name}, sum", T.sum(_each, axes), _scalar(_call(x, y, reduction="sum")), when=_pair)

_binary = T.bce_with_logits_loss(x, y, reduction="none")
_other = 1.0 - y
_tail = T.log1p(T.exp(-T.abs(x)))
_relu = T.maximum(x, 0.0)
for _words, _spelling in {
    "": (_relu - x * y) + _tail,
    " by softplus": T.softplus(x) - x * y,
    " by log_sigmoid": -(y * T.log_sigmoid(x) + _other * T.log_sigmoid(-x)),
    " by two of log_sigmoid": -(y * T.log_sigmoid(x)) - _other * T.log_sigmoid(-x),
    " by log_sigmoid and logits": _other * x - T.log_sigmoid(x),
}.items():
    rule(
        f"bce_with_logits_loss{_words}",
        _spelling,
        _binary,
        when=same_type(x, y) & is_float(x),
        fusion="LogSigmoid+Mul+Add→BCEWithLogits",
    )

# --------------------------------------------------------------------------- their means and sums

_REDUCED = {
    "nll_loss": True,
    "cross_entropy_loss": True,
    "bce_with_logits_loss": False,
}
"""Losses of rows or elements that are found above, and whether they may leave labels out."""


def _counts_all(m: Match) -> bool:
    """Whether the mean that a loss takes is over all rows."""
    return m.l.shape == m.p.shape or not can_hold(m.l, m.attrs["ignore_index"])


for _name, _may_ignore in _REDUCED.items():
    _call = getattr(T, _name)
    _none = _call(p, l, reduction="none", rest=attrs)
    _guard = _whole & Condition("no label is left out", _counts_all) if _may_ignore else _whole
    for _reduction, _reduce, _when in (("mean", T.mean, _guard), ("sum", T.sum, _whole)):
        rule(
            f"{_name}, {_reduction}",
            _reduce(_none, axes),
            _scalar(_call(p, l, reduction=_reduction, rest=attrs)),
            when=_when,
            fusion=f"{_reduction.capitalize()}+Loss→Loss",
        )
