"""Every element-wise primitive as LLVM IR: the renderer of scalar expressions.

``emit`` writes the code of one op for one lane or a vector of any width:

    value = emit("tanh", builder, [x], [f32], f32)

How element types stand in registers: f64 is double, f32 float and f16 half; bf16 is an i16 of its bits;
integers have their width; bool is an i1 (an i8 is accepted, and is true unless 0). ``register_type`` and
``memory_type`` say so. 16-bit floats are computed in f32 and rounded to nearest even, once per op.

Accuracy, in units in the last place, on dense samples of every range, denormal and huge ones included: f32 within
2 and f64 within 2, except f64 tan and erfc (3.5) and asin, sinh and atan2 (2.5). sin, cos and tan reduce any angle exactly, lane
by lane beyond 2**17 (f32) or 2**30 (f64); so do ``remainder`` and ``floor_divide`` where the quotient passes 2**52. A
target without fused multiply-add, or without instructions that round to integers, would make LLVM call a library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from ...graph.dtypes import DType, bf16, bool_
from ...graph.errors import DTypeError, InternalError, UnknownNameError, nearest
from . import elementary
from .lanes import Lane
from .types import Builder, ElementBuilder, Type, Value

Row = Callable[[str, Sequence[Lane], Sequence[DType], DType], Lane]


def register_type(dtype: DType, lanes: int | None = None) -> Type:
    """The IR type of a value in a register: a scalar, or a vector of so many lanes."""
    from llvmlite import ir  # type: ignore[import-untyped]

    if dtype.kind == "complex":
        raise DTypeError(f"{dtype} has no register type", hint="split it into two floats")
    if dtype.is_float and dtype is not bf16:
        element = {64: ir.DoubleType, 32: ir.FloatType, 16: ir.HalfType}[dtype.bits]()
    else:
        element = ir.IntType(dtype.bits)
    return element if lanes is None else ir.VectorType(element, lanes)


def memory_type(dtype: DType, lanes: int | None = None) -> Type:
    """As ``register_type``, for loads and stores: bool takes a byte."""
    from llvmlite import ir

    if dtype is not bool_:
        return register_type(dtype, lanes)
    return ir.IntType(8) if lanes is None else ir.VectorType(ir.IntType(8), lanes)


def emit(
    op_name: str,
    builder: ElementBuilder,
    arguments: Sequence[Value],
    dtypes: Sequence[DType],
    result: DType,
    attrs: Mapping[str, DType] | None = None,
) -> Value:
    """The code of one element-wise primitive, at the builder's position.

    Args:
        op_name: the op's name in the registry, or one of ``STEPS``.
        builder: an ``llvmlite.ir.IRBuilder``, which stays in the basic block where it stands, or another writer of these instructions, whose ``lane`` is
            the class of its values; one that has ``routine`` decides there what becomes a function.
        arguments: one IR value per operand, all scalars or all vectors of one width.
        dtypes: the element type of each operand.
        result: the element type of the value returned.
        attrs: the node's attributes. No op here needs any: what ``cast`` casts to is ``result``.

    Raises:
        UnknownNameError: no row has that name.
        DTypeError: the op does not take these element types.
    """
    row = ROWS.get(op_name, STEPS.get(op_name))
    if row is None:
        raise UnknownNameError(
            f"the CPU has no element-wise code for '{op_name}'", hint=nearest(op_name, ROWS)
        )
    for dtype in (*dtypes, result):
        if dtype.kind == "complex":
            raise DTypeError(f"{op_name} of {dtype} is not element-wise code on the CPU")
    if len(arguments) != len(dtypes):
        raise InternalError(f"{op_name}: {len(arguments)} values but {len(dtypes)} element types")
    made = getattr(builder, "lane", Lane)

    def code(into: Builder, values: Sequence[Value]) -> Value:
        pairs = zip(values, dtypes, strict=True)
        lanes = [_loaded(made(into, value), dtype) for value, dtype in pairs]
        return row(op_name, lanes, dtypes, result).value

    routine = getattr(builder, "routine", None)
    if routine is None:
        return code(builder, arguments)
    # What takes many instructions is written once, and called.
    return routine("_".join(map(str, (op_name, *dtypes, result))), arguments, code)


# --------------------------------------------------------------------------- conversions


def _loaded(x: Lane, dtype: DType) -> Lane:
    """A bool as a mask, whichever width it came in."""
    return x.differs(0) if dtype is bool_ and x.bits != 1 else x


def _widened(x: Lane, dtype: DType) -> Lane:
    """A 16-bit float as f32; anything else as it is."""
    if dtype is bf16:
        return x.resized(32, signed=False).shift_left(16).as_float()
    return x.refloated(32) if dtype.is_half else x


def _narrowed(x: Lane, dtype: DType) -> Lane:
    """An f32 or f64 as another float type, rounded once to nearest even."""
    if not dtype.is_half:
        return x.refloated(dtype.bits)
    if x.bits == 64:
        x = _rounded_to_odd(x)
    if dtype is not bf16:
        return x.refloated(16)
    bits = x.as_integer()
    upper = bits.shift_right(16, signed=False)
    even = (bits + 0x7FFF + (upper & 1)).shift_right(16, signed=False)
    return x.is_nan().choose(upper | 0x40, even).resized(16, signed=False)


def _rounded_to_odd(x: Lane) -> Lane:
    """An f64 as f32 such that rounding it again to 16 bits is as rounding the f64."""
    near = x.refloated(32)
    back, bits = near.refloated(64), near.as_integer()
    short = back.absolute() < x.absolute()
    other = short.choose(bits + 1, bits - 1)
    wrong = back.differs(x) & ~x.is_nan() & (bits & 1).equals(0)
    return wrong.choose(other, bits).as_float()


def _converted(x: Lane, source: DType, target: DType) -> Lane:
    """``x`` with another element type, as ``cast`` defines it."""
    if source is target:
        return x
    x = _widened(x, source)
    if target is bool_:
        return x.differs(0)
    if source.is_float:
        if target.is_float:
            return _narrowed(x, target)
        return x.to_integer(target.bits, signed=target.signed)
    if target.is_float:
        return _narrowed(x.to_float(max(target.bits, 32), signed=source.signed), target)
    return x.resized(target.bits, signed=source.signed)


def _cast(op: str, lanes: Sequence[Lane], dtypes: Sequence[DType], result: DType) -> Lane:
    return _converted(lanes[0], dtypes[0], result)


# --------------------------------------------------------------------------- kinds of rows


def _row(
    floats: Callable[..., Lane] | None = None,
    integers: Callable[..., Lane] | None = None,
    *,
    bools: Callable[..., Lane] | None = None,
    result: str = "same",
) -> Row:
    """A row of the table: the code for floats, for integers (which is told whether they are signed), for bools.

    ``result`` is "same" where the result has the operands' type and "bool" where it is a mask.
    """

    def row(op: str, lanes: Sequence[Lane], dtypes: Sequence[DType], to: DType) -> Lane:
        operand = dtypes[0]
        if any(dtype is not operand for dtype in dtypes):
            raise DTypeError(f"{op} needs operands of one type, not {', '.join(map(str, dtypes))}")
        if integers is None and bools is None and to.is_float and not operand.is_float:
            # A function of floats: integers come in as the float type that goes out.
            lanes = [_converted(lane, operand, to) for lane in lanes]
            operand = to
        if operand.is_float and floats is not None:
            value = floats(*(_widened(lane, operand) for lane in lanes))
            return value if result == "bool" else _narrowed(value, operand)
        if operand.is_int and integers is not None:
            return integers(*lanes, signed=operand.signed)
        if operand is bool_ and bools is not None:
            return bools(*lanes)
        raise DTypeError(f"{op} does not take {operand}", hint="cast the operands first")

    return row


def _where(op: str, lanes: Sequence[Lane], dtypes: Sequence[DType], result: DType) -> Lane:
    condition, chosen, otherwise = lanes
    return condition.choose(
        _converted(chosen, dtypes[1], result), _converted(otherwise, dtypes[2], result)
    )


def _same(x: Lane, *, signed: bool = True) -> Lane:
    return x


def _plain(function: Callable[..., Lane]) -> Callable[..., Lane]:
    """Integer code that is the same for signed and unsigned."""
    return lambda *lanes, signed: function(*lanes)


def _unit(name: str) -> Callable[[Lane], Lane]:
    return lambda x: x.intrinsic(name)


# --------------------------------------------------------------------------- floats


def _sign(x: Lane) -> Lane:
    one = x.constant(1.0)
    moved = (x < 0.0).choose(-one, (x.equals(0.0)).choose(x.constant(0.0), x))
    return (x > 0.0).choose(one, moved)


def _chain(a: Lane, b: Lane) -> Lane:
    return a.equals(0.0).choose(a.constant(0.0), a * b)


def _divided(a: Lane, b: Lane) -> tuple[Lane, Lane]:
    """Quotient rounded down and remainder with the divisor's sign, of f64 lanes."""
    rest = a.truncated_remainder(b)
    quotient = (a - rest) / b
    none = rest.equals(0.0)
    other_side = (rest.as_integer() ^ b.as_integer()) < 0
    step = ~none & other_side
    quotient = step.choose(quotient - 1.0, quotient)
    rest = none.choose(rest.constant(0.0).with_sign_of(b), step.choose(rest + b, rest))
    nearest_below = quotient.intrinsic("floor")
    off = (quotient - nearest_below) > 0.5
    nearest_below = off.choose(nearest_below + 1.0, nearest_below)
    zero = quotient.constant(0.0).with_sign_of(a / b)
    whole = quotient.equals(0.0).choose(zero, nearest_below)
    return b.equals(0.0).choose(a / b, whole), rest


@elementary.through_double
def _floor_divide(a: Lane, b: Lane) -> Lane:
    return _divided(a, b)[0]


@elementary.through_double
def _remainder(a: Lane, b: Lane) -> Lane:
    return _divided(a, b)[1]


# --------------------------------------------------------------------------- integers


def _integer_abs(x: Lane, *, signed: bool) -> Lane:
    return (x < 0).choose(-x, x) if signed else x


def _integer_sign(x: Lane, *, signed: bool) -> Lane:
    up = x.differs(0).choose(x.constant(1), 0)
    return (x < 0).choose(x.constant(-1), up) if signed else up


def _integer_divided(a: Lane, b: Lane, signed: bool) -> tuple[Lane, Lane]:
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


def _integer_floor_divide(a: Lane, b: Lane, *, signed: bool) -> Lane:
    return _integer_divided(a, b, signed)[0]


def _integer_remainder(a: Lane, b: Lane, *, signed: bool) -> Lane:
    return _integer_divided(a, b, signed)[1]


def _extreme(operator: str) -> Callable[..., Lane]:
    return lambda a, b, signed: a.compare(operator, b, signed=signed).choose(a, b)


def _shift_left(a: Lane, b: Lane) -> Lane:
    inside = b.compare("<", a.bits, signed=False)
    return inside.choose(a.shift_left(inside.choose(b, 0)), 0)


def _shift_right(a: Lane, b: Lane, *, signed: bool) -> Lane:
    inside = b.compare("<", a.bits, signed=False)
    if not signed:
        return inside.choose(a.shift_right(inside.choose(b, 0), signed=False), 0)
    return a.shift_right(inside.choose(b, a.bits - 1), signed=True)


def _comparison(operator: str) -> Callable[..., Lane]:
    def compared(a: Lane, b: Lane, signed: bool = False) -> Lane:
        return a.compare(operator, b, signed=signed)

    return compared


# --------------------------------------------------------------------------- the table


def _compare_row(operator: str) -> Row:
    code = _comparison(operator)
    return _row(code, code, bools=code, result="bool")


ROWS: dict[str, Row] = {
    # arithmetic
    "add": _row(Lane.__add__, _plain(Lane.__add__), bools=Lane.__or__),
    "sub": _row(Lane.__sub__, _plain(Lane.__sub__)),
    "mul": _row(Lane.__mul__, _plain(Lane.__mul__), bools=Lane.__and__),
    "chain": _row(_chain),
    "div": _row(Lane.__truediv__),
    "floor_divide": _row(_floor_divide, _integer_floor_divide),
    "remainder": _row(_remainder, _integer_remainder),
    "pow": _row(elementary.power, _plain(lambda a, b: a.integer_power(b))),
    "maximum": _row(lambda a, b: a.maximum(b), _extreme(">"), bools=Lane.__or__),
    "minimum": _row(lambda a, b: a.minimum(b), _extreme("<"), bools=Lane.__and__),
    "atan2": _row(elementary.atan2),
    "neg": _row(Lane.__neg__, _plain(Lane.__neg__)),
    "abs": _row(Lane.absolute, _integer_abs),
    "sign": _row(_sign, _integer_sign),
    "square": _row(lambda x: x * x, _plain(lambda x: x * x)),
    "recip": _row(lambda x: 1.0 / x),
    # functions
    "exp": _row(elementary.exp),
    "exp2": _row(elementary.exp2),
    "expm1": _row(elementary.expm1),
    "log": _row(elementary.log),
    "log2": _row(elementary.log2),
    "log10": _row(elementary.log10),
    "log1p": _row(elementary.log1p),
    "sqrt": _row(_unit("sqrt")),
    "rsqrt": _row(lambda x: 1.0 / x.intrinsic("sqrt")),
    "sin": _row(elementary.sin),
    "cos": _row(elementary.cos),
    "tan": _row(elementary.tan),
    "asin": _row(elementary.asin),
    "acos": _row(elementary.acos),
    "atan": _row(elementary.atan),
    "sinh": _row(elementary.sinh),
    "cosh": _row(elementary.cosh),
    "tanh": _row(elementary.tanh),
    "asinh": _row(elementary.asinh),
    "acosh": _row(elementary.acosh),
    "atanh": _row(elementary.atanh),
    "erf": _row(elementary.erf),
    "erfc": _row(elementary.erfc),
    # rounding
    "floor": _row(_unit("floor"), _same),
    "ceil": _row(_unit("ceil"), _same),
    "trunc": _row(_unit("trunc"), _same),
    "round": _row(_unit("roundeven"), _same),
    # tests and comparison
    "is_nan": _row(Lane.is_nan, result="bool"),
    "is_inf": _row(lambda x: x.absolute().equals(math.inf), result="bool"),
    "is_finite": _row(lambda x: x.absolute() < math.inf, result="bool"),
    "eq": _compare_row("=="),
    "ne": _compare_row("!="),
    "lt": _compare_row("<"),
    "le": _compare_row("<="),
    "gt": _compare_row(">"),
    "ge": _compare_row(">="),
    # logic and bits
    "logical_and": _row(bools=Lane.__and__),
    "logical_or": _row(bools=Lane.__or__),
    "logical_xor": _row(bools=Lane.__xor__),
    "logical_not": _row(bools=Lane.__invert__),
    "bitwise_and": _row(integers=_plain(Lane.__and__)),
    "bitwise_or": _row(integers=_plain(Lane.__or__)),
    "bitwise_xor": _row(integers=_plain(Lane.__xor__)),
    "shift_left": _row(integers=_plain(_shift_left)),
    "shift_right": _row(integers=_shift_right),
    # selection and casts
    "where": _where,
    "cast": _cast,
    "stop_gradient": lambda op, lanes, dtypes, result: lanes[0],
}

STEPS: dict[str, Row] = {
    "larger": _row(lambda a, b: a.larger(b), _extreme(">"), bools=Lane.__or__),
    "smaller": _row(lambda a, b: a.smaller(b), _extreme("<"), bools=Lane.__and__),
}
"""Steps of reductions that are no ops: of two zeros ``max`` and ``min`` may take either."""
