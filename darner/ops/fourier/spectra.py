"""What is made of Fourier transforms: spectra of real signals and back, power densities, short-time transforms, convolutions, frequencies.

Names and forms are RLX's. Where these pad a signal, they pad it to ``P``, the next power of two; ``rfft(x, n=...)`` takes NumPy's lengths instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...graph import dtypes
from ...graph.attributes import Float, Size
from ...graph.data import Array
from ...graph.dims import Dim, SymbolicDim, format_shape
from ...graph.errors import ArgumentError, DTypeError, ShapeError
from ...graph.facts import Facts
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import builder, composite
from ...graph.types import TensorType, broadcast
from ..samples import sample, spec
from ..shapes.primitives import concat, flip, pad
from ..shapes.shaping import cut, integer, one_axis
from ..spatial.windows import require_node
from .transforms import (
    FAMILY,
    Norm,
    bins_of,
    fft,
    inverse_real_fft,
    real_fft,
    require_halves,
    require_some,
)

WHOLE = Facts(whole=True, reads_rows=True)
"""There are kernels that pad and crop on the way."""


def next_power_of_two(size: int) -> int:
    """The smallest power of two that is not below a size.

    >>> next_power_of_two(5), next_power_of_two(8)
    (8, 8)
    """
    return 1 << (size - 1).bit_length()


def _length(x: TensorType | Node, what: str = "the last axis") -> int:
    """The size of a last axis that has to be known."""
    if x.rank == 0:
        raise ShapeError("a scalar has no axis to transform")
    size = x.shape[-1]
    if isinstance(size, SymbolicDim):
        raise ShapeError(f"{what} has the symbolic size {size}", hint="bind it first")
    require_some(size, what)
    return int(size)


def _padded(x: Node, size: Dim) -> Node:
    """``x`` with a last axis of that size: cropped, or with zeros behind it."""
    own = x.shape[-1]
    if own == size:
        return x
    if isinstance(own, int) and isinstance(size, int) and own > size:
        return cut(x, x.rank - 1, 0, size)
    result: Node = pad(x, [(0, 0)] * (x.rank - 1) + [(0, size - own)])
    return result


def _parts(spectrum: Node) -> tuple[Node, Node]:
    """The halves of a block."""
    last, size = spectrum.rank - 1, spectrum.shape[-1]
    return cut(spectrum, last, 0, size // 2), cut(spectrum, last, size // 2, size)


def _require_same_shape(re: TensorType, im: TensorType) -> None:
    if re.shape != im.shape:
        shapes = f"{format_shape(re.shape)} and {format_shape(im.shape)}"
        raise ShapeError(f"re and im are {shapes}, but are parts of the same numbers")


# --------------------------------------------------------------------------- along axes


@builder(family=FAMILY)
def fft_norm(graph: Graph, x: Node, inverse: bool, norm: Norm, shape: object = None) -> Node:
    """``fft`` with its factor as the third argument: an ``FftNorm``, or a word."""
    found: Node = fft(x, inverse, norm, shape=shape)
    return found


@builder(family=FAMILY)
def fft_axis(
    graph: Graph,
    x: Node,
    axis: int,
    inverse: bool = False,
    norm: Norm = "none",
    shape: object = None,
) -> Node:
    """``fft`` along any axis; of real numbers it is the one that holds real and imaginary parts."""
    require_node(x)
    found: Node = fft(x, inverse, norm, one_axis(axis, x.rank), shape=shape)
    return found


@builder(family=FAMILY)
def fftn(
    graph: Graph,
    x: Node,
    axes: int | Sequence[int] | None = None,
    inverse: bool = False,
    norm: Norm = "none",
) -> Node:
    """``fft`` along several axes, all of them by default; more than one needs complex numbers. No axes leave ``x`` as it is."""
    require_node(x)
    listed = (
        range(x.rank)
        if axes is None
        else axes
        if isinstance(axes, list | tuple | range)
        else (axes,)
    )
    numbers = [one_axis(axis, x.rank) for axis in listed]
    if len(set(numbers)) != len(numbers):
        raise ArgumentError(f"axes {list(listed)} name one axis twice")
    if len(numbers) > 1 and x.dtype.kind != "complex":
        raise DTypeError(
            f"{len(numbers)} axes need complex numbers, not {x.dtype}",
            hint='real parts and imaginary ones stand along one axis: complex(re, im), or x.cast("c64")',
        )
    for axis in sorted(numbers):
        x = fft(x, inverse, norm, axis)
    return x


@builder(family=FAMILY)
def ifftn(
    graph: Graph, x: Node, axes: int | Sequence[int] | None = None, norm: Norm = "none"
) -> Node:
    """The inverse of ``fftn``, by default without a factor."""
    found: Node = fftn(x, axes, True, norm)
    return found


# --------------------------------------------------------------------------- real signals


@builder(family=FAMILY)
def pad_last_axis_to_pow2(graph: Graph, x: Node) -> Node:
    """``x`` with zeros behind its last axis, up to a power of two; ``x`` itself where it is one."""
    require_node(x)
    return _padded(x, next_power_of_two(_length(x)))


@builder(family=FAMILY)
def split_spectrum(graph: Graph, spectrum: Node) -> tuple[Node, Node]:
    """The real and the imaginary parts of a spectrum whose last axis has one after the other."""
    require_node(spectrum, "spectrum")
    if spectrum.dtype.kind == "complex":
        raise DTypeError(f"the spectrum is {spectrum.dtype}", hint="take real(x) and imag(x)")
    if spectrum.rank == 0:
        raise ShapeError("a scalar has no axis to split")
    require_halves(spectrum.shape[-1], "the last axis")
    return _parts(spectrum)


_SIGNALS = [sample(spec(3, 5)), sample(spec(8), "ortho"), sample(spec(2, 3, 1)), sample(spec(0, 6))]


@composite(family=FAMILY, samples=[*_SIGNALS, sample(spec(2, 2), "forward")])
def fft_real(x: Float, norm: Norm = "none") -> tuple[TensorType, TensorType]:
    """The whole spectrum of real signals along the last axis, padded with zeros to a power of two, as real and imaginary parts."""
    result = x.with_shape((*x.shape[:-1], next_power_of_two(_length(x))))
    return result, result


@fft_real.expand
def _(x: Node, norm: str) -> tuple[Node, Node]:
    size = next_power_of_two(int(x.shape[-1]))
    re, im = real_fft(_padded(x, size), norm)
    if size <= 2:
        return re, im
    last = x.rank - 1
    inner = [flip(cut(part, last, 1, size // 2), last) for part in (re, im)]
    return concat([re, inner[0]], last), concat([im, -inner[1]], last)


@builder(family=FAMILY)
def fft_batch_real(graph: Graph, x: Node, norm: Norm = "none") -> tuple[Node, Node]:
    """``fft_real``; leading axes are a batch in both."""
    found: tuple[Node, Node] = fft_real(x, norm)
    return found


@composite(
    family=FAMILY,
    facts=WHOLE,
    samples=[
        *_SIGNALS,
        sample(spec(3, 5), "backward", n=5),
        sample(spec(19, 7)),
        sample(spec(2, 150)),
        sample(spec(3, 40), n=100),
        sample(spec(2, 9), n=6),
        sample(spec(2, 4), "forward", n=7),
    ],
)
def rfft(x: Float, norm: Norm = "none", *, n: Size | None = None) -> tuple[TensorType, TensorType]:
    """Half the spectrum of real signals along the last axis, as real and imaginary parts: the other half are conjugates.

    The signals are padded with zeros to a power of two P, which gives ``P // 2 + 1`` numbers; with ``n`` they are cropped or padded to that length instead, as in
    NumPy.
    """
    if n is None:
        size: Dim = next_power_of_two(_length(x))
    else:
        if x.rank == 0:
            raise ShapeError("a scalar has no axis to transform")
        _check_n(n)
        size = n
    result = x.with_shape((*x.shape[:-1], bins_of(size)))
    return result, result


def _check_n(n: Dim) -> None:
    if isinstance(n, int) and n < 1:
        raise ArgumentError(f"n must be at least 1, not {n}")


@rfft.expand
def _(x: Node, norm: str, n: Dim | None) -> tuple[Node, Node]:
    size = next_power_of_two(int(x.shape[-1])) if n is None else n
    found: tuple[Node, Node] = real_fft(_padded(x, size), norm)
    return found


@composite(
    family=FAMILY,
    facts=WHOLE,
    samples=[
        sample(spec(5), spec(5), 8),
        sample(spec(19, 9), spec(19, 9), 13),
        sample(spec(2, 129), spec(2, 129), 141),
        sample(spec(3, 5), spec(3, 5), 6, "backward"),
        sample(spec(3, 4), spec(3, 4), 6, "ortho"),
        sample(spec(2, 1), spec(2, 1), 1),
        sample(spec(2, 3, 3), spec(2, 3, 3), 5, "forward"),
        sample(spec(0, 3), spec(0, 3), 4),
    ],
)
def irfft(re: Float, im: Float, n: int, norm: Norm = "none") -> TensorType:
    """Real signals from half their spectrum along the last axis.

    With ``n // 2 + 1`` numbers the signals have the length ``n``. With as many as ``rfft`` makes of n numbers, which it pads to a power of two, the transform has
    that length, and its first n results are returned. Imaginary parts of the first number, and of the one for half the length, are taken for 0.
    """
    _require_same_shape(re, im)
    _check_n(n)
    whole_length(_length(re), n)
    return re.with_shape((*re.shape[:-1], n))


def whole_length(bins: int, n: int) -> int:
    """How long the transform is that has so many bins, for n results.

    >>> whole_length(5, 5), whole_length(3, 5)
    (8, 5)
    """
    power = next_power_of_two(n)
    for size in (n, power):
        if bins == bins_of(size):
            return size
    known = " or ".join(str(bins_of(size)) for size in dict.fromkeys((power, n)))
    raise ShapeError(f"n={n} needs {known} bins, not {bins}")


@irfft.expand
def _(re: Node, im: Node, n: int, norm: str) -> Node:
    size = whole_length(int(re.shape[-1]), n)
    return cut(inverse_real_fft(re, im, size, norm), re.rank - 1, 0, n)


@composite(
    family=FAMILY,
    samples=[
        sample(spec(8), spec(8)),
        sample(spec(3, 5), spec(3, 5), "backward"),
        sample(spec(0, 2), spec(0, 2)),
    ],
)
def ifft_spectrum(re: Float, im: Float, norm: Norm = "none") -> TensorType:
    """The real part of the inverse transform of a whole spectrum along the last axis."""
    _require_same_shape(re, im)
    _length(re)
    return re


@ifft_spectrum.expand
def _(re: Node, im: Node, norm: str) -> Node:
    return _parts(fft(concat([re, im], re.rank - 1), True, norm))[0]


# --------------------------------------------------------------------------- power, short-time transforms


@composite(
    family=FAMILY,
    samples=[
        sample(spec(5), spec(5)),
        sample(spec(2, 3, 4), spec(2, 3, 4)),
        sample(spec(0, 3), spec(0, 3)),
    ],
)
def psd(re: Float, im: Float) -> TensorType:
    """The power spectral density of a spectrum: ``(re^2 + im^2) / N``, with N the size of the last axis."""
    _require_same_shape(re, im)
    _length(re)
    return re


@psd.expand
def _(re: Node, im: Node) -> Node:
    found: Node = (re * re + im * im) * (1.0 / int(re.shape[-1]))
    return found


@composite(family=FAMILY, samples=_SIGNALS)
def psd_real(x: Float, norm: Norm = "none") -> TensorType:
    """The power spectral density of real signals: ``(re^2 + im^2) / P`` of their ``rfft``, of length P."""
    return x.with_shape((*x.shape[:-1], bins_of(next_power_of_two(_length(x)))))


@psd_real.expand
def _(x: Node, norm: str) -> Node:
    re, im = rfft(x, norm)
    found: Node = (re * re + im * im) * (1.0 / next_power_of_two(int(x.shape[-1])))
    return found


@composite(
    family=FAMILY,
    facts=WHOLE,
    samples=[
        sample(spec(16), 4, 2),
        sample(spec(2, 90), 24, 3, window=spec(24)),
        sample(spec(300), 140, 40),
        sample(spec(2, 11), 5, 3, "ortho"),
        sample(spec(2, 3, 9), 4, 4, window=spec(4)),
        sample(spec(7), 7, 1),
        sample(spec(0, 8), 4, 1),
    ],
)
def stft(
    x: Float, frame_len: int, hop: int, norm: Norm = "none", *, window: Float | None = None
) -> TensorType:
    """The short-time Fourier transform of signals ``[.., T]``: ``rfft`` of frames of ``frame_len`` elements, ``hop`` apart, each times the ``window``.

    The result is ``[frames, .., 2 * (P // 2 + 1)]``, real parts and then imaginary ones, with P the power of two that a frame is padded to. There are
    ``1 + (T - frame_len) // hop`` frames; the signal is not padded at its ends.
    """
    length = _length(x)
    for name, value in (("frame_len", frame_len), ("hop", hop)):
        if value < 1:
            raise ArgumentError(f"{name} must be at least 1, not {value}")
    if length < frame_len:
        raise ShapeError(f"the signal has {length} elements, and a frame {frame_len}")
    if window is not None and window.shape != (frame_len,):
        raise ShapeError(f"window must be ({frame_len},), not {format_shape(window.shape)}")
    frames = 1 + (length - frame_len) // hop
    return x.with_shape((frames, *x.shape[:-1], 2 * bins_of(next_power_of_two(frame_len))))


@stft.expand
def _(x: Node, frame_len: int, hop: int, norm: str, window: Node | None) -> Node:
    graph, last = x.graph, x.rank - 1
    frames = 1 + (int(x.shape[-1]) - frame_len) // hop
    if hop == frame_len:
        whole = cut(x, last, 0, frames * hop)
        parts: Node = whole.reshape((*x.shape[:-1], frames, frame_len))
    else:
        place = graph.iota((frames, 1), 0) * hop + graph.iota((1, frame_len), 1)
        parts = x.gather(place, last)
    parts = parts.transpose((last, *range(last), last + 1))
    if window is not None:
        parts = parts * window
    re, im = real_fft(_padded(parts, next_power_of_two(frame_len)), norm)
    found: Node = concat([re, im], last + 1)
    return found


# --------------------------------------------------------------------------- convolutions, frequencies


@composite(
    family=FAMILY,
    samples=[
        sample(spec(5), spec(3), 1),
        sample(spec(2, 7), spec(4), 16, "ortho"),
        sample(spec(3, 1, 4), spec(2, 6), 0, "forward"),
        sample(spec(0, 3), spec(3), 8),
    ],
)
def fft_conv1d(a: Float, b: Float, n_fft: int = 0, norm: Norm = "none") -> TensorType:
    """The convolution of signals along the last axis, as ``np.convolve``: ``la + lb - 1`` elements; leading axes broadcast.

    It is a product of spectra, of the length of the power of two from ``max(n_fft, la + lb - 1)`` on. ``norm`` says where factors are, of which nothing is left.
    """
    if n_fft < 0:
        raise ArgumentError(f"n_fft must not be negative, but is {n_fft}")
    length = _length(a, "a's last axis") + _length(b, "b's last axis") - 1
    for x in (a, b):
        # A spectrum that no memory could hold is an error here.
        x.with_shape((*x.shape[:-1], next_power_of_two(max(n_fft, length))))
    return TensorType((*broadcast(a.shape[:-1], b.shape[:-1]), length), a.dtype)


@fft_conv1d.expand
def _(a: Node, b: Node, n_fft: int, norm: str) -> Node:
    length = int(a.shape[-1]) + int(b.shape[-1]) - 1
    size = next_power_of_two(max(n_fft, length))
    re, im = rfft(a, n=size)
    re2, im2 = rfft(b, n=size)
    product = re * re2 - im * im2, re * im2 + im * re2
    if size == next_power_of_two(length):
        found: Node = irfft(*product, length, "backward")
        return found
    whole = inverse_real_fft(*product, size, "backward")
    return cut(whole, whole.rank - 1, 0, length)


def _frequencies(graph: Graph, n: int, make: Callable[[int], Array]) -> Node:
    count = integer(n, "n")
    _check_n(count)
    try:
        found = make(count)
    except (MemoryError, ValueError):
        raise ArgumentError(f"n={count} is more than memory holds") from None
    return graph.constant(found, dtype=dtypes.f64)


@builder(family=FAMILY)
def fftfreq_tensor(graph: Graph, n: int) -> Node:
    """The frequencies of a transform of n elements in turns an element, as ``np.fft.fftfreq``: f64 ``[n]``."""
    return _frequencies(graph, n, np.fft.fftfreq)


@builder(family=FAMILY)
def rfftfreq_tensor(graph: Graph, n: int) -> Node:
    """The frequencies of half a spectrum, as ``np.fft.rfftfreq``: f64 ``[n // 2 + 1]``."""
    return _frequencies(graph, n, np.fft.rfftfreq)
