"""How the bytes of quantised weights become values: one decoder a format, from which the reference and all compiled code follow.

A *packed* format keeps blocks of so many elements in so many bytes, scales included; it is ggml's. A *scaled* one keeps the codes of a matrix [K, N] in one tensor
and what they are scaled by in others. A decoder computes one element from the bytes of its block, in arithmetic that arrays and generated code have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, Self, TypeAlias


class Place(Protocol):
    """An element's number in its block, or the number of a byte: known, or one for each of several elements."""

    def __add__(self, other: Self | int, /) -> Self: ...
    def __mul__(self, other: int, /) -> Self: ...
    def __floordiv__(self, other: int, /) -> Self: ...
    def __mod__(self, other: int, /) -> Self: ...


class Number(Protocol):
    """A 32-bit integer or a float of one element, or of several."""

    def __add__(self, other: Self | float, /) -> Self: ...
    def __sub__(self, other: Self | float, /) -> Self: ...
    def __mul__(self, other: Self | float, /) -> Self: ...
    def __and__(self, other: Self | int, /) -> Self: ...
    def __or__(self, other: Self | int, /) -> Self: ...


class Block(Protocol):
    """The block of an element: its bytes, and the arithmetic that decoders use."""

    def byte(self, place: Place) -> Number:
        """A byte of the block, from 0 to 255."""

    def signed(self, place: Place) -> Number:
        """A byte of the block, from -128 to 127."""

    def half(self, place: int) -> Number:
        """The f16 that begins at a byte."""

    def single(self, place: int) -> Number:
        """The f32 that begins at a byte."""

    def word(self, place: int) -> Number:
        """The 32 bits that begin at a byte, as an integer."""

    def right(self, bits: Number, by: Place | int) -> Number:
        """Bits moved down; zeros come in."""

    def left(self, bits: Number, by: int) -> Number:
        """Bits moved up."""

    def float(self, number: Number) -> Number:
        """An integer as a float."""

    def of_bits(self, bits: Number) -> Number:
        """The f32 that has these bits, as a float."""

    def where(self, place: Place, limit: int, below: Number, above: Number) -> Number:
        """``below`` where a place is before a limit, else ``above``."""

    def pick(self, number: Number, equal: int, then: Number, otherwise: Number) -> Number:
        """``then`` where an integer equals a number, else ``otherwise``."""

    # Of formats with tensors of their own for what scales the codes.

    def code(self) -> Number:
        """The element's code: as it is stored, or 4 bits of it."""

    def scale(self) -> Number:
        """The f32 of the element's block and column."""

    def scale_code(self) -> Number:
        """The byte of the element's block and column."""

    def offset(self) -> Number:
        """The zero point of the element's block and column, as a float."""


Decode: TypeAlias = Callable[[Block, Place], Number]


@dataclass(frozen=True)
class Format:
    """How a scheme keeps its elements.

    Attributes:
        kind: ``packed`` in blocks of bytes, or codes that are ``scaled`` by other tensors.
        elements: of a block; 0 where a scheme says it.
        bytes: of a block of a packed format.
        code: what codes are stored as: ``i8``, ``u8``, or two in a byte, the even element in the low bits.
        decode: an element from its block.
        run: neighbours, from a multiple of their number on, that have their scales and the order of their bytes in common.
        scales: what lies beside codes: nothing, ``scales`` as floats or as ``codes`` of 8 bits, or ``offsets`` too.
    """

    kind: Literal["packed", "scaled"]
    elements: int
    bytes: int
    decode: Decode
    code: Literal["u8", "i8", "nibble"] = "u8"
    scales: Literal["none", "scales", "offsets", "codes"] = "none"
    run: int = 16

    @property
    def bits(self) -> float:
        """Of an element: with all that lies in its block."""
        if self.kind == "packed":
            return 8 * self.bytes / self.elements
        return 4.0 if self.code == "nibble" else 8.0


# --------------------------------------------------------------------------- small floats


def half_of(b: Block, bits: Number) -> Number:
    """The f16 with these 16 bits."""
    return _small_float(b, bits, exponent=5, mantissa=10)


def _small_float(b: Block, bits: Number, exponent: int, mantissa: int) -> Number:
    """The float with so many bits of exponent and mantissa below its sign: biased, with infinities, as IEEE has them."""
    width, bias = exponent + mantissa, (1 << (exponent - 1)) - 1
    magnitude = bits & ((1 << width) - 1)
    sign = b.left(b.right(bits, width) & 1, 31)
    moved = b.left(magnitude, 23 - mantissa)
    power = b.right(magnitude, mantissa)
    usual = b.of_bits((moved + ((127 - bias) << 23)) | sign)
    # Infinities and NaN have all bits of the exponent here too.
    endless = b.of_bits(moved | 0x7F800000 | sign)
    # Below the first power of two, floats are whole numbers of one small one.
    tiny = b.float(magnitude) * 2.0 ** (1 - bias - mantissa)
    tiny = b.pick(sign, 0, tiny, tiny * -1.0)
    return b.pick(power, 0, tiny, b.pick(power, (1 << exponent) - 1, endless, usual))


def _e4m3(b: Block, bits: Number) -> Number:
    """The OCP float with 4 bits of exponent and 3 of mantissa: no infinities, and NaN where all its bits are set."""
    magnitude = bits & 127
    sign = b.left(b.right(bits, 7) & 1, 31)
    usual = b.of_bits((b.left(magnitude, 20) + (120 << 23)) | sign)
    tiny = b.float(magnitude) * 2.0**-9
    tiny = b.pick(sign, 0, tiny, tiny * -1.0)
    found = b.pick(b.right(magnitude, 3), 0, tiny, usual)
    return b.pick(magnitude, 127, b.of_bits((magnitude & 0) + 0x7FC00000), found)


def _e5m2(b: Block, bits: Number) -> Number:
    return _small_float(b, bits, exponent=5, mantissa=2)


def _e2m1(b: Block, bits: Number) -> Number:
    """0, 0.5, 1, 1.5, 2, 3, 4 and 6, and the same with a sign."""
    magnitude = bits & 7
    sign = b.left(b.right(bits, 3) & 1, 31)
    usual = b.of_bits((b.left(magnitude, 22) + (126 << 23)) | sign)
    tiny = b.float(magnitude) * 0.5
    return b.pick(b.right(magnitude, 1), 0, b.pick(sign, 0, tiny, tiny * -1.0), usual)


# --------------------------------------------------------------------------- blocks of 32


def _nibble(b: Block, e: Place, start: int) -> Number:
    """Four bits of one of 16 bytes: the low ones are the first 16 elements."""
    return b.right(b.byte(e % 16 + start), e // 16 * 4) & 15


def _fifth_bit(b: Block, e: Place, start: int) -> Number:
    """One of 32 bits, where it is the fifth of a code."""
    return b.left(b.right(b.word(start), e) & 1, 4)


def _q4_0(b: Block, e: Place) -> Number:
    return b.half(0) * b.float(_nibble(b, e, 2) - 8)


def _q4_1(b: Block, e: Place) -> Number:
    return b.half(0) * b.float(_nibble(b, e, 4)) + b.half(2)


def _q5_0(b: Block, e: Place) -> Number:
    return b.half(0) * b.float((_nibble(b, e, 6) | _fifth_bit(b, e, 2)) - 16)


def _q5_1(b: Block, e: Place) -> Number:
    return b.half(0) * b.float(_nibble(b, e, 8) | _fifth_bit(b, e, 4)) + b.half(2)


def _q8_0(b: Block, e: Place) -> Number:
    return b.half(0) * b.float(b.signed(e + 2))


# --------------------------------------------------------------------------- blocks of 256


def _scale_and_least(b: Block, group: Place, start: int) -> tuple[Number, Number]:
    """Six bits of scale and six of minimum of one of eight groups, in 12 bytes.

    The first four have a byte each; the others four bits, and two that the first do not need.
    """
    own = group % 4
    first, second, rest = (b.byte(own + (start + 4 * i)) for i in range(3))
    high_scale = (rest & 15) | b.left(b.right(first, 6), 4)
    high_least = b.right(rest, 4) | b.left(b.right(second, 6), 4)
    return (
        b.where(group, 4, first & 63, high_scale),
        b.where(group, 4, second & 63, high_least),
    )


def _of_group(b: Block, code: Number, group: Place) -> Number:
    """The value of a code in a block that begins with two f16 and the scales and minima of eight groups."""
    scale, least = _scale_and_least(b, group, 4)
    return (b.half(0) * b.float(scale)) * b.float(code) - b.half(2) * b.float(least)


def _byte_of_run(b: Block, e: Place, run: int, width: int, start: int) -> Number:
    """The byte of an element, where each run of so many elements goes several times through so many bytes."""
    return b.byte(e // run * width + e % width + start)


def _two_bits(b: Block, e: Place, start: int) -> Number:
    return b.right(_byte_of_run(b, e, 128, 32, start), e % 128 // 32 * 2) & 3


def _q2_k(b: Block, e: Place) -> Number:
    both = b.byte(e // 16)
    scaled = (b.half(80) * b.float(both & 15)) * b.float(_two_bits(b, e, 16))
    return scaled - b.half(82) * b.float(b.right(both, 4))


def _q3_k(b: Block, e: Place) -> Number:
    group = e // 16
    # Four bits of a scale in each half of 8 bytes, two more in each quarter of 4.
    low = b.right(b.byte(group % 8 + 96), group // 8 * 4) & 15
    high = b.right(b.byte(group % 4 + 104), group // 4 * 2) & 3
    scale = b.half(108) * b.float((low | b.left(high, 4)) - 32)
    third = b.right(b.byte(e % 32), e // 32) & 1
    return scale * b.float((_two_bits(b, e, 32) | b.left(third, 2)) - 4)


def _q4_k(b: Block, e: Place) -> Number:
    code = b.right(_byte_of_run(b, e, 64, 32, 16), e % 64 // 32 * 4) & 15
    return _of_group(b, code, e // 32)


def _q5_k(b: Block, e: Place) -> Number:
    code = b.right(_byte_of_run(b, e, 64, 32, 48), e % 64 // 32 * 4) & 15
    fifth = b.right(b.byte(e % 32 + 16), e // 32) & 1
    return _of_group(b, code | b.left(fifth, 4), e // 32)


def _q6_k(b: Block, e: Place) -> Number:
    low = b.right(_byte_of_run(b, e, 128, 64, 0), e % 128 // 64 * 4) & 15
    high = b.right(_byte_of_run(b, e, 128, 32, 128), e % 128 // 32 * 2) & 3
    scale = b.half(208) * b.float(b.signed(e // 16 + 192))
    return scale * b.float((low | b.left(high, 4)) - 32)


def _q8_k(b: Block, e: Place) -> Number:
    return b.single(0) * b.float(b.signed(e + 4))


# --------------------------------------------------------------------------- codes with scales beside them


def _scaled(b: Block, e: Place) -> Number:
    return b.float(b.code()) * b.scale()


def _centred(b: Block, e: Place) -> Number:
    return (b.float(b.code()) - b.offset()) * b.scale()


def _nvfp4(b: Block, e: Place) -> Number:
    return _e2m1(b, b.code()) * _e4m3(b, b.scale_code())


FORMATS: dict[str, Format] = {
    "int8_block": Format("scaled", 0, 0, _scaled, "i8", "scales"),
    "int8_block_asym": Format("scaled", 0, 0, _centred, "i8", "offsets"),
    "int4_block": Format("scaled", 0, 0, _centred, "nibble", "offsets"),
    "fp8_e4m3": Format("scaled", 1, 0, lambda b, e: _e4m3(b, b.code())),
    "fp8_e5m2": Format("scaled", 1, 0, lambda b, e: _e5m2(b, b.code())),
    "nvfp4_block": Format("scaled", 16, 0, _nvfp4, "nibble", "codes"),
    "q4_0": Format("packed", 32, 18, _q4_0),
    "q4_1": Format("packed", 32, 20, _q4_1),
    "q5_0": Format("packed", 32, 22, _q5_0),
    "q5_1": Format("packed", 32, 24, _q5_1),
    "q8_0": Format("packed", 32, 34, _q8_0, run=32),
    "q2_k": Format("packed", 256, 84, _q2_k),
    "q3_k": Format("packed", 256, 110, _q3_k),
    "q4_k": Format("packed", 256, 144, _q4_k, run=32),
    "q5_k": Format("packed", 256, 176, _q5_k, run=32),
    "q6_k": Format("packed", 256, 210, _q6_k),
    "q8_k": Format("packed", 256, 292, _q8_k, run=32),
}
"""Every format that there is a decoder for, by the name of its scheme."""
