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
import warnings
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ..graph.arrays import as_array
from ..graph.data import Array
from ..graph.dims import format_shape
from ..graph.errors import ShapeError, listed
from ..graph.initial import SCALED, parse_rule
from ..graph.types import TensorType
from .config import Rule

GAINS = ("weight", "scale", "gain", "gamma")
"""Last words of the names of vectors that multiply: rules that fit a shape start them at 1, other vectors at 0."""


def check_rules(rules: Any) -> None:
    """Refuse an unknown initialiser before anything is built."""
    for rule in rules.values() if isinstance(rules, Mapping) else [rules]:
        if rule is not None and not callable(rule):
            parse_rule(rule)


def rule_for(name: str, rules: Rule | Mapping[str, Rule] | None, own: str | None) -> Rule | None:
    """The rule of a parameter: the only one, that of the first pattern that fits its name, or its own."""
    if not isinstance(rules, Mapping):
        return own if rules is None else rules
    return next((rule for pattern, rule in rules.items() if fnmatchcase(name, pattern)), own)


def initial_value(rule: Rule, name: str, type_: TensorType, seed: int) -> Array:
    """The value that a rule gives a parameter."""
    shape = tuple(int(size) for size in type_.shape)
    if callable(rule):
        value, _ = as_array(rule(name, type_, seed), f"the initialiser of '{name}'")
        if value.shape != shape:
            raise ShapeError(
                f"the initialiser of '{name}' gave {format_shape(value.shape)}, not {format_shape(shape)}"
            )
        return value.astype(type_.dtype.numpy)
    if rule in SCALED and len(shape) < 2:
        rule = "ones" if name.rsplit(".", 1)[-1] in GAINS and shape else "zeros"
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=16).digest()
    bits = np.random.Philox(key=np.frombuffer(digest, np.uint64))
    narrow = type_.dtype.is_float and type_.dtype.itemsize <= 4
    value = parse_rule(rule)(bits, shape, np.float32 if narrow else np.float64)
    return value.astype(type_.dtype.numpy, copy=False)


class ZeroParametersWarning(UserWarning):
    """A session begins to train parameters that are all 0 because nobody gave them values."""


def warn_of_zeros(graph: str, values: Mapping[str, Array]) -> None:
    """Say, before the first step, that layers of zeros learn nothing from each other: where two or more matrices that nobody gave values are all 0."""
    unset = [name for name, value in values.items() if not value.view(np.uint8).any()]
    if len(unset) < 2:
        return
    warnings.warn(
        f"the parameters {listed(map(repr, unset))} of graph '{graph}' are all 0 and were given no values: through layers of zeros no "
        "gradient comes; init='kaiming', a rule of each parameter, or set_parameter (init='zeros' where it is meant)",
        ZeroParametersWarning,
        stacklevel=5,
    )
