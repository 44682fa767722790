"""The words for what contractions multiply in."""

from __future__ import annotations

from typing import Literal, get_args

from .errors import ArgumentError, nearest

Precision = Literal["f32", "tf32", "bf16", "f16"]
"""What contractions of f32 operands multiply in."""

PRECISIONS: tuple[Precision, ...] = get_args(Precision)

TF32 = (8, 10)
"""Bits of exponent and mantissa of tf32, which NVIDIA's tensor cores multiply f32 in."""

SPELLINGS = {
    "bfloat16": "bf16",
    "float16": "f16",
    "fp16": "f16",
    "half": "f16",
    "tensorfloat32": "tf32",
    "float32": "f32",
    "fp32": "f32",
    "highest": "f32",
}
"""What others call these."""


def check_precision(value: object) -> Precision:
    """One of the words for a precision; another one is an error that names the nearest.

    >>> check_precision("bf16")
    'bf16'
    >>> check_precision("half")
    Traceback (most recent call last):
    darner.graph.errors.ArgumentError: precision is one of 'f32', 'tf32', 'bf16', 'f16', got 'half'; did you mean 'f16'?
    """
    for word in PRECISIONS:
        if value == word:
            return word
    known = ", ".join(f"'{word}'" for word in PRECISIONS)
    meant = SPELLINGS.get(str(value).lower().removeprefix("torch.").removeprefix("mixed_"))
    close = nearest(str(value), PRECISIONS) if meant is None else f"did you mean '{meant}'?"
    raise ArgumentError(f"precision is one of {known}, got {value!r}", hint=close)
