"""How a tensor is filled at first: rules by name, perhaps with a number, such as ``"normal(0.02)"``.

    >>> parse_rule("ones")(np.random.Philox(key=7), (2,), np.float32)
    array([1., 1.], dtype=float32)
    >>> parse_rule("normall(1)")
    Traceback (most recent call last):
    darner.graph.errors.ArgumentError: there is no initialiser 'normall(1)'; did you mean 'normal'?

| rule | gives |
|---|---|
| ``zeros``, ``ones``, ``constant(c)`` | one number everywhere |
| ``normal(s)`` | mean 0 and deviation s, 0.02 when left out |
| ``truncated_normal(s)`` | the same, drawn anew where it is more than 2 s away |
| ``sinusoids`` | rows of sines, then of cosines, whose wavelengths grow from 2 pi to 20000 pi: positions |
| ``uniform(b)`` | evenly within b of 0, 0.05 when left out |
| ``kaiming``, ``xavier``, ``lecun`` | as wide as the shape asks, also as ``_normal`` and ``_uniform`` |

A rule fills float32 or float64. Both draw the same numbers, which in float32 are rounded on the way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from .data import Array
from .errors import ArgumentError, nearest

Kind: TypeAlias = type[np.float32] | type[np.float64]
Fill: TypeAlias = Callable[[np.random.Philox, tuple[int, ...], Kind], Array]

BLOCK = 1 << 15
"""How many numbers are made at a time, an even one, so that all of it stays in the cache. They do not depend on it."""


def _words(bits: np.random.Philox, count: int) -> Array:
    """An even number of 32-bit integers, straight from the counter: two of each draw, the lower half first."""
    raw = np.asarray(bits.random_raw(count // 2), np.uint64)
    return raw.astype("<u8", copy=False).view("<u4")


def _filled(shape: tuple[int, ...], kind: Kind, fill: Callable[[Array], None]) -> Array:
    """An array that is filled piece by piece, each of an even size."""
    count = math.prod(shape)
    found = np.empty(count + count % 2, kind)
    for start in range(0, count, BLOCK):
        fill(found[start : start + BLOCK])
    return found[:count].reshape(shape)


def _even(bits: np.random.Philox, shape: tuple[int, ...], kind: Kind, bound: float) -> Array:
    """Numbers from -bound to bound, that not included: 24 bits each, which both kinds hold."""

    def fill(piece: Array) -> None:
        piece[:] = _words(bits, len(piece)) >> np.uint32(8)
        piece *= kind(2.0**-23)
        piece -= kind(1.0)
        piece *= kind(bound)

    return _filled(shape, kind, fill)


def _normal(bits: np.random.Philox, shape: tuple[int, ...], kind: Kind, deviation: float) -> Array:
    """Box and Muller's transform, both numbers of each pair.

    Radius and angle come from integers rounded to float32, whatever is made: so float64 is the same, but more exact.
    """

    def fill(piece: Array) -> None:
        words = _words(bits, len(piece))
        # Never 0: the largest radius is 6.66. Small ones, of numbers near 1, are what is rounded.
        radius = words[0::2].astype(np.float32)
        radius += np.float32(1.0)
        radius *= np.float32(2.0**-32)
        angle = words[1::2].astype(np.float32)
        angle *= np.float32(2.0 * np.pi * 2.0**-32)
        radius, angle = radius.astype(kind, copy=False), angle.astype(kind, copy=False)
        np.log(radius, out=radius)
        radius *= kind(-2.0)
        np.sqrt(radius, out=radius)
        radius *= kind(deviation)
        np.multiply(radius, np.cos(angle), out=piece[0::2])
        np.multiply(radius, np.sin(angle), out=piece[1::2])

    return _filled(shape, kind, fill)


def _truncated(
    bits: np.random.Philox, shape: tuple[int, ...], kind: Kind, deviation: float
) -> Array:
    """Normal numbers, those beyond 2 drawn anew until none is; in float64, as which ones these are must not hang on rounding."""
    found = _normal(bits, (math.prod(shape),), np.float64, 1.0)
    places = np.flatnonzero(np.abs(found) > 2.0)
    while places.size:
        again = _normal(bits, (places.size,), np.float64, 1.0)
        found[places] = again
        places = places[np.abs(again) > 2.0]
    found *= deviation
    return found.reshape(shape).astype(kind, copy=False)


def _scaled(spread: Callable[[int, int], float], draw: str) -> Fill:
    """Weights that keep the size of what passes through them."""

    def fill(bits: np.random.Philox, shape: tuple[int, ...], kind: Kind) -> Array:
        # [in, out] for matrices, as x @ w has it; [out, in, *kernel] for convolutions.
        field = math.prod(shape[2:])
        ins, outs = (
            (shape[0], shape[1]) if len(shape) == 2 else (shape[1] * field, shape[0] * field)
        )
        deviation = spread(max(ins, 1), max(outs, 1))
        if draw == "normal":
            return _normal(bits, shape, kind, deviation)
        return _even(bits, shape, kind, math.sqrt(3.0) * deviation)

    return fill


def _kaiming(ins: int, outs: int) -> float:
    return math.sqrt(2.0 / ins)


def _xavier(ins: int, outs: int) -> float:
    return math.sqrt(2.0 / (ins + outs))


def _lecun(ins: int, outs: int) -> float:
    return math.sqrt(1.0 / ins)


def _sinusoids(bits: np.random.Philox, shape: tuple[int, ...], kind: Kind) -> Array:
    if len(shape) != 2 or shape[1] % 2 or shape[1] < 4:
        raise ArgumentError(f"sinusoids fill a matrix of even width, at least 4, not {list(shape)}")
    pairs = shape[1] // 2
    angles = np.arange(shape[0])[:, None] * 10000.0 ** (-np.arange(pairs) / (pairs - 1))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(kind, copy=False)


def _constant(number: float) -> Fill:
    return lambda bits, shape, kind: np.full(shape, number, kind)


def _drawn(draw: Callable[[np.random.Philox, tuple[int, ...], Kind, float], Array]) -> Any:
    """Rules of a number from a function that draws as wide as it says."""
    return lambda number: lambda bits, shape, kind: draw(bits, shape, kind, number)


NUMBERED: dict[str, tuple[float, Callable[[float], Fill]]] = {
    "constant": (0.0, _constant),
    "normal": (0.02, _drawn(_normal)),
    "truncated_normal": (0.02, _drawn(_truncated)),
    "uniform": (0.05, _drawn(_even)),
}
"""Rules that take a number: what it is when left out, and the rule that it makes."""

PLAIN: dict[str, Fill] = {
    "zeros": _constant(0.0),
    "ones": _constant(1.0),
    "sinusoids": _sinusoids,
}

SCALED: dict[str, Fill] = {
    "kaiming": _scaled(_kaiming, "uniform"),
    "kaiming_normal": _scaled(_kaiming, "normal"),
    "kaiming_uniform": _scaled(_kaiming, "uniform"),
    "lecun": _scaled(_lecun, "normal"),
    "xavier": _scaled(_xavier, "uniform"),
    "xavier_normal": _scaled(_xavier, "normal"),
    "xavier_uniform": _scaled(_xavier, "uniform"),
}
"""Rules that fit the shape, which needs two axes at least."""

_FORM = re.compile(r"(\w+)(?:\(([^()]*)\))?")


def parse_rule(rule: Any) -> Fill:
    """The rule of a text, or an error that names the nearest one."""
    known = {**NUMBERED, **PLAIN, **SCALED}
    matched = _FORM.fullmatch(rule) if isinstance(rule, str) else None
    name, number = matched.groups() if matched else (str(rule), None)
    if name not in known:
        raise ArgumentError(f"there is no initialiser {rule!r}", hint=nearest(name, known))
    if name not in NUMBERED:
        if number is not None:
            raise ArgumentError(f"the initialiser '{name}' takes no number, got {rule!r}")
        return PLAIN[name] if name in PLAIN else SCALED[name]
    default, make = NUMBERED[name]
    try:
        value = default if number is None else float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ArgumentError(f"the initialiser '{name}' takes one number, got {rule!r}")
    return make(value)
