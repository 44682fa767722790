"""What the optimizer makes: contractions with what precedes or follows them, as one op each.

They are ordinary composites: anyone may write them, and they mean their expansion.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from ...graph.attributes import Float, Ints, Pairs
from ...graph.dims import Dim, Shape, format_shape, product
from ...graph.errors import InternalError, ShapeError
from ...graph.facts import Facts
from ...graph.node import Node
from ...graph.op import Cost, Resolved, composite, get_op, resolved
from ...graph.types import TensorType
from ..elementwise.arithmetic import add
from ..linalg.contract import dot_general, windows
from ..linalg.matrix import FAMILY, matmul, matmul_at, matmul_bt
from ..norms.last_axes import require_eps, require_features, rms_norm
from ..samples import sample, spec
from ..shapes.primitives import slice_
from ..spatial.conv import FAMILY as CONVOLUTION
from ..spatial.conv import conv
from ..spatial.windows import PairsOf, padded, pairs_per_axis, window_counts
from .linear import activation_op, check_bias

PRODUCTS = {"nn": matmul, "tn": matmul_at, "nt": matmul_bt}

COLUMN_TILE = 64
"""The columns that one group of threads computes: what it prepares of a row is prepared again for the next."""

BESIDE = 4
"""Arithmetic beside a contraction's matrix units, counted in what those do in the same time."""


def _settled_name(activation: str | None) -> str | None:
    return None if activation is None else activation_op(activation).name


def _check_residual(residual: TensorType | None, shape: Shape, what: str) -> None:
    if residual is not None and residual.shape != shape:
        raise ShapeError(
            f"residual must have the {what}'s shape {format_shape(shape)}, "
            f"not {format_shape(residual.shape)}"
        )


def _finished(result: Node, activation: str | None, residual: Node | None) -> Node:
    """An activation, then a residual; each may be absent."""
    if activation is not None:
        result = get_op(activation)(result)
    return result if residual is None else add(result, residual)


# --------------------------------------------------------------------------- matrix products


@composite(
    family=FAMILY,
    facts=Facts(full_rate=True, multiplies=("a", "b")),
    samples=[
        sample(spec(3, 5), spec(5, 4), spec(4)),
        sample(spec(3, 5), spec(5, 4), None, spec(3, 4)),
        sample(spec(2, 3, 5), spec(5, 4), spec(4), spec(2, 3, 4), activation="gelu"),
        sample(spec(3, 5), spec(4, 5), spec(4), form="nt", activation="relu"),
        sample(spec(5, 3), spec(5, 4), None, spec(3, 4), form="tn"),
        sample(spec(3, 5), spec(5, 4), activation="silu"),
        sample(spec(3, 0), spec(0, 2), spec(2), spec(3, 2)),
        sample(spec(0, 3), spec(3, 2), spec(2)),
    ],
)
def fused_matmul(
    a: Float,
    b: Float,
    bias: Float | None = None,
    residual: Float | None = None,
    *,
    form: Literal["nn", "tn", "nt"] = "nn",
    activation: str | None = None,
) -> Resolved:
    """``activation(a @ b + bias) + residual`` as one op; 16-bit floats are rounded once, at its end.

    ``form`` says which operand is transposed: "nn" none, "tn" a, "nt" b. ``bias`` has one number for each column,
    ``residual`` the shape of the result; each of them, and the activation, may be left out.
    """
    found = PRODUCTS[form].infer(a, b)
    if bias is not None:
        if not found.rank:
            raise ShapeError("a product of two vectors has no columns for a bias")
        check_bias(bias, found.shape[-1])
    _check_residual(residual, found.shape, "product")
    return resolved(found, activation=_settled_name(activation))


@fused_matmul.expand
def _(
    a: Node, b: Node, bias: Node | None, residual: Node | None, form: str, activation: str | None
) -> Node:
    result: Node = PRODUCTS[form](a, b)
    return _finished(result if bias is None else add(result, bias), activation, residual)


@fused_matmul.cost
def _(
    a: TensorType,
    b: TensorType,
    bias: TensorType | None,
    residual: TensorType | None,
    form: str,
    activation: str | None,
) -> Dim:
    found: TensorType = PRODUCTS[form].infer(a, b)
    inner = a.shape[-2] if form == "tn" else a.shape[-1]
    return 2 * found.size * inner


@composite(
    family=FAMILY,
    facts=Facts(full_rate=True),
    samples=[
        sample(spec(3, 5), spec(5), spec(5, 4)),
        sample(spec(2, 3, 5), spec(5), spec(5, 1), 1e-3),
        sample(spec(3, 5), spec(5), spec(4, 5), form="nt"),
        sample(spec(1, 1), spec(1), spec(1, 2), eps=0.1),
        sample(spec(0, 3), spec(3), spec(3, 2)),
        sample(spec(2, 3), spec(3), spec(3, 0)),
    ],
)
def norm_matmul(
    x: Float, gamma: Float, w: Float, eps: float = 1e-5, *, form: Literal["nn", "nt"] = "nn"
) -> TensorType:
    """``rms_norm(x, gamma, eps) @ w`` as one op, over the last axis of ``x`` [..., K].

    ``w`` is [K, N], or [N, K] in form "nt". The norm is computed where the product reads its rows, and never stored.
    """
    require_eps(eps)
    for name, operand, least, most in (("x", x, 2, x.rank), ("w", w, 2, 2)):
        if not least <= operand.rank <= most:
            raise ShapeError(f"{name} must be a matrix, not {format_shape(operand.shape)}")
    require_features(x, x.rank - 1, gamma=gamma)
    result: TensorType = PRODUCTS[form].infer(x, w)
    return result


@norm_matmul.expand
def _(x: Node, gamma: Node, w: Node, eps: float, form: str) -> Node:
    result: Node = PRODUCTS[form](rms_norm(x, gamma, eps=eps), w)
    return result


@norm_matmul.cost
def _(x: TensorType, gamma: TensorType, w: TensorType, eps: float, form: str) -> Cost:
    # Every tile of columns reads its rows once for their scale and once for the product, and
    # squares, sums, scales and weighs each element.
    found: TensorType = PRODUCTS[form].infer(x, w)
    tiles = (found.shape[-1] + COLUMN_TILE - 1) // COLUMN_TILE
    norm = 4 * BESIDE * x.size * tiles
    moved = 2 * x.nbytes + gamma.nbytes + w.nbytes + found.nbytes
    return Cost(moved, 2 * found.size * x.shape[-1] + norm)


# --------------------------------------------------------------------------- convolutions


def _convolved(
    x: TensorType, w: TensorType, attrs: dict[str, Any]
) -> tuple[TensorType, dict[str, Any]]:
    """The type of a convolution, and its attributes as they are kept."""
    found: Resolved = conv.infer(x, w, **attrs)
    if not isinstance(found.type, TensorType):
        raise InternalError("a convolution has one result")
    return found.type, found.attrs


@composite(
    family=CONVOLUTION,
    facts=Facts(full_rate=True, multiplies=("x", "w")),
    samples=[
        sample(spec(2, 3, 7), spec(4, 3, 3), spec(4)),
        sample(spec(2, 3, 6, 5), spec(4, 3, 3, 2), spec(4), stride=(2, 1), padding=1),
        sample(
            spec(1, 4, 5, 7),
            spec(6, 2, 2, 3),
            None,
            spec(1, 6, 5, 6),
            padding=((0, 1), (1, 0)),
            groups=2,
        ),
        sample(spec(2, 3, 5, 5), spec(6, 1, 3, 3), spec(6), groups=3, activation="silu"),
        sample(spec(2, 3, 4, 3), spec(2, 3, 2, 2), spec(2), spec(2, 2, 3, 2), activation="relu"),
        sample(spec(1, 2, 3, 4), spec(3, 2, 3, 4), activation="gelu"),
        sample(spec(0, 3, 5), spec(2, 3, 2), spec(2)),
    ],
)
def fused_conv(
    x: Float,
    w: Float,
    bias: Float | None = None,
    residual: Float | None = None,
    *,
    stride: Ints = (1,),
    padding: Pairs = ((0, 0),),
    dilation: Ints = (1,),
    groups: int = 1,
    activation: str | None = None,
) -> Resolved:
    """``activation(conv(x, w) + bias) + residual`` as one op; 16-bit floats are rounded once, at its end.

    ``bias`` has one number for each output channel, ``residual`` the shape of the result; each of them, and the activation,
    may be left out. The rest is as in ``conv``.
    """
    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    found, settled = _convolved(x, w, attrs)
    if bias is not None and bias.shape != (w.shape[0],):
        raise ShapeError(
            f"bias is {format_shape(bias.shape)}, but there are {w.shape[0]} output channels"
        )
    _check_residual(residual, found.shape, "convolution")
    return resolved(found, **settled, activation=_settled_name(activation))


@fused_conv.expand
def _(
    x: Node,
    w: Node,
    bias: Node | None,
    residual: Node | None,
    activation: str | None,
    **attrs: Any,
) -> Node:
    result: Node = conv(x, w, **attrs)
    if bias is not None:
        result = add(result, bias.reshape((w.shape[0], *(1,) * (x.rank - 2))))
    return _finished(result, activation, residual)


@fused_conv.cost
def _(
    x: TensorType,
    w: TensorType,
    bias: TensorType | None,
    residual: TensorType | None,
    activation: str | None,
    **attrs: Any,
) -> Dim:
    found, _ = _convolved(x, w, attrs)
    return 2 * found.shape[0] * product(found.shape[2:]) * w.size


# --------------------------------------------------------------------------- Winograd's convolution

# A 3x3 kernel over a 4x4 tile gives 2x2 results, with 16 products in place of 36: the tile and the kernel are
# transformed on both sides by small matrices, multiplied element by element, and transformed back.
_FROM_IMAGE = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
_FROM_KERNEL = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
_TO_IMAGE = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])


def _both_sides(matrix: np.ndarray[Any, Any], x: Node, rows: int, columns: int) -> Node:
    """A matrix applied to two axes of ``x``, which come first in the result."""
    factor = x.graph.constant(matrix, dtype=x.dtype)
    once: Node = dot_general(factor, x, (1,), (columns,))
    return dot_general(factor, once, (1,), (rows + (rows < columns),))


@composite(
    family=CONVOLUTION,
    samples=[
        sample(spec(4, 3, 3, 3)),
        sample(spec(1, 2, 3, 3)),
        sample(spec(5, 1, 3, 3)),
        sample(spec(0, 2, 3, 3)),
    ],
)
def winograd_weight(w: Float) -> TensorType:
    """A 3x3 kernel [out, in, 3, 3] as ``winograd_conv`` takes it: [4, 4, in, out]."""
    if w.rank != 4 or w.shape[2:] != (3, 3):
        raise ShapeError(f"w must be [out, in, 3, 3], not {format_shape(w.shape)}")
    return w.with_shape((4, 4, w.shape[1], w.shape[0]))


@winograd_weight.expand
def _(w: Node) -> Node:
    ordered: Node = _both_sides(_FROM_KERNEL, w, 2, 3).transpose((0, 1, 3, 2))
    return ordered


@composite(
    family=CONVOLUTION,
    facts=Facts(full_rate=True, kernels=3.0),
    samples=[
        sample(spec(2, 3, 6, 8), spec(4, 4, 3, 2)),
        sample(spec(1, 2, 5, 7), spec(4, 4, 2, 3), padding=1),
        sample(spec(2, 1, 3, 4), spec(4, 4, 1, 2)),
        sample(spec(1, 3, 1, 2), spec(4, 4, 3, 1), padding=((1, 2), (0, 3))),
        sample(spec(1, 2, 4, 5), spec(4, 4, 2, 2), padding=((0, 1), (2, 0))),
        sample(spec(0, 2, 4, 4), spec(4, 4, 2, 2)),
    ],
)
def winograd_conv(x: Float, u: Float, *, padding: Pairs = ((0, 0),)) -> Resolved:
    """``conv(x, w, padding=padding)`` for x [batch, in, height, width] and ``u = winograd_weight(w)``.

    Tiles of 2x2 results take 16 products for each pair of channels, where the plain sum takes 36. The same sums in another
    order: it rounds a little more than ``conv``.
    """
    if x.rank != 4:
        raise ShapeError(f"x must be [batch, in, height, width], not {format_shape(x.shape)}")
    if u.rank != 4 or u.shape[:2] != (4, 4):
        raise ShapeError(
            f"u must be [4, 4, in, out], not {format_shape(u.shape)}", hint="see winograd_weight"
        )
    if x.shape[1] != u.shape[2]:
        raise ShapeError(f"x has {x.shape[1]} channels, but u takes {u.shape[2]}")
    padding = pairs_per_axis(padding, 2)
    counts = window_counts(x.shape[2:], (3, 3), (1, 1), padding, (1, 1), "kernel")
    return resolved(x.with_shape((x.shape[0], u.shape[3], *counts)), padding=padding)


def _tiles(sizes: Shape) -> tuple[Dim, ...]:
    """How many tiles of two cover the sizes; the last may stand over."""
    return tuple((size + 1) // 2 for size in sizes)


@winograd_conv.expand
def _(x: Node, u: Node, padding: PairsOf) -> Node:
    counts = window_counts(x.shape[2:], (3, 3), (1, 1), padding, (1, 1), "kernel")
    # A tile that stands over reads one more row or column; where the size is not known there is one
    # to spare, which no window reaches if the size is even.
    covered = tuple(
        (low, high + (count % 2 if isinstance(count, int) else 1))
        for (low, high), count in zip(padding, counts, strict=True)
    )
    tiles = windows(padded(x, covered), (4, 4), (2, 2))
    image = _both_sides(_FROM_IMAGE, tiles, 4, 5)
    # [4, 4, batch, in, rows, columns] times [4, 4, in, out] for each of the 16 places.
    places: Node = dot_general(image, u, (3,), (2,), (0, 1), (0, 1))
    result = _both_sides(_TO_IMAGE, places, 0, 1).transpose((2, 5, 3, 0, 4, 1))
    batch, channels, rows, _, columns, _ = result.shape
    whole = result.reshape((batch, channels, 2 * rows, 2 * columns))
    if whole.shape[2:] == counts:
        return whole
    shape = (batch, channels, *counts)
    return slice_(whole, (0,) * 4, shape)


@winograd_conv.cost
def _(x: TensorType, u: TensorType, padding: PairsOf) -> Cost:
    counts = window_counts(x.shape[2:], (3, 3), (1, 1), padding, (1, 1), "kernel")
    inside, outside = u.shape[2:]
    tiles = x.shape[0] * product(_tiles(counts))
    # Between the three steps, 16 numbers of each tile and channel are written and read again.
    moved = x.nbytes + u.nbytes + x.shape[0] * outside * product(counts) * x.dtype.itemsize
    moved = moved + 2 * 16 * tiles * (inside + outside) * x.dtype.itemsize
    transforms = tiles * (32 * inside + 24 * outside)
    return Cost(moved, 2 * 16 * tiles * inside * outside + BESIDE * transforms)
