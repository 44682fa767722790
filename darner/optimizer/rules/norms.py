"""Normalisations, recognised in the spellings of their parts, and what follows them taken in.

The steps: ``x`` over its root mean square is an ``rms_norm``; that of ``x`` less its mean is a
``layer_norm``; that between two reshapes is a ``group_norm``; each takes in a weight that it is
multiplied with and a bias that is added. Means are taken to be ``mean`` with its axes kept, and
products, squares and roots to have the normal spellings that ``strength`` says.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from ...graph.dims import Shape
from ..declare import Condition, is_float, keeps_type, rewrite, rule, same_type
from ..match import Match, Value
from ..pattern import Pattern, T, Variable, variables
from .activations import decimal

x, w, b, e, r, s, t, v, m_ = variables("x w b e r s t v mean")
axis, axes, keepdims, eps, attrs = variables("axis axes keepdims eps attrs")


Form: TypeAlias = tuple[Variable, ...]
"""The variables for weight and bias that a norm has."""

PLAIN: Form = ()
WEIGHTED: Form = (w,)
BIASED: Form = (w, b)


def _affine(form: Form, weight: str = "weight", bias: str = "bias") -> dict[str, Any]:
    """The operands of a form, by the names they have in a call."""
    return {weight if variable is w else bias: variable for variable in form}


# --------------------------------------------------------------------------- guards

_x_kept = keeps_type(x) & is_float(x)


def _limit(name: Variable) -> Condition:
    def holds(m: Match) -> bool:
        number = m[name].number
        return number is not None and 0 <= number < math.inf and m[name].size == 1

    return Condition(f"{name} is a constant number from 0 up", holds)


def _first(axes: tuple[int, ...], rank: int) -> int | None:
    """The axis from which on all are among ``axes``, where these are all."""
    first = rank - len(axes)
    return first if axes and axes == tuple(range(first, rank)) else None


_last_axes = Condition(
    "the mean is over the last axes", lambda m: _first(m.axes, m.x.rank) is not None
)


def _reshaped(value: Value, shape: Shape) -> Pattern:
    if value.shape == shape:
        return value
    result: Pattern = T.reshape(value, shape=shape)
    return result


def _features(value: Value, x: Value, axis: int) -> Pattern | None:
    """A factor or summand as weight or bias: one number for each normalised element."""
    wanted = x.shape[axis:]
    extra = value.rank - len(wanted)
    fits = 0 <= extra <= axis and value.shape == (1,) * extra + wanted
    return _reshaped(value, wanted) if fits and value.dtype is x.dtype else None


def _channels(value: Value, x: Value) -> Pattern | None:
    """A value that differs along axis 1 of x alone, as a vector of the channels."""
    if x.rank < 2:
        return None
    wanted = (x.shape[1], *(1,) * (x.rank - 2))
    fits = value.shape in (wanted, (1, *wanted)) and value.dtype is x.dtype
    return _reshaped(value, (x.shape[1],)) if fits else None


# --------------------------------------------------------------------------- over the last axes

_scale = T.rsqrt(T.mean(T.square(x), axes, True) + e)
_rms = _x_kept & _limit(e) & _last_axes
_RMS = "Square+Mean+Rsqrt+Mul→RmsNorm"


@rewrite("rms_norm", x * _scale, when=_rms, fusion=_RMS)
def _(m: Match) -> Pattern:
    result: Pattern = T.rms_norm(m.x, eps=decimal(m.e), axis=_first(m.axes, m.x.rank))
    return result


def _weighted_rms(m: Match) -> Pattern | None:
    axis = m.x.rank - len(m.axes)
    weight = _features(m.w, m.x, axis)
    return None if weight is None else T.rms_norm(m.x, weight, eps=decimal(m.e), axis=axis)


rule("rms_norm, weight on the scale", x * (_scale * w), _weighted_rms, when=_rms, fusion=_RMS)
rule("rms_norm, weight on the operand", (x * w) * _scale, _weighted_rms, when=_rms, fusion=_RMS)

for _words, _form in (("", PLAIN), (" with weight", WEIGHTED)):
    _operands = _affine(_form)

    @rewrite(
        f"layer_norm{_words}",
        T.rms_norm(x - T.mean(x, axes, True), **_operands, rest=attrs),
        when=_x_kept,
        fusion="Mean+Sub+RmsNorm→LayerNorm",
    )
    def _(m: Match, operands: dict[str, Variable] = _operands) -> Pattern | None:
        if m.attrs["axis"] != _first(m.axes, m.x.rank):
            return None
        result: Pattern = T.layer_norm(m.x, **operands, rest=attrs)
        return result


# The variance by squares cancels where the mean is large; written out it does not.
_spread = T.mean(T.square(x - T.mean(x, axes, True)), axes, keepdims)
rule("variance written out", T.var(x, axes, keepdims), _spread, when=is_float(x))
rule(
    "variance by the mean of squares",
    T.mean(T.square(x), axes, keepdims) - T.square(T.mean(x, axes, keepdims)),
    _spread,
    when=is_float(x),
)

for _name in ("layer_norm", "rms_norm"):
    _call = getattr(T, _name)

    @rewrite(f"{_name} times a weight", _call(x, rest=attrs) * w, when=_x_kept)
    def _(m: Match, call: Any = _call) -> Pattern | None:
        weight = _features(m.w, m.x, m.attrs["axis"])
        return None if weight is None else call(m.x, weight, rest=attrs)

    for _form in (PLAIN, WEIGHTED):
        _operands = _affine(_form)
        _words = "weighted " if _form else ""

        @rewrite(
            f"{_words}{_name} plus a bias", _call(x, **_operands, rest=attrs) + b, when=_x_kept
        )
        def _(m: Match, call: Any = _call, operands: dict[str, Any] = _operands) -> Pattern | None:
            bias = _features(m.b, m.x, m.attrs["axis"])
            return None if bias is None else call(m.x, **operands, bias=bias, rest=attrs)


# --------------------------------------------------------------------------- of a sum

# With the parameters that models give them.
_RESIDUALS: dict[str, tuple[str, str, dict[str, Form]]] = {
    "layer_norm": (
        "fused_residual_ln",
        "LayerNorm→FusedResidualLN",
        {"": BIASED, " without bias": WEIGHTED},
    ),
    "rms_norm": ("fused_residual_rms_norm", "RmsNorm→FusedResidualRmsNorm", {"": WEIGHTED}),
}
for _name, (_fused, _label, _forms) in _RESIDUALS.items():
    _call, _joined = getattr(T, _name), getattr(T, _fused)
    for _words, _form in _forms.items():
        _given, _taken = _affine(_form), _affine(_form, "gamma", "beta")
        rule(
            f"{_fused}{_words}",
            _call(x + r, **_given, eps=eps),
            _joined(x, r, **_taken, eps=eps),
            when=same_type(x, r),
            fusion=f"Add+{_label}",
            late=True,
        )
        rule(
            f"{_fused}{_words}, of a biased operand",
            _joined(x + v, r, **_taken, eps=eps),
            _joined(x, r, v, **_taken, eps=eps),
            when=keeps_type(x)
            & Condition(
                "the summand is a vector", lambda m: m.v.type == m.x.type.with_shape(m.x.shape[-1:])
            ),
            fusion=f"Bias+Add+{_label}",
            late=True,
        )

# --------------------------------------------------------------------------- by channels


@rewrite(
    "group_norm",
    T.reshape(T.layer_norm(T.reshape(x, shape=s), eps=eps, axis=axis), shape=t),
    when=_x_kept,
    fusion="Reshape+LayerNorm→GroupNorm",
)
def _(m: Match) -> Pattern | None:
    shape = m.x.shape
    if m.axis != 2 or len(shape) < 2 or m.s[0] != shape[0]:
        return None
    channels, groups = shape[1], m.s[1]
    if not isinstance(channels, int) or not isinstance(groups, int):
        return None
    if groups < 1 or channels % groups:
        return None
    result: Pattern = T.group_norm(m.x, num_groups=groups, eps=m.eps)
    return result


for _name in ("group_norm", "instance_norm"):
    _call = getattr(T, _name)

    @rewrite(f"{_name} times a weight", _call(x, rest=attrs) * w, when=_x_kept)
    def _(m: Match, call: Any = _call) -> Pattern | None:
        weight = _channels(m.w, m.x)
        return None if weight is None else call(m.x, weight=weight, rest=attrs)

    for _form in (PLAIN, WEIGHTED):
        _operands = _affine(_form)
        _words = "weighted " if _form else ""

        @rewrite(
            f"{_words}{_name} plus a bias", _call(x, **_operands, rest=attrs) + b, when=_x_kept
        )
        def _(m: Match, call: Any = _call, operands: dict[str, Any] = _operands) -> Pattern | None:
            bias = _channels(m.b, m.x)
            return None if bias is None else call(m.x, **operands, bias=bias, rest=attrs)


@rewrite("instance_norm", T.layer_norm(x, eps=eps, axis=axis) * w, when=_x_kept)
def _(m: Match) -> Pattern | None:
    weight = _channels(m.w, m.x) if m.axis == 2 else None
    return None if weight is None else T.instance_norm(m.x, weight=weight, eps=m.eps)


for _words, _form in (("", PLAIN), (" with weight and bias", BIASED)):
    rule(
        f"group_norm_silu{_words}",
        T.silu(T.group_norm(x, **_affine(_form), rest=attrs)),
        T.group_norm_silu(x, **_affine(_form), rest=attrs),
        mode="inference",
        fusion="GroupNorm+Silu→GroupNormSilu",
    )

# --------------------------------------------------------------------------- by given statistics

_BATCH = "Sub+Rsqrt+Mul→BatchNorm"


def _batch_norm(m: Match) -> Pattern | None:
    mean, var = _channels(m.mean, m.x), _channels(m.v, m.x)
    if mean is None or var is None:
        return None
    result: Pattern = T.batch_norm(m.x, mean, var, eps=decimal(m.e))
    return result


_given_scale = T.rsqrt(v + e)
rule("batch_norm", (x - m_) * _given_scale, _batch_norm, when=_x_kept & _limit(e), fusion=_BATCH)


def _is_vector_of_channels(value: Value, x: Value) -> bool:
    return value.type == x.tensor.with_shape(x.shape[1:2])


@rewrite(
    "batch_norm, scale reshaped",
    (x - m_) * T.reshape(_given_scale, shape=s),
    when=_x_kept & _limit(e),
    fusion=_BATCH,
)
def _(m: Match) -> Pattern | None:
    mean = _channels(m.mean, m.x)
    if mean is None or not _is_vector_of_channels(m.v, m.x) or not _along_channels(m.s, m.x):
        return None
    result: Pattern = T.batch_norm(m.x, mean, m.v, eps=decimal(m.e))
    return result


def _along_channels(shape: Shape, x: Value) -> bool:
    wanted = (*x.shape[1:2], *(1,) * (x.rank - 2))
    return x.rank >= 2 and tuple(shape) in (wanted, (1, *wanted))


_folded = w * _given_scale


def _scaled_and_shifted(m: Match) -> Pattern | None:
    vectors = (m.mean, m.v, m.w, m.b)
    if m.x.rank < 2 or not all(_is_vector_of_channels(vector, m.x) for vector in vectors):
        return None
    result: Pattern = T.batch_norm(m.x, m.mean, m.v, m.w, m.b, eps=decimal(m.e))
    return result


rule(
    "batch_norm as scale and shift",
    x * T.reshape(_folded, shape=s) + T.reshape(b - m_ * _folded, shape=s),
    _scaled_and_shifted,
    when=_x_kept
    & _limit(e)
    & Condition("s lies along channels", lambda m: _along_channels(m.s, m.x)),
    fusion=_BATCH,
)
rule(
    "batch_norm as scale and shift of rows",
    x * _folded + (b - m_ * _folded),
    _scaled_and_shifted,
    when=_x_kept & _limit(e) & Condition("x is a matrix", lambda m: m.x.rank == 2),
    fusion=_BATCH,
)


@rewrite("batch_norm times a weight", T.batch_norm(x, m_, v, eps=eps) * w, when=_x_kept)
def _(m: Match) -> Pattern | None:
    weight = _channels(m.w, m.x)
    return None if weight is None else T.batch_norm(m.x, m.mean, m.v, weight, eps=m.eps)


for _form in (PLAIN, WEIGHTED):
    _operands = _affine(_form)
    _words = "weighted " if _form else ""

    @rewrite(
        f"{_words}batch_norm plus a bias",
        T.batch_norm(x, m_, v, **_operands, eps=eps) + b,
        when=_x_kept,
    )
    def _(m: Match, operands: dict[str, Any] = _operands) -> Pattern | None:
        bias = _channels(m.b, m.x)
        if bias is None:
            return None
        result: Pattern = T.batch_norm(m.x, m.mean, m.v, **operands, bias=bias, eps=m.eps)
        return result


# --------------------------------------------------------------------------- by length

_squares = T.sum(T.square(x), axes, True)
_LENGTH = "Square+Sum+Rsqrt+Mul→L2Normalize"


def _by_length(m: Match) -> Pattern:
    result: Pattern = T.l2_normalize(m.x, m.axes, eps=decimal(m.e))
    return result


_length = T.norm(x, axes, True)
for _words, _spelling in (("maximum", T.maximum(_length, e)), ("clip", T.clip(_length, e))):
    rule(
        f"l2_normalize by {_words}",
        x / _spelling,
        _by_length,
        when=_x_kept & _limit(e),
        fusion=_LENGTH,
    )


@rewrite(
    "l2_normalize", x * T.rsqrt(T.maximum(_squares, e)), when=_x_kept & _limit(e), fusion=_LENGTH
)
def _(m: Match) -> Pattern:
    result: Pattern = T.l2_normalize(m.x, m.axes, eps=math.sqrt(decimal(m.e)))
    return result
