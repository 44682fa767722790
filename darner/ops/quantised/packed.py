"""Quantised weights in products: decoded where they are read, never kept as floats.

``dequantize_blocks`` is the one op that turns stored weights into floats, by the decoders of ``block_formats``. A product that reads one decodes it as it goes, so that a
model's weights stay in memory as they are in its file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypedDict, Unpack, cast

import numpy as np

from ...graph import dtypes
from ...graph.attributes import Free
from ...graph.data import Array
from ...graph.dims import Dim, divide, format_shape
from ...graph.dtypes import DType
from ...graph.errors import ArgumentError, DTypeError, ShapeError
from ...graph.facts import Facts
from ...graph.integers import ceil_div
from ...graph.node import Node
from ...graph.op import Resolved, primitive, resolved
from ...graph.types import TensorType
from ..axes import spread
from ..samples import Sample, Spec, ints, sample, spec
from ..shapes.primitives import reshape
from .block_formats import Block, Number, Place, half_of
from .quantise import FAMILY
from .scheme import QuantScheme, Scheme

Cotangents: TypeAlias = Mapping[str, Callable[[], Node]]


# --------------------------------------------------------------------------- shapes


def _check_codes(codes: TensorType, scheme: QuantScheme) -> None:
    wanted = dtypes.i8 if scheme.layout.code == "i8" else dtypes.u8
    if codes.dtype is not wanted:
        raise DTypeError(f"codes of {scheme} must be {wanted}, not {codes.dtype}")


def _unpacked(codes: TensorType, scheme: QuantScheme) -> tuple[Dim, ...]:
    """The shape of what packed codes stand for."""
    if codes.rank == 0:
        raise ShapeError(f"codes of {scheme} are rows of blocks, not a scalar")
    size = scheme.layout.bytes
    count = codes.shape[-1]
    whole = divide(count, size) if not isinstance(count, int) or count % size == 0 else None
    if whole is None:
        raise ShapeError(
            f"rows have {count} bytes, which is no whole number of blocks of {scheme} of {size}"
        )
    return (*codes.shape[:-1], whole * scheme.block)


def _check_beside(name: str, beside: TensorType | None, shape: tuple[Dim, ...]) -> TensorType:
    if beside is None:
        raise ArgumentError(f"{name} are needed: {format_shape(shape)}")
    if beside.shape != shape:
        raise ShapeError(f"{name} must be {format_shape(shape)}, not {format_shape(beside.shape)}")
    return beside


def _scaled_shape(
    codes: TensorType,
    scales: TensorType | None,
    offsets: TensorType | None,
    scheme: QuantScheme,
) -> tuple[Dim, ...]:
    """The shape of what codes stand for that have their scales beside them."""
    least = 1 if scheme.layout.scales == "none" else 2
    if codes.rank < least:
        raise ShapeError(f"codes of {scheme} are matrices [K, N], not {format_shape(codes.shape)}")
    shape = codes.shape
    if scheme.layout.code == "nibble":
        shape = (*shape[:-1], shape[-1] * 2)
    wanted = scheme.layout.scales
    if wanted == "none":
        return shape
    rows = shape[-2]
    if not isinstance(rows, int):
        raise ShapeError(f"the rows of {scheme} must be a number, not {rows}")
    if wanted == "codes" and rows % scheme.block:
        raise ShapeError(f"{rows} rows are no whole number of blocks of {scheme.block}")
    beside = (*shape[:-2], ceil_div(rows, scheme.block), shape[-1])
    found = _check_beside("scales", scales, beside)
    if wanted == "codes":
        if found.dtype is not dtypes.u8:
            raise DTypeError(f"scales of {scheme} must be u8, not {found.dtype}")
    elif not found.dtype.is_float:
        raise DTypeError(f"scales of {scheme} must be floats, not {found.dtype}")
    if wanted == "offsets":
        points = _check_beside("offsets", offsets, beside)
        if not (points.dtype.is_float or points.dtype.is_int):
            raise DTypeError(f"offsets of {scheme} must be floats or integers, not {points.dtype}")
    return shape


# --------------------------------------------------------------------------- the primitive


class _Stored(TypedDict):
    """The attributes of ``dequantize_blocks``."""

    scheme: str
    to: DType


def _bytes(*shape: int) -> Spec:
    return ints(*shape, high=256, dtype="u8")


def _zeroed(*shape: int) -> Spec:
    """Bytes whose f16 are numbers, wherever in a block they lie."""
    return ints(*shape, high=60, dtype="u8")


_SCALES = spec(3, 6, low=0.01, high=0.1)
_POINTS = spec(3, 6, low=0.0, high=15.0)

SAMPLES: list[Sample] = [
    sample(ints(5, 6, low=-128, high=128, dtype="i8"), _SCALES, scheme="int8_block(2)"),
    sample(
        ints(6, 6, low=-128, high=128, dtype="i8"), _SCALES, _POINTS, scheme="int8_block_asym(2)"
    ),
    sample(_bytes(7, 3), _SCALES, _POINTS, scheme="int4_block(3)"),
    sample(_bytes(2, 3, 1), spec(2, 1, 2), ints(2, 1, 2, high=9), scheme="int4_block(32)"),
    sample(ints(4, 5, high=120, dtype="u8"), scheme="fp8_e4m3"),
    sample(ints(7, high=120, dtype="u8"), scheme="fp8_e5m2"),
    sample(_bytes(32, 3), ints(2, 6, high=120, dtype="u8"), scheme="nvfp4_block"),
    sample(_zeroed(3, 36), scheme="q4_0"),
    sample(_zeroed(2, 1, 40), scheme="q4_1"),
    sample(_zeroed(22), scheme="q5_0"),
    sample(_zeroed(2, 24), scheme="q5_1"),
    sample(_zeroed(3, 68), scheme="q8_0"),
    sample(_zeroed(2, 84), scheme="q2_k"),
    sample(_zeroed(1, 220), scheme="q3_k"),
    sample(_zeroed(2, 144), scheme="q4_k"),
    sample(_zeroed(2, 176), scheme="q5_k"),
    sample(_zeroed(2, 210), scheme="q6_k"),
    sample(_zeroed(2, 292), scheme="q8_k"),
    sample(_zeroed(0, 34), scheme="q8_0"),
]


@primitive(family=FAMILY, facts=Facts(role="point", decodes=True, effort="some"), samples=SAMPLES)
def dequantize_blocks(
    codes: Free,
    scales: Free | None = None,
    offsets: Free | None = None,
    *,
    scheme: Scheme,
    to: DType = dtypes.f32,
) -> Resolved:
    """What stored weights stand for, by ``scheme`` (a ``QuantScheme`` or its name).

    Packed schemes (``Q4_K`` and the others of GGUF) take u8 [..., row bytes] and give [..., K]. Others take codes [..., K, N] with ``scales``, and with ``offsets``
    where codes have a zero point, one for each block of rows and column; two codes of 4 bits share a byte along N. A product that reads the result decodes it
    as it goes: it is never in memory. The result is f32, or f64 where the scales or ``to`` are.
    """
    known = QuantScheme(scheme)
    _check_codes(codes, known)
    if scales is not None and scales.dtype is dtypes.f64:
        to = dtypes.f64
    if to not in (dtypes.f32, dtypes.f64):
        raise DTypeError(f"weights are decoded to f32 or f64, not {to}")
    beside = {"none": 0, "scales": 1, "codes": 1, "offsets": 2}[known.layout.scales]
    for name, extra in (("scales", scales), ("offsets", offsets))[beside:]:
        if extra is not None:
            raise ArgumentError(f"{known} has no {name} beside its codes")
    if known.is_packed:
        shape = _unpacked(codes, known)
    else:
        shape = _scaled_shape(codes, scales, offsets, known)
    return resolved(TensorType(shape, to), to=to)


@dequantize_blocks.vjp
def _(
    g: Node,
    out: Node,
    codes: Node,
    scales: Node | None,
    offsets: Node | None,
    **attrs: Unpack[_Stored],
) -> Cotangents:
    scheme = QuantScheme(attrs["scheme"])
    found: dict[str, Callable[[], Node]] = {}
    if scales is None or not scales.dtype.is_float:
        return found
    rows = int(codes.shape[-2])

    def of_blocks(x: Node) -> Node:
        """The sums of the blocks of each column."""
        left = int(scales.shape[-2]) * scheme.block - rows
        whole = x.pad([(0, 0)] * (x.rank - 2) + [(0, left), (0, 0)]) if left else x
        result: Node = reshape(whole, (*scales.shape[:-1], scheme.block, scales.shape[-1])).sum(-2)
        return result

    def by_scale() -> Node:
        ones = scales.graph.full(scales.shape, 1.0, scales.dtype)
        centred = dequantize_blocks(codes, ones, offsets, **attrs)
        result: Node = of_blocks(g * centred).cast(scales.dtype)
        return result

    def by_offset() -> Node:
        result: Node = (of_blocks(g) * -scales.cast(g.dtype)).cast(out_type)
        return result

    found["scales"] = by_scale
    if offsets is not None and offsets.dtype.is_float:
        out_type = offsets.dtype
        found["offsets"] = by_offset
    return found


@dequantize_blocks.vmap
def _(
    size: Dim,
    batched: dict[str, bool],
    codes: Node,
    scales: Node | None,
    offsets: Node | None,
    **attrs: Unpack[_Stored],
) -> Node:
    given = {"codes": codes, "scales": scales, "offsets": offsets}
    all_of_them = {
        name: x if x is None or batched[name] else spread(x, size) for name, x in given.items()
    }
    result: Node = dequantize_blocks(**all_of_them, **attrs)
    return result


# --------------------------------------------------------------------------- its meaning, in arrays


@dataclass(frozen=True)
class _Arrays:
    """The blocks of elements as arrays: ``Block`` of the decoders.

    Attributes:
        kind: the element type of floats.
        data: the bytes of all blocks, one a row.
        codes: of all elements, where they have their scales beside them.
        scales: of all elements.
        offsets: of all elements.
    """

    kind: np.dtype[np.floating]
    data: Array | None = None
    codes: Array | None = None
    scales: Array | None = None
    offsets: Array | None = None

    def byte(self, place: Array) -> Array:
        return self._data[:, place].astype(np.int32)

    def signed(self, place: Array) -> Array:
        return self._data.view(np.int8)[:, place].astype(np.int32)

    def half(self, place: int) -> Array:
        low, high = (self._data[:, place + i : place + i + 1].astype(np.int32) for i in (0, 1))
        return cast(Array, half_of(cast(Block, self), cast(Number, low | (high << 8))))

    def single(self, place: int) -> Array:
        return self._four(place).view("<f4").astype(self.kind)

    def word(self, place: int) -> Array:
        return self._four(place).view("<i4")

    def _four(self, place: int) -> Array:
        return np.ascontiguousarray(self._data[:, place : place + 4])

    @property
    def _data(self) -> Array:
        if self.data is None:
            raise ArgumentError("this scheme has no blocks of bytes")
        return self.data

    @staticmethod
    def right(bits: Array, by: Array | int) -> Array:
        found: Array = bits >> by
        return found

    @staticmethod
    def left(bits: Array, by: int) -> Array:
        return bits << np.int32(by)

    def float(self, number: Array) -> Array:
        return number.astype(self.kind)

    def of_bits(self, bits: Array) -> Array:
        return bits.astype(np.int32).view(np.float32).astype(self.kind)

    @staticmethod
    def where(place: Array, limit: int, below: Array, above: Array) -> Array:
        return np.where(place < limit, below, above)

    @staticmethod
    def pick(number: Array, equal: int, then: Array, otherwise: Array) -> Array:
        return np.where(number == equal, then, otherwise)

    def code(self) -> Array | None:
        return self.codes

    def scale(self) -> Array | None:
        return self.scales

    def scale_code(self) -> Array | None:
        return self.scales

    def offset(self) -> Array | None:
        return self.offsets


def _all_of(scheme: QuantScheme, block: _Arrays, places: Array) -> Array:
    """All elements, by the decoder of a scheme."""
    found = scheme.layout.decode(cast(Block, block), cast(Place, places))
    return np.asarray(found, block.kind)


def decoded(scheme: QuantScheme, codes: Array, kind: DType = dtypes.f32) -> Array:
    """What packed bytes [..., row bytes] stand for, [..., K].

    >>> import numpy as np
    >>> decoded(QuantScheme.GgufQ8_0, np.zeros((2, 34), np.uint8)).shape
    (2, 32)
    """
    rows = (*codes.shape[:-1], codes.shape[-1] // scheme.layout.bytes * scheme.block)
    blocks = _Arrays(kind.numpy, np.ascontiguousarray(codes).reshape(-1, scheme.layout.bytes))
    return _all_of(scheme, blocks, np.arange(scheme.block)).reshape(rows)


def _split_nibbles(codes: Array) -> Array:
    both = np.stack([codes & 15, codes >> 4], axis=-1)
    return both.reshape(*codes.shape[:-1], 2 * codes.shape[-1])


@dequantize_blocks.reference
def _(
    codes: Array,
    scales: Array | None,
    offsets: Array | None,
    **attrs: Unpack[_Stored],
) -> Array:
    scheme, kind = QuantScheme(attrs["scheme"]), attrs["to"]
    if scheme.is_packed:
        return decoded(scheme, codes, kind)
    wide = _split_nibbles(codes) if scheme.layout.code == "nibble" else codes
    by_code = scheme.layout.scales == "codes"

    def of_elements(x: Array | None) -> Array | None:
        if x is None:
            return None
        repeated = np.repeat(x, scheme.block, axis=-2)[..., : codes.shape[-2], :]
        return repeated.astype(np.int32 if by_code else kind.numpy)

    block = _Arrays(
        kind.numpy, None, wide.astype(np.int32), of_elements(scales), of_elements(offsets)
    )
    return _all_of(scheme, block, np.zeros(1, np.int64))
