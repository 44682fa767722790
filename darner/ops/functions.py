"""Element-wise functions of one operand: signs, powers, exponentials, trigonometry, rounding.

Where a slope has no bound, the rule is ``g.chain(slope)`` rather than a product: a branch that ``where`` did not take
sends back a cotangent of 0, and 0 it stays, even if the slope there is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..graph import dtypes
from ..graph.attributes import Float, Number, RealNumber
from ..graph.node import Node
from ..graph.op import Op, Rule
from .declare import unary
from .samples import uniform


def _by_element(function: Callable[[float], float]) -> Rule:
    """A NumPy function from one of Python's own."""
    each = np.frompyfunc(function, 1, 1)
    return lambda x: np.asarray(each(x)).astype(x.dtype)


def _falling(x: Node) -> Node:
    """1 - x * x, exact near -1 and 1 too."""
    return (1.0 - x) * (x + 1.0)


neg = unary("neg", "-x.", np.negative, kind=Number, vjp=lambda g, x, y: -g)
abs_ = unary(
    "abs",
    "The absolute value |x|. Its derivative at 0 is 0.",
    np.abs,
    kind=RealNumber,
    vjp=lambda g, x, y: g * x.sign(),
)
sign = unary(
    "sign",
    "-1, 0 or 1 by the sign of x. Its derivative is 0.",
    np.sign,
    kind=RealNumber,
    traits=["no gradient"],
)
square = unary("square", "x * x.", np.square, kind=Number, vjp=lambda g, x, y: g * (2.0 * x))
recip = unary(
    "recip",
    "1 / x. Its derivative is -inf at 0.",
    lambda x: 1 / x,
    samples=uniform(0.5, 3),
    vjp=lambda g, x, y: -g.chain(y * y),
)
exp = unary("exp", "e to the power x.", np.exp, vjp=lambda g, x, y: g.chain(y))
exp2 = unary(
    "exp2", "2 to the power x.", np.exp2, kind=Float, vjp=lambda g, x, y: g.chain(y * math.log(2))
)
expm1 = unary(
    "expm1", "exp(x) - 1, exact near 0.", np.expm1, kind=Float, vjp=lambda g, x, y: g.chain(y + 1.0)
)
log = unary(
    "log",
    "The natural logarithm; -inf at 0, NaN below. Its derivative 1/x is inf at 0.",
    np.log,
    samples=uniform(0.1, 4),
    vjp=lambda g, x, y: g.chain(1.0 / x),
)
log2 = unary(
    "log2",
    "The logarithm to base 2. Its derivative is inf at 0.",
    np.log2,
    kind=Float,
    samples=uniform(0.1, 4),
    vjp=lambda g, x, y: g.chain(1.0 / (x * math.log(2))),
)
log10 = unary(
    "log10",
    "The logarithm to base 10. Its derivative is inf at 0.",
    np.log10,
    kind=Float,
    samples=uniform(0.1, 4),
    vjp=lambda g, x, y: g.chain(1.0 / (x * math.log(10))),
)
log1p = unary(
    "log1p",
    "log(1 + x), exact near 0. Its derivative is inf at -1.",
    np.log1p,
    kind=Float,
    samples=uniform(-0.9, 3),
    vjp=lambda g, x, y: g.chain(1.0 / (x + 1.0)),
)
sqrt = unary(
    "sqrt",
    "The square root; NaN below 0. Its derivative is inf at 0.",
    np.sqrt,
    samples=uniform(0.1, 4),
    vjp=lambda g, x, y: g.chain(0.5 / y),
)
rsqrt = unary(
    "rsqrt",
    "1 / sqrt(x). Its derivative is -inf at 0.",
    lambda x: 1 / np.sqrt(x),
    kind=Float,
    samples=uniform(0.1, 4),
    vjp=lambda g, x, y: g.chain(-0.5 * y / x),
)
sin = unary("sin", "The sine.", np.sin, vjp=lambda g, x, y: g * x.cos())
cos = unary("cos", "The cosine.", np.cos, vjp=lambda g, x, y: -(g * x.sin()))
tan = unary(
    "tan",
    "The tangent.",
    np.tan,
    kind=Float,
    samples=uniform(-1.2, 1.2),
    vjp=lambda g, x, y: g.chain(y * y + 1.0),
)
asin = unary(
    "asin",
    "The inverse sine; NaN outside -1..1. Its derivative is inf at both ends.",
    np.arcsin,
    kind=Float,
    samples=uniform(-0.9, 0.9),
    vjp=lambda g, x, y: g.chain(_falling(x).rsqrt()),
)
acos = unary(
    "acos",
    "The inverse cosine; NaN outside -1..1. Its derivative is -inf at both ends.",
    np.arccos,
    kind=Float,
    samples=uniform(-0.9, 0.9),
    vjp=lambda g, x, y: -g.chain(_falling(x).rsqrt()),
)
atan = unary(
    "atan", "The inverse tangent.", np.arctan, kind=Float, vjp=lambda g, x, y: g / (x * x + 1.0)
)
sinh = unary(
    "sinh", "The hyperbolic sine.", np.sinh, kind=Float, vjp=lambda g, x, y: g.chain(x.cosh())
)
cosh = unary(
    "cosh", "The hyperbolic cosine.", np.cosh, kind=Float, vjp=lambda g, x, y: g.chain(x.sinh())
)
tanh = unary(
    "tanh", "The hyperbolic tangent.", np.tanh, kind=Float, vjp=lambda g, x, y: g * (1.0 - y * y)
)
asinh = unary(
    "asinh",
    "The inverse hyperbolic sine.",
    np.arcsinh,
    kind=Float,
    vjp=lambda g, x, y: g * (x * x + 1.0).rsqrt(),
)
acosh = unary(
    "acosh",
    "The inverse of cosh; NaN below 1. Its derivative is inf at 1.",
    np.arccosh,
    kind=Float,
    samples=uniform(1.1, 4),
    vjp=lambda g, x, y: g.chain(((x - 1.0) * (x + 1.0)).rsqrt()),
)
atanh = unary(
    "atanh",
    "The inverse of tanh; infinite at -1 and 1, as is its derivative, and NaN beyond.",
    np.arctanh,
    kind=Float,
    samples=uniform(-0.9, 0.9),
    vjp=lambda g, x, y: g.chain(1.0 / _falling(x)),
)
_GAUSS = 2 / math.sqrt(math.pi)
erf = unary(
    "erf",
    "The error function.",
    _by_element(math.erf),
    kind=Float,
    vjp=lambda g, x, y: g * ((-(x * x)).exp() * _GAUSS),
)
erfc = unary(
    "erfc",
    "1 - erf(x), exact for large x.",
    _by_element(math.erfc),
    kind=Float,
    vjp=lambda g, x, y: g * ((-(x * x)).exp() * -_GAUSS),
)


def _step(name: str, doc: str, numpy: Rule) -> Op:
    """A function that is constant between its jumps: its derivative is 0."""
    return unary(
        name, f"{doc} Its derivative is 0.", numpy, kind=RealNumber, traits=["no gradient"]
    )


floor = _step("floor", "The largest integer not above x.", np.floor)
ceil = _step("ceil", "The smallest integer not below x.", np.ceil)
trunc = _step("trunc", "x without its fraction.", np.trunc)
round_ = _step("round", "The nearest integer; halves go to the even one.", np.round)
is_nan = unary("is_nan", "Whether x is NaN.", np.isnan, kind=Float, result=dtypes.bool_)
is_inf = unary("is_inf", "Whether x is infinite.", np.isinf, kind=Float, result=dtypes.bool_)
is_finite = unary(
    "is_finite",
    "Whether x is neither infinite nor NaN.",
    np.isfinite,
    kind=Float,
    result=dtypes.bool_,
)
