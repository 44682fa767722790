"""What PyTorch computes for each element-wise op. Operands arrive as float64 (or integer) tensors."""

import torch


class _Reduced(torch.autograd.Function):
    """The nearest number with so many digits, ties to even; 0 below the normal ones of the exponent. Gradients pass."""

    @staticmethod
    def forward(ctx, x, exponent_bits, mantissa_bits):
        fraction, exponent = torch.frexp(x)
        digits = 2.0 ** (mantissa_bits + 1)
        nearest = torch.ldexp(torch.round(fraction * digits) / digits, exponent)
        least = 2.0 ** (2 - 2 ** (exponent_bits - 1))
        return torch.where(nearest.abs() < least, 0.0 * x, nearest)

    @staticmethod
    def backward(ctx, g):
        return g, None, None


ROWS = {
    "reduce_precision": lambda x, exponent_bits, mantissa_bits: _Reduced.apply(
        x, exponent_bits, mantissa_bits
    ),
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "square": torch.square,
    "recip": torch.reciprocal,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "asin": torch.asin,
    "acos": torch.acos,
    "atan": torch.atan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tanh": torch.tanh,
    "asinh": torch.asinh,
    "acosh": torch.acosh,
    "atanh": torch.atanh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "is_nan": torch.isnan,
    "is_inf": torch.isinf,
    "is_finite": torch.isfinite,
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "chain": lambda a, b: torch.where(a == 0, 0.0, a * b),
    "div": torch.div,
    "floor_divide": torch.floor_divide,
    "remainder": torch.remainder,
    "pow": torch.pow,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "atan2": torch.atan2,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "logical_not": torch.logical_not,
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "where": torch.where,
    "clip": lambda x, low=None, high=None: torch.clip(
        x,
        None if low is None else torch.as_tensor(low, dtype=x.dtype),
        None if high is None else torch.as_tensor(high, dtype=x.dtype),
    ),
    "greater": lambda a, b: (a > b).to(a.dtype),
    "stop_gradient": torch.detach,
    "constant": torch.as_tensor,
}


def _cast(x, to):
    kinds = {"i8": torch.int8, "u8": torch.uint8, "i32": torch.int32, "i64": torch.int64}
    if to == "bool":
        return x.bool()
    if to in kinds:
        if x.is_floating_point():
            info = torch.iinfo(kinds[to])
            x = x.trunc().clamp(info.min, info.max)
        return x.to(kinds[to])
    kinds = {
        "f64": torch.float64,
        "f32": torch.float32,
        "f16": torch.float16,
        "bf16": torch.bfloat16,
    }
    return x.to(kinds[to]).double()


ROWS["cast"] = _cast
