"""The elementary functions of floats as straight-line code, for any number of lanes.

Every function takes and returns ``Lane`` values of f32 or f64: range reduction with fused multiply-add, then
a polynomial of ``tables``, chosen by the width. No library is called, and NaN, infinities and signed zeros
come out as IEEE 754 says. Functions marked ``through_double`` do their f32 work in f64, where what would need two
f32 numbers to hold fits in one; a target that does not widen (``Lane.can_widen``) runs the same code on f32, and has
another for powers. Where tables are looked up in registers (``Lane.can_look_up``), erf is another polynomial in every piece of its range, so its last bit
depends on the machine, but not on the number of lanes. Where a compiler might reorder sums, ``Lane.hidden`` and ``Lane.fused`` say what must stay.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from . import tables
from .lanes import ROUNDER, Lane

_INFINITY = math.inf
# Bits of the significand that are stored, and the exponent's bias.
_STORED = {32: 23, 64: 52}
_BIAS = {32: 127, 64: 1023}
# Beyond these, exp is 0 or infinite, and so is half of it.
_EXP_RANGE = {32: (-105.0, 91.0), 64: (-747.0, 712.0)}
# expm1 is -1 below; above, a quarter of it is still finite and a half is not.
_EXPM1_RANGE = {32: (-25.0, 89.6), 64: (-50.0, 710.6)}
# Where a function that starts x + O(x**2) is x to within half a unit in the last place.
_TINY = {32: 2.0**-26, 64: 2.0**-55}


def through_double(function: Callable[..., Lane]) -> Callable[..., Lane]:
    """Compute f32 lanes in f64 and round once at the end; in f32 where the target has nothing wider."""

    @functools.wraps(function)
    def wide(*lanes: Lane) -> Lane:
        if lanes[0].bits == 64 or not lanes[0].can_widen:
            return function(*lanes)
        return function(*(lane.refloated(64) for lane in lanes)).refloated(32)

    return wide


def _nan_like(x: Lane) -> Lane:
    return x.constant(math.nan)


def power_of_two(exponent: Lane) -> Lane:
    """2**n of integer lanes, for exponents of normal numbers."""
    return (exponent + _BIAS[exponent.bits]).shift_left(_STORED[exponent.bits]).as_float()


def scaled(x: Lane, exponent: Lane) -> Lane:
    """The product x * 2**n, rounded once even where the result is denormal: the first half never is."""
    first = exponent.shift_right(1, signed=True)
    return x * power_of_two(first) * power_of_two(exponent - first)


def _at_most(x: Lane, high: float) -> Lane:
    return (x > high).choose(x.constant(high), x)


# --------------------------------------------------------------------------- exponentials


def _reduced(x: Lane, tail: Lane | None = None) -> tuple[Lane, Lane, Lane]:
    """(r, n, n) with x + tail = n * log(2) + r and |r| <= log(2) / 2; n as a float and as an integer."""
    high, low = (tables.LN2 if x.can_fuse else tables.SHORT_LN2)[x.bits][:2]
    n, exponent = x.nearest_integer(tables.LOG2E[x.bits][0])
    r = n.fma(-low, n.fma(-high, x).hidden())
    return (r if tail is None else r + tail), n, exponent


def _expm1_reduced(x: Lane) -> tuple[Lane, Lane]:
    """(expm1(r), n) with x = n * log(2) + r and |r| <= log(2) / 2."""
    r, _, exponent = _reduced(x)
    return (r * r).fma(r.polynomial(tables.EXPM1[x.bits]), r), exponent


def _exp_of_rest(r: Lane) -> Lane:
    return (r * r).fma(r.polynomial(tables.EXP[r.bits]), r) + 1.0


def exp(x: Lane, tail: Lane | None = None, *, half: bool = False) -> Lane:
    """The power e**(x + tail); ``half`` of it where the whole might overflow too soon."""
    inside = x.clamped(*_EXP_RANGE[x.bits])
    if tail is not None:  # beyond the range it may be of any size
        tail = inside.equals(x).choose(tail, 0.0)
    r, n, exponent = _reduced(inside, tail)
    power = _exp_of_rest(r)
    if x.can_scale:
        return power.scaled_by(n - 1.0 if half else n)
    return scaled(power, exponent - 1 if half else exponent)


def _exp_inside(x: Lane) -> Lane:
    """The power e**x where neither that nor its inverse can overflow."""
    r, _, exponent = _reduced(x)
    return _exp_of_rest(r) * power_of_two(exponent)


def exp2(x: Lane) -> Lane:
    """2 to the power x."""
    limit = {32: 152.0, 64: 1080.0}[x.bits]
    x = x.clamped(-limit, limit)
    n, exponent = x.nearest_integer(1.0)
    r = (x - n) * tables.LN2[x.bits][0]
    power = (r * r).fma(r.polynomial(tables.EXPM1[x.bits]), r)
    return scaled(power + 1.0, exponent)


def _quarter_expm1(x: Lane) -> Lane:
    """expm1(x) / 4, finite wherever sinh is; not for tiny x."""
    power, exponent = _expm1_reduced(x.clamped(*_EXPM1_RANGE[x.bits]))
    quarter = power_of_two(exponent - 2)
    return power.fma(quarter, quarter - 0.25)


def expm1(x: Lane) -> Lane:
    """The value exp(x) - 1, exact near 0."""
    tiny = x.absolute() < _TINY[x.bits]
    return tiny.choose(x, _quarter_expm1(x) * 4.0)


@through_double
def sinh(x: Lane) -> Lane:
    """The hyperbolic sine: (m + m / (m + 1)) / 2 with m = expm1(|x|)."""
    size = x.absolute()
    quarter = _quarter_expm1(size)
    value = (quarter + quarter / quarter.fma(4.0, 1.0)) * 2.0
    return (size < _TINY[x.bits]).choose(x, value.with_sign_of(x))


def cosh(x: Lane) -> Lane:
    """The hyperbolic cosine: h + 1 / (4 h) with h = exp(|x|) / 2."""
    half = exp(x.absolute(), half=True)
    return half + 0.25 / half


def tanh(x: Lane) -> Lane:
    """The hyperbolic tangent: a polynomial near 0, else 1 - 2 / (exp(2 |x|) + 1)."""
    size = x.absolute()
    z = x * x
    near = (size * z).fma(z.polynomial(tables.TANH[x.bits]), size)
    # Beyond 20 it is 1 to the last bit, in f64 too.
    far = 1.0 - 2.0 / (_exp_inside((size + size).clamped(0.0, 40.0)) + 1.0)
    return (size < 0.55).choose(near, far).with_sign_of(x)


# --------------------------------------------------------------------------- logarithms


def _significand(x: Lane) -> tuple[Lane, Lane]:
    """(f, e) with x = (1 + f) * 2**e and 1 + f between sqrt(1/2) and sqrt(2); e is a float."""
    stored = _STORED[x.bits]
    tiny = x < 2.0 ** (1 - _BIAS[x.bits])
    bits = tiny.choose(x * 2.0 ** (stored + 1), x).as_integer()
    root = {32: 0x3F3504F3, 64: 0x3FE6A09E667F3BCD}[x.bits]
    exponent = (bits - root).shift_right(stored, signed=True)
    f = (bits - exponent.shift_left(stored)).as_float() - 1.0
    e = exponent.small_to_float()
    return f, tiny.choose(e - (stored + 1.0), e)


def _log_deficit(f: Lane) -> Lane:
    """The difference f - log(1 + f), from log(1 + f) = 2 s + s R(s * s) with s = f / (2 + f)."""
    s = f / (f + 2.0)
    z = s * s
    rest = z * z.fma(z.polynomial(tables.LOG[f.bits]), tables.TWO_THIRDS[f.bits][0])
    half_square = f * f * 0.5
    return half_square - s * (half_square + rest)


def _log_edges(x: Lane, value: Lane) -> Lane:
    """The value where x is positive and finite; what a logarithm gives elsewhere."""
    value = (x < _INFINITY).choose(value, x)
    value = x.equals(0.0).choose(x.constant(-_INFINITY), value)
    return (x < 0.0).choose(_nan_like(x), value)


def log(x: Lane) -> Lane:
    """The natural logarithm."""
    high, low, _ = tables.LN2[x.bits]
    f, e = _significand(x)
    return _log_edges(x, e.fma(high, f - e.fma(-low, _log_deficit(f))))


def _log_to_base(x: Lane, factor: tuple[float, ...], of_two: tuple[float, ...]) -> Lane:
    """log(x) * factor, where ``of_two`` is the logarithm of 2 to that base; both in parts."""
    f, e = _significand(x)
    product = f * factor[0]
    error = f.fma(factor[1], f.fma(factor[0], -product))
    error = _log_deficit(f).fma(-factor[0], error)
    return _log_edges(x, e.fma(of_two[0], product + e.fma(of_two[1], error)))


def log2(x: Lane) -> Lane:
    """The logarithm to base 2."""
    return _log_to_base(x, tables.LOG2E[x.bits], (1.0, 0.0))


def log10(x: Lane) -> Lane:
    """The logarithm to base 10."""
    return _log_to_base(x, tables.LOG10E[x.bits], tables.LOG10_2[x.bits])


def log1p(x: Lane) -> Lane:
    """log(1 + x): the logarithm of the rounded sum, and what the rounding left over it."""
    high, low, _ = tables.LN2[x.bits]
    total = (x + 1.0).hidden()
    back = (total - x).hidden()
    left = (1.0 - back) + (x - (total - back))
    f, e = _significand(total)
    rest = e.fma(low, left / total) - _log_deficit(f)
    value = _log_edges(total, e.fma(high, f + rest))
    return (x.absolute() < _TINY[x.bits]).choose(x, value)


@through_double
def asinh(x: Lane) -> Lane:
    """The inverse hyperbolic sine: log1p(|x| + x**2 / (1 + sqrt(1 + x**2)))."""
    size = x.absolute()
    large = size > 2.0**60
    z = x * x
    inner = size + z / ((z + 1.0).intrinsic("sqrt") + 1.0)
    value = log1p(large.choose(size, inner))
    value = large.choose(value + tables.LN2[64][0], value)
    return value.with_sign_of(x)


@through_double
def acosh(x: Lane) -> Lane:
    """The inverse of cosh: log1p(d + sqrt(d * (d + 2))) with d = x - 1."""
    large = x > 2.0**60
    d = x - 1.0
    value = log1p(large.choose(x, d + (d * (d + 2.0)).intrinsic("sqrt")))
    value = large.choose(value + tables.LN2[64][0], value)
    return (x < 1.0).choose(_nan_like(x), value)


@through_double
def atanh(x: Lane) -> Lane:
    """The inverse of tanh: log1p(2 |x| / (1 - |x|)) / 2."""
    size = x.absolute()
    value = log1p((size + size) / (1.0 - size)) * 0.5
    return (size < _TINY[x.bits]).choose(x, value.with_sign_of(x))


# --------------------------------------------------------------------------- trigonometry


def _sine_and_cosine(r: Lane, near: Lane) -> tuple[Lane, Lane]:
    """Of an angle of at most a little over pi / 4, ``near`` being close to it; of -0 the sine is 0.

    A loop may wait for nothing but its sine, so what can be computed side by side is.
    """
    z = near * near
    square = z * z
    sine = (near * z).fma(z.short_chain(tables.SIN[r.bits], square), r)
    cosine = square.fma(z.short_chain(tables.COS[r.bits], square), z.fma(-0.5, 1.0))
    return sine, cosine


def _wave(x: Lane, quarters: int) -> Lane:
    """The sine of x plus so many quarter turns."""
    r, near, turns = x.quadrant()
    sine, cosine = _sine_and_cosine(r, near)
    turns = turns + quarters
    value = (turns & 1).differs(0).choose(cosine, sine)
    sign = (turns & 2).shift_left(turns.bits - 2)
    if quarters == 0:
        sign = r.equals(0.0).choose(r.as_integer(), sign)
    return (value.as_integer() ^ sign).as_float()


def sin(x: Lane) -> Lane:
    """The sine."""
    return _wave(x, 0)


def cos(x: Lane) -> Lane:
    """The cosine."""
    return _wave(x, 1)


@through_double
def tan(x: Lane) -> Lane:
    """The tangent."""
    r, near, turns = x.quadrant()
    sine, cosine = _sine_and_cosine(r, near)
    sine = r.equals(0.0).choose(r, sine)
    odd = (turns & 1).differs(0)
    return odd.choose(-cosine, sine) / odd.choose(sine, cosine)


def _asin_tail(x: Lane, z: Lane) -> Lane:
    """asin(x) for z = x * x of at most 1/4."""
    return (x * z).fma(z.polynomial(tables.ASIN[x.bits]), x)


def _arc(x: Lane) -> tuple[Lane, Lane]:
    """(near, angle): asin|x| where |x| is below 1/2, which ``near`` says; else half of acos|x|."""
    size = x.absolute()
    near = size < 0.5
    z = near.choose(x * x, (1.0 - size) * 0.5)
    return near, _asin_tail(near.choose(size, z.intrinsic("sqrt")), z)


@through_double
def asin(x: Lane) -> Lane:
    """The inverse sine; NaN outside -1..1."""
    high, low, _ = tables.HALF_PI[x.bits]
    near, angle = _arc(x)
    return near.choose(angle, high - angle.fma(2.0, -low)).with_sign_of(x)


def acos(x: Lane) -> Lane:
    """The inverse cosine; NaN outside -1..1."""
    high, low, _ = tables.HALF_PI[x.bits]
    near, angle = _arc(x)
    beside = high - (angle.with_sign_of(x) - low)
    twice = angle + angle
    far = (x < 0.0).choose(2.0 * high - (twice - 2.0 * low), twice)
    return near.choose(beside, far)


def _atan_of_ratio(a: Lane, b: Lane) -> Lane:
    """atan(a / b) of two that are not negative; 0 / 0 is 0 and infinity / infinity is 1."""
    high, low, _ = tables.HALF_PI[a.bits]
    steep = a > b * (math.sqrt(2) + 1)
    middle = ~steep & (a > b * (math.sqrt(2) - 1))
    top = steep.choose(-b, middle.choose(a - b, a))
    bottom = steep.choose(a, middle.choose(a + b, b))
    same = a.equals(b)
    infinite = same & a.equals(_INFINITY)
    nothing = same & a.equals(0.0)
    top = (infinite | nothing).choose(a.constant(0.0), top)
    bottom = (infinite | nothing).choose(a.constant(1.0), bottom)
    middle = middle | infinite
    t = top / bottom
    z = t * t
    angle = (t * z).fma(z.polynomial(tables.ATAN[a.bits]), t)
    zero = a.constant(0.0)
    base = steep.choose(a.constant(high), middle.choose(a.constant(high / 2), zero))
    rest = steep.choose(a.constant(low), middle.choose(a.constant(low / 2), zero))
    return base + (angle + rest)


@through_double
def atan(x: Lane) -> Lane:
    """The inverse tangent."""
    return _atan_of_ratio(x.absolute(), x.constant(1.0)).with_sign_of(x)


@through_double
def atan2(y: Lane, x: Lane) -> Lane:
    """The angle of the point (x, y)."""
    high, low, _ = tables.HALF_PI[x.bits]
    a, b = y.absolute(), x.absolute()
    larger = (a > b).choose(a, b)
    # Kept away from overflow in a + b and from denormals in the quotient.
    one, (far, by) = x.constant(1.0), {32: (2.0**100, 2.0**25), 64: (2.0**900, 2.0**100)}[x.bits]
    huge = (larger > far).choose(x.constant(1.0 / by), one)
    factor = (larger < 1.0 / far).choose(x.constant(by), huge)
    angle = _atan_of_ratio(a * factor, b * factor)
    behind = x.as_integer() < 0
    angle = behind.choose(2.0 * high - (angle - 2.0 * low), angle)
    return angle.with_sign_of(y)


# --------------------------------------------------------------------------- error function


def _erfc_of_size(size: Lane) -> Lane:
    """The erfc of what is not negative: exp(-x**2) times a slow function of (x - 3.75) / (x + 3.75)."""
    size = size.clamped(0.0, {32: 10.2, 64: 27.5}[size.bits])
    t = (size - 3.75) / (size + 3.75)
    slow = t.polynomial(tables.ERFC[size.bits]) / size.fma(2.0, 1.0)
    square = size * size
    lost = size.fused(size, -square)
    return exp(-square, -lost) * slow


def _erf_near_zero(size: Lane) -> Lane:
    """The erf of 0 to 1."""
    return size.fma((size * size).polynomial(tables.ERF[size.bits]), size)


def _erf_in_pieces(size: Lane) -> Lane:
    """The erf of f32 lanes that are not negative: E + t + t * P(t) around the place of the piece that they lie in."""
    size = _at_most(size, 3.93)  # in the last piece, and 1 when rounded
    piece = size.fma(1 / tables.ERF_STEP, ROUNDER[32]).as_integer()
    t = size - piece.looked_up(tables.ERF_CENTERS)
    *others, total = (piece.looked_up(table) for table in tables.ERF_AROUND)
    for coefficient in reversed(others):
        total = total.fma(t, coefficient)
    return t.fma(total, piece.looked_up(tables.ERF_AT) + t)


def erf(x: Lane) -> Lane:
    """The error function: a polynomial near 0, else 1 - erfc; polynomials of many pieces where they can be looked up."""
    size = x.absolute()
    if x.can_look_up:
        return _erf_in_pieces(size).with_sign_of(x)
    if x.bits == 32:
        # The logarithm of erfc is smooth enough for a short polynomial: no quotient is needed.
        far = 1.0 - _exp_inside(_at_most(size, 4.0).polynomial(tables.LOG_ERFC[32]))
        near = size.fma((size * size).polynomial(tables.ERF_NEAR[32]), size)
        return (size < 0.9).choose(near, far).with_sign_of(x)
    far = 1.0 - _erfc_of_size(size)
    return (size < 1.0).choose(_erf_near_zero(size), far).with_sign_of(x)


@through_double
def erfc(x: Lane) -> Lane:
    """1 - erf(x)."""
    size = x.absolute()
    near = 1.0 - _erf_near_zero(size)
    value = (size < 0.5).choose(near, _erfc_of_size(size))
    return (x < 0.0).choose(2.0 - value, value)


# --------------------------------------------------------------------------- powers


def _log_in_parts(x: Lane) -> tuple[Lane, Lane]:
    """log(x) of positive f64 lanes as an unrounded sum, good to about 2**-65."""
    f, e = _significand(x)
    bottom = (f + 2.0).hidden()
    lost = f - (bottom - 2.0).hidden()
    s = f / bottom
    s_low = (s.fused(-bottom, f) - s * lost) / bottom
    z = s * s
    z_low = s.fused(s, -z) + s * s_low * 2.0
    # 2/3 + z * T(z), then times z, then times s: each product with the part its rounding lost.
    third, third_low, _ = tables.TWO_THIRDS[64]
    tail = z * z.polynomial(tables.LOG[64])
    inner = (tail + third).hidden()
    inner_low = (third - inner) + tail + third_low
    outer = z * inner
    outer_low = z.fused(inner, -outer) + (z * inner_low + z_low * inner)
    term = s * outer
    term_low = s.fused(outer, -term) + (s * outer_low + s_low * outer)
    twice = s + s
    total = (twice + term).hidden()
    total_low = (twice - total) + term + (s_low + s_low + term_low)
    high, low, _ = tables.LN2[64]
    whole = e * high
    whole_low = e.fma(low, e.fused(high, -whole))
    result = (whole + total).hidden()
    back = (result - whole).hidden()
    left = (whole - (result - back)) + (total - back)
    return result, left + (total_low + whole_low)


def _power_of_size(size: Lane, y: Lane) -> Lane:
    """size**y for f64 lanes that are not negative."""
    high, low = _log_in_parts(size)
    product = y * high
    rest = y.fma(low, y.fused(high, -product))
    value = exp(product, rest)
    # Where one of the two is at an edge, only the direction counts.
    edge = size.equals(0.0) | ~(size < _INFINITY) | ~(y.absolute() < 2.0**1000)
    plain = exp(y * log(size))
    return edge.choose(plain, value)


@through_double
def _narrow_power_of_size(size: Lane, y: Lane) -> Lane:
    """size**y for f32 lanes: f64 carries enough bits of the logarithm by itself."""
    return exp(y * log(size))


def _log2_in_parts(x: Lane) -> tuple[Lane, Lane]:
    """log2(x) of positive f32 lanes as an unrounded sum, good to about 2**-31; the first part has 12 bits.

    With t = x / 2**e and one of three numbers c near it, log2(t / c) is 2 / log(2) * atanh(s), where s = (t - c) / (t + c).
    """
    f, e = _significand(x)
    low, high = f < -0.12, f > 0.14

    def of_center(one: float, below: float, above: float) -> Lane:
        return low.choose(f.constant(below), high.choose(f.constant(above), one))

    top = f - of_center(0.0, -0.21875, 0.28125)
    around = of_center(2.0, 1.78125, 2.28125)
    bottom = f + around
    bottom_high = bottom.head()
    bottom_low = f - (bottom_high - around).hidden()
    s_high = (top / bottom).head()
    s_low = ((top - s_high * bottom_high) - s_high * bottom_low) / bottom
    s = s_high + s_low
    z = s * s
    first, factor = tables.TWO_OVER_LN2[32], sum(tables.TWO_OVER_LN2[32])
    tail = s * z * z.polynomial([factor / k for k in (3, 5, 7, 9)])
    main = s_high * first[0]
    rest = s_high * first[1] + (s_low * factor + tail)
    rest = rest + of_center(0.0, *(of_two[1] for of_two in tables.LOG2_CENTERS))
    whole = e + of_center(0.0, *(of_two[0] for of_two in tables.LOG2_CENTERS))
    result = (whole + (main + rest)).head()
    return result, ((whole - result).hidden() + main) + rest


def _power_in_parts(size: Lane, y: Lane) -> Lane:
    """size**y for f32 lanes, where there is nothing wider: the exponent of 2 is a sum of two."""
    high, low = _log2_in_parts(size)
    nothing = size.is_nan() | y.is_nan()
    grows = (y > 0.0) ^ (size < 1.0)
    # A larger one makes no difference: the logarithm is at least 2**-24.
    y = y.clamped(-(2.0**40), 2.0**40)
    y_high = y.head()
    product = y_high * high
    rest = y_high * low + (y - y_high) * (high + low)
    inside = product.clamped(-200.0, 200.0)
    rest = inside.equals(product).choose(rest, 0.0)
    n, exponent = (inside + rest).nearest_integer(1.0)
    r = ((inside - n) + rest) * tables.LN2[32][0]
    value = scaled((r * r).fma(r.polynomial(tables.EXPM1[32]), r) + 1.0, exponent)
    edge = size.equals(0.0) | size.equals(_INFINITY)
    value = edge.choose(grows.choose(size.constant(_INFINITY), 0.0), value)
    return nothing.choose(_nan_like(size), value)


def power(x: Lane, y: Lane) -> Lane:
    """The power x**y, with IEEE 754's edges: 1 where y is 0 or x is 1, even beside NaN.

    At -0 and -infinity, powers of 0.5 and -0.5 are what ``sqrt`` and ``rsqrt`` give.
    """
    size = x.absolute()
    narrow = _narrow_power_of_size if x.can_widen else _power_in_parts
    value = (_power_of_size if x.bits == 64 else narrow)(size, y)
    whole = y.equals(y.intrinsic("trunc"))
    half = y * 0.5
    odd = whole & half.differs(half.intrinsic("trunc"))
    root = y.absolute().equals(0.5)
    value = (odd | root).choose(value.with_sign_of(x), value)
    allowed = whole | ~(x < 0.0) | (x.equals(-_INFINITY) & ~root)
    value = allowed.choose(value, _nan_like(x))
    unit = x.equals(-1.0) & y.absolute().equals(_INFINITY)
    one = unit | x.equals(1.0) | y.equals(0.0)
    return one.choose(x.constant(1.0), value)


# --------------------------------------------------------------------------- division


def _divided(a: Lane, b: Lane) -> tuple[Lane, Lane]:
    """Quotient rounded down and remainder with the divisor's sign, of f64 lanes."""
    rest = a.truncated_remainder(b)
    quotient = (a - rest) / b
    none = rest.equals(0.0)
    other_side = (rest.as_integer() ^ b.as_integer()) < 0
    step = ~none & other_side
    quotient = step.choose(quotient - 1.0, quotient)
    rest = none.choose(rest.constant(0.0).with_sign_of(b), step.choose(rest + b, rest))
    nearest_below = quotient.intrinsic("floor")
    off = (quotient - nearest_below) > 0.5
    nearest_below = off.choose(nearest_below + 1.0, nearest_below)
    zero = quotient.constant(0.0).with_sign_of(a / b)
    whole = quotient.equals(0.0).choose(zero, nearest_below)
    return b.equals(0.0).choose(a / b, whole), rest


@through_double
def floor_divide(a: Lane, b: Lane) -> Lane:
    """The quotient, rounded down."""
    return _divided(a, b)[0]


@through_double
def remainder(a: Lane, b: Lane) -> Lane:
    """What ``floor_divide`` leaves, with the divisor's sign."""
    return _divided(a, b)[1]
