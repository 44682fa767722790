"""What the fields of configurations may be: types as the classes declare them, and ranges by name, in one table.

>>> from darner.models.llama import LlamaConfig
>>> LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=10**9, num_attention_heads=4)
Traceback (most recent call last):
darner.graph.errors.ArgumentError: num_hidden_layers is a whole number from 1 to 4,096, got 1000000000
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from ..graph.errors import ArgumentError
from ..io.reading import shown

INFINITE = math.inf
_MOST = 1e300


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``; ``open_low`` and ``open_high`` leave the ends out."""

    low: float = -INFINITE
    high: float = INFINITE
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: float) -> bool:
        if not -_MOST < value < _MOST:  # also what is no number, and what no float holds
            return False
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below

    def __str__(self) -> str:
        if math.isinf(self.low) and math.isinf(self.high):
            return "that is finite"
        low = f"above {self.low:,}" if self.open_low else f"from {self.low:,}"
        if math.isinf(self.high):
            return low if self.open_low else f"of at least {self.low:,}"
        return f"{low} to {'below ' if self.open_high else ''}{self.high:,}"


SIZE = Range(1, 2**31 - 1)
"""Of whole numbers that the table does not name: most are sizes."""
NUMBER = Range()
"""Of other numbers."""
LAYERS = Range(1, 4096)
WIDTH = Range(1, 2**24)
HEADS = Range(1, 2**16)
SIDE = Range(1, 2**16)
COUNT = Range(0, 2**31 - 1)
SHARE = Range(0, 1, open_high=True)
POSITIVE = Range(0, open_low=True)
NOT_NEGATIVE = Range(0)


def _named(names: str, range_: Range) -> dict[str, Range]:
    return dict.fromkeys(names.split(), range_)


RANGES: dict[str, Range] = {
    **_named(
        "num_hidden_layers n_layer encoder_layers decoder_layers num_vlm_layers depths", LAYERS
    ),
    **_named("layers_per_block transformer_layers_per_block", LAYERS),
    **_named(
        "hidden_size intermediate_size n_embd n_inner d_model encoder_ffn_dim decoder_ffn_dim",
        WIDTH,
    ),
    **_named(
        "embedding_size hidden_sizes block_out_channels projection_dim cross_attention_dim", WIDTH
    ),
    **_named(
        "num_attention_heads num_key_value_heads head_dim n_head encoder_attention_heads", HEADS
    ),
    **_named("decoder_attention_heads attention_head_dim num_channels num_mel_bins", HEADS),
    **_named("in_channels out_channels max_state_dim max_action_dim", HEADS),
    **_named("image_size patch_size sample_size scale_factor", SIDE),
    **_named(
        "eos_token_id image_token_id steps_offset downsample_padding max_window_layers", COUNT
    ),
    **_named("self_attn_every_n_layers", COUNT),
    "pad_token_id": Range(-1, 2**31 - 1),
    "num_expert_layers": Range(-1, LAYERS.high),
    "num_train_timesteps": Range(1, 1_000_000),
    **_named("hidden_dropout_prob attention_probs_dropout_prob attention_dropout dropout", SHARE),
    **_named("activation_dropout resid_pdrop embd_pdrop attn_pdrop classifier_dropout", SHARE),
    **_named("rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps", Range(0, 1)),
    **_named("initializer_range init_std initializer_factor", NOT_NEGATIVE),
    **_named("final_logit_softcapping attn_logit_softcapping min_period max_period", POSITIVE),
    **_named("clip_sample_range", POSITIVE),
    "expert_width_multiplier": Range(0, 1024, open_low=True),
    **_named("beta_start beta_end", SHARE),
}
"""What fields may be, by their names, which mean the same in all architectures."""


def check_fields(config: Any, ranges: Mapping[str, Range] = RANGES) -> None:
    """Refuse a configuration with a field of another type than it is declared with, or outside of its range.

    Raises:
        ArgumentError: it names the field, what was given, and what it may be.
    """
    for name, hint in _hints(config.__class__).items():
        value = getattr(config, name)
        if not _fits(value, hint, ranges.get(name)):
            raise ArgumentError(
                f"{name} is {_expected(hint, ranges.get(name))}, got {shown(value)}"
            )


def check_number(name: str, value: Any, range_: Range, *, whole: bool = False) -> None:
    """Refuse a single number that is none, or outside of its range."""
    kind: type = int if whole else float
    if not _is_number(value, kind, range_):
        raise ArgumentError(f"{name} is {_number_words(kind, range_)}, got {shown(value)}")


def as_table(name: str, value: Any) -> Mapping[str, Any]:
    """A table of a configuration; nothing where it is null."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ArgumentError(f"{name} is a table, got {shown(value)}")
    return value


@cache
def _hints(kind: Any) -> dict[str, Any]:
    found = get_type_hints(kind)
    return {one.name: found[one.name] for one in fields(kind)}


def _is_number(value: Any, kind: type, range_: Range) -> bool:
    is_one = isinstance(value, int) or (kind is float and isinstance(value, float))
    return is_one and not isinstance(value, bool) and value in range_


def _fits(value: Any, hint: Any, range_: Range | None) -> bool:
    """Whether a value is of a declared type; whole numbers are numbers, and true is neither."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part, range_) for part in get_args(hint))
    if origin is tuple:
        parts = get_args(hint)
        if not isinstance(value, tuple):
            return False
        if parts[-1] is not Ellipsis and len(parts) != len(value):
            return False
        return all(_fits(one, parts[0], range_) for one in value)
    if hint is int:
        return _is_number(value, int, range_ or SIZE)
    if hint is float:
        return _is_number(value, float, range_ or NUMBER)
    kind = Mapping if origin is not None and issubclass(origin, Mapping) else hint
    return hint is Any or isinstance(value, kind)


def _number_words(kind: type, range_: Range) -> str:
    return f"{'a whole number' if kind is int else 'a number'} {range_}"


def _expected(hint: Any, range_: Range | None) -> str:
    """A declared type in words."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _or(_expected(part, range_) for part in get_args(hint))
    if origin is tuple:
        parts = get_args(hint)
        many = "a list" if parts[-1] is Ellipsis else f"a list of {len(parts)}"
        return f"{many}, each {_expected(parts[0], range_)}"
    if hint is int:
        return _number_words(int, range_ or SIZE)
    if hint is float:
        return _number_words(float, range_ or NUMBER)
    known = {bool: "true or false", str: "a text", NoneType: "null"}
    return known.get(hint, "a table")


def _or(words: Iterable[str]) -> str:
    return " or ".join(words)
