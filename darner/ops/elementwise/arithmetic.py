"""Element-wise arithmetic of two operands, selection, clipping and casts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graph import dtypes
from ...graph.attributes import Analytic, Float, Mask, Real, RealNumber, Tensor
from ...graph.data import Array
from ...graph.dtypes import DType
from ...graph.errors import ArgumentError, did_you_mean
from ...graph.facts import Facts
from ...graph.node import Node
from ...graph.op import Rule, composite, primitive
from ...graph.scalar import Emit, Scalar
from ...graph.types import TensorType, broadcast
from ..complex_numbers.parts import Pair, is_zero, over, times
from ..declare import FAMILY, binary
from ..faults import power_fault
from ..samples import PAIRS, bools, ints, pairs, sample, spec, uniform

_INTS = [sample(ints(*a, low=-9, high=10), ints(*b, low=-9, high=10)) for a, b in PAIRS]
_MIXED = [
    sample(ints(3, high=5), spec(3)),
    sample(bools(3), spec(3)),
    sample(ints(4, high=9, dtype="u8"), ints(4, high=9, dtype="i8")),
]


add = binary(
    "add",
    "a + b.",
    np.add,
    commutative=True,
    samples=[*pairs(), *_INTS, *_MIXED],
    vjp=(lambda g, a, b, y: g, lambda g, a, b, y: g),
    emit=Emit(lambda a, b: a + b, lambda a, b, signed: a + b, lambda a, b: a | b),
    facts=Facts(cheap=True, by_parts=True),
)
sub = binary(
    "sub",
    "a - b.",
    np.subtract,
    samples=[*pairs(), *_INTS],
    vjp=(lambda g, a, b, y: g, lambda g, a, b, y: -g),
    emit=Emit(lambda a, b: a - b, lambda a, b, signed: a - b),
    facts=Facts(cheap=True, by_parts=True),
)
mul = binary(
    "mul",
    "a * b.",
    np.multiply,
    commutative=True,
    samples=[*pairs(), *_INTS, *_MIXED],
    vjp=(lambda g, a, b, y: g * b, lambda g, a, b, y: g * a),
    emit=Emit(lambda a, b: a * b, lambda a, b, signed: a * b, lambda a, b: a & b),
    facts=Facts(cheap=True),
)
chain = binary(
    "chain",
    """a * b, and 0 wherever a is 0, even if b is infinite or NaN.

    The product that the chain rule means: no cotangent in, none out.
    """,
    lambda a, b: np.where(a == 0, np.zeros((), a.dtype), a * b),
    kind=Analytic,
    vjp=(lambda g, a, b, y: g.chain(b), lambda g, a, b, y: g.chain(a)),
    emit=lambda a, b: a.equals(0.0).choose(a.constant(0.0), a * b),
)
div = binary(
    "div",
    "a / b. Integers are divided as f32.",
    np.true_divide,
    kind=Analytic,
    samples=[*pairs(second=(0.5, 2)), sample(ints(4, high=9), ints(4, low=1, high=9))],
    vjp=(lambda g, a, b, y: g.chain(1.0 / b), lambda g, a, b, y: -g.chain(y / b)),
    emit=lambda a, b: a / b,
    facts=Facts(effort="some", weight=2.0),
)


def _integer_divided(a: Scalar, b: Scalar, signed: bool) -> tuple[Scalar, Scalar]:
    """Quotient rounded down and remainder; both 0 for a divisor of 0."""
    # By 0 and by -1 the instruction may trap, so it never sees them.
    odd = b.equals(0) | b.equals(-1) if signed else b.equals(0)
    safe = odd.choose(b.constant(1), b)
    quotient = a.divided(safe, signed=signed)
    rest = a - quotient * safe
    if signed:
        step = rest.differs(0) & ((rest ^ safe) < 0)
        quotient = step.choose(quotient - 1, quotient)
        rest = step.choose(rest + safe, rest)
        quotient = b.equals(-1).choose(-a, quotient)
    zero = b.equals(0)
    return zero.choose(a.constant(0), quotient), odd.choose(a.constant(0), rest)


floor_divide = binary(
    "floor_divide",
    "floor(a / b), as Python's ``//``. Integer division by 0 gives 0. Its derivatives are 0.",
    np.floor_divide,
    kind=RealNumber,
    samples=[
        *pairs(-9, 9, second=(1.3, 2.2)),
        sample(ints(5, low=-9, high=9), ints(5, low=1, high=4)),
    ],
    traits=["no gradient"],
    emit=Emit(
        lambda a, b: a.floor_divide(b), lambda a, b, signed: _integer_divided(a, b, signed)[0]
    ),
)
remainder = binary(
    "remainder",
    """a - b * floor(a / b), as Python's ``%``: the sign is b's. Integer remainder by 0 gives 0.

    The derivatives are 1 by a and -floor(a / b) by b, at the jumps too.""",
    np.remainder,
    kind=RealNumber,
    samples=[
        *pairs(-9, 9, second=(1.3, 2.2)),
        sample(ints(5, low=-9, high=9), ints(5, low=-4, high=0)),
    ],
    vjp=(lambda g, a, b, y: g, lambda g, a, b, y: -(g * (a // b))),
    emit=Emit(lambda a, b: a.remainder(b), lambda a, b, signed: _integer_divided(a, b, signed)[1]),
)


def _power_slope(a: Node, b: Node) -> Node:
    """The derivative b * a**(b - 1) by a: 0 where b is 0, even at a = 0.

    Only there is the exponent another, so that the mixed derivative 1 / a at b = 0 is exact too.
    """
    corner = (a == 0.0) & (b == 0.0)
    return b * a ** corner.where(1.0, b - 1.0)


def _exponent_slope(a: Node, y: Node) -> Node:
    """The derivative a**b * log(a) by b: 0 at a = 0, where a**b does not move."""
    zero = a == 0.0
    return zero.where(0.0, y * zero.where(1.0, a).log())


def _power(a: Array, b: Array) -> Array:
    """The power a ** b, whose roots are those of ``sqrt`` and ``rsqrt`` at -0 and -infinity too."""
    if a.dtype.kind in "iu" and (b < 0).any():
        raise power_fault(int(b[b < 0].flat[0]))
    value = np.power(a, b)
    if not dtypes.dtype(value.dtype).is_float:
        return value
    root = np.sqrt(a)
    return np.where(b == 0.5, root, np.where(b == -0.5, 1 / root, value)).astype(value.dtype)


pow_ = binary(
    "pow",
    """a to the power b. b = 0.5 is ``sqrt`` and -0.5 is ``rsqrt``, at -0 and -inf too. A negative power of an integer is an error when it runs.

    The derivative by a is b * a**(b - 1), which is 0 for b = 0 whatever a is; the one by b is a**b * log(a), taken
    as 0 at a = 0 and NaN below.""",
    _power,
    kind=RealNumber,
    samples=[*pairs(0.2, 2, second=(-2, 2)), sample(ints(4, low=-3, high=4), ints(4, high=4))],
    vjp=(
        lambda g, a, b, y: g.chain(_power_slope(a, b)),
        lambda g, a, b, y: g.chain(_exponent_slope(a, y)),
    ),
    emit=Emit(lambda a, b: a.power(b), lambda a, b, signed: a.integer_power(b)),
    facts=Facts(effort="much", weight=16.0, fails_on="exponent"),
)


def _between_zeros(numpy: Rule, of_zeros: Rule) -> Rule:
    """NumPy's maximum or minimum, which takes either of two zeros, with the one that IEEE 754 says."""

    def extreme(a: Array, b: Array) -> Array:
        value: Array = numpy(a, b)
        if not dtypes.dtype(value.dtype).is_float:
            return value
        return np.where((a == 0) & (b == 0), of_zeros(a, b), value).astype(value.dtype)

    return extreme


maximum = binary(
    "maximum",
    """The larger of a and b; NaN if either is, and 0 is larger than -0.

    Where they are equal the gradient goes to a.""",
    _between_zeros(np.maximum, lambda a, b: a + b),
    kind=Real,
    samples=[*pairs(), *_INTS],
    vjp=(
        lambda g, a, b, y: (a >= b).where(g, 0.0),
        lambda g, a, b, y: (a >= b).where(0.0, g),
    ),
    emit=Emit(
        lambda a, b: a.maximum(b),
        lambda a, b, signed: a.compare(">", b, signed=signed).choose(a, b),
        lambda a, b: a | b,
    ),
)
minimum = binary(
    "minimum",
    """The smaller of a and b; NaN if either is, and -0 is smaller than 0.

    Where they are equal the gradient goes to a.""",
    _between_zeros(np.minimum, lambda a, b: -(-a - b)),
    kind=Real,
    samples=[*pairs(), *_INTS],
    vjp=(
        lambda g, a, b, y: (a <= b).where(g, 0.0),
        lambda g, a, b, y: (a <= b).where(0.0, g),
    ),
    emit=Emit(
        lambda a, b: a.minimum(b),
        lambda a, b, signed: a.compare("<", b, signed=signed).choose(a, b),
        lambda a, b: a & b,
    ),
)


def _square_of_length(a: Node, b: Node) -> Node:
    """Of the point (a, b); 1 at the origin, where it divides 0."""
    square = a * a + b * b
    return (square == 0.0).where(1.0, square)


atan2 = binary(
    "atan2",
    "The angle of the point (b, a). At the origin its derivatives are taken as 0.",
    np.arctan2,
    kind=Float,
    vjp=(
        lambda g, a, b, y: g * (b / _square_of_length(a, b)),
        lambda g, a, b, y: -(g * (a / _square_of_length(a, b))),
    ),
    emit=lambda a, b: a.atan2(b),
    facts=Facts(effort="much"),
)


# --------------------------------------------------------------------------- complex numbers

mul.pairs(times)
div.pairs(over)


@chain.pairs
def _(a: Pair, b: Pair) -> Pair:
    nothing, product = is_zero(a), times(a, b)
    return Pair(nothing.where(0.0, product.re), nothing.where(0.0, product.im))


# --------------------------------------------------------------------------- selection and casts


@primitive(
    family="comparison",
    facts=Facts(by_parts=True),
    traits=["elementwise"],
    samples=[
        sample(bools(3, 5), spec(3, 5), spec(3, 5)),
        sample(bools(3, 1), spec(5), spec()),
        sample(bools(), spec(0, 3), spec(3)),
        sample(bools(4), ints(4, high=9), spec(4)),
        sample(bools(4), bools(4), bools(1)),
    ],
)
def where(condition: Mask, a: Tensor, b: Tensor) -> TensorType:
    """``a`` where the condition holds, else ``b``. What is not taken receives exactly 0, never NaN."""
    return TensorType(broadcast(condition.shape, a.shape, b.shape), a.dtype)


@where.reference
def _(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition, a, b)


where.rules.emit = Emit(stored=lambda condition, a, b: condition.choose(a, b))


@where.vjp
def _(g: Node, out: Node, condition: Node, a: Node, b: Node) -> Any:
    # Selecting, not multiplying by 0: what is not taken cannot leak NaN.
    return {"a": lambda: where(condition, g, 0.0), "b": lambda: where(condition, 0.0, g)}


@primitive(
    family=FAMILY,
    facts=Facts(cheap=True),
    traits=["elementwise"],
    samples=[
        *(sample(spec(3, 5), to) for to in ("f64", "f32", "f16", "bf16", "bool")),
        sample(spec(3, 5, low=-300, high=300), "i8"),
        sample(spec(0, 3), "i32"),
        sample(ints(4, low=-500, high=500), "i8"),
        sample(ints(4, low=-500, high=500), "u8"),
        sample(ints(4, high=9), "f32"),
        sample(bools(4), "i64"),
    ],
)
def cast(x: Tensor, to: DType) -> TensorType:
    """``x`` with another element type.

    Floats lose their fraction on the way to integers and stop at the type's limits (NaN gives 0); wider
    integers wrap around; anything but 0 is True. Between floats the gradient is cast back.
    """
    if x.dtype.kind == "complex" and to.kind != "complex":
        raise ArgumentError(
            f"{x.dtype} cannot become {to}", hint="take its real part first: x.real()"
        )
    return x.with_dtype(to)


@cast.reference
def _(x: Array, to: DType) -> Array:
    if to.is_int and x.dtype.kind not in "iub":
        low, high = to.limits
        # Compared as floats: the limit of a wide integer may round up to a value outside it.
        values = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=high, neginf=low))
        inside = np.where((values >= low) & (values < high), values, 0).astype(to.numpy)
        return np.where(values >= high, high, np.where(values <= low, low, inside)).astype(to.numpy)
    return x.astype(to.numpy)


cast.rules.emit = Emit(converts=True)


@cast.vjp
def _(g: Node, out: Node, x: Node, to: DType) -> Node:
    # Only the real part of a number that has become complex came from here.
    into_complex = to.kind == "complex" and x.dtype.kind != "complex"
    return cast(g.real() if into_complex else g, x.dtype)


@composite(
    family=FAMILY,
    traits=["elementwise"],
    samples=[
        sample(spec(), -0.5, 0.5),
        sample(spec(3, 5), -0.5, 0.5),
        sample(spec(3, 5), None, 0.5),
        sample(
            spec(
                0,
            ),
            0.0,
        ),
        sample(spec(3, 5), spec(5, low=-1, high=0), spec(3, 1, low=0, high=1)),
        sample(ints(6, low=-9, high=9), -3, 3),
    ],
)
def clip(
    x: RealNumber, low: RealNumber | None = None, high: RealNumber | None = None
) -> TensorType:
    """``x`` kept between ``low`` and ``high``; either may be left out.

    The gradient goes to x at the bounds and between them, beyond a bound to that bound.
    """
    shapes = [bound.shape for bound in (low, high) if bound is not None]
    return TensorType(broadcast(x.shape, *shapes), x.dtype)


@clip.expand
def _(x: Node, low: Node | None, high: Node | None) -> Node:
    if low is not None:
        x = maximum(x, low)
    if high is not None:
        x = minimum(x, high)
    return x


@composite(family="comparison", traits=["elementwise", "no gradient"], samples=pairs())
def greater(a: RealNumber, b: RealNumber) -> TensorType:
    """1 where ``a > b``, else 0, in the operands' element type. (``gt`` gives bool.)"""
    return TensorType(broadcast(a.shape, b.shape), a.dtype)


@greater.expand
def _(a: Node, b: Node) -> Node:
    return (a > b).cast(a.dtype)


@primitive(
    family=FAMILY,
    traits=["elementwise", "view", "no gradient"],
    samples=uniform(),
    facts=Facts(role="point", selects=True, reads_all=True, by_parts=True),
)
def stop_gradient(x: Tensor) -> TensorType:
    """``x``, through which no gradient passes."""
    return x


@stop_gradient.reference
def _(x: Array) -> Array:
    return x


stop_gradient.rules.emit = Emit(stored=lambda x: x)


# --------------------------------------------------------------------------- by kind


def choose(table: dict[str, Any], kind: Any, what: str) -> Any:
    """The entry a name or enum member stands for, whatever its spelling."""
    text = str(getattr(kind, "value", kind)).replace("_", "").lower()
    for name, item in table.items():
        if name.replace("_", "") == text:
            return item
    close = did_you_mean(str(getattr(kind, "value", kind)).lower(), table)
    hint = close if close and len(table) > 10 else f"they are {', '.join(table)}"
    raise ArgumentError(f"no {what} is called {kind!r}", hint=hint)
