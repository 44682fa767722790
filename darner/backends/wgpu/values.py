"""Values of the SIMT builder as WGSL: what is an expression, and what gets a name.

Expressions become names where a template says ``let``, where something is read from memory, and where a scalar instruction makes them; all others stand where they are used.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...codegen.ir.index import Number
from ...codegen.simt.builder import Operand, Type, Value, value_type
from ...graph import dtypes
from ...graph.dtypes import DType
from ...graph.errors import InternalError
from .expressions import Text, reads_of
from .lanes import ShaderLane, philox
from .spelling import element, integer, spelled, vector, width
from .writer import ZERO, Writer

_WORDS = """abs acos alias all any asin atan atan2 bitcast bool break case ceil clamp const continue continuing cos cosh cross default degrees determinant diagnostic
discard distance dot else enable enum exp exp2 f16 f32 f64 false filter final floor fma fn for fract frexp from get goto group i32 i64 if import inverseSqrt ldexp length let
local log log2 loop macro main match max min mix mod modf module namespace new normalize of override part pow precise private ptr radians ref reflect regardless requires
resource return round select self set shared sign sin sinh smoothstep sqrt static step storage struct super switch tan tanh target texture this thread transpose true trunc
typedef type u32 u64 uniform unpack2x16float pack2x16float use using var vec2 vec3 vec4 virtual void while workgroup"""
WORDS = frozenset(_WORDS.split())
"""What a name must not be: words of WGSL, its functions, and what every shader has."""


def is_signed(value: Operand) -> bool:
    """Whether a value is an integer with a sign."""
    return isinstance(value, Text) and value.signed


class Values(Writer):
    """Writes values; see ``codegen.simt.builder.Simt``."""

    def __init__(self, zero: str = ZERO) -> None:
        super().__init__(zero)
        self.lane = ShaderLane
        self.loops: list[int] = []
        self._taken: set[str] = set(WORDS)

    # ------------------------------------------------------------- names

    def name(self, prefix: str = "v") -> str:
        """A name that nothing else has."""
        found = super().name(prefix)
        while found in self._taken:
            found = super().name(prefix)
        self._taken.add(found)
        return found

    def called(self, name: str) -> str:
        """A name like this that nothing else has."""
        if name in ("v", "c", "i"):
            return self.name(name)
        found, count = name, 1
        while found in self._taken:
            count += 1
            found = f"{name}_{count}"
        self._taken.add(found)
        return found

    # ------------------------------------------------------------- values

    def let(self, value: Operand, name: str = "v") -> Text:
        if not isinstance(value, Text):
            raise InternalError(f"{value!r} is known, and needs no name")
        found = self.called(name)
        self.line(f"let {found} = {value.whole};")
        return Text(value.type, found, self, signed=value.signed)

    def expression(self, value: Operand) -> str:
        """A value where any expression may stand."""
        return value.whole if isinstance(value, Text) else self.text(value)

    def constant(self, number: float, dtype: DType, width: int = 1) -> Text:
        type_ = value_type(dtype)
        text = self.constant_text(number, type_)
        return self.splat(Text(type_, text, self), width)

    def splat(self, value: Operand, width: int) -> Text:
        if width == 1:
            return value
        kind = vector(value.type, width)
        text = f"{spelled(kind, is_signed(value))}({self.expression(value)})"
        return Text(kind, text, self, signed=is_signed(value), reads=reads_of(value))

    def vector(self, parts: Sequence[Operand], like: Value | None = None) -> Text:
        values = (item for item in (like, *parts) if isinstance(item, Text))
        first = next(values, None)
        if first is not None:
            parts = [self.literal(item, first) for item in parts]
        count = sum(getattr(item.type, "count", 1) for item in parts)
        if count == 1:
            return parts[0]
        kind, signed = vector(element(parts[0].type), count), is_signed(parts[0])
        text = ", ".join(map(self.expression, parts))
        return Text(
            kind, f"{spelled(kind, signed)}({text})", self, signed=signed, reads=reads_of(*parts)
        )

    def index(self, number: Operand) -> Text:
        return self._number(number)

    def narrowed(self, value: Operand) -> Text:
        wide = self.signed(value)
        text = f"bitcast<u32>(i32(clamp({wide}, -2147483648li, 2147483647li)))"
        return Text(integer(32), text, self, reads=reads_of(value))

    def _cast(self, value: Operand, type_: Type, how: str, signed: bool = False) -> Text:
        text = f"{how}({self.expression(value)})"
        return Text(type_, text, self, signed=signed, reads=reads_of(value))

    def as_signed(self, value: Operand) -> Text:
        if value.signed:
            return value
        return self._cast(value, value.type, spelled(value.type, True), True)

    def as_unsigned(self, value: Operand) -> Text:
        if not value.signed:
            return value
        return self._cast(value, value.type, spelled(value.type))

    def bits(self, value: Operand) -> Text:
        kind, wide = spelled(value.type, is_signed(value)), element(value.type)
        if kind == "bool":
            return self._cast(value, integer(32), "u32")
        if not kind.removeprefix("vec4<").startswith("f"):
            return (
                self.as_unsigned(value)
                if isinstance(value, Text)
                else Text(value.type, self.text(value), self)
            )
        type_ = integer(64 if str(wide) == "double" else 32)
        if value.type is not wide:
            type_ = vector(type_, value.type.count)
        return self._cast(value, type_, f"bitcast<{spelled(type_)}>")

    def of_bits(self, bits: Operand, dtype: DType) -> Text:
        type_ = value_type(dtype)
        if width(type_) == 1:
            return self.operate("!=", bits, 0)
        if width(type_):
            return Text(type_, bits.whole, self, bits.level, reads=bits.reads or reads_of(bits))
        if bits.width > 1:
            type_ = vector(type_, bits.width)
        return self._cast(bits, type_, f"bitcast<{spelled(type_)}>")

    def words(self, value: Operand) -> list[Value]:
        bits = self.bits(value)
        if width(bits.type) < 64:
            return [Text(integer(32), bits.whole, self, bits.level, reads=bits.reads)]
        whole, word = self.let(bits), integer(32)
        low, high = whole & 0xFFFFFFFF, whole >> 32
        return [self._cast(low, word, "u32"), self._cast(high, word, "u32")]

    def of_words(self, words: Sequence[Operand], dtype: DType) -> Text:
        type_ = value_type(dtype)
        if len(words) == 1:
            return self.let(self.of_bits(words[0], dtype))
        low, high = (self._cast(word, integer(64), "u64") for word in words)
        bits = self.operate("|", low, high << 32)
        return self.let(self.of_bits(bits, dtype) if not width(type_) else bits)

    def half_bits(self, value: Operand) -> Text:
        text = f"pack2x16float(vec2<f32>({self.expression(value)}, 0.0f))"
        return Text(integer(32), text, self, reads=reads_of(value))

    def of_half_bits(self, bits: Operand) -> Value:
        """See ``Simt``."""
        return self.halves(bits).x

    def halves(self, word: Operand) -> Text:
        return self._cast(word, vector(value_type(dtypes.f32), 2), "unpack2x16float")

    def min(self, a: Operand, b: Operand) -> Number:
        return (
            min(a, b) if isinstance(a, int) and isinstance(b, int) else self._extreme("min", a, b)
        )

    def max(self, a: Operand, b: Operand) -> Number:
        return (
            max(a, b) if isinstance(a, int) and isinstance(b, int) else self._extreme("max", a, b)
        )

    def _extreme(self, name: str, a: Operand, b: Operand) -> Text:
        like = a if isinstance(a, Text) else b
        a, b = (self.literal(x, like) for x in (a, b))
        kind = a.type if a.width >= b.width else b.type
        if a.width != b.width:
            a, b = (self._spread(x, kind) for x in (a, b))
        text = f"{name}({a.whole}, {b.whole})"
        return Text(kind, text, self, signed=like.signed, reads=reads_of(a, b))

    def fma(self, a: Operand, b: Operand, c: Operand) -> Text:
        kind = next((x.type for x in (a, b, c) if x.type is not element(x.type)), a.type)
        texts = [
            self.expression(x)
            if x.type is not element(x.type) or kind is element(kind)
            else f"{spelled(kind)}({self.expression(x)})"
            for x in (a, b, c)
        ]
        return Text(kind, f"fma({', '.join(texts)})", self, reads=reads_of(a, b, c))

    def choose(self, condition: Operand, chosen: Operand, otherwise: Operand) -> Text:
        like = next(x for x in (chosen, otherwise) if isinstance(x, Text))
        chosen, otherwise = (self.literal(x, like) for x in (chosen, otherwise))
        kind = chosen.type if chosen.width >= otherwise.width else otherwise.type
        if chosen.width != otherwise.width:
            chosen, otherwise = (self._spread(x, kind) for x in (chosen, otherwise))
        text = f"select({otherwise.whole}, {chosen.whole}, {self.expression(condition)})"
        reads = reads_of(condition, chosen, otherwise)
        return Text(kind, text, self, signed=like.signed, reads=reads)

    def call(self, name: str, *values: Operand) -> Text:
        type_ = element(values[0].type) if name == "dot" else values[0].type
        text = f"{name}({', '.join(map(self.expression, values))})"
        return Text(type_, text, self, signed=is_signed(values[0]), reads=reads_of(*values))

    def random_bits(self, offset: Operand, step: Operand, seed: int, stream: int) -> Text:
        return philox(self, offset, step, seed, stream)

    def _number(self, number: Operand) -> Text:
        if isinstance(number, Text):
            return number
        return Text(integer(32), self.text_of(number), self)

    def text_of(self, number: Operand) -> str:
        """An index as an expression."""
        if isinstance(number, int):
            return f"{number % (1 << 32)}u"
        return self.expression(number)
