"""What a kernel of Fourier transforms computes, and the arithmetic of its lengths: radices, halves of long transforms, and tables of roots of unity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from ...graph import dtypes
from ...graph.data import Array
from ...graph.dtypes import DType
from ...graph.integers import ceil_div
from ...lower.plan import Spec
from ...lower.specs import sizes
from ...ops.fourier.spectra import next_power_of_two, whole_length
from ...ops.fourier.transforms import factor
from ..ir.types import accumulator_type
from .nodes import main_node

Kind: TypeAlias = Literal["complex", "block", "half", "whole"]
"""Complex numbers; a block of them, real parts and then imaginary ones; real numbers to half a spectrum; and that back to real numbers."""

_KINDS: dict[str, Kind] = {
    "real_fft": "half",
    "rfft": "half",
    "stft": "half",
    "inverse_real_fft": "whole",
    "irfft": "whole",
}

LARGEST_RADIX = 13
"""The largest prime that a butterfly is written out for; lengths with larger ones become convolutions."""


@dataclass(frozen=True)
class Transform:
    """Transforms along an axis of tensors ``[lead, length, inner]``.

    Attributes:
        kind: what goes in and comes out.
        count: how many numbers a transform is of.
        lead: sizes of the axes before.
        inner: how many elements the axes behind have together.
        inverse: the direction.
        scale: what results are multiplied by.
        stored: the type of parts in memory.
        dtype: the type that is computed in.
        given: how many numbers of an operand there are, where the others are zeros.
        kept: how many of the results are kept.
        hop: how far frames of a signal are apart, where the first axis of ``lead`` is that of frames; the results of both sides stand in one tensor then.
    """

    kind: Kind
    count: int
    lead: tuple[int, ...]
    inner: int
    inverse: bool
    scale: float
    stored: DType
    dtype: DType
    given: int
    kept: int
    hop: int | None = None

    @property
    def rows(self) -> int:
        """How many there are before the axis."""
        return math.prod(self.lead)

    @property
    def bins(self) -> int:
        """Numbers of half a spectrum."""
        return self.count // 2 + 1

    @property
    def is_plain(self) -> bool:
        """Whether all numbers of an operand and a result belong to one transform."""
        return self.given == self.kept == self.count and self.hop is None

    @property
    def is_real(self) -> bool:
        """Whether one side is real, so that half of the work is enough."""
        return self.kind in ("half", "whole")


def transform(spec: Spec) -> Transform | None:
    """The problem of a spec, if it is one of transforms."""
    node = main_node(spec)
    if node.op.name not in ("fft", *_KINDS):
        return None
    x = node.operands[0]
    whole = sizes(x)
    inverse, axis = _KINDS.get(node.op.name) == "whole", len(whole) - 1
    lead, hop = tuple(whole[:-1]), None
    if node.op.name == "fft":
        inverse, axis = bool(node.attrs["inverse"]), int(node.attrs["axis"])
        lead = tuple(whole[:axis])
    is_complex = x.dtype.kind == "complex"
    kind: Kind = _KINDS.get(node.op.name, "complex" if is_complex else "block")
    count = kept = whole[axis] // 2 if kind == "block" else whole[axis]
    given = count
    if kind == "whole":
        kept = int(node.attrs["n"])
        count = given = whole_length(whole[-1], kept)
    elif node.op.name == "rfft":
        asked = node.attrs["n"]
        count = kept = next_power_of_two(count) if asked is None else int(asked)
        given = min(given, count)
    elif node.op.name == "stft":
        given, hop = int(node.attrs["frame_len"]), int(node.attrs["hop"])
        count = kept = next_power_of_two(given)
        lead = (1 + (whole[-1] - given) // hop, *lead)
    stored = x.dtype
    if is_complex:
        stored = dtypes.f64 if x.dtype is dtypes.c128 else dtypes.f32
    return Transform(
        kind,
        count,
        lead,
        math.prod(whole[axis + 1 :]),
        inverse,
        factor(count, inverse, str(node.attrs["norm"])),
        stored,
        accumulator_type(stored),
        given,
        kept,
        hop,
    )


# --------------------------------------------------------------------------- lengths


@lru_cache(maxsize=4096)
def primes_of(count: int) -> tuple[int, ...]:
    """The prime factors of a number, ascending.

    >>> primes_of(360)
    (2, 2, 2, 3, 3, 5)
    """
    found, rest, prime = [], count, 2
    while rest > 1:
        while rest % prime == 0:
            found.append(prime)
            rest //= prime
        prime = prime + 1 if prime * prime <= rest else max(rest, prime + 1)
    return tuple(found)


def is_smooth(count: int, spare: int = 0) -> bool:
    """Whether a transform is made of butterflies alone; larger primes count as such where their sum is within ``spare``.

    >>> is_smooth(26), is_smooth(34), is_smooth(34, 60), is_smooth(2 * 31 * 37, 60)
    (True, False, True, False)
    """
    return sum(prime for prime in primes_of(count) if prime > LARGEST_RADIX) <= spare


def radices(count: int, largest: int = 8) -> tuple[int, ...]:
    """The radices of the passes of a smooth length, twos together up to ``largest``.

    >>> radices(32), radices(1000), radices(64), radices(128), radices(1)
    ((8, 4), (8, 5, 5, 5), (8, 8), (8, 4, 4), ())
    """
    primes = primes_of(count)
    twos = primes.count(2)
    most = largest.bit_length() - 1
    passes = ceil_div(twos, most)
    powers = [twos // passes + (i < twos % passes) for i in range(passes)] if passes else []
    return (*(1 << power for power in powers), *reversed([p for p in primes if p > 2]))


@lru_cache(maxsize=4096)
def convolved_length(count: int) -> int:
    """The length of the convolution that stands for a transform whose length is not smooth: the smallest that is made of 2, 3 and 5, with many twos.

    >>> convolved_length(17), convolved_length(997)
    (36, 2000)
    """
    least, best = 2 * count - 1, 1 << (2 * count - 2).bit_length()
    for odd in (1, 3, 5, 9, 15, 25, 27, 45, 75, 81, 125):
        power = max(2, (ceil_div(least, odd) - 1).bit_length())
        best = min(best, odd << power)
    return best


@lru_cache(maxsize=4096)
def halves(count: int, multiple: int) -> tuple[int, int]:
    """Two factors of a smooth length, as near to each other as can be, and multiples of a number of lanes where that is possible.

    >>> halves(1024, 16), halves(1000, 16), halves(512, 16), halves(97, 16)
    ((32, 32), (25, 40), (16, 32), (1, 97))
    """

    def waste(part: int) -> float:
        lanes = min(multiple, 1 << (part.bit_length() - 1))
        return ceil_div(part, lanes) * lanes / part * (multiple / lanes) ** 0.5

    divisors = [d for d in range(1, math.isqrt(count) + 1) if count % d == 0]
    best = min(
        divisors,
        key=lambda d: (waste(d) + waste(count // d)) * (1 + 0.05 * math.log2(count / d / d)),
    )
    return best, count // best


# --------------------------------------------------------------------------- tables


def roots(numerators: Array, count: int) -> Array:
    """``exp(-2 pi i n / count)`` for integers n; computed in f64 from the smallest equal angle."""
    turns = np.asarray(numerators, np.int64) % count
    eighth = (8 * turns) // count
    # Angles are taken within an eighth of a turn of an axis, where sine and cosine are best.
    quarter = (eighth + 1) // 2
    angle = 2 * np.pi * (turns - quarter * (count / 4.0)) / count
    base = np.cos(angle) - 1j * np.sin(angle)
    return np.asarray(base * np.array([1, -1j, -1, 1j, 1])[quarter])


def chirp(count: int) -> Array:
    """``exp(-pi i n^2 / count)``: with it a transform is a convolution."""
    n = np.arange(count, dtype=np.int64)
    return roots(n * n % (2 * count), 2 * count)


def chirp_spectrum(count: int, length: int) -> Array:
    """The spectrum of the conjugate chirp in both directions, over the length of the convolution."""
    wave = np.conj(chirp(count))
    line = np.zeros(length, np.complex128)
    line[:count] = wave
    line[length - count + 1 :] = wave[1:][::-1]
    return np.asarray(np.fft.fft(line) / length)
