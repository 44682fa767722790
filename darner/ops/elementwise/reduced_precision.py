"""Floats of fewer bits, as multipliers read them: the value stays in its type and loses digits."""

from __future__ import annotations

import math

import numpy as np

from ...graph.attributes import Float
from ...graph.data import Array
from ...graph.errors import ArgumentError
from ...graph.facts import Facts
from ...graph.node import Node
from ...graph.op import primitive
from ...graph.scalar import Scalar
from ...graph.types import TensorType
from ..declare import FAMILY, attach
from ..samples import sample, spec

EXPONENT = {32: 8, 64: 11}
MANTISSA = {32: 23, 64: 52}
"""Bits of the exponent, and explicit ones of the mantissa, of the floats that are computed with."""


@primitive(
    family=FAMILY,
    traits=["elementwise"],
    facts=Facts(weight=4.0),
    samples=[
        sample(spec(3, 5), 8, 10),
        sample(spec(7, low=-300.0, high=300.0), 8, 7),
        sample(spec(33, low=-1e-6, high=1e-6), 5, 10),
        sample(spec(33, low=-4e4, high=4e4), exponent_bits=5, mantissa_bits=2),
        sample(spec(), 11, 52),
        sample(spec(4, low=-2, high=2), 3, 0),
        sample(spec(0, 2), 8, 10),
    ],
)
def reduce_precision(x: Float, exponent_bits: int, mantissa_bits: int) -> TensorType:
    """``x`` rounded to a float of so many bits of exponent and mantissa, in its own type: ties to even, as JAX's op of this name.

    ``reduce_precision(x, 8, 10)`` is tf32. What is too large for the exponent becomes infinite, what is below its normal numbers 0; bits that the
    type does not have change nothing. The gradient passes as it is.
    """
    if exponent_bits < 1:
        raise ArgumentError(f"exponent_bits must be at least 1, not {exponent_bits}")
    if mantissa_bits < 0:
        raise ArgumentError(f"mantissa_bits must be at least 0, not {mantissa_bits}")
    return x


def _limits(bits: int, exponent_bits: int) -> tuple[float, float] | None:
    """The smallest normal number of an exponent, and the first that it has no room for; None where it has as many bits as there are."""
    if exponent_bits >= EXPONENT[bits]:
        return None
    bias = (1 << (exponent_bits - 1)) - 1
    return math.ldexp(1.0, 1 - bias), math.ldexp(1.0, bias + 1)


@reduce_precision.reference
def _(x: Array, exponent_bits: int, mantissa_bits: int) -> Array:
    wide = np.ascontiguousarray(x)
    bits = 8 * wide.dtype.itemsize
    dropped = MANTISSA[bits] - mantissa_bits
    result = wide
    if dropped > 0:
        pattern = wide.view(f"u{bits // 8}")
        number = pattern.dtype.type
        odd = (pattern >> number(dropped)) & number(1)
        moved = pattern + odd + number((1 << (dropped - 1)) - 1)
        kept = (moved >> number(dropped)) << number(dropped)
        result = np.where(np.isnan(wide), wide, kept.view(wide.dtype))
    limits = _limits(bits, exponent_bits)
    if limits is not None:
        least, beyond = limits
        size, zero = np.abs(result), np.copysign(np.zeros_like(result), result)
        result = np.where(size < least, zero, result)
        result = np.where(size >= beyond, np.copysign(np.inf, result), result)
    return np.asarray(result, wide.dtype).reshape(x.shape)


def _code(x: Scalar, exponent_bits: int, mantissa_bits: int) -> Scalar:
    bits = x.bits
    dropped = MANTISSA[bits] - mantissa_bits
    result = x
    if dropped > 0:
        pattern = x.as_integer()
        odd = pattern.shift_right(dropped, signed=False) & 1
        moved = pattern + odd + ((1 << (dropped - 1)) - 1)
        kept = moved & ((1 << bits) - (1 << dropped))
        # Rounding could carry a NaN into another number.
        result = x.is_nan().choose(x, kept.as_float())
    limits = _limits(bits, exponent_bits)
    if limits is not None:
        least, beyond = limits
        size = result.absolute()
        result = (size < least).choose(x.constant(0.0).with_sign_of(result), result)
        infinite = x.constant(math.inf).with_sign_of(result)
        result = size.compare(">=", beyond).choose(infinite, result)
    return result


attach(reduce_precision, _code)


@reduce_precision.vjp
def _(g: Node, out: Node, x: Node, exponent_bits: int, mantissa_bits: int) -> Node:
    return g
