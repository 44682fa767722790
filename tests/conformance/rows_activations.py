"""What PyTorch computes for each activation, and by its autograd for each derivative."""

import torch
import torch.nn.functional as F

FORWARD = {
    "relu": F.relu,
    "relu6": lambda x: x.clamp(0, 6),
    "leaky_relu": lambda x, slope=0.01: F.leaky_relu(x, slope),
    "elu": lambda x, alpha=1.0: F.elu(x, alpha),
    "selu": F.selu,
    "celu": lambda x, alpha=1.0: F.celu(x, alpha),
    "sigmoid": torch.sigmoid,
    "log_sigmoid": F.logsigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_approx": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    # PyTorch's own is x beyond a threshold; this is exact everywhere.
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "softsign": F.softsign,
    "mish": F.mish,
    # PyTorch's own derivative multiplies by a float32 1/6.
    "hard_sigmoid": lambda x: (x + 3).clamp(0, 6) / 6,
    "hard_silu": F.hardswish,
    "hard_tanh": F.hardtanh,
}

UNARY = {
    "abs": torch.abs,
    "acos": torch.acos,
    "acosh": torch.acosh,
    "asin": torch.asin,
    "asinh": torch.asinh,
    "atan": torch.atan,
    "atanh": torch.atanh,
    "cos": torch.cos,
    "cosh": torch.cosh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "neg": torch.neg,
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "sinh": torch.sinh,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tan": torch.tan,
    "tanh": torch.tanh,
}
UNARY["recip"] = torch.reciprocal
UNARY["round"] = lambda x: x  # straight-through


def gradients(function, operands, dy):
    """The gradient of ``function`` with respect to each operand, by PyTorch."""
    leaves = [operand.detach().clone().requires_grad_() for operand in operands]
    return torch.autograd.grad(function(*leaves), leaves, dy)


def activation_backward(kind, x, dy, alpha=None):
    function = {**FORWARD, **UNARY}[kind.lower()]
    extra = () if alpha is None else (alpha,)
    return gradients(lambda x: function(x, *extra), [x], dy)[0]


def swiglu(gate, up):
    return F.silu(gate) * up


def swiglu_concat(x, gate_first=True):
    first, second = x.chunk(2, -1)
    return swiglu(first, second) if gate_first else swiglu(second, first)


ROWS = {
    **FORWARD,
    "swiglu": swiglu,
    "geglu": lambda gate, up: F.gelu(gate) * up,
    "swiglu_concat": swiglu_concat,
    "glu": lambda x, axis=-1: F.glu(x, axis),
    "activation_backward": activation_backward,
    "relu_backward": lambda x, dy: gradients(F.relu, [x], dy)[0],
    "silu_grad": lambda dy, x: gradients(F.silu, [x], dy)[0],
    "swiglu_grad_gate": lambda dy, gate, up: gradients(swiglu, [gate, up], dy)[0],
    "swiglu_grad_up": lambda dy, gate: gradients(swiglu, [gate, gate], dy)[1],
    "swiglu_concat_grad": lambda dy, x, gate_first=True: gradients(
        lambda x: swiglu_concat(x, gate_first), [x], dy
    )[0],
}
