"""The instructions of llvmlite's ``IRBuilder`` on values of the SIMT builder: what scalar code is written with.

A value is a ``Held``: an LLVM value that knows in which block it was computed. One that is made of operators (``again``) can be used after that block too, where it is computed anew: a template may
write down an expression where it likes. Instructions and what has a name cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from ....codegen.ir.lanes import Lane, function_of, mangled
from ....codegen.ir.types import Function, Module
from ....codegen.ir.types import Value as Raw
from ....codegen.simt.builder import Operand, Operators, Type, Value
from ....graph.errors import InternalError
from .lanes import CardLane, quotient, root
from .types import CodeBuilder, element, width


class Held(Value):
    """A value of a thread.

    Attributes:
        home: the block that it was computed in.
        again: computes it anew, where that may be done in another block.
    """

    __slots__ = ("_value", "again", "home")

    builder: Instructions

    def __init__(
        self,
        builder: Instructions,
        value: Raw,
        signed: bool = False,
        again: Callable[[], Held] | None = None,
    ) -> None:
        super().__init__(builder, value.type, signed)
        self._value = value
        self.again = again
        self.home = builder.home

    def __repr__(self) -> str:
        return f"<{self.type} {self._value}>"

    @property
    def value(self) -> Raw:
        """The LLVM value, for use where the builder stands."""
        if self.home not in self.builder.open:
            if self.again is None:
                raise InternalError(
                    f"{self!r} is used outside of the block that it was computed in"
                )
            self._value = self.again().value
            self.home = self.builder.home
        return self._value


class Instructions(Operators):
    """Writes instructions of one function.

    Attributes:
        ir: llvmlite's builder, where it stands.
        lane: the class of arithmetic on its values; see ``codegen.ir.math.emit``.
        open: the numbers of the blocks that the code is in.
        home: the innermost of them.
        refines: whether quotients and roots of f32 are refined approximations; see ``lanes``.
    """

    ir: CodeBuilder
    refines = True

    def __init__(self) -> None:
        self.lane: type[Lane] = CardLane
        self.open: dict[int, None] = {0: None}
        self.home = 0

    @property
    def module(self) -> Module:
        """The module that is written."""
        return self.ir.module

    def raw(self, value: Operand) -> Raw:
        """A value as LLVM has it: of this builder's, or a constant."""
        if isinstance(value, Held):
            return value.value
        if not hasattr(value, "type"):
            raise InternalError(f"{value!r} is no value of a kernel")
        return value

    def held(self, value: Raw, signed: bool = False) -> Held:
        """A value of LLVM as one of this builder's."""
        return Held(self, value, signed)

    def fitted(self, value: Operand, type_: Type) -> Raw:
        """A value as another type that stands for the same numbers: f16 as what it is computed in, a small integer in a wider register."""
        raw = self.raw(value)
        if raw.type == type_:
            return raw
        found, wanted = element(raw.type), element(type_)
        if width(found) and width(wanted):
            if width(found) > width(wanted):
                return self.ir.trunc(raw, type_)
            signed = getattr(value, "signed", False) and width(found) > 1
            return (self.ir.sext if signed else self.ir.zext)(raw, type_)
        names = str(found), str(wanted)
        if names == ("half", "float"):
            return self.ir.fpext(raw, type_)
        if names == ("float", "half"):
            return self.ir.fptrunc(raw, type_)
        raise InternalError(f"{value!r} is no {type_}")

    def _two(self, name: str, a: Operand, b: Operand) -> Held:
        left = self.raw(a)
        return self.held(getattr(self.ir, name)(left, self.fitted(b, left.type)))

    # ------------------------------------------------------------- arithmetic

    def fadd(self, a: Operand, b: Operand) -> Held:
        """A + b of floats."""
        return self._two("fadd", a, b)

    def fsub(self, a: Operand, b: Operand) -> Held:
        """A - b of floats."""
        return self._two("fsub", a, b)

    def fmul(self, a: Operand, b: Operand) -> Held:
        """A * b of floats."""
        return self._two("fmul", a, b)

    def fdiv(self, a: Operand, b: Operand) -> Held:
        """A / b of floats."""
        left = self.raw(a)
        if str(left.type) != "float" or not self.refines:
            return self._two("fdiv", a, b)
        return cast(Held, quotient(self, self.held(left), self.held(self.fitted(b, left.type))))

    def root(self, a: Operand) -> Held:
        """The square root of an f32."""
        return cast(Held, root(self, a))

    def fneg(self, a: Operand) -> Held:
        """The float with the other sign."""
        return self.held(self.ir.fneg(self.raw(a)))

    def add(self, a: Operand, b: Operand, flags: Sequence[str] = ()) -> Held:
        """A + b of integers; it wraps around, whatever the flags promise."""
        return self._two("add", a, b)

    def sub(self, a: Operand, b: Operand, flags: Sequence[str] = ()) -> Held:
        """A - b of integers."""
        return self._two("sub", a, b)

    def mul(self, a: Operand, b: Operand, flags: Sequence[str] = ()) -> Held:
        """A * b of integers."""
        return self._two("mul", a, b)

    def udiv(self, a: Operand, b: Operand) -> Held:
        """The quotient of integers without signs."""
        return self._two("udiv", a, b)

    def urem(self, a: Operand, b: Operand) -> Held:
        """The rest of that."""
        return self._two("urem", a, b)

    def sdiv(self, a: Operand, b: Operand) -> Held:
        """The quotient of integers with signs, towards 0."""
        return self._two("sdiv", a, b)

    def srem(self, a: Operand, b: Operand) -> Held:
        """The rest of that."""
        return self._two("srem", a, b)

    # ------------------------------------------------------------- bits

    def and_(self, a: Operand, b: Operand) -> Held:
        """Bits that both have."""
        return self._two("and_", a, b)

    def or_(self, a: Operand, b: Operand) -> Held:
        """Bits that one of them has."""
        return self._two("or_", a, b)

    def xor(self, a: Operand, b: Operand) -> Held:
        """Bits that only one of them has."""
        return self._two("xor", a, b)

    def not_(self, a: Operand) -> Held:
        """The other bits."""
        return self.held(self.ir.not_(self.raw(a)))

    def shl(self, a: Operand, b: Operand) -> Held:
        """Bits moved up."""
        return self._two("shl", a, b)

    def lshr(self, a: Operand, b: Operand) -> Held:
        """Bits moved down, zeros above."""
        return self._two("lshr", a, b)

    def ashr(self, a: Operand, b: Operand) -> Held:
        """Bits moved down, the sign above."""
        return self._two("ashr", a, b)

    def bitcast(self, a: Operand, type_: Type) -> Held:
        """The same bits as another type."""
        return self.held(self.ir.bitcast(self.raw(a), type_))

    # ------------------------------------------------------------- comparison

    def icmp_unsigned(self, sign: str, a: Operand, b: Operand) -> Held:
        """Whether ``a sign b`` of integers without signs."""
        left = self.raw(a)
        return self.held(self.ir.icmp_unsigned(sign, left, self.fitted(b, left.type)))

    def icmp_signed(self, sign: str, a: Operand, b: Operand) -> Held:
        """Whether ``a sign b`` of integers with signs."""
        left = self.raw(a)
        if width(left.type) == 1:
            # A truth is no -1.
            return self.icmp_unsigned(sign, a, b)
        return self.held(self.ir.icmp_signed(sign, left, self.fitted(b, left.type)))

    def fcmp_ordered(self, sign: str, a: Operand, b: Operand) -> Held:
        """Whether ``a sign b``, and neither is NaN."""
        left = self.raw(a)
        return self.held(self.ir.fcmp_ordered(sign, left, self.fitted(b, left.type)))

    def fcmp_unordered(self, sign: str, a: Operand, b: Operand) -> Held:
        """Whether ``a sign b``, or one of them is NaN."""
        left = self.raw(a)
        return self.held(self.ir.fcmp_unordered(sign, left, self.fitted(b, left.type)))

    def select(self, condition: Operand, chosen: Operand, otherwise: Operand) -> Held:
        """One of two values."""
        test, first = self.raw(condition), self.raw(chosen)
        signed = bool(getattr(chosen, "signed", False))
        return self.held(self.ir.select(test, first, self.fitted(otherwise, first.type)), signed)

    # ------------------------------------------------------------- conversions

    def _as(self, name: str, a: Operand, type_: Type) -> Held:
        raw = self.raw(a)
        return self.held(raw if raw.type == type_ else getattr(self.ir, name)(raw, type_))

    def trunc(self, a: Operand, type_: Type) -> Held:
        """The low bits of an integer."""
        return self._as("trunc", a, type_)

    def zext(self, a: Operand, type_: Type) -> Held:
        """An integer with zeros above."""
        return self._as("zext", a, type_)

    def sext(self, a: Operand, type_: Type) -> Held:
        """An integer with its sign above."""
        return self._as("sext", a, type_)

    def sitofp(self, a: Operand, type_: Type) -> Held:
        """An integer with a sign as a float."""
        # A truth is 1, not -1.
        return self._as("uitofp" if width(self.raw(a).type) == 1 else "sitofp", a, type_)

    def uitofp(self, a: Operand, type_: Type) -> Held:
        """An integer without a sign as a float."""
        return self._as("uitofp", a, type_)

    def fpext(self, a: Operand, type_: Type) -> Held:
        """A float in a wider type."""
        return self._as("fpext", a, type_)

    def fptrunc(self, a: Operand, type_: Type) -> Held:
        """A float in a narrower type, rounded to nearest even."""
        return self._as("fptrunc", a, type_)

    # ------------------------------------------------------------- functions, structures and vectors

    def call(
        self,
        function: Function,
        arguments: Sequence[Operand],
        *,
        fastmath: Sequence[str] = (),
        tail: bool = False,
    ) -> Held:
        """The result of a function of the module."""
        kinds = function.ftype.args
        raw = [self.fitted(x, kind) for x, kind in zip(arguments, kinds, strict=True)]
        return self.held(self.ir.call(function, raw, fastmath=fastmath))

    def extract_value(self, aggregate: Operand, index: int) -> Held:
        """A part of a structure."""
        return self.held(self.ir.extract_value(self.raw(aggregate), index))

    def extract_element(self, vector: Operand, lane: Operand) -> Held:
        """A part of a vector."""
        return self.held(self.ir.extract_element(self.raw(vector), self.raw(lane)))

    def insert_element(self, vector: Operand, value: Operand, lane: Operand) -> Held:
        """A vector with another part."""
        raw = self.raw(vector)
        part = self.fitted(value, raw.type.element)
        return self.held(self.ir.insert_element(raw, part, self.raw(lane)))

    def shuffle_vector(self, a: Operand, b: Operand, lanes: Operand) -> Held:
        """Parts of two vectors, by number."""
        return self.held(self.ir.shuffle_vector(self.raw(a), self.raw(b), self.raw(lanes)))

    def intrinsic(self, name: str, *values: Operand) -> Held:
        """``llvm.name`` of values of one type."""
        first = self.raw(values[0])
        raw = [self.fitted(value, first.type) for value in values]
        full = f"llvm.{name}.{mangled(first.type)}"
        function = function_of(self.module, full, first.type, [first.type] * len(raw))
        return self.held(self.ir.call(function, raw), bool(getattr(values[0], "signed", False)))
