"""Element-wise functions of one operand: signs, powers, exponentials, trigonometry, rounding.

Where a slope has no bound, the rule is ``g.chain(slope)`` rather than a product: a branch that ``where`` did not take
sends back a cotangent of 0, and 0 it stays, even if the slope there is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...graph import dtypes
from ...graph.attributes import Float, Number, RealNumber
from ...graph.facts import Facts
from ...graph.node import Node
from ...graph.op import Op, Rule, primitive
from ...graph.scalar import Emit, Scalar
from ...graph.types import TensorType
from ..complex_numbers.numbers import real_type
from ..complex_numbers.parts import Pair, over, times
from ..declare import FAMILY, attach, unary
from ..samples import sample, spec, uniform
from .arithmetic import where


def _by_element(function: Callable[[float], float]) -> Rule:
    """A NumPy function from one of Python's own."""
    each = np.frompyfunc(function, 1, 1)
    return lambda x: np.asarray(each(x)).astype(x.dtype)


def _falling(x: Node) -> Node:
    """1 - x * x, exact near -1 and 1 too."""
    return (1.0 - x) * (x + 1.0)


def _sign(x: Scalar) -> Scalar:
    one = x.constant(1.0)
    moved = (x < 0.0).choose(-one, (x.equals(0.0)).choose(x.constant(0.0), x))
    return (x > 0.0).choose(one, moved)


def _integer_sign(x: Scalar, *, signed: bool) -> Scalar:
    up = x.differs(0).choose(x.constant(1), 0)
    return (x < 0).choose(x.constant(-1), up) if signed else up


def _integer_abs(x: Scalar, *, signed: bool) -> Scalar:
    return (x < 0).choose(-x, x) if signed else x


neg = unary(
    "neg",
    "-x.",
    np.negative,
    kind=Number,
    vjp=lambda g, x, y: -g,
    emit=Emit(lambda x: -x, lambda x, signed: -x),
    facts=Facts(cheap=True, by_parts=True),
)


@primitive(
    family=FAMILY,
    name="abs",
    traits=["elementwise"],
    samples=[
        *uniform(),
        sample(spec(3, 5, kind="complex", dtype="c64")),
        sample(spec(0, 2, kind="complex", dtype="c64")),
    ],
)
def abs_(x: Number) -> TensorType:
    """The absolute value |x|, of complex numbers too. Its derivative at 0 is 0."""
    return x if x.dtype.kind != "complex" else x.with_dtype(real_type(x.dtype))


abs_.reference(lambda x: np.abs(x))
attach(abs_, Emit(lambda x: x.abs(), _integer_abs))


@abs_.vjp
def _(g: Node, out: Node, x: Node) -> Node:
    if x.dtype.kind != "complex":
        real: Node = g * x.sign()
        return real
    unit: Node = where(out.eq(0.0), 0.0, x.conjugate() / where(out.eq(0.0), 1.0, out))
    return g * unit


sign = unary(
    "sign",
    "-1, 0 or 1 by the sign of x. Its derivative is 0.",
    np.sign,
    kind=RealNumber,
    traits=["no gradient"],
    emit=Emit(_sign, _integer_sign),
)
square = unary(
    "square",
    "x * x.",
    np.square,
    kind=Number,
    vjp=lambda g, x, y: g * (2.0 * x),
    emit=Emit(lambda x: x * x, lambda x, signed: x * x),
)
recip = unary(
    "recip",
    "1 / x. Its derivative is -inf at 0.",
    lambda x: 1 / x,
    samples=uniform(0.5, 3),
    vjp=lambda g, x, y: -g.chain(y * y),
    emit=lambda x: 1.0 / x,
    facts=Facts(effort="some", weight=2.0),
)
exp = unary(
    "exp",
    "e to the power x.",
    np.exp,
    vjp=lambda g, x, y: g.chain(y),
    emit=lambda x: x.exp(),
    facts=Facts(effort="much", weight=8.0),
)
exp2 = unary(
    "exp2",
    "2 to the power x.",
    np.exp2,
    kind=Float,
    vjp=lambda g, x, y: g.chain(y * math.log(2)),
    emit=lambda x: x.exp2(),
    facts=Facts(effort="much"),
)
expm1 = unary(
    "expm1",
    "exp(x) - 1, exact near 0.",
    np.expm1,
    kind=Float,
    vjp=lambda g, x, y: g.chain(y + 1.0),
    emit=lambda x: x.expm1(),
    facts=Facts(effort="much"),
)
log = unary(
    "log",
    "The natural logarithm; -inf at 0, NaN below. Its derivative 1/x is inf at 0.",
    np.log,
    samples=uniform(0.1, 4),
    vjp=lambda g, x, y: g.chain(1.0 / x),
    emit=lambda x: x.log(),
    facts=Facts(effort="much", weight=8.0),
)
log2 = unary(
    "log2",
    "The logarithm to base 2. Its derivative is inf at 0.",
    np.log2,
    kind=Float,
    samples=uniform(0.1, 4),
    vjp=lambda g, x, y: g.chain(1.0 / (x * math.log(2))),
    emit=lambda x: x.log2(),
    facts=Facts(effort="much"),
)
log10 = unary(
    "log10",
    "The logarithm to base 10. Its derivative is inf at 0.",
    np.log10,
    kind=Float,
    samples=uniform(0.1, 4),
    vjp=lambda g, x, y: g.chain(1.0 / (x * math.log(10))),
    emit=lambda x: x.log10(),
    facts=Facts(effort="much"),
)
log1p = unary(
    "log1p",
    "log(1 + x), exact near 0. Its derivative is inf at -1.",
    np.log1p,
    kind=Float,
    samples=uniform(-0.9, 3),
    vjp=lambda g, x, y: g.chain(1.0 / (x + 1.0)),
    emit=lambda x: x.log1p(),
    facts=Facts(effort="much"),
)
sqrt = unary(
    "sqrt",
    "The square root; NaN below 0. Its derivative is inf at 0.",
    np.sqrt,
    samples=uniform(0.1, 4),
    vjp=lambda g, x, y: g.chain(0.5 / y),
    emit=lambda x: x.sqrt(),
    facts=Facts(effort="some"),
)
rsqrt = unary(
    "rsqrt",
    "1 / sqrt(x). Its derivative is -inf at 0.",
    lambda x: 1 / np.sqrt(x),
    kind=Float,
    samples=uniform(0.1, 4),
    vjp=lambda g, x, y: g.chain(-0.5 * y / x),
    emit=lambda x: 1.0 / x.sqrt(),
    facts=Facts(effort="some"),
)
sin = unary(
    "sin",
    "The sine.",
    np.sin,
    vjp=lambda g, x, y: g * x.cos(),
    emit=lambda x: x.sin(),
    facts=Facts(effort="much"),
)
cos = unary(
    "cos",
    "The cosine.",
    np.cos,
    vjp=lambda g, x, y: -(g * x.sin()),
    emit=lambda x: x.cos(),
    facts=Facts(effort="much"),
)
tan = unary(
    "tan",
    "The tangent.",
    np.tan,
    kind=Float,
    samples=uniform(-1.2, 1.2),
    vjp=lambda g, x, y: g.chain(y * y + 1.0),
    emit=lambda x: x.tan(),
    facts=Facts(effort="much"),
)
asin = unary(
    "asin",
    "The inverse sine; NaN outside -1..1. Its derivative is inf at both ends.",
    np.arcsin,
    kind=Float,
    samples=uniform(-0.9, 0.9),
    vjp=lambda g, x, y: g.chain(_falling(x).rsqrt()),
    emit=lambda x: x.asin(),
    facts=Facts(effort="much"),
)
acos = unary(
    "acos",
    "The inverse cosine; NaN outside -1..1. Its derivative is -inf at both ends.",
    np.arccos,
    kind=Float,
    samples=uniform(-0.9, 0.9),
    vjp=lambda g, x, y: -g.chain(_falling(x).rsqrt()),
    emit=lambda x: x.acos(),
    facts=Facts(effort="much"),
)
atan = unary(
    "atan",
    "The inverse tangent.",
    np.arctan,
    kind=Float,
    vjp=lambda g, x, y: g / (x * x + 1.0),
    emit=lambda x: x.atan(),
    facts=Facts(effort="much"),
)
sinh = unary(
    "sinh",
    "The hyperbolic sine.",
    np.sinh,
    kind=Float,
    vjp=lambda g, x, y: g.chain(x.cosh()),
    emit=lambda x: x.sinh(),
    facts=Facts(effort="much"),
)
cosh = unary(
    "cosh",
    "The hyperbolic cosine.",
    np.cosh,
    kind=Float,
    vjp=lambda g, x, y: g.chain(x.sinh()),
    emit=lambda x: x.cosh(),
    facts=Facts(effort="much"),
)
tanh = unary(
    "tanh",
    "The hyperbolic tangent.",
    np.tanh,
    kind=Float,
    vjp=lambda g, x, y: g * (1.0 - y * y),
    emit=lambda x: x.tanh(),
    facts=Facts(effort="much", weight=8.0),
)
asinh = unary(
    "asinh",
    "The inverse hyperbolic sine.",
    np.arcsinh,
    kind=Float,
    vjp=lambda g, x, y: g * (x * x + 1.0).rsqrt(),
    emit=lambda x: x.asinh(),
    facts=Facts(effort="much"),
)
acosh = unary(
    "acosh",
    "The inverse of cosh; NaN below 1. Its derivative is inf at 1.",
    np.arccosh,
    kind=Float,
    samples=uniform(1.1, 4),
    vjp=lambda g, x, y: g.chain(((x - 1.0) * (x + 1.0)).rsqrt()),
    emit=lambda x: x.acosh(),
    facts=Facts(effort="much"),
)
atanh = unary(
    "atanh",
    "The inverse of tanh; infinite at -1 and 1, as is its derivative, and NaN beyond.",
    np.arctanh,
    kind=Float,
    samples=uniform(-0.9, 0.9),
    vjp=lambda g, x, y: g.chain(1.0 / _falling(x)),
    emit=lambda x: x.atanh(),
    facts=Facts(effort="much"),
)
_GAUSS = 2 / math.sqrt(math.pi)
erf = unary(
    "erf",
    "The error function.",
    _by_element(math.erf),
    kind=Float,
    vjp=lambda g, x, y: g * ((-(x * x)).exp() * _GAUSS),
    emit=lambda x: x.erf(),
    facts=Facts(effort="much", weight=8.0),
)
erfc = unary(
    "erfc",
    "1 - erf(x), exact for large x.",
    _by_element(math.erfc),
    kind=Float,
    vjp=lambda g, x, y: g * ((-(x * x)).exp() * -_GAUSS),
    emit=lambda x: x.erfc(),
    facts=Facts(effort="much"),
)


def _step(name: str, doc: str, numpy: Rule, emit: Rule) -> Op:
    """A function that is constant between its jumps: its derivative is 0."""
    return unary(
        name,
        f"{doc} Its derivative is 0.",
        numpy,
        kind=RealNumber,
        traits=["no gradient"],
        emit=Emit(emit, lambda x, signed: x),
    )


floor = _step("floor", "The largest integer not above x.", np.floor, lambda x: x.floor())
ceil = _step("ceil", "The smallest integer not below x.", np.ceil, lambda x: x.ceil())
trunc = _step("trunc", "x without its fraction.", np.trunc, lambda x: x.trunc())
round_ = _step(
    "round", "The nearest integer; halves go to the even one.", np.round, lambda x: x.round()
)
is_nan = unary(
    "is_nan",
    "Whether x is NaN.",
    np.isnan,
    kind=Float,
    result=dtypes.bool_,
    emit=lambda x: x.is_nan(),
)
is_inf = unary(
    "is_inf",
    "Whether x is infinite.",
    np.isinf,
    kind=Float,
    result=dtypes.bool_,
    emit=lambda x: x.absolute().equals(math.inf),
)
is_finite = unary(
    "is_finite",
    "Whether x is neither infinite nor NaN.",
    np.isfinite,
    kind=Float,
    result=dtypes.bool_,
    emit=lambda x: x.absolute() < math.inf,
)


# --------------------------------------------------------------------------- complex numbers


def _size(a: Pair) -> tuple[Node, Node]:
    """The larger of the absolute parts, and the square of the smaller over it."""
    large = a.re.abs().maximum(a.im.abs())
    small = a.re.abs().minimum(a.im.abs())
    return large, large.eq(0.0).where(0.0, (small / large).square())


@abs_.pairs
def _(x: Pair) -> Node:
    large, ratio = _size(x)
    size: Node = large * (ratio + 1.0).sqrt()
    # Neither is the ratio of infinities a number, nor is there one of nothing.
    return large.eq(math.inf).where(math.inf, size)


@recip.pairs
def _(x: Pair) -> Pair:
    graph = x.re.graph
    return over(Pair(graph.ones(x.re.shape, x.re.dtype), graph.zeros(x.re.shape, x.re.dtype)), x)


@square.pairs
def _(x: Pair) -> Pair:
    return times(x, x)


@exp.pairs
def _(x: Pair) -> Pair:
    size = x.re.exp()
    return Pair(size * x.im.cos(), x.im.eq(0.0).where(x.im, size * x.im.sin()))


@log.pairs
def _(x: Pair) -> Pair:
    large, ratio = _size(x)
    return Pair(large.log() + ratio.log1p() * 0.5, x.im.atan2(x.re))


@sqrt.pairs
def _(x: Pair) -> Pair:
    large, ratio = _size(x)
    size = large * (ratio + 1.0).sqrt()
    main = ((size + x.re.abs()) * 0.5).sqrt()
    other = main.eq(0.0).where(0.0, x.im.abs() / (main * 2.0))
    right = x.re.ge(0.0)
    im = right.where(other, main)
    return Pair(right.where(main, other), x.im.lt(0.0).where(-im, im))


@sin.pairs
def _(x: Pair) -> Pair:
    return Pair(x.re.sin() * x.im.cosh(), x.re.cos() * x.im.sinh())


@cos.pairs
def _(x: Pair) -> Pair:
    return Pair(x.re.cos() * x.im.cosh(), -(x.re.sin() * x.im.sinh()))
