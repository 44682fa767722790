"""How a tensor is filled at first: rules by name, perhaps with a number, such as ``"normal(0.02)"``.

    >>> parse_rule("ones")(np.random.Philox(key=7), (2,))
    array([1., 1.])
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
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from .data import Array
from .errors import ArgumentError, nearest

Fill = Callable[[np.random.Philox, tuple[int, ...]], Array]


def _unit(bits: np.random.Philox, shape: tuple[int, ...]) -> Array:
    """Numbers in [0, 1), 53 bits each, straight from the counter."""
    count = math.prod(shape)
    raw = np.asarray(bits.random_raw(count), np.uint64)
    return ((raw >> np.uint64(11)) * 2.0**-53).reshape(shape)


def _normal(bits: np.random.Philox, shape: tuple[int, ...]) -> Array:
    """Box and Muller's transform."""
    both = _unit(bits, (2, *shape))
    result: Array = np.sqrt(-2.0 * np.log1p(-both[0])) * np.cos(2.0 * np.pi * both[1])
    return result


def _truncated(bits: np.random.Philox, shape: tuple[int, ...]) -> Array:
    """Normal numbers, those beyond 2 drawn anew until none is."""
    found = _normal(bits, shape)
    while (outside := np.abs(found) > 2.0).any():
        found[outside] = _normal(bits, (int(outside.sum()),))
    return found


def _even(bits: np.random.Philox, shape: tuple[int, ...]) -> Array:
    return 2.0 * _unit(bits, shape) - 1.0


def _scaled(spread: Callable[[int, int], float], draw: str) -> Fill:
    """Weights that keep the size of what passes through them."""

    def fill(bits: np.random.Philox, shape: tuple[int, ...]) -> Array:
        # [in, out] for matrices, as x @ w has it; [out, in, *kernel] for convolutions.
        field = math.prod(shape[2:])
        ins, outs = (
            (shape[0], shape[1]) if len(shape) == 2 else (shape[1] * field, shape[0] * field)
        )
        deviation = spread(max(ins, 1), max(outs, 1))
        if draw == "normal":
            return deviation * _normal(bits, shape)
        return deviation * math.sqrt(3.0) * _even(bits, shape)

    return fill


def _kaiming(ins: int, outs: int) -> float:
    return math.sqrt(2.0 / ins)


def _xavier(ins: int, outs: int) -> float:
    return math.sqrt(2.0 / (ins + outs))


def _lecun(ins: int, outs: int) -> float:
    return math.sqrt(1.0 / ins)


def _sinusoids(bits: np.random.Philox, shape: tuple[int, ...]) -> Array:
    if len(shape) != 2 or shape[1] % 2 or shape[1] < 4:
        raise ArgumentError(f"sinusoids fill a matrix of even width, at least 4, not {list(shape)}")
    pairs = shape[1] // 2
    angles = np.arange(shape[0])[:, None] * 10000.0 ** (-np.arange(pairs) / (pairs - 1))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


NUMBERED: dict[str, tuple[float, Callable[[float], Fill]]] = {
    "constant": (0.0, lambda number: lambda bits, shape: np.full(shape, number)),
    "normal": (0.02, lambda number: lambda bits, shape: number * _normal(bits, shape)),
    "truncated_normal": (0.02, lambda number: lambda bits, shape: number * _truncated(bits, shape)),
    "uniform": (0.05, lambda number: lambda bits, shape: number * _even(bits, shape)),
}
"""Rules that take a number: what it is when left out, and the rule that it makes."""

PLAIN: dict[str, Fill] = {
    "zeros": lambda bits, shape: np.zeros(shape),
    "ones": lambda bits, shape: np.ones(shape),
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
