"""Arithmetic on values of a shader: what a ``Lane`` does with instructions, where WGSL has something else for it.

Shader compilers may compute ``fma`` in two roundings, take ``(x + c) - c`` for ``x`` and ``n * a + n * b`` for ``n * (a + b)``. So integers are rounded with ``round``, what
must not be simplified is ``hidden``, and where a product's lost bits matter they are computed from halves (``fused``).

f32 is computed in f32 alone, with the same code on every device: f64 is missing on most and slow on nearly all others. The largest distances from exact values, in
units in the last place, on Mesa's lavapipe, with f64 and without (``python -m tests.gpu.accuracy``; a GPU whose quotients and roots are not rounded exactly adds a unit or two):

======  ===  ===    ======  ===  ===    ======  ===  ===    ======  ===  ===
..      f32  f64    ..      f32  f64    ..      f32  f64    ..      f32  f64
======  ===  ===    ======  ===  ===    ======  ===  ===    ======  ===  ===
exp     1.7  1.7    log1p   1.1  1.2    tan     3.2  3.2    tanh    1.2  1.5
exp2    1.8  1.8    sqrt    0.5  0.5    asin    2.3  2.1    asinh   1.6  1.7
expm1   1.4  2.0    rsqrt   1.5  1.5    acos    1.3  1.1    acosh   2.0  1.7
log     1.1  1.2    recip   0.5  0.5    atan    2.1  2.0    atanh   1.8  1.5
log2    1.7  1.6    sin     1.5  1.6    sinh    1.9  2.2    erf     1.4  0.9
log10   2.1  1.9    cos     1.5  1.5    cosh    1.9  2.2    erfc    3.8  3.3
pow     1.9  1.9    atan2   1.7  2.3
======  ===  ===    ======  ===  ===    ======  ===  ===    ======  ===  ===

Angles of any size are reduced exactly. NaN, infinities and signed zeros come out as IEEE 754 says, as far as a driver computes sums and products so. Denormal numbers are
the device's: lavapipe keeps them, others may take them for 0, of f32 and so of bf16; those of f16 are normal numbers of f32, and are kept.
"""

from __future__ import annotations

import math
from typing import Any

from ...codegen.ir import tables
from ...codegen.ir.lanes import Lane
from ...codegen.ir.philox import MASK, MULTIPLIERS, ROUNDS, WEYL
from .expressions import Text
from .spelling import integer, spelled
from .writer import Writer

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
        return self.of(self.builder.let_text(self.type, f"{BUILTINS[name]}({', '.join(texts)})"))

    @property
    def count(self) -> None:
        """A value has one lane."""

    def absolute(self) -> Lane:
        """|x| of a float, NaN included."""
        if self.bits == 64:
            return self.intrinsic("fabs")
        return (self.as_integer() & 0x7FFFFFFF).as_float()

    def with_sign_of(self, other: Lane) -> Lane:
        """The magnitude of this float with the sign bit of another."""
        top = 1 << (self.bits - 1)
        bits = (self.as_integer() & (top - 1)) | (other.as_integer() & top)
        return bits.as_float()

    def to_half(self) -> Lane:
        """An f32 rounded to what f16 has."""
        return self.of(self.builder.fptrunc(self.value, self.floating(16)))

    def from_half(self) -> Lane:
        """An f16 as f32."""
        return self.of(self.builder.fpext(self.value, self.floating(32)))

    def nearest_integer(self, factor: float) -> tuple[Lane, Lane]:
        """The integer nearest to the product with a factor, as a float and as an integer (any, where this is NaN)."""
        near = (self * factor).intrinsic("roundeven")
        kind = "i64" if self.bits == 64 else "i32"
        text = f"bitcast<{kind.replace('i', 'u')}>({kind}({self.builder.text(near.value)}))"
        return near, self.of(self.builder.let_text(self.integer(), text))

    def small_to_float(self) -> Lane:
        """An integer far from the limits as a float of its width."""
        return self.to_float(self.bits, signed=True)

    def to_integer(self, bits: int, *, signed: bool) -> Lane:
        """A float without its fraction, stopped at the type's limits; NaN gives 0."""
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        target = self.integer(bits)
        kind = ("i" if signed else "u") + ("64" if bits == 64 else "32")
        inside = self.builder.let_text(
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
        lost = max(0, high.bit_length() - {32: 24, 64: 53}[self.bits])
        limit = float(high >> lost << lost)
        kept = (self > limit).choose(self.constant(limit), self)
        return (kept < float(low)).choose(self.constant(float(low)), kept)

    def maximum(self, other: Lane) -> Lane:
        """The larger of two floats, NaN where one is; 0 is larger than -0."""
        both = (self.as_integer() & other.as_integer()).as_float()
        return self.equals(other).choose(both, self.larger(other))

    def minimum(self, other: Lane) -> Lane:
        """The smaller of two floats, NaN where one is; -0 is smaller than 0."""
        either = (self.as_integer() | other.as_integer()).as_float()
        return self.equals(other).choose(either, self.smaller(other))

    def larger(self, other: Lane) -> Lane:
        """As ``maximum``, of two zeros either."""
        return ((self > other) | self.is_nan()).choose(self, other)

    def smaller(self, other: Lane) -> Lane:
        """As ``minimum``, of two zeros either."""
        return ((self < other) | self.is_nan()).choose(self, other)

    @property
    def can_fuse(self) -> bool:
        """Compilers may make two roundings of ``fma``."""
        return False

    def fused(self, factor: Lane | float, term: Lane | float) -> Lane:
        """The product plus a term, with what the product's rounding loses: that is computed from halves of both."""
        other = self.of(self._other(factor))
        product = (self * other).hidden()
        a, b = self.head(), other.head()
        a_low, b_low = self - a, other - b
        lost = ((a * b - product) + a * b_low + a_low * b) + a_low * b_low
        return (product + term) + lost

    def hidden(self) -> Lane:
        """The same value, of which the compiler knows nothing."""
        return self.of(self.builder.opaque(self.value))

    @property
    def can_scale(self) -> bool:
        """No instruction multiplies by powers of two."""
        return False

    @property
    def can_look_up(self) -> bool:
        """Nor does one pick from a table in registers."""
        return False

    @property
    def can_widen(self) -> bool:
        """Whether f32 is computed by way of f64: never, since most devices have none, and nearly all others are slow at it."""
        return False

    def any(self) -> Lane:
        """The mask itself: there is one lane."""
        return self

    # ----------------------------------------------------------------------- remainders

    def quadrant(self) -> tuple[Lane, Lane, Lane]:
        """(r, r, n) with this angle = n * pi / 2 + r and |r| at most a little over pi / 4; n counts modulo 4."""
        kind, (word, _) = spelled(self.type), _word(self.bits)
        self.builder.text(self.constant(math.nan).value)  # declares what gives it
        self.builder.declare(f"high_product_{word}", high_product(self.bits))
        self.builder.declare(f"quadrant_{kind}", _quadrant(self.bits))
        found = self.builder.name()
        self.builder.line(f"let {found} = quadrant_{kind}({self.builder.text(self.value)});")
        r = self.of(Text(self.type, f"{found}.rest"))
        return r, r, self.of(Text(self.integer(), f"{found}.turns"))

    def truncated_remainder(self, divisor: Lane) -> Lane:
        """What C calls fmod, by long division of significands."""
        name = f"remainder_{spelled(self.type)}"
        self.builder.declare(name, _REMAINDERS[spelled(self.type)])
        texts = [self.builder.text(item.value) for item in (self, divisor)]
        return self.of(self.builder.let_text(self.type, f"{name}({', '.join(texts)})"))

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
        found = self.of(self.builder.let_text(self.type, f"power_{kind}({', '.join(texts)})"))
        return found & ((1 << self.bits) - 1) if self.bits < 32 else found


def _word(bits: int) -> tuple[str, str]:
    """The type of unsigned integers of a width, and what ends their literals."""
    return ("u64", "lu") if bits == 64 else ("u32", "u")


def high_product(bits: int) -> str:
    """``high_product_u32(a, b)`` or ``_u64``: the upper half of a product of integers."""
    word, end = _word(bits)
    half, low = bits // 2, f"{(1 << bits // 2) - 1}{end}"
    return f"""fn high_product_{word}(a: {word}, b: {word}) -> {word} {{
  let al = a & {low}; let ah = a >> {half}u; let bl = b & {low}; let bh = b >> {half}u;
  let middle = ah * bl + ((al * bl) >> {half}u);
  return ah * bh + (middle >> {half}u) + ((al * bh + (middle & {low})) >> {half}u);
}}"""


def _quadrant(bits: int) -> str:
    """``quadrant_f32(x)`` or ``_f64``: an angle's quarter turns, and what is left of it, by integers."""
    word, end = _word(bits)
    kind, stored, bias = (
        f"f{bits}",
        {32: 23, 64: 52}[bits],
        {32: 127, 64: 1023}[bits],
    )
    # Two words of zeros, then as many bits of 2 / pi as the largest number needs.
    count = {32: 8, 64: 20}[bits]
    known = tables.TWO_OVER_PI >> (tables.TWO_OVER_PI_BITS - (count - 2) * bits)
    parts = [(known >> (bits * (count - 1 - i))) & ((1 << bits) - 1) for i in range(count)]
    top = 1 << (bits - 1)
    infinite = (2 * bias + 1) << stored
    eighth = {32: 0x3F490FDB, 64: 0x3FE921FB54442D18}[bits]
    quarter_pi = {32: 0xC90FDAA2, 64: 0xC90FDAA22168C234}[bits]
    nan = "bitcast<f32>(nan_bits)" if bits == 32 else "nan64()"
    zeros = "countLeadingZeros(high)"
    if bits == 64:
        upper, lower = "u32(high >> 32u)", "u32(high & 0xfffffffflu)"
        zeros = (
            f"select(countLeadingZeros({upper}), 32u + countLeadingZeros({lower}), {upper} == 0u)"
        )
    return f"""struct Quadrant_{kind} {{ rest: {kind}, turns: {word} }}
var<private> two_over_pi_{kind}: array<{word}, {count}> = array<{word}, {count}>({", ".join(f"{part}{end}" for part in parts)});
fn quadrant_{kind}(x: {kind}) -> Quadrant_{kind} {{
  let bits = bitcast<{word}>(x);
  let size = bits & {top - 1}{end};
  if (size >= {infinite}{end}) {{ return Quadrant_{kind}({nan}, 0{end}); }}
  if (size < {eighth}{end}) {{ return Quadrant_{kind}(x, 0{end}); }}
  // The significand times three words of 2 / pi, those before them being whole turns: 2 bits count quarters, the others are a fraction.
  let significand = ((size & {(1 << stored) - 1}{end}) | {1 << stored}{end}) << {bits - 1 - stored}u;
  let shift = u32(size >> {stored}u) - {bias + 1 - bits}u;
  let at = shift / {bits}u;
  let by = shift % {bits}u;
  var part: array<{word}, 3>;
  for (var i = 0u; i < 3u; i++) {{
    let next = two_over_pi_{kind}[at + i + 1u] >> (({bits}u - by) & {bits - 1}u);
    part[i] = select((two_over_pi_{kind}[at + i] << by) | next, two_over_pi_{kind}[at + i], by == 0u);
  }}
  let middle = part[1] * significand;
  var rest = middle + high_product_{word}(part[2], significand);
  var high = part[0] * significand + high_product_{word}(part[1], significand) + select(0{end}, 1{end}, rest < middle);
  var turns = high >> {bits - 2}u;
  high = (high << 2u) | (rest >> {bits - 2}u);
  rest = rest << 2u;
  var sign = bits & {top}{end};
  let negative = sign != 0{end};
  if ((high & {top}{end}) != 0{end}) {{
    turns += 1{end};
    sign = sign ^ {top}{end};
    rest = ~rest + 1{end};
    high = ~high + select(0{end}, 1{end}, rest == 0{end});
  }}
  let zeros = min({zeros}, {bits - 1}u);
  let lead = select((high << zeros) | (rest >> (({bits}u - zeros) & {bits - 1}u)), high, zeros == 0u);
  // The leading bits times pi / 4, as integers: one rounding makes a float of it.
  let angle = {kind}(high_product_{word}(lead, {quarter_pi}{end})) * bitcast<{kind}>({word}({bias + 1 - bits}u - zeros) << {stored}u);
  return Quadrant_{kind}(bitcast<{kind}>(bitcast<{word}>(angle) | sign), select(turns, 0{end} - turns, negative));
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


# --------------------------------------------------------------------------- random bits


def philox(writer: Writer, offset: Any, step: Any, seed: int, stream: int) -> Text:
    """The random bits of the element at a place: Philox 4x32-10, with products of 32 bits in two words."""
    writer.declare("high_product_u32", high_product(32))
    writer.declare("philox", _PHILOX)
    texts = [writer.text(value) for value in (offset, step)]
    keys = [f"{part}u" for part in (seed & MASK, seed >> 32, stream & MASK)]
    return Text(integer(32), f"philox({', '.join([*texts, *keys])})", writer)


_PHILOX = f"""fn philox(offset: u32, step: u32, seed_low: u32, seed_high: u32, stream: u32) -> u32 {{
  var x = vec4<u32>(offset >> 2u, 0u, stream, step);
  var key = vec2<u32>(seed_low, seed_high);
  for (var round = 0u; round < {ROUNDS}u; round++) {{
    let p = high_product_u32(x.x, {MULTIPLIERS[0]}u);
    let q = high_product_u32(x.z, {MULTIPLIERS[1]}u);
    x = vec4<u32>(q ^ x.y ^ key.x, x.z * {MULTIPLIERS[1]}u, p ^ x.w ^ key.y, x.x * {MULTIPLIERS[0]}u);
    key = key + vec2<u32>({WEYL[0]}u, {WEYL[1]}u);
  }}
  return x[offset & 3u];
}}"""
