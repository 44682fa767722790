"""Products with quantised weights: of codes with their scales beside them, of GGUF's blocks, and of the matrices of experts.

All read ``dequantize_blocks``. Gradients go to the other operand, and to scales and zero points that are floats; codes have none.
"""

from __future__ import annotations

from ...graph import dtypes
from ...graph.attributes import Float, Free, Index
from ...graph.dims import Dim, format_shape
from ...graph.errors import ArgumentError, DTypeError, ShapeError
from ...graph.facts import Facts
from ...graph.node import Node
from ...graph.op import composite
from ...graph.types import TensorType
from ..indexing.index import gather
from ..linalg.contract import dot_general
from ..linalg.matrix import check_inner
from ..samples import ints, sample, spec
from ..shapes.primitives import reshape, transpose
from .packed import dequantize_blocks
from .quantise import FAMILY
from .scheme import QuantScheme, Scheme

_PRODUCT = Facts(full_rate=True)


def _check_x(x: TensorType) -> None:
    if x.rank == 0:
        raise ShapeError("x is a scalar")


def _wide(x: Node) -> Node:
    """What products with weights are computed in: f32, or f64 where the operand is."""
    result: Node = x.cast("f32") if x.dtype.is_half else x
    return result


# --------------------------------------------------------------------------- scales beside the codes


def _columns(
    w_q: TensorType, scale: TensorType | None, scheme: QuantScheme, rows: Dim
) -> tuple[Dim, Dim]:
    """The shape [K, N] of weights whose scales lie beside them."""
    if w_q.rank == 1 and scheme.layout.code == "nibble":
        if scale is None or scale.rank != 2:
            raise ShapeError("flat codes need scales [ceil(K / block), N], which say N")
        columns = scale.shape[1]
        if w_q.shape[0] * 2 != rows * columns:
            raise ShapeError(
                f"{w_q.shape[0]} bytes hold {w_q.shape[0] * 2} codes, not {rows} x {columns}"
            )
        if isinstance(columns, int) and columns % 2:
            raise ShapeError(f"two codes share a byte, so N must be even, not {columns}")
        return rows, columns
    if w_q.rank != 2:
        raise ShapeError(f"w_q must be a matrix [K, N], not {format_shape(w_q.shape)}")
    check_inner(rows, w_q.shape[0])
    return rows, w_q.shape[1] * (2 if scheme.layout.code == "nibble" else 1)


def _packed_columns(codes: TensorType, scheme: QuantScheme, terms: Dim) -> Dim:
    """How many rows of ``terms`` elements packed weights have."""
    if codes.dtype is not dtypes.u8:
        raise DTypeError(f"packed_w must be u8, not {codes.dtype}")
    if not isinstance(terms, int):
        raise ShapeError(
            f"the terms of a product with packed weights must be a number, not {terms}"
        )
    if terms % scheme.block:
        raise ShapeError(
            f"sums of {terms} terms are no whole number of blocks of {scheme} of {scheme.block}"
        )
    row = scheme.row_bytes(terms)
    if codes.rank == 2:
        if codes.shape[1] != row:
            raise ShapeError(
                f"rows of {terms} elements have {row} bytes in {scheme}, but packed_w is "
                f"{format_shape(codes.shape)}"
            )
        return codes.shape[0]
    if codes.rank != 1:
        raise ShapeError(
            f"packed_w must be flat or [N, row bytes], not {format_shape(codes.shape)}"
        )
    count = codes.shape[0]
    if not isinstance(count, int) or row == 0 or count % row:
        raise ShapeError(
            f"{count} bytes are no whole number of rows of {row}, of {terms} elements in {scheme}"
        )
    return count // row


_INT8 = ints(5, 6, low=-128, high=128, dtype="i8")
_BLOCK_SCALES = spec(3, 6, low=0.01, high=0.1)


@composite(
    family=FAMILY,
    facts=_PRODUCT,
    samples=[
        sample(spec(3, 5), _INT8, _BLOCK_SCALES, None, "int8_block(2)"),
        sample(spec(5), _INT8, _BLOCK_SCALES, spec(3, 6), "int8_block_asym(2)"),
        sample(
            spec(2, 2, 5),
            ints(5, 3, high=256, dtype="u8"),
            _BLOCK_SCALES,
            spec(3, 6, low=0.0, high=15.0),
            "int4_block(2)",
        ),
        sample(
            spec(2, 4),
            ints(8, high=256, dtype="u8"),
            spec(1, 4, low=0.1, high=0.5),
            ints(1, 4, high=16),
            "int4_block(64)",
        ),
        sample(spec(2, 4), ints(4, 3, high=100, dtype="u8"), spec(3, low=0.01), None, "fp8_e4m3"),
        sample(spec(2, 4), ints(4, 3, high=90, dtype="u8"), None, None, "fp8_e5m2"),
        sample(
            spec(2, 16),
            ints(16, 2, high=256, dtype="u8"),
            ints(1, 4, high=100, dtype="u8"),
            spec(1, low=0.1),
            "nvfp4_block",
        ),
        sample(spec(2, 32), ints(3, 34, high=60, dtype="u8"), None, None, "q8_0"),
        sample(spec(0, 5), _INT8, _BLOCK_SCALES, None, "int8_block(2)"),
    ],
)
def dequant_matmul(
    x: Float,
    w_q: Free,
    scale: Free | None,
    zp: Free | None,
    scheme: Scheme,
) -> TensorType:
    """``x @ W`` with quantised weights W [K, N], which are decoded as they are read and never stored as floats.

    ``scheme`` is a ``QuantScheme``: ``Int8Block(bs)`` (i8 codes, ``scale`` [ceil(K / bs), N]), ``Int8BlockAsym(bs)`` and ``Int4Block(bs)`` (``zp`` besides; two codes of 4 bits share
    a byte along N), ``Fp8E4m3`` and ``Fp8E5m2`` (``scale`` [N], [1] or None), ``Nvfp4Block`` (as ``dequant_matmul_nvfp4``, ``zp`` is the global scale), and GGUF's with
    neither scale nor zp (as ``dequant_matmul_packed``). Gradients go to ``x``, and to scales and zero points that are floats.
    """
    known = QuantScheme(scheme)
    _check_x(x)
    if known.is_packed:
        if scale is not None or zp is not None:
            raise ArgumentError(
                f"{known} has its scales among its codes: scale and zp must be None"
            )
        return x.with_shape((*x.shape[:-1], _packed_columns(w_q, known, x.shape[-1])))
    rows, columns = _columns(w_q, scale, known, x.shape[-1])
    if known.layout.scales == "none":
        _check_row_scale("scale", scale, (columns, 1))
        if zp is not None:
            raise ArgumentError(f"{known} has no zero points")
    else:
        if known.layout.scales == "codes":
            _check_row_scale("zp", zp, (1,))
        offsets = zp if known.layout.scales == "offsets" else None
        stored = columns if known.layout.code != "nibble" else w_q.shape[-1]
        if w_q.rank == 1 and isinstance(columns, int):
            stored = columns // 2
        dequantize_blocks.infer(
            w_q.with_shape((rows, stored)), scale, offsets, scheme=str(known), to=dtypes.f32
        )
    return x.with_shape((*x.shape[:-1], columns))


def _check_row_scale(name: str, scale: TensorType | None, sizes: tuple[Dim, ...]) -> None:
    """A scale that results are multiplied by: one number, or one for each column."""
    if scale is None:
        return
    if not scale.dtype.is_float:
        raise DTypeError(f"{name} must be floats, not {scale.dtype}")
    if scale.shape not in [(size,) for size in sizes]:
        allowed = " or ".join(format_shape((size,)) for size in sizes)
        raise ShapeError(f"{name} must be {allowed}, not {format_shape(scale.shape)}")


@dequant_matmul.expand
def _(x: Node, w_q: Node, scale: Node | None, zp: Node | None, scheme: str) -> Node:
    known = QuantScheme(scheme)
    if known.is_packed:
        return _packed_product(x, w_q, known)
    if w_q.rank == 1 and scale is not None:
        w_q = reshape(w_q, (x.shape[-1], scale.shape[1] // 2))
    beside: dict[str, Node | None] = {}
    after: Node | None = None
    if known.layout.scales == "none":
        after = scale
    else:
        beside["scales"] = scale
        after = zp if known.layout.scales == "codes" else None
        if known.layout.scales == "offsets":
            beside["offsets"] = zp
    wide = _wide(x)
    weights = dequantize_blocks(w_q, **beside, scheme=scheme, to=wide.dtype)
    found = dot_general(wide, weights, (x.rank - 1,), (0,))
    # What a whole column has in common is multiplied once, after its sum.
    found = found if after is None else found * after.cast(found.dtype)
    result: Node = found.cast(x.dtype)
    return result


# --------------------------------------------------------------------------- blocks of bytes


def _decoded(packed: Node, scheme: QuantScheme, x: Node) -> Node:
    """Packed weights, which stand for f32, in the type of what they are multiplied with."""
    weights: Node = dequantize_blocks(packed, scheme=scheme)
    return weights if x.dtype is weights.dtype else weights.cast(x.dtype)


def _packed_product(x: Node, packed: Node, scheme: QuantScheme) -> Node:
    terms = int(x.shape[-1])
    if packed.rank == 1:
        row = scheme.row_bytes(terms)
        packed = reshape(packed, (int(packed.shape[0]) // row, row))
    wide = _wide(x)
    weights = _decoded(packed, scheme, wide)
    result: Node = dot_general(wide, weights, (x.rank - 1,), (1,)).cast(x.dtype)
    return result


@composite(
    family=FAMILY,
    facts=_PRODUCT,
    samples=[
        sample(spec(3, 64), ints(5, 68, high=60, dtype="u8"), "q8_0"),
        sample(spec(2, 2, 32), ints(54, high=60, dtype="u8"), "q4_0"),
        sample(spec(256), ints(3, 144, high=60, dtype="u8"), "q4_k"),
        sample(spec(1, 256), ints(2, 210, high=60, dtype="u8"), "q6_k"),
        sample(spec(0, 32), ints(2, 20, high=60, dtype="u8"), "q4_1"),
    ],
)
def dequant_matmul_packed(x: Float, packed_w: Free, scheme: Scheme) -> TensorType:
    """``x @ W.T`` with the weights of a GGUF file as they are there: W [N, K] in blocks of bytes along K.

    ``packed_w`` is u8, flat or [N, row bytes]; ``scheme`` is ``Q4_0``, ``Q4_1``, ``Q5_0``, ``Q5_1``, ``Q8_0`` or one of ``Q2_K`` to ``Q6_K`` and ``Q8_K``. It stays in memory as it
    is. The gradient goes to ``x``.
    """
    known = QuantScheme(scheme)
    if not known.is_packed:
        raise ArgumentError(
            f"{known} has its scales beside its codes", hint="dequant_matmul takes them"
        )
    _check_x(x)
    columns = _packed_columns(packed_w, known, x.shape[-1])
    return x.with_shape((*x.shape[:-1], columns))


@dequant_matmul_packed.expand
def _(x: Node, packed_w: Node, scheme: str) -> Node:
    return _packed_product(x, packed_w, QuantScheme(scheme))


@composite(
    family=FAMILY,
    facts=_PRODUCT,
    samples=[
        sample(
            spec(3, 32),
            ints(32, 3, high=256, dtype="u8"),
            ints(2, 6, high=100, dtype="u8"),
            spec(1, low=0.1),
        ),
        sample(spec(16), ints(16, 1, high=256, dtype="u8"), ints(1, 2, high=100, dtype="u8")),
    ],
)
def dequant_matmul_nvfp4(
    x: Float, w_q: Free, block_scales: Free, global_scale: Free | None = None
) -> TensorType:
    """``x @ W`` with NVFP4 weights: floats of 4 bits, a float of 8 bits for each 16 rows of a column, and one scale for all.

    ``w_q`` is u8 [K, N / 2] with two codes (e2m1) a byte along N, ``block_scales`` u8 [K / 16, N] (e4m3fn), ``global_scale`` f32 [1], or None for 1.
    """
    found: TensorType = dequant_matmul.infer(
        x, w_q, block_scales, global_scale, QuantScheme.Nvfp4Block
    )
    return found


@dequant_matmul_nvfp4.expand
def _(x: Node, w_q: Node, block_scales: Node, global_scale: Node | None) -> Node:
    result: Node = dequant_matmul(x, w_q, block_scales, global_scale, QuantScheme.Nvfp4Block)
    return result


# --------------------------------------------------------------------------- experts


def _slabs(codes: TensorType, scheme: QuantScheme) -> tuple[Dim, Dim, int]:
    """Experts, and columns and terms of the matrix of each, of packed slabs [E, N, row bytes]."""
    if not scheme.is_packed:
        raise ArgumentError(
            f"{scheme} has its scales beside its codes",
            hint="experts are read from packed schemes, such as Q4_K",
        )
    if codes.rank != 3:
        raise ShapeError(
            f"packed_w must be a slab for each expert [E, N, row bytes], not "
            f"{format_shape(codes.shape)}"
        )
    found = dequantize_blocks.infer(codes, None, None, scheme=str(scheme), to=dtypes.f32)
    experts, columns, terms = found.type.shape
    return experts, columns, int(terms)


@composite(
    family=FAMILY,
    facts=_PRODUCT,
    samples=[
        sample(spec(4, 32), ints(3, 5, 34, high=60, dtype="u8"), ints(4, high=3), "q8_0"),
        sample(
            spec(2, 2, 64),
            ints(2, 3, 36, high=60, dtype="u8"),
            ints(2, 2, high=2, dtype="u32"),
            "q4_0",
        ),
        sample(spec(0, 32), ints(2, 3, 34, high=60, dtype="u8"), ints(0, high=2), "q8_0"),
    ],
)
def dequant_grouped_matmul(x: Float, packed_w: Free, expert: Index, scheme: Scheme) -> TensorType:
    """Each row times the packed matrix that its index chooses: ``y[i] = x[i] @ W[expert[i]].T``.

    ``x`` is [..., K], ``packed_w`` u8 [E, N, row bytes], a slab of a packed ``scheme`` for each expert, and ``expert`` has one integer in 0..E-1 for each row. Only the slabs
    that are chosen are decoded.
    """
    known = QuantScheme(scheme)
    _, columns, terms = _slabs(packed_w, known)
    _check_x(x)
    if expert.shape != x.shape[:-1]:
        raise ShapeError(
            f"x has rows {format_shape(x.shape[:-1])}, expert is {format_shape(expert.shape)}"
        )
    check_inner(x.shape[-1], terms)
    return x.with_shape((*x.shape[:-1], columns))


@dequant_grouped_matmul.expand
def _(x: Node, packed_w: Node, expert: Node, scheme: str) -> Node:
    rows = x.rank - 1
    batch = tuple(range(rows))
    wide = _wide(x)
    chosen = _decoded(gather(packed_w, expert), QuantScheme(scheme), wide)
    found = dot_general(wide, chosen, (rows,), (rows + 1,), batch, batch)
    result: Node = found.cast(x.dtype)
    return result


@composite(
    family=FAMILY,
    facts=Facts(fused=True),
    samples=[
        sample(ints(3, 5, 34, high=60, dtype="u8"), "q8_0"),
        sample(ints(2, 3, 144, high=60, dtype="u8"), "q4_k"),
        sample(ints(0, 3, 18, high=60, dtype="u8"), "q4_0"),
    ],
)
def dequant_moe_weights(packed_w: Free, scheme: Scheme) -> TensorType:
    """The matrices of all experts as f32 [E, K, N], from packed slabs [E, N, row bytes]: what ``grouped_matmul`` takes."""
    known = QuantScheme(scheme)
    experts, columns, terms = _slabs(packed_w, known)
    return TensorType((experts, terms, columns), dtypes.f32)


@dequant_moe_weights.expand
def _(packed_w: Node, scheme: str) -> Node:
    result: Node = transpose(dequantize_blocks(packed_w, scheme=scheme), (0, 2, 1))
    return result
