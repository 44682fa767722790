"""Discrete Fourier transforms: of complex numbers, from real ones to half a spectrum, and back.

Three primitives, which every other op of the family is made of. A complex transform takes complex numbers, or a real *block*: an axis of 2N real
numbers of which the first N are real parts and the others imaginary ones. Each is linear, so its tangent is itself, and its transpose is a transform again.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from ...graph import dtypes
from ...graph.attributes import Analytic, Axis, Float, Size
from ...graph.data import Array
from ...graph.dims import Dim, SymbolicDim
from ...graph.errors import ShapeError
from ...graph.facts import Facts
from ...graph.node import Node
from ...graph.op import Rule, primitive
from ...graph.types import TensorType
from ..axes import spread
from ..samples import sample, spec

FAMILY = "Fourier transforms"

ROWS = Facts(reads_rows=True)

Norm = Literal["none", "backward", "forward", "ortho"]
"""Where the factor is: nowhere; or as in NumPy in the inverse (1/N), in the forward transform (1/N), or in both (1/sqrt(N))."""

_SAME_FACTOR = {"none": "none", "ortho": "ortho", "backward": "forward", "forward": "backward"}
"""What gives the other direction the same factor."""


def factor(count: int, inverse: bool, norm: str) -> float:
    """What a transform of ``count`` elements is multiplied by.

    >>> factor(4, True, "backward"), factor(4, False, "backward"), factor(4, False, "ortho")
    (0.25, 1.0, 0.5)
    """
    if norm == "ortho":
        return 1.0 / math.sqrt(count)
    scaled = norm == ("backward" if inverse else "forward")
    return 1.0 / count if scaled else 1.0


def require_halves(size: Dim, name: str) -> None:
    """Refuse an axis that cannot hold N real parts and N imaginary ones."""
    if isinstance(size, int) and size % 2:
        raise ShapeError(
            f"{name} has size {size}, but of real numbers it holds as many real parts as imaginary ones",
            hint="rfft takes real signals; complex(re, im) makes complex numbers",
        )


def require_some(size: Dim, what: str) -> None:
    """Refuse a transform of nothing."""
    if isinstance(size, int) and size < 1:
        raise ShapeError(f"{what} has no elements to transform")


def bins_of(count: Dim) -> Dim:
    """How many numbers of the spectrum of ``count`` real ones are not conjugates of others."""
    return count // 2 + 1


# --------------------------------------------------------------------------- complex to complex


@primitive(
    family=FAMILY,
    facts=ROWS,
    samples=[
        sample(spec(8)),
        sample(spec(3, 10), True, "ortho"),
        sample(spec(6, 4), False, "forward", 0),
        sample(spec(2, 14, 3), True, "backward", -2),
        sample(spec(2, 2)),
        sample(spec(0, 4)),
        sample(spec(3, 8, kind="complex", dtype="c64")),
        sample(spec(2, 9, kind="complex", dtype="c64"), True),
        sample(spec(5, 12, kind="complex", dtype="c64"), False, "ortho", 0),
        sample(spec(2, 34, 3, kind="complex", dtype="c64"), True, "backward", 1),
        sample(spec(1, 1, kind="complex", dtype="c64")),
        sample(spec(2, 94, kind="complex", dtype="c64"), False, "forward"),
    ],
)
def fft(x: Analytic, inverse: bool = False, norm: Norm = "none", axis: Axis = -1) -> TensorType:
    """The discrete Fourier transform along ``axis``: ``X[k] = sum_n x[n] exp(-2 pi i k n / N)``, with a plus where it is ``inverse``.

    ``x`` is complex, or real with ``2N`` elements along the axis: N real parts, then N imaginary ones; the result has the same type. Any N is
    fast. ``norm`` is ``"none"`` (no factor: an inverse of a transform is N times the original), or as NumPy says ``"backward"`` (the inverse is divided
    by N), ``"forward"`` (the other one is) or ``"ortho"`` (both are divided by sqrt(N)). RLX's ``FftNorm`` is accepted too.
    """
    if x.rank == 0:
        raise ShapeError("a scalar has no axis to transform")
    size = x.shape[axis]
    require_some(size, f"axis {axis}")
    if x.dtype.kind != "complex":
        require_halves(size, f"axis {axis}")
    return x


def _complex(x: Array, axis: int) -> Array:
    """An operand as complex numbers of twice the precision."""
    if x.dtype.kind == "c":
        return x.astype(np.complex128)
    re, im = np.split(x.astype(np.float64), 2, axis)
    return re + 1j * im


def transformed(z: Array, inverse: bool, norm: str, axis: int) -> Array:
    """NumPy's transform with darner's factor."""
    if z.size == 0:
        return z
    count = z.shape[axis]
    found = np.fft.ifft(z, axis=axis, norm="forward") if inverse else np.fft.fft(z, axis=axis)
    return np.asarray(found * factor(count, inverse, norm))


@fft.reference
def _(x: Array, inverse: bool, norm: str, axis: int) -> Array:
    found = transformed(_complex(x, axis), inverse, norm, axis)
    if x.dtype.kind != "c":
        found = np.concatenate([found.real, found.imag], axis)
    return found.astype(x.dtype)


@fft.cost
def _(x: TensorType, inverse: bool, norm: str, axis: int) -> Dim:
    size = x.shape[axis]
    log = 10 if isinstance(size, SymbolicDim) else max(1, math.ceil(math.log2(max(size, 2))))
    return x.size * (5 if x.dtype.kind == "complex" else 3) * log


@fft.vjp
def _(g: Node, out: Node, x: Node, inverse: bool, norm: str, axis: int) -> Node:
    # The matrix of a transform is symmetric; that of a block has minus the sines across.
    if x.dtype.kind == "complex":
        same: Node = fft(g, inverse, norm, axis)
        return same
    other: Node = fft(g, not inverse, _SAME_FACTOR[norm], axis)
    return other


@fft.jvp
def _(tangents: dict[str, Node], out: Node, x: Node, inverse: bool, norm: str, axis: int) -> Node:
    found: Node = fft(tangents["x"], inverse, norm, axis)
    return found


@fft.vmap
def _(size: Dim, batched: object, x: Node, inverse: bool, norm: str, axis: int) -> Node:
    found: Node = fft(x, inverse, norm, axis + 1)
    return found


# --------------------------------------------------------------------------- real to half a spectrum


@primitive(
    family=FAMILY,
    facts=ROWS,
    samples=[
        sample(spec(8)),
        sample(spec(3, 5), "ortho"),
        sample(spec(2, 3, 12), "forward"),
        sample(spec(2, 1)),
        sample(spec(3, 2)),
        sample(spec(0, 4)),
        sample(spec(2, 94)),
    ],
)
def real_fft(x: Float, norm: Norm = "none") -> tuple[TensorType, TensorType]:
    """The first ``N // 2 + 1`` numbers of the spectrum of N real ones along the last axis, as real and imaginary parts.

    The others are their conjugates. ``rfft`` pads and crops; this takes N as it is.
    """
    if x.rank == 0:
        raise ShapeError("a scalar has no axis to transform")
    require_some(x.shape[-1], "the last axis")
    result = x.with_shape((*x.shape[:-1], bins_of(x.shape[-1])))
    return result, result


@real_fft.reference
def _(x: Array, norm: str) -> tuple[Array, Array]:
    found = transformed(x.astype(np.complex128), False, norm, -1)[..., : x.shape[-1] // 2 + 1]
    return found.real.astype(x.dtype), found.imag.astype(x.dtype)


@real_fft.cost
def _(x: TensorType, norm: str) -> Dim:
    size = x.shape[-1]
    log = 10 if isinstance(size, SymbolicDim) else max(1, math.ceil(math.log2(max(size, 2))))
    return x.size * 3 * log


def _weighted(x: Node, count: Dim, weight: float) -> Node:
    """A half spectrum whose numbers have ``weight`` where their conjugates are left out: all but the first, and the last if there is one for N/2."""
    bins = x.shape[-1]
    place = x.graph.iota((bins,), 0)
    # A sum of ones is the size as a value; binding the symbol makes it a constant.
    whole: int | Node
    if isinstance(count, int):
        whole = count
    else:
        whole = x.graph.literal(1, dtypes.i32).broadcast_to((count,)).sum()
    alone = place.eq(0).logical_or((place * 2).eq(whole))
    weighted: Node = x * alone.where(1.0, weight).cast(x.dtype)
    return weighted


@real_fft.vjp
def _(g: tuple[Node | None, Node | None], out: object, x: Node, norm: str) -> Node | None:
    if g[0] is None and g[1] is None:
        return None
    known = next(part for part in g if part is not None)
    re, im = (known.zeros_like() if part is None else part for part in g)
    count = x.shape[-1]
    halves = [_weighted(part, count, 0.5) for part in (re, im)]
    found: Node = inverse_real_fft(*halves, count, _SAME_FACTOR[norm])
    return found


@real_fft.jvp
def _(tangents: dict[str, Node], out: object, x: Node, norm: str) -> tuple[Node, Node]:
    found: tuple[Node, Node] = real_fft(tangents["x"], norm)
    return found


@real_fft.vmap
def _(size: Dim, batched: object, x: Node, norm: str) -> tuple[Node, Node]:
    found: tuple[Node, Node] = real_fft(x, norm)
    return found


@primitive(
    family=FAMILY,
    facts=ROWS,
    samples=[
        sample(spec(5), spec(5), 8),
        sample(spec(3, 3), spec(3, 3), 5, "ortho"),
        sample(spec(2, 3, 7), spec(2, 3, 7), 12, "backward"),
        sample(spec(2, 1), spec(2, 1), 1),
        sample(spec(3, 2), spec(3, 2), 2),
        sample(spec(0, 3), spec(0, 3), 4),
        sample(spec(2, 48), spec(2, 48), 94),
    ],
)
def inverse_real_fft(re: Float, im: Float, n: Size, norm: Norm = "none") -> TensorType:
    """The n real numbers whose spectrum begins with these ``n // 2 + 1`` along the last axis.

    The imaginary parts of the first, and where n is even of the last, are taken for 0. ``irfft`` also takes spectra of padded signals.
    """
    if re.rank == 0:
        raise ShapeError("a scalar has no axis to transform")
    if re.shape != im.shape:
        raise ShapeError("re and im must have one shape")
    require_some(n, "the result")
    if re.shape[-1] != bins_of(n):
        raise ShapeError(f"n={n} needs {bins_of(n)} bins, not {re.shape[-1]}")
    return re.with_shape((*re.shape[:-1], n))


@inverse_real_fft.reference
def _(re: Array, im: Array, n: int, norm: str) -> Array:
    if re.size == 0:
        return np.zeros((*re.shape[:-1], n), re.dtype)
    half = re.astype(np.float64) + 1j * im.astype(np.float64)
    found = np.fft.irfft(half, n, norm="forward") * factor(n, True, norm)
    return np.asarray(found.astype(re.dtype))


@inverse_real_fft.cost
def _(re: TensorType, im: TensorType, n: Dim, norm: str) -> Dim:
    log = 10 if isinstance(n, SymbolicDim) else max(1, math.ceil(math.log2(max(n, 2))))
    return re.size * 6 * log


@inverse_real_fft.vjp
def _(g: Node, out: Node, re: Node, im: Node, n: Dim, norm: str) -> dict[str, Rule]:
    first, second = real_fft(g, _SAME_FACTOR[norm])
    return {"re": lambda: _weighted(first, n, 2.0), "im": lambda: _weighted(second, n, 2.0)}


@inverse_real_fft.jvp
def _(tangents: dict[str, Node | None], out: Node, re: Node, im: Node, n: Dim, norm: str) -> Node:
    moved = [
        part.zeros_like() if t is None else t
        for part, t in ((re, tangents["re"]), (im, tangents["im"]))
    ]
    found: Node = inverse_real_fft(*moved, n, norm)
    return found


@inverse_real_fft.vmap
def _(size: Dim, batched: dict[str, bool], re: Node, im: Node, n: Dim, norm: str) -> Node:
    both = [x if batched[name] else spread(x, size) for name, x in (("re", re), ("im", im))]
    found: Node = inverse_real_fft(*both, n, norm)
    return found
