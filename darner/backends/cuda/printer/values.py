"""Values of the SIMT builder as LLVM IR: operators, vectors, and the bits of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, cast

from ....codegen.ir.index import Number
from ....codegen.ir.math import emit
from ....codegen.ir.types import Function
from ....codegen.ir.types import Value as Raw
from ....codegen.simt.builder import Operand, Type, Value, value_type
from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.errors import InternalError
from .instructions import Held, Instructions
from .lanes import philox
from .types import (
    bytes_of,
    constant,
    count_of,
    dtype_of,
    element,
    floating,
    integer,
    is_float,
    vector,
    width,
)

COMPARES = frozenset({"<", "<=", ">", ">=", "==", "!="})
FLOATS = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv"}
INTEGERS = {"+": "add", "-": "sub", "*": "mul", "&": "and_", "|": "or_", "^": "xor"}
BY_SIGN = {
    "/": ("udiv", "sdiv"),
    "//": ("udiv", "sdiv"),
    "%": ("urem", "srem"),
    ">>": ("lshr", "ashr"),
}
"""Instructions for integers without and with signs."""

P = ParamSpec("P")


def expression(
    method: Callable[Concatenate[Values, P], Held],
) -> Callable[Concatenate[Values, P], Held]:
    """Let what a method makes be computed again where it is used in another block."""

    @wraps(method)
    def made(self: Values, /, *args: P.args, **kwargs: P.kwargs) -> Held:
        found = method(self, *args, **kwargs)
        if found.again is None and not any(found is x for x in args):
            found.again = lambda: method(self, *args, **kwargs)
        return found

    return made


class Values(Instructions):
    """Writes values; see ``codegen.simt.builder.Simt``."""

    # ------------------------------------------------------------- operands

    def literal(self, value: Operand, like: Value) -> Held:
        """Another operand: a value, a constant, or a number of Python in the type of ``like``."""
        if isinstance(value, Held):
            return value
        known = getattr(value, "constant", value)
        if not isinstance(known, int | float):
            raise InternalError(f"{value!r} is no value of a kernel")
        return self._constant(known, element(like.type), like.signed)

    def _constant(self, number: float, type_: Type, signed: bool = False) -> Held:
        found = self.held(constant(type_, number), signed)
        found.home = 0
        return found

    def _pair(self, a: Held, b: Held) -> tuple[Raw, Raw]:
        """Two operands as LLVM's values of one type: a scalar in every part of a vector, integers as wide as the wider."""
        count = max(a.width, b.width)
        kinds = element(a.type), element(b.type)
        kind = max(kinds, key=width) if width(kinds[0]) else max(kinds, key=bytes_of)
        left, right = (self.fitted(x, vector(kind, x.width)) for x in (a, b))
        return self._spread(left, count), self._spread(right, count)

    def _spread(self, raw: Raw, count: int) -> Raw:
        from llvmlite import ir

        if count == 1 or count_of(raw.type) == count:
            return raw
        kind = ir.VectorType(raw.type, count)
        if isinstance(raw, ir.Constant):
            return ir.Constant(kind, [raw.constant] * count)
        first = self.ir.insert_element(
            ir.Constant(kind, ir.Undefined), raw, constant(integer(32), 0)
        )
        return self.ir.shuffle_vector(first, first, constant(integer(32, count), 0))

    # ------------------------------------------------------------- operators

    @expression
    def operate(self, sign: str, a: Operand, b: Operand) -> Held:
        """See ``Operators``."""
        if isinstance(a, Held):
            if type(b) is int and (same := self._unchanged(sign, a, b, right=True)) is not None:
                return same
            left, right = a, self.literal(b, a)
        else:
            if type(a) is int and (same := self._unchanged(sign, b, a, right=False)) is not None:
                return same
            left, right = self.literal(a, b), b
        if sign in ("<<", ">>"):
            first = self.raw(left)
            second = self._distance(
                self._spread(
                    self.fitted(right, vector(element(first.type), right.width)), left.width
                )
            )
            name = "shl" if sign == "<<" else BY_SIGN[sign][left.signed]
            return self.held(getattr(self.ir, name)(first, second), left.signed)
        first, second = self._pair(left, right)
        if sign in COMPARES:
            return self._compared(sign, first, second, left.signed)
        if is_float(first.type):
            return self.held(getattr(self.ir, FLOATS[sign])(first, second))
        name = BY_SIGN[sign][left.signed] if sign in BY_SIGN else INTEGERS[sign]
        return self.held(getattr(self.ir, name)(first, second), left.signed)

    def _distance(self, raw: Raw) -> Raw:
        """How far bits are moved: what is too far counts modulo the width, and is not undefined."""
        from llvmlite import ir

        if isinstance(raw, ir.Constant):
            return raw
        return self.ir.and_(raw, constant(raw.type, width(element(raw.type)) - 1))

    def _compared(self, sign: str, a: Raw, b: Raw, signed: bool) -> Held:
        if is_float(a.type):
            how = self.ir.fcmp_unordered if sign == "!=" else self.ir.fcmp_ordered
        else:
            how = self.ir.icmp_signed if signed else self.ir.icmp_unsigned
        return self.held(how(sign, a, b))

    def _unchanged(self, sign: str, value: Held, known: int, *, right: bool) -> Held | None:
        """What an operation with a known integer leaves of a value, where that takes no code."""
        if width(value.type) < 32:
            return None
        if known == 0 and (sign in "+|^" or (right and sign in ("-", "<<", ">>"))):
            return value
        if known == 1 and (sign == "*" or (right and sign == "//")):
            return value
        if (known == 0 and sign in "*&") or (known == 1 and right and sign == "%"):
            return self._constant(0, value.type, value.signed)
        return None

    @expression
    def apply(self, sign: str, a: Operand) -> Held:
        """See ``Operators``."""
        raw = self.raw(a)
        if sign == "~":
            return self.held(self.ir.not_(raw), a.signed)
        negative = self.ir.fneg if is_float(raw.type) else self.ir.neg
        return self.held(negative(raw), a.signed)

    @expression
    def part(self, a: Operand, which: Operand) -> Held:
        """See ``Operators``."""
        if a.width == 1:
            raise InternalError(f"{a!r} is no vector")
        at = constant(integer(32), which) if isinstance(which, int) else self.raw(which)
        return self.held(self.ir.extract_element(self.raw(a), at), a.signed)

    # ------------------------------------------------------------- values

    def let(self, value: Operand, name: str = "v") -> Held:
        """See ``Simt``."""
        if not isinstance(value, Held):
            raise InternalError(f"{value!r} is known, and needs no name")
        return self.held(value.value, value.signed)

    def constant(self, number: float, dtype: DType, width: int = 1) -> Held:
        """See ``Simt``."""
        return self._constant(number, value_type(dtype, width))

    def index(self, number: Operand) -> Held:
        """See ``Simt``."""
        if isinstance(number, Held):
            return number
        return self._constant(cast(int, getattr(number, "constant", number)), integer(32))

    @expression
    def narrowed(self, value: Operand) -> Held:
        """See ``Simt``."""
        wide = self.as_signed(value)
        inside = self.max(self.min(wide, (1 << 31) - 1), -(1 << 31))
        return self.held(self.ir.trunc(self.raw(inside), integer(32)))

    @expression
    def vector(self, parts: Sequence[Operand], like: Value | None = None) -> Held:
        """See ``Simt``."""
        values = (item for item in (like, *parts) if isinstance(item, Held))
        first = next(values, None)
        kind = element(parts[0].type if first is None else first.type)
        scalars: list[Raw] = []
        for item in parts:
            given = item if first is None else self.literal(item, first)
            count = count_of(given.type)
            raw = self.fitted(given, vector(kind, count))
            scalars += [raw] if count == 1 else self._scalars(raw)
        signed = first is not None and first.signed
        return self.held(self._joined(kind, scalars), signed)

    def _scalars(self, raw: Raw) -> list[Raw]:
        numbers = range(count_of(raw.type))
        return [self.ir.extract_element(raw, constant(integer(32), k)) for k in numbers]

    def _joined(self, kind: Type, scalars: Sequence[Raw]) -> Raw:
        from llvmlite import ir

        if len(scalars) == 1:
            return scalars[0]
        found = ir.Constant(vector(kind, len(scalars)), ir.Undefined)
        for k, raw in enumerate(scalars):
            found = self.ir.insert_element(found, raw, constant(integer(32), k))
        return found

    @expression
    def splat(self, value: Operand, width: int) -> Held:
        """See ``Simt``."""
        return self.held(self._spread(self.raw(value), width), getattr(value, "signed", False))

    # ------------------------------------------------------------- bits

    @expression
    def as_signed(self, value: Operand) -> Held:
        """See ``Simt``."""
        return self.held(self.raw(value), True)

    @expression
    def as_unsigned(self, value: Operand) -> Held:
        """See ``Simt``."""
        return self.held(self.raw(value))

    @expression
    def bits(self, value: Operand) -> Held:
        """See ``Simt``."""
        raw = self.raw(value)
        kind, count = element(raw.type), count_of(raw.type)
        if not width(kind):
            bits = {"half": 16, "float": 32, "double": 64}[str(kind)]
            raw = self.ir.bitcast(raw, integer(bits, count))
        if width(element(raw.type)) < 32:
            raw = self.ir.zext(raw, integer(32, count))
        return self.held(raw)

    @expression
    def of_bits(self, bits: Operand, dtype: DType) -> Held:
        """See ``Simt``."""
        raw = self.raw(bits)
        count = count_of(raw.type)
        kind = value_type(dtype, count)
        if dtype is dtypes.bool_:
            return self.held(self.ir.icmp_unsigned("!=", raw, constant(raw.type, 0)))
        raw = self.fitted(self.held(raw), integer(dtype.bits, count))
        return self.held(raw if raw.type == kind else self.ir.bitcast(raw, kind))

    def words(self, value: Operand) -> list[Value]:
        """See ``Simt``."""
        bits = self.bits(value)
        if width(bits.type) < 64:
            return [bits]
        return [self._word(bits, 0), self._word(bits, 1)]

    @expression
    def _word(self, bits: Held, which: int) -> Held:
        return self.word_of(bits, which)

    def word_of(self, bits: Held, which: int) -> Held:
        """The low or the high word of 64 bits."""
        return self.held(self.ir.trunc(self.raw(bits >> (32 * which)), integer(32)))

    @expression
    def of_words(self, words: Sequence[Operand], dtype: DType) -> Held:
        """See ``Simt``."""
        if len(words) == 1:
            return self.of_bits(words[0], dtype)
        return self.of_bits(self.joined(*words), dtype)

    def joined(self, low: Operand, high: Operand) -> Held:
        """The 64 bits of two words."""
        first, second = (self.zext(word, integer(64)) for word in (low, high))
        return cast(Held, first | (second << 32))

    @expression
    def half_bits(self, value: Operand) -> Held:
        """See ``Simt``."""
        return self.bits(self.held(self.fitted(value, floating(16))))

    @expression
    def of_half_bits(self, bits: Operand) -> Held:
        """See ``Simt``."""
        return self.of_bits(bits, dtypes.f16)

    @expression
    def halves(self, word: Operand) -> Held:
        """See ``Simt``."""
        both = self.ir.bitcast(self.raw(word), floating(16, 2))
        return self.held(self.ir.fpext(both, floating(32, 2)))

    # ------------------------------------------------------------- functions of numbers

    def min(self, a: Operand, b: Operand) -> Number:
        """See ``Simt``."""
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self._extreme("min", a, b)

    def max(self, a: Operand, b: Operand) -> Number:
        """See ``Simt``."""
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return self._extreme("max", a, b)

    @expression
    def _extreme(self, name: str, a: Operand, b: Operand) -> Held:
        like = a if isinstance(a, Held) else b
        left, right = self._pair(self.literal(a, like), self.literal(b, like))
        full = f"{name}num" if is_float(left.type) else f"{'s' if like.signed else 'u'}{name}"
        return self.intrinsic(full, self.held(left, like.signed), right)

    @expression
    def fma(self, a: Operand, b: Operand, c: Operand) -> Held:
        """See ``Simt``."""
        like = next(x for x in (a, b, c) if isinstance(x, Held))
        values = [self.literal(x, like) for x in (a, b, c)]
        kind = next((x.type for x in values if x.width > 1), values[0].type)
        raw = [
            self._spread(self.fitted(x, vector(element(kind), x.width)), count_of(kind))
            for x in values
        ]
        return self.intrinsic("fma", *raw)

    @expression
    def choose(self, condition: Operand, chosen: Operand, otherwise: Operand) -> Held:
        """See ``Simt``."""
        like = next(x for x in (chosen, otherwise) if isinstance(x, Held))
        first, second = self._pair(self.literal(chosen, like), self.literal(otherwise, like))
        test = self.raw(condition)
        count = count_of(test.type)
        first, second = self._spread(first, count), self._spread(second, count)
        return self.held(self.ir.select(test, first, second), like.signed)

    def call(
        self,
        function: Function | str,
        *values: Operand,
        fastmath: Sequence[str] = (),
        tail: bool = False,
    ) -> Held:
        """See ``Simt``: of a function by its name; scalar code calls functions of the module."""
        if isinstance(function, str):
            return self._named(function, *values)
        return super().call(function, *values, fastmath=fastmath)

    @expression
    def _named(self, name: str, *values: Operand) -> Held:
        if name == "dot":
            first, *rest = zip(values[0].parts, values[1].parts, strict=True)
            total = first[0] * first[1]
            for a, b in rest:
                total = self.fma(a, b, total)
            return total
        (x,) = values
        if name == "abs":
            return self.intrinsic("fabs", x)
        kind = dtype_of(x.type)
        return self.vector([self._emitted(name, part, kind) for part in x.parts])

    def _emitted(self, name: str, x: Value, kind: DType) -> Held:
        return self.held(self.raw(emit(name, self, [x], [kind], kind)))

    def random_bits(self, offset: Operand, step: Operand, seed: int, stream: int) -> Held:
        """See ``Simt``."""
        return self.held(self.raw(philox(self, self.index(offset), self.index(step), seed, stream)))
