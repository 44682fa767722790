"""Instructions, written as WGSL.

``Writer`` has the instructions of ``llvmlite.ir.IRBuilder`` that code for one element needs. So what is written against these, such as every elementary function, gives
native code with one and a shader with the other. A ``Text`` is a value: an IR type, and the name it has in the shader.

How IR types stand in WGSL: i1 is ``bool``; integers up to 32 bits are ``u32``, the narrower ones with zeros above; i64 is ``u64``; half and float are ``f32``, where a
half has been rounded to what 16 bits hold; double is ``f64``. Signed instructions go through ``i32`` and ``i64``.

Compilers of shaders take floats for real numbers: they fuse, reorder and assume that NaN does not exist. What must not happen to a value is kept from them by bits: NaN is
found by its bits, and ``Writer.opaque`` hides where a number comes from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ...graph.errors import InternalError
from .expressions import Expressions, Text, reads_of
from .spelling import number, spelled, width

TYPES = frozenset({"i32", "i64", "u32", "u64", "f16", "f32", "f64"})

OWN = "op_"
"""How the names of functions begin that are ops."""
ZERO = "workgroup.z"
"""What is always 0, which compilers do not know: the third number of the workgroup."""
HIDDEN = "hidden_zero"
"""The same in functions, which know no workgroup; a shader that declares it sets it first of all."""


class Routine(NamedTuple):
    """The code of an op.

    Attributes:
        text: a function; empty where it is a single instruction.
        call: the expression that gives the result, with places for its arguments; empty where it is one of them.
        type: of the result.
        needs: declarations, by name.
    """

    text: str
    call: str
    type: Any
    needs: dict[str, str]


_ROUTINES: dict[str, Routine] = {}


def _is_text(value: Any) -> bool:
    return isinstance(value, Text)


def _is_zero(value: Any) -> bool:
    return bool(getattr(value, "constant", None) == 0.0)


class Writer(Expressions):
    """Writes the body of one function of a shader, line by line.

    Attributes:
        lines: what is written so far.
        globals: declarations that the shader needs besides, by name.
        lane: the class of arithmetic on its values; see ``darner.codegen.ir.math.emit``.
        zero: a u32 that is 0, of which compilers do not know it.
        hides: whether that was made use of.
    """

    def __init__(self, zero: str = ZERO) -> None:
        self.lines: list[Any] = []
        self.globals: dict[str, Any] = {}
        self.lane: Any = None
        self.zero = zero
        self.hides = False
        self._count = 0
        self._depth = 1

    # ------------------------------------------------------------- text

    def line(self, text: str) -> None:
        """Write a line as it is."""
        self.lines.append("  " * self._depth + text)

    def name(self, prefix: str = "v") -> str:
        """A name that nothing else has."""
        self._count += 1
        found = f"{prefix}{self._count}"
        # A variable of that name would hide the type.
        return self.name(prefix) if found in TYPES else found

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Lines in braces after ``head``: a condition, a loop."""
        self.line(f"{head} {{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    def let_text(self, type_: Any, text: str, name: str | None = None) -> Text:
        """Give an expression a name."""
        found = name or self.name()
        self.line(f"let {found} = {text};")
        return Text(type_, found, self)

    def text(self, value: Any) -> str:
        """A value as an expression: a ``Text``, or a constant of the IR."""
        if isinstance(value, Text):
            return value.text
        constant = getattr(value, "constant", None)
        if constant is None:
            raise InternalError(f"{value!r} is no value of a shader")
        return self.constant_text(constant, value.type)

    def constant_text(self, value: float, type_: Any, signed: bool = False) -> str:
        """A constant as WGSL; what that has no constant for is declared."""
        shown = number(value, type_, signed)
        if not isinstance(value, int):
            for word, declaration in _SPECIAL.items():
                if word in shown:
                    self.globals.setdefault(word, declaration)
        return shown

    def declare(self, name: str, text: str) -> None:
        """Add a declaration to the shader, such as a function; one of each name."""
        self.globals.setdefault(name, text)

    def opaque(self, value: Any) -> Text:
        """The same float, of which a compiler knows nothing: what is subtracted from it stays subtracted."""
        self.hides = True
        kind, bits, zero = "f32", "u32", self.zero
        if spelled(value.type) == "f64":
            kind, bits, zero = "f64", "u64", f"u64({zero})"
        text = f"bitcast<{kind}>(bitcast<{bits}>({self.text(value)}) ^ {zero})"
        return self.let_text(value.type, text)

    def routine(
        self, name: str, arguments: Sequence[Any], code: Callable[[Any, Sequence[Any]], Any]
    ) -> Any:
        """What ``code(writer, arguments)`` writes, as a function of the shader where that is shorter: one of each name, in every shader the same."""
        found = _ROUTINES.get(name)
        if found is None:
            found = _ROUTINES[name] = self._routine(name, arguments, code)
        texts = [self.text(value) for value in arguments]
        if not found.text and (
            # Numbers that are known, or the same, may need other code.
            not found.call or len(set(texts)) < len(texts) or not all(map(_is_text, arguments))
        ):
            return code(self, arguments)
        if found.text and name not in self.globals:
            self.globals[name] = found.text
        for needed, text in found.needs.items():
            self.globals.setdefault(needed, text)
        self.hides |= "{zero}" in found.call
        return self.let_text(found.type, found.call.format(*texts, zero=self.zero))

    def _routine(
        self, name: str, arguments: Sequence[Any], code: Callable[[Any, Sequence[Any]], Any]
    ) -> Routine:
        inside = Writer("zero")
        inside.lane = self.lane
        taken = [Text(value.type, f"x{i}") for i, value in enumerate(arguments)]
        made = code(inside, taken)
        if len(inside.lines) == 1:
            single = inside.lines[0].partition(" = ")[2].rstrip(";")
            call = re.sub(r"\bx(\d+)\b", r"{\1}", single)
            return Routine("", call, made.type, inside.globals)
        if not inside.lines:
            return Routine("", "", made.type, {})
        listed = [f"{value.text}: {spelled(value.type)}" for value in taken]
        passed = [f"{{{i}}}" for i in range(len(taken))]
        if inside.hides:
            listed.append("zero: u32")
            passed.append("{zero}")
        head = f"fn {OWN}{name}({', '.join(listed)}) -> {spelled(made.type)} {{"
        lines = [head, *inside.lines, f"  return {inside.text(made)};", "}"]
        call = f"{OWN}{name}({', '.join(passed)})"
        return Routine("\n".join(lines), call, made.type, inside.globals)

    # ------------------------------------------------------------- arithmetic

    def _binary(self, sign: str, a: Any, b: Any) -> Text:
        return self.let_text(a.type, f"{self.text(a)} {sign} {self.text(b)}")

    def _kept(self, type_: Any, text: str) -> Text:
        """An integer of which only its own bits may be set."""
        bits = width(type_)
        if bits in (8, 16):
            text = f"({text}) & {(1 << bits) - 1}u"
        return self.let_text(type_, text)

    def fadd(self, a: Any, b: Any) -> Text:
        """A + b of floats."""
        return self._binary("+", a, b)

    def fsub(self, a: Any, b: Any) -> Text:
        """A - b of floats."""
        # What is subtracted from itself is no 0 where it is infinite or NaN.
        return self._binary("-", self.opaque(a) if self.text(a) == self.text(b) else a, b)

    def fmul(self, a: Any, b: Any) -> Text:
        """A * b of floats."""
        # A product with 0 is no 0 where the other is infinite or NaN.
        return self._binary("*", *(self.opaque(x) if _is_zero(x) else x for x in (a, b)))

    def fdiv(self, a: Any, b: Any) -> Text:
        """A / b of floats."""
        if not _is_zero(b):
            # Of a 0 that they know above, compilers make 0, whatever is below.
            return self._binary("/", self.opaque(a) if _is_zero(a) else a, b)
        # And 0 below they take for what is above, if they know that too: so it is said what comes out.
        from llvmlite import ir

        limit = ir.Constant(a.type, math.copysign(math.inf, b.constant))
        product = self.text(self._binary("*", self.opaque(a) if _is_zero(a) else a, limit))
        nothing, zero = self.text(ir.Constant(a.type, math.nan)), number(0.0, a.type)
        return self.let_text(a.type, f"select({product}, {nothing}, {self.text(a)} == {zero})")

    def fneg(self, a: Any) -> Text:
        """The float with the other sign."""
        # Not 0 - a, which some compilers make of it: 0 has no other sign then.
        kind, bits, sign = "f32", "u32", "0x80000000u"
        if spelled(a.type) == "f64":
            kind, bits, sign = "f64", "u64", "0x8000000000000000lu"
        return self.let_text(a.type, f"bitcast<{kind}>(bitcast<{bits}>({self.text(a)}) ^ {sign})")

    def add(self, a: Any, b: Any, flags: Sequence[str] = ()) -> Text:
        """A + b of integers."""
        return self._kept(a.type, f"{self.text(a)} + {self.text(b)}")

    def sub(self, a: Any, b: Any, flags: Sequence[str] = ()) -> Text:
        """A - b of integers."""
        return self._kept(a.type, f"{self.text(a)} - {self.text(b)}")

    def mul(self, a: Any, b: Any, flags: Sequence[str] = ()) -> Text:
        """A * b of integers."""
        return self._kept(a.type, f"{self.text(a)} * {self.text(b)}")

    def udiv(self, a: Any, b: Any) -> Text:
        """The quotient of integers without signs."""
        return self._binary("/", a, b)

    def urem(self, a: Any, b: Any) -> Text:
        """The rest of that."""
        return self._binary("%", a, b)

    def sdiv(self, a: Any, b: Any) -> Text:
        """The quotient of integers with signs, towards 0."""
        return self._unsigned(a.type, f"{self.signed(a)} / {self.signed(b)}")

    def signed(self, value: Any) -> str:
        """An integer as i32 or i64."""
        bits, text = width(value.type), self.text(value)
        if bits == 64:
            return f"bitcast<i64>({text})"
        if bits in (8, 16):
            return f"(bitcast<i32>({text} << {32 - bits}u) >> {32 - bits}u)"
        return f"bitcast<i32>({text})"

    def _unsigned(self, type_: Any, text: str) -> Text:
        kind = spelled(type_)
        return self._kept(type_, f"bitcast<{kind}>({text})")

    # ------------------------------------------------------------- bits

    def and_(self, a: Any, b: Any) -> Text:
        """Bits that both have."""
        return self._binary("&", a, b)

    def or_(self, a: Any, b: Any) -> Text:
        """Bits that one of them has."""
        return self._binary("|", a, b)

    def xor(self, a: Any, b: Any) -> Text:
        """Bits that only one of them has."""
        return self._binary("!=" if width(a.type) == 1 else "^", a, b)

    def not_(self, a: Any) -> Text:
        """The other bits."""
        if width(a.type) == 1:
            return self.let_text(a.type, f"!{self.text(a)}")
        return self._kept(a.type, f"~{self.text(a)}")

    def _by(self, value: Any) -> str:
        """How far bits are moved: a u32, whatever is moved."""
        if not isinstance(value, Text):
            return f"{value.constant}u"
        return f"u32({value.text})" if width(value.type) == 64 else value.text

    def shl(self, a: Any, b: Any) -> Text:
        """Bits moved up."""
        return self._kept(a.type, f"{self.text(a)} << {self._by(b)}")

    def lshr(self, a: Any, b: Any) -> Text:
        """Bits moved down, zeros above."""
        return self.let_text(a.type, f"{self.text(a)} >> {self._by(b)}")

    def ashr(self, a: Any, b: Any) -> Text:
        """Bits moved down, the sign above."""
        return self._unsigned(a.type, f"{self.signed(a)} >> {self._by(b)}")

    def bitcast(self, a: Any, type_: Any) -> Text:
        """The same bits as another type."""
        before, after = spelled(a.type), spelled(type_)
        if "half" in (str(a.type), str(type_)):
            raise InternalError("the bits of a half are not at hand in a shader")
        text = self.text(a)
        return self.let_text(type_, text if before == after else f"bitcast<{after}>({text})")

    # ------------------------------------------------------------- comparison

    def _compare(self, text: str) -> Text:
        from llvmlite import ir

        return self.let_text(ir.IntType(1), text)

    def icmp_unsigned(self, sign: str, a: Any, b: Any) -> Text:
        """Whether ``a sign b`` of integers without signs."""
        left, right = self.text(a), self.text(b)
        if width(a.type) == 1 and sign not in ("==", "!="):
            left, right = f"u32({left})", f"u32({right})"
        return self._compare(f"{left} {sign} {right}")

    def icmp_signed(self, sign: str, a: Any, b: Any) -> Text:
        """Whether ``a sign b`` of integers with signs."""
        if sign in ("==", "!=") or width(a.type) == 1:
            return self.icmp_unsigned(sign, a, b)
        return self._compare(f"{self.signed(a)} {sign} {self.signed(b)}")

    def fcmp_ordered(self, sign: str, a: Any, b: Any) -> Text:
        """Whether ``a sign b``, and neither is NaN."""
        if sign == "ord":
            return self._compare(f"!({self._unordered(a, b)})")
        return self._compare(f"{self.text(a)} {sign} {self.text(b)}")

    def fcmp_unordered(self, sign: str, a: Any, b: Any) -> Text:
        """Whether ``a sign b``, or one of them is NaN."""
        unordered = self._unordered(a, b)
        if sign == "uno":
            return self._compare(unordered)
        return self._compare(f"({self.text(a)} {sign} {self.text(b)}) || {unordered}")

    def _unordered(self, a: Any, b: Any) -> str:
        texts = dict.fromkeys(self._nan(value) for value in (a, b) if isinstance(value, Text))
        return " || ".join(texts) or "false"

    def _nan(self, value: Any) -> str:
        text = self.text(value)
        if spelled(value.type) == "f64":
            return f"((bitcast<u64>({text}) & 0x7ffffffffffffffflu) > 0x7ff0000000000000lu)"
        return f"((bitcast<u32>({text}) & 0x7fffffffu) > 0x7f800000u)"

    def select(self, condition: Any, chosen: Any, otherwise: Any) -> Text:
        """One of two values."""
        texts = self.text(otherwise), self.text(chosen), self.text(condition)
        return self.let_text(chosen.type, f"select({', '.join(texts)})")

    # ------------------------------------------------------------- conversions

    def trunc(self, a: Any, type_: Any) -> Text:
        """The low bits of an integer."""
        bits, text = width(type_), self.text(a)
        if width(a.type) == 64:
            text = f"u32({text} & 0xfffffffflu)"
        if bits == 1:
            return self.let_text(type_, f"({text} & 1u) != 0u")
        return self.let_text(type_, text if bits == 32 else f"{text} & {(1 << bits) - 1}u")

    def _renamed(self, a: Any, type_: Any) -> Text:
        """A value as another type that stands in WGSL as its own does."""
        return Text(type_, self.text(a), self, reads=reads_of(a))

    def zext(self, a: Any, type_: Any) -> Text:
        """An integer with zeros above."""
        if spelled(a.type) == spelled(type_):
            return self._renamed(a, type_)
        return self.let_text(type_, f"{spelled(type_)}({self.text(a)})")

    def sext(self, a: Any, type_: Any) -> Text:
        """An integer with its sign above."""
        if width(a.type) == 1:
            ones, zero = number(-1, type_), number(0, type_)
            return self.let_text(type_, f"select({zero}, {ones}, {self.text(a)})")
        if width(type_) == 64:
            return self._unsigned(type_, f"i64({self.signed(a)})")
        return self._unsigned(type_, self.signed(a))

    def sitofp(self, a: Any, type_: Any) -> Text:
        """An integer with a sign as a float."""
        return self._to_float(a, type_, self.signed(a))

    def uitofp(self, a: Any, type_: Any) -> Text:
        """An integer without a sign as a float."""
        return self._to_float(a, type_, self.text(a))

    def _to_float(self, a: Any, type_: Any, text: str) -> Text:
        if width(a.type) == 1:
            text = f"u32({self.text(a)})"
        return self.let_text(type_, f"{spelled(type_)}({text})")

    def fpext(self, a: Any, type_: Any) -> Text:
        """A float in a wider type."""
        text = self.text(a)
        if spelled(a.type) == spelled(type_):
            return self._renamed(a, type_)
        return self.let_text(type_, f"f64({text})")

    def fptrunc(self, a: Any, type_: Any) -> Text:
        """A float in a narrower type, rounded to nearest even."""
        text = self.text(a)
        if spelled(a.type) == "f64":
            text = f"f32({text})"
        if str(type_) != "half":
            return self.let_text(type_, text)
        self.declare("rounded_to_half", _ROUNDED_TO_HALF)
        return self.let_text(type_, f"rounded_to_half({text})")


_SPECIAL = {
    "nan_bits": "var<private> nan_bits: u32 = 0x7fc00000u;",
    "infinity_bits": "var<private> infinity_bits: u32 = 0x7f800000u;",
    "nan64": "var<private> nan64_bits: u64 = 0x7ff8000000000000lu;\nfn nan64() -> f64 { return bitcast<f64>(nan64_bits); }",
    "infinity64": "var<private> infinity64_bits: u64 = 0x7ff0000000000000lu;\nfn infinity64() -> f64 { return bitcast<f64>(infinity64_bits); }",
}
"""Numbers that WGSL has no constants for: read from variables, so that no compiler objects."""

_ROUNDED_TO_HALF = """fn rounded_to_half(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  let size = bits & 0x7fffffffu;
  let sign = bits & 0x80000000u;
  // Normal halves keep 10 bits after the point; those below 2**-14 have their last place at 2**-24.
  let normal = (size + 0xfffu + ((size >> 13u) & 1u)) & 0xffffe000u;
  let small = round(bitcast<f32>(size) * 16777216.0f) * 5.9604644775390625e-8f;
  var found = select(normal, bitcast<u32>(small), size < 0x38800000u);
  found = select(found, 0x7f800000u, found >= 0x47800000u);
  found = select(found, size | 0x400000u, size > 0x7f800000u);
  return bitcast<f32>(found | sign);
}"""
