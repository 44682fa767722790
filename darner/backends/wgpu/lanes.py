"""Arithmetic on values of a shader: what a ``Lane`` does with instructions, where WGSL has something else for it.

Shader compilers may compute ``fma`` in two roundings, and take ``(x + c) - c`` for ``x``: so integers are rounded with ``round``, and the elementary functions lose a
unit in the last place or two against the CPU's. Where a device has no f64, what would be computed in it is computed in f32.
"""

from __future__ import annotations

from typing import Any

from ..cpu import math_tables as tables
from ..cpu.lanes import Lane
from .writer import Text, Writer, spelled

BUILTINS = {
    "fabs": "abs",
    "sqrt": "sqrt",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "roundeven": "round",
    "fma": "fma",
}
"""Intrinsics of LLVM, and what WGSL calls them."""


class ShaderLane(Lane):
    """A value of a shader."""

    __slots__ = ()

    builder: Writer

    def intrinsic(self, name: str, *others: Lane | float) -> Lane:
        """A builtin function of this value and others of its type."""
        texts = [self.builder.text(value) for value in (self.value, *map(self._other, others))]
        return self.of(self.builder.let(self.type, f"{BUILTINS[name]}({', '.join(texts)})"))

    @property
    def count(self) -> None:
        """A value has one lane."""

    def absolute(self) -> Lane:
        """|x| of a float, NaN included."""
        if self.bits == 64:
            return self.intrinsic("fabs")
        return (self.as_integer() & 0x7FFFFFFF).as_float()

    def as_integer(self) -> Lane:
        """The bits of a float."""
        return self.of(self.builder.bitcast(self.value, self.integer()))

    def with_sign_of(self, other: Lane) -> Lane:
        """The magnitude of this float with the sign bit of another."""
        top = 1 << (self.bits - 1)
        bits = (self.as_integer() & (top - 1)) | (other.as_integer() & top)
        return bits.as_float()

    def nearest_integer(self, factor: float) -> tuple[Lane, Lane]:
        """The integer nearest to the product with a factor, as a float and as an integer (any, where this is NaN)."""
        near = (self * factor).intrinsic("roundeven")
        kind = "i64" if self.bits == 64 else "i32"
        text = f"bitcast<{kind.replace('i', 'u')}>({kind}({self.builder.text(near.value)}))"
        return near, self.of(self.builder.let(self.integer(), text))

    def small_to_float(self) -> Lane:
        """An integer far from the limits as a float of its width."""
        return self.to_float(self.bits, signed=True)

    def to_integer(self, bits: int, *, signed: bool) -> Lane:
        """A float without its fraction, stopped at the type's limits; NaN gives 0."""
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        target = self.integer(bits)
        kind = ("i" if signed else "u") + ("64" if bits == 64 else "32")
        inside = self.builder.let(
            target,
            f"bitcast<{spelled(target)}>({kind}({self.builder.text(self._bounded(low, high).value)}))",
        )
        found = self.of(inside) if bits in (32, 64) else self.of(inside) & ((1 << bits) - 1)
        # A limit that no float is must not be rounded up to one that is outside.
        found = (self >= float(high)).choose(found.constant(high), found)
        found = (self <= float(low)).choose(found.constant(low), found)
        return self.is_nan().choose(found.constant(0), found)

    def _bounded(self, low: int, high: int) -> Lane:
        """Kept where a conversion is defined; what is stopped here is replaced afterwards."""
        top = {32: float(high & ~0xFF) if high > 1 << 24 else float(high), 64: float(high)}
        limit = (
            top[self.bits] if self.bits == 32 else float(high if high < 1 << 53 else high & ~0x7FF)
        )
        kept = (self > limit).choose(self.constant(limit), self)
        return (kept < float(low)).choose(self.constant(float(low)), kept)

    @property
    def can_scale(self) -> bool:
        """No instruction multiplies by powers of two."""
        return False

    @property
    def can_widen(self) -> bool:
        """Whether the device computes in f64."""
        return self.builder.wide

    def any(self) -> Lane:
        """The mask itself: there is one lane."""
        return self

    # ----------------------------------------------------------------------- remainders

    def quadrant(self) -> tuple[Lane, Lane]:
        """(r, n) with this angle = n * pi / 2 + r and |r| at most a little over pi / 4; n counts modulo 4."""
        if self.bits == 64:
            return self._wide_quadrant()
        self.builder.declare("quadrant", _QUADRANT)
        found = self.builder.name()
        self.builder.line(f"let {found} = quadrant({self.builder.text(self.value)});")
        r = self.of(Text(self.type, f"{found}.rest"))
        return r, self.of(Text(self.integer(), f"{found}.turns"))

    def _wide_quadrant(self) -> tuple[Lane, Lane]:
        n, turns = self.nearest_integer(1.0 / tables.HALF_PI[64][0])
        first, second, third = tables.HALF_PI[64]
        r = n.fma(-third, n.fma(-second, n.fma(-first, self)))
        return self.equals(0.0).choose(self, r), turns

    def truncated_remainder(self, divisor: Lane) -> Lane:
        """What C calls fmod, by long division of significands."""
        name = f"remainder_{spelled(self.type)}"
        self.builder.declare(name, _REMAINDERS[spelled(self.type)])
        texts = [self.builder.text(item.value) for item in (self, divisor)]
        return self.of(self.builder.let(self.type, f"{name}({', '.join(texts)})"))

    def integer_power(self, exponent: Lane) -> Lane:
        """By squaring; wraps around."""
        kind = spelled(self.type)
        one = "1lu" if kind == "u64" else "1u"
        zero = "0lu" if kind == "u64" else "0u"
        self.builder.declare(
            f"power_{kind}",
            f"fn power_{kind}(base: {kind}, exponent: {kind}) -> {kind} {{\n"
            f"  var total = {one}; var square = base; var left = exponent;\n"
            f"  while (left != {zero}) {{\n"
            f"    if ((left & {one}) != {zero}) {{ total = total * square; }}\n"
            f"    square = square * square; left = left >> 1u;\n"
            f"  }}\n  return total;\n}}",
        )
        texts = [self.builder.text(item.value) for item in (self, exponent)]
        found = self.of(self.builder.let(self.type, f"power_{kind}({', '.join(texts)})"))
        return found & ((1 << self.bits) - 1) if self.bits < 32 else found


def lane_of(writer: Writer, value: Any) -> ShaderLane:
    """A value as arithmetic."""
    return ShaderLane(writer, value)


def _words(number: int, bits: int) -> list[int]:
    return [(number >> (bits - 32 * (i + 1))) & 0xFFFFFFFF for i in range(bits // 32)]


_TWO_OVER_PI = ", ".join(
    f"{word}u" for word in _words(tables.TWO_OVER_PI >> (tables.TWO_OVER_PI_BITS - 192), 256)
)

_QUADRANT = f"""struct Quadrant {{ rest: f32, turns: u32 }}
fn high_word(a: u32, b: u32) -> u32 {{
  let al = a & 0xffffu; let ah = a >> 16u; let bl = b & 0xffffu; let bh = b >> 16u;
  let middle = ah * bl + ((al * bl) >> 16u);
  return ah * bh + (middle >> 16u) + ((al * bh + (middle & 0xffffu)) >> 16u);
}}
var<private> two_over_pi: array<u32, 8> = array<u32, 8>({_TWO_OVER_PI});
fn quadrant(x: f32) -> Quadrant {{
  let bits = bitcast<u32>(x);
  let size = bits & 0x7fffffffu;
  if (size >= 0x7f800000u) {{ return Quadrant(x - x, 0u); }}
  if (size < 0x3f490fdbu) {{ return Quadrant(x, 0u); }}
  // The significand times 96 bits of 2 / pi, those before them being whole turns: 2 bits count quarters, the others are a fraction.
  let significand = ((size & 0x7fffffu) | 0x800000u) << 8u;
  let shift = (size >> 23u) - 96u;
  let at = shift / 32u;
  let by = shift % 32u;
  var word: array<u32, 3>;
  for (var i = 0u; i < 3u; i++) {{
    let next = two_over_pi[at + i + 1u] >> ((32u - by) & 31u);
    word[i] = select((two_over_pi[at + i] << by) | next, two_over_pi[at + i], by == 0u);
  }}
  let middle = word[1] * significand;
  var rest = middle + high_word(word[2], significand);
  var high = word[0] * significand + high_word(word[1], significand) + select(0u, 1u, rest < middle);
  var turns = high >> 30u;
  high = (high << 2u) | (rest >> 30u);
  rest = rest << 2u;
  var negative = false;
  if ((high & 0x80000000u) != 0u) {{
    turns += 1u;
    negative = true;
    rest = ~rest + 1u;
    high = ~high + select(0u, 1u, rest == 0u);
  }}
  let zeros = min(countLeadingZeros(high), 31u);
  let lead = select((high << zeros) | (rest >> ((32u - zeros) & 31u)), high, zeros == 0u);
  let tail = rest << zeros;
  // The 32 leading bits in two floats, times pi / 2 in two parts.
  let first = f32(lead & 0xffffff00u);
  let second = f32(lead & 0xffu) + f32(tail) * 2.3283064365386963e-10f;
  let scale = bitcast<f32>((95u - zeros) << 23u);
  var angle = fma(first, 1.57079637050628662109375f, fma(first, -4.37113882867379e-8f, second * 1.57079637050628662109375f));
  angle = angle * scale;
  if (negative) {{ angle = -angle; }}
  if ((bits & 0x80000000u) != 0u) {{ return Quadrant(-angle, 0u - turns); }}
  return Quadrant(angle, turns);
}}"""


def _remainder(kind: str, word: str, stored: int, bias_top: int) -> str:
    literal = "lu" if word == "u64" else "u"
    significand = f"{(1 << stored) - 1}{literal}"
    hidden = f"{1 << stored}{literal}"
    size = (1 << (63 if word == "u64" else 31)) - 1
    infinite = bias_top << stored
    room = (64 if word == "u64" else 32) - stored - 2
    return f"""fn remainder_{kind}(a: {kind}, b: {kind}) -> {kind} {{
  let top = bitcast<{word}>(a) & {size}{literal};
  let bottom = bitcast<{word}>(b) & {size}{literal};
  let sign = bitcast<{word}>(a) & {size + 1}{literal};
  if (top >= {infinite}{literal} || bottom > {infinite}{literal} || bottom == 0{literal}) {{
    return bitcast<{kind}>({infinite}{literal} | {1 << (stored - 1)}{literal} | sign);
  }}
  if (top < bottom) {{ return a; }}
  var upper = i32(top >> {stored}u);
  var lower = i32(bottom >> {stored}u);
  var rest = top & {significand};
  var by = bottom & {significand};
  if (upper > 0) {{ rest = rest | {hidden}; }} else {{ upper = 1; }}
  if (lower > 0) {{ by = by | {hidden}; }} else {{ lower = 1; }}
  rest = rest % by;
  var left = upper - lower;
  while (left > 0) {{
    let step = min(left, {room});
    rest = (rest << u32(step)) % by;
    left -= step;
  }}
  if (rest == 0{literal}) {{ return bitcast<{kind}>(sign); }}
  while (rest < {hidden} && lower > 1) {{ rest = rest << 1u; lower -= 1; }}
  if (rest < {hidden}) {{ return bitcast<{kind}>(sign | rest); }}
  return bitcast<{kind}>(sign | (rest & {significand}) | ({word}(lower) << {stored}u));
}}"""


_REMAINDERS = {"f32": _remainder("f32", "u32", 23, 255), "f64": _remainder("f64", "u64", 52, 2047)}
