"""How parameters start: by name of a rule, with a seed.

The numbers of a parameter depend on the seed, its name and its shape alone, so that a model that grows keeps the rest.

    >>> from darner.graph.types import TensorType
    >>> initial_value("ones", "gain", TensorType.new((2,)), 0)
    array([1., 1.], dtype=float32)
    >>> a = initial_value("kaiming_normal", "w", TensorType.new((784, 128)), 7)
    >>> f"{a.std():.2f} is about {(2 / 784) ** 0.5:.2f}"
    '0.05 is about 0.05'
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ..graph.data import Array
from ..graph.dims import format_shape
from ..graph.errors import ArgumentError, ShapeError, nearest
from ..graph.types import TensorType
from .config import Rule

GAINS = ("weight", "scale", "gain", "gamma")
"""Last words of the names of vectors that multiply: they start at 1, other vectors at 0."""

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


def _scaled(spread: Callable[[int, int], float], draw: str) -> Fill:
    """Weights that keep the size of what passes through them; vectors start at 0 or 1 instead."""

    def fill(bits: np.random.Philox, shape: tuple[int, ...]) -> Array:
        # [in, out] for matrices, as x @ w has it; [out, in, *kernel] for convolutions.
        field = math.prod(shape[2:])
        ins, outs = (
            (shape[0], shape[1]) if len(shape) == 2 else (shape[1] * field, shape[0] * field)
        )
        deviation = spread(max(ins, 1), max(outs, 1))
        if draw == "normal":
            return deviation * _normal(bits, shape)
        return deviation * math.sqrt(3.0) * (2.0 * _unit(bits, shape) - 1.0)

    return fill


def _kaiming(ins: int, outs: int) -> float:
    return math.sqrt(2.0 / ins)


def _xavier(ins: int, outs: int) -> float:
    return math.sqrt(2.0 / (ins + outs))


def _lecun(ins: int, outs: int) -> float:
    return math.sqrt(1.0 / ins)


PLAIN: dict[str, Fill] = {
    "zeros": lambda bits, shape: np.zeros(shape),
    "ones": lambda bits, shape: np.ones(shape),
    "normal": lambda bits, shape: 0.02 * _normal(bits, shape),
    "uniform": lambda bits, shape: 0.1 * _unit(bits, shape) - 0.05,
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
"""Rules by name. ``normal`` has the deviation 0.02, ``uniform`` lies within 0.05 of 0; the others fit the shape."""


def check_rules(rules: Any) -> None:
    """Refuse an unknown initialiser before anything is built."""
    for rule in rules.values() if isinstance(rules, Mapping) else [rules]:
        if rule is not None and not callable(rule) and rule not in {**PLAIN, **SCALED}:
            raise ArgumentError(
                f"there is no initialiser {rule!r}", hint=nearest(str(rule), {**PLAIN, **SCALED})
            )


def rule_for(name: str, rules: Rule | Mapping[str, Rule] | None) -> Rule | None:
    """The rule of a parameter: the only one, or that of the first pattern that fits its name."""
    if not isinstance(rules, Mapping):
        return rules
    return next((rule for pattern, rule in rules.items() if fnmatchcase(name, pattern)), None)


def initial_value(rule: Rule, name: str, type_: TensorType, seed: int) -> Array:
    """The value that a rule gives a parameter."""
    shape = tuple(int(size) for size in type_.shape)
    if callable(rule):
        value = np.asarray(rule(name, type_, seed))
        if value.shape != shape:
            raise ShapeError(
                f"the initialiser of '{name}' gave {format_shape(value.shape)}, not {format_shape(shape)}"
            )
        return value.astype(type_.dtype.numpy)
    check_rules(rule)
    if rule in SCALED and len(shape) < 2:
        rule = "ones" if name.rsplit(".", 1)[-1] in GAINS and shape else "zeros"
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=16).digest()
    bits = np.random.Philox(key=np.frombuffer(digest, np.uint64))
    fill = PLAIN[rule] if rule in PLAIN else SCALED[rule]
    return fill(bits, shape).astype(type_.dtype.numpy)
