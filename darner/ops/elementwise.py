"""Element-wise arithmetic, comparison, logic, selection and casts."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.attributes import (
    Analytic,
    Float,
    Mask,
    Number,
    Real,
    RealNumber,
    Tensor,
)
from ..graph.data import Array
from ..graph.dtypes import DType
from ..graph.errors import ArgumentError, did_you_mean
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.op import Op, Rule, builder, composite, primitive
from ..graph.types import TensorType, broadcast
from .samples import PAIRS, Sample, bools, ints, pairs, sample, spec, uniform

FAMILY = "element-wise"


def unary(
    name: str,
    doc: str,
    numpy: Rule,
    *,
    kind: Any = Analytic,
    result: DType | None = None,
    samples: Iterable[Sample] | None = None,
    family: str = FAMILY,
) -> Op:
    """Declare an element-wise op of one operand: the whole declaration is one call.

    ``kind`` says which element types it takes (the annotations of ``graph.attributes``), ``result`` its
    element type when that is not the operand's.
    """

    def infer(x: TensorType) -> TensorType:
        return x if result is None else x.with_dtype(result)

    infer.__annotations__ = {"x": kind}
    infer.__doc__ = doc
    infer.__module__ = sys._getframe(1).f_globals["__name__"]
    declare = primitive(
        family=family,
        name=name,
        samples=uniform() if samples is None else samples,
        traits=["elementwise"],
    )
    op = declare(infer)
    op.reference(lambda x: numpy(x))
    return op


def binary(
    name: str,
    doc: str,
    numpy: Rule,
    *,
    kind: Any = Number,
    result: DType | None = None,
    samples: Iterable[Sample] | None = None,
    commutative: bool = False,
    family: str = FAMILY,
) -> Op:
    """Declare an element-wise op of two operands that broadcast and share an element type."""

    def infer(a: TensorType, b: TensorType) -> TensorType:
        return TensorType(broadcast(a.shape, b.shape), a.dtype if result is None else result)

    infer.__annotations__ = {"a": kind, "b": kind}
    infer.__doc__ = doc
    infer.__module__ = sys._getframe(1).f_globals["__name__"]
    declare = primitive(
        family=family,
        name=name,
        samples=pairs() if samples is None else samples,
        traits=["elementwise", *(["commutative"] if commutative else [])],
    )
    op = declare(infer)
    op.reference(lambda a, b: numpy(a, b))
    return op


# --------------------------------------------------------------------------- unary


def _by_element(function: Callable[[float], float]) -> Rule:
    """A NumPy function from one of Python's own."""
    each = np.frompyfunc(function, 1, 1)
    return lambda x: np.asarray(each(x)).astype(x.dtype)


neg = unary("neg", "-x.", np.negative, kind=Number)
abs_ = unary("abs", "The absolute value |x|.", np.abs, kind=RealNumber)
sign = unary("sign", "-1, 0 or 1 by the sign of x.", np.sign, kind=RealNumber)
square = unary("square", "x * x.", np.square, kind=Number)
recip = unary("recip", "1 / x.", lambda x: 1 / x, samples=uniform(0.5, 3))
exp = unary("exp", "e to the power x.", np.exp)
exp2 = unary("exp2", "2 to the power x.", np.exp2, kind=Float)
expm1 = unary("expm1", "exp(x) - 1, exact near 0.", np.expm1, kind=Float)
log = unary("log", "The natural logarithm; -inf at 0, NaN below.", np.log, samples=uniform(0.1, 4))
log2 = unary("log2", "The logarithm to base 2.", np.log2, kind=Float, samples=uniform(0.1, 4))
log10 = unary("log10", "The logarithm to base 10.", np.log10, kind=Float, samples=uniform(0.1, 4))
log1p = unary("log1p", "log(1 + x), exact near 0.", np.log1p, kind=Float, samples=uniform(-0.9, 3))
sqrt = unary("sqrt", "The square root; NaN below 0.", np.sqrt, samples=uniform(0.1, 4))
rsqrt = unary(
    "rsqrt", "1 / sqrt(x).", lambda x: 1 / np.sqrt(x), kind=Float, samples=uniform(0.1, 4)
)
sin = unary("sin", "The sine.", np.sin)
cos = unary("cos", "The cosine.", np.cos)
tan = unary("tan", "The tangent.", np.tan, kind=Float, samples=uniform(-1.2, 1.2))
asin = unary("asin", "The inverse sine.", np.arcsin, kind=Float, samples=uniform(-0.9, 0.9))
acos = unary("acos", "The inverse cosine.", np.arccos, kind=Float, samples=uniform(-0.9, 0.9))
atan = unary("atan", "The inverse tangent.", np.arctan, kind=Float)
sinh = unary("sinh", "The hyperbolic sine.", np.sinh, kind=Float)
cosh = unary("cosh", "The hyperbolic cosine.", np.cosh, kind=Float)
tanh = unary("tanh", "The hyperbolic tangent.", np.tanh, kind=Float)
asinh = unary("asinh", "The inverse hyperbolic sine.", np.arcsinh, kind=Float)
acosh = unary("acosh", "The inverse of cosh.", np.arccosh, kind=Float, samples=uniform(1.1, 4))
atanh = unary("atanh", "The inverse of tanh.", np.arctanh, kind=Float, samples=uniform(-0.9, 0.9))
erf = unary("erf", "The error function.", _by_element(math.erf), kind=Float)
erfc = unary("erfc", "1 - erf(x), exact for large x.", _by_element(math.erfc), kind=Float)
floor = unary("floor", "The largest integer not above x.", np.floor, kind=RealNumber)
ceil = unary("ceil", "The smallest integer not below x.", np.ceil, kind=RealNumber)
trunc = unary("trunc", "x without its fraction.", np.trunc, kind=RealNumber)
round_ = unary(
    "round", "The nearest integer; halves go to the even one.", np.round, kind=RealNumber
)
is_nan = unary("is_nan", "Whether x is NaN.", np.isnan, kind=Float, result=dtypes.bool_)
is_inf = unary("is_inf", "Whether x is infinite.", np.isinf, kind=Float, result=dtypes.bool_)
is_finite = unary(
    "is_finite",
    "Whether x is neither infinite nor NaN.",
    np.isfinite,
    kind=Float,
    result=dtypes.bool_,
)

_INTS = [sample(ints(*a, low=-9, high=10), ints(*b, low=-9, high=10)) for a, b in PAIRS]
_BITS = [sample(ints(*a, high=250, dtype="u8"), ints(*b, high=7, dtype="u8")) for a, b in PAIRS]
_BOOLS = [sample(bools(*a), bools(*b)) for a, b in PAIRS]
_MIXED = [
    sample(ints(3, high=5), spec(3)),
    sample(bools(3), spec(3)),
    sample(ints(4, high=9, dtype="u8"), ints(4, high=9, dtype="i8")),
]

# --------------------------------------------------------------------------- binary

add = binary("add", "a + b.", np.add, commutative=True, samples=[*pairs(), *_INTS, *_MIXED])
sub = binary("sub", "a - b.", np.subtract, samples=[*pairs(), *_INTS])
mul = binary("mul", "a * b.", np.multiply, commutative=True, samples=[*pairs(), *_INTS, *_MIXED])
div = binary(
    "div",
    "a / b. Integers are divided as f32.",
    np.true_divide,
    kind=Analytic,
    samples=[*pairs(second=(0.5, 2)), sample(ints(4, high=9), ints(4, low=1, high=9))],
)
floor_divide = binary(
    "floor_divide",
    "floor(a / b), as Python's ``//``. Integer division by 0 gives 0.",
    np.floor_divide,
    kind=RealNumber,
    samples=[
        *pairs(-9, 9, second=(1.3, 2.2)),
        sample(ints(5, low=-9, high=9), ints(5, low=1, high=4)),
    ],
)
remainder = binary(
    "remainder",
    "a - b * floor(a / b), as Python's ``%``: the sign is b's. Integer remainder by 0 gives 0.",
    np.remainder,
    kind=RealNumber,
    samples=[
        *pairs(-9, 9, second=(1.3, 2.2)),
        sample(ints(5, low=-9, high=9), ints(5, low=-4, high=0)),
    ],
)
pow_ = binary(
    "pow",
    "a to the power b. Integers need b >= 0.",
    np.power,
    kind=RealNumber,
    samples=[*pairs(0.2, 2, second=(-2, 2)), sample(ints(4, low=-3, high=4), ints(4, high=4))],
)
maximum = binary(
    "maximum",
    "The larger of a and b; NaN if either is.",
    np.maximum,
    kind=Real,
    commutative=True,
    samples=[*pairs(), *_INTS],
)
minimum = binary(
    "minimum",
    "The smaller of a and b; NaN if either is.",
    np.minimum,
    kind=Real,
    commutative=True,
    samples=[*pairs(), *_INTS],
)
atan2 = binary("atan2", "The angle of the point (b, a).", np.arctan2, kind=Float)


def _comparison(
    name: str, doc: str, numpy: Rule, *, kind: Any = Real, commutative: bool = False
) -> Op:
    return binary(
        name,
        doc,
        numpy,
        kind=kind,
        result=dtypes.bool_,
        commutative=commutative,
        samples=[*pairs(), *_INTS, *_BOOLS[:2]],
        family="comparison",
    )


eq = _comparison("eq", "a == b, as bool.", np.equal, kind=Tensor, commutative=True)
ne = _comparison("ne", "a != b, as bool.", np.not_equal, kind=Tensor, commutative=True)
lt = _comparison("lt", "a < b, as bool.", np.less)
le = _comparison("le", "a <= b, as bool.", np.less_equal)
gt = _comparison("gt", "a > b, as bool.", np.greater)
ge = _comparison("ge", "a >= b, as bool.", np.greater_equal)


def _logic(name: str, doc: str, numpy: Rule) -> Op:
    return binary(
        name, doc, numpy, kind=Mask, commutative=True, samples=_BOOLS, family="comparison"
    )


logical_and = _logic("logical_and", "a and b.", np.logical_and)
logical_or = _logic("logical_or", "a or b.", np.logical_or)
logical_xor = _logic("logical_xor", "Exactly one of a and b.", np.logical_xor)
logical_not = unary(
    "logical_not",
    "not x.",
    np.logical_not,
    kind=Mask,
    samples=[sample(bools(*shape)) for shape in ((), (0,), (3, 5))],
    family="comparison",
)


def _bitwise(name: str, doc: str, numpy: Rule, *, commutative: bool = False) -> Op:
    def infer(a: TensorType, b: TensorType) -> TensorType:
        if not a.dtype.is_int:
            raise ArgumentError(f"bits of {a.dtype} cannot be combined", hint="cast to an integer")
        return TensorType(broadcast(a.shape, b.shape), a.dtype)

    infer.__annotations__ = {"a": RealNumber, "b": RealNumber}
    infer.__doc__ = doc
    traits = ["elementwise", *(["commutative"] if commutative else [])]
    op = primitive(family="bits", name=name, samples=_BITS, traits=traits)(infer)
    op.reference(lambda a, b: numpy(a, b))
    return op


bitwise_and = _bitwise(
    "bitwise_and", "The bits set in both integers.", np.bitwise_and, commutative=True
)
bitwise_or = _bitwise("bitwise_or", "The bits set in either.", np.bitwise_or, commutative=True)
bitwise_xor = _bitwise("bitwise_xor", "The bits set in one.", np.bitwise_xor, commutative=True)
shift_left = _bitwise("shift_left", "a moved b bits up; b is below the width.", np.left_shift)
shift_right = _bitwise("shift_right", "a moved b bits down, keeping the sign.", np.right_shift)

# --------------------------------------------------------------------------- selection and casts


@primitive(
    family="comparison",
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
    """``a`` where the condition holds, else ``b``."""
    return TensorType(broadcast(condition.shape, a.shape, b.shape), a.dtype)


@where.reference
def _(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition, a, b)


@primitive(
    family=FAMILY,
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
    integers wrap around; anything but 0 is True.
    """
    if x.dtype.kind == "complex" and to.kind != "complex":
        raise ArgumentError(f"{x.dtype} cannot become {to}", hint="take its real part first")
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
    """``x`` kept between ``low`` and ``high``; either may be left out."""
    shapes = [bound.shape for bound in (low, high) if bound is not None]
    return TensorType(broadcast(x.shape, *shapes), x.dtype)


@clip.expand
def _(x: Node, low: Node | None, high: Node | None) -> Node:
    if low is not None:
        x = maximum(x, low)
    if high is not None:
        x = minimum(x, high)
    return x


@composite(family="comparison", traits=["elementwise"], samples=pairs())
def greater(a: RealNumber, b: RealNumber) -> TensorType:
    """1 where ``a > b``, else 0, in the operands' element type. (``gt`` gives bool.)"""
    return TensorType(broadcast(a.shape, b.shape), a.dtype)


@greater.expand
def _(a: Node, b: Node) -> Node:
    return gt(a, b).cast(a.dtype)


@primitive(family=FAMILY, traits=["elementwise", "view"], samples=uniform())
def stop_gradient(x: Tensor) -> TensorType:
    """``x``, through which no gradient passes."""
    return x


@stop_gradient.reference
def _(x: Array) -> Array:
    return x


# --------------------------------------------------------------------------- by kind

BINARY = {
    "add": add,
    "sub": sub,
    "mul": mul,
    "div": div,
    "max": maximum,
    "min": minimum,
    "pow": pow_,
}
COMPARE = {"eq": eq, "ne": ne, "lt": lt, "le": le, "gt": gt, "ge": ge}


def choose(table: dict[str, Any], kind: Any, what: str) -> Any:
    """The entry a name or enum member stands for, whatever its spelling."""
    text = str(getattr(kind, "value", kind)).replace("_", "").lower()
    for name, item in table.items():
        if name.replace("_", "") == text:
            return item
    close = did_you_mean(str(getattr(kind, "value", kind)).lower(), table)
    hint = close if close and len(table) > 10 else f"they are {', '.join(table)}"
    raise ArgumentError(f"no {what} is called {kind!r}", hint=hint)


@builder(family=FAMILY, name="binary")
def _binary(graph: Graph, op: Any, lhs: Node, rhs: Node, shape: Any = None) -> Node:
    """A binary op by its kind: add, sub, mul, div, max, min or pow."""
    result: Node = choose(BINARY, op, "binary op")(lhs, rhs, shape=shape)
    return result


@builder(family="comparison")
def compare(graph: Graph, op: Any, lhs: Node, rhs: Node, shape: Any = None) -> Node:
    """A comparison by its kind: eq, ne, lt, le, gt or ge."""
    result: Node = choose(COMPARE, op, "comparison")(lhs, rhs, shape=shape)
    return result
