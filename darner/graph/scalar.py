"""Scalar code of element-wise ops: how a rule says it, and what it is written against.

    @cube.emit
    def _(x):
        return x * x * x

A rule computes with ``Scalar`` values: Python's operators, comparisons that give masks, and the functions below. Each stands for one element or for several in a
vector; on a CPU the rule becomes native code, on a GPU part of a shader. It knows nothing of either, so it is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, get_args

from .dtypes import DType, bool_

if TYPE_CHECKING:
    from .node import Node
    from .op import Op, Rule

Of = Literal["floats", "integers", "bools", "stored"]
"""What a rule is for; ``Emit`` says more."""


@dataclass(frozen=True, slots=True)
class Emit:
    """The scalar code of an op, by the type of its operands.

    A rule gets one ``Scalar`` an operand, and the op's attributes by name. 16-bit floats come in as f32; what a rule of floats returns is
    rounded to the type of the result, once. Where that type is bool the rule returns a mask.

    Attributes:
        floats: for floats; of an op without rules for integers and bools it serves these too, which come in as the result's type.
        integers: for integers; it is told besides whether they are ``signed``.
        bools: for masks.
        stored: for whatever type there is, on values as they lie in memory.
        converts: whether each element is its operand's, in the type of the result: this is ``cast``.
    """

    floats: Rule | None = None
    integers: Rule | None = None
    bools: Rule | None = None
    stored: Rule | None = None
    converts: bool = False

    def with_rule(self, of: Of, rule: Rule) -> Emit:
        """With another rule, or one more."""
        known = {name: getattr(self, name) for name in get_args(Of)}
        return Emit(**{**known, of: rule}, converts=self.converts)

    def serves(self, operands: Sequence[DType], result: DType) -> bool:
        """Whether there is code for operands of these types.

        >>> from darner.graph.dtypes import f16, i32
        >>> Emit(floats=lambda x: x * x).serves([f16], f16), Emit(floats=lambda x: x * x).serves([i32], i32)
        (True, False)
        """
        if any(dtype.kind == "complex" for dtype in (*operands, result)):
            return False
        if self.converts or self.stored is not None:
            return True
        if not operands or any(dtype is not operands[0] for dtype in operands):
            return False
        operand = operands[0]
        of_floats = self.integers is None and self.bools is None and result.is_float
        if result not in (operand, bool_) and not of_floats:
            return False
        if operand.is_float or of_floats:
            return self.floats is not None
        return (self.bools if operand is bool_ else self.integers) is not None


def runs_on_host(node: Node) -> bool:
    """Whether a backend has nothing of a node but its function of NumPy arrays: a user's primitive without scalar code for these types."""
    op = node.op
    if op.builtin or op.is_composite:
        return False
    return "elementwise" not in op.traits or not has_code(op, node)


def has_code(op: Op, node: Node) -> bool:
    """Whether an op has scalar code for the types of a node."""
    dtypes = [getattr(part.type, "dtype", None) for part in (*node.operands, node)]
    known = [dtype for dtype in dtypes if dtype is not None]
    if any(dtype.kind == "complex" for dtype in known):
        return op.rules.pairs is not None
    emit = op.rules.emit
    return emit is not None and len(known) == len(dtypes) and emit.serves(known[:-1], known[-1])


class Scalar(Protocol):
    """One element, or several: what rules compute with. Numbers stand for themselves beside one."""

    @property
    def bits(self) -> int:
        """How wide it is."""

    def __add__(self, other: Scalar | float) -> Scalar: ...
    def __radd__(self, other: float) -> Scalar: ...
    def __sub__(self, other: Scalar | float) -> Scalar: ...
    def __rsub__(self, other: float) -> Scalar: ...
    def __mul__(self, other: Scalar | float) -> Scalar: ...
    def __rmul__(self, other: float) -> Scalar: ...
    def __truediv__(self, other: Scalar | float) -> Scalar: ...
    def __rtruediv__(self, other: float) -> Scalar: ...
    def __neg__(self) -> Scalar: ...
    def __lt__(self, other: Scalar | float) -> Scalar: ...
    def __le__(self, other: Scalar | float) -> Scalar: ...
    def __gt__(self, other: Scalar | float) -> Scalar: ...
    def __ge__(self, other: Scalar | float) -> Scalar: ...
    def __and__(self, other: Scalar | float) -> Scalar: ...
    def __or__(self, other: Scalar | float) -> Scalar: ...
    def __xor__(self, other: Scalar | float) -> Scalar: ...
    def __invert__(self) -> Scalar: ...

    def constant(self, number: float) -> Scalar:
        """A number of this type."""

    def equals(self, other: Scalar | float) -> Scalar:
        """A mask; 0 equals -0, and NaN nothing."""

    def differs(self, other: Scalar | float) -> Scalar:
        """A mask; NaN differs from everything."""

    def compare(self, operator: str, other: Scalar | float, *, signed: bool = True) -> Scalar:
        """A mask, by ``<``, ``<=``, ``>``, ``>=``, ``==`` or ``!=``; ``signed`` is for integers."""

    def choose(self, chosen: Scalar, otherwise: Scalar | float) -> Scalar:
        """This mask decides: ``chosen`` (a scalar) where it holds, else ``otherwise`` (a scalar or a number)."""

    def is_nan(self) -> Scalar:
        """A mask."""

    def absolute(self) -> Scalar:
        """|x| of a float, NaN without a sign too."""

    def with_sign_of(self, other: Scalar | float) -> Scalar:
        """The magnitude of this float with the sign of another."""

    def maximum(self, other: Scalar | float) -> Scalar:
        """The larger of two floats, NaN where one is."""

    def minimum(self, other: Scalar | float) -> Scalar:
        """The smaller of two floats, NaN where one is."""

    def fma(self, factor: Scalar | float, term: Scalar | float) -> Scalar:
        """The product with ``factor`` plus ``term``; a target may round once or twice."""

    def divided(self, divisor: Scalar | float, *, signed: bool) -> Scalar:
        """The quotient of integers towards 0; the divisor is neither 0 nor -1."""

    def integer_power(self, exponent: Scalar | float) -> Scalar:
        """A power of integers; wraps around."""

    def shift_left(self, by: Scalar | float) -> Scalar:
        """Bits moved up; ``by`` is below the width."""

    def shift_right(self, by: Scalar | float, *, signed: bool) -> Scalar:
        """Bits moved down; ``by`` is below the width."""

    def as_integer(self) -> Scalar:
        """The bits of this float as an integer of its width."""

    def as_float(self) -> Scalar:
        """The float that has the bits of this integer."""

    # Functions of floats, as accurate as the ops of these names.
    abs: Function
    exp: Function
    exp2: Function
    expm1: Function
    log: Function
    log2: Function
    log10: Function
    log1p: Function
    sqrt: Function
    sin: Function
    cos: Function
    tan: Function
    asin: Function
    acos: Function
    atan: Function
    atan2: FunctionOfTwo
    sinh: Function
    cosh: Function
    tanh: Function
    asinh: Function
    acosh: Function
    atanh: Function
    erf: Function
    erfc: Function
    power: FunctionOfTwo
    floor: Function
    ceil: Function
    trunc: Function
    round: Function
    floor_divide: FunctionOfTwo
    remainder: FunctionOfTwo


Function: TypeAlias = Callable[[], Scalar]
FunctionOfTwo: TypeAlias = Callable[[Scalar | float], Scalar]
