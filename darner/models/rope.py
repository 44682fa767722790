"""Rotary positions as configurations describe them: plain, or stretched for longer texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..graph.data import Array
from ..graph.errors import ArgumentError, nearest
from ..io.reading import shown
from ..nn.attention import Rope
from .fields import NOT_NEGATIVE, POSITIVE, Range, as_table, check_number

Found = tuple[Array, float]
"""Angles a position for each pair, and a factor of cosines and sines."""


NUMBERS: dict[str, Range] = {
    "rope_theta": POSITIVE,
    "partial_rotary_factor": Range(0, 1, open_low=True),
    "factor": POSITIVE,
    "low_freq_factor": POSITIVE,
    "high_freq_factor": POSITIVE,
    "attention_factor": POSITIVE,
    "beta_fast": POSITIVE,
    "beta_slow": POSITIVE,
    "mscale": NOT_NEGATIVE,
    "mscale_all_dim": NOT_NEGATIVE,
}
"""What numbers of ``rope_parameters`` may be."""
OF_KIND: dict[tuple[str, str], Range] = {
    ("dynamic", "factor"): Range(1),
    ("yarn", "rope_theta"): Range(1, open_low=True),
}
"""Where a ``rope_type`` is more particular."""
NEEDED: dict[str, tuple[str, ...]] = {
    "default": (),
    "dynamic": ("factor",),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("long_factor", "short_factor"),
    "yarn": (),
}
"""What each ``rope_type`` cannot do without."""


def rope_parameters(found: dict[str, Any], default_theta: float = 10000.0) -> dict[str, Any]:
    """``rope_parameters`` of a configuration, also from the older ``rope_theta`` and ``rope_scaling``; these are taken out."""
    scaling = as_table("rope_scaling", found.pop("rope_scaling", None))
    theta = found.pop("rope_theta", None)
    given = as_table("rope_parameters", found.pop("rope_parameters", None))
    merged = {**scaling, **given}
    if "type" in merged:
        merged.setdefault("rope_type", merged.pop("type"))
    merged.setdefault("rope_type", "default")
    merged.setdefault("rope_theta", default_theta if theta is None else theta)
    return merged


def check_rope(parameters: Mapping[str, Any], head_dim: int) -> None:
    """Refuse rotary positions that cannot be computed.

    >>> check_rope({"rope_type": "linear", "rope_theta": 10000.0, "factor": 0}, 64)
    Traceback (most recent call last):
    darner.graph.errors.ArgumentError: factor of rope_type 'linear' is a number above 0, got 0

    Raises:
        ArgumentError: it names the field, what was given, and what it may be.
    """
    kind = parameters.get("rope_type", "default")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ArgumentError(
            f"there is no rope_type {shown(kind)}",
            hint=nearest(str(kind)[:100], KINDS, "there are"),
        )
    given = {name: value for name, value in parameters.items() if value is not None}
    missing = [name for name in ("rope_theta", *NEEDED[kind]) if name not in given]
    if missing:
        raise ArgumentError(f"rope_type '{kind}' needs {', '.join(missing)}")
    for name, range_ in NUMBERS.items():
        if name in given:
            range_ = OF_KIND.get((kind, name), range_)
            check_number(f"{name} of rope_type '{kind}'", given[name], range_)
    if "original_max_position_embeddings" in given:
        name = f"original_max_position_embeddings of rope_type '{kind}'"
        check_number(name, given["original_max_position_embeddings"], Range(2, 2**31), whole=True)
    for low, high in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
        if low in given and high in given and given[low] >= given[high]:
            raise ArgumentError(f"{low} is below {high}, got {given[low]} and {given[high]}")
    turning = int(head_dim * given.get("partial_rotary_factor", 1.0))
    if turning < (4 if kind == "dynamic" else 2) or turning % 2:
        raise ArgumentError(
            f"rotary positions turn pairs of a head's elements, but {turning} of its {head_dim} turn"
        )
    for name in NEEDED["longrope"] if kind == "longrope" else ():
        factors = given[name]
        if not isinstance(factors, list | tuple) or len(factors) != turning // 2:
            raise ArgumentError(
                f"{name} is a list of {turning // 2} numbers, one for each pair of elements that turns, got {shown(factors)}"
            )
        for one in factors:
            check_number(f"each of {name}", one, POSITIVE)


def make_rope(
    parameters: Mapping[str, Any],
    head_dim: int,
    *,
    max_positions: int,
    limit: int,
    original_positions: int | None = None,
) -> Rope:
    """The layer that ``rope_parameters`` describe, for positions below ``limit``."""
    check_rope(parameters, head_dim)
    given = {name: value for name, value in parameters.items() if value is not None}
    kind = given.get("rope_type", "default")
    n_rot = int(head_dim * given.get("partial_rotary_factor", 1.0))
    theta = float(given["rope_theta"])
    if kind == "default":
        return Rope(head_dim, theta, None if n_rot == head_dim else n_rot)
    known = {
        "max_position_embeddings": max_positions,
        "original_max_position_embeddings": original_positions or max_positions,
    }
    with np.errstate(all="ignore"):
        frequencies, factor = KINDS[kind]({**known, **given}, n_rot, limit)
    if not (np.isfinite(frequencies).all() and math.isfinite(factor)):
        raise ArgumentError(f"the rope_parameters {shown(dict(given))} give no finite angles")
    return Rope(
        head_dim,
        theta,
        frequencies=tuple(float(one) for one in frequencies),
        factor=float(factor),
    )


def _plain(p: Mapping[str, Any], n_rot: int, limit: int) -> Found:
    exponents = np.arange(0, n_rot, 2) / n_rot
    return float(p["rope_theta"]) ** -exponents, 1.0


def _linear(p: Mapping[str, Any], n_rot: int, limit: int) -> Found:
    return _plain(p, n_rot, limit)[0] / p["factor"], 1.0


def _dynamic(p: Mapping[str, Any], n_rot: int, limit: int) -> Found:
    """As if trained with a greater theta, once texts are longer than those of training."""
    most = p["max_position_embeddings"]
    stretch = p["factor"] * max(limit, most) / most - (p["factor"] - 1)
    theta = float(p["rope_theta"]) * stretch ** (n_rot / (n_rot - 2))
    return _plain({"rope_theta": theta}, n_rot, limit)


def _llama3(p: Mapping[str, Any], n_rot: int, limit: int) -> Found:
    """Long waves are stretched, short ones are not, and those between by degrees."""
    plain = _plain(p, n_rot, limit)[0]
    original = p["original_max_position_embeddings"]
    turns = original * plain / (2.0 * math.pi)  # over the texts of training
    low, high = p["low_freq_factor"], p["high_freq_factor"]
    share = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1.0 - share) * plain / p["factor"] + share * plain, 1.0


def _yarn(p: Mapping[str, Any], n_rot: int, limit: int) -> Found:
    original = p["original_max_position_embeddings"]
    factor = p.get("factor") or p["max_position_embeddings"] / original
    plain = _plain(p, n_rot, limit)[0]

    def pair_of(turns: float) -> float:
        """Which pair turns this often over the texts of training."""
        wave = math.log(original / (turns * 2.0 * math.pi))
        return n_rot * wave / (2.0 * math.log(p["rope_theta"]))

    low, high = pair_of(p.get("beta_fast") or 32), pair_of(p.get("beta_slow") or 1)
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n_rot - 1)
    high = high + 0.001 if low == high else high
    stretched = np.clip((np.arange(n_rot // 2) - low) / (high - low), 0.0, 1.0)
    frequencies = plain / factor * stretched + plain * (1.0 - stretched)
    return frequencies, _yarn_factor(p, factor)


def _yarn_factor(p: Mapping[str, Any], factor: float) -> float:
    if p.get("attention_factor") is not None:
        return float(p["attention_factor"])

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if p.get("mscale") and p.get("mscale_all_dim"):
        return scale(p["mscale"]) / scale(p["mscale_all_dim"])
    return scale(1.0)


def _longrope(p: Mapping[str, Any], n_rot: int, limit: int) -> Found:
    """A factor for each pair, one set for texts as long as those of training, another for longer ones."""
    original = p["original_max_position_embeddings"]
    stretch = p["long_factor"] if limit > original else p["short_factor"]
    factor = p.get("factor") or p["max_position_embeddings"] / original
    given = p.get("attention_factor")
    if given is None:
        given = 1.0 if factor <= 1 else math.sqrt(1.0 + math.log(factor) / math.log(original))
    return _plain(p, n_rot, limit)[0] / np.asarray(stretch, np.float64), given


KINDS: dict[str, Callable[[Mapping[str, Any], int, int], Found]] = {
    "default": _plain,
    "dynamic": _dynamic,
    "linear": _linear,
    "llama3": _llama3,
    "longrope": _longrope,
    "yarn": _yarn,
}
"""How each ``rope_type`` finds its frequencies."""
