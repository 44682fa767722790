"""Rotary positions as configurations describe them: plain, or stretched for longer texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..graph.data import Array
from ..graph.errors import ArgumentError, nearest
from ..nn.attention import Rope

Found = tuple[Array, float]
"""Angles a position for each pair, and a factor of cosines and sines."""


def rope_parameters(found: dict[str, Any], default_theta: float = 10000.0) -> dict[str, Any]:
    """``rope_parameters`` of a configuration, also from the older ``rope_theta`` and ``rope_scaling``; these are taken out."""
    scaling = _object(found, "rope_scaling")
    theta = found.pop("rope_theta", None)
    given = _object(found, "rope_parameters")
    merged = {**scaling, **given}
    if "type" in merged:
        merged.setdefault("rope_type", merged.pop("type"))
    merged.setdefault("rope_type", "default")
    merged.setdefault("rope_theta", default_theta if theta is None else theta)
    return merged


def _object(found: dict[str, Any], name: str) -> dict[str, Any]:
    value = found.pop(name, None) or {}
    if not isinstance(value, Mapping):
        raise ArgumentError(f"{name} is an object with a rope_type, got {value!r}")
    return dict(value)


def make_rope(
    parameters: Mapping[str, Any],
    head_dim: int,
    *,
    max_positions: int,
    limit: int,
    original_positions: int | None = None,
) -> Rope:
    """The layer that ``rope_parameters`` describe, for positions below ``limit``."""
    kind = parameters["rope_type"]
    if not isinstance(kind, str) or kind not in KINDS:
        raise ArgumentError(
            f"there is no rope_type {kind!r}", hint=nearest(str(kind), KINDS, "there are")
        )
    known = {
        "max_position_embeddings": max_positions,
        "original_max_position_embeddings": original_positions or max_positions,
    }
    try:
        return _made({**known, **parameters}, head_dim, limit)
    except KeyError as error:
        raise ArgumentError(f"rope_type '{kind}' needs {error}") from error
    except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(
            f"rope_parameters have a value that rope_type '{kind}' cannot use: {dict(parameters)}"
        ) from error


def _made(parameters: Mapping[str, Any], head_dim: int, limit: int) -> Rope:
    kind = parameters["rope_type"]
    n_rot = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
    if kind == "default":
        whole = n_rot == head_dim
        return Rope(head_dim, float(parameters["rope_theta"]), None if whole else n_rot)
    frequencies, factor = KINDS[kind](parameters, n_rot, limit)
    return Rope(
        head_dim,
        float(parameters["rope_theta"]),
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
    if len(stretch) != n_rot // 2:
        raise ArgumentError(
            f"longrope has {len(stretch)} factors, where {n_rot // 2} pairs of elements turn"
        )
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
