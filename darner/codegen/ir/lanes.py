"""Values of LLVM IR that read like arithmetic, one lane or many.

A ``Lane`` wraps an IR value of an integer or float type, or a vector of one, together with the builder
that continues the code. Python's operators emit the instruction for its element type; plain numbers become
constants of that type. Nothing here knows how wide the vector is, so a formula is written once:

    y = x * x + 1.0
    y = (x < 0.0).choose(-y, y)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .functions import Functions
from .index import same_in_lanes
from .types import ElementBuilder, Function, Module, Type, Value

ROUNDER = {32: 1.5 * 2.0**23, 64: 1.5 * 2.0**52}
ROUNDER_BITS = {32: 0x4B400000, 64: 0x4338000000000000}


def function_of(module: Module, name: str, result: Type, arguments: Sequence[Type]) -> Function:
    """The function of that name in the module, declared if it is not there yet."""
    from llvmlite import ir

    found = module.globals.get(name)
    if found is None:
        found = ir.Function(module, ir.FunctionType(result, arguments), name)
    return found


def own_function(
    module: Module,
    name: str,
    result: Type,
    arguments: Sequence[Type],
    body: Callable[..., None],
    mark: str = "alwaysinline",
) -> Function:
    """The module's private function of that name; ``body(builder, *arguments)`` writes it on first use.

    Code with branches stands in one of these, so that whoever calls it keeps a single basic block.
    """
    from llvmlite import ir

    function = function_of(module, name, result, arguments)
    if function.is_declaration:
        function.linkage = "internal"
        function.attributes.add(mark)
        body(ir.IRBuilder(function.append_basic_block("entry")), *function.args)
    return function


def note_target(module: Module, vector_bytes: int, converts_halves: bool) -> None:
    """Say how wide the vectors of a module's target are, and whether it has instructions between f16 and f32."""
    module.vector_bytes = vector_bytes
    module.converts_halves = converts_halves


def mangled(type_: Type) -> str:
    """How the names of intrinsics spell a type: ``f32``, ``v16f32``, ``i64``."""
    from llvmlite import ir

    if isinstance(type_, ir.VectorType):
        return f"v{type_.count}{mangled(type_.element)}"
    if isinstance(type_, ir.IntType):
        return f"i{type_.width}"
    return {"half": "f16", "float": "f32", "double": "f64"}[str(type_)]


class Lane(Functions):
    """A value of one or many lanes, and where its code goes. Immutable."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: ElementBuilder, value: Value) -> None:
        self.builder = builder
        self.value = value

    # ----------------------------------------------------------------------- types

    @property
    def type(self) -> Type:
        """The IR type."""
        return self.value.type

    @property
    def count(self) -> int | None:
        """Lanes of a vector; None for a scalar."""
        return getattr(self.type, "count", None)

    @property
    def element(self) -> Type:
        """The IR type of one lane."""
        return self.type if self.count is None else self.type.element

    @property
    def bits(self) -> int:
        """The width of one lane."""
        spelled = mangled(self.element)
        return int(spelled[1:])

    @property
    def is_float(self) -> bool:
        """Whether lanes are half, float or double."""
        return mangled(self.element).startswith("f")

    def like(self, element: Type) -> Type:
        """The type of as many lanes of another element type."""
        from llvmlite import ir

        return element if self.count is None else ir.VectorType(element, self.count)

    def integer(self, bits: int | None = None) -> Type:
        """The integer type of as many lanes, of the same width unless told."""
        from llvmlite import ir

        return self.like(ir.IntType(bits or self.bits))

    def floating(self, bits: int) -> Type:
        """The float type of as many lanes."""
        from llvmlite import ir

        kinds = {16: ir.HalfType, 32: ir.FloatType, 64: ir.DoubleType}
        return self.like(kinds[bits]())

    def of(self, value: Value) -> Lane:
        """Another IR value in the same code."""
        return type(self)(self.builder, value)

    def constant(self, number: float) -> Lane:
        """The number in every lane, in this value's type."""
        from llvmlite import ir

        number = float(number) if self.is_float else int(number)
        if self.count is None:
            return self.of(ir.Constant(self.type, number))
        return self.of(same_in_lanes(self.type.element, number, self.count))

    def _other(self, other: Lane | float) -> Value:
        return other.value if isinstance(other, Lane) else self.constant(other).value

    # ----------------------------------------------------------------------- arithmetic

    def _binary(self, other: Lane | float, floats: str, integers: str) -> Lane:
        emit = getattr(self.builder, floats if self.is_float else integers)
        return self.of(emit(self.value, self._other(other)))

    def __add__(self, other: Lane | float) -> Lane:
        return self._binary(other, "fadd", "add")

    __radd__ = __add__

    def __sub__(self, other: Lane | float) -> Lane:
        return self._binary(other, "fsub", "sub")

    def __rsub__(self, other: float) -> Lane:
        return self.constant(other) - self

    def __mul__(self, other: Lane | float) -> Lane:
        return self._binary(other, "fmul", "mul")

    __rmul__ = __mul__

    def __truediv__(self, other: Lane | float) -> Lane:
        return self.of(self.builder.fdiv(self.value, self._other(other)))

    def __rtruediv__(self, other: float) -> Lane:
        return self.constant(other) / self

    def __neg__(self) -> Lane:
        if self.is_float:
            return self.of(self.builder.fneg(self.value))
        return self.constant(0) - self

    def fma(self, factor: Lane | float, term: Lane | float) -> Lane:
        """The product with ``factor`` plus ``term``, rounded once."""
        return self.intrinsic("fma", factor, term)

    @property
    def can_fuse(self) -> bool:
        """Whether ``fma`` is sure to round once."""
        return True

    def fused(self, factor: Lane | float, term: Lane | float) -> Lane:
        """As ``fma``, and where the target has none too: for a term that takes most of the product away."""
        return self.fma(factor, term)

    def head(self) -> Lane:
        """A float without the second half of its bits: the product of two of these is exact."""
        kept = {32: 0xFFFFF000, 64: 0xFFFFFFFFF8000000}[self.bits]
        return (self.as_integer() & kept).as_float()

    def hidden(self) -> Lane:
        """The same value, of which no compiler may know how it was made: what its rounding lost can be computed from it."""
        return self

    def polynomial(self, coefficients: Sequence[float]) -> Lane:
        """The polynomial with these coefficients, constant term first, by Horner's rule."""
        total = self.constant(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            total = total.fma(self, coefficient)
        return total

    def short_chain(self, coefficients: Sequence[float], square: Lane) -> Lane:
        """The polynomial with these coefficients, given the square of this value: by pairs, so that few products wait for each other."""
        pairs = [
            self.fma(coefficients[i + 1], coefficients[i])
            if i + 1 < len(coefficients)
            else self.constant(coefficients[i])
            for i in range(0, len(coefficients), 2)
        ]
        while len(pairs) > 1:
            following = [
                square.fma(pairs[i + 1], pairs[i]) if i + 1 < len(pairs) else pairs[i]
                for i in range(0, len(pairs), 2)
            ]
            pairs, square = following, (square * square if len(following) > 1 else square)
        return pairs[0]

    def nearest_integer(self, factor: float) -> tuple[Lane, Lane]:
        """The integer nearest to the product with a factor, as a float and as an integer (any, where this is NaN)."""
        # Adding so large a number leaves the integer in the low bits of the sum.
        shifted = self.fma(factor, ROUNDER[self.bits])
        return shifted - ROUNDER[self.bits], shifted.as_integer() - ROUNDER_BITS[self.bits]

    def small_to_float(self) -> Lane:
        """An integer far from the limits as a float of its width."""
        return (self + ROUNDER_BITS[self.bits]).as_float() - ROUNDER[self.bits]

    def divided(self, divisor: Lane, *, signed: bool) -> Lane:
        """The quotient of integers, towards 0; the divisor is neither 0 nor -1."""
        emit = self.builder.sdiv if signed else self.builder.udiv
        return self.of(emit(self.value, divisor.value))

    # ----------------------------------------------------------------------- comparison

    def compare(self, operator: str, other: Lane | float, *, signed: bool = True) -> Lane:
        """A mask; with NaN every comparison but ``!=`` is false."""
        right = self._other(other)
        if not self.is_float:
            emit = self.builder.icmp_signed if signed else self.builder.icmp_unsigned
        elif operator == "!=":
            emit = self.builder.fcmp_unordered
        else:
            emit = self.builder.fcmp_ordered
        return self.of(emit(operator, self.value, right))

    def __lt__(self, other: Lane | float) -> Lane:
        return self.compare("<", other)

    def __le__(self, other: Lane | float) -> Lane:
        return self.compare("<=", other)

    def __gt__(self, other: Lane | float) -> Lane:
        return self.compare(">", other)

    def __ge__(self, other: Lane | float) -> Lane:
        return self.compare(">=", other)

    def equals(self, other: Lane | float) -> Lane:
        """A mask of the lanes that are equal (0 and -0 are)."""
        return self.compare("==", other)

    def differs(self, other: Lane | float) -> Lane:
        """A mask of the lanes that differ; NaN differs from everything."""
        return self.compare("!=", other)

    def is_nan(self) -> Lane:
        """A mask of the lanes that are NaN."""
        return self.of(self.builder.fcmp_unordered("uno", self.value, self.value))

    def choose(self, chosen: Lane, otherwise: Lane | float) -> Lane:
        """This mask decides: ``chosen`` where it holds, else ``otherwise``."""
        return self.of(self.builder.select(self.value, chosen.value, chosen._other(otherwise)))

    # ----------------------------------------------------------------------- bits

    def __and__(self, other: Lane | float) -> Lane:
        return self.of(self.builder.and_(self.value, self._other(other)))

    def __or__(self, other: Lane | float) -> Lane:
        return self.of(self.builder.or_(self.value, self._other(other)))

    def __xor__(self, other: Lane | float) -> Lane:
        return self.of(self.builder.xor(self.value, self._other(other)))

    def __invert__(self) -> Lane:
        return self.of(self.builder.not_(self.value))

    def shift_left(self, by: Lane | int) -> Lane:
        """Bits moved up; ``by`` is below the width."""
        return self.of(self.builder.shl(self.value, self._other(by)))

    def shift_right(self, by: Lane | int, *, signed: bool) -> Lane:
        """Bits moved down; ``by`` is below the width."""
        emit = self.builder.ashr if signed else self.builder.lshr
        return self.of(emit(self.value, self._other(by)))

    def as_integer(self) -> Lane:
        """The bits of a float."""
        return self.of(self.builder.bitcast(self.value, self.integer()))

    def as_float(self) -> Lane:
        """The float that has these bits."""
        return self.of(self.builder.bitcast(self.value, self.floating(self.bits)))

    # ----------------------------------------------------------------------- conversions

    def resized(self, bits: int, *, signed: bool) -> Lane:
        """An integer (or mask) of another width; narrower ones wrap around."""
        if bits == self.bits:
            return self
        if bits < self.bits:
            return self.of(self.builder.trunc(self.value, self.integer(bits)))
        emit = self.builder.sext if signed else self.builder.zext
        return self.of(emit(self.value, self.integer(bits)))

    def to_float(self, bits: int, *, signed: bool) -> Lane:
        """An integer as a float, rounded to nearest."""
        emit = self.builder.sitofp if signed else self.builder.uitofp
        return self.of(emit(self.value, self.floating(bits)))

    def to_integer(self, bits: int, *, signed: bool) -> Lane:
        """A float without its fraction, stopped at the type's limits; NaN gives 0."""
        target = self.integer(bits)
        name = f"llvm.fpto{'s' if signed else 'u'}i.sat.{mangled(target)}.{mangled(self.type)}"
        function = function_of(self.builder.module, name, target, [self.type])
        return self.of(self.builder.call(function, [self.value]))

    def refloated(self, bits: int) -> Lane:
        """A float of another width, rounded to nearest even; f16 is made of f32, and f32 of f16."""
        if bits == self.bits:
            return self
        if bits == 16:
            return self.to_half()
        if self.bits == 16:
            return self.from_half()
        emit = self.builder.fpext if bits > self.bits else self.builder.fptrunc
        return self.of(emit(self.value, self.floating(bits)))

    def to_bf16(self) -> Lane:
        """The 16 bits of an f32 as bf16."""
        bits = self.as_integer()
        upper = bits.shift_right(16, signed=False)
        even = (bits + 0x7FFF + (upper & 1)).shift_right(16, signed=False)
        return self.is_nan().choose(upper | 0x40, even).resized(16, signed=False)

    def to_half(self) -> Lane:
        """An f32 as f16."""
        if not self._converts_halves:
            from .halves import narrowed

            return narrowed(self)
        # LLVM moves roundings inside copysign, and would round a sign from f64 to f16, for which it calls a library.
        return self.of(self.builder.fptrunc(self._fenced().value, self.floating(16)))

    def from_half(self) -> Lane:
        """An f16 as f32."""
        if not self._converts_halves:
            from .halves import widened

            return widened(self)
        # LLVM makes selections of f16 of those of f32, and loses the sign of zeros where they are maxima.
        return self.of(self.builder.fpext(self.value, self.floating(32)))._fenced()

    def _fenced(self) -> Lane:
        """The same value, which LLVM does not look through."""
        return self.intrinsic("arithmetic.fence")

    @property
    def _converts_halves(self) -> bool:
        return bool(getattr(self.builder.module, "converts_halves", True))

    # ----------------------------------------------------------------------- intrinsics

    def intrinsic(self, name: str, *others: Lane | float) -> Lane:
        """``llvm.name`` of this value and others of the same type."""
        values = [self.value, *(self._other(other) for other in others)]
        full = f"llvm.{name}.{mangled(self.type)}"
        function = function_of(self.builder.module, full, self.type, [self.type] * len(values))
        return self.of(self.builder.call(function, values))

    def maximum(self, other: Lane) -> Lane:
        """The larger of two floats, NaN where one is; 0 is larger than -0."""
        return self._extreme("maximum", other)

    def minimum(self, other: Lane) -> Lane:
        """The smaller of two floats, NaN where one is; -0 is smaller than 0."""
        return self._extreme("minimum", other)

    def clamped(self, low: float, high: float) -> Lane:
        """Kept between two bounds; NaN stays."""
        above = (self < low).choose(self.constant(low), self)
        return (above > high).choose(above.constant(high), above)

    def larger(self, other: Lane) -> Lane:
        """As ``maximum``, of two zeros either: what takes fewer instructions, for reductions."""
        return self._extreme("maximum", other, "nsz")

    def smaller(self, other: Lane) -> Lane:
        """As ``minimum``, of two zeros either."""
        return self._extreme("minimum", other, "nsz")

    def _extreme(self, name: str, other: Lane, *flags: str) -> Lane:
        full = f"llvm.{name}.{mangled(self.type)}"
        function = function_of(self.builder.module, full, self.type, [self.type, self.type])
        return self.of(self.builder.call(function, [self.value, other.value], fastmath=flags))

    def absolute(self) -> Lane:
        """|x| of a float, NaN included."""
        return self.intrinsic("fabs")

    def with_sign_of(self, other: Lane) -> Lane:
        """The magnitude of this float with the sign bit of another."""
        return self.intrinsic("copysign", other)

    @property
    def can_scale(self) -> bool:
        """Whether the target multiplies these floats by powers of two in one instruction."""
        wide = getattr(self.builder.module, "vector_bytes", 0) == 64
        whole = self.count is not None and self.count * self.bits % 512 == 0
        return wide and whole and self.bits >= 32

    def scaled_by(self, exponents: Lane) -> Lane:
        """The product with 2**n for whole numbers n that are floats, rounded once; only where ``can_scale``."""
        from llvmlite import ir

        lanes, b = 512 // self.bits, self.builder
        part = ir.VectorType(self.element, lanes)
        short, word = ir.IntType(lanes), ir.IntType(32)
        name = f"llvm.x86.avx512.mask.scalef.{'ps' if self.bits == 32 else 'pd'}.512"
        function = function_of(b.module, name, part, [part, part, part, short, word])
        # All lanes, rounded as everything else is.
        rest = [ir.Constant(part, None), ir.Constant(short, -1), ir.Constant(word, 4)]
        return self._in_parts(lanes, lambda x, n: b.call(function, [x, n, *rest]), exponents)

    @property
    def can_look_up(self) -> bool:
        """Whether the target picks from 16 numbers by the lanes of a vector in one instruction."""
        return getattr(self.builder.module, "vector_bytes", 0) == 64 and self.bits == 32

    def looked_up(self, table: Sequence[float]) -> Lane:
        """The number of a table of 16 that the low four bits of each lane say; only where ``can_look_up``."""
        from llvmlite import ir

        b = self.builder
        part = ir.VectorType(ir.FloatType(), len(table))
        numbers = ir.VectorType(ir.IntType(32), len(table))
        function = function_of(b.module, "llvm.x86.avx512.permvar.sf.512", part, [part, numbers])
        held = ir.Constant(part, list(table))
        return self._in_parts(len(table), lambda places: b.call(function, [held, places]))

    def _in_parts(self, lanes: int, body: Callable[..., Value], *others: Lane) -> Lane:
        """What an instruction for vectors of so many lanes makes of these and others, whatever their number."""
        from llvmlite import ir

        b, word = self.builder, ir.IntType(32)
        count = self.count or 1

        def picked(value: Value, first: int, width: int) -> Value:
            """Lanes from one on; those that are not there are of no account."""
            wanted = [min(lane, value.type.count - 1) for lane in range(first, first + width)]
            numbers = ir.Constant(ir.VectorType(word, width), wanted)
            return b.shuffle_vector(value, value, numbers)

        values = [item.value for item in (self, *others)]
        if self.count is None:
            nothing = [ir.Constant(ir.VectorType(value.type, 1), ir.Undefined) for value in values]
            values = [
                b.insert_element(room, value, ir.Constant(word, 0))
                for room, value in zip(nothing, values, strict=True)
            ]
        pieces = [
            body(*(picked(value, first, lanes) for value in values))
            for first in range(0, count, lanes)
        ]
        while len(pieces) > 1:
            width = pieces[0].type.count
            if len(pieces) % 2:
                pieces.append(ir.Constant(pieces[0].type, ir.Undefined))
            both = ir.Constant(ir.VectorType(word, 2 * width), list(range(2 * width)))
            pieces = [
                b.shuffle_vector(low, high, both)
                for low, high in zip(pieces[::2], pieces[1::2], strict=True)
            ]
        (whole,) = pieces
        if self.count is None:
            return self.of(b.extract_element(whole, ir.Constant(word, 0)))
        return self.of(whole if whole.type.count == count else picked(whole, 0, count))

    @property
    def can_widen(self) -> bool:
        """Whether the target computes in f64."""
        return True

    def quadrant(self) -> tuple[Lane, Lane, Lane]:
        """(r, near, n) with this angle = n * pi / 2 + r and |r| at most a little over pi / 4; n counts modulo 4.

        ``near`` is r but for a correction that only the first term of a series notices, and known sooner.
        """
        from .remainders import quadrant

        return quadrant(self)

    def truncated_remainder(self, divisor: Lane) -> Lane:
        """What C calls fmod, of f64 lanes."""
        from .remainders import truncated_remainder

        return truncated_remainder(self, divisor)

    def integer_power(self, exponent: Lane) -> Lane:
        """By squaring; wraps around. A negative exponent, which the reference refuses, counts as its bits."""
        from .remainders import integer_power

        return integer_power(self, exponent)

    def any(self) -> Lane:
        """Of a mask: whether it holds in at least one lane, as one i1."""
        if self.count is None:
            return self
        from llvmlite import ir

        full = f"llvm.vector.reduce.or.{mangled(self.type)}"
        function = function_of(self.builder.module, full, ir.IntType(1), [self.type])
        return self.of(self.builder.call(function, [self.value]))
