"""Whether operands and attributes fit an op's declaration, before its shape rule sees them.

Calls settle their arguments first (``build``); documents and edits bring settled ones. All of them are
checked here, so a shape rule never meets a missing operand, a mixed element type or a wrong axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .attributes import Attribute, Operand, explain, normalize_axes
from .dtypes import DType
from .errors import ArgumentError, DarnerError, DTypeError
from .types import TensorType, TupleType, Type

if TYPE_CHECKING:
    from .op import Op, Param

KINDS = ("bool", "int", "float", "complex")


def check_call(op: Op, types: Sequence[Type], slots: Sequence[str], attrs: dict[str, Any]) -> None:
    """Raise unless operands of these types, and these settled attributes, are legal for the op."""
    check_slots(op, slots, len(types))
    common: DType | None = None
    for type_, slot in zip(types, slots, strict=True):
        kind = op.by_name[slot].kind
        if not isinstance(kind, Operand):
            continue
        check_tuple(slot, kind, type_)
        if not isinstance(type_, TensorType):
            continue
        check_kind(slot, kind, type_.dtype)
        if kind.promotes:
            common = type_.dtype if common is None else common
            if type_.dtype is not common:
                raise DTypeError(
                    f"{slot} is {type_.dtype} beside {common}: both need one element type",
                    hint="cast one of them",
                )
    for param in op.attributes:
        if attrs[param.name] is None and not param.may_be_none:
            raise ArgumentError(f"argument '{param.name}' is missing")
    if settle_axes(op, attrs, types) != attrs:
        raise ArgumentError(f"axes are not counted from the front, in ascending order, in {attrs}")


def check_slots(op: Op, slots: Sequence[str], count: int) -> None:
    """The operands present must be ones the op can have, in its order."""
    order = {param.name: i for i, param in enumerate(op.operands)}
    if len(slots) != count:
        raise ArgumentError(f"takes {len(slots)} operands, got {count}")
    for slot in slots:
        if slot not in order:
            raise ArgumentError(f"{op.name} has no operand '{slot}'")
    places = [order[slot] for slot in slots]
    if places != sorted(places):
        raise ArgumentError(f"the operands of {op.name} are out of order: {', '.join(slots)}")
    for param in op.operands:
        found = slots.count(param.name)
        if found > 1 and not param.variadic:
            raise ArgumentError(f"{op.name} has operand '{param.name}' {found} times")
        if found == 0 and not (param.optional or param.variadic):
            raise ArgumentError(f"operand '{param.name}' is missing")


def check_tuple(slot: str, kind: Operand, type_: Type) -> None:
    """Only an operand declared as a tuple reads a node with several results."""
    is_tuple, wanted = isinstance(type_, TupleType), kind.exact == "tuple"
    if is_tuple and not wanted:
        raise ArgumentError(f"'{slot}' has type {type_}: project one of its items first")
    if wanted and not is_tuple:
        raise ArgumentError(f"'{slot}' must be a node with several results, not {type_}")


def check_kind(slot: str, kind: Operand, found: DType) -> None:
    """The element type must be of a kind that the operand accepts."""
    if kind.exact is not None and found.kind != kind.exact:
        wanted = "integers" if kind.exact == "int" else kind.exact
        raise DTypeError(f"{slot} must be {wanted}, not {found}", hint=_CAST_HINTS.get(kind.exact))
    if found.kind == "complex" and not kind.allows_complex:
        raise DTypeError(f"complex values ({found}) have no meaning here")
    if KINDS.index(found.kind) < KINDS.index(kind.lowest):
        if kind.lowest == "float":
            raise DTypeError(f"{slot} must be float, not {found}", hint="cast it to f32 first")
        raise DTypeError(f"{found} has no arithmetic", hint="cast it to a number first")


_CAST_HINTS = {"int": "cast it to i32 first", "bool": "compare it with something first"}


def settle_axes(op: Op, attrs: dict[str, Any], types: Sequence[Type]) -> dict[str, Any]:
    """The attributes with axes counted from the front of the first operand, several of them in ascending order.

    Several axes are a set: an order that matters (``perm``, the axes of a product) is no attribute of this kind.
    """
    if not op.axis_params or not types or not isinstance(types[0], TensorType):
        return attrs
    settled = dict(attrs)
    for param in op.axis_params:
        value = attrs[param.name]
        if value is not None:
            found = normalize_axes(value, types[0].rank)
            settled[param.name] = tuple(sorted(found)) if isinstance(found, tuple) else found
        elif isinstance(param.kind, Attribute) and param.kind.name == "axes":
            settled[param.name] = tuple(range(types[0].rank))
    return settled


def canonical(param: Param, value: Any) -> Any:
    """An attribute's value in the one form that is stored; an error names the parameter."""
    if value is None:
        if not param.may_be_none:
            raise ArgumentError(f"argument '{param.name}' is missing")
        return None
    try:
        return param.kind.coerce(value) if isinstance(param.kind, Attribute) else value
    except DarnerError as error:
        raise explain(param.name, error) from None
