"""Kinds as values: the enums with which RLX's builders name an op.

Every builder that takes one takes its text as well: ``g.activation(Activation.GeluApprox, x)`` and
``g.activation("gelu_approx", x)`` are the same call. A member is a ``str``, equal to darner's own name for
what it stands for:

    >>> Activation.GeluApprox == "gelu_approx"
    True
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Any

from ..graph.node import Node
from ..ops.elementwise import arithmetic, comparison
from ..ops.elementwise.arithmetic import choose
from ..ops.layers.linear import activation_op
from ..ops.reductions.reduce import max_, min_, prod, sum_
from ..ops.reductions.statistics import mean
from .forms import form


class Activation(StrEnum):
    """A function of one operand, element by element."""

    Gelu = "gelu"
    GeluApprox = "gelu_approx"
    Silu = "silu"
    Relu = "relu"
    Sigmoid = "sigmoid"
    Tanh = "tanh"
    Exp = "exp"
    Log = "log"
    Sqrt = "sqrt"
    Rsqrt = "rsqrt"
    Neg = "neg"
    Abs = "abs"
    Sin = "sin"
    Cos = "cos"
    Tan = "tan"
    Atan = "atan"
    Round = "round"
    # Beyond RLX's list.
    Relu6 = "relu6"
    LeakyRelu = "leaky_relu"
    Elu = "elu"
    Selu = "selu"
    Celu = "celu"
    LogSigmoid = "log_sigmoid"
    Softplus = "softplus"
    Softsign = "softsign"
    Mish = "mish"
    HardSigmoid = "hard_sigmoid"
    HardSilu = "hard_silu"
    HardTanh = "hard_tanh"
    QuickGelu = "quick_gelu"


class BinaryOp(StrEnum):
    """Arithmetic of two operands."""

    Add = "add"
    Sub = "sub"
    Mul = "mul"
    Div = "div"
    Max = "max"
    Min = "min"
    Pow = "pow"


class CompareOp(StrEnum):
    """A comparison of two operands."""

    Eq = "eq"
    Ne = "ne"
    Lt = "lt"
    Le = "le"
    Gt = "gt"
    Ge = "ge"


class ReduceOp(StrEnum):
    """What a reduction does with the elements along its axes."""

    Sum = "sum"
    Mean = "mean"
    Max = "max"
    Min = "min"
    Prod = "prod"


class FftNorm(Enum):
    """Where RLX has the factor of a Fourier transform; its words mean something else than NumPy's, so a member is no text.

    ``Backward`` is no factor at all, ``Forward`` divides the inverse by N, ``Ortho`` divides both by sqrt(N). As text, ``norm="forward"`` and the others
    mean what they do in NumPy.
    """

    Backward = "none"
    Forward = "backward"
    Ortho = "ortho"


_BINARY = {
    "add": arithmetic.add,
    "sub": arithmetic.sub,
    "mul": arithmetic.mul,
    "div": arithmetic.div,
    "max": arithmetic.maximum,
    "min": arithmetic.minimum,
    "pow": arithmetic.pow_,
}
_COMPARE = {kind.value: getattr(comparison, kind.value) for kind in CompareOp}
_REDUCTIONS = {"sum": sum_, "mean": mean, "max": max_, "min": min_, "prod": prod}


def _activation(kind: Any, x: Node, shape: object) -> Any:
    return activation_op(kind)(x, shape=shape)


def _binary(op: Any, lhs: Node, rhs: Node, shape: object) -> Any:
    return choose(_BINARY, op, "binary op")(lhs, rhs, shape=shape)


def _compare(op: Any, lhs: Node, rhs: Node, shape: object) -> Any:
    return choose(_COMPARE, op, "comparison")(lhs, rhs, shape=shape)


def _reduce(x: Node, op: Any, axes: Any, keep_dim: bool, shape: object) -> Any:
    return choose(_REDUCTIONS, op, "reduction")(x, axes, keep_dim, shape=shape)


form(
    "activation(kind: Any, x: Node, shape: Any = None)",
    "activation",
    _activation,
    "An activation, or any other element-wise function of one operand, by its name or ``Activation``.",
)
form(
    "binary(op: Any, lhs: Node, rhs: Node, shape: Any = None)",
    "element-wise",
    _binary,
    "A binary op by its kind: add, sub, mul, div, max, min or pow.",
)
form(
    "compare(op: Any, lhs: Node, rhs: Node, shape: Any = None)",
    "comparison",
    _compare,
    "A comparison by its kind: eq, ne, lt, le, gt or ge.",
)
form(
    "reduce(x: Node, op: Any, axes: Any = None, keep_dim: bool = False, shape: Any = None)",
    "reduction",
    _reduce,
    "A reduction by its kind: sum, mean, max, min or prod.",
)
