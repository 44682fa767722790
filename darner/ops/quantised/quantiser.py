"""Weights made into codes: what ``dequantize_blocks`` decodes, from floats."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...graph.arrays import as_array
from ...graph.data import Array
from ...graph.dims import format_shape
from ...graph.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError
from ...graph.integers import ceil_div
from .scheme import QuantScheme


class QuantizedWeights(NamedTuple):
    """Weights as they are stored.

    Attributes:
        codes: blocks of bytes of a packed scheme, or the codes of each element.
        scales: for each block and column, of schemes that have them beside the codes.
        offsets: the zero points beside them.
    """

    codes: Array
    scales: Array | None = None
    offsets: Array | None = None


def quantize_weights(weights: object, scheme: str) -> QuantizedWeights:
    """Floats as the codes of a scheme: ``Q8_0``, ``Q4_0``, ``Q4_1``, ``Int8Block``, ``Int8BlockAsym`` or ``Int4Block``. Halves round to the even code.

    Packed schemes take [..., K], whole blocks along the last axis, as ``dequant_matmul_packed`` has its weights [N, K]; the others take a matrix [K, N], as
    ``dequant_matmul`` has them.

    >>> w = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    >>> quantize_weights(w, "Q8_0").codes.shape
    (2, 34)
    >>> codes, scales, offsets = quantize_weights(w.T, QuantScheme.Int4Block(16))
    >>> codes.shape, scales.shape, offsets.shape
    ((32, 1), (2, 2), (2, 2))
    """
    known = QuantScheme(scheme)
    array, _ = as_array(weights, "weights")
    if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise DTypeError(f"weights are floats, not {array.dtype}")
    wide = array.astype(np.float64)
    if not np.isfinite(wide).all():
        raise ArgumentError(f"weights that are NaN or infinite have no codes in {known}")
    if known.is_packed:
        return QuantizedWeights(_packed(wide, known))
    if known.layout.scales not in ("scales", "offsets"):
        raise _no_quantiser(known)
    return _scaled(wide, known)


def _no_quantiser(scheme: QuantScheme) -> UnsupportedError:
    return UnsupportedError(
        f"there is no quantiser for {scheme}", hint="Q8_0, Q4_0, Q4_1 and the Int schemes have one"
    )


def _over(values: Array, scale: Array) -> Array:
    """Values in steps of a scale, rounded to the even whole number; a scale of 0 has none but 0."""
    steps = np.divide(values, scale, out=np.zeros_like(values), where=scale != 0)
    found: Array = np.round(steps)
    return found


def _halves(values: Array) -> Array:
    """Scales as they are stored: f16."""
    with np.errstate(over="ignore"):
        found = values.astype(np.float16)
    if not np.isfinite(found).all():
        raise ArgumentError(
            f"weights up to {np.abs(values).max():.3g} times their code have no scale in f16"
        )
    return found


# --------------------------------------------------------------------------- blocks of bytes


def _packed(weights: Array, scheme: QuantScheme) -> Array:
    if weights.ndim == 0 or weights.shape[-1] % scheme.block:
        raise ShapeError(
            f"rows must be whole blocks of {scheme.block} for {scheme}, not {format_shape(weights.shape)}"
        )
    pack = {"q8_0": _q8_0, "q4_0": _q4_0, "q4_1": _q4_1}.get(scheme.name)
    if pack is None:
        raise _no_quantiser(scheme)
    blocks = weights.reshape(-1, scheme.block)
    parts = pack(blocks) if len(blocks) else [np.zeros((0, scheme.layout.bytes), np.uint8)]
    rows = (*weights.shape[:-1], scheme.row_bytes(weights.shape[-1]))
    return np.ascontiguousarray(np.concatenate(parts, axis=1)).reshape(rows)


def _bytes(halves: Array) -> Array:
    return np.ascontiguousarray(halves.astype("<f2")).view(np.uint8)


def _pairs(codes: Array) -> Array:
    """Codes of 4 bits: those of the first half of a block in the low bits."""
    half = codes.shape[1] // 2
    whole = codes.astype(np.uint8)
    found: Array = whole[:, :half] | (whole[:, half:] << 4)
    return found


def _q8_0(blocks: Array) -> list[Array]:
    scale = _halves(np.abs(blocks).max(axis=1, keepdims=True) / 127)
    codes = np.clip(_over(blocks, scale.astype(np.float64)), -127, 127).astype(np.int8)
    return [_bytes(scale), codes.view(np.uint8)]


def _q4_0(blocks: Array) -> list[Array]:
    # The largest has the code that has no counterpart, -8.
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
    scale = _halves(largest / -8)
    codes = np.clip(_over(blocks, scale.astype(np.float64)) + 8, 0, 15)
    return [_bytes(scale), _pairs(codes)]


def _q4_1(blocks: Array) -> list[Array]:
    least = _halves(blocks.min(axis=1, keepdims=True))
    low = least.astype(np.float64)
    scale = _halves((blocks.max(axis=1, keepdims=True) - low) / 15)
    codes = np.clip(_over(blocks - low, scale.astype(np.float64)), 0, 15)
    return [_bytes(scale), _bytes(least), _pairs(codes)]


# --------------------------------------------------------------------------- scales beside the codes


def _scaled(weights: Array, scheme: QuantScheme) -> QuantizedWeights:
    if weights.ndim != 2:
        raise ShapeError(f"weights must be a matrix [K, N], not {format_shape(weights.shape)}")
    rows, columns = weights.shape
    nibble = scheme.layout.code == "nibble"
    if nibble and columns % 2:
        raise ShapeError(f"two codes share a byte, so N must be even, not {columns}")
    count = ceil_div(rows, scheme.block)
    # What a last block is short of changes neither its least nor its largest.
    whole = np.pad(
        weights, ((0, count * scheme.block - rows), (0, 0)), mode="edge" if rows else "constant"
    )
    blocks = whole.reshape(count, scheme.block, columns)
    low, high = blocks.min(axis=1, initial=0.0), blocks.max(axis=1, initial=0.0)
    offsets: Array | None = None
    least, most = (0, 15) if nibble else (-128, 127)
    if scheme.layout.scales == "scales":
        scales = np.maximum(-low, high) / 127
    else:
        scales = (high - low) / (most - least)
        offsets = least - _over(low, scales.astype(np.float32).astype(np.float64))
    scales = scales.astype(np.float32)
    steps = _over(blocks, scales.astype(np.float64)[:, None, :])
    if offsets is not None:
        steps = steps + offsets[:, None, :]
    codes = np.clip(steps, least, most).reshape(whole.shape)[:rows]
    offsets = None if offsets is None else offsets.astype(np.float32)
    if nibble:
        small = codes.astype(np.uint8)
        return QuantizedWeights(small[:, ::2] | (small[:, 1::2] << 4), scales, offsets)
    return QuantizedWeights(codes.astype(np.int8), scales, offsets)
