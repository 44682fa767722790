"""What is settled once the parameters are: scales and shifts go into weights, and what only training does is gone.

Whatever depends on parameters alone is computed once, before the first run, and costs nothing. So a norm by stored
statistics is a scale and a shift, these go into the kernel or the matrix beside them, and adapters into what they adapt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ...graph import dtypes
from ...graph.dims import Dim
from ...graph.dtypes import DType
from ...graph.types import TensorType
from ...ops.layers.fused import PRODUCTS
from ..declare import Condition, condition, is_float, rewrite, rule
from ..match import Match, Value
from ..pattern import Pattern, T, Term, Variable, variables
from .convolution import is_channel_vector, with_attributes

x, w, a, b, c, d, s = variables("x w a b c d s")
mean, var, weight, bias, step = variables("mean var weight bias step")
eps, scale, A = variables("eps scale A")

Call: TypeAlias = Callable[[Pattern, Pattern], Term]
Turn: TypeAlias = Callable[[Value], Pattern]

FIXED = ("parameter", "state", "constant")
"""Leaves that do not change from run to run of an inference."""


def is_fixed(*names: Variable) -> Condition:
    """All are known before the first run."""
    text = f"{', '.join(n.name for n in names)} are parameters"
    return Condition(text, lambda m: all(m[n].leaf in FIXED for n in names))


# What is computed once is computed in f32 at least: 16 bits are for what is stored.


def _wide(value: Pattern, dtype: DType) -> Pattern:
    """A value of 16 bits in f32, where parameters are joined."""
    return T.cast(value, to=dtypes.f32) if dtype.is_half else value


def _narrow(value: Pattern, dtype: DType) -> Pattern:
    """What was computed in f32, as it is stored."""
    return T.cast(value, to=dtype) if dtype.is_half else value


# --------------------------------------------------------------------------- dropout

rule("dropout", T.dropout(x, step=step, rest=A), x, mode="inference", simplify=True)

# --------------------------------------------------------------------------- norms by stored statistics


def _along_channels(vector: Pattern, m: Match) -> Pattern:
    spatial = m.x.rank - 2
    return T.reshape(vector, shape=(m.x.shape[1], *(1,) * spatial)) if spatial else vector


def _batch_norm(name: str, *vectors: Variable) -> None:
    operands = {vector.name: vector for vector in vectors}

    @rewrite(
        name,
        T.batch_norm(x, mean, var, eps=eps, **operands),
        when=is_fixed(mean, var, *vectors),
        mode="inference",
    )
    def _(m: Match) -> Pattern:
        # Shaped where they are leaves: views would be carried there anyway, step by step.
        def along(vector: Value) -> Pattern:
            return _wide(_along_channels(vector, m), m.x.dtype)

        factor = T.rsqrt(T.add(along(m.var), m.eps))
        if weight in vectors:
            factor = T.mul(along(m.weight), factor)
        offset = T.mul(along(m.mean), factor)
        shift = T.sub(along(m.bias), offset) if bias in vectors else T.neg(offset)
        scaled = T.mul(m.x, _narrow(factor, m.x.dtype))
        return T.add(scaled, _narrow(shift, m.x.dtype))


_batch_norm("batch_norm by parameters as scale and shift", weight, bias)
_batch_norm("batch_norm by parameters as scale and shift, without weight", bias)
_batch_norm("batch_norm by parameters as scale and shift, without bias", weight)
_batch_norm("batch_norm by parameters as scale and shift, without both")

# --------------------------------------------------------------------------- around a convolution
# "conv * scale" stands in ``convolution``; a shift that follows is the bias of ``epilogues``.


def _channels_of_result(*names: Variable) -> Condition:
    """All have one float for each output channel."""

    def holds(m: Match) -> bool:
        channels, rank = m.w.shape[0], m.x.rank
        return m.x.dtype.is_float and all(is_channel_vector(m[n], channels, rank) for n in names)

    return Condition(f"{', '.join(n.name for n in names)} have a float for each channel", holds)


_conv = T.conv(x, w, rest=A)

rule(
    "(conv + bias) * scale",
    (_conv + c) * s,
    _conv * s + c * s,
    when=_channels_of_result(c, s),
    mode="inference",
)
rule(
    "(conv - shift) * scale",
    (_conv - c) * s,
    _conv * s - c * s,
    when=_channels_of_result(c, s),
    mode="inference",
)
rule("conv - shift", _conv - c, _conv + -c, when=_channels_of_result(c), mode="inference")
rule(
    "conv + bias + shift",
    (_conv + c) + d,
    _conv + (c + d),
    when=_channels_of_result(c, d),
    mode="inference",
)


@condition("s has a float for each input channel, of one group")
def _scales_input(m: Match) -> bool:
    return (
        m.A["groups"] == 1
        and m.x.dtype.is_float
        and m.x.rank == m.w.rank
        and m.x.shape[1] == m.w.shape[1]
        and is_channel_vector(m.s, m.w.shape[1], m.w.rank)
    )


def _along_inputs(vector: Value, m: Match) -> Pattern:
    return T.reshape(vector, shape=(m.w.shape[1], *(1,) * (m.w.rank - 2)))


# Padding stays what it is: zeros, scaled or not.
@rewrite("conv of a scaled input", T.conv(x * s, w, rest=A), when=_scales_input, mode="inference")
def _(m: Match) -> Pattern:
    return with_attributes(T.conv, m.A, m.x, T.mul(m.w, _along_inputs(m.s, m)))


@condition("there is no padding, which is not shifted")
def _without_padding(m: Match) -> bool:
    return not any(low or high for low, high in m.A["padding"])


@rewrite(
    "conv of a shifted input",
    T.conv(x + s, w, rest=A),
    when=_scales_input & _without_padding,
    mode="inference",
)
def _(m: Match) -> Pattern:
    summed = T.sum(T.mul(m.w, _along_inputs(m.s, m)), axes=tuple(range(1, m.w.rank)))
    channels = (m.w.shape[0], *(1,) * (m.w.rank - 2))
    return T.add(with_attributes(T.conv, m.A, m.x, m.w), T.reshape(summed, shape=channels))


# --------------------------------------------------------------------------- around a product


def _is_columns(value: Value, columns: Dim) -> bool:
    """[N] or [1, N]."""
    return value.shape in ((columns,), (1, columns))


def _around(form: str, *names: Variable) -> Condition:
    """``w`` is a matrix, and the others have one float for each of its columns."""

    def holds(m: Match) -> bool:
        if m.w.rank != 2 or m.x.rank < 2 or not m.x.dtype.is_float:
            return False
        product: TensorType = PRODUCTS[form].infer(m.x.tensor, m.w.tensor)
        return all(_is_columns(m[name], product.shape[-1]) for name in names)

    text = f"w is a matrix and {', '.join(n.name for n in names)} have a float for each column"
    return Condition(text, holds)


@condition("s is one float, and w a matrix")
def _one_float(m: Match) -> bool:
    return m.s.rank == 0 and m.s.dtype.is_float and m.w.rank == 2


def _fed(form: str) -> Condition:
    """``s`` has one float for each row of the matrix, and none of them repeats ``x``."""

    def holds(m: Match) -> bool:
        inner = m.w.shape[0 if form == "nn" else 1] if m.w.rank == 2 else None
        return (
            inner is not None
            and m.x.rank > 1
            and m.x.shape[-1] == inner
            and m.x.dtype.is_float
            and _is_columns(m.s, inner)
        )

    return Condition("w is a matrix and s has a float for each of its rows", holds)


def _row(value: Value) -> Pattern:
    return value if value.rank == 1 else T.reshape(value, shape=value.shape[-1:])


def _column(value: Value) -> Pattern:
    return T.reshape(value, shape=(value.shape[-1], 1))


for _form, _name in (("nn", "matmul"), ("nt", "matmul_bt")):
    _times = getattr(T, _name)
    _product = _times(x, w)
    _along_result, _along_inner = (_row, _column) if _form == "nn" else (_column, _row)

    rule(
        f"{_name} * number",
        _product * s,
        _times(x, w * s),
        when=_one_float,
        mode="inference",
    )

    @rewrite(f"{_name} * scale", _product * s, when=_around(_form, s), mode="inference")
    def _(m: Match, times: Call = _times, along: Turn = _along_result) -> Pattern:
        return times(m.x, T.mul(m.w, along(m.s)))

    rule(
        f"({_name} + bias) * scale",
        (_product + c) * s,
        _product * s + c * s,
        when=_around(_form, c, s),
        mode="inference",
    )
    rule(
        f"({_name} - shift) * scale",
        (_product - c) * s,
        _product * s - c * s,
        when=_around(_form, c, s),
        mode="inference",
    )
    rule(f"{_name} - shift", _product - c, _product + -c, when=_around(_form, c), mode="inference")
    rule(
        f"{_name} + bias + shift",
        (_product + c) + d,
        _product + (c + d),
        when=_around(_form, c, d),
        mode="inference",
    )

    @rewrite(f"{_name} of a scaled input", _times(x * s, w), when=_fed(_form), mode="inference")
    def _(m: Match, times: Call = _times, along: Turn = _along_inner) -> Pattern:
        return times(m.x, T.mul(m.w, along(m.s)))

    @rewrite(f"{_name} of a shifted input", _times(x + s, w), when=_fed(_form), mode="inference")
    def _(m: Match, times: Call = _times, form: str = _form) -> Pattern:
        shift = T.matmul(_row(m.s), m.w) if form == "nn" else T.matmul(m.w, _row(m.s))
        return T.add(times(m.x, m.w), shift)


# --------------------------------------------------------------------------- adapters

_adapts = is_fixed(w, a, b)


@condition("they are matrices")
def _matrices(m: Match) -> bool:
    return m.w.rank == m.a.rank == m.b.rank == 2 and m.w.shape[0] == m.a.shape[0]


@rewrite(
    "lora_matmul merged",
    T.lora_matmul(x, w, a, b, scale=scale),
    when=_adapts,
    mode="inference",
    fusion="LoraMatMul→MatMul",
)
def _(m: Match) -> Pattern:
    dtype = m.x.dtype
    change = T.matmul(_wide(m.a, dtype), _wide(m.b, dtype))
    return T.matmul(m.x, _narrow(T.add(_wide(m.w, dtype), T.mul(change, m.scale)), dtype))


_adapted = T.matmul(T.matmul(x, a), b)
for _spelled, _left in (
    ("", _adapted),
    (", scaled inside", T.matmul(T.matmul(x, a) * s, b)),
    (", scaled outside", _adapted * s),
):
    _change = T.matmul(a, b) * s if _spelled else T.matmul(a, b)
    rule(
        f"adapter merged{_spelled}",
        T.matmul(x, w) + _left,
        T.matmul(x, w + _change),
        when=_adapts & _matrices & is_float(x) & (_one_float if _spelled else _matrices),
        mode="inference",
        fusion="MatMul+MatMul(MatMul)→MatMul",
    )
