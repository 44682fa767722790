"""A statement of PTX in the code of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from llvmlite import ir

from ....graph.errors import InternalError

Builder: TypeAlias = ir.IRBuilder
Value: TypeAlias = ir.Value
Type: TypeAlias = ir.Type

I16, I32, I64 = (ir.IntType(bits) for bits in (16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()

_LETTERS: dict[str, str] = {
    "i16": "h",
    "i32": "r",
    "i64": "l",
    "i128": "q",
    "half": "h",
    "float": "f",
    "double": "d",
}


def _letter(type_: Type) -> str:
    """How a constraint names the registers of a type."""
    if isinstance(type_, ir.PointerType):
        return "l"
    letter = _LETTERS.get(str(type_))
    if letter is None:
        raise InternalError(f"no register of PTX holds a value of type {type_}")
    return letter


def word(value: Value | int) -> Value:
    """A number of Python as an integer of 32 bits; values stay as they are."""
    return ir.Constant(I32, value) if isinstance(value, int) else value


def assembly(  # many parameters: how a statement is constrained, each by its name
    builder: Builder,
    text: str,
    results: Sequence[Type] = (),
    operands: Sequence[Value | int] = (),
    *,
    tied: int = 0,
    pure: bool = False,
    early: bool = False,
) -> list[Value]:
    """Write a statement of PTX, in which ``$0``, ``$1``, ... are the results and then the operands; returns the results.

    Statements of a pair of braces may declare registers and labels of their own. Nothing moves a statement, or leaves it out, unless it is ``pure``.

    Args:
        builder: where the code goes.
        text: one or more instructions.
        results: the types of what it computes.
        operands: what it reads; numbers of Python are integers of 32 bits.
        tied: so many of the first operands are in the registers of the first results. They have numbers of their own all the same.
        pure: whether it does nothing but compute its results.
        early: whether it writes results before it has read all operands.

    >>> module = ir.Module()
    >>> function = ir.Function(module, ir.FunctionType(ir.VoidType(), ()), "f")
    >>> builder = ir.IRBuilder(function.append_basic_block())
    >>> (lane,) = assembly(builder, "mov.u32 $0, %laneid;", [I32], pure=True)
    >>> str(lane.type)
    'i32'
    """
    given = [word(operand) for operand in operands]
    out = "=&" if early else "="
    constraints = [out + _letter(type_) for type_ in results]
    constraints += [
        str(i) if i < tied else _letter(operand.type) for i, operand in enumerate(given)
    ]
    if not pure:
        constraints.append("~{memory}")
    if not results:
        type_: Type = ir.VoidType()
    elif len(results) == 1:
        type_ = results[0]
    else:
        type_ = ir.LiteralStructType(list(results))
    kind = ir.FunctionType(type_, [operand.type for operand in given])
    call = builder.asm(kind, " ".join(text.split()), ",".join(constraints), given, not pure)
    call.attributes.add("nounwind")
    if not pure:
        call.attributes.add("convergent")
    if not results:
        return []
    if len(results) == 1:
        return [call]
    return [builder.extract_value(call, i) for i in range(len(results))]


def listed(first: int, count: int) -> str:
    """Operands in braces, as vectors of registers are written.

    >>> listed(4, 2)
    '{$4, $5}'
    """
    return "{" + ", ".join(f"${first + i}" for i in range(count)) + "}"
