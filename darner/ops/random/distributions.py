"""Random numbers by their distribution, and dropout: all of them made of ``random_bits``."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from ...graph import dtypes
from ...graph.attributes import Float, Index, ShapeOf, Size
from ...graph.dims import Dim
from ...graph.dtypes import DType
from ...graph.errors import ArgumentError, DTypeError
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import Resolved, builder, composite, resolved
from ...graph.types import TensorType
from ..elementwise.arithmetic import where
from ..samples import ints, sample, spec
from .bits import FAMILY, TRAITS, WORDS, check_source, random_bits, settle_source


def _info(dtype: DType) -> Any:
    return ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]


def _check_float(dtype: DType, **values: float) -> None:
    """The numbers of a distribution must be ones its element type can hold."""
    if not dtype.is_float:
        raise DTypeError(f"dtype must be a float type, not {dtype}")
    for name, value in values.items():
        if not abs(value) <= float(_info(dtype).max):
            raise ArgumentError(f"{name} {value} does not fit in {dtype}")


def _computed(dtype: DType) -> DType:
    return dtypes.f32 if dtype.is_half else dtype


def unit(words: Node, bits: int, dtype: DType) -> Node:
    """The top bits of each word as a number in 0 <= u < 1, exact in ``dtype``."""
    return words.shift_right(32 - bits).cast(dtype) * 2.0**-bits


@composite(
    family=FAMILY,
    traits=[*TRAITS, "no gradient"],
    samples=[
        sample((5,)),
        sample((3, 4), -1.5, 2.5, seed=2**40 + 1),
        sample((2, 3), seed=3, stream=7, dtype="f64"),
        sample((4, 3), seed=4, dtype="f16"),
        sample((9,), 1.0, 2.0, seed=4, dtype="bf16"),
        sample((), 0.0, 0.0),
        sample((0, 2)),
        sample((7,), seed=5, step=ints(high=9)),
    ],
)
def random_uniform(
    shape: ShapeOf,
    low: float = 0.0,
    high: float = 1.0,
    *,
    seed: int = 0,
    stream: int | None = None,
    dtype: DType = dtypes.f32,
    step: Index | None = None,
    bits: int | None = None,
) -> Resolved:
    """Numbers spread evenly over ``low <= x < high``.

    Each is a multiple of 2**-bits of the range, from the top bits of one word of ``random_bits``:
    24 in f32 and f64, 11 in f16 and 8 in bf16, so that nothing rounds up to ``high``. Two calls
    differ by their ``stream``, which is the graph's next unless it is given. Every run gives the
    same numbers, unless ``step`` is a scalar integer node that changes, or True: then it is the
    count of the graph's runs (``random_step``).
    """
    check_source(seed, stream, step)
    _check_float(dtype, low=low, high=high)
    if low > high:
        raise ArgumentError(f"low {low} is above high {high}")
    if not high - low <= float(_info(_computed(dtype)).max):
        raise ArgumentError(f"the range from {low} to {high} does not fit in {_computed(dtype)}")
    if bits is None:
        bits = min(24, int(_info(dtype).nmant) + 1)
    if not 1 <= bits <= 24:
        raise ArgumentError(f"bits {bits} is outside 1..24")
    return resolved(TensorType(shape, dtype), bits=bits)


random_uniform.spelling(settle_source(anew=False))


@random_uniform.expand
def _(
    shape: tuple[Dim, ...],
    low: float,
    high: float,
    seed: int,
    stream: int,
    dtype: DType,
    step: Node,
    bits: int,
) -> Node:
    value = unit(random_bits(shape, seed, stream, step), bits, _computed(dtype))
    if (low, high) == (0.0, 1.0):
        return value
    value = value * (high - low) + low
    ends = np.array([low, high]).astype(dtype.numpy)
    # Scaled numbers may round up to the end of the range.
    return value.minimum(float(max(np.nextafter(ends[1], ends[0]), ends[0])))


@composite(
    family=FAMILY,
    traits=[*TRAITS, "no gradient"],
    samples=[
        sample((5,)),
        sample((3, 4), 1.5, 0.25, seed=2**40 + 1),
        sample((2, 3), seed=3, stream=7, dtype="f64"),
        sample((4, 3), seed=4, dtype="f16"),
        sample((4, 3), 0.0, 2.0, seed=4, dtype="bf16"),
        sample((), 2.0, 0.0),
        sample((0, 2)),
        sample((7,), seed=5, step=ints(high=9)),
    ],
)
def random_normal(
    shape: ShapeOf,
    mean: float = 0.0,
    std: float = 1.0,
    *,
    seed: int = 0,
    stream: int | None = None,
    dtype: DType = dtypes.f32,
    step: Index | None = None,
) -> TensorType:
    """Normally distributed numbers: the cosine branch of Box-Muller.

    Element ``i`` is mean + std * sqrt(-2 log(u)) * cos(2 pi v), where ``u`` in (0, 1] and ``v`` in
    [0, 1) come from the top 24 bits of words 2i and 2i+1 of ``random_bits``. None lies beyond 5.77
    deviations. ``stream`` and ``step`` are those of ``random_uniform``.
    """
    check_source(seed, stream, step)
    _check_float(dtype, mean=mean, std=std)
    if std < 0:
        raise ArgumentError(f"std {std} is negative")
    return TensorType(shape, dtype)


random_normal.spelling(settle_source(anew=False))


@random_normal.expand
def _(
    shape: tuple[Dim, ...],
    mean: float,
    std: float,
    seed: int,
    stream: int,
    dtype: DType,
    step: Node,
) -> Node:
    words = random_bits((*shape, 2), seed, stream, step)
    start: tuple[Dim, ...] = (0,) * len(shape)
    first, second = (
        unit(
            words.slice((*start, i), (*shape, i + 1)).reshape(shape),
            bits=24,
            dtype=_computed(dtype),
        )
        for i in range(2)
    )
    # u is moved up by one place, to (0, 1]: 0 has no logarithm.
    radius = ((first + 2.0**-24).log() * -2.0).sqrt()
    return radius * (second * math.tau).cos() * std + mean


@composite(
    family=FAMILY,
    traits=TRAITS,
    samples=[
        sample((11,), 0.25),
        sample((3, 4), seed=9),
        sample((5,), 0.0),
        sample((5,), 1.0),
        sample((0, 2), 0.5),
        sample((8,), 0.75, seed=5, step=ints(high=9)),
    ],
)
def random_bernoulli(
    shape: ShapeOf,
    p: float = 0.5,
    *,
    seed: int = 0,
    stream: int | None = None,
    step: Index | None = None,
) -> TensorType:
    """True with probability ``p``, exact to 2**-32: where ``random_bits`` is below p * 2**32.

    ``stream`` and ``step`` are those of ``random_uniform``.
    """
    check_source(seed, stream, step)
    _check_probability("p", p)
    return TensorType(shape, dtypes.bool_)


random_bernoulli.spelling(settle_source(anew=False))


def _check_probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ArgumentError(f"{name} must be in 0..1, got {value}")


def _hits(shape: tuple[Dim, ...], p: float, seed: int, stream: int, step: Node) -> Node:
    """Whether each word is below ``p`` of the range; none is drawn where that is certain."""
    limit = round(p * WORDS)
    if limit in (0, WORDS):
        return step.graph.literal(limit > 0, dtypes.bool_).broadcast_to(shape)
    return random_bits(shape, seed, stream, step).lt(limit)


@random_bernoulli.expand
def _(shape: tuple[Dim, ...], p: float, seed: int, stream: int, step: Node) -> Node:
    return _hits(shape, p, seed, stream, step)


@builder(family=FAMILY)
def bernoulli(graph: Graph, shape: Any, p: float = 0.5, **source: Any) -> Node:
    """A short name of ``random_bernoulli``."""
    return graph.random_bernoulli(shape, p, **source)


@composite(
    family=FAMILY,
    traits=TRAITS,
    samples=[
        sample((9,), 0, 10),
        sample((3, 4), -5, 6, seed=2**40 + 1),
        sample((4,), -(2**31), 2**31, seed=3),
        sample((4,), 0, 2**32, seed=3, dtype="u32"),
        sample((4,), -(2**40), -(2**40) + 1000, seed=3, dtype="i64"),
        sample((6,), -128, 128, dtype="i8"),
        sample((), 7, 8),
        sample((0, 2), 0, 3),
        sample((8,), 0, 100, seed=5, step=ints(high=9)),
    ],
)
def random_integers(
    shape: ShapeOf,
    low: int,
    high: int,
    *,
    seed: int = 0,
    stream: int | None = None,
    dtype: DType = dtypes.i32,
    step: Index | None = None,
) -> TensorType:
    """Integers in ``low <= n < high``, at most 2**32 different ones.

    Each is low + (word * (high - low)) >> 32 from one word of ``random_bits``, so probabilities are
    even to 2**-32.
    """
    check_source(seed, stream, step)
    if not dtype.is_int:
        raise DTypeError(f"dtype must be an integer type, not {dtype}")
    if not 0 < high - low <= WORDS:
        raise ArgumentError(f"there must be 1 to 2**32 integers from {low} to below {high}")
    smallest, largest = dtype.limits
    if low < smallest or high - 1 > largest:
        raise ArgumentError(f"{low} to {high - 1} does not fit in {dtype}")
    return TensorType(shape, dtype)


random_integers.spelling(settle_source(anew=False))


@random_integers.expand
def _(
    shape: tuple[Dim, ...], low: int, high: int, seed: int, stream: int, dtype: DType, step: Node
) -> Node:
    words = random_bits(shape, seed, stream, step)
    offset = _high_word(words, high - low)
    if dtype.bits > 32:
        return offset.cast(dtype) + low
    # Modulo 2**32, which the cast to a narrower or signed type takes for what it means.
    return (offset + low % WORDS).cast(dtype)


def _high_word(words: Node, factor: int) -> Node:
    """The upper half of words * factor, in 32-bit arithmetic that every device has."""
    if factor == WORDS:
        return words
    upper, lower = words.shift_right(16), words.bitwise_and(0xFFFF)
    factor_upper, factor_lower = divmod(factor, 1 << 16)
    middle = upper * factor_lower + (lower * factor_lower).shift_right(16)
    carry = (lower * factor_upper + middle.bitwise_and(0xFFFF)).shift_right(16)
    return upper * factor_upper + middle.shift_right(16) + carry


@composite(
    family=FAMILY,
    traits=TRAITS,
    samples=[
        sample(9),
        sample(20, seed=2**40 + 1, stream=3),
        sample(1),
        sample(0),
        sample(12, seed=5, step=ints(high=9)),
    ],
)
def random_permutation(
    n: Size, *, seed: int = 0, stream: int | None = None, step: Index | None = None
) -> TensorType:
    """0 to n - 1 (i32) in a random order: the order that sorts n words of ``random_bits``.

    Two words are equal in one of 2**33 / n**2 permutations; those two then keep their order.
    """
    check_source(seed, stream, step)
    if isinstance(n, int) and n < 0:
        raise ArgumentError(f"n {n} is negative")
    return TensorType((n,), dtypes.i32)


random_permutation.spelling(settle_source(anew=False))


@random_permutation.expand
def _(n: Dim, seed: int, stream: int, step: Node) -> Node:
    return random_bits((n,), seed, stream, step).argsort()


# --------------------------------------------------------------------------- dropout


@composite(
    family=FAMILY,
    traits=TRAITS,
    samples=[
        sample(spec(3, 5)),
        sample(spec(2, 3, 4), 0.25, seed=9),
        sample(spec(3, 5), 0.9, seed=1, stream=4, step=False),
        sample(spec(7), 0.5, step=ints(high=9)),
        sample(spec(4), 0.0),
        sample(spec(4), 1.0),
        sample(spec(0, 3)),
        sample(spec()),
    ],
)
def dropout(
    x: Float,
    rate: float = 0.5,
    *,
    seed: int = 0,
    stream: int | None = None,
    step: Index | None = None,
) -> TensorType:
    """``x`` with elements set to 0 with probability ``rate``, and the others over 1 - rate.

    Which ones changes with every run of the graph; ``step=False`` keeps one choice for ever, and a
    scalar integer node as ``step`` decides itself. ``rate=1`` gives zeros.
    """
    check_source(seed, stream, step)
    _check_probability("rate", rate)
    return x


dropout.spelling(settle_source(anew=True))


@dropout.expand
def _(x: Node, rate: float, seed: int, stream: int, step: Node) -> Node:
    dropped = _hits(x.shape, rate, seed, stream, step)
    return where(dropped, 0.0, x if rate == 1 else x * (1 / (1 - rate)))


@dropout.vjp
def _(g: Node, out: Node, x: Node, rate: float, seed: int, stream: int, step: Node) -> Any:
    return {"x": lambda: dropout(g, rate, seed=seed, stream=stream, step=step)}
