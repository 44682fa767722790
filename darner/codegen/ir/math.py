"""Element-wise primitives as LLVM IR: what the rules of ops (``@op.emit``) give, in any type and any number of lanes.

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

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from ...graph.dtypes import DType, bf16, bool_
from ...graph.errors import (
    DarnerError,
    DTypeError,
    InternalError,
    UnknownNameError,
    UnsupportedError,
    nearest,
)
from ...graph.op import OPS, Op
from ...graph.scalar import Emit
from .lanes import Lane
from .types import Builder, ElementBuilder, Type, Value


def register_type(dtype: DType, lanes: int | None = None) -> Type:
    """The IR type of a value in a register: a scalar, or a vector of so many lanes."""
    from llvmlite import ir

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
    op: Op | str,
    builder: ElementBuilder,
    arguments: Sequence[Value],
    dtypes: Sequence[DType],
    result: DType,
    attrs: Mapping[str, object] | None = None,
) -> Value:
    """The code of one element-wise primitive, at the builder's position.

    Args:
        op: the op, or the name of one of darner's own or of ``STEPS``.
        builder: an ``llvmlite.ir.IRBuilder``, which stays in the basic block where it stands, or another writer of these instructions, whose ``lane`` is
            the class of its values; one that has ``routine`` decides there what becomes a function.
        arguments: one IR value per operand, all scalars or all vectors of one width.
        dtypes: the element type of each operand.
        result: the element type of the value returned.
        attrs: the node's attributes.

    Raises:
        UnknownNameError: no op of that name has scalar code.
        DTypeError: the op does not take these element types.
        UnsupportedError: a user's rule cannot be written.
    """
    name = op if isinstance(op, str) else op.name
    known = OPS.get(op) if isinstance(op, str) else op
    rules = STEPS.get(name) if known is None else known.rules.emit
    if rules is None:
        raise UnknownNameError(
            f"there is no scalar code for '{name}'",
            hint=nearest(name, [own.name for own in OPS.values() if own.rules.emit is not None]),
        )
    for dtype in (*dtypes, result):
        if dtype.kind == "complex":
            raise DTypeError(f"{name} of {dtype} has no scalar code")
    if len(arguments) != len(dtypes):
        raise InternalError(f"{name}: {len(arguments)} values but {len(dtypes)} element types")
    made = getattr(builder, "lane", Lane)
    given = {} if rules.converts else dict(attrs or {})

    def code(into: Builder, values: Sequence[Value]) -> Value:
        pairs = zip(values, dtypes, strict=True)
        lanes = [_loaded(made(into, value), dtype) for value, dtype in pairs]
        return _written(rules, name, lanes, dtypes, result, given).value

    if known is not None and not known.builtin:
        return _of_a_user(known, lambda: code(builder, arguments))
    routine = getattr(builder, "routine", None)
    if routine is None:
        return code(builder, arguments)
    # What takes many instructions is written once, and called.
    called = "_".join(map(str, (name, *given.values(), *dtypes, result)))
    return routine(_spelled(called), arguments, code)


def _spelled(name: str) -> str:
    """A name for a routine: the numbers of an op's attributes are part of it."""
    for sign, word in (("-", "minus"), ("+", "plus"), (".", "point")):
        name = name.replace(sign, word)
    return name


def _of_a_user(op: Op, code: Callable[[], Value]) -> Value:
    """The code of a user's rule, where it stands: it may be another tomorrow, under the same name."""
    try:
        return code()
    except Exception as error:
        told = error.rule if isinstance(error, DarnerError) else f"{type(error).__name__}: {error}"
        raise UnsupportedError(f"its scalar code cannot be written: {told}").located(
            op.name, None, "", None
        ) from error


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
    return x.to_bf16() if dtype is bf16 else x.refloated(16)


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


# --------------------------------------------------------------------------- rules


def _written(
    emit: Emit,
    op: str,
    lanes: Sequence[Lane],
    dtypes: Sequence[DType],
    to: DType,
    attrs: Mapping[str, object],
) -> Lane:
    """What the rules of an op give for operands of these types."""
    if emit.converts:
        return _converted(lanes[0], dtypes[0], to)
    if emit.stored is not None:
        return cast(Lane, emit.stored(*lanes, **attrs))
    operand = dtypes[0]
    if any(dtype is not operand for dtype in dtypes):
        raise DTypeError(f"{op} needs operands of one type, not {', '.join(map(str, dtypes))}")
    if emit.integers is None and emit.bools is None and to.is_float and not operand.is_float:
        # A function of floats: integers come in as the float type that goes out.
        lanes = [_converted(lane, operand, to) for lane in lanes]
        operand = to
    value: Lane
    if operand.is_float and emit.floats is not None:
        lanes = [_widened(lane, operand) for lane in lanes]
        value = _of_type(emit.floats(*lanes, **attrs), lanes[0], to)
        value = value if to is bool_ else _narrowed(value, operand)
    elif operand.is_int and emit.integers is not None:
        value = _of_type(emit.integers(*lanes, signed=operand.signed, **attrs), lanes[0], to)
    elif operand is bool_ and emit.bools is not None:
        value = _of_type(emit.bools(*lanes, **attrs), lanes[0], to)
    else:
        raise DTypeError(f"{op} does not take {operand}", hint="cast the operands first")
    return value


def _of_type(value: object, operand: Lane, to: DType) -> Lane:
    """What a rule gave, if it is what its result is: a value of its operands' type, or a mask."""
    wanted = operand.integer(1) if to is bool_ else operand.type
    if not isinstance(value, Lane) or value.type != wanted:
        found = value.type if isinstance(value, Lane) else repr(value)
        raise DTypeError(f"it gives {found}, not {wanted}")
    return value


def _extreme(operator: str) -> Callable[..., Lane]:
    return lambda a, b, signed: a.compare(operator, b, signed=signed).choose(a, b)


STEPS: dict[str, Emit] = {
    "larger": Emit(lambda a, b: a.larger(b), _extreme(">"), Lane.__or__),
    "smaller": Emit(lambda a, b: a.smaller(b), _extreme("<"), Lane.__and__),
}
"""Steps of reductions that are no ops: of two zeros ``max`` and ``min`` may take either."""
