"""Convolutions: recognised in their parts, and what some of them are besides.

One of size 1 is a product of matrices, one of size 3 can do with fewer products, and a scale of the result is one of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...graph.dims import Dim, product
from ..declare import condition, rewrite, rule
from ..match import Match, Value
from ..pattern import Pattern, T, Term, variables

x, w, s, dy, A, P, padding, perm = variables("x w s dy A P padding perm")
ca, cb, window, stride, dilation = variables("ca cb window stride dilation")


def is_channel_vector(value: Value, channels: Dim, rank: int) -> bool:
    """Whether a value has one number for each channel of a [batch, channels, *spatial] tensor."""
    if not rank - 1 <= value.rank <= rank:
        return False
    sizes = (1,) * (rank - value.rank) + value.shape
    return sizes == (1, channels, *(1,) * (rank - 2))


def with_attributes(
    call: Callable[..., Term], attrs: Mapping[str, Any], *operands: Pattern, **more: Any
) -> Term:
    """A call with attributes taken over from a match."""
    return call(*operands, **attrs, **more)


# --------------------------------------------------------------------------- windows and a contraction


def _sums_windows(w: Value, kernel_axes: Any, window_axes: Any) -> bool:
    """Whether a contraction of a kernel and windows is over the channels and the whole window."""
    count = w.rank - 2
    wanted = {(1, 1), *((2 + i, 2 + count + i) for i in range(count))}
    return set(zip(kernel_axes, window_axes, strict=True)) == wanted


def _spatial(m: Match) -> int | None:
    """How many spatial axes there are, where the windows are over all of them, of an image with channels."""
    count = len(m.window)
    fits = m.x.rank == m.w.rank == count + 2 and m.root.rank == count + 2
    # Nothing to slide over is no convolution.
    return count if fits and all(size != 0 for size in m.root.shape[2:]) else None


def _as_conv(m: Match) -> Pattern:
    return T.conv(m.x, m.w, stride=m.stride, dilation=m.dilation)


_windows = T.windows(x, window=window, stride=stride, dilation=dilation)


@rewrite(
    "conv, the kernel first",
    T.transpose(T.dot_general(w, _windows, a_contract=ca, b_contract=cb), perm=perm),
    fusion="Windows+DotGeneral→Conv",
)
def _(m: Match) -> Pattern | None:
    count = _spatial(m)
    if count is None or m.perm != (1, 0, *range(2, 2 + count)):
        return None
    return _as_conv(m) if _sums_windows(m.w, m.ca, m.cb) else None


@rewrite(
    "conv, the windows first",
    T.transpose(T.dot_general(_windows, w, a_contract=ca, b_contract=cb), perm=perm),
    fusion="Windows+DotGeneral→Conv",
)
def _(m: Match) -> Pattern | None:
    count = _spatial(m)
    if count is None or m.perm != (0, 1 + count, *range(1, 1 + count)):
        return None
    return _as_conv(m) if _sums_windows(m.w, m.cb, m.ca) else None


@rewrite("conv of a padded input", T.conv(T.pad(x, rest=P), w, padding=padding, rest=A))
def _(m: Match) -> Pattern | None:
    around = m.P["padding"]
    inside = any(m.P["interior"] or ())
    if m.P["value"] != 0 or inside or any(low < 0 or high < 0 for low, high in around):
        return None
    if any(low or high for low, high in around[:2]):
        return None
    both = zip(around[2:], m.padding, strict=True)
    whole = tuple((low + more, high + most) for (low, high), (more, most) in both)
    return with_attributes(T.conv, m.A, m.x, m.w, padding=whole)


# --------------------------------------------------------------------------- kernels of size 1


def _is_pointwise(attrs: Mapping[str, Any], kernel: Any) -> bool:
    """Every position by itself, all of its channels at once."""
    return (
        attrs["groups"] == 1
        and all(size == 1 for size in kernel)
        and all(step == 1 for step in attrs["stride"])
        and not any(low or high for low, high in attrs["padding"])
    )


_POINTWISE = "the kernel is of size 1, with stride 1, no padding and one group"


@condition(_POINTWISE)
def _pointwise(m: Match) -> bool:
    return _is_pointwise(m.A, m.w.shape[2:])


def _flat(value: Value) -> Pattern:
    """[batch, channels, *spatial] as [batch, channels, positions]."""
    batch, channels, *spatial = value.shape
    return T.reshape(value, shape=(batch, channels, product(spatial)))


def _matrix(weight: Value) -> Pattern:
    return T.reshape(weight, shape=weight.shape[:2])


@rewrite("conv of size 1", T.conv(x, w, rest=A), when=_pointwise)
def _(m: Match) -> Pattern:
    return T.reshape(T.matmul(_matrix(m.w), _flat(m.x)), shape=m.root.shape)


@rewrite("conv_input_grad of size 1", T.conv_input_grad(dy, w, rest=A), when=_pointwise)
def _(m: Match) -> Pattern:
    return T.reshape(T.matmul_at(_matrix(m.w), _flat(m.dy)), shape=m.root.shape)


@condition(_POINTWISE)
def _pointwise_gradient(m: Match) -> bool:
    return _is_pointwise(m.A, m.A["kernel"])


@rewrite("conv_weight_grad of size 1", T.conv_weight_grad(x, dy, rest=A), when=_pointwise_gradient)
def _(m: Match) -> Pattern:
    summed = (0, *range(2, m.x.rank))
    gradient = T.dot_general(m.dy, m.x, a_contract=summed, b_contract=summed)
    return T.reshape(gradient, shape=m.root.shape)


# --------------------------------------------------------------------------- kernels of size 3


# The transformed kernel of a 16-bit type would be rounded to that type, which the plain sum is not.
@condition("x is an image of wide floats, the kernel 3x3 with stride 1, dilation 1 and one group")
def _fits_winograd(m: Match) -> bool:
    return (
        m.x.rank == 4
        and m.w.shape[2:] == (3, 3)
        and m.A["groups"] == 1
        and m.A["stride"] == m.A["dilation"] == (1, 1)
        and m.x.dtype.is_float
        and not m.x.dtype.is_half
    )


rule(
    "conv by Winograd's tiles",
    T.conv(x, w, padding=padding, rest=A),
    T.winograd_conv(x, T.winograd_weight(w), padding=padding),
    when=_fits_winograd,
    mode="inference",
    fusion="Conv2d(3x3)→WinogradConv2d",
)

# --------------------------------------------------------------------------- scaled results


@condition("s is a float, one or one for each channel")
def _scales_channels(m: Match) -> bool:
    one = m.s.rank == 0
    return m.s.dtype.is_float and (one or is_channel_vector(m.s, m.w.shape[0], m.x.rank))


def scaled_kernel(kernel: Pattern, rank: int, scale: Value, channels: Dim) -> Pattern:
    """A kernel with a scale for each of its output channels, or one for all."""
    if scale.rank == 0:
        return T.mul(kernel, scale)
    return T.mul(kernel, T.reshape(scale, shape=(channels, *(1,) * (rank - 1))))


@rewrite("conv * scale", T.conv(x, w, rest=A) * s, when=_scales_channels)
def _(m: Match) -> Pattern:
    kernel = scaled_kernel(m.w, m.w.rank, m.s, m.w.shape[0])
    return with_attributes(T.conv, m.A, m.x, kernel)
