"""Activations and gated units. Their derivatives stand in ``activation_gradients``."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ...graph.attributes import Axis, Float, RealNumber
from ...graph.dims import Dim, format_shape
from ...graph.errors import ArgumentError, ShapeError
from ...graph.facts import Facts
from ...graph.node import Node
from ...graph.op import Op, Rule, composite, get_op
from ...graph.types import TensorType
from ..axes import spread
from ..samples import Sample, ints, sample, spec, uniform
from ..shapes.primitives import slice_
from .arithmetic import maximum, minimum, where
from .functions import erf, exp, expm1, log1p, tanh

FAMILY = "activation"

SELU_SCALE = 1.0507009873554805
SELU_ALPHA = 1.6732632423543772
GELU_CUBE = 0.044715
QUICK_GELU_SCALE = 1.702


def _activation(
    name: str,
    doc: str,
    expand: Rule,
    *,
    kind: Any = Float,
    samples: Iterable[Sample] | None = None,
) -> Op:
    """Declare an element-wise composite of one operand."""

    def infer(x: TensorType) -> TensorType:
        return x

    infer.__annotations__ = {"x": kind}
    infer.__doc__ = doc
    op = composite(
        family=FAMILY,
        name=name,
        samples=uniform(-4, 4) if samples is None else samples,
        traits=["elementwise"],
    )(infer)
    op.expand(expand)
    return op


_INTEGERS = sample(ints(6, low=-9, high=10))

relu = _activation(
    "relu",
    "max(x, 0). Its derivative at 0 is 0.",
    lambda x: maximum(x, 0),
    kind=RealNumber,
    samples=[*uniform(), _INTEGERS],
)
relu6 = _activation(
    "relu6",
    "x kept between 0 and 6. Its derivative at 0 and at 6 is 0.",
    lambda x: minimum(maximum(x, 0), 6),
    kind=RealNumber,
    samples=[*uniform(-9, 9), _INTEGERS],
)
sigmoid = _activation(
    "sigmoid",
    "1 / (1 + exp(-x)); exactly 0 and 1 far out, never NaN.",
    lambda x: ((-x).exp() + 1).recip(),
    samples=[*uniform(-4, 4), sample(spec(5, low=-200, high=200))],
)
log_sigmoid = _activation(
    "log_sigmoid",
    "log(sigmoid(x)), exact where sigmoid rounds to 0 or 1.",
    lambda x: minimum(x, 0) - log1p(exp(-abs(x))),
    samples=[*uniform(-4, 4), sample(spec(5, low=-200, high=200))],
)
silu = _activation("silu", "x * sigmoid(x), also called swish.", lambda x: x * sigmoid(x))
gelu = _activation(
    "gelu",
    "x times the normal distribution function of x: 0.5 * x * (1 + erf(x / sqrt(2))).",
    lambda x: 0.5 * x * (erf(x * math.sqrt(0.5)) + 1),
)
gelu_approx = _activation(
    "gelu_approx",
    "gelu through tanh: 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))).",
    lambda x: 0.5 * x * (tanh(math.sqrt(2 / math.pi) * (x + GELU_CUBE * x.square() * x)) + 1),
)
quick_gelu = _activation(
    "quick_gelu", "x * sigmoid(1.702 * x).", lambda x: x * sigmoid(QUICK_GELU_SCALE * x)
)
softplus = _activation(
    "softplus",
    "log(1 + exp(x)), without overflow.",
    lambda x: maximum(x, 0) + log1p(exp(-abs(x))),
    samples=[*uniform(-4, 4), sample(spec(5, low=-200, high=200))],
)
softsign = _activation("softsign", "x / (1 + |x|).", lambda x: x / (abs(x) + 1))
mish = _activation("mish", "x * tanh(softplus(x)).", lambda x: x * tanh(softplus(x)))
hard_sigmoid = _activation(
    "hard_sigmoid",
    "A sigmoid of straight lines: 0 below -3, 1 above 3, x / 6 + 0.5 between. Its derivative at -3 and 3 is 0.",
    lambda x: relu6(x + 3) / 6,
    samples=uniform(-5, 5),
)
hard_silu = _activation(
    "hard_silu",
    "x * hard_sigmoid(x), also called hardswish. Its derivative at -3 is 0, at 3 it is 1.",
    lambda x: x * relu6(x + 3) / 6,
    samples=uniform(-5, 5),
)
hard_tanh = _activation(
    "hard_tanh",
    "x kept between -1 and 1. Its derivative at -1 and 1 is 0.",
    lambda x: minimum(maximum(x, -1), 1),
)


def exponential_below(x: Node, scale: float, alpha: float, inner: float) -> Node:
    """``scale * x`` above 0, ``scale * alpha * (exp(x / inner) - 1)`` from 0 down.

    The exponential never sees a positive x, so neither it nor its derivative overflows.
    """
    above = x > 0
    below = where(above, 0, x)
    bent = expm1(below if inner == 1 else below / inner)
    bent = bent if scale * alpha == 1 else bent * (scale * alpha)
    return where(above, x if scale == 1 else x * scale, bent)


@composite(
    family=FAMILY,
    traits=["elementwise"],
    samples=[*uniform(), sample(spec(3, 5), 0.2), sample(spec(4), slope=0.0)],
)
def leaky_relu(x: Float, slope: float = 0.01) -> TensorType:
    """``x`` above 0, ``slope * x`` below. Its derivative at 0 is ``slope``."""
    return x


@leaky_relu.expand
def _(x: Node, slope: float) -> Node:
    return where(x > 0, x, x * slope)


_ALPHA = [*uniform(-4, 4), sample(spec(3, 5), 0.5), sample(spec(3, low=50, high=200), alpha=2.0)]


@composite(family=FAMILY, traits=["elementwise"], samples=_ALPHA)
def elu(x: Float, alpha: float = 1.0) -> TensorType:
    """``x`` above 0, ``alpha * (exp(x) - 1)`` below. Its derivative at 0 is ``alpha``."""
    return x


@elu.expand
def _(x: Node, alpha: float) -> Node:
    return exponential_below(x, 1, alpha, 1)


@composite(family=FAMILY, traits=["elementwise"], samples=_ALPHA)
def celu(x: Float, alpha: float = 1.0) -> TensorType:
    """``x`` above 0, ``alpha * (exp(x / alpha) - 1)`` below; smooth for every alpha."""
    if alpha == 0:
        raise ArgumentError("alpha is 0, by which x is divided")
    return x


@celu.expand
def _(x: Node, alpha: float) -> Node:
    return exponential_below(x, 1, alpha, alpha)


selu = _activation(
    "selu",
    "elu scaled so that activations keep mean 0 and variance 1. At 0 its derivative is that from below.",
    lambda x: exponential_below(x, SELU_SCALE, SELU_ALPHA, 1),
)

# --------------------------------------------------------------------------- gated units

_GATED = [
    sample(spec(3, 5), spec(3, 5)),
    sample(spec(7), spec(7)),
    sample(spec(), spec()),
    sample(spec(2, 0, 3), spec(2, 0, 3)),
    sample(spec(1, 2, 3), spec(1, 2, 3)),
]


def require_equal_shapes(**types: TensorType) -> None:
    """Refuse operands of one element-wise formula that would have to broadcast."""
    (first, a), *others = types.items()
    for name, b in others:
        if a.shape != b.shape:
            raise ShapeError(
                f"{first} has shape {format_shape(a.shape)} but {name} has {format_shape(b.shape)}"
            )


def repeat_over_batch(op: Op) -> None:
    """Let an op whose operands share their first sizes stay whole over a batch, what is shared repeated along it."""

    @op.vmap
    def _(size: Dim, batched: dict[str, Any], **arguments: Any) -> Node:
        repeated = {
            name: spread(arguments[name], size) for name, own in batched.items() if own is False
        }
        result: Node = op(**{**arguments, **repeated})
        return result


@composite(family=FAMILY, traits=["elementwise"], samples=_GATED)
def swiglu(gate: Float, up: Float) -> TensorType:
    """silu(gate) * up, both of one shape."""
    require_equal_shapes(gate=gate, up=up)
    return gate


@swiglu.expand
def _(gate: Node, up: Node) -> Node:
    return silu(gate) * up


repeat_over_batch(swiglu)


@composite(family=FAMILY, traits=["elementwise"], samples=_GATED)
def geglu(gate: Float, up: Float) -> TensorType:
    """gelu(gate) * up, both of one shape."""
    require_equal_shapes(gate=gate, up=up)
    return gate


@geglu.expand
def _(gate: Node, up: Node) -> Node:
    return gelu(gate) * up


repeat_over_batch(geglu)


def halved(x: TensorType, axis: int) -> TensorType:
    """The type of either half of ``x`` along an axis, whose size must be even."""
    if x.shape[axis] % 2:
        raise ShapeError(f"size {x.shape[axis]} on axis {axis} does not split into halves")
    return x.with_shape([d // 2 if i == axis else d for i, d in enumerate(x.shape)])


def halves(x: Node, axis: int) -> tuple[Node, Node]:
    """The first and the second half of ``x`` along an axis."""
    size = x.shape[axis]

    def part(start: Dim, stop: Dim) -> Node:
        starts: list[Dim] = [0] * x.rank
        stops = list(x.shape)
        starts[axis], stops[axis] = start, stop
        return slice_(x, starts, stops)

    return part(0, size // 2), part(size // 2, size)


_CONCATENATED = [
    sample(spec(3, 10)),
    sample(spec(2, 3, 4)),
    sample(spec(6), gate_first=False),
    sample(spec(3, 10), gate_first=False),
    sample(spec(4, 0)),
    sample(spec(0, 2)),
    sample(spec(1, 2), gate_first=True),
]


def last_axis_halved(x: TensorType) -> TensorType:
    """The type of either half of ``x`` along its last axis."""
    if x.rank == 0:
        raise ShapeError("a scalar has no halves")
    return halved(x, x.rank - 1)


@composite(family=FAMILY, samples=_CONCATENATED, facts=Facts(fused=True))
def swiglu_concat(x: Float, *, gate_first: bool = True) -> TensorType:
    """The swiglu of the two halves of the last axis: [..., 2N] gives [..., N].

    The gate is the first half; with ``gate_first=False`` it is the second, as in RLX's fused form.
    """
    return last_axis_halved(x)


@swiglu_concat.expand
def _(x: Node, gate_first: bool) -> Node:
    first, second = halves(x, x.rank - 1)
    return swiglu(first, second) if gate_first else swiglu(second, first)


repeat_over_batch(swiglu_concat)


@composite(
    family=FAMILY,
    facts=Facts(fused=True),
    samples=[
        sample(spec(3, 10)),
        sample(spec(4, 3), 0),
        sample(spec(2, 6, 3), axis=-2),
        sample(spec(8)),
        sample(spec(0, 2)),
        sample(spec(3, 0), 1),
    ],
)
def glu(x: Float, axis: Axis = -1) -> TensorType:
    """The first half of ``axis`` times the sigmoid of the second half."""
    return halved(x, axis)


@glu.expand
def _(x: Node, axis: int) -> Node:
    first, second = halves(x, axis)
    return first * sigmoid(second)


@glu.vmap
def _(size: Dim, batched: dict[str, Any], x: Node, axis: int) -> Node:
    return glu(x, axis + 1)


# --------------------------------------------------------------------------- by kind

_PLAIN = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp exp2 expm1 floor log log10 log1p log2 "
    "neg recip round rsqrt sign sin sinh sqrt square tan tanh trunc"
)

ACTIVATIONS: dict[str, Op] = {
    op.name: op
    for op in (
        *(relu, relu6, leaky_relu, elu, selu, celu, sigmoid, log_sigmoid, silu, gelu),
        *(gelu_approx, quick_gelu, softplus, softsign, mish),
        *(hard_sigmoid, hard_silu, hard_tanh),
        *map(get_op, _PLAIN.split()),
    )
}
"""Every function of one operand that ``activation`` knows, by its name."""

ALIASES: dict[str, Op] = {"swish": silu, "hard_swish": hard_silu}
