"""Integers in place of floats: quantised tensors, and products and convolutions of them.

A float ``x`` is kept as the code ``q = round(x / scale) + zero_point`` of 8 bits, and is ``(q - zero_point) * scale`` again. A scale belongs to a whole
tensor, or to each slice along an axis. Results in integers have no derivative: ``fake_quantize`` rounds in the same way, stays a float, and lets gradients pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypedDict, Unpack

import numpy as np

from ...graph import dtypes
from ...graph.attributes import Axis, Float, Floats, Free, Ints, Pairs
from ...graph.data import as_data
from ...graph.dims import Dim, format_shape
from ...graph.dtypes import DType
from ...graph.errors import ArgumentError, DTypeError, ShapeError
from ...graph.facts import Facts
from ...graph.node import Node
from ...graph.op import Resolved, composite, resolved
from ...graph.types import TensorType
from ..elementwise.arithmetic import clip, where
from ..linalg.contract import dot_general
from ..linalg.matrix import check_inner
from ..samples import ints, sample, spec
from ..spatial.conv import conv
from ..spatial.windows import fixed_sizes

FAMILY = "quantisation"

Rounding = Literal["even", "away"]

TRAINABLE = "fake_quantize"
"""What to train with in place of what gives integers."""

_LOW, _HIGH = -128, 127


# --------------------------------------------------------------------------- what calls must be


def _check_scales(scales: Sequence[float], name: str) -> None:
    for scale in scales:
        if not math.isfinite(scale) or not 0 < float(np.float32(scale)) < math.inf:
            raise ArgumentError(f"{name} must be a finite f32 above 0, not {scale}")


def _check_zero_points(points: Sequence[int], low: int, high: int, name: str) -> None:
    for point in points:
        if not low <= point <= high:
            raise ArgumentError(f"{name} must be in {low}..{high}, not {point}")


def _check_codes(q: TensorType, name: str = "q", *, unsigned: bool = False) -> None:
    if q.dtype is not dtypes.i8 and not (unsigned and q.dtype is dtypes.u8):
        kinds = "i8 or u8" if unsigned else "i8"
        raise DTypeError(f"{name} must be {kinds}, not {q.dtype}")


def _check_pairs(x: TensorType, axis: int, scales: Sequence[float], points: Sequence[int]) -> None:
    """One scale and one zero point for each slice along an axis."""
    for name, values in (("scales", scales), ("zero_points", points)):
        if len(values) != x.shape[axis]:
            raise ShapeError(
                f"axis {axis} has size {x.shape[axis]}, but there are {len(values)} {name}"
            )


def _check_multipliers(mult: Sequence[float], columns: Dim, what: str) -> None:
    _check_scales(mult, "mult")
    if len(mult) not in (1, columns):
        raise ShapeError(f"mult has {len(mult)} numbers for {columns} {what}")


def _check_accumulated(bias: TensorType | None, columns: Dim) -> None:
    """A bias is added to sums, so it has their type."""
    if bias is None:
        return
    if bias.dtype is not dtypes.i32:
        raise DTypeError(f"bias must be i32, as the sums that it is added to, not {bias.dtype}")
    if bias.shape != (columns,):
        raise ShapeError(f"bias must be {format_shape((columns,))}, not {format_shape(bias.shape)}")


# --------------------------------------------------------------------------- the arithmetic


def _rounded(x: Node, rounding: str) -> Node:
    if rounding == "even":
        result: Node = x.round()
        return result
    # What is half or more beyond a whole number goes on to the next, away from 0.
    whole = x.trunc()
    beyond = (x - whole).abs().ge(0.5)
    return where(beyond, whole + x.sign(), whole)


def _coded(x: Node, scale: Node | float, point: Node | float, rounding: str) -> Node:
    """The code of each element, still a float and not yet within bounds; NaN is the zero point."""
    wide = x.cast("f32") if x.dtype.is_half else x
    code = _rounded(wide / scale, rounding) + point
    result: Node = where(code.is_nan(), point, code)
    return result


def _stored(code: Node) -> Node:
    """Codes as the integers that are kept."""
    result: Node = clip(code, float(_LOW), float(_HIGH)).cast("i8")
    return result


def _along(x: Node, values: Sequence[float], axis: int, dtype: DType) -> Node:
    """One number for each slice of ``x`` along an axis; only one for all."""
    shape = (len(values), *(1,) * (x.rank - axis - 1))
    if len(values) == 1:
        shape = ()
    result: Node = x.graph.literal(as_data(list(values), dtype).array.reshape(shape), dtype)
    return result


# --------------------------------------------------------------------------- to codes and back

_PASSES_NONE = Facts(fused=True, trainable=TRAINABLE)


@composite(
    family=FAMILY,
    facts=_PASSES_NONE,
    samples=[
        sample(spec(3, 5), 0.02, 3),
        sample(spec(2, 0, 4), 0.5, -128),
        sample(spec(), 0.01, 0),
        sample(spec(7), 0.005, 127, rounding="away"),
    ],
)
def quantize(
    x: Float, scale: float, zero_point: int = 0, *, rounding: Rounding = "even"
) -> TensorType:
    """Codes of 8 bits: ``clip(round(x / scale) + zero_point, -128, 127)`` as i8.

    Halves go to the even neighbour, as in PyTorch and ONNX, or with ``rounding="away"`` away from 0. NaN becomes the zero point.
    """
    _check_scales([scale], "scale")
    _check_zero_points([zero_point], _LOW, _HIGH, "zero_point")
    return x.with_dtype(dtypes.i8)


@quantize.expand
def _(x: Node, scale: float, zero_point: int, rounding: str) -> Node:
    return _stored(_coded(x, scale, float(zero_point), rounding))


@composite(
    family=FAMILY,
    facts=_PASSES_NONE,
    samples=[
        sample(spec(3, 5), 1, (0.01, 0.02, 0.03, 0.04, 0.05), (0, 1, -2, 3, -4)),
        sample(spec(2, 3, 4), -2, (0.1, 0.02, 0.5), (0, 0, 5)),
        sample(spec(1, 3), 0, (0.1,), (7,), rounding="away"),
        sample(spec(0, 2), 1, (0.1, 1.0), (0, 0)),
    ],
)
def quantize_per_channel(
    x: Float, axis: Axis, scales: Floats, zero_points: Ints, *, rounding: Rounding = "even"
) -> TensorType:
    """``quantize`` with a scale and a zero point for each slice along ``axis``."""
    _check_scales(scales, "a scale")
    _check_zero_points(zero_points, _LOW, _HIGH, "a zero point")
    _check_pairs(x, axis, scales, zero_points)
    return x.with_dtype(dtypes.i8)


@quantize_per_channel.expand
def _(
    x: Node, axis: int, scales: Sequence[float], zero_points: Sequence[int], rounding: str
) -> Node:
    wide = dtypes.f32 if x.dtype.is_half else x.dtype
    scale, point = (_along(x, values, axis, wide) for values in (scales, zero_points))
    return _stored(_coded(x, scale, point, rounding))


_FUSED = Facts(fused=True)


@composite(
    family=FAMILY,
    facts=_FUSED,
    samples=[
        sample(ints(3, 5, low=-128, high=128, dtype="i8"), 0.02, 3),
        sample(ints(4, high=256, dtype="u8"), 0.5, 128),
        sample(ints(2, 0, high=9, dtype="i8"), 0.5),
        sample(ints(low=-9, high=9, dtype="i8"), 2.0, -128),
    ],
)
def dequantize(q: Free, scale: float, zero_point: int = 0) -> TensorType:
    """What codes stand for, ``(q - zero_point) * scale``, as f32; ``q`` is i8, or u8 with a zero point in 0..255."""
    _check_codes(q, unsigned=True)
    _check_scales([scale], "scale")
    _check_zero_points([zero_point], *q.dtype.limits, "zero_point")
    return q.with_dtype(dtypes.f32)


@dequantize.expand
def _(q: Node, scale: float, zero_point: int) -> Node:
    return (q.cast("i32") - zero_point).cast("f32") * scale


@composite(
    family=FAMILY,
    facts=_FUSED,
    samples=[
        sample(ints(2, 3, low=-128, high=128, dtype="i8"), 1, (0.1, 0.2, 0.3), (0, 5, -128)),
        sample(ints(2, 3, high=256, dtype="u8"), -2, (0.1, 0.2), (0, 255)),
        sample(ints(1, 4, low=-9, high=9, dtype="i8"), 0, (0.5,), (1,)),
        sample(ints(0, 2, low=-9, high=9, dtype="i8"), 1, (0.5, 0.1), (1, 0)),
    ],
)
def dequantize_per_channel(q: Free, axis: Axis, scales: Floats, zero_points: Ints) -> TensorType:
    """``dequantize`` with a scale and a zero point for each slice along ``axis``."""
    _check_codes(q, unsigned=True)
    _check_scales(scales, "a scale")
    _check_zero_points(zero_points, *q.dtype.limits, "a zero point")
    _check_pairs(q, axis, scales, zero_points)
    return q.with_dtype(dtypes.f32)


@dequantize_per_channel.expand
def _(q: Node, axis: int, scales: Sequence[float], zero_points: Sequence[int]) -> Node:
    point, scale = _along(q, zero_points, axis, dtypes.i32), _along(q, scales, axis, dtypes.f32)
    return (q.cast("i32") - point).cast("f32") * scale


# --------------------------------------------------------------------------- rounding that gradients pass


class _Faked(TypedDict):
    """The attributes of ``fake_quantize``."""

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None
    bits: int


def _bounds(bits: int) -> tuple[int, int]:
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


@composite(
    family=FAMILY,
    facts=_FUSED,
    samples=[
        sample(spec(3, 5), 0.015625, 3),
        sample(spec(3, 5), (0.125, 0.25, 0.5), (0, 1, -2), axis=0, bits=4),
        sample(spec(2, 3), (0.5, 0.25, 0.125), axis=-1, bits=2),
        sample(spec(0, 3), 0.5),
        sample(spec(), 0.125, 1, bits=3),
    ],
)
def fake_quantize(
    x: Float, scale: Floats, zero_point: Ints = (0,), axis: Axis | None = None, *, bits: int = 8
) -> Resolved:
    """``x`` as its codes stand for it, in its own type: what a model is trained with that will be quantised.

    ``scale`` and ``zero_point`` are one number each, or one for each slice along ``axis``; codes have ``bits`` bits and a sign. The gradient goes straight
    through where a code is not cut off, and is 0 where it is.
    """
    if not 2 <= bits <= 16:
        raise ArgumentError(f"bits must be in 2..16, not {bits}")
    if axis is None and (len(scale), len(zero_point)) != (1, 1):
        raise ArgumentError(
            f"{max(len(scale), len(zero_point))} scales or zero points need an axis",
            hint="axis=0 has one for each row",
        )
    if axis is not None:
        zero_point = zero_point * (len(scale) if len(zero_point) == 1 else 1)
        _check_pairs(x, axis, scale, zero_point)
    _check_scales(scale, "a scale")
    _check_zero_points(zero_point, *_bounds(bits), "a zero point")
    return resolved(x, zero_point=zero_point)


def _fake_parts(
    x: Node, scale: Sequence[float], zero_point: Sequence[int], axis: int | None
) -> tuple[Node, Node, Node]:
    """The codes before they are cut off, zero points and scales."""
    wide = dtypes.f32 if x.dtype.is_half else x.dtype
    across = 0 if axis is None else axis
    scales, points = (_along(x, values, across, wide) for values in (scale, zero_point))
    return _coded(x, scales, points, "even"), points, scales


@fake_quantize.expand
def _(
    x: Node, scale: Sequence[float], zero_point: Sequence[int], axis: int | None, bits: int
) -> Node:
    code, point, scales = _fake_parts(x, scale, zero_point, axis)
    low, high = _bounds(bits)
    result: Node = ((clip(code, float(low), float(high)) - point) * scales).cast(x.dtype)
    return result


@fake_quantize.vjp
def _(g: Node, out: Node, x: Node, **attrs: Unpack[_Faked]) -> Node:
    code, _, _ = _fake_parts(x, attrs["scale"], attrs["zero_point"], attrs["axis"])
    low, high = _bounds(attrs["bits"])
    inside = code.ge(float(low)).logical_and(code.le(float(high)))
    result: Node = where(inside, g, 0.0)
    return result


# --------------------------------------------------------------------------- products of codes


class _Product(TypedDict):
    """The attributes of ``q_matmul``."""

    x_zp: int
    w_zp: int
    out_zp: int
    mult: tuple[float, ...]


class _Convolution(_Product):
    """The attributes of ``q_conv2d``."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int


def _requantised(sums: Node, mult: Node | float, out_zp: int) -> Node:
    return _stored((sums.cast("f32") * mult).round() + float(out_zp))


def _centred(codes: Node, point: int) -> Node:
    wide: Node = codes.cast("i32")
    return wide - point if point else wide


_X, _W = ints(3, 5, low=-128, high=128, dtype="i8"), ints(5, 4, low=-128, high=128, dtype="i8")


@composite(
    family=FAMILY,
    facts=Facts(full_rate=True, trainable=TRAINABLE),
    samples=[
        sample(_X, _W, ints(4, low=-999, high=999), 3, -2, 5, 0.001),
        sample(
            ints(2, 3, 6, low=-128, high=128, dtype="i8"),
            ints(6, 2, low=-128, high=128, dtype="i8"),
            ints(2, low=-99, high=99),
            -128,
            127,
            -128,
            (0.001, 0.0005),
        ),
        sample(_X, _W, None, 0, 0, 0, 0.002),
        sample(
            ints(6, low=-9, high=9, dtype="i8"),
            ints(6, 1, low=-9, high=9, dtype="i8"),
            ints(1, high=9),
            1,
            0,
            0,
            0.1,
        ),
        sample(
            ints(2, 0, high=9, dtype="i8"),
            ints(0, 3, high=9, dtype="i8"),
            ints(3, high=99),
            0,
            0,
            1,
            1.0,
        ),
    ],
)
def q_matmul(  # many parameters: they are what a quantised product consists of
    x: Free,
    w: Free,
    bias: Free | None,
    x_zp: int = 0,
    w_zp: int = 0,
    out_zp: int = 0,
    mult: Floats = (1.0,),
) -> TensorType:
    """A product of codes as codes: ``clip(round(acc * mult) + out_zp, -128, 127)`` with ``acc = bias + (x - x_zp) @ (w - w_zp)``.

    ``x`` is i8 [..., K], ``w`` i8 [K, N], ``bias`` i32 [N] or None. Sums are exact in i32 (for K up to 33000). ``mult``, the scales of ``x`` and ``w`` over that of
    the result, is one number or one for each column.
    """
    _check_codes(x, "x")
    _check_codes(w, "w")
    if w.rank != 2:
        raise ShapeError(f"w must be a matrix [K, N], not {format_shape(w.shape)}")
    if x.rank == 0:
        raise ShapeError("x is a scalar")
    check_inner(x.shape[-1], w.shape[0])
    for name, point in (("x_zp", x_zp), ("w_zp", w_zp), ("out_zp", out_zp)):
        _check_zero_points([point], _LOW, _HIGH, name)
    _check_accumulated(bias, w.shape[1])
    _check_multipliers(mult, w.shape[1], "columns")
    return x.with_shape((*x.shape[:-1], w.shape[1]))


@q_matmul.expand
def _(x: Node, w: Node, bias: Node | None, **attrs: Unpack[_Product]) -> Node:
    left, right = x, w
    if attrs["x_zp"] or attrs["w_zp"]:
        left, right = _centred(x, attrs["x_zp"]), _centred(w, attrs["w_zp"])
    sums = dot_general(left, right, (x.rank - 1,), (0,))
    sums = sums if bias is None else sums + bias
    mult = _along(sums, attrs["mult"], sums.rank - 1, dtypes.f32)
    return _requantised(sums, mult, attrs["out_zp"])


_IMAGE = ints(1, 4, 5, 6, low=-128, high=128, dtype="i8")


@composite(
    family=FAMILY,
    facts=Facts(full_rate=True, trainable=TRAINABLE),
    samples=[
        sample(
            _IMAGE,
            ints(3, 4, 3, 2, low=-128, high=128, dtype="i8"),
            ints(3, low=-999, high=999),
            (3, 2),
            (1, 2),
            (1, 1),
            (1, 1),
            1,
            7,
            -3,
            1,
            0.0007,
        ),
        sample(
            _IMAGE,
            ints(4, 2, 2, 3, low=-128, high=128, dtype="i8"),
            None,
            (2, 3),
            padding=((0, 1), (1, 0)),
            dilation=(2, 1),
            groups=2,
            x_zp=-5,
            mult=(0.001, 0.002, 0.003, 0.004),
        ),
        sample(
            ints(0, 1, 3, 3, high=9, dtype="i8"),
            ints(2, 1, 1, 1, high=9, dtype="i8"),
            ints(2, high=9),
            (1, 1),
        ),
    ],
)
def q_conv2d(  # many parameters: they are what a quantised convolution consists of
    x: Free,
    w: Free,
    bias: Free | None,
    kernel_size: Ints,
    stride: Ints = (1,),
    padding: Pairs = ((0, 0),),
    dilation: Ints = (1,),
    groups: int = 1,
    x_zp: int = 0,
    w_zp: int = 0,
    out_zp: int = 0,
    mult: Floats = (1.0,),
) -> Resolved:
    """A convolution of codes as codes; as in ``q_matmul``, with the geometry of ``conv``.

    ``x`` is i8 [batch, in, height, width], ``w`` i8 [out, in / groups, *kernel_size], ``bias`` i32 [out] or None. Padding counts as ``x_zp``, so it adds nothing. ``mult``
    is one number or one for each channel of the result.
    """
    _check_codes(x, "x")
    _check_codes(w, "w")
    for name, operand in (("x", x), ("w", w)):
        if operand.rank != 4:
            raise ShapeError(f"{name} must have rank 4, not {operand.rank}")
    kernel = fixed_sizes(w.shape[2:], "the kernel")
    if kernel_size * (2 if len(kernel_size) == 1 else 1) != kernel:
        raise ShapeError(
            f"kernel_size is {format_shape(kernel_size)}, but w has {format_shape(kernel)}"
        )
    for name, point in (("x_zp", x_zp), ("w_zp", w_zp), ("out_zp", out_zp)):
        _check_zero_points([point], _LOW, _HIGH, name)
    _check_accumulated(bias, w.shape[0])
    _check_multipliers(mult, w.shape[0], "channels")
    sums = conv.infer(x, w, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return resolved(sums.type.with_dtype(dtypes.i8), kernel_size=kernel, **sums.attrs)


@q_conv2d.expand
def _(x: Node, w: Node, bias: Node | None, **attrs: Unpack[_Convolution]) -> Node:
    sums = conv(
        _centred(x, attrs["x_zp"]),
        _centred(w, attrs["w_zp"]),
        stride=attrs["stride"],
        padding=attrs["padding"],
        dilation=attrs["dilation"],
        groups=attrs["groups"],
    )
    sums = sums if bias is None else sums + bias.reshape((w.shape[0], 1, 1))
    mult = _along(sums, attrs["mult"], 1, dtypes.f32)
    return _requantised(sums, mult, attrs["out_zp"])
