"""Conversions between f16 and f32 without an instruction for them, for processors on which LLVM would call a library.

The bits are those that the instructions give, also in a step, where denormal f32 numbers count as zero: denormal f16 numbers never do.
"""

from __future__ import annotations

from .lanes import Lane

_SIGN = 0x8000
_REST = 0x7FFF
_INFINITY = 0x7C00
_SHIFT = 13
"""Bits of a significand that f32 has and f16 has not."""
_REBIAS = (127 - 15) << 23
"""What the exponent of an f32 has more, where it stands in the bits."""
_LEAST_NORMAL = 113 << 23
"""The bits of 2**-14 as f32."""
_OVERFLOW = 143 << 23
"""The bits of 2**16 as f32, from which on all rounds to infinity."""
_ALIGNED = 0.5
"""A sum with it has its last bit where the last bit of a denormal f16 is."""


def widened(x: Lane) -> Lane:
    """f16 lanes as f32."""
    bits = x.as_integer().resized(32, signed=False)
    size = bits & _REST
    normal = (size.shift_left(_SHIFT) + _REBIAS).as_float()
    tiny = size.to_float(32, signed=False) * 2.0**-24
    special = (size.shift_left(_SHIFT) | 0x7F800000).as_float()
    value = (size < 0x0400).choose(tiny, (size < _INFINITY).choose(normal, special))
    # A NaN that was signalling is quiet afterwards.
    quiet = (size > _INFINITY).choose(value.as_integer() | 0x400000, value.as_integer())
    return (quiet | (bits & _SIGN).shift_left(16)).as_float()


def narrowed(x: Lane) -> Lane:
    """f32 lanes as f16, rounded to nearest even."""
    bits = x.as_integer()
    size = bits & 0x7FFFFFFF
    odd = size.shift_right(_SHIFT, signed=False) & 1
    normal = (size - _REBIAS + 0xFFF + odd).shift_right(_SHIFT, signed=False)
    half = x.constant(_ALIGNED)
    tiny = (size.as_float() + half).as_integer() - half.as_integer()
    small = (size < _LEAST_NORMAL).choose(tiny, normal)
    quiet = size.shift_right(_SHIFT, signed=False) & 0x3FF | (_INFINITY | 0x200)
    large = (size > 0x7F800000).choose(quiet, _INFINITY)
    sign = bits.shift_right(16, signed=False) & _SIGN
    rounded = (size < _OVERFLOW).choose(small, large) | sign
    return rounded.resized(16, signed=False).as_float()
