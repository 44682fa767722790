"""Kinds as values: the enums with which RLX's builders name an op.

Every builder that takes one takes its text as well: ``g.activation(Activation.GeluApprox, x)`` and
``g.activation("gelu_approx", x)`` are the same call. A member is a ``str``, equal to darner's own name for
what it stands for:

    >>> Activation.GeluApprox == "gelu_approx"
    True
"""

from __future__ import annotations

from enum import StrEnum


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
